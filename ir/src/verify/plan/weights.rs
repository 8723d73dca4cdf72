//! Weights that a device fetches from its tier: each is there when its actor fires, and stays until the actor has fired
//! for the last time in the period. That nothing else has its bytes meanwhile is checked with all other memory.

use std::collections::BTreeMap;

use super::cursor::{Node, Visitor};
use super::{Cx, Lanes, Stages};
use crate::limits::ALIGN_BYTES;
use crate::verify::error::{Errors, Memory, VerifyError};
use crate::{Action, ActorId, DeviceId, Region, Slot, Tier, TokenType, has_live};

/// Executions in which fetched weights are live, of one actor: `[first, last]`, in one or two pieces of the period.
pub(super) struct LiveWeights {
    pub(super) device: DeviceId,
    pub(super) actor: ActorId,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) executions: Vec<(u64, u64)>,
}

/// The slots of one actor with a fetch or a wait.
#[derive(Clone, Copy, Default)]
struct ActorSlots {
    fetches: u64,
    awaits: u64,
    offset_bytes: u64,
    fetch: Position,
    wait: Position,
    first_fire: Option<u64>,
    last_fire: Option<u64>,
}

/// An execution, and when it is planned to end.
#[derive(Clone, Copy, Default)]
struct Position {
    execution: u64,
    end_ns: u64,
}

/// Whether a plan has any fetch or wait: most have none, and cost nothing here.
pub(super) fn has_fetches(lanes: &Lanes<'_>) -> bool {
    let mut slots = lanes.list.iter().flat_map(|(_, flat)| flat.slots());
    slots.any(|(slot, ..)| matches!(slot.action, Action::Fetch { .. } | Action::Await { .. }))
}

/// Checks all fetches and waits; when weights are live.
pub(super) fn check(
    cx: &Cx<'_>,
    lanes: &Lanes<'_>,
    stages: &Stages,
    errors: &mut Errors,
) -> Vec<LiveWeights> {
    let mut live = Vec::new();
    if !has_fetches(lanes) {
        return live;
    }

    for (device, flat) in &lanes.list {
        let mut collector = Collector {
            cx,
            device: *device,
            stages,
            actors: BTreeMap::new(),
            fired: BTreeMap::new(),
            errors,
        };
        flat.visit(&mut collector);

        let mut actors = collector.actors;
        for (actor, slots) in &mut actors {
            if let Some(&(first, last)) = collector.fired.get(actor) {
                (slots.first_fire, slots.last_fire) = (Some(first), Some(last));
            }
        }
        if errors.full() {
            return live;
        }
        if !actors.is_empty() {
            check_device(cx, *device, &actors, &mut live, errors);
        }
    }
    live
}

/// Checks what one device fetches.
fn check_device(
    cx: &Cx<'_>,
    device: DeviceId,
    actors: &BTreeMap<ActorId, ActorSlots>,
    live: &mut Vec<LiveWeights>,
    errors: &mut Errors,
) {
    let plan = cx.id;
    let Some(tier) = cx.machine.tiers.get(&device) else {
        errors.push(VerifyError::FetchDevice { plan, device });
        return;
    };

    let errors_before = errors.found();
    let mut total_bytes = 0u128;
    for (&actor, slots) in actors {
        let Some(token) = fetched_token(cx, device, actor) else {
            errors.push(VerifyError::FetchActor { plan, actor });
            continue;
        };
        if (slots.fetches, slots.awaits) != (1, 1) {
            errors.push(VerifyError::FetchCount {
                plan,
                actor,
                fetches: slots.fetches,
                awaits: slots.awaits,
            });
            continue;
        }
        total_bytes += u128::from(token.bytes());
        check_place(
            cx,
            device,
            (actor, token.bytes()),
            slots.offset_bytes,
            errors,
        );
        let executions = check_order(cx, actor, slots, errors);
        live.push(LiveWeights {
            device,
            actor,
            start: slots.offset_bytes,
            end: slots.offset_bytes.saturating_add(token.bytes()),
            executions,
        });
    }

    if total_bytes > u128::from(tier.memory_bytes) {
        errors.push(VerifyError::TierBytes {
            plan,
            device,
            needed: total_bytes,
            memory: tier.memory_bytes,
        });
    }
    if errors.found() == errors_before {
        check_times(cx, device, tier, actors, errors);
    }
}

/// What a device fetches for an actor, if it may: live parameters change while the run goes on, and the tier would not.
fn fetched_token<'a>(cx: &Cx<'a>, device: DeviceId, actor: ActorId) -> Option<&'a TokenType> {
    let kind = &cx.machine.devices[device].backend;
    let actor = cx
        .graph
        .actors
        .get(actor)
        .filter(|actor| !has_live(actor))?;
    let (_, token) = actor.fetchable_weights(kind)?;
    Some(token)
}

/// Weights are in the arena, aligned for every kernel.
fn check_place(
    cx: &Cx<'_>,
    device: DeviceId,
    (actor, bytes): (ActorId, u64),
    offset_bytes: u64,
    errors: &mut Errors,
) {
    let plan = cx.id;
    let memory = Memory::Weights(actor);
    if !offset_bytes.is_multiple_of(ALIGN_BYTES) {
        errors.push(VerifyError::Misaligned {
            plan,
            device,
            memory,
            bytes: offset_bytes,
            align: ALIGN_BYTES,
        });
    }

    let calendars = &cx.plan.calendars;
    let calendar = calendars.iter().find(|calendar| calendar.device == device);
    let size = calendar.map_or(0, |calendar| calendar.arena_bytes);
    let end = u128::from(offset_bytes) + u128::from(bytes);
    if end > u128::from(size) {
        errors.push(VerifyError::OutsideRegion {
            plan,
            device,
            memory,
            region: Region::Arena,
            end,
            size,
        });
    }
}

