//! How much of the sinks' tokens may be given out, where that is decided elsewhere: by a council. Tokens are computed ahead of
//! that, and wait in their queues. Nobody who computes looks at this; only who pulls from a sink does.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ring::Deadline;

/// What the sinks of a run may give out.
#[derive(Debug)]
pub(crate) struct ReleaseGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug)]
struct GateState {
    /// For each sink, in actor order, tokens since the session began.
    released: Vec<u64>,
    /// For each sink, tokens that whoever pulls has done with: it has come for more since.
    taken: Vec<u64>,
    is_closed: bool,
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
                is_closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Releases the tokens of each sink up to these counts. Counts do not go back, and nothing is released of a gate that is
    /// closed.
    #[cfg(any(test, all(feature = "hosts", target_os = "linux")))]
    pub(crate) fn release(&self, counts: &[u64]) {
        let mut state = self.locked();
        if state.is_closed {
            return;
        }
        for (released, count) in state.released.iter_mut().zip(counts) {
            *released = (*released).max(*count);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Nothing more is released: whoever waits is told.
    pub(crate) fn close(&self) {
        self.locked().is_closed = true;
        self.changed.notify_all();
    }

    /// Whoever pulls from a sink comes for more, and has done with so many tokens; `u64::MAX` if nobody pulls any more.
    pub(crate) fn note_taken(&self, sink: usize, tokens: u64) {
        self.locked().taken[sink] = tokens;
    }

    /// Whether whoever pulls from the sinks has done with these counts.
    #[cfg(any(test, all(feature = "hosts", target_os = "linux")))]
    pub(crate) fn has_taken(&self, counts: &[u64]) -> bool {
        let state = self.locked();
        let mut sinks = state.taken.iter().zip(counts);
        sinks.all(|(taken, count)| taken >= count)
    }

    /// What a sink may give out now.
    pub(crate) fn released(&self, sink: usize) -> Released {
        self.locked().of(sink)
    }

    /// Waits until a sink may give out more than `pulled` tokens, the gate is closed, or the deadline has come.
    pub(crate) fn wait(&self, sink: usize, pulled: u64, deadline: Deadline) -> Released {
        let mut state = self.locked();
        loop {
            let released = state.of(sink);
            let left_ns = deadline.left_ns();
            if released.tokens > pulled || released.is_final || left_ns == Some(0) {
                return released;
            }
            let left = Duration::from_nanos(left_ns.unwrap_or(u64::MAX));
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn locked(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GateState {
    fn of(&self, sink: usize) -> Released {
        Released {
            tokens: self.released[sink],
            is_final: self.is_closed,
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!((gate.released(0), gate.released(1)), (open(5), open(9)));
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
        assert_eq!(gate.released(0).tokens, 6);
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
