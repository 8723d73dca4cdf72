//! Exact maximal throughput: the period below which no schedule of the graph can go, and the cycle that says so.
//!
//! In a self-timed run every actor fires as soon as its tokens are there. Its rate settles at the *maximum cycle
//! ratio* of the graph with one node per firing: over all cycles of dependencies, the greatest sum of execution
//! times divided by the iterations that the cycle's initial tokens reach back. Strongly connected components are
//! independent of one another when buffers are unbounded: the slowest one sets the period.
//!
//! A component is not unfolded to one node per firing but K-periodically, as far as the critical cycle asks for it.
//! Sources: Ghamarian et al. 2006, "Throughput Analysis of Synchronous Data LinkState Graphs", ACSD; Bodin,
//! Munier-Kordon & de Dinechin 2016, "Optimal and Fast Throughput Evaluation of CSDF", DAC.

mod howard;
mod net;
mod period;
mod phases;
mod sdf;
#[cfg(test)]
pub(crate) mod selftimed;

use std::collections::BTreeSet;

use zbmd_ir::{ActorId, ChannelId, TiVec};

use crate::analysis::AnalysisError;
pub(crate) use net::{CriticalCycle, CycleHop, DependencyNet, TokenSupply};
pub use period::Period;
pub use sdf::{TimedActor, TimedChannel, TimedReader, TimedSdf};

/// Why a throughput or a buffer size cannot be told.
#[expect(missing_docs, reason = "fields that say what their names say")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThroughputError {
    /// The graph has no schedule at all.
    #[error(transparent)]
    Analysis(#[from] AnalysisError),
    /// A channel names an actor that is not there.
    #[error("{channel} names {actor} of {actors} actors")]
    Id {
        channel: ChannelId,
        /// The actor it names.
        actor: ActorId,
        /// Actors in the graph.
        actors: usize,
    },
    /// A rate is zero or beyond the limit.
    #[error("{channel} has a rate of {rate}, allowed are 1 to {limit}")]
    Rate {
        channel: ChannelId,
        rate: u64,
        /// The largest allowed.
        limit: u64,
    },
    /// The rates of an actor's phases do not fit its cycle.
    #[error(
        "{channel} has {found} phases of {tokens} tokens in all, its actor has {phases} of {cycle_tokens} tokens"
    )]
    Phases {
        channel: ChannelId,
        /// Phases that have a rate.
        found: usize,
        /// Phases of the actor.
        phases: usize,
        /// Tokens of all phases.
        tokens: u64,
        /// Tokens of a cycle.
        cycle_tokens: u64,
    },
    /// An actor may not fire even once at a time.
    #[error("{actor} may fire 0 times at once")]
    NeverAtOnce { actor: ActorId },
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
    /// Firings of each actor per iteration; of one with phases, its cycles.
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
    let mut net = DependencyNet::new(sdf, false)?;
    find_throughput(sdf, &mut net, &[])
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
    let mut net = DependencyNet::new(sdf, true)?;
    let mut room: Vec<i64> = capacities
        .iter()
        .map(|&capacity| i64::try_from(capacity).unwrap_or(i64::MAX / 4))
        .collect();
    // Channels without a capacity have no places.
    room.resize(sdf.channels.len(), 0);
    find_throughput(sdf, &mut net, &room)
}

/// The longest period of all components, and its cycle.
fn find_throughput(
    sdf: &TimedSdf,
    net: &mut DependencyNet,
    room: &[i64],
) -> Result<Throughput, ThroughputError> {
    let mut period = Period::ZERO;
    let mut bound: Option<Bound> = None;

    for cycle in net.critical_cycles(room)? {
        let cycle_bound = describe_cycle(sdf, net, &cycle);
        let Some(cycle_period) = cycle.period() else {
            return Err(ThroughputError::Deadlock { bound: cycle_bound });
        };
        if bound.is_none() || cycle_period > period {
            period = cycle_period;
            bound = Some(cycle_bound);
        }
    }
    Ok(Throughput {
        repetition: net.cycles.clone().into(),
        period,
        bound,
    })
}

/// The cycle in terms of actors and channels, without what repeats.
fn describe_cycle(sdf: &TimedSdf, net: &DependencyNet, cycle: &CriticalCycle) -> Bound {
    let has_moves = cycle.hops.iter().any(|hop| hop.from != hop.to);
    let mut seen = BTreeSet::new();
    let mut steps: Vec<BoundStep> = Vec::new();
    for hop in &cycle.hops {
        // Firings of one actor that follow one another are one step, unless that is the whole cycle.
        if has_moves && hop.from == hop.to {
            continue;
        }
        let step = BoundStep {
            actor: hop.from.into(),
            wait: hop.link.map_or(Wait::Turn, |link| net.links[link].wait),
        };
        if seen.insert(step) {
            steps.push(step);
        }
    }

    let lowest = (0..steps.len()).min_by_key(|&index| (steps[index].actor, index));
    if let Some(lowest) = lowest {
        steps.rotate_left(lowest);
    }
    let mut bound = Bound {
        steps,
        names: Vec::new(),
    };
    let actors = bound.actors();
    let closed = actors.iter().chain(actors.first());
    bound.names = closed
        .map(|&actor| sdf.actors[actor].name.clone())
        .collect();
    bound
}

#[cfg(test)]
mod tests;
