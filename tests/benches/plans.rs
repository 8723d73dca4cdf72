//! Plans beside what they give: every shared model and every graph on 1 to 4 devices, one table.
//!
//! `cargo bench -p zbmd-tests --bench plans [-- [predictions] FILTER]`. Planned are the period and the latency of an iteration's
//! block, the stages, and the latency as a share of what a row of as many devices needs at most: one period for each and
//! one more. `best` is how far the period is above the shortest that a longer search finds: plans may lose 2 % for fewer
//! stages. Nothing is calibrated. Measured are the time of a block and the median latency of one, of all plans of a
//! model by turns; `speed` is the throughput as a multiple of the one-device plan's. Where fewer cores are free than a
//! plan has devices, what it could give is not measured. So the last column, the predicted time over the measured one,
//! is for one device, by processor time, which other programs hardly change.
//!
//! `predictions` prints another table: for plans for one device, the planned period beside the measured time of a block,
//! with the costs that are assumed of this kind of processor and with those that `calibrate` measures.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use zbmd_backends::team::Team;
use zbmd_compiler::calibrate::CalibrateOptions;
use zbmd_compiler::{CompileOptions, MachineChoice, SearchOptions, calibrate_file, compile_file};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::verify::Verified;
use zbmd_ir::{DType, Plan, PlanId, Program};
use zbmd_scheduler::search::Level;
use zbmd_tests::onnx::{NETWORKS, call_options, model_inputs};
use zbmd_tests::run::{Streams, graph_file};
use zbmd_tests::{actors, data};

const GRAPHS: [&str; 8] = [
    "adsb",
    "agc",
    "cd2dat",
    "digits",
    "fm",
    "pll",
    "quickstart",
    "vad",
];

/// Asks for the second table.
const PREDICTIONS: &str = "predictions";

const DEVICES: std::ops::RangeInclusive<usize> = 1..=4;

/// Blocks that are measured beside the one that is chosen, as multiples of it.
const BLOCK_FACTORS: [u64; 4] = [2, 4, 16, 64];

/// Iterations of the longest block that is measured.
const MAX_BLOCK: u64 = 1 << 17;

/// Time of one run, and runs of each plan.
const RUN_TIME: Duration = Duration::from_millis(400);
const TURNS: usize = 3;

/// About how many bytes a thread pushes into a source at a time.
const PUSHED_BYTES: usize = 1 << 20;

/// Time that the longer search for the shortest period has.
const SEARCH_TIME: Duration = Duration::from_secs(5);

/// A plan, what feeds it, and what its runs took.
struct PlanRow {
    devices: usize,
    program: Verified<Program>,
    inputs: Streams,
    /// The shortest period for its block that any search here finds.
    best_period_ns: u64,
    /// Blocks of a run.
    blocks: u64,
    runs: Vec<RunTimes>,
}

/// What one run took.
struct RunTimes {
    /// Seconds from one block to the next.
    block: f64,
    /// Seconds of processor time for each block.
    processor: f64,
    /// Median latency of a block in seconds, of the slowest pair of a source and a sink.
    latency: f64,
}

impl PlanRow {
    fn main_plan(&self) -> &Plan {
        &self.program.plans[PlanId(0)]
    }

