//! What comes over the border as pointers: texts, buffers, and places for results. The only place that follows them.
#![expect(
    unsafe_code,
    reason = "the caller's pointers must be followed somewhere"
)]

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;

use crate::status::Failure;

/// A text that must be there. `name` stands in messages.
///
/// # Safety
/// `text` is null, or ends with a NUL and does not change during the call.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    unsafe { optional_text(text, name) }?.ok_or_else(|| Failure::usage(format!("`{name}` is NULL")))
}

/// A text that may be null.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(
    text: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }

    // SAFETY: it is not null, so it ends with a NUL, as the caller promises.
    let c_text = unsafe { CStr::from_ptr(text) };
    let utf8_text = c_text.to_str().map_err(|error| {
        Failure::usage(format!(
            "`{name}` is not UTF-8 from byte {} on",
            error.valid_up_to()
        ))
    });
    utf8_text.map(Some)
}

/// A path that must be there. On Unix any bytes are one, elsewhere it is UTF-8.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path(path: *const c_char, name: &str) -> Result<PathBuf, Failure> {
    // SAFETY: the caller's promise.
    let found_path = unsafe { optional_path(path, name) }?;
    found_path.ok_or_else(|| Failure::usage(format!("`{name}` is NULL")))
}

/// A path that may be null.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_path(
    path: *const c_char,
    name: &str,
) -> Result<Option<PathBuf>, Failure> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let _ = name;
        if path.is_null() {
            return Ok(None);
        }
        // SAFETY: it is not null, so it ends with a NUL, as the caller promises.
        let path_bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        Ok(Some(std::ffi::OsStr::from_bytes(path_bytes).into()))
    }

    #[cfg(not(unix))]
    {
        // SAFETY: the caller's promise.
        Ok(unsafe { optional_text(path, name) }?.map(PathBuf::from))
    }
}

/// Bytes to read.
///
/// # Safety
/// `data` is null, or `bytes` bytes can be read there and do not change during the call.
pub(crate) unsafe fn input<'a>(data: *const c_void, bytes: usize) -> Result<&'a [u8], Failure> {
    if bytes == 0 {
        return Ok(&[]);
    }
    check(data.is_null(), bytes)?;
    // SAFETY: not null, so the bytes are there, as the caller promises; no slice is longer, as `check` has seen.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), bytes) })
}

/// Items to read, one after the other. `name` stands in messages.
///
/// # Safety
/// `first` is null, or `count` items can be read there and do not change during the call.
pub(crate) unsafe fn items<'a, T>(
    first: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() || !first.is_aligned() {
        return Err(Failure::usage(format!("`{name}` is NULL or not aligned")));
    }
    check(false, count.saturating_mul(size_of::<T>()))?;
    // SAFETY: not null and aligned, so the items are there, as the caller promises; no slice is longer, as `check` has seen.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Bytes to write, which need not be initialised.
///
/// # Safety
/// `data` is null, or `bytes` bytes can be written there and nobody else uses them during the call.
pub(crate) unsafe fn output<'a>(data: *mut c_void, bytes: usize) -> Result<&'a mut [u8], Failure> {
    if bytes == 0 {
        return Ok(&mut []);
    }
    check(data.is_null(), bytes)?;
    // SAFETY: not null, so the bytes are there and no one else's, as the caller promises. Any byte is a `u8`, and what
    // C has left uninitialised there is memory of the caller's allocator, which this side only writes.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), bytes) })
}

fn check(is_null: bool, bytes: usize) -> Result<(), Failure> {
    if is_null {
        return Err(Failure::usage(format!(
            "the buffer of {bytes} bytes is NULL"
        )));
    }
    if isize::try_from(bytes).is_err() {
        return Err(Failure::usage(format!(
            "{bytes} bytes are more than any buffer has"
        )));
    }
    Ok(())
}

/// Writes a result to where the caller wants it; nowhere if that is null.
///
/// # Safety
/// `place` is null, or a `T` can be written there.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's promise. Alignment is the C compiler's business, and it may be told to ignore it.
        unsafe { place.write_unaligned(value) };
    }
}

/// Refuses a place for a result without which a call makes no sense.
pub(crate) fn needed<T>(place: *mut T, name: &str) -> Result<*mut T, Failure> {
    if place.is_null() {
        return Err(Failure::usage(format!("`{name}` is NULL")));
    }
    Ok(place)
}
