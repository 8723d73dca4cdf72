//! Runs the kernels of one actor over memory of its own: for calibration and tests, where no calendar gives it any.
#![expect(unsafe_code, reason = "writes and reads mapped memory")]

use std::sync::Arc;

use ash::vk;
use zbmd_ir::Actor;

use super::codes::Codes;
use super::commands::{Draft, Pool, Sets, Timeline, staged};
use super::device::Device;
use super::error::Fault;
use super::hazards::Hazards;
use super::memory::Bank;
use crate::kernels::{KernelPlan, Operand};
use crate::replay::{Command, Range, bind};

/// Longest that a call may take.
const TIMEOUT_NS: u64 = 60_000_000_000;

/// The memory of one call of an actor's kernels for a fixed number of firings, zero at first.
///
/// Ports are numbered as in [`crate::kernel::Io`]: without those of state pairs.
pub struct GpuCall {
    device: Arc<Device>,
    /// All ports, constants and scratch memory of the call.
    banks: Vec<Bank>,
    inputs: Vec<Range>,
    outputs: Vec<Range>,
    states: Vec<Range>,
    buffer: vk::CommandBuffer,
    _pool: Pool,
    _sets: Sets,
    done: Timeline,
    runs: u64,
}

impl GpuCall {
    /// Memory for calls of `firings` (at least 1) firings, and the commands.
    ///
    /// # Errors
    /// The driver's faults; a call that is too long for the device is [`Fault::OutOfMemory`].
    pub fn new(
        device: &Arc<Device>,
        actor: &Actor,
        plan: &KernelPlan,
        firings: usize,
    ) -> Result<Self, Fault> {
        Self::repeated(device, actor, plan, firings, 1)
    }

    /// The same for `calls` calls in a row, on the same memory, each time it runs: to find out what one of them takes
    /// apart from their submission.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn repeated(
        device: &Arc<Device>,
        actor: &Actor,
        plan: &KernelPlan,
        firings: usize,
        calls: usize,
    ) -> Result<Self, Fault> {
        let n = firings as u64;
        let mut banks = Vec::new();
        let mut port = |bytes: u64| -> Result<Range, Fault> {
            banks.push(staged(device, &vec![0; bytes as usize])?);
            Ok(Range::new(banks.len() as u32 - 1, 0, bytes))
        };
        let (mut inputs, mut outputs, mut states) = (Vec::new(), Vec::new(), Vec::new());
        for (i, p) in actor.inputs.iter().enumerate() {
            if actor.state_of_input(i as u32).is_none() {
                inputs.push(port(((n - 1) * p.rate + p.window) * p.token.bytes())?);
            }
        }
        for (i, p) in actor.outputs.iter().enumerate() {
            if actor.state_of_output(i as u32).is_none() {
                outputs.push(port(n * p.rate * p.token.bytes())?);
            }
        }
        for state in &actor.state {
            states.push(port(actor.inputs[state.input as usize].token.bytes())?);
        }
        let scratch = port(plan.scratch_bytes.max(1))?;
        let mut consts = Vec::new();
        for bytes in &plan.consts {
            banks.push(staged(device, bytes)?);
            consts.push(Range::new(banks.len() as u32 - 1, 0, bytes.len() as u64));
        }
        let pipelines = device.pipelines(plan.kernels(), &Codes::default())?;
        let place = |operand: Operand| match operand {
            Operand::Input(i) => inputs[i as usize],
            Operand::Output(i) => outputs[i as usize],
            Operand::State(i) => states[i as usize],
            Operand::Const(i) => consts[i as usize],
            Operand::Scratch => scratch,
        };
        let mut commands: Vec<Command> = Vec::new();
        let numbers: Vec<u32> = (0..pipelines.len() as u32).collect();
        let limits = device.limits.into();
        if let Err(too_long) = bind(limits, plan, &numbers, n, &place, &mut 0, &mut commands) {
            let wanted =
                format!(": {} bytes for one kernel, at most {}", too_long.bytes, too_long.limit);
            let site = super::error::Site::CreateSets;
            return Err(Fault::OutOfMemory { site, whose: "device", wanted });
        }
        let mut draft = Draft::new(device);
        let mut bound = Vec::new();
        for command in &commands {
            let Command::Run(run) = command else { continue };
            bound.push(draft.bind(pipelines[run.kernel as usize], run)?);
        }
        let sets = draft.finish(bound, &banks)?;
        let pool = Pool::new(device)?;
        let buffer = pool.buffers(1)?[0];
        let all = std::iter::repeat_n(&commands, calls).flatten();
        pool.record(buffer, all, &sets, &banks, &mut Hazards::default())?;
        let done = Timeline::new(device)?;
        let device = Arc::clone(device);
        Ok(Self {
            device,
            banks,
            inputs,
            outputs,
            states,
            buffer,
            _pool: pool,
            _sets: sets,
            done,
            runs: 0,
        })
    }

    /// Fills all windows of an input: `(firings − 1)·rate + window` tokens.
    pub fn set_input(&mut self, index: usize, bytes: &[u8]) {
        self.write(self.inputs[index], bytes);
    }

    /// Sets a state.
    pub fn set_state(&mut self, index: usize, bytes: &[u8]) {
        self.write(self.states[index], bytes);
    }

    /// What the last run wrote: `firings·rate` tokens.
    pub fn output(&self, index: usize) -> Vec<u8> {
        self.read(self.outputs[index])
    }

    /// The state that the last run ended with.
    pub fn state(&self, index: usize) -> Vec<u8> {
        self.read(self.states[index])
    }

    fn write(&mut self, range: Range, bytes: &[u8]) {
        assert_eq!(bytes.len() as u64, range.len(), "bytes of a port");
        // SAFETY: `run` waits for its submission, so none is pending.
        unsafe { self.banks[range.bank as usize].write(range.start, bytes) };
    }

    fn read(&self, range: Range) -> Vec<u8> {
        let mut bytes = vec![0; range.len() as usize];
        // SAFETY: as in `write`; commands end with a barrier towards the host.
        unsafe { self.banks[range.bank as usize].read(range.start, &mut bytes) };
        bytes
    }

    /// Fires, and waits for the end.
    ///
    /// # Errors
    /// The driver's faults.
    pub fn run(&mut self) -> Result<(), Fault> {
        self.device.submit(self.buffer, self.done.raw, self.runs + 1)?;
        self.runs += 1;
        self.device.wait(self.done.raw, self.runs, TIMEOUT_NS)
    }
}

impl Drop for GpuCall {
    fn drop(&mut self) {
        if self.device.is_alive() && self.runs > 0 {
            let _ = self.device.wait(self.done.raw, self.runs, TIMEOUT_NS);
        }
    }
}
