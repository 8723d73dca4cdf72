//! What a worker is to do in an epoch, and what it leaves: the same for threads and processes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::gpu::device::OpenGpus;
use crate::fault::{FaultReport, WorkerFault, WorkerOutcome};
use crate::observe::report::{LatencyReport, WorkerReport};
use crate::options::RunOptions;
use crate::transport::epoch::EpochMemory;
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::session_memory::SessionMemory;

/// How workers run, whatever the epoch.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HostOptions {
    pub sample_every: u64,
    pub pin: bool,
    pub lock_memory: bool,
    pub realtime: bool,
    pub hold_share: bool,
}

impl HostOptions {
    pub(crate) fn of(options: &RunOptions) -> Self {
        Self {
            sample_every: options.sample_every,
            // The system promises time on any core, and takes it back from threads that are tied to one.
            pin: options.pin && !options.hold_share,
            lock_memory: options.lock_memory,
            realtime: options.realtime,
            hold_share: options.hold_share && !options.realtime,
        }
    }
}

#[cfg(hosts)]
impl HostOptions {
    /// Gives the calling thread the priority of those that decide, if the run is a real-time one. The system has promised it when
    /// the run began.
    pub(crate) fn enter_as_supervisor(self) {
        use crate::realtime::{ThreadRole, enter};
        if self.realtime {
            let _ = enter(ThreadRole::Supervisor);
        }
    }
}

/// What a worker is to do.
pub(crate) struct WorkerJob {
    pub spec: Arc<EpochSpec>,
    /// Which of the plan's calendars.
    pub calendar: usize,
    pub session_memory: Arc<SessionMemory>,
    pub epoch: Arc<EpochMemory>,
    pub options: HostOptions,
    /// The GPUs that this process has open.
    pub gpus: Arc<OpenGpus>,
    /// Where the other workers are, if they are on several hosts.
    #[cfg(hosts)]
    pub wiring: Option<Arc<super::wired::Wiring>>,
}

/// What a worker leaves at the end of its part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerEnd {
    pub outcome: WorkerOutcome,
    pub report: WorkerReport,
    pub latencies: Vec<LatencyReport>,
    /// For each sink of the worker: which, and tokens that nobody wanted.
    pub discarded: Vec<(u32, u64)>,
    pub arena_bytes: u64,
    pub locked_bytes: u64,
    pub first_ns: u64,
    pub last_ns: u64,
}

impl WorkerEnd {
    /// Of a worker that could not begin.
    pub(crate) fn before_start(fault: WorkerFault) -> Self {
        Self {
            outcome: WorkerOutcome::Failed(FaultReport::before_start(fault)),
            report: WorkerReport::default(),
            latencies: Vec::new(),
            discarded: Vec::new(),
            arena_bytes: 0,
            locked_bytes: 0,
            first_ns: 0,
            last_ns: 0,
        }
    }
}
