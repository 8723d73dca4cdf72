//! Nodes and the links between them.

use serde::{Deserialize, Serialize};
use zbmd_ir::{TiVec, id_type};

use crate::TickLoss;

id_type!(/// A node of a [`Network`].
    NodeId, "n");
id_type!(/// A one-way link of a [`Network`].
    LinkId, "l");

/// Most nodes of a network.
pub(crate) const MAX_NODES: u64 = 1 << 20;
/// Most one-way links of a network.
pub(crate) const MAX_LINKS: u64 = 1 << 23;

/// Where a one-way link begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LinkEnds {
    /// The node that sends a frame in every tick.
    pub from: NodeId,
    /// The node that takes a frame in every tick.
    pub to: NodeId,
}

/// Why links make no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// A network without nodes, or with too many.
    #[error("a network of {nodes} nodes: there must be between 1 and {max}", max = MAX_NODES)]
    NodeCount {
        /// Nodes that were asked for.
        nodes: u64,
    },
    /// Too many links.
    #[error("{links} one-way links: at most {max} are allowed", max = MAX_LINKS)]
    LinkCount {
        /// Links that were asked for.
        links: u64,
    },
    /// A link names a node that does not exist.
    #[error("{link} goes from {from} to {to}, but there are only {nodes} nodes", from = ends.from, to = ends.to)]
    UnknownNode {
        /// The link.
        link: LinkId,
        /// Its ends.
        ends: LinkEnds,
        /// Nodes of the network.
        nodes: u32,
    },
    /// A link from a node to itself.
    #[error("{link} goes from {node} to itself")]
    SelfLink {
        /// The link.
        link: LinkId,
        /// The node.
        node: NodeId,
    },
    /// A link without one in the other direction: clock control needs both.
    #[error("{link} goes from {from} to {to}, and none goes back: add it", from = ends.from, to = ends.to)]
    OneWay {
        /// The link.
        link: LinkId,
        /// Its ends.
        ends: LinkEnds,
    },
    /// Two links with the same ends.
    #[error("two links go from {from} to {to}: remove one", from = ends.from, to = ends.to)]
    Doubled {
        /// Their ends.
        ends: LinkEnds,
    },
    /// Some node cannot be reached.
    #[error("{node} cannot be reached from n0: connect it")]
    Unconnected {
        /// The first such node.
        node: NodeId,
    },
}

/// Nodes, and one-way links between them: for each link there is one in the other direction, at most one link goes from
/// one node to another, and every node can be reached from every other; [`Network::without`] may break the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    links: TiVec<LinkId, LinkEnds>,
    /// Incoming links of each node, ascending.
    incoming: TiVec<NodeId, Vec<LinkId>>,
    /// Outgoing links of each node, ascending.
    outgoing: TiVec<NodeId, Vec<LinkId>>,
}

impl Network {
    /// A network of these links.
    ///
    /// # Errors
    /// See [`NetworkError`].
    pub fn new(node_count: u32, links: Vec<LinkEnds>) -> Result<Self, NetworkError> {
        let nodes = u64::from(node_count);
        if nodes == 0 || nodes > MAX_NODES {
            return Err(NetworkError::NodeCount { nodes });
        }
        if links.len() as u64 > MAX_LINKS {
            let links = links.len() as u64;
            return Err(NetworkError::LinkCount { links });
        }

        let mut network = Self {
            links: links.into(),
            incoming: vec![Vec::new(); node_count as usize].into(),
            outgoing: vec![Vec::new(); node_count as usize].into(),
        };
        for (link, &ends) in network.links.iter_enumerated() {
            if ends.from.0 >= node_count || ends.to.0 >= node_count {
                let nodes = node_count;
                return Err(NetworkError::UnknownNode { link, ends, nodes });
            }
            if ends.from == ends.to {
                let node = ends.from;
                return Err(NetworkError::SelfLink { link, node });
            }
            network.incoming[ends.to].push(link);
            network.outgoing[ends.from].push(link);
        }
        network.check_pairs()?;
        network.check_connection()?;
        Ok(network)
    }

    fn check_pairs(&self) -> Result<(), NetworkError> {
        let mut sorted = self.links.raw.clone();
        sorted.sort_unstable();
        for pair in sorted.windows(2) {
            if pair[0] == pair[1] {
                return Err(NetworkError::Doubled { ends: pair[0] });
            }
        }
        for (link, &ends) in self.links.iter_enumerated() {
            let back = LinkEnds {
                from: ends.to,
                to: ends.from,
            };
            if sorted.binary_search(&back).is_err() {
                return Err(NetworkError::OneWay { link, ends });
            }
        }
        Ok(())
    }

    fn check_connection(&self) -> Result<(), NetworkError> {
        let mut reached: TiVec<NodeId, bool> = vec![false; self.node_count()].into();
        let mut waiting = vec![NodeId(0)];
        reached[NodeId(0)] = true;
        while let Some(node) = waiting.pop() {
            for &link in &self.outgoing[node] {
                let next = self.links[link].to;
                if !std::mem::replace(&mut reached[next], true) {
                    waiting.push(next);
                }
            }
        }

        let missing = reached.iter().position(|reached| !reached);
        missing.map_or(Ok(()), |node| {
            let node = NodeId::from(node);
            Err(NetworkError::Unconnected { node })
        })
    }

    /// Nodes of the network.
    pub fn node_count(&self) -> usize {
        self.incoming.len()
    }

    /// The nodes, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.incoming.len()).map(NodeId::from)
    }

    /// The links and their ends.
    pub fn links(&self) -> &TiVec<LinkId, LinkEnds> {
        &self.links
    }

    /// Incoming links of a node, ascending.
    pub fn incoming(&self, node: NodeId) -> &[LinkId] {
        &self.incoming[node]
    }

    /// Outgoing links of a node, ascending.
    pub fn outgoing(&self, node: NodeId) -> &[LinkId] {
        &self.outgoing[node]
    }

    /// The link from one node to another, if there is one. O(links of the node).
    pub fn link_between(&self, from: NodeId, to: NodeId) -> Option<LinkId> {
        let mut links = self.outgoing[from].iter().copied();
        links.find(|&link| self.links[link].to == to)
    }

    /// The link in the other direction. O(links of its node).
    pub fn reverse(&self, link: LinkId) -> Option<LinkId> {
        let LinkEnds { from, to } = self.links[link];
        self.link_between(to, from)
    }

    /// What is left after losses: the same ids, but no node has a link that is lost. Some nodes may not be reached any
    /// more. O(links * losses).
    #[must_use]
    pub fn without(&self, lost: &[TickLoss]) -> Self {
        let mut rest = self.clone();
        let lists = rest.incoming.iter_mut().chain(&mut rest.outgoing);
        for links in lists {
            links.retain(|&link| !lost.iter().any(|loss| loss.takes_link(self, link)));
        }
        rest
    }
}
