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
pub struct Io<'a> {
    firings: usize,
    inputs: &'a [RawPort],
    outputs: &'a [RawPort],
    states: &'a [RawPort],
    scratch: (*mut u8, usize),
    /// One bit for each output (low half), state (high half): set once handed out as `&mut`.
    taken: u64,
    scratch_taken: bool,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Io<'a> {
    /// Most outputs, and most states, of one actor.
    pub const MAX_MUT_PORTS: usize = 32;

    /// The view of one call.
    ///
    /// Port slices are indexed without the state pairs' ports, in port order; states in the actor's order.
    ///
    /// # Safety
    /// For `'a`, every port's `bytes` bytes at `ptr` must be valid, initialised and aligned for its dtype; no byte of
    /// an output, a state or the scratch memory may be reachable in any other way (by another port of this call,
    /// another thread, or a reference); inputs may overlap each other but nobody may write them. Scratch must be
    /// aligned to 64 bytes.
    pub unsafe fn new(
        firings: usize,
        inputs: &'a [RawPort],
        outputs: &'a [RawPort],
        states: &'a [RawPort],
        scratch: (*mut u8, usize),
    ) -> Self {
        Self {
            firings,
            inputs,
            outputs,
            states,
            scratch,
            taken: 0,
            scratch_taken: false,
            memory: PhantomData,
        }
    }

    /// Number of consecutive firings to run, at least 1.
    pub fn firings(&self) -> usize {
        self.firings
    }

    /// Number of inputs, not counting state.
    pub fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Number of outputs, not counting state.
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// The elements of input `index`, all firings' windows together.
    ///
    /// # Panics
    /// If there is no such input or its dtype is another.
    pub fn input<T: Element>(&self, index: usize) -> &'a [T] {
        let port = self.inputs[index];
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
        let port = self.outputs[index];
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
        let port = self.states[index];
        self.take(Self::MAX_MUT_PORTS + index);
        check_dtype::<T>(port.dtype);
        // SAFETY: as in `output`.
        unsafe { std::slice::from_raw_parts_mut(port.ptr.cast::<T>(), port.bytes / size_of::<T>()) }
    }

    /// Input `index` as bytes, whatever its dtype.
    pub fn input_bytes(&self, index: usize) -> &'a [u8] {
        let port = self.inputs[index];
        // SAFETY: as in `input`; any initialised memory may be read as bytes.
        unsafe { std::slice::from_raw_parts(port.ptr, port.bytes) }
    }

    /// Output `index` as bytes, whatever its dtype. The same taking rule as [`Self::output`].
    pub fn output_bytes(&mut self, index: usize) -> &'a mut [u8] {
        let port = self.outputs[index];
        self.take(index);
        // SAFETY: as in `output`; every dtype is plain old data.
        unsafe { std::slice::from_raw_parts_mut(port.ptr, port.bytes) }
    }

    /// State `index` as bytes, whatever its dtype. The same taking rule as [`Self::state`].
    pub fn state_bytes(&mut self, index: usize) -> &'a mut [u8] {
        let port = self.states[index];
        self.take(Self::MAX_MUT_PORTS + index);
        // SAFETY: as in `output_bytes`.
        unsafe { std::slice::from_raw_parts_mut(port.ptr, port.bytes) }
    }

    /// Scratch memory of at least [`Kernel::scratch_bytes`], with stale contents, seen as elements of T. Once per call.
    ///
    /// # Panics
    /// If it was taken before.
    pub fn scratch<T: bytemuck::Pod>(&mut self) -> &'a mut [T] {
        assert!(!self.scratch_taken, "scratch taken twice in one call");
        assert!(align_of::<T>() <= 64, "scratch is aligned to 64 bytes");
        self.scratch_taken = true;
        if self.scratch.1 == 0 {
            return &mut [];
        }
        // SAFETY: `new` promises exclusive, initialised, 64-aligned memory of that size; T is Pod.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.scratch.0.cast::<T>(),
                self.scratch.1 / size_of::<T>(),
            )
        }
    }

    fn take(&mut self, bit: usize) {
        assert!(bit < 64 && self.taken & (1 << bit) == 0, "port taken twice in one call");
        self.taken |= 1 << bit;
    }
}

fn check_dtype<T: Element>(port: DType) {
    let fits = T::DTYPE == port || (T::DTYPE == DType::U8 && port == DType::Bool);
    assert!(fits, "port holds {port}, kernel asked for {}", T::DTYPE);
}
