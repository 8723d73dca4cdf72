//! Between a run and an output whose reader may stall: one thread takes tokens from the run, another writes them.
//!
//! As long as the run goes on, only so much waits between the two, and a reader that stalls stops the run, as it
//! should. When the run is told to end, whatever it still has to give out is taken into memory at once: it is as much as
//! the blocks at work make. So the run comes to its end in good order, and the other thread writes on as far as the
//! reader takes it.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::FileError;
use super::pump::{PumpEnd, SharedFile, WatchedSink, piece, write_piece};
use zbmd_executor::{PumpRole, Stopper};

/// Pieces that wait for the writer while the run goes on. Tokens that come while one waits are added to it as long as it has
/// room: a writer that the system wakes late then writes them all at once, and the run does not wait for it.
const QUEUE_LENGTH: usize = 2;
/// How often a full queue looks whether the run is to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Tokens on their way.
struct Piece {
    bytes: Vec<u8>,
    tokens: u64,
}

impl Piece {
    /// Adds another piece's tokens if there is room for them; whether there is.
    fn add(&mut self, other: &Self, token_bytes: u64) -> bool {
        let [begin, length] =
            [self.tokens, other.tokens].map(|tokens| (tokens * token_bytes) as usize);
        let Some(room) = self.bytes.get_mut(begin..begin + length) else {
            return false;
        };
        room.copy_from_slice(&other.bytes[..length]);
        self.tokens += other.tokens;
        true
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Piece>,
    /// Buffers that have been written.
    free: Vec<Vec<u8>>,
    /// No more pieces will come.
    is_complete: bool,
    /// What came of the writing.
    end: Option<PumpEnd>,
}

#[derive(Default)]
struct Relay {
    state: Mutex<State>,
    changed: Condvar,
}

impl Relay {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, LOOK_EVERY);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits for room, unless the run is to end; an empty buffer in return, if there is one. False if the writer ended.
    fn put(&self, piece: Piece, token_bytes: u64, stopper: &Stopper) -> (bool, Option<Vec<u8>>) {
        let mut state = self.state();
        if let Some(last) = state.waiting.back_mut()
            && last.add(&piece, token_bytes)
        {
            return (state.end.is_none(), Some(piece.bytes));
        }
        while state.waiting.len() >= QUEUE_LENGTH && state.end.is_none() && !stopper.is_stopping() {
            state = self.wait(state);
        }
        state.waiting.push_back(piece);
        self.changed.notify_all();
        (state.end.is_none(), state.free.pop())
    }

    /// No more pieces come: waits until all is written.
    fn complete(&self) -> PumpEnd {
        let mut state = self.state();
        state.is_complete = true;
        self.changed.notify_all();
        loop {
            if let Some(end) = state.end.take() {
                return end;
            }
            state = self.wait(state);
        }
    }

    /// The next piece; `None` after the last one.
    fn take(&self) -> Option<Piece> {
        let mut state = self.state();
        loop {
            if let Some(piece) = state.waiting.pop_front() {
                self.changed.notify_all();
                return Some(piece);
            }
            if state.is_complete {
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write_all(&self, stream: &str, path: &Path, token_bytes: u64, to: &SharedFile) -> PumpEnd {
        while let Some(Piece { bytes, tokens }) = self.take() {
            let length = (tokens * token_bytes) as usize;
            if let Err(end) = write_piece(stream, path, to, &bytes[..length]) {
                return end;
            }
            self.state().free.push(bytes);
        }
        PumpEnd::SinkEnded {
            stream: stream.to_owned(),
        }
    }

    fn end(&self, end: PumpEnd) {
        self.state().end = Some(end);
        self.changed.notify_all();
    }
}

/// Writes a sink's tokens to an output whose reader may stall, until the run ends.
pub(crate) fn drain(
    stream: &str,
    path: &Path,
    mut sink: WatchedSink,
    to: &SharedFile,
    stopper: &Stopper,
    pump_role: PumpRole,
) -> PumpEnd {
    let token_bytes = sink.token_bytes();
    let relay = Arc::new(Relay::default());
    let writer_relay = Arc::clone(&relay);
    let writer_file = to.clone();
    let writer_stream = stream.to_owned();
    let writer_path = path.to_owned();

    let spawn_result = std::thread::Builder::new()
        .name(format!("zbmd pipe {stream}"))
        .spawn(move || {
            let end = match pump_role.enter() {
                Ok(()) => {
                    writer_relay.write_all(&writer_stream, &writer_path, token_bytes, &writer_file)
                }
                Err(source) => PumpEnd::SinkFailed {
                    stream: writer_stream,
                    error: FileError::Io {
                        path: writer_path,
                        source,
                    },
                },
            };
            writer_file.end();
            writer_relay.end(end);
        });
    if let Err(source) = spawn_result {
        to.end();
        return PumpEnd::SinkFailed {
            stream: stream.to_owned(),
            error: FileError::Io {
                path: path.to_owned(),
                source,
            },
        };
    }

    // Buffers go round: the writer returns those that it has written.
    let mut buffer = piece(token_bytes);
    while let Ok(tokens @ 1..) = sink.pull_some_bytes(&mut buffer) {
        let bytes = std::mem::take(&mut buffer);
        let (goes_on, free_buffer) = relay.put(Piece { bytes, tokens }, token_bytes, stopper);
        if !goes_on {
            break;
        }
        buffer = free_buffer.unwrap_or_else(|| piece(token_bytes));
    }
    relay.complete()
}
