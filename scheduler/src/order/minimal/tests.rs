//! Fewest tokens of small graphs, checked by replay.

use super::*;

fn chain(rates: &[(u64, u64)]) -> TimedSdf {
    let mut sdf = TimedSdf::default();
    for i in 0..=rates.len() {
        sdf.add_actor(&format!("n{i}"), 1);
    }
    for (i, &(produce, consume)) in rates.iter().enumerate() {
        sdf.add_channel(i.into(), produce, (i + 1).into(), consume, 0);
    }
    sdf
}

/// Replays the calls: every token is there before it is read, and the buffers hold just what is claimed.
fn replay(sdf: &TimedSdf, found: &LeastBuffers) {
    let mut fired = vec![0u64; sdf.actors.len()];
    let mut peak = vec![0u64; sdf.channels.len()];
    for &(actor, count) in &found.calls {
        for _ in 0..count {
            fired[actor.index()] += 1;
            for (id, ch) in sdf.channels.iter_enumerated() {
                let written = fired[ch.from.index()] * ch.produce;
                for r in ch.readers.iter().filter(|r| r.to != ch.from) {
                    // What is read by this very firing still takes its space.
                    let before = fired[r.to.index()] - u64::from(r.to == actor);
                    let read = before * r.consume;
                    let held = (written + r.free + r.overlap).checked_sub(read);
                    let held = held.expect("reads only what is there");
                    peak[id.index()] = peak[id.index()].max(held);
                    let after = fired[r.to.index()] * r.consume;
                    assert!(after <= written + r.free, "{actor} reads what {id} lacks");
                }
            }
        }
    }
    assert_eq!(fired, sdf.repetition().expect("consistent").raw);
    for (id, &peak) in peak.iter().enumerate() {
        assert!(peak <= found.capacities.raw[id], "ch{id}: {peak} tokens");
    }
}

#[test]
fn least_tokens() {
    let check = |sdf: &TimedSdf, tokens: u64| {
        let found = least_buffers(sdf, SizingLimits::default()).expect("it runs");
        assert_eq!(
            (found.tokens, found.least, found.exact),
            (tokens, tokens, true)
        );
        replay(sdf, &found);
    };
    check(&chain(&[(1, 1), (2, 3), (2, 7), (8, 7), (5, 1)]), 32);
    check(&chain(&[(2, 3), (1, 2)]), 6);
    check(&chain(&[]), 0);
    // A diamond whose branches disagree: one branch has to hold what the other gathers.
    let mut diamond = chain(&[(1, 1), (1, 1)]);
    diamond.add_channel(ActorId(0), 1, ActorId(2), 1, 0);
    check(&diamond, 3);
    let mut diamond = chain(&[(1, 4), (4, 1)]);
    diamond.add_channel(ActorId(0), 1, ActorId(2), 1, 0);
    check(&diamond, 12);
    // A window of 5 tokens that moves by 2 holds 3 more.
    let mut window = chain(&[(1, 2)]);
    window.channels[ChannelId(0)].readers[0].overlap = 3;
    check(&window, 5);
}

#[test]
fn deadlocks_are_named() {
    let mut ring = chain(&[(1, 1)]);
    ring.add_channel(ActorId(1), 1, ActorId(0), 1, 0);
    let error = least_buffers(&ring, SizingLimits::default()).expect_err("no token on the ring");
    assert_eq!(
        error.to_string(),
        "deadlock: n0 -> n1 -> n0 has too few tokens or too little space"
    );
}
