//! Sessions: runs of a bundle, from their start to their report.
#![expect(
    unsafe_code,
    reason = "exports functions under their C names, which are given pointers"
)]
#![expect(non_camel_case_types, reason = "names as C programs write them")]

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

use zbmd_executor::{ModeHandle, ParameterHandle, ProbeHandle, Session, Stopper, StreamError};
use zbmd_live::session::{ConnectError, LiveStreams};

use crate::border::{needed, output, put, text};
use crate::bundle::{Bundle, zbmd_bundle};
use crate::handles::{self, Kind};
use crate::options::{to_run, zbmd_run_options};
use crate::status::{Failure, guard, zbmd_status};
use crate::streams::{zbmd_sink, zbmd_source};
use zbmd_status::*;

/// One run of a bundle.
pub struct zbmd_session {
    _opaque: [u8; 0],
}

/// What a session's handle stands for.
pub(crate) struct Run {
    phase: Mutex<Phase>,
    /// Dropped after the session, which gives sinks their last tokens.
    live: Mutex<LiveStreams>,
    stopper: Stopper,
    pub(crate) parameters: ParameterHandle,
    pub(crate) modes: ModeHandle,
    pub(crate) probes: ProbeHandle,
}

enum Phase {
    Running(Box<Session>),
    /// A thread waits for its end.
    Joining,
    /// Its report as JSON, or why it was given up.
    Ended(Result<String, Failure>),
}

impl Run {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn live(&self) -> MutexGuard<'_, LiveStreams> {
        self.live
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Connects a stream while the session can be used.
    pub(crate) fn connect(
        &self,
        connect: impl FnOnce(&mut LiveStreams, &mut Session) -> Result<(), ConnectError>,
    ) -> Result<zbmd_status, Failure> {
        match &mut *self.phase() {
            Phase::Running(session) => {
                connect(&mut self.live(), session)?;
                Ok(ZBMD_OK)
            }
            _ => Err(Failure::usage(
                "the session was joined: connect its streams before",
            )),
        }
    }

    fn join(&self) -> Result<zbmd_status, Failure> {
        // A statement of its own: a match would hold the lock to its end.
        let phase_before = std::mem::replace(&mut *self.phase(), Phase::Joining);
        let session = match phase_before {
            Phase::Running(session) => session,
            Phase::Joining => return Err(Failure::usage("another thread joins this session")),
            Phase::Ended(run_end) => {
                let status = run_end.as_ref().map(|_| ZBMD_OK).map_err(Clone::clone);
                *self.phase() = Phase::Ended(run_end);
                return status;
            }
        };

        // Panics of the run's threads come out here; the session stays usable for its report then.
        let join_result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| session.join()));
        let run_end = match join_result {
            Ok(Ok(outcome)) => serde_json::to_string(&outcome.report)
                .map_err(|error| Failure::new(ZBMD_BUG, error.to_string())),
            Ok(Err(error)) => Err(error.into()),
            Err(payload) => Err(Failure::panicked(&*payload)),
        };

        // What the run gave is sent, and the counts are final.
        self.live().close();
        let status = run_end.as_ref().map(|_| ZBMD_OK).map_err(Clone::clone);
        *self.phase() = Phase::Ended(run_end);
        status
    }
}

/// Starts a run of a bundle: memory is taken, workers wait for tokens. `options` may be NULL.
///
/// # Safety
/// `options` is null or was initialised by `zbmd_run_options_init`, and its texts end with NULs; a `zbmd_session *` can
/// be written to `session`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_start(
    bundle: *const zbmd_bundle,
    options: *const zbmd_run_options,
    session: *mut *mut zbmd_session,
) -> zbmd_status {
    guard(|| {
        let session_place = needed(session, "session")?;
        let open_bundle: Arc<Bundle> = handles::get(bundle.addr())?;
        // SAFETY: the caller's promise.
        let run_options = unsafe { to_run(options, &open_bundle.engine) }?;

        let session = open_bundle.engine.start(run_options)?;
        let stopper = session.stopper();
        let parameters = session.parameters();
        let modes = session.modes();
        let probes = session.probes();
        let run = Run {
            phase: Mutex::new(Phase::Running(Box::new(session))),
            live: Mutex::new(LiveStreams::new(&open_bundle.engine)),
            stopper,
            parameters,
            modes,
            probes,
        };
        let handle = handles::open(Arc::new(run))?;

        // SAFETY: the caller's promise.
        unsafe { put(session_place, std::ptr::without_provenance_mut(handle)) };
        Ok(ZBMD_OK)
    })
}

/// Takes one stream's handle out of a session.
///
/// # Safety
/// `name` ends with a NUL; a handle can be written to `place`.
unsafe fn take<K: Kind, T>(
    session: *const zbmd_session,
    name: *const c_char,
    place: *mut *mut T,
    take: impl FnOnce(&mut Session, &str) -> Result<K, StreamError>,
) -> zbmd_status {
    guard(|| {
        let handle_place = needed(place, K::NAME)?;
        let run: Arc<Run> = handles::get(session.addr())?;
        // SAFETY: the caller's promise.
        let stream_name = unsafe { text(name, "name") }?;
        let stream = match &mut *run.phase() {
            Phase::Running(session) => take(session, stream_name)?,
            _ => {
                return Err(Failure::usage(
                    "the session was joined: take its streams before",
                ));
            }
        };

        let handle = handles::open(stream)?;
        // SAFETY: the caller's promise.
        unsafe { put(handle_place, std::ptr::without_provenance_mut(handle)) };
        Ok(ZBMD_OK)
    })
}

