//! When blocks were admitted, in shared memory: latencies are measured from there. Knows no clock.

use super::arena::In;
use super::primitive::{AtomicU64, Ordering, fence};

/// Blocks whose admission is remembered: more than are ever in flight in a pipeline that keeps up.
pub(crate) const REMEMBERED_BLOCKS: usize = 256;

/// Block + 1, and when it was admitted; the block is written last and read first and last, so that a time is never
/// taken for another block's.
pub(crate) struct AdmissionTime(AtomicU64, AtomicU64);

impl AdmissionTime {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0), AtomicU64::new(0))
    }
}

/// When blocks were admitted on a device with sources. Written by its worker, read by workers with sinks.
#[derive(Clone)]
pub(crate) struct AdmissionTimes {
    entries: In<[AdmissionTime]>,
    first: usize,
}

impl AdmissionTimes {
    /// [`REMEMBERED_BLOCKS`] of the entries, from `first` on.
    pub(crate) fn new(entries: In<[AdmissionTime]>, first: usize) -> Self {
        assert!(
            first + REMEMBERED_BLOCKS <= entries.len(),
            "as many admission_times as blocks remembered"
        );
        Self { entries, first }
    }

    fn of(&self, block: u64) -> &AdmissionTime {
        &self.entries[self.first + block as usize % REMEMBERED_BLOCKS]
    }

    pub(crate) fn set(&self, block: u64, now_ns: u64) {
        let AdmissionTime(number, time) = self.of(block);
        number.store(0, Ordering::Release);
        fence(Ordering::Release);
        time.store(now_ns, Ordering::Relaxed);
        number.store(block + 1, Ordering::Release);
    }

    pub(crate) fn get(&self, block: u64) -> Option<u64> {
        let AdmissionTime(number, time) = self.of(block);
        let before = number.load(Ordering::Acquire);
        let at = time.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let after = number.load(Ordering::Relaxed);
        (before == block + 1 && after == before).then_some(at)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::transport::arena::Arena;

    pub(crate) fn admission_times() -> AdmissionTimes {
        let bytes = (REMEMBERED_BLOCKS * size_of::<AdmissionTime>()) as u64;
        let arena = std::sync::Arc::new(Arena::new(bytes, false).expect("small"));
        AdmissionTimes::new(
            In::create(&arena, 0, REMEMBERED_BLOCKS, AdmissionTime::new),
            0,
        )
    }

    #[test]
    fn stamps_forget_old_blocks_and_never_mix_them_up() {
        let admission_times = admission_times();
        assert_eq!(admission_times.get(0), None);
        for block in 0..3 * REMEMBERED_BLOCKS as u64 {
            admission_times.set(block, 10 * block);
            assert_eq!(admission_times.get(block), Some(10 * block));
            assert_eq!(admission_times.get(block + 1), None);
            if let Some(old) = block.checked_sub(REMEMBERED_BLOCKS as u64) {
                assert_eq!(admission_times.get(old), None);
            }
        }
    }
}
