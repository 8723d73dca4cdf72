//! What C programs cannot try: the header's making, panics, and several threads at one handle. All else is in
//! `tests/examples.rs`.

mod extremes;
mod header;
mod threads;

use std::ffi::CStr;

use crate::status::guard;
use crate::zbmd_status::ZBMD_BUG;

/// The text of this thread's last error.
#[expect(unsafe_code, reason = "reads a C text")]
fn error() -> String {
    // SAFETY: the text is valid until the next error on this thread.
    unsafe { CStr::from_ptr(crate::zbmd_last_error()) }
        .to_string_lossy()
        .into_owned()
}

#[test]
fn a_panic_becomes_a_status_with_its_text() {
    assert_eq!(guard(|| panic!("ouch {}", 7)), ZBMD_BUG);
    assert_eq!(error(), "this is a bug of zbmd: ouch 7");
}
