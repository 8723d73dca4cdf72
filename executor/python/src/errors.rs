//! Exceptions, one for each class of error: what `zbmd-run` and `zbmdc` have exit codes for.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use zbmd_executor::exit;
use zbmd_executor::{EngineError, ModeError, ProbeError, RunError, StreamError};
use zbmd_live::session::ConnectError;

create_exception!(zbmd, Error, PyException, "What zbmd refuses or fails at.");
create_exception!(zbmd, UsageError, Error, "The call makes no sense.");
create_exception!(
    zbmd,
    CompileError,
    Error,
    "The model or the machine is wrong."
);
create_exception!(zbmd, FileError, Error, "A file cannot be read or written.");
create_exception!(
    zbmd,
    RefusedError,
    Error,
    "The bundle is refused, or its device is not here."
);
create_exception!(
    zbmd,
    FaultError,
    Error,
    "A kernel or a device failed during the run."
);
create_exception!(
    zbmd,
    GaveUpError,
    Error,
    "The supervisor gave up in good order."
);

/// An exception of one of the classes of [`exit`].
pub(crate) fn error_of_class(class: u8, text: impl ToString) -> PyErr {
    let text = text.to_string();
    match class {
        exit::USAGE => UsageError::new_err(text),
        exit::FILE => FileError::new_err(text),
        exit::REFUSED => RefusedError::new_err(text),
        exit::FAULT => FaultError::new_err(text),
        exit::GAVE_UP => GaveUpError::new_err(text),
        _ => Error::new_err(text),
    }
}

/// A call that makes no sense.
pub(crate) fn usage_error(text: impl Into<String>) -> PyErr {
    UsageError::new_err(text.into())
}

pub(crate) fn engine_error(error: EngineError) -> PyErr {
    error_of_class(error.class(), error)
}

pub(crate) fn mode_error(error: ModeError) -> PyErr {
    match error {
        ModeError::Ended => usage_error(error.to_string()),
        other => error_of_class(other.class(), other),
    }
}

pub(crate) fn probe_error(error: ProbeError) -> PyErr {
    match error {
        ProbeError::Busy { .. } | ProbeError::TooLong { .. } | ProbeError::Hosts => {
            RefusedError::new_err(error.to_string())
        }
        other => usage_error(other.to_string()),
    }
}

pub(crate) fn run_error(error: RunError) -> PyErr {
    error_of_class(error.class(), error)
}

pub(crate) fn connect_error(error: ConnectError) -> PyErr {
    error_of_class(error.class(), error)
}

pub(crate) fn stream_error(error: StreamError) -> PyErr {
    match error {
        StreamError::Stopped { .. } => FaultError::new_err(error.to_string()),
        other => usage_error(other.to_string()),
    }
}
