//! GPUs, whichever driver they have: opened by name, their calendars behind one interface.
//!
//! The differences between drivers stay in [`zbmd_vulkan`] and [`zbmd_cuda`]. Those who run calendars see a
//! [`Device`], a [`Replay`], and [`Fault`]s sorted by what is to be done about them.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use zbmd_ir::{Actor, ActorId, Calendar, DeviceKind, Plan, Program};

#[cfg(feature = "cuda")]
use zbmd_cuda as cuda;
use zbmd_gpu_ir::{Caps, KernelPlan, LowerKernels};
use zbmd_hal::{Exchange, GpuDevice, ReplayRequest, SEE_DEVICES};
pub use zbmd_hal::{
    Fault, FaultKind, GpuCalls as Calls, GpuReplay as Replay, KeptConstants as Kept,
};
#[cfg(feature = "vulkan")]
use zbmd_vulkan as vulkan;

/// Why this build cannot drive devices of a backend that it knows, as a clause; `None` where it can.
pub fn missing_support(backend: &DeviceKind) -> Option<&'static str> {
    match backend {
        DeviceKind::Cuda if !cfg!(feature = "cuda") => {
            Some("this program was built without CUDA support (feature `cuda`)")
        }
        DeviceKind::Vulkan if !cfg!(feature = "vulkan") => {
            Some("this program was built without Vulkan support (feature `vulkan`)")
        }
        _ => None,
    }
}

/// Adds the modules of an actor's kernels for every Vulkan device, by format and key: to be stored in a bundle.
///
/// # Panics
/// In a build without [support](missing_support) for Vulkan.
pub fn print_modules(plan: &KernelPlan, code: &mut BTreeMap<(String, u128), Vec<u8>>) {
    #[cfg(feature = "vulkan")]
    {
        use zbmd_gpu_ir::emit::modules;

        let mut modules_by_key = BTreeMap::new();
        modules::print_all(plan, &mut modules_by_key);
        for (key, module) in modules_by_key {
            code.insert((modules::FORMAT.to_owned(), key), module);
        }
    }
    #[cfg(not(feature = "vulkan"))]
    {
        let _ = code;
        panic!(
            "the kernels of {plan:?} are wanted for Vulkan devices, which this build has no support for"
        );
    }
}

/// What to do where a build lacks a driver's feature.
const BUILD_WITH_SUPPORT: &str =
    "build with the feature, or compile for a machine without such devices";

/// Why a period was not completed.
pub type Halt = zbmd_hal::Halt<Fault>;

/// How drivers are loaded and devices opened.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Vulkan: the validation layers check every call, where they are installed.
    pub validate: bool,
    /// Vulkan: where compiled kernels are stored from run to run.
    pub cache: Option<PathBuf>,
    /// CUDA: see [`cuda::CudaOptions::dependent_launch`](zbmd_cuda::CudaOptions).
    pub dependent_launch: bool,
}

/// The drivers of this process, each loaded when the first of its devices is opened.
#[derive(Debug, Default)]
pub struct Drivers {
    #[cfg(feature = "vulkan")]
    vulkan: Option<Arc<vulkan::Instance>>,
    #[cfg(feature = "cuda")]
    cuda: Option<Arc<cuda::Instance>>,
}

impl Drivers {
    /// Opens the device of that name or UUID.
    ///
    /// # Errors
    /// A message that includes a suggested fix.
    #[cfg_attr(
        not(any(feature = "cuda", feature = "vulkan")),
        expect(unused_variables, reason = "without drivers there is nothing to set")
    )]
    pub fn open(
        &mut self,
        backend: &DeviceKind,
        name: &str,
        options: &GpuOptions,
    ) -> Result<Device, Fault> {
        match backend {
            #[cfg(feature = "vulkan")]
            DeviceKind::Vulkan => self.open_vulkan(name, options),
            #[cfg(feature = "cuda")]
            DeviceKind::Cuda => self.open_cuda(name, options),
            _ => Err(unknown_backend(backend, name)),
        }
    }

    #[cfg(feature = "vulkan")]
    fn open_vulkan(&mut self, name: &str, options: &GpuOptions) -> Result<Device, Fault> {
        let instance = get_or_load(&mut self.vulkan, || {
            vulkan::Instance::load(options.validate)
        });
        let instance = instance.map_err(vulkan::OpenError::from)?;

        let listed = instance.find(name)?;
        let options = vulkan::VulkanOptions {
            cache: options.cache.clone(),
            ..Default::default()
        };
        let device = vulkan::VulkanDevice::open(&instance, &listed, &options)?;
        Ok(Device::from(device))
    }

    #[cfg(feature = "cuda")]
    fn open_cuda(&mut self, name: &str, options: &GpuOptions) -> Result<Device, Fault> {
        let instance = get_or_load(&mut self.cuda, cuda::Instance::load);
        let instance = instance.map_err(cuda::OpenError::from)?;

        let listed = instance.find(name)?;
        let options = cuda::CudaOptions {
            dependent_launch: options.dependent_launch,
            ..Default::default()
        };
        let device = cuda::CudaDevice::open(&instance, &listed, &options)?;
        Ok(Device::from(device))
    }

    /// Forgets the driver of a device that is no longer alive, without unloading it: the next device loads it anew.
    pub fn abandon(&mut self, device: &Device) {
        std::mem::forget(device.clone());
        match device.backend() {
            #[cfg(feature = "vulkan")]
            "vulkan" => self.vulkan = None,
            #[cfg(feature = "cuda")]
            "cuda" => self.cuda = None,
            backend => unreachable!("a device of the backend {backend}"),
        }
    }
}

