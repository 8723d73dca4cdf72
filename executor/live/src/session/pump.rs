//! What stands between a session's handles and live streams.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use zbmd_executor::{SinkHandle, SourceHandle, StreamError};

use crate::deliver::{ConsumerClosed, TokenConsumer};

/// Moved at a time, or one token.
const PIECE_BYTES: usize = 64 << 10;
/// How long the end is not looked for while no token comes.
const LOOK: Duration = Duration::from_millis(20);

/// A source's handle, as live streams see it.
pub struct HandleConsumer(pub SourceHandle);

fn taken(result: Result<u64, StreamError>) -> Result<u64, ConsumerClosed> {
    // Whole tokens of bytes are always taken, but by a run that ends.
    result.map_err(|_| ConsumerClosed)
}

impl TokenConsumer for HandleConsumer {
    fn offer(&mut self, bytes: &[u8]) -> Result<u64, ConsumerClosed> {
        taken(self.0.try_push_bytes(bytes))
    }

    fn offer_within(&mut self, bytes: &[u8], limit: Duration) -> Result<u64, ConsumerClosed> {
        taken(self.0.push_bytes_within(bytes, limit))
    }
}

/// Writes the tokens of a sink to its socket, until the run ends, nothing reads them any more, or `is_over` is set and
/// no token comes.
pub(super) fn drain(mut handle: SinkHandle, socket: &UnixStream, is_over: &AtomicBool) {
    let token_bytes = handle.token().bytes() as usize;
    let piece_tokens = (PIECE_BYTES / token_bytes).max(1);
    let mut piece = vec![0; piece_tokens * token_bytes];
    loop {
        // Looked at before the pull: what came before the end is still sent.
        let ends_when_empty = is_over.load(Ordering::Acquire);
        let Ok(tokens) = pull_some(&mut handle, &mut piece, token_bytes) else {
            return;
        };
        if tokens == 0 && (ends_when_empty || handle.is_finished()) {
            return;
        }
        if send_all(socket, &piece[..tokens as usize * token_bytes]).is_err() {
            return;
        }
    }
}

/// Waits a little for a first token, and takes what has come with it.
fn pull_some(
    handle: &mut SinkHandle,
    piece: &mut [u8],
    token_bytes: usize,
) -> Result<u64, StreamError> {
    let (first, rest) = piece.split_at_mut(token_bytes);
    let first_tokens = handle.pull_bytes_within(first, LOOK)?;
    if first_tokens == 0 {
        return Ok(0);
    }
    Ok(first_tokens + handle.pull_bytes_within(rest, Duration::ZERO)?)
}

/// Writes all of it, without the signal that a program dies of when the reader has gone.
fn send_all(socket: &UnixStream, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
