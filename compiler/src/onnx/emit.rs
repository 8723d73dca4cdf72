//! The imported graph as actors and links of a net.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_backends::TensorOp;
use zbmd_ir::{BlobId, Params, Role, TokenType, Value};

use super::catalogue::full_params;
use super::graph::{Graph, Origin, ValueId};
use crate::net::{End, Net, NetActor};
use crate::source::{Span, Spanned};
use crate::values::{Files, TypeFact};

/// Where a wire begins.
#[derive(Clone, Debug)]
pub(crate) enum Writer {
    /// An output of an actor of the net.
    Actor(End),
    /// An input of the model, by position.
    Input(usize),
}

/// From a writer to an operand.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) from: Writer,
    pub(crate) to: End,
    /// Type of its tokens: in a loop of state, inference could not find it.
    pub(crate) token: TokenType,
    /// Whether it closes state: it begins with one zero token.
    pub(crate) state: bool,
}

/// What an imported model looks like from outside.
#[derive(Debug, Default)]
pub(crate) struct Emitted {
    /// Inputs that are not closed as state.
    pub(crate) inputs: Vec<(usize, String, TokenType)>,
    pub(crate) outputs: Vec<(String, TokenType, Writer)>,
    pub(crate) wires: Vec<Wire>,
}

impl Emitted {
    /// Inputs by position and name that neither a node nor an output reads.
    pub(crate) fn unread_inputs(&self) -> Vec<(usize, &str)> {
        let wire_writers = self.wires.iter().map(|wire| &wire.from);
        let output_writers = self.outputs.iter().map(|(_, _, writer)| writer);
        let read_inputs: BTreeSet<usize> = wire_writers
            .chain(output_writers)
            .filter_map(|writer| match writer {
                Writer::Input(position) => Some(*position),
                Writer::Actor(_) => None,
            })
            .collect();

        let mut unread_inputs = Vec::new();
        for (position, name, _) in &self.inputs {
            if !read_inputs.contains(position) {
                unread_inputs.push((*position, name.as_str()));
            }
        }
        unread_inputs
    }
}

/// Adds the graph's nodes to a net; names get `prefix`, names in `taken` are avoided.
pub(crate) fn emit(
    graph: &Graph,
    net: &mut Net,
    files: &mut Files,
    prefix: &str,
    span: Span,
    taken: &BTreeSet<String>,
) -> Emitted {
    let mut emit = Emit {
        graph,
        net,
        files,
        prefix,
        span,
        taken: taken.clone(),
        closed: graph.state.iter().copied().collect(),
        actors: BTreeMap::new(),
        blobs: BTreeMap::new(),
        emitted: Emitted::default(),
    };

    emit.add_inputs();
    emit.add_nodes();
    emit.add_outputs();
    emit.emitted
}

struct Emit<'a> {
    graph: &'a Graph,
    net: &'a mut Net,
    files: &'a mut Files,
    prefix: &'a str,
    span: Span,
    taken: BTreeSet<String>,
    /// Inputs that are closed as state, by position, with the values that come back to them.
    closed: BTreeMap<usize, ValueId>,
    /// Actors of nodes.
    actors: BTreeMap<usize, usize>,
    /// Blobs of the graph as those of the files.
    blobs: BTreeMap<BlobId, BlobId>,
    emitted: Emitted,
}

