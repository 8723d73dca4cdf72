//! The memory of an epoch. It holds everything that the epoch's workers write: counters, rings and exchange regions, sink
//! queues, and the tokens saved at borders. The next epoch has memory of its own, so a worker that wakes up late can
//! write nothing that counts: fresh, or that of an earlier epoch that all of its workers have ended.
//!
//! Knows no kernels and no threads.

#[cfg(hosts)]
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use zbmd_ir::{ChannelId, DeviceId, Graph, Plan};

use super::admission_times::{AdmissionTime, AdmissionTimes, REMEMBERED_BLOCKS};
use super::arena::{Arena, In, OutOfMemory};
use super::change_queue::ChangeQueue;
use super::conduit::Conduit;
use super::epoch_spec::EpochSpec;
use super::epoch_state::{EpochCommon, WorkerStatus};
use super::layout::{EXTRA_AREAS, EpochLayout, check_size};
use super::ledger::Borders;
use super::primitive::{AtomicU64, Ordering, fence};
use super::probe_ring::ProbeRing;
use super::ring::RingSync;
use super::trace_ring::{TraceRecorder, TraceRing};

/// Drivers register whole pages of this size.
const PAGE_BYTES: u64 = 4096;

/// One of the areas that hold the tokens on channels at a border.
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
    layout: EpochLayout,
    borders: Option<Borders>,
    pub common: In<EpochCommon>,
    pub statuses: In<[CachePadded<WorkerStatus>]>,
    pub rings: In<[RingSync]>,
    pub sums: In<[AtomicU64]>,
    admission_times: In<[AdmissionTime]>,
    /// Of a program with live parameters.
    pub changes: Option<ChangeQueue>,
    pub sinks: Vec<Arc<Conduit>>,
    traces: Vec<TraceRing>,
    /// Copies for whoever looks into the run.
    pub probe: ProbeRing,
    /// Becomes readable when the epoch is stopped, for workers of this process that wait for sockets.
    #[cfg(hosts)]
    stop_event: std::sync::OnceLock<OwnedFd>,
}

impl EpochMemory {
    /// Takes the memory, and puts everything in it into its first state. With `spare`, the memory of an earlier epoch that
    /// nobody uses any more, it takes that if it is large enough: fresh pages cost the system more than zeroed ones.
    ///
    /// # Errors
    /// Too little memory.
    pub(crate) fn create(
        graph: &Graph,
        plan: &Plan,
        spec: &EpochSpec,
        spare: Option<Arena>,
    ) -> Result<Self, OutOfMemory> {
        let layout = EpochLayout::new(graph, plan, spec);
        // One mapping for all of an epoch, which worker processes map too: nothing is allocated while it runs.
        let arena = match spare.filter(|spare| spare.bytes() as u64 >= layout.bytes) {
            Some(mut spare) => {
                for bytes in layout.read_before_written() {
                    spare.clear(bytes);
                }
                spare
            }
            None => Arena::shared(layout.bytes)?,
        };
        let arena = Arc::new(arena);
        let worker_count = plan.calendars.len();
        let remembered_blocks = layout.admitting.len() * REMEMBERED_BLOCKS;

        let sink_queues = layout.sinks.iter().zip(&spec.sinks).map(|(&place, sink)| {
            // Queues of sinks belong to the epoch: what a fenced one wrote beyond its border goes away with it.
            let queue = Conduit::create(&arena, place, sink.capacity, sink.token_bytes, None);
            Arc::new(queue)
        });
        let sinks = sink_queues.collect();
        let trace_rings = layout.traces.iter().map(|place| {
            let offsets = (place.ends_offset, place.words_offset);
            // A ring for each worker, so that recording a slot takes no lock.
            TraceRing::create(&arena, offsets, place.words)
        });
        let traces = trace_rings.collect();

        Ok(Self {
            borders: spec.borders(plan),
            common: In::create(&arena, layout.common, 1, EpochCommon::new).one(0),
            statuses: In::create(&arena, layout.statuses, worker_count, WorkerStatus::new),
            rings: In::create(&arena, layout.rings, plan.rings.len(), RingSync::new),
            sums: In::create(&arena, layout.sums, layout.sum_count, || AtomicU64::new(0)),
            admission_times: In::create(
                &arena,
                layout.admission_times,
                remembered_blocks,
                AdmissionTime::new,
            ),
            changes: (spec.live.as_ref())
                .and_then(|_| ChangeQueue::create(&arena, layout.changes, graph)),
            sinks,
            traces,
            probe: ProbeRing::create(&arena, layout.probe),
            #[cfg(hosts)]
            stop_event: std::sync::OnceLock::new(),
            arena,
            layout,
        })
    }

