//! An agent's part of one run: the epochs that the conductor has it begin, their workers, and what the conductor is told of
//! them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering as FlagOrdering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use zbmd_ir::{ActorId, ChangePosition, Plan};
use zbmd_wire::connection::{Credentials, SharedConnection};

use super::agent_seat::Obedience;
use super::bundle_parts::BundleShelf;
use super::message::{self, Order, Report, Standing};
use super::seat::Mandate;
use crate::fault::WorkerOutcome;
use crate::live_program::NumbersByParameter;
use crate::program::{Engine, LoadedProgram};
use crate::run::parameters::prepare_kernels;
use crate::run::system;
use crate::transport::change_queue::{Decision, Values, WantedPosition};
use crate::transport::epoch::{Area, EpochMemory};
use crate::transport::epoch_spec::{EpochSpec, LiveStart};
use crate::transport::epoch_state::WorkerStatus;
use crate::transport::primitive::Ordering;
use crate::transport::session_memory::SessionMemory;
use crate::transport::switchboard::Switchboard;
use crate::worker::border;
use crate::worker::gpu::OpenGpus;
use crate::worker::host;
use crate::worker::job::{HostOptions, WorkerEnd, WorkerJob};
use crate::worker::step_table::{StepTable, step_table};
use crate::worker::wired::Wiring;

/// How often the conductor is told what has changed.
const TICK: Duration = Duration::from_millis(1);

/// What a run is to an agent, once its bundle is loaded.
pub(super) struct RunTerms {
    /// Where the conductor is told everything.
    pub connection: Arc<SharedConnection>,
    pub engine: Engine,
    pub options: HostOptions,
    pub run: u128,
    pub credentials: Credentials,
    pub switchboard: Arc<Switchboard>,
    pub obedience: Arc<Obedience>,
    /// The council in whose name the run is conducted.
    pub council: Option<u64>,
    /// Where other agents get the bundle.
    pub shelf: Arc<BundleShelf>,
    /// Epochs that were begun for the conductor.
    pub begun_epochs: Arc<AtomicU64>,
}

/// What an agent has of a run.
pub(super) struct AgentRun {
    terms: RunTerms,
    /// Whoever sends a message.
    sending: Mutex<()>,
    is_over: AtomicBool,
    present: Mutex<Option<Arc<AgentEpoch>>>,
    /// The council's word for the epoch at work.
    mandate: Mutex<Option<Mandate>>,
    /// Why this agent obeys the conductor no more.
    objection: OnceLock<String>,
}

/// What an agent has of an epoch.
struct AgentEpoch {
    loaded: Arc<LoadedProgram>,
    spec: Arc<EpochSpec>,
    memory: Arc<EpochMemory>,
    /// One queue, whose tokens are the blocks that the conductor has admitted.
    session_memory: Arc<SessionMemory>,
    /// Values of live parameters with all changes so far.
    numbers: Mutex<NumbersByParameter>,
    /// Those of this host, and what the conductor knows of each.
    calendars: Vec<Mutex<Reported>>,
}

struct Reported {
    calendar: usize,
    periods: Option<u64>,
    changes_taken: u64,
    border: u64,
    /// Where the worker was at the last look: its period and instruction.
    seen_at: (u64, u32),
    /// The conductor has been told that it stands.
    is_standing: bool,
    /// What its instructions are, once that has been asked.
    steps: Option<StepTable>,
}

impl AgentRun {
    pub(super) fn new(terms: RunTerms) -> Self {
        Self {
            terms,
            sending: Mutex::default(),
            is_over: AtomicBool::new(false),
            present: Mutex::new(None),
            mandate: Mutex::default(),
            objection: OnceLock::new(),
        }
    }

    /// Does what the conductor says and reports to it, until it goes, or is to be obeyed no more.
    pub(super) fn serve(self: &Arc<Self>) -> io::Result<()> {
        let reporter = Arc::clone(self);
        let reporting = std::thread::Builder::new()
            .name("zbmd reports".to_owned())
            .spawn(move || {
                reporter.terms.options.enter_as_supervisor();
                reporter.report_changes();
            })?;

        let result = self.obey(&self.terms.connection);
        self.stop_epoch(u64::MAX);
        self.terms.connection.shutdown();
        self.is_over.store(true, FlagOrdering::Release);
        let _ = reporting.join();
        match self.objection.get() {
            Some(why) => Err(io::Error::other(why.clone())),
            None => result,
        }
    }

