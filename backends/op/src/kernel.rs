//! What a kernel is: a pure function from windows to tokens, called for a range of firings.
//!
//! Holds the only place where port memory, handed over as raw pointers by the executor and the interpreter, becomes
//! typed slices. Must not know calendars or devices.
#![expect(
    unsafe_code,
    reason = "turns the port pointers of a calendar slot into typed slices, once, here"
)]

use std::marker::PhantomData;

use half::{bf16, f16};
use num_complex::Complex32;
use zbmd_ir::DType;

/// A fault that a kernel reports: what no caller can foresee. Wrong models are refused long before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KernelFault(pub &'static str);

/// Code of one actor on one device.
///
/// A kernel is a pure function of its windows and state tokens: `&self` holds constants only, and two calls with the
/// same input bits give the same output bits, whether n firings come in one call or in n calls. Only the sign and
/// payload of a NaN are left open, as Rust leaves them: no kernel may let them decide anything that is not a NaN.
pub trait Kernel: Send + Sync {
    /// Runs `io.firings()` consecutive firings. Must write every element of every output.
    ///
    /// # Errors
    /// A [`KernelFault`] where the firing could not be done at all (never for odd values: those are data).
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault>;

    /// Bytes of scratch memory that one call needs, whatever its number of firings.
    fn scratch_bytes(&self) -> usize {
        0
    }
}

/// An element type: plain old data that stands for one [`DType`].
pub trait Element: bytemuck::Pod + Send + Sync {
    /// Its dtype. `bool` tokens are seen as `u8`.
    const DTYPE: DType;
}

macro_rules! element {
    ($($ty:ty => $dtype:ident),*) => { $(impl Element for $ty { const DTYPE: DType = DType::$dtype; })* };
}
element!(f32 => F32, f64 => F64, f16 => F16, bf16 => Bf16, i8 => I8, u8 => U8, i16 => I16, i32 => I32, i64 => I64,
    Complex32 => C32);

/// The memory that one port of one call sees. Plain data: making one is safe, using one is not.
#[derive(Clone, Copy, Debug)]
pub struct RawPort {
    /// First byte.
    pub ptr: *mut u8,
    /// Bytes, a multiple of the dtype's size.
    pub bytes: usize,
    /// Element type.
    pub dtype: DType,
}

/// The windows, outputs and state tokens of one kernel call.
///
/// For n firings, `input(i)` is the union of the n windows: `(n-1)*rate + window` tokens; firing k looks at tokens
/// `[k*rate, k*rate + window)` of it. `output(i)` is `n*rate` tokens. Ports in a state pair are not inputs or
/// outputs here: their one token is `state(i)`, read and updated in place, firing after firing.
///
/// One is made for every slot of a calendar, so it is kept small: what is the same in every period lies elsewhere.
pub struct Io<'a> {
    shape: &'a CallShape,
    /// Inputs, then outputs, then states.
    ports: *const RawPort,
    scratch: &'a Scratch,
    /// One bit for each output (low half), state (high half) and the scratch (top): set once handed out as `&mut`.
    taken: u64,
    memory: PhantomData<&'a mut [u8]>,
}

/// What is the same in every call of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallShape {
    /// Consecutive firings, at least 1.
    pub firings: usize,
    /// Ports that are read, without those of state pairs.
    pub inputs: u16,
    /// Ports that are written, without those of state pairs.
    pub outputs: u16,
    /// State pairs.
    pub states: u16,
    /// Whether an output lies over an input; see [`Io::over`]. Which ones, their addresses say.
    pub over: bool,
}

/// Scratch memory that a device lends to one call after the other: its first byte, aligned to 64, and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Scratch(pub *mut u8, pub usize);

/// A call as [`Io::new`] is told of it. Plain data: using its pointers is unsafe.
#[derive(Clone, Copy)]
pub(crate) struct RawCall<'a> {
    pub(crate) shape: &'a CallShape,
    pub(crate) ports: *const RawPort,
    pub(crate) scratch: Scratch,
}

