//! From a verified program to a [`View`].

use std::cmp::Ordering;
use std::collections::BTreeMap;

use zbmd_gpu_ir::Math;
use zbmd_ir::verify::Verified;
use zbmd_ir::walk::{SlotVisit, visit_slots};
use zbmd_ir::{
    Action, Buffer, BufferId, Channel, ChannelId, DeviceId, Graph, Machine, Plan, PortChannels,
    Program, Region, Role, text, verify,
};

use zbmd_ir::text::printable;

use super::expand::{Expansion, parts};
use super::{
    Act, ActorView, BufferView, ChannelView, ContingencyView, DeviceView, FORMAT, FiredView,
    LaneView, LinkView, LoadView, MemoryView, PlanView, PortView, ReaderView, RingView,
    TransferView, VERSION, View, lane_kind,
};

pub(super) fn view(program: &Verified<Program>, meta: &BTreeMap<String, String>) -> View {
    let (graph, machine) = (&program.graph, &program.machine);
    let ports = graph.port_channels();
    let table = &program.contingencies;
    let contingency = |entry: &zbmd_ir::Contingency| ContingencyView {
        lost: text::loss(machine, &table.kinds, &entry.lost),
        counts: entry.lost.iter().map(|l| (l.kind.0, l.count)).collect(),
        plan: entry.main.0,
        tail: entry.tail.map(|t| t.0),
    };

    View {
        format: FORMAT,
        version: VERSION,
        model: graph.name.clone(),
        meta: meta
            .iter()
            .map(|(word, value)| (printable(word).into_owned(), printable(value).into_owned()))
            .collect(),
        devices: devices(machine),
        links: links(machine),
        actors: actors(program, &ports),
        channels: channels(graph),
        replicated: text::replicas(graph)
            .into_iter()
            .map(|(n, k)| (n.to_owned(), k))
            .collect(),
        rounded: rounded(graph),
        plans: program
            .plans
            .iter()
            .map(|p| plan(program, &ports, p))
            .collect(),
        kinds: table
            .kinds
            .iter()
            .map(|k| k.iter().map(|d| d.0).collect())
            .collect(),
        contingencies: table.list.iter().map(contingency).collect(),
        measured: None,
    }
}

fn rounded(graph: &Graph) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for word in graph
        .actors
        .iter()
        .filter_map(|a| a.params.get(Math::PARAM)?.as_str())
    {
        *counts.entry(printable(word).into_owned()).or_default() += 1;
    }
    counts.remove(Math::F32.name());
    counts
}

fn devices(machine: &Machine) -> Vec<DeviceView> {
    let one = |d: &zbmd_ir::Device| DeviceView {
        name: d.name.clone(),
        backend: d.backend.to_string(),
        memory_bytes: d.memory_bytes,
    };
    machine.devices.iter().map(one).collect()
}

fn links(machine: &Machine) -> Vec<LinkView> {
    let one = |l: &zbmd_ir::Link| LinkView {
        from: l.from.0,
        to: l.to.0,
        bytes_per_s: l.bytes_per_s,
        latency_ns: l.latency_ns,
    };
    machine.links.iter().map(one).collect()
}

fn actors(program: &Program, ports: &PortChannels) -> Vec<ActorView> {
    // A verified program has a repetition vector.
    let q = verify::graph::repetition(&program.graph).unwrap_or_default();
    let role = |role| match role {
        Role::Compute => "compute",
        Role::Source => "source",
        Role::Sink => "sink",
    };

    let channel = |c: Option<ChannelId>| c.map_or(u32::MAX, |c| c.0);
    let one = |(id, actor): (zbmd_ir::ActorId, &zbmd_ir::Actor)| ActorView {
        name: actor.name.clone(),
        label: Some(text::actor_label(actor)).filter(|label| *label != actor.name),
        op: text::op(actor),
        role: role(actor.role),
        repetitions: q.get(id).copied().unwrap_or(0),
        inputs: (actor.inputs.iter().zip(&ports.inputs[id]))
            .map(|(p, joined)| PortView {
                name: p.name.clone(),
                rate: p.rate,
                window: p.window,
                channel: channel(joined.map(|j| j.0)),
            })
            .collect(),
        outputs: (actor.outputs.iter().zip(&ports.outputs[id]))
            .map(|(p, joined)| PortView {
                name: p.name.clone(),
                rate: p.rate,
                window: p.rate,
                channel: channel(*joined),
            })
            .collect(),
    };

    program.graph.actors.iter_enumerated().map(one).collect()
}

