//! Kernels made ready: modules, layouts, pipelines, and what of them is stored on disk.
#![expect(unsafe_code, reason = "calls the Vulkan driver")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ash::vk;

use super::device::VulkanDevice;
use super::error::{Fault, Site};
use zbmd_gpu_ir::emit::modules::{self, Codes};
use zbmd_gpu_ir::lang::Kernel;

/// A pipeline of a device, which exists as long as the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pipeline(vk::Pipeline);

impl Pipeline {
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

#[derive(Default)]
struct PipelineStore {
    cache: vk::PipelineCache,
    file: Option<PathBuf>,
    layouts: BTreeMap<usize, BindingLayouts>,
    pipelines: BTreeMap<PipelineKey, Pipeline>,
}

/// Code (by its digest), values of specialisation constants, number of bindings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PipelineKey {
    code: u128,
    specs: Vec<u32>,
    bindings: usize,
}

/// First bytes of a file of compiled kernels; after them the length and the checksum of the driver's data.
const MAGIC: &[u8; 8] = b"zbmdvkc1";

impl Pipelines {
    fn lock(&self) -> MutexGuard<'_, PipelineStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

impl VulkanDevice {
    /// Starts the driver's cache with what an earlier run has stored for this driver.
    pub(super) fn open_cache(&self, folder: Option<&Path>) -> Result<(), Fault> {
        let file = folder.map(|folder| folder.join(self.cache_name()));
        let stored = file.as_deref().and_then(|file| std::fs::read(file).ok());
        let data = stored.as_deref().and_then(unpack_cache).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
        // SAFETY: the driver checks the data's header itself; `unpack_cache` has checked the data against damage.
        let cache = self.call(Site::CreateCache, || unsafe {
            self.raw.create_pipeline_cache(&info, None)
        })?;

        let mut store = self.pipelines.lock();
        store.cache = cache;
        store.file = file;
        Ok(())
    }

    /// One file for each device and version of its driver.
    fn cache_name(&self) -> String {
        let listed = self.listed();
        let driver_bytes = listed.driver_uuid.iter();
        let driver: String = driver_bytes.map(|byte| format!("{byte:02x}")).collect();
        format!(
            "vulkan-{}-{driver}-{:08x}.pipelines",
            listed.uuid_text(),
            listed.driver_version
        )
    }

