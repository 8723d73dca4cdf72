//! Workers in processes of their own: how they are started, given work, killed, and seen to be gone.
//!
//! A worker's process is this very program, started anew, with one end of a socket pair as its standard input. It maps
//! the memory that it is sent, and runs [`crate::worker::host`]: what a thread would run. Its life ends with the supervising
//! process's, by the closed socket, or by the system's signal where it could not notice.
//!
//! Its death is seen by a lock that it holds as long as it lives ([`crate::transport::life_lock`]), which the system releases
//! before it frees the memory of the process, and by the end of its socket, which comes after that. Whichever comes first ends
//! its listener ([`super::life_watch`]). The lock does not count alone: a process that dies before it takes it, or closes its
//! socket and lives on, is seen by the socket; one whose socket somebody else holds open is seen by the lock.
//!
//! Files, mappings and sockets have no names: nothing can be left behind.
//!
//! A worker may be stopped at any moment, also before it runs its program ([`crate::run::launch`]) and with its socket's
//! buffer full ([`Outbox`]). Only its listener, a thread of its own, ever waits for it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open};
use serde::{Deserialize, Serialize};
use zbmd_ir::DeviceId;
use zbmd_op::Registry;

use super::event::WorkerExit;
#[cfg(hosts)]
use super::hosts::agent_epoch::agent_queues;
#[cfg(hosts)]
use super::hosts::network_terms::NetworkTerms;
use super::launch::Lifetime;
use super::life_watch::LifeWatch;
use super::system;
use super::wire::{self, Outbox};
use crate::fault::{FaultReport, WorkerFault, WorkerOutcome};
use crate::program::{Engine, LoadedModes, LoadedProgram};
use crate::realtime::lock_memory;
use crate::transport::arena::{Arena, In};
use crate::transport::clock::Clock;
use crate::transport::epoch::EpochMemory;
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::idle_arenas::MappedArenas;
use crate::transport::life_lock::{self, LifeLock, PlacedLock};
use crate::transport::session_memory::{Queues, SessionMemory};
use crate::transport::watchdog::{EpochWatchdogs, Watchdog, WorkerHeartbeat};
use crate::worker::gpu::OpenGpus;
use crate::worker::host;
use crate::worker::job::{HostOptions, WorkerEnd, WorkerJob};
#[cfg(hosts)]
use crate::worker::wired::{Network, Wiring, WorkerPlaces};

/// Set in the environment of a worker's process.
const MARK: &str = "ZBMD_WORKER";

/// To a worker.
#[derive(Debug, Serialize, Deserialize)]
enum WorkerRequest {
    /// Comes first, with the bundle and the session's memory.
    Open {
        queues: Queues,
        options: HostOptions,
        device: DeviceId,
        /// The lock that it holds from now on, whose memory comes with the first request.
        life_lock: Option<u32>,
        /// The network of a run over several hosts.
        #[cfg(hosts)]
        network: Option<NetworkTerms>,
    },
    /// Run a calendar of an epoch, whose memory comes with it, and a watchdog if there is one.
    Begin {
        spec: EpochSpec,
        calendar: usize,
        /// Tells the memory from that of other epochs: one that all workers have ended may have had the same.
        memory_number: u64,
        lease_ns: u64,
        /// Where the others are in a run over several hosts: then what ends waits for sockets comes before the watchdog, and
        /// on an agent's host the memory that says which blocks are admitted.
        #[cfg(hosts)]
        places: Option<WorkerPlaces>,
    },
}

/// From a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkerReply {
    /// The program is loaded; epochs can begin. Wires arrive at this port.
    Ready { port: Option<u16> },
    /// Its part of an epoch begins on an agent's host: by instruction, whether it waits there for others.
    #[cfg(hosts)]
    Began { epoch: u64, waits: Vec<bool> },
    /// Its part of an epoch is over.
    Ended {
        epoch: u64,
        calendar: usize,
        end: Box<WorkerEnd>,
    },
    /// Its process ends, for this reason.
    Leaving(WorkerExit),
}

/// The supervising process's handle of a worker's process. Nothing that it does waits for the worker.
pub(crate) struct WorkerProcess {
    outbox: Outbox,
    lifetime: Arc<Lifetime>,
}

