//! One run from beginning to end: the main plan for whole blocks, the tail plan for whole iterations, padding on
//! request; memory, workers and the border state for each. Must not touch tokens while workers run.

use std::sync::Arc;
use std::thread::JoinHandle;

use zbmd_ir::{ActorId, Plan, PlanId, State};

use crate::border;
use crate::conduit::{Consumer, Producer};
use crate::error::{EngineError, RunError};
use crate::measure::{Clock, Path, Stamps};
use crate::prepare::{Known, Lowered, Memory, lower};
use crate::primitive::Ordering;
use crate::report::{PlanReport, Report};
use crate::ring::{RingSync, Spin};
use crate::session::{Control, Inner, Outcome, RunOptions};
use crate::summary;
use crate::worker::{Failure, Feed, Gate, Periods, Shared, SinkEnd, SourceEnd, Worker};

/// How a run ended.
pub(crate) type Finished = Result<Outcome, RunError>;

/// Latency paths measured in one plan; each takes some tens of kilobytes.
const MAX_PATHS: usize = 64;
/// A stop takes effect within about this time, or one period.
const STOP_NS: u64 = 1_000_000;
const MAX_BATCH: u64 = 64;

/// A plan with its memory, ready to run.
pub(crate) struct Prepared {
    plan: PlanId,
    memory: Memory,
    devices: Vec<Lowered>,
}

pub(crate) struct Conductor {
    pub engine: Arc<Inner>,
    pub control: Arc<Control>,
    pub options: RunOptions,
    pub state: State,
    pub sources: Vec<Option<(ActorId, Consumer)>>,
    pub sinks: Vec<Option<(ActorId, Producer)>>,
    pub clock: Clock,
}

/// What one plan's workers left.
pub(crate) struct Segment {
    pub first_ns: u64,
    pub last_ns: u64,
    pub report: PlanReport,
}

/// A thread at work, and what it gives back.
struct Running {
    thread: JoinHandle<(Worker, Result<u64, Failure>)>,
    lowered: Slots,
}

/// What remains of a [`Lowered`] when its replay has gone to a worker.
pub(crate) struct Slots {
    pub slots: Vec<Option<zbmd_ir::Slot>>,
    pub rings: Vec<zbmd_ir::RingId>,
}

impl Conductor {
    /// Takes the memory of the main plan, so that a lack of it is found before anything runs.
    pub(crate) fn prepare_first(&self) -> Result<Prepared, EngineError> {
        self.prepare(self.engine.main)
    }

    fn prepare(&self, id: PlanId) -> Result<Prepared, EngineError> {
        let engine = &self.engine;
        let plan = &engine.program.plans[id];
        let memory = Memory::new(plan, self.options.lock_memory)?;
        let graph = &engine.program.graph;
        let known = Known { graph, joined: &engine.joined, kernels: &engine.kernels };
        let devices = plan.calendars.iter().map(|c| lower(&known, plan, c, &memory)).collect();
        Ok(Prepared { plan: id, memory, devices })
    }

    /// Runs everything. Streams are closed at the end, whatever it is.
    pub(crate) fn conduct(mut self, first: Prepared) -> Finished {
        let mut segments = Vec::new();
        let before = self.state.clone();
        let outcome = self.plans(first, &mut segments);
        if outcome.is_err() {
            self.control.abort();
        }
        self.control.sources.iter().chain(&self.control.sinks).for_each(|c| c.close());
        let padded = outcome?;
        let report = self.report(&before, segments, &padded);
        Ok(Outcome { report, state: self.state })
    }

