//! Single-appearance orders: every actor once, in nested loops.
//!
//! Source: Murthy, Bhattacharyya & Lee 1997, "Joint Minimization of Code and Data for Synchronous Dataflow Programs",
//! Formal Methods in System Design 11(1): dynamic programming over parenthesisations of one topological order.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::kosaraju_scc;
use petgraph::graph::DiGraph;
use zbmd_ir::{ActorId, ChannelId, TiVec};

use zbmd_ir::math::gcd_u64;

use super::OrderError;
use crate::throughput::{ThroughputError, TimedChannel, TimedSdf};

/// Actors up to which loops are compared: the work grows with the third power.
const MAX_ACTORS: usize = 256;

/// One step of a looped order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoopStep {
    /// The actor fires so often in a row.
    Fire(ActorId, u64),
    /// The steps in order, so often.
    Loop(u64, Vec<LoopStep>),
}

impl std::fmt::Display for LoopStep {
    /// As in the literature: `3(a 2b)`, with actor ids.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoopStep::Fire(actor, 1) => write!(f, "{actor}"),
            LoopStep::Fire(actor, count) => write!(f, "{count}{actor}"),
            LoopStep::Loop(count, body) => {
                write!(f, "{count}(")?;
                for (index, step) in body.iter().enumerate() {
                    write!(f, "{}{step}", if index > 0 { " " } else { "" })?;
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
    pub steps: Vec<LoopStep>,
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
    Ok(LoopProblem::new(sdf)?.flat())
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
    let problem = LoopProblem::new(sdf)?;
    let actors = problem.order.len();
    if actors > MAX_ACTORS {
        return Err(OrderError::TooManyActors {
            actors,
            limit: MAX_ACTORS,
        });
    }

    // Loops around firings that are all single ones save nothing.
    if problem.repetition.iter().all(|&firings| firings == 1) {
        return Ok(problem.flat());
    }

    let mut planner = LoopPlanner {
        problem: &problem,
        known: BTreeMap::new(),
    };
    let whole_range = OrderRange {
        first: 0,
        end: actors,
        shared: 1,
        depth,
    };
    planner.min_tokens(whole_range);
    let mut shared = vec![1; sdf.channels.len()];
    let steps = planner.steps_of(whole_range, &mut shared);
    Ok(problem.sum_up(steps, &shared))
}

/// A channel between two positions of the order that has to be written before it is read.
#[derive(Clone, Copy, Debug)]
struct OrderEdge {
    channel: usize,
    from: usize,
    to: usize,
    /// Tokens of one iteration.
    tokens: u64,
}

struct LoopProblem<'a> {
    sdf: &'a TimedSdf,
    repetition: Vec<u64>,
    /// Actors in topological order.
    order: Vec<usize>,
    /// Whether there is no other topological order, and one reader for each channel.
    exact: bool,
    edges: Vec<OrderEdge>,
}

impl<'a> LoopProblem<'a> {
    fn new(sdf: &'a TimedSdf) -> Result<Self, OrderError> {
        let repetition = sdf.repetition()?.raw;
        let actors = repetition.len();
        let arcs = find_precedence(sdf, &repetition)?;
        check_acyclic(actors, &arcs)?;
        let (order, is_only_order) = depth_first_order(actors, &arcs);
        let mut position_of = vec![0; actors];
        for (position, &actor) in order.iter().enumerate() {
            position_of[actor] = position;
        }

        let mut edges = Vec::new();
        let mut one_reader_each = true;
        for (id, channel) in sdf.channels.iter_enumerated() {
            let writer = channel.from.index();
            let others = channel
                .readers
                .iter()
                .filter(|reader| reader.to != channel.from);
            one_reader_each &= others.clone().count() < 2;
            for reader in others {
                let tokens = repetition[writer].checked_mul(channel.produce).ok_or(
                    ThroughputError::Overflow {
                        actor: channel.from,
                    },
                )?;
                let from = position_of[writer];
                let to = position_of[reader.to.index()];
                // A reader that goes first lives on the initial tokens: they leave room for what replaces them.
                if from < to {
                    edges.push(OrderEdge {
                        channel: id.index(),
                        from,
                        to,
                        tokens,
                    });
                }
            }
        }
        Ok(LoopProblem {
            sdf,
            repetition,
            order,
            exact: is_only_order && one_reader_each,
            edges,
        })
    }

    /// All firings of each actor at once.
    fn flat(&self) -> Loops {
        let actors = self.order.iter();
        let steps = actors
            .map(|&actor| LoopStep::Fire(actor.into(), self.repetition[actor]))
            .collect();
        self.sum_up(steps, &vec![1; self.sdf.channels.len()])
    }

