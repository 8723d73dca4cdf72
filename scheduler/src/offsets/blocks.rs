//! Items tied together become blocks; time becomes sections; groups of blocks that share no moment come apart.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Item, MAX_BYTES, OffsetsError};

/// Items that move as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemBlock {
    /// Live in sections `[lo, hi)`. A section is a stretch of time in which blocks first start and then end; two
    /// blocks are live at the same time exactly when they share one. There are at most as many as blocks.
    pub(super) lo: u32,
    pub(super) hi: u32,
    /// First moment at which it is live.
    pub(super) first: u64,
    /// Live time.
    pub(super) width: u64,
    /// Bytes, rounded up to the smallest alignment of all blocks.
    pub(super) size: u64,
    /// A power of two; offsets are `residue` modulo `align`.
    pub(super) align: u64,
    pub(super) residue: u64,
    pub(super) fixed: Option<u64>,
    /// The item that all others of the block are tied to.
    pub(super) root: u32,
}

impl ItemBlock {
    /// The lowest allowed offset from `offset` on, were the block not fixed.
    pub(super) fn fit(&self, offset: u64) -> u64 {
        offset + (self.residue.wrapping_sub(offset) & (self.align - 1))
    }
}

/// Blocks and what follows from them.
///
/// All sizes in here are rounded up to the smallest alignment, of which all offsets are multiples. That costs nothing
/// but at the top of the region, where up to `padding` bytes may be left unused.
pub(super) struct LayoutProblem {
    /// All blocks that are live at some time and have a size, by `(lo, id)`.
    pub(super) blocks: Vec<ItemBlock>,
    /// Ranges of `blocks` that share no section.
    pub(super) groups: Vec<Range<usize>>,
    /// Bytes live in each section.
    pub(super) loads: Vec<u64>,
    /// The largest load, or the highest end of a block that is fixed or never live.
    pub(super) lower_bound: u64,
    /// Largest number of bytes by which a block's size was rounded up.
    pub(super) padding: u64,
    /// Sum over blocks of the others that are live when it starts.
    pub(super) meetings: u64,
    /// Size of each item.
    item_sizes: Vec<u64>,
    /// Place of each item in its root's block.
    places: Vec<RootPlace>,
    /// Root and offset of blocks that conflict with none.
    idle_offsets: Vec<(u32, u64)>,
    /// Highest end of a block that conflicts with none.
    idle_top: u64,
}

impl LayoutProblem {
    pub(super) fn new(items: &[Item]) -> Result<LayoutProblem, OffsetsError> {
        check_total(items)?;
        let places = find_roots(items)?;
        let mut hulls = make_hulls(items, &places)?;

        // Blocks that are never live or have no size conflict with none.
        let mut idle_offsets = Vec::new();
        let mut idle_top = 0;
        for hull in hulls.iter().filter(|hull| hull.is_idle()) {
            let offset = hull.fixed.unwrap_or(hull.residue);
            idle_offsets.push((hull.root, offset));
            if hull.size > 0 {
                idle_top = (offset + hull.size).max(idle_top);
            }
        }
        hulls.retain(|hull| !hull.is_idle());
        check_fixed(&hulls)?;

        let offset_steps = hulls.iter().map(BlockHull::offset_step);
        // All offsets are multiples of this step, so that sizes may be rounded up to it.
        let size_step = offset_steps.min().unwrap_or(1);
        let paddings = hulls
            .iter()
            .map(|hull| hull.size.next_multiple_of(size_step) - hull.size);
        let padding = paddings.max().unwrap_or(0);

        let (section_spans, meetings) = find_sections(&hulls);
        let mut blocks = Vec::with_capacity(hulls.len());
        for (hull, span) in hulls.iter().zip(&section_spans) {
            blocks.push(ItemBlock {
                lo: span.start,
                hi: span.end,
                first: hull.first,
                width: hull.end - hull.first,
                size: hull.size.next_multiple_of(size_step),
                align: hull.align,
                residue: hull.residue,
                fixed: hull.fixed,
                root: hull.root,
            });
        }
        blocks.sort_unstable_by_key(|block| (block.lo, block.root));

        let loads = sum_loads(&blocks);
        let max_load = loads.iter().copied().max().unwrap_or(0);
        let fixed_tops = blocks
            .iter()
            .filter_map(|block| Some(block.fixed? + block.size));
        let fixed_top = fixed_tops.max().unwrap_or(0);
        Ok(LayoutProblem {
            groups: find_groups(&blocks),
            blocks,
            loads,
            lower_bound: max_load.max(fixed_top).max(idle_top),
            padding,
            meetings,
            item_sizes: items.iter().map(|item| item.size).collect(),
            places,
            idle_offsets,
            idle_top,
        })
    }

