//! Modes of a run: who asks for a change, and what became of it. The run itself goes over in [`super::epochs`], between two
//! epochs.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::control::RunControl;
use crate::error::ModeError;
use crate::program::LoadedModes;

/// A mode that a run is in, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeEntry {
    /// Its name.
    pub mode: String,
    /// The first iteration of the run in it. Iterations of all modes are counted together, from the start of the run.
    pub iteration: u64,
}

/// A mode that a run is in, by its place among the modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeStart {
    /// Its place.
    pub mode: usize,
    /// The first iteration in it.
    pub iteration: u64,
}

/// Changes the mode of a run, from any thread.
#[derive(Clone)]
pub struct ModeHandle {
    pub(super) control: Arc<RunControl>,
    pub(super) modes: Arc<LoadedModes>,
}

impl std::fmt::Debug for ModeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModeHandle")
            .field("modes", &self.modes.names())
            .finish_non_exhaustive()
    }
}

/// A change of mode that was asked for.
#[derive(Clone, Debug)]
pub struct ModeChange {
    outcome: Arc<ChangeOutcome>,
}

impl ModeChange {
    /// Waits until the run is in the mode, or cannot go there any more. Somebody else must feed and drain the run meanwhile.
    ///
    /// # Errors
    /// [`ModeError::NoPlan`] if devices are lost without which the mode has no plan, [`ModeError::Ended`]; then the run goes
    /// on as it was.
    pub fn wait(self) -> Result<ModeEntry, ModeError> {
        self.outcome.wait()
    }

    /// [`Self::wait`] for so long at most; `None` if it is not done then.
    pub fn wait_within(&self, limit: Duration) -> Option<Result<ModeEntry, ModeError>> {
        self.outcome.wait_within(limit)
    }
}

impl ModeHandle {
    /// The modes' names; the run began in the first.
    pub fn names(&self) -> &[String] {
        self.modes.names()
    }

    /// The mode that the run is in.
    pub fn present(&self) -> ModeEntry {
        let requests = self.control.mode_requests();
        requests.entry(&self.modes)
    }

    /// The mode that the run is in, and then each that it goes over to, told before any token of it is given out. Whoever
    /// asks for it takes what it is told, which waits for it in memory.
    pub fn follow(&self) -> Receiver<ModeStart> {
        let (follower, starts) = mpsc::channel();
        let mut requests = self.control.mode_requests();
        // Its end is here.
        let _ = follower.send(requests.start());
        requests.followers.push(follower);
        starts
    }

    /// Lets the run go over to another mode at the next border: with the first block that no worker has begun, and after a
    /// loss behind all tokens that were given out before it. Nothing is lost and nothing comes twice. Tokens on channels that
    /// both modes have go along ([`zbmd_ir::carried_channels`]), others begin as declared; live parameters keep their values
    /// by name. Returns at once. A change to the present mode does nothing.
    ///
    /// # Errors
    /// See [`ModeError`]; then nothing changes.
    pub fn change(&self, name: &str) -> Result<ModeChange, ModeError> {
        let names = self.modes.names();
        let target = names.iter().position(|known| known == name);
        let target = target.ok_or_else(|| ModeError::Unknown {
            name: name.to_owned(),
            known: names.to_vec(),
        })?;

        let mut requests = self.control.mode_requests();
        let pending = requests.pending.as_ref().map(|pending| pending.target);
        if let Some(target) = pending.or(requests.scheduled) {
            return Err(ModeError::Busy {
                to: names[target].clone(),
            });
        }
        if self.control.is_over() || self.control.is_finishing() {
            return Err(ModeError::Ended);
        }
        let outcome = Arc::new(ChangeOutcome::default());
        if target == requests.present {
            outcome.settle(Ok(requests.entry(&self.modes)));
            return Ok(ModeChange { outcome });
        }
        if !self.modes.allows(requests.present, target) {
            return Err(ModeError::NotAllowed {
                from: names[requests.present].clone(),
                to: name.to_owned(),
            });
        }

        requests.pending = Some(PendingChange {
            target,
            outcome: Arc::clone(&outcome),
        });
        // Under the lock: an epoch that begins later finds the request, and closes its own grants.
        self.control.quiesce();
        drop(requests);
        Ok(ModeChange { outcome })
    }
}

/// What became of a change, once it is known.
#[derive(Debug, Default)]
pub(crate) struct ChangeOutcome {
    known: Mutex<Option<Result<ModeEntry, ModeError>>>,
    settled: Condvar,
}

impl ChangeOutcome {
    pub(crate) fn settle(&self, outcome: Result<ModeEntry, ModeError>) {
        *self.lock() = Some(outcome);
        self.settled.notify_all();
    }

    fn wait(&self) -> Result<ModeEntry, ModeError> {
        let mut known = self.lock();
        loop {
            match &*known {
                Some(outcome) => return outcome.clone(),
                None => {
                    let woken = self.settled.wait(known);
                    known = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn wait_within(&self, limit: Duration) -> Option<Result<ModeEntry, ModeError>> {
        let waited = self
            .settled
            .wait_timeout_while(self.lock(), limit, |known| known.is_none());
        let (known, _) = waited.unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<ModeEntry, ModeError>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change that is not done yet.
#[derive(Debug)]
pub(crate) struct PendingChange {
    pub target: usize,
    pub outcome: Arc<ChangeOutcome>,
}

/// A change that is done, of which nobody has been told.
#[derive(Debug)]
pub(crate) struct EnteringMode {
    entry: ModeEntry,
    outcome: Arc<ChangeOutcome>,
}

/// The mode that a run is in, and the one that it is to be in.
#[derive(Debug, Default)]
pub(crate) struct ModeRequests {
    pub present: usize,
    /// The first iteration in it.
    pub since: u64,
    pub pending: Option<PendingChange>,
    /// The next mode of those that are known ahead.
    pub scheduled: Option<usize>,
    /// The run has gone over, and its first epoch in the new mode is not there yet.
    pub entering: Option<EnteringMode>,
    /// Are told of each mode.
    followers: Vec<Sender<ModeStart>>,
}

impl ModeRequests {
    /// The run goes over at this iteration.
    pub(crate) fn enter(&mut self, change: PendingChange, iteration: u64, modes: &LoadedModes) {
        self.begin(change.target, iteration);
        self.entering = Some(EnteringMode {
            entry: self.entry(modes),
            outcome: change.outcome,
        });
    }

    /// The run is in this mode from this iteration on.
    pub(crate) fn begin(&mut self, mode: usize, iteration: u64) {
        (self.present, self.since) = (mode, iteration);
        let start = self.start();
        self.followers
            .retain(|follower| follower.send(start).is_ok());
    }

    fn start(&self) -> ModeStart {
        ModeStart {
            mode: self.present,
            iteration: self.since,
        }
    }

    /// Tells whoever waits for it that the run is in the mode: parameters are those of the new mode now.
    pub(crate) fn announce(&mut self) {
        if let Some(EnteringMode { entry, outcome }) = self.entering.take() {
            outcome.settle(Ok(entry));
        }
    }

    pub(crate) fn entry(&self, modes: &LoadedModes) -> ModeEntry {
        ModeEntry {
            mode: modes.names()[self.present].clone(),
            iteration: self.since,
        }
    }

    /// The run is over: nothing pending will be done.
    pub(crate) fn end(&mut self) {
        self.announce();
        if let Some(pending) = self.pending.take() {
            pending.outcome.settle(Err(ModeError::Ended));
        }
    }
}
