//! The standard catalogue on the CPU: each file holds some ops with their kernels.
//!
//! Every kernel gives the same bits for n firings in one call as for n calls; the tests in `conformance` hold all
//! of them to it and to the plain loops in `reference`.

#[cfg(test)]
mod agreement;
pub(crate) mod args;
#[cfg(test)]
pub(crate) mod conformance;
mod convert;
pub(crate) mod custom;
mod design;
mod elementwise;
pub(crate) mod entry;
pub(crate) mod examples;
mod fft;
mod fir;
mod frame;
mod generate;
#[cfg(all(test, any(feature = "cuda", feature = "vulkan")))]
pub(crate) mod gpus;
#[cfg(test)]
mod hostile;
mod iir;
mod matrix;
pub(crate) mod nn;
#[cfg(all(test, any(feature = "cuda", feature = "vulkan")))]
pub(crate) mod products;
mod route;
pub(crate) mod sources;
pub(crate) mod types;
#[cfg(test)]
mod values;

use crate::op::{OpDoc, OpError, Registry};
use entry::EntryOp;

impl Registry {
    /// The standard catalogue, with no custom actor registered.
    pub fn standard() -> Self {
        let mut registry = Self::empty();
        let groups = convert::OPS
            .into_iter()
            .chain(elementwise::OPS)
            .chain(fft::OPS)
            .chain(fir::OPS)
            .chain(frame::OPS)
            .chain(generate::OPS)
            .chain(iir::OPS)
            .chain(matrix::OPS)
            .chain(route::OPS);
        groups.for_each(|entry| registry.add(EntryOp::new(entry)));
        registry.add(custom::Custom);
        nn::register(&mut registry);
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
