//! The GPUs that a process has open: lent to one worker at a time, kept from one epoch to the next, so that kernels are
//! compiled once. Must not know calendars.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zbmd_backends::vulkan::{Device, Fault, Instance, OpenError, Options};

/// Set in the environment to have the validation layers look on, where they are installed: what they find ends the run.
const VALIDATE: &str = "ZBMD_VULKAN_VALIDATE";
/// How long a worker waits for the worker of the epoch before to give its device back. After that it opens the device
/// once more: the other one may hang.
const RETURN_TIME: Duration = Duration::from_millis(250);

/// What a GPU or its driver said: what one process can tell another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceFault {
    pub device: String,
    pub kind: FaultKind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FaultKind {
    /// It is not there, or cannot do what is asked of it.
    Unfit,
    /// Its memory is used up.
    Memory,
    /// The driver must not be asked for anything any more: the process is to end.
    Lost,
    /// Anything else; the device may well do better next time.
    Failed,
}

impl std::fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device {}: {}", self.device, self.text)
    }
}

impl DeviceFault {
    pub(crate) fn of(name: &str, fault: &Fault) -> Self {
        let kind = match fault {
            fault if fault.is_fatal() => FaultKind::Lost,
            Fault::OutOfMemory { .. } => FaultKind::Memory,
            _ => FaultKind::Failed,
        };
        Self { device: name.to_owned(), kind, text: fault.to_string() }
    }

    fn unopened(name: &str, error: OpenError) -> Self {
        let mend = match &error {
            OpenError::Fault(fault) => return Self::of(name, fault),
            OpenError::Unavailable(_) => {
                "install the Vulkan loader and a driver (Debian: libvulkan1 and mesa-vulkan-drivers), or compile for a machine without it"
            }
            OpenError::NoDevice { .. } | OpenError::Lacks { .. } => {
                "`zbmdc devices` lists what is here; compile for that"
            }
        };
        let text = format!("{error}; {mend}");
        Self { device: name.to_owned(), kind: FaultKind::Unfit, text }
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
    instance: Option<Arc<Instance>>,
    idle: BTreeMap<String, Arc<Device>>,
    lent: BTreeSet<String>,
    /// Devices that have been lent before.
    known: BTreeSet<String>,
}

impl Gpus {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device of that name is here and can be opened; it stays open.
    ///
    /// # Errors
    /// In words, with a mend.
    pub(crate) fn probe(&self, name: &str) -> Result<(), DeviceFault> {
        let mut shelf = self.shelf();
        if shelf.lent.contains(name) || shelf.idle.contains_key(name) {
            return Ok(());
        }
        let device = shelf.open(name).map_err(|error| DeviceFault::unopened(name, error))?;
        shelf.idle.insert(name.to_owned(), device);
        Ok(())
    }

    /// The device of that name, for one worker.
    ///
    /// # Errors
    /// In words, with a mend.
    pub(crate) fn lend(self: &Arc<Self>, name: &str) -> Result<Lent, DeviceFault> {
        let is_lent = |shelf: &mut Shelf| shelf.lent.contains(name);
        let waited = self.returned.wait_timeout_while(self.shelf(), RETURN_TIME, is_lent);
        let (mut shelf, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let device = match shelf.idle.remove(name) {
            Some(device) => device,
            None => shelf.open(name).map_err(|error| DeviceFault::unopened(name, error))?,
        };
        let is_first = shelf.known.insert(name.to_owned());
        shelf.lent.insert(name.to_owned());
        Ok(Lent { device, is_first, name: name.to_owned(), gpus: Arc::clone(self) })
    }
}

impl Shelf {
    fn open(&mut self, name: &str) -> Result<Arc<Device>, OpenError> {
        let instance = match &self.instance {
            Some(instance) => Arc::clone(instance),
            None => {
                let validate = std::env::var_os(VALIDATE).is_some_and(|v| v != "0");
                let instance = Instance::load(validate)?;
                self.instance = Some(Arc::clone(&instance));
                instance
            }
        };
        let listed = instance.find(name)?;
        let options = Options { cache: cache_folder(), ..Options::default() };
        let device = Device::open(&instance, &listed, &options)?;
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
    device: Arc<Device>,
    is_first: bool,
    name: String,
    gpus: Arc<Gpus>,
}

impl Lent {
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Keeps what the driver compiled for later runs.
    pub(crate) fn keep_kernels(&self) {
        if self.is_first {
            self.device.save_cache();
        }
    }

    /// What the validation layers have found, if they look on.
    pub(crate) fn complaints(&self) -> Option<String> {
        let messages = self.device.instance().messages();
        let first = messages.first()?;
        Some(format!("the validation layers have {} messages, the first: {first}", messages.len()))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut shelf = self.gpus.shelf();
        if self.device.is_alive() {
            shelf.idle.insert(self.name.clone(), Arc::clone(&self.device));
        } else {
            // What is left of it stays with the driver until the process ends, and its instance with it.
            std::mem::forget(Arc::clone(&self.device));
            shelf.instance = None;
        }
        shelf.lent.remove(&self.name);
        drop(shelf);
        self.gpus.returned.notify_all();
    }
}
