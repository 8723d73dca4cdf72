//! The thread of a run, as the session sees it: it waits for the thread's end, unless the thread is stuck.

use std::io;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use crate::error::RunError;
use crate::observe::report::Outcome;

/// How a run ended.
pub(crate) type RunResult = Result<Outcome, RunError>;

/// The thread of a run.
pub(crate) struct RunThread {
    thread: JoinHandle<()>,
    /// What came of the run: from the thread itself or, should it be stuck, from whoever watches it.
    finished: Receiver<RunResult>,
}

impl RunThread {
    /// Starts the thread; what it does sends what came of it to `finished` in the end.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(
        finished: Receiver<RunResult>,
        conduct: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let thread = std::thread::Builder::new()
            .name("zbmd run".to_owned())
            .spawn(conduct)?;
        Ok(Self { thread, finished })
    }

    /// Whether the thread has ended.
    #[cfg(hosts)]
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end of the run. The thread has ended then too, unless it is stuck.
    ///
    /// # Errors
    /// The thread's panic.
    pub(crate) fn wait(self) -> std::thread::Result<RunResult> {
        let finished = self.finished.recv();
        if let Ok(stuck @ Err(RunError::SupervisorStuck { .. })) = finished {
            return Ok(stuck);
        }
        // Without a word, it panicked.
        self.thread.join()?;
        Ok(finished.unwrap_or(Err(RunError::Abandoned)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn nobody_waits_for_a_thread_that_is_stuck() {
        let (finish, finished) = channel();
        let (release, released) = channel::<()>();
        let its = finish.clone();
        let thread = RunThread::start(finished, move || {
            // It holds its end, and sends nothing until it is released.
            let _ = released.recv();
            let _ = its.send(Err(RunError::Abandoned));
        });
        let stuck = RunError::SupervisorStuck {
            activity: "ending an epoch".to_owned(),
            seconds: 60,
        };
        finish.send(Err(stuck)).expect("the session waits");
        let outcome = thread.expect("a thread").wait().expect("no panic");
        let error = outcome.expect_err("it is stuck");
        assert!(matches!(error, RunError::SupervisorStuck { .. }), "{error}");
        assert_eq!(error.class(), crate::exit::BUG);
        drop(release);
    }

    #[test]
    fn a_panic_is_passed_on() {
        let (finish, finished) = channel::<RunResult>();
        let thread = RunThread::start(finished, move || {
            let _finish = finish;
            std::panic::resume_unwind(Box::new("a bug"));
        });
        let panic = thread.expect("a thread").wait().expect_err("it panicked");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a bug"));
    }
}
