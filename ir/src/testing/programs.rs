//! Tiny valid programs, each with one thing that a calendar can do. Built by hand, without a scheduler.

mod chunked;

use std::collections::BTreeMap;

use bytes::Bytes;

pub use self::chunked::*;
use crate::limits::ALIGN_BYTES;
use crate::{
    Action, Actor, ActorId, Buffer, BufferId, Calendar, Channel, ChannelId, Contingencies,
    Contingency, DType, Device, DeviceId, Endpoint, Entry, Graph, Host, InPlace, InPort, KindId,
    Lane, LaneKind, Links, Loss, Machine, OutPort, Plan, PlanId, Program, Reader, Region, Ring,
    RingId, Role, Slot, StatePort, TiVec, Tier, TokenType, Value,
};

/// Nanoseconds of every slot here.
const SLOT_NS: u64 = 10;

fn f32s() -> TokenType {
    TokenType::scalar(DType::F32)
}

fn input(name: &str, rate: u64, window: u64) -> InPort {
    InPort {
        name: name.into(),
        token: f32s(),
        rate,
        window,
    }
}

fn output(name: &str, rate: u64) -> OutPort {
    OutPort {
        name: name.into(),
        token: f32s(),
        rate,
    }
}

fn actor(name: &str, op: &str, inputs: Vec<InPort>, outputs: Vec<OutPort>) -> Actor {
    let role = match (inputs.is_empty(), outputs.is_empty()) {
        (true, _) => Role::Source,
        (_, true) => Role::Sink,
        _ => Role::Compute,
    };
    Actor {
        name: name.into(),
        role,
        op: op.into(),
        params: BTreeMap::new(),
        inputs,
        outputs,
        state: vec![],
        in_place: vec![],
    }
}

/// A channel from `(actor, port)` to readers `(actor, port, delay)`; initial tokens are 1.0, 2.0, ….
fn channel(from: (u32, u32), readers: &[(u32, u32, u64)]) -> Channel {
    let end = |actor, port| Endpoint {
        actor: ActorId(actor),
        port,
    };
    let readers: Vec<Reader> = readers
        .iter()
        .map(|&(actor, port, delay)| Reader {
            to: end(actor, port),
            delay,
        })
        .collect();
    let history = readers.iter().map(|r| r.delay).max().unwrap_or(0);
    let initial = (1..=history)
        .flat_map(|i| (i as f32).to_le_bytes())
        .collect();
    Channel {
        from: end(from.0, from.1),
        readers,
        token: f32s(),
        initial,
    }
}

fn fire(stage: u32, actor: u32, count: u64) -> Entry {
    slot(
        stage,
        Action::Fire {
            actor: ActorId(actor),
            first: 0,
            count,
        },
    )
}

fn slot(stage: u32, action: Action) -> Entry {
    Entry::Slot(Slot {
        stage,
        start_ns: 0,
        duration_ns: SLOT_NS,
        action,
    })
}

fn carry(stage: u32, buffer: u32) -> Entry {
    slot(
        stage,
        Action::Carry {
            buffer: BufferId(buffer),
        },
    )
}

/// Sets all starts, one slot right after the other; the end of the last.
pub(crate) fn time(entries: &mut [Entry], mut now: u64) -> u64 {
    for entry in entries {
        now = match entry {
            Entry::Slot(slot) => {
                slot.start_ns = now;
                now.saturating_add(slot.duration_ns)
            }
            Entry::Loop { count, body } => now + (time(body, now) - now) * *count,
        };
    }
    now
}

fn cpu(index: u32) -> Device {
    Device {
        name: format!("cpu:{index}"),
        backend: "cpu".into(),
        cores: vec![index],
        memory_bytes: 1 << 20,
        flops_per_s: 1_000_000_000,
        bytes_per_s: 1_000_000_000,
        programmatic: false,
    }
}

fn machine(devices: u32) -> Machine {
    Machine {
        devices: (0..devices).map(cpu).collect(),
        links: Links::between_all(devices as usize, |_, _| (1_000_000_000, 5)),
        ..Machine::default()
    }
}

/// What [`build`] makes a plan of: buffers as (channel, device, places, head, block tokens), laid out one after the
/// other, and the entries of each device.
struct Sketch {
    block: u64,
    stages: u32,
    placement: Vec<u32>,
    buffers: Vec<(u32, u32, u32, u64, u64)>,
    rings: Vec<Ring>,
    lanes: Vec<Vec<Entry>>,
    /// Scratch bytes of each device.
    scratch: u64,
}

