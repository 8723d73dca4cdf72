//! Where everything is in the memory that is shared. Whoever maps an epoch's memory works out the same [`EpochLayout`] from
//! the same [`EpochSpec`].

use std::collections::BTreeSet;
use std::ops::Range;

use crossbeam_utils::CachePadded;
use zbmd_ir::{ChannelId, DeviceId, Graph, Plan, TiVec};

use super::admission_times::{AdmissionTime, REMEMBERED_BLOCKS};
use super::arena::Arena;
use super::change_queue::ChangeQueue;
use super::checksum::sums_of;
use super::conduit::{Conduit, ConduitPlace};
use super::epoch_spec::EpochSpec;
use super::epoch_state::{EpochCommon, WorkerStatus};
use super::primitive::AtomicU64;
use super::probe_ring::ProbePlace;
use super::ring::RingSync;
use super::trace_ring::{TraceRing, ring_words};

/// Alignment of everything in shared memory.
const ALIGN: u64 = 128;

/// Hands out places one after another, aligned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LayoutCursor {
    /// The end of what was handed out; the largest number where that cannot be had.
    pub(super) end_offset: u64,
}

impl LayoutCursor {
    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        let offset = self.end_offset;
        self.end_offset = offset
            .saturating_add(bytes)
            .checked_next_multiple_of(ALIGN)
            .unwrap_or(u64::MAX);
        offset
    }

    /// A place for so many values of a type.
    fn take_row<T>(&mut self, count: usize) -> u64 {
        self.take(size_of::<T>() as u64 * count as u64)
    }

    /// A place for a queue.
    pub(super) fn take_queue(&mut self, capacity: u64, token_bytes: u64) -> ConduitPlace {
        ConduitPlace {
            ends_offset: self.take(Conduit::ENDS_BYTES),
            data_offset: self.take(capacity.saturating_mul(token_bytes)),
        }
    }
}

/// Where the trace of a worker is.
#[derive(Clone, Copy, Debug)]
pub(super) struct TracePlace {
    pub(super) ends_offset: u64,
    pub(super) words_offset: u64,
    pub(super) words: u64,
}

