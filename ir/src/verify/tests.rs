//! Tests of the verifier: valid programs pass, each broken property is named by its code, mutants are refused.

use std::ops::RangeInclusive;

use super::*;
use crate::testing::hostile::{self, Hostile};
use crate::testing::mutate::mutants;
use crate::testing::programs::{
    self, chain, chunked_feedback, chunked_window, chunks, feedback, fetched, nested_chunks, over,
    parts, pipeline, round_trip, spare, spare_host, state, two_devices, window,
};
use crate::{
    Action, BufferId, CARRIED, Calendar, ChannelId, ClosedAnswer, Contingency, DType, DeviceId,
    Entry, Gate, Host, HostId, InPlace, KernelCode, KindId, LaneKind, LinkRun, Links,
    LiveParameter, MODEL, MODEL_ITERATIONS, MergedModel, Region, RingId, Slot, TokenType, Value,
    carried_param, merged_models,
};

/// Gives an actor the live parameter `level`.
fn insert_live(program: &mut Program, id: u32, initial: &[f64], range: RangeInclusive<f64>) {
    let parameter = LiveParameter {
        name: "level".to_owned(),
        initial: initial.to_vec(),
        is_list: initial.len() != 1,
        min: *range.start(),
        max: *range.end(),
    };
    let live = Value::Live(Box::new(parameter));
    actor(program, id).params.insert("level".into(), live);
}

fn gate_of(input: u32, outputs: &[ClosedAnswer]) -> Gate {
    Gate {
        input,
        outputs: outputs.to_vec(),
        states: ClosedAnswer::Hold,
    }
}

/// Gives an actor a gate without the ports that it needs.
fn gate(program: &mut Program, id: u32, input: u32, outputs: &[ClosedAnswer]) {
    let gate = Value::Gate(Box::new(gate_of(input, outputs)));
    actor(program, id).params.insert(Gate::PARAM.into(), gate);
}

/// A state that a sink gives, with the tensor of `chain` at first.
fn carried_by(sink: &str) -> Value {
    carried_param(sink, BlobId(0), TokenType::new(DType::F32, [2]))
}

fn carry(program: &mut Program, id: u32, state: Value) {
    actor(program, id).params.insert(CARRIED.into(), state);
}

/// Makes a stream one of a merged model.
fn merge(program: &mut Program, id: u32, iterations: i64) {
    let params = &mut actor(program, id).params;
    params.insert(MODEL.into(), Value::Str("chain".into()));
    params.insert(MODEL_ITERATIONS.into(), Value::Int(iterations));
}

#[test]
fn a_merged_graph_says_which_model_its_streams_belong_to() {
    let mut program = programs::chain();
    assert!(merged_models(&program.graph).is_empty());
    [0, 2].into_iter().for_each(|id| merge(&mut program, id, 1));
    assert_eq!(codes(&program), [""; 0]);
    let model = MergedModel {
        name: "chain".to_owned(),
        iterations: 1,
        sources: vec![0],
        sinks: vec![0],
    };
    assert_eq!(merged_models(&program.graph), [model]);
}

#[test]
fn hand_built_programs_pass() {
    for program in programs::all().into_iter().chain([fetched()]) {
        assert_eq!(codes(&program), [""; 0], "{}", program.graph.name);
    }
}

pub(super) fn codes(program: &Program) -> Vec<&'static str> {
    check(program)
        .err()
        .unwrap_or_default()
        .iter()
        .map(VerifyError::code)
        .collect()
}

pub(super) fn main(p: &mut Program) -> &mut Plan {
    &mut p.plans[PlanId(0)]
}

pub(super) fn calendar(p: &mut Program, device: usize) -> &mut Calendar {
    &mut main(p).calendars[device]
}

fn entries(p: &mut Program, device: usize) -> &mut Vec<Entry> {
    &mut calendar(p, device).lanes[0].entries
}

fn slot(p: &mut Program, device: usize, entry: usize) -> &mut Slot {
    match &mut entries(p, device)[entry] {
        Entry::Slot(slot) => slot,
        Entry::Loop { .. } => panic!("entry {entry} is a loop"),
    }
}

fn buffer(p: &mut Program, id: u32) -> &mut crate::Buffer {
    &mut main(p).buffers[BufferId(id)]
}

/// A buffer for blocks of another size, each held as a whole.
fn set_block_tokens(p: &mut Program, id: u32, tokens: u64) {
    let buffer = buffer(p, id);
    buffer.block_tokens = tokens;
    buffer.chunk_tokens = tokens;
}

fn ring(p: &mut Program) -> &mut crate::Ring {
    &mut main(p).rings[RingId(0)]
}

fn actor(p: &mut Program, id: u32) -> &mut crate::Actor {
    &mut p.graph.actors[ActorId(id)]
}

fn channel(p: &mut Program, id: u32) -> &mut crate::Channel {
    &mut p.graph.channels[ChannelId(id)]
}

/// Another number of tokens in each chunk of a buffer.
fn set_chunk(p: &mut Program, id: u32, tokens: u64) {
    buffer(p, id).chunk_tokens = tokens;
}

/// Exchanges two entries and their start times.
fn exchange(p: &mut Program, device: usize, a: usize, b: usize) {
    let starts = (slot(p, device, a).start_ns, slot(p, device, b).start_ns);
    entries(p, device).swap(a, b);
    slot(p, device, a).start_ns = starts.0;
    slot(p, device, b).start_ns = starts.1;
}

