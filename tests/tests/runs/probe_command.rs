//! `zbmd-run probe` beside a run: what a channel carries is shown and written, and what cannot be looked at is named.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Output;

use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_tests::child_run::{self, ChildRun};
use zbmd_tests::harness::Test;

pub(super) const TESTS: &[Test] = &[(
    "channels_are_shown_and_written",
    channels_are_shown_and_written,
)];

/// A tone of an eighth of the sample rate, and half of it.
const MODEL: &str = r#"Model(
    name: "tone",
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    actors: { "half": Gain(0.5), "shift": Expr("x + 1.0", inputs: { "x": f32 }) },
    channels: [
        (from: "in", to: ["half"]),
        (from: "half", to: ["shift"]),
        (from: "shift", to: ["out"]),
    ],
    sinks: { "out": Stream() },
)"#;
const TOKENS: usize = 48_000 * 60;
const BLOCK: usize = 480;

fn channels_are_shown_and_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let tone: Vec<u8> = (0..TOKENS)
        .flat_map(|index| sample(index).to_le_bytes())
        .collect();
    std::fs::write(folder.join("tone.f32"), tone).expect("written");
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        block: Some(BLOCK as u64),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", MODEL, "", &options);
    let program = compiled
        .unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
        .program;
    zbmd_ir::bundle::write(folder.join("tone.zbmd").as_path(), &program).expect("written");

    let input = "in=paced:tone.f32?rate=48000";
    let mut run = ChildRun::start(folder, "tone", input, "out=out.f32", &[]);
    let pid = run.pid().to_string();
    let listed = run.wait_for_answer(|| probe(folder, &[&pid]));
    let expected = "in   f32, 480 in a block, 48000 a second, on cpu:0\n\
            half   f32, 480 in a block, 48000 a second, on cpu:0\n\
            shift   f32, 480 in a block, 48000 a second, on cpu:0\n";
    assert_eq!(listed, expected);

    check_figures(folder, &pid);
    check_tokens(folder, &pid);
    check_refusals(folder, &pid);
    check_connection(run.pid());
    run.interrupt();
    let (code, said) = refuse(folder, &[&pid, "half"]);
    assert_eq!(code, 8, "{said}");
    check_output(folder);
}

fn sample(index: usize) -> f32 {
    [0.0, 0.5, 0.75, 0.5, 0.0, -0.5, -0.75, -0.5][index % 8]
}

fn check_figures(folder: &Path, pid: &str) {
    let stats = accept(folder, &[pid, "half", "--count", "3"]);
    assert_eq!(stats.lines().count(), 3, "{stats}");
    for line in stats.lines() {
        assert!(
            line.contains("min -0.375000   max 0.375000   mean 0.000000"),
            "{line}"
        );
    }
    let peaks = accept(folder, &[pid, "half", "--fft", "--count", "4"]);
    let first = peaks.lines().next().expect("a peak");
    assert!(first.trim_start().starts_with("6000.000 Hz"), "{peaks}");
    // The port may be named too.
    accept(folder, &[pid, "half.y"]);
}

/// What is written is a whole number of blocks from some block on, each the right one.
fn check_tokens(folder: &Path, pid: &str) {
    accept(
        folder,
        &[pid, "shift", "--output", "shift.f32", "--count", "5"],
    );
    let found = floats(&folder.join("shift.f32"));
    assert_eq!(found.len(), 5 * BLOCK);
    // A block is a multiple of the tone's period, so that all begin alike.
    let expected = (0..5 * BLOCK).map(|index| 0.5 * sample(index) + 1.0);
    assert!(expected.eq(found), "other tokens");
    accept(folder, &[pid, "shift", "--output", "shift.npy"]);
    let array = std::fs::read(folder.join("shift.npy")).expect("written");
    let header = String::from_utf8_lossy(&array[..128]).into_owned();
    assert!(header.contains("'shape': (480,)"), "{header}");
}

fn check_refusals(folder: &Path, pid: &str) {
    for (words, code, part) in [
        (
            &["halve"][..],
            2,
            "no channel `halve` to look at: it has in, half, shift",
        ),
        (&["out"], 2, "no channel `out`"),
        (&["half", "--count", "0"], 2, "0 is not in 1.."),
        (&["half", "--fft", "--stats"], 2, "cannot be used with"),
        (&["half", "--output", "none/half.f32"], 4, "none/half.f32"),
    ] {
        let all: Vec<&str> = [pid].iter().chain(words).copied().collect();
        let (found, said) = refuse(folder, &all);
        assert!(said.contains(part), "{words:?}: {said}");
        assert_eq!(found, code, "{words:?}: {said}");
    }
}

/// One looks at a time, as long as its connection is there; who asks for blocks of nothing is told so.
fn check_connection(pid: u32) {
    let path = zbmd_executor::live::control_path_of(pid).expect("a path");
    let connect = || BufReader::new(UnixStream::connect(&path).expect("a socket"));
    let ask = |client: &mut BufReader<UnixStream>, request: &str| {
        let line = format!("{request}\n");
        client.get_mut().write_all(line.as_bytes()).expect("taken");
        let mut answer = String::new();
        client.read_line(&mut answer).expect("an answer");
        answer
    };
    let mut first = connect();
    let none = ask(&mut first, "\"next_block\"");
    assert!(none.contains("say first at which channel"), "{none}");
    let probing = ask(&mut first, "{\"probe\":\"half\"}");
    assert!(probing.contains("\"probing\""), "{probing}");

    let mut second = connect();
    let busy = ask(&mut second, "{\"probe\":\"shift\"}");
    assert!(
        busy.contains("\"busy\"") && busy.contains("looks at `half`"),
        "{busy}"
    );
    let block = ask(&mut first, "\"next_block\"");
    assert!(block.contains("\"bytes\":1920"), "{block}");
    let mut tokens = vec![0; 1920];
    first.read_exact(&mut tokens).expect("they follow");
    drop(first);
    // It may take the run a moment to see that it has gone.
    while ask(&mut second, "{\"probe\":\"shift\"}").contains("busy") {
        std::thread::yield_now();
    }
}

/// What the run has given out is as if nobody had looked.
fn check_output(folder: &Path) {
    let found = floats(&folder.join("out.f32"));
    assert!(found.len() > BLOCK, "{}", found.len());
    let expected = (0..found.len()).map(|index| 0.5 * sample(index) + 1.0);
    assert!(expected.eq(found), "other tokens");
}

fn floats(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("written");
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|word| f32::from_le_bytes(*word)).collect()
}

fn probe(folder: &Path, words: &[&str]) -> Output {
    child_run::output_in(folder, &[&["probe"], words].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn accept(folder: &Path, words: &[&str]) -> String {
    let output = probe(folder, words);
    assert!(
        output.status.success(),
        "{words:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// The exit code, and what was said.
fn refuse(folder: &Path, words: &[&str]) -> (i32, String) {
    let output = probe(folder, words);
    let code = output.status.code().expect("it was not killed");
    assert_ne!(code, 0, "{words:?} is accepted");
    (code, text(&output.stderr))
}
