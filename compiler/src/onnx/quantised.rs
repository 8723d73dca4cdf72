//! The pass that computes quantised models in integers.
//!
//! Quantisers write a model as floats between pairs of `QuantizeLinear` and `DequantizeLinear`: what a node reads has been
//! bytes, and what it makes becomes bytes again. Such a node becomes one of integers, which reads and writes bytes: a
//! convolution or product with constant weights, a sum, a product of elements, a mean. Nodes that only move elements move
//! bytes. A function of single elements becomes a table of 256 bytes, computed by its own kernel.
//!
//! What the new node computes is what the old ones do but for rounding: `backends/ops-nn/src/integer.rs` says how it
//! rounds. A float bias is rounded to the step of the sums that it is added to.

mod sums;
mod tables;

use std::collections::BTreeMap;

use bytes::Bytes;
use zbmd_backends::TensorOp;
use zbmd_backends::op::Registry;
use zbmd_ir::{DType, Params, TokenType, Value};

use super::catalogue::{compute, resolve};
use super::graph::{Graph, Node, Origin, Uses, ValueId};
use super::import::MAX_FOLDED;
use super::passes::{f32_elements, f32_scalar, input, live_nodes, output};
pub(super) use sums::join_sums;

/// Bytes of i8 as u8: 128 more, and so are their zero points.
const SIGN: u8 = 0x80;

/// How a tensor of bytes is quantised: one scale and one zero point for all.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quantisation {
    dtype: DType,
    scale: f32,
    zero: i32,
}

impl Quantisation {
    /// What a byte stands for.
    fn number(&self, byte: u8) -> f32 {
        (widened(self.dtype, byte) - self.zero) as f32 * self.scale
    }

    /// The byte, as a number, that a number becomes.
    fn quantised(&self, number: f32) -> i32 {
        let (low, high) = byte_bounds(self.dtype);
        let rounded = (number / self.scale).round_ties_even() as i32;
        rounded.saturating_add(self.zero).clamp(low, high)
    }
}

/// Least and greatest number of a type of bytes.
fn byte_bounds(dtype: DType) -> (i32, i32) {
    match dtype {
        DType::I8 => (-128, 127),
        _ => (0, 255),
    }
}

fn widened(dtype: DType, byte: u8) -> i32 {
    match dtype {
        DType::I8 => i32::from(byte as i8),
        _ => i32::from(byte),
    }
}

fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8)
}

/// A tensor of bytes that stands for floats.
#[derive(Clone, Copy, Debug)]
struct ByteTensor {
    id: ValueId,
    quantisation: Quantisation,
}

/// Constant weights of bytes, with one scale, or one for each filter or column.
struct ByteWeights {
    id: ValueId,
    scales: Vec<f32>,
    scale_id: ValueId,
    zero_id: ValueId,
}

/// What a node of integers makes, and in which bounds.
struct Requantised {
    /// The quantising node.
    node: Node,
    quantisation: Quantisation,
    /// Bounds of the bytes, which an activation may have narrowed.
    low: i32,
    high: i32,
}

impl Requantised {
    /// Parameters that keep results within the bounds.
    fn bound_params(&self) -> Params {
        let (least, greatest) = byte_bounds(self.quantisation.dtype);
        let mut params = Params::new();
        if self.low != least {
            params.insert("y_min".to_owned(), Value::Int(i64::from(self.low)));
        }
        if self.high != greatest {
            params.insert("y_max".to_owned(), Value::Int(i64::from(self.high)));
        }
        params
    }
}

/// Operators whose results are elements of their first operand and nothing else.
const MOVES: [&str; 8] = [
    "DepthToSpace",
    "Expand",
    "Gather",
    "MaxPool",
    "Slice",
    "SpaceToDepth",
    "Tile",
    "Transpose",
];

