//! The worker of one GPU: it submits the periods of a calendar and does the host's part of its rings, borders and
//! progress words. Must not know kernels; the calendar's commands are [`Replay`]'s.
//!
//! A GPU's worker differs from a CPU's in one thing: a period that was submitted has not ended. So periods are told as
//! done when they have ended and all that they give was given; and before the worker waits for anybody (tokens, space,
//! admission, a border), it ends what is in flight, because others may need that to go on. A device that waits for others
//! and tells them by itself (see `zbmd_backends::replay`) is followed step by step, and let go once the epoch is stopped.
#![expect(
    unsafe_code,
    reason = "lends exchange regions to a replay, and copies tokens at borders"
)]

mod device;
mod others;

use std::sync::Arc;

use zbmd_backends::gpu::{Fault, FaultKind, Replay};
use zbmd_backends::replay::{Exchange, HostRegion, Transport};
use zbmd_ir::{Calendar, Device, DeviceId, Entry, Plan, Program, Slot, State};

use self::device::Lent;
pub(crate) use self::device::{DeviceFault, Gpus};
use self::others::Others;
use crate::observe::measure::Sample;
use crate::observe::report::{SlotReport, WaitReport, WorkerReport};
use crate::observe::trace::Recorder;
use crate::run::session::Inner;
use crate::transport::clock::Clock;
use crate::transport::epoch::{Area, EpochMemory};
use crate::transport::primitive::Ordering;
use crate::transport::ring::Spin;
use crate::worker::border;
use crate::worker::period_loop::{Gate, Periods, thread_number};
use crate::worker::replay::Halt;

/// What [`Post::pc`](crate::transport::epoch::Post::pc) says of a GPU's worker: it waits for other workers.
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
const DEPTH: u64 = 2;

/// For each [`Post::pc`](crate::transport::epoch::Post::pc) of a GPU's worker, how long it is planned to take (ns), and whether it
/// may wait for others.
pub(crate) fn steps(calendar: &Calendar) -> Vec<(u64, bool)> {
    let works = DEPTH * busy_ns(calendar) + SLACK_NS;
    vec![(0, true), (works, false), (PREPARE_NS, false)]
}

/// Where the device exchanges tokens with the others, in the epoch's memory. Where transfers have checksums, the worker
/// looks at all of them, and does it all.
fn exchange(plan: &Plan, epoch: &EpochMemory) -> Exchange {
    // SAFETY: all of it lies in the epoch's memory, zeroed at first, which `Others` keeps alive; whoever touches it
    // keeps to the protocol of rings.
    let region = |(first, bytes)| unsafe { HostRegion::new(first, bytes) };
    let regions = plan.calendars.iter();
    let regions = regions.map(|c| {
        (
            c.device,
            region((epoch.exchange(c.device), c.exchange_bytes)),
        )
    });
    let exchange = Exchange::new(regions.collect()).within(region(epoch.exchange_pages()));
    if !epoch.sums.is_empty() {
        return exchange;
    }
    let counters = epoch.rings.iter().map(|ring| ring.counters());
    exchange.by_device(
        counters
            .map(|c| c.map(|counter| region((counter.cast(), 8))))
            .collect(),
    )
}

/// Planned time of all slots of a period.
fn busy_ns(calendar: &Calendar) -> u64 {
    fn of(entries: &[Entry]) -> u64 {
        let one = |entry: &Entry| match entry {
            Entry::Slot(Slot { duration_ns, .. }) => *duration_ns,
            Entry::Loop { count, body } => count.saturating_mul(of(body)),
        };
        entries.iter().map(one).fold(0, u64::saturating_add)
    }
    calendar
        .lanes
        .iter()
        .map(|lane| of(&lane.entries))
        .fold(0, u64::saturating_add)
}

/// A GPU with its calendar of an epoch, ready to run.
pub(crate) struct Gpu {
    // First: it is given back before its device is.
    replay: Box<dyn Replay>,
    lent: Lent,
    others: Others,
    /// The tokens at the border where the epoch begins, then where it ends.
    state: State,
    sample: Sample,
}

/// What a worker lends to its GPU while it runs.
pub(crate) struct Drive<'a> {
    pub epoch: &'a EpochMemory,
    pub gate: &'a mut Gate,
    pub spin: Spin,
    pub recorder: Option<Recorder>,
}

impl Gpu {
    /// Makes a device ready: takes memory there, compiles kernels, records commands, loads the state of the border at
    /// which the epoch begins.
    ///
    /// # Errors
    /// A device that is not there, cannot do what the plan asks of it, or failed.
    pub(crate) fn new(
        engine: &Inner,
        plan: &Plan,
        calendar: usize,
        which: &Device,
        epoch: &Arc<EpochMemory>,
        gpus: &Arc<Gpus>,
    ) -> Result<Box<Self>, DeviceFault> {
        let post = &epoch.posts[calendar];
        post.pc.store(PREPARES, Ordering::Relaxed);
        post.thread.store(thread_number(), Ordering::Release);
        let program: &Program = &engine.program;
        let own = &plan.calendars[calendar];
        let mut lent = gpus.lend(which)?;
        let exchange = exchange(plan, epoch);
        let registry = &engine.registry;
        let wrong = |fault| DeviceFault {
            device: which.name.clone(),
            fault,
        };
        let device = lent.device().clone();
        let made = device.replay(registry, program, plan, own, &exchange, &mut lent.kept);
        let mut replay = made.map_err(wrong)?;
        let graph = &program.graph;
        let channels = border::read_area(epoch, graph, Area::Start);
        let state = State {
            channels,
            ..State::initial(graph)
        };
        replay.load_state(&state).map_err(wrong)?;
        if let Some(borders) = epoch.borders() {
            let keepers = border::keepers(graph, plan);
            replay
                .save_borders(borders.every(), &keepers)
                .map_err(wrong)?;
        }
        lent.keep_kernels();
        let others = Others::new(graph, plan, calendar, epoch);
        Ok(Box::new(Self {
            replay,
            lent,
            others,
            state,
            sample: Sample::default(),
        }))
    }

