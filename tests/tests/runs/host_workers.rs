//! Workers of an agent's host: those that get nowhere while the agent itself is well are given up, and the run goes on with the output
//! of one host; those whose parameters are set change them where workers of the run's own host do; and what they do is in a trace.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Signal;

use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_str, machine};
use zbmd_executor::supervise::What;
use zbmd_executor::{Engine, Isolation, RunOptions, SetError, When};
use zbmd_ir::Device;
use zbmd_ir::trace::Trace;
use zbmd_tests::agents::TWO_HOSTS;
use zbmd_tests::harness::Test;
use zbmd_tests::losses::{Feed, live, live_with, options};
use zbmd_tests::step_actor::{StepPorts, register};
use zbmd_wire::error::{HandshakeError, LinkError, Refusal};
use zbmd_wire::link_speed::LinkSpeedClient;

use super::hosts::{
    LONG_LEASE, host_options, start_agent, start_agent_at, start_agent_in, token_file,
};

pub(super) const TESTS: &[Test] = &[
    ("kernels_that_never_end", kernels_that_never_end),
    (
        "an_agent_that_serves_a_run_is_not_measured",
        an_agent_that_serves_a_run_is_not_measured,
    ),
    (
        "parameters_change_together_on_both_hosts",
        parameters_change_together_on_both_hosts,
    ),
    (
        "parameters_change_together_in_processes",
        parameters_change_together_in_processes,
    ),
    (
        "parameters_outlive_a_host_that_is_lost",
        parameters_outlive_a_host_that_is_lost,
    ),
    (
        "a_trace_has_what_both_hosts_do",
        a_trace_has_what_both_hosts_do,
    ),
];

/// In the environment of an agent: the file whose being there makes the next firing of the actor below never end.
const STALL_FILE: &str = "ZBMD_TEST_STALL";
const SPIN: &str = "spin";
const PROCESSES: Isolation = Isolation::Processes { program: None };

const MODEL: &str = r#"Model(
        name: "stalling",
        sources: { "in": Stream(dtype: u8, shape: [4]) },
        actors: { "sum": Custom("stalling_sum") },
        channels: [(from: "in", to: ["sum"]), (from: "sum", to: ["out"])],
        sinks: { "out": Stream() },
        pins: { "in": "left:0", "sum": "right:0", "out": "left:0" },
    )"#;

/// Adds running sums, whose firings may be made never to end.
pub(super) fn add_actor(registry: &mut Registry) {
    let port = |name: &str| vec![(name.to_owned(), 4)];
    let ports = StepPorts {
        inputs: port("x"),
        outputs: port("y"),
        state: vec![0; 4],
    };
    register(registry, "stalling_sum", ports, |mut step| {
        stall_if_asked();
        for (sum, byte) in step.state.iter_mut().zip(step.inputs[0]) {
            *sum = sum.wrapping_mul(31).wrapping_add(*byte);
        }
        step.outputs[0].copy_from_slice(step.state);
    });
}

fn stall_if_asked() {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let file = FILE.get_or_init(|| std::env::var_os(STALL_FILE).map(PathBuf::from));
    let Some(how) = file
        .as_ref()
        .and_then(|file| std::fs::read_to_string(file).ok())
    else {
        return;
    };
    let _ = file.as_ref().map(std::fs::remove_file);
    loop {
        match how.as_str() {
            SPIN => std::hint::spin_loop(),
            _ => std::thread::sleep(Duration::from_secs(1)),
        }
    }
}

/// Where `a * b` is 1, tokens come out as they went in: powers of two lose nothing.
const PAIRED: &str = r#"Model(
        name: "paired",
        params: { "a": Live(1.0, min: 0.0, max: 1024.0), "b": Live(1.0, min: 0.0, max: 1024.0) },
        sources: { "in": Stream(dtype: f32) },
        actors: { "first": Gain($a), "last": Gain($b) },
        channels: [(from: "in", to: ["first"]), (from: "first", to: ["last"]), (from: "last", to: ["out"])],
        sinks: { "out": Stream() },
        pins: { "in": "left:0", "first": "left:0", "last": "right:0", "out": "left:0" },
    )"#;
const TOKENS: usize = 96_000;
/// The first token where `a * b` is 4.
const LAST_CHANGE: usize = 90_000;
/// Tokens from one change to the next, and of a block.
const PIECE: usize = 48;
const BLOCK: u64 = 16;
/// More than any queue of changes has places for.
const CHANGES: usize = 400;

