//! One worker's part of an epoch, from the job to what is left of it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use zbmd_ir::{ActorId, Calendar, DeviceId, Graph, Plan, RingId};

use super::border;
use super::cpu::CpuWorker;
use super::fetched_weights::FetchedWeights;
use super::gpu::GpuWorker;
use super::job::{WorkerEnd, WorkerJob};
use super::live_actors::LiveActors;
use super::lower::{LoweredCalendar, lower};
use super::memory::WorkerMemory;
use super::period_loop::PeriodLoop;
use super::prepared::{DeviceWorker, PreparedWorker};
use super::report::{fault_report, latency_reports, reached_from, worker_report};
use super::streams::{SinkEnd, SinkModel, SourceEnd};
use super::thread::{panic_message, thread_number};
use crate::fault::{FaultReport, StepStop, WorkerFault, WorkerOutcome};
use crate::observe::measure::LatencyPath;
use crate::program::LoadedProgram;
use crate::transport::admission::{AdmissionGate, AdmissionModel, AdmissionSource};
use crate::transport::arena::OutOfMemory;
use crate::transport::change_queue::Values;
use crate::transport::conduit::{Consumer, Producer};
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::model_end::ModelSources;
use crate::transport::primitive::Ordering;
use crate::transport::ring::Spin;
use crate::transport::session_memory::SessionMemory;
use crate::transport::trace_ring;
use crate::transport::watchdog::WorkerHeartbeat;

/// Latency paths measured by one worker; each takes some tens of kilobytes.
const MAX_PATHS: usize = 64;
/// A stop takes effect within about this time, or one period.
const STOP_NS: u64 = 1_000_000;
/// Blocks that are granted at a time, at most.
const MAX_BATCH: u64 = 64;

/// Takes a job's memory and fills it with the tokens that the epoch begins with.
///
/// # Errors
/// Too little memory, or a GPU that is not there or cannot do what the plan asks of it.
pub(crate) fn prepare(
    loaded: &Arc<LoadedProgram>,
    job: WorkerJob,
) -> Result<PreparedWorker, WorkerFault> {
    let plan = &loaded.program.plans[job.spec.plan];
    if job.spec.deny_memory && job.calendar == 0 {
        let arena_bytes = plan.calendars[job.calendar].arena_bytes;
        return Err(OutOfMemory::of_machine(arena_bytes, 0).into());
    }

    let is_gpu = loaded.is_gpu(job.spec.devices[job.calendar]);
    let device = if is_gpu {
        let wired_rings = wired_rings(plan, &job);
        DeviceWorker::Gpu(Box::new(GpuWorker::new(loaded, plan, &job, &wired_rings)?))
    } else {
        DeviceWorker::Cpu(Box::new(cpu_worker(loaded, plan, &job)?))
    };
    let may_spin = !is_gpu && !job.options.realtime && !job.options.hold_share;
    let spin = if job.spec.spin_long && may_spin {
        Spin::LONG
    } else {
        // A GPU's worker waits for its device most of the time: a core is better left to others. A real-time worker that
        // spins keeps the threads that release tokens, whose priority is lower, from its core; one with a share spends it.
        Spin::SHORT
    };

    #[cfg(hosts)]
    let gate = match &job.wiring {
        Some(wiring) if wiring.places.is_agent => agent_gate(&job.spec, &job.session_memory),
        _ => admission_gate(loaded, &job.spec, &job.session_memory),
    };
    #[cfg(not(hosts))]
    let gate = admission_gate(loaded, &job.spec, &job.session_memory);
    Ok(PreparedWorker {
        plan: job.spec.plan,
        calendar: job.calendar,
        epoch: job.epoch,
        device,
        periods: PeriodLoop::new(gate, spin, u64::from(plan.stages)),
        realtime: job.options.realtime,
        hold_share: job.options.hold_share && !is_gpu,
        share_note: None,
        #[cfg(hosts)]
        wiring: job.wiring.map(|wiring| (job.spec, wiring)),
    })
}

/// The wired rings of a job, by the number that its wires have for them.
fn wired_rings(plan: &Plan, job: &WorkerJob) -> BTreeMap<RingId, u32> {
    #[cfg(hosts)]
    if let Some(wiring) = &job.wiring {
        return wiring.places.wired_rings(plan, job.calendar);
    }
    let _ = (plan, job);
    BTreeMap::new()
}

