//! Copies of what a worker writes, on their way to whoever looks into a run.
//!
//! An epoch has one of these. Whoever looks asks for a target of one calendar; that calendar's worker sees it at its next
//! period, and from then on copies whole blocks into places, as long as one is free. Nobody waits for anybody: a block for
//! which there is no place is not copied.
//!
//! # The protocol
//!
//! `request` is the ticket of what is asked for, or 0; who asks stores `calendar` and `target` while it is 0. A worker that
//! has read a ticket and then another's target sees at [`ProbeRing::claim`] that the ticket is no longer wanted. `busy` is
//! the ticket for which a worker writes in this period: of a worker that still writes for an old ticket and one that begins
//! with a new one, the second leaves the period out. So one thread at a time writes places and `written`; the reader alone
//! stores `taken`, and each place says for which ticket it was written.
//!
//! Must not know kernels, or what the bytes mean.
#![expect(
    unsafe_code,
    reason = "copies bytes into places in shared memory, and finds them there"
)]

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use zbmd_ir::Plan;

use super::arena::{Arena, In};
use super::primitive::{AtomicU32, AtomicU64, Ordering};

/// Blocks of more bytes are not copied.
pub(crate) const MAX_PLACE_BYTES: u64 = 16 << 20;
/// A place has as many at least: the times of a few thousand slots.
const MIN_PLACE_BYTES: u64 = 1 << 16;
/// Places take as many together, unless two take more.
const ALL_PLACES_BYTES: u64 = 1 << 20;
/// A reader that is late by more blocks misses some.
const MAX_PLACES: u64 = 16;

/// What is asked for, in words that workers read once a period.
struct ProbeWords {
    request: AtomicU64,
    calendar: AtomicU32,
    target: AtomicU32,
    busy: AtomicU64,
}

/// How far both sides are: places written, and places read.
struct ProbeCounts {
    written: CachePadded<AtomicU64>,
    taken: CachePadded<AtomicU64>,
}

/// What a place holds.
struct PlaceHead {
    ticket: AtomicU64,
    block: AtomicU64,
    bytes: AtomicU64,
}

/// How many places there are, and of how many bytes, for blocks of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlaceSizes {
    count: u64,
    bytes: u64,
}

impl PlaceSizes {
    fn of(block_bytes: impl Iterator<Item = u64>) -> Self {
        let fitting = block_bytes.filter(|bytes| *bytes <= MAX_PLACE_BYTES);
        let bytes = fitting.max().unwrap_or(0).max(MIN_PLACE_BYTES);
        let bytes = bytes.next_multiple_of(align_of::<CachePadded<u8>>() as u64);
        Self {
            count: (ALL_PLACES_BYTES / bytes).clamp(2, MAX_PLACES),
            bytes,
        }
    }
}

/// Where it is in an epoch's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbePlace {
    words: u64,
    counts: u64,
    heads: u64,
    data: u64,
    sizes: PlaceSizes,
}

impl ProbePlace {
    /// Takes its places from `take`, which is told how many bytes each has.
    pub(super) fn new(
        graph: &zbmd_ir::Graph,
        plan: &Plan,
        mut take: impl FnMut(u64) -> u64,
    ) -> Self {
        let block_bytes = plan.buffers.iter().map(|buffer| {
            let token_bytes = graph.channels[buffer.channel].token.bytes();
            buffer.block_tokens.saturating_mul(token_bytes)
        });
        let sizes = PlaceSizes::of(block_bytes);
        Self {
            words: take(size_of::<CachePadded<ProbeWords>>() as u64),
            counts: take(size_of::<ProbeCounts>() as u64),
            heads: take(size_of::<PlaceHead>() as u64 * sizes.count),
            data: take(sizes.bytes * sizes.count),
            sizes,
        }
    }
}

/// The copies of one epoch, in shared memory.
#[derive(Clone)]
pub(crate) struct ProbeRing {
    words: In<CachePadded<ProbeWords>>,
    counts: In<ProbeCounts>,
    heads: In<[PlaceHead]>,
    arena: Arc<Arena>,
    data_offset: u64,
    sizes: PlaceSizes,
}

