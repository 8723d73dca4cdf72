//! How a run of `zbmd-run` ends when somebody it deals with stalls: whoever reads its output, its events, what it says,
//! or whoever writes its input. And what it leaves behind.

#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::{inputs, interpreter, runner, text, verified, with_tail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use zbmd_ir::testing::programs;
use zbmd_ir::{Program, bundle};

/// Much longer than an end takes, which is less than a second; a run that is kept waiting would never end.
const LIMIT: Duration = Duration::from_secs(60);
/// Of a token of the output.
const TOKEN_BYTES: u64 = 4;

/// A folder with a bundle in it, where the pages of its runs lie too.
struct Case {
    folder: tempfile::TempDir,
    program: Program,
}

impl Case {
    fn new(program: Program) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.zbmd");
        bundle::write(&path, &verified(program.clone())).expect("written");
        Self { folder, program }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes tokens for the source `in` to a file; what the interpreter makes of them.
    fn input(&self, tokens: u64) -> Vec<u8> {
        let given = inputs(&self.program, tokens);
        std::fs::write(self.path("in.f32"), &given["in"]).expect("written");
        let mut expect = interpreter(&self.program).run(&given, None).expect("runs");
        expect.outputs.remove("out").expect("a sink")
    }

    fn named_pipe(&self, name: &str) {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, self.path(name), FileType::Fifo, mode, 0).expect("a pipe");
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(runner());
        command
            .current_dir(self.folder.path())
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .args(args)
            .stdin(Stdio::null());
        command
    }

    fn start(&self, args: &[&str]) -> Child {
        self.command(&[&["model.zbmd"], args].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started")
    }

    fn report(&self) -> Value {
        let report = std::fs::read(self.path("report.json")).expect("written");
        serde_json::from_slice(&report).expect("JSON")
    }
}

