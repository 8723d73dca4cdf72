//! One scheduling problem: the graph at one block size, with everything that the stages ask for precomputed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use zbmd_ir::{ActorId, ChannelId, Costs, DeviceId, Graph, Machine, PortChannels, TiVec};

use crate::analysis::Edges;
use crate::cluster::{Clusters, components, is_tight};
use crate::place::SEND_PS;
use crate::{Options, ScheduleError};

pub(crate) struct Problem<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) machine: &'a Machine,
    pub(crate) costs: &'a Costs,
    pub(crate) options: &'a Options,
    pub(crate) ports: &'a PortChannels,
    pub(crate) edges: &'a Edges,
    pub(crate) q: &'a TiVec<ActorId, u64>,
    pub(crate) block: u64,
    pub(crate) clusters: Clusters,
    /// Clusters in a topological order of the tight edges, critical path first.
    pub(crate) order: Vec<usize>,
    /// Channels that each cluster reads from other clusters, with the cluster of the writer.
    pub(crate) inputs_of: Vec<Vec<(ChannelId, usize)>>,
    /// Those of them whose tokens of the block itself it needs.
    pub(crate) tight_inputs_of: Vec<Vec<(ChannelId, usize)>>,
    /// Strongly connected component over all edges, of each cluster: its clusters share one stage.
    pub(crate) component_of: Vec<usize>,
}

impl<'a> Problem<'a> {
    pub(crate) fn new(
        (graph, machine, costs, options): (&'a Graph, &'a Machine, &'a Costs, &'a Options),
        (ports, edges, q): (&'a PortChannels, &'a Edges, &'a TiVec<ActorId, u64>),
        block: u64,
    ) -> Result<Self, ScheduleError> {
        let clusters = Clusters::of(edges, q, block, options.max_executions).ok_or(
            ScheduleError::TooManySlots {
                block,
                limit: options.max_executions,
            },
        )?;
        let count = clusters.all.len();
        let mut inputs_of: Vec<Vec<(ChannelId, usize)>> = vec![Vec::new(); count];
        let mut tight_inputs_of = inputs_of.clone();
        let mut successors: Vec<Vec<usize>> = vec![Vec::new(); count];
        for edge in &edges.all {
            let (from, to) = (
                clusters.of[edge.writer] as usize,
                clusters.of[edge.reader] as usize,
            );
            if from != to {
                inputs_of[to].push((edge.channel, from));
                if is_tight(edge, q, block) {
                    tight_inputs_of[to].push((edge.channel, from));
                    successors[from].push(to);
                }
            }
        }
        for list in inputs_of.iter_mut().chain(&mut tight_inputs_of) {
            list.sort_unstable();
            list.dedup();
        }
        let mut component_of = vec![0; count];
        for (index, members) in components(edges, graph.actors.len(), |_| true)
            .iter()
            .enumerate()
        {
            for &actor in members {
                component_of[clusters.of[actor] as usize] = index;
            }
        }
        let work = clusters
            .all
            .iter()
            .map(|c| {
                c.members
                    .iter()
                    .map(|&a| mean_ps(costs, a, q[a] * block))
                    .sum()
            })
            .collect();
        let order = topological(&successors, work);
        Ok(Problem {
            graph,
            machine,
            costs,
            options,
            ports,
            edges,
            q,
            block,
            clusters,
            order,
            inputs_of,
            tight_inputs_of,
            component_of,
        })
    }

    /// Whether clusters depend on each other in a circle, across blocks.
    pub(crate) fn has_loops(&self) -> bool {
        let mut seen = std::collections::BTreeSet::new();
        !self.component_of.iter().all(|c| seen.insert(c))
    }

    pub(crate) fn cluster_of(&self, actor: ActorId) -> usize {
        self.clusters.of[actor] as usize
    }

    /// New tokens on a channel in one block.
    ///
    /// # Errors
    /// [`ScheduleError::TooBig`] if they do not fit 63 bits.
    pub(crate) fn block_tokens(&self, channel: ChannelId) -> Result<u64, ScheduleError> {
        let ch = &self.graph.channels[channel];
        let rate = self.graph.actors[ch.from.actor].outputs[ch.from.port as usize].rate;
        self.q[ch.from.actor]
            .checked_mul(self.block)
            .and_then(|n| n.checked_mul(rate))
            .filter(|&n| n < 1 << 62)
            .ok_or(ScheduleError::TooBig {
                channel,
                block: self.block,
            })
    }

    /// Predicted picoseconds of the sends of one block of a channel over a link.
    pub(crate) fn send_ps(&self, channel: ChannelId, from: DeviceId, to: DeviceId) -> u64 {
        let bytes = self
            .block_tokens(channel)
            .unwrap_or(u64::MAX)
            .saturating_mul(self.graph.channels[channel].token.bytes());
        let over = self
            .machine
            .link(from, to)
            .map_or(u64::MAX / 8, |link| Machine::transfer_ps(link, bytes));
        over.saturating_add(SEND_PS)
    }
}

/// Mean cost over the devices that can run the actor: the priority of list scheduling (HEFT).
fn mean_ps(costs: &Costs, actor: ActorId, firings: u64) -> u64 {
    let known: Vec<u64> = costs.table[actor]
        .iter()
        .flatten()
        .map(|c| {
            c.call_ps
                .saturating_add(c.firing_ps.saturating_mul(firings))
        })
        .collect();
    let sum: u128 = known.iter().map(|&c| u128::from(c)).sum();
    u64::try_from(sum.checked_div(known.len() as u128).unwrap_or(0)).unwrap_or(u64::MAX)
}

/// Kahn's algorithm with a priority queue: longest remaining path first, then the lower id, so that equal input gives
/// equal order. The edges are acyclic because clusters are strongly connected components.
///
/// Source of the priority ("upward rank"): Topcuoglu, Hariri & Wu 2002, IEEE TPDS 13(3).
fn topological(successors: &[Vec<usize>], work: Vec<u64>) -> Vec<usize> {
    let plain = kahn(successors, &vec![0; successors.len()]);
    let mut rank = work;
    for &c in plain.iter().rev() {
        let after = successors[c].iter().map(|&s| rank[s]).max().unwrap_or(0);
        rank[c] = rank[c].saturating_add(after);
    }
    kahn(successors, &rank)
}

fn kahn(successors: &[Vec<usize>], priority: &[u64]) -> Vec<usize> {
    let mut waiting = vec![0usize; successors.len()];
    for &s in successors.iter().flatten() {
        waiting[s] += 1;
    }
    let mut ready: BinaryHeap<(u64, Reverse<usize>)> = (0..successors.len())
        .filter(|&c| waiting[c] == 0)
        .map(|c| (priority[c], Reverse(c)))
        .collect();
    let mut order = Vec::with_capacity(successors.len());
    while let Some((_, Reverse(c))) = ready.pop() {
        order.push(c);
        for &s in &successors[c] {
            waiting[s] -= 1;
            if waiting[s] == 0 {
                ready.push((priority[s], Reverse(s)));
            }
        }
    }
    assert_eq!(
        order.len(),
        successors.len(),
        "tight edges between clusters form a cycle"
    );
    order
}
