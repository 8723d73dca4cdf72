//! Runs the kernels of one actor over memory of its own: for calibration and tests, where no calendar provides any.

use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::Actor;

use super::queue::{BankRange, Command, CommandList, MemoryKind, Queue, StepBinder};
use super::{PATIENCE_NS, ReplayError};
use zbmd_gpu_ir::{KernelPlan, Operand};

/// Longest time that a call may take: a multiple of what a calendar's submission may.
const CALL_PATIENCE_NS: u64 = 6 * PATIENCE_NS;

/// The memory of one call of an actor's kernels for a fixed number of firings, zero at first, and its commands.
///
/// Ports are numbered as CPU kernels see them: without those of state pairs.
pub struct Call<Q> {
    inputs: Vec<BankRange>,
    outputs: Vec<BankRange>,
    states: Vec<BankRange>,
    list: CommandList,
    submitted: u64,
    queue: Q,
}

/// The memory of a call, as it is allocated: a bank for each operand.
struct OperandBanks {
    inputs: Vec<BankRange>,
    outputs: Vec<BankRange>,
    states: Vec<BankRange>,
    consts: Vec<BankRange>,
    scratch: BankRange,
}

impl OperandBanks {
    fn allocate<Q: Queue>(
        queue: &mut Q,
        actor: &Actor,
        plan: &KernelPlan,
        firings: u64,
    ) -> Result<Self, Q::Fault> {
        let mut inputs = Vec::new();
        for (index, port) in actor.inputs.iter().enumerate() {
            if actor.state_of_input(index as u32).is_none() {
                let tokens = (firings - 1) * port.rate + port.window;
                inputs.push(allocate_range(queue, tokens * port.token.bytes())?);
            }
        }

        let mut outputs = Vec::new();
        for (index, port) in actor.outputs.iter().enumerate() {
            if actor.state_of_output(index as u32).is_none() {
                let tokens = firings * port.rate;
                outputs.push(allocate_range(queue, tokens * port.token.bytes())?);
            }
        }

        let mut states = Vec::new();
        for state in &actor.state {
            let port = &actor.inputs[state.input as usize];
            states.push(allocate_range(queue, port.token.bytes())?);
        }

        let scratch = allocate_range(queue, plan.scratch_bytes())?;
        let mut consts = Vec::new();
        for bytes in &plan.consts {
            consts.push(allocate_range(queue, bytes.len() as u64)?);
        }
        Ok(Self {
            inputs,
            outputs,
            states,
            consts,
            scratch,
        })
    }

    /// Zeros everywhere, then the constants.
    fn initialise<Q: Queue>(&self, queue: &mut Q, consts: &[Bytes]) -> Result<(), Q::Fault> {
        let ports = self.inputs.iter().chain(&self.outputs).chain(&self.states);
        let all = ports.chain([&self.scratch]).chain(&self.consts);
        let zeros: Vec<Command> = all
            .map(|range| Command::Zero {
                to: BankRange::new(range.bank, 0, queue.bank_bytes(range.bank)),
            })
            .collect();
        queue.run_once(&zeros, CALL_PATIENCE_NS)?;

        let uploads: Vec<(BankRange, &[u8])> = self
            .consts
            .iter()
            .copied()
            .zip(consts.iter().map(|bytes| &**bytes))
            .filter(|(_, bytes)| !bytes.is_empty())
            .collect();
        queue.upload(&uploads, CALL_PATIENCE_NS)
    }

    fn place(&self, operand: Operand) -> BankRange {
        match operand {
            Operand::Input(index) => self.inputs[index as usize],
            Operand::Output(index) => self.outputs[index as usize],
            Operand::State(index) => self.states[index as usize],
            Operand::Const(index) => self.consts[index as usize],
            Operand::Scratch => self.scratch,
            Operand::Gate => unreachable!("`Call::new` refuses gated actors"),
        }
    }
}

/// The first `bytes` bytes of a new bank.
fn allocate_range<Q: Queue>(queue: &mut Q, bytes: u64) -> Result<BankRange, Q::Fault> {
    let bank = queue.allocate_bank(bytes, MemoryKind::Device)?;
    Ok(BankRange::new(bank, 0, bytes))
}

