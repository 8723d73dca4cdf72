//! Workers in processes of their own: how they are started, given work, killed, and seen to be gone.
//!
//! A worker's process is this very program, started anew or forked from one that has loaded the program ([`super::nursery`]), with one
//! end of a socket pair as its standard input. It maps the memory that it is sent, and runs [`crate::worker::host`]: what a thread
//! would run ([`super::worker_process`]). Its life ends with the supervising
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
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use zbmd_ir::DeviceId;

use super::event::WorkerExit;
#[cfg(hosts)]
use super::hosts::network_terms::NetworkTerms;
use super::launch::{Lifetime, RunningProcess};
use super::life_watch::LifeWatch;
use super::nursery::Nursery;
use super::wire::{self, Outbox};
use crate::transport::arena::In;
use crate::transport::clock::Clock;
use crate::transport::epoch::EpochMemory;
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::life_lock::{LifeLock, PlacedLock};
use crate::transport::session_memory::{Queues, SessionMemory};
use crate::transport::watchdog::{EpochWatchdogs, Watchdog};
use crate::worker::job::{HostOptions, WorkerEnd};
#[cfg(hosts)]
use crate::worker::wired::WorkerPlaces;

/// Set in the environment of a worker's process.
pub(super) const MARK: &str = "ZBMD_WORKER";

/// To a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkerRequest {
    /// Be no worker but a nursery ([`super::nursery`]) for the bundle that comes with this.
    Nurse,
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
    /// The process's end of it.
    worker_socket: OwnedFd,
    life_lock: In<CachePadded<LifeLock>>,
    /// The program to start; this very one if `None`.
    program: Option<PathBuf>,
    /// What it is forked from, if there is that.
    pub(super) nursery: Option<Arc<Nursery>>,
    lifetime: Arc<Lifetime>,
    /// It holds a GPU, whose memory is free only when the system has cleared it away.
    pub(crate) holds_gpu: bool,
}

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
        let lifetime = Arc::new(Lifetime::new());
        let listener = ProcessListener {
            socket: Arc::new(socket.try_clone()?),
            worker_socket: worker_socket.into(),
            life_lock: life_lock.lock.clone(),
            program: program.map(Path::to_owned),
            nursery: None,
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
        let mut process = match self.launch_and_hear(each) {
            Ok(process) => process,
            Err(error) => return gone(Err(error)),
        };

        let status = match holds_gpu {
            true => Ok(process.wait()),
            false => process.status_so_far(),
        };
        gone(
            status.map(|status| {
                status.unwrap_or_else(|| ExitStatus::from_raw(Signal::KILL.as_raw()))
            }),
        );
        // Nobody else does, and its number is not another's before.
        let _ = process.wait();
    }

    /// Launches the process, which has no more to say and was killed when this returns.
    fn launch_and_hear(self, mut each: impl FnMut(WorkerReply)) -> io::Result<RunningProcess> {
        let forked = match &self.nursery {
            Some(nursery) => self.lifetime.fork(nursery, self.worker_socket.as_fd())?,
            None => None,
        };
        let process = match forked {
            Some(process) => {
                // This copy would keep the socket open.
                drop(self.worker_socket);
                process
            }
            None => {
                let command = worker_command(self.program.as_deref(), self.worker_socket);
                self.lifetime.launch(command)?
            }
        };
        drop(self.nursery);
        let life_watch = LifeWatch::start(self.life_lock, &self.socket);
        while let Ok(Some((reply, _))) = wire::receive::<WorkerReply>(&self.socket) {
            each(reply);
        }
        // Whoever does not talk any more is of no use: it may be alive, with its end of the socket closed.
        process.kill();
        life_watch.end();
        Ok(process)
    }
}

/// How this program, or another one, is started as the process of a worker, whose end of a socket pair this is.
pub(super) fn worker_command(program: Option<&Path>, worker_socket: OwnedFd) -> Command {
    // Not the path it was started from, which may be another program by now.
    let program_path = program.unwrap_or(Path::new("/proc/self/exe"));
    let mut command = Command::new(program_path);
    command.env(MARK, std::process::id().to_string());
    command.stdin(worker_socket).stdout(Stdio::null());
    // An interrupt from the terminal is for the supervising process alone.
    command.process_group(0);
    command
}

/// How a process ended: the signal that killed it, or its exit code.
pub(crate) fn exit_status(status: ExitStatus) -> WorkerExit {
    match status.signal() {
        Some(signal) => WorkerExit::Killed(signal),
        None => WorkerExit::Exited(status.code().unwrap_or(-1)),
    }
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
