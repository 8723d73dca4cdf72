//! How many tokens and frames nodes must have memory for.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::{ActorId, ChannelId, TiVec};
use zbmd_ticks::{Hop, Message, NodeId, TickBuffer, TickPlan};

use crate::TickScheduleError;
use crate::attempt::Timetable;
use crate::problem::Problem;

/// A timetable with its buffers: a plan.
pub(crate) fn complete(
    problem: &Problem<'_>,
    placement: &TiVec<ActorId, NodeId>,
    period: u64,
    timetable: Timetable,
) -> Result<TickPlan, TickScheduleError> {
    let sizer = Sizer {
        problem,
        placement,
        period,
        timetable: &timetable,
        messages: messages_of(problem, &timetable.messages),
    };
    let mut buffers = Vec::new();
    for (channel, stream) in problem.streams.iter_enumerated() {
        let home = placement[stream.writer];
        let readers = stream.readers.iter().map(|&reader| placement[reader]);
        let copies = timetable.copies.iter();
        let copy = copies.filter(|copy| copy.channel == channel);
        let copy = copy.map(|copy| copy.node).next();
        let nodes: BTreeSet<NodeId> = readers.chain([home]).chain(copy).collect();
        for node in nodes {
            let is_kept = copy.is_some_and(|copy| copy == node || home == node);
            let border = if is_kept { stream.border } else { 0 };
            let tokens = sizer.capacity(channel, node, border);
            buffers.push(TickBuffer {
                channel,
                node,
                tokens,
            });
        }
    }

    let waiting_frames = waiting_frames(problem, period, &timetable.messages);
    check_memory(problem, &buffers, &waiting_frames)?;
    Ok(TickPlan {
        period,
        placement: placement.clone(),
        starts: timetable.starts,
        messages: timetable.messages,
        buffers,
        waiting_frames,
        copies: timetable.copies,
    })
}

/// The messages of each channel, by index.
fn messages_of(problem: &Problem<'_>, messages: &[Message]) -> TiVec<ChannelId, Vec<usize>> {
    let mut found: TiVec<ChannelId, Vec<usize>> = vec![Vec::new(); problem.streams.len()].into();
    for (index, message) in messages.iter().enumerate() {
        found[message.channel].push(index);
    }
    found
}

struct Sizer<'a> {
    problem: &'a Problem<'a>,
    placement: &'a TiVec<ActorId, NodeId>,
    period: u64,
    timetable: &'a Timetable,
    messages: TiVec<ChannelId, Vec<usize>>,
}

/// When the tokens of a firing take up memory, and when that is free for those who only wait for themselves.
#[derive(Clone, Copy, Debug, Default)]
struct Stay {
    from: u64,
    until: u64,
}

impl Stay {
    /// That of tokens that are not there.
    const NEVER: Self = Self {
        from: u64::MAX,
        until: 0,
    };
}

impl Sizer<'_> {
    fn messages(&self, channel: ChannelId) -> impl Iterator<Item = &Message> {
        let indices = self.messages[channel].iter();
        indices.map(|&index| &self.timetable.messages[index])
    }

    /// For each firing of a channel's writer, how long its tokens stay on a node without regard to readers.
    fn stays(&self, channel: ChannelId, node: NodeId) -> Vec<Stay> {
        let writer = self.problem.streams[channel].writer;
        let latency = self.problem.machine.latency_ticks;
        let starts = self.timetable.starts[writer].iter();
        let is_home = self.placement[writer] == node;
        let mut stays: Vec<Stay> = starts
            .map(|&start| match is_home {
                true => Stay {
                    from: start,
                    until: start + self.problem.durations[writer],
                },
                false => Stay::NEVER,
            })
            .collect();
        for message in self.messages(channel) {
            let stay = &mut stays[message.firing as usize];
            if is_home {
                let last_sent = message.hops.first().and_then(|hop| hop.ticks().last());
                stay.until = stay.until.max(last_sent.map_or(0, |tick| tick + 1));
            } else if message.to == node
                && let Some(hop) = message.hops.last()
            {
                // Tokens of no bytes take no frames.
                let start = self.timetable.starts[writer][message.firing as usize];
                let first = hop.ticks().next().unwrap_or(start);
                let last = hop.ticks().last().unwrap_or(start);
                *stay = Stay {
                    from: first + latency,
                    until: last + latency + 1,
                };
            }
        }
        stays
    }

    /// The fewest tokens with which none is written over before it was read and sent for the last time, and before nobody
    /// can go back to a border of so many tokens that it is part of.
    fn capacity(&self, channel: ChannelId, node: NodeId, border: u64) -> u64 {
        let stream = &self.problem.streams[channel];
        let stays = self.stays(channel, node);
        let readers = stream.readers.iter();
        let local: BTreeSet<ActorId> = readers
            .copied()
            .filter(|&reader| self.placement[reader] == node)
            .collect();
        let inputs = local.iter().flat_map(|&reader| {
            let inputs = self.problem.inputs[reader].iter();
            let inputs = inputs.filter(|input| input.channel == channel);
            inputs.map(move |input| (reader, *input))
        });
        let inputs: Vec<_> = inputs.collect();
        let history = inputs
            .iter()
            .map(|(_, input)| input.delay)
            .max()
            .unwrap_or(0);

        let writes = earliest_writes(&stays, self.period);
        let notice = self.problem.machine.notice_ticks(self.problem.network);
        let mut capacity = history.max(border).max(1);
        for position in 0..stream.tokens {
            let mut free = stays[(position / stream.rate) as usize].until;
            for &(reader, input) in &inputs {
                let last_reading = (position + input.delay) / input.rate;
                free = free.max(self.end_of(reader, last_reading));
            }
            let last_border = (position + border) / stream.tokens;
            if last_border * stream.tokens > position {
                let complete = self.timetable.end + last_border * self.period;
                free = free.max(complete + 1 + notice);
            }
            let next = next_write(&writes, self.period, free) * u128::from(stream.rate);
            let distance = next.saturating_sub(position.into()).max(1);
            capacity = capacity.max(u64::try_from(distance).unwrap_or(u64::MAX));
        }
        capacity
    }

    /// End of a firing, counted over all iterations.
    fn end_of(&self, actor: ActorId, firing: u64) -> u64 {
        let firings = self.problem.firings[actor];
        let start = self.timetable.starts[actor][(firing % firings) as usize];
        start + firing / firings * self.period + self.problem.durations[actor]
    }
}

