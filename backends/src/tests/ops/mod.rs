//! Tests of ops, each over all of the catalogue or over one family. `conformance` has the cases that the others use.

mod agreement;
mod channels_last;
pub(crate) mod conformance;
mod custom;
mod expressions;
mod few_outputs;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
pub(crate) mod gpus;
mod hostile;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
pub(crate) mod products;
mod quantised;
mod shared;
mod source_table;
mod sums;
mod type_schemas;
mod values;
mod winograd;
