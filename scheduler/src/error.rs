//! Why there is no schedule.

use zbmd_ir::{ActorId, ChannelId, DeviceId};

use crate::analysis::AnalysisError;
use crate::buffers;

/// Why there is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The graph itself has none.
    #[error(transparent)]
    Analysis(#[from] AnalysisError),
    /// The machine has no device, or the options allow none.
    #[error("the machine has no device that may be used")]
    NoDevices,
    /// No device has a kernel for the actor.
    #[error("no device that may be used has a kernel for {actor}")]
    NoDevice {
        /// The first such actor by id.
        actor: ActorId,
    },
    /// A pin names a device that cannot run the actor or may not be used.
    #[error("{actor} is pinned to {device}, which cannot run it")]
    PinImpossible {
        /// The pinned actor.
        actor: ActorId,
        /// The device that the pin names.
        device: DeviceId,
    },
    /// Actors whose firings interleave within a block are pinned to different devices.
    #[error(
        "{first} is pinned to {first_device} and {second} to {second_device}, but they lie on one cycle whose \
         initial tokens do not cover a block"
    )]
    PinnedApart {
        /// The lower actor by id.
        first: ActorId,
        /// The device that it is pinned to.
        first_device: DeviceId,
        /// The first that is pinned elsewhere.
        second: ActorId,
        /// The device that that one is pinned to.
        second_device: DeviceId,
    },
    /// Writer and reader sit on devices without a link.
    #[error("{channel} needs a link from {from} to {to}, which the machine does not have")]
    NoLink {
        /// A channel between them.
        channel: ChannelId,
        /// Device of the writer.
        from: DeviceId,
        /// Device of the reader.
        to: DeviceId,
    },
    /// The tokens of one block of a channel do not fit any memory.
    #[error("one block of {block} iterations on {channel} is larger than any arena")]
    TooBig {
        /// The channel whose block is too large.
        channel: ChannelId,
        /// Iterations in the block.
        block: u64,
    },
    /// The order inside a cycle is longer than allowed.
    #[error("a block of {block} iterations interleaves more than {limit} calls inside a cycle")]
    TooManySlots {
        /// Iterations in the block.
        block: u64,
        /// Calls that the options allow.
        limit: u64,
    },
    /// A device has too little memory, or the bound asked for is too low.
    #[error(
        "{device} needs {needed_bytes} bytes for blocks of {block} iterations, {limit_bytes} are allowed"
    )]
    Memory {
        /// The first device that is too small.
        device: DeviceId,
        /// Arena and exchange bytes of the plan.
        needed_bytes: u64,
        /// What the device has or the options allow.
        limit_bytes: u64,
        /// Iterations in the block.
        block: u64,
        /// Channels whose buffers cannot lie there together; empty if that is not settled.
        conflict: Vec<ChannelId>,
    },
    /// No plan that was found has buffers as small as asked.
    #[error(
        "the buffers need {needed} {unit} for blocks of {block} iterations, {limit} are allowed"
    )]
    Buffers {
        /// What the smallest plan found needs.
        needed: u64,
        /// Bound that the options set.
        limit: u64,
        /// What both are counted in.
        unit: buffers::Unit,
        /// Iterations in the block.
        block: u64,
    },
    /// No plan that was found is as quick as asked.
    #[error("the quickest plan has a latency of {best_ns} ns, {limit_ns} ns are allowed")]
    Latency {
        /// The lowest latency found.
        best_ns: u64,
        /// Bound that the options set.
        limit_ns: u64,
    },
    /// The block size is zero or beyond all counts.
    #[error("a block of {block} iterations is out of range 1 to {limit}")]
    BlockRange {
        /// What was asked for.
        block: u64,
        /// The largest block for this graph.
        limit: u64,
    },
    /// Plans for the loss of hosts, and no hosts.
    #[error("plans for the loss of any host are asked for, and the machine has no hosts")]
    NoHosts,
    /// More losses than a program can have plans for.
    #[error("{count} losses of devices need plans of their own, at most {limit}")]
    TooManyContingencies {
        /// Losses asked for.
        count: usize,
        /// Losses that a program can have plans for.
        limit: usize,
    },
}
