//! From the order of a timeline to the run: real tokens and fill tokens, and flags in step with them. Must not know where
//! tokens come from.

use std::collections::VecDeque;
use std::time::Duration;

use crate::feed_queue::{FeedQueue, Front};
use crate::gap::Gap;
use crate::url::{Fill, QueueFull};

/// The run takes no more tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run takes no more tokens")]
pub struct ConsumerClosed;

/// What takes the tokens of a source: whoever has a session implements it for its handles.
pub trait TokenConsumer: Send {
    /// Takes as many whole tokens as there is room for, without waiting; how many.
    ///
    /// # Errors
    /// The run takes no more.
    fn offer(&mut self, bytes: &[u8]) -> Result<u64, ConsumerClosed>;

    /// The same, waiting so long at most until all of them are taken.
    ///
    /// # Errors
    /// The run takes no more.
    fn offer_within(&mut self, bytes: &[u8], limit: Duration) -> Result<u64, ConsumerClosed>;
}

/// How long a full queue is waited for before flags and the run's end are looked at again.
const WAIT_STEP: Duration = Duration::from_millis(10);
/// Fill tokens are made in pieces of about so many bytes.
const PIECE_BYTES: usize = 1 << 16;
const FLAG_REAL: u8 = 0;
const FLAG_FILLED: u8 = 1;

/// One flag for each token that was given out.
struct FlagPort {
    consumer: Box<dyn TokenConsumer>,
    /// Flags that did not find room yet.
    waiting: VecDeque<(u8, u64)>,
    piece: Vec<u8>,
}

impl FlagPort {
    fn push(&mut self, flag: u8, tokens: u64) -> Result<(), ConsumerClosed> {
        match self.waiting.back_mut() {
            Some((last, count)) if *last == flag => *count += tokens,
            _ if tokens > 0 => self.waiting.push_back((flag, tokens)),
            _ => {}
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), ConsumerClosed> {
        while let Some((flag, count)) = self.waiting.front_mut() {
            let length = (*count).min(self.piece.len() as u64);
            self.piece[..length as usize].fill(*flag);
            let taken = self.consumer.offer(&self.piece[..length as usize])?;
            *count -= taken;
            if *count == 0 {
                self.waiting.pop_front();
            }
            if taken < length {
                break;
            }
        }
        Ok(())
    }
}

/// What fills gaps.
struct FillTokens {
    kind: Fill,
    zero: u8,
    /// The last token that was given out.
    last: Vec<u8>,
    /// Copies of the token that fills.
    piece: Vec<u8>,
    is_current: bool,
}

impl FillTokens {
    fn new(kind: Fill, zero: u8, token_bytes: usize) -> Self {
        let piece_tokens = (PIECE_BYTES / token_bytes).max(1);
        Self {
            kind,
            zero,
            last: vec![zero; token_bytes],
            piece: vec![zero; piece_tokens * token_bytes],
            is_current: true,
        }
    }

    fn note_last(&mut self, tokens: &[u8]) {
        let token_bytes = self.last.len();
        if self.kind == Fill::Hold && tokens.len() >= token_bytes {
            self.last
                .copy_from_slice(&tokens[tokens.len() - token_bytes..]);
            self.is_current = false;
        }
    }

    /// Fills with a token, or as declared.
    fn set(&mut self, token: Option<&[u8]>) {
        match token {
            Some(token) => self.last.copy_from_slice(token),
            None if self.kind == Fill::Zeros => self.last.fill(self.zero),
            None => {}
        }
        self.is_current = false;
    }

    /// So many fill tokens, or a part of them.
    fn piece(&mut self, tokens: u64) -> &[u8] {
        let token_bytes = self.last.len();
        if !self.is_current {
            for token in self.piece.chunks_exact_mut(token_bytes) {
                token.copy_from_slice(&self.last);
            }
            self.is_current = true;
        }
        let piece_tokens = (self.piece.len() / token_bytes) as u64;
        &self.piece[..tokens.min(piece_tokens) as usize * token_bytes]
    }
}

/// Gives tokens to the run, in order, as fast as it takes them.
pub(crate) struct Delivery {
    consumer: Box<dyn TokenConsumer>,
    flags: Option<FlagPort>,
    queue: FeedQueue,
    full: QueueFull,
    fill: FillTokens,
    token_bytes: usize,
    /// Tokens that were given to the run.
    given: u64,
    /// Index of the next token that arrives here.
    next: u64,
}

/// How a delivery works.
pub(crate) struct DeliverySettings {
    pub(crate) token_bytes: usize,
    /// Tokens that wait for the run.
    pub(crate) queue: u64,
    pub(crate) full: QueueFull,
    pub(crate) fill: Fill,
    /// A byte of a token of zeros.
    pub(crate) zero: u8,
}

impl Delivery {
    pub(crate) fn new(
        settings: &DeliverySettings,
        consumer: Box<dyn TokenConsumer>,
        flags: Option<Box<dyn TokenConsumer>>,
    ) -> Self {
        Self {
            consumer,
            flags: flags.map(|consumer| FlagPort {
                consumer,
                waiting: VecDeque::new(),
                piece: vec![0; PIECE_BYTES],
            }),
            queue: FeedQueue::new(settings.token_bytes, settings.queue),
            full: settings.full,
            fill: FillTokens::new(settings.fill, settings.zero, settings.token_bytes),
            token_bytes: settings.token_bytes,
            given: 0,
            next: 0,
        }
    }

