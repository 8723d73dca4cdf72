//! The calendar of one GPU as lists of commands: recorded once, submitted once a period. What a list is, the backend
//! says: a command buffer of Vulkan, a graph of CUDA.
//!
//! # How a period runs
//!
//! A calendar is cut into segments (see `expand`); most have one, or may be run as one (see `merge`). For each the host
//! waits until all that it receives is published, copies it into memory that the device sees, and submits: the device
//! copies the tokens in, fires, carries, copies what it sends out. When the device has ended, the host copies what was
//! sent into the receivers' regions, publishes it, and releases what was read, in the calendar's order. Between slots
//! of one device there is no host.
//!
//! Two periods are in flight: period n + 1 is queued while n runs. While the host would have to wait for tokens, it
//! first ends what is in flight, because other devices may need that to go on; so a calendar that is free of deadlocks
//! slot by slot is free of them here.
//!
//! # Who exchanges tokens
//!
//! So it is where the host does all of it ([`Transport::Staged`]): with Vulkan, and wherever somebody must look at the
//! tokens, as with checksums. A driver that takes memory of others (CUDA's, by registration: see [`Exchange::within`])
//! has the device fetch what it receives from the shared region itself ([`Transport::Fetched`]): nobody overwrites it
//! before its release, which comes after the submission's end. And a queue that waits for words of that memory and
//! stores them (CUDA's stream memory operations) does everything ([`Transport::Device`]): a submission waits for
//! `published` of all that the segment receives, runs the list, and then in the calendar's order stores `released`, or
//! waits for `released`, copies to the receiver's region and stores `published`. The host puts in what it would have
//! done, with the same counts in the same order: so what is free of deadlocks there is free of them here. It looks on,
//! step by step in that order (`exchange.rs`), because a store of the device's wakes no sleeper.
//!
//! *A stop.* A device that waits for a peer that is gone is let go ([`Replay::let_go`]): its worker stores a large count
//! into the counters that this device alone reads, until the queue is empty. So the supervisor can always end the wait:
//! by the stop, which every worker sees, or by killing the worker's process, which takes its queue along. What the
//! device computes then is worthless, and it overwrites places that others may still read; therefore whoever stops a run
//! closes its sinks and seals its last border before anybody can see the stop, and this worker does not tell that the
//! period has ended.
//!
//! *A loss.* After a fatal fault the memory stays registered, because the device may still reach it.
//!
//! # Memory
//!
//! The device has an arena and an exchange region of its own, cut into banks. The exchange region that other devices
//! write into lies on the host ([`HostRegion`]); its tokens are copied from there to the same offsets of the device's.
//! Heads of places are the device's alone: nothing but tokens crosses.
//!
//! Constants, weights above all, stay on the device from one calendar to the next (see [`Kept`]).
//!
//! # Borders
//!
//! Where tokens are saved at borders (see [`Replay::save_borders`]), the period in which they have all come about is
//! followed by a small submission that copies them to where the host sees them. Nothing waits for it but what waits
//! for the period.
//!
//! Lists are recorded for every residue of the period that places differ in. In the first and last periods, when
//! stages are missing, what is left is recorded anew; no other period records or allocates anything.
#![expect(unsafe_code, reason = "copies between host regions and mapped memory")]
#![expect(private_bounds, reason = "devices are made here and nowhere else")]

mod call;
mod exchange;
mod expand;
mod kept;
mod layout;
mod lower;
mod merge;
mod prepare;
mod queue;
mod save;
mod segment;
mod state;

use std::collections::VecDeque;

use zbmd_ir::{ActorId, BufferId, ChannelId, DeviceId, RingId};

pub use self::call::Call;
use self::exchange::Direct;
pub use self::exchange::{Exchange, Transport};
pub use self::kept::Kept;
#[cfg(feature = "cuda")]
pub(crate) use self::queue::Handover;
pub(crate) use self::queue::{Backend, Command, Home, Limits, List, Queue, Range, Run, bind};
use self::save::{Due, Saves};
use self::segment::{RingInfo, Segment};

