//! Lowers the calendar of one CPU device to instructions. Must not run anything.

mod chunks;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use zbmd_ir::math::gcd_u64;
use zbmd_ir::{
    Action, ActorId, BufferId, Calendar, DeviceId, Entry, Plan, PlanId, RingId, Role, Slot,
    has_live, trace::OTHER,
};
use zbmd_op::kernel::{CallShape, Kernel, Scratch};

use self::chunks::{ChunkPositions, RepeatedLoop};
use super::border;
use super::fetched_weights::FetchedWeights;
use super::instructions::{Instr, NO_COUNTER, PortSpec, ReplayCode, RingSpec};
use super::live_actors::LiveSlot;
use super::memory::WorkerMemory;
use super::probe::{ProbeTap, ProbeTaps};
use super::replay::CalendarReplay;
use crate::plan_facts::PlanFacts;
use crate::program::{LoadedProgram, planned_ns};
use crate::transport::checksum::Sums;

/// Rows of the address table beyond which addresses are worked out anew for each period.
const MAX_PHASES: u64 = 64;
/// Entries of the address table beyond which the same is done: it would no longer fit the caches.
const MAX_TABLE: u64 = 1 << 18;

/// How often a supervised run does a slot again whose kernel reports a fault.
const RETRIES: u32 = 3;

/// In long periods, too, a worker's heart beats about this often…
const BEAT_NS: u64 = 1_000_000;
/// …but not in loops whose body is as short as a beat.
const SHORT_BODY_NS: u64 = 2_000;

/// A device's calendar as instructions, and what people call each of them.
pub(super) struct LoweredCalendar {
    pub replay: CalendarReplay,
    /// The slot of each instruction; `None` for loops.
    pub slots: Vec<Option<Slot>>,
    /// Sources and sinks of the calendar, in the order in which instructions number them.
    pub sources: Vec<ActorId>,
    pub sinks: Vec<ActorId>,
    /// Rings in the order of the replay's peers.
    pub rings: Vec<RingId>,
    /// The slots of actors with live parameters.
    pub live_slots: Vec<LiveSlot>,
}

/// What a counter of loops counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CounterKey {
    Actor(ActorId),
    Send(RingId),
    Recv(RingId),
    /// The mark of an actor at the loop of this instruction.
    Mark(ActorId, usize),
}

/// A state or a buffer of chunks that is saved at borders, and the stage of the slot after which it is.
struct SavedState {
    buffer: BufferId,
    stage: u32,
}

struct Lowering<'a> {
    loaded: &'a LoadedProgram,
    plan: &'a Plan,
    device: DeviceId,
    memory: &'a WorkerMemory,
    weights: FetchedWeights,
    facts: &'a PlanFacts,
    /// Those that it calls.
    kernels: BTreeMap<ActorId, Arc<dyn Kernel>>,
    chunks: ChunkPositions,
    instrs: Vec<Instr>,
    slots: Vec<Option<Slot>>,
    stages: Vec<u32>,
    ports: Vec<PortSpec>,
    rings: Vec<(RingId, RingSpec)>,
    ring_indices: BTreeMap<RingId, u32>,
    /// Of the rings whose other end is on another host, the numbers that the worker's wires have for them.
    wired_rings: BTreeMap<RingId, u32>,
    /// Token ranges of the `Send`s of the rings so far, and where the checksums of all rings are.
    sends: Vec<(u64, u64)>,
    sums: Option<&'a Sums>,
    resets: Vec<(u32, u64)>,
    counters: BTreeMap<CounterKey, u32>,
    /// Start of the resets of the outermost loop at work, and the counters that it has.
    loop_resets: usize,
    loop_counters: BTreeSet<u32>,
    depth: usize,
    /// Planned time since the last heartbeat.
    since_beat_ns: u64,
    sources: ActorNumbers,
    sinks: ActorNumbers,
    live_slots: Vec<LiveSlot>,
    taps: Vec<ProbeTap>,
    /// Channels whose tokens this device saves at borders, by the buffer that they are carried in.
    saved: BTreeSet<BufferId>,
    /// States to be saved, by the top-level entry that fires their actor last; and chunks, by that which carries them last.
    states: BTreeMap<usize, Vec<SavedState>>,
}

