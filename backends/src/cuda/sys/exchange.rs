//! Memory that is shared with others: registered with the driver, and words of it that the queue waits for and stores.
//!
//! What is relied on (CUDA Driver API, "Stream Memory Operations", and `cuMemHostRegister`):
//! - operations of one stream are done in their order, and a copy ends before the next one begins;
//! - a store without `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`, which v2 of the API does not even have, comes after a
//!   fence for the whole system: whoever loads the word sees what copies before it wrote;
//! - a wait with `CU_STREAM_WAIT_VALUE_GEQ` goes on when the difference, as a number with a sign, is not negative; what
//!   the word's writer stored into the host's memory before it is there for the copies and kernels that follow;
//! - registered memory is coherent for both sides, and one registration with `CU_MEMHOSTREGISTER_PORTABLE` is good for
//!   all contexts of the process.
#![expect(unsafe_code, reason = "calls the CUDA driver")]

use std::ffi::c_uint;

use cudarc::driver::sys;

use super::super::driver::{Address, MAX_SIGNALS, Signal};
use super::super::error::{Said, Site};
use super::{Cuda, said};

/// Lets all devices of the process reach memory of the host's; where this one sees it.
pub(super) fn register(cuda: &Cuda, first: *mut u8, bytes: u64) -> Result<Address, Said> {
    const FLAGS: c_uint = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
    let code = // SAFETY: whoever gives the memory keeps it until it is given back.
        unsafe { (cuda.api.register)(first.cast(), bytes as usize, FLAGS) };
    said(Site::Register, code)?;
    let mut at = 0;
    let code = // SAFETY: registered above; the pointer is to a local.
        unsafe { (cuda.api.pointer)(&raw mut at, first.cast(), 0) };
    said(Site::Pointer, code).inspect_err(|_| {
        // SAFETY: registered above, and nobody knows it.
        unsafe { (cuda.api.unregister)(first.cast()) };
    })?;
    Ok(at)
}

/// Puts operations on words into the queue.
pub(super) fn signal(cuda: &Cuda, signals: &[Signal]) -> Result<(), Said> {
    if signals.is_empty() {
        return Ok(());
    }
    // The longest variant, so that no byte is left out.
    let mut operations = [sys::CUstreamBatchMemOpParams { pad: [0; 6] }; MAX_SIGNALS];
    for (operation, signal) in operations.iter_mut().zip(signals) {
        *operation = params(signal);
    }
    let (stream, count) = (cuda.stream, signals.len() as c_uint);
    let code = // SAFETY: so many operations, copied by the call, on words of registered memory, which outlives the queue.
        unsafe { (cuda.api.signal)(stream, count, operations.as_mut_ptr(), 0) };
    said(Site::Signal, code)
}

fn params(signal: &Signal) -> sys::CUstreamBatchMemOpParams {
    use sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st as Wait;
    use sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as Least;
    use sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as Write;
    use sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as Value;
    use sys::CUstreamBatchMemOpType as Kind;
    const GEQ: c_uint = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
    const DEFAULT: c_uint =
        sys::CUstreamWriteValue_flags_enum::CU_STREAM_WRITE_VALUE_DEFAULT as c_uint;
    let (address, value64) = (signal.at, signal.value);
    if signal.waits {
        let (operation, value) = (Kind::CU_STREAM_MEM_OP_WAIT_VALUE_64, Least { value64 });
        let waits = Wait {
            operation,
            address,
            __bindgen_anon_1: value,
            flags: GEQ,
            alias: 0,
        };
        sys::CUstreamBatchMemOpParams { waitValue: waits }
    } else {
        let (operation, value) = (Kind::CU_STREAM_MEM_OP_WRITE_VALUE_64, Value { value64 });
        let stores = Write {
            operation,
            address,
            __bindgen_anon_1: value,
            flags: DEFAULT,
            alias: 0,
        };
        sys::CUstreamBatchMemOpParams { writeValue: stores }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of the driver's structures, by the offsets of `cuda.h`.
    #[test]
    fn operations_lie_as_the_driver_reads_them() {
        for (waits, kind) in [(true, 4), (false, 5)] {
            let made = params(&Signal {
                at: 0x1000,
                value: u64::MAX - 1,
                waits,
            });
            let field = |at: usize| {
                // SAFETY: the structure has 48 bytes, of which these four belong to fields that were filled.
                unsafe { (&raw const made).cast::<u32>().add(at / 4).read() }
            };
            let found = [0, 8, 12, 16, 20, 24].map(field);
            assert_eq!(found, [kind, 0x1000, 0, u32::MAX - 1, u32::MAX, 0]);
            assert_eq!(size_of_val(&made), 48);
        }
    }
}
