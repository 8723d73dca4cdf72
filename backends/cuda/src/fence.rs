//! Points in the queue of a device that can be waited for.
#![expect(unsafe_code, reason = "records and asks events by their handles")]

use std::sync::Arc;

use super::context::DriverContext;
use super::driver::{Driver, Event};
use super::error::{CallError, Fault};

/// A point in the queue that can be waited for.
pub(super) struct Fence {
    event: Event,
    context: Arc<DriverContext>,
}

impl Fence {
    pub(super) fn new(context: &Arc<DriverContext>) -> Result<Self, Fault> {
        let event = context.call(|driver| driver.create_event())?;
        Ok(Self {
            event,
            context: Arc::clone(context),
        })
    }

    /// Puts the fence into the queue of its device.
    pub(super) fn record(&self, driver: &dyn Driver) -> Result<(), CallError> {
        // SAFETY: the event is this fence's, and given back when it is dropped; drivers keep what is in the queue of it.
        unsafe { driver.record_event(self.event) }
    }

    /// Whether everything has ended that was in the queue before it.
    pub(super) fn has_passed(&self) -> Result<bool, Fault> {
        self.context.call(|driver| {
            // SAFETY: the event is this fence's, and given back when it is dropped.
            unsafe { driver.query_event(self.event) }
        })
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.context.give_back(|driver| {
            // SAFETY: made by `new`, and given back here only. Of an event that is still in the queue drivers free the
            // memory when the queue has reached it.
            unsafe { driver.destroy_event(self.event) }
        });
    }
}