/// Lowers the calendar of one device of a verified plan that [`check_plan`](crate::unsupported::check_plan) accepted. Rings
/// among `wired_rings` go over the worker's wires; there are none on one host. `weights` are those that the calendar fetches.
pub(super) fn lower(
    loaded: &LoadedProgram,
    plan: PlanId,
    calendar: &Calendar,
    memory: &WorkerMemory,
    wired_rings: &BTreeMap<RingId, u32>,
    weights: FetchedWeights,
) -> LoweredCalendar {
    let mut lowering = Lowering::new(loaded, plan, calendar.device, memory);
    lowering.weights = weights;
    lowering.wired_rings.clone_from(wired_rings);
    if memory.epoch.borders().is_some() {
        lowering.find_saved(calendar);
    }

    let lanes = calendar.lanes.iter();
    for (index, entry) in lanes.flat_map(|lane| &lane.entries).enumerate() {
        lowering.lower_entries(std::slice::from_ref(entry));
        lowering.save_states(index);
        lowering.add_beat(entry);
    }
    lowering.finish(calendar)
}

impl<'a> Lowering<'a> {
    fn new(
        loaded: &'a LoadedProgram,
        plan: PlanId,
        device: DeviceId,
        memory: &'a WorkerMemory,
    ) -> Self {
        let facts = loaded.facts(plan);
        let plan = &loaded.program.plans[plan];
        Self {
            loaded,
            plan,
            device,
            memory,
            weights: FetchedWeights::default(),
            facts,
            kernels: BTreeMap::new(),
            chunks: ChunkPositions::default(),
            instrs: Vec::new(),
            slots: Vec::new(),
            stages: Vec::new(),
            ports: Vec::new(),
            rings: Vec::new(),
            ring_indices: BTreeMap::new(),
            wired_rings: BTreeMap::new(),
            sends: Vec::new(),
            // The epoch has places for checksums only where they were asked for.
            sums: (!memory.epoch.sums.is_empty()).then(|| facts.sums(plan)),
            resets: Vec::new(),
            counters: BTreeMap::new(),
            loop_resets: 0,
            loop_counters: BTreeSet::new(),
            depth: 0,
            since_beat_ns: 0,
            sources: ActorNumbers::default(),
            sinks: ActorNumbers::default(),
            live_slots: Vec::new(),
            taps: Vec::new(),
            saved: BTreeSet::new(),
            states: BTreeMap::new(),
        }
    }

    fn finish(mut self, calendar: &Calendar) -> LoweredCalendar {
        let has_borders = self.memory.epoch.borders().is_some();
        let fetcher = self.weights.fetcher.take();
        let arena_base = self.memory.own.base();
        let scratch_start = arena_base.wrapping_add(calendar.scratch_offset_bytes as usize);
        // A kernel in a loop is called on copies of its ports, moved on by the loop's count.
        let staged_counts = self.instrs.iter().map(|instr| match instr {
            Instr::LoopFire { shape, .. } | Instr::ChunkFire { shape, .. } => shape.total(),
            _ => 0,
        });
        let staging_len = staged_counts.max().unwrap_or(0);

        // A trace numbers the slots of a calendar in order.
        let mut slot_numbers = 0..;
        let trace_names = self.slots.iter().map(|slot| match slot {
            Some(_) => slot_numbers.next().unwrap_or(OTHER),
            None => OTHER,
        });
        let code = ReplayCode {
            stages: self.stages.into(),
            names: trace_names.collect(),
            phases: table_phases(&self.ports),
            instrs: self.instrs.into(),
            ports: self.ports.into(),
            rings: self.rings.iter().map(|(_, spec)| *spec).collect(),
            resets: self.resets.into(),
            sends: self.sends.into(),
            taps: ProbeTaps::new(self.taps),
            stages_total: self.plan.stages,
            retries: if has_borders { RETRIES } else { 0 },
            scratch: Scratch(scratch_start, calendar.scratch_bytes as usize),
            _kernels: self.kernels.into_values().collect(),
            _arenas: [
                Arc::clone(&self.memory.own),
                Arc::clone(self.memory.epoch.arena()),
            ],
        };
        let mut replay = CalendarReplay::new(code, self.counters.len(), staging_len);
        replay.state.fetcher = fetcher;
        LoweredCalendar {
            replay,
            slots: self.slots,
            sources: self.sources.list,
            sinks: self.sinks.list,
            rings: self.rings.into_iter().map(|(id, _)| id).collect(),
            live_slots: self.live_slots,
        }
    }

