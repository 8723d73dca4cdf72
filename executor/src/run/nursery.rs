//! A process that has loaded the program and waits, and from which the processes of workers are forked: they begin with what it
//! has loaded and verified, whose memory they share until they write to it. Without it each of a thousand workers would read and
//! verify the bundle anew.
//!
//! A nursery is this very program, started anew like a worker's process ([`super::process`]), and has one thread, which nothing but
//! forks: a process with several must not go on in a child that has one of them. It has no GPU open, as drivers do not survive a fork.
//!
//! Workers are its children, so it is the one that waits for them. It lets them lie for a while before it does: the supervising
//! process, which has a descriptor of each, reads how they have ended from the system. They are sent a signal when it ends, and it
//! when the supervising process does. It ends itself when nobody wants another worker and all that it has forked are gone.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, getppid, pidfd_open, wait,
    waitid,
};
use serde::{Deserialize, Serialize};

use super::launch::Lifetime;
use super::process::{WorkerRequest, worker_command};
use super::wire::{self, Outbox};
use crate::transport::clock::Clock;

/// How often it looks for those that have ended, if nothing is asked of it; they are waited for at the look after that.
const REAP_PAUSE: Duration = Duration::from_millis(500);
/// A thread that was joined is listed by the system for a moment more.
const JOIN_LOOKS: u32 = 20;
const JOIN_PAUSE: Duration = Duration::from_micros(200);
/// As `ps` shows them: 15 bytes at most.
const NAME: &CStr = c"zbmd-nursery";
const WORKER_NAME: &CStr = c"zbmd-worker";

/// To a nursery that has loaded the program: fork a worker, whose end of a socket pair comes with this.
#[derive(Debug, Serialize, Deserialize)]
struct ForkRequest;

/// From a nursery, for each request.
#[derive(Debug, Serialize, Deserialize)]
enum ForkReply {
    /// The worker's process, whose descriptor comes with this.
    Forked { process: u32 },
    /// It cannot fork, but a worker can be started anew.
    Unable,
}

/// The supervising process's handle of a nursery.
pub(super) struct Nursery {
    exchange: Mutex<Exchange>,
    lifetime: Arc<Lifetime>,
}

struct Exchange {
    outbox: Outbox,
    socket: UnixStream,
}

/// A worker's process that was forked.
pub(super) struct ForkedProcess {
    pub process: u32,
    pub pidfd: OwnedFd,
}

impl Nursery {
    /// Starts one that loads this bundle.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start(program: Option<&Path>, bundle: BorrowedFd<'_>) -> io::Result<Self> {
        let (socket, nursery_socket) = UnixStream::pair()?;
        let mut outbox = Outbox::new(socket.try_clone()?);
        outbox.post(Clock.now_ns(), &WorkerRequest::Nurse, &[bundle])?;

        let lifetime = Arc::new(Lifetime::new());
        let thread_lifetime = Arc::clone(&lifetime);
        let command = worker_command(program, nursery_socket.into());
        // It is sent a signal when the thread ends that has launched it.
        std::thread::Builder::new()
            .name("zbmd nursery".to_owned())
            .spawn(move || {
                if let Ok(mut process) = thread_lifetime.launch(command) {
                    process.wait();
                }
                thread_lifetime.close();
            })?;
        Ok(Self {
            exchange: Mutex::new(Exchange { outbox, socket }),
            lifetime,
        })
    }

    /// Whether workers can be had of it.
    pub(super) fn is_there(&self) -> bool {
        !self.lifetime.is_gone()
    }

    /// The nursery's own process.
    pub(super) fn lifetime(&self) -> &Arc<Lifetime> {
        &self.lifetime
    }

    /// Forks a worker, whose end of a socket pair this is. Waits until the nursery has loaded the bundle. `None` if it cannot fork:
    /// then a worker must be started anew, and says why it cannot be one.
    pub(super) fn fork(&self, worker_socket: BorrowedFd<'_>) -> Option<ForkedProcess> {
        let exchange = self.exchange.lock();
        let mut exchange = exchange.unwrap_or_else(PoisonError::into_inner);
        let Exchange { outbox, socket } = &mut *exchange;
        outbox
            .post(Clock.now_ns(), &ForkRequest, &[worker_socket])
            .ok()?;
        match wire::receive::<ForkReply>(socket).ok()?? {
            (ForkReply::Forked { process }, files) => Some(ForkedProcess {
                process,
                pidfd: files.into_iter().next()?,
            }),
            (ForkReply::Unable, _) => None,
        }
    }
}

