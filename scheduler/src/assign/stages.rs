//! How many stages the pipeline of a placement has.

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};

use super::problem::PlacementChannel;

/// What one component of the graph reads from another.
#[derive(Clone, Copy, Debug)]
struct ComponentInput {
    writer_component: usize,
    writer: u32,
    reader: u32,
}

/// The graph of a placement problem as far as it decides about stages.
///
/// Work that depends on another device runs at least one stage, that is one period, later. The nodes of one strongly
/// connected component, delayed channels included, share a stage, because each needs what the others did before.
#[derive(Clone, Debug)]
pub(crate) struct StageGraph {
    /// Inputs of each component from others, in topological order of the components.
    inputs_of: Vec<Vec<ComponentInput>>,
}

impl StageGraph {
    pub(crate) fn new(nodes: usize, channels: &[PlacementChannel]) -> Self {
        let mut graph = DiGraph::<(), (), u32>::with_capacity(nodes, channels.len());
        for _ in 0..nodes {
            graph.add_node(());
        }
        for channel in channels {
            for &reader in &channel.to {
                graph.add_edge(
                    NodeIndex::new(channel.from as usize),
                    NodeIndex::new(reader as usize),
                    (),
                );
            }
        }

        // They come in reverse topological order.
        let components = kosaraju_scc(&graph);
        let mut component_of = vec![0; nodes];
        for (index, members) in components.iter().rev().enumerate() {
            for member in members {
                component_of[member.index()] = index;
            }
        }

        let mut inputs_of = vec![Vec::new(); components.len()];
        for channel in channels {
            let writer_component = component_of[channel.from as usize];
            for &reader in &channel.to {
                let reader_component = component_of[reader as usize];
                if reader_component != writer_component {
                    inputs_of[reader_component].push(ComponentInput {
                        writer_component,
                        writer: channel.from,
                        reader,
                    });
                }
            }
        }
        StageGraph { inputs_of }
    }

    /// Stages of a placement of the nodes: one more than the most hops from device to device on any path. O(V + E).
    pub(crate) fn count(&self, placement: &[u32]) -> u32 {
        let mut stage_of = vec![0u32; self.inputs_of.len()];
        for (component, inputs) in self.inputs_of.iter().enumerate() {
            let stages = inputs.iter().map(|input| {
                let is_hop = placement[input.writer as usize] != placement[input.reader as usize];
                stage_of[input.writer_component] + u32::from(is_hop)
            });
            stage_of[component] = stages.max().unwrap_or(0);
        }
        stage_of.into_iter().max().map_or(0, |last| last + 1)
    }
}
