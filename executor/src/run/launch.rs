//! The life of a worker's process from its launch to its end, as the supervising thread and its listener share it.
//!
//! The system call that makes a process returns only when the new one runs its program: a child that a signal stops
//! between the two keeps the calling thread for ever. So the thread that listens to a worker launches it too, and the
//! supervising thread, which may not wait for anything, sees how far the launch has come and can end it at any time. A
//! child that does not run its program yet is found among the children of the thread that is launching it.
//!
//! The listener lives as long as its process: a worker is killed by the system when the *thread* that launched it ends
//! (see [`super::worker_process`]).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::nursery::{ForkedProcess, Nursery};
use crate::run::system;
use crate::supervise::Os;
use crate::worker::thread::thread_number;

/// How far a process has come.
enum Phase {
    /// Its listener has not begun to launch it.
    Planned,
    /// This thread is launching it, or waits for a nursery that forks it.
    Launching {
        thread: u32,
        nursery: Option<Arc<Nursery>>,
    },
    /// It runs its program, and its listener has not waited for it.
    Running { process: u32, pidfd: OwnedFd },
    /// It is gone, or never came to be.
    Gone,
}

/// A process, and whether it is wanted.
pub(crate) struct Lifetime {
    state: Mutex<State>,
}

/// A process that runs the program, on the side of the thread that waits for its end.
#[derive(Debug)]
pub(crate) struct RunningProcess {
    process: u32,
    pidfd: OwnedFd,
    /// One that this process has started itself; a nursery waits for others.
    child: Option<Child>,
}

/// How long the system may take to say how a process ended, if the process's own entry does not say it.
///
/// A process that is killed runs none of its program any more when that is seen. Until the system has cleared it away took up to
/// 600 ms on two cores with ten busy threads, as what dies waits for the processor like all others.
const REAP_PATIENCE: Duration = Duration::from_millis(10);
/// How often it is asked meanwhile.
const LOOK_EVERY: Duration = Duration::from_micros(500);

impl RunningProcess {
    pub(crate) fn kill(&self) {
        // One that has ended needs none.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// How it ended, as it was killed or was ending before; `None` if the system does not say so in time.
    pub(crate) fn status_so_far(&mut self) -> io::Result<Option<ExitStatus>> {
        let look_every = Timespec::try_from(LOOK_EVERY).map_err(io::Error::other)?;
        for _ in 0..REAP_PATIENCE.as_micros() / LOOK_EVERY.as_micros() {
            if let Some(status) = system::exit_status(self.process) {
                return Ok(Some(ExitStatus::from_raw(status)));
            }
            if let Some(status) = self.try_wait()? {
                return Ok(Some(status));
            }
            // Early or not, what counts is what the system says then.
            let _ = poll(
                &mut [PollFd::new(&self.pidfd, PollFlags::IN)],
                Some(&look_every),
            );
        }
        self.try_wait()
    }

    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => child.try_wait(),
            None => Ok(None),
        }
    }

    /// Waits until the system has cleared it away; how it ended, if that is known.
    pub(crate) fn wait(&mut self) -> Option<ExitStatus> {
        if let Some(child) = &mut self.child {
            return child.wait().ok();
        }
        // Its descriptor can be read from its end on.
        while poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], None) == Err(Errno::INTR) {}
        system::exit_status(self.process).map(ExitStatus::from_raw)
    }
}

struct State {
    phase: Phase,
    /// Why it is to end at once, if it is.
    ended_because: Option<String>,
}

impl Lifetime {
    pub(crate) fn new() -> Self {
        let first_state = State {
            phase: Phase::Planned,
            ended_because: None,
        };
        Self {
            state: Mutex::new(first_state),
        }
    }

