//! The parts that workers have in the epoch at work. Counts of those that are still to join and to finish are kept, so
//! that nobody goes through all parts when one worker reports.

use std::collections::BTreeMap;

use zbmd_ir::DeviceId;

/// The part of one worker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkerPart {
    pub(super) joined: bool,
    /// After so many blocks.
    pub(super) finished: Option<u64>,
}

/// The parts of all devices that have a role.
#[derive(Clone, Debug)]
pub(super) struct WorkerParts {
    by_device: BTreeMap<DeviceId, WorkerPart>,
    missing: usize,
    unfinished: usize,
}

impl WorkerParts {
    pub(super) fn new(devices: Vec<DeviceId>) -> Self {
        let parts = devices.into_iter().map(|id| (id, WorkerPart::default()));
        let by_device: BTreeMap<DeviceId, WorkerPart> = parts.collect();
        Self {
            missing: by_device.len(),
            unfinished: by_device.len(),
            by_device,
        }
    }

    pub(super) fn get(&self, device: DeviceId) -> Option<WorkerPart> {
        self.by_device.get(&device).copied()
    }

    /// The worker was seen at work; whether that is new.
    pub(super) fn join(&mut self, device: DeviceId) -> bool {
        let Some(part) = self.by_device.get_mut(&device) else {
            return false;
        };
        let is_new = !std::mem::replace(&mut part.joined, true);
        self.missing -= usize::from(is_new);
        is_new
    }

    pub(super) fn finish(&mut self, device: DeviceId, blocks: u64) {
        self.join(device);
        if let Some(part) = self.by_device.get_mut(&device) {
            let is_new = part.finished.replace(blocks).is_none();
            self.unfinished -= usize::from(is_new);
        }
    }

    pub(super) fn have_all_joined(&self) -> bool {
        self.missing == 0
    }

    pub(super) fn have_all_finished(&self) -> bool {
        self.unfinished == 0
    }

    /// Whether all have finished, after so many blocks. O(parts).
    pub(super) fn have_all_finished_at(&self, blocks: u64) -> bool {
        let mut parts = self.by_device.values();
        parts.all(|part| part.finished == Some(blocks))
    }

    /// The devices that were not seen at work, ascending. O(parts).
    pub(super) fn missing(&self) -> Vec<DeviceId> {
        let parts = self.by_device.iter();
        parts
            .filter(|(_, part)| !part.joined)
            .map(|(device, _)| *device)
            .collect()
    }
}
