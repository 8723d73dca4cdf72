//! Engines and sessions: what the embedding program holds. An engine is a program made ready; a session is one run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};

use zbmd_backends::op::Registry;
use zbmd_ir::memory::available_bytes;
use zbmd_ir::verify::Verified;
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{ActorId, DeviceId, Plan, PlanId, PortChannels, Program, Role, State, TiVec};

use crate::conductor::{Conductor, Phase};
use crate::conductor_thread::ConductorThread;
use crate::conduit::{Consumer, Producer};
use crate::crew::{Crew, Isolation};
use crate::demand;
use crate::epoch::{EpochMemory, Queues, Saves, SessionMemory, Spec};
use crate::error::{EngineError, RunError};
use crate::host::HostOptions;
use crate::kernels::Kernels;
use crate::live::Progress;
use crate::primitive::{AtomicU32, Ordering};
use crate::ring::{Spin, Stop};
use crate::stream::{SinkHandle, SourceHandle, StreamError};
use crate::supervised::Supervised;
use crate::trace::Tracer;
use crate::unsupported;

/// How to run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Where to go on; from the initial tokens if `None`.
    pub state: Option<State>,
    /// Iterations at most; as many as the sources have tokens for if `None`.
    pub iterations: Option<u64>,
    /// At the end, fill up what is less than an iteration with zero tokens and run it too.
    pub pad: bool,
    /// Time the slots of every so-manieth period; 0 for never.
    pub sample_every: u64,
    /// Tie each worker to its device's cores.
    pub pin: bool,
    /// Ask the system to keep the arenas in memory.
    pub lock_memory: bool,
    /// Bytes that each stream's queue holds at least; blocks that are large against it get more. A queue that holds
    /// many blocks costs few wake-ups, one that holds few keeps the embedding program close to the calendar.
    pub queue_bytes: u64,
    /// Where workers run.
    pub isolation: Isolation,
    /// Of each worker that is a process, keep a second one ready to take its place: it has loaded the program, and
    /// opened its GPU and made the kernels there. A restart then does not wait for that; it costs the memory of an idle
    /// process, on GPUs that of a context too.
    pub standby: bool,
    /// Check that what arrives over rings is what was sent.
    pub checksums: bool,
    /// Record what every worker really does, and write it to this file.
    pub trace: Option<PathBuf>,
    /// Count how long the calls of each actor take.
    pub profile: bool,
    /// Go on when workers are lost; without it, any loss ends the run.
    pub supervised: Option<Supervised>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            state: None,
            iterations: None,
            pad: false,
            sample_every: 64,
            pin: true,
            lock_memory: true,
            queue_bytes: 1 << 20,
            isolation: Isolation::Threads,
            standby: false,
            checksums: false,
            trace: None,
            profile: false,
            supervised: None,
        }
    }
}

/// A program that can be run any number of times.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("model", &self.inner.program.graph.name)
            .finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub program: Verified<Program>,
    pub repetition: TiVec<ActorId, u64>,
    pub joined: PortChannels,
    pub kernels: Kernels,
    /// What kernels for GPUs are made with.
    pub registry: Registry,
    /// The plan that runs whole blocks, and the one for what is left.
    pub main: PlanId,
    pub tail: Option<PlanId>,
}

