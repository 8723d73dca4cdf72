//! Whole-graph analysis before anything is scheduled: repetition vector and freedom from deadlock.

use std::collections::VecDeque;

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
pub(crate) struct Edge {
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
#[derive(Debug)]
pub(crate) struct Edges {
    pub(crate) all: Vec<Edge>,
    pub(crate) into: TiVec<ActorId, Vec<u32>>,
    pub(crate) out_of: TiVec<ActorId, Vec<u32>>,
}

impl Edges {
    pub(crate) fn of(graph: &Graph) -> Self {
        let mut edges = Edges {
            all: Vec::new(),
            into: graph.actors.iter().map(|_| Vec::new()).collect(),
            out_of: graph.actors.iter().map(|_| Vec::new()).collect(),
        };
        for (channel, ch) in graph.channels.iter_enumerated() {
            let state = graph.is_state(channel);
            for reader in &ch.readers {
                let port = &graph.actors[reader.to.actor].inputs[reader.to.port as usize];
                let index = edges.all.len() as u32;
                edges.into[reader.to.actor].push(index);
                edges.out_of[ch.from.actor].push(index);
                edges.all.push(Edge {
                    channel,
                    writer: ch.from.actor,
                    reader: reader.to.actor,
                    produced: graph.actors[ch.from.actor].outputs[ch.from.port as usize].rate,
                    consumed: port.rate,
                    free: reader
                        .delay
                        .saturating_sub(port.window.saturating_sub(port.rate)),
                    state,
                });
            }
        }
        edges
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
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
    repetition_over(graph, &Edges::of(graph))
}

pub(crate) fn repetition_over(
    graph: &Graph,
    edges: &Edges,
) -> Result<TiVec<ActorId, u64>, AnalysisError> {
    // Firings relative to the component's root, as a reduced fraction.
    let mut fraction: TiVec<ActorId, Option<(u128, u128)>> =
        graph.actors.iter().map(|_| None).collect();
    let mut q: TiVec<ActorId, u64> = graph.actors.iter().map(|_| 0).collect();
    let too_many = |actor| AnalysisError::Overflow {
        actor,
        limit: limits::MAX_FIRINGS,
    };
    for root in graph.actors.keys() {
        if fraction[root].is_some() {
            continue;
        }
        fraction[root] = Some((1, 1));
        let mut component = vec![root];
        let mut next = 0;
        while next < component.len() {
            let actor = component[next];
            next += 1;
            let Some((num, den)) = fraction[actor] else {
                continue;
            };
            for &e in edges.out_of[actor].iter().chain(&edges.into[actor]) {
                let edge = edges.all[e as usize];
                let (other, mul, div) = if edge.writer == actor {
                    (edge.reader, edge.produced, edge.consumed)
                } else {
                    (edge.writer, edge.consumed, edge.produced)
                };
                let (n, d) = (
                    num.checked_mul(u128::from(mul)),
                    den.checked_mul(u128::from(div)),
                );
                let (Some(n), Some(d)) = (n, d) else {
                    return Err(too_many(other));
                };
                let g = gcd(n, d).max(1);
                let value = (n / g, d / g);
                // Fractions this far apart cannot become whole numbers within the limit of firings.
                if value.0.max(value.1) > 1 << 60 {
                    return Err(too_many(other));
                }
                match fraction[other] {
                    None => {
                        fraction[other] = Some(value);
                        component.push(other);
                    }
                    Some(known) if known == value => {}
                    Some(_) => return Err(inconsistent(edge, &fraction)),
                }
            }
        }
        scale(&component, &fraction, &mut q)?;
    }
    Ok(q)
}

/// Turns the fractions of a component into its smallest whole numbers.
fn scale(
    component: &[ActorId],
    fraction: &TiVec<ActorId, Option<(u128, u128)>>,
    q: &mut TiVec<ActorId, u64>,
) -> Result<(), AnalysisError> {
    let (mut lcm, mut divisor) = (1u128, 0u128);
    let over = |actor| AnalysisError::Overflow {
        actor,
        limit: limits::MAX_FIRINGS,
    };
    for &actor in component {
        let Some((_, den)) = fraction[actor] else {
            continue;
        };
        lcm = (lcm / gcd(lcm, den))
            .checked_mul(den)
            .filter(|&l| l < 1 << 100)
            .ok_or_else(|| over(actor))?;
    }
    for &actor in component {
        let Some((num, den)) = fraction[actor] else {
            continue;
        };
        let firings = num.checked_mul(lcm / den).ok_or_else(|| over(actor))?;
        divisor = gcd(divisor, firings);
    }
    for &actor in component {
        let Some((num, den)) = fraction[actor] else {
            continue;
        };
        let firings = num * (lcm / den) / divisor.max(1);
        q[actor] = u64::try_from(firings)
            .ok()
            .filter(|&f| f <= limits::MAX_FIRINGS)
            .ok_or_else(|| over(actor))?;
    }
    Ok(())
}

fn inconsistent(edge: Edge, fraction: &TiVec<ActorId, Option<(u128, u128)>>) -> AnalysisError {
    let (wn, wd) = fraction[edge.writer].unwrap_or((1, 1));
    let (rn, rd) = fraction[edge.reader].unwrap_or((1, 1));
    let (w, r) = (wn.saturating_mul(rd), rn.saturating_mul(wd));
    let g = gcd(w, r).max(1);
    let whole = |v: u128| u64::try_from(v / g).unwrap_or(u64::MAX);
    AnalysisError::Inconsistent {
        channel: edge.channel,
        writer: edge.writer,
        reader: edge.reader,
        produced: edge.produced,
        consumed: edge.consumed,
        writer_firings: whole(w),
        reader_firings: whole(r),
    }
}

/// Calls after which an interleaved order is refused: a graph that needs more is beyond any calendar.
pub(crate) const MAX_CALLS: u64 = 1 << 26;

/// Self-timed abstract run of one iteration, firing as many times at once as the tokens allow.
pub(crate) struct TokenRun<'a> {
    edges: &'a Edges,
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
    pub(crate) fn idle(edges: &'a Edges, actors: usize) -> Self {
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
            (self.left[actor], self.fired[actor], self.queued[actor]) = (0, 0, false);
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
    fn allowed(&self, index: u32) -> u64 {
        let edge = &self.edges.all[index as usize];
        let takes_part = self.left[edge.writer] > 0 || self.fired[edge.writer] > 0;
        if !takes_part || (edge.state && edge.writer == edge.reader) {
            return u64::MAX;
        }
        let written = u128::from(self.fired[edge.writer]) * u128::from(edge.produced);
        let tokens = written + u128::from(edge.free) + u128::from(self.extra[index as usize]);
        u64::try_from(tokens / u128::from(edge.consumed.max(1))).unwrap_or(u64::MAX)
    }

    /// Runs until nothing can fire, telling `call` of each call (actor, firings). Stops early when `call` says no.
    /// Returns whether it ran to its end.
    pub(crate) fn run(&mut self, mut call: impl FnMut(ActorId, u64) -> bool) -> bool {
        while let Some(actor) = self.queue.pop_front() {
            self.queued[actor] = false;
            let allowed = self.edges.into[actor]
                .iter()
                .map(|&e| self.allowed(e))
                .min()
                .unwrap_or(u64::MAX);
            let count = allowed
                .saturating_sub(self.fired[actor])
                .min(self.left[actor]);
            if count == 0 {
                continue;
            }
            if !call(actor, count) {
                return false;
            }
            self.fired[actor] += count;
            self.left[actor] -= count;
            for i in 0..self.edges.out_of[actor].len() {
                let edge = self.edges.out_of[actor][i];
                self.enqueue(self.edges.all[edge as usize].reader);
            }
        }
        true
    }

    fn stuck(&self) -> Option<ActorId> {
        self.left
            .iter_enumerated()
            .find(|(_, left)| **left > 0)
            .map(|(a, _)| a)
    }

    /// An edge that keeps a stuck actor from its next firing.
    fn blocking(&self, actor: ActorId) -> Option<u32> {
        self.edges.into[actor]
            .iter()
            .copied()
            .find(|&e| self.allowed(e) <= self.fired[actor])
    }

    /// Tokens that the edge's reader lacks for its next firing.
    fn lacking(&self, index: u32) -> u64 {
        let edge = &self.edges.all[index as usize];
        let needed = (u128::from(self.fired[edge.reader]) + 1) * u128::from(edge.consumed);
        let there = u128::from(self.fired[edge.writer]) * u128::from(edge.produced)
            + u128::from(edge.free)
            + u128::from(self.extra[index as usize]);
        u64::try_from(needed.saturating_sub(there)).unwrap_or(u64::MAX)
    }

    /// The cycle of edges that blocks `actor`, found by walking from reader to writer.
    fn cycle(&self, actor: ActorId) -> Vec<u32> {
        let mut position: TiVec<ActorId, Option<usize>> = self.left.iter().map(|_| None).collect();
        let (mut path, mut at) = (Vec::new(), actor);
        while position[at].is_none() {
            position[at] = Some(path.len());
            let Some(edge) = self.blocking(at) else {
                return Vec::new();
            };
            path.push(edge);
            at = self.edges.all[edge as usize].writer;
        }
        let mut cycle = path.split_off(position[at].unwrap_or(0));
        cycle.reverse();
        cycle
    }
}

/// Checks that one iteration can run to its end.
///
/// # Errors
/// [`AnalysisError::Deadlock`] names every actor and channel of a blocked cycle and how many more initial tokens on
/// which channel free it; [`AnalysisError::TooLong`] if the cycles interleave beyond enumeration.
pub fn check_deadlock(graph: &Graph, q: &TiVec<ActorId, u64>) -> Result<(), AnalysisError> {
    check_deadlock_over(&Edges::of(graph), q)
}

pub(crate) fn check_deadlock_over(
    edges: &Edges,
    q: &TiVec<ActorId, u64>,
) -> Result<(), AnalysisError> {
    let mut run = TokenRun::idle(edges, q.len());
    run.begin(q.keys(), |actor| q[actor]);
    let mut calls = 0u64;
    let mut counted = |_, _| {
        calls += 1;
        calls <= MAX_CALLS
    };
    if !run.run(&mut counted) {
        return Err(AnalysisError::TooLong { limit: MAX_CALLS });
    }
    let Some(first) = run.stuck() else {
        return Ok(());
    };
    let cycle = run.cycle(first);
    let Some(&on) = cycle.iter().min_by_key(|&&e| (run.lacking(e), e)) else {
        return Err(AnalysisError::TooLong { limit: MAX_CALLS });
    };
    // Feed the cheapest edge of the cycle just as much as it asks for, until its reader gets through.
    let reader = edges.all[on as usize].reader;
    while run.left[reader] > 0 && run.allowed(on) <= run.fired[reader] {
        run.extra[on as usize] += run.lacking(on);
        run.enqueue(reader);
        if !run.run(&mut counted) {
            break;
        }
    }
    Err(AnalysisError::Deadlock {
        actors: cycle
            .iter()
            .map(|&e| edges.all[e as usize].writer)
            .collect(),
        channels: cycle
            .iter()
            .map(|&e| edges.all[e as usize].channel)
            .collect(),
        on: edges.all[on as usize].channel,
        missing: run.extra[on as usize],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Link5, graph};

    #[test]
    fn repetition_vectors() {
        let check = |actors: usize, channels: &[Link5], expect: &[u64]| {
            let q = repetition(&graph(actors, channels))
                .unwrap_or_else(|e| panic!("{channels:?}: {e}"));
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
}
