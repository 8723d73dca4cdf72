//! What is counted about a model's requests. Written by whoever answers, read by `stats` and `metrics`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A number of events and the time that they took together.
#[derive(Debug, Default)]
pub(crate) struct TimedCount {
    count: AtomicU64,
    total_ns: AtomicU64,
}

impl TimedCount {
    pub(crate) fn add(&self, time: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(ns_of(time), Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn total_ns(&self) -> u64 {
        self.total_ns.load(Ordering::Relaxed)
    }
}

/// Whole nanoseconds; centuries count as the longest that there are.
pub(crate) fn ns_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Upper ends of the histogram of responses, in microseconds: 1, 2 and 5 of each decade from 50 us to 10 s.
pub(crate) const RESPONSE_BOUNDS_US: [u64; 17] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

/// How many responses took how long.
#[derive(Debug, Default)]
pub(crate) struct ResponseHistogram {
    /// By the first bound that is not shorter; the last is longer than all.
    buckets: [AtomicU64; RESPONSE_BOUNDS_US.len() + 1],
}

impl ResponseHistogram {
    fn add(&self, response: Duration) {
        let micros = response.as_micros();
        let bucket = RESPONSE_BOUNDS_US.partition_point(|bound| u128::from(*bound) < micros);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// Responses up to each bound, and then all.
    pub(crate) fn cumulative(&self) -> [u64; RESPONSE_BOUNDS_US.len() + 1] {
        let mut sum = 0;
        std::array::from_fn(|bucket| {
            sum += self.buckets[bucket].load(Ordering::Relaxed);
            sum
        })
    }
}

/// Requests that were not computed, by why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedFor {
    /// The client's mistake.
    Request,
    /// No room in the queue.
    Full,
    /// Its timeout could not be kept.
    Timeout,
    /// The server is shutting down.
    Draining,
    /// The model does not run any more.
    Failed,
    /// As many sequences as are allowed.
    Sequences,
}

impl RefusedFor {
    pub(crate) const ALL: [Self; 6] = [
        Self::Request,
        Self::Full,
        Self::Timeout,
        Self::Draining,
        Self::Failed,
        Self::Sequences,
    ];

    /// Its name as a label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Full => "full",
            Self::Timeout => "timeout",
            Self::Draining => "draining",
            Self::Failed => "failed",
            Self::Sequences => "sequences",
        }
    }
}

/// The counts of one model.
#[derive(Debug, Default)]
pub(crate) struct ModelStats {
    /// Requests that were answered, from when their body was there until the answer was made.
    pub(crate) success: TimedCount,
    /// Requests that were refused, the same.
    pub(crate) fail: TimedCount,
    /// Of those answered: from admission until the run took them.
    pub(crate) queue: TimedCount,
    /// Reading the body.
    pub(crate) input: TimedCount,
    /// From then on until the outputs were there.
    pub(crate) infer: TimedCount,
    /// Making the answer.
    pub(crate) output: TimedCount,
    pub(crate) responses: ResponseHistogram,
    /// Answered later than their timeout.
    late: AtomicU64,
    /// Of those answered: one each, unless they are batches.
    rows: AtomicU64,
    refused: [AtomicU64; RefusedFor::ALL.len()],
    last_ms: AtomicU64,
}

/// The times of one answered request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnsweredTimes {
    /// Reading the body.
    pub(crate) input: Duration,
    /// From admission until the run took it.
    pub(crate) queued: Duration,
    /// From then until its outputs were there.
    pub(crate) computed: Duration,
    /// Making the answer.
    pub(crate) output: Duration,
    /// All.
    pub(crate) response: Duration,
    /// What the client allowed.
    pub(crate) timeout: Option<Duration>,
    /// One, unless it is a batch.
    pub(crate) rows: usize,
}

impl ModelStats {
    pub(crate) fn answered(&self, times: AnsweredTimes) {
        self.success.add(times.response);
        self.queue.add(times.queued);
        self.input.add(times.input);
        self.infer.add(times.computed);
        self.output.add(times.output);
        self.responses.add(times.response);
        let is_late = times
            .timeout
            .is_some_and(|timeout| times.response > timeout);
        self.late.fetch_add(u64::from(is_late), Ordering::Relaxed);
        self.rows.fetch_add(times.rows as u64, Ordering::Relaxed);

        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = since_epoch.map_or(0, |time| time.as_millis() as u64);
        self.last_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self, why: RefusedFor, after: Duration) {
        self.fail.add(after);
        self.refused[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused_for(&self, why: RefusedFor) -> u64 {
        self.refused[why as usize].load(Ordering::Relaxed)
    }

    /// Rows of all requests that were answered.
    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    pub(crate) fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// When the last request was answered, in milliseconds since 1970; 0 if none was.
    pub(crate) fn last_ms(&self) -> u64 {
        self.last_ms.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_counts_up_to_its_bound() {
        let histogram = ResponseHistogram::default();
        for micros in [1, 50, 51, 20_000_000] {
            histogram.add(Duration::from_micros(micros));
        }
        let counts = histogram.cumulative();
        assert_eq!((counts[0], counts[1], counts[16], counts[17]), (2, 3, 3, 4));
    }

    #[test]
    fn what_is_late_is_counted() {
        let stats = ModelStats::default();
        let millis = Duration::from_millis;
        for (response, timeout) in [(4, None), (4, Some(millis(5))), (6, Some(millis(5)))] {
            let times = AnsweredTimes {
                input: millis(0),
                queued: millis(1),
                computed: millis(2),
                output: millis(0),
                response: millis(response),
                timeout,
                rows: 2,
            };
            stats.answered(times);
        }
        assert_eq!(stats.rows(), 6);
        stats.refused(RefusedFor::Full, millis(0));
        assert_eq!(
            (stats.success.count(), stats.success.total_ns()),
            (3, 14_000_000)
        );
        assert_eq!((stats.late(), stats.refused_for(RefusedFor::Full)), (1, 1));
        assert_eq!(
            (stats.fail.count(), stats.refused_for(RefusedFor::Timeout)),
            (1, 0)
        );
    }
}