    /// Stores compiled kernels for later runs, where the device was opened with a folder for them. A failure costs later
    /// runs time and nothing else.
    pub fn save_cache(&self) {
        let store = self.pipelines.lock();
        let Some(file) = &store.file else { return };
        let Some(folder) = file.parent() else { return };
        // SAFETY: the cache is this device's.
        let Ok(data) = (unsafe { self.raw.get_pipeline_cache_data(store.cache) }) else {
            return;
        };

        // Renamed when it is whole, because another process may read the file.
        let temporary = folder.join(format!(".{}.{}", self.cache_name(), std::process::id()));
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&temporary, pack_cache(&data)))
            .and_then(|()| std::fs::rename(&temporary, file));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
    }

    /// Layouts for kernels with so many bindings.
    pub(super) fn layouts(&self, bindings: usize) -> Result<BindingLayouts, Fault> {
        let mut store = self.pipelines.lock();
        if let Some(layouts) = store.layouts.get(&bindings) {
            return Ok(*layouts);
        }

        let set_bindings: Vec<_> = (0..bindings as u32)
            .map(|binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&set_bindings);
        // SAFETY: plain data that outlives the call.
        let set = self.call(Site::CreateSetLayout, || unsafe {
            self.raw.create_descriptor_set_layout(&info, None)
        })?;

        let arguments = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(4 * (1 + bindings as u32))];
        let sets = [set];
        let info = vk::PipelineLayoutCreateInfo::default()
            .set_layouts(&sets)
            .push_constant_ranges(&arguments);
        // SAFETY: plain data that outlives the call; `KernelPlan::lacks` keeps kernels with more bindings than the device
        // supports away.
        let created = self.call(Site::CreateLayout, || unsafe {
            self.raw.create_pipeline_layout(&info, None)
        });
        let pipeline = created.inspect_err(|_| {
            // SAFETY: made above, and used by nothing.
            unsafe { self.raw.destroy_descriptor_set_layout(set, None) }
        })?;

        let layouts = BindingLayouts { set, pipeline };
        store.layouts.insert(bindings, layouts);
        Ok(layouts)
    }

    fn pipeline_key(&self, kernel: &Kernel) -> PipelineKey {
        PipelineKey {
            code: modules::module_key(kernel, self.floats.of_kernel(kernel)),
            specs: kernel.specs.clone(),
            bindings: kernel.bindings.len(),
        }
    }

    /// The pipelines of kernels, in order; those that do not exist yet are made now, on all cores.
    pub(super) fn pipelines<'k>(
        &self,
        kernels: impl IntoIterator<Item = &'k Kernel>,
        codes: &Codes,
    ) -> Result<Vec<Pipeline>, Fault> {
        let keyed: Vec<(PipelineKey, &Kernel)> = kernels
            .into_iter()
            .map(|kernel| (self.pipeline_key(kernel), kernel))
            .collect();
        let missing: BTreeMap<&PipelineKey, &Kernel> = {
            let store = self.pipelines.lock();
            let new = keyed
                .iter()
                .filter(|(key, _)| !store.pipelines.contains_key(key));
            new.map(|(key, kernel)| (key, *kernel)).collect()
        };
        let missing: Vec<(&PipelineKey, &Kernel)> = missing.into_iter().collect();
        for (key, _) in &missing {
            self.layouts(key.bindings)?;
        }
        self.compile_all(&missing, codes)?;

        let store = self.pipelines.lock();
        let pipelines = keyed.iter().map(|(key, _)| store.pipelines[key]);
        Ok(pipelines.collect())
    }

    /// Makes pipelines on all cores, and stores them.
    fn compile_all(&self, missing: &[(&PipelineKey, &Kernel)], codes: &Codes) -> Result<(), Fault> {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        let share = missing.len().div_ceil(threads).max(1);
        let results: Vec<Result<(), Fault>> = std::thread::scope(|scope| {
            let workers: Vec<_> = missing
                .chunks(share)
                .map(|part| scope.spawn(move || self.compile_part(part, codes)))
                .collect();
            workers
                .into_iter()
                .map(|worker| {
                    let joined = worker.join();
                    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        });
        results.into_iter().collect()
    }

    /// Makes pipelines one by one, and stores them.
    fn compile_part(&self, part: &[(&PipelineKey, &Kernel)], codes: &Codes) -> Result<(), Fault> {
        for (key, kernel) in part {
            let words = codes.module_words(key.code, kernel, self.floats.of_kernel(kernel));
            let pipeline = self.compile(key, &words)?;
            let mut store = self.pipelines.lock();
            store.pipelines.insert((*key).clone(), pipeline);
        }
        Ok(())
    }

    fn compile(&self, key: &PipelineKey, words: &[u32]) -> Result<Pipeline, Fault> {
        let layout = self.layouts(key.bindings)?.pipeline;
        let cache = self.pipelines.lock().cache;
        let info = vk::ShaderModuleCreateInfo::default().code(words);
        // SAFETY: the printer makes valid modules (the tests have them all checked), of capabilities that the device
        // has; a bundle has the printer's modules, unless it was forged (see `codes`).
        let module = self.call(Site::CreateModule, || unsafe {
            self.raw.create_shader_module(&info, None)
        })?;

        let entries: Vec<_> = (0..key.specs.len() as u32)
            .map(|index| vk::SpecializationMapEntry {
                constant_id: index,
                offset: 4 * index,
                size: 4,
            })
            .collect();
        let spec_bytes: &[u8] = bytemuck::cast_slice(&key.specs);
        let specialization = vk::SpecializationInfo::default()
            .map_entries(&entries)
            .data(spec_bytes);
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&specialization);
        let infos = [vk::ComputePipelineCreateInfo::default()
            .stage(stage)
            .layout(layout)];
        // SAFETY: module, layout and cache are this device's; all pointers outlive the call; the cache locks itself.
        let created = self.call(Site::CreatePipeline, || unsafe {
            let created = self.raw.create_compute_pipelines(cache, &infos, None);
            created.map_err(|(_, result)| result)
        });
        // SAFETY: made above, and pipelines do not need their module any more.
        unsafe { self.raw.destroy_shader_module(module, None) };
        Ok(Pipeline(created?[0]))
    }
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
