//! A run that stands by: a voter that is given the program and the state of each border, and goes on from the last one that was given
//! out when it is elected.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zbmd_council::decision::Decided;
use zbmd_ir::{ChangePosition, Graph, State, insert_change, state};
use zbmd_op::Registry;
use zbmd_wire::Deadline;
use zbmd_wire::connection::SharedConnection;
use zbmd_wire::error::Refusal;
use zbmd_wire::handshake::Accepted;

use super::border_copy::{BorderCopy, HolderMessage};
use super::change_journal;
use super::input_log::{MirroredTokens, SourceTokens};
use super::message;
use super::seat::{Candidate, LAST_STATE_LIMIT};
use super::standby_programs::StandbyPrograms;
use crate::error::EngineError;
use crate::options::{Hosts, RunOptions};
use crate::program::Engine;
use crate::run::parameters::consumed_in;
use crate::run::session::Session;

const WELCOME_LIMIT: Duration = Duration::from_secs(1);

/// A run that is to be gone on with, of a conductor that is gone: see [`Self::start`].
pub struct Takeover {
    /// The program that it is gone on with: the one that stood by, or another one that the run has gone over to since.
    pub engine: Engine,
    /// The border to go on from: everything before it was given out.
    pub state: State,
    /// For each sink, in actor order, the tokens that were given out up to there: the number of the first token that is given out
    /// by whoever takes over. Those that follow may have been given out before too, with the same bits.
    pub outputs: Vec<u64>,
    /// For each source, in actor order, the tokens behind [`State::consumed`] that were mirrored
    /// ([`crate::CouncilSeat::mirrored`]): the run feeds them by itself, before those that it is given.
    pub mirrored: Vec<u64>,
    /// Their bytes.
    pub(crate) inputs: Vec<Vec<u8>>,
    /// No live parameter changes before that any more: outputs up to the last border that was decided may have been given out, and
    /// what is set now comes after what was set before.
    pub(crate) decided_iterations: u64,
    /// Changes of live parameters that the run has made. Those that are decided are in the state.
    pub(super) changes_made: u64,
    pub(super) run: u128,
    pub(super) candidate: Candidate,
}

impl std::fmt::Debug for Takeover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Takeover")
            .field("iterations", &self.state.iterations)
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}

impl Takeover {
    /// Goes on with the run: from its state, which takes the place of that of the options, without the hosts of agents until they are
    /// found. Sources are to be fed from [`State::consumed`] on, but for what was mirrored of them ([`Self::mirrored`]), which the
    /// run feeds by itself.
    ///
    /// # Errors
    /// As [`Engine::start`], or no plan for this host alone.
    pub fn start(self, options: RunOptions) -> Result<Session, EngineError> {
        let options = RunOptions {
            state: Some(self.state.clone()),
            ..options
        };
        let engine = self.engine.clone();
        Session::start(&engine, options, Some(self))
    }
}

impl Engine {
    /// Stands by for a run that another process conducts: votes, holds the state of each border, and waits until this one is elected.
    /// `None` when the run has come to its end. Where the run has, or goes over to, another program than this one, with the same
    /// sources, sinks and devices, that is sent here, made with this registry, and gone on with.
    ///
    /// # Errors
    /// No seat in a council, a run of a program that cannot take the place of this one, nobody who conducts a run when this one is
    /// elected, or no state to go on from, neither here nor with a voter that could be elected in its place.
    pub fn stand_by(
        &self,
        hosts: &Hosts,
        registry: &Registry,
    ) -> Result<Option<Takeover>, EngineError> {
        let error = |why: String| EngineError::Council { why };
        let Some(seat) = &hosts.council else {
            return Err(error("whoever stands by needs a seat in it".to_owned()));
        };
        let programs = StandbyPrograms::new(self, registry, &hosts.credentials);
        let programs = Arc::new(programs.map_err(EngineError::Thread)?);

        let (send_connections, connections) = channel();
        let candidate = Candidate::start(seat, &hosts.credentials, Some(send_connections));
        let candidate = candidate.map_err(error)?;
        let held = Arc::<Mutex<Held>>::default();
        let receiver = Receiving {
            held: Arc::clone(&held),
            programs: Arc::clone(&programs),
        };
        std::thread::Builder::new()
            .name("zbmd borders".to_owned())
            .spawn(move || receiver.accept(&connections))
            .map_err(EngineError::Thread)?;
        let outcome = Self::wait_to_take_over(candidate, &held, &programs);
        // What still comes is of a conductor that is gone.
        locked(&held).is_over = true;
        outcome
    }

