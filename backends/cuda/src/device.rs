//! One open device: what is loaded on it, and how its queue is waited for. Everything is given back when it is dropped,
//! unless the device is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::context::DriverContext;
use super::driver::{Driver, Function, Image};
use super::error::{CallError, Fault, OpenError};
use super::fence::Fence;
use super::instance::Instance;
use super::listed::Listed;
use super::registered::RegisteredMemory;
use zbmd_gpu_ir::Caps;
use zbmd_gpu_ir::emit::cubins::{Cubins, MIN_DEPENDENT_LAUNCH};
use zbmd_gpu_ir::emit::ptx;
use zbmd_gpu_ir::lang::Kernel;
use zbmd_gpu_ir::library::Shape;
use zbmd_hal::HostRegion;

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Bytes of the largest allocation: larger arenas are divided into several. By default each is one.
    pub bank_bytes: Option<u64>,
    /// Use CUDA programmatic dependent launch: kernels of a calendar may start before the end of the one that they wait
    /// for, and wait for that end themselves, where device and driver support it: compute capability 9.0, CUDA 12.3.
    pub dependent_launch: bool,
}

/// A loaded kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadedKernel {
    pub(super) function: Function,
    /// Threads of a group.
    pub(super) local: u32,
    /// How many pointers it declares; its words are one more.
    pub(super) bindings: usize,
}

/// Kernels that have been loaded, by a digest of their code and the values of their constants.
type LoadedKernels = BTreeMap<(u128, Vec<u32>), LoadedKernel>;

/// An open device. One thread drives it at a time.
///
/// After [`Fault::Lost`], [`Fault::Hung`] or a wait that failed the driver may still write to what it was given, or
/// never answer again: nothing is freed then, and nothing is waited for. The process is expected to end.
pub struct CudaDevice {
    context: Arc<DriverContext>,
    listed: Listed,
    options: CudaOptions,
    has_dependent_launch: bool,
    kernels: Mutex<LoadedKernels>,
    // Last: the driver outlives its devices.
    instance: Arc<Instance>,
}

impl std::fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDevice")
            .field("name", &self.listed.name)
            .finish_non_exhaustive()
    }
}

impl CudaDevice {
    /// Opens a device of the instance.
    ///
    /// # Errors
    /// [`OpenError::Lacks`] for a device that is too old; a [`Fault`] of the driver.
    pub fn open(
        instance: &Arc<Instance>,
        listed: &Listed,
        options: &CudaOptions,
    ) -> Result<Arc<CudaDevice>, OpenError> {
        let driver = instance.open_driver(listed)?;
        let has_dependent_launch = options.dependent_launch
            && listed.arch >= MIN_DEPENDENT_LAUNCH
            && driver.supports_dependent_launch();
        Ok(Arc::new(CudaDevice {
            context: DriverContext::new(driver),
            has_dependent_launch,
            listed: listed.clone(),
            options: options.clone(),
            kernels: Mutex::default(),
            instance: Arc::clone(instance),
        }))
    }

    /// What it is.
    pub fn listed(&self) -> &Listed {
        &self.listed
    }

    /// Its driver.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// What kernels can do there.
    pub fn caps(&self) -> &Caps {
        &self.listed.caps
    }

    /// Whether kernels wait for others themselves: [`CudaOptions::dependent_launch`], and the device and its driver support
    /// it.
    pub fn has_dependent_launch(&self) -> bool {
        self.has_dependent_launch
    }

    pub(super) fn bank_bytes(&self) -> u64 {
        // No card has that much memory, and sums of such offsets do not overflow.
        self.options.bank_bytes.unwrap_or(1 << 48)
    }

    /// Whether no fault was seen after which the driver must be left alone. If one was, the device is of no use, and
    /// the process must end before the driver is called for it again.
    pub fn is_alive(&self) -> bool {
        self.context.is_alive()
    }

    /// Makes calls that can fail, on the calling thread, and sorts what they report.
    pub(super) fn call<T>(
        &self,
        call: impl FnOnce(&dyn Driver) -> Result<T, CallError>,
    ) -> Result<T, Fault> {
        self.context.call(call)
    }

