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

fn kinds(
    machine: &Machine,
    costs: &Costs,
    options: &ScheduleOptions,
) -> TiVec<KindId, Vec<DeviceId>> {
    likeness(machine, costs, options).kinds
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
    let likeness = Contingencies {
        kinds: (0..64).map(|d| vec![DeviceId(d)]).collect(),
        ..Contingencies::default()
    };
    let machine = machine(64);
    let single = losses(&machine, &likeness, Losses::Single);
    assert_eq!(single.map(|losses| losses.len()), Ok(64));
    let refused = losses(&machine, &likeness, Losses::Pairs);
    assert_eq!(
        refused,
        Err(ScheduleError::TooManyContingencies {
            count: 2080,
            limit: 2047
        })
    );
}

/// `hosts` alike hosts of `each` devices; bytes take longer between hosts.
fn cluster(hosts: u32, each: u32) -> Machine {
    let mut machine = machine((hosts * each) as usize);
    for host in 0..hosts {
        machine.hosts.push(Host {
            name: format!("host{host}"),
            devices: (host * each..(host + 1) * each).map(DeviceId).collect(),
        });
    }
    machine.links.change(|link| {
        if link.from.0 / each != link.to.0 / each {
            link.latency_ns += 20_000;
            link.bytes_per_s /= 4;
        }
    });
    machine
}

#[test]
fn four_alike_hosts_of_which_one_may_fail_need_one_entry_beside_those_of_devices() {
    // Seven actors on each of 8 devices, eight on 7, ten at most on 6.
    let (graph, machine) = (chain(56), cluster(4, 2));
    let costs = costs(&graph, &machine, 100_000_000);
    let made = make(&graph, &machine, &costs, &options(), Losses::Hosts);
    assert_eq!(sizes(&made.contingencies.kinds), [2; 4]);
    assert_eq!(made.contingencies.alike_hosts[HostKindId(0)].len(), 4);
    let names: Vec<&str> = made.plans.iter().map(|plan| plan.name.as_str()).collect();
    let expected = [
        "main",
        "tail",
        "main without 1 like cpu:6 of a host like host0",
        "tail without 1 like cpu:6 of a host like host0",
        "main without 1 host like host0",
        "tail without 1 host like host0",
    ];
    assert_eq!(names, expected);

    let entry = &made.contingencies.list[1];
    for host in &machine.hosts {
        assert_eq!(made.contingencies.find(&host.devices), Some(entry));
        let roles = made.contingencies.roles(&host.devices);
        for calendar in &made.plans[usize::from(entry.main)].calendars {
            let device = roles[&calendar.device];
            assert!(!host.devices.contains(&device), "{}", host.name);
        }
    }
    // Whichever device fails, and wherever: the same plan.
    for device in machine.devices.keys() {
        let found = made.contingencies.find(&[device]);
        assert_eq!(found, Some(&made.contingencies.list[0]), "{device}");
    }
}

#[test]
fn a_host_is_like_another_only_with_alike_devices_links_costs_and_no_pins() {
    let graph = chain(4);
    let machine = cluster(3, 2);
    let even = costs(&graph, &machine, 1_000_000);
    let alike = |machine: &Machine, costs: &Costs, options: &ScheduleOptions| -> Vec<usize> {
        let table = likeness(machine, costs, options);
        table.alike_hosts.iter().map(Vec::len).collect()
    };
    assert_eq!(alike(&machine, &even, &options()), [3]);

    let mut larger = machine.clone();
    larger.devices[DeviceId(4)].memory_bytes += 1;
    assert_eq!(alike(&larger, &even, &options()), [2]);
    let mut nearer = machine.clone();
    nearer.links.change(|link| {
        let is_between_first_two = link.from.0 / 2 + link.to.0 / 2 == 1;
        link.latency_ns -= u64::from(is_between_first_two);
    });
    assert_eq!(alike(&nearer, &even, &options()), [2]);
    let mut dear = even.clone();
    for row in &mut dear.table {
        row[DeviceId(1)] = None;
    }
    assert_eq!(alike(&machine, &dear, &options()), [2]);
    let pins = BTreeMap::from([(ActorId(0), DeviceId(3))]);
    let pinned = ScheduleOptions { pins, ..options() };
    assert_eq!(alike(&machine, &even, &pinned), [2]);

    // Devices correspond by what they are, not by their numbers.
    let mut crossed = machine.clone();
    crossed.hosts.raw.truncate(2);
    crossed.devices.truncate(4);
    crossed
        .links
        .retain(|link| link.from.0 < 4 && link.to.0 < 4);
    crossed.devices[DeviceId(0)].memory_bytes += 5;
    crossed.devices[DeviceId(3)].memory_bytes += 5;
    let even = costs(&graph, &crossed, 1_000_000);
    let table = likeness(&crossed, &even, &options());
    let ids = |list: [u32; 2]| list.map(DeviceId).to_vec();
    assert_eq!(table.alike_hosts.raw, [[ids([1, 0]), ids([2, 3])]]);
}

#[test]
fn plans_for_hosts_need_hosts() {
    let machine = machine(2);
    let refused = losses(&machine, &Contingencies::default(), Losses::Hosts);
    assert_eq!(refused, Err(ScheduleError::NoHosts));
}

/// On every set of lost devices: roles are taken by survivors of the right kind, one each, and an entry that is found
/// leaves no role of its plans empty.
#[test]
fn survivors_take_roles_like_their_own() {
    let graph = chain(6);
    let machine = cluster(3, 2);
    let costs = costs(&graph, &machine, 100_000_000);
    let made = make(&graph, &machine, &costs, &options(), Losses::Pairs);
    let table = &made.contingencies;
    let mut found = 0;
    for set in 0..1_u32 << 6 {
        let lost: Vec<DeviceId> = (0..6).filter(|i| set >> i & 1 == 1).map(DeviceId).collect();
        let roles = table.roles(&lost);
        let taken: BTreeSet<DeviceId> = roles.values().copied().collect();
        assert_eq!((taken.len(), roles.len()), (6 - lost.len(), 6 - lost.len()));
        assert!(
            lost.iter().all(|device| !taken.contains(device)),
            "{lost:?}"
        );

        // Roles of one host are taken by devices of one host.
        for (one, other) in roles.iter().zip(roles.iter().skip(1)) {
            let same_role_host = one.0.0 / 2 == other.0.0 / 2;
            let same_host = one.1.0 / 2 == other.1.0 / 2;
            assert_eq!(same_role_host, same_host, "{lost:?}: {roles:?}");
        }
        if let Some(entry) = table.find(&lost) {
            found += 1;
            for calendar in &made.plans[usize::from(entry.main)].calendars {
                assert!(roles.contains_key(&calendar.device), "{lost:?}");
            }
        }
    }
    // Any one of 6, any two, of which three sets are hosts.
    assert_eq!(found, 6 + 15);
}
