//! One run from beginning to end, epoch by epoch: the main plan for whole blocks, the tail plan for whole iterations,
//! padding on request. Makes each epoch's memory, takes over its state, and joins the streams of one epoch to those of
//! the next. Must not touch tokens while workers may.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use zbmd_backends::gpu::{Fault, FaultKind};
use zbmd_ir::{ChannelId, DeviceId, Plan, PlanId, State, TiVec, state};

use crate::error::{EngineError, RunError};
use crate::observe::report::{PlanReport, Report};
use crate::observe::summary;
use crate::observe::trace::Tracer;
use crate::run::session::{Control, Current, Inner, Outcome, RunOptions};
use crate::run::supervised::Driver;
use crate::run::watchdog::Dog;
use crate::run::worker_pool::{Crew, Farewell, News};
use crate::transport::arena::OutOfMemory;
use crate::transport::clock::Clock;
use crate::transport::conduit::Conduit;
use crate::transport::epoch::{Area, EpochMemory, Saves, SessionMemory, SinkSpec, Spec};
use crate::transport::ledger::given_out_before;
use crate::transport::ring::Spin;
use crate::worker::border;
use crate::worker::gpu::DeviceFault;
use crate::worker::host::{End, How, Prepared};

/// Workers of a supervised run that take longer to end are left behind.
const DISMISS_LIMIT: Duration = Duration::from_secs(5);
/// How long a run without supervision listens until it looks whether it was given up.
const LISTEN: Duration = Duration::from_millis(100);
/// Worker processes of a run that was given up have so long to end their parts.
const STOP_LIMIT_NS: u64 = 1_000_000_000;

/// How a run ended.
pub(crate) type Finished = Result<Outcome, RunError>;

/// What is being run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Whole blocks.
    Main,
    /// Iterations that make no whole block.
    Tail,
    /// One last iteration, filled up with zeros.
    Pad,
}

/// The epoch at work.
pub(crate) struct Active {
    pub spec: Arc<Spec>,
    pub memory: Arc<EpochMemory>,
    pub block: u64,
    ends: Vec<Option<End>>,
    /// Parts that run in this process, until they begin.
    parts: Vec<Option<Prepared>>,
    /// For each sink, the tokens that had been given out when the epoch began.
    released: Vec<u64>,
}

pub(crate) struct Conductor {
    pub engine: Arc<Inner>,
    pub control: Arc<Control>,
    pub options: RunOptions,
    pub session: Arc<SessionMemory>,
    pub crew: Crew,
    /// At the border where the next epoch begins.
    pub state: State,
    /// For each source and sink, the tokens of its queue that earlier programs of this session have taken or given.
    pub source_offsets: Vec<u64>,
    pub emitted_before: Vec<u64>,
    /// Tokens that the sources had consumed when the session, or its present program, began.
    pub consumed_before: Vec<u64>,
    /// Iterations when the session, or its present program, began.
    pub iterations_before: u64,
    /// Iterations when the session began.
    pub iterations_first: u64,
    pub sink_capacities: Vec<u64>,
    /// For each sink, the tokens given out since the present program began, and where they went last.
    pub released: Vec<u64>,
    pub queues: Vec<Option<Arc<Conduit>>>,
    pub phase: Phase,
    /// Iterations that may still be run.
    pub left: u64,
    /// Zero tokens that were added to each source.
    pub padded: Vec<u64>,
    pub discarded: Vec<u64>,
    pub segments: Vec<Segment>,
    pub next_epoch: u64,
    /// When the first epoch began and the last one ended; and how many there were.
    pub span_ns: Option<(u64, u64)>,
    pub epochs: u64,
    /// Epochs that were fenced.
    pub fenced: u64,
    /// The next epoch is to find no memory: a fault brought about on purpose.
    pub deny_memory: bool,
    /// Takes in what workers record, if they do.
    pub tracer: Option<Tracer>,
    /// Events that the listener did not get.
    pub events_dropped: u64,
    /// The longest time that the supervising thread made no progress, if that was told.
    pub late: Option<Duration>,
    /// Ends the session without this thread, should it never end.
    pub given_up: Sender<Finished>,
}