    /// Gives something back, unless the device is lost.
    pub(super) fn give_back(&self, call: impl FnOnce(&dyn Driver)) {
        self.context.give_back(call);
    }

    /// A fence for this device's queue.
    pub(super) fn new_fence(&self) -> Result<Fence, Fault> {
        Fence::new(&self.context)
    }

    /// Memory of others, registered with the driver; `None` where the driver does not accept it, which costs a copy and
    /// nothing else.
    ///
    /// # Errors
    /// A device that is lost.
    pub(super) fn register_memory(
        &self,
        memory: HostRegion,
    ) -> Result<Option<Arc<RegisteredMemory>>, Fault> {
        let registrations = &self.instance.registrations;
        registrations.find_or_register(&self.context, memory)
    }

    /// Loads a kernel, from the bundle if that has it; each is loaded once.
    pub(super) fn load_kernel(
        &self,
        kernel: &Kernel,
        cubins: &Cubins,
    ) -> Result<LoadedKernel, Fault> {
        // The values of constants are numbers in the code.
        let key = (kernel.digest("ptx"), kernel.specs.clone());
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = kernels.get(&key) {
            return Ok(*loaded);
        }

        let (text, entry) = ptx::print(kernel, self.has_dependent_launch);
        let load = |image| self.call(|driver| driver.load_function(image, &entry));
        let from_bundle = cubins.find(&text).map(|cubin| load(Image::Cubin(cubin)));
        let function = match from_bundle {
            Some(Ok(function)) => function,
            Some(Err(fault)) if fault.is_fatal() => return Err(fault),
            // None, or one that this driver rejects.
            _ => load(Image::Ptx(&text))?,
        };

        let loaded = LoadedKernel {
            function,
            local: kernel.local,
            bindings: kernel.bindings.len(),
        };
        kernels.insert(key, loaded);
        Ok(loaded)
    }

    /// The vendor's library for products, with its version; or why there is none, as a clause.
    ///
    /// # Errors
    /// That clause.
    pub fn library(&self) -> Result<String, String> {
        self.context.product_library()
    }

    /// Why the library cannot do products of a shape, as a clause; `None` where it can.
    pub fn unsupported_shape(&self, shape: &Shape) -> Result<Option<String>, Fault> {
        self.call(|driver| driver.unsupported_reason(shape))
    }

    /// Waits for the fence that follows launch `value`.
    ///
    /// The driver's own waits have no timeout; this one polls, at first without a pause, because most waits are short.
    ///
    /// # Errors
    /// [`Fault::Hung`] after `timeout_ns`.
    pub(super) fn wait_for(&self, fence: &Fence, value: u64, timeout_ns: u64) -> Result<(), Fault> {
        self.wait_until(fence, value, timeout_ns, &mut || false)
    }

    /// The same, or until `is_done` returns true, which is asked before each poll.
    pub(super) fn wait_until(
        &self,
        fence: &Fence,
        value: u64,
        timeout_ns: u64,
        is_done: &mut dyn FnMut() -> bool,
    ) -> Result<(), Fault> {
        const BUSY_TIME: Duration = Duration::from_micros(200);
        const PAUSE: Duration = Duration::from_micros(20);

        let start = Instant::now();
        while !is_done() && !fence.has_passed()? {
            let waited = start.elapsed();
            if waited.as_nanos() > timeout_ns.into() {
                let waited_ms = timeout_ns / 1_000_000;
                return Err(self.context.note_fault(Fault::Hung { value, waited_ms }));
            }
            if waited < BUSY_TIME {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Runs what `put` puts into the queue, and waits for its end.
    pub(super) fn run_and_wait(
        &self,
        timeout_ns: u64,
        put: impl FnOnce(&dyn Driver) -> Result<(), CallError>,
    ) -> Result<(), Fault> {
        let fence = self.new_fence()?;
        let put = self.call(put);
        if self.is_alive() {
            // Also where only a part of it was put: what the caller then frees must not be in the queue.
            self.call(|driver| fence.record(driver))?;
            self.wait_for(&fence, 0, timeout_ns)?;
        }
        put
    }
}
