//! How ready a model is, as its supervisor's decisions say. Never a guess: no timer, no probe.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zbmd_executor::supervise::{Event, What};

/// What a model can do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its workers are being started.
    Starting,
    /// A plan runs.
    Running,
    /// No plan runs without the devices that are lost; one of them is expected back. Requests wait.
    Waiting,
    /// The run ended, and is begun anew.
    Restarting,
    /// It was begun anew too often. Nothing is computed any more.
    Failed {
        /// The last error.
        why: String,
    },
}

/// What the supervisor decided so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SupervisionCounts {
    /// Epochs that were begun.
    pub(crate) epochs: u64,
    /// Workers lost, by the kind of cause.
    pub(crate) losses: BTreeMap<&'static str, u64>,
    /// Losses after which tokens came again.
    pub(crate) recoveries: u64,
    /// From the loss of a worker to the first new token, in all.
    pub(crate) recovery_ns: u64,
    /// Runs that were begun anew.
    pub(crate) restarts: u64,
}

/// A model's phase and counts. Written by the supervisor's listener, read by everybody.
#[derive(Debug)]
pub(crate) struct Readiness {
    state: Mutex<ReadinessState>,
}

#[derive(Debug)]
struct ReadinessState {
    phase: Phase,
    counts: SupervisionCounts,
}

impl Readiness {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(ReadinessState {
                phase: Phase::Starting,
                counts: SupervisionCounts::default(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, ReadinessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state().phase.clone()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state().phase == Phase::Running
    }

    pub(crate) fn counts(&self) -> SupervisionCounts {
        self.state().counts.clone()
    }

    /// The run is begun anew, or is not.
    pub(crate) fn enter(&self, phase: Phase) {
        let mut state = self.state();
        state.counts.restarts += u64::from(phase == Phase::Restarting);
        state.phase = phase;
    }

    /// Takes a decision of the supervisor.
    pub(crate) fn follow(&self, event: &Event) {
        let mut state = self.state();
        match &event.what {
            What::Begin { .. } => {
                state.phase = Phase::Running;
                state.counts.epochs += 1;
            }
            What::Waiting { .. } => state.phase = Phase::Waiting,
            What::Stopped { .. } => state.phase = Phase::Restarting,
            What::Lost { cause, .. } => {
                *state.counts.losses.entry(cause_name(cause)).or_default() += 1;
            }
            What::Recovered {
                fence_ns,
                restore_ns,
                replay_ns,
                ..
            } => {
                state.counts.recoveries += 1;
                state.counts.recovery_ns += fence_ns + restore_ns + replay_ns;
            }
            _ => {}
        }
    }
}

pub(super) fn cause_name(cause: &zbmd_executor::supervise::Cause) -> &'static str {
    use zbmd_executor::supervise::Cause;

    match cause {
        Cause::Exited { .. } => "exited",
        Cause::Killed { .. } => "killed",
        Cause::Disconnected => "disconnected",
        Cause::NotStarted { .. } => "not_started",
        Cause::NotReady { .. } => "not_ready",
        Cause::NotJoined { .. } => "not_joined",
        Cause::Hung { .. } => "hung",
        Cause::Fault { .. } => "fault",
        Cause::Broken { .. } => "broken",
        Cause::Corrupt { .. } => "corrupt",
        Cause::OutOfMemory => "out_of_memory",
    }
}

#[cfg(test)]
mod tests {
    use zbmd_executor::supervise::{Cause, Epoch, Generation};
    use zbmd_ir::DeviceId;

    use super::*;

    #[test]
    fn ready_is_what_the_supervisor_says() {
        let readiness = Readiness::new();
        let follow = |what| readiness.follow(&Event { at_ns: 0, what });
        let begin = |epoch| What::Begin {
            epoch: Epoch(epoch),
            lost: Vec::new(),
        };
        assert!(!readiness.is_running());
        follow(begin(0));
        assert!(readiness.is_running());

        // With a plan for the loss, the model is ready all along.
        let lost = || What::Lost {
            device: DeviceId(0),
            generation: Generation(1),
            epoch: Some(Epoch(0)),
            cause: Cause::Killed { signal: 9 },
        };
        follow(lost());
        assert!(readiness.is_running());
        // Without one it is not, until there is one again.
        follow(What::Waiting { lost: Vec::new() });
        assert_eq!(readiness.phase(), Phase::Waiting);
        follow(begin(1));
        assert!(readiness.is_running());
        follow(lost());
        assert_eq!(readiness.counts().losses["killed"], 2);
        assert_eq!(readiness.counts().epochs, 2);
    }

    #[test]
    fn runs_that_are_begun_anew_are_counted() {
        let readiness = Readiness::new();
        readiness.enter(Phase::Restarting);
        readiness.enter(Phase::Failed { why: "no".into() });
        assert_eq!(readiness.counts().restarts, 1);
        assert!(!readiness.is_running());
    }
}
