//! Passes over the imported graph: each has a name, can be left out, and says how much it did. None changes what
//! the model computes beyond rounding; the tests hold each to that.

use std::collections::BTreeMap;

use bytes::Bytes;
use zbmd_backends::TensorOp;
use zbmd_ir::{DType, Params, TokenType, Value};

use crate::pass_report::PassReport;

use super::graph::{Graph, Node, Origin, ValueId};

/// A pass.
pub(crate) struct Pass {
    /// Name, as on the command line.
    pub(crate) name: &'static str,
    /// What it does, in a line.
    pub(crate) summary: &'static str,
    run: fn(&mut Graph) -> usize,
}

/// The pass that only CPUs gain from.
pub(crate) const CHANNELS_LAST: &str = "channels-last";

/// All passes in their order.
pub(crate) const PASSES: &[Pass] = &[
    Pass {
        name: "transposes",
        summary: "transpositions in a row become one, or none",
        run: transposes,
    },
    Pass {
        name: "gelu",
        summary: "x/2 (1 + erf(x/√2)) in five nodes becomes one",
        run: gelu,
    },
    Pass {
        name: "swish",
        summary: "x · sigmoid(x) becomes one node",
        run: swish,
    },
    Pass {
        name: "batch-norm",
        summary: "batch normalisation goes into the weights of the convolution before it",
        run: batch_norm,
    },
    Pass {
        name: "bias",
        summary: "an added constant row goes into the product or convolution before it",
        run: bias,
    },
    Pass {
        name: "residual",
        summary: "an added tensor goes into the convolution before it",
        run: residual,
    },
    Pass {
        name: "activation",
        summary: "an activation goes into the convolution or product before it",
        run: activation,
    },
    Pass {
        name: CHANNELS_LAST,
        summary: "images between convolutions lie with their channels last",
        run: super::layout::channels_last,
    },
];

/// Runs all passes but those in `skip`.
pub(super) fn run(graph: &mut Graph, skip: &[String]) -> Vec<PassReport> {
    let mut out = Vec::new();
    for pass in PASSES {
        let changes = (!skip.iter().any(|s| s == pass.name)).then(|| (pass.run)(graph));
        graph.sweep();
        let actors = graph.nodes.iter().filter(|n| !n.dead).count();
        out.push(PassReport {
            name: pass.name,
            summary: pass.summary,
            changes,
            actors,
        });
    }
    out
}

/// The live node of an operator that makes a value which one reader alone reads.
fn only(
    graph: &Graph,
    id: ValueId,
    operators: &[&str],
    uses: &BTreeMap<ValueId, usize>,
) -> Option<usize> {
    let n = graph.producer(id)?;
    let node = &graph.nodes[n];
    let fits = !node.dead && operators.contains(&node.op.operator) && node.outputs.len() == 1;
    (fits && uses.get(&id) == Some(&1)).then_some(n)
}

fn live(graph: &Graph, operators: &[&str]) -> Vec<usize> {
    let mut live_nodes = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if !node.dead && operators.contains(&node.op.operator) {
            live_nodes.push(index);
        }
    }
    live_nodes
}

fn input(graph: &Graph, n: usize, position: usize) -> Option<ValueId> {
    graph.nodes[n].inputs.get(position).copied().flatten()
}

fn output(graph: &Graph, n: usize) -> ValueId {
    graph.nodes[n].outputs[0].1
}

/// Elements of an f32 constant.
fn floats(graph: &Graph, id: ValueId) -> Option<Vec<f32>> {
    let data = graph
        .data(id)
        .filter(|_| graph.values[id].ty.dtype == DType::F32)?;
    Some(
        data.chunks_exact(4)
            .map(|c| f32::from_le_bytes(c.try_into().unwrap_or_default()))
            .collect(),
    )
}

/// The elements of an operand that is an f32 constant.
fn float_input(graph: &Graph, n: usize, position: usize) -> Option<Vec<f32>> {
    floats(graph, input(graph, n, position)?)
}

/// The one element of an f32 constant.
fn number(graph: &Graph, id: ValueId) -> Option<f32> {
    floats(graph, id).filter(|f| f.len() == 1).map(|f| f[0])
}

fn store(graph: &mut Graph, name: &str, shape: &[u32], data: &[f32]) -> ValueId {
    let bytes: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
    graph.constant(name, TokenType::new(DType::F32, shape), Bytes::from(bytes))
}

