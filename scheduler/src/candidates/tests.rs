//! Which devices are seen, and bounds for numbers of them.

use zbmd_ir::{Costs, Machine};

use super::*;
use crate::ScheduleOptions;
use crate::inputs::Analysis;
use crate::place::cluster_loads;
use crate::search::rng::Rng;
use crate::testing::{costs, graph, machine};

#[test]
fn numbers_of_devices_grow_from_one_to_all() {
    assert_eq!(device_counts(0).count(), 0);
    for devices in [1, 2, 63, 64, 65, 79, 80, 81, 1024, 1 << 20] {
        let counts: Vec<usize> = device_counts(devices).collect();
        assert!(counts.is_sorted_by(|a, b| a < b), "{counts:?}");
        assert_eq!(counts.first(), Some(&1));
        assert_eq!(counts.last(), Some(&devices));
        let all = devices.min(ALL_DEVICES);
        assert!(counts[..all].iter().copied().eq(1..=all), "{counts:?}");
        assert!(counts.len() <= ALL_DEVICES + 48, "{}", counts.len());
    }
}

/// Which devices are seen of a chain of so many actors, with changes to the machine and the costs.
fn seen(actors: u32, devices: usize, change: impl Fn(&mut Machine, &mut Costs)) -> Vec<usize> {
    seen_for(false, actors, devices, change)
}

/// As [`seen`], for the period alone or not.
fn seen_for(
    for_period: bool,
    actors: u32,
    devices: usize,
    change: impl Fn(&mut Machine, &mut Costs),
) -> Vec<usize> {
    let links: Vec<_> = (1..actors)
        .map(|actor| (actor - 1, 1, actor, 1, 0))
        .collect();
    let graph = graph(actors as usize, &links);
    let mut machine = machine(devices);
    let mut costs = costs(&graph, &machine, 1_000_000);
    change(&mut machine, &mut costs);

    let options = ScheduleOptions::default();
    let inputs = Inputs {
        graph: &graph,
        machine: &machine,
        costs: &costs,
        options: &options,
    };
    let analysis = Analysis::of(&graph).expect("a chain is consistent");
    let problem = BlockProblem::new(inputs, &analysis, 1).expect("no cluster is long");
    let allowed: Vec<DeviceId> = machine.devices.keys().collect();
    let loads = cluster_loads(&problem, &allowed).expect("all devices have kernels");
    let candidates = candidate_devices(&problem, &loads, &allowed, for_period);
    candidates.into_iter().map(DeviceId::index).collect()
}

#[test]
fn no_more_alike_devices_are_seen_than_there_are_clusters() {
    for devices in [17, 40, 64, 65, 1024] {
        let found = seen(5, devices, |_, _| {});
        assert_eq!(found, [0, 1, 2, 3, 4], "{devices} devices");
    }
    assert_eq!(seen(5, 16, |_, _| {}).len(), 16);
}

#[test]
fn for_the_period_alone_no_more_alike_devices_are_seen_than_the_work_fills() {
    // The first of 33 actors takes about as long as the 32 others: twice that is a little more than four, and one.
    let one_large = |_: &mut Machine, costs: &mut Costs| {
        for cost in costs.table[zbmd_ir::ActorId(0)].iter_mut() {
            cost.as_mut().expect("a kernel").firing_ps *= 32;
        }
    };
    for devices in [40, 1024] {
        assert_eq!(seen_for(true, 33, devices, one_large), [0, 1, 2, 3, 4, 5]);
        assert_eq!(seen_for(false, 33, devices, one_large).len(), 33);
    }
}