/// For each firing the tick in which it, or any after it, first writes.
fn earliest_writes(stays: &[Stay], period: u64) -> Vec<u64> {
    let all = stays.iter().map(|stay| stay.from).min().unwrap_or(0);
    let mut least = all.saturating_add(period);
    let mut writes = vec![0; stays.len()];
    for (write, stay) in writes.iter_mut().zip(stays).rev() {
        least = least.min(stay.from);
        *write = least;
    }
    writes
}

/// The first firing, counted over all iterations, that neither writes before a tick nor has one after it that does.
fn next_write(writes: &[u64], period: u64, tick: u64) -> u128 {
    let firings = writes.len() as u128;
    let first = writes.first().copied().unwrap_or(0);
    let iteration = tick.saturating_sub(first) / period;
    let within = tick - (iteration * period).min(tick);
    let index = writes.partition_point(|&write| write < within);
    u128::from(iteration) * firings + index as u128
}

/// The most frames at a time that each node holds to send them on.
fn waiting_frames(problem: &Problem<'_>, period: u64, messages: &[Message]) -> TiVec<NodeId, u64> {
    let latency = problem.machine.latency_ticks;
    // Frames that are there always, and changes at ticks of the period.
    let mut always: BTreeMap<NodeId, u64> = BTreeMap::new();
    let mut changes: BTreeMap<(NodeId, u64), i64> = BTreeMap::new();
    let pairs = messages.iter().flat_map(|message| message.hops.windows(2));
    for pair in pairs {
        let [before, after]: &[Hop; 2] = match pair.try_into() {
            Ok(pair) => pair,
            Err(_) => continue,
        };
        let node = problem.network.links()[before.link].to;
        for (sent, sent_on) in before.ticks().zip(after.ticks()) {
            let (from, until) = (sent + latency, sent_on + 1);
            *always.entry(node).or_default() += (until - from) / period;
            let (start, end) = (from % period, until % period);
            if start == end {
                continue;
            }
            *changes.entry((node, start)).or_default() += 1;
            *changes.entry((node, end)).or_default() -= 1;
            if end < start {
                *always.entry(node).or_default() += 1;
            }
        }
    }

    let mut most: TiVec<NodeId, u64> = vec![0; problem.network.node_count()].into();
    for (&node, &frames) in &always {
        most[node] = frames;
    }
    let mut present = (NodeId(0), 0_i64);
    for (&(node, _), &change) in &changes {
        if node != present.0 {
            present = (node, 0);
        }
        present.1 += change;
        let base = always.get(&node).copied().unwrap_or(0);
        most[node] = most[node].max(base.saturating_add_signed(present.1));
    }
    most
}

fn check_memory(
    problem: &Problem<'_>,
    buffers: &[TickBuffer],
    waiting: &TiVec<NodeId, u64>,
) -> Result<(), TickScheduleError> {
    let frame_bytes = problem.machine.frame_bytes();
    let waiting = waiting
        .iter()
        .map(|frames| frames.saturating_mul(frame_bytes));
    let mut needed: TiVec<NodeId, u64> = waiting.collect();
    for buffer in buffers {
        let token_bytes = problem.streams[buffer.channel].token_bytes;
        let bytes = buffer.tokens.saturating_mul(token_bytes);
        needed[buffer.node] = needed[buffer.node].saturating_add(bytes);
    }
    let memory = problem.machine.memory_bytes;
    let full = needed.iter_enumerated().find(|&(_, &bytes)| bytes > memory);
    full.map_or(Ok(()), |(node, &needed)| {
        Err(TickScheduleError::Memory {
            node,
            needed,
            memory,
        })
    })
}
