//! Memory of the host's that others made, and that devices reach as long as somebody here uses it.
//!
//! The driver takes a page once, for all devices of the process. So those that exchange tokens by the same pages share
//! what is registered, and the last one gives it back, before its epoch's memory goes.

use std::sync::{Arc, PoisonError};

use super::device::Device;
use super::driver::Address;
use super::error::Fault;
use crate::replay::HostRegion;

/// Registered memory.
pub(super) struct Registered {
    /// Where devices see it.
    pub(super) at: Address,
    pub(super) bytes: u64,
    memory: HostRegion,
    /// The device that registered it.
    device: Arc<Device>,
}

impl Registered {
    /// The memory, for a device; `None` where the driver does not take it, which costs a copy and nothing else.
    ///
    /// # Errors
    /// A device that is lost.
    pub(super) fn of(device: &Arc<Device>, memory: HostRegion) -> Result<Option<Arc<Self>>, Fault> {
        let all = &device.instance().registered;
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        let same = |other: &Arc<Self>| other.memory == memory;
        if let Some(found) = all.iter().filter_map(|other| other.upgrade()).find(same) {
            return Ok(Some(found));
        }
        match device.call(|driver| driver.register(memory.first(), memory.bytes())) {
            Ok(at) => {
                let (bytes, device) = (memory.bytes(), Arc::clone(device));
                let registered = Arc::new(Self {
                    at,
                    bytes,
                    memory,
                    device,
                });
                all.push(Arc::downgrade(&registered));
                Ok(Some(registered))
            }
            Err(fault) if fault.is_fatal() => Err(fault),
            Err(_) => Ok(None),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.device
            .give_back(|driver| driver.unregister(self.memory.first()));
    }
}