/// Where the tokens of a channel are in an area.
#[derive(Clone, Copy, Debug)]
pub(super) struct SavedPlace {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Where everything is in an epoch's memory.
#[derive(Clone, Debug)]
pub(super) struct EpochLayout {
    pub(super) common: u64,
    pub(super) statuses: u64,
    pub(super) rings: u64,
    pub(super) sums: u64,
    /// Checksums that are kept.
    pub(super) sum_count: usize,
    pub(super) admission_times: u64,
    /// Calendars of devices that have sources: there is a row of admission times for each.
    pub(super) admitting: Vec<usize>,
    pub(super) changes: u64,
    pub(super) sinks: Vec<ConduitPlace>,
    /// The trace of each calendar; none if nothing is recorded.
    pub(super) traces: Vec<TracePlace>,
    /// Exchange region of each calendar's device.
    pub(super) exchange: Vec<(DeviceId, u64)>,
    pub(super) exchange_end: u64,
    pub(super) areas: u64,
    pub(super) area_bytes: u64,
    /// In each area, the tokens of each channel.
    pub(super) channels: TiVec<ChannelId, SavedPlace>,
    /// The end of what runs use whether anybody looks into them or not.
    pub(super) used_end: u64,
    /// Copies for whoever looks: not present before somebody does.
    pub(super) probe: ProbePlace,
    pub(super) bytes: u64,
}

/// Areas besides those of borders: the tokens that the epoch begins with, and those that it ends with.
pub(super) const EXTRA_AREAS: u64 = 2;

impl EpochLayout {
    pub(super) fn new(graph: &Graph, plan: &Plan, spec: &EpochSpec) -> Self {
        let worker_count = plan.calendars.len();
        let sum_count = match spec.checksums {
            true => sums_of(plan).total,
            false => 0,
        };

        let mut cursor = LayoutCursor::default();
        let common = cursor.take_row::<EpochCommon>(1);
        let statuses = cursor.take_row::<CachePadded<WorkerStatus>>(worker_count);
        let sums = cursor.take_row::<AtomicU64>(sum_count);
        let admitting = calendars_with_sources(graph, plan);
        let admission_times = cursor.take_row::<AdmissionTime>(admitting.len() * REMEMBERED_BLOCKS);
        let change_words = match spec.live {
            Some(_) => ChangeQueue::words(graph),
            None => 0,
        };
        let changes = cursor.take_row::<AtomicU64>(change_words);
        let rings = cursor.take_row::<RingSync>(plan.rings.len());

        // Beside the rings: drivers register both at once.
        let plan_calendars = plan.calendars.iter();
        let exchange = plan_calendars
            .map(|calendar| (calendar.device, cursor.take(calendar.exchange_bytes)))
            .collect();
        let exchange_end = cursor.end_offset;

        let sink_specs = spec.sinks.iter();
        let sinks = sink_specs
            .map(|sink| cursor.take_queue(sink.capacity, sink.token_bytes))
            .collect();
        let traced_count = if spec.trace.is_some() {
            worker_count
        } else {
            0
        };
        let traces = (0..traced_count)
            .map(|calendar| take_trace(&mut cursor, plan, calendar))
            .collect();

        let mut area_cursor = LayoutCursor::default();
        // All areas have the same layout.
        let saved_places = graph.channels.iter().map(|channel| {
            let bytes = channel.history() * channel.token.bytes();
            let offset = area_cursor.take(bytes);
            SavedPlace { offset, bytes }
        });
        let channels = saved_places.collect();
        let area_bytes = area_cursor.end_offset;
        let borders = spec.borders(plan);
        let area_count = EXTRA_AREAS + borders.map_or(0, |borders| borders.areas());
        let areas = cursor.take(area_bytes.saturating_mul(area_count));
        let used_end = cursor.end_offset;
        let probe = ProbePlace::new(graph, plan, |bytes| cursor.take(bytes));

        Self {
            common,
            statuses,
            rings,
            sums,
            sum_count,
            admission_times,
            admitting,
            changes,
            sinks,
            traces,
            exchange,
            exchange_end,
            areas,
            area_bytes,
            channels,
            used_end,
            probe,
            bytes: cursor.end_offset,
        }
    }

    /// What may be read before it is written, and is zero then: all but the tokens in sink
    /// queues, traces, and copies for whoever looks.
    pub(super) fn read_before_written(&self) -> [Range<u64>; 2] {
        [0..self.exchange_end, self.areas..self.used_end]
    }
}

/// Ascending.
fn calendars_with_sources(graph: &Graph, plan: &Plan) -> Vec<usize> {
    let sources = graph.sources();
    let devices: BTreeSet<DeviceId> = sources.map(|(id, _)| plan.placement[id]).collect();
    let calendars = plan.calendars.iter().enumerate();
    calendars
        .filter(|(_, calendar)| devices.contains(&calendar.device))
        .map(|(index, _)| index)
        .collect()
}

fn take_trace(cursor: &mut LayoutCursor, plan: &Plan, calendar: usize) -> TracePlace {
    let trace_words = ring_words(plan, calendar);
    TracePlace {
        ends_offset: cursor.take(TraceRing::ENDS_BYTES),
        words_offset: cursor.take(8 * trace_words),
        words: trace_words,
    }
}

/// Checks the size of memory that another process has laid out.
///
/// # Errors
/// It has fewer bytes than are laid out in it.
pub(super) fn check_size(arena: &Arena, needed_bytes: u64) -> std::io::Result<()> {
    let found_bytes = arena.bytes() as u64;
    if found_bytes < needed_bytes {
        return Err(std::io::Error::other(format!(
            "the shared memory has {found_bytes} bytes, {needed_bytes} are laid out in it"
        )));
    }
    Ok(())
}
