//! Which variant of each kernel a plan runs: those that calibration found to be the best.

use std::collections::BTreeSet;

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_ir::{BlobId, Graph, Machine, Plan, Role, TiSlice};

use crate::codes::Code;
use crate::costs::{CostKey, MeasuredCosts};
use crate::diag::{Diagnostic, Sink};

/// Puts the measured variants into the plans; a warning for each that its kernel does not have, which then stays the
/// default one. Nothing is written where the default is the best.
pub(crate) fn choose(
    graph: &Graph,
    machine: &Machine,
    measured: &MeasuredCosts,
    (registry, blobs): (&Registry, &TiSlice<BlobId, Bytes>),
    plans: &mut [Plan],
    sink: &mut Sink,
) {
    if !measured.has_variants() {
        return;
    }
    let mut unknown = BTreeSet::new();
    for (id, actor) in graph.actors.iter_enumerated().filter(|(_, a)| a.role == Role::Compute) {
        let key = CostKey::of(actor, blobs);
        // Asking the op costs as much as resolving the actor: only where somebody wants to know.
        let mut known = None;
        for plan in &mut *plans {
            let device = &machine.devices[plan.placement[id]];
            let cost = measured.get(&device.name, key).filter(|_| device.backend == "cpu");
            let Some(name) = cost.and_then(|cost| cost.variant.as_deref()) else { continue };
            let known = known.get_or_insert_with(|| registry.variants(actor, blobs));
            match known.iter().position(|known| *known == name) {
                Some(0) => {}
                Some(_) => {
                    plan.variants.insert(id, name.to_owned());
                }
                None => {
                    unknown.insert((actor.op.clone(), name.to_owned()));
                }
            }
        }
    }
    for (op, name) in unknown {
        let message = format!("`{op}` has no variant `{name}`, which was measured to be the best");
        sink.push(
            Diagnostic::new(Code::W0501, message)
                .help("the default one is taken; measure again with `zbmdc calibrate`"),
        );
    }
}
