//! The imported graph: nodes that are tensor ops already, values that are constants, inputs or outputs of nodes.

use bytes::Bytes;
use zbmd_backends::TensorOp;
use zbmd_ir::{BlobId, Params, TiVec, TokenType};

/// A value, as an index into [`Graph::values`].
pub(crate) type ValueId = usize;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    /// Constant data.
    Constant(BlobId),
    /// An input of the model, by position.
    Input(usize),
    /// An output of a node: node, position among the operator's outputs.
    Node(usize, usize),
    /// The same elements as another value, under another shape.
    View(ValueId),
}

/// A tensor that flows.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) name: String,
    pub(crate) ty: TokenType,
    pub(crate) origin: Origin,
}

/// A tensor op.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) op: &'static TensorOp,
    /// Parameters that are not operands.
    pub(crate) params: Params,
    /// Operands by position.
    pub(crate) inputs: Vec<Option<ValueId>>,
    /// Outputs that are used: position among the operator's, and value.
    pub(crate) outputs: Vec<(usize, ValueId)>,
    /// Whether a pass has removed it.
    pub(crate) dead: bool,
}

/// How often each value of a graph is read.
#[derive(Clone, Debug)]
pub(crate) struct Uses {
    /// By value.
    counts: Vec<usize>,
}

impl Uses {
    /// The readers of a value; 0 of one that is newer than the counts.
    pub(crate) fn of(&self, id: ValueId) -> usize {
        self.counts.get(id).copied().unwrap_or(0)
    }
}

/// An imported model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub(crate) name: String,
    pub(crate) values: Vec<Value>,
    /// In an order in which each comes behind those it reads.
    pub(crate) nodes: Vec<Node>,
    pub(crate) inputs: Vec<ValueId>,
    /// Names and values of the model's outputs.
    pub(crate) outputs: Vec<(String, ValueId)>,
    pub(crate) blobs: TiVec<BlobId, Bytes>,
    /// Outputs that are fed back: index into `inputs`, and value.
    pub(crate) state: Vec<(usize, ValueId)>,
    /// Samples that are computed together, each a token of every stream by itself.
    pub(crate) batch: Option<u32>,
    /// What the passes did.
    pub(crate) reports: Vec<crate::pass_report::PassReport>,
}

impl Graph {
    /// Adds a constant.
    pub(crate) fn constant(&mut self, name: &str, ty: TokenType, data: Bytes) -> ValueId {
        let blob = self.blobs.push_and_get_key(data);
        self.value(name, ty, Origin::Constant(blob))
    }

    /// Adds a value.
    pub(crate) fn value(&mut self, name: &str, ty: TokenType, origin: Origin) -> ValueId {
        self.values.push(Value {
            name: name.to_owned(),
            ty,
            origin,
        });
        self.values.len() - 1
    }

    /// The value behind views.
    pub(crate) fn root(&self, mut id: ValueId) -> ValueId {
        while let Origin::View(of) = self.values[id].origin {
            id = of;
        }
        id
    }

    /// The data of a constant, also under a view.
    pub(crate) fn data(&self, id: ValueId) -> Option<&Bytes> {
        match self.values[self.root(id)].origin {
            Origin::Constant(blob) => self.blobs.get(blob),
            _ => None,
        }
    }

    /// The node that makes a value, not looking through views.
    pub(crate) fn producer(&self, id: ValueId) -> Option<usize> {
        match self.values[id].origin {
            Origin::Node(node, _) => Some(node),
            _ => None,
        }
    }

    /// How often each value is read: by operands, views, outputs of the model and states.
    pub(crate) fn uses(&self) -> Uses {
        let mut counts = vec![0; self.values.len()];
        let live = self.nodes.iter().filter(|n| !n.dead);
        let operands = live.flat_map(|n| n.inputs.iter().flatten().copied());
        let ends = self
            .outputs
            .iter()
            .map(|o| o.1)
            .chain(self.state.iter().map(|s| s.1));
        let mut read_values: Vec<ValueId> = operands.chain(ends).collect();

        // The list grows while it is walked: a view that is read reads what it shows. It counts as one reader of that,
        // however often it is read itself.
        let mut next = 0;
        while next < read_values.len() {
            let id = read_values[next];
            next += 1;
            counts[id] += 1;
            if let (1, Origin::View(shown)) = (counts[id], &self.values[id].origin) {
                read_values.push(*shown);
            }
        }

        Uses { counts }
    }

    /// Lets everything that reads `old` read `new`.
    pub(crate) fn replace(&mut self, old: ValueId, new: ValueId) {
        for node in self.nodes.iter_mut().filter(|n| !n.dead) {
            for input in node.inputs.iter_mut().flatten().filter(|i| **i == old) {
                *input = new;
            }
        }

        for value in &mut self.values {
            if value.origin == Origin::View(old) {
                value.origin = Origin::View(new);
            }
        }

        for (_, value) in self.outputs.iter_mut().filter(|o| o.1 == old) {
            *value = new;
        }
        for (_, value) in self.state.iter_mut().filter(|s| s.1 == old) {
            *value = new;
        }
    }

    /// Marks nodes whose outputs nobody reads as dead, until none is left; returns their number.
    pub(crate) fn sweep(&mut self) -> usize {
        let mut swept = 0;
        loop {
            let uses = self.uses();
            let swept_before = swept;
            for node in self.nodes.iter_mut().filter(|n| !n.dead) {
                let is_used = node.outputs.iter().any(|(_, id)| uses.of(*id) > 0);
                if !is_used {
                    node.dead = true;
                    swept += 1;
                }
            }

            // A dead node reads nothing any more, so what it read may be unread now.
            if swept == swept_before {
                return swept;
            }
        }
    }
}
