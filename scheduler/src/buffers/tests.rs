//! Exact sizes against enumeration, stopped searches, and modes.

use super::*;
use crate::throughput::selftimed;
use zbmd_ir::ActorId;

/// Calls `see` for all capacities of at least `room` whose weight grows by at most `more`.
fn every(
    room: &mut Vec<u64>,
    sdf: &TimedSdf,
    weights: &[u64],
    from: usize,
    more: u64,
    see: &mut impl FnMut(&[u64]),
) {
    let Some(channel) = (from..room.len()).find(|&c| sdf.is_buffered(c.into())) else {
        return see(room);
    };
    let before = room[channel];
    for places in 0..=more / weights[channel] {
        room[channel] = before + places;
        every(
            room,
            sdf,
            weights,
            channel + 1,
            more - places * weights[channel],
            see,
        );
    }
    room[channel] = before;
}

/// All Pareto points up to a total, by simulating all capacities.
fn simulated(sdf: &TimedSdf, weights: &[u64], most: u64) -> Vec<(u64, Period)> {
    let mut least: Vec<u64> = sdf.channels.keys().map(|c| sdf.min_capacity(c)).collect();
    let sum = |room: &[u64]| room.iter().zip(weights).map(|(r, w)| r * w).sum::<u64>();
    let more = most.saturating_sub(sum(&least));
    let mut best: std::collections::BTreeMap<u64, Period> = Default::default();
    every(&mut least, sdf, weights, 0, more, &mut |room| {
        let Some(period) = selftimed::period(sdf, room) else {
            return;
        };
        let known = best.entry(sum(room)).or_insert(period);
        *known = period.min(*known);
    });
    let mut shortest: Option<Period> = None;
    best.retain(|_, period| {
        let better = shortest.is_none_or(|s| *period < s);
        shortest = shortest.into_iter().chain([*period]).min();
        better
    });
    best.into_iter().collect()
}

fn token_sizes(sdf: &mut TimedSdf, seed: u64) {
    for (i, ch) in sdf.channels.iter_mut().enumerate() {
        ch.token_bytes = [1, 3, 2][(i + seed as usize) % 3];
    }
}

#[test]
fn goals_are_met_just_when_exact_periods_meet_them() {
    let (mut met, mut missed) = (0, 0);
    for seed in 0..1000 {
        let (sdf, room) = selftimed::random(seed);
        let period = match analyse_bounded(&sdf, &room.clone().into()) {
            Ok(found) => Some(found.period),
            Err(_) => None,
        };
        let room: Vec<i64> = room.iter().map(|&r| r as i64).collect();
        let known = period.unwrap_or(Period::from(1000));
        let goals = [Goal::Live, Goal::AtMost(known), Goal::Below(known)];
        for goal in goals {
            let mut net = DependencyNet::new(&sdf, true).expect("consistent");
            let exact = search::meets(&mut net, &room, goal, u64::MAX).expect("small");
            assert_eq!(exact, goal.met(period), "seed {seed}, {goal:?}: {sdf:?}");
            let mut net = DependencyNet::new(&sdf, true).expect("consistent");
            let quick = search::meets(&mut net, &room, goal, 12).expect("small");
            assert!(exact || !quick, "seed {seed}, {goal:?}: {sdf:?}");
            met += u32::from(quick);
            missed += u32::from(exact && !quick);
        }
    }
    assert!(
        met > 100 && missed > 100,
        "{met} met, {missed} left aside: too few of either"
    );
}

#[test]
fn a_stopped_search_still_sizes_buffers() {
    let (mut sizings, mut estimated) = (0, 0);
    for seed in 0..200 {
        let (sdf, _) = selftimed::random(seed);
        for mode in [Mode::Min(Unit::Tokens), Mode::Throughput(Unit::Tokens)] {
            let Ok(best) = size(&sdf, mode, SizingLimits::default()) else {
                continue;
            };
            let found = size(&sdf, mode, SizingLimits { steps: 2 }).expect("it is possible");
            assert!(found.least <= best.tokens, "seed {seed}, {mode:?}: {sdf:?}");
            assert!(
                found.tokens >= best.tokens,
                "seed {seed}, {mode:?}: {sdf:?}"
            );
            if let Mode::Throughput(_) = mode {
                assert_eq!(found.period, best.period, "seed {seed}: {sdf:?}");
            }
            sizings += 1;
            estimated += u32::from(!found.exact);
        }
    }
    assert!(
        sizings > 100 && estimated > 10,
        "{sizings} sizings, {estimated} estimated"
    );
}