    fn lower_entries(&mut self, entries: &[Entry]) {
        for entry in entries {
            match entry {
                Entry::Slot(slot) => self.lower_slot(slot),
                Entry::Loop { count, body } => self.lower_loop(*count, body),
            }
        }
    }

    fn lower_loop(&mut self, count: u64, body: &[Entry]) {
        let is_repeated = self.facts.has_chunks && count > 1;
        let repeated = is_repeated.then(|| self.mark_loop(RepeatedLoop::of(body)));
        let chunk_loop = self.chunks.begin_loop(repeated);

        let loop_index = self.instrs.len();
        if self.depth == 0 {
            self.loop_resets = self.resets.len();
            self.loop_counters.clear();
        }
        self.depth += 1;
        // Its length and resets are known only behind its body.
        let unfinished_loop = Instr::Loop {
            count,
            len: 0,
            resets: (0, 0),
        };
        self.push(unfinished_loop, None);

        self.lower_entries(body);
        let body_ns = body.iter().map(planned_ns).sum::<u64>();
        if body_ns >= SHORT_BODY_NS && body_ns.saturating_mul(count) >= BEAT_NS {
            self.push(Instr::Beat, None);
        }
        self.depth -= 1;
        self.chunks.end_loop(chunk_loop, count, is_repeated);

        let body_len = (self.instrs.len() - loop_index - 1) as u32;
        // Only the outermost loop resets: its counters run on through the passes of the loops in it.
        let resets = match self.depth {
            0 => (self.loop_resets as u32, self.resets.len() as u32),
            _ => (0, 0),
        };
        self.instrs[loop_index] = Instr::Loop {
            count,
            len: body_len,
            resets,
        };
    }

    fn push(&mut self, instr: Instr, slot: Option<&Slot>) {
        self.instrs.push(instr);
        self.stages.push(slot.map_or(0, |slot| slot.stage));
        self.slots.push(slot.cloned());
    }

    /// Adds a heartbeat after an entry, if there was none for a while.
    fn add_beat(&mut self, entry: &Entry) {
        self.since_beat_ns = self.since_beat_ns.saturating_add(planned_ns(entry));
        if self.since_beat_ns >= BEAT_NS {
            self.since_beat_ns = 0;
            self.push(Instr::Beat, None);
        }
    }

    /// Finds out what this device saves at borders, and after which slots.
    fn find_saved(&mut self, calendar: &Calendar) {
        let mut last_fired = BTreeMap::new();
        let mut last_carried = BTreeMap::new();
        let top_entries = calendar.lanes.iter().flat_map(|lane| &lane.entries);
        for (index, entry) in top_entries.enumerate() {
            for_each_slot(entry, &mut |slot| {
                match slot.action {
                    Action::Fire { actor, .. } => last_fired.insert(actor, (index, slot.stage)),
                    Action::Carry { buffer } => last_carried.insert(buffer, (index, slot.stage)),
                    _ => None,
                };
            });
        }

        let graph = &self.loaded.program.graph;
        for &id in &self.facts.keepers {
            let buffer = &self.plan.buffers[id];
            if buffer.device != self.device {
                continue;
            }
            let writer = graph.channels[buffer.channel].from.actor;
            let last_slot = if buffer.is_chunked() {
                // The head is the next block's after the last chunk's carry, which may be in a loop.
                last_carried.get(&id)
            } else {
                last_fired.get(&writer)
            };
            if buffer.block_tokens > 0 && !buffer.is_chunked() {
                self.saved.insert(id);
            } else if let Some(&(index, stage)) = last_slot {
                let state = SavedState { buffer: id, stage };
                self.states.entry(index).or_default().push(state);
            }
        }
    }

