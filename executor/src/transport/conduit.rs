//! A byte queue between the embedding program and a worker: one producer, one consumer, fixed memory. Knows token
//! sizes, not types.
//!
//! `head` holds the tokens written so far, shifted by one, and in the lowest bit whether the queue is closed; only the
//! producer moves it on, anyone may close. Because both are one word, a publication that comes after the close fails
//! as a whole: a closed queue's count is final, so all workers agree on the number of blocks of a run. `tail` holds
//! the tokens read. Sleeping is the protocol of [`super::ring`].
//!
//! Where one thread is both the embedding program and the worker, it may lend the queue memory for a block, and the tokens
//! are not copied into the queue's own and out of it: see [`Conduit::lend`].
#![expect(
    unsafe_code,
    reason = "copies between slices and the queue's memory, which both sides share"
)]

use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;

use super::arena::{Arena, In, OutOfMemory};
use super::arrivals::ArrivalParkers;
use super::primitive::{AtomicU32, AtomicU64, Ordering, fence};
use super::ring::{Deadline, Parker, Spin, Stop, Stopped};

/// A queue has been closed before these tokens were taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// The part of a queue that both sides write, in memory that they share.
#[derive(Debug)]
pub(crate) struct ConduitEnds {
    head: CachePadded<AtomicU64>,
    tail: CachePadded<AtomicU64>,
    /// Set when the consumer went away: what is written is dropped and counted.
    detached: AtomicU32,
    /// Set when the stream ends with this queue, although the run goes on.
    ended: AtomicU32,
    data: CachePadded<Parker>,
    space: CachePadded<Parker>,
}

impl ConduitEnds {
    fn new() -> Self {
        Self {
            head: CachePadded::new(AtomicU64::new(0)),
            tail: CachePadded::new(AtomicU64::new(0)),
            detached: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            data: CachePadded::new(Parker::new()),
            space: CachePadded::new(Parker::new()),
        }
    }
}

pub(crate) struct Conduit {
    ends: In<ConduitEnds>,
    /// Where consumers wait for tokens, if not at `ends.data`.
    arrivals: Option<In<ArrivalParkers>>,
    /// What `own_base` leads into.
    _memory: Arc<Arena>,
    /// First byte of the queue's own memory.
    own_base: *mut u8,
    /// First byte of the tokens: in its own memory, or in what is lent.
    base: AtomicPtr<u8>,
    capacity: u64,
    token_bytes: usize,
    /// Known to this process alone: the queue that goes on where this one was closed, and whether none will.
    successor: OnceLock<Arc<Conduit>>,
    is_final: AtomicU32,
}

// SAFETY: `base` leads into `memory` or what is lent; the protocol of head and tail keeps the two sides apart.
unsafe impl Send for Conduit {}
// SAFETY: as above.
unsafe impl Sync for Conduit {}

impl std::fmt::Debug for Conduit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conduit")
            .field("ends", &*self.ends)
            .finish_non_exhaustive()
    }
}

/// The writing end. There is one.
#[derive(Debug)]
pub(crate) struct Producer {
    shared: Arc<Conduit>,
    head: u64,
    tail_seen: u64,
    discarded: u64,
}

/// The reading end. There is one.
#[derive(Debug)]
pub(crate) struct Consumer {
    shared: Arc<Conduit>,
    tail: u64,
    head_seen: u64,
    /// Keep the tokens in the queue when they have been read; somebody else releases them.
    retains: bool,
}

/// Where a queue is in an arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConduitPlace {
    pub ends_offset: u64,
    pub data_offset: u64,
}

/// Where tokens are in a queue's memory: a part up to its end, and a part that goes on at its beginning.
struct TokenSpan {
    offset: usize,
    first_bytes: usize,
    wrapped_bytes: usize,
}

impl Conduit {
    pub(crate) const ENDS_BYTES: u64 = size_of::<ConduitEnds>() as u64;

