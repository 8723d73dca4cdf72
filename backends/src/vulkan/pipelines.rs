//! Kernels made ready: modules, layouts, pipelines, and what of them is kept on disk.
#![expect(unsafe_code, reason = "calls the Vulkan driver")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ash::vk;

use super::codes::{self, Codes};
use super::device::Device;
use super::error::{Fault, Site};
use crate::kernels::lang::Kernel;

/// Layouts of kernels with a given number of bindings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layouts {
    pub(super) set: vk::DescriptorSetLayout,
    pub(super) pipeline: vk::PipelineLayout,
}

/// All pipelines of a device, made once each.
#[derive(Default)]
pub(super) struct Pipelines(Mutex<Made>);

#[derive(Default)]
struct Made {
    cache: vk::PipelineCache,
    file: Option<PathBuf>,
    layouts: BTreeMap<usize, Layouts>,
    pipelines: BTreeMap<Key, vk::Pipeline>,
}

/// Code (by its key), values of specialisation constants, number of bindings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    code: u128,
    specs: Vec<u32>,
    bindings: usize,
}

/// First bytes of a file of compiled kernels; after them the length and the checksum of the driver's data.
const MAGIC: &[u8; 8] = b"zbmdvkc1";

impl Pipelines {
    fn lock(&self) -> MutexGuard<'_, Made> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives everything back.
    ///
    /// # Safety
    /// Nothing that was made here is in use.
    pub(super) unsafe fn destroy(&self, raw: &ash::Device) {
        let made = std::mem::take(&mut *self.lock());
        // SAFETY: promised by the caller; each was made by this device and is destroyed once.
        unsafe {
            made.pipelines
                .values()
                .for_each(|p| raw.destroy_pipeline(*p, None));
            for layouts in made.layouts.values() {
                raw.destroy_pipeline_layout(layouts.pipeline, None);
                raw.destroy_descriptor_set_layout(layouts.set, None);
            }
            raw.destroy_pipeline_cache(made.cache, None);
        }
    }
}

impl Device {
    /// Starts the driver's cache with what an earlier run has left for this driver.
    pub(super) fn open_cache(&self, folder: Option<&Path>) -> Result<(), Fault> {
        let file = folder.map(|f| f.join(self.cache_name()));
        let data = file.as_deref().and_then(|f| std::fs::read(f).ok());
        let data = data.as_deref().and_then(unpack).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
        // SAFETY: the driver checks the data's header itself; the checksum keeps damage away from it.
        let cache = self.call(Site::CreateCache, || unsafe {
            self.raw.create_pipeline_cache(&info, None)
        })?;
        let mut made = self.pipelines.lock();
        (made.cache, made.file) = (cache, file);
        Ok(())
    }

    /// One file for each device and version of its driver.
    fn cache_name(&self) -> String {
        let listed = self.listed();
        let driver: String = listed
            .driver_uuid
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        format!(
            "vulkan-{}-{driver}-{:08x}.pipelines",
            listed.uuid_text(),
            listed.driver_version
        )
    }