impl ProbeRing {
    pub(super) fn create(arena: &Arc<Arena>, place: ProbePlace) -> Self {
        let ProbePlace { sizes, .. } = place;
        let words = In::create(arena, place.words, 1, || {
            CachePadded::new(ProbeWords {
                request: AtomicU64::new(0),
                calendar: AtomicU32::new(0),
                target: AtomicU32::new(0),
                busy: AtomicU64::new(0),
            })
        });
        let counts = In::create(arena, place.counts, 1, || ProbeCounts {
            written: CachePadded::new(AtomicU64::new(0)),
            taken: CachePadded::new(AtomicU64::new(0)),
        });
        let heads = In::create(arena, place.heads, sizes.count as usize, || PlaceHead {
            ticket: AtomicU64::new(0),
            block: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        Self {
            words: words.one(0),
            counts: counts.one(0),
            heads,
            arena: Arc::clone(arena),
            data_offset: place.data,
            sizes,
        }
    }

    /// The copies that another process has created.
    ///
    /// # Safety
    /// [`Self::create`] has made them there for the same place.
    pub(super) unsafe fn find(arena: &Arc<Arena>, place: ProbePlace) -> Self {
        let count = place.sizes.count as usize;
        // SAFETY: the caller's promise, for all three.
        unsafe {
            Self {
                words: In::find(arena, place.words, 1).one(0),
                counts: In::find(arena, place.counts, 1).one(0),
                heads: In::find(arena, place.heads, count),
                arena: Arc::clone(arena),
                data_offset: place.data,
                sizes: place.sizes,
            }
        }
    }

    /// Bytes of a place: blocks of more are not copied.
    pub(crate) fn place_bytes(&self) -> usize {
        self.sizes.bytes as usize
    }

    fn data(&self, place: u64) -> *mut u8 {
        let offset = self.data_offset + place * self.sizes.bytes;
        self.arena.base().wrapping_add(offset as usize)
    }
}

/// The side of whoever looks. One thread at a time.
impl ProbeRing {
    /// Asks for a target of a calendar. Tickets are never used twice, and none is 0.
    pub(crate) fn request(&self, ticket: u64, calendar: u32, target: u32) {
        self.withdraw();
        self.words.calendar.store(calendar, Ordering::Release);
        self.words.target.store(target, Ordering::Release);
        self.words.request.store(ticket, Ordering::SeqCst);
    }

    /// Asks for nothing any more.
    pub(crate) fn withdraw(&self) {
        self.words.request.store(0, Ordering::SeqCst);
    }

    /// The oldest block that was copied for a ticket and not taken yet, into `bytes`; its number in the epoch.
    pub(crate) fn take(&self, ticket: u64, bytes: &mut Vec<u8>) -> Option<u64> {
        let mut taken = self.counts.taken.load(Ordering::Relaxed);
        // Partner: the release in `publish`.
        while taken < self.counts.written.load(Ordering::Acquire) {
            let place = taken % self.sizes.count;
            let head = &self.heads[place as usize];
            let is_wanted = head.ticket.load(Ordering::Relaxed) == ticket;
            let block = head.block.load(Ordering::Relaxed);
            if is_wanted {
                let count = head.bytes.load(Ordering::Relaxed).min(self.sizes.bytes) as usize;
                bytes.clear();
                bytes.resize(count, 0);
                // SAFETY: the place lies in the arena and was published; nobody writes it before it is taken.
                unsafe {
                    bytes
                        .as_mut_ptr()
                        .copy_from_nonoverlapping(self.data(place), count)
                };
            }
            taken += 1;
            // Partner: the acquire in `has_free_place`.
            self.counts.taken.store(taken, Ordering::Release);
            if is_wanted {
                return Some(block);
            }
        }
        None
    }
}

/// The side of workers.
impl ProbeRing {
    /// The ticket of what is asked for; 0 for nothing.
    #[inline]
    pub(crate) fn requested(&self) -> u64 {
        self.words.request.load(Ordering::Acquire)
    }

    /// What is asked for, as calendar and target: of the ticket that was read before, if [`Self::claim`] says so.
    pub(crate) fn wanted(&self) -> (u32, u32) {
        let calendar = self.words.calendar.load(Ordering::Acquire);
        let target = self.words.target.load(Ordering::Acquire);
        (calendar, target)
    }

    /// Whether this worker alone may copy until [`Self::release`].
    pub(crate) fn claim(&self, ticket: u64) -> bool {
        let busy = &self.words.busy;
        let claimed = busy.compare_exchange(0, ticket, Ordering::SeqCst, Ordering::Relaxed);
        if claimed.is_err() {
            return false;
        }
        let is_wanted = self.words.request.load(Ordering::SeqCst) == ticket;
        if !is_wanted {
            self.release();
        }
        is_wanted
    }

    /// The period is over. Whoever claims next sees what this worker wrote.
    pub(crate) fn release(&self) {
        self.words.busy.store(0, Ordering::SeqCst);
    }

    /// Whether another block can be copied. Only for whoever has a claim, as what follows.
    pub(crate) fn has_free_place(&self) -> bool {
        let written = self.counts.written.load(Ordering::Relaxed);
        // Partner: the release in `take`.
        let taken = self.counts.taken.load(Ordering::Acquire);
        written.wrapping_sub(taken) < self.sizes.count
    }

    /// Copies a part of a block into the next place, which is free.
    ///
    /// # Safety
    /// `count` bytes can be read at `from`, and nobody writes them.
    ///
    /// # Panics
    /// If the place has no room for them there.
    pub(crate) unsafe fn copy(&self, offset: usize, from: *const u8, count: usize) {
        let fits = offset
            .checked_add(count)
            .is_some_and(|end| end <= self.place_bytes());
        assert!(
            fits,
            "{count} bytes at {offset} of a place of {}",
            self.sizes.bytes
        );
        let place = self.counts.written.load(Ordering::Relaxed) % self.sizes.count;
        let to = self.data(place).wrapping_add(offset);
        // SAFETY: the caller's promise; the place is free, so that nobody reads it, and this worker alone has a claim.
        unsafe { to.copy_from_nonoverlapping(from, count) };
    }

    /// Gives the next place to the reader.
    pub(crate) fn publish(&self, ticket: u64, block: u64, bytes: usize) {
        let written = self.counts.written.load(Ordering::Relaxed);
        let head = &self.heads[(written % self.sizes.count) as usize];
        head.ticket.store(ticket, Ordering::Relaxed);
        head.block.store(block, Ordering::Relaxed);
        head.bytes.store(bytes as u64, Ordering::Relaxed);
        // Partner: the acquire in `take`.
        self.counts.written.store(written + 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::testing::programs;

    fn ring() -> ProbeRing {
        let program = programs::chain();
        let mut end = 0;
        let place = ProbePlace::new(
            &program.graph,
            &program.plans[zbmd_ir::PlanId(0)],
            |bytes| {
                let offset = end;
                end = (end + bytes).next_multiple_of(128);
                offset
            },
        );
        let arena = Arc::new(Arena::new(end, false).expect("little memory"));
        ProbeRing::create(&arena, place)
    }

    fn write(ring: &ProbeRing, ticket: u64, block: u64) {
        let bytes = block.to_le_bytes();
        // SAFETY: these bytes are there.
        unsafe { ring.copy(0, bytes.as_ptr(), bytes.len()) };
        ring.publish(ticket, block, bytes.len());
    }

    #[test]
    fn blocks_come_in_order_and_those_without_a_place_are_left_out() {
        let ring = ring();
        ring.request(1, 0, 0);
        let mut found = Vec::new();
        for block in 0..40 {
            assert!(ring.claim(1));
            if ring.has_free_place() {
                write(&ring, 1, block);
            }
            ring.release();
            // The reader looks once in twenty blocks.
            let mut bytes = Vec::new();
            while block % 20 == 19
                && let Some(number) = ring.take(1, &mut bytes)
            {
                assert_eq!(bytes, number.to_le_bytes());
                found.push(number);
            }
        }
        let expected: Vec<u64> = (0..16).chain(20..36).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_worker_of_an_old_ticket_leaves_nothing_to_the_new_one() {
        let ring = ring();
        ring.request(1, 0, 5);
        assert!(ring.claim(1));
        ring.request(2, 1, 6);
        assert!(!ring.claim(2), "the other worker is not done");
        write(&ring, 1, 7);
        ring.release();
        assert!(!ring.claim(1), "no longer wanted");

        assert_eq!((ring.requested(), ring.wanted()), (2, (1, 6)));
        assert!(ring.claim(2));
        write(&ring, 2, 9);
        ring.release();
        let mut bytes = Vec::new();
        assert_eq!(ring.take(2, &mut bytes), Some(9));
        assert_eq!(ring.take(2, &mut bytes), None);
        ring.withdraw();
        assert!(!ring.claim(2));
    }

    #[test]
    fn places_hold_the_longest_block_that_is_copied() {
        for (blocks, count, bytes) in [
            (vec![1, 100], 16, MIN_PLACE_BYTES),
            (vec![100_000], 10, 100_096),
            (vec![3 << 20, 1], 2, 3 << 20),
            (vec![MAX_PLACE_BYTES + 1, 8], 16, MIN_PLACE_BYTES),
        ] {
            let sizes = PlaceSizes::of(blocks.into_iter());
            assert_eq!(sizes, PlaceSizes { count, bytes });
        }
    }
}