    /// A queue of `capacity` tokens whose ends and bytes are at `place` in an arena. Consumers wait at `arrivals`, if
    /// there is such a place, which queues may share.
    pub(crate) fn create(
        arena: &Arc<Arena>,
        place: ConduitPlace,
        capacity: u64,
        token_bytes: u64,
        arrivals: Option<In<ArrivalParkers>>,
    ) -> Self {
        let ends = In::create(arena, place.ends_offset, 1, ConduitEnds::new).one(0);
        Self::new(
            arena,
            ends,
            place.data_offset,
            capacity,
            token_bytes,
            arrivals,
        )
    }

    /// The queue that another process created there.
    ///
    /// # Safety
    /// It did, with the same numbers, and runs this very program.
    pub(crate) unsafe fn find(
        arena: &Arc<Arena>,
        place: ConduitPlace,
        capacity: u64,
        token_bytes: u64,
        arrivals: Option<In<ArrivalParkers>>,
    ) -> Self {
        // SAFETY: the caller's promise.
        let ends = unsafe { In::find(arena, place.ends_offset, 1) }.one(0);
        Self::new(
            arena,
            ends,
            place.data_offset,
            capacity,
            token_bytes,
            arrivals,
        )
    }

    fn new(
        arena: &Arc<Arena>,
        ends: In<ConduitEnds>,
        offset: u64,
        capacity: u64,
        token_bytes: u64,
        arrivals: Option<In<ArrivalParkers>>,
    ) -> Self {
        let end_offset = capacity
            .checked_mul(token_bytes)
            .and_then(|bytes| bytes.checked_add(offset));
        assert!(
            end_offset.is_some_and(|end| end <= arena.bytes() as u64),
            "the queue lies in its arena"
        );
        let own_base = arena.base().wrapping_add(offset as usize);
        Self {
            ends,
            arrivals,
            own_base,
            base: AtomicPtr::new(own_base),
            _memory: Arc::clone(arena),
            capacity,
            token_bytes: token_bytes as usize,
            successor: OnceLock::new(),
            is_final: AtomicU32::new(0),
        }
    }

    /// A queue in memory of its own.
    #[cfg_attr(not(test), expect(dead_code, reason = "a queue alone is for tests"))]
    pub(crate) fn pair(
        capacity: u64,
        token_bytes: u64,
        arrivals: Option<In<ArrivalParkers>>,
    ) -> Result<(Producer, Consumer), OutOfMemory> {
        let data_offset = Self::ENDS_BYTES.next_multiple_of(128);
        let arena_bytes = data_offset.saturating_add(capacity.saturating_mul(token_bytes));
        let arena = Arc::new(Arena::shared(arena_bytes)?);
        let place = ConduitPlace {
            ends_offset: 0,
            data_offset,
        };
        let queue = Self::create(&arena, place, capacity, token_bytes, arrivals);
        let shared = Arc::new(queue);
        Ok((Producer::new(&shared), Consumer::new(&shared, 0, false)))
    }

    /// Tokens that the queue holds at most.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Tokens written so far, and whether that is final.
    pub(crate) fn written(&self) -> (u64, bool) {
        // Partner: the release in `Producer::write` and `close`.
        let head_word = self.ends.head.load(Ordering::Acquire);
        (head_word >> 1, head_word & 1 == 1)
    }

    /// Tokens read so far.
    pub(crate) fn taken(&self) -> u64 {
        self.ends.tail.load(Ordering::Acquire)
    }

    /// No token comes any more. Any thread may close, any number of times.
    pub(crate) fn close(&self) {
        self.ends.head.fetch_or(1, Ordering::AcqRel);
        self.wake();
    }

