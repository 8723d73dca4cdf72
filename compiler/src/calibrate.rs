//! Calibration: what each kernel of a model costs on each device, from the cache, by measuring, or by the model.
//!
//! Entry points are [`crate::calibrate_file`] and [`crate::calibrate_str`]. Only this part of the compiler has a
//! clock; compilation takes what was measured from [`MeasuredCosts`] and stays a function of its input.

mod cache;
mod gpu;
mod kind;
mod measure;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use zbmd_backends::gpu::{Device as Gpu, Drivers, Options, is_gpu};
use zbmd_backends::kernel::Kernel;
use zbmd_backends::kernels::Math;
use zbmd_backends::op::Registry;
use zbmd_backends::team::Team;
use zbmd_ir::{Actor, ActorId, BlobId, Device, DeviceId, Graph, Machine, Role, TiSlice};

use crate::compile::WriteError;
use crate::costs::{CostKey, MeasuredCost, MeasuredCosts, ports_text};
use crate::diag::{Diagnostics, Sink};
use crate::machine;
use crate::pipeline::cost_keys;
use cache::Cache;
use measure::{Limits, Measurement, Task, measure};

/// How to calibrate.
#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    /// Folder of the cache; made if it is missing. `None` for no cache.
    pub cache: Option<PathBuf>,
    /// Measures again what the cache has, and replaces it there.
    pub fresh: bool,
    /// Time for each variant of each kernel on each kind of device. At least 5 samples are taken, however short it is.
    pub budget_ns: u64,
}

impl CalibrateOptions {
    /// Time for each kernel unless asked otherwise.
    pub const BUDGET_NS: u64 = 200_000_000;
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        Self {
            cache: None,
            fresh: false,
            budget_ns: Self::BUDGET_NS,
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
}

impl CostRow {
    /// How much more than the default one the best variant takes, as a fraction: at most 0. `None` where it is the
    /// default.
    pub fn gain(&self) -> Option<f64> {
        self.cost.variant.as_ref()?;
        self.variants
            .first()
            .map(|default| relative(&self.cost, default) - 1.0)
    }
}

/// How much less of the default's time a variant must take to be chosen, and more where measurements lie apart further.
const WORTH: f64 = 0.03;

/// What a variant takes as a fraction of what another takes: the mean of single firings and long calls.
fn relative(cost: &MeasuredCost, other: &MeasuredCost) -> f64 {
    const LONG: f64 = 64.0;
    let ps = |c: &MeasuredCost, n: f64| c.call_ps as f64 + n * c.firing_ps as f64;
    let fraction = |n: f64| ps(cost, n) / ps(other, n).max(1.0);
    (fraction(1.0) + fraction(LONG)) / 2.0
}

/// The best of the costs of a kernel's variants, of which the first is the default one's: that, unless another is
/// clearly better.
fn best(costs: &[MeasuredCost]) -> Option<&MeasuredCost> {
    let default = costs.first()?;
    let of = |cost: &MeasuredCost| relative(cost, default);
    let quickest = costs.iter().min_by(|a, b| of(a).total_cmp(&of(b)))?;
    let noise = quickest.spread_percent.max(default.spread_percent) / 100.0;
    Some(if of(quickest) <= 1.0 - noise.max(WORTH) {
        quickest
    } else {
        default
    })
}

/// What it is worth on a CUDA device to launch kernels before those that they wait for have ended.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyLaunch {
    /// Name of the device.
    pub device: String,
    /// What calls of the model's kernels, each in a row, take so, as a fraction of what they take otherwise.
    pub relative: f64,
}

impl EarlyLaunch {
    /// Whether it is clearly less.
    pub fn pays(&self) -> bool {
        self.relative <= 1.0 - WORTH
    }
}

/// What a calibration found.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The machine as given, but for what [`Self::early`] says.
    pub machine: Machine,
    /// Costs that were given with it, and those measured or cached now. Modelled ones are not among them.
    pub costs: MeasuredCosts,
    /// One row for each kernel and kind of device, kinds in the order of their devices, kernels of their actors.
    pub rows: Vec<CostRow>,
    /// Of each device that can: whether it launches kernels early is decided anew by every calibration.
    pub early: Vec<EarlyLaunch>,
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
    /// What the file system says.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), WriteError> {
        let path = path.as_ref();
        let refuse = |error| WriteError {
            path: path.to_owned(),
            error,
        };
        let text = self
            .to_ron()
            .map_err(|e| refuse(std::io::Error::other(e)))?;
        write_whole(path, &text).map_err(refuse)
    }
}

/// Told before a kernel is measured.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Kernels that this kind of device was measured with already.
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

