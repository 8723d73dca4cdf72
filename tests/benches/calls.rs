//! Calls of networks on the calling thread beside sessions and other engines, in microseconds for one call.
//!
//! `cargo bench -p zbmd-tests --bench calls [-- FILTER] [THREADS]`, for the shared models, and those of the folder that
//! `ZBMD_MODELS` names. Ours is calibrated, for one CPU device of as many cores as threads (1 unless said) in blocks of one call:
//! `call` by `Caller::call`, `session` with tokens pushed and results pulled by another thread, one call after the other.
//! With `ZBMD_RIVALS` naming a Python that has `onnxruntime`, `openvino`, `MNN` or `ncnn` (with `pnnx`), these run on as many
//! threads by turns with ours, in f32; what Python adds to a call, some microseconds, is in their times. `ratio` is the median of the turns' ratios of our call to
//! the quickest of them. The results of calls are compared with the interpreter's, bit by bit; `error` is how far our first
//! output is from that of the engine that it is farthest from, relative to its norm. `benches/more_models.py` makes models with
//! random weights.

use std::path::Path;
use std::time::{Duration, Instant};

use zbmd_backends::interpret::Interpreter;
use zbmd_executor::{Caller, Engine, RunOptions};
use zbmd_ir::DType;
use zbmd_tests::figures::{load, median, text};
use zbmd_tests::onnx::{
    calibrated, call_options, model_inputs, network_files, one_device, relative_error,
    start_engine, to_f64,
};
use zbmd_tests::rival_process::RivalProcess;

const ENGINES: [&str; 4] = ["ort", "openvino", "mnn", "ncnn"];
const TURNS: usize = 11;
/// Seconds of one turn.
const TURN_SECONDS: f64 = 0.2;
/// Rest before each measurement: threads of some engines look for work for 200 ms after their last call, on the cores of whoever
/// is measured next.
const REST: Duration = Duration::from_millis(250);

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let (numbers, words): (Vec<String>, Vec<String>) = words
        .into_iter()
        .partition(|word| word.parse::<usize>().is_ok());
    let threads = numbers.first().map_or(1, |n| n.parse().expect("a number"));
    print!("{:<20} {:>9} {:>9}", "model", "call", "session");
    ENGINES.iter().for_each(|engine| print!(" {engine:>9}"));
    println!(" {:>7} {:>8}", "ratio", "error");
    for (path, name) in network_files(&words) {
        print_row(&path, &name, threads);
    }
    println!("{threads} threads, load {}", load());
}

fn print_row(path: &Path, name: &str, threads: usize) {
    let folder = path.parent().expect("a file in a folder");
    let engine = calibrated_engine(path, name, threads);
    let program = engine.program();
    let tokens = model_inputs(folder, name, &program.graph);
    let inputs: Vec<&[u8]> = program
        .graph
        .sources()
        .map(|(_, source)| tokens[&source.name].as_slice())
        .collect();
    let mut caller = engine.caller().expect("one CPU device");
    let own_results = check_bits(&engine, &mut caller, &inputs, folder, name);

    let result_folder = tempfile::tempdir().expect("a folder");
    let result_path = |engine: &str| result_folder.path().join(engine);
    let start = |engine| start_engine(engine, path, threads, &result_path(engine));
    let mut rivals: Vec<Option<RivalProcess>> = ENGINES.map(start).into();
    let floats = |bytes: &[u8]| to_f64(bytes, DType::F32);
    let errors = ENGINES.iter().filter_map(|engine| {
        let rival_result = std::fs::read(result_path(engine)).ok()?;
        Some(relative_error(
            &floats(&own_results[0]),
            &floats(&rival_result),
        ))
    });
    let error = errors.fold(0.0, f64::max);
    let calls = (TURN_SECONDS / call_seconds(&mut caller, &inputs, 5)).ceil() as u64;
    let mut call_times = Vec::new();
    let mut session_times = Vec::new();
    let mut rival_times = vec![Vec::new(); rivals.len()];
    let mut ratios = Vec::new();
    for _ in 0..TURNS {
        std::thread::sleep(REST);
        let ours = call_seconds(&mut caller, &inputs, calls);
        call_times.push(ours);
        session_times.push(session_seconds(&engine, &inputs, calls));
        let mut best = f64::INFINITY;
        for (rival, times) in rivals.iter_mut().zip(&mut rival_times) {
            std::thread::sleep(REST);
            if let Some(seconds) = rival.as_mut().and_then(|rival| rival.seconds(calls)) {
                times.push(seconds);
                best = best.min(seconds);
            }
        }
        if best.is_finite() {
            ratios.push(ours / best);
        }
    }

    let us = |times: Vec<f64>| text(median(times) * 1e6, 1);
    print!("{name:<20} {:>9} {:>9}", us(call_times), us(session_times));
    for times in rival_times {
        print!(" {:>9}", us(times));
    }
    println!(" {:>7} {error:>8.0e}", text(median(ratios), 2));
}

