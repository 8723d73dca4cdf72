//! Passes over the imported graph: each has a name, can be left out, and says how much it did. None changes what
//! the model computes beyond rounding; the tests hold each to that.

use bytes::Bytes;
use zbmd_backends::TensorOp;
use zbmd_backends::op::Registry;
use zbmd_ir::{DType, Params, TokenType, Value};

use crate::pass_report::PassReport;

use super::graph::{Graph, Node, Origin, Uses, ValueId};
use super::scales::ChannelStatistics;

/// A pass.
pub(crate) struct Pass {
    /// Name, as on the command line.
    pub(crate) name: &'static str,
    /// What it does, in a line.
    pub(crate) summary: &'static str,
    run: PassFunction,
}

/// What a pass does to a graph; returns the number of changes. Some ask the ops of a registry.
#[derive(Clone, Copy)]
enum PassFunction {
    Plain(fn(&mut Graph) -> usize),
    Asking(fn(&mut Graph, &Registry) -> usize),
}

const CHANNELS_LAST: &str = "channels-last";
const TURNED_PRODUCTS: &str = "turned-products";
const REPEATED_OPERANDS: &str = "repeated-operands";
const QUANTISED: &str = "quantised";

/// The passes for CPUs only. GPU kernels expect ONNX's order of channels, so that images with channels last would only add
/// transposes; there are none for what quantised nodes become, and sums in Einstein's notation are slow there.
pub(crate) const CPU_PASSES: [&str; 4] =
    [QUANTISED, TURNED_PRODUCTS, REPEATED_OPERANDS, CHANNELS_LAST];

/// Positions of operands of a `Conv`; the last one is ours.
const WEIGHTS: usize = 1;
const BIAS: usize = 2;
const RESIDUAL: usize = 3;
/// Position of the bias of a `MatMul`, which is ours too.
pub(super) const PRODUCT_BIAS: usize = 2;

/// All passes in their order. What is between quantised tensors goes first, as its quantiser has written it. Gelu and Swish become single nodes first, so that they can be fused as activations. A
/// convolution computes `act(conv + bias + residual)`: what goes into it follows in that order. Layouts come last,
/// because they look at the nodes that are left.
pub(crate) const PASSES: &[Pass] = &[
    Pass {
        name: QUANTISED,
        summary: "nodes between quantised tensors are computed in integers",
        run: PassFunction::Asking(super::quantised::compute_in_integers),
    },
    Pass {
        name: "transposes",
        summary: "transpositions in a row become one, or none",
        run: PassFunction::Plain(join_transposes),
    },
    Pass {
        name: "gelu",
        summary: "x/2 (1 + erf(x/√2)) in five nodes becomes one",
        run: PassFunction::Plain(fuse_gelu),
    },
    Pass {
        name: "swish",
        summary: "x · sigmoid(x) becomes one node",
        run: PassFunction::Plain(fuse_swish),
    },
    Pass {
        name: "scales",
        summary: "what scales and shifts channels behind a batch normalisation goes into it",
        run: PassFunction::Plain(super::scales::merge_scales),
    },
    Pass {
        name: "batch-norm",
        summary: "batch normalisation goes into the weights of the convolution before it",
        run: PassFunction::Plain(fold_batch_norm),
    },
    Pass {
        name: "bias",
        summary: "an added constant row goes into the product or convolution before it",
        run: PassFunction::Plain(fold_bias),
    },
    Pass {
        name: "factors",
        summary: "a power of two that a product is scaled by goes into constant weights before it",
        run: PassFunction::Plain(super::factors::merge_factors),
    },
    Pass {
        name: "residual",
        summary: "an added tensor goes into the convolution before it",
        run: PassFunction::Plain(fuse_residual),
    },
    Pass {
        name: "activation",
        summary: "an activation goes into the convolution or product before it",
        run: PassFunction::Plain(fuse_activation),
    },
    Pass {
        name: TURNED_PRODUCTS,
        summary: "transpositions around products of two tensors go into them",
        run: PassFunction::Plain(super::products::absorb_transposes),
    },
    Pass {
        name: REPEATED_OPERANDS,
        summary: "what is repeated for a product of two tensors is read once by it",
        run: PassFunction::Plain(super::products::absorb_repeats),
    },
    Pass {
        name: CHANNELS_LAST,
        summary: "images between convolutions have their channels last",
        run: PassFunction::Plain(super::layout::channels_last),
    },
    Pass {
        name: "affine",
        summary: "an activation goes into the scaling of channels before it, where these come last",
        run: PassFunction::Plain(fuse_affine_activation),
    },
    Pass {
        name: "quantised-residual",
        summary: "a quantised tensor is added by the convolution before it, where channels come last",
        run: PassFunction::Plain(super::quantised::join_sums),
    },
    Pass {
        name: "winograd",
        summary: "convolutions of images transform tiles where that saves multiplications",
        run: PassFunction::Asking(super::winograd::fewer_multiplications),
    },
];

