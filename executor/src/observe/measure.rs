//! What is measured during a run, in memory that never grows: slot times of sampled periods, and latencies from the
//! admission of a block to each sink. Knows neither graphs nor plans.

use hdrhistogram::Histogram;

use crate::transport::admission_times::AdmissionTimes;

/// Measured executions of one slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotSample {
    pub count: u64,
    pub sum_ns: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    /// Sum of starts, counted from the start of the period.
    pub start_sum_ns: u64,
}

impl SlotSample {
    pub(crate) fn record(&mut self, start_ns: u64, duration_ns: u64) {
        self.min_ns = if self.count == 0 {
            duration_ns
        } else {
            self.min_ns.min(duration_ns)
        };
        self.max_ns = self.max_ns.max(duration_ns);
        self.sum_ns = self.sum_ns.saturating_add(duration_ns);
        self.start_sum_ns = self.start_sum_ns.saturating_add(start_ns);
        self.count += 1;
    }

    /// The mean of a sum over all executions; 0 if there was none.
    pub(crate) fn mean(&self, sum_ns: u64) -> f64 {
        if self.count > 0 {
            sum_ns as f64 / self.count as f64
        } else {
            0.0
        }
    }
}

/// Latencies from one source to one sink.
pub(crate) struct LatencyPath {
    pub source: u32,
    admission_times: AdmissionTimes,
    pub histogram: Histogram<u64>,
}

impl LatencyPath {
    /// From 1 ns to 137 s with an error under 1 %, in some tens of kilobytes; longer ones count as 137 s.
    pub(crate) fn new(source: u32, admission_times: AdmissionTimes) -> Self {
        let histogram =
            Histogram::new_with_bounds(1, 1 << 37, 2).expect("bounds and precision are constants");
        Self {
            source,
            admission_times,
            histogram,
        }
    }

    pub(crate) fn record(&mut self, block: u64, now_ns: u64) {
        if let Some(at) = self.admission_times.get(block) {
            self.histogram
                .saturating_record(now_ns.saturating_sub(at).max(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::admission_times::tests::admission_times;

    #[test]
    fn samples_keep_extremes_and_sums() {
        let mut sample = SlotSample::default();
        for (start, duration) in [(5, 30), (7, 10), (9, 20)] {
            sample.record(start, duration);
        }
        let SlotSample {
            count,
            sum_ns,
            min_ns,
            max_ns,
            start_sum_ns,
        } = sample;
        assert_eq!(
            (count, sum_ns, min_ns, max_ns, start_sum_ns),
            (3, 60, 10, 30, 21)
        );
    }

    #[test]
    fn latencies_beyond_the_bounds_count_as_the_longest() {
        let admission_times = admission_times();
        admission_times.set(0, 0);
        let mut path = LatencyPath::new(0, admission_times);
        path.record(0, u64::MAX);
        path.record(1, 5);
        assert_eq!(path.histogram.len(), 1);
    }
}