    /// The plans in turn; the zero tokens that were added to each source.
    fn plans(
        &mut self,
        first: Prepared,
        segments: &mut Vec<Segment>,
    ) -> Result<Vec<u64>, RunError> {
        let mut padded = vec![0; self.sources.len()];
        let mut left = self.options.iterations.unwrap_or(u64::MAX);
        let main_block = self.engine.program.plans[self.engine.main].block;
        let limit = left / main_block;
        self.segment(first, limit, false, &mut left, segments)?;

        let tail = self.engine.tail.filter(|_| main_block > 1);
        if let Some(tail) = tail
            && self.may_go_on(left)
            && !self.is_short()
        {
            let prepared = self.prepare(tail)?;
            self.segment(prepared, left, false, &mut left, segments)?;
        }
        let single = tail.or((main_block == 1).then_some(self.engine.main));
        if let Some(single) = single
            && self.options.pad
            && self.may_go_on(left)
        {
            let missing = self.missing();
            if missing.iter().any(|(there, missing)| *there > 0 && *missing > 0) {
                padded = missing.iter().map(|(_, missing)| *missing).collect();
                let prepared = self.prepare(single)?;
                self.segment(prepared, 1, true, &mut left, segments)?;
                for (at, &zeros) in padded.iter().enumerate() {
                    self.state.consumed[at].1 -= zeros;
                }
            }
        }
        Ok(padded)
    }

    fn may_go_on(&self, left: u64) -> bool {
        left > 0 && !self.control.tickets.is_closed()
    }

    /// Whether some source has ended with less than one iteration.
    fn is_short(&self) -> bool {
        self.sources.iter().flatten().any(|(id, consumer)| {
            let (written, closed) = consumer.shared().written();
            closed && written - consumer.shared().taken() < self.engine.tokens_per_iteration(*id)
        })
    }

    /// For each source, the tokens left (of one iteration at most) and those that an iteration needs besides. Waits
    /// until that is final.
    fn missing(&self) -> Vec<(u64, u64)> {
        let mut all = Vec::with_capacity(self.sources.len());
        for (id, consumer) in self.sources.iter().flatten() {
            let need = self.engine.tokens_per_iteration(*id);
            let conduit = consumer.shared();
            let mut there = 0;
            self.control.admission.wait_until(Spin::SHORT, || {
                let (written, closed) = conduit.written();
                there = (written - conduit.taken()).min(need);
                there == need || closed || self.control.stop.is_set()
            });
            all.push((there, need - there));
        }
        all
    }

    /// Runs at most `limit` blocks of a plan from the present state, and takes the state after them.
    fn segment(
        &mut self,
        mut prepared: Prepared,
        limit: u64,
        pad: bool,
        left: &mut u64,
        segments: &mut Vec<Segment>,
    ) -> Result<(), RunError> {
        let engine = Arc::clone(&self.engine);
        let plan = &engine.program.plans[prepared.plan];
        if limit == 0 {
            return Ok(());
        }
        border::import(&engine.program.graph, plan, &mut prepared.memory, &self.state.channels);
        self.control.tickets.restart();
        self.control.iterations_per_block.store(plan.block, Ordering::Relaxed);

        let devices = std::mem::take(&mut prepared.devices);
        let running = self.launch(plan, devices, limit, pad)?;
        let (blocks, mut segment) = self.land(plan, running)?;

        let graph = &engine.program.graph;
        self.state.channels = border::export(graph, plan, &mut prepared.memory, blocks);
        let iterations = blocks * plan.block;
        self.state.iterations += iterations;
        for (id, tokens) in &mut self.state.consumed {
            *tokens += iterations * engine.tokens_per_iteration(*id);
        }
        self.control.blocks.store(0, Ordering::Relaxed);
        self.control.iterations.fetch_add(iterations, Ordering::Relaxed);
        *left -= iterations;
        (segment.report.arena_bytes, segment.report.locked_bytes) = prepared.memory.bytes();
        if blocks > 0 {
            segments.push(segment);
        }
        Ok(())
    }

