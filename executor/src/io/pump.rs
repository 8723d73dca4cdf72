//! Threads that move tokens between files and a session: one for each stream, so that live pipes flow.

use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};

use super::pipe::Taken;
use super::{FileError, TokenWrite, is_standard};
use crate::stream::{SinkHandle, SourceHandle, StreamError};

/// Bytes moved at a time, or one token where that is more.
const PIECE_BYTES: usize = 64 << 10;

/// How a stream's file came to its end.
#[derive(Debug)]
pub enum PumpEnd {
    /// The source's file ended, with this many bytes of an incomplete token at its end.
    SourceEnded {
        /// The source.
        stream: String,
        /// Bytes that are no whole token.
        partial_bytes: u64,
    },
    /// The run took no more tokens.
    SourceRefused {
        /// The source.
        stream: String,
    },
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
    /// A source's file cannot be read on; the source was closed.
    SourceFailed(FileError),
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
pub fn fill(
    stream: &str,
    path: &Path,
    mut from: Box<dyn Read + Send>,
    mut source: SourceHandle,
) -> PumpEnd {
    let token_bytes = source.token().bytes() as usize;
    let mut buffer = piece(token_bytes as u64);
    let mut there = 0;
    let stream = stream.to_owned();
    loop {
        match from.read(&mut buffer[there..]) {
            Ok(0) => {
                return PumpEnd::SourceEnded {
                    stream,
                    partial_bytes: there as u64,
                };
            }
            Ok(bytes) => there += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(source) => {
                return PumpEnd::SourceFailed(FileError::Io {
                    path: path.to_owned(),
                    source,
                });
            }
        }
        let whole = there - there % token_bytes;
        match source.push_bytes(&buffer[..whole]) {
            Ok(()) => {}
            Err(StreamError::Closed { .. } | StreamError::Stopped { .. }) => {
                return PumpEnd::SourceRefused { stream };
            }
            Err(other) => unreachable!("whole tokens of bytes are always taken: {other}"),
        }
        buffer.copy_within(whole..there, 0);
        there -= whole;
    }
}

/// A sink's file, and how much has been written to it: shared by the pump and whoever makes it safe.
#[derive(Clone)]
pub struct SharedFile {
    inner: Arc<Mutex<Written>>,
    taken: Option<Taken>,
}

/// The file until it is finished, and the tokens in it.
type Written = (Option<Box<dyn TokenWrite>>, u64);

impl SharedFile {
    /// A file that holds `tokens` tokens.
    pub fn new(file: Box<dyn TokenWrite>, tokens: u64) -> Self {
        let taken = file.taken();
        Self {
            inner: Arc::new(Mutex::new((Some(file), tokens))),
            taken,
        }
    }

    /// Bytes that whoever reads it has taken, if it is not a file on a disk.
    pub(crate) fn taken(&self) -> Option<Taken> {
        self.taken.clone()
    }

    fn locked(&self) -> MutexGuard<'_, Written> {
        self.inner
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn write(&self, bytes: &[u8], tokens: u64) -> io::Result<()> {
        let (file, there) = &mut *self.locked();
        *there += tokens;
        file.as_mut()
            .map_or(Ok(()), |file| file.write_tokens(bytes))
    }

    pub(super) fn finish(&self) -> io::Result<()> {
        let file = self.locked().0.take();
        file.map_or(Ok(()), TokenWrite::finish)
    }

    /// Makes the file safe if it holds `tokens` tokens; whether it does, and is.
    ///
    /// # Errors
    /// What the system says.
    pub fn sync_at(&self, tokens: u64) -> io::Result<bool> {
        let (file, there) = &mut *self.locked();
        match file {
            _ if *there < tokens => Ok(false),
            Some(file) => file.sync().map(|()| true),
            // Finished: complete, header and all.
            None => Ok(true),
        }
    }
}

/// Writes a sink's tokens to a file until the run ends.
pub fn drain(stream: &str, path: &Path, mut sink: SinkHandle, to: &SharedFile) -> PumpEnd {
    let token_bytes = sink.token().bytes() as usize;
    let mut buffer = piece(token_bytes as u64);
    let stream = stream.to_owned();
    // After a fault of the run, what was made before it is still written: the loop ends as at the end of a run.
    while let Ok(tokens @ 1..) = sink.pull_some_bytes(&mut buffer) {
        if let Err(error) = to.write(&buffer[..tokens as usize * token_bytes], tokens) {
            return failure(error, path, &stream);
        }
    }
    match to.finish() {
        Ok(()) => PumpEnd::SinkEnded { stream },
        Err(error) => failure(error, path, &stream),
    }
}

/// How a sink's file came to its end that cannot be written.
pub(super) fn failure(source: io::Error, path: &Path, stream: &str) -> PumpEnd {
    if source.kind() == ErrorKind::BrokenPipe && is_standard(path) {
        return PumpEnd::PipeClosed {
            stream: stream.to_owned(),
        };
    }
    PumpEnd::SinkFailed {
        stream: stream.to_owned(),
        error: FileError::Io {
            path: path.to_owned(),
            source,
        },
    }
}

/// Runs a pump on a thread of its own, which tells its end to `ends`.
///
/// # Errors
/// What the system says when it gives no thread.
pub fn spawn(
    name: &str,
    ends: Sender<PumpEnd>,
    pump: impl FnOnce() -> PumpEnd + Send + 'static,
) -> io::Result<()> {
    let run = move || {
        // Nobody listens any more when the program is ending: then the end is of no interest.
        drop(ends.send(pump()));
    };
    std::thread::Builder::new()
        .name(format!("zbmd file {name}"))
        .spawn(run)
        .map(drop)
}
