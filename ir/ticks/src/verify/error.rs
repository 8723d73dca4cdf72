//! What can be wrong with a plan.

use zbmd_ir::verify::VerifyError;
use zbmd_ir::{ActorId, ChannelId};

use crate::{LinkId, MachineError, NodeId, TickLoss};

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TickError {
    /// The machine makes no sense.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The graph is not consistent.
    #[error(transparent)]
    Graph(Box<VerifyError>),
    /// More firings, frames or ticks than a plan may have.
    #[error("{what}: {found}, but at most {max} are allowed")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: u64,
        /// How much is allowed.
        max: u64,
    },
    /// A period of no ticks.
    #[error("the period is 0 ticks")]
    NoPeriod,
    /// A list that does not have one entry for each.
    #[error("{what}: {found} entries, but {needed} are needed")]
    Count {
        /// The list.
        what: &'static str,
        /// Its entries.
        found: u64,
        /// What it should have.
        needed: u64,
    },
    /// An id beyond the last.
    #[error("{what} names {id}, which does not exist")]
    UnknownId {
        /// Where.
        what: &'static str,
        /// The id.
        id: String,
    },
    /// An actor without a start for each of its firings.
    #[error("{actor} has {found} starts, but fires {needed} times")]
    Firings {
        /// The actor.
        actor: ActorId,
        /// Starts.
        found: u64,
        /// Firings of an iteration.
        needed: u64,
    },
    /// A firing that starts before the previous one of its actor has ended.
    #[error(
        "firing {firing} of {actor} starts in tick {start}, but the one before ends in tick {end}"
    )]
    Order {
        /// The actor.
        actor: ActorId,
        /// The firing.
        firing: u64,
        /// Its start.
        start: i128,
        /// End of the one before.
        end: i128,
    },
    /// A node that runs two firings at once.
    #[error("{node} runs {first} and {second} at once in tick {tick} of the period")]
    NodeBusy {
        /// The node.
        node: NodeId,
        /// Actor of the one firing.
        first: ActorId,
        /// Actor of the other.
        second: ActorId,
        /// The tick, modulo the period.
        tick: u64,
    },
    /// A link that carries two frames in a tick.
    #[error("{link} carries two frames in tick {tick} of the period, one of them of {channel}")]
    LinkBusy {
        /// The link.
        link: LinkId,
        /// The tick, modulo the period.
        tick: u64,
        /// Channel of the later one.
        channel: ChannelId,
    },
    /// A message that is missing, doubled, or for nobody.
    #[error(
        "firing {firing} of the writer of {channel} has {found} messages to {to}, but {needed} are needed"
    )]
    Messages {
        /// The channel.
        channel: ChannelId,
        /// The firing.
        firing: u64,
        /// The receiving node.
        to: NodeId,
        /// How many there are.
        found: u64,
        /// How many are needed.
        needed: u64,
    },
    /// A way that does not lead from the writer's node to the reader's.
    #[error(
        "the message of {channel}, firing {firing}, to {to}: {link} begins at {found}, but the frames are on {needed}"
    )]
    Way {
        /// The channel.
        channel: ChannelId,
        /// The firing.
        firing: u64,
        /// The receiving node.
        to: NodeId,
        /// The link.
        link: LinkId,
        /// Where it begins.
        found: NodeId,
        /// Where it should begin.
        needed: NodeId,
    },
    /// A way that ends elsewhere.
    #[error("the message of {channel}, firing {firing}, to {to} ends on {found}")]
    Destination {
        /// The channel.
        channel: ChannelId,
        /// The firing.
        firing: u64,
        /// The receiving node.
        to: NodeId,
        /// Where it ends.
        found: NodeId,
    },
    /// A hop with too few or too many frames.
    #[error(
        "the message of {channel}, firing {firing}, has {found} frames on {link}, but {needed} are needed"
    )]
    Frames {
        /// The channel.
        channel: ChannelId,
        /// The firing.
        firing: u64,
        /// The link.
        link: LinkId,
        /// Frames of the hop.
        found: u64,
        /// Frames that its bytes take.
        needed: u64,
    },
    /// A frame that is sent before it is there, or before the one before it.
    #[error(
        "frame {frame} of {channel}, firing {firing}, is sent on {link} in tick {tick}, but can be from tick {ready} on"
    )]
    FrameEarly {
        /// The channel.
        channel: ChannelId,
        /// The firing.
        firing: u64,
        /// The link.
        link: LinkId,
        /// The frame.
        frame: u64,
        /// When it is sent.
        tick: u64,
        /// When it could be.
        ready: u64,
    },
    /// A firing that starts before its tokens are there.
    #[error(
        "firing {firing} of {actor} starts in tick {start}, but its tokens of {channel} are there from tick {ready} on"
    )]
    TokensLate {
        /// The actor.
        actor: ActorId,
        /// The firing.
        firing: u64,
        /// Its start.
        start: i128,
        /// The channel.
        channel: ChannelId,
        /// When the last token of the window is there.
        ready: i128,
    },
    /// Borders of which some are kept a second time and some are not, or twice.
    #[error("{channel} has {found} copies of its border, but {needed} are needed")]
    Copies {
        /// The channel.
        channel: ChannelId,
        /// How many there are.
        found: u64,
        /// How many are needed.
        needed: u64,
    },
    /// A copy that is lost with what it is a copy of.
    #[error("the copy of {channel}'s border is on {node}, as its writer is")]
    CopyAtHome {
        /// The channel.
        channel: ChannelId,
        /// The node.
        node: NodeId,
    },
    /// A buffer that is missing, doubled, or for nobody.
    #[error("{channel} has {found} buffers on {node}, but {needed} are needed")]
    Buffers {
        /// The channel.
        channel: ChannelId,
        /// The node.
        node: NodeId,
        /// How many there are.
        found: u64,
        /// How many are needed.
        needed: u64,
    },
    /// A buffer that does not hold a channel's initial tokens, or its border.
    #[error(
        "the buffer of {channel} on {node} holds {tokens} tokens, but {needed} lie there at the start"
    )]
    Initial {
        /// The channel.
        channel: ChannelId,
        /// The node.
        node: NodeId,
        /// Tokens that it holds.
        tokens: u64,
        /// Initial tokens.
        needed: u64,
    },
    /// A token that is written over too early.
    #[error(
        "the token at {position} of {channel} on {node} is needed until tick {needed_until}, but its place is written from tick {written} on"
    )]
    Overwritten {
        /// The channel.
        channel: ChannelId,
        /// The node.
        node: NodeId,
        /// Stream position of the token.
        position: u64,
        /// The tick before which it is needed.
        needed_until: i128,
        /// When the next token in its place is written.
        written: i128,
    },
    /// Too little memory for frames on their way.
    #[error("{node} has memory for {found} frames on their way, but {needed} wait there at once")]
    Waiting {
        /// The node.
        node: NodeId,
        /// Frames that it has memory for.
        found: u64,
        /// Frames at once.
        needed: u64,
    },
    /// A loss of something that the machine does not have.
    #[error("the plan is for the loss of {lost}, which does not exist")]
    UnknownLoss {
        /// What is said to be lost.
        lost: TickLoss,
    },
    /// An actor on a lost node.
    #[error("{actor} is on {lost}, but the plan is for its loss")]
    LostNode {
        /// The actor.
        actor: ActorId,
        /// The node.
        lost: NodeId,
    },
    /// A frame over a lost link.
    #[error(
        "the message of {channel}, firing {firing}, goes over {link}, but the plan is for the loss of {lost}"
    )]
    LostLink {
        /// The channel.
        channel: ChannelId,
        /// The firing.
        firing: u64,
        /// The link.
        link: LinkId,
        /// What is lost.
        lost: TickLoss,
    },
    /// Too little memory.
    #[error("{node} needs {needed} bytes, but has {memory}")]
    Memory {
        /// The node.
        node: NodeId,
        /// Bytes of all buffers and frames.
        needed: u64,
        /// Bytes that it has.
        memory: u64,
    },
}
