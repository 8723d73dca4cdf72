//! A worker that is ready to run its part of an epoch, on whatever device.

use std::sync::Arc;

use zbmd_ir::PlanId;
use zbmd_op::team::Team;

use super::cpu::CpuWorker;
use super::gpu::GpuWorker;
use super::period_loop::PeriodLoop;
#[cfg(hosts)]
use super::step_table::may_wait;
use super::streams::SinkEnd;
#[cfg(hosts)]
use super::wired::Wiring;
use crate::fault::StepStop;
use crate::transport::epoch::EpochMemory;
#[cfg(hosts)]
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::watchdog::WorkerHeartbeat;

/// The device of a worker, with its calendar.
pub(super) enum DeviceWorker {
    Cpu(Box<CpuWorker>),
    Gpu(Box<GpuWorker>),
}

impl DeviceWorker {
    pub(super) fn start_team(&mut self) -> Option<Team> {
        match self {
            Self::Cpu(cpu) => cpu.start_team(),
            Self::Gpu(_) => None,
        }
    }

    pub(super) fn run(
        &mut self,
        periods: &mut PeriodLoop,
        heartbeat: Option<WorkerHeartbeat>,
    ) -> Result<u64, StepStop> {
        match self {
            Self::Cpu(cpu) => cpu.run(periods, heartbeat),
            Self::Gpu(gpu) => gpu.run(periods),
        }
    }

    /// Bytes of memory of its own, and how many of them are not paged out.
    pub(super) fn memory_bytes(&self) -> (u64, u64) {
        match self {
            Self::Cpu(cpu) => cpu.memory.bytes(),
            // The driver's memory is not paged out.
            Self::Gpu(gpu) => (gpu.bytes(), gpu.bytes()),
        }
    }

    pub(super) fn sinks(&self) -> &[SinkEnd] {
        match self {
            Self::Cpu(cpu) => &cpu.sinks,
            Self::Gpu(_) => &[],
        }
    }
}

#[cfg(hosts)]
impl PreparedWorker {
    /// The same, which reaches workers on other hosts where they are said to be now.
    pub(crate) fn wired_by(mut self, now: Option<&Arc<Wiring>>) -> Self {
        if let (Some((_, wiring)), Some(now)) = (&mut self.wiring, now) {
            *wiring = Arc::clone(now);
        }
        self
    }

    /// By instruction, whether the worker that is there waits for others.
    pub(crate) fn waits(&self) -> Vec<bool> {
        match &self.device {
            DeviceWorker::Cpu(cpu) => cpu.replay.code.instrs.iter().map(may_wait).collect(),
            DeviceWorker::Gpu(_) => super::gpu::waits(),
        }
    }
}

/// A job with its memory, ready to run.
pub(crate) struct PreparedWorker {
    pub(super) plan: PlanId,
    pub(super) calendar: usize,
    pub(super) epoch: Arc<EpochMemory>,
    pub(super) device: DeviceWorker,
    pub(super) periods: PeriodLoop,
    /// Run at a real-time priority.
    pub(super) realtime: bool,
    /// Hold the worker to its share of a core.
    pub(super) hold_share: bool,
    /// What came of that.
    pub(super) share_note: Option<String>,
    /// Where the other workers are, if they are on several hosts.
    #[cfg(hosts)]
    pub(super) wiring: Option<(Arc<EpochSpec>, Arc<Wiring>)>,
}
