//! What threads and processes of a run share: memory, rings, queues, and the protocols by which they hand tokens over.
//! Must not know kernels, workers or supervision.

pub mod arena;
pub(crate) mod checksum;
pub(crate) mod clock;
pub(crate) mod conduit;
pub(crate) mod epoch;
pub mod ledger;
pub(crate) mod primitive;
pub mod ring;
pub(crate) mod stream;
