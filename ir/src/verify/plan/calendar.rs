//! Calendars: one for each device with actors, one compute lane, loops, ids and stages of slots.

use std::collections::BTreeMap;

use super::cursor::{Begin, Flat, Node};
use super::{Cx, Lanes, Stages};
use crate::limits::{MAX_LOOP_DEPTH, MAX_SLOT_EXECUTIONS, MAX_STAGES};
use crate::verify::error::{Errors, VerifyError};
use crate::{Action, ActorId, Calendar, DeviceId, Entry, Lane, LaneKind, PlanId, RingId, Slot};

/// Checks the calendars and flattens their lanes; `None` if they cannot be run through.
pub(super) fn check<'a>(cx: &Cx<'a>, errors: &mut Errors) -> Option<Lanes<'a>> {
    let errors_before = errors.found();
    let plan = cx.id;
    let mut first_actors: BTreeMap<DeviceId, ActorId> = BTreeMap::new();
    for (actor, &device) in cx.plan.placement.iter_enumerated() {
        first_actors.entry(device).or_insert(actor);
    }

    let devices = cx.machine.devices.len();
    let mut list = Vec::new();
    let mut last_device = None;
    let mut idle_devices: Vec<DeviceId> = Vec::new();
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

        if let Some(before) = last_device.replace(device).filter(|&b| b >= device) {
            errors.push(VerifyError::CalendarOrder {
                plan,
                before,
                device,
            });
        }

        if !first_actors.contains_key(&device) {
            idle_devices.push(device);
        }
        if let Some(flat) = flatten_lane(cx, calendar, errors) {
            list.push((device, flat));
        }
    }

    // Every device with actors has a calendar, and no other one has.
    for device in idle_devices {
        errors.push(VerifyError::CalendarIdle { plan, device });
    }
    for calendar in &cx.plan.calendars {
        first_actors.remove(&calendar.device);
    }
    for (device, actor) in first_actors {
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
    (errors.found() == errors_before).then_some(Lanes { list })
}

fn flatten_lane<'a>(cx: &Cx<'a>, calendar: &'a Calendar, errors: &mut Errors) -> Option<Flat<'a>> {
    let plan = cx.id;
    let device = calendar.device;
    let lane = only_lane(calendar).or_else(|| {
        errors.push(VerifyError::Lanes {
            plan,
            device,
            lanes: calendar.lanes.len(),
        });
        None
    })?;

    let errors_before = errors.found();
    let mut flattening = Flattening {
        cx,
        device,
        flat: Flat::default(),
        slots: 0,
        executions: 0,
        errors,
    };

    // Flattening stops at the first loop that is too deep; the rest is reported.
    flattening.add_entries(&lane.entries, 0, 1);
    let flat = flattening.flat;
    let executions = flattening.executions;

    errors.limit(
        || format!("slot executions on {device} of {plan}"),
        executions.into(),
        MAX_SLOT_EXECUTIONS.into(),
    );
    (errors.found() == errors_before).then_some(flat)
}