/// What one plan's epochs left.
pub(crate) struct Segment {
    pub plan: PlanId,
    pub busy_ns: u64,
    pub report: PlanReport,
}

impl Conductor {
    /// Makes the first epoch, with its streams, before anything runs: a lack of memory is found here.
    pub(crate) fn first(&mut self) -> Result<Active, EngineError> {
        self.make(0, &[])
    }

    /// Runs everything. Streams are closed at the end, whatever it is.
    pub(crate) fn conduct(mut self, first: Active) -> Finished {
        let before = self.state.clone();
        let outcome = match self.options.supervised.clone() {
            Some(how) => Driver::new(&mut self, first, how).run(),
            None => self.epochs(first),
        };
        if outcome.is_err() {
            self.control.abort();
        }
        self.session
            .sources
            .iter()
            .for_each(|source| source.close());
        for queue in self.queues.iter().flatten() {
            queue.close();
            queue.is_last();
        }
        let mut report = self.report(&before);
        self.crew
            .dismiss(self.options.supervised.is_some().then_some(DISMISS_LIMIT));
        if let Some(tracer) = self.tracer {
            let traced = tracer.finish();
            let dropped = traced.trace.as_ref().map_or(0, |t| t.dropped_events);
            if dropped > 0 {
                let text =
                    "events and epochs are not in the trace: its file was not written fast enough";
                report.notes.push(format!("{dropped} {text}"));
            }
            (report.trace, report.profile) = (traced.trace, traced.profile);
        }
        let left = Outcome {
            report,
            state: self.state,
        };
        match outcome {
            Ok(()) => Ok(left),
            Err(RunError::GaveUp {
                verdict,
                iterations,
                ..
            }) => Err(RunError::GaveUp {
                verdict,
                iterations,
                left: Some(Box::new(left)),
            }),
            Err(other) => Err(other),
        }
    }

    /// Epoch after epoch, without supervision: whatever goes wrong ends the run.
    fn epochs(&mut self, first: Active) -> Result<(), RunError> {
        for device in self.engine.devices() {
            self.crew.spawn(device, 1);
        }
        let mut active = first;
        loop {
            self.launch(&mut active, (&[], 0))?;
            let blocks = self.wait(&mut active)?;
            self.complete(&active, blocks);
            if !self.has_more() {
                return Ok(());
            }
            active = self.make(self.next_epoch, &[])?;
        }
    }

    /// Waits until all workers have ended; the number of blocks.
    fn wait(&mut self, active: &mut Active) -> Result<u64, RunError> {
        let mut wrong: Option<RunError> = None;
        let mut given_up_ns = None;
        while active.ends.iter().any(Option::is_none) {
            let Some(news) = self.crew.next(LISTEN, &mut []) else {
                // A process that is stopped never ends its part: then the run is given up without it.
                let since_ns = self.control.stop.is_set().then(|| Clock.now_ns());
                given_up_ns = given_up_ns.or(since_ns);
                let is_over = given_up_ns.is_some_and(|ns| Clock.now_ns() - ns > STOP_LIMIT_NS);
                if is_over && self.crew.has_processes() {
                    return Err(RunError::Abandoned);
                }
                continue;
            };
            match news {
                News::Ready { .. } => {}
                News::Ended {
                    epoch,
                    calendar,
                    end,
                    ..
                } => {
                    debug_assert_eq!(epoch, active.spec.epoch, "one epoch at a time");
                    if let Some(error) = error_of(&end.how) {
                        active.memory.stop();
                        wrong.get_or_insert(error);
                    }
                    active.ends[calendar] = Some(*end);
                }
                News::Gone {
                    device, farewell, ..
                } => {
                    active.memory.stop();
                    let device = self.engine.program.machine.devices[device].name.clone();
                    return Err(match farewell {
                        Farewell::NoDevice(fault) => device_error(&fault, 0),
                        Farewell::Failed(fault) => device_error(&fault, 0),
                        farewell => RunError::Lost {
                            device,
                            why: farewell.to_string(),
                        },
                    });
                }
                News::Bug(bug) => {
                    active.memory.stop();
                    self.control.abort();
                    std::panic::resume_unwind(bug)
                }
            }
        }
        if let Some(error) = wrong {
            return Err(error);
        }
        active.blocks().ok_or(RunError::Abandoned)
    }

