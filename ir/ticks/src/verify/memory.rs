//! Places of tokens and frames.

use std::collections::BTreeMap;

use zbmd_ir::{ActorId, ChannelId, Reader, TiVec};

use super::messages::{Arrival, Arrivals, Delivery};
use super::{Errors, Facts, TickError};
use crate::{NodeId, TickBuffer};

pub(super) fn check(facts: &Facts<'_>, arrivals: &Arrivals) -> Result<(), Vec<TickError>> {
    check_buffers(facts)?;
    let mut errors = Errors::default();
    let last_sends = last_sends(facts);
    let end = end_of_iteration(facts, arrivals);
    for buffer in &facts.plan.buffers {
        let places = Places::new(facts, arrivals, &last_sends, end, *buffer);
        if let Err(error) = places.check() {
            errors.add(error);
        }
    }
    check_waiting(facts, &mut errors);
    check_bytes(facts, &mut errors);
    errors.result()
}

/// One buffer on the writer's node, and one on each other node that needs its tokens.
fn check_buffers(facts: &Facts<'_>) -> Result<(), Vec<TickError>> {
    let mut errors = Errors::default();
    let mut found: BTreeMap<(ChannelId, NodeId), u64> = BTreeMap::new();
    for buffer in &facts.plan.buffers {
        *found.entry((buffer.channel, buffer.node)).or_default() += 1;
    }
    for (channel, ch) in facts.graph.channels.iter_enumerated() {
        let receivers = facts.receivers(channel).into_iter();
        let receivers = receivers.map(|receiver| receiver.node);
        for node in receivers.chain([facts.node_of(ch.from.actor)]) {
            let count = found.remove(&(channel, node)).unwrap_or(0);
            if count != 1 {
                errors.add(TickError::Buffers {
                    channel,
                    node,
                    found: count,
                    needed: 1,
                });
            }
        }
    }
    for ((channel, node), count) in found {
        errors.add(TickError::Buffers {
            channel,
            node,
            found: count,
            needed: 0,
        });
    }
    errors.result()
}

/// For each firing of a channel's writer, the tick in which the last of its frames leaves the writer's node.
type LastSends = BTreeMap<(ChannelId, u64), u64>;

fn last_sends(facts: &Facts<'_>) -> LastSends {
    let mut last_sends = LastSends::new();
    for message in &facts.plan.messages {
        let sent = message.hops.first().and_then(|hop| hop.ticks().last());
        if let Some(tick) = sent {
            let last = last_sends
                .entry((message.channel, message.firing))
                .or_default();
            *last = (*last).max(tick);
        }
    }
    last_sends
}

/// The first tick in which everything of iteration 0 is done: firings have ended and frames have been taken.
fn end_of_iteration(facts: &Facts<'_>, arrivals: &Arrivals) -> i128 {
    let actors = facts.graph.actors.keys();
    let ends = actors.map(|actor| facts.end(actor, i128::from(facts.firings[actor]) - 1) + 1);
    let taken = arrivals.values().map(|arrival| arrival.complete.into());
    ends.chain(taken).max().unwrap_or(0)
}

/// A buffer, and what decides how long tokens stay in it.
struct Places<'a> {
    facts: &'a Facts<'a>,
    arrivals: &'a Arrivals,
    last_sends: &'a LastSends,
    /// [`end_of_iteration`].
    end: i128,
    buffer: TickBuffer,
    writer: ActorId,
    is_home: bool,
    /// Readers on the node.
    readers: Vec<&'a Reader>,
    /// Tokens of the border that is kept here, 0 if none is.
    border: u64,
    /// For each firing of the writer the tick in which it, or one after it, begins to be written.
    writes: Vec<u64>,
}

impl<'a> Places<'a> {
    fn new(
        facts: &'a Facts<'a>,
        arrivals: &'a Arrivals,
        last_sends: &'a LastSends,
        end: i128,
        buffer: TickBuffer,
    ) -> Self {
        let TickBuffer { channel, node, .. } = buffer;
        let ch = &facts.graph.channels[channel];
        let writer = ch.from.actor;
        let is_home = facts.node_of(writer) == node;
        let readers = ch.readers.iter();
        let is_here = |reader: &&Reader| facts.node_of(reader.to.actor) == node;

        let copy = facts.copies.get(&channel);
        let is_kept_here = copy.is_some_and(|&copy| copy == node || is_home);
        let mut places = Self {
            facts,
            arrivals,
            last_sends,
            end,
            buffer,
            writer,
            is_home,
            readers: readers.filter(is_here).collect(),
            border: if is_kept_here { ch.history() } else { 0 },
            writes: Vec::new(),
        };
        places.writes = places.earliest_writes();
        places
    }

    /// No token is written over before it was read by all readers on the node, and sent, and before nobody can go back to
    /// a border that it is part of.
    fn check(&self) -> Result<(), TickError> {
        let TickBuffer {
            channel,
            node,
            tokens,
        } = self.buffer;
        let delays = self.readers.iter().map(|reader| reader.delay);
        let needed = delays.max().unwrap_or(0).max(self.border).max(1);
        if tokens < needed {
            return Err(TickError::Initial {
                channel,
                node,
                tokens,
                needed,
            });
        }

        let rate = i128::from(self.facts.rate(channel));
        let iteration_tokens = rate * i128::from(self.facts.firings[self.writer]);
        for position in 0..iteration_tokens {
            let mut needed_until = self.complete(position.div_euclid(rate));
            for reader in &self.readers {
                needed_until = needed_until.max(self.last_reading(reader, position));
            }
            needed_until = needed_until.max(self.border_end(position, iteration_tokens));
            let next = position + i128::from(tokens);
            let written = self.write(next.div_euclid(rate));
            if written < needed_until {
                return Err(TickError::Overwritten {
                    channel,
                    node,
                    position: position as u64,
                    needed_until,
                    written,
                });
            }
        }
        Ok(())
    }