/// The calls into a driver, each with the name of its function.
macro_rules! sites {
    ($($name:ident $text:literal),* $(,)?) => {
        /// A call into the driver. Tests make each of them fail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "each prints as the function that it calls")]
        pub enum Site { $($name),* }

        impl Site {
            /// Every site.
            pub const ALL: &'static [Site] = &[$(Site::$name),*];

            /// The function called.
            pub fn name(self) -> &'static str {
                match self { $(Site::$name => $text),* }
            }
        }

        impl std::fmt::Display for Site {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use sites;

/// Periods in flight.
const DEPTH: u64 = 2;
/// Time after which a queue counts as hung, unless told otherwise.
pub(crate) const PATIENCE_NS: u64 = 10_000_000_000;

/// Why a calendar cannot be replayed on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError<F> {
    /// The device has no kernel for an actor that was placed there.
    #[error(
        "actor `{actor}` ({op}) has no kernel on {device}: {why}; compile for this machine, or pin it to a CPU"
    )]
    NoKernel {
        /// The actor.
        actor: String,
        /// Its op.
        op: String,
        /// The device.
        device: String,
        /// As a clause.
        why: String,
    },
    /// A source or a sink was placed on the device.
    #[error(
        "`{actor}` is a source or a sink; those belong to the host, not to {device}: compile again"
    )]
    Stream {
        /// The actor.
        actor: String,
        /// The device.
        device: String,
    },
    /// More commands than are worth recording.
    #[error("{device}: {what} are more than {limit} commands in all phases: use smaller blocks")]
    TooMany {
        /// The device.
        device: String,
        /// What there is, in words.
        what: String,
        /// How many commands may be recorded.
        limit: usize,
    },
    /// A buffer or a port beyond what the device can address at once.
    #[error("{what} has {bytes} bytes, {device} takes {limit} at most: use smaller blocks")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its size.
        bytes: u64,
        /// The device's limit.
        limit: u64,
        /// The device.
        device: String,
    },
    /// The arena that the plan has for scratch memory is too small for a kernel.
    #[error(
        "actor `{actor}` needs {needed} bytes of scratch memory, the plan has {found}: compile again"
    )]
    Scratch {
        /// The actor.
        actor: String,
        /// Bytes it needs.
        needed: u64,
        /// Bytes there are.
        found: u64,
    },
    /// A region of the host's is missing or too small.
    #[error("the exchange region of {device} has {found} bytes, the plan needs {needed}")]
    Region {
        /// Whose region.
        device: DeviceId,
        /// Bytes it needs.
        needed: u64,
        /// Bytes it has.
        found: u64,
    },
    /// The driver failed.
    #[error(transparent)]
    Fault(F),
}

/// The exchange region of a device, on the host: what other devices send into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRegion {
    first: *mut u8,
    bytes: u64,
}

// SAFETY: a region is bare memory; those who share it keep apart by the protocol of rings.
unsafe impl Send for HostRegion {}
// SAFETY: as above.
unsafe impl Sync for HostRegion {}

