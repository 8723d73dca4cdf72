//! How long to wait before a lost worker is started again. Must not know why it was lost.
//!
//! The first restart comes at once: most losses are single ones, and recovery is waiting. From then on waits grow by
//! a factor up to a bound, each moved by a jitter that follows from the seed alone, so that devices lost together do
//! not all come back together (and a run can be replayed).
//!
//! A wait is one between two starts: what a back-off bounds is how often a worker is started that dies at once. One that
//! has lived for longer than its wait has waited already, and whoever needs it does not wait once more.

/// What a back-off is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackoffPolicy {
    /// From the start of a worker to its second restart in a row, in nanoseconds, at least; the first comes at once.
    pub base_ns: u64,
    /// By how much each wait is longer than the one before, at least 1.
    pub factor: f64,
    /// No wait is longer, before jitter.
    pub longest_ns: u64,
    /// Each wait is multiplied by a number from `1 - jitter` to `1 + jitter`; from 0 to 1.
    pub jitter: f64,
    /// A worker that has lived so long begins anew.
    pub reset_ns: u64,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        Self {
            base_ns: 10_000_000,
            factor: 2.0,
            longest_ns: 500_000_000,
            jitter: 0.25,
            reset_ns: 5_000_000_000,
        }
    }
}

/// The back-off of one worker.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    restarts: u32,
    random: u64,
}

impl Backoff {
    /// A worker that was never restarted. Different seeds give different jitter.
    pub fn new(policy: BackoffPolicy, seed: u64) -> Self {
        Self {
            policy,
            restarts: 0,
            random: seed,
        }
    }

    /// The wait from now to the next restart, of a worker that was started `started_ns` ago and was ready for `lived_ns`.
    pub fn wait_ns(&mut self, started_ns: u64, lived_ns: u64) -> u64 {
        if lived_ns >= self.policy.reset_ns {
            self.restarts = 0;
        }
        let restarts = self.restarts;
        self.restarts = restarts.saturating_add(1);
        if restarts == 0 {
            return 0;
        }
        let BackoffPolicy {
            base_ns,
            factor,
            longest_ns,
            jitter,
            ..
        } = self.policy;
        let grown = base_ns as f64 * factor.powi(i32::try_from(restarts - 1).unwrap_or(i32::MAX));
        let moved = 1.0 + jitter * (2.0 * self.uniform() - 1.0);
        let between_starts_ns = (grown.min(longest_ns as f64) * moved) as u64;
        between_starts_ns.saturating_sub(started_ns)
    }

    /// Restarts in a row so far.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// From 0 to 1: SplitMix64 (Steele, Lea & Flood 2014).
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BackoffPolicy = BackoffPolicy {
        base_ns: 100,
        factor: 3.0,
        longest_ns: 1000,
        jitter: 0.0,
        reset_ns: 10_000,
    };

    #[test]
    fn waits_grow_up_to_the_bound_and_begin_anew_after_a_long_life() {
        let mut backoff = Backoff::new(POLICY, 1);
        let lives = [0, 0, 9_999, 0, 0, 10_000, 0];
        assert_eq!(
            lives.map(|l| backoff.wait_ns(0, l)),
            [0, 100, 300, 900, 1000, 0, 100]
        );
        assert_eq!(backoff.restarts(), 2);
    }

    #[test]
    fn a_worker_that_was_started_long_ago_has_waited_already() {
        let mut backoff = Backoff::new(POLICY, 1);
        let starts = [0, 0, 200, 5_000, 400];
        let waits = starts.map(|started| backoff.wait_ns(started, 0));
        assert_eq!(waits, [0, 100, 100, 0, 600]);
    }

    #[test]
    fn jitter_stays_within_its_bounds_and_follows_from_the_seed() {
        let policy = BackoffPolicy {
            jitter: 0.5,
            ..POLICY
        };
        let waits = |seed| {
            let mut backoff = Backoff::new(policy, seed);
            (0..200)
                .map(|_| backoff.wait_ns(0, 0))
                .collect::<Vec<u64>>()
        };
        assert_eq!(waits(7), waits(7));
        assert_ne!(waits(7), waits(8));
        let late = &waits(7)[5..];
        assert!(late.iter().all(|w| (500..=1500).contains(w)), "{late:?}");
        assert!(
            late.iter().any(|w| *w < 700) && late.iter().any(|w| *w > 1300),
            "{late:?}"
        );
    }

    #[test]
    fn a_storm_does_not_overflow() {
        let mut backoff = Backoff::new(BackoffPolicy::default(), 0);
        backoff.restarts = u32::MAX;
        assert!(backoff.wait_ns(0, 0) <= 625_000_000);
    }
}
