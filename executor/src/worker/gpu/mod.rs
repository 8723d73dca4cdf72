//! The worker of one GPU: it submits the periods of a calendar and does the host's part of its rings, borders and
//! progress words. Must not know kernels; the calendar's commands are [`Replay`]'s.
//!
//! A GPU's worker differs from a CPU's in one thing: a period that was submitted has not ended. So periods are published as
//! done when they have ended and all that they give was given; and before the worker waits for anybody (tokens, space,
//! admission, a border), it ends what is in flight, because others may need that to go on. A device that waits for others
//! and informs them by itself (see `zbmd_hal`) is followed step by step, and released once the epoch is stopped.
#![expect(
    unsafe_code,
    reason = "lends exchange regions to a replay, and copies tokens at borders"
)]

pub(super) mod device;
mod peers;

use std::collections::BTreeMap;
use std::sync::Arc;

use zbmd_devices::gpu::{Fault, FaultKind, Replay};
use zbmd_hal::{Exchange, HostRegion, Transport};
use zbmd_ir::{Calendar, DeviceId, Plan, Program, RingId, State, planned_calendar_ns};

use self::device::LentDevice;
pub(crate) use self::device::OpenGpus;
use self::peers::GpuPeers;
use super::border;
use super::job::WorkerJob;
use super::period_loop::{DeviceRun, PeriodLoop};
use super::planned_step::PlannedStep;
use super::thread::thread_number;
use crate::fault::{DeviceFault, StepStop};
use crate::observe::measure::SlotSample;
use crate::observe::report::{GateReport, SlotReport, WaitReport, WorkerReport};
use crate::program::LoadedProgram;
use crate::transport::admission::AdmissionGate;
use crate::transport::epoch::{Area, EpochMemory};
use crate::transport::primitive::Ordering;

/// What [`WorkerStatus::pc`](crate::transport::epoch_state::WorkerStatus::pc) says of a GPU's worker: it waits for other
/// workers.
const WAITS: u32 = 0;
/// It submits, or waits for its device.
const WORKS: u32 = 1;
/// It makes its device ready: memory, kernels, commands.
const PREPARES: u32 = 2;

/// Longer than the driver ever takes to compile kernels and to take memory.
const PREPARE_NS: u64 = 10_000_000_000;
/// What a wait for a device may take besides its work: drivers and neighbours on the same device stall it now and then
/// (106 ms was the longest stall seen of a GPU whose other user had crashed it).
const SLACK_NS: u64 = 100_000_000;
/// Periods in flight that a wait may be for.
const MAX_IN_FLIGHT: u64 = 2;

/// At each of the above, whether the worker waits for other workers.
#[cfg(hosts)]
pub(super) fn waits() -> Vec<bool> {
    [WAITS, WORKS, PREPARES].map(|step| step == WAITS).to_vec()
}

/// What a GPU's worker does at each of the above.
pub(super) fn planned_steps(plan: &Plan, calendar: &Calendar) -> Vec<PlannedStep> {
    let period_ns = match calendar.weight_fetches().is_empty() {
        true => planned_calendar_ns(calendar),
        // Copies for the next period end after the last slot.
        false => planned_calendar_ns(calendar).max(plan.period_ns),
    };
    let works_ns = MAX_IN_FLIGHT * period_ns + SLACK_NS;
    let waiting_step = PlannedStep {
        planned_ns: 0,
        may_wait: true,
    };
    let working_step = PlannedStep {
        planned_ns: works_ns,
        may_wait: false,
    };
    let preparing_step = PlannedStep {
        planned_ns: PREPARE_NS,
        may_wait: false,
    };
    vec![waiting_step, working_step, preparing_step]
}

