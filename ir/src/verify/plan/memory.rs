//! No two things that are live at the same time overlap in a region.

use std::collections::BTreeMap;

use super::Cx;
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
pub(super) fn check(cx: &Cx<'_>, live: &TiVec<BufferId, Option<Live>>, errors: &mut Errors) {
    let mut regions: BTreeMap<(DeviceId, Region), Vec<Block>> = BTreeMap::new();
    let always = Live { first: 0, last: u64::MAX };
    for (id, buffer) in cx.plan.buffers.iter_enumerated() {
        let Live { first, last } = live[id].unwrap_or(always);
        let (start, end) = (buffer.offset_bytes, buffer.offset_bytes + buffer.size_bytes());
        let block = Block { memory: Memory::Buffer(id), start, end, first, last };
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
