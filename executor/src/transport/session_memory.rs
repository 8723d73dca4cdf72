//! The memory that a session shares with its workers: the source queues, which keep their tokens from one epoch to the
//! next, and the arrivals at which workers wait for tokens.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::arena::{Arena, In, OutOfMemory};
use super::arrivals::ArrivalParkers;
use super::conduit::Conduit;
use super::layout::{Cursor, map_arena};

/// The memory that lives as long as the session.
pub(crate) struct SessionMemory {
    pub arena: Arc<Arena>,
    pub arrivals: In<ArrivalParkers>,
    pub sources: Vec<Arc<Conduit>>,
}

/// The source queues: capacity in tokens and bytes of a token, in actor order.
pub(crate) type Queues = Vec<(u64, u64)>;

impl SessionMemory {
    fn places(queues: &Queues) -> (u64, Vec<(u64, u64)>, Cursor) {
        let mut cursor = Cursor::default();
        let arrivals = cursor.take(size_of::<ArrivalParkers>() as u64);
        let places = queues.iter().map(|&(capacity, token_bytes)| {
            let ends = cursor.take(Conduit::ENDS_BYTES);
            (ends, cursor.take(capacity.saturating_mul(token_bytes)))
        });
        (arrivals, places.collect(), cursor)
    }

    /// Bytes that [`Self::create`] takes; the largest number where that cannot be had.
    pub(crate) fn bytes(queues: &Queues) -> u64 {
        Self::places(queues).2.0
    }

    pub(crate) fn create(queues: &Queues) -> Result<Self, OutOfMemory> {
        let (arrivals, places, cursor) = Self::places(queues);
        let arena = Arc::new(Arena::shared(cursor.0, false)?);
        let arrivals = In::create(&arena, arrivals, 1, ArrivalParkers::new).one(0);
        let sources = places
            .iter()
            .zip(queues)
            .map(|(&place, &(capacity, token_bytes))| {
                let arrivals = Some(arrivals.clone());
                Arc::new(Conduit::create(
                    &arena,
                    place,
                    capacity,
                    token_bytes,
                    arrivals,
                ))
            });
        Ok(Self {
            sources: sources.collect(),
            arrivals,
            arena,
        })
    }

    /// The session's memory as another process has created it.
    ///
    /// # Safety
    /// The file holds the memory that [`Self::create`] of this very program made for the same `queues`.
    #[expect(
        unsafe_code,
        reason = "believes what another process says lies in shared memory"
    )]
    pub(crate) unsafe fn find(fd: OwnedFd, queues: &Queues) -> std::io::Result<Self> {
        let (arrivals, places, cursor) = Self::places(queues);
        let arena = map_arena(fd, cursor)?;
        // SAFETY: the caller's promise.
        let arrivals = unsafe { In::<[ArrivalParkers]>::find(&arena, arrivals, 1) }.one(0);
        let sources = places
            .iter()
            .zip(queues)
            .map(|(&place, &(capacity, token_bytes))| {
                let arrivals = Some(arrivals.clone());
                // SAFETY: the caller's promise.
                Arc::new(unsafe { Conduit::find(&arena, place, capacity, token_bytes, arrivals) })
            });
        Ok(Self {
            sources: sources.collect(),
            arrivals,
            arena,
        })
    }
}
