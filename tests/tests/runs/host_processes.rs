//! Workers that are processes of their own on both hosts of a run: they are started, lost, stopped and replaced one by one, on the
//! agent's host too, and outputs are those of a run on one host.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_str};
use zbmd_executor::supervise::What;
use zbmd_executor::{Engine, Isolation, Protection, RunOptions, Tls};
use zbmd_tests::agents::AgentProcess;
use zbmd_tests::harness::Test;
use zbmd_tests::losses::{Feed, Told, live, live_with, options};
use zbmd_tests::other_processes::{nursery_of, workers_of};
use zbmd_tests::sample::cases;
use zbmd_wire::testing::{Authority, Flaw};

use super::hosts::{
    LONG_LEASE, engine, host_options, start_agent, start_agent_with, tls_arguments, token_file,
};

pub(super) const TESTS: &[Test] = &[
    ("a_process_for_each_device", a_process_for_each_device),
    ("in_tls", in_tls),
    ("killed_workers", killed_workers),
    ("a_stopped_worker", a_stopped_worker),
    ("a_standby_takes_over", a_standby_takes_over),
    ("workers_end_with_their_agent", workers_end_with_their_agent),
    ("many_workers_are_forked", many_workers_are_forked),
    ("a_lost_nursery", a_lost_nursery),
    ("a_stopped_nursery", a_stopped_nursery),
];

/// Devices of the agent's host.
const AGENT_DEVICES: usize = 2;
const LIMIT: Duration = Duration::from_secs(20);
/// Long enough to lose workers in, and to start others.
const FEED: Feed = Feed {
    seed: 5,
    iterations: 1_200_000,
    per_s: Some(400_000.0),
};
const UNPACED: Feed = Feed {
    per_s: None,
    ..FEED
};

/// Devices of each of two hosts, and how many tokens go through all of them.
const MANY: usize = 9;
const MANY_FEED: Feed = Feed {
    seed: 7,
    iterations: 200_000,
    per_s: Some(100_000.0),
};

/// A chain through all devices of two hosts with many.
fn many_devices(folder: &Path) -> Engine {
    let names =
        |host: &str| -> Vec<String> { (0..MANY).map(|index| format!("{host}:{index}")).collect() };
    let (left, right) = (names("left"), names("right"));
    let quoted = |names: &[String]| {
        let quoted = names.iter().map(|name| format!("{name:?}"));
        quoted.collect::<Vec<_>>().join(", ")
    };
    let devices = left.iter().chain(&right);
    let devices = devices.map(|name| format!("Device(name: {name:?}, backend: cpu)"));
    let machine = format!(
        r#"Machine(
            devices: [{}],
            hosts: {{ "left": [{}], "right": [{}] }},
            links: [
                Link(from: "left", to: "left"), Link(from: "right", to: "right"),
                Link(from: "left", to: "right", both: true, bandwidth: "10GB/s", latency: "1us"),
            ],
        )"#,
        devices.collect::<Vec<_>>().join(", "),
        quoted(&left),
        quoted(&right),
    );
    let machine_file = folder.join("many.ron");
    std::fs::write(&machine_file, machine).expect("written");

    // Forth and back, so that each token goes from host to host again and again.
    let places: Vec<&String> = (0..MANY)
        .flat_map(|index| [&right[index], &left[index]])
        .collect();
    let (mut actors, mut channels, mut pins) = (String::new(), String::new(), String::new());
    let mut before = "in".to_owned();
    for (index, place) in places.iter().enumerate() {
        let actor = format!("g{index}");
        actors += &format!(
            "{actor:?}: Gain({}), ",
            if index % 2 == 0 { 2.0 } else { 0.5 }
        );
        channels += &format!("(from: {before:?}, to: [{actor:?}]), ");
        pins += &format!("{actor:?}: {place:?}, ");
        before = actor;
    }
    let model = format!(
        r#"Model(
            name: "many",
            sources: {{ "in": Stream(dtype: f32) }},
            actors: {{ {actors} }},
            channels: [{channels} (from: {before:?}, to: ["out"])],
            sinks: {{ "out": Stream() }},
            pins: {{ {pins} "in": "left:0", "out": "left:0" }},
        )"#
    );
    let options = CompileOptions {
        machine: MachineChoice::File(machine_file),
        contingencies: Losses::None,
        ..CompileOptions::default()
    };
    let compiled = compile_str("many.ron", &model, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    Engine::new(compiled.program, &zbmd_backends::standard_registry()).expect("an engine")
}

