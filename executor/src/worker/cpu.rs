//! The worker of one CPU device: it calls kernels itself, slot by slot, on the device's cores.

use std::sync::Arc;

use zbmd_ir::{RingId, Slot};
use zbmd_op::team::Team;

use super::border::commit_border;
use super::live_actors::LiveActors;
use super::memory::WorkerMemory;
use super::period_loop::{DeviceRun, PeriodLoop};
use super::probe::ProbeRecorder;
use super::replay::{CalendarReplay, Observed, SlotContext};
use super::streams::{SinkEnd, SourceEnd};
use crate::fault::{StepStop, WorkerFault};
use crate::transport::admission::AdmissionGate;
use crate::transport::admission_times::AdmissionTimes;
use crate::transport::change_queue::Values;
use crate::transport::clock::Clock;
use crate::transport::epoch::EpochMemory;
use crate::transport::epoch_state::WorkerStatus;
use crate::transport::primitive::Ordering;
use crate::transport::trace_ring::TraceRecorder;
use crate::transport::watchdog::WorkerHeartbeat;

/// A CPU device with its calendar of an epoch, ready to run.
pub(super) struct CpuWorker {
    pub replay: CalendarReplay,
    /// The slot of each instruction; `None` for loops.
    pub slots: Vec<Option<Slot>>,
    /// Rings in the order of the replay's peers.
    pub rings: Vec<RingId>,
    pub memory: WorkerMemory,
    pub calendar: usize,
    pub sources: Vec<SourceEnd>,
    /// What changes on the device, if the program has live parameters there.
    pub live: Option<LiveActors>,
    pub sinks: Vec<SinkEnd>,
    /// Where the admission of blocks is noted, on a device with sources.
    pub admission_times: Option<AdmissionTimes>,
    /// The device's cores. Kernels share their work between them.
    pub cores: Vec<u32>,
    /// Whether threads are to be tied to the cores, and whether they are.
    pub pin: bool,
    pub is_pinned: bool,
    /// Slot timings are sampled every N periods; 0 for never.
    pub sample_every: u64,
    /// The trace, if there is one.
    pub recorder: Option<TraceRecorder>,
}

impl CpuWorker {
    /// Ties this thread to its core, and starts threads on the device's others.
    pub(super) fn start_team(&mut self) -> Option<Team> {
        let (team, is_pinned) = Team::of_cores(&self.cores, self.pin);
        self.is_pinned = is_pinned;
        team
    }

    /// Runs all periods; the number of blocks.
    ///
    /// # Errors
    /// What stopped a period.
    pub(super) fn run(
        &mut self,
        periods: &mut PeriodLoop,
        heartbeat: Option<WorkerHeartbeat>,
    ) -> Result<u64, StepStop> {
        let epoch: Arc<EpochMemory> = Arc::clone(&self.memory.epoch);
        let mut run = self.begin(&epoch, periods, heartbeat);
        periods.run(&epoch.common, &mut run)
    }

    /// Runs one period, of a plan with one stage that saves nothing at borders.
    ///
    /// # Errors
    /// What stopped it.
    pub(super) fn run_one(&mut self, periods: &mut PeriodLoop) -> Result<(), StepStop> {
        let epoch: Arc<EpochMemory> = Arc::clone(&self.memory.epoch);
        let mut run = self.begin(&epoch, periods, None);
        periods.run_one(&epoch.common, &mut run)
    }

    /// Changes live parameters with the block of this period, which has not begun.
    ///
    /// # Errors
    /// A kernel that cannot be made.
    pub(super) fn change(&mut self, period: u64, values: Values) -> Result<(), WorkerFault> {
        match &mut self.live {
            Some(live) => live.change(period, values),
            None => Ok(()),
        }
    }

    fn begin<'a>(
        &'a mut self,
        epoch: &'a EpochMemory,
        periods: &PeriodLoop,
        heartbeat: Option<WorkerHeartbeat>,
    ) -> CpuRun<'a> {
        // The first border is passed when the last stage has done the block before it.
        let first_border = epoch
            .borders()
            .map_or(u64::MAX, |borders| borders.every() + periods.stages - 1);

        CpuRun {
            replay: &mut self.replay,
            live: self.live.as_mut(),
            context: SlotContext {
                epoch,
                rings: &epoch.rings,
                status: &epoch.statuses[self.calendar],
                sources: &mut self.sources,
                sinks: &mut self.sinks,
                stop: &epoch.common.stop,
                spin: periods.spin,
                clock: &Clock,
                heartbeat,
                recorder: self.recorder.take(),
                probe: ProbeRecorder::new(epoch.probe.clone(), self.calendar),
                observed: Observed::default(),
            },
            admission_times: self.admission_times.as_ref(),
            sample_every: self.sample_every,
            until_sample: self.sample_every,
            until_border: first_border,
        }
    }
}

/// The run of a calendar on a CPU.
struct CpuRun<'a> {
    replay: &'a mut CalendarReplay,
    live: Option<&'a mut LiveActors>,
    context: SlotContext<'a>,
    admission_times: Option<&'a AdmissionTimes>,
    sample_every: u64,
    /// Periods until the next one whose slots are timed.
    until_sample: u64,
    /// Periods until the next border is passed.
    until_border: u64,
}

impl CpuRun<'_> {
    /// Whether the slots of this period are timed. The first periods warm caches up; they are not.
    fn is_sampled(&mut self) -> bool {
        let is_sampled = self.until_sample == 1;
        self.until_sample = if is_sampled {
            self.sample_every
        } else {
            self.until_sample.saturating_sub(1)
        };
        is_sampled
    }
}

impl DeviceRun for CpuRun<'_> {
    #[inline]
    fn step(
        &mut self,
        period: u64,
        blocks: Option<u64>,
        gate: &AdmissionGate,
    ) -> Result<(), StepStop> {
        if let (Some(times), None) = (self.admission_times, blocks) {
            times.set(period, self.context.clock.now_ns());
        }
        if let Some(live) = &mut self.live {
            let SlotContext { epoch, status, .. } = &self.context;
            live.take_changes(epoch, status, period, gate.admitted)
                .map_err(StepStop::Fault)?;
            live.prepare_period(period, self.replay);
        }
        let is_sampled = self.is_sampled();
        self.replay
            .step(&mut self.context, period, blocks, is_sampled)?;

        let status = self.context.status;
        status.periods.store(period + 1, Ordering::Release);
        status
            .pc
            .store(WorkerStatus::BETWEEN_PERIODS, Ordering::Relaxed);
        self.context.beat();

        self.until_border -= 1;
        if self.until_border == 0 {
            let epoch = self.context.epoch;
            self.until_border = epoch.borders().map_or(u64::MAX, |borders| borders.every());
            commit_border(epoch, gate);
        }
        Ok(())
    }

    /// A period that was stepped has ended.
    fn settle(&mut self, _: &AdmissionGate) -> Result<bool, StepStop> {
        Ok(false)
    }

    fn drain(&mut self, _: &AdmissionGate) -> Result<(), StepStop> {
        Ok(())
    }
}
