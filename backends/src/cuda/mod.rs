//! NVIDIA GPUs by way of CUDA 12 and later: devices, kernels printed as PTX, calendars as graphs.
//!
//! The driver (libcuda) is looked for at run time, and nothing else of CUDA's is needed, neither to build nor to run;
//! without it everything here says [`Unavailable`], in one sentence. [`list`] finds devices, [`Device::open`] opens
//! one, [`Replay`] runs the calendar of one device of a plan.
//!
//! Invariant: a device is driven by one thread at a time. What goes wrong after opening is a [`Fault`], with a
//! [`Verdict`] for whoever watches the worker; the worker reports it and ends. After a fatal fault nothing more is asked
//! of the driver: see [`Device`].
//!
//! What was never run on a real device is said in the README. Tests run everything but the driver's functions on a
//! device in software, which reads the printed code.

mod cubins;
mod device;
mod driver;
mod edges;
mod error;
mod instance;
mod lt;
#[cfg(any(test, feature = "testing"))]
mod misdeed;
mod ptx;
mod queue;
mod registered;
#[cfg(any(test, feature = "testing"))]
mod soft;
mod sys;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "testing"))]
pub use self::cubins::in_software;
pub use self::cubins::{capability, format, launches_early, texts};
pub use self::device::{Device, Options};
pub use self::error::{Cause, Code, Fault, OpenError, Site, Unavailable, Verdict};
pub use self::instance::{Instance, Listed, list};
#[cfg(any(test, feature = "testing"))]
pub use self::misdeed::Misdeed;
#[cfg(any(test, feature = "testing"))]
pub use self::soft::{Counts, Injection, Lacking, Machine};
pub use crate::replay::{Exchange, HostRegion, Peers, Stopped, Summary, Transport};

/// A CUDA device's calendar, ready to run.
pub type Replay = crate::replay::Replay<queue::Queue>;
/// The kernels of one actor, on memory of their own.
pub type GpuCall = crate::replay::Call<queue::Queue>;
/// The constants that a device has.
pub type Kept = crate::replay::Kept<queue::Queue>;
/// Why a calendar cannot be replayed on a CUDA device.
pub type ReplayError = crate::replay::ReplayError<Fault>;
/// Why a period was not completed.
pub type Halt = crate::replay::Halt<Fault>;
