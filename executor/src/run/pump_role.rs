//! How threads are scheduled that feed and drain a run: as its workers are, so that neither waits for the other for long.

use std::io;

use zbmd_ir::CpuReservation;

use crate::options::RunOptions;
use crate::program::LoadedProgram;

/// What a thread that moves the tokens of a run is given by the system. By default what all threads are given.
#[derive(Clone, Copy, Debug, Default)]
pub struct PumpRole {
    is_realtime: bool,
    share: Option<CpuReservation>,
}

impl PumpRole {
    pub(crate) fn of(options: &RunOptions, loaded: &LoadedProgram) -> Self {
        let is_held = options.hold_share && !options.realtime;
        #[cfg(target_os = "linux")]
        let share = is_held.then(|| crate::share::stream_reservation(loaded));
        #[cfg(not(target_os = "linux"))]
        let share = {
            let _ = (is_held, loaded);
            None
        };
        Self {
            is_realtime: options.realtime,
            share: share.flatten(),
        }
    }

    /// That of a second thread for the same stream, which nobody waits for: no share of its own.
    #[must_use]
    pub fn without_share(self) -> Self {
        Self {
            share: None,
            ..self
        }
    }

    /// Gives the calling thread its priority in a real-time run, or its share in one that is held to its share. Where the
    /// system promises no share it stays an ordinary thread.
    ///
    /// # Errors
    /// What the system says of the priority. The run has made sure that it will be given.
    pub fn enter(self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if self.is_realtime {
            return crate::realtime::enter(crate::realtime::ThreadRole::Pump);
        }
        #[cfg(target_os = "linux")]
        if let Some(share) = self.share {
            // Whether it is promised has been said when the run began.
            let _ = crate::share::enter_to_stay(share);
        }
        Ok(())
    }
}
