//! Exact maximal throughput: the period below which no schedule of the graph can go, and the cycle that says so.
//!
//! In a self-timed run every actor fires as soon as its tokens are there. Its rate settles at the *maximum cycle
//! ratio* of the graph with one node per firing: over all cycles of dependencies, the greatest sum of execution
//! times divided by the iterations that the cycle's initial tokens reach back. Strongly connected components are
//! independent of one another when buffers are unbounded: the slowest one sets the period.
//!
//! A component is not unfolded to one node per firing but K-periodically, as far as the critical cycle asks for it.
//! Sources: Ghamarian et al. 2006, "Throughput Analysis of Synchronous Data Flow Graphs", ACSD; Bodin,
//! Munier-Kordon & de Dinechin 2016, "Optimal and Fast Throughput Evaluation of CSDF", DAC.

mod howard;
mod net;
mod period;
mod sdf;
#[cfg(test)]
pub(crate) mod selftimed;

use std::collections::BTreeSet;

use zbmd_ir::{ActorId, ChannelId, TiVec};

use crate::analysis::AnalysisError;
pub(crate) use net::{Hop, Link, Net, Supply, Verdict};
pub use period::Period;
pub(crate) use period::gcd;
pub use sdf::{TimedActor, TimedChannel, TimedReader, TimedSdf};

/// Why a throughput or a buffer size cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThroughputError {
    /// The graph has no schedule at all.
    #[error(transparent)]
    Analysis(#[from] AnalysisError),
    /// A channel names an actor that is not there.
    #[error("{channel} names {actor} of {actors} actors")]
    Id {
        /// The channel.
        channel: ChannelId,
        /// The actor it names.
        actor: ActorId,
        /// Actors in the graph.
        actors: usize,
    },
    /// A rate is zero or beyond the limit.
    #[error("{channel} has a rate of {rate}, allowed are 1 to {limit}")]
    Rate {
        /// The channel.
        channel: ChannelId,
        /// The rate.
        rate: u64,
        /// The largest allowed.
        limit: u64,
    },
    /// An actor may not fire even once at a time.
    #[error("{actor} may fire 0 times at once")]
    NeverAtOnce {
        /// The actor.
        actor: ActorId,
    },
    /// A cycle can never run, with the tokens or buffers that it has.
    #[error("deadlock: {bound} has too few tokens or too little space")]
    Deadlock {
        /// The cycle.
        bound: Bound,
    },
    /// Times, rates or token counts are too large for exact arithmetic in 128 bits.
    #[error("times and rates around {actor} are too large for exact arithmetic")]
    Overflow {
        /// An actor of the component.
        actor: ActorId,
    },
    /// The critical cycle interleaves too many firings.
    #[error("the critical cycle through {actor} needs {needed} dependencies, {limit} are allowed")]
    TooLarge {
        /// An actor of the cycle.
        actor: ActorId,
        /// Dependencies between firings.
        needed: u64,
        /// The limit.
        limit: u64,
    },
}

/// One step of a cycle: from an actor along a channel to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BoundStep {
    /// The actor whose firing is waited for.
    pub actor: ActorId,
    /// What makes the next actor of the cycle wait for it.
    pub wait: Wait,
}

/// Why one firing waits for the end of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// For tokens on the channel.
    Tokens(ChannelId),
    /// For space in the channel's buffer.
    Space(ChannelId),
    /// For its turn, as so many firings of the actor already run.
    Turn,
}

/// The cycle of dependencies that bounds the period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The cycle's waits from its lowest actor on, each named once however many firings wait like that.
    pub steps: Vec<BoundStep>,
    /// The cycle's distinct actors by name, in order, the first one repeated at the end.
    names: Vec<String>,
}

impl Bound {
    /// The distinct actors of the cycle, in the order in which they are first met.
    pub fn actors(&self) -> Vec<ActorId> {
        let mut actors: Vec<ActorId> = Vec::new();
        for step in &self.steps {
            if !actors.contains(&step.actor) {
                actors.push(step.actor);
            }
        }
        actors
    }
}

impl std::fmt::Display for Bound {
    /// As reports name it: `mix -> pll -> mix`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.names.join(" -> "))
    }
}

/// What [`analyse`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throughput {
    /// Firings of each actor per iteration.
    pub repetition: TiVec<ActorId, u64>,
    /// Shortest time per iteration that any schedule can keep up for ever.
    pub period: Period,
    /// The cycle that bounds it; `None` if there is no cycle, so that the period is 0.
    pub bound: Option<Bound>,
}

