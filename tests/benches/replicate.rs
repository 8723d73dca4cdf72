//! One heavy actor with and without replicas: planned times by number of devices, and measured ones as far as the
//! processors reach, one table.
//!
//! `cargo bench -p zbmd-tests --bench replicate`. Kernels are calibrated first, so that plans and runs can be compared;
//! workers are pinned, and the least of some runs counts. The threads that feed and drain share the processors.

use std::time::{Duration, Instant};

use zbmd_compiler::calibrate::{CalibrateOptions, Calibration};
use zbmd_compiler::costs::{CostKey, MeasuredCosts};
use zbmd_compiler::{
    CompileOptions, Compiled, MachineChoice, Replicate, calibrate_str, compile_str, machine,
};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::PlanId;

/// Frames of 1024 samples in an iteration.
const FRAMES: u64 = 24;
const FRAME_BYTES: usize = 4096;
const MODEL: &str = r#"Model(
    name: "heavy",
    sources: { "x": Stream(dtype: f32, shape: [1024], rate: 24) },
    actors: {
        "pre": Gain(0.5),
        "heavy": Expr("HEAVY"),
        "post": Gain(2.0),
    },
    channels: [
        (from: "x", to: ["pre"]), (from: "pre", to: ["heavy"]), (from: "heavy", to: ["post"]),
        (from: "post", to: ["y"]),
    ],
    sinks: { "y": Stream() },
)"#;

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{FRAMES} frames of {} samples; microseconds",
        FRAME_BYTES / 4
    );
    println!(
        "{:>7} {:>16} {:>16} {:>7} {:>16} {:>16} {:>7}",
        "devices",
        "planned without",
        "planned with",
        "gain",
        "measured without",
        "measured with",
        "gain"
    );
    let text = MODEL.replace(
        "HEAVY",
        &format!("{}x{}", "sin(cos(".repeat(16), "))".repeat(16)),
    );
    let costs = calibrated(&text);
    for devices in [1, 2, 3, 4, 8] {
        let plain = compile(&text, devices, &costs, Replicate::Off);
        let spread = compile(&text, devices, &costs, Replicate::Auto);
        let (slow, quick) = (planned(&plain), planned(&spread));
        print!(
            "{devices:>7} {slow:>16.1} {quick:>16.1} {:>7.2}",
            slow / quick
        );
        if devices <= cores {
            let (slow, quick) = (measured(plain), measured(spread));
            println!(" {slow:>16.1} {quick:>16.1} {:>7.2}", slow / quick);
        } else {
            println!(" {:>16} {:>16} {:>7}", "-", "-", "-");
        }
    }
}

/// Costs of the kernels on this computer, as those of eight alike devices.
fn calibrated(text: &str) -> MeasuredCosts {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    };
    let how = CalibrateOptions {
        fresh: true,
        ..CalibrateOptions::default()
    };
    let Calibration { rows, .. } =
        calibrate_str("heavy.ron", text, "", &options, &how, &mut |_| {}).expect("it compiles");
    let program = compile(text, 1, &MeasuredCosts::default(), Replicate::Off).program;
    let mut costs = MeasuredCosts::default();
    for row in rows {
        let actor = program
            .graph
            .find(&row.actor)
            .expect("a row for each actor");
        let key = CostKey::of(&program.graph.actors[actor], &program.blobs);
        for device in &machine::uniform(8).devices {
            costs.insert(&device.name, key, row.cost.clone());
        }
    }
    costs
}

fn compile(text: &str, devices: usize, costs: &MeasuredCosts, replicate: Replicate) -> Compiled {
    let machine = MachineChoice::Measured(machine::uniform(devices), costs.clone());
    let options = CompileOptions {
        machine,
        replicate,
        ..CompileOptions::default()
    };
    compile_str("heavy.ron", text, "", &options).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Planned microseconds of an iteration.
fn planned(compiled: &Compiled) -> f64 {
    let main = &compiled.program.plans[PlanId(0)];
    main.period_ns as f64 / main.block as f64 / 1e3
}

/// Measured microseconds of an iteration, in the quickest of some runs.
fn measured(compiled: Compiled) -> f64 {
    const ITERATIONS: u64 = 400;
    let engine =
        Engine::new(compiled.program, &zbmd_backends::standard_registry()).expect("known ops");
    let input = vec![0u8; (ITERATIONS * FRAMES) as usize * FRAME_BYTES];
    let run = || {
        let options = RunOptions {
            sample_every: 0,
            ..RunOptions::default()
        };
        let mut session = engine.start(options).expect("memory and threads");
        let mut feed = session.source("x").expect("the source");
        let mut drain = session.sink("y").expect("the sink");
        let start = Instant::now();
        std::thread::scope(|scope| {
            let input = &input;
            scope.spawn(move || feed.push_bytes(input).expect("the run takes all"));
            scope.spawn(move || {
                let mut chunk = vec![0; FRAME_BYTES * 64];
                while drain.pull_bytes(&mut chunk).expect("the run goes on") > 0 {}
            });
            session.join().expect("the run ends well");
        });
        start.elapsed()
    };
    let least = (0..7).map(|_| run()).min().unwrap_or(Duration::ZERO);
    least.as_secs_f64() * 1e6 / ITERATIONS as f64
}
