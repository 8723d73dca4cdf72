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
use zbmd_backends::op::Registry;
use zbmd_backends::team::Team;
use zbmd_ir::{Actor, ActorId, BlobId, Device, DeviceId, Graph, Machine, Role, TiSlice};

use crate::compile::WriteError;
use crate::costs::{CostKey, MeasuredCost, MeasuredCosts, ports_text};
use crate::diag::{Diagnostics, Sink};
use crate::machine;
use cache::Cache;
use measure::{Limits, Task, measure};

/// How to calibrate.
#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    /// Folder of the cache; made if it is missing. `None` for no cache.
    pub cache: Option<PathBuf>,
    /// Measures again what the cache has, and replaces it there.
    pub fresh: bool,
    /// Time for each kernel on each kind of device. At least 5 samples are taken, however short it is.
    pub budget_ns: u64,
}

impl CalibrateOptions {
    /// Time for each kernel unless asked otherwise.
    pub const BUDGET_NS: u64 = 200_000_000;
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        Self { cache: None, fresh: false, budget_ns: Self::BUDGET_NS }
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

/// The cost of one kernel on one kind of device.
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
}

/// What a calibration found.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The machine as given.
    pub machine: Machine,
    /// Costs that were given with it, and those measured or cached now. Modelled ones are not among them.
    pub costs: MeasuredCosts,
    /// One row for each kernel and kind of device, kinds in the order of their devices, kernels of their actors.
    pub rows: Vec<CostRow>,
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
        let refuse = |error| WriteError { path: path.to_owned(), error };
        let text = self.to_ron().map_err(|e| refuse(std::io::Error::other(e)))?;
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
    key: CostKey,
    first: ActorId,
    actor: &'a Actor,
    actors: usize,
    /// The kernel, or why there is none to measure.
    kernel: Result<Arc<dyn Kernel>, String>,
}

impl Found<'_> {
    /// Code of the embedding program changes without its key's changing.
    fn may_be_cached(&self) -> bool {
        self.actor.op != "Custom"
    }

    fn cost(&self, call_ps: u64, firing_ps: u64) -> MeasuredCost {
        let (op, ports) = (self.actor.op.clone(), ports_text(self.actor));
        MeasuredCost { op, ports, call_ps, firing_ps, spread_percent: 0.0, samples: 0 }
    }
}

/// Devices that cost the same, by their processor.
struct Group {
    kind: String,
    devices: Vec<DeviceId>,
    /// The GPU, if they are one, or why it cannot be measured.
    gpu: Option<Result<Gpu, String>>,
}

/// Costs of all kernels of the graph on all devices of this computer, added to `costs`.
pub(crate) fn run(
    graph: &Graph,
    model: &Model<'_>,
    mut costs: MeasuredCosts,
    how: &CalibrateOptions,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
    sink: &mut Sink,
) -> (MeasuredCosts, Vec<CostRow>) {
    let kernels = kernels(graph, model);
    let mut rows = Vec::new();
    let mut all = groups(model.machine, &kind::Computer::read());
    all.extend(gpu_groups(model.machine));
    for group in all {
        let mut cache = Cache::open(how.cache.as_deref(), &group.kind, sink);
        let outcomes = on_kind(graph, model, &kernels, &group, &mut cache, how, progress);
        cache.close(sink);
        let names: Vec<String> =
            group.devices.iter().map(|&d| model.machine.devices[d].name.clone()).collect();
        for (found, (cost, source)) in kernels.iter().zip(outcomes) {
            if !matches!(source, CostSource::Model(_)) {
                for name in &names {
                    costs.insert(name, found.key, cost.clone());
                }
            }
            let (actor, actors) = (found.actor.name.clone(), found.actors);
            rows.push(CostRow { actor, actors, devices: names.clone(), cost, source });
        }
    }
    (costs, rows)
}

fn kernels<'a>(graph: &'a Graph, model: &Model<'_>) -> Vec<Found<'a>> {
    let mut at: BTreeMap<CostKey, usize> = BTreeMap::new();
    let mut kernels: Vec<Found<'a>> = Vec::new();
    for (first, actor) in graph.actors.iter_enumerated() {
        if actor.role != Role::Compute {
            continue;
        }
        let key = CostKey::of(actor, model.blobs);
        if let Some(&index) = at.get(&key) {
            kernels[index].actors += 1;
            continue;
        }
        at.insert(key, kernels.len());
        let kernel = model.registry.kernel(actor, model.blobs).map_err(|e| e.to_string());
        kernels.push(Found { key, first, actor, actors: 1, kernel });
    }
    kernels
}

