//! Losses by kind, their plans, and what cannot be survived.

use std::collections::BTreeMap;

use zbmd_ir::{ActorId, Graph};

use super::*;
use crate::testing::{costs, graph, machine};

/// A chain of `actors`, one microsecond each in a firing, in blocks of 100.
fn chain(actors: u32) -> Graph {
    let links: Vec<_> = (1..actors).map(|i| (i - 1, 1, i, 1, 0)).collect();
    graph(actors as usize, &links)
}

fn options() -> ScheduleOptions {
    ScheduleOptions {
        block: Block::Fixed(100),
        ..ScheduleOptions::default()
    }
}

fn make(
    graph: &Graph,
    machine: &Machine,
    costs: &Costs,
    options: &ScheduleOptions,
    which: Losses,
) -> Contingent {
    let inputs = Inputs {
        graph,
        machine,
        costs,
        options,
    };
    let plans = schedule(graph, machine, costs, options).expect("the whole machine has a plan");
    schedule_contingencies(inputs, plans, which).expect("few losses")
}

fn sizes(kinds: &TiVec<KindId, Vec<DeviceId>>) -> Vec<usize> {
    kinds.iter().map(Vec::len).collect()
}

#[test]
fn eight_alike_devices_of_which_two_may_fail_need_two_entries() {
    let (graph, machine) = (chain(32), machine(8));
    let costs = costs(&graph, &machine, 1_000_000);
    let made = make(&graph, &machine, &costs, &options(), Losses::Pairs);
    assert_eq!(made.plans[0].calendars.len(), 8, "all devices have work");
    assert_eq!(sizes(&made.contingencies.kinds), [8]);
    assert_eq!(
        (made.contingencies.list.len(), made.impossible.len()),
        (2, 0)
    );
    for (entry, lost) in made.contingencies.list.iter().zip([1usize, 2]) {
        assert_eq!(
            entry.lost,
            [Loss {
                kind: KindId(0),
                count: lost as u32
            }]
        );
        for id in [Some(entry.main), entry.tail].into_iter().flatten() {
            let plan = &made.plans[usize::from(id)];
            assert!(
                plan.calendars.iter().all(|c| c.device.index() < 8 - lost),
                "{lost} lost"
            );
        }
        let main = &made.plans[usize::from(entry.main)];
        assert_eq!(main.block, made.plans[0].block);
        assert!(main.period_ns > made.plans[0].period_ns);
    }
    let names: Vec<&str> = made.plans.iter().map(|p| p.name.as_str()).collect();
    let expected = [
        "main",
        "tail",
        "main without 1 like cpu:0",
        "tail without 1 like cpu:0",
        "main without 2 like cpu:0",
        "tail without 2 like cpu:0",
    ];
    assert_eq!(names, expected);
}

/// Four devices: two quick, two slow.
fn two_kinds(graph: &Graph) -> (Machine, Costs) {
    let mut machine = machine(4);
    for device in [DeviceId(1), DeviceId(3)] {
        machine.devices[device].flops_per_s /= 2;
    }
    let costs = costs(graph, &machine, 1_000_000);
    (machine, costs)
}

#[test]
fn kinds_of_devices_are_lost_by_kind() {
    let graph = chain(16);
    let (machine, costs) = two_kinds(&graph);
    let single = make(&graph, &machine, &costs, &options(), Losses::Single);
    let ids = |list: &[u32]| list.iter().map(|&d| DeviceId(d)).collect::<Vec<_>>();
    assert_eq!(single.contingencies.kinds.raw, [ids(&[0, 2]), ids(&[1, 3])]);
    let lost = |made: &Contingent| -> Vec<Vec<(u32, u32)>> {
        let pairs = |entry: &Contingency| entry.lost.iter().map(|l| (l.kind.0, l.count)).collect();
        made.contingencies.list.iter().map(pairs).collect()
    };
    assert_eq!(lost(&single), [vec![(0, 1)], vec![(1, 1)]]);
    let pairs = make(&graph, &machine, &costs, &options(), Losses::Pairs);
    let expected = [
        vec![(0, 1)],
        vec![(1, 1)],
        vec![(0, 2)],
        vec![(0, 1), (1, 1)],
        vec![(1, 2)],
    ];
    assert_eq!(lost(&pairs), expected);
    assert!(
        pairs
            .plans
            .iter()
            .any(|p| p.name == "main without 1 like cpu:0 and 1 like cpu:1")
    );
    assert!(
        make(&graph, &machine, &costs, &options(), Losses::None)
            .contingencies
            .list
            .is_empty()
    );
}

