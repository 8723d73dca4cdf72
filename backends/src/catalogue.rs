//! The standard catalogue: ops for signals and for tensors, and custom actors.
//!
//! Every kernel gives the same bits for n firings in one call as for n calls; `tests/ops/conformance.rs` holds all
//! of them to it.

use zbmd_op::Registry;
use zbmd_op::custom::Custom;
use zbmd_op::entry::EntryOp;

/// The standard catalogue, with no custom actor registered.
pub fn standard_registry() -> Registry {
    let mut registry = Registry::empty();
    zbmd_ops_dsp::entries().for_each(|entry| registry.add(EntryOp::new(entry)));
    registry.add(Custom);
    zbmd_ops_nn::ops().for_each(|op| registry.add(op));
    registry.set_kernel_code(env!("ZBMD_KERNEL_CODE"));
    registry
}
