//! One group of blocks that live at overlapping times, searched under a ceiling by several orders in turn.
//!
//! A search for one ceiling is heavy-tailed in the order of blocks: with one order it takes a thousand placements,
//! with the next it never ends. So several orders take turns with budgets that double.

use std::ops::Range;

use zbmd_ir::math::gcd_u64;

use super::blocks::ItemBlock;
use super::greedy::{self, RankBy};
use super::search::{BlockSearch, BlockShape, FailedStates, FitOutcome, StopSignal};

/// Blocks up to which a group is searched as a whole: the lists of all levels take 4 bytes times its square.
/// One level of recursion each, of less than a kilobyte: threads have stacks of 2 MiB.
const MAX_GROUP: usize = 1200;

/// Largest ceiling in units.
const MAX_UNITS: u64 = 1 << 30;

/// Steps of the first turn of each order, for each block.
const FIRST_TURN: u64 = 500;

use RankBy::{Area, Cells, Crowd, Size, Span, Start, Width};

/// The orders that take turns, those that end soonest on tight layouts first.
const ORDERS: [[RankBy; 3]; 8] = [
    [Crowd, Width, Area],
    [Crowd, Area, Width],
    [Cells, Crowd, Width],
    [Area, Width, Crowd],
    [Width, Area, Crowd],
    [Span, Size, Crowd],
    [Crowd, Start, Size],
    [Crowd, Size, Width],
];

/// What searches may cost and have cost.
pub(super) struct StepBudget<'a> {
    /// Steps taken so far.
    pub(super) used: u64,
    /// Steps that may be taken.
    limit: u64,
    /// Placements tried so far.
    pub(super) nodes: u64,
    pub(super) stop: StopSignal<'a>,
}

impl<'a> StepBudget<'a> {
    pub(super) fn new(limit: u64, stop: StopSignal<'a>) -> StepBudget<'a> {
        StepBudget {
            used: 0,
            limit,
            nodes: 0,
            stop,
        }
    }

    /// Steps that may still be taken: none once the caller wants to stop.
    pub(super) fn left(&self) -> u64 {
        match self.stop.is_set() {
            true => 0,
            false => self.limit.saturating_sub(self.used),
        }
    }

    /// A budget of its own, no larger than what is left of this one.
    pub(super) fn share(&self, limit: u64) -> StepBudget<'a> {
        StepBudget::new(limit.min(self.left()), self.stop)
    }

    /// Counts what a share has cost.
    pub(super) fn spend(&mut self, share: &StepBudget<'_>) {
        self.used += share.used;
        self.nodes += share.nodes;
    }
}

/// One group in units, in which all its sizes, offsets and alignments are whole.
pub(super) struct BlockGroup {
    pub(super) unit: u64,
    /// The group's shapes by index, sections counted from its first.
    pub(super) shapes: Vec<BlockShape>,
    /// Moments in which each shape is live.
    pub(super) moments: Vec<Range<u64>>,
    /// Indices of shapes in each order.
    pub(super) rankings: Vec<Vec<u32>>,
}

impl BlockGroup {
    /// The group of some blocks, with the loads of all sections; `None` if it is empty or too large to search.
    pub(super) fn new(blocks: &[ItemBlock], loads: &[u64]) -> Option<BlockGroup> {
        if blocks.len() > MAX_GROUP {
            return None;
        }
        let unit = find_unit(blocks);
        let total_bytes = blocks.iter().try_fold(0u64, |sum, block| {
            sum.checked_add(block.size)?
                .checked_add(block.align)?
                .checked_add(block.fixed.unwrap_or(0))
        });
        if total_bytes.is_none_or(|bytes| bytes / unit > MAX_UNITS) {
            return None;
        }

        let first = blocks.iter().map(|block| block.lo).min()?;
        let end = blocks.iter().map(|block| block.hi).max()?;
        let shapes = blocks
            .iter()
            .map(|block| BlockShape {
                lo: block.lo - first,
                hi: block.hi - first,
                size: (block.size / unit) as u32,
                // An alignment that divides the unit asks for nothing, as does its residue.
                mask: (block.align / unit).saturating_sub(1) as u32,
                residue: (block.residue / unit) as u32,
                fixed: block.fixed.map(|offset| (offset / unit) as u32),
            })
            .collect();
        let moments = blocks
            .iter()
            .map(|block| block.first..block.first + block.width)
            .collect();
        let crowds = greedy::find_crowds(blocks, &loads[first as usize..end as usize], first);
        let rankings = ORDERS
            .iter()
            .map(|&order| greedy::rank_blocks(blocks, &crowds, order))
            .collect();
        Some(BlockGroup {
            unit,
            shapes,
            moments,
            rankings,
        })
    }

    /// The largest whole number of units in some bytes, at most as many as can ever be needed.
    pub(super) fn units(&self, bytes: u64) -> u32 {
        (bytes / self.unit).min(MAX_UNITS) as u32
    }

    /// Looks for a layout of at most `ceiling` units within `budget`; returns its offsets if there is one.
    pub(super) fn fit(
        &self,
        ceiling: u32,
        budget: &mut StepBudget<'_>,
        failed: &mut FailedStates,
    ) -> (FitOutcome, Vec<u32>) {
        let mut turn_steps = FIRST_TURN * self.shapes.len() as u64;
        loop {
            for (order, ranking) in self.rankings.iter().enumerate() {
                let limit = turn_steps.min(budget.left());
                if limit == 0 {
                    return (FitOutcome::Budget, Vec::new());
                }

                // The search takes ids for ranks: shapes in the order's order.
                let ranked = ranking.iter().map(|&index| self.shapes[index as usize]);
                let shapes: Vec<BlockShape> = ranked.collect();
                failed.separate_ranking(order);
                let mut search = BlockSearch::new(&shapes, ceiling, limit, failed, budget.stop);
                let outcome = search.run();
                budget.used += search.steps();
                budget.nodes += search.nodes;

                match outcome {
                    FitOutcome::Budget => {}
                    FitOutcome::Impossible => return (outcome, Vec::new()),
                    FitOutcome::Found => {
                        let mut offsets = vec![0; shapes.len()];
                        for (&index, &offset) in ranking.iter().zip(&search.offsets) {
                            offsets[index as usize] = offset;
                        }
                        return (outcome, offsets);
                    }
                }
            }
            turn_steps *= 2;
        }
    }
}

/// The largest unit in which sizes, residues, fixed offsets and alignments are whole; an alignment that divides it
/// needs no care.
fn find_unit(blocks: &[ItemBlock]) -> u64 {
    let mut unit = 0;
    for block in blocks {
        unit = gcd_u64(unit, block.size);
        unit = gcd_u64(unit, block.residue);
        unit = gcd_u64(unit, block.fixed.unwrap_or(0));
    }
    for block in blocks {
        if !unit.is_multiple_of(block.align) {
            unit = gcd_u64(unit, block.align);
        }
    }
    unit.max(1)
}
