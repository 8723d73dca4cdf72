//! The epochs of a run: the main plan for whole blocks, the tail plan for whole iterations, padding on request. Makes
//! each epoch's memory, takes over its state, and joins the streams of one epoch to those of the next. Must not touch
//! tokens while workers may.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use zbmd_ir::{
    ActorId, ChannelId, DeviceId, ModeDecision, ParameterChange, Plan, PlanId, PresentMode, State,
    TiVec, carried_tokens, has_live, state,
};

use super::active_epoch::ActiveEpoch;
use super::control::{CurrentEpoch, RequestedSwap, RunControl};
#[cfg(hosts)]
use super::hosts::conductor_seat::ConductorSeat;
use super::parameters::{ParameterLedger, ProgramStep};
use super::queues::{saves, sink_capacities};
use super::run_report::{PlanName, RunSpan, RunTally};
use super::worker_pool::WorkerPool;
use crate::error::{EngineError, ModeError, RunError};
use crate::observe::report::Report;
use crate::observe::trace::Tracer;
use crate::options::{BorderState, RunOptions, ScheduledMode};
use crate::program::{LoadedModes, LoadedProgram, Phase};
use crate::transport::clock::Clock;
use crate::transport::conduit::Conduit;
use crate::transport::epoch::{Area, EpochMemory};
use crate::transport::epoch_spec::{EpochSpec, LiveStart, SinkSpec};
use crate::transport::idle_arenas::IdleArenas;
use crate::transport::ledger::given_out_before;
use crate::transport::model_end::ModelSources;
use crate::transport::ring::Spin;
use crate::transport::session_memory::SessionMemory;
use crate::transport::watchdog::EpochWatchdogs;
use crate::worker::border;

/// Makes and ends the epochs of a run, one after another.
pub(crate) struct EpochManager {
    modes: Arc<LoadedModes>,
    mode: usize,
    /// The steps to the present program that the ledger has not followed: those since the last epoch.
    steps: Vec<ProgramStep>,
    /// Changes of mode that are known ahead.
    scheduled: VecDeque<ScheduledMode>,
    /// The last iteration of the run at which tokens have decided about the mode, or need not.
    decided_at: u64,
    /// The program of the present mode.
    pub loaded: Arc<LoadedProgram>,
    pub control: Arc<RunControl>,
    pub options: RunOptions,
    pub session_memory: Arc<SessionMemory>,
    pub pool: WorkerPool,
    /// In whose name the run is conducted, if there is a council.
    #[cfg(hosts)]
    pub seat: Option<ConductorSeat>,
    /// Cores that this process may use, asked once: the system answers from files.
    available_cores: usize,
    /// At the border where the next epoch begins.
    pub state: State,
    pub phase: Phase,
    pub next_epoch: u64,
    /// The memory of the last epoch, until the next one is at work: giving it back takes the system a while.
    leaving: Option<Arc<EpochMemory>>,
    /// Memory of epochs that are over, for those of other modes; of a run that can change its mode.
    idle_arenas: IdleArenas,
    /// The next epoch is to find no memory: an injected fault.
    pub deny_memory: bool,
    /// How often the distance between borders is halved in the next epoch: once more after an epoch that ended before
    /// its first border, once less after one that got to a border.
    border_halvings: u32,
    /// Takes in what workers record, if they do.
    pub tracer: Option<Tracer>,
    pub tally: RunTally,
    /// For each source and sink, the tokens of its queue that earlier programs of this session have taken or given.
    source_offsets: Vec<u64>,
    emitted_before: Vec<u64>,
    /// Tokens that the sources had consumed when the session, or its present program, began.
    consumed_before: Vec<u64>,
    /// Iterations when the session, or its present program, began.
    iterations_before: u64,
    /// Iterations when the session began.
    iterations_first: u64,
    /// Iterations that may still be run.
    iterations_left: u64,
    sink_capacities: Vec<u64>,
    /// For each sink, the tokens given out since the present program began, and where they went last.
    released: Vec<u64>,
    sink_queues: Vec<Option<Arc<Conduit>>>,
    /// Zero tokens that were added to each source.
    padded: Vec<u64>,
}

/// Tokens of a source that an incomplete iteration has and lacks.
struct PartialIteration {
    available: u64,
    missing: u64,
}

