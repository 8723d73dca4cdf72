//! What the driver says about a device before it is opened.

use zbmd_gpu_ir::Caps;
use zbmd_hal::ListedDevice;

/// Each binding takes a pointer and a word, of the 4 KiB of parameters that every driver supports.
pub(super) const MAX_BINDINGS: u32 = 256;

/// A device that the driver lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// `cuda:N`, in the driver's order.
    pub name: String,
    /// The device's UUID, which never changes.
    pub uuid: [u8; 16],
    /// What the driver calls the device.
    pub title: String,
    /// Driver and its version, for people.
    pub driver: String,
    /// CUDA version of the driver: 12040 for 12.4.
    pub driver_version: u32,
    /// Compute capability, major and minor.
    pub arch: (u32, u32),
    /// Whether the device's memory is the host's.
    pub integrated: bool,
    /// Multiprocessors.
    pub processors: u32,
    /// Clock of the processors.
    pub clock_khz: u32,
    /// Clock of the memory.
    pub memory_clock_khz: u32,
    /// Width of the memory's bus.
    pub memory_bits: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// Groups of the largest launch.
    pub groups: u32,
    /// Whether its queue waits for, and stores, words of 64 bits itself: stream memory operations.
    pub memory_ops: bool,
    /// What kernels can do there.
    pub caps: Caps,
    pub(super) device: i32,
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
        self.integrated
    }

    /// Estimated operations per second: 64 fused multiply-adds per processor and cycle.
    pub fn flops_per_s(&self) -> u64 {
        u64::from(self.processors) * u64::from(self.clock_khz) * 1000 * 128
    }

    /// Peak bandwidth of the memory's bus, with two transfers per cycle.
    pub fn bytes_per_s(&self) -> u64 {
        u64::from(self.memory_bits / 8) * u64::from(self.memory_clock_khz) * 1000 * 2
    }
}