/// Launches a worker's process, and hands its replies on. Blocks until the process is gone.
pub(crate) struct ProcessListener {
    socket: Arc<UnixStream>,
    life_lock: In<CachePadded<LifeLock>>,
    command: Command,
    lifetime: Arc<Lifetime>,
    /// It holds a GPU, whose memory is free only when the system has cleared it away.
    pub(crate) holds_gpu: bool,
}

/// How long a listener waits for the system to say how a process ended, if the process's own entry does not say it.
///
/// A process that is killed runs none of its program any more when that is seen. Until the system has cleared it away took up to
/// 600 ms on two cores with ten busy threads, as what dies waits for the processor like all others.
const REAP_PATIENCE: Duration = Duration::from_millis(10);
/// How often it looks meanwhile.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// What a listener saw last.
pub(crate) struct ProcessExit {
    pub status: io::Result<ExitStatus>,
    /// Why the supervising process ended it, if it did and said why.
    pub ended_because: Option<String>,
}

/// What a worker's process is started from.
pub(crate) struct WorkerLaunch<'a> {
    /// The bundle, as a file without a name.
    pub bundle: BorrowedFd<'a>,
    pub session_memory: &'a SessionMemory,
    pub queues: &'a Queues,
    pub options: HostOptions,
    /// The network of a run over several hosts.
    #[cfg(hosts)]
    pub network: Option<&'a NetworkTerms>,
}

/// What a worker's process is to do in an epoch.
pub(crate) struct EpochPart<'a> {
    pub spec: &'a EpochSpec,
    pub calendar: usize,
    pub epoch: &'a EpochMemory,
    pub watchdogs: &'a EpochWatchdogs,
    /// Where the others are in a run over several hosts.
    #[cfg(hosts)]
    pub places: Option<&'a WorkerPlaces>,
    /// Says on an agent's host which blocks are admitted.
    #[cfg(hosts)]
    pub decisions: Option<&'a SessionMemory>,
}

impl WorkerLaunch<'_> {
    fn open_request(&self, device: DeviceId, life_lock: Option<u32>) -> WorkerRequest {
        WorkerRequest::Open {
            queues: self.queues.clone(),
            options: self.options,
            device,
            life_lock,
            #[cfg(hosts)]
            network: self.network.cloned(),
        }
    }
}

/// A process that takes nothing of a request for so long is lost.
const REQUEST_LIMIT_NS: u64 = 2_000_000_000;

