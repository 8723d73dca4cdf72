//! The plan at work as lanes of slots, for whoever draws it.

use serde::Serialize;
use zbmd_ir::{Action, Entry, Graph, Plan};

use super::control::CurrentEpoch;
use super::probe::ProbeHandle;

/// Slots of a lane that are listed at most.
const MAX_SLOTS: usize = 4096;

/// The plan that a run follows now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlannedLanes {
    /// Its name.
    pub plan: String,
    /// The planned period.
    pub period_ns: u64,
    /// The lanes of its devices, in order.
    pub lanes: Vec<PlannedLane>,
}

/// What one device is planned to do in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlannedLane {
    /// The device.
    pub device: String,
    /// Whether [`ProbeHandle::slot_times`] says when its slots end.
    pub is_measured: bool,
    /// Slots in the order of the calendar, whose numbers those times have; only the first thousands. One in a loop stands
    /// for all of its executions: where the first begins, and how long all take.
    pub slots: Vec<PlannedSlot>,
}

/// A slot of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlannedSlot {
    /// The actor that it fires, or what else it does.
    pub name: String,
    /// Its planned start after that of the period.
    pub start_ns: u64,
    /// Its planned duration.
    pub duration_ns: u64,
}

impl ProbeHandle {
    /// The plan at work; `None` before the first, and of a run that has ended.
    pub fn lanes(&self) -> Option<PlannedLanes> {
        let current = self.control.current();
        current.as_ref().map(planned_lanes)
    }
}

fn planned_lanes(current: &CurrentEpoch) -> PlannedLanes {
    let program = &current.loaded.program;
    let plan = &program.plans[current.spec.plan];
    let calendars = plan.calendars.iter().zip(&current.spec.devices);
    let lanes = calendars.map(|(calendar, device)| {
        let mut slots = Vec::new();
        for lane in &calendar.lanes {
            add_slots(&program.graph, plan, &lane.entries, 1, &mut slots);
        }
        PlannedLane {
            device: program.machine.devices[*device].name.clone(),
            is_measured: !current.loaded.is_gpu(*device),
            slots,
        }
    });
    PlannedLanes {
        plan: plan.name.clone(),
        period_ns: plan.period_ns,
        lanes: lanes.collect(),
    }
}

fn add_slots(
    graph: &Graph,
    plan: &Plan,
    entries: &[Entry],
    times: u64,
    slots: &mut Vec<PlannedSlot>,
) {
    for entry in entries {
        if slots.len() >= MAX_SLOTS {
            return;
        }
        match entry {
            Entry::Loop { count, body } => {
                add_slots(graph, plan, body, times.saturating_mul(*count), slots);
            }
            Entry::Slot(slot) => slots.push(PlannedSlot {
                name: slot_name(graph, plan, slot.action),
                start_ns: slot.start_ns,
                duration_ns: slot.duration_ns.saturating_mul(times),
            }),
        }
    }
}

fn slot_name(graph: &Graph, plan: &Plan, action: Action) -> String {
    match action {
        Action::Fire { actor, .. } => graph.actors[actor].name.clone(),
        Action::Send { ring, .. } => format!("send {}", plan.rings[ring].channel),
        Action::Recv { ring, .. } => format!("receive {}", plan.rings[ring].channel),
        Action::Release { ring } => format!("release {}", plan.rings[ring].channel),
        Action::Carry { buffer } => format!("carry {}", plan.buffers[buffer].channel),
        Action::Fetch { actor, .. } => format!("fetch weights of {}", graph.actors[actor].name),
        Action::Await { actor } => format!("await weights of {}", graph.actors[actor].name),
    }
}
