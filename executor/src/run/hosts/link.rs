//! The conductor's connection to one agent: a thread that reads what it reports, and one that tells it what it must know.
//! The supervising thread waits for neither.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zbmd_ir::{ChannelId, DeviceId, Plan};
use zbmd_wire::beat::BeatSender;
use zbmd_wire::connection::SharedConnection;

use super::heartbeats::{BeatPeer, Heartbeats, Silence};
use super::message::{self, Order, Report, SavedTokens, WorkerNumber};
use crate::options::Hosts;
use crate::program::LoadedProgram;
use crate::run::event::WorkerEvent;
use crate::run::inbox::EventSender;
use crate::supervise::Thread;
use crate::transport::admission::AdmissionGate;
use crate::transport::clock::Clock;
use crate::transport::epoch::{Area, EpochMemory};
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::epoch_state::WorkerStatus;
use crate::transport::primitive::Ordering as WordOrdering;
use crate::transport::ring::Spin;
use crate::transport::session_memory::SessionMemory;
use crate::transport::trace_ring::TraceCopier;
use crate::worker::border;
use crate::worker::host::admission_gate;
use crate::worker::job::HostOptions;

/// How often the agent of a running epoch is told what has changed.
const TICK: Duration = Duration::from_millis(1);
/// The same between epochs.
const IDLE_TICK: Duration = Duration::from_millis(20);
/// How often its clock is asked for, where workers record what they do.
const CLOCK_PAUSE: Duration = Duration::from_millis(50);
/// Clocks of two computers drift apart by a nanosecond in so many: 50 parts in a million.
const DRIFT: u64 = 20_000;
/// The first heartbeat of an agent comes within this time.
const FIRST_BEAT_LIMIT: Duration = Duration::from_secs(2);
/// Blocks that are admitted ahead of the host's workers, in batches and at least.
const BATCHES_AHEAD: u64 = 4;
const BLOCKS_AHEAD: u64 = 16;

/// The worker of an agent that runs a calendar.
#[derive(Clone, Copy)]
pub(super) struct RemotePart {
    pub calendar: usize,
    pub device: DeviceId,
    pub generation: u32,
}

/// The epoch that an agent takes part in, as the conductor has it.
pub(super) struct LinkEpoch {
    pub loaded: Arc<LoadedProgram>,
    pub spec: Arc<EpochSpec>,
    pub memory: Arc<EpochMemory>,
    pub session_memory: Arc<SessionMemory>,
    pub parts: Vec<RemotePart>,
    /// By calendar, what records again what the workers of the host have recorded; none if nothing is recorded.
    pub copiers: BTreeMap<usize, Mutex<TraceCopier>>,
}

impl LinkEpoch {
    fn plan(&self) -> &Plan {
        &self.loaded.program.plans[self.spec.plan]
    }

    fn gate(&self) -> AdmissionGate {
        admission_gate(&self.loaded, &self.spec, &self.session_memory)
    }
}

/// What the supervising thread has an agent do.
enum Command {
    Begin(Box<Order>, Arc<LinkEpoch>),
    /// Something that is of no epoch.
    Order(Order),
}

/// Which host an agent is on.
pub(super) struct LinkHost {
    pub host: usize,
    /// Those of the host.
    pub devices: Vec<DeviceId>,
    /// Where its agent listens.
    pub address: SocketAddr,
    /// The number of the bundle that it has loaded.
    pub bundle: u64,
}

/// The conductor's end of a connection to an agent.
pub(crate) struct HostLink {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    /// Ends with the connection.
    _heartbeats: Heartbeats,
}

struct Shared {
    host: usize,
    devices: Vec<DeviceId>,
    connection: SharedConnection,
    present: Mutex<Option<Arc<LinkEpoch>>>,
    /// Of the last epochs, the workers of this host: their ends may come late.
    parts: Mutex<BTreeMap<u64, Vec<RemotePart>>>,
    /// By calendar, threads of workers that stand: what has been reported since it was taken last.
    threads: Mutex<BTreeMap<usize, Thread>>,
    /// The agent's clock beside this one's.
    clock: Mutex<Option<ClockReading>>,
    loaded: Mutex<LoadedBundle>,
    is_gone: AtomicBool,
    /// It was closed because nothing was heard.
    silence: Silence,
}

