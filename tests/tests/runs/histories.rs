//! Random histories of SIGSTOP, SIGCONT and SIGKILL: workers in processes of their own are hit at any moment, also
//! before they run their program and before they are ready, while readers of the output and of the events stall and go
//! on. The output is that of a run that nobody disturbed, the run ends, and nothing is left behind.
//!
//! Some histories run with the tests; `ZBMD_HISTORIES=500 cargo test -p zbmd-tests --test runs histories` runs as many as
//! wanted, and `ZBMD_HISTORY=seed` runs one.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_str};
use zbmd_tests::child_run;
use zbmd_tests::harness::{self, Test};
use zbmd_tests::other_processes::children_of;

pub(super) const TESTS: &[Test] = &[(
    "workers_that_are_hit_change_nothing",
    workers_that_are_hit_change_nothing,
)];

/// Set, to something that is one history's own, in the environment of `zbmd-run` and its workers.
const MARKER: &str = "ZBMD_TEST_HISTORY";
/// Histories that run with the tests.
const FEW: u64 = 12;
/// A run takes about half a second; workers that are hit every millisecond may not get on at all meanwhile.
const DISTURBED_FOR: Duration = Duration::from_secs(5);
/// A run that takes so long hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Processes that the system ends with the run have so long to be gone.
const GONE_LIMIT: Duration = Duration::from_secs(20);
const TOKENS: u64 = 200_000;

/// A running sum: every token of the output depends on all of the input before it.
const MODEL: &str = r#"Model(name: "sum", sources: { "in": Stream(dtype: i64) }, sinks: { "out": Stream() },
        actors: { "first": Expr("x + 0", inputs: { "x": i64 }),
                  "sum": Expr("s + x", inputs: { "s": i64, "x": i64 }),
                  "last": Expr("x * 1", inputs: { "x": i64 }) },
        channels: [ (from: "in", to: ["first"]), (from: "first", to: ["sum.x"]),
                    (from: "sum", to: ["sum.s"], initial: [0]), (from: "sum", to: ["last"]),
                    (from: "last", to: ["out"]) ])"#;

/// Losses come as fast as the test brings them about.
const SUPERVISION: &str = r#"Supervision(intensity: 1000000, period: "60s", starts: 100000, futile: 100000,
        backoff: (base: "1ms", longest: "5ms"), breaker: (failures: 1000000))"#;

/// What all histories share.
struct Setting {
    folder: tempfile::TempDir,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Setting {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let options = CompileOptions {
            machine: MachineChoice::Uniform(3),
            contingencies: Losses::Pairs,
            ..CompileOptions::default()
        };
        let compiled =
            compile_str("sum.ron", MODEL, ".", &options).unwrap_or_else(|d| panic!("{d}"));
        let bundle = folder.path().join("sum.zbmd");
        zbmd_ir::bundle::write(&bundle, &compiled.program).expect("written");
        std::fs::write(folder.path().join("hardy.ron"), SUPERVISION).expect("written");

        let mut rng = Rng::with_seed(7);
        let mut sum = 0i64;
        let mut input = Vec::new();
        let mut output = Vec::new();
        for _ in 0..TOKENS {
            let token = rng.i64(0..1000);
            sum += token;
            input.extend(token.to_ne_bytes());
            output.extend(sum.to_ne_bytes());
        }
        Self {
            folder,
            input,
            output,
        }
    }
}

/// How a history is disturbed: drawn from its seed.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    /// Workers are hit as soon as they are there, most often before they run their program.
    hits_starts: bool,
    /// Longest pause between two signals.
    longest_pause_ms: u64,
    standby: bool,
    /// SIGTERM to the run itself after so long.
    ends_after_ms: Option<u64>,
}

impl Plan {
    fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        Self {
            seed,
            hits_starts: rng.bool(),
            longest_pause_ms: rng.u64(1..60),
            standby: rng.u8(..4) == 0,
            ends_after_ms: (rng.u8(..8) == 0).then(|| rng.u64(0..400)),
        }
    }
}

/// What a history saw.
#[derive(Debug, Default)]
struct Seen {
    signals: BTreeMap<&'static str, u64>,
    /// Processes that were hit before they ran their program.
    hit_before_program: u64,
    recoveries: usize,
}

impl Seen {
    fn add(&mut self, other: Self) {
        for (name, count) in other.signals {
            *self.signals.entry(name).or_default() += count;
        }
        self.hit_before_program += other.hit_before_program;
        self.recoveries += other.recoveries;
    }
}

/// What is wrong with a history.
struct Violation(String);

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn start(setting: &Setting, plan: &Plan, folder: &Path) -> Child {
    let mut command = child_run::command();
    command
        .arg(setting.folder.path().join("sum.zbmd"))
        .args(["-i", "in=-", "-o", "out=-", "--isolation", "processes"])
        .arg(format!(
            "--supervise={}",
            setting.folder.path().join("hardy.ron").display()
        ))
        .args(["--events", "-", "--quiet"]);
    if plan.standby {
        command.arg("--standby");
    }
    command
        .env(MARKER, marker(plan.seed))
        .env("XDG_RUNTIME_DIR", folder)
        .env("TMPDIR", folder)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("started")
}

