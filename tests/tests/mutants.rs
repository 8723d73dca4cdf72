//! Damaged plans are refused or harmless: every mutant that the verifier accepts replays like the interpreter.

use zbmd_ir::testing::mutate::mutants;
use zbmd_ir::verify::verify;
use zbmd_ir::{Contingency, DeviceId, PlanId, Program};
use zbmd_scheduler::{
    Block, Inputs, Losses, ScheduleOptions, repetition, schedule, schedule_contingencies,
};
use zbmd_tests::random::{self, Shape};
use zbmd_tests::run::{Streams, interpret_program, replay_program};
use zbmd_tests::{mix, stepper};

fn program(seed: u64) -> Program {
    let graph = random::graph(
        seed,
        Shape {
            actors: 12,
            ..Shape::default()
        },
    );
    let machine = random::machine(1 + (seed % 4) as usize);
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