impl Engine {
    /// Makes the kernels of a verified program, and checks that this executor can run all of its plans: those for lost
    /// devices, too, for which it would be too late once a device is lost. Whether GPUs are there, and have what plans
    /// ask of them, is found out when they are opened.
    ///
    /// # Errors
    /// An op or a variant of a kernel that the registry does not have, or a plan that this executor cannot run.
    pub fn new(program: Verified<Program>, registry: &Registry) -> Result<Self, EngineError> {
        let main = PlanId(0);
        let tail = program
            .plan("tail")
            .map(|(id, _)| id)
            .filter(|id| *id != main);
        let graph = &program.graph;
        unsupported::check_graph(graph)?;
        for plan in &program.plans {
            unsupported::check_plan(&program, plan)?;
        }
        // GPUs ask again when they are opened and whenever an epoch begins.
        let registry = registry.resolving_once();
        let kernels = Kernels::new(&program, &registry)?;
        for plan in &program.plans {
            check_scratch(&program, plan, &kernels)?;
        }
        let repetition = repetition(graph).expect("a verified graph is consistent");
        let joined = graph.port_channels();
        let inner = Inner {
            repetition,
            joined,
            kernels,
            registry,
            main,
            tail,
            program,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.inner.program
    }

    /// The program, for whoever takes only what the verifier let pass.
    pub fn verified(&self) -> &Verified<Program> {
        &self.inner.program
    }

    /// Starts a run: memory is taken, workers wait for tokens.
    ///
    /// # Errors
    /// A state of another model, or too little memory or threads.
    pub fn start(&self, options: RunOptions) -> Result<Session, EngineError> {
        Session::start(Arc::clone(&self.inner), options)
    }
}

fn check_scratch(program: &Program, plan: &Plan, kernels: &Kernels) -> Result<(), EngineError> {
    let calendars = plan.calendars.iter();
    let planned: BTreeMap<DeviceId, u64> = calendars.map(|c| (c.device, c.scratch_bytes)).collect();

    for actor in program.graph.actors.keys() {
        let Some(kernel) = kernels.of(plan, actor) else {
            continue;
        };
        let device = plan.placement[actor];
        if program.machine.devices[device].backend != "cpu" {
            // What its kernels need there is asked when they are made.
            continue;
        }
        let planned = planned.get(&device).copied().unwrap_or(0);
        let needed = kernel.scratch_bytes() as u64;
        if needed > planned {
            return Err(EngineError::Scratch {
                plan: plan.name.clone(),
                actor: program.graph.actors[actor].name.clone(),
                needed,
                planned,
            });
        }
    }
    Ok(())
}

/// What a session, its handles and its conductor share.
pub(crate) struct Control {
    /// The run is given up.
    pub stop: Arc<Stop>,
    /// The run ends at the next border.
    finishing: AtomicU32,
    session: Arc<SessionMemory>,
    /// A program to go over to at the next border.
    swap: Mutex<Option<Arc<Inner>>>,
    /// Not on any fast path: taken once an epoch, and by whoever ends the run or looks at its progress.
    current: Mutex<Option<Current>>,
}

/// Gives the run up if the thread that conducts it panics: nobody else would ever end the waits of those who hold its
/// sources and sinks.
struct AbortOnPanic(Arc<Control>);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort();
        }
    }
}

/// The epoch at work.
pub(crate) struct Current {
    pub engine: Arc<Inner>,
    pub spec: Arc<Spec>,
    pub memory: Arc<EpochMemory>,
    pub session: Arc<SessionMemory>,
    /// Devices that are lost.
    pub lost: Vec<DeviceId>,
    /// Epochs that were fenced before it.
    pub recoveries: u64,
    /// Iterations done before it.
    pub iterations: u64,
}

impl Control {
    fn current(&self) -> MutexGuard<'_, Option<Current>> {
        self.current
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A new epoch begins.
    pub(crate) fn enter(&self, next: Current) {
        let mut current = self.current();
        if self.is_finishing() {
            next.memory.common.tickets.close();
        }
        *current = Some(next);
    }

    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing.load(Ordering::Acquire) != 0
    }

    /// The program that somebody wants to go over to, if any.
    pub(crate) fn wanted(&self) -> MutexGuard<'_, Option<Arc<Inner>>> {
        self.swap
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Gives the run up: every wait ends.
    pub(crate) fn abort(&self) {
        self.stop.set();
        if let Some(current) = &*self.current() {
            current.memory.stop();
        }
        self.session.sources.iter().for_each(|source| source.wake());
    }

    /// Ends the run at the next border of a block.
    pub(crate) fn finish(&self) {
        self.finishing.store(1, Ordering::Release);
        if let Some(current) = &*self.current() {
            current.memory.common.tickets.close();
        }
        self.session
            .sources
            .iter()
            .for_each(|source| source.close());
        self.session.doors.notify();
    }

    fn iterations(&self) -> u64 {
        self.current().as_ref().map_or(0, Current::iterations)
    }
}

impl Current {
    fn iterations(&self) -> u64 {
        let plan = &self.engine.program.plans[self.spec.plan];
        let periods = self
            .memory
            .posts
            .first()
            .map_or(0, |p| p.periods.load(Ordering::Relaxed));
        self.iterations + (periods + 1).saturating_sub(plan.stages.into()) * plan.block
    }
}

/// Ends a run from any thread.
#[derive(Clone)]
pub struct Stopper {
    control: Arc<Control>,
}