impl HostRegion {
    /// The region of `bytes` bytes from `first` on.
    ///
    /// # Safety
    /// The memory is valid and initialised for as long as any replay has the region. Others that touch it keep to the
    /// protocol of rings: they write tokens of a block only after the place was released, and read them only after they
    /// were published.
    pub unsafe fn new(first: *mut u8, bytes: u64) -> Self {
        Self { first, bytes }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn first(&self) -> *mut u8 {
        self.first
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// First byte of a range that was checked against the region.
    fn at(&self, offset: u64, len: u64) -> *mut u8 {
        assert!(
            offset + len <= self.bytes,
            "{offset} + {len} of a region of {}",
            self.bytes
        );
        self.first.wrapping_add(offset as usize)
    }
}

/// The run was given up while waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// The other ends of the device's rings: what the executor does for its device.
///
/// Tokens and blocks are counted from the start of the run, as in the executor's rings.
pub trait Peers {
    /// Whether `tokens` tokens of a ring have been published. With `wait`, it returns only when they are.
    ///
    /// # Errors
    /// [`Stopped`] if the run is given up.
    fn published(&mut self, ring: RingId, tokens: u64, wait: bool) -> Result<bool, Stopped>;

    /// Waits until `blocks` blocks of a ring have been released.
    ///
    /// # Errors
    /// [`Stopped`] if the run is given up.
    fn wait_released(&mut self, ring: RingId, blocks: u64) -> Result<(), Stopped>;

    /// The tokens up to `tokens` of a ring are in the receiver's region.
    fn publish(&mut self, ring: RingId, tokens: u64);

    /// The first `blocks` blocks of a ring are read for good.
    fn release(&mut self, ring: RingId, blocks: u64);

    /// The device itself has published: wakes whoever sleeps until that.
    fn was_published(&mut self, ring: RingId, tokens: u64) {
        let _ = (ring, tokens);
    }

    /// The device itself has released.
    fn was_released(&mut self, ring: RingId, blocks: u64) {
        let _ = (ring, blocks);
    }

    /// Takes the last tokens of a channel after the first `border` blocks: see [`Replay::save_borders`].
    ///
    /// # Errors
    /// [`Stopped`] if the run is given up.
    fn save(&mut self, border: u64, channel: ChannelId, tokens: &[u8]) -> Result<(), Stopped> {
        let _ = (border, channel, tokens);
        Ok(())
    }

    /// The first `periods` periods have ended, and all that they had to give was given.
    fn ended(&mut self, periods: u64) {
        let _ = periods;
    }
}

/// Why a period was not completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt<F> {
    /// The run was given up.
    #[error("the run was stopped")]
    Stopped,
    /// The driver failed.
    #[error(transparent)]
    Fault(F),
}

impl<F> From<F> for ReplayError<F> {
    fn from(fault: F) -> Self {
        ReplayError::Fault(fault)
    }
}

impl<F> From<Stopped> for Halt<F> {
    fn from(_: Stopped) -> Self {
        Halt::Stopped
    }
}

/// What a submission does.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// A segment.
    Segment(usize),
    /// Takes tokens at a border.
    Save(Due),
}

/// One part of one period, submitted and not yet ended.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    period: u64,
    part: Part,
    /// What the timeline reaches at its end.
    value: u64,
    /// Blocks of the run, as far as was known.
    blocks: u64,
}

/// A device's calendar, ready to run, on a queue of its backend.
pub struct Replay<Q> {
    segments: Vec<Segment>,
    rings: Vec<RingInfo>,
    stages: u64,
    phases: u64,
    /// For each phase and segment, the recorded list; none for one without commands.
    steady: Vec<Option<List>>,
    /// For each parity of the period and segment, one to record anew, once there is one.
    spare: Vec<Option<List>>,
    /// Where received tokens lie for the device: the exchange region at the same offsets.
    inbox: Option<u32>,
    /// Where the device puts what it sends.
    outbox: Option<u32>,
    own: Option<HostRegion>,
    /// The exchange, where the device does it itself.
    direct: Option<Direct>,
    in_flight: VecDeque<InFlight>,
    submitted: u64,
    /// Periods whose parts are all submitted.
    begun: u64,
    saves: Option<Saves>,
    patience_ns: u64,
    heads: Vec<state::Head>,
    summary: Summary,
    notes: Vec<String>,
    queue: Q,
}

/// What a replay consists of, for people and benchmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Submissions in a period.
    pub segments: usize,
    /// Periods after which command buffers repeat.
    pub phases: u64,
    /// Commands of one period.
    pub commands: usize,
    /// Barriers between them.
    pub barriers: usize,
    /// Memory taken on the device and for staging.
    pub bytes: u64,
    /// Bytes of constants that the device did not have yet.
    pub uploaded: u64,
    /// How tokens come and go.
    pub transport: Transport,
}

impl<Q> std::fmt::Debug for Replay<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay")
            .field("summary", &self.summary)
            .finish_non_exhaustive()
    }
}

impl<Q: Queue> Replay<Q> {
    /// What it consists of.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// What is not as the plan has it, in sentences for people: variants of kernels that cannot be had here.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// How long a submission may take before the queue counts as hung.
    pub fn set_patience(&mut self, ns: u64) {
        self.patience_ns = ns;
    }

