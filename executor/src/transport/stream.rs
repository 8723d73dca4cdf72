//! Streams between the embedding program and a run: typed handles with back-pressure both ways.
//!
//! A source that is pushed to faster than the run takes tokens blocks (or takes only part of what is offered); a sink
//! that is not pulled from stops the run, and nothing is lost. A handle that is dropped says so: a source ends, a
//! sink's tokens are dropped from then on, and counted in the report.
//!
//! A run with several sinks needs all of them pulled: from threads of their own, or with [`SinkHandle::try_pull`].

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use zbmd_ir::burst::{BurstLayout, TooLong};
use zbmd_ir::{DType, TokenType};
use zbmd_op::kernel::Element;

use crate::transport::conduit::{Closed, Consumer, Producer};
use crate::transport::release_gate::{ReleaseGate, Released};
use crate::transport::ring::{Deadline, Spin, Stop};

/// Why tokens were not taken or given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// No source or sink of that name.
    #[error("no {kind} `{name}`; there are: {known}")]
    Unknown {
        /// `source` or `sink`.
        kind: &'static str,
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// Its handle was given out before.
    #[error("the handle of {kind} `{name}` has been taken before: there is one")]
    Taken {
        /// `source` or `sink`.
        kind: &'static str,
        /// The stream.
        name: String,
    },
    /// The elements have another type.
    #[error("`{name}` carries {token}; {found} was used: use elements of {expected}", expected = .token.dtype)]
    DType {
        /// The stream.
        name: String,
        /// Type of its tokens.
        token: TokenType,
        /// The dtype used.
        found: DType,
    },
    /// Not a whole number of tokens.
    #[error(
        "`{name}` has tokens of {token_bytes} bytes; {bytes} bytes are not a whole number of them"
    )]
    Partial {
        /// The stream.
        name: String,
        /// Bytes of a token.
        token_bytes: u64,
        /// Bytes given.
        bytes: u64,
    },
    /// Elements alone, where tokens are bursts: they have headers too.
    #[error(
        "`{name}` carries {token}: use bytes, which `zbmd_ir::burst::BurstLayout` writes and reads"
    )]
    Elements {
        /// The stream.
        name: String,
        /// Type of its tokens.
        token: TokenType,
    },
    /// A burst that is longer than its type allows.
    #[error("token {index} pushed to `{name}` is {source}")]
    Burst {
        /// The stream.
        name: String,
        /// Which of the tokens that were given, from 0.
        index: usize,
        /// What is wrong.
        source: TooLong,
    },
    /// The run takes no more tokens: it has reached its number of iterations, or was stopped.
    #[error("source `{name}` is closed: the run takes no more tokens; {refused} were not taken")]
    Closed {
        /// The source.
        name: String,
        /// Tokens that were not taken.
        refused: u64,
    },
    /// The run was given up after a fault; `Session::join` says which.
    #[error("the run was given up after a fault, while `{name}` waited")]
    Stopped {
        /// The stream.
        name: String,
    },
}

/// What both kinds of handles know of their stream.
#[derive(Debug)]
struct Stream {
    name: String,
    token: TokenType,
    stop: Arc<Stop>,
    spin: Spin,
}

impl Stream {
    fn check<T: Element>(&self, elements: usize) -> Result<(), StreamError> {
        let expected = self.token.dtype;
        if T::DTYPE != expected && !(T::DTYPE == DType::U8 && expected == DType::Bool) {
            let (name, token) = (self.name.clone(), self.token.clone());
            return Err(StreamError::DType {
                name,
                token,
                found: T::DTYPE,
            });
        }
        if self.token.burst {
            let (name, token) = (self.name.clone(), self.token.clone());
            return Err(StreamError::Elements { name, token });
        }
        self.check_bytes(elements * size_of::<T>())
    }

    /// Checks bytes that the program gives: whole tokens, and bursts within their maximum, whose unused bytes become
    /// zero.
    fn checked<'a>(&self, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, StreamError> {
        self.check_bytes(bytes.len())?;
        match BurstLayout::of(&self.token) {
            None => Ok(Cow::Borrowed(bytes)),
            Some(layout) => {
                layout
                    .with_zeros(bytes)
                    .map_err(|(index, source)| StreamError::Burst {
                        name: self.name.clone(),
                        index,
                        source,
                    })
            }
        }
    }

    fn check_bytes(&self, bytes: usize) -> Result<(), StreamError> {
        let token_bytes = self.token.bytes();
        if !(bytes as u64).is_multiple_of(token_bytes) {
            let (name, bytes) = (self.name.clone(), bytes as u64);
            return Err(StreamError::Partial {
                name,
                token_bytes,
                bytes,
            });
        }
        Ok(())
    }

    fn stopped(&self) -> StreamError {
        StreamError::Stopped {
            name: self.name.clone(),
        }
    }
}

