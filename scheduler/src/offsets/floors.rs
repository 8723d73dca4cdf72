//! Which blocks may lie on the floor of a valley, and how much of it each of them leaves empty at least.
//!
//! A valley is a stretch of sections of one lowest offset, its floor, between higher ones. Each cell of the floor is
//! covered by a block that lies on it, or stays empty where its section has bytes to spare. So from one wall to the other
//! runs a chain of blocks and empty cells. A block that is in no such chain does not lie on the floor, and one whose best
//! chain leaves little empty is a better guess than others.

use std::ops::Range;

/// A block that may lie on a floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FloorBlock {
    pub(super) lo: u32,
    pub(super) hi: u32,
    /// Index in the lists of its search.
    pub(super) index: u32,
}

/// Cells that no chain reaches.
pub(super) const NO_CHAIN: u32 = u32::MAX;

/// Least empty cells of the chains through each block and each empty cell of a floor.
#[derive(Clone, Default)]
pub(super) struct FloorChains {
    /// Least empty cells of a chain from the left wall to the left edge of each section.
    before: Vec<u32>,
    /// Least empty cells of a chain from the left edge of each section to the right wall.
    after: Vec<u32>,
}

impl FloorChains {
    pub(super) fn new(section_count: usize) -> FloorChains {
        FloorChains {
            before: vec![NO_CHAIN; section_count + 1],
            after: vec![NO_CHAIN; section_count + 1],
        }
    }

    /// Finds the chains of a valley from the blocks on its floor, sorted; whether there is one.
    pub(super) fn find(
        &mut self,
        valley: Range<usize>,
        blocks: &[FloorBlock],
        may_stay_empty: impl Fn(usize) -> bool,
    ) -> bool {
        let before = &mut self.before;
        let after = &mut self.after;
        before[valley.start..=valley.end].fill(NO_CHAIN);
        after[valley.start..=valley.end].fill(NO_CHAIN);

        before[valley.start] = 0;
        let mut next = 0;
        for section in valley.clone() {
            let so_far = before[section];
            while let Some(block) = blocks.get(next).filter(|b| b.lo as usize == section) {
                let end = &mut before[block.hi as usize];
                *end = so_far.min(*end);
                next += 1;
            }
            if so_far < NO_CHAIN && may_stay_empty(section) {
                before[section + 1] = before[section + 1].min(so_far + 1);
            }
        }

        after[valley.end] = 0;
        let mut left = blocks.len();
        for section in valley.clone().rev() {
            let mut least = NO_CHAIN;
            if after[section + 1] < NO_CHAIN && may_stay_empty(section) {
                least = after[section + 1] + 1;
            }
            while left > 0 && blocks[left - 1].lo as usize == section {
                left -= 1;
                least = least.min(after[blocks[left].hi as usize]);
            }
            after[section] = least;
        }
        before[valley.end] < NO_CHAIN
    }

    /// Least empty cells with this block on the floor; [`NO_CHAIN`] if it does not lie there.
    pub(super) fn empty_with(&self, block: &FloorBlock) -> u32 {
        let before = self.before[block.lo as usize];
        before.saturating_add(self.after[block.hi as usize])
    }

    /// Least empty cells with an empty cell in a section that may have one; [`NO_CHAIN`] if there is no such chain.
    pub(super) fn empty_at(&self, section: usize) -> u32 {
        let before = self.before[section];
        before
            .saturating_add(self.after[section + 1])
            .saturating_add(1)
    }

    /// Least empty cells of all chains of the valley last looked at; [`NO_CHAIN`] if there is none.
    pub(super) fn least_empty(&self, valley: &Range<usize>) -> u32 {
        self.before[valley.end]
    }
}
