//! Published scheduling instances; the full sets run under `cargo bench -p zbmd-tests --bench dag`.

use zbmd_scheduler::search::{Level, check, solve, unattended};
use zbmd_tests::{data, sets};

#[test]
fn published_optima_of_small_graphs_are_proved() {
    for (name, optimum) in [("topcuoglu2002", 73), ("arabnejad2014", 113)] {
        let times = data::file(&format!("dag/{name}_times.csv"));
        let edges = data::file(&format!("dag/{name}_edges.csv"));
        let (Some(times), Some(edges)) = (times, edges) else {
            return;
        };
        let dag = sets::small_dag(&times, &edges);
        let found = unattended(|control| solve(&dag, Level::Balanced, control));
        assert_eq!((found.makespan, found.bound), (optimum, optimum), "{name}");
    }
}

/// Every sixth graph of the set on each number of processors.
#[test]
fn standard_task_graphs_come_within_the_stated_gap() {
    let (mut cases, mut sum, mut worst) = (0u32, 0.0f64, 0.0f64);
    for processors in [2, 4, 8, 16] {
        let Some(optima) = data::file(&format!("stg/Case50_{processors}_OPT.csv")) else {
            return;
        };
        for (graph, published) in sets::stg_optima(&optima).into_iter().enumerate().step_by(6) {
            let Some(path) = data::file(&format!("stg/50/rand{graph:04}.stg")) else {
                return;
            };
            let dag = sets::stg(&path, processors);
            let found = unattended(|control| solve(&dag, Level::Balanced, control));
            let name = format!("graph {graph} on {processors} processors");
            assert_eq!(check(&dag, &found.schedule), Ok(found.makespan), "{name}");
            assert!(
                found.makespan <= found.listed,
                "{name} is above list scheduling"
            );
            assert!(
                found.makespan >= published.bound,
                "{name}: below the published bound"
            );
            assert!(
                found.bound <= published.makespan,
                "{name}: a bound above a known schedule"
            );
            let gap = found.makespan.saturating_sub(published.makespan) as f64;
            sum += gap / published.makespan as f64;
            worst = worst.max(gap / published.makespan as f64);
            cases += 1;
        }
    }
    assert_eq!(cases, 120);
    assert!(
        sum / f64::from(cases) <= 0.0002,
        "mean gap {}",
        sum / f64::from(cases)
    );
    assert!(worst <= 0.02, "worst gap {worst}");
}
