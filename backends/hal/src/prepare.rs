//! From a verified plan's calendar to a [`Replay`]: kernels, memory, commands for every phase.

mod commands;
mod gates;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use zbmd_ir::{
    Action, ActorId, BufferId, Calendar, ChannelId, DeviceId, Graph, Plan, PortChannels, Program,
    Region, RingId,
};

use super::device::ReplayRequest;
use super::exchange::{DeviceExchange, ImportedMemory, RingCounters};
use super::expand;
use super::fetch::FetchedWeights;
use super::gates::Gates;
use super::kept::{ConstantLayout, Kept};
use super::layout::{OffsetRange, RegionLayout};
use super::lower::ActorSource;
use super::queue::{BankRange, Command, CommandList, MemoryKind, Queue, StepBinder};
use super::segment::{ReadySegment, RingInfo};
use super::state::ChannelHead;
use super::{
    DEPTH, Exchange, HostRegion, PATIENCE_NS, Replay, ReplayError, Summary, Transport, actor_name,
    buffer_name, merge,
};
use zbmd_gpu_ir::lang::Kernel;
use zbmd_gpu_ir::{KernelPlan, LowerKernels};

/// Commands that are recorded at most, all phases together: some tens of MiB in drivers.
const MAX_COMMANDS: usize = 1 << 18;

/// An actor of the device: its kernels and the memory of its constants.
struct ReadyActor {
    plan: KernelPlan,
    /// Numbers of the plan's kernels.
    kernels: Vec<u32>,
    consts: Vec<BankRange>,
}

/// A calendar that is being prepared.
struct Preparation<'a, Q> {
    queue: Q,
    graph: &'a Graph,
    plan: &'a Plan,
    calendar: &'a Calendar,
    port_channels: PortChannels,
    /// The device's buffer of each channel.
    own_buffers: BTreeMap<ChannelId, BufferId>,
    rings: Vec<RingInfo>,
    ring_numbers: BTreeMap<RingId, u32>,
    actors: BTreeMap<ActorId, ReadyActor>,
    fetched: FetchedWeights,
    arena: RegionLayout,
    exchange: RegionLayout,
    /// The bank between the two halves of a carry whose source and target overlap.
    bounce: u32,
    /// Received tokens, at the offsets of the exchange region.
    inbox: BankRange,
    outbox: u32,
    /// The memory that tokens are exchanged by, if the device reaches it.
    imported: Option<ImportedMemory>,
    /// Whether the device itself waits for others and publishes to them.
    uses_memory_ops: bool,
    kernels: Vec<Arc<Kernel>>,
    binder: StepBinder,
    /// Whether it fires gated actors: then the host waits for their gates.
    has_gates: bool,
    gates: Gates,
    /// Among the gates' calls, that of an actor that begins with this firing.
    gated_calls: BTreeMap<(ActorId, u64), u32>,
    /// Parts of the segments so far.
    part_count: usize,
    bank_count: u32,
    /// Bytes of constants that the device did not have yet.
    uploaded: u64,
    /// Differences from the plan, in sentences.
    notes: Vec<String>,
}

impl<Q: Queue> Replay<Q> {
    /// Makes a device ready for its calendar in a plan of a verified program: allocates, compiles, records.
    ///
    /// # Errors
    /// See [`ReplayError`].
    ///
    /// # Panics
    /// If the program was not verified, or the calendar is not one of the plan's.
    pub fn new(
        device: &Arc<Q::Device>,
        kernels: &dyn LowerKernels,
        program: &Program,
        plan: &Plan,
        calendar: &Calendar,
        exchange: &Exchange,
    ) -> Result<Self, ReplayError<Q::Fault>> {
        let request = ReplayRequest {
            kernels,
            program,
            plan,
            calendar,
            exchange,
        };
        Self::prepare(device, &request, &mut Kept::default())
    }

