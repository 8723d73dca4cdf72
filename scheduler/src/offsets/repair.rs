//! Lowers a group that is too large to search as a whole: window after window of time.
//!
//! Only the blocks that reach above the ceiling are wrong. Around each, the blocks that live wholly within a window
//! are placed anew under the ceiling, while those that live on outside stay where they are.

use std::ops::Range;

use super::blocks::{Block, Problem};
use super::descend::{Budget, Group};
use super::greedy::Ends;
use super::search::{Failed, Outcome};

/// Blocks to be placed anew in the first window around a block; each further window holds four times as many.
const FIRST_WINDOW: usize = 64;

/// Blocks in the last window.
const LAST_WINDOW: usize = 1024;

/// Steps for each block of a window.
const STEPS: u64 = 2_000;

/// A layout under repair.
pub(super) struct Repair<'a> {
    problem: &'a Problem,
    /// Blocks of the group.
    range: Range<usize>,
    ends: Ends,
    /// Offset of each block of the group.
    pub(super) offsets: Vec<u64>,
}

impl<'a> Repair<'a> {
    pub(super) fn new(problem: &'a Problem, range: Range<usize>, offsets: &[u64]) -> Repair<'a> {
        let mut ends = Ends::new(range.len());
        for (i, block) in problem.blocks[range.clone()].iter().enumerate() {
            ends.insert(i, block.hi);
        }
        Repair {
            problem,
            range,
            ends,
            offsets: offsets.to_vec(),
        }
    }

    /// Bytes needed now.
    pub(super) fn size(&self) -> u64 {
        let tops = self
            .blocks()
            .iter()
            .zip(&self.offsets)
            .map(|(b, o)| o + b.size);
        tops.max().unwrap_or(0)
    }

    /// Tries to get all blocks under `ceiling`; whether it worked. What was repaired stays so.
    pub(super) fn under(&mut self, ceiling: u64, budget: &mut Budget, failed: &mut Failed) -> bool {
        for i in 0..self.offsets.len() {
            let mut aim = FIRST_WINDOW;
            while self.offsets[i] + self.blocks()[i].size > ceiling {
                if aim > LAST_WINDOW || budget.left() == 0 {
                    return false;
                }
                self.window(i, aim, ceiling, budget, failed);
                aim *= 4;
            }
        }
        true
    }

    fn blocks(&self) -> &'a [Block] {
        &self.problem.blocks[self.range.clone()]
    }

    /// Places anew what lives wholly within a window of about `aim` blocks around block `i`.
    fn window(
        &mut self,
        i: usize,
        aim: usize,
        ceiling: u64,
        budget: &mut Budget,
        failed: &mut Failed,
    ) {
        let blocks = self.blocks();
        let (lo, hi) = self.grow(i, aim);
        let mut ids = Vec::new();
        let before = blocks.partition_point(|b| b.lo < hi);
        self.ends.later_than(lo, before, |j| ids.push(j));
        let clipped: Vec<Block> = ids
            .iter()
            .map(|&j| {
                let block = blocks[j];
                let within = lo <= block.lo && block.hi <= hi;
                let fixed = if within {
                    block.fixed
                } else {
                    Some(self.offsets[j])
                };
                Block {
                    lo: block.lo.max(lo),
                    hi: block.hi.min(hi),
                    fixed,
                    ..block
                }
            })
            .collect();
        let Some(group) = Group::new(&clipped, &self.problem.loads) else {
            return;
        };
        let mut part = budget.share(STEPS * ids.len() as u64);
        failed.forget();
        let (outcome, found) = group.fit(group.units(ceiling), &mut part, failed);
        budget.spend(&part);
        if outcome == Outcome::Found {
            for (&j, offset) in ids.iter().zip(found) {
                self.offsets[j] = u64::from(offset) * group.unit;
            }
        }
    }

    /// Sections around block `i` in which about `aim` blocks start.
    fn grow(&self, i: usize, aim: usize) -> (u32, u32) {
        let blocks = self.blocks();
        let ends_in = |hi: u32| blocks.partition_point(|b| b.lo < hi);
        let (mut lo, mut hi) = (blocks[i].lo, blocks[i].hi);
        let (first, last) = (blocks[0].lo, blocks[blocks.len() - 1].lo + 1);
        let mut step = 1;
        while ends_in(hi) - ends_in(lo) < aim && (lo > first || hi < last) {
            lo = lo.saturating_sub(step).max(first);
            hi = hi.saturating_add(step).min(last.max(hi));
            step += step.div_ceil(4);
        }
        (lo, hi)
    }
}
