//! Branch and bound by section: which block covers the lowest free cell of the section that is hardest to fill?
//!
//! Where a capacity is filled (nearly) to the last byte, few blocks can cover a given cell: those whose lowest offset
//! is that of the cell and that fit between its neighbours. So the search does not place blocks in order of offset (as
//! `search` does) but takes, of all *valleys* (sections of one lowest offset between higher ones), a section with
//! the fewest options: the blocks that may lie there, or none, where the section has bytes to spare. In a layout in
//! which nothing can be dropped, blocks that do not lie there rest on one that is not placed yet.
//!
//! Failures are explained, and the search returns to the last decision that matters (`reasons`). One search is still
//! heavy-tailed: it needs hundreds of nodes or never ends. So there are many short ones (see `restart`).

use std::cmp::Reverse;
use std::ops::Range;

use super::floors::{FloorBlock, FloorChains, NO_CHAIN};
use super::reasons::{DecisionLog, LevelSet};
use super::search::{
    BlockKey, BlockShape, FitOutcome, LANES, LOOKS, StopSignal, make_key, merge_raised, mix_bits,
    offset_of, rank_of,
};

/// What breaks ties between sections of equally few options, and between the options of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SectionOrder {
    /// Chance; blocks with the most flush edges first.
    Random,
    /// Failures so far, and chance; blocks in order of rank.
    Failures,
    /// Chance; only blocks on a chain of their floor (see `floors`), and of them those whose chains leave least empty
    /// first. They alone count as options.
    Chains,
}

/// What is known of a section, given the unplaced blocks.
#[derive(Clone, Default)]
struct SectionTables {
    /// The lowest offset of a block.
    bottoms: Vec<u32>,
    /// Blocks that may lie there.
    counts: Vec<u32>,
    /// The least height, by the one-machine bound with lowest offsets as release dates.
    heights: Vec<u32>,
    /// Sum of sizes.
    totals: Vec<u32>,
    /// Whether a block lives in the section before as well.
    joined: Vec<bool>,
}

impl SectionTables {
    fn new(section_count: usize) -> SectionTables {
        SectionTables {
            bottoms: vec![0; section_count],
            counts: vec![0; section_count],
            heights: vec![0; section_count],
            totals: vec![0; section_count],
            joined: vec![false; section_count],
        }
    }

    fn clear(&mut self, sections: Range<usize>) {
        self.bottoms[sections.clone()].fill(u32::MAX);
        self.counts[sections.clone()].fill(0);
        self.heights[sections.clone()].fill(0);
        self.totals[sections.clone()].fill(0);
        self.joined[sections].fill(false);
    }

    /// Adds a block, those with lower offsets before; returns the greatest height of its sections.
    fn add(&mut self, shape: &BlockShape, offset: u32) -> u32 {
        let span = shape.lo as usize..shape.hi as usize;
        self.joined[span.start + 1..span.end].fill(true);
        for total in &mut self.totals[span.clone()] {
            *total += shape.size;
        }

        let heights = self.heights[span.clone()].iter_mut();
        let bottoms = self.bottoms[span.clone()].iter_mut();
        let counts = self.counts[span].iter_mut();
        let mut highest = 0;
        for ((height, bottom), count) in heights.zip(bottoms).zip(counts) {
            *bottom = (*bottom).min(offset);
            *count += u32::from(*bottom == offset);
            *height = (*height).max(offset) + shape.size;
            highest = highest.max(*height);
        }
        highest
    }
}

/// One search over blocks in order of rank. Ids are ranks.
pub(super) struct SectionSearch<'a> {
    shapes: &'a [BlockShape],
    ceiling: u32,
    order: SectionOrder,
    /// Lists of unplaced blocks of all levels, one after the other, each sorted.
    keys: Vec<BlockKey>,
    raised: Vec<BlockKey>,
    tables: SectionTables,
    /// Failures of each section.
    failures: &'a mut [u64],
    /// A random factor of each section.
    factors: Vec<u64>,
    chains: FloorChains,
    floor_blocks: Vec<FloorBlock>,
    /// Options of each section of a valley.
    options: Vec<u32>,
    log: DecisionLog<'a>,
    /// The decisions that the last failure follows from.
    conflict: LevelSet,
    pub(super) offsets: Vec<u32>,
    /// Decisions taken.
    pub(super) nodes: u64,
    looks: u64,
    limit: u64,
    stop: StopSignal<'a>,
}

