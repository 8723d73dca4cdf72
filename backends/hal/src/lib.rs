//! The calendar of one GPU as lists of commands: recorded once, submitted once a period. The backend decides what a list
//! is: a command buffer of Vulkan, a graph of CUDA.
//!
//! # How a period runs
//!
//! A calendar is cut into segments (see `expand`); most have one, or may be run as one (see `merge`). For each the host
//! waits until all that it receives is published, copies it into memory that the device sees, and submits: the device
//! copies the tokens in, fires, carries, copies what it sends out. When the device has ended, the host copies what was
//! sent into the receivers' regions, publishes it, and releases what was read, in the calendar's order. The host does
//! nothing between the slots of one device.
//!
//! Two periods are in flight: period n + 1 is queued while n runs. While the host would have to wait for tokens, it
//! first ends what is in flight, because other devices may need that to go on; so a calendar that is free of deadlocks
//! slot by slot is free of them here.
//!
//! # Who exchanges tokens
//!
//! That is how it works where the host does all of it ([`Transport::Staged`]): with Vulkan, and wherever the host must
//! read the tokens, as with checksums. Where the driver accepts memory that others allocated (CUDA's, by registration:
//! see [`Exchange::within`]), the device fetches what it receives from the shared region itself
//! ([`Transport::Fetched`]): nobody overwrites it before its release, which comes after the submission's end. And a
//! queue that waits for words of that memory and stores them (CUDA's stream memory operations) does everything
//! ([`Transport::Device`]): a submission waits for `published` of all that the segment receives, runs the list, and then
//! in the calendar's order stores `released`, or waits for `released`, copies to the receiver's region and stores
//! `published`. The host submits what it would have done itself, with the same counts in the same order: what is free of
//! deadlocks there is free of them here. The host follows step by step in that order (`exchange.rs`), because a store by
//! the device wakes no sleeping thread.
//!
//! *A stop.* A device that waits for a peer that is gone is released from its waits ([`Replay::release_waits`]): its
//! worker stores a large count into the counters that this device alone reads, until the queue is empty. So the
//! supervisor can always end the wait: by the stop, which every worker sees, or by killing the worker's process, which
//! ends its queue too. What the device then computes is discarded, and it overwrites places that others may still read;
//! therefore whoever stops a run closes its sinks and seals its last border before anybody can see the stop, and this
//! worker does not report that the period has ended.
//!
//! *A loss.* After a fatal fault the memory stays registered, because the device may still reach it.
//!
//! # Memory
//!
//! The device has an arena and an exchange region of its own, divided into banks. The exchange region that other devices
//! write into is on the host ([`HostRegion`]); its tokens are copied from there to the same offsets of the device's.
//! Heads of places belong to the device alone: nothing but tokens is exchanged.
//!
//! Constants, weights above all, stay on the device from one calendar to the next (see [`Kept`]). Weights that the plan
//! fetches are in memory of the host instead, and each period's commands copy them to the arena, before the kernels that
//! read them and after those that read what was there before (`fetch`).
//!
//! # Borders
//!
//! Where tokens are saved at borders (see [`Replay::save_borders`]), the period that completes them is followed by a
//! small submission that copies them to where the host sees them. Nothing waits for it but what waits for the period.
//!
//! Lists are recorded for every residue of the period that places differ in. In the first and last periods, when
//! stages are missing, the rest is recorded anew; no other period records or allocates anything.
#![expect(unsafe_code, reason = "copies between host regions and mapped memory")]

mod call;
mod device;
mod exchange;
mod expand;
mod fault;
mod fetch;
mod gates;
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
pub use self::device::{
    GpuCalls, GpuDevice, GpuReplay, KeptConstants, PrepareWork, QueueDevice, ReplayRequest,
};
use self::exchange::DeviceExchange;
pub use self::exchange::{Exchange, Transport};
pub use self::fault::{DriverFault, Fault, FaultKind, OpenError, Unavailable};
pub use self::fault::{ListedDevice, SEE_DEVICES, find_device};
pub use self::gates::GateCalls;
use self::gates::Gates;
pub use self::kept::Kept;
pub use self::queue::{
    Backend, BankRange, BoundOperand, BoundRun, Command, CommandList, MemoryKind, Queue,
    QueueLimits, QueueOp,
};
use self::save::{BorderSaves, DueSave};
use self::segment::{ReadySegment, RingInfo};