/// The lane of a calendar that has one, for kernels.
fn only_lane(calendar: &Calendar) -> Option<&Lane> {
    match calendar.lanes.as_slice() {
        [lane] if lane.kind == LaneKind::Compute => Some(lane),
        _ => None,
    }
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
    fn add_entries(&mut self, entries: &'a [Entry], depth: usize, times: u64) {
        let plan = self.cx.id;
        let device = self.device;
        for entry in entries {
            if self.errors.full() {
                return;
            }
            match entry {
                Entry::Slot(slot) => {
                    let index = self.slots;
                    self.slots += 1;
                    self.executions = self.executions.saturating_add(times);
                    self.check_slot(slot, index, depth, times);
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
                        self.errors.push(VerifyError::EmptyLoop {
                            plan,
                            device,
                            count: *count,
                            body: body.len(),
                        });
                    }

                    if !fits {
                        continue;
                    }

                    // Its end and whether it has one stage are known once its body has been added.
                    let begin = self.flat.nodes.len();
                    let runs = times.saturating_mul(*count);
                    self.flat.nodes.push(Node::Begin(Begin {
                        count: *count,
                        span_ns: 0,
                        runs,
                        end: begin,
                        has_one_stage: false,
                    }));
                    self.add_entries(body, depth + 1, runs);
                    self.end_loop(begin);
                }
            }
        }
    }

    fn end_loop(&mut self, begin: usize) {
        let nodes = &mut self.flat.nodes;
        let end = nodes.len();

        // Loops of one stage can be judged by their first and last repetitions.
        let mut stages = nodes[begin..].iter().filter_map(|node| match node {
            Node::Slot { slot, .. } => Some(slot.stage),
            Node::Begin(_) | Node::End { .. } => None,
        });
        let first_stage = stages.next();
        let has_one_stage = stages.all(|stage| Some(stage) == first_stage);

        if let Node::Begin(begin_node) = &mut nodes[begin] {
            begin_node.end = end;
            begin_node.has_one_stage = has_one_stage;
        }

        nodes.push(Node::End { begin });
    }

    fn check_slot(&mut self, slot: &Slot, number: usize, depth: usize, executions: u64) {
        let plan = self.cx.id;
        let device = self.device;
        let stages = self.cx.plan.stages;
        if slot.stage >= stages {
            self.errors.push(VerifyError::StageRange {
                plan,
                device,
                slot: number,
                stage: slot.stage,
                stages,
            });
        }

        if !self.has_known_id(&slot.action, number) {
            return;
        }

        match slot.action {
            Action::Fire {
                actor,
                first,
                count,
            } => {
                let fired = self.range_end(number, first, count, executions);
                self.check_fire(actor, fired);
            }
            Action::Send { ring, first, count } => {
                let sent = self.range_end(number, first, count, executions);
                self.check_transfer(ring, "send", sent);
            }
            Action::Recv { ring, first, count } => {
                let received = self.range_end(number, first, count, executions);
                self.check_transfer(ring, "recv", received);
            }
            // Both are done once a period; but chunks are carried one by one.
            Action::Release { .. } | Action::Carry { .. } => {
                let has_chunks = matches!(slot.action, Action::Carry { buffer }
                    if self.cx.plan.buffers[buffer].is_chunked());
                if depth > 0 && !has_chunks {
                    self.errors.push(VerifyError::InLoop {
                        plan,
                        device,
                        slot: number,
                    });
                }
            }
            Action::Fetch { .. } | Action::Await { .. } => {
                if depth > 0 {
                    self.errors.push(VerifyError::InLoop {
                        plan,
                        device,
                        slot: number,
                    });
                }
            }
        }
    }

    /// Whether what an action names exists.
    fn has_known_id(&mut self, action: &Action, number: usize) -> bool {
        let (what, id, count) = match *action {
            Action::Fire { actor, .. } | Action::Fetch { actor, .. } | Action::Await { actor } => {
                ("actor", actor.0, self.cx.graph.actors.len())
            }
            Action::Send { ring, .. } | Action::Recv { ring, .. } | Action::Release { ring } => {
                ("ring", ring.0, self.cx.plan.rings.len())
            }
            Action::Carry { buffer } => ("buffer", buffer.0, self.cx.plan.buffers.len()),
        };

        let is_known = (id as usize) < count;
        if !is_known {
            self.errors.push(VerifyError::SlotId {
                plan: self.cx.id,
                device: self.device,
                slot: number,
                what,
                id,
                count,
            });
        }

        is_known
    }

    fn check_fire(&mut self, actor: ActorId, fired: u64) {
        let plan = self.cx.id;
        let device = self.device;

        // An actor has its kernel and its buffers on one device.
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
        if fired > needed {
            self.errors.push(VerifyError::FiringCount {
                plan,
                actor,
                fired,
                needed,
            });
        }
    }

    fn check_transfer(&mut self, ring: RingId, what: &'static str, found: u64) {
        // An unknown channel is reported with the rings.
        let channel = self.cx.plan.rings[ring].channel;
        let expected = self.cx.tokens.get(channel).copied().unwrap_or(u64::MAX);
        if found > expected {
            self.errors.push(VerifyError::TransferCount {
                plan: self.cx.id,
                ring,
                what,
                found,
                expected,
            });
        }
    }

    /// End of the range that all executions of the slot cover.
    fn range_end(&mut self, slot: usize, first: u64, count: u64, executions: u64) -> u64 {
        // What other slots of the same loop do in between only adds to this.
        if count == 0 {
            self.errors.push(VerifyError::EmptySlot {
                plan: self.cx.id,
                device: self.device,
                slot,
            });
        }
        first.saturating_add(count.saturating_mul(executions))
    }
}

