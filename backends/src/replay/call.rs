//! Runs the kernels of one actor over memory of its own: for calibration and tests, where no calendar gives it any.

use zbmd_ir::Actor;

use super::{Command, Home, List, PATIENCE_NS, Queue, Range, ReplayError, bind};
use crate::kernels::{KernelPlan, Operand};

/// Longest that a call may take, in times of what a calendar may.
const PATIENCE: u64 = 6 * PATIENCE_NS;

/// The memory of one call of an actor's kernels for a fixed number of firings, zero at first, and its commands.
///
/// Ports are numbered as in [`crate::kernel::Io`]: without those of state pairs.
pub struct Call<Q> {
    inputs: Vec<Range>,
    outputs: Vec<Range>,
    states: Vec<Range>,
    list: List,
    runs: u64,
    queue: Q,
}

impl<Q: Queue> Call<Q> {
    /// Memory for calls of `firings` (at least 1) firings, and the commands of `calls` of them in a row, on the same
    /// memory, each time it runs.
    pub(crate) fn prepare(
        mut queue: Q,
        actor: &Actor,
        plan: &KernelPlan,
        firings: usize,
        calls: usize,
    ) -> Result<Self, ReplayError<Q::Fault>> {
        let n = firings as u64;
        let mut zeros = Vec::new();
        let mut port = |bytes: u64| -> Result<Range, Q::Fault> {
            let bank = queue.bank(bytes, Home::Device)?;
            zeros.push(Command::Zero {
                to: Range::new(bank, 0, queue.bank_bytes(bank)),
            });
            Ok(Range::new(bank, 0, bytes))
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
        let scratch = port(plan.scratch_bytes())?;
        let mut consts = Vec::new();
        for bytes in &plan.consts {
            let range = port(bytes.len() as u64)?;
            consts.push((range, &**bytes));
        }
        queue.run_once(&zeros, PATIENCE)?;
        let some: Vec<_> = consts
            .iter()
            .copied()
            .filter(|(to, _)| to.len() > 0)
            .collect();
        queue.upload(&some, PATIENCE)?;
        let place = |operand: Operand| match operand {
            Operand::Input(i) => inputs[i as usize],
            Operand::Output(i) => outputs[i as usize],
            Operand::State(i) => states[i as usize],
            Operand::Const(i) => consts[i as usize].0,
            Operand::Scratch => scratch,
        };
        let kernels: Vec<_> = plan.kernels().cloned().collect();
        let numbers: Vec<u32> = (0..kernels.len() as u32).collect();
        let mut commands = Vec::new();
        bind(
            queue.limits(),
            plan,
            &numbers,
            n,
            &place,
            &mut 0,
            &mut commands,
        )
        .map_err(|too_long| ReplayError::TooLarge {
            what: format!("a port of actor `{}`", actor.name),
            bytes: too_long.bytes,
            limit: too_long.limit,
            device: queue.name(),
        })?;
        let mut runs = commands.iter().filter_map(|command| match command {
            Command::Run(run) => Some(run),
            _ => None,
        });
        queue.load(&kernels, &mut runs)?;
        let all: Vec<&Command> = std::iter::repeat_n(&commands, calls).flatten().collect();
        let (list, _) = queue.record(&all)?;
        Ok(Self {
            inputs,
            outputs,
            states,
            list,
            runs: 0,
            queue,
        })
    }

    /// Fills all windows of an input: `(firings − 1)·rate + window` tokens.
    ///
    /// # Errors
    /// The driver's faults; so with the others.
    pub fn set_input(&mut self, index: usize, bytes: &[u8]) -> Result<(), Q::Fault> {
        self.write(self.inputs[index], bytes)
    }

    /// Sets a state.
    ///
    /// # Errors
    /// See [`Self::set_input`].
    pub fn set_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), Q::Fault> {
        self.write(self.states[index], bytes)
    }

    /// What the last run wrote: `firings·rate` tokens.
    ///
    /// # Errors
    /// See [`Self::set_input`].
    pub fn output(&mut self, index: usize) -> Result<Vec<u8>, Q::Fault> {
        self.read(self.outputs[index])
    }

    /// The state that the last run ended with.
    ///
    /// # Errors
    /// See [`Self::set_input`].
    pub fn state(&mut self, index: usize) -> Result<Vec<u8>, Q::Fault> {
        self.read(self.states[index])
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), Q::Fault> {
        assert_eq!(bytes.len() as u64, range.len(), "bytes of a port");
        self.queue.upload(&[(range, bytes)], PATIENCE)
    }

    fn read(&mut self, range: Range) -> Result<Vec<u8>, Q::Fault> {
        let mut bytes = vec![0; range.len() as usize];
        self.queue.download(&mut [(range, &mut bytes)], PATIENCE)?;
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

    /// Puts the firings into the queue.
    ///
    /// # Errors
    /// The driver's faults.
    pub fn submit(&mut self) -> Result<(), Q::Fault> {
        self.queue.submit(self.list)?;
        self.runs += 1;
        Ok(())
    }

    /// Waits for the end of all that was submitted.
    ///
    /// # Errors
    /// The driver's faults.
    pub fn wait(&mut self) -> Result<(), Q::Fault> {
        self.queue.wait(self.runs, PATIENCE)
    }
}
