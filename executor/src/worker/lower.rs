//! Lowers the calendar of one device to instructions, and gives a plan its memory. Must not run anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbmd_backends::kernel::{Scratch, Shape};
use zbmd_ir::{
    Action, ActorId, BufferId, Calendar, ChannelId, DeviceId, Entry, Plan, RingId, Role, Slot,
    trace::OTHER,
};

use super::border;
use super::instructions::{Instr, NO_COUNTER, PortSpec, ReplayCode, RingSpec};
use super::memory::WorkerMemory;
use super::replay::CalendarReplay;
use crate::program::{LoadedProgram, planned_ns};
use crate::transport::checksum::{Sums, sums_of};

/// Rows of the address table beyond which addresses are worked out anew for each period.
const MAX_PHASES: u64 = 64;
/// Entries of the address table beyond which the same is done: it would no longer fit the caches.
const MAX_TABLE: u64 = 1 << 18;

/// How often a supervised run does a slot again whose kernel reports a fault.
const RETRIES: u32 = 3;

/// A worker says about so often that it gets on, in long periods too…
const BEAT_NS: u64 = 1_000_000;
/// …but not in loops whose body is as short as the saying.
const SHORT_NS: u64 = 2_000;

/// A device's calendar as instructions, and what people call each of them.
pub(crate) struct LoweredCalendar {
    pub replay: CalendarReplay,
    /// The slot of each instruction; `None` for loops.
    pub slots: Vec<Option<Slot>>,
    /// Sources and sinks of the calendar, in the order in which instructions number them.
    pub sources: Vec<ActorId>,
    pub sinks: Vec<ActorId>,
    /// Rings in the order of the replay's peers.
    pub rings: Vec<RingId>,
}

/// What a counter of loops counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CounterKey {
    Actor(ActorId),
    Send(RingId),
    Recv(RingId),
}

struct Lowering<'a> {
    loaded: &'a LoadedProgram,
    plan: &'a Plan,
    device: DeviceId,
    memory: &'a WorkerMemory,
    places: BTreeMap<(ChannelId, DeviceId), BufferId>,
    /// Actors that write over inputs.
    over: BTreeSet<ActorId>,
    instrs: Vec<Instr>,
    slots: Vec<Option<Slot>>,
    stages: Vec<u32>,
    ports: Vec<PortSpec>,
    rings: Vec<(RingId, RingSpec)>,
    ring_indices: BTreeMap<RingId, u32>,
    /// Token ranges of the `Send`s of the rings so far, and where the checksums of all rings lie.
    sends: Vec<(u64, u64)>,
    sums: Option<Sums>,
    resets: Vec<(u32, u64)>,
    counters: BTreeMap<CounterKey, u32>,
    /// Start of the resets of the outermost loop at work, and the counters that it has.
    loop_resets: usize,
    loop_counters: BTreeSet<u32>,
    depth: usize,
    /// Planned time since the worker last said that it gets on.
    since_ns: u64,
    sources: ActorNumbers,
    sinks: ActorNumbers,
    /// Channels whose tokens this device saves at borders, by the buffer that they are carried in.
    saved: BTreeSet<BufferId>,
    /// States to be saved, by the actor that updates them, and the top-level entry that fires it last.
    states: BTreeMap<usize, Vec<(BufferId, u32)>>,
}

