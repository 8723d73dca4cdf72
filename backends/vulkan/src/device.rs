//! One open device: its limits, its queue, and every call that can fail.
#![expect(unsafe_code, reason = "calls the Vulkan driver")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ash::prelude::VkResult;
use ash::{ext, khr, vk};

use super::error::{Fault, OpenError, Site};
use super::instance::{Instance, Listed};
use super::pipelines::Pipelines;
use zbmd_gpu_ir::emit::spirv::Floats;
use zbmd_gpu_ir::{Caps, Needs};
use zbmd_hal::QueueLimits;

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct VulkanOptions {
    /// Where compiled kernels are stored from run to run, a file for each driver; nowhere by default.
    pub cache: Option<PathBuf>,
    /// Bytes of the largest buffer, where the driver would allow more: larger arenas are divided into several.
    pub bank_bytes: Option<u64>,
}

/// The limits of a device that calendars must respect.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceLimits {
    /// Alignment of a kernel's operands.
    pub(super) align_bytes: u64,
    /// Size of a kernel's operand.
    pub(super) range_bytes: u64,
    /// Size of one buffer.
    pub(super) bank_bytes: u64,
    /// Groups of one dispatch.
    pub(super) groups: u32,
}

impl DeviceLimits {
    pub(super) fn for_queue(self) -> QueueLimits {
        QueueLimits {
            align_bytes: self.align_bytes,
            range_bytes: self.range_bytes,
            bank_bytes: self.bank_bytes,
        }
    }
}

/// An open device. One thread drives it.
///
/// After [`Fault::Lost`], [`Fault::Hung`] or a wait that failed the driver may still write to what it was given, or
/// never answer again: nothing is freed then, and nothing is waited for. The process is expected to end.
pub struct VulkanDevice {
    pub(super) raw: ash::Device,
    pub(super) limits: DeviceLimits,
    pub(super) caps: Caps,
    pub(super) floats: Floats,
    pub(super) memory: vk::PhysicalDeviceMemoryProperties,
    pub(super) family: u32,
    pub(super) pipelines: Pipelines,
    listed: Listed,
    queue: Mutex<vk::Queue>,
    fault_report: Option<ext::device_fault::Device>,
    /// A fatal fault was seen.
    is_dead: AtomicBool,
    #[cfg(any(test, feature = "testing"))]
    inject: Mutex<Option<Injection>>,
    /// See [`Self::keeps_order`].
    #[cfg(any(test, feature = "testing"))]
    skips_barriers: AtomicBool,
    // Last: the device is destroyed before its instance.
    instance: Arc<Instance>,
}

/// An error that a test injects into a call: after so many successful calls of the site.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    /// The call.
    pub site: Site,
    /// Successful calls before it.
    pub after: u32,
    /// What it then returns, every time.
    pub error: Injected,
}

/// Results that can be injected.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// The device is lost.
    Lost,
    /// Out of the device's memory.
    DeviceMemory,
    /// Out of the host's memory.
    HostMemory,
    /// An unknown error.
    Unknown,
    /// Of a wait: it has timed out.
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

impl std::fmt::Debug for VulkanDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VulkanDevice")
            .field("name", &self.listed.name)
            .finish_non_exhaustive()
    }
}

/// What a device offers of what calendars use.
struct OfferedFeatures {
    features: vk::PhysicalDeviceFeatures,
    bytes: bool,
    halves: bool,
    timeline: bool,
    device_fault: bool,
    portability: bool,
}

