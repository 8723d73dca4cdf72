//! Frames on links.

use std::collections::BTreeMap;

use zbmd_ir::ChannelId;

use super::{Errors, Facts, MAX_EVENTS, MAX_TICK, Receiver, TickError};
use crate::{Hop, LinkId, Message, NodeId};

/// The tokens of a firing of a channel's writer, on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Delivery {
    pub(super) channel: ChannelId,
    pub(super) to: NodeId,
    pub(super) firing: u64,
}

/// When a delivery's frames come, in ticks of the receiving node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// The tick in which the first is taken.
    pub(super) first: u64,
    /// The tick from which on all are in memory.
    pub(super) complete: u64,
}

pub(super) type Arrivals = BTreeMap<Delivery, Arrival>;

pub(super) fn check(facts: &Facts<'_>) -> Result<Arrivals, Vec<TickError>> {
    check_sizes(facts).map_err(|error| vec![error])?;
    let mut errors = Errors::default();
    let mut arrivals = Arrivals::new();
    let mut doubled: BTreeMap<Delivery, u64> = BTreeMap::new();
    for message in &facts.plan.messages {
        let delivery = Delivery {
            channel: message.channel,
            to: message.to,
            firing: message.firing,
        };
        match check_message(facts, message) {
            Ok(arrival) => {
                if arrivals.insert(delivery, arrival).is_some() {
                    *doubled.entry(delivery).or_insert(1) += 1;
                }
            }
            Err(error) => errors.add(error),
        }
    }
    errors.result()?;
    check_completeness(facts, &arrivals, &doubled)?;
    check_links(facts)?;
    Ok(arrivals)
}

/// Ids and sizes, so that the rest may index and count.
fn check_sizes(facts: &Facts<'_>) -> Result<(), TickError> {
    let mut frames = 0_u64;
    for message in &facts.plan.messages {
        let unknown = |what: &'static str, id: String| Err(TickError::UnknownId { what, id });
        let Some(channel) = facts.graph.channels.get(message.channel) else {
            return unknown("a message", message.channel.to_string());
        };
        if message.firing >= facts.firings[channel.from.actor] {
            return unknown("a message", format!("firing {}", message.firing));
        }
        if message.to.index() >= facts.network.node_count() {
            return unknown("a message", message.to.to_string());
        }
        for hop in &message.hops {
            if hop.link.index() >= facts.network.links().len() {
                return unknown("a hop", hop.link.to_string());
            }
            for run in &hop.runs {
                frames = frames.saturating_add(run.frames);
                let last = run.start.saturating_add(run.frames);
                if last > MAX_TICK {
                    return Err(TickError::TooLarge {
                        what: "ticks",
                        found: last,
                        max: MAX_TICK,
                    });
                }
            }
        }
    }
    if frames > MAX_EVENTS {
        return Err(TickError::TooLarge {
            what: "frames",
            found: frames,
            max: MAX_EVENTS,
        });
    }
    Ok(())
}

/// Follows a message's frames from link to link.
fn check_message(facts: &Facts<'_>, message: &Message) -> Result<Arrival, TickError> {
    let &Message {
        channel,
        firing,
        to,
        ..
    } = message;
    let ch = &facts.graph.channels[channel];
    let bytes = facts.rate(channel).saturating_mul(ch.token.bytes());
    let needed = facts.machine.frames_of(bytes);

    let mut node = facts.node_of(ch.from.actor);
    let written = facts.end(ch.from.actor, firing.into()) as u64;
    // From when on each frame can be sent on; no entries before the first hop has shown as many frames.
    let mut ready = Vec::new();
    for hop in &message.hops {
        let link = hop.link;
        let ends = facts.network.links()[link];
        if ends.from != node {
            return Err(TickError::Way {
                channel,
                firing,
                to,
                link,
                found: ends.from,
                needed: node,
            });
        }
        let found = hop.frames();
        if found != needed {
            return Err(TickError::Frames {
                channel,
                firing,
                link,
                found,
                needed,
            });
        }
        ready.resize(needed as usize, written);
        check_hop(facts, message, hop, &mut ready)?;
        node = ends.to;
    }
    if node != to {
        return Err(TickError::Destination {
            channel,
            firing,
            to,
            found: node,
        });
    }
    Ok(Arrival {
        first: ready.first().map_or(written, |ready| ready - 1),
        complete: ready.last().copied().unwrap_or(written),
    })
}

