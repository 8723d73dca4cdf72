//! What can go wrong with the driver, sorted by what can be done about it.

use std::fmt;

use zbmd_hal::{FaultKind, Unavailable, sites};

/// Why there is no CUDA, as a clause.
pub(super) fn unavailable(reason: String) -> Unavailable {
    Unavailable {
        api: "CUDA",
        reason,
    }
}

/// A device that cannot be opened.
pub type OpenError = zbmd_hal::OpenError<Fault>;

impl From<Fault> for OpenError {
    fn from(fault: Fault) -> Self {
        OpenError::Fault(fault)
    }
}

impl zbmd_hal::DriverFault for Fault {
    const INSTALL: &'static str = "install NVIDIA's driver (`nvidia-smi` shows whether it works), or compile for a machine without it";
}

/// What an error code of the driver means for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A kernel accessed memory that is not its own, or a misaligned address.
    IllegalAddress,
    /// A kernel trapped: an assertion, an illegal instruction, a failed launch.
    Trap,
    /// A kernel ran longer than the system allows, as with a display attached.
    LaunchTimeout,
    /// Memory or a link is damaged beyond correction.
    Ecc,
    /// The device no longer answers, or has left the bus.
    FallenOff,
    /// The context no longer exists: after another fault, or because it was destroyed elsewhere.
    ContextGone,
    /// Memory is used up.
    OutOfMemory,
    /// The code does not fit this device or this driver.
    Unfit,
    /// Anything else.
    Other,
}

/// What the supervisor of a worker should do about its fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The device is usable: a new process can open it. Measured on driver 580: after such a fault every context of the
    /// process is lost, and other processes continue.
    RestartWorker,
    /// The device is not to be used until a person has looked at it.
    DropDevice,
    /// Trying again would fail in the same way: the calendar does not fit the device.
    Refuse,
}

