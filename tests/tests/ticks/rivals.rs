//! What machines that keep time are compared with: rivals whose times are simulated.

use zbmd_tests::mix;
use zbmd_tests::rivals::{Discipline, Load, RivalModel, simulate};
use zbmd_tests::ticks::Case;

const LOAD: Load = Load {
    iterations: 60,
    interval: None,
    variation: 0.0,
    tolerance_ppm: 0.0,
    seed: 1,
};

/// Who waits for tokens and room only, in the order of a plan, keeps up with it; not quite where the plan puts frames of
/// one message between those of another, since rivals send messages as a whole. And nobody is faster than the bound.
#[test]
fn self_timed_nodes_keep_up_with_the_plan_that_gives_their_order() {
    let registry = mix::registry();
    for seed in 0..40 {
        let case = Case::new(seed, &registry);
        let model = RivalModel::new(&case.graph, &case.machine, &case.plan);
        let self_timed = simulate(&model, Discipline::SelfTimed, &LOAD);
        let dynamic = simulate(&model, Discipline::Dynamic, &LOAD);
        let (period, bound) = (case.plan.period as f64, case.bound as f64);
        assert!(
            self_timed.period <= 1.3 * period,
            "seed {seed}: {} for a period of {period}",
            self_timed.period
        );
        for measured in [self_timed, dynamic] {
            assert!(
                measured.period >= 0.95 * bound,
                "seed {seed}: {measured:?} for a bound of {bound}"
            );
        }
    }
}

#[test]
fn equal_seeds_give_equal_numbers() {
    let registry = mix::registry();
    let case = Case::new(3, &registry);
    let model = RivalModel::new(&case.graph, &case.machine, &case.plan);
    let load = Load {
        variation: 0.5,
        tolerance_ppm: 100.0,
        ..LOAD
    };
    for discipline in [Discipline::SelfTimed, Discipline::Dynamic] {
        let first = simulate(&model, discipline, &load);
        assert_eq!(first, simulate(&model, discipline, &load));
        let other = Load { seed: 2, ..load };
        assert_ne!(first, simulate(&model, discipline, &other));
    }
}
