//! Weights that do not fit the memory of a device with a tier are fetched in every period.

use std::fmt;

use bytes::Bytes;
use zbmd_backends::kernels::LowerKernels;
use zbmd_backends::op::{GpuCapabilities, Registry};
use zbmd_ir::text::{bytes, duration};
use zbmd_ir::{ActorId, BlobId, Graph, Machine, Plan, TiSlice, has_live};
use zbmd_scheduler::tiers::{self, TierError, TierUse, WeightSizes};

use crate::codes::Code;
use crate::diag::Diagnostic;
use crate::pack::visit_tensors;

/// What a device fetches while the main plan runs, and what that costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedWeights {
    /// The device's name.
    pub device: String,
    /// Bytes that it fetches in each period.
    pub fetched_bytes: u64,
    /// Bytes of all weights of its actors that could be fetched.
    pub weight_bytes: u64,
    /// Planned time that its tier takes for them.
    pub transfer_ns: u64,
    /// The plan's period, and what it would be with all weights in memory.
    pub period_ns: u64,
    /// See above.
    pub period_without_ns: u64,
}

impl fmt::Display for FetchedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} fetches {} of {} of weights in each period, which takes {}: period {}, {} with all of them in memory",
            self.device,
            bytes(self.fetched_bytes),
            bytes(self.weight_bytes),
            duration(self.transfer_ns),
            duration(self.period_ns),
            duration(self.period_without_ns),
        )
    }
}

/// What decides which weights may be fetched.
pub(crate) struct WeightSources<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) graph: &'a Graph,
    pub(crate) blobs: &'a TiSlice<BlobId, Bytes>,
    pub(crate) machine: &'a Machine,
    pub(crate) capabilities: &'a GpuCapabilities,
}

/// Lets the plans fetch what does not fit; what is fetched in the first of them.
///
/// # Errors
/// What cannot be fetched either.
pub(crate) fn fetch_weights(
    sources: &WeightSources<'_>,
    plans: &mut [Plan],
) -> Result<Vec<FetchedWeights>, Diagnostic> {
    let machine = sources.machine;
    if machine.tiers.is_empty() {
        return Ok(Vec::new());
    }
    let mut fetched = Vec::new();
    for (index, plan) in plans.iter_mut().enumerate() {
        let name = plan.name.clone();
        let sizes = sources.sizes_in(plan);
        let uses = tiers::fetch_weights(machine, &sizes, plan);
        let uses = uses.map_err(|error| refuse(&error, machine, &name))?;
        if index == 0 {
            fetched = uses.iter().map(|used| describe(used, machine)).collect();
        }
    }
    Ok(fetched)
}

/// Whether the buffers of a plan leave room on each device with a tier for all its constants, or for four of the largest:
/// two that are fetched in turn, and what they may grow by when they are packed.
pub(crate) fn has_room(graph: &Graph, machine: &Machine, plan: &Plan) -> bool {
    let mut has_room = true;
    for calendar in &plan.calendars {
        if !machine.tiers.contains_key(&calendar.device) {
            continue;
        }
        let mut total_bytes = 0u64;
        let mut largest_bytes = 0u64;
        for (id, actor) in graph.actors.iter_enumerated() {
            if plan.placement[id] != calendar.device {
                continue;
            }
            for value in actor.params.values() {
                visit_tensors(value, &mut |_, tensor| {
                    total_bytes = total_bytes.saturating_add(tensor.bytes());
                    largest_bytes = largest_bytes.max(tensor.bytes());
                });
            }
        }
        let weight_bytes = total_bytes.min(largest_bytes.saturating_mul(4));
        let buffer_bytes = calendar.arena_bytes.saturating_add(calendar.exchange_bytes);
        let needed_bytes = buffer_bytes.saturating_add(weight_bytes);
        has_room &= needed_bytes <= machine.devices[calendar.device].memory_bytes;
    }
    has_room
}

impl WeightSources<'_> {
    /// The bytes of all actors' constants, each on its device in a plan.
    fn sizes_in(&self, plan: &Plan) -> WeightSizes {
        let mut sizes = WeightSizes::default();
        for (id, actor) in self.graph.actors.iter_enumerated() {
            let fetchable_bytes = self.fetchable_bytes(plan, id);
            let mut all_bytes = 0u64;
            for value in actor.params.values() {
                visit_tensors(value, &mut |_, tensor| {
                    all_bytes = all_bytes.saturating_add(tensor.bytes());
                });
            }
            sizes.fetchable.push(fetchable_bytes);
            sizes.other.push(all_bytes.saturating_sub(fetchable_bytes));
        }
        sizes
    }

    /// Bytes that the device of an actor may fetch for it; 0 if it may not.
    fn fetchable_bytes(&self, plan: &Plan, id: ActorId) -> u64 {
        let actor = &self.graph.actors[id];
        let device = plan.placement[id];
        let described = &self.machine.devices[device];
        let weights = actor.fetchable_weights(&described.backend);
        let Some((blob, token)) =
            weights.filter(|_| self.machine.tiers.contains_key(&device) && !has_live(actor))
        else {
            return 0;
        };

        // Kernels of GPUs that rearrange their weights have no use for those of the model.
        let is_read_as_stored = !described.backend.is_gpu() || {
            let capabilities = self.capabilities.of(described);
            let variant = plan.variant(id);
            let kernels = self
                .registry
                .lower_kernels(actor, self.blobs, capabilities, variant);
            kernels.is_ok_and(|kernels| kernels.constant_like(&self.blobs[blob]).is_some())
        };
        if is_read_as_stored { token.bytes() } else { 0 }
    }
}

fn describe(used: &TierUse, machine: &Machine) -> FetchedWeights {
    FetchedWeights {
        device: machine.devices[used.device].name.clone(),
        fetched_bytes: used.fetched_bytes,
        weight_bytes: used.weight_bytes,
        transfer_ns: used.transfer_ns,
        period_ns: used.period_ns,
        period_without_ns: used.period_without_ns,
    }
}

fn refuse(error: &TierError, machine: &Machine, plan: &str) -> Diagnostic {
    match *error {
        TierError::Memory {
            device,
            needed_bytes,
            limit_bytes,
        } => {
            let device = &machine.devices[device].name;
            let message = format!(
                "plan `{plan}` needs {needed_bytes} bytes on `{device}` for all that it does not fetch and two of the largest weights that it does, {limit_bytes} are there"
            );
            Diagnostic::new(Code::E0504, message).help(
                "give the device more `memory`, ask for a smaller `--block`, or make the largest layer smaller",
            )
        }
        TierError::Tier {
            device,
            needed_bytes,
            limit_bytes,
        } => {
            let device = &machine.devices[device].name;
            let message = format!(
                "plan `{plan}` fetches {needed_bytes} bytes of weights on `{device}`, whose tier has {limit_bytes}"
            );
            Diagnostic::new(Code::E0504, message).help("give the tier or the device more `memory`")
        }
    }
}
