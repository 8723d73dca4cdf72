//! The memory that a session and its epochs share between threads or processes, and what lies where in it.
//!
//! Two kinds. The *session's* memory holds the source queues, which keep their tokens from one epoch to the next, and
//! the doors at which workers wait for tokens. An *epoch's* memory holds everything that its workers write: counters,
//! rings and exchange regions, sink queues, and the tokens saved at borders. The next epoch has memory of its own, so a
//! worker that wakes up late can write nothing that counts (see DESIGN 8).
//!
//! Whoever maps the memory works out the same [`Layout`] from the same [`Spec`]. Knows no kernels and no threads.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use serde::{Deserialize, Serialize};
use zbmd_ir::{ChannelId, DeviceId, Graph, Plan, PlanId, RingId, TiVec};

use crate::observe::measure::{REMEMBERED, Stamp};
use crate::observe::trace::{self, Ticks};
use crate::transport::arena::{Arena, In, OutOfMemory};
use crate::transport::checksum::{self, Sends};
use crate::transport::conduit::Conduit;
use crate::transport::ledger::Borders;
use crate::transport::primitive::{AtomicU32, AtomicU64, Ordering, fence};
use crate::transport::ring::{Parker, RingSync, Stop};
use crate::worker::period_loop::Tickets;

/// Alignment of everything that lies in shared memory.
const ALIGN: u64 = 128;
/// What drivers are told of is whole pages of this size.
const PAGE: u64 = 4096;
/// Doors in a row: a worker of an old epoch shares one only with an epoch so many later.
const DOORS: usize = 64;

/// Where workers wait for the tokens of sources: one door for each epoch, so that what a dead worker left behind at
/// its door does not concern the next.
pub(crate) struct Doors {
    epoch: CachePadded<AtomicU64>,
    parkers: [CachePadded<Parker>; DOORS],
}

impl Doors {
    pub(crate) fn new() -> Self {
        Self {
            epoch: CachePadded::new(AtomicU64::new(0)),
            parkers: std::array::from_fn(|_| CachePadded::new(Parker::new())),
        }
    }

    /// The door of an epoch.
    pub(crate) fn of(&self, epoch: u64) -> &Parker {
        &self.parkers[epoch as usize % DOORS]
    }

    /// The door of the present epoch.
    pub(crate) fn present(&self) -> &Parker {
        self.of(self.epoch.load(Ordering::Acquire))
    }

    /// Makes `epoch` the one that news of tokens go to. Before its workers begin.
    pub(crate) fn open(&self, epoch: u64) {
        self.of(epoch).reset();
        self.epoch.store(epoch, Ordering::Release);
    }

    /// Wakes the workers of the present epoch. Whoever published before a worker of that epoch began has published
    /// before it looks for the first time: it cannot miss the news that went to the door before.
    pub(crate) fn notify(&self) {
        // Orders the publication before the look at `epoch`; partner: the fence in `Parker::wait_until`.
        fence(Ordering::SeqCst);
        self.present().notify();
    }
}

/// The memory that lives as long as the session.
pub(crate) struct SessionMemory {
    pub arena: Arc<Arena>,
    pub doors: In<Doors>,
    pub sources: Vec<Arc<Conduit>>,
}

/// The source queues: capacity in tokens and bytes of a token, in actor order.
pub(crate) type Queues = Vec<(u64, u64)>;

impl SessionMemory {
    fn places(queues: &Queues) -> (u64, Vec<(u64, u64)>, Cursor) {
        let mut cursor = Cursor::default();
        let doors = cursor.take(size_of::<Doors>() as u64);
        let places = queues.iter().map(|&(capacity, token_bytes)| {
            let ends = cursor.take(Conduit::ENDS_BYTES);
            (ends, cursor.take(capacity.saturating_mul(token_bytes)))
        });
        (doors, places.collect(), cursor)
    }

    /// Bytes that [`Self::create`] takes; the largest number where that cannot be had.
    pub(crate) fn bytes(queues: &Queues) -> u64 {
        Self::places(queues).2.0
    }

