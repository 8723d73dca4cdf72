//! From a verified plan's calendar to a [`Replay`]: kernels, memory, commands for every phase.

mod commands;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{
    ActorId, BlobId, BufferId, Calendar, ChannelId, DeviceId, Graph, Plan, PortChannels, Program,
    Region, RingId, TiSlice,
};

use super::exchange::{Adopted, Direct};
use super::expand::{self, What};
use super::kept::{Constants, Kept};
use super::layout::Layout;
use super::lower::lower;
use super::queue::{Command, Home, Queue, Range};
use super::segment::{RingInfo, Segment};
use super::state::Head;
use super::{
    DEPTH, Exchange, HostRegion, PATIENCE_NS, Replay, ReplayError, Summary, Transport, buffer_name,
};
use crate::kernels::lang::Kernel;
use crate::kernels::{KernelPlan, Step};
use crate::op::Registry;

/// Commands that are recorded at most, all phases together: some tens of MiB in drivers.
const MAX_COMMANDS: usize = 1 << 18;

/// An actor of the device: its kernels and where its constants lie.
struct Ready {
    plan: KernelPlan,
    /// Numbers of the plan's kernels.
    kernels: Vec<u32>,
    consts: Vec<Range>,
}

struct Preparing<'a, Q> {
    queue: Q,
    graph: &'a Graph,
    plan: &'a Plan,
    calendar: &'a Calendar,
    joined: PortChannels,
    places: BTreeMap<ChannelId, BufferId>,
    rings: Vec<RingInfo>,
    ring_numbers: BTreeMap<RingId, u32>,
    actors: BTreeMap<ActorId, Ready>,
    arena: Layout,
    exchange: Layout,
    /// Memory between the two halves of a carry whose ends overlap.
    bounce: u32,
    /// What is received, at the offsets of the exchange region.
    inbox: Range,
    outbox: u32,
    /// The memory that is exchanged by, if the device reaches it, and whether it waits and tells itself.
    adopted: Option<Adopted>,
    hands_over: bool,
    kernels: Vec<Arc<Kernel>>,
    runs: u32,
    /// Number of banks.
    banks: u32,
    /// Bytes of constants that the device did not have yet.
    uploaded: u64,
    /// What is not as the plan has it, in sentences.
    notes: Vec<String>,
}

impl<Q: Queue> Replay<Q> {
    /// Makes a device ready for its calendar in a plan of a verified program: allocates, compiles, records.
    ///
    /// `kept` has the constants that the device has, and then those that it has now.
    ///
    /// # Errors
    /// See [`ReplayError`].
    ///
    /// # Panics
    /// If the program was not verified, the calendar is not one of the plan's, or something of the exchange lies outside
    /// of its memory.
    pub(crate) fn prepare(
        queue: Q,
        registry: &Registry,
        program: &Program,
        plan: &Plan,
        calendar: &Calendar,
        exchange: &Exchange,
        kept: &mut Kept<Q>,
    ) -> Result<Self, ReplayError<Q::Fault>> {
        let listed = queue.name();
        let too_many = |what: String| ReplayError::TooMany {
            device: listed.clone(),
            what,
            limit: MAX_COMMANDS,
        };
        let segments = expand::segments(calendar, MAX_COMMANDS)
            .map_err(|_| too_many("its slots, loops counted out,".to_owned()))?;
        let segments = super::merge::merge(program, plan, calendar, segments);
        let phases = phases(plan, calendar.device);
        let slots: usize = segments.iter().map(|s| s.execs.len()).sum();
        let all = phases.and_then(|p| p.checked_mul(slots as u64));
        let Some(phases) = phases.filter(|_| all.is_some_and(|n| n <= MAX_COMMANDS as u64)) else {
            return Err(too_many(format!(
                "{slots} slots, for every residue of its places,"
            )));
        };
        let mut preparing = Preparing::new(queue, program, plan, calendar, exchange)?;
        preparing.make_banks(exchange)?;
        preparing.make_actors(registry, &program.blobs, &segments, kept)?;
        let mut ready = Vec::new();
        for segment in &segments {
            ready.push(preparing.segment(segment, phases)?);
        }
        preparing.finish(&Stages::of(&segments), ready, phases, exchange)
    }
}

/// In which stage buffers are carried and actors fire.
#[derive(Default)]
struct Stages {
    carries: BTreeMap<BufferId, u32>,
    fires: BTreeMap<ActorId, u32>,
}

