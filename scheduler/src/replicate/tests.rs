//! What keeps actors from being replicated, and how many replicas are proposed.

use zbmd_ir::StatePort;

use super::*;
use crate::testing::{Link5, costs, graph, machine};
use crate::{Block, Inputs, ScheduleOptions, schedule};

/// `0 -> 1 -> 2 -> 3`, the rates such that actor 1 and 2 fire `firings` times, and 0 and 3 once.
fn chain(firings: u64) -> Graph {
    let links: [Link5; 3] = [
        (0, firings, 1, 1, 0),
        (1, 1, 2, 1, 0),
        (2, 1, 3, firings, 0),
    ];
    let mut graph = graph(4, &links);
    graph.actors[ActorId(0)].role = Role::Source;
    graph.actors[ActorId(3)].role = Role::Sink;
    graph
}

#[test]
fn what_is_against_replicas_is_named() {
    type Case = (fn(&mut Graph), Option<&'static str>);
    let cases: [Case; 7] = [
        (|_| {}, None),
        (
            |g| g.actors[ActorId(1)].role = Role::Source,
            Some("it is a source or a sink"),
        ),
        (
            |g| {
                g.actors[ActorId(1)].state.push(StatePort {
                    input: 0,
                    output: 0,
                })
            },
            Some("it keeps a state"),
        ),
        (
            |g| g.actors[ActorId(1)].inputs[0].window = 5,
            Some("input `x0` takes 1 tokens a firing and looks at 5"),
        ),
        (
            |g| *g = graph(2, &[(0, 1, 1, 1, 0)]),
            Some("it has no inputs or no outputs"),
        ),
        (
            |g| *g = graph(2, &[(1, 1, 0, 1, 0)]),
            Some("it has no inputs or no outputs"),
        ),
        // Many initial tokens do not help.
        (
            |g| *g = graph(2, &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 99)]),
            Some("it lies on a cycle"),
        ),
    ];
    for (i, (change, expected)) in cases.iter().enumerate() {
        let mut graph = chain(4);
        change(&mut graph);
        let found = obstacles(&graph)[ActorId(1)]
            .as_ref()
            .map(ToString::to_string);
        assert_eq!(found.as_deref(), *expected, "case {i}");
    }
    let own = obstacles(&graph(1, &[(0, 1, 0, 1, 1)]));
    assert_eq!(own[ActorId(0)], Some(Obstacle::Cycle));
}

/// Candidates where actors take so many nanoseconds a firing, as numbers of replicas of actors 1 and 2.
fn found(firings: u64, ns: [u64; 4], devices: usize, bounds: Bounds) -> Vec<[u32; 2]> {
    let (graph, machine) = (chain(firings), machine(devices));
    let mut costs = costs(&graph, &machine, 0);
    for (row, ns) in costs.table.iter_mut().zip(ns) {
        row.iter_mut()
            .flatten()
            .for_each(|cost| cost.firing_ps = ns * 1_000);
    }
    let options = ScheduleOptions {
        block: Block::Fixed(100),
        ..ScheduleOptions::default()
    };
    let plans = schedule(&graph, &machine, &costs, &options).expect("a chain has a schedule");
    let inputs = Inputs {
        graph: &graph,
        machine: &machine,
        costs: &costs,
        options: &options,
    };
    let candidates = candidates(inputs, &plans[0], bounds).expect("consistent");
    assert!(candidates.len() <= MAX_CANDIDATES);
    let numbers = |f: &Factors| [1, 2].map(|a| f.get(&ActorId(a)).copied().unwrap_or(1));
    candidates.iter().map(numbers).collect()
}

