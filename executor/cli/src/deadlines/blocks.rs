//! Which tokens are a block's, over changes of mode: each mode has blocks of its own, and its last one ends with it.

/// Tokens of one mode, as a sink sees them.
#[derive(Clone, Debug)]
pub(super) struct ModeTokens {
    /// Iterations of a block of the plan for the whole machine.
    pub(super) block: u64,
    /// Tokens of the sink an iteration.
    pub(super) sink: u64,
    /// Tokens an iteration of each source that is released by the clock.
    pub(super) sources: Vec<u64>,
}

/// Iterations in one mode.
#[derive(Clone, Debug)]
struct BlockLeg {
    mode: usize,
    first_iteration: u64,
    first_block: u64,
    /// Tokens before it, of the sink and of each source.
    sink_before: u64,
    sources_before: Vec<u64>,
}

/// The blocks of a run from its start on. Tokens are counted from there too.
#[derive(Clone, Debug)]
pub(super) struct BlockLegs {
    modes: Vec<ModeTokens>,
    /// In order; the last one is the present. There is one at least.
    legs: Vec<BlockLeg>,
}

impl BlockLegs {
    /// Of a run that begins in a mode at an iteration.
    pub(super) fn new(modes: Vec<ModeTokens>, mode: usize, iteration: u64) -> Self {
        let sources = modes[mode].sources.len();
        let first = BlockLeg {
            mode,
            first_iteration: iteration,
            first_block: 0,
            sink_before: 0,
            sources_before: vec![0; sources],
        };
        Self {
            modes,
            legs: vec![first],
        }
    }

    /// The run begins elsewhere.
    pub(super) fn begin(&mut self, mode: usize, iteration: u64) {
        *self = Self::new(std::mem::take(&mut self.modes), mode, iteration);
    }

    /// From this iteration on the run is in another mode.
    pub(super) fn enter(&mut self, mode: usize, iteration: u64) {
        let last = &self.legs[self.legs.len() - 1];
        let iterations = iteration.saturating_sub(last.first_iteration);
        let tokens = &self.modes[last.mode];
        let sources = last.sources_before.iter().zip(&tokens.sources);
        let next = BlockLeg {
            mode,
            first_iteration: iteration,
            first_block: last.first_block + iterations.div_ceil(tokens.block),
            sink_before: last.sink_before + iterations * tokens.sink,
            sources_before: sources
                .map(|(before, rate)| before + iterations * rate)
                .collect(),
        };
        // Nothing was computed in a mode that is left where it was entered.
        if iterations == 0 {
            self.legs.pop();
        }
        self.legs.push(next);
    }

    /// Tokens of the sink in the first `blocks` blocks.
    pub(super) fn sink_tokens(&self, blocks: u64) -> u64 {
        let (leg, iterations) = self.place_of(blocks);
        leg.sink_before + iterations * self.modes[leg.mode].sink
    }

    /// Tokens of a source in the first `blocks` blocks.
    pub(super) fn source_tokens(&self, blocks: u64, source: usize) -> u64 {
        let (leg, iterations) = self.place_of(blocks);
        leg.sources_before[source] + iterations * self.modes[leg.mode].sources[source]
    }

    /// Nothing before this block is asked for any more.
    pub(super) fn forget_before(&mut self, block: u64) {
        let begun = self.legs.partition_point(|leg| leg.first_block <= block);
        self.legs.drain(..begun.saturating_sub(1));
    }

    /// The leg in which the first `blocks` blocks end, and how many of its iterations they have.
    fn place_of(&self, blocks: u64) -> (&BlockLeg, u64) {
        let begun = self.legs.partition_point(|leg| leg.first_block < blocks);
        let index = begun.saturating_sub(1);
        let leg = &self.legs[index];
        let in_leg = blocks.saturating_sub(leg.first_block) * self.modes[leg.mode].block;
        let next = self.legs.get(index + 1);
        let length = next.map_or(u64::MAX, |next| next.first_iteration - leg.first_iteration);
        (leg, in_leg.min(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 4 iterations of 1 token of the sink and 2 of the source, and of 3 iterations of 5 and 1.
    fn legs() -> BlockLegs {
        let mode = |block, sink, source| ModeTokens {
            block,
            sink,
            sources: vec![source],
        };
        BlockLegs::new(vec![mode(4, 1, 2), mode(3, 5, 1)], 0, 0)
    }

    #[track_caller]
    fn check(legs: &BlockLegs, expected: &[(u64, u64)]) {
        let found = (0..expected.len() as u64)
            .map(|blocks| (legs.sink_tokens(blocks), legs.source_tokens(blocks, 0)));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_block_ends_with_its_mode() {
        let mut legs = legs();
        check(&legs, &[(0, 0), (4, 8), (8, 16), (12, 24)]);
        // After six iterations: the second block has two of them.
        legs.enter(1, 6);
        check(&legs, &[(0, 0), (4, 8), (6, 12), (21, 15), (36, 18)]);
        legs.forget_before(2);
        assert_eq!(legs.legs.len(), 1);
        assert_eq!(legs.sink_tokens(3), 21);
        // In the middle of that block, and at once into the first mode again.
        legs.enter(1, 7);
        legs.enter(0, 7);
        let found: Vec<u64> = (2..6).map(|blocks| legs.sink_tokens(blocks)).collect();
        assert_eq!(found, [6, 11, 15, 19]);
    }

    #[test]
    fn a_run_may_begin_in_any_mode() {
        let mut legs = legs();
        legs.begin(1, 100);
        check(&legs, &[(0, 0), (15, 3), (30, 6)]);
    }
}
