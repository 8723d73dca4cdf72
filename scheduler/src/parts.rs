//! Buffers that lie in one block, each at its place: chains of operations in place, concatenations of parts, splits
//! into parts. Knows when buffers live and how large they are, not why they may lie over each other.

use std::collections::BTreeSet;

use zbmd_ir::{BufferId, TiVec};

use crate::in_place::Tied;

/// When a buffer lives, in positions of its lane, both included, and its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) bytes: u64,
}

/// Buffers at fixed distances, as an arena sees them: live from the first of them to the last, from the lowest byte to
/// the highest.
#[derive(Clone, Debug)]
struct Block {
    /// With the byte at which each begins.
    members: Vec<(BufferId, i64)>,
    first: u32,
    last: u32,
    low: i64,
    high: i64,
}

impl Block {
    fn bytes(&self) -> u64 {
        self.low.abs_diff(self.high)
    }

    /// Takes in the members of another, `shift` bytes on.
    fn join(&mut self, other: &Block, shift: i64) {
        self.members
            .extend(other.members.iter().map(|&(id, at)| (id, at + shift)));
        (self.first, self.last) = (self.first.min(other.first), self.last.max(other.last));
        (self.low, self.high) = (
            self.low.min(other.low + shift),
            self.high.max(other.high + shift),
        );
    }
}

/// Bytes live at each position of a lane.
pub(crate) struct Load {
    at: Vec<u64>,
    /// The most that may live at one.
    pub(crate) peak: u64,
}

/// The blocks of all buffers that can be in any.
pub(crate) struct Blocks {
    lives: TiVec<BufferId, Option<Life>>,
    /// Index into `all` of a buffer's block.
    of: TiVec<BufferId, usize>,
    /// Empty once taken into another.
    all: Vec<Block>,
}

/// Pairs of members that are compared for one whole: laying out a candidate plan must stay quick.
const MAX_COMPARED: usize = 1 << 16;
/// Most bytes of a block: as many as there may be add up to less than 63 bits.
const MAX_BYTES: u64 = 1 << 40;

impl Blocks {
    /// Each buffer in a block of its own.
    pub(crate) fn new(mut lives: TiVec<BufferId, Option<Life>>) -> Self {
        for life in lives.iter_mut() {
            *life = life.filter(|l| l.bytes <= MAX_BYTES);
        }
        let block = |(id, life): (BufferId, &Option<Life>)| {
            let life = life.unwrap_or(Life {
                first: 0,
                last: 0,
                bytes: 0,
            });
            let (first, last, high) = (life.first, life.last, life.bytes as i64);
            Block {
                members: vec![(id, 0)],
                first,
                last,
                low: 0,
                high,
            }
        };
        let all = lives.iter_enumerated().map(block).collect();
        let of = lives.keys().map(BufferId::index).collect();
        Self { lives, of, all }
    }

    /// Lays a buffer over one that is as large and goes when it comes. Before anything else is tied: then all members
    /// of a block begin where it does.
    pub(crate) fn lay_over(&mut self, below: BufferId, above: BufferId) {
        let (a, b) = (self.of[below], self.of[above]);
        if a == b || self.lives[below].is_none() || self.lives[above].is_none() {
            return;
        }
        // The smaller into the larger, so that each is moved a logarithm of times.
        let is_less = self.all[a].members.len() < self.all[b].members.len();
        let (home, other) = if is_less { (b, a) } else { (a, b) };
        let taken = std::mem::replace(&mut self.all[other], empty());
        self.all[home].join(&taken, 0);
        taken.members.iter().for_each(|&(id, _)| self.of[id] = home);
    }

    /// For how many positions more memory is taken if a part is tied to a whole.
    pub(crate) fn apart(&self, whole: BufferId, part: BufferId) -> u32 {
        let (Some(whole), Some(part)) = (self.lives[whole], self.lives[part]) else {
            return 0;
        };
        let (before, after) = (
            whole.first.saturating_sub(part.first),
            part.last.saturating_sub(whole.last),
        );
        before.saturating_add(after)
    }

    /// Where a buffer begins in its block.
    fn place(&self, id: BufferId) -> i64 {
        let members = &self.all[self.of[id]].members;
        members
            .iter()
            .find(|(member, _)| *member == id)
            .map_or(0, |(_, at)| *at)
    }

