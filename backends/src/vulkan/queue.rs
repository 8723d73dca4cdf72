//! Calendars' lists of commands as command buffers, and the numbers of what they work on.

use std::collections::BTreeMap;
use std::sync::Arc;

use ash::vk;
use zbmd_ir::{Actor, Calendar, Plan, Program};

use super::codes::Codes;
use super::commands::{Draft, Pool, Sets, Timeline, once};
use super::device::Device;
use super::error::Fault;
use super::hazards::Hazards;
use super::memory::Bank;
use super::{GpuCall, Kept, Replay, ReplayError};
use crate::kernels::lang::Kernel;
use crate::kernels::{Caps, KernelPlan};
use crate::op::Registry;
use crate::replay::{Command, Exchange, Home, Limits, List, PATIENCE_NS, Run};

/// One device's command buffers for a calendar, and their memory.
pub struct Queue {
    device: Arc<Device>,
    codes: Codes,
    hazards: Hazards,
    lists: Vec<vk::CommandBuffer>,
    submitted: u64,
    // In the order in which they can be given back.
    timeline: Timeline,
    pool: Pool,
    sets: Sets,
    banks: Vec<Arc<Bank>>,
}

impl Replay {
    /// Makes a device ready for its calendar in a plan of a verified program: allocates, compiles, records.
    ///
    /// # Errors
    /// See [`ReplayError`].
    ///
    /// # Panics
    /// If the program was not verified, or the calendar is not one of the plan's.
    pub fn new(
        device: &Arc<Device>,
        registry: &Registry,
        program: &Program,
        plan: &Plan,
        calendar: &Calendar,
        exchange: &Exchange,
    ) -> Result<Replay, ReplayError> {
        Self::keeping(
            device,
            registry,
            program,
            plan,
            calendar,
            exchange,
            &mut Kept::default(),
        )
    }

    /// The same with the constants that the device has, which then are those that it has now.
    ///
    /// # Errors
    /// As [`Self::new`].
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn keeping(
        device: &Arc<Device>,
        registry: &Registry,
        program: &Program,
        plan: &Plan,
        calendar: &Calendar,
        exchange: &Exchange,
        kept: &mut Kept,
    ) -> Result<Replay, ReplayError> {
        let queue = Queue::new(device, Codes::of(program))?;
        Self::prepare(queue, registry, program, plan, calendar, exchange, kept)
    }
}

impl GpuCall {
    /// Memory for calls of `firings` (at least 1) firings, and the commands of `calls` of them in a row, on the same
    /// memory, each time it runs: the difference of two numbers of calls is what one takes apart from its submission.
    ///
    /// # Errors
    /// The driver's faults; [`ReplayError::TooLarge`] for a call that is too long for the device.
    pub fn new(
        device: &Arc<Device>,
        actor: &Actor,
        plan: &KernelPlan,
        firings: usize,
        calls: usize,
    ) -> Result<Self, ReplayError> {
        Self::prepare(
            Queue::new(device, Codes::default())?,
            actor,
            plan,
            firings,
            calls,
        )
    }
}

impl Queue {
    fn new(device: &Arc<Device>, codes: Codes) -> Result<Self, Fault> {
        Ok(Self {
            device: Arc::clone(device),
            codes,
            hazards: Hazards::default(),
            lists: Vec::new(),
            submitted: 0,
            timeline: Timeline::new(device)?,
            pool: Pool::new(device)?,
            sets: Draft::new(device).finish(Vec::new(), &[])?,
            banks: Vec::new(),
        })
    }

    fn record_into(
        &mut self,
        buffer: vk::CommandBuffer,
        commands: &[&Command],
    ) -> Result<usize, Fault> {
        let commands = commands.iter().copied();
        self.pool
            .record(buffer, commands, &self.sets, &self.banks, &mut self.hazards)
    }
}

impl crate::replay::Backend for Queue {
    type Fault = Fault;
    type Bank = Bank;
}

impl crate::replay::Queue for Queue {
    fn name(&self) -> String {
        self.device.listed().name.clone()
    }

    fn caps(&self) -> &Caps {
        self.device.caps()
    }

    fn limits(&self) -> Limits {
        self.device.limits.into()
    }

    fn bank(&mut self, bytes: u64, home: Home) -> Result<u32, Fault> {
        let bank = Bank::new(&self.device, bytes, home)?;
        Ok(self.take(Arc::new(bank)))
    }

    fn take(&mut self, bank: Arc<Bank>) -> u32 {
        self.banks.push(bank);
        self.banks.len() as u32 - 1
    }

    fn share(&self, bank: u32) -> Arc<Bank> {
        Arc::clone(&self.banks[bank as usize])
    }

    fn bank_bytes(&self, bank: u32) -> u64 {
        self.banks[bank as usize].bytes
    }

    fn pop_bank(&mut self) {
        self.banks.pop();
    }

    fn host(&self, bank: u32, at: u64, len: usize) -> *mut u8 {
        self.banks[bank as usize].host(at, len)
    }

    fn load(
        &mut self,
        kernels: &[Arc<Kernel>],
        runs: &mut dyn Iterator<Item = &Run>,
    ) -> Result<(), Fault> {
        let pipelines = self
            .device
            .pipelines(kernels.iter().map(|k| &**k), &self.codes)?;
        let mut draft = Draft::new(&self.device);
        let mut bound = BTreeMap::new();
        for run in runs {
            bound.insert(run.number, draft.bind(pipelines[run.kernel as usize], run)?);
        }
        // Every run of the calendar is here, so their numbers are the places in the list.
        assert!(
            bound.keys().copied().eq(0..bound.len() as u32),
            "runs are missing"
        );
        self.sets = draft.finish(bound.into_values().collect(), &self.banks)?;
        Ok(())
    }

    fn record(&mut self, commands: &[&Command]) -> Result<(List, usize), Fault> {
        let buffer = self.pool.buffers(1)?[0];
        let barriers = self.record_into(buffer, commands)?;
        self.lists.push(buffer);
        Ok((List(self.lists.len() as u32 - 1), barriers))
    }

    fn record_again(&mut self, list: List, commands: &[&Command]) -> Result<(), Fault> {
        self.record_into(self.lists[list.0 as usize], commands)
            .map(drop)
    }

    fn run_once(&mut self, commands: &[Command], patience_ns: u64) -> Result<(), Fault> {
        once(&self.device, commands, &self.sets, &self.banks, patience_ns)
    }

    fn submit(&mut self, list: List) -> Result<(), Fault> {
        let buffer = self.lists[list.0 as usize];
        self.device
            .submit(buffer, self.timeline.raw, self.submitted + 1)?;
        self.submitted += 1;
        Ok(())
    }

    fn wait(&mut self, submissions: u64, patience_ns: u64) -> Result<(), Fault> {
        self.device
            .wait(self.timeline.raw, submissions, patience_ns)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.device.is_alive() && self.submitted > 0 {
            // What cannot be waited for is not given back either: a hang marks the device.
            let _ = self
                .device
                .wait(self.timeline.raw, self.submitted, PATIENCE_NS);
        }
    }
}