/// A program, a change, the code that must be among the errors.
type Case = (&'static str, fn() -> Program, fn(&mut Program));

fn run(cases: &[Case]) {
    for (i, (code, make, change)) in cases.iter().enumerate() {
        let mut program = make();
        change(&mut program);
        let found = codes(&program);
        assert!(
            found.contains(code),
            "case {i}: expected {code}, found {found:?}"
        );
    }
}

fn code(key: u128, blob: u32) -> KernelCode {
    KernelCode {
        format: "spirv".to_owned(),
        key,
        blob: BlobId(blob),
    }
}

#[test]
fn graphs() {
    run(&[
        ("V0101", chain, |p| actor(p, 1).inputs[0].rate = 1 << 33),
        ("V0101", chain, |p| {
            actor(p, 1).inputs[0].token.shape = vec![1; 9]
        }),
        ("V0102", chain, |p| actor(p, 1).name = "in".into()),
        ("V0103", feedback, |p| {
            actor(p, 1).inputs[1].name = "a".into()
        }),
        ("V0104", chain, |p| {
            actor(p, 1).inputs[0].token.shape = vec![2, 0]
        }),
        ("V0129", chain, |p| actor(p, 1).inputs[0].token.burst = true),
        ("V0105", chain, |p| actor(p, 0).outputs[0].rate = 0),
        ("V0106", chain, |p| actor(p, 1).inputs[0].window = 0),
        ("V0107", chain, |p| channel(p, 0).from.actor = ActorId(3)),
        ("V0107", chain, |p| {
            channel(p, 0).readers[0].to.actor = ActorId(u32::MAX)
        }),
        ("V0108", chain, |p| channel(p, 0).readers[0].to.port = 1),
        ("V0109", chain, |p| {
            channel(p, 0).token = TokenType::scalar(DType::I32)
        }),
        ("V0110", chain, |p| channel(p, 0).readers.clear()),
        ("V0111", feedback, |p| channel(p, 0).readers[0].to.port = 1),
        ("V0112", window, |p| channel(p, 0).readers[0].delay = 1),
        ("V0113", window, |p| channel(p, 0).initial.truncate(4)),
        ("V0113", window, |p| {
            channel(p, 0).readers[0].delay = u64::MAX
        }),
        ("V0114", window, |p| actor(p, 2).role = crate::Role::Source),
        ("V0115", state, |p| actor(p, 1).state[0].input = 2),
        ("V0116", state, |p| {
            let twice = actor(p, 1).state[0];
            actor(p, 1).state.push(twice);
        }),
        ("V0117", state, |p| {
            (actor(p, 1).inputs[1].rate, actor(p, 1).inputs[1].window) = (2, 2)
        }),
        ("V0117", state, |p| actor(p, 1).state[0].input = 0),
        ("V0126", over, |p| actor(p, 2).in_place[1].input = 2),
        ("V0126", over, |p| actor(p, 2).in_place[0].output = u32::MAX),
        ("V0126", state, |p| {
            actor(p, 1).in_place.push(InPlace::whole(1, 1))
        }),
        ("V0128", chain, |p| p.graph.name = "a\u{1b}[2J".into()),
        ("V0128", chain, |p| actor(p, 1).name.push('\n')),
        ("V0128", chain, |p| actor(p, 1).name = "x".repeat(1025)),
        ("V0128", chain, |p| actor(p, 1).op.push('\u{202e}')),
        ("V0128", chain, |p| actor(p, 1).inputs[0].name.push('\r')),
        ("V0128", chain, |p| actor(p, 1).outputs[0].name.push('\t')),
        ("V0128", chain, |p| {
            actor(p, 1)
                .params
                .insert("a\u{200b}".into(), Value::Bool(true));
        }),
        ("V0128", chain, |p| {
            let inner = [("\u{7f}".to_owned(), Value::Bool(true))];
            let nested = Value::List(vec![Value::Map(inner.into())]);
            actor(p, 1).params.insert("a".into(), nested);
        }),
        ("V0127", over, |p| actor(p, 2).inputs[0].window = 2),
        ("V0127", over, |p| actor(p, 2).in_place[0].at_bytes = 64),
        ("V0127", parts, |p| actor(p, 3).in_place[1].at_bytes = 65),
        ("V0127", parts, |p| {
            actor(p, 1).in_place[1].at_bytes = u64::MAX
        }),
        ("V0127", parts, |p| actor(p, 1).inputs[0].window = 49),
        ("V0118", chain, |p| p.blobs.clear()),
        ("V0124", chain, |p| p.kernels.push(code(1, 9))),
        ("V0125", chain, |p| {
            p.kernels.extend([code(1, 0), code(1, 0)])
        }),
        ("V0119", chain, |p| {
            p.blobs[BlobId(0)] = Bytes::from_static(b"short")
        }),
        ("V0130", chain, |p| {
            let tensor = Value::Tensor(BlobId(0), TokenType::burst(DType::F32, [2]));
            actor(p, 1).params.insert("bursts".into(), tensor);
        }),
        // Outside its range; a range that is none; numbers that are none.
        ("V0131", chain, |p| insert_live(p, 1, &[3.0], 0.0..=2.0)),
        ("V0131", chain, |p| insert_live(p, 1, &[1.0], 2.0..=0.0)),
        ("V0131", chain, |p| {
            insert_live(p, 1, &[1.0], 0.0..=f64::INFINITY)
        }),
        ("V0131", chain, |p| {
            insert_live(p, 1, &[f64::NAN], 0.0..=2.0)
        }),
        ("V0131", chain, |p| insert_live(p, 1, &[], 0.0..=2.0)),
        ("V0132", chain, |p| {
            insert_live(p, 0, &[1.0], 0.0..=2.0);
            insert_live(p, 1, &[1.5], 0.0..=2.0);
        }),
        // Of an output too few; at a source; where nothing reads it; of tokens that are no numbers; two states of none.
        ("V0133", chain, |p| gate(p, 1, 1, &[])),
        ("V0133", chain, |p| gate(p, 0, 0, &[])),
        ("V0133", chain, |p| {
            let gate = Value::Gate(Box::new(gate_of(1, &[ClosedAnswer::Zero])));
            actor(p, 1).params.insert("other".into(), gate);
        }),
        ("V0133", chain, |p| {
            gate(p, 1, 0, &[ClosedAnswer::Zero]);
            actor(p, 1).inputs[0].token = TokenType::scalar(DType::C32);
        }),
        ("V0133", chain, |p| gate(p, 1, 0, &[ClosedAnswer::Hold])),
        // Of no members; of a sink that does not exist; of one that gives twice as much; of a sink.
        ("V0134", chain, |p| carry(p, 0, Value::Int(1))),
        ("V0134", chain, |p| carry(p, 0, carried_by("nobody"))),
        ("V0134", chain, |p| carry(p, 0, carried_by("out"))),
        ("V0134", chain, |p| carry(p, 2, carried_by("out"))),
        // Of a stream alone; of an actor; of no iterations; of two numbers of them; of parts of tokens.
        ("V0135", chain, |p| merge(p, 0, 1)),
        ("V0135", chain, |p| (0..3).for_each(|id| merge(p, id, 1))),
        ("V0135", chain, |p| {
            [0, 2].into_iter().for_each(|id| merge(p, id, 0))
        }),
        ("V0135", chain, |p| {
            [(0, 1), (2, 2)]
                .into_iter()
                .for_each(|(id, n)| merge(p, id, n))
        }),
        ("V0135", chain, |p| {
            [0, 2].into_iter().for_each(|id| merge(p, id, 2))
        }),
        ("V0101", chain, |p| {
            let deep = (0..40).fold(Value::Int(1), |v, _| Value::List(vec![v]));
            actor(p, 1).params.insert("deep".into(), deep);
        }),
        ("V0120", feedback, |p| actor(p, 2).outputs[0].rate = 2),
        ("V0121", chain, |p| {
            // The sink fires 2^32 - 1 times for each firing of the filter, and that 2^32 / 3 times.
            (actor(p, 0).outputs[0].rate, actor(p, 1).outputs[0].rate) = (1 << 32, (1 << 32) - 1);
            (actor(p, 1).inputs[0].rate, actor(p, 1).inputs[0].window) = (3, 3);
        }),
        ("V0122", feedback, |p| {
            channel(p, 2).readers[0].delay = 0;
            channel(p, 2).initial.clear();
        }),
    ]);
}

/// Changes the runs of links as no compiler would.
fn change_runs(program: &mut Program, change: impl FnOnce(&mut Vec<LinkRun>)) {
    let mut runs = program.machine.links.runs().to_vec();
    change(&mut runs);
    program.machine.links = Links::of_runs(runs);
}

#[test]
fn machines() {
    run(&[
        ("V0201", two_devices, |p| {
            p.machine.devices[DeviceId(1)].name = "cpu:0".into()
        }),
        ("V0202", two_devices, |p| {
            change_runs(p, |runs| runs[0].to = DeviceId(9))
        }),
        ("V0202", two_devices, |p| {
            change_runs(p, |runs| runs[0].count = 2)
        }),
        ("V0202", two_devices, |p| {
            change_runs(p, |runs| runs[0].count = u32::MAX)
        }),
        ("V0203", two_devices, |p| {
            change_runs(p, |runs| runs[0].to = DeviceId(0))
        }),
        ("V0204", two_devices, |p| {
            change_runs(p, |runs| runs.push(runs[1]))
        }),
        ("V0205", two_devices, |p| {
            change_runs(p, |runs| runs[0].bytes_per_s = 0)
        }),
        ("V0217", two_devices, |p| {
            change_runs(p, |runs| runs[0].count = 0)
        }),
        ("V0217", two_devices, |p| {
            change_runs(p, |runs| runs.reverse())
        }),
        ("V0217", four_devices, |p| {
            change_runs(p, |runs| {
                runs[0].count -= 1;
                let cut_off = LinkRun {
                    to: DeviceId(3),
                    count: 1,
                    ..runs[0]
                };
                runs.insert(1, cut_off);
            });
        }),
        ("V0128", two_devices, |p| {
            p.machine.devices[DeviceId(0)].name.push('\0');
        }),
        ("V0128", two_devices, |p| {
            p.machine.devices[DeviceId(1)].backend = "cpu\u{9b}".into();
        }),
        ("V0207", two_devices, |p| {
            p.machine.devices[DeviceId(0)].cores = vec![u32::MAX];
        }),
        ("V0206", two_devices, |p| {
            p.machine.devices[DeviceId(0)].cores = vec![3, 3]
        }),
    ]);
}

#[test]
fn plans_and_calendars() {
    run(&[
        ("V0301", chain, |p| p.plans.clear()),
        ("V0302", chain, |p| {
            p.plans.push(chain().plans[PlanId(0)].clone())
        }),
        ("V0303", chain, |p| main(p).name = "tail".into()),
        ("V0304", chain, |p| main(p).block = 0),
        ("V0305", chain, |p| main(p).placement.truncate(2)),
        ("V0306", chain, |p| {
            main(p).placement[ActorId(0)] = DeviceId(1)
        }),
        ("V0307", chain, |p| calendar(p, 0).device = DeviceId(1)),
        ("V0308", two_devices, |p| main(p).calendars.swap(0, 1)),
        ("V0308", chain, |p| {
            main(p)
                .calendars
                .push(chain().plans[PlanId(0)].calendars[0].clone())
        }),
        ("V0309", two_devices, |p| main(p).calendars.truncate(1)),
        ("V0310", chain, |p| {
            p.machine = two_devices().machine;
            let mut idle = calendar(p, 0).clone();
            idle.device = DeviceId(1);
            main(p).calendars.push(idle);
        }),
        ("V0311", chain, |p| calendar(p, 0).lanes.clear()),
        ("V0311", chain, |p| {
            calendar(p, 0).lanes[0].kind = LaneKind::CopyIn
        }),
        ("V0312", chain, |p| {
            entries(p, 0).push(Entry::Loop {
                count: 1,
                body: vec![],
            })
        }),
        ("V0312", feedback, |p| match &mut entries(p, 0)[1] {
            Entry::Loop { count, .. } => *count = 0,
            Entry::Slot(_) => {}
        }),
        ("V0101", feedback, |p| match &mut entries(p, 0)[1] {
            Entry::Loop { count, .. } => *count = 1 << 40,
            Entry::Slot(_) => {}
        }),
        ("V0101", chain, |p| {
            let body = std::mem::take(entries(p, 0));
            *entries(p, 0) = (0..9).fold(body, |body, _| {
                vec![Entry::Loop {
                    count: u64::MAX,
                    body,
                }]
            });
        }),
        ("V0313", chain, |p| {
            slot(p, 0, 0).action = Action::Fire {
                actor: ActorId(0),
                first: 0,
                count: 0,
            }
        }),
        ("V0314", chain, |p| {
            slot(p, 0, 0).action = Action::Carry {
                buffer: BufferId(2),
            }
        }),
        ("V0314", chain, |p| {
            slot(p, 0, 0).action = Action::Release { ring: RingId(0) }
        }),
        ("V0315", two_devices, |p| {
            let moved = entries(p, 1).remove(6);
            entries(p, 0).push(moved);
        }),
        ("V0316", two_devices, |p| slot(p, 1, 3).stage = 0),
        ("V0317", chain, |p| slot(p, 0, 2).stage = 1),
        ("V0318", chain, |p| main(p).stages = 2),
        ("V0317", chain, |p| main(p).stages = 0),
        ("V0319", two_devices, |p| {
            slot(p, 0, 0).action = Action::Fire {
                actor: ActorId(0),
                first: 1,
                count: 2,
            }
        }),
        ("V0320", chain, |p| drop(entries(p, 0).remove(1))),
        ("V0320", chain, |p| {
            slot(p, 0, 0).action = Action::Fire {
                actor: ActorId(0),
                first: u64::MAX,
                count: u64::MAX,
            }
        }),
        ("V0321", feedback, |p| {
            let carry = entries(p, 0).remove(2);
            entries(p, 0).insert(
                2,
                Entry::Loop {
                    count: 1,
                    body: vec![carry],
                },
            );
        }),
        ("V0322", chain, |p| main(p).block = u64::MAX),
    ]);
}

/// What opens a gate on a GPU comes from elsewhere: on the same one, the host would see it too late.
#[test]
fn gates_of_gpus_come_from_other_devices() {
    fn gated(p: &mut Program, device: u32, backend: &str) {
        p.machine.devices[DeviceId(device)].backend = backend.into();
        gate(p, 1, 0, &[ClosedAnswer::Zero]);
    }
    run(&[
        ("V0326", chain, |p| gated(p, 0, "cuda")),
        ("V0326", chain, |p| gated(p, 0, "vulkan")),
    ]);
    let mut program = chain();
    gated(&mut program, 0, "cpu");
    assert_eq!(codes(&program), [""; 0], "on a CPU the kernel reads it");
    let mut program = two_devices();
    gated(&mut program, 1, "cuda");
    assert_eq!(codes(&program), [""; 0], "it comes from another device");
}

#[test]
fn variants_of_kernels() {
    fn choose(p: &mut Program, actor: u32, name: &str) {
        main(p).variants.insert(ActorId(actor), name.to_owned());
    }
    let mut program = chain();
    choose(&mut program, 1, &"a-9".repeat(10));
    assert_eq!(
        codes(&program),
        Vec::<&str>::new(),
        "a name that a kernel could have"
    );
    program.machine.devices[DeviceId(0)].backend = "cuda".into();
    assert!(!codes(&program).contains(&"V0324"), "on a GPU too");
    run(&[
        ("V0323", chain, |p| choose(p, 3, "8x2")),
        ("V0323", chain, |p| choose(p, u32::MAX, "8x2")),
        ("V0324", chain, |p| choose(p, 0, "8x2")),
        ("V0324", chain, |p| choose(p, 2, "8x2")),
        ("V0325", chain, |p| choose(p, 1, "")),
        ("V0325", chain, |p| choose(p, 1, "8x2 ")),
        ("V0325", chain, |p| choose(p, 1, "Wide")),
        ("V0325", chain, |p| choose(p, 1, &"8".repeat(33))),
    ]);
}

#[test]
fn buffers_and_memory() {
    run(&[
        ("V0401", chain, |p| buffer(p, 0).channel = ChannelId(7)),
        ("V0402", chain, |p| buffer(p, 1).channel = ChannelId(0)),
        ("V0403", chain, |p| {
            main(p).buffers.pop();
        }),
        ("V0404", two_devices, |p| buffer(p, 2).device = DeviceId(0)),
        ("V0405", chain, |p| set_block_tokens(p, 0, 5)),
        ("V0405", state, |p| set_block_tokens(p, 2, 3)),
        ("V0406", window, |p| buffer(p, 0).head_tokens = 3),
        ("V0406", two_devices, |p| buffer(p, 0).head_tokens = 2),
        ("V0407", chain, |p| buffer(p, 0).blocks = 0),
        ("V0407", state, |p| buffer(p, 2).blocks = 2),
        ("V0407", chain, |p| buffer(p, 0).blocks = u32::MAX),
        ("V0408", chain, |p| buffer(p, 0).offset_bytes = 8),
        ("V0408", chain, |p| buffer(p, 0).stride_bytes = 72),
        ("V0408", chain, |p| {
            calendar(p, 0).scratch_offset_bytes = 130
        }),
        ("V0409", chain, |p| buffer(p, 0).stride_bytes = 0),
        ("V0410", chain, |p| calendar(p, 0).arena_bytes = 128),
        ("V0410", chain, |p| {
            buffer(p, 0).offset_bytes = u64::MAX - 63
        }),
        ("V0411", two_devices, |p| {
            buffer(p, 1).region = Region::Arena
        }),
        ("V0411", chain, |p| buffer(p, 1).region = Region::Exchange),
        ("V0412", chain, |p| {
            calendar(p, 0).arena_bytes = (1 << 20) + 64
        }),
        ("V0101", chain, |p| calendar(p, 0).arena_bytes = u64::MAX),
        ("V0601", chain, |p| buffer(p, 1).offset_bytes = 0),
        ("V0601", chain, |p| calendar(p, 0).scratch_offset_bytes = 64),
        ("V0601", pipeline, |p| buffer(p, 1).offset_bytes = 64),
        ("V0601", state, |p| buffer(p, 2).offset_bytes = 0),
    ]);
}

#[test]
fn outputs_over_inputs() {
    run(&[
        // Nobody said that the actor may do it; or the plan does it elsewhere, or with more than it says.
        ("V0601", over, |p| actor(p, 2).in_place.clear()),
        ("V0601", over, |p| {
            p.machine.devices[DeviceId(0)].backend = "vulkan".into()
        }),
        ("V0601", over, |p| {
            (buffer(p, 0).offset_bytes, buffer(p, 1).offset_bytes) = (64, 128);
            (buffer(p, 2).stride_bytes, calendar(p, 0).arena_bytes) = (128, 192);
        }),
        ("V0601", over, |p| buffer(p, 1).offset_bytes = 0),
        ("V0601", over, |p| {
            buffer(p, 2).stride_bytes = 128;
        }),
        ("V0602", over, |p| buffer(p, 0).blocks = 2),
        ("V0602", over, |p| buffer(p, 2).blocks = 2),
        // The gain looks at what the product has overwritten; the product does so itself, by its other port.
        ("V0603", over, |p| entries(p, 0).swap(1, 2)),
        ("V0603", over, |p| {
            let twice = channel(p, 1).readers.remove(0);
            channel(p, 0).readers.push(twice);
        }),
    ]);
    // The other input will do as well; without the pair, or with more memory, the plan is as any other.
    for (offset, arena) in [(64, 128), (128, 192)] {
        let mut p = over();
        buffer(&mut p, 2).offset_bytes = offset;
        calendar(&mut p, 0).arena_bytes = arena;
        assert_eq!(codes(&p), [""; 0]);
        let found = p.plans[PlanId(0)].over(&p.graph);
        let below = found.iter().map(|o| o.below);
        assert!(below.eq((offset == 64).then_some(BufferId(1))));
    }
}

#[test]
fn parts_in_wholes() {
    run(&[
        // Nobody said that the actor may do it; or the part lies where it says, but not the whole.
        ("V0601", parts, |p| actor(p, 1).in_place.clear()),
        ("V0601", parts, |p| actor(p, 3).in_place.clear()),
        ("V0601", parts, |p| actor(p, 1).in_place[1].at_bytes = 0),
        ("V0601", parts, |p| actor(p, 3).in_place[1].at_bytes = 0),
        ("V0601", parts, |p| {
            p.machine.devices[DeviceId(0)].backend = "vulkan".into()
        }),
        ("V0601", parts, |p| {
            (buffer(p, 4).offset_bytes, calendar(p, 0).arena_bytes) = (64, 256);
        }),
        // Both parts of the split where only the second may lie, and of the concatenation.
        ("V0601", parts, |p| {
            actor(p, 1).in_place[0].at_bytes = 64;
            actor(p, 3).in_place[0].at_bytes = 64;
            (buffer(p, 1).offset_bytes, buffer(p, 3).offset_bytes) = (64, 64);
        }),
        // Of a split that nobody reads, the parts must not lie in each other either.
        ("V0601", parts, |p| {
            actor(p, 1).in_place[1].at_bytes = 0;
            buffer(p, 2).offset_bytes = 0;
            channel(p, 2).readers.clear();
            actor(p, 3).inputs.pop();
            actor(p, 3).in_place.clear();
            (buffer(p, 4).offset_bytes, calendar(p, 0).arena_bytes) = (192, 384);
        }),
        // In a call of two firings parts lie elsewhere.
        ("V0601", parts, |p| {
            main(p).block = 2;
            calendar(p, 0).arena_bytes = 384;
            for i in 0..5 {
                let doubled = 2 * buffer(p, i).block_tokens;
                set_block_tokens(p, i, doubled);
                buffer(p, i).stride_bytes *= 2;
                if let Action::Fire { count, .. } = &mut slot(p, 0, i as usize).action {
                    *count = 2;
                }
            }
        }),
        // Of what is split, more than the actor says is written over: by the other output, which lies in it elsewhere.
        ("V0601", parts, |p| {
            actor(p, 1).in_place.pop();
        }),
        ("V0602", parts, |p| {
            (buffer(p, 0).blocks, calendar(p, 0).arena_bytes) = (2, 384)
        }),
        ("V0602", parts, |p| {
            (buffer(p, 4).blocks, calendar(p, 0).arena_bytes) = (2, 384)
        }),
        // The concatenation looks at what was split, and at one of its parts twice.
        ("V0603", parts, |p| read_by_the_join(p, 0, 48)),
        ("V0603", parts, |p| read_by_the_join(p, 2, 32)),
    ]);
    let mut p = parts();
    let found = |p: &Program| p.plans[PlanId(0)].over(&p.graph).len();
    assert_eq!((codes(&p).len(), found(&p)), (0, 5));
    // One part apart: both copy it.
    (
        buffer(&mut p, 2).offset_bytes,
        calendar(&mut p, 0).arena_bytes,
    ) = (192, 320);
    assert_eq!((codes(&p).len(), found(&p)), (0, 3));
}

/// Gives the concatenation of [`parts`] one more input, of a channel with such a rate.
fn read_by_the_join(p: &mut Program, id: u32, rate: u64) {
    let mut more = actor(p, 3).inputs[0].clone();
    (more.name, more.rate, more.window) = ("w".into(), rate, rate);
    actor(p, 3).inputs.push(more);
    let to = crate::Endpoint {
        actor: ActorId(3),
        port: 2,
    };
    channel(p, id).readers.push(crate::Reader { to, delay: 0 });
}

/// Actors in a row, each writing over the output of the one before: as many as recursion or a quadratic walk would not
/// bear.
#[test]
fn long_rows_over_each_other_are_one_block() {
    let mut p = large(20_000, 16);
    for a in p
        .graph
        .actors
        .iter_mut()
        .filter(|a| a.role == crate::Role::Compute)
    {
        a.in_place = vec![InPlace::whole(0, 0)];
    }
    main(&mut p)
        .buffers
        .iter_mut()
        .for_each(|b| b.offset_bytes = 0);
    assert_eq!(codes(&p), [""; 0]);
    actor(&mut p, 9_999).in_place.clear();
    let found = codes(&p);
    assert!(
        !found.is_empty() && found.iter().all(|code| *code == "V0601"),
        "{found:?}"
    );
}

#[test]
fn order_on_a_device() {
    run(&[
        ("V0501", chain, |p| exchange(p, 0, 0, 1)),
        ("V0501", window, |p| exchange(p, 0, 0, 2)),
        ("V0501", two_devices, |p| exchange(p, 1, 2, 3)),
        ("V0501", two_devices, |p| exchange(p, 0, 0, 1)),
        // Written a stage after it is read.
        ("V0501", pipeline, |p| {
            slot(p, 0, 0).stage = 1;
            slot(p, 0, 1).stage = 0;
        }),
        // The source overwrites the one place that the filter still has to read, a stage later.
        ("V0502", pipeline, |p| buffer(p, 0).blocks = 1),
        // With one place the carry comes before the filter has looked at the history.
        ("V0504", window, |p| exchange(p, 0, 1, 2)),
        ("V0504", pipeline, |p| exchange(p, 0, 1, 2)),
        ("V0503", pipeline, |p| {
            // Two stages late: the next block's filter has already run.
            slot(p, 0, 2).stage = 3;
            main(p).stages = 4;
            buffer(p, 0).blocks = 8;
            buffer(p, 1).offset_bytes = 512;
            calendar(p, 0).arena_bytes = 576;
        }),
        ("V0505", window, |p| drop(entries(p, 0).remove(2))),
        ("V0505", chain, |p| {
            let end = calendar(p, 0).lanes[0].entries.len() as u64 * 10;
            main(p).period_ns += 10;
            let action = Action::Carry {
                buffer: BufferId(0),
            };
            entries(p, 0).push(Entry::Slot(Slot {
                stage: 0,
                start_ns: end,
                duration_ns: 10,
                action,
            }));
        }),
        ("V0506", two_devices, |p| {
            let carry = entries(p, 1).remove(4);
            entries(p, 0).push(carry);
        }),
        ("V0507", two_devices, |p| exchange(p, 1, 4, 5)),
        ("V0507", two_devices, |p| exchange(p, 1, 3, 5)),
    ]);
}

#[test]
fn rings_deadlocks_and_times() {
    run(&[
        ("V0701", two_devices, |p| ring(p).channel = ChannelId(9)),
        ("V0702", two_devices, |p| {
            let twice = ring(p).clone();
            main(p).rings.push(twice);
        }),
        ("V0703", two_devices, |p| main(p).rings.clear()),
        ("V0704", two_devices, |p| ring(p).channel = ChannelId(1)),
        ("V0705", two_devices, |p| ring(p).from = DeviceId(1)),
        ("V0706", two_devices, |p| ring(p).buffer = BufferId(2)),
        ("V0707", two_devices, |p| p.machine.links.clear()),
        ("V0708", two_devices, |p| {
            let recv = entries(p, 1).remove(0);
            entries(p, 0).push(recv);
        }),
        ("V0709", two_devices, |p| slot(p, 0, 1).stage = 1),
        ("V0709", two_devices, |p| slot(p, 1, 0).stage = 0),
        ("V0710", two_devices, |p| exchange(p, 0, 1, 3)),
        ("V0711", two_devices, |p| drop(entries(p, 1).remove(2))),
        ("V0712", two_devices, |p| drop(entries(p, 1).remove(5))),
        ("V0713", two_devices, |p| slot(p, 1, 5).stage = 0),
        ("V0801", two_devices, |p| {
            [0, 1, 2, 3]
                .map(|i| slot(p, 0, i).stage = 3)
                .map(|()| main(p).stages = 4)[0]
        }),
        ("V0802", two_devices, |p| {
            slot(p, 1, 5).stage = 3;
            main(p).stages = 4;
        }),
        // Here the receipt of the feedback comes before what the other device needs for it.
        ("V0803", round_trip, |p| {
            exchange(p, 0, 2, 4);
        }),
        ("V0901", chain, |p| main(p).period_ns = 0),
        ("V0902", chain, |p| slot(p, 0, 1).start_ns = 9),
        ("V0902", feedback, |p| slot(p, 0, 2).start_ns = 129),
        ("V0903", chain, |p| main(p).period_ns = 29),
        ("V0903", chain, |p| slot(p, 0, 2).duration_ns = u64::MAX),
        ("V0904", round_trip, |p| slot(p, 1, 0).duration_ns = 29),
    ]);
}

/// Changes that look odd but are right must pass: the verifier is no style check.
#[test]
fn harmless_changes_pass() {
    type Case = (fn() -> Program, fn(&mut Program));
    let cases: &[Case] = &[
        // The sink may run before or after the carry.
        (window, |p| exchange(p, 0, 2, 3)),
        // More places than needed, where there is room.
        (pipeline, |p| {
            buffer(p, 0).blocks = 3;
            buffer(p, 1).offset_bytes = 192;
            calendar(p, 0).arena_bytes = 256;
        }),
        // Two blocks with disjoint lives share bytes: the last one is written when the first has been read.
        (two_on_one_place, |p| buffer(p, 2).offset_bytes = 0),
        // Carried a stage later than written, before the next block's filter.
        (pipeline, |p| {
            slot(p, 0, 2).stage = 1;
            exchange(p, 0, 2, 3);
        }),
    ];
    for (i, (make, change)) in cases.iter().enumerate() {
        let mut program = make();
        change(&mut program);
        assert_eq!(codes(&program), [""; 0], "case {i}");
    }
}

/// [`spare_host`] with one device more on each host, of its kind.
fn four_devices() -> Program {
    let mut program = spare_host();
    let machine = &mut program.machine;
    for index in 0..2_u32 {
        let mut device = machine.devices[DeviceId(index)].clone();
        device.name = format!("other:{index}");
        machine.devices.push(device);
    }
    machine.links = Links::between_all(4, |_, _| (1_000_000_000, 5));

    // 0 and 1 are one host now, 2 and 3 the other.
    for (host, devices) in machine.hosts.iter_mut().zip([[0, 1], [2, 3]]) {
        host.devices = devices.map(DeviceId).to_vec();
    }
    let both = [[0, 1], [2, 3]].map(|ids| ids.map(DeviceId).to_vec());
    program.contingencies.kinds = both.to_vec().into();
    program.contingencies.alike_hosts = vec![both.to_vec()].into();
    program.contingencies.list.clear();
    program
}

#[test]
fn contingencies() {
    fn kinds(p: &mut Program) -> &mut Vec<Vec<DeviceId>> {
        &mut p.contingencies.kinds.raw
    }
    fn entry(p: &mut Program) -> &mut Contingency {
        &mut p.contingencies.list[0]
    }
    fn add_tail(p: &mut Program) {
        let mut tail = p.plans[PlanId(1)].clone();
        (tail.name, tail.block) = ("tail".into(), 1);
        p.plans.push(tail);
    }
    run(&[
        ("V0101", spare, |p| {
            p.contingencies.list = vec![entry(p).clone(); crate::limits::MAX_CONTINGENCIES + 1];
        }),
        ("V1001", spare, |p| kinds(p).push(vec![])),
        ("V1002", spare, |p| kinds(p).push(vec![DeviceId(2)])),
        ("V1002", spare, |p| kinds(p)[0][1] = DeviceId(u32::MAX)),
        ("V1003", spare, |p| kinds(p).push(vec![DeviceId(1)])),
        ("V1003", spare, |p| kinds(p)[0][1] = DeviceId(0)),
        ("V1004", spare, |p| kinds(p)[0].reverse()),
        ("V1005", spare, |p| kinds(p)[0].truncate(1)),
        ("V1005", spare, |p| kinds(p).clear()),
        ("V1006", spare, |p| {
            p.machine.devices[DeviceId(1)].memory_bytes -= 1
        }),
        ("V1006", spare, |p| {
            change_runs(p, |runs| runs[0].latency_ns = 6)
        }),
        ("V1007", spare, |p| entry(p).lost.clear()),
        ("V1008", spare, |p| entry(p).lost[0].kind = KindId(1)),
        ("V1008", spare, |p| entry(p).lost[0].kind = KindId(u32::MAX)),
        ("V1009", spare, |p| entry(p).lost[0].count = 0),
        ("V1009", spare, |p| entry(p).lost[0].count = u32::MAX),
        ("V1010", spare, |p| {
            let twice = entry(p).lost[0];
            entry(p).lost.push(twice);
        }),
        ("V1011", spare, |p| {
            let twice = entry(p).clone();
            p.contingencies.list.push(twice);
        }),
        ("V1012", spare, |p| entry(p).main = PlanId(2)),
        ("V1012", spare, |p| entry(p).tail = Some(PlanId(u32::MAX))),
        ("V1013", spare, |p| p.plans[PlanId(1)].block = 2),
        ("V1013", spare, |p| {
            add_tail(p);
            entry(p).tail = Some(PlanId(1));
        }),
        ("V1014", spare, add_tail),
        ("V1014", spare, |p| entry(p).tail = Some(PlanId(1))),
        ("V1015", spare, |p| entry(p).main = PlanId(0)),
        ("V1015", spare, |p| entry(p).lost[0].count = 2),
    ]);
    // Hosts.
    fn host(p: &mut Program, id: u32) -> &mut Host {
        &mut p.machine.hosts[HostId(id)]
    }
    fn alike(p: &mut Program) -> &mut Vec<Vec<DeviceId>> {
        &mut p.contingencies.alike_hosts.raw[0]
    }
    run(&[
        ("V0208", spare_host, |p| {
            host(p, 1).devices.push(DeviceId(2))
        }),
        ("V0209", spare_host, |p| {
            host(p, 0).devices.push(DeviceId(1))
        }),
        ("V0210", spare_host, |p| p.machine.hosts.truncate(1)),
        ("V0211", spare_host, |p| host(p, 1).devices.clear()),
        ("V0212", spare_host, |p| {
            host(p, 1).devices.push(DeviceId(0))
        }),
        ("V0213", spare_host, |p| host(p, 1).name = "left".into()),
        ("V0213", spare_host, |p| {
            host(p, 1).name = p.machine.devices[DeviceId(0)].name.clone();
        }),
        ("V0128", spare_host, |p| host(p, 1).name.push('\u{7}')),
        ("V1016", spare_host, |p| p.machine.hosts.clear()),
        ("V1016", spare_host, |p| alike(p)[1].push(DeviceId(1))),
        ("V1016", spare_host, |p| alike(p)[1][0] = DeviceId(u32::MAX)),
        ("V1017", spare_host, |p| {
            let again = alike(p).clone();
            p.contingencies.alike_hosts.push(again);
        }),
        ("V1018", spare_host, |p| alike(p).truncate(1)),
        ("V1018", spare_host, |p| alike(p).clear()),
        ("V1019", spare_host, |p| alike(p).reverse()),
        ("V1020", spare_host, |p| {
            p.machine.devices[DeviceId(1)].memory_bytes -= 1
        }),
        ("V1020", spare_host, |p| {
            change_runs(p, |runs| runs[0].latency_ns = 6)
        }),
        ("V1022", spare_host, |p| {
            *kinds(p) = vec![vec![DeviceId(0), DeviceId(1)]];
            entry(p).lost[0].kind = KindId(0);
        }),
        ("V1023", spare_host, |p| entry(p).lost[0].kind = KindId(0)),
        // Two devices of which one host's are alike and the other's are two kinds.
        ("V1021", four_devices, |p| {
            *kinds(p) = [&[0, 1][..], &[2], &[3]]
                .map(|ids| ids.iter().map(|&id| DeviceId(id)).collect())
                .to_vec();
        }),
    ]);

    // The plan of a contingency is a plan like any other.
    run(&[("V0901", spare, |p| p.plans[PlanId(1)].period_ns = 0)]);
    // Kinds may be finer than what is alike, as long as every plan leaves the lost roles empty.
    let mut finer = spare();
    *kinds(&mut finer) = vec![vec![DeviceId(0)], vec![DeviceId(1)]];
    entry(&mut finer).lost[0].kind = KindId(1);
    assert_eq!(codes(&finer), [""; 0]);
}

/// Whatever else is wrong first, and however many errors are kept: a check never runs on what an earlier one refused.
#[test]
fn a_full_list_of_errors_lets_no_check_rely_on_what_is_wrong() {
    let mut program = spare();
    program.contingencies.kinds.raw[0] = vec![DeviceId(0); MAX_ERRORS + 2];
    for plan in &mut program.plans {
        plan.placement.pop();
    }
    for capacity in 1..MAX_ERRORS + 4 {
        let errors = check_keeping(&program, capacity).0;
        let errors = errors.expect_err("kinds and placements are wrong");
        assert!(errors.len() <= capacity, "{errors:?}");
    }
}

/// [`chain`] with one more actor: three buffers in a row, of which the first and the last never meet.
fn two_on_one_place() -> Program {
    let mut p = chain();
    let mut copy = actor(&mut p, 1).clone();
    copy.name = "copy".into();
    copy.params.clear();
    copy.outputs[0].rate = 1;
    p.graph.actors.push(copy);
    channel(&mut p, 1).readers[0].to.actor = ActorId(3);
    let mut last = channel(&mut p, 1).clone();
    last.from.actor = ActorId(3);
    last.readers[0].to.actor = ActorId(2);
    p.graph.channels.push(last);
    let plan = main(&mut p);
    plan.placement.push(DeviceId(0));
    let mut third = plan.buffers[BufferId(1)].clone();
    (third.channel, third.offset_bytes) = (ChannelId(2), 256);
    plan.buffers.push(third);
    plan.calendars[0].arena_bytes += 64;
    plan.period_ns += 10;
    let mut sink = slot(&mut p, 0, 2).clone();
    slot(&mut p, 0, 2).action = Action::Fire {
        actor: ActorId(3),
        first: 0,
        count: 8,
    };
    sink.start_ns += 10;
    entries(&mut p, 0).push(Entry::Slot(sink));
    p
}

#[test]
fn chunks_of_blocks() {
    run(&[
        ("V0413", chunks, |p| set_chunk(p, 0, 4)),
        ("V0413", chunks, |p| set_chunk(p, 0, 0)),
        ("V0413", chunks, |p| set_chunk(p, 0, 12)),
        ("V0413", state, |p| set_chunk(p, 2, 1)),
        // In one place, in memory of the device's own, for itself, and for one block at a time.
        ("V0414", chunks, |p| buffer(p, 0).blocks = 2),
        ("V0414", chunks, |p| buffer(p, 0).region = Region::Exchange),
        ("V0414", two_devices, |p| set_chunk(p, 0, 2)),
        ("V0414", two_devices, |p| set_chunk(p, 1, 2)),
        ("V0414", chunks, |p| {
            p.machine.devices[DeviceId(0)].backend = "cuda".into();
        }),
        ("V0414", pipeline, |p| {
            buffer(p, 0).blocks = 1;
            set_chunk(p, 0, 2);
            let mut second = entries(p, 0)[2].clone();
            if let Entry::Slot(slot) = &mut second {
                slot.duration_ns = 0;
            }
            entries(p, 0).insert(2, second);
        }),
        ("V0409", chunks, |p| buffer(p, 0).head_tokens = 1000),
        ("V0415", chunked_window, |p| buffer(p, 0).head_tokens = 1),
        // A carry for each chunk, and none without a head.
        ("V0505", chunks, |p| drop(entries(p, 0).remove(4))),
        ("V0505", nested_chunks, |p| buffer(p, 0).head_tokens = 1),
        ("V0505", chunked_feedback, |p| set_chunk(p, 2, 2)),
        // A chunk is carried before it is complete, or later than the next is written.
        ("V0501", chunks, |p| exchange(p, 0, 0, 1)),
        ("V0508", chunks, |p| exchange(p, 0, 1, 2)),
        ("V0508", nested_chunks, |p| set_chunk(p, 0, 4)),
        // The filter comes a chunk late, or finds less in front of it than it reads.
        ("V0509", chunks, |p| exchange(p, 0, 3, 4)),
        ("V0509", chunks, |p| buffer(p, 0).head_tokens = 1),
        ("V0509", nested_chunks, |p| set_chunk(p, 0, 3)),
        // Half a chunk each time.
        ("V0510", nested_chunks, |p| set_chunk(p, 0, 12)),
        ("V0321", chunked_window, |p| {
            let block = buffer(p, 0).block_tokens;
            set_chunk(p, 0, block);
            buffer(p, 0).stride_bytes = 64;
        }),
    ]);
}

fn tier(p: &mut Program) -> &mut crate::Tier {
    p.machine.tiers.get_mut(&DeviceId(0)).expect("it has one")
}

fn set_place(p: &mut Program, entry: usize, place: u64) {
    if let Action::Fetch { offset_bytes, .. } = &mut slot(p, 0, entry).action {
        *offset_bytes = place;
    }
}

#[test]
fn weights_are_fetched_before_they_are_needed_and_stay_until_then() {
    run(&[
        ("V0214", fetched, |p| {
            let tier = *tier(p);
            p.machine.tiers.insert(DeviceId(1), tier);
        }),
        ("V0215", fetched, |p| tier(p).bytes_per_s = 0),
        ("V0216", fetched, |p| {
            p.machine.devices[DeviceId(0)].backend = "fpga".into();
        }),
        ("V1201", fetched, |p| actor(p, 2).params.clear()),
        // What is packed is for kernels of CPUs.
        ("V1201", fetched, |p| {
            p.machine.devices[DeviceId(0)].backend = "vulkan".into();
        }),
        ("V1202", two_devices, |p| {
            let placed = main(p).placement.iter_enumerated();
            let elsewhere = placed.filter(|(_, device)| **device == DeviceId(1));
            let first = elsewhere.map(|(id, _)| id).next();
            let wait = Slot {
                stage: 0,
                start_ns: 0,
                duration_ns: 0,
                action: Action::Await {
                    actor: first.expect("an actor of the second device"),
                },
            };
            entries(p, 0).insert(0, Entry::Slot(wait));
        }),
        ("V1203", fetched, |p| p.machine.tiers.clear()),
        ("V1204", fetched, |p| drop(entries(p, 0).remove(3))),
        ("V1204", fetched, |p| drop(entries(p, 0).remove(4))),
        ("V1205", fetched, |p| exchange(p, 0, 4, 5)),
        ("V1205", fetched, |p| exchange(p, 0, 1, 2)),
        ("V1206", fetched, |p| exchange(p, 0, 3, 4)),
        ("V1207", fetched, |p| {
            main(p).stages = 2;
            slot(p, 0, 3).stage = 1;
        }),
        ("V1208", fetched, |p| tier(p).memory_bytes = 15),
        ("V1209", fetched, |p| tier(p).bytes_per_s = 700_000_000),
        ("V0321", fetched, |p| {
            let body = vec![entries(p, 0).remove(3)];
            entries(p, 0).insert(3, Entry::Loop { count: 1, body });
        }),
        // Not aligned, beyond the arena, over a buffer.
        ("V0408", fetched, |p| set_place(p, 3, 3 * 64 + 4)),
        ("V0410", fetched, |p| set_place(p, 3, 4 * 64)),
        ("V0601", fetched, |p| set_place(p, 3, 64)),
        // Too early: the place still has the weights of the other.
        ("V0601", fetched, |p| exchange(p, 0, 2, 3)),
        ("V0601", fetched, |p| exchange(p, 0, 5, 6)),
        ("V0314", fetched, |p| {
            slot(p, 0, 4).action = Action::Await {
                actor: ActorId(u32::MAX),
            };
        }),
    ]);
}

/// Nothing lies over a buffer of chunks, or under one.
#[test]
fn chunks_are_not_written_in_place() {
    let mut program = over();
    set_chunk(&mut program, 2, 2);
    assert_eq!(codes(&program), ["V0601"]);
}

#[test]
fn codes_are_unique_and_all_reachable_ones_are_tested() {
    let mut codes = VerifyError::CODES.to_vec();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), VerifyError::CODES.len());
    // V0123 needs a run of 2^26 steps.
    let tests = include_str!("tests.rs");
    for code in codes.into_iter().filter(|&code| code != "V0123") {
        assert!(
            tests.contains(&format!("(\"{code}\"")),
            "{code} has no test"
        );
    }
}

