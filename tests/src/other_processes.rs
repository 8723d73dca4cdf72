//! What the system says of other processes: those that they have started, their threads, and their sockets. Sockets can be kept open beyond the end of a
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

/// The workers of a process that runs them as processes, those that stand by included.
pub fn workers_of(process: Pid) -> Vec<Pid> {
    let is_worker = |child: &Pid| {
        let environment = std::fs::read(format!("/proc/{}/environ", child.as_raw_nonzero()));
        let environment = environment.unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| variable.starts_with(b"ZBMD_WORKER="))
    };
    let mut children = children_of(process);
    children.retain(is_worker);
    children
}

/// A thread of a process, and how the system schedules it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// As the system keeps it, which is 15 bytes at most.
    pub name: String,
    /// It runs before all ordinary ones (`SCHED_FIFO`), with this priority: 1 to 99, the highest first.
    pub fifo_priority: Option<i32>,
}

/// The threads that a process has now; none if it has ended.
pub fn threads_of(process: Pid) -> Vec<Thread> {
    const FIFO: &str = "1";
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let tasks = tasks.into_iter().flatten().flatten();
    let threads = tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        // The name is in brackets and may have some itself. Behind it is the third field; see proc(5).
        let (before, fields) = stat.rsplit_once(") ")?;
        let (_, name) = before.split_once('(')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let priority = fields.get(40 - 3)?.parse().ok()?;
        let is_fifo = *fields.get(41 - 3)? == FIFO;
        Some(Thread {
            name: name.to_owned(),
            fifo_priority: is_fifo.then_some(priority),
        })
    });
    threads.collect()
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