/// Has `ps` show what this process is to be.
pub(super) fn take_name() {
    let _ = rustix::thread::set_name(NAME);
}

/// Larger than pieces that are free between others, and small enough not to be memory of its own.
const SORTING_BYTES: usize = 100 << 10;

/// Has the C library put the free memory of the calling thread in order: otherwise each worker does so for itself, at its first
/// allocation, and copies all pages that it touches on the way.
pub(super) fn tidy_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the locks of the allocator like any allocation, and changes nothing that is in use.
    #[expect(unsafe_code, reason = "calls the C library's allocator")]
    unsafe {
        libc::malloc_trim(0);
    }
    // Free pieces are joined now. What is asked for next, and is none of them, has them sorted by size.
    drop(std::hint::black_box(Vec::<u8>::with_capacity(
        SORTING_BYTES,
    )));
}

/// Forks workers as they are wanted, from a process that has loaded the program. Returns in each of them with its socket; in the
/// nursery itself `None`, when nobody wants another one and all are gone.
///
/// # Errors
/// What the system says, in either.
pub(super) fn nurse(socket: UnixStream) -> io::Result<Option<UnixStream>> {
    let own_number = getpid();
    let mut workers: Vec<Forked> = Vec::new();
    loop {
        if !is_readable_soon(&socket)? {
            workers.retain_mut(|worker| !worker.reap());
            continue;
        }
        let Some((ForkRequest, files)) = wire::receive::<ForkRequest>(&socket)? else {
            break;
        };
        let worker_socket = files.into_iter().next();
        let worker_socket = worker_socket.ok_or(io::ErrorKind::InvalidData)?;
        if !is_single_threaded() {
            wire::send(&socket, &ForkReply::Unable, &[])?;
            continue;
        }

        match fork()? {
            None => {
                drop(socket);
                return begin_worker(own_number, worker_socket).map(Some);
            }
            Some(pid) => {
                drop(worker_socket);
                // Nobody else waits for it, so the number is still its own.
                let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
                let process = pid.as_raw_nonzero().get() as u32;
                wire::send(&socket, &ForkReply::Forked { process }, &[pidfd.as_fd()])?;
                workers.push(Forked {
                    pid,
                    was_seen_to_end: false,
                });
            }
        }
    }

    while !matches!(wait(WaitOptions::empty()), Err(Errno::CHILD)) {}
    Ok(None)
}

/// A worker that was forked and not waited for.
struct Forked {
    pid: Pid,
    was_seen_to_end: bool,
}

impl Forked {
    /// Waits for it if it was seen to have ended at an earlier look; whether that is done.
    fn reap(&mut self) -> bool {
        let mut options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        options.set(WaitIdOptions::NOWAIT, !self.was_seen_to_end);
        let seen = waitid(WaitId::Pid(self.pid), options);
        let is_waited_for = self.was_seen_to_end;
        self.was_seen_to_end |= matches!(seen, Ok(Some(_)));
        is_waited_for
    }
}

/// What the child of a nursery does before it is a worker like any other.
fn begin_worker(nursery: Pid, socket: OwnedFd) -> io::Result<UnixStream> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(nursery) {
        return Err(io::Error::other("its nursery is gone"));
    }
    let _ = rustix::thread::set_name(WORKER_NAME);
    // An interrupt from the terminal is for the supervising process alone.
    rustix::process::setpgid(None, None)?;
    // The nursery's own socket is its standard input.
    rustix::stdio::dup2_stdin(&socket)?;
    Ok(UnixStream::from(socket))
}

/// Whether there is something to read within a moment.
fn is_readable_soon(socket: &UnixStream) -> io::Result<bool> {
    let pause = Timespec::try_from(REAP_PAUSE).map_err(io::Error::other)?;
    let mut sockets = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut sockets, Some(&pause)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_single_threaded() -> bool {
    let count = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    (0..JOIN_LOOKS).any(|_| {
        let is_one = count() == 1;
        if !is_one {
            std::thread::sleep(JOIN_PAUSE);
        }
        is_one
    })
}

/// The child's number in the parent, `None` in the child.
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: this process has one thread, as was just seen, so no lock is held by another one that the child would not have.
    #[expect(unsafe_code, reason = "a process goes on in two")]
    let number = unsafe { libc::fork() };
    match number {
        ..0 => Err(io::Error::last_os_error()),
        number => Ok(Pid::from_raw(number)),
    }
}
