//! Placements on any number of devices, alike and unlike.

use zbmd_ir::{Costs, Graph, Machine, Plan};

use super::*;
use crate::testing::{costs, graph, machine};
use crate::{Block, ScheduleOptions, schedule};

/// Numbers of devices around the word sizes and limits that a set of devices could be kept in.
const DEVICES: [usize; 8] = [1, 2, 63, 64, 65, 128, 257, 1024];

/// A chain of `actors`, one microsecond each in a firing.
fn chain(actors: u32) -> Graph {
    let links: Vec<_> = (1..actors)
        .map(|actor| (actor - 1, 1, actor, 1, 0))
        .collect();
    graph(actors as usize, &links)
}

/// Each device slower than the one before.
fn unlike_costs(graph: &Graph, machine: &Machine) -> Costs {
    let mut costs = costs(graph, machine, 0);
    for row in &mut costs.table {
        for (device, cost) in row.iter_mut().enumerate() {
            let cost = cost.as_mut().expect("all devices have kernels");
            cost.firing_ps = 1_000_000 + 1_000 * device as u64;
        }
    }
    costs
}

/// Devices of equal speed between which no two links are equal.
fn unlike_links(devices: usize) -> Machine {
    let mut machine = machine(devices);
    let mut indices = 0u64..;
    machine
        .links
        .change(|link| link.bytes_per_s += indices.next().expect("endless"));
    machine
}

fn main_plan(graph: &Graph, machine: &Machine, costs: &Costs) -> Plan {
    let options = ScheduleOptions {
        block: Block::Fixed(100),
        ..ScheduleOptions::default()
    };
    let plans = schedule(graph, machine, costs, &options);
    plans.expect("a chain has a schedule").swap_remove(0)
}

/// Ten actors of 100 us: with `devices` devices the busiest has so many of them.
fn check_chain_of_ten(graph: &Graph, machine: &Machine, costs: &Costs) {
    let devices = machine.devices.len();
    let plan = main_plan(graph, machine, costs);
    let max_actors = 10usize.div_ceil(devices) as u64;
    let work_ns = 100_000 * max_actors;
    // Hand-overs take less than three percent, and a slower device is taken only where it gains more than it loses.
    let period_ns = plan.period_ns;
    assert!(
        (work_ns..work_ns * 103 / 100).contains(&period_ns),
        "{devices} devices: {period_ns} ns"
    );
    assert!(plan.calendars.len() <= 10, "{devices} devices");
}

#[test]
fn alike_devices_of_any_number_share_the_work() {
    for devices in DEVICES {
        let machine = machine(devices);
        let graph = chain(10);
        check_chain_of_ten(&graph, &machine, &costs(&graph, &machine, 1_000_000));
    }
}

#[test]
fn unlike_devices_of_any_number_share_the_work() {
    for devices in DEVICES {
        let machine = machine(devices);
        let graph = chain(10);
        check_chain_of_ten(&graph, &machine, &unlike_costs(&graph, &machine));
    }
}

#[test]
fn devices_that_differ_by_their_links_share_the_work() {
    for devices in [63, 64, 65, 257, 1024] {
        let machine = unlike_links(devices);
        let graph = chain(10);
        check_chain_of_ten(&graph, &machine, &costs(&graph, &machine, 1_000_000));
    }
}

#[test]
fn the_quickest_of_many_devices_is_found_wherever_it_is() {
    let graph = chain(1);
    for devices in DEVICES {
        let machine = machine(devices);
        let quickest = DeviceId::from(devices * 2 / 3);
        let mut costs = unlike_costs(&graph, &machine);
        let row = &mut costs.table[ActorId(0)];
        row[quickest].as_mut().expect("a kernel").firing_ps = 1_000;
        let plan = main_plan(&graph, &machine, &costs);
        assert_eq!(plan.placement[ActorId(0)], quickest, "{devices} devices");
    }
}

#[test]
fn many_clusters_on_many_devices_are_placed_greedily() {
    let graph = chain(MAX_SEARCHED_CLUSTERS as u32 + 1);
    let machine = machine(256);
    let plan = main_plan(&graph, &machine, &costs(&graph, &machine, 1_000_000));
    assert!(plan.calendars.len() > 100, "{}", plan.calendars.len());
}