fn build(name: &str, actors: Vec<Actor>, channels: Vec<Channel>, sketch: Sketch) -> Program {
    let graph = Graph {
        name: name.into(),
        actors: actors.into(),
        channels: channels.into(),
    };
    let devices = sketch.lanes.len() as u32;
    let mut sizes = vec![(0u64, 0u64); sketch.lanes.len()];
    let mut buffers = TiVec::new();
    for (channel, device, blocks, head_tokens, block_tokens) in sketch.buffers {
        let writer = graph.channels[ChannelId(channel)].from.actor;
        let local = sketch.placement[writer.index()] == device;
        let region = if local {
            Region::Arena
        } else {
            Region::Exchange
        };
        let size = &mut sizes[device as usize];
        let used = if local { &mut size.0 } else { &mut size.1 };
        let stride_bytes = ((head_tokens + block_tokens) * 4).next_multiple_of(ALIGN_BYTES);
        let buffer = Buffer {
            channel: ChannelId(channel),
            device: DeviceId(device),
            region,
            offset_bytes: *used,
            stride_bytes,
            blocks,
            head_tokens,
            block_tokens,
            chunk_tokens: block_tokens,
        };
        *used += buffer.size_bytes();
        buffers.push(buffer);
    }
    let mut period_ns = 0;
    let mut calendars = Vec::new();
    for (i, mut entries) in sketch.lanes.into_iter().enumerate() {
        period_ns = period_ns.max(time(&mut entries, 0));
        let (arena, exchange_bytes) = sizes[i];
        calendars.push(Calendar {
            device: DeviceId(i as u32),
            arena_bytes: arena + sketch.scratch,
            exchange_bytes,
            scratch_offset_bytes: arena,
            scratch_bytes: sketch.scratch,
            lanes: vec![Lane {
                kind: LaneKind::Compute,
                entries,
            }],
        });
    }
    let plan = Plan {
        name: "main".into(),
        block: sketch.block,
        period_ns,
        latency_ns: period_ns * u64::from(sketch.stages),
        bound_by: "cpu:0".into(),
        stages: sketch.stages,
        placement: sketch.placement.into_iter().map(DeviceId).collect(),
        calendars,
        buffers,
        rings: sketch.rings.into(),
        variants: std::collections::BTreeMap::new(),
    };
    let blobs = TiVec::from(vec![Bytes::from_static(&[0, 0, 0, 63, 0, 0, 0, 63])]);
    let (machine, plans) = (machine(devices), vec![plan].into());
    Program {
        graph,
        machine,
        plans,
        blobs,
        ..Program::default()
    }
}

/// A source, an upsampler by 2 with a weight tensor, a sink on one device; blocks of 4 iterations.
pub fn chain() -> Program {
    let mut up = actor("up", "Up", vec![input("x", 1, 1)], vec![output("y", 2)]);
    let tensor = Value::Tensor(crate::BlobId(0), TokenType::new(DType::F32, [2]));
    up.params
        .insert("taps".into(), Value::List(vec![tensor, Value::Int(2)]));
    let actors = vec![
        actor("in", "Source", vec![], vec![output("y", 1)]),
        up,
        actor("out", "Sink", vec![input("x", 1, 1)], vec![]),
    ];
    let channels = vec![channel((0, 0), &[(1, 0, 0)]), channel((1, 0), &[(2, 0, 0)])];
    let sketch = Sketch {
        block: 4,
        stages: 1,
        placement: vec![0; 3],
        buffers: vec![(0, 0, 1, 0, 4), (1, 0, 1, 0, 8)],
        rings: vec![],
        lanes: vec![vec![fire(0, 0, 4), fire(0, 1, 4), fire(0, 2, 8)]],
        scratch: 128,
    };
    build("chain", actors, channels, sketch)
}

