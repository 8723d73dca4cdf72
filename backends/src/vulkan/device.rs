//! One open device: its limits, its queue, and every call that can fail.
#![expect(unsafe_code, reason = "calls the Vulkan driver")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ash::prelude::VkResult;
use ash::{ext, khr, vk};

use super::error::{Fault, OpenError, Site};
use super::instance::{Instance, Kind, Listed};
use super::pipelines::Pipelines;
use super::spirv::Floats;
use crate::kernels::{Caps, Needs};

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where compiled kernels are kept from run to run, a file for each driver; nowhere by default.
    pub cache: Option<PathBuf>,
    /// Bytes of one buffer at most, where the driver would allow more: arenas are cut into several then.
    pub bank_bytes: Option<u64>,
}

/// What of a device's limits calendars must respect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Alignment of what a kernel is given.
    pub(super) align_bytes: u64,
    /// Bytes of what a kernel is given.
    pub(super) range_bytes: u64,
    /// Bytes of one buffer.
    pub(super) bank_bytes: u64,
    /// Groups of one run.
    pub(super) groups: u32,
}

impl From<Limits> for crate::replay::Limits {
    fn from(limits: Limits) -> Self {
        let Limits {
            align_bytes,
            range_bytes,
            bank_bytes,
            groups: _,
        } = limits;
        Self {
            align_bytes,
            range_bytes,
            bank_bytes,
        }
    }
}

/// An open device. One thread drives it.
///
/// After [`Fault::Lost`], [`Fault::Hung`] or a wait that failed the driver may still write to what it was given, or
/// never answer again: nothing is freed then, and nothing is waited for. The process is expected to end.
pub struct Device {
    pub(super) raw: ash::Device,
    pub(super) limits: Limits,
    pub(super) caps: Caps,
    pub(super) floats: Floats,
    pub(super) memory: vk::PhysicalDeviceMemoryProperties,
    pub(super) family: u32,
    pub(super) pipelines: Pipelines,
    listed: Listed,
    queue: Mutex<vk::Queue>,
    fault_report: Option<ext::device_fault::Device>,
    /// A fatal fault was seen.
    dead: AtomicBool,
    #[cfg(any(test, feature = "testing"))]
    pub(super) inject: Mutex<Option<Injection>>,
    /// See [`Self::keeps_order`].
    #[cfg(test)]
    pub(super) careless: AtomicBool,
    // Last: the device is destroyed before its instance.
    instance: Arc<Instance>,
}

/// An error that a test wants a call to give: after so many calls of the site that go well.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    /// The call.
    pub site: Site,
    /// Calls that go well before.
    pub after: u32,
    /// What it then says, every time.
    pub error: Injected,
}

/// What calls can be made to say.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// The device is lost.
    Lost,
    /// Out of the device's memory.
    DeviceMemory,
    /// Out of the host's memory.
    HostMemory,
    /// An error that nobody knows.
    Unknown,
    /// Of a wait: the time ran out.
    Hang,
}

#[cfg(any(test, feature = "testing"))]
impl Injected {
    fn result(self) -> vk::Result {
        match self {
            Injected::Lost => vk::Result::ERROR_DEVICE_LOST,
            Injected::DeviceMemory => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
            Injected::HostMemory => vk::Result::ERROR_OUT_OF_HOST_MEMORY,
            Injected::Unknown => vk::Result::ERROR_UNKNOWN,
            Injected::Hang => vk::Result::TIMEOUT,
        }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.listed.name)
            .finish_non_exhaustive()
    }
}

/// What is asked of a device before it is opened.
struct Asked {
    features: vk::PhysicalDeviceFeatures,
    bytes: bool,
    halves: bool,
    timeline: bool,
    device_fault: bool,
    portability: bool,
}

