//! A whole run: sessions, their epochs, the pool of workers, and supervision.

mod demand;
pub(crate) mod epochs;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
mod listen;
mod outlet;
#[cfg(target_os = "linux")]
pub(crate) mod process;
mod run_thread;
mod self_watch;
pub(crate) mod session;
mod supervised;
mod system;
pub(crate) mod watchdog;
#[cfg(target_os = "linux")]
mod wire;
pub(crate) mod worker_pool;
