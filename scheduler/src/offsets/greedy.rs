//! Greedy layouts: blocks in some order, each at the lowest offset that is free for its whole live range.
//!
//! First two sweeps through time that take the smallest gap that fits, O(n log n) however dense the problem. Then
//! ten orders by what is hard to place: by size, live time, area, crowd and mixes. An order looks at the blocks that
//! meet the one it places, found through a tree rather than kept in a list of conflicts, which would be quadratic.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::blocks::{ItemBlock, LayoutProblem};

/// Meetings that all orders together may look at: a few hundred milliseconds.
const MAX_MEETINGS: u64 = 20_000_000;

/// The best layout so far, group by group.
pub(super) struct LayoutDraft {
    /// Offset of each block.
    pub(super) offsets: Vec<u64>,
    /// Bytes that each group needs.
    pub(super) sizes: Vec<u64>,
}

impl LayoutDraft {
    fn none(problem: &LayoutProblem) -> LayoutDraft {
        let sizes = vec![u64::MAX; problem.groups.len()];
        LayoutDraft {
            offsets: vec![0; problem.blocks.len()],
            sizes,
        }
    }

    /// Bytes of the whole.
    pub(super) fn size(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Bytes that a group needs with its present offsets.
    pub(super) fn top_of(&self, problem: &LayoutProblem, group: usize) -> u64 {
        let members = problem.groups[group].clone();
        let tops = members.map(|index| self.offsets[index] + problem.blocks[index].size);
        tops.max().unwrap_or(0)
    }

    /// Takes the groups in which `offsets` need less.
    fn offer(&mut self, problem: &LayoutProblem, offsets: &[u64]) {
        for (size, group) in self.sizes.iter_mut().zip(&problem.groups) {
            let tops = group
                .clone()
                .map(|index| offsets[index] + problem.blocks[index].size);
            let top = tops.max().unwrap_or(0);
            // Groups share no moment, so that each may come from another order.
            if top < *size {
                *size = top;
                self.offsets[group.clone()].copy_from_slice(&offsets[group.clone()]);
            }
        }
    }
}

/// The best greedy layout of each group; stops once all need no more than `goal`.
pub(super) fn lay_out_greedily(problem: &LayoutProblem, goal: u64) -> LayoutDraft {
    let mut draft = LayoutDraft::none(problem);
    for backward in [false, true] {
        draft.offer(problem, &sweep_best_fit(&problem.blocks, backward));
        if draft.size() <= goal {
            return draft;
        }
    }

    let block_crowds = find_crowds(&problem.blocks, &problem.loads, 0);
    // Dense problems get fewer orders.
    let affordable_orders = MAX_MEETINGS / problem.meetings.max(1);
    let mut placed_ends = EndTree::new(problem.blocks.len());
    for &order in ORDERS.iter().take(affordable_orders as usize) {
        let block_ranking = rank_blocks(&problem.blocks, &block_crowds, order);
        let fitted_offsets = place_first_fit(&problem.blocks, &block_ranking, &mut placed_ends);
        draft.offer(problem, &fitted_offsets);
        if draft.size() <= goal {
            break;
        }
    }
    draft
}

/// What a block is ranked by, the largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RankBy {
    /// Bytes.
    Size,
    /// Live time.
    Width,
    /// Bytes times live time.
    Area,
    /// Sections.
    Span,
    /// Bytes times sections.
    Cells,
    /// The largest load of any section it lives in.
    Crowd,
    /// The earliest first.
    Start,
    /// The latest first.
    End,
}

use RankBy::{Area, Cells, Crowd, End, Size, Span, Start, Width};

/// The ten orders, those that do best on average first.
const ORDERS: [[RankBy; 3]; 10] = [
    [Size, Width, Start],
    [Crowd, Size, Width],
    [Area, Size, Start],
    [Crowd, Area, Start],
    [Cells, Size, Start],
    [Width, Size, Start],
    [Crowd, Width, Size],
    [Start, Size, Width],
    [End, Size, Width],
    [Span, Size, Start],
];

