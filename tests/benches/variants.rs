//! Bundles with the variants of kernels that calibration chose beside the same with the default ones: one table,
//! microseconds for an iteration.
//!
//! `cargo bench -p zbmd-tests --bench variants [FILTER] [CORES]`. Both run in one process, by turns; the ratio is the
//! median of the turns' ratios, the times are the turns' medians. The second line of a model says which variants were
//! chosen for how many kernels, and how long measuring took. Models come from the shared data folder.

use std::collections::BTreeMap;
use std::time::Instant;

use zbmd_compiler::calibrate::CalibrateOptions;
use zbmd_compiler::{CompileOptions, MachineChoice, calibrate_file, compile_file};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::verify::Verified;
use zbmd_ir::{DType, Program};
use zbmd_tests::data;
use zbmd_tests::figures::median;
use zbmd_tests::onnx::call_options;

const MODELS: [&str; 9] = [
    "mnist",
    "silero_vad",
    "llama_block_decode",
    "bert_tiny",
    "light_squeezenet",
    "mobilenet_v2",
    "light_inception_v1",
    "light_zfnet512",
    "light_resnet50",
];
/// Seconds of one turn, and turns of each model.
const BUDGET: f64 = 0.25;
const TURNS: usize = 11;

fn options(name: &str, cores: usize) -> CompileOptions {
    let mut machine = zbmd_compiler::machine::detect_in_teams(cores);
    machine.devices.truncate(1);
    machine.links.clear();
    call_options(name, MachineChoice::Given(machine))
}

/// Small numbers for floats, zeros for all else, which no model refuses as an index.
fn inputs(program: &Program) -> BTreeMap<String, Vec<u8>> {
    let mut rng = fastrand::Rng::with_seed(5);
    let sources = program.graph.sources().map(|(_, source)| {
        let token = &source.outputs[0].token;
        let bytes = match token.dtype {
            DType::F32 => (0..token.elements())
                .flat_map(|_| rng.f32().to_le_bytes())
                .collect(),
            _ => vec![0; token.bytes() as usize],
        };
        (source.name.clone(), bytes)
    });
    sources.collect()
}

/// Seconds of one iteration: many in one run, so that starting it does not count.
fn run(program: &Verified<Program>, inputs: &BTreeMap<String, Vec<u8>>, count: u64) -> f64 {
    let engine =
        Engine::new(program.clone(), &zbmd_backends::standard_registry()).expect("known ops");
    let options = RunOptions {
        sample_every: 0,
        iterations: Some(count),
        ..Default::default()
    };
    let mut session = engine.start(options).expect("memory and threads");
    std::thread::scope(|scope| {
        for (name, token) in inputs {
            let mut source = session.source(name).expect("a source");
            scope.spawn(move || while source.push_bytes(token).is_ok() {});
        }
        let outcome = session.join().expect("the run ends well");
        outcome.report.elapsed_ns as f64 * 1e-9 / count as f64
    })
}

fn main() {
    let mut words = std::env::args().skip(1).filter(|a| !a.starts_with('-'));
    let filter = words.next().unwrap_or_default();
    let cores = words.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let Some(dir) = data::file("models") else {
        return;
    };
    println!(
        "{:20} {:>11} {:>11} {:>6}",
        "model", "default us", "chosen us", "ratio"
    );
    for name in MODELS.into_iter().filter(|name| name.contains(&filter)) {
        let (path, options) = (dir.join(format!("{name}.onnx")), options(name, cores));
        let plain = compile_file(&path, &options).unwrap_or_else(|d| panic!("{name}: {d}"));
        let start = Instant::now();
        let how = CalibrateOptions::default();
        let found = calibrate_file(&path, &options, &how, &mut |_| {});
        let found = found.unwrap_or_else(|d| panic!("{name}: {d}"));
        let took = start.elapsed().as_secs_f64();
        let machine = MachineChoice::Measured(found.machine.clone(), found.costs.clone());
        let chosen = compile_file(
            &path,
            &CompileOptions {
                machine,
                ..options.clone()
            },
        );
        let chosen = chosen.unwrap_or_else(|d| panic!("{name}: {d}"));
        let both = [&plain.program, &chosen.program];
        let inputs = inputs(&plain.program);
        let count = (BUDGET / run(both[0], &inputs, 3)).clamp(2.0, 1e6) as u64;
        let mut times = [Vec::new(), Vec::new()];
        let mut ratios = Vec::new();
        for turn in 0..TURNS {
            let mut now = [0.0; 2];
            // Who goes first changes, for the second may find a quieter or a hotter computer.
            for which in [turn % 2, 1 - turn % 2] {
                now[which] = run(both[which], &inputs, count);
            }
            ratios.push(now[1] / now[0]);
            times
                .iter_mut()
                .zip(now)
                .for_each(|(all, time)| all.push(time));
        }
        let [before, after] = times.map(|all| median(all) * 1e6);
        println!(
            "{name:20} {before:11.1} {after:11.1} {:6.3}",
            median(ratios)
        );
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        let with_variants = found.rows.iter().filter(|row| !row.variants.is_empty());
        let total = with_variants.clone().count();
        for row in with_variants {
            *names
                .entry(row.cost.variant.as_deref().unwrap_or("default"))
                .or_default() += 1;
        }
        let names: Vec<_> = names
            .iter()
            .map(|(name, n)| format!("{name} {n}"))
            .collect();
        println!(
            "  {total} kernels with variants: {}; {took:.1} s",
            names.join(", ")
        );
    }
}
