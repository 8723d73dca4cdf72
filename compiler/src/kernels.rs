//! Kernels of GPUs, printed once and kept in the bundle, so that a run need not print them; those of CUDA devices also
//! assembled, if that is asked for.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_backends::{cuda, kernels::Caps, vulkan};
use zbmd_ir::{ActorId, BlobId, DeviceId, Graph, KernelCode, Machine, Plan, Role, TiVec};

use crate::assemble::{self, Cubins};
use crate::codes::Code;
use crate::diag::Diagnostic;

/// Prints the kernels of all actors that some plan places on a GPU; their code becomes the last of the blobs.
///
/// # Errors
/// Objects that are asked for and cannot be made.
pub(crate) fn print(
    registry: &Registry,
    graph: &Graph,
    machine: &Machine,
    plans: &[Plan],
    cubins: Option<&Cubins>,
    blobs: &mut TiVec<BlobId, Bytes>,
) -> Result<Vec<KernelCode>, Diagnostic> {
    let mut wanted: BTreeSet<(ActorId, DeviceId, Option<&str>)> = BTreeSet::new();
    for plan in plans {
        let placed = plan.placement.iter_enumerated();
        wanted.extend(placed.map(|(actor, device)| (actor, *device, plan.variant(actor))));
    }
    let (mut codes, mut texts) = (BTreeMap::new(), BTreeMap::new());
    for (id, device, variant) in wanted {
        let (actor, device) = (&graph.actors[id], &machine.devices[device]);
        let lower = |caps: &Caps| registry.lower_in(actor, blobs, caps, variant).ok();
        if actor.role != Role::Compute {
            continue;
        }
        if device.backend == "vulkan" {
            let plan = lower(&Caps::COMMON);
            plan.iter()
                .for_each(|plan| vulkan::print_all(plan, &mut codes));
        }
        if device.backend == "cuda"
            && let Some(cubins) = cubins
            && let Some(plan) = lower(registry.caps(device))
        {
            for arch in &cubins.archs {
                let mut own = BTreeMap::new();
                cuda::texts(
                    &plan,
                    device.programmatic && cuda::supports_dependent_launch(arch),
                    &mut own,
                );
                texts.extend(
                    own.into_iter()
                        .map(|(key, text)| ((arch.clone(), key), text)),
                );
            }
        }
    }
    let codes = codes
        .into_iter()
        .map(|(key, code)| ((vulkan::FORMAT.to_owned(), key), code));
    let mut all: BTreeMap<(String, u128), Vec<u8>> = codes.collect();
    if let Some(cubins) = cubins {
        if !machine.devices.iter().any(|d| d.backend == "cuda") {
            let what = "objects of CUDA kernels are asked for, and the machine has no CUDA device";
            return Err(Diagnostic::new(Code::E0507, what).help(
                "leave `--cubin` away, or compile for a CUDA device: `--gpus`, or a machine file that names one",
            ));
        }
        for (arch, key, object) in assemble::all(cubins, &texts)? {
            all.insert((cuda::format(&arch), key), object);
        }
    }
    let kept = all.into_iter().map(|((format, key), code)| {
        let blob = blobs.push_and_get_key(code.into());
        KernelCode { format, key, blob }
    });
    Ok(kept.collect())
}
