//! GPUs by way of Vulkan 1.2: devices, kernels as pipelines, calendars as command buffers.
//!
//! The loader and the drivers are loaded at run time; without them everything here returns [`Unavailable`], with one
//! sentence. [`list`] finds devices, [`Device::open`] opens one, [`Replay`] runs the calendar of one device of a plan.
//!
//! Invariant: a device is driven by one thread. An error after opening is a [`Fault`]: the worker reports it and ends,
//! and its supervisor decides. After a fatal fault the driver is not called again: see [`Device`].

mod codes;
mod commands;
mod device;
mod error;
mod hazards;
mod instance;
mod memory;
mod pipelines;
mod queue;
mod spirv;
#[cfg(test)]
pub(crate) mod tests;

pub use crate::replay::{
    Exchange, HostRegion, Peers, ReplayRequest, Stopped, Summary, Transport, Unavailable,
};
pub use codes::{FORMAT, print_all};
pub use device::{Device, Options};
#[cfg(any(test, feature = "testing"))]
pub use device::{Injected, Injection};
pub use error::{Fault, OpenError, Site};
pub use instance::{Instance, Kind, Listed, list};

/// A Vulkan device's calendar, ready to run.
pub type Replay = crate::replay::Replay<queue::Queue>;
/// The kernels of one actor, on memory of their own.
pub type GpuCall = crate::replay::Call<queue::Queue>;
/// The constants that a device has.
pub type Kept = crate::replay::Kept<queue::Queue>;
/// Why a calendar cannot be replayed on a Vulkan device.
pub type ReplayError = crate::replay::ReplayError<Fault>;
/// Why a period was not completed.
pub type Halt = crate::replay::Halt<Fault>;
