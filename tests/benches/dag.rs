//! `cargo bench -p zbmd-tests --bench dag [-- fast|balanced|exact] [-- FILTER]`: the published scheduling instances,
//! one line each: ours, list scheduling, published optimum, proved bound, gap to either, time.

use std::time::Instant;

use zbmd_scheduler::search::{Dag, Level, gap, solve, unattended};
use zbmd_tests::data;
use zbmd_tests::sets::{self, Published};

#[derive(Default)]
struct Sum {
    cases: u32,
    reached: u32,
    improved: u32,
    proved: u32,
    gap: f64,
    worst: f64,
    seconds: f64,
    longest: f64,
}

fn run(name: &str, dag: &Dag, published: Published, level: Level, sum: &mut Sum) {
    let before = Instant::now();
    let found = unattended(|control| solve(dag, level, control));
    let seconds = before.elapsed().as_secs_f64();
    let above = gap(found.makespan, published.makespan);
    let Published { bound, makespan } = published;
    let text = if bound < makespan {
        format!("{bound}-{makespan}")
    } else {
        bound.to_string()
    };
    println!(
        "{name:<24} {:>6} {:>6} {text:>9} {:>6} {:>8.3} % {:>8.3} % {:>9.3} s {:>10}",
        found.makespan,
        found.listed,
        found.bound,
        above * 100.0,
        found.gap() * 100.0,
        seconds,
        found.work,
    );
    assert!(
        found.makespan >= bound,
        "{name}: below the published bound {bound}"
    );
    assert!(
        found.bound <= makespan,
        "{name}: the bound {} is above a known schedule",
        found.bound
    );
    assert!(
        found.makespan <= found.listed,
        "{name} is above list scheduling"
    );
    sum.cases += 1;
    sum.reached += u32::from(found.makespan <= makespan);
    sum.improved += u32::from(found.makespan < makespan);
    sum.proved += u32::from(found.is_optimal());
    sum.gap += above;
    sum.worst = sum.worst.max(above);
    sum.seconds += seconds;
    sum.longest = sum.longest.max(seconds);
}

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let named = |word: &str| match word {
        "fast" => Some(Level::Fast),
        "balanced" => Some(Level::Balanced),
        "exact" => Some(Level::Exact),
        _ => None,
    };
    let level = words.iter().find_map(|w| named(w)).unwrap_or_default();
    let wanted = |name: &str| {
        words
            .iter()
            .filter(|w| named(w).is_none())
            .all(|w| name.contains(w.as_str()))
    };
    println!(
        "{:<24} {:>6} {:>6} {:>9} {:>6} {:>10} {:>10} {:>11} {:>10}",
        "instance", "ours", "list", "published", "bound", "to publ.", "to bound", "time", "work"
    );
    let mut sums = Vec::new();
    let mut small = Sum::default();
    for (name, makespan) in [("topcuoglu2002", 73), ("arabnejad2014", 113)] {
        let optimum = Published {
            bound: makespan,
            makespan,
        };
        let times = data::file(&format!("dag/{name}_times.csv"));
        let edges = data::file(&format!("dag/{name}_edges.csv"));
        if let (Some(times), Some(edges)) = (times, edges)
            && wanted(name)
        {
            run(
                name,
                &sets::small_dag(&times, &edges),
                optimum,
                level,
                &mut small,
            );
        }
    }
    sums.push(("unlike processors".to_owned(), small));
    for processors in [2, 4, 8, 16] {
        let mut sum = Sum::default();
        let Some(optima) = data::file(&format!("stg/Case50_{processors}_OPT.csv")) else {
            continue;
        };
        for (graph, optimum) in sets::stg_optima(&optima).into_iter().enumerate() {
            let name = format!("stg50/{graph:04}/P{processors}");
            let Some(path) = data::file(&format!("stg/50/rand{graph:04}.stg")) else {
                continue;
            };
            if wanted(&name) {
                run(
                    &name,
                    &sets::stg(&path, processors),
                    optimum,
                    level,
                    &mut sum,
                );
            }
        }
        sums.push((format!("stg50, {processors} processors"), sum));
    }
    println!(
        "\n{:<24} {:>6} {:>8} {:>7} {:>7} {:>11} {:>10} {:>10} {:>10}",
        "set", "cases", "reached", "better", "proved", "mean gap", "worst", "mean time", "longest"
    );
    for (name, sum) in sums.iter().filter(|s| s.1.cases > 0) {
        let cases = f64::from(sum.cases);
        println!(
            "{name:<24} {:>6} {:>8} {:>7} {:>7} {:>9.4} % {:>8.3} % {:>8.3} s {:>8.3} s",
            sum.cases,
            sum.reached,
            sum.improved,
            sum.proved,
            sum.gap / cases * 100.0,
            sum.worst * 100.0,
            sum.seconds / cases,
            sum.longest
        );
    }
}