/// Runs all passes but those in `skip`.
pub(super) fn run(graph: &mut Graph, skip: &[String], registry: &Registry) -> Vec<PassReport> {
    let mut reports = Vec::new();
    for pass in PASSES {
        let is_skipped = skip.iter().any(|skipped| skipped == pass.name);
        let changes = (!is_skipped).then(|| match pass.run {
            PassFunction::Plain(run) => run(graph),
            PassFunction::Asking(run) => run(graph, registry),
        });

        // Weights that are still read as floats are constants to all passes that follow.
        if pass.name == QUANTISED {
            super::quantised::fold_constants(graph, registry);
        }

        // The next pass counts readers: nodes that this one has bypassed must not be among them.
        graph.sweep();
        let actors = graph.nodes.iter().filter(|node| !node.dead).count();
        reports.push(PassReport {
            name: pass.name,
            summary: pass.summary,
            changes,
            actors,
        });
    }

    reports
}

/// The live node with one of these operators that produces a value, if that value has a single reader and the node
/// no other output: only then can the node be merged into its reader.
pub(super) fn sole_producer(
    graph: &Graph,
    id: ValueId,
    operators: &[&str],
    uses: &Uses,
) -> Option<usize> {
    let index = graph.producer(id)?;
    let node = &graph.nodes[index];
    let is_candidate =
        !node.dead && operators.contains(&node.op.operator) && node.outputs.len() == 1;
    (is_candidate && uses.of(id) == 1).then_some(index)
}

pub(super) fn live_nodes(graph: &Graph, operators: &[&str]) -> Vec<usize> {
    let mut live_nodes = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if !node.dead && operators.contains(&node.op.operator) {
            live_nodes.push(index);
        }
    }
    live_nodes
}

pub(super) fn input(graph: &Graph, node: usize, position: usize) -> Option<ValueId> {
    graph.nodes[node].inputs.get(position).copied().flatten()
}

pub(super) fn output(graph: &Graph, node: usize) -> ValueId {
    graph.nodes[node].outputs[0].1
}

/// The elements of an f32 constant, as bytes.
fn f32_bytes(graph: &Graph, id: ValueId) -> Option<&[[u8; 4]]> {
    if graph.values[id].ty.dtype != DType::F32 {
        return None;
    }
    let (elements, _) = graph.data(id)?.as_chunks();
    Some(elements)
}