    /// Runs all periods; the number of blocks.
    pub(crate) fn run(
        &mut self,
        drive: Drive<'_>,
        sample_every: u64,
        periods: &mut Periods,
        period: &mut u64,
    ) -> Result<u64, Halt> {
        let Drive {
            epoch,
            gate,
            spin,
            recorder,
        } = drive;
        self.others.begin(spin, sample_every, recorder);
        let done = self.periods(epoch, gate, spin, periods, period);
        let by_device = self.replay.summary().transport == Transport::Device;
        if by_device && done.is_err() && epoch.common.stop.is_set() {
            // Only now: before the stop, what is let go would count. A fault meanwhile marks the device as lost.
            self.others.see_off();
            let _ = self.replay.release_waits();
        }
        let blocks = done?;
        self.sample = self.others.sample();
        let name = self.lent.name().to_owned();
        let wrong = |fault| {
            Halt::Device(DeviceFault {
                device: name.clone(),
                fault,
            })
        };
        self.replay
            .save_state(blocks, &mut self.state)
            .map_err(wrong)?;
        self.others.export(&self.state);
        if let Some(text) = self.lent.complaints() {
            return Err(wrong(Fault {
                kind: FaultKind::Failed,
                text,
            }));
        }
        Ok(blocks)
    }

    fn periods(
        &mut self,
        epoch: &EpochMemory,
        gate: &mut Gate,
        spin: Spin,
        measured: &mut Periods,
        period: &mut u64,
    ) -> Result<u64, Halt> {
        let (clock, common) = (Clock, &epoch.common);
        let mut blocks = None;
        loop {
            if blocks.is_none() && !self.admit(*period, gate, epoch, spin)? {
                blocks = Some(*period);
            }
            if *period == 0 {
                measured.first_ns = clock.now_ns();
            }
            if blocks.is_some_and(|n| *period + 1 >= n + self.others.stages) {
                break;
            }
            if common.stop.is_set() {
                return Err(Halt::Stopped);
            }
            self.others.submits(*period, &clock);
            let mut peers = self.others.with(gate);
            let stepped = self.replay.step(*period, blocks, &mut peers);
            self.others.outcome(self.lent.name(), stepped)?;
            *period += 1;
        }
        let mut peers = self.others.with(gate);
        let drained = self.replay.drain(&mut peers);
        self.others.outcome(self.lent.name(), drained)?;
        measured.last_ns = clock.now_ns();
        Ok(blocks.unwrap_or(0))
    }

    /// Waits until it is known whether `block` starts; what is in flight is ended before it waits for others.
    fn admit(
        &mut self,
        block: u64,
        gate: &mut Gate,
        epoch: &EpochMemory,
        spin: Spin,
    ) -> Result<bool, Halt> {
        let common = &epoch.common;
        loop {
            if let Some(verdict) = gate.look(block, &common.tickets) {
                return Ok(verdict);
            }
            let mut peers = self.others.with(gate);
            let settled = self.replay.end_next(&mut peers);
            if !self.others.outcome(self.lent.name(), settled)? {
                break;
            }
        }
        self.others.waits();
        Ok(gate.admit(block, &common.tickets, spin, &common.stop)?)
    }

    /// What was measured: the whole calendar as one slot, for the host sees no others.
    pub(crate) fn report(
        &self,
        program: &Program,
        plan: &Plan,
        calendar: &Calendar,
    ) -> WorkerReport {
        let sample = self.sample;
        let mean_ns = sample.sum_ns as f64 / sample.count.max(1) as f64;
        let slot = SlotReport {
            slot: "the calendar, submission to end".to_owned(),
            planned_ns: busy_ns(calendar),
            mean_ns,
            min_ns: sample.min_ns,
            max_ns: sample.max_ns,
            samples: sample.count,
            ..SlotReport::default()
        };
        let device = |id: DeviceId| program.machine.devices[id].name.clone();
        let waits = self.others.waits_of_rings().map(|(ring, waits)| {
            let r = &plan.rings[ring];
            let ring = format!("{} {} -> {}", r.channel, device(r.from), device(r.to));
            WaitReport { ring, waits }
        });
        WorkerReport {
            device: device(calendar.device),
            pinned: false,
            slots: vec![slot],
            waits: waits.collect(),
            notes: self.replay.notes().to_vec(),
        }
    }

    /// Memory taken on the device and for staging.
    pub(crate) fn bytes(&self) -> u64 {
        self.replay.summary().bytes
    }
}
