//! Devices wait for each other's tokens and releases, but never in a circle.
//!
//! Take every execution of every period as an event. It comes after the one before it on its lane; a receipt comes
//! after the sending of its tokens, `recv stage − send stage` periods before; a sending comes after the release of
//! the place it writes, `blocks + send stage − release stage` periods before. A run cannot stop if every cycle of
//! these dependencies spans at least one period. Negative spans are refused, so a cycle without any must stay within
//! one period: so all devices are run through one period in which only dependencies within it are waited for. All
//! of them finish, in whatever order they are run, exactly when there is no such cycle.

use std::collections::{BTreeMap, VecDeque};

use super::cursor::{Cursor, Execution, Flat};
use super::rings::RingOf;
use super::{Cx, Lanes, Stages};
use crate::verify::error::{Errors, VerifyError, Wait};
use crate::{Action, DeviceId, RingId, Slot, TiVec};

/// Steps that an execution of a transfer takes: a few, and the memory of a sending that nobody has received yet is as
/// dear as many more.
const STEPS_PER_TRANSFER: u64 = 16;

/// A ring in the period that is run through.
#[derive(Clone, Default)]
struct RingState {
    /// Tokens sent so far; all of them where they were sent periods before.
    sent: u64,
    /// Tokens received so far.
    received: u64,
    /// Whether the place to write was released; true where that was periods before.
    released: bool,
    /// Ends of sends in this period: tokens sent by then, nanoseconds. Empty where receipts are periods later.
    sends: VecDeque<(u64, u64)>,
    same_period: bool,
}

/// Checks stages of rings, then the zero-period cycles, and that nothing is received before it is sent.
pub(super) fn check(
    cx: &Cx<'_>,
    lanes: &Lanes<'_>,
    stages: &Stages,
    ring_of: &RingOf,
    errors: &mut Errors,
) {
    if ring_of.is_empty() {
        return;
    }
    let Some(ring_states) = start_rings(cx, stages, errors) else {
        return;
    };
    // What devices do for themselves delays nobody for ever.
    let transfers: Vec<(DeviceId, Flat<'_>)> = lanes
        .list
        .iter()
        .map(|(device, flat)| (*device, flat.filtered(is_transfer)))
        .collect();
    let transfer_slots = transfers.iter().flat_map(|(_, flat)| flat.slots());
    let transfer_steps = transfer_slots
        .map(|(.., executions)| executions.saturating_mul(STEPS_PER_TRANSFER))
        .fold(0, u64::saturating_add);
    if !errors.reserve(|| format!("the transfers of {}", cx.id), transfer_steps) {
        return;
    }

    let mut runner_of_device: BTreeMap<DeviceId, usize> = BTreeMap::new();
    let mut runners = Vec::with_capacity(transfers.len());
    for (runner, (device, flat)) in transfers.iter().enumerate() {
        runner_of_device.insert(*device, runner);
        runners.push(Runner {
            device: *device,
            cursor: flat.cursor(),
            blocked: None,
            queued: true,
        });
    }

    let mut queue: VecDeque<usize> = (0..runners.len()).collect();
    let mut period = Period {
        cx,
        hands: ring_states,
        woken: Vec::new(),
        errors,
    };

    // A device runs until it waits; those that it wakes are run again.
    while let Some(runner) = queue.pop_front() {
        runners[runner].queued = false;
        runners[runner].run(&mut period);
        for device in std::mem::take(&mut period.woken) {
            let Some(&other) = runner_of_device.get(&device) else {
                continue;
            };
            if !runners[other].queued && runners[other].blocked.is_some() {
                runners[other].queued = true;
                queue.push_back(other);
            }
        }
    }

    if let Some(cycle) = find_cycle(cx, &runners, &runner_of_device) {
        errors.push(VerifyError::PlanDeadlock { plan: cx.id, cycle });
    }
}

fn is_transfer(slot: &Slot) -> bool {
    match slot.action {
        Action::Send { .. } | Action::Recv { .. } | Action::Release { .. } => true,
        Action::Fire { .. }
        | Action::Carry { .. }
        | Action::Fetch { .. }
        | Action::Await { .. } => false,
    }
}

fn start_rings(
    cx: &Cx<'_>,
    stages: &Stages,
    errors: &mut Errors,
) -> Option<TiVec<RingId, RingState>> {
    let plan = cx.id;
    let before = errors.found();
    let mut ring_states = TiVec::with_capacity(cx.plan.rings.len());
    for (ring, data) in cx.plan.rings.iter_enumerated() {
        let send_stage = stages.send[ring]?;
        let recv_stage = stages.recv[ring]?;
        let release_stage = stages.release[ring]?;
        if recv_stage < send_stage {
            errors.push(VerifyError::RecvStage {
                plan,
                ring,
                send_stage,
                recv_stage,
            });
        }

        // A negative span would let a release wait for a send of a later period.
        let blocks = cx.plan.buffers[data.buffer].blocks;
        let written = u64::from(blocks) + u64::from(send_stage);
        if written < u64::from(release_stage) {
            errors.push(VerifyError::SendStage {
                plan,
                ring,
                send_stage,
                release_stage,
                blocks,
            });
        }

        // What was done periods ago delays nothing in this one.
        let same_period = recv_stage == send_stage;
        let sent = if same_period { 0 } else { u64::MAX };
        let released = written > u64::from(release_stage);
        ring_states.push(RingState {
            sent,
            received: 0,
            released,
            sends: VecDeque::new(),
            same_period,
        });
    }

    (errors.found() == before).then_some(ring_states)
}

struct Period<'p> {
    cx: &'p Cx<'p>,
    hands: TiVec<RingId, RingState>,
    /// Devices that may go on.
    woken: Vec<DeviceId>,
    errors: &'p mut Errors,
}

