//! Tokens of sources that cannot be read again: kept from the border on that a run may be gone on from, and given to those that could
//! take it over, so that they feed their sources with them first.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Of a source, sent at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Tokens of a source as voters give them to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MirroredTokens {
    /// The number of the source.
    pub source: u32,
    /// The number of the first one from the beginning of the run.
    pub first: u64,
    pub bytes: Vec<u8>,
}

/// The last tokens that a source was given.
#[derive(Debug)]
pub(super) struct SourceTokens {
    token_bytes: u64,
    /// The number of the first one from the beginning of the run.
    first: u64,
    bytes: VecDeque<u8>,
}

impl SourceTokens {
    pub(super) fn new(token_bytes: u64, first: u64) -> Self {
        Self {
            token_bytes,
            first,
            bytes: VecDeque::new(),
        }
    }

    /// Behind the last one.
    fn end(&self) -> u64 {
        self.first + self.bytes.len() as u64 / self.token_bytes
    }

    /// Tokens from the one of this number on, 0 if that is not among them.
    pub(super) fn count_from(&self, first: u64) -> u64 {
        match first < self.first {
            true => 0,
            false => self.end().saturating_sub(first),
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Adds tokens that another has given. Those that are here already are left out; where some are missing in between, what is here
    /// is of no use.
    ///
    /// # Errors
    /// No whole tokens, or more of them than can be counted.
    pub(super) fn add(&mut self, tokens: &MirroredTokens) -> Result<(), String> {
        let count = tokens.bytes.len() as u64;
        if !count.is_multiple_of(self.token_bytes) {
            return Err(format!(
                "{count} bytes of source {} are no whole tokens of {}",
                tokens.source, self.token_bytes
            ));
        }
        if tokens.first.checked_add(count).is_none() {
            return Err(format!(
                "token {} of source {} and {count} bytes that follow",
                tokens.first, tokens.source
            ));
        }
        if tokens.first > self.end() {
            self.first = tokens.first;
            self.bytes.clear();
        }
        let known_bytes = (self.end() - tokens.first).saturating_mul(self.token_bytes);
        if let Some(new) = tokens.bytes.get(known_bytes as usize..) {
            self.append(new);
        }
        Ok(())
    }

    /// Nobody asks for tokens before this one any more.
    pub(super) fn forget_before(&mut self, first: u64) {
        let count = first.min(self.end()).saturating_sub(self.first);
        self.bytes.drain(..(count * self.token_bytes) as usize);
        self.first += count;
    }

    /// So many tokens from the one of this number on.
    pub(super) fn copy_from(&self, first: u64, count: u64) -> Vec<u8> {
        let start = ((first - self.first) * self.token_bytes) as usize;
        let end = start + (count * self.token_bytes) as usize;
        let (front, back) = self.bytes.as_slices();
        let in_front = front.len();
        let front = &front[start.min(in_front)..end.min(in_front)];
        let back = &back[start.saturating_sub(in_front)..end.saturating_sub(in_front)];
        [front, back].concat()
    }
}

/// What a conductor keeps of each source; nothing of those that are not mirrored.
#[derive(Debug)]
pub(crate) struct InputLog {
    sources: Vec<Option<Mutex<SourceTokens>>>,
}

impl InputLog {
    /// For these sources: whether they are mirrored, bytes of a token, and tokens that the run had consumed when it began here.
    pub(super) fn new(sources: impl IntoIterator<Item = (bool, u64, u64)>) -> Self {
        let sources = sources
            .into_iter()
            .map(|(is_mirrored, token_bytes, first)| {
                is_mirrored.then(|| Mutex::new(SourceTokens::new(token_bytes, first)))
            });
        Self {
            sources: sources.collect(),
        }
    }

    fn mirrored(&self) -> impl Iterator<Item = (usize, MutexGuard<'_, SourceTokens>)> {
        let numbered = self.sources.iter().enumerate();
        numbered.filter_map(|(number, source)| {
            let tokens = source.as_ref()?;
            Some((
                number,
                tokens.lock().unwrap_or_else(PoisonError::into_inner),
            ))
        })
    }

    /// Whether a source is mirrored.
    pub(crate) fn has(&self, source: usize) -> bool {
        self.sources.get(source).is_some_and(Option::is_some)
    }

    /// Keeps tokens that a source was given.
    pub(crate) fn append(&self, source: usize, bytes: &[u8]) {
        if let Some(Some(tokens)) = self.sources.get(source) {
            let mut tokens = tokens.lock().unwrap_or_else(PoisonError::into_inner);
            tokens.append(bytes);
        }
    }

    /// Nobody goes on before these tokens of the sources any more.
    pub(super) fn forget_before(&self, consumed: &[u64]) {
        for (number, mut tokens) in self.mirrored() {
            if let Some(&first) = consumed.get(number) {
                tokens.forget_before(first);
            }
        }
    }

    /// Some of each source that come next for somebody who was sent all before these, whose numbers are moved on.
    pub(super) fn next_to_send(&self, sent: &mut Vec<u64>) -> Vec<MirroredTokens> {
        sent.resize(self.sources.len(), 0);
        let mut next = Vec::new();
        for (number, tokens) in self.mirrored() {
            let first = sent[number].max(tokens.first);
            let piece_tokens = (PIECE_BYTES as u64 / tokens.token_bytes).max(1);
            let count = tokens.count_from(first).min(piece_tokens);
            if count == 0 {
                continue;
            }
            sent[number] = first + count;
            next.push(MirroredTokens {
                source: number as u32,
                first,
                bytes: tokens.copy_from(first, count),
            });
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(first: u64, bytes: &[u8]) -> MirroredTokens {
        MirroredTokens {
            source: 0,
            first,
            bytes: bytes.to_vec(),
        }
    }

    #[test]
    fn what_comes_twice_is_kept_once_and_a_hole_begins_anew() {
        let mut tokens = SourceTokens::new(2, 3);
        tokens.add(&given(3, &[1, 1, 2, 2])).expect("tokens");
        tokens.add(&given(4, &[2, 2, 3, 3])).expect("tokens");
        tokens.add(&given(3, &[1, 1])).expect("tokens");
        assert_eq!(tokens.copy_from(3, 3), [1, 1, 2, 2, 3, 3]);
        tokens.forget_before(5);
        assert_eq!((tokens.count_from(4), tokens.count_from(5)), (0, 1));
        tokens.forget_before(9);
        assert_eq!((tokens.count_from(6), tokens.first), (0, 6));
        tokens.add(&given(8, &[7, 7])).expect("tokens");
        assert_eq!((tokens.count_from(6), tokens.count_from(8)), (0, 1));
        tokens.add(&given(8, &[7])).expect_err("half a token");
        tokens
            .add(&given(u64::MAX, &[7, 7]))
            .expect_err("nobody counts as far");
        assert_eq!(tokens.count_from(8), 1);
    }

    #[test]
    fn each_is_sent_what_it_lacks_in_pieces() {
        let log = InputLog::new([(false, 4, 0), (true, 4, 10)]);
        assert!(log.has(1) && !log.has(0) && !log.has(2));
        log.append(0, &[1; 4]);
        log.append(1, &[2; PIECE_BYTES + 8]);
        let mut sent = Vec::new();
        let piece_tokens = PIECE_BYTES as u64 / 4;
        for (first, count) in [(10, piece_tokens), (10 + piece_tokens, 2)] {
            let next = the_one(log.next_to_send(&mut sent));
            assert_eq!((next.source, next.first), (1, first));
            assert_eq!(next.bytes.len() as u64, 4 * count);
        }
        assert_eq!(log.next_to_send(&mut sent), []);

        // Whoever comes later is sent what may still be needed.
        log.forget_before(&[0, 11 + piece_tokens]);
        let next = the_one(log.next_to_send(&mut Vec::new()));
        assert_eq!((next.first, next.bytes.len()), (11 + piece_tokens, 4));
    }

    fn the_one(tokens: Vec<MirroredTokens>) -> MirroredTokens {
        let [one] = tokens.try_into().expect("of one source");
        one
    }

    #[test]
    fn a_source_that_always_has_more_keeps_no_other_waiting() {
        let log = InputLog::new([(true, 1, 0), (true, 1, 0)]);
        let mut sent = Vec::new();
        for first in [0, PIECE_BYTES as u64] {
            log.append(0, &[1; 2 * PIECE_BYTES]);
            log.append(1, &[2; PIECE_BYTES]);
            let next = log.next_to_send(&mut sent);
            let places: Vec<_> = next.iter().map(|t| (t.source, t.first)).collect();
            assert_eq!(places, [(0, first), (1, first)]);
        }
    }
}
