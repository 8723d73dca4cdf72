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
    /// Type of its tokens: where state is closed, nothing else would tell it.
    pub(crate) token: TokenType,
    /// Whether it closes state: one zero token lies on it.
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
        actors: BTreeMap::new(),
        blobs: BTreeMap::new(),
    };

    emit.all()
}

struct Emit<'a> {
    graph: &'a Graph,
    net: &'a mut Net,
    files: &'a mut Files,
    prefix: &'a str,
    span: Span,
    taken: BTreeSet<String>,
    /// Actors of nodes.
    actors: BTreeMap<usize, usize>,
    blobs: BTreeMap<BlobId, BlobId>,
}

impl Emit<'_> {
    fn all(&mut self) -> Emitted {
        let graph = self.graph;
        let closed: BTreeMap<usize, ValueId> = graph.state.iter().copied().collect();
        let live: Vec<usize> = (0..graph.nodes.len())
            .filter(|&n| !graph.nodes[n].dead)
            .collect();
        for &n in &live {
            let node = &graph.nodes[n];
            let params = self.node_params(n);
            let id = self.actor(&node.name, node.op.name, params);
            self.actors.insert(n, id);
        }

        // All actors exist before the first wire: nodes may be wired in any order.
        let mut out = Emitted::default();
        for (place, &id) in graph.inputs.iter().enumerate() {
            if !closed.contains_key(&place) {
                out.inputs.push((
                    place,
                    graph.values[id].name.clone(),
                    graph.values[id].ty.clone(),
                ));
            }
        }

        for &n in &live {
            let node = &graph.nodes[n];
            for (position, id) in node.inputs.iter().enumerate() {
                let (Some(id), Some((_, port))) = (*id, node.op.input(position)) else {
                    continue;
                };
                let to = End {
                    actor: self.actors[&n],
                    port: Some(port),
                    span: self.span,
                };

                self.wire(id, to, &closed, &mut out);
            }
        }

        for (name, id) in &graph.outputs {
            let writer = self.output(name, *id, &closed, &mut out);
            out.outputs
                .push((name.clone(), graph.values[*id].ty.clone(), writer));
        }
        out
    }

    fn name(&mut self, wish: &str) -> String {
        let mut name = format!("{}{wish}", self.prefix);
        let mut count = 1;
        while !self.taken.insert(name.clone()) {
            count += 1;
            name = format!("{}{wish}#{count}", self.prefix);
        }
        name
    }

    fn actor(&mut self, name: &str, op: &str, params: Params) -> usize {
        let name = self.name(name);
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
    fn node_params(&mut self, n: usize) -> Params {
        let node = &self.graph.nodes[n];
        let mut params = full_params(self.graph, node.op, &node.params, &node.inputs);
        let mut views = BTreeMap::new();
        for (position, id) in node.inputs.iter().enumerate() {
            let (Some(id), Some((_, port))) = (*id, node.op.input(position)) else {
                continue;
            };
            let (seen, root) = (&self.graph.values[id].ty, self.graph.root(id));
            if self.graph.data(id).is_none() && *seen != self.graph.values[root].ty {
                views.insert(port, shape_value(seen));
            }
        }

        // An operand that is looked at in another shape is read from the value that has its bytes.
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

    /// Joins an operand to what makes its value.
    fn wire(&mut self, id: ValueId, to: End, closed: &BTreeMap<usize, ValueId>, out: &mut Emitted) {
        let root = self.graph.root(id);

        // Views have no actor of their own: the wire starts where the bytes are made.
        let token = self.graph.values[root].ty.clone();
        match self.graph.values[root].origin {
            Origin::Constant(_) | Origin::View(_) => {}
            Origin::Node(n, position) => {
                let from = Writer::Actor(self.end(n, position));
                out.wires.push(Wire {
                    from,
                    to,
                    token,
                    state: false,
                });
            }
            Origin::Input(place) => match closed.get(&place) {
                None => out.wires.push(Wire {
                    from: Writer::Input(place),
                    to,
                    token,
                    state: false,
                }),
                Some(&back) => {
                    let from = self.output("state", back, closed, out);
                    out.wires.push(Wire {
                        from,
                        to,
                        token,
                        state: true,
                    });
                }
            },
        }
    }

    fn end(&self, n: usize, position: usize) -> End {
        End {
            actor: self.actors[&n],
            port: self.graph.nodes[n].op.output(position),
            span: self.span,
        }
    }

    /// What writes a value as it is seen from outside: under its own shape, and by an actor where it is a constant.
    fn output(
        &mut self,
        name: &str,
        id: ValueId,
        closed: &BTreeMap<usize, ValueId>,
        out: &mut Emitted,
    ) -> Writer {
        let graph = self.graph;
        let (ty, root) = (&graph.values[id].ty, graph.root(id));
        let mut params = Params::new();
        match graph.values[root].origin {
            Origin::Node(n, position) if graph.values[root].ty == *ty => {
                return Writer::Actor(self.end(n, position));
            }
            Origin::Input(place)
                if graph.values[root].ty == *ty && !closed.contains_key(&place) =>
            {
                return Writer::Input(place);
            }
            Origin::Constant(blob) => {
                let blob = self.blob(blob);
                params.insert("x".to_owned(), Value::Tensor(blob, ty.clone()));
            }
            _ => {
                params.insert(
                    "view".to_owned(),
                    Value::Map([("x".to_owned(), shape_value(ty))].into()),
                );
            }
        }

        let constant = params.contains_key("x");
        let actor = self.actor(
            &format!("{name}.copy"),
            TensorOp::find("Identity").map_or("NnIdentity", |o| o.name),
            params,
        );
        if !constant {
            let to = End {
                actor,
                port: Some("x".to_owned()),
                span: self.span,
            };
            // A copy of a state is made from the token before, as every reader of it.
            self.wire(root, to, closed, out);
        }

        Writer::Actor(End {
            actor,
            port: Some("y".to_owned()),
            span: self.span,
        })
    }
}

fn shape_value(ty: &TokenType) -> Value {
    Value::List(ty.shape.iter().map(|&d| Value::Int(i64::from(d))).collect())
}