    /// Runs one period, as far as it can without waiting for the device: it may still run when this returns. `blocks`
    /// is the number of blocks of the run once it is known. Periods come one after the other, from 0.
    ///
    /// Allocates nothing, but in the first and last periods, when stages are missing.
    ///
    /// # Errors
    /// A driver's fault, or a stop while waiting.
    pub fn step(
        &mut self,
        period: u64,
        blocks: Option<u64>,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt<Q::Fault>> {
        while self
            .in_flight
            .front()
            .is_some_and(|f| f.period + DEPTH <= period)
        {
            self.end_oldest(peers)?;
        }
        let steady = blocks.is_none() && period + 1 >= self.stages;
        let blocks = blocks.unwrap_or(u64::MAX);
        for segment in 0..self.segments.len() {
            if self.direct.is_none() {
                self.receive(segment, period, blocks, peers)?;
            }
            let list = match steady {
                true => {
                    let phase = (period % self.phases) as usize;
                    self.steady[phase * self.segments.len() + segment]
                }
                false => {
                    // Drivers may wait for the queue before they record: nothing in it may wait for others then.
                    if self.direct.is_some() {
                        self.drain(peers)?;
                    }
                    self.record_rest(segment, period, blocks)
                        .map_err(Halt::Fault)?
                }
            };
            self.make_room(peers)?;
            match list {
                list if self.direct.is_some() => {
                    self.submit_segment(segment, (period, blocks), list)?;
                }
                Some(list) => self.submit(list)?,
                None => {}
            }
            let value = self.submitted;
            let part = Part::Segment(segment);
            self.in_flight.push_back(InFlight {
                period,
                part,
                value,
                blocks,
            });
        }
        if let Some((due, list)) = self.saves.as_ref().and_then(|s| s.due(period, blocks)) {
            self.make_room(peers)?;
            self.submit(list)?;
            let (part, value) = (Part::Save(due), self.submitted);
            self.in_flight.push_back(InFlight {
                period,
                part,
                value,
                blocks,
            });
        }
        self.begun = period + 1;
        Ok(())
    }

    /// Ends what another submission would leave without a mark of its own. Where a device waits for others, a later
    /// mark is no substitute: it may come only after what others do once they are told of this one.
    fn make_room(&mut self, peers: &mut dyn Peers) -> Result<(), Halt<Q::Fault>> {
        let next = self.submitted + 1;
        while self
            .in_flight
            .front()
            .is_some_and(|f| next - f.value >= self.queue.marks())
        {
            self.end_oldest(peers)?;
        }
        Ok(())
    }

    fn submit(&mut self, list: List) -> Result<(), Halt<Q::Fault>> {
        self.queue.submit(list).map_err(Halt::Fault)?;
        self.submitted += 1;
        Ok(())
    }

    /// Ends everything in flight.
    ///
    /// # Errors
    /// A driver's fault, or a stop while waiting.
    pub fn drain(&mut self, peers: &mut dyn Peers) -> Result<(), Halt<Q::Fault>> {
        while self.settle(peers)? {}
        Ok(())
    }

    /// Ends the oldest submission in flight; false if there is none. Whoever must wait for something that others may
    /// do only after what is in flight has ended calls this before.
    ///
    /// # Errors
    /// A driver's fault, or a stop while waiting.
    pub fn settle(&mut self, peers: &mut dyn Peers) -> Result<bool, Halt<Q::Fault>> {
        let any = !self.in_flight.is_empty();
        self.end_oldest(peers)?;
        Ok(any)
    }

    /// Waits for what the segment receives, and copies it to where the device sees it.
    fn receive(
        &mut self,
        segment: usize,
        period: u64,
        blocks: u64,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt<Q::Fault>> {
        for i in 0..self.segments[segment].receipts.len() {
            let receipt = self.segments[segment].receipts[i];
            let Some(block) = block_at(receipt.stage, period, blocks) else {
                continue;
            };
            let ring = self.rings[receipt.ring as usize];
            let tokens = ring.tokens(block, receipt.first + receipt.count);
            while !peers.published(ring.id, tokens, self.in_flight.is_empty())? {
                self.end_oldest(peers)?;
            }
            let (Some(inbox), Some(own)) = (self.inbox, self.own) else {
                continue;
            };
            let (at, len) = ring.place(block, receipt.first, receipt.count);
            let from = own.at(at, len);
            let to = self.queue.host(inbox, at, len as usize);
            // SAFETY: the tokens are published, so nobody writes them until their block is released; the region is
            // valid memory, as its maker promised. The device's last use of this place was before the release of the
            // block that the sender has now overwritten, and a release comes after the end of its submission.
            unsafe { to.copy_from_nonoverlapping(from, len as usize) };
        }
        Ok(())
    }

    /// Waits for the oldest submission and gives out what it sent and released.
    fn end_oldest(&mut self, peers: &mut dyn Peers) -> Result<(), Halt<Q::Fault>> {
        let Some(front) = self.in_flight.front().copied() else {
            return Ok(());
        };
        if let Part::Segment(segment) = front.part {
            self.follow(front, segment, peers)?;
        }
        if front.value > 0 {
            self.queue
                .wait(front.value, self.patience_ns)
                .map_err(Halt::Fault)?;
        }
        match front.part {
            Part::Segment(segment) if self.direct.is_none() => self.give(front, segment, peers)?,
            Part::Segment(_) => {}
            Part::Save(due) => {
                if let Some(saves) = &self.saves {
                    saves.give(due, &self.queue, peers)?;
                }
            }
        }
        self.in_flight.pop_front();
        let next = self.in_flight.front().map_or(self.begun, |f| f.period);
        if next > front.period {
            peers.ended(next);
        }
        Ok(())
    }

    /// Gives out what an ended segment sent and released.
    fn give(
        &mut self,
        of: InFlight,
        segment: usize,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt<Q::Fault>> {
        for i in 0..self.segments[segment].gifts.len() {
            let gift = self.segments[segment].gifts[i];
            let Some(block) = block_at(gift.stage, of.period, of.blocks) else {
                continue;
            };
            let ring = &self.rings[gift.ring as usize];
            let Some(tokens) = gift.sends else {
                peers.release(ring.id, block + 1);
                continue;
            };
            peers.wait_released(ring.id, (block + 1).saturating_sub(ring.blocks))?;
            let (at, len) = ring.place(block, tokens.first, tokens.count);
            if let (Some(outbox), Some(region)) = (self.outbox, ring.region) {
                let to = region.at(at, len);
                let from = tokens.outbox + (of.period % DEPTH) * ring.outbox_stride;
                let from = self.queue.host(outbox, from, len as usize);
                // SAFETY: the receiver has released the place and reads these tokens only after they are published
                // below; the region is valid memory, as its maker promised. The submission that wrote the outbox has
                // ended, and the host sees what it wrote.
                unsafe { to.copy_from_nonoverlapping(from, len as usize) };
            }
            peers.publish(ring.id, ring.tokens(block, tokens.first + tokens.count));
        }
        Ok(())
    }

    /// Records what of a segment is at work in a period where stages are missing.
    fn record_rest(
        &mut self,
        segment: usize,
        period: u64,
        blocks: u64,
    ) -> Result<Option<List>, Q::Fault> {
        let phase = (period % self.phases) as usize;
        let commands = self.segments[segment].commands[phase].iter();
        let at_work = commands.filter(|(stage, _)| block_at(*stage, period, blocks).is_some());
        let commands: Vec<&Command> = at_work.map(|(_, command)| command).collect();
        if commands.is_empty() {
            return Ok(None);
        }
        let spare = &mut self.spare[(period % DEPTH) as usize * self.segments.len() + segment];
        match *spare {
            Some(list) => self.queue.record_again(list, &commands)?,
            None => *spare = Some(self.queue.record(&commands)?.0),
        }
        Ok(*spare)
    }
}

/// The block that a slot works on, if it is at work.
fn block_at(stage: u32, period: u64, blocks: u64) -> Option<u64> {
    period
        .checked_sub(stage.into())
        .filter(|block| *block < blocks)
}

/// Names used in messages.
fn actor_name(graph: &zbmd_ir::Graph, actor: ActorId) -> String {
    graph
        .actors
        .get(actor)
        .map_or_else(|| actor.to_string(), |a| a.name.clone())
}

/// The buffer of the error messages.
fn buffer_name(graph: &zbmd_ir::Graph, plan: &zbmd_ir::Plan, buffer: BufferId) -> String {
    let writer = plan
        .buffers
        .get(buffer)
        .and_then(|b| graph.channels.get(b.channel));
    let writer = writer
        .map(|c| actor_name(graph, c.from.actor))
        .unwrap_or_default();
    format!("the buffer {buffer} of `{writer}`")
}