    fn present(&self) -> MutexGuard<'_, Option<Arc<AgentEpoch>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, report: &Report) -> io::Result<()> {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        message::send(&*self.terms.connection, report)
    }

    /// The epoch of this number, if it is at work.
    fn epoch(&self, epoch: u64) -> Option<Arc<AgentEpoch>> {
        self.present()
            .clone()
            .filter(|present| present.spec.epoch == epoch)
    }

    /// Does what the conductor says, until it goes.
    fn obey(self: &Arc<Self>, orders: &SharedConnection) -> io::Result<()> {
        loop {
            let order = match message::receive::<Order>(orders) {
                Ok(order) => order,
                // The ordinary end of a run.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            };
            match order {
                Order::Open { .. } => return Err(io::Error::other("a second bundle in one run")),
                Order::Admit {
                    epoch,
                    blocks,
                    is_final,
                } => {
                    if let Some(present) = self.epoch(epoch) {
                        for decisions in &present.session_memory.sources {
                            decisions.count_written(blocks);
                            if is_final {
                                decisions.close();
                            }
                        }
                    }
                }
                Order::Change {
                    epoch,
                    decision,
                    values,
                } => {
                    if let Some(present) = self.epoch(epoch) {
                        let changed = present.change(decision, values);
                        changed.map_err(io::Error::other)?;
                    }
                }
                Order::Commit { epoch, border } => {
                    if let Some(present) = self.epoch(epoch)
                        && present.memory.common.committed.advance(border)
                    {
                        present.memory.common.commits.notify();
                    }
                }
                Order::Stop { epoch } => self.stop_epoch(epoch),
                begin @ Order::Begin { .. } => self.begin(begin).map_err(io::Error::other)?,
            }
        }
    }

    /// Ends the epoch at work, if it is this one or an earlier one.
    fn stop_epoch(&self, epoch: u64) {
        let mut present = self.present();
        let Some(stopped) = present.take_if(|present| present.spec.epoch <= epoch) else {
            return;
        };
        drop(present);
        stopped.memory.stop();
        let arrivals = &stopped.session_memory.arrivals;
        arrivals.of_epoch(stopped.spec.epoch).notify();
    }

    /// Begins an epoch, each calendar of this host on a thread of its own.
    fn begin(self: &Arc<Self>, order: Order) -> Result<(), String> {
        let Order::Begin {
            spec,
            start,
            calendars,
            hosts,
            own_host,
            addresses,
            names,
            plan: plan_sum,
            mandate,
        } = order
        else {
            return Ok(());
        };
        self.stop_epoch(u64::MAX);
        // Whoever was to have the bundle passed on has it.
        self.terms.shelf.clear_memory();
        self.terms.obedience.accept(self.terms.council, mandate)?;
        *self.mandate.lock().unwrap_or_else(PoisonError::into_inner) = mandate;
        let modes = &self.terms.engine.modes;
        let loaded = modes
            .get(spec.mode)
            .ok_or("a mode that the bundle does not have")?;
        let plan = loaded.program.plans.get(spec.plan);
        let plan = plan.ok_or("a plan that the bundle does not have")?;
        check_spec(loaded, plan, &spec, &start)?;
        let hosts: Vec<usize> = hosts.into_iter().map(|host| host as usize).collect();
        let host_count = addresses.len().min(names.len());
        let are_hosts_known = hosts.iter().all(|host| *host < host_count);
        let are_calendars_known = calendars
            .iter()
            .all(|calendar| (*calendar as usize) < hosts.len());
        if hosts.len() != plan.calendars.len() || !are_hosts_known || !are_calendars_known {
            return Err(format!(
                "an epoch of {} calendars on {host_count} hosts, its plan has {}",
                hosts.len(),
                plan.calendars.len()
            ));
        }

        self.terms
            .switchboard
            .begin(self.terms.run, spec.epoch, Some(plan_sum));
        let epoch = Arc::new(AgentEpoch::create(loaded, *spec, start, &calendars)?);
        *self.present() = Some(Arc::clone(&epoch));
        self.terms.begun_epochs.fetch_add(1, FlagOrdering::Relaxed);
        let wiring = Arc::new(Wiring {
            run: self.terms.run,
            plan: plan_sum,
            credentials: self.terms.credentials.clone(),
            own_host: own_host as usize,
            hosts,
            addresses,
            names,
            switchboard: Arc::clone(&self.terms.switchboard),
            is_agent: true,
        });
        for calendar in calendars {
            self.start_worker(&epoch, calendar as usize, &wiring)?;
        }
        Ok(())
    }

    fn start_worker(
        self: &Arc<Self>,
        epoch: &Arc<AgentEpoch>,
        calendar: usize,
        wiring: &Arc<Wiring>,
    ) -> Result<(), String> {
        let job = WorkerJob {
            spec: Arc::clone(&epoch.spec),
            calendar,
            session_memory: Arc::clone(&epoch.session_memory),
            epoch: Arc::clone(&epoch.memory),
            options: self.terms.options,
            gpus: Arc::new(OpenGpus::default()),
            wiring: Some(Arc::clone(wiring)),
        };
        let (agent, epoch) = (Arc::clone(self), Arc::clone(epoch));
        let started = std::thread::Builder::new()
            .name(format!("zbmd calendar {calendar}"))
            .spawn(move || {
                let end = match host::prepare(&epoch.loaded, job) {
                    Ok(prepared) => prepared.run(&epoch.loaded, None),
                    Err(fault) => WorkerEnd::before_start(fault),
                };
                // A conductor that is gone needs no report.
                let _ = agent.report_end(&epoch, calendar, end);
            });
        started.map(drop).map_err(|error| error.to_string())
    }

    fn report_end(&self, epoch: &AgentEpoch, calendar: usize, end: WorkerEnd) -> io::Result<()> {
        let mut tokens = Vec::new();
        if matches!(end.outcome, WorkerOutcome::Finished { .. }) {
            tokens = epoch.tokens(calendar, Area::End);
        }
        self.report(&Report::Ended {
            epoch: epoch.spec.epoch,
            calendar: calendar as u32,
            end: Box::new(end),
            tokens,
        })
    }

    /// Ends the connection to a conductor that is to be obeyed no more; whether it is.
    fn refuse_to_obey(&self) -> bool {
        let mandate = *self.mandate.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(why) = self.terms.obedience.objection(mandate) else {
            return false;
        };
        // Before the connection's end is seen.
        let _ = self.objection.set(why);
        self.terms.connection.shutdown();
        true
    }

    /// Tells the conductor what changes, until the run is over.
    fn report_changes(&self) {
        while !self.is_over.load(FlagOrdering::Acquire) && !self.refuse_to_obey() {
            let present = self.present().clone();
            if let Some(epoch) = present {
                let mut calendars = epoch.calendars.iter();
                let result =
                    calendars.try_for_each(|reported| self.report_calendar(&epoch, reported));
                if result.is_err() {
                    return;
                }
            }
            std::thread::sleep(TICK);
        }
    }

    /// Tells the conductor how far a worker is, and before that what it has saved on the way.
    fn report_calendar(&self, epoch: &AgentEpoch, reported: &Mutex<Reported>) -> io::Result<()> {
        let mut reported = reported.lock().unwrap_or_else(PoisonError::into_inner);
        let status = &epoch.memory.statuses[reported.calendar];
        let periods = status.periods.load(Ordering::Acquire);
        let changes_taken = status.changes_taken.load(Ordering::Acquire);
        let standing = epoch.standing(&mut reported, periods);
        let has_moved_on = reported.is_standing && standing.is_none();
        let is_told = reported.periods == Some(periods) && reported.changes_taken == changes_taken;
        if is_told && standing.is_none() && !has_moved_on {
            return Ok(());
        }
        if let Some(borders) = epoch.memory.borders() {
            // Areas of borders that are not committed are not written again: each is there to be read.
            while reported.border + borders.every() <= borders.passed(periods) {
                reported.border += borders.every();
                self.report(&Report::Saved {
                    epoch: epoch.spec.epoch,
                    border: reported.border,
                    tokens: epoch.tokens(reported.calendar, Area::Border(reported.border)),
                })?;
            }
        }
        reported.periods = Some(periods);
        reported.changes_taken = changes_taken;
        reported.is_standing = standing.is_some();
        self.report(&Report::Progress {
            epoch: epoch.spec.epoch,
            calendar: reported.calendar as u32,
            periods,
            changes_taken,
            standing,
        })
    }
}

