//! What a session, its handles and its supervising thread share, and the ways to end a run from outside.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zbmd_ir::DeviceId;

#[cfg(hosts)]
use super::hosts::bundle_offer::BundleOffer;
#[cfg(hosts)]
use super::hosts::change_journal::ChangeJournal;
use super::modes::ModeRequests;
use super::parameters::ParameterLedger;
use super::probe::ProbeDesk;
use super::progress;
use crate::observe::live::{CouncilProgress, HostProgress, Progress};
use crate::options::InputListener;
use crate::program::{LoadedModes, LoadedProgram};
use crate::transport::clock::Clock;
use crate::transport::epoch::EpochMemory;
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::epoch_state::WorkerStatus;
use crate::transport::primitive::{AtomicU32, Ordering};
use crate::transport::release_gate::ReleaseGate;
use crate::transport::ring::Stop;
use crate::transport::session_memory::SessionMemory;

/// How long workers are waited for that have yet to begin, and how often they are looked at.
const BEGIN_LIMIT_NS: u64 = 2_000_000_000;
const BEGIN_PAUSE: Duration = Duration::from_millis(1);

/// What a session, its handles and its supervising thread share.
pub(crate) struct RunControl {
    /// The run is given up.
    pub stop: Arc<Stop>,
    /// The run ends at the next border.
    finishing: AtomicU32,
    pub session_memory: Arc<SessionMemory>,
    /// A program to go over to at the next border.
    requested_swap: Mutex<Option<RequestedSwap>>,
    /// Locked before `mode_requests` and `current` where both are.
    ledger: Mutex<ParameterLedger>,
    /// Locked before `current` where both are.
    mode_requests: Mutex<ModeRequests>,
    /// The run can change its mode.
    pub(super) has_modes: bool,
    /// Is told of changes that were decided.
    pub(super) inputs: Option<Arc<dyn InputListener>>,
    /// Nothing is computed any more.
    over: AtomicU32,
    /// Not on any fast path: taken once an epoch, and by whoever ends the run or looks at its progress.
    current: Mutex<Option<CurrentEpoch>>,
    /// What the sinks may give out, where a council decides about that.
    pub(super) release_gate: Option<Arc<ReleaseGate>>,
    /// The council that the run is conducted in the name of, as it was seen last.
    council: Mutex<Option<CouncilProgress>>,
    /// Where changes of live parameters are entered that a council decides about.
    #[cfg(hosts)]
    pub(super) journal: std::sync::OnceLock<Arc<ChangeJournal>>,
    /// Who looks into the run.
    pub(super) probe_desk: ProbeDesk,
}

/// The epoch at work.
pub(crate) struct CurrentEpoch {
    pub loaded: Arc<LoadedProgram>,
    pub spec: Arc<EpochSpec>,
    pub memory: Arc<EpochMemory>,
    pub session_memory: Arc<SessionMemory>,
    /// Devices that are lost: those that it does without, and those that were lost since it began.
    pub lost: BTreeSet<DeviceId>,
    /// The hosts of a run over several.
    pub hosts: Vec<HostProgress>,
    /// Epochs that were fenced before it.
    pub recoveries: u64,
    /// Iterations done before it.
    pub iterations_before: u64,
    /// The iteration of the run that it begins with.
    pub first_iteration: u64,
    /// No change of mode may take effect before this iteration of the run: whoever records it was told so.
    pub decided_iterations: u64,
}

impl CurrentEpoch {
    /// Iterations of the run that are done, by the progress of the first worker.
    pub(super) fn iterations(&self) -> u64 {
        let plan = &self.loaded.program.plans[self.spec.plan];
        let first = self.memory.statuses.first();
        let periods = first.map_or(0, |status| status.periods.load(Ordering::Relaxed));

        let blocks = (periods + 1).saturating_sub(plan.stages.into());
        self.iterations_before + blocks * plan.block
    }
}

