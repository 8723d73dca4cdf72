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
    let on_gpu = |plan: &Plan| -> Vec<ActorId> {
        let placed = plan.placement.iter_enumerated();
        let there = placed.filter(|(_, device)| machine.devices[**device].backend == "vulkan");
        there.map(|(actor, _)| actor).collect()
    };
    let actors: BTreeSet<ActorId> = plans.iter().flat_map(on_gpu).collect();
    let mut codes = BTreeMap::new();
    for actor in actors.into_iter().map(|id| &graph.actors[id]) {
        if actor.role == Role::Compute
            && let Some(plan) = registry.lower(actor, blobs, &Caps::COMMON)
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