#[test]
fn mutants_that_must_fail_do() {
    for program in programs::all().into_iter().chain([fetched()]) {
        let mutants = mutants(&program, 1, 3000);
        assert_eq!(mutants.len(), 3000);
        for mutant in mutants {
            let refused = check(&mutant.program).is_err();
            let name = &program.graph.name;
            assert!(
                refused || !mutant.must_fail,
                "{name}: accepted: {}",
                mutant.what
            );
        }
    }
}

/// Each hidden character is refused in each kind of name, and no error prints it.
#[test]
fn hidden_characters_are_refused_in_every_name() {
    let places: [fn(&mut Program) -> &mut String; 8] = [
        |p| &mut p.graph.name,
        |p| &mut actor(p, 1).name,
        |p| &mut actor(p, 1).op,
        |p| &mut actor(p, 1).inputs[0].name,
        |p| &mut actor(p, 1).outputs[0].name,
        |p| &mut p.machine.devices[DeviceId(0)].name,
        |p| &mut main(p).name,
        |p| &mut main(p).bound_by,
    ];
    let hidden = (0..=0x2_0000)
        .filter_map(char::from_u32)
        .filter(|&c| crate::text::is_hidden(c));
    for character in hidden {
        for place in places {
            let mut program = chain();
            place(&mut program).push(character);

            let errors = check(&program).expect_err("a hidden character");
            assert!(errors.iter().any(|e| e.code() == "V0128"), "{errors:?}");

            let said: String = errors.iter().map(ToString::to_string).collect();
            assert!(!said.contains(crate::text::is_hidden), "{said:?}");
        }
    }
}

