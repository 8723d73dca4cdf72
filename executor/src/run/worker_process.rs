//! The process of a worker: loads the program that it is sent, and runs its parts of epochs, each on a thread of its own, until the
//! supervising process goes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Signal, getpid, kill_process};
use zbmd_ir::DeviceId;
use zbmd_op::Registry;

use super::event::WorkerExit;
#[cfg(hosts)]
use super::hosts::agent_epoch::agent_queues;
#[cfg(hosts)]
use super::hosts::network_terms::NetworkTerms;
use super::nursery::{nurse, take_name, tidy_memory};
use super::process::{MARK, WorkerReply, WorkerRequest};
use super::wire;
use crate::fault::{FaultReport, WorkerFault, WorkerOutcome};
use crate::program::{Engine, LoadedModes, LoadedProgram};
use crate::realtime::lock_memory;
use crate::transport::arena::Arena;
use crate::transport::epoch::EpochMemory;
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::idle_arenas::MappedArenas;
use crate::transport::life_lock;
use crate::transport::session_memory::SessionMemory;
use crate::transport::watchdog::WorkerHeartbeat;
use crate::worker::gpu::OpenGpus;
use crate::worker::host;
use crate::worker::job::{HostOptions, WorkerEnd, WorkerJob};
#[cfg(hosts)]
use crate::worker::wired::{Network, Wiring, WorkerPlaces};

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
    let serve_result = socket.and_then(|socket| serve_or_nurse(socket, registry));
    // A supervisor that has gone is the ordinary end.
    std::process::exit(i32::from(serve_result.is_err()));
}