/// Is told of the tokens that a source's queue has taken.
pub(crate) type TakenListener = Box<dyn FnMut(&[u8]) + Send>;

/// Where the tokens of a source are pushed. Dropping it ends the source.
pub struct SourceHandle {
    stream: Stream,
    producer: Producer,
    listener: Option<TakenListener>,
    /// Bytes of tokens that come before all others.
    first: Bytes,
}

impl std::fmt::Debug for SourceHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceHandle")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

impl SourceHandle {
    pub(crate) fn new(
        name: &str,
        token: &TokenType,
        producer: Producer,
        stop: Arc<Stop>,
        spin: Spin,
    ) -> Self {
        let stream = Stream {
            name: name.to_owned(),
            token: token.clone(),
            stop,
            spin,
        };
        Self {
            stream,
            producer,
            listener: None,
            first: Bytes::new(),
        }
    }

    /// Tells somebody of all tokens that are taken from now on.
    pub(crate) fn listen(&mut self, listener: TakenListener) {
        self.listener = Some(listener);
    }

    /// Gives these tokens to the run before all others: as many as there is space for at once, the rest before what is pushed next.
    #[cfg(hosts)]
    pub(crate) fn feed_first(&mut self, bytes: Vec<u8>) {
        self.first = bytes.into();
        // A run that takes no more says so when the next tokens are pushed.
        let _ = self.write_first();
    }

    /// Type of the tokens.
    pub fn token(&self) -> &TokenType {
        &self.stream.token
    }

    /// Gives tokens to the run; waits for space as long as it takes.
    ///
    /// # Errors
    /// Elements of another dtype or no whole tokens (then none is taken), a run that takes no more, or a fault.
    pub fn push<T: Element>(&mut self, elements: &[T]) -> Result<(), StreamError> {
        self.stream.check::<T>(elements.len())?;
        self.push_all(bytemuck::cast_slice(elements), Deadline::NEVER)
            .map(drop)
    }

