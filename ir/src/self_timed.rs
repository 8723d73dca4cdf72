//! How long blocks take where a run begins with an empty pipeline and ends with one, as between two changes of mode. Lanes
//! replay their slots in order, each as soon as its tokens are there and its place is free, with the planned durations.
//!
//! No slot starts later if others take less time, or if fewer blocks come before and after (starts are monotone in what
//! they wait for: Baccelli et al., *Synchronization and Linearity*, 1992). So what is found here for planned durations bounds
//! every run whose slots take no longer. The input of a block is there one period after that of the block before it.

use std::collections::BTreeMap;

use crate::{Action, DeviceId, Entry, Graph, Machine, Plan, RingId, Role, Slot, walk};

/// Blocks after which a leg must go on as before, or the plan's own numbers are taken.
const MAX_BLOCKS: u64 = 48;
/// Slots that are replayed for a mode, at most.
const MAX_STEPS: u64 = 20_000_000;

/// What legs of a mode take: runs of so many blocks from an empty pipeline to an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LegTimes {
    /// For legs of 1, 2, … blocks the time until nothing is at work any more; of more blocks each takes a period more.
    pub(crate) durations_ns: Vec<u64>,
    /// Longest time until the output of the first block is there.
    pub(crate) first_output_ns: u64,
    /// Longest time from the last block's input until nothing is at work any more.
    pub(crate) drain_ns: u64,
}

impl LegTimes {
    /// The legs of a plan, with its planned durations.
    pub(crate) fn of(graph: &Graph, machine: &Machine, plan: &Plan) -> Self {
        let replayed = Replay::new(graph, machine, plan).and_then(Replay::legs);
        // Where that cannot be said: by the plan, in which a block's last slot ends so long after its first.
        replayed.unwrap_or_else(|| Self {
            durations_ns: vec![plan.latency_ns],
            first_output_ns: plan.latency_ns,
            drain_ns: plan.latency_ns,
        })
    }
}

/// A lane, its loops counted out.
struct LaneSlots<'a> {
    device: DeviceId,
    slots: Vec<&'a Slot>,
}

/// A plan to be replayed.
struct Replay<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    plan: &'a Plan,
    lanes: Vec<LaneSlots<'a>>,
}

/// One leg.
struct Leg {
    /// Until the first block's outputs are there.
    first_output_ns: u64,
    /// Until nothing is at work any more.
    duration_ns: u64,
}

/// Hand-overs of a leg that have happened.
#[derive(Default)]
struct HandOvers {
    /// Tokens of a ring's block that were sent, and when they can be read, in order.
    sent: BTreeMap<(RingId, u64), Vec<(u64, u64)>>,
    /// Tokens of it that were waited for.
    received: BTreeMap<(RingId, u64), u64>,
    /// When its place was given back.
    given_back: BTreeMap<(RingId, u64), u64>,
}

/// A lane on its way through a leg.
#[derive(Clone, Copy, Default)]
struct LanePosition {
    period: u64,
    next: usize,
    now_ns: u64,
}

impl<'a> Replay<'a> {
    /// `None` where more than lanes and rings decides about starts, or a leg has no input or output.
    fn new(graph: &'a Graph, machine: &'a Machine, plan: &'a Plan) -> Option<Self> {
        let has_streams = graph.sources().next().is_some() && graph.sinks().next().is_some();
        let mut lanes = Vec::new();
        for calendar in &plan.calendars {
            let [lane] = calendar.lanes.as_slice() else {
                return None;
            };
            lanes.push(LaneSlots {
                device: calendar.device,
                slots: count_out(&lane.entries)?,
            });
        }
        has_streams.then_some(Self {
            graph,
            machine,
            plan,
            lanes,
        })
    }

    /// Legs of 1, 2, … blocks, until some in a row end alike.
    fn legs(self) -> Option<LegTimes> {
        let slots: u64 = self.lanes.iter().map(|lane| lane.slots.len() as u64).sum();
        let places = self.plan.rings.iter().map(|ring| {
            let buffer = &self.plan.buffers[ring.buffer];
            u64::from(buffer.blocks)
        });
        // What happened longer ago decides about nothing.
        let memory = u64::from(self.plan.stages) + places.max().unwrap_or(0);
        let period_ns = self.plan.period_ns;
        let mut times = LegTimes {
            durations_ns: Vec::new(),
            first_output_ns: 0,
            drain_ns: 0,
        };
        let mut steps = 0u64;
        let mut alike = 0;
        for blocks in 1..=MAX_BLOCKS {
            steps = steps.saturating_add(slots.saturating_mul(blocks));
            if steps > MAX_STEPS {
                return None;
            }
            let leg = self.leg(blocks)?;
            let drain_ns = leg.duration_ns.saturating_sub((blocks - 1) * period_ns);
            let is_alike =
                drain_ns <= times.drain_ns && leg.first_output_ns <= times.first_output_ns;
            alike = if is_alike { alike + 1 } else { 0 };
            times.durations_ns.push(leg.duration_ns);
            times.drain_ns = times.drain_ns.max(drain_ns);
            times.first_output_ns = times.first_output_ns.max(leg.first_output_ns);
            if alike > memory {
                return Some(times);
            }
        }
        None
    }

