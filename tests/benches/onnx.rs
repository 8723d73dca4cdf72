//! ONNX models by calendar beside ONNX Runtime: one table, microseconds for one call.
//!
//! `cargo bench -p zbmd-tests --bench onnx [FILTER] [THREADS]`. With `ZBMD_ORT` naming a Python that has the package
//! `onnxruntime`, the rival runs on the same computer in the same run, with as many threads, by turns; its outputs
//! are compared. The ratio is the median of the turns' ratios, the times are the turns' medians. Without it its
//! columns stay empty. `ZBMD_TRACT` names the program of `benches/tract`, which `cargo build --release
//! --manifest-path tests/benches/tract/Cargo.toml` makes, for one thread and the models that tract loads. Models come
//! from the shared data folder.
//!
//! Memory is what a process that only loads and runs the compiled bundle has at its peak, its queues as short as they
//! may be (by default a MiB for each stream), less what an empty one has; of the rival, the peak of its process, less
//! what it had before it loaded the model.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use zbmd_backends::interpret::Interpreter;
use zbmd_compiler::{CompileOptions, compile_file, read_npy};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::verify::Verified;
use zbmd_ir::{Graph, Program};
use zbmd_tests::data;
use zbmd_tests::figures::{median, text};
use zbmd_tests::onnx::{NETWORKS, call_options, model_inputs, one_device, relative_error, to_f64};
use zbmd_tests::rival_process::RivalProcess;

/// Seconds of one turn, and turns for each model and number of threads.
const BUDGET: f64 = 0.4;
const TURNS: usize = 7;

/// For one device, whose cores share the work of an op as a rival's threads do.
fn options(name: &str, cores: usize) -> CompileOptions {
    call_options(name, one_device(cores))
}

/// Seconds of one call: many in one run, so that starting it does not count.
fn run(program: &Verified<Program>, inputs: &BTreeMap<String, Vec<u8>>, calls: u64) -> f64 {
    run_with(program, inputs, calls, RunOptions::default())
}

fn run_with(
    program: &Verified<Program>,
    inputs: &BTreeMap<String, Vec<u8>>,
    calls: u64,
    options: RunOptions,
) -> f64 {
    let engine =
        Engine::new(program.clone(), &zbmd_backends::standard_registry()).expect("known ops");
    let options = RunOptions {
        sample_every: 0,
        iterations: Some(calls),
        ..options
    };
    let mut session = engine.start(options).expect("memory and threads");
    std::thread::scope(|scope| {
        for (name, token) in inputs {
            let mut source = session.source(name).expect("a source");
            scope.spawn(move || while source.push_bytes(token).is_ok() {});
        }
        let outcome = session.join().expect("the run ends well");
        outcome.report.elapsed_ns as f64 * 1e-9 / calls as f64
    })
}

/// ONNX Runtime with one model, if a Python with it is named.
fn start_ort(dir: &Path, name: &str, threads: usize, to: &Path) -> Option<RivalProcess> {
    let mut command = Command::new(std::env::var_os("ZBMD_ORT")?);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/onnx_rival.py"));
    start_rival(command, dir, name, threads, to)
}

/// tract with one model, if its program is named; on one thread.
fn start_tract(dir: &Path, name: &str, threads: usize, to: &Path) -> Option<RivalProcess> {
    let mut command = Command::new(std::env::var_os("ZBMD_TRACT")?);
    command.stderr(Stdio::null());
    (threads == 1)
        .then(|| start_rival(command, dir, name, threads, to))
        .flatten()
}

fn start_rival(
    mut command: Command,
    dir: &Path,
    name: &str,
    threads: usize,
    to: &Path,
) -> Option<RivalProcess> {
    command
        .arg(dir.join(format!("{name}.onnx")))
        .arg(threads.to_string())
        .arg(to);
    let started = RivalProcess::start(&mut command);
    let mut rival = started.expect("ZBMD_ORT and ZBMD_TRACT can be run");
    (rival.answer() == "ready").then_some(rival)
}

/// The peak of this process's resident memory, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// KiB at the peak of a process that runs this bundle, or none.
fn memory(bundle: Option<&Path>) -> u64 {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(
        "ZBMD_ONNX_BUNDLE",
        bundle.map_or("", |b| b.to_str().unwrap_or("")),
    );
    let output = command.output().expect("this program runs");
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap_or(0)
}

/// What the process of [`memory`] does.
fn only_run(bundle: &str) {
    if !bundle.is_empty() {
        let program = zbmd_ir::bundle::open(Path::new(bundle)).expect("a sound bundle");
        let graph = &program.graph;
        let zeros = |(_, s): (_, &zbmd_ir::Actor)| {
            (s.name.clone(), vec![0; s.outputs[0].token.bytes() as usize])
        };
        let inputs: BTreeMap<String, Vec<u8>> = graph.sources().map(zeros).collect();
        let options = RunOptions {
            queue_bytes: 0,
            ..RunOptions::default()
        };
        let _ = run_with(&program, &inputs, 20, options);
    }
    println!("{}", peak());
}

