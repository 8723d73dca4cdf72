//! Hand-over between two threads: counters that only grow, and sleeping without lost wake-ups. Knows no memory: what
//! the counters count lies elsewhere.
//!
//! # The counters
//!
//! A [`RingSync`] joins one sender and one receiver. `published` (tokens) is written by the sender alone, `released`
//! (blocks) by the receiver alone; each lies on its own cache line. The sender writes the tokens' bytes, then stores
//! `published` (release); the receiver loads it (acquire), then reads the bytes. The receiver reads the last byte of
//! a block, then stores `released` (release); the sender loads it (acquire), then writes into the block's place
//! again. Either side keeps the last value it saw of its peer's counter and touches the peer's line only when that
//! value is too small.
//!
//! # Sleeping
//!
//! A [`Parker`] is an eventcount: `sleepers` and a number (`WakeCounter`) to sleep on.
//!
//! | | waiter | | publisher |
//! |---|---|---|---|
//! | w1 | store the level waited for; spin a bounded time on the condition | p1 | store the counter |
//! | w2 | read the epoch | p2 | fence (SeqCst) |
//! | w3 | `sleepers += 1` | p3 | read `sleepers`; if 0, or the level is above the counter: done, without a system call |
//! | w4 | fence (SeqCst) | p4 | move the epoch on |
//! | w5 | check the condition; if true: w7 | p5 | wake all who sleep on it |
//! | w6 | sleep unless the epoch has moved since w2 | | |
//! | w7 | `sleepers -= 1`; unless the condition is true: w2 | | |
//!
//! *The race*: the waiter finds the condition false, the publisher finds no sleepers, the waiter sleeps for ever.
//! *Why it cannot happen*: the fences w4 and p2 are in one total order. If p2 is first, w5 sees the store p1 and the
//! waiter does not sleep. If w4 is first, p3 sees the increment w3, so p4 moves the epoch after w2 read it: w6 either
//! finds it moved and does not sleep, or sleeps before p4 and is woken by p5. The level that p3 compares was stored
//! before w3, so the same holds for it: a publisher that the waiter has not seen sees the waiter's level. It keeps a
//! waiter for many tokens from being woken for each of them; a parker that is waited at by level has one waiter.
//! A waiter's condition includes the stop
//! flag of the run, which is stored before a notification like any counter: so a stop wakes everybody too.
//!
//! # Counters that a device writes
//!
//! A GPU may load and store its counters itself (see `zbmd_hal`): then p1 is the device's, which wakes
//! nobody. Its worker does the rest once it has seen the counter: p2 comes after that load, so w5 sees at least what the
//! worker saw, and the table holds. Until then somebody may sleep beside tokens that are there, never for longer than if
//! the worker itself had published them.

use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::clock::Clock;
use super::primitive::{AtomicU32, AtomicU64, Ordering, WakeCounter, fence, spin_loop};

/// How long to spin before sleeping, in turns of a spin loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spin(pub u32);

impl Spin {
    /// Some hundred microseconds, about what a sleep and a wake-up of an idle core cost, in a virtual machine at least:
    /// so that waiting never costs more than twice what the best choice would have. Where the last wait took longer than
    /// [`WORTH_SPINNING_NS`], as at a source that keeps real time, the next one spins no longer than [`Self::SHORT`].
    pub const LONG: Spin = Spin(if cfg!(miri) { 8 } else { 4_000 });
    /// For more threads than cores: the peer may need this very core to go on.
    pub const SHORT: Spin = Spin(8);
}

/// A wait that came to sleeping and took longer, its wake-up included, has spun in vain, and the next one there is likely to.
const WORTH_SPINNING_NS: u64 = 200_000;

/// A place where threads wait for a condition that other threads make true. See the module for the protocol.
#[derive(Debug)]
pub struct Parker {
    sleepers: AtomicU32,
    /// The counter's value that the one waiter waits for; 0 where any wake-up counts.
    level: AtomicU64,
    /// 1 after a wait that was too long for spinning. A hint, which nothing is ordered by.
    is_slow: AtomicU32,
    epoch: WakeCounter,
}

impl Default for Parker {
    fn default() -> Self {
        Self::new()
    }
}

impl Parker {
    /// Nobody sleeps.
    pub fn new() -> Self {
        Self {
            sleepers: AtomicU32::new(0),
            level: AtomicU64::new(0),
            is_slow: AtomicU32::new(0),
            epoch: WakeCounter::new(),
        }
    }

    /// Forgets sleepers that died in their sleep. Nobody else may use the parker at the time.
    pub(crate) fn reset(&self) {
        self.sleepers.store(0, Ordering::Relaxed);
        self.level.store(0, Ordering::Relaxed);
        self.is_slow.store(0, Ordering::Relaxed);
    }