/// The calls into a driver, each with the name of its function.
#[macro_export]
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

/// Periods in flight.
const DEPTH: u64 = 2;
/// Time after which a queue counts as hung, unless told otherwise.
pub const PATIENCE_NS: u64 = 10_000_000_000;

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
    #[error("{what} has {bytes} bytes, {device} accepts at most {limit}: use smaller blocks")]
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
    /// The device itself writes what opens a gate there.
    #[error(
        "the gate of actor `{actor}` is written on {device} as well, where the host cannot read it in time: compile again"
    )]
    OwnGate {
        /// The gated actor.
        actor: String,
        /// The device.
        device: String,
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

// SAFETY: a region is bare memory; those who share it synchronise by the protocol of rings.
unsafe impl Send for HostRegion {}
// SAFETY: a shared reference gives the pointer only, and every access to the memory says why it is not a race.
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

    /// Its first byte.
    pub fn first(&self) -> *mut u8 {
        self.first
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// First byte of a range, which is checked against the region.
    fn pointer(&self, offset: u64, len: u64) -> *mut u8 {
        assert!(
            offset + len <= self.bytes,
            "{offset} + {len} of a region of {}",
            self.bytes
        );
        self.first.wrapping_add(offset as usize)
    }
}

/// The run was stopped while waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// The other ends of the device's rings: what the executor does for its device.
///
/// Tokens and blocks are counted from the start of the run, as in the executor's rings.
pub trait Peers {
    /// Whether `tokens` tokens of a ring have been published. With `wait`, it returns only when they are.
    ///
    /// # Errors
    /// [`Stopped`] if the run is stopped.
    fn published(&mut self, ring: RingId, tokens: u64, wait: bool) -> Result<bool, Stopped>;

    /// Waits until `blocks` blocks of a ring have been released.
    ///
    /// # Errors
    /// [`Stopped`] if the run is stopped.
    fn wait_released(&mut self, ring: RingId, blocks: u64) -> Result<(), Stopped>;

    /// The tokens up to `tokens` of a ring are in the receiver's region.
    fn publish(&mut self, ring: RingId, tokens: u64);

    /// The first `blocks` blocks of a ring will not be read again.
    fn release(&mut self, ring: RingId, blocks: u64);

    /// The device itself has published: wakes the threads that wait for that.
    fn was_published(&mut self, ring: RingId, tokens: u64) {
        let _ = (ring, tokens);
    }

    /// The device itself has released.
    fn was_released(&mut self, ring: RingId, blocks: u64) {
        let _ = (ring, blocks);
    }

    /// Stores the last tokens of a channel after the first `border` blocks: see [`Replay::save_borders`].
    ///
    /// # Errors
    /// [`Stopped`] if the run is stopped.
    fn save(&mut self, border: u64, channel: ChannelId, tokens: &[u8]) -> Result<(), Stopped> {
        let _ = (border, channel, tokens);
        Ok(())
    }

    /// The first `periods` periods have ended, and all that they send and release was handed over.
    fn ended(&mut self, periods: u64) {
        let _ = periods;
    }
}

/// Why a period was not completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt<F> {
    /// The run was stopped.
    #[error("the run was stopped")]
    Stopped,
    /// The driver failed.
    #[error(transparent)]
    Fault(F),
}

impl<F: Into<Fault>> Halt<F> {
    /// The same, with the fault as other processes understand it.
    fn into_common(self) -> Halt<Fault> {
        match self {
            Halt::Stopped => Halt::Stopped,
            Halt::Fault(fault) => Halt::Fault(fault.into()),
        }
    }
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

/// A period of the run, and how many blocks the run has, as far as that is known.
#[derive(Clone, Copy, Debug)]
struct PeriodOfRun {
    period: u64,
    /// `u64::MAX` until it is known.
    blocks: u64,
}

impl PeriodOfRun {
    /// The block that a slot of a stage works on, if it is active in this period.
    fn block_of_stage(self, stage: u32) -> Option<u64> {
        self.period
            .checked_sub(stage.into())
            .filter(|block| *block < self.blocks)
    }
}

/// What a submission does.
#[derive(Clone, Copy, Debug)]
enum SubmissionKind {
    /// Runs a segment.
    Segment(usize),
    /// Saves the tokens at a border.
    Save(DueSave),
}

/// One submission that has not been waited for.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    when: PeriodOfRun,
    kind: SubmissionKind,
    /// How many submissions have ended once this one has.
    submission: u64,
}

