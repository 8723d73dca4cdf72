//! What can go wrong with a driver, sorted by what a caller can do about it.

use ash::vk;

use crate::replay::sites;

/// No Vulkan here: everything else works without.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no Vulkan: {0}")]
pub struct Unavailable(pub String);

/// A device that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No loader or no driver.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// There is no such device.
    #[error("there is no Vulkan device `{wanted}` here: {known}")]
    NoDevice {
        /// Name or UUID asked for.
        wanted: String,
        /// Names of those that there are.
        known: String,
    },
    /// The device lacks something that all of zbmd's calendars need.
    #[error("device {device} has no {what}")]
    Lacks {
        /// The device.
        device: String,
        /// What is missing.
        what: String,
    },
    /// The driver failed.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A driver's failure that no caller could foresee.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The device or the instance is gone; everything on it is.
    #[error("the device is lost, says {site}{report}")]
    Lost {
        /// The call that said so.
        site: Site,
        /// What the driver knows about it, from a comma on; empty if nothing.
        report: String,
    },
    /// Memory is used up.
    #[error("{site}: out of {whose} memory{wanted}")]
    OutOfMemory {
        /// The call that said so.
        site: Site,
        /// `device` or `host`.
        whose: &'static str,
        /// How much was asked for, as text; empty if unknown.
        wanted: String,
    },
    /// Work did not end in time.
    #[error(
        "submission {value} has not ended after {waited_ms} ms, {reached} are done: the queue hangs"
    )]
    Hung {
        /// Number of the submission waited for.
        value: u64,
        /// Submissions done.
        reached: u64,
        /// How long it was waited for.
        waited_ms: u64,
    },
    /// Anything else.
    #[error("{site} says {result}")]
    Other {
        /// The call.
        site: Site,
        /// What it said.
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
    /// Sorts what a call said.
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

    /// Whether memory that was asked for is what is missing.
    #[must_use]
    pub(super) fn wanting(self, bytes: u64) -> Fault {
        match self {
            Fault::OutOfMemory { site, whose, .. } => Fault::OutOfMemory {
                site,
                whose,
                wanted: format!(" for {bytes} bytes"),
            },
            other => other,
        }
    }

    /// Whether the driver must not be asked for anything any more, not even to take things back. After a wait that went
    /// wrong nobody knows what is still at work.
    pub fn is_fatal(&self) -> bool {
        match self {
            Fault::Lost { .. } | Fault::Hung { .. } => true,
            Fault::OutOfMemory { site, .. } | Fault::Other { site, .. } => {
                matches!(site, Site::Wait | Site::Counter)
            }
        }
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
                "the device is lost, says vkQueueSubmit",
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
                "vkWaitSemaphores says ERROR_UNKNOWN",
            ),
        ] {
            assert_eq!(Fault::new(site, result).wanting(64).to_string(), text);
        }
    }
}