impl CallShape {
    /// Ports in the row of a call: inputs, outputs, states.
    pub fn total(self) -> usize {
        usize::from(self.inputs) + usize::from(self.outputs) + usize::from(self.states)
    }
}

impl<'a> Io<'a> {
    /// Most outputs, and most states, of one actor.
    pub const MAX_MUT_PORTS: usize = 31;
    const STATES: usize = 32;
    const SCRATCH: usize = 63;

    /// The view of one call.
    ///
    /// `ports` leads to `shape.total()` ports in a row: inputs and outputs without those of state pairs, in port
    /// order, then states in the actor's order.
    ///
    /// # Safety
    /// For `'a`, the row must be valid and unchanged, and every port's `bytes` bytes at `ptr` valid, initialised and
    /// aligned for its dtype; no byte of an output, a state or the scratch memory may be reachable in any other way
    /// (by another port of this call, another thread, or a reference); inputs may overlap each other but nobody may
    /// write them. Only where `shape.over` says so may inputs and outputs of this call overlap. The scratch memory must
    /// be valid, initialised and aligned to 64 bytes.
    #[inline(always)]
    pub unsafe fn new(shape: &'a CallShape, ports: *const RawPort, scratch: &'a Scratch) -> Self {
        Self {
            shape,
            ports,
            scratch,
            taken: 0,
            memory: PhantomData,
        }
    }