fn engine(folder: &Path, model: &str) -> Engine {
    let machine = folder.join("cluster.ron");
    std::fs::write(&machine, TWO_HOSTS).expect("written");
    let registry = super::registry();
    let options = CompileOptions {
        registry: registry.clone(),
        machine: MachineChoice::File(machine),
        contingencies: Losses::None,
        // Workers learn of changes between blocks.
        block: Some(BLOCK),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", model, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    Engine::new(compiled.program, &registry).expect("an engine")
}

fn an_agent_that_serves_a_run_is_not_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path(), MODEL);
    let agent = start_agent(&token_file(folder.path()));
    let options = host_options(&engine, &agent, LONG_LEASE);
    let credentials = options
        .hosts
        .as_ref()
        .map(|hosts| hosts.credentials.clone());
    let credentials = credentials.expect("several hosts");
    let connect = || LinkSpeedClient::dial(agent.address, &credentials);
    let mut client = connect().expect("no run yet");
    let devices = client.description(false).expect("told");
    let devices: Vec<Device> = postcard::from_bytes(&devices).expect("devices");
    assert_eq!(devices, machine::detect().devices.raw);
    drop(client);

    let feed = Feed {
        seed: 3,
        iterations: 40_000,
        per_s: Some(80_000.0),
    };
    let told = live_with(&engine, feed, options, |_, _| {
        std::thread::sleep(Duration::from_millis(200));
        let error = connect().expect_err("it serves a run");
        let is_busy = matches!(
            error,
            LinkError::Handshake(HandshakeError::Refused {
                why: Refusal::Busy,
                ..
            })
        );
        assert!(is_busy, "{error}");
    });
    told.outcome.expect("it runs");
}

/// The thread is given up, and another one takes its place, whether the kernel needs a core or sleeps; a process is killed.
fn kernels_that_never_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path(), MODEL);
    let feed = Feed {
        seed: 3,
        iterations: 40_000,
        per_s: None,
    };
    let expected = live(&engine, feed, options(Isolation::Threads));
    expected.outcome.as_ref().expect("it runs");
    let token_file = token_file(folder.path());
    for (how, isolation) in [
        (SPIN, Isolation::Threads),
        ("sleep", Isolation::Threads),
        (SPIN, PROCESSES),
    ] {
        let stall = folder.path().join("stall");
        let agent = start_agent_in(&token_file, &[(STALL_FILE, stall.as_os_str())]);
        let options = RunOptions {
            isolation,
            ..host_options(&engine, &agent, LONG_LEASE)
        };
        let paced = Feed {
            per_s: Some(40_000.0),
            ..feed
        };
        let told = live_with(&engine, paced, options, |_, is_over| {
            std::thread::sleep(Duration::from_millis(300));
            std::fs::write(&stall, how).expect("written");
            while stall.exists() && !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });

        let events = &told.events;
        assert!(
            told.outcome.is_ok(),
            "{how}: {:?}: {events:?}",
            told.outcome
        );
        assert!(!stall.exists(), "{how}: no kernel was at work");
        let hung = events
            .iter()
            .any(|event| matches!(event.what, What::Overdue { .. }));
        assert!(hung, "{how}: {events:?}");
        assert_eq!(told.sinks, expected.sinks, "{how}");
    }
}

/// Both hosts are this computer, so that their clocks are the same: the times of the agent's workers are put on the run's by asking,
/// and lie where they must.
fn a_trace_has_what_both_hosts_do() {
    for isolation in [Isolation::Threads, PROCESSES] {
        check_trace(isolation);
    }
}

