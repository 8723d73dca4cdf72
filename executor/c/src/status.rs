//! What functions return, the text of the last error, and the wall that panics do not pass.
#![expect(unsafe_code, reason = "exports functions under their C names")]
#![expect(non_camel_case_types, reason = "names as C programs write them")]

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use zbmd_executor::exit;
use zbmd_executor::{EngineError, RunError, StreamError};
use zbmd_live::session::ConnectError;

/// What a function returns. The classes of errors are the exit codes of `zbmd-run` and `zbmdc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum zbmd_status {
    /// All went well, and wholly: every byte that was asked for was moved.
    ZBMD_OK = 0,
    /// The call is wrong: a handle that is null, closed, of another kind or in use by another thread, a null buffer, an
    /// unknown name, bytes that are no whole tokens.
    ZBMD_USAGE = 2,
    /// The model or the machine is wrong; the text says where.
    ZBMD_MODEL = 3,
    /// A file cannot be read or written, or a declaration is wrong.
    ZBMD_FILE = 4,
    /// The bundle is refused, or a device that it was made for is not here.
    ZBMD_REFUSED = 5,
    /// A kernel or a device failed during the run, or there is too little memory.
    ZBMD_FAULT = 6,
    /// The supervisor gave up in good order.
    ZBMD_GAVE_UP = 7,
    /// No error: the time is over. Fewer bytes were moved than asked for; how many is told.
    ZBMD_TIMEOUT = 8,
    /// No error: there is no more. The stream has ended, or the list.
    ZBMD_ENDED = 9,
    /// A bug of zbmd: please report it.
    ZBMD_BUG = 70,
}

use zbmd_status::*;

/// Why a call fails: its class, and a text for people.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: zbmd_status,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(status: zbmd_status, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(ZBMD_USAGE, text)
    }

    /// An error with one of the classes of [`exit`].
    pub(crate) fn classed(class: u8, text: impl ToString) -> Self {
        let status = match class {
            exit::USAGE => ZBMD_USAGE,
            exit::FILE => ZBMD_FILE,
            exit::REFUSED => ZBMD_REFUSED,
            exit::FAULT => ZBMD_FAULT,
            exit::GAVE_UP => ZBMD_GAVE_UP,
            _ => ZBMD_BUG,
        };
        Self::new(status, text.to_string())
    }

    pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self::new(
            ZBMD_BUG,
            format!("this is a bug of zbmd: {}", text.unwrap_or_default()),
        )
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::classed(error.class(), error)
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        Self::classed(error.class(), error)
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::classed(error.class(), error)
    }
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        let status = match &error {
            StreamError::Closed { .. } => ZBMD_ENDED,
            StreamError::Stopped { .. } => ZBMD_FAULT,
            _ => ZBMD_USAGE,
        };
        Self::new(status, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// A text as C has it. A NUL in it would end it early: it becomes a replacement character.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// Does the work of one function: remembers the text of an error, and catches panics.
pub(crate) fn guard(work: impl FnOnce() -> Result<zbmd_status, Failure>) -> zbmd_status {
    let outcome = catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|payload| Err(Failure::panicked(&*payload)));
    outcome.unwrap_or_else(|Failure { status, text }| {
        // A thread that is ending has no place for texts any more; the status says enough.
        let _ = LAST.try_with(|last| *last.borrow_mut() = c_string(&text));
        status
    })
}

/// The text of the last error of this thread, for people; empty if there was none. It is UTF-8, and valid until the
/// next function of zbmd fails on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn zbmd_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// The version of this library, such as `0.1.0`. Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn zbmd_version() -> *const c_char {
    const VERSION: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
        concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes(),
    ) {
        Ok(version) => version,
        Err(_) => panic!("a version has no NUL"),
    };
    VERSION.as_ptr()
}