impl CurrentEpoch {
    /// Lets the epoch end at its next border, but not before all that was given out past the border where it began was
    /// made again: where it ends, every sink stands at the border's token, so that another program can go on there. Nor
    /// before what a recording takes for decided.
    pub(crate) fn close_grants(&self) {
        let graph = &self.loaded.program.graph;
        let block = self.loaded.program.plans[self.spec.plan].block;
        let blocks_given_out = graph.sinks().zip(&self.spec.sinks).map(|((id, _), sink)| {
            let block_tokens = block * self.loaded.tokens_per_iteration(id);
            sink.given_out.div_ceil(block_tokens)
        });
        let undecided = self.decided_iterations.saturating_sub(self.first_iteration);
        let blocks_decided = undecided.div_ceil(block);
        let least = blocks_given_out.max().unwrap_or(0).max(blocks_decided);
        self.memory.common.grants.close_after(least);
    }
}

/// Another program that somebody wants the run to go over to.
pub(crate) struct RequestedSwap {
    pub modes: Arc<LoadedModes>,
    /// What agents of other hosts are to load, if there are any.
    #[cfg(hosts)]
    pub offer: Option<Arc<BundleOffer>>,
}

impl RequestedSwap {
    /// What has come of it is known to whoever has asked for it.
    pub(crate) fn settle(&self, outcome: Result<(), String>) {
        #[cfg(hosts)]
        if let Some(offer) = &self.offer {
            offer.settle(outcome);
            return;
        }
        let _ = outcome;
    }
}

impl RunControl {
    pub(crate) fn new(
        session_memory: Arc<SessionMemory>,
        has_modes: bool,
        inputs: Option<Arc<dyn InputListener>>,
    ) -> Self {
        Self {
            stop: Arc::new(Stop::new()),
            finishing: AtomicU32::new(0),
            session_memory,
            requested_swap: Mutex::new(None),
            ledger: Mutex::default(),
            mode_requests: Mutex::default(),
            has_modes,
            inputs,
            over: AtomicU32::new(0),
            current: Mutex::new(None),
            release_gate: None,
            council: Mutex::new(None),
            #[cfg(hosts)]
            journal: std::sync::OnceLock::new(),
            probe_desk: ProbeDesk::default(),
        }
    }

    pub(super) fn current(&self) -> MutexGuard<'_, Option<CurrentEpoch>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was set of live parameters. Held while the next epoch is made: what is set meanwhile belongs to that.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, ParameterLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mode that the run is in, and the one that somebody wants.
    pub(crate) fn mode_requests(&self) -> MutexGuard<'_, ModeRequests> {
        self.mode_requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The run has ended.
    pub(super) fn mark_over(&self) {
        self.over.store(1, Ordering::Release);
        self.end_journal();
        // Whoever asks for a change after this finds the run over.
        self.mode_requests().end();
    }

    /// Nobody decides about changes any more.
    fn end_journal(&self) {
        #[cfg(hosts)]
        if let Some(journal) = self.journal.get() {
            journal.end();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) != 0 || self.stop.is_set()
    }

    /// Devices were lost, and with them hosts perhaps: whoever looks at the run sees that before the epoch has ended.
    pub(crate) fn note_loss(
        &self,
        devices: impl Iterator<Item = DeviceId>,
        hosts: Vec<HostProgress>,
    ) {
        if let Some(current) = &mut *self.current() {
            current.lost.extend(devices);
            current.hosts = hosts;
        }
    }

