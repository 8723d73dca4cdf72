//! Tokens that the run did not take yet. What is dropped here becomes fill tokens in the same place, so that the tokens
//! after it keep their indexes, and the memory has a bound however many are filled. Must not know runs.

use std::collections::VecDeque;

use crate::gap::{Cause, Gap};

/// Tokens of one kind, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segment {
    /// Their bytes are in the queue.
    Real(u64),
    Fill(u64),
}

/// What is first in the queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Front<'a> {
    /// These tokens.
    Tokens(&'a [u8]),
    /// So many fill tokens.
    Fill(u64),
}

/// Tokens in order of their indexes.
#[derive(Debug)]
pub(crate) struct FeedQueue {
    segments: VecDeque<Segment>,
    bytes: VecDeque<u8>,
    token_bytes: usize,
    /// Real tokens that it holds at most.
    max_tokens: u64,
}

impl FeedQueue {
    /// An empty queue for so many real tokens.
    pub(crate) fn new(token_bytes: usize, max_tokens: u64) -> Self {
        Self {
            segments: VecDeque::new(),
            bytes: VecDeque::new(),
            token_bytes,
            max_tokens,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    fn real_tokens(&self) -> u64 {
        (self.bytes.len() / self.token_bytes) as u64
    }

    /// What is first: of real tokens those that lie in one piece.
    pub(crate) fn front(&self) -> Option<Front<'_>> {
        match *self.segments.front()? {
            Segment::Fill(tokens) => Some(Front::Fill(tokens)),
            Segment::Real(tokens) => {
                let (first_piece, _) = self.bytes.as_slices();
                let segment_bytes = tokens as usize * self.token_bytes;
                Some(Front::Tokens(
                    &first_piece[..segment_bytes.min(first_piece.len())],
                ))
            }
        }
    }

    /// Takes the first `tokens` tokens of [`Self::front`] out.
    pub(crate) fn advance(&mut self, tokens: u64) {
        let Some(front) = self.segments.front_mut() else {
            return;
        };
        let left = match front {
            Segment::Real(left) => {
                self.bytes.drain(..tokens as usize * self.token_bytes);
                left
            }
            Segment::Fill(left) => left,
        };
        *left -= tokens;
        if *left == 0 {
            self.segments.pop_front();
        }
    }

    /// Adds fill tokens.
    pub(crate) fn push_fill(&mut self, tokens: u64) {
        match self.segments.back_mut() {
            Some(Segment::Fill(last)) => *last += tokens,
            _ if tokens > 0 => self.segments.push_back(Segment::Fill(tokens)),
            _ => {}
        }
    }

    /// Adds tokens, of which the first has the index `index`. Those that find no room become fill tokens.
    pub(crate) fn push_or_drop(&mut self, index: u64, tokens: &[u8]) -> Option<Gap> {
        let room = self.max_tokens.saturating_sub(self.real_tokens());
        let taken_bytes = tokens
            .len()
            .min((room as usize).saturating_mul(self.token_bytes));
        self.push_real(&tokens[..taken_bytes]);

        let taken = (taken_bytes / self.token_bytes) as u64;
        let dropped = (tokens.len() / self.token_bytes) as u64 - taken;
        self.push_fill(dropped);
        (dropped > 0).then_some(Gap {
            first: index + taken,
            length: dropped,
            cause: Cause::QueueFull,
        })
    }

    /// Adds tokens. Where there is no room, those that are first in the queue become fill tokens: `gave` is told which.
    /// `first_index` is the index of the queue's first token.
    pub(crate) fn push_and_drop_oldest(
        &mut self,
        first_index: u64,
        tokens: &[u8],
        mut gave: impl FnMut(Gap),
    ) {
        self.push_real(tokens);
        let mut excess = self.real_tokens().saturating_sub(self.max_tokens);
        while excess > 0 {
            let filled = match self.segments.front() {
                Some(Segment::Fill(filled)) => *filled,
                _ => 0,
            };
            if filled > 0 {
                self.segments.pop_front();
            }
            let Some(Segment::Real(real)) = self.segments.front_mut() else {
                // Real tokens are in segments of their own, and there are more than may be.
                return;
            };

            let dropped = excess.min(*real);
            *real -= dropped;
            if *real == 0 {
                self.segments.pop_front();
            }
            self.bytes.drain(..dropped as usize * self.token_bytes);
            excess -= dropped;
            gave(Gap {
                first: first_index + filled,
                length: dropped,
                cause: Cause::QueueFull,
            });

            let all_filled = filled + dropped;
            match self.segments.front_mut() {
                Some(Segment::Fill(next)) => *next += all_filled,
                _ => self.segments.push_front(Segment::Fill(all_filled)),
            }
        }
    }

    fn push_real(&mut self, tokens: &[u8]) {
        let count = (tokens.len() / self.token_bytes) as u64;
        self.bytes.extend(tokens);
        match self.segments.back_mut() {
            Some(Segment::Real(last)) => *last += count,
            _ if count > 0 => self.segments.push_back(Segment::Real(count)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out, with `.` for fill tokens.
    fn drain(mut queue: FeedQueue) -> String {
        let mut out = String::new();
        loop {
            let tokens = match queue.front() {
                None => return out,
                Some(Front::Fill(tokens)) => {
                    (0..tokens).for_each(|_| out.push('.'));
                    tokens
                }
                Some(Front::Tokens(bytes)) => {
                    out.push_str(std::str::from_utf8(bytes).expect("letters"));
                    bytes.len() as u64
                }
            };
            queue.advance(tokens);
        }
    }

    #[test]
    fn what_arrives_last_is_dropped() {
        let mut queue = FeedQueue::new(1, 4);
        assert_eq!(queue.push_or_drop(0, b"abc"), None);
        queue.push_fill(2);
        let gap = queue.push_or_drop(5, b"def").expect("full");
        assert_eq!((gap.first, gap.length), (6, 2));
        assert_eq!(drain(queue), "abc..d..");
    }

    #[test]
    fn what_has_waited_longest_is_dropped() {
        let mut queue = FeedQueue::new(1, 4);
        let mut gaps = Vec::new();
        queue.push_and_drop_oldest(10, b"ab", |gap| gaps.push(gap));
        queue.push_fill(2);
        queue.push_and_drop_oldest(10, b"cdefg", |gap| gaps.push(gap));
        let found: Vec<(u64, u64)> = gaps.iter().map(|gap| (gap.first, gap.length)).collect();
        assert_eq!(found, [(10, 2), (14, 1)]);
        assert_eq!(drain(queue), ".....defg");
    }
}
