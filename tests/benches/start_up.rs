//! From the file of a network to the result of its first call, beside other engines, in milliseconds.
//!
//! `cargo bench -p zbmd-tests --bench start_up [-- FILTER] [THREADS]`, for the shared models and those of the folder that
//! `ZBMD_MODELS` names, for one CPU device of as many cores as threads (1 unless said), with costs as the compiler estimates
//! them. `compile` reads the ONNX file, compiles it, makes an engine and calls it; `bundle` opens what was compiled before, makes an engine and
//! calls it. With `ZBMD_RIVALS` naming a Python that has `onnxruntime` or `openvino`, these make a session of the same file
//! and call it, by turns with ours, in a process that has loaded their libraries before. `compile/best` and `bundle/best` are the medians of the
//! turns' ratios to the quicker of them.

use std::path::Path;
use std::time::Instant;

use zbmd_compiler::compile_file;
use zbmd_executor::{Caller, Engine};
use zbmd_ir::Program;
use zbmd_ir::verify::Verified;
use zbmd_tests::figures::{load, median, median_ratio, text};
use zbmd_tests::onnx::{call_options, model_inputs, network_files, one_device, start_engine};
use zbmd_tests::rival_process::RivalProcess;
use zbmd_tests::run::Streams;

const ENGINES: [&str; 2] = ["ort", "openvino"];
const TURNS: usize = 7;

fn main() {
    let words = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'));
    let (numbers, words): (Vec<String>, Vec<String>) =
        words.partition(|word| word.parse::<usize>().is_ok());
    let threads = numbers.first().map_or(1, |n| n.parse().expect("a number"));

    print!("{:<20} {:>9} {:>9}", "model", "compile", "bundle");
    ENGINES.iter().for_each(|engine| print!(" {engine:>9}"));
    println!(" {:>12} {:>12}", "compile/best", "bundle/best");
    for (path, name) in network_files(&words) {
        print_row(&path, &name, threads);
    }
    println!("{threads} threads, load {}", load());
}

fn print_row(path: &Path, name: &str, threads: usize) {
    let options = call_options(name, one_device(threads));
    let program = compile_file(path, &options).expect("it compiles").program;
    let tokens = model_inputs(
        path.parent().expect("a file in a folder"),
        name,
        &program.graph,
    );
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = folder.path().join("model.zbmd");
    zbmd_ir::bundle::write(&bundle, &program).expect("a bundle can be written");
    drop(program);

    let result = folder.path().join("result");
    let mut rivals = ENGINES.map(|engine| start_engine(engine, path, threads, &result));
    let (mut compiles, mut bundles, mut bests) = (Vec::new(), Vec::new(), Vec::new());
    let mut rival_times = ENGINES.map(|_| Vec::new());
    for _ in 0..TURNS {
        compiles.push(seconds_of(|| {
            let compiled = compile_file(path, &options).expect("it compiles");
            called_engine(compiled.program, &tokens)
        }));
        bundles.push(seconds_of(|| {
            let program = zbmd_ir::bundle::open(&bundle).expect("a sound bundle");
            called_engine(program, &tokens)
        }));
        let mut best = f64::NAN;
        for (rival, times) in rivals.iter_mut().zip(&mut rival_times) {
            if let Some(seconds) = rival.as_mut().and_then(RivalProcess::make_seconds) {
                times.push(seconds);
                best = best.min(seconds);
            }
        }
        bests.push(best);
    }

    let ratios = [&compiles, &bundles].map(|times| median_ratio(times, &bests));
    let ms = |times: Vec<f64>| text(median(times) * 1e3, 1);
    print!("{name:<20} {:>9} {:>9}", ms(compiles), ms(bundles));
    for times in rival_times {
        print!(" {:>9}", ms(times));
    }
    println!(" {:>12} {:>12}", text(ratios[0], 2), text(ratios[1], 2));
}

/// The seconds that an engine takes to be there; as for the rivals', not those that it takes to go.
fn seconds_of(make_engine: impl FnOnce() -> (Engine, Caller)) -> f64 {
    let start = Instant::now();
    let made = make_engine();
    let seconds = start.elapsed().as_secs_f64();
    drop(made);
    seconds
}

/// Makes an engine, and calls it on this thread.
fn called_engine(program: Verified<Program>, tokens: &Streams) -> (Engine, Caller) {
    let engine = Engine::new(program, &zbmd_backends::standard_registry()).expect("known ops");
    let sources = engine.program().graph.sources();
    let inputs: Vec<&[u8]> = sources
        .map(|(_, source)| tokens[&source.name].as_slice())
        .collect();

    let mut caller = engine.caller().expect("one CPU device");
    let mut results: Vec<Vec<u8>> = caller.outputs().map(|(_, bytes)| vec![0; bytes]).collect();
    let mut slices: Vec<&mut [u8]> = results.iter_mut().map(Vec::as_mut_slice).collect();
    caller.call(&inputs, &mut slices).expect("a call");
    (engine, caller)
}
