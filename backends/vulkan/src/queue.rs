//! Calendars' lists of commands as command buffers, and the numbers of what they work on.
#![expect(unsafe_code, reason = "submits command buffers")]

use std::sync::Arc;

use zbmd_ir::Program;

use super::commands::{CommandPool, DescriptorDraft, DescriptorSets, Timeline, run_once};
use super::device::VulkanDevice;
use super::error::Fault;
use super::hazards::HazardTracker;
use super::memory::Bank;
use zbmd_gpu_ir::Caps;
use zbmd_gpu_ir::emit::modules::Codes;
use zbmd_gpu_ir::lang::Kernel;
use zbmd_hal::{Backend, BoundRun, Command, CommandList, MemoryKind, PATIENCE_NS, QueueLimits};

/// A list of commands in a command buffer of the pool.
struct RecordedList {
    buffer: usize,
    /// How many submissions have ended when its last one has.
    last_submission: u64,
}

/// One device's command buffers for a calendar, and their memory.
///
/// Everything that work in the queue names is held here, and dropped only after `drop` has waited for the last
/// submission (or after the device is lost, when nothing is destroyed).
pub struct Queue {
    device: Arc<VulkanDevice>,
    codes: Codes,
    hazards: HazardTracker,
    lists: Vec<RecordedList>,
    submitted: u64,
    /// Submissions that have been waited for.
    ended: u64,
    // In the order in which they can be destroyed.
    timeline: Timeline,
    pool: CommandPool,
    sets: DescriptorSets,
    banks: Vec<Arc<Bank>>,
}

impl Queue {
    /// The buffer of a list, which is not pending.
    fn idle_buffer(&self, list: CommandList) -> usize {
        let RecordedList {
            buffer,
            last_submission,
        } = self.lists[list.0 as usize];
        assert!(
            last_submission <= self.ended,
            "submission {last_submission} of {list:?} was not waited for: {} have ended",
            self.ended
        );
        buffer
    }

    /// Records commands; the number of barriers between them.
    ///
    /// # Safety
    /// The buffer is not pending.
    unsafe fn record_buffer(
        &mut self,
        buffer: usize,
        commands: &[&Command],
    ) -> Result<usize, Fault> {
        let commands = commands.iter().copied();
        // SAFETY: the buffer is not pending, as the caller promises; sets and banks are this queue's, which waits for
        // its last submission before it drops them.
        unsafe {
            self.pool
                .record(buffer, commands, &self.sets, &self.banks, &mut self.hazards)
        }
    }
}

impl Backend for Queue {
    type Fault = Fault;
    type Bank = Bank;
    type Device = VulkanDevice;

    fn open_queue(device: &Arc<VulkanDevice>, program: Option<&Program>) -> Result<Self, Fault> {
        Ok(Self {
            device: Arc::clone(device),
            codes: program.map(Codes::of_program).unwrap_or_default(),
            hazards: HazardTracker::default(),
            lists: Vec::new(),
            submitted: 0,
            ended: 0,
            timeline: Timeline::new(device)?,
            pool: CommandPool::new(device)?,
            sets: DescriptorDraft::new(device).finish(&[])?,
            banks: Vec::new(),
        })
    }
}

impl zbmd_hal::Queue for Queue {
    fn device_name(&self) -> String {
        self.device.listed().name.clone()
    }

    fn caps(&self) -> &Caps {
        self.device.caps()
    }

    fn limits(&self) -> QueueLimits {
        self.device.limits.for_queue()
    }

    fn allocate_bank(&mut self, bytes: u64, kind: MemoryKind) -> Result<u32, Fault> {
        let bank = Bank::allocate(&self.device, bytes, kind)?;
        Ok(self.adopt_bank(Arc::new(bank)))
    }

    fn adopt_bank(&mut self, bank: Arc<Bank>) -> u32 {
        self.banks.push(bank);
        self.banks.len() as u32 - 1
    }

    fn bank(&self, bank: u32) -> Arc<Bank> {
        Arc::clone(&self.banks[bank as usize])
    }

    fn bank_bytes(&self, bank: u32) -> u64 {
        self.banks[bank as usize].bytes
    }

    fn free_last_bank(&mut self) {
        self.banks.pop();
    }

    fn host_pointer(&self, bank: u32, offset: u64, len: usize) -> *mut u8 {
        self.banks[bank as usize].host_pointer(offset, len)
    }

    fn load_kernels(
        &mut self,
        kernels: &[Arc<Kernel>],
        runs: &mut dyn Iterator<Item = &BoundRun>,
    ) -> Result<(), Fault> {
        let pipelines = self
            .device
            .pipelines(kernels.iter().map(|kernel| &**kernel), &self.codes)?;
        let mut draft = DescriptorDraft::new(&self.device);
        for run in runs {
            draft.bind_run(pipelines[run.kernel as usize], run)?;
        }
        self.sets = draft.finish(&self.banks)?;
        Ok(())
    }

    fn record_list(&mut self, commands: &[&Command]) -> Result<(CommandList, usize), Fault> {
        let buffer = self.pool.add_buffer()?;
        // SAFETY: the buffer is new.
        let barrier_count = unsafe { self.record_buffer(buffer, commands) }?;
        self.lists.push(RecordedList {
            buffer,
            last_submission: 0,
        });
        Ok((CommandList(self.lists.len() as u32 - 1), barrier_count))
    }

    fn rerecord_list(&mut self, list: CommandList, commands: &[&Command]) -> Result<(), Fault> {
        let buffer = self.idle_buffer(list);
        // SAFETY: `idle_buffer` has checked that its last submission has ended.
        unsafe { self.record_buffer(buffer, commands) }.map(drop)
    }

    fn run_once(&mut self, commands: &[Command], patience_ns: u64) -> Result<(), Fault> {
        run_once(&self.device, commands, &self.sets, &self.banks, patience_ns)
    }

    fn submit_list(&mut self, list: CommandList) -> Result<(), Fault> {
        let buffer = self.idle_buffer(list);
        let submission = self.submitted + 1;
        // SAFETY: a list is recorded, and `idle_buffer` has checked that it is not pending; pool, timeline and what the
        // list names are this queue's, which waits for its last submission before it drops them.
        unsafe { self.pool.submit(buffer, &self.timeline, submission) }?;
        self.submitted = submission;
        self.lists[list.0 as usize].last_submission = submission;
        Ok(())
    }

    fn wait_for(&mut self, submissions: u64, patience_ns: u64) -> Result<(), Fault> {
        self.timeline.wait(submissions, patience_ns)?;
        self.ended = self.ended.max(submissions);
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.device.is_alive() && self.submitted > 0 {
            // What cannot be waited for is not destroyed either: a hang marks the device as dead.
            let _ = self.timeline.wait(self.submitted, PATIENCE_NS);
        }
    }
}