    /// The tick from which on nobody goes back to a border that a token is part of: the border of iteration j is of use
    /// until iteration j is complete, and nobody notices later than a while after that that it is not.
    fn border_end(&self, position: i128, iteration_tokens: i128) -> i128 {
        let last = (position + i128::from(self.border)).div_euclid(iteration_tokens);
        if last * iteration_tokens <= position {
            return 0;
        }
        let notice = self.facts.machine.notice_ticks(self.facts.network);
        self.end + last * i128::from(self.facts.plan.period) + i128::from(notice)
    }

    fn earliest_writes(&self) -> Vec<u64> {
        let firings = self.facts.firings[self.writer];
        let first_ticks = (0..firings).map(|firing| {
            if self.is_home {
                return Some(self.facts.start(self.writer, firing.into()) as u64);
            }
            // What is not sent here is not written here.
            Some(self.arrival(firing)?.first)
        });
        let mut writes: Vec<u64> = first_ticks.map(|tick| tick.unwrap_or(u64::MAX)).collect();
        let first = writes.iter().copied().min().unwrap_or(0);
        let mut least = first.saturating_add(self.facts.plan.period);
        for write in writes.iter_mut().rev() {
            least = least.min(*write);
            *write = least;
        }
        writes
    }

    /// A tick of a firing of the writer in iteration 0, in the iteration of a firing that is counted over all.
    fn shifted(&self, firing: i128, tick_of: impl FnOnce(u64) -> u64) -> i128 {
        let firings = i128::from(self.facts.firings[self.writer]);
        let tick = tick_of(firing.rem_euclid(firings) as u64);
        let period = i128::from(self.facts.plan.period);
        i128::from(tick) + firing.div_euclid(firings) * period
    }

    fn arrival(&self, firing: u64) -> Option<&Arrival> {
        self.arrivals.get(&Delivery {
            channel: self.buffer.channel,
            to: self.buffer.node,
            firing,
        })
    }

    /// When the tokens of a firing, or of any after it, begin to be written.
    fn write(&self, firing: i128) -> i128 {
        self.shifted(firing, |f| self.writes[f as usize])
    }

    /// When a firing's tokens are there, and have left for other nodes.
    fn complete(&self, firing: i128) -> i128 {
        if self.is_home {
            let channel = self.buffer.channel;
            let sent = self.shifted(firing, |f| {
                let tick = self.last_sends.get(&(channel, f));
                tick.map_or(0, |tick| tick + 1)
            });
            return self.facts.end(self.writer, firing).max(sent);
        }
        self.shifted(firing, |f| self.arrival(f).map_or(0, |a| a.complete))
    }

    /// End of the last firing of a reader that sees a token. Firings of an actor are in order, so that it ends last.
    fn last_reading(&self, reader: &Reader, position: i128) -> i128 {
        let actor = reader.to.actor;
        let port = &self.facts.graph.actors[actor].inputs[reader.to.port as usize];
        let last = (position + i128::from(reader.delay)).div_euclid(port.rate.into());
        self.facts.end(actor, last)
    }
}

/// Counts the frames that are on each node to be sent on, in every tick in which that changes.
fn check_waiting(facts: &Facts<'_>, errors: &mut Errors) {
    let period = facts.plan.period;
    let latency = facts.machine.latency_ticks;
    let mut changes: BTreeMap<NodeId, BTreeMap<u64, i64>> = BTreeMap::new();
    for message in &facts.plan.messages {
        for index in 1..message.hops.len() {
            let (before, after) = (&message.hops[index - 1], &message.hops[index]);
            let node = facts.network.links()[after.link].from;
            let changes = changes.entry(node).or_default();
            for (sent, sent_on) in before.ticks().zip(after.ticks()) {
                // From the tick in which it is taken to the one in which it is sent on, over as many periods as that is.
                let mut from = sent + latency;
                let until = sent_on + 1;
                let whole_periods = (until - from) / period;
                if whole_periods > 0 {
                    *changes.entry(0).or_default() += whole_periods as i64;
                    from += whole_periods * period;
                }
                if from == until {
                    continue;
                }
                *changes.entry(from % period).or_default() += 1;
                *changes.entry(until % period).or_default() -= 1;
                if until % period < from % period {
                    *changes.entry(0).or_default() += 1;
                }
            }
        }
    }
    for node in facts.network.nodes() {
        let mut present = 0_i64;
        let mut needed = 0_i64;
        for change in changes.get(&node).into_iter().flat_map(BTreeMap::values) {
            present += change;
            needed = needed.max(present);
        }
        let found = facts.plan.waiting_frames[node];
        if found < needed as u64 {
            errors.add(TickError::Waiting {
                node,
                found,
                needed: needed as u64,
            });
        }
    }
}

fn check_bytes(facts: &Facts<'_>, errors: &mut Errors) {
    let frame_bytes = facts.machine.frame_bytes();
    let waiting = facts.plan.waiting_frames.iter();
    let waiting = waiting.map(|frames| frames.saturating_mul(frame_bytes));
    let mut bytes: TiVec<NodeId, u64> = waiting.collect();
    for buffer in &facts.plan.buffers {
        let token_bytes = facts.graph.channels[buffer.channel].token.bytes();
        let buffer_bytes = buffer.tokens.saturating_mul(token_bytes);
        bytes[buffer.node] = bytes[buffer.node].saturating_add(buffer_bytes);
    }
    let memory = facts.machine.memory_bytes;
    for (node, &needed) in bytes.iter_enumerated() {
        if needed > memory {
            errors.add(TickError::Memory {
                node,
                needed,
                memory,
            });
        }
    }
}
