//! The pipelines of a device, and what of them is stored on disk. How they are made: see `compile.rs`.
#![expect(unsafe_code, reason = "calls the Vulkan driver")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ash::prelude::VkResult;
use ash::vk;

use super::instance::Listed;

/// A pipeline of a device, which exists as long as the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pipeline(vk::Pipeline);

impl Pipeline {
    pub(super) fn new(raw: vk::Pipeline) -> Self {
        Self(raw)
    }

    pub(super) fn raw(self) -> vk::Pipeline {
        self.0
    }
}

/// Layouts of kernels with a given number of bindings.
#[derive(Clone, Copy, Debug)]
pub(super) struct BindingLayouts {
    pub(super) set: vk::DescriptorSetLayout,
    pub(super) pipeline: vk::PipelineLayout,
}

/// All pipelines of a device, made once each.
#[derive(Default)]
pub(super) struct Pipelines(Mutex<PipelineStore>);

/// What has been made so far.
#[derive(Default)]
pub(super) struct PipelineStore {
    pub(super) cache: vk::PipelineCache,
    /// Where the driver's cache is stored.
    file: Option<PathBuf>,
    /// By the number of bindings.
    pub(super) layouts: BTreeMap<usize, BindingLayouts>,
    pub(super) pipelines: BTreeMap<PipelineKey, Pipeline>,
}

/// Code (by its digest), values of specialisation constants, number of bindings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PipelineKey {
    pub(super) code: u128,
    pub(super) specs: Vec<u32>,
    pub(super) bindings: usize,
}

/// First bytes of a file of compiled kernels; after them the length and the checksum of the driver's data.
const MAGIC: &[u8; 8] = b"zbmdvkc1";

impl Pipelines {
    pub(super) fn lock(&self) -> MutexGuard<'_, PipelineStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the driver's cache with what an earlier run has stored for this driver.
    pub(super) fn open_cache(
        &self,
        raw: &ash::Device,
        listed: &Listed,
        folder: Option<&Path>,
    ) -> VkResult<()> {
        let cache_file = folder.map(|folder| folder.join(cache_name(listed)));
        let stored_bytes = cache_file
            .as_deref()
            .and_then(|file| std::fs::read(file).ok());
        let initial_data = stored_bytes
            .as_deref()
            .and_then(unpack_cache)
            .unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(initial_data);
        // SAFETY: the driver checks the data's header itself; `unpack_cache` has checked the data against damage.
        let cache = unsafe { raw.create_pipeline_cache(&info, None) }?;

        let mut store = self.lock();
        store.cache = cache;
        store.file = cache_file;
        Ok(())
    }

    /// Stores compiled kernels for later runs, if there is a folder for them.
    pub(super) fn save_cache(&self, raw: &ash::Device, listed: &Listed) {
        let store = self.lock();
        let Some(file) = &store.file else { return };
        let Some(folder) = file.parent() else { return };
        // SAFETY: the cache is this device's.
        let Ok(data) = (unsafe { raw.get_pipeline_cache_data(store.cache) }) else {
            return;
        };

        // Renamed when it is whole, because another process may read the file.
        let temporary_file = folder.join(format!(".{}.{}", cache_name(listed), std::process::id()));
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&temporary_file, pack_cache(&data)))
            .and_then(|()| std::fs::rename(&temporary_file, file));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary_file);
        }
    }

    /// Destroys everything.
    ///
    /// # Safety
    /// Nothing that was made here is in use.
    pub(super) unsafe fn destroy(&self, raw: &ash::Device) {
        let store = std::mem::take(&mut *self.lock());
        // SAFETY: unused, as the caller promises; each was made on this device, and is destroyed here only.
        unsafe {
            for pipeline in store.pipelines.values() {
                raw.destroy_pipeline(pipeline.raw(), None);
            }
            for layouts in store.layouts.values() {
                raw.destroy_pipeline_layout(layouts.pipeline, None);
                raw.destroy_descriptor_set_layout(layouts.set, None);
            }
            raw.destroy_pipeline_cache(store.cache, None);
        }
    }
}

/// One file for each device and version of its driver.
fn cache_name(listed: &Listed) -> String {
    let driver_bytes = listed.driver_uuid.iter();
    let driver_uuid: String = driver_bytes.map(|byte| format!("{byte:02x}")).collect();
    format!(
        "vulkan-{}-{driver_uuid}-{:08x}.pipelines",
        listed.uuid_text(),
        listed.driver_version
    )
}

/// FNV-1a.
fn checksum(data: &[u8]) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    data.iter().fold(OFFSET_BASIS, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(PRIME)
    })
}

fn pack_cache(data: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.extend((data.len() as u64).to_le_bytes());
    file.extend(checksum(data).to_le_bytes());
    file.extend(data);
    file
}

/// The driver's data, if the file is undamaged.
fn unpack_cache(file: &[u8]) -> Option<&[u8]> {
    let rest = file.strip_prefix(MAGIC)?;
    let (len, rest) = rest.split_first_chunk::<8>()?;
    let (sum, data) = rest.split_first_chunk::<8>()?;
    let is_complete = u64::from_le_bytes(*len) == data.len() as u64;
    (is_complete && u64::from_le_bytes(*sum) == checksum(data)).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_are_not_shown_to_the_driver() {
        let file = pack_cache(b"compiled");
        assert_eq!(unpack_cache(&file), Some(&b"compiled"[..]));
        for len in 0..file.len() {
            assert_eq!(unpack_cache(&file[..len]), None, "cut to {len}");
        }
        for at in 0..file.len() {
            let mut spoiled = file.clone();
            spoiled[at] ^= 1;
            assert_eq!(unpack_cache(&spoiled), None, "byte {at}");
        }
    }
}
