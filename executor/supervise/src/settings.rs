//! How to supervise: the numbers of a supervisor, besides its tree.

use serde::{Deserialize, Serialize};

use crate::backoff::BackoffPolicy;
use crate::breaker::BreakerPolicy;
use crate::detect::DetectPolicy;
use crate::message::Epoch;

/// What to do first when a worker with a role is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLoss {
    /// Go on at once without it if there is a plan for that, and take it in again when it is back.
    #[default]
    Swap,
    /// Wait until it has been restarted; go on without it only if it stays out.
    Restart,
}

/// How to supervise, besides the tree. Times in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What to do first when a worker with a role is lost.
    pub on_loss: OnLoss,
    /// Waits before restarts.
    pub backoff: BackoffPolicy,
    /// When a device is kept out.
    pub breaker: BreakerPolicy,
    /// How hung and slow workers are found.
    pub detect: DetectPolicy,
    /// How long a worker may take to get ready.
    pub start_ns: u64,
    /// How long a host that is gone is waited for where nothing runs without it.
    pub host_ns: u64,
    /// How long a killed worker may take to be gone before it is left behind.
    pub kill_ns: u64,
    /// How long a worker may take to take up its role in an epoch, which it does after the slot that it is in: longer
    /// than any slot's bound. Counted anew whenever another one has taken up its own: many that begin at once share their host's
    /// cores. `None` if workers are not looked at.
    pub join_ns: Option<u64>,
    /// So many starts in a row may fail before a device counts as broken.
    pub starts: u32,
    /// So many faults are retried with the same worker before it counts as lost; and so many refused epochs.
    pub retries: u32,
    /// So many epochs in a row may end without a border committed.
    pub futile: u32,
    /// For jitter.
    pub seed: u64,
    /// One more than the last epoch of a run that is resumed.
    pub first_epoch: Epoch,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            on_loss: OnLoss::Swap,
            backoff: BackoffPolicy::default(),
            breaker: BreakerPolicy::default(),
            detect: DetectPolicy::default(),
            start_ns: 10_000_000_000,
            host_ns: 10_000_000_000,
            kill_ns: 2_000_000_000,
            join_ns: Some(1_000_000_000),
            starts: 5,
            retries: 3,
            futile: 20,
            seed: 0,
            first_epoch: Epoch(0),
        }
    }
}
