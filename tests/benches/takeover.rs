//! From the SIGKILL of a conductor process to the first output of the run that takes over from it: votes, the fence, a new epoch from
//! the last border that was given out, its first border decided. Three processes of this computer, and their disk.
//!
//! No rival: what there is beside it is the time that the council itself takes (`--bench council_failover`).
//!
//! `cargo bench -p zbmd-tests --bench takeover [-- KILLS]`, 10 with each lease without a number.

zbmd_tests::own_zbmd_run!("runs over several hosts need Linux", linux::main);

#[cfg(target_os = "linux")]
mod linux {
    use std::time::{Duration, Instant};

    use rustix::process::Signal;
    use zbmd_tests::council_runs::CouncilRuns;
    use zbmd_tests::figures::{load, quantiles};

    const LEASES_MS: [u64; 2] = [40, 80];

    pub(super) fn main() {
        let mut numbers = std::env::args().filter_map(|word| word.parse::<usize>().ok());
        let kills = numbers.next().unwrap_or(10);
        println!("load {}", load());
        let mut times_ms = LEASES_MS.map(|_| Vec::new());
        // By turns, so that what else the computer does is shared by both.
        for _ in 0..kills {
            for (lease_ms, times_ms) in LEASES_MS.into_iter().zip(&mut times_ms) {
                times_ms.push(takeover_ms(Duration::from_millis(lease_ms)));
            }
        }
        for (lease_ms, times_ms) in LEASES_MS.into_iter().zip(times_ms) {
            let [min, p50, p99, max] = quantiles(&times_ms, [0.0, 0.5, 0.99, 1.0]);
            println!(
                "lease {lease_ms} ms: min {min:.0} ms, p50 {p50:.0} ms, p99 {p99:.0} ms, max {max:.0} ms of {kills} kills",
            );
        }
    }

    fn takeover_ms(lease: Duration) -> f64 {
        let folder = tempfile::tempdir().expect("a folder");
        let runs = CouncilRuns::prepare_with_standby(folder.path(), lease);
        let agent = runs.agent(3);
        let mut run = runs.run(&agent);
        run.wait_until("output", || runs.output_tokens() > 50_000);
        let mut standby = runs.standby();
        run.wait_until("a holder", || runs.is_held(3));
        let begin = runs.output_tokens();
        run.wait_until("more output", || runs.output_tokens() > begin + 50_000);

        let killed = Instant::now();
        run.signal(Signal::KILL);
        standby.wait_until("output of the next", || runs.taken_tokens() > 0);
        let taken = killed.elapsed();
        let (status, said) = standby.end();
        assert!(status.success(), "{status}: {said}");
        runs.check_both_outputs(&said);
        taken.as_secs_f64() * 1e3
    }
}
