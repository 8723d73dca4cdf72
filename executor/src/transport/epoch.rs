//! The memory of an epoch. It holds everything that the epoch's workers write: counters, rings and exchange regions, sink
//! queues, and the tokens saved at borders. The next epoch has memory of its own, so a worker that wakes up late can
//! write nothing that counts.
//!
//! Knows no kernels and no threads.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use zbmd_ir::{ChannelId, DeviceId, Graph, Plan};

use super::admission_times::{AdmissionTime, AdmissionTimes, REMEMBERED_BLOCKS};
use super::arena::{Arena, In, OutOfMemory};
use super::checksum::sums_of;
use super::conduit::Conduit;
use super::epoch_spec::EpochSpec;
use super::epoch_state::{EpochCommon, WorkerStatus};
use super::layout::{Cursor, EXTRA_AREAS, Layout, map_arena};
use super::ledger::Borders;
use super::primitive::{AtomicU64, Ordering, fence};
use super::ring::RingSync;
use super::trace_ring;

/// What drivers are told of is whole pages of this size.
const PAGE: u64 = 4096;

/// One of the areas that hold the tokens lying on channels at a border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    /// Before the epoch's first block.
    Start,
    /// After its last block.
    End,
    /// At a saved border.
    Border(u64),
}

/// The memory of one epoch.
pub(crate) struct EpochMemory {
    arena: Arc<Arena>,
    layout: Layout,
    borders: Option<Borders>,
    pub common: In<EpochCommon>,
    pub statuses: In<[CachePadded<WorkerStatus>]>,
    pub rings: In<[RingSync]>,
    pub sums: In<[AtomicU64]>,
    admission_times: In<[AdmissionTime]>,
    pub sinks: Vec<Arc<Conduit>>,
    traces: Vec<trace_ring::TraceRing>,
}

impl EpochMemory {
    pub(crate) fn create(
        graph: &Graph,
        plan: &Plan,
        spec: &EpochSpec,
        lock: bool,
    ) -> Result<Self, OutOfMemory> {
        let layout = Layout::new(graph, plan, spec);
        let arena = Arc::new(Arena::shared(layout.bytes, lock)?);
        let workers = plan.calendars.len();
        let sums = if spec.checksums {
            sums_of(plan).total
        } else {
            0
        };
        let common = In::create(&arena, layout.common, 1, EpochCommon::new).one(0);
        let statuses = In::create(&arena, layout.statuses, workers, WorkerStatus::new);
        let rings = In::create(&arena, layout.rings, plan.rings.len(), RingSync::new);
        let sums = In::create(&arena, layout.sums, sums, || AtomicU64::new(0));
        let admission_times = In::create(
            &arena,
            layout.admission_times,
            workers * REMEMBERED_BLOCKS,
            AdmissionTime::new,
        );
        let sinks = layout.sinks.iter().zip(&spec.sinks).map(|(&place, sink)| {
            Arc::new(Conduit::create(
                &arena,
                place,
                sink.capacity,
                sink.token_bytes,
                None,
            ))
        });
        let sinks = sinks.collect();
        let traces = layout.traces.iter();
        let traces =
            traces.map(|&(place, words)| trace_ring::TraceRing::create(&arena, place, words));
        let traces = traces.collect();
        let borders = spec.borders(plan);
        Ok(Self {
            arena,
            layout,
            borders,
            common,
            statuses,
            rings,
            sums,
            admission_times,
            sinks,
            traces,
        })
    }

