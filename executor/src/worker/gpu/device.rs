//! The GPUs that a process has open: lent to one worker at a time, kept from one epoch to the next, so that kernels are
//! compiled and weights uploaded once. Must not know calendars.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zbmd_backends::gpu::{Device, Drivers, Fault, Kept, Options};

use crate::run::session::Inner;

/// Set in the environment to have the validation layers look on, where they are installed: what they find ends the run.
const VALIDATE: &str = "ZBMD_VULKAN_VALIDATE";
/// How long a worker waits for the worker of the epoch before to give its device back. After that it opens the device
/// once more: the other one may hang.
const RETURN_TIME: Duration = Duration::from_millis(250);

/// What a GPU or its driver said: what one process can tell another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceFault {
    pub device: String,
    pub fault: Fault,
}

impl std::fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device {}: {}", self.device, self.fault)
    }
}

/// The open GPUs of a process.
#[derive(Default)]
pub(crate) struct Gpus {
    shelf: Mutex<Shelf>,
    returned: Condvar,
}

#[derive(Default)]
struct Shelf {
    drivers: Drivers,
    idle: BTreeMap<String, (Kept, Device)>,
    lent: BTreeSet<String>,
    /// Devices that have been lent before.
    known: BTreeSet<String>,
}

impl Gpus {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device of that name is here and can be opened; it stays open, with the kernels that the program has
    /// for it.
    ///
    /// # Errors
    /// In words, with a mend.
    pub(crate) fn probe(&self, engine: &Inner, which: &zbmd_ir::Device) -> Result<(), DeviceFault> {
        let name = &which.name;
        let mut shelf = self.shelf();
        if shelf.lent.contains(name) || shelf.idle.contains_key(name) {
            return Ok(());
        }
        let device = shelf.open(which)?;
        let warmed = device.warm(&engine.registry, &engine.program);
        shelf.idle.insert(name.clone(), (Kept::default(), device));
        warmed.map_err(|fault| DeviceFault {
            device: name.clone(),
            fault,
        })
    }

    /// The device of that name, for one worker.
    ///
    /// # Errors
    /// In words, with a mend.
    pub(crate) fn lend(self: &Arc<Self>, which: &zbmd_ir::Device) -> Result<Lent, DeviceFault> {
        let name = &which.name;
        let is_lent = |shelf: &mut Shelf| shelf.lent.contains(name);
        let waited = self
            .returned
            .wait_timeout_while(self.shelf(), RETURN_TIME, is_lent);
        let (mut shelf, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let (kept, device) = match shelf.idle.remove(name) {
            Some(idle) => idle,
            None => (Kept::default(), shelf.open(which)?),
        };
        let is_first = shelf.known.insert(name.to_owned());
        shelf.lent.insert(name.to_owned());
        Ok(Lent {
            kept,
            device,
            is_first,
            name: name.to_owned(),
            gpus: Arc::clone(self),
        })
    }
}

impl Shelf {
    fn open(&mut self, which: &zbmd_ir::Device) -> Result<Device, DeviceFault> {
        let validate = std::env::var_os(VALIDATE).is_some_and(|v| v != "0");
        let options = Options {
            validate,
            cache: cache_folder(),
            dependent_launch: which.programmatic,
        };
        let opened = self.drivers.open(&which.backend, &which.name, &options);
        let device = opened.map_err(|fault| DeviceFault {
            device: which.name.clone(),
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
pub(crate) struct Lent {
    // First: it is given back before its device is.
    pub(super) kept: Kept,
    device: Device,
    is_first: bool,
    name: String,
    gpus: Arc<Gpus>,
}

impl Lent {
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
    pub(crate) fn complaints(&self) -> Option<String> {
        let messages = self.device.validation_messages();
        let first = messages.first()?;
        Some(format!(
            "the validation layers have {} messages, the first: {first}",
            messages.len()
        ))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut shelf = self.gpus.shelf();
        if self.device.is_alive() {
            let kept = std::mem::take(&mut self.kept);
            shelf
                .idle
                .insert(self.name.clone(), (kept, self.device.clone()));
        } else {
            shelf.drivers.abandon(&self.device);
        }
        shelf.lent.remove(&self.name);
        drop(shelf);
        self.gpus.returned.notify_all();
    }
}
