//! One worker's part of an epoch, the same in a thread of the embedding program and in a process of its own. Must not
//! know who else is at work.

pub(crate) mod border;
mod cpu;
mod fetch;
mod fetched_weights;
pub(crate) mod gpu;
pub(crate) mod host;
mod instructions;
pub(crate) mod job;
mod live_actors;
mod lower;
mod memory;
mod period_loop;
mod planned_step;
pub(crate) mod prepared;
pub(crate) mod probe;
mod replay;
mod report;
pub(crate) mod step_table;
mod streams;
pub(crate) mod thread;
#[cfg(hosts)]
pub(crate) mod wired;