fn process_options(engine: &Engine, agent: &AgentProcess) -> RunOptions {
    RunOptions {
        isolation: Isolation::Processes { program: None },
        ..host_options(engine, agent, LONG_LEASE)
    }
}

/// What a run on this host alone gives.
fn on_one_host(engine: &Engine) -> Told {
    on_one_host_fed(engine, UNPACED)
}

fn on_one_host_fed(engine: &Engine, feed: Feed) -> Told {
    let unpaced = Feed {
        per_s: None,
        ..feed
    };
    let told = live(engine, unpaced, options(Isolation::Threads));
    told.outcome.as_ref().expect("it runs");
    told
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "no {what} after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The agent's workers, when all are there.
fn all_workers(agent: &AgentProcess) -> Vec<Pid> {
    so_many_workers(agent, AGENT_DEVICES)
}

fn so_many_workers(agent: &AgentProcess, count: usize) -> Vec<Pid> {
    wait_until("workers", || workers_of(agent.pid()).len() == count);
    workers_of(agent.pid())
}

fn check(told: &Told, expected: &Told, what: &str) {
    let text = format!("{:?}", told.events);
    assert!(told.outcome.is_ok(), "{what}: {:?}: {text}", told.outcome);
    assert_eq!(told.sinks, expected.sinks, "{what}");
}

fn recoveries(told: &Told) -> u64 {
    told.outcome
        .as_ref()
        .map_or(0, |outcome| outcome.report.recoveries)
}

/// The agent serves one run after the other, each with processes of its own.
fn a_process_for_each_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let agent = start_agent(&token_file(folder.path()));
    for checksums in [false, true] {
        let options = RunOptions {
            checksums,
            ..process_options(&engine, &agent)
        };
        let told = live_with(&engine, FEED, options, |_, _| {
            all_workers(&agent);
        });
        check(&told, &expected, "processes");
        assert_eq!(recoveries(&told), 0, "{:?}", told.events);
        wait_until("end of all workers", || workers_of(agent.pid()).is_empty());
    }
}

fn in_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let files = Authority::new().write(folder.path(), &[], Flaw::None);
    let token_file = token_file(folder.path());
    let agent = start_agent_with(&token_file, &tls_arguments(&files));
    let mut options = process_options(&engine, &agent);
    if let Some(hosts) = &mut options.hosts {
        hosts.credentials.protection = Protection::Tls(Tls::read(&files).expect("a certificate"));
    }
    let told = live(&engine, UNPACED, options);
    check(&told, &expected, "in TLS");
    assert_eq!(recoveries(&told), 0, "{:?}", told.events);
}

/// One worker after the other is killed: each is replaced, and its host stays.
fn killed_workers() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let agent = start_agent(&token_file(folder.path()));
    for seed in 0..cases(3) {
        let after = Duration::from_millis(50 + (seed * 7919) % 400);
        let options = process_options(&engine, &agent);
        let told = live_with(&engine, FEED, options, |_, _| {
            for index in 0..AGENT_DEVICES {
                let worker = all_workers(&agent)[index];
                std::thread::sleep(after);
                kill_process(worker, Signal::KILL).expect("it is there");
                wait_until("end of the worker", || {
                    !workers_of(agent.pid()).contains(&worker)
                });
            }
        });
        let what = format!("killed after {after:?}");
        check(&told, &expected, &what);
        let events = format!("{:?}", told.events);
        assert!(recoveries(&told) > 0, "{what}: {events}");
        assert!(events.contains("Killed { signal: 9 }"), "{what}: {events}");
        assert!(!events.contains("is gone"), "{what}: {events}");
    }
}

/// A worker that a signal stops is found, whether it computes or waits, killed, and replaced.
fn a_stopped_worker() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let agent = start_agent(&token_file(folder.path()));
    let options = process_options(&engine, &agent);
    let told = live_with(&engine, FEED, options, |_, _| {
        let workers = all_workers(&agent);
        std::thread::sleep(Duration::from_millis(200));
        kill_process(workers[0], Signal::STOP).expect("it is there");
        wait_until("end of the stopped worker", || {
            !workers_of(agent.pid()).contains(&workers[0])
        });
    });
    check(&told, &expected, "stopped");
    let mut events = told.events.iter();
    let is_overdue = events.any(|event| matches!(event.what, What::Overdue { .. }));
    assert!(is_overdue, "{:?}", told.events);
}

