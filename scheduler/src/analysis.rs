//! Whole-graph analysis before anything is scheduled: repetition vector and freedom from deadlock.

use std::collections::VecDeque;

use zbmd_ir::math::{gcd, lcm};
use zbmd_ir::{ActorId, ChannelId, Graph, TiVec, limits};

/// Why a graph has no schedule at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnalysisError {
    /// The balance equations have no positive solution.
    #[error(
        "inconsistent rates on {channel}: {writer_firings} firings of {writer} produce {produced} tokens each, \
         {reader_firings} firings of {reader} consume {consumed} each"
    )]
    Inconsistent {
        /// The first channel that breaks the equation.
        channel: ChannelId,
        /// Its writer.
        writer: ActorId,
        /// The reader that disagrees.
        reader: ActorId,
        /// Tokens that the writer produces per firing.
        produced: u64,
        /// Tokens that the reader consumes per firing.
        consumed: u64,
        /// Firings of the writer that the rest of the graph asks for, in lowest terms with `reader_firings`.
        writer_firings: u64,
        /// Firings of the reader that the rest of the graph asks for.
        reader_firings: u64,
    },
    /// A cycle has too few initial tokens for one iteration.
    #[error("deadlock: a cycle of {} actors lacks {missing} initial tokens on {on}", actors.len())]
    Deadlock {
        /// Actors of the cycle, each the writer of the channel at the same index.
        actors: Vec<ActorId>,
        /// Channels of the cycle.
        channels: Vec<ChannelId>,
        /// The channel of the cycle where the fewest more tokens free it.
        on: ChannelId,
        /// How many more initial tokens on `on` free the cycle.
        missing: u64,
    },
    /// A count does not fit.
    #[error("{actor} would fire more than {limit} times in one iteration")]
    Overflow {
        /// The actor whose count overflows.
        actor: ActorId,
        /// The limit.
        limit: u64,
    },
    /// One iteration has so many interleaved firings that its order cannot be enumerated.
    #[error("one iteration needs more than {limit} interleaved calls inside its cycles")]
    TooLong {
        /// The limit.
        limit: u64,
    },
}

/// A dependency of a reader on a writer, with what lies on the channel for the taking: the reader's delay less the
/// part of its window that it never consumes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReaderEdge {
    pub(crate) channel: ChannelId,
    pub(crate) writer: ActorId,
    pub(crate) reader: ActorId,
    pub(crate) produced: u64,
    pub(crate) consumed: u64,
    /// `delay − (window − rate)`: initial tokens of the equivalent graph without windows.
    pub(crate) free: u64,
    /// Whether the kernel updates the channel in place, so that a range of firings needs no order of its own.
    pub(crate) state: bool,
}

/// One edge for each reader, and which of them touch each actor.
/// One edge for each reader, and which of them touch each actor.
#[derive(Debug)]
pub(crate) struct EdgeList {
    pub(crate) all: Vec<ReaderEdge>,
    into: TiVec<ActorId, Vec<u32>>,
    out_of: TiVec<ActorId, Vec<u32>>,
}

impl EdgeList {
    pub(crate) fn of(graph: &Graph) -> Self {
        let mut edges = EdgeList {
            all: Vec::new(),
            into: graph.actors.iter().map(|_| Vec::new()).collect(),
            out_of: graph.actors.iter().map(|_| Vec::new()).collect(),
        };

        for (id, channel) in graph.channels.iter_enumerated() {
            let writer = channel.from.actor;
            let produced = graph.actors[writer].outputs[channel.from.port as usize].rate;
            let state = graph.is_state(id);
            for reader in &channel.readers {
                let port = &graph.actors[reader.to.actor].inputs[reader.to.port as usize];
                let overlap = port.window.saturating_sub(port.rate);
                let index = edges.all.len() as u32;
                edges.into[reader.to.actor].push(index);
                edges.out_of[writer].push(index);
                edges.all.push(ReaderEdge {
                    channel: id,
                    writer,
                    reader: reader.to.actor,
                    produced,
                    consumed: port.rate,
                    free: reader.delay.saturating_sub(overlap),
                    state,
                });
            }
        }
        edges
    }

    /// The edges whose reader is the actor.
    pub(crate) fn edges_into(&self, actor: ActorId) -> impl Iterator<Item = &ReaderEdge> {
        self.into[actor]
            .iter()
            .map(|&index| &self.all[index as usize])
    }
}

/// Firings of an actor relative to the first actor of its component, as a reduced fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RelativeFirings {
    numerator: u128,
    denominator: u128,
}

impl RelativeFirings {
    const ONE: RelativeFirings = RelativeFirings {
        numerator: 1,
        denominator: 1,
    };