    fn wait_to_take_over(
        candidate: Candidate,
        held: &Arc<Mutex<Held>>,
        programs: &StandbyPrograms,
    ) -> Result<Option<Takeover>, EngineError> {
        let error = |why: String| EngineError::Council { why };
        let mut could_conduct = None;
        let mut elected: Option<Instant> = None;
        loop {
            let decided = candidate.member.decided();
            let is_known = locked(held).run == Some(decided.run);
            if decided.is_over && is_known {
                return Ok(None);
            }

            forget_before(held, &decided);
            programs.enter(decided.bundle);
            if let Some(why) = programs.failure() {
                return Err(error(why));
            }
            let engine = locked(held).engine(programs, &decided);
            let can_conduct = engine.is_some();
            if could_conduct.replace(can_conduct) != Some(can_conduct) {
                candidate.member.set_can_conduct(can_conduct);
            }

            if !candidate.may_act() {
                elected = None;
                candidate.wait();
                continue;
            }
            if decided.conductor.is_none() || decided.is_over {
                let why = format!(
                    "{} has been elected, and there is no run to take over: start the run first",
                    candidate.own
                );
                return Err(error(why));
            }
            let begin = |engine: Engine| {
                let (state, outputs) = locked(held).beginning(&engine, &decided)?;
                Some((engine, state, outputs))
            };
            if let Some((engine, mut state, outputs)) = engine.and_then(begin) {
                let last_change = engine.add_changes(&mut state, &decided).map_err(error)?;
                let (mirrored, inputs) = engine.mirrored_behind(&locked(held), &state);
                return Ok(Some(Takeover {
                    engine,
                    state,
                    outputs,
                    mirrored,
                    inputs,
                    decided_iterations: decided.border.iterations.max(last_change),
                    changes_made: decided.changes_made,
                    run: decided.run,
                    candidate,
                }));
            }

            // The voter steps aside for one that has the state as soon as it hears of one.
            if elected.get_or_insert_with(Instant::now).elapsed() > LAST_STATE_LIMIT {
                let why = format!(
                    "{} has been elected, and neither it nor a voter that it hears has the state of iteration {}: the run cannot be taken over",
                    candidate.own, decided.border.given_out
                );
                return Err(error(why));
            }
            candidate.wait();
        }
    }

    /// Makes the changes of live parameters that were decided, also those that have been made since the state was taken. One that the
    /// state has already is made again, with all that came after it. The last iteration that any of them is made at.
    fn add_changes(&self, state: &mut State, decided: &Decided) -> Result<u64, String> {
        let changes = change_journal::decode_all(&decided.changes)?;
        let graph = &self.loaded.program.graph;
        state::check_changes(&changes, graph).map_err(|error| error.to_string())?;

        let consumed = consumed_in(&self.loaded, state);
        let order = self.loaded.position_order(state.iterations, &consumed);
        let mut last_iteration = 0;
        for change in changes {
            if let ChangePosition::Iteration(iteration) = change.position {
                last_iteration = last_iteration.max(iteration);
            }
            insert_change(&mut state.changes, change, &order);
        }
        Ok(last_iteration)
    }

