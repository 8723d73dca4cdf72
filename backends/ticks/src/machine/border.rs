//! Borders that nodes keep, and how they come to other nodes after a loss.
//!
//! When a run goes back to the border of an iteration, each node that has tokens of it puts them aside. A node of the next
//! plan that needs tokens which it does not have gets them from the nearest node that does, in frames like any others.
//! When the last of them is there, the plan begins. All nodes compute these frames from the plans and from what is lost, so
//! that nobody need be told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use zbmd_ir::{ChannelId, TiVec};
use zbmd_ticks::{FrameRun, Hop, LinkId, Network, NodeId, TickMachine};

use super::calendar::{Carried, Work};

/// The border of an iteration, as far as nodes have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptBorder {
    pub(super) iteration: u64,
    /// For each channel the nodes that have its tokens.
    pub(super) tokens: BTreeMap<ChannelId, BTreeMap<NodeId, Vec<u8>>>,
}

impl KeptBorder {
    /// What is left of it on some nodes.
    pub(super) fn on(&self, nodes: &BTreeSet<NodeId>) -> Self {
        let tokens = self.tokens.iter().map(|(&channel, kept)| {
            let mut kept = kept.clone();
            kept.retain(|node, _| nodes.contains(node));
            (channel, kept)
        });
        let tokens = tokens.filter(|(_, kept)| !kept.is_empty());
        Self {
            iteration: self.iteration,
            tokens: tokens.collect(),
        }
    }

    pub(super) fn add(&mut self, channel: ChannelId, node: NodeId, bytes: Vec<u8>) {
        let kept = self.tokens.entry(channel).or_default();
        for other in kept.values() {
            assert_eq!(other, &bytes, "two nodes keep different borders");
        }
        kept.insert(node, bytes);
    }
}

/// Tokens of a border that a node needs and does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MissingTokens {
    pub(super) channel: ChannelId,
    pub(super) to: NodeId,
    /// So many of the border's last bytes.
    pub(super) bytes: u64,
}

/// Such tokens, on their way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) missing: MissingTokens,
    pub(super) from: NodeId,
    pub(super) hops: Vec<Hop>,
}

/// All that is brought to other nodes before a plan begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Restoration {
    pub(super) transfers: Vec<Transfer>,
    /// How long it takes.
    pub(super) ticks: u64,
    /// What each node does, in ticks since the restoration began.
    works: BTreeMap<(NodeId, u64), Vec<Work>>,
}

impl Restoration {
    pub(super) fn work(&self, node: NodeId, tick: u64) -> Vec<Work> {
        self.works.get(&(node, tick)).cloned().unwrap_or_default()
    }

    /// Frames on all links.
    pub(super) fn frames(&self) -> u64 {
        let hops = self.transfers.iter().flat_map(|transfer| &transfer.hops);
        hops.map(Hop::frames).sum()
    }
}

/// Gives frames their ticks: one transfer after the other, each by a shortest way from the nearest node that has the tokens.
pub(super) struct RestorationPlanner<'a> {
    machine: &'a TickMachine,
    network: &'a Network,
    /// Links that are lost.
    is_down: &'a TiVec<LinkId, bool>,
    /// For each link the first tick in which nothing has been sent yet.
    free_from: TiVec<LinkId, u64>,
    restoration: Restoration,
}

impl<'a> RestorationPlanner<'a> {
    pub(super) fn new(
        machine: &'a TickMachine,
        network: &'a Network,
        is_down: &'a TiVec<LinkId, bool>,
    ) -> Self {
        Self {
            machine,
            network,
            is_down,
            free_from: vec![0; network.links().len()].into(),
            restoration: Restoration::default(),
        }
    }

    /// How what is missing comes from nodes that have it.
    ///
    /// # Errors
    /// The channel for which no way leads there.
    pub(super) fn plan(
        mut self,
        border: &KeptBorder,
        missing: Vec<MissingTokens>,
    ) -> Result<Restoration, ChannelId> {
        for missing in missing {
            let keepers = border.tokens.get(&missing.channel).into_iter();
            let keepers = keepers.flat_map(|kept| kept.keys().copied());
            let way = self.way(keepers, missing.to);
            let first = way.first().ok_or(missing.channel)?;
            let from = self.network.links()[*first].from;
            let hops = self.send(&way, self.machine.frames_of(missing.bytes));
            self.restoration.transfers.push(Transfer {
                missing,
                from,
                hops,
            });
        }
        Ok(self.restoration)
    }

