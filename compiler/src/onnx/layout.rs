//! The pass that stores images of convolutions with their channels last: what the kernels of CPUs are fastest at.
//!
//! Every value of rank 4 that a convolution makes gets a twin, `[n, h, w, c]` for `[n, c, h, w]`. Nodes that can work
//! on twins do so; a transposition after each of them gives the value itself, and is removed where nobody reads it.

use std::collections::BTreeMap;

use zbmd_backends::TensorOp;
use zbmd_ir::{DType, TokenType, Value};

use super::graph::{Graph, Node, Origin, ValueId};
use super::passes::f32_constant;
use super::scales::affine_of;

/// Brings convolutions and what lies between them to channels last; returns the nodes that changed.
pub(super) fn channels_last(graph: &mut Graph) -> usize {
    let old_nodes = std::mem::take(&mut graph.nodes);
    let mut layout_pass = Pass {
        graph,
        twins: BTreeMap::new(),
        changes: 0,
    };

    // Nodes are in an order in which each comes after those it reads: the twins of its inputs are known by then.
    for node in old_nodes {
        if node.dead {
            continue;
        }
        if !layout_pass.convert(&node) {
            layout_pass.push(node);
        }
    }

    layout_pass.changes
}

struct Pass<'a> {
    graph: &'a mut Graph,
    /// Values that exist with their channels last.
    twins: BTreeMap<ValueId, ValueId>,
    changes: usize,
}

/// The shape with its channels last.
fn last(ty: &TokenType) -> Option<TokenType> {
    match ty.shape[..] {
        [n, c, h, w] => Some(TokenType::new(ty.dtype, [n, h, w, c])),
        _ => None,
    }
}

/// Whether both layouts are the same bytes.
fn same_bytes(ty: &TokenType) -> bool {
    matches!(ty.shape[..], [_, c, h, w] if c == 1 || (h == 1 && w == 1))
}

fn ints(list: &[i64]) -> Value {
    Value::List(list.iter().map(|&v| Value::Int(v)).collect())
}

/// Operators of one tensor that treat all elements alike; other operands are single constants.
const ALIKE: [&str; 19] = [
    "Abs",
    "ByteLookup",
    "Clip",
    "DequantizeLinear",
    "Elu",
    "Exp",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "Neg",
    "QuantizeLinear",
    "Relu",
    "Sigmoid",
    "Softplus",
    "Sqrt",
    "Swish",
    "Tanh",
];
const BROADCAST: [&str; 9] = [
    "Add",
    "Div",
    "Max",
    "Min",
    "Mul",
    "QLinearAdd",
    "QLinearMul",
    "Sub",
    "Sum",
];

/// Whether images of these elements have kernels with channels last.
fn is_image_type(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I8 | DType::U8)
}

