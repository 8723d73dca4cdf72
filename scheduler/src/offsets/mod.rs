//! Offsets from live ranges: where in one region of memory each item lies. Knows nothing of graphs or plans.
//!
//! Two items may share memory when their live ranges are disjoint. Finding the smallest region is the *dynamic
//! storage allocation* problem, which is strongly NP-hard (Garey & Johnson 1979, SR2). [`solve`] goes from cheap to
//! expensive and stops as soon as the region is as small as it can be or, where a capacity is given, small enough:
//!
//! 1. aliases are taken together into blocks (`blocks`), and time falls apart into groups that share no moment;
//! 2. greedy orders, each group keeping its best (`greedy`);
//! 3. where a capacity is given, many short searches for it (`restart`, `section_search`, `reasons`,
//!    `fillers`), among them searches with blocks joined to larger ones (`joins`);
//! 4. branch and bound, group by group, the largest first (`descend`, `group`, `search`), or, where groups are too
//!    large, window by window (`repair`).
//!
//! No clock, no randomness: the budget is counted in steps, so that the same input gives the same layout. Who has a
//! clock may stop the search by it ([`solve_until`]), and gets the best layout so far.

mod blocks;
mod conflict;
mod descend;
mod fillers;
mod floors;
mod greedy;
mod group;
mod joins;
mod reasons;
mod repair;
mod restart;
mod search;
mod section_search;
#[cfg(test)]
mod tests;

pub use conflict::{ConflictVerdict, conflict};

use blocks::LayoutProblem;
use search::StopSignal;

/// Something that needs memory for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// First moment at which the item is live.
    pub first: u64,
    /// First moment at which it is live no more. An item that is never live (`end <= first`) shares with all.
    pub end: u64,
    /// Bytes.
    pub size: u64,
    /// The offset is a multiple of this power of two.
    pub align: u64,
    /// The only offset allowed, if there is one.
    pub fixed: Option<u64>,
    /// The item lies within another: an operation in place, a reshape, a part of a split or of a concatenation.
    pub alias: Option<Alias>,
}

impl Item {
    /// An item without wishes: live in `[first, end)`, at any offset.
    pub fn new(first: u64, end: u64, size: u64) -> Item {
        Item {
            first,
            end,
            size,
            align: 1,
            fixed: None,
            alias: None,
        }
    }
}

/// Ties an item's offset to that of another.
///
/// All items tied together share memory as one block: live from the first moment of any to the last of any, as long
/// as the furthest reaches. So a concatenation is there in full as soon as its first part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Index of the other item, which may be tied to a third.
    pub item: usize,
    /// Bytes from the other item's start to this one's.
    pub offset: u64,
}

/// What a layout must keep to and may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutLimits {
    /// Bytes that are small enough; without it, the smallest region is looked for.
    pub capacity: Option<u64>,
    /// Steps of branch and bound, at most, each about a tenth of a microsecond. 0: greedy only.
    pub steps: u64,
}

impl Default for LayoutLimits {
    fn default() -> LayoutLimits {
        LayoutLimits {
            capacity: None,
            steps: 10_000_000,
        }
    }
}

/// Offsets of all items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemLayout {
    /// Offset of each item.
    pub offsets: Vec<u64>,
    /// Bytes of the region: the highest end of an item. May exceed [`LayoutLimits::capacity`].
    pub size: u64,
    /// Bytes below which no layout exists (with aliases taken as blocks): the largest sum of sizes live at one
    /// moment, or more where the search proved more.
    pub lower_bound: u64,
    /// Placements tried.
    pub nodes: u64,
}

impl ItemLayout {
    /// Whether no layout is smaller.
    pub fn proved(&self) -> bool {
        self.size == self.lower_bound
    }

    /// `size / lower_bound - 1`; 0 for an empty layout.
    pub fn gap(&self) -> f64 {
        if self.size == self.lower_bound {
            return 0.0;
        }
        self.size as f64 / self.lower_bound as f64 - 1.0
    }
}