    fn block_of(&self, plan: PlanId) -> u64 {
        self.engine.program.plans[plan].block
    }

    /// Makes the memory of an epoch that begins at the present state, on all devices but the lost ones.
    pub(crate) fn make(&mut self, epoch: u64, lost: &[DeviceId]) -> Result<Active, EngineError> {
        let engine = Arc::clone(&self.engine);
        let Some(id) = engine.plan_of(self.phase, lost) else {
            return Err(EngineError::NoPlan {
                lost: engine.names(lost),
            });
        };
        let program = &engine.program;
        let (graph, plan) = (&program.graph, &program.plans[id]);
        let spec = Arc::new(self.spec(epoch, id, plan, lost));
        let memory = EpochMemory::create(graph, plan, &spec, self.options.lock_memory)?;
        let memory = Arc::new(memory);
        border::write_start(&memory, &self.state.channels);
        let parts = self.crew.prepare(&spec, &memory)?;
        self.next_epoch = epoch + 1;
        for (queue, next) in self.queues.iter_mut().zip(&memory.sinks) {
            if let Some(last) = queue.replace(Arc::clone(next)) {
                last.goes_on_in(next);
            }
        }
        self.session.doors.open(epoch);
        self.control.enter(Current {
            engine: Arc::clone(&engine),
            spec: Arc::clone(&spec),
            memory: Arc::clone(&memory),
            session: Arc::clone(&self.session),
            lost: lost.to_vec(),
            recoveries: self.fenced,
            iterations: self.state.iterations - self.iterations_first,
        });
        let ends = plan.calendars.iter().map(|_| None).collect();
        let released = self.released.clone();
        Ok(Active {
            spec,
            memory,
            block: plan.block,
            ends,
            parts,
            released,
        })
    }

    fn spec(&mut self, epoch: u64, id: PlanId, plan: &Plan, lost: &[DeviceId]) -> Spec {
        let engine = &self.engine;
        let graph = &engine.program.graph;
        let devices = engine.physical(plan, lost);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let team = |id: &DeviceId| engine.program.machine.devices[*id].cores.len().max(1);
        let threads: usize = devices.iter().map(team).sum();
        let done = self.state.iterations - self.iterations_before;
        let sinks = graph.sinks().zip(&self.released).zip(&self.sink_capacities);
        let sinks = sinks.map(|(((id, actor), &released), &capacity)| SinkSpec {
            capacity,
            token_bytes: actor.inputs[0].token.bytes(),
            given_out: given_out_before(released, done, engine.tokens_per_iteration(id)),
        });
        Spec {
            epoch,
            plan: id,
            spin_long: threads <= cores,
            devices,
            limit: if self.phase == Phase::Pad {
                1
            } else {
                self.left / plan.block
            },
            pad: self.phase == Phase::Pad,
            saves: self.saves(plan),
            bases: self.bases(),
            sinks: sinks.collect(),
            checksums: self.options.checksums,
            deny_memory: std::mem::take(&mut self.deny_memory),
            trace: self.tracer.as_ref().map(|tracer| tracer.ticks),
        }
    }

    /// Tokens of each source's queue that lie before the present state.
    fn bases(&self) -> Vec<u64> {
        let consumed = self.state.consumed.iter().zip(&self.consumed_before);
        let consumed = consumed.map(|((_, tokens), before)| tokens - before);
        consumed
            .zip(&self.source_offsets)
            .map(|(tokens, offset)| offset + tokens)
            .collect()
    }

    fn saves(&self, plan: &Plan) -> Option<Saves> {
        self.engine.saves(plan, &self.options)
    }