    /// Saves the states that were updated, and the heads of chunks that were carried, for the last time in top-level entry
    /// `index`.
    fn save_states(&mut self, index: usize) {
        for state in self.states.remove(&index).unwrap_or_default() {
            self.save_head(state.buffer, state.stage, 0);
        }
    }

    /// Saves the head that a buffer has at the end of a block: in the place of the next block, or where states are.
    fn save_head(&mut self, id: BufferId, stage: u32, shift: u64) {
        let buffer = &self.plan.buffers[id];
        let carry_slot = Slot {
            stage,
            start_ns: 0,
            duration_ns: 0,
            action: Action::Carry { buffer: id },
        };
        let history = self.loaded.program.graph.channels[buffer.channel].history();
        let saved_tokens = border::border_tokens(buffer, history);
        let first_saved = buffer.head_tokens - saved_tokens;
        let head_port = self.port(&carry_slot, id, first_saved, saved_tokens);

        let first_port = self.ports.len() as u32;
        self.ports.push(PortSpec { shift, ..head_port });

        self.instrs.push(Instr::Save {
            ports: first_port,
            channel: buffer.channel,
        });
        self.stages.push(stage);
        self.slots.push(None);
    }

    /// The counter of a slot in a loop; it starts the outermost loop at the first count of its first slot there.
    fn loop_counter(&mut self, key: CounterKey, first: u64) -> u32 {
        if self.depth == 0 {
            return NO_COUNTER;
        }
        let next_counter = self.counters.len() as u32;
        let counter = *self.counters.entry(key).or_insert(next_counter);
        if self.loop_counters.insert(counter) {
            self.resets.push((counter, first));
        }
        counter
    }

    fn lower_slot(&mut self, slot: &Slot) {
        let instr = match slot.action {
            Action::Fire {
                actor,
                first,
                count,
            } => self.lower_fire(slot, actor, first, count),
            Action::Send { ring, first, count } => self.lower_send(slot, ring, first, count),
            Action::Recv { ring, first, count } => self.lower_receive(slot, ring, first, count),
            Action::Release { ring } => Instr::Release {
                ring: self.ring_index(ring),
            },
            Action::Carry { buffer } => self.lower_carry(slot, buffer),
            Action::Fetch { actor, .. } => Instr::Fetch {
                number: self.weights.numbers[&actor],
            },
            Action::Await { actor } => Instr::Await {
                number: self.weights.numbers[&actor],
            },
        };
        #[cfg(hosts)]
        let instr = self.over_wire(slot, instr);
        self.push(instr, Some(slot));

        if let Action::Carry { buffer } = slot.action
            && self.saved.contains(&buffer)
        {
            self.save_head(buffer, slot.stage, 1);
        }
    }

    /// The instruction for a slot of a ring whose other end is on another host.
    #[cfg(hosts)]
    fn over_wire(&self, slot: &Slot, instr: Instr) -> Instr {
        let (Action::Send { ring, .. } | Action::Recv { ring, .. } | Action::Release { ring }) =
            slot.action
        else {
            return instr;
        };
        let Some(&wired) = self.wired_rings.get(&ring) else {
            return instr;
        };
        match instr {
            Instr::Send {
                ring,
                ports,
                tokens,
                counter,
                end,
            } => Instr::WireSend {
                ring,
                wired,
                ports,
                tokens,
                counter,
                end,
            },
            Instr::Recv {
                ring,
                tokens,
                counter,
                end,
                ..
            } => Instr::WireRecv {
                ring,
                wired,
                tokens,
                counter,
                end,
            },
            Instr::Release { .. } => Instr::WireRelease { wired },
            other => other,
        }
    }

    fn lower_send(&mut self, slot: &Slot, ring: RingId, first: u64, count: u64) -> Instr {
        let counter = self.loop_counter(CounterKey::Send(ring), first);
        let first_port = self.send_ports(slot, ring, first, count);
        Instr::Send {
            ring: self.ring_index(ring),
            ports: first_port,
            tokens: count,
            counter,
            end: first + count,
        }
    }