    /// Held for some system calls that do not wait, and never while a process is being launched.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_launch(&self, nursery: Option<&Arc<Nursery>>) -> io::Result<()> {
        let mut state = self.state();
        if state.ended_because.is_some() {
            state.phase = Phase::Gone;
            return Err(io::Error::other("not wanted before it was launched"));
        }
        state.phase = Phase::Launching {
            thread: thread_number(),
            nursery: nursery.cloned(),
        };
        Ok(())
    }

    /// Has the process forked, with its end of a socket pair; `None` if the nursery cannot.
    ///
    /// # Errors
    /// What the system says, or that the process is not wanted any more.
    pub(super) fn fork(
        &self,
        nursery: &Arc<Nursery>,
        socket: BorrowedFd<'_>,
    ) -> io::Result<Option<RunningProcess>> {
        self.begin_launch(Some(nursery))?;
        let forked = nursery.fork(socket);

        let mut state = self.state();
        let Some(ForkedProcess { process, pidfd }) = forked else {
            state.phase = Phase::Planned;
            return Ok(None);
        };
        if state.ended_because.is_some() {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
        state.phase = Phase::Running {
            process,
            pidfd: pidfd.try_clone()?,
        };
        Ok(Some(RunningProcess {
            process,
            pidfd,
            child: None,
        }))
    }

    /// Launches the process on this thread, which then waits for its end.
    ///
    /// # Errors
    /// What the system says, or that the process is not wanted any more.
    pub(crate) fn launch(&self, mut command: Command) -> io::Result<RunningProcess> {
        self.begin_launch(None)?;
        let spawn_result = command.spawn();
        // Its copy of the worker's end of the socket would keep the socket open.
        drop(command);

        let mut state = self.state();
        state.phase = Phase::Gone;
        let mut child = spawn_result?;

        // The child has not been waited for, so the number is still its own.
        let open_result = match Pid::from_raw(child.id() as i32) {
            Some(pid) => pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        let pidfd = match open_result {
            Ok(pidfd) => pidfd,
            Err(error) => {
                drop(state);
                child.kill()?;
                child.wait()?;
                return Err(error);
            }
        };

        if state.ended_because.is_some() {
            child.kill()?;
        }
        let process = child.id();
        state.phase = Phase::Running {
            process,
            pidfd: pidfd.try_clone()?,
        };
        Ok(RunningProcess {
            process,
            pidfd,
            child: Some(child),
        })
    }

    /// Whether it is gone, or never came to be.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state().phase, Phase::Gone)
    }

    /// Its listener has waited for it. Why it was ended, if it was.
    pub(crate) fn close(&self) -> Option<String> {
        let mut state = self.state();
        state.phase = Phase::Gone;
        state.ended_because.take()
    }

    /// The number of the process while it runs its program.
    pub(crate) fn process(&self) -> Option<u32> {
        match self.state().phase {
            Phase::Running { process, .. } => Some(process),
            _ => None,
        }
    }

    /// Sends a signal if it runs its program; whether it does.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        match &self.state().phase {
            Phase::Running { pidfd, .. } => pidfd_send_signal(pidfd, signal).is_ok(),
            _ => false,
        }
    }

    /// Something that can send a signal later, from another thread; `None` if it does not run its program.
    pub(crate) fn messenger(&self) -> Option<impl FnOnce(Signal) + Send + 'static> {
        let Phase::Running { pidfd, .. } = &self.state().phase else {
            return None;
        };
        let pidfd = pidfd.try_clone().ok()?;
        Some(move |signal| {
            let _ = pidfd_send_signal(&pidfd, signal);
        })
    }

    /// Kills it, in whatever phase it is: a launch that is under way comes to its end by that.
    pub(crate) fn end(&self, why: Option<&str>) {
        let mut state = self.state();
        state
            .ended_because
            .get_or_insert_with(|| why.unwrap_or_default().to_owned());

        match &state.phase {
            Phase::Planned | Phase::Gone => {}
            Phase::Launching { thread, nursery } => {
                for child in children_of(*thread) {
                    kill_child_of(*thread, child);
                }
                // It would fork when it goes on, and nobody else gets a worker of it.
                if let Some(nursery) = nursery
                    && nursery.lifetime().is_stopped()
                {
                    nursery.lifetime().end(Some("a signal stopped it"));
                }
            }
            Phase::Running { pidfd, .. } => {
                let _ = pidfd_send_signal(pidfd, Signal::KILL);
            }
        }
    }

    /// Ends a launch again that was ended before its child was there; whether it is still under way.
    pub(crate) fn end_launch(&self) -> bool {
        let is_launching = matches!(self.state().phase, Phase::Launching { .. });
        if is_launching {
            self.end(None);
        }
        is_launching
    }

    /// Whether a signal has stopped it.
    pub(crate) fn is_stopped(&self) -> bool {
        let candidate_processes = match self.state().phase {
            Phase::Planned | Phase::Gone => Vec::new(),
            Phase::Launching {
                thread,
                ref nursery,
            } => match nursery {
                Some(nursery) => return nursery.lifetime().is_stopped(),
                None => children_of(thread),
            },
            Phase::Running { process, .. } => vec![process],
        };
        candidate_processes.into_iter().any(|process| {
            let thread_state = system::thread_state(process, process);
            thread_state.is_some_and(|state| state.os == Os::Stopped)
        })
    }
}

