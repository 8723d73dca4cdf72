//! What the GPUs of a machine can do, beside the ops that run on them.

use std::collections::BTreeMap;

use zbmd_ir::{Device, DeviceKind};

use crate::kernels::Caps;

/// What each GPU of a machine can do, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct GpuCapabilities {
    /// By the names of their devices.
    known: BTreeMap<String, Caps>,
}

impl GpuCapabilities {
    /// Says what a GPU can do: actors that it cannot run have no cost there.
    pub fn set(&mut self, device: &str, caps: Caps) {
        self.known.insert(device.to_owned(), caps);
    }

    /// What a GPU can do. Where nothing is known, it is what all GPUs of its kind support ([`Caps::CUDA`],
    /// [`Caps::COMMON`]); a device that lacks some of that refuses calendars that need it.
    pub fn of(&self, device: &Device) -> &Caps {
        let common = match device.backend {
            DeviceKind::Cuda => &Caps::CUDA,
            _ => &Caps::COMMON,
        };
        self.known.get(&device.name).unwrap_or(common)
    }
}