impl EpochManager {
    pub(crate) fn new(
        modes: Arc<LoadedModes>,
        options: RunOptions,
        state: State,
        control: Arc<RunControl>,
        mut pool: WorkerPool,
        tracer: Option<Tracer>,
    ) -> Self {
        // What outlives epochs is in the session's memory and the state, all else is made anew with each epoch.
        let session_memory = Arc::clone(&control.session_memory);
        let mode = options.present_mode.mode as usize;
        let loaded = Arc::clone(modes.program(mode));
        pool.enter_mode(&loaded);
        let mut ledger = control.ledger();
        ledger.begin(&state.changes);
        ledger.keep_waiting(&options.present_mode.waiting);
        drop(ledger);
        control.mode_requests().begin(mode, state.iterations);
        let source_count = session_memory.sources.len();
        let sink_count = loaded.program.graph.sinks().count();
        let mut manager = Self {
            source_offsets: vec![0; source_count],
            emitted_before: vec![0; sink_count],
            consumed_before: consumed_tokens(&state),
            iterations_before: state.iterations,
            iterations_first: state.iterations,
            iterations_left: options.iterations.unwrap_or(u64::MAX),
            sink_capacities: sink_capacities(&loaded, &options),
            released: vec![0; sink_count],
            sink_queues: vec![None; sink_count],
            padded: vec![0; source_count],
            phase: Phase::Main,
            next_epoch: 0,
            leaving: None,
            idle_arenas: IdleArenas::default(),
            deny_memory: false,
            border_halvings: 0,
            tally: RunTally::new(sink_count),
            modes,
            mode,
            steps: Vec::new(),
            scheduled: options.scheduled_modes.clone().into(),
            // No border comes before the first: nothing is decided there.
            decided_at: match options.present_mode.is_decided {
                true => state.iterations,
                false => state.iterations.saturating_sub(1),
            },
            loaded,
            control,
            options,
            session_memory,
            pool,
            #[cfg(hosts)]
            seat: None,
            available_cores: std::thread::available_parallelism().map_or(1, usize::from),
            state,
            tracer,
        };
        manager.enter_scheduled_modes();
        manager
    }

    /// Makes the memory of an epoch that begins at the present state, on all devices but the lost ones.
    ///
    /// # Errors
    /// No plan without the lost devices, too little memory, or a GPU that cannot be used.
    pub(crate) fn make_epoch(
        &mut self,
        epoch: u64,
        lost: &[DeviceId],
    ) -> Result<ActiveEpoch, EngineError> {
        let loaded = Arc::clone(&self.loaded);
        let Some(plan_id) = loaded.plan_of(self.phase, lost) else {
            return Err(EngineError::NoPlan {
                lost: loaded.device_names(lost),
            });
        };
        let graph = &loaded.program.graph;
        let plan = &loaded.program.plans[plan_id];

        // Until the epoch has begun nobody sets anything: its changes are those that it begins with.
        let control = Arc::clone(&self.control);
        let mut ledger = control.ledger();
        let last_epoch = control.current();
        let granted = last_epoch.as_ref().map(CurrentEpoch::granted_iterations);
        self.leaving = last_epoch.as_ref().map(|last| Arc::clone(&last.memory));
        drop(last_epoch);
        ledger.leave_epoch(granted.unwrap_or(0));
        let entered_ledger = self.ledger_in_program(&ledger);
        let live = self.live_start(entered_ledger.as_ref().unwrap_or(&ledger));
        let spec = Arc::new(EpochSpec {
            live,
            ..self.epoch_spec(epoch, plan_id, plan, lost)
        });
        self.pool.check_streams(plan_id, &spec.devices)?;
        let epoch_memory = EpochMemory::create(graph, plan, &spec, self.idle_arenas.take())?;
        if self.options.pin {
            let devices = spec.devices.iter();
            let nodes = devices.map(|device| self.loaded.near_node(*device));
            epoch_memory.prefer_nodes(plan, nodes);
        }
        let memory = Arc::new(epoch_memory);
        border::write_start(&memory, &self.state.channels);
        let parts = self.pool.prepare(&spec, &memory)?;

        // From here on nothing fails: the streams go on in the new epoch.
        self.next_epoch = epoch + 1;
        if let Some(entered) = entered_ledger {
            self.tell_steps(ledger.made());
            *ledger = entered;
            self.steps.clear();
        }
        for (queue, next) in self.sink_queues.iter_mut().zip(&memory.sinks) {
            if let Some(last) = queue.replace(Arc::clone(next)) {
                last.set_successor(next);
            }
        }
        self.session_memory.arrivals.open(epoch);
        self.control.enter_epoch(CurrentEpoch {
            loaded: Arc::clone(&loaded),
            spec: Arc::clone(&spec),
            memory: Arc::clone(&memory),
            session_memory: Arc::clone(&self.session_memory),
            lost: lost.iter().copied().collect(),
            hosts: self.pool.host_list(),
            recoveries: self.tally.fenced,
            iterations_before: self.state.iterations - self.iterations_first,
            first_iteration: self.state.iterations,
            decided_iterations: self.decided_for_recording(&ledger),
        });

        drop(ledger);

        Ok(ActiveEpoch {
            spec,
            memory,
            block: plan.block,
            ends: plan.calendars.iter().map(|_| None).collect(),
            parts,
            released: self.released.clone(),
        })
    }

