//! What can go wrong with a driver, sorted by what a caller can do about it.

use ash::vk;

use zbmd_hal::{FaultKind, Unavailable, sites};

/// Why there is no Vulkan, as a clause.
pub(super) fn unavailable(reason: String) -> Unavailable {
    Unavailable {
        api: "Vulkan",
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
    const INSTALL: &'static str = "install the Vulkan loader and a driver (Debian: libvulkan1 and mesa-vulkan-drivers), or compile for a machine without it";
}

/// A driver's failure that no caller can foresee.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The device or the instance is lost, and everything on it.
    #[error("the device is lost, {site} reports it{report}")]
    Lost {
        /// The call that reported it.
        site: Site,
        /// What the driver knows about it, from a colon on; empty if nothing.
        report: String,
    },
    /// Memory is used up.
    #[error("{site}: out of {whose} memory{wanted}")]
    OutOfMemory {
        /// The call that reported it.
        site: Site,
        /// `device` or `host`.
        whose: &'static str,
        /// How much was requested, as text; empty if unknown.
        wanted: String,
    },
    /// Work did not end in time.
    #[error(
        "submission {value} has not ended after {waited_ms} ms, {reached} have: the queue hangs"
    )]
    Hung {
        /// Number of the submission waited for.
        value: u64,
        /// Submissions that have ended.
        reached: u64,
        /// How long the wait lasted.
        waited_ms: u64,
    },
    /// Anything else.
    #[error("{site} reports {result}")]
    Other {
        /// The call.
        site: Site,
        /// What it reported.
        result: String,
    },
}

sites! {
    CreateDevice "vkCreateDevice",
    CreateBuffer "vkCreateBuffer",
    AllocateMemory "vkAllocateMemory",
    BindMemory "vkBindBufferMemory",
    MapMemory "vkMapMemory",
    CreateCache "vkCreatePipelineCache",
    CreateModule "vkCreateShaderModule",
    CreateSetLayout "vkCreateDescriptorSetLayout",
    CreateLayout "vkCreatePipelineLayout",
    CreatePipeline "vkCreateComputePipelines",
    CreateSets "vkCreateDescriptorPool",
    AllocateSets "vkAllocateDescriptorSets",
    CreateCommands "vkCreateCommandPool",
    AllocateCommands "vkAllocateCommandBuffers",
    Begin "vkBeginCommandBuffer",
    End "vkEndCommandBuffer",
    CreateSemaphore "vkCreateSemaphore",
    Submit "vkQueueSubmit",
    Wait "vkWaitSemaphores",
    Counter "vkGetSemaphoreCounterValue",
}

impl Fault {
    /// Sorts the result of a call.
    pub(super) fn new(site: Site, result: vk::Result) -> Fault {
        match result {
            vk::Result::ERROR_DEVICE_LOST => Fault::Lost {
                site,
                report: String::new(),
            },
            vk::Result::ERROR_OUT_OF_HOST_MEMORY => Fault::OutOfMemory {
                site,
                whose: "host",
                wanted: String::new(),
            },
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
            | vk::Result::ERROR_OUT_OF_POOL_MEMORY
            | vk::Result::ERROR_FRAGMENTED_POOL => Fault::OutOfMemory {
                site,
                whose: "device",
                wanted: String::new(),
            },
            vk::Result::ERROR_INITIALIZATION_FAILED => Fault::Lost {
                site,
                report: ": it cannot be initialised".to_owned(),
            },
            other => Fault::Other {
                site,
                result: format!("{other:?}"),
            },
        }
    }

    /// With the number of bytes requested, where memory is what is missing.
    #[must_use]
    pub(super) fn with_wanted(self, bytes: u64) -> Fault {
        match self {
            Fault::OutOfMemory { site, whose, .. } => Fault::OutOfMemory {
                site,
                whose,
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
                matches!(site, Site::Wait | Site::Counter)
            }
        }
    }
}

impl From<Fault> for zbmd_hal::Fault {
    fn from(fault: Fault) -> Self {
        let kind = match &fault {
            fault if fault.is_fatal() => FaultKind::Lost,
            Fault::OutOfMemory { .. } => FaultKind::Memory,
            _ => FaultKind::Failed,
        };
        Self::new(kind, &fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_sentences() {
        for (site, result, text) in [
            (
                Site::Submit,
                vk::Result::ERROR_DEVICE_LOST,
                "the device is lost, vkQueueSubmit reports it",
            ),
            (
                Site::AllocateMemory,
                vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
                "vkAllocateMemory: out of device memory for 64 bytes",
            ),
            (
                Site::CreateCommands,
                vk::Result::ERROR_OUT_OF_HOST_MEMORY,
                "vkCreateCommandPool: out of host memory for 64 bytes",
            ),
            (
                Site::Wait,
                vk::Result::ERROR_UNKNOWN,
                "vkWaitSemaphores reports ERROR_UNKNOWN",
            ),
        ] {
            assert_eq!(Fault::new(site, result).with_wanted(64).to_string(), text);
        }
    }
}