impl std::fmt::Debug for Stopper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopper").finish_non_exhaustive()
    }
}

impl Stopper {
    /// Takes no more tokens, finishes the blocks at work and ends the run as if the input ended here.
    pub fn stop(&self) {
        self.control.finish();
    }

    /// Whether the run was told to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.control.is_finishing() || self.control.stop.is_set()
    }

    /// Iterations finished so far, for progress displays: it may lag by some blocks.
    pub fn iterations(&self) -> u64 {
        self.control.iterations()
    }

    /// The run as it is now, for those who watch it. Reads counters that workers keep anyway: they are not disturbed.
    pub fn progress(&self) -> Progress {
        let current = self.control.current();
        current
            .as_ref()
            .map_or_else(Progress::default, |c| Progress::of(c, c.iterations()))
    }
}

/// What a finished run leaves.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was done and measured.
    pub report: crate::report::Report,
    /// Where another run can go on.
    pub state: State,
}

/// One run. Dropping it gives the run up; [`Self::join`] waits for its end.
pub struct Session {
    control: Arc<Control>,
    sources: BTreeMap<String, Option<SourceHandle>>,
    sinks: BTreeMap<String, Option<SinkHandle>>,
    conductor: Option<ConductorThread>,
    engine: Arc<Inner>,
    is_supervised: bool,
}

/// Why a run cannot go over to another program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwapError {
    /// Only the supervisor can bring a run to a border and begin it anew.
    #[error("the run is not supervised: set `RunOptions::supervised`")]
    Unsupervised,
    /// Other streams.
    #[error(
        "the run has {here}; the new program has {there}: they must be the same, in the same order"
    )]
    Ports {
        /// Of the run.
        here: String,
        /// Of the new program.
        there: String,
    },
    /// Its blocks do not fit a queue that was made for the first program.
    #[error(
        "the new program needs room for {needed} tokens at source `{name}`; the queue has {capacity}: raise `RunOptions::queue_bytes`"
    )]
    Queue {
        /// The source.
        name: String,
        /// Tokens.
        needed: u64,
        /// Tokens.
        capacity: u64,
    },
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("sources", &self.sources.keys())
            .field("sinks", &self.sinks.keys())
            .finish_non_exhaustive()
    }
}

/// Blocks that each half of a queue holds besides what the calendar itself needs: whoever waits at a queue sleeps until
/// half of it is free or full.
const BLOCKS_AHEAD: u64 = 2;

