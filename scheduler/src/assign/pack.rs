//! A lower bound on the period by packing: the large units go to devices one by one, the small ones are a fluid.
//!
//! Asked "is there a period below t?", a depth-first search puts the units, largest first, on devices with alike and
//! equally loaded ones taken once. It cuts where a load reaches t, where the weighted work no longer fits (see
//! [`find_weights`]), or where the large units left are more than the places that the free ticks offer. Transfers between
//! units that have been put count. If no branch survives until only fluid is left, the answer is no.

use std::cmp::Reverse;

use super::bound::{allowed_ticks, find_weights, min_weighted};
use super::merged::{MergedProblem, UnitNet};
use crate::search::Control;

/// A unit is large if it takes a fortieth of the period or more.
const LARGE: u64 = 40;

/// Large units beyond which the search is hopeless.
const MAX_LARGE: usize = 64;

/// Nodes between questions to the caller.
const ASK_EVERY: u64 = 4096;

/// Periods that are asked about at most.
const QUESTIONS: u32 = 24;

/// The largest bound on the period between `low` and `high`, the period of a known placement, that is proved with at
/// most `limit` nodes a question.
pub(crate) fn bound(
    merged: &MergedProblem,
    low: u64,
    high: u64,
    limit: u64,
    control: &mut Control<'_>,
) -> u64 {
    let mut proved = low;
    let mut unproved = high.saturating_add(1);
    // The known period itself first: often nothing is below it.
    let mut target = unproved - 1;

    for _ in 0..QUESTIONS {
        if target <= proved || control.stopped() {
            break;
        }
        match is_impossible(merged, target, limit, control) {
            true => proved = target,
            false => unproved = target,
        }
        target = proved + (unproved - proved) / 2;
    }
    proved
}

/// Whether it is proved with at most `limit` nodes that no placement has a period below `below`.
pub(crate) fn is_impossible(
    merged: &MergedProblem,
    below: u64,
    limit: u64,
    control: &mut Control<'_>,
) -> bool {
    // A search that is not possible proves nothing.
    let search = PackingSearch::new(merged, below, limit);
    search.is_some_and(|mut search| search.is_impossible(control))
}

struct PackingSearch<'a> {
    merged: &'a MergedProblem,
    /// Every load must be less.
    below: u64,
    ticks: Vec<Vec<Option<u64>>>,
    /// Large units, largest first.
    large: Vec<usize>,
    /// For each place the least ticks on each device of the large units from there on.
    min_ticks_from: Vec<Vec<u64>>,
    /// Least weighted work of the large units from each place on, and of all small ones.
    weighted_work_from: Vec<u128>,
    /// Weight of each device.
    weight: Vec<u128>,
    /// Weighted free ticks of all devices while they are empty.
    empty_room: u128,
    /// For each place of how many large units from there on empty devices have a place.
    empty_places: Vec<u128>,
    load: Vec<u64>,
    /// Devices that units have been put on: only these have loads.
    used: Vec<usize>,
    /// Units that have been put on each device.
    units_on: Vec<u32>,
    /// Loads of the used devices before the unit at each place was put.
    load_before: Vec<Vec<u64>>,
    /// For each place whether an empty device of each kind was tried.
    tried_empty: Vec<Vec<bool>>,
    /// Device of each unit that has been put.
    home: Vec<Option<usize>>,
    nodes: u64,
    limit: u64,
}

enum PackingStep {
    /// Some branch may hold a placement.
    May,
    Fails,
    OutOfNodes,
}

