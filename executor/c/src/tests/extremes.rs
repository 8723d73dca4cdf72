//! Every number of the interface at its extremes: a status and a text, never a panic, an abort or a wait without end.
#![expect(unsafe_code, reason = "calls the C interface")]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use super::error;
use crate::zbmd_status::*;
use crate::*;

const PASS: &CStr = c"Model(
    name: \"pass\",
    sources: { \"x\": Stream(dtype: f32) },
    channels: [(from: \"x\", to: [\"y\"])],
    sinks: { \"y\": Stream() },
)";

/// Compiles for so many devices; the status.
fn compile(devices: u32, bundle: *mut *mut zbmd_bundle) -> zbmd_status {
    let mut options = MaybeUninit::uninit();
    // SAFETY: the place is there, and initialised by the first call; all texts end with NULs.
    unsafe {
        zbmd_compile_options_init(options.as_mut_ptr());
        let mut options: zbmd_compile_options = options.assume_init();
        options.devices = devices;
        zbmd_bundle_compile(
            c"pass.ron".as_ptr(),
            PASS.as_ptr(),
            &raw const options,
            bundle,
        )
    }
}

#[test]
fn devices() {
    for devices in [u32::MAX, u32::MAX - 1, 1 << 31, 1 << 16, MAX_DEVICES + 1] {
        let mut bundle = null_mut();
        assert_eq!(compile(devices, &raw mut bundle), ZBMD_MODEL, "{}", error());
        let said = error();
        assert!(
            said.contains(&devices.to_string()) && said.contains("E0505"),
            "{said}"
        );
        assert!(bundle.is_null());
    }
}

const MAX_DEVICES: u32 = zbmd_ir::limits::MAX_DEVICES as u32;

/// Starts a session with these numbers, moves a token through it if it starts, and closes it.
fn run(bundle: *mut zbmd_bundle, iterations: u64, queue_bytes: u64) -> zbmd_status {
    let mut options = MaybeUninit::uninit();
    let mut session = null_mut();
    // SAFETY: the places are there, and initialised by the first call; all texts end with NULs.
    unsafe {
        zbmd_run_options_init(options.as_mut_ptr());
        let mut options: zbmd_run_options = options.assume_init();
        options.iterations = iterations;
        options.queue_bytes = queue_bytes;
        let started = zbmd_session_start(bundle, &raw const options, &raw mut session);
        if started == ZBMD_OK {
            push_extremes(session);
            assert_eq!(zbmd_session_close(session), ZBMD_OK, "{}", error());
        }
        started
    }
}

/// Sizes and time limits that no buffer and no clock has.
fn push_extremes(session: *mut zbmd_session) {
    let mut source = null_mut();
    let token = 1.0_f32;
    // SAFETY: the place and the text are there; only as many bytes as there are can be read, or the size is refused.
    unsafe {
        assert_eq!(
            zbmd_session_source(session, c"x".as_ptr(), &raw mut source),
            ZBMD_OK
        );
        let data = (&raw const token).cast();
        for bytes in [usize::MAX, usize::MAX / 2 + 1] {
            let refused = zbmd_source_push(source, data, bytes, 0, null_mut());
            assert_eq!(refused, ZBMD_USAGE, "{}", error());
        }
        for timeout_us in [i64::MAX, i64::MIN] {
            let pushed = zbmd_source_push(source, data, 4, timeout_us, null_mut());
            assert!(matches!(pushed, ZBMD_OK | ZBMD_ENDED), "{}", error());
        }
        assert_eq!(zbmd_source_close(source), ZBMD_OK);
    }
}

#[test]
fn iterations_and_queues() {
    let mut bundle = null_mut();
    assert_eq!(compile(1, &raw mut bundle), ZBMD_OK, "{}", error());
    for iterations in [0, 1, 1 << 32, 1 << 63, u64::MAX] {
        assert_eq!(run(bundle, iterations, 1 << 16), ZBMD_OK, "{}", error());
    }
    assert_eq!(run(bundle, 1, 0), ZBMD_OK, "{}", error());
    for queue_bytes in [1 << 62, 1 << 63, u64::MAX] {
        assert_eq!(run(bundle, 1, queue_bytes), ZBMD_FAULT, "{}", error());
        assert!(error().contains("bytes"), "{}", error());
    }

    for index in [usize::MAX, usize::MAX / 2, 2] {
        let mut stream = MaybeUninit::uninit();
        // SAFETY: the place is there.
        let status = unsafe { zbmd_bundle_stream(bundle, index, stream.as_mut_ptr()) };
        assert_eq!(status, ZBMD_ENDED);
    }
    assert_eq!(zbmd_bundle_close(bundle), ZBMD_OK);
}

#[test]
fn handles_that_never_were() {
    for address in [1, 7, usize::MAX / 2, usize::MAX - 1, usize::MAX] {
        let bundle: *mut zbmd_bundle = std::ptr::without_provenance_mut(address);
        assert_eq!(zbmd_bundle_close(bundle), ZBMD_USAGE, "{}", error());
        let mut session = null_mut();
        // SAFETY: a handle is looked up, never followed; the place is there.
        let started = unsafe { zbmd_session_start(bundle, null(), &raw mut session) };
        assert_eq!(started, ZBMD_USAGE, "{}", error());
    }
}