    pub(crate) fn create(queues: &Queues) -> Result<Self, OutOfMemory> {
        let (doors, places, cursor) = Self::places(queues);
        let arena = Arc::new(Arena::shared(cursor.0, false)?);
        let doors = In::create(&arena, doors, 1, Doors::new).one(0);
        let sources = places
            .iter()
            .zip(queues)
            .map(|(&place, &(capacity, token_bytes))| {
                let doors = Some(doors.clone());
                Arc::new(Conduit::create(&arena, place, capacity, token_bytes, doors))
            });
        Ok(Self {
            sources: sources.collect(),
            doors,
            arena,
        })
    }

    /// The session's memory as another process has created it.
    ///
    /// # Safety
    /// The file holds the memory that [`Self::create`] of this very program made for the same `queues`.
    #[expect(
        unsafe_code,
        reason = "believes what another process says lies in shared memory"
    )]
    pub(crate) unsafe fn find(fd: OwnedFd, queues: &Queues) -> std::io::Result<Self> {
        let (doors, places, cursor) = Self::places(queues);
        let arena = map(fd, cursor)?;
        // SAFETY: the caller's promise.
        let doors = unsafe { In::<[Doors]>::find(&arena, doors, 1) }.one(0);
        let sources = places
            .iter()
            .zip(queues)
            .map(|(&place, &(capacity, token_bytes))| {
                let doors = Some(doors.clone());
                // SAFETY: the caller's promise.
                Arc::new(unsafe { Conduit::find(&arena, place, capacity, token_bytes, doors) })
            });
        Ok(Self {
            sources: sources.collect(),
            doors,
            arena,
        })
    }
}

fn map(fd: OwnedFd, cursor: Cursor) -> std::io::Result<Arc<Arena>> {
    let arena = Arena::map(fd)?;
    if (arena.bytes() as u64) < cursor.0 {
        let (found, needed) = (arena.bytes(), cursor.0);
        let text = format!("the shared memory has {found} bytes, {needed} are laid out in it");
        return Err(std::io::Error::other(text));
    }
    Ok(Arc::new(arena))
}

/// What an epoch is: one plan, on certain devices, from a certain border on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub epoch: u64,
    pub plan: PlanId,
    /// The device that runs each calendar of the plan.
    pub devices: Vec<DeviceId>,
    /// Blocks at most.
    pub limit: u64,
    /// Start blocks of closed sources whatever they hold.
    pub pad: bool,
    /// Borders at which tokens are saved; none without supervision.
    pub saves: Option<Saves>,
    /// For each source, the tokens of its queue that were taken before this epoch.
    pub bases: Vec<u64>,
    pub sinks: Vec<SinkSpec>,
    /// Spin long: there is a core for each worker.
    pub spin_long: bool,
    /// Check what comes over rings.
    pub checksums: bool,
    /// The worker of the first calendar finds no memory: a fault brought about on purpose.
    pub deny_memory: bool,
    /// What workers record is timed by this; `None` if nothing is recorded.
    pub trace: Option<Ticks>,
}

/// How often tokens are saved at borders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saves {
    pub every: u64,
    pub areas: u64,
}

/// One sink's queue in an epoch.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SinkSpec {
    pub capacity: u64,
    pub token_bytes: u64,
    /// Tokens that were given out before and come again: to be dropped.
    pub given_out: u64,
}

impl Spec {
    pub(crate) fn borders(&self, plan: &Plan) -> Option<Borders> {
        let Saves { every, areas } = self.saves?;
        Some(Borders::new(every, u64::from(plan.stages), areas))
    }
}

/// The last committed border of an epoch, shifted by one, and in the lowest bit whether that is final.
///
/// Because both are one word, a border that a worker would commit after the fence is refused as a whole: whatever is
/// let go or written over because of a commit, the next epoch begins at that commit or after it.
pub(crate) struct Committed(CachePadded<AtomicU64>);

impl Committed {
    fn new() -> Self {
        Self(CachePadded::new(AtomicU64::new(0)))
    }

    /// The last committed border.
    pub(crate) fn border(&self) -> u64 {
        self.0.load(Ordering::Acquire) >> 1
    }