    /// Sums up an order in which the ends of channel c share loops that run `shared[c]` times.
    fn sum_up(&self, steps: Vec<LoopStep>, shared: &[u64]) -> Loops {
        let mut is_crossed = vec![false; self.sdf.channels.len()];
        for edge in &self.edges {
            is_crossed[edge.channel] = true;
        }

        let mut capacities: TiVec<ChannelId, u64> = TiVec::new();
        for (id, channel) in self.sdf.channels.iter_enumerated() {
            let runs = is_crossed[id.index()].then_some(shared[id.index()]);
            capacities.push(self.places_needed(id, channel, runs));
        }
        Loops {
            steps,
            tokens: capacities.iter().copied().fold(0, u64::saturating_add),
            capacities,
            exact: self.exact,
        }
    }

    /// Places of a channel's buffer, whose ends share loops of so many runs; `None` if the reader goes first.
    fn places_needed(&self, id: ChannelId, channel: &TimedChannel, runs: Option<u64>) -> u64 {
        if !self.sdf.is_buffered(id) {
            return 0;
        }
        let written_tokens = self.repetition[channel.from.index()] * channel.produce;
        let in_one_run = runs.map_or(0, |runs| written_tokens / runs);
        let readers = channel.readers.iter();
        let held_tokens = readers.map(|reader| reader.free.saturating_add(reader.overlap));
        held_tokens.max().unwrap_or(0).saturating_add(in_one_run)
    }
}

/// Who must be through before whom: channels whose initial tokens do not last for an iteration.
fn find_precedence(
    sdf: &TimedSdf,
    repetition: &[u64],
) -> Result<BTreeSet<(usize, usize)>, OrderError> {
    let mut arcs = BTreeSet::new();

    for channel in &sdf.channels {
        for reader in &channel.readers {
            let reader_firings = repetition[reader.to.index()];
            let read_tokens = u128::from(reader_firings) * u128::from(reader.consume);
            if read_tokens <= u128::from(reader.free) {
                continue;
            }
            if reader.to != channel.from {
                arcs.insert((channel.from.index(), reader.to.index()));
            } else if reader.free < reader.consume {
                // A state that cannot even fire once is a deadlock; firing by firing it is in order.
                return Err(OrderError::InTurns {
                    actors: vec![reader.to],
                });
            }
        }
    }
    Ok(arcs)
}

fn check_acyclic(cycle_actors: usize, arcs: &BTreeSet<(usize, usize)>) -> Result<(), OrderError> {
    let mut arc_graph = DiGraph::<(), ()>::new();
    let nodes: Vec<_> = (0..cycle_actors).map(|_| arc_graph.add_node(())).collect();
    for &(from, to) in arcs {
        arc_graph.add_edge(nodes[from], nodes[to], ());
    }

    let strong_components = kosaraju_scc(&arc_graph).into_iter();
    let Some(actor_cycle) = strong_components.filter(|members| members.len() > 1).min() else {
        return Ok(());
    };
    let mut cycle_actors: Vec<ActorId> =
        actor_cycle.iter().map(|node| node.index().into()).collect();
    cycle_actors.sort_unstable();
    Err(OrderError::InTurns {
        actors: cycle_actors,
    })
}

/// A topological order that goes on with what just became ready, and whether it is the only one.
fn depth_first_order(actors: usize, arcs: &BTreeSet<(usize, usize)>) -> (Vec<usize>, bool) {
    let mut waiting_for = vec![0usize; actors];
    let mut successors_of = vec![Vec::new(); actors];
    for &(from, to) in arcs {
        waiting_for[to] += 1;
        successors_of[from].push(to);
    }

    let all = (0..actors).rev();
    let mut ready_actors: Vec<usize> = all.filter(|&actor| waiting_for[actor] == 0).collect();
    let mut actor_order = Vec::with_capacity(actors);
    let mut is_only_order = true;
    while let Some(actor) = ready_actors.pop() {
        is_only_order &= ready_actors.is_empty();
        actor_order.push(actor);
        for &successor in successors_of[actor].iter().rev() {
            waiting_for[successor] -= 1;
            if waiting_for[successor] == 0 {
                ready_actors.push(successor);
            }
        }
    }
    (actor_order, is_only_order)
}

/// Actors `first..end` of the order, inside loops that run `shared` times in all, with `depth` loops left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OrderRange {
    first: usize,
    end: usize,
    shared: u64,
    depth: usize,
}

struct LoopPlanner<'a> {
    problem: &'a LoopProblem<'a>,
    /// The best split of each range, by its key.
    known: BTreeMap<OrderRange, BestSplit>,
}

#[derive(Clone, Copy, Debug)]
struct BestSplit {
    tokens: u64,
    /// Where the range is split.
    split: usize,
    inner: InnerLoops,
}

/// Loops around both parts of a split.
#[derive(Clone, Copy, Debug)]
struct InnerLoops {
    /// How often they run in all.
    shared: u64,
    /// Loops left.
    depth: usize,
}

impl OrderRange {
    fn part(first: usize, end: usize, inner: InnerLoops) -> Self {
        OrderRange {
            first,
            end,
            shared: inner.shared,
            depth: inner.depth,
        }
    }
}

