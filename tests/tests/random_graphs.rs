//! Random consistent graphs on random machines: schedule, verify, replay, and equal the interpreter.

use zbmd_ir::verify::verify;
use zbmd_ir::{Graph, Plan, Program, TiVec};
use zbmd_scheduler::{Block, Options, schedule};
use zbmd_tests::random::{self, Shape};
use zbmd_tests::stepper;

/// The plans of the seed's graph on the seed's machine.
fn plans(seed: u64, shape: Shape) -> (Graph, Vec<Plan>) {
    let graph = random::graph(seed, shape);
    let machine = random::machine(1 + (seed % 4) as usize);
    let costs = random::costs(&graph, &machine, seed);
    let block = [Block::Auto, Block::Fixed(1), Block::Fixed(7)][(seed / 4 % 3) as usize];
    let options = Options { block, ..Options::default() };
    let plans =
        schedule(&graph, &machine, &costs, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    (graph, plans)
}

#[test]
fn the_verifier_accepts_what_the_scheduler_makes() {
    for seed in 0..2000u64 {
        let (graph, plans) = plans(seed, Shape::default());
        let machine = random::machine(1 + (seed % 4) as usize);
        let program = Program { graph, machine, plans: plans.into(), blobs: TiVec::new() };
        if let Err(errors) = verify(program) {
            let text: Vec<String> = errors.iter().map(|e| format!("{} {e}", e.code())).collect();
            panic!("seed {seed}: {}", text.join("; "));
        }
    }
}

#[test]
fn the_slow_checker_accepts_what_the_scheduler_makes() {
    for seed in 0..600u64 {
        let (graph, plans) = plans(seed, Shape { actors: 10, ..Shape::default() });
        for plan in plans.iter().filter(|p| p.block < 20) {
            let blocks = u64::from(plan.stages) * 2 + 1;
            if let Err(violation) = stepper::step(&graph, plan, blocks, seed) {
                panic!("seed {seed}, plan {}: {}", plan.name, violation.0);
            }
        }
    }
}

#[test]
fn the_slow_checker_misses_no_slot() {
    let mut dropped = 0;
    for seed in 0..150u64 {
        let (graph, plans) = plans(seed, Shape { actors: 10, ..Shape::default() });
        let plan = &plans[plans.len() - 1];
        let blocks = u64::from(plan.stages) * 2 + 1;
        for calendar in 0..plan.calendars.len() {
            for entry in 0..plan.calendars[calendar].lanes[0].entries.len() {
                let mut broken = plan.clone();
                let slot = broken.calendars[calendar].lanes[0].entries.remove(entry);
                let found = stepper::step(&graph, &broken, blocks, seed);
                assert!(found.is_err(), "seed {seed}: nobody misses {slot:?}");
                dropped += 1;
            }
        }
    }
    assert!(dropped > 1000, "only {dropped} slots dropped");
}
