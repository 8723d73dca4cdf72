//! Lowers a group that is too large to search as a whole: window after window of time.
//!
//! Only the blocks that reach above the ceiling are wrong. Around each, the blocks that live wholly within a window
//! are placed anew under the ceiling, while those that live on outside stay where they are.

use std::ops::Range;

use super::blocks::{ItemBlock, LayoutProblem};
use super::greedy::EndTree;
use super::group::{BlockGroup, StepBudget};
use super::search::{FailedStates, FitOutcome};

/// Blocks to be placed anew in the first window around a block; each further window holds four times as many.
const FIRST_WINDOW: usize = 64;

/// Blocks in the last window.
const LAST_WINDOW: usize = 1024;

/// Steps for each block of a window.
const STEPS: u64 = 2_000;

/// A layout under repair.
pub(super) struct WindowRepair<'a> {
    problem: &'a LayoutProblem,
    /// Blocks of the group.
    range: Range<usize>,
    ends: EndTree,
    /// Offset of each block of the group.
    pub(super) offsets: Vec<u64>,
}

impl<'a> WindowRepair<'a> {
    pub(super) fn new(
        problem: &'a LayoutProblem,
        range: Range<usize>,
        offsets: &[u64],
    ) -> WindowRepair<'a> {
        let mut ends = EndTree::new(range.len());
        for (index, block) in problem.blocks[range.clone()].iter().enumerate() {
            ends.insert(index, block.hi);
        }

        WindowRepair {
            problem,
            range,
            ends,
            offsets: offsets.to_vec(),
        }
    }

    /// Bytes needed now.
    pub(super) fn size(&self) -> u64 {
        let placed = self.blocks().iter().zip(&self.offsets);
        let tops = placed.map(|(block, offset)| offset + block.size);
        tops.max().unwrap_or(0)
    }

    /// Tries to get all blocks under `ceiling`; whether it worked. What was repaired stays so.
    pub(super) fn lower_under(
        &mut self,
        ceiling: u64,
        budget: &mut StepBudget<'_>,
        failed: &mut FailedStates,
    ) -> bool {
        for index in 0..self.offsets.len() {
            let mut wanted = FIRST_WINDOW;
            // A larger window if the smaller one does not do.
            while self.offsets[index] + self.blocks()[index].size > ceiling {
                if wanted > LAST_WINDOW || budget.left() == 0 {
                    return false;
                }
                self.place_window_anew(index, wanted, ceiling, budget, failed);
                wanted *= 4;
            }
        }
        true
    }

    fn blocks(&self) -> &'a [ItemBlock] {
        &self.problem.blocks[self.range.clone()]
    }

    /// Places anew what lives wholly within a window of about `wanted` blocks around a block.
    fn place_window_anew(
        &mut self,
        index: usize,
        wanted: usize,
        ceiling: u64,
        budget: &mut StepBudget<'_>,
        failed: &mut FailedStates,
    ) {
        let blocks = self.blocks();
        let window = self.grow_window(index, wanted);
        let mut members = Vec::new();
        let before_end = blocks.partition_point(|block| block.lo < window.end);
        self.ends
            .later_than(window.start, before_end, |member| members.push(member));

        let clipped: Vec<ItemBlock> = members
            .iter()
            .map(|&member| {
                let block = blocks[member];
                let is_within = window.start <= block.lo && block.hi <= window.end;
                ItemBlock {
                    lo: block.lo.max(window.start),
                    hi: block.hi.min(window.end),
                    // What lives on outside stays where it is.
                    fixed: match is_within {
                        true => block.fixed,
                        false => Some(self.offsets[member]),
                    },
                    ..block
                }
            })
            .collect();
        let Some(group) = BlockGroup::new(&clipped, &self.problem.loads) else {
            return;
        };

        let mut share = budget.share(STEPS * members.len() as u64);
        failed.forget();
        let (outcome, found) = group.fit(group.units(ceiling), &mut share, failed);
        budget.spend(&share);
        if outcome == FitOutcome::Found {
            for (&member, units) in members.iter().zip(found) {
                self.offsets[member] = u64::from(units) * group.unit;
            }
        }
    }

    /// Sections around a block in which about `wanted` blocks start.
    fn grow_window(&self, index: usize, wanted: usize) -> Range<u32> {
        let blocks = self.blocks();
        let starts_before = |section: u32| blocks.partition_point(|block| block.lo < section);
        let first = blocks[0].lo;
        let last = blocks[blocks.len() - 1].lo + 1;
        let mut window = blocks[index].lo..blocks[index].hi;
        let mut step = 1;

        while starts_before(window.end) - starts_before(window.start) < wanted
            && (window.start > first || window.end < last)
        {
            window.start = window.start.saturating_sub(step).max(first);
            window.end = window.end.saturating_add(step).min(last.max(window.end));
            // By steps that grow, so that long windows take few.
            step += step.div_ceil(4);
        }
        window
    }
}
