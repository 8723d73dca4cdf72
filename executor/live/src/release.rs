//! Tokens that are handed over by the clock: when each is due, and how late what happens is, counted from then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// When the tokens of a source that is played at its rate are released: piece by piece, each when its last token is due.
#[derive(Debug)]
pub struct ReleaseClock {
    /// When token 0 was due; 0 before anything is played.
    start_ns: AtomicU64,
    rate: f64,
    piece_tokens: u64,
    /// Tokens that were played.
    played: AtomicU64,
    /// How late pieces were handed over.
    lateness: Mutex<TimeHistogram>,
}

impl ReleaseClock {
    /// A clock that does not run yet, for pieces of so many tokens at `rate` tokens a second.
    pub fn new(rate: f64, piece_tokens: u64) -> Self {
        Self {
            start_ns: AtomicU64::new(0),
            rate,
            piece_tokens,
            played: AtomicU64::new(0),
            lateness: Mutex::new(TimeHistogram::new()),
        }
    }

    /// Starts the clock, if it does not run.
    pub fn start(&self, now_ns: u64) {
        let _ = self
            .start_ns
            .compare_exchange(0, now_ns, Ordering::Release, Ordering::Relaxed);
    }

    /// Counts tokens that were handed over.
    pub fn play(&self, tokens: u64) {
        self.played.fetch_add(tokens, Ordering::Release);
    }

    /// Tokens that were handed over so far.
    pub fn played(&self) -> u64 {
        self.played.load(Ordering::Acquire)
    }

    /// Counts how late pieces were handed over, unless somebody looks at the counts just now: whoever plays by the clock
    /// waits for nobody. What is left in `late_ns` is to be counted later.
    pub fn try_record_lateness(&self, late_ns: &mut Vec<u64>) {
        let mut lateness = match self.lateness.try_lock() {
            Ok(lateness) => lateness,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        late_ns.drain(..).for_each(|ns| lateness.record(ns));
    }

    /// Counts how late pieces were handed over.
    pub fn record_lateness(&self, late_ns: &mut Vec<u64>) {
        let mut lateness = self.lateness.lock().unwrap_or_else(PoisonError::into_inner);
        late_ns.drain(..).for_each(|ns| lateness.record(ns));
    }

    /// How late pieces were handed over so far, counted from when they were due.
    pub fn lateness(&self) -> TimeSummary {
        let lateness = self.lateness.lock().unwrap_or_else(PoisonError::into_inner);
        lateness.summary()
    }

    /// When the first `tokens` tokens had all been released, on the clock of [`crate::now_ns`]; `None` if nothing was
    /// played.
    pub fn release_ns(&self, tokens: u64) -> Option<u64> {
        let start_ns = self.start_ns.load(Ordering::Acquire);
        let released_tokens = tokens.div_ceil(self.piece_tokens) * self.piece_tokens;
        let due_s = released_tokens as f64 / self.rate;
        (start_ns > 0).then(|| start_ns.saturating_add((due_s * 1e9) as u64))
    }
}

/// Times in nanoseconds, counted to three digits.
#[derive(Debug)]
pub struct TimeHistogram {
    histogram: Histogram<u64>,
}

impl Default for TimeHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl TimeHistogram {
    /// No times.
    pub fn new() -> Self {
        const MAX_NS: u64 = 3_600_000_000_000;
        const DIGITS: u8 = 3;
        let histogram = Histogram::new_with_max(MAX_NS, DIGITS);
        Self {
            histogram: histogram.expect("an hour has three digits"),
        }
    }

    /// Counts a time; more than an hour as an hour.
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    /// What the times were.
    pub fn summary(&self) -> TimeSummary {
        TimeSummary {
            count: self.histogram.len(),
            p50_ns: self.histogram.value_at_quantile(0.5),
            p99_ns: self.histogram.value_at_quantile(0.99),
            p99_9_ns: self.histogram.value_at_quantile(0.999),
            max_ns: self.histogram.max(),
        }
    }
}

/// Quantiles of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSummary {
    /// How many.
    pub count: u64,
    /// The median.
    pub p50_ns: u64,
    /// One in a hundred is longer.
    pub p99_ns: u64,
    /// One in a thousand is longer.
    pub p99_9_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_released_with_the_last_one_of_their_piece() {
        let clock = ReleaseClock::new(1000.0, 4);
        assert_eq!(clock.release_ns(1), None);
        clock.start(5_000_000);
        clock.start(9_000_000);
        for (tokens, due_ms) in [(0, 5), (1, 9), (4, 9), (5, 13), (8, 13)] {
            assert_eq!(
                clock.release_ns(tokens),
                Some(due_ms * 1_000_000),
                "{tokens}"
            );
        }
    }

    #[test]
    fn quantiles_are_those_of_what_was_counted() {
        let mut times = TimeHistogram::new();
        (1..=1000).for_each(|ns| times.record(ns));
        times.record(u64::MAX);
        let summary = times.summary();
        assert_eq!(summary.count, 1001);
        assert!((500..=502).contains(&summary.p50_ns), "{summary:?}");
        assert!(summary.max_ns >= 3_600_000_000_000, "{summary:?}");
    }
}