/// Two gains on one device, which fetch their weights to the same place: the second's in the period in which it fires, the
/// first's for the next one. Not among [`all`], whose machines have no tiers.
pub fn fetched() -> Program {
    let weighted = |name: &str| {
        let mut gain = actor(name, "Gain", vec![input("x", 1, 1)], vec![output("y", 1)]);
        let tensor = Value::Tensor(crate::BlobId(0), TokenType::new(DType::F32, [2]));
        let packed = Value::List(vec![tensor, Value::List(vec![Value::Int(2)])]);
        let operands = Value::Map([("w".to_owned(), packed)].into());
        gain.params.insert(Actor::PACKED.into(), operands);
        gain
    };
    let actors = vec![
        actor("in", "Source", vec![], vec![output("y", 1)]),
        weighted("first"),
        weighted("second"),
        actor("out", "Sink", vec![input("x", 1, 1)], vec![]),
    ];
    let channels = vec![
        channel((0, 0), &[(1, 0, 0)]),
        channel((1, 0), &[(2, 0, 0)]),
        channel((2, 0), &[(3, 0, 0)]),
    ];
    let fetch = |id| {
        let begin = Action::Fetch {
            actor: ActorId(id),
            offset_bytes: 3 * ALIGN_BYTES,
        };
        slot(0, begin)
    };
    let wait = |id| slot(0, Action::Await { actor: ActorId(id) });
    let sketch = Sketch {
        block: 1,
        stages: 1,
        placement: vec![0; 4],
        buffers: vec![(0, 0, 1, 0, 1), (1, 0, 1, 0, 1), (2, 0, 1, 0, 1)],
        rings: vec![],
        lanes: vec![vec![
            fire(0, 0, 1),
            wait(1),
            fire(0, 1, 1),
            fetch(2),
            wait(2),
            fire(0, 2, 1),
            fetch(1),
            fire(0, 3, 1),
        ]],
        scratch: 0,
    };
    let mut program = build("fetched", actors, channels, sketch);
    program.plans[PlanId(0)].calendars[0].arena_bytes += ALIGN_BYTES;
    let tier = Tier {
        memory_bytes: 16,
        bytes_per_s: 1_000_000_000,
    };
    program.machine.tiers.insert(DeviceId(0), tier);
    program
}

/// A product of a source's tokens with what another actor makes of them, written over the former, half a block at a
/// time in a loop with the sink; blocks of 4 iterations.
pub fn over() -> Program {
    let mut product = actor(
        "mul",
        "Mul",
        vec![input("x", 1, 1), input("y", 1, 1)],
        vec![output("z", 1)],
    );
    product.in_place = vec![InPlace::whole(0, 0), InPlace::whole(1, 0)];
    let actors = vec![
        actor("in", "Source", vec![], vec![output("y", 1)]),
        actor("gain", "Gain", vec![input("x", 1, 1)], vec![output("y", 1)]),
        product,
        actor("out", "Sink", vec![input("x", 1, 1)], vec![]),
    ];
    let channels = vec![
        channel((0, 0), &[(1, 0, 0), (2, 0, 0)]),
        channel((1, 0), &[(2, 1, 0)]),
        channel((2, 0), &[(3, 0, 0)]),
    ];
    let halves = Entry::Loop {
        count: 2,
        body: vec![fire(0, 2, 2), fire(0, 3, 2)],
    };
    let sketch = Sketch {
        block: 4,
        stages: 1,
        placement: vec![0; 4],
        buffers: vec![(0, 0, 1, 0, 4), (1, 0, 1, 0, 4), (2, 0, 1, 0, 4)],
        rings: vec![],
        lanes: vec![vec![fire(0, 0, 4), fire(0, 1, 4), halves]],
        scratch: 0,
    };
    let mut program = build("over", actors, channels, sketch);
    let plan = &mut program.plans[PlanId(0)];
    plan.buffers[BufferId(2)].offset_bytes = 0;
    (
        plan.calendars[0].arena_bytes,
        plan.calendars[0].scratch_offset_bytes,
    ) = (128, 128);
    program
}