/// Exact shortest period of the graph with unbounded buffers.
///
/// Strongly connected components are analysed one by one, each unfolded only as far as its critical cycle asks.
///
/// # Errors
/// See [`ThroughputError`]; [`ThroughputError::Deadlock`] names a cycle without enough initial tokens.
pub fn analyse(sdf: &TimedSdf) -> Result<Throughput, ThroughputError> {
    let mut net = Net::new(sdf, false)?;
    outcome(sdf, &mut net, &[])
}

/// Exact shortest period with bounded buffers: `capacities` in tokens, one per channel (those of channels without a
/// buffer are ignored).
///
/// A firing claims space for its output when it starts and frees that of its input when it ends.
///
/// # Errors
/// See [`ThroughputError`]; [`ThroughputError::Deadlock`] names a cycle of full and empty buffers.
pub fn analyse_bounded(
    sdf: &TimedSdf,
    capacities: &TiVec<ChannelId, u64>,
) -> Result<Throughput, ThroughputError> {
    let mut net = Net::new(sdf, true)?;
    let mut room: Vec<i64> = capacities
        .iter()
        .map(|&c| i64::try_from(c).unwrap_or(i64::MAX / 4))
        .collect();
    room.resize(sdf.channels.len(), 0);
    outcome(sdf, &mut net, &room)
}

fn outcome(sdf: &TimedSdf, net: &mut Net, room: &[i64]) -> Result<Throughput, ThroughputError> {
    let mut worst: Option<(Period, Bound)> = None;
    for verdict in net.verdicts(room)? {
        let bound = bound(sdf, net, &verdict);
        let Some(period) = verdict.period() else {
            return Err(ThroughputError::Deadlock { bound });
        };
        if worst.as_ref().is_none_or(|(known, _)| period > *known) {
            worst = Some((period, bound));
        }
    }
    let (period, bound) = match worst {
        Some((period, bound)) => (period, Some(bound)),
        None => (Period::ZERO, None),
    };
    Ok(Throughput {
        repetition: net.q.clone().into(),
        period,
        bound,
    })
}

/// The cycle in terms of actors and channels, without what repeats.
fn bound(sdf: &TimedSdf, net: &Net, verdict: &Verdict) -> Bound {
    let moves = verdict.hops.iter().any(|h| h.from != h.to);
    let mut seen = BTreeSet::new();
    let mut steps: Vec<BoundStep> = Vec::new();
    // Firings of one actor that follow one another are one step, unless that is the whole cycle.
    for hop in verdict.hops.iter().filter(|h| !moves || h.from != h.to) {
        let wait = hop.link.map_or(Wait::Turn, |link| net.links[link].wait);
        let step = BoundStep {
            actor: hop.from.into(),
            wait,
        };
        if seen.insert(step) {
            steps.push(step);
        }
    }
    if let Some(first) = (0..steps.len()).min_by_key(|&i| (steps[i].actor, i)) {
        steps.rotate_left(first);
    }
    let mut bound = Bound {
        steps,
        names: Vec::new(),
    };
    let actors = bound.actors();
    let name = |&a: &ActorId| sdf.actors[a].name.clone();
    bound.names = actors.iter().chain(actors.first()).map(name).collect();
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(from, produce, to, consume, initial)`.
    type Five = (u32, u64, u32, u64, u64);

    fn sdf(times: &[u64], channels: &[Five]) -> TimedSdf {
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
        let check = |times: &[u64], channels: &[Five], expect: &str| {
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
        let chain: Vec<Five> = (0..12).map(|i| (i, 10, i + 1, 1, 0)).collect();
        let mut graph = sdf(&[3; 13], &chain);
        graph.actors.iter_mut().for_each(|a| a.at_once = Some(2));
        let found = analyse(&graph).expect("no cycles");
        assert_eq!(found.period, Period::from(3 * 1_000_000_000_000 / 2));
        let capacities = graph
            .channels
            .keys()
            .map(|c| graph.least_capacity(c) * 2)
            .collect();
        let found = analyse_bounded(&graph, &capacities).expect("capacities suffice");
        assert_eq!(found.period, Period::from(3 * 1_000_000_000_000 / 2));
    }

    #[test]
    fn bounded_periods_equal_those_of_a_simulation() {
        let (mut live, mut stuck) = (0, 0);
        for seed in 0..3000 {
            let (graph, room) = selftimed::random(seed);
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
}