    /// Offsets of items from offsets of blocks.
    pub(super) fn item_offsets(&self, block_offsets: &[u64]) -> Vec<u64> {
        let mut offset_of_root = vec![0; self.places.len()];
        for (block, &offset) in self.blocks.iter().zip(block_offsets) {
            offset_of_root[block.root as usize] = offset;
        }
        for &(root, offset) in &self.idle_offsets {
            offset_of_root[root as usize] = offset;
        }

        let places = self.places.iter();
        places
            .map(|place| offset_of_root[place.root as usize] + place.offset)
            .collect()
    }

    /// The highest end of an item, without the rounding.
    pub(super) fn real_size(&self, offsets: &[u64]) -> u64 {
        let placed = self.item_sizes.iter().zip(offsets);
        placed
            .filter(|&(&size, _)| size > 0)
            .map(|(size, offset)| size + offset)
            .max()
            .unwrap_or(0)
    }

    /// A bound on sizes without the rounding from one with it.
    pub(super) fn real_bound(&self, bound: u64) -> u64 {
        bound.saturating_sub(self.padding).max(self.idle_top)
    }

    /// Items of a block.
    pub(super) fn items_of(&self, block: &ItemBlock) -> impl Iterator<Item = usize> {
        let root = block.root;
        self.places
            .iter()
            .enumerate()
            .filter(move |(_, place)| place.root == root)
            .map(|(index, _)| index)
    }
}

/// Sizes and offsets must not add up to more than any address.
fn check_total(items: &[Item]) -> Result<(), OffsetsError> {
    let total_bytes = items.iter().try_fold(0u64, |sum, item| {
        let alias_offset = item.alias.map_or(0, |alias| alias.offset);
        let item_reach = alias_offset.max(item.fixed.unwrap_or(0));
        sum.checked_add(item.size)?
            .checked_add(item_reach)?
            .checked_add(item.align)
    });
    if total_bytes.is_none_or(|total_bytes| total_bytes > MAX_BYTES)
        || items.len() > u32::MAX as usize / 4
    {
        return Err(OffsetsError::TooBig { limit: MAX_BYTES });
    }
    Ok(())
}

/// The item that all others of a block are tied to, and bytes from its start.
#[derive(Clone, Copy)]
struct RootPlace {
    root: u32,
    offset: u64,
}

/// Root of each item.
fn find_roots(items: &[Item]) -> Result<Vec<RootPlace>, OffsetsError> {
    let mut places: Vec<Option<RootPlace>> = vec![None; items.len()];
    let mut alias_path = Vec::new();

    for start in 0..items.len() {
        // Up to an item whose root is known, or that is one.
        let mut current_item = start;
        let mut root_place = loop {
            if let Some(known) = places[current_item] {
                break known;
            }
            let Some(alias) = items[current_item].alias else {
                break RootPlace {
                    root: current_item as u32,
                    offset: 0,
                };
            };
            if alias.item >= items.len() {
                return Err(OffsetsError::AliasRange {
                    item: current_item,
                    to: alias.item,
                    count: items.len(),
                });
            }
            alias_path.push((current_item, alias.offset));
            if alias_path.len() > items.len() {
                return Err(OffsetsError::AliasCycle { item: current_item });
            }
            current_item = alias.item;
        };

        // And back down again, each further from the root by its own offset.
        places[current_item] = Some(root_place);
        while let Some((item, step)) = alias_path.pop() {
            root_place.offset += step;
            places[item] = Some(root_place);
        }
    }
    Ok(places.into_iter().flatten().collect())
}

