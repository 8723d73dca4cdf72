//! The kernels of an actor on a device, in the variant that its plan names. Knows no calendar.

use bytes::Bytes;
use zbmd_ir::{Actor, BlobId, Role, TiSlice};

use super::ReplayError;
use super::queue::Queue;
use zbmd_gpu_ir::{KernelPlan, LowerKernels};

/// What an actor's kernels are made from.
#[derive(Clone, Copy)]
pub(super) struct ActorSource<'a> {
    pub(super) kernels: &'a dyn LowerKernels,
    pub(super) blobs: &'a TiSlice<BlobId, Bytes>,
    pub(super) actor: &'a Actor,
    /// The variant that the plan names.
    pub(super) variant: Option<&'a str>,
}

impl ActorSource<'_> {
    /// The kernels in a variant.
    fn lower_variant<Q: Queue>(
        &self,
        queue: &Q,
        variant: Option<&str>,
    ) -> Result<KernelPlan, ReplayError<Q::Fault>> {
        self.kernels
            .lower_kernels(self.actor, self.blobs, queue.caps(), variant)
            .map_err(|why| ReplayError::NoKernel {
                actor: self.actor.name.clone(),
                op: self.actor.op.clone(),
                device: queue.device_name(),
                why,
            })
    }

    /// The kernels of the actor. What needs a library that this device does not have is done by the default variant,
    /// with a note.
    ///
    /// # Errors
    /// What has no kernel, or not in that variant, or needs more scratch memory than there is.
    pub(super) fn lower<Q: Queue>(
        &self,
        queue: &mut Q,
        scratch_bytes: u64,
        notes: &mut Vec<String>,
    ) -> Result<KernelPlan, ReplayError<Q::Fault>> {
        let name = &self.actor.name;
        let device = queue.device_name();
        if self.actor.role != Role::Compute {
            return Err(ReplayError::Stream {
                actor: name.clone(),
                device,
            });
        }

        let mut plan = self.lower_variant(queue, self.variant)?;
        let first_unsupported = plan
            .products()
            .find_map(|shape| queue.unsupported_reason(shape).transpose());
        let reason = first_unsupported.transpose()?;
        if let (Some(variant), Some(why)) = (self.variant, reason) {
            notes.push(format!(
                "`{name}` was to run by {variant} on {device}, but {why}: the default kernel runs instead, and sums may differ in their last bits; compile again with costs measured here"
            ));
            plan = self.lower_variant(queue, None)?;
        }

        if plan.scratch_bytes() > scratch_bytes {
            return Err(ReplayError::Scratch {
                actor: name.clone(),
                needed: plan.scratch_bytes(),
                found: scratch_bytes,
            });
        }
        Ok(plan)
    }
}