impl Device {
    /// Opens a device of the instance.
    ///
    /// # Errors
    /// [`OpenError::Lacks`] for a device without Vulkan 1.2, timeline semaphores or a compute queue; a [`Fault`] of
    /// the driver.
    pub fn open(
        instance: &Arc<Instance>,
        listed: &Listed,
        options: &Options,
    ) -> Result<Arc<Device>, OpenError> {
        let lacks = |what: &str| OpenError::Lacks {
            device: format!("{} ({})", listed.name, listed.title),
            what: what.to_owned(),
        };
        if listed.api < vk::API_VERSION_1_2 {
            return Err(lacks("Vulkan 1.2"));
        }
        let (vulkan, physical) = (&instance.raw, listed.physical);
        let asked = ask(vulkan, physical);
        if !asked.timeline {
            return Err(lacks("timeline semaphores"));
        }
        // SAFETY: the device is the instance's.
        let families = unsafe { vulkan.get_physical_device_queue_family_properties(physical) };
        let computes =
            |f: &vk::QueueFamilyProperties| f.queue_flags.contains(vk::QueueFlags::COMPUTE);
        let family = families
            .iter()
            .position(computes)
            .ok_or_else(|| lacks("compute queue"))?;
        let family = family as u32;
        let raw = create(vulkan, physical, family, &asked)
            .map_err(|result| Fault::new(Site::CreateDevice, result))?;
        // SAFETY: the queue was asked for.
        let queue = Mutex::new(unsafe { raw.get_device_queue(family, 0) });
        // SAFETY: the device is the instance's.
        let memory = unsafe { vulkan.get_physical_device_memory_properties(physical) };
        let (mut limits, caps, floats) = capabilities(vulkan, physical, &asked);
        if let Some(bytes) = options.bank_bytes {
            limits.bank_bytes = limits.bank_bytes.min(bytes);
        }
        let fault_report = asked
            .device_fault
            .then(|| ext::device_fault::Device::new(vulkan, &raw));
        let device = Arc::new(Device {
            raw,
            limits,
            caps,
            floats,
            memory,
            family,
            pipelines: Pipelines::default(),
            listed: listed.clone(),
            queue,
            fault_report,
            dead: AtomicBool::new(false),
            #[cfg(any(test, feature = "testing"))]
            inject: Mutex::new(None),
            #[cfg(test)]
            careless: AtomicBool::new(false),
            instance: Arc::clone(instance),
        });
        device.open_cache(options.cache.as_deref())?;
        Ok(device)
    }

    /// What it is.
    pub fn listed(&self) -> &Listed {
        &self.listed
    }

