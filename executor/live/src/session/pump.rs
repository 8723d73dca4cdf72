//! What stands between a session's handles and live streams.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use zbmd_executor::{SinkHandle, SourceHandle, StreamError};

use crate::deliver::{ConsumerClosed, TokenConsumer};

/// Moved at a time, or one token.
const PIECE_BYTES: usize = 64 << 10;
/// How long the end is not looked for while no token comes or is taken.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// Once the run is over, a sink that takes nothing for so long is left.
const PATIENCE: Duration = Duration::from_millis(500);

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
/// no token comes or is taken. The socket's writes wait for [`LOOK`] at most.
pub(super) fn drain(mut handle: SinkHandle, socket: &UnixStream, is_over: &AtomicBool) {
    let token_bytes = handle.token().bytes() as usize;
    let piece_tokens = (PIECE_BYTES / token_bytes).max(1);
    let mut piece = vec![0; piece_tokens * token_bytes];
    loop {
        // Looked at before the pull: what came before the end is still sent.
        let ends_when_empty = is_over.load(Ordering::Acquire);
        let Ok(tokens) = handle.pull_some_bytes_within(&mut piece, LOOK) else {
            return;
        };
        if tokens == 0 && (ends_when_empty || handle.is_finished()) {
            return;
        }

        let mut unsent = &piece[..tokens as usize * token_bytes];
        let mut taken_at = Instant::now();
        while !unsent.is_empty() {
            match send_some(socket, unsent) {
                Ok(0) if is_over.load(Ordering::Acquire) && taken_at.elapsed() > PATIENCE => return,
                Ok(0) => {}
                Ok(bytes) => {
                    unsent = &unsent[bytes..];
                    taken_at = Instant::now();
                }
                Err(_) => return,
            }
        }
    }
}

/// How many bytes the socket takes, after some waiting if it is full.
fn send_some(socket: &UnixStream, bytes: &[u8]) -> Result<usize, Errno> {
    // Without the signal that a program dies of when the reader has gone.
    match send(socket, bytes, SendFlags::NOSIGNAL) {
        Err(Errno::INTR | Errno::AGAIN) => Ok(0),
        result => result,
    }
}