    /// Counts tokens up to `tokens` as written that lie on another host: nobody reads them here.
    #[cfg(hosts)]
    pub(crate) fn count_written(&self, tokens: u64) {
        let head = &self.ends.head;
        let mut word = head.load(Ordering::Acquire);
        while word & 1 == 0 && word >> 1 < tokens {
            let next = tokens << 1;
            match head.compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        self.notify_data(tokens);
    }

    /// Wakes both sides, after a close or a stop.
    pub(crate) fn wake(&self) {
        self.notify_data(u64::MAX);
        self.ends.space.notify();
    }

    fn notify_data(&self, head: u64) {
        match &self.arrivals {
            Some(arrivals) => arrivals.notify(),
            None => self.ends.data.notify_at(head),
        }
    }

    /// Releases the tokens up to `tokens`, for a consumer that retains them. Never takes anything back, so whoever is
    /// late with an older position changes nothing.
    pub(crate) fn release_until(&self, tokens: u64) {
        // Partner: the acquire loads of `tail` in `Producer`.
        let before = self.ends.tail.fetch_max(tokens, Ordering::AcqRel);
        if before < tokens {
            self.ends.space.notify_at(tokens);
        }
    }

    /// Where the consumer goes on when this queue is closed and read out. Once; the consumer is woken.
    pub(crate) fn set_successor(&self, successor: &Arc<Conduit>) {
        let is_first = self.successor.set(Arc::clone(successor)).is_ok();
        debug_assert!(is_first, "a queue has one successor");

        // Partner: the fence in `detach`: either this sees that the consumer went away, or that sees the successor.
        fence(Ordering::SeqCst);
        if self.is_detached() {
            successor.ends.detached.store(1, Ordering::Release);
        }
        self.wake();
    }

    /// Nothing follows this queue when it is closed: the stream ends there.
    pub(crate) fn mark_final(&self) {
        self.is_final.store(1, Ordering::Release);
        self.wake();
    }

    /// Whether nothing follows this queue when it is closed.
    fn is_last(&self) -> bool {
        // Partner: the releases in `mark_final` and `Producer::end`.
        self.is_final.load(Ordering::Acquire) != 0 || self.ends.ended.load(Ordering::Acquire) != 0
    }

    fn is_closed(&self) -> bool {
        self.ends.head.load(Ordering::Relaxed) & 1 == 1
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.ends.detached.load(Ordering::Acquire) != 0
    }

    /// Lets the tokens lie in `memory` in place of the queue's own, until [`Self::take_back`]. Nothing is in its own then, and
    /// what goes through it meanwhile is as many tokens as it holds, from the memory's beginning on.
    ///
    /// # Safety
    /// `memory` has room for that many tokens, and stays until it is taken back. Both ends are at work on the calling thread
    /// alone. Nothing but the ends touches the memory if tokens are written, nothing writes to it if they are only read.
    pub(crate) unsafe fn lend(&self, memory: *mut u8) {
        debug_assert!(
            self.taken().is_multiple_of(self.capacity),
            "a queue is lent memory for all that it holds"
        );
        self.base.store(memory, Ordering::Relaxed);
    }

    /// Lets the tokens lie in the queue's own memory again. It is empty.
    pub(crate) fn take_back(&self) {
        self.base.store(self.own_base, Ordering::Relaxed);
    }

    fn base(&self) -> *mut u8 {
        self.base.load(Ordering::Relaxed)
    }

    /// Where `tokens` tokens from position `position` are.
    fn token_span(&self, position: u64, tokens: u64) -> TokenSpan {
        let place_token = position % self.capacity;
        let first_tokens = tokens.min(self.capacity - place_token);
        TokenSpan {
            offset: place_token as usize * self.token_bytes,
            first_bytes: first_tokens as usize * self.token_bytes,
            wrapped_bytes: (tokens - first_tokens) as usize * self.token_bytes,
        }
    }
}

impl Producer {
    pub(crate) fn new(shared: &Arc<Conduit>) -> Self {
        Self {
            shared: Arc::clone(shared),
            head: shared.written().0,
            tail_seen: shared.taken(),
            discarded: 0,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Conduit> {
        &self.shared
    }

    /// Tokens that were written after the consumer had gone.
    pub(crate) fn discarded(&self) -> u64 {
        self.discarded
    }

    fn space(&self) -> u64 {
        // The reader may be ahead: a model whose other source has ended goes on with zeros for tokens of this one.
        self.shared.capacity - self.head.saturating_sub(self.tail_seen)
    }

    /// The space, which is looked for anew where it is not known to be enough.
    fn space_for(&mut self, tokens: u64) -> u64 {
        if self.space() < tokens {
            self.tail_seen = self.shared.ends.tail.load(Ordering::Acquire);
        }
        self.space()
    }

    /// Ends the stream with what has been written. The run may go on, in this queue and in those after it, without
    /// writing anything for it.
    pub(crate) fn end(&self) {
        self.shared.close();
        self.shared.ends.ended.store(1, Ordering::Release);
        self.shared.wake();
    }

    /// Waits for space for `tokens` tokens, at most the capacity. `Ok` too when the consumer is gone or the queue
    /// is closed: writing finds out.
    #[inline]
    pub(crate) fn wait_space(
        &mut self,
        tokens: u64,
        spin: Spin,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        self.wait_space_by(tokens, spin, stop, Deadline::NEVER)
    }

    /// Like [`Self::wait_space`], until the deadline at most: there may be less space then.
    #[inline]
    pub(crate) fn wait_space_by(
        &mut self,
        tokens: u64,
        spin: Spin,
        stop: &Stop,
        deadline: Deadline,
    ) -> Result<(), Stopped> {
        debug_assert!(
            tokens <= self.shared.capacity,
            "a queue is made for its longest slot"
        );
        if self.space() >= tokens {
            return Ok(());
        }

        let shared = Arc::clone(&self.shared);
        let mut is_stopped = false;
        // The reader's position from which on there is enough space.
        let needed_tail = (self.head + tokens).saturating_sub(shared.capacity);
        shared
            .ends
            .space
            .wait_level_by(needed_tail, spin, deadline, || {
                // Partner: the release in `Consumer::read`.
                self.tail_seen = shared.ends.tail.load(Ordering::Acquire);
                is_stopped = stop.is_set();
                self.space() >= tokens || is_stopped || shared.is_closed() || shared.is_detached()
            });
        if is_stopped && self.space() < tokens {
            Err(Stopped)
        } else {
            Ok(())
        }
    }

    /// Writes as many whole tokens of `bytes` as there is space for; the number of tokens. Without a consumer it
    /// takes everything and counts it as discarded.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<u64, Closed> {
        let wanted = (bytes.len() / self.shared.token_bytes) as u64;
        if self.shared.is_detached() {
            self.discarded += wanted;
            return Ok(wanted);
        }

        let token_count = wanted.min(self.space_for(wanted));
        if token_count > 0 {
            let span = self.shared.token_span(self.head, token_count);
            let memory_base = self.shared.base();
            let from = bytes.as_ptr();
            // SAFETY: the two ranges lie in the memory (`token_span`), hold no published unread token (`space`), and
            // only this one producer writes; the consumer reads nothing beyond `head`, which moves on below.
            unsafe {
                memory_base
                    .add(span.offset)
                    .copy_from_nonoverlapping(from, span.first_bytes);
                memory_base
                    .copy_from_nonoverlapping(from.add(span.first_bytes), span.wrapped_bytes);
            }
        }
        self.publish(token_count)?;
        Ok(token_count)
    }

    /// Counts the next `token_count` tokens, for which there is space, as written: they are in the queue's memory, or in what is
    /// lent to it.
    pub(crate) fn publish(&mut self, token_count: u64) -> Result<(), Closed> {
        let space = self.space_for(token_count);
        debug_assert!(space >= token_count, "there is space");
        let old_word = self.head << 1;
        let new_word = (self.head + token_count) << 1;
        let head = &self.shared.ends.head;
        // Partner: the acquire in `written`. Fails only if the queue has been closed.
        head.compare_exchange(old_word, new_word, Ordering::Release, Ordering::Relaxed)
            .map_err(|_| Closed)?;

        self.head += token_count;
        if token_count > 0 {
            self.shared.notify_data(self.head);
        }
        Ok(())
    }
}

impl Consumer {
    /// Reads from token `position` on.
    pub(crate) fn new(shared: &Arc<Conduit>, position: u64, retains: bool) -> Self {
        Self {
            shared: Arc::clone(shared),
            tail: position,
            head_seen: position,
            retains,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Conduit> {
        &self.shared
    }

    /// Tokens that can be read now, of this queue or of one that goes on where it was closed.
    pub(crate) fn available(&mut self) -> u64 {
        loop {
            let (written, is_closed) = self.shared.written();
            self.head_seen = written;
            if written > self.tail || !is_closed || !self.follow_successor() {
                // What is read past the end of a source lies behind its last token.
                return written.saturating_sub(self.tail);
            }
        }
    }

    /// Goes over to the queue that follows this one, which is closed and read out; whether there is one.
    fn follow_successor(&mut self) -> bool {
        if self.shared.is_last() {
            return false;
        }
        let Some(successor) = self.shared.successor.get() else {
            return false;
        };
        *self = Self::new(&Arc::clone(successor), 0, self.retains);
        true
    }

    /// Whether everything has been read and nothing will come.
    pub(crate) fn is_finished(&mut self) -> bool {
        // One look at the count and the end: what is written between two would be taken for read.
        let is_final = self.shared.is_last();
        let (written, is_closed) = self.shared.written();
        is_final && is_closed && written == self.tail
    }

    /// Reads tokens into `to` and fills what is missing with zeros; the number of tokens read.
    pub(crate) fn read(&mut self, to: &mut [u8]) -> u64 {
        let wanted = (to.len() / self.shared.token_bytes) as u64;
        if self.head_seen.saturating_sub(self.tail) < wanted {
            self.available();
        }
        let token_count = wanted.min(self.head_seen.saturating_sub(self.tail));

        let span = self.shared.token_span(self.tail, token_count);
        let memory_base = self.shared.base();
        let to_start = to.as_mut_ptr();
        // SAFETY: both ranges lie in the memory and were published by the producer before `head_seen` was loaded
        // (acquire); it does not write them again before `tail` moves on below.
        unsafe {
            to_start.copy_from_nonoverlapping(memory_base.add(span.offset), span.first_bytes);
            to_start
                .add(span.first_bytes)
                .copy_from_nonoverlapping(memory_base, span.wrapped_bytes);
        }
        to[span.first_bytes + span.wrapped_bytes..].fill(0);

        self.pass(token_count);
        token_count
    }

    /// Counts the next `token_count` tokens as read, which have been written.
    pub(crate) fn pass(&mut self, token_count: u64) {
        self.tail += token_count;
        if !self.retains {
            // Partner: the acquire loads of `tail` in `Producer`.
            self.shared.ends.tail.store(self.tail, Ordering::Release);
            self.shared.ends.space.notify_at(self.tail);
        }
    }

    /// Waits until `tokens` tokens (at least 1) are there, or some and no more can come in this queue: `Ok(false)` if
    /// there is none at all. When the deadline has come it is `Ok(true)` whatever there is. Nobody else may wait at
    /// this queue's parker.
    pub(crate) fn wait_data(
        &mut self,
        tokens: u64,
        spin: Spin,
        stop: &Stop,
        deadline: Deadline,
    ) -> Result<bool, Stopped> {
        loop {
            let level = self.tail + tokens;
            if self.head_seen >= level {
                return Ok(true);
            }

            let shared = Arc::clone(&self.shared);
            let mut has_ended = false;
            let mut is_stopped = false;
            shared.ends.data.wait_level_by(level, spin, deadline, || {
                // Before the count: what is written after the stream was marked as final is seen below.
                let is_final = shared.is_last();
                let (written, is_closed) = shared.written();
                self.head_seen = written;
                is_stopped = stop.is_set();

                let is_drained = is_closed && written == self.tail;
                has_ended = is_drained && is_final;
                let has_last_tokens = is_closed && written > self.tail;
                let has_successor = is_drained && shared.successor.get().is_some();
                self.head_seen >= level
                    || has_last_tokens
                    || has_ended
                    || is_stopped
                    || has_successor
            });

            if self.head_seen > self.tail {
                return Ok(true);
            } else if has_ended {
                return Ok(false);
            } else if is_stopped {
                return Err(Stopped);
            } else if !self.follow_successor() && deadline.left_ns() == Some(0) {
                return Ok(true);
            }
        }
    }

    /// Nobody will read any more: the producer must not wait.
    pub(crate) fn detach(&self) {
        let mut queue = &self.shared;
        loop {
            queue.ends.detached.store(1, Ordering::Release);
            // Partner: the fence in `set_successor`.
            fence(Ordering::SeqCst);
            queue.wake();
            match queue.successor.get() {
                Some(successor) => queue = successor,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(capacity: u64, token_bytes: u64) -> (Producer, Consumer) {
        Conduit::pair(capacity, token_bytes, None).expect("small")
    }

    #[test]
    fn tokens_come_out_as_they_went_in_across_the_end_of_the_memory() {
        for (capacity, token, chunk) in [(4, 1, 3), (7, 3, 5), (16, 2, 16), (5, 8, 1)] {
            let (mut producer, mut consumer) = queue(capacity, token);
            let mut next = 0u8;
            let mut expect = 0u8;
            for _ in 0..50 {
                let sent: Vec<u8> = (0..chunk * token)
                    .map(|i| next.wrapping_add(i as u8))
                    .collect();
                let tokens = producer.write(&sent).expect("open");
                assert_eq!(tokens, chunk);
                next = next.wrapping_add((tokens * token) as u8);
                let mut got = vec![0; (chunk * token) as usize];
                assert_eq!(consumer.read(&mut got), chunk);
                for byte in got {
                    assert_eq!(byte, expect);
                    expect = expect.wrapping_add(1);
                }
            }
        }
    }

    #[test]
    fn a_full_queue_takes_only_what_fits() {
        let (mut producer, mut consumer) = queue(4, 2);
        assert_eq!(producer.write(&[1; 12]), Ok(4));
        assert_eq!(producer.write(&[1; 2]), Ok(0));
        assert_eq!(consumer.read(&mut [0; 2]), 1);
        assert_eq!(producer.write(&[1; 12]), Ok(1));
    }

    #[test]
    fn reading_past_the_end_gives_zeros_and_the_count() {
        let (mut producer, mut consumer) = queue(4, 1);
        producer.write(&[7, 8]).expect("open");
        producer.shared().close();
        let mut got = [9; 4];
        assert_eq!(consumer.read(&mut got), 2);
        assert_eq!(got, [7, 8, 0, 0]);
    }

    #[test]
    fn a_closed_queue_refuses_tokens_and_keeps_its_count() {
        let (mut producer, consumer) = queue(4, 1);
        producer.write(&[1, 2]).expect("open");
        consumer.shared().close();
        assert_eq!(producer.write(&[3]), Err(Closed));
        assert_eq!(consumer.shared().written(), (2, true));
    }

    #[test]
    fn a_stream_goes_on_in_the_next_queue() {
        let (mut first, mut consumer) = queue(4, 1);
        let (mut second, _unused) = queue(4, 1);
        first.write(&[1, 2]).expect("open");
        first.shared().close();
        assert_eq!(consumer.available(), 2);
        assert_eq!(consumer.read(&mut [0; 2]), 2);
        assert_eq!(consumer.available(), 0);
        assert!(!consumer.is_finished(), "something may follow");
        second.write(&[3]).expect("open");
        first.shared().set_successor(second.shared());
        assert_eq!(
            first.write(&[9]),
            Err(Closed),
            "whoever is late writes nothing that counts"
        );
        assert_eq!(
            consumer.wait_data(1, Spin(0), &Stop::new(), Deadline::NEVER),
            Ok(true)
        );
        let mut got = [0];
        assert_eq!((consumer.read(&mut got), got), (1, [3]));
        consumer.detach();
        assert_eq!(second.write(&[4]), Ok(1));
        assert_eq!(second.discarded(), 1);
        second.shared().close();
        second.shared().mark_final();
        assert!(consumer.is_finished());
    }

    #[test]
    fn a_stream_that_has_ended_has_no_successor() {
        let (mut first, mut consumer) = queue(4, 1);
        let (second, _unused) = queue(4, 1);
        first.write(&[1]).expect("open");
        first.end();
        first.shared().set_successor(second.shared());
        assert!(!consumer.is_finished(), "a token is left");
        assert_eq!(consumer.read(&mut [0]), 1);
        assert_eq!(consumer.available(), 0);
        assert!(consumer.is_finished());
        assert_eq!(
            consumer.wait_data(1, Spin(0), &Stop::new(), Deadline::NEVER),
            Ok(false)
        );
    }

    #[test]
    fn a_reader_may_be_ahead_of_what_was_written() {
        let (mut producer, _unused) = queue(4, 1);
        producer.write(&[1]).expect("open");
        let mut consumer = Consumer::new(producer.shared(), 6, true);
        producer.shared().release_until(6);
        assert_eq!(consumer.available(), 0);
        let mut got = [9; 2];
        assert_eq!((consumer.read(&mut got), got), (0, [0, 0]));
        assert_eq!(producer.write(&[2; 5]), Ok(4), "there is space");
    }

    #[test]
    fn tokens_lie_in_memory_that_is_lent() {
        let (mut producer, mut consumer) = queue(3, 2);
        let queue = Arc::clone(producer.shared());
        for round in 0..3 {
            let mut input: Vec<u8> = (0..6).map(|i| i + 10 * round).collect();
            let lent = input.as_mut_ptr();
            // SAFETY: six bytes, at both ends of which only this thread is.
            unsafe { queue.lend(lent) };
            producer.publish(3).expect("open");
            let mut got = [0; 6];
            // Read in parts, as slots do.
            assert_eq!(consumer.read(&mut got[..2]), 1);
            assert_eq!(consumer.read(&mut got[2..]), 2);
            queue.take_back();
            assert_eq!(got[..], input[..]);

            let mut output = vec![0; 6];
            // SAFETY: as above.
            unsafe { queue.lend(output.as_mut_ptr()) };
            assert_eq!(producer.write(&got[..4]), Ok(2));
            assert_eq!(producer.write(&got[4..]), Ok(1));
            queue.take_back();
            consumer.pass(3);
            assert_eq!(output, input);

            // And in its own again.
            assert_eq!(producer.write(&[round; 6]), Ok(3));
            assert_eq!(consumer.read(&mut got), 3);
            assert_eq!((got, &input), ([round; 6], &output));
        }
    }

    #[test]
    fn without_a_reader_tokens_are_dropped_and_counted() {
        let (mut producer, consumer) = queue(2, 1);
        consumer.detach();
        for _ in 0..5 {
            producer
                .wait_space(2, Spin(0), &Stop::new())
                .expect("not stopped");
            assert_eq!(producer.write(&[0; 2]), Ok(2));
        }
        assert_eq!(producer.discarded(), 10);
    }

    #[test]
    fn both_sides_sleep_and_wake() {
        let (mut producer, mut consumer) = queue(3, 1);
        let stop = Arc::new(Stop::new());
        let there = Arc::clone(&stop);
        let total = if cfg!(miri) { 50 } else { 20_000 };
        let writer = std::thread::spawn(move || {
            for i in 0..total {
                producer
                    .wait_space(1, Spin(2), &there)
                    .expect("not stopped");
                assert_eq!(producer.write(&[i as u8]), Ok(1));
            }
            producer.shared().close();
            producer.shared().mark_final();
        });
        let mut count = 0;
        while consumer
            .wait_data(1, Spin(2), &stop, Deadline::NEVER)
            .expect("not stopped")
        {
            let mut byte = [0];
            assert_eq!(consumer.read(&mut byte), 1);
            assert_eq!(byte[0], count as u8);
            count += 1;
        }
        writer.join().expect("no panic");
        assert_eq!(count, total);
    }
}
