//! No two things that are live at the same time overlap in a region.
//!
//! Of an execution there are two moments: one in which a slot reads and writes, and the one after it. Bytes that an
//! actor writes over its input change hands there: to the larger of the two buffers for the actor's executions, before
//! which the input has them and after which the output. So a part gives way to the whole: an input in an output is over
//! one moment before the actor begins, an output in an input begins one moment after the (one) execution. Whatever else
//! lies there meets one of the three, two parts in the same place meet each other, and no pair needs a rule of its own.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::Cx;
use super::order::Live;
use super::weights::LiveWeights;
use crate::verify::error::{Errors, Memory, VerifyError};
use crate::{BufferId, DeviceId, Over, Region, TiVec};

/// Bytes `[start, end)` during moments `[first, last]`.
struct LiveBlock {
    memory: Memory,
    start: u64,
    end: u64,
    first: u64,
    last: u64,
}

const ALWAYS: (u64, u64) = (0, u64::MAX);

/// Sweeps each region over the executions of its device. O(n log n) in the buffers.
pub(super) fn check(
    cx: &Cx<'_>,
    live: &TiVec<BufferId, Option<Live>>,
    weights: &[LiveWeights],
    over: &[Over],
    errors: &mut Errors,
) {
    let mut blocks_by_region: BTreeMap<(DeviceId, Region), Vec<LiveBlock>> = BTreeMap::new();
    let moments = find_moments(cx, live, over, errors);
    for (id, buffer) in cx.plan.buffers.iter_enumerated() {
        let (first, last) = moments[id];

        // Empty only where something has been read before it was written.
        if first <= last {
            let place = (buffer.device, buffer.region);
            blocks_by_region.entry(place).or_default().push(LiveBlock {
                memory: Memory::Buffer(id),
                start: buffer.offset_bytes,
                end: buffer.offset_bytes + buffer.size_bytes(),
                first,
                last,
            });
        }
    }

    // Scratch is used by any kernel: it shares its bytes with nothing.
    for calendar in cx.plan.calendars.iter().filter(|c| c.scratch_bytes > 0) {
        let place = (calendar.device, Region::Arena);
        let (first, last) = ALWAYS;
        blocks_by_region.entry(place).or_default().push(LiveBlock {
            memory: Memory::Scratch,
            start: calendar.scratch_offset_bytes,
            end: calendar.scratch_offset_bytes + calendar.scratch_bytes,
            first,
            last,
        });
    }

    for weights in weights {
        let place = (weights.device, Region::Arena);
        let blocks = blocks_by_region.entry(place).or_default();
        blocks.extend(weights.executions.iter().map(|&(first, last)| LiveBlock {
            memory: Memory::Weights(weights.actor),
            start: weights.start,
            end: weights.end,
            first: first.saturating_mul(2),
            last: last.saturating_mul(2).saturating_add(1),
        }));
    }

    for ((device, region), mut blocks) in blocks_by_region {
        blocks.sort_by_key(|b| (b.first, b.start, b.memory));
        sweep_region(cx, device, region, &blocks, errors);
    }
}

/// First and last moment of each buffer. Reports those that live longer than the slots of one period and are written
/// over or lie over others, which would destroy what the next period reads.
fn find_moments(
    cx: &Cx<'_>,
    live: &TiVec<BufferId, Option<Live>>,
    over: &[Over],
    errors: &mut Errors,
) -> TiVec<BufferId, (u64, u64)> {
    let executions = live.iter();
    let mut moments: TiVec<BufferId, (u64, u64)> = executions
        .map(|live| live.map_or(ALWAYS, |live| (2 * live.first, 2 * live.last + 1)))
        .collect();
    for &Over {
        actor,
        below,
        above,
        fit,
        ..
    } in over
    {
        let (Some(_), Some(output)) = (live[below], live[above]) else {
            let kept = if live[below].is_none() { below } else { above };
            errors.push(VerifyError::InPlaceKept {
                plan: cx.id,
                actor,
                above,
                below,
                kept,
            });
            continue;
        };
        // Nobody but the actor writes the output, so it lives from the actor's first execution on.
        let begin = 2 * output.first;
        match fit {
            Ordering::Less | Ordering::Equal => {
                moments[below].1 = moments[below].1.min(begin.saturating_sub(1));
            }
            Ordering::Greater => {
                moments[below].1 = moments[below].1.min(begin);
                moments[above].0 = moments[above].0.max(begin + 1);
            }
        }
    }

    moments
}

fn sweep_region(
    cx: &Cx<'_>,
    device: DeviceId,
    region: Region,
    blocks: &[LiveBlock],
    errors: &mut Errors,
) {
    // By start: disjoint at all times, as one that overlaps is reported and left out.
    let mut live_blocks: BTreeMap<u64, &LiveBlock> = BTreeMap::new();
    let mut ends_by_last: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for block in blocks {
        while let Some((&key, &start)) = ends_by_last
            .first_key_value()
            .filter(|((last, _), _)| *last < block.first)
        {
            ends_by_last.remove(&key);
            live_blocks.remove(&start);
        }

        // The live blocks are disjoint: only the nearest on either side can overlap.
        let overlap_before = live_blocks
            .range(..=block.start)
            .next_back()
            .map(|(_, b)| *b)
            .filter(|b| b.end > block.start);
        let overlap_after = live_blocks
            .range(block.start..)
            .next()
            .map(|(_, b)| *b)
            .filter(|b| b.start < block.end);
        let overlap = match (overlap_before, overlap_after) {
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
                live_blocks.insert(block.start, block);
                ends_by_last.insert((block.last, block.start), block.start);
            }
        }
    }
}
