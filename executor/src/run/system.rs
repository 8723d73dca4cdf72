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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

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
