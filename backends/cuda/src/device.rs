//! One open device: what is loaded on it, and how its queue is waited for. Everything is given back when it is dropped,
//! unless the device is lost.
#![expect(unsafe_code, reason = "waits for events by their handles")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use zbmd_ir::{Actor, Program};

use super::driver::{Driver, Event, Function, Image};
use super::error::{CallError, Fault, OpenError};
use super::instance::{Instance, Listed};
use super::queue::Queue;
use zbmd_gpu_ir::emit::cubins::{Cubins, MIN_DEPENDENT_LAUNCH};
use zbmd_gpu_ir::emit::ptx;
use zbmd_gpu_ir::lang::Kernel;
use zbmd_gpu_ir::library::Shape;
use zbmd_gpu_ir::{Caps, KernelPlan};
use zbmd_hal::{
    self, GpuCalls, GpuDevice, GpuReplay, KeptConstants, ReplayRequest, boxed_calls, boxed_replay,
};

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
    driver: Arc<dyn Driver>,
    listed: Listed,
    options: CudaOptions,
    has_dependent_launch: bool,
    kernels: Mutex<LoadedKernels>,
    /// A fatal fault was seen.
    is_dead: AtomicBool,
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
            driver,
            has_dependent_launch,
            listed: listed.clone(),
            options: options.clone(),
            kernels: Mutex::default(),
            is_dead: AtomicBool::new(false),
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
    fn note_fault(&self, fault: Fault) -> Fault {
        if fault.is_fatal() {
            self.is_dead.store(true, Ordering::Relaxed);
        }
        fault
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
        self.driver
            .bind_thread()
            .map_err(|error| Fault::new(error).to_string())?;
        self.driver.product_library()
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
                return Err(self.note_fault(Fault::Hung { value, waited_ms }));
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
        self: &Arc<Self>,
        timeout_ns: u64,
        put: impl FnOnce(&dyn Driver) -> Result<(), CallError>,
    ) -> Result<(), Fault> {
        let fence = Fence::new(self)?;
        let put = self.call(put);
        if self.is_alive() {
            // Also where only a part of it was put: what the caller then frees must not be in the queue.
            self.call(|driver| fence.record(driver))?;
            self.wait_for(&fence, 0, timeout_ns)?;
        }
        put
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.give_back(|driver| {
            // SAFETY: everything made on the device holds it, so nothing else is left and nothing is called later;
            // queues have waited for their work.
            unsafe { driver.close_device() }
        });
    }
}

impl GpuDevice for CudaDevice {
    fn backend_name(&self) -> &'static str {
        "cuda"
    }

    fn caps(&self) -> &Caps {
        self.caps()
    }

    fn describe(&self) -> String {
        let Listed { title, driver, .. } = &self.listed;
        let library = self.library();
        let library = library.map(|name| format!(" {name}")).unwrap_or_default();
        format!(
            "cuda: {} {title} {driver}{library}",
            self.listed.uuid_text()
        )
    }

    fn is_alive(&self) -> bool {
        self.is_alive()
    }

    fn has_dependent_launch(&self) -> bool {
        self.has_dependent_launch
    }

    fn unsupported_reason(&self, plan: &KernelPlan) -> Result<Option<String>, zbmd_hal::Fault> {
        for shape in plan.products() {
            if let Some(reason) = self.unsupported_shape(shape)? {
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }

    fn warm_kernels(&self, plans: &[KernelPlan], program: &Program) -> Result<(), zbmd_hal::Fault> {
        let cubins = Cubins::of_program(program, self.listed.arch);
        for kernel in plans.iter().flat_map(KernelPlan::kernels) {
            self.load_kernel(kernel, &cubins)?;
        }
        Ok(())
    }

    fn prepare_calls(
        self: Arc<Self>,
        actor: &Actor,
        plan: &KernelPlan,
        firings: usize,
        calls: usize,
    ) -> Result<Box<dyn GpuCalls>, zbmd_hal::Fault> {
        boxed_calls::<Queue>(&self, actor, plan, firings, calls)
    }

    fn prepare_replay(
        self: Arc<Self>,
        request: &ReplayRequest<'_>,
        kept: &mut KeptConstants,
    ) -> Result<Box<dyn GpuReplay>, zbmd_hal::Fault> {
        boxed_replay::<Queue>(&self, request, kept)
    }
}

/// A point in the queue that can be waited for.
pub(super) struct Fence {
    event: Event,
    device: Arc<CudaDevice>,
}

impl Fence {
    pub(super) fn new(device: &Arc<CudaDevice>) -> Result<Self, Fault> {
        let event = device.call(|driver| driver.create_event())?;
        Ok(Self {
            event,
            device: Arc::clone(device),
        })
    }

    /// Puts the fence into the queue of its device.
    pub(super) fn record(&self, driver: &dyn Driver) -> Result<(), CallError> {
        // SAFETY: the event is this fence's, and given back when it is dropped; drivers keep what is in the queue of it.
        unsafe { driver.record_event(self.event) }
    }

    /// Whether everything has ended that was in the queue before it.
    pub(super) fn has_passed(&self) -> Result<bool, Fault> {
        self.device.call(|driver| {
            // SAFETY: the event is this fence's, and given back when it is dropped.
            unsafe { driver.query_event(self.event) }
        })
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.device.give_back(|driver| {
            // SAFETY: made by `new`, and given back here only. Of an event that is still in the queue drivers free the
            // memory when the queue has reached it.
            unsafe { driver.destroy_event(self.event) }
        });
    }
}