impl WorkerProcess {
    /// A process that its listener launches, with its first request on the way; it replies when it is ready.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn plan(
        program: Option<&Path>,
        launch: &WorkerLaunch<'_>,
        device: DeviceId,
        life_lock: &PlacedLock,
    ) -> io::Result<(Self, ProcessListener)> {
        let (socket, worker_socket) = UnixStream::pair()?;

        // Not the path it was started from, which may be another program by now.
        let program_path = program.map_or_else(|| PathBuf::from("/proc/self/exe"), Path::to_owned);
        let mut command = Command::new(program_path);
        command.env(MARK, std::process::id().to_string());
        command
            .stdin(OwnedFd::from(worker_socket))
            .stdout(Stdio::null());
        // An interrupt from the terminal is for the supervising process alone.
        command.process_group(0);

        let lifetime = Arc::new(Lifetime::new());
        let listener = ProcessListener {
            socket: Arc::new(socket.try_clone()?),
            life_lock: life_lock.lock.clone(),
            command,
            lifetime: Arc::clone(&lifetime),
            holds_gpu: false,
        };
        let mut outbox = Outbox::new(socket);
        if let Some(session) = launch.session_memory.arena.fd()
            && let Some((locks, number)) = life_lock.place()
        {
            let request = launch.open_request(device, Some(number));
            outbox.post(Clock.now_ns(), &request, &[launch.bundle, session, locks])?;
        }
        Ok((Self { outbox, lifetime }, listener))
    }

    /// Lets it load another bundle, and open its device; it replies when it is ready. If it is gone, the listener reports that.
    ///
    /// # Errors
    /// The request cannot be sent.
    pub(crate) fn open(&mut self, launch: &WorkerLaunch<'_>, device: DeviceId) -> io::Result<()> {
        let request = launch.open_request(device, None);
        match launch.session_memory.arena.fd() {
            Some(session) => self
                .outbox
                .post(Clock.now_ns(), &request, &[launch.bundle, session]),
            None => Ok(()),
        }
    }

    /// Lets it begin its part of an epoch. If it is gone, the listener reports that.
    ///
    /// # Errors
    /// The request cannot be sent.
    pub(crate) fn begin(&mut self, part: &EpochPart<'_>) -> io::Result<()> {
        let EpochPart {
            spec,
            calendar,
            epoch,
            watchdogs,
            ..
        } = *part;
        let request = WorkerRequest::Begin {
            spec: spec.clone(),
            calendar,
            memory_number: epoch.arena().number(),
            lease_ns: watchdogs.lease_ns,
            #[cfg(hosts)]
            places: part.places.cloned(),
        };
        let Some(memory_fd) = epoch.arena().fd() else {
            return Ok(());
        };
        let calendar_watchdog = watchdogs.watchdogs.get(calendar);
        let timer_fd = calendar_watchdog.and_then(Watchdog::fd);

        let mut passed_files = vec![memory_fd];
        #[cfg(hosts)]
        let stop_event = part.places.map(|_| epoch.stop_event()).transpose()?;
        #[cfg(hosts)]
        {
            passed_files.extend(stop_event.as_ref().map(AsFd::as_fd));
            passed_files.extend(part.decisions.and_then(|memory| memory.arena.fd()));
        }
        passed_files.extend(timer_fd);
        self.outbox.post(Clock.now_ns(), &request, &passed_files)
    }

    /// Sends what it has not taken yet; whether there is still something.
    ///
    /// # Errors
    /// It has taken nothing for too long.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let now_ns = Clock.now_ns();
        if self.outbox.stalled_ns(now_ns).is_none() {
            return Ok(false);
        }
        self.outbox.flush(now_ns)?;
        match self.outbox.stalled_ns(now_ns) {
            Some(stalled_ns) if stalled_ns > REQUEST_LIMIT_NS => Err(io::Error::other(format!(
                "it took nothing of a request for {} ms",
                stalled_ns / 1_000_000
            ))),
            stalled_ns => Ok(stalled_ns.is_some()),
        }
    }

    /// Its phase, and the means to end it.
    pub(crate) fn lifetime(&self) -> &Arc<Lifetime> {
        &self.lifetime
    }
}

impl ProcessListener {
    /// Launches the process, calls `each` for every answer until it is gone, and `gone` then. Returns when the system has cleared
    /// it away.
    pub(crate) fn listen(self, each: impl FnMut(WorkerReply), gone: impl FnOnce(ProcessExit)) {
        let (lifetime, holds_gpu) = (Arc::clone(&self.lifetime), self.holds_gpu);
        let gone = |status| {
            let ended_because = lifetime.close().filter(|why| !why.is_empty());
            gone(ProcessExit {
                status,
                ended_because,
            });
        };
        let mut child = match self.launch_and_hear(each) {
            Ok(child) => child,
            Err(error) => return gone(Err(error)),
        };

        let status = match holds_gpu {
            true => child.wait().map(Some),
            false => exit_so_far(&mut child),
        };
        gone(
            status.map(|status| {
                status.unwrap_or_else(|| ExitStatus::from_raw(Signal::KILL.as_raw()))
            }),
        );
        // Nobody else does, and its number is not another's before.
        let _ = child.wait();
    }

    /// Launches the process, which has no more to say and was killed when this returns.
    fn launch_and_hear(self, mut each: impl FnMut(WorkerReply)) -> io::Result<Child> {
        let mut child = self.lifetime.launch(self.command)?;
        let life_watch = LifeWatch::start(self.life_lock, &self.socket);
        while let Ok(Some((reply, _))) = wire::receive::<WorkerReply>(&self.socket) {
            each(reply);
        }
        // Whoever does not talk any more is of no use: it may be alive, with its end of the socket closed.
        let _ = child.kill();
        life_watch.end();
        Ok(child)
    }
}

