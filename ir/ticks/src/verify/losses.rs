//! Plans for losses use nothing of what is lost.

use super::{Errors, Facts, TickError};
use crate::{LinkId, TickLoss};

pub(super) fn check(facts: &Facts<'_>, lost: TickLoss) -> Result<(), Vec<TickError>> {
    let network = facts.network;
    let is_known = match lost {
        TickLoss::Node(node) => node.index() < network.node_count(),
        TickLoss::Link(link) => link.index() < network.links().len(),
    };
    if !is_known {
        return Err(vec![TickError::UnknownLoss { lost }]);
    }

    let mut errors = Errors::default();
    for (actor, &node) in facts.plan.placement.iter_enumerated() {
        if lost == TickLoss::Node(node) {
            errors.add(TickError::LostNode { actor, lost: node });
        }
    }
    for message in &facts.plan.messages {
        for hop in &message.hops {
            if is_lost(facts, lost, hop.link) {
                errors.add(TickError::LostLink {
                    channel: message.channel,
                    firing: message.firing,
                    link: hop.link,
                    lost,
                });
            }
        }
    }
    errors.result()
}

/// By the ends of links, whichever of its two directions a lost link is named by.
fn is_lost(facts: &Facts<'_>, lost: TickLoss, link: LinkId) -> bool {
    let ends = facts.network.links()[link];
    match lost {
        TickLoss::Node(node) => [ends.from, ends.to].contains(&node),
        TickLoss::Link(gone) => {
            let gone = facts.network.links()[gone];
            [(gone.from, gone.to), (gone.to, gone.from)].contains(&(ends.from, ends.to))
        }
    }
}
