//! Calibration: what each kernel of a model costs on each device, from the cache, by measuring, or by the model.
//!
//! Entry points are [`crate::calibrate_file`] and [`crate::calibrate_str`]. Only this part of the compiler has a
//! clock; compilation takes what was measured from [`MeasuredCosts`] and stays a function of its input.

mod cache;
mod choice;
mod gpu;
mod groups;
mod hand_over;
mod kernels;
mod kind;
mod measure;
mod memory;
mod session;
mod tokens;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use zbmd_backends::gpu::missing_support;
use zbmd_backends::op::{GpuCapabilities, Registry};
use zbmd_ir::{Actor, ActorCost, BlobId, Device, DeviceId, Graph, Machine, Role, TiSlice};

use crate::costs::{CostKey, MeasuredCost, MeasuredCosts};
use crate::diag::{Diagnostics, Sink};
use crate::machine;
use crate::target::Target;
use crate::write::{WriteError, write_whole};
use cache::Cache;
use choice::{MIN_GAIN, best_cost, relative_time};
use groups::{DeviceGroup, find_groups};
pub use hand_over::HandOver;
use kernels::{ModelKernel, find_kernels};
use session::{GroupSession, KernelOutcome};
use tokens::SeenTokens;
pub(crate) use tokens::check_inputs;

/// How to calibrate.
#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    /// Folder of the cache; made if it is missing. `None` for no cache.
    pub cache: Option<PathBuf>,
    /// Measures again what the cache has, and replaces it there.
    pub fresh: bool,
    /// Time for each variant of each kernel on each kind of device. At least 5 samples are taken, however short it is.
    pub budget_ns: u64,
    /// Iterations of a block, if plans will have no other: variants are then compared by calls of that length, and by short
    /// and long ones otherwise.
    pub block: Option<u64>,
    /// Tokens of sources, by name, as bytes: actors of the embedding program are measured with what comes to them when the
    /// model runs on these, and with any values where there are none. Of a source that is not named, any are taken.
    pub inputs: BTreeMap<String, Vec<u8>>,
}

impl CalibrateOptions {
    /// Time for each kernel unless asked otherwise.
    pub const BUDGET_NS: u64 = 50_000_000;
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        Self {
            cache: None,
            fresh: false,
            budget_ns: Self::BUDGET_NS,
            block: None,
            inputs: BTreeMap::new(),
        }
    }
}

/// Where a cost comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// Measured now.
    Measured,
    /// Measured earlier.
    Cache,
    /// Not measured, for this reason: the roofline is used.
    Model(String),
}

impl std::fmt::Display for CostSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CostSource::Measured => "measured",
            CostSource::Cache => "cache",
            CostSource::Model(_) => "model",
        })
    }
}

/// The cost of one kernel on one kind of device: of the best of its variants.
#[derive(Clone, Debug, PartialEq)]
pub struct CostRow {
    /// First actor that has the kernel.
    pub actor: String,
    /// Actors that share it.
    pub actors: usize,
    /// Names of the devices, all of one kind.
    pub devices: Vec<String>,
    /// The cost; without spread and samples where it is modelled.
    pub cost: MeasuredCost,
    /// Where it comes from.
    pub source: CostSource,
    /// The costs of all variants, the default one first, where there are several and none is modelled.
    pub variants: Vec<MeasuredCost>,
    /// Firings of a call by which variants were compared; of short and long ones if `None`.
    pub firings: Option<u64>,
    /// Picoseconds of a call with one firing by the roofline model.
    pub modelled_ps: Option<u64>,
}

impl CostRow {
    /// How much more than the default one the best variant takes, as a fraction: at most 0. `None` where it is the
    /// default.
    pub fn gain(&self) -> Option<f64> {
        self.cost.variant.as_ref()?;
        let default_cost = self.variants.first()?;
        Some(relative_time(&self.cost, default_cost, self.firings) - 1.0)
    }

    /// Picoseconds of a call with one firing of each of its actors, as found, and by the roofline model.
    pub fn found_and_modelled_ps(&self) -> (u64, u64) {
        let found_ps = self.cost.call_ps.saturating_add(self.cost.firing_ps);
        let of_all = |ps: u64| ps.saturating_mul(self.actors as u64);
        (
            of_all(found_ps),
            of_all(self.modelled_ps.unwrap_or(found_ps)),
        )
    }
}

