//! Real-time runs: threads that the system runs before all ordinary ones (`SCHED_FIFO`), in memory that is not paged out.
//!
//! | thread | priority |
//! |---|---|
//! | the supervising one | 50 |
//! | workers, with the threads of their teams | 40 |
//! | those that move tokens from and to files and sockets | 30 |
//!
//! Workers wait for rings and queues by looking a few times and sleeping then, so that none of them keeps a core from
//! threads of lower priority; what the system reserves for ordinary threads (`sched_rt_runtime_us`) is left as it is.
//!
//! Whether the system lets us is found out before anything runs ([`begin`]): a run that asked for real time does not go on
//! without it.
#![expect(
    unsafe_code,
    reason = "the system call that changes how a thread is scheduled, which no wrapper at hand has"
)]

use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};
use zbmd_ir::Device;

/// What a thread of a real-time run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadRole {
    /// Decides what follows from losses. It sleeps most of the time.
    Supervisor,
    /// Replays a calendar.
    Worker,
    /// Moves tokens between a session and a file or a socket.
    Pump,
    /// Looks at what pumps count, under locks that they take too: were it an ordinary thread, whatever else runs on the
    /// machine could keep it from giving them back.
    Observer,
}

impl ThreadRole {
    /// The priority of its thread: 1 to 99, the highest first.
    pub fn priority(self) -> i32 {
        match self {
            ThreadRole::Supervisor => 50,
            ThreadRole::Worker => 40,
            ThreadRole::Pump => 30,
            ThreadRole::Observer => 20,
        }
    }
}

/// Why a run cannot have real time.
#[derive(Debug, thiserror::Error)]
pub enum RealtimeError {
    /// The system refuses the priority.
    #[error(
        "the system refuses real-time priority {wanted} ({source}); the limit is {limit}: raise it (`ulimit -r {wanted}`, or `rtprio` in /etc/security/limits.conf), or give the program CAP_SYS_NICE"
    )]
    Priority {
        /// The highest priority that is needed.
        wanted: i32,
        /// `RLIMIT_RTPRIO`, or "none".
        limit: String,
        /// What the system says.
        source: io::Error,
    },
    /// The system limits how much memory may be locked.
    #[error(
        "memory of at most {limit_kib} KiB may be locked: a real-time run locks all of it; lift the limit (`ulimit -l unlimited`, or `memlock` in /etc/security/limits.conf), or give the program CAP_IPC_LOCK"
    )]
    MemoryLimit {
        /// `RLIMIT_MEMLOCK`.
        limit_kib: u64,
    },
    /// The system does not lock the memory.
    #[error("the system does not lock the memory of this process: {0}")]
    Memory(io::Error),
    /// A device's cores are not this process's to use.
    #[error(
        "device {device} is core {core}, on which the system does not let this process run: allow it (`taskset`, cpusets), or compile for the cores {allowed}"
    )]
    Core {
        /// The device.
        device: String,
        /// Its core.
        core: u32,
        /// Cores of this process.
        allowed: String,
    },
}

/// Makes sure that threads of all roles will be given their priorities, and keeps the memory of this process, what it
/// has and what it will have, from being paged out. Nothing is undone at the end of a run. `devices` are those whose workers this
/// process has, with their cores.
///
/// # Errors
/// See [`RealtimeError`]: what is missing, and how to get it.
pub fn begin<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Result<(), RealtimeError> {
    check_cores(devices)?;

    // On a thread of its own: the caller's stays as it is.
    let probe = std::thread::Builder::new().spawn(|| enter(ThreadRole::Supervisor));
    let entered = probe.and_then(|thread| match thread.join() {
        Ok(entered) => entered,
        Err(_) => Err(io::Error::other("the thread that asked has panicked")),
    });
    entered.map_err(|source| RealtimeError::Priority {
        wanted: ThreadRole::Supervisor.priority(),
        limit: limit_text(Resource::Rtprio),
        source,
    })?;
    lock_memory()
}

/// Keeps the memory of this process from being paged out.
///
/// # Errors
/// A limit that would let later allocations fail, or what the system says.
pub(crate) fn lock_memory() -> Result<(), RealtimeError> {
    // With a limit, memory that is taken later could not be locked, and taking it would fail.
    if let Some(limit) = getrlimit(Resource::Memlock).current
        && !may_lock_all()
    {
        return Err(RealtimeError::MemoryLimit {
            limit_kib: limit >> 10,
        });
    }
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
        .map_err(|error| RealtimeError::Memory(error.into()))
}

/// Gives the calling thread the priority of its role. Threads that a worker starts have it too; those of the others are
/// ordinary ones.
///
/// # Errors
/// What the system says.
pub fn enter(role: ThreadRole) -> io::Result<()> {
    let policy = match role {
        ThreadRole::Worker => libc::SCHED_FIFO,
        ThreadRole::Supervisor | ThreadRole::Pump | ThreadRole::Observer => {
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK
        }
    };
    let parameters = libc::sched_param {
        sched_priority: role.priority(),
    };
    // SAFETY: it reads the parameters, which live; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the calling thread an ordinary one again.
#[cfg(hosts)]
pub(crate) fn leave() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: it reads the parameters, which live; 0 is the calling thread.
    unsafe {
        // Who was given a priority may give it back.
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &parameters);
    }
}

fn check_cores<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Result<(), RealtimeError> {
    // Where the system does not say, it does not forbid.
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else {
        return Ok(());
    };
    for device in devices {
        let is_forbidden = |core: &&u32| !allowed.is_set(**core as usize);
        if let Some(core) = device.cores.iter().find(is_forbidden) {
            let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
            let cores: Vec<String> = cores.map(|core| core.to_string()).collect();
            return Err(RealtimeError::Core {
                device: device.name.clone(),
                core: *core,
                allowed: cores.join(", "),
            });
        }
    }
    Ok(())
}

fn limit_text(resource: Resource) -> String {
    let limit = getrlimit(resource).current;
    limit.map_or("none".to_owned(), |limit| limit.to_string())
}

/// Whether the limit on locked memory does not concern this process (CAP_IPC_LOCK).
fn may_lock_all() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_some_and(|capabilities| capabilities >> CAP_IPC_LOCK & 1 == 1)
}