impl Stages {
    fn of(segments: &[expand::Segment]) -> Self {
        let mut stages = Self::default();
        for exec in segments.iter().flat_map(|s| &s.execs) {
            match exec.what {
                What::Carry { buffer } => _ = stages.carries.insert(buffer, exec.stage),
                What::Fire { actor, .. } => _ = stages.fires.insert(actor, exec.stage),
                What::Send { .. } | What::Recv { .. } | What::Release { .. } => {}
            }
        }
        stages
    }
}

/// Periods after which every place of the device is the same again, a multiple of the depth.
fn phases(plan: &Plan, device: DeviceId) -> Option<u64> {
    let lcm = |a: u64, b: u64| {
        let (mut x, mut y) = (a, b);
        while y > 0 {
            (x, y) = (y, x % y);
        }
        (a / x).checked_mul(b)
    };
    let own = plan.buffers.iter().filter(|b| b.device == device);
    own.map(|b| u64::from(b.blocks)).try_fold(DEPTH, lcm)
}

impl<'a, Q: Queue> Preparing<'a, Q> {
    fn new(
        queue: Q,
        program: &'a Program,
        plan: &'a Plan,
        calendar: &'a Calendar,
        exchange: &Exchange,
    ) -> Result<Self, ReplayError<Q::Fault>> {
        let graph = &program.graph;
        let own = plan
            .buffers
            .iter_enumerated()
            .filter(|(_, b)| b.device == calendar.device);
        let mut this = Self {
            queue,
            graph,
            plan,
            calendar,
            joined: graph.port_channels(),
            places: own.map(|(id, b)| (b.channel, id)).collect(),
            rings: Vec::new(),
            ring_numbers: BTreeMap::new(),
            actors: BTreeMap::new(),
            arena: Layout::new(Vec::new(), 0, 0).expect("nothing is not too large"),
            exchange: Layout::new(Vec::new(), 0, 0).expect("nothing is not too large"),
            bounce: 0,
            inbox: Range::new(0, 0, 0),
            outbox: 0,
            adopted: None,
            hands_over: false,
            kernels: Vec::new(),
            runs: 0,
            banks: 0,
            uploaded: 0,
            notes: Vec::new(),
        };
        this.make_rings(&exchange.regions)?;
        Ok(this)
    }

