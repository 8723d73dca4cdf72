//! Workers in processes of their own: how they are started, told what to do, killed, and seen to be gone.
//!
//! A worker's process is this very program, started anew, with one end of a socket pair as its standard input. It maps
//! the memory that it is sent, and runs [`crate::worker::host`]: what a thread would run. Its death closes the socket, which
//! the supervising process sees at once, whatever the death; its life ends with the supervising process's, by the
//! closed socket, or by the system's signal where it could not notice.
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
use std::sync::{Arc, Mutex};

use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use zbmd_backends::op::Registry;
use zbmd_ir::DeviceId;

use crate::run::launch::Lifetime;
use crate::run::session::{Engine, Inner};
use crate::run::watchdog::{Dog, Winder};
use crate::run::wire::{self, Outbox};
use crate::transport::clock::Clock;
use crate::transport::epoch::{EpochMemory, Queues, SessionMemory, Spec};
use crate::worker::gpu::{DeviceFault, Gpus};
use crate::worker::host::{self, End, HostOptions, How, Job};

/// Set in the environment of a worker's process.
const MARK: &str = "ZBMD_WORKER";

/// To a worker.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Comes first, with the bundle and the session's memory.
    Open {
        queues: Queues,
        options: HostOptions,
        device: DeviceId,
    },
    /// Run a calendar of an epoch, whose memory comes with it, and a watchdog if there is one.
    Begin {
        spec: Spec,
        calendar: usize,
        lease_ns: u64,
    },
}

/// From a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The program is loaded; epochs can begin.
    Ready,
    /// Its part of an epoch is over.
    Ended {
        epoch: u64,
        calendar: usize,
        end: Box<End>,
    },
    /// It cannot be a worker, because…
    Unfit { why: String },
    /// It cannot open its GPU.
    NoDevice { fault: DeviceFault },
    /// Its GPU failed, and its process ends.
    Failed { fault: DeviceFault },
}

/// The supervising process's handle of a worker's process. Nothing that it does waits for the worker.
pub(crate) struct WorkerProcess {
    outbox: Outbox,
    lifetime: Arc<Lifetime>,
}

/// Launches a worker's process, and hands its answers on. Blocks until the process is gone.
pub(crate) struct Listener {
    socket: UnixStream,
    command: Command,
    lifetime: Arc<Lifetime>,
}

/// What a listener saw last.
pub(crate) struct ProcessExit {
    pub status: io::Result<ExitStatus>,
    /// Why the supervising process ended it, if it did and said why.
    pub ended_because: Option<String>,
}

/// What a worker's process is started from.
pub(crate) struct Ship<'a> {
    /// The bundle, as a file without a name.
    pub bundle: BorrowedFd<'a>,
    pub session: &'a SessionMemory,
    pub queues: &'a Queues,
    pub options: HostOptions,
}

/// A process that takes nothing of an order for so long is lost.
const ORDER_LIMIT_NS: u64 = 2_000_000_000;