/// Takes the handle of a source: there is one of each. A source whose handle is not taken is empty.
///
/// # Safety
/// `name` ends with a NUL; a `zbmd_source *` can be written to `source`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_source(
    session: *const zbmd_session,
    name: *const c_char,
    source: *mut *mut zbmd_source,
) -> zbmd_status {
    // SAFETY: the caller's promise.
    unsafe { take(session, name, source, |session, name| session.source(name)) }
}

/// Takes the handle of a sink: there is one of each. The tokens of a sink whose handle is not taken are dropped.
///
/// # Safety
/// `name` ends with a NUL; a `zbmd_sink *` can be written to `sink`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_sink(
    session: *const zbmd_session,
    name: *const c_char,
    sink: *mut *mut zbmd_sink,
) -> zbmd_status {
    // SAFETY: the caller's promise.
    unsafe { take(session, name, sink, |session, name| session.sink(name)) }
}

/// Ends a run in good order, from any thread: it takes no more tokens, and finishes the blocks at work.
#[unsafe(no_mangle)]
pub extern "C" fn zbmd_session_stop(session: *const zbmd_session) -> zbmd_status {
    guard(|| {
        let run: Arc<Run> = handles::get(session.addr())?;
        run.stopper.stop();
        Ok(ZBMD_OK)
    })
}

/// How many iterations of the model are done, for a display of progress: it may lag a little.
///
/// # Safety
/// A `uint64_t` can be written to `iterations`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_iterations(
    session: *const zbmd_session,
    iterations: *mut u64,
) -> zbmd_status {
    guard(|| {
        let count_place = needed(iterations, "iterations")?;
        let run: Arc<Run> = handles::get(session.addr())?;
        // SAFETY: the caller's promise.
        unsafe { put(count_place, run.stopper.iterations()) };
        Ok(ZBMD_OK)
    })
}

/// Waits for the end of a run, and says how it ended: why it was given up, if it was. Sources must be closed for that,
/// or the run stopped, or its number of iterations reached; sinks that were taken must be pulled from meanwhile by
/// another thread, or be closed. A session that was joined answers the same again.
#[unsafe(no_mangle)]
pub extern "C" fn zbmd_session_join(session: *const zbmd_session) -> zbmd_status {
    guard(|| handles::get::<Arc<Run>>(session.addr())?.join())
}

/// What a run that was joined did and measured, as JSON in UTF-8 with a NUL at its end. Its length without the NUL is
/// written to `length`, if that is not NULL; the text to `text`, if `room` is more than that length. Else the answer
/// is `ZBMD_USAGE`, so that a call with no `text` and no `room` asks for the length.
///
/// # Safety
/// `text` is null, or `room` bytes can be written there; `length` is null, or a `size_t` can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_report(
    session: *const zbmd_session,
    text: *mut c_char,
    room: usize,
    length: *mut usize,
) -> zbmd_status {
    guard(|| {
        let run: Arc<Run> = handles::get(session.addr())?;
        let locked_phase = run.phase();
        let report = match &*locked_phase {
            Phase::Ended(Ok(report)) => report,
            Phase::Ended(Err(why)) => return Err(why.clone()),
            _ => {
                return Err(Failure::usage(
                    "there is a report when the session has been joined",
                ));
            }
        };

        // SAFETY: the caller's promise.
        unsafe { put_report(report, text, room, length) }
    })
}

/// Writes a report to where the caller wants it, and its length.
///
/// # Safety
/// `text` is null, or `room` bytes can be written there; `length` is null, or a `size_t` can be written there.
pub(crate) unsafe fn put_report(
    report: &str,
    text: *mut c_char,
    room: usize,
    length: *mut usize,
) -> Result<zbmd_status, Failure> {
    // SAFETY: the caller's promise.
    unsafe { put(length, report.len()) };
    if room <= report.len() {
        let needed_bytes = report.len() + 1;
        return Err(Failure::usage(format!(
            "the report needs {needed_bytes} bytes, not {room}"
        )));
    }

    // SAFETY: the caller's promise.
    let text_bytes = unsafe { output(text.cast::<c_void>(), room) }?;
    text_bytes[..report.len()].copy_from_slice(report.as_bytes());
    text_bytes[report.len()] = 0;
    Ok(ZBMD_OK)
}

/// Closes a session. A run that was not joined is given up, which takes as long as a kernel at work does; its connected
/// streams end, and nothing of it is left running once no other thread is in a call with it. Handles of
/// its streams stay valid, and answer `ZBMD_FAULT` from then on.
#[unsafe(no_mangle)]
pub extern "C" fn zbmd_session_close(session: *mut zbmd_session) -> zbmd_status {
    guard(|| handles::close::<Arc<Run>>(session.addr()).map(|_| ZBMD_OK))
}
