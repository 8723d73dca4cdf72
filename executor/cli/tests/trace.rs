//! What `--trace` and `--profile` record of real runs, and what `zbmd-run top` sees of one, in threads and processes,
//! with workers killed.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use common::{inputs, runner, text, verified, with_tail};
use serde_json::Value;
use zbmd_ir::testing::programs;
use zbmd_ir::trace::{OTHER, Trace, TraceError};
use zbmd_ir::{Program, bundle};

struct Case {
    folder: tempfile::TempDir,
    program: Program,
}

impl Case {
    /// A bundle and an input of so many tokens.
    fn new(program: Program, tokens: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let case = Self { folder, program };
        bundle::write(&case.path("model.zbmd"), &verified(case.program.clone())).expect("written");
        let given = inputs(&case.program, tokens);
        std::fs::write(case.path("in.f32"), &given["in"]).expect("written");
        case
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The pages of these runs lie in a folder of the test's own.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(runner());
        command
            .current_dir(self.folder.path())
            .env("XDG_RUNTIME_DIR", self.folder.path());
        command.args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let files = ["model.zbmd", "-i", "in=in.f32", "-o", "out=out.bin"];
        self.command(&[&files, args].concat())
            .output()
            .expect("started")
    }

    fn trace(&self, name: &str) -> Result<(Trace, usize), TraceError> {
        Trace::of_program(
            &std::fs::read(self.path(name)).expect("written"),
            &self.program,
        )
    }
}

/// Starts before ends, one thing at a time, nothing before its period; how many records.
fn check_times(trace: &Trace) -> u64 {
    let mut records = 0;
    for epoch in &trace.epochs {
        for lane in &epoch.lanes {
            let mut now_ns = epoch.begin.at_ns;
            for period in &lane.periods {
                assert!(
                    period.start_ns >= now_ns,
                    "a period begins when the one before is over"
                );
                now_ns = period.start_ns;
                for record in &period.records {
                    assert_eq!(
                        record.start_ns, now_ns,
                        "a slot begins where the one before ended"
                    );
                    assert!(record.end_ns >= record.start_ns);
                    now_ns = record.end_ns;
                    records += 1;
                }
            }
            // Where the end is missing, so are the last pairs of both clocks; and workers learn late of a fence.
            let is_fenced = trace.events.iter().any(|e| e.name == "fence");
            let end_ns = epoch.end_ns.filter(|_| trace.is_complete && !is_fenced);
            assert!(end_ns.is_none_or(|end_ns| now_ns <= end_ns + 1_000));
        }
    }
    records
}

#[test]
fn every_slot_of_every_period_is_there_once_and_in_order() {
    let all = [
        programs::chain(),
        programs::pipeline(),
        programs::two_devices(),
        programs::round_trip(),
        programs::window(),
    ];
    for program in all {
        let case = Case::new(with_tail(program), 1_003);
        for isolation in ["threads", "processes"] {
            let args = [
                "--trace",
                "run.trace",
                "--isolation",
                isolation,
                "--report-file",
                "r.json",
            ];
            let output = case.run(&args);
            assert!(output.status.success(), "{}", text(&output.stderr));
            // That its slots are those of the calendars, in order, is checked here.
            let (trace, others) = case.trace("run.trace").expect("a trace of this bundle");
            assert!(trace.is_complete && others == 0);
            check_times(&trace);
            let report = std::fs::read(case.path("r.json")).expect("written");
            let report: Value = serde_json::from_slice(&report).expect("JSON");
            assert_eq!(report["trace"]["dropped_periods"], 0);
            assert_eq!(report["epochs"], trace.epochs.len() as u64);
            for epoch in &trace.epochs {
                let plan = &case.program.plans[epoch.begin.plan];
                let plans = report["plans"].as_array().expect("plans");
                let told = plans.iter().find(|p| p["name"] == plan.name.as_str());
                let blocks = told.map_or(0, |p| p["blocks"].as_u64().expect("a number"));
                let periods = if blocks > 0 {
                    blocks + u64::from(plan.stages) - 1
                } else {
                    0
                };
                for lane in &epoch.lanes {
                    let numbers: Vec<u64> = lane.periods.iter().map(|p| p.number).collect();
                    assert_eq!(numbers, (0..periods).collect::<Vec<u64>>(), "{isolation}");
                }
            }
        }
    }
}

