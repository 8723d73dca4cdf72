//! Kernels of GPUs, printed once and kept in the bundle, so that a run need not print them. Those of CUDA devices are
//! assembled as well, if that is asked for.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use zbmd_backends::gpu;
use zbmd_backends::kernels::emit::cubins as cubin_files;
use zbmd_backends::kernels::{Caps, KernelPlan};
use zbmd_backends::op::Registry;
use zbmd_ir::{
    Actor, ActorId, BlobId, Device, DeviceId, DeviceKind, Graph, KernelCode, Plan, Role, TiVec,
};

use crate::assemble::{CubinText, Cubins};
use crate::codes::Code;
use crate::diag::Diagnostic;
use crate::target::Target;

/// Whose kernels are printed.
pub(crate) struct KernelRequest<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) graph: &'a Graph,
    pub(crate) target: &'a Target,
    pub(crate) plans: &'a [Plan],
    /// For which architectures kernels of CUDA devices are assembled, if at all.
    pub(crate) cubins: Option<&'a Cubins>,
}

/// A variant of an actor's kernel on a device of some plan.
type PlacedKernel<'a> = (ActorId, DeviceId, Option<&'a str>);

/// Code by its format and the key of its kernel.
type CodeByKernel = BTreeMap<(String, u128), Vec<u8>>;

impl KernelRequest<'_> {
    /// Prints the kernels of all actors that some plan places on a GPU; their code is appended to the blobs.
    ///
    /// # Errors
    /// CUDA objects that are asked for and cannot be made.
    pub(crate) fn print_kernels(
        &self,
        blobs: &mut TiVec<BlobId, Bytes>,
    ) -> Result<Vec<KernelCode>, Diagnostic> {
        // The order of formats and keys, not that of actors, decides the bytes of the bundle.
        let mut code = CodeByKernel::new();
        let mut cuda_texts = BTreeMap::new();
        for (actor, device, variant) in self.placed_kernels() {
            let actor = &self.graph.actors[actor];
            let device = &self.target.machine.devices[device];
            if actor.role != Role::Compute {
                continue;
            }

            // A run checks what its GPU supports: printed for what all of them do, the code fits any.
            match (&device.backend, self.cubins) {
                (DeviceKind::Vulkan, _) => {
                    if let Some(plan) = self.lower(actor, &Caps::COMMON, variant, blobs) {
                        gpu::print_modules(&plan, &mut code);
                    }
                }
                (DeviceKind::Cuda, Some(cubins)) => {
                    let capabilities = self.target.capabilities.of(device);
                    if let Some(plan) = self.lower(actor, capabilities, variant, blobs) {
                        print_cuda_texts(&plan, device, cubins, &mut cuda_texts);
                    }
                }
                _ => {}
            }
        }

        if let Some(cubins) = self.cubins {
            self.check_cuda_device()?;
            for cubin in cubins.assemble(&cuda_texts)? {
                code.insert((cubin_files::format(&cubin.arch), cubin.key), cubin.object);
            }
        }

        Ok(store_code(code, blobs))
    }

    /// The kernels that the plans use, each once.
    fn placed_kernels(&self) -> BTreeSet<PlacedKernel<'_>> {
        let mut placed = BTreeSet::new();

        // Plans for losses use the same kernels on the same devices: most are printed once for all.
        for plan in self.plans {
            for (actor, device) in plan.placement.iter_enumerated() {
                placed.insert((actor, *device, plan.variant(actor)));
            }
        }
        placed
    }

    fn lower(
        &self,
        actor: &Actor,
        capabilities: &Caps,
        variant: Option<&str>,
        blobs: &TiVec<BlobId, Bytes>,
    ) -> Option<KernelPlan> {
        let lowered = self.registry.lower_in(actor, blobs, capabilities, variant);
        lowered.ok()
    }

    fn check_cuda_device(&self) -> Result<(), Diagnostic> {
        let mut devices = self.target.machine.devices.iter();
        if devices.any(|device| device.backend == DeviceKind::Cuda) {
            return Ok(());
        }
        let message = "objects of CUDA kernels are asked for, and the machine has no CUDA device";
        Err(Diagnostic::new(Code::E0507, message).help(
            "leave `--cubin` away, or compile for a CUDA device: `--gpus`, or a machine file that names one",
        ))
    }
}

/// Prints the texts of a plan's kernels for every architecture asked for.
fn print_cuda_texts(
    plan: &KernelPlan,
    device: &Device,
    cubins: &Cubins,
    texts: &mut BTreeMap<CubinText, String>,
) {
    for arch in &cubins.archs {
        let launches_early = device.programmatic && cubin_files::supports_dependent_launch(arch);
        let mut texts_by_key = BTreeMap::new();
        cubin_files::texts(plan, launches_early, &mut texts_by_key);

        for (key, text) in texts_by_key {
            let arch = arch.clone();
            texts.insert(CubinText { arch, key }, text);
        }
    }
}

/// Appends the code to the blobs.
fn store_code(code: CodeByKernel, blobs: &mut TiVec<BlobId, Bytes>) -> Vec<KernelCode> {
    let mut stored_code = Vec::new();
    for ((format, key), code) in code {
        let blob = blobs.push_and_get_key(code.into());
        stored_code.push(KernelCode { format, key, blob });
    }
    stored_code
}
