//! Outputs over inputs: says which actors may write in place, so that plans can let them.

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_ir::{BlobId, Graph, Role, TiSlice};

/// The pass, for [`crate::onnx::ImportOptions::without`].
pub(crate) const NAME: &str = "in-place";

/// Asks the ops which outputs their kernels may write over inputs.
pub(crate) fn allow(registry: &Registry, graph: &mut Graph, blobs: &TiSlice<BlobId, Bytes>) {
    for actor in graph.actors.iter_mut().filter(|a| a.role == Role::Compute) {
        actor.in_place = registry.in_place(actor, blobs);
    }
}