/// Frames of a hop are sent in order, and not before they are there; moves on from when on each can be sent.
fn check_hop(
    facts: &Facts<'_>,
    message: &Message,
    hop: &Hop,
    ready: &mut [u64],
) -> Result<(), TickError> {
    let mut least = 0;
    for ((frame, tick), ready) in (0..).zip(hop.ticks()).zip(ready) {
        let possible = (*ready).max(least);
        if tick < possible {
            return Err(TickError::FrameEarly {
                channel: message.channel,
                firing: message.firing,
                link: hop.link,
                frame,
                tick,
                ready: possible,
            });
        }
        least = tick + 1;
        *ready = tick + facts.machine.latency_ticks + 1;
    }
    Ok(())
}

/// Every firing's tokens go once to each node that needs them, and to no other.
fn check_completeness(
    facts: &Facts<'_>,
    arrivals: &Arrivals,
    doubled: &BTreeMap<Delivery, u64>,
) -> Result<(), Vec<TickError>> {
    let mut errors = Errors::default();
    let mut report = |delivery: Delivery, found: u64, needed: u64| {
        errors.add(TickError::Messages {
            channel: delivery.channel,
            firing: delivery.firing,
            to: delivery.to,
            found,
            needed,
        });
    };
    for (&delivery, &found) in doubled {
        report(delivery, found, 1);
    }

    let mut needed = 0;
    for (channel, ch) in facts.graph.channels.iter_enumerated() {
        for receiver in facts.receivers(channel) {
            for firing in 0..facts.firings[ch.from.actor] {
                if !is_needed(facts, channel, receiver, firing) {
                    continue;
                }
                needed += 1;
                let delivery = Delivery {
                    channel,
                    to: receiver.node,
                    firing,
                };
                if !arrivals.contains_key(&delivery) {
                    report(delivery, 0, 1);
                }
            }
        }
    }

    if arrivals.len() > needed {
        for &delivery in arrivals.keys() {
            let Delivery {
                channel,
                to,
                firing,
            } = delivery;
            let mut receivers = facts.receivers(channel).into_iter();
            let receiver = receivers.find(|receiver| receiver.node == to);
            if !receiver.is_some_and(|receiver| is_needed(facts, channel, receiver, firing)) {
                report(delivery, 1, 0);
            }
        }
    }
    errors.result()
}

fn is_needed(facts: &Facts<'_>, channel: ChannelId, receiver: Receiver, firing: u64) -> bool {
    receiver.has_readers || facts.is_in_border(channel, firing)
}

fn check_links(facts: &Facts<'_>) -> Result<(), Vec<TickError>> {
    let hops = facts.plan.messages.iter().flat_map(|message| {
        let hops = message.hops.iter();
        hops.map(|hop| (message.channel, hop))
    });
    let uses = hops.flat_map(|(channel, hop)| {
        let ticks = hop.ticks();
        ticks.map(move |tick| (hop.link, tick % facts.plan.period, channel))
    });
    let mut uses: Vec<(LinkId, u64, ChannelId)> = uses.collect();
    uses.sort_unstable();

    let mut errors = Errors::default();
    for pair in uses.windows(2) {
        let ((link, tick, _), (other_link, other_tick, channel)) = (pair[0], pair[1]);
        if link == other_link && tick == other_tick {
            errors.add(TickError::LinkBusy {
                link,
                tick,
                channel,
            });
        }
    }
    errors.result()
}
