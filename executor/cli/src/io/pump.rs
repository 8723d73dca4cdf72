//! Threads that move tokens between files and a session: one for each stream, so that live pipes flow.

use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::block_gate::BlockGate;
use super::{FileError, FileKind, Position, PreparedSink, SinkFile, is_standard};
use zbmd_executor::{PumpRole, SinkHandle, SourceHandle, StreamError};

/// Bytes moved at a time, or one token where that is more.
const PIECE_BYTES: usize = 64 << 10;

/// How long the tokens of a regular file may wait for more of them, so that a run need not wake a thread for each block.
const FILE_LINGER: Duration = Duration::from_millis(1);

/// Is told how many tokens of a sink have been taken, as soon as they have.
pub(crate) type TokenListener = Box<dyn FnMut(u64) + Send>;

/// A sink, and who is told of its tokens.
pub(crate) struct WatchedSink {
    pub(crate) handle: SinkHandle,
    pub(crate) listener: Option<TokenListener>,
    /// Late blocks are not passed on.
    pub(crate) gate: Option<BlockGate>,
}

impl WatchedSink {
    pub(super) fn token_bytes(&self) -> u64 {
        self.handle.token().bytes()
    }

    /// See [`SinkHandle::pull_some_bytes`].
    pub(super) fn pull_some_bytes(&mut self, to: &mut [u8]) -> Result<u64, StreamError> {
        self.pull_batch_bytes(to, Duration::ZERO)
    }

    /// See [`SinkHandle::pull_batch_bytes`].
    fn pull_batch_bytes(&mut self, to: &mut [u8], linger: Duration) -> Result<u64, StreamError> {
        if let Some(gate) = &mut self.gate {
            return pull_through(gate, &mut self.handle, to);
        }
        let tokens = self.handle.pull_batch_bytes(to, linger)?;
        if let Some(listener) = &mut self.listener {
            listener(tokens);
        }
        Ok(tokens)
    }
}

/// Waits until the sink is to be given something by a gate; how many tokens. 0 at the end of the run.
fn pull_through(
    gate: &mut BlockGate,
    handle: &mut SinkHandle,
    to: &mut [u8],
) -> Result<u64, StreamError> {
    let token_bytes = handle.token().bytes();
    let mut has_ended = false;
    loop {
        let taken_bytes = gate.take_output(to) as u64;
        if taken_bytes > 0 || has_ended {
            return Ok(taken_bytes / token_bytes);
        }

        let limit = gate.wait_ns(zbmd_live::now_ns()).map(Duration::from_nanos);
        let room = gate.room();
        let tokens = match limit {
            Some(limit) => handle.pull_some_bytes_within(room, limit)?,
            None => handle.pull_some_bytes(room)?,
        };
        let now_ns = zbmd_live::now_ns();
        if tokens > 0 {
            gate.add((tokens * token_bytes) as usize, now_ns);
        } else if handle.is_finished() {
            gate.finish();
            has_ended = true;
            continue;
        }
        gate.fill_places(now_ns);
    }
}

/// How a stream's file came to its end.
#[derive(Debug)]
pub(crate) enum PumpEnd {
    /// The source's file ended, with this many bytes of an incomplete token at its end.
    SourceEnded {
        /// The source.
        stream: String,
        /// Bytes that are not a whole token.
        partial_bytes: u64,
    },
    /// The run took no more tokens.
    SourceRefused,
    /// All of the sink's tokens are in its file.
    SinkEnded {
        /// The sink.
        stream: String,
    },
    /// Whoever read the standard output has gone: there is no sense in going on.
    PipeClosed {
        /// The sink.
        stream: String,
    },
    /// A source's file cannot be read on.
    SourceFailed {
        /// What the system says.
        error: FileError,
        /// Closes with this: the run does not end before it is known why.
        source: Option<Box<SourceHandle>>,
    },
    /// A sink's file cannot be written on; the tokens that still come are dropped.
    SinkFailed {
        /// The sink.
        stream: String,
        /// What the system says.
        error: FileError,
    },
}

pub(super) fn piece(token_bytes: u64) -> Vec<u8> {
    let token_bytes = token_bytes as usize;
    vec![0; token_bytes * (PIECE_BYTES / token_bytes).max(1)]
}

