//! A whole run: sessions, their epochs, the pool of workers, and supervision.

mod active_epoch;
mod bundle_plans;
pub(crate) mod caller;
pub(crate) mod control;
mod demand;
mod epochs;
mod event;
#[cfg(hosts)]
pub(crate) mod hosts;
mod inbox;
mod injection;
pub(crate) mod lanes;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
mod life_watch;
#[cfg(target_os = "linux")]
mod listen;
pub(crate) mod modes;
#[cfg(target_os = "linux")]
mod nursery;
mod outlet;
pub(crate) mod parameters;
pub(crate) mod probe;
#[cfg(target_os = "linux")]
pub(crate) mod process;
#[cfg(target_os = "linux")]
mod process_pool;
mod progress;
pub(crate) mod pump_role;
mod queues;
mod run_report;
mod run_thread;
mod self_watch;
pub(crate) mod session;
mod supervised;
mod system;
mod whole_run;
#[cfg(target_os = "linux")]
mod wire;
mod worker_pool;
#[cfg(target_os = "linux")]
pub(crate) mod worker_process;
