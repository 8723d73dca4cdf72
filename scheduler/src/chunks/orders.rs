//! Orders of a group of connected actors, and what their buffers have to hold then.

use std::collections::BTreeMap;

use zbmd_ir::{ActorId, BufferId, Channel, TiVec, limits};

use super::{CallRun, ChunkedBuffer};
use crate::buffers::SizingLimits;
use crate::cluster::ClusterCall;
use crate::order::{LoopStep, least_buffers, looped};
use crate::throughput::{TimedActor, TimedChannel, TimedReader, TimedSdf};

/// Calls of one block, and the buffers that hold less than it.
#[derive(Default)]
pub(super) struct RunOrder {
    pub(super) calls: Vec<ClusterCall>,
    pub(super) buffers: Vec<ChunkedBuffer>,
}

/// A buffer of a group with the positions of its channel's ends among the actors.
struct GroupBuffer<'a> {
    id: BufferId,
    channel: &'a Channel,
    write_rate: u64,
    block_tokens: u64,
    /// Tokens of history that its readers have in front of a block.
    head_tokens: u64,
    readers: Vec<GroupReader>,
}

struct GroupReader {
    actor: ActorId,
    rate: u64,
    delay: u64,
}

impl CallRun<'_, '_> {
    /// The calls of the group as they are, for a part of the block at a time.
    pub(super) fn in_parts(&self, actors: &[ActorId], parts: u64) -> Option<RunOrder> {
        let mut body = Vec::with_capacity(actors.len());
        for (place, &actor) in (0..).map(ActorId).zip(actors) {
            let firings = self.block_firings(actor);
            if !firings.is_multiple_of(parts) {
                return None;
            }
            body.push(LoopStep::Fire(place, firings / parts));
        }
        Some(self.loop_order(actors, &[LoopStep::Loop(parts, body)]))
    }

    /// Each actor once, in nested loops.
    pub(super) fn nested_loops(&self, actors: &[ActorId]) -> Option<RunOrder> {
        let sdf = self.timed_sdf(actors);
        let loops = looped(&sdf, limits::MAX_LOOP_DEPTH - 1).ok()?;
        let steps = match self.rounds(&sdf, actors)? {
            1 => loops.steps,
            rounds => vec![LoopStep::Loop(rounds, loops.steps)],
        };
        Some(self.loop_order(actors, &steps))
    }

    /// Loops in which each actor appears once: a channel holds what is written while the innermost loop around both of
    /// its ends runs once.
    fn loop_order(&self, actors: &[ActorId], steps: &[LoopStep]) -> RunOrder {
        let mut nest = LoopNest {
            actors,
            counts: Vec::new(),
            around: BTreeMap::new(),
        };
        let numbered_steps = nest.number(steps, &mut Vec::new());

        let mut buffers = Vec::new();
        let mut carried_in: BTreeMap<usize, Vec<ClusterCall>> = BTreeMap::new();
        for buffer in self.group_buffers(actors) {
            let shared = nest.shared_loops(&buffer);
            let Some(&innermost) = shared.last() else {
                continue;
            };
            let runs: u64 = shared.iter().map(|&index| nest.counts[index]).product();
            let chunk_tokens = buffer.block_tokens / runs;
            if runs == 1 {
                continue;
            }
            if buffer.head_tokens > 0 {
                let carries = carried_in.entry(innermost).or_default();
                carries.push(self.carry_call(&buffer, buffer.head_tokens));
            }
            buffers.push(ChunkedBuffer {
                id: buffer.id,
                head_tokens: buffer.head_tokens,
                chunk_tokens,
            });
        }

        let calls = numbered_steps.into_iter();
        RunOrder {
            calls: calls.map(|step| step.into_call(&mut carried_in)).collect(),
            buffers,
        }
    }

