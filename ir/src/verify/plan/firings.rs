//! Every firing and every transferred token exactly once and in order; one release and one carry where needed.

use super::{Cx, Lanes, Stages};
use crate::verify::error::{Errors, VerifyError};
use crate::{Action, ActorId, BufferId, DeviceId, RingId, TiVec};

/// Progress of one period.
struct Count<'c, 'a> {
    cx: &'c Cx<'a>,
    fired: TiVec<ActorId, u64>,
    sent: TiVec<RingId, u64>,
    received: TiVec<RingId, u64>,
    released: TiVec<RingId, u64>,
    carried: TiVec<BufferId, u64>,
}

/// Runs through every lane and compares what it does with what the plan needs.
pub(super) fn check(cx: &Cx<'_>, lanes: &Lanes<'_>, stages: &Stages, errors: &mut Errors) {
    let rings = stages.send.len();
    let mut count = Count {
        cx,
        fired: vec![0; stages.fire.len()].into(),
        sent: vec![0; rings].into(),
        received: vec![0; rings].into(),
        released: vec![0; rings].into(),
        carried: vec![0; stages.carry.len()].into(),
    };
    for (device, flat) in &lanes.list {
        for execution in flat.cursor() {
            count.execute(*device, &execution.slot.action, execution.number, errors);
            if errors.full() {
                return;
            }
        }
    }
    count.finish(errors);
}

impl Count<'_, '_> {
    fn execute(&mut self, device: DeviceId, action: &Action, number: u64, errors: &mut Errors) {
        let plan = self.cx.id;
        // Executions go on where the last one of the actor or ring ended; only a slot's first one says where that is.
        let says = number == 0;
        match *action {
            Action::Fire {
                actor,
                first,
                count,
            } => {
                let expected = self.fired[actor];
                if says && expected != first {
                    let error = VerifyError::FiringOrder {
                        plan,
                        actor,
                        expected,
                        found: first,
                    };
                    errors.push_once((plan.0.into(), actor.0.into()), error);
                }
                self.fired[actor] = expected.saturating_add(count);
            }
            Action::Send { ring, first, count } => {
                self.on(ring, device, self.cx.plan.rings[ring].from, errors);
                let expected = self.sent[ring];
                self.sent[ring] = expected.saturating_add(count);
                self.in_order(
                    ring,
                    "send",
                    expected,
                    if says { first } else { expected },
                    errors,
                );
            }
            Action::Recv { ring, first, count } => {
                self.on(ring, device, self.cx.plan.rings[ring].to, errors);
                let expected = self.received[ring];
                self.received[ring] = expected.saturating_add(count);
                self.in_order(
                    ring,
                    "recv",
                    expected,
                    if says { first } else { expected },
                    errors,
                );
            }
            Action::Release { ring } => {
                self.on(ring, device, self.cx.plan.rings[ring].to, errors);
                self.released[ring] += 1;
            }
            Action::Carry { buffer } => {
                let expected = self.cx.plan.buffers[buffer].device;
                if device != expected {
                    errors.push(VerifyError::CarryElsewhere {
                        plan,
                        buffer,
                        device,
                        expected,
                    });
                }
                self.carried[buffer] += 1;
            }
        }
    }

    fn on(&self, ring: RingId, device: DeviceId, expected: DeviceId, errors: &mut Errors) {
        if device != expected {
            let plan = self.cx.id;
            let error = VerifyError::RingSlotElsewhere {
                plan,
                ring,
                device,
                expected,
            };
            errors.push_once((plan.0.into(), ring.0.into()), error);
        }
    }

    fn in_order(
        &self,
        ring: RingId,
        what: &'static str,
        expected: u64,
        found: u64,
        errors: &mut Errors,
    ) {
        if expected != found {
            let plan = self.cx.id;
            let error = VerifyError::TransferOrder {
                plan,
                ring,
                what,
                expected,
                found,
            };
            errors.push_once((plan.0.into(), ring.0.into()), error);
        }
    }

    fn finish(&self, errors: &mut Errors) {
        let (cx, plan) = (self.cx, self.cx.id);
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
        for (buffer, data) in cx.plan.buffers.iter_enumerated() {
            let expected = u64::from(data.head_tokens > 0 && !cx.graph.is_state(data.channel));
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
