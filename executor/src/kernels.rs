//! The CPU kernels of a program: one for each actor and variant that a plan asks for. Knows no calendars.

use std::collections::BTreeSet;
use std::sync::Arc;

use zbmd_ir::{ActorId, Plan, Program, Role, TiVec};
use zbmd_op::Registry;
use zbmd_op::kernel::Kernel;

use crate::error::EngineError;

/// Kernels by actor; none of sources and sinks.
pub(crate) struct ProgramKernels(TiVec<ActorId, Vec<VariantKernel>>);

struct VariantKernel {
    /// `None` for the default one.
    variant: Option<String>,
    kernel: Arc<dyn Kernel>,
}

impl ProgramKernels {
    /// Makes those that the plans ask for on CPUs, and of each actor at least one.
    ///
    /// # Errors
    /// [`EngineError::Kernel`] for an op or a variant that the registry does not have.
    pub(crate) fn new(program: &Program, registry: &Registry) -> Result<Self, EngineError> {
        let mut kernels = TiVec::new();
        for (id, actor) in program.graph.actors.iter_enumerated() {
            let mut made = Vec::new();
            if actor.role == Role::Compute {
                for variant in wanted_variants(program, id) {
                    let kernel = registry.kernel_in(actor, &program.blobs, variant);
                    let kernel = kernel.map_err(|source| EngineError::Kernel {
                        actor: actor.name.clone(),
                        source,
                    })?;
                    made.push(VariantKernel {
                        variant: variant.map(str::to_owned),
                        kernel,
                    });
                }
            }
            kernels.push(made);
        }
        Ok(Self(kernels))
    }

    /// The kernel that a plan of the program runs an actor by on a CPU; none for sources and sinks, or elsewhere.
    pub(crate) fn of(&self, plan: &Plan, actor: ActorId) -> Option<&Arc<dyn Kernel>> {
        let variant = plan.variant(actor);
        self.0[actor]
            .iter()
            .find(|m| m.variant.as_deref() == variant)
            .map(|m| &m.kernel)
    }
}

/// The variants of an actor's kernel that plans ask for on CPUs. An actor that runs on GPUs only has the default one all
/// the same: a kernel that cannot be made is refused.
fn wanted_variants(program: &Program, id: ActorId) -> BTreeSet<Option<&str>> {
    let plans = program.plans.iter();
    let on_cpus = plans.filter(|plan| {
        let device = plan.placement[id];
        program.machine.devices[device].backend.is_cpu()
    });
    let wanted: BTreeSet<Option<&str>> = on_cpus.map(|plan| plan.variant(id)).collect();
    if wanted.is_empty() {
        [None].into()
    } else {
        wanted
    }
}
