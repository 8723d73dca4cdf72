//! Which variant of each kernel a plan runs: those that calibration found to be the best.

use std::collections::BTreeSet;

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_ir::{Actor, BlobId, Device, Graph, Plan, Role, TiSlice};

use crate::codes::Code;
use crate::costs::CostKey;
use crate::diag::{Diagnostic, Sink};
use crate::target::Target;

/// The variant that was measured to be the best on a device; `None` for the default one. On GPUs bits depend on the
/// variant: there the first measured device of a backend decides for all, so that a run continues with the same bits on
/// another device of the kind.
pub(crate) fn best_variant<'a>(
    target: &'a Target,
    device: &Device,
    key: CostKey,
) -> Option<&'a str> {
    let mut deciding_costs = target
        .machine
        .devices
        .iter()
        .filter(|other| decides_for(other, device))
        .filter_map(|other| target.measured.get(&other.name, key));
    deciding_costs.next()?.variant.as_deref()
}

/// Whether what was measured on a device holds for another one.
fn decides_for(measured: &Device, device: &Device) -> bool {
    if device.backend.is_gpu() {
        measured.backend == device.backend
    } else {
        measured.name == device.name
    }
}

/// Where the actors that choose variants are found.
pub(crate) struct VariantRequest<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) target: &'a Target,
    pub(crate) registry: &'a Registry,
    pub(crate) blobs: &'a TiSlice<BlobId, Bytes>,
}

impl VariantRequest<'_> {
    /// Enters the measured variants in the plans; a warning for each that its kernel does not have, which then stays
    /// the default one. Nothing is entered where the default is the best.
    pub(crate) fn choose_variants(&self, plans: &mut [Plan], sink: &mut Sink) {
        if !self.target.measured.has_variants() {
            return;
        }

        let mut unknown_variants = BTreeSet::new();
        for (id, actor) in self.graph.actors.iter_enumerated() {
            if actor.role != Role::Compute {
                continue;
            }
            let cost_key = CostKey::of(actor, self.blobs);

            // Asking the op costs as much as resolving the actor: done once, and only where a variant was measured.
            let mut cpu_variants = None;
            for plan in &mut *plans {
                let device = &self.target.machine.devices[plan.placement[id]];
                let Some(name) = best_variant(self.target, device, cost_key) else {
                    continue;
                };
                let variant_position = if device.backend.is_gpu() {
                    self.gpu_variant_position(actor, device, name)
                } else {
                    let known_variants = cpu_variants
                        .get_or_insert_with(|| self.registry.variants(actor, self.blobs));
                    known_variants
                        .iter()
                        .position(|known_name| *known_name == name)
                };

                match variant_position {
                    // The default one is not written into plans.
                    Some(0) => {}
                    Some(_) => {
                        plan.variants.insert(id, name.to_owned());
                    }
                    // Measured by another version, which had other variants.
                    None => {
                        unknown_variants.insert((actor.op.clone(), name.to_owned()));
                    }
                }
            }
        }

        for (op, name) in unknown_variants {
            let message =
                format!("`{op}` has no variant `{name}`, which was measured to be the best");
            let help = "the default one is taken; measure again with `zbmdc calibrate`";
            sink.push(Diagnostic::new(Code::W0501, message).help(help));
        }
    }

    /// The place of a variant among those that an actor's kernels for a GPU have; the default one is at 0.
    fn gpu_variant_position(&self, actor: &Actor, device: &Device, name: &str) -> Option<usize> {
        let capabilities = self.target.capabilities.of(device);
        let lowered = self
            .registry
            .lower_in(actor, self.blobs, capabilities, Some(name));
        let kernel_plan = lowered.ok()?;
        kernel_plan
            .variants()
            .iter()
            .position(|known| *known == name)
    }
}