impl VulkanDevice {
    /// Opens a device of the instance.
    ///
    /// # Errors
    /// [`OpenError::Lacks`] for a device without Vulkan 1.2, timeline semaphores or a compute queue; a [`Fault`] of
    /// the driver.
    pub fn open(
        instance: &Arc<Instance>,
        listed: &Listed,
        options: &VulkanOptions,
    ) -> Result<Arc<VulkanDevice>, OpenError> {
        let lacks = |what: &str| OpenError::Lacks {
            device: format!("{} ({})", listed.name, listed.title),
            what: what.to_owned(),
        };
        if listed.api < vk::API_VERSION_1_2 {
            return Err(lacks("Vulkan 1.2"));
        }
        let vulkan = &instance.raw;
        let physical = listed.physical;
        let offered = query_features(vulkan, physical);
        if !offered.timeline {
            return Err(lacks("timeline semaphores"));
        }

        // SAFETY: the device is the instance's.
        let families = unsafe { vulkan.get_physical_device_queue_family_properties(physical) };
        let compute_family = families
            .iter()
            .position(|family| family.queue_flags.contains(vk::QueueFlags::COMPUTE));
        let family = compute_family.ok_or_else(|| lacks("compute queue"))? as u32;
        let raw = create_device(vulkan, physical, family, &offered)
            .map_err(|result| Fault::new(Site::CreateDevice, result))?;
        // SAFETY: the device was created with a queue of that family.
        let queue = Mutex::new(unsafe { raw.get_device_queue(family, 0) });
        // SAFETY: the device is the instance's.
        let memory = unsafe { vulkan.get_physical_device_memory_properties(physical) };

        let DeviceProperties {
            mut limits,
            caps,
            floats,
        } = query_properties(vulkan, physical, &offered);
        if let Some(bytes) = options.bank_bytes {
            limits.bank_bytes = limits.bank_bytes.min(bytes);
        }
        let fault_report = offered
            .device_fault
            .then(|| ext::device_fault::Device::new(vulkan, &raw));
        let device = Arc::new(VulkanDevice {
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
            is_dead: AtomicBool::new(false),
            #[cfg(any(test, feature = "testing"))]
            inject: Mutex::new(None),
            #[cfg(any(test, feature = "testing"))]
            skips_barriers: AtomicBool::new(false),
            instance: Arc::clone(instance),
        });
        device.call(Site::CreateCache, || {
            let folder = options.cache.as_deref();
            device.pipelines.open_cache(&device.raw, listed, folder)
        })?;
        Ok(device)
    }

    /// What it is.
    pub fn listed(&self) -> &Listed {
        &self.listed
    }

    /// The loader's instance that it belongs to.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// What kernels can do there.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Makes a call that can fail, and sorts its result.
    pub(super) fn call<T>(
        &self,
        site: Site,
        call: impl FnOnce() -> VkResult<T>,
    ) -> Result<T, Fault> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(result) = self.injected(site) {
            return Err(self.sort_fault(site, result));
        }
        call().map_err(|result| self.sort_fault(site, result))
    }

    /// Makes calls of a site fail, after so many successful ones. [`Injected::Hang`] makes waits time out instead.
    #[cfg(any(test, feature = "testing"))]
    pub fn inject(&self, injection: Injection) {
        *self.inject.lock().unwrap_or_else(PoisonError::into_inner) = Some(injection);
    }

    /// Lets calls reach the driver again.
    #[cfg(any(test, feature = "testing"))]
    pub fn clear_injection(&self) {
        *self.inject.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Records no barriers from now on: somebody must notice.
    #[cfg(any(test, feature = "testing"))]
    pub fn skip_barriers(&self) {
        self.skips_barriers.store(true, Ordering::Relaxed);
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

    /// Whether barriers are recorded; tests leave them out to see that it is noticed.
    pub(super) fn keeps_order(&self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        if self.skips_barriers.load(Ordering::Relaxed) {
            return false;
        }
        true
    }

    fn sort_fault(&self, site: Site, result: vk::Result) -> Fault {
        let mut fault = Fault::new(site, result);
        if let Fault::Lost { report, .. } = &mut fault
            && report.is_empty()
        {
            *report = self.loss_report();
        }
        self.note_fault(&fault);
        fault
    }

    /// Remembers a fault after which the driver is left alone.
    pub(super) fn note_fault(&self, fault: &Fault) {
        if fault.is_fatal() {
            self.is_dead.store(true, Ordering::Relaxed);
        }
    }

    /// Whether no fault was seen after which the driver must be left alone. If one was, the device is of no use, and
    /// its instance must not be destroyed before the process ends.
    pub fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Relaxed)
    }

    /// What the driver knows about a loss.
    fn loss_report(&self) -> String {
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
    ///
    /// # Safety
    /// Both are this device's. The command buffer is recorded and not pending; they and what the buffer names exist until
    /// it has ended.
    pub(super) unsafe fn submit(
        &self,
        command_buffer: vk::CommandBuffer,
        semaphore: vk::Semaphore,
        value: u64,
    ) -> Result<(), Fault> {
        let command_buffers = [command_buffer];
        let semaphores = [semaphore];
        let values = [value];
        let mut timeline =
            vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let info = vk::SubmitInfo::default()
            .command_buffers(&command_buffers)
            .signal_semaphores(&semaphores)
            .push_next(&mut timeline);

        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the queue is this device's and locked; the rest is as the caller promises.
        self.call(Site::Submit, || unsafe {
            self.raw.queue_submit(*queue, &[info], vk::Fence::null())
        })
    }
}

