//! A whole cluster on this computer by `zbmd-run --virtual-cluster`: how long it takes until it is up, what one round through all
//! devices takes, and how soon the loss of a host leads to a new epoch, with the outputs checked.
//!
//! ```text
//! cargo bench -p zbmd-tests --bench virtual_cluster                     8 hosts with 8 devices each
//! cargo bench -p zbmd-tests --bench virtual_cluster -- 32 32            32 with 32
//! cargo bench -p zbmd-tests --bench virtual_cluster -- 8 8 20           8 with 8, and 20 losses
//! cargo bench -p zbmd-tests --bench virtual_cluster -- 8 8 processes    8 with 8, each device a process
//! ```

zbmd_tests::own_zbmd_run!("runs over several hosts need Linux", linux::main);

#[cfg(target_os = "linux")]
mod linux {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use rustix::process::Signal;
    use zbmd_tests::cluster_models::Cluster;
    use zbmd_tests::figures::{load, median};
    use zbmd_tests::run_process::RunProcess;
    use zbmd_tests::virtual_cluster::{
        ClusterProgram, ClusterRuns, LONG_LEASE, PacedFilters, programs, signal,
    };
    use zbmd_wire::monotonic_ns;

    const TOKENS: i64 = 200;
    const MAX_FILTERS: usize = 48;
    const RATE_PER_S: u64 = 100_000;
    const BLOCK: u64 = 1_000;
    /// From one loss to the next: a host that has no part in the plan is lost without an epoch, and a run gives up after ten losses
    /// within ten seconds.
    const LOSS_PAUSE: Duration = Duration::from_millis(1_200);
    /// A host is back long before.
    const RETURN_LIMIT: Duration = Duration::from_secs(60);

    pub(super) fn main() {
        let numbers: Vec<usize> = std::env::args()
            .filter_map(|argument| argument.parse().ok())
            .collect();
        let number = |index: usize, default| numbers.get(index).copied().unwrap_or(default);
        let cluster = Cluster {
            hosts: number(0, 8),
            devices: number(1, 8),
        };
        let isolation = match std::env::args().any(|argument| argument == "processes") {
            true => "processes",
            false => "threads",
        };
        println!(
            "{} hosts with {} devices each, in {isolation}; load {}",
            cluster.hosts,
            cluster.devices,
            load()
        );
        let folder = tempfile::tempdir().expect("a folder");
        let runs = ClusterRuns {
            folder: folder.path(),
            cluster,
        };
        for program in programs(cluster, TOKENS) {
            measure_program(&runs, &program, isolation);
        }
        if let Some(&losses) = numbers.get(2) {
            measure_losses(&runs, losses);
        }
        println!("load {}", load());
    }

    fn bytes_in(file: &Path) -> u64 {
        std::fs::metadata(file).map_or(0, |file| file.len())
    }

    fn measure_program(runs: &ClusterRuns<'_>, program: &ClusterProgram, isolation: &str) {
        runs.prepare_in_blocks(program, Some(1));
        let output = runs.folder.join("out.bin");
        let whole = program.expected.len() as u64 * 8;

        let mut command = runs.run(program);
        command.args(["--isolation", isolation]);
        command.args(["--events", "events.jsonl"]);
        let begun = Instant::now();
        let begun_ns = monotonic_ns();
        let mut run = RunProcess::start(command);
        run.wait_until("output", || bytes_in(&output) > 0);
        let (up, first_bytes) = (begun.elapsed(), bytes_in(&output));
        run.wait_until("all of it", || bytes_in(&output) == whole);
        let all = begun.elapsed();
        let (status, said) = run.end();
        assert!(status.success(), "{}: {said}", program.name);
        assert!(runs.output() == program.expected, "{}", program.name);
        let last_ready_ns = runs.ready_at_ns().into_iter().max();
        let ready_ns = last_ready_ns.expect("all workers are ready") - begun_ns;

        let rounds = (whole - first_bytes) as f64 / whole as f64 * TOKENS as f64;
        println!(
            "{:<9} all workers ready {:>6.2} s after the start, first output {:>6.2} s, {:>8.3} ms a round, all ended after {:.2} s; output as it must be",
            program.name,
            ready_ns as f64 / 1e9,
            up.as_secs_f64(),
            (all - up).as_secs_f64() * 1e3 / rounds,
            begun.elapsed().as_secs_f64()
        );
        std::fs::remove_file(output).expect("written");
        std::fs::remove_file(runs.folder.join("events.jsonl")).expect("written");
    }

    fn measure_losses(runs: &ClusterRuns<'_>, losses: usize) {
        let count = (runs.cluster.all_devices() / 2).min(MAX_FILTERS);
        let mut rng = fastrand::Rng::with_seed(31);
        let paced = PacedFilters {
            count,
            // Hosts are taken in at borders: a longer block would be seconds of the paced input.
            block: Some(BLOCK),
            rate_per_s: RATE_PER_S,
            // More than is needed: the run is told to end.
            seconds: 20 + 4 * losses as u64,
        };
        let mut run = runs.start_filters(paced, &mut rng, LONG_LEASE);
        let output = runs.folder.join("out.f32");

        let mut taken_ms = Vec::new();
        for _ in 0..losses {
            taken_ms.extend(lose_one(runs, &mut run, &mut rng));
        }
        run.signal(Signal::TERM);
        let (status, said) = run.end();
        assert_eq!(status.code(), Some(130), "{said}");
        let written = std::fs::read(&output).expect("written");
        let expected = std::fs::read(runs.folder.join("one.f32")).expect("written");
        assert!(
            !written.is_empty() && expected.starts_with(&written),
            "other output"
        );

        let without_part = losses - taken_ms.len();
        println!(
            "{losses} agents killed under load, each taken in again, {without_part} of hosts without a part; {} tokens as on one host",
            written.len() / 4
        );
        if !taken_ms.is_empty() {
            let max = taken_ms.iter().copied().fold(0.0, f64::max);
            let min = taken_ms.iter().copied().fold(f64::INFINITY, f64::min);
            println!(
                "from a death to the decision for an epoch min {min:.1}, p50 {:.1}, max {max:.1} ms",
                median(taken_ms)
            );
        }
    }

    /// Kills an agent: milliseconds until the next epoch is decided, if there is one. Waits until the host is back.
    fn lose_one(
        runs: &ClusterRuns<'_>,
        run: &mut RunProcess,
        rng: &mut fastrand::Rng,
    ) -> Option<f64> {
        let all = runs.cluster.hosts - 1;
        let mut agents = Vec::new();
        run.wait_until("all agents are there", || {
            agents = runs.agents();
            agents.len() == all
        });
        let (epochs_before, ready_before) = (runs.epochs().len(), runs.ready_workers());
        let killed = Instant::now();
        let killed_ns = monotonic_ns();
        signal(agents[rng.usize(..agents.len())], Signal::KILL);

        // It need not get a part again: there may be a plan without it that is as quick.
        run.wait_until("the host is back", || {
            assert!(killed.elapsed() < RETURN_LIMIT, "{:?}", runs.epochs());
            let is_back = runs.ready_workers() >= ready_before + runs.cluster.devices;
            is_back && killed.elapsed() > LOSS_PAUSE
        });
        let epochs = runs.epochs();
        let decided_ns = epochs.get(epochs_before).map(|(ns, _)| *ns);
        decided_ns.map(|ns| ns.saturating_sub(killed_ns) as f64 / 1e6)
    }
}
