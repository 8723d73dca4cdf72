//! Plans: for one set of devices and one block size, who fires what in which order, out of which bytes.
//!
//! See the crate documentation for what a plan means; nothing here knows how one is made.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    ActorId, BufferId, ChannelId, DeviceId, Graph, InPlace, PortChannels, RingId, TiVec, walk,
};

/// An output that a plan has put over an input of the same actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// The actor.
    pub actor: ActorId,
    /// Its ports.
    pub ports: InPlace,
    /// The input's buffer.
    pub below: BufferId,
    /// The output's buffer.
    pub above: BufferId,
    /// The input's bytes compared with the output's: `Less` where the input is a part of the output, `Greater` where
    /// the output is a part of the input.
    pub fit: Ordering,
}

/// Calendars and memory for one set of devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// `main`, `tail`, or which of them and what was lost (`main without 2 like cpu:0`).
    pub name: String,
    /// Graph iterations in one block, at least 1. One period fires every actor `block * q` times.
    pub block: u64,
    /// Predicted time from one period's start to the next.
    pub period_ns: u64,
    /// Predicted time from a block's first slot to the end of the last that computes or moves its tokens.
    pub latency_ns: u64,
    /// What limits the period, for people: a device, a link or a cycle.
    pub bound_by: String,
    /// Number of stages: 1 + the largest [`Slot::stage`].
    pub stages: u32,
    /// Device of each actor.
    pub placement: TiVec<ActorId, DeviceId>,
    /// One calendar for each device that has slots, in device order.
    pub calendars: Vec<Calendar>,
    /// Memory of channels on devices; at most one buffer for each (channel, device).
    pub buffers: TiVec<BufferId, Buffer>,
    /// Hand-overs between devices.
    pub rings: TiVec<RingId, Ring>,
    /// Variants of kernels by name, for actors that do not run the default one of their op. On CPUs all variants give
    /// the same bits, so that nothing but times depends on them. On GPUs the bits depend on the name, too: so all plans
    /// of a program name the same one wherever the actor is on a device of the same backend.
    pub variants: BTreeMap<ActorId, String>,
}

impl Plan {
    /// The variant of an actor's kernel, where it is not the default one.
    pub fn variant(&self, actor: ActorId) -> Option<&str> {
        self.variants.get(&actor).map(String::as_str)
    }

    /// Whether a device fetches weights from its tier. O(slots).
    pub fn has_fetches(&self) -> bool {
        let lanes = self.calendars.iter().flat_map(|calendar| &calendar.lanes);
        let mut slots = lanes.flat_map(|lane| crate::walk::top_slots(&lane.entries));
        slots.any(|slot| matches!(slot.action, Action::Fetch { .. }))
    }

    /// What actors write over their inputs, in their order: buffers in arenas that lie to each other as ports that
    /// allow it do. A part lies in a whole only where the actor fires once a block, as tokens of several firings lie in
    /// a row. Nothing where ids do not exist. O(pairs log buffers).
    pub fn over(&self, graph: &Graph) -> Vec<Over> {
        let buffers = self.buffers.iter_enumerated();
        let buffer_at: BTreeMap<_, _> = buffers
            .map(|(id, buffer)| ((buffer.channel, buffer.device), id))
            .collect();
        let ports = graph.port_channels();

        let mut overlaps = Vec::new();
        for (id, actor) in graph.actors.iter_enumerated() {
            for &pair in &actor.in_place {
                overlaps.extend(self.overlap(graph, &ports, &buffer_at, id, pair));
            }
        }
        overlaps
    }

    /// The buffers of an in-place pair, if the plan puts one over the other just as the pair says.
    fn overlap(
        &self,
        graph: &Graph,
        ports: &PortChannels,
        buffer_at: &BTreeMap<(ChannelId, DeviceId), BufferId>,
        id: ActorId,
        pair: InPlace,
    ) -> Option<Over> {
        let device = *self.placement.get(id)?;
        let (read_channel, _) = (*ports.inputs[id].get(pair.input as usize)?)?;
        let written_channel = (*ports.outputs[id].get(pair.output as usize)?)?;
        let below_id = *buffer_at.get(&(read_channel, device))?;
        let above_id = *buffer_at.get(&(written_channel, device))?;
        let below = &self.buffers[below_id];
        let above = &self.buffers[above_id];

        let actor = &graph.actors[id];
        let input = &actor.inputs[pair.input as usize];
        let output = &actor.outputs[pair.output as usize];
        let read_bytes = input.rate.saturating_mul(input.token.bytes());
        let written_bytes = output.rate.saturating_mul(output.token.bytes());
        let fit = read_bytes.cmp(&written_bytes);
        let (part, whole) = if fit == Ordering::Less {
            (below, above)
        } else {
            (above, below)
        };

        // Where one is a part of the other, the tokens of a second firing of the block would lie elsewhere.
        let fires_once = below.block_tokens == input.rate && above.block_tokens == output.rate;
        let part_offset = whole.offset_bytes.checked_add(pair.at_bytes);
        let is_in_arena = below.region == Region::Arena && above.region == Region::Arena;
        let has_chunks = below.is_chunked() || above.is_chunked();
        let is_meant = below_id != above_id
            && is_in_arena
            && !has_chunks
            && part_offset == Some(part.offset_bytes)
            && (fit == Ordering::Equal || fires_once);
        is_meant.then_some(Over {
            actor: id,
            ports: pair,
            below: below_id,
            above: above_id,
            fit,
        })
    }
}

