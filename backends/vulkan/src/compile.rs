//! Kernels made ready for a device: modules, layouts and pipelines, each made once.
#![expect(unsafe_code, reason = "calls the Vulkan driver")]

use std::collections::BTreeMap;

use ash::vk;

use super::device::VulkanDevice;
use super::error::{Fault, Site};
use super::pipelines::{BindingLayouts, Pipeline, PipelineKey};
use zbmd_gpu_ir::emit::modules::{self, Codes};
use zbmd_gpu_ir::lang::Kernel;

impl VulkanDevice {
    /// Stores compiled kernels for later runs, where the device was opened with a folder for them. A failure costs later
    /// runs time and nothing else.
    pub fn save_cache(&self) {
        self.pipelines.save_cache(&self.raw, self.listed());
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
        Ok(Pipeline::new(created?[0]))
    }
}
