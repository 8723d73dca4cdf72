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

    /// Takes the groups in which `offsets` need less.
    fn offer(&mut self, problem: &LayoutProblem, offsets: &[u64]) {
        for (size, group) in self.sizes.iter_mut().zip(&problem.groups) {
            let tops = group
                .clone()
                .map(|index| offsets[index] + problem.blocks[index].size);
            let top = tops.max().unwrap_or(0);
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

    let crowds = find_crowds(&problem.blocks, &problem.loads, 0);
    let affordable = MAX_MEETINGS / problem.meetings.max(1);
    let mut placed = EndTree::new(problem.blocks.len());
    for &order in ORDERS.iter().take(affordable as usize) {
        let ranking = rank_blocks(&problem.blocks, &crowds, order);
        let offsets = place_first_fit(&problem.blocks, &ranking, &mut placed);
        draft.offer(problem, &offsets);
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
    let mut levels = vec![loads.to_vec()];
    while 1 << levels.len() <= loads.len() {
        let half = 1 << (levels.len() - 1);
        let below = &levels[levels.len() - 1];
        let mut level = Vec::with_capacity(below.len() - half);
        for index in 0..below.len() - half {
            level.push(below[index].max(below[index + half]));
        }
        levels.push(level);
    }

    let mut crowds = Vec::with_capacity(blocks.len());
    for block in blocks {
        let lo = (block.lo - first) as usize;
        let hi = (block.hi - first) as usize;
        let level = (hi - lo).ilog2() as usize;
        crowds.push(levels[level][lo].max(levels[level][hi - (1 << level)]));
    }
    crowds
}

/// Indices of blocks by the three measures, then by index.
pub(super) fn rank_blocks(blocks: &[ItemBlock], crowds: &[u64], order: [RankBy; 3]) -> Vec<u32> {
    let mut keyed = Vec::with_capacity(blocks.len());
    for (index, (block, &crowd)) in (0u32..).zip(blocks.iter().zip(crowds)) {
        let measures = order.map(|by| measure_block(block, crowd, by));
        keyed.push((Reverse(measures), index));
    }
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, index)| index).collect()
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
    let mut offsets = vec![0; blocks.len()];
    placed.clear();
    for (index, block) in blocks.iter().enumerate() {
        if let Some(fixed) = block.fixed {
            offsets[index] = fixed;
            placed.insert(index, block.hi);
        }
    }

    let mut taken: Vec<(u64, u64)> = Vec::new();
    for &ranked in ranking {
        let index = ranked as usize;
        let block = &blocks[index];
        if block.fixed.is_some() {
            continue;
        }

        // Blocks are sorted by `lo`: those that start before the end of this one are a prefix.
        let before = blocks.partition_point(|other| other.lo < block.hi);
        taken.clear();
        placed.later_than(block.lo, before, |other| {
            taken.push((offsets[other], offsets[other] + blocks[other].size));
        });
        taken.sort_unstable();

        let mut offset = block.fit(0);
        for &(start, end) in &taken {
            if offset + block.size <= start {
                break;
            }
            if end > offset {
                offset = block.fit(end);
            }
        }
        offsets[index] = offset;
        placed.insert(index, block.hi);
    }
    offsets
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
        let short = short_gaps
            .copied()
            .find(|&(len, offset)| block.fit(offset) + block.size <= offset + len);
        let long_size = block.size + block.align;
        let gap = short.or_else(|| self.by_size.range((long_size, 0)..).next().copied());

        if let Some((len, gap_offset)) = gap {
            let offset = block.fit(gap_offset);
            let end = offset + block.size;
            self.remove(gap_offset, len);
            self.add(gap_offset, offset - gap_offset);
            self.add(end, gap_offset + len - end);
            return offset;
        }
        let offset = block.fit(self.top);
        self.add(self.top, offset - self.top);
        self.top = offset + block.size;
        offset
    }
}

/// Best fit through time, forward or backward. Fixed blocks keep the memory up to their highest end for themselves.
fn sweep_best_fit(blocks: &[ItemBlock], backward: bool) -> Vec<u64> {
    let last = blocks.iter().map(|block| block.hi).max().unwrap_or(0);
    let mut starts: Vec<(u32, Reverse<u64>, u32)> = Vec::new();
    let mut ends: Vec<(u32, u32)> = Vec::new();
    let mut fixed_top = 0;
    for (index, block) in (0u32..).zip(blocks) {
        if let Some(fixed) = block.fixed {
            fixed_top = (fixed + block.size).max(fixed_top);
            continue;
        }
        let (start, end) = match backward {
            true => (last - block.hi, last - block.lo),
            false => (block.lo, block.hi),
        };
        starts.push((start, Reverse(block.size), index));
        ends.push((end, index));
    }
    starts.sort_unstable();
    ends.sort_unstable();

    let fixed_offsets = blocks.iter().map(|block| block.fixed.unwrap_or(0));
    let mut offsets: Vec<u64> = fixed_offsets.collect();
    let mut gaps = FreeGaps {
        top: fixed_top,
        ..FreeGaps::default()
    };
    let mut ended = ends.into_iter().peekable();
    for (start, _, index) in starts {
        while let Some((_, old)) = ended.next_if(|&(end, _)| end <= start) {
            gaps.free(offsets[old as usize], blocks[old as usize].size);
        }
        offsets[index as usize] = gaps.take(&blocks[index as usize]);
    }
    offsets
}