fn check_trace(isolation: Isolation) {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path(), PAIRED);
    let agent = start_agent(&token_file(folder.path()));
    let path = folder.path().join("run.trace");
    let options = RunOptions {
        isolation,
        trace: Some(path.clone()),
        profile: true,
        ..host_options(&engine, &agent, LONG_LEASE)
    };
    let feed = Feed {
        seed: 3,
        iterations: 20_000,
        per_s: Some(50_000.0),
    };
    let told = live(&engine, feed, options);
    let report = told.outcome.expect("it runs").report;
    let dropped = report.trace.as_ref().map(|trace| trace.dropped_periods);
    assert_eq!(dropped, Some(0), "{:?}", report.trace);

    let bytes = std::fs::read(&path).expect("written");
    let trace = Trace::read(&bytes).expect("a trace");
    let program = engine.program();
    let mut periods = 0;
    for epoch in &trace.epochs {
        let plan = &program.plans[epoch.begin.plan];
        let lane_of = |name: &str| {
            let mut lanes = plan.calendars.iter().zip(&epoch.lanes);
            let found =
                lanes.find(|(calendar, _)| program.machine.devices[calendar.device].name == name);
            &found.expect("a calendar").1.periods
        };
        let (left, right) = (lane_of("left:0"), lane_of("right:0"));
        assert_eq!(left.len(), right.len());
        periods += right.len();
        let numbers = left.iter().zip(right);
        assert!(
            numbers
                .into_iter()
                .all(|(left, right)| left.number == right.number)
        );
        // While a pipeline fills and empties, some devices have nothing to do.
        let idle = right.iter().filter(|period| period.records.is_empty());
        assert!(idle.count() <= plan.stages as usize, "slots are recorded");
        let starts = right.iter().map(|period| period.start_ns);
        assert!(starts.is_sorted());
        // Whatever the error of the clocks is, a tenth of a second is more.
        let slack_ns = 100_000_000;
        let (first, last) = (&right[0], &right[right.len() - 1]);
        assert!(first.start_ns + slack_ns > left[0].start_ns);
        assert!(last.start_ns < epoch.end_ns.expect("complete") + slack_ns);
    }
    assert!(periods as u64 >= feed.iterations / BLOCK, "{periods}");

    let calls = |actor: &str| {
        let mut profiles = report.profile.iter();
        profiles
            .find(|profile| profile.actor.contains(actor))
            .map_or(0, |profile| profile.calls)
    };
    assert!(calls("last") > 0, "{:?}", report.profile);
    assert_eq!(calls("first"), calls("last"));
}

fn parameters_change_together_on_both_hosts() {
    change_parameters(Isolation::Threads, None);
}

fn parameters_change_together_in_processes() {
    change_parameters(PROCESSES, None);
}

/// Its agent is killed in the middle, and started again where it was.
fn parameters_outlive_a_host_that_is_lost() {
    change_parameters(Isolation::Threads, Some(CHANGES / 2));
}

/// Sets both parameters again and again while tokens flow; if the agent is to be lost, it is after so many changes.
fn change_parameters(isolation: Isolation, lost_after: Option<usize>) {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path(), PAIRED);
    let token_file = token_file(folder.path());
    let mut agent = start_agent(&token_file);
    let options = RunOptions {
        isolation,
        ..host_options(&engine, &agent, LONG_LEASE)
    };
    let mut session = engine.start(options).expect("a session");
    let handle = session.parameters();
    let set = |a: f64, b: f64, when| handle.set(&[("a", &[a]), ("b", &[b])], when);
    let at = When::Token {
        source: "in",
        index: LAST_CHANGE as u64,
    };
    set(4.0, 1.0, at).expect("long before");

    let mut source = session.source("in").expect("a source");
    let mut sink = session.sink("out").expect("a sink");
    let given = std::thread::spawn(move || {
        let mut all: Vec<u8> = Vec::new();
        let mut part = vec![0; 4 * 4096];
        while let Ok(tokens @ 1..) = sink.pull_some_bytes(&mut part) {
            all.extend(&part[..4 * tokens as usize]);
        }
        all
    });

    // Changes at the next block come before the one that was set first, as long as that lies further on.
    let (mut pushed, mut changes) = (0, 0);
    let mut lost_after_changes = lost_after;
    while changes < CHANGES {
        let power = f64::from(changes as u32 % 10 + 1).exp2();
        match set(power, 1.0 / power, When::NextBlock) {
            Ok(_) => changes += 1,
            Err(SetError::Full) => {}
            Err(error) => panic!("{error}"),
        }
        if pushed + 2 * PIECE < LAST_CHANGE {
            source.push(&[1.0f32; PIECE]).expect("taken");
            pushed += PIECE;
        }
        std::thread::sleep(Duration::from_micros(500));
        if lost_after_changes
            .take_if(|after| *after == changes)
            .is_some()
        {
            let address = agent.address;
            agent.signal(Signal::KILL);
            agent = start_agent_at(&token_file, address);
        }
    }
    let rest = vec![1.0f32; TOKENS - pushed];
    source.push(&rest).expect("taken");
    drop(source);

    let outcome = session.join().expect("it runs");
    let recoveries = outcome.report.recoveries;
    assert_eq!(recoveries > 0, lost_after.is_some(), "{recoveries}");
    let given = given.join().expect("no panic");
    assert_eq!(given.len(), 4 * TOKENS);
    for (token, bytes) in given.as_chunks::<4>().0.iter().enumerate() {
        let expected = if token < LAST_CHANGE { 1.0 } else { 4.0 };
        assert_eq!(f32::from_le_bytes(*bytes), expected, "token {token}");
    }
}
