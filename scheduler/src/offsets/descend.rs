//! From a greedy layout downwards: branch and bound under ever lower ceilings.
//!
//! A search for one ceiling is heavy-tailed in the order of blocks: with one order it takes a thousand placements,
//! with the next it never ends. So several orders take turns with budgets that double.

use std::ops::Range;

use super::blocks::{Block, Problem};
use super::greedy::{self, By, Draft};
use super::search::{Failed, Outcome, Search, Shape};

/// Most blocks of a group that is searched: lists of all levels take up to 4 bytes times its square.
const MAX_GROUP: usize = 3000;

/// Largest ceiling in units.
const MAX_UNITS: u64 = 1 << 30;

/// Steps of the first turn of each order, for each block.
const FIRST_TURN: u64 = 500;

use By::{Area, Cells, Crowd, Size, Span, Start, Width};

/// The orders that take turns, those that end soonest on tight layouts first.
const ORDERS: [[By; 3]; 8] = [
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
pub(super) struct Budget {
    /// Steps taken so far.
    used: u64,
    /// Most steps.
    limit: u64,
    /// Placements tried so far.
    pub(super) nodes: u64,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Budget {
        Budget { used: 0, limit, nodes: 0 }
    }

    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Lowers the largest group of `draft` until it is no higher than `goal`, the budget is spent, or it stays largest.
///
/// Raises `lower_bound` where a ceiling was proved impossible.
pub(super) fn descend(
    problem: &Problem,
    goal: u64,
    budget: &mut Budget,
    draft: &mut Draft,
    lower_bound: &mut u64,
) {
    let mut failed = None;
    let mut over: Vec<usize> =
        (0..problem.groups.len()).filter(|&g| draft.sizes[g] > goal).collect();
    over.sort_by_key(|&g| (std::cmp::Reverse(draft.sizes[g]), g));
    // What the groups that are done with need, below which there is no use in lowering the others.
    let mut floor = goal;
    for g in over {
        if draft.sizes[g] <= floor || budget.left() == 0 {
            break;
        }
        let range = problem.groups[g].clone();
        let Some(mut group) = Group::new(problem, range.clone()) else {
            floor = floor.max(draft.sizes[g]);
            continue;
        };
        let failed = failed.get_or_insert_with(Failed::default);
        let bound = group.lower(floor, draft.sizes[g], budget, failed, &mut |size, offsets| {
            draft.sizes[g] = size;
            draft.offsets[range.clone()].copy_from_slice(offsets);
        });
        *lower_bound = (*lower_bound).max(bound);
        floor = floor.max(draft.sizes[g]);
    }
}

/// One group in units, in which all its sizes, offsets and alignments are whole.
pub(super) struct Group {
    unit: u64,
    /// The group's shapes by index, sections counted from its first.
    shapes: Vec<Shape>,
    /// Indices of shapes in each order.
    rankings: Vec<Vec<u32>>,
}

impl Group {
    /// `None` if the group is too large to search.
    pub(super) fn new(problem: &Problem, range: Range<usize>) -> Option<Group> {
        if range.len() > MAX_GROUP {
            return None;
        }
        let blocks = &problem.blocks[range.clone()];
        let unit = unit(blocks);
        let total = blocks.iter().try_fold(0u64, |sum, b| {
            sum.checked_add(b.size)?.checked_add(b.align)?.checked_add(b.fixed.unwrap_or(0))
        });
        if total.is_none_or(|t| t / unit > MAX_UNITS) {
            return None;
        }
        let first = blocks.iter().map(|b| b.lo).min()?;
        let shapes = blocks
            .iter()
            .map(|b| Shape {
                lo: b.lo - first,
                hi: b.hi - first,
                size: (b.size / unit) as u32,
                // An alignment that divides the unit asks for nothing, as does its residue.
                mask: (b.align / unit).saturating_sub(1) as u32,
                residue: (b.residue / unit) as u32,
                fixed: b.fixed.map(|f| (f / unit) as u32),
            })
            .collect();
        let crowds = &greedy::crowds(problem)[range];
        let rankings = ORDERS.iter().map(|o| greedy::ranking(blocks, crowds, *o)).collect();
        Some(Group { unit, shapes, rankings })
    }

    /// Looks for a layout of at most `ceiling` units within `budget`.
    pub(super) fn fit(
        &self,
        ceiling: u32,
        budget: &mut Budget,
        failed: &mut Failed,
    ) -> (Outcome, Vec<u32>) {
        let mut turn = FIRST_TURN * self.shapes.len() as u64;
        loop {
            for (order, ranking) in self.rankings.iter().enumerate() {
                let limit = turn.min(budget.left());
                if limit == 0 {
                    return (Outcome::Budget, Vec::new());
                }
                let shapes: Vec<Shape> = ranking.iter().map(|&i| self.shapes[i as usize]).collect();
                failed.part(order);
                let mut search = Search::new(&shapes, ceiling, limit, failed);
                let outcome = search.run();
                budget.used += search.steps();
                budget.nodes += search.nodes;
                if outcome == Outcome::Budget {
                    continue;
                }
                let mut offsets = vec![0; shapes.len()];
                for (&i, &offset) in ranking.iter().zip(&search.offsets) {
                    offsets[i as usize] = offset;
                }
                return (outcome, offsets);
            }
            turn *= 2;
        }
    }

    /// Lowers the group from `size` towards `goal`, giving each better layout to `found`. Returns a lower bound.
    fn lower(
        &mut self,
        goal: u64,
        size: u64,
        budget: &mut Budget,
        failed: &mut Failed,
        found: &mut dyn FnMut(u64, &[u64]),
    ) -> u64 {
        let unit = self.unit;
        // Ceilings below `low` are impossible or not asked for; `high` is reached.
        let mut low = (goal / unit) as u32;
        let mut high = (size / unit) as u32;
        let mut bound = 0;
        let mut ceiling = low;
        while low < high && budget.left() > 0 {
            let share = budget.left().div_ceil(4);
            let mut part = Budget::new(share);
            failed.forget();
            let (outcome, offsets) = self.fit(ceiling, &mut part, failed);
            budget.used += part.used;
            budget.nodes += part.nodes;
            match outcome {
                Outcome::Found => {
                    let tops = offsets.iter().zip(&self.shapes).map(|(o, s)| o + s.size);
                    high = tops.max().unwrap_or(0);
                    let bytes: Vec<u64> = offsets.iter().map(|&o| u64::from(o) * unit).collect();
                    found(u64::from(high) * unit, &bytes);
                }
                Outcome::Impossible => {
                    low = ceiling + 1;
                    bound = u64::from(low) * unit;
                }
                Outcome::Budget => low = ceiling + 1,
            }
            ceiling = low + (high.max(low) - low) / 2;
        }
        bound
    }
}

/// The largest unit in which sizes, residues, fixed offsets and alignments are whole; an alignment that divides it
/// needs no care.
fn unit(blocks: &[Block]) -> u64 {
    let mut unit = blocks.iter().fold(0, |unit, b| {
        gcd(gcd(unit, b.size), gcd(b.residue, b.fixed.unwrap_or(0)))
    });
    for block in blocks {
        if unit % block.align != 0 {
            unit = gcd(unit, block.align);
        }
    }
    unit.max(1)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