fn unknown_backend(backend: &DeviceKind, name: &str) -> Fault {
    if let Some(reason) = missing_support(backend) {
        let error = format!("`{name}` cannot be opened: {reason}");
        return Fault::unfit(&error, BUILD_WITH_SUPPORT);
    }
    let error =
        format!("this program does not drive devices of the backend `{backend}`, as `{name}` is");
    Fault::unfit(&error, SEE_DEVICES)
}

#[cfg(any(feature = "cuda", feature = "vulkan"))]
fn get_or_load<I, E>(
    loaded: &mut Option<Arc<I>>,
    load: impl FnOnce() -> Result<Arc<I>, E>,
) -> Result<Arc<I>, E> {
    match loaded {
        Some(instance) => Ok(Arc::clone(instance)),
        None => Ok(Arc::clone(loaded.insert(load()?))),
    }
}

/// An open GPU. One thread drives it at a time.
#[derive(Clone, Debug)]
pub struct Device(Arc<dyn GpuDevice>);

impl<D: GpuDevice> From<Arc<D>> for Device {
    fn from(device: Arc<D>) -> Self {
        Self(device)
    }
}

impl Device {
    /// The device of one driver, if that is what this is.
    pub fn downcast<D: GpuDevice>(&self) -> Option<Arc<D>> {
        let device: Arc<dyn Any + Send + Sync> = self.0.clone();
        device.downcast().ok()
    }

