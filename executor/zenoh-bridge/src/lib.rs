//! A bridge between runs and [Zenoh](https://zenoh.io), in a process of its own: the tokens of a sink as messages on a key, and
//! the messages of a key as the tokens of a source. Knows bytes, files and pipes; must not know bundles, graphs or `zbmd-run`.
//!
//! Each message of a bridge carries a [`Position`]: the name of the run, and how many bytes of its stream come before. The
//! bridge that reads asks the one that writes for what it lacks, by a query that carries a position too. So what comes twice
//! is dropped and what is missing is fetched, whoever was started again meanwhile; `zenoh.md` in the book says how far that goes.
//!
//! ```text
//! run -> file or pipe -> sink: publish, keep -> Zenoh -> source: drop, fetch, check -> file or pipe -> run
//! ```

pub mod args;
mod error;
pub mod exit;
pub mod interrupt;
mod position;
mod session;
mod sink;
mod source;
mod store;

pub use error::BridgeError;
pub use position::{Kind, MAX_RUN_BYTES, Position, PositionError, RunName};
pub use sink::write_to_zenoh;
pub use source::read_from_zenoh;
