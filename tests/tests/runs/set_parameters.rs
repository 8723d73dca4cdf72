//! `zbmd-run set` beside a run: parameters change together, exactly where it was said, or not at all.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Output;

use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_ir::verify::Verified;
use zbmd_tests::child_run::{self, ChildRun};
use zbmd_tests::harness::Test;

pub(super) const TESTS: &[Test] = &[(
    "parameters_change_together_where_it_was_said",
    parameters_change_together_where_it_was_said,
)];

/// Where `a * b` is 1, tokens come out as they went in: powers of two lose nothing.
const MODEL: &str = r#"Model(
    name: "paired",
    params: { "a": Live(1.0, min: 0.0, max: 1024.0), "b": Live(1.0, min: 0.0, max: 1024.0) },
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    actors: { "first": Gain($a), "between": Gain(2.0), "last": Gain($b) },
    channels: [
        (from: "in", to: ["first"]),
        (from: "first", to: ["between"]),
        (from: "between", to: ["last"]),
        (from: "last", to: ["out"]),
    ],
    sinks: { "out": Stream() },
)"#;
const FIXED: &str = r#"Model(
    name: "fixed",
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    actors: { "gain": Gain(2.0) },
    channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
    sinks: { "out": Stream() },
)"#;
/// A token far enough ahead to be named in time, at 48,000 a second, and the end.
const AHEAD: usize = 480_000;
const TOKENS: usize = AHEAD + 4_800;

fn parameters_change_together_where_it_was_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let ones = 1.0f32.to_le_bytes().repeat(TOKENS);
    std::fs::write(folder.path().join("ones.f32"), ones).expect("written");
    for (name, text) in [("paired", MODEL), ("fixed", FIXED)] {
        let path = folder.path().join(format!("{name}.zbmd"));
        zbmd_ir::bundle::write(&path, &compiled(text)).expect("written");
    }

    let input = "in=paced:ones.f32?rate=48000";
    let mut run = ChildRun::start(folder.path(), "paired", input, "out=out.f32", &[]);
    let pid = run.pid().to_string();
    let listed = run.wait_for_answer(|| set(&[&pid]));
    assert_eq!(listed, "a=1   0 to 1024\nb=1   0 to 1024\n");

    check_refusals(&pid);
    for exponent in 1..=40 {
        let power = f64::from(exponent % 10).exp2();
        let (a, b) = (format!("a={power}"), format!("b={}", 1.0 / power));
        accept(&[&pid, &a, &b]);
    }
    accept(&[&pid, "b=4", "a=1", "--at", &format!("in:{AHEAD}")]);
    let listed = text(&set(&[&pid]).stdout);
    assert_eq!(listed, "a=1   0 to 1024\nb=4   0 to 1024\n");
    check_hostile_clients(run.pid());

    // Without live parameters there is nothing to be set.
    let mut fixed = ChildRun::start(folder.path(), "fixed", input, "out=fixed.f32", &[]);
    let fixed_pid = fixed.pid().to_string();
    fixed.wait_until("it is on", || {
        refuse(&[&fixed_pid, "a=1"])
            .1
            .contains("`fixed`, has no live parameters")
    });
    drop(fixed);

    run.end();
    let (code, said) = refuse(&[&pid, "a=1"]);
    assert_eq!(code, 8, "{said}");
    let bytes = std::fs::read(folder.path().join("out.f32")).expect("written");
    let values = bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let expect = (0..TOKENS).map(|index| if index < AHEAD { 2.0 } else { 8.0 });
    assert!(
        values.eq(expect),
        "a token with one of two values, or a change elsewhere"
    );
}

/// Small blocks, so that there are many borders.
fn compiled(text: &str) -> Verified<zbmd_ir::Program> {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        block: Some(48),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", text, "", &options);
    compiled
        .unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
        .program
}

fn set(words: &[&str]) -> Output {
    child_run::output(&[&["set"], words].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn accept(words: &[&str]) {
    let output = set(words);
    assert!(
        output.status.success(),
        "{words:?}: {}",
        text(&output.stderr)
    );
}

/// The exit code, and what was said.
fn refuse(words: &[&str]) -> (i32, String) {
    let output = set(words);
    let said = text(&output.stderr);
    let code = output.status.code().expect("it was not killed");
    assert_ne!(code, 0, "{words:?} is accepted");
    (code, said)
}

fn check_refusals(pid: &str) {
    for (words, code, part) in [
        (&["c=1"][..], 2, "no live parameter `c`: it has a, b"),
        (&["a=2", "a=3"], 2, "`a` is set twice"),
        (
            &["a=2", "b=5000"],
            5,
            "`b` cannot be 5000: the model allows 0 to 1024",
        ),
        (&["a=1,2"], 5, "`a` takes 1 number, not 2"),
        (
            &["a=2", "--at", "in:0"],
            5,
            "token 0 of `in` is at work already",
        ),
        (
            &["a=2", "--at", "of:9"],
            2,
            "no source `of`: the model has in",
        ),
        (&["a"], 2, "`a` is no assignment"),
    ] {
        let all: Vec<&str> = [pid].iter().chain(words).copied().collect();
        let (found, said) = refuse(&all);
        assert!(said.contains(part), "{words:?}: {said}");
        assert_eq!(found, code, "{words:?}: {said}");
    }
}

/// Clients that send nothing, nonsense or too much are answered or let go, and others are served meanwhile.
fn check_hostile_clients(pid: u32) {
    let path = zbmd_executor::live::control_path_of(pid).expect("a path");
    let connect = || UnixStream::connect(&path).expect("a socket");
    let silent: Vec<UnixStream> = (0..8).map(|_| connect()).collect();

    let mut client = connect();
    let mut answers = BufReader::new(client.try_clone().expect("a handle"));
    for nonsense in ["", "{}", "{\"set\":7}", "[[[[", "\u{0}"] {
        client.write_all(nonsense.as_bytes()).expect("taken");
        client.write_all(b"\n").expect("taken");
        let mut answer = String::new();
        answers.read_line(&mut answer).expect("an answer");
        assert!(answer.contains("\"refused\""), "{nonsense}: {answer}");
    }

    let mut endless = connect();
    let _ = endless.write_all(&vec![b' '; 3 << 20]);
    let mut answer = Vec::new();
    let _ = endless.read_to_end(&mut answer);
    let answer = text(&answer);
    assert!(
        answer.is_empty() || answer.contains("longer than"),
        "{answer}"
    );

    accept(&[&pid.to_string()]);
    drop(silent);
}