    fn epoch_spec(
        &mut self,
        epoch: u64,
        plan_id: PlanId,
        plan: &Plan,
        lost: &[DeviceId],
    ) -> EpochSpec {
        let loaded = &self.loaded;
        let devices = loaded.physical_devices(plan, lost);
        let machine = &loaded.program.machine;
        let team_sizes = devices.iter().map(|id| machine.devices[*id].cores.len());
        // Workers spin for long only where each of their threads has a core to itself.
        let thread_count: usize = team_sizes.map(|cores| cores.max(1)).sum();

        let done_iterations = self.iterations_of_program();
        let graph_sinks = loaded.program.graph.sinks();
        let at_border = self.tokens_until(done_iterations);
        let sink_queues = self.released.iter().zip(&self.sink_capacities);
        let sink_specs = graph_sinks.zip(sink_queues).zip(at_border).map(
            |(((_, actor), (&released, &capacity)), at_border)| SinkSpec {
                capacity,
                token_bytes: actor.inputs[0].token.bytes(),
                given_out: given_out_before(released, at_border),
            },
        );

        EpochSpec {
            epoch,
            mode: self.mode as u32,
            plan: plan_id,
            spin_long: thread_count <= self.available_cores,
            devices,
            limit: match self.phase {
                Phase::Pad => 1,
                Phase::Main | Phase::Tail => self.iterations_of_leg() / plan.block,
            },
            pad: self.phase == Phase::Pad,
            pads_models: self.options.pad,
            saves: saves(loaded, plan, &self.options, self.border_halvings),
            bases: self.source_bases(),
            sinks: sink_specs.collect(),
            checksums: self.options.checksums,
            deny_memory: std::mem::take(&mut self.deny_memory),
            live: None,
            trace: self.tracer.as_ref().map(|tracer| tracer.ticks),
        }
    }

    /// Where live parameters begin in an epoch from the present state on; `None` for a program without any.
    fn live_start(&self, ledger: &ParameterLedger) -> Option<LiveStart> {
        let has_live = self.loaded.program.graph.actors.iter().any(has_live);
        has_live.then(|| LiveStart {
            iterations: self.state.iterations,
            consumed: self.state.consumed.clone(),
            changes: ledger.changes_for_border(
                &self.loaded,
                self.state.iterations,
                &self.state.consumed,
            ),
        })
    }

    /// The ledger of the present program, if the run went over to it and has no epoch of it yet. Until then the old one
    /// holds, as the last epoch is of the old program: whoever sets a parameter sees the two together.
    fn ledger_in_program(&self, ledger: &ParameterLedger) -> Option<ParameterLedger> {
        if self.steps.is_empty() {
            return None;
        }
        let mut entered = ledger.clone();
        for step in &self.steps {
            entered.enter_program(step, &self.state);
        }
        Some(entered)
    }

    /// Tells whoever records the run of the modes that it goes over to, and of changes that are known to follow. So many
    /// changes were made before.
    fn tell_steps(&self, made: u64) {
        let Some(listener) = &self.control.inputs else {
            return;
        };
        let mut number = made;
        for step in &self.steps {
            let Some(mode) = step.mode else { continue };
            listener.mode(number, self.state.iterations, mode);
            number += 1;
            for change in &step.changes {
                listener.change(number, change);
                number += 1;
            }
        }
    }

    /// The iteration of the run up to which a recording may take changes of mode for decided; 0 where none is made.
    fn decided_for_recording(&self, ledger: &ParameterLedger) -> u64 {
        let is_recorded = self.control.inputs.is_some() && self.modes.are_several();
        match is_recorded {
            true => ledger.decided_iterations(),
            false => 0,
        }
    }