/// Brings nodes between quantised tensors to integers; returns their number.
pub(super) fn compute_in_integers(graph: &mut Graph, registry: &Registry) -> usize {
    make_unsigned(graph);
    let uses = graph.uses();
    let old_nodes = std::mem::take(&mut graph.nodes);
    let mut pass = Pass {
        graph,
        registry,
        uses,
        bytes: BTreeMap::new(),
        changes: 0,
    };

    // Nodes are in an order in which each comes after those it reads: what a quantising node reads is there by then, and
    // goes with the next sweep where nothing else reads it.
    for node in old_nodes {
        if node.dead {
            continue;
        }
        let converted = match node.op.operator {
            "QuantizeLinear" => pass.requantise(&node),
            _ => None,
        };
        match converted {
            Some(()) => pass.changes += 1,
            None => pass.push(node),
        }
    }
    pass.changes
}

/// An integer among a node's parameters, or what it is where it is not given.
fn int_param(node: &Node, name: &str, default: i64) -> i64 {
    node.params
        .get(name)
        .and_then(Value::as_int)
        .unwrap_or(default)
}

/// Lets quantised tensors between nodes be of u8, which the kernels read in place. Only those that nothing but
/// dequantising nodes read: the others are seen from outside.
fn make_unsigned(graph: &mut Graph) {
    let uses = graph.uses();
    for quantising in live_nodes(graph, &["QuantizeLinear"]) {
        let value = output(graph, quantising);
        let readers: Vec<usize> = (0..graph.nodes.len())
            .filter(|&n| !graph.nodes[n].dead && graph.nodes[n].inputs.contains(&Some(value)))
            .collect();
        let is_inner = !readers.is_empty()
            && uses.of(value) == readers.len()
            && graph.values[value].ty.dtype == DType::I8
            && readers.iter().all(|&n| {
                graph.nodes[n].op.operator == "DequantizeLinear"
                    && input(graph, n, 0) == Some(value)
            });
        let mut ends = vec![quantising];
        ends.extend(readers);
        let zeros: Option<Vec<u8>> = ends.iter().map(|&n| unsigned_zero(graph, n)).collect();
        let Some(zeros) = zeros.filter(|_| is_inner) else {
            continue;
        };

        graph.values[value].ty.dtype = DType::U8;
        for (node, zero) in ends.into_iter().zip(zeros) {
            let id = byte_constant(graph, DType::U8, &[], vec![zero]);
            graph.nodes[node].inputs.resize(3, None);
            graph.nodes[node].inputs[2] = Some(id);
            graph.nodes[node].params.remove("output_dtype");
        }
    }
}

/// The zero point of a node that quantises or dequantises a whole tensor of i8, for bytes of u8.
fn unsigned_zero(graph: &Graph, node: usize) -> Option<u8> {
    let scale = input(graph, node, 1)?;
    f32_scalar(graph, scale)?;
    match input(graph, node, 2) {
        Some(zero) => match graph.data(zero)?[..] {
            [byte] => Some(byte ^ SIGN),
            _ => None,
        },
        None => Some(SIGN),
    }
}

fn byte_constant(graph: &mut Graph, dtype: DType, shape: &[u32], bytes: Vec<u8>) -> ValueId {
    graph.constant("", TokenType::new(dtype, shape), Bytes::from(bytes))
}

fn float_constant(graph: &mut Graph, shape: &[u32], numbers: &[f32]) -> ValueId {
    let bytes: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
    graph.constant("", TokenType::new(DType::F32, shape), Bytes::from(bytes))
}

fn i32_elements(graph: &Graph, id: ValueId) -> Option<Vec<i32>> {
    if graph.values[id].ty.dtype != DType::I32 {
        return None;
    }
    let elements = graph.data(id)?.chunks_exact(4);
    Some(
        elements
            .map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap_or_default()))
            .collect(),
    )
}

struct Pass<'a> {
    graph: &'a mut Graph,
    registry: &'a Registry,
    /// How often values were read before the pass.
    uses: Uses,
    /// Values of floats as bytes, where they are.
    bytes: BTreeMap<ValueId, Option<ByteTensor>>,
    changes: usize,
}