fn cpu_worker(
    loaded: &Arc<LoadedProgram>,
    plan: &Plan,
    job: &WorkerJob,
) -> Result<CpuWorker, WorkerFault> {
    let graph = &loaded.program.graph;
    let calendar = &plan.calendars[job.calendar];
    let epoch = &job.epoch;
    let device = job.spec.devices[job.calendar];
    // A worker that may run anywhere is near no memory.
    let is_tied = job.options.pin;
    let node = is_tied.then(|| loaded.near_node(device)).flatten();
    let memory = WorkerMemory::new(calendar, Arc::clone(epoch), job.options.lock_memory, node)?;
    border::import(graph, plan, &memory);
    let weights = FetchedWeights::begin(loaded, plan, calendar, &memory)?;
    let LoweredCalendar {
        replay,
        slots,
        sources,
        sinks,
        rings,
        live_slots,
    } = lower(
        loaded,
        job.spec.plan,
        calendar,
        &memory,
        &wired_rings(plan, job),
        weights,
    );

    // A plan that is recorded slot by slot says how large the rings are; how much is recorded, the instructions.
    let executed_words = replay.code.executions().saturating_add(2);
    let period_words = trace_ring::words_of(plan, job.calendar).map(|_| executed_words);
    Ok(CpuWorker {
        replay,
        slots,
        rings,
        memory,
        calendar: job.calendar,
        admission_times: (!sources.is_empty()).then(|| epoch.admission_times(job.calendar)),
        sources: source_ends(loaded, job, &sources),
        live: LiveActors::new(loaded, job.spec.plan, job.spec.live.as_ref(), live_slots)?,
        sinks: sink_ends(loaded, job, &sinks),
        cores: loaded.program.machine.devices[device].cores.clone(),
        pin: job.options.pin,
        is_pinned: false,
        sample_every: job.options.sample_every,
        recorder: epoch.recorder(&job.spec, job.calendar, period_words),
    })
}

fn source_ends(loaded: &LoadedProgram, job: &WorkerJob, sources: &[ActorId]) -> Vec<SourceEnd> {
    let all_sources: Vec<ActorId> = loaded.program.graph.sources().map(|(id, _)| id).collect();
    // A supervised run may need the tokens again: they are released at commits.
    let retains = job.spec.saves.is_some();
    let source_ends = sources.iter().map(|id| {
        let source_index = all_sources
            .iter()
            .position(|other| other == id)
            .unwrap_or_default();
        let queue = &job.session_memory.sources[source_index];
        SourceEnd {
            consumer: Consumer::new(queue, job.spec.bases[source_index], retains),
        }
    });
    source_ends.collect()
}

fn sink_ends(loaded: &LoadedProgram, job: &WorkerJob, sinks: &[ActorId]) -> Vec<SinkEnd> {
    let WorkerJob { spec, epoch, .. } = job;
    // On a host without streams their queues are not those of sources.
    if sinks.is_empty() {
        return Vec::new();
    }
    let model_sources =
        loaded.model_sources(&job.session_memory.sources, &spec.bases, spec.pads_models);
    let graph = &loaded.program.graph;
    let plan = &loaded.program.plans[spec.plan];
    let all_sinks: Vec<ActorId> = graph.sinks().map(|(id, _)| id).collect();
    // Latency is measured from each source that a sink depends on; each path costs time at every output.
    let mut paths_left = MAX_PATHS;
    let mut sink_ends = Vec::with_capacity(sinks.len());

    for &sink in sinks {
        let mut latency_paths = Vec::new();
        for (source, _) in graph.sources() {
            // A path begins when the source's worker admits a block, which is written down by calendar.
            if paths_left > 0 && reached_from(graph, source)[sink] {
                paths_left -= 1;
                let calendar = calendar_of(plan, plan.placement[source]);
                latency_paths.push(LatencyPath::new(source.0, epoch.admission_times(calendar)));
            }
        }
        let sink_index = all_sinks
            .iter()
            .position(|id| *id == sink)
            .unwrap_or_default();
        sink_ends.push(SinkEnd {
            index: sink_index as u32,
            producer: Producer::new(&epoch.sinks[sink_index]),
            token_bytes: spec.sinks[sink_index].token_bytes,
            // Tokens that were delivered before this epoch are computed again and not given out again.
            given_out: spec.sinks[sink_index].given_out,
            firings: plan.block * loaded.repetition[sink],
            paths: latency_paths,
            model: sink_model(loaded, &model_sources, sink, sink_index),
        });
    }
    sink_ends
}

