//! Sessions: one run of an engine's program, as the embedding program holds it.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

use zbmd_ir::memory::available_bytes;
use zbmd_ir::{LiveParameter, Program, State, live_parameters};

use super::control::{AbortOnPanic, RequestedSwap, RunControl, Stopper};
use super::demand;
use super::epochs::EpochManager;
#[cfg(hosts)]
use super::hosts::bundle_offer::{BundleOffer, check_devices};
#[cfg(hosts)]
use super::hosts::change_journal;
#[cfg(hosts)]
use super::hosts::conductor_seat::ConductorSeat;
#[cfg(hosts)]
use super::hosts::input_log::InputLog;
#[cfg(hosts)]
use super::hosts::standby::Takeover;
use super::modes::ModeHandle;
use super::parameters::{self, ParameterHandle};
use super::probe::ProbeHandle;
use super::pump_role::PumpRole;
use super::queues::{has_council, min_source_capacity, source_queues};
use super::run_thread::{RunResult, RunThread};
use super::whole_run::run_to_end;
use super::worker_pool::WorkerPool;
use crate::error::{EngineError, RunError};
use crate::observe::report::Outcome;
use crate::observe::trace::Tracer;
#[cfg(hosts)]
use crate::options::BorderState;
use crate::options::{InputListener, RunOptions};
use crate::program::{Engine, LoadedModes, LoadedProgram};
use crate::transport::conduit::{Conduit, Consumer, Producer};
use crate::transport::release_gate::ReleaseGate;
use crate::transport::ring::{Spin, Stop};
use crate::transport::session_memory::SessionMemory;
use crate::transport::stream::{SinkHandle, SourceHandle, StreamError};
use crate::transport::trace_ring::Ticks;
use crate::worker::job::HostOptions;

impl Engine {
    /// Starts a run: memory is taken, workers wait for tokens.
    ///
    /// # Errors
    /// A state of another model, or too little memory or threads.
    pub fn start(&self, options: RunOptions) -> Result<Session, EngineError> {
        Session::start(self, options, None)
    }
}

/// Without hosts nothing is taken over.
#[cfg(not(hosts))]
type Takeover = std::convert::Infallible;

/// One run. Dropping it gives the run up; [`Self::join`] waits for its end.
pub struct Session {
    control: Arc<RunControl>,
    sources: BTreeMap<String, Option<SourceHandle>>,
    sinks: BTreeMap<String, Option<SinkHandle>>,
    run_thread: Option<RunThread>,
    loaded: Arc<LoadedProgram>,
    modes: Arc<LoadedModes>,
    is_supervised: bool,
    pump_role: PumpRole,
    /// Whether it is over several hosts.
    #[cfg(hosts)]
    has_hosts: bool,
}

