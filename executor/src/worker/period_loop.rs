//! One worker: the thread of one CPU device. It admits blocks, steps periods and ends them all alike; it must not know
//! what the instructions do.
//!
//! Invariant: whether block p is admitted is decided once and for all by the streams (enough tokens, or closed without
//! them), the tickets and the limit, none of which takes anything back. So all workers of a run agree on the number
//! of blocks, without talking to each other.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use zbmd_backends::kernel::KernelFault;
use zbmd_backends::team::Team;

use crate::observe::measure::{Path, Stamps};
use crate::observe::trace::Recorder;
use crate::run::watchdog::Winder;
use crate::transport::arena::In;
use crate::transport::clock::Clock;
use crate::transport::conduit::{Conduit, Consumer, Producer};
use crate::transport::epoch::{Doors, EpochMemory, Post};
use crate::transport::primitive::{AtomicU64, Ordering, fence};
use crate::transport::ring::{Spin, Stop, Stopped};
use crate::worker::gpu::{DeviceFault, Drive, Gpu};
use crate::worker::replay::{Env, Halt, Replay};

/// The worker's end of a source.
pub(crate) struct SourceEnd {
    pub consumer: Consumer,
}

impl SourceEnd {
    pub(crate) fn read(&mut self, to: &mut [u8]) {
        // Admission made sure of the tokens; only padding reads past the end, and gets zeros.
        self.consumer.read(to);
    }
}

/// The worker's end of a sink.
pub(crate) struct SinkEnd {
    pub index: u32,
    pub producer: Producer,
    pub token_bytes: u64,
    /// Firings of the sink in one block: its last one completes the block.
    pub firings: u64,
    pub paths: Vec<Path>,
    /// Tokens still to come that were given out in an earlier epoch: the same bits, and not given out again.
    pub given_out: u64,
}

impl SinkEnd {
    /// Gives tokens out; `end` is one past the last firing of the block that they come from.
    pub(crate) fn write(
        &mut self,
        from: &[u8],
        block: u64,
        end: u64,
        env: (Spin, &Stop, &Clock, &Post),
    ) -> Result<(), Stopped> {
        let (spin, stop, clock, post) = env;
        let mut from = from;
        if self.given_out > 0 {
            let tokens = self.given_out.min(from.len() as u64 / self.token_bytes);
            self.given_out -= tokens;
            from = &from[(tokens * self.token_bytes) as usize..];
            if from.is_empty() {
                return Ok(());
            }
        }
        if post.first_output_ns.load(Ordering::Relaxed) == 0 {
            post.first_output_ns
                .store(clock.now_ns(), Ordering::Relaxed);
        }
        self.producer
            .wait_space(from.len() as u64 / self.token_bytes, spin, stop)?;
        self.producer.write(from).map_err(|_| Stopped)?;
        if end == self.firings && !self.paths.is_empty() {
            let now_ns = clock.now_ns();
            for path in &mut self.paths {
                path.record(block, now_ns);
            }
        }
        Ok(())
    }
}

/// Permission to start blocks, given out in small batches so that a stop takes effect soon.
///
/// One word: blocks granted, shifted by one, and whether no more will be. Any worker may grant; after the close
/// nobody can, so the count is final.
#[derive(Debug)]
pub(crate) struct Tickets {
    word: CachePadded<AtomicU64>,
}

impl Tickets {
    pub(crate) fn new() -> Self {
        Self {
            word: CachePadded::new(AtomicU64::new(0)),
        }
    }

    pub(crate) fn close(&self) {
        self.word.fetch_or(1, Ordering::AcqRel);
    }

    /// Whether `block` is not granted, and never will be.
    fn is_closed_before(&self, block: u64) -> bool {
        let word = self.word.load(Ordering::Acquire);
        word & 1 == 1 && word >> 1 <= block
    }

