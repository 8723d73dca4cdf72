//! Standard error, as the command uses it. Whoever has something to say never waits for whoever reads it: lines go through
//! a bounded queue to a thread of their own; what finds no room is dropped and counted.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines that wait to be written.
const QUEUE_LENGTH: usize = 1024;
/// [`Console::say_in_turn`] waits as long as there are so many.
const QUEUE_LENGTH_IN_TURN: usize = 16;
/// How often [`Console::flush`] looks whether it is to go on.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The console of this process.
pub(super) static CONSOLE: Console = Console {
    state: Mutex::new(ConsoleState {
        waiting: VecDeque::new(),
        is_writing: false,
        written: 0,
        dropped: 0,
        has_thread: false,
    }),
    changed: Condvar::new(),
};

pub(super) struct Console {
    state: Mutex<ConsoleState>,
    changed: Condvar,
}

struct ConsoleState {
    waiting: VecDeque<String>,
    /// The thread has a line in its hands.
    is_writing: bool,
    written: u64,
    dropped: u64,
    has_thread: bool,
}

impl Console {
    fn state(&self) -> MutexGuard<'_, ConsoleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, ConsoleState>) -> MutexGuard<'a, ConsoleState> {
        let waited = self.changed.wait_timeout(state, LOOK_EVERY);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Says a line, or drops it if too many wait.
    pub(super) fn say(&'static self, line: String) {
        let state = self.state();
        self.add(state, line);
    }

    /// Says a line when those before it are nearly all written. For threads that may wait.
    pub(super) fn say_in_turn(&'static self, line: String) {
        let mut state = self.state();
        while state.waiting.len() >= QUEUE_LENGTH_IN_TURN {
            state = self.wait(state);
        }
        self.add(state, line);
    }

    fn add(&'static self, mut state: MutexGuard<'_, ConsoleState>, line: String) {
        if state.waiting.len() >= QUEUE_LENGTH {
            state.dropped += 1;
            return;
        }
        if !state.has_thread {
            let thread = std::thread::Builder::new().name("zbmd console".to_owned());
            if thread.spawn(|| self.write_lines()).is_err() {
                // There is nobody else to do it; whether standard error is closed does not matter.
                drop(writeln!(io::stderr(), "{line}"));
                return;
            }
            state.has_thread = true;
        }
        state.waiting.push_back(line);
        self.changed.notify_all();
    }

    fn write_lines(&self) {
        let mut state = self.state();
        loop {
            let Some(line) = state.waiting.pop_front() else {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let dropped = std::mem::take(&mut state.dropped);
            state.is_writing = true;
            self.changed.notify_all();
            drop(state);

            // If standard error is closed, nobody wants to know.
            drop(writeln!(io::stderr(), "{line}"));
            if dropped > 0 {
                drop(writeln!(
                    io::stderr(),
                    "zbmd-run: note: {dropped} lines are missing here: standard error was not read"
                ));
            }

            state = self.state();
            state.is_writing = false;
            state.written += 1;
            self.changed.notify_all();
        }
    }

    /// Waits until all is written, for as long as `goes_on` says so of the time in which nothing was.
    pub(super) fn flush(&self, goes_on: impl Fn(Duration) -> bool) {
        let mut state = self.state();
        let mut written = state.written;
        let mut quiet_since = Instant::now();
        while state.is_writing || !state.waiting.is_empty() {
            if state.written != written {
                written = state.written;
                quiet_since = Instant::now();
            }
            if !goes_on(quiet_since.elapsed()) {
                return;
            }
            state = self.wait(state);
        }
    }
}
