//! What workers report to the supervising thread. Must not know what it does about it.

use serde::{Deserialize, Serialize};
use zbmd_devices::gpu::FaultKind;
use zbmd_ir::DeviceId;

use crate::fault::DeviceFault;
use crate::supervise::Cause;
use crate::worker::job::WorkerEnd;

/// Why a worker is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WorkerExit {
    /// Its process exited with this code.
    Exited(i32),
    /// This signal killed its process.
    Killed(i32),
    /// It cannot be a worker, for this reason.
    Unfit(String),
    /// Its GPU is not there or cannot be opened: it has no use without it.
    NoDevice(DeviceFault),
    /// Its GPU failed in such a way that its process must not go on.
    Failed(DeviceFault),
}

impl WorkerExit {
    /// Why the worker is lost, as the supervisor has it.
    pub(crate) fn into_cause(self) -> Cause {
        match self {
            Self::Exited(code) => Cause::Exited { code },
            Self::Killed(signal) => Cause::Killed { signal },
            Self::Unfit(why) => Cause::NotStarted { why },
            Self::NoDevice(fault) => Cause::NotStarted {
                why: fault.to_string(),
            },
            Self::Failed(fault) if fault.fault.kind == FaultKind::Broken => Cause::Broken {
                text: fault.to_string(),
            },
            Self::Failed(fault) => Cause::Fault {
                text: fault.to_string(),
            },
        }
    }
}

impl std::fmt::Display for WorkerExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
            Self::Unfit(why) => f.write_str(why),
            Self::NoDevice(fault) | Self::Failed(fault) => fault.fmt(f),
        }
    }
}

/// What a worker reports, or is seen to do.
pub(crate) enum WorkerEvent {
    /// It can be given a part of an epoch.
    Ready {
        device: DeviceId,
        generation: u32,
        /// Where its wires arrive on its host, if not where those of all its host's threads do.
        port: Option<u16>,
    },
    /// It has begun its part of an epoch: by instruction, whether it waits there for others. Said on agents' hosts.
    #[cfg(hosts)]
    Began {
        device: DeviceId,
        generation: u32,
        epoch: u64,
        waits: Vec<bool>,
    },
    /// Its part of an epoch is over; the worker itself is well.
    Ended {
        device: DeviceId,
        generation: u32,
        epoch: u64,
        calendar: usize,
        end: Box<WorkerEnd>,
    },
    /// It is gone, or never started.
    Gone {
        device: DeviceId,
        generation: u32,
        exit: WorkerExit,
    },
    /// A process that stood by for a device is gone.
    StandbyGone,
    /// A host is gone with all its workers.
    #[cfg(hosts)]
    HostGone { host: usize, why: String },
    /// A host that was gone is there again, and has loaded the bundle.
    #[cfg(hosts)]
    HostBack {
        host: usize,
        link: Box<super::hosts::link::HostLink>,
    },
    /// Something may have been decided in the council.
    #[cfg(hosts)]
    Council,
    /// A thread of ours panicked outside of all kernels: a bug.
    Panicked(Box<dyn std::any::Any + Send>),
}
