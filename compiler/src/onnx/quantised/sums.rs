//! Sums of quantised tensors that a convolution has made: it adds in registers, with the bytes that two nodes give.

use zbmd_ir::Value;

use super::super::graph::{Graph, Node, ValueId};
use super::super::passes::{input, live_nodes, output, set_input, sole_producer, take_over};

const CONVOLUTION: &str = "QLinearConvChannelsLast";

/// First of the operands of a convolution that say what is added to its result: the tensor, its scale and zero point, and
/// those of the sum.
const ADDED: usize = 9;
/// Positions of scale and zero point of a sum, whose two tensors are at 0 and 3, each before its own.
const RESULT_SCALE: usize = 6;
const RESULT_ZERO: usize = 7;
/// Parameters that bound the bytes of a sum, and those of the convolution that bound them.
const BOUNDS: [(&str, &str); 2] = [("y_min", "sum_min"), ("y_max", "sum_max")];

/// Lets convolutions add what is added to their results; returns the sums that are gone.
pub(in super::super) fn join_sums(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for sum in live_nodes(graph, &["QLinearAdd"]) {
        let uses = graph.uses();
        let sides = [(0, 3), (3, 0)].into_iter();
        let candidate = sides
            .filter_map(|(own, other)| {
                let result = input(graph, sum, own)?;
                let convolution = sole_producer(graph, result, &[CONVOLUTION], &uses)?;
                let is_joined = can_join(graph, convolution, sum, other);
                is_joined.then_some((convolution, other))
            })
            // Of two convolutions the later one adds: its operand is there by then.
            .max();
        if let Some((convolution, other)) = candidate {
            join(graph, convolution, sum, other);
            changes += 1;
        }
    }
    changes
}

/// Whether a convolution can add the tensor at `other` of a sum to its result.
fn can_join(graph: &Graph, convolution: usize, sum: usize, other: usize) -> bool {
    let sum_type = &graph.values[output(graph, sum)].ty;
    let Some(added) = input(graph, sum, other) else {
        return false;
    };
    // The kernel adds byte by byte, and that of one filter for each channel adds nothing.
    let is_elementwise = graph.values[added].ty == *sum_type
        && graph.values[output(graph, convolution)].ty == *sum_type
        && graph.data(added).is_none();
    let adds_already = input(graph, convolution, ADDED).is_some();
    is_elementwise && !adds_already && !is_depthwise(graph, &graph.nodes[convolution])
}

fn is_depthwise(graph: &Graph, convolution: &Node) -> bool {
    let groups = convolution.params.get("group").and_then(Value::as_int);
    let weights: Option<ValueId> = convolution.inputs.get(3).copied().flatten();
    let group_channels = weights.map(|id| graph.values[id].ty.shape[1]);
    groups.unwrap_or(1) > 1 && group_channels == Some(1)
}

fn join(graph: &mut Graph, convolution: usize, sum: usize, other: usize) {
    let positions = [other, other + 1, other + 2, RESULT_SCALE, RESULT_ZERO];
    for (i, position) in positions.into_iter().enumerate() {
        if let Some(id) = input(graph, sum, position) {
            set_input(&mut graph.nodes[convolution], ADDED + i, id);
        }
    }
    for (of_sum, of_convolution) in BOUNDS {
        if let Some(bound) = graph.nodes[sum].params.get(of_sum).cloned() {
            let params = &mut graph.nodes[convolution].params;
            params.insert(of_convolution.to_owned(), bound);
        }
    }
    take_over(graph, convolution, sum);
}
