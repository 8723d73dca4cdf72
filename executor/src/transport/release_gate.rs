//! How much of the sinks' tokens may be given out, where that is decided elsewhere: by a council. Tokens are computed ahead of
//! that, and wait in their queues. Nobody who computes looks at this; only who pulls from a sink does.
//!
//! Tokens that were released in time and not pulled yet are held back too once the conductor's lease is over: another may conduct
//! by then, and give them out itself.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::ring::Deadline;

/// A lease that has come back makes itself not heard: whoever waits for tokens that it holds back looks for it so often.
const LEASE_LOOK: Duration = Duration::from_millis(1);

/// Whether the lease of whoever releases is not over.
type Lease = Box<dyn Fn() -> bool + Send + Sync>;

/// What the sinks of a run may give out.
pub(crate) struct ReleaseGate {
    state: Mutex<GateState>,
    changed: Condvar,
    /// Nothing is given out beyond it.
    lease: OnceLock<Lease>,
}

#[derive(Debug)]
struct GateState {
    /// For each sink, in actor order, tokens since the session began.
    released: Vec<u64>,
    /// For each sink, tokens that whoever pulls has done with: it has come for more since.
    taken: Vec<u64>,
    /// No more will be released; what has been is given out yet.
    is_ended: bool,
    /// Nobody asks for the lease any more: nobody else will ever give out these tokens.
    is_free: bool,
    is_closed: bool,
}

impl std::fmt::Debug for ReleaseGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReleaseGate")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// What a sink may give out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    /// Tokens since the session began.
    pub tokens: u64,
    /// No more will be released.
    pub is_final: bool,
}

impl ReleaseGate {
    /// Nothing is released yet.
    pub(crate) fn new(sink_count: usize) -> Self {
        Self {
            state: Mutex::new(GateState {
                released: vec![0; sink_count],
                taken: vec![0; sink_count],
                is_ended: false,
                is_free: false,
                is_closed: false,
            }),
            changed: Condvar::new(),
            lease: OnceLock::new(),
        }
    }

    /// Nothing is given out from now on while this says no.
    #[cfg(any(test, hosts))]
    pub(crate) fn hold_to(&self, lease: impl Fn() -> bool + Send + Sync + 'static) {
        // A run has one seat in a council.
        let _ = self.lease.set(Box::new(lease));
    }

    /// What has been released is given out whatever the lease says from now on: nobody else will do so.
    #[cfg(any(test, hosts))]
    pub(crate) fn set_free(&self) {
        self.locked().is_free = true;
        self.changed.notify_all();
    }