    /// What the blocks of some buffers need of memory.
    pub(crate) fn load(&self, is_mine: impl Fn(BufferId) -> bool) -> Load {
        let mine = |b: &&Block| {
            b.members
                .first()
                .is_some_and(|&(id, _)| self.lives[id].is_some() && is_mine(id))
        };
        let blocks: Vec<&Block> = self.all.iter().filter(mine).collect();
        let positions = blocks
            .iter()
            .map(|b| b.last as usize + 1)
            .max()
            .unwrap_or(0);
        // What comes and goes at each position.
        let mut change = vec![(0u64, 0u64); positions + 1];
        for b in blocks {
            change[b.first as usize].0 += b.bytes();
            change[b.last as usize + 1].1 += b.bytes();
        }
        let mut now = 0u64;
        let at: Vec<u64> = change
            .into_iter()
            .map(|(come, gone)| {
                now = now + come - gone;
                now
            })
            .collect();
        let peak = at.iter().copied().max().unwrap_or(0);
        Load { at, peak }
    }

    /// Ties parts to a whole, at these bytes of it, as far as nothing lies where something else lives; not at all if
    /// more than the peak were live at any position. `meant` are pairs that share bytes as they should: the one below,
    /// the one above, how far apart they begin. Whether anything was tied.
    pub(crate) fn tie(
        &mut self,
        whole: BufferId,
        parts: &[(BufferId, i64)],
        meant: &BTreeSet<(BufferId, BufferId, i64)>,
        load: &mut Load,
    ) -> bool {
        let home = self.of[whole];
        let mut block = self.all[home].clone();
        let mut taken: Vec<(usize, i64)> = Vec::new();
        for &(part, at) in parts {
            let index = self.of[part];
            let new = index != home && taken.iter().all(|(other, _)| *other != index);
            if !new || self.lives[part].is_none() || self.lives[whole].is_none() {
                continue;
            }
            let shift = self.place(whole) + at - self.place(part);
            let other = &self.all[index];
            if self.can_join(&block, other, shift, meant) {
                block.join(other, shift);
                taken.push((index, shift));
            }
        }
        if taken.is_empty() || block.bytes() > MAX_BYTES || !self.bear(home, &taken, &block, load) {
            return false;
        }
        self.all[home] = block;
        for (index, _) in taken {
            let other = std::mem::replace(&mut self.all[index], empty());
            other.members.iter().for_each(|&(id, _)| self.of[id] = home);
        }
        true
    }

    /// Whether no member of one block lies where one of the other lives, unless it is meant to.
    fn can_join(
        &self,
        block: &Block,
        other: &Block,
        shift: i64,
        meant: &BTreeSet<(BufferId, BufferId, i64)>,
    ) -> bool {
        block.members.len().saturating_mul(other.members.len()) <= MAX_COMPARED
            && block.members.iter().all(|&(a, a_at)| {
                other.members.iter().all(|&(b, b_at)| {
                    let b_at = b_at + shift;
                    let (Some(x), Some(y)) = (self.lives[a], self.lives[b]) else {
                        return false;
                    };
                    let apart = x.last < y.first
                        || y.last < x.first
                        || a_at + x.bytes as i64 <= b_at
                        || b_at + y.bytes as i64 <= a_at;
                    apart
                        || meant.contains(&(a, b, b_at - a_at))
                        || meant.contains(&(b, a, a_at - b_at))
                })
            })
    }

    /// Puts a block in the stead of others into the load, if there is no more anywhere than the peak.
    fn bear(&self, home: usize, taken: &[(usize, i64)], block: &Block, load: &mut Load) -> bool {
        let first = block.first as usize;
        let mut now = load.at[first..=block.last as usize].to_vec();
        now.iter_mut().for_each(|load| *load += block.bytes());
        for old in taken
            .iter()
            .map(|(index, _)| *index)
            .chain([home])
            .map(|i| &self.all[i])
        {
            let range = old.first as usize - first..=old.last as usize - first;
            now[range].iter_mut().for_each(|load| *load -= old.bytes());
        }
        let fits = now.iter().all(|&load_now| load_now <= load.peak);
        if fits {
            load.at[first..=block.last as usize].copy_from_slice(&now);
        }
        fits
    }