/// Elements of an f32 constant.
pub(super) fn f32_elements(graph: &Graph, id: ValueId) -> Option<Vec<f32>> {
    let elements = f32_bytes(graph, id)?.iter();
    Some(elements.map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// The element of an f32 constant that has only one.
pub(super) fn f32_scalar(graph: &Graph, id: ValueId) -> Option<f32> {
    match f32_bytes(graph, id)? {
        [bytes] => Some(f32::from_le_bytes(*bytes)),
        _ => None,
    }
}

pub(super) fn f32_constant(
    graph: &mut Graph,
    name: &str,
    shape: &[u32],
    elements: &[f32],
) -> ValueId {
    f32_constant_of_bytes(
        graph,
        name,
        shape,
        elements.iter().map(|v| v.to_le_bytes()).collect(),
    )
}

/// A constant whose elements are given as bytes.
fn f32_constant_of_bytes(
    graph: &mut Graph,
    name: &str,
    shape: &[u32],
    elements: Vec<[u8; 4]>,
) -> ValueId {
    let token = TokenType::new(DType::F32, shape);
    graph.constant(name, token, Bytes::from(elements.into_flattened()))
}

/// Puts a value at an operand of a node.
pub(super) fn set_input(node: &mut Node, position: usize, id: ValueId) {
    if node.inputs.len() <= position {
        node.inputs.resize(position + 1, None);
    }
    node.inputs[position] = Some(id);
}

/// Lets node `keep` produce the value of node `gone`, which is thereby removed. Readers of that value, and its name if
/// it is an output of the model, stay as they are.
pub(super) fn take_over(graph: &mut Graph, keep: usize, gone: usize) {
    let value = output(graph, gone);
    let position = graph.nodes[keep].outputs[0].0;
    graph.nodes[keep].outputs = vec![(position, value)];
    graph.values[value].origin = Origin::Node(keep, position);
    graph.nodes[gone].dead = true;
}

/// The permutation of a `Transpose`; without the attribute ONNX reverses the dimensions.
pub(super) fn permutation_of(node: &Node, rank: usize) -> Option<Vec<usize>> {
    let Some(attribute) = node.params.get("perm") else {
        return Some((0..rank).rev().collect());
    };
    let dims = attribute.as_list()?.iter();
    dims.map(|dim| usize::try_from(dim.as_int()?).ok().filter(|d| *d < rank))
        .collect()
}

fn join_transposes(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for second in live_nodes(graph, &["Transpose"]) {
        let uses = graph.uses();
        let Some(between) = input(graph, second, 0) else {
            continue;
        };
        let Some(first) = sole_producer(graph, between, &["Transpose"], &uses) else {
            continue;
        };
        let Some(source) = input(graph, first, 0) else {
            continue;
        };

        let rank = graph.values[between].ty.shape.len();
        let Some(first_permutation) = permutation_of(&graph.nodes[first], rank) else {
            continue;
        };
        let Some(second_permutation) = permutation_of(&graph.nodes[second], rank) else {
            continue;
        };

        // Axis i of the result is axis second[i] of the value between, which is axis first[second[i]] of the source.
        let joined: Vec<usize> = second_permutation
            .iter()
            .map(|&dim| first_permutation[dim])
            .collect();
        if joined.iter().copied().eq(0..joined.len()) {
            // The two undo each other: readers of the result take the source.
            let result = output(graph, second);
            graph.nodes[second].dead = true;
            graph.replace(result, source);
        } else {
            let dims = joined.iter().map(|&dim| Value::Int(dim as i64)).collect();
            let node = &mut graph.nodes[second];
            node.params.insert("perm".into(), Value::List(dims));
            node.inputs = vec![Some(source)];
        }

        changes += 1;
    }

    changes
}

/// The other operand of a node of two, if one of them is a constant of one number.
fn other_operand(graph: &Graph, node: usize, wanted: f32) -> Option<ValueId> {
    let left = input(graph, node, 0)?;
    let right = input(graph, node, 1)?;
    if is_number(graph, right, wanted) {
        Some(left)
    } else {
        is_number(graph, left, wanted).then_some(right)
    }
}

/// Whether a value is a constant of this one number, up to the rounding of the exporter.
fn is_number(graph: &Graph, id: ValueId, wanted: f32) -> bool {
    f32_scalar(graph, id).is_some_and(|number| (number - wanted).abs() < 1e-6 * wanted.abs())
}

/// The sole producer (among `operators`) of one of a node's two operands, and the other operand.
pub(super) fn producer_and_operand(
    graph: &Graph,
    node: usize,
    operators: &[&str],
    uses: &Uses,
) -> Option<(usize, ValueId)> {
    let left = input(graph, node, 0)?;
    let right = input(graph, node, 1)?;
    match sole_producer(graph, left, operators, uses) {
        Some(producer) => Some((producer, right)),
        None => sole_producer(graph, right, operators, uses).map(|producer| (producer, left)),
    }
}

/// Makes a node one of an operator with a single operand and no parameters; its output stays.
fn make_unary(graph: &mut Graph, node_index: usize, operator: &str, operand: ValueId) -> bool {
    let Some(op) = TensorOp::find(operator) else {
        return false;
    };

    let node = &mut graph.nodes[node_index];
    node.op = op;
    node.params = Params::new();
    node.inputs = vec![Some(operand)];
    node.outputs[0].0 = 0;
    let value = node.outputs[0].1;
    graph.values[value].origin = Origin::Node(node_index, 0);
    true
}

/// A Gelu written out, as exporters do.
struct WrittenGelu {
    /// Its last product.
    last: usize,
    input: ValueId,
}

fn fuse_gelu(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for erf in live_nodes(graph, &["Erf"]) {
        let Some(WrittenGelu { last, input }) = find_gelu(graph, erf) else {
            continue;
        };
        // Broadcasting may have made the result larger than the input.
        let same_type = graph.values[input].ty == graph.values[output(graph, last)].ty;
        changes += usize::from(same_type && make_unary(graph, last, "Gelu", input));
    }
    changes
}

/// The Gelu around an `Erf`: `x/2 (1 + erf(x/√2))`, with the products in any order.
fn find_gelu(graph: &Graph, erf: usize) -> Option<WrittenGelu> {
    let uses = graph.uses();
    let scaled = input(graph, erf, 0)?;
    let scaling = graph.producer(scaled)?;
    let x = match graph.nodes[scaling].op.operator {
        "Div" => input(graph, scaling, 0).filter(|_| {
            let divisor = input(graph, scaling, 1).and_then(|id| f32_scalar(graph, id));
            divisor.is_some_and(|divisor| (divisor - std::f32::consts::SQRT_2).abs() < 1e-5)
        })?,
        "Mul" => other_operand(graph, scaling, std::f32::consts::FRAC_1_SQRT_2)?,
        _ => return None,
    };

    let add = only_reader(graph, output(graph, erf), "Add", &uses)?;
    other_operand(graph, add, 1.0)?;
    let shifted = output(graph, add);
    let product = only_reader(graph, shifted, "Mul", &uses)?;
    let operands = [input(graph, product, 0)?, input(graph, product, 1)?];
    let other = operands.into_iter().find(|&id| id != shifted)?;

    // Either half · (…) and then x, or x · (…) and then the half, or (x · half) · (…).
    if other_operand(graph, product, 0.5) == Some(shifted) {
        let halved = output(graph, product);
        let last = only_reader(graph, halved, "Mul", &uses)?;
        let operands = [input(graph, last, 0)?, input(graph, last, 1)?];
        return operands
            .contains(&x)
            .then_some(WrittenGelu { last, input: x });
    }
    if other == x {
        let half = only_reader(graph, output(graph, product), "Mul", &uses)?;
        other_operand(graph, half, 0.5)?;
        return Some(WrittenGelu {
            last: half,
            input: x,
        });
    }
    let half = sole_producer(graph, other, &["Mul"], &uses)?;
    (other_operand(graph, half, 0.5)? == x).then_some(WrittenGelu {
        last: product,
        input: x,
    })
}

/// The live node of an operator that reads a value, if it is the only reader.
pub(super) fn only_reader(
    graph: &Graph,
    id: ValueId,
    operator: &str,
    uses: &Uses,
) -> Option<usize> {
    if uses.of(id) != 1 {
        return None;
    }
    let mut candidates = live_nodes(graph, &[operator]).into_iter();
    candidates.find(|&node| graph.nodes[node].inputs.contains(&Some(id)))
}

fn fuse_swish(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for product in live_nodes(graph, &["Mul"]) {
        let uses = graph.uses();
        let operands = producer_and_operand(graph, product, &["Sigmoid"], &uses);
        let Some((sigmoid, x)) = operands else {
            continue;
        };

        // The two operands of another gate, such as that of a GLU, differ.
        if input(graph, sigmoid, 0) == Some(x) {
            changes += usize::from(make_unary(graph, product, "Swish", x));
        }
    }
    changes
}

/// Whether a convolution still ends with its bias. Its kernel computes `act(conv + bias + residual)`, so nothing can be
/// put into weights or bias once an activation or a residual operand comes after them.
fn ends_with_bias(graph: &Graph, conv: usize) -> bool {
    !graph.nodes[conv].params.contains_key("act") && input(graph, conv, RESIDUAL).is_none()
}

fn fold_batch_norm(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for norm in live_nodes(graph, &["BatchNormalization"]) {
        let uses = graph.uses();
        let Some(x) = input(graph, norm, 0) else {
            continue;
        };
        let Some(conv) = sole_producer(graph, x, &["Conv"], &uses) else {
            continue;
        };

        if !ends_with_bias(graph, conv) {
            continue;
        }
        let Some(folded) = normalised_conv(graph, norm, conv) else {
            continue;
        };
        let Some(old_weights) = input(graph, conv, WEIGHTS) else {
            continue;
        };

        // The old weights stay for other convolutions that may share them.
        let name = graph.values[old_weights].name.clone();
        let shape = graph.values[old_weights].ty.shape.clone();
        let weights = f32_constant_of_bytes(graph, &name, &shape, folded.weights);
        let filters = folded.bias.len() as u32;
        let bias = f32_constant(graph, &format!("{name}.bias"), &[filters], &folded.bias);
        set_input(&mut graph.nodes[conv], WEIGHTS, weights);
        set_input(&mut graph.nodes[conv], BIAS, bias);
        take_over(graph, conv, norm);
        changes += 1;
    }

    changes
}

/// What a convolution adds up.
struct ConvConstants {
    /// As bytes: they may be hundreds of megabytes, of which no second copy is made.
    weights: Vec<[u8; 4]>,
    /// One for each filter.
    bias: Vec<f32>,
}

/// Weights and bias of a convolution with the normalisation behind it put in:
/// `scale (conv + bias - mean) / √(variance + ε) + shift` is a convolution again.
fn normalised_conv(graph: &Graph, norm: usize, conv: usize) -> Option<ConvConstants> {
    let statistics = ChannelStatistics::of(graph, &graph.nodes[norm])?;
    let filters = statistics.scale.len();
    let old_weights = f32_bytes(graph, input(graph, conv, WEIGHTS)?)?;
    let old_bias = match input(graph, conv, BIAS) {
        Some(bias) => f32_elements(graph, bias)?,
        None => vec![0.0; filters],
    };
    if filters == 0 || old_bias.len() != filters || !old_weights.len().is_multiple_of(filters) {
        return None;
    }

    // Weights are [filters, …], so each filter is one run of them. f64, so that each result is rounded only once.
    let filter_length = old_weights.len() / filters;
    let mut weights = Vec::with_capacity(old_weights.len());
    let mut bias = Vec::with_capacity(filters);
    for (f, filter) in old_weights.chunks_exact(filter_length.max(1)).enumerate() {
        let factor = statistics.factor(f);
        weights.extend(filter.iter().map(|bytes| {
            let weight = (f64::from(f32::from_le_bytes(*bytes)) * factor) as f32;
            weight.to_le_bytes()
        }));
        let centred = f64::from(old_bias[f]) - f64::from(statistics.mean[f]);
        bias.push((centred * factor + f64::from(statistics.shift[f])) as f32);
    }

    Some(ConvConstants { weights, bias })
}

fn fold_bias(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for add in live_nodes(graph, &["Add"]) {
        let uses = graph.uses();
        if let Some((conv, added)) = producer_and_operand(graph, add, &["Conv"], &uses) {
            changes += usize::from(fold_channel_bias(graph, add, conv, added).is_some());
            continue;
        }

        let Some((product, added)) = producer_and_operand(graph, add, &["MatMul"], &uses) else {
            continue;
        };
        if takes_bias_row(graph, product, added) {
            set_input(&mut graph.nodes[product], PRODUCT_BIAS, added);
            take_over(graph, product, add);
            changes += 1;
        }
    }

    changes
}

/// Whether a product has room for a bias, and the value is one: a constant row as wide as the product.
fn takes_bias_row(graph: &Graph, product: usize, added: ValueId) -> bool {
    let row = &graph.values[added].ty;
    let width = graph.values[output(graph, product)].ty.shape.last();
    let is_constant_row = graph.data(added).is_some() && row.shape.len() == 1;

    // A product with a vector has no columns: its last dimension is not the one that the bias runs along.
    let has_columns =
        input(graph, product, 1).is_some_and(|right| graph.values[right].ty.shape.len() > 1);
    is_constant_row
        && row.shape.first() == width
        && row.dtype == DType::F32
        && input(graph, product, PRODUCT_BIAS).is_none()
        && has_columns
}

/// Puts what a node adds to each channel into the convolution before it.
fn fold_channel_bias(graph: &mut Graph, add: usize, conv: usize, added: ValueId) -> Option<()> {
    let sum_type = &graph.values[output(graph, add)].ty;
    let filters = *sum_type.shape.get(1)?;
    let row = [filters, 1, 1];
    let added_shape = &graph.values[added].ty.shape;
    let is_row =
        added_shape[..] == row || (added_shape.first() == Some(&1) && added_shape[1..] == row);
    let is_foldable = sum_type.shape.len() == 4
        && graph.values[output(graph, conv)].ty == *sum_type
        && is_row
        && ends_with_bias(graph, conv);
    let mut bias = f32_elements(graph, added).filter(|_| is_foldable)?;

    // A bias that the convolution has already is added to the new one.
    if let Some(old_bias) = input(graph, conv, BIAS) {
        let old_bias = f32_elements(graph, old_bias)?;
        for (sum, old) in bias.iter_mut().zip(old_bias) {
            *sum += old;
        }
    }

    let name = graph.values[added].name.clone();
    let bias = f32_constant(graph, &name, &[filters], &bias);
    set_input(&mut graph.nodes[conv], BIAS, bias);
    take_over(graph, conv, add);
    Some(())
}

fn fuse_residual(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for sum in live_nodes(graph, &["Add", "Sum"]) {
        let uses = graph.uses();
        if graph.nodes[sum].inputs.len() != 2 {
            continue;
        }
        let Some((conv, added)) = producer_and_operand(graph, sum, &["Conv"], &uses) else {
            continue;
        };

        // The kernel adds element by element, without broadcasting: all three types are the same.
        let sum_type = &graph.values[output(graph, sum)].ty;
        let is_elementwise = sum_type.dtype == DType::F32
            && graph.values[added].ty == *sum_type
            && graph.values[output(graph, conv)].ty == *sum_type;
        if is_elementwise && ends_with_bias(graph, conv) {
            set_input(&mut graph.nodes[conv], RESIDUAL, added);
            take_over(graph, conv, sum);
            changes += 1;
        }
    }

    changes
}

/// A bound of a `Clip`, which may be left out; `None` if it is not constant.
fn clip_bound(graph: &Graph, clip: usize, position: usize, default: f32) -> Option<f32> {
    match input(graph, clip, position) {
        None => Some(default),
        Some(id) => f32_scalar(graph, id),
    }
}

/// Operators that a convolution or product can apply to its result, if their parameters allow it.
const ACTIVATIONS: [&str; 7] = [
    "Relu",
    "Clip",
    "Sigmoid",
    "Tanh",
    "Swish",
    "Gelu",
    "HardSwish",
];

/// The value of the parameter `act` for an activation.
fn activation_name(node: &Node) -> Option<&'static str> {
    // Kernels know Swish with alpha = 1 and the exact Gelu only.
    let has_variant = node.params.contains_key("alpha") || node.params.contains_key("approximate");
    match node.op.operator {
        "Relu" => Some("relu"),
        "Clip" => Some("clip"),
        "Sigmoid" => Some("sigmoid"),
        "Tanh" => Some("tanh"),
        "Swish" if !has_variant => Some("silu"),
        "Gelu" if !has_variant => Some("gelu"),
        "HardSwish" => Some("hardswish"),
        _ => None,
    }
}

fn fuse_activation(graph: &mut Graph) -> usize {
    fuse_activation_into(graph, &["Conv", "MatMul", "Gemm"])
}

fn fuse_affine_activation(graph: &mut Graph) -> usize {
    fuse_activation_into(graph, &["AffineChannelsLast"])
}

/// Puts activations into the nodes of these operators before them.
fn fuse_activation_into(graph: &mut Graph, operators: &[&str]) -> usize {
    let mut changes = 0;
    for activation in live_nodes(graph, &ACTIVATIONS) {
        let uses = graph.uses();
        let Some(x) = input(graph, activation, 0) else {
            continue;
        };
        let Some(before) = sole_producer(graph, x, operators, &uses) else {
            continue;
        };
        let has_activation = graph.nodes[before].params.contains_key("act");
        if has_activation || graph.values[x].ty.dtype != DType::F32 {
            continue;
        }

        let Some(name) = activation_name(&graph.nodes[activation]) else {
            continue;
        };
        if name == "clip" {
            let Some(low) = clip_bound(graph, activation, 1, f32::MIN) else {
                continue;
            };
            let Some(high) = clip_bound(graph, activation, 2, f32::MAX) else {
                continue;
            };
            let params = &mut graph.nodes[before].params;
            params.insert("act_min".into(), Value::Float(f64::from(low)));
            params.insert("act_max".into(), Value::Float(f64::from(high)));
        }

        let params = &mut graph.nodes[before].params;
        params.insert("act".into(), Value::Str(name.to_owned()));
        take_over(graph, before, activation);
        changes += 1;
    }

    changes
}
