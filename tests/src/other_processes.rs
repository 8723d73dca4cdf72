//! What the system says of other processes: those that they have started, and their sockets. Sockets can be kept open beyond the end of a
//! process: whoever waits for the end of a connection waits for ever then.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Processes that the threads of a process have started and that were not waited for; none if it has ended.
pub fn children_of(process: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let tasks = tasks.into_iter().flatten().flatten();
    let lists = tasks.map(|task| std::fs::read_to_string(task.path().join("children")));

    let mut found = Vec::new();
    for list in lists {
        for number in list.unwrap_or_default().split_ascii_whitespace() {
            found.extend(number.parse().ok().and_then(Pid::from_raw));
        }
    }
    found
}

/// The sockets that a process has open, which are open here too as long as this is kept; `None` where the system does not let us.
pub fn hold_sockets_of(process: Pid) -> Option<Vec<OwnedFd>> {
    let pidfd = pidfd_open(process, PidfdFlags::empty()).ok()?;
    let list = std::fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).ok()?;
    let mut sockets = Vec::new();
    for entry in list.flatten() {
        let Some(number) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // It may be closed by now; where nothing can be held, the list is refused already or this is.
        let file = match pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()) {
            Ok(file) => file,
            Err(rustix::io::Errno::BADF) => continue,
            Err(_) => return None,
        };
        let is_socket = fstat(&file)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
        if is_socket {
            sockets.push(file);
        }
    }
    Some(sockets)
}