#[test]
fn errors_are_capped() {
    let mut program = chain();
    let copies = vec![entries(&mut program, 0)[0].clone(); 1000];
    entries(&mut program, 0).extend(copies);
    assert_eq!(
        check(&program).expect_err("1000 wrong slots").len(),
        MAX_ERRORS
    );
}

/// All work that is not bounded by the program's size is reserved before it is done, and never more than the budget.
#[test]
fn hostile_programs_take_no_more_work_than_their_size_allows() {
    for size in [500, 5_000, 50_000] {
        for Hostile { name, program } in hostile::all(size) {
            let bytes = crate::bundle::encode(&program);
            let program = crate::bundle::decode(bytes.into()).expect("it is well formed");
            let (result, work) = check_counting(&program);
            let what = format!("{name} of {size}: {work:?}");
            assert!(work.steps <= work.reserved, "{what}");
            assert!(work.reserved <= work.limit, "{what}");

            let text: usize = result
                .err()
                .unwrap_or_default()
                .iter()
                .map(|error| error.to_string().len())
                .sum();
            assert!(
                text <= 100_000 + 10 * size,
                "{what}: {text} bytes of errors"
            );
        }
    }
}

#[test]
fn work_beyond_the_budget_is_one_error_with_both_numbers() {
    let many = hostile::all(5_000);
    let refused = |name: &str| {
        let one = many.iter().find(|h| h.name == name).expect("there is one");
        check(&one.program).expect_err("too much work")
    };
    for (code, name) in [
        ("V1101", "loops of two stages"),
        ("V1101", "transfers in loops"),
    ] {
        let errors = refused(name);
        assert_eq!(
            errors.last().map(VerifyError::code),
            Some(code),
            "{name}: {errors:?}"
        );
        let VerifyError::TooMuchWork { steps, limit, .. } = errors[errors.len() - 1] else {
            panic!("{errors:?}")
        };
        assert!(steps > limit, "{name}: {steps} of {limit}");
    }
}

