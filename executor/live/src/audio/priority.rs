//! The priority of a card's thread: that of the thread at the other end of its queue, so that in a real-time run neither
//! waits for ordinary work.
#![cfg_attr(
    target_os = "linux",
    expect(unsafe_code, reason = "asks and tells the system a thread's priority")
)]

use std::sync::atomic::{AtomicI32, Ordering};

/// No real-time priority.
const ORDINARY: i32 = 0;

/// The priority that a card's thread is to have: one of `SCHED_FIFO`, or none.
#[derive(Debug, Default)]
pub(super) struct CardPriority {
    wanted: AtomicI32,
}

impl CardPriority {
    /// The calling thread's becomes that of the card's thread.
    pub(super) fn take_from_caller(&self) {
        self.wanted.store(own_priority(), Ordering::Relaxed);
    }

    /// Gives the calling thread, which is the card's, the priority that it is to have; `present` is the one that it has.
    /// Where the system refuses, the thread stays as it is: sound may then be late, and is counted as that.
    pub(super) fn give_to_caller(&self, present: &mut i32) {
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted != *present {
            *present = wanted;
            raise(wanted);
        }
    }
}

#[cfg(target_os = "linux")]
fn own_priority() -> i32 {
    // SAFETY: 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if policy & !libc::SCHED_RESET_ON_FORK != libc::SCHED_FIFO {
        return ORDINARY;
    }
    let mut parameters = libc::sched_param {
        sched_priority: ORDINARY,
    };
    // SAFETY: it writes the parameters, which live.
    match unsafe { libc::sched_getparam(0, &mut parameters) } {
        0 => parameters.sched_priority,
        _ => ORDINARY,
    }
}

#[cfg(target_os = "linux")]
fn raise(priority: i32) {
    if priority == ORDINARY {
        return;
    }
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: it reads the parameters, which live; 0 is the calling thread.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters);
    }
}

#[cfg(not(target_os = "linux"))]
fn own_priority() -> i32 {
    ORDINARY
}

#[cfg(not(target_os = "linux"))]
fn raise(_: i32) {}