    /// A leg of so many blocks; `None` if lanes wait for each other, which those of a verified plan do not.
    fn leg(&self, blocks: u64) -> Option<Leg> {
        let periods = blocks + u64::from(self.plan.stages) - 1;
        let mut positions = vec![LanePosition::default(); self.lanes.len()];
        let mut hand_overs = HandOvers::default();
        let mut leg = Leg {
            first_output_ns: 0,
            duration_ns: 0,
        };

        // Each lane goes on until it waits for another one; then it is the next one's turn.
        let is_over = |position: &LanePosition| position.period >= periods;
        while !positions.iter().all(is_over) {
            let mut has_moved = false;
            for (lane, position) in self.lanes.iter().zip(&mut positions) {
                while position.period < periods {
                    let Some(slot) = lane.slots.get(position.next) else {
                        *position = LanePosition {
                            period: position.period + 1,
                            next: 0,
                            ..*position
                        };
                        continue;
                    };
                    // In the first and the last periods some stages have no block.
                    let block = position.period.checked_sub(u64::from(slot.stage));
                    let Some(block) = block.filter(|block| *block < blocks) else {
                        position.next += 1;
                        continue;
                    };
                    let Some(ready_ns) = self.ready_ns(slot, block, &hand_overs) else {
                        break;
                    };

                    let end_ns = position.now_ns.max(ready_ns) + slot.duration_ns;
                    self.note(slot, block, lane.device, end_ns, &mut hand_overs)?;
                    if block == 0 && self.is_of(slot, Role::Sink) {
                        leg.first_output_ns = leg.first_output_ns.max(end_ns);
                    }
                    leg.duration_ns = leg.duration_ns.max(end_ns);
                    position.now_ns = end_ns;
                    position.next += 1;
                    has_moved = true;
                }
            }
            if !has_moved && !positions.iter().all(is_over) {
                return None;
            }
        }
        Some(leg)
    }

    fn is_of(&self, slot: &Slot, role: Role) -> bool {
        match slot.action {
            Action::Fire { actor, .. } => self.graph.actors[actor].role == role,
            _ => false,
        }
    }

    /// When what a slot waits for has happened; `None` where it has not.
    fn ready_ns(&self, slot: &Slot, block: u64, hand_overs: &HandOvers) -> Option<u64> {
        match slot.action {
            _ if self.is_of(slot, Role::Source) => Some(block * self.plan.period_ns),
            Action::Recv { ring, count, .. } => {
                let before = hand_overs.received.get(&(ring, block)).copied();
                let needed = before.unwrap_or(0) + count;
                let mut sent = hand_overs.sent.get(&(ring, block))?.iter();
                let found = sent.find(|(tokens, _)| *tokens >= needed);
                found.map(|(_, at_ns)| *at_ns)
            }
            Action::Send { ring, .. } => {
                let buffer = &self.plan.buffers[self.plan.rings[ring].buffer];
                match block.checked_sub(u64::from(buffer.blocks)) {
                    None => Some(0),
                    Some(earlier) => hand_overs.given_back.get(&(ring, earlier)).copied(),
                }
            }
            _ => Some(0),
        }
    }

    /// Notes what others wait for.
    fn note(
        &self,
        slot: &Slot,
        block: u64,
        device: DeviceId,
        end_ns: u64,
        hand_overs: &mut HandOvers,
    ) -> Option<()> {
        match slot.action {
            Action::Send { ring, count, .. } => {
                let link = self.machine.link(device, self.plan.rings[ring].to)?;
                let sent = hand_overs.sent.entry((ring, block)).or_default();
                let before = sent.last().map_or(0, |(tokens, _)| *tokens);
                sent.push((before + count, end_ns.saturating_add(link.latency_ns)));
            }
            Action::Recv { ring, count, .. } => {
                *hand_overs.received.entry((ring, block)).or_insert(0) += count;
            }
            Action::Release { ring } => {
                hand_overs.given_back.insert((ring, block), end_ns);
            }
            Action::Fire { .. }
            | Action::Carry { .. }
            | Action::Fetch { .. }
            | Action::Await { .. } => {}
        }
        Some(())
    }
}

/// The slots of a lane in the order of their executions; `None` where there are too many.
fn count_out(entries: &[Entry]) -> Option<Vec<&Slot>> {
    if walk::executions(entries) > MAX_STEPS {
        return None;
    }
    let mut slots = Vec::new();
    walk::visit_slots(entries, |visit| slots.push(visit.slot));
    let order = walk::execution_order(entries).into_iter();
    Some(order.map(|number| slots[number as usize]).collect())
}
