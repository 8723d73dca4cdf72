//! What the operating system says of a worker's thread.

use crate::supervise::{Os, Thread};

/// State and CPU time (ns) of a thread of a process; `None` if it is gone or the system does not tell.
#[cfg(target_os = "linux")]
pub(crate) fn thread_state(process: u32, thread: u32) -> Option<Thread> {
    use std::io::Read;
    let read = |name: &str, to: &mut [u8; 512]| -> Option<usize> {
        let path = format!("/proc/{process}/task/{thread}/{name}");
        std::fs::File::open(path).ok()?.read(to).ok()
    };
    let mut text = [0; 512];
    let length = read("stat", &mut text)?;
    // The name in parentheses may hold anything; the state follows its last one.
    let stat = std::str::from_utf8(&text[..length]).ok()?;
    let state = stat.rsplit_once(')')?.1.trim_start().chars().next()?;
    let length = read("schedstat", &mut text)?;
    let times = std::str::from_utf8(&text[..length]).ok()?;
    let cpu_ns = times.split_ascii_whitespace().next()?.parse().ok()?;
    let os = match state {
        'R' => Os::Running,
        'T' | 't' => Os::Stopped,
        _ => Os::Blocked,
    };
    Some(Thread { os, cpu_ns })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_state(_process: u32, _thread: u32) -> Option<Thread> {
    None
}

/// How a process that is ending will have ended, as `wait` will say it: the system knows that before it has freed the
/// memory. `None` if it does not tell, if the process is not ending, and if it ends without an error.
///
/// Called when its threads have begun to end: before, the system may not have noted it yet.
#[cfg(target_os = "linux")]
pub(crate) fn exit_status(process: u32) -> Option<i32> {
    /// `PF_EXITING`.
    const EXITING: u64 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The third field, the state, is the first one behind the name.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let flags: u64 = fields.nth(9 - 3)?.parse().ok()?;
    let status: i32 = fields.nth(52 - 9 - 1)?.parse().ok()?;
    (flags & EXITING != 0 && status != 0).then_some(status)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    use super::*;

    #[test]
    fn a_process_that_has_not_been_waited_for_tells_how_it_ended() {
        for (script, code, signal) in [
            ("exit 3", Some(3), None),
            ("kill -9 $$", None, Some(9)),
            ("kill -6 $$", None, Some(6)),
        ] {
            let mut child = Command::new("/bin/sh")
                .args(["-c", script])
                .spawn()
                .expect("started");
            let status = loop {
                if let Some(status) = exit_status(child.id()) {
                    break ExitStatus::from_raw(status);
                }
                std::thread::yield_now();
            };
            assert_eq!((status.code(), status.signal()), (code, signal), "{script}");
            let waited = child.wait().expect("a child");
            assert_eq!((waited.code(), waited.signal()), (code, signal), "{script}");
        }
        assert_eq!(exit_status(std::process::id()), None, "it goes on");
    }

    #[test]
    fn this_thread_runs() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        // The system counts in ticks: a thread that has just begun has had no time.
        loop {
            let state = thread_state(std::process::id(), thread).expect("it is there");
            assert_eq!(state.os, Os::Running);
            if state.cpu_ns > 0 {
                break;
            }
        }
        assert_eq!(thread_state(std::process::id(), u32::MAX), None);
    }
}
