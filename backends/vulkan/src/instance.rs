//! The loader, and what devices there are.
#![expect(unsafe_code, reason = "calls the Vulkan loader")]

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ash::{ext, khr, vk};

use super::error::{OpenError, unavailable};
use zbmd_hal::{ListedDevice, Unavailable, find_device};

/// The loader of this machine, and an instance. Kept while any device of it is open.
pub struct Instance {
    pub(super) raw: ash::Instance,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    messages: Box<Messages>,
    // Last: unloads the library.
    _entry: ash::Entry,
}

type Messages = Mutex<Vec<String>>;

const VALIDATION: &CStr = c"VK_LAYER_KHRONOS_validation";

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance")
            .field("validates", &self.validates())
            .finish_non_exhaustive()
    }
}

/// What the loader offers and what is used of it.
struct InstanceSetup {
    /// The validation layers are requested and installed.
    validate: bool,
    /// Devices that do not conform completely are listed only on request.
    portability: bool,
}

impl InstanceSetup {
    fn query(entry: &ash::Entry, validate: bool) -> Result<Self, Unavailable> {
        // SAFETY: the function has no preconditions.
        let layers = unsafe { entry.enumerate_instance_layer_properties() }
            .map_err(|result| call_failed("vkEnumerateInstanceLayerProperties", result))?;
        let is_installed = layers
            .iter()
            .any(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION));

        // SAFETY: the function has no preconditions.
        let extensions = unsafe { entry.enumerate_instance_extension_properties(None) }
            .map_err(|result| call_failed("vkEnumerateInstanceExtensionProperties", result))?;
        let portability = extensions.iter().any(|extension| {
            extension.extension_name_as_c_str() == Ok(khr::portability_enumeration::NAME)
        });
        Ok(Self {
            validate: validate && is_installed,
            portability,
        })
    }

    fn create_instance(&self, entry: &ash::Entry) -> Result<ash::Instance, Unavailable> {
        let mut layer_names = Vec::new();
        let mut extension_names = Vec::new();
        let mut flags = vk::InstanceCreateFlags::empty();
        if self.validate {
            layer_names.push(VALIDATION.as_ptr());
            extension_names.push(ext::debug_utils::NAME.as_ptr());
            extension_names.push(ext::validation_features::NAME.as_ptr());
        }
        if self.portability {
            extension_names.push(khr::portability_enumeration::NAME.as_ptr());
            flags |= vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR;
        }

        let application = vk::ApplicationInfo::default()
            .application_name(c"zbmd")
            .api_version(vk::API_VERSION_1_2);
        let synchronization = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut features =
            vk::ValidationFeaturesEXT::default().enabled_validation_features(&synchronization);
        let mut info = vk::InstanceCreateInfo::default()
            .application_info(&application)
            .flags(flags)
            .enabled_layer_names(&layer_names)
            .enabled_extension_names(&extension_names);
        if self.validate {
            info = info.push_next(&mut features);
        }

        // SAFETY: the layers and extensions named are offered; all pointers outlive the call.
        unsafe { entry.create_instance(&info, None) }.map_err(|result| match result {
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => {
                unavailable("the loader finds no driver".to_owned())
            }
            other => call_failed("vkCreateInstance", other),
        })
    }
}

fn call_failed(function: &str, result: vk::Result) -> Unavailable {
    unavailable(format!("{function} reports {result:?}"))
}

impl Instance {
    /// Loads the loader and creates an instance. With `validate`, every call is checked by the validation layers,
    /// synchronization included, if they are installed: see [`Self::validates`].
    ///
    /// # Errors
    /// [`Unavailable`] without a loader or a driver.
    pub fn load(validate: bool) -> Result<Arc<Instance>, Unavailable> {
        // SAFETY: runs the initialisation code of the system's Vulkan loader, which is safe to load.
        let entry = unsafe { ash::Entry::load() }
            .map_err(|_| unavailable("the loader (libvulkan) is not installed".to_owned()))?;
        let setup = InstanceSetup::query(&entry, validate)?;
        let raw = setup.create_instance(&entry)?;

        let messages = Box::new(Messages::default());
        let messenger = match setup.validate {
            true => create_messenger(&entry, &raw, &messages),
            false => None,
        };
        Ok(Arc::new(Instance {
            raw,
            messenger,
            messages,
            _entry: entry,
        }))
    }

    /// Whether the validation layers are on.
    pub fn validates(&self) -> bool {
        self.messenger.is_some()
    }

