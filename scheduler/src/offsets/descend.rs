//! From a greedy layout downwards: branch and bound under ever lower ceilings.

use std::cmp::Reverse;

use super::blocks::{ItemBlock, LayoutProblem};
use super::greedy::LayoutDraft;
use super::group::{BlockGroup, StepBudget};
use super::repair::WindowRepair;
use super::search::{FailedStates, FitOutcome};

/// Lowers the largest group of `draft` until it is no higher than `goal`, the budget is spent, or it stays largest.
///
/// Raises `lower_bound` where a ceiling was proved impossible.
pub(super) fn descend(
    problem: &LayoutProblem,
    goal: u64,
    budget: &mut StepBudget<'_>,
    draft: &mut LayoutDraft,
    lower_bound: &mut u64,
) {
    let mut too_large: Vec<usize> = (0..problem.groups.len())
        .filter(|&group| draft.sizes[group] > goal)
        .collect();
    too_large.sort_by_key(|&group| (Reverse(draft.sizes[group]), group));

    let mut failed = None;
    // What the groups that are done with need, below which there is no use in lowering the others.
    let mut floor = goal;
    for index in too_large {
        // The region is as high as its highest group.
        if draft.sizes[index] <= floor || budget.left() == 0 {
            break;
        }
        let range = problem.groups[index].clone();
        let blocks = &problem.blocks[range.clone()];
        let failed = failed.get_or_insert_with(FailedStates::default);
        let offsets = &mut draft.offsets[range.clone()];
        let size = &mut draft.sizes[index];

        if let Some(group) = BlockGroup::new(blocks, &problem.loads) {
            let unit = group.unit;
            let mut target = WholeGroup {
                group,
                blocks,
                offsets,
                failed,
            };
            let bound = lower_ceiling(floor, size, unit, budget, &mut target);
            *lower_bound = bound.max(*lower_bound);
        } else {
            let mut target = WindowedGroup {
                repair: WindowRepair::new(problem, range, offsets),
                failed,
            };
            lower_ceiling(floor, size, 1, budget, &mut target);
            offsets.copy_from_slice(&target.repair.offsets);
        }
        floor = floor.max(draft.sizes[index]);
    }
}

/// Something that can be laid out under a ceiling.
trait Ceiling {
    /// Tries a ceiling in bytes; returns what came of it and the bytes that are needed now.
    fn try_ceiling(&mut self, ceiling: u64, budget: &mut StepBudget<'_>) -> (FitOutcome, u64);
}

/// A group that is searched as a whole.
struct WholeGroup<'a> {
    group: BlockGroup,
    blocks: &'a [ItemBlock],
    offsets: &'a mut [u64],
    failed: &'a mut FailedStates,
}

impl Ceiling for WholeGroup<'_> {
    fn try_ceiling(&mut self, ceiling: u64, budget: &mut StepBudget<'_>) -> (FitOutcome, u64) {
        self.failed.forget();
        let units = self.group.units(ceiling);
        let (outcome, found) = self.group.fit(units, budget, self.failed);

        // Empty where there is none: then all stays.
        for (offset, units) in self.offsets.iter_mut().zip(found) {
            *offset = u64::from(units) * self.group.unit;
        }
        let placed = self.offsets.iter().zip(self.blocks);
        let tops = placed.map(|(offset, block)| offset + block.size);
        (outcome, tops.max().unwrap_or(0))
    }
}

/// A group that is too large for that.
struct WindowedGroup<'a> {
    repair: WindowRepair<'a>,
    failed: &'a mut FailedStates,
}

impl Ceiling for WindowedGroup<'_> {
    fn try_ceiling(&mut self, ceiling: u64, budget: &mut StepBudget<'_>) -> (FitOutcome, u64) {
        let outcome = match self.repair.lower_under(ceiling, budget, self.failed) {
            true => FitOutcome::Found,
            false => FitOutcome::Budget,
        };
        (outcome, self.repair.size())
    }
}

/// Bisects from `size` down towards `goal`, the goal itself first, with ceilings of whole units. Returns a lower bound.
fn lower_ceiling(
    goal: u64,
    size: &mut u64,
    unit: u64,
    budget: &mut StepBudget<'_>,
    target: &mut dyn Ceiling,
) -> u64 {
    // Ceilings below `low` are impossible, too hard, or not asked for.
    let mut low = goal / unit;
    let mut bound = 0;
    let mut ceiling = low;

    while low < *size / unit && budget.left() > 0 {
        // A quarter for each ceiling: the next may be easier.
        let mut share = budget.share(budget.left().div_ceil(4));
        let (outcome, needed) = target.try_ceiling(ceiling * unit, &mut share);
        budget.spend(&share);
        *size = needed.min(*size);
        if outcome != FitOutcome::Found {
            low = ceiling + 1;
        }
        if outcome == FitOutcome::Impossible {
            bound = low * unit;
        }

        let high = (*size / unit).max(low);
        ceiling = low + (high - low) / 2;
        // Closer than this is not worth the steps.
        if outcome == FitOutcome::Budget && high - low <= high / 1000 {
            break;
        }
    }
    bound
}