/// Puts a value at an operand of a node.
fn set_input(node: &mut Node, position: usize, id: ValueId) {
    if node.inputs.len() <= position {
        node.inputs.resize(position + 1, None);
    }
    node.inputs[position] = Some(id);
}

/// Lets node `keep` make what node `gone` made, whose name it takes over where it has none of its own left.
fn take_over(graph: &mut Graph, keep: usize, gone: usize) {
    let value = output(graph, gone);
    let position = graph.nodes[keep].outputs[0].0;
    graph.nodes[keep].outputs = vec![(position, value)];
    graph.values[value].origin = Origin::Node(keep, position);
    graph.nodes[gone].dead = true;
}

fn perm(node: &Node, rank: usize) -> Option<Vec<usize>> {
    match node.params.get("perm") {
        None => Some((0..rank).rev().collect()),
        Some(v) => v
            .as_list()?
            .iter()
            .map(|d| usize::try_from(d.as_int()?).ok().filter(|d| *d < rank))
            .collect(),
    }
}

fn transposes(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for n in live(graph, &["Transpose"]) {
        let uses = graph.uses();
        let Some(x) = input(graph, n, 0) else {
            continue;
        };
        let rank = graph.values[x].ty.shape.len();
        let Some(before) = only(graph, x, &["Transpose"], &uses) else {
            continue;
        };
        let (Some(first), Some(second)) = (
            perm(&graph.nodes[before], rank),
            perm(&graph.nodes[n], rank),
        ) else {
            continue;
        };
        let Some(from) = input(graph, before, 0) else {
            continue;
        };
        let joined: Vec<usize> = second.iter().map(|&d| first[d]).collect();
        if joined.iter().enumerate().all(|(i, &d)| i == d) {
            let gone = output(graph, n);
            graph.nodes[n].dead = true;
            graph.replace(gone, from);
        } else {
            let list = joined.iter().map(|&d| Value::Int(d as i64)).collect();
            graph.nodes[n]
                .params
                .insert("perm".into(), Value::List(list));
            graph.nodes[n].inputs = vec![Some(from)];
        }

        changes += 1;
    }

    changes
}

/// The other operand of a node of two, if one of them is a constant of one number.
fn with_number(graph: &Graph, n: usize, wanted: f32) -> Option<ValueId> {
    let (a, b) = (input(graph, n, 0)?, input(graph, n, 1)?);
    if is_number(graph, b, wanted) {
        Some(a)
    } else {
        is_number(graph, a, wanted).then_some(b)
    }
}

/// Whether a value is a constant of one number, or of one that rounding made of it.
fn is_number(graph: &Graph, id: ValueId, wanted: f32) -> bool {
    let found = number(graph, id);
    found.is_some_and(|found| (found - wanted).abs() < 1e-6 * wanted.abs())
}

/// The producer among `operators` of either operand of n, which nobody else reads, and the other operand.
fn either(
    graph: &Graph,
    n: usize,
    operators: &[&str],
    uses: &BTreeMap<ValueId, usize>,
) -> Option<(usize, ValueId)> {
    let (a, b) = (input(graph, n, 0)?, input(graph, n, 1)?);
    match only(graph, a, operators, uses) {
        Some(producer) => Some((producer, b)),
        None => only(graph, b, operators, uses).map(|producer| (producer, a)),
    }
}

fn plain(graph: &mut Graph, n: usize, operator: &str, x: ValueId) -> bool {
    let Some(op) = TensorOp::find(operator) else {
        return false;
    };
    let node = &mut graph.nodes[n];
    node.op = op;
    node.params = Params::new();
    node.inputs = vec![Some(x)];
    node.outputs[0].0 = 0;
    let value = node.outputs[0].1;
    graph.values[value].origin = Origin::Node(n, 0);
    true
}

/// A Gelu written out, as exporters do.
struct WrittenGelu {
    /// Its last product.
    last: usize,
    input: ValueId,
}

