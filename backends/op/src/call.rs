//! Runs one kernel over memory of its own: for calibration and tests, where no calendar gives it any.
#![expect(unsafe_code, reason = "lends its own memory to a kernel as ports")]

use zbmd_ir::{Actor, DType, InPlace, TokenType};

use crate::kernel::{CallShape, Io, Kernel, KernelFault, RawPort, Scratch};

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
        Self {
            lines: vec![Line([0; 64]); bytes.div_ceil(64)],
            bytes,
            dtype,
        }
    }

    fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes]
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.bytes]
    }

    fn port(&mut self) -> RawPort {
        let (bytes, dtype) = (self.bytes, self.dtype);
        RawPort {
            ptr: self.lines.as_mut_ptr().cast(),
            bytes,
            dtype,
        }
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
    ports: Vec<RawPort>,
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
        let states = actor
            .state
            .iter()
            .filter_map(|s| actor.inputs.get(s.input as usize));
        Self {
            firings,
            inputs: inputs.collect(),
            outputs: outputs.collect(),
            states: states.map(|p| Memory::new(&p.token, 1)).collect(),
            scratch: Memory::zeroed(scratch_bytes, DType::U8),
            ports: Vec::new(),
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
        self.fire(kernel, &[])
    }

    /// Fires with outputs over inputs, as plans do where an actor has [`Actor::in_place`]. The inputs are kept.
    ///
    /// # Errors
    /// What the kernel reports.
    ///
    /// # Panics
    /// If a pair does not lie within its ports, or pairs do not go together: an input with more than one output that is
    /// no part of it, or an output with more than one input of which it is a part.
    pub fn run_over(&mut self, kernel: &dyn Kernel, pairs: &[InPlace]) -> Result<(), KernelFault> {
        let ports = |pair: &InPlace| (pair.input as usize, pair.output as usize);
        let at = |pair: &InPlace| pair.at_bytes as usize;
        let (ins, outs) = pairs.iter().partition::<Vec<&InPlace>, _>(|pair| {
            let (i, o) = ports(pair);
            self.inputs[i].bytes <= self.outputs[o].bytes
        });
        for pair in &ins {
            let (i, o) = ports(pair);
            let from = &self.inputs[i];
            let to = &mut self.outputs[o];
            to.as_mut_slice()[at(pair)..][..from.bytes].copy_from_slice(from.as_slice());
        }

        // An input larger than its output is overwritten by the kernel, and restored for the next run.
        let kept: Vec<Vec<u8>> = outs
            .iter()
            .map(|pair| self.inputs[ports(pair).0].as_slice().to_vec())
            .collect();
        let result = self.fire(kernel, pairs);

        for pair in &outs {
            let (i, o) = ports(pair);
            let from = &self.inputs[i];
            let to = &mut self.outputs[o];
            let bytes = to.bytes;
            to.as_mut_slice()
                .copy_from_slice(&from.as_slice()[at(pair)..][..bytes]);
        }
        for (pair, kept) in outs.iter().zip(kept) {
            self.inputs[ports(pair).0]
                .as_mut_slice()
                .copy_from_slice(&kept);
        }
        result
    }

    fn fire(&mut self, kernel: &dyn Kernel, pairs: &[InPlace]) -> Result<(), KernelFault> {
        let shape = CallShape {
            firings: self.firings,
            inputs: self.inputs.len() as u16,
            outputs: self.outputs.len() as u16,
            states: self.states.len() as u16,
            over: !pairs.is_empty(),
        };
        let sides = [&mut self.inputs, &mut self.outputs, &mut self.states];
        self.ports.clear();
        self.ports
            .extend(sides.into_iter().flatten().map(Memory::port));
        for pair in pairs {
            // Ports are numbered inputs first, then outputs.
            let i = pair.input as usize;
            let o = self.inputs.len() + pair.output as usize;
            let (part, whole) = if self.ports[i].bytes <= self.ports[o].bytes {
                (i, o)
            } else {
                (o, i)
            };
            let RawPort { ptr, bytes, .. } = self.ports[whole];
            let at = pair.at_bytes as usize;
            assert!(
                at + self.ports[part].bytes <= bytes,
                "a part beyond its whole"
            );
            self.ports[part].ptr = ptr.wrapping_add(at);
        }
        let scratch = Scratch(self.scratch.lines.as_mut_ptr().cast(), self.scratch.bytes);
        // SAFETY: every port is a vector of its own, initialised, aligned to 64 bytes, at least as long as `bytes`
        // and, `self` being borrowed mutably, reachable in no other way until the kernel returns, but for parts of
        // others, which the shape announces.
        let mut io = unsafe { Io::new(&shape, self.ports.as_ptr(), &scratch) };
        kernel.fire(&mut io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::{InPort, OutPort, Params, Role, StatePort};

    /// Running sum of pairs, kept in a state.
    struct Sum;

    impl Kernel for Sum {
        fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
            let (x, y, s) = (io.input::<f32>(0), io.output::<f32>(0), io.state::<f32>(0));
            let scratch = io.scratch::<f32>();
            for (pair, y) in x.chunks_exact(2).zip(y) {
                scratch[0] = pair[0] + pair[1];
                s[0] += scratch[0];
                *y = s[0];
            }
            Ok(())
        }

        fn scratch_bytes(&self) -> usize {
            4
        }
    }

    #[test]
    fn a_call_has_memory_for_all_ports_and_keeps_its_state() {
        let token = TokenType::scalar(DType::F32);
        let input = |name: &str, rate| InPort {
            name: name.into(),
            token: token.clone(),
            rate,
            window: rate,
        };
        let output = |name: &str, rate| OutPort {
            name: name.into(),
            token: token.clone(),
            rate,
        };
        let actor = Actor {
            name: "sum".into(),
            role: Role::Compute,
            op: "Sum".into(),
            params: Params::new(),
            inputs: vec![input("x", 2), input("s", 1)],
            outputs: vec![output("y", 1), output("s", 1)],
            state: vec![StatePort {
                input: 1,
                output: 1,
            }],
            in_place: vec![],
        };
        let mut call = Call::new(&actor, Sum.scratch_bytes(), 3);
        let x: Vec<u8> = (1..=6u8).flat_map(|v| f32::from(v).to_ne_bytes()).collect();
        call.input(0).copy_from_slice(&x);
        for expect in [[3.0f32, 10.0, 21.0], [24.0, 31.0, 42.0]] {
            call.run(&Sum).expect("no fault");
            assert_eq!(bytemuck::cast_slice::<u8, f32>(call.output(0)), expect);
        }
        assert_eq!(call.state(0), 42f32.to_ne_bytes());
    }
}
