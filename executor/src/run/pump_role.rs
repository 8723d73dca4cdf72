//! How threads are scheduled that feed and drain a run: as its workers are, so that neither waits for the other for long.

use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use crate::options::RunOptions;

/// What a thread that moves the tokens of a run is given by the system. By default what all threads are given.
#[derive(Clone, Copy, Debug, Default)]
pub struct PumpRole {
    is_realtime: bool,
    is_held: bool,
}

impl PumpRole {
    pub(crate) fn of(options: &RunOptions) -> Self {
        Self {
            is_realtime: options.realtime,
            is_held: options.hold_share && !options.realtime,
        }
    }

    /// Whether it is the role of threads of a run that is held to its share.
    pub fn is_held(self) -> bool {
        self.is_held
    }

    /// Starts a thread that enters this role and then does `run`, which is told what came of that. Returns when it has entered:
    /// what is started afterwards finds it there.
    ///
    /// # Errors
    /// What the system says when it gives no thread.
    pub fn spawn(
        self,
        name: String,
        run: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let (entering, has_entered) = mpsc::channel::<()>();
        let begin = move || {
            let outcome = self.enter();
            drop(entering);
            run(outcome);
        };
        let handle = std::thread::Builder::new().name(name).spawn(begin)?;
        // Nothing is sent: the other end is dropped.
        let _ = has_entered.recv();
        Ok(handle)
    }

    /// Gives the calling thread its priority in a real-time run, or one that is held to its share: it runs before all ordinary
    /// threads. In a run that is held to its share it stays an ordinary one where the system does not allow it.
    ///
    /// # Errors
    /// What the system says of the priority. The run has made sure that it will be given.
    pub fn enter(self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if self.is_realtime {
            return crate::realtime::enter(crate::realtime::ThreadRole::Pump);
        }
        #[cfg(target_os = "linux")]
        if self.is_held {
            // Whether it is given has been said when the run began.
            let _ = crate::share::enter_without();
        }
        Ok(())
    }
}
