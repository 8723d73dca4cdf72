//! The atomics and the sleeping place that the lock-free protocols are built from: std's, or loom's under
//! `cfg(loom)`, so that loom runs the very code that ships. Must not know any protocol.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Hints to the core that this is a spin loop.
pub(crate) fn spin_loop() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

/// A number on which threads can sleep until it moves: a futex, which may lie in memory that processes share.
#[cfg(all(target_os = "linux", not(loom), not(miri)))]
#[derive(Debug)]
pub(crate) struct WakeCounter {
    number: AtomicU32,
}

#[cfg(all(target_os = "linux", not(loom), not(miri)))]
impl WakeCounter {
    pub(crate) fn new() -> Self {
        Self {
            number: AtomicU32::new(0),
        }
    }

    pub(crate) fn current(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// Sleeps unless the number has moved on from `seen`, for so many nanoseconds at most if there is a limit. May
    /// return early: callers check again.
    pub(crate) fn sleep(&self, seen: u32, limit_ns: Option<u64>) {
        use rustix::thread::futex;
        #[cfg(hosts)]
        let limit_ns = duties::limit_ns(limit_ns);
        let limit = limit_ns.map(|ns| futex::Timespec {
            tv_sec: (ns / 1_000_000_000).cast_signed(),
            tv_nsec: (ns % 1_000_000_000) as _,
        });
        // Any error (interrupted, moved on, time over) means the same as a wake-up: look again.
        let _ = futex::wait(&self.number, futex::Flags::empty(), seen, limit.as_ref());
        #[cfg(hosts)]
        duties::attend();
    }

    /// Moves the number on and wakes every sleeper.
    pub(crate) fn advance(&self) {
        use rustix::thread::futex;
        self.number.fetch_add(1, Ordering::Release);
        // Waking cannot fail for a valid address; there is nothing to do if it did.
        let _ = futex::wake(&self.number, futex::Flags::empty(), i32::MAX as u32);
    }
}

/// What a thread attends to every now and then while it sleeps: its wires, which others may wait for.
#[cfg(all(hosts, not(loom), not(miri)))]
pub(crate) mod duties {
    use std::cell::Cell;

    /// A thread with duties sleeps for so long at a time.
    const PAUSE_NS: u64 = 1_000_000;

    thread_local! {
        static DUTY: Cell<Option<fn()>> = const { Cell::new(None) };
    }

    /// Gives this thread a duty, or takes it away.
    pub(crate) fn set(duty: Option<fn()>) {
        DUTY.set(duty);
    }

    pub(super) fn limit_ns(limit_ns: Option<u64>) -> Option<u64> {
        match DUTY.get() {
            Some(_) => Some(limit_ns.map_or(PAUSE_NS, |ns| ns.min(PAUSE_NS))),
            None => limit_ns,
        }
    }

    pub(super) fn attend() {
        if let Some(duty) = DUTY.get() {
            duty();
        }
    }
}

/// A number on which threads can sleep until it moves, for loom, Miri and systems without futexes.
#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
#[derive(Debug)]
pub(crate) struct WakeCounter {
    number: AtomicU32,
    lock: sync::Mutex<()>,
    moved: sync::Condvar,
}

#[cfg(loom)]
use loom::sync;
#[cfg(all(not(loom), not(all(target_os = "linux", not(miri)))))]
use std::sync;

#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
impl WakeCounter {
    pub(crate) fn new() -> Self {
        Self {
            number: AtomicU32::new(0),
            lock: sync::Mutex::new(()),
            moved: sync::Condvar::new(),
        }
    }

    pub(crate) fn current(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// Sleeps unless the number has moved on from `seen`, for so many nanoseconds at most if there is a limit. May
    /// return early: callers check again.
    pub(crate) fn sleep(&self, seen: u32, limit_ns: Option<u64>) {
        let guard = match self.lock.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        if self.number.load(Ordering::Acquire) == seen {
            match limit_ns.map(std::time::Duration::from_nanos) {
                Some(limit) => drop(self.moved.wait_timeout(guard, limit)),
                None => drop(self.moved.wait(guard)),
            }
        }
    }

    /// Moves the number on and wakes every sleeper.
    pub(crate) fn advance(&self) {
        let guard = self.lock.lock();
        self.number.fetch_add(1, Ordering::Release);
        drop(guard);
        self.moved.notify_all();
    }
}