impl WorkerProcess {
    /// A process that its listener launches, with its first order on the way; it answers when it is ready.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn plan(
        program: Option<&Path>,
        ship: &Ship<'_>,
        device: DeviceId,
    ) -> io::Result<(Self, Listener)> {
        let (socket, theirs) = UnixStream::pair()?;
        // Not the path it was started from, which may be another program by now.
        let program = program.map_or_else(|| PathBuf::from("/proc/self/exe"), Path::to_owned);
        let mut command = Command::new(program);
        command.env(MARK, std::process::id().to_string());
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        // An interrupt from the terminal is for the supervising process alone.
        command.process_group(0);

        let lifetime = Arc::new(Lifetime::new());
        let listener = Listener {
            socket: socket.try_clone()?,
            command,
            lifetime: Arc::clone(&lifetime),
        };
        let outbox = Outbox::new(socket);
        let mut process = Self { outbox, lifetime };
        process.open(ship, device)?;
        Ok((process, listener))
    }

    /// Lets it load a bundle, and open its device; it answers when it is ready. If it is gone, the listener tells.
    ///
    /// # Errors
    /// It cannot be told.
    pub(crate) fn open(&mut self, ship: &Ship<'_>, device: DeviceId) -> io::Result<()> {
        let order = Order::Open {
            queues: ship.queues.clone(),
            options: ship.options,
            device,
        };
        match ship.session.arena.fd() {
            Some(session) => self
                .outbox
                .post(Clock.now_ns(), &order, &[ship.bundle, session]),
            None => Ok(()),
        }
    }

    /// Lets it begin its part of an epoch. If it is gone, the listener tells.
    ///
    /// # Errors
    /// It cannot be told.
    pub(crate) fn begin(
        &mut self,
        spec: &Spec,
        calendar: usize,
        epoch: &EpochMemory,
        (dog, lease_ns): (Option<&Dog>, u64),
    ) -> io::Result<()> {
        let order = Order::Begin {
            spec: spec.clone(),
            calendar,
            lease_ns,
        };
        let Some(memory) = epoch.arena().fd() else {
            return Ok(());
        };
        let files: Vec<_> = [memory].into_iter().chain(dog.and_then(Dog::fd)).collect();
        self.outbox.post(Clock.now_ns(), &order, &files)
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
            Some(stalled_ns) if stalled_ns > ORDER_LIMIT_NS => Err(io::Error::other(format!(
                "it took nothing of an order for {} ms",
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

impl Listener {
    /// Launches the process, and calls `each` for every answer until it is gone.
    pub(crate) fn listen(self, each: impl FnMut(Answer)) -> ProcessExit {
        let lifetime = Arc::clone(&self.lifetime);
        let status = self.launch_and_wait(each);
        let ended_because = lifetime.close().filter(|why| !why.is_empty());
        ProcessExit {
            status,
            ended_because,
        }
    }

    fn launch_and_wait(mut self, mut each: impl FnMut(Answer)) -> io::Result<ExitStatus> {
        let mut child = self.lifetime.launch(self.command)?;
        while let Ok(Some((answer, _))) = wire::receive::<Answer>(&mut self.socket) {
            each(answer);
        }
        // Whoever does not talk any more is of no use: it may be alive, with its end of the socket closed.
        let _ = child.kill();
        child.wait()
    }
}

/// How a process ended: the signal that killed it, or its exit code.
pub(crate) fn ending(status: ExitStatus) -> Result<i32, i32> {
    match status.signal() {
        Some(signal) => Err(signal),
        None => Ok(status.code().unwrap_or(-1)),
    }
}

/// Does a worker's work if this process was started as one, and then ends it; returns at once if not.
///
/// A program that embeds the executor and runs workers as processes calls this first of all in `main`, with the
/// registry that it runs its engines with: a worker's process is the same program, started anew.
pub fn serve_if_worker(registry: &Registry) {
    let Some(parent) = std::env::var_os(MARK) else {
        return;
    };
    // SIGKILL when the supervising process dies, even if this one is stopped or its kernels never end.
    let armed = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let is_alive = rustix::process::getppid()
        .is_some_and(|p| parent.to_str() == Some(&p.as_raw_nonzero().to_string()));
    if armed.is_err() || !is_alive {
        std::process::exit(1);
    }
    let socket = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(UnixStream::from);
    let served = socket.and_then(|socket| serve(socket, registry));
    // A supervisor that has gone is the ordinary end.
    std::process::exit(i32::from(served.is_err()));
}

fn serve(mut socket: UnixStream, registry: &Registry) -> io::Result<()> {
    let answers = Arc::new(Mutex::new(socket.try_clone()?));
    let mut open: Option<(Arc<Inner>, Arc<SessionMemory>, HostOptions)> = None;
    let gpus = Arc::<Gpus>::default();
    while let Some((order, files)) = wire::receive::<Order>(&mut socket)? {
        let mut files = files.into_iter();
        let mut file = || files.next().ok_or(io::ErrorKind::InvalidData);
        match order {
            Order::Open {
                queues,
                options,
                device,
            } => {
                let engine = match load(&file()?, registry) {
                    Ok(engine) => engine,
                    Err(why) => return answer(&answers, &Answer::Unfit { why }),
                };
                let named = engine.inner.program.machine.devices.get(device);
                if let (Some(named), true) = (named, engine.inner.is_gpu(device))
                    && let Err(fault) = gpus.probe(&engine.inner, named)
                {
                    return answer(&answers, &Answer::NoDevice { fault });
                }
                // SAFETY: the supervising process is this very program, and made it for these queues.
                #[expect(unsafe_code, reason = "maps what the supervising process laid out")]
                let session = unsafe { SessionMemory::find(file()?, &queues) }?;
                open = Some((engine.inner, Arc::new(session), options));
                answer(&answers, &Answer::Ready)?;
            }
            Order::Begin {
                spec,
                calendar,
                lease_ns,
            } => {
                let (engine, session, options) = open.clone().ok_or(io::ErrorKind::InvalidData)?;
                let program = &engine.program;
                let plan = program
                    .plans
                    .get(spec.plan)
                    .ok_or(io::ErrorKind::InvalidData)?;
                // SAFETY: as above, for this graph, plan and spec.
                #[expect(unsafe_code, reason = "maps what the supervising process laid out")]
                let epoch = unsafe { EpochMemory::find(file()?, &program.graph, plan, &spec) }?;
                let epoch = Arc::new(epoch);
                let winder = files.next().and_then(|fd| Winder::from_fd(fd, lease_ns));
                let (spec, gpus) = (Arc::new(spec), Arc::clone(&gpus));
                let job = Job {
                    spec,
                    calendar,
                    session,
                    epoch,
                    options,
                    gpus,
                };
                let answers = Arc::clone(&answers);
                let name = format!("zbmd calendar {calendar}");
                std::thread::Builder::new()
                    .name(name)
                    .spawn(move || run(&engine, job, winder, &answers))?;
            }
        }
    }
    Ok(())
}

fn run(engine: &Inner, job: Job, winder: Option<Winder>, answers: &Mutex<UnixStream>) {
    let (epoch, calendar) = (job.spec.epoch, job.calendar);
    let end = match host::prepare(engine, job) {
        Ok(prepared) => prepared.run(engine, winder),
        Err(error) => End::unprepared(error),
    };
    if let How::Device { fault, .. } = &end.how
        && fault.fault.kind.is_fatal()
    {
        let _ = answer(
            answers,
            &Answer::Failed {
                fault: fault.clone(),
            },
        );
        // At once: what a driver would do at the end of the process may never end.
        let _ = kill_process(getpid(), Signal::KILL);
    }
    // Nobody to tell: the main thread sees the closed socket, and ends the process.
    let _ = answer(
        answers,
        &Answer::Ended {
            epoch,
            calendar,
            end: Box::new(end),
        },
    );
}

fn answer(socket: &Mutex<UnixStream>, answer: &Answer) -> io::Result<()> {
    let mut socket = socket
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    wire::send(&mut socket, answer)
}

/// The engine for a bundle that the supervising process has open. It is verified again: a process of its own trusts
/// no memory of another.
fn load(bundle: &OwnedFd, registry: &Registry) -> Result<Engine, String> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", bundle.as_raw_fd());
    let program = zbmd_ir::bundle::open(Path::new(&path)).map_err(|e| e.to_string())?;
    Engine::new(program, registry).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A worker that never reads its socket: what it does not take is kept for it, and in the end it is lost. Nobody but
    /// its listener waits for it.
    #[test]
    fn a_worker_whose_socket_is_full_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("worker");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 1000\n").expect("written");
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&program, mode).expect("its owner may");

        let session = SessionMemory::create(&Queues::new()).expect("small");
        let bundle = tempfile::tempfile().expect("a file");
        // An order that is longer than any socket's buffer.
        let queues: Queues = vec![(u64::MAX, u64::MAX); 200_000];
        let ship = Ship {
            bundle: bundle.as_fd(),
            session: &session,
            queues: &queues,
            options: HostOptions {
                sample_every: 0,
                pin: false,
                lock_memory: false,
            },
        };
        let planned = WorkerProcess::plan(Some(&program), &ship, DeviceId(0));
        let (mut process, listener) = planned.expect("planned");
        let listening = std::thread::spawn(move || listener.listen(|_| ()));

        let error = loop {
            match process.flush() {
                Ok(is_pending) => assert!(is_pending, "it reads nothing"),
                Err(error) => break error.to_string(),
            }
            std::thread::yield_now();
        };
        assert!(error.starts_with("it took nothing of an order"), "{error}");
        process.lifetime().end(Some(&error));
        let exit = listening.join().expect("no panic");
        assert_eq!(exit.ended_because, Some(error));
        assert_eq!(
            ending(exit.status.expect("waited for")),
            Err(Signal::KILL.as_raw())
        );
    }
}