/// Where the device exchanges tokens with the others, in the epoch's memory. Where transfers have checksums, or rings lead to
/// other hosts, the worker looks at all of them, and does it all.
fn epoch_exchange(plan: &Plan, epoch: &EpochMemory, has_wires: bool) -> Exchange {
    let plan_calendars = plan.calendars.iter();
    let exchange_regions = plan_calendars.map(|calendar| {
        let region = region_at(epoch.exchange(calendar.device), calendar.exchange_bytes);
        (calendar.device, region)
    });
    let (pages, pages_bytes) = epoch.exchange_pages();
    let exchange = Exchange::new(exchange_regions.collect()).within(region_at(pages, pages_bytes));
    if has_wires || !epoch.sums.is_empty() {
        return exchange;
    }

    let epoch_rings = epoch.rings.iter();
    let ring_counters = epoch_rings.map(|ring| {
        let counter_addresses = ring.counters();
        counter_addresses.map(|counter| region_at(counter.cast(), 8))
    });
    exchange.by_device(ring_counters.collect())
}

/// Some of the epoch's memory.
fn region_at(first: *mut u8, bytes: u64) -> HostRegion {
    // SAFETY: all of it lies in the epoch's memory, zeroed at first, which `GpuPeers` keeps alive; whoever touches it
    // keeps to the protocol of rings.
    unsafe { HostRegion::new(first, bytes) }
}

/// A GPU with its calendar of an epoch, ready to run.
pub(crate) struct GpuWorker {
    // First: it is given back before its device is.
    replay: Box<dyn Replay>,
    lent: LentDevice,
    peers: GpuPeers,
    /// The tokens at the border where the epoch begins, then where it ends.
    state: State,
    sample: SlotSample,
}

impl GpuWorker {
    /// Makes a device ready: takes memory there, compiles kernels, records commands, loads the state of the border at
    /// which the epoch begins. Rings among `wired_rings` go over the worker's wires.
    ///
    /// # Errors
    /// A device that is not there, cannot do what the plan asks of it, or failed.
    pub(super) fn new(
        loaded: &LoadedProgram,
        plan: &Plan,
        job: &WorkerJob,
        wired_rings: &BTreeMap<RingId, u32>,
    ) -> Result<Self, DeviceFault> {
        let epoch = &job.epoch;
        let status = &epoch.statuses[job.calendar];
        // Shown while the driver compiles and allocates, which may take seconds.
        status.pc.store(PREPARES, Ordering::Relaxed);
        status.thread.store(thread_number(), Ordering::Release);

        let program: &Program = &loaded.program;
        let device_description = &program.machine.devices[job.spec.devices[job.calendar]];
        let mut lent_device = job.gpus.lend(device_description)?;
        let device_fault = |fault| DeviceFault {
            device: device_description.name.clone(),
            fault,
        };
        let mut replay = lent_device
            .device()
            .clone()
            .replay(
                &loaded.registry,
                program,
                plan,
                &plan.calendars[job.calendar],
                &epoch_exchange(plan, epoch, !wired_rings.is_empty()),
                &mut lent_device.kept,
            )
            .map_err(device_fault)?;

        // The device starts where the last epoch ended.
        let graph = &program.graph;
        let start_state = State {
            channels: border::read_area(epoch, graph, Area::Start),
            ..State::initial(graph)
        };
        replay.load_state(&start_state).map_err(device_fault)?;

        if let Some(borders) = epoch.borders() {
            let keepers = border::keepers(graph, plan);
            replay
                .save_borders(borders.every(), &keepers)
                .map_err(device_fault)?;
        }

        // Kernels outlive the epoch: the next one on this device need not compile them again.
        lent_device.keep_kernels();

        let mut peers = GpuPeers::new(graph, plan, job.calendar, epoch, wired_rings);
        peers.sample_every = job.options.sample_every;
        peers.recorder = epoch.recorder(&job.spec, job.calendar, None);
        Ok(Self {
            replay,
            lent: lent_device,
            peers,
            state: start_state,
            sample: SlotSample::default(),
        })
    }

