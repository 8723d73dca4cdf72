//! Many devices, alike and unlike: what searches keep up to date against its definition, and placements that use them.

use super::super::bound::{allowed_ticks, find_weights, min_weighted};
use super::super::pack;
use super::*;

/// A chain of nodes, each of which takes so many ticks on each device.
fn chain(nodes: usize, ticks: &[u64]) -> PlacementProblem {
    let all = (0..nodes).map(|_| node(ticks)).collect();
    let channels = (1..nodes as u32).map(|to| channel(to - 1, &[to], 1));
    problem(all, channels.collect(), ticks.len())
}

#[test]
fn loads_are_kept_up_to_date_under_moves() {
    let mut rng = Rng::new(11);
    for (nodes, devices) in [(12, 2), (12, 5), (20, 40), (6, 80)] {
        for case in 0..10 {
            let problem = random(&mut rng, nodes, devices);
            let merged = MergedProblem::of(&problem).expect("valid");
            let first_choices =
                (0..merged.units()).map(|unit| merged.choices(unit).next().expect("a device"));
            let mut state = PlacementState::new(&merged, first_choices.collect());
            for _ in 0..100 {
                let unit = rng.below(merged.units());
                let choices: Vec<u32> = merged.choices(unit).collect();
                state.relocate(unit, choices[rng.below(choices.len())]);
            }
            let evaluation = problem.evaluate(&merged.expand(&state.placement));
            let evaluation = evaluation.expect("there is room");
            assert_eq!(state.load, evaluation.load, "{devices} devices, {case}");
            assert_eq!(state.bytes, evaluation.bytes, "{devices} devices, {case}");
        }
    }
}

#[test]
fn weights_have_the_bound_that_follows_from_them() {
    let mut rng = Rng::new(12);
    let mut above_equal_weights = 0;
    for (nodes, devices) in [(5, 3), (12, 12), (30, 40)] {
        for case in 0..10 {
            let problem = random(&mut rng, nodes, devices);
            let merged = MergedProblem::of(&problem).expect("valid");
            let allowed = allowed_ticks(&merged, 25);
            let bound_of = |weights: &[u128]| {
                let sum: u128 = allowed.iter().map(|row| min_weighted(row, weights)).sum();
                sum.div_ceil(weights.iter().sum::<u128>()) as u64
            };
            let found = find_weights(&allowed, &merged);
            assert_eq!(
                found.bound,
                bound_of(&found.of),
                "{devices} devices, {case}"
            );
            let equal = bound_of(&vec![1; devices]);
            assert!(found.bound >= equal, "{devices} devices, {case}");
            above_equal_weights += u32::from(found.bound > equal);
        }
    }
    assert!(above_equal_weights > 0, "no weights were found");
}

#[test]
fn packing_never_exceeds_the_optimum() {
    let mut rng = Rng::new(13);
    let mut tight = 0;
    for case in 0..30 {
        let mut problem = random(&mut rng, 6, 5);
        problem.objective = Objective::PERIOD;
        let optimum = enumerate(&problem).expect("there is room");
        let merged = MergedProblem::of(&problem).expect("valid");
        let bound = unattended(|control| pack::bound(&merged, 0, 2 * optimum, 100_000, control));
        assert!(bound <= optimum, "case {case}: {bound} of {optimum}");
        tight += u32::from(bound == optimum);
    }
    assert!(tight > 15, "only {tight} of 30 bounds were tight");
}

#[test]
fn each_of_many_unlike_devices_gets_its_share_of_a_chain() {
    for devices in [17, 64, 100] {
        // The slowest takes a third more than the quickest: no device has two nodes in the best placement.
        let ticks: Vec<u64> = (0..devices as u64)
            .map(|device| 3_000 + 1_000 * device / devices as u64)
            .collect();
        let problem = chain(devices, &ticks);
        let found = unattended(|control| solve(&problem, Level::Fast, control));
        let found = found.expect("there is room");
        let period = found.evaluation.period;
        assert!(period < 6_000, "{devices} devices: {period} ticks");
        assert!(found.bound > 3_000, "{devices} devices: {}", found.bound);
    }
}

#[test]
fn two_kinds_of_many_devices_are_all_used() {
    // So many of each kind that not all combinations of them can be looked at.
    let ticks: Vec<u64> = (0..60)
        .map(|device| if device < 30 { 100 } else { 110 })
        .collect();
    let problem = chain(60, &ticks);
    let found = unattended(|control| solve(&problem, Level::Fast, control)).expect("there is room");
    assert!(found.evaluation.period < 200, "{}", found.evaluation.period);
}