    /// All that is not alone.
    pub(crate) fn tied(&self) -> Tied {
        let mut tied = Tied::new();
        for block in self.all.iter().filter(|b| b.members.len() > 1) {
            let Some(&(root, low)) = block.members.iter().min_by_key(|&&(id, at)| (at, id)) else {
                continue;
            };
            let others = block.members.iter().filter(|(id, _)| *id != root);
            tied.extend(others.map(|&(id, at)| (id, (root, at.abs_diff(low)))));
        }
        tied
    }
}

fn empty() -> Block {
    Block {
        members: Vec::new(),
        first: 0,
        last: 0,
        low: 0,
        high: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First and last position, and lines of 64 bytes.
    type Buffers<'a> = &'a [(u32, u32, u64)];
    /// A whole, and its parts with the lines at which they begin.
    type Wholes<'a> = &'a [(u32, &'a [(u32, i64)])];

    /// Lines from the start of its block, and the block's first buffer, for each buffer that is tied.
    fn tie(buffers: Buffers<'_>, wholes: Wholes<'_>) -> Vec<(u32, u32, u64)> {
        let life = |&(first, last, lines)| {
            Some(Life {
                first,
                last,
                bytes: 64 * lines,
            })
        };
        let mut blocks = Blocks::new(buffers.iter().map(life).collect());
        let mut load = blocks.load(|_| true);
        let parts = |parts: &[(u32, i64)]| -> Vec<(BufferId, i64)> {
            parts
                .iter()
                .map(|&(part, line)| (BufferId(part), 64 * line))
                .collect()
        };
        let all = wholes.iter().flat_map(|&(whole, list)| {
            let whole = BufferId(whole);
            parts(list)
                .into_iter()
                .flat_map(move |(p, at)| [(p, whole, -at), (whole, p, at)])
        });
        let meant = all.collect();
        for &(whole, list) in wholes {
            if !blocks.tie(BufferId(whole), &parts(list), &meant, &mut load) {
                for part in &parts(list) {
                    blocks.tie(
                        BufferId(whole),
                        std::slice::from_ref(part),
                        &meant,
                        &mut load,
                    );
                }
            }
        }
        blocks
            .tied()
            .into_iter()
            .map(|(id, (root, at))| (id.0, root.0, at / 64))
            .collect()
    }

    #[test]
    fn parts_lie_in_wholes_where_nothing_is_in_the_way() {
        type Case<'a> = (&'a str, Buffers<'a>, Wholes<'a>, &'a [(u32, u32, u64)]);
        let cases: [Case<'_>; 6] = [
            (
                "a concatenation",
                &[(0, 2, 1), (1, 2, 2), (2, 3, 3)],
                &[(2, &[(0, 0), (1, 1)])],
                &[(1, 0, 1), (2, 0, 0)],
            ),
            (
                "the first part is elsewhere",
                &[(1, 2, 2), (2, 3, 3)],
                &[(1, &[(0, 1)])],
                &[(0, 1, 1)],
            ),
            (
                "a split, put together in the same order",
                &[(0, 1, 3), (1, 2, 1), (1, 2, 2), (2, 3, 3)],
                &[(0, &[(1, 0), (2, 1)]), (3, &[(1, 0), (2, 1)])],
                &[(1, 0, 0), (2, 0, 1), (3, 0, 0)],
            ),
            (
                "in the other order only one can stay",
                &[(0, 1, 2), (1, 2, 1), (1, 2, 1), (2, 3, 2)],
                &[(0, &[(1, 0), (2, 1)]), (3, &[(2, 0), (1, 1)])],
                &[(1, 0, 0), (2, 0, 1), (3, 0, 1)],
            ),
            (
                "the second part is still needed when its place is overwritten",
                &[(0, 1, 2), (1, 2, 1), (1, 5, 1), (2, 3, 2)],
                &[(0, &[(1, 0), (2, 1)]), (3, &[(1, 0)])],
                &[(1, 0, 0), (2, 0, 1)],
            ),
            (
                "there is no room for the whole when its first part is made",
                &[(0, 9, 1), (1, 7, 4), (8, 9, 1), (9, 10, 2)],
                &[(3, &[(0, 0), (2, 1)])],
                &[(2, 3, 1)],
            ),
        ];
        for (name, buffers, wholes, expected) in cases {
            assert_eq!(tie(buffers, wholes), expected, "{name}");
        }
    }
}