/// What kernels are made of, and for which devices.
pub(crate) struct Model<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) blobs: &'a TiSlice<BlobId, Bytes>,
    pub(crate) machine: &'a Machine,
}

/// A kernel of the model: the actors that share a key.
struct Found<'a> {
    /// With exact factors, then with rounded ones where it may round them.
    keys: Vec<CostKey>,
    first: ActorId,
    actor: &'a Actor,
    actors: usize,
    /// The default kernel, or why there is none to measure.
    kernel: Result<Arc<dyn Kernel>, String>,
    /// The other variants of the kernel on CPUs.
    variants: Vec<&'static str>,
}

impl Found<'_> {
    /// Code of the embedding program changes without its key's changing.
    fn may_be_cached(&self) -> bool {
        self.actor.op != "Custom"
    }

    /// What its cost on a kind of device belongs to: only GPUs that round have one of their own.
    fn key_on(&self, model: &Model<'_>, group: &Group) -> CostKey {
        let rounds = |gpu: &Gpu| {
            let plan = model.registry.lower(self.actor, model.blobs, gpu.caps());
            plan.is_some_and(|plan| plan.math() != Math::F32)
        };
        match (&self.keys[..], &group.gpu) {
            ([_, rounded], Some(Ok(gpu))) if rounds(gpu) => *rounded,
            _ => self.keys[0],
        }
    }

    fn cost(&self, call_ps: u64, firing_ps: u64) -> MeasuredCost {
        let (op, ports) = (self.actor.op.clone(), ports_text(self.actor));
        let (spread_percent, samples, variant) = (0.0, 0, None);
        MeasuredCost {
            op,
            ports,
            call_ps,
            firing_ps,
            spread_percent,
            samples,
            variant,
        }
    }

    /// The variants on a kind of device, the default one first; none where it has no kernel.
    fn variants_on(&self, model: &Model<'_>, group: &Group) -> Vec<Option<&'static str>> {
        match &group.gpu {
            None => std::iter::once(None)
                .chain(self.variants.iter().copied().map(Some))
                .collect(),
            Some(Ok(gpu)) => {
                let plans = gpu::plans((model.registry, model.blobs), self.actor, gpu);
                plans
                    .map(|all| all.into_iter().map(|(name, _)| name).collect())
                    .unwrap_or_default()
            }
            Some(Err(_)) => Vec::new(),
        }
    }
}

/// Devices that cost the same, by their processor.
struct Group {
    kind: String,
    devices: Vec<DeviceId>,
    /// The GPU, if they are one, or why it cannot be measured.
    gpu: Option<Result<Gpu, String>>,
    /// The same with kernels that are launched early, where it can.
    early: Option<Gpu>,
}

/// Costs of all kernels of the graph on all devices of this computer, added to `costs`.
pub(crate) fn run(
    graph: &Graph,
    model: &Model<'_>,
    mut costs: MeasuredCosts,
    how: &CalibrateOptions,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
    sink: &mut Sink,
) -> (MeasuredCosts, Vec<CostRow>, Vec<EarlyLaunch>) {
    let kernels = kernels(graph, model);
    let (mut rows, mut early) = (Vec::new(), Vec::new());
    let mut all = groups(model.machine, &kind::Computer::read());
    all.extend(gpu_groups(model.machine));
    for group in all {
        let mut cache = Cache::open(how.cache.as_deref(), &group.kind, sink);
        let outcomes = on_kind(graph, model, &kernels, &group, &mut cache, how, progress);
        cache.close(sink);
        let names: Vec<String> = group
            .devices
            .iter()
            .map(|&d| model.machine.devices[d].name.clone())
            .collect();
        for (found, (variants, source)) in kernels.iter().zip(outcomes) {
            let key = found.key_on(model, &group);
            let Some(cost) = best(&variants).cloned() else {
                continue;
            };
            if !matches!(source, CostSource::Model(_)) {
                for name in &names {
                    costs.insert(name, key, cost.clone());
                }
            }
            let (actor, actors) = (found.actor.name.clone(), found.actors);
            let variants = if variants.len() > 1 {
                variants
            } else {
                Vec::new()
            };
            rows.push(CostRow {
                actor,
                actors,
                devices: names.clone(),
                cost,
                source,
                variants,
            });
        }
        early.extend(early_launch(model, &kernels, &group, how));
    }
    (costs, rows, early)
}

