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

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::cut::{Cut, Goal, make_cuts};
use crate::throughput::{CriticalCycle, DependencyNet, Period, ThroughputError};

/// Capacities from a lower to an upper corner.
#[derive(Clone, Debug)]
struct CapacityBox {
    /// No capacities of the box that meet the goal weigh less.
    bound: u64,
    /// Weight of the lower corner.
    weight: u64,
    /// When it was made: among equals the newest goes first.
    serial: u64,
    /// The lower corner.
    room: Vec<i64>,
    /// The upper corner.
    max_room: Vec<i64>,
}

impl CapacityBox {
    /// What boxes are opened by, the greatest first.
    fn key(&self) -> (Reverse<u64>, u64, u64) {
        (Reverse(self.bound), self.weight, self.serial)
    }
}

impl Ord for CapacityBox {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for CapacityBox {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for CapacityBox {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for CapacityBox {}

/// Capacities that meet the goal.
#[derive(Clone, Debug)]
pub(super) struct FoundCapacities {
    pub(super) room: Vec<i64>,
    pub(super) weight: u64,
    pub(super) period: Period,
}

/// How a search went on.
#[derive(Debug)]
pub(super) enum SearchOutcome {
    /// The lightest capacities that meet the goal.
    Found(FoundCapacities),
    /// None of at most the greatest weight do; lighter ones than that bound are ruled out in any case.
    None,
    /// The budget ran out with all lighter than this ruled out; the most promising corner.
    Stopped(u64, Vec<i64>),
}

/// What the cuts say about a box.
enum BoxState {
    Dead,
    /// Its lower corner violates no cut.
    Clean,
    /// It violates this cut; to be split along these of its channels, in this order.
    Split(usize, Vec<usize>),
}

/// Dependencies of an analysis that take about as long as opening a box.
pub(super) const DEPS_PER_STEP: u64 = 64;

/// A search over the capacities of one graph.
pub(super) struct CapacitySearch<'a> {
    net: &'a mut DependencyNet,
    weights: &'a [u64],
    cuts: Vec<Cut>,
    /// Whether the periods found are to be exact, as those of trade-offs must be.
    exact: bool,
    /// Critical cycles of the capacities found last.
    last_cycles: Vec<CriticalCycle>,
    goal: Goal,
    heap: BinaryHeap<CapacityBox>,
    boxes_made: u64,
    /// Steps that may still be taken: boxes to be opened, or [`DEPS_PER_STEP`] dependencies to be looked at.
    pub(super) budget: u64,
    /// Heavier capacities are of no interest.
    pub(super) max_weight: u64,
}

/// A cut that the lower corner of a box violates.
struct ViolatedCut {
    index: usize,
    /// Weight that satisfies it at least.
    min_weight: u64,
    /// Its channels that the box lets grow.
    free_channels: Vec<usize>,
}

impl<'a> CapacitySearch<'a> {
    /// A search among all capacities of at least `min_room`, channel i weighing `weights[i]` per place, in at most
    /// `budget` steps.
    pub(super) fn new(
        net: &'a mut DependencyNet,
        weights: &'a [u64],
        min_room: Vec<i64>,
        goal: Goal,
        exact: bool,
        budget: u64,
    ) -> Self {
        let weight = total_weight(&min_room, weights);
        let root = CapacityBox {
            bound: weight,
            weight,
            serial: 0,
            max_room: vec![i64::MAX; min_room.len()],
            room: min_room,
        };
        CapacitySearch {
            net,
            weights,
            cuts: Vec::new(),
            exact,
            last_cycles: Vec::new(),
            goal,
            heap: BinaryHeap::from([root]),
            boxes_made: 0,
            budget,
            max_weight: u64::MAX,
        }
    }

    /// Searches on for another goal, which must ask for more than the one before. Only if periods are exact.
    pub(super) fn set_goal(&mut self, goal: Goal) {
        self.goal = goal;
        self.cuts.iter_mut().for_each(|cut| cut.set_goal(goal));

        for cycle in std::mem::take(&mut self.last_cycles) {
            // What met the last goal may miss this one.
            if !goal.met(cycle.period()) {
                self.cuts.extend(make_cuts(self.net, &cycle, goal));
            }
        }
    }

