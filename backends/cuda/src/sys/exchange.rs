//! Memory that is shared with others: registered with the driver, and words of it that the queue waits for and stores.
//!
//! What is relied on (CUDA Driver API, "Stream Memory Operations", and `cuMemHostRegister`):
//! - operations of one stream are done in order, and a copy ends before the next operation begins;
//! - a store without `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`, which v2 of the API does not even have, comes after a
//!   fence for the whole system: a load that sees the word sees what copies before it wrote;
//! - a wait with `CU_STREAM_WAIT_VALUE_GEQ` ends when the difference, as a signed number, is not negative; what the
//!   word's writer stored into the host's memory before it is visible to the copies and kernels that follow;
//! - registered memory is coherent for both sides, and one registration with `CU_MEMHOSTREGISTER_PORTABLE` holds for all
//!   contexts of the process.
#![expect(unsafe_code, reason = "calls the CUDA driver")]

use std::ffi::c_uint;

use cudarc::driver::sys;

use super::super::api::check_code;
use super::super::driver::{Address, MAX_WORD_OPS, WordOp};
use super::super::error::{CallError, Site};
use super::Cuda;

/// Lets all devices of the process reach memory of the host's; where this one sees it.
///
/// # Safety
/// The memory is valid until it is unregistered.
pub(super) unsafe fn register_host(
    cuda: &Cuda,
    first: *mut u8,
    bytes: u64,
) -> Result<Address, CallError> {
    const FLAGS: c_uint = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
    // SAFETY: the memory is valid until it is unregistered, as the caller promises.
    let code = unsafe { (cuda.api.register)(first.cast(), bytes as usize, FLAGS) };
    check_code(Site::Register, code)?;

    let mut address = 0;
    // SAFETY: registered above; the pointer is to a local.
    let code = unsafe { (cuda.api.pointer)(&raw mut address, first.cast(), 0) };
    check_code(Site::Pointer, code).inspect_err(|_| {
        // SAFETY: registered above, and nothing uses it.
        unsafe { (cuda.api.unregister)(first.cast()) };
    })?;
    Ok(address)
}

/// Puts operations on words into the queue.
///
/// # Safety
/// The words are parts of registered memory, which outlives them.
pub(super) unsafe fn put_word_ops(cuda: &Cuda, word_ops: &[WordOp]) -> Result<(), CallError> {
    if word_ops.is_empty() {
        return Ok(());
    }

    // The longest variant, so that all bytes are initialised.
    let mut params = [sys::CUstreamBatchMemOpParams { pad: [0; 6] }; MAX_WORD_OPS];
    for (param, word_op) in params.iter_mut().zip(word_ops) {
        *param = word_op_params(word_op);
    }
    let count = word_ops.len().min(MAX_WORD_OPS) as c_uint;
    // SAFETY: the array has that many operations, which the call copies; the words exist, as the caller promises.
    let code = unsafe { (cuda.api.signal)(cuda.stream, count, params.as_mut_ptr(), 0) };
    check_code(Site::Signal, code)
}

fn word_op_params(word_op: &WordOp) -> sys::CUstreamBatchMemOpParams {
    use sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st as WaitParams;
    use sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as MinValue;
    use sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteParams;
    use sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as NewValue;
    use sys::CUstreamBatchMemOpType as OpType;
    const GEQ: c_uint = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
    const DEFAULT: c_uint =
        sys::CUstreamWriteValue_flags_enum::CU_STREAM_WRITE_VALUE_DEFAULT as c_uint;

    let value64 = word_op.value;
    if word_op.waits {
        let params = WaitParams {
            operation: OpType::CU_STREAM_MEM_OP_WAIT_VALUE_64,
            address: word_op.word,
            __bindgen_anon_1: MinValue { value64 },
            flags: GEQ,
            alias: 0,
        };
        sys::CUstreamBatchMemOpParams { waitValue: params }
    } else {
        let params = WriteParams {
            operation: OpType::CU_STREAM_MEM_OP_WRITE_VALUE_64,
            address: word_op.word,
            __bindgen_anon_1: NewValue { value64 },
            flags: DEFAULT,
            alias: 0,
        };
        sys::CUstreamBatchMemOpParams { writeValue: params }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of the driver's structures, by the offsets of `cuda.h`.
    #[test]
    fn operations_lie_as_the_driver_reads_them() {
        for (waits, kind) in [(true, 4), (false, 5)] {
            let made = word_op_params(&WordOp {
                word: 0x1000,
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
