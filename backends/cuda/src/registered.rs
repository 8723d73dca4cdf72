//! Memory of the host that others own, and that devices of this process reach as long as one of them uses it.
//!
//! The driver registers a page once, for all devices of the process. So those that exchange tokens by the same pages
//! share the registration, and the last one ends it, before the memory of its epoch is freed.
#![expect(unsafe_code, reason = "registers memory by its address")]

use std::sync::{Arc, PoisonError};

use super::device::CudaDevice;
use super::driver::Address;
use super::error::Fault;
use zbmd_hal::HostRegion;

/// Registered memory.
pub(super) struct RegisteredMemory {
    /// Where devices see it.
    pub(super) address: Address,
    memory: HostRegion,
    /// The device that registered it.
    device: Arc<CudaDevice>,
}

impl RegisteredMemory {
    /// The memory, for a device; `None` where the driver does not accept it, which costs a copy and nothing else.
    ///
    /// # Errors
    /// A device that is lost.
    pub(super) fn find_or_register(
        device: &Arc<CudaDevice>,
        memory: HostRegion,
    ) -> Result<Option<Arc<Self>>, Fault> {
        let registered = &device.instance().registered;
        let mut registered = registered.lock().unwrap_or_else(PoisonError::into_inner);
        registered.retain(|other| other.strong_count() > 0);
        let mut alive = registered.iter().filter_map(|other| other.upgrade());
        if let Some(found) = alive.find(|other| other.memory == memory) {
            return Ok(Some(found));
        }

        let address = device.call(|driver| {
            // SAFETY: the region's maker promised that the memory is valid as long as any replay has the region, and a
            // replay has this registration among its banks: it ends first.
            unsafe { driver.register_host(memory.first(), memory.bytes()) }
        });
        match address {
            Ok(address) => {
                let new = Arc::new(Self {
                    address,
                    memory,
                    device: Arc::clone(device),
                });
                registered.push(Arc::downgrade(&new));
                Ok(Some(new))
            }
            Err(fault) if fault.is_fatal() => Err(fault),
            Err(_) => Ok(None),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.memory.bytes()
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        self.device.give_back(|driver| {
            // SAFETY: registered by `find_or_register`, and given back here only. Queues hold it among their banks, and
            // wait for what they were given before they drop those.
            unsafe { driver.unregister_host(self.memory.first()) }
        });
    }
}
