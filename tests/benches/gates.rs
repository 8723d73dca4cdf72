//! Gates: `cargo bench -p zbmd-tests --bench gates`.
//!
//! The voice detector behind its energy gate beside the one without, on a recording of which nine tenths are silence,
//! of noise or of zeros: CPU time of the whole process, planned periods, segments, and spans of speech as silero-vad defines
//! them. Both run by turns.

use std::time::Duration;

use zbmd_compiler::{CompileOptions, compile_str};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::PlanId;
use zbmd_tests::actors::{registry, segments};
use zbmd_tests::run::{Streams, drive_with, graph_file, streams};
use zbmd_tests::signal::{
    Silence, from_f32_bytes, mostly_silent_speech, speech_in_silence, speech_timestamps,
};
use zbmd_tests::{cpu_time, data};

const ROUNDS: usize = 5;
/// Frames that the detector behind the gate is late.
const PRE_ROLL: usize = 8;

fn main() {
    let (Some(detector), Some(wav)) = (
        data::file("models/silero_vad.onnx"),
        data::file("audio/speech16k.wav"),
    ) else {
        println!("without ZBMD_DATA there is no recording");
        return;
    };
    let speech = std::fs::read(wav).expect("readable");
    let plain = std::fs::read_to_string(graph_file("vad/model.ron")).expect("readable");
    let gated = std::fs::read_to_string(graph_file("vad/gated.ron")).expect("readable");
    // The work that is never skipped, and its time, are the same with and without the gate.
    let (before, after) = gated.split_once("gate: Gate(").expect("a gate");
    let (_, after) = after.split_once("))").expect("its end");
    let ungated = format!("{before}){after}");

    let detector = std::path::absolute(&detector).expect("a path");
    let compiled = |name, text: &str| compiled(name, text, &detector);
    compiled("gated.ron without its gate", &ungated);
    let engines = [
        ("without a gate", compiled("model.ron", &plain)),
        ("behind a gate", compiled("gated.ron", &gated)),
    ];
    for silence in [Silence::Zeros, Silence::Noise] {
        println!("a conversation between nine times as much silence ({silence:?})");
        measure(&engines, speech_in_silence(&speech[44..], silence));
        println!("silence ({silence:?}) after each sentence, nine times as long");
        measure(&engines, mostly_silent_speech(&speech[44..], silence));
    }
}

/// An engine of a model; prints what it plans.
fn compiled(name: &str, text: &str, detector: &std::path::Path) -> Engine {
    let mut options = CompileOptions {
        registry: registry(),
        ..CompileOptions::default()
    };
    let detector = format!("{:?}", detector.display().to_string());
    options.params.insert("detector".to_owned(), detector);
    let compiled = compile_str(name, text, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let plan = &compiled.program.plans[PlanId(0)];
    let period_us = plan.period_ns as f64 / 1e3 / plan.block as f64;
    println!("{name}: planned {period_us:.1} us an iteration");
    Engine::new(compiled.program, &registry()).expect("an engine")
}

/// CPU time and what is heard, of two engines by turns.
fn measure(engines: &[(&str, Engine); 2], audio: Vec<u8>) {
    let seconds = audio.len() as f64 / 32_000.0;
    let inputs = streams([("pcm", audio)]);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); engines.len()];
    let mut found = Vec::new();
    for round in 0..=ROUNDS {
        for ((name, engine), times) in engines.iter().zip(&mut times) {
            let (time, outputs) = run(engine, &inputs);
            // The first round warms up.
            if round == 0 {
                let lines = segments::lines(&outputs["segments"]);
                println!("{name}: {} segments", lines.lines().count());
                found.push((lines, from_f32_bytes(&outputs["prob"])));
            } else {
                times.push(time.as_secs_f64());
            }
        }
    }
    compare(&found[0], &found[1]);
    let medians: Vec<f64> = times
        .iter_mut()
        .map(|times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        })
        .collect();
    println!(
        "{seconds:.0} s of audio: {:.0} ms of CPU time without a gate, {:.0} ms with one: {:.3}",
        medians[0] * 1e3,
        medians[1] * 1e3,
        medians[1] / medians[0]
    );
}

/// Says how far the lines and probabilities of two models are apart, of which the second is late.
fn compare(plain: &(String, Vec<f64>), gated: &(String, Vec<f64>)) {
    let equal = gated
        .0
        .lines()
        .filter(|line| plain.0.lines().any(|other| other == *line));
    println!("{} segments are equal to the frame", equal.count());

    let frames = plain.1.len() - PRE_ROLL;
    let want = speech_timestamps(&plain.1[..frames]);
    let got = speech_timestamps(&gated.1[PRE_ROLL..]);
    let pairs = want.iter().zip(&got);
    let apart = pairs.map(|(want, got)| want.0.abs_diff(got.0).max(want.1.abs_diff(got.1)));
    println!(
        "{} spans of speech without a gate, {} with one, their ends at most {:.0} ms apart",
        want.len(),
        got.len(),
        apart.max().unwrap_or(0) as f64 / 16.0
    );
}

/// CPU time of a run, and what it gave.
fn run(engine: &Engine, inputs: &Streams) -> (Duration, Streams) {
    let before = cpu_time::of_process();
    let session = engine.start(RunOptions::default()).expect("a session");
    let sinks = vec!["prob".to_owned(), "segments".to_owned()];
    let (outputs, _) = drive_with(session, inputs, sinks, 1, || ());
    (cpu_time::of_process() - before, outputs)
}
