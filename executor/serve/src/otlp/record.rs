//! What is known of a request or an epoch once it is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::TraceParent;

/// Something that becomes a span, or several.
#[derive(Debug)]
pub(crate) enum Record {
    Request {
        model: Arc<str>,
        request: RequestRecord,
    },
    Epoch {
        model: Arc<str>,
        epoch: EpochRecord,
    },
}

/// A request that was answered or refused.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    pub(crate) parent: Option<TraceParent>,
    /// When its body was there.
    pub(crate) begin: Instant,
    /// When its answer was made.
    pub(crate) end: Instant,
    /// What the client called it.
    pub(crate) id: Option<String>,
    pub(crate) outcome: Result<ComputedTimes, String>,
}

/// The parts of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComputedTimes {
    /// Until it was read and admitted.
    pub(crate) input: Duration,
    /// From admission until the run took it.
    pub(crate) queued: Duration,
    /// From then until its outputs were there.
    pub(crate) computed: Duration,
}

/// An epoch that has ended: the reign of one plan over the devices that were left.
#[derive(Debug)]
pub(crate) struct EpochRecord {
    /// Counted from 0 in each run.
    pub(crate) number: u64,
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
    /// Devices that it did without.
    pub(crate) without: Vec<String>,
    pub(crate) losses: Vec<LossRecord>,
    /// Blocks that were committed, where the supervisor said so.
    pub(crate) blocks: Option<u64>,
    /// It was ended at once, as something was lost.
    pub(crate) is_fenced: bool,
}

/// The loss of a worker.
#[derive(Clone, Debug)]
pub(crate) struct LossRecord {
    pub(crate) at: Instant,
    pub(crate) device: String,
    pub(crate) cause: &'static str,
}