    /// Commits a border; false if a later one is committed already, or the epoch is fenced.
    pub(crate) fn advance(&self, border: u64) -> bool {
        let mut word = self.0.load(Ordering::Acquire);
        while word & 1 == 0 && word >> 1 < border {
            let next = border << 1;
            match self
                .0
                .compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Nothing is committed any more; the last border that was.
    pub(crate) fn seal(&self) -> u64 {
        self.0.fetch_or(1, Ordering::AcqRel) >> 1
    }
}

/// What all workers of an epoch look at.
pub(crate) struct Common {
    pub stop: Stop,
    pub tickets: Tickets,
    pub committed: Committed,
    /// A border whose area somebody is reading; 0 for none.
    pub held: AtomicU64,
    /// Set to spoil the next transfer that has a checksum: a fault brought about on purpose.
    pub corrupt: AtomicU32,
    /// Where workers wait for a border to be committed, or an area to be let go.
    pub commits: CachePadded<Parker>,
}

impl Common {
    fn new() -> Self {
        Self {
            stop: Stop::new(),
            tickets: Tickets::new(),
            committed: Committed::new(),
            held: AtomicU64::new(0),
            corrupt: AtomicU32::new(0),
            commits: CachePadded::new(Parker::new()),
        }
    }
}

/// What one worker tells: written by it alone, on cache lines of its own.
pub(crate) struct Post {
    /// Periods done.
    pub periods: AtomicU64,
    /// The instruction at work, or [`Post::OUTSIDE`].
    pub pc: AtomicU32,
    /// The system's number of its thread; 0 before it begins.
    pub thread: AtomicU32,
    /// When it gave out the first token that had not been given out before, on the clock of the run; 0 before.
    pub first_output_ns: AtomicU64,
    /// Set when it has ended, however it did: it touches no tokens any more.
    pub left: AtomicU32,
}

impl Post {
    /// Between two periods, waiting for admission.
    pub(crate) const OUTSIDE: u32 = u32::MAX;

    fn new() -> CachePadded<Self> {
        CachePadded::new(Self {
            periods: AtomicU64::new(0),
            pc: AtomicU32::new(Self::OUTSIDE),
            thread: AtomicU32::new(0),
            first_output_ns: AtomicU64::new(0),
            left: AtomicU32::new(0),
        })
    }
}

/// Gives out places in a row, aligned.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor(u64);

impl Cursor {
    fn take(&mut self, bytes: u64) -> u64 {
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
pub(crate) struct Layout {
    common: u64,
    posts: u64,
    rings: u64,
    sums: u64,
    stamps: u64,
    sinks: Vec<(u64, u64)>,
    /// The trace of each calendar: its ends, its words, and how many these are.
    traces: Vec<((u64, u64), u64)>,
    /// Exchange region of each calendar's device.
    exchange: Vec<(DeviceId, u64)>,
    exchange_end: u64,
    areas: u64,
    area_bytes: u64,
    /// Offset in an area, and bytes, of each channel's tokens.
    channels: TiVec<ChannelId, (u64, u64)>,
    bytes: u64,
}

/// Areas besides those of borders: the tokens that the epoch begins with, and those that it ends with.
const EXTRA_AREAS: u64 = 2;

impl Layout {
    pub(crate) fn new(graph: &Graph, plan: &Plan, spec: &Spec) -> Self {
        let mut cursor = Cursor::default();
        let mut row = |size: usize, count: usize| cursor.take(size as u64 * count as u64);
        let common = row(size_of::<Common>(), 1);
        let posts = row(size_of::<CachePadded<Post>>(), plan.calendars.len());
        let sums = if spec.checksums {
            row(8, sums_of(plan).total)
        } else {
            0
        };
        let stamps = row(size_of::<Stamp>(), plan.calendars.len() * REMEMBERED);
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
            let words = trace::ring_words(plan, calendar);
            (
                (cursor.take(trace::Ring::ENDS_BYTES), cursor.take(8 * words)),
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
            posts,
            rings,
            sums,
            stamps,
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

/// Where each ring's checksums lie: a row for each block that the ring holds, a word for each `Send` of a block.
pub(crate) struct Sums {
    /// First word of each ring.
    pub firsts: Vec<usize>,
    /// What each of its sends copies.
    pub sends: TiVec<RingId, Sends>,
    total: usize,
}

/// Counts the `Send`s of each ring.
pub(crate) fn sums_of(plan: &Plan) -> Sums {
    let sends = checksum::sends(plan);
    let mut firsts = Vec::with_capacity(plan.rings.len());
    let mut total = 0;
    for (id, ring) in plan.rings.iter_enumerated() {
        firsts.push(total);
        total += sends[id].len() * plan.buffers[ring.buffer].blocks as usize;
    }
    Sums {
        firsts,
        sends,
        total,
    }
}

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
    pub common: In<Common>,
    pub posts: In<[CachePadded<Post>]>,
    pub rings: In<[RingSync]>,
    pub sums: In<[AtomicU64]>,
    stamps: In<[Stamp]>,
    pub sinks: Vec<Arc<Conduit>>,
    traces: Vec<trace::Ring>,
}

impl EpochMemory {
    pub(crate) fn create(
        graph: &Graph,
        plan: &Plan,
        spec: &Spec,
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
        let common = In::create(&arena, layout.common, 1, Common::new).one(0);
        let posts = In::create(&arena, layout.posts, workers, Post::new);
        let rings = In::create(&arena, layout.rings, plan.rings.len(), RingSync::new);
        let sums = In::create(&arena, layout.sums, sums, || AtomicU64::new(0));
        let stamps = In::create(&arena, layout.stamps, workers * REMEMBERED, Stamp::new);
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
        let traces = traces.map(|&(place, words)| trace::Ring::create(&arena, place, words));
        let traces = traces.collect();
        let borders = spec.borders(plan);
        Ok(Self {
            arena,
            layout,
            borders,
            common,
            posts,
            rings,
            sums,
            stamps,
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
        spec: &Spec,
    ) -> std::io::Result<Self> {
        let layout = Layout::new(graph, plan, spec);
        let arena = map(fd, Cursor(layout.bytes))?;
        let workers = plan.calendars.len();
        let sums = if spec.checksums {
            sums_of(plan).total
        } else {
            0
        };
        // SAFETY: the caller's promise, for all of these.
        let (common, posts, rings, sums, stamps) = unsafe {
            (
                In::find(&arena, layout.common, 1).one(0),
                In::find(&arena, layout.posts, workers),
                In::find(&arena, layout.rings, plan.rings.len()),
                In::find(&arena, layout.sums, sums),
                In::find(&arena, layout.stamps, workers * REMEMBERED),
            )
        };
        let sinks = layout.sinks.iter().zip(&spec.sinks).map(|(&place, sink)| {
            // SAFETY: the caller's promise.
            Arc::new(unsafe { Conduit::find(&arena, place, sink.capacity, sink.token_bytes, None) })
        });
        let sinks = sinks.collect();
        let traces = layout.traces.iter().map(|&(place, words)| {
            // SAFETY: the caller's promise.
            unsafe { trace::Ring::find(&arena, place, words) }
        });
        let traces = traces.collect();
        let borders = spec.borders(plan);
        Ok(Self {
            arena,
            layout,
            borders,
            common,
            posts,
            rings,
            sums,
            stamps,
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
    pub(crate) fn stamps(&self, calendar: usize) -> crate::observe::measure::Stamps {
        crate::observe::measure::Stamps::new(self.stamps.clone(), calendar * REMEMBERED)
    }

    /// The rings that workers record into, by calendar; none if nothing is recorded.
    pub(crate) fn rings_of_trace(&self) -> impl Iterator<Item = trace::Ring> {
        self.traces.iter().cloned()
    }

    /// What the worker of a calendar records with, if it does: periods of so many words, or whole ones.
    pub(crate) fn recorder(
        &self,
        spec: &Spec,
        calendar: usize,
        words: Option<u64>,
    ) -> Option<trace::Recorder> {
        let ring = self.traces.get(calendar)?.clone();
        Some(trace::Recorder::new(ring, spec.trace?, words))
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
        let periods = self.posts.iter().map(|p| p.periods.load(Ordering::Acquire));
        self.borders.map_or(0, |b| b.committed(periods))
    }

    /// The last committed border, whose area is kept from being written until [`Self::let_go`].
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
    pub(crate) fn let_go(&self) {
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
