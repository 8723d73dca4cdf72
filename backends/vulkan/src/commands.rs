//! Commands of a calendar with their memory: bound to descriptors, then recorded, with barriers only where data asks for
//! them.
#![expect(unsafe_code, reason = "calls the Vulkan driver")]

use std::collections::BTreeMap;
use std::sync::Arc;

use ash::vk;

use super::device::VulkanDevice;
use super::error::{Fault, Site};
use super::hazards::{HazardTracker, PipelineStages};
use super::memory::Bank;
use super::pipelines::Pipeline;
use zbmd_hal::{BankRange, BoundRun, Command};

/// The stages that a barrier before a command must wait for, if it needs one.
///
/// Kernels count as accessing all that is bound for them, which begins at a multiple of `align` bytes.
fn note_command(
    command: &Command,
    hazards: &mut HazardTracker,
    align: u64,
) -> Option<PipelineStages> {
    let nothing = std::iter::empty::<BankRange>();
    let only = std::iter::once::<BankRange>;
    match command {
        Command::Copy { from, to } => {
            hazards.note_command(only(*from), only(*to), PipelineStages::TRANSFER)
        }
        Command::Zero { to } => hazards.note_command(nothing, only(*to), PipelineStages::TRANSFER),
        Command::Run(run) => {
            let reads = run.ranges(false).map(|range| align_start(range, align));
            let writes = run.ranges(true).map(|range| align_start(range, align));
            hazards.note_command(reads, writes, PipelineStages::COMPUTE)
        }
        Command::Product(..) => {
            unreachable!("`KernelPlan::lacks` keeps products from Vulkan devices")
        }
    }
}

/// The range from the last multiple of `align` bytes on.
fn align_start(range: BankRange, align: u64) -> BankRange {
    BankRange {
        start: range.start / align * align,
        ..range
    }
}

/// A run of a kernel, bound to its memory.
#[derive(Clone, Debug)]
struct BoundDispatch {
    pipeline: Pipeline,
    layout: vk::PipelineLayout,
    /// Number of the descriptor set.
    set: u32,
    groups: u32,
    arguments: Box<[u32]>,
}

/// Runs of kernels that are being bound, and the descriptor sets that they will need.
pub(super) struct DescriptorDraft {
    device: Arc<VulkanDevice>,
    /// By the numbers of the runs.
    dispatches: BTreeMap<u32, BoundDispatch>,
    /// Runs over the same memory share a set.
    set_numbers: BTreeMap<Box<[BankRange]>, u32>,
}

impl DescriptorDraft {
    pub(super) fn new(device: &Arc<VulkanDevice>) -> Self {
        Self {
            device: Arc::clone(device),
            dispatches: BTreeMap::new(),
            set_numbers: BTreeMap::new(),
        }
    }

    /// Binds a run to its pipeline.
    pub(super) fn bind_run(&mut self, pipeline: Pipeline, run: &BoundRun) -> Result<(), Fault> {
        let limits = self.device.limits;
        let mut arguments = vec![run.firings as u32];
        let mut bound_ranges = Vec::with_capacity(run.operands.len());
        for operand in &run.operands {
            // Bound from a multiple of the device's alignment on; the rest is an offset in elements.
            let bound = align_start(operand.range, limits.align_bytes);
            let offset_bytes = operand.range.start - bound.start;
            arguments.push((offset_bytes / operand.mem.bytes()) as u32);
            bound_ranges.push(bound);
        }

        let next_set = self.set_numbers.len() as u32;
        let set = *self
            .set_numbers
            .entry(bound_ranges.into())
            .or_insert(next_set);
        let dispatch = BoundDispatch {
            pipeline,
            layout: self.device.layouts(run.operands.len())?.pipeline,
            set,
            groups: run.groups.clamp(1, limits.groups.into()) as u32,
            arguments: arguments.into(),
        };
        self.dispatches.insert(run.number, dispatch);
        Ok(())
    }

