//! Calendars: one for each device with actors, one compute lane, loops, ids and stages of slots.

use std::collections::BTreeMap;

use super::cursor::{Begin, Flat, Node};
use super::{Cx, Lanes, Stages};
use crate::limits::{MAX_LOOP_DEPTH, MAX_SLOT_EXECUTIONS, MAX_STAGES};
use crate::verify::error::{Errors, VerifyError};
use crate::{Action, ActorId, Calendar, DeviceId, Entry, LaneKind, Slot};

/// Checks the calendars and flattens their lanes; `None` if they cannot be run through.
pub(super) fn check<'a>(cx: &Cx<'a>, errors: &mut Errors) -> Option<Lanes<'a>> {
    let before = errors.found();
    let plan = cx.id;
    let mut actors: BTreeMap<DeviceId, ActorId> = BTreeMap::new();
    for (actor, &device) in cx.plan.placement.iter_enumerated() {
        actors.entry(device).or_insert(actor);
    }
    let devices = cx.machine.devices.len();
    let mut list = Vec::new();
    let mut before_device = None;
    let mut idle: Vec<DeviceId> = Vec::new();
    for calendar in &cx.plan.calendars {
        let device = calendar.device;
        if device.index() >= devices {
            errors.push(VerifyError::CalendarDevice {
                plan,
                device,
                devices,
            });
            continue;
        }
        if let Some(before) = before_device.replace(device).filter(|&b| b >= device) {
            errors.push(VerifyError::CalendarOrder {
                plan,
                before,
                device,
            });
        }
        if !actors.contains_key(&device) {
            idle.push(device);
        }
        if let Some(flat) = lane(cx, calendar, errors) {
            list.push((device, flat));
        }
    }
    for device in idle {
        errors.push(VerifyError::CalendarIdle { plan, device });
    }
    for calendar in &cx.plan.calendars {
        actors.remove(&calendar.device);
    }
    for (device, actor) in actors {
        errors.push(VerifyError::CalendarMissing {
            plan,
            device,
            actor,
        });
    }
    errors.limit(
        || format!("stages of {plan}"),
        cx.plan.stages.into(),
        MAX_STAGES.into(),
    );
    (errors.found() == before).then_some(Lanes { list })
}

fn lane<'a>(cx: &Cx<'a>, calendar: &'a Calendar, errors: &mut Errors) -> Option<Flat<'a>> {
    let (plan, device) = (cx.id, calendar.device);
    let [lane] = calendar.lanes.as_slice() else {
        errors.push(VerifyError::Lanes {
            plan,
            device,
            lanes: calendar.lanes.len(),
        });
        return None;
    };
    if lane.kind != LaneKind::Compute {
        errors.push(VerifyError::Lanes {
            plan,
            device,
            lanes: 1,
        });
        return None;
    }
    let before = errors.found();
    let mut flattening = Flattening {
        cx,
        device,
        flat: Flat::default(),
        slots: 0,
        executions: 0,
        errors,
    };
    flattening.entries(&lane.entries, 0, 1);
    let (flat, executions) = (flattening.flat, flattening.executions);
    errors.limit(
        || format!("slot executions on {device} of {plan}"),
        executions.into(),
        MAX_SLOT_EXECUTIONS.into(),
    );
    (errors.found() == before).then_some(flat)
}

struct Flattening<'c, 'a> {
    cx: &'c Cx<'a>,
    device: DeviceId,
    flat: Flat<'a>,
    slots: usize,
    executions: u64,
    errors: &'c mut Errors,
}