/// Collects the stages of all slots; each actor and each end of a ring has one. Ids exist by now.
pub(super) fn stages(cx: &Cx<'_>, lanes: &Lanes<'_>, errors: &mut Errors) -> Option<Stages> {
    let errors_before = errors.found();
    let ring_count = cx.plan.rings.len();
    let mut collector = StageCollector {
        plan: cx.id,
        stages: Stages {
            fire: vec![None; cx.graph.actors.len()].into(),
            send: vec![None; ring_count].into(),
            recv: vec![None; ring_count].into(),
            release: vec![None; ring_count].into(),
            carry: vec![None; cx.plan.buffers.len()].into(),
        },
        errors,
    };

    // Every stage up to the last is used, or the run would wait for blocks that nobody works on.
    let mut used_stages = 0;
    for (slot, ..) in lanes.list.iter().flat_map(|(_, flat)| flat.slots()) {
        used_stages = used_stages.max(u64::from(slot.stage) + 1);
        collector.add(slot);
    }

    let stages = collector.stages;

    if used_stages != u64::from(cx.plan.stages) {
        errors.push(VerifyError::Stages {
            plan: cx.id,
            declared: cx.plan.stages,
            used: used_stages,
        });
    }

    (errors.found() == errors_before).then_some(stages)
}

struct StageCollector<'e> {
    plan: PlanId,
    stages: Stages,
    errors: &'e mut Errors,
}

impl StageCollector<'_> {
    fn add(&mut self, slot: &Slot) {
        let second = slot.stage;
        match slot.action {
            Action::Fire { actor, .. } => {
                if let Some(first) = enter_stage(&mut self.stages.fire[actor], second) {
                    let plan = self.plan;
                    let error = VerifyError::ActorStages {
                        plan,
                        actor,
                        first,
                        second,
                    };

                    let key = (plan.0.into(), actor.0.into());
                    self.errors.push_once(key, error);
                }
            }
            Action::Send { ring, .. } => {
                let first = enter_stage(&mut self.stages.send[ring], second);
                self.report_ring(ring, "send", first, second);
            }
            Action::Recv { ring, .. } => {
                let first = enter_stage(&mut self.stages.recv[ring], second);
                self.report_ring(ring, "recv", first, second);
            }
            Action::Carry { buffer } => self.stages.carry[buffer] = Some(second),
            Action::Release { ring } => self.stages.release[ring] = Some(second),
            // Of their actor's, which is checked with the weights.
            Action::Fetch { .. } | Action::Await { .. } => {}
        }
    }

    /// Reports an end of a ring that has another stage already.
    fn report_ring(&mut self, ring: RingId, what: &'static str, first: Option<u32>, second: u32) {
        if let Some(first) = first {
            self.errors.push(VerifyError::RingStages {
                plan: self.plan,
                ring,
                what,
                first,
                second,
            });
        }
    }
}

/// Enters a stage; the one entered before, if that is another.
fn enter_stage(place: &mut Option<u32>, stage: u32) -> Option<u32> {
    let first = *place.get_or_insert(stage);
    (first != stage).then_some(first)
}