    /// What the call was made of, for a kernel that calls another one.
    pub(crate) fn raw_call(&self) -> RawCall<'a> {
        RawCall {
            shape: self.shape,
            ports: self.ports,
            scratch: *self.scratch,
        }
    }

    /// Number of consecutive firings to run, at least 1.
    pub fn firings(&self) -> usize {
        self.shape.firings
    }

    /// Number of inputs, not counting state.
    pub fn inputs(&self) -> usize {
        usize::from(self.shape.inputs)
    }

    /// Number of outputs, not counting state.
    pub fn outputs(&self) -> usize {
        usize::from(self.shape.outputs)
    }

    /// The (first) input that output `index` is written over in this call, if there is one: the output then holds the
    /// input's tokens until they are overwritten, and the input cannot be asked for. Happens to actors with
    /// [`zbmd_ir::Actor::in_place`] only, whose kernels must do the same either way.
    ///
    /// # Panics
    /// If there is no such output.
    #[inline]
    pub fn over(&self, index: usize) -> Option<usize> {
        if !self.shape.over {
            return None;
        }
        (0..self.inputs()).find(|&input| self.shares(input, index))
    }

    /// Whether output `output` is written over input `input` in this call, or over a part of it, or has it as a part.
    /// Where they lie to each other is what the actor's [`zbmd_ir::InPlace`] says.
    ///
    /// # Panics
    /// If there are no such ports.
    #[inline]
    pub fn shares(&self, input: usize, output: usize) -> bool {
        self.shape.over && {
            let x = self.port(0, self.shape.inputs, input);
            overlap(x, self.output_port(output))
        }
    }

    /// The elements of input `index`, all firings' windows together.
    ///
    /// # Panics
    /// If there is no such input, its dtype is another, or an output is written over it.
    pub fn input<T: Element>(&self, index: usize) -> &'a [T] {
        let port = self.input_port(index);
        check_dtype::<T>(port.dtype);
        // SAFETY: `new` promises valid, initialised, aligned memory that nobody writes for 'a; T is Pod and its dtype
        // is the port's, so size and alignment fit.
        unsafe { std::slice::from_raw_parts(port.ptr.cast::<T>(), port.bytes / size_of::<T>()) }
    }

    /// The elements of output `index`, all firings together. Each output can be taken once per call.
    ///
    /// # Panics
    /// If there is no such output, its dtype is another, or it was taken before.
    pub fn output<T: Element>(&mut self, index: usize) -> &'a mut [T] {
        let port = self.output_port(index);
        self.take(index);
        check_dtype::<T>(port.dtype);
        // SAFETY: as in `input`, and `new` promises that no other path reaches these bytes; `take` hands each out once.
        unsafe { std::slice::from_raw_parts_mut(port.ptr.cast::<T>(), port.bytes / size_of::<T>()) }
    }

    /// The elements of state `index`'s one token: on entry the state before the first firing, on return the state
    /// after the last. Each state can be taken once per call.
    ///
    /// # Panics
    /// If there is no such state, its dtype is another, or it was taken before.
    pub fn state<T: Element>(&mut self, index: usize) -> &'a mut [T] {
        let port = self.state_port(index);
        self.take(Self::STATES + index);
        check_dtype::<T>(port.dtype);
        // SAFETY: as in `output`.
        unsafe { std::slice::from_raw_parts_mut(port.ptr.cast::<T>(), port.bytes / size_of::<T>()) }
    }

    /// Input `index` as bytes, whatever its dtype.
    ///
    /// # Panics
    /// If there is no such input, or an output is written over it.
    pub fn input_bytes(&self, index: usize) -> &'a [u8] {
        let port = self.input_port(index);
        // SAFETY: as in `input`; any initialised memory may be read as bytes.
        unsafe { std::slice::from_raw_parts(port.ptr, port.bytes) }
    }

    /// Bytes of input `index` that no output is written over, though outputs may be over others.
    ///
    /// # Panics
    /// If there is no such input, it has no such bytes, or an output is written over them.
    pub fn part_bytes(&self, index: usize, range: std::ops::Range<usize>) -> &'a [u8] {
        let port = self.port(0, self.shape.inputs, index);
        assert!(
            range.start <= range.end && range.end <= port.bytes,
            "bytes beyond input {index}"
        );
        let part = RawPort {
            ptr: port.ptr.wrapping_add(range.start),
            bytes: range.len(),
            ..port
        };
        self.check_apart(index, part);
        // SAFETY: as in `input_bytes`; the part lies within the port.
        unsafe { std::slice::from_raw_parts(part.ptr, part.bytes) }
    }

    /// Output `index` as bytes, whatever its dtype. The same taking rule as [`Self::output`].
    pub fn output_bytes(&mut self, index: usize) -> &'a mut [u8] {
        let port = self.output_port(index);
        self.take(index);
        // SAFETY: as in `output`; every dtype is plain old data.
        unsafe { std::slice::from_raw_parts_mut(port.ptr, port.bytes) }
    }

    /// State `index` as bytes, whatever its dtype. The same taking rule as [`Self::state`].
    pub fn state_bytes(&mut self, index: usize) -> &'a mut [u8] {
        let port = self.state_port(index);
        self.take(Self::STATES + index);
        // SAFETY: as in `output_bytes`.
        unsafe { std::slice::from_raw_parts_mut(port.ptr, port.bytes) }
    }

    /// Scratch memory of at least [`Kernel::scratch_bytes`], with stale contents, seen as elements of T. Once per call.
    ///
    /// # Panics
    /// If it was taken before.
    pub fn scratch<T: bytemuck::Pod>(&mut self) -> &'a mut [T] {
        assert!(align_of::<T>() <= 64, "scratch is aligned to 64 bytes");
        self.take(Self::SCRATCH);
        let Scratch(ptr, bytes) = *self.scratch;
        if bytes == 0 {
            return &mut [];
        }
        // SAFETY: `new` promises exclusive, initialised, 64-aligned memory of that size; T is Pod.
        unsafe { std::slice::from_raw_parts_mut(ptr.cast::<T>(), bytes / size_of::<T>()) }
    }

    #[inline]
    fn input_port(&self, index: usize) -> RawPort {
        let port = self.port(0, self.shape.inputs, index);
        self.check_apart(index, port);
        port
    }

    /// Refuses bytes of an input to which there may be a `&mut`, or there may come one.
    #[inline]
    fn check_apart(&self, index: usize, part: RawPort) {
        let over =
            self.shape.over && (0..self.outputs()).any(|o| overlap(part, self.output_port(o)));
        assert!(!over, "input {index} lies under an output");
    }

    #[inline]
    fn output_port(&self, index: usize) -> RawPort {
        self.port(usize::from(self.shape.inputs), self.shape.outputs, index)
    }

    #[inline]
    fn state_port(&self, index: usize) -> RawPort {
        let first = usize::from(self.shape.inputs) + usize::from(self.shape.outputs);
        self.port(first, self.shape.states, index)
    }

    /// Port `index` of the `count` ports of one kind that begin at `first`.
    #[inline]
    fn port(&self, first: usize, count: u16, index: usize) -> RawPort {
        assert!(
            index < usize::from(count),
            "port {index} of {count} asked for"
        );
        // SAFETY: `new` promises `shape.total()` ports in a row; `index` was just checked against its kind's.
        unsafe { *self.ports.add(first + index) }
    }

    fn take(&mut self, bit: usize) {
        assert!(
            bit < 64 && self.taken & (1 << bit) == 0,
            "a port or the scratch taken twice in one call"
        );
        self.taken |= 1 << bit;
    }
}

