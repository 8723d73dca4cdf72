//! Damaged plans are refused or harmless: every mutant that the verifier accepts replays like the interpreter.

use zbmd_ir::testing::mutate::mutants;
use zbmd_ir::verify::verify;
use zbmd_ir::{PlanId, Program, TiVec};
use zbmd_scheduler::{Block, Options, repetition, schedule};
use zbmd_tests::random::{self, Shape};
use zbmd_tests::run::{Streams, interpret_program, replay_program};
use zbmd_tests::{mix, stepper};

fn program(seed: u64) -> Program {
    let graph = random::graph(seed, Shape { actors: 12, ..Shape::default() });
    let machine = random::machine(1 + (seed % 4) as usize);
    let costs = random::costs(&graph, &machine, seed);
    let options = Options { block: Block::Fixed(1 + seed % 3), ..Options::default() };
    let plans = schedule(&graph, &machine, &costs, &options).expect("random graphs have schedules");
    Program { graph, machine, plans: plans.into(), blobs: TiVec::new() }
}

fn inputs(program: &Program, iterations: u64) -> Streams {
    let mut rng = fastrand::Rng::with_seed(iterations);
    let q = repetition(&program.graph).expect("verified graphs are consistent");
    let sources = program.graph.sources().map(|(id, source)| {
        let port = &source.outputs[0];
        let bytes = q[id] * port.rate * iterations * port.token.bytes();
        (source.name.clone(), (0..bytes).map(|_| rng.u8(..)).collect())
    });
    sources.collect()
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
            let main = &verified.plans[PlanId(0)];
            let inputs = inputs(&verified, main.block * (u64::from(main.stages) + 2) + 1);
            let (expected, state) = interpret_program(&verified, &registry, &inputs, None);
            let (outputs, outcome) = replay_program(verified, &registry, &inputs, None, None);
            assert_eq!(outcome.state, state, "{what}: another state");
            assert!(outputs == expected, "{what}: other outputs");
        }
    }
    println!("{refused} mutants refused, {accepted} accepted and equivalent");
    assert!(refused > 3_000 && accepted > 100, "{refused} {accepted}: a weak sample");
}