/// A split, a gain over one of its parts, and a concatenation of that with the other part: all in the memory of what
/// the source wrote. Blocks of one iteration.
pub fn parts() -> Program {
    let (mut split, mut gain, mut join) = (
        actor(
            "split",
            "Split",
            vec![input("x", 48, 48)],
            vec![output("y", 16), output("z", 32)],
        ),
        actor(
            "gain",
            "Gain",
            vec![input("x", 16, 16)],
            vec![output("y", 16)],
        ),
        actor(
            "join",
            "Join",
            vec![input("x", 16, 16), input("y", 32, 32)],
            vec![output("z", 48)],
        ),
    );
    let part = |input, output, at_bytes| InPlace {
        input,
        output,
        at_bytes,
    };
    split.in_place = vec![part(0, 0, 0), part(0, 1, 64)];
    gain.in_place = vec![InPlace::whole(0, 0)];
    join.in_place = vec![part(0, 0, 0), part(1, 0, 64)];
    let actors = vec![
        actor("in", "Source", vec![], vec![output("y", 48)]),
        split,
        gain,
        join,
        actor("out", "Sink", vec![input("x", 48, 48)], vec![]),
    ];
    let channels = vec![
        channel((0, 0), &[(1, 0, 0)]),
        channel((1, 0), &[(2, 0, 0)]),
        channel((1, 1), &[(3, 1, 0)]),
        channel((2, 0), &[(3, 0, 0)]),
        channel((3, 0), &[(4, 0, 0)]),
    ];
    let tokens = [48, 16, 32, 16, 48];
    let sketch = Sketch {
        block: 1,
        stages: 1,
        placement: vec![0; 5],
        buffers: (0..)
            .zip(tokens)
            .map(|(ch, tokens)| (ch, 0, 1, 0, tokens))
            .collect(),
        rings: vec![],
        lanes: vec![(0..5).map(|actor| fire(0, actor, 1)).collect()],
        scratch: 0,
    };
    let mut program = build("parts", actors, channels, sketch);
    let plan = &mut program.plans[PlanId(0)];
    for (buffer, offset) in plan.buffers.iter_mut().zip([0, 0, 64, 0, 0]) {
        buffer.offset_bytes = offset;
    }
    (
        plan.calendars[0].arena_bytes,
        plan.calendars[0].scratch_offset_bytes,
    ) = (192, 192);
    program
}

/// A filter with a window of 3, whose history of 2 tokens is carried from block to block; one place.
pub fn window() -> Program {
    let actors = vec![
        actor("in", "Source", vec![], vec![output("y", 1)]),
        actor("fir", "Fir", vec![input("x", 1, 3)], vec![output("y", 1)]),
        actor("out", "Sink", vec![input("x", 1, 1)], vec![]),
    ];
    let channels = vec![channel((0, 0), &[(1, 0, 2)]), channel((1, 0), &[(2, 0, 0)])];
    let sketch = Sketch {
        block: 4,
        stages: 1,
        placement: vec![0; 3],
        buffers: vec![(0, 0, 1, 2, 4), (1, 0, 1, 0, 4)],
        rings: vec![],
        lanes: vec![vec![
            fire(0, 0, 4),
            fire(0, 1, 4),
            carry(0, 0),
            fire(0, 2, 4),
        ]],
        scratch: 0,
    };
    build("window", actors, channels, sketch)
}

/// [`window`] with the filter and its sink one stage behind the source, two places.
pub fn pipeline() -> Program {
    let mut program = window();
    let graph = program.graph;
    let sketch = Sketch {
        block: 4,
        stages: 2,
        placement: vec![0; 3],
        buffers: vec![(0, 0, 2, 2, 4), (1, 0, 1, 0, 4)],
        rings: vec![],
        lanes: vec![vec![
            fire(0, 0, 4),
            fire(1, 1, 4),
            carry(0, 0),
            fire(1, 2, 4),
        ]],
        scratch: 0,
    };
    program = build(
        "pipeline",
        graph.actors.into(),
        graph.channels.into(),
        sketch,
    );
    program
}

/// A feedback loop through two actors with one initial token, run firing by firing in a calendar loop.
pub fn feedback() -> Program {
    let actors = vec![
        actor("in", "Source", vec![], vec![output("y", 1)]),
        actor(
            "add",
            "Add",
            vec![input("a", 1, 1), input("b", 1, 1)],
            vec![output("y", 1)],
        ),
        actor("gain", "Gain", vec![input("x", 1, 1)], vec![output("y", 1)]),
        actor("out", "Sink", vec![input("x", 1, 1)], vec![]),
    ];
    let channels = vec![
        channel((0, 0), &[(1, 0, 0)]),
        channel((1, 0), &[(2, 0, 0), (3, 0, 0)]),
        channel((2, 0), &[(1, 1, 1)]),
    ];
    let body = vec![fire(0, 1, 1), fire(0, 2, 1)];
    let sketch = Sketch {
        block: 6,
        stages: 1,
        placement: vec![0; 4],
        buffers: vec![(0, 0, 1, 0, 6), (1, 0, 1, 0, 6), (2, 0, 1, 1, 6)],
        rings: vec![],
        lanes: vec![vec![
            fire(0, 0, 6),
            Entry::Loop { count: 6, body },
            carry(0, 2),
            fire(0, 3, 6),
        ]],
        scratch: 0,
    };
    build("feedback", actors, channels, sketch)
}