/// Whether two ports have bytes in common.
fn overlap(a: RawPort, b: RawPort) -> bool {
    let a_start = a.ptr.addr();
    let b_start = b.ptr.addr();
    a_start < b_start + b.bytes && b_start < a_start + a.bytes
}

fn check_dtype<T: Element>(port: DType) {
    let fits = T::DTYPE == port || (T::DTYPE == DType::U8 && port == DType::Bool);
    assert!(fits, "port holds {port}, kernel asked for {}", T::DTYPE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C, align(64))]
    struct Memory([f32; 64]);

    /// Runs `f` on a call of two inputs that overlap, one output and one state, all in one allocation.
    fn with_io<R>(f: impl FnOnce(&mut Io<'_>) -> R) -> ([f32; 64], R) {
        let mut memory = Memory(std::array::from_fn(|i| i as f32));
        let base = memory.0.as_mut_ptr().cast::<u8>();
        let port = |from: usize, elements: usize| RawPort {
            ptr: base.wrapping_add(4 * from),
            bytes: 4 * elements,
            dtype: DType::F32,
        };
        let ports = [port(0, 6), port(2, 6), port(16, 4), port(32, 1)];
        let shape = CallShape {
            firings: 4,
            inputs: 2,
            outputs: 1,
            states: 1,
            over: false,
        };
        assert_eq!(shape.total(), ports.len());
        let scratch = Scratch(base.wrapping_add(4 * 48), 32);
        // SAFETY: all ports and the scratch lie in `memory`, which only this call touches; what is written is disjoint
        // from all else.
        let result = f(&mut unsafe { Io::new(&shape, ports.as_ptr(), &scratch) });
        (memory.0, result)
    }

    #[test]
    fn ports_are_seen_as_typed_slices_at_the_same_time() {
        let (memory, ()) = with_io(|io| {
            assert_eq!((io.firings(), io.inputs(), io.outputs()), (4, 2, 1));
            let (a, b) = (io.input::<f32>(0), io.input::<f32>(1));
            let (y, s) = (io.output::<f32>(0), io.state::<f32>(0));
            let scratch = io.scratch::<f32>();
            assert_eq!(
                (a.len(), b.len(), y.len(), s.len(), scratch.len()),
                (6, 6, 4, 1, 8)
            );
            for (((y, a), b), t) in y.iter_mut().zip(a).zip(b).zip(scratch) {
                *t = a + b;
                s[0] += *t;
                *y = s[0];
            }
            assert_eq!(io.input_bytes(0)[4..8], 1f32.to_ne_bytes());
        });
        assert_eq!(memory[16..20], [34.0, 38.0, 44.0, 52.0]);
        assert_eq!((memory[32], memory[48], memory[51]), (52.0, 2.0, 8.0));
        assert_eq!(memory[20], 20.0, "nothing behind the output is written");
    }

    #[test]
    fn bytes_of_outputs_and_states_can_be_written() {
        let (memory, ()) = with_io(|io| {
            io.output_bytes(0).fill(0);
            io.state_bytes(0).copy_from_slice(&7f32.to_ne_bytes());
        });
        assert_eq!((memory[16], memory[19], memory[32]), (0.0, 0.0, 7.0));
    }

    #[test]
    fn an_input_under_an_output_is_seen_through_the_output_only() {
        let mut memory = Memory(std::array::from_fn(|i| i as f32));
        let ptr = memory.0.as_mut_ptr().cast::<u8>();
        let port = RawPort {
            ptr,
            bytes: 16,
            dtype: DType::F32,
        };
        let other = RawPort {
            ptr: ptr.wrapping_add(64),
            ..port
        };
        let ports = [other, port, port];
        let shape = CallShape {
            firings: 4,
            inputs: 2,
            outputs: 1,
            states: 0,
            over: true,
        };
        let scratch = Scratch(ptr, 0);
        // SAFETY: all ports lie in `memory`, which only this call touches; the last two are one, as the shape says.
        let mut io = unsafe { Io::new(&shape, ports.as_ptr(), &scratch) };
        assert_eq!(
            (io.over(0), io.shares(0, 0), io.shares(1, 0)),
            (Some(1), false, true)
        );
        for input in [
            |io: &Io<'_>| _ = io.input::<f32>(1),
            |io: &Io<'_>| _ = io.input_bytes(1),
        ] {
            let asked = std::panic::AssertUnwindSafe(|| input(&io));
            assert!(std::panic::catch_unwind(asked).is_err());
        }
        let (x, y) = (io.input::<f32>(0), io.output::<f32>(0));
        y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
        assert_eq!(memory.0[..5], [16.0, 18.0, 20.0, 22.0, 4.0]);
    }

    #[test]
    fn of_an_input_with_an_output_over_a_part_the_rest_can_be_read() {
        let mut memory = Memory(std::array::from_fn(|i| i as f32));
        let ptr = memory.0.as_mut_ptr().cast::<u8>();
        let port = |at, bytes| RawPort {
            ptr: ptr.wrapping_add(at),
            bytes,
            dtype: DType::F32,
        };
        // Eight elements, of which one output has the second half and the other is elsewhere.
        let ports = [port(0, 32), port(16, 16), port(64, 16)];
        let shape = CallShape {
            firings: 1,
            inputs: 1,
            outputs: 2,
            states: 0,
            over: true,
        };
        let scratch = Scratch(ptr, 0);
        // SAFETY: all ports lie in `memory`, which only this call touches; outputs are disjoint, and the shape says
        // that one lies over the input.
        let mut io = unsafe { Io::new(&shape, ports.as_ptr(), &scratch) };
        assert_eq!((io.over(0), io.over(1)), (Some(0), None));
        for range in [0..17, 16..20, 31..32, 32..33] {
            let asked = std::panic::AssertUnwindSafe(|| io.part_bytes(0, range));
            assert!(std::panic::catch_unwind(asked).is_err());
        }
        io.output_bytes(1).copy_from_slice(io.part_bytes(0, 0..16));
        io.output::<f32>(0)[0] += 0.5;
        assert_eq!(
            (memory.0[4], &memory.0[16..20]),
            (4.5, &[0.0, 1.0, 2.0, 3.0][..])
        );
    }

    #[test]
    fn misuse_panics_before_it_can_alias() {
        type Misuse = fn(&mut Io<'_>);
        let cases: [(&str, Misuse); 8] = [
            ("output twice", |io| {
                io.output::<f32>(0);
                io.output::<f32>(0);
            }),
            ("output as bytes too", |io| {
                io.output::<f32>(0);
                io.output_bytes(0);
            }),
            ("state twice", |io| {
                io.state::<f32>(0);
                io.state_bytes(0);
            }),
            ("scratch twice", |io| {
                io.scratch::<u8>();
                io.scratch::<u8>();
            }),
            ("input of another type", |io| {
                io.input::<f64>(0);
            }),
            ("an input that is not there", |io| {
                io.input::<f32>(2);
            }),
            ("an output that is not there", |io| {
                io.output::<f32>(1);
            }),
            ("a state that is not there", |io| {
                io.state::<f32>(1);
            }),
        ];
        for (what, misuse) in cases {
            let caught = std::panic::catch_unwind(|| with_io(misuse));
            assert!(caught.is_err(), "{what} was allowed");
        }
    }
}
