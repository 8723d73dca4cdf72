//! The loader, and what devices there are.
#![expect(unsafe_code, reason = "calls the Vulkan loader")]

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ash::{ext, khr, vk};

use super::error::{OpenError, Unavailable};
use crate::devices;

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

impl Instance {
    /// Loads the loader and makes an instance. With `validate`, every call is checked by the validation layers,
    /// synchronization included, if they are installed: see [`Self::validates`].
    ///
    /// # Errors
    /// [`Unavailable`] without a loader or a driver.
    pub fn load(validate: bool) -> Result<Arc<Instance>, Unavailable> {
        // SAFETY: the loader's initialisation code runs; it is the system's Vulkan loader, which is safe to load.
        let entry = unsafe { ash::Entry::load() }
            .map_err(|_| Unavailable("the loader (libvulkan) is not installed".to_owned()))?;
        let refused = |what: &str, result| Unavailable(format!("{what} says {result:?}"));
        // SAFETY: no preconditions.
        let layers = unsafe { entry.enumerate_instance_layer_properties() }
            .map_err(|e| refused("vkEnumerateInstanceLayerProperties", e))?;
        let validate = validate
            && layers
                .iter()
                .any(|l| l.layer_name_as_c_str() == Ok(VALIDATION));
        // SAFETY: no preconditions.
        let offered = unsafe { entry.enumerate_instance_extension_properties(None) }
            .map_err(|e| refused("vkEnumerateInstanceExtensionProperties", e))?;
        let portability = offered
            .iter()
            .any(|e| e.extension_name_as_c_str() == Ok(khr::portability_enumeration::NAME));

        let application = vk::ApplicationInfo::default()
            .application_name(c"zbmd")
            .api_version(vk::API_VERSION_1_2);
        let layer_names: Vec<_> = validate
            .then_some(VALIDATION.as_ptr())
            .into_iter()
            .collect();
        let mut extensions = Vec::new();
        let mut flags = vk::InstanceCreateFlags::empty();
        if validate {
            extensions.push(ext::debug_utils::NAME.as_ptr());
            extensions.push(ext::validation_features::NAME.as_ptr());
        }
        if portability {
            extensions.push(khr::portability_enumeration::NAME.as_ptr());
            flags |= vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR;
        }
        let synchronization = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut features =
            vk::ValidationFeaturesEXT::default().enabled_validation_features(&synchronization);
        let info = vk::InstanceCreateInfo::default()
            .application_info(&application)
            .flags(flags)
            .enabled_layer_names(&layer_names)
            .enabled_extension_names(&extensions);
        let info = if validate {
            info.push_next(&mut features)
        } else {
            info
        };
        // SAFETY: the layers and extensions named are offered; all pointers outlive the call.
        let raw = unsafe { entry.create_instance(&info, None) }.map_err(|e| match e {
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => {
                Unavailable("the loader finds no driver".to_owned())
            }
            other => refused("vkCreateInstance", other),
        })?;
        let messages = Box::new(Messages::default());
        let messenger = validate
            .then(|| messenger(&entry, &raw, &messages))
            .flatten();
        Ok(Arc::new(Instance {
            raw,
            messenger,
            messages,
            _entry: entry,
        }))
    }

    /// Whether the validation layers look on.
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
    /// [`Unavailable`] if the drivers refuse.
    pub fn devices(&self) -> Result<Vec<Listed>, Unavailable> {
        // SAFETY: the instance is alive.
        let physical = unsafe { self.raw.enumerate_physical_devices() }.map_err(|e| match e {
            vk::Result::ERROR_INITIALIZATION_FAILED => {
                Unavailable("the loader finds no driver that works".to_owned())
            }
            other => Unavailable(format!("vkEnumeratePhysicalDevices says {other:?}")),
        })?;
        let mut found: Vec<Listed> = physical.into_iter().map(|p| self.listed(p)).collect();
        found.sort_by_key(|d| (d.kind, d.uuid));
        for (i, device) in found.iter_mut().enumerate() {
            device.name = format!("vulkan:{i}");
        }
        Ok(found)
    }