/// A device's calendar, ready to run, on a queue of its backend.
pub struct Replay<Q> {
    segments: Vec<ReadySegment>,
    rings: Vec<RingInfo>,
    stages: u64,
    phases: u64,
    /// Parts of all segments.
    part_count: usize,
    /// For each phase and part, the list that is recorded for it and the one where its gates are closed; none without
    /// commands.
    steady: Vec<Option<CommandList>>,
    /// For each parity of the period and part, a list to be recorded anew, once there is one.
    spare: Vec<Option<CommandList>>,
    gates: Gates,
    /// The bank with received tokens: the exchange region at the same offsets.
    inbox: Option<u32>,
    /// The bank that the device writes sent tokens to.
    outbox: Option<u32>,
    own_region: Option<HostRegion>,
    /// The exchange, where the device does it itself.
    device_exchange: Option<DeviceExchange>,
    in_flight: VecDeque<InFlight>,
    submitted: u64,
    /// Periods that are submitted completely.
    begun: u64,
    saves: Option<BorderSaves>,
    patience_ns: u64,
    heads: Vec<state::ChannelHead>,
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
    /// Memory allocated on the device and for staging.
    pub bytes: u64,
    /// Bytes of constants that the device did not have yet.
    pub uploaded: u64,
    /// How tokens are exchanged with other devices.
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

    /// Differences from the plan, in sentences for people: variants of kernels that this device does not have.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Calls of gated actors so far.
    pub fn gate_calls(&self) -> GateCalls {
        self.gates.count
    }

    /// How long a submission may take before the queue counts as hung.
    pub fn set_patience(&mut self, ns: u64) {
        self.patience_ns = ns;
    }

