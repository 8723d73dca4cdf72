//! Calls: a bundle for one CPU device that runs on the thread that calls it.
#![expect(
    unsafe_code,
    reason = "exports functions under their C names, which are given pointers"
)]
#![expect(non_camel_case_types, reason = "names as C programs write them")]

use std::ffi::c_void;
use std::sync::Arc;

use zbmd_executor::{CallError, Caller};

use crate::border::{input, items, needed, output, put};
use crate::bundle::{Bundle, zbmd_bundle};
use crate::handles;
use crate::status::{Failure, guard, zbmd_status};
use zbmd_status::*;

/// A bundle that is called.
pub struct zbmd_caller {
    _opaque: [u8; 0],
}

/// The tokens of a source in a call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct zbmd_input {
    /// Where they are.
    pub tokens: *const c_void,
    /// As many as `zbmd_caller_bytes` says.
    pub bytes: usize,
}

/// Where a call puts the tokens of a sink.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct zbmd_output {
    /// The place.
    pub tokens: *mut c_void,
    /// As many as `zbmd_caller_bytes` says.
    pub bytes: usize,
}

/// Makes a caller of a bundle, which runs on the thread that calls it: for short programs, such as small networks, that take less time
/// than waking another thread. The bundle must have one mode and be for one CPU device (`devices` of 1 in `zbmd_compile_options`,
/// `zbmdc compile --devices 1`), else the answer is `ZBMD_REFUSED`. A call is one block, which is one iteration of the model if it was
/// compiled with a `block` of 1. A caller serves one thread at a time, and
/// outlives its bundle.
///
/// # Safety
/// A `zbmd_caller *` can be written to `caller`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_bundle_caller(
    bundle: *const zbmd_bundle,
    caller: *mut *mut zbmd_caller,
) -> zbmd_status {
    guard(|| {
        let place = needed(caller, "caller")?;
        let open_bundle: Arc<Bundle> = handles::get(bundle.addr())?;
        let handle = handles::open(open_bundle.engine.caller()?)?;
        // SAFETY: the caller's promise.
        unsafe { put(place, std::ptr::without_provenance_mut(handle)) };
        Ok(ZBMD_OK)
    })
}

/// The bytes of one source's or sink's tokens in a call: streams are counted as `zbmd_bundle_stream` does, first all sources and then all
/// sinks, from 0 on; `ZBMD_ENDED` after the last.
///
/// # Safety
/// A `size_t` can be written to `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_caller_bytes(
    caller: *mut zbmd_caller,
    index: usize,
    bytes: *mut usize,
) -> zbmd_status {
    guard(|| {
        let place = needed(bytes, "bytes")?;
        let found = handles::with(caller.addr(), |caller: &mut Caller| {
            let streams = caller.inputs().chain(caller.outputs());
            Ok(streams.map(|(_, bytes)| bytes).nth(index))
        })?;
        let Some(found) = found else {
            return Ok(ZBMD_ENDED);
        };
        // SAFETY: the caller's promise.
        unsafe { put(place, found) };
        Ok(ZBMD_OK)
    })
}

/// Runs one block on the calling thread: takes the tokens of all sources and gives those of all sinks, each in the order of
/// `zbmd_bundle_stream`. It goes on from the states that the call before it left.
///
/// - `ZBMD_OK`: the outputs are there;
/// - `ZBMD_USAGE`: another number of inputs, outputs or bytes than the bundle has: nothing has run;
/// - `ZBMD_FAULT`: a kernel failed, now or in an earlier call: make another caller.
///
/// # Safety
/// `input_count` inputs can be read at `inputs` and `output_count` outputs at `outputs`; the bytes of each input can be read and those of
/// each output written, and nobody else writes or uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_caller_call(
    caller: *mut zbmd_caller,
    inputs: *const zbmd_input,
    input_count: usize,
    outputs: *const zbmd_output,
    output_count: usize,
) -> zbmd_status {
    guard(|| {
        // SAFETY: the caller's promise, here and in the two below.
        let inputs = unsafe { items(inputs, input_count, "inputs") }?.iter();
        // SAFETY: as above.
        let tokens = inputs.map(|given| unsafe { input(given.tokens, given.bytes) });
        let tokens = tokens.collect::<Result<Vec<&[u8]>, Failure>>()?;
        // SAFETY: as above.
        let outputs = unsafe { items(outputs, output_count, "outputs") }?.iter();
        // SAFETY: as above.
        let places = outputs.map(|given| unsafe { output(given.tokens, given.bytes) });
        let mut places = places.collect::<Result<Vec<&mut [u8]>, Failure>>()?;

        handles::with(caller.addr(), |caller: &mut Caller| {
            caller.call(&tokens, &mut places)?;
            Ok(ZBMD_OK)
        })
    })
}

/// Closes a caller.
#[unsafe(no_mangle)]
pub extern "C" fn zbmd_caller_close(caller: *mut zbmd_caller) -> zbmd_status {
    guard(|| handles::close::<Caller>(caller.addr()).map(|_| ZBMD_OK))
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let text = error.to_string();
        match error {
            CallError::Streams { .. } | CallError::Bytes { .. } => Self::usage(text),
            CallError::Failed(run_error) => run_error.into(),
            CallError::Ended => Self::new(ZBMD_FAULT, text),
        }
    }
}