impl Session {
    fn start(engine: Arc<Inner>, options: RunOptions) -> Result<Self, EngineError> {
        let state = match options.state.clone() {
            Some(state) => checked_state(&engine.program, state)?,
            None => State::initial(&engine.program.graph),
        };
        let graph = &engine.program.graph;
        let queues: Queues = graph
            .sources()
            .map(|(id, actor)| {
                (
                    engine.source_capacity(id, &options),
                    actor.outputs[0].token.bytes(),
                )
            })
            .collect();
        demand::check(&engine, &options, &queues, available_bytes())?;
        let session = Arc::new(SessionMemory::create(&queues)?);
        let stop = Arc::new(Stop::new());
        let control = Arc::new(Control {
            stop: Arc::clone(&stop),
            finishing: AtomicU32::new(0),
            session: Arc::clone(&session),
            swap: Mutex::new(None),
            current: Mutex::new(None),
        });
        let host = HostOptions {
            sample_every: options.sample_every,
            pin: options.pin,
            lock_memory: options.lock_memory,
        };
        let (engine_, session_) = (Arc::clone(&engine), Arc::clone(&session));
        let places = (options.isolation.clone(), options.standby);
        let crew = Crew::new(engine_, session_, queues, host, places);
        let sink_count = graph.sinks().count();
        let recorded = options.trace.is_some() || options.profile;
        let tracer =
            recorded.then(|| Tracer::start(&engine, options.trace.as_deref(), options.profile));
        let tracer = tracer.transpose()?;
        let (finish, finished) = mpsc::channel();
        let mut conductor = Conductor {
            tracer,
            control: Arc::clone(&control),
            crew,
            source_offsets: vec![0; session.sources.len()],
            emitted_before: vec![0; sink_count],
            iterations_first: state.iterations,
            consumed_before: state.consumed.iter().map(|(_, tokens)| *tokens).collect(),
            iterations_before: state.iterations,
            left: options.iterations.unwrap_or(u64::MAX),
            state,
            sink_capacities: engine.sink_capacities(options.queue_bytes),
            released: vec![0; sink_count],
            queues: vec![None; sink_count],
            phase: Phase::Main,
            padded: vec![0; session.sources.len()],
            discarded: vec![0; sink_count],
            segments: Vec::new(),
            next_epoch: 0,
            span_ns: None,
            epochs: 0,
            fenced: 0,
            deny_memory: false,
            events_dropped: 0,
            late: None,
            given_up: finish.clone(),
            session: Arc::clone(&session),
            engine: Arc::clone(&engine),
            options,
        };
        let first = conductor.first()?;
        let is_supervised = conductor.options.supervised.is_some();
        let source = |((_, actor), queue): ((ActorId, &zbmd_ir::Actor), _)| {
            let (producer, stop) = (Producer::new(queue), Arc::clone(&stop));
            let token = &actor.outputs[0].token;
            let handle = SourceHandle::new(&actor.name, token, producer, stop, Spin::SHORT);
            (actor.name.clone(), Some(handle))
        };
        let sources = graph.sources().zip(&session.sources).map(source).collect();
        let sink = |((_, actor), queue): ((ActorId, &zbmd_ir::Actor), _)| {
            let (consumer, stop) = (Consumer::new(queue, 0, false), Arc::clone(&stop));
            let token = &actor.inputs[0].token;
            let handle = SinkHandle::new(&actor.name, token, consumer, stop, Spin::SHORT);
            (actor.name.clone(), Some(handle))
        };
        let sinks = graph.sinks().zip(&first.memory.sinks).map(sink).collect();
        let conductor = ConductorThread::start(finished, move || {
            let _abort = AbortOnPanic(Arc::clone(&conductor.control));
            let _ = finish.send(conductor.conduct(first));
        })
        .map_err(EngineError::Thread)?;
        let conductor = Some(conductor);
        Ok(Self {
            control,
            sources,
            sinks,
            conductor,
            engine,
            is_supervised,
        })
    }

    /// The handle of a source. There is one.
    ///
    /// # Errors
    /// No such source, or it was taken before.
    pub fn source(&mut self, name: &str) -> Result<SourceHandle, StreamError> {
        take("source", &mut self.sources, name)
    }

    /// The handle of a sink. There is one.
    ///
    /// # Errors
    /// No such sink, or it was taken before.
    pub fn sink(&mut self, name: &str) -> Result<SinkHandle, StreamError> {
        take("sink", &mut self.sinks, name)
    }

    /// Something that ends the run from any thread and tells its progress.
    pub fn stopper(&self) -> Stopper {
        Stopper {
            control: Arc::clone(&self.control),
        }
    }

    /// Goes over to another program at the next border, while tokens flow: new weights, or a new model with the same
    /// sources and sinks. Its state is taken over if it has the same channels; else it begins with its initial tokens.
    /// Returns at once: that it was done is an event of the supervisor.
    ///
    /// # Errors
    /// What keeps the program from taking this one's place; then nothing changes.
    pub fn swap(&self, to: &Engine) -> Result<(), SwapError> {
        if !self.is_supervised {
            return Err(SwapError::Unsupervised);
        }
        let ports = |engine: &Inner| -> Vec<String> {
            let graph = &engine.program.graph;
            let sources = graph
                .sources()
                .map(|(_, a)| (a, "source", &a.outputs[0].token));
            let sinks = graph.sinks().map(|(_, a)| (a, "sink", &a.inputs[0].token));
            let all = sources.chain(sinks);
            all.map(|(actor, kind, token)| format!("{kind} `{}` of {token}", actor.name))
                .collect()
        };
        let (here, there) = (ports(&self.engine), ports(&to.inner));
        if here != there {
            return Err(SwapError::Ports {
                here: here.join(", "),
                there: there.join(", "),
            });
        }
        let sources = to
            .inner
            .program
            .graph
            .sources()
            .zip(&self.control.session.sources);
        for ((id, actor), queue) in sources {
            let (needed, capacity) = (to.inner.least_capacity(id), queue.capacity());
            if needed > capacity {
                return Err(SwapError::Queue {
                    name: actor.name.clone(),
                    needed,
                    capacity,
                });
            }
        }
        *self.control.wanted() = Some(Arc::clone(&to.inner));
        Ok(())
    }