    /// Like [`Self::push`], with the tokens' bytes in the machine's byte order.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        let bytes = self.stream.checked(bytes)?;
        self.push_all(&bytes, Deadline::NEVER).map(drop)
    }

    /// Like [`Self::push_bytes`], waiting so long at most; how many tokens were taken. Fewer than given only when the
    /// time is over.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_bytes_within(&mut self, bytes: &[u8], limit: Duration) -> Result<u64, StreamError> {
        let bytes = self.stream.checked(bytes)?;
        self.push_all(&bytes, Deadline::after(limit))
    }

    /// Gives as many tokens as there is space for, without waiting; how many.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn try_push<T: Element>(&mut self, elements: &[T]) -> Result<u64, StreamError> {
        self.stream.check::<T>(elements.len())?;
        self.write(bytemuck::cast_slice(elements))
    }

    /// Like [`Self::try_push`], with bytes.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn try_push_bytes(&mut self, bytes: &[u8]) -> Result<u64, StreamError> {
        let bytes = self.stream.checked(bytes)?;
        self.write(&bytes)
    }

    /// Ends the source: the run finishes with the tokens that were pushed. It waits for space for those that were mirrored, if there
    /// are still some.
    pub fn close(mut self) {
        // A run that takes no more has no use for them.
        let _ = self.push_first();
    }

    /// Gives the tokens that come first, and waits for space as long as it takes.
    fn push_first(&mut self) -> Result<(), StreamError> {
        while !self.write_first()? {
            self.producer
                .wait_space_by(1, self.stream.spin, &self.stream.stop, Deadline::NEVER)
                .map_err(|_| self.stream.stopped())?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<u64, StreamError> {
        match self.write_first()? {
            true => self.write_now(bytes),
            false => Ok(0),
        }
    }

    /// Gives as many of the tokens that come first as there is space for; whether those were all.
    fn write_first(&mut self) -> Result<bool, StreamError> {
        while !self.first.is_empty() {
            let first = self.first.clone();
            let tokens = self.write_now(&first)?;
            if tokens == 0 {
                return Ok(false);
            }
            let taken_bytes = tokens * self.stream.token.bytes();
            self.first = first.slice(taken_bytes as usize..);
        }
        Ok(true)
    }

    fn write_now(&mut self, bytes: &[u8]) -> Result<u64, StreamError> {
        if self.stream.stop.is_set() {
            return Err(self.stream.stopped());
        }
        let refused = bytes.len() as u64 / self.stream.token.bytes();
        let tokens = self
            .producer
            .write(bytes)
            .map_err(|Closed| StreamError::Closed {
                name: self.stream.name.clone(),
                refused,
            })?;
        if let Some(listener) = &mut self.listener {
            listener(&bytes[..(tokens * self.stream.token.bytes()) as usize]);
        }
        Ok(tokens)
    }

    fn push_all(&mut self, mut bytes: &[u8], deadline: Deadline) -> Result<u64, StreamError> {
        let token_bytes = self.stream.token.bytes() as usize;
        let given = bytes.len();
        while !bytes.is_empty() {
            // When the queue is full, half of it must be free again: one wake-up for many blocks, not one for each.
            // Never more than what is still to be pushed, so that a program that feeds several sources in turn waits
            // for nothing that its next push would bring.
            let left = (bytes.len() / token_bytes) as u64;
            let enough = left.min(self.producer.shared().capacity() / 2).max(1);
            self.producer
                .wait_space_by(enough, self.stream.spin, &self.stream.stop, deadline)
                .map_err(|_| self.stream.stopped())?;
            let tokens = self.write(bytes)?;
            bytes = &bytes[tokens as usize * token_bytes..];
            if deadline.left_ns() == Some(0) {
                break;
            }
        }
        Ok(((given - bytes.len()) / token_bytes) as u64)
    }
}

impl Drop for SourceHandle {
    fn drop(&mut self) {
        self.producer.shared().close();
    }
}

/// Where the tokens of a sink are pulled from. Dropping it drops the tokens that still come.
#[derive(Debug)]
pub struct SinkHandle {
    stream: Stream,
    consumer: Consumer,
    gate: Option<SinkGate>,
}

/// How much a sink may give out, where that is decided elsewhere.
#[derive(Debug)]
struct SinkGate {
    gate: Arc<ReleaseGate>,
    /// The sink's place in it.
    sink: usize,
    /// Tokens that have been pulled.
    pulled: u64,
}

impl SinkHandle {
    pub(crate) fn new(
        name: &str,
        token: &TokenType,
        consumer: Consumer,
        stop: Arc<Stop>,
        spin: Spin,
    ) -> Self {
        let stream = Stream {
            name: name.to_owned(),
            token: token.clone(),
            stop,
            spin,
        };
        Self {
            stream,
            consumer,
            gate: None,
        }
    }

    /// Gives out only what is released from now on, as the sink of this place.
    pub(crate) fn hold_back(&mut self, gate: Arc<ReleaseGate>, sink: usize) {
        self.gate = Some(SinkGate {
            gate,
            sink,
            pulled: 0,
        });
    }

    /// Type of the tokens.
    pub fn token(&self) -> &TokenType {
        &self.stream.token
    }

    /// Fills `to` with tokens, waiting for them; how many tokens. Fewer than fit only at the end of the run.
    ///
    /// # Errors
    /// Elements of another dtype, no whole tokens, or a fault of the run.
    pub fn pull<T: Element>(&mut self, to: &mut [T]) -> Result<u64, StreamError> {
        self.stream.check::<T>(to.len())?;
        self.pull_all(bytemuck::cast_slice_mut(to), Deadline::NEVER)
    }

    /// Like [`Self::pull`], as bytes in the machine's byte order.
    ///
    /// # Errors
    /// As [`Self::pull`].
    pub fn pull_bytes(&mut self, to: &mut [u8]) -> Result<u64, StreamError> {
        self.stream.check_bytes(to.len())?;
        self.pull_all(to, Deadline::NEVER)
    }

    /// Like [`Self::pull_bytes`], waiting so long at most. Fewer tokens than fit then, without
    /// [`Self::is_finished`], say that the time is over.
    ///
    /// # Errors
    /// As [`Self::pull`].
    pub fn pull_bytes_within(
        &mut self,
        to: &mut [u8],
        limit: Duration,
    ) -> Result<u64, StreamError> {
        self.stream.check_bytes(to.len())?;
        self.pull_all(to, Deadline::after(limit))
    }

    /// Takes the tokens that are there, without waiting; how many.
    ///
    /// # Errors
    /// As [`Self::pull`], without faults: tokens that were made are given.
    pub fn try_pull<T: Element>(&mut self, to: &mut [T]) -> Result<u64, StreamError> {
        self.stream.check::<T>(to.len())?;
        Ok(self.read_released(bytemuck::cast_slice_mut(to)))
    }

    /// Like [`Self::try_pull`], as bytes.
    ///
    /// # Errors
    /// As [`Self::try_pull`].
    pub fn try_pull_bytes(&mut self, to: &mut [u8]) -> Result<u64, StreamError> {
        self.stream.check_bytes(to.len())?;
        Ok(self.read_released(to))
    }

    /// Waits for at least one token, then takes what is there; 0 at the end of the run.
    ///
    /// # Errors
    /// As [`Self::pull`].
    pub fn pull_some_bytes(&mut self, to: &mut [u8]) -> Result<u64, StreamError> {
        self.stream.check_bytes(to.len())?;
        if to.is_empty() || !self.wait(1, Deadline::NEVER)? {
            return Ok(0);
        }
        Ok(self.read(to))
    }

    /// Like [`Self::pull_some_bytes`], waiting so long at most. 0 without [`Self::is_finished`] says that the time is over.
    ///
    /// # Errors
    /// As [`Self::pull`].
    pub fn pull_some_bytes_within(
        &mut self,
        to: &mut [u8],
        limit: Duration,
    ) -> Result<u64, StreamError> {
        self.stream.check_bytes(to.len())?;
        if to.is_empty() || !self.wait(1, Deadline::after(limit))? {
            return Ok(0);
        }
        Ok(self.read(to))
    }

    /// Like [`Self::pull_some_bytes`], but once there is a token waits up to `linger` for half of what the queue or `to`
    /// holds: the run then wakes this thread once for many blocks, where waking it may take as long as a block.
    ///
    /// # Errors
    /// As [`Self::pull`].
    pub fn pull_batch_bytes(
        &mut self,
        to: &mut [u8],
        linger: Duration,
    ) -> Result<u64, StreamError> {
        self.stream.check_bytes(to.len())?;
        if to.is_empty() || !self.wait(1, Deadline::NEVER)? {
            return Ok(0);
        }

        let fitting_tokens = to.len() as u64 / self.stream.token.bytes();
        let enough = fitting_tokens.min(self.consumer.shared().capacity()) / 2;
        // What a gate releases comes in batches anyway.
        let may_linger = self.gate.is_none() && !linger.is_zero();
        if may_linger && self.consumer.available() < enough {
            // At the end of a run, or after its fault, what is there is all there will be.
            drop(self.wait(enough, Deadline::after(linger)));
        }
        Ok(self.read(to))
    }

    /// Whether the run has ended and every token has been pulled.
    pub fn is_finished(&mut self) -> bool {
        match &self.gate {
            Some(gate) => {
                let released = gate.released();
                released.is_final && released.tokens <= gate.pulled
            }
            None => self.consumer.is_finished(),
        }
    }

    fn wait(&mut self, tokens: u64, deadline: Deadline) -> Result<bool, StreamError> {
        let mut tokens = tokens;
        if let Some(gate) = &self.gate {
            gate.gate.note_taken(gate.sink, gate.pulled);
            let released = gate.gate.wait(gate.sink, gate.pulled, deadline);
            if released.tokens <= gate.pulled {
                return match (released.is_final, self.stream.stop.is_set()) {
                    (true, true) => Err(self.stream.stopped()),
                    (is_final, _) => Ok(!is_final),
                };
            }
            // Those are in the queue.
            tokens = 1;
        }
        self.consumer
            .wait_data(tokens, self.stream.spin, &self.stream.stop, deadline)
            .map_err(|_| self.stream.stopped())
    }

    /// What is there, if it may be given out now.
    fn read_released(&mut self, to: &mut [u8]) -> u64 {
        match &self.gate {
            Some(gate) if gate.released().tokens <= gate.pulled => {
                gate.gate.note_taken(gate.sink, gate.pulled);
                0
            }
            _ => self.read(to),
        }
    }

    fn read(&mut self, to: &mut [u8]) -> u64 {
        let token_bytes = self.stream.token.bytes();
        let mut there = self.consumer.available().min(to.len() as u64 / token_bytes);
        if let Some(gate) = &mut self.gate {
            gate.gate.note_taken(gate.sink, gate.pulled);
            // Whoever has waited was told that they may be given out now.
            there = there.min(gate.gate.released_tokens(gate.sink) - gate.pulled);
            gate.pulled += there;
        }
        self.consumer
            .read(&mut to[..(there * token_bytes) as usize])
    }

    fn pull_all(&mut self, to: &mut [u8], deadline: Deadline) -> Result<u64, StreamError> {
        let token_bytes = self.stream.token.bytes() as usize;
        let mut done = 0;
        while done < to.len() {
            // Half a queue at a time, if so many are wanted: one wake-up for many blocks, not one for each.
            let left = ((to.len() - done) / token_bytes) as u64;
            let enough = left.min(self.consumer.shared().capacity() / 2).max(1);
            if !self.wait(enough, deadline)? {
                break;
            }
            done += self.read(&mut to[done..]) as usize * token_bytes;
            if deadline.left_ns() == Some(0) {
                break;
            }
        }
        Ok((done / token_bytes) as u64)
    }
}

impl SinkGate {
    fn released(&self) -> Released {
        self.gate.released(self.sink, self.pulled)
    }
}

impl Drop for SinkHandle {
    fn drop(&mut self) {
        // Whoever stops pulling as the run is given up has not taken the rest: another may go on with the run, and give that out.
        let is_over = self.stream.stop.is_set();
        if let Some(gate) = self.gate.as_ref().filter(|_| !is_over) {
            gate.gate.note_taken(gate.sink, u64::MAX);
        }
        self.consumer.detach();
    }
}
