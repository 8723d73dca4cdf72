//! What a sink is given in the place of blocks that are late, and how they are counted.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::case::{Case, code};
use common::text;
use live_peers::{LIMIT, copies, live, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use zbmd_ir::response::{DEADLINE, LatePolicy, ON_MISS};
use zbmd_ir::{DType, TokenType, Value};

/// Tokens of a block, and of what the clock hands over at a time.
const BLOCK: usize = 20;
const BLOCK_BYTES: usize = 4 * BLOCK;
const BLOCKS: usize = 60;
/// A block each 10 ms.
const PACED: &str = "a=paced:a.f32?rate=2000&piece=20";
/// The block whose release wakes late, and how late.
const LATE_BLOCK: usize = 25;
const LATE_NS: u64 = 3_000_000;
const LATE_WAKE: &str = r#"Inject(late: [(source: "a", piece: 25, by: "3ms")])"#;

/// A pass-through in blocks, with a file of tokens that are all different and not 0.
fn case(model_policy: Option<LatePolicy>) -> Case {
    let mut program = copies(&[("a", TokenType::scalar(DType::F32))], BLOCK as u64);
    if let Some(policy) = model_policy {
        let (sink, _) = program.graph.sinks().next().expect("a sink");
        let params = &mut program.graph.actors[sink].params;
        params.insert(DEADLINE.to_owned(), Value::Int(2_000_000));
        params.insert(ON_MISS.to_owned(), Value::Str(policy.name().to_owned()));
    }
    let case = Case::new(program);
    case.write("a.f32", given());
    case
}

fn given() -> Vec<u8> {
    let tokens = 0..BLOCKS * BLOCK;
    tokens
        .flat_map(|index| (index as f32 + 1.0).to_le_bytes())
        .collect()
}

/// The blocks of an output, by number; `None` for zeros.
fn blocks(output: &[u8]) -> Vec<Option<usize>> {
    let given = given();
    assert_eq!(output.len() % BLOCK_BYTES, 0, "whole blocks");
    let number = |block: &[u8]| {
        let found = given.chunks(BLOCK_BYTES).position(|other| other == block);
        assert!(found.is_some() || block == [0; BLOCK_BYTES], "{block:?}");
        found
    };
    output.chunks(BLOCK_BYTES).map(number).collect()
}

/// Runs with a release that wakes late; the report.
fn run_with_late_release(case: &Case, extra: &[&str]) -> serde_json::Value {
    case.write("late.ron", LATE_WAKE);
    let mut args = vec!["-i", PACED, "-o", "a_out=out.f32", "--report", "json"];
    args.extend(["--inject", "late.ron", "--events", "events.jsonl"]);
    args.extend(extra);
    let output = case.run(&args);
    let said = text(&output.stderr);
    assert_eq!(code(&output), 0, "{said}");
    serde_json::from_str(&said).expect("a report")
}

/// The late wake-up is in all measurements, counted from when the block was due.
#[track_caller]
fn assert_measured(report: &serde_json::Value) {
    let lateness = &live(report, "a")["release_lateness"];
    assert_eq!(lateness["count"], BLOCKS, "{lateness}");
    assert!(lateness["max_ns"].as_u64() >= Some(LATE_NS), "{lateness}");
    let deadline = &report["deadlines"][0];
    let response = &deadline["response"];
    assert_eq!(response["count"], BLOCKS, "{deadline}");
    assert!(response["max_ns"].as_u64() >= Some(LATE_NS), "{deadline}");
}

/// Whether the events say that the block was late: it is in a row of late blocks that ends with a block in time.
fn is_late_by_events(case: &Case, block: u64) -> bool {
    let events = text(&case.read("events.jsonl"));
    let mut is_late = false;
    for line in events.lines() {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let number = event["block"].as_u64();
        match event["event"].as_str() {
            Some("deadline_missed") if number <= Some(block) => {
                assert!(event["response_ns"].as_u64() > Some(2_000_000), "{event}");
                assert!(number < Some(block) || event["response_ns"].as_u64() >= Some(LATE_NS));
                is_late = true;
            }
            Some("deadline_kept") if number <= Some(block) => is_late = false,
            _ => {}
        }
    }
    is_late
}

#[test]
fn a_late_block_is_not_in_the_output_where_it_is_dropped() {
    let case = case(None);
    let report = run_with_late_release(
        &case,
        &["--deadline", "a_out=2ms", "--on-miss", "a_out=drop"],
    );
    assert_measured(&report);

    let output = case.read("out.f32");
    let left: Vec<usize> = blocks(&output).into_iter().flatten().collect();
    assert!(left.windows(2).all(|pair| pair[0] < pair[1]), "{left:?}");
    assert!(!left.contains(&LATE_BLOCK), "{left:?}");
    let deadline = &report["deadlines"][0];
    assert_eq!(deadline["on_miss"], "drop");
    assert_eq!(deadline["dropped"], BLOCKS - left.len(), "{deadline}");
    assert_eq!(deadline["missed"], BLOCKS - left.len(), "{deadline}");
    assert_eq!(deadline["held"], 0, "{deadline}");
    assert!(is_late_by_events(&case, LATE_BLOCK as u64));
}

#[test]
fn the_last_block_in_time_takes_the_place_of_a_late_one_where_it_is_held() {
    let case = case(Some(LatePolicy::Hold));
    let report = run_with_late_release(&case, &[]);
    assert_measured(&report);

    let held = assert_places(&blocks(&case.read("out.f32")));
    assert!(held.contains(&LATE_BLOCK), "{held:?}");
    let deadline = &report["deadlines"][0];
    assert_eq!(deadline["on_miss"], "hold");
    assert_eq!(deadline["held"], held.len(), "{deadline}");
    assert_eq!(deadline["missed"], held.len(), "{deadline}");
    assert!(is_late_by_events(&case, LATE_BLOCK as u64));
}

/// Each block is in its place, or the last one before it that was; the places where it is not.
#[track_caller]
fn assert_places(found: &[Option<usize>]) -> Vec<usize> {
    let mut held = Vec::new();
    let mut last_in_time = None;
    for (place, block) in found.iter().enumerate() {
        if *block == Some(place) {
            last_in_time = *block;
        } else {
            assert_eq!(*block, last_in_time, "at {place} of {found:?}");
            held.push(place);
        }
    }
    assert_eq!(found.len(), BLOCKS, "{found:?}");
    held
}

#[test]
fn a_late_block_is_in_the_output_where_it_is_waited_for() {
    let case = case(Some(LatePolicy::Drop));
    let report = run_with_late_release(&case, &["--on-miss", "a_out=wait"]);
    assert_measured(&report);
    assert_eq!(case.read("out.f32"), given());
    let deadline = &report["deadlines"][0];
    assert!(deadline["missed"].as_u64() >= Some(1), "{deadline}");
    assert_eq!(
        (&deadline["dropped"], &deadline["held"]),
        (&0.into(), &0.into())
    );
    assert!(is_late_by_events(&case, LATE_BLOCK as u64));
}

#[test]
fn losses_of_workers_decide_about_no_block_twice() {
    let case = case(None);
    case.write(
        "kills.ron",
        "Inject(kinds: [kill], every: (\"80ms\", \"160ms\"))",
    );
    case.write(
        "patient.ron",
        "Supervision(intensity: 100, period: \"10min\")",
    );
    for policy in ["hold", "drop"] {
        let on_miss = format!("a_out={policy}");
        let output = case.run(&[
            "-i",
            PACED,
            "-o",
            "a_out=out.f32",
            "--report",
            "json",
            "--isolation",
            "processes",
            "--supervise=patient.ron",
            "--inject",
            "kills.ron",
            "--deadline",
            "a_out=2ms",
            "--on-miss",
            &on_miss,
        ]);
        let said = text(&output.stderr);
        assert_eq!(code(&output), 0, "{said}");
        let report: serde_json::Value =
            serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        assert!(report["recoveries"].as_u64() > Some(0), "{report}");

        let found = blocks(&case.read("out.f32"));
        let deadline = &report["deadlines"][0];
        assert_eq!(deadline["response"]["count"], BLOCKS, "{deadline}");
        if policy == "hold" {
            let held = assert_places(&found);
            assert_eq!(deadline["held"], held.len(), "{deadline}");
        } else {
            let left: Vec<usize> = found.into_iter().flatten().collect();
            assert!(left.windows(2).all(|pair| pair[0] < pair[1]), "{left:?}");
            assert_eq!(deadline["dropped"], BLOCKS - left.len(), "{deadline}");
        }
    }
}

/// A run whose output is a pipe, killed if the test fails.
struct PipedRun {
    child: Child,
}

impl Drop for PipedRun {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The worker processes of a run.
fn workers(process: u32) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("a process");
    let lists = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let numbers = lists.flat_map(|list| {
        let words: Vec<i32> = list.split_whitespace().flat_map(str::parse).collect();
        words
    });
    numbers.filter_map(Pid::from_raw).collect()
}

/// Continues processes when nothing else did in time, so that a test fails and does not hang; whether it came to that.
fn continue_after_limit(processes: Vec<Pid>) -> Arc<AtomicBool> {
    let has_expired = Arc::new(AtomicBool::new(false));
    let is_set = Arc::clone(&has_expired);
    std::thread::spawn(move || {
        std::thread::sleep(LIMIT);
        is_set.store(true, Ordering::Relaxed);
        for process in processes {
            // It may have ended long ago.
            let _ = kill_process(process, Signal::CONT);
        }
    });
    has_expired
}

#[test]
fn places_are_filled_in_time_while_nothing_comes_out() {
    let case = case(None);
    let mut run = PipedRun {
        child: case
            .command(&["-i", PACED, "-o", "a_out=-", "--isolation", "processes"])
            .args(["--deadline", "a_out=5ms", "--on-miss", "a_out=hold"])
            .args(["--report", "json", "--report-file", "report.json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started"),
    };
    let mut output = run.child.stdout.take().expect("a pipe");
    let mut given_out = vec![0; 10 * BLOCK_BYTES];
    output.read_exact(&mut given_out).expect("ten blocks");

    // The worker does nothing, and yet twenty more blocks come: only what is filled in time can.
    let workers = workers(run.child.id());
    assert!(!workers.is_empty());
    for worker in &workers {
        kill_process(*worker, Signal::STOP).expect("it is there");
    }
    let watchdog = continue_after_limit(workers.clone());
    let mut filled = vec![0; 20 * BLOCK_BYTES];
    output.read_exact(&mut filled).expect("twenty blocks");
    assert!(
        !watchdog.load(Ordering::Relaxed),
        "they came from the worker"
    );
    for worker in &workers {
        kill_process(*worker, Signal::CONT).expect("it is there");
    }

    given_out.extend(filled);
    output.read_to_end(&mut given_out).expect("the rest");
    assert!(run.child.wait().expect("it ends").success());
    let held = assert_places(&blocks(&given_out));
    let report = case.read("report.json");
    let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
    let deadline = &report["deadlines"][0];
    assert_eq!(deadline["held"], held.len(), "{deadline}");
    assert_eq!(deadline["missed"], held.len(), "{deadline}");
    assert_eq!(deadline["response"]["count"], BLOCKS, "{deadline}");
    // Some blocks were under way when the worker was stopped.
    assert!(held.len() >= 10, "{held:?}");
}

#[test]
fn a_run_that_is_on_shows_how_its_deadlines_are_kept() {
    let case = case(None);
    let tokens: Vec<u8> = vec![0; 4 * 2000 * 60];
    case.write("a.f32", tokens);
    let mut run = PipedRun {
        child: case
            .command(&["-i", PACED, "-o", "a_out=/dev/null", "--quiet"])
            .args(["--deadline", "a_out=1h", "--on-miss", "a_out=hold"])
            .stdin(Stdio::null())
            .spawn()
            .expect("started"),
    };
    let pid = run.child.id().to_string();
    let top = |format: &str| {
        let output = Command::new(common::runner())
            .args(["top", &pid, "--once", "--format", format])
            .output()
            .expect("started");
        text(&output.stdout)
    };

    wait_until("responses are counted", || {
        let page: serde_json::Value = serde_json::from_str(&top("json")).unwrap_or_default();
        let deadline = &page["deadlines"][0];
        let release = &page["releases"][0];
        let is_counted = deadline["response"]["count"].as_u64() >= Some(5)
            && release["lateness"]["count"].as_u64() >= Some(5);
        if is_counted {
            assert_eq!(
                (&deadline["sink"], &release["source"]),
                (&"a_out".into(), &"a".into())
            );
            assert_eq!(deadline["limit_ns"], 3_600_000_000_000_u64, "{deadline}");
            assert_eq!(deadline["on_miss"], "hold", "{deadline}");
            assert_eq!(deadline["missed"], 0, "{deadline}");
            assert!(
                deadline["response"]["p99_ns"].as_u64() > Some(0),
                "{deadline}"
            );
        }
        is_counted
    });
    let screen = top("text");
    assert!(screen.contains("  deadline a_out"), "{screen}");
    assert!(screen.contains("  release a "), "{screen}");
    run.child.kill().expect("it is on");
}

#[test]
fn policies_that_make_no_sense_are_refused() {
    let case = case(None);
    case.write("late.ron", LATE_WAKE);
    let file = "a=a.f32";
    let output = "a_out=out.f32";
    let recording = "a_out=out.sigmf-meta";
    let limit = ["--deadline", "a_out=1ms"];
    for (input, output, rest, expected) in [
        (
            PACED,
            output,
            &["--on-miss", "a_out=drop"][..],
            "the sink has no deadline",
        ),
        (
            PACED,
            output,
            &["--on-miss", "b=drop"],
            "there is no sink of that name; there are: a_out",
        ),
        (
            PACED,
            output,
            &["--on-miss", "a_out=skip"],
            "write it as SINK=wait, SINK=drop, SINK=hold or SINK=mode:NAME",
        ),
        (
            PACED,
            output,
            &["--on-miss", "a_out=drop", "--on-miss", "a_out=hold"],
            "--on-miss a_out: is given twice",
        ),
        (
            file,
            output,
            &limit,
            "no source of it is released by the clock",
        ),
        (
            PACED,
            recording,
            &["--deadline", "a_out=1ms", "--on-miss", "a_out=drop"],
            "is a recording, whose samples keep their places",
        ),
        (
            file,
            output,
            &["--inject", "late.ron"],
            "source `a` is not released by the clock, so that it cannot wake late",
        ),
    ] {
        let args = [&["-i", input, "-o", output][..], rest].concat();
        let said = case.expect(2, &args);
        assert!(said.contains(expected), "{rest:?}: {said}");
    }

    // A bundle may be somebody else's.
    let mut program = case.program.clone();
    let (sink, _) = program.graph.sinks().next().expect("a sink");
    let params = &mut program.graph.actors[sink].params;
    params.insert(ON_MISS.to_owned(), Value::Str("skip".to_owned()));
    let case = Case::new(program);
    case.write("a.f32", given());
    let said = case.expect(5, &["-i", PACED, "-o", output]);
    assert!(
        said.contains("sink `a_out` has `on_miss: skip`; allowed: wait, drop, hold"),
        "{said}"
    );
}