    /// What was mirrored of each source behind a border. Sources that are mirrored stay together: of each there are the tokens of as many
    /// iterations.
    fn mirrored_behind(&self, held: &Held, state: &State) -> MirroredInputs {
        let sources = self.loaded.program.graph.sources();
        let sources = sources.zip(&state.consumed).zip(&held.inputs);
        let found = sources.map(|(((id, _), (_, consumed)), tokens)| {
            let tokens = tokens.as_ref()?;
            let per_iteration = self.loaded.tokens_per_iteration(id);
            Some((tokens, *consumed, per_iteration))
        });
        let found: Vec<_> = found.collect();
        let mirrored = found.iter().flatten();
        let iterations = mirrored
            .map(|(tokens, consumed, per_iteration)| tokens.count_from(*consumed) / per_iteration);
        let iterations = iterations.min().unwrap_or(0);

        let inputs = found.iter().map(|source| match source {
            Some((tokens, consumed, per_iteration)) if iterations > 0 => {
                let count = iterations * per_iteration;
                (count, tokens.copy_from(*consumed, count))
            }
            _ => (0, Vec::new()),
        });
        inputs.unzip()
    }
}

/// Of each source, tokens behind a border and their bytes.
type MirroredInputs = (Vec<u64>, Vec<Vec<u8>>);

fn forget_before(held: &Mutex<Held>, decided: &Decided) {
    let mut held = locked(held);
    if held.run != Some(decided.run) {
        return;
    }
    let Held { copies, inputs, .. } = &mut *held;
    *copies = copies.split_off(&(decided.border.given_out, 0));
    let Some((_, first)) = copies.first_key_value() else {
        return;
    };
    for (tokens, consumed) in inputs.iter_mut().zip(&first.consumed) {
        if let Some(tokens) = tokens {
            tokens.forget_before(*consumed);
        }
    }
}

/// Borders that are held.
#[derive(Default)]
struct Held {
    run: Option<u128>,
    /// By their iterations, and the number of their program's bundle.
    copies: BTreeMap<(u64, u64), BorderCopy>,
    /// Tokens of each source that is mirrored.
    inputs: Vec<Option<SourceTokens>>,
    /// Nothing is held any more.
    is_over: bool,
}

impl Held {
    /// From now on borders of this run are held, and none of another one.
    fn enter(&mut self, run: u128) {
        if self.run != Some(run) {
            self.run = Some(run);
            self.copies.clear();
            self.inputs.clear();
        }
    }

    /// The border that the run is gone on from, if it is held.
    fn copy_to_begin_with(&self, decided: &Decided) -> Option<&BorderCopy> {
        let is_of_run = self.run == Some(decided.run);
        let key = (decided.border.given_out, decided.bundle);
        is_of_run.then(|| self.copies.get(&key)).flatten()
    }

    /// The program that the run would be gone on with. `None` as long as that or the state is not here, or the state would be that of
    /// an earlier program.
    fn engine(&self, programs: &StandbyPrograms, decided: &Decided) -> Option<Engine> {
        let given_out = decided.border.given_out;
        // Nobody must hold the beginning of a run.
        let has_state = given_out == 0 || self.copy_to_begin_with(decided).is_some();
        let is_possible = given_out >= decided.bundle_since && has_state;
        is_possible.then(|| programs.find(decided.bundle)).flatten()
    }

    /// The state that it would be gone on from, and the tokens that each sink was given before.
    fn beginning(&self, engine: &Engine, decided: &Decided) -> Option<(State, Vec<u64>)> {
        let graph = &engine.loaded.program.graph;
        match self.copy_to_begin_with(decided) {
            Some(copy) => {
                let saved = state::decode(&copy.state, graph).ok()?;
                Some((saved.state, copy.outputs.clone()))
            }
            None => Some((State::initial(graph), vec![0; graph.sinks().count()])),
        }
    }