    /// Makes the descriptor sets.
    pub(super) fn finish(self, banks: &[Arc<Bank>]) -> Result<DescriptorSets, Fault> {
        // Every run of the calendar is bound, so their numbers are the indices of a list.
        let run_numbers = self.dispatches.keys().copied();
        assert!(
            run_numbers.eq(0..self.dispatches.len() as u32),
            "runs are missing"
        );
        let mut bound = DescriptorSets {
            dispatches: self.dispatches.into_values().collect(),
            pool: vk::DescriptorPool::null(),
            sets: Vec::new(),
            _banks: banks.to_vec(),
            device: Arc::clone(&self.device),
        };
        if self.set_numbers.is_empty() {
            return Ok(bound);
        }

        let mut set_ranges: Vec<(u32, Box<[BankRange]>)> = self
            .set_numbers
            .into_iter()
            .map(|(ranges, number)| (number, ranges))
            .collect();
        set_ranges.sort_unstable();
        bound.allocate_sets(set_ranges.iter().map(|(_, ranges)| ranges.len()))?;
        for (index, (_, ranges)) in set_ranges.iter().enumerate() {
            bound.write_set(index, ranges, banks);
        }
        Ok(bound)
    }
}

/// Runs bound to descriptor sets, which are all made at once. They hold the memory that the sets name.
pub(super) struct DescriptorSets {
    /// By the numbers of the runs.
    dispatches: Vec<BoundDispatch>,
    pool: vk::DescriptorPool,
    sets: Vec<vk::DescriptorSet>,
    _banks: Vec<Arc<Bank>>,
    device: Arc<VulkanDevice>,
}

impl DescriptorSets {
    /// Allocates a set for each of these numbers of bindings.
    fn allocate_sets(
        &mut self,
        binding_counts: impl ExactSizeIterator<Item = usize> + Clone,
    ) -> Result<(), Fault> {
        let device = &self.device;
        let descriptor_count: usize = binding_counts.clone().sum();
        let sizes = [vk::DescriptorPoolSize {
            ty: vk::DescriptorType::STORAGE_BUFFER,
            descriptor_count: descriptor_count.max(1) as u32,
        }];
        let info = vk::DescriptorPoolCreateInfo::default()
            .max_sets(binding_counts.len() as u32)
            .pool_sizes(&sizes);
        // SAFETY: plain data that outlives the call.
        self.pool = device.call(Site::CreateSets, || unsafe {
            device.raw.create_descriptor_pool(&info, None)
        })?;

        let mut layouts = Vec::with_capacity(binding_counts.len());
        for bindings in binding_counts {
            layouts.push(device.layouts(bindings)?.set);
        }
        let info = vk::DescriptorSetAllocateInfo::default()
            .descriptor_pool(self.pool)
            .set_layouts(&layouts);
        // SAFETY: pool and layouts are this device's; the pool was made for exactly these sets.
        self.sets = device.call(Site::AllocateSets, || unsafe {
            device.raw.allocate_descriptor_sets(&info)
        })?;
        Ok(())
    }

    /// Writes the ranges of a set that no command uses yet.
    fn write_set(&mut self, index: usize, ranges: &[BankRange], banks: &[Arc<Bank>]) {
        let buffer_infos: Vec<_> = ranges
            .iter()
            .map(|range| vk::DescriptorBufferInfo {
                buffer: banks[range.bank as usize].buffer,
                offset: range.start,
                range: range.len(),
            })
            .collect();
        let writes: Vec<_> = buffer_infos
            .chunks(1)
            .enumerate()
            .map(|(binding, info)| {
                vk::WriteDescriptorSet::default()
                    .dst_set(self.sets[index])
                    .dst_binding(binding as u32)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(info)
            })
            .collect();
        // SAFETY: the set was allocated above for as many bindings, and no command uses it yet; `bind_run` has aligned
        // the ranges, `bind_call` has checked their lengths, and the banks are held by these sets.
        unsafe { self.device.raw.update_descriptor_sets(&writes, &[]) };
    }
}

impl Drop for DescriptorSets {
    fn drop(&mut self) {
        if self.device.is_alive() {
            // SAFETY: made by `allocate_sets`, or null, and destroyed here only. Queues drop their sets after they have
            // waited for their last submission.
            unsafe { self.device.raw.destroy_descriptor_pool(self.pool, None) };
        }
    }
}

