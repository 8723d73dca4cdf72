//! A council of three processes over TCP, with journals on disk: conductors are killed, and stopped and continued. What all give
//! out together has no gap, and nobody gives out anything after a later epoch has begun to.
//!
//! No test harness: this program is its own voters.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: a council needs Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    zbmd_tests::voters::vote_or_test(linux::main);
}

#[cfg(target_os = "linux")]
mod linux {
    use std::time::Duration;

    use rustix::process::Signal;
    use zbmd_tests::harness::{self, Test};
    use zbmd_tests::voters::{VoterLine, VoterProcesses, check_lines};

    const TESTS: [Test; 3] = [
        ("killed_conductors", killed_conductors),
        ("stopped_conductors", stopped_conductors),
        ("a_minority_decides_nothing", a_minority_decides_nothing),
    ];
    /// Long enough for a crowded computer: a lease of 80 ms.
    const TICK: Duration = Duration::from_millis(10);

    pub(super) fn main() {
        harness::run(&TESTS, || true);
    }

    /// Waits until somebody gives out output in an epoch after this one.
    fn wait_for_output(voters: &VoterProcesses, after_epoch: u64) -> VoterLine {
        let first = voters.wait_for("output of a new conductor", |line| {
            line.epoch > after_epoch && line.number > 0
        });
        // Some more of it.
        voters.wait_for("more output", |line| {
            line.epoch >= first.epoch && line.number >= first.number + 10
        })
    }

    fn killed_conductors() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut voters = VoterProcesses::start(folder.path(), TICK);
        let mut last = wait_for_output(&voters, 0);
        for _ in 0..5 {
            voters.kill(last.voter);
            let next = wait_for_output(&voters, last.epoch);
            voters.restart(last.voter);
            last = next;
        }
        let lines = voters.lines();
        check_lines(&lines);
        let epochs: std::collections::BTreeSet<u64> = lines.iter().map(|line| line.epoch).collect();
        assert!(epochs.len() >= 6, "{epochs:?}");
    }

    /// A conductor that was stopped for longer than its lease, and goes on, gives out nothing more.
    fn stopped_conductors() {
        let folder = tempfile::tempdir().expect("a folder");
        let voters = VoterProcesses::start(folder.path(), TICK);
        let mut last = wait_for_output(&voters, 0);
        for _ in 0..3 {
            voters.signal(last.voter, Signal::STOP);
            let next = wait_for_output(&voters, last.epoch);
            voters.signal(last.voter, Signal::CONT);
            // It has time to do something wrong.
            std::thread::sleep(Duration::from_millis(200));
            last = wait_for_output(&voters, next.epoch - 1);
        }
        check_lines(&voters.lines());
    }

    fn a_minority_decides_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut voters = VoterProcesses::start(folder.path(), TICK);
        let last = wait_for_output(&voters, 0);
        let others: Vec<usize> = (0..3).filter(|voter| *voter != last.voter).collect();
        others.iter().for_each(|voter| voters.kill(*voter));
        // What was on its way is decided by now, and the lease is over.
        std::thread::sleep(10 * TICK);
        let before = voters.lines();
        std::thread::sleep(30 * TICK);
        assert_eq!(voters.lines(), before, "one of three goes on alone");

        voters.restart(others[0]);
        let known = before.last().copied().expect("output");
        voters.wait_for("a majority goes on", |line| line.number > known.number);
        check_lines(&voters.lines());
    }
}
