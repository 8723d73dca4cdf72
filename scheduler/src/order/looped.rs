//! Single-appearance orders: every actor once, in nested loops.
//!
//! Source: Murthy, Bhattacharyya & Lee 1997, "Joint Minimization of Code and Data for Synchronous Dataflow Programs",
//! Formal Methods in System Design 11(1): dynamic programming over parenthesisations of one topological order.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::kosaraju_scc;
use petgraph::graph::DiGraph;
use zbmd_ir::{ActorId, ChannelId, TiVec};

use super::OrderError;
use crate::throughput::{ThroughputError, TimedSdf, gcd};

/// Actors up to which loops are compared: the work grows with the third power.
const MAX_ACTORS: usize = 256;

/// One step of a looped order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The actor fires so often in a row.
    Fire(ActorId, u64),
    /// The steps in order, so often.
    Loop(u64, Vec<Step>),
}

impl std::fmt::Display for Step {
    /// As in the literature: `3(a 2b)`, with actor ids.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Fire(actor, 1) => write!(f, "{actor}"),
            Step::Fire(actor, count) => write!(f, "{count}{actor}"),
            Step::Loop(count, body) => {
                write!(f, "{count}(")?;
                for (i, step) in body.iter().enumerate() {
                    write!(f, "{}{step}", if i > 0 { " " } else { "" })?;
                }
                write!(f, ")")
            }
        }
    }
}

/// A single-appearance order of one iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loops {
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Places that each channel needs, in tokens; 0 for channels without a buffer.
    pub capacities: TiVec<ChannelId, u64>,
    /// Sum of the capacities.
    pub tokens: u64,
    /// Whether no single-appearance order of at most that depth needs less. Otherwise (graphs that allow several
    /// topological orders, or channels with several readers) less may be possible.
    pub exact: bool,
}

/// The order in which every actor fires all its firings of one iteration at once.
///
/// # Errors
/// See [`looped`].
pub fn flat(sdf: &TimedSdf) -> Result<Loops, OrderError> {
    let problem = Problem::new(sdf)?;
    let steps = problem
        .order
        .iter()
        .map(|&a| Step::Fire(a.into(), problem.q[a]))
        .collect();
    let shared = vec![1; sdf.channels.len()];
    Ok(problem.loops(steps, &shared, problem.exact))
}

/// The order in nested loops, at most `depth` deep, in which every actor appears once and the buffers are smallest.
///
/// A channel whose ends share a loop nest that runs g times holds the tokens of an iteration divided by g, besides
/// its initial ones. Exact for one topological order of the actors, O(actors³); the order is the only one for
/// chains, otherwise a depth-first one that keeps writers and readers together.
///
/// # Errors
/// [`OrderError::InTurns`] if actors on a cycle have to take turns, [`OrderError::TooManyActors`] beyond 256;
/// otherwise see [`ThroughputError`].
pub fn looped(sdf: &TimedSdf, depth: usize) -> Result<Loops, OrderError> {
    let problem = Problem::new(sdf)?;
    if problem.order.len() > MAX_ACTORS {
        return Err(OrderError::TooManyActors {
            actors: problem.order.len(),
            limit: MAX_ACTORS,
        });
    }
    let mut planner = Planner {
        problem: &problem,
        known: BTreeMap::new(),
    };
    let all = Range {
        first: 0,
        end: problem.order.len(),
        shared: 1,
        depth,
    };
    planner.cost(all);
    let mut shared = vec![1; sdf.channels.len()];
    let steps = planner.steps(all, &mut shared);
    Ok(problem.loops(steps, &shared, problem.exact))
}

/// A channel between two positions of the order that has to be written before it is read.
#[derive(Clone, Copy, Debug)]
struct Edge {
    channel: usize,
    from: usize,
    to: usize,
    /// Tokens of one iteration.
    tokens: u64,
}

struct Problem<'a> {
    sdf: &'a TimedSdf,
    q: Vec<u64>,
    /// Actors in topological order.
    order: Vec<usize>,
    /// Whether there is no other topological order, and one reader for each channel.
    exact: bool,
    edges: Vec<Edge>,
}

