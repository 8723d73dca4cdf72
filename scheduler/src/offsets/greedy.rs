//! Greedy layouts: blocks in some order, each at the lowest offset that is free for its whole live range.
//!
//! First two sweeps through time that take the smallest gap that fits, O(n log n) however dense the problem. Then
//! ten orders by what is hard to place: by size, live time, area, crowd and mixes. An order looks at the blocks that
//! meet the one it places, found through a tree rather than kept in a list of conflicts, which would be quadratic.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::blocks::{Block, Problem};

/// Meetings that all orders together may look at: a few hundred milliseconds.
const MEETINGS: u64 = 20_000_000;

/// The best layout so far, group by group.
pub(super) struct Draft {
    /// Offset of each block.
    pub(super) offsets: Vec<u64>,
    /// Bytes that each group needs.
    pub(super) sizes: Vec<u64>,
}

impl Draft {
    fn none(problem: &Problem) -> Draft {
        let sizes = vec![u64::MAX; problem.groups.len()];
        Draft {
            offsets: vec![0; problem.blocks.len()],
            sizes,
        }
    }

    /// Bytes of the whole.
    pub(super) fn size(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Takes the groups in which `offsets` need less.
    fn offer(&mut self, problem: &Problem, offsets: &[u64]) {
        for (size, group) in self.sizes.iter_mut().zip(&problem.groups) {
            let tops = group.clone().map(|i| offsets[i] + problem.blocks[i].size);
            let top = tops.max().unwrap_or(0);
            if top < *size {
                *size = top;
                self.offsets[group.clone()].copy_from_slice(&offsets[group.clone()]);
            }
        }
    }
}

/// The best greedy layout of each group; stops once all need no more than `goal`.
pub(super) fn best(problem: &Problem, goal: u64) -> Draft {
    let mut draft = Draft::none(problem);
    for backward in [false, true] {
        draft.offer(problem, &sweep(&problem.blocks, backward));
        if draft.size() <= goal {
            return draft;
        }
    }
    let crowds = crowds(&problem.blocks, &problem.loads, 0);
    let orders = (MEETINGS / problem.meetings.max(1)).min(ORDERS.len() as u64) as usize;
    let mut tree = Ends::new(problem.blocks.len());
    for order in &ORDERS[..orders] {
        let ids = ranking(&problem.blocks, &crowds, *order);
        draft.offer(problem, &first_fit(&problem.blocks, &ids, &mut tree));
        if draft.size() <= goal {
            break;
        }
    }
    draft
}

/// What a block is ranked by, the largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
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

use By::{Area, Cells, Crowd, End, Size, Span, Start, Width};

/// The ten orders, those that do best on average first.
const ORDERS: [[By; 3]; 10] = [
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
pub(super) fn crowds(blocks: &[Block], loads: &[u64], first: u32) -> Vec<u64> {
    // Table of maxima over 2^k sections: any range is the union of two of them.
    let mut levels = vec![loads.to_vec()];
    while 1 << levels.len() <= loads.len() {
        let half = 1 << (levels.len() - 1);
        let below = &levels[levels.len() - 1];
        let level = (0..below.len() - half)
            .map(|i| below[i].max(below[i + half]))
            .collect();
        levels.push(level);
    }
    let crowd = |b: &Block| {
        let (lo, hi) = ((b.lo - first) as usize, (b.hi - first) as usize);
        let level = (hi - lo).ilog2() as usize;
        levels[level][lo].max(levels[level][hi - (1 << level)])
    };
    blocks.iter().map(crowd).collect()
}

/// Indices of blocks by the three measures, then by index.
pub(super) fn ranking(blocks: &[Block], crowds: &[u64], order: [By; 3]) -> Vec<u32> {
    let mut keyed: Vec<_> = blocks
        .iter()
        .zip(crowds)
        .enumerate()
        .map(|(i, (block, &crowd))| {
            let spans = u64::from(block.hi - block.lo);
            let measure = |by| match by {
                Size => block.size,
                Width => block.width,
                Area => block.width.saturating_mul(block.size),
                Span => spans,
                Cells => spans.saturating_mul(block.size),
                Crowd => crowd,
                Start => u64::from(u32::MAX - block.lo),
                End => u64::from(block.hi),
            };
            (Reverse(order.map(measure)), i as u32)
        })
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, i)| i).collect()
}

