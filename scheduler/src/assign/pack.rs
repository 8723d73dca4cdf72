//! A lower bound on the period by packing: the large units go to devices one by one, the small ones are a fluid.
//!
//! Asked "is there a period below t?", a depth-first search puts the units, largest first, on devices with alike and
//! equally loaded ones taken once. It cuts where a load reaches t, where the weighted work no longer fits (see
//! [`weigh`]), or where the large units left are more than the places that the free ticks offer. Transfers between
//! units that have been put count. If no branch survives until only fluid is left, the answer is no.

use super::bound::{allowed, weigh};
use super::merged::Merged;
use crate::search::Control;

/// A unit is large if it takes a fortieth of the period or more.
const LARGE: u64 = 40;

/// Large units beyond which the search is hopeless.
const MAX_LARGE: usize = 64;

/// Nodes between questions to the caller.
const ASK_EVERY: u64 = 4096;

/// Questions asked at most.
const QUESTIONS: u32 = 24;

/// The largest bound on the period between `low` and `high`, the period of a known placement, that is proved with at
/// most `limit` nodes a question.
pub(crate) fn bound(
    merged: &Merged,
    low: u64,
    high: u64,
    limit: u64,
    control: &mut Control<'_>,
) -> u64 {
    let (mut low, mut high) = (low, high.saturating_add(1));
    // The known period itself first: often nothing is below it.
    let mut target = high - 1;
    for _ in 0..QUESTIONS {
        if target <= low || control.stopped() {
            break;
        }
        let fails = Packing::new(merged, target, limit).is_some_and(|mut p| p.fails(control));
        if fails {
            low = target;
        } else {
            high = target;
        }
        target = low + (high - low) / 2;
    }
    low
}

struct Packing<'a> {
    merged: &'a Merged,
    /// Every load must be less.
    below: u64,
    ticks: Vec<Vec<Option<u64>>>,
    /// Large units, largest first.
    large: Vec<usize>,
    /// For each device the least ticks of the large units from each place on.
    smallest: Vec<Vec<u64>>,
    /// Least weighted work of the large units from each place on, and of all small ones.
    rest: Vec<u128>,
    weight: Vec<u128>,
    load: Vec<u64>,
    home: Vec<Option<usize>>,
    nodes: u64,
    limit: u64,
}

enum Step {
    /// Some branch may hold a placement.
    May,
    Fails,
    OutOfNodes,
}

impl<'a> Packing<'a> {
    fn new(merged: &'a Merged, below: u64, limit: u64) -> Option<Packing<'a>> {
        let ticks = allowed(merged, below);
        let weight = weigh(&ticks, merged).of;
        let least = |u: usize| ticks[u].iter().flatten().min().copied().unwrap_or(below);
        let mut large: Vec<usize> = (0..merged.units())
            .filter(|&u| least(u) >= (below / LARGE).max(1))
            .collect();
        if large.len() > MAX_LARGE {
            return None;
        }
        large.sort_by_key(|&u| (std::cmp::Reverse(least(u)), u));
        let work = |u: usize| {
            let on = ticks[u].iter().zip(&weight);
            on.filter_map(|(t, w)| Some(u128::from((*t)?) * w))
                .min()
                .unwrap_or(0)
        };
        let all: u128 = (0..merged.units()).map(work).sum();
        let mut rest = vec![all];
        for &u in &large {
            rest.push(rest[rest.len() - 1] - work(u));
        }
        let mut smallest = vec![vec![u64::MAX; large.len() + 1]; merged.devices];
        for (d, row) in smallest.iter_mut().enumerate() {
            for (place, &u) in large.iter().enumerate().rev() {
                row[place] = row[place + 1].min(ticks[u][d].unwrap_or(u64::MAX));
            }
        }
        let (load, home) = (vec![0; merged.devices], vec![None; merged.units()]);
        Some(Packing {
            merged,
            below,
            ticks,
            large,
            smallest,
            rest,
            weight,
            load,
            home,
            nodes: 0,
            limit,
        })
    }

    /// Whether there is certainly no placement with a period below the target.
    fn fails(&mut self, control: &Control<'_>) -> bool {
        matches!(self.put(0, control), Step::Fails)
    }

    fn put(&mut self, place: usize, control: &Control<'_>) -> Step {
        self.nodes += 1;
        if self.nodes > self.limit || (self.nodes.is_multiple_of(ASK_EVERY) && control.stopped()) {
            return Step::OutOfNodes;
        }
        if !self.may_fit(place) {
            return Step::Fails;
        }
        let Some(&unit) = self.large.get(place) else {
            return Step::May;
        };
        for device in 0..self.merged.devices {
            let Some(ticks) = self.ticks[unit][device] else {
                continue;
            };
            // An alike device that is as empty was tried before.
            let twin = (0..device).any(|e| {
                self.merged.kind[e] == self.merged.kind[device]
                    && self.load[e] == 0
                    && self.load[device] == 0
            });
            if twin || self.load[device] + ticks >= self.below {
                continue;
            }
            let before = self.load.clone();
            self.home[unit] = Some(device);
            self.load[device] += ticks;
            self.charge(unit);
            let step = if self.load.iter().all(|&l| l < self.below) {
                self.put(place + 1, control)
            } else {
                Step::Fails
            };
            self.load = before;
            self.home[unit] = None;
            if !matches!(step, Step::Fails) {
                return step;
            }
        }
        Step::Fails
    }

    /// Adds what the nets of a unit just put cost more because of it.
    fn charge(&mut self, unit: usize) {
        let merged = self.merged;
        let devices = merged.devices;
        let Some(here) = self.home[unit] else { return };
        for &index in &merged.nets_of[unit] {
            let net = &merged.nets[index];
            let Some(from) = self.home[net.from] else {
                continue;
            };
            let others = |s: &Self, skip: usize| -> Vec<usize> {
                let put = net
                    .to
                    .iter()
                    .filter(|&&t| t != skip)
                    .filter_map(|&t| s.home[t]);
                let mut put: Vec<usize> = put.filter(|&d| d != from).collect();
                put.sort_unstable();
                put.dedup();
                put
            };
            let price = |list: &[usize], receive: bool| -> u64 {
                let row = if receive { &net.receive } else { &net.send };
                let costs = list.iter().map(|&d| row[from * devices + d]);
                if receive || !merged.once {
                    costs.sum()
                } else {
                    costs.max().unwrap_or(0)
                }
            };
            if net.from == unit {
                let readers = others(self, unit);
                self.load[from] += price(&readers, false);
                for &d in &readers {
                    self.load[d] += price(&[d], true);
                }
            } else {
                let was = others(self, unit);
                if here == from || was.contains(&here) {
                    continue;
                }
                self.load[here] += price(&[here], true);
                let mut is = was.clone();
                is.push(here);
                self.load[from] += price(&is, false) - price(&was, false);
            }
        }
    }

    fn may_fit(&self, place: usize) -> bool {
        let most = u128::from(self.below - 1);
        let mut room = 0;
        let mut places = 0u64;
        for (d, &load) in self.load.iter().enumerate() {
            let free = self.below - 1 - load;
            room += self.weight[d] * (most - u128::from(load));
            if self.smallest[d][place] < u64::MAX {
                places = places.saturating_add(free / self.smallest[d][place].max(1));
            }
        }
        room >= self.rest[place] && places >= (self.large.len() - place) as u64
    }
}