impl<'a> Problem<'a> {
    fn new(sdf: &'a TimedSdf) -> Result<Self, OrderError> {
        let q = sdf.repetition()?.raw;
        let arcs = precedence(sdf, &q)?;
        acyclic(q.len(), &arcs)?;
        let (order, only_order) = topological(q.len(), &arcs);
        let mut position = vec![0; q.len()];
        for (i, &a) in order.iter().enumerate() {
            position[a] = i;
        }
        let mut edges = Vec::new();
        for (id, ch) in sdf.channels.iter_enumerated() {
            for r in ch.readers.iter().filter(|r| r.to != ch.from) {
                let (from, to) = (position[ch.from.index()], position[r.to.index()]);
                let tokens = q[ch.from.index()]
                    .checked_mul(ch.produce)
                    .ok_or(ThroughputError::Overflow { actor: ch.from })?;
                // A reader that goes first lives on the initial tokens: they leave room for what replaces them.
                if from < to {
                    edges.push(Edge {
                        channel: id.index(),
                        from,
                        to,
                        tokens,
                    });
                }
            }
        }
        let one_reader = sdf
            .channels
            .iter()
            .all(|c| c.readers.iter().filter(|r| r.to != c.from).count() < 2);
        Ok(Problem {
            sdf,
            q,
            order,
            exact: only_order && one_reader,
            edges,
        })
    }

    /// Sums up an order in which the ends of channel c share loops that run `shared[c]` times.
    fn loops(&self, steps: Vec<Step>, shared: &[u64], exact: bool) -> Loops {
        let mut crosses = vec![false; self.sdf.channels.len()];
        self.edges.iter().for_each(|e| crosses[e.channel] = true);
        let need = |(id, ch): (ChannelId, &crate::throughput::TimedChannel)| {
            if !self.sdf.is_buffered(id) {
                return 0;
            }
            let block = match crosses[id.index()] {
                true => self.q[ch.from.index()] * ch.produce / shared[id.index()],
                false => 0,
            };
            let held = ch
                .readers
                .iter()
                .map(|r| r.free.saturating_add(r.overlap))
                .max();
            held.unwrap_or(0).saturating_add(block)
        };
        let capacities: TiVec<ChannelId, u64> =
            self.sdf.channels.iter_enumerated().map(need).collect();
        let tokens = capacities
            .iter()
            .fold(0u64, |sum, &c| sum.saturating_add(c));
        Loops {
            steps,
            capacities,
            tokens,
            exact,
        }
    }
}

/// Who must be through before whom: channels whose initial tokens do not last for an iteration.
fn precedence(sdf: &TimedSdf, q: &[u64]) -> Result<BTreeSet<(usize, usize)>, OrderError> {
    let mut arcs = BTreeSet::new();
    for ch in &sdf.channels {
        for r in &ch.readers {
            let read = u128::from(q[r.to.index()]) * u128::from(r.consume);
            if read > u128::from(r.free) {
                match r.to == ch.from {
                    false => _ = arcs.insert((ch.from.index(), r.to.index())),
                    // A state that cannot even fire once is a deadlock; firing by firing it is in order.
                    true if r.free >= r.consume => {}
                    true => return Err(OrderError::InTurns { actors: vec![r.to] }),
                }
            }
        }
    }
    Ok(arcs)
}

fn acyclic(actors: usize, arcs: &BTreeSet<(usize, usize)>) -> Result<(), OrderError> {
    let mut graph = DiGraph::<(), ()>::new();
    let nodes: Vec<_> = (0..actors).map(|_| graph.add_node(())).collect();
    for &(from, to) in arcs {
        graph.add_edge(nodes[from], nodes[to], ());
    }
    match kosaraju_scc(&graph)
        .into_iter()
        .filter(|c| c.len() > 1)
        .min()
    {
        None => Ok(()),
        Some(component) => {
            let mut actors: Vec<ActorId> = component.iter().map(|n| n.index().into()).collect();
            actors.sort_unstable();
            Err(OrderError::InTurns { actors })
        }
    }
}

/// A topological order that goes on with what just became ready, and whether it is the only one.
fn topological(actors: usize, arcs: &BTreeSet<(usize, usize)>) -> (Vec<usize>, bool) {
    let mut waits = vec![0usize; actors];
    let mut out = vec![Vec::new(); actors];
    for &(from, to) in arcs {
        waits[to] += 1;
        out[from].push(to);
    }
    let mut ready: Vec<usize> = (0..actors).rev().filter(|&a| waits[a] == 0).collect();
    let mut order = Vec::with_capacity(actors);
    let mut only = true;
    while let Some(a) = ready.pop() {
        only &= ready.is_empty();
        order.push(a);
        for &to in out[a].iter().rev() {
            waits[to] -= 1;
            if waits[to] == 0 {
                ready.push(to);
            }
        }
    }
    (order, only)
}

/// Actors `first..end` of the order, inside loops that run `shared` times in all, with `depth` loops left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    first: usize,
    end: usize,
    shared: u64,
    depth: usize,
}

struct Planner<'a> {
    problem: &'a Problem<'a>,
    /// Least tokens of each range and where it is split; `looped`: the loops around it as it is split.
    known: BTreeMap<Range, Best>,
}

#[derive(Clone, Copy, Debug)]
struct Best {
    tokens: u64,
    split: usize,
    inner: (u64, usize),
}