#[test]
fn what_costs_differently_or_is_pinned_is_not_alike() {
    let (graph, machine) = (chain(4), machine(4));
    let mut unequal = costs(&graph, &machine, 1_000_000);
    let Some(cost) = &mut unequal.table[ActorId(2)][DeviceId(3)] else {
        panic!("a cost")
    };
    cost.firing_ps += 1;
    assert_eq!(sizes(&kinds(&machine, &unequal, &options())), [3, 1]);
    let even = costs(&graph, &machine, 1_000_000);
    let pins = BTreeMap::from([(ActorId(0), DeviceId(1))]);
    assert_eq!(
        sizes(&kinds(
            &machine,
            &even,
            &ScheduleOptions { pins, ..options() }
        )),
        [3, 1]
    );
    let devices = Some(vec![DeviceId(0), DeviceId(2)]);
    assert_eq!(
        sizes(&kinds(
            &machine,
            &even,
            &ScheduleOptions {
                devices,
                ..options()
            }
        )),
        [2, 2]
    );
}

#[test]
fn losses_without_a_plan_are_listed() {
    let graph = chain(4);
    // One device: nothing is left.
    let one = machine(1);
    let made = make(
        &graph,
        &one,
        &costs(&graph, &one, 1000),
        &options(),
        Losses::Pairs,
    );
    let lost = vec![Loss {
        kind: KindId(0),
        count: 1,
    }];
    assert_eq!(made.impossible, [(lost, ScheduleError::NoDevices)]);
    assert_eq!(made.contingencies, Contingencies::default());
    // Only device 0 has a kernel for actor 1.
    let two = machine(2);
    let mut special = costs(&graph, &two, 1_000_000);
    special.table[ActorId(1)][DeviceId(1)] = None;
    let made = make(&graph, &two, &special, &options(), Losses::Single);
    let actor = ActorId(1);
    assert_eq!(made.impossible.len(), 1);
    assert_eq!(made.impossible[0].1, ScheduleError::NoDevice { actor });
    assert_eq!(
        made.contingencies.list[0].lost,
        [Loss {
            kind: KindId(1),
            count: 1
        }]
    );
    // Half of the histories fit a device, all do not, in chunks either.
    let links: Vec<_> = (1..32).map(|i| (i - 1, 1, i, 1, 100)).collect();
    let (long, mut small) = (crate::testing::graph(32, &links), machine(2));
    let even = costs(&long, &small, 1_000_000);
    small
        .devices
        .iter_mut()
        .for_each(|d| d.memory_bytes = 24_000);
    let made = make(&long, &small, &even, &options(), Losses::Single);
    let Some((_, error)) = made.impossible.first() else {
        panic!("{:?}", made.contingencies)
    };
    assert!(
        matches!(
            error,
            ScheduleError::Memory {
                limit_bytes: 24_000,
                ..
            }
        ),
        "{error}"
    );
    // A pin to what is lost.
    let pinned = ScheduleOptions {
        pins: BTreeMap::from([(ActorId(0), DeviceId(0))]),
        ..options()
    };
    let made = make(
        &graph,
        &two,
        &costs(&graph, &two, 1_000_000),
        &pinned,
        Losses::Single,
    );
    assert!(matches!(
        made.impossible[..],
        [(_, ScheduleError::PinImpossible { .. })]
    ));
    assert_eq!(made.contingencies.list.len(), 1);
}

#[test]
fn a_loss_that_changes_nothing_needs_no_plan() {
    // One actor: one device works, the others wait.
    let (graph, machine) = (chain(1), machine(4));
    let costs = costs(&graph, &machine, 1_000_000);
    let made = make(&graph, &machine, &costs, &options(), Losses::Pairs);
    assert_eq!((made.plans.len(), made.contingencies.list.len()), (2, 2));
    for entry in &made.contingencies.list {
        assert_eq!((entry.main, entry.tail), (PlanId(0), Some(PlanId(1))));
    }
}

#[test]
fn names_are_unique_whatever_devices_are_called() {
    let graph = chain(6);
    let mut machine = machine(3);
    for (i, device) in machine.devices.iter_mut().enumerate() {
        device.memory_bytes += i as u64;
    }
    machine.devices[DeviceId(0)].name = "a".into();
    machine.devices[DeviceId(1)].name = "b".into();
    machine.devices[DeviceId(2)].name = "a and b".into();
    let costs = costs(&graph, &machine, 1_000_000);
    let made = make(&graph, &machine, &costs, &options(), Losses::Pairs);
    let names: BTreeSet<&str> = made.plans.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names.len(), made.plans.len());
    assert!(names.contains("main without a and b"), "{names:?}");
}

#[test]
fn too_many_losses_are_refused() {
    let kinds: TiVec<KindId, Vec<DeviceId>> = (0..64).map(|d| vec![DeviceId(d)]).collect();
    assert_eq!(losses(&kinds, Losses::Single).map(|l| l.len()), Ok(64));
    let refused = losses(&kinds, Losses::Pairs);
    assert_eq!(
        refused,
        Err(ScheduleError::TooManyContingencies {
            count: 2080,
            limit: 2047
        })
    );
}