    /// One firing after the other, so that the group's buffers hold as few tokens as any order allows: a chunk is what
    /// one firing of the writer writes, behind what was left of those before.
    pub(super) fn fewest_tokens(&self, actors: &[ActorId]) -> Option<RunOrder> {
        let sdf = self.timed_sdf(actors);
        let least = least_buffers(&sdf, SizingLimits::default()).ok()?;
        let rounds = self.rounds(&sdf, actors)?;
        let firings = least
            .calls
            .iter()
            .map(|&(actor, count)| (actors[actor.index()], count));
        let firings: Vec<(ActorId, u64)> = firings.collect();
        let executions = firings.iter().map(|(_, count)| count).sum::<u64>();
        if executions > self.problem.options.max_executions {
            return None;
        }

        let mut buffers = Vec::new();
        let mut carries_of: BTreeMap<ActorId, Vec<ClusterCall>> = BTreeMap::new();
        for buffer in self.group_buffers(actors) {
            let head_tokens = buffer.largest_rest(&firings);
            let chunk_tokens = buffer.write_rate;
            if head_tokens + chunk_tokens >= buffer.head_tokens + buffer.block_tokens {
                continue;
            }
            if head_tokens > 0 {
                let carries = carries_of.entry(buffer.channel.from.actor).or_default();
                carries.push(self.carry_call(&buffer, head_tokens));
            }
            buffers.push(ChunkedBuffer {
                id: buffer.id,
                head_tokens,
                chunk_tokens,
            });
        }

        let body = single_firings(&firings, &carries_of);
        Some(RunOrder {
            calls: match rounds {
                1 => body,
                count => vec![ClusterCall::Repeat { count, body }],
            },
            buffers,
        })
    }

    /// The group as a graph of its own, whose actors have the numbers of their places in it.
    fn timed_sdf(&self, actors: &[ActorId]) -> TimedSdf {
        let places = actors.iter().copied().zip(0_u32..);
        let place_of: BTreeMap<ActorId, ActorId> = places
            .map(|(actor, place)| (actor, ActorId(place)))
            .collect();
        let graph = self.problem.graph;
        let mut channels = TiVec::new();
        for (&writer, &from) in &place_of {
            for &id in self.problem.ports.outputs[writer].iter().flatten() {
                if graph.is_state(id) {
                    continue;
                }
                let channel = &graph.channels[id];
                let output = &graph.actors[writer].outputs[channel.from.port as usize];
                let mut readers = Vec::new();
                for reader in &channel.readers {
                    let Some(&to) = place_of.get(&reader.to.actor) else {
                        continue;
                    };
                    let input = &graph.actors[reader.to.actor].inputs[reader.to.port as usize];
                    let overlap = input.window.saturating_sub(input.rate);
                    readers.push(TimedReader {
                        to,
                        consume: input.rate,
                        free: reader.delay.saturating_sub(overlap),
                        overlap,
                    });
                }
                if !readers.is_empty() {
                    channels.push(TimedChannel {
                        from,
                        produce: output.rate,
                        token_bytes: channel.token.bytes(),
                        readers,
                    });
                }
            }
        }
        let timed = |&actor: &ActorId| TimedActor {
            name: graph.actors[actor].name.clone(),
            time: 0,
            at_once: Some(1),
        };
        TimedSdf {
            actors: actors.iter().map(timed).collect(),
            channels,
            ..TimedSdf::default()
        }
    }

    /// How often the group's own iteration runs in a block.
    fn rounds(&self, sdf: &TimedSdf, actors: &[ActorId]) -> Option<u64> {
        let repetition = sdf.repetition().ok()?;
        let first = *actors.first()?;
        let rounds = self.block_firings(first) / repetition[ActorId(0)].max(1);
        let is_whole = actors
            .iter()
            .zip(repetition.iter())
            .all(|(&actor, firings)| {
                firings.checked_mul(rounds) == Some(self.block_firings(actor))
            });
        is_whole.then_some(rounds)
    }

    fn group_buffers(&self, actors: &[ActorId]) -> Vec<GroupBuffer<'_>> {
        let graph = self.problem.graph;
        let inner = self.inner_buffers(actors).into_iter();
        inner
            .map(|(id, channel)| {
                let writer = &graph.actors[channel.from.actor];
                let readers = channel.readers.iter().map(|reader| GroupReader {
                    actor: reader.to.actor,
                    rate: graph.actors[reader.to.actor].inputs[reader.to.port as usize].rate,
                    delay: reader.delay,
                });
                GroupBuffer {
                    id,
                    channel,
                    write_rate: writer.outputs[channel.from.port as usize].rate,
                    block_tokens: self.plan.buffers[id].block_tokens,
                    head_tokens: self.plan.buffers[id].head_tokens,
                    readers: readers.collect(),
                }
            })
            .collect()
    }

    fn carry_call(&self, buffer: &GroupBuffer<'_>, head_tokens: u64) -> ClusterCall {
        let token_bytes = buffer.channel.token.bytes();
        ClusterCall::Carry {
            buffer: buffer.id,
            duration_ns: self.problem.carry_ns(self.device, head_tokens, token_bytes),
        }
    }
}