    /// Holds tokens of a source.
    ///
    /// # Errors
    /// No source, or no whole tokens.
    fn add(&mut self, graph: &Graph, tokens: &MirroredTokens) -> Result<(), String> {
        let number = tokens.source as usize;
        let Some((_, actor)) = graph.sources().nth(number) else {
            return Err(format!("the model has no source {number}"));
        };
        self.inputs.resize_with(graph.sources().count(), || None);
        let first = || SourceTokens::new(actor.outputs[0].token.bytes(), tokens.first);
        self.inputs[number].get_or_insert_with(first).add(tokens)
    }
}

fn locked(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes borders from conductors.
#[derive(Clone)]
struct Receiving {
    held: Arc<Mutex<Held>>,
    programs: Arc<StandbyPrograms>,
}

impl Receiving {
    /// Hears each conductor that connects, on a thread of its own.
    fn accept(&self, connections: &Receiver<Accepted>) {
        while let Ok(accepted) = connections.recv() {
            let deadline = Deadline::after(WELCOME_LIMIT);
            if locked(&self.held).is_over {
                accepted.refuse(Refusal::Unknown, deadline);
                continue;
            }
            let (receiving, hello) = (self.clone(), accepted.hello);
            // Without a thread it connects again.
            let _ = std::thread::Builder::new()
                .name("zbmd borders of a run".to_owned())
                .spawn(move || {
                    let connection = accepted.welcome(deadline).map_err(io::Error::other)?;
                    let connection = SharedConnection::new(connection, Duration::MAX)?;
                    receiving.hold_all(&connection, hello.run, hello.plan)
                });
        }
    }

    /// Holds what comes of a run, whose program has this number, until the connection ends or a later run's borders come.
    fn hold_all(
        &self,
        mut connection: &SharedConnection,
        run: u128,
        at_work: u64,
    ) -> io::Result<()> {
        locked(&self.held).enter(run);

        loop {
            match message::receive::<HolderMessage<BorderCopy>>(connection)? {
                HolderMessage::Program { bundle, from } => {
                    let is_at_work = bundle.number() == at_work;
                    let answer = self.programs.answer(bundle, from, is_at_work);
                    message::send(connection, &answer)?;
                }
                HolderMessage::Tokens(all_tokens) => self.hold_tokens(run, at_work, &all_tokens)?,
                HolderMessage::Border(copy) => {
                    let iterations = copy.iterations;
                    self.hold_border(run, copy)?;
                    connection.write_all(&iterations.to_le_bytes())?;
                    connection.flush()?;
                }
            }
        }
    }

    fn hold_tokens(&self, run: u128, bundle: u64, all_tokens: &[MirroredTokens]) -> io::Result<()> {
        let program = self.program_of(bundle)?;
        let mut held = self.held_of(run)?;
        for tokens in all_tokens {
            let added = held.add(&program.loaded.program.graph, tokens);
            added.map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn hold_border(&self, run: u128, copy: BorderCopy) -> io::Result<()> {
        let program = self.program_of(copy.bundle)?;
        let decoded = state::decode(&copy.state, &program.loaded.program.graph);
        decoded.map_err(io::Error::other)?;

        let key = (copy.iterations, copy.bundle);
        self.held_of(run)?.copies.insert(key, copy);
        Ok(())
    }

    /// The program that something is sent of.
    fn program_of(&self, bundle: u64) -> io::Result<Engine> {
        let found = self.programs.find(bundle);
        found.ok_or_else(|| io::Error::other("it is of a program that is not here"))
    }

    /// What is held of a run.
    ///
    /// # Errors
    /// It is of a later one, or nothing is held any more.
    fn held_of(&self, run: u128) -> io::Result<MutexGuard<'_, Held>> {
        let held = locked(&self.held);
        let is_held = held.run == Some(run) && !held.is_over;
        is_held
            .then_some(held)
            .ok_or_else(|| io::Error::other("nothing of this run is held any more"))
    }
}
