//! Batch normalisations by constants scale and shift each channel: what scales and shifts it again becomes a part of them.

use zbmd_ir::Value;

use super::graph::{Graph, Node, Uses, ValueId};
use super::passes::{
    f32_constant, f32_elements, input, live_nodes, output, producer_and_operand, set_input,
    take_over,
};

/// Positions of operands of a `BatchNormalization`.
const SCALE: usize = 1;
const SHIFT: usize = 2;
const MEAN: usize = 3;
const VARIANCE: usize = 4;

/// Puts products with, and sums with, one constant for each channel into the batch normalisation before them; returns the
/// nodes that are gone.
pub(super) fn merge_scales(graph: &mut Graph) -> usize {
    let mut changes = 0;
    // In the order of the graph: of a product and a sum behind it the first is gone when the second is looked at.
    for node in live_nodes(graph, &["Mul", "Add"]) {
        let uses = graph.uses();
        changes += usize::from(merge(graph, node, &uses).is_some());
    }
    changes
}

fn merge(graph: &mut Graph, node: usize, uses: &Uses) -> Option<()> {
    let (norm, operand) = producer_and_operand(graph, node, &["BatchNormalization"], uses)?;
    let statistics = ChannelStatistics::of(graph, &graph.nodes[norm])?;
    let ChannelStatistics {
        mut scale,
        mut shift,
        ..
    } = statistics;
    let channels = scale.len() as u32;
    let constants = channel_constants(graph, norm, operand, channels)?;
    let is_same_type = graph.values[output(graph, node)].ty == graph.values[output(graph, norm)].ty;
    if !is_same_type {
        return None;
    }

    let is_product = graph.nodes[node].op.operator == "Mul";
    for ((scale, shift), constant) in scale.iter_mut().zip(&mut shift).zip(&constants) {
        if is_product {
            *scale *= constant;
            *shift *= constant;
        } else {
            *shift += constant;
        }
    }

    // The old constants stay for other nodes that may share them.
    for (position, elements) in [(SCALE, scale), (SHIFT, shift)] {
        let old = input(graph, norm, position)?;
        let name = graph.values[old].name.clone();
        let constant = f32_constant(graph, &name, &[channels], &elements);
        set_input(&mut graph.nodes[norm], position, constant);
    }
    take_over(graph, norm, node);
    Some(())
}

/// What a batch normalisation by constants has for each channel.
pub(super) struct ChannelStatistics {
    pub(super) scale: Vec<f32>,
    pub(super) shift: Vec<f32>,
    pub(super) mean: Vec<f32>,
    variance: Vec<f32>,
    /// Added to variances.
    epsilon: f64,
}

impl ChannelStatistics {
    /// Those of a node, if they are constants.
    pub(super) fn of(graph: &Graph, norm: &Node) -> Option<Self> {
        // More outputs are the running statistics of training, which normalises by those of the batch.
        let &[(_, result)] = &norm.outputs[..] else {
            return None;
        };
        let is_training = norm.params.get("training_mode").and_then(Value::as_int);
        if is_training.is_some_and(|flag| flag != 0) {
            return None;
        }

        let channels = *graph.values[result].ty.shape.get(1)? as usize;
        let constant = |position: usize| {
            let elements = f32_elements(graph, norm.inputs.get(position).copied().flatten()?)?;
            (elements.len() == channels).then_some(elements)
        };
        let epsilon = norm.params.get("epsilon").and_then(Value::as_float);
        Some(Self {
            scale: constant(SCALE)?,
            shift: constant(SHIFT)?,
            mean: constant(MEAN)?,
            variance: constant(VARIANCE)?,
            epsilon: epsilon.unwrap_or(1e-5),
        })
    }

    /// What a channel is multiplied by once its mean is gone. In f64, so that what is made of it is rounded only once.
    pub(super) fn factor(&self, channel: usize) -> f64 {
        let variance = f64::from(self.variance[channel]);
        f64::from(self.scale[channel]) / (variance + self.epsilon).sqrt()
    }
}

/// One constant for each channel, or one for all.
fn channel_constants(
    graph: &Graph,
    norm: usize,
    operand: ValueId,
    channels: u32,
) -> Option<Vec<f32>> {
    let elements = f32_elements(graph, operand)?;
    if elements.len() == 1 {
        return Some(vec![elements[0]; channels as usize]);
    }
    // Shapes are aligned at their last dimensions: the channels are those before the spatial ones.
    let rank = graph.values[output(graph, norm)].ty.shape.len();
    let shape = &graph.values[operand].ty.shape;
    let channel_axis = (shape.len() + 1).checked_sub(rank)?;
    let mut dims = shape.iter().enumerate();
    let is_row = dims.all(|(axis, &d)| d == if axis == channel_axis { channels } else { 1 });
    is_row.then_some(elements)
}

/// The scale and shift of each channel that a batch normalisation by constants is.
pub(super) fn affine_of(graph: &Graph, norm: &Node) -> Option<(Vec<f32>, Vec<f32>)> {
    let statistics = ChannelStatistics::of(graph, norm)?;
    let channels = 0..statistics.scale.len();
    let scales = channels.clone().map(|c| statistics.factor(c) as f32);
    let shifts = channels.map(|c| {
        let shift = f64::from(statistics.shift[c]);
        (shift - f64::from(statistics.mean[c]) * statistics.factor(c)) as f32
    });
    Some((scales.collect(), shifts.collect()))
}