/// Measures what launching early is worth for the kernels of the model; `None` where the device cannot, or none of them
/// can be measured, which its rows say.
fn early_launch(
    model: &Model<'_>,
    kernels: &[Found<'_>],
    group: &Group,
    how: &CalibrateOptions,
) -> Option<EarlyLaunch> {
    let (Some(Ok(gpu)), Some(early)) = (&group.gpu, &group.early) else {
        return None;
    };
    let device = &model.machine.devices[group.devices[0]];
    // All kernels together decide, so each needs less than where it is chosen by itself.
    let limits = Limits {
        budget_ns: how.budget_ns / 4,
        memory_bytes: device.memory_bytes,
    };
    let start = Instant::now();
    let clock = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut totals = [0.0; 2];
    for found in kernels.iter().filter(|found| found.kernel.is_ok()) {
        let plan = model.registry.lower(found.actor, model.blobs, gpu.caps());
        let Some(plan) = plan else { continue };
        let measured = gpu::chains(found.actor, &[gpu, early], &plan, &limits, &clock);
        for (total, m) in totals.iter_mut().zip(measured.ok()?) {
            *total += found.actors as f64 * (m.call_ps + m.firing_ps) as f64;
        }
    }
    let [otherwise, so] = totals;
    let device = device.name.clone();
    (otherwise > 0.0).then(|| EarlyLaunch {
        device,
        relative: so / otherwise,
    })
}

fn kernels<'a>(graph: &'a Graph, model: &Model<'_>) -> Vec<Found<'a>> {
    let mut at: BTreeMap<Vec<CostKey>, usize> = BTreeMap::new();
    let mut kernels: Vec<Found<'a>> = Vec::new();
    for (first, actor) in graph.actors.iter_enumerated() {
        if actor.role != Role::Compute {
            continue;
        }
        let keys = cost_keys(actor, model.blobs);
        if let Some(&index) = at.get(&keys) {
            kernels[index].actors += 1;
            continue;
        }
        at.insert(keys.clone(), kernels.len());
        let kernel = model
            .registry
            .kernel(actor, model.blobs)
            .map_err(|e| e.to_string());
        let known = if kernel.is_ok() {
            model.registry.variants(actor, model.blobs)
        } else {
            vec![]
        };
        let variants = known.into_iter().skip(1).collect();
        kernels.push(Found {
            keys,
            first,
            actor,
            actors: 1,
            kernel,
            variants,
        });
    }
    kernels
}

fn groups(machine: &Machine, computer: &kind::Computer) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (id, device) in machine
        .devices
        .iter_enumerated()
        .filter(|(_, d)| d.backend == "cpu")
    {
        let kind = computer.kind(&device.cores);
        match groups.iter_mut().find(|g| g.kind == kind) {
            Some(group) => group.devices.push(id),
            None => groups.push(Group {
                kind,
                devices: vec![id],
                gpu: None,
                early: None,
            }),
        }
    }
    groups
}

/// The GPUs, each for itself.
fn gpu_groups(machine: &Machine) -> Vec<Group> {
    let mut drivers = Drivers::default();
    let gpus = machine
        .devices
        .iter_enumerated()
        .filter(|(_, d)| is_gpu(&d.backend));
    let group = |(id, device): (DeviceId, &Device)| {
        let gpu = drivers.open(&device.backend, &device.name, &Options::default());
        let gpu = gpu.map_err(|fault| fault.to_string());
        let none = |_: &String| format!("{}: none", device.backend);
        let kind = gpu.as_ref().map_or_else(none, Gpu::kind);
        let options = Options {
            dependent_launch: true,
            ..Options::default()
        };
        let can = gpu.is_ok() && device.backend == "cuda";
        let early = can.then(|| drivers.open(&device.backend, &device.name, &options).ok());
        let early = early.flatten().filter(Gpu::has_dependent_launch);
        Group {
            kind,
            devices: vec![id],
            gpu: Some(gpu),
            early,
        }
    };
    gpus.map(group).collect()
}

/// Costs of a kernel's variants, the default one first; the model's word is for that one alone.
type Outcome = (Vec<MeasuredCost>, CostSource);