/// The executions in which the weights of an actor are live: from the fetch on, through the wait, to the last firing.
fn check_order(
    cx: &Cx<'_>,
    actor: ActorId,
    slots: &ActorSlots,
    errors: &mut Errors,
) -> Vec<(u64, u64)> {
    let plan = cx.id;
    let fetch = slots.fetch.execution;
    let wait = slots.wait.execution;
    let first_fire = slots.first_fire.unwrap_or(u64::MAX);
    let last_fire = slots.last_fire.unwrap_or(0);

    if first_fire < wait {
        errors.push(VerifyError::FireBeforeAwait { plan, actor });
        return Vec::new();
    }
    if fetch < wait {
        return vec![(fetch, last_fire)];
    }
    if fetch < last_fire {
        errors.push(VerifyError::FetchInUse { plan, actor });
        return Vec::new();
    }
    // For the next period: over its border.
    vec![(0, last_fire), (fetch, u64::MAX)]
}

/// Waits end no earlier than the tier can have sent what was fetched, one after the other in the order of the fetches.
fn check_times(
    cx: &Cx<'_>,
    device: DeviceId,
    tier: &Tier,
    actors: &BTreeMap<ActorId, ActorSlots>,
    errors: &mut Errors,
) {
    let mut fetched: Vec<(ActorId, &ActorSlots)> =
        actors.iter().map(|(&id, slots)| (id, slots)).collect();
    fetched.sort_by_key(|(_, slots)| slots.fetch.execution);

    // What is still being sent when a period ends delays the next one: the second period is like all that follow.
    let period_ns = i128::from(cx.plan.period_ns);
    let mut free_ns = i128::MIN;
    for round in 0..2 {
        for (actor, slots) in &fetched {
            let bytes = fetched_token(cx, device, *actor).map_or(0, TokenType::bytes);
            let begin_ns = free_ns.max(slots.fetch.end_ns.into());
            let ready_ns = begin_ns + i128::from(tier.transfer_ns(bytes));
            free_ns = ready_ns;

            let is_for_next = slots.fetch.execution > slots.wait.execution;
            let needed_ns = ready_ns - if is_for_next { period_ns } else { 0 };
            let await_end_ns = slots.wait.end_ns;
            if round == 1 && i128::from(await_end_ns) < needed_ns {
                errors.push(VerifyError::AwaitTime {
                    plan: cx.id,
                    actor: *actor,
                    device,
                    await_end_ns,
                    ready_ns: u64::try_from(needed_ns).unwrap_or(0),
                });
            }
        }
        free_ns -= period_ns;
    }
}

struct Collector<'c, 'a> {
    cx: &'c Cx<'a>,
    device: DeviceId,
    stages: &'c Stages,
    actors: BTreeMap<ActorId, ActorSlots>,
    /// First and last executions of the device's actors.
    fired: BTreeMap<ActorId, (u64, u64)>,
    errors: &'c mut Errors,
}

impl Collector<'_, '_> {
    /// Fetches and waits are of the actor's device and stage.
    fn check_slot(&mut self, actor: ActorId, stage: u32) {
        let plan = self.cx.id;
        let placed = self.cx.plan.placement[actor];
        if placed != self.device {
            self.errors.push(VerifyError::FetchElsewhere {
                plan,
                actor,
                device: self.device,
                placed,
            });
        }
        if let Some(expected) = self.stages.fire[actor].filter(|expected| *expected != stage) {
            self.errors.push(VerifyError::FetchStage {
                plan,
                actor,
                stage,
                expected,
            });
        }
    }
}

impl Visitor for Collector<'_, '_> {
    fn execute(&mut self, slot: &Slot, execution: u64, _is_first: bool) {
        self.errors.budget.take(1);
        let end_ns = slot.start_ns.saturating_add(slot.duration_ns);
        let position = Position { execution, end_ns };
        match slot.action {
            Action::Fire { actor, .. } => {
                let fired = self.fired.entry(actor).or_insert((execution, execution));
                fired.1 = execution;
            }
            Action::Fetch {
                actor,
                offset_bytes,
            } => {
                self.check_slot(actor, slot.stage);
                let slots = self.actors.entry(actor).or_default();
                slots.fetches += 1;
                slots.offset_bytes = offset_bytes;
                slots.fetch = position;
            }
            Action::Await { actor } => {
                self.check_slot(actor, slot.stage);
                let slots = self.actors.entry(actor).or_default();
                slots.awaits += 1;
                slots.wait = position;
            }
            Action::Send { .. }
            | Action::Recv { .. }
            | Action::Release { .. }
            | Action::Carry { .. } => {}
        }
    }

    fn enter(&mut self, body: &[Node<'_>]) {
        self.errors.budget.take(body.len() as u64);
    }

    fn leave(&mut self) {}

    fn skip(&mut self, _slot: &Slot, _executions: u64) {
        self.errors.budget.take(1);
    }

    fn is_done(&self) -> bool {
        self.errors.full()
    }
}