fn marker(seed: u64) -> String {
    format!("{}-{seed}", std::process::id())
}

/// Writes the input in pieces, with pauses.
fn feed(mut to: impl Write, input: &[u8], mut rng: Rng) {
    let mut rest = input;
    while !rest.is_empty() {
        let bytes = rng.usize(1..200_000).min(rest.len());
        // A run that was told to end takes no more.
        if to.write_all(&rest[..bytes]).is_err() {
            return;
        }
        rest = &rest[bytes..];
        std::thread::sleep(Duration::from_millis(rng.u64(0..25)));
    }
}

/// Reads all there is, and stalls now and then.
fn read(mut from: impl Read, mut rng: Rng) -> Vec<u8> {
    let mut all = Vec::new();
    let mut piece = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut piece) {
        all.extend_from_slice(&piece[..bytes]);
        if rng.u8(..8) == 0 {
            std::thread::sleep(Duration::from_millis(rng.u64(0..60)));
        }
    }
    all
}

/// Sends a signal to a child of a process. The number cannot be another process's by then: see that it is still a
/// child after the descriptor was opened.
fn send(parent: Pid, child: Pid, signal: Signal) {
    if let Ok(pidfd) = pidfd_open(child, PidfdFlags::empty())
        && children_of(parent).contains(&child)
    {
        let _ = pidfd_send_signal(&pidfd, signal);
    }
}

/// Whether a child is still a copy of the run that started it: its command line is the run's own.
fn is_before_program(parent: Pid, child: Pid) -> bool {
    let command =
        |process: Pid| std::fs::read(format!("/proc/{}/cmdline", process.as_raw_nonzero())).ok();
    command(child).is_some_and(|own| !own.is_empty() && Some(own) == command(parent))
}

/// Hits workers until the run is over, or for some seconds.
fn disturb(run: Pid, plan: &Plan, is_over: &AtomicBool) -> Seen {
    let mut rng = Rng::with_seed(plan.seed ^ 0x5eed);
    let mut seen = Seen::default();
    let mut known = Vec::new();
    let begun = Instant::now();
    while !is_over.load(Ordering::Relaxed) && begun.elapsed() < DISTURBED_FOR {
        let pause = Duration::from_millis(rng.u64(0..plan.longest_pause_ms));
        if plan.hits_starts {
            hit_starts(run, &mut known, pause, &mut rng, &mut seen);
        } else {
            std::thread::sleep(pause);
        }
        let children = children_of(run);
        if children.is_empty() {
            continue;
        }
        let child = children[rng.usize(..children.len())];
        let (name, signal) = match rng.u8(..4) {
            0 => ("kill", Signal::KILL),
            1 => ("continue", Signal::CONT),
            _ => ("stop", Signal::STOP),
        };
        send(run, child, signal);
        *seen.signals.entry(name).or_default() += 1;
    }
    seen
}

/// Looks for new children for a while, and stops some of them as soon as they are there.
fn hit_starts(run: Pid, known: &mut Vec<Pid>, pause: Duration, rng: &mut Rng, seen: &mut Seen) {
    let until = Instant::now() + pause;
    while Instant::now() < until {
        let children = children_of(run);
        for child in children.iter().copied().filter(|c| !known.contains(c)) {
            if rng.bool() {
                send(run, child, Signal::STOP);
                *seen.signals.entry("stop at start").or_default() += 1;
                seen.hit_before_program += u64::from(is_before_program(run, child));
            }
        }
        *known = children;
        std::thread::yield_now();
    }
}