/// Where the tokens of a sink end in a merged program.
fn sink_model(
    loaded: &LoadedProgram,
    model_sources: &[ModelSources],
    sink: ActorId,
    sink_index: usize,
) -> Option<SinkModel> {
    let mut models = loaded.models.iter().zip(model_sources);
    let (model, sources) = models.find(|(model, _)| model.sinks.contains(&sink_index))?;
    Some(SinkModel::new(
        sources.clone(),
        loaded.tokens_per_iteration(sink) / model.iterations,
    ))
}

fn calendar_of(plan: &Plan, device: DeviceId) -> usize {
    plan.calendars
        .iter()
        .position(|calendar| calendar.device == device)
        .unwrap_or_default()
}

/// Admission on a host whose sources are elsewhere: the conductor's decisions are a stream of one token a block.
#[cfg(hosts)]
fn agent_gate(spec: &EpochSpec, session_memory: &SessionMemory) -> AdmissionGate {
    let decisions = session_memory
        .sources
        .iter()
        .map(|conduit| AdmissionSource {
            conduit: Arc::clone(conduit),
            base: 0,
            tokens_per_block: 1,
        });
    AdmissionGate {
        sources: decisions.collect(),
        models: Vec::new(),
        arrivals: session_memory.arrivals.clone(),
        epoch: spec.epoch,
        limit: u64::MAX,
        batch: u64::MAX >> 2,
        pad: false,
        admitted: 0,
    }
}

pub(crate) fn admission_gate(
    loaded: &LoadedProgram,
    spec: &EpochSpec,
    session_memory: &SessionMemory,
) -> AdmissionGate {
    let plan = &loaded.program.plans[spec.plan];
    let graph_sources = loaded.program.graph.sources();
    let session_queues = session_memory.sources.iter().zip(&spec.bases);
    let admission_sources = graph_sources
        .zip(session_queues)
        .map(|((id, _), (conduit, &base))| AdmissionSource {
            conduit: Arc::clone(conduit),
            base,
            tokens_per_block: plan.block * loaded.tokens_per_iteration(id),
        });

    let model_sources =
        loaded.model_sources(&session_memory.sources, &spec.bases, spec.pads_models);
    let models = loaded.models.iter().zip(model_sources);
    let models = models.map(|(model, sources)| AdmissionModel {
        sources,
        iterations_per_block: plan.block * model.iterations,
    });

    AdmissionGate {
        sources: admission_sources.collect(),
        models: models.collect(),
        arrivals: session_memory.arrivals.clone(),
        epoch: spec.epoch,
        limit: spec.limit,
        batch: (STOP_NS / plan.period_ns.max(1)).clamp(1, MAX_BATCH),
        pad: spec.pad,
        admitted: 0,
    }
}

impl PreparedWorker {
    /// Runs it to its end, with its heartbeat if somebody watches. If it fails, whoever receives that stops the epoch.
    pub(crate) fn run(
        mut self,
        loaded: &LoadedProgram,
        heartbeat: Option<WorkerHeartbeat>,
    ) -> WorkerEnd {
        let outcome = match self.run_periods(loaded, heartbeat) {
            Ok(blocks) => {
                self.export(loaded, blocks);
                WorkerOutcome::Finished { blocks }
            }
            Err(StepStop::Stopped) => WorkerOutcome::Stopped,
            Err(StepStop::Fault(fault)) => {
                WorkerOutcome::Failed(fault_report(loaded, &self, fault))
            }
        };

        let (arena_bytes, locked_bytes) = self.device.memory_bytes();
        let sinks = self.device.sinks();
        WorkerEnd {
            outcome,
            report: worker_report(loaded, &self),
            latencies: latency_reports(&loaded.program, sinks),
            discarded: sinks
                .iter()
                .map(|sink| (sink.index, sink.producer.discarded()))
                .collect(),
            arena_bytes,
            locked_bytes,
            first_ns: self.periods.first_ns,
            last_ns: self.periods.last_ns,
        }
    }