struct Runner<'f> {
    device: DeviceId,
    cursor: Cursor<'f>,
    /// What it waits for: the execution that is next, and the ring.
    blocked: Option<(Execution<'f>, Wait)>,
    queued: bool,
}

impl Runner<'_> {
    /// Runs until the end of the period or the first wait.
    fn run(&mut self, period: &mut Period<'_>) {
        loop {
            let blocked = self.blocked.take().map(|(execution, _)| execution);
            let Some(execution) = blocked.or_else(|| self.cursor.next()) else {
                return;
            };
            if let Some(wait) = period.execute(self.device, &execution) {
                self.blocked = Some((execution, wait));
                return;
            }
        }
    }
}

impl Period<'_> {
    fn execute(&mut self, device: DeviceId, execution: &Execution<'_>) -> Option<Wait> {
        let slot = execution.slot;
        self.errors.budget.take(1);
        let end_ns = slot
            .start_ns
            .saturating_add(execution.offset_ns)
            .saturating_add(slot.duration_ns);
        match slot.action {
            Action::Send { ring, count, .. } => {
                let to = self.cx.plan.rings[ring].to;
                let hand = &mut self.hands[ring];

                // The place must be free: its reader releases it, at most so many periods before.
                if !hand.released {
                    return Some(Wait {
                        device,
                        ring,
                        release: true,
                    });
                }

                if hand.same_period {
                    hand.sent += count;
                    hand.sends.push_back((hand.sent, end_ns));
                    self.wake(to);
                }
            }
            Action::Recv { ring, count, .. } => {
                let hand = &mut self.hands[ring];
                if hand.sent < hand.received + count {
                    return Some(Wait {
                        device,
                        ring,
                        release: false,
                    });
                }

                hand.received += count;
                let tokens = hand.received;
                self.check_receive_time(ring, tokens, end_ns);
            }
            Action::Release { ring } => {
                self.hands[ring].released = true;
                self.wake(self.cx.plan.rings[ring].from);
            }
            Action::Fire { .. }
            | Action::Carry { .. }
            | Action::Fetch { .. }
            | Action::Await { .. } => {}
        }

        None
    }

    fn wake(&mut self, device: DeviceId) {
        if self.woken.last() != Some(&device) {
            self.woken.push(device);
        }
    }

    fn check_receive_time(&mut self, ring: RingId, tokens: u64, recv_end_ns: u64) {
        let hand = &mut self.hands[ring];
        // The send that brought the last token; the ones before it are of no more use.
        while hand.sends.len() > 1 && hand.sends.front().is_some_and(|&(sent, _)| sent < tokens) {
            hand.sends.pop_front();
        }
        if let Some(&(_, send_end_ns)) = hand.sends.front()
            && send_end_ns > recv_end_ns
        {
            let plan = self.cx.id;
            let error = VerifyError::RecvTime {
                plan,
                ring,
                recv_end_ns,
                send_end_ns,
            };

            self.errors.push_once((plan.0.into(), ring.0.into()), error);
        }
    }
}

/// Follows waiting devices from the first one until they repeat.
fn find_cycle(
    cx: &Cx<'_>,
    runners: &[Runner<'_>],
    index: &BTreeMap<DeviceId, usize>,
) -> Option<Vec<Wait>> {
    let mut waiting = runners.iter().position(|r| r.blocked.is_some())?;
    let mut chain: Vec<Wait> = Vec::new();
    let mut chain_place: Vec<Option<usize>> = vec![None; runners.len()];
    while chain_place[waiting].is_none() {
        let Some((_, wait)) = runners[waiting].blocked else {
            break;
        };
        chain_place[waiting] = Some(chain.len());
        chain.push(wait);
        let ring = &cx.plan.rings[wait.ring];
        let other = if wait.release { ring.to } else { ring.from };
        match index.get(&other) {
            Some(&next) => waiting = next,
            None => break,
        }
    }

    // Devices that lead into the circle wait for it, and are no part of it.
    if let Some(start) = chain_place[waiting] {
        chain.drain(..start);
    }
    Some(chain)
}
