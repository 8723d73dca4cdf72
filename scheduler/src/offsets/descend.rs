//! From a greedy layout downwards: branch and bound under ever lower ceilings.
//!
//! A search for one ceiling is heavy-tailed in the order of blocks: with one order it takes a thousand placements,
//! with the next it never ends. So several orders take turns with budgets that double.

use std::cmp::Reverse;

use super::blocks::{Block, Problem};
use super::greedy::{self, By, Draft};
use super::repair::Repair;
use super::search::{Failed, Outcome, Search, Shape};

/// Most blocks of a group that is searched as a whole: the lists of all levels take 4 bytes times its square.
/// One level of recursion each, of less than a kilobyte: threads have stacks of 2 MiB.
const MAX_GROUP: usize = 1200;

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
        Budget {
            used: 0,
            limit,
            nodes: 0,
        }
    }

    pub(super) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// A budget of its own, no larger than what is left of this one.
    pub(super) fn share(&self, limit: u64) -> Budget {
        Budget::new(limit.min(self.left()))
    }

    /// Counts what a share has cost.
    pub(super) fn spend(&mut self, share: &Budget) {
        self.used += share.used;
        self.nodes += share.nodes;
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
    let mut over: Vec<usize> = (0..problem.groups.len())
        .filter(|&g| draft.sizes[g] > goal)
        .collect();
    over.sort_by_key(|&g| (Reverse(draft.sizes[g]), g));
    // What the groups that are done with need, below which there is no use in lowering the others.
    let mut floor = goal;
    for g in over {
        if draft.sizes[g] <= floor || budget.left() == 0 {
            break;
        }
        let range = problem.groups[g].clone();
        let blocks = &problem.blocks[range.clone()];
        let failed = failed.get_or_insert_with(Failed::default);
        let offsets = &mut draft.offsets[range.clone()];
        let size = &mut draft.sizes[g];
        if let Some(group) = Group::new(blocks, &problem.loads) {
            let mut try_one = |ceiling: u64, share: &mut Budget| {
                failed.forget();
                let (outcome, found) = group.fit(group.units(ceiling), share, failed);
                let bytes = found.iter().map(|&o| u64::from(o) * group.unit);
                offsets
                    .iter_mut()
                    .zip(bytes)
                    .for_each(|(old, new)| *old = new);
                let tops = offsets.iter().zip(blocks).map(|(o, b)| o + b.size);
                (outcome, tops.max().unwrap_or(0))
            };
            let bound = lower(floor, size, group.unit, budget, &mut try_one);
            *lower_bound = (*lower_bound).max(bound);
        } else {
            let mut repair = Repair::new(problem, range, offsets);
            let mut try_one = |ceiling: u64, share: &mut Budget| {
                let done = repair.under(ceiling, share, failed);
                (
                    if done {
                        Outcome::Found
                    } else {
                        Outcome::Budget
                    },
                    repair.size(),
                )
            };
            lower(floor, size, 1, budget, &mut try_one);
            offsets.copy_from_slice(&repair.offsets);
        }
        floor = floor.max(draft.sizes[g]);
    }
}

/// Bisects from `size` down towards `goal`, the goal itself first, with ceilings of whole units.
///
/// `try_one` takes a ceiling and a budget, and returns what came of it and the size now. Returns a lower bound.
fn lower(
    goal: u64,
    size: &mut u64,
    unit: u64,
    budget: &mut Budget,
    try_one: &mut dyn FnMut(u64, &mut Budget) -> (Outcome, u64),
) -> u64 {
    // Ceilings below `low` are impossible, too hard, or not asked for.
    let mut low = goal / unit;
    let mut bound = 0;
    let mut ceiling = low;
    while low < *size / unit && budget.left() > 0 {
        let mut share = budget.share(budget.left().div_ceil(4));
        let (outcome, now) = try_one(ceiling * unit, &mut share);
        budget.spend(&share);
        *size = now.min(*size);
        if outcome != Outcome::Found {
            low = ceiling + 1;
        }
        if outcome == Outcome::Impossible {
            bound = low * unit;
        }
        let high = (*size / unit).max(low);
        ceiling = low + (high - low) / 2;
        // Closer than this is not worth the steps.
        if outcome == Outcome::Budget && high - low <= high / 1000 {
            break;
        }
    }
    bound
}

/// One group in units, in which all its sizes, offsets and alignments are whole.
pub(super) struct Group {
    pub(super) unit: u64,
    /// The group's shapes by index, sections counted from its first.
    shapes: Vec<Shape>,
    /// Indices of shapes in each order.
    rankings: Vec<Vec<u32>>,
}

impl Group {
    /// The group of some blocks, with the loads of all sections; `None` if it is empty or too large to search.
    pub(super) fn new(blocks: &[Block], loads: &[u64]) -> Option<Group> {
        if blocks.len() > MAX_GROUP {
            return None;
        }
        let unit = unit(blocks);
        let total = blocks.iter().try_fold(0u64, |sum, b| {
            sum.checked_add(b.size)?
                .checked_add(b.align)?
                .checked_add(b.fixed.unwrap_or(0))
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
        let last = blocks.iter().map(|b| b.hi).max()?;
        let crowds = greedy::crowds(blocks, &loads[first as usize..last as usize], first);
        let rankings = ORDERS
            .iter()
            .map(|o| greedy::ranking(blocks, &crowds, *o))
            .collect();
        Some(Group {
            unit,
            shapes,
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
                if outcome == Outcome::Impossible {
                    return (outcome, Vec::new());
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
