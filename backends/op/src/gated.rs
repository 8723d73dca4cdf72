//! The kernel of a gated actor: calls that of its op for the firings that are open, and answers for the others.
//!
//! What a gate means is said in `zbmd_ir::Gate`. Must not know ops: it knows ports by their bytes.
#![expect(
    unsafe_code,
    reason = "hands parts of its own call's ports to another kernel, and writes what closed firings give"
)]

use std::ops::Range;
use std::sync::Arc;

use zbmd_ir::{Actor, ClosedAnswer, DType, Gate, is_open};

use crate::OpError;
use crate::kernel::{CallShape, Io, Kernel, KernelFault, RawCall, RawPort, Scratch};

/// What scratch memory is aligned to.
const SCRATCH_ALIGN: usize = 64;

/// See the head of this file.
pub(crate) struct GatedKernel {
    inner: Arc<dyn Kernel>,
    gate: GateWindow,
    /// Bytes that each port of the row moves on by with a firing; 0 for states. Inputs, outputs, states of the op.
    steps: Vec<usize>,
    /// Ports of the op's kernel.
    inputs: usize,
    states: usize,
    /// Of each output.
    answers: Vec<ClosedAnswer>,
    state_answer: ClosedAnswer,
    /// Where the row of ports for the op's kernel lies in the scratch memory.
    row_offset: usize,
}

/// The window of a gate, in bytes.
struct GateWindow {
    dtype: DType,
    step: usize,
    window: usize,
}

impl GateWindow {
    /// Where the last element ends that opens the gate.
    fn last_open_end(&self, tokens: &[u8]) -> Option<usize> {
        // Every actor behind a gate looks at all of its window while it is closed: most often at nothing but zeros.
        if tokens.iter().fold(0, |bits, byte| bits | byte) == 0 {
            return None;
        }
        let element_bytes = self.dtype.size_bytes() as usize;
        let mut elements = tokens.chunks_exact(element_bytes);
        let index = elements.rposition(|element| is_open(self.dtype, element))?;
        Some((index + 1) * element_bytes)
    }
}

/// What a gate says of firings that are asked for in order. Looks at each token once, however long windows are.
struct GateScan<'a> {
    window: &'a GateWindow,
    tokens: &'a [u8],
    /// Bytes that were looked at.
    seen: usize,
    /// End of the last element among them that is not zero.
    last_end: usize,
}

impl<'a> GateScan<'a> {
    fn new(window: &'a GateWindow, tokens: &'a [u8]) -> Self {
        Self {
            window,
            tokens,
            seen: 0,
            last_end: 0,
        }
    }

    /// Whether a firing is open: not before one that was asked for.
    fn is_open(&mut self, firing: usize) -> bool {
        let start = firing * self.window.step;
        let end = start + self.window.window;
        if self.seen < end {
            let unseen = &self.tokens[self.seen..end];
            if let Some(open_end) = self.window.last_open_end(unseen) {
                self.last_end = self.seen + open_end;
            }
            self.seen = end;
        }
        self.last_end > start
    }
}

/// The ports of a call by their kinds, in the order of a row.
#[derive(Clone, Copy)]
struct Row<'a> {
    inputs: &'a [RawPort],
    gate: RawPort,
    outputs: &'a [RawPort],
    states: &'a [RawPort],
    held: &'a [RawPort],
}

impl GatedKernel {
    /// The kernel of an actor with a gate; `inner` is that of the actor without it.
    ///
    /// # Errors
    /// [`OpError::Other`] for an actor that cannot have this gate, or has more states than a call, held outputs among
    /// them.
    pub(crate) fn new(actor: &Actor, gate: &Gate, inner: Arc<dyn Kernel>) -> Result<Self, OpError> {
        if let Some(why) = gate.fault(actor) {
            return Err(OpError::Other {
                message: format!("the gate {why}"),
                help: "the program was made by another version: compile the model again".to_owned(),
            });
        }
        if actor.state.len() > Io::MAX_MUT_PORTS {
            return Err(OpError::Other {
                message: format!(
                    "has {} states and held outputs, more than the {} of a call",
                    actor.state.len(),
                    Io::MAX_MUT_PORTS
                ),
                help: "answer with zeros while it is closed: `closed: zero`".to_owned(),
            });
        }

        let bare = gate.without(actor);
        let input_port = &actor.inputs[gate.input as usize];
        let bytes = |tokens: u64| (tokens * input_port.token.bytes()) as usize;
        let gate_window = GateWindow {
            dtype: input_port.token.dtype,
            step: bytes(input_port.rate),
            window: bytes(input_port.window),
        };

        let mut steps = Vec::new();
        for (index, port) in (0..).zip(&bare.inputs) {
            if bare.state_of_input(index).is_none() {
                steps.push((port.rate * port.token.bytes()) as usize);
            }
        }
        let inputs = steps.len();
        for (index, port) in (0..).zip(&bare.outputs) {
            if bare.state_of_output(index).is_none() {
                steps.push((port.rate * port.token.bytes()) as usize);
            }
        }
        let states = bare.state.len();
        steps.resize(steps.len() + states, 0);

        Ok(Self {
            row_offset: inner.scratch_bytes().next_multiple_of(SCRATCH_ALIGN),
            inner,
            gate: gate_window,
            steps,
            inputs,
            states,
            answers: gate.outputs.clone(),
            state_answer: gate.states,
        })
    }