impl Pass<'_> {
    /// Appends a node and says so to its outputs.
    fn push(&mut self, node: Node) {
        let index = self.graph.nodes.len();
        for &(position, value) in &node.outputs {
            self.graph.values[value].origin = Origin::Node(index, position);
        }
        self.graph.nodes.push(node);
    }

    /// Appends a node that makes one value.
    fn make(
        &mut self,
        name: &str,
        operator: &str,
        params: Params,
        inputs: Vec<Option<ValueId>>,
        result: ValueId,
    ) -> Option<()> {
        let op = TensorOp::find(operator)?;
        self.push(Node {
            name: name.to_owned(),
            op,
            params,
            inputs,
            outputs: vec![(0, result)],
            dead: false,
        });
        Some(())
    }

    /// The node that makes a value.
    fn producer(&self, id: ValueId) -> Option<Node> {
        let index = self.graph.producer(id)?;
        self.graph.nodes.get(index).cloned()
    }

    fn is_constant(&self, id: ValueId) -> bool {
        self.graph.data(id).is_some()
    }

    /// How a node that quantises or dequantises a whole tensor of bytes of this type does it.
    fn quantisation(&self, node: &Node, dtype: DType) -> Option<Quantisation> {
        let scale_id = node.inputs.get(1).copied().flatten()?;
        let scale = f32_scalar(self.graph, scale_id)?;
        let zero = match node.inputs.get(2).copied().flatten() {
            None => 0,
            Some(zero_id) => match self.graph.data(zero_id)?[..] {
                [byte] => widened(dtype, byte),
                _ => return None,
            },
        };
        (is_byte(dtype) && scale > 0.0 && scale.is_finite()).then_some(Quantisation {
            dtype,
            scale,
            zero,
        })
    }

    /// The bytes that a value of floats stands for, if it does.
    fn bytes_of(&mut self, id: ValueId) -> Option<ByteTensor> {
        if let Some(known) = self.bytes.get(&id) {
            return *known;
        }
        let found = self.find_bytes(id);
        self.bytes.insert(id, found);
        found
    }

    fn find_bytes(&mut self, id: ValueId) -> Option<ByteTensor> {
        if self.graph.values[id].ty.dtype != DType::F32 {
            return None;
        }
        if let Origin::View(shown) = self.graph.values[id].origin {
            let source = self.bytes_of(shown)?;
            return Some(self.moved(id, source, Origin::View(source.id)));
        }

        let node = self.producer(id)?;
        let first = node.inputs.first().copied().flatten()?;
        if node.op.operator == "DequantizeLinear" {
            let dtype = self.graph.values[first].ty.dtype;
            let quantisation = self.quantisation(&node, dtype)?;
            return Some(ByteTensor {
                id: first,
                quantisation,
            });
        }
        if !MOVES.contains(&node.op.operator) || node.outputs.len() != 1 {
            return None;
        }
        let source = self.bytes_of(first)?;
        if self.is_constant(source.id) {
            return None;
        }

        // The node of floats stays for those who read floats; without any it is swept.
        let result = self.moved(id, source, Origin::View(source.id));
        let mut inputs = node.inputs.clone();
        inputs[0] = Some(source.id);
        let name = format!("{}.bytes", node.name);
        self.make(
            &name,
            node.op.operator,
            node.params.clone(),
            inputs,
            result.id,
        )?;
        Some(result)
    }

    /// A new value for the bytes of a value of floats, quantised like `source`.
    fn moved(&mut self, floats: ValueId, source: ByteTensor, origin: Origin) -> ByteTensor {
        let value = &self.graph.values[floats];
        let name = format!("{}.bytes", value.name);
        let dtype = source.quantisation.dtype;
        let token = TokenType::new(dtype, value.ty.shape.clone());
        ByteTensor {
            id: self.graph.value(&name, token, origin),
            quantisation: source.quantisation,
        }
    }

    /// Replaces a quantising node, and what it reads, by one that makes its bytes.
    fn requantise(&mut self, node: &Node) -> Option<()> {
        let result = node.outputs.first()?.1;
        let dtype = self.graph.values[result].ty.dtype;
        let (low, high) = byte_bounds(dtype);
        let mut requantised = Requantised {
            node: node.clone(),
            quantisation: self.quantisation(node, dtype)?,
            low,
            high,
        };
        let floats = node.inputs.first().copied().flatten()?;
        if self.graph.values[floats].ty.dtype != DType::F32 {
            return None;
        }

        if self.look_up(floats, &requantised).is_some() {
            return Some(());
        }
        let made = self.before_activation(floats, &mut requantised);
        let producer = self.producer(made)?;
        match self.uses.of(made) {
            1 => self.compute(&producer, &requantised),
            _ => None,
        }
    }

    /// The value that an activation reads whose bounds are bounds of the bytes, or the value itself.
    fn before_activation(&self, floats: ValueId, requantised: &mut Requantised) -> ValueId {
        let Some(node) = self.producer(floats).filter(|_| self.uses.of(floats) == 1) else {
            return floats;
        };
        let Some(Some(before)) = node.inputs.first() else {
            return floats;
        };
        let bound =
            |position: usize, default: f32| match node.inputs.get(position).copied().flatten() {
                None => Some(default),
                Some(id) => f32_scalar(self.graph, id),
            };
        let bounds = match node.op.operator {
            "Relu" => Some((0.0, f32::INFINITY)),
            "Clip" => bound(1, f32::NEG_INFINITY).zip(bound(2, f32::INFINITY)),
            _ => None,
        };
        let Some((least, greatest)) = bounds else {
            return floats;
        };

        // Rounding keeps the order of numbers: the bytes of bounded numbers are bounded by the bytes of the bounds.
        let quantisation = requantised.quantisation;
        requantised.low = requantised.low.max(quantisation.quantised(least));
        requantised.high = requantised.high.min(quantisation.quantised(greatest));
        requantised.high = requantised.high.max(requantised.low);
        *before
    }

    /// A node of integers in the place of one of floats.
    fn compute(&mut self, node: &Node, requantised: &Requantised) -> Option<()> {
        match node.op.operator {
            "Conv" => self.conv(node, requantised),
            "MatMul" | "Gemm" => self.product(node, requantised),
            "Add" => self.pairwise(node, requantised, "QLinearAdd"),
            "Sum" if node.inputs.len() == 2 => self.pairwise(node, requantised, "QLinearAdd"),
            "Mul" => self.pairwise(node, requantised, "QLinearMul"),
            "GlobalAveragePool" | "ReduceMean" => self.mean(node, requantised),
            "Concat" => self.concat(node, requantised),
            _ => None,
        }
    }

    /// Constants of the scale and the zero point.
    fn quantisation_ids(&mut self, quantisation: Quantisation) -> [ValueId; 2] {
        let scale = float_constant(self.graph, &[], &[quantisation.scale]);
        let zero = vec![quantisation.zero as u8];
        [
            scale,
            byte_constant(self.graph, quantisation.dtype, &[], zero),
        ]
    }

    /// Constant weights of bytes, whose scales run along `axis` where there are several.
    fn weights(&mut self, id: ValueId, axis: i64) -> Option<ByteWeights> {
        let node = self
            .producer(id)
            .filter(|n| n.op.operator == "DequantizeLinear")?;
        let source = node.inputs.first().copied().flatten()?;
        let token = self.graph.values[source].ty.clone();
        if !self.is_constant(source) || !is_byte(token.dtype) {
            return None;
        }
        let scale_id = node.inputs.get(1).copied().flatten()?;
        let scales = f32_elements(self.graph, scale_id)?;
        let own_axis = int_param(&node, "axis", 1);
        let rank = token.shape.len() as i64;
        let is_along = own_axis == axis || own_axis + rank == axis;
        let has_blocks = int_param(&node, "block_size", 0) != 0;
        if has_blocks || (scales.len() != 1 && !is_along) {
            return None;
        }

        let zero_id = match node.inputs.get(2).copied().flatten() {
            Some(zero) if self.is_constant(zero) => zero,
            Some(_) => return None,
            None => {
                let zeros = vec![0; scales.len()];
                byte_constant(self.graph, token.dtype, &[scales.len() as u32], zeros)
            }
        };
        Some(ByteWeights {
            id: source,
            scales,
            scale_id,
            zero_id,
        })
    }

    /// A constant bias in steps of the sums that it is added to, one number for each of so many filters.
    fn bias(
        &mut self,
        id: ValueId,
        x_scale: f32,
        weights: &ByteWeights,
        filters: usize,
    ) -> Option<ValueId> {
        let numbers = self.constant_floats(id)?;
        if numbers.len() != filters {
            return None;
        }
        let mut bytes = Vec::new();
        for (filter, number) in numbers.iter().enumerate() {
            let is_one = weights.scales.len() == 1;
            let step =
                f64::from(x_scale) * f64::from(weights.scales[if is_one { 0 } else { filter }]);
            let steps = (number / step).round_ties_even();
            // A bias beyond 32 bits would be another one.
            if steps.is_nan() || steps.abs() > f64::from(i32::MAX) {
                return None;
            }
            bytes.extend((steps as i32).to_le_bytes());
        }
        let token = TokenType::new(DType::I32, [filters as u32]);
        Some(self.graph.constant("", token, Bytes::from(bytes)))
    }

    /// The elements of a constant of floats, or of one that a dequantising node makes of 32-bit integers.
    fn constant_floats(&self, id: ValueId) -> Option<Vec<f64>> {
        if let Some(floats) = f32_elements(self.graph, id) {
            return Some(floats.into_iter().map(f64::from).collect());
        }
        let node = self
            .producer(id)
            .filter(|n| n.op.operator == "DequantizeLinear")?;
        let ints = i32_elements(self.graph, node.inputs.first().copied().flatten()?)?;
        let scales = f32_elements(self.graph, node.inputs.get(1).copied().flatten()?)?;
        let has_zero_points = match node.inputs.get(2).copied().flatten() {
            None => false,
            Some(zero) => self.graph.data(zero)?.iter().any(|&byte| byte != 0),
        };
        if has_zero_points || (scales.len() != 1 && scales.len() != ints.len()) {
            return None;
        }
        let scale_of = |i: usize| f64::from(scales[if scales.len() == 1 { 0 } else { i }]);
        let numbers = ints.iter().enumerate();
        Some(
            numbers
                .map(|(i, &int)| f64::from(int) * scale_of(i))
                .collect(),
        )
    }

    fn conv(&mut self, node: &Node, requantised: &Requantised) -> Option<()> {
        let image = self.bytes_of(node.inputs.first().copied().flatten()?)?;
        let weights = self.weights(node.inputs.get(1).copied().flatten()?, 0)?;
        // A residual or an activation: no pass has put any in yet.
        let is_plain = node.inputs.len() <= 3 && !node.params.contains_key("act");
        if self.is_constant(image.id) || !is_plain {
            return None;
        }
        let filters = *self.graph.values[weights.id].ty.shape.first()? as usize;
        let bias = match node.inputs.get(2).copied().flatten() {
            None => None,
            Some(bias) => Some(self.bias(bias, image.quantisation.scale, &weights, filters)?),
        };

        let [x_scale, x_zero] = self.quantisation_ids(image.quantisation);
        let [y_scale, y_zero] = self.quantisation_ids(requantised.quantisation);
        let mut params = node.params.clone();
        params.remove("math");
        params.extend(requantised.bound_params());
        let inputs = vec![
            Some(image.id),
            Some(x_scale),
            Some(x_zero),
            Some(weights.id),
            Some(weights.scale_id),
            Some(weights.zero_id),
            Some(y_scale),
            Some(y_zero),
            bias,
        ];
        let result = requantised.node.outputs[0].1;
        self.make(&node.name, "QLinearConv", params, inputs, result)
    }

    fn product(&mut self, node: &Node, requantised: &Requantised) -> Option<()> {
        let left = self.bytes_of(node.inputs.first().copied().flatten()?)?;
        let right = node.inputs.get(1).copied().flatten()?;
        let flag = |name: &str| int_param(node, name, 0) != 0;
        let factor = |name: &str| {
            node.params
                .get(name)
                .and_then(Value::as_float)
                .unwrap_or(1.0)
        };
        let is_turned = flag("transB");
        let is_plain = !flag("transA") && factor("alpha") == 1.0 && factor("beta") == 1.0;
        if !is_plain || self.is_constant(left.id) || node.params.contains_key("act") {
            return None;
        }

        let Some(mut weights) = self.weights(right, if is_turned { 0 } else { 1 }) else {
            // Two activations, as those of attention.
            let right = self
                .bytes_of(right)
                .filter(|right| !self.is_constant(right.id))?;
            if is_turned || node.inputs.len() > 2 {
                return None;
            }
            let [scale, zero] = self.quantisation_ids(right.quantisation);
            let right = [right.id, scale, zero];
            return self.multiply(node, requantised, left, right, None);
        };
        let &[rows, columns] = &self.graph.values[weights.id].ty.shape[..] else {
            return None;
        };
        let columns = if is_turned { rows } else { columns };
        if is_turned {
            weights.id = self.transposed(weights.id)?;
        }
        let bias = match node.inputs.get(2).copied().flatten() {
            None => None,
            Some(bias) => {
                let scale = left.quantisation.scale;
                Some(self.bias(bias, scale, &weights, columns as usize)?)
            }
        };
        let right = [weights.id, weights.scale_id, weights.zero_id];
        self.multiply(node, requantised, left, right, bias)
    }

    /// A product of integers. `right` is the matrix with scale and zero point.
    fn multiply(
        &mut self,
        node: &Node,
        requantised: &Requantised,
        left: ByteTensor,
        right: [ValueId; 3],
        bias: Option<ValueId>,
    ) -> Option<()> {
        let [a_scale, a_zero] = self.quantisation_ids(left.quantisation);
        let [y_scale, y_zero] = self.quantisation_ids(requantised.quantisation);
        let mut inputs = vec![Some(left.id), Some(a_scale), Some(a_zero)];
        inputs.extend(right.map(Some));
        inputs.extend([Some(y_scale), Some(y_zero), bias]);
        let params = requantised.bound_params();
        let result = requantised.node.outputs[0].1;
        self.make(&node.name, "QLinearMatMul", params, inputs, result)
    }

    /// A constant matrix of bytes with rows and columns exchanged.
    fn transposed(&mut self, id: ValueId) -> Option<ValueId> {
        let token = self.graph.values[id].ty.clone();
        let &[rows, columns] = &token.shape[..] else {
            return None;
        };
        let bytes = self.graph.data(id)?;
        let row_bytes = columns as usize;
        let mut turned = Vec::with_capacity(bytes.len());
        for column in 0..row_bytes {
            turned.extend(bytes.iter().skip(column).step_by(row_bytes.max(1)));
        }
        Some(byte_constant(
            self.graph,
            token.dtype,
            &[columns, rows],
            turned,
        ))
    }

    /// The same numbers in bytes of the type of a result.
    fn in_type(&mut self, tensor: ByteTensor, dtype: DType) -> Option<ByteTensor> {
        if tensor.quantisation.dtype == dtype {
            return Some(tensor);
        }
        let shift = if dtype == DType::U8 { 128 } else { -128 };
        let quantisation = Quantisation {
            dtype,
            zero: tensor.quantisation.zero + shift,
            ..tensor.quantisation
        };
        let id = match self.graph.data(tensor.id) {
            Some(bytes) => {
                let turned = bytes.iter().map(|&byte| byte ^ SIGN).collect();
                let shape = self.graph.values[tensor.id].ty.shape.clone();
                byte_constant(self.graph, dtype, &shape, turned)
            }
            None => self.converted(tensor, quantisation)?,
        };
        Some(ByteTensor { id, quantisation })
    }

    fn pairwise(&mut self, node: &Node, requantised: &Requantised, operator: &str) -> Option<()> {
        let dtype = requantised.quantisation.dtype;
        let mut inputs = Vec::new();
        for position in 0..2 {
            let floats = node.inputs.get(position).copied().flatten()?;
            let found = self.bytes_of(floats)?;
            let tensor = self.in_type(found, dtype)?;
            let [scale, zero] = self.quantisation_ids(tensor.quantisation);
            inputs.extend([Some(tensor.id), Some(scale), Some(zero)]);
        }
        let [y_scale, y_zero] = self.quantisation_ids(requantised.quantisation);
        inputs.extend([Some(y_scale), Some(y_zero)]);
        let params = requantised.bound_params();
        let result = requantised.node.outputs[0].1;
        self.make(&node.name, operator, params, inputs, result)
    }

    fn mean(&mut self, node: &Node, requantised: &Requantised) -> Option<()> {
        let found = self.bytes_of(node.inputs.first().copied().flatten()?)?;
        let is_bounded = !requantised.bound_params().is_empty();
        let is_global = node.op.operator == "GlobalAveragePool" || self.is_over_image(node);
        if self.is_constant(found.id) || is_bounded || !is_global {
            return None;
        }
        let image = self.in_type(found, requantised.quantisation.dtype)?;

        let [x_scale, x_zero] = self.quantisation_ids(image.quantisation);
        let [y_scale, y_zero] = self.quantisation_ids(requantised.quantisation);
        let inputs = [image.id, x_scale, x_zero, y_scale, y_zero]
            .map(Some)
            .to_vec();
        let result = requantised.node.outputs[0].1;
        self.make(
            &node.name,
            "QLinearGlobalAveragePool",
            Params::new(),
            inputs,
            result,
        )
    }

    /// Whether a `ReduceMean` is the mean over height and width of an image, which keep a dimension of 1 each.
    fn is_over_image(&self, node: &Node) -> bool {
        let keeps = int_param(node, "keepdims", 1) != 0;
        let image = node.inputs.first().copied().flatten();
        let rank = image.map_or(0, |id| self.graph.values[id].ty.shape.len());
        let axes = node.inputs.get(1).copied().flatten();
        let axes_bytes = axes.and_then(|id| self.graph.data(id));
        let axes: Vec<i64> = axes_bytes
            .map_or(&[][..], |bytes| &bytes[..])
            .chunks_exact(8)
            .map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap_or_default()))
            .collect();
        keeps && rank == 4 && matches!(axes[..], [2, 3] | [-2, -1])
    }

    fn concat(&mut self, node: &Node, requantised: &Requantised) -> Option<()> {
        if !requantised.bound_params().is_empty() {
            return None;
        }
        let mut parts = Vec::new();
        for floats in &node.inputs {
            let part = self.bytes_of((*floats)?)?;
            parts.push(part);
        }
        let mut inputs = Vec::new();
        for part in parts {
            inputs.push(Some(self.converted(part, requantised.quantisation)?));
        }
        let result = requantised.node.outputs[0].1;
        self.make(&node.name, "Concat", node.params.clone(), inputs, result)
    }
}