/// Two kinds of devices and clusters of all sizes: what is left out never shortens the period.
#[test]
fn devices_beyond_those_of_use_do_not_shorten_the_period() {
    let mut rng = Rng::new(11);
    let mut left_out = 0;
    for case in 0..150 {
        let of_first_kind = 1 + rng.below(5);
        let mut loads = ClusterLoads::new();
        for cluster in 0..6 {
            let largest = if cluster == 0 { 40 } else { 4 };
            let ticks = [0; 2].map(|_| (rng.below(9) > 0).then(|| 1 + rng.below(largest) as u64));
            let ticks = if ticks == [None; 2] {
                [Some(1); 2]
            } else {
                ticks
            };
            let kinds = (0..6).map(|device| ticks[usize::from(device >= of_first_kind)]);
            loads.push(kinds.collect());
        }
        let all: Vec<DeviceId> = (0..6).map(DeviceId).collect();
        let (first, second) = all.split_at(of_first_kind);
        let counts = UsefulCounts::new(&loads, &all, true);
        let kept = |kind: &[DeviceId]| {
            let count = counts.alike(kind[0]);
            kind.iter().copied().take(count).collect::<Vec<_>>()
        };
        let kept = [kept(first), kept(second)].concat();

        assert_eq!(
            least_period(&loads, &kept),
            least_period(&loads, &all),
            "case {case}: {loads:?}"
        );
        left_out += all.len() - kept.len();
    }
    assert!(left_out > 20, "only {left_out} devices were left out");
}

#[test]
fn devices_that_are_linked_unlike_are_told_apart() {
    // Two halves: even devices are near each other, and so are odd ones.
    let halves = |machine: &mut Machine, _: &mut Costs| {
        machine.links.change(|link| {
            let is_near = link.from.0 % 2 == link.to.0 % 2;
            link.latency_ns = if is_near { 1 } else { 1_000 };
        });
    };
    let mut found = seen(3, 40, halves);
    found.sort_unstable();
    assert_eq!(found, [0, 1, 2, 3, 4, 5]);

    // No two links alike: no device stands for another.
    let unlike = |machine: &mut Machine, _: &mut Costs| {
        let mut indices = 0u64..;
        machine
            .links
            .change(|link| link.bytes_per_s += indices.next().expect("endless"));
    };
    assert_eq!(seen(3, 40, unlike).len(), 40);
}

#[test]
fn of_unlike_devices_the_quickest_come_first() {
    let quicker_and_quicker = |_: &mut Machine, costs: &mut Costs| {
        for row in &mut costs.table {
            for (device, cost) in row.iter_mut().enumerate() {
                cost.as_mut().expect("a kernel").firing_ps -= 100 * device as u64;
            }
        }
    };
    let all = seen(5, 40, quicker_and_quicker);
    assert_eq!(all[..6], [39, 38, 37, 36, 35, 0]);
    assert_eq!(all.len(), 40);
    let some = seen(5, 1024, quicker_and_quicker);
    assert_eq!(some, [1023, 1022, 1021, 1020, 1019]);
}

#[test]
fn no_placement_on_few_devices_costs_less_than_its_bound() {
    let mut rng = Rng::new(5);
    let mut tight = 0;
    for case in 0..200 {
        let devices = 1 + rng.below(4);
        let clusters = 1 + rng.below(5);
        let mut loads = ClusterLoads::new();
        for _ in 0..clusters {
            let row = (0..devices).map(|_| (rng.below(8) > 0).then(|| 1 + rng.below(9) as u64));
            loads.push(row.collect());
        }
        let order: Vec<DeviceId> = (0..devices as u32).rev().map(DeviceId).collect();
        let mut bounds = CountBounds::new(&loads, &order, Objective::PERIOD);

        for count in 1..=devices {
            let best = least_period(&loads, &order[..count]);
            let bound = bounds.least_cost(count);
            match (bound, best) {
                (Some(bound), Some(best)) => assert!(bound <= best, "case {case}: {loads:?}"),
                (bound, best) => assert_eq!(bound, best, "case {case}: {loads:?}"),
            }
            tight += u32::from(bound == best);
        }
    }
    assert!(tight > 200, "only {tight} bounds were tight");
}

/// The least largest load of any placement on some devices, by trying all of them.
fn least_period(loads: &ClusterLoads, devices: &[DeviceId]) -> Option<u64> {
    let mut sums = vec![vec![0; devices.len()]];
    for row in loads {
        let mut next_sums = Vec::new();
        for sum in &sums {
            for (index, &device) in devices.iter().enumerate() {
                if let Some(load) = row[device] {
                    let mut next_sum = sum.clone();
                    next_sum[index] += load;
                    next_sums.push(next_sum);
                }
            }
        }
        sums = next_sums;
    }
    sums.iter()
        .filter_map(|sum| sum.iter().max().copied())
        .min()
}
