//! Published placement workloads; also under `cargo bench -p zbmd-tests --bench placement`.

use zbmd_scheduler::assign::{AssignError, Assignment, PlacementProblem, solve};
use zbmd_scheduler::search::{Level, unattended};
use zbmd_tests::{data, sets};

fn run(problem: &PlacementProblem, level: Level) -> Result<Assignment, AssignError> {
    unattended(|control| solve(problem, level, control))
}

fn ms(ps: u64) -> f64 {
    ps as f64 / sets::PS_PER_MS
}

/// Name, published optimum over contiguous splits, and a bound that our own must reach.
const WORKLOADS: [(&str, f64, f64); 3] = [
    ("bert24", 17.7899, 17.70),
    ("gnmt", 32.9107, 31.66),
    ("resnet50", 33.7747, 33.02),
];

#[test]
fn placements_are_at_or_below_the_contiguous_optima() {
    for (name, published, proved) in WORKLOADS {
        let Some(path) = data::file(&format!("placement/{name}_inference.json")) else {
            return;
        };
        let problem = sets::workload(&path);
        let found = run(&problem, Level::Balanced).expect("a placement");
        let again = problem.evaluate(&found.placement);
        assert_eq!(
            again,
            Ok(found.evaluation.clone()),
            "{name}: limits must hold"
        );
        // The published figure is rounded to four places.
        let split = ms(found.contiguous.expect("a split"));
        assert!(
            (split - published).abs() < 6e-5,
            "{name}: our split is {split}, not {published}"
        );
        let ours = ms(found.evaluation.period);
        assert!(ours < published, "{name}: {ours} is not below {published}");
        assert!(
            ms(found.bound) >= proved,
            "{name}: the bound is only {}",
            ms(found.bound)
        );
    }
}

#[test]
fn the_known_non_contiguous_placement_of_bert_is_matched() {
    let Some(path) = data::file("placement/bert24_inference.json") else {
        return;
    };
    let found = run(&sets::workload(&path), Level::Balanced).expect("a placement");
    assert!(
        ms(found.evaluation.period) < 17.71475,
        "{}",
        ms(found.evaluation.period)
    );
}

#[test]
fn tight_memories_hold_or_are_refused() {
    let Some(path) = data::file("placement/resnet50_inference.json") else {
        return;
    };
    let problem = sets::workload(&path);
    let total: u64 = problem.nodes.iter().map(|n| n.bytes).sum();
    // All accelerators together have a tenth more than is needed, the CPU nothing: then a third less.
    for (share, fits) in [(total * 11 / 60, true), (total / 9, false)] {
        let mut tight = problem.clone();
        let last = tight.devices.len() - 1;
        tight.devices.iter_mut().for_each(|d| d.bytes = share);
        tight.devices[last].bytes = 0;
        match run(&tight, Level::Balanced) {
            Ok(found) => {
                assert!(fits);
                assert!(found.evaluation.bytes.iter().all(|&b| b <= share));
            }
            Err(error) => {
                assert!(!fits, "{error}");
                assert!(matches!(error, AssignError::NotFound { .. }), "{error}");
            }
        }
    }
}