/// Why a run cannot go over to another program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwapError {
    /// Only the supervisor can bring a run to a border and begin it anew.
    #[error("the run is not supervised: set `RunOptions::supervised`")]
    Unsupervised,
    /// The run is over several hosts, and not all of them can go over to it.
    #[error("the run is over several hosts: {why}")]
    Hosts {
        /// What is in the way.
        why: String,
    },
    /// Modes are changed by [`Session::modes`], and are the same as long as the run goes on.
    #[error("the run, or the new program, has several modes")]
    Modes,
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
    /// Other live parameters: what was set of them means nothing to it.
    #[error(
        "the run has live parameters {here:?}, the new program has {there:?}: they must be the same, with the same ranges"
    )]
    Parameters {
        /// Of the run.
        here: Vec<String>,
        /// Of the new program.
        there: Vec<String>,
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

impl Session {
    pub(crate) fn start(
        engine: &Engine,
        options: RunOptions,
        takeover: Option<Takeover>,
    ) -> Result<Self, EngineError> {
        let Engine { loaded, modes } = engine;
        let initial_state = checked_beginning(engine, &options)?;
        let queue_sizes = source_queues(modes, &options);
        demand::check(modes, &options, &queue_sizes, available_bytes())?;

        let session_memory = Arc::new(SessionMemory::create(&queue_sizes)?);
        let mut feed = SourceFeed::told_to(options.inputs.clone());
        let mut control = RunControl::new(
            Arc::clone(&session_memory),
            modes.are_several(),
            options.inputs.clone(),
        );
        let sink_count = loaded.program.graph.sinks().count();
        control.release_gate =
            has_council(&options).then(|| Arc::new(ReleaseGate::new(sink_count)));
        let control = Arc::new(control);
        #[cfg_attr(not(hosts), expect(unused_mut, reason = "only hosts are added to it"))]
        let mut pool = WorkerPool::new(
            Arc::clone(modes),
            Arc::clone(&session_memory),
            queue_sizes,
            HostOptions::of(&options),
            options.isolation.clone(),
            options.standby,
        );
        #[cfg(hosts)]
        let seat = {
            let is_takeover = takeover.is_some();
            let mut takeover = takeover;
            let inputs = takeover.as_mut().map(|takeover| &mut takeover.inputs);
            feed.first = inputs.map(std::mem::take).unwrap_or_default();
            let beginning = (&initial_state, takeover);
            let mut seat = take_seat(&options, modes, &control, &pool, beginning)?;
            feed.log = seat.as_ref().and_then(ConductorSeat::inputs);
            pool.connect_hosts(&options, is_takeover)?;
            if let (Some(seat), Some(program)) = (&mut seat, pool.holder_program()) {
                let begun = seat.begin_to_copy(program);
                begun.map_err(EngineError::Thread)?;
            }
            seat
        };
        #[cfg(not(hosts))]
        let _ = takeover;
        let tracer = start_tracer(loaded, &options)?;

        let is_supervised = options.supervised.is_some();
        let is_realtime = options.realtime;
        let pump_role = PumpRole::of(&options);
        #[cfg(hosts)]
        let has_hosts = options.hosts.is_some();
        let (send_result, result_receiver) = mpsc::channel::<RunResult>();
        let mut manager = EpochManager::new(
            Arc::clone(modes),
            options,
            initial_state,
            Arc::clone(&control),
            pool,
            tracer,
        );

        #[cfg(hosts)]
        {
            manager.seat = seat;
        }

        // Made before anything runs: a lack of memory is found here.
        let first_epoch = manager.make_epoch(0, &manager.pool.lost_devices())?;

        let sources = &session_memory.sources;
        let source_handles = source_handles(loaded, sources, &control.stop, &mut feed);
        let sink_handles = sink_handles(loaded, &first_epoch.memory.sinks, &control);
        let run_thread = RunThread::start(result_receiver, move || {
            let _abort = AbortOnPanic(Arc::clone(&manager.control));
            if let Err(refusal) = enter_as_supervisor(is_realtime) {
                let _ = send_result.send(Err(refusal));
                return;
            }
            let run_result = run_to_end(manager, first_epoch, &send_result);
            let _ = send_result.send(run_result);
        })
        .map_err(EngineError::Thread)?;

        Ok(Self {
            control,
            sources: source_handles,
            sinks: sink_handles,
            run_thread: Some(run_thread),
            loaded: Arc::clone(loaded),
            modes: Arc::clone(modes),
            is_supervised,
            pump_role,
            #[cfg(hosts)]
            has_hosts,
        })
    }

    /// The handle of a source. There is one.
    ///
    /// # Errors
    /// No such source, or it was taken before.
    pub fn source(&mut self, name: &str) -> Result<SourceHandle, StreamError> {
        take_handle("source", &mut self.sources, name)
    }

    /// The handle of a sink. There is one.
    ///
    /// # Errors
    /// No such sink, or it was taken before.
    pub fn sink(&mut self, name: &str) -> Result<SinkHandle, StreamError> {
        take_handle("sink", &mut self.sinks, name)
    }

    /// Something that ends the run from any thread and reports its progress.
    pub fn stopper(&self) -> Stopper {
        Stopper {
            control: Arc::clone(&self.control),
        }
    }

    /// Sets the live parameters of the run, from any thread.
    pub fn parameters(&self) -> ParameterHandle {
        ParameterHandle {
            control: Arc::clone(&self.control),
        }
    }

    /// Looks into the run, from any thread.
    pub fn probes(&self) -> ProbeHandle {
        #[cfg(hosts)]
        let has_hosts = self.has_hosts;
        #[cfg(not(hosts))]
        let has_hosts = false;
        ProbeHandle {
            control: Arc::clone(&self.control),
            has_hosts,
        }
    }

    /// Changes the mode of the run, from any thread.
    pub fn modes(&self) -> ModeHandle {
        ModeHandle {
            control: Arc::clone(&self.control),
            modes: Arc::clone(&self.modes),
        }
    }

    /// How the threads that feed and drain the run are to be scheduled, one for each stream.
    pub fn pump_role(&self) -> PumpRole {
        self.pump_role
    }

    /// Gives the calling thread the priority of those that look at what pumps count; in a real-time run, or one that is held to
    /// its share; in others none.
    ///
    /// # Errors
    /// What the system says. The run has made sure that it will be given.
    pub fn enter_observer_role(has_priorities: bool) -> std::io::Result<()> {
        #[cfg(target_os = "linux")]
        if has_priorities {
            return crate::realtime::enter(crate::realtime::ThreadRole::Observer);
        }
        let _ = has_priorities;
        Ok(())
    }

    /// Goes over to another program at the next border, while tokens flow: new weights, or a new model with the same
    /// sources and sinks. Its state is taken over if it has the same channels; else it begins with its initial tokens.
    /// Returns at once, or when the agents of a run over several hosts, and whoever stands by, have loaded the program: that it was
    /// done is an event of the supervisor.
    ///
    /// # Errors
    /// What keeps the program from taking this one's place; then nothing changes.
    pub fn swap(&self, to: &Engine) -> Result<(), SwapError> {
        if !self.is_supervised {
            return Err(SwapError::Unsupervised);
        }
        if self.modes.are_several() || to.modes.are_several() {
            return Err(SwapError::Modes);
        }
        check_streams(&self.loaded, &to.loaded)?;

        let their_sources = to.loaded.program.graph.sources();
        for ((id, actor), queue) in their_sources.zip(&self.control.session_memory.sources) {
            let needed_tokens = min_source_capacity(&to.loaded, id);
            let capacity = queue.capacity();
            if needed_tokens > capacity {
                return Err(SwapError::Queue {
                    name: actor.name.clone(),
                    needed: needed_tokens,
                    capacity,
                });
            }
        }

        #[cfg(hosts)]
        let offer = match self.has_hosts {
            true => Some(self.offer(to).map_err(|why| SwapError::Hosts { why })?),
            false => None,
        };
        let requested = RequestedSwap {
            modes: Arc::clone(&to.modes),
            #[cfg(hosts)]
            offer: offer.clone(),
        };
        let replaced = self.control.requested_swap().replace(requested);
        if let Some(replaced) = replaced {
            replaced.settle(Err("another program was asked for meanwhile".to_owned()));
        }

        #[cfg(hosts)]
        if let Some(offer) = offer {
            let is_over = || self.run_thread.as_ref().is_none_or(RunThread::is_finished);
            let loaded = offer.wait(is_over);
            loaded.map_err(|why| SwapError::Hosts { why })?;
        }
        Ok(())
    }

    /// The bundle of a program, for the agents of other hosts.
    #[cfg(hosts)]
    fn offer(&self, to: &Engine) -> Result<Arc<BundleOffer>, String> {
        check_devices(&self.loaded, &to.loaded)?;
        let offer = BundleOffer::of(&to.modes);
        offer.map_err(|error| format!("no memory for its bundle: {error}"))
    }

    /// Waits for the end of the run. Sources whose handles were not taken are empty; sinks whose handles were not
    /// taken are dropped. Handles that were taken must be served by other threads meanwhile.
    ///
    /// # Errors
    /// Why the run was given up.
    pub fn join(mut self) -> Result<Outcome, RunError> {
        self.sources.clear();
        self.sinks.clear();
        let Some(run_thread) = self.run_thread.take() else {
            return Err(RunError::Abandoned);
        };
        match run_thread.wait() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(run_thread) = self.run_thread.take() {
            self.control.abort();
            // Its outcome is of no interest any more; waiting makes sure that no worker outlives the session.
            drop(run_thread.wait());
        }
    }
}

/// Finds out whether the system gives what a real-time run needs.
#[cfg(target_os = "linux")]
fn begin_realtime(
    machine: &zbmd_ir::Machine,
    options: &RunOptions,
) -> Result<(), crate::realtime::RealtimeError> {
    #[cfg(hosts)]
    if options.hosts.is_some() {
        // The devices are of several computers: whether a core can be used is seen by its worker.
        return crate::realtime::begin([]);
    }
    let _ = options;
    crate::realtime::begin(&machine.devices)
}

/// Gives the supervising thread its priority in a real-time run.
fn enter_as_supervisor(is_realtime: bool) -> Result<(), RunError> {
    #[cfg(target_os = "linux")]
    if is_realtime {
        use crate::realtime::{ThreadRole, enter};
        return enter(ThreadRole::Supervisor).map_err(|error| RunError::Realtime {
            thread: "the supervising thread".to_owned(),
            why: error.to_string(),
        });
    }
    let _ = is_realtime;
    Ok(())
}

/// Starts to record what workers do, if that is wanted.
fn start_tracer(
    loaded: &LoadedProgram,
    options: &RunOptions,
) -> Result<Option<Tracer>, EngineError> {
    if options.trace.is_none() && !options.profile {
        return Ok(None);
    }
    // Counters of different computers have nothing to do with each other.
    #[cfg(hosts)]
    let has_one_counter = options.hosts.is_none();
    #[cfg(not(hosts))]
    let has_one_counter = true;
    let ticks = match has_one_counter {
        true => Ticks::of_this_machine(),
        false => Ticks::Clock,
    };
    Tracer::start(loaded, options.trace.as_deref(), options.profile, ticks).map(Some)
}

/// The state that a run begins with, where its options make sense. First of all it is given the real time that it asked for: without
/// it, it takes nothing.
fn checked_beginning(engine: &Engine, options: &RunOptions) -> Result<State, EngineError> {
    let Engine { loaded, modes } = engine;
    let begin = modes.get(options.present_mode.mode);
    let begin = begin.ok_or(EngineError::NoMode {
        mode: options.present_mode.mode,
        count: modes.names().len(),
    })?;
    #[cfg(target_os = "linux")]
    if options.realtime {
        begin_realtime(&loaded.program.machine, options)?;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = loaded;

    let initial_state = match options.state.clone() {
        Some(initial_state) => {
            parameters::check_state(begin, &initial_state)?;
            checked_state(&begin.program, initial_state)?
        }
        None => State::initial(&begin.program.graph),
    };
    parameters::check_scheduled_modes(modes, options, &initial_state)?;
    Ok(initial_state)
}

/// Takes the run's seat in the council, if there is one.
#[cfg(hosts)]
fn take_seat(
    options: &RunOptions,
    modes: &Arc<LoadedModes>,
    control: &RunControl,
    pool: &WorkerPool,
    (initial_state, takeover): (&State, Option<Takeover>),
) -> Result<Option<ConductorSeat>, EngineError> {
    let hosts = options.hosts.as_ref();
    let council = hosts.and_then(|hosts| Some((hosts, hosts.council.as_ref()?)));
    let (Some((hosts, council)), Some(gate)) = (council, &control.release_gate) else {
        return Ok(None);
    };
    if modes.are_several() {
        let why = "a model with several modes cannot be conducted in its name yet: compile one with `--mode`, or run without --council";
        return Err(EngineError::Council {
            why: why.to_owned(),
        });
    }

    let parameters = &modes.first().live.parameters;
    change_journal::check_program(parameters).map_err(|why| EngineError::Council { why })?;

    let begin = BorderState {
        state: initial_state.clone(),
        present_mode: options.present_mode.clone(),
        emitted: vec![0; modes.first().program.graph.sinks().count()],
        changes_made: 0,
    };
    if let Some(takeover) = &takeover {
        control.ledger().leave_epoch(takeover.decided_iterations);
    }
    let events = pool.event_sender();
    let seat = ConductorSeat::take(
        (hosts, council),
        modes,
        events,
        Arc::clone(gate),
        begin,
        takeover,
    )?;
    if let Some(journal) = seat.journal() {
        let _ = control.journal.set(journal);
    }
    Ok(Some(seat))
}

/// Who is told of the tokens that sources are given, and what they are given first.
struct SourceFeed {
    listener: Option<Arc<dyn InputListener>>,
    /// Where the tokens of mirrored sources are kept.
    #[cfg(hosts)]
    log: Option<Arc<InputLog>>,
    /// For each source, bytes of the tokens that were mirrored before this run took over.
    #[cfg(hosts)]
    first: Vec<Vec<u8>>,
}

impl SourceFeed {
    /// Nothing comes first, and nobody else is told.
    fn told_to(listener: Option<Arc<dyn InputListener>>) -> Self {
        Self {
            listener,
            #[cfg(hosts)]
            log: None,
            #[cfg(hosts)]
            first: Vec::new(),
        }
    }

    /// Has the handle of a source tell whoever wants to know, and gives it what comes first.
    fn prepare(&mut self, handle: &mut SourceHandle, source: usize) {
        self.listen_to(handle, source);
        #[cfg(hosts)]
        if let Some(bytes) = self.first.get_mut(source) {
            handle.feed_first(std::mem::take(bytes));
        }
    }

    fn listen_to(&self, handle: &mut SourceHandle, source: usize) {
        let listener = self.listener.clone();
        #[cfg(hosts)]
        if let Some(log) = self.log.clone().filter(|log| log.has(source)) {
            handle.listen(Box::new(move |bytes| {
                log.append(source, bytes);
                if let Some(listener) = &listener {
                    listener.tokens(source, bytes);
                }
            }));
            return;
        }
        if let Some(listener) = listener {
            handle.listen(Box::new(move |bytes| listener.tokens(source, bytes)));
        }
    }
}

fn source_handles(
    loaded: &LoadedProgram,
    queues: &[Arc<Conduit>],
    stop: &Arc<Stop>,
    feed: &mut SourceFeed,
) -> BTreeMap<String, Option<SourceHandle>> {
    let fed_sources = loaded.program.graph.sources().zip(queues);
    fed_sources
        .enumerate()
        .map(|(index, ((_, actor), queue))| {
            let token = &actor.outputs[0].token;
            let producer = Producer::new(queue);
            let mut handle =
                SourceHandle::new(&actor.name, token, producer, Arc::clone(stop), Spin::SHORT);
            feed.prepare(&mut handle, index);
            (actor.name.clone(), Some(handle))
        })
        .collect()
}

fn sink_handles(
    loaded: &LoadedProgram,
    queues: &[Arc<Conduit>],
    control: &RunControl,
) -> BTreeMap<String, Option<SinkHandle>> {
    let drained_sinks = loaded.program.graph.sinks().zip(queues);
    drained_sinks
        .enumerate()
        .map(|(index, ((_, actor), queue))| {
            let token = &actor.inputs[0].token;
            let consumer = Consumer::new(queue, 0, false);
            let stop = Arc::clone(&control.stop);
            let mut handle = SinkHandle::new(&actor.name, token, consumer, stop, Spin::SHORT);
            if let Some(gate) = &control.release_gate {
                handle.hold_back(Arc::clone(gate), index);
            }
            (actor.name.clone(), Some(handle))
        })
        .collect()
}

/// Whether a program has the sources, sinks and live parameters of the one whose place it is to take.
///
/// # Errors
/// It has others.
pub(crate) fn check_streams(here: &LoadedProgram, there: &LoadedProgram) -> Result<(), SwapError> {
    let our_streams = stream_descriptions(here);
    let their_streams = stream_descriptions(there);
    if our_streams != their_streams {
        return Err(SwapError::Ports {
            here: our_streams.join(", "),
            there: their_streams.join(", "),
        });
    }

    let our_parameters = live_parameters(&here.program.graph);
    let their_parameters = live_parameters(&there.program.graph);
    if our_parameters != their_parameters {
        let names = |list: Vec<LiveParameter>| list.into_iter().map(|p| p.name).collect();
        return Err(SwapError::Parameters {
            here: names(our_parameters),
            there: names(their_parameters),
        });
    }
    Ok(())
}

/// What the streams of a program are, for people: two programs with the same ones can take each other's place.
fn stream_descriptions(loaded: &LoadedProgram) -> Vec<String> {
    let graph = &loaded.program.graph;
    let source_texts = graph.sources().map(|(_, actor)| {
        let token = &actor.outputs[0].token;
        format!("source `{}` of {token}", actor.name)
    });
    let sink_texts = graph.sinks().map(|(_, actor)| {
        let token = &actor.inputs[0].token;
        format!("sink `{}` of {token}", actor.name)
    });
    source_texts.chain(sink_texts).collect()
}

fn take_handle<H>(
    kind: &'static str,
    handles: &mut BTreeMap<String, Option<H>>,
    name: &str,
) -> Result<H, StreamError> {
    let known_names = handles.keys().cloned().collect::<Vec<_>>().join(", ");
    let wanted_name = name.to_owned();
    match handles.get_mut(&wanted_name) {
        None => Err(StreamError::Unknown {
            kind,
            name: wanted_name,
            known: known_names,
        }),
        Some(handle) => handle.take().ok_or(StreamError::Taken {
            kind,
            name: wanted_name,
        }),
    }
}

/// A state that fits a program, with the tokens that each of its sources has consumed.
fn checked_state(program: &Program, state: State) -> Result<State, EngineError> {
    for (channel, declared) in program.graph.channels.iter_enumerated() {
        let needed_tokens = declared.initial.len() as u64;
        let channel_tokens = state.channels.get(channel);
        let found_tokens = channel_tokens.map_or(0, |tokens| tokens.len() as u64);
        if found_tokens != needed_tokens {
            return Err(EngineError::State {
                channel,
                found: found_tokens,
                needed: needed_tokens,
            });
        }
    }

    let graph_sources = program.graph.sources();
    let consumed_tokens = graph_sources.map(|(source, _)| {
        let mut saved_entries = state.consumed.iter();
        let saved_entry = saved_entries.find(|(actor, _)| *actor == source);
        (source, saved_entry.map_or(0, |(_, tokens)| *tokens))
    });
    Ok(State {
        consumed: consumed_tokens.collect(),
        ..state
    })
}
