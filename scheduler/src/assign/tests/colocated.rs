//! Bounds by units that must share a device, and minimum cuts, against plain enumeration.

use super::super::bound::period_bound;
use super::super::colocate::{self, ColocationLimits};
use super::super::flow::FlowGraph;
use super::*;

const LIMITS: ColocationLimits = ColocationLimits {
    steps: 1_000_000,
    packing: 1_000,
    labels: 0,
};

/// Random problems with transfers that cost as much as work, a slow device that pays for no transfer, and memories and
/// stages with and without limits.
pub(super) fn expensive_transfers(rng: &mut Rng, case: usize) -> PlacementProblem {
    let devices = 2 + case % 2;
    let nodes = if devices == 2 { 10 } else { 7 };
    let mut problem = random(rng, nodes, devices);

    for channel in &mut problem.channels {
        channel.amount = rng.below(60) as u64;
    }
    if rng.below(2) == 0 {
        // As in the published workloads: the last device is slow, and transfers are free for it.
        for node in &mut problem.nodes {
            let fast = node.ticks[0].or(node.ticks[1]);
            node.ticks.fill(fast);
            node.ticks[devices - 1] = fast.map(|ticks| 4 * ticks);
        }
        for pair in 0..devices * devices {
            let price = |device: usize| plain(u64::from(device + 1 < devices));
            problem.links[pair] = Some(PlacementLink {
                send: price(pair / devices),
                receive: price(pair % devices),
            });
        }
    }
    if rng.below(2) == 0 {
        let total: u64 = problem.nodes.iter().map(|node| node.bytes).sum();
        for device in &mut problem.devices {
            device.bytes = total * (50 + rng.below(60) as u64) / 100;
        }
    }
    if rng.below(4) == 0 {
        problem.max_stages = Some(devices as u32);
    }
    problem
}

#[test]
fn bounds_with_expensive_transfers_are_below_enumerated_optima() {
    let mut rng = Rng::new(9);
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
        // The known period at the optimum and above it: neither may be passed.
        for known in [optimum, optimum + optimum / 2] {
            let before = period_bound(&merged, known);
            let proved = unattended(|control| {
                colocate::bound(&problem, &merged, before, known, LIMITS, control)
            });
            assert!(
                proved <= optimum,
                "case {case}: bound {proved} of {optimum} with {known} known"
            );
            raised += u32::from(proved > before);
            exact += u32::from(proved == optimum);
        }
        for level in [Level::Fast, Level::Balanced] {
            if let Ok(found) = unattended(|control| solve(&problem, level, control)) {
                assert!(found.bound <= optimum, "case {case} {level:?}");
            }
        }
    }
    assert!(feasible > 100, "only {feasible} of 200 have a placement");
    assert!(
        raised > feasible / 2 && exact > feasible / 2,
        "of {feasible} raised {raised}, exact {exact}"
    );
}

#[test]
fn a_chain_with_transfers_longer_than_its_work_is_proved_to_stay_together() {
    // Eight nodes of 10 ticks; a cut between any two costs 100 on either side.
    let nodes = vec![node(&[10, 10]); 8];
    let channels = (0..7).map(|from| channel(from, &[from + 1], 100)).collect();
    let problem = problem(nodes, channels, 2);
    let merged = MergedProblem::of(&problem).expect("devices for all units");

    assert_eq!(period_bound(&merged, 80), 40);
    let proved = unattended(|control| colocate::bound(&problem, &merged, 40, 80, LIMITS, control));
    assert_eq!(proved, 80);
}

#[test]
fn units_are_kept_together_by_many_cheap_nets() {
    // A net between two units costs 12; a unit is connected to ten others, all of which it takes along or pays for.
    let nodes = vec![node(&[5, 5]); 11];
    let mut channels = Vec::new();
    for from in 0..11u32 {
        channels.extend((from + 1..11).map(|to| channel(from, &[to], 12)));
    }
    let problem = problem(nodes, channels, 2);
    let optimum = enumerate(&problem).expect("there is room");
    let merged = MergedProblem::of(&problem).expect("devices for all units");
    let before = period_bound(&merged, optimum);

    let proved =
        unattended(|control| colocate::bound(&problem, &merged, before, optimum, LIMITS, control));
    assert_eq!((before, proved, optimum), (30, 55, 55));
}

#[test]
fn minimum_cuts_are_enumerated_ones() {
    let mut rng = Rng::new(3);
    for case in 0..100 {
        // Node 6 is the fixed sink, 0 the source, 5 the other sink.
        let mut graph = FlowGraph::new(7, 6);
        let mut arcs = Vec::new();
        for _ in 0..14 {
            let from = rng.below(6);
            let to = rng.below(7);
            if from != to {
                let capacity = rng.below(20) as u64;
                graph.add_arc(from, to, capacity);
                arcs.push((from, to, capacity));
            }
        }

        let cuts = (0..1usize << 4).map(|inner| {
            let with_source = inner << 1 | 1;
            let is_in = |node: usize| with_source >> node & 1 == 1;
            let cut = arcs
                .iter()
                .filter(|&&(from, to, _)| is_in(from) && !is_in(to));
            cut.map(|&(_, _, capacity)| capacity).sum::<u64>()
        });
        let least = cuts.min().unwrap_or(0);
        let mut steps = 1_000_000;
        assert_eq!(
            graph.min_cut(0, 5, u64::MAX, &mut steps),
            least,
            "case {case}"
        );

        // Without steps it is a lower bound still.
        let mut few_steps = rng.below(20) as u64;
        assert!(graph.min_cut(0, 5, u64::MAX, &mut few_steps) <= least);
    }
}

#[test]
fn parts_of_a_long_chain_pay_for_what_goes_in_and_out() {
    // Sixty nodes of 10 ticks on three devices: each runs about 20 of them, and 4 ticks go in and 4 out.
    let nodes = vec![node(&[10, 10, 10]); 60];
    let channels = (0..59).map(|from| channel(from, &[from + 1], 4)).collect();
    let problem = problem(nodes, channels, 3);
    let merged = MergedProblem::of(&problem).expect("devices for all units");
    // Thirds: the middle one has both transfers.
    let known = 208;

    assert_eq!(period_bound(&merged, known), 200);
    let proved =
        unattended(|control| colocate::bound(&problem, &merged, 200, known, LIMITS, control));
    assert!((203..=known).contains(&proved), "{proved}");
}
