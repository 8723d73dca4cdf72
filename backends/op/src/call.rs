//! Runs one kernel over memory of its own: for calibration and tests, where no calendar gives it any.
#![expect(unsafe_code, reason = "lends its own memory to a kernel as ports")]

use zbmd_ir::{Actor, DType, InPlace, TokenType};

use crate::aligned::AlignedVec;
use crate::kernel::{CallShape, Io, Kernel, KernelFault, RawPort, Scratch};

/// Memory of a port.
struct Memory {
    bytes: AlignedVec<u8>,
    dtype: DType,
}

impl Memory {
    fn new(token: &TokenType, tokens: u64) -> Self {
        let bytes = usize::try_from(token.bytes().saturating_mul(tokens)).unwrap_or(usize::MAX);
        Self {
            bytes: AlignedVec::zeroed(bytes),
            dtype: token.dtype,
        }
    }

    fn port(&mut self) -> RawPort {
        RawPort {
            ptr: self.bytes.as_mut_ptr(),
            bytes: self.bytes.len(),
            dtype: self.dtype,
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
    scratch: AlignedVec<u8>,
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
            scratch: AlignedVec::zeroed(scratch_bytes),
            ports: Vec::new(),
        }
    }

    /// All windows of an input: `(firings − 1)·rate + window` tokens.
    pub fn input(&mut self, index: usize) -> &mut [u8] {
        &mut self.inputs[index].bytes
    }

    /// What the last run wrote: `firings·rate` tokens.
    pub fn output(&self, index: usize) -> &[u8] {
        &self.outputs[index].bytes
    }

    /// A state: before a run the token that it starts from, afterwards the one it ended with.
    pub fn state(&mut self, index: usize) -> &mut [u8] {
        &mut self.states[index].bytes
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
            self.inputs[i].bytes.len() <= self.outputs[o].bytes.len()
        });
        for pair in &ins {
            let (i, o) = ports(pair);
            let from = &self.inputs[i].bytes;
            self.outputs[o].bytes[at(pair)..][..from.len()].copy_from_slice(from);
        }

        // An input larger than its output is overwritten by the kernel, and restored for the next run.
        let kept: Vec<Vec<u8>> = outs
            .iter()
            .map(|pair| self.inputs[ports(pair).0].bytes.to_vec())
            .collect();
        let result = self.fire(kernel, pairs);

        for pair in &outs {
            let (i, o) = ports(pair);
            let to = &mut self.outputs[o].bytes;
            let from = &self.inputs[i].bytes[at(pair)..][..to.len()];
            to.copy_from_slice(from);
        }
        for (pair, kept) in outs.iter().zip(kept) {
            self.inputs[ports(pair).0].bytes.copy_from_slice(&kept);
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
        let scratch = Scratch(self.scratch.as_mut_ptr(), self.scratch.len());
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
