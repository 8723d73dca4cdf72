//! Buffers smaller than a block: on a CPU device, actors that would fire all of a block in one go fire in nested loops
//! or in turns, and what passes between them is held a chunk at a time.
//!
//! Works on a plan whose slots are in order and whose buffers have no offsets yet. Its runs of calls are taken one by
//! one: the calls between two slots of another kind. Channels that leave such a run keep whole blocks.

mod cache;
mod lanes;
mod orders;

use std::collections::BTreeMap;

use petgraph::unionfind::UnionFind;
use zbmd_ir::{
    ActorId, Buffer, BufferId, Channel, ChannelId, DeviceId, Plan, Reader, Region, limits,
};

pub(crate) use self::cache::quicker_in_cache;
use self::lanes::PlanRewrite;
use self::orders::RunOrder;
use crate::error::ScheduleError;
use crate::layout;
use crate::live::BufferIndex;
use crate::problem::BlockProblem;

/// How the actors of a run take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkOrder {
    /// The block in so many parts, one after the other, in the order in which the whole would be.
    Parts(u64),
    /// In nested loops, in which each appears once ([`crate::order::looped`]).
    NestedLoops,
    /// With the fewest tokens that any order needs, one firing after the other ([`crate::order::least_buffers`]).
    FewestTokens,
}

impl ChunkOrder {
    /// The orders to try for a block, those with the fewest calls first.
    fn all(block: u64) -> impl Iterator<Item = ChunkOrder> {
        let doubled = move |parts: &u64| parts.checked_mul(2).filter(|&parts| parts <= block);
        let parts = std::iter::successors(doubled(&1), doubled).map(ChunkOrder::Parts);
        parts.chain([ChunkOrder::NestedLoops, ChunkOrder::FewestTokens])
    }
}

/// The plan with buffers of chunks in the first order, those with the fewest calls first, in which it fits the devices'
/// memory, the bound on it, and what `fits` wants.
pub(crate) fn first_that_fits(
    problem: &BlockProblem<'_>,
    plan: &Plan,
    fits: impl Fn(&Plan) -> bool,
) -> Option<Plan> {
    all_orders(problem, plan).find(fits)
}

/// The plans with buffers of chunks, in all orders.
pub(crate) fn all_orders(problem: &BlockProblem<'_>, plan: &Plan) -> impl Iterator<Item = Plan> {
    let orders = ChunkOrder::all(problem.block);
    orders.filter_map(|order| with_chunks(problem, plan, order).ok().flatten())
}

/// The plan with its runs in another order, and offsets for the smaller buffers; `None` where that makes none smaller.
///
/// # Errors
/// [`ScheduleError::Memory`] where it does not fit the devices' memory or the bound either.
fn with_chunks(
    problem: &BlockProblem<'_>,
    plan: &Plan,
    order: ChunkOrder,
) -> Result<Option<Plan>, ScheduleError> {
    let mut rewrite = PlanRewrite::new(problem, plan);
    for index in 0..plan.calendars.len() {
        let device = plan.calendars[index].device;
        if problem.machine.devices[device].backend.is_cpu() {
            rewrite.rewrite_calendar(index, order);
        }
    }

    let Some(mut chunked) = rewrite.finish() else {
        return Ok(None);
    };
    layout::lay_out(problem, &mut chunked)?;
    Ok(Some(chunked))
}

/// A run of calls of one stage on one device: what fires all its firings of a block between two other slots.
struct CallRun<'p, 'a> {
    problem: &'p BlockProblem<'a>,
    plan: &'p Plan,
    buffer_at: &'p BufferIndex,
    device: DeviceId,
    /// Actors in the order of their calls.
    actors: Vec<ActorId>,
}

/// A buffer that can hold less than a block, and what it would hold.
struct ChunkedBuffer {
    id: BufferId,
    head_tokens: u64,
    chunk_tokens: u64,
}

impl CallRun<'_, '_> {
    fn block_firings(&self, actor: ActorId) -> u64 {
        self.problem.repetition[actor].saturating_mul(self.problem.block)
    }

    /// The actors in groups that no channel of the run joins, each in the order of the calls; groups by their first one.
    fn connected_actors(&self) -> Vec<Vec<ActorId>> {
        let positions = self.actors.iter().copied().zip(0..);
        let position_of: BTreeMap<ActorId, usize> = positions.collect();
        let mut groups = UnionFind::new(self.actors.len());
        for (reader, &position) in &position_of {
            for edge in self.problem.edges.edges_into(*reader) {
                if let Some(&writer_position) = position_of.get(&edge.writer) {
                    groups.union(position, writer_position);
                }
            }
        }

        let mut members: BTreeMap<usize, Vec<ActorId>> = BTreeMap::new();
        for (position, &actor) in self.actors.iter().enumerate() {
            members
                .entry(groups.find(position))
                .or_default()
                .push(actor);
        }
        let mut connected: Vec<Vec<ActorId>> = members.into_values().collect();
        connected.sort_by_key(|group| position_of[&group[0]]);
        connected
    }

    /// The buffers whose writer and readers are all among these actors, and that may hold chunks.
    fn inner_buffers(&self, actors: &[ActorId]) -> Vec<(BufferId, &Channel)> {
        let graph = self.problem.graph;
        let mut inner = Vec::new();
        for &actor in actors {
            for &channel in self.problem.ports.outputs[actor].iter().flatten() {
                if let Some(id) = self.inner_buffer(channel, actors) {
                    inner.push((id, &graph.channels[channel]));
                }
            }
        }
        inner
    }

    fn inner_buffer(&self, channel: ChannelId, actors: &[ActorId]) -> Option<BufferId> {
        let graph = self.problem.graph;
        let id = *self.buffer_at.get(&(channel, self.device))?;
        let buffer = &self.plan.buffers[id];

        // A channel that its own writer reads keeps its block: what one call may do is bounded by the delay anyway.
        let writer = graph.channels[channel].from.actor;
        let is_read_here =
            |reader: &Reader| reader.to.actor != writer && actors.contains(&reader.to.actor);
        let is_inner = graph.channels[channel].readers.iter().all(is_read_here);
        let is_plain = buffer.region == Region::Arena && buffer.blocks == 1;
        (is_inner && is_plain && !graph.is_state(channel)).then_some(id)
    }

    /// The order of a group, with the buffers that it makes smaller; `None` where there is none of that kind, or no
    /// buffer gets smaller.
    fn order_group(&self, actors: &[ActorId], order: ChunkOrder) -> Option<RunOrder> {
        let found = match order {
            ChunkOrder::Parts(parts) => self.in_parts(actors, parts)?,
            ChunkOrder::NestedLoops => self.nested_loops(actors)?,
            ChunkOrder::FewestTokens => self.fewest_tokens(actors)?,
        };
        (!found.buffers.is_empty()).then_some(found)
    }
}

/// Bytes from one place of a buffer to the next.
fn stride_bytes(buffer: &Buffer, token_bytes: u64) -> u64 {
    let tokens = buffer.head_tokens.saturating_add(buffer.chunk_tokens);
    let place_bytes = tokens.saturating_mul(token_bytes);
    place_bytes
        .next_multiple_of(limits::ALIGN_BYTES)
        .max(limits::ALIGN_BYTES)
}

#[cfg(test)]
mod tests;