    /// Wakes all waiters. Called after the store that may make their condition true; without a sleeper it costs a
    /// fence and a load.
    pub fn notify(&self) {
        // Partner: the fence in `sleep_until` (p2 and w4 of the module's table).
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.epoch.advance();
        }
    }

    /// Wakes the waiter if the counter, stored before, has reached the level that it waits for.
    #[inline]
    pub fn notify_at(&self, counter: u64) {
        // Partner: the fence in `sleep_until` (p2 and w4 of the module's table).
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0
            && self.level.load(Ordering::Relaxed) <= counter
        {
            self.epoch.advance();
        }
    }

    /// Like [`Self::wait_until`] for the one waiter of this parker, whom [`Self::notify_at`] wakes from `level` on.
    pub fn wait_level(&self, level: u64, spin: Spin, ready: impl FnMut() -> bool) {
        self.wait_level_by(level, spin, Deadline::NEVER, ready);
    }

    /// Like [`Self::wait_level`], until the deadline at most: then `ready` may still be false.
    pub(crate) fn wait_level_by(
        &self,
        level: u64,
        spin: Spin,
        deadline: Deadline,
        ready: impl FnMut() -> bool,
    ) {
        // Seen by whoever sees this waiter's increment of `sleepers`, through the fences.
        self.level.store(level, Ordering::Relaxed);
        self.wait_by(spin, deadline, ready);
    }

    /// Returns as soon as `ready` gives true; it must load what it looks at with acquire ordering.
    pub fn wait_until(&self, spin: Spin, ready: impl FnMut() -> bool) {
        self.wait_by(spin, Deadline::NEVER, ready);
    }

    fn wait_by(&self, spin: Spin, deadline: Deadline, mut ready: impl FnMut() -> bool) {
        let turns = match self.is_slow.load(Ordering::Relaxed) {
            0 => spin.0,
            _ => spin.0.min(Spin::SHORT.0),
        };
        for _ in 0..turns {
            if ready() {
                return;
            }
            spin_loop();
        }

        let start_ns = Clock.now_ns();
        self.sleep_until(deadline, ready);
        let is_slow = Clock.now_ns() - start_ns > WORTH_SPINNING_NS;
        self.is_slow.store(u32::from(is_slow), Ordering::Relaxed);
    }

    #[cold]
    fn sleep_until(&self, deadline: Deadline, mut ready: impl FnMut() -> bool) {
        loop {
            let left_ns = deadline.left_ns();
            let seen = self.epoch.current();
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            // Partner: the fence in `notify`.
            fence(Ordering::SeqCst);
            let done = ready();
            if !done && left_ns != Some(0) {
                self.epoch.sleep(seen, left_ns);
            }
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
            if done || ready() || deadline.left_ns() == Some(0) {
                return;
            }
        }
    }
}

/// When to wait no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline(Option<u64>);

impl Deadline {
    /// Wait as long as it takes.
    pub(crate) const NEVER: Self = Self(None);

    /// So long from now on.
    pub(crate) fn after(limit: Duration) -> Self {
        let ns = limit.as_nanos().try_into().unwrap_or(u64::MAX);
        Self(Clock.now_ns().checked_add(ns))
    }

    /// Nanoseconds until then; `None` if it never comes.
    pub(crate) fn left_ns(self) -> Option<u64> {
        self.0.map(|end_ns| end_ns.saturating_sub(Clock.now_ns()))
    }
}

/// A flag that ends every wait of a run. Set once.
#[derive(Debug)]
pub struct Stop(AtomicU32);

impl Default for Stop {
    fn default() -> Self {
        Self::new()
    }
}

impl Stop {
    /// Not stopped.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Whether the run is to be given up.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Gives the run up. The caller then notifies every parker.
    pub fn set(&self) {
        self.0.store(1, Ordering::Release);
    }
}

/// The run was given up while waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// The two counters of a ring between two devices, and where each side sleeps.
#[derive(Debug, Default)]
pub struct RingSync {
    published: CachePadded<Counter>,
    released: CachePadded<Counter>,
    data: CachePadded<Parker>,
    space: CachePadded<Parker>,
}

#[derive(Debug)]
struct Counter(AtomicU64);

impl Default for Counter {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

/// One side's view of its peer's counter, and how often it had to wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer {
    seen: u64,
    /// Waits that the last value seen did not satisfy at once.
    pub waits: u64,
}

impl RingSync {
    /// Nothing published, nothing released.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sender: the tokens up to `tokens`, counted from the start of the run, are written.
    pub fn publish(&self, tokens: u64) {
        // Partner: the acquire in `wait_published`.
        self.published.0.store(tokens, Ordering::Release);
        self.data.notify_at(tokens);
    }

    /// Receiver: the first `blocks` blocks of the run are read for good.
    pub fn release(&self, blocks: u64) {
        // Partner: the acquire in `wait_released`.
        self.released.0.store(blocks, Ordering::Release);
        self.space.notify_at(blocks);
    }

