//! Branch and bound: does one connected group of blocks fit under a ceiling?
//!
//! Blocks are placed in order of offset, each directly on what lies beneath it (a *canonical* layout: nothing can be
//! dropped). The ideas are those of Moffitt, "MiniMalloc", ASPLOS 2023: monotone placement by (lowest possible
//! offset, rank), dominance (nothing is placed above a block that could be dropped beneath it), and decomposition in
//! time as soon as the unplaced blocks fall apart. Three things go further here. The bound of a section is the
//! one-machine schedule of its unplaced blocks with their lowest offsets as release dates. A block that was passed
//! over can only be placed once a neighbour has raised it, which raises its release date. And states that failed are
//! remembered, so that the same rest above a different arrangement of the same blocks is not searched again.

use std::ops::Range;

/// A block in units: sections `[lo, hi)`, size, and offsets `residue` modulo `mask + 1`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) lo: u32,
    pub(super) hi: u32,
    pub(super) size: u32,
    pub(super) mask: u32,
    pub(super) residue: u32,
    /// The only offset allowed.
    pub(super) fixed: Option<u32>,
}

impl Shape {
    fn meets(&self, other: &Shape) -> bool {
        self.lo < other.hi && other.lo < self.hi
    }

    /// The lowest allowed offset from `offset` on.
    fn fit(&self, offset: u32) -> u32 {
        offset + (self.residue.wrapping_sub(offset) & self.mask)
    }
}

/// What became of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A layout under the ceiling; `Search::offsets` has it.
    Found,
    /// There is none.
    Impossible,
    /// The nodes ran out.
    Budget,
}

/// States without a layout, in a table of fixed size in which the newer entry wins.
pub(super) struct Failed {
    slots: Vec<u128>,
    /// Counts the ceilings and problems that the table has served.
    epoch: u64,
    salt: u64,
}

impl Default for Failed {
    fn default() -> Failed {
        Failed {
            slots: vec![0; 1 << 18],
            epoch: 0,
            salt: 0,
        }
    }
}

impl Failed {
    /// Forgets all states: what comes is another problem or another ceiling.
    pub(super) fn forget(&mut self) {
        self.epoch += 1;
        self.part(0);
    }

    /// Parts the states to come from those of another ranking.
    pub(super) fn part(&mut self, ranking: usize) {
        self.salt = mix((self.epoch << 8) + ranking as u64 + 1);
    }

    fn slot(&self, state: u128) -> usize {
        (state as usize) & (self.slots.len() - 1)
    }

    fn has(&self, state: u128) -> bool {
        self.slots[self.slot(state)] == state
    }

    fn add(&mut self, state: u128) {
        let slot = self.slot(state);
        self.slots[slot] = state;
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// An unplaced block: its lowest possible offset above its rank. Ordered as blocks are placed.
type Key = u64;

fn key(offset: u32, rank: u32) -> Key {
    u64::from(offset) << 32 | u64::from(rank)
}

fn offset_of(key: Key) -> u32 {
    (key >> 32) as u32
}

/// One search over blocks in order of rank. Ids are ranks.
pub(super) struct Search<'a> {
    shapes: &'a [Shape],
    ceiling: u32,
    /// Lists of unplaced blocks of all levels, one after the other, each sorted.
    keys: Vec<Key>,
    raised: Vec<Key>,
    /// Unplaced blocks that live in both section s and section s + 1.
    cuts: Vec<u32>,
    /// Scratch of the bound: height of each section.
    heights: Vec<u32>,
    failed: &'a mut Failed,
    pub(super) offsets: Vec<u32>,
    /// Placements tried.
    pub(super) nodes: u64,
    /// Looks at a block or at [`LANES`] sections of one.
    looks: u64,
    /// Most looks.
    limit: u64,
}

/// Looks in a step.
const LOOKS: u64 = 64;

/// Sections that are about as dear as a block.
const LANES: usize = 8;

impl<'a> Search<'a> {
    pub(super) fn new(
        shapes: &'a [Shape],
        ceiling: u32,
        steps: u64,
        failed: &'a mut Failed,
    ) -> Search<'a> {
        let sections = shapes.iter().map(|s| s.hi).max().unwrap_or(0) as usize;
        let mut cuts = vec![0; sections];
        for shape in shapes {
            for cut in &mut cuts[shape.lo as usize..shape.hi as usize - 1] {
                *cut += 1;
            }
        }
        Search {
            shapes,
            ceiling,
            keys: Vec::new(),
            raised: Vec::new(),
            cuts,
            heights: vec![0; sections],
            failed,
            offsets: vec![0; shapes.len()],
            nodes: 0,
            looks: 0,
            limit: steps.saturating_mul(LOOKS),
        }
    }