    /// A shortest way from the nearest of some nodes; no links if there is none.
    fn way(&self, from: impl Iterator<Item = NodeId>, to: NodeId) -> Vec<LinkId> {
        let mut reached: VecDeque<NodeId> = from.collect();
        let mut known: BTreeSet<NodeId> = reached.iter().copied().collect();
        let mut reached_by: BTreeMap<NodeId, LinkId> = BTreeMap::new();
        while let Some(node) = reached.pop_front() {
            for &link in self.network.outgoing(node) {
                let next = self.network.links()[link].to;
                if !self.is_down[link] && known.insert(next) {
                    reached_by.insert(next, link);
                    reached.push_back(next);
                }
            }
        }

        let mut way = Vec::new();
        let mut node = to;
        while let Some(&link) = reached_by.get(&node) {
            way.push(link);
            node = self.network.links()[link].from;
        }
        way.reverse();
        way
    }

    /// Sends frames over links, each as soon as it is there and the link is free.
    fn send(&mut self, way: &[LinkId], frames: u64) -> Vec<Hop> {
        let latency = self.machine.latency_ticks;
        let carried = Carried::Border(self.restoration.transfers.len());
        let mut ready = vec![0_u64; frames as usize];
        let mut hops = Vec::with_capacity(way.len());
        for (hop, &link) in way.iter().enumerate() {
            let ends = self.network.links()[link];
            let mut runs = Vec::new();
            for (frame, ready) in (0..).zip(&mut ready) {
                let tick = (*ready).max(self.free_from[link]);
                self.free_from[link] = tick + 1;
                *ready = tick + latency + 1;
                self.restoration.ticks = self.restoration.ticks.max(*ready);
                runs.push(FrameRun {
                    start: tick,
                    frames: 1,
                });
                let gather = Work::Gather {
                    carried,
                    hop,
                    frame,
                };
                let scatter = Work::Scatter {
                    carried,
                    hop,
                    frame,
                };
                for (node, tick, work) in [
                    (ends.from, tick, gather),
                    (ends.to, tick + latency, scatter),
                ] {
                    let works = &mut self.restoration.works;
                    works.entry((node, tick)).or_default().push(work);
                }
            }
            hops.push(Hop { link, runs });
        }
        hops
    }
}

#[cfg(test)]
mod tests {
    use zbmd_ticks::Topology;

    use super::*;

    #[test]
    fn tokens_come_from_the_nearest_node_and_wait_for_one_another() {
        let machine = TickMachine {
            topology: Topology::Line { nodes: 4 },
            frame_bits: 32,
            latency_ticks: 5,
            memory_bytes: 1 << 20,
            op_ticks: BTreeMap::new(),
            default_ticks: 1,
            clocks: None,
        };
        let network = machine.network().expect("a machine");
        let mut border = KeptBorder::default();
        border.add(ChannelId(0), NodeId(0), vec![7; 10]);
        border.add(ChannelId(0), NodeId(1), vec![7; 10]);
        border.add(ChannelId(1), NodeId(1), vec![8; 4]);
        let missing = |channel, to, bytes| MissingTokens {
            channel: ChannelId(channel),
            to: NodeId(to),
            bytes,
        };
        let wanted = vec![missing(0, 3, 10), missing(1, 2, 4)];

        let mut is_down: TiVec<LinkId, bool> = vec![false; network.links().len()].into();
        let planner = RestorationPlanner::new(&machine, &network, &is_down);
        let restoration = planner.plan(&border, wanted.clone()).expect("a way");
        let [first, second] = &restoration.transfers[..] else {
            panic!("two transfers");
        };
        assert_eq!((first.from, second.from), (NodeId(1), NodeId(1)));
        let ticks = |hop: &Hop| hop.ticks().collect::<Vec<u64>>();
        // Three frames go on as they come; the fourth, of the other channel, is sent behind them.
        assert_eq!(ticks(&first.hops[0]), [0, 1, 2]);
        assert_eq!(ticks(&first.hops[1]), [6, 7, 8]);
        assert_eq!(ticks(&second.hops[0]), [3]);
        assert_eq!(restoration.frames(), 7);
        assert_eq!(restoration.ticks, 8 + 5 + 1);
        assert_eq!(restoration.work(NodeId(2), 6).len(), 2);

        let cut = network.link_between(NodeId(1), NodeId(2));
        is_down[cut.expect("neighbours")] = true;
        let planner = RestorationPlanner::new(&machine, &network, &is_down);
        assert_eq!(planner.plan(&border, wanted), Err(ChannelId(0)));
    }

    #[test]
    fn what_is_kept_on_lost_nodes_is_lost() {
        let mut border = KeptBorder::default();
        border.add(ChannelId(0), NodeId(0), vec![7]);
        border.add(ChannelId(0), NodeId(1), vec![7]);
        border.add(ChannelId(1), NodeId(0), vec![8]);
        let left = border.on(&BTreeSet::from([NodeId(1), NodeId(2)]));
        let kept = BTreeMap::from([(NodeId(1), vec![7])]);
        assert_eq!(left.tokens, BTreeMap::from([(ChannelId(0), kept)]));
    }
}
