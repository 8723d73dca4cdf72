//! A segment of a calendar, ready to be submitted, and the rings that it exchanges tokens by. Knows no driver.

use zbmd_ir::RingId;

use super::HostRegion;
use super::queue::Command;

/// A ring of the device, for either side.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingInfo {
    pub(super) id: RingId,
    /// Of the receiver's buffer.
    pub(super) blocks: u64,
    pub(super) block_tokens: u64,
    pub(super) token_bytes: u64,
    pub(super) head_tokens: u64,
    pub(super) offset_bytes: u64,
    pub(super) stride_bytes: u64,
    /// Where the receiver's buffer lies, for rings that the device sends into.
    pub(super) region: Option<HostRegion>,
    /// Distance between the outbox's places of this ring.
    pub(super) outbox_stride: u64,
}

impl RingInfo {
    /// Tokens of the run up to token `end` of a block.
    pub(super) fn tokens(&self, block: u64, end: u64) -> u64 {
        block * self.block_tokens + end
    }

    /// Offset in the receiver's region and bytes of new tokens `[first, first + count)` of a block.
    pub(super) fn place(&self, block: u64, first: u64, count: u64) -> (u64, u64) {
        let place = self.offset_bytes + (block % self.blocks) * self.stride_bytes;
        (
            place + (self.head_tokens + first) * self.token_bytes,
            count * self.token_bytes,
        )
    }
}

/// Tokens that must be there before the list runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receipt {
    pub(super) stage: u32,
    pub(super) ring: u32,
    pub(super) first: u64,
    pub(super) count: u64,
}

/// What is done when the list has ended: tokens are given out, or a place back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gift {
    pub(super) stage: u32,
    pub(super) ring: u32,
    pub(super) sends: Option<Tokens>,
}

/// Tokens that are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    pub(super) first: u64,
    pub(super) count: u64,
    /// Where the device puts them, in periods of parity 0.
    pub(super) outbox: u64,
}

/// A segment, ready.
#[derive(Debug, Default)]
pub(super) struct Segment {
    pub(super) receipts: Vec<Receipt>,
    pub(super) gifts: Vec<Gift>,
    /// For each phase, commands with their stage.
    pub(super) commands: Vec<Vec<(u32, Command)>>,
}