    /// Keeps compiled kernels for later runs, where the device was opened with a place for them. Not being able to
    /// costs time only.
    pub fn save_cache(&self) {
        let made = self.pipelines.lock();
        let Some(file) = &made.file else { return };
        // SAFETY: the cache is this device's.
        let Ok(data) = (unsafe { self.raw.get_pipeline_cache_data(made.cache) }) else {
            return;
        };
        let Some(folder) = file.parent() else { return };
        let temporary = folder.join(format!(".{}.{}", self.cache_name(), std::process::id()));
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&temporary, pack(&data)))
            .and_then(|()| std::fs::rename(&temporary, file));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
    }

    /// Layouts for kernels with so many bindings.
    pub(super) fn layouts(&self, bindings: usize) -> Result<Layouts, Fault> {
        let mut made = self.pipelines.lock();
        if let Some(layouts) = made.layouts.get(&bindings) {
            return Ok(*layouts);
        }
        let slots: Vec<_> = (0..bindings as u32)
            .map(|i| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(i)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&slots);
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
        // SAFETY: as above; the caller's kernels fit the device's limits.
        let pipeline = self.call(Site::CreateLayout, || unsafe {
            self.raw.create_pipeline_layout(&info, None)
        });
        let pipeline = pipeline.inspect_err(|_| {
            // SAFETY: made above, and used by nothing.
            unsafe { self.raw.destroy_descriptor_set_layout(set, None) }
        })?;
        let layouts = Layouts { set, pipeline };
        made.layouts.insert(bindings, layouts);
        Ok(layouts)
    }

    fn key(&self, kernel: &Kernel) -> Key {
        Key {
            code: codes::key(kernel, self.floats.of(kernel)),
            specs: kernel.specs.clone(),
            bindings: kernel.bindings.len(),
        }
    }

    /// Makes the pipelines of kernels, for later.
    pub(crate) fn warm<'k>(
        &self,
        kernels: impl IntoIterator<Item = &'k Kernel>,
        program: &zbmd_ir::Program,
    ) -> Result<(), Fault> {
        self.pipelines(kernels, &Codes::of(program)).map(drop)
    }

    /// The pipelines of kernels, in order; those not made before are made now, on all cores.
    pub(super) fn pipelines<'k>(
        &self,
        kernels: impl IntoIterator<Item = &'k Kernel>,
        codes: &Codes,
    ) -> Result<Vec<vk::Pipeline>, Fault> {
        let kernels: Vec<(Key, &Kernel)> = kernels.into_iter().map(|k| (self.key(k), k)).collect();
        let missing: BTreeMap<&Key, &Kernel> = {
            let made = self.pipelines.lock();
            let new = kernels
                .iter()
                .filter(|(key, _)| !made.pipelines.contains_key(key));
            new.map(|(key, kernel)| (key, *kernel)).collect()
        };
        let missing: Vec<(&Key, &Kernel)> = missing.into_iter().collect();
        for (key, _) in &missing {
            self.layouts(key.bindings)?;
        }
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let share = missing.len().div_ceil(threads).max(1);
        let compile = |part: &[(&Key, &Kernel)]| -> Result<Vec<vk::Pipeline>, Fault> {
            let words = |kernel: &Kernel, key| codes.words(key, kernel, self.floats.of(kernel));
            part.iter()
                .map(|(key, kernel)| self.compile(key, &words(kernel, key.code)))
                .collect()
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let parts: Vec<_> = missing
                .chunks(share)
                .map(|part| (part, scope.spawn(move || compile(part))))
                .collect();
            let joined = parts.into_iter().map(|(keys, part)| (keys, part.join()));
            joined.collect()
        });
        let mut fault = None;
        for (part, result) in results {
            match result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok(pipelines) => {
                    let new = part.iter().map(|(key, _)| (*key).clone()).zip(pipelines);
                    self.pipelines.lock().pipelines.extend(new);
                }
                Err(e) => fault = Some(e),
            }
        }
        if let Some(fault) = fault {
            return Err(fault);
        }
        let made = self.pipelines.lock();
        Ok(kernels.iter().map(|(key, _)| made.pipelines[key]).collect())
    }

    fn compile(&self, key: &Key, words: &[u32]) -> Result<vk::Pipeline, Fault> {
        let layout = self.layouts(key.bindings)?.pipeline;
        let cache = self.pipelines.lock().cache;
        let info = vk::ShaderModuleCreateInfo::default().code(words);
        // SAFETY: the printer makes valid modules (the tests have them all checked), of capabilities that the device
        // has; a bundle has the printer's, unless somebody forged it (see `codes`).
        let module = self.call(Site::CreateModule, || unsafe {
            self.raw.create_shader_module(&info, None)
        })?;
        let entries: Vec<_> = (0..key.specs.len() as u32)
            .map(|i| vk::SpecializationMapEntry {
                constant_id: i,
                offset: 4 * i,
                size: 4,
            })
            .collect();
        let data: &[u8] = bytemuck::cast_slice(&key.specs);
        let special = vk::SpecializationInfo::default()
            .map_entries(&entries)
            .data(data);
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&special);
        let infos = [vk::ComputePipelineCreateInfo::default()
            .stage(stage)
            .layout(layout)];
        // SAFETY: all objects are this device's; all pointers outlive the call; the cache locks itself.
        let made = self.call(Site::CreatePipeline, || unsafe {
            let made = self.raw.create_compute_pipelines(cache, &infos, None);
            made.map_err(|(_, result)| result)
        });
        // SAFETY: pipelines do not need their module any more.
        unsafe { self.raw.destroy_shader_module(module, None) };
        Ok(made?[0])
    }
}

/// FNV-1a.
fn checksum(data: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    data.iter().fold(start, |sum, b| {
        (sum ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn pack(data: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.extend((data.len() as u64).to_le_bytes());
    file.extend(checksum(data).to_le_bytes());
    file.extend(data);
    file
}

/// The driver's data, if the file is whole.
fn unpack(file: &[u8]) -> Option<&[u8]> {
    let rest = file.strip_prefix(MAGIC)?;
    let (len, rest) = rest.split_first_chunk::<8>()?;
    let (sum, data) = rest.split_first_chunk::<8>()?;
    let whole = u64::from_le_bytes(*len) == data.len() as u64;
    (whole && u64::from_le_bytes(*sum) == checksum(data)).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_are_not_shown_to_the_driver() {
        let file = pack(b"compiled");
        assert_eq!(unpack(&file), Some(&b"compiled"[..]));
        for len in 0..file.len() {
            assert_eq!(unpack(&file[..len]), None, "cut to {len}");
        }
        for at in 0..file.len() {
            let mut spoiled = file.clone();
            spoiled[at] ^= 1;
            assert_eq!(unpack(&spoiled), None, "byte {at}");
        }
    }
}
