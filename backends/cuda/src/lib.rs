//! NVIDIA GPUs by way of CUDA 12 and later: devices, kernels printed as PTX, calendars as graphs.
//!
//! The driver (libcuda) is loaded at run time, and nothing else of CUDA is needed, neither to build nor to run; without
//! it everything here returns [`Unavailable`], with one sentence. [`list`] finds devices, [`CudaDevice::open`] opens one,
//! [`Replay`] runs the calendar of one device of a plan.
//!
//! Invariant: a device is driven by one thread at a time. An error after opening is a [`Fault`], with a [`Verdict`] for
//! the worker's supervisor; the worker reports it and ends. After a fatal fault the driver is not called again: see
//! [`CudaDevice`].
//!
//! Tests run everything except the driver's own functions on a device in software, which interprets the printed code.

mod api;
mod context;
mod device;
mod driver;
mod edges;
mod error;
mod fence;
mod gpu_device;
mod graph;
mod instance;
mod listed;
mod lt;
mod memory;
#[cfg(any(test, feature = "testing"))]
mod misdeed;
mod queue;
mod registered;
#[cfg(any(test, feature = "testing"))]
mod soft;
mod sys;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use self::device::{CudaDevice, CudaOptions};
pub use self::error::{Cause, Code, Fault, OpenError, Site, Verdict};
pub use self::instance::{Instance, list};
pub use self::listed::Listed;
#[cfg(any(test, feature = "testing"))]
pub use self::misdeed::Misdeed;
#[cfg(any(test, feature = "testing"))]
pub use self::soft::{Counts, Injection, Lacking, Machine};
pub use zbmd_hal::{
    Exchange, HostRegion, Peers, ReplayRequest, Stopped, Summary, Transport, Unavailable,
};

/// A CUDA device's calendar, ready to run.
pub type Replay = zbmd_hal::Replay<queue::Queue>;
/// The kernels of one actor, on memory of their own.
pub type GpuCall = zbmd_hal::Call<queue::Queue>;
/// The constants that a device has.
pub type Kept = zbmd_hal::Kept<queue::Queue>;
/// Why a calendar cannot be replayed on a CUDA device.
pub type ReplayError = zbmd_hal::ReplayError<Fault>;
/// Why a period was not completed.
pub type Halt = zbmd_hal::Halt<Fault>;
