//! The command `zbmd-run` as a process: files in, files out, exit codes, messages. Its runner with test ops is an
//! example of the crate, built by cargo for this test.

mod common;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use common::{inputs, interpreter, three_to_two, verified, with_tail};
use zbmd_ir::testing::programs;
use zbmd_ir::{Program, Value, bundle};

/// A folder with a bundle in it.
struct Case {
    folder: tempfile::TempDir,
    program: Program,
}

impl Case {
    fn new(program: Program) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        bundle::write(&folder.path().join("model.zbmd"), &verified(program.clone()))
            .expect("written");
        Self { folder, program }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes tokens for the source `in` to a file; what the interpreter makes of them.
    fn input(&self, file: &str, tokens: u64) -> Vec<u8> {
        let given = inputs(&self.program, tokens);
        std::fs::write(self.path(file), &given["in"]).expect("written");
        let mut expect = interpreter(&self.program).run(&given, None).expect("runs");
        expect.outputs.remove("out").expect("a sink")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(runner());
        command.current_dir(self.folder.path()).arg("model.zbmd").args(args);
        command
    }

    /// Started with both streams as pipes, and a report of that format.
    fn piped(&self, report: &str) -> Child {
        self.command(&["-i", "in=-", "-o", "out=-", "--report", report])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started")
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("started")
    }
}

/// The example `mix_run`, which cargo builds next to this test.
fn runner() -> PathBuf {
    let here = std::env::current_exe().expect("a path");
    let target = here.parent().and_then(Path::parent).expect("target/profile/deps/test");
    target.join("examples").join(format!("mix_run{}", std::env::consts::EXE_SUFFIX))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("not killed")
}

#[test]
fn files_go_in_and_out() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", 1003);
    let output = case.run(&["--input", "in=in.f32", "--output", "out=out.bin"]);
    let said = text(&output.stderr);
    assert_eq!((code(&output), text(&output.stdout).as_str()), (0, ""), "{said}");
    assert!(std::fs::read(case.path("out.bin")).expect("written") == expect);
    assert!(said.contains("two_devices: 1003 iterations in"), "{said}");
    let output = case.run(&["-i", "in=in.f32", "-o", "out=out.npy", "--quiet"]);
    assert_eq!((code(&output), text(&output.stderr).as_str()), (0, ""));
    assert!(std::fs::read(case.path("out.npy")).expect("written").ends_with(&expect));
}

#[test]
fn parameters_give_the_files_without_options() {
    let mut program = programs::chain();
    for (actor, file) in [("in", "in.f32"), ("out", "out.f32")] {
        let id = program.graph.find(actor).expect("there");
        program.graph.actors[id].params.insert("file".into(), Value::Str(file.into()));
    }
    let case = Case::new(with_tail(program));
    let expect = case.input("in.f32", 10);
    assert_eq!(code(&case.run(&[])), 0);
    assert!(std::fs::read(case.path("out.f32")).expect("written") == expect);
}

#[test]
fn pipes_flow_while_the_source_is_open() {
    let case = Case::new(programs::chain());
    let expect = case.input("in.f32", 8);
    let given = std::fs::read(case.path("in.f32")).expect("written");
    let mut child = case.piped("json");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = child.stdout.take().expect("piped");
    // Each block of 4 tokens gives 8 before the next is written.
    for block in 0..2 {
        stdin.write_all(&given[block * 16..(block + 1) * 16]).expect("written");
        let mut out = [0; 32];
        stdout.read_exact(&mut out).expect("tokens");
        assert!(out == expect[block * 32..(block + 1) * 32]);
    }
    drop(stdin);
    let output = child.wait_with_output().expect("ends");
    assert_eq!(code(&output), 0);
    assert!(text(&output.stderr).contains("\"iterations\": 8"));
}