impl Drop for VulkanDevice {
    fn drop(&mut self) {
        if !self.is_alive() {
            return;
        }
        // SAFETY: everything made on the device holds it, so nothing else is left; pipelines are unused after the wait.
        unsafe {
            let _ = self.raw.device_wait_idle();
            self.pipelines.destroy(&self.raw);
            self.raw.destroy_device(None);
        }
    }
}

fn query_features(vulkan: &ash::Instance, physical: vk::PhysicalDevice) -> OfferedFeatures {
    // SAFETY: the device is the instance's.
    let extensions = unsafe { vulkan.enumerate_device_extension_properties(physical) };
    let extensions = extensions.unwrap_or_default();
    let offers = |name| {
        let mut names = extensions.iter().map(|e| e.extension_name_as_c_str());
        names.any(|offered| offered == Ok(name))
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
    OfferedFeatures {
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

fn create_device(
    vulkan: &ash::Instance,
    physical: vk::PhysicalDevice,
    family: u32,
    offered: &OfferedFeatures,
) -> VkResult<ash::Device> {
    let priorities = [1.0];
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(family)
        .queue_priorities(&priorities)];
    let mut extensions = Vec::new();
    if offered.device_fault {
        extensions.push(ext::device_fault::NAME.as_ptr());
    }
    if offered.portability {
        extensions.push(khr::portability_subset::NAME.as_ptr());
    }
    let mut eleven =
        vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(offered.halves);
    let mut twelve = vk::PhysicalDeviceVulkan12Features::default()
        .storage_buffer8_bit_access(offered.bytes)
        .timeline_semaphore(true);
    let mut fault = vk::PhysicalDeviceFaultFeaturesEXT::default().device_fault(true);
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions)
        .enabled_features(&offered.features)
        .push_next(&mut eleven)
        .push_next(&mut twelve);
    if offered.device_fault {
        info = info.push_next(&mut fault);
    }
    // SAFETY: features, extensions and the queue family are what the device offers; pointers outlive the call.
    unsafe { vulkan.create_device(physical, &info, None) }
}

/// What calendars and kernels depend on.
struct DeviceProperties {
    limits: DeviceLimits,
    caps: Caps,
    floats: Floats,
}

fn query_properties(
    vulkan: &ash::Instance,
    physical: vk::PhysicalDevice,
    offered: &OfferedFeatures,
) -> DeviceProperties {
    let mut three = vk::PhysicalDeviceMaintenance3Properties::default();
    let mut floats = vk::PhysicalDeviceFloatControlsProperties::default();
    let mut all = vk::PhysicalDeviceProperties2::default()
        .push_next(&mut three)
        .push_next(&mut floats);
    // SAFETY: the device is the instance's and has Vulkan 1.2, to which both structs belong.
    unsafe { vulkan.get_physical_device_properties2(physical, &mut all) };
    let limits = all.properties.limits;

    // Arguments are the number of firings and an offset for each binding.
    let arguments = (limits.max_push_constants_size / 4).saturating_sub(1);
    let bindings = limits
        .max_per_stage_descriptor_storage_buffers
        .min(limits.max_descriptor_set_storage_buffers)
        .min(arguments);
    let caps = Caps {
        has: Needs {
            f64: offered.features.shader_float64 != 0,
            i64: offered.features.shader_int64 != 0,
            bytes: offered.bytes,
            halves: offered.halves,
        },
        bindings,
        shared_bytes: limits.max_compute_shared_memory_size.into(),
        group: limits
            .max_compute_work_group_invocations
            .min(limits.max_compute_work_group_size[0]),
        capability: None,
    };
    let range_bytes = u64::from(limits.max_storage_buffer_range);
    let limits = DeviceLimits {
        align_bytes: limits.min_storage_buffer_offset_alignment.max(16),
        range_bytes,
        // Many drivers limit one buffer to 2 or 4 GiB; none limits it to less than what a kernel may access.
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
    DeviceProperties {
        limits,
        caps,
        floats,
    }
}
