//! A segment of a calendar, ready to be submitted, and the rings that it exchanges tokens by. Knows no driver.

use zbmd_ir::RingId;

use super::HostRegion;
use super::gates::PartGate;
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
    /// The receiver's exchange region, for rings that the device sends into.
    pub(super) region: Option<HostRegion>,
    /// Distance between the outbox's places of this ring.
    pub(super) outbox_stride: u64,
}

/// Bytes of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenPlace {
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl RingInfo {
    /// Tokens of the run up to token `end` of a block.
    pub(super) fn tokens_until(&self, block: u64, end: u64) -> u64 {
        block * self.block_tokens + end
    }

    /// Where the receiver's region has the new tokens `[first, first + count)` of a block.
    pub(super) fn token_place(&self, block: u64, first: u64, count: u64) -> TokenPlace {
        let block_offset = self.offset_bytes + (block % self.blocks) * self.stride_bytes;
        TokenPlace {
            offset: block_offset + (self.head_tokens + first) * self.token_bytes,
            len: count * self.token_bytes,
        }
    }
}

/// Tokens that must be published before the list runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receipt {
    pub(super) stage: u32,
    pub(super) ring: u32,
    pub(super) first: u64,
    pub(super) count: u64,
}

/// What is done when the list has ended: tokens are sent, or a place is released.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handover {
    pub(super) stage: u32,
    pub(super) ring: u32,
    /// None for a release.
    pub(super) sends: Option<SentTokens>,
}

/// Tokens that are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentTokens {
    pub(super) first: u64,
    pub(super) count: u64,
    /// Where the device writes them, in periods of parity 0.
    pub(super) outbox: u64,
}

/// A segment with its commands.
#[derive(Debug, Default)]
pub(super) struct ReadySegment {
    pub(super) receipts: Vec<Receipt>,
    pub(super) handovers: Vec<Handover>,
    /// At least one.
    pub(super) parts: Vec<SegmentPart>,
    /// The number of the first one among all parts of the calendar.
    pub(super) first_part: usize,
}

/// What of a segment is one list.
#[derive(Debug, Default)]
pub(super) struct SegmentPart {
    /// Calls behind gates.
    pub(super) gates: Vec<PartGate>,
    /// Where one of them is open.
    pub(super) open: PhaseCommands,
    /// Where all are closed; nothing without gates.
    pub(super) closed: PhaseCommands,
}

/// For each phase, commands with the stage that they belong to; `None`: they run in every period. Weights are fetched in
/// all of them, as their places may be another actor's in between.
pub(super) type PhaseCommands = Vec<Vec<(Option<u32>, Command)>>;

impl SegmentPart {
    /// Its commands.
    pub(super) fn commands(&self, is_closed: bool) -> &PhaseCommands {
        match is_closed {
            true => &self.closed,
            false => &self.open,
        }
    }
}