    fn launch(
        &mut self,
        plan: &Plan,
        devices: Vec<Lowered>,
        limit: u64,
        pad: bool,
    ) -> Result<Vec<Running>, RunError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            stop: Arc::clone(&self.control.stop),
            rings: plan.rings.iter().map(|_| RingSync::new()).collect(),
            spin: if devices.len() > cores { Spin::SHORT } else { Spin::LONG },
            clock: self.clock,
            progress: Arc::clone(&self.control.blocks),
        });
        let stamps: Vec<Option<Arc<Stamps>>> = devices
            .iter()
            .map(|d| (!d.sources.is_empty()).then(|| Arc::new(Stamps::new())))
            .collect();
        let paths = self.paths(&devices, &stamps);
        let mut workers = Vec::with_capacity(devices.len());
        for ((at, lowered), paths) in devices.into_iter().enumerate().zip(paths) {
            let device = plan.calendars[at].device;
            let Lowered { replay, slots, sources, sinks, rings } = lowered;
            let cores = self.engine.program.machine.devices[device].cores.clone();
            let worker = Worker {
                replay,
                sources: sources.into_iter().map(|id| self.take_source(id)).collect(),
                sinks: self.take_sinks(plan, &sinks, paths),
                gate: self.gate(plan, limit, pad),
                shared: Arc::clone(&shared),
                stamps: stamps[at].clone(),
                cores: if self.options.pin { cores } else { Vec::new() },
                stages: u64::from(plan.stages),
                sample_every: self.options.sample_every,
                is_first: at == 0,
                periods: Periods::default(),
                period: 0,
            };
            let name = format!("zbmd {}", self.engine.program.machine.devices[device].name);
            workers.push((name, worker, Slots { slots, rings }));
        }
        let mut running = Vec::with_capacity(workers.len());
        for (name, worker, lowered) in workers {
            let control = Arc::clone(&self.control);
            match std::thread::Builder::new().name(name).spawn(move || work(worker, &control)) {
                Ok(thread) => running.push(Running { thread, lowered }),
                Err(error) => {
                    self.control.abort();
                    shared.rings.iter().for_each(RingSync::wake);
                    for Running { thread, .. } in running {
                        drop(thread.join());
                    }
                    return Err(EngineError::Thread(error).into());
                }
            }
        }
        Ok(running)
    }

    fn gate(&self, plan: &Plan, limit: u64, pad: bool) -> Gate {
        let feeds = self.control.sources.iter().zip(self.engine.program.graph.sources());
        Gate {
            feeds: feeds
                .map(|(conduit, (id, _))| Feed {
                    conduit: Arc::clone(conduit),
                    base: conduit.taken(),
                    tokens_per_block: plan.block * self.engine.tokens_per_iteration(id),
                })
                .collect(),
            tickets: Arc::clone(&self.control.tickets),
            parker: Arc::clone(&self.control.admission),
            limit,
            batch: (STOP_NS / plan.period_ns.max(1)).clamp(1, MAX_BATCH),
            pad,
            admitted: 0,
        }
    }

    fn take_source(&mut self, id: ActorId) -> SourceEnd {
        let at = self.sources.iter().position(|s| s.as_ref().is_some_and(|(a, _)| *a == id));
        let at = at.expect("every source is on one device");
        let (_, consumer) = self.sources[at].take().expect("found above");
        SourceEnd { index: at as u32, consumer }
    }

    fn take_sinks(&mut self, plan: &Plan, ids: &[ActorId], paths: Vec<Vec<Path>>) -> Vec<SinkEnd> {
        let mut ends = Vec::with_capacity(ids.len());
        for (&id, paths) in ids.iter().zip(paths) {
            let at = self.sinks.iter().position(|s| s.as_ref().is_some_and(|(a, _)| *a == id));
            let at = at.expect("every sink is on one device");
            let (_, producer) = self.sinks[at].take().expect("found above");
            ends.push(SinkEnd {
                index: at as u32,
                producer,
                token_bytes: self.engine.program.graph.actors[id].inputs[0].token.bytes(),
                firings: plan.block * self.engine.repetition[id],
                paths,
            });
        }
        ends
    }

    /// For each device, for each of its sinks, the sources whose tokens reach it.
    fn paths(&self, devices: &[Lowered], stamps: &[Option<Arc<Stamps>>]) -> Vec<Vec<Vec<Path>>> {
        let mut budget = MAX_PATHS;
        let mut all: Vec<Vec<Vec<Path>>> =
            devices.iter().map(|d| d.sinks.iter().map(|_| Vec::new()).collect()).collect();
        for (device, stamps) in devices.iter().zip(stamps) {
            let Some(stamps) = stamps else { continue };
            for &source in &device.sources {
                let reached = summary::reached_from(&self.engine.program.graph, source);
                for (at, sinks) in all.iter_mut().enumerate() {
                    for (sink, paths) in sinks.iter_mut().enumerate() {
                        if reached[devices[at].sinks[sink]] && budget > 0 {
                            budget -= 1;
                            paths.push(Path::new(source.0, Arc::clone(stamps)));
                        }
                    }
                }
            }
        }
        all
    }

    /// Waits for all workers, takes the streams back and says what happened.
    fn land(&mut self, plan: &Plan, running: Vec<Running>) -> Result<(u64, Segment), RunError> {
        let engine = Arc::clone(&self.engine);
        let program = &engine.program;
        let mut failure = None;
        let mut blocks = 0;
        let mut report = summary::plan_report(plan);
        let (mut first_ns, mut last_ns) = (u64::MAX, 0);
        for (Running { thread, lowered }, calendar) in running.into_iter().zip(&plan.calendars) {
            let (mut worker, outcome) = match thread.join() {
                Ok(landed) => landed,
                // A panic outside of the step loop is ours; all other workers were stopped by it.
                Err(panic) => std::panic::resume_unwind(panic),
            };
            match outcome {
                Ok(n) => blocks = n,
                Err(why) => {
                    let why = summary::run_error(program, calendar, &lowered, &worker, why);
                    let replace = matches!(failure, None | Some(RunError::Abandoned));
                    failure = if replace { Some(why) } else { failure };
                }
            }
            first_ns = first_ns.min(worker.periods.first_ns);
            last_ns = last_ns.max(worker.periods.last_ns);
            report.workers.push(summary::worker_report(program, plan, calendar, &lowered, &worker));
            for sink in &mut worker.sinks {
                report.latencies.extend(summary::latencies(program, sink, &self.control));
            }
            self.take_back(worker);
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        report.blocks = blocks;
        let elapsed = last_ns.saturating_sub(first_ns);
        report.period_measured_ns = if blocks > 0 { elapsed as f64 / blocks as f64 } else { 0.0 };
        Ok((blocks, Segment { first_ns, last_ns, report }))
    }

    fn take_back(&mut self, worker: Worker) {
        let sources: Vec<ActorId> = self.engine.program.graph.sources().map(|(id, _)| id).collect();
        let sinks: Vec<ActorId> = self.engine.program.graph.sinks().map(|(id, _)| id).collect();
        for end in worker.sources {
            let at = end.index as usize;
            self.sources[at] = Some((sources[at], end.consumer));
        }
        for end in worker.sinks {
            let at = end.index as usize;
            self.sinks[at] = Some((sinks[at], end.producer));
        }
    }

    fn report(&self, before: &State, segments: Vec<Segment>, padded: &[u64]) -> Report {
        let discarded: Vec<u64> =
            self.sinks.iter().map(|s| s.as_ref().map_or(0, |(_, p)| p.discarded())).collect();
        summary::report(
            &self.engine,
            &self.control,
            (before, &self.state),
            segments,
            padded,
            &discarded,
        )
    }
}

/// A worker's thread. If it fails, it takes the others down with it: nobody waits for a peer that is gone.
fn work(mut worker: Worker, control: &Control) -> (Worker, Result<u64, Failure>) {
    let outcome = worker.run();
    if outcome.is_err() {
        control.abort();
        worker.shared.rings.iter().for_each(RingSync::wake);
    }
    (worker, outcome)
}