/// What was bound last in a command buffer.
#[derive(Default)]
struct BoundState {
    pipeline: Option<vk::Pipeline>,
    set: Option<u32>,
}

/// A memory barrier's stages and accesses on one side.
#[derive(Clone, Copy)]
struct BarrierScope {
    stages: vk::PipelineStageFlags,
    accesses: vk::AccessFlags,
}

/// A pool of command buffers, each recorded as a whole.
pub(super) struct CommandPool {
    raw: vk::CommandPool,
    buffers: Vec<vk::CommandBuffer>,
    device: Arc<VulkanDevice>,
}

impl CommandPool {
    pub(super) fn new(device: &Arc<VulkanDevice>) -> Result<Self, Fault> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(device.family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the family is the device's.
        let raw = device.call(Site::CreateCommands, || unsafe {
            device.raw.create_command_pool(&info, None)
        })?;
        Ok(Self {
            raw,
            buffers: Vec::new(),
            device: Arc::clone(device),
        })
    }

    /// Adds a command buffer; its index.
    pub(super) fn add_buffer(&mut self) -> Result<usize, Fault> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.raw)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool is this device's.
        let allocated = self.device.call(Site::AllocateCommands, || unsafe {
            self.device.raw.allocate_command_buffers(&info)
        })?;
        self.buffers.extend(allocated);
        Ok(self.buffers.len() - 1)
    }

    /// Records commands, replacing what the buffer held; the number of barriers between them.
    ///
    /// # Safety
    /// The buffer is not pending. Sets and banks, which are those that the commands name by numbers, exist until its
    /// last submission has ended.
    pub(super) unsafe fn record<'c>(
        &self,
        index: usize,
        commands: impl Iterator<Item = &'c Command>,
        sets: &DescriptorSets,
        banks: &[Arc<Bank>],
        hazards: &mut HazardTracker,
    ) -> Result<usize, Fault> {
        let device = &self.device;
        let buffer = self.buffers[index];
        let info = vk::CommandBufferBeginInfo::default();
        // SAFETY: the buffer is this pool's, which resets buffers when they begin anew, and not pending, as the caller
        // promises.
        device.call(Site::Begin, || unsafe {
            device.raw.begin_command_buffer(buffer, &info)
        })?;

        // For what earlier submissions and the host wrote: submissions themselves are not ordered.
        self.barrier(buffer, PipelineStages::ALL);
        hazards.clear();
        let mut bound = BoundState::default();
        let mut barrier_count = 0;
        for command in commands {
            if let Some(wait_for) = note_command(command, hazards, device.limits.align_bytes) {
                if device.keeps_order() {
                    self.barrier(buffer, wait_for);
                }
                barrier_count += 1;
            }
            // SAFETY: the buffer is recording; sets and banks exist as the caller promises.
            unsafe { self.record_command(buffer, command, sets, banks, &mut bound) };
        }

        self.host_barrier(buffer);
        // SAFETY: recording began above.
        device.call(Site::End, || unsafe {
            device.raw.end_command_buffer(buffer)
        })?;
        Ok(barrier_count)
    }

    /// # Safety
    /// The buffer is recording. Sets and banks exist until its last submission has ended.
    unsafe fn record_command(
        &self,
        buffer: vk::CommandBuffer,
        command: &Command,
        sets: &DescriptorSets,
        banks: &[Arc<Bank>],
        bound: &mut BoundState,
    ) {
        let raw = &self.device.raw;
        let raw_buffer = |range: &BankRange| {
            let bank = &banks[range.bank as usize];
            assert!(range.end <= bank.bytes, "{range:?} of {} bytes", bank.bytes);
            bank.buffer
        };
        match command {
            Command::Copy { from, to } => {
                let source = raw_buffer(from);
                let target = raw_buffer(to);
                let region = [vk::BufferCopy {
                    src_offset: from.start,
                    dst_offset: to.start,
                    size: from.len().min(to.len()),
                }];
                // SAFETY: the buffer is recording and the banks exist, as the caller promises; `raw_buffer` has checked
                // the ranges, which do not overlap.
                unsafe { raw.cmd_copy_buffer(buffer, source, target, &region) };
            }
            Command::Zero { to } => {
                let target = raw_buffer(to);
                // SAFETY: as for a copy; banks are whole words long.
                unsafe { raw.cmd_fill_buffer(buffer, target, to.start, to.len(), 0) };
            }
            Command::Run(run) => {
                let dispatch = &sets.dispatches[run.number as usize];
                // SAFETY: the buffer is recording and the sets exist, as the caller promises.
                unsafe { self.record_dispatch(buffer, dispatch, sets, bound) };
            }
            Command::Product(..) => unreachable!("`note_command` has rejected it"),
        }
    }

    /// # Safety
    /// The buffer is recording. The sets exist until its last submission has ended.
    unsafe fn record_dispatch(
        &self,
        buffer: vk::CommandBuffer,
        dispatch: &BoundDispatch,
        sets: &DescriptorSets,
        bound: &mut BoundState,
    ) {
        let raw = &self.device.raw;
        let bind_point = vk::PipelineBindPoint::COMPUTE;
        let arguments: &[u8] = bytemuck::cast_slice(&dispatch.arguments);
        let pipeline = dispatch.pipeline.raw();
        // SAFETY: the buffer is recording and the sets exist, as the caller promises; pipelines and layouts exist as long
        // as the device. The layout is the pipeline's, set and arguments were made for it by `bind_run`, which has also
        // limited the groups to the device's number.
        unsafe {
            if bound.pipeline != Some(pipeline) {
                raw.cmd_bind_pipeline(buffer, bind_point, pipeline);
                bound.pipeline = Some(pipeline);
            }
            if bound.set != Some(dispatch.set) {
                let set = [sets.sets[dispatch.set as usize]];
                raw.cmd_bind_descriptor_sets(buffer, bind_point, dispatch.layout, 0, &set, &[]);
                bound.set = Some(dispatch.set);
            }
            let stage = vk::ShaderStageFlags::COMPUTE;
            raw.cmd_push_constants(buffer, dispatch.layout, stage, 0, arguments);
            raw.cmd_dispatch(buffer, dispatch.groups, 1, 1);
        }
    }

    /// Everything after waits for what `stages` have done before, and sees it.
    fn barrier(&self, buffer: vk::CommandBuffer, stages: PipelineStages) {
        let mut before = BarrierScope {
            stages: vk::PipelineStageFlags::empty(),
            accesses: vk::AccessFlags::empty(),
        };
        if stages.compute {
            before.stages |= vk::PipelineStageFlags::COMPUTE_SHADER;
            before.accesses |= vk::AccessFlags::SHADER_WRITE;
        }
        if stages.transfer {
            before.stages |= vk::PipelineStageFlags::TRANSFER;
            before.accesses |= vk::AccessFlags::TRANSFER_WRITE;
        }
        let after = BarrierScope {
            stages: vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER,
            accesses: vk::AccessFlags::SHADER_READ
                | vk::AccessFlags::SHADER_WRITE
                | vk::AccessFlags::TRANSFER_READ
                | vk::AccessFlags::TRANSFER_WRITE,
        };
        self.memory_barrier(buffer, before, after);
    }

    /// The host sees what was written for it once the submission has ended.
    fn host_barrier(&self, buffer: vk::CommandBuffer) {
        let before = BarrierScope {
            stages: vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER,
            accesses: vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE,
        };
        let after = BarrierScope {
            stages: vk::PipelineStageFlags::HOST,
            accesses: vk::AccessFlags::HOST_READ,
        };
        self.memory_barrier(buffer, before, after);
    }

    fn memory_barrier(&self, buffer: vk::CommandBuffer, before: BarrierScope, after: BarrierScope) {
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(before.accesses)
            .dst_access_mask(after.accesses)];
        let flags = vk::DependencyFlags::empty();
        // SAFETY: `record` alone calls this, between the beginning and the end of recording; stages and accesses fit
        // each other and a compute queue.
        unsafe {
            self.device.raw.cmd_pipeline_barrier(
                buffer,
                before.stages,
                after.stages,
                flags,
                &barrier,
                &[],
                &[],
            );
        }
    }

    /// Puts a buffer into the device's queue; the timeline reaches `value` when it has ended.
    ///
    /// # Safety
    /// The buffer is recorded and not pending; pool, timeline and what the buffer names exist until it has ended.
    pub(super) unsafe fn submit(
        &self,
        index: usize,
        timeline: &Timeline,
        value: u64,
    ) -> Result<(), Fault> {
        // SAFETY: the buffer is of this device's pool; the rest is as the caller promises.
        unsafe { self.device.submit(self.buffers[index], timeline.raw, value) }
    }
}

