//! One scheduling problem: the graph at one block size, with everything that the stages ask for precomputed.

use std::collections::BTreeSet;

use zbmd_ir::{ActorId, ChannelId, Costs, DeviceId, Graph, Link, Machine, Plan, PortChannels};

use crate::analysis::EdgeList;
use crate::cluster::{Cluster, Clusters, components, is_tight};
use crate::cost::{self, CARRY_NS, SEND_PS};
use crate::error::ScheduleError;
use crate::inputs::{Analysis, Inputs, RepetitionVector};
use crate::options::ScheduleOptions;
use crate::topological::{order_by_priority, upward_ranks};

/// What a cluster reads from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClusterInput {
    pub(crate) channel: ChannelId,
    /// Cluster of the channel's writer.
    pub(crate) writer: usize,
}

pub(crate) struct BlockProblem<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) machine: &'a Machine,
    pub(crate) costs: &'a Costs,
    pub(crate) options: &'a ScheduleOptions,
    pub(crate) ports: &'a PortChannels,
    pub(crate) edges: &'a EdgeList,
    pub(crate) repetition: &'a RepetitionVector,
    pub(crate) block: u64,
    pub(crate) clusters: Clusters,
    /// Clusters in a topological order of the tight edges, critical path first.
    pub(crate) order: Vec<usize>,
    /// What each cluster reads from other clusters.
    pub(crate) inputs_of: Vec<Vec<ClusterInput>>,
    /// Those of them whose tokens of the block itself it needs.
    pub(crate) tight_inputs_of: Vec<Vec<ClusterInput>>,
    /// Strongly connected component over all edges, of each cluster: its clusters share one stage.
    pub(crate) component_of: Vec<usize>,
}

impl<'a> BlockProblem<'a> {
    /// # Errors
    /// [`ScheduleError::TooManySlots`] where the order inside a cluster is longer than the options allow.
    pub(crate) fn new(
        inputs: Inputs<'a>,
        analysis: &'a Analysis,
        block: u64,
    ) -> Result<Self, ScheduleError> {
        let edges = &analysis.edges;
        let repetition = &analysis.repetition;
        let limit = inputs.options.max_executions;

        let clusters = Clusters::of(edges, repetition, block, limit)
            .ok_or(ScheduleError::TooManySlots { block, limit })?;
        let neighbours = Neighbours::of(edges, repetition, block, &clusters);
        let component_of = components_of_clusters(edges, inputs.graph, &clusters);
        let work = clusters
            .all
            .iter()
            .map(|cluster| mean_work_ps(inputs.costs, repetition, block, cluster))
            .collect();
        let order = order_clusters(&neighbours.tight_successors_of, work);

        Ok(BlockProblem {
            graph: inputs.graph,
            machine: inputs.machine,
            costs: inputs.costs,
            options: inputs.options,
            ports: &analysis.ports,
            edges,
            repetition,
            block,
            clusters,
            order,
            inputs_of: neighbours.inputs_of,
            tight_inputs_of: neighbours.tight_inputs_of,
            component_of,
        })
    }

    /// Whether clusters depend on each other in a circle, across blocks.
    pub(crate) fn has_loops(&self) -> bool {
        let mut seen = BTreeSet::new();
        !self
            .component_of
            .iter()
            .all(|component| seen.insert(component))
    }

    pub(crate) fn cluster_of(&self, actor: ActorId) -> usize {
        self.clusters.of[actor] as usize
    }

    /// The device of each cluster in a plan, by index of the cluster.
    pub(crate) fn devices_of_clusters(&self, plan: &Plan) -> Vec<DeviceId> {
        let clusters = self.clusters.all.iter();
        clusters
            .map(|cluster| plan.placement[cluster.members[0]])
            .collect()
    }

    pub(crate) fn link(&self, from: DeviceId, to: DeviceId) -> Option<Link> {
        self.machine.link(from, to)
    }

    /// New tokens on a channel in one block.
    ///
    /// # Errors
    /// [`ScheduleError::TooBig`] if they do not fit 62 bits.
    pub(crate) fn block_tokens(&self, channel: ChannelId) -> Result<u64, ScheduleError> {
        let writer = self.graph.channels[channel].from;
        let rate = self.graph.actors[writer.actor].outputs[writer.port as usize].rate;

        self.repetition[writer.actor]
            .checked_mul(self.block)
            .and_then(|firings| firings.checked_mul(rate))
            .filter(|&tokens| tokens < 1 << 62)
            .ok_or(ScheduleError::TooBig {
                channel,
                block: self.block,
            })
    }

