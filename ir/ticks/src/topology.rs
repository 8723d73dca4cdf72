//! Networks by their shape.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::network::{MAX_LINKS, MAX_NODES};
use crate::{LinkEnds, Network, NetworkError, NodeId};

/// Why a shape makes no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A side or a number of nodes that the shape cannot have.
    #[error("{shape}: `{field}` is {found}, but must be at least {min}")]
    TooSmall {
        /// Name of the shape.
        shape: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The least value that it may have.
        min: u64,
    },
    /// More nodes or links than a network may have.
    #[error("{shape}: {nodes} nodes and {links} one-way links are too many, at most {max_nodes} and {max_links} are allowed",
        max_nodes = MAX_NODES, max_links = MAX_LINKS)]
    TooLarge {
        /// Name of the shape.
        shape: &'static str,
        /// Nodes that it would have.
        nodes: u64,
        /// One-way links that it would have.
        links: u64,
    },
    /// Links from a file that make no network.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

/// The shape of a network. All links go both ways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Topology {
    /// Each node is linked to the next.
    Line {
        /// Nodes.
        nodes: u32,
    },
    /// A line whose ends are linked; at least three nodes.
    Ring {
        /// Nodes.
        nodes: u32,
    },
    /// A grid: node `row * columns + column` is linked to the next in its row and in its column.
    Mesh {
        /// Rows.
        rows: u32,
        /// Columns.
        columns: u32,
    },
    /// A mesh whose rows and columns are closed to rings where they have at least three nodes.
    Torus {
        /// Rows.
        rows: u32,
        /// Columns.
        columns: u32,
    },
    /// Node 0 is linked to all others.
    Star {
        /// Nodes.
        nodes: u32,
    },
    /// Node i is linked to its children, from `i * fan_out + 1` on.
    Tree {
        /// Levels, the root's included.
        levels: u32,
        /// Children of each node that is no leaf.
        fan_out: u32,
    },
    /// 2 to the power of `dimensions` nodes; those whose numbers differ in one bit are linked.
    Hypercube {
        /// Bits of a node's number.
        dimensions: u32,
    },
    /// Every node is linked to all others.
    Complete {
        /// Nodes.
        nodes: u32,
    },
    /// A random tree, and random links besides.
    Random {
        /// Nodes.
        nodes: u32,
        /// Two-way links besides those of the tree; fewer where there are no more pairs of nodes.
        extra_links: u32,
        /// The seed: equal ones give equal networks.
        seed: u64,
    },
    /// These two-way links.
    Links {
        /// Nodes.
        nodes: u32,
        /// The two nodes of each link.
        links: Vec<(u32, u32)>,
    },
}

/// A sequence of numbers that the seed decides (splitmix64: Steele, Lea & Flood, OOPSLA 2014).
struct Sequence(u64);

impl Sequence {
    fn next_below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

impl Topology {
    /// Name of the shape, as machine files write it.
    pub const fn name(&self) -> &'static str {
        match self {
            Topology::Line { .. } => "Line",
            Topology::Ring { .. } => "Ring",
            Topology::Mesh { .. } => "Mesh",
            Topology::Torus { .. } => "Torus",
            Topology::Star { .. } => "Star",
            Topology::Tree { .. } => "Tree",
            Topology::Hypercube { .. } => "Hypercube",
            Topology::Complete { .. } => "Complete",
            Topology::Random { .. } => "Random",
            Topology::Links { .. } => "Links",
        }
    }

    /// Makes the network: first every two-way link from its lower node, then the next in order.
    ///
    /// # Errors
    /// See [`TopologyError`].
    pub fn network(&self) -> Result<Network, TopologyError> {
        self.check_fields()?;
        let nodes = self.node_count();
        let pairs = self.max_pairs(nodes);
        let links = pairs.saturating_mul(2);
        if nodes > MAX_NODES || links > MAX_LINKS {
            let shape = self.name();
            return Err(TopologyError::TooLarge {
                shape,
                nodes,
                links,
            });
        }

        let mut links = Vec::new();
        for (first, second) in self.pairs() {
            let (from, to) = (NodeId(first), NodeId(second));
            links.push(LinkEnds { from, to });
            links.push(LinkEnds { from: to, to: from });
        }
        Ok(Network::new(nodes as u32, links)?)
    }