impl GroupBuffer<'_> {
    /// The most tokens that are still to be read when the writer is about to fire, or the iteration ends.
    fn largest_rest(&self, firings: &[(ActorId, u64)]) -> u64 {
        let mut written = 0;
        let mut consumed = vec![0; self.readers.len()];
        let mut largest = self.rest(written, &consumed);
        for &(actor, count) in firings {
            for (reader, consumed) in self.readers.iter().zip(&mut consumed) {
                if reader.actor == actor {
                    *consumed += count * reader.rate;
                }
            }
            if actor == self.channel.from.actor {
                // Each of the firings but the first finds what the ones before have written.
                largest = largest.max(self.rest(written, &consumed));
                written += (count - 1) * self.write_rate;
                largest = largest.max(self.rest(written, &consumed));
                written += self.write_rate;
            }
        }
        largest.max(self.rest(written, &consumed))
    }

    fn rest(&self, written: u64, consumed: &[u64]) -> u64 {
        let readers = self.readers.iter().zip(consumed);
        let rests =
            readers.map(|(reader, consumed)| (written + reader.delay).saturating_sub(*consumed));
        rests.max().unwrap_or(0)
    }
}

/// Single firings; behind the first of a writer, each comes after the carries of what it writes. The last carries end the
/// iteration.
fn single_firings(
    firings: &[(ActorId, u64)],
    carries_of: &BTreeMap<ActorId, Vec<ClusterCall>>,
) -> Vec<ClusterCall> {
    let mut calls = Vec::new();
    let mut has_fired: BTreeMap<ActorId, bool> = BTreeMap::new();
    for &(actor, count) in firings {
        let Some(carries) = carries_of.get(&actor) else {
            calls.push(ClusterCall::Fire { actor, count });
            continue;
        };
        for _ in 0..count {
            let has_fired = has_fired.entry(actor).or_insert(false);
            if *has_fired {
                calls.extend(carries.iter().cloned());
            }
            *has_fired = true;
            calls.push(ClusterCall::Fire { actor, count: 1 });
        }
    }
    for carries in carries_of.values() {
        calls.extend(carries.iter().cloned());
    }
    calls
}

/// A step of a nest whose loops have numbers.
enum NestStep {
    Fire(ActorId, u64),
    Loop {
        index: usize,
        count: u64,
        body: Vec<NestStep>,
    },
}

impl NestStep {
    /// The call, each loop followed in its body by the carries that belong there.
    fn into_call(self, carried_in: &mut BTreeMap<usize, Vec<ClusterCall>>) -> ClusterCall {
        match self {
            NestStep::Fire(actor, count) => ClusterCall::Fire { actor, count },
            NestStep::Loop { index, count, body } => {
                let steps = body.into_iter();
                let mut body: Vec<ClusterCall> =
                    steps.map(|step| step.into_call(carried_in)).collect();
                body.extend(carried_in.remove(&index).unwrap_or_default());
                ClusterCall::Repeat { count, body }
            }
        }
    }
}

/// The loops of a nest, and which are around each actor.
struct LoopNest<'a> {
    actors: &'a [ActorId],
    counts: Vec<u64>,
    around: BTreeMap<ActorId, Vec<usize>>,
}

impl LoopNest<'_> {
    /// Numbers the loops of steps that lie within `outside`, and names actors as the graph does.
    fn number(&mut self, steps: &[LoopStep], outside: &mut Vec<usize>) -> Vec<NestStep> {
        let mut numbered = Vec::with_capacity(steps.len());
        for step in steps {
            numbered.push(match step {
                LoopStep::Fire(place, count) => {
                    let actor = self.actors[place.index()];
                    self.around.insert(actor, outside.clone());
                    NestStep::Fire(actor, *count)
                }
                LoopStep::Loop(count, body) => {
                    let index = self.counts.len();
                    self.counts.push(*count);
                    outside.push(index);
                    let body = self.number(body, outside);
                    outside.pop();
                    NestStep::Loop {
                        index,
                        count: *count,
                        body,
                    }
                }
            });
        }
        numbered
    }

    /// The loops around all ends of a channel, from the outermost on.
    fn shared_loops(&self, buffer: &GroupBuffer<'_>) -> Vec<usize> {
        let mut shared = self.around[&buffer.channel.from.actor].clone();
        for reader in &buffer.readers {
            let around = &self.around[&reader.actor];
            let common = shared
                .iter()
                .zip(around)
                .take_while(|(one, other)| one == other);
            shared.truncate(common.count());
        }
        shared
    }
}