    /// Predicted nanoseconds of carrying so many tokens of history to the next block, or to the next chunk.
    pub(crate) fn carry_ns(&self, device: DeviceId, tokens: u64, token_bytes: u64) -> u64 {
        let bytes_per_s = self.machine.devices[device].bytes_per_s.max(1);
        // Each byte is read and written.
        let moved_bytes = 2 * u128::from(tokens) * u128::from(token_bytes);
        let copy_ns = moved_bytes * 1_000_000_000 / u128::from(bytes_per_s);
        u64::try_from(copy_ns).unwrap_or(u64::MAX / 4) + CARRY_NS
    }

    /// Predicted picoseconds of the sends of one block of a channel over a link.
    pub(crate) fn send_ps(&self, channel: ChannelId, from: DeviceId, to: DeviceId) -> u64 {
        let token_bytes = self.graph.channels[channel].token.bytes();
        let block_bytes = self
            .block_tokens(channel)
            .unwrap_or(u64::MAX)
            .saturating_mul(token_bytes);

        // Without a link it costs so much that no placement wants it, and a sum of a few does not overflow.
        let transfer_ps = self.link(from, to).map_or(u64::MAX / 8, |link| {
            Machine::transfer_ps(&link, block_bytes)
        });
        transfer_ps.saturating_add(SEND_PS)
    }
}

/// Which clusters read from which, by cluster.
struct Neighbours {
    inputs_of: Vec<Vec<ClusterInput>>,
    tight_inputs_of: Vec<Vec<ClusterInput>>,
    tight_successors_of: Vec<Vec<usize>>,
}

impl Neighbours {
    fn of(
        edges: &EdgeList,
        repetition: &RepetitionVector,
        block: u64,
        clusters: &Clusters,
    ) -> Self {
        let count = clusters.all.len();
        let mut neighbours = Neighbours {
            inputs_of: vec![Vec::new(); count],
            tight_inputs_of: vec![Vec::new(); count],
            tight_successors_of: vec![Vec::new(); count],
        };

        for edge in &edges.all {
            let writer = clusters.of[edge.writer] as usize;
            let reader = clusters.of[edge.reader] as usize;
            if writer == reader {
                continue;
            }
            let input = ClusterInput {
                channel: edge.channel,
                writer,
            };
            neighbours.inputs_of[reader].push(input);
            // Only these order clusters within a period.
            if is_tight(edge, repetition, block) {
                neighbours.tight_inputs_of[reader].push(input);
                neighbours.tight_successors_of[writer].push(reader);
            }
        }

        let lists = neighbours.inputs_of.iter_mut();
        for list in lists.chain(&mut neighbours.tight_inputs_of) {
            list.sort_unstable();
            list.dedup();
        }
        neighbours
    }
}

fn components_of_clusters(edges: &EdgeList, graph: &Graph, clusters: &Clusters) -> Vec<usize> {
    let mut component_of = vec![0; clusters.all.len()];
    let all = components(edges, graph.actors.len(), |_| true);

    for (component, members) in all.iter().enumerate() {
        for &actor in members {
            component_of[clusters.of[actor] as usize] = component;
        }
    }
    component_of
}

/// Work of a cluster in one block, each member at its mean cost.
fn mean_work_ps(
    costs: &Costs,
    repetition: &RepetitionVector,
    block: u64,
    cluster: &Cluster,
) -> u64 {
    cluster
        .members
        .iter()
        .map(|&actor| mean_ps(costs, actor, repetition[actor] * block))
        .sum()
}

/// Mean cost over the devices that can run the actor: the priority of list scheduling (HEFT).
fn mean_ps(costs: &Costs, actor: ActorId, firings: u64) -> u64 {
    let mut sum = 0u128;
    let mut count = 0u128;

    for &cost in costs.table[actor].iter().flatten() {
        sum += u128::from(cost::work_ps(cost, 1, firings));
        count += 1;
    }
    u64::try_from(sum.checked_div(count).unwrap_or(0)).unwrap_or(u64::MAX)
}

/// Clusters along their tight edges, longest remaining path first.
fn order_clusters(successors_of: &[Vec<usize>], work: Vec<u64>) -> Vec<usize> {
    let any_order = order_by_priority(successors_of, |_| 0);
    // Clusters are strongly connected components of the tight edges.
    assert_eq!(
        any_order.len(),
        successors_of.len(),
        "tight edges between clusters form a cycle"
    );
    let rank = upward_ranks(successors_of, &any_order, work);
    order_by_priority(successors_of, |cluster| rank[cluster])
}
