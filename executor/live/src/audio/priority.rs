//! The priority of a thread, to be handed to another one.
#![expect(unsafe_code, reason = "asks and tells the system a thread's priority")]

/// That of a thread under `SCHED_FIFO`, or an ordinary one.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadPriority {
    fifo: Option<i32>,
}

impl ThreadPriority {
    /// That of the calling thread.
    pub(super) fn of_caller() -> Self {
        // SAFETY: 0 is the calling thread.
        let policy = unsafe { libc::sched_getscheduler(0) };
        let mut parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: it writes the parameters, which live; 0 is the calling thread.
        let status = unsafe { libc::sched_getparam(0, &mut parameters) };
        let is_fifo = policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_FIFO && status == 0;
        Self {
            fifo: is_fifo.then_some(parameters.sched_priority),
        }
    }

    /// Gives it to the calling thread. Where the system refuses, the thread stays as it is: it may then be late, and what is
    /// late is counted.
    pub(super) fn give_to_caller(self) {
        let Some(priority) = self.fifo else {
            return;
        };
        let parameters = libc::sched_param {
            sched_priority: priority,
        };
        // SAFETY: it reads the parameters, which live; 0 is the calling thread.
        unsafe {
            libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters);
        }
    }
}