    /// Nothing follows: the state has its changes as the present program numbers them, also where none of its epochs was.
    pub(crate) fn settle_changes(&mut self) {
        let control = Arc::clone(&self.control);
        let mut ledger = control.ledger();
        if let Some(entered) = self.ledger_in_program(&ledger) {
            *ledger = entered;
            self.steps.clear();
            self.state.changes = ledger.changes().to_vec();
        }
    }

    /// Iterations done since the present program began.
    fn iterations_of_program(&self) -> u64 {
        self.state.iterations - self.iterations_before
    }

    /// Tokens of each source's queue that lie before the present state.
    fn source_bases(&self) -> Vec<u64> {
        let consumed_tokens = self.state.consumed.iter().map(|(_, tokens)| tokens);
        let since_start = consumed_tokens.zip(&self.consumed_before);
        since_start
            .zip(&self.source_offsets)
            .map(|((tokens, before), offset)| offset + (tokens - before))
            .collect()
    }

    /// Lets the workers of an epoch begin.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn launch(
        &mut self,
        active: &mut ActiveEpoch,
        watchdogs: &EpochWatchdogs,
    ) -> Result<(), RunError> {
        let worker_parts = std::mem::take(&mut active.parts);
        self.tally.begin_epoch(Clock.now_ns());
        if let Some(tracer) = &mut self.tracer {
            tracer.begin(&self.loaded, &active.spec, &active.memory);
        }
        self.pool
            .begin(&active.spec, &active.memory, worker_parts, watchdogs)?;
        // Only now, so that nobody waits for it.
        active.memory.make_present(self.options.lock_memory);
        self.leaving = None;
        Ok(())
    }

    /// Takes over the state of an epoch that all workers have finished after `blocks` blocks.
    pub(crate) fn complete(&mut self, active: &ActiveEpoch, blocks: u64) {
        let graph = &self.loaded.program.graph;
        let end_channels = border::read_area(&active.memory, graph, Area::End);
        self.take_over(active, blocks, end_channels);
        let plan = PlanName {
            mode: self.mode,
            mode_name: &self.modes.names()[self.mode],
            plan: active.spec.plan,
        };
        self.tally.add_epoch(&self.loaded, plan, active, blocks);
        if self.modes.are_several() {
            self.idle_arenas.keep(active.memory.arena());
        }
        if let Some(tracer) = &mut self.tracer {
            tracer.end(active.spec.epoch);
        }
    }

    /// Takes over the last committed border of an epoch that ends at once; how many of its blocks count.
    pub(crate) fn fence(&mut self, active: &ActiveEpoch) -> u64 {
        let memory = &active.memory;
        // From here on nothing more counts.
        memory.stop();
        self.session_memory
            .arrivals
            .of_epoch(active.spec.epoch)
            .notify();
        let committed_blocks = memory.common.committed.seal();
        self.border_halvings = if committed_blocks == 0 {
            self.border_halvings.saturating_add(1)
        } else {
            self.border_halvings.saturating_sub(1)
        };
        self.tally.fenced += 1;

        // A worker that died between a publication and its wake-up left somebody asleep.
        for source in &self.session_memory.sources {
            source.wake();
        }

        let graph = &self.loaded.program.graph;
        let border_channels = border::read_area(memory, graph, border_area(committed_blocks));
        self.take_over(active, committed_blocks, border_channels);
        if let Some(tracer) = &mut self.tracer {
            tracer.end(active.spec.epoch);
        }
        committed_blocks
    }

    /// The state at the last committed border of an epoch that is at work.
    pub(crate) fn committed_state(&self, active: &ActiveEpoch) -> BorderState {
        // First: what is settled by a later border is not forgotten until this state has its changes.
        let ledger = self.control.ledger();
        let memory = &active.memory;
        let committed_blocks = memory.hold();
        let graph = &self.loaded.program.graph;
        let border_channels = border::read_area(memory, graph, border_area(committed_blocks));
        memory.release_held();

        let done_iterations = committed_blocks * active.block;
        let consumed_counts = self.state.consumed.iter().map(|(id, tokens)| {
            let taken_tokens = done_iterations * self.loaded.tokens_per_iteration(*id);
            (*id, tokens + taken_tokens)
        });
        let iterations = self.state.iterations + done_iterations;
        let consumed: Vec<(ActorId, u64)> = consumed_counts.collect();
        let state = State {
            iterations,
            channels: border_channels,
            changes: ledger.changes_for_border(&self.loaded, iterations, &consumed),
            consumed,
        };
        BorderState {
            present_mode: self.present_mode(&ledger, iterations),
            emitted: self.emitted_until(iterations),
            changes_made: ledger.made(),
            state,
        }
    }

    /// The state at the border between two epochs, or behind the last.
    #[cfg(hosts)]
    pub(crate) fn present_border(&self) -> BorderState {
        let ledger = self.control.ledger();
        let mut state = self.state.clone();
        state.changes = ledger.changes_for_border(&self.loaded, state.iterations, &state.consumed);
        BorderState {
            present_mode: self.present_mode(&ledger, state.iterations),
            emitted: self.emitted_until(state.iterations),
            changes_made: ledger.made(),
            state,
        }
    }

    /// Ends the run at an earlier border of the present program: nothing behind it was given out.
    #[cfg(hosts)]
    pub(crate) fn go_back(&mut self, border: &BorderState) {
        if border.state.iterations < self.state.iterations {
            self.state = border.state.clone();
            self.padded.fill(0);
        }
    }

    /// The present mode at a border, with what waits for others.
    fn present_mode(&self, ledger: &ParameterLedger, iterations: u64) -> PresentMode {
        PresentMode {
            mode: self.mode as u32,
            waiting: ledger.waiting().clone(),
            is_decided: self.decided_at == iterations,
        }
    }

    /// The mode that the run ends in.
    pub(crate) fn last_mode(&self) -> PresentMode {
        self.present_mode(&self.control.ledger(), self.state.iterations)
    }

    /// Moves the run's state on by the blocks of an epoch, and closes the epoch's streams there.
    fn take_over(
        &mut self,
        active: &ActiveEpoch,
        blocks: u64,
        channels: TiVec<ChannelId, Vec<u8>>,
    ) {
        self.tally.end_epoch(Clock.now_ns());

        let done_iterations = blocks * active.block;
        self.state.channels = channels;
        self.state.iterations += done_iterations;
        self.iterations_left -= done_iterations;
        for (id, tokens) in &mut self.state.consumed {
            *tokens += done_iterations * self.loaded.tokens_per_iteration(*id);
        }
        if active.spec.pad && blocks > 0 {
            for ((_, tokens), zeros) in self.state.consumed.iter_mut().zip(&self.padded) {
                *tokens -= zeros;
            }
        }

        let mut ledger = self.control.ledger();
        let State {
            iterations,
            consumed,
            changes,
            ..
        } = &mut self.state;
        *changes = ledger.changes_for_border(&self.loaded, *iterations, consumed);
        ledger.begin(changes);
        drop(ledger);

        let bases = self.source_bases();
        for (source, base) in self.session_memory.sources.iter().zip(bases) {
            source.release_until(base);
        }

        let done_tokens = self.tokens_until(self.iterations_of_program());
        for (index, done_tokens) in done_tokens.into_iter().enumerate() {
            let queue = &active.memory.sinks[index];
            queue.close();
            // A queue without a reader counts nothing: all that is done is given out.
            self.released[index] = if queue.is_detached() {
                done_tokens
            } else {
                active.released[index] + queue.written().0
            };
        }
    }

    /// Whether no sink has given out tokens past the present state: those would come again, from another program.
    pub(crate) fn is_all_given_out_done(&self) -> bool {
        let done_tokens = self.tokens_until(self.iterations_of_program());
        let mut sinks = self.released.iter().zip(done_tokens);
        sinks.all(|(&released, done_tokens)| released <= done_tokens)
    }

    /// All devices that some mode uses.
    pub(crate) fn devices(&self) -> BTreeSet<DeviceId> {
        self.modes.iter().flat_map(|mode| mode.devices()).collect()
    }

    /// Goes over to another program with the same streams, at a border that all of the old one's work is done up to.
    /// The state is taken over if it fits, and else begins anew.
    pub(crate) fn swap_program(&mut self, requested: &RequestedSwap) {
        let to = Arc::clone(&requested.modes);
        let graph = &to.first().program.graph;
        let old_graph = &self.loaded.program.graph;
        let is_same = state::channel_fingerprint(graph) == state::channel_fingerprint(old_graph);
        let channels = match is_same {
            true => self.state.channels.clone(),
            false => State::initial(graph).channels,
        };
        self.pool.swap_program(requested);
        // What the old program needed says nothing about the new one.
        self.idle_arenas.clear();
        self.go_over(Arc::clone(to.first()), channels, None, Vec::new());
        self.modes = to;
        self.mode = 0;
    }

    /// Goes over to the mode that is known to follow here, or that somebody asked for, if that can be done at the present
    /// border without these devices. Whether it was.
    pub(crate) fn apply_mode_change(&mut self, lost: &[DeviceId]) -> bool {
        if self.enter_scheduled_modes() || self.enter_decided_mode() {
            return true;
        }
        // After the last border nothing runs in any mode; where a sink is ahead of the border, the next one will do.
        let is_last = self.iterations_left == 0 || self.phase == Phase::Pad;
        if is_last || self.control.is_finishing() || !self.is_all_given_out_done() {
            return false;
        }
        let control = Arc::clone(&self.control);
        let ledger = control.ledger();
        let granted = control
            .current()
            .as_ref()
            .map(CurrentEpoch::granted_iterations);
        let is_recorded = control.inputs.is_some();
        let decided = ledger.decided_iterations().max(granted.unwrap_or(0));
        drop(ledger);
        if is_recorded && self.state.iterations < decided {
            return false;
        }
        // Held to the end: whoever asks for another change does so in the old mode or the new one.
        let mut requests = control.mode_requests();
        let Some(pending) = requests.pending.take() else {
            return false;
        };

        let to = Arc::clone(self.modes.program(pending.target));
        if to.plan_of(Phase::Main, lost).is_none() {
            pending.outcome.settle(Err(ModeError::NoPlan {
                mode: self.modes.names()[pending.target].clone(),
                lost: to.device_names(lost),
            }));
            return false;
        }

        self.enter_mode(pending.target, Vec::new());
        requests.enter(pending, self.state.iterations, &self.modes);
        true
    }

    /// Goes over to the modes that are known to follow at the present border. Whether there was one.
    fn enter_scheduled_modes(&mut self) -> bool {
        let control = Arc::clone(&self.control);
        let mut requests = control.mode_requests();
        let mut has_entered = false;
        while let Some(next) = self.scheduled.front() {
            requests.scheduled = Some(next.mode as usize);
            if next.iteration > self.state.iterations {
                return has_entered;
            }
            self.decided_at = self.state.iterations;
            if let Some(ScheduledMode { mode, changes, .. }) = self.scheduled.pop_front() {
                self.enter_mode(mode as usize, changes);
                requests.begin(mode as usize, self.state.iterations);
                has_entered = true;
            }
        }
        requests.scheduled = None;
        has_entered
    }

    /// Goes over to the mode that tokens ask for at the present border, if they decide here. Whether it was another one.
    fn enter_decided_mode(&mut self) -> bool {
        let iterations = self.state.iterations;
        let Some(decision) = self.modes.decision_in(self.mode) else {
            return false;
        };
        if !self.is_decision_due(decision) || self.phase == Phase::Pad {
            return false;
        }
        self.decided_at = iterations;
        // Single iterations may have led here: whole blocks follow again.
        self.phase = Phase::Main;
        let graph = &self.loaded.program.graph;
        let wanted = decision.wanted_mode(graph, &self.state.channels);
        let Some(wanted) = wanted.filter(|mode| self.modes.allows(self.mode, *mode as usize))
        else {
            return false;
        };
        self.enter_mode(wanted as usize, Vec::new());
        let control = Arc::clone(&self.control);
        control.mode_requests().begin(wanted as usize, iterations);
        true
    }

    /// Whether tokens decide about the mode at the present border. A border is decided about once: what lies on the channel
    /// after a change belongs to the next decision.
    fn is_decision_due(&self, decision: &ModeDecision) -> bool {
        let iterations = self.state.iterations;
        iterations > self.decided_at && iterations.is_multiple_of(decision.every)
    }

    /// Goes over to a mode; these changes of live parameters are known to be made in it.
    fn enter_mode(&mut self, mode: usize, changes: Vec<ParameterChange>) {
        let to = Arc::clone(self.modes.program(mode));
        let graph = &self.loaded.program.graph;
        let channels = carried_tokens(graph, &self.state.channels, &to.program.graph);
        self.pool.enter_mode(&to);
        self.go_over(to, channels, Some(mode as u32), changes);
        self.mode = mode;
    }

    /// The change of mode that was known ahead and that the run did not get to, though there was more to run.
    pub(crate) fn unreached_mode(&self) -> Option<&ScheduledMode> {
        let is_stopped = self.iterations_left == 0 || self.control.is_finishing();
        let next = self.scheduled.front().filter(|_| !is_stopped)?;
        // Single iterations get anywhere that the sources have tokens for.
        let has_singles = self.loaded.tail.is_some() || self.block_of(self.loaded.main) == 1;
        (!has_singles && !self.is_short(1)).then_some(next)
    }

    /// Goes on with another program from these tokens on channels; streams are counted anew from here.
    fn go_over(
        &mut self,
        to: Arc<LoadedProgram>,
        channels: TiVec<ChannelId, Vec<u8>>,
        mode: Option<u32>,
        changes: Vec<ParameterChange>,
    ) {
        self.source_offsets = self.source_bases();
        self.emitted_before = self.emitted_until(self.state.iterations);

        self.state.channels = channels;
        let consumed_counts = to.program.graph.sources().zip(consumed_tokens(&self.state));
        self.state.consumed = consumed_counts
            .map(|((id, _), tokens)| (id, tokens))
            .collect();

        self.consumed_before = consumed_tokens(&self.state);
        self.iterations_before = self.state.iterations;
        self.released.fill(0);
        self.sink_capacities = sink_capacities(&to, &self.options);
        self.phase = Phase::Main;
        let from = std::mem::replace(&mut self.loaded, Arc::clone(&to));
        self.steps.push(ProgramStep {
            from,
            to,
            mode,
            changes,
        });
    }

    /// Tokens that each sink is given from the session's beginning up to a border of the present program.
    pub(crate) fn emitted_until(&self, iterations: u64) -> Vec<u64> {
        let done_tokens = self.tokens_until(iterations - self.iterations_before);
        let sinks = done_tokens.iter().zip(&self.emitted_before);
        sinks.map(|(tokens, before)| tokens + before).collect()
    }

    /// Tokens that each sink is given in so many iterations of the present program.
    fn tokens_until(&self, done_iterations: u64) -> Vec<u64> {
        let sinks = self.loaded.program.graph.sinks();
        let rates = sinks.map(|(id, _)| self.loaded.tokens_per_iteration(id));
        let rates: Vec<u64> = rates.collect();
        let mut tokens: Vec<u64> = rates.iter().map(|rate| done_iterations * rate).collect();

        // What models of a merged program are run for after their end goes to nobody.
        let model_sources = self.model_sources(&self.source_offsets);
        for (model, sources) in self.loaded.models.iter().zip(model_sources) {
            let kept_iterations = sources.end().min(done_iterations * model.iterations);
            for &sink in &model.sinks {
                tokens[sink] = rates[sink] / model.iterations * kept_iterations;
            }
        }
        tokens
    }

    /// The sources of the models of a merged program, counted from these bases on.
    fn model_sources(&self, bases: &[u64]) -> Vec<ModelSources> {
        let queues = &self.session_memory.sources;
        self.loaded.model_sources(queues, bases, self.options.pad)
    }

    /// For each source, the tokens of its queue that count: those of models that have ended up to their end.
    fn counted_tokens(&self) -> Vec<u64> {
        let mut counted = vec![u64::MAX; self.source_offsets.len()];
        let done_iterations = self.iterations_of_program();
        let model_sources = self.model_sources(&self.source_offsets);
        for (model, sources) in self.loaded.models.iter().zip(model_sources) {
            let kept_iterations = sources.end().min(done_iterations * model.iterations);
            for (&place, source) in model.sources.iter().zip(&sources.sources) {
                counted[place] = kept_iterations * source.iteration_tokens + source.base;
            }
        }
        counted
    }

    /// Whether there is more to run; sets the phase. Waits until that is final where an incomplete iteration may
    /// follow.
    pub(crate) fn advance_phase(&mut self) -> bool {
        let main_block = self.block_of(self.loaded.main);
        // Whole blocks first: the main plan, then single iterations, then one that is padded.
        let has_block = match self.phase {
            Phase::Main => !self.is_over(main_block),
            Phase::Tail => !self.is_over(1),
            Phase::Pad => false,
        };
        if has_block {
            return true;
        }
        // A limit on iterations and a request to end both stop at a border: nothing is padded then.
        if self.iterations_left == 0 || self.control.is_finishing() {
            return false;
        }

        // Fewer iterations are left than a block has: the tail plan runs them one by one.
        let has_tail = self.loaded.tail.is_some();
        if self.phase == Phase::Main && main_block > 1 && has_tail && !self.is_short(1) {
            self.phase = Phase::Tail;
            return true;
        }

        let can_pad = has_tail || main_block == 1;
        // The models of a merged program are padded where each of them ends.
        let is_merged = !self.loaded.models.is_empty();
        if self.phase != Phase::Pad && self.options.pad && can_pad && !is_merged {
            // Padding needs a source with some tokens of an iteration and not all; if none has any, the input has ended evenly.
            let parts = self.partial_iterations();
            if parts
                .iter()
                .any(|part| part.available > 0 && part.missing > 0)
            {
                self.padded = parts.iter().map(|part| part.missing).collect();
                self.phase = Phase::Pad;
                return true;
            }
        }
        false
    }

    /// Iterations that may still be run before the next change of mode that is known ahead, or the next border at which tokens
    /// decide about the mode.
    fn iterations_of_leg(&self) -> u64 {
        let iterations = self.state.iterations;
        let next = self.scheduled.front();
        let until_change = next.map(|next| next.iteration - iterations);
        let decision = self.modes.decision_in(self.mode);
        let until_decision = decision.map(|decision| match self.is_decision_due(decision) {
            // After a loss the border may be the last that was committed: the next epoch ends where it begins.
            true => 0,
            false => decision.every - iterations % decision.every,
        });
        let until_change = until_change.into_iter().chain(until_decision).min();
        until_change.unwrap_or(u64::MAX).min(self.iterations_left)
    }

    fn block_of(&self, plan: PlanId) -> u64 {
        self.loaded.program.plans[plan].block
    }

    /// Whether no further block of so many iterations can be run.
    fn is_over(&self, block: u64) -> bool {
        self.iterations_of_leg() < block || self.control.is_finishing() || self.is_short(block)
    }

    /// Whether some source has ended with less than so many iterations.
    fn is_short(&self, iterations: u64) -> bool {
        if !self.loaded.models.is_empty() {
            return self.have_models_ended();
        }
        self.source_needs().any(|(source, need)| {
            let (written, closed) = source.written();
            closed && (written - source.taken()) / need < iterations
        })
    }

    /// Whether no model of a merged program that has sources has tokens for another iteration.
    fn have_models_ended(&self) -> bool {
        let model_sources = self.model_sources(&self.source_bases());
        let mut with_sources = model_sources
            .iter()
            .filter(|model| !model.sources.is_empty());
        let has_sources = !self.session_memory.sources.is_empty();
        has_sources && with_sources.all(|model| model.end() == 0)
    }

    /// The source queues, and the tokens that an iteration takes from each.
    fn source_needs(&self) -> impl Iterator<Item = (&Arc<Conduit>, u64)> {
        let sources = self.loaded.program.graph.sources();
        let needs = sources.map(|(id, _)| self.loaded.tokens_per_iteration(id));
        self.session_memory.sources.iter().zip(needs)
    }

    /// For each source, what it has of one iteration at most. Waits until that is final.
    fn partial_iterations(&self) -> Vec<PartialIteration> {
        let parker = self.session_memory.arrivals.current();
        let mut partial_iterations = Vec::new();
        for (source, need) in self.source_needs() {
            let mut available = 0;
            parker.wait_until(Spin::SHORT, || {
                let (written, closed) = source.written();
                available = (written - source.taken()).min(need);
                available == need || closed || self.control.stop.is_set()
            });
            partial_iterations.push(PartialIteration {
                available,
                missing: need - available,
            });
        }
        partial_iterations
    }

    /// The report of the run since the state `before`.
    pub(crate) fn report(&mut self, before: &State) -> Report {
        let run_span = RunSpan {
            before,
            after: &self.state,
            padded: &self.padded,
            counted: self.counted_tokens(),
            emitted: self.emitted_until(self.state.iterations),
        };
        self.tally
            .report(&self.loaded, &self.session_memory, &run_span)
    }

    /// Ends all streams: nothing comes any more.
    pub(crate) fn close_streams(&self) {
        for source in &self.session_memory.sources {
            source.close();
        }
        if let Some(gate) = &self.control.release_gate {
            gate.close();
        }
        for queue in self.sink_queues.iter().flatten() {
            queue.close();
            queue.mark_final();
        }
    }
}

pub(super) fn consumed_tokens(state: &State) -> Vec<u64> {
    state.consumed.iter().map(|(_, tokens)| *tokens).collect()
}

/// The area with the tokens at a border.
fn border_area(blocks: u64) -> Area {
    match blocks {
        0 => Area::Start,
        _ => Area::Border(blocks),
    }
}