/// Costs of the kernels on one kind of device, in their order.
fn on_kind(
    graph: &Graph,
    model: &Model<'_>,
    kernels: &[Found<'_>],
    group: &Group,
    cache: &mut Cache,
    how: &CalibrateOptions,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Vec<Outcome> {
    let device = &model.machine.devices[group.devices[0]];
    let known: Vec<Option<Vec<MeasuredCost>>> = kernels
        .iter()
        .map(|found| {
            let wanted = !how.fresh && found.kernel.is_ok() && found.may_be_cached();
            let key = found.key_on(model, group);
            let variants = if wanted {
                found.variants_on(model, group)
            } else {
                Vec::new()
            };
            let variants = variants.into_iter();
            let costs: Option<Vec<_>> = variants.map(|v| cache.get(key, v).cloned()).collect();
            // Variants are measured together, by turns: all or none.
            costs.filter(|costs| !costs.is_empty())
        })
        .collect();
    let total = kernels
        .iter()
        .zip(&known)
        .filter(|(f, k)| f.kernel.is_ok() && k.is_none())
        .count();
    let mut done = 0;
    // A thread of its own, so that the caller's goes on where it likes.
    let pinned = || {
        // A machine file may name cores that this process does not have: measured anywhere, they are still measured.
        let _team = Team::of_cores(&device.cores, true);
        let start = Instant::now();
        let clock = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut outcomes = Vec::with_capacity(kernels.len());
        for (found, known) in kernels.iter().zip(known) {
            if let Some(costs) = known {
                outcomes.push((costs, CostSource::Cache));
                continue;
            }
            if found.kernel.is_ok() {
                let (actor, op) = (&found.actor.name, &found.actor.op);
                progress(Progress {
                    done,
                    total,
                    actor,
                    op,
                    device: &device.name,
                });
                done += 1;
            }
            let outcome = one(graph, model, found, group, how, &clock);
            if outcome.1 == CostSource::Measured && found.may_be_cached() {
                let key = found.key_on(model, group);
                outcome
                    .0
                    .iter()
                    .for_each(|cost| cache.insert(key, cost.clone()));
            }
            outcomes.push(outcome);
        }
        outcomes
    };
    std::thread::scope(|scope| match scope.spawn(pinned).join() {
        Ok(outcomes) => outcomes,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Measures the variants of one kernel, or takes the model's word.
fn one(
    graph: &Graph,
    model: &Model<'_>,
    found: &Found<'_>,
    group: &Group,
    how: &CalibrateOptions,
    clock: &dyn Fn() -> u64,
) -> Outcome {
    let device = &model.machine.devices[group.devices[0]];
    let limits = Limits {
        budget_ns: how.budget_ns,
        memory_bytes: device.memory_bytes,
    };
    let measured = match &group.gpu {
        None => on_cpu(graph, model, found, &limits, clock)
            .map(|all| (all, found.variants_on(model, group))),
        Some(Err(why)) => Err(why.clone()),
        Some(Ok(gpu)) => {
            gpu::plans((model.registry, model.blobs), found.actor, gpu).and_then(|plans| {
                let all = gpu::measure(found.actor, gpu, &plans, &limits, clock);
                let names = plans.iter().map(|(name, _)| *name).collect();
                all.map(|all| (all, names)).map_err(|r| r.to_string())
            })
        }
    };
    match measured {
        Ok((all, names)) => {
            let cost = |(m, variant): (Measurement, Option<&str>)| {
                let (spread_percent, samples) = (m.spread_percent, m.samples);
                let cost = found.cost(m.call_ps, m.firing_ps);
                let variant = variant.map(str::to_owned);
                MeasuredCost {
                    spread_percent,
                    samples,
                    variant,
                    ..cost
                }
            };
            let costs = all.into_iter().zip(names).map(cost);
            (costs.collect(), CostSource::Measured)
        }
        Err(reason) => {
            let modelled = model.registry.cost(found.actor, device, model.blobs);
            let (call_ps, firing_ps) = modelled.map_or((0, 0), |c| (c.call_ps, c.firing_ps));
            (
                vec![found.cost(call_ps, firing_ps)],
                CostSource::Model(reason),
            )
        }
    }
}

/// Measures the variants of one kernel on this computer, the default one first.
fn on_cpu(
    graph: &Graph,
    model: &Model<'_>,
    found: &Found<'_>,
    limits: &Limits,
    clock: &dyn Fn() -> u64,
) -> Result<Vec<Measurement>, String> {
    let mut kernels = vec![found.kernel.clone()?];
    for variant in &found.variants {
        // Made here, one kernel's at a time: each may hold the weights in an order of its own.
        let kernel = model
            .registry
            .kernel_in(found.actor, model.blobs, Some(variant));
        kernels.push(kernel.map_err(|e| e.to_string())?);
    }
    let (actor, states) = (found.actor, initial_states(graph, found.first));
    let kernels = kernels.iter().map(AsRef::as_ref);
    let tasks: Vec<_> = kernels
        .map(|kernel| Task {
            actor,
            kernel,
            states: &states,
        })
        .collect();
    measure(&tasks, limits, clock).map_err(|refusal| refusal.to_string())
}

/// The tokens that the actor's states start from, in the order of its state pairs.
fn initial_states(graph: &Graph, id: ActorId) -> Vec<&[u8]> {
    let own = |output: u32| {
        let writes = |c: &&zbmd_ir::Channel| c.from.actor == id && c.from.port == output;
        graph
            .channels
            .iter()
            .find(writes)
            .map_or(&[][..], |c| c.initial.as_slice())
    };
    graph.actors[id]
        .state
        .iter()
        .map(|pair| own(pair.output))
        .collect()
}

/// Writes a file beside its place and moves it there.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests;
