//! The GPUs that a process has open: lent to one worker at a time, kept from one epoch to the next, so that kernels are
//! compiled and weights uploaded once. Must not know calendars.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zbmd_devices::gpu::{Device, Drivers, GpuOptions, Kept};

use crate::fault::DeviceFault;
use crate::program::LoadedProgram;

/// Set in the environment to have the validation layers look on, where they are installed: what they find ends the run.
const VALIDATE: &str = "ZBMD_VULKAN_VALIDATE";
/// How long a worker waits for the worker of the epoch before to give its device back. After that it opens the device
/// once more: the other one may hang.
const RETURN_TIME: Duration = Duration::from_millis(250);

/// The open GPUs of a process.
#[derive(Default)]
pub(crate) struct OpenGpus {
    pool: Mutex<DevicePool>,
    returned: Condvar,
}

#[derive(Default)]
struct DevicePool {
    drivers: Drivers,
    idle: BTreeMap<String, (Kept, Device)>,
    lent: BTreeSet<String>,
    /// Devices that have been lent before.
    known: BTreeSet<String>,
}

impl OpenGpus {
    fn pool(&self) -> MutexGuard<'_, DevicePool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device of that name is here and can be opened; it stays open, with the kernels that the program has
    /// for it.
    ///
    /// # Errors
    /// A message that includes a suggested fix.
    pub(crate) fn probe(
        &self,
        loaded: &LoadedProgram,
        described: &zbmd_ir::Device,
    ) -> Result<(), DeviceFault> {
        let name = &described.name;
        let mut pool = self.pool();
        if pool.lent.contains(name) || pool.idle.contains_key(name) {
            return Ok(());
        }
        let device = pool.open(described)?;
        let warmed = device.warm(&loaded.registry, &loaded.program);
        pool.idle.insert(name.clone(), (Kept::default(), device));
        warmed.map_err(|fault| DeviceFault {
            device: name.clone(),
            fault,
        })
    }

    /// The device of that name, for one worker.
    ///
    /// # Errors
    /// A message that includes a suggested fix.
    pub(crate) fn lend(
        self: &Arc<Self>,
        described: &zbmd_ir::Device,
    ) -> Result<LentDevice, DeviceFault> {
        let name = &described.name;
        let is_lent = |pool: &mut DevicePool| pool.lent.contains(name);
        let waited = self
            .returned
            .wait_timeout_while(self.pool(), RETURN_TIME, is_lent);
        let (mut pool, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let (kept, device) = match pool.idle.remove(name) {
            Some(idle) => idle,
            None => (Kept::default(), pool.open(described)?),
        };
        let is_first = pool.known.insert(name.to_owned());
        pool.lent.insert(name.to_owned());
        Ok(LentDevice {
            kept,
            device,
            is_first,
            name: name.to_owned(),
            gpus: Arc::clone(self),
        })
    }
}

impl DevicePool {
    fn open(&mut self, described: &zbmd_ir::Device) -> Result<Device, DeviceFault> {
        let validate = std::env::var_os(VALIDATE).is_some_and(|v| v != "0");
        let options = GpuOptions {
            validate,
            cache: cache_folder(),
            dependent_launch: described.programmatic,
        };
        let opened = self
            .drivers
            .open(&described.backend, described.driver_name(), &options);
        let device = opened.map_err(|fault| DeviceFault {
            device: described.name.clone(),
            fault,
        })?;
        #[cfg(feature = "testing")]
        crate::testing::opened(&device);
        Ok(device)
    }
}

/// Where compiled kernels are kept from run to run: the user's cache folder, as calibration's.
fn cache_folder() -> Option<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(base) => PathBuf::from(base),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".cache"),
    };
    base.is_absolute().then(|| base.join("zbmd"))
}

/// A device that is one worker's until it is dropped.
pub(crate) struct LentDevice {
    // First: it is given back before its device is.
    pub(super) kept: Kept,
    device: Device,
    is_first: bool,
    name: String,
    gpus: Arc<OpenGpus>,
}

impl LentDevice {
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Keeps what the driver compiled for later runs.
    pub(crate) fn keep_kernels(&self) {
        if self.is_first {
            self.device.save_kernel_cache();
        }
    }

    /// What the validation layers have found, if they look on.
    pub(crate) fn validation_complaint(&self) -> Option<String> {
        let messages = self.device.validation_messages();
        let first = messages.first()?;
        Some(format!(
            "the validation layers have {} messages, the first: {first}",
            messages.len()
        ))
    }
}

impl Drop for LentDevice {
    fn drop(&mut self) {
        let mut pool = self.gpus.pool();
        if self.device.is_alive() {
            let kept = std::mem::take(&mut self.kept);
            pool.idle
                .insert(self.name.clone(), (kept, self.device.clone()));
        } else {
            pool.drivers.abandon(&self.device);
        }
        pool.lent.remove(&self.name);
        drop(pool);
        self.gpus.returned.notify_all();
    }
}