    fn make_rings(
        &mut self,
        regions: &BTreeMap<DeviceId, HostRegion>,
    ) -> Result<(), ReplayError<Q::Fault>> {
        let mine = self.calendar.device;
        for (id, ring) in self.plan.rings.iter_enumerated() {
            if ring.from != mine && ring.to != mine {
                continue;
            }
            let buffer = &self.plan.buffers[ring.buffer];
            let needed = buffer.offset_bytes + buffer.size_bytes();
            let region = regions.get(&ring.to).copied();
            let found = region.map_or(0, |r| r.bytes);
            if found < needed {
                return Err(ReplayError::Region {
                    device: ring.to,
                    needed,
                    found,
                });
            }
            let token_bytes = self.graph.channels[buffer.channel].token.bytes();
            self.ring_numbers.insert(id, self.rings.len() as u32);
            self.rings.push(RingInfo {
                id,
                blocks: buffer.blocks.into(),
                block_tokens: buffer.block_tokens,
                token_bytes,
                head_tokens: buffer.head_tokens,
                offset_bytes: buffer.offset_bytes,
                stride_bytes: buffer.stride_bytes,
                region: region.filter(|_| ring.from == mine),
                outbox_stride: (buffer.block_tokens * token_bytes).next_multiple_of(64),
            });
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.queue.name()
    }

    fn layout(&self, region: Region, first: u32) -> Result<Layout, ReplayError<Q::Fault>> {
        let buffers = self
            .places
            .values()
            .map(|id| (*id, &self.plan.buffers[*id]));
        let buffers: Vec<_> = buffers.filter(|(_, b)| b.region == region).collect();
        let mut memory: Vec<(u64, u64)> = buffers
            .iter()
            .map(|(_, b)| (b.offset_bytes, b.offset_bytes + b.size_bytes()))
            .collect();
        if region == Region::Arena {
            let start = self.calendar.scratch_offset_bytes;
            memory.push((start, start + self.calendar.scratch_bytes));
        }
        Layout::new(memory, self.queue.limits().bank_bytes, first).map_err(|e| {
            let largest = buffers.iter().max_by_key(|(_, b)| b.size_bytes());
            let what = largest.map(|(id, _)| buffer_name(self.graph, self.plan, *id));
            ReplayError::TooLarge {
                what: what.unwrap_or_else(|| "scratch memory".to_owned()),
                bytes: e.bytes,
                limit: e.limit,
                device: self.name(),
            }
        })
    }

    /// All memory but that of constants.
    fn make_banks(&mut self, exchange: &Exchange) -> Result<(), ReplayError<Q::Fault>> {
        self.arena = self.layout(Region::Arena, 0)?;
        let arenas = self.arena.sizes().count() as u32;
        self.exchange = self.layout(Region::Exchange, arenas)?;
        let sizes: Vec<u64> = self.arena.sizes().chain(self.exchange.sizes()).collect();
        for bytes in sizes {
            self.push_bank(bytes, Home::Device)?;
        }
        let carried = self.places.values().map(|id| {
            let b = &self.plan.buffers[*id];
            b.head_tokens * self.graph.channels[b.channel].token.bytes()
        });
        let bounce = carried.max().unwrap_or(0);
        self.bounce = self.push_bank(bounce, Home::Device)?;
        if let Some(memory) = exchange.memory
            && let Some(bank) = self.queue.adopt(memory)?
        {
            self.banks = bank + 1;
            self.adopted = Some(Adopted { bank, memory });
            self.hands_over = self.queue.hands_over() && !exchange.counters.is_empty();
        }
        self.inbox = match (&self.adopted, exchange.regions.get(&self.calendar.device)) {
            (Some(adopted), Some(own)) => adopted.range(*own),
            _ => {
                let bytes = self.calendar.exchange_bytes;
                Range::new(self.push_bank(bytes, Home::Host)?, 0, bytes)
            }
        };
        let sent = self.rings.iter().filter(|r| r.region.is_some());
        let outbox = sent.map(|r| DEPTH * r.outbox_stride).sum();
        let home = if self.hands_over {
            Home::Device
        } else {
            Home::Host
        };
        self.outbox = self.push_bank(outbox, home)?;
        // As the CPU's regions: zero at first.
        let whole = |i| Range::new(i, 0, self.queue.bank_bytes(i));
        let fills: Vec<Command> = self
            .own_banks()
            .map(|i| Command::Zero { to: whole(i) })
            .collect();
        Ok(self.queue.run_once(&fills, PATIENCE_NS)?)
    }

    /// All banks so far but that of others.
    fn own_banks(&self) -> impl Iterator<Item = u32> + use<Q> {
        let others = self.adopted.map(|adopted| adopted.bank);
        (0..self.banks).filter(move |bank| Some(*bank) != others)
    }

    fn push_bank(&mut self, bytes: u64, home: Home) -> Result<u32, Q::Fault> {
        let number = self.queue.bank(bytes, home)?;
        self.banks = number + 1;
        Ok(number)
    }

    /// Kernels and constants of every actor that fires.
    fn make_actors(
        &mut self,
        registry: &Registry,
        blobs: &TiSlice<BlobId, Bytes>,
        segments: &[expand::Segment],
        kept: &mut Kept<Q>,
    ) -> Result<(), ReplayError<Q::Fault>> {
        let mut plans: BTreeMap<ActorId, KernelPlan> = BTreeMap::new();
        for exec in segments.iter().flat_map(|s| &s.execs) {
            if let What::Fire { actor, .. } = exec.what
                && !plans.contains_key(&actor)
            {
                let chosen = (&self.graph.actors[actor], self.plan.variant(actor));
                let scratch = self.calendar.scratch_bytes;
                let known = (registry, blobs);
                let plan = lower(&mut self.queue, known, chosen, scratch, &mut self.notes)?;
                plans.insert(actor, plan);
            }
        }
        let mut constants = Constants::new(self.queue.limits().bank_bytes);
        for (actor, plan) in plans {
            let mut kernels = Vec::new();
            for step in &plan.steps {
                let Step::Run(run) = step else { continue };
                kernels.push(self.kernels.len() as u32);
                self.kernels.push(Arc::clone(&run.kernel));
            }
            let consts = plan.consts.iter().map(|c| constants.put(c)).collect();
            self.actors.insert(
                actor,
                Ready {
                    plan,
                    kernels,
                    consts,
                },
            );
        }
        let (banks, uploaded) = constants.upload(&mut self.queue, kept, PATIENCE_NS)?;
        for range in self.actors.values_mut().flat_map(|ready| &mut ready.consts) {
            range.bank = banks[range.bank as usize];
        }
        self.banks += banks.len() as u32;
        self.uploaded = uploaded;
        Ok(())
    }

    /// `stages` has the stage of each carried buffer, and of each actor that fires.
    fn heads(&self, stages: &Stages) -> Vec<Head> {
        let head = |id: &BufferId| {
            let b = &self.plan.buffers[*id];
            let places =
                (0..u64::from(b.blocks)).map(|p| self.tokens(*id, 0, p, 0, (0, b.head_tokens)));
            let writer = self.graph.channels[b.channel].from.actor;
            let stage = stages.carries.get(id).or_else(|| stages.fires.get(&writer));
            Head {
                buffer: *id,
                channel: b.channel,
                stage: stage.copied().unwrap_or(0),
                places: places.collect(),
            }
        };
        let filled = self
            .places
            .values()
            .filter(|id| self.plan.buffers[**id].head_tokens > 0);
        filled.map(head).collect()
    }

    /// The exchange as the device does it itself, if it does.
    fn direct(&self, segments: &[Segment], exchange: &Exchange) -> Option<Direct> {
        let adopted = self.adopted.as_ref().filter(|_| self.hands_over)?;
        let rings = self
            .rings
            .iter()
            .map(|r| (exchange.counters[r.id.0 as usize], r.region));
        let most = |len: fn(&Segment) -> usize| segments.iter().map(len).max().unwrap_or(0);
        let most = (most(|s| s.receipts.len()), most(|s| s.gifts.len()));
        Some(Direct::new(adopted, self.outbox, rings, most))
    }

    fn finish(
        mut self,
        stages: &Stages,
        segments: Vec<Segment>,
        phases: u64,
        exchange: &Exchange,
    ) -> Result<Replay<Q>, ReplayError<Q::Fault>> {
        let heads = self.heads(stages);
        let direct = self.direct(&segments, exchange);
        let own_banks = self.own_banks();
        let queue = &mut self.queue;
        let all = segments.iter().flat_map(|s| s.commands.iter().flatten());
        let mut runs = all.filter_map(|(_, command)| match command {
            Command::Run(run) => Some(run),
            Command::Copy { .. } | Command::Zero { .. } | Command::Product(..) => None,
        });
        queue.load(&self.kernels, &mut runs)?;
        let mut summary = Summary {
            segments: segments.len(),
            phases,
            bytes: own_banks.map(|i| queue.bank_bytes(i)).sum(),
            uploaded: self.uploaded,
            transport: match (&self.adopted, &direct) {
                (None, _) => Transport::Staged,
                (Some(_), None) => Transport::Fetched,
                (Some(_), Some(_)) => Transport::Device,
            },
            ..Summary::default()
        };
        let mut steady = Vec::new();
        for phase in 0..phases as usize {
            for segment in &segments {
                let commands: Vec<&Command> =
                    segment.commands[phase].iter().map(|(_, c)| c).collect();
                if commands.is_empty() {
                    steady.push(None);
                    continue;
                }
                let (list, barriers) = queue.record(&commands)?;
                steady.push(Some(list));
                if phase == 0 {
                    summary.commands += commands.len();
                    summary.barriers += barriers;
                }
            }
        }
        // What the device fetches itself, the host need not copy.
        let copies = self.calendar.exchange_bytes > 0 && self.adopted.is_none();
        // And a save in each.
        let in_flight = (segments.len() + 1) * (DEPTH as usize + 1);
        Ok(Replay {
            rings: self.rings,
            stages: self.plan.stages.into(),
            phases,
            steady,
            spare: vec![None; segments.len() * DEPTH as usize],
            inbox: copies.then_some(self.inbox.bank),
            outbox: Some(self.outbox),
            own: exchange.regions.get(&self.calendar.device).copied(),
            direct,
            in_flight: std::collections::VecDeque::with_capacity(in_flight),
            submitted: 0,
            begun: 0,
            saves: None,
            patience_ns: PATIENCE_NS,
            heads,
            summary,
            notes: self.notes,
            queue: self.queue,
            segments,
        })
    }
}