/// Computes what depends on constants only: dequantised weights that are still read as floats, which the import leaves
/// so that this pass can find the bytes, and what is made of them.
pub(super) fn fold_constants(graph: &mut Graph, registry: &Registry) {
    for index in 0..graph.nodes.len() {
        let node = graph.nodes[index].clone();
        let operands: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        let is_constant =
            !operands.is_empty() && operands.iter().all(|&id| graph.data(id).is_some());
        if node.dead || !is_constant {
            continue;
        }
        let Ok(signature) = resolve(graph, registry, node.op, &node.params, &node.inputs) else {
            continue;
        };
        let result_bytes: u64 = signature
            .outputs
            .iter()
            .map(|port| port.token.bytes())
            .sum();
        let operand_bytes: u64 = operands.iter().map(|&id| graph.values[id].ty.bytes()).sum();
        if result_bytes > MAX_FOLDED.max(operand_bytes.saturating_mul(4)) {
            continue;
        }

        let computed = compute(
            graph,
            registry,
            node.op,
            &node.params,
            &node.inputs,
            signature,
        );
        let Ok(results) = computed else {
            continue;
        };
        for (&(_, value), bytes) in node.outputs.iter().zip(results) {
            let blob = graph.blobs.push_and_get_key(bytes);
            graph.values[value].origin = Origin::Constant(blob);
        }
        graph.nodes[index].dead = true;
    }
}