fn gelu(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for erf in live(graph, &["Erf"]) {
        let Some(WrittenGelu { last, input }) = find_gelu(graph, erf) else {
            continue;
        };
        // Broadcasting may have made the result larger than the input.
        let has_type = graph.values[input].ty == graph.values[output(graph, last)].ty;
        changes += usize::from(has_type && plain(graph, last, "Gelu", input));
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
            let divisor = input(graph, scaling, 1).and_then(|id| number(graph, id));
            divisor.is_some_and(|divisor| (divisor - std::f32::consts::SQRT_2).abs() < 1e-5)
        })?,
        "Mul" => with_number(graph, scaling, std::f32::consts::FRAC_1_SQRT_2)?,
        _ => return None,
    };

    let add = only_reader(graph, output(graph, erf), "Add", &uses)?;
    with_number(graph, add, 1.0)?;
    let shifted = output(graph, add);
    let product = only_reader(graph, shifted, "Mul", &uses)?;
    let operands = [input(graph, product, 0)?, input(graph, product, 1)?];
    let other = operands.into_iter().find(|&id| id != shifted)?;

    // Either x · (…) and then the half, or (x · half) · (…).
    if other == x {
        let half = only_reader(graph, output(graph, product), "Mul", &uses)?;
        with_number(graph, half, 0.5)?;
        return Some(WrittenGelu {
            last: half,
            input: x,
        });
    }
    let half = only(graph, other, &["Mul"], &uses)?;
    (with_number(graph, half, 0.5)? == x).then_some(WrittenGelu {
        last: product,
        input: x,
    })
}

/// The live node of an operator that reads a value, if it alone does.
fn only_reader(
    graph: &Graph,
    id: ValueId,
    operator: &str,
    uses: &BTreeMap<ValueId, usize>,
) -> Option<usize> {
    if uses.get(&id) != Some(&1) {
        return None;
    }
    let mut nodes = live(graph, &[operator]).into_iter();
    nodes.find(|&node| graph.nodes[node].inputs.contains(&Some(id)))
}

fn swish(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for n in live(graph, &["Mul"]) {
        let uses = graph.uses();
        let Some((sigmoid, x)) = either(graph, n, &["Sigmoid"], &uses) else {
            continue;
        };
        if input(graph, sigmoid, 0) == Some(x) {
            changes += usize::from(plain(graph, n, "Swish", x));
        }
    }
    changes
}

fn batch_norm(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for n in live(graph, &["BatchNormalization"]) {
        let uses = graph.uses();
        let Some(x) = input(graph, n, 0) else {
            continue;
        };
        let Some(conv) = only(graph, x, &["Conv"], &uses) else {
            continue;
        };
        let free = !graph.nodes[conv].params.contains_key("act") && input(graph, conv, 3).is_none();
        let Some((weights, bias)) =
            folded(graph, n, conv).filter(|_| free && graph.nodes[n].outputs.len() == 1)
        else {
            continue;
        };
        let Some(w) = input(graph, conv, 1) else {
            continue;
        };
        let (name, shape) = (
            graph.values[w].name.clone(),
            graph.values[w].ty.shape.clone(),
        );
        let w = store(graph, &name, &shape, &weights);
        let b = store(graph, &format!("{name}.bias"), &[bias.len() as u32], &bias);
        set_input(&mut graph.nodes[conv], 1, w);
        set_input(&mut graph.nodes[conv], 2, b);
        take_over(graph, conv, n);
        changes += 1;
    }

    changes
}

/// Weights and bias of a convolution with the normalisation behind it put in.
fn folded(graph: &Graph, n: usize, conv: usize) -> Option<(Vec<f32>, Vec<f32>)> {
    let scale = float_input(graph, n, 1)?;
    let shift = float_input(graph, n, 2)?;
    let mean = float_input(graph, n, 3)?;
    let variance = float_input(graph, n, 4)?;
    let epsilon = graph.nodes[n]
        .params
        .get("epsilon")
        .and_then(Value::as_float)
        .unwrap_or(1e-5);
    let mut weights = floats(graph, input(graph, conv, 1)?)?;
    let bias = match input(graph, conv, 2) {
        Some(b) => floats(graph, b)?,
        None => vec![0.0; scale.len()],
    };
    if bias.len() != scale.len() || weights.len() % scale.len().max(1) != 0 || scale.is_empty() {
        return None;
    }
    let each = weights.len() / scale.len();
    let mut shifted = Vec::new();
    for (f, filter) in weights.chunks_exact_mut(each.max(1)).enumerate() {
        let by = f64::from(scale[f]) / (f64::from(variance[f]) + epsilon).sqrt();
        filter
            .iter_mut()
            .for_each(|w| *w = (f64::from(*w) * by) as f32);
        shifted.push(((f64::from(bias[f]) - f64::from(mean[f])) * by + f64::from(shift[f])) as f32);
    }

    Some((weights, shifted))
}