/// Error codes of the driver with their names, those that need a meaning here.
const CODES: &[(i32, &str, Cause)] = &[
    (1, "CUDA_ERROR_INVALID_VALUE", Cause::Other),
    (2, "CUDA_ERROR_OUT_OF_MEMORY", Cause::OutOfMemory),
    (3, "CUDA_ERROR_NOT_INITIALIZED", Cause::Other),
    (4, "CUDA_ERROR_DEINITIALIZED", Cause::ContextGone),
    (34, "CUDA_ERROR_STUB_LIBRARY", Cause::Other),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE", Cause::FallenOff),
    (100, "CUDA_ERROR_NO_DEVICE", Cause::FallenOff),
    (101, "CUDA_ERROR_INVALID_DEVICE", Cause::FallenOff),
    (200, "CUDA_ERROR_INVALID_IMAGE", Cause::Unfit),
    (201, "CUDA_ERROR_INVALID_CONTEXT", Cause::ContextGone),
    (209, "CUDA_ERROR_NO_BINARY_FOR_GPU", Cause::Unfit),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE", Cause::Ecc),
    (218, "CUDA_ERROR_INVALID_PTX", Cause::Unfit),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", Cause::Ecc),
    (221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", Cause::Unfit),
    (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", Cause::Unfit),
    (223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", Cause::Unfit),
    (226, "CUDA_ERROR_CONTAINED", Cause::Ecc),
    (304, "CUDA_ERROR_OPERATING_SYSTEM", Cause::Other),
    (400, "CUDA_ERROR_INVALID_HANDLE", Cause::Other),
    (401, "CUDA_ERROR_ILLEGAL_STATE", Cause::Other),
    (500, "CUDA_ERROR_NOT_FOUND", Cause::Unfit),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS", Cause::IllegalAddress),
    (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", Cause::Unfit),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT", Cause::LaunchTimeout),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", Cause::ContextGone),
    (710, "CUDA_ERROR_ASSERT", Cause::Trap),
    (
        712,
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        Cause::Other,
    ),
    (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", Cause::Other),
    (714, "CUDA_ERROR_HARDWARE_STACK_ERROR", Cause::Trap),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", Cause::Trap),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS", Cause::IllegalAddress),
    (
        717,
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        Cause::IllegalAddress,
    ),
    (718, "CUDA_ERROR_INVALID_PC", Cause::IllegalAddress),
    (719, "CUDA_ERROR_LAUNCH_FAILED", Cause::Trap),
    (800, "CUDA_ERROR_NOT_PERMITTED", Cause::Other),
    (801, "CUDA_ERROR_NOT_SUPPORTED", Cause::Unfit),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY", Cause::FallenOff),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", Cause::FallenOff),
    (
        804,
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        Cause::Unfit,
    ),
    (909, "CUDA_ERROR_TIMEOUT", Cause::Other),
    // Reported of a card that has left the bus, and in many other cases; in doubt the card is not trusted.
    (999, "CUDA_ERROR_UNKNOWN", Cause::FallenOff),
    // The library for products has codes of its own, which begin again at 1.
    (
        Code::LIBRARY + 1,
        "CUBLAS_STATUS_NOT_INITIALIZED",
        Cause::Unfit,
    ),
    (
        Code::LIBRARY + 3,
        "CUBLAS_STATUS_ALLOC_FAILED",
        Cause::OutOfMemory,
    ),
    (
        Code::LIBRARY + 7,
        "CUBLAS_STATUS_INVALID_VALUE",
        Cause::Other,
    ),
    (
        Code::LIBRARY + 8,
        "CUBLAS_STATUS_ARCH_MISMATCH",
        Cause::Unfit,
    ),
    (
        Code::LIBRARY + 13,
        "CUBLAS_STATUS_EXECUTION_FAILED",
        Cause::Other,
    ),
    (
        Code::LIBRARY + 14,
        "CUBLAS_STATUS_INTERNAL_ERROR",
        Cause::Other,
    ),
    (
        Code::LIBRARY + 15,
        "CUBLAS_STATUS_NOT_SUPPORTED",
        Cause::Unfit,
    ),
];

/// An error code of the driver, known here or not: newer drivers have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Code(pub i32);

impl Code {
    /// What is added to the codes of cuBLASLt.
    pub(super) const LIBRARY: i32 = 10_000;

    /// What it means.
    pub fn cause(self) -> Cause {
        CODES
            .iter()
            .find(|c| c.0 == self.0)
            .map_or(Cause::Other, |c| c.2)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match CODES.iter().find(|c| c.0 == self.0) {
            Some((number, name, _)) => write!(f, "{name} ({number})"),
            None => write!(f, "error {}", self.0),
        }
    }
}

/// A driver's failure that no caller can foresee.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The context or the device is lost, and everything that the process had on it.
    #[error("the device is lost, {site} reports {code}")]
    Lost {
        /// The call that reported it, which need not be the one that caused it.
        site: Site,
        /// What it reported.
        code: Code,
    },
    /// Memory is used up.
    #[error("{site}: out of memory{wanted}")]
    OutOfMemory {
        /// The call that reported it.
        site: Site,
        /// How much was requested, as text; empty if unknown.
        wanted: String,
    },
    /// Work did not end in time.
    #[error("launch {value} has not ended after {waited_ms} ms: the device hangs")]
    Hung {
        /// Number of the launch waited for.
        value: u64,
        /// How long the wait lasted.
        waited_ms: u64,
    },
    /// Anything else.
    #[error("{site} reports {code}")]
    Other {
        /// The call.
        site: Site,
        /// What it reported.
        code: Code,
    },
}

sites! {
    Context "cuDevicePrimaryCtxRetain",
    Bind "cuCtxSetCurrent",
    Stream "cuStreamCreate",
    Alloc "cuMemAlloc",
    AllocHost "cuMemHostAlloc",
    Register "cuMemHostRegister",
    Pointer "cuMemHostGetDevicePointer",
    Load "cuModuleLoadDataEx",
    Function "cuModuleGetFunction",
    Zero "cuMemsetD8Async",
    Copy "cuMemcpyAsync",
    Give "cuMemcpyAsync",
    Signal "cuStreamBatchMemOp",
    Event "cuEventCreate",
    Record "cuEventRecord",
    Query "cuEventQuery",
    Graph "cuGraphCreate",
    KernelNode "cuGraphAddKernelNode",
    CopyNode "cuGraphAddMemcpyNode",
    ZeroNode "cuGraphAddMemsetNode",
    Library "cublasLtMatmulAlgoGetHeuristic",
    Product "cublasLtMatmul",
    Instantiate "cuGraphInstantiateWithFlags",
    Upload "cuGraphUpload",
    Launch "cuGraphLaunch",
}

/// The error of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallError {
    pub(super) site: Site,
    pub(super) code: Code,
}

impl Fault {
    /// Sorts the error of a call.
    pub(super) fn new(CallError { site, code }: CallError) -> Fault {
        match code.cause() {
            Cause::IllegalAddress
            | Cause::Trap
            | Cause::LaunchTimeout
            | Cause::Ecc
            | Cause::FallenOff
            | Cause::ContextGone => Fault::Lost { site, code },
            Cause::OutOfMemory => Fault::OutOfMemory {
                site,
                wanted: String::new(),
            },
            Cause::Unfit | Cause::Other => Fault::Other { site, code },
        }
    }

    /// With the number of bytes requested, where memory is what is missing.
    #[must_use]
    pub(super) fn with_wanted(self, bytes: u64) -> Fault {
        match self {
            Fault::OutOfMemory { site, .. } => Fault::OutOfMemory {
                site,
                wanted: format!(" for {bytes} bytes"),
            },
            other => other,
        }
    }