impl Emit<'_> {
    fn add_inputs(&mut self) {
        for (position, &id) in self.graph.inputs.iter().enumerate() {
            if !self.closed.contains_key(&position) {
                let value = &self.graph.values[id];
                let input = (position, value.name.clone(), value.ty.clone());
                self.emitted.inputs.push(input);
            }
        }
    }

    fn add_nodes(&mut self) {
        let graph = self.graph;
        let live_nodes: Vec<usize> = (0..graph.nodes.len())
            .filter(|&node| !graph.nodes[node].dead)
            .collect();
        for &node_index in &live_nodes {
            let node = &graph.nodes[node_index];
            let params = self.node_params(node_index);
            let actor = self.add_actor(&node.name, node.op.name, params);
            self.actors.insert(node_index, actor);
        }

        // All actors exist before the first wire: state leads back from a node to one before it.
        for &node_index in &live_nodes {
            let node = &graph.nodes[node_index];
            for (position, operand) in node.inputs.iter().enumerate() {
                let (Some(id), Some((_, port))) = (*operand, node.op.input(position)) else {
                    continue;
                };
                let to = End {
                    actor: self.actors[&node_index],
                    port: Some(port),
                    span: self.span,
                };

                self.add_wire(id, to);
            }
        }
    }

    fn add_outputs(&mut self) {
        let graph = self.graph;
        for (name, id) in &graph.outputs {
            let writer = self.output_writer(name, *id);
            let output = (name.clone(), graph.values[*id].ty.clone(), writer);
            self.emitted.outputs.push(output);
        }
    }

    /// The name with the prefix, numbered where it is taken.
    fn unique_name(&mut self, wanted: &str) -> String {
        let mut name = format!("{}{wanted}", self.prefix);
        let mut count = 1;
        while !self.taken.insert(name.clone()) {
            count += 1;
            name = format!("{}{wanted}#{count}", self.prefix);
        }
        name
    }

    fn add_actor(&mut self, name: &str, op: &str, params: Params) -> usize {
        let name = self.unique_name(name);
        self.net.actors.push(NetActor {
            name,
            span: self.span,
            role: Role::Compute,
            op: Spanned::new(op.to_owned(), self.span),
            params,
            param_spans: BTreeMap::new(),
            stream: TypeFact::default(),
            rate: None,
        });
        self.net.actors.len() - 1
    }

    /// Parameters of a node with its constants, and the shapes under which it reads its inputs.
    fn node_params(&mut self, node_index: usize) -> Params {
        let node = &self.graph.nodes[node_index];
        let mut params = full_params(self.graph, node.op, &node.params, &node.inputs);
        let mut views = BTreeMap::new();
        for (position, operand) in node.inputs.iter().enumerate() {
            let (Some(id), Some((_, port))) = (*operand, node.op.input(position)) else {
                continue;
            };
            let root = self.graph.root(id);
            let seen_type = &self.graph.values[id].ty;
            if self.graph.data(id).is_none() && *seen_type != self.graph.values[root].ty {
                views.insert(port, shape_value(seen_type));
            }
        }

        // A view has no actor: the token has the shape of the value that holds the bytes, and the op is given the
        // shape to read it in.
        if !views.is_empty() {
            params.insert("view".to_owned(), Value::Map(views));
        }

        for value in params.values_mut() {
            if let Value::Tensor(blob, _) = value {
                *blob = self.blob(*blob);
            }
        }

        params
    }

    fn blob(&mut self, blob: BlobId) -> BlobId {
        if let Some(&known) = self.blobs.get(&blob) {
            return known;
        }
        let id = self.files.blob(&self.graph.blobs[blob]);
        self.blobs.insert(blob, id);
        id
    }

    /// Joins an operand to what produces its value.
    fn add_wire(&mut self, id: ValueId, to: End) {
        // Views have no actor of their own: the wire starts where the bytes are produced.
        let root = self.graph.root(id);
        let token = self.graph.values[root].ty.clone();
        let mut closes_state = false;
        let from = match self.graph.values[root].origin {
            // Constants are parameters of the actor that reads them.
            Origin::Constant(_) | Origin::View(_) => return,
            Origin::Node(node, position) => Writer::Actor(self.node_end(node, position)),
            Origin::Input(position) => match self.closed.get(&position).copied() {
                None => Writer::Input(position),
                Some(next_state) => {
                    closes_state = true;
                    self.output_writer("state", next_state)
                }
            },
        };

        self.emitted.wires.push(Wire {
            from,
            to,
            token,
            state: closes_state,
        });
    }

    fn node_end(&self, node: usize, position: usize) -> End {
        End {
            actor: self.actors[&node],
            port: self.graph.nodes[node].op.output(position),
            span: self.span,
        }
    }

    /// What writes a value as it is seen from outside: under its own shape, and by an actor where it is a constant.
    fn output_writer(&mut self, name: &str, id: ValueId) -> Writer {
        let graph = self.graph;
        let root = graph.root(id);
        let output_type = &graph.values[id].ty;
        let has_own_shape = graph.values[root].ty == *output_type;

        let mut params = Params::new();
        let mut is_constant = false;
        match graph.values[root].origin {
            Origin::Node(node, position) if has_own_shape => {
                return Writer::Actor(self.node_end(node, position));
            }
            Origin::Input(position) if has_own_shape && !self.closed.contains_key(&position) => {
                return Writer::Input(position);
            }
            Origin::Constant(blob) => {
                is_constant = true;
                let blob = self.blob(blob);
                params.insert("x".to_owned(), Value::Tensor(blob, output_type.clone()));
            }
            _ => {
                let view = Value::Map([("x".to_owned(), shape_value(output_type))].into());
                params.insert("view".to_owned(), view);
            }
        }

        // Everything else needs a copy: a constant has no writer, a view another shape than its writer, and a state
        // is written by its own loop.
        let actor = self.add_actor(
            &format!("{name}.copy"),
            TensorOp::find("Identity").map_or("NnIdentity", |o| o.name),
            params,
        );
        if !is_constant {
            let to = End {
                actor,
                port: Some("x".to_owned()),
                span: self.span,
            };
            // A copy of a state reads the token before, as every reader of it does.
            self.add_wire(root, to);
        }

        Writer::Actor(End {
            actor,
            port: Some("y".to_owned()),
            span: self.span,
        })
    }
}

fn shape_value(token_type: &TokenType) -> Value {
    let dims = token_type.shape.iter().map(|&dim| i64::from(dim));
    Value::List(dims.map(Value::Int).collect())
}
