//! Why there is no plan.

use zbmd_scheduler::AnalysisError;
use zbmd_scheduler::throughput::ThroughputError;
use zbmd_ticks::{MachineError, NodeId};

/// Why a graph cannot be scheduled on a machine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TickScheduleError {
    /// The machine makes no sense.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The graph has no schedule at all.
    #[error(transparent)]
    Analysis(#[from] AnalysisError),
    /// The bound of the period cannot be told.
    #[error(transparent)]
    Throughput(#[from] ThroughputError),
    /// More firings, frames or tokens in an iteration than a plan may have.
    #[error("an iteration has {found} {what}, but a plan to the tick has at most {max}")]
    TooLarge {
        /// Firings, frames, tokens or ticks.
        what: &'static str,
        /// How many.
        found: u64,
        /// How many are allowed.
        max: u64,
    },
    /// A loss that leaves nothing.
    #[error("no node is left: add a second one")]
    NoNode,
    /// A loss that leaves no part of the network from which a run could go on.
    #[error("no part of the network has what every iteration leaves to the next")]
    DividedBorders,
    /// Buffers do not fit.
    #[error(
        "the buffers of {node} take {needed} bytes in the best placement, but it has {memory}: raise `memory_bytes` or use more nodes"
    )]
    Memory {
        /// The node.
        node: NodeId,
        /// Bytes of its buffers.
        needed: u64,
        /// Bytes that it has.
        memory: u64,
    },
}
