//! Loop nests of small graphs, and against enumeration.

use super::*;

fn sdf(actors: usize, channels: &[(usize, u64, usize, u64, u64)]) -> TimedSdf {
    let mut sdf = TimedSdf::default();
    for i in 0..actors {
        sdf.add_actor(&format!("n{i}"), 1);
    }
    for &(from, produce, to, consume, initial) in channels {
        sdf.add_channel(from.into(), produce, to.into(), consume, initial);
    }
    sdf
}

fn text(found: &Loops) -> String {
    let steps: Vec<String> = found.steps.iter().map(|s| s.to_string()).collect();
    let exact = if found.exact { "" } else { ", maybe" };
    format!("{}: {}{exact}", steps.join(" "), found.tokens)
}

/// Runs the steps and returns the most tokens on each channel, overlaps included.
fn replay(sdf: &TimedSdf, steps: &[LoopStep]) -> Vec<u64> {
    fn flatten(steps: &[LoopStep], out: &mut Vec<ActorId>) {
        for step in steps {
            match step {
                LoopStep::Fire(a, n) => (0..*n).for_each(|_| out.push(*a)),
                LoopStep::Loop(n, body) => (0..*n).for_each(|_| flatten(body, out)),
            }
        }
    }
    let mut firings = Vec::new();
    flatten(steps, &mut firings);
    let mut held: Vec<i64> = sdf
        .channels
        .iter()
        .map(|c| c.readers[0].free as i64)
        .collect();
    let mut peak = held.clone();
    for actor in firings {
        for (i, ch) in sdf.channels.iter().enumerate() {
            held[i] -= i64::from(ch.readers[0].to == actor) * ch.readers[0].consume as i64;
            assert!(held[i] >= 0, "{actor} reads what ch{i} lacks");
            held[i] += i64::from(ch.from == actor) * ch.produce as i64;
            peak[i] = peak[i].max(held[i]);
        }
    }
    let buffered = |i: usize| u64::from(sdf.is_buffered(i.into()));
    peak.iter()
        .enumerate()
        .map(|(i, &p)| p as u64 * buffered(i))
        .collect()
}

#[test]
fn loops() {
    let cd2dat = [
        (0, 1, 1, 1, 0),
        (1, 2, 2, 3, 0),
        (2, 2, 3, 7, 0),
        (3, 8, 4, 7, 0),
        (4, 5, 5, 1, 0),
    ];
    let check = |actors, channels: &[_], depth, expect: &str| {
        let sdf = sdf(actors, channels);
        let found = looped(&sdf, depth).expect("a single-appearance order");
        assert_eq!(text(&found), expect, "{channels:?}");
        assert_eq!(
            replay(&sdf, &found.steps),
            found.capacities.raw,
            "{channels:?}"
        );
    };
    check(6, &cd2dat, 9, "49(3(a0 a1) 2a2) 4(7a3 8(a4 5a5)): 264");
    check(6, &cd2dat, 1, "49(3a0 3a1 2a2) 4(7a3 8a4 40a5): 301");
    check(6, &cd2dat, 0, "147a0 147a1 98a2 28a3 32a4 160a5: 1021");
    check(0, &[], 9, ": 0");
    check(1, &[(0, 1, 0, 1, 1)], 9, "a0: 0");
    check(
        3,
        &[(0, 1, 1, 4, 0), (1, 4, 2, 1, 0), (0, 1, 2, 1, 0)],
        9,
        "4a0 a1 4a2: 12",
    );
    // The initial tokens on the way back last for an iteration: the cycle is open.
    check(2, &[(0, 3, 1, 2, 0), (1, 2, 0, 3, 6)], 9, "2a0 3a1: 12");
    check(
        3,
        &[(0, 1, 1, 1, 0), (0, 1, 2, 1, 0)],
        9,
        "a0 a1 a2: 2, maybe",
    );
}

#[test]
fn flat_orders_fire_everything_at_once() {
    let found = flat(&sdf(2, &[(0, 2, 1, 3, 0)])).expect("a chain");
    assert_eq!(text(&found), "3a0 2a1: 6");
}

#[test]
fn turns_are_refused() {
    let ring = sdf(3, &[(0, 3, 1, 2, 0), (1, 2, 0, 3, 4), (1, 1, 2, 1, 0)]);
    assert_eq!(
        looped(&ring, 9).expect_err("4 of 6 tokens").to_string(),
        "2 actors around a0 have to fire in turns: no order lets each appear just once"
    );
    let many = sdf(257, &[]);
    assert_eq!(
        looped(&many, 9).expect_err("too many"),
        OrderError::TooManyActors {
            actors: 257,
            limit: 256
        }
    );
}

/// Least tokens over all loop nests of a chain, by trying every split and every loop.
fn brute(sdf: &TimedSdf, q: &[u64], first: usize, end: usize, shared: u64, depth: usize) -> u64 {
    if end - first < 2 {
        return 0;
    }
    let common = q[first..end].iter().copied().fold(0, gcd_u64);
    let mut best = u64::MAX;
    for inner in (1..=common).filter(|i| common.is_multiple_of(*i) && i.is_multiple_of(shared)) {
        if inner > shared && depth == 0 {
            continue;
        }
        let depth = depth - usize::from(inner > shared);
        for split in first + 1..end {
            let ch = &sdf.channels.raw[split - 1];
            let crossing = q[split - 1] * ch.produce / inner;
            let left = brute(sdf, q, first, split, inner, depth);
            best = best.min(left + brute(sdf, q, split, end, inner, depth) + crossing);
        }
    }
    best
}

#[test]
fn chains_equal_brute_force() {
    let mut random = 1u64;
    let mut below = |n: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    for case in 0..200 {
        let actors = 2 + below(4) as usize;
        let channels: Vec<_> = (1..actors)
            .map(|i| (i - 1, 1 + below(6), i, 1 + below(6), 0))
            .collect();
        let sdf = sdf(actors, &channels);
        let q = sdf.repetition().expect("a chain").raw;
        for depth in 0..4 {
            let found = looped(&sdf, depth).expect("a chain");
            assert!(found.exact);
            let least = brute(&sdf, &q, 0, actors, 1, depth);
            assert_eq!(
                found.tokens, least,
                "case {case}, depth {depth}: {channels:?}"
            );
            assert_eq!(
                replay(&sdf, &found.steps),
                found.capacities.raw,
                "case {case}"
            );
        }
    }
}
