//! Programs made to keep a verifier busy: little to read, much to do if it is not careful. Each grows with a size, so
//! that tests can ask whether work grows faster than the file.

use super::programs::{chain, feedback, spare, two_devices, window};
use crate::{
    Action, ActorId, BlobId, BufferId, ChannelId, Contingency, DType, Device, DeviceId, Endpoint,
    Entry, InPlace, KindId, Loss, PlanId, Program, Reader, RingId, Slot, StatePort, TokenType,
    Value,
};

/// A hostile program, and what of it grows.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// What is done to the verifier.
    pub name: &'static str,
    /// The program.
    pub program: Program,
}

/// One of each kind, with about `size` bytes in its bundle; at least some hundred.
pub fn all(size: usize) -> Vec<Hostile> {
    type Make = fn(usize) -> Program;
    let kinds: [(&'static str, Make); 20] = [
        ("loops of one stage", |_| nested(0, 1 << 22)),
        ("loops of two stages", |_| nested(1, 1 << 22)),
        ("loops of two stages, just so many", |_| nested(1, 3 << 19)),
        ("loops in many plans", loops_in_plans),
        ("transfers in loops", |_| transfers(1 << 22)),
        ("transfers in loops, just so many", |_| transfers(3 << 18)),
        ("many ports in loops", ports_in_loops),
        ("wrong slots", wrong_slots),
        ("long names, many errors", long_names),
        ("long parameter name", long_parameter),
        ("long shapes, many readers", long_shapes),
        ("states and places to write", states),
        ("cycles that are stuck", stuck_cycles),
        ("a cycle with one token", |_| long_iteration()),
        ("rings for nothing", rings),
        ("plans of a large graph", plans_of_a_large_graph),
        ("devices alike", devices_alike),
        ("many losses", losses),
        ("deep parameters", deep_parameters),
        ("a long plan in few bytes", |_| long_plan()),
    ];
    let one = |(name, make): (&'static str, Make)| Hostile {
        name,
        program: make(size),
    };
    kinds.into_iter().map(one).collect()
}

fn fire(actor: u32, stage: u32) -> Entry {
    Entry::Slot(Slot {
        stage,
        start_ns: 0,
        duration_ns: 0,
        action: Action::Fire {
            actor: ActorId(actor),
            first: 0,
            count: 1,
        },
    })
}

/// Executions in loops; the sink is in `sink_stage`.
fn nested(sink_stage: u32, rounds: u64) -> Program {
    let mut program = window();
    let plan = &mut program.plans[PlanId(0)];
    plan.block = rounds;
    plan.stages = 1 + sink_stage;

    let actors = plan.placement.len() as u32;
    let body =
        (0..actors).map(|actor| fire(actor, if actor + 1 == actors { sink_stage } else { 0 }));
    let mut entries: Vec<Entry> = body.collect();
    for count in [rounds >> 6, 8, 8] {
        entries = vec![Entry::Loop {
            count,
            body: entries,
        }];
    }
    let lane = &mut plan.calendars[0].lanes[0].entries;
    lane.retain(
        |entry| matches!(entry, Entry::Slot(slot) if matches!(slot.action, Action::Carry { .. })),
    );
    lane.extend(entries);
    make_room(&mut program, rounds);
    program
}

/// Buffers that hold a block of so many firings, one after the other.
fn make_room(program: &mut Program, rounds: u64) {
    for device in &mut program.machine.devices {
        device.memory_bytes = 1 << 45;
    }
    for plan in &mut program.plans {
        let mut end = 0;
        for buffer in &mut plan.buffers {
            buffer.block_tokens = rounds;
            buffer.chunk_tokens = rounds;
            buffer.blocks = 2;
            buffer.stride_bytes = 64 * rounds;
            buffer.offset_bytes = end;
            end += buffer.stride_bytes * 2;
        }
        for calendar in &mut plan.calendars {
            calendar.arena_bytes = end;
            calendar.exchange_bytes = end;
            calendar.scratch_bytes = 0;
        }
        plan.period_ns = u64::MAX;
    }
}

fn loops_in_plans(size: usize) -> Program {
    let mut program = nested(1, 1 << 14);
    let plan = program.plans[PlanId(0)].clone();
    for i in 0..(size / 100).min(crate::limits::MAX_PLANS - 1) {
        let mut other = plan.clone();
        other.name = format!("p{i}");
        program.plans.push(other);
    }
    program
}

/// A token at a time, in loops at both ends.
fn transfers(rounds: u64) -> Program {
    let mut program = two_devices();
    make_room(&mut program, rounds);
    let plan = &mut program.plans[PlanId(0)];
    plan.block = rounds;
    plan.stages = 1;

    let transfer = |action| {
        Entry::Slot(Slot {
            stage: 0,
            start_ns: 0,
            duration_ns: 0,
            action,
        })
    };
    let ring = RingId(0);
    let send = transfer(Action::Send {
        ring,
        first: 0,
        count: 1,
    });
    let receive = transfer(Action::Recv {
        ring,
        first: 0,
        count: 1,
    });
    let turns = |body| Entry::Loop {
        count: rounds,
        body,
    };
    plan.calendars[0].lanes[0].entries = vec![turns(vec![fire(0, 0), send])];
    plan.calendars[1].lanes[0].entries = vec![
        turns(vec![receive, fire(1, 0), fire(2, 0)]),
        transfer(Action::Release { ring }),
        transfer(Action::Carry {
            buffer: BufferId(1),
        }),
    ];
    program
}

/// Slots whose actors have as many ports as there may be, repeated at every depth.
fn ports_in_loops(size: usize) -> Program {
    let mut program = chain();
    let ports = (size / 40).clamp(1, 200);
    let graph = &mut program.graph;
    let channel = graph.channels[ChannelId(0)].clone();
    for i in 0..ports {
        let mut input = graph.actors[ActorId(2)].inputs[0].clone();
        let mut output = graph.actors[ActorId(0)].outputs[0].clone();
        input.name = format!("x{i}");
        output.name = format!("y{i}");
        graph.actors[ActorId(1)].inputs.push(input);
        graph.actors[ActorId(1)].outputs.push(output);
        let mut link = channel.clone();
        link.from = Endpoint {
            actor: ActorId(1),
            port: 1 + i as u32,
        };
        link.readers = vec![Reader {
            to: Endpoint {
                actor: ActorId(1),
                port: 1 + i as u32,
            },
            delay: 1,
        }];
        link.initial = vec![0; 4];
        graph.channels.push(link);
    }
    let lane = &mut program.plans[PlanId(0)].calendars[0].lanes[0];
    for _ in 0..size / 20 {
        let mut entries = vec![fire(1, 0)];
        for _ in 0..4 {
            entries = vec![Entry::Loop {
                count: 3,
                body: entries,
            }];
        }
        lane.entries.extend(entries);
    }
    program
}

/// A plan of many like slots, which is stored as its difference from plan 0: some hundred times as short.
fn long_plan() -> Program {
    const SLOTS: usize = 400_000;
    let mut program = spare();
    let lane = &mut program.plans[PlanId(1)].calendars[0].lanes[0];
    lane.entries = vec![fire(0, 0); SLOTS];
    program
}

fn wrong_slots(size: usize) -> Program {
    let mut program = chain();
    let lane = &mut program.plans[PlanId(0)].calendars[0].lanes[0];
    lane.entries.extend((0..size / 8).map(|_| fire(7, 9)));
    program
}

/// A long name in each of as many errors as there may be.
fn long_names(size: usize) -> Program {
    let mut program = chain();
    let name = "n".repeat(size / 32);
    for _ in 0..16 {
        let mut actor = program.graph.actors[ActorId(0)].clone();
        actor.name = name.clone();
        program.graph.actors.push(actor);
        let mut device = program.machine.devices[DeviceId(0)].clone();
        device.name = name.clone();
        program.machine.devices.push(device);
    }
    program
}

fn long_parameter(size: usize) -> Program {
    let mut program = chain();
    let tensor = Value::Tensor(BlobId(1 << 30), TokenType::scalar(DType::F32));
    let params = &mut program.graph.actors[ActorId(1)].params;
    params.insert("p".repeat(size / 2), Value::List(vec![tensor; size / 16]));
    program
}

fn long_shapes(size: usize) -> Program {
    let mut program = chain();
    let graph = &mut program.graph;
    let token = TokenType {
        dtype: DType::F32,
        shape: vec![1; size / 8],
        burst: false,
    };
    graph.actors[ActorId(0)].outputs[0].token = token.clone();
    graph.actors[ActorId(1)].inputs[0].token = token.clone();
    let channel = &mut graph.channels[ChannelId(0)];
    channel.token = token;
    channel.readers = vec![channel.readers[0]; size / 8];
    program
}

fn states(size: usize) -> Program {
    let mut program = chain();
    let actor = &mut program.graph.actors[ActorId(1)];
    actor.state = (0..size / 8)
        .map(|i| StatePort {
            input: 1000 + i as u32,
            output: 1000 + i as u32,
        })
        .collect();
    actor.in_place = vec![InPlace::whole(0, 0); size / 8];
    program
}

/// Pairs of actors that wait for each other.
fn stuck_cycles(size: usize) -> Program {
    let mut program = feedback();
    let graph = &mut program.graph;
    graph.channels[ChannelId(2)].readers[0].delay = 0;
    graph.channels[ChannelId(2)].initial.clear();
    let original = graph.clone();

    for copy in 1..size / 250 {
        let first = graph.actors.len() as u32;
        for actor in &original.actors {
            let mut actor = actor.clone();
            actor.name = format!("{}{copy}", actor.name);
            graph.actors.push(actor);
        }
        for channel in &original.channels {
            let mut channel = channel.clone();
            channel.from.actor.0 += first;
            for reader in &mut channel.readers {
                reader.to.actor.0 += first;
            }
            graph.channels.push(channel);
        }
    }
    program
}

/// An iteration in which a cycle is gone through token by token.
fn long_iteration() -> Program {
    let mut program = feedback();
    program.graph.actors[ActorId(0)].outputs[0].rate = 1 << 24;
    program
}

fn rings(size: usize) -> Program {
    let mut program = two_devices();
    let plan = &mut program.plans[PlanId(0)];
    let ring = plan.rings[RingId(0)].clone();
    for i in 0..size / 5 {
        let mut other = ring.clone();
        other.channel = ChannelId(i as u32 % 2);
        plan.rings.push(other);
    }
    program
}

/// Half of the file is a graph, the other half plans that say nothing of it.
fn plans_of_a_large_graph(size: usize) -> Program {
    let mut program = chain();
    let (source, sink) = (
        program.graph.actors[ActorId(0)].clone(),
        program.graph.actors[ActorId(2)].clone(),
    );
    let link = program.graph.channels[ChannelId(0)].clone();
    for i in 0..size / 120 {
        let from = program.graph.actors.len() as u32;
        for mut actor in [source.clone(), sink.clone()] {
            actor.name = format!("{}{i}", actor.name);
            program.graph.actors.push(actor);
        }
        let mut link = link.clone();
        link.from.actor.0 = from;
        link.readers[0].to.actor.0 = from + 1;
        program.graph.channels.push(link);
    }
    let mut empty = program.plans[PlanId(0)].clone();
    empty.calendars.clear();
    empty.buffers = Vec::new().into();
    for i in 0..(size / 60).min(crate::limits::MAX_PLANS - 1) {
        empty.name = format!("p{i}");
        program.plans.push(empty.clone());
    }
    program
}

fn device(like: &Device, index: usize) -> Device {
    Device {
        name: format!("d{index}"),
        ..like.clone()
    }
}

/// Devices of one kind, each compared with the first.
fn devices_alike(size: usize) -> Program {
    let mut program = spare();
    let like = program.machine.devices[DeviceId(0)].clone();
    let count = (size / 20).min(crate::limits::MAX_DEVICES - 2);
    for index in 0..count {
        let id = program
            .machine
            .devices
            .push_and_get_key(device(&like, index));
        program.contingencies.kinds[KindId(0)].push(id);
    }
    program
}

fn losses(size: usize) -> Program {
    let mut program = spare();
    let entry = program.contingencies.list[0].clone();
    let count = (size / 20).min(crate::limits::MAX_CONTINGENCIES - 1);
    let lost = vec![entry.lost[0]; 4];
    for i in 0..count {
        let mut lost = lost.clone();
        lost.push(Loss {
            kind: KindId(i as u32),
            count: 1,
        });
        program.contingencies.list.push(Contingency {
            lost,
            ..entry.clone()
        });
    }
    program
}

fn deep_parameters(size: usize) -> Program {
    let mut program = chain();
    let mut value = Value::Bool(true);
    for _ in 0..20 {
        value = Value::List(vec![value]);
    }
    let params = &mut program.graph.actors[ActorId(1)].params;
    params.insert("p".to_owned(), Value::List(vec![value; size / 64]));
    program
}