/// Of a loop in one stage only its ends are looked at, however often it is repeated.
#[test]
fn repetitions_of_loops_are_not_counted_out() {
    let steps = |rounds| {
        let (result, work) = check_counting(&large(200, rounds));
        result.expect("a valid program");
        work.steps
    };
    assert_eq!(steps(4), steps(16));
}

#[test]
fn repetition_vectors() {
    let q = |p: &Program| graph::repetition(&p.graph).expect("a consistent graph").raw;
    assert_eq!(q(&chain()), [1, 1, 2]);
    // CD to DAT: each component of a graph is scaled by itself.
    let mut p = chain();
    (
        actor(&mut p, 0).outputs[0].rate,
        actor(&mut p, 1).inputs[0].rate,
    ) = (147, 160);
    let other = chain().graph;
    for mut a in other.actors {
        a.name.push('2');
        p.graph.actors.push(a);
    }
    for mut c in other.channels {
        c.from.actor.0 += 3;
        c.readers[0].to.actor.0 += 3;
        p.graph.channels.push(c);
    }
    assert_eq!(q(&p), [160, 147, 294, 1, 1, 2]);
    channel(&mut p, 0).from.actor = ActorId(77);
    assert!(matches!(
        graph::repetition(&p.graph),
        Err(VerifyError::UnknownActor { .. })
    ));
}

