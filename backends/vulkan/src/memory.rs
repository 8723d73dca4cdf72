//! Banks: buffers with memory of their own, on the device or mapped for the host.
#![expect(
    unsafe_code,
    reason = "calls the Vulkan driver and hands out mapped memory"
)]

use std::sync::Arc;

use ash::vk;

use super::device::VulkanDevice;
use super::error::{Fault, Site};
use zbmd_hal::MemoryKind;

/// A buffer and its memory.
///
/// A bank is dropped only when no submission that uses it is pending: queues, descriptor sets and command buffers hold
/// the banks that their work names, and a queue waits for all of its work before it drops them.
pub struct Bank {
    pub(super) buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    pub(super) bytes: u64,
    /// First byte, where the host sees it.
    mapped: Option<*mut u8>,
    device: Arc<VulkanDevice>,
}

// SAFETY: the pointer is to memory that exists as long as the bank; every access through it says why it is not a race.
unsafe impl Send for Bank {}
// SAFETY: a shared reference gives the pointer only.
unsafe impl Sync for Bank {}

impl Bank {
    /// A bank of at least `bytes` bytes, of any content.
    pub(super) fn allocate(
        device: &Arc<VulkanDevice>,
        bytes: u64,
        kind: MemoryKind,
    ) -> Result<Bank, Fault> {
        let bytes = bytes.max(256).next_multiple_of(256);
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default()
            .size(bytes)
            .usage(usage)
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        // SAFETY: the device exists, and has no preconditions beyond that.
        let created = device.call(Site::CreateBuffer, || unsafe {
            device.raw.create_buffer(&info, None)
        });
        let mut bank = Bank {
            buffer: created.map_err(|fault| fault.with_wanted(bytes))?,
            memory: vk::DeviceMemory::null(),
            bytes,
            mapped: None,
            device: Arc::clone(device),
        };
        bank.bind_memory(kind)
            .map_err(|fault| fault.with_wanted(bytes))?;
        Ok(bank)
    }

    /// Gives the buffer its memory.
    fn bind_memory(&mut self, kind: MemoryKind) -> Result<(), Fault> {
        let device = &self.device;
        // SAFETY: the buffer is the device's.
        let requirements = unsafe { device.raw.get_buffer_memory_requirements(self.buffer) };
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(requirements.size)
            .memory_type_index(memory_type(
                &device.memory,
                requirements.memory_type_bits,
                kind,
            ));
        // SAFETY: the memory type is one of the device's.
        self.memory = device.call(Site::AllocateMemory, || unsafe {
            device.raw.allocate_memory(&info, None)
        })?;
        // SAFETY: memory of a type and size that the buffer accepts, bound once.
        device.call(Site::BindMemory, || unsafe {
            device.raw.bind_buffer_memory(self.buffer, self.memory, 0)
        })?;
        if kind == MemoryKind::Host {
            let flags = vk::MemoryMapFlags::empty();
            // SAFETY: the type is host-visible and the memory is mapped once.
            let first = device.call(Site::MapMemory, || unsafe {
                device.raw.map_memory(self.memory, 0, vk::WHOLE_SIZE, flags)
            })?;
            self.mapped = Some(first.cast());
        }
        Ok(())
    }

    /// Where the host sees a range of the bank.
    pub(super) fn host_pointer(&self, offset: u64, len: usize) -> *mut u8 {
        assert!(
            offset + len as u64 <= self.bytes,
            "{offset} + {len} of a bank of {}",
            self.bytes
        );
        let first = self.mapped.expect("a bank that the host sees");
        first.wrapping_add(offset as usize)
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        if !self.device.is_alive() {
            return;
        }
        // SAFETY: made by `allocate` and destroyed here only; no pending submission uses a bank that is dropped, as said
        // at the type. Freeing memory unmaps it, and freeing a null handle is allowed.
        unsafe {
            self.device.raw.destroy_buffer(self.buffer, None);
            self.device.raw.free_memory(self.memory, None);
        }
    }
}

/// The memory type to allocate from: of the device's own, the first; of the host's, a cached one if there is any, because
/// the host reads it.
fn memory_type(memory: &vk::PhysicalDeviceMemoryProperties, allowed: u32, kind: MemoryKind) -> u32 {
    use vk::MemoryPropertyFlags as Flags;
    let host = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
    let wishes = match kind {
        MemoryKind::Device => [Flags::DEVICE_LOCAL, Flags::empty()],
        MemoryKind::Host => [host | Flags::HOST_CACHED, host],
    };

    for wish in wishes {
        for (index, memory_type) in memory.memory_types_as_slice().iter().enumerate() {
            if allowed & (1 << index) != 0 && memory_type.property_flags.contains(wish) {
                return index as u32;
            }
        }
    }
    // Vulkan guarantees a type with each of the plainer wishes.
    0
}