    /// Blocks granted, more than `block` unless closed.
    fn grant(&self, block: u64, batch: u64) -> u64 {
        let mut word = self.word.load(Ordering::Acquire);
        while word >> 1 <= block && word & 1 == 0 {
            let more = (block + batch) << 1;
            match self
                .word
                .compare_exchange(word, more, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return more >> 1,
                Err(now) => word = now,
            }
        }
        word >> 1
    }
}

/// What admission looks at in one source.
pub(crate) struct Feed {
    pub conduit: Arc<Conduit>,
    /// Tokens taken before this plan began.
    pub base: u64,
    pub tokens_per_block: u64,
}

/// Decides whether a block may start.
pub(crate) struct Gate {
    pub feeds: Vec<Feed>,
    pub doors: In<Doors>,
    pub epoch: u64,
    /// Blocks at most.
    pub limit: u64,
    /// Tickets taken at a time.
    pub batch: u64,
    /// Start blocks of closed sources whatever they hold: what is missing reads as zeros.
    pub pad: bool,
    /// Blocks known to be admitted.
    pub admitted: u64,
}

impl Gate {
    /// Waits until it is known whether `block` starts.
    pub(crate) fn admit(
        &mut self,
        block: u64,
        tickets: &Tickets,
        spin: Spin,
        stop: &Stop,
    ) -> Result<bool, Stopped> {
        if let Some(verdict) = self.look(block, tickets) {
            return Ok(verdict);
        }
        let doors = self.doors.clone();
        let mut verdict = None;
        doors.of(self.epoch).wait_until(spin, || {
            verdict = self.look(block, tickets);
            verdict.is_some() || stop.is_set()
        });
        verdict.ok_or(Stopped)
    }

    /// Whether `block` starts, if that is known.
    pub(crate) fn look(&mut self, block: u64, tickets: &Tickets) -> Option<bool> {
        if block < self.admitted {
            return Some(true);
        }
        if block >= self.limit {
            return Some(false);
        }
        let mut there = u64::MAX;
        let mut pending = false;
        for feed in &self.feeds {
            let (written, closed) = feed.conduit.written();
            let blocks = (written - feed.base) / feed.tokens_per_block;
            if blocks > block {
                there = there.min(blocks);
            } else if !closed {
                pending = true;
            } else if self.pad {
                there = there.min(block + 1);
            } else {
                return Some(false);
            }
        }
        if pending {
            // No ticket is taken for tokens that may never come: whoever closes the tickets waits for none.
            return tickets.is_closed_before(block).then_some(false);
        }
        let upto = tickets
            .grant(block, self.batch.min(there - block))
            .min(self.limit);
        if upto <= block {
            return Some(false);
        }
        self.admitted = upto.min(there);
        Some(true)
    }
}

/// Why a worker gave up.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another worker did, or the session was dropped.
    Stopped,
    Fault(KernelFault),
    Device(DeviceFault),
    Panic(String),
    /// What came over a ring (numbered as in the replay) is not what was sent.
    Corrupt {
        ring: u32,
        sent: u64,
        found: u64,
    },
}

/// What measuring the periods of one worker gave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Periods {
    pub first_ns: u64,
    pub last_ns: u64,
    pub pinned: bool,
}

/// What a worker drives.
#[expect(
    clippy::large_enum_variant,
    reason = "a core steps it in every period, and there is one of it"
)]
pub(crate) enum Body {
    /// A core: it calls kernels itself.
    Cpu(Replay),
    /// A GPU, by submissions.
    Gpu(Box<Gpu>),
}

/// Everything that one thread needs. It comes back after the run.
pub(crate) struct Worker {
    pub body: Body,
    pub sources: Vec<SourceEnd>,
    pub sinks: Vec<SinkEnd>,
    pub gate: Gate,
    pub epoch: Arc<EpochMemory>,
    /// Which of the epoch's calendars it runs.
    pub calendar: usize,
    pub stamps: Option<Stamps>,
    /// The device's cores. Kernels share their work between them.
    pub cores: Vec<u32>,
    /// Whether threads are tied to them.
    pub pin: bool,
    pub spin: Spin,
    pub stages: u64,
    /// Every how many periods slots are timed; 0 for never.
    pub sample_every: u64,
    pub periods: Periods,
    /// The period at work.
    pub period: u64,
    /// The trace, if there is one.
    pub recorder: Option<Recorder>,
}