    fn check_fields(&self) -> Result<(), TopologyError> {
        let fields: &[(&'static str, u32, u32)] = match self {
            Topology::Line { nodes }
            | Topology::Star { nodes }
            | Topology::Complete { nodes }
            | Topology::Random { nodes, .. }
            | Topology::Links { nodes, .. } => &[("nodes", *nodes, 1)],
            Topology::Ring { nodes } => &[("nodes", *nodes, 3)],
            Topology::Mesh { rows, columns } | Topology::Torus { rows, columns } => {
                &[("rows", *rows, 1), ("columns", *columns, 1)]
            }
            Topology::Tree { levels, fan_out } => {
                &[("levels", *levels, 1), ("fan_out", *fan_out, 1)]
            }
            Topology::Hypercube { dimensions: _ } => &[],
        };
        for &(field, found, min) in fields {
            if found < min {
                return Err(TopologyError::TooSmall {
                    shape: self.name(),
                    field,
                    found: found.into(),
                    min: min.into(),
                });
            }
        }
        Ok(())
    }

    /// Nodes of the network, or a number beyond all limits.
    fn node_count(&self) -> u64 {
        match *self {
            Topology::Line { nodes }
            | Topology::Ring { nodes }
            | Topology::Star { nodes }
            | Topology::Complete { nodes }
            | Topology::Random { nodes, .. }
            | Topology::Links { nodes, .. } => nodes.into(),
            Topology::Mesh { rows, columns } | Topology::Torus { rows, columns } => {
                u64::from(rows) * u64::from(columns)
            }
            Topology::Tree { levels, fan_out } => {
                let mut nodes = 0_u64;
                let mut level_nodes = 1_u64;
                for _ in 0..levels.min(MAX_NODES as u32 + 1) {
                    nodes = nodes.saturating_add(level_nodes);
                    level_nodes = level_nodes.saturating_mul(fan_out.into());
                    if nodes > MAX_NODES {
                        break;
                    }
                }
                nodes
            }
            Topology::Hypercube { dimensions } => 1_u64.checked_shl(dimensions).unwrap_or(u64::MAX),
        }
    }

    /// An upper bound of the two-way links.
    fn max_pairs(&self, nodes: u64) -> u64 {
        match self {
            Topology::Complete { .. } => nodes.saturating_mul(nodes) / 2,
            Topology::Hypercube { dimensions } => nodes.saturating_mul((*dimensions).into()) / 2,
            Topology::Random { extra_links, .. } => nodes.saturating_add((*extra_links).into()),
            Topology::Links { links, .. } => links.len() as u64,
            Topology::Mesh { .. } | Topology::Torus { .. } => nodes.saturating_mul(2),
            _ => nodes,
        }
    }

    /// The two nodes of each two-way link. The fields have been checked.
    fn pairs(&self) -> Vec<(u32, u32)> {
        match *self {
            Topology::Line { nodes } => (1..nodes).map(|node| (node - 1, node)).collect(),
            Topology::Ring { nodes } => (0..nodes).map(|node| (node, (node + 1) % nodes)).collect(),
            Topology::Mesh { rows, columns } => grid(rows, columns, false),
            Topology::Torus { rows, columns } => grid(rows, columns, true),
            Topology::Star { nodes } => (1..nodes).map(|node| (0, node)).collect(),
            Topology::Tree { fan_out, .. } => {
                let nodes = self.node_count() as u32;
                (1..nodes)
                    .map(|node| ((node - 1) / fan_out, node))
                    .collect()
            }
            Topology::Hypercube { dimensions } => hypercube(dimensions),
            Topology::Complete { nodes } => {
                let pairs =
                    (0..nodes).flat_map(|low| (low + 1..nodes).map(move |high| (low, high)));
                pairs.collect()
            }
            Topology::Random {
                nodes,
                extra_links,
                seed,
            } => random(nodes, extra_links, seed),
            Topology::Links { ref links, .. } => links.clone(),
        }
    }
}

fn grid(rows: u32, columns: u32, closed: bool) -> Vec<(u32, u32)> {
    let mut pairs = Vec::new();
    for row in 0..rows {
        for column in 0..columns {
            let node = row * columns + column;
            if column + 1 < columns {
                pairs.push((node, node + 1));
            } else if closed && columns >= 3 {
                pairs.push((node, row * columns));
            }
            if row + 1 < rows {
                pairs.push((node, node + columns));
            } else if closed && rows >= 3 {
                pairs.push((node, column));
            }
        }
    }
    pairs
}

fn hypercube(dimensions: u32) -> Vec<(u32, u32)> {
    let nodes = 1_u32 << dimensions;
    let pairs = (0..nodes).flat_map(|node| {
        let neighbours = (0..dimensions).map(move |bit| (node, node ^ (1 << bit)));
        neighbours.filter(|(low, high)| low < high)
    });
    pairs.collect()
}

fn random(nodes: u32, extra_links: u32, seed: u64) -> Vec<(u32, u32)> {
    let mut sequence = Sequence(seed);
    let mut pairs = BTreeSet::new();
    for node in 1..nodes {
        let parent = sequence.next_below(node.into()) as u32;
        pairs.insert((parent, node));
    }

    let all_pairs = u64::from(nodes) * u64::from(nodes - 1) / 2;
    let wanted = (pairs.len() as u64 + u64::from(extra_links)).min(all_pairs);
    while (pairs.len() as u64) < wanted {
        let first = sequence.next_below(nodes.into()) as u32;
        let second = sequence.next_below(nodes.into()) as u32;
        if first != second {
            pairs.insert((first.min(second), first.max(second)));
        }
    }
    pairs.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_the_nodes_and_links_that_they_should() {
        let cases = [
            (Topology::Line { nodes: 5 }, 5, 4),
            (Topology::Line { nodes: 1 }, 1, 0),
            (Topology::Ring { nodes: 5 }, 5, 5),
            (
                Topology::Mesh {
                    rows: 3,
                    columns: 2,
                },
                6,
                7,
            ),
            (
                Topology::Torus {
                    rows: 4,
                    columns: 4,
                },
                16,
                32,
            ),
            // A ring of two would be a second link between the same nodes.
            (
                Topology::Torus {
                    rows: 2,
                    columns: 4,
                },
                8,
                12,
            ),
            (Topology::Star { nodes: 5 }, 5, 4),
            (
                Topology::Tree {
                    levels: 3,
                    fan_out: 2,
                },
                7,
                6,
            ),
            (Topology::Hypercube { dimensions: 3 }, 8, 12),
            (Topology::Hypercube { dimensions: 0 }, 1, 0),
            (Topology::Complete { nodes: 8 }, 8, 28),
            (
                Topology::Random {
                    nodes: 10,
                    extra_links: 5,
                    seed: 7,
                },
                10,
                14,
            ),
            (
                Topology::Random {
                    nodes: 3,
                    extra_links: 50,
                    seed: 7,
                },
                3,
                3,
            ),
            (
                Topology::Links {
                    nodes: 3,
                    links: vec![(0, 1), (2, 1)],
                },
                3,
                2,
            ),
        ];
        for (topology, nodes, pairs) in cases {
            let network = topology.network().expect("a legal shape");
            assert_eq!(network.node_count(), nodes, "{topology:?}");
            assert_eq!(network.links().len(), 2 * pairs, "{topology:?}");
        }
    }

    #[test]
    fn wrong_shapes_are_refused() {
        let cases = [
            (
                Topology::Line { nodes: 0 },
                "Line: `nodes` is 0, but must be at least 1",
            ),
            (
                Topology::Ring { nodes: 2 },
                "Ring: `nodes` is 2, but must be at least 3",
            ),
            (
                Topology::Torus {
                    rows: 3,
                    columns: 0,
                },
                "Torus: `columns` is 0, but must be at least 1",
            ),
            (
                Topology::Links {
                    nodes: 2,
                    links: vec![(0, 2)],
                },
                "l0 goes from n0 to n2, but there are only 2 nodes",
            ),
            (
                Topology::Links {
                    nodes: 2,
                    links: vec![(1, 1)],
                },
                "l0 goes from n1 to itself",
            ),
            (
                Topology::Links {
                    nodes: 2,
                    links: vec![(0, 1), (1, 0)],
                },
                "two links go from n0 to n1: remove one",
            ),
            (
                Topology::Links {
                    nodes: 3,
                    links: vec![(0, 1)],
                },
                "n2 cannot be reached from n0: connect it",
            ),
        ];
        for (topology, message) in cases {
            let error = topology.network().expect_err("not a legal shape");
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn shapes_beyond_all_limits_are_refused_before_they_are_made() {
        let cases = [
            Topology::Complete { nodes: u32::MAX },
            Topology::Hypercube {
                dimensions: u32::MAX,
            },
            Topology::Tree {
                levels: u32::MAX,
                fan_out: u32::MAX,
            },
            Topology::Mesh {
                rows: u32::MAX,
                columns: u32::MAX,
            },
            Topology::Random {
                nodes: 10,
                extra_links: u32::MAX,
                seed: 1,
            },
        ];
        for topology in cases {
            let error = topology.network().expect_err("too large");
            assert!(matches!(error, TopologyError::TooLarge { .. }), "{error}");
        }
    }
}