impl Pass<'_> {
    fn ty(&self, id: ValueId) -> &TokenType {
        &self.graph.values[id].ty
    }

    /// Appends a node and says so to its outputs.
    fn push(&mut self, node: Node) {
        let n = self.graph.nodes.len();
        for &(position, value) in &node.outputs {
            self.graph.values[value].origin = Origin::Node(n, position);
        }
        self.graph.nodes.push(node);
    }

    fn transposed(&mut self, from: ValueId, to: ValueId, perm: &[i64]) -> Option<()> {
        let op = TensorOp::find("Transpose")?;
        let node = Node {
            name: format!("{}.layout", self.graph.values[to].name),
            op,
            params: [("perm".to_owned(), ints(perm))].into(),
            inputs: vec![Some(from)],
            outputs: vec![(0, to)],
            dead: false,
        };
        self.push(node);
        Some(())
    }

    /// A value, and those that it is another name for, under other shapes or the same.
    fn names(&self, id: ValueId) -> impl Iterator<Item = ValueId> {
        std::iter::successors(Some(id), |&id| match self.graph.values[id].origin {
            Origin::View(shown) => Some(shown),
            _ => None,
        })
    }

    /// The twin of a value, or of the one that it is another name for.
    fn known_twin(&self, id: ValueId) -> Option<ValueId> {
        let mut alike = self
            .names(id)
            .take_while(|&shown| self.ty(shown) == self.ty(id));
        alike.find_map(|shown| self.twins.get(&shown).copied())
    }

    /// The twin of a value, made where there is none.
    fn twin(&mut self, id: ValueId) -> Option<ValueId> {
        if let Some(twin) = self.known_twin(id) {
            return Some(twin);
        }
        let twin_type = last(self.ty(id)).filter(|t| is_image_type(t.dtype))?;
        let twin_name = format!("{}.last", self.graph.values[id].name);
        let twin = self.graph.value(&twin_name, twin_type, Origin::View(id));

        // With one channel or one pixel the order of bytes is the same, and a view is enough.
        if !same_bytes(self.ty(id)) {
            self.transposed(id, twin, &[0, 2, 3, 1])?;
        }
        self.twins.insert(id, twin);
        Some(twin)
    }

    /// Replaces a node by one that makes the twin of its output, and that output from the twin.
    fn put(&mut self, mut node: Node, operator: &str, inputs: Vec<Option<ValueId>>) -> Option<()> {
        let op = TensorOp::find(operator)?;
        let (_, value) = node.outputs[0];
        let twin_type = last(self.ty(value))?;
        let twin_name = format!("{}.last", self.graph.values[value].name);
        let twin_id = self.graph.value(&twin_name, twin_type, Origin::View(value));
        node.op = op;
        node.inputs = inputs;
        node.outputs = vec![(0, twin_id)];
        self.push(node);

        // Readers that cannot work on twins still find the value itself.
        self.twins.insert(value, twin_id);
        if same_bytes(self.ty(value)) {
            self.graph.values[value].origin = Origin::View(twin_id);
        } else {
            self.transposed(twin_id, value, &[0, 3, 1, 2])?;
        }
        self.changes += 1;
        Some(())
    }

    /// Whether the node went over to channels last.
    fn convert(&mut self, node: &Node) -> bool {
        let is_image = matches!(node.outputs[..], [(0, value)]
            if self.ty(value).shape.len() == 4 && is_image_type(self.ty(value).dtype));
        let first_input = node.inputs.first().copied().flatten();
        let converted = match (node.op.operator, first_input) {
            ("Transpose", Some(x)) => self.shuffle(node, x),
            _ if !is_image => None,
            ("Conv", Some(x)) => self.conv(node, x),
            ("QLinearConv", Some(x)) => self.quantised_conv(node, x),
            ("QLinearGlobalAveragePool", Some(x)) => self.quantised_mean(node, x),
            ("MaxPool" | "AveragePool" | "GlobalAveragePool" | "ReduceMean", Some(x)) => {
                self.pool(node, x)
            }
            ("LRN", Some(x)) => self.response(node, x),
            ("BatchNormalization", Some(x)) => self.normalisation(node, x),
            ("Concat", _) => self.concat(node),
            (operator, Some(x)) if ALIKE.contains(&operator) => self.alike(node, x),
            (operator, Some(_)) if BROADCAST.contains(&operator) => self.broadcast(node),
            _ => None,
        };

        converted.is_some()
    }

    fn conv(&mut self, node: &Node, image_id: ValueId) -> Option<()> {
        let weights_id = node.inputs.get(1).copied().flatten()?;
        let bias_id = node.inputs.get(2).copied().flatten();
        let added_id = node.inputs.get(3).copied().flatten();

        // The kernel packs weights and bias when it is planned, so they must be constants; images must be tokens.
        let constant = |id: ValueId| self.graph.data(id).is_some();
        let is_supported = self.ty(image_id).shape.len() == 4
            && self.ty(image_id).shape.iter().all(|&d| d > 0)
            && self.ty(weights_id).dtype == DType::F32
            && constant(weights_id)
            && !constant(image_id)
            && bias_id.is_none_or(constant)
            && added_id.is_none_or(|a| !constant(a));
        if !is_supported {
            return None;
        }

        // A convolution is worth a transposition of its input; the other operators below only go on with twins.
        let mut twin_inputs = vec![Some(self.twin(image_id)?), Some(weights_id), bias_id];
        if let Some(added_id) = added_id {
            twin_inputs.push(Some(self.twin(added_id)?));
        }
        self.put(node.clone(), "ConvChannelsLast", twin_inputs)
    }

    /// A quantised convolution, whose kernel takes all but the image as constants.
    fn quantised_conv(&mut self, node: &Node, image_id: ValueId) -> Option<()> {
        let constant = |id: ValueId| self.graph.data(id).is_some();
        let is_single = |position: usize| match node.inputs.get(position).copied().flatten() {
            Some(id) => self.ty(id).elements() == 1,
            None => false,
        };
        let is_supported = self.ty(image_id).shape.len() == 4
            && self.ty(image_id).shape.iter().all(|&d| d > 0)
            && !constant(image_id)
            && node.inputs[1..].iter().flatten().all(|&id| constant(id))
            && [1, 2, 6, 7].into_iter().all(is_single);
        if !is_supported {
            return None;
        }

        let mut twin_inputs = node.inputs.clone();
        twin_inputs[0] = Some(self.twin(image_id)?);
        self.put(node.clone(), "QLinearConvChannelsLast", twin_inputs)
    }

    /// A quantised mean of each channel, which knows both orders.
    fn quantised_mean(&mut self, node: &Node, image_id: ValueId) -> Option<()> {
        let twin_id = self.known_twin(image_id)?;
        let mut node = node.clone();
        if node.params.insert("channels_last".into(), Value::Int(1)) == Some(Value::Int(1)) {
            return None;
        }
        let mut twin_inputs = node.inputs.clone();
        twin_inputs[0] = Some(twin_id);
        self.put(node, "QLinearGlobalAveragePool", twin_inputs)
    }

    fn pool(&mut self, pool_node: &Node, image_id: ValueId) -> Option<()> {
        let twin_id = self.known_twin(image_id)?;
        let mut pool_node = pool_node.clone();
        let mut operator_name = format!("{}ChannelsLast", pool_node.op.operator);

        // A mean over height and width is a global pool.
        if pool_node.op.operator == "ReduceMean" {
            let axes_id = pool_node.inputs.get(1).copied().flatten()?;
            let axes_bytes = self.graph.data(axes_id)?;
            let reduced_axes: Option<Vec<i64>> = axes_bytes
                .chunks(8)
                .map(|c| Some(i64::from_le_bytes(c.try_into().ok()?)))
                .collect();
            if !matches!(reduced_axes?[..], [2, 3] | [-2, -1]) {
                return None;
            }
            pool_node.params.clear();
            operator_name = "GlobalAveragePoolChannelsLast".to_owned();
        }

        // The order of indices, an output that an image node does not have.
        pool_node.params.remove("storage_order");
        self.put(pool_node, &operator_name, vec![Some(twin_id)])
    }

    /// A batch normalisation by constants.
    fn normalisation(&mut self, node: &Node, image_id: ValueId) -> Option<()> {
        let twin_id = self.known_twin(image_id)?;
        let (scales, shifts) = affine_of(self.graph, node)?;
        let name = self.graph.values[node.outputs[0].1].name.clone();
        let mut constant = |what: &str, elements: &[f32]| {
            let shape = [elements.len() as u32];
            f32_constant(self.graph, &format!("{name}.{what}"), &shape, elements)
        };
        let scale_id = constant("scale", &scales);
        let shift_id = constant("shift", &shifts);

        let mut node = node.clone();
        node.params.clear();
        let twin_inputs = vec![Some(twin_id), Some(scale_id), Some(shift_id)];
        self.put(node, "AffineChannelsLast", twin_inputs)
    }

    /// A normalisation over neighbouring channels.
    fn response(&mut self, node: &Node, image_id: ValueId) -> Option<()> {
        let twin_id = self.known_twin(image_id)?;
        self.put(node.clone(), "LRNChannelsLast", vec![Some(twin_id)])
    }

    fn concat(&mut self, concat_node: &Node) -> Option<()> {
        let axis = concat_node.params.get("axis").and_then(Value::as_int)?;
        let twin_inputs: Option<Vec<Option<ValueId>>> = concat_node
            .inputs
            .iter()
            .map(|i| i.and_then(|i| self.known_twin(i)).map(Some))
            .collect();
        // Along the channels; in `[n, h, w, c]` that is the last axis.
        if axis != 1 && axis != -3 {
            return None;
        }
        let mut concat_node = concat_node.clone();
        concat_node.params.insert("axis".into(), Value::Int(3));
        self.put(concat_node, "Concat", twin_inputs?)
    }

    fn alike(&mut self, node: &Node, image_id: ValueId) -> Option<()> {
        let twin_id = self.known_twin(image_id)?;

        // A slope for each channel, say, would be broadcast along another axis. A table is not.
        let is_table = node.op.operator == "ByteLookup";
        let single = |id: &Option<ValueId>| id.is_none_or(|id| self.ty(id).elements() == 1);
        if !is_table && !node.inputs[1..].iter().all(single) {
            return None;
        }
        let mut twin_inputs = node.inputs.clone();
        twin_inputs[0] = Some(twin_id);
        self.put(node.clone(), node.op.operator, twin_inputs)
    }

    fn broadcast(&mut self, node: &Node) -> Option<()> {
        let mut broadcast_inputs = Vec::new();
        for operand_id in &node.inputs {
            let Some(operand_id) = *operand_id else {
                broadcast_inputs.push(None);
                continue;
            };
            let shape = &self.ty(operand_id).shape;
            broadcast_inputs.push(Some(match (self.known_twin(operand_id), &shape[..]) {
                (Some(twin), _) => twin,
                (None, _) if self.ty(operand_id).elements() == 1 && shape.len() <= 4 => operand_id,
                // One number for each channel: a row that broadcasts along the last axis.
                (None, &[c, 1, 1] | &[1, c, 1, 1]) if self.graph.data(operand_id).is_some() => {
                    let twin_name = format!("{}.last", self.graph.values[operand_id].name);
                    let row_type = TokenType::new(self.ty(operand_id).dtype, [c]);
                    self.graph
                        .value(&twin_name, row_type, Origin::View(operand_id))
                }
                _ => return None,
            }));
        }

        // Without an image of a convolution among the operands, nothing would be gained.
        let any_twin = node
            .inputs
            .iter()
            .flatten()
            .any(|&i| self.known_twin(i).is_some());
        if any_twin {
            self.put(node.clone(), node.op.operator, broadcast_inputs)
        } else {
            None
        }
    }

    /// Channels shuffled between groups: a transposition of `[n, g, c, h, w]` seen as five dimensions.
    fn shuffle(&mut self, node: &Node, x: ValueId) -> Option<()> {
        let &[n, g, c, h, w] = &self.ty(x).shape[..] else {
            return None;
        };
        let is_image = |shape: &[u32]| shape == [n, g * c, h, w];
        let image = self
            .names(x)
            .find(|&value| is_image(&self.ty(value).shape))?;
        let image_twin = self.known_twin(image)?;
        let permutation: Vec<i64> = node
            .params
            .get("perm")?
            .as_list()?
            .iter()
            .filter_map(Value::as_int)
            .collect();
        let turned_id = node.outputs[0].1;
        if permutation != [0, 2, 1, 3, 4] {
            return None;
        }
        let element_type = self.ty(x).dtype;

        // The shuffled image is read through views as `[n, g·c, h, w]`: those get twins.
        let later_views: Vec<ValueId> = (0..self.graph.values.len())
            .filter(|&v| {
                is_image(&self.ty(v).shape) && self.names(v).any(|value| value == turned_id)
            })
            .collect();
        let turned_name = self.graph.values[turned_id].name.clone();
        let seen_type = TokenType::new(element_type, [n, h, w, g, c]);
        let seen_id = self.graph.value(
            &format!("{turned_name}.groups"),
            seen_type,
            Origin::View(image_twin),
        );
        let shuffled_type = TokenType::new(element_type, [n, h, w, c, g]);
        let shuffled_id = self.graph.value(
            &format!("{turned_name}.last"),
            shuffled_type,
            Origin::View(image_twin),
        );

        // The node itself stays for readers that need its own layout; without any it is swept.
        self.push(node.clone());
        self.transposed(seen_id, shuffled_id, &[0, 1, 2, 4, 3])?;
        for view in later_views {
            let twin_type = last(self.ty(view))?;
            let twin_id = self.graph.value(
                &format!("{turned_name}.shuffled"),
                twin_type,
                Origin::View(shuffled_id),
            );
            self.twins.insert(view, twin_id);
        }

        self.changes += 1;
        Some(())
    }
}
