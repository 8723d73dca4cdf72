//! Which variant of each kernel a plan runs: those that calibration found to be the best.

use std::collections::BTreeSet;

use bytes::Bytes;
use zbmd_backends::gpu::is_gpu;
use zbmd_backends::op::Registry;
use zbmd_ir::{Actor, BlobId, Device, Graph, Machine, Plan, Role, TiSlice};

use crate::codes::Code;
use crate::costs::{CostKey, MeasuredCosts};
use crate::diag::{Diagnostic, Sink};

/// The variant that was found to be the best on a device. On GPUs bits depend on it: so the first one of a backend that
/// was measured speaks for all, and a run goes on with the same bits on another one that is like it.
pub(crate) fn best<'m>(
    machine: &Machine,
    measured: &'m MeasuredCosts,
    device: &Device,
    key: CostKey,
) -> Option<&'m str> {
    let asked = |d: &&Device| match is_gpu(&device.backend) {
        true => d.backend == device.backend,
        false => d.name == device.name,
    };
    let all = machine.devices.iter().filter(asked);
    all.filter_map(|d| measured.get(&d.name, key))
        .next()?
        .variant
        .as_deref()
}

/// The place of a variant among those that an actor's kernels for a GPU can be had in, the default one's being 0.
fn on_gpu(
    registry: &Registry,
    actor: &Actor,
    blobs: &TiSlice<BlobId, Bytes>,
    device: &Device,
    name: &str,
) -> Option<usize> {
    let plan = registry
        .lower_in(actor, blobs, registry.caps(device), Some(name))
        .ok()?;
    plan.variants().iter().position(|known| *known == name)
}

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
    for (id, actor) in graph
        .actors
        .iter_enumerated()
        .filter(|(_, a)| a.role == Role::Compute)
    {
        let key = CostKey::of(actor, blobs);
        // Asking the op costs as much as resolving the actor: only where somebody wants to know.
        let mut known = None;
        for plan in &mut *plans {
            let device = &machine.devices[plan.placement[id]];
            let Some(name) = best(machine, measured, device, key) else {
                continue;
            };
            let place = if is_gpu(&device.backend) {
                on_gpu(registry, actor, blobs, device, name)
            } else {
                let known = known.get_or_insert_with(|| registry.variants(actor, blobs));
                known.iter().position(|known| *known == name)
            };
            match place {
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