    /// The same with constants that the device already has: `kept` has them, and afterwards those of this calendar.
    ///
    /// # Errors
    /// See [`ReplayError`].
    ///
    /// # Panics
    /// If the program was not verified, the calendar is not one of the plan's, or a part of the exchange is outside of
    /// its memory.
    pub fn prepare(
        device: &Arc<Q::Device>,
        request: &ReplayRequest<'_>,
        kept: &mut Kept<Q>,
    ) -> Result<Self, ReplayError<Q::Fault>> {
        let ReplayRequest {
            program,
            plan,
            calendar,
            exchange,
            ..
        } = *request;
        let queue = Q::open_queue(device, Some(program))?;

        let too_many = |what: String| ReplayError::TooMany {
            device: queue.device_name(),
            what,
            limit: MAX_COMMANDS,
        };
        let expanded = expand::expand_segments(calendar, MAX_COMMANDS)
            .map_err(|_| too_many("its slots, with all loops unrolled,".to_owned()))?;
        let segments = merge::merge_segments(program, plan, calendar, expanded);
        let slot_count: usize = segments
            .iter()
            .map(|segment| segment.executions.len())
            .sum();
        let phases = count_phases(plan, calendar.device)
            .filter(|phases| {
                let commands = phases.checked_mul(slot_count as u64);
                commands.is_some_and(|count| count <= MAX_COMMANDS as u64)
            })
            .ok_or_else(|| {
                too_many(format!(
                    "{slot_count} slots, for every residue of its places,"
                ))
            })?;

        let mut preparation = Preparation::new(queue, request)?;
        preparation.has_gates = gates::has_gates(&program.graph, &segments);
        preparation.allocate_banks(exchange)?;
        preparation.lower_actors(request, &segments, kept)?;
        preparation.collect_gates(&segments)?;
        let mut ready = Vec::with_capacity(segments.len());
        for segment in &segments {
            ready.push(preparation.prepare_segment(segment, phases)?);
        }
        preparation.finish(&StageTable::of_segments(&segments), ready, phases, exchange)
    }
}

/// In which stage buffers are carried and actors fire.
#[derive(Default)]
struct StageTable {
    carries: BTreeMap<BufferId, u32>,
    fires: BTreeMap<ActorId, u32>,
}

impl StageTable {
    fn of_segments(segments: &[expand::SlotSegment]) -> Self {
        let mut stages = Self::default();
        for execution in segments.iter().flat_map(|segment| &segment.executions) {
            match execution.action {
                Action::Carry { buffer } => {
                    stages.carries.insert(buffer, execution.stage);
                }
                Action::Fire { actor, .. } => {
                    stages.fires.insert(actor, execution.stage);
                }
                Action::Send { .. }
                | Action::Recv { .. }
                | Action::Release { .. }
                | Action::Fetch { .. }
                | Action::Await { .. } => {}
            }
        }
        stages
    }
}

/// Periods after which every place of the device is the same again, a multiple of the depth; none beyond 64 bits.
fn count_phases(plan: &Plan, device: DeviceId) -> Option<u64> {
    plan.buffers
        .iter()
        .filter(|buffer| buffer.device == device)
        .map(|buffer| u64::from(buffer.blocks))
        .try_fold(DEPTH, least_common_multiple)
}

fn least_common_multiple(left: u64, right: u64) -> Option<u64> {
    let mut divisor = left;
    let mut remainder = right;
    while remainder > 0 {
        (divisor, remainder) = (remainder, divisor % remainder);
    }
    (left / divisor).checked_mul(right)
}

impl<'a, Q: Queue> Preparation<'a, Q> {
    fn new(queue: Q, request: &ReplayRequest<'a>) -> Result<Self, ReplayError<Q::Fault>> {
        let graph = &request.program.graph;
        let machine = &request.program.machine;
        let own_buffers = request
            .plan
            .buffers
            .iter_enumerated()
            .filter(|(_, buffer)| buffer.device == request.calendar.device)
            .map(|(id, buffer)| (buffer.channel, id));
        let binder = StepBinder::new(queue.limits());

        // What is still empty is found or made step by step.
        let mut preparation = Self {
            queue,
            graph,
            plan: request.plan,
            calendar: request.calendar,
            port_channels: graph.port_channels(),
            own_buffers: own_buffers.collect(),
            rings: Vec::new(),
            ring_numbers: BTreeMap::new(),
            actors: BTreeMap::new(),
            fetched: FetchedWeights::of_calendar(graph, machine, request.calendar),
            arena: RegionLayout::default(),
            exchange: RegionLayout::default(),
            bounce: 0,
            inbox: BankRange::new(0, 0, 0),
            outbox: 0,
            imported: None,
            uses_memory_ops: false,
            kernels: Vec::new(),
            binder,
            has_gates: false,
            gates: Gates::default(),
            gated_calls: BTreeMap::new(),
            part_count: 0,
            bank_count: 0,
            uploaded: 0,
            notes: Vec::new(),
        };

        preparation.collect_rings(&request.exchange.regions)?;
        Ok(preparation)
    }