/// How a process ended that was killed, or was ending before, if the system says so in time; see [`REAP_PATIENCE`].
fn exit_so_far(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_raw(child.id() as i32);
    let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let look_every = Timespec::try_from(LOOK_EVERY).map_err(io::Error::other)?;

    for _ in 0..REAP_PATIENCE.as_micros() / LOOK_EVERY.as_micros() {
        if let Some(status) = system::exit_status(child.id()) {
            return Ok(Some(ExitStatus::from_raw(status)));
        }
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        // Early or not, what counts is what the system says then.
        let mut ends: Vec<_> = pidfd
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let _ = poll(&mut ends, Some(&look_every));
    }
    child.try_wait()
}

/// How a process ended: the signal that killed it, or its exit code.
pub(crate) fn exit_status(status: ExitStatus) -> WorkerExit {
    match status.signal() {
        Some(signal) => WorkerExit::Killed(signal),
        None => WorkerExit::Exited(status.code().unwrap_or(-1)),
    }
}

/// Does a worker's work if this process was started as one, and then ends it; returns at once if not.
///
/// A program that embeds the executor and runs workers as processes calls this first of all in `main`, with the
/// registry that it runs its engines with: a worker's process is the same program, started anew.
pub fn serve_if_worker(registry: &Registry) {
    #[cfg(hosts)]
    super::hosts::sentinel::serve_if_sentinel();
    let Some(parent) = std::env::var_os(MARK) else {
        return;
    };
    // SIGKILL when the supervising process dies, even if this one is stopped or its kernels never end.
    let death_signal = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let is_alive = rustix::process::getppid()
        .is_some_and(|pid| parent.to_str() == Some(&pid.as_raw_nonzero().to_string()));
    if death_signal.is_err() || !is_alive {
        std::process::exit(1);
    }

    let socket = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(UnixStream::from);
    let serve_result = socket.and_then(|socket| serve(socket, registry));
    // A supervisor that has gone is the ordinary end.
    std::process::exit(i32::from(serve_result.is_err()));
}

/// What a worker's process holds once a program is loaded.
#[derive(Clone)]
struct OpenProgram {
    modes: Arc<LoadedModes>,
    session_memory: Arc<SessionMemory>,
    options: HostOptions,
    #[cfg(hosts)]
    network: Option<Arc<Network>>,
}

/// The worker's end of the socket, for all threads of its process.
type ReplySocket = Mutex<UnixStream>;

