//! A run over three hosts in the name of their council, each in a network namespace: hosts are cut off two to one in every
//! direction, or whoever conducts stands still and goes on. The output of all conductors together must be that of a run on one host,
//! and nobody may give out anything after its lease, or after another has begun to.
//!
//! ```text
//! cargo bench -p zbmd-tests --bench council_cuts                   100 cuts of seed 1
//! cargo bench -p zbmd-tests --bench council_cuts -- 1000 7         1,000 cuts of seed 7
//! cargo bench -p zbmd-tests --bench council_cuts -- stops 200 7    200 conductors that stand still for 2 s, and go on
//! ```
//!
//! A cut has its host, direction and length from the seed and its number. 50 of them are one run. A piece of output counts from when
//! it was read: it may come up to 25 ms after a lease that ended just when the piece was written, and how many tokens did is said.

zbmd_tests::own_zbmd_run!("runs over several hosts need Linux", linux::main);

#[cfg(target_os = "linux")]
mod linux {
    use std::time::{Duration, Instant};

    use zbmd_tests::cut_runs::{Aftermath, CutRuns, Trouble};
    use zbmd_tests::figures::{load, quantiles};

    const PER_RUN: u64 = 50;
    /// Of the council.
    const LEASE: Duration = Duration::from_millis(100);
    const STOP: Duration = Duration::from_secs(2);
    /// Input of a run.
    const LASTING: Duration = Duration::from_secs(400);

    #[derive(Default)]
    struct Total {
        conductors: u64,
        replaced: u64,
        late_tokens: u64,
        stale_tokens: u64,
        refused_runs: u64,
        tokens: u64,
        repeated: u64,
        refused: u64,
        last_outputs_ms: Vec<f64>,
        next_outputs_ms: Vec<f64>,
    }

    /// Says what was brought about last if that fails.
    struct Naming {
        seed: u64,
        number: u64,
        trouble: Option<Trouble>,
    }

    impl Drop for Naming {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!(
                    "FAILED: seed {}, number {}: {:?}",
                    self.seed, self.number, self.trouble
                );
            }
        }
    }

    pub(super) fn main() {
        let words: Vec<String> = std::env::args().collect();
        let numbers: Vec<u64> = words.iter().filter_map(|text| text.parse().ok()).collect();
        let is_stops = words.iter().any(|word| word == "stops");
        let count = numbers.first().copied().unwrap_or(100);
        let seed = numbers.get(1).copied().unwrap_or(1);

        let folder = tempfile::tempdir().expect("a folder");
        let begun = Instant::now();
        let mut total = Total::default();
        println!("load {}", load());
        let mut naming = Naming {
            seed,
            number: 0,
            trouble: None,
        };
        while naming.number < count {
            let Some(mut runs) = CutRuns::start(folder.path(), LEASE, LASTING) else {
                return;
            };
            for _ in 0..PER_RUN.min(count - naming.number) {
                let trouble = match is_stops {
                    true => Trouble::Stop { lasting: STOP },
                    false => Trouble::cut(seed, naming.number),
                };
                naming.trouble = Some(trouble);
                total.take(&runs.suffer(trouble));
                naming.number += 1;
            }
            total.refused += runs.refused_connections();
            let (tokens, repeated) = runs.end();
            total.tokens += tokens;
            total.repeated += repeated;
            println!(
                "seed {seed}: {} of {count}, {} s; {} conductors among them, {} followed by another",
                naming.number,
                begun.elapsed().as_secs(),
                total.conductors,
                total.replaced
            );
        }
        total.print(count, is_stops);
        println!("load {}", load());
    }

    impl Total {
        fn take(&mut self, aftermath: &Aftermath) {
            self.conductors += u64::from(aftermath.was_conductor);
            self.replaced += u64::from(aftermath.is_replaced);
            self.late_tokens += aftermath.late_tokens;
            self.stale_tokens += aftermath.stale_tokens;
            self.refused_runs += aftermath.refused_runs;
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            if aftermath.is_replaced {
                self.last_outputs_ms.extend(aftermath.last_output.map(ms));
            }
            self.next_outputs_ms.extend(aftermath.next_output.map(ms));
        }

        fn print(self, count: u64, is_stops: bool) {
            let what = match is_stops {
                true => "conductors stopped and continued",
                false => "cuts",
            };
            println!(
                "{count} {what}: {} tokens, each as of a run on one host; {} were given out again by the next conductor, with the same number and bits; {} were read within 25 ms after the lease of whoever was alone, none later",
                self.tokens, self.repeated, self.late_tokens
            );
            if is_stops {
                println!(
                    "{} tokens were in hand when a conductor stood still, and written when another conducted",
                    self.stale_tokens
                );
            }
            println!(
                "conductors that had been followed reached the agent {} times: no epoch was begun for them; {} connections for frames of epochs that were over were refused",
                self.refused_runs, self.refused
            );
            print_times("last output of whoever was followed", &self.last_outputs_ms);
            print_times("first output of the next", &self.next_outputs_ms);
        }
    }

    fn print_times(what: &str, times_ms: &[f64]) {
        let [min, p50, p99, max] = quantiles(times_ms, [0.0, 0.5, 0.99, 1.0]);
        println!(
            "{what}, from the trouble on: min {min:.0}, p50 {p50:.0}, p99 {p99:.0}, max {max:.0} ms ({} times)",
            times_ms.len()
        );
    }
}
