//! What runs and what is sent in which tick.

use serde::{Deserialize, Serialize};
use zbmd_ir::{ActorId, ChannelId, Graph, TiVec};

use crate::{BorderCopy, LinkId, NodeId, TickMachine};

/// One iteration of a graph, to the tick: iteration j does everything `j * period` ticks later than iteration 0.
///
/// With d the ticks of an actor's firing and L the latency of a link:
///
/// - a firing that starts in tick s has its node's compute unit in ticks `[s, s + d)`. It reads its windows in tick s,
///   where they stay until it ends, and its outputs are there from tick s + d on, in memory that is theirs from tick s;
/// - a frame that is sent on a link in tick t is in the memory of the receiving node from tick t + L + 1 on: it can be
///   read, or sent on, then;
/// - in one tick a node sends at most one frame on each outgoing link, and runs at most one firing.
///
/// A message is what one firing writes on one channel, for one other node that needs it: its bytes in frames, the last
/// filled up with zeros. All its frames go the same way and keep their order.
///
/// A channel has a buffer on the node of its writer and on every other node that needs it: a ring, in which
/// the token at stream position p lies in place p modulo the capacity. Initial tokens, at negative positions, lie in all
/// of a channel's buffers before tick 0.
///
/// If a plan has *copies*, each channel with a border ([`history`](zbmd_ir::Channel::history)) has one: a second node
/// that keeps the border, in a buffer of its own. Firings that write tokens of a border have messages there, like to any
/// reader. The writer's node and the copy's node both keep a border until the iteration after it has been complete for
/// [`TickMachine::notice_ticks`], so that after a loss everything can go back to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TickPlan {
    /// Ticks from the start of an iteration to the start of the next, at least 1.
    pub period: u64,
    /// The node of each actor.
    pub placement: TiVec<ActorId, NodeId>,
    /// Start of each firing of iteration 0, in order.
    pub starts: TiVec<ActorId, Vec<u64>>,
    /// The messages of iteration 0.
    pub messages: Vec<Message>,
    /// The buffers.
    pub buffers: Vec<TickBuffer>,
    /// Frames that each node has memory for, of those that it sends on.
    pub waiting_frames: TiVec<NodeId, u64>,
    /// Where borders are kept a second time: nowhere, or one entry for each channel that has a border.
    pub copies: Vec<BorderCopy>,
}

/// What one firing writes on one channel, on its way to another node, which has readers of it or a copy of its border.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The channel.
    pub channel: ChannelId,
    /// The firing of the channel's writer, of iteration 0.
    pub firing: u64,
    /// The node that has readers or a copy.
    pub to: NodeId,
    /// The links of the way, from the writer's node on.
    pub hops: Vec<Hop>,
}

/// The frames of a message on one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// The link.
    pub link: LinkId,
    /// When the frames are sent: all of them, in order.
    pub runs: Vec<FrameRun>,
}

/// Frames that are sent in ticks one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameRun {
    /// The tick of the first.
    pub start: u64,
    /// How many.
    pub frames: u64,
}

/// The memory of one channel on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TickBuffer {
    /// The channel.
    pub channel: ChannelId,
    /// The node.
    pub node: NodeId,
    /// Tokens that it holds, at least 1.
    pub tokens: u64,
}

impl Hop {
    /// The tick in which each frame is sent.
    pub fn ticks(&self) -> impl Iterator<Item = u64> + '_ {
        let runs = self.runs.iter();
        runs.flat_map(|run| run.start..run.start.saturating_add(run.frames))
    }

    /// Frames of all runs.
    pub fn frames(&self) -> u64 {
        let frames = self.runs.iter().map(|run| run.frames);
        frames.fold(0, u64::saturating_add)
    }
}

impl TickPlan {
    /// Bytes that a node needs for buffers and for frames that it sends on.
    ///
    /// # Panics
    /// If the plan names channels that the graph does not have, or the node is not one of its machine.
    pub fn memory_bytes(&self, graph: &Graph, machine: &TickMachine, node: NodeId) -> u64 {
        let buffers = self.buffers.iter().filter(|buffer| buffer.node == node);
        let bytes = buffers.map(|b| b.tokens * graph.channels[b.channel].token.bytes());
        bytes.sum::<u64>() + self.waiting_frames[node] * machine.frame_bytes()
    }

    /// Ticks from the start of the first firing of an iteration to the end of its last. Needs the ticks of each actor's
    /// firing.
    pub fn latency(&self, durations: &TiVec<ActorId, u64>) -> u64 {
        let first = self.starts.iter().flatten().copied().min().unwrap_or(0);
        let ends = self.starts.iter_enumerated().filter_map(|(actor, starts)| {
            let last = starts.iter().copied().max()?;
            Some(last.saturating_add(durations.get(actor).copied().unwrap_or(0)))
        });
        ends.max().unwrap_or(0).saturating_sub(first)
    }
}