impl Worker {
    /// Runs all periods; the number of blocks.
    pub(crate) fn run(&mut self, winder: Option<Winder>) -> Result<u64, Failure> {
        let _team = self.team();
        self.epoch.posts[self.calendar]
            .thread
            .store(thread_number(), Ordering::Release);
        let outcome = catch_unwind(AssertUnwindSafe(|| self.periods(winder)));
        self.epoch.posts[self.calendar]
            .left
            .store(1, Ordering::Release);
        match outcome {
            Ok(Ok(blocks)) => Ok(blocks),
            Ok(Err(Halt::Stopped)) => Err(Failure::Stopped),
            Ok(Err(Halt::Fault(fault))) => Err(Failure::Fault(fault)),
            Ok(Err(Halt::Device(fault))) => Err(Failure::Device(fault)),
            Ok(Err(Halt::Corrupt { ring, sent, found })) => {
                Err(Failure::Corrupt { ring, sent, found })
            }
            Err(panic) => Err(Failure::Panic(panic_message(panic.as_ref()))),
        }
    }

    /// Ties this thread to its core, and starts threads on the device's others.
    fn team(&mut self) -> Option<Team> {
        let (team, tied) = Team::of_cores(&self.cores, self.pin);
        self.periods.pinned = tied;
        team
    }

    fn periods(&mut self, winder: Option<Winder>) -> Result<u64, Halt> {
        let Self {
            body,
            sources,
            sinks,
            gate,
            epoch,
            stamps,
            spin,
            ..
        } = self;
        let epoch: &EpochMemory = epoch;
        let replay = match body {
            Body::Cpu(replay) => replay,
            Body::Gpu(gpu) => {
                let recorder = self.recorder.take();
                let drive = Drive {
                    epoch,
                    gate,
                    spin: *spin,
                    recorder,
                };
                let (periods, period) = (&mut self.periods, &mut self.period);
                return gpu.run(drive, self.sample_every, periods, period);
            }
        };
        let (stop, tickets) = (&epoch.common.stop, &epoch.common.tickets);
        let post: &Post = &epoch.posts[self.calendar];
        let (clock, spin) = (&Clock, *spin);
        let rings = &*epoch.rings;
        let recorder = self.recorder.take();
        let mut env = Env {
            epoch,
            rings,
            post,
            sources,
            sinks,
            stop,
            spin,
            clock,
            winder,
            recorder,
        };
        let mut until_sample = self.sample_every;
        // Periods until the next border is passed.
        let mut until_border = epoch
            .borders()
            .map_or(u64::MAX, |b| b.every() + self.stages - 1);
        let mut blocks = None;
        loop {
            let period = self.period;
            if blocks.is_none() && !gate.admit(period, tickets, spin, stop)? {
                blocks = Some(period);
            }
            if period == 0 {
                self.periods.first_ns = clock.now_ns();
            }
            if blocks.is_some_and(|n| period + 1 >= n + self.stages) {
                break;
            }
            if stop.is_set() {
                return Err(Halt::Stopped);
            }
            if let (Some(stamps), None) = (stamps.as_ref(), blocks) {
                stamps.set(period, clock.now_ns());
            }
            // The first periods warm caches up; they are not sampled.
            let timed = until_sample == 1;
            until_sample = if timed {
                self.sample_every
            } else {
                until_sample.saturating_sub(1)
            };
            replay.step(&mut env, period, blocks, timed)?;
            self.period += 1;
            post.periods.store(self.period, Ordering::Release);
            post.pc.store(Post::OUTSIDE, Ordering::Relaxed);
            env.got_on();
            until_border -= 1;
            if until_border == 0 {
                until_border = epoch.borders().map_or(u64::MAX, |b| b.every());
                commit(epoch, gate);
            }
        }
        self.periods.last_ns = clock.now_ns();
        Ok(blocks.unwrap_or(0))
    }
}