/// A block before time is cut into sections.
#[derive(Clone, Debug)]
struct BlockHull {
    root: u32,
    first: u64,
    end: u64,
    size: u64,
    align: u64,
    residue: u64,
    /// The fixed offset of the block's start.
    fixed: Option<u64>,
}

impl BlockHull {
    fn empty(root: u32) -> Self {
        BlockHull {
            root,
            first: u64::MAX,
            end: 0,
            size: 0,
            align: 1,
            residue: 0,
            fixed: None,
        }
    }

    /// Whether it conflicts with no other.
    fn is_idle(&self) -> bool {
        self.size == 0 || self.end <= self.first
    }

    /// The largest power of two that divides all offsets it may have.
    fn offset_step(&self) -> u64 {
        match self.residue {
            0 => self.align,
            residue => self.align.min(1 << residue.trailing_zeros()),
        }
    }

    /// Takes in an item `offset` bytes after the root.
    fn add(&mut self, index: usize, item: &Item, offset: u64) -> Result<(), OffsetsError> {
        if item.first < item.end {
            self.first = self.first.min(item.first);
            self.end = self.end.max(item.end);
        }
        self.size = self.size.max(offset + item.size);

        // The block's start is where the item's alignment wants it, less the item's offset.
        let residue = offset.wrapping_neg() & (item.align - 1);
        let common_mask = item.align.min(self.align) - 1;
        if residue & common_mask != self.residue & common_mask {
            return Err(OffsetsError::AliasAlign {
                item: index,
                offset,
                align: item.align.max(self.align),
            });
        }
        if item.align > self.align {
            self.align = item.align;
            self.residue = residue;
        }

        if let Some(fixed) = item.fixed {
            let start = fixed.checked_sub(offset);
            let contradicts = self.fixed.is_some_and(|known| Some(known) != start);
            if start.is_none() || contradicts {
                return Err(OffsetsError::AliasFixed {
                    item: index,
                    fixed,
                    wanted: self.fixed.unwrap_or(0) + offset,
                });
            }
            self.fixed = start;
        }
        Ok(())
    }
}

/// The hull of each root's items in time and space.
fn make_hulls(items: &[Item], places: &[RootPlace]) -> Result<Vec<BlockHull>, OffsetsError> {
    let mut hulls: BTreeMap<u32, BlockHull> = BTreeMap::new();
    for (index, (item, place)) in items.iter().zip(places).enumerate() {
        let align = item.align;
        if !align.is_power_of_two() {
            return Err(OffsetsError::Align { item: index, align });
        }
        if let Some(fixed) = item.fixed.filter(|fixed| fixed % align != 0) {
            return Err(OffsetsError::FixedAlign {
                item: index,
                fixed,
                align,
            });
        }
        let root_hull = hulls
            .entry(place.root)
            .or_insert_with(|| BlockHull::empty(place.root));
        root_hull.add(index, item, place.offset)?;
    }

    for root_hull in hulls.values() {
        let misplaced = root_hull
            .fixed
            .filter(|fixed| fixed & (root_hull.align - 1) != root_hull.residue);
        if let Some(fixed) = misplaced {
            return Err(OffsetsError::FixedAlign {
                item: root_hull.root as usize,
                fixed,
                align: root_hull.align,
            });
        }
    }
    Ok(hulls.into_values().collect())
}

/// A block's start or end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LifeEvent {
    time: u64,
    /// Of one time, ends come first.
    is_start: bool,
    /// Index of the block.
    block: u32,
}

