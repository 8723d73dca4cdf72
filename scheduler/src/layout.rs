//! Offsets: every buffer's place in its region, from live ranges, outputs over inputs where actors may write in place.

use std::collections::BTreeMap;

use zbmd_ir::{
    Action, Buffer, BufferId, Calendar, ChannelId, DeviceId, Entry, Plan, Region, TiVec, limits,
};

use crate::ScheduleError;
use crate::in_place::{self, Tied, Ties};
use crate::offsets::{self, Alias, Item, Layout, Limits, Verdict};
use crate::problem::Problem;

/// First and last position in the lane at which a buffer is touched, and by which stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) first: u32,
    pub(crate) last: u32,
    stage: u32,
    one_stage: bool,
}

/// Sets all offsets and the sizes of the regions.
///
/// Buffers that live across periods come first; those that live within one share memory by their live ranges.
///
/// # Errors
/// [`ScheduleError::Memory`] where a device's memory or the user's bound is exceeded.
pub(crate) fn lay_out(problem: &Problem<'_>, plan: &mut Plan) -> Result<(), ScheduleError> {
    let mut at: BTreeMap<(ChannelId, DeviceId), BufferId> = BTreeMap::new();
    for (id, buffer) in plan.buffers.iter_enumerated() {
        at.insert((buffer.channel, buffer.device), id);
    }
    let mut touches: TiVec<BufferId, Option<Touch>> = plan.buffers.iter().map(|_| None).collect();
    for calendar in &plan.calendars {
        for lane in &calendar.lanes {
            for (position, entry) in lane.entries.iter().enumerate() {
                touch(
                    problem,
                    plan,
                    &at,
                    calendar.device,
                    position as u32,
                    entry,
                    &mut touches,
                );
            }
        }
    }
    let ties = in_place::find(problem, plan, &at, &touches);
    for index in 0..plan.calendars.len() {
        let device = plan.calendars[index].device;
        let mut always = Vec::new();
        let mut transient = Vec::new();
        let mut exchange = 0u64;
        for (id, buffer) in plan
            .buffers
            .iter_mut_enumerated()
            .filter(|(_, b)| b.device == device)
        {
            match (buffer.region, touches[id]) {
                (Region::Exchange, _) => {
                    buffer.offset_bytes = exchange;
                    exchange = exchange.saturating_add(buffer.size_bytes());
                }
                (Region::Arena, Some(t)) if is_transient(buffer, t) => {
                    transient.push((t.first, t.last, id));
                }
                (Region::Arena, _) => always.push(id),
            }
        }
        let mut base = 0u64;
        for id in always {
            plan.buffers[id].offset_bytes = base;
            base = base.saturating_add(plan.buffers[id].size_bytes());
        }
        let (tied, layout) = share(plan, device, &transient, &ties);
        for ((_, _, id), offset) in transient.iter().zip(layout.offsets) {
            plan.buffers[*id].offset_bytes = base.saturating_add(offset);
        }
        let top = base.saturating_add(layout.size);
        let calendar = &mut plan.calendars[index];
        calendar.scratch_offset_bytes = top;
        calendar.scratch_bytes = calendar.scratch_bytes.next_multiple_of(limits::ALIGN_BYTES);
        calendar.arena_bytes = top.saturating_add(calendar.scratch_bytes);
        calendar.exchange_bytes = exchange;
        let calendar = &plan.calendars[index];
        check_memory(problem, calendar).map_err(|excess| ScheduleError::Memory {
            device,
            needed_bytes: excess.needed_bytes,
            limit_bytes: excess.limit_bytes,
            block: problem.block,
            conflict: conflict(plan, calendar, &touches, tied, excess.limit_bytes),
        })?;
    }
    Ok(())
}

struct Excess {
    needed_bytes: u64,
    limit_bytes: u64,
}

/// Channels whose buffers cannot lie on the device together, as few as can be found; none if that is not settled
/// within the steps.
fn conflict(
    plan: &Plan,
    calendar: &Calendar,
    touches: &TiVec<BufferId, Option<Touch>>,
    tied: &Tied,
    limit_bytes: u64,
) -> Vec<ChannelId> {
    let mine = || {
        plan.buffers
            .iter_enumerated()
            .filter(|(_, b)| b.device == calendar.device)
    };
    let mut items: Vec<Item> = mine()
        .map(
            |(id, buffer)| match touches[id].filter(|t| is_transient(buffer, *t)) {
                Some(t) => item(t.first, t.last, buffer.size_bytes()),
                None => item(0, u32::MAX, buffer.size_bytes()),
            },
        )
        .collect();
    let ids: Vec<BufferId> = mine().map(|(id, _)| id).collect();
    tie(&mut items, &ids, tied);
    let capacity = limit_bytes.saturating_sub(calendar.scratch_bytes);
    match offsets::conflict(&items, capacity, STEPS) {
        Ok(Verdict::Conflict { items, .. }) => {
            let channels: Vec<ChannelId> = mine().map(|(_, b)| b.channel).collect();
            items.into_iter().map(|i| channels[i]).collect()
        }
        _ => Vec::new(),
    }
}

