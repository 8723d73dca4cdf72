//! Placements: which node runs which actor.

use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use zbmd_ir::{ActorId, TiVec};
use zbmd_ticks::NodeId;

use crate::problem::Problem;
use crate::route::hops_from;

/// Most nodes that are used: with more, placing takes too long.
const MAX_NODES: usize = 256;
/// Passes over all units in which each may move.
const MAX_PASSES: usize = 20;

/// Placements to try, from as many nodes as there are to one: actors by themselves, and those that wait for each other
/// in a circle together.
pub(crate) fn placements(problem: &Problem<'_>) -> Vec<TiVec<ActorId, NodeId>> {
    let apart: Vec<Vec<ActorId>> = problem.graph.actors.keys().map(|a| vec![a]).collect();
    let together = circles(problem);
    let nodes = nearest_nodes(problem, apart.len());

    let mut found: Vec<TiVec<ActorId, NodeId>> = Vec::new();
    let mut count = nodes.len();
    while count > 0 {
        for units in [&together, &apart] {
            let placement = Placer::new(problem, units, &nodes[..count]).place();
            if !found.contains(&placement) {
                found.push(placement);
            }
        }
        count /= 2;
    }
    found
}

/// Strongly connected components of the graph, those of one actor among them.
pub(crate) fn circles(problem: &Problem<'_>) -> Vec<Vec<ActorId>> {
    let mut graph = DiGraph::<(), ()>::new();
    for _ in problem.graph.actors.keys() {
        graph.add_node(());
    }
    for stream in &problem.streams {
        for reader in &stream.readers {
            let from = NodeIndex::new(stream.writer.index());
            graph.add_edge(from, NodeIndex::new(reader.index()), ());
        }
    }
    let components = tarjan_scc(&graph).into_iter().map(|component| {
        let mut actors: Vec<ActorId> = component.iter().map(|n| ActorId::from(n.index())).collect();
        actors.sort_unstable();
        actors
    });
    let mut components: Vec<Vec<ActorId>> = components.collect();
    components.sort_unstable();
    components
}

/// As many nodes as can be used, nearest to the first first.
fn nearest_nodes(problem: &Problem<'_>, actors: usize) -> Vec<NodeId> {
    let hops = hops_from(problem.network, problem.nodes[0]);
    let mut nodes = problem.nodes.clone();
    nodes.sort_by_key(|&node| (hops[node], node));
    nodes.truncate(actors.min(MAX_NODES));
    nodes
}

/// Frames that units exchange in an iteration.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    other: usize,
    frames: u64,
}

struct Placer<'a> {
    problem: &'a Problem<'a>,
    units: &'a [Vec<ActorId>],
    nodes: &'a [NodeId],
    /// Ticks of each unit in an iteration.
    work: Vec<u64>,
    traffic: Vec<Vec<Traffic>>,
    /// Hops between the nodes that are used.
    hops: Vec<TiVec<NodeId, u16>>,
    /// Index of each unit's node.
    chosen: Vec<Option<usize>>,
    load: Vec<u64>,
}

impl<'a> Placer<'a> {
    fn new(problem: &'a Problem<'a>, units: &'a [Vec<ActorId>], nodes: &'a [NodeId]) -> Self {
        let mut unit_of: TiVec<ActorId, usize> = vec![0; problem.graph.actors.len()].into();
        for (unit, actors) in units.iter().enumerate() {
            actors.iter().for_each(|&actor| unit_of[actor] = unit);
        }
        let mut traffic = vec![Vec::new(); units.len()];
        for stream in &problem.streams {
            let frames = stream.frames * problem.firings[stream.writer];
            let from = unit_of[stream.writer];
            let mut others: Vec<usize> = stream.readers.iter().map(|&r| unit_of[r]).collect();
            others.sort_unstable();
            others.dedup();
            for to in others.into_iter().filter(|&to| to != from) {
                traffic[from].push(Traffic { other: to, frames });
                traffic[to].push(Traffic {
                    other: from,
                    frames,
                });
            }
        }
        let works = units.iter().map(|actors| {
            let works = actors.iter().map(|&actor| problem.work(actor));
            works.fold(0, u64::saturating_add)
        });
        Self {
            problem,
            units,
            nodes,
            work: works.collect(),
            traffic,
            hops: nodes
                .iter()
                .map(|&n| hops_from(problem.network, n))
                .collect(),
            chosen: vec![None; units.len()],
            load: vec![0; nodes.len()],
        }
    }