    /// Lets the workers of an epoch begin.
    pub(crate) fn launch(
        &mut self,
        active: &mut Active,
        watch: (&[Dog], u64),
    ) -> Result<(), RunError> {
        let parts = std::mem::take(&mut active.parts);
        self.epochs += 1;
        let now_ns = Clock.now_ns();
        self.span_ns.get_or_insert((now_ns, now_ns));
        if let Some(tracer) = &mut self.tracer {
            tracer.begin(&self.engine, &active.spec, &active.memory);
        }
        Ok(self
            .crew
            .begin(&active.spec, &active.memory, parts, watch)?)
    }

    /// Takes over the state of an epoch that all workers have finished after `blocks` blocks.
    pub(crate) fn complete(&mut self, active: &Active, blocks: u64) {
        let channels = border::read_area(&active.memory, &self.engine.program.graph, Area::End);
        self.take_over(active, blocks, channels);
        self.keep_report(active, blocks);
        if let Some(tracer) = &mut self.tracer {
            tracer.end(active.spec.epoch);
        }
    }

    /// Takes over the last committed border of an epoch that ends at once; how many of its blocks count.
    pub(crate) fn fence(&mut self, active: &Active) -> u64 {
        let memory = &active.memory;
        // From here on nothing more counts.
        memory.stop();
        self.session.doors.of(active.spec.epoch).notify();
        let blocks = memory.common.committed.seal();
        self.fenced += 1;
        // A worker that died between a publication and its news left somebody asleep.
        self.session.sources.iter().for_each(|source| source.wake());
        let area = if blocks == 0 {
            Area::Start
        } else {
            Area::Border(blocks)
        };
        let channels = border::read_area(memory, &self.engine.program.graph, area);
        self.take_over(active, blocks, channels);
        if let Some(tracer) = &mut self.tracer {
            tracer.end(active.spec.epoch);
        }
        blocks
    }

    /// Goes over to another program with the same streams, at a border that all of the old one's work is done up to.
    /// The state is taken over if it fits, and else begins anew.
    pub(crate) fn exchange(&mut self, to: Arc<Inner>) {
        self.source_offsets = self.bases();
        let done = self.state.iterations - self.iterations_before;
        for (at, (id, _)) in self.engine.program.graph.sinks().enumerate() {
            self.emitted_before[at] += done * self.engine.tokens_per_iteration(id);
        }
        let graph = &to.program.graph;
        let same = state::channel_fingerprint(graph)
            == state::channel_fingerprint(&self.engine.program.graph);
        if !same {
            self.state.channels = State::initial(graph).channels;
        }
        let consumed = graph.sources().zip(&self.state.consumed);
        self.state.consumed = consumed
            .map(|((id, _), (_, tokens))| (id, *tokens))
            .collect();
        self.consumed_before = self
            .state
            .consumed
            .iter()
            .map(|(_, tokens)| *tokens)
            .collect();
        self.iterations_before = self.state.iterations;
        self.released.fill(0);
        self.sink_capacities = to.sink_capacities(self.options.queue_bytes);
        self.phase = Phase::Main;
        self.crew.exchange(&to);
        self.engine = to;
    }

    /// The state at the last committed border of an epoch that is at work.
    pub(crate) fn committed_state(&self, active: &Active) -> State {
        let memory = &active.memory;
        let blocks = memory.hold();
        let area = if blocks == 0 {
            Area::Start
        } else {
            Area::Border(blocks)
        };
        let channels = border::read_area(memory, &self.engine.program.graph, area);
        memory.let_go();
        let iterations = blocks * active.block;
        let consumed = self.state.consumed.iter().map(|(id, tokens)| {
            (
                *id,
                tokens + iterations * self.engine.tokens_per_iteration(*id),
            )
        });
        State {
            iterations: self.state.iterations + iterations,
            channels,
            consumed: consumed.collect(),
        }
    }

