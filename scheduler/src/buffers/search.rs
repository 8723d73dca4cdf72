//! Best-first search over capacities that never looks at the same ones twice.
//!
//! A node is a box: at least so many places for each channel, at most so many. Cuts (see [`Cut`]) that its lower
//! corner violates say what must grow: with one channel left to choose it grows at once; otherwise the box is split
//! by the first channel that grows. What the cuts ask for at least, summed over cuts without common channels, is a
//! lower bound on what the box still costs, so that boxes are opened in order of their true price. Only a corner
//! that satisfies all cuts is analysed; if it fails, its critical cycle is a new cut.
//!
//! The branching on storage dependencies of a critical cycle is that of Stuijk, Geilen & Basten 2008, "Throughput-
//! Buffering Trade-Off Exploration for Cyclo-Static and Synchronous Dataflow Graphs", IEEE Trans. Comput. 57(10);
//! cuts and bounds take the place of its exhaustive enumeration.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::cut::{self, Cut, Goal};
use crate::throughput::{Net, Period, ThroughputError, Verdict};

/// Capacities from a lower to an upper corner.
#[derive(Clone, Debug)]
struct Node {
    /// No capacities of the box that meet the goal weigh less.
    bound: u64,
    /// Weight of the lower corner.
    weight: u64,
    /// When it was made: among equals the newest goes first.
    made: u64,
    room: Vec<i64>,
    most: Vec<i64>,
}

impl Ord for Node {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |n: &Node| (std::cmp::Reverse(n.bound), n.weight, n.made);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Node {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Node {}

/// Capacities that meet the goal.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) room: Vec<i64>,
    pub(super) weight: u64,
    pub(super) period: Period,
}

/// How a search went on.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The lightest capacities that meet the goal.
    Found(Found),
    /// None of at most the greatest weight do; lighter ones than that bound are ruled out in any case.
    None,
    /// The budget ran out with all lighter than this ruled out; the most promising corner.
    Stopped(u64, Vec<i64>),
}

/// What the cuts say about a box.
enum State {
    Dead,
    /// Its lower corner violates no cut.
    Clean,
    /// It violates this cut; to be split along these of its channels, in this order.
    Split(usize, Vec<usize>),
}

/// Dependencies of an analysis that take about as long as opening a box.
pub(super) const DEPS_PER_STEP: u64 = 64;

/// A search over the capacities of one graph.
pub(super) struct Search<'a> {
    net: &'a mut Net,
    weights: &'a [u64],
    cuts: Vec<Cut>,
    /// Whether the periods found are to be exact, as those of trade-offs must be.
    exact: bool,
    /// What was said of the capacities found last.
    last: Vec<Verdict>,
    goal: Goal,
    heap: BinaryHeap<Node>,
    made: u64,
    /// Steps that may still be taken: boxes to be opened, or [`DEPS_PER_STEP`] dependencies to be looked at.
    pub(super) budget: u64,
    /// Heavier capacities are of no interest.
    pub(super) heaviest: u64,
}

impl<'a> Search<'a> {
    /// A search among all capacities of at least `least`, channel i weighing `weights[i]` per place.
    pub(super) fn new(
        net: &'a mut Net,
        weights: &'a [u64],
        least: Vec<i64>,
        goal: Goal,
        (exact, budget): (bool, u64),
    ) -> Self {
        let weight = total(&least, weights);
        let most = vec![i64::MAX; least.len()];
        let root = Node {
            bound: weight,
            weight,
            made: 0,
            room: least,
            most,
        };
        let heap = BinaryHeap::from([root]);
        Search {
            net,
            weights,
            cuts: Vec::new(),
            exact,
            last: Vec::new(),
            goal,
            heap,
            made: 0,
            budget,
            heaviest: u64::MAX,
        }
    }

    /// Searches on for another goal, which must ask for more than the one before. Only if periods are exact.
    pub(super) fn aim(&mut self, goal: Goal) {
        self.goal = goal;
        self.cuts.iter_mut().for_each(|cut| cut.aim(goal));
        for verdict in std::mem::take(&mut self.last) {
            if !goal.met(verdict.period()) {
                self.cuts.extend(cut::cuts(self.net, &verdict, goal));
            }
        }
    }

    /// The lightest capacities that meet the goal. They stay in the search, for the next goal.
    pub(super) fn next(&mut self) -> Result<Outcome, ThroughputError> {
        while let Some(mut node) = self.heap.pop() {
            if node.bound > self.heaviest {
                self.heap.push(node);
                return Ok(Outcome::None);
            }
            if self.budget == 0 {
                return Ok(Outcome::Stopped(node.bound, node.room));
            }
            self.budget -= 1;
            let before = node.bound;
            let state = self.settle(&mut node);
            match state {
                State::Dead => {}
                _ if node.bound > before => self.heap.push(node),
                State::Split(cut, channels) => self.split(&node, cut, &channels),
                State::Clean => {
                    let (room, weight) = (node.room.clone(), node.weight);
                    self.heap.push(node);
                    if let Some(period) = self.analyse(&room)? {
                        return Ok(Outcome::Found(Found {
                            room,
                            weight,
                            period,
                        }));
                    }
                }
            }
        }
        Ok(Outcome::None)
    }

    /// The period at the capacities if it meets the goal; new cuts if not.
    fn analyse(&mut self, room: &[i64]) -> Result<Option<Period>, ThroughputError> {
        let before = self.net.work;
        let goal = self.goal;
        let verdicts = match self.exact {
            true => self.net.verdicts(room)?,
            false => verdicts(self.net, room, goal)?,
        };
        self.budget = self
            .budget
            .saturating_sub((self.net.work - before) / DEPS_PER_STEP);
        self.last = verdicts;
        let missed = self.last.iter().filter(|v| !self.goal.met(v.period()));
        let cuts: Vec<Cut> = missed
            .flat_map(|v| cut::cuts(self.net, v, self.goal))
            .collect();
        if cuts.is_empty() {
            return Ok(longest(&self.last));
        }
        self.cuts.extend(cuts);
        Ok(None)
    }