    /// What is known of the council.
    pub(crate) fn council(&self) -> MutexGuard<'_, Option<CouncilProgress>> {
        self.council.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new epoch begins.
    pub(crate) fn enter_epoch(&self, next: CurrentEpoch) {
        let mut requests = self.mode_requests();
        let mut current = self.current();
        if self.is_finishing() || requests.pending.is_some() {
            next.close_grants();
        }
        *current = Some(next);
        requests.announce();
    }

    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing.load(Ordering::Acquire) != 0
    }

    /// The program that somebody wants to go over to, if any.
    pub(crate) fn requested_swap(&self) -> MutexGuard<'_, Option<RequestedSwap>> {
        self.requested_swap
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the run up: every wait ends.
    pub(crate) fn abort(&self) {
        self.stop.set();
        self.end_journal();
        if let Some(current) = &*self.current() {
            current.memory.stop();
        }
        if let Some(gate) = &self.release_gate {
            gate.close();
        }
        for source in &self.session_memory.sources {
            source.wake();
        }
    }

    /// Lets the epoch at work end at its next border; wakes the workers that wait for sources.
    pub(crate) fn quiesce(&self) {
        if let Some(current) = &*self.current() {
            current.close_grants();
        }
        self.session_memory.arrivals.notify();
    }

    /// Ends the run at the next border of a block.
    pub(crate) fn finish(&self) {
        self.finishing.store(1, Ordering::Release);
        if let Some(current) = &*self.current() {
            current.close_grants();
        }
        for source in &self.session_memory.sources {
            source.close();
        }
        self.session_memory.arrivals.notify();
    }
}

/// Gives the run up if its supervising thread panics: nobody else would ever end the waits of those who hold its sources
/// and sinks.
pub(super) struct AbortOnPanic(pub(super) Arc<RunControl>);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort();
            self.0.mark_over();
        }
    }
}

/// Ends a run from any thread.
#[derive(Clone)]
pub struct Stopper {
    pub(super) control: Arc<RunControl>,
}

impl std::fmt::Debug for Stopper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopper").finish_non_exhaustive()
    }
}

impl Stopper {
    /// Takes no more tokens, finishes the blocks at work and ends the run as if the input ended here.
    pub fn stop(&self) {
        self.control.finish();
    }

    /// Gives the run up at once: what is at work is not finished, and [`Session::join`](crate::Session::join) says that the run
    /// was abandoned.
    pub fn give_up(&self) {
        self.control.abort();
    }

    /// Whether the run is to end.
    pub fn is_stopping(&self) -> bool {
        self.control.is_finishing() || self.control.stop.is_set()
    }

    /// Waits until all workers of the run are at work, or it is to end; for two seconds at most.
    pub fn wait_for_workers(&self) {
        let begun_ns = Clock.now_ns();
        while !self.workers_have_begun() && !self.is_stopping() {
            if Clock.now_ns() - begun_ns > BEGIN_LIMIT_NS {
                return;
            }
            std::thread::sleep(BEGIN_PAUSE);
        }
    }

    fn workers_have_begun(&self) -> bool {
        let current = self.control.current();
        let has_begun = |status: &WorkerStatus| status.thread.load(Ordering::Acquire) != 0;
        let epoch = current.as_ref();
        epoch.is_some_and(|epoch| epoch.memory.statuses.iter().all(|status| has_begun(status)))
    }

    /// Iterations finished so far, for progress displays: it may lag by some blocks.
    pub fn iterations(&self) -> u64 {
        let current = self.control.current();
        current.as_ref().map_or(0, CurrentEpoch::iterations)
    }

    /// The run as it is now, for those who watch it. Reads counters that workers keep anyway: they are not disturbed.
    pub fn progress(&self) -> Progress {
        let current = self.control.current();
        let Some(current) = current.as_ref() else {
            return Progress::default();
        };
        Progress {
            council: self.control.council().clone(),
            ..progress::of_epoch(current)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_of_the_supervising_thread_gives_the_run_up() {
        let session_memory = SessionMemory::create(&Vec::new()).expect("little memory");
        let control = Arc::new(RunControl::new(Arc::new(session_memory), false, None));
        drop(AbortOnPanic(Arc::clone(&control)));
        assert!(!control.stop.is_set());

        let panicked: std::thread::Result<()> = catch_unwind(AssertUnwindSafe(|| {
            let _abort = AbortOnPanic(Arc::clone(&control));
            panic!("a bug")
        }));
        assert!(panicked.is_err() && control.stop.is_set());
    }
}
