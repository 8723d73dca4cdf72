//! Items tied together become blocks; time becomes sections; groups of blocks that share no moment come apart.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Item, MAX_BYTES, OffsetsError};

/// Items that move as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Live in sections `[lo, hi)`. A section is a stretch of time in which blocks first start and then end; two
    /// blocks are live at the same time exactly when they share one. There are at most as many as blocks.
    pub(super) lo: u32,
    pub(super) hi: u32,
    /// Live time, for ranking.
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

impl Block {
    /// The lowest allowed offset from `offset` on, were the block not fixed.
    pub(super) fn fit(&self, offset: u64) -> u64 {
        offset + (self.residue.wrapping_sub(offset) & (self.align - 1))
    }
}

/// Blocks and what follows from them.
///
/// All sizes in here are rounded up to the smallest alignment, of which all offsets are multiples. That costs nothing
/// but at the top of the region, where up to `padding` bytes may be left unused.
pub(super) struct Problem {
    /// All blocks that are live at some time and have a size, by `(lo, id)`.
    pub(super) blocks: Vec<Block>,
    /// Ranges of `blocks` that share no section.
    pub(super) groups: Vec<Range<usize>>,
    /// Bytes live in each section.
    pub(super) loads: Vec<u64>,
    /// The largest load, or the highest end of a block that is fixed or never live.
    pub(super) lower_bound: u64,
    /// Most bytes by which a block's size was rounded up.
    pub(super) padding: u64,
    /// Sum over blocks of the others that are live when it starts.
    pub(super) meetings: u64,
    /// Size, root and offset in the root's block of each item.
    ties: Vec<(u64, u32, u64)>,
    /// Offsets of blocks that conflict with none, by root.
    free: Vec<(u32, u64)>,
    /// Highest end of a block that conflicts with none.
    idle_top: u64,
}

impl Problem {
    pub(super) fn new(items: &[Item]) -> Result<Problem, OffsetsError> {
        let total = items.iter().try_fold(0u64, |sum, item| {
            let reach = item
                .alias
                .map_or(0, |a| a.offset)
                .max(item.fixed.unwrap_or(0));
            sum.checked_add(item.size)?
                .checked_add(reach)?
                .checked_add(item.align)
        });
        if total.is_none_or(|t| t > MAX_BYTES) || items.len() > u32::MAX as usize / 4 {
            return Err(OffsetsError::TooBig { limit: MAX_BYTES });
        }
        let roots = roots(items)?;
        let mut boxes = boxes(items, &roots)?;
        let ties = items
            .iter()
            .zip(&roots)
            .map(|(item, &(r, rel))| (item.size, r, rel))
            .collect();
        let idle = |b: &Boxed| b.size == 0 || b.end <= b.first;
        let resting = |b: &Boxed| b.fixed.unwrap_or(b.residue);
        let free = boxes
            .iter()
            .filter(|b| idle(b))
            .map(|b| (b.root, resting(b)))
            .collect();
        let idle_top = boxes
            .iter()
            .filter(|b| idle(b) && b.size > 0)
            .map(|b| resting(b) + b.size);
        let idle_top = idle_top.max().unwrap_or(0);
        boxes.retain(|b| !idle(b));
        check_fixed(&boxes)?;
        let step = boxes
            .iter()
            .map(|b| b.align.min(lowest_bit(b.residue)))
            .min()
            .unwrap_or(1);
        let padding = boxes
            .iter()
            .map(|b| b.size.next_multiple_of(step) - b.size)
            .max()
            .unwrap_or(0);
        let (spans, meetings) = sections(&boxes);
        let mut blocks: Vec<Block> = boxes
            .iter()
            .zip(&spans)
            .map(|(b, span)| Block {
                lo: span.start,
                hi: span.end,
                width: b.end - b.first,
                size: b.size.next_multiple_of(step),
                align: b.align,
                residue: b.residue,
                fixed: b.fixed,
                root: b.root,
            })
            .collect();
        blocks.sort_unstable_by_key(|b| (b.lo, b.root));
        let loads = loads(&blocks);
        let fixed_top = blocks
            .iter()
            .filter_map(|b| Some(b.fixed? + b.size))
            .max()
            .unwrap_or(0);
        let lower_bound = loads
            .iter()
            .copied()
            .max()
            .unwrap_or(0)
            .max(fixed_top)
            .max(idle_top);
        let groups = groups(&blocks);
        Ok(Problem {
            blocks,
            groups,
            loads,
            lower_bound,
            padding,
            meetings,
            ties,
            free,
            idle_top,
        })
    }

