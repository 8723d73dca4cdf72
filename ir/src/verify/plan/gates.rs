//! Gates of actors on GPUs: the host reads their tokens before it submits what they decide about, so they must come from
//! another device.

use super::Cx;
use crate::verify::error::{Errors, VerifyError};

pub(super) fn check(cx: &Cx<'_>, errors: &mut Errors) {
    for (id, actor) in cx.graph.actors.iter_enumerated() {
        let device = cx.plan.placement[id];
        let Some(gate) = actor.gate() else { continue };
        if !cx.machine.devices[device].backend.is_gpu() {
            continue;
        }

        let joined = cx.ports.inputs[id].get(gate.input as usize);
        let Some(&Some((channel, _))) = joined else {
            continue;
        };
        if cx.writer_device(channel) == device {
            errors.push(VerifyError::OwnGate {
                plan: cx.id,
                actor: id,
                device,
                channel,
            });
        }
    }
}