/// An accumulator with a state that is updated in place.
pub fn state() -> Program {
    let mut acc = actor(
        "acc",
        "Acc",
        vec![input("x", 1, 1), input("sum", 1, 1)],
        vec![output("y", 1), output("sum", 1)],
    );
    acc.state.push(StatePort {
        input: 1,
        output: 1,
    });
    let actors = vec![
        actor("in", "Source", vec![], vec![output("y", 1)]),
        acc,
        actor("out", "Sink", vec![input("x", 1, 1)], vec![]),
    ];
    let channels = vec![
        channel((0, 0), &[(1, 0, 0)]),
        channel((1, 0), &[(2, 0, 0)]),
        channel((1, 1), &[(1, 1, 1)]),
    ];
    let sketch = Sketch {
        block: 3,
        stages: 1,
        placement: vec![0; 3],
        buffers: vec![(0, 0, 1, 0, 3), (1, 0, 1, 0, 3), (2, 0, 1, 1, 0)],
        rings: vec![],
        lanes: vec![vec![fire(0, 0, 3), fire(0, 1, 3), fire(0, 2, 3)]],
        scratch: 0,
    };
    build("state", actors, channels, sketch)
}

fn transfer(first: u64, count: u64) -> impl Fn(fn(RingId, u64, u64) -> Action) -> Action {
    move |make| make(RingId(0), first, count)
}

fn send(ring: RingId, first: u64, count: u64) -> Action {
    Action::Send { ring, first, count }
}

fn recv(ring: RingId, first: u64, count: u64) -> Action {
    Action::Recv { ring, first, count }
}

/// A source on one device, a filter with a window of 3 and a sink on another, one stage behind; the ring has two
/// places and is filled in two halves.
pub fn two_devices() -> Program {
    let graph = window().graph;
    let (low, high) = (transfer(0, 2), transfer(2, 2));
    let half = |first| {
        slot(
            0,
            Action::Fire {
                actor: ActorId(0),
                first,
                count: 2,
            },
        )
    };
    let sender = vec![half(0), slot(0, low(send)), half(2), slot(0, high(send))];
    let receiver = vec![
        slot(1, low(recv)),
        slot(
            1,
            Action::Fire {
                actor: ActorId(1),
                first: 0,
                count: 2,
            },
        ),
        slot(1, high(recv)),
        slot(
            1,
            Action::Fire {
                actor: ActorId(1),
                first: 2,
                count: 2,
            },
        ),
        carry(1, 1),
        slot(1, Action::Release { ring: RingId(0) }),
        fire(1, 2, 4),
    ];
    let sketch = Sketch {
        block: 4,
        stages: 2,
        placement: vec![0, 1, 1],
        buffers: vec![(0, 0, 1, 0, 4), (0, 1, 2, 2, 4), (1, 1, 1, 0, 4)],
        rings: vec![Ring {
            channel: ChannelId(0),
            from: DeviceId(0),
            to: DeviceId(1),
            buffer: BufferId(1),
        }],
        lanes: vec![sender, receiver],
        scratch: 64,
    };
    build(
        "two_devices",
        graph.actors.into(),
        graph.channels.into(),
        sketch,
    )
}

/// A loop over two devices in one stage: `add` here, `gain` there, the feedback of 4 initial tokens comes back as a
/// whole block. Sends and receipts are in the same period.
pub fn round_trip() -> Program {
    let mut graph = feedback().graph;
    graph.channels[ChannelId(2)] = channel((2, 0), &[(1, 1, 4)]);
    let all = transfer(0, 4);
    let back = |make: fn(RingId, u64, u64) -> Action| slot(0, make(RingId(1), 0, 4));
    let release = |ring| slot(0, Action::Release { ring: RingId(ring) });
    let wait = |at: Entry, start_ns| match at {
        Entry::Slot(s) => Entry::Slot(Slot {
            duration_ns: start_ns,
            ..s
        }),
        other => other,
    };
    let here = vec![
        fire(0, 0, 4),
        fire(0, 1, 4),
        slot(0, all(send)),
        fire(0, 3, 4),
        wait(back(recv), 40),
        carry(0, 3),
        release(1),
    ];
    let there = vec![
        wait(slot(0, all(recv)), 30),
        fire(0, 2, 4),
        release(0),
        back(send),
    ];
    let ring = |channel, from, to, buffer| Ring {
        channel: ChannelId(channel),
        from: DeviceId(from),
        to: DeviceId(to),
        buffer: BufferId(buffer),
    };
    let sketch = Sketch {
        block: 4,
        stages: 1,
        placement: vec![0, 0, 1, 0],
        buffers: vec![
            (0, 0, 1, 0, 4),
            (1, 0, 1, 0, 4),
            (1, 1, 1, 0, 4),
            (2, 0, 1, 4, 4),
            (2, 1, 1, 0, 4),
        ],
        rings: vec![ring(1, 0, 1, 2), ring(2, 1, 0, 3)],
        lanes: vec![here, there],
        scratch: 0,
    };
    build(
        "round_trip",
        graph.actors.into(),
        graph.channels.into(),
        sketch,
    )
}