    /// The median of a figure of all runs.
    fn median(&self, figure: impl Fn(&RunTimes) -> f64) -> f64 {
        let mut figures: Vec<f64> = self.runs.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

fn main() {
    let mut words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let wants_predictions = words.iter().any(|word| word == PREDICTIONS);
    words.retain(|word| word != PREDICTIONS);
    let is_wanted = |name: &&str| words.iter().all(|word| name.contains(word.as_str()));
    let Some(folder) = data::file("models") else {
        return;
    };
    if wants_predictions {
        return print_predictions(&folder, is_wanted);
    }
    println!(
        "{:<20} {:>7} {:>4} {:>6} {:>6} {:>11} {:>7} {:>11} {:>7} {:>11} {:>11} {:>6} {:>9}",
        "model",
        "devices",
        "used",
        "block",
        "stages",
        "period us",
        "best",
        "latency us",
        "allowed",
        "measured",
        "latency us",
        "speed",
        "predicted"
    );

    for name in NETWORKS.into_iter().filter(is_wanted) {
        print_model(name, |devices| model_row(&folder, name, devices));
    }
    for name in GRAPHS.into_iter().filter(is_wanted) {
        print_model(name, |devices| graph_row(&folder, name, devices, None));
    }

    print!("\n{:<20} {:>7} {:>10}", "model", "block", "ns");
    BLOCK_FACTORS
        .iter()
        .for_each(|factor| print!(" {:>7}", format!("x {factor}")));
    println!();
    for name in GRAPHS.into_iter().filter(is_wanted) {
        print_blocks(&folder, name);
    }
}

/// Prints planned periods beside measured ones, for one device, before and after calibration.
fn print_predictions(folder: &Path, is_wanted: impl Fn(&&str) -> bool) {
    println!(
        "{:<20} {:>11} {:>11} {:>9} {:>11} {:>11} {:>10}",
        "model", "planned us", "measured", "predicted", "calibrated", "measured", "predicted"
    );
    for name in NETWORKS.into_iter().filter(&is_wanted) {
        let path = folder.join(format!("{name}.onnx"));
        let inputs = |program: &Program| model_inputs(folder, name, &program.graph);
        let options = call_options(name, MachineChoice::Uniform(1));
        print_prediction(name, &path, options, inputs);
    }
    for name in GRAPHS.into_iter().filter(&is_wanted) {
        let path = graph_file(&format!("{name}/model.ron"));
        let inputs = |program: &Program| graph_inputs(name, program);
        print_prediction(name, &path, graph_options(folder, name, 1, None), inputs);
    }
}

/// The row of one model.
fn print_prediction(
    name: &str,
    path: &Path,
    mut options: CompileOptions,
    inputs: impl Fn(&Program) -> Streams,
) {
    let assumed = compile(path, &options);
    options.block = Some(assumed.plans[PlanId(0)].block);
    let how = CalibrateOptions {
        block: options.block,
        inputs: inputs(&assumed),
        ..CalibrateOptions::default()
    };
    let calibration = calibrate_file(path, &options, &how, &mut |_| {});
    let calibration = calibration.unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
    options.machine = MachineChoice::Measured(calibration.machine, calibration.costs);

    let mut rows = [assumed, compile(path, &options)].map(|program| {
        let inputs = inputs(&program);
        let planned_ns = program.plans[PlanId(0)].period_ns;
        new_row(1, program, inputs, planned_ns)
    });
    for _ in 0..TURNS {
        for row in &mut rows {
            let times = run(row);
            row.runs.push(times);
        }
    }
    let [assumed, calibrated] = rows.map(|row| {
        let planned = row.main_plan().period_ns as f64 * 1e-3;
        let measured = row.median(|run| run.block) * 1e6;
        (planned, measured, planned / measured)
    });
    println!(
        "{name:<20} {:>11.1} {:>11.1} {:>9.2} {:>11.1} {:>11.1} {:>10.2}",
        assumed.0, assumed.1, assumed.2, calibrated.0, calibrated.1, calibrated.2
    );
}

/// An ONNX model in blocks of one call.
fn model_row(folder: &Path, name: &str, devices: usize) -> PlanRow {
    let options = call_options(name, MachineChoice::Uniform(devices));
    let path = folder.join(format!("{name}.onnx"));
    let program = compile(&path, &options);
    let inputs = model_inputs(folder, name, &program.graph);
    let best_period_ns = shortest_period_ns(&path, options, &program);
    new_row(devices, program, inputs, best_period_ns)
}

fn compile(path: &Path, options: &CompileOptions) -> Verified<Program> {
    let compiled = compile_file(path, options);
    let compiled = compiled.unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
    compiled.program
}

/// The shorter of the periods of a program and of what a longer search finds for the same block.
fn shortest_period_ns(path: &Path, mut options: CompileOptions, program: &Program) -> u64 {
    let plan = &program.plans[PlanId(0)];
    // On one device every placement is the same.
    if plan.calendars.len() == 1 {
        return plan.period_ns;
    }
    options.block = Some(plan.block);
    options.search = SearchOptions {
        level: Level::Exact,
        time_limit: Some(SEARCH_TIME),
        ..SearchOptions::default()
    };
    let searched = compile(path, &options);
    searched.plans[PlanId(0)].period_ns.min(plan.period_ns)
}

/// A graph as it is compiled by default, but for its block, if that is given.
fn graph_options(models: &Path, name: &str, devices: usize, block: Option<u64>) -> CompileOptions {
    let mut options = CompileOptions {
        registry: actors::registry(),
        machine: MachineChoice::Uniform(devices),
        block,
        ..CompileOptions::default()
    };
    let networks = [("network", "mnist.onnx"), ("detector", "silero_vad.onnx")];
    let network = match name {
        "digits" => Some(networks[0]),
        "vad" => Some(networks[1]),
        _ => None,
    };
    if let Some((parameter, file)) = network {
        let path = format!("{:?}", models.join(file).to_string_lossy());
        options.params.insert(parameter.to_owned(), path);
    }
    options
}

/// What the sources of a graph give in each block.
fn graph_inputs(name: &str, program: &Program) -> Streams {
    let mut inputs = block_inputs(program);
    if name == "adsb"
        && let Some(path) = data::file("iq/modes1.bin")
    {
        let recording = std::fs::read(path).expect("the recording can be read");
        inputs.insert("iq".to_owned(), recording);
    }
    inputs
}

/// A graph for so many devices, in the block that is given or chosen.
fn graph_row(models: &Path, name: &str, devices: usize, block: Option<u64>) -> PlanRow {
    let options = graph_options(models, name, devices, block);
    let path = graph_file(&format!("{name}/model.ron"));
    let program = compile(&path, &options);
    let inputs = graph_inputs(name, &program);
    let best_period_ns = match block {
        None => shortest_period_ns(&path, options, &program),
        Some(_) => program.plans[PlanId(0)].period_ns,
    };
    new_row(devices, program, inputs, best_period_ns)
}

/// Tokens of one block for each source, the same for all plans with that block: small numbers, of which none is denormal.
fn block_inputs(program: &Program) -> Streams {
    let mut random = fastrand::Rng::with_seed(1);
    let repetition = zbmd_scheduler::repetition(&program.graph).expect("consistent");
    let block = program.plans[PlanId(0)].block;
    let mut inputs = BTreeMap::new();

    for (id, source) in program.graph.sources() {
        let port = &source.outputs[0];
        let tokens = repetition[id] * port.rate * block;
        let bytes: Vec<u8> = match port.token.dtype {
            DType::F32 | DType::C32 => (0..tokens * port.token.bytes() / 4)
                .flat_map(|_| (random.f32() - 0.5).to_le_bytes())
                .collect(),
            _ => (0..tokens * port.token.bytes())
                .map(|_| random.u8(..))
                .collect(),
        };
        inputs.insert(source.name.clone(), bytes);
    }
    inputs
}

/// A row without figures, whose runs take about [`RUN_TIME`].
fn new_row(
    devices: usize,
    program: Verified<Program>,
    inputs: Streams,
    best_period_ns: u64,
) -> PlanRow {
    // Several blocks at a time, as files are read, so that short ones are not limited by the threads that push them.
    let pushed = |tokens: Vec<u8>| tokens.repeat((PUSHED_BYTES / tokens.len().max(1)).max(1));
    let inputs = inputs.into_iter();
    let mut row = PlanRow {
        devices,
        program,
        inputs: inputs
            .map(|(name, tokens)| (name, pushed(tokens)))
            .collect(),
        best_period_ns,
        blocks: 5,
        runs: Vec::new(),
    };
    let first = run(&row);
    row.blocks = ((RUN_TIME.as_secs_f64() / first.block) as u64).clamp(5, 100_000);
    row
}

/// Runs a plan for its blocks.
fn run(row: &PlanRow) -> RunTimes {
    let engine = Engine::new(row.program.clone(), &actors::registry()).expect("known ops");
    let options = RunOptions {
        sample_every: 0,
        iterations: Some(row.blocks * row.main_plan().block),
        ..RunOptions::default()
    };
    let mut session = engine.start(options).expect("memory and threads");
    let free_core = free_core(&row.program);
    let before = processor_seconds();
    std::thread::scope(|scope| {
        for (name, tokens) in &row.inputs {
            let mut source = session.source(name).expect("a source");
            scope.spawn(move || {
                // Or it would take the worker's core now and then.
                let _team = free_core.map(|core| Team::of_cores(&[core], true));
                while source.push_bytes(tokens).is_ok() {}
            });
        }
        let outcome = session.join().expect("the run ends well");
        let processor = processor_seconds() - before;
        let report = &outcome.report;
        let latencies = report.plans.iter().flat_map(|plan| &plan.latencies);
        RunTimes {
            block: report.elapsed_ns as f64 * 1e-9 / row.blocks as f64,
            processor: processor / row.blocks as f64,
            latency: latencies.map(|l| l.p50_ns).max().unwrap_or(0) as f64 * 1e-9,
        }
    })
}

/// A core that no device of the plan has, if there is one.
fn free_core(program: &Program) -> Option<u32> {
    let plan = &program.plans[PlanId(0)];
    let used = plan.calendars.iter();
    let used: Vec<u32> = used
        .flat_map(|calendar| &program.machine.devices[calendar.device].cores)
        .copied()
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (0..cores as u32).find(|core| !used.contains(core))
}

/// Processor time that this process has taken.
fn processor_seconds() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may hold spaces; user and system time are the 12th and 13th after it.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let sum: f64 = ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    sum / TICKS_PER_SECOND
}

/// Compiles a model for each number of devices, runs the plans by turns and prints them.
fn print_model(name: &str, make_row: impl Fn(usize) -> PlanRow) {
    let mut rows: Vec<PlanRow> = DEVICES.map(make_row).collect();
    for _ in 0..TURNS {
        for row in &mut rows {
            let times = run(row);
            row.runs.push(times);
        }
    }

    // Plans for more devices may have other blocks: throughput is compared by iterations.
    let iteration = |row: &PlanRow| row.median(|run| run.block) / row.main_plan().block as f64;
    let alone = iteration(&rows[0]);
    for row in &rows {
        let plan = row.main_plan();
        let used = plan.calendars.len();
        let allowed_ns = (used as u64 + 1) * plan.period_ns;
        let predicted = match row.devices {
            1 => {
                let ratio = plan.period_ns as f64 * 1e-9 / row.median(|run| run.processor);
                format!("{ratio:.2}")
            }
            _ => String::new(),
        };
        println!(
            "{name:<20} {:>7} {used:>4} {:>6} {:>6} {:>11.1} {:>+5.1} % {:>11.1} {:>5.0} % {:>11.1} {:>11.1} {:>6.2} {predicted:>9}",
            row.devices,
            plan.block,
            plan.stages,
            plan.period_ns as f64 * 1e-3,
            (plan.period_ns as f64 / row.best_period_ns.max(1) as f64 - 1.0) * 100.0,
            plan.latency_ns as f64 * 1e-3,
            plan.latency_ns as f64 / allowed_ns.max(1) as f64 * 100.0,
            row.median(|run| run.block) * 1e6,
            row.median(|run| run.latency) * 1e6,
            alone / iteration(row),
        );
    }
}

/// Processor time of an iteration of a graph, in the block that is chosen and in larger ones as multiples of it.
fn print_blocks(models: &Path, name: &str) {
    let chosen = graph_row(models, name, 1, None);
    let block = chosen.main_plan().block;
    let mut rows = vec![chosen];
    for factor in BLOCK_FACTORS {
        let block = block * factor;
        // Longer blocks of a graph with cycles may not be compiled at all.
        if block <= MAX_BLOCK {
            rows.push(graph_row(models, name, 1, Some(block)));
        }
    }
    for _ in 0..TURNS {
        for row in &mut rows {
            let times = run(row);
            row.runs.push(times);
        }
    }

    let iteration = |row: &PlanRow| row.median(|run| run.processor) / row.main_plan().block as f64;
    let alone = iteration(&rows[0]);
    print!("{name:<20} {block:>7} {:>10.0}", alone * 1e9);
    for row in &rows[1..] {
        print!(" {:>7.2}", iteration(row) / alone);
    }
    println!();
}
