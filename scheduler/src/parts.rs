//! Buffers that lie in one block, each at its place: chains of operations in place, concatenations of parts, splits
//! into parts. Knows when buffers live and how large they are, not why they may lie over each other.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::{BufferId, TiVec};

/// Where a buffer that lies in a block with others begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TiedPlace {
    /// The buffer at the block's start.
    pub(crate) root: BufferId,
    /// Bytes from the root's first.
    pub(crate) offset_bytes: u64,
}

/// Buffers that lie in blocks with others, but for the roots.
pub(crate) type TiedBuffers = BTreeMap<BufferId, TiedPlace>;

/// When a buffer lives, in positions of its lane, both included, and its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BufferLife {
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) bytes: u64,
}

/// A part of a whole, and the byte of the whole at which it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartPlace {
    pub(crate) part: BufferId,
    pub(crate) offset: i64,
}

/// Two buffers that share bytes as they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Overlap {
    pub(crate) below: BufferId,
    pub(crate) above: BufferId,
    /// Bytes from the first of the one below to the first of the one above.
    pub(crate) shift: i64,
}

/// A buffer of a block, and the byte of the block at which it begins.
#[derive(Clone, Copy, Debug)]
struct BlockMember {
    id: BufferId,
    begin: i64,
}

/// Buffers at fixed distances, as an arena sees them: live from the first of them to the last, from the lowest byte to
/// the highest.
#[derive(Clone, Debug, Default)]
struct BufferBlock {
    members: Vec<BlockMember>,
    first: u32,
    last: u32,
    low: i64,
    high: i64,
}

impl BufferBlock {
    fn bytes(&self) -> u64 {
        self.low.abs_diff(self.high)
    }

    /// Takes in the members of another, `shift` bytes on.
    fn join(&mut self, other: &BufferBlock, shift: i64) {
        self.members
            .extend(other.members.iter().map(|member| BlockMember {
                begin: member.begin + shift,
                ..*member
            }));
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.low = self.low.min(other.low + shift);
        self.high = self.high.max(other.high + shift);
    }
}

/// Bytes live at each position of a lane.
pub(crate) struct LaneLoad {
    at: Vec<u64>,
    /// Limit for each position: the largest load before any part was tied.
    pub(crate) peak: u64,
}

/// The blocks of all buffers that can be in any.
pub(crate) struct BufferBlocks {
    lives: TiVec<BufferId, Option<BufferLife>>,
    /// Index into `all` of a buffer's block.
    block_of: TiVec<BufferId, usize>,
    /// Empty once taken into another.
    all: Vec<BufferBlock>,
}

/// Pairs of members that are compared for one whole: laying out a candidate plan must stay quick.
const MAX_COMPARED: usize = 1 << 16;

/// Largest block: as many bytes as there may be blocks of add up to less than 63 bits.
const MAX_BLOCK_BYTES: u64 = 1 << 40;

impl BufferBlocks {
    /// Each buffer in a block of its own.
    pub(crate) fn new(mut lives: TiVec<BufferId, Option<BufferLife>>) -> Self {
        let mut all = Vec::with_capacity(lives.len());

        for (id, life) in lives.iter_mut_enumerated() {
            *life = life.filter(|life| life.bytes <= MAX_BLOCK_BYTES);
            let life = life.unwrap_or_default();
            all.push(BufferBlock {
                members: vec![BlockMember { id, begin: 0 }],
                first: life.first,
                last: life.last,
                low: 0,
                high: life.bytes as i64,
            });
        }
        let block_of = lives.keys().map(BufferId::index).collect();
        Self {
            lives,
            block_of,
            all,
        }
    }

    /// Lays a buffer over one that is as large and goes when it comes. Before anything else is tied: then all members
    /// of a block begin where it does.
    pub(crate) fn lay_over(&mut self, below: BufferId, above: BufferId) {
        let below_block = self.block_of[below];
        let above_block = self.block_of[above];
        let both_live = self.lives[below].is_some() && self.lives[above].is_some();
        if below_block == above_block || !both_live {
            return;
        }

        // The smaller into the larger, so that each is moved a logarithm of times.
        let below_members = self.all[below_block].members.len();
        let (home, other) = match below_members < self.all[above_block].members.len() {
            true => (above_block, below_block),
            false => (below_block, above_block),
        };
        let taken = std::mem::take(&mut self.all[other]);
        self.all[home].join(&taken, 0);
        for member in taken.members {
            self.block_of[member.id] = home;
        }
    }

    /// For how many positions more memory is taken if a part is tied to a whole.
    pub(crate) fn added_positions(&self, whole: BufferId, part: BufferId) -> u32 {
        let (Some(whole), Some(part)) = (self.lives[whole], self.lives[part]) else {
            return 0;
        };
        let before = whole.first.saturating_sub(part.first);
        let after = part.last.saturating_sub(whole.last);
        before.saturating_add(after)
    }

    /// Where a buffer begins in its block.
    fn begin_of(&self, id: BufferId) -> i64 {
        let members = &self.all[self.block_of[id]].members;
        members
            .iter()
            .find(|member| member.id == id)
            .map_or(0, |member| member.begin)
    }

