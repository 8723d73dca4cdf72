//! What makes no simulation.

use std::collections::BTreeSet;

use zbmd_ticks::{LinkId, Network, NodeId};

use crate::clock::event::{ClockEvent, TimedEvent};
use crate::clock::fault::ClockError;

pub(super) fn check_propagation(network: &Network, propagation: &[f64]) -> Result<(), ClockError> {
    let (found, links) = (propagation.len(), network.links().len());
    if found != links {
        return Err(ClockError::PropagationCount { found, links });
    }
    let wrong = propagation
        .iter()
        .position(|ticks| !(0.0..=1e12).contains(ticks));
    wrong.map_or(Ok(()), |link| {
        let found = propagation[link];
        let link = LinkId::from(link);
        Err(ClockError::Propagation { link, found })
    })
}

pub(super) fn check_events(network: &Network, events: &[TimedEvent]) -> Result<(), ClockError> {
    for (index, &TimedEvent { time, event }) in events.iter().enumerate() {
        let exists = match event {
            ClockEvent::StartNode(node) | ClockEvent::StopNode(node) => {
                node.index() < network.node_count()
            }
            ClockEvent::StartLink(link) | ClockEvent::StopLink(link) => {
                link.index() < network.links().len()
            }
            ClockEvent::CentreBuffers => true,
        };
        let reason = if !exists {
            "it names a node or a link that does not exist"
        } else if !(0.0..=1e15).contains(&time) {
            "its time must be between 0 and 1e15"
        } else {
            continue;
        };
        return Err(ClockError::Event {
            index,
            time,
            reason,
        });
    }
    Ok(())
}

/// Nodes whose first event starts them.
pub(super) fn late_starters(events: &[TimedEvent]) -> BTreeSet<NodeId> {
    let mut in_order: Vec<&TimedEvent> = events.iter().collect();
    in_order.sort_by(|a, b| a.time.total_cmp(&b.time));
    let mut known = BTreeSet::new();
    let mut late = BTreeSet::new();
    for event in in_order {
        match event.event {
            ClockEvent::StartNode(node) if known.insert(node) => _ = late.insert(node),
            ClockEvent::StopNode(node) => _ = known.insert(node),
            _ => (),
        }
    }
    late
}
