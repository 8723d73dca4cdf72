//! Many short section searches for a capacity: what one order of decisions never finds, another finds at once.
//!
//! The searches differ by chance in how they break ties and in which blocks they try first, and learn from each other
//! only in which sections fail. Half of them take bytes that may stay empty for blocks too (see `fillers`), and after
//! each comes one in which blocks are joined (see `joins`). Their lengths follow Luby, Sinclair & Zuckerman 1993, which is
//! within a logarithm of the best lengths whatever the instance. Chance is a fixed sequence, so that the same budget
//! gives the same layout.

use super::blocks::LayoutProblem;
use super::fillers::{FillerChoice, make_fillers};
use super::greedy::LayoutDraft;
use super::group::{BlockGroup, StepBudget};
use super::joins::JoinAttempts;
use super::search::{BlockShape, FitOutcome, mix_bits};
use super::section_search::{SectionOrder, SectionSearch};

/// Most blocks and fillers of a group that is searched by section: each is a level of recursion or two.
pub(super) const MAX_BLOCKS: usize = 800;

/// Steps of the shortest search, for each block: some thousand decisions in all.
pub(super) const SHORTEST_SEARCH: u64 = 50;

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

/// How one search of several kinds, which take turns, goes about it.
struct SearchKind {
    order: SectionOrder,
    fillers: FillerKind,
}

/// What a search takes for fillers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FillerKind {
    /// Nothing.
    None,
    /// Rectangles with edges that match.
    Matched,
    /// The rest of the bytes that may stay empty as well.
    All,
}

/// The kinds of searches: each has lengths of its own, so that each has its share of the long ones.
const KINDS: [SearchKind; 6] = [
    SearchKind {
        order: SectionOrder::Random,
        fillers: FillerKind::None,
    },
    SearchKind {
        order: SectionOrder::Random,
        fillers: FillerKind::Matched,
    },
    SearchKind {
        order: SectionOrder::Failures,
        fillers: FillerKind::None,
    },
    SearchKind {
        order: SectionOrder::Random,
        fillers: FillerKind::All,
    },
    SearchKind {
        order: SectionOrder::Chains,
        fillers: FillerKind::None,
    },
    SearchKind {
        order: SectionOrder::Chains,
        fillers: FillerKind::Matched,
    },
];

/// One of so many matches of edges is not trusted, by turns: 0 stands for trust in all.
const LEFT_OUT: [u64; 4] = [0, 16, 0, 6];

/// Fillers for the search of a round; none where they would be too many.
fn choose_fillers(
    group: &BlockGroup,
    ceiling: u32,
    kind: &SearchKind,
    round: u64,
) -> Vec<BlockShape> {
    if kind.fillers == FillerKind::None {
        return Vec::new();
    }
    let turn = round / KINDS.len() as u64;
    let choice = FillerChoice {
        takes_rest: kind.fillers == FillerKind::All,
        left_out: LEFT_OUT[turn as usize % LEFT_OUT.len()],
        seed: round,
    };
    let mut fillers = make_fillers(group, ceiling, choice);
    if group.shapes.len() + fillers.len() > MAX_BLOCKS {
        fillers.clear();
    }
    fillers
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
    let mut join_attempts = JoinAttempts::default();

    for round in 0.. {
        let kind_count = KINDS.len() as u64;
        let kind = &KINDS[(round % kind_count) as usize];
        let length = luby(round / kind_count + 1);
        let limit = shortest_search.saturating_mul(length).min(budget.left());
        if limit == 0 {
            break;
        }

        let fillers = choose_fillers(group, ceiling, kind, round);
        let has_fillers = !fillers.is_empty();
        let mut ranking = draw_ranking(group, round, round / kind_count);
        rank_fillers(group, &fillers, &mut ranking);
        let mut all_shapes = group.shapes.clone();
        all_shapes.extend(fillers);
        let ranked = ranking.iter().map(|&index| all_shapes[index as usize]);
        let shapes: Vec<BlockShape> = ranked.collect();
        let order = kind.order;
        let (outcome, placed) =
            search_sections(&shapes, ceiling, limit, order, round, &mut failures, budget);

        match outcome {
            FitOutcome::Budget => {}
            // There may be a layout without these fillers.
            FitOutcome::Impossible if has_fillers => {}
            FitOutcome::Impossible => return (outcome, Vec::new()),
            FitOutcome::Found => {
                let mut offsets = vec![0; shapes.len()];
                for (&index, &offset) in ranking.iter().zip(&placed) {
                    offsets[index as usize] = offset;
                }
                offsets.truncate(group.shapes.len());
                return (outcome, offsets);
            }
        }

        if let Some(offsets) = join_attempts.fit(group, ceiling, round, budget) {
            return (FitOutcome::Found, offsets);
        }
    }
    (FitOutcome::Budget, Vec::new())
}

/// The group's orders in turn: the first time as they are, then with blocks drawn from the next few.
fn draw_ranking(group: &BlockGroup, round: u64, turn: u64) -> Vec<u32> {
    let ranking_count = group.rankings.len() as u64;
    let mut ranking = group.rankings[(turn % ranking_count) as usize].clone();
    if turn < ranking_count {
        return ranking;
    }
    let last = ranking.len() - 1;
    for index in 0..last {
        let drawn = mix_bits((round << 32) + index as u64) % DRAW_WIDTH;
        ranking.swap(index, (index + drawn as usize).min(last));
    }
    ranking
}

/// Puts fillers into a ranking of blocks, with indices that follow those of the blocks: each as far from its start as it
/// would be were the ranking by area.
fn rank_fillers(group: &BlockGroup, fillers: &[BlockShape], ranking: &mut Vec<u32>) {
    if fillers.is_empty() {
        return;
    }
    let area_of = |shape: &BlockShape| u64::from(shape.hi - shape.lo) * u64::from(shape.size);
    let mut areas: Vec<u64> = group.shapes.iter().map(area_of).collect();
    areas.sort_unstable();

    // Twice the position of each, so that a filler comes before the block that has its position.
    let placed = ranking.iter().zip(0..);
    let mut positions: Vec<(usize, u32)> = placed
        .map(|(&index, position)| (2 * position + 1, index))
        .collect();
    for (filler, index) in fillers.iter().zip(group.shapes.len() as u32..) {
        let smaller = areas.partition_point(|&area| area < area_of(filler));
        positions.push((2 * (areas.len() - smaller), index));
    }
    positions.sort_unstable();
    *ranking = positions.into_iter().map(|(_, index)| index).collect();
}

/// One search by section, whose steps and nodes the budget bears; the offsets of all shapes, if they were found.
pub(super) fn search_sections(
    shapes: &[BlockShape],
    ceiling: u32,
    limit: u64,
    order: SectionOrder,
    round: u64,
    failures: &mut [u64],
    budget: &mut StepBudget<'_>,
) -> (FitOutcome, Vec<u32>) {
    let stop = budget.stop;
    let mut search = SectionSearch::new(shapes, ceiling, limit, order, round, failures, stop);
    let outcome = search.run();
    budget.used += search.steps();
    budget.nodes += search.nodes;
    (outcome, search.offsets)
}

/// The sequence 1, 1, 2, 1, 1, 2, 4, 1, ... from index 1 on.
pub(super) fn luby(index: u64) -> u64 {
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