    /// What the validation layers have found since the last call.
    pub fn messages(&self) -> Vec<String> {
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The devices, in the order of their names; see [`list`].
    ///
    /// # Errors
    /// [`Unavailable`] if the drivers cannot list them.
    pub fn devices(&self) -> Result<Vec<Listed>, Unavailable> {
        // SAFETY: the instance exists until it is dropped.
        let enumerated = unsafe { self.raw.enumerate_physical_devices() };
        let physical_devices = enumerated.map_err(|result| match result {
            vk::Result::ERROR_INITIALIZATION_FAILED => {
                unavailable("the loader finds no driver that works".to_owned())
            }
            other => call_failed("vkEnumeratePhysicalDevices", other),
        })?;

        let mut listed: Vec<Listed> = physical_devices
            .into_iter()
            .map(|physical| self.list_device(physical))
            .collect();
        listed.sort_by_key(|device| (device.kind, device.uuid));
        for (index, device) in listed.iter_mut().enumerate() {
            device.name = format!("vulkan:{index}");
        }
        Ok(listed)
    }

    /// The device of that name (`vulkan:0`) or UUID.
    ///
    /// # Errors
    /// [`OpenError::NoDevice`] with the names of those that exist.
    pub fn find(&self, wanted: &str) -> Result<Listed, OpenError> {
        find_device("Vulkan", self.devices()?, wanted)
    }

    fn list_device(&self, physical: vk::PhysicalDevice) -> Listed {
        let mut id = vk::PhysicalDeviceIDProperties::default();
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut all = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut id)
            .push_next(&mut driver);
        // SAFETY: the device is the instance's; both structs belong to Vulkan 1.2, and older devices leave them alone.
        unsafe { self.raw.get_physical_device_properties2(physical, &mut all) };
        let core = all.properties;

        // SAFETY: the device is the instance's.
        let memory = unsafe { self.raw.get_physical_device_memory_properties(physical) };
        let local_heaps = memory
            .memory_heaps_as_slice()
            .iter()
            .filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));

        let driver_name = lossy_text(driver.driver_name_as_c_str());
        let driver_info = lossy_text(driver.driver_info_as_c_str());
        Listed {
            name: String::new(),
            uuid: id.device_uuid,
            driver_uuid: id.driver_uuid,
            title: lossy_text(core.device_name_as_c_str()),
            driver: format!("{driver_name} {driver_info}").trim().to_owned(),
            driver_version: core.driver_version,
            api: core.api_version,
            kind: match core.device_type {
                vk::PhysicalDeviceType::DISCRETE_GPU => DeviceType::Discrete,
                vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceType::Integrated,
                vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceType::Virtual,
                vk::PhysicalDeviceType::CPU => DeviceType::Cpu,
                _ => DeviceType::Other,
            },
            memory_bytes: local_heaps.map(|heap| heap.size).max().unwrap_or(0),
            physical,
        }
    }
}

fn lossy_text<E>(name: Result<&CStr, E>) -> String {
    let name = name.map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_default()
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: devices hold the instance, so none is left; the messenger is the instance's.
        unsafe {
            if let Some((functions, messenger)) = self.messenger.take() {
                functions.destroy_debug_utils_messenger(messenger, None);
            }
            self.raw.destroy_instance(None);
        }
    }
}

/// Has the layers' messages kept; none where the messenger cannot be created.
fn create_messenger(
    entry: &ash::Entry,
    raw: &ash::Instance,
    messages: &Messages,
) -> Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)> {
    use vk::{
        DebugUtilsMessageSeverityFlagsEXT as Severity, DebugUtilsMessageTypeFlagsEXT as Type,
    };
    let functions = ext::debug_utils::Instance::new(entry, raw);
    let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(Severity::WARNING | Severity::ERROR)
        .message_type(Type::VALIDATION)
        .pfn_user_callback(Some(keep_message))
        .user_data(std::ptr::from_ref(messages).cast_mut().cast());
    // SAFETY: the extension is enabled; the list is in a box that outlives the messenger.
    let messenger = unsafe { functions.create_debug_utils_messenger(&info, None) }.ok()?;
    Some((functions, messenger))
}

/// Called by the layers, on the thread that makes the invalid call.
unsafe extern "system" fn keep_message(
    _: vk::DebugUtilsMessageSeverityFlagsEXT,
    _: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    messages: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layers give a valid struct.
    let data = unsafe { &*data };
    // SAFETY: the pointer is the one given in `create_messenger`, to a box that outlives the messenger.
    let messages = unsafe { &*messages.cast::<Messages>() };
    // SAFETY: the layers terminate their text.
    let message = unsafe { data.message_as_c_str() };
    let text = message.map(|text| text.to_string_lossy().into_owned());
    messages
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(text.unwrap_or_default());
    vk::FALSE
}

/// What a device is, the likely fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceType {
    /// A card with memory of its own.
    Discrete,
    /// Shares its memory with the CPU.
    Integrated,
    /// In a virtual machine.
    Virtual,
    /// Something else.
    Other,
    /// The CPU itself.
    Cpu,
}

/// A device that a driver lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// `vulkan:N`, counted by kind and then by UUID: the same while the machine has the same devices.
    pub name: String,
    /// The device's UUID, which never changes.
    pub uuid: [u8; 16],
    /// The driver's, which changes with its version.
    pub driver_uuid: [u8; 16],
    /// What the driver calls the device.
    pub title: String,
    /// Driver and its version, for people.
    pub driver: String,
    /// The driver's version, as a number.
    pub driver_version: u32,
    /// Vulkan version that it supports.
    pub api: u32,
    /// What it is.
    pub kind: DeviceType,
    /// Its largest memory.
    pub memory_bytes: u64,
    pub(super) physical: vk::PhysicalDevice,
}

impl ListedDevice for Listed {
    fn device_name(&self) -> &str {
        &self.name
    }

    fn uuid_text(&self) -> String {
        self.uuid_text()
    }
}

impl Listed {
    /// The UUID in hexadecimal.
    pub fn uuid_text(&self) -> String {
        self.uuid.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether the device's memory is the host's, so that copying gains nothing.
    pub fn shares_memory(&self) -> bool {
        matches!(self.kind, DeviceType::Integrated | DeviceType::Cpu)
    }

    /// Vulkan version as `1.3.230`.
    pub fn api_text(&self) -> String {
        let major = vk::api_version_major(self.api);
        let minor = vk::api_version_minor(self.api);
        format!("{major}.{minor}.{}", vk::api_version_patch(self.api))
    }
}

/// The devices of this machine: discrete ones first, software devices last, ordered by UUID within each kind.
///
/// # Errors
/// [`Unavailable`] without a loader or a driver.
pub fn list() -> Result<Vec<Listed>, Unavailable> {
    Instance::load(false)?.devices()
}
