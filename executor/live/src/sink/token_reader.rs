//! A run's pipe, as the thread of a sink reads it: in whole tokens, up to the last one.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::net::wait_readable;
use crate::url::SinkUrl;

/// Read at once, or one token.
const PIECE_BYTES: usize = 64 << 10;
/// Memory of a queue where its URL does not say.
const DEFAULT_QUEUE_BYTES: usize = 4 << 20;
/// How often the run's end is looked for while nothing comes.
pub(crate) const LOOK_NS: u64 = 20_000_000;

/// The most bytes of tokens that wait for the peers of a sink.
pub(super) fn queue_bytes(url: &SinkUrl, token_bytes: usize) -> usize {
    let default_tokens = (DEFAULT_QUEUE_BYTES / token_bytes).max(1) as u64;
    let tokens = url.queue.unwrap_or(default_tokens);
    (tokens as usize).saturating_mul(token_bytes)
}

/// Reads whole tokens; the beginning of one that has not come whole yet is kept for the next call.
pub(crate) struct TokenReader {
    pipe: File,
    is_open: bool,
    token_bytes: usize,
    piece: Vec<u8>,
    /// The first bytes of the piece, which the last call gave.
    given_bytes: usize,
    filled_bytes: usize,
}

impl TokenReader {
    pub(crate) fn new(pipe: File, token_bytes: usize) -> Self {
        let piece_bytes = token_bytes * (PIECE_BYTES / token_bytes).max(1);
        Self {
            pipe,
            is_open: true,
            token_bytes,
            piece: vec![0; piece_bytes],
            given_bytes: 0,
            filled_bytes: 0,
        }
    }

    /// To be waited on while it is open: one that has ended is always ready.
    pub(crate) fn pipe(&self) -> &File {
        &self.pipe
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Reads what is there, or its end. The pipe must be ready, or this waits.
    pub(crate) fn read(&mut self) -> &[u8] {
        self.read_at_most(usize::MAX)
    }

    fn read_at_most(&mut self, max_bytes: usize) -> &[u8] {
        self.piece
            .copy_within(self.given_bytes..self.filled_bytes, 0);
        self.filled_bytes -= self.given_bytes;

        let limit = max_bytes.clamp(self.filled_bytes + 1, self.piece.len());
        match self.pipe.read(&mut self.piece[self.filled_bytes..limit]) {
            Ok(0) => self.is_open = false,
            Ok(bytes) => self.filled_bytes += bytes,
            Err(error) => {
                let is_passing =
                    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                self.is_open = is_passing;
            }
        }
        self.given_bytes = self.filled_bytes - self.filled_bytes % self.token_bytes;
        &self.piece[..self.given_bytes]
    }

    /// Waits a little for tokens and reads no more than `max_bytes` of them, but at least a part of one: often none.
    /// `None` once the pipe has ended, or is empty and `is_over` was set before that was looked at.
    pub(crate) fn next(&mut self, max_bytes: usize, is_over: &AtomicBool) -> Option<&[u8]> {
        // Loaded first: what was written before it was set is then seen in the pipe.
        let ends_when_empty = is_over.load(Ordering::Acquire);
        if !wait_readable(&self.pipe, LOOK_NS) {
            return (!ends_when_empty).then_some(&[]);
        }
        self.read_at_most(max_bytes);
        self.is_open.then_some(&self.piece[..self.given_bytes])
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;

    use super::*;

    fn reader(token_bytes: usize) -> (TokenReader, File) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let files = [OwnedFd::from(reader), OwnedFd::from(writer)].map(File::from);
        let [pipe, writer] = files;
        (TokenReader::new(pipe, token_bytes), writer)
    }

    #[test]
    fn tokens_are_given_whole_and_once() {
        let (mut reader, mut writer) = reader(4);
        let is_over = AtomicBool::new(false);
        writer.write_all(b"aaaabb").expect("written");
        assert_eq!(reader.next(usize::MAX, &is_over), Some(&b"aaaa"[..]));
        assert_eq!(reader.next(usize::MAX, &is_over), Some(&b""[..]));
        writer.write_all(b"bbccccd").expect("written");
        // The rest of the second token, and no more than was asked for.
        assert_eq!(reader.next(4, &is_over), Some(&b"bbbb"[..]));
        assert_eq!(reader.next(0, &is_over), Some(&b""[..]));
        assert_eq!(reader.next(usize::MAX, &is_over), Some(&b"cccc"[..]));
        drop(writer);
        assert_eq!(reader.next(usize::MAX, &is_over), None);
        assert!(!reader.is_open());
    }

    #[test]
    fn what_was_written_before_the_end_is_read() {
        let (mut reader, mut writer) = reader(1);
        let is_over = AtomicBool::new(true);
        writer.write_all(b"last").expect("written");
        assert_eq!(reader.next(2, &is_over), Some(&b"la"[..]));
        assert_eq!(reader.next(usize::MAX, &is_over), Some(&b"st"[..]));
        assert_eq!(reader.next(usize::MAX, &is_over), None);
    }

    #[test]
    fn a_queue_holds_a_token_at_least() {
        let url = |text: &str| SinkUrl::parse(text).expect("a URL");
        assert_eq!(queue_bytes(&url("tcp://h:1"), 8), DEFAULT_QUEUE_BYTES);
        assert_eq!(queue_bytes(&url("tcp://h:1"), 5 << 20), 5 << 20);
        assert_eq!(queue_bytes(&url("tcp://h:1?queue=3"), 8), 24);
    }
}
