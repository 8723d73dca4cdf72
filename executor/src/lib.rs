//! Replays verified calendars: workers, rings, streams, reports.

pub mod arena;
mod border;
pub mod checkpoint;
mod checksum;
pub mod cli;
mod conductor;
mod conductor_thread;
mod conduit;
mod crew;
mod demand;
mod driver;
pub mod embed;
mod epoch;
mod error;
mod gpu;
mod host;
pub mod inject;
pub mod io;
mod kernels;
#[cfg(target_os = "linux")]
mod launch;
pub mod ledger;
#[cfg(target_os = "linux")]
mod listen;
pub mod live;
mod measure;
mod outlet;
mod prepare;
mod primitive;
#[cfg(target_os = "linux")]
mod process;
mod replay;
pub mod report;
pub mod ring;
mod self_watch;
mod session;
mod stream;
mod summary;
pub use zbmd_supervise as supervise;
mod supervised;
mod system;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
mod unsupported;
mod watchdog;
#[cfg(target_os = "linux")]
mod wire;
mod worker;

pub use crew::Isolation;
pub use error::{EngineError, RunError};
#[cfg(target_os = "linux")]
pub use process::serve_if_worker;
pub use report::Report;
pub use session::{Engine, Outcome, RunOptions, Session, Stopper, SwapError};
pub use stream::{SinkHandle, SourceHandle, StreamError};
pub use supervised::{Listener, StateListener, Supervised};
pub use unsupported::Unsupported;
