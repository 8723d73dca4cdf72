//! Offsets: every buffer's place in its region, from live ranges.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::{
    Action, BufferId, Calendar, ChannelId, DeviceId, Entry, Plan, Region, TiVec, limits,
};

use crate::ScheduleError;
use crate::problem::Problem;

/// First and last position in the lane at which a buffer is touched, and by which stages.
#[derive(Clone, Copy, Debug)]
struct Touch {
    first: u32,
    last: u32,
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
                touch(problem, plan, &at, calendar.device, position as u32, entry, &mut touches);
            }
        }
    }
    for index in 0..plan.calendars.len() {
        let device = plan.calendars[index].device;
        let mut always = Vec::new();
        let mut transient = Vec::new();
        let mut exchange = 0u64;
        for (id, buffer) in plan.buffers.iter_mut_enumerated().filter(|(_, b)| b.device == device) {
            match (buffer.region, touches[id]) {
                (Region::Exchange, _) => {
                    buffer.offset_bytes = exchange;
                    exchange = exchange.saturating_add(buffer.size_bytes());
                }
                (Region::Arena, Some(t))
                    if t.one_stage && buffer.blocks == 1 && buffer.head_tokens == 0 =>
                {
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
        let top = base.saturating_add(share(plan, base, transient));
        let calendar = &mut plan.calendars[index];
        calendar.scratch_offset_bytes = top;
        calendar.scratch_bytes = calendar.scratch_bytes.next_multiple_of(limits::ALIGN_BYTES);
        calendar.arena_bytes = top.saturating_add(calendar.scratch_bytes);
        calendar.exchange_bytes = exchange;
        check_memory(problem, calendar)?;
    }
    Ok(())
}

fn check_memory(problem: &Problem<'_>, calendar: &Calendar) -> Result<(), ScheduleError> {
    let needed_bytes = calendar.arena_bytes.saturating_add(calendar.exchange_bytes);
    let device = calendar.device;
    let own = problem.machine.devices[device].memory_bytes;
    let limit_bytes = problem
        .options
        .max_memory_bytes
        .map_or(own, |bound| bound.min(own))
        .min(limits::MAX_ARENA_BYTES);
    if needed_bytes > limit_bytes {
        return Err(ScheduleError::Memory {
            device,
            needed_bytes,
            limit_bytes,
            block: problem.block,
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
        let Some(&id) = at.get(&(channel, device)) else { return };
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
            problem.ports.inputs[actor].iter().flatten().for_each(|&(channel, _)| mark(channel));
            problem.ports.outputs[actor].iter().flatten().for_each(|&channel| mark(channel));
        }
        Action::Send { ring, .. } | Action::Recv { ring, .. } | Action::Release { ring } => {
            mark(plan.rings[ring].channel)
        }
        Action::Carry { buffer } => mark(plan.buffers[buffer].channel),
    }
}

/// Free stretches of memory above a base, by offset and by size.
struct Free {
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    top: u64,
}

impl Free {
    fn insert(&mut self, mut offset: u64, mut size: u64) {
        if let Some((&before, &len)) = self.by_offset.range(..offset).next_back()
            && before + len == offset
        {
            self.remove(before, len);
            (offset, size) = (before, size + len);
        }
        if let Some(&len) = self.by_offset.get(&(offset + size)) {
            self.remove(offset + size, len);
            size += len;
        }
        if offset + size == self.top {
            self.top = offset;
            return;
        }
        self.by_offset.insert(offset, size);
        self.by_size.insert((size, offset));
    }

    fn remove(&mut self, offset: u64, size: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(size, offset));
    }

    /// The smallest stretch that fits, else the top.
    fn take(&mut self, size: u64) -> u64 {
        if let Some(&(len, offset)) = self.by_size.range((size, 0)..).next() {
            self.remove(offset, len);
            if len > size {
                self.by_offset.insert(offset + size, len - size);
                self.by_size.insert((len - size, offset + size));
            }
            return offset;
        }
        let offset = self.top;
        self.top = self.top.saturating_add(size);
        offset
    }
}

/// Best fit in order of first use, freeing after the last. Returns the bytes needed above `base`. O(n log n).
fn share(plan: &mut Plan, base: u64, mut live: Vec<(u32, u32, BufferId)>) -> u64 {
    live.sort_unstable();
    let mut free = Free { by_offset: BTreeMap::new(), by_size: BTreeSet::new(), top: 0 };
    let mut ends: BTreeSet<(u32, BufferId)> = BTreeSet::new();
    let mut peak = 0;
    for (first, last, id) in live {
        // A buffer whose last use is this very slot is still read while the new one is written.
        while let Some(&(end, old)) = ends.first().filter(|(end, _)| *end < first) {
            ends.remove(&(end, old));
            free.insert(plan.buffers[old].offset_bytes - base, plan.buffers[old].size_bytes());
        }
        let size = plan.buffers[id].size_bytes();
        plan.buffers[id].offset_bytes = base + free.take(size);
        ends.insert((last, id));
        peak = peak.max(free.top);
    }
    peak
}
