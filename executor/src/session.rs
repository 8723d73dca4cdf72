//! Engines and sessions: what the embedding program holds. An engine is a program made ready; a session is one run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_utils::CachePadded;
use zbmd_backends::kernel::Kernel;
use zbmd_backends::op::Registry;
use zbmd_ir::verify::Verified;
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{ActorId, PlanId, PortChannels, Program, Role, State, TiVec};

use crate::conductor::{Conductor, Finished};
use crate::conduit::{Conduit, Consumer, Producer};
use crate::error::{EngineError, RunError};
use crate::measure::Clock;
use crate::prepare;
use crate::primitive::{AtomicU64, Ordering};
use crate::ring::{Parker, Spin, Stop};
use crate::stream::{SinkHandle, SourceHandle, StreamError};
use crate::worker::Tickets;

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
    pub kernels: TiVec<ActorId, Option<Arc<dyn Kernel>>>,
    /// The plan that runs whole blocks, and the one for what is left.
    pub main: PlanId,
    pub tail: Option<PlanId>,
}

impl Engine {
    /// Makes the kernels of a verified program.
    ///
    /// # Errors
    /// An op that the registry does not have, or a plan that this executor cannot run.
    pub fn new(program: Verified<Program>, registry: &Registry) -> Result<Self, EngineError> {
        let main = PlanId(0);
        let tail = program.plan("tail").map(|(id, _)| id).filter(|id| *id != main);
        for plan in [Some(main), tail].into_iter().flatten() {
            prepare::check(&program, &program.plans[plan])?;
        }
        let graph = &program.graph;
        let mut kernels: TiVec<ActorId, Option<Arc<dyn Kernel>>> = TiVec::new();
        for actor in &graph.actors {
            kernels.push(match actor.role {
                Role::Source | Role::Sink => None,
                Role::Compute => {
                    Some(registry.kernel(actor, &program.blobs).map_err(|source| {
                        EngineError::Kernel { actor: actor.name.clone(), source }
                    })?)
                }
            });
        }
        for plan in [Some(main), tail].into_iter().flatten() {
            check_scratch(&program, plan, &kernels)?;
        }
        let repetition = repetition(graph).expect("a verified graph is consistent");
        let joined = graph.port_channels();
        Ok(Self { inner: Arc::new(Inner { repetition, joined, kernels, main, tail, program }) })
    }