    fn lower_receive(&mut self, slot: &Slot, ring: RingId, first: u64, count: u64) -> Instr {
        let counter = self.loop_counter(CounterKey::Recv(ring), first);
        let buffer = self.plan.rings[ring].buffer;
        let head_tokens = self.plan.buffers[buffer].head_tokens;

        let first_port = self.ports.len() as u32;
        let block_start = self.port(slot, buffer, head_tokens, 0);
        self.taps.push(ProbeTap {
            channel: self.plan.rings[ring].channel,
            pc: self.instrs.len() as u32,
            port: first_port,
            moves: false,
            counter,
            first,
            count,
            unit_bytes: self.loaded.program.graph.channels[self.plan.rings[ring].channel]
                .token
                .bytes(),
            block_bytes: self.block_bytes(buffer),
        });
        self.ports.push(block_start);

        Instr::Recv {
            ring: self.ring_index(ring),
            ports: first_port,
            tokens: count,
            counter,
            end: first + count,
        }
    }

    fn lower_carry(&mut self, slot: &Slot, id: BufferId) -> Instr {
        let buffer = &self.plan.buffers[id];
        let first_port = self.ports.len() as u32;

        // The last h of the h + t tokens of a place, its head and its new ones, begin at token t.
        let from = self.port(slot, id, buffer.chunk_tokens, buffer.head_tokens);
        let to = PortSpec {
            shift: 1,
            ..self.port(slot, id, 0, buffer.head_tokens)
        };
        self.ports.extend([from, to]);
        self.chunks.carry(id);
        Instr::Carry { ports: first_port }
    }

    /// Tokens `[first, first + count)` of a buffer's place, counted from the head.
    fn port(&self, slot: &Slot, id: BufferId, first: u64, count: u64) -> PortSpec {
        let buffer = &self.plan.buffers[id];
        let token = &self.loaded.program.graph.channels[buffer.channel].token;
        let offset_bytes = first * token.bytes();

        PortSpec {
            base: self.memory.base(buffer).wrapping_add(offset_bytes as usize),
            bytes: (count * token.bytes()) as usize,
            dtype: token.dtype,
            stride: buffer.stride_bytes as usize,
            blocks: u64::from(buffer.blocks),
            stage: u64::from(slot.stage),
            shift: 0,
            step: 0,
            mark: NO_COUNTER,
        }
    }

    /// A port in a loop begins where the counter is 0 and moves on by `rate` tokens a count.
    fn looped_port(&self, mut port: PortSpec, token_bytes: u64, first: u64, rate: u64) -> PortSpec {
        if self.depth > 0 {
            let step_bytes = rate * token_bytes;
            port.step = step_bytes as usize;
            port.base = port.base.wrapping_sub((first * step_bytes) as usize);
        }
        port
    }

    fn send_ports(&mut self, slot: &Slot, ring: RingId, first: u64, count: u64) -> u32 {
        let ring = &self.plan.rings[ring];
        let from_buffer = self.facts.buffers[&(ring.channel, ring.from)];
        let channel = &self.loaded.program.graph.channels[ring.channel];
        let token_bytes = channel.token.bytes();

        let first_port = self.ports.len() as u32;
        for buffer in [from_buffer, ring.buffer] {
            let head_tokens = self.plan.buffers[buffer].head_tokens;
            let block_port = self.port(slot, buffer, head_tokens + first, count);
            let port = self.looped_port(block_port, token_bytes, first, 1);
            self.ports.push(port);
        }
        first_port
    }

    /// The number of a ring among those of this calendar.
    fn ring_index(&mut self, ring: RingId) -> u32 {
        let next_index = self.rings.len() as u32;
        let index = *self.ring_indices.entry(ring).or_insert(next_index);
        if index < next_index {
            return index;
        }

        let buffer = &self.plan.buffers[self.plan.rings[ring].buffer];
        let channel = &self.loaded.program.graph.channels[buffer.channel];
        let first_send = self.sends.len();
        if let Some(sums) = self.sums {
            self.sends.extend(&sums.sends[ring]);
        }
        let spec = RingSpec {
            sync: ring.0,
            block_tokens: buffer.block_tokens,
            blocks: u64::from(buffer.blocks),
            token_bytes: channel.token.bytes(),
            sums: self.sums.map_or(0, |sums| sums.firsts[ring.0 as usize]),
            sends: (first_send, self.sends.len() - first_send),
        };
        self.rings.push((ring, spec));
        index
    }