impl<'a> PackingSearch<'a> {
    /// `None` if there are too many large units to search.
    fn new(merged: &'a MergedProblem, below: u64, limit: u64) -> Option<PackingSearch<'a>> {
        let ticks = allowed_ticks(merged, below);
        let min_ticks: Vec<u64> = ticks
            .iter()
            .map(|row| row.iter().flatten().min().copied().unwrap_or(below))
            .collect();
        let mut large: Vec<usize> = (0..merged.units())
            .filter(|&unit| min_ticks[unit] >= (below / LARGE).max(1))
            .collect();
        if large.len() > MAX_LARGE {
            return None;
        }
        large.sort_by_key(|&unit| (Reverse(min_ticks[unit]), unit));

        // What is left to be put from each large unit on, weighted: compared with the weighted room that is left.
        let weight = find_weights(&ticks, merged).of;
        let mut weighted_work: u128 = ticks.iter().map(|row| min_weighted(row, &weight)).sum();
        let mut weighted_work_from = vec![weighted_work];
        for &unit in &large {
            weighted_work -= min_weighted(&ticks[unit], &weight);
            weighted_work_from.push(weighted_work);
        }

        // The smallest of the large units from each on: no device has more places for them than this one fits in.
        let mut min_ticks_from = vec![vec![u64::MAX; merged.devices]; large.len() + 1];
        for (place, &unit) in large.iter().enumerate().rev() {
            for (device, &own_ticks) in ticks[unit].iter().enumerate() {
                let later_ticks = min_ticks_from[place + 1][device];
                min_ticks_from[place][device] = later_ticks.min(own_ticks.unwrap_or(u64::MAX));
            }
        }

        let large_count = large.len();
        let kinds = merged.kind_of.iter().max().map_or(0, |max| max + 1);
        // Of empty devices, whose loads may be less than `below`.
        let free = below - 1;
        let room = weight.iter().map(|weight| weight * u128::from(free));
        let empty_places = min_ticks_from.iter().map(|row| {
            let places = row
                .iter()
                .map(|&ticks| u128::from(units_within(free, ticks)));
            places.sum()
        });
        Some(PackingSearch {
            merged,
            below,
            ticks,
            large,
            weighted_work_from,
            empty_room: room.sum(),
            empty_places: empty_places.collect(),
            min_ticks_from,
            weight,
            load: vec![0; merged.devices],
            used: Vec::with_capacity(large_count),
            units_on: vec![0; merged.devices],
            load_before: vec![Vec::with_capacity(large_count); large_count],
            tried_empty: vec![vec![false; kinds]; large_count],
            home: vec![None; merged.units()],
            nodes: 0,
            limit,
        })
    }

    /// Whether there is certainly no placement with a period below the target.
    fn is_impossible(&mut self, control: &Control<'_>) -> bool {
        matches!(self.put_next(0, control), PackingStep::Fails)
    }

    /// Puts the large unit at `place`, and all after it, on each device in turn.
    fn put_next(&mut self, place: usize, control: &Control<'_>) -> PackingStep {
        self.nodes += 1;
        if self.nodes > self.limit || (self.nodes.is_multiple_of(ASK_EVERY) && control.stopped()) {
            return PackingStep::OutOfNodes;
        }
        if !self.may_fit(place) {
            return PackingStep::Fails;
        }
        let Some(&unit) = self.large.get(place) else {
            return PackingStep::May;
        };

        let loads = self.used.iter().map(|&device| self.load[device]);
        self.load_before[place].clear();
        self.load_before[place].extend(loads);
        self.tried_empty[place].fill(false);
        for device in 0..self.merged.devices {
            // Of empty devices that are alike the first stands for all.
            let kind = self.merged.kind_of[device];
            if self.load[device] == 0 && std::mem::replace(&mut self.tried_empty[place][kind], true)
            {
                continue;
            }
            let Some(ticks) = self.ticks[unit][device] else {
                continue;
            };
            if self.load[device] + ticks >= self.below {
                continue;
            }

            self.put(unit, device, ticks);
            let mut used = self.used.iter();
            let step = match used.all(|&device| self.load[device] < self.below) {
                true => self.put_next(place + 1, control),
                false => PackingStep::Fails,
            };
            self.take_back(unit, device, place);

            if !matches!(step, PackingStep::Fails) {
                return step;
            }
        }
        PackingStep::Fails
    }

    fn put(&mut self, unit: usize, device: usize, ticks: u64) {
        if self.units_on[device] == 0 {
            self.used.push(device);
        }
        self.units_on[device] += 1;
        self.home[unit] = Some(device);
        self.load[device] += ticks;
        self.charge_nets(unit, device);
    }

    /// Takes back the unit at a place, which was the last one to be put.
    fn take_back(&mut self, unit: usize, device: usize, place: usize) {
        self.home[unit] = None;
        self.units_on[device] -= 1;
        if self.units_on[device] == 0 {
            self.used.pop();
            self.load[device] = 0;
        }
        // Nets charge several devices: all loads are restored at once.
        for (&used, &load) in self.used.iter().zip(&self.load_before[place]) {
            self.load[used] = load;
        }
    }

    /// Adds what the nets of a unit just put on `device` cost more because of it.
    fn charge_nets(&mut self, unit: usize, device: usize) {
        let merged = self.merged;

        for &index in &merged.nets_of[unit] {
            let net = &merged.nets[index];
            let Some(from) = self.home[net.from] else {
                continue;
            };
            let other_readers = self.devices_of_readers(net, from, unit);
            if net.from == unit {
                self.load[from] += self.send_ticks(net, from, &other_readers);
                for &reader in &other_readers {
                    self.load[reader] += merged.receive_ticks(net, from, reader);
                }
            // A further reader on a device that has one already costs nothing.
            } else if device != from && !other_readers.contains(&device) {
                let ticks_before = self.send_ticks(net, from, &other_readers);
                let mut readers = other_readers;
                readers.push(device);
                self.load[device] += merged.receive_ticks(net, from, device);
                self.load[from] += self.send_ticks(net, from, &readers) - ticks_before;
            }
        }
    }

    /// Devices other than the writer's of the readers that have been put, each once, one unit left out.
    fn devices_of_readers(&self, net: &UnitNet, from: usize, without: usize) -> Vec<usize> {
        let mut devices = Vec::new();
        for &reader in net.to.iter().filter(|&&reader| reader != without) {
            if let Some(device) = self.home[reader]
                && device != from
            {
                devices.push(device);
            }
        }
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    fn send_ticks(&self, net: &UnitNet, from: usize, readers: &[usize]) -> u64 {
        let ticks = readers
            .iter()
            .map(|&device| self.merged.send_ticks(net, from, device));
        match self.merged.sends_once {
            true => ticks.max().unwrap_or(0),
            false => ticks.sum(),
        }
    }

    /// Whether the weighted work from `place` on fits the free ticks, and there is a place for each large unit.
    fn may_fit(&self, place: usize) -> bool {
        let mut weighted_room = self.empty_room;
        let mut places = self.empty_places[place];

        let empty_ticks = self.below - 1;
        for &device in &self.used {
            let load = self.load[device];
            weighted_room -= self.weight[device] * u128::from(load);
            let min_ticks = self.min_ticks_from[place][device];
            places -= u128::from(units_within(empty_ticks, min_ticks));
            places += u128::from(units_within(empty_ticks - load, min_ticks));
        }
        let left = (self.large.len() - place) as u128;
        weighted_room >= self.weighted_work_from[place] && places >= left
    }
}

/// How many units of at least so many ticks fit free ones; none where no unit can run.
fn units_within(free: u64, min_ticks: u64) -> u64 {
    match min_ticks {
        u64::MAX => 0,
        ticks => free / ticks.max(1),
    }
}
