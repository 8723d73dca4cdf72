//! The order with the fewest tokens.

use zbmd_ir::{ActorId, ChannelId, TiVec};

use super::OrderError;
use crate::buffers::{Limits, least_live};
use crate::throughput::{Net, Supply, ThroughputError, TimedSdf};

/// Calls after which an order is refused.
const MAX_CALLS: u64 = 1 << 26;

/// What [`least_buffers`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeastBuffers {
    /// Calls in order: the actor and how often it fires. Every actor fires as often as in one iteration.
    pub calls: Vec<(ActorId, u64)>,
    /// Places that each channel needs, in tokens; 0 for channels without a buffer.
    pub capacities: TiVec<ChannelId, u64>,
    /// Sum of the capacities.
    pub tokens: u64,
    /// No order needs less.
    pub least: u64,
    /// Whether `tokens` is proven to be the least, i.e. equal to `least`.
    pub exact: bool,
}

/// The order of one iteration on one device that needs the fewest tokens, summed over the channels' buffers.
///
/// Exact: capacities allow an order of single firings just when they do not deadlock, and then any order that never
/// overfills a buffer gets through, because firings do not take tokens or space from one another. So this searches
/// for the least live capacities (see [`crate::buffers`]); only if `limits` stop the search, the capacities found
/// are not proven to be the least. Within the capacities, the actor closest to the outputs fires as often as it can.
///
/// # Errors
/// [`OrderError::Throughput`] if the graph has no schedule, [`OrderError::TooLong`] beyond 2^26 calls.
pub fn least_buffers(sdf: &TimedSdf, limits: Limits) -> Result<LeastBuffers, OrderError> {
    let least = least_live(sdf, limits)?;
    let net = Net::new(sdf, true)?;
    let calls = drain(&net, &least.room)?;
    let capacities: TiVec<ChannelId, u64> = least.room.iter().map(|&r| r as u64).collect();
    let tokens = capacities
        .iter()
        .fold(0u64, |sum, &c| sum.saturating_add(c));
    Ok(LeastBuffers {
        calls,
        capacities,
        tokens,
        least: least.bound,
        exact: least.exact,
    })
}

/// Fires one iteration within the capacities.
fn drain(net: &Net, room: &[i64]) -> Result<Vec<(ActorId, u64)>, OrderError> {
    let actors = net.q.len();
    let mut tokens: Vec<i64> = (0..net.links.len()).map(|l| net.initial(l, room)).collect();
    let mut into = vec![Vec::new(); actors];
    let mut out = vec![Vec::new(); actors];
    for (l, link) in net.links.iter().enumerate() {
        into[link.to].push(l);
        out[link.from].push(l);
    }
    let rank = ranks(net);
    let mut left = net.q.clone();
    // Actors that may be able to fire; the one with the greatest rank goes first.
    let mut ready: std::collections::BTreeSet<(usize, usize)> =
        (0..actors).map(|a| (rank[a], a)).collect();
    let mut calls: Vec<(ActorId, u64)> = Vec::new();
    while let Some((_, a)) = ready.pop_last() {
        let lasts = |&l: &usize| {
            let link = &net.links[l];
            // What a firing takes from a link and gives back to it at its end lasts for ever, if it is enough once.
            let (each, have) = match link.from == a {
                true => (0, tokens[l]),
                false => (link.consume, tokens[l]),
            };
            match each {
                0 => {
                    if have >= link.consume {
                        u64::MAX
                    } else {
                        0
                    }
                }
                _ => (have.max(0) / each) as u64,
            }
        };
        let count = into[a]
            .iter()
            .map(lasts)
            .min()
            .unwrap_or(u64::MAX)
            .min(left[a]);
        if count == 0 {
            continue;
        }
        for &l in into[a].iter().filter(|&&l| net.links[l].from != a) {
            tokens[l] -= net.links[l].consume * count as i64;
            ready.insert((rank[net.links[l].from], net.links[l].from));
        }
        for &l in out[a].iter().filter(|&&l| net.links[l].to != a) {
            tokens[l] += net.links[l].produce * count as i64;
            ready.insert((rank[net.links[l].to], net.links[l].to));
        }
        left[a] -= count;
        match calls.last_mut().filter(|c| c.0 == a.into()) {
            Some(last) => last.1 += count,
            None => calls.push((a.into(), count)),
        }
        if calls.len() as u64 > MAX_CALLS {
            return Err(OrderError::TooLong { limit: MAX_CALLS });
        }
        ready.insert((rank[a], a));
    }
    match left.iter().position(|&l| l > 0) {
        // The search only hands out live capacities.
        Some(a) => Err(ThroughputError::Overflow { actor: a.into() }.into()),
        None => Ok(calls),
    }
}

/// Position of each actor in an order along the channels that carry no initial tokens, as far as there is one.
fn ranks(net: &Net) -> Vec<usize> {
    let forward =
        |l: &&crate::throughput::Link| matches!(l.supply, Supply::Fixed(0)) && l.from != l.to;
    let mut waits = vec![0usize; net.q.len()];
    let mut out = vec![Vec::new(); net.q.len()];
    for link in net.links.iter().filter(forward) {
        waits[link.to] += 1;
        out[link.from].push(link.to);
    }
    let mut order: Vec<usize> = (0..waits.len()).filter(|&a| waits[a] == 0).collect();
    let mut rank = vec![0; waits.len()];
    let mut next = 0;
    while next < order.len() {
        let a = order[next];
        rank[a] = next;
        next += 1;
        for &to in &out[a] {
            waits[to] -= 1;
            if waits[to] == 0 {
                order.push(to);
            }
        }
    }
    rank
}

#[cfg(test)]
mod tests {
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
            let found = least_buffers(sdf, Limits::default()).expect("it runs");
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
        let error = least_buffers(&ring, Limits::default()).expect_err("no token on the ring");
        assert_eq!(
            error.to_string(),
            "deadlock: n0 -> n1 -> n0 has too few tokens or too little space"
        );
    }
}
