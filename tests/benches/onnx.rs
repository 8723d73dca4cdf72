//! ONNX models by calendar beside ONNX Runtime: one table, microseconds for one call.
//!
//! `cargo bench -p zbmd-tests --bench onnx [FILTER]`. With `ZBMD_ORT` naming a Python that has the package
//! `onnxruntime`, the rival runs on the same computer in the same run, with as many threads, and its outputs are
//! compared; without it its columns stay empty. Models come from the shared data folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::Registry;
use zbmd_compiler::onnx::SetValue;
use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_file, read_npy};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::Graph;
use zbmd_tests::data;
use zbmd_tests::onnx::{relative_error, to_f64};

const MODELS: [&str; 10] = [
    "mnist",
    "silero_vad",
    "llama_block_decode",
    "bert_tiny",
    "light_shufflenet",
    "light_squeezenet",
    "mobilenet_v2",
    "light_inception_v1",
    "light_zfnet512",
    "light_resnet50",
];
/// Seconds of measuring for each model and number of threads.
const BUDGET: f64 = 2.0;

fn options(name: &str, devices: usize) -> CompileOptions {
    let mut options = CompileOptions {
        machine: MachineChoice::Uniform(devices),
        block: Some(1),
        ..CompileOptions::default()
    };
    if name == "silero_vad" {
        options.onnx.dims = [("batch".to_owned(), 1), ("sequence".to_owned(), 576)].into();
        options.onnx.set = [("sr".to_owned(), SetValue::Numbers(vec![16_000.0]))].into();
    }
    options
}

/// One call's input tokens.
fn inputs(dir: &Path, name: &str, graph: &Graph) -> BTreeMap<String, Vec<u8>> {
    let token = |(i, (_, source)): (usize, (zbmd_ir::ActorId, &zbmd_ir::Actor))| {
        let bytes = match std::fs::read(dir.join(format!("{name}.in{i}.npy"))) {
            Ok(bytes) => read_npy(&bytes.into()).expect("an array").data.to_vec(),
            Err(_) => {
                let n = source.outputs[0].token.elements();
                (0..n).flat_map(|k| (k as f32 / n as f32).to_le_bytes()).collect()
            }
        };
        (source.name.clone(), bytes)
    };
    graph.sources().enumerate().map(token).collect()
}

/// Seconds of one call: many in one run, so that starting it does not count.
fn seconds(compiled: &Compiled, inputs: &BTreeMap<String, Vec<u8>>, calls: u64) -> f64 {
    let engine = Engine::new(compiled.program.clone(), &Registry::standard()).expect("known ops");
    let options = RunOptions { sample_every: 0, iterations: Some(calls), ..RunOptions::default() };
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

/// What the rival says of one model: seconds of a call, and its outputs in a folder.
fn rival(python: &Path, dir: &Path, name: &str, threads: usize, to: &Path) -> Option<f64> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/onnx_rival.py");
    let model = dir.join(format!("{name}.onnx"));
    let run = Command::new(python).arg(script).arg(model).arg(threads.to_string()).arg(to).output();
    let output = run.expect("ZBMD_ORT can be run");
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
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
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let Some(dir) = data::file("models") else { return };
    let python = std::env::var_os("ZBMD_ORT").map(PathBuf::from);
    println!(
        "{:<20} {:>7} {:>10} {:>10} {:>7} {:>9} {:>10} {:>9}",
        "model", "threads", "ours us", "ort us", "ratio", "agrees", "compile ms", "arena KiB"
    );
    for name in
        MODELS.into_iter().filter(|n| filter.as_ref().is_none_or(|f| n.contains(f.as_str())))
    {
        for threads in [1, 2] {
            let start = Instant::now();
            let compiled = compile_file(dir.join(format!("{name}.onnx")), &options(name, threads))
                .expect(name);
            let compile_ms = start.elapsed().as_secs_f64() * 1e3;
            let inputs = inputs(&dir, name, &compiled.program.graph);
            let once = seconds(&compiled, &inputs, 3);
            let calls = ((BUDGET / once) as u64).clamp(5, 50_000);
            let ours = seconds(&compiled, &inputs, calls);
            let folder = std::env::temp_dir().join(format!("zbmd-onnx-{}", std::process::id()));
            let _ = std::fs::create_dir_all(&folder);
            let theirs = python.as_ref().and_then(|p| rival(p, &dir, name, threads, &folder));
            let program = &compiled.program;
            let agrees = theirs.map(|_| {
                let registry = Registry::standard();
                let mut interpreter =
                    Interpreter::new(&program.graph, &program.blobs, &registry).expect("kernels");
                let outcome = interpreter.run(&inputs, Some(1)).expect("a run");
                agreement(&program.graph, &outcome.outputs, &folder)
            });
            let _ = std::fs::remove_dir_all(&folder);
            let arena: u64 =
                program.plans[zbmd_ir::PlanId(0)].calendars.iter().map(|c| c.arena_bytes).sum();
            let text = |v: Option<f64>, scale: f64, digits: usize| {
                v.map_or(String::from("-"), |v| format!("{:.digits$}", v * scale))
            };
            println!(
                "{name:<20} {threads:>7} {:>10.1} {:>10} {:>7} {:>9} {compile_ms:>10.0} {:>9}",
                ours * 1e6,
                text(theirs, 1e6, 1),
                text(theirs.map(|t| ours / t), 1.0, 2),
                agrees.map_or(String::from("-"), |e| format!("{e:.0e}")),
                arena / 1024
            );
        }
    }
}