/// Which bundle an agent was told to load last, by its number, and what it has said of it. One that it could not load is forgotten once
/// that is known: it may be told again.
struct LoadedBundle {
    told: Option<u64>,
    outcome: Option<Result<(), String>>,
}

/// Epochs whose workers' ends may still come.
const REMEMBERED_EPOCHS: usize = 16;

impl HostLink {
    /// Takes over a connection over which the agent of this host has said that it has loaded the bundle, and waits until
    /// its heartbeats are heard.
    ///
    /// # Errors
    /// What the system says, or that no heartbeat comes.
    pub(super) fn start(
        LinkHost {
            host,
            devices,
            address,
            bundle,
        }: LinkHost,
        connection: SharedConnection,
        session: u128,
        (hosts, options): (&Hosts, HostOptions),
        events: EventSender<WorkerEvent>,
    ) -> Result<Self, String> {
        let text = |error: io::Error| format!("{address}: {error}");
        let lease = hosts.lease;
        // Heartbeats say when to wait no longer.
        connection.set_limit(Duration::MAX);
        let shared = Arc::new(Shared {
            host,
            devices,
            connection,
            present: Mutex::new(None),
            parts: Mutex::default(),
            threads: Mutex::default(),
            clock: Mutex::default(),
            loaded: Mutex::new(LoadedBundle {
                told: Some(bundle),
                outcome: Some(Ok(())),
            }),
            is_gone: AtomicBool::new(false),
            silence: Silence::default(),
        });
        let heartbeats = hear_agent(&shared, address, session, hosts).map_err(text)?;
        if !heartbeats.wait_for_first(FIRST_BEAT_LIMIT) {
            shared.close();
            return Err(format!(
                "no heartbeat comes from {address} over UDP: let the hosts reach each other at this port by UDP as by TCP"
            ));
        }

        let (commands, receiver) = mpsc::channel();
        let writer = Arc::clone(&shared);
        std::thread::Builder::new()
            .name(format!("zbmd to host {host}"))
            .spawn(move || {
                options.enter_as_supervisor();
                if tell(&writer, &receiver).is_err() {
                    writer.close();
                }
            })
            .map_err(text)?;
        let reader = Arc::clone(&shared);
        std::thread::Builder::new()
            .name(format!("zbmd from host {host}"))
            .spawn(move || {
                options.enter_as_supervisor();
                let error = hear(&reader, &events);
                reader.close();
                events.send(WorkerEvent::HostGone {
                    host: reader.host,
                    why: match reader.silence.is_set() {
                        true => format!("it has been silent for {} ms", lease.as_millis()),
                        false => loss_text(&error),
                    },
                });
            })
            .map_err(text)?;
        Ok(Self {
            commands,
            shared,
            _heartbeats: heartbeats,
        })
    }

    /// Where the agent finds what listens at a port of this host.
    pub(super) fn own_address(&self, listening: SocketAddr) -> SocketAddr {
        let own = self.shared.connection.local_addr();
        own.map_or(listening, |own| SocketAddr::new(own.ip(), listening.port()))
    }

    /// Whether the agent is there.
    pub(super) fn is_there(&self) -> bool {
        !self.shared.is_gone.load(Ordering::Acquire)
    }

    /// What the system says of a worker's thread, if that has been reported since this was called last: what is older says
    /// nothing of now.
    pub(super) fn take_thread(&self, calendar: usize) -> Option<Thread> {
        self.shared.threads().remove(&calendar)
    }