    /// Runs one block on this thread, whose tokens are there, of a plan that has one stage and is for a CPU.
    ///
    /// # Errors
    /// What the kernel at work said, or its panic.
    pub(crate) fn run_block(&mut self, loaded: &LoadedProgram) -> Result<(), Box<FaultReport>> {
        let run_result = catch_unwind(AssertUnwindSafe(|| match &mut self.device {
            DeviceWorker::Cpu(cpu) => cpu.run_one(&mut self.periods),
            DeviceWorker::Gpu(_) => Err(StepStop::Stopped),
        }));
        let fault = match run_result {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(StepStop::Fault(fault))) => fault,
            Ok(Err(StepStop::Stopped)) => WorkerFault::Kernel("the block is not there".to_owned()),
            Err(panic) => WorkerFault::Panic(panic_message(panic.as_ref())),
        };
        Err(Box::new(fault_report(loaded, self, fault)))
    }

    /// Changes live parameters with the next block, of a worker whose blocks are run one by one.
    ///
    /// # Errors
    /// A kernel that cannot be made.
    pub(crate) fn change(&mut self, values: Values) -> Result<(), WorkerFault> {
        match &mut self.device {
            DeviceWorker::Cpu(cpu) => cpu.change(self.periods.period, values),
            DeviceWorker::Gpu(_) => Ok(()),
        }
    }

    /// Runs all periods on this thread; the number of blocks.
    fn run_periods(
        &mut self,
        loaded: &LoadedProgram,
        heartbeat: Option<WorkerHeartbeat>,
    ) -> Result<u64, StepStop> {
        // Before the team: its threads take the priority over.
        self.enter_realtime()?;
        self.enter_share(loaded);
        let _team = self.device.start_team();
        let epoch = Arc::clone(&self.epoch);
        let status = &epoch.statuses[self.calendar];
        status.thread.store(thread_number(), Ordering::Release);

        let run_all = AssertUnwindSafe(|| {
            #[cfg(hosts)]
            let wires = self.open_wires(loaded)?;
            let blocks = self.device.run(&mut self.periods, heartbeat)?;
            #[cfg(hosts)]
            if wires.is_some() {
                super::wired::finish()?;
            }
            Ok(blocks)
        });
        let run_result = catch_unwind(run_all);
        status.has_left.store(1, Ordering::Release);
        run_result.unwrap_or_else(|panic| {
            let message = panic_message(panic.as_ref());
            Err(StepStop::Fault(WorkerFault::Panic(message)))
        })
    }

    /// Opens the wires to workers on other hosts, if there are several.
    #[cfg(hosts)]
    fn open_wires(
        &self,
        loaded: &LoadedProgram,
    ) -> Result<Option<super::wired::OpenWires>, StepStop> {
        let Some((spec, wiring)) = &self.wiring else {
            return Ok(None);
        };
        let (calendar, spin) = (self.calendar, self.periods.spin);
        super::wired::open(loaded, spec, calendar, &self.epoch, wiring, spin)
    }

    /// Gives this thread its priority, if the run is a real-time one.
    fn enter_realtime(&self) -> Result<(), StepStop> {
        if !self.realtime {
            return Ok(());
        }
        enter_as_worker().map_err(|text| StepStop::Fault(WorkerFault::Realtime(text)))
    }

    /// Holds this thread to its share, if the run is to keep to it; what came of that is noted.
    fn enter_share(&mut self, loaded: &LoadedProgram) {
        if self.hold_share {
            let plan = &loaded.program.plans[self.plan];
            let calendar = &plan.calendars[self.calendar];
            self.share_note = Some(held_share(&loaded.program.graph, plan, calendar));
        }
    }

    /// Puts the tokens on channels into the end area. A GPU has done that at the end of its run.
    fn export(&self, loaded: &LoadedProgram, blocks: u64) {
        if let DeviceWorker::Cpu(cpu) = &self.device {
            border::export(loaded, self.plan, &cpu.memory, blocks);
        }
    }
}

/// Holds the calling thread to what a calendar needs; what came of that.
#[cfg(target_os = "linux")]
fn held_share(graph: &Graph, plan: &Plan, calendar: &Calendar) -> String {
    let Some(reservation) = zbmd_ir::CpuReservation::of_calendar(graph, plan, calendar) else {
        return "no share: no stream has a sample rate".to_owned();
    };
    match crate::share::enter_to_stay(reservation) {
        Ok(()) => format!("share: {reservation}"),
        Err(error) => format!("no share: the system does not promise {reservation}: {error}"),
    }
}

#[cfg(not(target_os = "linux"))]
fn held_share(_: &Graph, _: &Plan, _: &Calendar) -> String {
    "no share: there are none on this system".to_owned()
}

#[cfg(target_os = "linux")]
fn enter_as_worker() -> Result<(), String> {
    use crate::realtime::{ThreadRole, enter};
    enter(ThreadRole::Worker).map_err(|error| error.to_string())
}

#[cfg(not(target_os = "linux"))]
fn enter_as_worker() -> Result<(), String> {
    Err("this system has no real-time runs".to_owned())
}
