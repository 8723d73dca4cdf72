//! Bounds by sets that cover all units, and the knapsacks behind them, against plain enumeration.

use super::super::bound::period_bound;
use super::super::colocate::NetPrices;
use super::super::cover;
use super::super::knapsack::{DeviceDemand, Knapsack};
use super::colocated::expensive_transfers;
use super::*;

const LABELS: u64 = 20_000_000;

fn is_impossible(merged: &MergedProblem, below: u64) -> bool {
    let mut labels = LABELS;
    unattended(|control| cover::is_impossible(merged, below, &mut labels, control))
}

#[test]
fn no_period_is_ruled_out_that_some_placement_has() {
    let mut rng = Rng::new(30);
    let mut feasible = 0;
    let mut raised = 0;
    let mut exact = 0;
    for case in 0..200 {
        let problem = expensive_transfers(&mut rng, case);
        let Some(optimum) = enumerate(&problem) else {
            continue;
        };
        feasible += 1;
        let merged = MergedProblem::of(&problem).expect("devices for all units");
        for below in [optimum + 1, optimum + 1 + optimum / 10] {
            assert!(!is_impossible(&merged, below), "case {case}: {optimum}");
        }
        let others = period_bound(&merged, optimum);
        raised += u32::from(others < optimum && is_impossible(&merged, others + 1));
        exact += u32::from(is_impossible(&merged, optimum));
    }
    assert!(feasible > 150, "{feasible} cases have a placement");
    assert!(raised > 50, "{raised} bounds are above the others'");
    assert!(exact > 25, "{exact} bounds are the optimum");
}

#[test]
fn parts_of_a_long_chain_are_proved_to_be_the_best() {
    // Thirty nodes of 10 ticks on three devices, with transfers of 4: thirds, of which the middle one has two transfers.
    let nodes = vec![node(&[10, 10, 10]); 30];
    let channels = (0..29).map(|from| channel(from, &[from + 1], 4)).collect();
    let merged = MergedProblem::of(&problem(nodes, channels, 3)).expect("devices for all units");

    assert!(is_impossible(&merged, 108));
    assert!(!is_impossible(&merged, 109));
}

#[test]
fn memory_is_counted_with_the_work() {
    // Two of three large nodes do not fit a device: one of two devices would have to run two.
    let mut nodes = vec![node(&[10, 10]); 6];
    for large in [0, 2, 4] {
        nodes[large].bytes = 10;
    }
    let channels = (0..5).map(|from| channel(from, &[from + 1], 0)).collect();
    let mut problem = problem(nodes, channels, 2);
    let fits = |problem: &PlacementProblem| {
        let merged = MergedProblem::of(problem).expect("devices for all units");
        !is_impossible(&merged, 41)
    };

    assert!(fits(&problem));
    for device in &mut problem.devices {
        device.bytes = 19;
    }
    assert!(!fits(&problem));
}

#[test]
fn a_unit_that_no_device_can_run_in_time_is_a_proof() {
    // No two fit one device, so the middle one receives and sends.
    let nodes = vec![node(&[1, 1, 1]); 3];
    let channels = (0..2).map(|from| channel(from, &[from + 1], 10)).collect();
    let mut problem = problem(nodes, channels, 3);
    for device in &mut problem.devices {
        device.bytes = 1;
    }
    let merged = MergedProblem::of(&problem).expect("devices for all units");

    assert!(is_impossible(&merged, 21));
    assert!(!is_impossible(&merged, 22));
}

#[test]
fn the_best_sets_are_enumerated_ones() {
    let mut rng = Rng::new(31);
    let mut found_sets = 0;
    for case in 0..150 {
        let problem = expensive_transfers(&mut rng, case);
        let merged = MergedProblem::of(&problem).expect("devices for all units");
        let units = merged.units();
        // So few ticks and bytes that each has a part of its own: nothing is rounded.
        let below = 60 + rng.below(200) as u64;
        let values: Vec<i64> = (0..units).map(|_| rng.below(100) as i64 - 10).collect();
        let knapsack = Knapsack::new(&merged, below).expect("few nets");
        let demand = DeviceDemand::of(
            &merged,
            &NetPrices::of(&merged),
            merged.kind_of[0],
            0,
            below,
        );

        let sets = (0..1u32 << units).map(|word| -> Vec<usize> {
            let all = 0..units;
            all.filter(|unit| word >> unit & 1 == 1).collect()
        });
        let worth = |set: &Vec<usize>| -> i64 { set.iter().map(|&unit| values[unit]).sum() };
        let fitting = sets.filter(|set| knapsack.fits(&demand, set));
        let best = fitting.map(|set| worth(&set)).max().expect("the empty set");

        let mut labels = LABELS;
        let found = knapsack.best_set(&demand, &values, 0, &mut labels);
        let found = found.expect("few labels");
        assert_eq!(found.value, best, "case {case}");
        if let Some(set) = found.units {
            assert!(knapsack.fits(&demand, &set), "case {case}");
            assert_eq!(worth(&set), best, "case {case}");
            found_sets += 1;
        }
    }
    assert!(found_sets > 100, "{found_sets} sets");
}