/// Processes that a thread of this process has started and that were not waited for. None where the system does not
/// list them: then a child that is stopped before it runs its program is killed when it goes on.
fn children_of(thread: u32) -> Vec<u32> {
    let children_path = format!("/proc/self/task/{thread}/children");
    let child_numbers = std::fs::read_to_string(children_path).unwrap_or_default();
    child_numbers
        .split_ascii_whitespace()
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// Kills a child of a thread. Its number cannot come to be another process's between the look and the signal: the file
/// descriptor is opened first, and is that of a child if the number is still one of a child.
fn kill_child_of(thread: u32, child: u32) {
    let Some(pid) = Pid::from_raw(child as i32) else {
        return;
    };
    if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
        && children_of(thread).contains(&child)
    {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::kill_process;
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// A launch of a program that ends only when it is told to, on a thread of its own.
    struct Launch {
        lifetime: Arc<Lifetime>,
        ended: mpsc::Receiver<Option<i32>>,
    }

    fn launch_on_a_thread(is_watched: &Arc<AtomicBool>) -> Launch {
        let lifetime = Arc::new(Lifetime::new());
        let (send_ended, ended) = mpsc::channel();
        let thread_lifetime = Arc::clone(&lifetime);
        let is_watched = Arc::clone(is_watched);
        std::thread::spawn(move || {
            while !is_watched.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let mut command = Command::new("/bin/sleep");
            command.arg("1000").stdin(Stdio::null()).process_group(0);
            // The system copies it into the new process, which widens the window that the test looks for.
            command.env("PADDING", "x".repeat(100_000));
            let status = thread_lifetime
                .launch(command)
                .ok()
                .and_then(|mut process| process.wait());
            thread_lifetime.close();
            let _ = send_ended.send(status.and_then(|status| status.signal()));
        });

        Launch { lifetime, ended }
    }

    /// Stops the child of a launch as soon as it is there; whether it was caught before it ran its program.
    fn stop_at_once(launch: &Launch, is_watched: &AtomicBool) -> bool {
        is_watched.store(true, Ordering::Release);
        loop {
            let thread = match launch.lifetime.state().phase {
                Phase::Planned => continue,
                Phase::Launching { thread, .. } => thread,
                Phase::Running { .. } | Phase::Gone => return false,
            };
            let Some(child) = children_of(thread).pop() else {
                continue;
            };
            let pid = Pid::from_raw(child as i32).expect("a process");
            let _ = kill_process(pid, Signal::STOP);

            // A process on its way into its program stops only when it is there, however long that takes.
            while system::thread_state(child, child).is_some_and(|state| state.os != Os::Stopped) {
                std::thread::yield_now();
            }
            return runs_our_program(child);
        }
    }

    /// Whether a process still runs the program of this one: it has not come to its own.
    fn runs_our_program(process: u32) -> bool {
        let program_of = |process: &str| std::fs::read_link(format!("/proc/{process}/exe")).ok();
        program_of(&process.to_string()) == program_of("self")
    }

    /// Tries until a child is caught between the call that makes it and its program.
    fn caught() -> Launch {
        for _ in 0..20_000 {
            let is_watched = Arc::new(AtomicBool::new(false));
            let launch = launch_on_a_thread(&is_watched);
            if stop_at_once(&launch, &is_watched) {
                return launch;
            }
            launch.lifetime.end(None);
            let _ = launch.ended.recv();
        }
        panic!("no child was caught before it ran its program");
    }

    #[test]
    fn a_child_that_is_stopped_before_it_runs_its_program_is_seen_and_ended() {
        let launch = caught();
        assert!(launch.lifetime.is_stopped());
        assert!(
            launch.lifetime.process().is_none(),
            "the launch is still under way"
        );
        launch.lifetime.end(Some("stopped"));
        let end_signal = launch
            .ended
            .recv_timeout(Duration::from_secs(20))
            .expect("the launch comes to its end");
        assert_eq!(end_signal, Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn what_is_not_wanted_any_more_is_not_launched() {
        let lifetime = Lifetime::new();
        lifetime.end(Some("too late"));
        let launch_result = lifetime.launch(Command::new("/bin/sleep"));
        launch_result.expect_err("nobody wants it");
        assert_eq!(lifetime.close().as_deref(), Some("too late"));
    }
}