    /// Its instance.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// What kernels can do there.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Makes a call that can fail, and sorts what it says.
    pub(super) fn call<T>(
        &self,
        site: Site,
        call: impl FnOnce() -> VkResult<T>,
    ) -> Result<T, Fault> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(result) = self.injected(site) {
            return Err(self.fault(site, result));
        }
        call().map_err(|result| self.fault(site, result))
    }

    /// Makes a call of that site fail, once so many have gone well. [`Injected::Hang`] makes waits run out instead.
    #[cfg(any(test, feature = "testing"))]
    pub fn inject(&self, injection: Injection) {
        *self.inject.lock().unwrap_or_else(PoisonError::into_inner) = Some(injection);
    }

    #[cfg(any(test, feature = "testing"))]
    fn injected(&self, site: Site) -> Option<vk::Result> {
        let mut inject = self.inject.lock().unwrap_or_else(PoisonError::into_inner);
        let injection = inject.as_mut().filter(|i| i.site == site)?;
        if injection.after > 0 {
            injection.after -= 1;
            return None;
        }
        Some(injection.error.result())
    }

    /// Whether barriers are recorded; tests leave them out to see that somebody notices.
    pub(super) fn keeps_order(&self) -> bool {
        #[cfg(test)]
        if self.careless.load(Ordering::Relaxed) {
            return false;
        }
        true
    }

    fn fault(&self, site: Site, result: vk::Result) -> Fault {
        let mut fault = Fault::new(site, result);
        if let Fault::Lost { report, .. } = &mut fault
            && report.is_empty()
        {
            *report = self.report();
        }
        self.note(&fault);
        fault
    }

    /// Remembers a fault after which the driver is left alone.
    pub(super) fn note(&self, fault: &Fault) {
        if fault.is_fatal() {
            self.dead.store(true, Ordering::Relaxed);
        }
    }

    /// Whether no fault was seen after which the driver must be left alone. If one was, the device is of no use, and
    /// its instance must not be destroyed before the process ends.
    pub fn is_alive(&self) -> bool {
        !self.dead.load(Ordering::Relaxed)
    }

    /// What the driver knows about a loss.
    fn report(&self) -> String {
        let Some(functions) = &self.fault_report else {
            return String::new();
        };
        let mut counts = vk::DeviceFaultCountsEXT::default();
        let mut info = vk::DeviceFaultInfoEXT::default();
        counts.address_info_count = 0;
        // SAFETY: the extension is enabled; with all counts 0 only the description is written.
        let result = unsafe {
            (functions.fp().get_device_fault_info_ext)(self.raw.handle(), &mut counts, &mut info)
        };
        let text = info
            .description_as_c_str()
            .map(|t| t.to_string_lossy().into_owned());
        match (result, text) {
            (vk::Result::SUCCESS | vk::Result::INCOMPLETE, Ok(text)) if !text.is_empty() => {
                format!(": {text}")
            }
            _ => String::new(),
        }
    }

    /// Puts a command buffer into the queue; `semaphore` reaches `value` when it has ended.
    pub(super) fn submit(
        &self,
        commands: vk::CommandBuffer,
        semaphore: vk::Semaphore,
        value: u64,
    ) -> Result<(), Fault> {
        let (commands, semaphores, values) = ([commands], [semaphore], [value]);
        let mut timeline =
            vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let info = vk::SubmitInfo::default()
            .command_buffers(&commands)
            .signal_semaphores(&semaphores)
            .push_next(&mut timeline);
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: all objects are this device's and alive; the queue is locked; callers see to it that the command
        // buffer is recorded and not pending.
        self.call(Site::Submit, || unsafe {
            self.raw.queue_submit(*queue, &[info], vk::Fence::null())
        })
    }

    /// A semaphore that counts submissions.
    pub(super) fn timeline(&self) -> Result<vk::Semaphore, Fault> {
        let mut kind =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: timeline semaphores are enabled.
        self.call(Site::CreateSemaphore, || unsafe {
            self.raw.create_semaphore(&info, None)
        })
    }

    /// Waits until the semaphore has reached `value`.
    ///
    /// # Errors
    /// [`Fault::Hung`] after `timeout_ns`.
    pub(super) fn wait(
        &self,
        semaphore: vk::Semaphore,
        value: u64,
        timeout_ns: u64,
    ) -> Result<(), Fault> {
        let (semaphores, values) = ([semaphore], [value]);
        let info = vk::SemaphoreWaitInfo::default()
            .semaphores(&semaphores)
            .values(&values);
        let waited = self.call(Site::Wait, || {
            // SAFETY: the semaphore is this device's and counts.
            match unsafe { self.raw.wait_semaphores(&info, timeout_ns) } {
                Err(vk::Result::TIMEOUT) => Ok(false),
                other => other.map(|()| true),
            }
        });
        let waited = match waited {
            // Only tests make the call itself say so.
            Err(Fault::Other {
                site: Site::Wait,
                result,
            }) if result == "TIMEOUT" => false,
            other => other?,
        };
        if waited {
            return Ok(());
        }
        let reached = self.reached(semaphore)?;
        let fault = Fault::Hung {
            value,
            reached,
            waited_ms: timeout_ns / 1_000_000,
        };
        self.note(&fault);
        Err(fault)
    }

    /// What the semaphore has counted.
    pub(super) fn reached(&self, semaphore: vk::Semaphore) -> Result<u64, Fault> {
        // SAFETY: the semaphore is this device's and counts.
        self.call(Site::Counter, || unsafe {
            self.raw.get_semaphore_counter_value(semaphore)
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.is_alive() {
            return;
        }
        // SAFETY: everything made on the device holds it, so nothing else is left.
        unsafe {
            let _ = self.raw.device_wait_idle();
            self.pipelines.destroy(&self.raw);
            self.raw.destroy_device(None);
        }
    }
}

fn ask(vulkan: &ash::Instance, physical: vk::PhysicalDevice) -> Asked {
    // SAFETY: the device is the instance's.
    let extensions = unsafe { vulkan.enumerate_device_extension_properties(physical) };
    let extensions = extensions.unwrap_or_default();
    let offers = |name| {
        extensions
            .iter()
            .any(|e| e.extension_name_as_c_str() == Ok(name))
    };
    let mut eleven = vk::PhysicalDeviceVulkan11Features::default();
    let mut twelve = vk::PhysicalDeviceVulkan12Features::default();
    let mut fault = vk::PhysicalDeviceFaultFeaturesEXT::default();
    let offers_fault = offers(ext::device_fault::NAME);
    let mut all = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut eleven)
        .push_next(&mut twelve);
    if offers_fault {
        all = all.push_next(&mut fault);
    }
    // SAFETY: the device has Vulkan 1.2 and the extension whose struct is chained.
    unsafe { vulkan.get_physical_device_features2(physical, &mut all) };
    let features = all.features;
    Asked {
        features: vk::PhysicalDeviceFeatures {
            shader_float64: features.shader_float64,
            shader_int64: features.shader_int64,
            ..Default::default()
        },
        bytes: twelve.storage_buffer8_bit_access != 0,
        halves: eleven.storage_buffer16_bit_access != 0,
        timeline: twelve.timeline_semaphore != 0,
        device_fault: offers_fault && fault.device_fault != 0,
        portability: offers(khr::portability_subset::NAME),
    }
}