    /// Waits for the end of the run. Sources whose handles were not taken are empty; sinks whose handles were not
    /// taken are dropped. Handles that were taken must be served by other threads meanwhile.
    ///
    /// # Errors
    /// Why the run was given up.
    pub fn join(mut self) -> Result<Outcome, RunError> {
        self.sources.clear();
        self.sinks.clear();
        let Some(conductor) = self.conductor.take() else {
            return Err(RunError::Abandoned);
        };
        match conductor.wait() {
            Ok(finished) => finished,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(conductor) = self.conductor.take() {
            self.control.abort();
            // Its outcome is of no interest any more; waiting makes sure that no worker outlives the session.
            drop(conductor.wait());
        }
    }
}

impl Inner {
    /// Whether a device is a GPU.
    pub(crate) fn is_gpu(&self, device: DeviceId) -> bool {
        zbmd_backends::gpu::is_gpu(&self.program.machine.devices[device].backend)
    }

    /// Tokens that an actor's port 0 moves in one iteration.
    pub(crate) fn tokens_per_iteration(&self, id: ActorId) -> u64 {
        let actor = &self.program.graph.actors[id];
        let rate = match actor.role {
            Role::Sink => actor.inputs[0].rate,
            _ => actor.outputs[0].rate,
        };
        self.repetition[id] * rate
    }

    fn largest_block(&self, id: ActorId) -> (u64, u64) {
        let main = &self.program.plans[self.main];
        let tail = self.tail.map_or(1, |t| self.program.plans[t].block);
        let per_iteration = self.tokens_per_iteration(id);
        let stages = self
            .tail
            .map_or(1, |t| self.program.plans[t].stages)
            .max(main.stages);
        (
            main.block.max(tail).saturating_mul(per_iteration),
            u64::from(stages),
        )
    }

    /// A block is admitted when its tokens are there; the slot that takes them may come as many periods later as
    /// there are stages, and tokens are let go only when the next border after them is committed: so many blocks must
    /// fit besides; and twice that, for a program that sleeps until half the queue is free must not starve the
    /// calendar.
    fn source_capacity(&self, id: ActorId, options: &RunOptions) -> u64 {
        let room = |plan: &Plan| {
            let every = self.saves(plan, options).map_or(0, |saves| saves.every);
            let blocks = 2 * (u64::from(plan.stages) + every + BLOCKS_AHEAD);
            plan.block.saturating_mul(blocks)
        };
        let iterations = self.program.plans.iter().map(room).max().unwrap_or(1);
        let token_bytes = self.program.graph.actors[id].outputs[0].token.bytes();
        iterations
            .saturating_mul(self.tokens_per_iteration(id))
            .max(options.queue_bytes / token_bytes)
    }

    /// How often the tokens on channels are saved when this plan runs; never without supervision.
    ///
    /// Often enough that little is done again after a loss (half a millisecond of work, where that costs nothing), and
    /// seldom enough that saving takes a five-hundredth of the time.
    pub(crate) fn saves(&self, plan: &Plan, options: &RunOptions) -> Option<Saves> {
        const BORDER_NS: u64 = 500_000;
        const COPY_BYTES_PER_US: u64 = 2_000;
        const SHARE: u64 = 500;
        const AREAS: u64 = 3;
        let how = options.supervised.as_ref()?;
        let bytes: u64 = self
            .program
            .graph
            .channels
            .iter()
            .map(|c| c.history() * c.token.bytes())
            .sum();
        let save_ns = bytes * 1000 / COPY_BYTES_PER_US + 200;
        let enough = (save_ns * SHARE)
            .max(BORDER_NS)
            .div_ceil(plan.period_ns.max(1));
        let every = how
            .save_every
            .unwrap_or(enough)
            .max(u64::from(plan.stages))
            .max(1);
        Some(Saves {
            every,
            areas: AREAS,
        })
    }

    /// The plans for whole blocks and for what is left when devices are lost; `None` if that cannot be borne. A loss of
    /// devices that have no role is none.
    pub(crate) fn plans_without(&self, lost: &[DeviceId]) -> Option<(PlanId, Option<PlanId>)> {
        let whole = self.devices();
        if !lost.iter().any(|d| whole.contains(d)) {
            return Some((self.main, self.tail));
        }
        let entry = self.program.contingencies.find(lost)?;
        Some((entry.main, entry.tail))
    }

