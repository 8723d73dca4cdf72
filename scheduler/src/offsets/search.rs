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
pub(super) struct BlockShape {
    pub(super) lo: u32,
    pub(super) hi: u32,
    pub(super) size: u32,
    pub(super) mask: u32,
    pub(super) residue: u32,
    /// The only offset allowed.
    pub(super) fixed: Option<u32>,
}

impl BlockShape {
    pub(super) fn covers(&self, section: usize) -> bool {
        (self.lo as usize..self.hi as usize).contains(&section)
    }

    /// Whether one may take the other's place.
    pub(super) fn is_alike(&self, other: &BlockShape) -> bool {
        (self.lo, self.hi, self.size) == (other.lo, other.hi, other.size)
            && (self.mask, self.residue) == (other.mask, other.residue)
    }

    pub(super) fn meets(&self, other: &BlockShape) -> bool {
        self.lo < other.hi && other.lo < self.hi
    }

    /// The lowest allowed offset from `offset` on.
    pub(super) fn fit(&self, offset: u32) -> u32 {
        offset + (self.residue.wrapping_sub(offset) & self.mask)
    }
}

/// What became of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FitOutcome {
    /// A layout under the ceiling; `BlockSearch::offsets` has it.
    Found,
    /// There is none.
    Impossible,
    /// The nodes ran out.
    Budget,
}

/// States without a layout, in a table of fixed size in which the newer entry wins.
pub(super) struct FailedStates {
    slots: Vec<u128>,
    /// Counts the ceilings and problems that the table has served.
    epoch: u64,
    salt: u64,
}

impl Default for FailedStates {
    fn default() -> FailedStates {
        FailedStates {
            slots: vec![0; 1 << 18],
            epoch: 0,
            salt: 0,
        }
    }
}

impl FailedStates {
    /// Forgets all states: what comes is another problem or another ceiling.
    pub(super) fn forget(&mut self) {
        self.epoch += 1;
        self.separate_ranking(0);
    }

    /// Separates the states to come from those of another ranking.
    pub(super) fn separate_ranking(&mut self, ranking: usize) {
        self.salt = mix_bits((self.epoch << 8) + ranking as u64 + 1);
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

/// A permutation of words that spreads their bits (the finisher of splitmix64).
pub(super) fn mix_bits(word: u64) -> u64 {
    let once = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let twice = (once ^ (once >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    twice ^ (twice >> 31)
}

/// An unplaced block: its lowest possible offset above its rank. Ordered as blocks are placed.
pub(super) type BlockKey = u64;

pub(super) fn make_key(offset: u32, rank: u32) -> BlockKey {
    u64::from(offset) << 32 | u64::from(rank)
}

pub(super) fn rank_of(key: BlockKey) -> usize {
    key as u32 as usize
}

pub(super) fn offset_of(key: BlockKey) -> u32 {
    (key >> 32) as u32
}

/// Merges `raised` into the sorted list that starts at `from` and ends the stack `keys`.
pub(super) fn merge_raised(keys: &mut Vec<BlockKey>, from: usize, raised: &mut [BlockKey]) {
    raised.sort_unstable();
    let mut read = keys.len();
    let mut left = raised.len();
    keys.resize(read + left, 0);
    let mut write = keys.len();
    while left > 0 {
        write -= 1;
        if read > from && keys[read - 1] > raised[left - 1] {
            read -= 1;
            keys[write] = keys[read];
        } else {
            left -= 1;
            keys[write] = raised[left];
        }
    }
}

/// One search over blocks in order of rank. Ids are ranks.
pub(super) struct BlockSearch<'a> {
    shapes: &'a [BlockShape],
    ceiling: u32,
    /// Lists of unplaced blocks of all levels, one after the other, each sorted.
    keys: Vec<BlockKey>,
    raised: Vec<BlockKey>,
    /// Unplaced blocks that live in both section s and section s + 1.
    cuts: Vec<u32>,
    /// Scratch of the bound: height of each section.
    heights: Vec<u32>,
    failed: &'a mut FailedStates,
    pub(super) offsets: Vec<u32>,
    /// Placements tried.
    pub(super) nodes: u64,
    /// Looks at a block or at [`LANES`] sections of one.
    looks: u64,
    /// Looks that may be taken.
    limit: u64,
    stop: StopSignal<'a>,
}

/// Asks the caller whether to stop: a clock, say, which this crate does not have.
#[derive(Clone, Copy)]
pub(super) struct StopSignal<'a>(pub(super) &'a dyn Fn() -> bool);

impl StopSignal<'_> {
    pub(super) fn is_set(&self) -> bool {
        (self.0)()
    }

    /// Whether to stop, asked before every 64th node only: a node takes microseconds.
    pub(super) fn is_set_at(&self, nodes: u64) -> bool {
        nodes.is_multiple_of(64) && self.is_set()
    }
}

/// Blocks of a list that share no section with the others.
struct ListPart {
    /// Least room under the ceiling, by the bound.
    slack: u32,
    count: usize,
    sections: Range<u32>,
}

/// Looks in a step.
pub(super) const LOOKS: u64 = 64;

/// Sections that take about as long to look at as a block.
pub(super) const LANES: usize = 8;

impl<'a> BlockSearch<'a> {
    pub(super) fn new(
        shapes: &'a [BlockShape],
        ceiling: u32,
        steps: u64,
        failed: &'a mut FailedStates,
        stop: StopSignal<'a>,
    ) -> BlockSearch<'a> {
        let section_count = shapes.iter().map(|s| s.hi).max().unwrap_or(0) as usize;
        let mut section_cuts = vec![0; section_count];
        for shape in shapes {
            for cut in &mut section_cuts[shape.lo as usize..shape.hi as usize - 1] {
                *cut += 1;
            }
        }

