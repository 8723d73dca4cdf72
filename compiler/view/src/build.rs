//! From a verified program to a [`View`].

use std::cmp::Ordering;
use std::collections::BTreeMap;

use zbmd_gpu_ir::Math;
use zbmd_ir::text::printable;
use zbmd_ir::verify::Verified;
use zbmd_ir::walk::{SlotVisit, visit_slots};
use zbmd_ir::{
    Action, Buffer, BufferId, Channel, ChannelId, DeviceId, Gate, Graph, Machine, Plan,
    PortChannels, Program, Region, Role, text, verify,
};

use super::expand::{Expansion, parts};
use super::stages::{changes_of_device, stage_boundaries};
use super::{
    Act, ActorView, BufferView, ChannelView, ContingencyView, DeviceView, FORMAT, FiredView,
    GateView, LaneView, LinkView, LoadView, MemoryView, PlanView, PortView, ReaderView, RingView,
    TransferView, VERSION, View, lane_kind,
};

pub(super) fn view(program: &Verified<Program>, meta: &BTreeMap<String, String>) -> View {
    let graph = &program.graph;
    let machine = &program.machine;
    let ports = graph.port_channels();
    let actors = actor_views(program, &ports);
    let channels = channel_views(graph);
    let plans = program.plans.iter();
    let plans = plans
        .map(|plan| plan_view(program, &ports, plan, &actors, &channels))
        .collect();

    let table = &program.contingencies;
    View {
        format: FORMAT,
        version: VERSION,
        model: graph.name.clone(),
        meta: meta
            .iter()
            .map(|(word, value)| (printable(word).into_owned(), printable(value).into_owned()))
            .collect(),
        devices: device_views(machine),
        links: link_views(machine),
        actors,
        channels,
        replicated: text::replicas(graph)
            .into_iter()
            .map(|(n, k)| (n.to_owned(), k))
            .collect(),
        rounded: rounded_actors(graph),
        plans,
        kinds: table.kinds.iter().map(|devices| numbers(devices)).collect(),
        alike_hosts: table
            .alike_hosts
            .iter()
            .map(|hosts| hosts.iter().map(|host| numbers(host)).collect())
            .collect(),
        contingencies: table
            .list
            .iter()
            .map(|entry| ContingencyView {
                lost: text::loss(machine, table, &entry.lost),
                counts: entry.lost.iter().map(|l| (l.kind.0, l.count)).collect(),
                plan: entry.main.0,
                tail: entry.tail.map(|tail| tail.0),
            })
            .collect(),
        modes: None,
        measured: None,
    }
}

/// How many actors round the factors of products, by the type that they round to.
fn rounded_actors(graph: &Graph) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for word in graph
        .actors
        .iter()
        .filter_map(|a| a.params.get(Math::PARAM)?.as_str())
    {
        *counts.entry(printable(word).into_owned()).or_default() += 1;
    }

    // f32 is what products are computed in without rounding.
    counts.remove(Math::F32.name());
    counts
}

fn numbers(devices: &[DeviceId]) -> Vec<u32> {
    devices.iter().map(|device| device.0).collect()
}

fn device_views(machine: &Machine) -> Vec<DeviceView> {
    let host_of = machine.hosts_of_devices();
    let views = machine
        .devices
        .iter_enumerated()
        .map(|(id, device)| DeviceView {
            name: device.name.clone(),
            backend: device.backend.to_string(),
            memory_bytes: device.memory_bytes,
            host: host_of
                .get(&id)
                .map(|host| machine.hosts[*host].name.clone()),
        });
    views.collect()
}

fn link_views(machine: &Machine) -> Vec<LinkView> {
    let links = machine.links.iter();
    let views = links.map(|link| LinkView {
        from: link.from.0,
        to: link.to.0,
        bytes_per_s: link.bytes_per_s,
        latency_ns: link.latency_ns,
    });
    views.collect()
}

fn actor_views(program: &Program, ports: &PortChannels) -> Vec<ActorView> {
    // A verified program has a repetition vector.
    let repetitions = verify::graph::repetition(&program.graph).unwrap_or_default();
    let mut views = Vec::with_capacity(program.graph.actors.len());
    for (id, actor) in program.graph.actors.iter_enumerated() {
        let inputs = actor.inputs.iter().zip(&ports.inputs[id]);
        let outputs = actor.outputs.iter().zip(&ports.outputs[id]);
        views.push(ActorView {
            name: actor.name.clone(),
            label: Some(text::actor_label(actor)).filter(|label| *label != actor.name),
            op: text::op(actor),
            role: role_name(actor.role),
            repetitions: repetitions.get(id).copied().unwrap_or(0),
            inputs: inputs
                .map(|(port, joined)| PortView {
                    name: port.name.clone(),
                    rate: port.rate,
                    window: port.window,
                    channel: channel_number(joined.map(|(channel, _)| channel)),
                })
                .collect(),
            outputs: outputs
                .map(|(port, joined)| PortView {
                    name: port.name.clone(),
                    rate: port.rate,
                    window: port.rate,
                    channel: channel_number(*joined),
                })
                .collect(),
            gate: actor.gate().map(gate_view),
        });
    }
    views
}

