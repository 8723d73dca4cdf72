//! Banks: buffers with memory of their own, on the device or mapped for the host.
#![expect(
    unsafe_code,
    reason = "calls the Vulkan driver and hands out mapped memory"
)]

use std::sync::Arc;

use ash::vk;

use super::device::Device;
use super::error::{Fault, Site};
use crate::replay::Home;

/// A buffer and its memory.
pub struct Bank {
    pub(super) buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    pub(super) bytes: u64,
    /// First byte, where the host sees it.
    mapped: Option<*mut u8>,
    device: Arc<Device>,
}

// SAFETY: the pointer is to memory that lives as long as the bank; whoever dereferences it keeps threads apart.
unsafe impl Send for Bank {}
// SAFETY: as above.
unsafe impl Sync for Bank {}

impl Bank {
    /// A bank of at least `bytes` bytes, of any content.
    pub(super) fn new(device: &Arc<Device>, bytes: u64, home: Home) -> Result<Bank, Fault> {
        let bytes = bytes.max(256).next_multiple_of(256);
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default()
            .size(bytes)
            .usage(usage)
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        // SAFETY: no preconditions beyond a living device.
        let buffer = device
            .call(Site::CreateBuffer, || unsafe {
                device.raw.create_buffer(&info, None)
            })
            .map_err(|f| f.wanting(bytes))?;
        let mut bank = Bank {
            buffer,
            memory: vk::DeviceMemory::null(),
            bytes,
            mapped: None,
            device: Arc::clone(device),
        };
        bank.fill(home).map_err(|f| f.wanting(bytes))?;
        Ok(bank)
    }

    /// Gives the buffer its memory.
    fn fill(&mut self, home: Home) -> Result<(), Fault> {
        let device = &self.device;
        // SAFETY: the buffer is the device's.
        let needs = unsafe { device.raw.get_buffer_memory_requirements(self.buffer) };
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(memory_type(&device.memory, needs.memory_type_bits, home));
        // SAFETY: the memory type is one of the device's.
        self.memory = device.call(Site::AllocateMemory, || unsafe {
            device.raw.allocate_memory(&info, None)
        })?;
        // SAFETY: memory of a type and size that the buffer accepts, bound once.
        device.call(Site::BindMemory, || unsafe {
            device.raw.bind_buffer_memory(self.buffer, self.memory, 0)
        })?;
        if home == Home::Host {
            let whole = vk::MemoryMapFlags::empty();
            // SAFETY: the type is host-visible and the memory is mapped once.
            let first = device.call(Site::MapMemory, || unsafe {
                device.raw.map_memory(self.memory, 0, vk::WHOLE_SIZE, whole)
            })?;
            self.mapped = Some(first.cast());
        }
        Ok(())
    }

    /// Where the host sees a range of the bank.
    pub(super) fn host(&self, at: u64, len: usize) -> *mut u8 {
        assert!(
            at + len as u64 <= self.bytes,
            "{at} + {len} of a bank of {}",
            self.bytes
        );
        let first = self.mapped.expect("a bank that the host sees");
        first.wrapping_add(at as usize)
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        if !self.device.is_alive() {
            return;
        }
        // SAFETY: owners drop banks only when no submission that uses them is pending. Freeing unmaps; freeing
        // nothing is allowed.
        unsafe {
            self.device.raw.destroy_buffer(self.buffer, None);
            self.device.raw.free_memory(self.memory, None);
        }
    }
}

/// The memory type to take: of the device's own, the first; of the host's, cached if there is one, for reading.
fn memory_type(memory: &vk::PhysicalDeviceMemoryProperties, allowed: u32, home: Home) -> u32 {
    use vk::MemoryPropertyFlags as Flags;
    let host = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
    let wishes = match home {
        Home::Device => [Flags::DEVICE_LOCAL, Flags::empty()],
        Home::Host => [host | Flags::HOST_CACHED, host],
    };
    let types = memory.memory_types_as_slice();
    let find = |wish: Flags| {
        let fits = |(i, t): &(usize, &vk::MemoryType)| {
            allowed & (1 << i) != 0 && t.property_flags.contains(wish)
        };
        types.iter().enumerate().find(fits).map(|(i, _)| i as u32)
    };
    // Vulkan promises one type with each of the plainer wishes.
    wishes.into_iter().find_map(find).unwrap_or(0)
}