/// [`two_devices`] with what to do when either is lost: [`window`] on the other.
pub fn spare() -> Program {
    let mut program = two_devices();
    program.graph.name = "spare".into();
    let mut alone = window().plans[PlanId(0)].clone();
    alone.name = "main without 1 like cpu:0".into();
    program.contingencies = Contingencies {
        kinds: vec![vec![DeviceId(0), DeviceId(1)]].into(),
        list: vec![Contingency {
            lost: vec![Loss {
                kind: KindId(0),
                count: 1,
            }],
            main: program.plans.push_and_get_key(alone),
            tail: None,
        }],
        alike_hosts: TiVec::new(),
    };
    program
}

/// [`spare`] on two alike hosts of one device each.
pub fn spare_host() -> Program {
    let mut program = spare();
    program.graph.name = "spare_host".into();
    let host = |name: &str, device| Host {
        name: name.into(),
        devices: vec![DeviceId(device)],
    };
    program.machine.hosts = vec![host("left", 0), host("right", 1)].into();
    program.plans[PlanId(1)].name = "main without cpu:1 of a host like left".into();
    let table = &mut program.contingencies;
    table.kinds = vec![vec![DeviceId(0)], vec![DeviceId(1)]].into();
    table.list[0].lost[0].kind = KindId(1);
    table.alike_hosts = vec![vec![vec![DeviceId(0)], vec![DeviceId(1)]]].into();
    program
}

/// A source and a gain on one device, a sink on another, one stage behind: a slot for each firing, and a transfer for
/// each eighth. For tests of size: three slots for a firing of the source, and no loops.
pub fn long(firings: u64) -> Program {
    let firings = firings.next_multiple_of(8);
    let gain = actor("gain", "Gain", vec![input("x", 1, 1)], vec![output("y", 1)]);
    let actors = vec![
        actor("in", "Source", vec![], vec![output("y", 1)]),
        gain,
        actor("out", "Sink", vec![input("x", 1, 1)], vec![]),
    ];
    let channels = vec![channel((0, 0), &[(1, 0, 0)]), channel((1, 0), &[(2, 0, 0)])];
    let one = |stage, actor, first| {
        slot(
            stage,
            Action::Fire {
                actor: ActorId(actor),
                first,
                count: 1,
            },
        )
    };
    let mut here = Vec::new();
    let mut there = Vec::new();
    let part = firings / 8;
    for first in 0..firings {
        here.extend([one(0, 0, first), one(0, 1, first)]);
        if first % part == part - 1 {
            let move_part = transfer(first + 1 - part, part);
            here.push(slot(0, move_part(send)));
            there.push(slot(1, move_part(recv)));
            there.extend((first + 1 - part..=first).map(|first| one(1, 2, first)));
        }
    }
    there.push(slot(1, Action::Release { ring: RingId(0) }));
    let sketch = Sketch {
        block: firings,
        stages: 2,
        placement: vec![0, 0, 1],
        buffers: vec![
            (0, 0, 1, 0, firings),
            (1, 0, 1, 0, firings),
            (1, 1, 2, 0, firings),
        ],
        rings: vec![Ring {
            channel: ChannelId(1),
            from: DeviceId(0),
            to: DeviceId(1),
            buffer: BufferId(2),
        }],
        lanes: vec![here, there],
        scratch: 0,
    };
    let mut program = build("long", actors, channels, sketch);
    for device in &mut program.machine.devices {
        device.memory_bytes = 1 << 30;
    }
    program
}

/// All that are small.
pub fn all() -> Vec<Program> {
    let small = [
        chain(),
        over(),
        parts(),
        window(),
        pipeline(),
        feedback(),
        state(),
    ];
    small
        .into_iter()
        .chain([two_devices(), round_trip(), spare(), spare_host()])
        .chain(all_chunked())
        .collect()
}