/// Why items have no layout at all.
#[expect(missing_docs, reason = "fields that say what their names say")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffsetsError {
    /// An alignment is not a power of two.
    #[error("item {item} has alignment {align}, which is not a power of two")]
    Align { item: usize, align: u64 },
    /// A fixed offset is not aligned.
    #[error("item {item} is fixed at {fixed}, which is not a multiple of its alignment {align}")]
    FixedAlign { item: usize, fixed: u64, align: u64 },
    /// Two items fixed at overlapping places are live at the same time.
    #[error(
        "item {first}, fixed at {first_fixed}, overlaps item {second}, fixed at {second_fixed}"
    )]
    FixedOverlap {
        /// One item.
        first: usize,
        first_fixed: u64,
        /// The other item.
        second: usize,
        second_fixed: u64,
    },
    /// An alias names an item that does not exist.
    #[error("item {item} is tied to item {to}, but there are only {count}")]
    AliasRange {
        item: usize,
        /// What it is tied to.
        to: usize,
        /// Number of items.
        count: usize,
    },
    /// Aliases go round in a circle.
    #[error("item {item} is tied to itself in the end")]
    AliasCycle {
        /// An item of the cycle.
        item: usize,
    },
    /// Items tied together have alignments that no offset satisfies.
    #[error("item {item} lies {offset} bytes into a block, which its alignment {align} forbids")]
    AliasAlign {
        item: usize,
        /// Bytes from the block's start.
        offset: u64,
        /// Alignment of the item, or the largest of the block.
        align: u64,
    },
    /// Items tied together are fixed at offsets that contradict each other.
    #[error("item {item} is fixed at {fixed}, but what it is tied to wants it at {wanted}")]
    AliasFixed {
        item: usize,
        /// Its fixed offset.
        fixed: u64,
        /// The offset that follows from the others, or the lowest that leaves them room.
        wanted: u64,
    },
    /// Sizes and offsets add up to more than any address.
    #[error("the items reach beyond {limit} bytes")]
    TooBig { limit: u64 },
}

/// Bytes that all items together may need at most.
pub const MAX_BYTES: u64 = 1 << 60;

/// Lays out items: greedy first, then branch and bound while the region is larger than need be.
///
/// O(n log n) memory and, but for the budget of the search, close to O(n log n) time.
///
/// # Errors
/// See [`OffsetsError`]. A layout larger than the capacity is not an error: compare [`ItemLayout::size`].
pub fn solve(items: &[Item], limits: &LayoutLimits) -> Result<ItemLayout, OffsetsError> {
    solve_until(items, limits, &|| false)
}

/// As [`solve`], but stops within a millisecond or so of `should_stop`, with the best layout so far.
///
/// It is asked often while layouts are searched for, not while the greedy ones are made, which take at most a few
/// hundred milliseconds, and only for many thousands of items.
///
/// # Errors
/// See [`OffsetsError`].
pub fn solve_until(
    items: &[Item],
    limits: &LayoutLimits,
    should_stop: &dyn Fn() -> bool,
) -> Result<ItemLayout, OffsetsError> {
    let problem = LayoutProblem::new(items)?;
    let goal = limits.capacity.unwrap_or(0).max(problem.lower_bound);
    let mut draft = greedy::lay_out_greedily(&problem, goal);
    let mut budget = group::StepBudget::new(limits.steps, StopSignal(should_stop));
    let mut lower_bound = problem.lower_bound;
    if limits.capacity.is_some() {
        restart::fit_groups(&problem, goal, &mut budget, &mut draft, &mut lower_bound);
    }
    descend::descend(&problem, goal, &mut budget, &mut draft, &mut lower_bound);

    let offsets = problem.item_offsets(&draft.offsets);
    let size = problem.real_size(&offsets);
    let lower_bound = problem.real_bound(lower_bound).min(size);
    Ok(ItemLayout {
        offsets,
        size,
        lower_bound,
        nodes: budget.nodes,
    })
}