/// The end of a run that nobody reads from.
fn wait(run: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = run.try_wait().expect("a child") {
            return status;
        }
        if begun.elapsed() > LIMIT {
            run.kill().expect("it was not waited for");
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn send(run: &Child, signal: Signal) {
    let pid = Pid::from_raw(run.id().cast_signed()).expect("a process");
    kill_process(pid, signal).expect("it was not waited for");
}

/// Waits until the run catches SIGTERM: before that, one ends it as any program.
fn wait_for_handler(run: &Child) {
    let path = format!("/proc/{}/status", run.id());
    let is_caught = || {
        let status = std::fs::read_to_string(&path).expect("it runs");
        let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
        let mask = u64::from_str_radix(mask.expect("on Linux").trim(), 16).expect("a mask");
        mask & 1 << (Signal::TERM.as_raw() - 1) != 0
    };
    while !is_caught() {
        std::thread::yield_now();
    }
}

/// Waits until the run's standard output has taken all that it has room for.
fn wait_until_full(run: &Child) {
    let stdout = run.stdout.as_ref().expect("piped");
    let there = || rustix::io::ioctl_fionread(stdout).expect("a pipe");
    let mut before = u64::MAX;
    while there() == 0 || before != there() {
        before = there();
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[derive(Clone, Copy, Debug)]
enum End {
    Signal(Signal),
    Duration,
}

#[test]
fn a_run_whose_output_nobody_reads_is_ended_by_one_signal_or_by_its_time() {
    let case = Case::new(programs::chain());
    let expect = case.input(400_000);
    for isolation in ["threads", "processes"] {
        for end in [
            End::Signal(Signal::TERM),
            End::Signal(Signal::INT),
            End::Duration,
        ] {
            let files = ["-i", "in=in.f32", "-o", "out=-", "--isolation", isolation];
            let report = ["--report-file", "report.json"];
            let duration = match end {
                End::Duration => &["--duration", "300ms"][..],
                End::Signal(_) => &[],
            };
            let mut run = case.start(&[&files[..], &report, duration].concat());
            let mut expected_code = 0;
            if let End::Signal(signal) = end {
                wait_until_full(&run);
                send(&run, signal);
                expected_code = 130;
            }
            let status = wait(&mut run);
            assert_eq!(status.code(), Some(expected_code), "{end:?}, {isolation}");

            // What the pipe took is what the report says, and the beginning of the whole.
            let mut taken = Vec::new();
            let mut stdout = run.stdout.take().expect("piped");
            stdout.read_to_end(&mut taken).expect("the run is over");
            assert!(!taken.is_empty() && expect.starts_with(&taken));
            let sink = &case.report()["sinks"][0];
            let delivered = taken.len() as u64 / TOKEN_BYTES;
            assert_eq!(sink["delivered"], delivered, "{end:?}, {isolation}");
            assert!(sink["tokens"].as_u64() > Some(delivered), "{sink}");
        }
    }
}

#[test]
fn a_reader_that_goes_on_gets_all_that_was_committed() {
    let case = Case::new(programs::chain());
    let expect = case.input(400_000);
    let args = ["-i", "in=in.f32", "-o", "out=-"];
    let mut run = case.start(&[&args[..], &["--report-file", "report.json"]].concat());
    wait_until_full(&run);
    send(&run, Signal::TERM);
    let mut taken = Vec::new();
    let mut stdout = run.stdout.take().expect("piped");
    stdout.read_to_end(&mut taken).expect("the run ends");
    assert_eq!(wait(&mut run).code(), Some(130));
    assert!(expect.starts_with(&taken));
    let sink = &case.report()["sinks"][0];
    assert_eq!(sink["tokens"], taken.len() as u64 / TOKEN_BYTES);
    assert_eq!(sink["delivered"], Value::Null);
}

#[test]
fn the_state_after_tokens_that_nobody_took_is_not_saved() {
    let case = Case::new(programs::chain());
    case.input(400_000);
    let args = ["-i", "in=in.f32", "-o", "out=-", "--save-state", "border"];
    let mut run = case.start(&[&args[..], &["--duration", "300ms"]].concat());
    assert_eq!(wait(&mut run).code(), Some(4));
    let mut said = String::new();
    let mut stderr = run.stderr.take().expect("piped");
    stderr.read_to_string(&mut said).expect("text");
    assert!(said.contains("border: the state is not saved"), "{said}");
    assert!(!case.path("border").exists());
}

#[test]
fn pipes_with_names_keep_nobody_waiting_for_their_other_end() {
    let case = Case::new(programs::chain());
    let expect = case.input(1000);
    case.named_pipe("pipe.f32");
    let report = ["--report-file", "report.json"];

    // Nobody writes the source.
    let reads = ["-i", "in=pipe.f32", "-o", "out=out.f32"];
    let mut run = case.start(&[&reads[..], &["--duration", "100ms"]].concat());
    assert_eq!(wait(&mut run).code(), Some(0));
    let mut run = case.start(&reads);
    wait_for_handler(&run);
    send(&run, Signal::TERM);
    assert_eq!(wait(&mut run).code(), Some(130));

    // Nobody reads the sink.
    let writes = ["-i", "in=in.f32", "-o", "out=pipe.f32"];
    let mut run = case.start(&[&writes[..], &report, &["--duration", "100ms"]].concat());
    assert_eq!(wait(&mut run).code(), Some(0));
    assert_eq!(case.report()["sinks"][0]["delivered"], 0);

    // Both ends are there, one of them late.
    let mut run = case.start(&writes);
    wait_for_handler(&run);
    let taken = std::fs::read(case.path("pipe.f32")).expect("a pipe");
    assert_eq!(wait(&mut run).code(), Some(0));
    assert!(taken == expect);
    let mut run = case.start(&reads);
    wait_for_handler(&run);
    let given = std::fs::read(case.path("in.f32")).expect("written");
    std::fs::write(case.path("pipe.f32"), given).expect("a pipe");
    assert_eq!(wait(&mut run).code(), Some(0));
    assert!(std::fs::read(case.path("out.f32")).expect("written") == expect);
    let kind = std::fs::metadata(case.path("pipe.f32")).expect("there");
    assert!(kind.file_type().is_fifo(), "it is still a pipe");
}

const STORM: &str = r#"Inject(kinds: [kill], every: ("10ms", "30ms"), count: 20, seed: 1)"#;
const HARDY: &str = r#"Supervision(intensity: 1000000, period: "60s", starts: 100000, futile: 100000,
    backoff: (base: "1ms", longest: "2ms"), breaker: (failures: 1000000))"#;

/// Both ends of a pipe that takes nothing any more.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let flags = fcntl_getfl(&writer).expect("a pipe");
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).expect("a pipe");
    while writer.write(&[b'.'; 4096]).is_ok() {}
    while writer.write(b".").is_ok() {}
    fcntl_setfl(&writer, flags).expect("a pipe");
    (reader, writer)
}

#[test]
fn events_that_nobody_reads_cost_the_run_nothing() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input(200_000);
    std::fs::write(case.path("storm.ron"), STORM).expect("written");
    std::fs::write(case.path("hardy.ron"), HARDY).expect("written");
    case.named_pipe("pipe");
    for events in ["-", "pipe"] {
        let (_reader, stderr) = full_pipe();
        let files = ["model.zbmd", "-i", "in=in.f32", "-o", "out=out.f32", "-q"];
        let faults = ["--inject", "storm.ron", "--supervise=hardy.ron"];
        let report = ["--isolation", "processes", "--report-file", "report.json"];
        let args = [&files[..], &faults, &report, &["--events", events]].concat();
        let mut run = case.command(&args).stderr(stderr).spawn().expect("started");
        let status = wait(&mut run);
        assert_eq!(status.code(), Some(0), "{events}");
        assert!(std::fs::read(case.path("out.f32")).expect("written") == expect);
        let report = case.report();
        assert!(
            report["events_dropped"].as_u64() > Some(0),
            "{events}: {report}"
        );
    }
}