    /// The plan for a phase of the run when devices are lost; `None` if there is none.
    pub(crate) fn plan_of(&self, phase: Phase, lost: &[DeviceId]) -> Option<PlanId> {
        let (main, tail) = self.plans_without(lost)?;
        match phase {
            Phase::Main => Some(main),
            Phase::Tail => tail,
            Phase::Pad => tail.or((self.program.plans[main].block == 1).then_some(main)),
        }
    }

    /// The device that runs each calendar of a plan when devices are lost.
    pub(crate) fn physical(&self, plan: &Plan, lost: &[DeviceId]) -> Vec<DeviceId> {
        let whole = self.devices();
        let borne = lost.iter().any(|d| whole.contains(d));
        let roles = if borne {
            self.program.contingencies.roles(lost)
        } else {
            BTreeMap::new()
        };
        let roles = plan
            .calendars
            .iter()
            .map(|c| roles.get(&c.device).copied().unwrap_or(c.device));
        roles.collect()
    }

    /// All devices that the plans for the whole machine use.
    pub(crate) fn devices(&self) -> BTreeSet<DeviceId> {
        let plans = [Some(self.main), self.tail].into_iter().flatten();
        plans
            .flat_map(|p| self.program.plans[p].calendars.iter().map(|c| c.device))
            .collect()
    }

    /// Names of devices, for people.
    pub(crate) fn names(&self, devices: &[DeviceId]) -> String {
        let names = devices
            .iter()
            .map(|d| self.program.machine.devices[*d].name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }

    /// Room at a source below which this program might stand still, whatever it saves and when.
    fn least_capacity(&self, id: ActorId) -> u64 {
        let (block, stages) = self.largest_block(id);
        block.saturating_mul(4 * (stages + BLOCKS_AHEAD))
    }

    /// Tokens that each sink's queue holds.
    pub(crate) fn sink_capacities(&self, queue_bytes: u64) -> Vec<u64> {
        let sinks = self.program.graph.sinks();
        sinks
            .map(|(id, _)| self.sink_capacity(id, queue_bytes))
            .collect()
    }

    fn sink_capacity(&self, id: ActorId, queue_bytes: u64) -> u64 {
        let (block, _) = self.largest_block(id);
        let token_bytes = self.program.graph.actors[id].inputs[0].token.bytes();
        block
            .saturating_mul(2 * BLOCKS_AHEAD)
            .max(queue_bytes / token_bytes)
    }
}

fn take<H>(
    kind: &'static str,
    handles: &mut BTreeMap<String, Option<H>>,
    name: &str,
) -> Result<H, StreamError> {
    let known = handles.keys().cloned().collect::<Vec<_>>().join(", ");
    let name = name.to_owned();
    match handles.get_mut(&name) {
        None => Err(StreamError::Unknown { kind, name, known }),
        Some(handle) => handle.take().ok_or(StreamError::Taken { kind, name }),
    }
}

fn checked_state(program: &Program, state: State) -> Result<State, EngineError> {
    for (channel, ch) in program.graph.channels.iter_enumerated() {
        let needed = ch.initial.len() as u64;
        let found = state.channels.get(channel).map_or(0, |t| t.len() as u64);
        if found != needed {
            return Err(EngineError::State {
                channel,
                found,
                needed,
            });
        }
    }
    let taken = |id| {
        state
            .consumed
            .iter()
            .find(|(actor, _)| *actor == id)
            .map_or(0, |(_, t)| *t)
    };
    let consumed = program
        .graph
        .sources()
        .map(|(id, _)| (id, taken(id)))
        .collect();
    Ok(State { consumed, ..state })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_of_the_conductor_gives_the_run_up() {
        let control = Arc::new(Control {
            stop: Arc::new(Stop::new()),
            finishing: AtomicU32::new(0),
            session: Arc::new(SessionMemory::create(&Vec::new()).expect("little memory")),
            swap: Mutex::new(None),
            current: Mutex::new(None),
        });
        drop(AbortOnPanic(Arc::clone(&control)));
        assert!(!control.stop.is_set());

        let conduct = || {
            let _abort = AbortOnPanic(Arc::clone(&control));
            panic!("a bug")
        };
        let panicked: std::thread::Result<()> = catch_unwind(AssertUnwindSafe(conduct));
        assert!(panicked.is_err() && control.stop.is_set());
    }
}