/// A chain of actors as long as the limits of recursion would not bear, in one loop of many executions.
#[test]
fn large_programs_are_checked_without_recursion() {
    assert_eq!(codes(&large(20_000, 16)), [""; 0]);
}

fn large(actors: u32, rounds: u64) -> Program {
    let mut p = chain();
    let (source, middle, sink) = (
        actor(&mut p, 0).clone(),
        actor(&mut p, 1).clone(),
        actor(&mut p, 2).clone(),
    );
    let (link, place) = (channel(&mut p, 0).clone(), buffer(&mut p, 0).clone());
    let fire = slot(&mut p, 0, 0).clone();
    p.graph.actors = (0..actors)
        .map(|i| {
            let mut a = if i == 0 {
                &source
            } else if i + 1 == actors {
                &sink
            } else {
                &middle
            }
            .clone();
            a.name = format!("actor{i}");
            a.outputs.iter_mut().for_each(|o| o.rate = 1);
            a
        })
        .collect();
    p.graph.channels = (1..actors)
        .map(|i| {
            let mut c = link.clone();
            (c.from.actor.0, c.readers[0].to.actor.0) = (i - 1, i);
            c
        })
        .collect();
    p.machine.devices[DeviceId(0)].memory_bytes = 1 << 30;
    let plan = main(&mut p);
    plan.block = rounds;
    plan.placement = vec![DeviceId(0); actors as usize].into();
    plan.buffers = (0..actors - 1)
        .map(|i| {
            let mut b = place.clone();
            (b.channel.0, b.offset_bytes) = (i, u64::from(i) * 64);
            (b.block_tokens, b.chunk_tokens) = (rounds, rounds);
            b
        })
        .collect();
    plan.period_ns = u64::from(actors) * rounds;
    let body = (0..actors).map(|i| {
        let action = Action::Fire {
            actor: ActorId(i),
            first: 0,
            count: 1,
        };
        Entry::Slot(Slot {
            start_ns: i.into(),
            duration_ns: 1,
            action,
            ..fire.clone()
        })
    });
    let body = body.collect();
    let calendar = &mut plan.calendars[0];
    (calendar.arena_bytes, calendar.scratch_bytes) = (u64::from(actors) * 64, 0);
    calendar.lanes[0].entries = vec![Entry::Loop {
        count: rounds,
        body,
    }];
    p
}
