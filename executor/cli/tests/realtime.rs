//! `--realtime`: threads have the priorities that are documented, or the run says what is missing and does not start.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/src/other_processes.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
mod other_processes;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use common::case::{Case, code};
use common::{text, with_tail};
use other_processes::{children_of, threads_of};
use rustix::process::Pid;
use zbmd_ir::Value;
use zbmd_ir::response::DEADLINE;
use zbmd_ir::testing::programs;

fn case() -> Case {
    let mut program = with_tail(programs::two_devices());
    for (device, core) in program.machine.devices.iter_mut().zip(0..) {
        device.cores = vec![core];
    }
    let case = Case::new(program);
    let _ = case.input("in.f32", 1000);
    case
}

/// What the shell does before it starts the command: it gives up the rights that let anyone have real time.
const WITHOUT_RIGHTS: &str =
    "ulimit -r 0; exec setpriv --bounding-set=-sys_nice --inh-caps=-sys_nice {}";
const WITHOUT_LOCKED_MEMORY: &str =
    "ulimit -l 64; exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock {}";

/// Whether this machine lets tests have real-time priorities, and lets them give rights up.
fn has_rights(case: &Case) -> bool {
    let args = ["--realtime", "-i", "in=in.f32", "-o", "out=out.f32"];
    let attempt = case.run(&args);
    let can_drop = case.shell("exec setpriv --bounding-set=-sys_nice true", &args);
    if code(&attempt) != 0 || code(&can_drop) != 0 {
        let said = text(&attempt.stderr) + &text(&can_drop.stderr);
        eprintln!("SKIPPED: no right to real-time priorities here, or no setpriv: {said}");
        return false;
    }
    true
}

#[test]
fn what_is_missing_is_said_and_nothing_runs() {
    let case = case();
    if !has_rights(&case) {
        return;
    }
    case.write("out.f32", "as it was");
    let args = ["--realtime", "-i", "in=in.f32", "-o", "out=out.f32"];
    for (script, expected) in [
        (
            WITHOUT_RIGHTS,
            "no real-time run: the system refuses real-time priority 50",
        ),
        (WITHOUT_RIGHTS, "the limit is 0: raise it (`ulimit -r 50`"),
        (
            WITHOUT_LOCKED_MEMORY,
            "memory of at most 64 KiB may be locked",
        ),
        (
            "exec taskset -c 0 {}",
            "device cpu:1 is core 1, on which the system does not let",
        ),
    ] {
        let output = case.shell(script, &args);
        let said = text(&output.stderr);
        assert_eq!(code(&output), 6, "{said}");
        assert!(said.contains(expected), "{said}");
        assert_eq!(case.read("out.f32"), b"as it was", "{said}");
    }
}

#[test]
fn threads_have_the_priorities_of_their_roles() {
    let case = case();
    if !has_rights(&case) {
        return;
    }
    for isolation in ["threads", "processes"] {
        let args = [
            "--realtime",
            "--supervise",
            "--isolation",
            isolation,
            "-i",
            "in=-",
            "-o",
            "out=/dev/null",
        ];
        let mut run = case
            .command(&args)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("started");
        let mut input = run.stdin.take().expect("a pipe");
        input.write_all(&[0; 4096]).expect("taken");

        // All threads are there some time after the first tokens.
        let begun = Instant::now();
        let process = Pid::from_child(&run);
        let all = loop {
            let processes = children_of(process).into_iter().chain([process]);
            let threads = processes.flat_map(threads_of);
            let named = threads.map(|thread| (thread.name, thread.fifo_priority));
            let all: BTreeMap<String, Option<i32>> = named.collect();
            let workers = all.keys().filter(|name| is_worker(name)).count();
            let with_priority = all.values().flatten().count();
            if workers == 2 && with_priority >= 7 || begun.elapsed() > Duration::from_secs(60) {
                break all;
            }
            std::thread::yield_now();
        };
        drop(input);
        assert!(run.wait().expect("it ends").success());

        for (name, priority) in &all {
            let expected = match name.as_str() {
                "zbmd run" => Some(50),
                name if is_worker(name) => Some(40),
                name if name.starts_with("zbmd file") => Some(30),
                "zbmd display" => Some(20),
                name if name.starts_with("zbmd pipe") => Some(30),
                _ => None,
            };
            assert_eq!(*priority, expected, "{isolation}: {name} of {all:?}");
        }
        assert!(all.contains_key("zbmd run"), "{all:?}");
        assert_eq!(
            all.keys().filter(|name| is_worker(name)).count(),
            2,
            "{all:?}"
        );
        assert!(
            all.keys().any(|name| name.starts_with("zbmd file")),
            "{all:?}"
        );
        assert!(all.contains_key("zbmd pipe out"), "{all:?}");
    }
}

/// The threads that replay calendars, in this process or in one of their own.
fn is_worker(name: &str) -> bool {
    name.starts_with("zbmd cpu:") || name.starts_with("zbmd calendar")
}

