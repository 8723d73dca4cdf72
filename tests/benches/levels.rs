//! What `--solve` costs and gives: compile time and period for each level, by actors and devices, one table.
//!
//! `cargo bench -p zbmd-tests --bench levels`. The gap is against the proved bound of the placement by the cost model.

use std::time::Instant;

use zbmd_ir::Program;
use zbmd_ir::verify::verify;
use zbmd_scheduler::search::unattended;
use zbmd_scheduler::{Block, Level, ScheduleOptions, schedule_with};
use zbmd_tests::random::{self, Shape};

fn main() {
    println!(
        "{:>6} {:>8} {:>7} {:>9} {:>12} {:>8} {:>10}",
        "actors", "firings", "devices", "level", "period us", "gap %", "seconds"
    );
    for actors in [10, 30, 100, 300, 1_000] {
        for devices in [2, 4, 8] {
            for level in [Level::Fast, Level::Balanced, Level::Exact] {
                // The exact search of large graphs takes minutes.
                if level < Level::Exact || actors <= 100 {
                    row(actors, devices, level);
                }
            }
        }
    }
}

fn row(actors: usize, devices: usize, level: Level) {
    let shape = Shape {
        min_actors: actors,
        actors,
        max_rate: 3,
        ..Shape::default()
    };
    let graph = random::graph(actors as u64, shape);
    let machine = random::machine(devices);
    let costs = random::costs(&graph, &machine, actors as u64);
    let options = ScheduleOptions {
        block: Block::Fixed(1),
        level,
        ..ScheduleOptions::default()
    };
    let firings: u64 = zbmd_scheduler::repetition(&graph)
        .expect("consistent")
        .iter()
        .sum();
    let start = Instant::now();
    let found = unattended(|control| schedule_with(&graph, &machine, &costs, &options, control))
        .expect("random graphs have schedules");
    let plans = found.plans.into();
    let program = verify(Program {
        graph,
        machine,
        plans,
        ..Program::default()
    })
    .expect("valid");
    let seconds = start.elapsed().as_secs_f64();
    let period = program
        .plans
        .first()
        .map_or(0.0, |p| p.period_ns as f64 / 1e3);
    let gap = found
        .estimate
        .map_or("?".to_owned(), |e| format!("{:.2}", 100.0 * e.gap()));
    let level = format!("{level:?}").to_lowercase();
    println!(
        "{actors:>6} {firings:>8} {devices:>7} {level:>9} {period:>12.1} {gap:>8} {seconds:>10.3}"
    );
}
