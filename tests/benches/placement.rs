//! `cargo bench -p zbmd-tests --bench placement [-- fast|balanced|exact] [-- FILTER]`: the published placement
//! workloads, one line each: ours, the published optimum over contiguous splits, our own contiguous split, a proved
//! bound, the gap, the time. Costs in milliseconds.

use std::time::Instant;

use zbmd_scheduler::assign::solve;
use zbmd_scheduler::search::{Control, Level};
use zbmd_tests::{data, sets};

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
    let watch = std::env::args().any(|a| a == "--watch");
    println!(
        "{:<20} {:>9} {:>10} {:>9} {:>9} {:>10} {:>11} {:>10}",
        "instance", "ours", "published", "split", "bound", "gap", "time", "work"
    );
    for (name, published) in [
        ("bert24", 17.7899),
        ("gnmt", 32.9107),
        ("resnet50", 33.7747),
    ] {
        let Some(path) = data::file(&format!("placement/{name}_inference.json")) else {
            continue;
        };
        if !wanted(name) {
            continue;
        }
        let problem = sets::workload(&path);
        let before = Instant::now();
        let ms = |ps: u64| ps as f64 / sets::PS_PER_MS;
        let mut progress = |p: zbmd_scheduler::search::Progress| {
            if watch {
                let seconds = before.elapsed().as_secs_f64();
                let (best, bound) = (ms(p.best), ms(p.bound));
                println!(
                    "  {seconds:>8.2} s {:<12} {best:>9.4} {bound:>9.4} {:>10}",
                    p.stage, p.work
                );
            }
        };
        let mut control = Control {
            stop: &|| false,
            progress: &mut progress,
        };
        let found = solve(&problem, level, &mut control).expect("a placement");
        println!(
            "{name:<20} {:>9.4} {published:>10.4} {:>9.4} {:>9.4} {:>8.3} % {:>9.3} s {:>10}",
            ms(found.evaluation.cost),
            found.contiguous.map_or(f64::NAN, ms),
            ms(found.bound),
            found.gap() * 100.0,
            before.elapsed().as_secs_f64(),
            found.work,
        );
    }
}