/// What one device does in one period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calendar {
    /// The device.
    pub device: DeviceId,
    /// Size of the device's private arena.
    pub arena_bytes: u64,
    /// Size of the device's exchange region, into which other devices send.
    pub exchange_bytes: u64,
    /// Offset in the arena of the kernels' scratch memory.
    pub scratch_offset_bytes: u64,
    /// Size of the scratch memory: the largest need of any actor on the device.
    pub scratch_bytes: u64,
    /// Queues of slots; each runs its entries in order.
    pub lanes: Vec<Lane>,
}

/// A fetch of weights in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightFetch {
    /// Whose weights.
    pub actor: ActorId,
    /// Where they go in the arena.
    pub offset_bytes: u64,
    /// Whether they are for the next period: the actor waits for them before they are fetched.
    pub is_for_next: bool,
}

impl Calendar {
    /// What it fetches in a period, in order.
    pub fn weight_fetches(&self) -> Vec<WeightFetch> {
        let mut awaited = BTreeSet::new();
        let mut fetches = Vec::new();
        let lanes = self.lanes.iter();
        for slot in lanes.flat_map(|lane| walk::top_slots(&lane.entries)) {
            match slot.action {
                Action::Await { actor } => {
                    awaited.insert(actor);
                }
                Action::Fetch {
                    actor,
                    offset_bytes,
                } => fetches.push(WeightFetch {
                    actor,
                    offset_bytes,
                    is_for_next: awaited.contains(&actor),
                }),
                _ => {}
            }
        }
        fetches
    }
}

/// What a lane is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaneKind {
    /// Runs kernels; on a CPU, everything.
    Compute,
    /// Copies towards the device.
    CopyIn,
    /// Copies away from the device.
    CopyOut,
}

/// A queue of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    /// What the lane is for.
    pub kind: LaneKind,
    /// What it runs each period, in order.
    pub entries: Vec<Entry>,
}

/// A slot, or a run of equal slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// One slot.
    Slot(Slot),
    /// The body `count` times in a row; fire, send and receive slots go on where the last execution ended.
    Loop {
        /// Repetitions, at least 1.
        count: u64,
        /// What is repeated; not empty. May hold loops, at most [`crate::limits::MAX_LOOP_DEPTH`] deep.
        #[serde(deserialize_with = "crate::nesting::deserialize")]
        body: Vec<Entry>,
    },
}

/// One thing that a lane does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slot {
    /// In period p the slot works on block p − stage.
    pub stage: u32,
    /// Predicted start after the start of the period; in a loop, of the first execution.
    pub start_ns: u64,
    /// Predicted duration of one execution.
    pub duration_ns: u64,
    /// What is done.
    pub action: Action,
}