#[test]
fn a_trace_of_another_bundle_is_refused() {
    let case = Case::new(programs::chain(), 100);
    assert!(case.run(&["--trace", "run.trace"]).status.success());
    let bytes = std::fs::read(case.path("run.trace")).expect("written");
    let error = Trace::of_program(&bytes, &programs::window()).expect_err("another model");
    assert!(error.to_string().contains("of a run of `chain`"), "{error}");
    let mut other = case.program.clone();
    other.plans[zbmd_ir::PlanId(0)].period_ns += 1;
    Trace::of_program(&bytes, &other).expect_err("another timetable");
    // Cut off anywhere it is a trace that goes as far, or none; never a panic.
    for cut in 0..bytes.len() {
        if let Ok((trace, _)) = Trace::of_program(&bytes[..cut], &case.program) {
            assert!(!trace.is_complete, "cut at {cut}");
            check_times(&trace);
        }
    }
    let mut wrong = bytes.clone();
    for at in 0..bytes.len() {
        wrong[at] ^= 0x41;
        let _ = Trace::of_program(&wrong, &case.program);
        wrong[at] ^= 0x41;
    }
}

#[test]
fn a_file_that_cannot_be_made_is_an_error_before_the_run() {
    let case = Case::new(programs::chain(), 100);
    let output = case.run(&["--trace", "nowhere/run.trace"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stderr).contains("nowhere/run.trace: No such file"));
    assert_eq!(case.run(&["--trace", "-"]).status.code(), Some(2));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_cuts_the_trace_off_and_not_the_run() {
    let case = Case::new(programs::chain(), 1_000);
    let output = case.run(&["--trace", "/dev/full"]);
    assert_eq!(output.status.code(), Some(4));
    let case = Case::new(programs::chain(), 1_000);
    assert!(case.run(&[]).status.success());
}

#[test]
fn profiles_count_every_call() {
    let case = Case::new(with_tail(programs::two_devices()), 1_003);
    let output = case.run(&["--profile", "--report-file", "r.json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = std::fs::read(case.path("r.json")).expect("written");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    let profile = report["profile"].as_array().expect("a profile");
    let names: Vec<&str> = profile.iter().filter_map(|p| p["actor"].as_str()).collect();
    let mut actors: Vec<&str> = case
        .program
        .graph
        .actors
        .iter()
        .map(|a| a.name.as_str())
        .collect();
    actors.sort_unstable();
    assert_eq!(names, actors);
    for line in profile {
        let n = |key: &str| line[key].as_u64().expect("a number");
        assert!(
            n("p50_ns") <= n("p99_ns") && n("p99_ns") <= n("max_ns"),
            "{line}"
        );
        assert!(
            n("calls") > 0 && line["planned_ns"].as_f64() > Some(0.0),
            "{line}"
        );
    }
    let output = case.run(&["--profile"]);
    assert!(
        text(&output.stderr).contains("measured/planned"),
        "{}",
        text(&output.stderr)
    );
}

#[cfg(target_os = "linux")]
#[test]
fn losses_and_recoveries_are_in_the_trace() {
    let case = Case::new(with_tail(programs::spare()), 400_000);
    // However slow the computer, the supervisor does not give up.
    let hardy = r#"Supervision(intensity: 1000000, period: "60s", backoff: (base: "1ms", longest: "5ms"),
        breaker: (failures: 1000000), futile: 1000)"#;
    std::fs::write(case.path("hardy.ron"), hardy).expect("written");
    let mut recovered = false;
    for seed in 0..20 {
        let seed = seed.to_string();
        let args = [
            "--trace",
            "run.trace",
            "--isolation",
            "processes",
            "--inject",
            &seed,
            "--supervise=hardy.ron",
        ];
        let output = case.run(&args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let (trace, _) = case.trace("run.trace").expect("a trace of this bundle");
        assert!(trace.is_complete);
        assert!(check_times(&trace) > 0);
        for epoch in &trace.epochs {
            for lane in &epoch.lanes {
                let numbers: Vec<u64> = lane.periods.iter().map(|p| p.number).collect();
                assert!(numbers.is_sorted_by(|a, b| a < b), "no period twice");
                // What is missing was counted; a worker that was killed may have taken its last count along.
                let last = numbers.last().map_or(0, |last| last + 1);
                assert!(numbers.len() as u64 + lane.dropped >= last.min(1));
            }
        }
        let names: Vec<&str> = trace.events.iter().map(|e| e.name.as_str()).collect();
        assert!(
            names.contains(&"opened") && names.contains(&"begin"),
            "{names:?}"
        );
        assert!(trace.events.is_sorted_by_key(|e| e.at_ns) || names.contains(&"recovered"));
        if trace.epochs.len() > 1 && names.contains(&"lost") && names.contains(&"recovered") {
            recovered = true;
            break;
        }
    }
    assert!(recovered, "no worker was killed in 20 runs");
}

/// A run whose input stays open.
fn open_run(case: &Case) -> (Child, std::process::ChildStdin) {
    let mut child = case
        .command(&["model.zbmd", "-i", "in=-", "-o", "out=-", "--quiet"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let stdin = child.stdin.take().expect("piped");
    (child, stdin)
}

fn top(case: &Case, args: &[&str]) -> Output {
    case.command(&[&["top"], args].concat())
        .output()
        .expect("started")
}

#[cfg(target_os = "linux")]
#[test]
fn top_shows_a_run_that_is_on() {
    let case = Case::new(programs::two_devices(), 100);
    let none = top(&case, &["--once"]);
    assert_eq!(
        (none.status.code(), text(&none.stderr)),
        (Some(8), "zbmd-run: no run is on\n".into())
    );
    let (mut child, mut stdin) = open_run(&case);
    let mut stdout = child.stdout.take().expect("piped");
    let given = std::fs::read(case.path("in.f32")).expect("written");
    stdin.write_all(&given).expect("written");
    let mut out = [0; 16];
    stdout.read_exact(&mut out).expect("tokens");
    let pid = child.id().to_string();
    // The page is written a few times a second.
    let live = loop {
        let shown = top(&case, &[&pid, "--once", "--format", "json"]);
        if shown.status.code() == Some(8) {
            continue;
        }
        assert!(shown.status.success(), "{}", text(&shown.stderr));
        let live: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        // The other worker may begin later.
        let is_on = |d: &Value| d["state"] != "starting";
        let all_on = live["devices"]
            .as_array()
            .is_some_and(|all| all.iter().all(is_on));
        if all_on && live["iterations"].as_u64() > Some(0) {
            break live;
        }
    };
    assert_eq!(
        (&live["model"], &live["pid"]),
        (&"two_devices".into(), &child.id().into())
    );
    assert_eq!(
        (&live["epoch"], &live["recoveries"]),
        (&0.into(), &0.into())
    );
    let states: Vec<&str> = live["devices"]
        .as_array()
        .expect("devices")
        .iter()
        .filter_map(|d| d["state"].as_str())
        .collect();
    assert_eq!(states.len(), 2);
    assert!(
        states.iter().all(|s| ["waiting", "working"].contains(s)),
        "{states:?}"
    );
    assert_eq!(
        live["rings"].as_array().map(Vec::len),
        Some(case.program.plans[zbmd_ir::PlanId(0)].rings.len())
    );
    assert!(live["queues"][0]["tokens"].as_u64() > Some(0));
    let shown = top(&case, &["--once"]);
    assert!(text(&shown.stdout).starts_with(&format!("two_devices   process {pid}")));
    drop(stdin);
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).expect("ends");
    assert!(child.wait().expect("ends").success());
    let over = top(&case, &[&pid, "--once"]);
    assert_eq!(over.status.code(), Some(8));
    assert!(text(&over.stderr).contains(&format!("no run with process {pid}")));
}

#[cfg(target_os = "linux")]
#[test]
fn top_ends_with_the_run_and_tells_of_a_dead_one() {
    let case = Case::new(programs::chain(), 100);
    let wait_for = |pid: &str| while !top(&case, &[pid, "--once"]).status.success() {};
    let (mut child, stdin) = open_run(&case);
    let pid = child.id().to_string();
    wait_for(&pid);
    let mut watcher = case
        .command(&["top", &pid, "--every", "10ms"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    // The run goes on until it has been seen.
    let mut shown = watcher.stdout.take().expect("piped");
    shown.read_exact(&mut [0]).expect("something is shown");
    drop(stdin);
    assert!(child.wait().expect("ends").success());
    shown.read_to_end(&mut Vec::new()).expect("ends");
    assert_eq!(watcher.wait().expect("ends").code(), Some(0));

    let (mut child, _stdin) = open_run(&case);
    let pid = child.id().to_string();
    wait_for(&pid);
    child.kill().expect("killed");
    child.wait().expect("gone");
    let dead = top(&case, &[&pid]);
    assert_eq!(dead.status.code(), Some(8));
    assert!(
        text(&dead.stderr).contains("is dead: it was killed"),
        "{}",
        text(&dead.stderr)
    );
    let again = top(&case, &[&pid]);
    assert!(
        text(&again.stderr).contains("no run with process"),
        "its page was removed"
    );
    let usage = top(&case, &["x"]);
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn records_that_are_no_slots_are_marked() {
    // Supervised runs save tokens at borders, which takes time in no slot.
    let case = Case::new(with_tail(programs::state()), 10_000);
    let output = case.run(&["--trace", "run.trace", "--supervise"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (trace, _) = case.trace("run.trace").expect("a trace of this bundle");
    let records = trace
        .epochs
        .iter()
        .flat_map(|e| &e.lanes)
        .flat_map(|l| &l.periods);
    assert!(records.flat_map(|p| &p.records).any(|r| r.slot == OTHER));
    check_times(&trace);
}

#[cfg(target_os = "linux")]
#[test]
fn examples_of_help_texts_run() {
    let case = Case::new(with_tail(programs::chain()), 100);
    let mut ran = 0;
    for help in [&["--help"][..], &["top", "--help"]] {
        let help = case.command(help).output().expect("started");
        let help = text(&help.stdout);
        for line in help.lines().filter_map(|l| l.strip_prefix("  zbmd-run ")) {
            // Remarks stand two blanks behind.
            let words = line.split("  ").next().unwrap_or(line).split(' ');
            // Need live parameters and several hosts: the tests of these have them.
            if line.starts_with("set") || line.contains("--virtual-cluster") {
                continue;
            }
            if !line.starts_with("top") {
                let output = case
                    .command(&words.collect::<Vec<_>>())
                    .output()
                    .expect("started");
                assert!(output.status.success(), "{line}: {}", text(&output.stderr));
                ran += 1;
                continue;
            }
            let (mut run, stdin) = open_run(&case);
            let pid = run.id().to_string();
            while !top(&case, &[&pid, "--once"]).status.success() {}
            let words: Vec<&str> = words.map(|w| if w == "4711" { &pid } else { w }).collect();
            let mut watcher = case
                .command(&words)
                .stdout(Stdio::piped())
                .spawn()
                .expect("started");
            // The run goes on until it has been seen.
            let mut shown = watcher.stdout.take().expect("piped");
            shown.read_exact(&mut [0]).expect("something is shown");
            drop(stdin);
            shown.read_to_end(&mut Vec::new()).expect("ends");
            let output = watcher.wait_with_output().expect("ends");
            assert!(run.wait().expect("ends").success());
            assert_eq!(output.status.code(), Some(0), "{line}");
            ran += 1;
        }
    }
    assert_eq!(ran, 11);
}
