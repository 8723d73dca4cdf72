//! Replays verified calendars: workers, rings, streams, reports.

pub mod arena;
mod border;
pub mod cli;
mod conductor;
mod conduit;
mod error;
pub mod io;
pub mod ledger;
mod measure;
mod prepare;
mod primitive;
mod replay;
pub mod report;
pub mod ring;
mod session;
mod stream;
mod summary;
pub mod supervise;
mod worker;

pub use error::{EngineError, RunError};
pub use prepare::Unsupported;
pub use report::Report;
pub use session::{Engine, Outcome, RunOptions, Session, Stopper};
pub use stream::{SinkHandle, SourceHandle, StreamError};