    fn take_over(&mut self, active: &Active, blocks: u64, channels: TiVec<ChannelId, Vec<u8>>) {
        let engine = Arc::clone(&self.engine);
        if let Some((_, last_ns)) = &mut self.span_ns {
            *last_ns = Clock.now_ns();
        }
        let iterations = blocks * active.block;
        self.state.channels = channels;
        self.state.iterations += iterations;
        self.left -= iterations;
        for (id, tokens) in &mut self.state.consumed {
            *tokens += iterations * engine.tokens_per_iteration(*id);
        }
        if active.spec.pad && blocks > 0 {
            for ((_, tokens), zeros) in self.state.consumed.iter_mut().zip(&self.padded) {
                *tokens -= zeros;
            }
        }
        for (source, base) in self.session.sources.iter().zip(self.bases()) {
            source.let_go(base);
        }
        let done = self.state.iterations - self.iterations_before;
        for (at, (id, _)) in engine.program.graph.sinks().enumerate() {
            let queue = &active.memory.sinks[at];
            queue.close();
            let needed = done * engine.tokens_per_iteration(id);
            let given_out = active.released[at] + queue.written().0;
            // A queue without a reader counts nothing: all that is done is given out.
            self.released[at] = if queue.is_detached() {
                needed
            } else {
                given_out.max(active.released[at])
            };
        }
    }

    /// Whether there is more to run; sets the phase. Waits until that is final where an incomplete iteration may
    /// follow.
    pub(crate) fn has_more(&mut self) -> bool {
        let engine = Arc::clone(&self.engine);
        let main_block = self.block_of(engine.main);
        let here = match self.phase {
            Phase::Main => !self.is_over(main_block),
            Phase::Tail => !self.is_over(1),
            Phase::Pad => false,
        };
        if here {
            return true;
        }
        let may_go_on = self.left > 0 && !self.control.is_finishing();
        if self.phase == Phase::Main
            && main_block > 1
            && engine.tail.is_some()
            && may_go_on
            && !self.is_short(1)
        {
            self.phase = Phase::Tail;
            return true;
        }
        let can_pad = engine.tail.is_some() || main_block == 1;
        if self.phase != Phase::Pad && self.options.pad && can_pad && may_go_on {
            let missing = self.missing();
            if missing
                .iter()
                .any(|(there, missing)| *there > 0 && *missing > 0)
            {
                self.padded = missing.iter().map(|(_, missing)| *missing).collect();
                self.phase = Phase::Pad;
                return true;
            }
        }
        false
    }

    /// Whether no further block of so many iterations can be run.
    fn is_over(&self, block: u64) -> bool {
        self.left < block || self.control.is_finishing() || self.is_short(block)
    }

    /// Whether some source has ended with less than so many iterations.
    fn is_short(&self, iterations: u64) -> bool {
        self.sources().any(|(source, need)| {
            let (written, closed) = source.written();
            closed && (written - source.taken()) / need < iterations
        })
    }

    /// The source queues, and the tokens that an iteration takes from each.
    fn sources(&self) -> impl Iterator<Item = (&Arc<Conduit>, u64)> {
        let needs = self.engine.program.graph.sources();
        let needs = needs.map(|(id, _)| self.engine.tokens_per_iteration(id));
        self.session.sources.iter().zip(needs)
    }

    /// For each source, the tokens left (of one iteration at most) and those that an iteration needs besides. Waits
    /// until that is final.
    fn missing(&self) -> Vec<(u64, u64)> {
        let door = self.session.doors.present();
        let mut all = Vec::new();
        for (source, need) in self.sources() {
            let mut there = 0;
            door.wait_until(Spin::SHORT, || {
                let (written, closed) = source.written();
                there = (written - source.taken()).min(need);
                there == need || closed || self.control.stop.is_set()
            });
            all.push((there, need - there));
        }
        all
    }

