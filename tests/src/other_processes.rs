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

/// What a process that runs workers as processes has forked them from, if they are many.
pub fn nursery_of(process: Pid) -> Option<Pid> {
    let mut children = children_of(process).into_iter();
    children.find(|child| name_of(*child) == "zbmd-nursery")
}

/// The workers of a process that runs them as processes, those that stand by included.
pub fn workers_of(process: Pid) -> Vec<Pid> {
    let nursery = nursery_of(process);
    let forked = nursery.into_iter().flat_map(children_of);
    let mut workers = children_of(process);
    workers.extend(forked);
    // What is left of one that has ended is there until it is waited for.
    workers.retain(|worker| Some(*worker) != nursery && is_worker(*worker) && !is_zombie(*worker));
    workers
}

fn is_worker(process: Pid) -> bool {
    let environment = std::fs::read(format!("/proc/{}/environ", process.as_raw_nonzero()));
    let environment = environment.unwrap_or_default();
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| variable.starts_with(b"ZBMD_WORKER="))
}

fn name_of(process: Pid) -> String {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", process.as_raw_nonzero()));
    name.unwrap_or_default().trim_end().to_owned()
}

fn is_zombie(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, fields)| fields);
    state.is_none_or(|fields| fields.starts_with(['Z', 'X']))
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
