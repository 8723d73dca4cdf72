//! What a worker's thread is to the system.

use std::any::Any;

/// The system's number of this thread, by which others can ask what became of it; 0 if it has none.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn thread_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn thread_number() -> u32 {
    0
}

/// What a panic says.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(owned)
        .unwrap_or("a panic without a message")
        .to_owned()
}
