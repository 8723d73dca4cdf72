//! Runs one kernel over memory of its own: for calibration and tests, where no calendar gives it any.
#![expect(unsafe_code, reason = "lends its own memory to a kernel as ports")]

use zbmd_ir::{Actor, DType, TokenType};

use crate::kernel::{Io, Kernel, KernelFault, RawPort};

/// Memory aligned as in an arena.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

struct Memory {
    lines: Vec<Line>,
    bytes: usize,
    dtype: DType,
}

impl Memory {
    fn new(token: &TokenType, tokens: u64) -> Self {
        let bytes = usize::try_from(token.bytes().saturating_mul(tokens)).unwrap_or(usize::MAX);
        Self::zeroed(bytes, token.dtype)
    }

    fn zeroed(bytes: usize, dtype: DType) -> Self {
        Self { lines: vec![Line([0; 64]); bytes.div_ceil(64)], bytes, dtype }
    }

    fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes]
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.bytes]
    }

    fn port(&mut self) -> RawPort {
        let (bytes, dtype) = (self.bytes, self.dtype);
        RawPort { ptr: self.lines.as_mut_ptr().cast(), bytes, dtype }
    }
}

/// The memory of one call of an actor's kernel for a fixed number of firings, zero at first.
///
/// Ports are numbered as in [`Io`]: without those of state pairs.
pub struct Call {
    firings: usize,
    inputs: Vec<Memory>,
    outputs: Vec<Memory>,
    states: Vec<Memory>,
    scratch: Memory,
    ports: [Vec<RawPort>; 3],
}

impl Call {
    /// Memory for calls of `firings` (at least 1) firings; `scratch_bytes` as the kernel says.
    ///
    /// # Panics
    /// If `firings` is 0, or without memory for the tokens.
    pub fn new(actor: &Actor, scratch_bytes: usize, firings: usize) -> Self {
        assert!(firings > 0, "a call has at least one firing");
        let n = firings as u64;
        let inputs = actor.inputs.iter().enumerate();
        let inputs = inputs.filter(|(i, _)| actor.state_of_input(*i as u32).is_none());
        let inputs = inputs.map(|(_, p)| Memory::new(&p.token, (n - 1) * p.rate + p.window));
        let outputs = actor.outputs.iter().enumerate();
        let outputs = outputs.filter(|(i, _)| actor.state_of_output(*i as u32).is_none());
        let outputs = outputs.map(|(_, p)| Memory::new(&p.token, n * p.rate));
        let states = actor.state.iter().filter_map(|s| actor.inputs.get(s.input as usize));
        Self {
            firings,
            inputs: inputs.collect(),
            outputs: outputs.collect(),
            states: states.map(|p| Memory::new(&p.token, 1)).collect(),
            scratch: Memory::zeroed(scratch_bytes, DType::U8),
            ports: Default::default(),
        }
    }

    /// All windows of an input: `(firings − 1)·rate + window` tokens.
    pub fn input(&mut self, index: usize) -> &mut [u8] {
        self.inputs[index].as_mut_slice()
    }

    /// What the last run wrote: `firings·rate` tokens.
    pub fn output(&self, index: usize) -> &[u8] {
        self.outputs[index].as_slice()
    }

    /// A state: before a run the token that it starts from, afterwards the one it ended with.
    pub fn state(&mut self, index: usize) -> &mut [u8] {
        self.states[index].as_mut_slice()
    }

    /// Fires. Allocates only the first time.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn run(&mut self, kernel: &dyn Kernel) -> Result<(), KernelFault> {
        let sides = [&mut self.inputs, &mut self.outputs, &mut self.states];
        for (ports, memories) in self.ports.iter_mut().zip(sides) {
            ports.clear();
            ports.extend(memories.iter_mut().map(Memory::port));
        }
        let [inputs, outputs, states] = &self.ports;
        let scratch = (self.scratch.lines.as_mut_ptr().cast(), self.scratch.bytes);
        // SAFETY: every port is a vector of its own, initialised, aligned to 64 bytes, at least as long as `bytes`
        // and, `self` being borrowed mutably, reachable in no other way until the kernel returns.
        let mut io = unsafe { Io::new(self.firings, inputs, outputs, states, scratch) };
        kernel.fire(&mut io)
    }
}