    /// Offsets of items from offsets of blocks.
    pub(super) fn item_offsets(&self, of_blocks: &[u64]) -> Vec<u64> {
        let mut of_root = vec![0; self.ties.len()];
        for (block, &offset) in self.blocks.iter().zip(of_blocks) {
            of_root[block.root as usize] = offset;
        }
        for &(root, offset) in &self.free {
            of_root[root as usize] = offset;
        }
        self.ties
            .iter()
            .map(|&(_, root, rel)| of_root[root as usize] + rel)
            .collect()
    }

    /// The highest end of an item, without the rounding.
    pub(super) fn real_size(&self, offsets: &[u64]) -> u64 {
        let tops = self
            .ties
            .iter()
            .zip(offsets)
            .filter(|(t, _)| t.0 > 0)
            .map(|(t, o)| t.0 + o);
        tops.max().unwrap_or(0)
    }

    /// A bound on sizes without the rounding from one with it.
    pub(super) fn real_bound(&self, bound: u64) -> u64 {
        bound.saturating_sub(self.padding).max(self.idle_top)
    }

    /// Items of a block.
    pub(super) fn items_of(&self, block: &Block) -> impl Iterator<Item = usize> {
        let root = block.root;
        self.ties
            .iter()
            .enumerate()
            .filter(move |(_, tie)| tie.1 == root)
            .map(|(i, _)| i)
    }
}

/// The largest power of two that divides the offset.
fn lowest_bit(offset: u64) -> u64 {
    if offset == 0 {
        u64::MAX
    } else {
        offset & offset.wrapping_neg()
    }
}

/// Root of each item and the offset from the root's start.
fn roots(items: &[Item]) -> Result<Vec<(u32, u64)>, OffsetsError> {
    let mut roots: Vec<Option<(u32, u64)>> = vec![None; items.len()];
    let mut path = Vec::new();
    for start in 0..items.len() {
        let mut at = start;
        let (root, mut offset) = loop {
            if let Some(known) = roots[at] {
                break known;
            }
            let Some(alias) = items[at].alias else {
                break (at as u32, 0);
            };
            if alias.item >= items.len() {
                let count = items.len();
                return Err(OffsetsError::AliasRange {
                    item: at,
                    to: alias.item,
                    count,
                });
            }
            path.push((at, alias.offset));
            if path.len() > items.len() {
                return Err(OffsetsError::AliasCycle { item: at });
            }
            at = alias.item;
        };
        roots[at] = Some((root, offset));
        while let Some((item, step)) = path.pop() {
            offset += step;
            roots[item] = Some((root, offset));
        }
    }
    Ok(roots.into_iter().flatten().collect())
}

/// A block before time is cut into sections.
#[derive(Clone, Debug)]
struct Boxed {
    root: u32,
    first: u64,
    end: u64,
    size: u64,
    align: u64,
    residue: u64,
    /// The fixed offset of the block's start.
    fixed: Option<u64>,
}

