//! Tokens of a recording: which are there, and how they are read again.

use std::io::{self, Read};
use std::sync::Arc;

use super::segment::{PayloadPlace, SegmentFile, Stop};
use crate::flight::record::TOKENS_HEAD_BYTES;

/// Tokens of a source that follow on each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) first: u64,
    pub(super) tokens: u64,
    pub(super) place: PayloadPlace,
}

/// Tokens of a source of which none is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// Index of the first one.
    pub first: u64,
    /// The index after the last one.
    pub end: u64,
}

/// The ranges that pieces make, which are in order.
pub(super) fn ranges_of(pieces: &[Piece]) -> Vec<TokenRange> {
    let mut ranges: Vec<TokenRange> = Vec::new();
    for piece in pieces {
        let (first, end) = (piece.first, piece.first + piece.tokens);
        match ranges.last_mut() {
            Some(last) if last.end == first => last.end = end,
            _ => ranges.push(TokenRange { first, end }),
        }
    }
    ranges
}

/// How many tokens there are from an index on, before the first that is missing.
pub(super) fn contiguous_from(ranges: &[TokenRange], from: u64) -> u64 {
    let place = ranges.partition_point(|range| range.end <= from);
    let range = ranges.get(place).filter(|range| range.first <= from);
    range.map_or(0, |range| range.end - from)
}

/// Tokens of a recording, as bytes.
#[derive(Debug)]
pub struct RecordedTokens {
    files: Arc<Vec<SegmentFile>>,
    pieces: Arc<Vec<Piece>>,
    /// The next piece.
    piece: usize,
    token_bytes: u64,
    /// Index of the token after those in the buffer.
    next: u64,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were given.
    taken: usize,
}

impl RecordedTokens {
    /// Those of a source with an index from `from` on.
    pub(super) fn new(
        files: Arc<Vec<SegmentFile>>,
        pieces: Arc<Vec<Piece>>,
        token_bytes: u64,
        from: u64,
    ) -> Self {
        Self {
            files,
            piece: pieces.partition_point(|piece| piece.first + piece.tokens <= from),
            pieces,
            token_bytes,
            next: from,
            buffer: Vec::new(),
            taken: 0,
        }
    }

    /// Reads the next piece, if it goes on where the last one ended.
    fn refill(&mut self) -> io::Result<bool> {
        let Some(piece) = self.pieces.get(self.piece) else {
            return Ok(false);
        };
        if piece.first > self.next {
            return Ok(false);
        }
        let file = &self.files[piece.place.segment];
        let read = piece.place.read_into(file, &mut self.buffer);
        read.map_err(|stop| match stop {
            Stop::Io(error) => error,
            other => io::Error::other(other.error(file, piece.place.offset).to_string()),
        })?;
        let skipped = (self.next - piece.first) * self.token_bytes;
        self.taken = TOKENS_HEAD_BYTES + skipped as usize;
        self.next = piece.first + piece.tokens;
        self.piece += 1;
        Ok(true)
    }
}

impl Read for RecordedTokens {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.taken >= self.buffer.len() {
            if !self.refill()? {
                return Ok(0);
            }
        }
        let from = &self.buffer[self.taken..];
        let length = from.len().min(to.len());
        to[..length].copy_from_slice(&from[..length]);
        self.taken += length;
        Ok(length)
    }
}
