//! Tokens in and out, in buffers of the caller.
#![expect(
    unsafe_code,
    reason = "exports functions under their C names, which are given pointers"
)]
#![expect(non_camel_case_types, reason = "names as C programs write them")]

use std::ffi::c_void;
use std::time::Duration;

use zbmd_executor::{SinkHandle, SourceHandle, StreamError};

use crate::border::{input, output, put};
use crate::handles;
use crate::status::{guard, zbmd_status};
use zbmd_status::*;

/// Where the tokens of a source go in. One thread at a time may use it.
pub struct zbmd_source {
    _opaque: [u8; 0],
}

/// Where the tokens of a sink come out. One thread at a time may use it.
pub struct zbmd_sink {
    _opaque: [u8; 0],
}

/// How long to wait: for ever if less than 0.
pub(crate) fn limit(timeout_us: i64) -> Option<Duration> {
    u64::try_from(timeout_us).ok().map(Duration::from_micros)
}

/// Gives tokens to a run: `bytes` bytes, which must be whole tokens. Waits for room at most so many microseconds: 0 not
/// at all, less than 0 as long as it takes. How many bytes were taken is written to `pushed`, if that is not NULL,
/// whatever the answer:
///
/// - `ZBMD_OK`: all of them;
/// - `ZBMD_TIMEOUT`: the time is over; push the rest again;
/// - `ZBMD_ENDED`: the run takes no more: it has reached its number of iterations, or was stopped;
/// - `ZBMD_FAULT`: the run was given up; `zbmd_session_join` says why.
///
/// # Safety
/// `bytes` bytes can be read at `tokens`, and nobody writes them meanwhile; `pushed` is null, or a `size_t` can be
/// written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_source_push(
    source: *mut zbmd_source,
    tokens: *const c_void,
    bytes: usize,
    timeout_us: i64,
    pushed: *mut usize,
) -> zbmd_status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { put(pushed, 0) };
        // SAFETY: the caller's promise.
        let pushed_tokens = unsafe { input(tokens, bytes) }?;
        handles::with(source.addr(), |source: &mut SourceHandle| {
            let token_bytes = source.token().bytes() as usize;
            let (taken, answer) = match push(source, pushed_tokens, limit(timeout_us)) {
                Ok(taken) => (taken * token_bytes, Ok(ZBMD_TIMEOUT)),
                Err(StreamError::Closed { refused, .. }) => {
                    (bytes - refused as usize * token_bytes, Ok(ZBMD_ENDED))
                }
                Err(error) => (0, Err(error.into())),
            };

            // SAFETY: the caller's promise.
            unsafe { put(pushed, taken) };
            if taken == bytes {
                answer.map(|_| ZBMD_OK)
            } else {
                answer
            }
        })
    })
}

fn push(
    source: &mut SourceHandle,
    tokens: &[u8],
    limit: Option<Duration>,
) -> Result<usize, StreamError> {
    match limit {
        Some(Duration::ZERO) => source.try_push_bytes(tokens).map(|count| count as usize),
        Some(limit) => source
            .push_bytes_within(tokens, limit)
            .map(|count| count as usize),
        None => source
            .push_bytes(tokens)
            .map(|()| tokens.len() / source.token().bytes() as usize),
    }
}

/// Ends a source, and closes its handle: the run finishes with the tokens that were pushed.
#[unsafe(no_mangle)]
pub extern "C" fn zbmd_source_close(source: *mut zbmd_source) -> zbmd_status {
    guard(|| handles::close::<SourceHandle>(source.addr()).map(|_| ZBMD_OK))
}

/// Takes tokens from a run: fills `bytes` bytes, which must be whole tokens. Waits for them at most so many
/// microseconds: 0 not at all, less than 0 as long as it takes. How many bytes were filled is written to `pulled`, if
/// that is not NULL, whatever the answer:
///
/// - `ZBMD_OK`: all of them;
/// - `ZBMD_TIMEOUT`: the time is over;
/// - `ZBMD_ENDED`: the run has ended: no more will come;
/// - `ZBMD_FAULT`: the run was given up; `zbmd_session_join` says why.
///
/// What lies in the buffer beyond the bytes that were filled is not defined.
///
/// # Safety
/// `bytes` bytes can be written at `tokens`, and nobody else uses them meanwhile; `pulled` is null, or a `size_t` can
/// be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_sink_pull(
    sink: *mut zbmd_sink,
    tokens: *mut c_void,
    bytes: usize,
    timeout_us: i64,
    pulled: *mut usize,
) -> zbmd_status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { put(pulled, 0) };
        // SAFETY: the caller's promise.
        let room = unsafe { output(tokens, bytes) }?;
        handles::with(sink.addr(), |sink: &mut SinkHandle| {
            let token_bytes = sink.token().bytes() as usize;
            let filled_tokens = match limit(timeout_us) {
                Some(limit) => sink.pull_bytes_within(room, limit)?,
                None => sink.pull_bytes(room)?,
            };
            let filled_bytes = filled_tokens as usize * token_bytes;

            // SAFETY: the caller's promise.
            unsafe { put(pulled, filled_bytes) };
            Ok(match filled_bytes == bytes {
                true => ZBMD_OK,
                false if sink.is_finished() => ZBMD_ENDED,
                false => ZBMD_TIMEOUT,
            })
        })
    })
}

/// Closes the handle of a sink: tokens that still come are dropped.
#[unsafe(no_mangle)]
pub extern "C" fn zbmd_sink_close(sink: *mut zbmd_sink) -> zbmd_status {
    guard(|| handles::close::<SinkHandle>(sink.addr()).map(|_| ZBMD_OK))
}
