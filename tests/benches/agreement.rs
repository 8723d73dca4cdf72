//! The verifier beside the slow checker: 10,000 schedules of random graphs and mutants of each, one table.
//!
//! `cargo bench -p zbmd-tests --bench agreement [-- SCHEDULES]`. Fails where the verifier accepts what the slow checker
//! refuses. The other way round is no error: the verifier may ask for more than one interleaving shows.

use std::panic::catch_unwind;
use std::time::Instant;

use zbmd_ir::Program;
use zbmd_ir::testing::mutate::mutants;
use zbmd_ir::verify::verify;
use zbmd_scheduler::{Block, Level, ScheduleOptions, schedule};
use zbmd_tests::random::{self, Shape};
use zbmd_tests::stepper;

const MUTANTS: usize = 6;

fn program(seed: u64) -> Program {
    let graph = random::graph(
        seed,
        Shape {
            actors: 4 + (seed % 9) as usize,
            ..Shape::default()
        },
    );
    let machine = random::machine(1 + (seed % 4) as usize);
    let costs = random::costs(&graph, &machine, seed);
    let level = if seed.is_multiple_of(5) {
        Level::Balanced
    } else {
        Level::Fast
    };
    let options = ScheduleOptions {
        block: Block::Fixed(1 + seed % 5),
        level,
        ..ScheduleOptions::default()
    };
    let plans = schedule(&graph, &machine, &costs, &options).expect("random graphs have schedules");
    Program {
        graph,
        machine,
        plans: plans.into(),
        ..Program::default()
    }
}

/// [`steps`], with a crash of the slow checker on a mutant, whose numbers may be anything, taken as a refusal.
fn steps_or_crash(program: &Program, seed: u64) -> Result<(), String> {
    catch_unwind(|| steps(program, seed)).unwrap_or_else(|_| Err("it cannot be stepped".to_owned()))
}

/// Whether one random interleaving of every plan goes well.
fn steps(program: &Program, seed: u64) -> Result<(), String> {
    for plan in &program.plans {
        stepper::step(&program.graph, plan, u64::from(plan.stages) + 3, seed)
            .map_err(|violation| format!("plan {}: {}", plan.name, violation.0))?;
    }
    Ok(())
}

fn disagree(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(1)
}

fn main() {
    let wanted = std::env::args()
        .skip(1)
        .find_map(|a| a.parse().ok())
        .unwrap_or(10_000u64);
    std::panic::set_hook(Box::new(|_| {}));
    let start = Instant::now();
    let (mut schedules, mut plans) = (0u64, 0);
    // Mutants by the verdicts of verifier and slow checker.
    let (mut both_refuse, mut both_accept, mut verifier_alone) = (0, 0, 0);
    for seed in 0..wanted {
        let original = program(seed);
        for mutant in mutants(&original, seed, MUTANTS) {
            // The slow checker knows plans alone, not the graph's rules, the machine or memory beyond buffers.
            let slow = (mutant.program.graph == original.graph)
                .then(|| steps_or_crash(&mutant.program, seed));
            let what = format!("seed {seed}: {}", mutant.what);
            match (verify(mutant.program), slow) {
                (Ok(_), Some(Err(why))) => disagree(&format!("{what}: accepted, but {why}")),
                (Ok(_), _) => both_accept += 1,
                (Err(_), Some(Ok(()))) => verifier_alone += 1,
                (Err(_), _) => both_refuse += 1,
            }
        }
        plans += original.plans.len();
        let verified =
            verify(original).unwrap_or_else(|e| disagree(&format!("seed {seed}: refused: {e:?}")));
        if let Err(why) = steps(&verified, seed) {
            disagree(&format!("seed {seed}: the verifier accepts, but {why}"));
        }
        schedules += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("schedules accepted by both          {schedules:>8}   ({plans} plans)");
    println!("mutants refused by both             {both_refuse:>8}");
    println!("mutants accepted by both            {both_accept:>8}");
    println!(
        "mutants refused by the verifier alone {verifier_alone:>6}   (its rules hold for every interleaving)"
    );
    println!("accepted by the verifier alone      {:>8}", 0);
    println!("seconds                             {seconds:>8.1}");
}