impl Drop for CommandPool {
    fn drop(&mut self) {
        if self.device.is_alive() {
            // SAFETY: made by `new` and destroyed here only, with its buffers. Queues drop their pool after they have
            // waited for their last submission.
            unsafe { self.device.raw.destroy_command_pool(self.raw, None) };
        }
    }
}

/// Runs commands once and waits for them.
pub(super) fn run_once(
    device: &Arc<VulkanDevice>,
    commands: &[Command],
    sets: &DescriptorSets,
    banks: &[Arc<Bank>],
    timeout_ns: u64,
) -> Result<(), Fault> {
    let mut pool = CommandPool::new(device)?;
    let buffer = pool.add_buffer()?;
    let mut hazards = HazardTracker::default();
    // SAFETY: the buffer is new; sets and banks are borrowed until it has ended.
    unsafe { pool.record(buffer, commands.iter(), sets, banks, &mut hazards) }?;

    let timeline = Timeline::new(device)?;
    // SAFETY: the buffer was recorded above, and everything exists until the wait below: where that fails, the device is
    // dead, and nothing is destroyed.
    unsafe { pool.submit(buffer, &timeline, 1) }?;
    timeline.wait(1, timeout_ns)
}

/// A semaphore that counts submissions.
pub(super) struct Timeline {
    raw: vk::Semaphore,
    device: Arc<VulkanDevice>,
}