fn serve(socket: UnixStream, registry: &Registry) -> io::Result<()> {
    let replies = Arc::new(Mutex::new(socket.try_clone()?));
    let gpus = Arc::<OpenGpus>::default();
    let mut open_program: Option<OpenProgram> = None;
    let mut mapped_arenas = MappedArenas::default();

    while let Some((request, files)) = wire::receive::<WorkerRequest>(&socket)? {
        let mut received_files = files.into_iter();

        match request {
            WorkerRequest::Open {
                queues,
                options,
                device,
                life_lock,
                #[cfg(hosts)]
                network,
            } => {
                let bundle = received_files.next().ok_or(io::ErrorKind::InvalidData)?;
                let memory_fd = received_files.next().ok_or(io::ErrorKind::InvalidData)?;
                if let Some(number) = life_lock
                    && let Some(locks) = received_files.next()
                {
                    // Without it the end of the socket tells that this process has ended, only later.
                    let _ = hold_life_lock(locks, number);
                }
                let modes = match load_modes(&bundle, registry, device, &gpus) {
                    Ok(modes) => modes,
                    Err(exit) => return send_reply(&replies, &WorkerReply::Leaving(exit)),
                };
                if options.realtime
                    && let Err(error) = lock_memory()
                {
                    let exit = WorkerExit::Unfit(error.to_string());
                    return send_reply(&replies, &WorkerReply::Leaving(exit));
                }
                // Another program may have no use for them.
                mapped_arenas = MappedArenas::default();
                // SAFETY: the supervising process is this very program, and made it for these queues.
                #[expect(unsafe_code, reason = "maps what the supervising process laid out")]
                let session_memory = unsafe { SessionMemory::find(memory_fd, &queues) }?;
                #[cfg(hosts)]
                let network = match network.map(NetworkTerms::open).transpose() {
                    Ok(network) => network.map(Arc::new),
                    Err(why) => {
                        let exit = WorkerExit::Unfit(why);
                        return send_reply(&replies, &WorkerReply::Leaving(exit));
                    }
                };
                #[cfg(hosts)]
                let port = network
                    .as_ref()
                    .map(|network| network.switchboard.address().port());
                #[cfg(not(hosts))]
                let port = None;
                open_program = Some(OpenProgram {
                    modes,
                    session_memory: Arc::new(session_memory),
                    options,
                    #[cfg(hosts)]
                    network,
                });
                send_reply(&replies, &WorkerReply::Ready { port })?;
            }
            WorkerRequest::Begin {
                spec,
                calendar,
                memory_number,
                lease_ns,
                #[cfg(hosts)]
                places,
            } => {
                let program = open_program.clone().ok_or(io::ErrorKind::InvalidData)?;
                let memory_fd = received_files.next().ok_or(io::ErrorKind::InvalidData)?;
                #[cfg(hosts)]
                let wired = match places {
                    Some(places) => Some(WiredPart::take(&program, places, &mut received_files)?),
                    None => None,
                };
                let timer_fd = received_files.next();
                let heartbeat = timer_fd.and_then(|fd| WorkerHeartbeat::from_fd(fd, lease_ns));
                let loaded = program.modes.get(spec.mode).cloned();
                let loaded = loaded.ok_or(io::ErrorKind::InvalidData)?;
                let arena = match program.modes.are_several() {
                    true => mapped_arenas.map(memory_number, memory_fd)?,
                    false => Arc::new(Arena::map(memory_fd)?),
                };
                let epoch = find_epoch(&loaded, Arc::clone(&arena), &spec)?;
                let epoch_memory = Arc::new(epoch);
                #[cfg_attr(not(hosts), expect(unused_mut, reason = "only wires are added to it"))]
                let mut job = WorkerJob {
                    spec: Arc::new(spec),
                    calendar,
                    session_memory: program.session_memory,
                    epoch: Arc::clone(&epoch_memory),
                    options: program.options,
                    gpus: Arc::clone(&gpus),
                    #[cfg(hosts)]
                    wiring: None,
                };
                #[cfg(hosts)]
                if let Some(wired) = wired {
                    wired.add_to(&mut job);
                }
                let job_replies = Arc::clone(&replies);
                std::thread::Builder::new()
                    .name(format!("zbmd calendar {calendar}"))
                    .spawn(move || run_job(&loaded, job, heartbeat, &job_replies))?;
                // Only now, so that nobody waits for it.
                epoch_memory.make_present(false);
            }
        }
    }
    Ok(())
}

/// What a part of an epoch over several hosts has besides others.
#[cfg(hosts)]
struct WiredPart {
    wiring: Wiring,
    /// Becomes readable when the supervising process stops the epoch.
    stop_event: OwnedFd,
    /// Says on an agent's host which blocks are admitted.
    decisions: Option<SessionMemory>,
}

#[cfg(hosts)]
impl WiredPart {
    fn take(
        program: &OpenProgram,
        places: WorkerPlaces,
        files: &mut impl Iterator<Item = OwnedFd>,
    ) -> io::Result<Self> {
        let network = program.network.clone();
        let network = network.ok_or(io::ErrorKind::InvalidData)?;
        let stop_event = files.next().ok_or(io::ErrorKind::InvalidData)?;
        let decisions = match places.is_agent {
            true => {
                let memory = files.next().ok_or(io::ErrorKind::InvalidData)?;
                // SAFETY: the supervising process is this very program, and made it for these queues.
                #[expect(unsafe_code, reason = "maps what the supervising process laid out")]
                Some(unsafe { SessionMemory::find(memory, &agent_queues()) }?)
            }
            false => None,
        };
        Ok(Self {
            wiring: Wiring { network, places },
            stop_event,
            decisions,
        })
    }