impl Planner<'_> {
    fn common(&self, range: Range) -> u64 {
        let actors = self.problem.order[range.first..range.end].iter();
        actors.fold(0, |g, &a| gcd(g, self.problem.q[a].into())) as u64
    }

    /// The range under which the best is known: with loops enough for every split, those around do not matter.
    fn key(range: Range) -> Range {
        let enough = (range.end - range.first).saturating_sub(1);
        match range.depth >= enough {
            true => Range {
                shared: 0,
                depth: enough,
                ..range
            },
            false => range,
        }
    }

    /// Fills `known` for the range. Recurses as deep as there are actors, of which there are few.
    fn cost(&mut self, range: Range) -> u64 {
        if range.end - range.first < 2 {
            return 0;
        }
        let key = Self::key(range);
        if let Some(best) = self.known.get(&key) {
            return best.tokens;
        }
        let common = self.common(range);
        let mut choices = Vec::with_capacity(2);
        if range.depth > 0 {
            let depth = range.depth - usize::from(common > range.shared);
            choices.push((common, depth.min(key.depth)));
        }
        if key.shared > 0 && (common > range.shared || range.depth == 0) {
            choices.push((range.shared, range.depth));
        }
        let mut best: Option<Best> = None;
        for inner in choices {
            let crossing = self.crossing(range, inner.0);
            for split in range.first + 1..range.end {
                let sub = |first, end| Range {
                    first,
                    end,
                    shared: inner.0,
                    depth: inner.1,
                };
                let tokens = self
                    .cost(sub(range.first, split))
                    .saturating_add(self.cost(sub(split, range.end)))
                    .saturating_add(crossing[split - range.first]);
                if best.is_none_or(|b| tokens < b.tokens) {
                    best = Some(Best {
                        tokens,
                        split,
                        inner,
                    });
                }
            }
        }
        let best = best.unwrap_or(Best {
            tokens: 0,
            split: range.end,
            inner: (range.shared, 0),
        });
        self.known.insert(key, best);
        best.tokens
    }

    /// Tokens on the channels of the range that cross each split, per run of the loops around it.
    fn crossing(&self, range: Range, shared: u64) -> Vec<u64> {
        let mut crossing = vec![0u64; range.end - range.first + 1];
        // A channel with several readers has one buffer: it counts where its writer and a reader part first.
        let mut counted = BTreeMap::new();
        for e in &self.problem.edges {
            if e.from >= range.first && e.to < range.end {
                let span = counted
                    .entry(e.channel)
                    .or_insert((e.from, e.to, e.tokens / shared));
                *span = (span.0.min(e.from), span.1.max(e.to), span.2);
            }
        }
        for (from, to, tokens) in counted.into_values() {
            for at in &mut crossing[from + 1 - range.first..=to - range.first] {
                *at = at.saturating_add(tokens);
            }
        }
        crossing
    }

    /// The steps of a range, and for each channel inside how often the loops around both its ends run.
    fn steps(&self, range: Range, shared: &mut [u64]) -> Vec<Step> {
        let Some(&best) = self.known.get(&Self::key(range)) else {
            let actors = &self.problem.order[range.first..range.end];
            let fire = |&a: &usize| Step::Fire(a.into(), self.problem.q[a] / range.shared);
            return actors.iter().map(fire).collect();
        };
        let sub = |first, end| Range {
            first,
            end,
            shared: best.inner.0,
            depth: best.inner.1,
        };
        let mut body = self.steps(sub(range.first, best.split), shared);
        body.extend(self.steps(sub(best.split, range.end), shared));
        for e in &self.problem.edges {
            if (range.first..best.split).contains(&e.from)
                && (best.split..range.end).contains(&e.to)
            {
                shared[e.channel] = best.inner.0;
            }
        }
        match best.inner.0 / range.shared {
            1 => body,
            times => vec![Step::Loop(times, body)],
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn replay(sdf: &TimedSdf, steps: &[Step]) -> Vec<u64> {
        fn flatten(steps: &[Step], out: &mut Vec<ActorId>) {
            for step in steps {
                match step {
                    Step::Fire(a, n) => (0..*n).for_each(|_| out.push(*a)),
                    Step::Loop(n, body) => (0..*n).for_each(|_| flatten(body, out)),
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
    fn brute(
        sdf: &TimedSdf,
        q: &[u64],
        first: usize,
        end: usize,
        shared: u64,
        depth: usize,
    ) -> u64 {
        if end - first < 2 {
            return 0;
        }
        let common = q[first..end].iter().fold(0, |g, &n| gcd(g, n.into())) as u64;
        let mut best = u64::MAX;
        for inner in (1..=common).filter(|i| common.is_multiple_of(*i) && i.is_multiple_of(shared))
        {
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
}