    fn lower_fire(&mut self, slot: &Slot, id: ActorId, first: u64, count: u64) -> Instr {
        let counter = self.loop_counter(CounterKey::Actor(id), first);
        let first_port = self.ports.len() as u32;
        // In this order: a kernel finds its inputs, outputs and states in a row behind `first_port`.
        let shape = CallShape {
            firings: count as usize,
            inputs: self.input_ports(slot, id, first, count),
            outputs: self.output_ports(slot, id, first..first + count, counter),
            states: self.state_ports(slot, id),
            over: self.facts.over.contains(&id),
        };

        let actor = &self.loaded.program.graph.actors[id];
        if has_live(actor) {
            self.add_live_slot(slot, id, first);
        }
        // Kernels outside of loops have fixed ports, and need no counter.
        let fetched = self.weights.kernels.get(&id);
        let kernel = fetched.or_else(|| self.loaded.kernels.of(self.plan, id));
        if let Some(kernel) = kernel {
            let held = self.kernels.entry(id);
            held.or_insert_with(|| Arc::clone(kernel));
        }
        match (&actor.role, kernel) {
            (Role::Compute, Some(kernel)) if counter == NO_COUNTER => Instr::Fire {
                kernel: Arc::as_ptr(kernel),
                shape,
                ports: first_port,
            },
            (Role::Compute, Some(kernel)) if self.has_marks(first_port) => Instr::ChunkFire {
                kernel: Arc::as_ptr(kernel),
                shape,
                ports: first_port,
                counter,
            },
            (Role::Compute, Some(kernel)) => Instr::LoopFire {
                kernel: Arc::as_ptr(kernel),
                shape,
                ports: first_port,
                counter,
            },
            (Role::Source, _) => Instr::Source {
                source: self.sources.index_of(id),
                ports: first_port,
                firings: count,
                counter,
            },
            (Role::Sink, _) => Instr::Sink {
                sink: self.sinks.index_of(id),
                ports: first_port,
                firings: count,
                counter,
                end: first + count,
            },
            (Role::Compute, None) => {
                unreachable!("the engine makes a kernel for every compute actor")
            }
        }
    }

    /// Notes that the next instruction fires an actor with live parameters.
    fn add_live_slot(&mut self, slot: &Slot, id: ActorId, first: u64) {
        let actor = &self.loaded.program.graph.actors[id];
        let inputs = (0..).zip(&actor.inputs);
        let inputs = inputs.filter(|(index, _)| actor.state_of_input(*index).is_none());
        let outputs = (0..).zip(&actor.outputs);
        let outputs = outputs.filter(|(index, _)| actor.state_of_output(*index).is_none());

        // In the order of the ports of a call: states stay where they are.
        let of_inputs = inputs.map(|(_, port)| port.rate * port.token.bytes());
        let of_outputs = outputs.map(|(_, port)| port.rate * port.token.bytes());
        let of_states = actor.state.iter().map(|_| 0);
        let steps = of_inputs.chain(of_outputs).chain(of_states);
        self.live_slots.push(LiveSlot {
            pc: self.instrs.len(),
            actor: id,
            stage: u64::from(slot.stage),
            first,
            block_firings: self.plan.block * self.loaded.repetition[id],
            steps: steps.map(|bytes| bytes as usize).collect(),
        });
    }

