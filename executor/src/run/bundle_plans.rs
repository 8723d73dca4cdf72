//! The supervisor's questions about plans, answered from a bundle for the present phase of the run.

use std::sync::Arc;

use zbmd_ir::{DeviceId, Plan};

use crate::program::{LoadedProgram, Phase, planned_ns};
use crate::supervise::Plans;

/// Work is given to others if a period then is so many times shorter.
const REPLACE_GAIN: f64 = 1.1;

/// The plans of a program in the present phase of the run.
pub(super) struct BundlePlans {
    pub(super) loaded: Arc<LoadedProgram>,
    pub(super) phase: Phase,
}

impl BundlePlans {
    fn plan(&self, lost: &[DeviceId]) -> Option<&Plan> {
        let plan = self.loaded.plan_of(self.phase, lost)?;
        Some(&self.loaded.program.plans[plan])
    }

    fn period_ns(&self, lost: &[DeviceId]) -> Option<u64> {
        Some(self.plan(lost)?.period_ns)
    }
}

impl Plans for BundlePlans {
    fn can_run(&self, lost: &[DeviceId]) -> bool {
        self.plan(lost).is_some()
    }

    fn devices_used(&self, lost: &[DeviceId]) -> Vec<DeviceId> {
        let Some(plan) = self.plan(lost) else {
            return Vec::new();
        };
        let mut devices = self.loaded.physical_devices(plan, lost);
        devices.sort_unstable();
        devices
    }

    fn is_improvement(&self, from: &[DeviceId], to: &[DeviceId]) -> bool {
        self.period_ns(to) < self.period_ns(from)
    }

    fn is_faster_without(
        &self,
        from: &[DeviceId],
        to: &[DeviceId],
        slow: DeviceId,
        times: f64,
    ) -> bool {
        let (Some(plan), Some(other_ns)) = (self.plan(from), self.period_ns(to)) else {
            return false;
        };
        let devices = self.loaded.physical_devices(plan, from);
        let Some(calendar) = devices.iter().position(|device| *device == slow) else {
            return false;
        };

        let lanes = plan.calendars[calendar].lanes.iter();
        let entries = lanes.flat_map(|lane| &lane.entries);
        let slowed_ns = entries.map(planned_ns).sum::<u64>() as f64 * times;
        // Going over costs a drained pipeline, and coming back another.
        slowed_ns.max(plan.period_ns as f64) > REPLACE_GAIN * other_ns as f64
    }
}
