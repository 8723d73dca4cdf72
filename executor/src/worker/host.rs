//! One worker's part of an epoch, from the job to what is left of it: the same code in a thread of the embedding
//! program and in a process of its own. Must not know who else is at work.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbmd_ir::{ActorId, DeviceId, Plan};

use crate::observe::measure::Path;
use crate::observe::report::{LatencyReport, WorkerReport};
use crate::observe::summary::{self, Wrong};
use crate::observe::trace;
use crate::run::session::Inner;
use crate::run::watchdog::Winder;
use crate::transport::arena::OutOfMemory;
use crate::transport::conduit::{Conduit, Consumer, Producer};
use crate::transport::epoch::{EpochMemory, SessionMemory, Spec};
use crate::transport::ring::Spin;
use crate::worker::border;
use crate::worker::gpu::{DeviceFault, Gpu, Gpus};
use crate::worker::lower::{Known, Lowered, Memory, Slots, lower};
use crate::worker::period_loop::{Body, Failure, Feed, Gate, Periods, SinkEnd, SourceEnd, Worker};

/// Latency paths measured by one worker; each takes some tens of kilobytes.
const MAX_PATHS: usize = 64;
/// A stop takes effect within about this time, or one period.
const STOP_NS: u64 = 1_000_000;
const MAX_BATCH: u64 = 64;

/// How workers run, whatever the epoch.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HostOptions {
    pub sample_every: u64,
    pub pin: bool,
    pub lock_memory: bool,
}

/// What a worker is to do.
pub(crate) struct Job {
    pub spec: Arc<Spec>,
    /// Which of the plan's calendars.
    pub calendar: usize,
    pub session: Arc<SessionMemory>,
    pub epoch: Arc<EpochMemory>,
    pub options: HostOptions,
    /// The GPUs that this process has open.
    pub gpus: Arc<Gpus>,
}

/// Why a job cannot be begun.
#[derive(Clone, Debug)]
pub(crate) enum Unprepared {
    Memory(OutOfMemory),
    Device(DeviceFault),
}

impl From<OutOfMemory> for Unprepared {
    fn from(error: OutOfMemory) -> Self {
        Self::Memory(error)
    }
}

/// How a worker's part ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum How {
    /// All blocks are done, so many; the tokens on channels are in the end area.
    Finished { blocks: u64 },
    /// The epoch was stopped.
    Stopped,
    /// It could not go on.
    Wrong(Wrong),
    /// There was no memory to begin with.
    NoMemory { bytes: u64, limit: u64 },
    /// Its GPU cannot do it, or failed.
    Device { fault: DeviceFault, block: u64 },
}

/// What a worker leaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct End {
    pub how: How,
    pub report: WorkerReport,
    pub latencies: Vec<LatencyReport>,
    /// For each sink of the worker: which, and tokens that nobody wanted.
    pub discarded: Vec<(u32, u64)>,
    pub arena_bytes: u64,
    pub locked_bytes: u64,
    pub first_ns: u64,
    pub last_ns: u64,
}

impl End {
    pub(crate) fn unprepared(why: Unprepared) -> Self {
        let how = match why {
            Unprepared::Memory(OutOfMemory { bytes, limit, .. }) => How::NoMemory { bytes, limit },
            Unprepared::Device(fault) => How::Device { fault, block: 0 },
        };
        Self {
            how,
            report: WorkerReport::default(),
            latencies: Vec::new(),
            discarded: Vec::new(),
            arena_bytes: 0,
            locked_bytes: 0,
            first_ns: 0,
            last_ns: 0,
        }
    }
}

/// A job with its memory, ready to run.
pub(crate) struct Prepared {
    plan: zbmd_ir::PlanId,
    /// Of a CPU device; a GPU has its own.
    memory: Option<Memory>,
    slots: Slots,
    worker: Worker,
}