/// Waits for the end of the run, and tells it to end if the plan says so.
fn wait(run: &mut Child, plan: &Plan) -> Result<ExitStatus, Violation> {
    let begun = Instant::now();
    let mut ends_after = plan.ends_after_ms.map(Duration::from_millis);
    loop {
        if let Some(status) = run.try_wait().expect("a child") {
            return Ok(status);
        }
        if ends_after.is_some_and(|after| begun.elapsed() >= after) && installs_handler(run.id()) {
            ends_after = None;
            rustix::process::kill_process(Pid::from_child(run), Signal::TERM)
                .expect("it was not waited for");
        }
        if begun.elapsed() > LIMIT {
            let state = describe(Pid::from_child(run));
            run.kill().expect("it was not waited for");
            run.wait().expect("killed");
            return Err(Violation(format!("hangs\n{state}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the run catches SIGTERM yet: before that, one ends it at once, as any program.
fn installs_handler(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    let status = status.unwrap_or_default();
    let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
    let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (Signal::TERM.as_raw() - 1) != 0)
}

/// What the threads of a run that hangs, and its children, wait for.
fn describe(run: Pid) -> String {
    let mut text = String::new();
    for process in std::iter::once(run).chain(children_of(run)) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
        for task in tasks.into_iter().flatten().flatten() {
            let read = |name| std::fs::read_to_string(task.path().join(name));
            let line = |name| read(name).unwrap_or_default().trim().to_owned();
            let state = line("stat").chars().take(40).collect::<String>();
            text += &format!(
                "  {} {} {state} {}\n",
                process.as_raw_nonzero(),
                line("comm"),
                line("wchan")
            );
        }
    }
    text
}

/// Processes of a history that are still there.
fn left_behind(seed: u64) -> Vec<PathBuf> {
    let wanted = format!("{MARKER}={}", marker(seed)).into_bytes();
    let processes = std::fs::read_dir("/proc").expect("on Linux").flatten();
    let is_ours = |path: &PathBuf| {
        let variables = std::fs::read(path.join("environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|v| v == wanted)
    };
    processes
        .map(|entry| entry.path())
        .filter(is_ours)
        .collect()
}

fn check_nothing_left(seed: u64, folder: &Path) -> Result<(), Violation> {
    let begun = Instant::now();
    loop {
        let left = left_behind(seed);
        if left.is_empty() {
            break;
        }
        if begun.elapsed() > GONE_LIMIT {
            return Err(Violation(format!("processes are left: {left:?}")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let shared = std::fs::read_dir("/dev/shm").into_iter().flatten();
    let shared = shared.flatten().filter(|file| {
        let name = file.file_name();
        name.to_string_lossy().contains("zbmd")
    });
    let files = std::fs::read_dir(folder).expect("a folder").flatten();
    let left: Vec<PathBuf> = files.chain(shared).map(|file| file.path()).collect();
    match left.is_empty() {
        true => Ok(()),
        false => Err(Violation(format!("files are left: {left:?}"))),
    }
}

fn history(setting: &Setting, seed: u64) -> Result<Seen, Violation> {
    let plan = Plan::of(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = start(setting, &plan, folder.path());
    let id = Pid::from_child(&run);
    let stdin = run.stdin.take().expect("piped");
    let stdout = run.stdout.take().expect("piped");
    let stderr = run.stderr.take().expect("piped");
    let is_over = AtomicBool::new(false);
    let rng = |stream: u64| Rng::with_seed(seed.wrapping_mul(31).wrapping_add(stream));

    let (status, output, events, mut seen) = std::thread::scope(|scope| {
        scope.spawn(|| feed(stdin, &setting.input, rng(1)));
        let output = scope.spawn(|| read(stdout, rng(2)));
        let events = scope.spawn(|| read(stderr, rng(3)));
        let seen = scope.spawn(|| disturb(id, &plan, &is_over));
        let status = wait(&mut run, &plan);
        is_over.store(true, Ordering::Relaxed);
        (
            status,
            output.join().expect("no panic"),
            events.join().expect("no panic"),
            seen.join().expect("no panic"),
        )
    });
    let events = String::from_utf8_lossy(&events);
    seen.recoveries = events.matches("\"event\":\"fenced\"").count();
    let status = status?;

    // After a signal, what was delivered is a beginning of the whole.
    let (code, is_complete) = match plan.ends_after_ms {
        Some(_) if status.code() == Some(130) => (130, false),
        _ => (0, true),
    };
    if status.code() != Some(code) {
        let last: Vec<&str> = events.lines().rev().take(5).collect();
        return Err(Violation(format!("ended with {status}: {last:#?}")));
    }
    let is_right = match is_complete {
        true => output == setting.output,
        false => setting.output.starts_with(&output),
    };
    if !is_right {
        return Err(Violation(format!("other output: {} bytes", output.len())));
    }
    check_nothing_left(seed, folder.path())?;
    Ok(seen)
}

fn workers_that_are_hit_change_nothing() {
    harness::take_any_time();
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let setting = Setting::new();
    if let Some(seed) = number("ZBMD_HISTORY") {
        let seen = history(&setting, seed);
        println!("{:?}: {seen:?}", Plan::of(seed));
        seen.expect("as promised");
        return;
    }
    let first = number("ZBMD_HISTORY_FIRST").unwrap_or(0);
    let count = number("ZBMD_HISTORIES").unwrap_or(FEW);
    let begun = Instant::now();
    let mut all = Seen::default();
    let mut violations = 0;
    for seed in first..first + count {
        match history(&setting, seed) {
            Ok(seen) => all.add(seen),
            Err(violation) => {
                violations += 1;
                println!("ZBMD_HISTORY={seed} ({:?}): {violation:?}", Plan::of(seed));
            }
        }
    }
    println!(
        "{count} histories from seed {first} in {:.0} s: {all:?}",
        begun.elapsed().as_secs_f64()
    );
    assert_eq!(violations, 0, "histories that are not as promised");
    let stops = all.signals.get("stop").copied().unwrap_or(0);
    assert!(
        all.recoveries > 0 && stops > 0,
        "the histories are too quiet"
    );
    if count >= 100 {
        assert!(all.hit_before_program > 0, "no worker was hit at its start");
    }
}