    /// The lightest capacities that meet the goal. They stay in the search, for the next goal.
    pub(super) fn find_next(&mut self) -> Result<SearchOutcome, ThroughputError> {
        while let Some(mut lightest_box) = self.heap.pop() {
            // Boxes come by their lower bound, so all others are too heavy as well. It stays for a later, higher limit.
            if lightest_box.bound > self.max_weight {
                self.heap.push(lightest_box);
                return Ok(SearchOutcome::None);
            }
            if self.budget == 0 {
                return Ok(SearchOutcome::Stopped(
                    lightest_box.bound,
                    lightest_box.room,
                ));
            }
            self.budget -= 1;

            let bound_before = lightest_box.bound;
            match self.settle(&mut lightest_box) {
                BoxState::Dead => {}
                // Another may be lighter now.
                _ if lightest_box.bound > bound_before => self.heap.push(lightest_box),
                BoxState::Split(cut, channels) => self.split(&lightest_box, cut, &channels),
                BoxState::Clean => {
                    let room = lightest_box.room.clone();
                    let weight = lightest_box.weight;

                    // The box goes back: if the corner fails, the new cut splits it; if not, the next goal starts here.
                    self.heap.push(lightest_box);
                    if let Some(period) = self.analyse(&room)? {
                        return Ok(SearchOutcome::Found(FoundCapacities {
                            room,
                            weight,
                            period,
                        }));
                    }
                }
            }
        }
        Ok(SearchOutcome::None)
    }

    /// The period at the capacities if it meets the goal; new cuts if not.
    fn analyse(&mut self, room: &[i64]) -> Result<Option<Period>, ThroughputError> {
        let work_before = self.net.work;
        let goal = self.goal;
        let cycles = match self.exact {
            true => self.net.critical_cycles(room)?,
            false => cycles_for_goal(self.net, room, goal)?,
        };

        // An analysis may take far longer than opening a box, so it is paid for by its work.
        let spent_work = self.net.work - work_before;
        self.budget = self.budget.saturating_sub(spent_work / DEPS_PER_STEP);

        let new_cuts = cuts_of_missed(self.net, &cycles, goal);
        self.last_cycles = cycles;
        if new_cuts.is_empty() {
            return Ok(longest_period(&self.last_cycles));
        }
        self.cuts.extend(new_cuts);
        Ok(None)
    }

    /// Grows what must grow and finds out what the box costs at least.
    fn settle(&self, opened: &mut CapacityBox) -> BoxState {
        let mut violated_cuts: Vec<ViolatedCut> = Vec::new();
        let mut any_grown = true;

        while any_grown {
            any_grown = false;
            // Growing one channel may satisfy other cuts, or take channels from them.
            violated_cuts.clear();
            for (index, cut) in self.cuts.iter().enumerate() {
                let missing_tokens = cut.missing_tokens(&opened.room);
                if missing_tokens <= 0 {
                    continue;
                }
                let free_channels = free_channels(cut, opened);
                match free_channels[..] {
                    [] => return BoxState::Dead,
                    // With one channel left to choose it grows at once.
                    [only] => {
                        let max_places = opened.max_room[only];
                        let Some(added_places) = cut.fill_up(only, &mut opened.room, max_places)
                        else {
                            return BoxState::Dead;
                        };
                        let added_weight = (added_places as u64).saturating_mul(self.weights[only]);
                        opened.weight = opened.weight.saturating_add(added_weight);
                        any_grown = true;
                    }
                    _ => violated_cuts.push(ViolatedCut {
                        index,
                        min_weight: cut.min_weight(
                            missing_tokens,
                            &opened.room,
                            self.weights,
                            &free_channels,
                        ),
                        free_channels,
                    }),
                }
                if opened.weight > self.max_weight {
                    return BoxState::Dead;
                }
            }
        }
        self.raise_bound(opened, &mut violated_cuts)
    }

    /// Bounds the weight of a settled box by cuts without common channels.
    fn raise_bound(&self, opened: &mut CapacityBox, violated: &mut [ViolatedCut]) -> BoxState {
        violated.sort_unstable_by_key(|cut| (Reverse(cut.min_weight), cut.index));
        let split_channels = opened.room.len();
        let mut is_taken = vec![false; split_channels];
        let mut cuts_with = vec![0u32; split_channels];
        let mut min_added = 0u64;

        for cut in violated.iter() {
            for &channel in &cut.free_channels {
                cuts_with[channel] += 1;
            }
            // Cuts without common channels cost what they cost together; the heaviest are taken first.
            if cut.free_channels.iter().all(|&channel| !is_taken[channel]) {
                min_added = min_added.saturating_add(cut.min_weight);
                for &channel in &cut.free_channels {
                    is_taken[channel] = true;
                }
            }
        }

        // Never lower than before: the bound of the box that this one was split from holds for it too.
        let min_weight = opened.weight.saturating_add(min_added);
        opened.bound = opened.bound.max(min_weight);

        // Splitting along the cut with the fewest channels makes the fewest boxes.
        let narrowest_cut = violated
            .iter()
            .min_by_key(|cut| (cut.free_channels.len(), Reverse(cut.min_weight), cut.index));
        let Some(narrowest_cut) = narrowest_cut else {
            return BoxState::Clean;
        };
        let mut split_channels = narrowest_cut.free_channels.clone();
        // The channel that helps most cuts goes first: its box keeps all choices.
        split_channels.sort_by_key(|&channel| (Reverse(cuts_with[channel]), channel));
        BoxState::Split(narrowest_cut.index, split_channels)
    }

