//! The pass that lets images of convolutions lie with their channels last: what the kernels of CPUs are fastest at.
//!
//! Every value of rank 4 that a convolution makes gets a twin, `[n, h, w, c]` for `[n, c, h, w]`. Nodes that can work
//! on twins do so; behind each of them a transposition gives the value itself, which goes away where nobody reads it.

use std::collections::BTreeMap;

use zbmd_backends::TensorOp;
use zbmd_ir::{DType, TokenType, Value};

use super::graph::{Graph, Node, Origin, ValueId};

/// Brings convolutions and what lies between them to channels last; returns the nodes that changed.
pub(super) fn channels_last(graph: &mut Graph) -> usize {
    let old = std::mem::take(&mut graph.nodes);
    let mut pass = Pass {
        graph,
        twins: BTreeMap::new(),
        changes: 0,
    };
    for node in old {
        if node.dead {
            continue;
        }
        if !pass.convert(&node) {
            pass.push(node);
        }
    }
    pass.changes
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
const ALIKE: [&str; 16] = [
    "Abs",
    "Clip",
    "Elu",
    "Exp",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "Neg",
    "Relu",
    "Sigmoid",
    "Softplus",
    "Sqrt",
    "Swish",
    "Tanh",
];
const BROADCAST: [&str; 7] = ["Add", "Div", "Max", "Min", "Mul", "Sub", "Sum"];

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

    /// The twin of a value, made where there is none.
    fn twin(&mut self, id: ValueId) -> Option<ValueId> {
        if let Some(&twin) = self.twins.get(&id) {
            return Some(twin);
        }
        let ty = last(self.ty(id)).filter(|t| t.dtype == DType::F32)?;
        let name = format!("{}.last", self.graph.values[id].name);
        let twin = self.graph.value(&name, ty, Origin::View(id));
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
        let ty = last(self.ty(value))?;
        let name = format!("{}.last", self.graph.values[value].name);
        let twin = self.graph.value(&name, ty, Origin::View(value));
        (node.op, node.inputs, node.outputs) = (op, inputs, vec![(0, twin)]);
        self.push(node);
        self.twins.insert(value, twin);
        if same_bytes(self.ty(value)) {
            self.graph.values[value].origin = Origin::View(twin);
        } else {
            self.transposed(twin, value, &[0, 3, 1, 2])?;
        }
        self.changes += 1;
        Some(())
    }

    /// Whether the node went over to channels last.
    fn convert(&mut self, node: &Node) -> bool {
        let image = matches!(node.outputs[..], [(0, value)]
            if self.ty(value).shape.len() == 4 && self.ty(value).dtype == DType::F32);
        let first = node.inputs.first().copied().flatten();
        let done = match (node.op.operator, first) {
            ("Transpose", Some(x)) => self.shuffle(node, x),
            _ if !image => None,
            ("Conv", Some(x)) => self.conv(node, x),
            ("MaxPool" | "AveragePool" | "GlobalAveragePool" | "ReduceMean", Some(x)) => {
                self.pool(node, x)
            }
            ("Concat", _) => self.concat(node),
            (operator, Some(x)) if ALIKE.contains(&operator) => self.alike(node, x),
            (operator, Some(_)) if BROADCAST.contains(&operator) => self.broadcast(node),
            _ => None,
        };
        done.is_some()
    }

    fn conv(&mut self, node: &Node, x: ValueId) -> Option<()> {
        let w = node.inputs.get(1).copied().flatten()?;
        let bias = node.inputs.get(2).copied().flatten();
        let added = node.inputs.get(3).copied().flatten();
        let constant = |id: ValueId| self.graph.data(id).is_some();
        let fits = self.ty(x).shape.len() == 4
            && self.ty(x).shape.iter().all(|&d| d > 0)
            && self.ty(w).dtype == DType::F32
            && constant(w)
            && !constant(x)
            && bias.is_none_or(constant)
            && added.is_none_or(|a| !constant(a));
        if !fits {
            return None;
        }
        let mut inputs = vec![Some(self.twin(x)?), Some(w), bias];
        if let Some(added) = added {
            inputs.push(Some(self.twin(added)?));
        }
        self.put(node.clone(), "ConvChannelsLast", inputs)
    }

    fn pool(&mut self, node: &Node, x: ValueId) -> Option<()> {
        let x = *self.twins.get(&x)?;
        let mut node = node.clone();
        let mut name = format!("{}ChannelsLast", node.op.operator);
        if node.op.operator == "ReduceMean" {
            let axes = self.graph.data(node.inputs.get(1).copied().flatten()?)?;
            let axes: Option<Vec<i64>> = axes
                .chunks(8)
                .map(|c| Some(i64::from_le_bytes(c.try_into().ok()?)))
                .collect();
            if !matches!(axes?[..], [2, 3] | [-2, -1]) {
                return None;
            }
            node.params.clear();
            name = "GlobalAveragePoolChannelsLast".to_owned();
        }
        // The order of indices, which nobody asks for.
        node.params.remove("storage_order");
        self.put(node, &name, vec![Some(x)])
    }

    fn concat(&mut self, node: &Node) -> Option<()> {
        let axis = node.params.get("axis").and_then(Value::as_int)?;
        let twins: Option<Vec<Option<ValueId>>> = node
            .inputs
            .iter()
            .map(|i| i.and_then(|i| self.twins.get(&i).copied()).map(Some))
            .collect();
        if axis != 1 && axis != -3 {
            return None;
        }
        let mut node = node.clone();
        node.params.insert("axis".into(), Value::Int(3));
        self.put(node, "Concat", twins?)
    }

    fn alike(&mut self, node: &Node, x: ValueId) -> Option<()> {
        let x = *self.twins.get(&x)?;
        let single = |id: &Option<ValueId>| id.is_none_or(|id| self.ty(id).elements() == 1);
        if !node.inputs[1..].iter().all(single) {
            return None;
        }
        let mut inputs = node.inputs.clone();
        inputs[0] = Some(x);
        self.put(node.clone(), node.op.operator, inputs)
    }

    fn broadcast(&mut self, node: &Node) -> Option<()> {
        let mut inputs = Vec::new();
        for id in &node.inputs {
            let id = (*id)?;
            let shape = &self.ty(id).shape;
            inputs.push(Some(match (self.twins.get(&id), &shape[..]) {
                (Some(&twin), _) => twin,
                (None, _) if self.ty(id).elements() == 1 && shape.len() <= 4 => id,
                // One number for each channel.
                (None, &[c, 1, 1] | &[1, c, 1, 1]) if self.graph.data(id).is_some() => {
                    let name = format!("{}.last", self.graph.values[id].name);
                    let ty = TokenType::new(self.ty(id).dtype, [c]);
                    self.graph.value(&name, ty, Origin::View(id))
                }
                _ => return None,
            }));
        }
        let any = node
            .inputs
            .iter()
            .flatten()
            .any(|i| self.twins.contains_key(i));
        if any {
            self.put(node.clone(), node.op.operator, inputs)
        } else {
            None
        }
    }

    /// Channels shuffled between groups: a transposition of `[n, g, c, h, w]` seen as five dimensions.
    fn shuffle(&mut self, node: &Node, x: ValueId) -> Option<()> {
        let Origin::View(image) = self.graph.values[x].origin else {
            return None;
        };
        let (image_twin, &[n, g, c, h, w]) = (*self.twins.get(&image)?, &self.ty(x).shape[..])
        else {
            return None;
        };
        let perm: Vec<i64> = node
            .params
            .get("perm")?
            .as_list()?
            .iter()
            .filter_map(Value::as_int)
            .collect();
        let fits = perm == [0, 2, 1, 3, 4] && self.ty(image).shape[..] == [n, g * c, h, w];
        let y = node.outputs[0].1;
        if !fits {
            return None;
        }
        let dtype = self.ty(x).dtype;
        let views: Vec<ValueId> = (0..self.graph.values.len())
            .filter(|&v| {
                self.graph.values[v].origin == Origin::View(y)
                    && self.ty(v).shape[..] == [n, g * c, h, w]
            })
            .collect();
        let name = self.graph.values[y].name.clone();
        let seen = TokenType::new(dtype, [n, h, w, g, c]);
        let seen = self
            .graph
            .value(&format!("{name}.groups"), seen, Origin::View(image_twin));
        let turned = TokenType::new(dtype, [n, h, w, c, g]);
        let turned = self
            .graph
            .value(&format!("{name}.last"), turned, Origin::View(image_twin));
        self.push(node.clone());
        self.transposed(seen, turned, &[0, 1, 2, 4, 3])?;
        for view in views {
            let ty = last(self.ty(view))?;
            let twin = self
                .graph
                .value(&format!("{name}.shuffled"), ty, Origin::View(turned));
            self.twins.insert(view, twin);
        }
        self.changes += 1;
        Some(())
    }
}