impl Timeline {
    pub(super) fn new(device: &Arc<VulkanDevice>) -> Result<Self, Fault> {
        let mut kind =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: timeline semaphores are enabled on every open device.
        let raw = device.call(Site::CreateSemaphore, || unsafe {
            device.raw.create_semaphore(&info, None)
        })?;
        Ok(Self {
            raw,
            device: Arc::clone(device),
        })
    }

    /// Waits until `value` submissions have ended.
    ///
    /// # Errors
    /// [`Fault::Hung`] after `timeout_ns`.
    pub(super) fn wait(&self, value: u64, timeout_ns: u64) -> Result<(), Fault> {
        let device = &self.device;
        let semaphores = [self.raw];
        let values = [value];
        let info = vk::SemaphoreWaitInfo::default()
            .semaphores(&semaphores)
            .values(&values);
        let waited = device.call(Site::Wait, || {
            // SAFETY: the semaphore is this device's timeline.
            match unsafe { device.raw.wait_semaphores(&info, timeout_ns) } {
                Err(vk::Result::TIMEOUT) => Ok(false),
                other => other.map(|()| true),
            }
        });
        let has_ended = match waited {
            // Only injected errors make the call itself return this.
            Err(Fault::Other {
                site: Site::Wait,
                result,
            }) if result == "TIMEOUT" => false,
            other => other?,
        };
        if has_ended {
            return Ok(());
        }

        let fault = Fault::Hung {
            value,
            reached: self.ended_submissions()?,
            waited_ms: timeout_ns / 1_000_000,
        };
        device.note_fault(&fault);
        Err(fault)
    }

    fn ended_submissions(&self) -> Result<u64, Fault> {
        // SAFETY: the semaphore is this device's timeline.
        self.device.call(Site::Counter, || unsafe {
            self.device.raw.get_semaphore_counter_value(self.raw)
        })
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        if self.device.is_alive() {
            // SAFETY: made by `new` and destroyed here only. `run_once` and queues wait for the last submission that
            // signals it before they drop it.
            unsafe { self.device.raw.destroy_semaphore(self.raw, None) };
        }
    }
}
