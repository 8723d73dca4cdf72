//! What an agent has of an epoch: its memory, what the conductor is told of its workers, and changes of live parameters. What the
//! conductor says of an epoch is checked before anything is made of it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zbmd_ir::{ActorId, ChangePosition, Plan};

use super::message::{Report, SavedTokens, Standing};
use crate::live_program::NumbersByParameter;
use crate::program::LoadedProgram;
use crate::run::parameters::prepare_kernels;
use crate::run::system;
use crate::supervise::Os;
use crate::transport::change_queue::{Decision, Values, WantedPosition};
use crate::transport::epoch::{Area, EpochMemory};
use crate::transport::epoch_spec::{EpochSpec, LiveStart};
use crate::transport::epoch_state::WorkerStatus;
use crate::transport::primitive::Ordering;
use crate::transport::session_memory::{Queues, SessionMemory};
use crate::transport::trace_ring::{Ticks, TraceRing};
use crate::worker::border;

/// The queues of what stands for a session's memory on an agent's host: one, whose tokens are the blocks that the conductor has
/// admitted.
pub(crate) fn agent_queues() -> Queues {
    vec![(0, 1)]
}

/// A worker that waits for others is asked about after so many looks at least, as a signal may have stopped its process; and after
/// as many as to ask about every other worker at most in one look.
const MIN_LOOKS_PER_STOP: u64 = 16;
/// What a thread that runs has had of a core is known at the next look, however late that is: it is asked about when it has stood
/// so much longer, as a part of the time before.
const RUNNING_LOOKS_PART: u64 = 8;
/// No epoch has as many blocks.
const LAST_BLOCK: u64 = u64::MAX >> 2;

/// What an agent has of an epoch.
pub(super) struct AgentEpoch {
    pub loaded: Arc<LoadedProgram>,
    pub spec: Arc<EpochSpec>,
    pub memory: Arc<EpochMemory>,
    /// With [`agent_queues`].
    pub session_memory: Arc<SessionMemory>,
    /// Values of live parameters with all changes so far.
    numbers: Mutex<NumbersByParameter>,
    /// Those of this host, and what the conductor knows of each.
    calendars: Mutex<Vec<Reported>>,
    /// The agent's own, which the workers of threads are in.
    own_process: u32,
    looks_per_stop: u64,
}

/// A calendar of this host, and what the conductor knows of its worker.
struct Reported {
    calendar: usize,
    /// What its worker records into, if it does.
    trace: Option<TraceRing>,
    periods: Option<u64>,
    changes_taken: u64,
    border: u64,
    /// Where the worker was at the last look: its period and instruction.
    seen_at: (u64, u32),
    /// It has been seen there in so many looks.
    looks: u64,
    /// So many of them have passed when the system is asked about its thread.
    next_ask: u64,
    /// What the conductor has been told of it, if it stands.
    standing: Option<Standing>,
    /// Which of its worker's instructions wait for others; none before it is ready.
    waits: Vec<bool>,
    /// The process that its worker's thread is in.
    process: u32,
}

impl AgentEpoch {
    /// This host's memory of an epoch that has been checked.
    pub(super) fn create(
        loaded: &Arc<LoadedProgram>,
        spec: EpochSpec,
        start: Vec<Vec<u8>>,
        calendars: &[u32],
    ) -> Result<Self, String> {
        let plan = &loaded.program.plans[spec.plan];
        let memory = EpochMemory::create(&loaded.program.graph, plan, &spec, None);
        let memory = memory.map_err(|error| error.to_string())?;
        border::write_start(&memory, &start.into_iter().collect());
        let decisions = SessionMemory::create(&agent_queues());
        let decisions = decisions.map_err(|error| error.to_string())?;
        decisions.arrivals.open(spec.epoch);
        let changes = spec.live.iter().flat_map(|live| &live.changes);
        let numbers = changes.flat_map(|change| change.values.iter().cloned());
        let numbers: NumbersByParameter = numbers.collect();

        let memory = Arc::new(memory);
        let own_process = std::process::id();
        let reported = calendars.iter().map(|calendar| Reported {
            calendar: *calendar as usize,
            trace: memory.rings_of_trace().nth(*calendar as usize),
            periods: None,
            changes_taken: 0,
            border: 0,
            seen_at: (0, WorkerStatus::BETWEEN_PERIODS),
            looks: 0,
            next_ask: 0,
            standing: None,
            waits: Vec::new(),
            process: own_process,
        });
        let workers = calendars.len() as u64;
        Ok(Self {
            loaded: Arc::clone(loaded),
            spec: Arc::new(spec),
            session_memory: Arc::new(decisions),
            numbers: Mutex::new(numbers),
            calendars: Mutex::new(reported.collect()),
            own_process,
            looks_per_stop: MIN_LOOKS_PER_STOP.max(2 * workers),
            memory: Arc::clone(&memory),
        })
    }