impl LoopPlanner<'_> {
    /// How often a loop around the range can run at most.
    fn common_firings(&self, range: OrderRange) -> u64 {
        let actors = self.problem.order[range.first..range.end].iter();
        let actor_firings = actors.map(|&actor| self.problem.repetition[actor]);
        actor_firings.fold(0, gcd_u64)
    }

    /// The range under which the best is known: with loops enough for every split, those around do not matter.
    fn key(range: OrderRange) -> OrderRange {
        let enough_depth = (range.end - range.first).saturating_sub(1);
        match range.depth >= enough_depth {
            true => OrderRange {
                shared: 0,
                depth: enough_depth,
                ..range
            },
            false => range,
        }
    }

    /// Least tokens of the range; fills `known`. Recurses as deep as there are actors, of which there are few.
    fn min_tokens(&mut self, range: OrderRange) -> u64 {
        if range.end - range.first < 2 {
            return 0;
        }
        let key = Self::key(range);
        if let Some(best) = self.known.get(&key) {
            return best.tokens;
        }

        let mut best: Option<BestSplit> = None;
        for inner in self.loop_choices(range, key) {
            let crossing_tokens = self.crossing_tokens(range, inner.shared);
            for split in range.first + 1..range.end {
                let tokens_before = self.min_tokens(OrderRange::part(range.first, split, inner));
                let tokens_after = self.min_tokens(OrderRange::part(split, range.end, inner));
                let split_tokens = tokens_before
                    .saturating_add(tokens_after)
                    .saturating_add(crossing_tokens[split - range.first]);
                if best.is_none_or(|best| split_tokens < best.tokens) {
                    best = Some(BestSplit {
                        tokens: split_tokens,
                        split,
                        inner,
                    });
                }
            }
        }

        let best = best.unwrap_or(BestSplit {
            tokens: 0,
            split: range.end,
            inner: InnerLoops {
                shared: range.shared,
                depth: 0,
            },
        });
        self.known.insert(key, best);
        best.tokens
    }

    /// A loop of its own around the range, or none.
    fn loop_choices(&self, range: OrderRange, key: OrderRange) -> Vec<InnerLoops> {
        let common = self.common_firings(range);
        let mut choices = Vec::with_capacity(2);

        // A loop that runs as often as those around it is none.
        if range.depth > 0 {
            let depth = range.depth - usize::from(common > range.shared);
            choices.push(InnerLoops {
                shared: common,
                depth: depth.min(key.depth),
            });
        }
        if key.shared > 0 && (common > range.shared || range.depth == 0) {
            choices.push(InnerLoops {
                shared: range.shared,
                depth: range.depth,
            });
        }
        choices
    }

    /// Tokens on the channels of the range that cross each split, per run of the loops around it.
    fn crossing_tokens(&self, range: OrderRange, shared: u64) -> Vec<u64> {
        // A channel with several readers has one buffer: it counts where its writer and a reader part first.
        let mut hull_of_channel: BTreeMap<usize, OrderEdge> = BTreeMap::new();
        for edge in &self.problem.edges {
            if edge.from >= range.first && edge.to < range.end {
                // From the writer to the last reader.
                let hull = hull_of_channel.entry(edge.channel).or_insert(*edge);
                hull.from = hull.from.min(edge.from);
                hull.to = hull.to.max(edge.to);
            }
        }

        let mut crossing_sums = vec![0u64; range.end - range.first + 1];
        for hull in hull_of_channel.into_values() {
            let crossed_splits = hull.from + 1 - range.first..=hull.to - range.first;
            for sum in &mut crossing_sums[crossed_splits] {
                *sum = sum.saturating_add(hull.tokens / shared);
            }
        }
        crossing_sums
    }

    /// The steps of a range, and for each channel inside how often the loops around both its ends run.
    fn steps_of(&self, range: OrderRange, shared: &mut [u64]) -> Vec<LoopStep> {
        let Some(&best) = self.known.get(&Self::key(range)) else {
            let actors = self.problem.order[range.first..range.end].iter();
            return actors
                .map(|&actor| {
                    let firings = self.problem.repetition[actor] / range.shared;
                    LoopStep::Fire(actor.into(), firings)
                })
                .collect();
        };

        let range_before = OrderRange::part(range.first, best.split, best.inner);
        let range_after = OrderRange::part(best.split, range.end, best.inner);
        let mut loop_body = self.steps_of(range_before, shared);
        loop_body.extend(self.steps_of(range_after, shared));
        for edge in &self.problem.edges {
            if (range_before.first..range_before.end).contains(&edge.from)
                && (range_after.first..range_after.end).contains(&edge.to)
            {
                shared[edge.channel] = best.inner.shared;
            }
        }
        // The loop of its own, if the split has one.
        match best.inner.shared / range.shared {
            1 => loop_body,
            times => vec![LoopStep::Loop(times, loop_body)],
        }
    }
}

#[cfg(test)]
mod tests;
