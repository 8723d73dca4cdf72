//! The CPU kernels of a program: one for each actor and variant that a plan asks for. Knows no calendars.

use std::collections::BTreeSet;
use std::sync::Arc;

use zbmd_backends::kernel::Kernel;
use zbmd_backends::op::Registry;
use zbmd_ir::{ActorId, Plan, Program, Role, TiVec};

use crate::error::EngineError;

/// ProgramKernels by actor; none of sources and sinks.
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
            let mut made: Vec<VariantKernel> = Vec::new();
            let on_cpu =
                |plan: &&Plan| program.machine.devices[plan.placement[id]].backend.is_cpu();
            let wanted = program
                .plans
                .iter()
                .filter(on_cpu)
                .map(|plan| plan.variant(id));
            // One that runs on GPUs only has a kernel all the same: what has none is refused here.
            let wanted: BTreeSet<Option<&str>> = wanted.collect();
            let wanted = if wanted.is_empty() {
                [None].into()
            } else {
                wanted
            };
            for variant in wanted.into_iter().filter(|_| actor.role == Role::Compute) {
                let kernel = registry.kernel_in(actor, &program.blobs, variant);
                let kernel = kernel.map_err(|source| {
                    let actor = actor.name.clone();
                    EngineError::Kernel { actor, source }
                })?;
                made.push(VariantKernel {
                    variant: variant.map(str::to_owned),
                    kernel,
                });
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

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<dyn Kernel>> {
        self.0.iter().flatten().map(|m| &m.kernel)
    }
}
