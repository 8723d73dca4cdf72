//! Every firing and every transferred token exactly once and in order; one release and one carry where needed.

use super::cursor::{Node, Visitor};
use super::{Cx, Lanes, Stages};
use crate::verify::error::{Errors, VerifyError};
use crate::{Action, ActorId, BufferId, DeviceId, RingId, Slot, TiVec};

/// Progress of one period.
struct PeriodCount<'c, 'a> {
    cx: &'c Cx<'a>,
    /// The device whose lane is visited.
    device: DeviceId,
    errors: &'c mut Errors,
    fired: TiVec<ActorId, u64>,
    sent: TiVec<RingId, u64>,
    received: TiVec<RingId, u64>,
    released: TiVec<RingId, u64>,
    carried: TiVec<BufferId, u64>,
}

/// Visits every lane and compares what it does with what the plan needs.
pub(super) fn check(cx: &Cx<'_>, lanes: &Lanes<'_>, stages: &Stages, errors: &mut Errors) {
    let ring_count = stages.send.len();
    let mut count = PeriodCount {
        cx,
        device: DeviceId(0),
        errors,
        fired: vec![0; stages.fire.len()].into(),
        sent: vec![0; ring_count].into(),
        received: vec![0; ring_count].into(),
        released: vec![0; ring_count].into(),
        carried: vec![0; stages.carry.len()].into(),
    };

    // One count for all lanes: an actor or ring that is served on the wrong device is noticed by its slot.
    for (device, flat) in &lanes.list {
        count.device = *device;
        flat.visit(&mut count);
        if count.errors.full() {
            return;
        }
    }

    count.check_totals();
}

impl Visitor for PeriodCount<'_, '_> {
    fn execute(&mut self, slot: &Slot, _position: u64, is_first: bool) {
        self.errors.budget.take(1);
        let plan = self.cx.id;

        // Executions go on where the last one of the actor or ring ended; only a slot's first one says where that is.
        match slot.action {
            Action::Fire { actor, first, .. } => {
                let expected = self.fired[actor];
                if is_first && expected != first {
                    let error = VerifyError::FiringOrder {
                        plan,
                        actor,
                        expected,
                        found: first,
                    };

                    self.errors
                        .push_once((plan.0.into(), actor.0.into()), error);
                }
            }
            Action::Send { ring, first, .. } => {
                self.check_device(ring, self.cx.plan.rings[ring].from);
                let expected = self.sent[ring];
                let found = if is_first { first } else { expected };
                self.check_order(ring, "send", expected, found);
            }
            Action::Recv { ring, first, .. } => {
                self.check_device(ring, self.cx.plan.rings[ring].to);
                let expected = self.received[ring];
                let found = if is_first { first } else { expected };
                self.check_order(ring, "recv", expected, found);
            }
            Action::Release { ring } => {
                self.check_device(ring, self.cx.plan.rings[ring].to);
                self.released[ring] += 1;
            }
            Action::Carry { buffer } => {
                let expected = self.cx.plan.buffers[buffer].device;
                if self.device != expected {
                    self.errors.push(VerifyError::CarryElsewhere {
                        plan,
                        buffer,
                        device: self.device,
                        expected,
                    });
                }
            }
            Action::Fetch { .. } | Action::Await { .. } => {}
        }

        self.skip(slot, 1);
    }

    fn enter(&mut self, _body: &[Node<'_>]) {}

    fn leave(&mut self) {}

    fn skip(&mut self, slot: &Slot, executions: u64) {
        self.errors.budget.take(1);
        match slot.action {
            Action::Fire { actor, count, .. } => {
                add_count(&mut self.fired[actor], count, executions)
            }
            Action::Send { ring, count, .. } => add_count(&mut self.sent[ring], count, executions),
            Action::Recv { ring, count, .. } => {
                add_count(&mut self.received[ring], count, executions)
            }
            Action::Carry { buffer } => add_count(&mut self.carried[buffer], 1, executions),
            Action::Release { .. } | Action::Fetch { .. } | Action::Await { .. } => {}
        }
    }

    fn is_done(&self) -> bool {
        self.errors.full()
    }
}

fn add_count(total: &mut u64, count: u64, executions: u64) {
    *total = total.saturating_add(count.saturating_mul(executions));
}

impl PeriodCount<'_, '_> {
    fn check_device(&mut self, ring: RingId, expected: DeviceId) {
        let device = self.device;
        if device != expected {
            let plan = self.cx.id;
            let error = VerifyError::RingSlotElsewhere {
                plan,
                ring,
                device,
                expected,
            };
            self.errors.push_once((plan.0.into(), ring.0.into()), error);
        }
    }

    fn check_order(&mut self, ring: RingId, what: &'static str, expected: u64, found: u64) {
        if expected != found {
            let plan = self.cx.id;
            let error = VerifyError::TransferOrder {
                plan,
                ring,
                what,
                expected,
                found,
            };
            self.errors.push_once((plan.0.into(), ring.0.into()), error);
        }
    }

    fn check_totals(self) {
        let cx = self.cx;
        let plan = cx.id;
        let errors = self.errors;
        for (actor, &fired) in self.fired.iter_enumerated() {
            let needed = cx.firings[actor];
            if fired != needed {
                errors.push(VerifyError::FiringCount {
                    plan,
                    actor,
                    fired,
                    needed,
                });
            }
        }

        for (ring, data) in cx.plan.rings.iter_enumerated() {
            let expected = cx.tokens[data.channel];
            for (what, found) in [("send", self.sent[ring]), ("recv", self.received[ring])] {
                if found != expected {
                    errors.push(VerifyError::TransferCount {
                        plan,
                        ring,
                        what,
                        found,
                        expected,
                    });
                }
            }

            if self.released[ring] != 1 {
                errors.push(VerifyError::ReleaseCount {
                    plan,
                    ring,
                    found: self.released[ring],
                });
            }
        }

        // The head of the next block is carried once a period, or once for each chunk; a state has no blocks.
        for (buffer, data) in cx.plan.buffers.iter_enumerated() {
            let has_carry = data.head_tokens > 0 && !cx.is_state[data.channel];
            let chunk_count = data
                .block_tokens
                .checked_div(data.chunk_tokens)
                .unwrap_or(1);
            let expected = if has_carry { chunk_count } else { 0 };
            let found = self.carried[buffer];
            if found != expected {
                errors.push(VerifyError::CarryCount {
                    plan,
                    buffer,
                    found,
                    expected,
                });
            }
        }
    }
}