fn agreement(graph: &Graph, outputs: &BTreeMap<String, Vec<u8>>, from: &Path) -> f64 {
    let sinks = graph.sinks().enumerate();
    let errors = sinks.filter_map(|(i, (_, sink))| {
        let want = read_npy(&std::fs::read(from.join(format!("{i}.npy"))).ok()?.into()).ok()?;
        let dtype = sink.inputs[0].token.dtype;
        Some(relative_error(
            &to_f64(&outputs[&sink.name], dtype),
            &to_f64(&want.data, want.token.dtype),
        ))
    });
    errors.fold(0.0, f64::max)
}

fn main() {
    if let Ok(bundle) = std::env::var("ZBMD_ONNX_BUNDLE") {
        return only_run(&bundle);
    }
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let wanted = |name: &&str| words.first().is_none_or(|w| name.contains(w.as_str()));
    let threads: Vec<usize> = match words.get(1).and_then(|w| w.parse().ok()) {
        Some(n) => vec![n],
        None => vec![1, 2],
    };
    let Some(dir) = data::file("models") else {
        return;
    };
    println!(
        "{:<20} {:>7} {:>10} {:>10} {:>7} {:>10} {:>7} {:>8} {:>10} {:>9} {:>9} {:>9}",
        "model",
        "threads",
        "ours us",
        "ort us",
        "ratio",
        "tract us",
        "ratio",
        "agrees",
        "compile ms",
        "arena KiB",
        "ours KiB",
        "ort KiB"
    );
    let nothing = memory(None);
    for name in NETWORKS.into_iter().filter(wanted) {
        for &threads in &threads {
            row(&dir, name, threads, nothing);
        }
    }
}

/// Measures one model with so many threads, and prints its row.
fn row(dir: &Path, name: &str, threads: usize, nothing: u64) {
    let start = Instant::now();
    let compiled =
        compile_file(dir.join(format!("{name}.onnx")), &options(name, threads)).expect(name);
    let compile_ms = start.elapsed().as_secs_f64() * 1e3;
    let program = &compiled.program;
    let inputs = model_inputs(dir, name, &program.graph);
    let folder = std::env::temp_dir().join(format!("zbmd-onnx-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the rival's outputs");
    let mut rival = start_ort(dir, name, threads, &folder);
    let other = folder.join("tract");
    std::fs::create_dir_all(&other).expect("a folder");
    let mut tract = start_tract(dir, name, threads, &other);
    let calls = ((BUDGET / run(program, &inputs, 5)) as u64).clamp(3, 20_000);
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut tracts, mut tract_ratios) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        ours.push(run(program, &inputs, calls));
        if let Some(seconds) = rival.as_mut().and_then(|r| r.seconds(calls)) {
            theirs.push(seconds);
            ratios.push(ours[ours.len() - 1] / seconds);
        }
        if let Some(seconds) = tract.as_mut().and_then(|r| r.seconds(calls)) {
            tracts.push(seconds);
            tract_ratios.push(ours[ours.len() - 1] / seconds);
        }
    }
    drop(tract);
    let agrees = rival.is_some().then(|| {
        let registry = zbmd_backends::standard_registry();
        let made = Interpreter::new(&program.graph, &program.blobs, &registry);
        let outcome = made.expect("kernels").run(&inputs, Some(1)).expect("a run");
        let beside = |from| agreement(&program.graph, &outcome.outputs, from);
        beside(&folder).max(beside(&other))
    });
    let bundle = folder.join("model.zbmd");
    zbmd_ir::bundle::write(&bundle, program).expect("a bundle can be written");
    let own = memory(Some(&bundle)).saturating_sub(nothing);
    let other = rival.and_then(|rival| rival.finish().parse::<u64>().ok());
    let _ = std::fs::remove_dir_all(&folder);
    let plan = &program.plans[zbmd_ir::PlanId(0)];
    let arena: u64 = plan.calendars.iter().map(|c| c.arena_bytes).sum();
    println!(
        "{name:<20} {threads:>7} {:>10} {:>10} {:>7} {:>10} {:>7} {:>8} {compile_ms:>10.0} {:>9} {own:>9} {:>9}",
        text(median(ours) * 1e6, 1),
        text(median(theirs) * 1e6, 1),
        text(median(ratios), 2),
        text(median(tracts) * 1e6, 1),
        text(median(tract_ratios), 2),
        agrees.map_or(String::from("-"), |e| format!("{e:.0e}")),
        arena / 1024,
        text(other.map_or(f64::NAN, |kib| kib as f64), 0),
    );
}