    fn input_ports(&mut self, slot: &Slot, id: ActorId, first: u64, count: u64) -> u16 {
        let graph = &self.loaded.program.graph;
        let actor = &graph.actors[id];
        let mut port_count = 0;
        for (index, input) in actor.inputs.iter().enumerate() {
            let Some((channel, reader)) = self.loaded.port_channels.inputs[id][index] else {
                continue;
            };
            if actor.state_of_input(index as u32).is_some() {
                continue;
            }

            let reader_delay = graph.channels[channel].readers[reader as usize].delay;
            let buffer = self.facts.buffers[&(channel, self.device)];
            // The head holds the tokens before the block; a reader with a delay begins that far before the block's first token.
            let first_token = self.place_position(buffer, first * input.rate, reader_delay);
            // A sink takes its tokens, and never more than them: its stream has no windows.
            let window_tokens = match actor.role {
                Role::Sink => input.rate,
                Role::Source | Role::Compute => input.window,
            };
            // Successive windows begin `rate` tokens apart, so all but the last add only their step.
            let token_count = (count - 1) * input.rate + window_tokens;
            let block_port = self.port(slot, buffer, first_token, token_count);
            let step_tokens = (input.rate, input.token.bytes());
            let port = self.actor_port(block_port, (id, buffer), first, step_tokens);

            self.ports.push(port);
            port_count += 1;
        }
        port_count
    }

    /// The ports of the outputs, each of which can be looked at behind the instruction that is added next.
    fn output_ports(&mut self, slot: &Slot, id: ActorId, firings: Range<u64>, counter: u32) -> u16 {
        let Range { start: first, end } = firings;
        let count = end - first;
        let actor = &self.loaded.program.graph.actors[id];
        let mut port_count = 0;
        for (index, output) in actor.outputs.iter().enumerate() {
            let Some(channel) = self.loaded.port_channels.outputs[id][index] else {
                continue;
            };
            if actor.state_of_output(index as u32).is_some() {
                continue;
            }

            let buffer = self.facts.buffers[&(channel, self.device)];
            let first_token = self.place_position(buffer, first * output.rate, 0);
            let block_port = self.port(slot, buffer, first_token, count * output.rate);
            let step_tokens = (output.rate, output.token.bytes());
            let port = self.actor_port(block_port, (id, buffer), first, step_tokens);
            self.taps.push(ProbeTap {
                channel,
                pc: self.instrs.len() as u32,
                port: self.ports.len() as u32,
                moves: true,
                counter,
                first,
                count,
                unit_bytes: output.rate * output.token.bytes(),
                block_bytes: self.block_bytes(buffer),
            });
            self.ports.push(port);
            port_count += 1;
        }
        port_count
    }

    /// Bytes of a whole block of a buffer's channel.
    fn block_bytes(&self, id: BufferId) -> u64 {
        let buffer = &self.plan.buffers[id];
        let token = &self.loaded.program.graph.channels[buffer.channel].token;
        buffer.block_tokens * token.bytes()
    }

    fn state_ports(&mut self, slot: &Slot, id: ActorId) -> u16 {
        let actor = &self.loaded.program.graph.actors[id];
        for state in &actor.state {
            let outputs = &self.loaded.port_channels.outputs[id];
            let Some(channel) = outputs[state.output as usize] else {
                continue;
            };
            let state_buffer = self.facts.buffers[&(channel, self.device)];
            let state_port = self.port(slot, state_buffer, 0, 1);
            self.ports.push(state_port);
        }
        actor.state.len() as u16
    }
}

/// Calls `each` with every slot of an entry, in order.
fn for_each_slot(entry: &Entry, each: &mut impl FnMut(&Slot)) {
    match entry {
        Entry::Loop { body, .. } => {
            for entry in body {
                for_each_slot(entry, each);
            }
        }
        Entry::Slot(slot) => each(slot),
    }
}

/// Actors in the order in which they were first asked for.
#[derive(Default)]
struct ActorNumbers {
    list: Vec<ActorId>,
    indices: BTreeMap<ActorId, u32>,
}

impl ActorNumbers {
    fn index_of(&mut self, id: ActorId) -> u32 {
        let next_index = self.list.len() as u32;
        let index = *self.indices.entry(id).or_insert(next_index);
        if index == next_index {
            self.list.push(id);
        }
        index
    }
}

/// Periods after which all places repeat; 0 if that is too many for a table.
fn table_phases(ports: &[PortSpec]) -> u64 {
    let mut common_multiple = 1u64;
    for port in ports {
        common_multiple = common_multiple / gcd_u64(common_multiple, port.blocks) * port.blocks;
        if common_multiple > MAX_PHASES || common_multiple * ports.len() as u64 > MAX_TABLE {
            return 0;
        }
    }
    common_multiple
}
