//! Runs the kernels of one actor over memory of its own: for calibration and tests, where no calendar gives it any.
#![expect(unsafe_code, reason = "writes and reads staging memory")]

use std::sync::Arc;

use zbmd_ir::Actor;

use super::device::{Bank, Device, Mark, Ready};
use super::error::{Code, Fault, Site};
use super::queue::Work;
use crate::kernels::{KernelPlan, Operand, Step};
use crate::replay::{Command, Home, Limits, Range, bind};

/// Longest that a call may take.
const TIMEOUT_NS: u64 = 60_000_000_000;

/// The memory of one call of an actor's kernels for a fixed number of firings, zero at first.
///
/// Ports are numbered as in [`crate::kernel::Io`]: without those of state pairs.
pub struct GpuCall {
    inputs: Vec<Range>,
    outputs: Vec<Range>,
    states: Vec<Range>,
    runs: u64,
    // In the order in which they can be given back.
    graph: Ready,
    done: Mark,
    work: Work,
}

/// Copies bytes to the device's memory or back, and waits for the end.
fn exchange(work: &Work, range: Range, bytes: &mut [u8], back: bool) -> Result<(), Fault> {
    if bytes.is_empty() {
        return Ok(());
    }
    let staging = Bank::new(&work.device, bytes.len() as u64, Home::Host)?;
    let there = work.address(range);
    let here = staging.host(0, bytes.len());
    let (from, to) = if back { (there, staging.at) } else { (staging.at, there) };
    if !back {
        // SAFETY: the device does not know the bank yet, which is as long as needed.
        unsafe { here.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    work.device.once(TIMEOUT_NS, |driver| driver.copy(from, to, bytes.len() as u64))?;
    if back {
        // SAFETY: the copy has ended.
        unsafe { here.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }
    Ok(())
}

/// Memory of the device, filled.
fn filled(work: &mut Work, bytes: &mut [u8]) -> Result<Range, Fault> {
    work.banks.push(Bank::new(&work.device, bytes.len() as u64, Home::Device)?);
    let range = Range::new(work.banks.len() as u32 - 1, 0, bytes.len() as u64);
    exchange(work, range, bytes, false)?;
    Ok(range)
}

impl GpuCall {
    /// Memory for calls of `firings` (at least 1) firings, and the graph.
    ///
    /// # Errors
    /// The driver's faults; a call that is too long for the device is [`Fault::Other`] with `CUDA_ERROR_INVALID_VALUE`.
    pub fn new(
        device: &Arc<Device>,
        actor: &Actor,
        plan: &KernelPlan,
        firings: usize,
    ) -> Result<Self, Fault> {
        let n = firings as u64;
        let mut work = Work::new(device);
        let mut port = |bytes: u64| filled(&mut work, &mut vec![0; bytes as usize]);
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
        let scratch = port(plan.scratch_bytes())?;
        let mut consts = Vec::new();
        for bytes in &plan.consts {
            consts.push(filled(&mut work, &mut bytes.to_vec())?);
        }
        let kernels = plan.steps.iter().filter_map(|s| match s {
            Step::Run(run) => Some(&*run.kernel),
            Step::Copy { .. } => None,
        });
        work.load(kernels)?;
        let place = |operand: Operand| match operand {
            Operand::Input(i) => inputs[i as usize],
            Operand::Output(i) => outputs[i as usize],
            Operand::State(i) => states[i as usize],
            Operand::Const(i) => consts[i as usize],
            Operand::Scratch => scratch,
        };
        let limits = Limits { align_bytes: 1, range_bytes: u32::MAX.into(), bank_bytes: u64::MAX };
        let numbers: Vec<u32> = (0..work.functions.len() as u32).collect();
        let mut commands: Vec<Command> = Vec::new();
        bind(limits, plan, &numbers, n, &place, &mut 0, &mut commands)
            .map_err(|_| Fault::Other { site: Site::KernelNode, code: Code(1) })?;
        let commands: Vec<&Command> = commands.iter().collect();
        let (graph, _) = work.graph(&commands)?;
        let done = Mark::new(device)?;
        Ok(Self { inputs, outputs, states, runs: 0, graph, done, work })
    }

    /// Fills all windows of an input: `(firings − 1)·rate + window` tokens.
    ///
    /// # Errors
    /// The driver's faults; so with the others.
    pub fn set_input(&mut self, index: usize, bytes: &[u8]) -> Result<(), Fault> {
        self.write(self.inputs[index], bytes)
    }

    /// Sets a state.
    ///
    /// # Errors
    /// See [`Self::set_input`].
    pub fn set_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), Fault> {
        self.write(self.states[index], bytes)
    }

    /// What the last run wrote: `firings·rate` tokens.
    ///
    /// # Errors
    /// See [`Self::set_input`].
    pub fn output(&self, index: usize) -> Result<Vec<u8>, Fault> {
        self.read(self.outputs[index])
    }

    /// The state that the last run ended with.
    ///
    /// # Errors
    /// See [`Self::set_input`].
    pub fn state(&self, index: usize) -> Result<Vec<u8>, Fault> {
        self.read(self.states[index])
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), Fault> {
        assert_eq!(bytes.len() as u64, range.len(), "bytes of a port");
        exchange(&self.work, range, &mut bytes.to_vec(), false)
    }

    fn read(&self, range: Range) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; range.len() as usize];
        exchange(&self.work, range, &mut bytes, true)?;
        Ok(bytes)
    }

    /// Fires, and waits for the end.
    ///
    /// # Errors
    /// The driver's faults.
    pub fn run(&mut self) -> Result<(), Fault> {
        let (exec, event) = (self.graph.exec, self.done.event);
        self.work.device.call(|driver| {
            driver.launch(exec)?;
            driver.record(event)
        })?;
        self.runs += 1;
        self.work.device.wait(event, self.runs, TIMEOUT_NS)
    }
}
