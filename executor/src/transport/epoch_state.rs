//! The words that the workers of an epoch, and whoever watches them, look at.

use crossbeam_utils::CachePadded;

use super::admission::AdmissionGrants;
use super::primitive::{AtomicU32, AtomicU64, Ordering};
use super::ring::{Parker, Stop};

/// The last committed border of an epoch, shifted by one, and in the lowest bit whether that is final.
///
/// Because both are one word, a border that a worker would commit after the fence is refused as a whole: whatever is
/// released or written over because of a commit, the next epoch begins at that commit or after it.
pub(crate) struct Committed(CachePadded<AtomicU64>);

impl Committed {
    pub(super) fn new() -> Self {
        Self(CachePadded::new(AtomicU64::new(0)))
    }

    /// The last committed border.
    pub(crate) fn border(&self) -> u64 {
        self.0.load(Ordering::Acquire) >> 1
    }

    /// Commits a border; false if a later one is committed already, or the epoch is fenced.
    pub(crate) fn advance(&self, border: u64) -> bool {
        let mut word = self.0.load(Ordering::Acquire);
        while word & 1 == 0 && word >> 1 < border {
            let next = border << 1;
            match self
                .0
                .compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Nothing is committed any more; the last border that was.
    pub(crate) fn seal(&self) -> u64 {
        self.0.fetch_or(1, Ordering::AcqRel) >> 1
    }
}

/// What all workers of an epoch look at.
pub(crate) struct EpochCommon {
    pub stop: Stop,
    pub grants: AdmissionGrants,
    pub committed: Committed,
    /// A border whose area somebody is reading; 0 for none.
    pub held: AtomicU64,
    /// Set to spoil the next transfer that has a checksum: an injected fault.
    pub corrupt: AtomicU32,
    /// Where workers wait for a border to be committed, or an area to be released.
    pub commits: CachePadded<Parker>,
}

impl EpochCommon {
    pub(super) fn new() -> Self {
        Self {
            stop: Stop::new(),
            grants: AdmissionGrants::new(),
            committed: Committed::new(),
            held: AtomicU64::new(0),
            corrupt: AtomicU32::new(0),
            commits: CachePadded::new(Parker::new()),
        }
    }
}

/// What one worker publishes: written by it alone, on cache lines of its own.
pub(crate) struct WorkerStatus {
    /// Periods done.
    pub periods: AtomicU64,
    /// The instruction at work, or [`WorkerStatus::BETWEEN_PERIODS`].
    pub pc: AtomicU32,
    /// The system's number of its thread; 0 before it begins.
    pub thread: AtomicU32,
    /// When it gave out the first token that had not been given out before, on the clock of the run; 0 before.
    pub first_output_ns: AtomicU64,
    /// Changes of live parameters that it has taken.
    pub changes_taken: AtomicU64,
    /// Set when it has ended, however it did: it touches no tokens any more.
    pub has_left: AtomicU32,
}

impl WorkerStatus {
    /// Between two periods, waiting for admission.
    pub(crate) const BETWEEN_PERIODS: u32 = u32::MAX;

    pub(super) fn new() -> CachePadded<Self> {
        CachePadded::new(Self {
            periods: AtomicU64::new(0),
            pc: AtomicU32::new(Self::BETWEEN_PERIODS),
            thread: AtomicU32::new(0),
            first_output_ns: AtomicU64::new(0),
            changes_taken: AtomicU64::new(0),
            has_left: AtomicU32::new(0),
        })
    }
}