/// Reads a file into a source until either ends.
pub(crate) fn fill(
    stream: &str,
    path: &Path,
    mut from: Box<dyn Read + Send>,
    mut source: SourceHandle,
) -> PumpEnd {
    let token_bytes = source.token().bytes() as usize;
    let mut buffer = piece(token_bytes as u64);
    let mut buffered_bytes = 0;
    let stream = stream.to_owned();
    loop {
        match from.read(&mut buffer[buffered_bytes..]) {
            Ok(0) => {
                return PumpEnd::SourceEnded {
                    stream,
                    partial_bytes: buffered_bytes as u64,
                };
            }
            Ok(bytes) => buffered_bytes += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => {
                let path = path.to_owned();
                return PumpEnd::SourceFailed {
                    error: FileError::Io {
                        path,
                        source: error,
                    },
                    source: Some(Box::new(source)),
                };
            }
        }

        // A read may end within a token: its beginning stays for the next one.
        let whole_bytes = buffered_bytes - buffered_bytes % token_bytes;
        match source.push_bytes(&buffer[..whole_bytes]) {
            Ok(()) => {}
            Err(StreamError::Closed { .. } | StreamError::Stopped { .. }) => {
                return PumpEnd::SourceRefused;
            }
            Err(other) => unreachable!("whole tokens of bytes are always taken: {other}"),
        }

        buffer.copy_within(whole_bytes..buffered_bytes, 0);
        buffered_bytes -= whole_bytes;
    }
}

/// A sink's file, shared by the pump that writes it and whoever makes it safe or reports what it holds.
#[derive(Clone)]
pub(crate) struct SharedFile {
    shared: Arc<Shared>,
}

struct Shared {
    file: Mutex<SinkState>,
    /// Told whenever there are more tokens, or there will be none.
    grown: Condvar,
    position: Position,
    kind: FileKind,
}

struct SinkState {
    stage: Stage,
    /// No more tokens come.
    is_over: bool,
}

enum Stage {
    /// Open, and not changed yet; and how many of the tokens in it are kept.
    Prepared(PreparedSink, Option<u64>),
    Writing(SinkFile),
    /// Its beginning failed.
    Unusable,
}

impl SharedFile {
    /// A file that is emptied by [`Self::begin`], or cut off after its first `resume_at` tokens.
    pub(crate) fn new(file: PreparedSink, resume_at: Option<u64>) -> Self {
        let shared = Shared {
            position: file.position().clone(),
            kind: file.kind(),
            file: Mutex::new(SinkState {
                stage: Stage::Prepared(file, resume_at),
                is_over: false,
            }),
            grown: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Makes the file ready to be written, if it is not: from here on what it held is gone.
    ///
    /// # Errors
    /// See [`FileError`].
    pub(crate) fn begin(&self) -> Result<(), FileError> {
        let mut state = self.locked();
        let stage = std::mem::replace(&mut state.stage, Stage::Unusable);
        state.stage = match stage {
            Stage::Prepared(file, None) => Stage::Writing(file.begin()?),
            Stage::Prepared(file, Some(tokens)) => Stage::Writing(file.resume(tokens)?),
            other => other,
        };
        Ok(())
    }

    /// Whether what the file held before is gone.
    pub(crate) fn has_begun(&self) -> bool {
        matches!(self.locked().stage, Stage::Writing(_))
    }

    /// Lets the reader of a pipe that was given nothing see its end. One that is being written is left to its writer.
    pub(crate) fn release_reader(&self) {
        if let Ok(state) = self.shared.file.try_lock()
            && let Stage::Prepared(file, _) = &state.stage
        {
            file.release_reader();
        }
    }

    /// Whole tokens in the file, those from before a resumption included. Does not wait for a write under way.
    pub(crate) fn tokens(&self) -> u64 {
        self.shared.position.tokens()
    }

    /// What the file is.
    pub(crate) fn kind(&self) -> FileKind {
        self.shared.kind
    }

    fn locked(&self) -> MutexGuard<'_, SinkState> {
        self.shared
            .file
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let written = match &mut self.locked().stage {
            Stage::Writing(file) => file.write_tokens(bytes),
            Stage::Prepared(..) | Stage::Unusable => {
                Err(io::Error::other("the file was never begun"))
            }
        };
        self.shared.grown.notify_all();
        written
    }

    pub(super) fn end(&self) {
        self.locked().is_over = true;
        self.shared.grown.notify_all();
    }

    /// Waits until the file holds `tokens` tokens, then makes it safe; whether it does, and is.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn sync_when(&self, tokens: u64, limit: Duration) -> io::Result<bool> {
        let is_short = |state: &mut SinkState| {
            let may_grow = !state.is_over && !matches!(state.stage, Stage::Unusable);
            may_grow && self.held(state) < tokens
        };
        let (mut state, _) = self
            .shared
            .grown
            .wait_timeout_while(self.locked(), limit, is_short)
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let holds_them = self.held(&state) >= tokens;
        match &mut state.stage {
            Stage::Writing(file) if holds_them => file.sync().map(|()| true),
            // The earlier run that wrote them made them safe.
            Stage::Prepared(..) => Ok(holds_them),
            Stage::Writing(_) | Stage::Unusable => Ok(false),
        }
    }