    fn collect_rings(
        &mut self,
        regions: &BTreeMap<DeviceId, HostRegion>,
    ) -> Result<(), ReplayError<Q::Fault>> {
        let own_device = self.calendar.device;
        for (id, ring) in self.plan.rings.iter_enumerated() {
            if ring.from != own_device && ring.to != own_device {
                continue;
            }

            let buffer = &self.plan.buffers[ring.buffer];
            let needed = buffer.offset_bytes + buffer.size_bytes();
            let region = regions.get(&ring.to).copied();
            let found = region.map_or(0, |region| region.bytes);
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
                region: region.filter(|_| ring.from == own_device),
                outbox_stride: (buffer.block_tokens * token_bytes).next_multiple_of(64),
            });
        }
        Ok(())
    }

    /// Banks for the device's buffers of a region, numbered from `first`.
    fn lay_out_region(
        &self,
        region: Region,
        first: u32,
    ) -> Result<RegionLayout, ReplayError<Q::Fault>> {
        let buffers: Vec<_> = self
            .own_buffers
            .values()
            .map(|id| (*id, &self.plan.buffers[*id]))
            .filter(|(_, buffer)| buffer.region == region)
            .collect();
        let mut memory: Vec<OffsetRange> = buffers
            .iter()
            .map(|(_, buffer)| {
                let end = buffer.offset_bytes + buffer.size_bytes();
                (buffer.offset_bytes, end)
            })
            .collect();
        if region == Region::Arena {
            let scratch_start = self.calendar.scratch_offset_bytes;
            memory.push((scratch_start, scratch_start + self.calendar.scratch_bytes));
            memory.extend(self.fetched.places());
        }

        let bank_bytes = self.queue.limits().bank_bytes;
        RegionLayout::new(memory, bank_bytes, first).map_err(|too_large| {
            let largest = buffers.iter().max_by_key(|(_, buffer)| buffer.size_bytes());
            let what = largest.map(|(id, _)| buffer_name(self.graph, self.plan, *id));
            ReplayError::TooLarge {
                what: what.unwrap_or_else(|| "scratch memory".to_owned()),
                bytes: too_large.bytes,
                limit: too_large.limit,
                device: self.queue.device_name(),
            }
        })
    }

    /// All memory except that of constants.
    fn allocate_banks(&mut self, exchange: &Exchange) -> Result<(), ReplayError<Q::Fault>> {
        self.arena = self.lay_out_region(Region::Arena, 0)?;
        let arena_banks = self.arena.bank_sizes().count() as u32;
        self.exchange = self.lay_out_region(Region::Exchange, arena_banks)?;
        let region_sizes: Vec<u64> = self
            .arena
            .bank_sizes()
            .chain(self.exchange.bank_sizes())
            .collect();
        for bytes in region_sizes {
            self.push_bank(bytes, MemoryKind::Device)?;
        }

        let carried_bytes = self.own_buffers.values().map(|id| {
            let buffer = &self.plan.buffers[*id];
            buffer.head_tokens * self.graph.channels[buffer.channel].token.bytes()
        });
        let bounce_bytes = carried_bytes.max().unwrap_or(0);
        self.bounce = self.push_bank(bounce_bytes, MemoryKind::Device)?;
        self.allocate_exchange(exchange)?;

        // As the CPU's regions: zero at first.
        let zeros: Vec<Command> = self
            .own_banks()
            .map(|bank| Command::Zero {
                to: BankRange::new(bank, 0, self.queue.bank_bytes(bank)),
            })
            .collect();
        Ok(self.queue.run_once(&zeros, PATIENCE_NS)?)
    }

    /// The memory that tokens are received from and sent by.
    fn allocate_exchange(&mut self, exchange: &Exchange) -> Result<(), ReplayError<Q::Fault>> {
        if let Some(memory) = exchange.memory
            && let Some(bank) = self.queue.import_host_memory(memory)?
        {
            self.bank_count = bank + 1;
            self.imported = Some(ImportedMemory { bank, memory });
            // What a gate decides must be known before a submission, so the host waits for it.
            self.uses_memory_ops = self.queue.supports_memory_ops()
                && !exchange.counters.is_empty()
                && !self.has_gates;
        }

        let own_region = exchange.regions.get(&self.calendar.device);
        self.inbox = match (&self.imported, own_region) {
            (Some(imported), Some(region)) => imported.range_of(*region),
            _ => {
                let bytes = self.calendar.exchange_bytes;
                BankRange::new(self.push_bank(bytes, MemoryKind::Host)?, 0, bytes)
            }
        };

        let sent_rings = self.rings.iter().filter(|ring| ring.region.is_some());
        let outbox_bytes = sent_rings.map(|ring| DEPTH * ring.outbox_stride).sum();
        let outbox_kind = if self.uses_memory_ops {
            MemoryKind::Device
        } else {
            MemoryKind::Host
        };
        self.outbox = self.push_bank(outbox_bytes, outbox_kind)?;
        Ok(())
    }

    /// All banks so far except imported memory.
    fn own_banks(&self) -> impl Iterator<Item = u32> + use<Q> {
        let imported = self.imported.map(|imported| imported.bank);
        (0..self.bank_count).filter(move |bank| Some(*bank) != imported)
    }

    fn push_bank(&mut self, bytes: u64, kind: MemoryKind) -> Result<u32, Q::Fault> {
        let number = self.queue.allocate_bank(bytes, kind)?;
        self.bank_count = number + 1;
        Ok(number)
    }

    /// Kernels and constants of every actor that fires.
    fn lower_actors(
        &mut self,
        request: &ReplayRequest<'_>,
        segments: &[expand::SlotSegment],
        kept: &mut Kept<Q>,
    ) -> Result<(), ReplayError<Q::Fault>> {
        let mut plans: BTreeMap<ActorId, KernelPlan> = BTreeMap::new();
        for execution in segments.iter().flat_map(|segment| &segment.executions) {
            let Action::Fire { actor, .. } = execution.action else {
                continue;
            };
            // An actor that fires in several slots has its kernels once.
            if plans.contains_key(&actor) {
                continue;
            }
            let source = ActorSource {
                kernels: request.kernels,
                blobs: &request.program.blobs,
                actor: &self.graph.actors[actor],
                variant: self.plan.variant(actor),
            };
            let scratch_bytes = self.calendar.scratch_bytes;
            let plan = source.lower(&mut self.queue, scratch_bytes, &mut self.notes)?;
            plans.insert(actor, plan);
        }

        // All constants are laid out before the first is uploaded: equal ones share their place.
        let bank_bytes = self.queue.limits().bank_bytes;
        let mut constants = ConstantLayout::new(bank_bytes, MemoryKind::Device);
        let mut fetched_constants = ConstantLayout::new(bank_bytes, MemoryKind::Host);
        let mut fetched_tables = BTreeMap::new();
        for (actor, plan) in plans {
            let mut kernel_numbers = Vec::new();
            for kernel in plan.kernels() {
                kernel_numbers.push(self.kernels.len() as u32);
                self.kernels.push(Arc::clone(kernel));
            }

            let fetched_table = self.fetched_table(request.program, actor, &plan);
            fetched_tables.extend(fetched_table.map(|table| (actor, table)));
            let tables = plan.consts.iter().enumerate();
            let consts = tables.map(|(table, bytes)| match Some(table) == fetched_table {
                true => fetched_constants.add_constant(bytes),
                false => constants.add_constant(bytes),
            });
            let ready = ReadyActor {
                consts: consts.collect(),
                plan,
                kernels: kernel_numbers,
            };
            self.actors.insert(actor, ready);
        }

        let uploaded = constants.upload(&mut self.queue, kept, PATIENCE_NS)?;
        let on_host = fetched_constants.upload(&mut self.queue, kept, PATIENCE_NS)?;
        self.bank_count += (uploaded.banks.len() + on_host.banks.len()) as u32;
        self.uploaded = uploaded.bytes;

        // Banks were numbered by the layout; on the device they may have been there before.
        for (&actor, ready) in &mut self.actors {
            let fetched_table = fetched_tables.get(&actor);
            for (table, range) in ready.consts.iter_mut().enumerate() {
                if Some(&table) != fetched_table {
                    range.bank = uploaded.banks[range.bank as usize];
                    continue;
                }
                range.bank = on_host.banks[range.bank as usize];
                *range = self.fetched.copy_from(actor, *range, &self.arena);
            }
        }

        let before_first = self.fetched.commands_before_first();
        if !before_first.is_empty() {
            self.queue.run_once(&before_first, PATIENCE_NS)?;
        }
        Ok(())
    }

    /// The number of the constant table that an actor fetches, if it fetches one. A kernel that does not read the weights as
    /// the program has them, because the device does not have the planned variant, has its table on the device instead.
    fn fetched_table(
        &mut self,
        program: &Program,
        actor: ActorId,
        plan: &KernelPlan,
    ) -> Option<usize> {
        let weights = self.fetched.of_actor(actor)?;
        let table = plan.constant_like(&program.blobs[weights.blob]);
        if table.is_none() {
            let name = actor_name(self.graph, actor);
            let device = self.queue.device_name();
            self.notes.push(format!(
                "the weights of `{name}` were to be fetched on {device}, but its kernel there does not read them as they are stored: they stay in memory, {} bytes more than planned; compile again with costs measured here",
                weights.bytes
            ));
        }
        table
    }

    /// The heads of all buffers that have one.
    fn channel_heads(&self, stages: &StageTable) -> Vec<ChannelHead> {
        let own_buffers = self.own_buffers.values();
        let with_head = own_buffers.filter(|id| self.plan.buffers[**id].head_tokens > 0);
        with_head
            .map(|id| {
                let buffer = &self.plan.buffers[*id];
                let places = (0..u64::from(buffer.blocks))
                    .map(|place| self.token_range(*id, 0, place, 0..buffer.head_tokens));
                let writer = self.graph.channels[buffer.channel].from.actor;
                let carried_in = stages.carries.get(id);
                let stage = carried_in.or_else(|| stages.fires.get(&writer));
                ChannelHead {
                    buffer: *id,
                    channel: buffer.channel,
                    stage: stage.copied().unwrap_or(0),
                    places: places.collect(),
                }
            })
            .collect()
    }

    /// The exchange as the device does it itself, if it does.
    fn device_exchange(
        &self,
        segments: &[ReadySegment],
        exchange: &Exchange,
    ) -> Option<DeviceExchange> {
        let imported = self.imported.as_ref().filter(|_| self.uses_memory_ops)?;
        let rings = self.rings.iter().map(|ring| RingCounters {
            counters: exchange.counters[ring.id.0 as usize],
            region: ring.region,
        });
        Some(DeviceExchange::new(imported, self.outbox, rings, segments))
    }

    /// Loads the kernels of all commands, and records the lists of every phase.
    fn record_phases(
        &mut self,
        segments: &[ReadySegment],
        summary: &mut Summary,
    ) -> Result<Vec<Option<CommandList>>, Q::Fault> {
        let parts = || segments.iter().flat_map(|segment| &segment.parts);
        let all_commands = parts().flat_map(|part| part.open.iter().flatten());
        let mut runs = all_commands.filter_map(|(_, command)| command.kernel_run());
        self.queue.load_kernels(&self.kernels, &mut runs)?;

        let mut lists = Vec::new();
        for phase in 0..summary.phases as usize {
            for (part, is_closed) in parts().flat_map(|part| [(part, false), (part, true)]) {
                let commands: Vec<&Command> = part.commands(is_closed)[phase]
                    .iter()
                    .map(|(_, command)| command)
                    .collect();
                if commands.is_empty() {
                    lists.push(None);
                    continue;
                }
                let (list, barriers) = self.queue.record_list(&commands)?;
                lists.push(Some(list));
                if phase == 0 && !is_closed {
                    summary.commands += commands.len();
                    summary.barriers += barriers;
                }
            }
        }
        Ok(lists)
    }

    fn finish(
        mut self,
        stages: &StageTable,
        segments: Vec<ReadySegment>,
        phases: u64,
        exchange: &Exchange,
    ) -> Result<Replay<Q>, ReplayError<Q::Fault>> {
        let heads = self.channel_heads(stages);
        let device_exchange = self.device_exchange(&segments, exchange);
        let own_banks = self.own_banks();
        let mut summary = Summary {
            segments: segments.len(),
            phases,
            bytes: own_banks.map(|bank| self.queue.bank_bytes(bank)).sum(),
            uploaded: self.uploaded,
            transport: match (&self.imported, &device_exchange) {
                (None, _) => Transport::Staged,
                (Some(_), None) => Transport::Fetched,
                (Some(_), Some(_)) => Transport::Device,
            },
            ..Summary::default()
        };
        let steady = self.record_phases(&segments, &mut summary)?;

        // What the device fetches itself, the host need not copy.
        let host_copies = self.calendar.exchange_bytes > 0 && self.imported.is_none();
        // One more than the segments: a save in each period.
        let max_in_flight = (segments.len() + 1) * (DEPTH as usize + 1);
        Ok(Replay {
            rings: self.rings,
            stages: self.plan.stages.into(),
            phases,
            steady,
            spare: vec![None; self.part_count * DEPTH as usize],
            part_count: self.part_count,
            gates: self.gates,
            inbox: host_copies.then_some(self.inbox.bank),
            outbox: Some(self.outbox),
            own_region: exchange.regions.get(&self.calendar.device).copied(),
            device_exchange,
            in_flight: VecDeque::with_capacity(max_in_flight),
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