/// A process that has loaded the bundle already takes a lost worker's place.
fn a_standby_takes_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let agent = start_agent(&token_file(folder.path()));
    let options = RunOptions {
        standby: true,
        ..process_options(&engine, &agent)
    };
    let told = live_with(&engine, FEED, options, |_, _| {
        let with_standbys = 2 * AGENT_DEVICES;
        wait_until("workers and standbys", || {
            workers_of(agent.pid()).len() == with_standbys
        });
        // Those that stand by were started last, and have the largest numbers.
        let mut workers = workers_of(agent.pid());
        workers.sort_by_key(|worker| worker.as_raw_nonzero());
        std::thread::sleep(Duration::from_millis(300));
        kill_process(workers[0], Signal::KILL).expect("it is there");
        wait_until("another standby", || {
            let all = workers_of(agent.pid());
            !all.contains(&workers[0]) && all.len() == with_standbys
        });
    });
    check(&told, &expected, "standby");
    assert!(recoveries(&told) > 0, "{:?}", told.events);
}

fn workers_end_with_their_agent() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let expected = on_one_host(&engine);
    let agent = start_agent(&token_file(folder.path()));
    let options = process_options(&engine, &agent);
    let is_there = |worker: Pid| rustix::process::test_kill_process(worker).is_ok();
    let told = live_with(&engine, FEED, options, |_, _| {
        let workers = all_workers(&agent);
        std::thread::sleep(Duration::from_millis(200));
        agent.signal(Signal::KILL);
        wait_until("end of the agent's workers", || {
            !workers.iter().any(|worker| is_there(*worker))
        });
    });
    check(&told, &expected, "without the agent");
    let events = format!("{:?}", told.events);
    assert!(events.contains("host right is gone"), "{events}");
}

/// Where a plan has many workers, they are forked from a process that has loaded the bundle; each is killed and replaced as others are.
fn many_workers_are_forked() {
    lose_of_many("a worker", |agent| {
        let worker = so_many_workers(agent, MANY)[MANY / 2];
        assert!(nursery_of(agent.pid()).is_some(), "they are forked");
        kill_process(worker, Signal::KILL).expect("it is there");
        wait_until("another worker", || {
            let workers = workers_of(agent.pid());
            workers.len() == MANY && !workers.contains(&worker)
        });
    });
}

/// All that were forked from it are lost with it, and replaced.
fn a_lost_nursery() {
    lose_of_many("the nursery", |agent| {
        let workers = so_many_workers(agent, MANY);
        let nursery = nursery_of(agent.pid()).expect("they are forked");
        kill_process(nursery, Signal::KILL).expect("it is there");
        wait_until("other workers", || {
            let others = workers_of(agent.pid());
            others.len() == MANY && !others.iter().any(|worker| workers.contains(worker))
        });
    });
}

/// One that a signal has stopped forks nobody: it is ended, and another one takes its place.
fn a_stopped_nursery() {
    lose_of_many("a worker of a stopped nursery", |agent| {
        let workers = so_many_workers(agent, MANY);
        let nursery = nursery_of(agent.pid()).expect("they are forked");
        kill_process(nursery, Signal::STOP).expect("it is there");
        kill_process(workers[0], Signal::KILL).expect("it is there");
        wait_until("other workers", || {
            workers_of(agent.pid()).len() == MANY && nursery_of(agent.pid()) != Some(nursery)
        });
    });
}

/// Runs a chain over many devices, and takes something away of the agent in the middle.
fn lose_of_many(what: &str, lose: impl Fn(&AgentProcess) + Sync) {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = many_devices(folder.path());
    let expected = on_one_host_fed(&engine, MANY_FEED);
    let agent = start_agent(&token_file(folder.path()));
    let options = process_options(&engine, &agent);
    let told = live_with(&engine, MANY_FEED, options, |stopper, _| {
        wait_until("tokens", || stopper.iterations() > 0);
        lose(&agent);
    });
    check(&told, &expected, what);
    assert!(recoveries(&told) > 0, "{what}: {:?}", told.events);
}