    /// Tokens in the file that count: of one that has not been begun, those that it will keep.
    fn held(&self, state: &SinkState) -> u64 {
        match &state.stage {
            Stage::Prepared(_, resume_at) => resume_at.unwrap_or(0),
            Stage::Writing(_) | Stage::Unusable => self.tokens(),
        }
    }

    /// Drops what a regular file holds beyond its first `tokens` tokens; other files keep what they were given.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn cut_back(&self, tokens: u64) -> io::Result<()> {
        if self.shared.kind != FileKind::Regular {
            // Whoever writes to a pipe may be waiting for its reader, with the file in hand.
            return Ok(());
        }
        match &mut self.locked().stage {
            Stage::Writing(file) => file.cut_back(tokens),
            Stage::Prepared(..) | Stage::Unusable => Ok(()),
        }
    }
}

/// Writes a sink's tokens to a file until the run ends.
pub(crate) fn drain(stream: &str, path: &Path, mut sink: WatchedSink, to: &SharedFile) -> PumpEnd {
    let token_bytes = sink.token_bytes() as usize;
    let mut buffer = piece(token_bytes as u64);
    let stream = stream.to_owned();
    // After a fault of the run, what was made before it is still written: the loop ends as at the end of a run.
    // Responses are measured until their tokens are pulled.
    let linger = match sink.listener {
        None => FILE_LINGER,
        Some(_) => Duration::ZERO,
    };
    while let Ok(tokens @ 1..) = sink.pull_batch_bytes(&mut buffer, linger) {
        let bytes = &buffer[..tokens as usize * token_bytes];
        if let Err(end) = write_piece(&stream, path, to, bytes) {
            to.end();
            return end;
        }
    }
    to.end();
    PumpEnd::SinkEnded { stream }
}

/// Writes some tokens to a sink's file; how the file came to its end if it cannot be written.
pub(super) fn write_piece(
    stream: &str,
    path: &Path,
    to: &SharedFile,
    bytes: &[u8],
) -> Result<(), PumpEnd> {
    // A run that fails before it has made anything leaves the file as it was.
    let begun = to.begin();
    begun.map_err(|error| PumpEnd::SinkFailed {
        stream: stream.to_owned(),
        error,
    })?;
    let Err(source) = to.write(bytes) else {
        return Ok(());
    };
    if source.kind() == ErrorKind::BrokenPipe && is_standard(path) {
        return Err(PumpEnd::PipeClosed {
            stream: stream.to_owned(),
        });
    }
    Err(PumpEnd::SinkFailed {
        stream: stream.to_owned(),
        error: FileError::Write {
            path: path.to_owned(),
            stream: stream.to_owned(),
            tokens: to.tokens(),
            source,
        },
    })
}

/// Runs a pump on a thread of its own, which reports its end to `ends`. It has its role when this returns.
///
/// # Errors
/// What the system says when it gives no thread.
pub(crate) fn spawn(
    name: &str,
    ends: Sender<PumpEnd>,
    pump_role: PumpRole,
    pump: impl FnOnce() -> PumpEnd + Send + 'static,
) -> io::Result<()> {
    let thread_name = format!("zbmd file {name}");
    let path = Path::new(&thread_name).to_owned();
    let run = move |entered: io::Result<()>| {
        let end = match entered {
            Ok(()) => pump(),
            Err(source) => PumpEnd::SourceFailed {
                error: FileError::Io { path, source },
                source: None,
            },
        };
        // Nobody listens any more when the program is ending: then the end is of no interest.
        drop(ends.send(end));
    };
    pump_role.spawn(thread_name, run).map(drop)
}
