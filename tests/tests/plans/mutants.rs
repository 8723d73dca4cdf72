//! Damaged plans are refused or harmless: every mutant that the verifier accepts replays like the interpreter.

use zbmd_ir::testing::mutate::mutants;
use zbmd_ir::testing::programs;
use zbmd_ir::verify::verify;
use zbmd_ir::{Contingency, DeviceId, Entry, PlanId, Program};
use zbmd_scheduler::{
    Block, Inputs, Losses, ScheduleOptions, repetition, schedule, schedule_contingencies,
};
use zbmd_tests::gates::add_gates;
use zbmd_tests::random::{self, Shape};
use zbmd_tests::run::{Streams, interpret_program, replay_program};
use zbmd_tests::{mix, stepper};

fn program(seed: u64) -> Program {
    let mut graph = random::graph(
        seed,
        Shape {
            actors: 12,
            ..Shape::default()
        },
    );
    if seed.is_multiple_of(2) {
        add_gates(&mut graph, seed);
    }
    // Every sixth program is for two or three alike hosts.
    let is_on_hosts = seed.is_multiple_of(6);
    let machine = match is_on_hosts {
        true => random::cluster(2 + (seed / 6 % 2) as usize, 1 + (seed / 12 % 2) as usize),
        false => random::machine(1 + (seed % 4) as usize),
    };
    let costs = random::costs(&graph, &machine, seed);
    let options = ScheduleOptions {
        block: Block::Fixed(1 + seed % 3),
        ..ScheduleOptions::default()
    };
    let plans = schedule(&graph, &machine, &costs, &options).expect("random graphs have schedules");
    let which = if seed.is_multiple_of(3) {
        Losses::Pairs
    } else {
        Losses::None
    };
    let inputs = Inputs {
        graph: &graph,
        machine: &machine,
        costs: &costs,
        options: &options,
    };
    let made = schedule_contingencies(inputs, plans, which).expect("few losses");
    let (plans, contingencies) = (made.plans.into(), made.contingencies);
    Program {
        graph,
        machine,
        plans,
        contingencies,
        ..Program::default()
    }
}

fn inputs(program: &Program, iterations: u64) -> Streams {
    let mut rng = fastrand::Rng::with_seed(iterations);
    let q = repetition(&program.graph).expect("verified graphs are consistent");
    let sources = program.graph.sources().map(|(id, source)| {
        let port = &source.outputs[0];
        let bytes = q[id] * port.rate * iterations * port.token.bytes();
        (
            source.name.clone(),
            (0..bytes).map(|_| rng.u8(..)).collect(),
        )
    });
    sources.collect()
}

/// Written from what an entry means: whichever devices of its kinds fail, survivors can take all roles of its plans,
/// and a run can go over at any border of the main plan's blocks.
fn check_entry(program: &Program, entry: &Contingency, what: &str) {
    let kinds = &program.contingencies.kinds;
    let block = program.plans[PlanId(0)].block;
    // The first devices of each kind, and the last ones.
    for first in [true, false] {
        let lost: Vec<DeviceId> = entry
            .lost
            .iter()
            .flat_map(|loss| {
                let (devices, count) = (&kinds[loss.kind], loss.count as usize);
                if first {
                    devices[..count].to_vec()
                } else {
                    devices[devices.len() - count..].to_vec()
                }
            })
            .collect();
        assert_eq!(program.contingencies.find(&lost), Some(entry), "{what}");
        let roles = program.contingencies.roles(&lost);
        let parts = [Some((entry.main, block)), entry.tail.map(|tail| (tail, 1))];
        for (id, block) in parts.into_iter().flatten() {
            let plan = &program.plans[id];
            assert_eq!(plan.block, block, "{what}: {id}");
            for role in &plan.placement {
                let device = roles.get(role);
                assert!(
                    device.is_some_and(|d| !lost.contains(d)),
                    "{what}: {id} needs {role}"
                );
            }
        }
    }
}

#[test]
fn every_mutant_is_refused_or_equivalent() {
    let registry = mix::registry();
    let (mut refused, mut accepted) = (0, 0);
    for seed in 0..120u64 {
        let original = program(seed);
        for mutant in mutants(&original, seed, 40) {
            let what = format!("seed {seed}: {}", mutant.what);
            let Ok(verified) = verify(mutant.program) else {
                refused += 1;
                continue;
            };
            assert!(!mutant.must_fail, "{what}: accepted");
            accepted += 1;
            for plan in &verified.plans {
                let blocks = u64::from(plan.stages) + 3;
                if let Err(violation) = stepper::step(&verified.graph, plan, blocks, seed) {
                    panic!(
                        "{what}: the verifier accepts what the slow checker refuses: {}",
                        violation.0
                    );
                }
            }
            for entry in &verified.contingencies.list {
                check_entry(&verified, entry, &what);
            }
            let main = &verified.plans[PlanId(0)];
            let inputs = inputs(&verified, main.block * (u64::from(main.stages) + 2) + 1);
            let (expected, state) = interpret_program(&verified, &registry, &inputs, None);
            let (outputs, outcome) = replay_program(verified, &registry, &inputs, None, None);
            assert_eq!(outcome.state, state, "{what}: another state");
            assert!(outputs == expected, "{what}: other outputs");
        }
    }
    println!("{refused} mutants refused, {accepted} accepted and equivalent");
    assert!(
        refused > 3_000 && accepted > 100,
        "{refused} {accepted}: a weak sample"
    );
}

