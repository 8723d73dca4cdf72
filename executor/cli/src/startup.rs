//! What has to be seen or set before anything is opened: standard streams that were closed when the program was
//! started, and the signal of a file that grew too long.
#![expect(
    unsafe_code,
    reason = "looks at descriptors before the runtime opens closed ones, and ignores a signal"
)]

use std::sync::atomic::{AtomicBool, Ordering};

/// A standard stream as the program was given it.
pub(super) struct StandardStream {
    was_closed: AtomicBool,
}

impl StandardStream {
    const fn new() -> Self {
        Self {
            was_closed: AtomicBool::new(false),
        }
    }

    /// Whether it was closed at the start. The runtime opens `/dev/null` in such a one's place, so that reading finds
    /// an end and writing loses everything, without any error.
    pub(super) fn was_closed(&self) -> bool {
        self.was_closed.load(Ordering::Relaxed)
    }
}

pub(super) static STANDARD_INPUT: StandardStream = StandardStream::new();
pub(super) static STANDARD_OUTPUT: StandardStream = StandardStream::new();

/// Called by the system's loader, before `main` and before the runtime.
#[cfg(target_os = "linux")]
extern "C" fn look_at_standard_streams() {
    for (descriptor, stream) in [(0, &STANDARD_INPUT), (1, &STANDARD_OUTPUT)] {
        // SAFETY: it asks for the flags of a number, which need not be open.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        stream.was_closed.store(flags == -1, Ordering::Relaxed);
    }
}

// SAFETY: the section holds addresses of functions that the loader calls once, with arguments that ours ignores; ours
// needs nothing of the runtime.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_STANDARD_STREAMS: extern "C" fn() = look_at_standard_streams;

/// A write beyond the limit of this process's files (`ulimit -f`) is an error like any other, and no end of the process.
pub(super) fn ignore_file_size_signal() {
    #[cfg(unix)]
    // SAFETY: no code of ours runs in a handler: the signal is ignored from here on, in child processes too.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