impl<Q: Queue> Call<Q> {
    /// Memory for calls of `firings` (at least 1) firings, and the commands of `calls` of them in a row, on the same
    /// memory, each time it runs: the difference of two numbers of calls is what one takes without its submission.
    ///
    /// # Errors
    /// The driver's faults; [`ReplayError::TooLarge`] for a call that is too long for the device.
    ///
    /// # Panics
    /// If the kernels are those of a gated actor: what a call costs is that of the actor without its gate.
    pub fn new(
        device: &Arc<Q::Device>,
        actor: &Actor,
        plan: &KernelPlan,
        firings: usize,
        calls: usize,
    ) -> Result<Self, ReplayError<Q::Fault>> {
        assert!(plan.closed_steps.is_none(), "`{}` is gated", actor.name);
        let mut queue = Q::open_queue(device, None)?;
        let banks = OperandBanks::allocate(&mut queue, actor, plan, firings as u64)?;
        banks.initialise(&mut queue, &plan.consts)?;

        let kernels: Vec<_> = plan.kernels().cloned().collect();
        let kernel_numbers: Vec<u32> = (0..kernels.len() as u32).collect();
        let bound = StepBinder::new(queue.limits()).bind_call(
            plan,
            &kernel_numbers,
            firings as u64,
            &|operand| banks.place(operand),
        );
        let bound_call = bound.map_err(|too_long| ReplayError::TooLarge {
            what: format!("a port of actor `{}`", actor.name),
            bytes: too_long.bytes,
            limit: too_long.limit,
            device: queue.device_name(),
        })?;
        let commands = bound_call.commands;

        let mut runs = commands.iter().filter_map(Command::kernel_run);
        queue.load_kernels(&kernels, &mut runs)?;
        let all_calls: Vec<&Command> = std::iter::repeat_n(&commands, calls).flatten().collect();
        let (list, _) = queue.record_list(&all_calls)?;
        Ok(Self {
            inputs: banks.inputs,
            outputs: banks.outputs,
            states: banks.states,
            list,
            submitted: 0,
            queue,
        })
    }

    /// Fills all windows of an input: `(firings − 1)·rate + window` tokens.
    ///
    /// # Errors
    /// The driver's faults, as with all other methods.
    pub fn set_input(&mut self, index: usize, bytes: &[u8]) -> Result<(), Q::Fault> {
        self.write_range(self.inputs[index], bytes)
    }

    /// Sets a state.
    ///
    /// # Errors
    /// See [`Self::set_input`].
    pub fn set_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), Q::Fault> {
        self.write_range(self.states[index], bytes)
    }

    /// What the last run wrote: `firings·rate` tokens.
    ///
    /// # Errors
    /// See [`Self::set_input`].
    pub fn output(&mut self, index: usize) -> Result<Vec<u8>, Q::Fault> {
        self.read_range(self.outputs[index])
    }

    /// The state that the last run ended with.
    ///
    /// # Errors
    /// See [`Self::set_input`].
    pub fn state(&mut self, index: usize) -> Result<Vec<u8>, Q::Fault> {
        self.read_range(self.states[index])
    }

    fn write_range(&mut self, range: BankRange, bytes: &[u8]) -> Result<(), Q::Fault> {
        assert_eq!(bytes.len() as u64, range.len(), "bytes of a port");
        self.queue.upload(&[(range, bytes)], CALL_PATIENCE_NS)
    }

    fn read_range(&mut self, range: BankRange) -> Result<Vec<u8>, Q::Fault> {
        let mut bytes = vec![0; range.len() as usize];
        self.queue
            .download(&mut [(range, &mut bytes)], CALL_PATIENCE_NS)?;
        Ok(bytes)
    }

    /// Fires, and waits for the end.
    ///
    /// # Errors
    /// The driver's faults.
    pub fn run(&mut self) -> Result<(), Q::Fault> {
        self.submit()?;
        self.wait()
    }

    /// Puts the firings into the queue. What was submitted before has been waited for.
    ///
    /// # Errors
    /// The driver's faults.
    pub fn submit(&mut self) -> Result<(), Q::Fault> {
        self.queue.submit_list(self.list)?;
        self.submitted += 1;
        Ok(())
    }

    /// Waits for the end of all that was submitted.
    ///
    /// # Errors
    /// The driver's faults.
    pub fn wait(&mut self) -> Result<(), Q::Fault> {
        self.queue.wait_for(self.submitted, CALL_PATIENCE_NS)
    }
}