    /// What has come of the loading of a bundle, once the agent has said it. It is told to load the bundle, by this order, if it was
    /// not.
    pub(super) fn load(
        &self,
        bundle: u64,
        order: impl FnOnce() -> Order,
    ) -> Option<Result<(), String>> {
        let mut loaded = self.shared.loaded();
        if loaded.told != Some(bundle) {
            loaded.told = Some(bundle);
            loaded.outcome = None;
            self.send(order());
        }
        let outcome = loaded.outcome.clone();
        if matches!(outcome, Some(Err(_))) {
            loaded.told = None;
        }
        outcome
    }

    /// Has the agent do something that is of no epoch.
    pub(super) fn send(&self, order: Order) {
        // An agent that is gone has been reported.
        let _ = self.commands.send(Command::Order(order));
    }

    /// Lets the agent begin its part of an epoch.
    pub(super) fn begin(&self, order: Order, epoch: LinkEpoch) {
        let command = Command::Begin(Box::new(order), Arc::new(epoch));
        // An agent that is gone has been reported.
        let _ = self.commands.send(command);
    }
}

/// Begins to hear an agent, and to be heard by it; one that becomes silent is closed.
fn hear_agent(
    shared: &Arc<Shared>,
    address: SocketAddr,
    session: u128,
    hosts: &Hosts,
) -> io::Result<Heartbeats> {
    let bind_ip = match address.is_ipv6() {
        true => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        false => IpAddr::from(Ipv4Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((bind_ip, 0))?;
    let shared = Arc::clone(shared);
    let agent = BeatPeer {
        session,
        address: Some(address),
        patience: FIRST_BEAT_LIMIT * 2,
        on_silent: Box::new(move || {
            shared.silence.set();
            shared.close();
        }),
    };
    let token = hosts.credentials.token.clone();
    Heartbeats::start(socket, token, BeatSender::Conductor, hosts.lease, agent)
}

impl Drop for HostLink {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Shared {
    /// Nothing that the agent says counts from here on.
    fn close(&self) {
        self.is_gone.store(true, Ordering::Release);
        self.connection.shutdown();
    }

    fn present(&self) -> Option<Arc<LinkEpoch>> {
        let present = self.present.lock();
        present.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The worker of an epoch that had a calendar; none if it is forgotten.
    fn part_of(&self, epoch: u64, calendar: u32) -> Option<RemotePart> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut epoch_parts = parts.get(&epoch)?.iter();
        epoch_parts
            .find(|part| part.calendar == calendar as usize)
            .copied()
    }

    /// Whether a worker is one of the host's.
    fn check_worker(&self, worker: WorkerNumber) -> io::Result<()> {
        match self.devices.contains(&worker.device) {
            true => Ok(()),
            false => Err(nonsense(&format!(
                "a worker of device {}, which is not its own",
                worker.device.0
            ))),
        }
    }

    fn loaded(&self) -> MutexGuard<'_, LoadedBundle> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn threads(&self) -> MutexGuard<'_, BTreeMap<usize, Thread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, epoch: Arc<LinkEpoch>) {
        self.threads().clear();
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert(epoch.spec.epoch, epoch.parts.clone());
        while parts.len() > REMEMBERED_EPOCHS {
            parts.pop_first();
        }
        drop(parts);
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        *present = Some(epoch);
    }
}

fn loss_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "its agent has ended the connection".to_owned()
        }
        _ => error.to_string(),
    }
}

// What the agent is told.

/// What the agent of an epoch has been told.
struct Told {
    epoch: Arc<LinkEpoch>,
    gate: AdmissionGate,
    admitted: u64,
    is_final: bool,
    changes: u64,
    committed: u64,
    is_stopped: bool,
}

impl Told {
    fn new(epoch: Arc<LinkEpoch>) -> Self {
        Self {
            gate: epoch.gate(),
            epoch,
            admitted: 0,
            is_final: false,
            changes: 0,
            committed: 0,
            is_stopped: false,
        }
    }