    fn add_to(self, job: &mut WorkerJob) {
        let Wiring { network, places } = &self.wiring;
        let epoch = job.spec.epoch;
        network
            .switchboard
            .begin(network.run, epoch, Some(places.plan));
        job.epoch.set_stop_event(self.stop_event);
        if let Some(decisions) = self.decisions {
            job.session_memory = Arc::new(decisions);
        }
        job.wiring = Some(Arc::new(self.wiring));
    }
}

/// Lets the supervising process see the end of this one at once.
fn hold_life_lock(locks: OwnedFd, number: u32) -> io::Result<()> {
    let life_lock = life_lock::find(locks, number)?;
    life_lock::hold_on_thread(life_lock, || ())
}

/// How much nicer than others a thread is that loads a program.
const LOADER_NICENESS: i32 = 10;

/// Loads the programs of a bundle, and opens the worker's device if it is a GPU.
fn load_modes(
    bundle: &OwnedFd,
    registry: &Registry,
    device: DeviceId,
    gpus: &OpenGpus,
) -> Result<Arc<LoadedModes>, WorkerExit> {
    let engine = at_low_priority(|| open_bundle(bundle, registry)).map_err(WorkerExit::Unfit)?;
    // Not at low priority, which threads of the driver would take over.
    for loaded in engine.modes.iter() {
        let device_description = loaded.program.machine.devices.get(device);
        if let Some(description) = device_description
            && loaded.is_gpu(device)
        {
            gpus.probe(loaded, description)
                .map_err(WorkerExit::NoDevice)?;
        }
    }
    Ok(engine.modes)
}

