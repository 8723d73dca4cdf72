//! Period, placement and starts.

use zbmd_ir::ActorId;

use super::{Errors, Facts, MAX_EVENTS, MAX_TICK, MAX_TOKENS, TickError};
use crate::NodeId;

pub(super) fn check(facts: &Facts<'_>) -> Result<(), Vec<TickError>> {
    check_counts(facts).map_err(|error| vec![error])?;
    check_order(facts)?;
    check_nodes(facts)
}

fn check_counts(facts: &Facts<'_>) -> Result<(), TickError> {
    let plan = facts.plan;
    if plan.period == 0 {
        return Err(TickError::NoPeriod);
    }
    let lists = [
        ("placement", plan.placement.len(), facts.graph.actors.len()),
        ("starts", plan.starts.len(), facts.graph.actors.len()),
        (
            "waiting frames",
            plan.waiting_frames.len(),
            facts.network.node_count(),
        ),
    ];
    for (what, found, needed) in lists {
        if found != needed {
            return Err(TickError::Count {
                what,
                found: found as u64,
                needed: needed as u64,
            });
        }
    }

    let mut latest = plan.period;
    for (actor, starts) in plan.starts.iter_enumerated() {
        let node = plan.placement[actor];
        if node.index() >= facts.network.node_count() {
            return Err(TickError::UnknownId {
                what: "placement",
                id: node.to_string(),
            });
        }
        let (found, needed) = (starts.len() as u64, facts.firings[actor]);
        if found != needed {
            return Err(TickError::Firings {
                actor,
                found,
                needed,
            });
        }
        latest = latest.max(starts.iter().copied().max().unwrap_or(0));
    }
    let total = facts
        .firings
        .iter()
        .fold(0, |sum: u64, &q| sum.saturating_add(q));
    let tokens = facts.graph.channels.iter_enumerated().map(|(channel, ch)| {
        facts
            .rate(channel)
            .saturating_mul(facts.firings[ch.from.actor])
    });
    let tokens = tokens.fold(0, u64::saturating_add);
    let sizes = [
        ("ticks", latest, MAX_TICK),
        ("firings", total, MAX_EVENTS),
        ("tokens", tokens, MAX_TOKENS),
    ];
    let too_large = sizes.into_iter().find(|&(_, found, max)| found > max);
    too_large.map_or(Ok(()), |(what, found, max)| {
        Err(TickError::TooLarge { what, found, max })
    })
}

/// Firings of an actor are in order, and the next iteration's come after all of this one's.
fn check_order(facts: &Facts<'_>) -> Result<(), Vec<TickError>> {
    let mut errors = Errors::default();
    for actor in facts.graph.actors.keys() {
        for firing in 0..facts.firings[actor] {
            let start = facts.start(actor, firing.into());
            let end = facts.end(actor, i128::from(firing) - 1);
            if start < end {
                errors.add(TickError::Order {
                    actor,
                    firing,
                    start,
                    end,
                });
            }
        }
    }
    errors.result()
}

/// Ticks of the period in which a node runs a firing; one that goes over the end of the period is two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BusySpan {
    node: NodeId,
    from: u64,
    until: u64,
    actor: ActorId,
}

fn check_nodes(facts: &Facts<'_>) -> Result<(), Vec<TickError>> {
    let period = facts.plan.period;
    let mut spans = Vec::new();
    let mut errors = Errors::default();
    for (actor, starts) in facts.plan.starts.iter_enumerated() {
        let (node, duration) = (facts.node_of(actor), facts.durations[actor]);
        for start in starts {
            let from = start % period;
            if duration > period {
                errors.add(TickError::NodeBusy {
                    node,
                    first: actor,
                    second: actor,
                    tick: from,
                });
                continue;
            }
            let until = from + duration;
            spans.push(BusySpan {
                node,
                from,
                until: until.min(period),
                actor,
            });
            if until > period {
                spans.push(BusySpan {
                    node,
                    from: 0,
                    until: until - period,
                    actor,
                });
            }
        }
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        if first.node == second.node && second.from < first.until {
            errors.add(TickError::NodeBusy {
                node: first.node,
                first: first.actor,
                second: second.actor,
                tick: second.from,
            });
        }
    }
    errors.result()
}