    /// Times `factor / divisor`. `None` where numbers become so large that the fractions of a component cannot all
    /// become whole numbers within the limit of firings.
    fn scaled(self, factor: u64, divisor: u64) -> Option<RelativeFirings> {
        let numerator = self.numerator.checked_mul(factor.into())?;
        let denominator = self.denominator.checked_mul(divisor.into())?;
        let common = gcd(numerator, denominator).max(1);
        let reduced = RelativeFirings {
            numerator: numerator / common,
            denominator: denominator / common,
        };
        (reduced.numerator.max(reduced.denominator) <= 1 << 60).then_some(reduced)
    }
}

/// [`RelativeFirings`] of the actors that were reached.
type FiringFractions = TiVec<ActorId, Option<RelativeFirings>>;

fn too_many_firings(actor: ActorId) -> AnalysisError {
    AnalysisError::Overflow {
        actor,
        limit: limits::MAX_FIRINGS,
    }
}

/// Smallest positive q with `q[writer] * produced == q[reader] * consumed` for every reader of every channel; each
/// connected component has its own smallest solution.
///
/// One entry per actor, in firings per iteration. O(actors + readers).
///
/// # Errors
/// [`AnalysisError::Inconsistent`] names the first channel that breaks the equation, [`AnalysisError::Overflow`] an
/// actor with more than [`limits::MAX_FIRINGS`] firings.
///
/// Source: Lee & Messerschmitt 1987, IEEE Trans. Comput. C-36(1).
pub fn repetition(graph: &Graph) -> Result<TiVec<ActorId, u64>, AnalysisError> {
    repetition_over(graph, &EdgeList::of(graph))
}

pub(crate) fn repetition_over(
    graph: &Graph,
    edges: &EdgeList,
) -> Result<TiVec<ActorId, u64>, AnalysisError> {
    let mut fractions: FiringFractions = graph.actors.iter().map(|_| None).collect();
    let mut repetition: TiVec<ActorId, u64> = graph.actors.iter().map(|_| 0).collect();

    for root in graph.actors.keys() {
        if fractions[root].is_none() {
            let component = spread_fractions(root, edges, &mut fractions)?;
            scale_component(&component, &fractions, &mut repetition)?;
        }
    }
    Ok(repetition)
}

/// Finds the firings of all actors that are connected to the root, relative to its own; returns these actors.
fn spread_fractions(
    root: ActorId,
    edges: &EdgeList,
    fractions: &mut FiringFractions,
) -> Result<Vec<ActorId>, AnalysisError> {
    fractions[root] = Some(RelativeFirings::ONE);
    let mut component = vec![root];
    let mut next = 0;

    while let Some(&actor) = component.get(next) {
        next += 1;
        let Some(known) = fractions[actor] else {
            continue;
        };
        // In both directions: the equation of an edge binds both ends.
        for &index in edges.out_of[actor].iter().chain(&edges.into[actor]) {
            let edge = edges.all[index as usize];
            let (other, factor, divisor) = match edge.writer == actor {
                true => (edge.reader, edge.produced, edge.consumed),
                false => (edge.writer, edge.consumed, edge.produced),
            };
            let expected_fraction = known
                .scaled(factor, divisor)
                .ok_or_else(|| too_many_firings(other))?;
            match fractions[other] {
                None => {
                    fractions[other] = Some(expected_fraction);
                    component.push(other);
                }
                Some(found) if found == expected_fraction => {}
                Some(_) => return Err(inconsistent_rates(edge, fractions)),
            }
        }
    }
    Ok(component)
}

/// Turns the fractions of a component into its smallest whole numbers.
fn scale_component(
    component: &[ActorId],
    fractions: &FiringFractions,
    repetition: &mut TiVec<ActorId, u64>,
) -> Result<(), AnalysisError> {
    let known = |&actor: &ActorId| Some((actor, fractions[actor]?));

    let mut common_multiple = 1u128;
    for (actor, fraction) in component.iter().filter_map(known) {
        common_multiple = lcm(common_multiple, fraction.denominator)
            .filter(|&common_multiple| common_multiple < 1 << 100)
            .ok_or_else(|| too_many_firings(actor))?;
    }

    // Whole numbers now; without a common divisor they are the smallest.
    let mut common_divisor = 0u128;
    for (actor, fraction) in component.iter().filter_map(known) {
        let firings = fraction
            .numerator
            .checked_mul(common_multiple / fraction.denominator)
            .ok_or_else(|| too_many_firings(actor))?;
        common_divisor = gcd(common_divisor, firings);
    }

    for (actor, fraction) in component.iter().filter_map(known) {
        let firings =
            fraction.numerator * (common_multiple / fraction.denominator) / common_divisor.max(1);
        repetition[actor] = u64::try_from(firings)
            .ok()
            .filter(|&firings| firings <= limits::MAX_FIRINGS)
            .ok_or_else(|| too_many_firings(actor))?;
    }
    Ok(())
}