    /// Runs all periods, and saves the state; the number of blocks.
    ///
    /// # Errors
    /// What stopped a period, or a fault of the device while the state was saved.
    pub(super) fn run(&mut self, periods: &mut PeriodLoop) -> Result<u64, StepStop> {
        self.peers.spin = periods.spin;
        let epoch: Arc<EpochMemory> = Arc::clone(&self.peers.epoch);
        let mut gpu_run = GpuRun {
            replay: &mut *self.replay,
            peers: &mut self.peers,
            device_name: self.lent.name(),
        };
        let run_result = periods.run(&epoch.common, &mut gpu_run);

        let waits_on_device = self.replay.summary().transport == Transport::Device;
        if waits_on_device && run_result.is_err() && epoch.common.stop.is_set() {
            // Only now: before the stop, what is released would count. A fault meanwhile marks the device as lost.
            self.peers.wait_for_others_to_end();
            let _ = self.replay.release_waits();
        }

        let blocks = run_result?;
        self.sample = self.peers.sample;
        self.save_state(blocks)?;
        Ok(blocks)
    }

    /// Puts the tokens on channels after the last block into the end area.
    fn save_state(&mut self, blocks: u64) -> Result<(), DeviceFault> {
        let device_fault = |fault| DeviceFault {
            device: self.lent.name().to_owned(),
            fault,
        };
        self.replay
            .save_state(blocks, &mut self.state)
            .map_err(device_fault)?;
        self.peers.export(&self.state);

        match self.lent.validation_complaint() {
            Some(text) => Err(device_fault(Fault {
                kind: FaultKind::Failed,
                text,
            })),
            None => Ok(()),
        }
    }

    /// What was measured: the whole calendar as one slot, for the host sees no others.
    pub(super) fn report(
        &self,
        program: &Program,
        plan: &Plan,
        calendar: &Calendar,
    ) -> WorkerReport {
        // The host sees submissions only: what happens between the first and the last command is the device's.
        let calendar_slot = SlotReport {
            slot: "the calendar, submission to end".to_owned(),
            planned_ns: planned_calendar_ns(calendar),
            mean_ns: self.sample.mean(self.sample.sum_ns),
            min_ns: self.sample.min_ns,
            max_ns: self.sample.max_ns,
            samples: self.sample.count,
            ..SlotReport::default()
        };

        let device_name = |id: DeviceId| program.machine.devices[id].name.clone();
        // Waits for other devices are the host's, ring by ring, as those of a CPU worker.
        let ring_waits = self.peers.waits_of_rings().map(|(ring, waits)| {
            let ring = &plan.rings[ring];
            let ring_name = format!(
                "{} {} -> {}",
                ring.channel,
                device_name(ring.from),
                device_name(ring.to)
            );
            WaitReport {
                ring: ring_name,
                waits,
            }
        });
        let calls = self.replay.gate_calls();
        let has_gates = calls.launched + calls.skipped > 0;
        WorkerReport {
            device: device_name(calendar.device),
            pinned: false,
            slots: vec![calendar_slot],
            waits: ring_waits.collect(),
            gates: has_gates.then_some(GateReport {
                launched: calls.launched,
                skipped: calls.skipped,
            }),
            notes: self.replay.notes().to_vec(),
        }
    }

    /// Memory taken on the device and for staging.
    pub(super) fn bytes(&self) -> u64 {
        self.replay.summary().bytes
    }
}

/// The run of a calendar on a GPU.
struct GpuRun<'a> {
    replay: &'a mut dyn Replay,
    peers: &'a mut GpuPeers,
    device_name: &'a str,
}

impl DeviceRun for GpuRun<'_> {
    fn step(
        &mut self,
        period: u64,
        blocks: Option<u64>,
        gate: &AdmissionGate,
    ) -> Result<(), StepStop> {
        self.peers.note_submission(period);
        let step_result = self
            .replay
            .step(period, blocks, &mut self.peers.during_call(gate));
        self.peers.step_result(self.device_name, step_result)
    }

    fn settle(&mut self, gate: &AdmissionGate) -> Result<bool, StepStop> {
        let settle_result = self.replay.end_next(&mut self.peers.during_call(gate));
        let has_ended = self.peers.step_result(self.device_name, settle_result)?;
        if !has_ended {
            self.peers.note_wait();
        }
        Ok(has_ended)
    }

    fn drain(&mut self, gate: &AdmissionGate) -> Result<(), StepStop> {
        let drain_result = self.replay.drain(&mut self.peers.during_call(gate));
        self.peers.step_result(self.device_name, drain_result)
    }
}
