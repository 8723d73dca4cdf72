//! Several models in one calendar: each gives the bits that it gives alone, up to its own end, whatever is lost.
//!
//! No test harness: this program is its own worker process, so `main` first asks whether it is one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use zbmd_backends::standard_registry;
use zbmd_compiler::{CompileOptions, Compiled, Losses, MachineChoice, compile_file, compile_files};
use zbmd_executor::{Engine, Isolation, Outcome, RunOptions};
use zbmd_ir::merged_models;
use zbmd_tests::harness::{self, Test};
use zbmd_tests::losses::{HARDY, options, supervised};
use zbmd_tests::run::{Streams, drive_with, graph_file, replay};

/// Models with their sources, and tokens of some bytes.
const AGC: (&str, &str, &str, u64) = ("agc", "agc/model.ron", "iq", 8);
const CD2DAT: (&str, &str, &str, u64) = ("cd2dat", "cd2dat/model.ron", "cd", 4);
const FM: (&str, &str, &str, u64) = ("fm", "fm/model.ron", "iq", 2);

type Part = (&'static str, &'static str, &'static str, u64);

fn compile_options(devices: usize, losses: Losses) -> CompileOptions {
    CompileOptions {
        machine: MachineChoice::Uniform(devices),
        contingencies: losses,
        ..CompileOptions::default()
    }
}

fn compile_merged(parts: &[Part], options: &CompileOptions) -> Compiled {
    let paths: Vec<PathBuf> = parts.iter().map(|part| graph_file(part.1)).collect();
    compile_files(&paths, options).unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
}

/// Tokens that depend on their place: numbers between -1 and 1, or bytes.
fn tokens(part: Part, count: u64) -> Vec<u8> {
    let (.., token_bytes) = part;
    let mut bytes = Vec::new();
    for place in 0..count * token_bytes.div_ceil(4) {
        let mixed = (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        match token_bytes {
            2 => bytes.extend([mixed as u8, (mixed >> 8) as u8]),
            _ => bytes.extend((mixed as f32 / (1 << 23) as f32 - 1.0).to_ne_bytes()),
        }
    }
    bytes
}

/// What a model gives alone, its streams called as in the merged program.
fn alone(part: Part, input: &[u8], pad: bool) -> Streams {
    let (name, file, source, _) = part;
    let compiled = compile_file(graph_file(file), &compile_options(1, Losses::None));
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let inputs = BTreeMap::from([(source.to_owned(), input.to_vec())]);
    let outputs = match pad {
        false => replay(compiled, &standard_registry(), &inputs, None, None).0,
        true => padded(compiled, &inputs).0,
    };
    let outputs = outputs.into_iter();
    outputs
        .map(|(sink, bytes)| (format!("{name}/{sink}"), bytes))
        .collect()
}

fn padded(compiled: Compiled, inputs: &Streams) -> (Streams, Outcome) {
    let engine = Engine::new(compiled.program, &standard_registry()).expect("an engine");
    let run_options = RunOptions {
        pad: true,
        ..options(Isolation::Threads)
    };
    run_engine(&engine, inputs, run_options, 1)
}

fn run_engine(
    engine: &Engine,
    inputs: &Streams,
    options: RunOptions,
    pieces: usize,
) -> (Streams, Outcome) {
    let sinks = engine.program().graph.sinks();
    let sinks = sinks.map(|(_, actor)| actor.name.clone()).collect();
    let session = engine.start(options).expect("a session");
    drive_with(session, inputs, sinks, pieces, || {})
}

fn merged_inputs(parts: &[(Part, u64)]) -> Streams {
    let inputs = parts.iter().map(|&(part, count)| {
        let (name, _, source, _) = part;
        (format!("{name}/{source}"), tokens(part, count))
    });
    inputs.collect()
}

fn expected(parts: &[(Part, u64)], pad: bool) -> Streams {
    let outputs = parts
        .iter()
        .flat_map(|&(part, count)| alone(part, &tokens(part, count), pad));
    outputs.collect()
}

fn assert_same(found: &Streams, expected: &Streams, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (sink, bytes) in expected {
        assert!(!bytes.is_empty(), "{what}: {sink} gives nothing to compare");
        assert_eq!(found[sink].len(), bytes.len(), "{what}: bytes of {sink}");
        assert!(found[sink] == *bytes, "{what}: {sink} has other bits");
    }
}

/// Lengths at which one model or the other ends first, within a block and at the border of one, and incomplete iterations.
fn lengths() -> [Vec<(Part, u64)>; 4] {
    [
        vec![(AGC, 48_000), (CD2DAT, 44_100)],
        vec![(AGC, 100_003), (CD2DAT, 1_000)],
        vec![(AGC, 7), (CD2DAT, 60_001)],
        vec![(CD2DAT, 20_000), (FM, 1_000_003), (AGC, 1)],
    ]
}

/// An iteration has so many of each model that both rates are kept.
fn rates_are_kept() {
    let compiled = compile_merged(&[AGC, CD2DAT], &compile_options(2, Losses::None));
    let models = merged_models(&compiled.program.graph);
    let found: Vec<(&str, u64)> = models
        .iter()
        .map(|m| (m.name.as_str(), m.iterations))
        .collect();
    // 48000 iterations a second, and 44100 / 147.
    assert_eq!(found, [("agc", 160), ("cd2dat", 1)]);
    let names: Vec<&str> = compiled
        .program
        .graph
        .sources()
        .map(|(_, actor)| actor.name.as_str())
        .collect();
    assert_eq!(names, ["agc/iq", "cd2dat/cd"]);
}

/// A model with a live parameter, which states no rate.
fn plain(name: &str, body: &str) -> String {
    format!(
        "Model(
    name: \"{name}\",
    params: {{ \"gain\": Live(1.0, min: 0.0, max: 9.0) }},
    sources: {{ \"x\": Stream(dtype: f32) }},
    actors: {{ \"louder\": Gain($gain) }},
    channels: [(from: \"x\", to: [\"louder\"]), {body}],
    sinks: {{ \"y\": Stream() }},
)"
    )
}

/// Options for one model begin with its name, and so does what errors are about.
fn options_and_errors_name_their_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |file: &str, text: &str| {
        let path = folder.path().join(file);
        std::fs::write(&path, text).expect("written");
        path
    };
    let joined = "(from: \"louder\", to: [\"y\"])";
    let one = write("one.ron", &plain("one", joined));
    let two = write("two.ron", &plain("two", joined));
    let same = write("same.ron", &plain("one", joined));
    let open = write("open.ron", &plain("open", ""));
    let agc = graph_file(AGC.1);

    let mut options = compile_options(1, Losses::None);
    options
        .params
        .insert("two.gain".to_owned(), "3.0".to_owned());
    options.rates = [("one".to_owned(), 200.0), ("two".to_owned(), 300.0)].into();
    let compiled = compile_files(&[one.clone(), two], &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let engine = Engine::new(compiled.program, &standard_registry()).expect("an engine");
    let models = merged_models(&engine.program().graph);
    let iterations: Vec<u64> = models.iter().map(|model| model.iterations).collect();
    assert_eq!(iterations, [2, 3]);
    let session = engine.start(options_of_run()).expect("a session");
    let live = session.parameters().values().into_iter();
    let live: Vec<(String, Vec<f64>)> = live
        .map(|value| (value.parameter.name, value.numbers))
        .collect();
    assert_eq!(
        live,
        [
            ("one/gain".to_owned(), vec![1.0]),
            ("two/gain".to_owned(), vec![3.0])
        ]
    );

    let rate = |name: &str| CompileOptions {
        rates: [(name.to_owned(), 100.0)].into(),
        ..compile_options(1, Losses::None)
    };
    for (paths, options, expected) in [
        (
            vec![one.clone(), same],
            rate("one"),
            "two of the models are called `one`",
        ),
        (vec![one.clone(), open], rate("one"), "open/y"),
        (
            vec![one.clone(), agc.clone()],
            rate("three"),
            "`three`, which is none of the models",
        ),
        (vec![one, agc], rate("agc"), "`agc/iq` has a sample rate"),
    ] {
        let refused = compile_files(&paths, &options);
        let text = refused
            .err()
            .map_or_else(String::new, |diagnostics| diagnostics.to_string());
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

fn options_of_run() -> RunOptions {
    options(Isolation::Threads)
}

fn ends_are_each_models_own() {
    for parts in lengths() {
        let models: Vec<Part> = parts.iter().map(|part| part.0).collect();
        for devices in [1, 2] {
            let compiled = compile_merged(&models, &compile_options(devices, Losses::None));
            let registry = standard_registry();
            let (found, outcome) = replay(compiled, &registry, &merged_inputs(&parts), None, None);
            assert_same(
                &found,
                &expected(&parts, false),
                &format!("{parts:?} on {devices}"),
            );
            let emitted: u64 = outcome.report.sinks.iter().map(|sink| sink.tokens).sum();
            let tokens: usize = found
                .iter()
                .map(|(sink, bytes)| bytes.len() / sink_bytes(sink))
                .sum();
            assert_eq!(emitted, tokens as u64, "what the report says of {parts:?}");
        }
    }
}

fn sink_bytes(sink: &str) -> usize {
    match sink {
        "agc/out" => 8,
        _ => 4,
    }
}

/// With padding each model's last iteration is filled up.
fn padded_models_have_their_last_iterations() {
    let parts = [(AGC, 30_000), (CD2DAT, 1_000)];
    let compiled = compile_merged(&[AGC, CD2DAT], &compile_options(2, Losses::None));
    let (found, outcome) = padded(compiled, &merged_inputs(&parts));
    assert_same(&found, &expected(&parts, true), "padded");
    let padded: Vec<u64> = outcome
        .report
        .sources
        .iter()
        .map(|source| source.padded)
        .collect();
    assert_eq!(padded, [0, 7 * 147 - 1_000]);
}

/// A limit on iterations ends all models there.
fn a_limit_is_for_iterations_of_the_program() {
    let parts = [(AGC, 48_000), (CD2DAT, 44_100)];
    let compiled = compile_merged(&[AGC, CD2DAT], &compile_options(1, Losses::None));
    let registry = standard_registry();
    let (found, _) = replay(compiled, &registry, &merged_inputs(&parts), Some(37), None);
    let expected = expected(&[(AGC, 37 * 160), (CD2DAT, 37 * 147)], false);
    assert_same(&found, &expected, "37 iterations");
}

/// The reader of a model that has ended is told so while the others go on.
fn a_reader_sees_the_end_of_its_model() {
    let compiled = compile_merged(&[AGC, CD2DAT], &compile_options(1, Losses::None));
    let engine = Engine::new(compiled.program, &standard_registry()).expect("an engine");
    let mut session = engine
        .start(options(Isolation::Threads))
        .expect("a session");
    let mut short = session.source("cd2dat/cd").expect("a source");
    let mut long = session.source("agc/iq").expect("a source");
    let mut ending = session.sink("cd2dat/dat").expect("a sink");
    let sinks = ["agc/out", "agc/gain"].map(|name| session.sink(name).expect("a sink"));
    sinks.into_iter().for_each(drop);

    short.push_bytes(&tokens(CD2DAT, 1_470)).expect("taken");
    short.close();
    let feeder = std::thread::spawn(move || {
        let part = tokens(AGC, 4_800);
        let mut pushed = 0;
        while long.push_bytes(&part).is_ok() {
            pushed += 1;
        }
        pushed
    });
    let mut got = vec![0; 1_600 * 4 + 4];
    assert_eq!(ending.pull_bytes(&mut got).expect("tokens"), 1_600);
    assert!(ending.is_finished(), "its model has ended");
    session.stopper().stop();
    session.join().expect("the run ends well");
    assert!(feeder.join().expect("no panic") > 0);
}

/// Workers are killed all along; each model gives its bits, once.
fn losses_change_nothing() {
    let mut recoveries = 0;
    for (seed, parts) in lengths().into_iter().enumerate() {
        let models: Vec<Part> = parts.iter().map(|part| part.0).collect();
        let compiled = compile_merged(&models, &compile_options(2, Losses::Single));
        let engine = Engine::new(compiled.program, &standard_registry()).expect("an engine");
        let faults = format!("Inject(kinds: [kill], seed: {seed}, every: (\"10ms\", \"30ms\"))");
        let run_options = RunOptions {
            supervised: Some(supervised(&engine, HARDY, Some(&faults))),
            ..options(Isolation::Processes { program: None })
        };
        let (found, outcome) = run_engine(&engine, &merged_inputs(&parts), run_options, 400);
        let what = format!("{parts:?} with losses");
        assert_same(&found, &expected(&parts, false), &what);
        println!("{what}: {} recoveries", outcome.report.recoveries);
        recoveries += outcome.report.recoveries;
    }
    assert!(recoveries >= 8, "only {recoveries} recoveries");
}

fn main() {
    zbmd_executor::serve_if_worker(&standard_registry());
    let tests: [Test; 7] = [
        (
            "options_and_errors_name_their_model",
            options_and_errors_name_their_model,
        ),
        ("rates_are_kept", rates_are_kept),
        ("ends_are_each_models_own", ends_are_each_models_own),
        (
            "padded_models_have_their_last_iterations",
            padded_models_have_their_last_iterations,
        ),
        (
            "a_limit_is_for_iterations_of_the_program",
            a_limit_is_for_iterations_of_the_program,
        ),
        (
            "a_reader_sees_the_end_of_its_model",
            a_reader_sees_the_end_of_its_model,
        ),
        ("losses_change_nothing", losses_change_nothing),
    ];
    harness::run(&tests, || true);
}
