//! The C interface: bundles, callers, sessions, sources and sinks behind handles. `include/zbmd.h` is made from this crate, and
//! what its functions say in their documentation is what stands there.
//!
//! A handle looks like a pointer and is none: it is a number that is looked up (`handles.rs`), so that a null, closed
//! or confused handle is an error and never a wild access. What the caller does own, buffers and texts, cannot be
//! checked; each function says what it must be. No panic crosses the border: it becomes `ZBMD_BUG`.
//!
//! Must not know how models are scheduled or calendars replayed: it only translates.

mod border;
mod bundle;
mod caller;
mod handles;
mod live;
mod modes;
mod options;
mod parameters;
mod probes;
mod session;
mod status;
mod streams;

#[cfg(test)]
mod tests;

pub use bundle::*;
pub use caller::*;
pub use live::*;
pub use modes::*;
pub use options::*;
pub use parameters::*;
pub use probes::*;
pub use session::*;
pub use status::*;
pub use streams::*;