#[test]
fn fronts_equal_those_of_all_capacities() {
    let mut compared = 0;
    for seed in 0..400 {
        let (mut sdf, _) = selftimed::random(seed);
        token_sizes(&mut sdf, seed);
        if sdf.channels.keys().filter(|&c| sdf.is_buffered(c)).count() > 4 || analyse(&sdf).is_err()
        {
            continue;
        }
        for unit in [Unit::Tokens, Unit::Bytes] {
            let found = front(&sdf, unit, SizingLimits { steps: 2000 }).expect("live");
            let mut ours: Vec<_> = found.points.iter().map(|p| (p.total, p.period)).collect();
            let weights: Vec<u64> = match unit {
                Unit::Tokens => sdf.channels.iter().map(|_| 1).collect(),
                Unit::Bytes => sdf.channels.iter().map(|c| c.token_bytes).collect(),
            };
            let least = sdf
                .channels
                .keys()
                .map(|c| sdf.min_capacity(c) * weights[c.index()]);
            let most = least.sum::<u64>() + 9;
            ours.retain(|p| p.0 <= most);
            assert_eq!(
                ours,
                simulated(&sdf, &weights, most),
                "seed {seed}, {unit:?}: {sdf:?}"
            );
            compared += ours.len();
        }
    }
    assert!(compared > 1000, "only {compared} points compared");
}

fn example() -> TimedSdf {
    let mut sdf = TimedSdf::default();
    for (name, time) in [("a", 1), ("b", 2), ("c", 2)] {
        let id = sdf.add_actor(name, time);
        sdf.actors[id].at_once = Some(1);
    }
    sdf.add_channel(ActorId(0), 2, ActorId(1), 3, 0);
    sdf.add_channel(ActorId(1), 1, ActorId(2), 2, 0);
    sdf.channels[ChannelId(1)].token_bytes = 5;
    sdf
}

/// `tokens, bytes -> period by cycle`, with what is less than proven.
fn text(found: Result<Sizing, BufferError>) -> String {
    match found {
        Ok(s) => {
            let bound = s.bound.map(|b| format!(" by {b}")).unwrap_or_default();
            let exact = if s.exact {
                "".into()
            } else {
                format!(", at least {}", s.least)
            };
            format!(
                "{} tokens, {} B -> {}{bound}{exact}",
                s.tokens, s.bytes, s.period
            )
        }
        Err(e) => e.to_string(),
    }
}

#[test]
fn modes() {
    let check = |mode: &str, expect: &str| {
        let found = mode
            .parse()
            .and_then(|m| size(&example(), m, SizingLimits::default()));
        assert_eq!(text(found), expect, "{mode}");
    };
    check("min", "6 tokens, 14 B -> 7 by a -> b -> a");
    check("throughput", "10 tokens, 22 B -> 4 by b -> b");
    check("1000", "10 tokens, 22 B -> 4 by b -> b");
    check("9", "9 tokens, 21 B -> 5 by a -> b -> a");
    check("8", "8 tokens, 16 B -> 6 by b -> c -> b");
    check("7", "6 tokens, 14 B -> 7 by a -> b -> a");
    check("5", "the buffers need at least 6 tokens, 5 are allowed");
    check("20 B", "8 tokens, 16 B -> 6 by b -> c -> b");
    check("1KiB", "10 tokens, 22 B -> 4 by b -> b");
    check("13B", "the buffers need at least 14 bytes, 13 are allowed");
    for bad in ["", "most", "-1", "1 KB", "99999999999 GiB"] {
        let expect = format!(
            "`{bad}` is none of `min`, `throughput`, a number of tokens, or of B, KiB, MiB or GiB"
        );
        check(bad, &expect);
    }
}

#[test]
fn a_stopped_search_gives_what_it_has() {
    let few = SizingLimits { steps: 1 };
    let check = |mode, expect: &str| assert_eq!(text(size(&example(), mode, few)), expect);
    check(
        Mode::Throughput(Unit::Tokens),
        "10 tokens, 22 B -> 4 by b -> b, at least 6",
    );
    check(
        Mode::Within(9, Unit::Tokens),
        "9 tokens, 21 B -> 5 by a -> b -> a, at least 6",
    );
    let front = front(&example(), Unit::Tokens, SizingLimits { steps: 3 }).expect("live");
    assert!(!front.complete);
}

#[test]
fn throughput_without_bounds_is_refused() {
    let mut sdf = example();
    sdf.actors.iter_mut().for_each(|a| a.at_once = None);
    assert_eq!(
        size(
            &sdf,
            Mode::Throughput(Unit::Tokens),
            SizingLimits::default()
        ),
        Err(BufferError::Unbounded)
    );
    assert!(
        size(
            &sdf,
            Mode::Within(30, Unit::Tokens),
            SizingLimits::default()
        )
        .is_ok()
    );
}

#[test]
fn readers_share_one_buffer() {
    let mut sdf = example();
    let mut reader = sdf.channels[ChannelId(1)].readers[0];
    reader.to = sdf.add_actor("d", 4);
    sdf.actors[reader.to].at_once = Some(1);
    sdf.channels[ChannelId(1)].readers.push(reader);
    assert_eq!(
        text(size(
            &sdf,
            Mode::Throughput(Unit::Tokens),
            SizingLimits::default()
        )),
        "11 tokens, 27 B -> 4 by b -> b"
    );
}