/// Takes a job's memory and fills it with the tokens that the epoch begins with.
pub(crate) fn prepare(engine: &Inner, job: Job) -> Result<Prepared, Unprepared> {
    if engine.is_gpu(job.spec.devices[job.calendar]) {
        return prepare_gpu(engine, job);
    }
    let Job {
        spec,
        calendar,
        session,
        epoch,
        options,
        ..
    } = job;
    let program = &engine.program;
    let plan = &program.plans[spec.plan];
    let graph = &program.graph;
    if spec.deny_memory && calendar == 0 {
        let bytes = plan.calendars[calendar].arena_bytes;
        return Err(OutOfMemory::of_machine(bytes, 0).into());
    }
    let memory = Memory::new(
        &plan.calendars[calendar],
        Arc::clone(&epoch),
        options.lock_memory,
    )?;
    border::import(graph, plan, &memory);
    let known = Known {
        graph,
        joined: &engine.joined,
        kernels: &engine.kernels,
    };
    let Lowered {
        replay,
        slots,
        sources,
        sinks,
        rings,
    } = lower(&known, plan, &plan.calendars[calendar], &memory);

    let retain = spec.saves.is_some();
    let ids: Vec<ActorId> = graph.sources().map(|(id, _)| id).collect();
    let source = |id: &ActorId| {
        let index = ids.iter().position(|other| other == id).unwrap_or_default();
        let consumer = Consumer::new(&session.sources[index], spec.bases[index], retain);
        SourceEnd { consumer }
    };
    // A plan that is recorded slot by slot says how large the rings are; how much is recorded, the instructions.
    let words = replay.code.executions().saturating_add(2);
    let words = trace::words_of(plan, calendar).map(|_| words);
    let recorder = epoch.recorder(&spec, calendar, words);
    let device = spec.devices[calendar];
    let cores = program.machine.devices[device].cores.clone();
    let stamps = (!sources.is_empty()).then(|| epoch.stamps(calendar));
    let worker = Worker {
        body: Body::Cpu(replay),
        sources: sources.iter().map(source).collect(),
        sinks: sink_ends(engine, &spec, &epoch, &sinks),
        gate: gate(engine, &spec, &session),
        calendar,
        stamps,
        cores,
        pin: options.pin,
        spin: if spec.spin_long {
            Spin::LONG
        } else {
            Spin::SHORT
        },
        stages: u64::from(plan.stages),
        sample_every: options.sample_every,
        periods: Periods::default(),
        period: 0,
        recorder,
        epoch,
    };
    let slots = Slots { slots, rings };
    Ok(Prepared {
        plan: spec.plan,
        memory: Some(memory),
        slots,
        worker,
    })
}

/// The same for a GPU, which has neither sources nor sinks, and whose memory is the driver's.
fn prepare_gpu(engine: &Inner, job: Job) -> Result<Prepared, Unprepared> {
    let Job {
        spec,
        calendar,
        session,
        epoch,
        options,
        gpus,
    } = job;
    let program = &engine.program;
    let plan = &program.plans[spec.plan];
    if spec.deny_memory && calendar == 0 {
        let bytes = plan.calendars[calendar].arena_bytes;
        return Err(OutOfMemory::of_machine(bytes, 0).into());
    }
    let which = &program.machine.devices[spec.devices[calendar]];
    let gpu = Gpu::new(engine, plan, calendar, which, &epoch, &gpus).map_err(Unprepared::Device)?;
    let worker = Worker {
        body: Body::Gpu(gpu),
        sources: Vec::new(),
        sinks: Vec::new(),
        gate: gate(engine, &spec, &session),
        calendar,
        stamps: None,
        cores: Vec::new(),
        pin: false,
        // It waits for its device most of the time: a core is better left to others.
        spin: Spin::SHORT,
        stages: u64::from(plan.stages),
        sample_every: options.sample_every,
        periods: Periods::default(),
        period: 0,
        recorder: epoch.recorder(&spec, calendar, None),
        epoch,
    };
    let slots = Slots {
        slots: Vec::new(),
        rings: plan.rings.keys().collect(),
    };
    Ok(Prepared {
        plan: spec.plan,
        memory: None,
        slots,
        worker,
    })
}