    fn place(mut self) -> TiVec<ActorId, NodeId> {
        let mut heaviest_first: Vec<usize> = (0..self.units.len()).collect();
        heaviest_first.sort_by_key(|&unit| (std::cmp::Reverse(self.work[unit]), unit));
        let total: u64 = self.work.iter().sum();
        let heaviest = self.work.iter().copied().max().unwrap_or(0);
        let share = total.div_ceil(self.nodes.len() as u64).max(heaviest);

        for &unit in &heaviest_first {
            let node = self.best_node(unit, share);
            self.settle(unit, node);
        }
        for _ in 0..MAX_PASSES {
            if !self.improve(&heaviest_first) {
                break;
            }
        }

        let mut placement: TiVec<ActorId, NodeId> =
            vec![NodeId(0); self.problem.graph.actors.len()].into();
        for (unit, actors) in self.units.iter().enumerate() {
            let node = self.nodes[self.chosen[unit].unwrap_or(0)];
            actors.iter().for_each(|&actor| placement[actor] = node);
        }
        placement
    }

    fn settle(&mut self, unit: usize, node: usize) {
        if let Some(before) = self.chosen[unit].replace(node) {
            self.load[before] -= self.work[unit];
        }
        self.load[node] += self.work[unit];
    }

    /// Frames times hops of a unit, were it on a node.
    fn distance(&self, unit: usize, node: usize) -> u64 {
        let traffic = self.traffic[unit].iter();
        let costs = traffic.filter_map(|traffic| {
            let other = self.chosen[traffic.other]?;
            Some(traffic.frames * u64::from(self.hops[node][self.nodes[other]]))
        });
        costs.sum()
    }

    /// The node that is not filled beyond its share and nearest; failing that, the least filled.
    fn best_node(&self, unit: usize, share: u64) -> usize {
        let keys = (0..self.nodes.len()).map(|node| {
            let load = self.load[node] + self.work[unit];
            let excess = load.saturating_sub(share);
            (excess, self.distance(unit, node), load, node)
        });
        keys.min().map_or(0, |(.., node)| node)
    }

    /// Moves units, and exchanges pairs of them, where that makes the fullest node less full or ways shorter. Whether
    /// any was.
    fn improve(&mut self, units: &[usize]) -> bool {
        let mut is_better = false;
        for &unit in units {
            let fullest = self.load.iter().copied().max().unwrap_or(0);
            let Some(present) = self.chosen[unit] else {
                continue;
            };
            let distance = self.distance(unit, present);
            let from_fullest = self.load[present] == fullest;
            let moves = (0..self.nodes.len()).filter(|&node| node != present);
            let better = moves.filter_map(|node| {
                let load = self.load[node] + self.work[unit];
                let way = self.distance(unit, node);
                let relieves = from_fullest && load < fullest;
                let shortens = load <= fullest && way < distance;
                (relieves || shortens).then_some((std::cmp::Reverse(relieves), way, load, node))
            });
            if let Some((.., node)) = better.min() {
                self.settle(unit, node);
                is_better = true;
            } else if self.exchange(unit, present, fullest) {
                is_better = true;
            }
        }
        is_better
    }

    /// Exchanges a unit with one of another node that it has traffic with, if ways become shorter.
    fn exchange(&mut self, unit: usize, present: usize, fullest: u64) -> bool {
        let mut targets: Vec<usize> = self.traffic[unit]
            .iter()
            .filter_map(|traffic| self.chosen[traffic.other])
            .filter(|&node| node != present)
            .collect();
        targets.sort_unstable();
        targets.dedup();
        for target in targets {
            for other in 0..self.units.len() {
                if self.chosen[other] != Some(target) {
                    continue;
                }
                let before = self.distance(unit, present) + self.distance(other, target);
                self.settle(unit, target);
                self.settle(other, present);
                let after = self.distance(unit, target) + self.distance(other, present);
                let fits = self.load[present] <= fullest && self.load[target] <= fullest;
                if fits && after < before {
                    return true;
                }
                self.settle(unit, present);
                self.settle(other, target);
            }
        }
        false
    }
}