    /// Tells the agent what has changed.
    fn tell(&mut self, connection: &SharedConnection) -> io::Result<()> {
        let epoch = self.epoch.spec.epoch;
        let common = &self.epoch.memory.common;
        if common.stop.is_set() {
            self.is_stopped = true;
            return message::send(connection, &Order::Stop { epoch });
        }
        if !self.is_final && self.admit() {
            self.tell_changes(connection)?;
            let order = Order::Admit {
                epoch,
                blocks: self.admitted,
                is_final: self.is_final,
            };
            message::send(connection, &order)?;
        }
        let border = self.epoch.memory.common.committed.border();
        if border > self.committed {
            self.committed = border;
            message::send(connection, &Order::Commit { epoch, border })?;
        }
        Ok(())
    }

    /// Tells the agent of the changes of live parameters up to now, as a worker takes them that has just been granted blocks: those
    /// that come later change none of these.
    fn tell_changes(&mut self, connection: &SharedConnection) -> io::Result<()> {
        let memory = &self.epoch.memory;
        let Some(queue) = &memory.changes else {
            return Ok(());
        };
        let mut changes = Vec::new();
        queue.take(
            &mut self.changes,
            &memory.common.grants,
            |decision, values| changes.push((decision, values)),
        );
        for (decision, values) in changes {
            let order = Order::Change {
                epoch: self.epoch.spec.epoch,
                decision,
                values,
            };
            message::send(connection, &order)?;
        }
        Ok(())
    }

    /// Decides about the blocks that the host's workers need next; whether something has been decided. It does not run
    /// far ahead of them, so that a stop takes effect soon.
    fn admit(&mut self) -> bool {
        let memory = &self.epoch.memory;
        let parts = self.epoch.parts.iter();
        let periods = parts.map(|part| {
            let status = &memory.statuses[part.calendar];
            status.periods.load(WordOrdering::Acquire)
        });
        let window = (BATCHES_AHEAD * self.gate.batch).max(BLOCKS_AHEAD);
        let until = periods.max().unwrap_or(0) + window;

        let before = self.admitted;
        while self.admitted < until && !self.is_final {
            match self.gate.look(self.admitted, &memory.common.grants) {
                Some(true) => self.admitted = self.gate.admitted.max(self.admitted + 1),
                Some(false) => self.is_final = true,
                None => break,
            }
        }
        self.admitted > before || self.is_final
    }
}