/// The hull of each root's items in time and space.
fn boxes(items: &[Item], roots: &[(u32, u64)]) -> Result<Vec<Boxed>, OffsetsError> {
    let mut boxes: BTreeMap<u32, Boxed> = BTreeMap::new();
    for (i, (item, &(root, rel))) in items.iter().zip(roots).enumerate() {
        if !item.align.is_power_of_two() {
            return Err(OffsetsError::Align {
                item: i,
                align: item.align,
            });
        }
        if let Some(fixed) = item.fixed.filter(|f| f % item.align != 0) {
            return Err(OffsetsError::FixedAlign {
                item: i,
                fixed,
                align: item.align,
            });
        }
        let empty = Boxed {
            root,
            first: u64::MAX,
            end: 0,
            size: 0,
            align: 1,
            residue: 0,
            fixed: None,
        };
        let block = boxes.entry(root).or_insert(empty);
        if item.first < item.end {
            block.first = block.first.min(item.first);
            block.end = block.end.max(item.end);
        }
        block.size = block.size.max(rel + item.size);
        let residue = rel.wrapping_neg() & (item.align - 1);
        let common = item.align.min(block.align) - 1;
        if residue & common != block.residue & common {
            let align = item.align.max(block.align);
            return Err(OffsetsError::AliasAlign {
                item: i,
                offset: rel,
                align,
            });
        }
        if item.align > block.align {
            (block.align, block.residue) = (item.align, residue);
        }
        if let Some(fixed) = item.fixed {
            let base = fixed.checked_sub(rel);
            let wanted = block.fixed.map_or(rel, |b| b + rel);
            if base.is_none() || block.fixed.is_some_and(|b| Some(b) != base) {
                return Err(OffsetsError::AliasFixed {
                    item: i,
                    fixed,
                    wanted,
                });
            }
            block.fixed = base;
        }
    }
    for block in boxes.values() {
        if let Some(fixed) = block
            .fixed
            .filter(|f| f & (block.align - 1) != block.residue)
        {
            let item = block.root as usize;
            return Err(OffsetsError::FixedAlign {
                item,
                fixed,
                align: block.align,
            });
        }
    }
    Ok(boxes.into_values().collect())
}

/// Starts and ends in order of time, ends first.
fn events(boxes: &[Boxed]) -> Vec<(u64, bool, u32)> {
    let mut events: Vec<(u64, bool, u32)> = boxes
        .iter()
        .enumerate()
        .flat_map(|(i, b)| [(b.first, true, i as u32), (b.end, false, i as u32)])
        .collect();
    events.sort_unstable();
    events
}

/// No two fixed blocks may overlap in time and space.
fn check_fixed(boxes: &[Boxed]) -> Result<(), OffsetsError> {
    let fixed: Vec<Boxed> = boxes
        .iter()
        .filter(|b| b.fixed.is_some())
        .cloned()
        .collect();
    let mut live: BTreeMap<u64, u32> = BTreeMap::new();
    for (_, starts, i) in events(&fixed) {
        let block = &fixed[i as usize];
        let Some(offset) = block.fixed else { continue };
        if !starts {
            live.remove(&offset);
            continue;
        }
        if let Some((&other_offset, &j)) = live.range(..offset + block.size).next_back() {
            let other = &fixed[j as usize];
            if other_offset + other.size > offset {
                return Err(OffsetsError::FixedOverlap {
                    first: other.root as usize,
                    first_fixed: other_offset,
                    second: block.root as usize,
                    second_fixed: offset,
                });
            }
        }
        live.insert(offset, i);
    }
    Ok(())
}

/// Sections of each box, and how often a box starts while another is live.
fn sections(boxes: &[Boxed]) -> (Vec<Range<u32>>, u64) {
    let mut spans = vec![0..0; boxes.len()];
    let (mut section, mut ending, mut live, mut meetings) = (0u32, false, 0u64, 0u64);
    for (_, starts, i) in events(boxes) {
        if starts {
            section += u32::from(ending);
            ending = false;
            spans[i as usize].start = section;
            meetings += live;
            live += 1;
        } else {
            ending = true;
            live -= 1;
            spans[i as usize].end = section + 1;
        }
    }
    (spans, meetings)
}

/// Sum of sizes in each section.
fn loads(blocks: &[Block]) -> Vec<u64> {
    let sections = blocks.iter().map(|b| b.hi).max().unwrap_or(0) as usize;
    let mut change = vec![0u64; sections + 1];
    for block in blocks {
        change[block.lo as usize] = change[block.lo as usize].wrapping_add(block.size);
        change[block.hi as usize] = change[block.hi as usize].wrapping_sub(block.size);
    }
    let mut load = 0u64;
    change.truncate(sections);
    for slot in &mut change {
        load = load.wrapping_add(*slot);
        *slot = load;
    }
    change
}

/// Maximal ranges of blocks that are tied together by shared sections. `blocks` are sorted by `lo`.
fn groups(blocks: &[Block]) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let (mut start, mut reach) = (0, 0);
    for (i, block) in blocks.iter().enumerate() {
        if block.lo >= reach && i > start {
            groups.push(start..i);
            start = i;
        }
        reach = reach.max(block.hi);
    }
    if start < blocks.len() {
        groups.push(start..blocks.len());
    }
    groups
}
