//! Bundles that have been changed anywhere, with checksums that fit: each is refused, or does what the interpreter does.
//! `ZBMD_HOSTILE_BUNDLES=100000 cargo test -p zbmd-tests --test plans hostile_bundles` looks at as many as wanted, those from
//! `ZBMD_HOSTILE_FIRST` on; `tests/fuzz` does the same guided by coverage.

use std::collections::BTreeMap;

use zbmd_ir::Program;
use zbmd_ir::testing::mutate::Random;
use zbmd_ir::testing::parts::{NAMES, Parts};
use zbmd_scheduler::{Block, Inputs, Losses, ScheduleOptions, schedule, schedule_contingencies};
use zbmd_tests::bundles::{Verdict, examine};
use zbmd_tests::mix;
use zbmd_tests::random::{self, Shape};

fn program(seed: u64) -> Program {
    let shape = Shape {
        actors: 8,
        ..Shape::default()
    };
    let graph = random::graph(seed, shape);
    let machine = random::machine(1 + (seed % 3) as usize);
    let costs = random::costs(&graph, &machine, seed);
    let options = ScheduleOptions {
        block: Block::Fixed(1 + seed % 3),
        ..ScheduleOptions::default()
    };
    let plans = schedule(&graph, &machine, &costs, &options).expect("random graphs have schedules");
    let inputs = Inputs {
        graph: &graph,
        machine: &machine,
        costs: &costs,
        options: &options,
    };
    let made = schedule_contingencies(inputs, plans, Losses::Single).expect("few losses");
    let plans = made.plans.into();
    let contingencies = made.contingencies;
    let mut program = Program {
        graph,
        machine,
        plans,
        contingencies,
        ..Program::default()
    };
    program.blobs.push(vec![3; 70].into());
    program.blobs.push(vec![4; 7].into());
    program
}

/// Bundles that are looked at with the other tests.
const FEW: u64 = 2500;

/// Seeds that once found a fault: a full list of errors that let a check go on, and a rest that no plan runs.
const KNOWN_SEEDS: [u64; 2] = [20_058_675, 20_140_133];

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn changed_bundles_are_refused_or_run_like_the_interpreter() {
    let registry = mix::registry();
    let bases: Vec<Parts> = (0..20).map(|seed| Parts::new(&program(seed))).collect();
    let mut verdicts: BTreeMap<Verdict, u32> = BTreeMap::new();
    let mut by_part: BTreeMap<&str, u32> = BTreeMap::new();
    let first = number("ZBMD_HOSTILE_FIRST").unwrap_or(0);
    let count = number("ZBMD_HOSTILE_BUNDLES").unwrap_or(FEW);
    for seed in KNOWN_SEEDS.into_iter().chain(first..first + count) {
        let mut random = Random::new(seed);
        let mut parts = bases[random.below(bases.len())].clone();
        let changed: Vec<&str> = (0..1 + random.below(2))
            .map(|_| parts.change(&mut random))
            .collect();
        println!("seed {seed}: {changed:?}");

        let verdict = examine(parts.bundle(), &registry, seed);
        *verdicts.entry(verdict).or_default() += 1;
        if verdict > Verdict::Malformed {
            for name in changed {
                *by_part.entry(name).or_default() += 1;
            }
        }
    }
    println!("{verdicts:?} {by_part:?}");
    let seen = |verdict| verdicts.get(&verdict).copied().unwrap_or(0);
    assert!(
        seen(Verdict::Refused) > 200 && seen(Verdict::Run) > 20,
        "{verdicts:?}: a weak sample"
    );
    for name in NAMES.iter().filter(|name| **name != "kernels") {
        assert!(
            by_part.contains_key(name),
            "{name}: never read: {by_part:?}"
        );
    }
}