    /// The ports of a call.
    fn row<'a>(&self, call: &RawCall<'a>) -> Row<'a> {
        let total = call.shape.total();
        // SAFETY: `Io::new` promises so many ports in a row, unchanged during the call.
        let ports = unsafe { std::slice::from_raw_parts(call.ports, total) };
        let (inputs, ports) = ports.split_at(self.inputs);
        let (gate, ports) = ports.split_at(1);
        let (outputs, ports) = ports.split_at(self.answers.len());
        let (states, held) = ports.split_at(self.states);
        Row {
            inputs,
            gate: gate[0],
            outputs,
            states,
            held,
        }
    }

    /// Calls the op's kernel for firings that are open, and keeps what is held of the last of them.
    fn run_open(
        &self,
        call: &RawCall<'_>,
        row: Row<'_>,
        firings: Range<usize>,
    ) -> Result<(), KernelFault> {
        let ports = row.inputs.iter().chain(row.outputs).chain(row.states);
        let left_out = call.shape.firings - firings.len();
        let first_port = call
            .scratch
            .0
            .wrapping_add(self.row_offset)
            .cast::<RawPort>();
        for (index, (port, &step)) in ports.zip(&self.steps).enumerate() {
            let part = RawPort {
                ptr: port.ptr.wrapping_add(firings.start * step),
                bytes: port.bytes - left_out * step,
                ..*port
            };
            // SAFETY: `scratch_bytes` has room for a port for each step behind the inner kernel's scratch memory, which
            // is aligned to 64 bytes and nobody else's during the call.
            unsafe { first_port.add(index).write(part) };
        }

        let shape = CallShape {
            firings: firings.len(),
            inputs: self.inputs as u16,
            outputs: self.answers.len() as u16,
            states: self.states as u16,
            over: call.shape.over,
        };
        let scratch = Scratch(call.scratch.0, self.inner.scratch_bytes());
        // SAFETY: the row was just written, in memory that the inner kernel does not get. Its ports are parts of those of
        // this call, of which this kernel holds no references: so they are valid, aligned and as disjoint as those are.
        let mut io = unsafe { Io::new(&shape, first_port, &scratch) };
        self.inner.fire(&mut io)?;

        let mut held = row.held.iter();
        for (index, answer) in self.answers.iter().enumerate() {
            if *answer == ClosedAnswer::Hold
                && let Some(held) = held.next()
            {
                let step = self.steps[self.inputs + index];
                let last = row.outputs[index]
                    .ptr
                    .wrapping_add((firings.end - 1) * step);
                // SAFETY: a state that holds an output has the bytes of one firing, which the verifier checks; outputs
                // and states are disjoint, and the inner call has ended.
                unsafe { std::ptr::copy_nonoverlapping(last, held.ptr, step) };
            }
        }
        Ok(())
    }

    /// Writes what firings give that are closed.
    fn answer(&self, row: Row<'_>, firings: Range<usize>) {
        let mut held = row.held.iter();
        for (index, answer) in self.answers.iter().enumerate() {
            let step = self.steps[self.inputs + index];
            let first = row.outputs[index].ptr.wrapping_add(firings.start * step);
            match answer {
                // SAFETY: the bytes of these firings lie within the output, which is this call's alone.
                ClosedAnswer::Zero => unsafe { first.write_bytes(0, firings.len() * step) },
                ClosedAnswer::Hold => {
                    let Some(held) = held.next() else { continue };
                    for firing in 0..firings.len() {
                        // SAFETY: as above; what holds the output has the bytes of one firing and is disjoint from it.
                        unsafe {
                            let to = first.add(firing * step);
                            std::ptr::copy_nonoverlapping(held.ptr, to, step);
                        }
                    }
                }
            }
        }
        if self.state_answer == ClosedAnswer::Zero {
            for state in row.states {
                // SAFETY: a state is this call's alone.
                unsafe { state.ptr.write_bytes(0, state.bytes) };
            }
        }
    }
}

impl Kernel for GatedKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let call = io.raw_call();
        let row = self.row(&call);
        // SAFETY: the gate is an input: nobody writes it during the call, and no output lies over it, which the verifier
        // checks.
        let gate = unsafe { std::slice::from_raw_parts(row.gate.ptr, row.gate.bytes) };

        let mut scan = GateScan::new(&self.gate, gate);
        let mut first = 0;
        while first < call.shape.firings {
            let open = scan.is_open(first);
            let mut end = first + 1;
            while end < call.shape.firings && scan.is_open(end) == open {
                end += 1;
            }
            match open {
                true => self.run_open(&call, row, first..end)?,
                false => self.answer(row, first..end),
            }
            first = end;
        }
        Ok(())
    }

    fn scratch_bytes(&self) -> usize {
        self.row_offset + self.steps.len() * size_of::<RawPort>()
    }
}
