//! Kernels of GPUs, printed once and kept in the bundle, so that a run need not print them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_backends::{kernels::Caps, vulkan};
use zbmd_ir::{ActorId, BlobId, Graph, KernelCode, Machine, Plan, Role, TiVec};

/// Prints the kernels of all actors that some plan places on a GPU; their code becomes the last of the blobs.
pub(crate) fn print(
    registry: &Registry,
    graph: &Graph,
    machine: &Machine,
    plans: &[Plan],
    blobs: &mut TiVec<BlobId, Bytes>,
) -> Vec<KernelCode> {
    let mut wanted: BTreeSet<(ActorId, Option<&str>)> = BTreeSet::new();
    for plan in plans {
        let placed = plan.placement.iter_enumerated();
        let there = placed.filter(|(_, device)| machine.devices[**device].backend == "vulkan");
        wanted.extend(there.map(|(actor, _)| (actor, plan.variant(actor))));
    }
    let mut codes = BTreeMap::new();
    for (id, variant) in wanted {
        let actor = &graph.actors[id];
        if actor.role == Role::Compute
            && let Ok(plan) = registry.lower_in(actor, blobs, &Caps::COMMON, variant)
        {
            vulkan::print_all(&plan, &mut codes);
        }
    }
    let kept = codes.into_iter().map(|(key, code)| {
        let blob = blobs.push_and_get_key(code.into());
        KernelCode { format: vulkan::FORMAT.to_owned(), key, blob }
    });
    kept.collect()
}
