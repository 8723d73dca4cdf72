//! Between a run and a sink that is not given late blocks: tokens are kept until their block is complete, and then it is
//! passed on, dropped or replaced. Must not know when a block is late.

use zbmd_ir::response::LatePolicy;

/// What is decided about a block whose tokens have all come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockVerdict {
    /// It is in time.
    InTime,
    /// It is late.
    Late,
    /// It is late, and its place was filled before.
    PlaceFilled,
}

/// Decides which blocks are late, each once and in order.
pub(crate) trait BlockJudge: Send {
    /// Bytes of the next block. It has more than none; a block whose mode ends may turn out to have fewer.
    fn block_bytes(&mut self) -> usize;

    /// The last token of the next block was there at `now_ns`.
    fn complete_block(&mut self, now_ns: u64) -> BlockVerdict;

    /// Whether the first block that nothing was decided about is late at `now_ns`, so that its place has to be filled
    /// before its tokens come.
    fn fill_place(&mut self, now_ns: u64) -> bool;

    /// How long tokens may be waited for before [`Self::fill_place`] is asked again; `None`: as long as it takes.
    fn wait_ns(&self, now_ns: u64) -> Option<u64>;
}

/// What a sink's blocks pass through.
pub(crate) struct BlockGate {
    judge: Box<dyn BlockJudge>,
    policy: LatePolicy,
    /// The block that is being made, and how much of it has come, the last of it when.
    block: Vec<u8>,
    block_filled: usize,
    filled_ns: u64,
    /// The last block that was in time.
    last_in_time: Vec<u8>,
    /// Places that were filled and whose blocks have not come.
    filled_ahead: u64,
    /// What the sink is to be given, and how much of it was taken.
    output: Vec<u8>,
    output_taken: usize,
}

impl BlockGate {
    pub(crate) fn new(mut judge: Box<dyn BlockJudge>, policy: LatePolicy) -> Self {
        let block_bytes = judge.block_bytes();
        Self {
            judge,
            policy,
            block: vec![0; block_bytes],
            block_filled: 0,
            filled_ns: 0,
            last_in_time: Vec::new(),
            filled_ahead: 0,
            output: Vec::new(),
            output_taken: 0,
        }
    }

