//! Commands to a run that is on, over a Unix socket beside its live page: `zbmd-run set`, `mode` and `probe`.
//!
//! A client sends a request as a line of JSON and gets one line back. The socket is in a folder that only its user can
//! enter, and a peer of another user is refused.

mod ask;
mod message;
mod mode;
mod probe;
mod server;
mod set;

pub(crate) use self::mode::{Mode, mode};
pub(crate) use self::probe::{ProbeArgs, probe};
pub(crate) use self::server::{Commanded, ControlServer};
pub(crate) use self::set::{Set, set};
