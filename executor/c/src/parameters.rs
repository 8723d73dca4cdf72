//! Live parameters of a session.
#![expect(
    unsafe_code,
    reason = "exports functions under their C names, which are given pointers"
)]

use std::ffi::c_char;
use std::sync::Arc;

use serde::Serialize;
use zbmd_executor::{Caller, SetError, When};
use zbmd_ir::ChangePosition;

use crate::border::{items, optional_text, put, text};
use crate::caller::zbmd_caller;
use crate::handles;
use crate::session::{Run, put_report, zbmd_session};
use crate::status::{Failure, guard, zbmd_status};
use zbmd_status::*;

/// A live parameter and a value for it.
#[repr(C)]
pub struct zbmd_parameter_value {
    /// Its name.
    pub name: *const c_char,
    /// Its value: one number, or those of a list, whose length is the model's.
    pub numbers: *const f64,
    /// How many there are.
    pub count: usize,
}

/// Sets so many live parameters of a run together, or none of them. With a `source` of NULL they take effect with the
/// next block that no worker can have begun, and `token` is not looked at; else exactly at that token of the source,
/// counted from the start of the run. The iteration of the run, or the token, is written to `position`, unless that is
/// NULL. Any thread may call it; while a loss is being handled it waits for the end of that.
///
/// - `ZBMD_OK`: they are set, whatever is lost from now on;
/// - `ZBMD_USAGE`: no such parameter or source, or a parameter twice;
/// - `ZBMD_REFUSED`: a value out of its range, of another length or that an op refuses, or a token that is at work already;
/// - `ZBMD_TIMEOUT`: too many changes wait for the workers, or have not taken effect yet: try again later;
/// - `ZBMD_ENDED`: the run has ended.
///
/// # Safety
/// `count` values can be read at `values`, whose names end with NULs and whose numbers can be read; `source` is null or
/// ends with a NUL; `position` is null, or a `uint64_t` can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_set(
    session: *const zbmd_session,
    values: *const zbmd_parameter_value,
    count: usize,
    source: *const c_char,
    token: u64,
    position: *mut u64,
) -> zbmd_status {
    guard(|| {
        let run: Arc<Run> = handles::get(session.addr())?;
        // SAFETY: the caller's promise.
        let named = unsafe { named_values(values, count) }?;
        // SAFETY: the caller's promise.
        let when = match unsafe { optional_text(source, "source") }? {
            None => When::NextBlock,
            Some(source) => When::Token {
                source,
                index: token,
            },
        };

        let found = match run.parameters.set(&named, when) {
            Ok(ChangePosition::Iteration(found)) => found,
            Ok(ChangePosition::Token { index, .. }) => index,
            Err(error) => return refusal(&error),
        };
        // SAFETY: the caller's promise.
        unsafe { put(position, found) };
        Ok(ZBMD_OK)
    })
}

/// Sets so many live parameters of a caller together, or none of them, from the next call on.
///
/// - `ZBMD_OK`: they are set;
/// - `ZBMD_USAGE`: no such parameter, or a parameter twice;
/// - `ZBMD_REFUSED`: a value out of its range, of another length or that an op refuses;
/// - `ZBMD_ENDED`: an earlier call failed.
///
/// # Safety
/// `count` values can be read at `values`, whose names end with NULs and whose numbers can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_caller_set(
    caller: *mut zbmd_caller,
    values: *const zbmd_parameter_value,
    count: usize,
) -> zbmd_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let named = unsafe { named_values(values, count) }?;
        handles::with(caller.addr(), |caller: &mut Caller| {
            match caller.set(&named) {
                Ok(()) => Ok(ZBMD_OK),
                Err(error) => refusal(&error),
            }
        })
    })
}

/// # Safety
/// `count` values can be read at `values`, whose names end with NULs and whose numbers can be read, and they stay so long.
unsafe fn named_values<'a>(
    values: *const zbmd_parameter_value,
    count: usize,
) -> Result<Vec<(&'a str, &'a [f64])>, Failure> {
    // SAFETY: the caller's promise.
    let values = unsafe { items(values, count, "values") }?;
    let mut named = Vec::with_capacity(count);
    for value in values {
        // SAFETY: the caller's promise.
        let name = unsafe { text(value.name, "name") }?;
        // SAFETY: the caller's promise.
        let numbers = unsafe { items(value.numbers, value.count, "numbers") }?;
        named.push((name, numbers));
    }
    Ok(named)
}

fn refusal(error: &SetError) -> Result<zbmd_status, Failure> {
    match error {
        SetError::Full | SetError::Pending { .. } | SetError::Council { .. } => Ok(ZBMD_TIMEOUT),
        SetError::Ended => Ok(ZBMD_ENDED),
        other => Err(Failure::classed(other.class(), other)),
    }
}

/// A live parameter as the report has it.
#[derive(Serialize)]
struct ParameterReport {
    name: String,
    /// The value that was set last, which may not be in effect yet.
    numbers: Vec<f64>,
    is_list: bool,
    min: f64,
    max: f64,
}

/// The live parameters of a run: a list in JSON with an object for each, by name: `name`, `numbers` (the value that was
/// set last), `is_list`, `min` and `max`. `text`, `room` and `length` are those of `zbmd_session_report`.
///
/// # Safety
/// `text` is null, or `room` bytes can be written there; `length` is null, or a `size_t` can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_session_parameters(
    session: *const zbmd_session,
    text: *mut c_char,
    room: usize,
    length: *mut usize,
) -> zbmd_status {
    guard(|| {
        let run: Arc<Run> = handles::get(session.addr())?;
        let values = run.parameters.values().into_iter();
        let reports = values.map(|value| ParameterReport {
            name: value.parameter.name,
            numbers: value.numbers,
            is_list: value.parameter.is_list,
            min: value.parameter.min,
            max: value.parameter.max,
        });
        let report = serde_json::to_string(&reports.collect::<Vec<_>>())
            .map_err(|error| Failure::new(ZBMD_BUG, error.to_string()))?;
        // SAFETY: the caller's promise.
        unsafe { put_report(&report, text, room, length) }
    })
}