/// What a slot does to the block it works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Firings `[first, first + count)` of the block. Taken in execution order, loops counted out, the fire slots of
    /// an actor do its firings 0, 1, 2, … without gap or repetition: a further execution in a loop goes on where the
    /// actor's last execution ended. So with s = firings of the actor in one run of the loop's body, the e-th
    /// execution does `[first + e*s, first + e*s + count)`.
    Fire {
        /// The actor.
        actor: ActorId,
        /// First firing, counted from the start of the block.
        first: u64,
        /// Firings of one execution, at least 1.
        count: u64,
    },
    /// Copies new tokens `[first, first + count)` of the block from the sender's buffer into the ring and
    /// publishes them; waits until the ring's block is free. Executions in loops go on like those of [`Action::Fire`].
    Send {
        /// The ring.
        ring: RingId,
        /// First token, counted from the first token written in the block.
        first: u64,
        /// Tokens of one execution, at least 1.
        count: u64,
    },
    /// Waits until new tokens `[first, first + count)` of the block have been published.
    Recv {
        /// The ring.
        ring: RingId,
        /// First token.
        first: u64,
        /// Tokens of one execution, at least 1.
        count: u64,
    },
    /// Gives the block's place in the ring back to the sender. Never in a loop.
    Release {
        /// The ring.
        ring: RingId,
    },
    /// Copies the last `head_tokens` tokens of the block (head and new tokens together) to the head of the next
    /// block, which lies elsewhere or, with one block, in the same place. Never in a loop.
    ///
    /// Of a buffer of chunks, the same for the chunk that it holds: the next chunk is current from then on. In loops too.
    Carry {
        /// The buffer.
        buffer: BufferId,
    },
    /// Begins to read the packed weights of an actor from the device's tier into the arena, beside whatever the lane does
    /// next. Done in every period, whichever stages have a block. Never in a loop.
    Fetch {
        /// The actor, which fires on this device.
        actor: ActorId,
        /// Where its weights are to be: a multiple of [`crate::limits::ALIGN_BYTES`] in the arena.
        offset_bytes: u64,
    },
    /// Waits until the weights of an actor are there: those of the [`Action::Fetch`] of this period where that comes
    /// before, else of the period before. Done in every period. Never in a loop.
    Await {
        /// The actor.
        actor: ActorId,
    },
}

/// Which memory region of its device a buffer lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Region {
    /// The device's private arena.
    Arena,
    /// The region into which other devices send.
    Exchange,
}

/// The memory of one channel on one device: `blocks` places, `stride_bytes` apart, used in turn.
///
/// Place i holds blocks i, i + blocks, i + 2·blocks, …: first `head_tokens` tokens carried over from the block
/// before, then the `block_tokens` tokens of the block. Token positions inside a place are counted from the head.
///
/// A buffer of chunks (`chunk_tokens` below `block_tokens`) has one place, which holds one chunk of the block after the
/// other: see the crate's documentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    /// The channel.
    pub channel: ChannelId,
    /// The device that the memory belongs to.
    pub device: DeviceId,
    /// Region of the device.
    pub region: Region,
    /// Offset of place 0 in the region, a multiple of [`crate::limits::ALIGN_BYTES`].
    pub offset_bytes: u64,
    /// Distance between places, a multiple of [`crate::limits::ALIGN_BYTES`] and at least
    /// `(head_tokens + chunk_tokens) * token bytes`.
    pub stride_bytes: u64,
    /// Number of places, at least 1.
    pub blocks: u32,
    /// Tokens of history in front of each block: the largest delay of the channel's readers on this device. In front
    /// of chunks at least that many, as windows may begin in the chunks before.
    pub head_tokens: u64,
    /// New tokens in each block; 0 for a state, which is updated in place.
    pub block_tokens: u64,
    /// New tokens that a place holds at a time. `block_tokens` for a whole block; otherwise a divisor of it: the
    /// block then passes through the place in `block_tokens / chunk_tokens` chunks, one after the other.
    pub chunk_tokens: u64,
}

impl Buffer {
    /// Bytes of all places together.
    pub fn size_bytes(&self) -> u64 {
        self.stride_bytes.saturating_mul(u64::from(self.blocks))
    }

    /// Whether a place holds less than a block at a time.
    pub fn is_chunked(&self) -> bool {
        self.chunk_tokens != self.block_tokens
    }

    /// New tokens in a place, for people: `8`, or `2 of 8` for chunks of a block.
    pub fn shown_tokens(&self) -> String {
        let block = self.block_tokens;
        if self.is_chunked() {
            format!("{} of {block}", self.chunk_tokens)
        } else {
            block.to_string()
        }
    }

    /// The position in a place of a token of the block, counted from the block's first new one, after so many carries
    /// in the period ([`crate::walk::CarryCount`]). Of a verified plan it is inside the place.
    pub fn position(&self, token: i64, carried: u64) -> i64 {
        let head = self.head_tokens as i64;
        let chunk = self.chunk_tokens as i64;
        if !self.is_chunked() {
            head.wrapping_add(token)
        } else if head == 0 {
            token.checked_rem_euclid(chunk).unwrap_or(0)
        } else {
            head.wrapping_add(token)
                .wrapping_sub(chunk.wrapping_mul(carried as i64))
        }
    }
}

/// An SPSC hand-over of one channel from the device of its writer to a device with readers.
///
/// Its data is the receiver's buffer of the channel, which lies in the receiver's exchange region. Token order and
/// block size are the buffer's; published tokens and released blocks are counted from the start of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ring {
    /// The channel.
    pub channel: ChannelId,
    /// Device of the writer.
    pub from: DeviceId,
    /// Device of the readers.
    pub to: DeviceId,
    /// The receiver's buffer.
    pub buffer: BufferId,
}
