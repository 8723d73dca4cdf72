//! Which items cannot fit together: a small set to show to people when memory is too small.

use super::blocks::{Block, Problem};
use super::descend::{Budget, Group};
use super::search::{Failed, Outcome};
use super::{Item, Layout, Limits, OffsetsError, solve};

/// Whether items fit a capacity, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They fit like this.
    Fits(Layout),
    /// These cannot fit together.
    Conflict {
        /// Indices of the items, ascending. Without any one of them (and what is tied to it) the rest fits, if
        /// `minimal`.
        items: Vec<usize>,
        /// Whether that was proved. Other sets, smaller ones too, may conflict as well.
        minimal: bool,
    },
    /// No layout was found within the steps, and no proof that there is none.
    Undecided(Layout),
}

/// Most sections that are looked at for the fewest blocks that exceed the capacity by their sizes alone.
const SECTIONS: usize = 64;

/// Finds a small set of items that cannot fit `capacity` bytes together.
///
/// Where the sizes live at one moment exceed it, the largest of them that do, at the moment where they are fewest.
/// Otherwise what is left of an impossible group once every block is removed whose absence changes nothing (deletion
/// filter: one search for each block, each within `steps`).
///
/// # Errors
/// See [`OffsetsError`].
pub fn conflict(items: &[Item], capacity: u64, steps: u64) -> Result<Verdict, OffsetsError> {
    let problem = Problem::new(items)?;
    let too_high = |item: &Item| item.size > 0 && item.fixed.unwrap_or(0) + item.size > capacity;
    if let Some(item) = items.iter().position(too_high) {
        return Ok(Verdict::Conflict {
            items: vec![item],
            minimal: true,
        });
    }
    if let Some(blocks) = overfull(&problem, capacity) {
        return Ok(verdict(&problem, &blocks, true));
    }
    let layout = solve(
        items,
        &Limits {
            capacity: Some(capacity),
            steps,
        },
    )?;
    if layout.size <= capacity {
        return Ok(Verdict::Fits(layout));
    }
    // Rounded sizes may exceed the capacity at the very top where true ones do not: then nothing is proved.
    let ceiling = capacity.saturating_add(problem.padding);
    let mut failed = Failed::default();
    for range in problem.groups.clone() {
        let Some(group) = Group::new(&problem.blocks[range.clone()], &problem.loads) else {
            continue;
        };
        let mut fit = |group: &Group| {
            failed.forget();
            group
                .fit(group.units(ceiling), &mut Budget::new(steps), &mut failed)
                .0
        };
        if fit(&group) != Outcome::Impossible {
            continue;
        }
        let mut kept: Vec<usize> = range.collect();
        // The smallest areas first: they are the likeliest not to matter.
        let mut order = kept.clone();
        order.sort_by_key(|&i| {
            (
                problem.blocks[i]
                    .size
                    .saturating_mul(problem.blocks[i].width),
                i,
            )
        });
        let mut minimal = true;
        for out in order {
            let rest: Vec<usize> = kept.iter().copied().filter(|&i| i != out).collect();
            let blocks: Vec<Block> = rest.iter().map(|&i| problem.blocks[i]).collect();
            match Group::new(&blocks, &problem.loads).map(|group| fit(&group)) {
                Some(Outcome::Impossible) => kept = rest,
                Some(Outcome::Budget) => minimal = false,
                Some(Outcome::Found) | None => {}
            }
        }
        let blocks: Vec<&Block> = kept.iter().map(|&i| &problem.blocks[i]).collect();
        return Ok(verdict(&problem, &blocks, minimal));
    }
    Ok(Verdict::Undecided(layout))
}

fn verdict(problem: &Problem, blocks: &[&Block], minimal: bool) -> Verdict {
    let mut items: Vec<usize> = blocks.iter().flat_map(|b| problem.items_of(b)).collect();
    items.sort_unstable();
    Verdict::Conflict { items, minimal }
}

/// The fewest blocks whose sizes exceed the capacity at one moment.
fn overfull(problem: &Problem, capacity: u64) -> Option<Vec<&Block>> {
    let mut sections: Vec<usize> = (0..problem.loads.len())
        .filter(|&s| problem.loads[s] > capacity)
        .collect();
    sections.sort_by_key(|&s| (std::cmp::Reverse(problem.loads[s]), s));
    sections.truncate(SECTIONS);
    let mut best: Option<Vec<&Block>> = None;
    for section in sections {
        let live = |b: &&Block| (b.lo as usize..b.hi as usize).contains(&section);
        let mut blocks: Vec<&Block> = problem.blocks.iter().filter(live).collect();
        blocks.sort_by_key(|b| (std::cmp::Reverse(b.size), b.root));
        let mut sum = 0;
        let limit = capacity.saturating_add(problem.padding);
        let enough = blocks.iter().position(|b| {
            sum += b.size;
            sum > limit
        });
        let Some(last) = enough else { continue };
        blocks.truncate(last + 1);
        if best.as_ref().is_none_or(|b| blocks.len() < b.len()) {
            best = Some(blocks);
        }
    }
    best
}
