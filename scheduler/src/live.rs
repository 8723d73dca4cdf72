//! When buffers are live: from the first to the last position in its device's lane at which a slot touches each.

use std::collections::BTreeMap;

use zbmd_ir::{
    Action, Buffer, BufferId, ChannelId, DeviceId, Plan, PortChannels, Region, Slot, TiVec, walk,
};

/// Positions in the lane of the first and of the last slot that touch a buffer, and by which stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveRange {
    pub(crate) first: u32,
    pub(crate) last: u32,
    stage: u32,
    one_stage: bool,
}

impl LiveRange {
    /// Whether the buffer lives within one period only, so that it can share memory.
    pub(crate) fn is_transient(self, buffer: &Buffer) -> bool {
        buffer.region == Region::Arena
            && self.one_stage
            && buffer.blocks == 1
            && buffer.head_tokens == 0
    }
}

/// The buffer of each channel on each device that has one.
pub(crate) type BufferIndex = BTreeMap<(ChannelId, DeviceId), BufferId>;

/// Live range of each buffer; `None` where no slot touches it.
pub(crate) type LiveRanges = TiVec<BufferId, Option<LiveRange>>;

pub(crate) fn index_buffers(plan: &Plan) -> BufferIndex {
    let buffers = plan.buffers.iter_enumerated();
    buffers
        .map(|(id, buffer)| ((buffer.channel, buffer.device), id))
        .collect()
}

pub(crate) fn find_live_ranges(
    plan: &Plan,
    ports: &PortChannels,
    buffer_at: &BufferIndex,
) -> LiveRanges {
    let mut finder = LiveRangeFinder {
        plan,
        ports,
        buffer_at,
        ranges: plan.buffers.iter().map(|_| None).collect(),
    };
    for calendar in &plan.calendars {
        for lane in &calendar.lanes {
            for (position, entry) in (0u32..).zip(&lane.entries) {
                walk::visit_slots(std::slice::from_ref(entry), |visit| {
                    finder.add_slot(calendar.device, position, visit.slot);
                });
            }
        }
    }
    finder.ranges
}

struct LiveRangeFinder<'a> {
    plan: &'a Plan,
    ports: &'a PortChannels,
    buffer_at: &'a BufferIndex,
    ranges: LiveRanges,
}

impl LiveRangeFinder<'_> {
    /// Extends the ranges of what a slot touches. A loop is one position, whatever its body does.
    fn add_slot(&mut self, device: DeviceId, position: u32, slot: &Slot) {
        let ports = self.ports;
        match slot.action {
            Action::Fire { actor, .. } => {
                for &(channel, _) in ports.inputs[actor].iter().flatten() {
                    self.extend(channel, device, position, slot.stage);
                }
                for &channel in ports.outputs[actor].iter().flatten() {
                    self.extend(channel, device, position, slot.stage);
                }
            }
            Action::Send { ring, .. } | Action::Recv { ring, .. } | Action::Release { ring } => {
                self.extend(self.plan.rings[ring].channel, device, position, slot.stage);
            }
            Action::Carry { buffer } => {
                self.extend(
                    self.plan.buffers[buffer].channel,
                    device,
                    position,
                    slot.stage,
                );
            }
            // They are no buffer's.
            Action::Fetch { .. } | Action::Await { .. } => {}
        }
    }

    fn extend(&mut self, channel: ChannelId, device: DeviceId, position: u32, stage: u32) {
        let Some(&buffer) = self.buffer_at.get(&(channel, device)) else {
            return;
        };
        let range = self.ranges[buffer].get_or_insert(LiveRange {
            first: position,
            last: position,
            stage,
            one_stage: true,
        });
        range.last = position;
        range.one_stage &= range.stage == stage;
    }
}
