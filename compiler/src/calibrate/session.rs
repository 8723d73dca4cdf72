//! Measures the kernels of a model on one group of devices.

use std::time::{Duration, Instant};

use zbmd_backends::team::Team;
use zbmd_ir::{ActorId, Channel, Device, Graph, Machine};

use super::cache::Cache;
use super::gpu;
use super::groups::DeviceGroup;
use super::kernels::ModelKernel;
use super::measure::{Limits, Measurement, Task, measure};
use super::memory::{self, OtherWeights, has_many_weights};
use super::tokens::SeenTokens;
use super::{
    CalibrateOptions, CostSource, EarlyLaunch, HandOver, KernelSources, MeasuredCores, Progress,
    hand_over,
};
use crate::costs::MeasuredCost;

/// The kernels of a model and a group of devices to measure them on.
pub(super) struct GroupSession<'a> {
    pub(super) graph: &'a Graph,
    pub(super) sources: &'a KernelSources<'a>,
    pub(super) kernels: &'a [ModelKernel<'a>],
    pub(super) seen_tokens: &'a SeenTokens,
    pub(super) group: &'a DeviceGroup,
    /// The first device of the group, which stands for all.
    pub(super) device: &'a Device,
    pub(super) how: &'a CalibrateOptions,
}

/// What was found of one kernel.
pub(super) struct KernelOutcome {
    /// The costs of its variants, the default one first; the model only gives that of the default one.
    pub(super) costs: Vec<MeasuredCost>,
    pub(super) source: CostSource,
}

/// A variant of a kernel and what was measured of it.
struct MeasuredVariant {
    variant: Option<&'static str>,
    measurement: Measurement,
}