pub(super) fn gate_view(gate: &Gate) -> GateView {
    GateView {
        input: gate.input,
        outputs: gate.outputs.iter().map(|answer| answer.name()).collect(),
        states: gate.states.name(),
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Compute => "compute",
        Role::Source => "source",
        Role::Sink => "sink",
    }
}

fn channel_number(channel: Option<ChannelId>) -> u32 {
    channel.map_or(u32::MAX, |channel| channel.0)
}

fn channel_views(graph: &Graph) -> Vec<ChannelView> {
    let channels = graph.channels.iter_enumerated();
    channels
        .map(|(id, channel)| channel_view(graph, id, channel))
        .collect()
}

fn channel_view(graph: &Graph, id: ChannelId, channel: &Channel) -> ChannelView {
    let writer = &graph.actors[channel.from.actor];
    let port = &writer.outputs[channel.from.port as usize];
    let readers = channel.readers.iter();
    ChannelView {
        name: format!("{}.{}", writer.name, port.name),
        from: channel.from.actor.0,
        rate: port.rate,
        readers: readers
            .map(|reader| ReaderView {
                actor: reader.to.actor.0,
                port: reader.to.port,
                delay: reader.delay,
            })
            .collect(),
        token: channel.token.to_string(),
        token_bytes: channel.token.bytes(),
        initial: channel.history(),
        state: graph.is_state(id),
    }
}

fn plan_view(
    program: &Program,
    ports: &PortChannels,
    plan: &Plan,
    actors: &[ActorView],
    channels: &[ChannelView],
) -> PlanView {
    let mut sums = Sums::new(program, ports, plan);
    let mut expansion = Expansion::new();
    let mut lanes: Vec<LaneView> = Vec::new();
    for calendar in &plan.calendars {
        for lane in &calendar.lanes {
            let (busy_ns, executions) =
                sums.lane(calendar.device, lanes.len() as u32, &lane.entries);
            lanes.push(LaneView {
                device: calendar.device.0,
                kind: lane_kind(lane.kind),
                busy_ns,
                executions,
                slots: expansion.lane(&lane.entries),
            });
        }
    }

    let rings = ring_views(program, plan);
    let mut buffers: Vec<BufferView> = plan
        .buffers
        .iter_enumerated()
        .map(|(id, b)| sums.buffer(id, b))
        .collect();

    // Actors that write in place: one of the two buffers names the other, the smaller one if they differ in size.
    for over in plan.over(&program.graph) {
        let channel_below = plan.buffers[over.below].channel.0;
        let channel_above = plan.buffers[over.above].channel.0;
        match over.fit {
            Ordering::Less => buffers[over.below.index()].part_of = Some(channel_above),
            _ => buffers[over.above.index()].over = Some(channel_below),
        }
    }

    PlanView {
        name: plan.name.clone(),
        block: plan.block,
        period_ns: plan.period_ns,
        latency_ns: plan.latency_ns,
        bound_by: plan.bound_by.clone(),
        stages: plan.stages,
        boundaries: stage_boundaries(actors, channels, &sums.fired, plan.stages),
        device_changes: match plan.latency_ns > row_latency_ns(plan) {
            true => changes_of_device(actors, channels, &sums.fired),
            false => Vec::new(),
        },
        transfers: transfers(&lanes, rings.len()),
        loads: load_views(program, plan, &lanes, &rings),
        actors: sums.fired,
        lanes,
        rings,
        buffers,
        memories: (plan.calendars.iter())
            .map(|c| MemoryView {
                device: c.device.0,
                arena_bytes: c.arena_bytes,
                exchange_bytes: c.exchange_bytes,
                scratch_offset_bytes: c.scratch_offset_bytes,
                scratch_bytes: c.scratch_bytes,
            })
            .collect(),
        measured: None,
    }
}

/// The latency that a row of as many devices needs at most, each with a stage: a period more, as a block waits for the
/// first one.
fn row_latency_ns(plan: &Plan) -> u64 {
    let devices = plan.calendars.len() as u64;
    plan.period_ns.saturating_mul(devices + 1)
}

