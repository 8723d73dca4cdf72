//! Which items cannot fit together: a small set to show to people when memory is too small.

use std::cmp::Reverse;

use super::blocks::{ItemBlock, LayoutProblem};
use super::group::{BlockGroup, StepBudget};
use super::search::{FailedStates, FitOutcome, StopSignal};
use super::{Item, ItemLayout, LayoutLimits, OffsetsError, solve};

/// Whether items fit a capacity, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictVerdict {
    /// They fit like this.
    Fits(ItemLayout),
    /// These cannot fit together.
    Conflict {
        /// Indices of the items, ascending. Without any one of them (and what is tied to it) the rest fits, if
        /// `minimal`.
        items: Vec<usize>,
        /// Whether that was proved. Other sets, smaller ones too, may conflict as well.
        minimal: bool,
    },
    /// No layout was found within the steps, and no proof that there is none.
    Undecided(ItemLayout),
}

/// Sections that are looked at for the fewest blocks that exceed the capacity by their sizes alone.
const MAX_SECTIONS: usize = 64;

/// Finds a small set of items that cannot fit `capacity` bytes together.
///
/// Where the sizes live at one moment exceed it, the largest of them that do, at the moment where they are fewest.
/// Otherwise what is left of an impossible group once every block is removed whose absence changes nothing (deletion
/// filter: one search for each block, each within `steps`).
///
/// # Errors
/// See [`OffsetsError`].
pub fn conflict(
    items: &[Item],
    capacity: u64,
    steps: u64,
) -> Result<ConflictVerdict, OffsetsError> {
    let problem = LayoutProblem::new(items)?;
    let too_high = items
        .iter()
        .position(|item| item.size > 0 && item.fixed.unwrap_or(0) + item.size > capacity);
    if let Some(item) = too_high {
        return Ok(ConflictVerdict::Conflict {
            items: vec![item],
            minimal: true,
        });
    }
    if let Some(blocks) = find_overfull(&problem, capacity) {
        return Ok(conflict_of(&problem, &blocks, true));
    }

    let limits = LayoutLimits {
        capacity: Some(capacity),
        steps,
    };
    let layout = solve(items, &limits)?;
    if layout.size <= capacity {
        return Ok(ConflictVerdict::Fits(layout));
    }

    let mut filter = DeletionFilter {
        problem: &problem,
        // Rounded sizes may exceed the capacity at the very top where true ones do not: then nothing is proved.
        ceiling: capacity.saturating_add(problem.padding),
        steps,
        failed: FailedStates::default(),
    };
    for group in &problem.groups {
        let all: Vec<usize> = group.clone().collect();
        if filter.fit(&all) == Some(FitOutcome::Impossible) {
            return Ok(filter.reduce(all));
        }
    }
    Ok(ConflictVerdict::Undecided(layout))
}

/// Removes blocks from an impossible group as long as it stays impossible.
struct DeletionFilter<'a> {
    problem: &'a LayoutProblem,
    ceiling: u64,
    /// Steps of each search.
    steps: u64,
    failed: FailedStates,
}

impl DeletionFilter<'_> {
    /// Whether some blocks fit under the ceiling; `None` where they cannot be searched.
    fn fit(&mut self, indices: &[usize]) -> Option<FitOutcome> {
        let blocks: Vec<ItemBlock> = indices
            .iter()
            .map(|&index| self.problem.blocks[index])
            .collect();
        let group = BlockGroup::new(&blocks, &self.problem.loads)?;
        let mut budget = StepBudget::new(self.steps, StopSignal(&|| false));
        self.failed.forget();
        let (outcome, _) = group.fit(group.units(self.ceiling), &mut budget, &mut self.failed);
        Some(outcome)
    }

    /// What is left of an impossible group once every block is removed whose absence changes nothing.
    fn reduce(&mut self, impossible: Vec<usize>) -> ConflictVerdict {
        // The smallest areas first: they are the likeliest not to matter.
        let mut order = impossible.clone();
        order.sort_by_key(|&index| {
            let block = &self.problem.blocks[index];
            (block.size.saturating_mul(block.width), index)
        });

        let mut kept = impossible;
        let mut minimal = true;
        for removed in order {
            let mut rest = kept.clone();
            rest.retain(|&index| index != removed);
            match self.fit(&rest) {
                Some(FitOutcome::Impossible) => kept = rest,
                Some(FitOutcome::Budget) => minimal = false,
                Some(FitOutcome::Found) | None => {}
            }
        }
        let blocks: Vec<&ItemBlock> = kept
            .iter()
            .map(|&index| &self.problem.blocks[index])
            .collect();
        conflict_of(self.problem, &blocks, minimal)
    }
}

fn conflict_of(problem: &LayoutProblem, blocks: &[&ItemBlock], minimal: bool) -> ConflictVerdict {
    let mut items: Vec<usize> = Vec::new();
    for block in blocks {
        items.extend(problem.items_of(block));
    }
    items.sort_unstable();
    ConflictVerdict::Conflict { items, minimal }
}

/// The fewest blocks whose sizes exceed the capacity at one moment.
fn find_overfull(problem: &LayoutProblem, capacity: u64) -> Option<Vec<&ItemBlock>> {
    let limit = capacity.saturating_add(problem.padding);
    let mut sections: Vec<usize> = (0..problem.loads.len())
        .filter(|&section| problem.loads[section] > capacity)
        .collect();
    sections.sort_by_key(|&section| (Reverse(problem.loads[section]), section));
    sections.truncate(MAX_SECTIONS);

    let mut best: Option<Vec<&ItemBlock>> = None;
    for section in sections {
        let mut live: Vec<&ItemBlock> = problem
            .blocks
            .iter()
            .filter(|block| (block.lo as usize..block.hi as usize).contains(&section))
            .collect();
        live.sort_by_key(|block| (Reverse(block.size), block.root));

        let mut sum = 0;
        let last = live.iter().position(|block| {
            sum += block.size;
            sum > limit
        });
        let Some(last) = last else { continue };
        live.truncate(last + 1);
        if best.as_ref().is_none_or(|known| live.len() < known.len()) {
            best = Some(live);
        }
    }
    best
}