/// Lowers the calendar of one device of a verified plan that [`check_plan`](crate::unsupported::check_plan) accepted.
pub(crate) fn lower(
    loaded: &LoadedProgram,
    plan: &Plan,
    calendar: &Calendar,
    memory: &WorkerMemory,
) -> LoweredCalendar {
    let places = plan
        .buffers
        .iter_enumerated()
        .map(|(id, b)| ((b.channel, b.device), id))
        .collect();
    let mut lowering = Lowering {
        loaded,
        plan,
        device: calendar.device,
        memory,
        places,
        over: plan
            .over(&loaded.program.graph)
            .into_iter()
            .map(|o| o.actor)
            .collect(),
        instrs: Vec::new(),
        slots: Vec::new(),
        stages: Vec::new(),
        ports: Vec::new(),
        rings: Vec::new(),
        ring_indices: BTreeMap::new(),
        sends: Vec::new(),
        sums: (!memory.epoch.sums.is_empty()).then(|| sums_of(plan)),
        resets: Vec::new(),
        counters: BTreeMap::new(),
        loop_resets: 0,
        loop_counters: BTreeSet::new(),
        since_ns: 0,
        depth: 0,
        sources: ActorNumbers::default(),
        sinks: ActorNumbers::default(),
        saved: BTreeSet::new(),
        states: BTreeMap::new(),
    };
    if memory.epoch.borders().is_some() {
        lowering.find_saved(calendar);
    }
    let mut at = 0;
    for lane in &calendar.lanes {
        for entry in &lane.entries {
            lowering.entries(std::slice::from_ref(entry));
            lowering.save_states(at);
            lowering.add_beat(entry);
            at += 1;
        }
    }
    lowering.finish(calendar)
}