#[test]
fn a_report_that_nobody_reads_is_given_up() {
    let case = Case::new(programs::chain());
    case.input(100);
    case.named_pipe("pipe");
    let files = ["-i", "in=in.f32", "-o", "out=out.f32"];
    let mut run = case.start(&[&files[..], &["--report-file", "pipe"]].concat());
    assert_eq!(wait(&mut run).code(), Some(4));
}

/// Pages of live runs in the case's folder.
fn pages(case: &Case) -> Vec<PathBuf> {
    let files = std::fs::read_dir(case.folder.path()).expect("a folder");
    let paths = files.flatten().map(|file| file.path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == "live"))
        .collect()
}

/// A run that is killed when its page is there.
fn killed(case: &Case) {
    let mut command = case.command(&["model.zbmd", "-i", "in=-", "-o", "out=out.f32"]);
    let mut run = command.stdin(Stdio::piped()).spawn().expect("started");
    while pages(case).is_empty() {
        std::thread::yield_now();
    }
    let mode = std::fs::metadata(&pages(case)[0])
        .expect("there")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    run.kill().expect("it was not waited for");
    run.wait().expect("killed");
}

#[test]
fn pages_that_were_left_behind_are_removed_by_the_next_run_and_by_top() {
    let case = Case::new(programs::chain());
    case.input(100);
    killed(&case);
    assert_eq!(pages(&case).len(), 1);
    let files = ["-i", "in=in.f32", "-o", "out=out.f32"];
    assert!(wait(&mut case.start(&files)).success());
    assert!(pages(&case).is_empty(), "{:?}", pages(&case));

    killed(&case);
    let top = case.command(&["top", "--once"]).output().expect("started");
    assert_eq!(text(&top.stderr), "zbmd-run: no run is on\n");
    assert!(pages(&case).is_empty(), "{:?}", pages(&case));
}

#[test]
fn pages_lie_in_a_folder_of_the_users_own_where_the_system_has_none() {
    let case = Case::new(programs::chain());
    let mut command = case.command(&["model.zbmd", "-i", "in=-", "-o", "out=out.f32"]);
    command
        .env_remove("XDG_RUNTIME_DIR")
        .env("TMPDIR", case.folder.path())
        .stdin(Stdio::piped());
    let mut run = command.spawn().expect("started");
    let name = format!("zbmd-{}", rustix::process::geteuid().as_raw());
    let page = case.path(&name).join(format!("zbmd-{}.live", run.id()));
    while !page.exists() {
        assert!(run.try_wait().expect("a child").is_none());
        std::thread::yield_now();
    }
    let mode = std::fs::metadata(case.path(&name)).expect("there");
    assert_eq!(mode.permissions().mode() & 0o777, 0o700);
    drop(run.stdin.take());
    assert!(wait(&mut run).success());
    assert!(!page.exists());
}