    /// An epoch's memory as another process has created it.
    ///
    /// # Safety
    /// The file holds the memory that [`Self::create`] of this very program made for the same graph, plan and spec.
    #[expect(
        unsafe_code,
        reason = "believes what another process says lies in shared memory"
    )]
    pub(crate) unsafe fn find(
        fd: OwnedFd,
        graph: &Graph,
        plan: &Plan,
        spec: &EpochSpec,
    ) -> std::io::Result<Self> {
        let layout = Layout::new(graph, plan, spec);
        let arena = map_arena(fd, Cursor(layout.bytes))?;
        let workers = plan.calendars.len();
        let sums = if spec.checksums {
            sums_of(plan).total
        } else {
            0
        };
        // SAFETY: the caller's promise, for all of these.
        let (common, statuses, rings, sums, admission_times) = unsafe {
            (
                In::find(&arena, layout.common, 1).one(0),
                In::find(&arena, layout.statuses, workers),
                In::find(&arena, layout.rings, plan.rings.len()),
                In::find(&arena, layout.sums, sums),
                In::find(&arena, layout.admission_times, workers * REMEMBERED_BLOCKS),
            )
        };
        let sinks = layout.sinks.iter().zip(&spec.sinks).map(|(&place, sink)| {
            // SAFETY: the caller's promise.
            Arc::new(unsafe { Conduit::find(&arena, place, sink.capacity, sink.token_bytes, None) })
        });
        let sinks = sinks.collect();
        let traces = layout.traces.iter().map(|&(place, words)| {
            // SAFETY: the caller's promise.
            unsafe { trace_ring::TraceRing::find(&arena, place, words) }
        });
        let traces = traces.collect();
        let borders = spec.borders(plan);
        Ok(Self {
            arena,
            layout,
            borders,
            common,
            statuses,
            rings,
            sums,
            admission_times,
            sinks,
            traces,
        })
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    pub(crate) fn borders(&self) -> Option<Borders> {
        self.borders
    }

    /// When blocks were admitted by the worker of a calendar.
    pub(crate) fn admission_times(&self, calendar: usize) -> AdmissionTimes {
        AdmissionTimes::new(self.admission_times.clone(), calendar * REMEMBERED_BLOCKS)
    }

    /// The rings that workers record into, by calendar; none if nothing is recorded.
    pub(crate) fn rings_of_trace(&self) -> impl Iterator<Item = trace_ring::TraceRing> {
        self.traces.iter().cloned()
    }

    /// What the worker of a calendar records with, if it does: periods of so many words, or whole ones.
    pub(crate) fn recorder(
        &self,
        spec: &EpochSpec,
        calendar: usize,
        words: Option<u64>,
    ) -> Option<trace_ring::TraceRecorder> {
        let ring = self.traces.get(calendar)?.clone();
        Some(trace_ring::TraceRecorder::new(ring, spec.trace?, words))
    }

    /// First byte of a device's exchange region.
    ///
    /// # Panics
    /// If the plan has no calendar for the device.
    pub(crate) fn exchange(&self, device: DeviceId) -> *mut u8 {
        let found = self.layout.exchange.iter().find(|(d, _)| *d == device);
        let (_, offset) = found.expect("a verified plan has a calendar for every device it uses");
        self.arena.base().wrapping_add(*offset as usize)
    }

    /// The whole pages in which the rings' counters and all exchange regions lie, and not much else.
    pub(crate) fn exchange_pages(&self) -> (*mut u8, u64) {
        let first = self.layout.rings / PAGE * PAGE;
        let end = self
            .layout
            .exchange_end
            .next_multiple_of(PAGE)
            .min(self.arena.bytes() as u64);
        (self.arena.base().wrapping_add(first as usize), end - first)
    }

    /// First byte and bytes of a channel's tokens in an area.
    pub(crate) fn saved(&self, area: Area, channel: ChannelId) -> (*mut u8, usize) {
        let index = match area {
            Area::Start | Area::Border(0) => 0,
            Area::End => 1,
            Area::Border(border) => EXTRA_AREAS + self.borders.map_or(0, |b| b.area(border)),
        };
        let (offset, bytes) = self.layout.channels[channel];
        let offset = self.layout.areas + index * self.layout.area_bytes + offset;
        (
            self.arena.base().wrapping_add(offset as usize),
            bytes as usize,
        )
    }

    /// The last border that all workers have passed, from what they tell.
    pub(crate) fn passed(&self) -> u64 {
        let periods = self
            .statuses
            .iter()
            .map(|p| p.periods.load(Ordering::Acquire));
        self.borders.map_or(0, |b| b.committed(periods))
    }

    /// The last committed border, whose area is kept from being written until [`Self::release_held`].
    pub(crate) fn hold(&self) -> u64 {
        loop {
            let border = self.common.committed.border();
            self.common.held.store(border, Ordering::Relaxed);
            // Partner: the fence in `replay::wait_for_area`. As long as no later border is committed, nobody may write
            // this area; and whoever sees a later one committed sees that this one is held.
            fence(Ordering::SeqCst);
            if self.common.committed.border() == border {
                return border;
            }
        }
    }

    /// Lets the area that was held go.
    pub(crate) fn release_held(&self) {
        self.common.held.store(0, Ordering::Release);
        self.common.commits.notify();
    }

    /// Ends every wait of the epoch's workers.
    ///
    /// Before anybody can see the stop, nothing more counts: a closed queue, and a sealed border, refuse what comes later
    /// as a whole. For a GPU that is let go (see `zbmd_backends::replay`) computes with tokens that are not there, and
    /// writes over others that are still read.
    pub(crate) fn stop(&self) {
        self.sinks.iter().for_each(|s| s.close());
        self.common.committed.seal();
        self.common.stop.set();
        self.common.commits.notify();
        self.rings.iter().for_each(RingSync::wake);
        self.sinks.iter().for_each(|s| s.wake());
    }
}