/// Ties the items of buffers that lie in one block.
fn tie(items: &mut [Item], ids: &[BufferId], tied: &Tied) {
    let index: BTreeMap<BufferId, usize> = ids.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    for (item, id) in items.iter_mut().zip(ids) {
        let alias = |&(root, offset)| {
            Some(Alias {
                item: *index.get(&root)?,
                offset,
            })
        };
        item.alias = tied.get(id).and_then(alias);
    }
}

/// Whether a buffer lives within one period only, so that it can share memory.
pub(crate) fn is_transient(buffer: &Buffer, touch: Touch) -> bool {
    buffer.region == Region::Arena
        && touch.one_stage
        && buffer.blocks == 1
        && buffer.head_tokens == 0
}

fn item(first: u32, last: u32, size: u64) -> Item {
    // A buffer whose last use is the very slot that writes another is still read meanwhile.
    let item = Item::new(first.into(), u64::from(last) + 1, size);
    Item {
        align: limits::ALIGN_BYTES,
        ..item
    }
}

fn check_memory(problem: &Problem<'_>, calendar: &Calendar) -> Result<(), Excess> {
    let needed_bytes = calendar.arena_bytes.saturating_add(calendar.exchange_bytes);
    let device = calendar.device;
    let own = problem.machine.devices[device].memory_bytes;
    let limit_bytes = problem
        .options
        .max_memory_bytes
        .map_or(own, |bound| bound.min(own))
        .min(limits::MAX_ARENA_BYTES);
    if needed_bytes > limit_bytes {
        return Err(Excess {
            needed_bytes,
            limit_bytes,
        });
    }
    Ok(())
}

fn touch(
    problem: &Problem<'_>,
    plan: &Plan,
    at: &BTreeMap<(ChannelId, DeviceId), BufferId>,
    device: DeviceId,
    position: u32,
    entry: &Entry,
    touches: &mut TiVec<BufferId, Option<Touch>>,
) {
    let slot = match entry {
        Entry::Slot(slot) => slot,
        Entry::Loop { body, .. } => {
            for entry in body {
                touch(problem, plan, at, device, position, entry, touches);
            }
            return;
        }
    };
    let mut mark = |channel: ChannelId| {
        let Some(&id) = at.get(&(channel, device)) else {
            return;
        };
        let entry = touches[id].get_or_insert(Touch {
            first: position,
            last: position,
            stage: slot.stage,
            one_stage: true,
        });
        entry.last = position;
        entry.one_stage &= entry.stage == slot.stage;
    };
    match slot.action {
        Action::Fire { actor, .. } => {
            problem.ports.inputs[actor]
                .iter()
                .flatten()
                .for_each(|&(channel, _)| mark(channel));
            problem.ports.outputs[actor]
                .iter()
                .flatten()
                .for_each(|&channel| mark(channel));
        }
        Action::Send { ring, .. } | Action::Recv { ring, .. } | Action::Release { ring } => {
            mark(plan.rings[ring].channel)
        }
        Action::Carry { buffer } => mark(plan.buffers[buffer].channel),
    }
}

/// Steps of branch and bound for one device: tens of milliseconds at most, as many candidate plans are laid out.
const STEPS: u64 = 200_000;

/// Lays out buffers that live within one period: with parts in wholes, or without where that needs fewer bytes. Says
/// which of them are tied.
fn share<'t>(
    plan: &Plan,
    device: DeviceId,
    live: &[(u32, u32, BufferId)],
    ties: &'t Ties,
) -> (&'t Tied, Layout) {
    let solve = |tied: &'t Tied| {
        let sizes = live
            .iter()
            .map(|&(first, last, id)| item(first, last, plan.buffers[id].size_bytes()));
        let mut items: Vec<Item> = sizes.collect();
        let ids: Vec<BufferId> = live.iter().map(|&(_, _, id)| id).collect();
        tie(&mut items, &ids, tied);
        // Beyond any address it needs all bytes that there are.
        let beyond = Layout {
            offsets: vec![0; live.len()],
            size: u64::MAX,
            lower_bound: 0,
            nodes: 0,
        };
        (
            tied,
            offsets::solve(
                &items,
                &Limits {
                    capacity: None,
                    steps: STEPS,
                },
            )
            .unwrap_or(beyond),
        )
    };
    let best = solve(&ties.tied);
    match ties.peaks.get(&device) {
        // No layout without parts is smaller than the most that is live at a moment.
        Some(&peak) if best.1.size > peak => {
            let without = solve(&ties.whole);
            if without.1.size < best.1.size {
                without
            } else {
                best
            }
        }
        _ => best,
    }
}