    /// Whether the driver must not be called any more, not even to free things. After a wait that failed it is unknown
    /// what is still running.
    pub fn is_fatal(&self) -> bool {
        match self {
            Fault::Lost { .. } | Fault::Hung { .. } => true,
            Fault::OutOfMemory { site, .. } | Fault::Other { site, .. } => {
                // A part of the submission may be in the queue, and wait for something that the rest would have done.
                let is_submission = matches!(site, Site::Give | Site::Signal | Site::Launch);
                is_submission || matches!(site, Site::Query | Site::Record)
            }
        }
    }

    /// What to do about it.
    pub fn verdict(&self) -> Verdict {
        match self {
            Fault::Hung { .. } => Verdict::RestartWorker,
            Fault::OutOfMemory { .. } => Verdict::Refuse,
            Fault::Lost { code, .. } | Fault::Other { code, .. } => match code.cause() {
                Cause::Ecc | Cause::FallenOff => Verdict::DropDevice,
                Cause::OutOfMemory | Cause::Unfit => Verdict::Refuse,
                _ => Verdict::RestartWorker,
            },
        }
    }
}

impl From<Fault> for zbmd_hal::Fault {
    fn from(fault: Fault) -> Self {
        let kind = match (fault.is_fatal(), fault.verdict()) {
            (true, Verdict::DropDevice) => FaultKind::Broken,
            (true, _) => FaultKind::Lost,
            (false, _) if matches!(fault, Fault::OutOfMemory { .. }) => FaultKind::Memory,
            (false, Verdict::Refuse) => FaultKind::Unfit,
            (false, _) => FaultKind::Failed,
        };
        Self::new(kind, &fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_its_verdict() {
        use Verdict::{DropDevice, Refuse, RestartWorker};
        for (site, code, verdict, fatal, text) in [
            (
                Site::Query,
                700,
                RestartWorker,
                true,
                "the device is lost, cuEventQuery reports CUDA_ERROR_ILLEGAL_ADDRESS (700)",
            ),
            (
                Site::Launch,
                716,
                RestartWorker,
                true,
                "the device is lost, cuGraphLaunch reports CUDA_ERROR_MISALIGNED_ADDRESS (716)",
            ),
            (
                Site::Query,
                719,
                RestartWorker,
                true,
                "the device is lost, cuEventQuery reports CUDA_ERROR_LAUNCH_FAILED (719)",
            ),
            (
                Site::Query,
                715,
                RestartWorker,
                true,
                "the device is lost, cuEventQuery reports CUDA_ERROR_ILLEGAL_INSTRUCTION (715)",
            ),
            (
                Site::Query,
                702,
                RestartWorker,
                true,
                "the device is lost, cuEventQuery reports CUDA_ERROR_LAUNCH_TIMEOUT (702)",
            ),
            (
                Site::Query,
                214,
                DropDevice,
                true,
                "the device is lost, cuEventQuery reports CUDA_ERROR_ECC_UNCORRECTABLE (214)",
            ),
            (
                Site::Alloc,
                46,
                DropDevice,
                true,
                "the device is lost, cuMemAlloc reports CUDA_ERROR_DEVICE_UNAVAILABLE (46)",
            ),
            (
                Site::Query,
                999,
                DropDevice,
                true,
                "the device is lost, cuEventQuery reports CUDA_ERROR_UNKNOWN (999)",
            ),
            (
                Site::Bind,
                709,
                RestartWorker,
                true,
                "the device is lost, cuCtxSetCurrent reports CUDA_ERROR_CONTEXT_IS_DESTROYED (709)",
            ),
            (
                Site::Alloc,
                2,
                Refuse,
                false,
                "cuMemAlloc: out of memory for 64 bytes",
            ),
            (
                Site::Load,
                222,
                Refuse,
                false,
                "cuModuleLoadDataEx reports CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)",
            ),
            (
                Site::Copy,
                1,
                RestartWorker,
                false,
                "cuMemcpyAsync reports CUDA_ERROR_INVALID_VALUE (1)",
            ),
            // An unknown code of a launch: what is running is unknown too.
            (
                Site::Launch,
                4711,
                RestartWorker,
                true,
                "cuGraphLaunch reports error 4711",
            ),
        ] {
            let fault = Fault::new(CallError {
                site,
                code: Code(code),
            })
            .with_wanted(64);
            let found = (fault.verdict(), fault.is_fatal(), fault.to_string());
            assert_eq!(found, (verdict, fatal, text.to_owned()));
        }
        let hang = Fault::Hung {
            value: 7,
            waited_ms: 250,
        };
        assert_eq!((hang.verdict(), hang.is_fatal()), (RestartWorker, true));
        assert_eq!(
            hang.to_string(),
            "launch 7 has not ended after 250 ms: the device hangs"
        );
    }

    #[test]
    fn codes_are_listed_once() {
        assert!(CODES.windows(2).all(|w| w[0].0 < w[1].0));
    }
}
