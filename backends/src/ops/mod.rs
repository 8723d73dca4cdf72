//! The standard catalogue: ops for signals and for tensors, and custom actors.
//!
//! Every kernel gives the same bits for n firings in one call as for n calls; `tests/ops/conformance.rs` holds all
//! of them to it.

pub(crate) mod custom;

use crate::op::{OpDoc, OpError, Registry};
use zbmd_op::args;
use zbmd_op::entry::EntryOp;

impl Registry {
    /// The standard catalogue, with no custom actor registered.
    pub fn standard() -> Self {
        let mut registry = Self::empty();
        zbmd_ops_dsp::entries().for_each(|entry| registry.add(EntryOp::new(entry)));
        registry.add(custom::Custom);
        zbmd_ops_nn::ops().for_each(|op| registry.add(op));
        registry
    }

    /// Name and description of every op, sorted by name.
    pub fn docs(&self) -> Vec<(String, OpDoc)> {
        self.ops
            .iter()
            .map(|(name, op)| (name.clone(), op.doc()))
            .collect()
    }

    pub(crate) fn unknown_op(&self, name: &str) -> OpError {
        let help = match args::nearest(name, self.names()) {
            Some(near) => format!("did you mean `{near}`? See `zbmdc ops` for the catalogue"),
            None => "see `zbmdc ops` for the catalogue, or use `Custom`".to_owned(),
        };
        OpError::Other {
            message: format!("unknown op `{name}`"),
            help,
        }
    }
}
