//! Which decisions of a section search the lowest offset of a block follows from.
//!
//! A search that fails far from its last decision must not try the other options of that decision first. So each
//! failure is explained by the decisions that it follows from, and the search returns to the last of those
//! (conflict-directed backjumping, Prosser 1993).

use super::search::BlockShape;

/// Most decisions that a search may take one after the other.
pub(super) const MAX_LEVELS: usize = 1024;

/// A set of decisions, by level.
#[derive(Clone)]
pub(super) struct LevelSet {
    words: [u64; MAX_LEVELS / 64],
}

impl LevelSet {
    pub(super) fn empty() -> LevelSet {
        LevelSet {
            words: [0; MAX_LEVELS / 64],
        }
    }

    pub(super) fn insert(&mut self, level: u32) {
        self.words[level as usize / 64] |= 1 << (level % 64);
    }

    /// Removes a level; whether it was there.
    pub(super) fn remove(&mut self, level: u32) -> bool {
        let word = &mut self.words[level as usize / 64];
        let had_level = *word >> (level % 64) & 1 == 1;
        *word &= !(1 << (level % 64));
        had_level
    }

    /// Adds all levels of another set.
    pub(super) fn extend(&mut self, other: &LevelSet) {
        for (word, other_word) in self.words.iter_mut().zip(&other.words) {
            *word |= other_word;
        }
    }
}

/// What was decided about the lowest cell of a section that may still be covered.
#[derive(Clone, Copy)]
enum Decision {
    /// A block lies at this offset.
    Place(u32),
    /// No block covers the cell at this offset.
    Waste(u32),
}

/// A lowest offset of a block, and the level of the decision that raised it.
#[derive(Clone, Copy)]
struct RaisedOffset {
    offset: u32,
    level: u32,
}

/// Level of blocks that are not placed, and of offsets that no decision raised.
const NO_LEVEL: u32 = u32::MAX;

/// All decisions in force, and what each has raised.
pub(super) struct DecisionLog<'a> {
    shapes: &'a [BlockShape],
    decisions: Vec<Decision>,
    /// Level at which each block was placed.
    placed_levels: Vec<u32>,
    /// Lowest offsets of each block, the newest last.
    histories: Vec<Vec<RaisedOffset>>,
    /// Blocks in the order in which they were raised.
    raised: Vec<u32>,
    /// Length of `raised` before each decision.
    marks: Vec<usize>,
    /// Blocks with the offsets that are yet to be explained.
    questions: Vec<(u32, u32)>,
    /// Entries of each history that are explained already, as bits; those past the last bit are explained each time.
    explained_entries: Vec<u64>,
    /// Blocks with such entries.
    explained: Vec<u32>,
    /// Looks at a block, roughly.
    pub(super) looks: u64,
}

impl<'a> DecisionLog<'a> {
    pub(super) fn new(shapes: &'a [BlockShape]) -> DecisionLog<'a> {
        let first_offset = |shape: &BlockShape| RaisedOffset {
            offset: shape.fit(0),
            level: NO_LEVEL,
        };
        DecisionLog {
            shapes,
            decisions: Vec::new(),
            placed_levels: vec![NO_LEVEL; shapes.len()],
            histories: shapes
                .iter()
                .map(|shape| vec![first_offset(shape)])
                .collect(),
            raised: Vec::new(),
            marks: Vec::new(),
            questions: Vec::new(),
            explained_entries: vec![0; shapes.len()],
            explained: Vec::new(),
            looks: 0,
        }
    }

    /// Level of the next decision.
    pub(super) fn level(&self) -> u32 {
        self.decisions.len() as u32
    }

    pub(super) fn is_full(&self) -> bool {
        self.decisions.len() >= MAX_LEVELS
    }

    /// Decides that a block lies at `offset`.
    pub(super) fn push_place(&mut self, block: usize, offset: u32) {
        self.placed_levels[block] = self.level();
        self.marks.push(self.raised.len());
        self.decisions.push(Decision::Place(offset));
    }

    /// Decides that no block covers the cell at `bottom` of a section.
    pub(super) fn push_waste(&mut self, bottom: u32) {
        self.marks.push(self.raised.len());
        self.decisions.push(Decision::Waste(bottom));
    }

    /// Stores what the last decision raised.
    pub(super) fn raise(&mut self, block: u32, offset: u32) {
        let level = self.level() - 1;
        self.histories[block as usize].push(RaisedOffset { offset, level });
        self.raised.push(block);
    }

    /// Takes the last decision back, which placed `placed`, if any.
    pub(super) fn pop(&mut self, placed: Option<usize>) {
        self.decisions.pop();
        let mark = self.marks.pop().unwrap_or(0);
        for block in self.raised.drain(mark..) {
            self.histories[block as usize].pop();
        }
        if let Some(block) = placed {
            self.placed_levels[block] = NO_LEVEL;
        }
    }

    /// Adds the levels at which the blocks that meet some sections were placed.
    pub(super) fn add_placed(&self, lo: u32, hi: u32, reasons: &mut LevelSet) {
        for (shape, &level) in self.shapes.iter().zip(&self.placed_levels) {
            if level != NO_LEVEL && shape.lo < hi && lo < shape.hi {
                reasons.insert(level);
            }
        }
    }

    /// Asks why `block` cannot lie below `offset`.
    pub(super) fn ask(&mut self, block: u32, offset: u32) {
        self.questions.push((block, offset));
    }

    /// Adds to `reasons` the decisions from which all that was asked follows.
    pub(super) fn explain(&mut self, reasons: &mut LevelSet) {
        while let Some((block, offset)) = self.questions.pop() {
            let index = block as usize;
            let history = &self.histories[index];
            // The oldest reason that suffices: it leaves the most decisions out.
            let entry = history.partition_point(|raised| raised.offset < offset);
            let entry_bit = 1u64.checked_shl(entry as u32).unwrap_or(0);
            // The first entry holds whatever is decided.
            if entry == 0 || self.explained_entries[index] & entry_bit != 0 {
                continue;
            }

            if self.explained_entries[index] == 0 {
                self.explained.push(block);
            }
            self.explained_entries[index] |= entry_bit;
            let raised = history[entry];
            self.looks += 1;
            reasons.insert(raised.level);
            let size = self.shapes[index].size;
            match self.decisions[raised.level as usize] {
                Decision::Place(bottom) => {
                    // It must not fit beneath what was placed either.
                    self.ask(block, (bottom + 1).saturating_sub(size));
                }
                Decision::Waste(bottom) => {
                    self.ask(block, (bottom + 1).saturating_sub(size));
                    self.ask_supports(block, raised, reasons);
                }
            }
        }
        for block in self.explained.drain(..) {
            self.explained_entries[block as usize] = 0;
        }
    }

    /// Why no other block has its top between a wasted cell and the offset to which `block` was raised for that: there
    /// is nothing in between for it to rest on.
    fn ask_supports(&mut self, block: u32, raised: RaisedOffset, reasons: &mut LevelSet) {
        let shape = &self.shapes[block as usize];
        // Any top above this one leads to the same aligned offset.
        let lowest_top = raised.offset - shape.mask;
        self.looks += self.shapes.len() as u64 / 8;
        for (other, other_shape) in (0u32..).zip(self.shapes) {
            if other == block || !other_shape.meets(shape) {
                continue;
            }
            let placed_level = self.placed_levels[other as usize];
            if placed_level < raised.level {
                reasons.insert(placed_level);
            } else {
                let lowest_offset = lowest_top.saturating_sub(other_shape.size);
                self.questions.push((other, lowest_offset));
            }
        }
    }
}