    /// Grows what must grow and finds out what the box costs at least.
    fn settle(&self, node: &mut Node) -> State {
        let mut violated: Vec<(u64, usize, Vec<usize>)> = Vec::new();
        let mut grown = true;
        while grown {
            grown = false;
            violated.clear();
            for (index, cut) in self.cuts.iter().enumerate() {
                let lacks = cut.lacks(&node.room);
                if lacks <= 0 {
                    continue;
                }
                let free = free_channels(cut, node);
                match free[..] {
                    [] => return State::Dead,
                    [only] => {
                        let Some(step) = cut.enough(only, &mut node.room, node.most[only]) else {
                            return State::Dead;
                        };
                        let more = (step as u64).saturating_mul(self.weights[only]);
                        node.weight = node.weight.saturating_add(more);
                        grown = true;
                    }
                    _ => {
                        let may = |c: usize| free.contains(&c);
                        let least = cut.least_weight(lacks, &node.room, self.weights, may);
                        violated.push((least, index, free));
                    }
                }
                if node.weight > self.heaviest {
                    return State::Dead;
                }
            }
        }
        self.price(node, &mut violated)
    }

    /// Bounds the price of a settled box by cuts without common channels.
    fn price(&self, node: &mut Node, violated: &mut [(u64, usize, Vec<usize>)]) -> State {
        violated.sort_unstable_by_key(|(least, index, _)| (std::cmp::Reverse(*least), *index));
        let mut taken = vec![false; node.room.len()];
        let mut times = vec![0u32; node.room.len()];
        let mut rest = 0u64;
        for (least, _, free) in violated.iter() {
            free.iter().for_each(|&c| times[c] += 1);
            if free.iter().all(|&c| !taken[c]) {
                free.iter().for_each(|&c| taken[c] = true);
                rest = rest.saturating_add(*least);
            }
        }
        node.bound = node.bound.max(node.weight.saturating_add(rest));
        let narrowest = violated
            .iter()
            .min_by_key(|(least, index, free)| (free.len(), std::cmp::Reverse(*least), *index));
        let Some((_, index, free)) = narrowest else {
            return State::Clean;
        };
        let mut channels = free.clone();
        // The channel that helps most cuts goes first: its box keeps all choices.
        channels.sort_by_key(|&c| (std::cmp::Reverse(times[c]), c));
        State::Split(*index, channels)
    }

    /// Splits a box by the first of the channels that grows by its first step.
    fn split(&mut self, node: &Node, cut: usize, channels: &[usize]) {
        let mut most = node.most.clone();
        let mut children = Vec::with_capacity(channels.len());
        for &c in channels {
            let step = self.cuts[cut].first_step(c, &node.room);
            let mut child = Node {
                most: most.clone(),
                room: node.room.clone(),
                ..*node
            };
            child.room[c] += step;
            child.weight = child
                .weight
                .saturating_add((step as u64).saturating_mul(self.weights[c]));
            child.bound = child.bound.max(child.weight);
            children.push(child);
            most[c] = node.room[c] + step - 1;
        }
        for mut child in children.into_iter().rev() {
            self.made += 1;
            child.made = self.made;
            self.heap.push(child);
        }
    }
}

/// Channels of the cut that the box lets grow by their first step.
fn free_channels(cut: &Cut, node: &Node) -> Vec<usize> {
    let grows = |&c: &usize| {
        let step = cut.first_step(c, &node.room);
        node.room[c]
            .checked_add(step)
            .is_some_and(|r| r <= node.most[c])
    };
    cut.channels.iter().copied().filter(grows).collect()
}

/// Verdicts that are exact where they miss the goal.
fn verdicts(net: &mut Net, room: &[i64], goal: Goal) -> Result<Vec<Verdict>, ThroughputError> {
    let verdicts = net.verdicts_until(room, &|p| goal.met(p), u64::MAX)?;
    Ok(verdicts.unwrap_or_default())
}

/// Whether the capacities are known to meet the goal by unfoldings of at most so many dependencies.
pub(super) fn meets(
    net: &mut Net,
    room: &[i64],
    goal: Goal,
    most: u64,
) -> Result<bool, ThroughputError> {
    let verdicts = net.verdicts_until(room, &|p| goal.met(p), most)?;
    Ok(verdicts.is_some_and(|all| all.iter().all(|v| goal.met(v.period()))))
}

/// The period at the capacities, or a longer one that meets the goal, and cuts for every component that misses it.
pub(super) fn analyse(
    net: &mut Net,
    room: &[i64],
    goal: Goal,
) -> Result<(Option<Period>, Vec<Cut>), ThroughputError> {
    let verdicts = verdicts(net, room, goal)?;
    let missed = verdicts.iter().filter(|v| !goal.met(v.period()));
    let cuts = missed.flat_map(|v| cut::cuts(net, v, goal)).collect();
    Ok((longest(&verdicts), cuts))
}

/// The longest period of all components; `None` if any is deadlocked.
fn longest(verdicts: &[Verdict]) -> Option<Period> {
    verdicts
        .iter()
        .try_fold(Period::ZERO, |longest, v| Some(longest.max(v.period()?)))
}

pub(super) fn total(room: &[i64], weights: &[u64]) -> u64 {
    let places = room.iter().map(|&r| r.max(0) as u64);
    places
        .zip(weights)
        .fold(0u64, |sum, (r, &w)| sum.saturating_add(r.saturating_mul(w)))
}
