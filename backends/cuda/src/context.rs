//! The driver of one open device, and whether it may still be called. What is made on the device holds this, and gives
//! itself back through it.
#![expect(unsafe_code, reason = "closes the device")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::Driver;
use super::error::{CallError, Fault};

/// The driver with one device open; the device is closed when this is dropped, unless it is lost.
pub(super) struct DriverContext {
    driver: Arc<dyn Driver>,
    /// A fatal fault was seen.
    is_dead: AtomicBool,
}

impl DriverContext {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self {
            driver,
            is_dead: AtomicBool::new(false),
        })
    }

    /// Whether no fault was seen after which the driver must be left alone.
    pub(super) fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Relaxed)
    }

    /// Makes calls that can fail, on the calling thread, and sorts what they report.
    pub(super) fn call<T>(
        &self,
        call: impl FnOnce(&dyn Driver) -> Result<T, CallError>,
    ) -> Result<T, Fault> {
        let driver = &*self.driver;
        driver
            .bind_thread()
            .and_then(|()| call(driver))
            .map_err(|error| self.note_fault(Fault::new(error)))
    }

    /// Gives something back, unless the device is lost.
    pub(super) fn give_back(&self, call: impl FnOnce(&dyn Driver)) {
        if self.is_alive() && self.driver.bind_thread().is_ok() {
            call(&*self.driver);
        }
    }

    /// Remembers a fault after which the driver is left alone.
    pub(super) fn note_fault(&self, fault: Fault) -> Fault {
        if fault.is_fatal() {
            self.is_dead.store(true, Ordering::Relaxed);
        }
        fault
    }

    /// The vendor's library for products, with its version; or why there is none, as a clause.
    pub(super) fn product_library(&self) -> Result<String, String> {
        self.driver
            .bind_thread()
            .map_err(|error| Fault::new(error).to_string())?;
        self.driver.product_library()
    }
}

impl Drop for DriverContext {
    fn drop(&mut self) {
        self.give_back(|driver| {
            // SAFETY: everything made on the device holds this context, so nothing else is left and nothing is called
            // later; queues have waited for their work.
            unsafe { driver.close_device() }
        });
    }
}