fn ring_views(program: &Program, plan: &Plan) -> Vec<RingView> {
    let mut views = Vec::with_capacity(plan.rings.len());
    for ring in &plan.rings {
        let tokens = plan.buffers[ring.buffer].block_tokens;
        let token_bytes = program.graph.channels[ring.channel].token.bytes();
        views.push(RingView {
            channel: ring.channel.0,
            from: ring.from.0,
            to: ring.to.0,
            buffer: ring.buffer.0,
            tokens,
            bytes: tokens.saturating_mul(token_bytes),
        });
    }
    views
}

/// Uses of a buffer: from the first write to the last read, and the stages they are in.
#[derive(Clone)]
struct Use {
    from_ns: u64,
    to_ns: u64,
    stages: (u32, u32),
}

/// What is summed over all slots of a plan.
struct Sums<'a> {
    ports: &'a PortChannels,
    plan: &'a Plan,
    buffer_of: BTreeMap<(ChannelId, DeviceId), BufferId>,
    uses: Vec<Option<Use>>,
    fired: Vec<FiredView>,
    channels: usize,
}

impl<'a> Sums<'a> {
    fn new(program: &Program, ports: &'a PortChannels, plan: &'a Plan) -> Self {
        // Lane and start are those of the first slot, which any one found comes before.
        let placement = plan.placement.iter_enumerated();
        let placed = placement.map(|(id, device)| FiredView {
            device: device.0,
            lane: u32::MAX,
            start_ns: u64::MAX,
            variant: plan.variant(id).map(str::to_owned),
            ..FiredView::default()
        });

        Self {
            ports,
            plan,
            buffer_of: (plan.buffers.iter_enumerated())
                .map(|(id, b)| ((b.channel, b.device), id))
                .collect(),
            uses: vec![None; plan.buffers.len()],
            fired: placed.collect(),
            channels: program.graph.channels.len(),
        }
    }

    /// Takes in a lane: its busy time and its executions.
    fn lane(&mut self, device: DeviceId, lane: u32, entries: &[zbmd_ir::Entry]) -> (u64, u64) {
        let mut busy = 0u64;
        let mut executions = 0u64;
        visit_slots(entries, |v| {
            let time = v.slot.duration_ns.saturating_mul(v.executions);
            busy = busy.saturating_add(time);
            executions = executions.saturating_add(v.executions);
            let (act, id, _, count) = parts(&v.slot.action);
            if act == Act::Fire {
                let fired = &mut self.fired[id as usize];
                if fired.start_ns > v.slot.start_ns {
                    fired.start_ns = v.slot.start_ns;
                    fired.lane = lane;
                }

                // All slots of an actor are in one stage. Sums saturate: loops multiply.
                fired.stage = v.slot.stage;
                fired.end_ns = fired.end_ns.max(v.last_end_ns);
                fired.calls = fired.calls.saturating_add(v.executions);
                let firings = v.executions.saturating_mul(count);
                fired.firings = fired.firings.saturating_add(firings);
                fired.busy_ns = fired.busy_ns.saturating_add(time);
            }

            self.touch(device, &v);
        });
        (busy, executions)
    }

    /// Notes the buffers that a slot reads or writes.
    fn touch(&mut self, device: DeviceId, visit: &SlotVisit<'_>) {
        match visit.slot.action {
            Action::Fire { actor, .. } => {
                let ports = self.ports;
                let inputs = ports.inputs[actor]
                    .iter()
                    .flatten()
                    .map(|&(channel, _)| channel);
                let outputs = ports.outputs[actor].iter().flatten().copied();
                for channel in inputs.chain(outputs) {
                    self.note(channel, device, visit);
                }
            }
            Action::Send { ring: id, .. } | Action::Recv { ring: id, .. } => {
                self.note(self.plan.rings[id].channel, device, visit);
            }
            Action::Release { .. }
            | Action::Carry { .. }
            | Action::Fetch { .. }
            | Action::Await { .. } => {}
        }
    }

    fn note(&mut self, channel: ChannelId, device: DeviceId, visit: &SlotVisit<'_>) {
        let slot = visit.slot;
        let Some(&id) = self.buffer_of.get(&(channel, device)) else {
            return;
        };

        let first_use = Use {
            from_ns: slot.start_ns,
            to_ns: visit.last_end_ns,
            stages: (slot.stage, slot.stage),
        };
        let buffer_use = self.uses[id.index()].get_or_insert(first_use);
        buffer_use.from_ns = buffer_use.from_ns.min(slot.start_ns);
        buffer_use.to_ns = buffer_use.to_ns.max(visit.last_end_ns);
        let (first_stage, last_stage) = buffer_use.stages;
        buffer_use.stages = (first_stage.min(slot.stage), last_stage.max(slot.stage));
    }

