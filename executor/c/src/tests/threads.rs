//! Several threads at one handle, which examples cannot do in C11 without a threads library: called from Rust, over
//! the very border that C programs call.
#![expect(unsafe_code, reason = "calls the C interface")]

use std::ffi::CStr;
use std::ptr::null_mut;

use super::error;
use crate::zbmd_status::*;
use crate::*;

const PASS: &CStr = c"Model(
    name: \"pass\",
    sources: { \"x\": Stream(dtype: u8) },
    channels: [(from: \"x\", to: [\"y\"])],
    sinks: { \"y\": Stream() },
)";

/// A running session of the model above, and its two streams.
fn start() -> (
    *mut zbmd_bundle,
    *mut zbmd_session,
    *mut zbmd_source,
    *mut zbmd_sink,
) {
    let (mut bundle, mut session) = (null_mut(), null_mut());
    let (mut source, mut sink) = (null_mut(), null_mut());
    // SAFETY: all texts end with NULs, all places are there.
    unsafe {
        let (name, text) = (c"pass.ron".as_ptr(), PASS.as_ptr());
        let compiled = zbmd_bundle_compile(name, text, std::ptr::null(), &raw mut bundle);
        assert_eq!(compiled, ZBMD_OK, "{}", error());
        let started = zbmd_session_start(bundle, std::ptr::null(), &raw mut session);
        assert_eq!(started, ZBMD_OK, "{}", error());
        assert_eq!(
            zbmd_session_source(session, c"x".as_ptr(), &raw mut source),
            ZBMD_OK
        );
        assert_eq!(
            zbmd_session_sink(session, c"y".as_ptr(), &raw mut sink),
            ZBMD_OK
        );
    }
    (bundle, session, source, sink)
}

#[test]
fn a_handle_in_use_says_so_and_a_session_stops_from_anywhere() {
    let (bundle, session, source, sink) = start();
    let (sink_, session_) = (sink.addr(), session.addr());
    let pulling = std::thread::spawn(move || {
        let sink = std::ptr::without_provenance_mut(sink_);
        let mut to = [0u8; 16];
        let mut pulled = 0;
        loop {
            // SAFETY: the buffer and the place are there.
            let status =
                unsafe { zbmd_sink_pull(sink, to.as_mut_ptr().cast(), 16, -1, &raw mut pulled) };
            // The other thread may be the user of the sink just now.
            if status != ZBMD_USAGE {
                break (status, pulled);
            }
        }
    });
    let joining =
        std::thread::spawn(move || zbmd_session_join(std::ptr::without_provenance(session_)));
    // Until the other thread is in its pull, this one is the user of the sink.
    let mut to = [0u8; 16];
    loop {
        // SAFETY: as above.
        match unsafe { zbmd_sink_pull(sink, to.as_mut_ptr().cast(), 16, 0, null_mut()) } {
            ZBMD_TIMEOUT => std::thread::yield_now(),
            status => break assert_eq!(status, ZBMD_USAGE),
        }
    }
    assert_eq!(
        error(),
        "the zbmd_sink is in use by another thread: a handle serves one thread at a time"
    );
    assert_eq!(zbmd_session_stop(session), ZBMD_OK);
    assert_eq!(pulling.join().expect("the thread"), (ZBMD_ENDED, 0));
    assert_eq!(joining.join().expect("the thread"), ZBMD_OK);
    assert_eq!(zbmd_session_close(session), ZBMD_OK);
    assert_eq!(zbmd_source_close(source), ZBMD_OK);
    assert_eq!(zbmd_sink_close(sink), ZBMD_OK);
    assert_eq!(zbmd_bundle_close(bundle), ZBMD_OK);
}

#[test]
fn a_full_queue_takes_a_part_and_then_times_out() {
    let (bundle, session, source, sink) = start();
    let tokens = vec![7u8; 1 << 23];
    let mut pushed = 0;
    // SAFETY: the buffer and the place are there.
    let status = unsafe {
        zbmd_source_push(
            source,
            tokens.as_ptr().cast(),
            tokens.len(),
            20_000,
            &raw mut pushed,
        )
    };
    assert_eq!(status, ZBMD_TIMEOUT);
    assert!(
        0 < pushed && pushed < tokens.len(),
        "{pushed} of {}",
        tokens.len()
    );
    assert_eq!(zbmd_source_close(source), ZBMD_OK);
    let (mut got, mut to) = (0, vec![0u8; 1 << 16]);
    loop {
        let mut pulled = 0;
        // SAFETY: the buffer and the place are there.
        let status = unsafe {
            zbmd_sink_pull(
                sink,
                to.as_mut_ptr().cast(),
                to.len(),
                1_000,
                &raw mut pulled,
            )
        };
        got += pulled;
        assert!(to[..pulled].iter().all(|t| *t == 7));
        match status {
            ZBMD_OK | ZBMD_TIMEOUT => {}
            other => break assert_eq!(other, ZBMD_ENDED),
        }
    }
    assert_eq!(got, pushed);
    assert_eq!(zbmd_session_join(session), ZBMD_OK);
    assert_eq!(zbmd_session_close(session), ZBMD_OK);
    assert_eq!(zbmd_sink_close(sink), ZBMD_OK);
    assert_eq!(zbmd_bundle_close(bundle), ZBMD_OK);
}