    /// The device of that name (`vulkan:0`) or UUID.
    ///
    /// # Errors
    /// [`OpenError::NoDevice`] with the names that there are.
    pub fn find(&self, wanted: &str) -> Result<Listed, OpenError> {
        let is_wanted = |d: &Listed| d.name == wanted || d.uuid_text() == wanted;
        devices::find(self.devices()?, |d| &d.name, is_wanted).map_err(|known| {
            OpenError::NoDevice {
                wanted: wanted.to_owned(),
                known,
            }
        })
    }

    fn listed(&self, physical: vk::PhysicalDevice) -> Listed {
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
        let local = memory.memory_heaps_as_slice().iter();
        let local = local.filter(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        let text = |name: Result<&CStr, _>| {
            name.map(|n: &CStr| n.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        let (driver_name, driver_info) = (
            text(driver.driver_name_as_c_str()),
            text(driver.driver_info_as_c_str()),
        );
        Listed {
            name: String::new(),
            uuid: id.device_uuid,
            driver_uuid: id.driver_uuid,
            title: text(core.device_name_as_c_str()),
            driver: format!("{driver_name} {driver_info}").trim().to_owned(),
            driver_version: core.driver_version,
            api: core.api_version,
            kind: match core.device_type {
                vk::PhysicalDeviceType::DISCRETE_GPU => Kind::Discrete,
                vk::PhysicalDeviceType::INTEGRATED_GPU => Kind::Integrated,
                vk::PhysicalDeviceType::VIRTUAL_GPU => Kind::Virtual,
                vk::PhysicalDeviceType::CPU => Kind::Cpu,
                _ => Kind::Other,
            },
            memory_bytes: local.map(|h| h.size).max().unwrap_or(0),
            physical,
        }
    }
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

fn messenger(
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
    // SAFETY: the extension is enabled; the list lies in a box that outlives the messenger.
    let messenger = unsafe { functions.create_debug_utils_messenger(&info, None) }.ok()?;
    Some((functions, messenger))
}

/// Called by the layers, on whatever thread makes the call that is wrong.
unsafe extern "system" fn keep_message(
    _: vk::DebugUtilsMessageSeverityFlagsEXT,
    _: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    messages: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layers hand over a valid struct, and the pointer given in `messenger`, whose box is alive.
    let (data, messages) = unsafe { (&*data, &*messages.cast::<Messages>()) };
    // SAFETY: the layers terminate their text.
    let text = unsafe { data.message_as_c_str() };
    let text = text
        .map(|t| t.to_string_lossy().into_owned())
        .unwrap_or_default();
    messages
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(text);
    vk::FALSE
}

/// What a device is, the likely fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
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

/// A device that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// `vulkan:N`, counted by kind and then by UUID: the same while the same devices are there.
    pub name: String,
    /// The device's UUID, the same for ever.
    pub uuid: [u8; 16],
    /// The driver's, which changes with its version.
    pub driver_uuid: [u8; 16],
    /// What the driver calls the device.
    pub title: String,
    /// Driver and its version, for people.
    pub driver: String,
    /// The driver's version, as a number.
    pub driver_version: u32,
    /// Vulkan version that it has.
    pub api: u32,
    /// What it is.
    pub kind: Kind,
    /// Its largest memory.
    pub memory_bytes: u64,
    pub(super) physical: vk::PhysicalDevice,
}

impl Listed {
    /// The UUID in hexadecimal.
    pub fn uuid_text(&self) -> String {
        self.uuid.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Vulkan version as `1.3.230`.
    pub fn api_text(&self) -> String {
        let (major, minor) = (
            vk::api_version_major(self.api),
            vk::api_version_minor(self.api),
        );
        format!("{major}.{minor}.{}", vk::api_version_patch(self.api))
    }
}

/// The devices of this machine: discrete ones first, CPUs that pass for devices last, by UUID among themselves.
///
/// # Errors
/// [`Unavailable`] without a loader or a driver.
pub fn list() -> Result<Vec<Listed>, Unavailable> {
    Instance::load(false)?.devices()
}