    fn buffer(&self, id: BufferId, b: &Buffer) -> BufferView {
        debug_assert!(b.channel.index() < self.channels);
        // What lives for a part of the period only: see the documentation of zbmd-ir.
        // Used in several stages, it holds tokens from one period to the next.
        let may_be_short = b.blocks == 1 && b.head_tokens == 0 && b.region == Region::Arena;
        let live_ns = self.uses[id.index()]
            .as_ref()
            .filter(|u| may_be_short && u.stages.0 == u.stages.1)
            .map(|u| (u.from_ns, u.to_ns));
        BufferView {
            channel: b.channel.0,
            device: b.device.0,
            region: match b.region {
                Region::Arena => "arena",
                Region::Exchange => "exchange",
            },
            offset_bytes: b.offset_bytes,
            stride_bytes: b.stride_bytes,
            places: b.blocks,
            head_tokens: b.head_tokens,
            block_tokens: b.block_tokens,
            chunk_tokens: b.is_chunked().then_some(b.chunk_tokens),
            over: None,
            part_of: None,
            live_ns,
        }
    }
}

/// The last token that a send moves, then its stage, lane and number.
type End = (u64, u32, u32, u32);

/// Each receipt with the send of its last token. O(slots · log slots).
fn transfers(lanes: &[LaneView], rings: usize) -> Vec<TransferView> {
    let mut sends: Vec<Vec<End>> = vec![Vec::new(); rings];
    for (l, lane) in lanes.iter().enumerate() {
        for (s, slot) in lane
            .slots
            .iter()
            .enumerate()
            .filter(|(_, s)| s.act == Act::Send)
        {
            let end = slot.first.saturating_add(slot.count);
            sends[slot.id as usize].push((end, slot.stage, l as u32, s as u32));
        }
    }

    // By the last token: a receipt waits for the first send that reaches beyond its own last token.
    sends.iter_mut().for_each(|ends| ends.sort_unstable());
    let mut transfers = Vec::new();
    for (l, lane) in lanes.iter().enumerate() {
        for (s, slot) in lane
            .slots
            .iter()
            .enumerate()
            .filter(|(_, s)| s.act == Act::Recv)
        {
            let ends = &sends[slot.id as usize];
            let end = slot.first.saturating_add(slot.count);
            let last_send = ends.get(ends.partition_point(|send| send.0 < end));
            let Some(&(_, stage, lane, sent)) = last_send else {
                continue;
            };

            // A receipt in a later stage gets what was sent as many periods before.
            transfers.push(TransferView {
                ring: slot.id,
                from: (lane, sent),
                to: (l as u32, s as u32),
                periods: slot.stage.saturating_sub(stage),
                tokens: slot.count,
            });
        }
    }
    transfers
}

/// How busy lanes and links are, the busiest first.
fn load_views(
    program: &Program,
    plan: &Plan,
    lanes: &[LaneView],
    rings: &[RingView],
) -> Vec<LoadView> {
    let machine = &program.machine;
    let mut loads = Vec::new();
    for lane in lanes {
        let device = device_name(machine, lane.device);
        let name = match lane.kind {
            "compute" => device.to_owned(),
            kind => format!("{device} {kind}"),
        };
        loads.push(load_view(name, lane.busy_ns, plan));
    }

    // Rings of one link are sent one after the other.
    let mut link_ns: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for ring in rings {
        let Some(link) = machine.link(DeviceId(ring.from), DeviceId(ring.to)) else {
            continue;
        };
        let transfer_ns = Machine::transfer_ps(&link, ring.bytes).div_ceil(1000);
        let total_ns = link_ns.entry((ring.from, ring.to)).or_default();
        *total_ns = total_ns.saturating_add(transfer_ns);
    }
    for ((from, to), busy_ns) in link_ns {
        let sender = device_name(machine, from);
        let receiver = device_name(machine, to);
        loads.push(load_view(format!("{sender} -> {receiver}"), busy_ns, plan));
    }

    loads.sort_by_key(|load| std::cmp::Reverse(load.busy_ns));
    loads
}

fn load_view(what: String, busy_ns: u64, plan: &Plan) -> LoadView {
    LoadView {
        what,
        busy_ns,
        share: busy_ns as f64 / plan.period_ns.max(1) as f64,
    }
}

fn device_name(machine: &Machine, device: u32) -> &str {
    &machine.devices[DeviceId(device)].name
}
