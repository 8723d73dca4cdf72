//! Plans for when nodes or links are lost.

use std::collections::BTreeSet;

use zbmd_ir::{ChannelId, Graph, TiVec};
use zbmd_ticks::{Network, NodeId, TickLoss, TickMachine, TickPlan};

use crate::copies::CopyRule;
use crate::route::hops_from;
use crate::{TickSchedule, TickScheduleError, schedule_on};

/// The plan for one loss, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct LossSchedule {
    /// What is lost.
    pub lost: TickLoss,
    /// What runs then.
    pub result: Result<TickSchedule, TickScheduleError>,
}

/// Makes a plan for the loss of each node and of each link that the main plan uses; without any other the main plan goes
/// on. Where a loss divides the network, the largest part is used that has all borders. All plans have copies of borders,
/// as the main plan has ([`schedule_with_copies`](crate::schedule_with_copies)).
///
/// # Errors
/// Only if the machine makes no sense; losses without a plan say so themselves.
pub fn contingencies(
    graph: &Graph,
    machine: &TickMachine,
    main: &TickPlan,
) -> Result<Vec<LossSchedule>, TickScheduleError> {
    let network = machine.network()?;
    let losses = TickLoss::singles(&network).into_iter();
    let used = losses.filter(|lost| lost.is_used_by(main, &network));
    let keepers = keepers(main, graph);
    let schedules = used.map(|lost| LossSchedule {
        lost,
        result: schedule_without(graph, machine, &network, lost, &keepers),
    });
    Ok(schedules.collect())
}

fn schedule_without(
    graph: &Graph,
    machine: &TickMachine,
    network: &Network,
    lost: TickLoss,
    keepers: &[BTreeSet<NodeId>],
) -> Result<TickSchedule, TickScheduleError> {
    let rest = network.without(&[lost]);
    let has_borders = |part: &[NodeId]| {
        let mut keepers = keepers.iter();
        keepers.all(|nodes| part.iter().any(|node| nodes.contains(node)))
    };
    let nodes = largest_part(parts(&rest, Some(lost)), has_borders)?;
    let rule = CopyRule::for_losses(&rest, &nodes);
    schedule_on(graph, machine, &rest, nodes, rule)
}

/// For each copied border the nodes that keep it.
fn keepers(plan: &TickPlan, graph: &Graph) -> Vec<BTreeSet<NodeId>> {
    let home = |channel: ChannelId| plan.placement[graph.channels[channel].from.actor];
    let copies = plan.copies.iter();
    copies
        .map(|copy| BTreeSet::from([copy.node, home(copy.channel)]))
        .collect()
}

/// The nodes that can still reach each other after a loss: each part ascending, by the lowest node.
pub(crate) fn parts(network: &Network, lost: Option<TickLoss>) -> Vec<Vec<NodeId>> {
    let mut parts = Vec::new();
    let mut is_known: TiVec<NodeId, bool> = vec![false; network.node_count()].into();
    for first in network.nodes() {
        if is_known[first] || lost == Some(TickLoss::Node(first)) {
            continue;
        }
        let hops = hops_from(network, first);
        let reached = hops.iter_enumerated().filter(|(_, hops)| **hops < u16::MAX);
        let part: Vec<NodeId> = reached.map(|(node, _)| node).collect();
        part.iter().for_each(|&node| is_known[node] = true);
        parts.push(part);
    }
    parts
}

/// The part with the most nodes of those that will do; of parts that are equally large, the one with the lowest node.
pub(crate) fn largest_part(
    parts: Vec<Vec<NodeId>>,
    will_do: impl Fn(&[NodeId]) -> bool,
) -> Result<Vec<NodeId>, TickScheduleError> {
    if parts.is_empty() {
        return Err(TickScheduleError::NoNode);
    }
    let parts = parts.into_iter().filter(|part| will_do(part));
    let largest = parts.min_by_key(|part| std::cmp::Reverse(part.len()));
    largest.ok_or(TickScheduleError::DividedBorders)
}