/// Starts and ends in order of time.
fn life_events(hulls: &[BlockHull]) -> Vec<LifeEvent> {
    let mut events = Vec::with_capacity(2 * hulls.len());
    for (block, hull) in (0u32..).zip(hulls) {
        for (time, is_start) in [(hull.first, true), (hull.end, false)] {
            events.push(LifeEvent {
                time,
                is_start,
                block,
            });
        }
    }
    events.sort_unstable();
    events
}

/// No two fixed blocks may overlap in time and space.
fn check_fixed(hulls: &[BlockHull]) -> Result<(), OffsetsError> {
    let mut fixed_hulls = hulls.to_vec();
    fixed_hulls.retain(|hull| hull.fixed.is_some());
    // Live blocks by offset.
    let mut live_hulls: BTreeMap<u64, &BlockHull> = BTreeMap::new();

    for event in life_events(&fixed_hulls) {
        let hull = &fixed_hulls[event.block as usize];
        let Some(fixed_offset) = hull.fixed else {
            continue;
        };
        if !event.is_start {
            live_hulls.remove(&fixed_offset);
            continue;
        }
        // The highest that begins below the end: if it does not overlap, none does.
        let below_end = live_hulls.range(..fixed_offset + hull.size).next_back();
        if let Some((&other_offset, other)) = below_end
            && other_offset + other.size > fixed_offset
        {
            return Err(OffsetsError::FixedOverlap {
                first: other.root as usize,
                first_fixed: other_offset,
                second: hull.root as usize,
                second_fixed: fixed_offset,
            });
        }
        live_hulls.insert(fixed_offset, hull);
    }
    Ok(())
}

/// Sections of each block, and how often a block starts while another is live.
fn find_sections(hulls: &[BlockHull]) -> (Vec<Range<u32>>, u64) {
    let mut spans = vec![0..0; hulls.len()];
    let mut current_section = 0u32;
    let mut has_ends = false;
    let mut live_count = 0u64;
    let mut meeting_count = 0u64;

    for event in life_events(hulls) {
        let hull_span = &mut spans[event.block as usize];
        if event.is_start {
            // A start after an end opens the next section.
            current_section += u32::from(has_ends);
            has_ends = false;
            hull_span.start = current_section;
            meeting_count += live_count;
            live_count += 1;
        } else {
            has_ends = true;
            live_count -= 1;
            hull_span.end = current_section + 1;
        }
    }
    (spans, meeting_count)
}

/// Sum of sizes in each section.
fn sum_loads(blocks: &[ItemBlock]) -> Vec<u64> {
    let section_count = blocks.iter().map(|block| block.hi).max().unwrap_or(0) as usize;
    let mut load_changes = vec![0u64; section_count + 1];
    for block in blocks {
        // A block adds its size where it starts and takes it away where it ends.
        let start_change = &mut load_changes[block.lo as usize];
        *start_change = start_change.wrapping_add(block.size);
        let end_change = &mut load_changes[block.hi as usize];
        *end_change = end_change.wrapping_sub(block.size);
    }

    // Running sums, in place. Differences wrap, their sums do not.
    load_changes.truncate(section_count);
    let mut current_load = 0u64;
    for change in &mut load_changes {
        current_load = current_load.wrapping_add(*change);
        *change = current_load;
    }
    load_changes
}

/// Maximal ranges of blocks that are tied together by shared sections. `blocks` are sorted by `lo`.
fn find_groups(blocks: &[ItemBlock]) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let mut group_start = 0;
    let mut group_reach = 0;

    for (index, block) in blocks.iter().enumerate() {
        if block.lo >= group_reach && index > group_start {
            groups.push(group_start..index);
            group_start = index;
        }
        group_reach = group_reach.max(block.hi);
    }
    if group_start < blocks.len() {
        groups.push(group_start..blocks.len());
    }
    groups
}
