//! Where the workers of an epoch sleep until the tokens of sources arrive.

use crossbeam_utils::CachePadded;

use super::primitive::{AtomicU64, Ordering, fence};
use super::ring::Parker;

/// Parkers in a row: a worker of an old epoch shares one only with an epoch so many later.
const PARKERS: usize = 64;

/// Where workers wait for the tokens of sources: one parker for each epoch, so that what a dead worker left behind at
/// its parker does not concern the next.
pub(crate) struct ArrivalParkers {
    epoch: CachePadded<AtomicU64>,
    parkers: [CachePadded<Parker>; PARKERS],
}

impl ArrivalParkers {
    pub(crate) fn new() -> Self {
        Self {
            epoch: CachePadded::new(AtomicU64::new(0)),
            parkers: std::array::from_fn(|_| CachePadded::new(Parker::new())),
        }
    }

    /// The parker of an epoch.
    pub(crate) fn of_epoch(&self, epoch: u64) -> &Parker {
        &self.parkers[epoch as usize % PARKERS]
    }

    /// The parker of the present epoch.
    pub(crate) fn current(&self) -> &Parker {
        self.of_epoch(self.epoch.load(Ordering::Acquire))
    }

    /// Makes `epoch` the one whose workers are woken. Before its workers begin.
    pub(crate) fn open(&self, epoch: u64) {
        self.of_epoch(epoch).reset();
        self.epoch.store(epoch, Ordering::Release);
    }

    /// Wakes the workers of the present epoch. Whoever published before a worker of that epoch began has published
    /// before it looks for the first time: it cannot miss a wake-up that went to the parker before.
    pub(crate) fn notify(&self) {
        // Orders the publication before the look at `epoch`; partner: the fence in `Parker::wait_until`.
        fence(Ordering::SeqCst);
        self.current().notify();
    }
}
