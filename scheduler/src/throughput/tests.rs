//! Periods of small graphs, and against a simulation.

use super::*;

/// `(from, produce, to, consume, initial)`.
type TestChannel = (u32, u64, u32, u64, u64);

fn sdf(times: &[u64], channels: &[TestChannel]) -> TimedSdf {
    let mut sdf = TimedSdf::default();
    for (i, &time) in times.iter().enumerate() {
        sdf.add_actor(&format!("n{i}"), time);
    }
    for &(from, produce, to, consume, initial) in channels {
        sdf.add_channel(ActorId(from), produce, ActorId(to), consume, initial);
    }
    sdf
}

#[test]
fn periods_and_their_cycles() {
    let check = |times: &[u64], channels: &[TestChannel], expect: &str| {
        let found = match analyse(&sdf(times, channels)) {
            Ok(t) => format!(
                "{}{}",
                t.period,
                t.bound.map(|b| format!(" by {b}")).unwrap_or_default()
            ),
            Err(e) => e.to_string(),
        };
        assert_eq!(found, expect, "{times:?} {channels:?}");
    };
    check(&[], &[], "0");
    check(&[5, 7], &[(0, 1, 1, 1, 0)], "0");
    check(&[5], &[(0, 1, 0, 1, 1)], "5 by n0 -> n0");
    check(&[5], &[(0, 1, 0, 1, 3)], "5/3 by n0 -> n0");
    check(&[5], &[(0, 4, 0, 4, 11)], "5/2 by n0 -> n0");
    check(
        &[5, 7],
        &[(0, 3, 1, 2, 0), (0, 1, 0, 1, 1), (1, 1, 1, 1, 1)],
        "21 by n1 -> n1",
    );
    check(
        &[5, 7],
        &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 1)],
        "12 by n0 -> n1 -> n0",
    );
    check(
        &[5, 7],
        &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 5)],
        "12/5 by n0 -> n1 -> n0",
    );
    check(
        &[5, 7],
        &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 0)],
        "deadlock: n0 -> n1 -> n0 has too few tokens or too little space",
    );
    check(
        &[0, 0],
        &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 0)],
        "deadlock: n0 -> n1 -> n0 has too few tokens or too little space",
    );
    check(
        &[0, 0],
        &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 1)],
        "0 by n0 -> n1 -> n0",
    );
    // 2 and 3 firings: 6 tokens are a whole iteration, all at once; 3 let neither get round.
    check(
        &[5, 7],
        &[(0, 3, 1, 2, 0), (1, 2, 0, 3, 6)],
        "12 by n0 -> n1 -> n0",
    );
    check(
        &[5, 7],
        &[(0, 3, 1, 2, 0), (1, 2, 0, 3, 4)],
        "24 by n0 -> n1 -> n0",
    );
    check(
        &[5, 7],
        &[(0, 3, 1, 2, 0), (1, 2, 0, 3, 3)],
        "deadlock: n0 -> n1 -> n0 has too few tokens or too little space",
    );
}

#[test]
fn an_iteration_of_10_to_the_12_firings_needs_no_unfolding() {
    let chain: Vec<TestChannel> = (0..12).map(|i| (i, 10, i + 1, 1, 0)).collect();
    let mut graph = sdf(&[3; 13], &chain);
    graph.actors.iter_mut().for_each(|a| a.at_once = Some(2));
    let found = analyse(&graph).expect("no cycles");
    assert_eq!(found.period, Period::from(3 * 1_000_000_000_000 / 2));
    let capacities = graph
        .channels
        .keys()
        .map(|c| graph.min_capacity(c) * 2)
        .collect();
    let found = analyse_bounded(&graph, &capacities).expect("capacities suffice");
    assert_eq!(found.period, Period::from(3 * 1_000_000_000_000 / 2));
}

#[test]
fn bounded_periods_equal_those_of_a_simulation() {
    check_against_simulation(selftimed::random);
}

#[test]
fn bounded_periods_of_phases_equal_those_of_a_simulation() {
    check_against_simulation(selftimed::random_with_phases);
}

fn check_against_simulation(random: fn(u64) -> (TimedSdf, Vec<u64>)) {
    let (mut live, mut stuck) = (0, 0);
    for seed in 0..3000 {
        let (graph, room) = random(seed);
        let simulated = selftimed::period(&graph, &room);
        let found = match analyse_bounded(&graph, &room.clone().into()) {
            Ok(t) => Some(t.period),
            Err(ThroughputError::Deadlock { .. }) => None,
            Err(e) => panic!("seed {seed}: {e}"),
        };
        assert_eq!(found, simulated, "seed {seed}: {graph:?} with {room:?}");
        live += u32::from(found.is_some());
        stuck += u32::from(found.is_none());
    }
    assert!(
        live > 1000 && stuck > 100,
        "{live} live, {stuck} stuck: too few of either"
    );
}
