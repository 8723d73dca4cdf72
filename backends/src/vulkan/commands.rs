//! Commands of a calendar with their memory: bound to descriptors, then recorded, barriers only where data asks for
//! them.
#![expect(unsafe_code, reason = "calls the Vulkan driver")]

use std::collections::BTreeMap;
use std::sync::Arc;

use ash::vk;

use super::device::Device;
use super::error::{Fault, Site};
use super::hazards::{Hazards, Stages};
use super::memory::Bank;
use crate::replay::{Command, Range, Run};

/// The stages that a barrier before a command must wait for, if it needs one.
///
/// Kernels count as touching all that they are given, which begins at a multiple of `align` bytes.
fn note(command: &Command, hazards: &mut Hazards, align: u64) -> Option<Stages> {
    let transfer = Stages {
        compute: false,
        transfer: true,
    };
    match command {
        Command::Copy { from, to } => {
            hazards.note([*from].into_iter(), [*to].into_iter(), transfer)
        }
        Command::Zero { to } => hazards.note([].into_iter(), [*to].into_iter(), transfer),
        Command::Run(run) => {
            let given = move |r: Range| Range {
                start: r.start / align * align,
                ..r
            };
            let of = |writes: bool| {
                run.operands
                    .iter()
                    .filter(move |r| r.2 == writes)
                    .map(move |(r, ..)| given(*r))
            };
            hazards.note(
                of(false),
                of(true),
                Stages {
                    compute: true,
                    transfer: false,
                },
            )
        }
        Command::Product(..) => unreachable!("no plan with products fits a Vulkan device"),
    }
}

/// A run of a kernel, bound to its memory.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    pipeline: vk::Pipeline,
    layout: vk::PipelineLayout,
    /// Number of the descriptor set.
    set: u32,
    groups: u32,
    arguments: Box<[u32]>,
}

/// Commands in the making, and the descriptor sets that they will need.
pub(super) struct Draft {
    device: Arc<Device>,
    sets: BTreeMap<Box<[Range]>, u32>,
}

impl Draft {
    pub(super) fn new(device: &Arc<Device>) -> Self {
        Self {
            device: Arc::clone(device),
            sets: BTreeMap::new(),
        }
    }

    /// A run with its pipeline.
    pub(super) fn bind(&mut self, pipeline: vk::Pipeline, run: &Run) -> Result<Bound, Fault> {
        let limits = self.device.limits;
        let mut arguments = vec![run.firings as u32];
        let mut key = Vec::with_capacity(run.operands.len());
        for &(range, mem, _) in &run.operands {
            // What a kernel is given begins at a multiple of the device's own; the rest is an offset.
            let start = range.start / limits.align_bytes * limits.align_bytes;
            arguments.push(((range.start - start) / mem.bytes()) as u32);
            key.push(Range { start, ..range });
        }
        let next = self.sets.len() as u32;
        let set = *self.sets.entry(key.into()).or_insert(next);
        Ok(Bound {
            pipeline,
            layout: self.device.layouts(run.operands.len())?.pipeline,
            set,
            groups: run.groups.clamp(1, limits.groups.into()) as u32,
            arguments: arguments.into(),
        })
    }

    /// Makes the descriptor sets.
    pub(super) fn finish(self, bound: Vec<Bound>, banks: &[Arc<Bank>]) -> Result<Sets, Fault> {
        let count = self.sets.len() as u32;
        let device = self.device;
        let mut made = Sets {
            bound,
            pool: vk::DescriptorPool::null(),
            sets: Vec::new(),
            device: Arc::clone(&device),
        };
        if count == 0 {
            return Ok(made);
        }
        let buffers: usize = self.sets.keys().map(|k| k.len()).sum();
        let sizes = [vk::DescriptorPoolSize {
            ty: vk::DescriptorType::STORAGE_BUFFER,
            descriptor_count: buffers.max(1) as u32,
        }];
        let info = vk::DescriptorPoolCreateInfo::default()
            .max_sets(count)
            .pool_sizes(&sizes);
        // SAFETY: plain data that outlives the call.
        made.pool = device.call(Site::CreateSets, || unsafe {
            device.raw.create_descriptor_pool(&info, None)
        })?;
        let mut keys: Vec<(&Box<[Range]>, &u32)> = self.sets.iter().collect();
        keys.sort_by_key(|(_, number)| **number);
        let mut layouts = Vec::with_capacity(keys.len());
        for (key, _) in &keys {
            layouts.push(device.layouts(key.len())?.set);
        }
        let info = vk::DescriptorSetAllocateInfo::default()
            .descriptor_pool(made.pool)
            .set_layouts(&layouts);
        // SAFETY: pool and layouts are this device's; the pool was made for exactly these.
        made.sets = device.call(Site::AllocateSets, || unsafe {
            device.raw.allocate_descriptor_sets(&info)
        })?;
        for ((ranges, _), set) in keys.into_iter().zip(&made.sets) {
            let infos: Vec<_> = ranges
                .iter()
                .map(|r| vk::DescriptorBufferInfo {
                    buffer: banks[r.bank as usize].buffer,
                    offset: r.start,
                    range: r.len(),
                })
                .collect();
            let writes: Vec<_> = infos
                .chunks(1)
                .enumerate()
                .map(|(i, info)| {
                    vk::WriteDescriptorSet::default()
                        .dst_set(*set)
                        .dst_binding(i as u32)
                        .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                        .buffer_info(info)
                })
                .collect();
            // SAFETY: ranges lie in their banks, begin at the device's alignment and respect its limit; no command
            // uses the sets yet.
            unsafe { device.raw.update_descriptor_sets(&writes, &[]) };
        }
        Ok(made)
    }
}