    /// Splits a box by the first of the channels that grows by its first step.
    fn split(&mut self, parent: &CapacityBox, cut: usize, channels: &[usize]) {
        let mut max_room = parent.max_room.clone();
        let mut child_boxes = Vec::with_capacity(channels.len());

        for &channel in channels {
            let first_step = self.cuts[cut].first_step(channel, &parent.room);
            let added_weight = (first_step as u64).saturating_mul(self.weights[channel]);
            let mut child_box = CapacityBox {
                max_room: max_room.clone(),
                room: parent.room.clone(),
                ..*parent
            };
            child_box.room[channel] += first_step;
            child_box.weight = child_box.weight.saturating_add(added_weight);
            child_box.bound = child_box.bound.max(child_box.weight);
            child_boxes.push(child_box);
            // The boxes of the other channels are those in which this one does not grow.
            max_room[channel] = parent.room[channel] + first_step - 1;
        }

        // Backwards, so that the first channel's box has the highest number: among equals the newest goes first.
        for mut child_box in child_boxes.into_iter().rev() {
            self.boxes_made += 1;
            child_box.serial = self.boxes_made;
            self.heap.push(child_box);
        }
    }
}

/// Channels of the cut that the box lets grow by their first step.
fn free_channels(cut: &Cut, opened: &CapacityBox) -> Vec<usize> {
    let mut free_list = cut.channels.clone();
    free_list.retain(|&channel| {
        let first_step = cut.first_step(channel, &opened.room);
        let grown_places = opened.room[channel].checked_add(first_step);
        grown_places.is_some_and(|places| places <= opened.max_room[channel])
    });
    free_list
}

/// Critical cycles that are exact where they miss the goal.
fn cycles_for_goal(
    net: &mut DependencyNet,
    room: &[i64],
    goal: Goal,
) -> Result<Vec<CriticalCycle>, ThroughputError> {
    let cycles = net.critical_cycles_until(room, &|period| goal.met(period), u64::MAX)?;
    Ok(cycles.unwrap_or_default())
}

fn cuts_of_missed(net: &DependencyNet, cycles: &[CriticalCycle], goal: Goal) -> Vec<Cut> {
    let missed = cycles.iter().filter(|cycle| !goal.met(cycle.period()));
    missed
        .flat_map(|cycle| make_cuts(net, cycle, goal))
        .collect()
}

/// Whether the capacities are known to meet the goal by unfoldings of at most so many dependencies.
pub(super) fn meets(
    net: &mut DependencyNet,
    room: &[i64],
    goal: Goal,
    max_dependencies: u64,
) -> Result<bool, ThroughputError> {
    let cycles = net.critical_cycles_until(room, &|period| goal.met(period), max_dependencies)?;
    Ok(cycles.is_some_and(|all| all.iter().all(|cycle| goal.met(cycle.period()))))
}

/// The period at the capacities, or a longer one that meets the goal, and cuts for every component that misses it.
pub(super) fn analyse(
    net: &mut DependencyNet,
    room: &[i64],
    goal: Goal,
) -> Result<(Option<Period>, Vec<Cut>), ThroughputError> {
    let cycles = cycles_for_goal(net, room, goal)?;
    let cuts = cuts_of_missed(net, &cycles, goal);
    Ok((longest_period(&cycles), cuts))
}

/// The longest period of all components; `None` if any is deadlocked.
fn longest_period(cycles: &[CriticalCycle]) -> Option<Period> {
    cycles.iter().try_fold(Period::ZERO, |longest, cycle| {
        Some(longest.max(cycle.period()?))
    })
}

/// Weight of the places of all channels (saturating).
pub(super) fn total_weight(room: &[i64], weights: &[u64]) -> u64 {
    let mut total = 0u64;
    for (&places, &weight) in room.iter().zip(weights) {
        total = total.saturating_add((places.max(0) as u64).saturating_mul(weight));
    }
    total
}