fn groups(machine: &Machine, computer: &kind::Computer) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (id, device) in machine.devices.iter_enumerated().filter(|(_, d)| d.backend == "cpu") {
        let kind = computer.kind(&device.cores);
        match groups.iter_mut().find(|g| g.kind == kind) {
            Some(group) => group.devices.push(id),
            None => groups.push(Group { kind, devices: vec![id], gpu: None }),
        }
    }
    groups
}

/// The GPUs, each for itself.
fn gpu_groups(machine: &Machine) -> Vec<Group> {
    let mut drivers = Drivers::default();
    let gpus = machine.devices.iter_enumerated().filter(|(_, d)| is_gpu(&d.backend));
    let group = |(id, device): (DeviceId, &Device)| {
        let gpu = drivers.open(&device.backend, &device.name, &Options::default());
        let gpu = gpu.map_err(|fault| fault.to_string());
        let none = |_: &String| format!("{}: none", device.backend);
        let kind = gpu.as_ref().map_or_else(none, Gpu::kind);
        Group { kind, devices: vec![id], gpu: Some(gpu) }
    };
    gpus.map(group).collect()
}

/// Costs of the kernels on one kind of device, in their order.
fn on_kind(
    graph: &Graph,
    model: &Model<'_>,
    kernels: &[Found<'_>],
    group: &Group,
    cache: &mut Cache,
    how: &CalibrateOptions,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Vec<(MeasuredCost, CostSource)> {
    let device = &model.machine.devices[group.devices[0]];
    let known: Vec<Option<MeasuredCost>> = kernels
        .iter()
        .map(|found| {
            let wanted = !how.fresh && found.kernel.is_ok() && found.may_be_cached();
            if wanted { cache.get(found.key).cloned() } else { None }
        })
        .collect();
    let total = kernels.iter().zip(&known).filter(|(f, k)| f.kernel.is_ok() && k.is_none()).count();
    let mut done = 0;
    // A thread of its own, so that the caller's goes on where it likes.
    let pinned = || {
        // A machine file may name cores that this process does not have: measured anywhere, they are still measured.
        let _team = Team::of_cores(&device.cores, true);
        let start = Instant::now();
        let clock = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut outcomes = Vec::with_capacity(kernels.len());
        for (found, known) in kernels.iter().zip(known) {
            if let Some(cost) = known {
                outcomes.push((cost, CostSource::Cache));
                continue;
            }
            if found.kernel.is_ok() {
                let (actor, op) = (&found.actor.name, &found.actor.op);
                progress(Progress { done, total, actor, op, device: &device.name });
                done += 1;
            }
            let outcome = one(graph, model, found, (device, &group.gpu), how, &clock);
            if outcome.1 == CostSource::Measured && found.may_be_cached() {
                cache.insert(found.key, outcome.0.clone());
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

/// Measures one kernel, or takes the model's word.
fn one(
    graph: &Graph,
    model: &Model<'_>,
    found: &Found<'_>,
    (device, gpu): (&Device, &Option<Result<Gpu, String>>),
    how: &CalibrateOptions,
    clock: &dyn Fn() -> u64,
) -> (MeasuredCost, CostSource) {
    let limits = Limits { budget_ns: how.budget_ns, memory_bytes: device.memory_bytes };
    let on_cpu = || {
        let kernel = found.kernel.as_ref().map_err(Clone::clone)?;
        let states = initial_states(graph, found.first);
        let task = Task { actor: found.actor, kernel: kernel.as_ref(), states: &states };
        measure(&task, &limits, clock).map_err(|refusal| refusal.to_string())
    };
    let measured = match gpu {
        None => on_cpu(),
        Some(Err(why)) => Err(why.clone()),
        Some(Ok(gpu)) => {
            let given = (model.registry, model.blobs);
            gpu::measure(given, found.actor, gpu, &limits, clock).map_err(|r| r.to_string())
        }
    };
    match measured {
        Ok(m) => {
            let (spread_percent, samples) = (m.spread_percent, m.samples);
            let cost = found.cost(m.call_ps, m.firing_ps);
            (MeasuredCost { spread_percent, samples, ..cost }, CostSource::Measured)
        }
        Err(reason) => {
            let modelled = model.registry.cost(found.actor, device, model.blobs);
            let (call_ps, firing_ps) = modelled.map_or((0, 0), |c| (c.call_ps, c.firing_ps));
            (found.cost(call_ps, firing_ps), CostSource::Model(reason))
        }
    }
}

/// The tokens that the actor's states start from, in the order of its state pairs.
fn initial_states(graph: &Graph, id: ActorId) -> Vec<&[u8]> {
    let own = |output: u32| {
        let writes = |c: &&zbmd_ir::Channel| c.from.actor == id && c.from.port == output;
        graph.channels.iter().find(writes).map_or(&[][..], |c| c.initial.as_slice())
    };
    graph.actors[id].state.iter().map(|pair| own(pair.output)).collect()
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