impl AgentEpoch {
    /// This host's memory of an epoch that has been checked.
    fn create(
        loaded: &Arc<LoadedProgram>,
        spec: EpochSpec,
        start: Vec<Vec<u8>>,
        calendars: &[u32],
    ) -> Result<Self, String> {
        let plan = &loaded.program.plans[spec.plan];
        let memory = EpochMemory::create(&loaded.program.graph, plan, &spec, None);
        let memory = memory.map_err(|error| error.to_string())?;
        border::write_start(&memory, &start.into_iter().collect());
        let decisions = SessionMemory::create(&vec![(0, 1)]);
        let decisions = decisions.map_err(|error| error.to_string())?;
        decisions.arrivals.open(spec.epoch);
        let changes = spec.live.iter().flat_map(|live| &live.changes);
        let numbers = changes.flat_map(|change| change.values.iter().cloned());
        let numbers: NumbersByParameter = numbers.collect();

        let reported = calendars.iter().map(|calendar| {
            Mutex::new(Reported {
                calendar: *calendar as usize,
                periods: None,
                changes_taken: 0,
                border: 0,
                seen_at: (0, WorkerStatus::BETWEEN_PERIODS),
                is_standing: false,
                steps: None,
            })
        });
        Ok(Self {
            loaded: Arc::clone(loaded),
            spec: Arc::new(spec),
            memory: Arc::new(memory),
            session_memory: Arc::new(decisions),
            numbers: Mutex::new(numbers),
            calendars: reported.collect(),
        })
    }