/// A cell at which a search branches.
struct BranchCell {
    section: usize,
    bottom: u32,
    /// Whether it may stay empty, by the bytes to spare in its section.
    may_stay_empty: bool,
    /// Whether the chains of the valley exclude an option that its section alone would have.
    is_narrowed: bool,
    valley: Range<usize>,
    /// The blocks that may lie there.
    candidates: Vec<CellCandidate>,
}

/// A block that may lie in a cell.
#[derive(Clone, Copy)]
struct CellCandidate {
    /// Its index in the stack of lists.
    index: usize,
    /// Cells of the floor that stay empty at least with it there, as far as they are known.
    empty: u32,
}

/// The options of a section, what breaks ties, and the section.
type SectionRating = (u64, u64, usize);

impl<'a> SectionSearch<'a> {
    /// A search of at most `steps` steps, none of whose blocks is fixed.
    pub(super) fn new(
        shapes: &'a [BlockShape],
        ceiling: u32,
        steps: u64,
        order: SectionOrder,
        seed: u64,
        failures: &'a mut [u64],
        stop: StopSignal<'a>,
    ) -> SectionSearch<'a> {
        let section_count = failures.len();
        let random_words =
            (0..section_count as u64).map(|section| mix_bits((seed << 32) + section));
        SectionSearch {
            shapes,
            ceiling,
            order,
            keys: Vec::new(),
            raised: Vec::new(),
            tables: SectionTables::new(section_count),
            failures,
            // From 2^16 to 2^17.
            factors: random_words.map(|word| word >> 48 | 1 << 16).collect(),
            chains: FloorChains::new(section_count),
            floor_blocks: Vec::new(),
            options: vec![0; section_count],
            log: DecisionLog::new(shapes),
            conflict: LevelSet::empty(),
            offsets: vec![0; shapes.len()],
            nodes: 0,
            looks: 0,
            limit: steps.saturating_mul(LOOKS),
            stop,
        }
    }

    /// Steps taken.
    pub(super) fn steps(&self) -> u64 {
        (self.looks + self.log.looks).div_ceil(LOOKS)
    }

    pub(super) fn run(&mut self) -> FitOutcome {
        for (rank, shape) in (0u32..).zip(self.shapes) {
            self.keys.push(make_key(shape.fit(0), rank));
        }
        self.keys.sort_unstable();
        self.solve_parts(0, 0..self.failures.len())
    }

    fn shape(&self, key: BlockKey) -> &'a BlockShape {
        &self.shapes[rank_of(key)]
    }

    /// Solves the parts into which the list at `from` falls in time, those with the least room first.
    fn solve_parts(&mut self, from: usize, sections: Range<usize>) -> FitOutcome {
        let to = self.keys.len();
        if !self.fill_tables(from, sections.clone()) {
            return FitOutcome::Impossible;
        }
        let mut parts = self.find_parts(sections);
        if parts.len() == 1 {
            return self.branch(from, parts.remove(0).1);
        }

        parts.sort_unstable_by_key(|(room, part)| (*room, part.start));
        for (_, part) in parts {
            for index in from..to {
                let key = self.keys[index];
                if part.contains(&(self.shape(key).lo as usize)) {
                    self.keys.push(key);
                }
            }
            // The parts before have used the tables, but not those of this one's list.
            self.fill_tables(to, part.clone());
            let outcome = self.branch(to, part);
            self.keys.truncate(to);
            if outcome != FitOutcome::Found {
                return outcome;
            }
        }
        FitOutcome::Found
    }

    /// Least room under the ceiling, and sections, of each part that shares none with the others.
    fn find_parts(&self, sections: Range<usize>) -> Vec<(u32, Range<usize>)> {
        let mut parts: Vec<(u32, Range<usize>)> = Vec::new();
        for section in sections {
            if self.tables.counts[section] == 0 {
                continue;
            }
            let room = self.ceiling - self.tables.heights[section];
            match parts.last_mut() {
                Some((least_room, part)) if self.tables.joined[section] => {
                    *least_room = room.min(*least_room);
                    part.end = section + 1;
                }
                _ => parts.push((room, section..section + 1)),
            }
        }
        parts
    }

    /// Fills the tables from the list at `from`; whether all sections are under the ceiling. If not, `conflict` is why.
    fn fill_tables(&mut self, from: usize, sections: Range<usize>) -> bool {
        self.tables.clear(sections);
        for index in from..self.keys.len() {
            let key = self.keys[index];
            let shape = self.shape(key);
            let span = shape.lo as usize..shape.hi as usize;
            self.looks += (1 + 3 * span.len() / LANES) as u64;
            if self.tables.add(shape, offset_of(key)) <= self.ceiling {
                continue;
            }

            let mut highest = span.start;
            for section in span {
                if self.tables.heights[section] > self.ceiling {
                    self.failures[section] += 1;
                }
                if self.tables.heights[section] > self.tables.heights[highest] {
                    highest = section;
                }
            }
            self.explain_overflow(from..index + 1, highest);
            return false;
        }
        true
    }

    /// Why the blocks of a list do not fit in a section.
    fn explain_overflow(&mut self, list: Range<usize>, section: usize) {
        // The blocks that lie one on the other without a gap, up to the last.
        let mut height = 0;
        let mut chain_size = 0;
        let mut chain_start = list.start;
        for index in list.clone() {
            let key = self.keys[index];
            let shape = self.shape(key);
            if !shape.covers(section) {
                continue;
            }
            if offset_of(key) >= height {
                height = offset_of(key);
                chain_size = 0;
                chain_start = index;
            }
            height += shape.size;
            chain_size += shape.size;
        }

        // From this offset on they exceed the ceiling already.
        let needed_offset = (self.ceiling + 1).saturating_sub(chain_size);
        for index in chain_start..list.end {
            let key = self.keys[index];
            if self.shape(key).covers(section) {
                self.log.ask(key as u32, needed_offset);
            }
        }
        self.conflict = LevelSet::empty();
        self.log.explain(&mut self.conflict);
    }

    /// A cell with the fewest options of those at the bottom of valleys.
    ///
    /// Nothing that is not placed yet fits beneath a block that is placed in a valley.
    fn choose_cell(&mut self, from: usize, sections: Range<usize>) -> BranchCell {
        if self.uses_chains() {
            self.find_floor_blocks(from);
        }
        let mut best: Option<(SectionRating, Range<usize>)> = None;
        let mut left_bottom = u32::MAX;
        let mut start = sections.start;
        while start < sections.end {
            let bottom = self.tables.bottoms[start];
            let rest = &self.tables.bottoms[start..sections.end];
            let width = rest.iter().take_while(|&&other| other == bottom).count();
            let end = start + width;
            let right_bottom = match end < sections.end {
                true => self.tables.bottoms[end],
                false => u32::MAX,
            };
            if left_bottom > bottom && right_bottom > bottom {
                let rating = self.rate_valley(start..end);
                if best.as_ref().is_none_or(|(known, _)| rating < *known) {
                    best = Some((rating, start..end));
                }
            }
            left_bottom = bottom;
            start = end;
        }

        // The lowest section of all is in a valley.
        let (rating, valley) = best.unwrap_or(((0, 0, sections.start), sections));
        match self.uses_chains() {
            true => self.chain_cell(rating.2, valley),
            false => self.plain_cell(from, rating.2, valley),
        }
    }

    fn uses_chains(&self) -> bool {
        self.order == SectionOrder::Chains
    }

    /// The options at a section of a valley, whatever chains there are.
    fn plain_cell(&self, from: usize, section: usize, valley: Range<usize>) -> BranchCell {
        let bottom = self.tables.bottoms[section];
        let mut candidates = Vec::new();
        for (index, &key) in self.keys.iter().enumerate().skip(from) {
            if offset_of(key) > bottom {
                break;
            }
            if offset_of(key) == bottom && self.shape(key).covers(section) {
                candidates.push(CellCandidate { index, empty: 0 });
            }
        }
        BranchCell {
            section,
            bottom,
            may_stay_empty: self.may_stay_empty(section),
            is_narrowed: false,
            valley,
            candidates,
        }
    }

    /// Finds the blocks of the list at `from`, sorted, that lie at the lowest offset of the section in which they start.
    fn find_floor_blocks(&mut self, from: usize) {
        self.floor_blocks.clear();
        self.looks += (self.keys.len() - from) as u64;
        for (index, &key) in self.keys.iter().enumerate().skip(from) {
            let shape = &self.shapes[rank_of(key)];
            if self.tables.bottoms[shape.lo as usize] == offset_of(key) {
                self.floor_blocks.push(FloorBlock {
                    lo: shape.lo,
                    hi: shape.hi,
                    index: index as u32,
                });
            }
        }
        self.floor_blocks.sort_unstable();
    }

    /// Of the blocks in `floor_blocks` those that start in a valley.
    fn floor_range(&self, valley: &Range<usize>) -> Range<usize> {
        let starts_before = |section: usize| {
            let blocks = &self.floor_blocks;
            blocks.partition_point(|block| (block.lo as usize) < section)
        };
        starts_before(valley.start)..starts_before(valley.end)
    }

    /// Finds the chains of a valley; whether there is one.
    fn find_chains(&mut self, valley: Range<usize>) -> bool {
        let range = self.floor_range(&valley);
        let blocks = &self.floor_blocks[range];
        let tables = &self.tables;
        let ceiling = self.ceiling;
        self.looks += (valley.len() / LANES) as u64;
        let may_stay_empty =
            |section: usize| tables.bottoms[section] + tables.totals[section] < ceiling;
        self.chains.find(valley, blocks, may_stay_empty)
    }

    /// The least rating of the sections of a valley.
    fn rate_valley(&mut self, valley: Range<usize>) -> SectionRating {
        if self.uses_chains() {
            if !self.find_chains(valley.clone()) {
                return (0, 0, valley.start);
            }
            self.count_chain_options(&valley);
        }
        let ratings = valley.clone().map(|section| self.rate_section(section));
        ratings.min().unwrap_or((0, 0, valley.start))
    }

    /// Counts the blocks on each section of a floor whose chains leave least empty.
    fn count_chain_options(&mut self, valley: &Range<usize>) {
        self.options[valley.clone()].fill(0);
        let least_empty = self.chains.least_empty(valley);
        for block in &self.floor_blocks[self.floor_range(valley)] {
            if self.chains.empty_with(block) <= least_empty {
                for options in &mut self.options[block.lo as usize..block.hi as usize] {
                    *options += 1;
                }
            }
        }
    }

    /// The options at a section of a valley that are on a chain.
    fn chain_cell(&mut self, section: usize, valley: Range<usize>) -> BranchCell {
        self.find_chains(valley.clone());
        let mut candidates = Vec::new();
        let mut is_narrowed = false;
        for block in &self.floor_blocks[self.floor_range(&valley)] {
            if !(block.lo as usize..block.hi as usize).contains(&section) {
                continue;
            }
            let empty = self.chains.empty_with(block);
            is_narrowed |= empty == NO_CHAIN;
            if empty < NO_CHAIN {
                candidates.push(CellCandidate {
                    index: block.index as usize,
                    empty,
                });
            }
        }
        // In order of the list, as those of other searches are.
        candidates.sort_unstable_by_key(|candidate| candidate.index);
        let has_spare = self.may_stay_empty(section);
        let may_stay_empty = has_spare && self.chains.empty_at(section) < NO_CHAIN;
        BranchCell {
            section,
            bottom: self.tables.bottoms[section],
            may_stay_empty,
            is_narrowed: is_narrowed || may_stay_empty != has_spare,
            valley,
            candidates,
        }
    }

    fn may_stay_empty(&self, section: usize) -> bool {
        self.tables.bottoms[section] + self.tables.totals[section] < self.ceiling
    }

    /// Rating of a section: the least is branched at.
    fn rate_section(&self, section: usize) -> SectionRating {
        let options = match self.uses_chains() {
            // Where the best chains have no block, they have an empty cell.
            true => self.options[section].max(1),
            false => self.tables.counts[section] + u32::from(self.may_stay_empty(section)),
        };
        let factor = self.factors[section];
        let tie_break = match self.order {
            SectionOrder::Random | SectionOrder::Chains => factor,
            SectionOrder::Failures => {
                u64::MAX - (self.failures[section] + 1).saturating_mul(factor)
            }
        };
        (u64::from(options), tie_break, section)
    }

    /// The candidates of a cell without those that are like another.
    fn distinct_candidates(&self, cell: &BranchCell) -> Vec<CellCandidate> {
        let mut distinct: Vec<CellCandidate> = Vec::new();
        for &candidate in &cell.candidates {
            let shape = self.shape(self.keys[candidate.index]);
            let mut known = distinct.iter();
            if !known.any(|known| self.shape(self.keys[known.index]).is_alike(shape)) {
                distinct.push(candidate);
            }
        }
        distinct
    }

    /// Sorts the blocks that may lie in a cell: those first with which least of the floor stays empty, then those
    /// whose edges are flush with those of their neighbours, since each edge that is not leaves a gap that some other block must fit.
    fn sort_by_flush_edges(
        &self,
        candidates: &mut [CellCandidate],
        cell: &BranchCell,
        sections: Range<usize>,
    ) {
        let bottoms = &self.tables.bottoms;
        let Range {
            start: valley_start,
            end: valley_end,
        } = cell.valley;
        // Nothing lies beside the first and the last section, up to the ceiling.
        let left_bottom = match valley_start > sections.start {
            true => bottoms[valley_start - 1],
            false => self.ceiling,
        };
        let right_bottom = match valley_end < sections.end {
            true => bottoms[valley_end],
            false => self.ceiling,
        };

        candidates.sort_by_key(|candidate| {
            let shape = self.shape(self.keys[candidate.index]);
            let top = cell.bottom + shape.size;
            let touches_left = shape.lo as usize == valley_start;
            let touches_right = shape.hi as usize == valley_end;
            let mut flush_edges = u32::from(touches_left) + u32::from(touches_right);
            flush_edges += u32::from(touches_left && top == left_bottom);
            flush_edges += u32::from(touches_right && top == right_bottom);
            (candidate.empty, Reverse(flush_edges))
        });
    }

    /// Tries each option of one cell for the list at `from`, which lives in `sections` and ends the stack.
    fn branch(&mut self, from: usize, sections: Range<usize>) -> FitOutcome {
        let to = self.keys.len();
        let level = self.log.level();
        let cell = self.choose_cell(from, sections.clone());
        let mut candidates = self.distinct_candidates(&cell);
        if self.order != SectionOrder::Failures && candidates.len() > 1 {
            self.sort_by_flush_edges(&mut candidates, &cell, sections.clone());
        }
        // On the heap: levels of recursion must be small.
        let mut reasons = Box::new(LevelSet::empty());

        let options = candidates
            .into_iter()
            .map(|candidate| Some(candidate.index));
        let empty_option = cell.may_stay_empty.then_some(None);
        for option in options.chain(empty_option) {
            if self.is_spent() {
                return FitOutcome::Budget;
            }
            self.nodes += 1;
            let outcome = match option {
                Some(index) => self.place(from..to, index, sections.clone()),
                None => self.leave_empty(from..to, &cell, sections.clone()),
            };
            self.keys.truncate(to);
            if outcome != FitOutcome::Impossible {
                return outcome;
            }
            // Without this decision it fails all the same: no other option helps.
            if !self.conflict.remove(level) {
                return FitOutcome::Impossible;
            }
            reasons.extend(&self.conflict);
        }
        self.explain_options(from, &cell, &mut reasons);
        self.conflict = *reasons;
        FitOutcome::Impossible
    }

    /// Whether to give up before another decision.
    fn is_spent(&self) -> bool {
        self.looks + self.log.looks >= self.limit
            || self.log.is_full()
            || self.stop.is_set_at(self.nodes)
    }

    /// Why a cell has no other options than those that were tried.
    fn explain_options(&mut self, from: usize, cell: &BranchCell, reasons: &mut LevelSet) {
        let sections = match cell.is_narrowed {
            true => cell.valley.start as u32..cell.valley.end as u32,
            false => cell.section as u32..cell.section as u32 + 1,
        };
        self.log.add_placed(sections.start, sections.end, reasons);
        for &key in &self.keys[from..] {
            let shape = &self.shapes[rank_of(key)];
            if shape.lo < sections.end && sections.start < shape.hi {
                let is_candidate = offset_of(key) == cell.bottom;
                let lowest_offset = cell.bottom + u32::from(!is_candidate);
                self.log.ask(key as u32, lowest_offset);
            }
        }
        self.log.explain(reasons);
    }

    /// Places the block at `index` of a list, and goes on with the others.
    fn place(&mut self, list: Range<usize>, index: usize, sections: Range<usize>) -> FitOutcome {
        self.looks += list.len() as u64;
        let list_end = list.end;
        let placed_key = self.keys[index];
        let placed_rank = rank_of(placed_key);
        let placed = self.shape(placed_key);
        let offset = offset_of(placed_key);
        self.offsets[placed_rank] = offset;
        if list.len() == 1 {
            return FitOutcome::Found;
        }

        // Those in its way are raised onto it.
        self.log.push_place(placed_rank, offset);
        let placed_top = offset + placed.size;
        self.raised.clear();
        for other in list.filter(|&other| other != index) {
            let key = self.keys[other];
            let shape = self.shape(key);
            if !shape.meets(placed) || offset_of(key) >= placed_top {
                self.keys.push(key);
            } else {
                let raised_key = make_key(shape.fit(placed_top), key as u32);
                self.log.raise(key as u32, offset_of(raised_key));
                self.raised.push(raised_key);
            }
        }
        merge_raised(&mut self.keys, list_end, &mut self.raised);
        let outcome = self.solve_parts(list_end, sections);
        self.log.pop(Some(placed_rank));
        outcome
    }

    /// Leaves a cell empty, and goes on with the blocks that might have covered it raised.
    fn leave_empty(
        &mut self,
        list: Range<usize>,
        cell: &BranchCell,
        sections: Range<usize>,
    ) -> FitOutcome {
        let list_end = list.end;
        self.log.push_waste(cell.bottom);
        self.raise_candidates(list, cell);

        let can_rest = offset_of(self.raised[0]) < u32::MAX;
        let outcome = if can_rest {
            for &key in &self.raised {
                self.log.raise(key as u32, offset_of(key));
            }
            merge_raised(&mut self.keys, list_end, &mut self.raised);
            self.solve_parts(list_end, sections)
        } else {
            self.explain_no_support(cell);
            FitOutcome::Impossible
        };
        self.log.pop(None);
        outcome
    }

    /// Puts the blocks that might cover a cell into `raised`, at the lowest offset where they can rest on another, and
    /// the others at the end of the stack.
    fn raise_candidates(&mut self, list: Range<usize>, cell: &BranchCell) {
        let list_keys = list.clone();
        let bottom = cell.bottom;
        let section = cell.section;
        let is_candidate =
            |key: BlockKey, shape: &BlockShape| offset_of(key) == bottom && shape.covers(section);
        self.looks += list.len() as u64;
        self.raised.clear();
        for index in list_keys {
            let key = self.keys[index];
            let shape = self.shape(key);
            if !is_candidate(key, shape) {
                self.keys.push(key);
                continue;
            }
            self.looks += list.len() as u64;
            let mut lowest_top = u32::MAX;
            for &other in &self.keys[list.clone()] {
                let other_shape = &self.shapes[rank_of(other)];
                if shape.meets(other_shape) && !is_candidate(other, other_shape) {
                    lowest_top = lowest_top.min(offset_of(other) + other_shape.size);
                }
            }
            self.raised.push(make_key(lowest_top, key as u32));
        }

        // They may also rest on each other: all of them meet.
        self.raised.sort_unstable();
        let mut lowest_top = u32::MAX;
        for key in &mut self.raised {
            let shape = &self.shapes[rank_of(*key)];
            let release_offset = offset_of(*key).min(lowest_top);
            if release_offset == u32::MAX {
                break;
            }
            let offset = shape.fit(release_offset);
            *key = make_key(offset, *key as u32);
            lowest_top = lowest_top.min(offset + shape.size);
        }
    }

    /// Why the blocks in `raised` have nothing to rest on.
    fn explain_no_support(&mut self, cell: &BranchCell) {
        self.conflict = LevelSet::empty();
        self.conflict.insert(self.log.level() - 1);
        for &key in &self.raised {
            let shape = &self.shapes[rank_of(key)];
            let lowest_offset = (cell.bottom + 1).saturating_sub(shape.size);
            self.log.ask(key as u32, lowest_offset);
            self.log.add_placed(shape.lo, shape.hi, &mut self.conflict);
        }
        self.log.explain(&mut self.conflict);
    }
}