/// Places blocks in order of `ids`, the fixed ones before all others, each at its lowest free offset.
fn first_fit(blocks: &[Block], ids: &[u32], placed: &mut Ends) -> Vec<u64> {
    let mut offsets = vec![0; blocks.len()];
    placed.clear();
    for (i, block) in blocks.iter().enumerate() {
        if let Some(fixed) = block.fixed {
            offsets[i] = fixed;
            placed.insert(i, block.hi);
        }
    }
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for &i in ids.iter().filter(|&&i| blocks[i as usize].fixed.is_none()) {
        let i = i as usize;
        let block = &blocks[i];
        taken.clear();
        // Blocks are sorted by `lo`: those that start before the end of this one are a prefix.
        let before = blocks.partition_point(|b| b.lo < block.hi);
        placed.later_than(block.lo, before, |j| {
            taken.push((offsets[j], offsets[j] + blocks[j].size));
        });
        taken.sort_unstable();
        let mut at = block.fit(0);
        for &(start, end) in &taken {
            if at + block.size <= start {
                break;
            }
            if end > at {
                at = block.fit(end);
            }
        }
        offsets[i] = at;
        placed.insert(i, block.hi);
    }
    offsets
}

/// Ends of placed blocks in a binary tree of maxima, by index of the block.
pub(super) struct Ends {
    /// Node 1 is the root, leaves start at `leaves`; 0: not placed.
    tree: Vec<u32>,
    leaves: usize,
}

impl Ends {
    pub(super) fn new(count: usize) -> Ends {
        let leaves = count.next_power_of_two().max(1);
        Ends {
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
struct Gaps {
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    top: u64,
}

impl Gaps {
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

    fn free(&mut self, mut offset: u64, mut size: u64) {
        if let Some((&before, &len)) = self.by_offset.range(..offset).next_back()
            && before + len == offset
        {
            self.remove(before, len);
            (offset, size) = (before, size + len);
        }
        if let Some(&len) = self.by_offset.get(&(offset + size)) {
            self.remove(offset + size, len);
            size += len;
        }
        if offset + size == self.top {
            self.top = offset;
        } else {
            self.add(offset, size);
        }
    }

    /// The smallest gap in which the block fits, else the top.
    fn take(&mut self, block: &Block) -> u64 {
        // Only a gap shorter than size and alignment together can fail, and a few of those are tried.
        let fits = |&&(len, offset): &&(u64, u64)| block.fit(offset) + block.size <= offset + len;
        let short = self.by_size.range((block.size, 0)..).take(8).find(fits);
        let long = || self.by_size.range((block.size + block.align, 0)..).next();
        if let Some(&(len, offset)) = short.or_else(long) {
            let at = block.fit(offset);
            self.remove(offset, len);
            self.add(offset, at - offset);
            self.add(at + block.size, offset + len - at - block.size);
            return at;
        }
        let at = block.fit(self.top);
        self.add(self.top, at - self.top);
        self.top = at + block.size;
        at
    }
}

/// Best fit through time, forward or backward. Fixed blocks keep the memory up to their highest end for themselves.
fn sweep(blocks: &[Block], backward: bool) -> Vec<u64> {
    let base = blocks
        .iter()
        .filter_map(|b| Some(b.fixed? + b.size))
        .max()
        .unwrap_or(0);
    let last = blocks.iter().map(|b| b.hi).max().unwrap_or(0);
    let span = |b: &Block| {
        if backward {
            (last - b.hi, last - b.lo)
        } else {
            (b.lo, b.hi)
        }
    };
    let mut starts: Vec<(u32, Reverse<u64>, u32)> = blocks
        .iter()
        .enumerate()
        .filter(|(_, b)| b.fixed.is_none())
        .map(|(i, b)| (span(b).0, Reverse(b.size), i as u32))
        .collect();
    let mut ends: Vec<(u32, u32)> = starts
        .iter()
        .map(|&(_, _, i)| (span(&blocks[i as usize]).1, i))
        .collect();
    starts.sort_unstable();
    ends.sort_unstable();
    let mut offsets: Vec<u64> = blocks.iter().map(|b| b.fixed.unwrap_or(0)).collect();
    let mut gaps = Gaps {
        top: base,
        ..Gaps::default()
    };
    let mut ended = 0;
    for (start, _, i) in starts {
        while ended < ends.len() && ends[ended].0 <= start {
            let old = ends[ended].1 as usize;
            gaps.free(offsets[old], blocks[old].size);
            ended += 1;
        }
        offsets[i as usize] = gaps.take(&blocks[i as usize]);
    }
    offsets
}