/// Tells the agent what changes, until it is gone or not needed any more.
fn tell(shared: &Shared, commands: &Receiver<Command>) -> io::Result<()> {
    let mut told: Option<Told> = None;
    let mut asked = Instant::now();
    while !shared.is_gone.load(Ordering::Acquire) {
        let tick = match told.as_ref().is_some_and(|told| !told.is_stopped) {
            true => TICK,
            false => IDLE_TICK,
        };
        match commands.recv_timeout(tick) {
            Ok(Command::Begin(order, epoch)) => {
                // Before the agent hears of it: it may answer at once.
                shared.enter(Arc::clone(&epoch));
                ask_for_time(shared, &epoch)?;
                message::send(&shared.connection, &*order)?;
                told = Some(Told::new(epoch));
            }
            Ok(Command::Order(order)) => message::send(&shared.connection, &order)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        if let Some(told) = told.as_mut().filter(|told| !told.is_stopped) {
            told.tell(&shared.connection)?;
            if asked.elapsed() > CLOCK_PAUSE {
                asked = Instant::now();
                ask_for_time(shared, &told.epoch)?;
            }
        }
    }
    Ok(())
}

/// Asks the agent for its time, if that matters: where workers record what they do.
fn ask_for_time(shared: &Shared, epoch: &LinkEpoch) -> io::Result<()> {
    if epoch.copiers.is_empty() {
        return Ok(());
    }
    let here_ns = Clock.now_ns();
    message::send(&shared.connection, &Order::Clock { here_ns })
}

// What the agent reports.

/// Hears what the agent reports, until it is gone.
fn hear(shared: &Shared, events: &EventSender<WorkerEvent>) -> io::Error {
    loop {
        let report = match message::receive::<Report>(&shared.connection) {
            Ok(report) => report,
            Err(error) => return error,
        };

        let taken_in = match report {
            Report::Ready { worker, port } => shared.check_worker(worker).map(|()| {
                events.send(WorkerEvent::Ready {
                    device: worker.device,
                    generation: worker.generation,
                    port,
                });
            }),
            Report::Gone { worker, exit } => shared.check_worker(worker).map(|()| {
                events.send(WorkerEvent::Gone {
                    device: worker.device,
                    generation: worker.generation,
                    exit,
                });
            }),
            Report::Loaded { bundle, outcome } => {
                let mut loaded = shared.loaded();
                if loaded.told == Some(bundle) {
                    loaded.outcome = Some(outcome);
                }
                Ok(())
            }
            report => match shared.present() {
                Some(present) => take_in(shared, &present, report, events),
                None => Ok(()),
            },
        };
        if let Err(error) = taken_in {
            return error;
        }
    }
}

/// What a report changes. One of another epoch changes nothing.
fn take_in(
    shared: &Shared,
    present: &LinkEpoch,
    report: Report,
    events: &EventSender<WorkerEvent>,
) -> io::Result<()> {
    let is_present = |epoch: u64| epoch == present.spec.epoch;
    match report {
        Report::Has { .. } | Report::Lacks { .. } | Report::Opened | Report::Unfit { .. } => Ok(()),
        // Of no epoch.
        Report::Ready { .. } | Report::Gone { .. } | Report::Loaded { .. } => Ok(()),
        Report::Clock { asked_ns, there_ns } => {
            let read = ClockReading::new(asked_ns, there_ns, Clock.now_ns());
            let mut clock = shared.clock.lock().unwrap_or_else(PoisonError::into_inner);
            *clock = Some(clock.map_or(read, |known| known.or_better(read)));
            Ok(())
        }
        Report::Recorded {
            epoch,
            calendar,
            words,
            dropped,
        } if is_present(epoch) => {
            let part = part_of(present, calendar)?;
            let clock = *shared.clock.lock().unwrap_or_else(PoisonError::into_inner);
            let behind_ns = clock.map_or(0, |clock| clock.behind_ns);
            if let Some(copier) = present.copiers.get(&part.calendar) {
                let mut copier = copier.lock().unwrap_or_else(PoisonError::into_inner);
                copier.copy(&words, behind_ns, dropped);
            }
            Ok(())
        }
        Report::Saved {
            epoch,
            border,
            tokens,
        } if is_present(epoch) => keep_border(present, border, &tokens),
        Report::Progress {
            epoch,
            calendar,
            periods,
            changes_taken,
            standing,
        } if is_present(epoch) => {
            let part = part_of(present, calendar)?;
            if let Some(standing) = standing {
                shared.threads().insert(part.calendar, standing.thread);
            }
            let pc = standing.map_or(WorkerStatus::BETWEEN_PERIODS, |standing| standing.pc);
            note_progress(present, part.calendar, pc, periods, changes_taken);
            Ok(())
        }
        Report::Ended {
            epoch,
            calendar,
            end,
            tokens,
        } => {
            let Some(part) = shared.part_of(epoch, calendar) else {
                return Ok(());
            };
            if is_present(epoch) {
                put(present, Area::End, &tokens)?;
            }
            events.send(WorkerEvent::Ended {
                device: part.device,
                generation: part.generation,
                epoch,
                calendar: part.calendar,
                end,
            });
            Ok(())
        }
        Report::Saved { .. } | Report::Progress { .. } | Report::Recorded { .. } => Ok(()),
    }
}

/// Keeps what a worker has saved of a border.
fn keep_border(present: &LinkEpoch, border: u64, tokens: &SavedTokens) -> io::Result<()> {
    let borders = present.memory.borders();
    if !borders.is_some_and(|borders| borders.is_saved(border)) {
        return Err(nonsense(&format!(
            "tokens of border {border}, which is not saved"
        )));
    }
    let stop = &present.memory.common.stop;
    match border::wait_for_area(&present.memory, border, Spin::SHORT, stop) {
        Ok(()) => put(present, Area::Border(border), tokens),
        // Fenced: nothing of it counts.
        Err(_) => Ok(()),
    }
}

/// Notes how far a worker is, as a worker of this host does itself.
fn note_progress(present: &LinkEpoch, calendar: usize, pc: u32, periods: u64, changes_taken: u64) {
    let status = &present.memory.statuses[calendar];
    status.pc.store(pc, WordOrdering::Relaxed);
    // It has no thread here: any number says that it has begun.
    status.thread.store(1, WordOrdering::Release);
    status
        .changes_taken
        .store(changes_taken, WordOrdering::Release);
    status.periods.store(periods, WordOrdering::Release);
    if present.memory.borders().is_some() {
        border::commit_border(&present.memory, &present.gate());
    }
}

/// An agent's clock beside this one's, from one question and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockReading {
    /// To be added to its times.
    behind_ns: i64,
    /// Half of the time that the answer took: it is wrong by no more.
    error_ns: u64,
    /// When it was.
    at_ns: u64,
}

