//! When the slots of a plan with fetches start: as it was planned, but later where weights are not there yet.

use std::collections::BTreeMap;

use zbmd_ir::{Action, ActorId, DeviceId, Entry, Machine, Plan, Ring, RingId, Slot, TiVec, walk};

use crate::cost::{AWAIT_NS, FETCH_NS};

/// Rounds after which times are taken that hold without any overlap of periods.
const MAX_ROUNDS: usize = 200;

/// What one round leaves to the next.
#[derive(Clone, Default, PartialEq)]
struct Round {
    period_ns: u64,
    /// When sends of the period end.
    sent_ns: BTreeMap<RingId, u64>,
    /// How long after the start of a period a tier still sends what was fetched in the one before.
    busy_ns: BTreeMap<DeviceId, u64>,
    /// When weights that were fetched in the period before are there, after the start of the period.
    ready_ns: BTreeMap<ActorId, u64>,
}

/// Sets the times of all slots and the period. `bytes_of` are the weights of actors.
///
/// Each slot depends on others of this period and of the one before. Times are worked out again and again from those of
/// the round before until none changes.
pub(super) fn set_times(machine: &Machine, plan: &mut Plan, bytes_of: &TiVec<ActorId, u64>) {
    let original = plan.clone();
    let transfers = original.calendars.iter().map(|calendar| {
        let tier = machine.tiers.get(&calendar.device);
        let slots = calendar
            .lanes
            .iter()
            .flat_map(|lane| walk::top_slots(&lane.entries));
        let fetched = slots.filter_map(|slot| match slot.action {
            Action::Fetch { actor, .. } => bytes_of.get(actor),
            _ => None,
        });
        let transfers = fetched.map(|bytes| tier.map_or(0, |tier| tier.transfer_ns(*bytes)));
        transfers.fold(0, u64::saturating_add)
    });
    let slowest_tier_ns = transfers.max().unwrap_or(0);

    let mut round = Round {
        period_ns: original.period_ns.max(slowest_tier_ns),
        ..Round::default()
    };
    for count in 0.. {
        plan.calendars.clone_from(&original.calendars);
        let next = run(machine, plan, bytes_of, &round);
        if next == round {
            break;
        }
        round = next;
        if count == MAX_ROUNDS {
            // So long that nothing of one period is left in the next.
            round.period_ns = round.period_ns.saturating_add(slowest_tier_ns);
        }
        if count > 2 * MAX_ROUNDS {
            break;
        }
    }
    plan.period_ns = round.period_ns;
}

/// One round: moves the slots of a plan, whose times are those without fetches.
fn run(
    machine: &Machine,
    plan: &mut Plan,
    bytes_of: &TiVec<ActorId, u64>,
    before: &Round,
) -> Round {
    let mut after = Round {
        period_ns: before.period_ns,
        ..Round::default()
    };
    let mut waits = Waits {
        machine,
        before,
        rings: plan.rings.clone(),
        send_stages: stages_of_sends(plan),
        ready_ns: BTreeMap::new(),
    };
    let mut free_ns: BTreeMap<DeviceId, u64> = BTreeMap::new();

    for calendar in &mut plan.calendars {
        let device = calendar.device;
        let tier = machine.tiers.get(&device);
        let mut tier_free_ns = before.busy_ns.get(&device).copied().unwrap_or(0);
        let mut now_ns = 0u64;
        for entry in calendar.lanes.iter_mut().flat_map(|lane| &mut lane.entries) {
            let mut start_ns = walk::start_ns(entry).max(now_ns);
            if let Entry::Slot(slot) = entry {
                start_ns = waits.start_slot(device, slot, start_ns);
            }
            walk::start_at(entry, start_ns);
            now_ns = walk::end_ns(entry);

            let Entry::Slot(slot) = entry else {
                continue;
            };
            match slot.action {
                Action::Send { ring, .. } => {
                    let sent_ns = after.sent_ns.entry(ring).or_insert(0);
                    *sent_ns = now_ns.max(*sent_ns);
                }
                Action::Fetch { actor, .. } => {
                    let bytes = bytes_of.get(actor).copied().unwrap_or(0);
                    let transfer_ns = tier.map_or(0, |tier| tier.transfer_ns(bytes));
                    tier_free_ns = tier_free_ns.max(now_ns).saturating_add(transfer_ns);
                    waits.ready_ns.insert(actor, tier_free_ns);
                }
                _ => {}
            }
        }

        if machine.devices[device].backend.is_gpu() {
            // Its period has ended when all of its copies have, also those for the next one.
            now_ns = now_ns.max(tier_free_ns);
        }
        after.period_ns = after.period_ns.max(now_ns);
        free_ns.insert(device, tier_free_ns);
    }

    // From here on times are after the start of the next period.
    let period_ns = after.period_ns;
    let in_next = |ns: u64| ns.saturating_sub(period_ns);
    let busy = free_ns.into_iter();
    after.busy_ns = busy.map(|(device, ns)| (device, in_next(ns))).collect();
    let ready = waits.ready_ns.into_iter();
    after.ready_ns = ready.map(|(actor, ns)| (actor, in_next(ns))).collect();
    after
}

/// What the slots of a round wait for.
struct Waits<'a> {
    machine: &'a Machine,
    before: &'a Round,
    rings: TiVec<RingId, Ring>,
    send_stages: BTreeMap<RingId, u32>,
    /// When weights are there that this period has fetched.
    ready_ns: BTreeMap<ActorId, u64>,
}

impl Waits<'_> {
    /// When a slot starts that could at `start_ns`. Sets how long fetches and waits for them take.
    fn start_slot(&self, device: DeviceId, slot: &mut Slot, start_ns: u64) -> u64 {
        match slot.action {
            Action::Recv { ring, .. } if self.send_stages.get(&ring) == Some(&slot.stage) => {
                let link = self.machine.link(self.rings[ring].from, device);
                let latency_ns = link.map_or(0, |link| link.latency_ns);
                let sent_ns = self.before.sent_ns.get(&ring).copied().unwrap_or(0);
                return start_ns.max(sent_ns.saturating_add(latency_ns));
            }
            Action::Fetch { .. } => slot.duration_ns = FETCH_NS,
            Action::Await { actor } => {
                let ready_ns = self.ready_ns.get(&actor);
                let ready_ns = ready_ns.or_else(|| self.before.ready_ns.get(&actor));
                let ready_ns = ready_ns.copied().unwrap_or(0);
                slot.duration_ns = ready_ns.saturating_sub(start_ns).max(AWAIT_NS);
            }
            _ => {}
        }
        start_ns
    }
}

fn stages_of_sends(plan: &Plan) -> BTreeMap<RingId, u32> {
    let mut stages = BTreeMap::new();
    for lane in plan.calendars.iter().flat_map(|calendar| &calendar.lanes) {
        for slot in walk::top_slots(&lane.entries) {
            if let Action::Send { ring, .. } = slot.action {
                stages.insert(ring, slot.stage);
            }
        }
    }
    stages
}