    /// Adds an epoch to what is reported of its plan.
    fn keep_report(&mut self, active: &Active, blocks: u64) {
        for (index, tokens) in active.ends.iter().flatten().flat_map(|end| &end.discarded) {
            self.discarded[*index as usize] += tokens;
        }
        if blocks == 0 {
            return;
        }
        let ends = || active.ends.iter().flatten();
        let first_ns = ends().map(|e| e.first_ns).min().unwrap_or(0);
        let last_ns = ends().map(|e| e.last_ns).max().unwrap_or(0);
        let id = active.spec.plan;
        let at = self
            .segments
            .iter()
            .position(|s| s.plan == id)
            .unwrap_or_else(|| {
                let report = summary::plan_report(&self.engine.program.plans[id]);
                self.segments.push(Segment {
                    plan: id,
                    busy_ns: 0,
                    report,
                });
                self.segments.len() - 1
            });
        let shared = active.memory.arena();
        let segment = &mut self.segments[at];
        segment.busy_ns += last_ns.saturating_sub(first_ns);
        let report = &mut segment.report;
        report.blocks += blocks;
        report.period_measured_ns = segment.busy_ns as f64 / report.blocks as f64;
        let shared_locked = if shared.is_locked() {
            shared.bytes() as u64
        } else {
            0
        };
        report.arena_bytes = shared.bytes() as u64 + ends().map(|e| e.arena_bytes).sum::<u64>();
        report.locked_bytes = shared_locked + ends().map(|e| e.locked_bytes).sum::<u64>();
        report.workers = ends().map(|e| e.report.clone()).collect();
        report.latencies = ends().flat_map(|e| e.latencies.clone()).collect();
    }

    fn report(&mut self, before: &State) -> Report {
        let (first_ns, last_ns) = self.span_ns.unwrap_or_default();
        let mut report = summary::report(
            &self.engine,
            &self.session,
            (before, &self.state),
            std::mem::take(&mut self.segments),
            &self.padded,
            &self.discarded,
            last_ns - first_ns,
        );
        let done = self.state.iterations - self.iterations_before;
        for (at, (id, _)) in self.engine.program.graph.sinks().enumerate() {
            let tokens = done * self.engine.tokens_per_iteration(id) + self.emitted_before[at];
            report.sinks[at].set_tokens(tokens, last_ns - first_ns);
        }
        report.epochs = self.epochs;
        report.recoveries = self.fenced;
        report.events_dropped = self.events_dropped;
        if let Some(late) = self.late {
            report.notes.push(format!(
                "the supervising thread made no progress for {} s or more",
                late.as_secs()
            ));
        }
        if self.events_dropped > 0 {
            report.notes.push(format!(
                "{} events were not delivered: whoever reads them was too slow",
                self.events_dropped
            ));
        }
        report
    }
}

impl Active {
    /// Keeps what a worker left at its end.
    pub(crate) fn keep(&mut self, calendar: usize, end: End) {
        self.ends[calendar] = Some(end);
    }

    pub(crate) fn has_ended(&self, calendar: usize) -> bool {
        self.ends[calendar].is_some()
    }

    /// The number of blocks that all workers have finished.
    fn blocks(&self) -> Option<u64> {
        let blocks = |end: &Option<End>| match end.as_ref()?.how {
            How::Finished { blocks } => Some(blocks),
            _ => None,
        };
        self.ends.iter().map(blocks).min().flatten()
    }
}

fn device_error(fault: &DeviceFault, block: u64) -> RunError {
    let DeviceFault {
        device,
        fault: Fault { kind, text },
    } = fault.clone();
    match kind {
        FaultKind::Unfit => EngineError::Device { device, why: text }.into(),
        _ => RunError::Device {
            device,
            block,
            fault: text,
        },
    }
}

fn error_of(how: &How) -> Option<RunError> {
    match how {
        How::Finished { .. } | How::Stopped => None,
        How::Wrong(wrong) => Some(wrong.clone().into()),
        How::NoMemory { bytes, limit } => {
            let error = OutOfMemory::of_machine(*bytes, *limit);
            Some(EngineError::Memory(error).into())
        }
        How::Device { fault, block } => Some(device_error(fault, *block)),
    }
}