    /// Tokens published and blocks released, for whoever watches.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.published.0.load(Ordering::Relaxed),
            self.released.0.load(Ordering::Relaxed),
        )
    }

    /// Receiver: waits until `tokens` tokens of the run are published.
    ///
    /// # Errors
    /// [`Stopped`] if the run is given up before.
    #[inline]
    pub fn wait_published(
        &self,
        tokens: u64,
        peer: &mut Peer,
        spin: Spin,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        wait(&self.published.0, &self.data, tokens, peer, spin, stop)
    }

    /// Receiver: whether `tokens` tokens of the run are published, without waiting.
    pub fn has_published(&self, tokens: u64, peer: &mut Peer) -> bool {
        if peer.seen < tokens {
            // Partner: the release in `publish`.
            peer.seen = self.published.0.load(Ordering::Acquire);
        }
        peer.seen >= tokens
    }

    /// Sender: waits until `blocks` blocks of the run are released.
    ///
    /// # Errors
    /// [`Stopped`] if the run is given up before.
    #[inline]
    pub fn wait_released(
        &self,
        blocks: u64,
        peer: &mut Peer,
        spin: Spin,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        wait(&self.released.0, &self.space, blocks, peer, spin, stop)
    }

    /// Wakes a receiver that waits for no more than `tokens` tokens, which the sender's device has published itself.
    pub fn announce_published(&self, tokens: u64) {
        self.data.notify_at(tokens);
    }

    /// Wakes a sender that waits for no more than `blocks` blocks, which the receiver's device has released itself.
    pub fn announce_released(&self, blocks: u64) {
        self.space.notify_at(blocks);
    }

    /// Where `published` and `released` lie, for devices that load and store them.
    pub(crate) fn counters(&self) -> [*mut u64; 2] {
        let place = |counter: &Counter| std::ptr::from_ref(&counter.0).cast_mut().cast();
        [place(&self.published), place(&self.released)]
    }

    /// Wakes both sides, after a stop.
    pub fn wake(&self) {
        self.data.notify();
        self.space.notify();
    }
}

#[inline]
fn wait(
    counter: &AtomicU64,
    parker: &Parker,
    target: u64,
    peer: &mut Peer,
    spin: Spin,
    stop: &Stop,
) -> Result<(), Stopped> {
    if peer.seen >= target {
        return Ok(());
    }

    // Partner: the release in `publish` or `release`.
    peer.seen = counter.load(Ordering::Acquire);
    if peer.seen >= target {
        return Ok(());
    }
    peer.waits += 1;
    parker.wait_level(target, spin, || {
        peer.seen = counter.load(Ordering::Acquire);
        peer.seen >= target || stop.is_set()
    });
    if peer.seen >= target {
        Ok(())
    } else {
        Err(Stopped)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64 as Word;

    /// What a device stores where the counters are.
    fn store(ring: &RingSync, which: usize, value: u64) {
        #[expect(unsafe_code, reason = "stores a counter as a device does")]
        // SAFETY: a word of the ring's, which is accessed atomically only.
        unsafe { Word::from_ptr(ring.counters()[which]) }.store(value, Ordering::Release);
    }

    #[test]
    fn sleepers_are_woken_by_what_a_device_has_stored() {
        let (ring, stop) = (RingSync::new(), Stop::new());
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                ring.wait_published(5, &mut Peer::default(), Spin(0), &stop)
                    .is_ok()
            });
            let sender = scope.spawn(|| {
                ring.wait_released(2, &mut Peer::default(), Spin(0), &stop)
                    .is_ok()
            });
            while [&ring.data, &ring.space].map(|p| p.sleepers.load(Ordering::Acquire)) != [1, 1] {
                std::thread::yield_now();
            }
            store(&ring, 0, 5);
            ring.announce_published(5);
            store(&ring, 1, 2);
            ring.announce_released(2);
            assert_eq!(
                (receiver.join().ok(), sender.join().ok()),
                (Some(true), Some(true))
            );
        });
        assert_eq!(ring.counts(), (5, 2), "telling stores nothing");
    }

    /// How often a wait with a long spin looks at its condition, if it is woken so long after it fell asleep.
    fn looks(parker: &Parker, sleep: std::time::Duration) -> u32 {
        let (is_over, looks) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                parker.wait_until(Spin::LONG, || {
                    looks.fetch_add(1, Ordering::Relaxed);
                    is_over.load(Ordering::Acquire) == 1
                });
            });
            while parker.sleepers.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(sleep);
            is_over.store(1, Ordering::Release);
            parker.notify();
        });
        looks.into_inner()
    }

    #[test]
    fn after_a_wait_that_was_too_long_for_spinning_the_next_one_hardly_spins() {
        let parker = Parker::new();
        let too_long = std::time::Duration::from_nanos(2 * WORTH_SPINNING_NS);
        assert!(looks(&parker, too_long) > Spin::LONG.0);
        // Before and after sleeping it looks again.
        assert!(looks(&parker, too_long) < 2 * Spin::SHORT.0);

        parker.reset();
        assert!(looks(&parker, too_long) > Spin::LONG.0);
    }
}
