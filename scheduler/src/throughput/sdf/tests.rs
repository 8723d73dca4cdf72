//! Repetition vectors, capacities and malformed graphs.

use super::*;

fn sdf(actors: u32, channels: &[(u32, u64, u32, u64, u64)]) -> TimedSdf {
    let mut sdf = TimedSdf::default();
    for i in 0..actors {
        sdf.add_actor(&format!("n{i}"), 1);
    }
    for &(from, produce, to, consume, initial) in channels {
        sdf.add_channel(ActorId(from), produce, ActorId(to), consume, initial);
    }
    sdf
}

#[test]
fn repetition_vectors() {
    let check = |actors, channels: &[_], expect: &[u64]| {
        let q = sdf(actors, channels).repetition().expect("consistent");
        assert_eq!(q.raw, expect, "{channels:?}");
    };
    check(0, &[], &[]);
    check(2, &[(0, 2, 1, 3, 0)], &[3, 2]);
    check(3, &[(0, 2, 1, 3, 0)], &[3, 2, 1]);
    check(
        3,
        &[(1, 4, 0, 6, 0), (1, 10, 2, 15, 0), (0, 7, 0, 7, 7)],
        &[2, 3, 2],
    );
    check(
        3,
        &[
            (0, 147, 1, 160, 0),
            (1, 7, 2, 5, 0),
            (0, 147, 2, 800 / 7, 0),
        ][..2],
        &[800, 735, 1029],
    );
}

#[test]
fn bad_graphs_are_refused() {
    let inconsistent = sdf(2, &[(0, 1, 1, 1, 0), (0, 2, 1, 1, 0)]).repetition();
    assert_eq!(
        inconsistent.expect_err("unbalanced").to_string(),
        "inconsistent rates on ch1: 1 firings of a0 produce 2 tokens each, 1 firings of a1 consume 1 each"
    );
    let zero = sdf(2, &[(0, 0, 1, 1, 0)]).repetition();
    assert_eq!(
        zero.expect_err("no rate").to_string(),
        "ch0 has a rate of 0, allowed are 1 to 4294967296"
    );
    let nobody = sdf(2, &[(0, 1, 2, 1, 0)]).repetition();
    assert_eq!(
        nobody.expect_err("no such actor").to_string(),
        "ch0 names a2 of 2 actors"
    );
    let chain: Vec<_> = (0..60).map(|i| (i, 3, i + 1, 2, 0)).collect();
    assert!(matches!(
        sdf(61, &chain).repetition(),
        Err(ThroughputError::Analysis(AnalysisError::Overflow { .. }))
    ));
}

#[test]
fn least_capacities() {
    let cases = [
        ((1, 1, 0), 1),
        ((2, 3, 0), 4),
        ((4, 6, 0), 8),
        ((4, 6, 3), 9),
        ((4, 6, 8), 8),
        ((4, 6, 9), 9),
        ((1, 594, 0), 594),
    ];
    for ((produce, consume, initial), expect) in cases {
        let g = sdf(2, &[(0, produce, 1, consume, initial)]);
        assert_eq!(
            g.min_capacity(ChannelId(0)),
            expect,
            "{produce} {consume} {initial}"
        );
    }
    assert_eq!(
        sdf(1, &[(0, 2, 0, 2, 2)]).min_capacity(ChannelId(0)),
        0,
        "a state"
    );
}
