//! A small process beside an agent's, which tells the conductor at once that the agent's process has ended.
//!
//! The workers of an agent are threads of its process. When that is killed, the system closes its connections only after it has
//! freed the memory, which takes about 100 ms for each GiB. The agent holds a lock that is released before
//! ([`crate::transport::life_lock`]), and another process of the same host is needed to see that. It has the connection to the
//! conductor open too, and shuts it down: to the conductor that is the end of the connection, only sooner.
//!
//! The sentinel is this very program, started anew, and decides nothing. Without it, or when it ends before the agent, an agent that
//! is killed is seen by the end of its connection, and by its heartbeats as before. It ends with the agent, also after an end in
//! good order: its socket says so.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{Shutdown, shutdown};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use zbmd_wire::connection::SharedConnection;

use crate::run::life_watch::LifeWatch;
use crate::run::wire::{self, Outbox};
use crate::transport::clock::Clock;
use crate::transport::life_lock::{self, LifeLocks};

/// Set in the environment of a sentinel's process.
const MARK: &str = "ZBMD_SENTINEL";

/// To a sentinel.
#[derive(Debug, Serialize, Deserialize)]
enum SentinelRequest {
    /// Comes first, with the memory of the lock that the agent holds.
    Watch { life_lock: u32 },
    /// The connection that comes with this is to end when the agent does.
    Guard { number: u64 },
    /// It has ended.
    Release { number: u64 },
}

/// The agent's handle of its sentinel. Nothing that it does waits for the sentinel.
pub(super) struct Sentinel {
    outbox: Mutex<Outbox>,
    next_number: AtomicU64,
}

/// A connection that ends at once when this process does, as long as this is kept.
pub(super) struct GuardedConnection<'a> {
    sentinel: &'a Sentinel,
    number: u64,
}

impl Sentinel {
    /// Starts one. It needs a program that calls [`crate::serve_if_worker`] first of all in `main`.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start() -> io::Result<Self> {
        let placed_lock = LifeLocks::default().next().map_err(io::Error::other)?;
        let (socket, sentinel_socket) = UnixStream::pair()?;
        let mut outbox = Outbox::new(socket);
        if let Some((memory, life_lock)) = placed_lock.place() {
            let watch = SentinelRequest::Watch { life_lock };
            outbox.post(Clock.now_ns(), &watch, &[memory])?;
        }

        let mut command = Command::new("/proc/self/exe");
        command
            .env(MARK, "1")
            .stdin(OwnedFd::from(sentinel_socket))
            .stdout(Stdio::null())
            // Whoever waits for the end of the agent's output does not wait for the sentinel.
            .stderr(Stdio::null())
            // An interrupt from the terminal is for the agent alone.
            .process_group(0);
        // The thread that starts it lives as long as this process: the sentinel is sent a signal when it ends.
        life_lock::hold_on_thread(placed_lock.lock.clone(), move || {
            let child = command.spawn();
            // Its copy of the sentinel's end would keep the socket open.
            drop(command);
            if let Ok(mut child) = child {
                let _ = child.wait();
            }
        })?;
        Ok(Self {
            outbox: Mutex::new(outbox),
            next_number: AtomicU64::new(0),
        })
    }

    /// Lets a connection end as soon as this process does. Whoever ends it before shuts it down: the sentinel has it open too.
    pub(super) fn guard(&self, connection: &SharedConnection) -> GuardedConnection<'_> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        // If that cannot be sent, the connection ends later than it could.
        let _ = self.outbox().post(
            Clock.now_ns(),
            &SentinelRequest::Guard { number },
            &[connection.as_fd()],
        );
        GuardedConnection {
            sentinel: self,
            number,
        }
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GuardedConnection<'_> {
    fn drop(&mut self) {
        let number = self.number;
        let release = SentinelRequest::Release { number };
        let _ = self.sentinel.outbox().post(Clock.now_ns(), &release, &[]);
    }
}

/// Does a sentinel's work if this process was started as one, and then ends it; returns at once if not.
pub(crate) fn serve_if_sentinel() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    // One that was stopped would keep the connections open when the agent is gone: it goes on then.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    let mut guarded = BTreeMap::new();
    let served = serve(&mut guarded);

    // The agent is gone, or was never there. Connections that are ended already are passed over.
    for connection in guarded.values() {
        let _ = shutdown(connection, Shutdown::Both);
    }
    std::process::exit(i32::from(served.is_err()));
}

/// Does what the agent says until the agent is gone: then what is left in `guarded` are its connections, by their numbers.
fn serve(guarded: &mut BTreeMap<u64, OwnedFd>) -> io::Result<()> {
    let socket = Arc::new(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?));
    let mut life_watch = None;
    while let Some((request, files)) = wire::receive::<SentinelRequest>(&socket)? {
        let file = files.into_iter().next();
        match request {
            SentinelRequest::Watch { life_lock } => {
                let memory = file.ok_or(io::ErrorKind::InvalidData)?;
                let lock = life_lock::find(memory, life_lock)?;
                life_watch.get_or_insert_with(|| LifeWatch::start(lock, &socket));
            }
            SentinelRequest::Guard { number } => {
                let connection = file.ok_or(io::ErrorKind::InvalidData)?;
                guarded.insert(number, connection);
            }
            SentinelRequest::Release { number } => {
                guarded.remove(&number);
            }
        }
    }
    Ok(())
}