impl ClockReading {
    fn new(asked_ns: u64, there_ns: u64, answered_ns: u64) -> Self {
        let error_ns = answered_ns.saturating_sub(asked_ns) / 2;
        Self {
            behind_ns: (asked_ns + error_ns).wrapping_sub(there_ns).cast_signed(),
            error_ns,
            at_ns: answered_ns,
        }
    }

    /// The one of the two that is less wrong by now: clocks drift apart.
    fn or_better(self, newer: Self) -> Self {
        let drift_ns = newer.at_ns.saturating_sub(self.at_ns) / DRIFT;
        match newer.error_ns <= self.error_ns + drift_ns {
            true => newer,
            false => self,
        }
    }
}

fn part_of(present: &LinkEpoch, calendar: u32) -> io::Result<RemotePart> {
    let mut parts = present.parts.iter();
    let part = parts.find(|part| part.calendar == calendar as usize);
    part.copied()
        .ok_or_else(|| nonsense(&format!("calendar {calendar}, which is not its own")))
}

fn nonsense(what: &str) -> io::Error {
    io::Error::other(format!(
        "its agent reports {what}: both hosts must run the same zbmd"
    ))
}

/// Puts tokens of the agent's channels into an area.
fn put(present: &LinkEpoch, area: Area, tokens: &SavedTokens) -> io::Result<()> {
    let plan = present.plan();
    let keepers = &present.loaded.facts(present.spec.plan).keepers;
    for (channel, bytes) in tokens {
        let id = ChannelId(*channel);
        let is_its_own = keepers.iter().any(|buffer| {
            let buffer = &plan.buffers[*buffer];
            let mut parts = present.parts.iter();
            buffer.channel == id
                && parts.any(|part| plan.calendars[part.calendar].device == buffer.device)
        });
        if !is_its_own {
            return Err(nonsense(&format!(
                "channel {channel}, which is not its own"
            )));
        }
        border::write_channel(&present.memory, area, id, bytes).map_err(|expected| {
            let found = bytes.len();
            nonsense(&format!(
                "{found} bytes of channel {channel}, which has {expected}"
            ))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_readings_of_a_clock_the_less_wrong_one_counts() {
        // Asked at 1,000, answered at 1,400 with a clock that is 5,000 ahead.
        let first = ClockReading::new(1_000, 6_200, 1_400);
        assert_eq!((first.behind_ns, first.error_ns), (-5_000, 200));
        let worse = ClockReading::new(2_000, 7_900, 3_000);
        assert_eq!(first.or_better(worse), first);
        let better = ClockReading::new(4_000, 9_010, 4_020);
        assert_eq!(first.or_better(better), better);
        assert_eq!(better.behind_ns, -5_000);
        // A second later the first one may be wrong by another 50 us.
        let later = ClockReading::new(1_000_000_000, 1_000_005_000, 1_000_060_000);
        assert_eq!(first.or_better(later), later);
    }
}
