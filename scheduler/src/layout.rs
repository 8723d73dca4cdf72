//! Offsets: every buffer's place in its region, from live ranges, outputs over inputs where actors may write in place.

use std::collections::BTreeMap;

use zbmd_ir::{BufferId, Calendar, ChannelId, DeviceId, Plan, Region, limits};

use crate::error::ScheduleError;
use crate::in_place::{self, Ties};
use crate::live::{LiveRanges, find_live_ranges, index_buffers};
use crate::offsets::{self, Alias, ConflictVerdict, Item, ItemLayout, LayoutLimits};
use crate::parts::TiedBuffers;
use crate::problem::BlockProblem;

/// Steps of branch and bound for one device: tens of milliseconds at most, as many candidate plans are laid out.
const STEPS: u64 = 200_000;

/// Sets all offsets and the sizes of the regions.
///
/// Buffers that live across periods come first; those that live within one share memory by their live ranges.
///
/// # Errors
/// [`ScheduleError::Memory`] where a device's memory or the user's bound is exceeded.
pub(crate) fn lay_out(problem: &BlockProblem<'_>, plan: &mut Plan) -> Result<(), ScheduleError> {
    let buffer_at = index_buffers(plan);
    let live_ranges = find_live_ranges(plan, problem.ports, &buffer_at);
    let ties = in_place::find(problem, plan, &buffer_at, &live_ranges);

    let mut buffers_of: BTreeMap<DeviceId, Vec<BufferId>> = BTreeMap::new();
    for (id, buffer) in plan.buffers.iter_enumerated() {
        buffers_of.entry(buffer.device).or_default().push(id);
    }
    for index in 0..plan.calendars.len() {
        let device = plan.calendars[index].device;
        let buffers = buffers_of.remove(&device).unwrap_or_default();
        let tied = lay_out_device(plan, index, &buffers, &live_ranges, &ties);

        let calendar = &plan.calendars[index];
        let Err(excess) = check_memory(problem, calendar) else {
            continue;
        };
        let limit_bytes = excess.limit_bytes;
        return Err(ScheduleError::Memory {
            device: calendar.device,
            needed_bytes: excess.needed_bytes,
            limit_bytes,
            block: problem.block,
            conflict: find_conflict(plan, calendar, &live_ranges, tied, limit_bytes),
        });
    }
    Ok(())
}

/// Sets the offsets of one calendar's buffers, in id order, and its sizes; returns which buffers are tied.
fn lay_out_device<'t>(
    plan: &mut Plan,
    index: usize,
    buffers: &[BufferId],
    live_ranges: &LiveRanges,
    ties: &'t Ties,
) -> &'t TiedBuffers {
    let device = plan.calendars[index].device;
    let mut permanent = Vec::new();
    let mut transient = Vec::new();
    let mut exchange_bytes = 0u64;

    for &id in buffers {
        let buffer = &mut plan.buffers[id];
        match (buffer.region, live_ranges[id]) {
            (Region::Exchange, _) => {
                buffer.offset_bytes = exchange_bytes;
                exchange_bytes = exchange_bytes.saturating_add(buffer.size_bytes());
            }
            (Region::Arena, Some(range)) if range.is_transient(buffer) => {
                transient.push(TransientBuffer {
                    id,
                    item: layout_item(range.first, range.last, buffer.size_bytes()),
                });
            }
            (Region::Arena, _) => permanent.push(id),
        }
    }

    // What lives across periods shares with nothing.
    let mut permanent_bytes = 0u64;
    for id in permanent {
        plan.buffers[id].offset_bytes = permanent_bytes;
        permanent_bytes = permanent_bytes.saturating_add(plan.buffers[id].size_bytes());
    }

    let shared = share_memory(&transient, ties, device);
    for (buffer, offset) in transient.iter().zip(shared.layout.offsets) {
        plan.buffers[buffer.id].offset_bytes = permanent_bytes.saturating_add(offset);
    }

    // Scratch memory lies above all buffers.
    let calendar = &mut plan.calendars[index];
    calendar.scratch_offset_bytes = permanent_bytes.saturating_add(shared.layout.size);
    calendar.scratch_bytes = calendar.scratch_bytes.next_multiple_of(limits::ALIGN_BYTES);
    calendar.arena_bytes = calendar
        .scratch_offset_bytes
        .saturating_add(calendar.scratch_bytes);
    calendar.exchange_bytes = exchange_bytes;
    shared.tied
}

struct MemoryExcess {
    needed_bytes: u64,
    limit_bytes: u64,
}