fn inconsistent_rates(edge: ReaderEdge, fractions: &FiringFractions) -> AnalysisError {
    let writer = fractions[edge.writer].unwrap_or(RelativeFirings::ONE);
    let reader = fractions[edge.reader].unwrap_or(RelativeFirings::ONE);
    let writer_firings = writer.numerator.saturating_mul(reader.denominator);
    let reader_firings = reader.numerator.saturating_mul(writer.denominator);
    let common_divisor = gcd(writer_firings, reader_firings).max(1);

    AnalysisError::Inconsistent {
        channel: edge.channel,
        writer: edge.writer,
        reader: edge.reader,
        produced: edge.produced,
        consumed: edge.consumed,
        writer_firings: u64::try_from(writer_firings / common_divisor).unwrap_or(u64::MAX),
        reader_firings: u64::try_from(reader_firings / common_divisor).unwrap_or(u64::MAX),
    }
}

/// Calls after which an interleaved order is refused: a graph that needs more is beyond any calendar.
pub(crate) const MAX_CALLS: u64 = 1 << 26;

/// Self-timed abstract run of one iteration, firing as many times at once as the tokens allow.
pub(crate) struct TokenRun<'a> {
    edges: &'a EdgeList,
    /// Firings still to do; members that are through and all others have 0.
    left: TiVec<ActorId, u64>,
    fired: TiVec<ActorId, u64>,
    /// Extra tokens put on edges to find out what would free a deadlock.
    extra: Vec<u64>,
    queue: VecDeque<ActorId>,
    queued: TiVec<ActorId, bool>,
}

impl<'a> TokenRun<'a> {
    /// A run in which nobody takes part yet.
    pub(crate) fn idle(edges: &'a EdgeList, actors: usize) -> Self {
        TokenRun {
            edges,
            fired: vec![0; actors].into(),
            queued: vec![false; actors].into(),
            left: vec![0; actors].into(),
            extra: vec![0; edges.all.len()],
            queue: VecDeque::new(),
        }
    }

    /// Starts afresh with `firings(a)` firings of each member; edges from other actors count as satisfied.
    pub(crate) fn begin(
        &mut self,
        members: impl Iterator<Item = ActorId> + Clone,
        firings: impl Fn(ActorId) -> u64,
    ) {
        for actor in members.clone() {
            self.left[actor] = firings(actor);
            self.fired[actor] = 0;
        }
        for actor in members {
            self.enqueue(actor);
        }
    }

    /// Takes the members out again, in time proportional to their number.
    pub(crate) fn end(&mut self, members: impl Iterator<Item = ActorId>) {
        for actor in members {
            self.left[actor] = 0;
            self.fired[actor] = 0;
            self.queued[actor] = false;
        }
        self.queue.clear();
    }

    fn enqueue(&mut self, actor: ActorId) {
        if self.left[actor] > 0 && !self.queued[actor] {
            self.queued[actor] = true;
            self.queue.push_back(actor);
        }
    }

    /// Firings of the edge's reader that its tokens allow in all, from the start of the run.
    fn allowed_firings(&self, index: u32) -> u64 {
        let edge = &self.edges.all[index as usize];
        let takes_part = self.left[edge.writer] > 0 || self.fired[edge.writer] > 0;
        if !takes_part || (edge.state && edge.writer == edge.reader) {
            return u64::MAX;
        }
        let firings = self.written_tokens(index) / u128::from(edge.consumed.max(1));
        u64::try_from(firings).unwrap_or(u64::MAX)
    }

    /// Tokens that the edge's reader has had to its disposal since the start of the run.
    fn written_tokens(&self, index: u32) -> u128 {
        let edge = &self.edges.all[index as usize];
        let produced = u128::from(self.fired[edge.writer]) * u128::from(edge.produced);
        produced + u128::from(edge.free) + u128::from(self.extra[index as usize])
    }

    /// Runs until nothing can fire, telling `call` of each call (actor, firings). Stops early when `call` says no.
    /// Returns whether it ran to its end.
    pub(crate) fn run(&mut self, mut call: impl FnMut(ActorId, u64) -> bool) -> bool {
        while let Some(actor) = self.queue.pop_front() {
            self.queued[actor] = false;
            let allowed = self.edges.into[actor]
                .iter()
                .map(|&index| self.allowed_firings(index))
                .min()
                .unwrap_or(u64::MAX);
            let count = allowed
                .saturating_sub(self.fired[actor])
                .min(self.left[actor]);
            // It is enqueued again when one of its writers has fired.
            if count == 0 {
                continue;
            }

            if !call(actor, count) {
                return false;
            }
            self.fired[actor] += count;
            self.left[actor] -= count;
            let edges = self.edges;
            for &index in &edges.out_of[actor] {
                self.enqueue(edges.all[index as usize].reader);
            }
        }
        true
    }

