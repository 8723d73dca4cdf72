//! A file that is played at its rate, by absolute timers: a late piece delays none of those after it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use super::{Arrival, LiveSource};
use crate::clock::{as_ns, now_ns, sleep_until};
use crate::release::{ReleaseClock, TimeSummary};
use crate::timeline::PacketPlace;

/// Pieces a second, where a piece has more than one token.
const PIECES_PER_S: f64 = 200.0;
/// No piece is larger, or it is one token.
const MAX_PIECE_BYTES: usize = 1 << 20;

/// Plays what it reads.
pub struct PacedSource {
    reader: Box<dyn Read + Send>,
    token_bytes: usize,
    piece: Vec<u8>,
    clock: Arc<ReleaseClock>,
    /// How late pieces were that are not counted yet, in nanoseconds.
    late_ns: Vec<u64>,
    /// Wake-ups that are to be late, by piece.
    late_wakes: BTreeMap<u64, Duration>,
}

impl PacedSource {
    /// Plays the tokens that `reader` gives as bytes, at so many a second, `piece` of them at a time.
    pub fn new(
        reader: Box<dyn Read + Send>,
        token_bytes: usize,
        rate: f64,
        piece: Option<u64>,
    ) -> Self {
        let max_tokens = (MAX_PIECE_BYTES / token_bytes).max(1);
        let piece_tokens = match piece {
            Some(tokens) => usize::try_from(tokens).unwrap_or(max_tokens),
            None => (rate / PIECES_PER_S) as usize,
        };
        let piece_tokens = piece_tokens.clamp(1, max_tokens);
        Self {
            reader,
            token_bytes,
            piece: vec![0; piece_tokens * token_bytes],
            clock: Arc::new(ReleaseClock::new(rate, piece_tokens as u64)),
            late_ns: Vec::new(),
            late_wakes: BTreeMap::new(),
        }
    }

    /// When its tokens are released.
    pub fn clock(&self) -> Arc<ReleaseClock> {
        Arc::clone(&self.clock)
    }

    /// Wakes so much too late for the piece of this number, counted from 0: an injected fault.
    pub fn wake_late(&mut self, piece: u64, by: Duration) {
        self.late_wakes.insert(piece, by);
    }

    /// Sleeps on where the wake-up for the next piece is to be late.
    fn inject_late_wake(&mut self, due_ns: u64) {
        let piece_tokens = (self.piece.len() / self.token_bytes) as u64;
        let piece = self.clock.played() / piece_tokens;
        if let Some(by) = self.late_wakes.remove(&piece) {
            sleep_until(due_ns.saturating_add(as_ns(by)));
        }
    }

    /// Reads a piece; how many bytes. Fewer than a whole one at the file's end.
    fn read_piece(&mut self) -> usize {
        let mut filled = 0;
        while filled < self.piece.len() {
            match self.reader.read(&mut self.piece[filled..]) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // What cannot be read on has ended.
                Err(_) => break,
            }
        }
        filled
    }
}

impl LiveSource for PacedSource {
    fn receive(&mut self, limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        self.clock.start(now_ns());
        // A piece is there when its last token was sampled.
        let Some(due_ns) = self.clock.release_ns(self.clock.played() + 1) else {
            return;
        };
        let until_ns = now_ns().saturating_add(limit_ns);
        sleep_until(due_ns.min(until_ns));
        if due_ns > now_ns() {
            return;
        }
        self.inject_late_wake(due_ns);
        let woken_ns = now_ns();

        let bytes = self.read_piece();
        let tokens = bytes / self.token_bytes;
        self.clock.play(tokens as u64);
        if tokens > 0 {
            self.late_ns.push(woken_ns - due_ns);
            self.clock.try_record_lateness(&mut self.late_ns);
            visit(Arrival::Packet {
                place: PacketPlace::Unknown,
                payload: &self.piece[..tokens * self.token_bytes],
                arrival_ns: due_ns,
                kernel_drops: 0,
            });
        }
        if bytes < self.piece.len() {
            visit(Arrival::Ended);
        }
    }

    fn has_connections(&self) -> bool {
        false
    }

    fn release_lateness(&mut self) -> Option<TimeSummary> {
        self.clock.record_lateness(&mut self.late_ns);
        Some(self.clock.lateness())
    }
}