fn create(
    vulkan: &ash::Instance,
    physical: vk::PhysicalDevice,
    family: u32,
    asked: &Asked,
) -> VkResult<ash::Device> {
    let priorities = [1.0];
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(family)
        .queue_priorities(&priorities)];
    let mut extensions = Vec::new();
    if asked.device_fault {
        extensions.push(ext::device_fault::NAME.as_ptr());
    }
    if asked.portability {
        extensions.push(khr::portability_subset::NAME.as_ptr());
    }
    let mut eleven =
        vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(asked.halves);
    let mut twelve = vk::PhysicalDeviceVulkan12Features::default()
        .storage_buffer8_bit_access(asked.bytes)
        .timeline_semaphore(true);
    let mut fault = vk::PhysicalDeviceFaultFeaturesEXT::default().device_fault(true);
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions)
        .enabled_features(&asked.features)
        .push_next(&mut eleven)
        .push_next(&mut twelve);
    if asked.device_fault {
        info = info.push_next(&mut fault);
    }
    // SAFETY: features, extensions and the queue family are what the device offers; pointers outlive the call.
    unsafe { vulkan.create_device(physical, &info, None) }
}

fn capabilities(
    vulkan: &ash::Instance,
    physical: vk::PhysicalDevice,
    asked: &Asked,
) -> (Limits, Caps, Floats) {
    let mut three = vk::PhysicalDeviceMaintenance3Properties::default();
    let mut floats = vk::PhysicalDeviceFloatControlsProperties::default();
    let mut all = vk::PhysicalDeviceProperties2::default()
        .push_next(&mut three)
        .push_next(&mut floats);
    // SAFETY: the device is the instance's and has Vulkan 1.2, to which both structs belong.
    unsafe { vulkan.get_physical_device_properties2(physical, &mut all) };
    let limits = all.properties.limits;
    let (has_f64, has_i64) = (
        asked.features.shader_float64 != 0,
        asked.features.shader_int64 != 0,
    );
    // Arguments are the number of firings and an offset for each binding.
    let arguments = (limits.max_push_constants_size / 4).saturating_sub(1);
    let bindings = limits
        .max_per_stage_descriptor_storage_buffers
        .min(limits.max_descriptor_set_storage_buffers)
        .min(arguments);
    let caps = Caps {
        has: Needs {
            f64: has_f64,
            i64: has_i64,
            bytes: asked.bytes,
            halves: asked.halves,
        },
        bindings,
        shared_bytes: limits.max_compute_shared_memory_size.into(),
        group: limits
            .max_compute_work_group_invocations
            .min(limits.max_compute_work_group_size[0]),
        capability: None,
    };
    let range_bytes = u64::from(limits.max_storage_buffer_range);
    let limits = Limits {
        align_bytes: limits.min_storage_buffer_offset_alignment.max(16),
        range_bytes,
        // Many drivers end at 2 or 4 GiB for one buffer; none ends below what it lets a kernel see.
        bank_bytes: three
            .max_memory_allocation_size
            .min(1 << 31)
            .max(range_bytes.min(1 << 27)),
        groups: limits.max_compute_work_group_count[0],
    };
    let floats = Floats {
        keep32: floats.shader_signed_zero_inf_nan_preserve_float32 != 0,
        keep64: floats.shader_signed_zero_inf_nan_preserve_float64 != 0,
    };
    (limits, caps, floats)
}

impl Listed {
    /// Whether the device's memory is the host's, so that there is nothing to gain by copying.
    pub fn shares_memory(&self) -> bool {
        matches!(self.kind, Kind::Integrated | Kind::Cpu)
    }
}
