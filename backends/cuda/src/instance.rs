//! The driver, and what devices there are.
#![expect(unsafe_code, reason = "calls the CUDA driver")]

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::api::{Api, device_attribute, read_text};
use super::driver::Driver;
use super::error::{Code, Fault, OpenError, unavailable};
use super::listed::{Listed, MAX_BINDINGS};
use super::registered::Registrations;
use super::sys::Cuda;
use zbmd_gpu_ir::{Caps, Needs};
use zbmd_hal::{Unavailable, find_device};

/// The oldest architecture that the printed code is for: Volta.
const MIN_ARCH: (u32, u32) = (7, 0);

/// Set to `software` in the environment of tests to load [`Instance::software`]. A comma may follow, and what it lacks:
/// `signals`, `registration` or `library`; or `sm_90`, which it then is.
#[cfg(any(test, feature = "testing"))]
const DRIVER_VARIABLE: &str = "ZBMD_CUDA_DRIVER";

#[cfg(any(test, feature = "testing"))]
fn parse_software(value: &str) -> Option<Arc<Instance>> {
    use super::soft::Lacking;

    let (driver, variation) = value.split_once(',').unwrap_or((value, ""));
    if driver != "software" {
        return None;
    }
    let instance = Instance::software();
    let machine = instance.machine()?;
    match variation {
        "" => {}
        "sm_90" => machine.set_arch((9, 0)),
        "signals" => machine.set_lacking(Lacking::Signals),
        "registration" => machine.set_lacking(Lacking::Registration),
        "library" => machine.set_lacking(Lacking::Library),
        _ => return None,
    }
    Some(instance)
}

/// The driver of this machine. Kept while any device of it is open.
pub struct Instance {
    source: DriverSource,
    version: i32,
    /// Memory of others that devices of this process reach.
    pub(super) registrations: Registrations,
}

enum DriverSource {
    Cuda(Box<Api>),
    #[cfg(any(test, feature = "testing"))]
    Software(Arc<super::soft::Machine>),
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Instance {
    fn new(source: DriverSource, version: i32) -> Arc<Instance> {
        Arc::new(Instance {
            source,
            version,
            registrations: Registrations::default(),
        })
    }

    /// Loads the driver.
    ///
    /// # Errors
    /// [`Unavailable`] without a driver, with one that is too old, or without a device.
    pub fn load() -> Result<Arc<Instance>, Unavailable> {
        #[cfg(any(test, feature = "testing"))]
        if let Ok(value) = std::env::var(DRIVER_VARIABLE)
            && let Some(instance) = parse_software(&value)
        {
            return Ok(instance);
        }
        let (api, version) = Api::load()?;
        Ok(Self::new(DriverSource::Cuda(Box::new(api)), version))
    }

    /// A driver in software, with one device, which interprets the printed code: for tests of everything except the
    /// real driver.
    #[cfg(any(test, feature = "testing"))]
    pub fn software() -> Arc<Instance> {
        Self::new(DriverSource::Software(super::soft::Machine::new()), 12_000)
    }

    /// The software behind [`Self::software`].
    #[cfg(any(test, feature = "testing"))]
    pub fn machine(&self) -> Option<&Arc<super::soft::Machine>> {
        match &self.source {
            DriverSource::Software(machine) => Some(machine),
            DriverSource::Cuda(_) => None,
        }
    }

    /// CUDA version of the driver, as `12.4`.
    pub fn api_text(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    /// The devices, in the driver's order, which [`Listed::name`] counts: fastest first unless `CUDA_DEVICE_ORDER` says
    /// otherwise, and only those that `CUDA_VISIBLE_DEVICES` includes.
    ///
    /// # Errors
    /// [`Unavailable`] if the driver cannot list them.
    pub fn devices(&self) -> Result<Vec<Listed>, Unavailable> {
        #[cfg_attr(
            not(any(test, feature = "testing")),
            expect(
                clippy::infallible_destructuring_match,
                reason = "tests have a second source"
            )
        )]
        let api = match &self.source {
            DriverSource::Cuda(api) => api,
            #[cfg(any(test, feature = "testing"))]
            DriverSource::Software(machine) => return Ok(vec![machine.listed()]),
        };
        let failed = |code: i32| unavailable(format!("cuDeviceGetCount reports {}", Code(code)));
        let mut count = 0;
        // SAFETY: the pointer is to a local.
        match unsafe { (api.device_count)(&raw mut count) } {
            0 => (0..count)
                .map(|ordinal| self.list_device(api, ordinal).map_err(failed))
                .collect(),
            code => Err(failed(code)),
        }
    }

    /// The device of that name (`cuda:0`) or UUID.
    ///
    /// # Errors
    /// [`OpenError::NoDevice`] with the names of those that exist.
    pub fn find(&self, wanted: &str) -> Result<Listed, OpenError> {
        find_device("CUDA", self.devices()?, wanted)
    }

    fn list_device(&self, api: &Api, ordinal: i32) -> Result<Listed, i32> {
        let check = |code: i32| if code == 0 { Ok(()) } else { Err(code) };
        let mut device = 0;
        let mut memory_bytes = 0;
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the pointers are to locals; the device is one of those counted.
        unsafe {
            check((api.device)(&raw mut device, ordinal))?;
            check((api.device_memory)(&raw mut memory_bytes, device))?;
            check((api.device_uuid)(&raw mut uuid, device))?;
        }
        // SAFETY: `read_text` gives a buffer of the length that it gives beside it.
        let title = read_text(|to, len| unsafe { (api.device_name)(to, len, device) })?;

        let number = |attribute| {
            device_attribute(api, device, attribute).map(|value| value.max(0).cast_unsigned())
        };
        let arch = (
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        Ok(Listed {
            name: format!("cuda:{ordinal}"),
            uuid: uuid.bytes.map(|byte| byte as u8),
            title,
            driver: format!("NVIDIA, CUDA {}", self.api_text()),
            driver_version: self.version.cast_unsigned(),
            arch,
            integrated: number(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
            processors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            clock_khz: number(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            memory_clock_khz: number(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            memory_bits: number(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
            memory_bytes: memory_bytes as u64,
            groups: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            memory_ops: number(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)? != 0,
            caps: Caps {
                has: Needs {
                    f64: true,
                    i64: true,
                    bytes: true,
                    halves: true,
                },
                bindings: MAX_BINDINGS,
                shared_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?
                    .into(),
                group: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
                capability: Some(arch),
            },
            device,
        })
    }

    /// Opens one of the devices.
    pub(super) fn open_driver(&self, listed: &Listed) -> Result<Arc<dyn Driver>, OpenError> {
        if listed.arch < MIN_ARCH {
            return Err(OpenError::Lacks {
                device: format!("{} ({})", listed.name, listed.title),
                what: format!("compute capability {}.{}", MIN_ARCH.0, MIN_ARCH.1),
            });
        }
        match &self.source {
            DriverSource::Cuda(api) => match Cuda::open(**api, listed.device) {
                Ok(cuda) => Ok(cuda),
                Err(error) => Err(Fault::new(error).into()),
            },
            #[cfg(any(test, feature = "testing"))]
            DriverSource::Software(machine) => Ok(Arc::new(machine.open())),
        }
    }
}

/// The devices of this machine, in the driver's order.
///
/// # Errors
/// [`Unavailable`] without a driver or a device.
pub fn list() -> Result<Vec<Listed>, Unavailable> {
    Instance::load()?.devices()
}