fn sink_ends(engine: &Inner, spec: &Spec, epoch: &EpochMemory, sinks: &[ActorId]) -> Vec<SinkEnd> {
    let graph = &engine.program.graph;
    let plan = &engine.program.plans[spec.plan];
    let ids: Vec<ActorId> = graph.sinks().map(|(id, _)| id).collect();
    let mut budget = MAX_PATHS;
    let mut ends = Vec::with_capacity(sinks.len());
    for &sink in sinks {
        let index = ids.iter().position(|id| *id == sink).unwrap_or_default();
        let mut paths = Vec::new();
        for (source, _) in graph.sources() {
            let home = calendar_of(plan, plan.placement[source]);
            if budget > 0 && summary::reached_from(graph, source)[sink] {
                budget -= 1;
                paths.push(Path::new(source.0, epoch.stamps(home)));
            }
        }
        ends.push(SinkEnd {
            index: index as u32,
            producer: Producer::new(&epoch.sinks[index]),
            token_bytes: spec.sinks[index].token_bytes,
            given_out: spec.sinks[index].given_out,
            firings: plan.block * engine.repetition[sink],
            paths,
        });
    }
    ends
}

fn calendar_of(plan: &Plan, device: DeviceId) -> usize {
    plan.calendars
        .iter()
        .position(|c| c.device == device)
        .unwrap_or_default()
}

fn gate(engine: &Inner, spec: &Spec, session: &SessionMemory) -> Gate {
    let plan = &engine.program.plans[spec.plan];
    let feeds = session
        .sources
        .iter()
        .zip(engine.program.graph.sources())
        .zip(&spec.bases);
    Gate {
        feeds: feeds
            .map(|((conduit, (id, _)), &base)| Feed {
                conduit: Arc::<Conduit>::clone(conduit),
                base,
                tokens_per_block: plan.block * engine.tokens_per_iteration(id),
            })
            .collect(),
        doors: session.doors.clone(),
        epoch: spec.epoch,
        limit: spec.limit,
        batch: (STOP_NS / plan.period_ns.max(1)).clamp(1, MAX_BATCH),
        pad: spec.pad,
        admitted: 0,
    }
}

impl Prepared {
    /// Runs it to its end, winding its watchdog up. If it fails, whoever is told of that stops the epoch.
    pub(crate) fn run(mut self, engine: &Inner, winder: Option<Winder>) -> End {
        let outcome = self.worker.run(winder);
        let program = &engine.program;
        let plan = &program.plans[self.plan];
        let calendar = &plan.calendars[self.worker.calendar];
        let how = match outcome {
            Ok(blocks) => {
                if let Some(memory) = &self.memory {
                    border::export(&program.graph, plan, memory, blocks);
                }
                How::Finished { blocks }
            }
            Err(failure) => self.how_it_failed(engine, failure),
        };
        let report = summary::worker_report(program, plan, calendar, &self.slots, &self.worker);
        let sinks = &self.worker.sinks;
        let (arena_bytes, locked_bytes) = match (&self.memory, &self.worker.body) {
            (Some(memory), _) => memory.bytes(),
            // The driver's memory is not paged out.
            (None, Body::Gpu(gpu)) => (gpu.bytes(), gpu.bytes()),
            (None, Body::Cpu(_)) => (0, 0),
        };
        End {
            how,
            report,
            latencies: sinks
                .iter()
                .flat_map(|s| summary::latencies(program, s))
                .collect(),
            discarded: sinks
                .iter()
                .map(|s| (s.index, s.producer.discarded()))
                .collect(),
            arena_bytes,
            locked_bytes,
            first_ns: self.worker.periods.first_ns,
            last_ns: self.worker.periods.last_ns,
        }
    }

    fn how_it_failed(&self, engine: &Inner, failure: Failure) -> How {
        let plan = &engine.program.plans[self.plan];
        match failure {
            Failure::Stopped => How::Stopped,
            Failure::Device(fault) => How::Device {
                fault,
                block: self.worker.period,
            },
            failure => How::Wrong(summary::wrong(
                &engine.program,
                plan,
                &self.slots,
                &self.worker,
                failure,
            )),
        }
    }
}
