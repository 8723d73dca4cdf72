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
    for buffer in &facts.plan.buffers {
        check_places(facts, arrivals, &last_sends, buffer, &mut errors);
    }
    check_waiting(facts, &mut errors);
    check_bytes(facts, &mut errors);
    errors.result()
}

/// One buffer on the writer's node, and one on each other node that has readers.
fn check_buffers(facts: &Facts<'_>) -> Result<(), Vec<TickError>> {
    let mut errors = Errors::default();
    let mut found: BTreeMap<(ChannelId, NodeId), u64> = BTreeMap::new();
    for buffer in &facts.plan.buffers {
        *found.entry((buffer.channel, buffer.node)).or_default() += 1;
    }
    for (channel, ch) in facts.graph.channels.iter_enumerated() {
        let mut nodes = facts.remote_nodes(channel);
        nodes.push(facts.node_of(ch.from.actor));
        for node in nodes {
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

/// A buffer, and what decides how long tokens stay in it.
struct Places<'a> {
    facts: &'a Facts<'a>,
    arrivals: &'a Arrivals,
    last_sends: &'a LastSends,
    buffer: TickBuffer,
    writer: ActorId,
    is_home: bool,
}

/// No token of a buffer is written over before it was read by all readers on the node, and sent.
fn check_places(
    facts: &Facts<'_>,
    arrivals: &Arrivals,
    last_sends: &LastSends,
    buffer: &TickBuffer,
    errors: &mut Errors,
) {
    let &TickBuffer {
        channel,
        node,
        tokens,
    } = buffer;
    let ch = &facts.graph.channels[channel];
    let writer = ch.from.actor;
    let readers = ch.readers.iter();
    let readers: Vec<&Reader> = readers
        .filter(|reader| facts.node_of(reader.to.actor) == node)
        .collect();
    let initial = readers.iter().map(|reader| reader.delay).max().unwrap_or(0);
    let needed = initial.max(1);
    if tokens < needed {
        errors.add(TickError::Initial {
            channel,
            node,
            tokens,
            needed,
        });
        return;
    }

    let places = Places {
        facts,
        arrivals,
        last_sends,
        buffer: *buffer,
        writer,
        is_home: facts.node_of(writer) == node,
    };
    let rate = i128::from(facts.rate(channel));
    for position in 0..rate * i128::from(facts.firings[writer]) {
        let mut needed_until = places.complete(position.div_euclid(rate));
        for reader in &readers {
            needed_until = needed_until.max(places.last_reading(reader, position));
        }
        let next = position + i128::from(tokens);
        let written = places.write(next.div_euclid(rate));
        if written < needed_until {
            errors.add(TickError::Overwritten {
                channel,
                node,
                position: position as u64,
                needed_until,
                written,
            });
            return;
        }
    }
}

impl Places<'_> {
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

    /// When a firing's tokens begin to be written.
    fn write(&self, firing: i128) -> i128 {
        if self.is_home {
            return self.facts.start(self.writer, firing);
        }
        self.shifted(firing, |f| self.arrival(f).map_or(0, |a| a.first))
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
