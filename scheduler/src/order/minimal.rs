//! The order with the fewest tokens.

use std::collections::BTreeSet;

use zbmd_ir::{ActorId, ChannelId, TiVec};

use super::OrderError;
use crate::buffers::{SizingLimits, min_live_capacities};
use crate::throughput::{DependencyNet, ThroughputError, TimedSdf, TokenSupply};

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
pub fn least_buffers(sdf: &TimedSdf, limits: SizingLimits) -> Result<LeastBuffers, OrderError> {
    let live = min_live_capacities(sdf, limits)?;
    let net = DependencyNet::new(sdf, true)?;
    let calls = order_within(&net, &live.room)?;
    let places = live.room.iter().map(|&places| places as u64);
    let capacities: TiVec<ChannelId, u64> = places.collect();
    let tokens = capacities.iter().copied().fold(0, u64::saturating_add);

    Ok(LeastBuffers {
        calls,
        capacities,
        tokens,
        least: live.bound,
        exact: live.exact,
    })
}

/// Fires one iteration within the capacities.
fn order_within(net: &DependencyNet, room: &[i64]) -> Result<Vec<(ActorId, u64)>, OrderError> {
    let actors = net.repetition.len();
    let links = 0..net.links.len();
    let mut run = LinkRun {
        net,
        tokens: links.map(|link| net.initial(link, room)).collect(),
        into: vec![Vec::new(); actors],
        out_of: vec![Vec::new(); actors],
        left: net.repetition.clone(),
    };
    for (index, link) in net.links.iter().enumerate() {
        run.into[link.to].push(index);
        run.out_of[link.from].push(index);
    }

    // Actors that may be able to fire; the one with the greatest rank goes first.
    let rank_of = rank_actors(net);
    let mut ready: BTreeSet<(usize, usize)> =
        (0..actors).map(|actor| (rank_of[actor], actor)).collect();
    let mut calls: Vec<(ActorId, u64)> = Vec::new();
    while let Some((rank, actor)) = ready.pop_last() {
        let count = run.possible_firings(actor);
        if count == 0 {
            continue;
        }
        // Space for its writers, tokens for its readers.
        for neighbour in run.fire(actor, count) {
            ready.insert((rank_of[neighbour], neighbour));
        }
        ready.insert((rank, actor));

        // Calls of one actor in a row are one.
        match calls.last_mut().filter(|last| last.0 == actor.into()) {
            Some(last) => last.1 += count,
            None => calls.push((actor.into(), count)),
        }
        if calls.len() as u64 > MAX_CALLS {
            return Err(OrderError::TooLong { limit: MAX_CALLS });
        }
    }

    match run.left.iter().position(|&left| left > 0) {
        // The search only hands out live capacities.
        Some(actor) => Err(ThroughputError::Overflow {
            actor: actor.into(),
        }
        .into()),
        None => Ok(calls),
    }
}

/// An iteration under way.
struct LinkRun<'a> {
    net: &'a DependencyNet,
    /// Tokens on each link.
    tokens: Vec<i64>,
    /// Links into each actor.
    into: Vec<Vec<usize>>,
    out_of: Vec<Vec<usize>>,
    /// Firings of each actor still to do.
    left: Vec<u64>,
}

impl LinkRun<'_> {
    /// How often an actor can fire in a row now.
    fn possible_firings(&self, actor: usize) -> u64 {
        let fired = self.fired(actor);
        let allowed = self.into[actor].iter().map(|&index| {
            let link = &self.net.links[index];
            let tokens = self.tokens[index];
            match link.consume.every_firing() {
                // What a firing takes from a link and gives back to it at its end lasts for ever, if it is enough once.
                Some(rate) if link.is_given_back() && tokens >= rate => u64::MAX,
                Some(_) if link.is_given_back() => 0,
                Some(rate) => (tokens.max(0) / rate) as u64,
                // Phase by phase.
                None => u64::from(tokens >= link.consume.of(fired)),
            }
        });
        allowed.min().unwrap_or(u64::MAX).min(self.left[actor])
    }

    fn fired(&self, actor: usize) -> i64 {
        (self.net.repetition[actor] - self.left[actor]) as i64
    }

    /// Fires an actor; returns the actors that may be able to fire more often after that.
    fn fire(&mut self, actor: usize, count: u64) -> Vec<usize> {
        let mut neighbours = Vec::new();
        let before = self.fired(actor);
        self.left[actor] -= count;
        let after = self.fired(actor);

        for &index in &self.into[actor] {
            let link = &self.net.links[index];
            if !link.is_given_back() {
                self.tokens[index] -= link.consume.between(before, after);
                neighbours.push(link.from);
            }
        }
        for &index in &self.out_of[actor] {
            let link = &self.net.links[index];
            if !link.is_given_back() {
                self.tokens[index] += link.produce.between(before, after);
                neighbours.push(link.to);
            }
        }
        neighbours
    }
}

/// Position of each actor in an order along the channels that carry no initial tokens, as far as there is one.
fn rank_actors(net: &DependencyNet) -> Vec<usize> {
    let actors = net.repetition.len();
    let mut waiting_for = vec![0usize; actors];
    let mut readers_of = vec![Vec::new(); actors];
    for link in &net.links {
        if matches!(link.supply, TokenSupply::Fixed(0)) && link.from != link.to {
            waiting_for[link.to] += 1;
            readers_of[link.from].push(link.to);
        }
    }

    let mut order: Vec<usize> = (0..actors)
        .filter(|&actor| waiting_for[actor] == 0)
        .collect();
    let mut rank_of = vec![0; actors];
    let mut next = 0;
    while let Some(&actor) = order.get(next) {
        rank_of[actor] = next;
        next += 1;
        for &reader in &readers_of[actor] {
            waiting_for[reader] -= 1;
            if waiting_for[reader] == 0 {
                order.push(reader);
            }
        }
    }
    rank_of
}

#[cfg(test)]
mod tests;
