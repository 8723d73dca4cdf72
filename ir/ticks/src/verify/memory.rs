//! Places of tokens and frames.

use std::collections::BTreeMap;

use zbmd_ir::{ChannelId, TiVec};

use super::messages::{Arrivals, Delivery};
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
    let is_home = facts.node_of(writer) == node;
    let rate = i128::from(facts.rate(channel));
    let firings = i128::from(facts.firings[writer]);
    let period = i128::from(facts.plan.period);
    let readers: Vec<_> = ch
        .readers
        .iter()
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

    let arrival_of = |firing: i128| {
        let delivery = Delivery {
            channel,
            to: node,
            firing: firing.rem_euclid(firings) as u64,
        };
        arrivals.get(&delivery)
    };
    let write_of = |firing: i128| {
        if is_home {
            return facts.start(writer, firing);
        }
        let first = arrival_of(firing).map_or(0, |arrival| arrival.first);
        i128::from(first) + firing.div_euclid(firings) * period
    };
    let complete_of = |firing: i128| {
        if is_home {
            let index = firing.rem_euclid(firings) as u64;
            let sent = last_sends.get(&(channel, index)).map_or(0, |tick| tick + 1);
            let sent = i128::from(sent) + firing.div_euclid(firings) * period;
            return facts.end(writer, firing).max(sent);
        }
        let complete = arrival_of(firing).map_or(0, |arrival| arrival.complete);
        i128::from(complete) + firing.div_euclid(firings) * period
    };
    for position in 0..rate * firings {
        let mut needed_until = complete_of(position.div_euclid(rate));
        for reader in &readers {
            let actor = reader.to.actor;
            let port = &facts.graph.actors[actor].inputs[reader.to.port as usize];
            // Firings of an actor are in order, so that the last one that sees the token ends last.
            let last = (position + i128::from(reader.delay)).div_euclid(port.rate.into());
            needed_until = needed_until.max(facts.end(actor, last));
        }
        let next = position + i128::from(tokens);
        let written = write_of(next.div_euclid(rate));
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