    /// Lets live parameters change where the conductor has decided, before a block is admitted that may know of it.
    fn change(&self, decision: Decision, values: Values) -> Result<(), String> {
        let (Some(queue), Some(start)) = (&self.memory.changes, &self.spec.live) else {
            return Err(unknown_change("of a bundle without live parameters"));
        };
        check_values(&self.loaded, &values)?;
        let grants = &self.memory.common.grants;
        let plan = &self.loaded.program.plans[self.spec.plan];
        let (position, values) = match decision {
            Decision::Block(block) => {
                let iterations = block.checked_mul(plan.block);
                if iterations.is_none_or(|more| more.checked_add(start.iterations).is_none()) {
                    return Err(unknown_change("beyond all iterations"));
                }
                (WantedPosition::Border { first_block: block }, values)
            }
            Decision::Token { source, index } => {
                check_source(&self.loaded, source)?;
                // That it comes in time has been decided.
                let block = u64::MAX >> 2;
                let position = WantedPosition::Token {
                    source,
                    index,
                    block,
                };
                (position, values)
            }
            Decision::TooLate => {
                let first_block = grants.granted();
                (WantedPosition::Border { first_block }, Values::new())
            }
        };

        // Here, so that the worker need not make them. What an op refuses the conductor has refused.
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = prepare_kernels(&self.loaded, numbers.clone(), &values);
        numbers.extend(values.iter().cloned());
        drop(numbers);

        let decided = queue.publish(position, &values, grants);
        match decision == Decision::TooLate || decided == decision {
            true => Ok(()),
            false => Err(unknown_change("of a block that has begun here")),
        }
    }

    /// Where a worker stands, if it is where it was at the last look, and waits for nobody there.
    fn standing(&self, reported: &mut Reported, periods: u64) -> Option<Standing> {
        let status = &self.memory.statuses[reported.calendar];
        let pc = status.pc.load(Ordering::Relaxed);
        let thread = status.thread.load(Ordering::Acquire);
        let seen_before = std::mem::replace(&mut reported.seen_at, (periods, pc));
        let has_left = status.has_left.load(Ordering::Acquire) != 0;
        if seen_before != (periods, pc) || thread == 0 || has_left {
            return None;
        }

        let plan = &self.loaded.program.plans[self.spec.plan];
        let calendar = &plan.calendars[reported.calendar];
        let steps = &mut reported.steps;
        let steps =
            steps.get_or_insert_with(|| step_table(&self.loaded, plan, calendar, &self.memory));
        if steps.step_at(pc).may_wait {
            return None;
        }
        let thread = system::thread_state(std::process::id(), thread)?;
        Some(Standing { pc, thread })
    }