    /// An epoch's memory as another process has created it.
    ///
    /// # Errors
    /// The arena is too small.
    ///
    /// # Safety
    /// The arena is the memory that [`Self::create`] of this very program made for the same graph, plan and spec.
    #[expect(
        unsafe_code,
        reason = "believes what another process says is in shared memory"
    )]
    pub(crate) unsafe fn find(
        arena: Arc<Arena>,
        graph: &Graph,
        plan: &Plan,
        spec: &EpochSpec,
    ) -> std::io::Result<Self> {
        let layout = EpochLayout::new(graph, plan, spec);
        check_size(&arena, layout.bytes)?;
        let worker_count = plan.calendars.len();
        let remembered_blocks = layout.admitting.len() * REMEMBERED_BLOCKS;

        let sink_queues = layout.sinks.iter().zip(&spec.sinks).map(|(&place, sink)| {
            // SAFETY: the caller's promise.
            let queue =
                unsafe { Conduit::find(&arena, place, sink.capacity, sink.token_bytes, None) };
            Arc::new(queue)
        });
        let sinks = sink_queues.collect();
        let trace_rings = layout.traces.iter().map(|place| {
            let offsets = (place.ends_offset, place.words_offset);
            // SAFETY: the caller's promise.
            unsafe { TraceRing::find(&arena, offsets, place.words) }
        });
        let traces = trace_rings.collect();

        // SAFETY: the caller's promise, for all of these.
        unsafe {
            Ok(Self {
                borders: spec.borders(plan),
                common: In::find(&arena, layout.common, 1).one(0),
                statuses: In::find(&arena, layout.statuses, worker_count),
                rings: In::find(&arena, layout.rings, plan.rings.len()),
                sums: In::find(&arena, layout.sums, layout.sum_count),
                admission_times: In::find(&arena, layout.admission_times, remembered_blocks),
                changes: (spec.live.as_ref())
                    .and_then(|_| ChangeQueue::find(&arena, layout.changes, graph)),
                sinks,
                traces,
                probe: ProbeRing::find(&arena, layout.probe),
                #[cfg(hosts)]
                stop_event: std::sync::OnceLock::new(),
                arena,
                layout,
            })
        }
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Has what devices are sent come to be on the nodes of the computer's memory that are near them, as far as pages are one device's
    /// alone; nodes by calendar.
    pub(crate) fn prefer_nodes(&self, plan: &Plan, nodes: impl Iterator<Item = Option<u32>>) {
        let regions = plan.calendars.iter().zip(&self.layout.exchange);
        for ((calendar, (_, offset)), node) in regions.zip(nodes) {
            if let Some(node) = node {
                let region = *offset..offset + calendar.exchange_bytes;
                self.arena.prefer_node(region, node);
            }
        }
    }

    /// Makes the pages present that every run uses; see [`Arena::make_present`].
    pub(crate) fn make_present(&self, lock: bool) {
        self.arena.make_present(0..self.layout.used_end, lock);
    }

    /// Makes the pages present that copies go to, before a worker meets them.
    pub(crate) fn make_probe_present(&self) {
        let pages = self.layout.used_end..self.layout.bytes;
        self.arena.make_present(pages, false);
    }

    pub(crate) fn borders(&self) -> Option<Borders> {
        self.borders
    }

    /// When blocks were admitted by the worker of a calendar whose device has sources.
    ///
    /// # Panics
    /// It has none.
    pub(crate) fn admission_times(&self, calendar: usize) -> AdmissionTimes {
        let row = self.layout.admitting.binary_search(&calendar);
        let row = row.expect("its device has sources");
        AdmissionTimes::new(self.admission_times.clone(), row * REMEMBERED_BLOCKS)
    }

    /// The rings that workers record into, by calendar; none if nothing is recorded.
    pub(crate) fn rings_of_trace(&self) -> impl Iterator<Item = TraceRing> {
        self.traces.iter().cloned()
    }

    /// What the worker of a calendar records with, if it does: periods of so many words, or whole ones.
    pub(crate) fn recorder(
        &self,
        spec: &EpochSpec,
        calendar: usize,
        words: Option<u64>,
    ) -> Option<TraceRecorder> {
        let ring = self.traces.get(calendar)?.clone();
        Some(TraceRecorder::new(ring, spec.trace?, words))
    }

    /// First byte of a device's exchange region.
    ///
    /// # Panics
    /// If the plan has no calendar for the device.
    pub(crate) fn exchange(&self, device: DeviceId) -> *mut u8 {
        let mut exchange_regions = self.layout.exchange.iter();
        let device_region = exchange_regions.find(|(owner, _)| *owner == device);
        let (_, offset) =
            device_region.expect("a verified plan has a calendar for every device it uses");
        self.arena.base().wrapping_add(*offset as usize)
    }

    /// The whole pages in which the rings' counters and all exchange regions are, and not much else.
    pub(crate) fn exchange_pages(&self) -> (*mut u8, u64) {
        let first_page = self.layout.rings / PAGE_BYTES * PAGE_BYTES;
        let end_page = self.layout.exchange_end.next_multiple_of(PAGE_BYTES);
        let end_offset = end_page.min(self.arena.bytes() as u64);

        let first_byte = self.arena.base().wrapping_add(first_page as usize);
        (first_byte, end_offset - first_page)
    }

    /// First byte and bytes of a channel's tokens in an area.
    pub(crate) fn saved(&self, area: Area, channel: ChannelId) -> (*mut u8, usize) {
        let area_index = match area {
            Area::Start | Area::Border(0) => 0,
            Area::End => 1,
            Area::Border(border) => {
                EXTRA_AREAS + self.borders.map_or(0, |borders| borders.area(border))
            }
        };

        let channel_place = self.layout.channels[channel];
        let area_offset = self.layout.areas + area_index * self.layout.area_bytes;
        let channel_offset = (area_offset + channel_place.offset) as usize;
        (
            self.arena.base().wrapping_add(channel_offset),
            channel_place.bytes as usize,
        )
    }

    /// The last border that all workers have passed, by what they have published.
    pub(crate) fn passed(&self) -> u64 {
        let periods = self
            .statuses
            .iter()
            .map(|status| status.periods.load(Ordering::Acquire));
        self.borders.map_or(0, |borders| borders.committed(periods))
    }

    /// The last committed border, whose area is kept from being written until [`Self::release_held`].
    pub(crate) fn hold(&self) -> u64 {
        loop {
            let border = self.common.committed.border();
            self.common.held.store(border, Ordering::Relaxed);
            // Partner: the fence in `border::wait_for_area`. As long as no later border is committed, nobody may write
            // this area; and whoever sees a later one committed sees that this one is held.
            fence(Ordering::SeqCst);
            if self.common.committed.border() == border {
                return border;
            }
        }
    }

    /// Releases the area that was held.
    pub(crate) fn release_held(&self) {
        self.common.held.store(0, Ordering::Release);
        self.common.commits.notify();
    }

    /// Something that becomes readable, and stays so, when this process stops the epoch.
    ///
    /// # Errors
    /// The system has no descriptors.
    #[cfg(hosts)]
    pub(crate) fn stop_event(&self) -> std::io::Result<OwnedFd> {
        use rustix::event::{EventfdFlags, eventfd};
        if self.stop_event.get().is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            // Another worker may have been first.
            let _ = self.stop_event.set(eventfd(0, flags)?);
        }
        let Some(event) = self.stop_event.get() else {
            return Err(std::io::ErrorKind::NotFound.into());
        };
        // A stop that came before there was an event.
        if self.common.stop.is_set() {
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
        event.try_clone()
    }

    /// Has waits for sockets end by what [`Self::stop_event`] is in the process that stops the epoch.
    #[cfg(hosts)]
    pub(crate) fn set_stop_event(&self, event: OwnedFd) {
        // There is one already if somebody waits: nobody does before a worker begins.
        let _ = self.stop_event.set(event);
    }

    /// Ends every wait of the epoch's workers.
    ///
    /// Before anybody can see the stop, nothing more counts: a closed queue, and a sealed border, refuse what comes later
    /// as a whole. For a GPU that is released (see `zbmd_hal`) computes with tokens that are not there, and
    /// writes over others that are still read.
    pub(crate) fn stop(&self) {
        for sink in &self.sinks {
            sink.close();
        }
        self.common.committed.seal();
        self.common.stop.set();

        #[cfg(hosts)]
        if let Some(event) = self.stop_event.get() {
            // It is set already if the count is at its maximum.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
        self.common.commits.notify();
        self.rings.iter().for_each(RingSync::wake);
        for sink in &self.sinks {
            sink.wake();
        }
    }
}
