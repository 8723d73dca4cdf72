//! Many short section searches for a capacity: what one order of decisions never finds, another finds at once.
//!
//! The searches differ by chance in how they break ties and in which blocks they try first, and learn from each other
//! only in which sections fail. Their lengths follow Luby, Sinclair & Zuckerman 1993, which is within a logarithm of
//! the best lengths whatever the instance. Chance is a fixed sequence, so that the same budget gives the same layout.

use super::blocks::LayoutProblem;
use super::greedy::LayoutDraft;
use super::group::{BlockGroup, StepBudget};
use super::search::{BlockShape, FitOutcome, mix_bits};
use super::section_search::{SectionOrder, SectionSearch};

/// Most blocks of a group that is searched by section: each is a level of recursion or two.
const MAX_BLOCKS: usize = 800;

/// Steps of the shortest search, for each block: some thousand decisions in all.
const SHORTEST_SEARCH: u64 = 50;

/// Blocks among which the next in an order is drawn.
const DRAW_WIDTH: u64 = 10;

/// Part of the steps that is left for the search from a greedy layout downwards.
const DESCENT_PART: u64 = 4;

/// Lays out the groups of `draft` that are higher than `goal` under it, as long as each fits.
///
/// Raises `lower_bound` where a group was proved not to fit.
pub(super) fn fit_groups(
    problem: &LayoutProblem,
    goal: u64,
    budget: &mut StepBudget<'_>,
    draft: &mut LayoutDraft,
    lower_bound: &mut u64,
) {
    let search_steps = budget.left() - budget.left() / DESCENT_PART;
    let mut share = budget.share(search_steps);
    for (index, range) in problem.groups.iter().enumerate() {
        let blocks = &problem.blocks[range.clone()];
        let has_fixed = blocks.iter().any(|block| block.fixed.is_some());
        if draft.sizes[index] <= goal || has_fixed || blocks.len() > MAX_BLOCKS {
            continue;
        }
        let Some(group) = BlockGroup::new(blocks, &problem.loads) else {
            continue;
        };

        let ceiling = group.units(goal);
        let (outcome, found) = fit_by_section(&group, ceiling, &mut share);
        for (offset, units) in draft.offsets[range.clone()].iter_mut().zip(found) {
            *offset = u64::from(units) * group.unit;
        }
        match outcome {
            FitOutcome::Found => draft.sizes[index] = draft.top_of(problem, index),
            FitOutcome::Impossible => {
                let next_ceiling = (u64::from(ceiling) + 1) * group.unit;
                *lower_bound = next_ceiling.max(*lower_bound);
            }
            FitOutcome::Budget => {}
        }
        // The region is as high as its highest group.
        if outcome != FitOutcome::Found {
            break;
        }
    }
    budget.spend(&share);
}

/// Looks for a layout of a group without fixed blocks, of at most `ceiling` units; returns its offsets, if any.
pub(super) fn fit_by_section(
    group: &BlockGroup,
    ceiling: u32,
    budget: &mut StepBudget<'_>,
) -> (FitOutcome, Vec<u32>) {
    let section_ends = group.shapes.iter().map(|shape| shape.hi);
    let section_count = section_ends.max().unwrap_or(0) as usize;
    let mut failures = vec![0; section_count];
    let shortest_search = SHORTEST_SEARCH * group.shapes.len() as u64;

    for round in 0.. {
        let limit = budget
            .left()
            .min(shortest_search.saturating_mul(luby(round + 1)));
        if limit == 0 {
            break;
        }

        let ranking = draw_ranking(group, round);
        let ranked = ranking.iter().map(|&index| group.shapes[index as usize]);
        let shapes: Vec<BlockShape> = ranked.collect();
        let order = match round % 2 {
            0 => SectionOrder::Random,
            _ => SectionOrder::Failures,
        };
        let stop = budget.stop;
        let mut search =
            SectionSearch::new(&shapes, ceiling, limit, order, round, &mut failures, stop);
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
    (FitOutcome::Budget, Vec::new())
}

/// The group's orders in turn: the first time as they are, then with blocks drawn from the next few.
fn draw_ranking(group: &BlockGroup, round: u64) -> Vec<u32> {
    let ranking_count = group.rankings.len() as u64;
    let mut ranking = group.rankings[(round % ranking_count) as usize].clone();
    if round < ranking_count {
        return ranking;
    }
    let last = ranking.len() - 1;
    for index in 0..last {
        let drawn = mix_bits((round << 32) + index as u64) % DRAW_WIDTH;
        ranking.swap(index, (index + drawn as usize).min(last));
    }
    ranking
}

/// The sequence 1, 1, 2, 1, 1, 2, 4, 1, ... from index 1 on.
fn luby(index: u64) -> u64 {
    let mut rest = index;
    while !(rest + 1).is_power_of_two() {
        // Past the longest run of the sequence that is complete.
        rest -= (1 << rest.ilog2()) - 1;
    }
    rest.div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::luby;

    #[test]
    fn lengths_double_after_each_run_of_two() {
        let lengths: Vec<u64> = (1..=15).map(luby).collect();
        assert_eq!(lengths, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }
}
