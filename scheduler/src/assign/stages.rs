//! How many stages the pipeline of a placement has.

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};

use super::problem::PlacementChannel;

/// What one component of the graph reads from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ComponentInput {
    pub(crate) writer_component: u32,
    /// Units of which the devices decide whether the input is a hop.
    pub(crate) writer_unit: u32,
    pub(crate) reader_unit: u32,
}

/// The graph of a placement problem as far as it decides about stages.
///
/// Work that depends on another device runs at least one stage, that is one period, later. The nodes of one strongly
/// connected component, delayed channels included, share a stage, because each needs what the others did before.
///
/// A search counts the stages of every placement that it tries, so the inputs of all components lie in one list.
#[derive(Clone, Debug)]
pub(crate) struct StageGraph {
    /// Inputs of the components from others, component by component in topological order.
    inputs: Vec<ComponentInput>,
    /// End of each component's inputs in `inputs`.
    input_ends: Vec<usize>,
    /// Component of each node.
    component_of: Vec<usize>,
}

impl StageGraph {
    /// The graph of nodes that are placed one by one.
    pub(crate) fn new(nodes: usize, channels: &[PlacementChannel]) -> Self {
        let unit_of_node: Vec<usize> = (0..nodes).collect();
        Self::of_units(&unit_of_node, channels)
    }

    /// The graph of nodes of which those of a unit are placed together.
    pub(crate) fn of_units(unit_of_node: &[usize], channels: &[PlacementChannel]) -> Self {
        let nodes = unit_of_node.len();
        // Delayed channels belong to it: round a cycle each hop would add a stage for ever.
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

        // What stays within a component is never a hop, as its nodes share a stage.
        let mut inputs_of = vec![Vec::new(); components.len()];
        for channel in channels {
            let writer_component = component_of[channel.from as usize];
            for &reader in &channel.to {
                let reader_component = component_of[reader as usize];
                if reader_component != writer_component {
                    inputs_of[reader_component].push(ComponentInput {
                        writer_component: writer_component as u32,
                        writer_unit: unit_of_node[channel.from as usize] as u32,
                        reader_unit: unit_of_node[reader as usize] as u32,
                    });
                }
            }
        }

        let mut stage_graph = StageGraph {
            inputs: Vec::new(),
            input_ends: Vec::new(),
            component_of,
        };
        for mut component_inputs in inputs_of {
            // Several channels between the same units are one dependency.
            component_inputs.sort_unstable();
            component_inputs.dedup();
            stage_graph.inputs.extend(component_inputs);
            stage_graph.input_ends.push(stage_graph.inputs.len());
        }
        stage_graph
    }

    /// Inputs of each component from others, in topological order of the components.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &[ComponentInput]> {
        let starts = std::iter::once(0).chain(self.input_ends.iter().copied());
        starts
            .zip(&self.input_ends)
            .map(|(start, &end)| &self.inputs[start..end])
    }

    /// Component of each of so many units; `None` if a unit has nodes of several.
    pub(crate) fn component_of_units(
        &self,
        units: usize,
        unit_of_node: &[usize],
    ) -> Option<Vec<u32>> {
        let mut of_units: Vec<Option<u32>> = vec![None; units];
        for (&unit, &component) in unit_of_node.iter().zip(&self.component_of) {
            let known = of_units[unit].replace(component as u32);
            if known.is_some_and(|known| known != component as u32) {
                return None;
            }
        }
        of_units.into_iter().collect()
    }

    /// The first stage that each component can have, by its index. O(V + E).
    pub(crate) fn first_stages(&self, placement: &[u32]) -> Vec<u32> {
        let mut stage_of = Vec::with_capacity(self.input_ends.len());
        for inputs in self.inputs() {
            // Components are in topological order: the stages of all inputs are known.
            let mut stage = 0u32;
            for input in inputs {
                let is_hop =
                    placement[input.writer_unit as usize] != placement[input.reader_unit as usize];
                stage = stage.max(stage_of[input.writer_component as usize] + u32::from(is_hop));
            }
            stage_of.push(stage);
        }
        stage_of
    }

    /// Stages of a placement of the units: one more than the most hops from device to device on any path. O(V + E).
    pub(crate) fn count(&self, placement: &[u32]) -> u32 {
        let last_stage = self.first_stages(placement).into_iter().max();
        last_stage.map_or(0, |last| last + 1)
    }
}
