//! The memory that one worker knows: its device's own arena, and what all workers of the epoch share.

use std::sync::Arc;

use zbmd_ir::{Buffer, Calendar, DeviceId, Region};

use crate::transport::arena::{Arena, OutOfMemory};
use crate::transport::epoch::EpochMemory;

/// A CPU device's own arena, and the epoch's memory.
pub(crate) struct WorkerMemory {
    pub own: Arc<Arena>,
    pub epoch: Arc<EpochMemory>,
    device: DeviceId,
}

impl WorkerMemory {
    /// Takes the arena of a calendar's device, on a node of the computer's memory if one is better than others.
    ///
    /// # Errors
    /// Too little memory.
    pub(crate) fn new(
        calendar: &Calendar,
        epoch: Arc<EpochMemory>,
        lock: bool,
        node: Option<u32>,
    ) -> Result<Self, OutOfMemory> {
        Ok(Self {
            own: Arc::new(Arena::near(calendar.arena_bytes, lock, node)?),
            epoch,
            device: calendar.device,
        })
    }

    /// The same addresses without the arena: to see what a calendar is lowered to, not to run it.
    ///
    /// # Errors
    /// No memory at all.
    pub(crate) fn sketch(
        calendar: &Calendar,
        epoch: &Arc<EpochMemory>,
    ) -> Result<Self, OutOfMemory> {
        Ok(Self {
            own: Arc::new(Arena::new(1, false)?),
            epoch: Arc::clone(epoch),
            device: calendar.device,
        })
    }

    /// First byte of a buffer's first place.
    ///
    /// # Panics
    /// If it is in another device's private arena.
    pub(crate) fn base(&self, buffer: &Buffer) -> *mut u8 {
        let region = match buffer.region {
            Region::Exchange => self.epoch.exchange(buffer.device),
            Region::Arena => {
                assert_eq!(
                    buffer.device, self.device,
                    "a private arena of another device"
                );
                self.own.base()
            }
        };
        region.wrapping_add(buffer.offset_bytes as usize)
    }

    /// Whether a buffer is this worker's to read.
    pub(crate) fn owns(&self, buffer: &Buffer) -> bool {
        buffer.device == self.device
    }

    /// Bytes of the private arena, and how many of them the system keeps from being paged out.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let bytes = self.own.bytes() as u64;
        (bytes, if self.own.is_locked() { bytes } else { 0 })
    }
}
