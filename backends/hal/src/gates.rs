//! Gates, as the host reads them: it knows a gate's tokens before it submits what they decide about. A list whose gated
//! calls are all closed is submitted without the kernels of their ops; for the others the host makes the tables that
//! kernels read (see `zbmd_gpu_ir::behind_gate`). Knows no driver.
#![expect(unsafe_code, reason = "writes mapped memory")]

use zbmd_ir::{ChannelId, GateScan, GateWindow, State};

use super::queue::{BankRange, Queue};
use super::{DEPTH, PeriodOfRun};
use zbmd_gpu_ir::TABLE_WORD;

/// Calls of gated actors, as far as a run has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCalls {
    /// Those whose kernels were launched.
    pub launched: u64,
    /// Those whose kernels were not, because the gate was closed for all their firings.
    pub skipped: u64,
}

/// A channel that opens gates of the device. Others write it, so the host sees its tokens.
#[derive(Clone, Debug)]
pub(super) struct GateChannel {
    pub(super) channel: ChannelId,
    /// The device's ring that brings it.
    pub(super) ring: u32,
    pub(super) token_bytes: u64,
    pub(super) block_tokens: u64,
    /// Tokens before the first block that readers look at.
    pub(super) history: u64,
    /// The last stage in which they are looked at.
    pub(super) last_stage: u32,
    /// Tokens that may still be looked at, from this one of the run on; the history has negative numbers.
    pub(super) first: i64,
    pub(super) tokens: Vec<u8>,
}

/// A call of a gated actor, or of several whose firings are open together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GatedCall {
    /// Index among the channels.
    pub(super) channel: usize,
    pub(super) stage: u32,
    /// The first token that it looks at, counted from the block's first one.
    pub(super) first_token: i64,
    pub(super) window: GateWindow,
    pub(super) firings: usize,
}

/// A table of a call, and what it said last.
#[derive(Clone, Copy, Debug)]
struct CallTable {
    /// Where the bank has it in periods of parity 0.
    offset: u64,
    /// The period after the one that it was made for last; 0 before that.
    made: u64,
    is_open: bool,
}

/// The gates of a calendar.
#[derive(Debug, Default)]
pub(super) struct Gates {
    channels: Vec<GateChannel>,
    calls: Vec<GatedCall>,
    tables: Vec<CallTable>,
    /// The bank with the tables, which the host writes and the device reads.
    bank: u32,
    /// Bytes between the tables of periods of different parity.
    stride: u64,
    pub(super) count: GateCalls,
}

/// Calls of a part of a segment that are open together.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartGate {
    /// Index among the calendar's.
    pub(super) call: u32,
    /// Actors that are called.
    pub(super) actors: u64,
}

impl Gates {
    /// Adds a channel, or finds it; its index.
    pub(super) fn channel(&mut self, channel: GateChannel) -> usize {
        let mut known = self.channels.iter();
        let index = known.position(|known| known.channel == channel.channel);
        let index = index.unwrap_or_else(|| {
            self.channels.push(channel.clone());
            self.channels.len() - 1
        });
        let known = &mut self.channels[index];
        known.last_stage = known.last_stage.max(channel.last_stage);
        index
    }