    /// The first actor that still has firings to do.
    fn stuck_actor(&self) -> Option<ActorId> {
        self.left
            .iter_enumerated()
            .find(|(_, left)| **left > 0)
            .map(|(actor, _)| actor)
    }

    /// An edge that keeps a stuck actor from its next firing.
    fn blocking_edge(&self, actor: ActorId) -> Option<u32> {
        self.edges.into[actor]
            .iter()
            .copied()
            .find(|&index| self.allowed_firings(index) <= self.fired[actor])
    }

    /// Tokens that the edge's reader lacks for its next firing.
    fn missing_tokens(&self, index: u32) -> u64 {
        let edge = &self.edges.all[index as usize];
        let needed = (u128::from(self.fired[edge.reader]) + 1) * u128::from(edge.consumed);
        let missing = needed.saturating_sub(self.written_tokens(index));
        u64::try_from(missing).unwrap_or(u64::MAX)
    }

    /// The cycle of edges that blocks `actor`, found by walking from reader to writer.
    fn blocking_cycle(&self, actor: ActorId) -> Vec<u32> {
        let mut position: TiVec<ActorId, Option<usize>> = vec![None; self.left.len()].into();
        let mut edge_path = Vec::new();
        let mut current_actor = actor;

        while position[current_actor].is_none() {
            position[current_actor] = Some(edge_path.len());
            // A stuck actor that no edge blocks is in no cycle.
            let Some(index) = self.blocking_edge(current_actor) else {
                return Vec::new();
            };
            edge_path.push(index);
            current_actor = self.edges.all[index as usize].writer;
        }

        // What lies before the first actor that was met again only leads to the cycle.
        let mut closed_cycle = edge_path.split_off(position[current_actor].unwrap_or(0));
        closed_cycle.reverse();
        closed_cycle
    }
}

/// Checks that one iteration can run to its end.
///
/// # Errors
/// [`AnalysisError::Deadlock`] names every actor and channel of a blocked cycle and how many more initial tokens on
/// which channel free it; [`AnalysisError::TooLong`] if the cycles interleave beyond enumeration.
pub fn check_deadlock(graph: &Graph, q: &TiVec<ActorId, u64>) -> Result<(), AnalysisError> {
    check_deadlock_over(&EdgeList::of(graph), q)
}

pub(crate) fn check_deadlock_over(
    edges: &EdgeList,
    repetition: &TiVec<ActorId, u64>,
) -> Result<(), AnalysisError> {
    let mut run = TokenRun::idle(edges, repetition.len());
    let mut call_count = 0u64;
    let mut count_call = |_, _| {
        call_count += 1;
        call_count <= MAX_CALLS
    };
    run.begin(repetition.keys(), |actor| repetition[actor]);
    if !run.run(&mut count_call) {
        return Err(AnalysisError::TooLong { limit: MAX_CALLS });
    }
    let Some(first_stuck) = run.stuck_actor() else {
        return Ok(());
    };

    let blocked_cycle = run.blocking_cycle(first_stuck);
    let cheapest_edge = blocked_cycle
        .iter()
        .min_by_key(|&&index| (run.missing_tokens(index), index));
    let Some(&cheapest_edge) = cheapest_edge else {
        return Err(AnalysisError::TooLong { limit: MAX_CALLS });
    };

    // Feed the cheapest edge of the cycle just as much as it asks for, until its reader gets through.
    let fed_edge = &edges.all[cheapest_edge as usize];
    let fed_reader = fed_edge.reader;
    while run.left[fed_reader] > 0 && run.allowed_firings(cheapest_edge) <= run.fired[fed_reader] {
        run.extra[cheapest_edge as usize] += run.missing_tokens(cheapest_edge);
        run.enqueue(fed_reader);
        if !run.run(&mut count_call) {
            break;
        }
    }

    let cycle_edges = || {
        blocked_cycle
            .iter()
            .map(|&index| &edges.all[index as usize])
    };
    Err(AnalysisError::Deadlock {
        actors: cycle_edges().map(|edge| edge.writer).collect(),
        channels: cycle_edges().map(|edge| edge.channel).collect(),
        on: fed_edge.channel,
        missing: run.extra[cheapest_edge as usize],
    })
}

#[cfg(test)]
mod tests;