/// The largest load that each block lives under, given the loads of the sections from `first` on.
pub(super) fn find_crowds(blocks: &[ItemBlock], loads: &[u64], first: u32) -> Vec<u64> {
    // Table of maxima over 2^k sections: any range is the union of two of them.
    let mut all_levels = vec![loads.to_vec()];
    while 1 << all_levels.len() <= loads.len() {
        let half_width = 1 << (all_levels.len() - 1);
        let level_below = &all_levels[all_levels.len() - 1];
        let mut level_maxima = Vec::with_capacity(level_below.len() - half_width);
        for index in 0..level_below.len() - half_width {
            level_maxima.push(level_below[index].max(level_below[index + half_width]));
        }
        all_levels.push(level_maxima);
    }

    let mut block_crowds = Vec::with_capacity(blocks.len());
    for block in blocks {
        let first_section = (block.lo - first) as usize;
        let end_section = (block.hi - first) as usize;
        let level_maxima = (end_section - first_section).ilog2() as usize;
        block_crowds.push(
            all_levels[level_maxima][first_section]
                .max(all_levels[level_maxima][end_section - (1 << level_maxima)]),
        );
    }
    block_crowds
}

/// Indices of blocks by the three measures, then by index.
pub(super) fn rank_blocks(blocks: &[ItemBlock], crowds: &[u64], order: [RankBy; 3]) -> Vec<u32> {
    let mut keyed_blocks = Vec::with_capacity(blocks.len());
    for (index, (block, &crowd)) in (0u32..).zip(blocks.iter().zip(crowds)) {
        let block_measures = order.map(|by| measure_block(block, crowd, by));
        keyed_blocks.push((Reverse(block_measures), index));
    }
    keyed_blocks.sort_unstable();
    keyed_blocks.into_iter().map(|(_, index)| index).collect()
}

fn measure_block(block: &ItemBlock, crowd: u64, by: RankBy) -> u64 {
    let sections = u64::from(block.hi - block.lo);
    match by {
        Size => block.size,
        Width => block.width,
        Area => block.width.saturating_mul(block.size),
        Span => sections,
        Cells => sections.saturating_mul(block.size),
        Crowd => crowd,
        Start => u64::from(u32::MAX - block.lo),
        End => u64::from(block.hi),
    }
}

/// Places blocks in order of their ranking, the fixed ones before all others, each at its lowest free offset.
fn place_first_fit(blocks: &[ItemBlock], ranking: &[u32], placed: &mut EndTree) -> Vec<u64> {
    let mut block_offsets = vec![0; blocks.len()];
    placed.clear();
    for (index, block) in blocks.iter().enumerate() {
        if let Some(fixed) = block.fixed {
            block_offsets[index] = fixed;
            placed.insert(index, block.hi);
        }
    }

    let mut taken_stretches: Vec<(u64, u64)> = Vec::new();
    for &ranked in ranking {
        let index = ranked as usize;
        let block = &blocks[index];
        if block.fixed.is_some() {
            continue;
        }

        // Blocks are sorted by `lo`: those that start before the end of this one are a prefix.
        let starting_before = blocks.partition_point(|other| other.lo < block.hi);
        taken_stretches.clear();
        placed.later_than(block.lo, starting_before, |other| {
            taken_stretches.push((
                block_offsets[other],
                block_offsets[other] + blocks[other].size,
            ));
        });
        taken_stretches.sort_unstable();

        let mut lowest_offset = block.fit(0);
        for &(start, end) in &taken_stretches {
            if lowest_offset + block.size <= start {
                break;
            }
            if end > lowest_offset {
                lowest_offset = block.fit(end);
            }
        }
        block_offsets[index] = lowest_offset;
        placed.insert(index, block.hi);
    }
    block_offsets
}

/// Ends of placed blocks in a binary tree of maxima, by index of the block.
pub(super) struct EndTree {
    /// Node 1 is the root, leaves start at `leaves`; 0: not placed.
    tree: Vec<u32>,
    leaves: usize,
}

impl EndTree {
    pub(super) fn new(count: usize) -> EndTree {
        let leaves = count.next_power_of_two().max(1);
        EndTree {
            tree: vec![0; 2 * leaves],
            leaves,
        }
    }

    fn clear(&mut self) {
        self.tree.fill(0);
    }

    pub(super) fn insert(&mut self, index: usize, end: u32) {
        let mut node = self.leaves + index;
        // Up to the first ancestor that is later anyway.
        while node > 0 && self.tree[node] < end {
            self.tree[node] = end;
            node /= 2;
        }
    }