    /// Tokens that were given to the run.
    pub(crate) fn given(&self) -> u64 {
        self.given
    }

    /// Whether tokens wait for the run, or flags.
    pub(crate) fn has_backlog(&self) -> bool {
        let flags_wait = self.flags.as_ref().is_some_and(|f| !f.waiting.is_empty());
        !self.queue.is_empty() || flags_wait
    }

    /// Whether nothing more should be read before the run has taken what waits.
    pub(crate) fn must_wait(&self) -> bool {
        self.full == QueueFull::Wait && self.has_backlog()
    }

    /// Gives tokens to the run, or to the queue; `dropped` is told what found no room.
    pub(crate) fn tokens(
        &mut self,
        mut bytes: &[u8],
        dropped: impl FnMut(Gap),
    ) -> Result<(), ConsumerClosed> {
        if self.queue.is_empty() {
            let taken = self.consumer.offer(bytes)?;
            let taken_bytes = taken as usize * self.token_bytes;
            self.fill.note_last(&bytes[..taken_bytes]);
            self.count(FLAG_REAL, taken)?;
            self.next += taken;
            bytes = &bytes[taken_bytes..];
        }
        if bytes.is_empty() {
            return Ok(());
        }

        let tokens = (bytes.len() / self.token_bytes) as u64;
        let mut dropped = dropped;
        match self.full {
            QueueFull::DropNewest => {
                let gap = self.queue.push_or_drop(self.next, bytes);
                gap.into_iter().for_each(&mut dropped);
            }
            QueueFull::DropOldest => {
                self.queue
                    .push_and_drop_oldest(self.given, bytes, &mut dropped);
            }
            // Nothing more is read until the queue is empty: it holds what one call has received.
            QueueFull::Wait => self
                .queue
                .push_and_drop_oldest(self.given, bytes, &mut dropped),
        }
        self.next += tokens;
        Ok(())
    }

    /// What the next gaps are filled with: a token, or what is declared. Nothing waits in the queue.
    pub(crate) fn fill_with(&mut self, token: Option<&[u8]>) {
        self.fill.set(token);
    }

    /// Gives fill tokens to the run, or to the queue.
    pub(crate) fn fill(&mut self, tokens: u64) -> Result<(), ConsumerClosed> {
        self.queue.push_fill(tokens);
        self.next += tokens;
        self.flush()
    }

    /// Gives what waits to the run, as far as it takes it now.
    pub(crate) fn flush(&mut self) -> Result<(), ConsumerClosed> {
        if let Some(flags) = &mut self.flags {
            flags.flush()?;
        }
        while self.give_front(None)? {}
        Ok(())
    }

    /// Waits a little until the run takes something of what waits.
    pub(crate) fn wait(&mut self) -> Result<(), ConsumerClosed> {
        self.flush()?;
        self.give_front(Some(WAIT_STEP)).map(drop)
    }

    /// Gives what is first in the queue to the run, waiting so long at most; whether it took all of it.
    fn give_front(&mut self, limit: Option<Duration>) -> Result<bool, ConsumerClosed> {
        let Some(front) = self.queue.front() else {
            return Ok(false);
        };
        let offer = |consumer: &mut dyn TokenConsumer, bytes: &[u8]| match limit {
            Some(limit) => consumer.offer_within(bytes, limit),
            None => consumer.offer(bytes),
        };
        let consumer = &mut *self.consumer;
        let flag;
        let taken;
        let taken_all;
        match front {
            Front::Tokens(bytes) => {
                taken = offer(consumer, bytes)?;
                let taken_bytes = taken as usize * self.token_bytes;
                taken_all = taken_bytes == bytes.len();
                flag = FLAG_REAL;
                self.fill.note_last(&bytes[..taken_bytes]);
            }
            Front::Fill(tokens) => {
                let piece = self.fill.piece(tokens);
                taken = offer(consumer, piece)?;
                taken_all = taken as usize * self.token_bytes == piece.len();
                flag = FLAG_FILLED;
            }
        }
        self.queue.advance(taken);
        self.count(flag, taken)?;
        Ok(taken_all)
    }

    fn count(&mut self, flag: u8, tokens: u64) -> Result<(), ConsumerClosed> {
        self.given += tokens;
        match &mut self.flags {
            Some(flags) => flags.push(flag, tokens),
            None => Ok(()),
        }
    }
}