        BlockSearch {
            shapes,
            ceiling,
            keys: Vec::new(),
            raised: Vec::new(),
            cuts: section_cuts,
            heights: vec![0; section_count],
            failed,
            offsets: vec![0; shapes.len()],
            nodes: 0,
            looks: 0,
            limit: steps.saturating_mul(LOOKS),
            stop,
        }
    }

    /// Steps taken.
    pub(super) fn steps(&self) -> u64 {
        self.looks.div_ceil(LOOKS)
    }

    pub(super) fn run(&mut self) -> FitOutcome {
        self.keys.clear();
        for (rank, shape) in (0u32..).zip(self.shapes) {
            let offset = shape.fixed.unwrap_or_else(|| shape.fit(0));
            self.keys.push(make_key(offset, rank));
        }
        self.keys.sort_unstable();

        let sections = self.heights.len();
        if !self.fits_bound(0, 0, 0..sections) {
            return FitOutcome::Impossible;
        }
        self.solve_parts(0, 0, 0..sections - 1)
    }

    fn shape(&self, key: BlockKey) -> &'a BlockShape {
        &self.shapes[rank_of(key)]
    }

    /// Tries each block that may come next in the list that starts at `from` and ends the stack.
    fn branch(&mut self, from: usize, last: BlockKey) -> FitOutcome {
        let to = self.keys.len();
        if from == to {
            return FitOutcome::Found;
        }
        let list_state = self.state_of(from, last);
        if self.failed.has(list_state) {
            return FitOutcome::Impossible;
        }

        // Above the lowest possible top nothing is placed: the block with that top could be dropped beneath it.
        let possible_tops = self.keys[from..to]
            .iter()
            .map(|&key| offset_of(key).saturating_add(self.shape(key).size));
        let lowest_top = possible_tops.min().unwrap_or(0);
        let mut passed_over: Option<BlockKey> = None;
        for index in from..to {
            let next = self.keys[index];
            if next < last {
                continue;
            }
            if offset_of(next) >= lowest_top {
                break;
            }
            // All choices from here on pass over the one before.
            if let Some(passed) = passed_over {
                let shape = self.shape(passed);
                if !self.fits_bound(from, next, shape.lo as usize..shape.hi as usize) {
                    break;
                }
            }
            passed_over = Some(next);

            let outcome = self.place(from..to, index);
            self.keys.truncate(to);
            if outcome != FitOutcome::Impossible {
                return outcome;
            }
        }
        self.failed.add(list_state);
        FitOutcome::Impossible
    }

    /// Places the block at `index` of a list, and goes on with the others.
    fn place(&mut self, list: Range<usize>, index: usize) -> FitOutcome {
        if self.looks >= self.limit || self.stop.is_set_at(self.nodes) {
            return FitOutcome::Budget;
        }
        self.nodes += 1;
        self.looks += list.len() as u64;
        let placed_key = self.keys[index];
        let placed = self.shape(placed_key);
        let offset = offset_of(placed_key);
        let placed_top = offset + placed.size;
        if placed_top > self.ceiling {
            return FitOutcome::Impossible;
        }
        self.offsets[rank_of(placed_key)] = offset;

        // The list of the others: those in its way are raised onto it.
        let list_end = list.end;
        let mut raised_hull = placed.lo..placed.hi;
        self.raised.clear();
        for other in list.filter(|&other| other != index) {
            let key = self.keys[other];
            let shape = self.shape(key);
            if !shape.meets(placed) || offset_of(key) >= placed_top {
                self.keys.push(key);
                continue;
            }
            if shape.fixed.is_some() {
                return FitOutcome::Impossible;
            }
            self.raised
                .push(make_key(shape.fit(placed_top), key as u32));
            raised_hull = raised_hull.start.min(shape.lo)..raised_hull.end.max(shape.hi);
        }
        merge_raised(&mut self.keys, list_end, &mut self.raised);
        if !self.fits_bound(
            list_end,
            placed_key,
            raised_hull.start as usize..raised_hull.end as usize,
        ) {
            return FitOutcome::Impossible;
        }

        // Without it, the others may fall apart in time.
        let inner_cuts = placed.lo as usize..placed.hi as usize - 1;
        let mut falls_apart = false;
        for cut in &mut self.cuts[inner_cuts.clone()] {
            *cut -= 1;
            falls_apart |= *cut == 0;
        }
        let outcome = match falls_apart {
            true => self.solve_parts(list_end, placed_key, inner_cuts.clone()),
            false => self.branch(list_end, placed_key),
        };
        for cut in &mut self.cuts[inner_cuts] {
            *cut += 1;
        }
        outcome
    }

    /// Whether the one-machine bound of every section in `hull` is under the ceiling, given that blocks of the list
    /// at `from` are placed at keys above `last`.
    fn fits_bound(&mut self, from: usize, last: BlockKey, hull: Range<usize>) -> bool {
        let list = &self.keys[from..];
        let passed_count = list.partition_point(|&key| key < last);
        let mut hull = hull;

        // A block that was passed over can only be placed once a neighbour has raised it.
        self.raised.clear();
        for (index, &key) in list[..passed_count].iter().enumerate() {
            let shape = &self.shapes[rank_of(key)];
            let mut release_offset = u32::MAX;
            for (other, &other_key) in list.iter().enumerate() {
                let lower_shape = &self.shapes[rank_of(other_key)];
                if index != other && shape.meets(lower_shape) {
                    let offset = offset_of(other_key).max(offset_of(last));
                    release_offset = release_offset.min(offset + lower_shape.size);
                }
            }
            if release_offset == u32::MAX || shape.fixed.is_some() {
                return false;
            }
            hull = hull.start.min(shape.lo as usize)..hull.end.max(shape.hi as usize);
            self.raised
                .push(make_key(shape.fit(release_offset), key as u32));
        }
        self.raised.sort_unstable();

        // Both lists in order of their release offsets, each block on what is in its sections.
        self.heights[hull.clone()].fill(0);
        let mut placeable_keys = list[passed_count..].iter().copied().peekable();
        let mut raised_keys = self.raised.iter().copied().peekable();
        loop {
            let is_raised_first = match (placeable_keys.peek(), raised_keys.peek()) {
                (Some(placeable_key), Some(raised_key)) => raised_key < placeable_key,
                (Some(_), None) => false,
                (None, Some(_)) => true,
                (None, None) => return true,
            };
            let next_key = match is_raised_first {
                true => raised_keys.next(),
                false => placeable_keys.next(),
            };
            let Some(key) = next_key else { return true };
            let shape = &self.shapes[rank_of(key)];
            let span = hull.start.max(shape.lo as usize)..hull.end.min(shape.hi as usize);
            if span.is_empty() {
                continue;
            }

            self.looks += (1 + span.len() / LANES) as u64;
            let offset = offset_of(key);
            let mut highest = 0;
            for height in &mut self.heights[span] {
                *height = (*height).max(offset) + shape.size;
                highest = highest.max(*height);
            }
            if highest > self.ceiling {
                return false;
            }
        }
    }

    /// Solves the parts into which the list at `from` falls at the cuts in `inner` that are zero, tightest first.
    fn solve_parts(&mut self, from: usize, last: BlockKey, inner: Range<usize>) -> FitOutcome {
        let to = self.keys.len();
        let mut part_starts = vec![0u32];
        part_starts.extend(
            inner
                .filter(|&section| self.cuts[section] == 0)
                .map(|section| section as u32 + 1),
        );
        let mut list_parts = Vec::with_capacity(part_starts.len());
        for (index, &start) in part_starts.iter().enumerate() {
            let end = part_starts.get(index + 1).copied().unwrap_or(u32::MAX);
            list_parts.extend(self.measure_part(from..to, start..end));
        }
        list_parts.sort_unstable_by_key(|part| (part.slack, part.count, part.sections.start));

        for part in list_parts {
            for index in from..to {
                let key = self.keys[index];
                if part.sections.contains(&self.shape(key).lo) {
                    self.keys.push(key);
                }
            }
            let outcome = if part.count == 1 {
                let only_key = self.keys[to];
                self.offsets[rank_of(only_key)] = offset_of(only_key);
                FitOutcome::Found
            } else {
                self.branch(to, last)
            };
            self.keys.truncate(to);
            if outcome != FitOutcome::Found {
                return outcome;
            }
        }
        FitOutcome::Found
    }

    /// Blocks of a list that start in some sections; `None` if there are none.
    fn measure_part(&self, list: Range<usize>, sections: Range<u32>) -> Option<ListPart> {
        let mut block_count = 0;
        let mut min_slack = u32::MAX;
        for &key in &self.keys[list] {
            let shape = self.shape(key);
            if !sections.contains(&shape.lo) {
                continue;
            }
            let shape_heights = &self.heights[shape.lo as usize..shape.hi as usize];
            let highest = shape_heights.iter().max().copied().unwrap_or(0);
            block_count += 1;
            min_slack = min_slack.min(self.ceiling.saturating_sub(highest));
        }
        (block_count > 0).then_some(ListPart {
            slack: min_slack,
            count: block_count,
            sections,
        })
    }

    /// What decides whether the list at `from` can be placed at keys from `last` on.
    fn state_of(&self, from: usize, last: BlockKey) -> u128 {
        let mut high_hash = self.failed.salt;
        let mut low_hash = self.failed.salt;
        for &key in &self.keys[from..] {
            // Blocks that were passed over count otherwise than those that may still come.
            let key_word = if key < last { !key } else { key };
            high_hash = high_hash.wrapping_add(mix_bits(key_word));
            low_hash = low_hash.wrapping_add(mix_bits(key_word ^ 0x9e37_79b9_7f4a_7c15));
        }
        u128::from(high_hash) << 64 | u128::from(low_hash)
    }
}
