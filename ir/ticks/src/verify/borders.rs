//! Copies of what iterations leave to later ones.

use std::collections::BTreeMap;

use zbmd_ir::{ChannelId, Graph};

use super::{Errors, Facts, TickError};
use crate::{Network, TickPlan};

/// No copies at all, or one of each border, on another node than the writer's.
pub(super) fn check(facts: &Facts<'_>) -> Result<(), Vec<TickError>> {
    let channels = &facts.graph.channels;
    let mut found: BTreeMap<ChannelId, u64> = BTreeMap::new();
    let mut errors = Errors::default();
    for copy in &facts.plan.copies {
        let Some(channel) = channels.get(copy.channel) else {
            errors.add(unknown(copy.channel.to_string()));
            continue;
        };
        if copy.node.index() >= facts.network.node_count() {
            errors.add(unknown(copy.node.to_string()));
        } else if copy.node == facts.node_of(channel.from.actor) {
            errors.add(TickError::CopyAtHome {
                channel: copy.channel,
                node: copy.node,
            });
        }
        *found.entry(copy.channel).or_default() += 1;
    }
    errors.result()?;
    if found.is_empty() {
        return Ok(());
    }

    let mut errors = Errors::default();
    for (channel, ch) in channels.iter_enumerated() {
        let found = found.get(&channel).copied().unwrap_or(0);
        let needed = u64::from(ch.history() > 0);
        if found != needed {
            errors.add(TickError::Copies {
                channel,
                found,
                needed,
            });
        }
    }
    errors.result()
}

fn unknown(id: String) -> TickError {
    let what = "a copy";
    TickError::UnknownId { what, id }
}

/// Refuses a plan that loses a border with one node, where there is a second node that could keep it. The plan has passed
/// its verification.
pub(crate) fn check_kept(
    graph: &Graph,
    network: &Network,
    plan: &TickPlan,
) -> Result<(), TickError> {
    let has_neighbours = |&node| !network.outgoing(node).is_empty();
    if !plan.copies.is_empty() || !plan.placement.iter().any(has_neighbours) {
        return Ok(());
    }
    let mut channels = graph.channels.iter_enumerated();
    let lost = channels.find(|(_, ch)| ch.history() > 0);
    lost.map_or(Ok(()), |(channel, _)| {
        Err(TickError::Copies {
            channel,
            found: 0,
            needed: 1,
        })
    })
}
