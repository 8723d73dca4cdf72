//! The kernels of an actor on a device, in the variant that its plan names. Knows no calendar.

use bytes::Bytes;
use zbmd_ir::{Actor, BlobId, Role, TiSlice};

use super::{Queue, ReplayError};
use crate::kernels::KernelPlan;
use crate::op::Registry;

/// The kernels of an actor. What is wanted of a library that is not here is done by the default variant, with a note.
///
/// # Errors
/// What has no kernel, or not in that variant, or needs more scratch memory than there is.
pub(super) fn lower<Q: Queue>(
    queue: &mut Q,
    (registry, blobs): (&Registry, &TiSlice<BlobId, Bytes>),
    (actor, variant): (&Actor, Option<&str>),
    scratch_bytes: u64,
    notes: &mut Vec<String>,
) -> Result<KernelPlan, ReplayError<Q::Fault>> {
    let (name, device, caps) = (actor.name.clone(), queue.name(), *queue.caps());
    if actor.role != Role::Compute {
        return Err(ReplayError::Stream {
            actor: name,
            device,
        });
    }
    let lower = |variant: Option<&str>| {
        let plan = registry.lower_in(actor, blobs, &caps, variant);
        plan.map_err(|why| {
            let (actor, op, device) = (name.clone(), actor.op.clone(), device.clone());
            ReplayError::NoKernel {
                actor,
                op,
                device,
                why,
            }
        })
    };
    let mut plan = lower(variant)?;
    let refused = plan
        .products()
        .find_map(|shape| queue.refuses(shape).transpose());
    if let (Some(variant), Some(why)) = (variant, refused.transpose()?) {
        notes.push(format!(
            "`{name}` was to run by {variant} on {device}, but {why}: the default kernel runs instead, and sums may differ in their last bits; compile again with costs measured here"
        ));
        plan = lower(None)?;
    }
    if plan.scratch_bytes() > scratch_bytes {
        let (needed, found) = (plan.scratch_bytes(), scratch_bytes);
        return Err(ReplayError::Scratch {
            actor: name,
            needed,
            found,
        });
    }
    Ok(plan)
}