    /// Adds a call, or finds one that is open whenever it is; its index.
    pub(super) fn call(&mut self, call: GatedCall) -> u32 {
        if let Some(index) = self.calls.iter().rposition(|known| *known == call) {
            return index as u32;
        }
        self.tables.push(CallTable {
            offset: self.stride,
            made: 0,
            is_open: true,
        });
        self.stride += call.firings as u64 * TABLE_WORD;
        self.calls.push(call);
        self.calls.len() as u32 - 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Bytes of the bank with the tables.
    pub(super) fn table_bytes(&self) -> u64 {
        DEPTH * self.stride
    }

    /// All calls are known: the bank, and room for all tokens that are kept at a time.
    pub(super) fn finish(&mut self, bank: u32) {
        self.bank = bank;
        for channel in &mut self.channels {
            // In the period of the last stage, later blocks have come already; the next one comes before any is dropped.
            let blocks = u64::from(channel.last_stage) + 2;
            let tokens = channel.history + blocks * channel.block_tokens;
            channel
                .tokens
                .reserve((tokens * channel.token_bytes) as usize);
            channel.restart(&[]);
        }
    }

    /// The table of a call in a phase.
    pub(super) fn table(&self, call: u32, phase: u64) -> BankRange {
        let start = self.tables[call as usize].offset + (phase % DEPTH) * self.stride;
        let bytes = self.calls[call as usize].firings as u64 * TABLE_WORD;
        BankRange::new(self.bank, start, bytes)
    }

    /// A run begins at a border with this state.
    pub(super) fn load_state(&mut self, state: &State) {
        for channel in &mut self.channels {
            channel.restart(&state.channels[channel.channel]);
        }
        for table in &mut self.tables {
            table.made = 0;
        }
    }

    /// Tokens of a ring have come.
    pub(super) fn note_tokens(&mut self, ring: u32, tokens: &[u8]) {
        for channel in &mut self.channels {
            if channel.ring == ring {
                channel.tokens.extend_from_slice(tokens);
            }
        }
    }

    /// Whether all calls of a part that are active in this period are closed, and there are such; makes the tables of those
    /// calls.
    pub(super) fn are_closed(
        &mut self,
        gates: &[PartGate],
        when: PeriodOfRun,
        queue: &impl Queue,
    ) -> bool {
        let (mut actors, mut is_any_open) = (0, false);
        for gate in gates {
            let stage = self.calls[gate.call as usize].stage;
            if let Some(block) = when.block_of_stage(stage) {
                is_any_open |= self.make_table(gate.call as usize, block, when.period, queue);
                actors += gate.actors;
            }
        }

        let are_closed = actors > 0 && !is_any_open;
        let count = match are_closed {
            true => &mut self.count.skipped,
            false => &mut self.count.launched,
        };
        *count += actors;
        are_closed
    }

    /// Makes the table of a call for a block; whether any firing is open.
    fn make_table(&mut self, index: usize, block: u64, period: u64, queue: &impl Queue) -> bool {
        let call = &self.calls[index];
        let table = &mut self.tables[index];
        // The device may read it already, for another list.
        if table.made == period + 1 {
            return table.is_open;
        }

        let tokens = self.channels[call.channel].tokens_of(call, block);
        let bytes = call.firings * TABLE_WORD as usize;
        let offset = table.offset + (period % DEPTH) * self.stride;
        let first = queue.host_pointer(self.bank, offset, bytes);
        let mut scan = GateScan::new(call.window, tokens);
        let mut last_open: u32 = 0;
        for firing in 0..call.firings {
            if scan.is_open(firing) {
                last_open = firing as u32 + 1;
            }
            let word = first.cast::<u32>().wrapping_add(firing);
            // SAFETY: `host_pointer` has checked the table against its bank, which is mapped and which only this writes.
            // The last list that reads this table is that of the period before the last one, which has ended.
            unsafe { word.write_unaligned(last_open) };
        }
        table.made = period + 1;
        table.is_open = last_open > 0;
        table.is_open
    }

    /// A period was submitted: drops tokens that no later one looks at.
    pub(super) fn end_period(&mut self, period: u64) {
        for channel in &mut self.channels {
            channel.drop_before(period + 1);
        }
    }
}

impl GateChannel {
    /// Keeps the last tokens of a state as the history, zeros where it has fewer.
    fn restart(&mut self, state: &[u8]) {
        let bytes = (self.history * self.token_bytes) as usize;
        let known = state.len().min(bytes);
        self.tokens.clear();
        self.tokens.resize(bytes - known, 0);
        self.tokens.extend_from_slice(&state[state.len() - known..]);
        self.first = -(self.history as i64);
    }

    /// What a call looks at.
    fn tokens_of(&self, call: &GatedCall, block: u64) -> &[u8] {
        let first = (block * self.block_tokens) as i64 + call.first_token - self.first;
        let start = first as usize * self.token_bytes as usize;
        let bytes = (call.firings - 1) * call.window.step + call.window.window;
        &self.tokens[start..start + bytes]
    }

    /// Drops what is not looked at from a period on.
    fn drop_before(&mut self, period: u64) {
        let Some(block) = period.checked_sub(self.last_stage.into()) else {
            return;
        };
        let kept_from = (block * self.block_tokens) as i64 - self.history as i64;
        let dropped = (kept_from - self.first).max(0) as usize * self.token_bytes as usize;
        // At the end of a run, the last blocks do not come.
        let dropped = dropped.min(self.tokens.len());
        self.tokens.drain(..dropped);
        self.first += (dropped / self.token_bytes as usize) as i64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::DType;

    #[test]
    fn calls_look_at_tokens_of_earlier_blocks() {
        let window = GateWindow {
            dtype: DType::U8,
            step: 1,
            window: 3,
        };
        let call = |first_token, firings| GatedCall {
            channel: 0,
            stage: 1,
            first_token,
            window,
            firings,
        };
        let mut channel = GateChannel {
            channel: ChannelId(0),
            ring: 0,
            token_bytes: 1,
            block_tokens: 4,
            history: 2,
            last_stage: 1,
            first: 0,
            tokens: Vec::new(),
        };
        channel.restart(&[7, 8, 9]);
        channel.tokens.extend(0..4);
        channel.drop_before(1);
        channel.tokens.extend(4..8);
        assert_eq!(channel.tokens_of(&call(-2, 4), 0), [8, 9, 0, 1, 2, 3]);
        channel.drop_before(2);
        assert_eq!(channel.tokens_of(&call(-2, 2), 1), [2, 3, 4, 5]);
        assert_eq!(channel.tokens_of(&call(1, 1), 1), [5, 6, 7]);
        channel.drop_before(9);
        assert_eq!((channel.tokens.len(), channel.first), (0, 8));
    }
}
