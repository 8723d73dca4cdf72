//! Where everything lies in the memory that is shared. Whoever maps an epoch's memory works out the same [`Layout`] from
//! the same [`EpochSpec`].

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use zbmd_ir::{ChannelId, DeviceId, Graph, Plan, TiVec};

use super::admission_times::{AdmissionTime, REMEMBERED_BLOCKS};
use super::arena::Arena;
use super::checksum::sums_of;
use super::conduit::Conduit;
use super::epoch_spec::EpochSpec;
use super::epoch_state::{EpochCommon, WorkerStatus};
use super::ring::RingSync;
use super::trace_ring;

/// Alignment of everything that lies in shared memory.
const ALIGN: u64 = 128;

/// Gives out places in a row, aligned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor(pub(super) u64);

impl Cursor {
    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        let at = self.0;
        self.0 = at
            .saturating_add(bytes)
            .checked_next_multiple_of(ALIGN)
            .unwrap_or(u64::MAX);
        at
    }
}

/// Where everything lies in an epoch's memory.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) common: u64,
    pub(super) statuses: u64,
    pub(super) rings: u64,
    pub(super) sums: u64,
    pub(super) admission_times: u64,
    pub(super) sinks: Vec<(u64, u64)>,
    /// The trace of each calendar: its ends, its words, and how many these are.
    pub(super) traces: Vec<((u64, u64), u64)>,
    /// Exchange region of each calendar's device.
    pub(super) exchange: Vec<(DeviceId, u64)>,
    pub(super) exchange_end: u64,
    pub(super) areas: u64,
    pub(super) area_bytes: u64,
    /// Offset in an area, and bytes, of each channel's tokens.
    pub(super) channels: TiVec<ChannelId, (u64, u64)>,
    pub(super) bytes: u64,
}

/// Areas besides those of borders: the tokens that the epoch begins with, and those that it ends with.
pub(super) const EXTRA_AREAS: u64 = 2;

impl Layout {
    pub(super) fn new(graph: &Graph, plan: &Plan, spec: &EpochSpec) -> Self {
        let mut cursor = Cursor::default();
        let mut row = |size: usize, count: usize| cursor.take(size as u64 * count as u64);
        let common = row(size_of::<EpochCommon>(), 1);
        let statuses = row(size_of::<CachePadded<WorkerStatus>>(), plan.calendars.len());
        let sums = if spec.checksums {
            row(8, sums_of(plan).total)
        } else {
            0
        };
        let admission_times = row(
            size_of::<AdmissionTime>(),
            plan.calendars.len() * REMEMBERED_BLOCKS,
        );
        let rings = row(size_of::<RingSync>(), plan.rings.len());
        // Beside the rings: drivers are told of both at once.
        let exchange = plan
            .calendars
            .iter()
            .map(|c| (c.device, cursor.take(c.exchange_bytes)));
        let exchange = exchange.collect();
        let exchange_end = cursor.0;
        let sinks = spec.sinks.iter().map(|sink| {
            let ends = cursor.take(Conduit::ENDS_BYTES);
            (
                ends,
                cursor.take(sink.capacity.saturating_mul(sink.token_bytes)),
            )
        });
        let sinks = sinks.collect();
        let traced = if spec.trace.is_some() {
            plan.calendars.len()
        } else {
            0
        };
        let traces = (0..traced).map(|calendar| {
            let words = trace_ring::ring_words(plan, calendar);
            (
                (
                    cursor.take(trace_ring::TraceRing::ENDS_BYTES),
                    cursor.take(8 * words),
                ),
                words,
            )
        });
        let traces = traces.collect();
        let mut area = Cursor::default();
        let channels = graph.channels.iter().map(|channel| {
            let bytes = channel.history() * channel.token.bytes();
            (area.take(bytes), bytes)
        });
        let channels = channels.collect();
        let count = EXTRA_AREAS + spec.borders(plan).map_or(0, |b| b.areas());
        let areas = cursor.take(area.0.saturating_mul(count));
        let (area_bytes, bytes) = (area.0, cursor.0);
        Self {
            common,
            statuses,
            rings,
            sums,
            admission_times,
            sinks,
            traces,
            exchange,
            exchange_end,
            areas,
            area_bytes,
            channels,
            bytes,
        }
    }
}

/// The memory in a file that another process has laid out.
pub(super) fn map_arena(fd: OwnedFd, cursor: Cursor) -> std::io::Result<Arc<Arena>> {
    let arena = Arena::map(fd)?;
    if (arena.bytes() as u64) < cursor.0 {
        let (found, needed) = (arena.bytes(), cursor.0);
        let text = format!("the shared memory has {found} bytes, {needed} are laid out in it");
        return Err(std::io::Error::other(text));
    }
    Ok(Arc::new(arena))
}