impl Lowering<'_> {
    fn finish(self, calendar: &Calendar) -> LoweredCalendar {
        let scratch = self
            .memory
            .own
            .base()
            .wrapping_add(calendar.scratch_offset_bytes as usize);
        let staging = self.instrs.iter().map(|i| match i {
            Instr::LoopFire { shape, .. } => shape.total(),
            _ => 0,
        });
        let staging = staging.max().unwrap_or(0);
        let mut numbers = 0..;
        let names = self.slots.iter().map(|slot| match slot {
            Some(_) => numbers.next().unwrap_or(OTHER),
            None => OTHER,
        });
        let names = names.collect();
        let code = ReplayCode {
            stages: self.stages.into(),
            names,
            phases: phases(&self.ports),
            instrs: self.instrs.into(),
            ports: self.ports.into(),
            rings: self.rings.iter().map(|(_, spec)| *spec).collect(),
            resets: self.resets.into(),
            sends: self.sends.into(),
            stages_total: self.plan.stages,
            retries: if self.memory.epoch.borders().is_some() {
                RETRIES
            } else {
                0
            },
            scratch: Scratch(scratch, calendar.scratch_bytes as usize),
            _kernels: self.loaded.kernels.all().cloned().collect(),
            _arenas: [
                Arc::clone(&self.memory.own),
                Arc::clone(self.memory.epoch.arena()),
            ],
        };
        LoweredCalendar {
            replay: CalendarReplay::new(code, self.counters.len(), staging),
            slots: self.slots,
            sources: self.sources.list,
            sinks: self.sinks.list,
            rings: self.rings.into_iter().map(|(id, _)| id).collect(),
        }
    }

    fn entries(&mut self, entries: &[Entry]) {
        for entry in entries {
            match entry {
                Entry::Slot(slot) => self.slot(slot),
                Entry::Loop { count, body } => self.loop_entry(*count, body),
            }
        }
    }

    fn loop_entry(&mut self, count: u64, body: &[Entry]) {
        let head = self.instrs.len();
        if self.depth == 0 {
            self.loop_resets = self.resets.len();
            self.loop_counters.clear();
        }
        self.depth += 1;
        self.push(
            Instr::Loop {
                count,
                len: 0,
                resets: (0, 0),
            },
            None,
        );
        self.entries(body);
        let body_ns = body.iter().map(planned_ns).sum::<u64>();
        if body_ns >= SHORT_NS && body_ns.saturating_mul(count) >= BEAT_NS {
            self.push(Instr::Beat, None);
        }
        self.depth -= 1;
        let len = (self.instrs.len() - head - 1) as u32;
        let resets = match self.depth {
            0 => (self.loop_resets as u32, self.resets.len() as u32),
            _ => (0, 0),
        };
        self.instrs[head] = Instr::Loop { count, len, resets };
    }

    fn push(&mut self, instr: Instr, slot: Option<&Slot>) {
        self.instrs.push(instr);
        self.stages.push(slot.map_or(0, |s| s.stage));
        self.slots.push(slot.cloned());
    }

    /// Lets the worker say that it gets on, after an entry, if it has not been able to for a while.
    fn add_beat(&mut self, entry: &Entry) {
        self.since_ns = self.since_ns.saturating_add(planned_ns(entry));
        if self.since_ns >= BEAT_NS {
            self.since_ns = 0;
            self.push(Instr::Beat, None);
        }
    }

    /// Finds out what this device saves at borders, and after which slots.
    fn find_saved(&mut self, calendar: &Calendar) {
        let mut last_fired = BTreeMap::new();
        let entries = calendar.lanes.iter().flat_map(|l| &l.entries);
        for (at, entry) in entries.enumerate() {
            fired(entry, &mut |actor, stage| {
                last_fired.insert(actor, (at, stage));
            });
        }
        for id in border::keepers(&self.loaded.program.graph, self.plan) {
            let buffer = &self.plan.buffers[id];
            if buffer.device != self.device {
                continue;
            }
            let writer = self.loaded.program.graph.channels[buffer.channel]
                .from
                .actor;
            if buffer.block_tokens > 0 {
                self.saved.insert(id);
            } else if let Some(&(at, stage)) = last_fired.get(&writer) {
                self.states.entry(at).or_default().push((id, stage));
            }
        }
    }

    /// Saves the states that were updated for the last time in top-level entry `at`.
    fn save_states(&mut self, at: usize) {
        for (buffer, stage) in self.states.remove(&at).unwrap_or_default() {
            self.save(buffer, stage, 0);
        }
    }

    /// Saves the head that a buffer has at the end of a block: in the place of the next block, or where states lie.
    fn save(&mut self, id: BufferId, stage: u32, shift: u64) {
        let buffer = &self.plan.buffers[id];
        let slot = Slot {
            stage,
            start_ns: 0,
            duration_ns: 0,
            action: Action::Carry { buffer: id },
        };
        let port = self.port(&slot, id, 0, buffer.head_tokens);
        let ports = self.ports.len() as u32;
        self.ports.push(PortSpec { shift, ..port });
        self.instrs.push(Instr::Save {
            ports,
            channel: buffer.channel,
        });
        self.stages.push(stage);
        self.slots.push(None);
    }

    /// The counter of a slot in a loop; it starts the outermost loop at the first count of its first slot there.
    fn counter(&mut self, counted: CounterKey, first: u64) -> u32 {
        if self.depth == 0 {
            return NO_COUNTER;
        }
        let next = self.counters.len() as u32;
        let counter = *self.counters.entry(counted).or_insert(next);
        if self.loop_counters.insert(counter) {
            self.resets.push((counter, first));
        }
        counter
    }

    fn slot(&mut self, slot: &Slot) {
        let instr = match slot.action {
            Action::Fire {
                actor,
                first,
                count,
            } => self.fire(slot, actor, first, count),
            Action::Send { ring, first, count } => {
                let counter = self.counter(CounterKey::Send(ring), first);
                let ports = self.send_ports(slot, ring, first, count);
                let ring = self.ring(ring);
                Instr::Send {
                    ring,
                    ports,
                    tokens: count,
                    counter,
                    end: first + count,
                }
            }
            Action::Recv { ring, first, count } => {
                let counter = self.counter(CounterKey::Recv(ring), first);
                let buffer = self.plan.rings[ring].buffer;
                let head = self.plan.buffers[buffer].head_tokens;
                let ports = self.ports.len() as u32;
                let block = self.port(slot, buffer, head, 0);
                self.ports.push(block);
                let ring = self.ring(ring);
                Instr::Recv {
                    ring,
                    ports,
                    tokens: count,
                    counter,
                    end: first + count,
                }
            }
            Action::Release { ring } => Instr::Release {
                ring: self.ring(ring),
            },
            Action::Carry { buffer } => {
                let (h, t) = {
                    let b = &self.plan.buffers[buffer];
                    (b.head_tokens, b.block_tokens)
                };
                let ports = self.ports.len() as u32;
                // The last h of the h + t tokens begin at token t.
                let from = self.port(slot, buffer, t, h);
                let to = PortSpec {
                    shift: 1,
                    ..self.port(slot, buffer, 0, h)
                };
                self.ports.extend([from, to]);
                Instr::Carry { ports }
            }
        };
        self.push(instr, Some(slot));
        if let Action::Carry { buffer } = slot.action
            && self.saved.contains(&buffer)
        {
            self.save(buffer, slot.stage, 1);
        }
    }

    /// Tokens `[first, first + count)` of a buffer's place, counted from the head.
    fn port(&self, slot: &Slot, buffer: BufferId, first: u64, count: u64) -> PortSpec {
        let b = &self.plan.buffers[buffer];
        let token = &self.loaded.program.graph.channels[b.channel].token;
        let offset = first * token.bytes();
        PortSpec {
            base: self.memory.base(b).wrapping_add(offset as usize),
            bytes: (count * token.bytes()) as usize,
            dtype: token.dtype,
            stride: b.stride_bytes as usize,
            blocks: u64::from(b.blocks),
            stage: u64::from(slot.stage),
            shift: 0,
            step: 0,
        }
    }

    /// A port in a loop begins where the counter is 0 and moves on by `rate` tokens a count.
    fn looped(&self, mut port: PortSpec, token_bytes: u64, first: u64, rate: u64) -> PortSpec {
        if self.depth > 0 {
            port.step = (rate * token_bytes) as usize;
            port.base = port
                .base
                .wrapping_sub((first * rate * token_bytes) as usize);
        }
        port
    }

    fn send_ports(&mut self, slot: &Slot, ring: RingId, first: u64, count: u64) -> u32 {
        let r = &self.plan.rings[ring];
        let from_buffer = self.places[&(r.channel, r.from)];
        let token_bytes = self.loaded.program.graph.channels[r.channel].token.bytes();
        let at = self.ports.len() as u32;
        for buffer in [from_buffer, r.buffer] {
            let head = self.plan.buffers[buffer].head_tokens;
            let port = self.port(slot, buffer, head + first, count);
            let port = self.looped(port, token_bytes, first, 1);
            self.ports.push(port);
        }
        at
    }

    fn ring(&mut self, ring: RingId) -> u32 {
        let next = self.rings.len() as u32;
        let index = *self.ring_indices.entry(ring).or_insert(next);
        if index < next {
            return index;
        }
        let buffer = &self.plan.buffers[self.plan.rings[ring].buffer];
        let first = self.sends.len();
        if let Some(sums) = &self.sums {
            self.sends.extend(&sums.sends[ring]);
        }
        let spec = RingSpec {
            sync: ring.0,
            block_tokens: buffer.block_tokens,
            blocks: u64::from(buffer.blocks),
            token_bytes: self.loaded.program.graph.channels[buffer.channel]
                .token
                .bytes(),
            sums: self
                .sums
                .as_ref()
                .map_or(0, |sums| sums.firsts[ring.0 as usize]),
            sends: (first, self.sends.len() - first),
        };
        self.rings.push((ring, spec));
        index
    }

    fn fire(&mut self, slot: &Slot, id: ActorId, first: u64, count: u64) -> Instr {
        let counter = self.counter(CounterKey::Actor(id), first);
        let at = self.ports.len() as u32;
        let shape = Shape {
            firings: count as usize,
            inputs: self.input_ports(slot, id, first, count),
            outputs: self.output_ports(slot, id, first, count),
            states: self.state_ports(slot, id),
            over: self.over.contains(&id),
        };
        let actor = &self.loaded.program.graph.actors[id];
        match (&actor.role, self.loaded.kernels.of(self.plan, id)) {
            (Role::Compute, Some(kernel)) => {
                let (kernel, ports) = (Arc::as_ptr(kernel), at);
                if counter == NO_COUNTER {
                    Instr::Fire {
                        kernel,
                        shape,
                        ports,
                    }
                } else {
                    Instr::LoopFire {
                        kernel,
                        shape,
                        ports,
                        counter,
                    }
                }
            }
            (Role::Source, _) => {
                let source = self.sources.index_of(id);
                Instr::Source {
                    source,
                    ports: at,
                    firings: count,
                    counter,
                }
            }
            (Role::Sink, _) => {
                let sink = self.sinks.index_of(id);
                Instr::Sink {
                    sink,
                    ports: at,
                    firings: count,
                    counter,
                    end: first + count,
                }
            }
            (Role::Compute, None) => {
                unreachable!("the engine makes a kernel for every compute actor")
            }
        }
    }

    fn input_ports(&mut self, slot: &Slot, id: ActorId, first: u64, count: u64) -> u16 {
        let actor = &self.loaded.program.graph.actors[id];
        let mut ports = 0;
        for (i, input) in actor.inputs.iter().enumerate() {
            let Some((channel, reader)) = self.loaded.port_channels.inputs[id][i] else {
                continue;
            };
            if actor.state_of_input(i as u32).is_some() {
                continue;
            }
            let delay = self.loaded.program.graph.channels[channel].readers[reader as usize].delay;
            let buffer = self.places[&(channel, self.device)];
            let start = self.plan.buffers[buffer].head_tokens - delay + first * input.rate;
            // A sink takes its tokens, and never more than them: its stream has no windows.
            let window = if actor.role == Role::Sink {
                input.rate
            } else {
                input.window
            };
            let port = self.port(slot, buffer, start, (count - 1) * input.rate + window);
            let port = self.looped(port, input.token.bytes(), first, input.rate);
            self.ports.push(port);
            ports += 1;
        }
        ports
    }

    fn output_ports(&mut self, slot: &Slot, id: ActorId, first: u64, count: u64) -> u16 {
        let actor = &self.loaded.program.graph.actors[id];
        let mut ports = 0;
        for (o, output) in actor.outputs.iter().enumerate() {
            let Some(channel) = self.loaded.port_channels.outputs[id][o] else {
                continue;
            };
            if actor.state_of_output(o as u32).is_some() {
                continue;
            }
            let buffer = self.places[&(channel, self.device)];
            let start = self.plan.buffers[buffer].head_tokens + first * output.rate;
            let port = self.port(slot, buffer, start, count * output.rate);
            let port = self.looped(port, output.token.bytes(), first, output.rate);
            self.ports.push(port);
            ports += 1;
        }
        ports
    }

    fn state_ports(&mut self, slot: &Slot, id: ActorId) -> u16 {
        let actor = &self.loaded.program.graph.actors[id];
        for state in &actor.state {
            let Some(channel) = self.loaded.port_channels.outputs[id][state.output as usize] else {
                continue;
            };
            let buffer = self.places[&(channel, self.device)];
            let port = self.port(slot, buffer, 0, 1);
            self.ports.push(port);
        }
        actor.state.len() as u16
    }
}

/// Calls `each` with the actor and stage of every fire slot of an entry, in order.
fn fired(entry: &Entry, each: &mut impl FnMut(ActorId, u32)) {
    match entry {
        Entry::Loop { body, .. } => body.iter().for_each(|entry| fired(entry, each)),
        Entry::Slot(Slot {
            stage,
            action: Action::Fire { actor, .. },
            ..
        }) => each(*actor, *stage),
        Entry::Slot(_) => {}
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
        let next = self.list.len() as u32;
        let index = *self.indices.entry(id).or_insert(next);
        if index == next {
            self.list.push(id);
        }
        index
    }
}

/// Periods after which all places repeat; 0 if that is too many for a table.
fn phases(ports: &[PortSpec]) -> u64 {
    let mut common = 1u64;
    for port in ports {
        common = common / gcd(common, port.blocks) * port.blocks;
        if common > MAX_PHASES || common * ports.len() as u64 > MAX_TABLE {
            return 0;
        }
    }
    common
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