    /// Steps taken.
    pub(super) fn steps(&self) -> u64 {
        self.looks.div_ceil(LOOKS)
    }

    pub(super) fn run(&mut self) -> Outcome {
        self.keys.clear();
        for (rank, shape) in self.shapes.iter().enumerate() {
            let offset = shape.fixed.unwrap_or_else(|| shape.fit(0));
            self.keys.push(key(offset, rank as u32));
        }
        self.keys.sort_unstable();
        let sections = self.heights.len();
        if !self.bound(0, 0, 0..sections) {
            return Outcome::Impossible;
        }
        self.split(0, 0, 0..sections - 1)
    }

    fn shape(&self, key: Key) -> &'a Shape {
        &self.shapes[key as u32 as usize]
    }

    /// Tries each block that may come next in the list that starts at `from` and ends the stack.
    fn branch(&mut self, from: usize, last: Key) -> Outcome {
        let to = self.keys.len();
        if from == to {
            return Outcome::Found;
        }
        let state = self.state(from, last);
        if self.failed.has(state) {
            return Outcome::Impossible;
        }
        // Above the lowest possible top nothing is placed: the block with that top could be dropped beneath it.
        let lowest_top = self.keys[from..to]
            .iter()
            .map(|&k| offset_of(k).saturating_add(self.shape(k).size))
            .min()
            .unwrap_or(0);
        let mut over = None;
        for at in from..to {
            let next = self.keys[at];
            if next < last {
                continue;
            }
            if offset_of(next) >= lowest_top {
                break;
            }
            // All choices from here on pass over the one before.
            if let Some(over) = over {
                let shape = self.shape(over);
                if !self.bound(from, next, shape.lo as usize..shape.hi as usize) {
                    break;
                }
            }
            over = Some(next);
            let outcome = self.place(from..to, at);
            self.keys.truncate(to);
            if outcome != Outcome::Impossible {
                return outcome;
            }
        }
        self.failed.add(state);
        Outcome::Impossible
    }

    /// Places the block at `at` of a list, and goes on with the others.
    fn place(&mut self, list: Range<usize>, at: usize) -> Outcome {
        if self.looks >= self.limit {
            return Outcome::Budget;
        }
        self.nodes += 1;
        let (from, to) = (list.start, list.end);
        self.looks += (to - from) as u64;
        let last = self.keys[at];
        let placed = self.shape(last);
        let top = offset_of(last) + placed.size;
        if top > self.ceiling {
            return Outcome::Impossible;
        }
        self.offsets[last as u32 as usize] = offset_of(last);
        self.raised.clear();
        let mut hull = placed.lo..placed.hi;
        for other in (from..to).filter(|&other| other != at) {
            let k = self.keys[other];
            let shape = self.shape(k);
            if !shape.meets(placed) || offset_of(k) >= top {
                self.keys.push(k);
                continue;
            }
            if shape.fixed.is_some() {
                return Outcome::Impossible;
            }
            self.raised.push(key(shape.fit(top), k as u32));
            hull = hull.start.min(shape.lo)..hull.end.max(shape.hi);
        }
        self.merge_raised(to);
        if !self.bound(to, last, hull.start as usize..hull.end as usize) {
            return Outcome::Impossible;
        }
        let inner = placed.lo as usize..placed.hi as usize - 1;
        let mut apart = false;
        for cut in &mut self.cuts[inner.clone()] {
            *cut -= 1;
            apart |= *cut == 0;
        }
        let outcome = if apart {
            self.split(to, last, inner.clone())
        } else {
            self.branch(to, last)
        };
        for cut in &mut self.cuts[inner] {
            *cut += 1;
        }
        outcome
    }

    /// Merges `raised` into the sorted list that starts at `from` and ends the stack.
    fn merge_raised(&mut self, from: usize) {
        self.raised.sort_unstable();
        let mut read = self.keys.len();
        let mut left = self.raised.len();
        self.keys.resize(read + left, 0);
        let mut write = self.keys.len();
        while left > 0 {
            write -= 1;
            if read > from && self.keys[read - 1] > self.raised[left - 1] {
                read -= 1;
                self.keys[write] = self.keys[read];
            } else {
                left -= 1;
                self.keys[write] = self.raised[left];
            }
        }
    }

    /// Whether the one-machine bound of every section in `hull` is under the ceiling, given that blocks of the list
    /// at `from` are placed at keys above `last`.
    fn bound(&mut self, from: usize, last: Key, hull: Range<usize>) -> bool {
        let list = &self.keys[from..];
        let passed = list.partition_point(|&k| k < last);
        let mut hull = hull;
        self.raised.clear();
        for (i, &k) in list[..passed].iter().enumerate() {
            let shape = &self.shapes[k as u32 as usize];
            let mut release = u32::MAX;
            for (j, &other) in list.iter().enumerate() {
                let below = &self.shapes[other as u32 as usize];
                if i != j && shape.meets(below) {
                    release = release.min(offset_of(other).max(offset_of(last)) + below.size);
                }
            }
            if release == u32::MAX || shape.fixed.is_some() {
                return false;
            }
            let release = shape.fit(release);
            hull = hull.start.min(shape.lo as usize)..hull.end.max(shape.hi as usize);
            self.raised.push(key(release, k as u32));
        }
        self.raised.sort_unstable();
        self.heights[hull.clone()].fill(0);
        let (mut i, mut j) = (passed, 0);
        loop {
            let next = match (list.get(i), self.raised.get(j)) {
                (Some(&a), Some(&b)) if b < a => {
                    j += 1;
                    b
                }
                (Some(&a), _) => {
                    i += 1;
                    a
                }
                (None, Some(&b)) => {
                    j += 1;
                    b
                }
                (None, None) => return true,
            };
            let shape = &self.shapes[next as u32 as usize];
            let span = hull.start.max(shape.lo as usize)..hull.end.min(shape.hi as usize);
            if span.is_empty() {
                continue;
            }
            self.looks += (1 + span.len() / LANES) as u64;
            let (offset, size) = (offset_of(next), shape.size);
            let mut highest = 0;
            for height in &mut self.heights[span] {
                *height = (*height).max(offset) + size;
                highest = highest.max(*height);
            }
            if highest > self.ceiling {
                return false;
            }
        }
    }

    /// Solves the parts into which the list at `from` falls at the cuts in `inner` that are zero, tightest first.
    fn split(&mut self, from: usize, last: Key, inner: Range<usize>) -> Outcome {
        let to = self.keys.len();
        let mut starts = vec![0u32];
        starts.extend(inner.filter(|&s| self.cuts[s] == 0).map(|s| s as u32 + 1));
        let mut parts = Vec::with_capacity(starts.len());
        for (i, &lo) in starts.iter().enumerate() {
            let hi = starts.get(i + 1).copied().unwrap_or(u32::MAX);
            let mut count = 0;
            let mut slack = u32::MAX;
            for &k in &self.keys[from..to] {
                let shape = self.shape(k);
                if lo <= shape.lo && shape.lo < hi {
                    count += 1;
                    let highest = self.heights[shape.lo as usize..shape.hi as usize]
                        .iter()
                        .max()
                        .copied();
                    slack = slack.min(self.ceiling.saturating_sub(highest.unwrap_or(0)));
                }
            }
            if count > 0 {
                parts.push((slack, count, lo, hi));
            }
        }
        parts.sort_unstable();
        for (_, _, lo, hi) in parts {
            for at in from..to {
                let k = self.keys[at];
                if (lo..hi).contains(&self.shape(k).lo) {
                    self.keys.push(k);
                }
            }
            let outcome = if self.keys.len() == to + 1 {
                let only = self.keys[to];
                self.offsets[only as u32 as usize] = offset_of(only);
                Outcome::Found
            } else {
                self.branch(to, last)
            };
            self.keys.truncate(to);
            if outcome != Outcome::Found {
                return outcome;
            }
        }
        Outcome::Found
    }

    /// What decides whether the list at `from` can be placed at keys from `last` on.
    fn state(&self, from: usize, last: Key) -> u128 {
        let (mut a, mut b) = (self.failed.salt, self.failed.salt);
        for &k in &self.keys[from..] {
            let word = if k < last { !k } else { k };
            a = a.wrapping_add(mix(word));
            b = b.wrapping_add(mix(word ^ 0x9e37_79b9_7f4a_7c15));
        }
        u128::from(a) << 64 | u128::from(b)
    }
}
