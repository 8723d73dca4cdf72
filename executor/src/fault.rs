//! Why a worker cannot go on. A fault is made where it happens, in a kernel, a driver or a transfer, and carried
//! unchanged, also from another process, to the supervisor or the run's error. Must not know what is done about it.

use serde::{Deserialize, Serialize};
use zbmd_devices::gpu::{Fault, FaultKind};
use zbmd_ir::{ChannelId, DeviceId, RingId};
use zbmd_op::kernel::KernelFault;

use crate::error::{EngineError, RunError};
use crate::transport::arena::OutOfMemory;
use crate::transport::ring::Stopped;

/// What a GPU or its driver reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceFault {
    pub device: String,
    pub fault: Fault,
}

impl std::fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device {}: {}", self.device, self.fault)
    }
}

/// Why a worker cannot go on with its part of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WorkerFault {
    /// A kernel reported this.
    Kernel(String),
    /// A kernel, or the worker itself, panicked with this message.
    Panic(String),
    /// The tokens of a transfer are not those that were sent: both checksums.
    Corrupt { ring: RingId, sent: u64, found: u64 },
    /// A GPU or its driver failed, or the GPU cannot do what the plan asks of it.
    Device(DeviceFault),
    /// The system no longer gives this worker its real-time priority, or its process memory that stays.
    Realtime(String),
    /// There is no memory to begin with.
    OutOfMemory(OutOfMemory),
    /// A wire to another host carries nothing any more.
    Wire(String),
    /// Weights cannot be read from the device's tier.
    Weights(String),
}

impl From<OutOfMemory> for WorkerFault {
    fn from(error: OutOfMemory) -> Self {
        Self::OutOfMemory(error)
    }
}

impl From<DeviceFault> for WorkerFault {
    fn from(fault: DeviceFault) -> Self {
        Self::Device(fault)
    }
}

/// A worker that is being prepared runs no slot: only memory, devices and files can be missing.
impl From<WorkerFault> for EngineError {
    fn from(fault: WorkerFault) -> Self {
        match fault {
            WorkerFault::OutOfMemory(error) => Self::Memory(error),
            WorkerFault::Device(fault) => Self::Device {
                device: fault.device,
                why: fault.fault.text,
            },
            WorkerFault::Weights(why) => Self::Weights { why },
            WorkerFault::Kernel(_)
            | WorkerFault::Panic(_)
            | WorkerFault::Realtime(_)
            | WorkerFault::Wire(_)
            | WorkerFault::Corrupt { .. } => {
                unreachable!("no slot runs before an epoch begins")
            }
        }
    }
}

/// Why a period was not finished.
#[derive(Debug)]
pub(crate) enum StepStop {
    /// The epoch was stopped: another worker failed, or the run was given up.
    Stopped,
    /// This worker failed.
    Fault(WorkerFault),
}

impl From<Stopped> for StepStop {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<KernelFault> for StepStop {
    #[cold]
    fn from(fault: KernelFault) -> Self {
        Self::Fault(WorkerFault::Kernel(fault.to_string()))
    }
}

impl From<DeviceFault> for StepStop {
    fn from(fault: DeviceFault) -> Self {
        Self::Fault(fault.into())
    }
}

/// How a worker's part of an epoch ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum WorkerOutcome {
    /// All blocks that were admitted are done; the tokens on channels are in the end area.
    Finished { blocks: u64 },
    /// The epoch was stopped.
    Stopped,
    /// The worker could not begin, or could not go on.
    Failed(FaultReport),
}

/// A fault with the names of the slot where it happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FaultReport {
    pub fault: WorkerFault,
    /// The actor, or the slot if it is not a firing.
    pub actor: String,
    pub device: String,
    /// The block at work, at most.
    pub block: u64,
    /// The transfer that arrived wrong, for [`WorkerFault::Corrupt`].
    pub transfer: Option<CorruptTransfer>,
}

/// A transfer that arrived wrong.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CorruptTransfer {
    pub channel: ChannelId,
    pub sender: DeviceId,
    pub sender_name: String,
}

impl FaultReport {
    /// A worker that could not begin.
    pub(crate) fn before_start(fault: WorkerFault) -> Self {
        Self {
            fault,
            actor: String::new(),
            device: String::new(),
            block: 0,
            transfer: None,
        }
    }

    /// The run's error, where nothing can be done about the fault.
    pub(crate) fn run_error(&self) -> RunError {
        let actor = self.actor.clone();
        let device = self.device.clone();
        let block = self.block;

        match &self.fault {
            WorkerFault::Kernel(text) => RunError::Fault {
                actor,
                device,
                block,
                fault: text.clone(),
            },
            WorkerFault::Panic(message) => RunError::Panic {
                actor,
                device,
                block,
                message: message.clone(),
            },
            WorkerFault::Corrupt { sent, found, .. } => RunError::Corrupt {
                device,
                block,
                message: self.checksums(*sent, *found),
            },
            WorkerFault::Device(fault) => device_error(fault, block),
            WorkerFault::Realtime(text) => RunError::Realtime {
                thread: format!("the worker of {device}"),
                why: text.clone(),
            },
            WorkerFault::OutOfMemory(error) => EngineError::Memory(*error).into(),
            WorkerFault::Wire(text) | WorkerFault::Weights(text) => RunError::Device {
                device,
                block,
                fault: text.clone(),
            },
        }
    }

    fn checksums(&self, sent: u64, found: u64) -> String {
        let transfer = match &self.transfer {
            Some(transfer) => format!("{} from {}", transfer.channel, transfer.sender_name),
            None => "a transfer".to_owned(),
        };
        format!("{transfer} has checksum {found:016x}, it was sent with {sent:016x}")
    }
}

/// The run's error for a device that failed, or that is not fit for the plan.
pub(crate) fn device_error(fault: &DeviceFault, block: u64) -> RunError {
    let device = fault.device.clone();
    let text = fault.fault.text.clone();
    match fault.fault.kind {
        FaultKind::Unfit => EngineError::Device { device, why: text }.into(),
        _ => RunError::Device {
            device,
            block,
            fault: text,
        },
    }
}