/// The effect of launching kernels of a CUDA device before those that they wait for have ended.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyLaunch {
    /// Name of the device.
    pub device: String,
    /// Time of calls of the model's kernels, each in a row, as a fraction of their time without early launches.
    pub relative: f64,
}

impl EarlyLaunch {
    /// Whether the time is clearly shorter.
    pub fn pays(&self) -> bool {
        self.relative <= 1.0 - MIN_GAIN
    }
}

/// What like CPU devices take besides their kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreCosts {
    /// Names of the devices, all of one kind.
    pub devices: Vec<String>,
    /// Bytes per second that the core of each moves to and from memory while those of all others do.
    pub bytes_per_s: u64,
    /// A hand-over from one of them to another, or why none could be measured.
    pub hand_over: Result<HandOver, String>,
    /// Bandwidth and latency, in nanoseconds, of the first link that was replaced, as it was before.
    pub link_before: Option<(u64, u64)>,
}

/// What a calibration found.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The machine as given, except for what [`Self::early`] and [`Self::cores`] say.
    pub machine: Machine,
    /// Costs that were given with it, and those measured or cached now. Modelled ones are not among them.
    pub costs: MeasuredCosts,
    /// One row for each kernel and kind of device, kinds in the order of their devices, kernels of their actors.
    pub rows: Vec<CostRow>,
    /// Of each device that can: every calibration decides anew whether it launches kernels early.
    pub early: Vec<EarlyLaunch>,
    /// Memory and hand-overs of each kind of CPU device. Links between devices of one kind, and the bandwidth of each, are
    /// those in [`Self::machine`]; what sources and sinks cost by them is among [`Self::costs`].
    pub cores: Vec<CoreCosts>,
    /// Warnings; no errors among them.
    pub warnings: Diagnostics,
}

impl Calibration {
    /// The machine and its costs as a `machine.ron`.
    ///
    /// # Errors
    /// None in practice: every machine can be written.
    pub fn to_ron(&self) -> Result<String, ron::Error> {
        machine::to_ron_with_costs(&self.machine, &self.costs)
    }

    /// Writes the `machine.ron`; the file appears whole or not at all.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), WriteError> {
        let path = path.as_ref();
        let text = self.to_ron().map_err(std::io::Error::other);
        text.and_then(|text| write_whole(path, &text))
            .map_err(|error| WriteError::new(path, error))
    }

    /// Adds what was found of the kernels on a group of devices.
    fn add_group(
        &mut self,
        group: &DeviceGroup,
        kernels: &[ModelKernel<'_>],
        outcomes: Vec<KernelOutcome>,
        sources: &KernelSources<'_>,
    ) {
        let device_names = group.device_names(&self.machine);
        let mut devices = self.machine.devices.iter();
        let first_device = devices
            .find(|device| Some(&device.name) == device_names.first())
            .cloned();
        for (kernel, outcome) in kernels.iter().zip(outcomes) {
            let Some(best) = best_cost(&outcome.costs, kernel.firings).cloned() else {
                continue;
            };
            let is_measured = !matches!(outcome.source, CostSource::Model(_));

            // What the model says is not kept: a later version of it may say something else.
            if is_measured {
                let cost_key = kernel.key_on(sources, group);
                for device in &device_names {
                    self.costs.insert(device, cost_key, best.clone());
                }
            }

            let has_variants = outcome.costs.len() > 1;
            let modelled = first_device
                .as_ref()
                .and_then(|device| sources.modelled_cost(&kernel.actor, device));
            self.rows.push(CostRow {
                actor: kernel.actor.name.clone(),
                actors: kernel.actors,
                devices: device_names.clone(),
                cost: best,
                source: outcome.source,
                variants: if has_variants {
                    outcome.costs
                } else {
                    Vec::new()
                },
                firings: kernel.firings,
                modelled_ps: modelled.map(|cost| cost.call_ps.saturating_add(cost.firing_ps)),
            });
        }
    }

    /// Has the machine's memory and links, and the model's streams, cost what was measured of a group of CPU devices.
    fn add_cores(
        &mut self,
        group: &DeviceGroup,
        found: MeasuredCores,
        streams: &[StreamActor<'_>],
    ) {
        for &id in &group.devices {
            self.machine.devices[id].bytes_per_s = found.bytes_per_s;
        }

        let device_names = group.device_names(&self.machine);
        let mut link_before = None;
        if let Ok(hand_over) = &found.hand_over {
            let is_inner = |id: DeviceId| group.devices.contains(&id);
            self.machine.links.change(|link| {
                if is_inner(link.from) && is_inner(link.to) {
                    link_before = link_before.or(Some((link.bytes_per_s, link.latency_ns)));
                    link.bytes_per_s = hand_over.bytes_per_s();
                    link.latency_ns = hand_over.latency_ns();
                }
            });

            for (actor, cost_key) in streams {
                for device in &device_names {
                    let cost = hand_over.stream_cost(actor);
                    self.costs.insert(device, *cost_key, cost);
                }
            }
        }

        self.cores.push(CoreCosts {
            devices: device_names,
            bytes_per_s: found.bytes_per_s,
            hand_over: found.hand_over,
            link_before,
        });
    }

    /// Has each device launch kernels early where that was found to pay.
    fn apply_early_launches(&mut self) {
        for device in &mut self.machine.devices {
            let mut measured_launches = self.early.iter();
            if let Some(early) = measured_launches.find(|early| early.device == device.name) {
                device.programmatic = early.pays();
            }
        }
    }
}

/// A source or a sink, and what its cost is kept under.
type StreamActor<'a> = (&'a Actor, CostKey);

