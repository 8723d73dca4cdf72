//! All hosts of a cluster on this computer, with an agent each: programs over all devices give what they must, hosts are lost and
//! come back, who looks at the run sees it, and no agent is left behind.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use zbmd_compiler::Losses;
use zbmd_tests::cluster_models::Cluster;
use zbmd_tests::harness::Test;
use zbmd_tests::run_process::RunProcess;
use zbmd_tests::virtual_cluster::{
    ClusterRuns, LONG_LEASE, PacedFilters, filters, host_states, programs, signal,
};

pub(super) const TESTS: &[Test] = &[
    ("programs_over_all_devices", programs_over_all_devices),
    ("agents_that_are_killed", agents_that_are_killed),
    ("a_host_that_stands_still", a_host_that_stands_still),
    ("no_agent_is_left", no_agent_is_left),
];

const CLUSTER: Cluster = Cluster {
    hosts: 3,
    devices: 2,
};
const RATE_PER_S: u64 = 400_000;
const SECONDS: u64 = 3;

fn runs(folder: &Path) -> ClusterRuns<'_> {
    ClusterRuns {
        folder,
        cluster: CLUSTER,
    }
}

fn programs_over_all_devices() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster {
        hosts: 4,
        devices: 4,
    };
    let runs = ClusterRuns {
        folder: folder.path(),
        cluster,
    };
    for program in programs(cluster, 100) {
        runs.prepare(&program);
        for isolation in ["threads", "processes"] {
            let mut command = runs.run(&program);
            command.args(["--isolation", isolation]);
            let (status, said) = RunProcess::start(command).end();
            let what = format!("{} in {isolation}", program.name);
            assert!(status.success(), "{what}: {status}: {said}");
            assert!(runs.output() == program.expected, "{what}: {said}");
            assert!(runs.agents().is_empty(), "{what}: {:?}", runs.agents());
        }
    }
}

/// A run of filters for some seconds, whose output is checked at its end.
struct PacedRun<'a> {
    runs: ClusterRuns<'a>,
    run: RunProcess,
}

impl<'a> PacedRun<'a> {
    fn start(folder: &'a Path, lease: &str) -> Self {
        let runs = runs(folder);
        let paced = PacedFilters {
            count: 5,
            block: None,
            rate_per_s: RATE_PER_S,
            seconds: SECONDS,
        };
        let run = runs.start_filters(paced, &mut fastrand::Rng::with_seed(29), lease);
        Self { runs, run }
    }

    fn check_end(self) {
        let (status, said) = self.run.end();
        assert!(status.success(), "{status}: {said}");
        let read = |name| std::fs::read(self.runs.folder.join(name)).expect("written");
        assert!(read("out.f32") == read("one.f32"), "other output: {said}");
        assert!(self.runs.agents().is_empty(), "{:?}", self.runs.agents());
    }
}

/// Each is started again, and its host taken in at a border.
fn agents_that_are_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let PacedRun { runs, mut run } = PacedRun::start(folder.path(), LONG_LEASE);
    for seed in 0..2 {
        let before = runs.epochs().len();
        let agents = runs.agents();
        assert_eq!(agents.len(), CLUSTER.hosts - 1, "{agents:?}");
        signal(agents[seed % agents.len()], Signal::KILL);
        run.wait_until("the host was lost and is back", || {
            let epochs = runs.epochs();
            let since = &epochs[before.min(epochs.len())..];
            let lost = since.iter().position(|(_, lost)| *lost == CLUSTER.devices);
            lost.is_some_and(|at| since[at..].iter().any(|(_, lost)| *lost == 0))
        });
    }
    PacedRun { runs, run }.check_end();
}

/// One that is not heard is shown as lost with all its devices, until it is taken in again.
fn a_host_that_stands_still() {
    let folder = tempfile::tempdir().expect("a folder");
    let PacedRun { runs, run } = PacedRun::start(folder.path(), "300ms");
    let healthy = ["conductor", "present", "present"];
    let mut states = Vec::new();
    let mut last = None;
    let see = |run: &RunProcess| runs.shown(run).unwrap_or_default();
    let begun = Instant::now();
    while states != healthy {
        states = host_states(&see(&run));
        assert!(begun.elapsed() < Duration::from_secs(20), "{states:?}");
    }

    let stopped = runs.agents()[0];
    signal(stopped, Signal::STOP);
    while states == healthy {
        let page = see(&run);
        states = host_states(&page);
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "never shown as lost"
        );
        last = Some(page);
    }
    let page = last.expect("it was seen");
    states.sort();
    assert_eq!(states, ["conductor", "lost", "present"], "{page}");
    let hosts = page["hosts"].as_array().expect("hosts");
    let lost = hosts
        .iter()
        .find(|host| host["state"] == "lost")
        .expect("one");
    let devices = page["devices"].as_array().expect("devices").iter();
    let own: Vec<_> = devices
        .filter(|device| device["host"] == lost["host"])
        .collect();
    assert!(
        !own.is_empty() && own.iter().all(|device| device["state"] == "lost"),
        "{page}"
    );

    signal(stopped, Signal::CONT);
    while states != healthy {
        states = host_states(&see(&run));
        assert!(begun.elapsed() < Duration::from_secs(20), "{states:?}");
    }
    PacedRun { runs, run }.check_end();
}

/// Told to end, and killed: agents end either way.
fn no_agent_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    for (asked, code) in [(Signal::TERM, Some(130)), (Signal::KILL, None)] {
        let PacedRun { runs, run } = PacedRun::start(folder.path(), LONG_LEASE);
        run.signal(asked);
        let (status, said) = run.end();
        assert_eq!(status.code(), code, "{said}");
        std::fs::remove_file(folder.path().join("out.f32")).expect("there is some");
        let begun = Instant::now();
        while !runs.agents().is_empty() {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{:?}",
                runs.agents()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    let one_host = ClusterRuns {
        folder: folder.path(),
        cluster: Cluster {
            hosts: 1,
            devices: 2,
        },
    };
    one_host.compile("one", &filters(1), Losses::None, None);
    let mut command = one_host.command("one", LONG_LEASE);
    command.args(["-i", "in=in.f32", "-o", "out=out.f32"]);
    let (status, said) = RunProcess::start(command).end();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(
        said.contains("has 1 hosts, at least 2 are needed"),
        "{said}"
    );
}
