//! The memory that a session shares with its workers: the source queues, which keep their tokens from one epoch to the
//! next, and the parkers at which workers wait for tokens.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::arena::{Arena, In, OutOfMemory};
use super::arrivals::ArrivalParkers;
use super::conduit::{Conduit, ConduitPlace};
use super::layout::{LayoutCursor, check_size};

/// The memory that lives as long as the session.
pub(crate) struct SessionMemory {
    pub arena: Arc<Arena>,
    pub arrivals: In<ArrivalParkers>,
    pub sources: Vec<Arc<Conduit>>,
}

/// The source queues: capacity in tokens and bytes of a token, in actor order.
pub(crate) type Queues = Vec<(u64, u64)>;

/// Where everything is in a session's memory.
struct SessionLayout {
    arrivals: u64,
    sources: Vec<ConduitPlace>,
    bytes: u64,
}

impl SessionLayout {
    fn new(queues: &Queues) -> Self {
        let mut cursor = LayoutCursor::default();
        let arrivals = cursor.take(size_of::<ArrivalParkers>() as u64);
        let sources = queues.iter();
        let sources = sources
            .map(|&(capacity, token_bytes)| cursor.take_queue(capacity, token_bytes))
            .collect();
        Self {
            arrivals,
            sources,
            bytes: cursor.end_offset,
        }
    }
}

impl SessionMemory {
    /// Bytes that [`Self::create`] takes; the largest number where that cannot be had.
    pub(crate) fn bytes(queues: &Queues) -> u64 {
        SessionLayout::new(queues).bytes
    }

    /// Takes the memory, with empty queues in it.
    ///
    /// # Errors
    /// Too little memory.
    pub(crate) fn create(queues: &Queues) -> Result<Self, OutOfMemory> {
        let layout = SessionLayout::new(queues);
        let arena = Arc::new(Arena::shared(layout.bytes)?);
        arena.make_present(0..layout.bytes, false);
        let arrivals = In::create(&arena, layout.arrivals, 1, ArrivalParkers::new).one(0);
        let sources = layout.sources.iter().zip(queues);
        let sources = sources.map(|(&place, &(capacity, token_bytes))| {
            let parkers = Some(arrivals.clone());
            let queue = Conduit::create(&arena, place, capacity, token_bytes, parkers);
            Arc::new(queue)
        });
        Ok(Self {
            sources: sources.collect(),
            arrivals,
            arena,
        })
    }

    /// The session's memory as another process has created it.
    ///
    /// # Errors
    /// The file cannot be mapped, or is too short.
    ///
    /// # Safety
    /// The file holds the memory that [`Self::create`] of this very program made for the same `queues`.
    #[expect(
        unsafe_code,
        reason = "believes what another process says is in shared memory"
    )]
    pub(crate) unsafe fn find(fd: OwnedFd, queues: &Queues) -> std::io::Result<Self> {
        let layout = SessionLayout::new(queues);
        let arena = Arc::new(Arena::map(fd)?);
        check_size(&arena, layout.bytes)?;
        arena.make_present(0..layout.bytes, false);
        // SAFETY: the caller's promise.
        let arrivals = unsafe { In::<[ArrivalParkers]>::find(&arena, layout.arrivals, 1) }.one(0);
        let sources = layout.sources.iter().zip(queues);
        let sources = sources.map(|(&place, &(capacity, token_bytes))| {
            let parkers = Some(arrivals.clone());
            // SAFETY: the caller's promise.
            let queue = unsafe { Conduit::find(&arena, place, capacity, token_bytes, parkers) };
            Arc::new(queue)
        });
        Ok(Self {
            sources: sources.collect(),
            arrivals,
            arena,
        })
    }
}