fn check_memory(problem: &BlockProblem<'_>, calendar: &Calendar) -> Result<(), MemoryExcess> {
    let needed_bytes = calendar.arena_bytes.saturating_add(calendar.exchange_bytes);
    let device_bytes = problem.machine.devices[calendar.device].memory_bytes;
    let max_bytes = problem.options.max_memory_bytes.unwrap_or(u64::MAX);
    let limit_bytes = device_bytes.min(max_bytes).min(limits::MAX_ARENA_BYTES);

    if needed_bytes > limit_bytes {
        return Err(MemoryExcess {
            needed_bytes,
            limit_bytes,
        });
    }
    Ok(())
}

/// Channels whose buffers cannot lie on the device together, as few as can be found; none if that is not settled
/// within the steps.
fn find_conflict(
    plan: &Plan,
    calendar: &Calendar,
    live_ranges: &LiveRanges,
    tied: &TiedBuffers,
    limit_bytes: u64,
) -> Vec<ChannelId> {
    let mut ids = Vec::new();
    let mut channels = Vec::new();
    let mut items = Vec::new();
    for (id, buffer) in plan.buffers.iter_enumerated() {
        if buffer.device != calendar.device {
            continue;
        }
        let transient_range = live_ranges[id].filter(|range| range.is_transient(buffer));
        let (first, last) =
            transient_range.map_or((0, u32::MAX), |range| (range.first, range.last));
        ids.push(id);
        channels.push(buffer.channel);
        items.push(layout_item(first, last, buffer.size_bytes()));
    }
    tie_items(&mut items, &ids, tied);

    // Scratch memory is there whatever the buffers are.
    let capacity = limit_bytes.saturating_sub(calendar.scratch_bytes);
    match offsets::conflict(&items, capacity, STEPS) {
        Ok(ConflictVerdict::Conflict { items, .. }) => {
            items.into_iter().map(|index| channels[index]).collect()
        }
        _ => Vec::new(),
    }
}

/// Ties the items of buffers that lie in one block.
fn tie_items(items: &mut [Item], ids: &[BufferId], tied: &TiedBuffers) {
    let index_of: BTreeMap<BufferId, usize> = ids
        .iter()
        .enumerate()
        .map(|(index, &id)| (id, index))
        .collect();

    for (item, id) in items.iter_mut().zip(ids) {
        item.alias = tied.get(id).and_then(|place| {
            Some(Alias {
                item: *index_of.get(&place.root)?,
                offset: place.offset_bytes,
            })
        });
    }
}

fn layout_item(first: u32, last: u32, size: u64) -> Item {
    // A buffer whose last use is the very slot that writes another is still read meanwhile.
    let end = u64::from(last) + 1;
    Item {
        align: limits::ALIGN_BYTES,
        ..Item::new(first.into(), end, size)
    }
}

/// A buffer that lives within one period.
struct TransientBuffer {
    id: BufferId,
    item: Item,
}

/// How the transient buffers of one device share memory.
struct SharedLayout<'t> {
    tied: &'t TiedBuffers,
    layout: ItemLayout,
}

/// Lays out buffers that live within one period: with parts in wholes, or without where that needs fewer bytes.
fn share_memory<'t>(
    transient: &[TransientBuffer],
    ties: &'t Ties,
    device: DeviceId,
) -> SharedLayout<'t> {
    let with_parts = lay_out_tied(transient, &ties.all);

    // No layout without parts is smaller than the largest sum of bytes that are live at a moment.
    let Some(&peak_bytes) = ties.peak_bytes.get(&device) else {
        return with_parts;
    };
    if with_parts.layout.size <= peak_bytes {
        return with_parts;
    }
    let without_parts = lay_out_tied(transient, &ties.without_parts);
    match without_parts.layout.size < with_parts.layout.size {
        true => without_parts,
        false => with_parts,
    }
}

fn lay_out_tied<'t>(transient: &[TransientBuffer], tied: &'t TiedBuffers) -> SharedLayout<'t> {
    let ids: Vec<BufferId> = transient.iter().map(|buffer| buffer.id).collect();
    let mut items: Vec<Item> = transient.iter().map(|buffer| buffer.item).collect();
    tie_items(&mut items, &ids, tied);

    let limits = LayoutLimits {
        capacity: None,
        steps: STEPS,
    };
    let layout = offsets::solve(&items, &limits);
    SharedLayout {
        tied,
        // What reaches beyond any address needs all bytes that there are: no device has them.
        layout: layout.unwrap_or_else(|_| ItemLayout {
            offsets: vec![0; items.len()],
            size: u64::MAX,
            lower_bound: 0,
            nodes: 0,
        }),
    }
}
