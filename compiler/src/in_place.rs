//! Outputs over inputs: marks the actors that may write in place, so that plans can use it.

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_ir::{BlobId, Graph, Role, TiSlice};

/// The pass, for [`crate::CompileOptions::skipped_passes`].
pub(crate) const NAME: &str = "in-place";

/// Asks the ops which outputs their kernels may write over inputs.
pub(crate) fn mark_in_place_pairs(
    graph: &mut Graph,
    registry: &Registry,
    blobs: &TiSlice<BlobId, Bytes>,
) {
    for actor in &mut graph.actors {
        if actor.role == Role::Compute {
            actor.in_place = registry.in_place(actor, blobs);
        }
    }
}
