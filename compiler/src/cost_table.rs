//! What every actor costs on every device: as measured where it was, otherwise by the roofline.

use std::cell::LazyCell;
use std::collections::BTreeSet;

use bytes::Bytes;
use zbmd_backends::gpu::missing_support;
use zbmd_backends::kernels::Math;
use zbmd_backends::op::Registry;
use zbmd_ir::{Actor, ActorCost, ActorId, BlobId, Costs, Device, Graph, TiSlice, TiVec};

use crate::costs::CostKey;
use crate::target::Target;
use crate::variants;

/// What costs come from.
#[derive(Clone, Copy)]
pub(crate) struct CostSources<'a> {
    pub(crate) target: &'a Target,
    pub(crate) registry: &'a Registry,
    /// The tensors of the graph's parameters.
    pub(crate) blobs: &'a TiSlice<BlobId, Bytes>,
}

impl CostSources<'_> {
    /// The costs of all actors of a graph on all devices; none where a device has no kernel for an actor.
    pub(crate) fn cost_table(&self, graph: &Graph) -> Costs {
        let rows = graph.actors.iter().map(|actor| self.cost_row(actor));
        let mut table: TiVec<ActorId, _> = rows.collect();
        let gpus = self.target.machine.devices.iter_enumerated();
        let gpus = gpus.filter(|(_, device)| device.backend.is_gpu());
        for (gpu, _) in gpus {
            for actor in gate_openers(graph, |gated| table[gated][gpu].is_some()) {
                table[actor][gpu] = None;
            }
        }
        Costs { table }
    }

    fn cost_row(&self, actor: &Actor) -> TiVec<zbmd_ir::DeviceId, Option<ActorCost>> {
        // Keys hash all tensors of an actor: they are only made where something was measured.
        let measured_keys = if !self.target.measured.is_empty() {
            cost_keys(actor, self.blobs)
        } else {
            Vec::new()
        };
        // Kernels are made once, however many CPU devices there are.
        let cpu_work = LazyCell::new(|| self.registry.cpu_work(actor, self.blobs));
        let devices = self.target.machine.devices.iter();
        devices
            .map(|device| {
                let predicted = match device.backend.is_cpu() {
                    true => cpu_work.map(|work| work.cost_on(device)),
                    // Nothing runs on devices that this build cannot drive.
                    false if missing_support(&device.backend).is_some() => None,
                    false => {
                        let capabilities = &self.target.capabilities;
                        self.registry.cost(actor, device, capabilities, self.blobs)
                    }
                };
                Some(self.device_cost(actor, device, predicted?, &measured_keys))
            })
            .collect()
    }

    /// The cost of an actor on a device, as measured or else as predicted; `keys` are those that it was measured under,
    /// if anything was.
    fn device_cost(
        &self,
        actor: &Actor,
        device: &Device,
        predicted: ActorCost,
        keys: &[CostKey],
    ) -> ActorCost {
        let mut cost = predicted;

        // A variant may need more memory than the default one, which it falls back to.
        if device.backend.is_gpu() {
            let variant_bytes = keys
                .iter()
                .filter_map(|key| self.variant_scratch_bytes(actor, device, *key));
            cost.scratch_bytes = variant_bytes.fold(cost.scratch_bytes, u64::max);
        }

        // Where rounded factors make no difference, or were not measured, the cost with exact
        // ones is used.
        let usable_keys = if device.backend.may_round_factors() {
            keys
        } else {
            &keys[..keys.len().min(1)]
        };
        let measured = usable_keys
            .iter()
            .rev()
            .find_map(|key| self.target.measured.get(&device.name, *key));
        if let Some(measured) = measured {
            cost.call_ps = measured.call_ps;
            cost.firing_ps = measured.firing_ps;
        }

        cost
    }

    /// Scratch bytes of the variant that was measured to be the best, if it is not the default one.
    fn variant_scratch_bytes(&self, actor: &Actor, device: &Device, key: CostKey) -> Option<u64> {
        let variant = variants::best_variant(self.target, device, key)?;
        let capabilities = self.target.capabilities.of(device);
        let kernel_plan = self
            .registry
            .lower_in(actor, self.blobs, capabilities, Some(variant));
        Some(kernel_plan.ok()?.scratch_bytes())
    }
}

/// The actors that open gates of actors which a GPU can have. They run on CPUs: the host reads their tokens before it
/// submits what they decide about.
pub(crate) fn gate_openers(
    graph: &Graph,
    is_on_gpu: impl Fn(ActorId) -> bool,
) -> BTreeSet<ActorId> {
    let ports = graph.port_channels();
    let actors = graph.actors.iter_enumerated();
    let gated = actors.filter_map(|(id, actor)| Some((id, actor.gate()?)));
    let channels = gated
        .filter(|(id, _)| is_on_gpu(*id))
        .filter_map(|(id, gate)| ports.inputs[id][gate.input as usize]);
    channels
        .map(|(channel, _)| graph.channels[channel].from.actor)
        .collect()
}

/// What the cost of an actor is measured under: with exact factors, then with rounded ones where it may round them.
pub(crate) fn cost_keys(actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Vec<CostKey> {
    let mut exact_actor = actor.clone();
    let may_round = exact_actor.params.remove(Math::PARAM).is_some();

    let mut keys = vec![CostKey::of(&exact_actor, blobs)];
    if may_round {
        keys.push(CostKey::of(actor, blobs));
    }
    keys
}