impl<'a> Flattening<'_, 'a> {
    /// Recursion ends at [`MAX_LOOP_DEPTH`].
    fn entries(&mut self, entries: &'a [Entry], depth: usize, times: u64) {
        let (plan, device) = (self.cx.id, self.device);
        for entry in entries {
            if self.errors.full() {
                return;
            }
            match entry {
                Entry::Slot(slot) => {
                    let index = self.slots;
                    self.slots += 1;
                    self.executions = self.executions.saturating_add(times);
                    self.slot(slot, index, depth, times);
                    self.flat.nodes.push(Node::Slot {
                        slot,
                        index,
                        executions: times,
                    });
                }
                Entry::Loop { count, body } => {
                    let fits = self.errors.limit(
                        || format!("loop depth on {device} of {plan}"),
                        depth as u128 + 1,
                        MAX_LOOP_DEPTH as u128,
                    );
                    if *count == 0 || body.is_empty() {
                        let (count, body) = (*count, body.len());
                        self.errors.push(VerifyError::EmptyLoop {
                            plan,
                            device,
                            count,
                            body,
                        });
                    }
                    if !fits {
                        continue;
                    }
                    let begin = self.flat.nodes.len();
                    let runs = times.saturating_mul(*count);
                    self.flat.nodes.push(Node::Begin(Begin {
                        count: *count,
                        span_ns: 0,
                        runs,
                        end: begin,
                        has_one_stage: false,
                    }));
                    self.entries(body, depth + 1, runs);
                    self.end_loop(begin);
                }
            }
        }
    }

    fn end_loop(&mut self, begin: usize) {
        let nodes = &mut self.flat.nodes;
        let end = nodes.len();
        let mut stages = nodes[begin..].iter().filter_map(|node| match node {
            Node::Slot { slot, .. } => Some(slot.stage),
            Node::Begin(_) | Node::End { .. } => None,
        });
        let first = stages.next();
        let is_one = stages.all(|stage| Some(stage) == first);

        if let Node::Begin(b) = &mut nodes[begin] {
            b.end = end;
            b.has_one_stage = is_one;
        }
        nodes.push(Node::End { begin });
    }

    fn slot(&mut self, s: &Slot, slot: usize, depth: usize, times: u64) {
        let (plan, device, stages) = (self.cx.id, self.device, self.cx.plan.stages);
        if s.stage >= stages {
            self.errors.push(VerifyError::StageRange {
                plan,
                device,
                slot,
                stage: s.stage,
                stages,
            });
        }
        let (what, id, count) = match s.action {
            Action::Fire { actor, .. } => ("actor", actor.0, self.cx.graph.actors.len()),
            Action::Send { ring, .. } | Action::Recv { ring, .. } | Action::Release { ring } => {
                ("ring", ring.0, self.cx.plan.rings.len())
            }
            Action::Carry { buffer } => ("buffer", buffer.0, self.cx.plan.buffers.len()),
        };
        if id as usize >= count {
            self.errors.push(VerifyError::SlotId {
                plan,
                device,
                slot,
                what,
                id,
                count,
            });
            return;
        }
        match s.action {
            Action::Fire {
                actor,
                first,
                count,
            } => {
                let placed = self.cx.plan.placement[actor];
                if placed != device {
                    self.errors.push(VerifyError::FireElsewhere {
                        plan,
                        actor,
                        device,
                        placed,
                    });
                }
                let needed = self.cx.firings[actor];
                let fired = self.range(slot, first, count, times);
                if fired > needed {
                    self.errors.push(VerifyError::FiringCount {
                        plan,
                        actor,
                        fired,
                        needed,
                    });
                }
            }
            Action::Send { ring, first, count } | Action::Recv { ring, first, count } => {
                let channel = self.cx.plan.rings[ring].channel;
                let what = if matches!(s.action, Action::Send { .. }) {
                    "send"
                } else {
                    "recv"
                };
                let found = self.range(slot, first, count, times);
                // An unknown channel is reported with the rings.
                let expected = self.cx.tokens.get(channel).copied().unwrap_or(u64::MAX);
                if found > expected {
                    self.errors.push(VerifyError::TransferCount {
                        plan,
                        ring,
                        what,
                        found,
                        expected,
                    });
                }
            }
            Action::Release { .. } | Action::Carry { .. } if depth > 0 => {
                self.errors.push(VerifyError::InLoop { plan, device, slot });
            }
            Action::Release { .. } | Action::Carry { .. } => {}
        }
    }

    /// End of the range that all executions of the slot cover.
    fn range(&mut self, slot: usize, first: u64, count: u64, times: u64) -> u64 {
        // What other slots of the same loop do in between only adds to this.
        if count == 0 {
            let (plan, device) = (self.cx.id, self.device);
            self.errors
                .push(VerifyError::EmptySlot { plan, device, slot });
        }
        first.saturating_add(count.saturating_mul(times))
    }
}

/// Collects the stages of all slots; each actor and each end of a ring has one. Ids exist by now.
pub(super) fn stages(cx: &Cx<'_>, lanes: &Lanes<'_>, errors: &mut Errors) -> Option<Stages> {
    let before = errors.found();
    let plan = cx.id;
    let rings = cx.plan.rings.len();
    let mut stages = Stages {
        fire: vec![None; cx.graph.actors.len()].into(),
        send: vec![None; rings].into(),
        recv: vec![None; rings].into(),
        release: vec![None; rings].into(),
        carry: vec![None; cx.plan.buffers.len()].into(),
    };
    let mut used = 0;
    for (slot, ..) in lanes.list.iter().flat_map(|(_, flat)| flat.slots()) {
        used = used.max(u64::from(slot.stage) + 1);
        let second = slot.stage;
        let mixed = |place: &mut Option<u32>| {
            let first = *place.get_or_insert(second);
            (first != second).then_some(first)
        };
        match slot.action {
            Action::Fire { actor, .. } => {
                if let Some(first) = mixed(&mut stages.fire[actor]) {
                    let error = VerifyError::ActorStages {
                        plan,
                        actor,
                        first,
                        second,
                    };
                    errors.push_once((plan.0.into(), actor.0.into()), error);
                }
            }
            Action::Carry { buffer } => stages.carry[buffer] = Some(second),
            Action::Release { ring } => stages.release[ring] = Some(second),
            Action::Send { ring, .. } => {
                if let Some(first) = mixed(&mut stages.send[ring]) {
                    errors.push(VerifyError::RingStages {
                        plan,
                        ring,
                        what: "send",
                        first,
                        second,
                    });
                }
            }
            Action::Recv { ring, .. } => {
                if let Some(first) = mixed(&mut stages.recv[ring]) {
                    errors.push(VerifyError::RingStages {
                        plan,
                        ring,
                        what: "recv",
                        first,
                        second,
                    });
                }
            }
        }
    }
    if used != u64::from(cx.plan.stages) {
        errors.push(VerifyError::Stages {
            plan,
            declared: cx.plan.stages,
            used,
        });
    }
    (errors.found() == before).then_some(stages)
}
