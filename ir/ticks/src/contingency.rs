//! Losses of nodes and links, and the plans that run then.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use zbmd_ir::Graph;

use crate::verify::{TickError, check_kept, verify_without};
use crate::{LinkEnds, LinkId, Network, NodeId, TickMachine, TickPlan, VerifiedPlan};

/// A part of a machine that is lost for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TickLoss {
    /// A node with all its links.
    Node(NodeId),
    /// A link with the one in the other direction: clocks are controlled by both. Named by the lower of the two ids.
    Link(LinkId),
}

impl TickLoss {
    /// The loss of a link, by either of its directions.
    pub fn of_link(network: &Network, link: LinkId) -> Self {
        let reverse = network.reverse(link).unwrap_or(link);
        Self::Link(link.min(reverse))
    }

    /// Every loss of one node and of one link; nodes first, ascending.
    pub fn singles(network: &Network) -> Vec<Self> {
        let nodes = network.nodes().map(Self::Node);
        let links = network.links().keys();
        let links: BTreeSet<Self> = links.map(|link| Self::of_link(network, link)).collect();
        nodes.chain(links).collect()
    }

    /// Whether a link is gone with this loss.
    pub fn takes_link(self, network: &Network, link: LinkId) -> bool {
        let LinkEnds { from, to } = network.links()[link];
        match self {
            Self::Node(node) => node == from || node == to,
            Self::Link(_) => Self::of_link(network, link) == self,
        }
    }

    /// Whether a plan of the machine places an actor on, or sends a frame over, what is lost. O(actors + hops).
    ///
    /// # Panics
    /// If the plan names links that the network does not have.
    pub fn is_used_by(self, plan: &TickPlan, network: &Network) -> bool {
        let is_placed_on = |node: &NodeId| self == Self::Node(*node);
        let mut hops = plan.messages.iter().flat_map(|message| &message.hops);
        plan.placement.iter().any(is_placed_on)
            || hops.any(|hop| self.takes_link(network, hop.link))
    }
}

impl std::fmt::Display for TickLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(node) => node.fmt(f),
            Self::Link(link) => link.fmt(f),
        }
    }
}

/// The plan for one loss.
#[derive(Clone, Debug, PartialEq)]
pub struct TickContingency {
    /// What is lost.
    pub lost: TickLoss,
    /// What runs then.
    pub plan: VerifiedPlan,
}

/// Why a table of plans is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct ContingencyError {
    /// The loss whose plan is wrong; `None` if the main plan is.
    pub lost: Option<TickLoss>,
    /// What is wrong with it.
    pub errors: Vec<TickError>,
}

impl ContingencyError {
    fn new(lost: Option<TickLoss>, errors: Vec<TickError>) -> Self {
        Self { lost, errors }
    }
}

impl std::error::Error for ContingencyError {}

impl std::fmt::Display for ContingencyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.lost {
            Some(lost) => write!(f, "the plan for the loss of {lost} is wrong")?,
            None => write!(f, "the plan of the whole machine is wrong")?,
        }
        self.errors
            .iter()
            .try_for_each(|error| write!(f, ": {error}"))
    }
}

/// The plan of the whole machine and those for losses. A loss of what a plan does not use leaves that plan as it is, so
/// that only losses of used parts have entries.
#[derive(Clone, Debug, PartialEq)]
pub struct TickContingencies {
    main: VerifiedPlan,
    list: Vec<TickContingency>,
}

impl TickContingencies {
    /// Verifies the plans for losses; the main plan has been verified for the same graph and machine. All of them keep
    /// each border on two nodes, unless there is only one.
    ///
    /// # Errors
    /// What is wrong with the main plan, or with the first plan for a loss that is wrong.
    pub fn verify(
        graph: &Graph,
        machine: &TickMachine,
        main: VerifiedPlan,
        plans: Vec<(TickLoss, TickPlan)>,
    ) -> Result<Self, ContingencyError> {
        let of_main = |error: TickError| ContingencyError::new(None, vec![error]);
        let network = machine.network().map_err(|e| of_main(e.into()))?;
        check_kept(graph, &network, &main).map_err(of_main)?;
        let mut list = Vec::with_capacity(plans.len());
        for (lost, plan) in plans {
            let refused = |errors: Vec<TickError>| ContingencyError::new(Some(lost), errors);
            let plan = verify_without(graph, machine, lost, plan).map_err(refused)?;
            let rest = network.without(&[lost]);
            check_kept(graph, &rest, &plan).map_err(|error| refused(vec![error]))?;
            list.push(TickContingency { lost, plan });
        }
        Ok(Self { main, list })
    }

    /// The plan of the whole machine.
    pub fn main(&self) -> &VerifiedPlan {
        &self.main
    }

    /// The plans for losses.
    pub fn list(&self) -> &[TickContingency] {
        &self.list
    }

    /// The plan for several losses at once: of those that use nothing of what is lost, the one with the shortest period;
    /// the first of them. There is one for every single loss that has an entry, and often for several. O(plans * hops).
    pub fn find(&self, network: &Network, lost: &[TickLoss]) -> Option<&VerifiedPlan> {
        let plans = self.list.iter().map(|entry| &entry.plan);
        let plans = std::iter::once(&self.main).chain(plans);
        let usable = plans.filter(|plan| !lost.iter().any(|loss| loss.is_used_by(plan, network)));
        usable.min_by_key(|plan| plan.period)
    }
}