/// A file that is played at 2,000 tokens a second, in pieces of one block.
fn play(case: &Case, extra: &[&str]) -> serde_json::Value {
    let block = case.program.plans[zbmd_ir::PlanId(0)].block;
    let input = format!("in=paced:in.f32?rate=2000&piece={block}");
    let mut args = vec!["-i", &input, "-o", "out=out.f32", "--report", "json"];
    args.extend(extra);
    let output = case.run(&args);
    let said = text(&output.stderr);
    assert_eq!(code(&output), 0, "{said}");
    serde_json::from_str(&said).expect("a report")
}

#[test]
fn a_model_s_own_deadline_is_counted_where_its_source_is_released() {
    let mut program = with_tail(programs::two_devices());
    let (sink, _) = program.graph.sinks().next().expect("a sink");
    let limit_ns = Value::Int(600_000_000_000);
    let params = &mut program.graph.actors[sink].params;
    params.insert(DEADLINE.to_owned(), limit_ns);
    let case = Case::new(program);
    let expected = case.input("in.f32", 1000);

    let report = play(&case, &[]);
    assert_eq!(case.read("out.f32"), expected);
    let deadline = &report["deadlines"][0];
    assert_eq!(deadline["sink"], "out");
    assert_eq!(deadline["limit_ns"], 600_000_000_000_u64, "{deadline}");
    assert_eq!(deadline["missed"], 0, "{deadline}");

    // Whoever runs it may say otherwise.
    let report = play(&case, &["--deadline", "out=20m"]);
    let deadline = &report["deadlines"][0];
    assert_eq!(deadline["limit_ns"], 1_200_000_000_000_u64, "{deadline}");

    // From a file, a response has no beginning.
    let args = ["-i", "in=in.f32", "-o", "out=out.f32", "--report", "json"];
    let output = case.run(&args);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&text(&output.stderr)).expect("a report");
    assert!(
        report
            .get("deadlines")
            .is_none_or(|list| list.as_array().is_none_or(Vec::is_empty))
    );
}

#[test]
fn responses_are_counted_from_the_release() {
    let case = case();
    let expected = case.input("in.f32", 1000);

    // Half a second of tokens. No response is that long, and none is shorter than a nanosecond.
    let report = play(&case, &["--deadline", "out=10m"]);
    assert_eq!(case.read("out.f32"), expected);
    let deadline = &report["deadlines"][0];
    assert_eq!(deadline["sink"], "out");
    assert_eq!(deadline["missed"], 0, "{deadline}");
    let block = case.program.plans[zbmd_ir::PlanId(0)].block;
    assert_eq!(deadline["response"]["count"], 1000 / block, "{deadline}");
    let lateness = &report["live"][0]["release_lateness"];
    assert_eq!(lateness["count"], 1000_u64.div_ceil(block), "{lateness}");
    let elapsed_ns = report["elapsed_ns"].as_u64().expect("a time");
    assert!(elapsed_ns > 300_000_000, "played in {elapsed_ns} ns");

    // A worker that is stopped for longer than the limit: its blocks are late, whenever anyone wakes.
    let stop = "Inject(at: [(\"100ms\", stop)])";
    case.write("stop.ron", stop);
    let report = play(
        &case,
        &[
            "--deadline",
            "out=1ms",
            "--isolation",
            "processes",
            "--inject",
            "stop.ron",
            "--events",
            "events.jsonl",
        ],
    );
    assert_eq!(case.read("out.f32"), expected);
    let deadline = &report["deadlines"][0];
    assert!(deadline["missed"].as_u64() > Some(0), "{deadline}");
    let events = text(&case.read("events.jsonl"));
    let missed = events
        .lines()
        .find(|line| line.contains("\"deadline_missed\""));
    assert!(
        missed.is_some_and(|line| line.contains("\"limit_ns\":1000000")),
        "{events}"
    );
    assert!(
        deadline["response"]["max_ns"].as_u64() > Some(1_000_000),
        "{deadline}"
    );
}

#[test]
fn deadlines_without_a_clock_are_refused() {
    let case = case();
    for (deadline, expected) in [
        (
            "out=1ms",
            "no source of it is released by the clock: play one with",
        ),
        (
            "aut=1ms",
            "--deadline aut: there is no sink of that name; there are: out",
        ),
        ("out=1", "write a number and a unit"),
    ] {
        let said = case.expect(
            2,
            &[
                "-i",
                "in=in.f32",
                "-o",
                "out=out.f32",
                "--deadline",
                deadline,
            ],
        );
        assert!(said.contains(expected), "{said}");
    }
    let args = [
        "-i",
        "in=paced:in.f32?rate=1000&piece=0",
        "-o",
        "out=out.f32",
    ];
    let said = case.expect(2, &args);
    assert!(
        said.contains("`piece=0` is wrong; allowed: a number of tokens from 1 on"),
        "{said}"
    );
}