    /// Calls `visit` for each placed index below `before` with an end beyond `after`.
    pub(super) fn later_than(&self, after: u32, before: usize, mut visit: impl FnMut(usize)) {
        let mut stack = [(0usize, 0usize, 0usize); usize::BITS as usize + 1];
        let mut depth = 1;
        stack[0] = (1, 0, self.leaves);

        while depth > 0 {
            depth -= 1;
            let (node, lo, count) = stack[depth];
            if lo >= before || self.tree[node] <= after {
                continue;
            }

            if count == 1 {
                visit(lo);
                continue;
            }

            stack[depth] = (2 * node + 1, lo + count / 2, count / 2);
            stack[depth + 1] = (2 * node, lo, count / 2);
            depth += 2;
        }
    }
}

/// Free stretches of memory, by offset and by size.
#[derive(Default)]
struct FreeGaps {
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    top: u64,
}

impl FreeGaps {
    fn add(&mut self, offset: u64, size: u64) {
        if size > 0 {
            self.by_offset.insert(offset, size);
            self.by_size.insert((size, offset));
        }
    }

    fn remove(&mut self, offset: u64, size: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(size, offset));
    }

    fn free(&mut self, offset: u64, size: u64) {
        let mut gap_offset = offset;
        let mut gap_size = size;
        // A gap just below and one just above become one with it.
        if let Some((&before, &len)) = self.by_offset.range(..offset).next_back()
            && before + len == offset
        {
            self.remove(before, len);
            gap_offset = before;
            gap_size += len;
        }
        if let Some(&len) = self.by_offset.get(&(offset + size)) {
            self.remove(offset + size, len);
            gap_size += len;
        }

        if gap_offset + gap_size == self.top {
            self.top = gap_offset;
        } else {
            self.add(gap_offset, gap_size);
        }
    }

    /// The smallest gap in which the block fits, else the top.
    fn take(&mut self, block: &ItemBlock) -> u64 {
        // Only a gap shorter than size and alignment together can fail, and a few of those are tried.
        let short_gaps = self.by_size.range((block.size, 0)..).take(8);
        let short_gap = short_gaps.copied().find(|&(len, block_offset)| {
            block.fit(block_offset) + block.size <= block_offset + len
        });
        let long_size = block.size + block.align;
        let chosen_gap = short_gap.or_else(|| self.by_size.range((long_size, 0)..).next().copied());

        if let Some((len, gap_offset)) = chosen_gap {
            let block_offset = block.fit(gap_offset);
            let block_end = block_offset + block.size;
            self.remove(gap_offset, len);
            self.add(gap_offset, block_offset - gap_offset);
            self.add(block_end, gap_offset + len - block_end);
            return block_offset;
        }
        let block_offset = block.fit(self.top);
        self.add(self.top, block_offset - self.top);
        self.top = block_offset + block.size;
        block_offset
    }
}

/// Best fit through time, forward or backward. Fixed blocks keep the memory up to their highest end for themselves.
fn sweep_best_fit(blocks: &[ItemBlock], backward: bool) -> Vec<u64> {
    let last_section = blocks.iter().map(|block| block.hi).max().unwrap_or(0);
    let mut start_events: Vec<(u32, Reverse<u64>, u32)> = Vec::new();
    let mut end_events: Vec<(u32, u32)> = Vec::new();
    let mut fixed_top = 0;
    for (index, block) in (0u32..).zip(blocks) {
        if let Some(fixed) = block.fixed {
            fixed_top = (fixed + block.size).max(fixed_top);
            continue;
        }
        let (start, end) = match backward {
            true => (last_section - block.hi, last_section - block.lo),
            false => (block.lo, block.hi),
        };
        start_events.push((start, Reverse(block.size), index));
        end_events.push((end, index));
    }
    start_events.sort_unstable();
    end_events.sort_unstable();

    let fixed_offsets = blocks.iter().map(|block| block.fixed.unwrap_or(0));
    let mut block_offsets: Vec<u64> = fixed_offsets.collect();
    let mut free_gaps = FreeGaps {
        top: fixed_top,
        ..FreeGaps::default()
    };
    let mut ended_blocks = end_events.into_iter().peekable();
    for (start, _, index) in start_events {
        while let Some((_, old)) = ended_blocks.next_if(|&(end, _)| end <= start) {
            free_gaps.free(block_offsets[old as usize], blocks[old as usize].size);
        }
        block_offsets[index as usize] = free_gaps.take(&blocks[index as usize]);
    }
    block_offsets
}