/// A damage to a program that neither checker may accept.
type Damage = (&'static str, fn() -> Program, fn(&mut Program));

fn lane(program: &mut Program) -> &mut Vec<Entry> {
    &mut program.plans[PlanId(0)].calendars[0].lanes[0].entries
}

/// Exchanges two slots, with their start times.
fn exchange(program: &mut Program, a: usize, b: usize) {
    let entries = lane(program);
    let start = |entry: &Entry| match entry {
        Entry::Slot(slot) => slot.start_ns,
        Entry::Loop { .. } => panic!("a loop"),
    };
    let starts = [start(&entries[a]), start(&entries[b])];
    entries.swap(a, b);
    for (index, start_ns) in [a, b].into_iter().zip(starts) {
        if let Entry::Slot(slot) = &mut entries[index] {
            slot.start_ns = start_ns;
        }
    }
}

fn set_chunk(program: &mut Program, buffer: usize, tokens: u64) {
    program.plans[PlanId(0)].buffers.raw[buffer].chunk_tokens = tokens;
}

fn set_head(program: &mut Program, buffer: usize, tokens: u64) {
    program.plans[PlanId(0)].buffers.raw[buffer].head_tokens = tokens;
}

/// What a scheduler of chunks may get wrong.
const CHUNK_DAMAGES: &[Damage] = &[
    ("a chunk off by one", programs::chunks, |p| {
        set_chunk(p, 0, 3)
    }),
    ("a longer chunk", programs::nested_chunks, |p| {
        set_chunk(p, 0, 7)
    }),
    ("a shorter chunk", programs::nested_chunks, |p| {
        set_chunk(p, 0, 3)
    }),
    ("a carry left out", programs::chunks, |p| {
        drop(lane(p).remove(4))
    }),
    ("a carry too early", programs::chunks, |p| exchange(p, 3, 4)),
    ("a carry before its chunk", programs::chunks, |p| {
        exchange(p, 0, 1)
    }),
    (
        "a carry left out of a loop",
        programs::chunked_window,
        |p| {
            if let Entry::Loop { body, .. } = &mut lane(p)[0] {
                body.pop();
            }
        },
    ),
    ("a head too short", programs::chunks, |p| set_head(p, 0, 1)),
    ("a head below the delay", programs::chunked_window, |p| {
        set_head(p, 0, 1)
    }),
    ("a head too short in a loop", programs::chunks_behind, |p| {
        set_head(p, 0, 4)
    }),
    ("a read one chunk late", programs::delayed_chunks, |p| {
        exchange(p, 1, 4)
    }),
    ("a write one chunk early", programs::chunks, |p| {
        exchange(p, 1, 2)
    }),
    (
        "a write before the read of the chunk before",
        programs::nested_chunks,
        |p| {
            if let Entry::Loop { body, .. } = &mut lane(p)[0] {
                body.swap(0, 1);
            }
        },
    ),
];

#[test]
fn damaged_chunks_are_refused_by_both_checkers() {
    for (what, make, damage) in CHUNK_DAMAGES {
        let mut program = make();
        let plan = &program.plans[PlanId(0)];
        stepper::step(&program.graph, plan, 3, 1).expect("valid before");
        damage(&mut program);
        let plan = &program.plans[PlanId(0)];
        assert!(stepper::step(&program.graph, plan, 3, 1).is_err(), "{what}");
        assert!(verify(program).is_err(), "{what}");
    }
}

/// The two checkers agree on whatever is done to chunks, and loops.
#[test]
fn every_mutant_of_chunks_is_judged_alike() {
    /// Errors that the slow checker cannot miss: a token is not there when it is read, or written elsewhere.
    const SEEN: &[&str] = &["V0501", "V0508", "V0509", "V0415"];
    let mut seen = [0; 2];
    for program in programs::all_chunked() {
        let name = program.graph.name.clone();
        for mutant in mutants(&program, 5, 3000) {
            let what = format!("{name}: {}", mutant.what);
            let plan = mutant.program.plans[PlanId(0)].clone();
            let graph = mutant.program.graph.clone();
            let errors = match verify(mutant.program) {
                Ok(_) => {
                    assert!(!mutant.must_fail, "{what}: accepted");
                    if let Err(violation) = stepper::step(&graph, &plan, 4, 1) {
                        panic!("{what}: the slow checker refuses it: {}", violation.0);
                    }
                    seen[0] += 1;
                    continue;
                }
                Err(errors) => errors,
            };
            if errors.iter().all(|error| SEEN.contains(&error.code())) {
                let stepped = stepper::step(&graph, &plan, 4, 1);
                assert!(stepped.is_err(), "{what}: only the verifier: {errors:?}");
                seen[1] += 1;
            }
        }
    }
    assert!(seen[0] > 500 && seen[1] > 200, "{seen:?}: a weak sample");
}
