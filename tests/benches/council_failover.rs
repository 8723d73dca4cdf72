//! How soon another one conducts once the conductor is gone: from its SIGKILL to the first entry that the next one has decided
//! (its epoch), and to the first output of it, for three processes over TCP on one computer.
//!
//! ```text
//! cargo bench -p zbmd-tests --bench council_failover                 40 kills with a tick of 2.5 ms: a lease of 20 ms
//! cargo bench -p zbmd-tests --bench council_failover -- 100 1000     100 of them with a tick of 1 ms
//! cargo bench -p zbmd-tests --bench council_failover -- stops 200    200 conductors stopped and continued: what they do then
//! ```

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("not run: a council needs Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    zbmd_tests::voters::vote_or_test(linux::main);
}

#[cfg(target_os = "linux")]
mod linux {
    use std::time::Duration;

    use rustix::process::Signal;
    use zbmd_council::member::lease_clock_ns;
    use zbmd_tests::figures::{load, quantiles};
    use zbmd_tests::voters::{VoterProcesses, check_lines};

    pub(super) fn main() {
        let numbers: Vec<u64> = std::env::args()
            .filter_map(|text| text.parse().ok())
            .collect();
        let kills = numbers.first().copied().unwrap_or(40);
        let tick = Duration::from_micros(numbers.get(1).copied().unwrap_or(2500));
        println!("load {}", load());
        if std::env::args().any(|word| word == "stops") {
            stop_conductors(kills, tick);
        } else {
            kill_conductors(kills, tick);
        }
        println!("load {}", load());
    }

    /// Conductors that were stopped until another one conducts, and go on.
    fn stop_conductors(stops: u64, tick: Duration) {
        let folder = tempfile::tempdir().expect("a folder");
        let voters = VoterProcesses::start(folder.path(), tick);
        let mut last = voters.wait_for("output", |line| line.number > 20);
        for _ in 0..stops {
            last = voters.lines().pop().unwrap_or(last);
            let epoch = last.epoch;
            voters.signal(last.voter, Signal::STOP);
            voters.wait_for("new output", |line| {
                line.epoch > epoch && line.number > last.number
            });
            voters.signal(last.voter, Signal::CONT);
            // It has time to do something wrong.
            std::thread::sleep(Duration::from_millis(100));
        }
        let lines = voters.lines();
        check_lines(&lines);
        println!(
            "{stops} conductors stopped and continued, {} numbers given out: none by a conductor that another had followed",
            lines.len()
        );
    }

    fn kill_conductors(kills: u64, tick: Duration) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut voters = VoterProcesses::start(folder.path(), tick);
        let mut last = voters.wait_for("output", |line| line.number > 20);
        let (mut entries_ms, mut outputs_ms) = (Vec::new(), Vec::new());
        for kill in 0..kills {
            // Heartbeats are in another state each time, and all voters are there.
            std::thread::sleep(Duration::from_millis(150 + kill * 37 % 100));
            last = voters.lines().pop().unwrap_or(last);
            let killed_ns = lease_clock_ns();
            voters.kill(last.voter);
            let epoch = last.epoch;
            let entry = voters.wait_for("a new epoch", |line| line.epoch > epoch);
            let output = voters.wait_for("new output", |line| {
                line.epoch > epoch && line.number > last.number
            });
            entries_ms.push((entry.at_ns - killed_ns) as f64 / 1e6);
            outputs_ms.push((output.at_ns - killed_ns) as f64 / 1e6);
            voters.restart(last.voter);
        }
        println!("{kills} conductors killed, tick {} us", tick.as_micros());
        print_times("first entry of the next", &entries_ms);
        print_times("first new output", &outputs_ms);
    }

    fn print_times(what: &str, times_ms: &[f64]) {
        let [min, p50, p95, p99, max] = quantiles(times_ms, [0.0, 0.5, 0.95, 0.99, 1.0]);
        println!("{what}: min {min:.1}, p50 {p50:.1}, p95 {p95:.1}, p99 {p99:.1}, max {max:.1} ms");
    }
}