impl GroupSession<'_> {
    /// The outcomes of all kernels, in their order: from the cache, measured, or modelled.
    pub(super) fn measure_kernels(
        &self,
        cache: &mut Cache,
        progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Vec<KernelOutcome> {
        // On a thread of its own, which is pinned to the device's cores: the caller's stays as it is.
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| self.measure_on_cores(cache, progress));
            match worker.join() {
                Ok(outcomes) => outcomes,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    fn measure_on_cores(
        &self,
        cache: &mut Cache,
        progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Vec<KernelOutcome> {
        // A machine file may name cores that this process does not have. Kernels are then measured on any core.
        let _team = Team::of_cores(&self.device.cores, true);
        let model_weights = self.sources.blobs.iter().map(|blob| blob.len() as u64);
        let core = self.device.cores.first().copied();
        let other_weights = match self.group.gpu {
            None => OtherWeights::new(model_weights.sum(), core),
            Some(_) => None,
        };
        let start_time = Instant::now();
        let clock = || elapsed_ns(start_time);
        let all_cached: Vec<_> = self
            .kernels
            .iter()
            .map(|kernel| self.cached_costs(kernel, cache))
            .collect();

        // Kernels that cannot be made are not measured, and not counted as progress.
        let total = self
            .kernels
            .iter()
            .zip(&all_cached)
            .filter(|(kernel, costs)| kernel.kernel.is_ok() && costs.is_none())
            .count();

        let mut done = 0;
        let mut kernel_outcomes = Vec::with_capacity(self.kernels.len());
        for (kernel, cached_costs) in self.kernels.iter().zip(all_cached) {
            if let Some(costs) = cached_costs {
                let source = CostSource::Cache;
                kernel_outcomes.push(KernelOutcome { costs, source });
                continue;
            }

            if kernel.kernel.is_ok() {
                progress(Progress {
                    done,
                    total,
                    actor: &kernel.actor.name,
                    op: &kernel.actor.op,
                    device: &self.device.name,
                });
                done += 1;
            }

            // Costs by the model are not cached: the next calibration tries to measure again.
            let outcome = self.measure_kernel(kernel, other_weights.as_ref(), &clock);
            if outcome.source == CostSource::Measured && kernel.may_be_cached() {
                let cost_key = kernel.key_on(self.sources, self.group);
                for cost in &outcome.costs {
                    cache.insert(cost_key, cost.clone());
                }
            }

            kernel_outcomes.push(outcome);
        }

        kernel_outcomes
    }

    /// The cached costs of a kernel's variants. They are measured together, taking turns: all are cached, or none counts.
    fn cached_costs(&self, kernel: &ModelKernel<'_>, cache: &Cache) -> Option<Vec<MeasuredCost>> {
        let is_usable = !self.how.fresh && kernel.kernel.is_ok() && kernel.may_be_cached();
        if !is_usable {
            return None;
        }

        let cost_key = kernel.key_on(self.sources, self.group);
        let variants = kernel.variants_on(self.sources, self.group);
        let costs: Option<Vec<MeasuredCost>> = variants
            .into_iter()
            .map(|variant| cache.get(cost_key, variant).cloned())
            .collect();
        costs.filter(|costs| !costs.is_empty())
    }

    /// Measures the variants of one kernel, or takes the cost by the model.
    fn measure_kernel(
        &self,
        kernel: &ModelKernel<'_>,
        other_weights: Option<&OtherWeights>,
        clock: &dyn Fn() -> u64,
    ) -> KernelOutcome {
        let limits = Limits {
            budget_ns: self.how.budget_ns,
            memory_bytes: self.device.memory_bytes,
        };
        let measured_variants = match &self.group.gpu {
            None => self.measure_on_cpu(kernel, other_weights, &limits, clock),
            Some(Err(reason)) => Err(reason.clone()),
            Some(Ok(gpu)) => {
                gpu::variant_plans(self.sources, &kernel.actor, gpu).and_then(|plans| {
                    let measured_variants =
                        gpu::measure(&kernel.actor, gpu, &plans, &limits, clock);
                    let measurements = measured_variants.map_err(|refusal| refusal.to_string())?;
                    let variant_names = plans.iter().map(|plan| plan.variant);
                    Ok(name_variants(variant_names, measurements))
                })
            }
        };

        // What cannot be measured is left to the roofline model, with the reason.
        match measured_variants {
            Ok(variants) => KernelOutcome {
                costs: variants
                    .iter()
                    .map(|variant| variant.cost_of(kernel))
                    .collect(),
                source: CostSource::Measured,
            },
            Err(reason) => KernelOutcome {
                costs: vec![self.modelled_cost(kernel)],
                source: CostSource::Model(reason),
            },
        }
    }

    fn modelled_cost(&self, kernel: &ModelKernel<'_>) -> MeasuredCost {
        match self.sources.modelled_cost(&kernel.actor, self.device) {
            Some(modelled) => kernel.cost(modelled.call_ps, modelled.firing_ps),
            None => kernel.cost(0, 0),
        }
    }

    /// Measures the variants of one kernel on this computer, the default one first.
    fn measure_on_cpu(
        &self,
        kernel: &ModelKernel<'_>,
        other_weights: Option<&OtherWeights>,
        limits: &Limits,
        clock: &dyn Fn() -> u64,
    ) -> Result<Vec<MeasuredVariant>, String> {
        let KernelSources {
            registry, blobs, ..
        } = self.sources;
        let mut variant_kernels = vec![kernel.kernel.clone()?];
        for variant in &kernel.cpu_variants {
            // Made here, one kernel's at a time: each may hold the weights in an order of its own.
            let made_kernel = registry.kernel_in(&kernel.actor, blobs, Some(variant));
            variant_kernels.push(made_kernel.map_err(|error| error.to_string())?);
        }

        // Calls start from the states that a run starts from, so that they compute what a run does.
        let states = initial_states(self.graph, kernel.actor_id);
        let tokens = self.seen_tokens.of_inputs(kernel.actor_id, &kernel.actor);
        let variant_tasks: Vec<Task<'_>> = variant_kernels
            .iter()
            .map(|variant_kernel| Task {
                actor: &kernel.actor,
                kernel: variant_kernel.as_ref(),
                tokens: &tokens,
                states: &states,
                between: other_weights.filter(|_| has_many_weights(&kernel.actor)),
            })
            .collect();
        let measurements =
            measure(&variant_tasks, limits, clock).map_err(|refusal| refusal.to_string())?;
        let variants = kernel.variants_on(self.sources, self.group);
        Ok(name_variants(variants, measurements))
    }

    /// Measures the memory and the hand-overs of a group of CPU devices, or takes them from the cache.
    pub(super) fn measure_cores(&self, machine: &Machine, cache: &mut Cache) -> MeasuredCores {
        let device_ids = self.group.devices.iter();
        let cores: Vec<Option<u32>> = device_ids
            .map(|&id| machine.devices[id].cores.first().copied())
            .collect();
        let budget = Duration::from_nanos(self.how.budget_ns);
        let use_cache = !self.how.fresh;

        let cached = memory::cached_bandwidth(cache, cores.len()).filter(|_| use_cache);
        let bytes_per_s = cached.unwrap_or_else(|| {
            let measured = memory::shared_bandwidth(&cores, budget);
            memory::store_bandwidth(cache, cores.len(), measured)
        });

        let cached = HandOver::cached(cache).filter(|_| use_cache);
        let hand_over = cached.map(Ok).unwrap_or_else(|| {
            // A single device has streams only, which come from any other core.
            let reader_core = cores.get(1).copied().flatten();
            let measured = hand_over::measure(cores[0], reader_core, budget);
            if let Ok(found) = &measured {
                found.store(cache);
            }
            measured
        });

        MeasuredCores {
            bytes_per_s,
            hand_over,
        }
    }

    /// Measures what launching early is worth for the kernels of the model; `None` where the device cannot, or where
    /// none of them can be measured, which its rows report.
    pub(super) fn measure_early_launch(&self) -> Option<EarlyLaunch> {
        let (Some(Ok(gpu)), Some(early_gpu)) = (&self.group.gpu, &self.group.early_gpu) else {
            return None;
        };
        // All kernels together decide, so each needs less time than where it is decided about by itself.
        let limits = Limits {
            budget_ns: self.how.budget_ns / 4,
            memory_bytes: self.device.memory_bytes,
        };
        let start_time = Instant::now();
        let clock = || elapsed_ns(start_time);

        let mut late_ps = 0.0;
        let mut early_ps = 0.0;
        for kernel in self.kernels {
            let KernelSources {
                registry, blobs, ..
            } = self.sources;
            if kernel.kernel.is_err() {
                continue;
            }
            let Some(plan) = registry.lower(&kernel.actor, blobs, gpu.caps()) else {
                continue;
            };

            let ways = [gpu, early_gpu];
            let measured =
                gpu::measure_chains(&kernel.actor, &ways, &plan, &limits, &clock).ok()?;
            let [late, early] = measured[..] else {
                return None;
            };

            // Kernels count as often as the model has them.
            late_ps += kernel.actors as f64 * (late.call_ps + late.firing_ps) as f64;
            early_ps += kernel.actors as f64 * (early.call_ps + early.firing_ps) as f64;
        }

        if late_ps == 0.0 {
            return None;
        }
        Some(EarlyLaunch {
            device: self.device.name.clone(),
            relative: early_ps / late_ps,
        })
    }
}

impl MeasuredVariant {
    fn cost_of(&self, kernel: &ModelKernel<'_>) -> MeasuredCost {
        let measurement = &self.measurement;
        MeasuredCost {
            spread_percent: measurement.spread_percent,
            samples: measurement.samples,
            variant: self.variant.map(str::to_owned),
            ..kernel.cost(measurement.call_ps, measurement.firing_ps)
        }
    }
}

fn name_variants(
    variants: impl IntoIterator<Item = Option<&'static str>>,
    measurements: Vec<Measurement>,
) -> Vec<MeasuredVariant> {
    measurements
        .into_iter()
        .zip(variants)
        .map(|(measurement, variant)| MeasuredVariant {
            variant,
            measurement,
        })
        .collect()
}

fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The tokens that the actor's states start from, in the order of its state pairs.
fn initial_states(graph: &Graph, id: ActorId) -> Vec<&[u8]> {
    let actor = graph.actors[id].ungated();
    let pairs = actor.state.iter();
    pairs
        .map(|pair| {
            let is_written =
                |channel: &&Channel| channel.from.actor == id && channel.from.port == pair.output;
            let channel = graph.channels.iter().find(is_written);
            channel.map_or(&[][..], |channel| channel.initial.as_slice())
        })
        .collect()
}
