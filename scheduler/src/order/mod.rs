//! Orders for a single device: which actor fires how often before the next, with how many tokens on each channel.
//!
//! Three ends of the trade-off between buffers and the length of the calendar:
//! - [`least_buffers`]: the fewest tokens of all orders, whatever its length;
//! - [`looped`]: each actor appears once, in nested loops, with the fewest tokens that such a nest allows;
//! - [`flat`]: each actor fires all its firings in one go.
//!
//! For the CD-to-DAT chain (1:1, 2:3, 2:7, 8:7, 5:1) these take 32, 264 and 1021 tokens.

mod looped;
mod minimal;

pub use looped::{LoopStep, Loops, flat, looped};
pub use minimal::{LeastBuffers, least_buffers};

use zbmd_ir::ActorId;

use crate::throughput::ThroughputError;

/// Why there is no such order.
#[expect(missing_docs, reason = "fields that say what their names say")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The graph has no schedule, or none that can be analysed.
    #[error(transparent)]
    Throughput(#[from] ThroughputError),
    /// Actors on a cycle whose initial tokens do not last for one iteration have to fire in turns.
    #[error(
        "{} actors around {} have to fire in turns: no order lets each appear just once",
        actors.len(),
        actors.first().copied().unwrap_or(ActorId(0))
    )]
    InTurns {
        /// The actors, ascending.
        actors: Vec<ActorId>,
    },
    /// The order has too many calls.
    #[error("the order of one iteration has more than {limit} calls")]
    TooLong { limit: u64 },
    /// Too many actors for the choice of loops.
    #[error("loops for {actors} actors are too many to compare, {limit} are allowed")]
    TooManyActors {
        /// Actors of the graph.
        actors: usize,
        limit: usize,
    },
}