/// A worker's work, or that of a nursery, whose children do a worker's.
fn serve_or_nurse(socket: UnixStream, registry: &Registry) -> io::Result<()> {
    let Some(first) = wire::receive::<WorkerRequest>(&socket)? else {
        return Ok(());
    };
    if !matches!(first.0, WorkerRequest::Nurse) {
        return serve(&socket, registry, first, None);
    }

    take_name();
    let bundle = first.1.into_iter().next();
    let bundle = bundle.ok_or(io::ErrorKind::InvalidData)?;
    let engine = at_low_priority(|| {
        let engine = open_bundle(&bundle, registry)?;
        for loaded in engine.modes.iter() {
            // Shared by all.
            loaded.facts(loaded.main);
        }
        Ok::<_, String>(engine)
    });
    let engine = engine.map_err(io::Error::other)?;
    tidy_memory();
    // The first thread of a worker goes on in the memory of the one that has loaded the program, and so does this one.
    at_low_priority(tidy_memory);
    let Some(worker_socket) = nurse(socket)? else {
        return Ok(());
    };
    match wire::receive::<WorkerRequest>(&worker_socket)? {
        Some(first) => serve(&worker_socket, registry, first, Some(engine.modes)),
        None => Ok(()),
    }
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

/// A request with its files.
type Received = (WorkerRequest, Vec<OwnedFd>);

/// Does what is asked of a worker, beginning with `first`, until nobody asks any more. `modes` are those of the first bundle, if they
/// are loaded already.
fn serve(
    socket: &UnixStream,
    registry: &Registry,
    first: Received,
    mut modes: Option<Arc<LoadedModes>>,
) -> io::Result<()> {
    let replies = Arc::new(Mutex::new(socket.try_clone()?));
    let gpus = Arc::<OpenGpus>::default();
    let mut open_program: Option<OpenProgram> = None;
    let mut mapped_arenas = MappedArenas::default();

    let is_forked = modes.is_some();

    let mut received = Some(first);
    while let Some((request, files)) = received {
        match request {
            WorkerRequest::Nurse => return Err(io::ErrorKind::InvalidData.into()),
            open @ WorkerRequest::Open { .. } => {
                let load = |bundle: &OwnedFd, device| match modes.take() {
                    Some(modes) => Ok(modes),
                    None => load_modes(bundle, registry, device, &gpus),
                };
                let before = open_program.as_ref();
                let program = match OpenProgram::open(open, files, before, is_forked, load)? {
                    Ok(program) => program,
                    Err(exit) => return send_reply(&replies, &WorkerReply::Leaving(exit)),
                };
                // Another program may have no use for them.
                mapped_arenas = MappedArenas::default();
                let port = program.port();
                open_program = Some(program);
                send_reply(&replies, &WorkerReply::Ready { port })?;
            }
            begin @ WorkerRequest::Begin { .. } => {
                let program = open_program.clone().ok_or(io::ErrorKind::InvalidData)?;
                program.begin(begin, files, &mut mapped_arenas, &gpus, &replies)?;
            }
        }
        received = wire::receive::<WorkerRequest>(socket)?;
    }
    Ok(())
}

impl OpenProgram {
    /// Takes what [`WorkerRequest::Open`] brings; why this process cannot be a worker, if it cannot. Its wires arrive where those of
    /// the program before it did: others have been told that.
    fn open(
        request: WorkerRequest,
        files: Vec<OwnedFd>,
        #[cfg_attr(not(hosts), expect(unused, reason = "it has no wires"))] before: Option<&Self>,
        is_forked: bool,
        load: impl FnOnce(&OwnedFd, DeviceId) -> Result<Arc<LoadedModes>, WorkerExit>,
    ) -> io::Result<Result<Self, WorkerExit>> {
        let WorkerRequest::Open {
            queues,
            options,
            device,
            life_lock,
            #[cfg(hosts)]
            network,
        } = request
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut received_files = files.into_iter();
        let bundle = received_files.next().ok_or(io::ErrorKind::InvalidData)?;
        let memory_fd = received_files.next().ok_or(io::ErrorKind::InvalidData)?;
        if let Some(number) = life_lock
            && let Some(locks) = received_files.next()
        {
            // Without it the end of the socket tells that this process has ended, only later.
            let _ = hold_life_lock(locks, number, is_forked);
        }

        let modes = match load(&bundle, device) {
            Ok(modes) => modes,
            Err(exit) => return Ok(Err(exit)),
        };
        if options.realtime
            && let Err(error) = lock_memory()
        {
            return Ok(Err(WorkerExit::Unfit(error.to_string())));
        }
        // SAFETY: the supervising process is this very program, and made it for these queues.
        #[expect(unsafe_code, reason = "maps what the supervising process laid out")]
        let session_memory = unsafe { SessionMemory::find(memory_fd, &queues) }?;
        #[cfg(hosts)]
        let network = match before.and_then(|before| before.network.clone()) {
            Some(network) => Some(network),
            None => match network.map(NetworkTerms::open).transpose() {
                Ok(network) => network.map(Arc::new),
                Err(why) => return Ok(Err(WorkerExit::Unfit(why))),
            },
        };
        Ok(Ok(Self {
            modes,
            session_memory: Arc::new(session_memory),
            options,
            #[cfg(hosts)]
            network,
        }))
    }

    /// Where its wires arrive, if it has any.
    #[cfg(hosts)]
    fn port(&self) -> Option<u16> {
        let network = self.network.as_ref()?;
        Some(network.switchboard.address().port())
    }

    #[cfg(not(hosts))]
    fn port(&self) -> Option<u16> {
        None
    }

    /// Begins the part of an epoch that [`WorkerRequest::Begin`] asks for, on a thread of its own.
    fn begin(
        self,
        request: WorkerRequest,
        files: Vec<OwnedFd>,
        mapped_arenas: &mut MappedArenas,
        gpus: &Arc<OpenGpus>,
        replies: &Arc<ReplySocket>,
    ) -> io::Result<()> {
        let WorkerRequest::Begin {
            spec,
            calendar,
            memory_number,
            lease_ns,
            #[cfg(hosts)]
            places,
        } = request
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut received_files = files.into_iter();
        let memory_fd = received_files.next().ok_or(io::ErrorKind::InvalidData)?;
        #[cfg(hosts)]
        let wired = match places {
            Some(places) => Some(WiredPart::take(&self, places, &mut received_files)?),
            None => None,
        };
        let timer_fd = received_files.next();
        let heartbeat = timer_fd.and_then(|fd| WorkerHeartbeat::from_fd(fd, lease_ns));

        let loaded = self.modes.get(spec.mode).cloned();
        let loaded = loaded.ok_or(io::ErrorKind::InvalidData)?;
        let arena = match self.modes.are_several() {
            true => mapped_arenas.map(memory_number, memory_fd)?,
            false => Arc::new(Arena::map(memory_fd)?),
        };
        let epoch = find_epoch(&loaded, Arc::clone(&arena), &spec)?;
        let epoch_memory = Arc::new(epoch);
        #[cfg_attr(not(hosts), expect(unused_mut, reason = "only wires are added to it"))]
        let mut job = WorkerJob {
            spec: Arc::new(spec),
            calendar,
            session_memory: self.session_memory,
            epoch: Arc::clone(&epoch_memory),
            options: self.options,
            gpus: Arc::clone(gpus),
            #[cfg(hosts)]
            wiring: None,
        };
        #[cfg(hosts)]
        if let Some(wired) = wired {
            wired.add_to(&mut job);
        }

        let job_replies = Arc::clone(replies);
        std::thread::Builder::new()
            .name(format!("zbmd calendar {calendar}"))
            .spawn(move || run_job(&loaded, job, heartbeat, &job_replies))?;
        // Only now, so that nobody waits for it. Of many workers each uses a small part, which it touches itself.
        if epoch_memory.statuses.len() <= MAX_PRESENT_WORKERS {
            epoch_memory.make_present(false);
        }
        Ok(())
    }
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

/// Lets the supervising process see the end of this one at once. What was forked has no drivers.
fn hold_life_lock(locks: OwnedFd, number: u32, is_forked: bool) -> io::Result<()> {
    let life_lock = life_lock::find(locks, number)?;
    match is_forked {
        true => life_lock::hold(life_lock),
        false => life_lock::hold_on_thread(life_lock, || ()),
    }
}

/// Workers of an epoch, of all hosts, whose processes each have all of its memory present.
const MAX_PRESENT_WORKERS: usize = 64;
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
    let locked_socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
    wire::send(&locked_socket, reply, &[])
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