    /// What the blocks of some buffers need of memory.
    pub(crate) fn load(&self, is_mine: impl Fn(BufferId) -> bool) -> LaneLoad {
        let blocks: Vec<&BufferBlock> = self
            .all
            .iter()
            .filter(|block| {
                let first = block.members.first();
                first.is_some_and(|member| self.lives[member.id].is_some() && is_mine(member.id))
            })
            .collect();
        let positions = blocks
            .iter()
            .map(|block| block.last as usize + 1)
            .max()
            .unwrap_or(0);

        // Bytes that come at each position, and that have gone there.
        let mut coming = vec![0u64; positions + 1];
        let mut gone = vec![0u64; positions + 1];
        for block in blocks {
            coming[block.first as usize] += block.bytes();
            gone[block.last as usize + 1] += block.bytes();
        }

        let mut live_bytes = 0u64;
        let mut at = Vec::with_capacity(positions + 1);
        for (come, go) in coming.into_iter().zip(gone) {
            live_bytes = live_bytes + come - go;
            at.push(live_bytes);
        }
        let peak = at.iter().copied().max().unwrap_or(0);
        LaneLoad { at, peak }
    }

    /// Ties parts to a whole, as far as nothing lies where something else lives; not at all if more than the peak were
    /// live at any position. `intended` are the pairs that may share bytes. Returns whether anything was tied.
    pub(crate) fn tie(
        &mut self,
        whole: BufferId,
        parts: &[PartPlace],
        intended: &BTreeSet<Overlap>,
        load: &mut LaneLoad,
    ) -> bool {
        let home = self.block_of[whole];
        let mut joined = self.all[home].clone();
        let mut taken: Vec<usize> = Vec::new();

        for place in parts {
            let index = self.block_of[place.part];
            let is_new = index != home && !taken.contains(&index);
            if !is_new || self.lives[place.part].is_none() || self.lives[whole].is_none() {
                continue;
            }
            // Where the part's block must begin so that the part lies in its place of the whole.
            let shift = self.begin_of(whole) + place.offset - self.begin_of(place.part);
            let other = &self.all[index];
            if self.can_join(&joined, other, shift, intended) {
                joined.join(other, shift);
                taken.push(index);
            }
        }

        let is_allowed = !taken.is_empty()
            && joined.bytes() <= MAX_BLOCK_BYTES
            && self.replace_in_load(home, &taken, &joined, load);
        if !is_allowed {
            return false;
        }
        self.all[home] = joined;
        for index in taken {
            let other = std::mem::take(&mut self.all[index]);
            for member in other.members {
                self.block_of[member.id] = home;
            }
        }
        true
    }

    /// Whether no member of one block lies where one of the other lives, unless the two are intended to share bytes.
    fn can_join(
        &self,
        block: &BufferBlock,
        other: &BufferBlock,
        shift: i64,
        intended: &BTreeSet<Overlap>,
    ) -> bool {
        if block.members.len().saturating_mul(other.members.len()) > MAX_COMPARED {
            return false;
        }
        block.members.iter().all(|&first| {
            other.members.iter().all(|&second| {
                let shifted = BlockMember {
                    begin: second.begin + shift,
                    ..second
                };
                self.can_coexist(first, shifted, intended)
            })
        })
    }

    fn can_coexist(
        &self,
        first: BlockMember,
        second: BlockMember,
        intended: &BTreeSet<Overlap>,
    ) -> bool {
        let (Some(first_life), Some(second_life)) = (self.lives[first.id], self.lives[second.id])
        else {
            return false;
        };
        let apart_in_time =
            first_life.last < second_life.first || second_life.last < first_life.first;
        let apart_in_space = first.begin + first_life.bytes as i64 <= second.begin
            || second.begin + second_life.bytes as i64 <= first.begin;

        apart_in_time
            || apart_in_space
            || intended.contains(&Overlap {
                below: first.id,
                above: second.id,
                shift: second.begin - first.begin,
            })
            || intended.contains(&Overlap {
                below: second.id,
                above: first.id,
                shift: first.begin - second.begin,
            })
    }

    /// Puts a joined block in the stead of those it was made of into the load, unless that exceeds the peak anywhere.
    fn replace_in_load(
        &self,
        home: usize,
        taken: &[usize],
        joined: &BufferBlock,
        load: &mut LaneLoad,
    ) -> bool {
        let first = joined.first as usize;
        let positions = first..=joined.last as usize;
        let mut loads = load.at[positions.clone()].to_vec();
        loads.iter_mut().for_each(|sum| *sum += joined.bytes());

        // All of them lie within the positions of the joined block.
        for &index in taken.iter().chain([&home]) {
            let old = &self.all[index];
            for sum in &mut loads[old.first as usize - first..=old.last as usize - first] {
                *sum -= old.bytes();
            }
        }

        let fits = loads.iter().all(|&sum| sum <= load.peak);
        if fits {
            load.at[positions].copy_from_slice(&loads);
        }
        fits
    }

    /// The place of each buffer in a block of several.
    pub(crate) fn tied_buffers(&self) -> TiedBuffers {
        let mut tied = TiedBuffers::new();

        for block in &self.all {
            // The lowest, and of those the first by id.
            let lowest = block
                .members
                .iter()
                .min_by_key(|member| (member.begin, member.id));
            let Some(&root) = lowest else {
                continue;
            };
            for member in block.members.iter().filter(|member| member.id != root.id) {
                let place = TiedPlace {
                    root: root.id,
                    offset_bytes: member.begin.abs_diff(root.begin),
                };
                tied.insert(member.id, place);
            }
        }
        tied
    }
}

#[cfg(test)]
mod tests;