/// Runs bound to descriptor sets, which are all made at once.
pub(super) struct Sets {
    /// By their numbers.
    bound: Vec<Bound>,
    pool: vk::DescriptorPool,
    sets: Vec<vk::DescriptorSet>,
    device: Arc<Device>,
}

impl Drop for Sets {
    fn drop(&mut self) {
        if self.device.is_alive() {
            // SAFETY: owners drop sets only when no submission that uses them is pending.
            unsafe { self.device.raw.destroy_descriptor_pool(self.pool, None) };
        }
    }
}

/// A pool of command buffers, each recorded as a whole.
pub(super) struct Pool {
    pool: vk::CommandPool,
    device: Arc<Device>,
}

impl Pool {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(device.family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the family is the device's.
        let pool = device.call(Site::CreateCommands, || unsafe {
            device.raw.create_command_pool(&info, None)
        })?;
        Ok(Self {
            pool,
            device: Arc::clone(device),
        })
    }

    pub(super) fn buffers(&self, count: usize) -> Result<Vec<vk::CommandBuffer>, Fault> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(count as u32);
        // SAFETY: the pool is this device's.
        self.device.call(Site::AllocateCommands, || unsafe {
            self.device.raw.allocate_command_buffers(&info)
        })
    }

    /// Records commands, replacing what the buffer held; the number of barriers between them. It must not be pending.
    pub(super) fn record<'c>(
        &self,
        buffer: vk::CommandBuffer,
        commands: impl Iterator<Item = &'c Command>,
        sets: &Sets,
        banks: &[Arc<Bank>],
        hazards: &mut Hazards,
    ) -> Result<usize, Fault> {
        let device = &self.device;
        let info = vk::CommandBufferBeginInfo::default();
        // SAFETY: the buffer is this pool's, which resets buffers when they begin anew, and not pending.
        device.call(Site::Begin, || unsafe {
            device.raw.begin_command_buffer(buffer, &info)
        })?;
        // What earlier submissions did, and what the host wrote: submission orders neither among each other.
        self.barrier(buffer, Stages::ALL);
        hazards.clear();
        let mut bound = (vk::Pipeline::null(), None);
        let mut barriers = 0;
        for command in commands {
            if let Some(wait) = note(command, hazards, device.limits.align_bytes) {
                if device.keeps_order() {
                    self.barrier(buffer, wait);
                }
                barriers += 1;
            }
            let bank = |r: &Range| banks[r.bank as usize].buffer;
            match command {
                Command::Copy { from, to } => {
                    let region = [vk::BufferCopy {
                        src_offset: from.start,
                        dst_offset: to.start,
                        size: from.len(),
                    }];
                    // SAFETY: ranges lie in their banks and do not overlap.
                    unsafe {
                        device
                            .raw
                            .cmd_copy_buffer(buffer, bank(from), bank(to), &region)
                    };
                }
                Command::Zero { to } => {
                    // SAFETY: the range lies in its bank; banks are whole words long.
                    unsafe {
                        device
                            .raw
                            .cmd_fill_buffer(buffer, bank(to), to.start, to.len(), 0)
                    };
                }
                Command::Run(run) => {
                    let run = &sets.bound[run.number as usize];
                    self.run(buffer, run, sets, &mut bound);
                }
                Command::Product(..) => unreachable!("refused above"),
            }
        }
        self.host_barrier(buffer);
        // SAFETY: recording began above.
        device.call(Site::End, || unsafe {
            device.raw.end_command_buffer(buffer)
        })?;
        Ok(barriers)
    }

    fn run(
        &self,
        buffer: vk::CommandBuffer,
        run: &Bound,
        sets: &Sets,
        bound: &mut (vk::Pipeline, Option<u32>),
    ) {
        let (device, point) = (&self.device.raw, vk::PipelineBindPoint::COMPUTE);
        let arguments: &[u8] = bytemuck::cast_slice(&run.arguments);
        // SAFETY: everything is this device's and alive while the buffer is; the layout is the pipeline's, set and
        // arguments are made for it, and the number of groups is within the device's limit.
        unsafe {
            if bound.0 != run.pipeline {
                device.cmd_bind_pipeline(buffer, point, run.pipeline);
                bound.0 = run.pipeline;
            }
            if bound.1 != Some(run.set) {
                let set = [sets.sets[run.set as usize]];
                device.cmd_bind_descriptor_sets(buffer, point, run.layout, 0, &set, &[]);
                bound.1 = Some(run.set);
            }
            let stage = vk::ShaderStageFlags::COMPUTE;
            device.cmd_push_constants(buffer, run.layout, stage, 0, arguments);
            device.cmd_dispatch(buffer, run.groups, 1, 1);
        }
    }

    /// Everything after waits for what `stages` have done before, and sees it.
    fn barrier(&self, buffer: vk::CommandBuffer, stages: Stages) {
        let (mut from, mut written) = (vk::PipelineStageFlags::empty(), vk::AccessFlags::empty());
        if stages.compute {
            from |= vk::PipelineStageFlags::COMPUTE_SHADER;
            written |= vk::AccessFlags::SHADER_WRITE;
        }
        if stages.transfer {
            from |= vk::PipelineStageFlags::TRANSFER;
            written |= vk::AccessFlags::TRANSFER_WRITE;
        }
        let to = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
        let seen = vk::AccessFlags::SHADER_READ
            | vk::AccessFlags::SHADER_WRITE
            | vk::AccessFlags::TRANSFER_READ
            | vk::AccessFlags::TRANSFER_WRITE;
        self.memory_barrier(buffer, (from, written), (to, seen));
    }

    /// The host sees what was written for it once the submission has ended.
    fn host_barrier(&self, buffer: vk::CommandBuffer) {
        let from = (
            vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER,
            vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE,
        );
        let to = (vk::PipelineStageFlags::HOST, vk::AccessFlags::HOST_READ);
        self.memory_barrier(buffer, from, to);
    }

    fn memory_barrier(
        &self,
        buffer: vk::CommandBuffer,
        from: (vk::PipelineStageFlags, vk::AccessFlags),
        to: (vk::PipelineStageFlags, vk::AccessFlags),
    ) {
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(from.1)
            .dst_access_mask(to.1)];
        let none = vk::DependencyFlags::empty();
        // SAFETY: the buffer is recording; stages and accesses fit each other and a compute queue.
        unsafe {
            self.device
                .raw
                .cmd_pipeline_barrier(buffer, from.0, to.0, none, &barrier, &[], &[]);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.device.is_alive() {
            // SAFETY: owners drop pools only when none of its buffers is pending.
            unsafe { self.device.raw.destroy_command_pool(self.pool, None) };
        }
    }
}

/// Runs commands once and waits for them.
pub(super) fn once(
    device: &Arc<Device>,
    commands: &[Command],
    sets: &Sets,
    banks: &[Arc<Bank>],
    timeout_ns: u64,
) -> Result<(), Fault> {
    let pool = Pool::new(device)?;
    let buffer = pool.buffers(1)?[0];
    pool.record(
        buffer,
        commands.iter(),
        sets,
        banks,
        &mut Hazards::default(),
    )?;
    let semaphore = Timeline::new(device)?;
    device.submit(buffer, semaphore.raw, 1)?;
    device.wait(semaphore.raw, 1, timeout_ns)
}

/// A semaphore that counts submissions.
pub(super) struct Timeline {
    pub(super) raw: vk::Semaphore,
    device: Arc<Device>,
}

impl Timeline {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        Ok(Self {
            raw: device.timeline()?,
            device: Arc::clone(device),
        })
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        if self.device.is_alive() {
            // SAFETY: owners wait for the last submission before they drop it.
            unsafe { self.device.raw.destroy_semaphore(self.raw, None) };
        }
    }
}