    /// Lets live parameters change where the conductor has decided, before a block is admitted that may know of it.
    pub(super) fn change(&self, decision: Decision, values: Values) -> Result<(), String> {
        let (Some(queue), Some(start)) = (&self.memory.changes, &self.spec.live) else {
            return Err(unknown_change("of a bundle without live parameters"));
        };
        check_values(&self.loaded, &values)?;
        let grants = &self.memory.common.grants;
        let plan = &self.loaded.program.plans[self.spec.plan];
        let (position, values) = match decision {
            Decision::Block(block) => {
                let more = block.checked_mul(plan.block);
                let iterations = more.and_then(|more| more.checked_add(start.iterations));
                if block > LAST_BLOCK || iterations.is_none() {
                    return Err(unknown_change("beyond all iterations"));
                }
                (WantedPosition::Border { first_block: block }, values)
            }
            Decision::Token { source, index } => {
                check_source(&self.loaded, source)?;
                let position = WantedPosition::Token {
                    source,
                    index,
                    // That it comes in time has been decided.
                    block: LAST_BLOCK,
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

    fn calendars(&self) -> MutexGuard<'_, Vec<Reported>> {
        self.calendars
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what has changed since it was asked last. Called by one thread.
    ///
    /// # Errors
    /// What `tell` says, which is not asked again then.
    pub(super) fn tell_news(
        &self,
        mut tell: impl FnMut(Report) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut calendars = self.calendars();
        calendars
            .iter_mut()
            .try_for_each(|reported| self.tell_of(reported, &mut tell))
    }

    /// The worker of a calendar is ready: by instruction, whether it waits there for others.
    pub(super) fn set_waits(&self, calendar: usize, waits: Vec<bool>) {
        let mut calendars = self.calendars();
        let mut own_calendars = calendars.iter_mut();
        if let Some(reported) = own_calendars.find(|reported| reported.calendar == calendar) {
            reported.waits = waits;
        }
    }

    /// The worker of a calendar is in this process.
    pub(super) fn set_process(&self, calendar: usize, process: u32) {
        let mut calendars = self.calendars();
        let mut own_calendars = calendars.iter_mut();
        if let Some(reported) = own_calendars.find(|reported| reported.calendar == calendar) {
            reported.process = process;
        }
    }

    /// Says what the worker of a calendar has recorded since that was told last.
    ///
    /// # Errors
    /// What `tell` says.
    pub(super) fn tell_recorded(
        &self,
        calendar: usize,
        mut tell: impl FnMut(Report) -> io::Result<()>,
    ) -> io::Result<()> {
        let calendars = self.calendars();
        let mut own_calendars = calendars.iter();
        let reported = own_calendars.find(|reported| reported.calendar == calendar);
        reported.map_or(Ok(()), |reported| {
            self.tell_recorded_of(reported, &mut tell)
        })
    }

    fn tell_recorded_of(
        &self,
        reported: &Reported,
        tell: &mut impl FnMut(Report) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(ring) = &reported.trace else {
            return Ok(());
        };
        let words = ring.take_words();
        if words.is_empty() {
            return Ok(());
        }
        tell(Report::Recorded {
            epoch: self.spec.epoch,
            calendar: reported.calendar as u32,
            words,
            dropped: ring.dropped(),
        })
    }

    /// Says how far a worker is, and before that what it has recorded and saved on the way.
    fn tell_of(
        &self,
        reported: &mut Reported,
        tell: &mut impl FnMut(Report) -> io::Result<()>,
    ) -> io::Result<()> {
        self.tell_recorded_of(reported, tell)?;
        let status = &self.memory.statuses[reported.calendar];
        let periods = status.periods.load(Ordering::Acquire);
        let changes_taken = status.changes_taken.load(Ordering::Acquire);
        let stands_elsewhere = self.look_at(reported, periods);
        let is_told = reported.periods == Some(periods) && reported.changes_taken == changes_taken;
        if is_told && !stands_elsewhere {
            return Ok(());
        }

        if let Some(borders) = self.memory.borders() {
            // Areas of borders that are not committed are not written again: each is there to be read.
            while reported.border + borders.every() <= borders.passed(periods) {
                reported.border += borders.every();
                tell(Report::Saved {
                    epoch: self.spec.epoch,
                    border: reported.border,
                    tokens: self.tokens(reported.calendar, Area::Border(reported.border)),
                })?;
            }
        }
        reported.periods = Some(periods);
        reported.changes_taken = changes_taken;
        tell(Report::Progress {
            epoch: self.spec.epoch,
            calendar: reported.calendar as u32,
            periods,
            changes_taken,
            standing: reported.standing,
        })
    }

    /// Looks where a worker is. It stands if it is where it was at the last look, and waits for nobody there or was stopped by a
    /// signal. Whether there is something to tell of that.
    fn look_at(&self, reported: &mut Reported, periods: u64) -> bool {
        let status = &self.memory.statuses[reported.calendar];
        let pc = status.pc.load(Ordering::Relaxed);
        let thread = status.thread.load(Ordering::Acquire);
        // Outside of all instructions it waits for admission.
        let may_wait = reported.waits.get(pc as usize).copied().unwrap_or(true);
        let seen_before = std::mem::replace(&mut reported.seen_at, (periods, pc));
        let has_left = status.has_left.load(Ordering::Acquire) != 0;
        if seen_before != (periods, pc) || thread == 0 || has_left {
            reported.looks = 0;
            reported.next_ask = match may_wait {
                // Not all of them in one look.
                true => self.looks_per_stop + reported.calendar as u64 % self.looks_per_stop,
                false => 1,
            };
            return reported.standing.take().is_some();
        }

        reported.looks += 1;
        // Only processes are stopped without their agent.
        let cannot_hang = may_wait && reported.process == self.own_process;
        if reported.looks < reported.next_ask || cannot_hang {
            return false;
        }
        let thread = system::thread_state(reported.process, thread);
        let standing = thread.map(|thread| Standing { pc, thread });
        let standing = standing.filter(|standing| !may_wait || standing.thread.os == Os::Stopped);
        let was_standing = reported.standing.is_some();
        reported.standing = standing;

        let looks_until_next = match standing {
            Some(standing) if standing.thread.os != Os::Running => 1,
            Some(_) => (reported.looks / RUNNING_LOOKS_PART).max(1),
            None => self.looks_per_stop,
        };
        reported.next_ask = reported.looks + looks_until_next;
        was_standing || standing.is_some()
    }

    /// The tokens that a calendar's device keeps, in an area.
    pub(super) fn tokens(&self, calendar: usize, area: Area) -> SavedTokens {
        let plan = &self.loaded.program.plans[self.spec.plan];
        let device = plan.calendars[calendar].device;
        border::read_kept(&self.memory, &self.loaded, self.spec.plan, device, area)
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
pub(super) fn check_spec(
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

    // Ticks of another computer's counter say nothing here.
    let has_time = spec.trace.is_none_or(|ticks| ticks == Ticks::Clock);
    if spec.devices.iter().all(is_known) && are_tokens && has_time && has_saves {
        return Ok(());
    }
    Err(
        "an epoch that no conductor of this version asks for: both hosts must run the same zbmd"
            .to_owned(),
    )
}