#[test]
fn a_closed_standard_output_ends_the_run_cleanly() {
    let case = Case::new(programs::chain());
    case.input("in.f32", 4_000_000);
    let mut child = case
        .command(&["-i", "in=in.f32", "-o", "out=-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("the reader of `out` went away"));
}

#[test]
fn a_state_cuts_a_run_in_two() {
    let case = Case::new(with_tail(programs::window()));
    let expect = case.input("all.f32", 21);
    let given = std::fs::read(case.path("all.f32")).expect("written");
    std::fs::write(case.path("a.f32"), &given[..4 * 6]).expect("written");
    std::fs::write(case.path("b.f32"), &given[4 * 6..]).expect("written");
    let first = case.run(&["-i", "in=a.f32", "-o", "out=a.bin", "--save-state", "border"]);
    assert_eq!(code(&first), 0, "{}", text(&first.stderr));
    let second = case.run(&["-i", "in=b.f32", "-o", "out=b.bin", "--load-state", "border"]);
    assert!(text(&second.stderr).contains("15 iterations in"), "{}", text(&second.stderr));
    assert!(text(&second.stderr).contains("21 since the beginning"), "{}", text(&second.stderr));
    let read = |name| std::fs::read(case.path(name)).expect("written");
    assert!([read("a.bin"), read("b.bin")].concat() == expect);
}

#[test]
fn what_is_left_is_counted_or_padded() {
    let case = Case::new(three_to_two());
    case.input("in.f32", 14);
    let output = case.run(&["-i", "in=in.f32", "-o", "out=out.f32"]);
    assert!(
        text(&output.stderr).contains("2 left over (an iteration takes 3)"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(std::fs::metadata(case.path("out.f32")).expect("written").len(), 4 * 8);
    let output = case.run(&["-i", "in=in.f32", "-o", "out=out.f32", "--pad"]);
    assert!(text(&output.stderr).contains("+1 zeros"), "{}", text(&output.stderr));
    assert_eq!(std::fs::metadata(case.path("out.f32")).expect("written").len(), 4 * 10);
    std::fs::write(case.path("odd.bin"), [0; 14]).expect("written");
    let output = case.run(&["-i", "in=odd.bin", "-o", "out=out.f32"]);
    assert!(
        text(&output.stderr).contains("ends with 2 bytes that are no whole token"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn iterations_and_reports() {
    let case = Case::new(with_tail(programs::two_devices()));
    case.input("in.f32", 1000);
    let args = ["-i", "in=in.f32", "-o", "out=out.f32", "-n", "6"];
    let output = case.run(&[&args[..], &["--report", "text"]].concat());
    let said = text(&output.stderr);
    for part in [
        "6 iterations in",
        "994 left over",
        "plan main   1 blocks of 4",
        "plan tail   2 blocks of 1",
        "latency in -> out",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let output = case.run(&[&args[..], &["--report-file", "report.json"]].concat());
    assert_eq!((code(&output), text(&output.stderr).as_str()), (0, ""));
    let report = std::fs::read(case.path("report.json")).expect("written");
    let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
    assert_eq!(report["sources"][0]["leftover"], 994);
}

#[test]
fn mistakes_have_a_code_and_a_mend() {
    let case = Case::new(programs::chain());
    case.input("in.f32", 8);
    std::fs::write(case.path("bad.npy"), b"nothing").expect("written");
    let files = ["-i", "in=in.f32", "-o", "out=out.f32"];
    let cases: &[(&[&str], i32, &str)] = &[
        (
            &["-o", "out=x.bin"],
            2,
            "source `in` has no file: say --input in=FILE, or --input in=- for a standard stream",
        ),
        (&["-i", "iq=x.bin"], 2, "--input iq=…: the bundle has no source `iq`; it has: in"),
        (&["-i", "in"], 2, "write it as NAME=FILE"),
        (&["--duration", "5"], 2, "write a number and a unit"),
        (&["-i", "in=none.f32", "-o", "out=out.f32"], 4, "none.f32: No such file"),
        (&["-i", "in=bad.npy", "-o", "out=out.f32"], 4, "bad.npy: is shorter than a NumPy header"),
        (&["-i", "in=in.f32", "-o", "out=no/folder.f32"], 4, "no/folder.f32: No such file"),
        (&["-i", "in=in.f32", "-o", "out=out.mp3"], 4, "out.mp3: unknown extension `mp3`"),
        (&["-i", "in=in.f32", "-o", "out=out.s16"], 4, "holds i16, stream `out` carries f32"),
        (&["-i", "in=in.f32", "-o", "out=out.f32", "--load-state", "in.f32"], 4, "in.f32: "),
    ];
    for (args, expect, part) in cases {
        let output = case.run(args);
        let said = text(&output.stderr);
        assert_eq!(code(&output), *expect, "{args:?}: {said}");
        assert!(said.contains(part) && output.stdout.is_empty(), "{args:?}: {said}");
    }
    let mut bytes = std::fs::read(case.path("model.zbmd")).expect("written");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(case.path("model.zbmd"), bytes).expect("written");
    let output = case.run(&files);
    assert_eq!(code(&output), 5, "{}", text(&output.stderr));
}

#[test]
fn a_fault_names_the_actor() {
    let mut program = programs::chain();
    let up = program.graph.find("up").expect("there");
    program.graph.actors[up].op = "Faulty".into();
    let case = Case::new(program);
    std::fs::write(case.path("in.f32"), [0; 32]).expect("written");
    let output = case.run(&["-i", "in=in.f32", "-o", "out=out.f32"]);
    assert_eq!(code(&output), 6);
    let said = text(&output.stderr);
    assert!(said.contains("error: actor `up` on cpu:0, block 0: never works"), "{said}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_finishes_the_block_and_says_so() {
    let case = Case::new(programs::chain());
    let expect = case.input("in.f32", 4);
    let given = std::fs::read(case.path("in.f32")).expect("written");
    let mut child = case.piped("text");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = child.stdout.take().expect("piped");
    stdin.write_all(&given).expect("written");
    let mut out = [0; 32];
    stdout.read_exact(&mut out).expect("tokens");
    assert!(out == expect[..]);
    // The input is still open: only the signal ends the run.
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(kill.success());
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).expect("ends");
    let output = child.wait_with_output().expect("ends");
    assert_eq!((code(&output), rest.len()), (130, 0));
    assert!(text(&output.stderr).contains("chain: 4 iterations in"), "{}", text(&output.stderr));
    drop(stdin);
}