    /// Where the next tokens of the block go.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.block[self.block_filled..]
    }

    /// See [`BlockJudge::wait_ns`].
    pub(super) fn wait_ns(&self, now_ns: u64) -> Option<u64> {
        self.judge.wait_ns(now_ns)
    }

    /// So many bytes have come into [`Self::room`].
    pub(super) fn add(&mut self, bytes: usize, now_ns: u64) {
        let mut came_before = self.block_filled;
        self.block_filled += bytes;
        loop {
            let block_bytes = self.judge.block_bytes();
            if self.block_filled < block_bytes {
                self.block.resize(block_bytes, 0);
                break;
            }
            // That a mode has ended may be known only when the next one's tokens come.
            let complete_ns = match block_bytes <= came_before {
                true => self.filled_ns,
                false => now_ns,
            };
            self.complete_block(block_bytes, complete_ns);
            self.block.copy_within(block_bytes..self.block_filled, 0);
            self.block_filled -= block_bytes;
            came_before = came_before.saturating_sub(block_bytes);
        }
        self.filled_ns = now_ns;
    }

    /// All of the block has come: its bytes are the first ones.
    fn complete_block(&mut self, block_bytes: usize, now_ns: u64) {
        let verdict = self.judge.complete_block(now_ns);
        let block = &self.block[..block_bytes];
        match (verdict, self.policy) {
            (BlockVerdict::InTime, policy) => {
                self.output.extend_from_slice(block);
                if policy == LatePolicy::Hold {
                    self.last_in_time.clear();
                    self.last_in_time.extend_from_slice(block);
                }
            }
            (BlockVerdict::Late, LatePolicy::Wait | LatePolicy::Mode) => {
                self.output.extend_from_slice(block);
            }
            (BlockVerdict::Late, LatePolicy::Hold) => self.output_held(block_bytes),
            (BlockVerdict::Late, LatePolicy::Drop) => {}
            (BlockVerdict::PlaceFilled, _) => self.filled_ahead -= 1,
        }
    }

    /// Gives the last block in time again: zeros before the first one, and where it has another length than the place.
    fn output_held(&mut self, block_bytes: usize) {
        if self.last_in_time.len() != block_bytes {
            self.last_in_time.clear();
            self.last_in_time.resize(block_bytes, 0);
        }
        self.output.extend_from_slice(&self.last_in_time);
    }

    /// Fills the places of blocks that are late and have not come.
    pub(super) fn fill_places(&mut self, now_ns: u64) {
        while self.judge.fill_place(now_ns) {
            self.filled_ahead += 1;
            let block_bytes = self.judge.block_bytes();
            self.output_held(block_bytes);
        }
    }

    /// No more tokens come: what has come of a block that is not complete is given as it is, as nothing was decided about
    /// it.
    pub(super) fn finish(&mut self) {
        let rest = std::mem::take(&mut self.block_filled);
        if self.filled_ahead == 0 {
            self.output.extend_from_slice(&self.block[..rest]);
        }
    }

    /// Takes what the sink is to be given, as much as there is room for; how many bytes.
    pub(super) fn take_output(&mut self, to: &mut [u8]) -> usize {
        let waiting = &self.output[self.output_taken..];
        let taken = waiting.len().min(to.len());
        to[..taken].copy_from_slice(&waiting[..taken]);
        self.output_taken += taken;
        if self.output_taken == self.output.len() {
            self.output.clear();
            self.output_taken = 0;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Decides as it was told to.
    #[derive(Default)]
    struct Script {
        verdicts: VecDeque<BlockVerdict>,
        fills: VecDeque<bool>,
        /// Of the blocks, where they are not 4.
        lengths: VecDeque<usize>,
    }

    impl BlockJudge for Script {
        fn block_bytes(&mut self) -> usize {
            self.lengths.front().copied().unwrap_or(4)
        }

        fn complete_block(&mut self, _: u64) -> BlockVerdict {
            self.lengths.pop_front();
            self.verdicts.pop_front().expect("a verdict for each block")
        }

        fn fill_place(&mut self, _: u64) -> bool {
            self.fills.pop_front().unwrap_or(false)
        }

        fn wait_ns(&self, _: u64) -> Option<u64> {
            None
        }
    }

    fn gate(policy: LatePolicy, verdicts: &[BlockVerdict], fills: &[bool]) -> BlockGate {
        let script = Script {
            verdicts: verdicts.iter().copied().collect(),
            fills: fills.iter().copied().collect(),
            lengths: VecDeque::new(),
        };
        BlockGate::new(Box::new(script), policy)
    }

    /// Gives tokens to a gate, in parts of three bytes.
    fn give(gate: &mut BlockGate, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = gate.room();
            let length = bytes.len().min(3).min(room.len());
            room[..length].copy_from_slice(&bytes[..length]);
            bytes = &bytes[length..];
            gate.add(length, 0);
        }
    }

    /// All that the sink is to be given, in parts of five bytes.
    fn taken(gate: &mut BlockGate) -> Vec<u8> {
        let mut all = Vec::new();
        let mut part = [0; 5];
        loop {
            match gate.take_output(&mut part) {
                0 => return all,
                length => all.extend_from_slice(&part[..length]),
            }
        }
    }

    #[test]
    fn late_blocks_are_passed_on_dropped_or_replaced() {
        use BlockVerdict::{InTime, Late};
        let verdicts = [Late, InTime, Late, Late, InTime];
        let given = b"aaaabbbbccccddddeeee++";
        for (policy, expected) in [
            (LatePolicy::Wait, &b"aaaabbbbccccddddeeee++"[..]),
            (LatePolicy::Drop, b"bbbbeeee++"),
            (LatePolicy::Hold, b"\0\0\0\0bbbbbbbbbbbbeeee++"),
        ] {
            let mut gate = gate(policy, &verdicts, &[]);
            give(&mut gate, given);
            gate.finish();
            assert_eq!(taken(&mut gate), expected, "{policy:?}");
        }
    }

    #[test]
    fn blocks_may_have_other_lengths() {
        use BlockVerdict::{InTime, Late};
        let script = Script {
            verdicts: [InTime, Late, Late, InTime, Late].into(),
            lengths: [4, 4, 2, 2, 2].into(),
            ..Script::default()
        };
        let mut gate = BlockGate::new(Box::new(script), LatePolicy::Hold);
        give(&mut gate, b"aaaabbbbccddee");
        gate.finish();
        // The last one in time is of another length.
        assert_eq!(taken(&mut gate), b"aaaaaaaa\0\0dddd");
    }

    #[test]
    fn places_are_filled_in_time_and_once() {
        use BlockVerdict::{InTime, PlaceFilled};
        let verdicts = [InTime, PlaceFilled, PlaceFilled, InTime];
        let mut gate = gate(LatePolicy::Hold, &verdicts, &[true, true, false]);
        give(&mut gate, b"aaaabb");
        gate.fill_places(0);
        assert_eq!(taken(&mut gate), b"aaaaaaaaaaaa", "two places");

        // The late blocks come after all, and are not given; the one after them keeps its place.
        give(&mut gate, b"bbccccdddd");
        assert_eq!(taken(&mut gate), b"dddd");
    }

    #[test]
    fn what_comes_of_a_block_whose_place_was_filled_is_not_given() {
        let mut gate = gate(LatePolicy::Hold, &[], &[true]);
        give(&mut gate, b"aa");
        gate.fill_places(0);
        gate.finish();
        assert_eq!(taken(&mut gate), [0; 4]);
    }
}
