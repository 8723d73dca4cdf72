//! Sees that a process is ending before its socket is closed, and ends the socket for it: whoever listens there receives what the
//! process had sent, and then the end. So an end has one source, however it was seen first.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use crossbeam_utils::CachePadded;

use crate::transport::arena::In;
use crate::transport::life_lock::{LifeEnd, LifeLock};

/// It calls little.
const WATCH_STACK_BYTES: usize = 256 << 10;

/// A thread that waits for the end of one process.
pub(super) struct LifeWatch {
    lock: In<CachePadded<LifeLock>>,
    is_closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LifeWatch {
    /// Waits for the end of the process that holds the lock, or will. Without a thread nobody waits: the socket's own end comes
    /// later, but it comes.
    pub(super) fn start(lock: In<CachePadded<LifeLock>>, socket: &Arc<UnixStream>) -> Self {
        let is_closed = Arc::<AtomicBool>::default();
        let (watched_lock, flag) = (lock.clone(), Arc::clone(&is_closed));
        let socket = Arc::clone(socket);
        let thread = std::thread::Builder::new()
            .name("zbmd life watch".to_owned())
            .stack_size(WATCH_STACK_BYTES)
            .spawn(move || {
                if watched_lock.wait_for_end(&flag) == LifeEnd::Died {
                    // That it is closed already is no error.
                    let _ = socket.shutdown(Shutdown::Both);
                }
            });
        Self {
            lock,
            is_closed,
            thread: thread.ok(),
        }
    }

    /// Waits no longer.
    pub(super) fn end(mut self) {
        self.lock.close(&self.is_closed);
        if let Some(thread) = self.thread.take() {
            // It calls nothing that panics.
            let _ = thread.join();
        }
    }
}
