//! Repetition vectors and deadlocks of small graphs.

use super::*;
use crate::testing::{Link5, graph};

#[test]
fn repetition_vectors() {
    let check = |actors: usize, channels: &[Link5], expect: &[u64]| {
        let q =
            repetition(&graph(actors, channels)).unwrap_or_else(|e| panic!("{channels:?}: {e}"));
        assert_eq!(q.raw, expect, "{channels:?}");
    };
    check(1, &[], &[1]);
    check(2, &[(0, 2, 1, 3, 0)], &[3, 2]);
    // The classic CD to DAT chain, 44.1 to 48 kHz.
    let cd2dat = [
        (0, 1, 1, 1, 0),
        (1, 2, 2, 3, 0),
        (2, 2, 3, 7, 0),
        (3, 8, 4, 7, 0),
        (4, 5, 5, 1, 0),
    ];
    check(6, &cd2dat, &[147, 147, 98, 28, 32, 160]);
    // Two components keep their own smallest solution.
    check(4, &[(0, 4, 1, 2, 0), (2, 1, 3, 5, 0)], &[1, 2, 5, 1]);
    check(
        3,
        &[(0, 1, 1, 2, 0), (1, 2, 2, 1, 0), (2, 1, 0, 1, 2)],
        &[2, 1, 2],
    );
}

#[test]
fn inconsistent_rates_name_channel_and_firings() {
    let error = repetition(&graph(
        3,
        &[(0, 1, 1, 1, 0), (1, 1, 2, 1, 0), (0, 2, 2, 1, 0)],
    ));
    let Err(AnalysisError::Inconsistent {
        channel,
        writer_firings,
        reader_firings,
        ..
    }) = error
    else {
        panic!("{error:?}")
    };
    // The breadth-first search meets ch2 before ch1 from actor 0.
    assert_eq!(
        (channel, writer_firings, reader_firings),
        (ChannelId(1), 1, 2)
    );
}

#[test]
fn counts_that_overflow_are_refused() {
    let chain: Vec<Link5> = (0..40)
        .map(|i| (i, 1 << 20, i + 1, (1 << 20) - 1, 0))
        .collect();
    assert!(matches!(
        repetition(&graph(41, &chain)),
        Err(AnalysisError::Overflow { .. })
    ));
}

#[test]
fn deadlocks_name_the_cycle_and_what_frees_it() {
    let check = |actors: usize, channels: &[Link5], expect: Option<(usize, u32, u64)>| {
        let g = graph(actors, channels);
        let q = repetition(&g).unwrap_or_else(|e| panic!("{channels:?}: {e}"));
        let found = match check_deadlock(&g, &q) {
            Ok(()) => None,
            Err(AnalysisError::Deadlock {
                actors,
                channels,
                on,
                missing,
            }) => {
                assert_eq!(actors.len(), channels.len());
                Some((actors.len(), on.0, missing))
            }
            Err(other) => panic!("{channels:?}: {other}"),
        };
        assert_eq!(found, expect, "{channels:?}");
    };
    check(2, &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 1)], None);
    check(2, &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 0)], Some((2, 0, 1)));
    check(1, &[(0, 1, 0, 1, 0)], Some((1, 0, 1)));
    // 2:3 ring: each of the two firings of 1 lacks one of its three tokens.
    check(2, &[(0, 2, 1, 3, 0), (1, 3, 0, 2, 2)], Some((2, 0, 2)));
    check(2, &[(0, 2, 1, 3, 0), (1, 3, 0, 2, 4)], None);
    // A chain in front of the cycle is not part of it.
    check(
        4,
        &[
            (3, 1, 0, 1, 0),
            (0, 1, 1, 1, 0),
            (1, 1, 2, 1, 0),
            (2, 1, 0, 1, 0),
        ],
        Some((3, 1, 1)),
    );
}

#[test]
fn a_freed_cycle_runs() {
    // What the error asks for is enough, and one token less is not.
    let ring = |extra: u64| graph(3, &[(0, 3, 1, 5, extra), (1, 2, 2, 3, 0), (2, 5, 0, 2, 0)]);
    let q = repetition(&ring(0)).unwrap_or_default();
    let Err(AnalysisError::Deadlock { on, missing, .. }) = check_deadlock(&ring(0), &q) else {
        panic!()
    };
    let with = |n: u64| {
        let delays = [0, 1, 2].map(|c| if on.0 == c { n } else { 0 });
        graph(
            3,
            &[
                (0, 3, 1, 5, delays[0]),
                (1, 2, 2, 3, delays[1]),
                (2, 5, 0, 2, delays[2]),
            ],
        )
    };
    assert_eq!(check_deadlock(&with(missing), &q), Ok(()));
    assert!(check_deadlock(&with(missing - 1), &q).is_err());
}

#[test]
fn long_chains_and_rings_do_not_recurse() {
    let n = 100_000;
    let mut ring: Vec<Link5> = (0..n - 1).map(|i| (i, 1, i + 1, 1, 0)).collect();
    ring.push((n - 1, 1, 0, 1, 1));
    let g = graph(n as usize, &ring);
    let q = repetition(&g).unwrap_or_default();
    assert_eq!(check_deadlock(&g, &q), Ok(()));
}
