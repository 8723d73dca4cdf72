//! GPUs by way of Vulkan 1.2: devices, kernels as pipelines, calendars as command buffers.
//!
//! The loader and the drivers are loaded at run time; without them everything here returns [`Unavailable`], with one
//! sentence. [`list`] finds devices, [`VulkanDevice::open`] opens one, [`Replay`] runs the calendar of one device of a plan.
//!
//! Invariant: a device is driven by one thread. An error after opening is a [`Fault`]: the worker reports it and ends,
//! and its supervisor decides. After a fatal fault the driver is not called again: see [`VulkanDevice`].

mod commands;
mod compile;
mod device;
mod error;
mod gpu_device;
mod hazards;
mod instance;
mod memory;
mod pipelines;
mod queue;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "testing"))]
pub use device::{Injected, Injection};
pub use device::{VulkanDevice, VulkanOptions};
pub use error::{Fault, OpenError, Site};
pub use instance::{DeviceType, Instance, Listed, list};
pub use zbmd_hal::{
    Exchange, HostRegion, Peers, ReplayRequest, Stopped, Summary, Transport, Unavailable,
};

/// A Vulkan device's calendar, ready to run.
pub type Replay = zbmd_hal::Replay<queue::Queue>;
/// The kernels of one actor, on memory of their own.
pub type GpuCall = zbmd_hal::Call<queue::Queue>;
/// The constants that a device has.
pub type Kept = zbmd_hal::Kept<queue::Queue>;
/// Why a calendar cannot be replayed on a Vulkan device.
pub type ReplayError = zbmd_hal::ReplayError<Fault>;
/// Why a period was not completed.
pub type Halt = zbmd_hal::Halt<Fault>;
