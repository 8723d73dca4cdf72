//! What is measured during a run, in memory that never grows: slot times of sampled periods, and latencies from the
//! admission of a block to each sink. Knows neither graphs nor plans.

use hdrhistogram::Histogram;

use crate::transport::arena::In;
use crate::transport::primitive::{AtomicU64, Ordering};

/// Measured executions of one slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub count: u64,
    pub sum_ns: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    /// Sum of starts, counted from the start of the period.
    pub start_sum_ns: u64,
}

impl Sample {
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
}

/// Blocks whose admission is remembered: more than are ever in flight in a pipeline that keeps up.
pub(crate) const REMEMBERED: usize = 256;

/// Block + 1, and when it was admitted; the block is written last and read first and last, so that a time is never
/// taken for another block's.
pub(crate) struct Stamp(AtomicU64, AtomicU64);

impl Stamp {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0), AtomicU64::new(0))
    }
}

/// When blocks were admitted on a device with sources. Written by its worker, read by workers with sinks.
#[derive(Clone)]
pub(crate) struct Stamps {
    entries: In<[Stamp]>,
    first: usize,
}

impl Stamps {
    /// [`REMEMBERED`] of the entries, from `first` on.
    pub(crate) fn new(entries: In<[Stamp]>, first: usize) -> Self {
        assert!(
            first + REMEMBERED <= entries.len(),
            "as many stamps as blocks remembered"
        );
        Self { entries, first }
    }

    fn of(&self, block: u64) -> &Stamp {
        &self.entries[self.first + block as usize % REMEMBERED]
    }

    pub(crate) fn set(&self, block: u64, now_ns: u64) {
        let Stamp(number, time) = self.of(block);
        number.store(0, Ordering::Release);
        crate::transport::primitive::fence(Ordering::Release);
        time.store(now_ns, Ordering::Relaxed);
        number.store(block + 1, Ordering::Release);
    }

    pub(crate) fn get(&self, block: u64) -> Option<u64> {
        let Stamp(number, time) = self.of(block);
        let before = number.load(Ordering::Acquire);
        let at = time.load(Ordering::Relaxed);
        crate::transport::primitive::fence(Ordering::Acquire);
        let after = number.load(Ordering::Relaxed);
        (before == block + 1 && after == before).then_some(at)
    }
}

/// Latencies from one source to one sink.
pub(crate) struct Path {
    pub source: u32,
    stamps: Stamps,
    pub histogram: Histogram<u64>,
}

impl Path {
    /// From 1 ns to 137 s with an error under 1 %, in some tens of kilobytes; longer ones count as 137 s.
    pub(crate) fn new(source: u32, stamps: Stamps) -> Self {
        let histogram =
            Histogram::new_with_bounds(1, 1 << 37, 2).expect("bounds and precision are constants");
        Self {
            source,
            stamps,
            histogram,
        }
    }

    pub(crate) fn record(&mut self, block: u64, now_ns: u64) {
        if let Some(at) = self.stamps.get(block) {
            self.histogram
                .saturating_record(now_ns.saturating_sub(at).max(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::arena::Arena;

    fn stamps() -> Stamps {
        let bytes = (REMEMBERED * size_of::<Stamp>()) as u64;
        let arena = std::sync::Arc::new(Arena::new(bytes, false).expect("small"));
        Stamps::new(In::create(&arena, 0, REMEMBERED, Stamp::new), 0)
    }

    #[test]
    fn stamps_forget_old_blocks_and_never_mix_them_up() {
        let stamps = stamps();
        assert_eq!(stamps.get(0), None);
        for block in 0..3 * REMEMBERED as u64 {
            stamps.set(block, 10 * block);
            assert_eq!(stamps.get(block), Some(10 * block));
            assert_eq!(stamps.get(block + 1), None);
            if let Some(old) = block.checked_sub(REMEMBERED as u64) {
                assert_eq!(stamps.get(old), None);
            }
        }
    }

    #[test]
    fn samples_keep_extremes_and_sums() {
        let mut sample = Sample::default();
        for (start, duration) in [(5, 30), (7, 10), (9, 20)] {
            sample.record(start, duration);
        }
        let Sample {
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
        let stamps = stamps();
        stamps.set(0, 0);
        let mut path = Path::new(0, stamps);
        path.record(0, u64::MAX);
        path.record(1, 5);
        assert_eq!(path.histogram.len(), 1);
    }
}