/// Called by a worker that has passed a border and told so: if that commits a border, lets the sources' tokens before
/// it go.
///
/// Every worker looks after it has told: whoever is the last to pass a border sees that all have.
pub(crate) fn commit(epoch: &EpochMemory, gate: &Gate) {
    // Partner: itself, in the other workers: of two that pass the border at once, one sees both.
    fence(Ordering::SeqCst);
    let committed = epoch.passed();
    if epoch.common.committed.advance(committed) {
        for feed in &gate.feeds {
            feed.conduit
                .let_go(feed.base + committed * feed.tokens_per_block);
        }
        epoch.common.commits.notify();
    }
}

/// The system's number of this thread, by which others can ask what became of it; 0 if it has none.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn thread_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn thread_number() -> u32 {
    0
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(owned)
        .unwrap_or("a panic without a message")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::arena::Arena;

    /// What each source holds (tokens, closed), the limit, whether to pad; then the verdict on block 2 of 10 tokens.
    fn verdict(sources: &[(u64, bool)], limit: u64, pad: bool) -> Option<bool> {
        let arena = Arc::new(Arena::new(size_of::<Doors>() as u64, false).expect("small"));
        let doors = In::create(&arena, 0, 1, Doors::new).one(0);
        let mut feeds = Vec::new();
        for &(tokens, closed) in sources {
            let (mut producer, _consumer) =
                Conduit::pair(64, 1, Some(doors.clone())).expect("small");
            producer.write(&vec![0; tokens as usize]).expect("open");
            if closed {
                producer.shared().close();
            }
            let conduit = Arc::clone(producer.shared());
            feeds.push(Feed {
                conduit,
                base: 0,
                tokens_per_block: 10,
            });
        }
        let mut gate = Gate {
            feeds,
            doors,
            epoch: 0,
            limit,
            batch: 8,
            pad,
            admitted: 0,
        };
        gate.look(2, &Tickets::new())
    }

    #[test]
    fn admission_waits_for_every_source_and_ends_with_the_first_closed_one() {
        for (sources, limit, pad, expect, why) in [
            (
                &[][..],
                9,
                false,
                Some(true),
                "without sources nothing is missing",
            ),
            (
                &[][..],
                2,
                false,
                Some(false),
                "blocks 0 and 1 are the limit",
            ),
            (
                &[(30, false)],
                9,
                false,
                Some(true),
                "three blocks are there",
            ),
            (&[(29, false)], 9, false, None, "one token may still come"),
            (
                &[(29, true)],
                9,
                false,
                Some(false),
                "one token will never come",
            ),
            (
                &[(29, true)],
                9,
                true,
                Some(true),
                "the missing token is padded",
            ),
            (
                &[(29, false)],
                9,
                true,
                None,
                "padding waits for the end of the source",
            ),
            (
                &[(30, true)],
                9,
                false,
                Some(true),
                "the last block is whole",
            ),
            (
                &[(0, false), (29, true)],
                9,
                false,
                Some(false),
                "one short source ends the run",
            ),
            (
                &[(29, true), (0, false)],
                9,
                false,
                Some(false),
                "in any order",
            ),
            (
                &[(50, true), (29, false)],
                9,
                false,
                None,
                "one late source holds it up",
            ),
        ] {
            assert_eq!(verdict(sources, limit, pad), expect, "{why}");
        }
    }

    #[test]
    fn closed_tickets_are_final() {
        let tickets = Tickets::new();
        assert_eq!(tickets.grant(0, 4), 4);
        assert_eq!(tickets.grant(3, 4), 4);
        assert_eq!(tickets.grant(4, 4), 8);
        tickets.close();
        assert_eq!(tickets.grant(8, 4), 8);
    }
}