fn channels(graph: &Graph) -> Vec<ChannelView> {
    let one = |(id, channel): (ChannelId, &Channel)| {
        let writer = &graph.actors[channel.from.actor];
        let port = &writer.outputs[channel.from.port as usize];
        ChannelView {
            name: format!("{}.{}", writer.name, port.name),
            from: channel.from.actor.0,
            rate: port.rate,
            readers: (channel.readers.iter())
                .map(|r| ReaderView {
                    actor: r.to.actor.0,
                    port: r.to.port,
                    delay: r.delay,
                })
                .collect(),
            token: channel.token.to_string(),
            token_bytes: channel.token.bytes(),
            initial: channel.history(),
            state: graph.is_state(id),
        }
    };

    graph.channels.iter_enumerated().map(one).collect()
}

fn plan(program: &Program, ports: &PortChannels, plan: &Plan) -> PlanView {
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

    let rings = rings(program, plan);
    let mut buffers: Vec<BufferView> = plan
        .buffers
        .iter_enumerated()
        .map(|(id, b)| sums.buffer(id, b))
        .collect();
    for over in plan.over(&program.graph) {
        let channel = |id: BufferId| Some(plan.buffers[id].channel.0);
        match over.fit {
            Ordering::Less => buffers[over.below.index()].part_of = channel(over.above),
            _ => buffers[over.above.index()].over = channel(over.below),
        }
    }

    PlanView {
        name: plan.name.clone(),
        block: plan.block,
        period_ns: plan.period_ns,
        latency_ns: plan.latency_ns,
        bound_by: plan.bound_by.clone(),
        stages: plan.stages,
        transfers: transfers(&lanes, rings.len()),
        loads: loads(program, plan, &lanes, &rings),
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

fn rings(program: &Program, plan: &Plan) -> Vec<RingView> {
    let one = |ring: &zbmd_ir::Ring| {
        let tokens = plan.buffers[ring.buffer].block_tokens;
        let bytes = program.graph.channels[ring.channel].token.bytes();
        RingView {
            channel: ring.channel.0,
            from: ring.from.0,
            to: ring.to.0,
            buffer: ring.buffer.0,
            tokens,
            bytes: tokens.saturating_mul(bytes),
        }
    };

    plan.rings.iter().map(one).collect()
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
        let placed = |(id, d): (zbmd_ir::ActorId, &DeviceId)| FiredView {
            device: d.0,
            lane: u32::MAX,
            start_ns: u64::MAX,
            variant: plan.variant(id).map(str::to_owned),
            ..FiredView::default()
        };

        Self {
            ports,
            plan,
            buffer_of: (plan.buffers.iter_enumerated())
                .map(|(id, b)| ((b.channel, b.device), id))
                .collect(),
            uses: vec![None; plan.buffers.len()],
            fired: plan.placement.iter_enumerated().map(placed).collect(),
            channels: program.graph.channels.len(),
        }
    }

    /// Takes in a lane: its busy time and its executions.
    fn lane(&mut self, device: DeviceId, lane: u32, entries: &[zbmd_ir::Entry]) -> (u64, u64) {
        let (mut busy, mut executions) = (0u64, 0u64);
        visit_slots(entries, |v| {
            let time = v.slot.duration_ns.saturating_mul(v.executions);
            busy = busy.saturating_add(time);
            executions = executions.saturating_add(v.executions);
            let (act, id, _, count) = parts(&v.slot.action);
            if act == Act::Fire {
                let f = &mut self.fired[id as usize];
                if f.start_ns > v.slot.start_ns {
                    (f.start_ns, f.lane) = (v.slot.start_ns, lane);
                }
                f.stage = v.slot.stage;
                f.end_ns = f.end_ns.max(v.last_end_ns);
                f.calls = f.calls.saturating_add(v.executions);
                f.firings = f.firings.saturating_add(v.executions.saturating_mul(count));
                f.busy_ns = f.busy_ns.saturating_add(time);
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
            Action::Release { .. } | Action::Carry { .. } => {}
        }
    }

    fn note(&mut self, channel: ChannelId, device: DeviceId, visit: &SlotVisit<'_>) {
        let slot = visit.slot;
        let Some(&id) = self.buffer_of.get(&(channel, device)) else {
            return;
        };
        let at = &mut self.uses[id.index()];
        match at {
            None => {
                *at = Some(Use {
                    from_ns: slot.start_ns,
                    to_ns: visit.last_end_ns,
                    stages: (slot.stage, slot.stage),
                })
            }
            Some(u) => {
                u.from_ns = u.from_ns.min(slot.start_ns);
                u.to_ns = u.to_ns.max(visit.last_end_ns);
                u.stages = (u.stages.0.min(slot.stage), u.stages.1.max(slot.stage));
            }
        }
    }

    fn buffer(&self, id: BufferId, b: &Buffer) -> BufferView {
        debug_assert!(b.channel.index() < self.channels);
        // What lives for a part of the period only: see the documentation of zbmd-ir.
        let short = b.blocks == 1 && b.head_tokens == 0 && b.region == Region::Arena;
        let live_ns = self.uses[id.index()]
            .as_ref()
            .filter(|u| short && u.stages.0 == u.stages.1)
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
            over: None,
            part_of: None,
            live_ns,
        }
    }
}

/// Where a slot stands: its stage, lane and number, and the last token that it moves.
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

    sends.iter_mut().for_each(|ends| ends.sort_unstable());
    let mut out = Vec::new();
    for (l, lane) in lanes.iter().enumerate() {
        for (s, slot) in lane
            .slots
            .iter()
            .enumerate()
            .filter(|(_, s)| s.act == Act::Recv)
        {
            let ends = &sends[slot.id as usize];
            let end = slot.first.saturating_add(slot.count);
            let found = ends.get(ends.partition_point(|send| send.0 < end));
            let Some(&(_, stage, lane, sent)) = found else {
                continue;
            };
            out.push(TransferView {
                ring: slot.id,
                from: (lane, sent),
                to: (l as u32, s as u32),
                periods: slot.stage.saturating_sub(stage),
                tokens: slot.count,
            });
        }
    }
    out
}

fn loads(program: &Program, plan: &Plan, lanes: &[LaneView], rings: &[RingView]) -> Vec<LoadView> {
    let machine = &program.machine;
    let name = |id: u32| machine.devices[DeviceId(id)].name.clone();
    let load = |what, busy_ns: u64| LoadView {
        what,
        busy_ns,
        share: busy_ns as f64 / plan.period_ns.max(1) as f64,
    };

    let lane = |l: &LaneView| match l.kind {
        "compute" => load(name(l.device), l.busy_ns),
        kind => load(format!("{} {kind}", name(l.device)), l.busy_ns),
    };
    let mut out: Vec<LoadView> = lanes.iter().map(lane).collect();
    let mut links: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for ring in rings {
        let Some(link) = machine.link(DeviceId(ring.from), DeviceId(ring.to)) else {
            continue;
        };
        let ns = Machine::transfer_ps(link, ring.bytes).div_ceil(1000);
        let total = links.entry((ring.from, ring.to)).or_default();
        *total = total.saturating_add(ns);
    }

    out.extend(
        links
            .into_iter()
            .map(|((from, to), ns)| load(format!("{} -> {}", name(from), name(to)), ns)),
    );
    out.sort_by_key(|l| std::cmp::Reverse(l.busy_ns));
    out
}