/// The model for one CPU device of so many cores, with costs and variants as measured now.
fn calibrated_engine(path: &Path, name: &str, cores: usize) -> Engine {
    let program = calibrated(path, call_options(name, one_device(cores))).expect("it compiles");
    Engine::new(program, &zbmd_backends::standard_registry()).expect("known ops")
}

/// Memory for what a call gives.
fn outputs(caller: &Caller) -> Vec<Vec<u8>> {
    caller.outputs().map(|(_, bytes)| vec![0; bytes]).collect()
}

/// What the first call gives. Panics unless the interpreter gives the same.
fn check_bits(
    engine: &Engine,
    caller: &mut Caller,
    inputs: &[&[u8]],
    folder: &Path,
    name: &str,
) -> Vec<Vec<u8>> {
    let program = engine.program();
    let mut results = outputs(caller);
    let mut slices: Vec<&mut [u8]> = results.iter_mut().map(Vec::as_mut_slice).collect();
    caller.call(inputs, &mut slices).expect("a call");
    let registry = zbmd_backends::standard_registry();
    let interpreter = Interpreter::new(&program.graph, &program.blobs, &registry);
    let tokens = model_inputs(folder, name, &program.graph);
    let outcome = interpreter.expect("kernels").run(&tokens, Some(1));
    let outcome = outcome.expect("a run");
    for ((sink, _), result) in caller.outputs().zip(&results) {
        assert!(
            outcome.outputs[sink] == *result,
            "{name}: other bits at {sink}"
        );
    }
    results
}

/// Seconds of one of so many calls.
fn call_seconds(caller: &mut Caller, inputs: &[&[u8]], calls: u64) -> f64 {
    let mut results = outputs(caller);
    let mut slices: Vec<&mut [u8]> = results.iter_mut().map(Vec::as_mut_slice).collect();
    let start = Instant::now();
    for _ in 0..calls {
        caller.call(inputs, &mut slices).expect("a call");
    }
    start.elapsed().as_secs_f64() / calls as f64
}

/// Seconds from pushing a call's tokens to the last result, one call after the other.
fn session_seconds(engine: &Engine, inputs: &[&[u8]], calls: u64) -> f64 {
    let graph = &engine.program().graph;
    let options = RunOptions {
        sample_every: 0,
        ..RunOptions::default()
    };
    let mut session = engine.start(options).expect("memory and threads");
    let mut sources: Vec<_> = graph
        .sources()
        .map(|(_, actor)| session.source(&actor.name).expect("a source"))
        .collect();
    let mut sinks: Vec<_> = graph
        .sinks()
        .map(|(_, actor)| {
            let result = vec![0u8; actor.inputs[0].token.bytes() as usize];
            (session.sink(&actor.name).expect("a sink"), result)
        })
        .collect();
    let start = Instant::now();
    for _ in 0..calls {
        for (source, tokens) in sources.iter_mut().zip(inputs) {
            source.push_bytes(tokens).expect("open");
        }
        for (sink, result) in &mut sinks {
            sink.pull_bytes(result).expect("open");
        }
    }
    let seconds = start.elapsed().as_secs_f64() / calls as f64;
    drop((sources, sinks));
    session.join().expect("it ends well");
    seconds
}
