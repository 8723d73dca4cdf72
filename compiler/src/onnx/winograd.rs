//! The pass that lets convolutions of images have few multiplications, by Winograd's minimal filtering.

use zbmd_backends::op::Registry;
use zbmd_ir::Value;

use super::catalogue::{actor_of, resolve};
use super::graph::{Graph, Node};
use super::passes::live_nodes;

/// The parameter of the convolution.
const PARAMETER: &str = "winograd";
/// How much less work there must be: transformed weights take up to four times the room.
const WORTHWHILE: f64 = 0.8;

/// Sets the parameter where the kernel has less work with it; returns the nodes that changed.
pub(super) fn fewer_multiplications(graph: &mut Graph, registry: &Registry) -> usize {
    let mut changes = 0;
    for index in live_nodes(graph, &["ConvChannelsLast"]) {
        let direct = graph.nodes[index].clone();
        let mut transformed = direct.clone();
        transformed
            .params
            .insert(PARAMETER.to_owned(), Value::Int(1));

        // An op that refuses the parameter has windows of other sizes or steps.
        let works =
            operations(graph, registry, &direct).zip(operations(graph, registry, &transformed));
        if works.is_some_and(|(direct_work, work)| work < WORTHWHILE * direct_work) {
            graph.nodes[index] = transformed;
            changes += 1;
        }
    }
    changes
}

/// Arithmetic operations of a node, `None` where its op refuses it.
fn operations(graph: &Graph, registry: &Registry, node: &Node) -> Option<f64> {
    let signature = resolve(graph, registry, node.op, &node.params, &node.inputs).ok()?;
    let actor = actor_of(graph, node.op, &node.params, &node.inputs, signature);
    Some(registry.work(&actor, &graph.blobs).flops)
}