#[test]
fn numbers_of_replicas_even_out_the_work() {
    let bounds = |max_replicas, same_iteration| Bounds {
        max_replicas,
        same_iteration,
    };
    let all = bounds(u32::MAX, true);
    type Case = (u64, [u64; 4], usize, Bounds, &'static [[u32; 2]]);
    let cases: &[Case] = &[
        // One device, or nothing to even out.
        (12, [10, 1_000, 10, 10], 1, all, &[]),
        (12, [10, 1_000, 1_000, 10], 2, all, &[]),
        // The balanced number first.
        (12, [10, 1_000, 10, 10], 2, all, &[[2, 1]]),
        (12, [10, 1_000, 10, 10], 4, all, &[[4, 1], [3, 1], [2, 1]]),
        // 5 does not divide 12, 6 does; there are not 6 devices.
        (12, [10, 1_000, 10, 10], 5, all, &[[4, 1], [3, 1], [2, 1]]),
        // An odd number of firings on two devices: seven replicas, four and three.
        (147, [10, 1_000, 10, 10], 2, all, &[[7, 1]]),
        (147, [10, 1_000, 10, 10], 3, all, &[[3, 1]]),
        // Two heavy actors need replicas at the same time.
        (
            12,
            [10, 1_000, 1_000, 10],
            4,
            all,
            &[[2, 2], [3, 3], [4, 4]],
        ),
        (
            12,
            [10, 2_000, 1_000, 10],
            6,
            all,
            &[[4, 2], [6, 3], [3, 2], [2, 1]],
        ),
        // Fewer where no more are allowed.
        (
            12,
            [10, 1_000, 10, 10],
            4,
            bounds(3, true),
            &[[3, 1], [2, 1]],
        ),
        // One firing cannot be shared, unless iterations may grow.
        (1, [10, 1_000, 10, 10], 4, all, &[]),
        (
            1,
            [10, 1_000, 10, 10],
            4,
            bounds(31, false),
            &[[4, 1], [3, 1], [2, 1]],
        ),
        // What is heavy cannot be replicated.
        (1, [1_000, 10, 10, 10], 4, bounds(31, false), &[]),
    ];
    for (i, &(firings, ns, devices, bounds, expected)) in cases.iter().enumerate() {
        assert_eq!(found(firings, ns, devices, bounds), expected, "case {i}");
    }
}

#[test]
fn unlike_devices_get_finer_shares() {
    let (graph, machine) = (chain(12), machine(2));
    let mut costs = costs(&graph, &machine, 10_000);
    for (device, ps) in [(DeviceId(0), 1_000_000), (DeviceId(1), 2_000_000)] {
        costs.table[ActorId(1)][device]
            .as_mut()
            .expect("known")
            .firing_ps = ps;
    }
    let options = ScheduleOptions {
        block: Block::Fixed(100),
        ..ScheduleOptions::default()
    };
    let plans = schedule(&graph, &machine, &costs, &options).expect("a schedule");
    let inputs = Inputs {
        graph: &graph,
        machine: &machine,
        costs: &costs,
        options: &options,
    };
    let bounds = Bounds {
        max_replicas: 31,
        same_iteration: true,
    };
    let found = candidates(inputs, &plans[0], bounds).expect("consistent");
    let numbers: Vec<u32> = found.iter().map(|f| f[&ActorId(1)]).collect();
    // Three: two of them on the device that is twice as quick.
    assert_eq!(numbers, [2, 3, 4, 6]);
}

#[test]
fn many_small_actors_need_no_replicas() {
    for (actors, expected) in [(5, true), (11, true), (41, false)] {
        let links: Vec<Link5> = (1..actors).map(|i| (i - 1, 1, i, 1, 0)).collect();
        let (graph, machine) = (graph(actors as usize, &links), machine(4));
        let costs = costs(&graph, &machine, 1_000_000);
        let options = ScheduleOptions {
            block: Block::Fixed(100),
            ..ScheduleOptions::default()
        };
        let mut plans = schedule(&graph, &machine, &costs, &options).expect("a schedule");
        // Whatever it is that holds them up.
        plans[0].period_ns *= 2;
        let inputs = Inputs {
            graph: &graph,
            machine: &machine,
            costs: &costs,
            options: &options,
        };
        let bounds = Bounds {
            max_replicas: 31,
            same_iteration: false,
        };
        let found = candidates(inputs, &plans[0], bounds).expect("consistent");
        assert_eq!(!found.is_empty(), expected, "{actors} actors");
    }
}

#[test]
fn pinned_actors_stay_where_they_are() {
    let (graph, machine) = (chain(12), machine(2));
    let mut costs = costs(&graph, &machine, 1_000);
    costs.table[ActorId(1)]
        .iter_mut()
        .flatten()
        .for_each(|cost| cost.firing_ps = 1_000_000);
    let mut options = ScheduleOptions {
        block: Block::Fixed(100),
        ..ScheduleOptions::default()
    };
    let bounds = Bounds {
        max_replicas: 2,
        same_iteration: true,
    };
    for (pins, expected) in [(vec![], 1), (vec![(ActorId(1), DeviceId(1))], 0)] {
        options.pins = pins.into_iter().collect();
        let plans = schedule(&graph, &machine, &costs, &options).expect("a schedule");
        let inputs = Inputs {
            graph: &graph,
            machine: &machine,
            costs: &costs,
            options: &options,
        };
        let found = candidates(inputs, &plans[0], bounds).expect("consistent");
        assert_eq!(found.len(), expected);
    }
}

#[test]
fn a_gain_is_worth_it_from_a_few_percent_on() {
    assert!(is_worth(91, 100) && !is_worth(92, 100) && !is_worth(100, 100));
    assert!(!is_worth(u128::MAX, u128::MAX));
}
