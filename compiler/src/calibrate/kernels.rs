//! The kernels of a model: actors that cost the same share one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use zbmd_backends::gpu::Device as Gpu;
use zbmd_backends::kernel::Kernel;
use zbmd_backends::kernels::Math;
use zbmd_ir::{Actor, ActorId, Graph, Role};

use super::groups::DeviceGroup;
use super::{KernelSources, gpu};
use crate::cost_table::cost_keys;
use crate::costs::{CostKey, MeasuredCost, ports_text};

/// A kernel of the model.
pub(super) struct ModelKernel<'a> {
    /// What its cost is measured under: with exact factors, then with rounded ones where it may round them.
    keys: Vec<CostKey>,
    /// The first actor that has it.
    pub(super) actor_id: ActorId,
    /// Without its gate: what is measured is a firing that is open.
    pub(super) actor: Cow<'a, Actor>,
    /// How many actors have it.
    pub(super) actors: usize,
    /// Firings of a call of the first one, if blocks of plans are known.
    pub(super) firings: Option<u64>,
    /// The default kernel, or why there is none to measure.
    pub(super) kernel: Result<Arc<dyn Kernel>, String>,
    /// The other variants of the kernel on CPUs.
    pub(super) cpu_variants: Vec<&'static str>,
}

/// The kernels of a graph, in the order of their first actors.
pub(super) fn find_kernels<'a>(
    graph: &'a Graph,
    sources: &KernelSources<'_>,
    block: Option<u64>,
) -> Vec<ModelKernel<'a>> {
    // A graph without a repetition vector has no blocks: the compiler says why.
    let repetition = block.and_then(|_| zbmd_scheduler::repetition(graph).ok());
    let mut index_by_keys: BTreeMap<Vec<CostKey>, usize> = BTreeMap::new();
    let mut model_kernels: Vec<ModelKernel<'a>> = Vec::new();
    for (actor_id, actor) in graph.actors.iter_enumerated() {
        if actor.role != Role::Compute {
            continue;
        }
        let keys = cost_keys(actor, sources.blobs);

        // Actors with equal keys cost the same: they are measured once.
        if let Some(&index) = index_by_keys.get(&keys) {
            model_kernels[index].actors += 1;
            continue;
        }

        index_by_keys.insert(keys.clone(), model_kernels.len());
        let mut kernel = ModelKernel::new(keys, actor_id, actor.ungated(), sources);
        let firings = repetition.as_ref().map(|all| all[actor_id]);
        kernel.firings = block.zip(firings).map(|(b, q)| b.saturating_mul(q));
        model_kernels.push(kernel);
    }

    model_kernels
}

impl<'a> ModelKernel<'a> {
    fn new(
        keys: Vec<CostKey>,
        actor_id: ActorId,
        actor: Cow<'a, Actor>,
        sources: &KernelSources<'_>,
    ) -> Self {
        let KernelSources {
            registry, blobs, ..
        } = sources;
        let kernel = registry.kernel(&actor, blobs);
        let all_variants = match kernel {
            Ok(_) => registry.variants(&actor, blobs),
            Err(_) => Vec::new(),
        };
        Self {
            keys,
            actor_id,
            actor,
            actors: 1,
            firings: None,
            kernel: kernel.map_err(|error| error.to_string()),
            // The first one is the default.
            cpu_variants: all_variants.into_iter().skip(1).collect(),
        }
    }

    /// Whether a cached cost is that of this kernel: code of the embedding program changes without changing its key.
    pub(super) fn may_be_cached(&self) -> bool {
        self.actor.op != "Custom"
    }

    /// What its cost on a group of devices belongs to: only GPUs that round have a cost of their own.
    pub(super) fn key_on(&self, sources: &KernelSources<'_>, group: &DeviceGroup) -> CostKey {
        match (&self.keys[..], &group.gpu) {
            ([_, rounded], Some(Ok(gpu))) if self.rounds_on(gpu, sources) => *rounded,
            _ => self.keys[0],
        }
    }

    fn rounds_on(&self, gpu: &Gpu, sources: &KernelSources<'_>) -> bool {
        let kernel_plan = sources
            .registry
            .lower(&self.actor, sources.blobs, gpu.caps());
        kernel_plan.is_some_and(|kernel_plan| kernel_plan.math() != Math::F32)
    }

    /// A cost of the default variant, without spread and samples.
    pub(super) fn cost(&self, call_ps: u64, firing_ps: u64) -> MeasuredCost {
        MeasuredCost {
            op: self.actor.op.clone(),
            ports: ports_text(&self.actor),
            call_ps,
            firing_ps,
            spread_percent: 0.0,
            samples: 0,
            variant: None,
        }
    }

    /// The variants on a group of devices, the default one first as `None`; empty where there is no kernel.
    pub(super) fn variants_on(
        &self,
        sources: &KernelSources<'_>,
        group: &DeviceGroup,
    ) -> Vec<Option<&'static str>> {
        match &group.gpu {
            None => {
                let other_variants = self.cpu_variants.iter().copied().map(Some);
                std::iter::once(None).chain(other_variants).collect()
            }
            Some(Ok(gpu)) => {
                let plans = gpu::variant_plans(sources, &self.actor, gpu).unwrap_or_default();
                plans.into_iter().map(|plan| plan.variant).collect()
            }
            Some(Err(_)) => Vec::new(),
        }
    }
}