/// What was measured of the cores of a group of CPU devices.
struct MeasuredCores {
    bytes_per_s: u64,
    hand_over: Result<HandOver, String>,
}

/// Passed to the caller before a kernel is measured.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Kernels already measured on this kind of device.
    pub done: usize,
    /// Kernels to measure on it.
    pub total: usize,
    /// First actor that has the kernel.
    pub actor: &'a str,
    /// Its op.
    pub op: &'a str,
    /// First device of the kind.
    pub device: &'a str,
}

/// What kernels are made from.
#[derive(Clone, Copy)]
pub(crate) struct KernelSources<'a> {
    pub(crate) registry: &'a Registry,
    /// What the GPUs of the machine can do.
    pub(crate) capabilities: &'a GpuCapabilities,
    pub(crate) blobs: &'a TiSlice<BlobId, Bytes>,
}

impl KernelSources<'_> {
    /// What the cost model says of an actor on a device; `None` where that has no kernel for it.
    fn modelled_cost(&self, actor: &Actor, device: &Device) -> Option<ActorCost> {
        let Self {
            registry,
            capabilities,
            blobs,
        } = self;
        match missing_support(&device.backend) {
            Some(_) => None,
            None => registry.cost(actor, device, capabilities, blobs),
        }
    }
}

/// Measures all kernels of the graph on all devices of the target, which must be this computer's; costs that the target
/// has are kept. The warnings in the result are empty: they are in `sink`.
pub(crate) fn run(
    graph: &Graph,
    sources: &KernelSources<'_>,
    target: Target,
    how: &CalibrateOptions,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
    sink: &mut Sink,
) -> Calibration {
    let kernels = find_kernels(graph, sources, how.block);
    let seen_tokens = SeenTokens::of(graph, sources, &how.inputs);
    let device_groups = find_groups(&target.machine);
    let stream_actors = graph.actors.iter().filter(|a| a.role != Role::Compute);
    let streams: Vec<StreamActor<'_>> = stream_actors
        .map(|actor| (actor, CostKey::of(actor, sources.blobs)))
        .collect();
    let mut calibration = Calibration {
        machine: target.machine,
        costs: target.measured,
        rows: Vec::new(),
        early: Vec::new(),
        cores: Vec::new(),
        warnings: Diagnostics::default(),
    };

    for group in device_groups {
        // The cache is closed after each group, so that an interrupt loses the costs of one group at most.
        let identity = (group.kind.as_str(), sources.registry.kernel_code());
        let mut group_cache = Cache::open(how.cache.as_deref(), identity, sink);
        let group_session = GroupSession {
            graph,
            sources,
            kernels: &kernels,
            seen_tokens: &seen_tokens,
            group: &group,
            device: &calibration.machine.devices[group.devices[0]],
            how,
        };

        let kernel_outcomes = group_session.measure_kernels(&mut group_cache, progress);
        let is_cpu = group.gpu.is_none();
        let cores =
            is_cpu.then(|| group_session.measure_cores(&calibration.machine, &mut group_cache));
        group_cache.close(sink);
        let early = group_session.measure_early_launch();

        calibration.add_group(&group, &kernels, kernel_outcomes, sources);
        if let Some(cores) = cores {
            calibration.add_cores(&group, cores, &streams);
        }
        calibration.early.extend(early);
    }

    calibration.apply_early_launches();
    calibration
}

#[cfg(test)]
mod tests;