/// Does work on a thread that gives way to workers of other processes: where a process takes the place of one that is
/// gone, the others are at work already, and whoever waits for this one leaves it a core.
fn at_low_priority<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work_nicely = || {
        // On Linux it is the calling thread's own. If it cannot be had, loading takes cores from workers as others do.
        let _ = rustix::process::setpriority_process(None, LOADER_NICENESS);
        work()
    };
    std::thread::scope(|scope| match scope.spawn(work_nicely).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// The memory of an epoch that the supervising process has made.
fn find_epoch(
    loaded: &LoadedProgram,
    arena: Arc<Arena>,
    spec: &EpochSpec,
) -> io::Result<EpochMemory> {
    let epoch_plan = loaded.program.plans.get(spec.plan);
    let plan = epoch_plan.ok_or(io::ErrorKind::InvalidData)?;
    // SAFETY: the supervising process is this very program, and made it for this graph, plan and spec.
    #[expect(unsafe_code, reason = "maps what the supervising process laid out")]
    unsafe {
        EpochMemory::find(arena, &loaded.program.graph, plan, spec)
    }
}

fn run_job(
    loaded: &Arc<LoadedProgram>,
    job: WorkerJob,
    heartbeat: Option<WorkerHeartbeat>,
    replies: &ReplySocket,
) {
    let epoch = job.spec.epoch;
    let calendar = job.calendar;
    #[cfg(hosts)]
    let is_agent = job
        .wiring
        .as_ref()
        .is_some_and(|wiring| wiring.places.is_agent);
    let worker_end = match host::prepare(loaded, job) {
        Ok(prepared) => {
            #[cfg(hosts)]
            if is_agent {
                let waits = prepared.waits();
                let _ = send_reply(replies, &WorkerReply::Began { epoch, waits });
            }
            prepared.run(loaded, heartbeat)
        }
        Err(fault) => WorkerEnd::before_start(fault),
    };

    if let WorkerOutcome::Failed(FaultReport {
        fault: WorkerFault::Device(fault),
        ..
    }) = &worker_end.outcome
        && fault.fault.kind.is_fatal()
    {
        let exit = WorkerExit::Failed(fault.clone());
        let _ = send_reply(replies, &WorkerReply::Leaving(exit));
        // At once: what a driver would do at the end of the process may never end.
        let _ = kill_process(getpid(), Signal::KILL);
    }

    // If nobody receives it, the main thread sees the closed socket, and ends the process.
    let _ = send_reply(
        replies,
        &WorkerReply::Ended {
            epoch,
            calendar,
            end: Box::new(worker_end),
        },
    );
}

fn send_reply(socket: &ReplySocket, reply: &WorkerReply) -> io::Result<()> {
    let mut locked_socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
    wire::send(&mut locked_socket, reply)
}

/// The engine for a bundle that the supervising process has open. It is verified again: a process of its own trusts
/// no memory of another.
fn open_bundle(bundle: &OwnedFd, registry: &Registry) -> Result<Engine, String> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", bundle.as_raw_fd());
    // Its size was judged when the supervising process opened it.
    let modes = zbmd_ir::bundle::open_modes_within(Path::new(&path), u64::MAX)
        .map_err(|e| e.to_string())?;
    Engine::with_modes(modes, registry).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::thread::JoinHandle;

    use super::*;
    use crate::transport::life_lock::LifeLocks;

    /// A worker that never reads its socket: what it does not take is kept for it, and in the end it is lost. Nobody but
    /// its listener waits for it.
    #[test]
    fn a_worker_whose_socket_is_full_keeps_nobody_waiting() {
        // A request that is longer than any socket's buffer.
        let (mut process, life_lock, listener_thread) =
            start_sleeper(vec![(u64::MAX, u64::MAX); 200_000]);

        let error = loop {
            match process.flush() {
                Ok(is_pending) => assert!(is_pending, "it reads nothing"),
                Err(error) => break error.to_string(),
            }
            std::thread::yield_now();
        };

        assert!(error.starts_with("it took nothing of a request"), "{error}");
        process.lifetime().end(Some(&error));
        let process_exit = listener_thread.join().expect("no panic");
        assert_eq!(process_exit.ended_because, Some(error));
        assert_eq!(
            exit_status(process_exit.status.expect("waited for")),
            WorkerExit::Killed(Signal::KILL.as_raw())
        );
        drop(life_lock);
    }

    /// A process that says by its lock that it is dead, and lives on, is killed; one that writes nonsense there goes on until
    /// something else ends it.
    #[test]
    fn a_lock_that_is_written_over_keeps_nobody_waiting() {
        const OWNER_DIED: u32 = 0x4000_0000;
        for (word, is_taken_for_dead) in [(OWNER_DIED, true), (u32::MAX, true), (12, false)] {
            let (process, life_lock, listener_thread) = start_sleeper(Queues::new());
            while process.lifetime().process().is_none() {
                std::thread::yield_now();
            }
            life_lock.lock.overwrite(word);
            if !is_taken_for_dead {
                life_lock.lock.overwrite(word + 1);
                assert!(process.lifetime().process().is_some(), "it goes on");
                process.lifetime().end(None);
            }
            let process_exit = listener_thread.join().expect("no panic");
            assert_eq!(
                exit_status(process_exit.status.expect("seen")),
                WorkerExit::Killed(Signal::KILL.as_raw()),
                "{word}"
            );
        }
    }

    /// A worker that never reads its socket and never takes its lock, with its listener.
    fn start_sleeper(queues: Queues) -> (WorkerProcess, PlacedLock, JoinHandle<ProcessExit>) {
        let temporary_folder = tempfile::tempdir().expect("a folder");
        let program_path = temporary_folder.path().join("worker");
        std::fs::write(&program_path, "#!/bin/sh\nexec sleep 1000\n").expect("written");
        let owner_only = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&program_path, owner_only).expect("its owner may");

        let session = SessionMemory::create(&Queues::new()).expect("small");
        let bundle = tempfile::tempfile().expect("a file");
        let launch = WorkerLaunch {
            bundle: bundle.as_fd(),
            session_memory: &session,
            queues: &queues,
            options: HostOptions {
                sample_every: 0,
                pin: false,
                lock_memory: false,
                realtime: false,
                hold_share: false,
            },
            #[cfg(hosts)]
            network: None,
        };
        let life_lock = LifeLocks::default().next().expect("small");
        let planning_result =
            WorkerProcess::plan(Some(&program_path), &launch, DeviceId(0), &life_lock);
        let (process, listener) = planning_result.expect("planned");
        let listener_thread = std::thread::spawn(move || {
            let mut seen_exit = None;
            listener.listen(|_| (), |exit| seen_exit = Some(exit));
            drop(temporary_folder);
            seen_exit.expect("it is gone")
        });
        (process, life_lock, listener_thread)
    }
}