    /// Releases the tokens of each sink up to these counts. Counts do not go back, and nothing is released of a gate that is
    /// closed.
    #[cfg(any(test, hosts))]
    pub(crate) fn release(&self, counts: &[u64]) {
        let mut state = self.locked();
        if state.is_ended || state.is_closed {
            return;
        }
        for (released, count) in state.released.iter_mut().zip(counts) {
            *released = (*released).max(*count);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Nothing more is released: whoever waits is told, once it has been given the rest.
    #[cfg(any(test, hosts))]
    pub(crate) fn end(&self) {
        self.locked().is_ended = true;
        self.changed.notify_all();
    }

    /// Nothing more is released, and nothing given out that the lease holds back: whoever waits is told.
    pub(crate) fn close(&self) {
        self.locked().is_closed = true;
        self.changed.notify_all();
    }

    /// Whether the run is given up.
    #[cfg(any(test, hosts))]
    pub(crate) fn is_closed(&self) -> bool {
        self.locked().is_closed
    }

    /// Whoever pulls from a sink comes for more, and has done with so many tokens; `u64::MAX` if nobody pulls any more.
    pub(crate) fn note_taken(&self, sink: usize, tokens: u64) {
        self.locked().taken[sink] = tokens;
    }

    /// Whether whoever pulls from the sinks has done with these counts.
    #[cfg(any(test, hosts))]
    pub(crate) fn has_taken(&self, counts: &[u64]) -> bool {
        let state = self.locked();
        let mut sinks = state.taken.iter().zip(counts);
        sinks.all(|(taken, count)| taken >= count)
    }

    /// What a sink may give out that has given out so many tokens.
    pub(crate) fn released(&self, sink: usize, pulled: u64) -> Released {
        self.of(&self.locked(), sink, pulled)
    }

    /// Tokens that have been released of a sink, whether they may be given out now or not.
    pub(crate) fn released_tokens(&self, sink: usize) -> u64 {
        self.locked().released[sink]
    }

    /// Waits until a sink may give out more than `pulled` tokens, the gate is closed, or the deadline has come.
    pub(crate) fn wait(&self, sink: usize, pulled: u64, deadline: Deadline) -> Released {
        let mut state = self.locked();
        loop {
            let released = self.of(&state, sink, pulled);
            let left_ns = deadline.left_ns();
            if released.tokens > pulled || released.is_final || left_ns == Some(0) {
                return released;
            }
            let mut left = Duration::from_nanos(left_ns.unwrap_or(u64::MAX));
            if state.released[sink] > pulled {
                left = left.min(LEASE_LOOK);
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn of(&self, state: &GateState, sink: usize, pulled: u64) -> Released {
        let tokens = state.released[sink];
        let is_leased = state.is_free || self.lease.get().is_none_or(|lease| lease());
        match is_leased || tokens <= pulled {
            true => Released {
                tokens,
                is_final: state.is_ended || state.is_closed,
            },
            false => Released {
                tokens: pulled,
                is_final: state.is_closed,
            },
        }
    }

    fn locked(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn what_is_released_does_not_go_back_and_ends_with_the_gate() {
        let gate = ReleaseGate::new(2);
        gate.release(&[5, 3]);
        gate.release(&[4, 9]);
        let open = |tokens| Released {
            tokens,
            is_final: false,
        };
        assert_eq!(
            (gate.released(0, 0), gate.released(1, 0)),
            (open(5), open(9))
        );
        let soon = Deadline::after(Duration::from_millis(1));
        assert_eq!(gate.wait(0, 5, soon), open(5), "the time is over");

        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.wait(0, 5, Deadline::NEVER));
            gate.release(&[6, 0]);
            assert_eq!(waiting.join().expect("no panic"), open(6));
            let waiting = scope.spawn(|| gate.wait(0, 6, Deadline::NEVER));
            gate.close();
            assert!(waiting.join().expect("no panic").is_final);
        });
        gate.release(&[7, 7]);
        assert_eq!(gate.released(0, 0).tokens, 6);
    }

    /// What was released within the lease and not pulled yet is not given out after it, unless it comes back.
    #[test]
    fn nothing_is_given_out_after_the_lease() {
        let gate = ReleaseGate::new(1);
        let lease = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&lease);
        gate.hold_to(move || asked.load(Ordering::Acquire));
        let found = |tokens, is_final| Released { tokens, is_final };
        gate.release(&[5]);
        assert_eq!(gate.released(0, 2), found(5, false));

        lease.store(false, Ordering::Release);
        let soon = Deadline::after(Duration::from_millis(5));
        assert_eq!(
            gate.wait(0, 2, soon),
            found(2, false),
            "three are held back"
        );
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.wait(0, 2, Deadline::NEVER));
            lease.store(true, Ordering::Release);
            assert_eq!(waiting.join().expect("no panic"), found(5, false));
        });

        // At the end of a run the rest is waited for, as long as there is hope.
        gate.end();
        lease.store(false, Ordering::Release);
        let soon = Deadline::after(Duration::from_millis(5));
        assert_eq!(gate.wait(0, 2, soon), found(2, false));
        gate.close();
        assert_eq!(gate.wait(0, 2, Deadline::NEVER), found(2, true));
        gate.set_free();
        assert_eq!(gate.wait(0, 2, Deadline::NEVER), found(5, true));
    }

    #[test]
    fn tokens_are_taken_when_every_sink_has_been_come_back_to() {
        let gate = ReleaseGate::new(2);
        assert!(gate.has_taken(&[0, 0]) && !gate.has_taken(&[0, 1]));
        gate.note_taken(0, 5);
        gate.note_taken(1, 3);
        assert!(gate.has_taken(&[5, 3]) && !gate.has_taken(&[5, 4]));
        gate.note_taken(1, u64::MAX);
        assert!(gate.has_taken(&[5, 4]));
    }
}