fn bias(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for n in live(graph, &["Add"]) {
        let uses = graph.uses();
        if let Some((conv, other)) = either(graph, n, &["Conv"], &uses) {
            changes += usize::from(channel_bias(graph, n, conv, other).is_some());
            continue;
        }

        let Some((product, other)) = either(graph, n, &["MatMul"], &uses) else {
            continue;
        };
        let width = graph.values[output(graph, product)]
            .ty
            .shape
            .last()
            .copied();
        let row = graph.data(other).is_some() && graph.values[other].ty.shape.len() == 1;
        let fits = row
            && Some(graph.values[other].ty.shape[0]) == width
            && graph.values[other].ty.dtype == DType::F32
            && input(graph, product, 2).is_none()
            && input(graph, product, 1).is_some_and(|i| graph.values[i].ty.shape.len() > 1);
        if fits {
            set_input(&mut graph.nodes[product], 2, other);
            take_over(graph, product, n);
            changes += 1;
        }
    }

    changes
}

/// Puts what node n adds to each channel into the convolution before it.
fn channel_bias(graph: &mut Graph, n: usize, conv: usize, other: ValueId) -> Option<()> {
    let ty = &graph.values[output(graph, n)].ty;
    let filters = *ty.shape.get(1)?;
    let ones = [filters, 1, 1];
    let shape = &graph.values[other].ty.shape;
    let fits = ty.shape.len() == 4
        && graph.values[output(graph, conv)].ty == *ty
        && (shape[..] == ones || (shape.first() == Some(&1) && shape[1..] == ones))
        && !graph.nodes[conv].params.contains_key("act")
        && input(graph, conv, 3).is_none();
    let mut bias = floats(graph, other).filter(|_| fits)?;
    if let Some(own) = input(graph, conv, 2) {
        bias.iter_mut()
            .zip(floats(graph, own)?)
            .for_each(|(b, own)| *b += own);
    }

    let name = graph.values[other].name.clone();
    let bias = store(graph, &name, &[filters], &bias);
    set_input(&mut graph.nodes[conv], 2, bias);
    take_over(graph, conv, n);
    Some(())
}

fn residual(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for n in live(graph, &["Add", "Sum"]) {
        let uses = graph.uses();
        if graph.nodes[n].inputs.len() != 2 {
            continue;
        }
        let Some((conv, other)) = either(graph, n, &["Conv"], &uses) else {
            continue;
        };
        let ty = &graph.values[output(graph, n)].ty;
        let free = !graph.nodes[conv].params.contains_key("act") && input(graph, conv, 3).is_none();
        if free
            && ty.dtype == DType::F32
            && graph.values[other].ty == *ty
            && graph.values[output(graph, conv)].ty == *ty
        {
            set_input(&mut graph.nodes[conv], 3, other);
            take_over(graph, conv, n);
            changes += 1;
        }
    }

    changes
}

/// A bound of a `Clip`, which may be left out; `None` if it is not constant.
fn clip_bound(graph: &Graph, n: usize, position: usize, default: f32) -> Option<f32> {
    match input(graph, n, position) {
        None => Some(default),
        Some(id) => number(graph, id),
    }
}

fn activation(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for n in live(
        graph,
        &[
            "Relu",
            "Clip",
            "Sigmoid",
            "Tanh",
            "Swish",
            "Gelu",
            "HardSwish",
        ],
    ) {
        let uses = graph.uses();
        let Some(x) = input(graph, n, 0) else {
            continue;
        };
        let Some(before) = only(graph, x, &["Conv", "MatMul", "Gemm"], &uses) else {
            continue;
        };
        if graph.nodes[before].params.contains_key("act") || graph.values[x].ty.dtype != DType::F32
        {
            continue;
        }
        let node = &graph.nodes[n];
        let tuned = node.params.contains_key("alpha") || node.params.contains_key("approximate");
        let name = match node.op.operator {
            "Relu" => "relu",
            "Clip" => "clip",
            "Sigmoid" => "sigmoid",
            "Tanh" => "tanh",
            "Swish" if !tuned => "silu",
            "Gelu" if !tuned => "gelu",
            "HardSwish" => "hardswish",
            _ => continue,
        };

        if name == "clip" {
            let (Some(low), Some(high)) = (
                clip_bound(graph, n, 1, f32::MIN),
                clip_bound(graph, n, 2, f32::MAX),
            ) else {
                continue;
            };
            let params = &mut graph.nodes[before].params;
            params.insert("act_min".into(), Value::Float(f64::from(low)));
            params.insert("act_max".into(), Value::Float(f64::from(high)));
        }

        graph.nodes[before]
            .params
            .insert("act".into(), Value::Str(name.to_owned()));
        take_over(graph, before, n);
        changes += 1;
    }

    changes
}
