//! The epoch at work, as the supervising thread holds it.

use std::sync::Arc;

use crate::fault::WorkerOutcome;
use crate::transport::epoch::EpochMemory;
use crate::transport::epoch_spec::EpochSpec;
use crate::worker::job::WorkerEnd;
use crate::worker::prepared::PreparedWorker;

/// The epoch at work.
pub(crate) struct ActiveEpoch {
    pub spec: Arc<EpochSpec>,
    pub memory: Arc<EpochMemory>,
    /// Iterations of one block.
    pub block: u64,
    /// What the worker of each calendar left, once it has ended.
    pub ends: Vec<Option<WorkerEnd>>,
    /// Parts that run in this process, until they begin.
    pub parts: Vec<Option<PreparedWorker>>,
    /// For each sink, the tokens that had been given out when the epoch began.
    pub released: Vec<u64>,
}

impl ActiveEpoch {
    /// Keeps what a worker left at its end.
    pub(crate) fn keep_end(&mut self, calendar: usize, end: WorkerEnd) {
        self.ends[calendar] = Some(end);
    }

    pub(crate) fn has_ended(&self, calendar: usize) -> bool {
        self.ends[calendar].is_some()
    }

    pub(crate) fn have_all_ended(&self) -> bool {
        self.ends.iter().all(Option::is_some)
    }

    /// The number of blocks that all workers have finished.
    pub(crate) fn finished_blocks(&self) -> Option<u64> {
        let blocks = self.ends.iter().map(|end| match end.as_ref()?.outcome {
            WorkerOutcome::Finished { blocks } => Some(blocks),
            WorkerOutcome::Stopped | WorkerOutcome::Failed(_) => None,
        });
        blocks.min().flatten()
    }
}
