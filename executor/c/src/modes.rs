//! The mode of a session.
#![expect(
    unsafe_code,
    reason = "exports functions under their C names, which are given pointers"
)]

use std::ffi::c_char;
use std::sync::Arc;

use serde::Serialize;
use zbmd_executor::{ModeEntry, ModeError};

use crate::border::{put, text};
use crate::handles;
use crate::session::{Run, put_report, zbmd_session};
use crate::status::{Failure, guard, zbmd_status};
use crate::streams::limit;
use zbmd_status::*;

/// Lets a run go over to another of its model's modes at the next border, and waits for that, `timeout_us` microseconds
/// at most, or without a limit if that is negative; another thread must serve the run's streams if it waits. The first
/// iteration of the run in the mode is written to `iteration`, unless that is NULL. To the present mode it need not go.
///
/// - `ZBMD_OK`: the run is in the mode;
/// - `ZBMD_TIMEOUT`: it is not yet, but will be; or, with nothing changed, another change is not done yet: try again
///   later. `zbmd_session_mode` tells the two apart;
/// - `ZBMD_USAGE`: no such mode;
/// - `ZBMD_REFUSED`: a change that the model does not allow, or no plan of the mode without the devices that are lost;
/// - `ZBMD_ENDED`: the run has ended.
///
/// # Safety
/// `mode` ends with a NUL; `iteration` is null, or a `uint64_t` can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_change_mode(
    session: *const zbmd_session,
    mode: *const c_char,
    timeout_us: i64,
    iteration: *mut u64,
) -> zbmd_status {
    guard(|| {
        let run: Arc<Run> = handles::get(session.addr())?;
        // SAFETY: the caller's promise.
        let mode = unsafe { text(mode, "mode") }?;
        let outcome = match (run.modes.change(mode), limit(timeout_us)) {
            (Err(error), _) => return refusal(&error),
            (Ok(change), None) => change.wait(),
            (Ok(change), Some(limit)) => match change.wait_within(limit) {
                None => return Ok(ZBMD_TIMEOUT),
                Some(outcome) => outcome,
            },
        };
        match outcome {
            Err(error) => refusal(&error),
            Ok(entry) => {
                // SAFETY: the caller's promise.
                unsafe { put(iteration, entry.iteration) };
                Ok(ZBMD_OK)
            }
        }
    })
}

fn refusal(error: &ModeError) -> Result<zbmd_status, Failure> {
    match error {
        ModeError::Busy { .. } => Ok(ZBMD_TIMEOUT),
        ModeError::Ended => Ok(ZBMD_ENDED),
        other => Err(Failure::classed(other.class(), other)),
    }
}

/// The modes as the report has them.
#[derive(Serialize)]
struct ModeReport<'a> {
    modes: &'a [String],
    mode: String,
    since: u64,
}

/// The modes of a run, in JSON: `modes` (their names, of which the first is the one that it began in; one empty name if
/// the model has none), `mode` (the present one) and `since` (the first iteration in it). `text`, `room` and `length` are
/// those of `zbmd_session_report`.
///
/// # Safety
/// `text` is null, or `room` bytes can be written there; `length` is null, or a `size_t` can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_mode(
    session: *const zbmd_session,
    text: *mut c_char,
    room: usize,
    length: *mut usize,
) -> zbmd_status {
    guard(|| {
        let run: Arc<Run> = handles::get(session.addr())?;
        let ModeEntry { mode, iteration } = run.modes.present();
        let report = ModeReport {
            modes: run.modes.names(),
            mode,
            since: iteration,
        };
        let report = serde_json::to_string(&report)
            .map_err(|error| Failure::new(ZBMD_BUG, error.to_string()))?;
        // SAFETY: the caller's promise.
        unsafe { put_report(&report, text, room, length) }
    })
}
