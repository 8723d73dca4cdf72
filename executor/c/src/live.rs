//! Streams of a session that are URLs: sockets, receivers, sound cards.
#![expect(
    unsafe_code,
    reason = "exports functions under their C names, which are given pointers"
)]

use std::ffi::c_char;
use std::sync::Arc;

use zbmd_executor::Session;
use zbmd_live::session::{ConnectError, LiveStreams};

use crate::border::{optional_text, text};
use crate::handles;
use crate::session::{Run, put_report, zbmd_session};
use crate::status::{Failure, guard, zbmd_status};
use zbmd_status::*;

/// Connects a stream of either direction.
///
/// # Safety
/// `name` ends with a NUL; `url` is null, or ends with a NUL.
unsafe fn connect(
    session: *const zbmd_session,
    name: *const c_char,
    url: *const c_char,
    connect: impl FnOnce(&mut LiveStreams, &mut Session, &str, Option<&str>) -> Result<(), ConnectError>,
) -> Result<zbmd_status, Failure> {
    let run: Arc<Run> = handles::get(session.addr())?;
    // SAFETY: the caller's promise.
    let stream_name = unsafe { text(name, "name") }?;
    // SAFETY: the caller's promise.
    let url = unsafe { optional_text(url, "url") }?;
    run.connect(|live, session| connect(live, session, stream_name, url))
}

/// Feeds a source from a URL, such as `udp://0.0.0.0:5000?header=seq&rate=48000`; `zbmd-run --help` lists the schemes
/// and keys. With a `url` of NULL it is the one that the model names. The source's handle counts as taken from then on.
/// The run goes on until it is stopped, its number of iterations is reached, or a file that is played has ended.
///
/// What is lost on the way is filled and counted: see `zbmd_session_live_report`. An unknown name, a sink's name, a
/// second URL and a wrong URL are `ZBMD_USAGE`; a socket or device that cannot be opened is `ZBMD_FILE`. Then the
/// session is as it was before.
///
/// # Safety
/// `name` ends with a NUL; `url` is null, or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_connect_source(
    session: *const zbmd_session,
    name: *const c_char,
    url: *const c_char,
) -> zbmd_status {
    // SAFETY: the caller's promise.
    guard(|| unsafe { connect(session, name, url, LiveStreams::connect_source) })
}

/// Sends the tokens of a sink to a URL, such as `tcp://127.0.0.1:6000`. With a `url` of NULL it is the one that the
/// model names. The sink's handle counts as taken from then on. A peer that is absent or slow costs tokens, which are
/// counted, and never stops the run. The clock bridge of a sound card follows live sources that were connected before.
/// The answers are those of `zbmd_session_connect_source`.
///
/// # Safety
/// `name` ends with a NUL; `url` is null, or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_connect_sink(
    session: *const zbmd_session,
    name: *const c_char,
    url: *const c_char,
) -> zbmd_status {
    // SAFETY: the caller's promise.
    guard(|| unsafe { connect(session, name, url, LiveStreams::connect_sink) })
}

/// What the connected streams have done so far: a list in JSON with an object for each, in the order in which they were
/// connected, as `zbmd-run --report json` has it under `live`: tokens received, filled by cause, sent and dropped, and
/// the gaps. May be asked for at any time; after `zbmd_session_join` it is final. `text`, `room` and `length` are those
/// of `zbmd_session_report`; while the run goes on, the next answer may be longer.
///
/// # Safety
/// `text` is null, or `room` bytes can be written there; `length` is null, or a `size_t` can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_live_report(
    session: *const zbmd_session,
    text: *mut c_char,
    room: usize,
    length: *mut usize,
) -> zbmd_status {
    guard(|| {
        let run: Arc<Run> = handles::get(session.addr())?;
        let reports = run.live().reports();
        let report = serde_json::to_string(&reports)
            .map_err(|error| Failure::new(ZBMD_BUG, error.to_string()))?;
        // SAFETY: the caller's promise.
        unsafe { put_report(&report, text, room, length) }
    })
}
