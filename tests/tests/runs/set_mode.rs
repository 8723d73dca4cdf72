//! `zbmd-run mode` beside a run: the mode changes at the token that the command names, and nowhere else.

use std::path::Path;
use std::process::Output;

use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_tests::child_run::{self, ChildRun};
use zbmd_tests::harness::Test;

pub(super) const TESTS: &[Test] = &[(
    "the_mode_changes_at_the_named_token",
    the_mode_changes_at_the_named_token,
)];

/// An iteration is one token in every mode.
const MODEL: &str = r#"Model(
    name: "volume",
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    modes: {
        "one": Mode(channels: [(from: "in", to: ["out"])]),
        "two": Mode(
            actors: { "gain": Gain(2.0) },
            channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
        ),
        "four": Mode(
            actors: { "gain": Gain(4.0) },
            channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
        ),
    },
    initial_mode: "one",
    changes: [("one", "two"), ("two", "four"), ("four", "one"), ("two", "one")],
    sinks: { "out": Stream() },
)"#;
/// Four seconds.
const TOKENS: usize = 192_000;
const ROUNDS: usize = 12;

fn the_mode_changes_at_the_named_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let ones = 1.0f32.to_le_bytes().repeat(TOKENS);
    std::fs::write(folder.path().join("ones.f32"), ones).expect("written");
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        block: Some(48),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", MODEL, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let path = folder.path().join("volume.zbmd");
    compiled.write(&path).expect("written");

    let input = "in=paced:ones.f32?rate=48000";
    let mut run = ChildRun::start(folder.path(), "volume", input, "out=out.f32", &[]);
    let pid = run.pid().to_string();
    let listed = run.wait_for_answer(|| mode(&[&pid]));
    assert_eq!(listed, "one   since iteration 0\ntwo\nfour\n");
    for (name, code, part) in [
        (
            "three",
            2,
            "there is no mode `three`: it has one, two, four",
        ),
        ("four", 5, "no change from mode `one` to `four`"),
    ] {
        let output = mode(&[&pid, name]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(part), "{said}");
    }

    let mut changes = vec![(1.0f32, 0usize)];
    for round in 0..ROUNDS {
        let (name, gain) = [("two", 2.0), ("four", 4.0), ("one", 1.0)][round % 3];
        let output = mode(&[&pid, name]);
        let said = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let iteration = said.split_whitespace().nth(3).and_then(|n| n.parse().ok());
        changes.push((gain, iteration.unwrap_or_else(|| panic!("{said}"))));
    }
    run.end();
    a_state_is_of_its_mode(folder.path());
    let output = mode(&[&pid, "two"]);
    assert_eq!(output.status.code(), Some(8), "{}", text(&output.stderr));

    let bytes = std::fs::read(folder.path().join("out.f32")).expect("written");
    let values: Vec<f32> = bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    assert_eq!(values.len(), TOKENS);
    let mut changes_left = changes.iter().peekable();
    let mut gain = 0.0;
    for (index, value) in values.iter().enumerate() {
        while let Some((next, _)) = changes_left.next_if(|(_, from)| *from == index) {
            gain = *next;
        }
        assert_eq!(*value, gain, "token {index}: {changes:?}");
    }
    assert_eq!(changes_left.count(), 0, "{changes:?}");
}

/// A run that goes on from a state is in the mode that the other one ended in.
fn a_state_is_of_its_mode(folder: &Path) {
    let input = "in=paced:ones.f32?rate=48000";
    let iterations = TOKENS / 2;
    let limit = iterations.to_string();
    let options = ["-n", &limit, "--save-state", "half.state"];
    let mut run = ChildRun::start(folder, "volume", input, "out=half.f32", &options);
    let pid = run.pid().to_string();
    run.wait_until("it takes commands", || mode(&[&pid]).status.success());
    assert!(mode(&[&pid, "two"]).status.success());
    run.end();

    let options = ["--load-state", "half.state"];
    let mut run = ChildRun::start(folder, "volume", input, "out=rest.f32", &options);
    let pid = run.pid().to_string();
    let listed = run.wait_for_answer(|| mode(&[&pid]));
    assert_eq!(
        listed,
        format!("one\ntwo   since iteration {iterations}\nfour\n")
    );
    run.end();
    let rest = std::fs::read(folder.join("rest.f32")).expect("written");
    assert!(
        rest == 2.0f32.to_le_bytes().repeat(TOKENS),
        "all of it in mode `two`"
    );

    let alone = r#"Model(
    name: "volume",
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    channels: [(from: "in", to: ["out"])],
    sinks: { "out": Stream() },
)"#;
    let compiled = compile_str("model.ron", alone, "", &CompileOptions::default());
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    compiled.write(folder.join("alone.zbmd")).expect("written");
    let mut command = child_run::command();
    let args = [
        "alone.zbmd",
        "-i",
        "in=ones.f32",
        "-o",
        "out=alone.f32",
        "--load-state",
        "half.state",
    ];
    let output = command.current_dir(folder).args(args).output();
    let output = output.expect("started");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(
        said.contains("is a state of a model with several modes, this one is without"),
        "{said}"
    );
}

fn mode(words: &[&str]) -> Output {
    child_run::output(&[&["mode"], words].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
