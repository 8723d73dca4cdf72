//! A worker's copies for whoever looks into its run: of what its slots write to a channel, or of when its slots end. Must
//! not know who looks.
//!
//! Tokens are copied right behind the slot that wrote them: later in the block their bytes may be others'.
#![expect(
    unsafe_code,
    reason = "copies tokens through the addresses of a verified calendar"
)]

use std::ops::Range;

use zbmd_ir::ChannelId;

use crate::transport::probe_ring::ProbeRing;

/// The target that stands for the times of a calendar's slots.
pub(crate) const SLOT_TIMES: u32 = u32::MAX;
/// Bytes of one slot's time: its number in the calendar and the nanoseconds since the period began, each a `u32`.
pub(crate) const SLOT_TIME_BYTES: usize = 8;

/// An instruction behind which tokens of a channel are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeTap {
    pub channel: ChannelId,
    /// The instruction.
    pub pc: u32,
    /// The port where they are, and whether it moves on in a loop; otherwise it is that of the block's first token.
    pub port: u32,
    pub moves: bool,
    /// What counts in a loop, or [`NO_COUNTER`](super::instructions::NO_COUNTER).
    pub counter: u32,
    /// Outside of loops, the first of the block that it counts; and how many it does at once.
    pub first: u64,
    pub count: u64,
    /// Bytes of each.
    pub unit_bytes: u64,
    /// Bytes of the channel's block.
    pub block_bytes: u64,
}

/// The taps of a calendar.
#[derive(Debug, Default)]
pub(crate) struct ProbeTaps(Box<[ProbeTap]>);

impl ProbeTaps {
    pub(crate) fn new(mut taps: Vec<ProbeTap>) -> Self {
        taps.sort_by_key(|tap| (tap.channel, tap.pc));
        Self(taps.into())
    }

    fn of_channel(&self, channel: ChannelId) -> Range<usize> {
        let first = self.0.partition_point(|tap| tap.channel < channel);
        let end = self.0.partition_point(|tap| tap.channel <= channel);
        first..end
    }
}

/// Where the tokens of a tap are now.
#[derive(Clone, Copy, Debug)]
pub(super) struct TappedTokens {
    pub from: *const u8,
    /// Where they belong in the block.
    pub offset_bytes: usize,
    pub bytes: usize,
    pub block: u64,
    pub block_bytes: usize,
}

/// What one worker copies, in an epoch.
pub(super) struct ProbeRecorder {
    ring: ProbeRing,
    calendar: u32,
    /// What was asked for when it last looked.
    ticket: u64,
    target: u32,
    /// The taps of the target, none if it is another worker's.
    taps: Range<usize>,
    /// The block that is copied, and how much of it.
    block: Option<u64>,
    copied_bytes: usize,
}

impl ProbeRecorder {
    pub(super) fn new(ring: ProbeRing, calendar: usize) -> Self {
        Self {
            ring,
            calendar: calendar as u32,
            ticket: 0,
            target: 0,
            taps: 0..0,
            block: None,
            copied_bytes: 0,
        }
    }

    /// Whether slots of this period are to be looked at. If so, [`Self::end`] is called behind it.
    #[inline]
    pub(super) fn begin(&mut self, taps: &ProbeTaps, period: u64) -> bool {
        let ticket = self.ring.requested();
        ticket != 0 && self.begin_for(ticket, taps, period)
    }

    #[cold]
    fn begin_for(&mut self, ticket: u64, taps: &ProbeTaps, period: u64) -> bool {
        if ticket != self.ticket {
            let (calendar, target) = self.ring.wanted();
            self.ticket = ticket;
            self.target = target;
            self.block = None;
            self.taps = match calendar == self.calendar {
                true if target == SLOT_TIMES => 0..1,
                true => taps.of_channel(ChannelId(target)),
                false => 0..0,
            };
        }
        if self.taps.is_empty() || !self.ring.claim(ticket) {
            return false;
        }
        if self.target == SLOT_TIMES {
            self.copied_bytes = 0;
            self.block = self.ring.has_free_place().then_some(period);
        }
        true
    }

    /// Behind the last slot of a period.
    pub(super) fn end(&mut self) {
        if self.target == SLOT_TIMES
            && let Some(period) = self.block.take()
        {
            self.ring.publish(self.ticket, period, self.copied_bytes);
        }
        self.ring.release();
    }

    /// What is copied behind an instruction of this period.
    pub(super) fn tap_behind<'a>(&self, taps: &'a ProbeTaps, pc: usize) -> Option<&'a ProbeTap> {
        if self.target == SLOT_TIMES {
            return None;
        }
        let taps = &taps.0[self.taps.clone()];
        let place = taps.binary_search_by_key(&(pc as u32), |tap| tap.pc);
        place.ok().map(|place| &taps[place])
    }

    /// Copies tokens of a block. The block is left out if it has no place where it begins.
    ///
    /// # Safety
    /// The tokens can be read, and nobody writes them now.
    pub(super) unsafe fn copy(&mut self, tokens: TappedTokens) {
        if tokens.offset_bytes == 0 {
            let has_place = tokens.block_bytes <= self.ring.place_bytes();
            let has_place = has_place && self.ring.has_free_place();
            self.block = has_place.then_some(tokens.block);
            self.copied_bytes = 0;
        }
        if self.block != Some(tokens.block) {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            self.ring
                .copy(tokens.offset_bytes, tokens.from, tokens.bytes)
        };
        self.copied_bytes += tokens.bytes;
        if self.copied_bytes == tokens.block_bytes {
            self.ring
                .publish(self.ticket, tokens.block, tokens.block_bytes);
            self.block = None;
        }
    }

    /// Notes that a slot has ended, if that is what is asked for.
    pub(super) fn note_time(&mut self, slot: u32, since_start_ns: u64) {
        let has_room = self.copied_bytes + SLOT_TIME_BYTES <= self.ring.place_bytes();
        if self.target != SLOT_TIMES || self.block.is_none() || !has_room {
            return;
        }
        let end_ns = u32::try_from(since_start_ns).unwrap_or(u32::MAX);
        let words = [slot, end_ns];
        // SAFETY: these words are there.
        unsafe {
            self.ring
                .copy(self.copied_bytes, words.as_ptr().cast(), SLOT_TIME_BYTES)
        };
        self.copied_bytes += SLOT_TIME_BYTES;
    }
}
