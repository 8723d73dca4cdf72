//! No two things that are live at the same time overlap in a region, but for outputs that are written over inputs:
//! those are one thing, live from the first of them to the last.

use std::collections::BTreeMap;

use super::Cx;
use super::in_place::{InPlace, Over};
use super::order::Live;
use crate::verify::error::{Errors, Memory, VerifyError};
use crate::{BufferId, DeviceId, Region, TiVec};

/// Bytes `[start, end)` during executions `[first, last]`.
struct Block {
    memory: Memory,
    start: u64,
    end: u64,
    first: u64,
    last: u64,
}

/// Sweeps each region over the executions of its device. O(n log n) in the buffers.
pub(super) fn check(
    cx: &Cx<'_>,
    live: &TiVec<BufferId, Option<Live>>,
    over: &InPlace,
    errors: &mut Errors,
) {
    let mut regions: BTreeMap<(DeviceId, Region), Vec<Block>> = BTreeMap::new();
    let always = Live { first: 0, last: u64::MAX };
    let ground = ground(cx, live, over, errors);
    let mut whole: TiVec<BufferId, Option<Block>> = cx.plan.buffers.iter().map(|_| None).collect();
    for (id, buffer) in cx.plan.buffers.iter_enumerated() {
        let Live { first, last } = live[id].unwrap_or(always);
        let (start, end) = (buffer.offset_bytes, buffer.offset_bytes + buffer.size_bytes());
        let memory = Memory::Buffer(ground[id]);
        let block = whole[ground[id]].get_or_insert(Block { memory, start, end, first, last });
        block.end = block.end.max(end);
        block.first = block.first.min(first);
        block.last = block.last.max(last);
    }
    for (id, block) in whole.into_iter_enumerated().filter_map(|(id, b)| Some((id, b?))) {
        let buffer = &cx.plan.buffers[id];
        regions.entry((buffer.device, buffer.region)).or_default().push(block);
    }
    for calendar in cx.plan.calendars.iter().filter(|c| c.scratch_bytes > 0) {
        let start = calendar.scratch_offset_bytes;
        let end = start + calendar.scratch_bytes;
        let block =
            Block { memory: Memory::Scratch, start, end, first: always.first, last: always.last };
        regions.entry((calendar.device, Region::Arena)).or_default().push(block);
    }
    for ((device, region), mut blocks) in regions {
        blocks.sort_by_key(|b| (b.first, b.start, b.memory));
        sweep(cx, device, region, &blocks, errors);
    }
}

/// One buffer for all that are written over each other, itself for any other. Reports those that live longer than the
/// slots of one period, in which what lies over another would destroy what the next period reads.
fn ground(
    cx: &Cx<'_>,
    live: &TiVec<BufferId, Option<Live>>,
    over: &InPlace,
    errors: &mut Errors,
) -> TiVec<BufferId, BufferId> {
    let mut ground: TiVec<BufferId, BufferId> = live.keys().collect();
    for &Over { actor, below, above, .. } in &over.list {
        if let Some(kept) = [below, above].into_iter().find(|&b| live[b].is_none()) {
            let plan = cx.id;
            errors.push(VerifyError::InPlaceKept { plan, actor, above, below, kept });
        }
        let (upper, lower) = (root(&mut ground, above), root(&mut ground, below));
        ground[upper] = lower;
    }
    live.keys().map(|id| root(&mut ground, id)).collect()
}

/// Follows a forest to a root, halving the way for those who come next.
fn root(ground: &mut TiVec<BufferId, BufferId>, mut id: BufferId) -> BufferId {
    while ground[id] != id {
        ground[id] = ground[ground[id]];
        id = ground[id];
    }
    id
}

fn sweep(cx: &Cx<'_>, device: DeviceId, region: Region, blocks: &[Block], errors: &mut Errors) {
    // By start: disjoint at all times, as one that overlaps is reported and left out.
    let mut live: BTreeMap<u64, &Block> = BTreeMap::new();
    let mut ends: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for block in blocks {
        while let Some((&key, &start)) =
            ends.first_key_value().filter(|((last, _), _)| *last < block.first)
        {
            ends.remove(&key);
            live.remove(&start);
        }
        let before =
            live.range(..=block.start).next_back().map(|(_, b)| *b).filter(|b| b.end > block.start);
        let after =
            live.range(block.start..).next().map(|(_, b)| *b).filter(|b| b.start < block.end);
        let overlap = match (before, after) {
            (Some(other), _) => Some((other, block)),
            (None, Some(other)) => Some((block, other)),
            (None, None) => None,
        };
        match overlap {
            Some((first, second)) => errors.push(VerifyError::Overlap {
                plan: cx.id,
                device,
                region,
                first: first.memory,
                first_end: first.end,
                second: second.memory,
                second_start: second.start,
            }),
            None => {
                live.insert(block.start, block);
                ends.insert((block.last, block.start), block.start);
            }
        }
    }
}
