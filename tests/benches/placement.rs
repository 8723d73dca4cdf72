//! `cargo bench -p zbmd-tests --bench placement [-- fast|balanced|exact] [-- FILTER]`: placement workloads, one line each:
//! ours, the published optimum over contiguous splits, our own contiguous split, a proved bound, the gap, the time. Costs
//! in milliseconds. The published workloads first, then graphs of operators made from networks, on six accelerators with
//! 1.3 times the memory that each needs in the mean.

use std::time::Instant;

use zbmd_scheduler::assign::{PlacementProblem, solve};
use zbmd_scheduler::search::{Control, Level, Progress};
use zbmd_tests::operator_graphs::{Passes, resnet_problem, transformer_problem};
use zbmd_tests::{data, sets};

const PUBLISHED: [(&str, f64); 3] = [
    ("bert24", 17.7899),
    ("gnmt", 32.9107),
    ("resnet50", 33.7747),
];

const ACCELERATORS: usize = 6;
const MEMORY: f64 = 1.3;

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let level = words.iter().find_map(|word| level_of(word));
    let level = level.unwrap_or_default();
    let is_wanted = |name: &str| {
        let mut filters = words.iter().filter(|word| level_of(word).is_none());
        filters.all(|filter| name.contains(filter.as_str()))
    };
    println!(
        "{:<22} {:>6} {:>9} {:>10} {:>9} {:>9} {:>10} {:>11} {:>10}",
        "instance", "nodes", "ours", "published", "split", "bound", "gap", "time", "work"
    );

    for (name, published) in PUBLISHED {
        let path = data::file(&format!("placement/{name}_inference.json"));
        if let Some(path) = path.filter(|_| is_wanted(name)) {
            print_row(name, &sets::workload(&path), Some(published), level);
        }
    }

    type Make = fn(Passes, usize, f64) -> PlacementProblem;
    let networks: [(&str, Make); 2] = [
        ("transformer", transformer_problem),
        ("resnet", resnet_problem),
    ];
    for (network, make) in networks {
        for passes in [Passes::Inference, Passes::Training] {
            let name = format!("{network} {passes:?}").to_lowercase();
            if is_wanted(&name) {
                print_row(&name, &make(passes, ACCELERATORS, MEMORY), None, level);
            }
        }
    }
}

fn level_of(word: &str) -> Option<Level> {
    match word {
        "fast" => Some(Level::Fast),
        "balanced" => Some(Level::Balanced),
        "exact" => Some(Level::Exact),
        _ => None,
    }
}

fn print_row(name: &str, problem: &PlacementProblem, published: Option<f64>, level: Level) {
    let is_watched = std::env::args().any(|argument| argument == "--watch");
    let before = Instant::now();
    let ms = |ps: u64| ps as f64 / sets::PS_PER_MS;
    let mut progress = |step: Progress| {
        if is_watched {
            let seconds = before.elapsed().as_secs_f64();
            println!(
                "  {seconds:>8.2} s {:<12} {:>9.4} {:>9.4} {:>10}",
                step.stage,
                ms(step.best),
                ms(step.bound),
                step.work
            );
        }
    };
    let mut control = Control {
        stop: &|| false,
        progress: &mut progress,
    };

    let found = solve(problem, level, &mut control).expect("a placement");
    let published = published.map_or("-".to_owned(), |cost| format!("{cost:.4}"));
    println!(
        "{name:<22} {:>6} {:>9.4} {published:>10} {:>9.4} {:>9.4} {:>8.3} % {:>9.3} s {:>10}",
        problem.nodes.len(),
        ms(found.evaluation.cost),
        found.contiguous.map_or(f64::NAN, ms),
        ms(found.bound),
        found.gap() * 100.0,
        before.elapsed().as_secs_f64(),
        found.work,
    );
}