    /// The tokens that a calendar's device keeps, in an area.
    fn tokens(&self, calendar: usize, area: Area) -> message::SavedTokens {
        let plan = &self.loaded.program.plans[self.spec.plan];
        let device = plan.calendars[calendar].device;
        border::read_kept(&self.memory, &self.loaded.program.graph, plan, device, area)
    }
}

fn unknown_change(which: &str) -> String {
    format!("a change of live parameters {which}: both hosts must run the same bundle and zbmd")
}

/// Whether values are those of the bundle's live parameters.
fn check_values(loaded: &LoadedProgram, values: &Values) -> Result<(), String> {
    let parameters = &loaded.live.parameters;
    let fits = |(index, numbers): &(u32, Vec<f64>)| {
        let parameter = parameters.get(*index as usize);
        parameter.is_some_and(|parameter| parameter.initial.len() == numbers.len())
    };
    match values.iter().all(fits) {
        true => Ok(()),
        false => Err(unknown_change("that the bundle does not have")),
    }
}

/// Whether an actor is one of the bundle's sources.
fn check_source(loaded: &LoadedProgram, source: ActorId) -> Result<(), String> {
    let mut sources = loaded.program.graph.sources();
    match sources.any(|(id, _)| id == source) {
        true => Ok(()),
        false => Err(unknown_change("at a source that the bundle does not have")),
    }
}

/// Whether live parameters begin as they can in this bundle.
fn check_live(loaded: &LoadedProgram, live: Option<&LiveStart>) -> Result<(), String> {
    let live = match (live, loaded.live.parameters.is_empty()) {
        (None, true) => return Ok(()),
        (Some(live), false) => live,
        (live, _) => {
            let (found, expected) = match live {
                Some(_) => ("with", "without"),
                None => ("without", "with"),
            };
            return Err(format!(
                "an epoch {found} live parameters of a bundle {expected} them: both hosts must run the same bundle and zbmd"
            ));
        }
    };
    for (source, _) in &live.consumed {
        check_source(loaded, *source)?;
    }
    for change in &live.changes {
        check_values(loaded, &change.values)?;
        if let ChangePosition::Token { source, .. } = change.position {
            check_source(loaded, source)?;
        }
    }
    Ok(())
}

/// Whether an epoch is one of the plan's: a conductor of another version, or of another bundle, says something else.
fn check_spec(
    loaded: &LoadedProgram,
    plan: &Plan,
    spec: &EpochSpec,
    start: &[Vec<u8>],
) -> Result<(), String> {
    let program = &loaded.program;
    let compare = |what: &str, found: usize, expected: usize| match found == expected {
        true => Ok(()),
        false => Err(format!(
            "an epoch with {found} {what}, the bundle has {expected}: both hosts must run the same bundle"
        )),
    };

    compare("devices", spec.devices.len(), plan.calendars.len())?;
    compare("sinks", spec.sinks.len(), program.graph.sinks().count())?;
    compare("channels", start.len(), program.graph.channels.len())?;
    for (channel, tokens) in program.graph.channels.iter().zip(start) {
        let bytes = channel.history() * channel.token.bytes();
        compare("bytes of a channel", tokens.len(), bytes as usize)?;
    }

    let mut sinks = program.graph.sinks().zip(&spec.sinks);
    let is_known = |device: &zbmd_ir::DeviceId| program.machine.devices.get(*device).is_some();
    let are_tokens =
        sinks.all(|((_, actor), sink)| sink.token_bytes == actor.inputs[0].token.bytes());
    check_live(loaded, spec.live.as_ref())?;
    let has_saves = spec
        .saves
        .is_none_or(|saves| saves.every > 0 && saves.areas < 64);

    let is_unrecorded = spec.trace.is_none();
    if spec.devices.iter().all(is_known) && are_tokens && is_unrecorded && has_saves {
        return Ok(());
    }
    Err(
        "an epoch that no conductor of this version asks for: both hosts must run the same zbmd"
            .to_owned(),
    )
}