    /// Whether no fault was seen after which the driver must be left alone.
    pub fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    /// The backend, as machines name it.
    pub fn backend(&self) -> &'static str {
        self.0.backend_name()
    }

    /// What kernels can do there.
    pub fn caps(&self) -> &Caps {
        self.0.caps()
    }

    /// What it is, with its driver and the vendor's library: results of measurements are valid for just this.
    pub fn kind(&self) -> String {
        self.0.describe()
    }

    /// Whether kernels wait for others themselves: [`GpuOptions::dependent_launch`], and the device and its driver support
    /// it.
    pub fn has_dependent_launch(&self) -> bool {
        self.0.has_dependent_launch()
    }

    /// Why the vendor's library cannot compute the products of these kernels here, as a clause; `None` where it can, or
    /// where they have none.
    ///
    /// # Errors
    /// A driver's fault.
    pub fn unsupported_reason(&self, plan: &KernelPlan) -> Result<Option<String>, Fault> {
        self.0.unsupported_reason(plan)
    }

    /// Makes the kernels ready that the plans of a program have on devices like this one, so that calendars find them
    /// later.
    ///
    /// # Errors
    /// A driver's fault.
    pub fn warm(&self, kernels: &dyn LowerKernels, program: &Program) -> Result<(), Fault> {
        let mut placed: BTreeSet<(ActorId, Option<&str>)> = BTreeSet::new();
        for plan in &program.plans {
            for (actor, device) in plan.placement.iter_enumerated() {
                if program.machine.devices[*device].backend == self.backend() {
                    placed.insert((actor, plan.variant(actor)));
                }
            }
        }

        // What has no kernel here is reported when a calendar needs it.
        let lowered = placed.into_iter().filter_map(|(id, variant)| {
            let actor = &program.graph.actors[id];
            kernels
                .lower_kernels(actor, &program.blobs, self.caps(), variant)
                .ok()
        });
        let plans: Vec<KernelPlan> = lowered.collect();
        for plan in &plans {
            // The vendor's library chooses its algorithms now.
            self.unsupported_reason(plan)?;
        }
        self.0.warm_kernels(&plans, program)
    }

    /// Stores what the driver compiled for later runs, where the driver has no cache of its own.
    pub fn save_kernel_cache(&self) {
        self.0.save_kernel_cache();
    }

    /// What the validation layers have found since the last call, if they are on.
    pub fn validation_messages(&self) -> Vec<String> {
        self.0.validation_messages()
    }

    /// `calls` calls of `firings` firings of an actor's kernels in a row, as one submission, on memory of their own:
    /// for calibration and benchmarks.
    ///
    /// # Errors
    /// A driver's fault; a call that is too long for the device.
    pub fn calls(
        &self,
        actor: &Actor,
        plan: &KernelPlan,
        firings: usize,
        calls: usize,
    ) -> Result<Box<dyn Calls>, Fault> {
        Arc::clone(&self.0).prepare_calls(actor, plan, firings, calls)
    }

    /// Makes the device ready for its calendar in a plan of a verified program: allocates, compiles, records.
    ///
    /// `kept` has the constants that the device already has, and afterwards those of this calendar.
    ///
    /// # Errors
    /// See [`ReplayError`](zbmd_hal::ReplayError).
    ///
    /// # Panics
    /// If the program was not verified, or the calendar is not one of the plan's.
    pub fn replay(
        &self,
        kernels: &dyn LowerKernels,
        program: &Program,
        plan: &Plan,
        calendar: &Calendar,
        exchange: &Exchange,
        kept: &mut Kept,
    ) -> Result<Box<dyn Replay>, Fault> {
        let request = ReplayRequest {
            kernels,
            program,
            plan,
            calendar,
            exchange,
        };
        Arc::clone(&self.0).prepare_replay(&request, kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "cuda")]
    fn faults_are_sorted_by_what_is_to_be_done() {
        use cuda::{Code, Site};
        for (fault, kind) in [
            (
                cuda::Fault::Lost {
                    site: Site::Query,
                    code: Code(700),
                },
                FaultKind::Lost,
            ),
            (
                cuda::Fault::Lost {
                    site: Site::Query,
                    code: Code(214),
                },
                FaultKind::Broken,
            ),
            (
                cuda::Fault::Hung {
                    value: 1,
                    waited_ms: 2,
                },
                FaultKind::Lost,
            ),
            (
                cuda::Fault::OutOfMemory {
                    site: Site::Alloc,
                    wanted: String::new(),
                },
                FaultKind::Memory,
            ),
            (
                cuda::Fault::Other {
                    site: Site::Load,
                    code: Code(222),
                },
                FaultKind::Unfit,
            ),
            (
                cuda::Fault::Other {
                    site: Site::Copy,
                    code: Code(1),
                },
                FaultKind::Failed,
            ),
        ] {
            let text = fault.to_string();
            assert_eq!(Fault::from(fault), Fault { kind, text });
        }
        assert!(FaultKind::Broken.is_fatal() && !FaultKind::Memory.is_fatal());
    }

    #[test]
    fn unknown_backends_are_refused_with_a_sentence() {
        let fault = Drivers::default().open(&"tpu".into(), "tpu:0", &GpuOptions::default());
        let fault = fault.expect_err("no backend drives it");
        assert_eq!(fault.kind, FaultKind::Unfit);
        assert!(
            fault.text.contains("`tpu`") && fault.text.contains("zbmdc devices"),
            "{fault}"
        );
    }

    #[test]
    fn backends_without_support_in_this_build_say_which_feature_they_need() {
        for (backend, is_built) in [
            (DeviceKind::Cuda, cfg!(feature = "cuda")),
            (DeviceKind::Vulkan, cfg!(feature = "vulkan")),
        ] {
            assert_eq!(missing_support(&backend).is_none(), is_built, "{backend}");
            if is_built {
                continue;
            }
            let fault = Drivers::default().open(&backend, "gpu:0", &GpuOptions::default());
            let fault = fault.expect_err("there is no driver in this build");
            assert_eq!(fault.kind, FaultKind::Unfit);
            assert!(
                fault.text.contains(&format!("(feature `{backend}`)")),
                "{fault}"
            );
        }
    }

    #[test]
    #[cfg(feature = "cuda")]
    fn a_device_is_that_of_its_own_driver() {
        let instance = cuda::Instance::software();
        let listed = instance.find("cuda:0").expect("the only one");
        let opened = cuda::CudaDevice::open(&instance, &listed, &cuda::CudaOptions::default());
        let device = Device::from(opened.expect("nothing is injected"));
        assert!(device.downcast::<cuda::CudaDevice>().is_some());
        #[cfg(feature = "vulkan")]
        assert!(device.downcast::<vulkan::VulkanDevice>().is_none());
    }
}