    /// The program.
    pub fn program(&self) -> &Program {
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

fn check_scratch(
    program: &Program,
    plan: PlanId,
    kernels: &TiVec<ActorId, Option<Arc<dyn Kernel>>>,
) -> Result<(), EngineError> {
    let plan = &program.plans[plan];
    for (actor, kernel) in kernels.iter_enumerated() {
        let Some(kernel) = kernel else { continue };
        let device = plan.placement[actor];
        let calendar = plan.calendars.iter().find(|c| c.device == device);
        let planned = calendar.map_or(0, |c| c.scratch_bytes);
        let needed = kernel.scratch_bytes() as u64;
        if needed > planned {
            let (plan, actor) = (plan.name.clone(), program.graph.actors[actor].name.clone());
            return Err(EngineError::Scratch { plan, actor, needed, planned });
        }
    }
    Ok(())
}

/// What a session, its handles and its conductor share.
pub(crate) struct Control {
    pub stop: Arc<Stop>,
    pub tickets: Arc<Tickets>,
    /// Where workers wait for admission: every source notifies it.
    pub admission: Arc<CachePadded<Parker>>,
    pub sources: Vec<Arc<Conduit>>,
    pub sinks: Vec<Arc<Conduit>>,
    pub iterations: AtomicU64,
    pub blocks: Arc<AtomicU64>,
    pub iterations_per_block: AtomicU64,
}

impl Control {
    /// Gives the run up: every wait ends.
    pub(crate) fn abort(&self) {
        self.stop.set();
        self.wake();
    }

    pub(crate) fn wake(&self) {
        self.admission.notify();
        self.sources.iter().chain(&self.sinks).for_each(|c| c.wake());
    }

    /// Ends the run at the next border of a block.
    pub(crate) fn finish(&self) {
        self.tickets.close();
        self.sources.iter().for_each(|s| s.close());
        self.admission.notify();
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

    /// Iterations finished so far, for progress displays: it may lag by some blocks.
    pub fn iterations(&self) -> u64 {
        let control = &self.control;
        let blocks = control.blocks.load(Ordering::Relaxed);
        let per_block = control.iterations_per_block.load(Ordering::Relaxed);
        control.iterations.load(Ordering::Relaxed) + blocks * per_block
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
    conductor: Option<JoinHandle<Finished>>,
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
        let admission = Arc::new(CachePadded::new(Parker::new()));
        let stop = Arc::new(Stop::new());
        let mut ends = Ends::default();
        let mut session_sources = BTreeMap::new();
        let mut session_sinks = BTreeMap::new();
        for (id, actor) in engine.program.graph.sources() {
            let port = &actor.outputs[0];
            let capacity = engine.source_capacity(id, options.queue_bytes);
            let token = &port.token;
            let (producer, consumer) =
                Conduit::pair(capacity, token.bytes(), Arc::clone(&admission))?;
            ends.source_conduits.push(Arc::clone(consumer.shared()));
            ends.sources.push((id, consumer));
            let handle =
                SourceHandle::new(&actor.name, token, producer, Arc::clone(&stop), Spin::SHORT);
            session_sources.insert(actor.name.clone(), Some(handle));
        }
        for (id, actor) in engine.program.graph.sinks() {
            let token = &actor.inputs[0].token;
            let data = Arc::new(CachePadded::new(Parker::new()));
            let (producer, consumer) =
                Conduit::pair(engine.sink_capacity(id, options.queue_bytes), token.bytes(), data)?;
            ends.sink_conduits.push(Arc::clone(producer.shared()));
            ends.sinks.push((id, producer));
            let handle =
                SinkHandle::new(&actor.name, token, consumer, Arc::clone(&stop), Spin::SHORT);
            session_sinks.insert(actor.name.clone(), Some(handle));
        }
        let control = Arc::new(Control {
            stop,
            tickets: Arc::new(Tickets::new()),
            admission,
            sources: ends.source_conduits,
            sinks: ends.sink_conduits,
            iterations: AtomicU64::new(0),
            blocks: Arc::new(AtomicU64::new(0)),
            iterations_per_block: AtomicU64::new(0),
        });
        let conductor = Conductor {
            engine,
            control: Arc::clone(&control),
            options,
            state,
            sources: ends.sources.into_iter().map(Some).collect(),
            sinks: ends.sinks.into_iter().map(Some).collect(),
            clock: Clock::start(),
        };
        let first = conductor.prepare_first()?;
        let conductor = std::thread::Builder::new()
            .name("zbmd conductor".to_owned())
            .spawn(move || conductor.conduct(first))
            .map_err(EngineError::Thread)?;
        Ok(Self {
            control,
            sources: session_sources,
            sinks: session_sinks,
            conductor: Some(conductor),
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
        Stopper { control: Arc::clone(&self.control) }
    }

    /// Waits for the end of the run. Sources whose handles were not taken are empty; sinks whose handles were not
    /// taken are dropped. Handles that were taken must be served by other threads meanwhile.
    ///
    /// # Errors
    /// Why the run was given up.
    pub fn join(mut self) -> Result<Outcome, RunError> {
        self.sources.clear();
        self.sinks.clear();
        let Some(conductor) = self.conductor.take() else { return Err(RunError::Abandoned) };
        match conductor.join() {
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
            drop(conductor.join());
        }
    }
}

#[derive(Default)]
struct Ends {
    sources: Vec<(ActorId, Consumer)>,
    sinks: Vec<(ActorId, Producer)>,
    source_conduits: Vec<Arc<Conduit>>,
    sink_conduits: Vec<Arc<Conduit>>,
}

impl Inner {
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
        let stages = self.tail.map_or(1, |t| self.program.plans[t].stages).max(main.stages);
        (main.block.max(tail).saturating_mul(per_iteration), u64::from(stages))
    }

    /// A block is admitted when its tokens are there; the slot that takes them may come as many periods later as
    /// there are stages, so that many blocks must fit besides; and twice that, for a program that sleeps until half
    /// the queue is free must not starve the calendar.
    fn source_capacity(&self, id: ActorId, queue_bytes: u64) -> u64 {
        let (block, stages) = self.largest_block(id);
        let token_bytes = self.program.graph.actors[id].outputs[0].token.bytes();
        block.saturating_mul(2 * (stages + BLOCKS_AHEAD)).max(queue_bytes / token_bytes)
    }

    fn sink_capacity(&self, id: ActorId, queue_bytes: u64) -> u64 {
        let (block, _) = self.largest_block(id);
        let token_bytes = self.program.graph.actors[id].inputs[0].token.bytes();
        block.saturating_mul(2 * BLOCKS_AHEAD).max(queue_bytes / token_bytes)
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
            return Err(EngineError::State { channel, found, needed });
        }
    }
    let taken = |id| state.consumed.iter().find(|(actor, _)| *actor == id).map_or(0, |(_, t)| *t);
    let consumed = program.graph.sources().map(|(id, _)| (id, taken(id))).collect();
    Ok(State { consumed, ..state })
}
