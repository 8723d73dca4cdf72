//! Which node keeps the border of each channel, beside the node of its writer.
//!
//! After any one loss some part of the network must have all borders. In a network that no loss divides, the writer's
//! node and any other one do: the nearest costs the fewest frames. In one that a loss divides, one node, whose own loss
//! divides nothing, keeps all borders that are not written on it: the part that it is in has all of them.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::articulation_points::articulation_points;
use petgraph::graph::{NodeIndex, UnGraph};
use zbmd_ir::{ActorId, ChannelId, TiVec};
use zbmd_ticks::{BorderCopy, LinkId, Network, NodeId};

use crate::problem::Problem;
use crate::route::hops_from;

/// Where copies may be.
#[derive(Clone, Debug)]
pub(crate) enum CopyRule {
    /// There are none: losses end a run, or there is only one node.
    None,
    /// On the nearest node.
    Nearest,
    /// On one of these nodes, the same for all channels.
    OneOf(Vec<NodeId>),
}

impl CopyRule {
    /// The rule that keeps all borders together after a loss, for a network of which some nodes are used.
    pub(crate) fn for_losses(network: &Network, nodes: &[NodeId]) -> Self {
        if nodes.len() < 2 {
            return Self::None;
        }
        let mut graph: UnGraph<(), ()> = UnGraph::default();
        for _ in network.nodes() {
            graph.add_node(());
        }
        let used: BTreeSet<NodeId> = nodes.iter().copied().collect();
        for ends in network.links() {
            // Links go both ways.
            if ends.from < ends.to && used.contains(&ends.from) {
                let (from, to) = (ends.from.index(), ends.to.index());
                graph.add_edge(NodeIndex::new(from), NodeIndex::new(to), ());
            }
        }
        let dividing = articulation_points(&graph);
        if dividing.is_empty() && nodes.len() > 2 {
            return Self::Nearest;
        }
        let is_safe = |node: &&NodeId| !dividing.contains(&NodeIndex::new(node.index()));
        Self::OneOf(nodes.iter().filter(is_safe).copied().collect())
    }
}

/// The copies of all borders, for a placement.
pub(crate) fn copies(problem: &Problem<'_>, placement: &TiVec<ActorId, NodeId>) -> Vec<BorderCopy> {
    if matches!(problem.copy_rule, CopyRule::None) {
        return Vec::new();
    }
    let mut chooser = Chooser {
        problem,
        placement,
        used: placement.iter().copied().collect(),
        hops: BTreeMap::new(),
    };
    let streams = problem.streams.iter_enumerated();
    let channels: Vec<ChannelId> = streams
        .filter_map(|(channel, stream)| (stream.border > 0).then_some(channel))
        .collect();
    let one_node = match &problem.copy_rule {
        CopyRule::OneOf(nodes) => chooser.cheapest(&channels, nodes),
        CopyRule::None | CopyRule::Nearest => None,
    };
    let copies = channels.into_iter().filter_map(|channel| {
        let home = placement[problem.streams[channel].writer];
        let node = match one_node.filter(|&node| node != home) {
            Some(node) => node,
            None => chooser.nearest(channel)?,
        };
        Some(BorderCopy { channel, node })
    });
    copies.collect()
}

struct Chooser<'a> {
    problem: &'a Problem<'a>,
    placement: &'a TiVec<ActorId, NodeId>,
    /// Nodes with actors.
    used: BTreeSet<NodeId>,
    /// Hops from the nodes of writers.
    hops: BTreeMap<NodeId, TiVec<NodeId, u16>>,
}

impl Chooser<'_> {
    fn home(&self, channel: ChannelId) -> NodeId {
        self.placement[self.problem.streams[channel].writer]
    }

    fn hops(&mut self, from: NodeId) -> &TiVec<NodeId, u16> {
        let network = self.problem.network;
        self.hops
            .entry(from)
            .or_insert_with(|| hops_from(network, from))
    }

    /// Frames times hops that a copy of a channel's border on a node costs beside what is sent there anyway.
    fn cost(&mut self, channel: ChannelId, node: NodeId) -> u64 {
        let stream = &self.problem.streams[channel];
        let mut readers = stream.readers.iter();
        if readers.any(|&reader| self.placement[reader] == node) {
            return 0;
        }
        let firings = stream.border.min(stream.tokens).div_ceil(stream.rate);
        let frames = firings * stream.frames;
        let home = self.home(channel);
        frames * u64::from(self.hops(home)[node])
    }

    /// The node that is cheapest for all channels together.
    fn cheapest(&mut self, channels: &[ChannelId], nodes: &[NodeId]) -> Option<NodeId> {
        let mut best: Option<(u64, bool, NodeId)> = None;
        for &node in nodes {
            let costs = channels.iter().map(|&channel| self.cost(channel, node));
            let key = (costs.sum(), !self.used.contains(&node), node);
            best = Some(best.map_or(key, |other| other.min(key)));
        }
        best.map(|(.., node)| node)
    }

    /// The cheapest node for one channel, rather one that has actors: the loss of any other is no loss then.
    fn nearest(&mut self, channel: ChannelId) -> Option<NodeId> {
        let home = self.home(channel);
        let mut candidates = self.used.clone();
        let links = self.problem.network.outgoing(home).iter();
        let neighbour = |&link: &LinkId| self.problem.network.links()[link].to;
        candidates.extend(links.map(neighbour));
        candidates.remove(&home);
        let costs = candidates.into_iter().map(|node| {
            let is_unused = !self.used.contains(&node);
            (self.cost(channel, node), is_unused, node)
        });
        costs.min().map(|(.., node)| node)
    }
}