    /// Runs one period, as far as it can without waiting for the device: it may still run when this returns. `blocks`
    /// is the number of blocks of the run once it is known. Periods come one after the other, from 0.
    ///
    /// Allocates nothing, except in the first and last periods, when stages are missing.
    ///
    /// # Errors
    /// A driver's fault, or a stop while waiting.
    pub fn step(
        &mut self,
        period: u64,
        blocks: Option<u64>,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt<Q::Fault>> {
        self.end_periods_before((period + 1).saturating_sub(DEPTH), peers)?;

        let is_steady = blocks.is_none() && period + 1 >= self.stages;
        let when = PeriodOfRun {
            period,
            blocks: blocks.unwrap_or(u64::MAX),
        };
        for segment in 0..self.segments.len() {
            if self.device_exchange.is_none() {
                self.receive_tokens(segment, when, peers)?;
            }
            for part in 0..self.segments[segment].parts.len() {
                self.submit_part((segment, part), when, is_steady, peers)?;
            }
            self.push_in_flight(when, SubmissionKind::Segment(segment));
        }
        self.gates.end_period(period);

        if let Some((due, list)) = self.saves.as_ref().and_then(|saves| saves.due_at(when)) {
            self.make_room(peers)?;
            self.submit_list(list)?;
            self.push_in_flight(when, SubmissionKind::Save(due));
        }
        self.begun = period + 1;
        Ok(())
    }

    /// Ends everything of the periods before `period`.
    fn end_periods_before(
        &mut self,
        period: u64,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt<Q::Fault>> {
        while self
            .in_flight
            .front()
            .is_some_and(|oldest| oldest.when.period < period)
        {
            self.end_oldest(peers)?;
        }
        Ok(())
    }

    /// Ends what another submission would leave without a fence of its own. Where a device waits for others, a later
    /// fence is not a substitute: it may be reached only after something that others do once they have seen this end.
    fn make_room(&mut self, peers: &mut dyn Peers) -> Result<(), Halt<Q::Fault>> {
        let next = self.submitted + 1;
        let fences = self.queue.fence_count();
        while self
            .in_flight
            .front()
            .is_some_and(|oldest| next - oldest.submission >= fences)
        {
            self.end_oldest(peers)?;
        }
        Ok(())
    }

    /// Submits a part of a segment, without its gated calls if all of them are closed.
    fn submit_part(
        &mut self,
        place: (usize, usize),
        when: PeriodOfRun,
        is_steady: bool,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt<Q::Fault>> {
        let (segment, part) = place;
        let ready = &self.segments[segment];
        let number = ready.first_part + part;
        let gates = &ready.parts[part].gates;
        let is_closed = !gates.is_empty() && self.gates.are_closed(gates, when, &self.queue);
        let list = if is_steady {
            let phase = (when.period % self.phases) as usize;
            self.steady[2 * (phase * self.part_count + number) + usize::from(is_closed)]
        } else {
            self.record_partial(place, is_closed, when, peers)?
        };

        self.make_room(peers)?;
        if self.device_exchange.is_some() {
            // Segments of such devices have one part.
            return self.submit_with_exchange(segment, when, list);
        }
        match list {
            Some(list) => self.submit_list(list),
            None => Ok(()),
        }
    }

    fn submit_list(&mut self, list: CommandList) -> Result<(), Halt<Q::Fault>> {
        self.queue.submit_list(list).map_err(Halt::Fault)?;
        self.submitted += 1;
        Ok(())
    }

    fn push_in_flight(&mut self, when: PeriodOfRun, kind: SubmissionKind) {
        self.in_flight.push_back(InFlight {
            when,
            kind,
            submission: self.submitted,
        });
    }

    /// Ends everything in flight.
    ///
    /// # Errors
    /// A driver's fault, or a stop while waiting.
    pub fn drain(&mut self, peers: &mut dyn Peers) -> Result<(), Halt<Q::Fault>> {
        while self.end_next(peers)? {}
        Ok(())
    }

    /// Ends the oldest submission in flight; false if there is none. To be called before any wait for something that
    /// others may do only after what is in flight has ended.
    ///
    /// # Errors
    /// A driver's fault, or a stop while waiting.
    pub fn end_next(&mut self, peers: &mut dyn Peers) -> Result<bool, Halt<Q::Fault>> {
        let has_any = !self.in_flight.is_empty();
        self.end_oldest(peers)?;
        Ok(has_any)
    }

    /// Waits for what the segment receives, and copies it to where the device sees it.
    fn receive_tokens(
        &mut self,
        segment: usize,
        when: PeriodOfRun,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt<Q::Fault>> {
        for index in 0..self.segments[segment].receipts.len() {
            let receipt = self.segments[segment].receipts[index];
            let Some(block) = when.block_of_stage(receipt.stage) else {
                continue;
            };
            let ring = self.rings[receipt.ring as usize];
            let tokens = ring.tokens_until(block, receipt.first + receipt.count);
            while !peers.published(ring.id, tokens, self.in_flight.is_empty())? {
                // The sender may need something that is still in flight here.
                self.end_oldest(peers)?;
            }

            let Some(own_region) = self.own_region else {
                continue;
            };
            let place = ring.token_place(block, receipt.first, receipt.count);
            let source = own_region.pointer(place.offset, place.len);
            if !self.gates.is_empty() {
                // SAFETY: the tokens are published, so nobody writes them until their block is released; the region is
                // valid memory, as its maker promised.
                let received = unsafe { std::slice::from_raw_parts(source, place.len as usize) };
                self.gates.note_tokens(receipt.ring, received);
            }
            let Some(inbox) = self.inbox else {
                continue;
            };
            let target = self
                .queue
                .host_pointer(inbox, place.offset, place.len as usize);
            // SAFETY: the tokens are published, so nobody writes them until their block is released; the region is
            // valid memory, as its maker promised. The device's last use of this place was before the release of the
            // block that the sender has now overwritten, and a release comes after the end of its submission.
            unsafe { target.copy_from_nonoverlapping(source, place.len as usize) };
        }
        Ok(())
    }

    /// Waits for the oldest submission and hands over what it sent and released.
    fn end_oldest(&mut self, peers: &mut dyn Peers) -> Result<(), Halt<Q::Fault>> {
        let Some(oldest) = self.in_flight.front().copied() else {
            return Ok(());
        };

        if let SubmissionKind::Segment(segment) = oldest.kind {
            self.follow_exchange(oldest, segment, peers)?;
        }
        if oldest.submission > 0 {
            self.queue
                .wait_for(oldest.submission, self.patience_ns)
                .map_err(Halt::Fault)?;
        }
        match oldest.kind {
            SubmissionKind::Segment(segment) if self.device_exchange.is_none() => {
                self.hand_over(oldest.when, segment, peers)?;
            }
            SubmissionKind::Segment(_) => {}
            SubmissionKind::Save(due) => {
                if let Some(saves) = &self.saves {
                    saves.hand_over(due, &self.queue, peers)?;
                }
            }
        }

        self.in_flight.pop_front();
        let next_period = self
            .in_flight
            .front()
            .map_or(self.begun, |next| next.when.period);
        if next_period > oldest.when.period {
            peers.ended(next_period);
        }
        Ok(())
    }

    /// Publishes what an ended segment sent, and releases what it read.
    fn hand_over(
        &mut self,
        when: PeriodOfRun,
        segment: usize,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt<Q::Fault>> {
        for index in 0..self.segments[segment].handovers.len() {
            let handover = self.segments[segment].handovers[index];
            let Some(block) = when.block_of_stage(handover.stage) else {
                continue;
            };
            let ring = &self.rings[handover.ring as usize];
            let Some(sent) = handover.sends else {
                peers.release(ring.id, block + 1);
                continue;
            };

            peers.wait_released(ring.id, (block + 1).saturating_sub(ring.blocks))?;
            let place = ring.token_place(block, sent.first, sent.count);
            if let (Some(outbox), Some(region)) = (self.outbox, ring.region) {
                let outbox_offset = sent.outbox + (when.period % DEPTH) * ring.outbox_stride;
                let source = self
                    .queue
                    .host_pointer(outbox, outbox_offset, place.len as usize);
                let target = region.pointer(place.offset, place.len);
                // SAFETY: the receiver has released the place and reads these tokens only after they are published
                // below; the region is valid memory, as its maker promised. The submission that wrote the outbox has
                // ended, and the host sees what it wrote.
                unsafe { target.copy_from_nonoverlapping(source, place.len as usize) };
            }
            peers.publish(ring.id, ring.tokens_until(block, sent.first + sent.count));
        }
        Ok(())
    }

    /// Records what of a part is active in a period where stages are missing.
    fn record_partial(
        &mut self,
        (segment, part): (usize, usize),
        is_closed: bool,
        when: PeriodOfRun,
        peers: &mut dyn Peers,
    ) -> Result<Option<CommandList>, Halt<Q::Fault>> {
        // Drivers may wait for the queue before they record: nothing in it may wait for others then.
        if self.device_exchange.is_some() {
            self.drain(peers)?;
        }

        let phase = (when.period % self.phases) as usize;
        let ready = &self.segments[segment];
        let active: Vec<&Command> = ready.parts[part].commands(is_closed)[phase]
            .iter()
            .filter(|(stage, _)| stage.is_none_or(|stage| when.block_of_stage(stage).is_some()))
            .map(|(_, command)| command)
            .collect();
        if active.is_empty() {
            return Ok(None);
        }

        let parity = (when.period % DEPTH) as usize;
        let spare = &mut self.spare[parity * self.part_count + ready.first_part + part];
        match *spare {
            Some(list) => {
                let recorded = self.queue.rerecord_list(list, &active);
                recorded.map_err(Halt::Fault)?;
            }
            None => {
                let (list, _) = self.queue.record_list(&active).map_err(Halt::Fault)?;
                *spare = Some(list);
            }
        }
        Ok(*spare)
    }
}

/// An actor's name, for messages.
fn actor_name(graph: &zbmd_ir::Graph, actor: ActorId) -> String {
    graph
        .actors
        .get(actor)
        .map_or_else(|| actor.to_string(), |actor| actor.name.clone())
}

/// A buffer with the actor that writes it, for messages.
fn buffer_name(graph: &zbmd_ir::Graph, plan: &zbmd_ir::Plan, buffer: BufferId) -> String {
    let channel = plan
        .buffers
        .get(buffer)
        .and_then(|found| graph.channels.get(found.channel));
    let writer = channel
        .map(|channel| actor_name(graph, channel.from.actor))
        .unwrap_or_default();
    format!("the buffer {buffer} of `{writer}`")
}
