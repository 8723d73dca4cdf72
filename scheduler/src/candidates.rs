//! Which devices a search for placements sees, how many of them it tries, and which numbers cannot be good enough.
//!
//! Time is to grow with the devices about as the machine's description does: of devices that are alike no more are
//! seen than there are clusters, of very many unlike ones a choice, and a number of devices that a bound rules out
//! takes no search.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::{ActorCost, DeviceId};

use crate::assign::Objective;
use crate::inputs::Inputs;
use crate::place::{ClusterLoads, DeviceLoads, MAX_SEARCHED_CLUSTERS};
use crate::problem::BlockProblem;

/// Devices up to which a search sees all of them, alike or not.
pub(crate) const FEW_DEVICES: usize = 16;

/// Devices up to which a search sees all unlike ones, and each number of them is tried.
pub(crate) const ALL_DEVICES: usize = 64;

/// Devices that a search sees at most: telling alike devices apart takes up to the cube of their number.
const MAX_SEARCHED_DEVICES: usize = 256;

/// Prices that a search keeps at most, one for each channel and ordered pair of devices that are linked unlike all
/// others: some hundred megabytes.
const MAX_PRICES: usize = 1 << 24;

/// Numbers of devices that are tried, ascending, from 1 to `devices`: every one up to [`ALL_DEVICES`], then each a quarter
/// more than the one before, so that there are O(log devices) of them.
pub(crate) fn device_counts(devices: usize) -> impl Iterator<Item = usize> {
    let next_count = move |&count: &usize| {
        let step = match count < ALL_DEVICES {
            true => 1,
            false => count / 4,
        };
        (count < devices).then(|| (count + step).min(devices))
    };
    std::iter::successors(Some(1), next_count).filter(move |_| devices > 0)
}

/// The devices that a search sees: a few in id order; of more the ones that a placement on some of them wants first, first.
///
/// Of up to [`ALL_DEVICES`], all but those that an alike one stands for. Of more, the cheapest of each cluster, as many
/// for each as there are clusters: if a cluster sits elsewhere, one of its own is free and, links apart, no worse. Where
/// the period alone counts (`for_period`), no more of alike devices than [`UsefulCounts`] says.
pub(crate) fn candidate_devices(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    allowed: &[DeviceId],
    for_period: bool,
) -> Vec<DeviceId> {
    if allowed.len() <= FEW_DEVICES || loads.len() > MAX_SEARCHED_CLUSTERS {
        return allowed.to_vec();
    }

    let counts = UsefulCounts::new(loads, allowed, for_period);
    if allowed.len() <= ALL_DEVICES {
        let unlike = without_surplus(problem, loads, allowed, &counts);
        let ranks = counts.most(&unlike);
        let mut chosen = choose_by_cost(loads, &unlike, ranks, unlike.len());
        let is_chosen: BTreeSet<DeviceId> = chosen.iter().copied().collect();
        chosen.extend(unlike.iter().filter(|device| !is_chosen.contains(device)));
        return chosen;
    }
    let channels = problem.graph.channels.len().max(1);
    let max_devices = (MAX_PRICES / channels)
        .isqrt()
        .clamp(ALL_DEVICES, MAX_SEARCHED_DEVICES);
    choose_by_cost(loads, allowed, counts.most(allowed), max_devices)
}

/// At most so many devices: the cheapest of every cluster first, then the next cheapest, so that each cluster gets its
/// share of the choice, up to `ranks` for each.
fn choose_by_cost(
    loads: &ClusterLoads,
    devices: &[DeviceId],
    ranks: usize,
    max_devices: usize,
) -> Vec<DeviceId> {
    let ranks = ranks.min(max_devices);
    let by_cost: Vec<Vec<DeviceId>> = loads
        .iter()
        .map(|row| cheapest_devices(row, devices, ranks))
        .collect();

    let mut chosen = Vec::new();
    let mut is_chosen = BTreeSet::new();
    for rank in 0..ranks {
        for &device in by_cost.iter().filter_map(|devices| devices.get(rank)) {
            if chosen.len() < max_devices && is_chosen.insert(device) {
                chosen.push(device);
            }
        }
    }
    chosen
}

/// How many alike devices are of use.
///
/// Never more than clusters. Where the period alone counts, fewer: none is shorter than the largest of the clusters' least
/// loads. Work that is put, cluster by cluster, on the first of some alike devices where the load stays within the period
/// fills fewer than `2 * sum / largest + 1` of them, since the loads of any two are together above the period. More only
/// make more transfers. Memory and latency may ask for more devices than the period does.
struct UsefulCounts<'a> {
    loads: &'a ClusterLoads,
    /// The largest of the clusters' least loads; `None` where it is no limit.
    largest_load: Option<u64>,
}

impl<'a> UsefulCounts<'a> {
    fn new(loads: &'a ClusterLoads, devices: &[DeviceId], for_period: bool) -> Self {
        let least_loads = loads.iter().map(|row| {
            let on_each = devices.iter().filter_map(|&device| row[device]);
            on_each.min().unwrap_or(0)
        });
        let largest_load = least_loads.max().unwrap_or(0).max(1);
        UsefulCounts {
            loads,
            largest_load: for_period.then_some(largest_load),
        }
    }

    /// Of devices like this one.
    fn alike(&self, device: DeviceId) -> usize {
        let clusters = self.loads.len();
        let Some(largest_load) = self.largest_load else {
            return clusters;
        };
        let on_device = self.loads.iter().filter_map(|row| row[device]);
        let total: u128 = on_device.map(u128::from).sum();
        let count = (2 * total).div_ceil(u128::from(largest_load)) + 1;
        usize::try_from(count).map_or(clusters, |count| count.min(clusters))
    }

    /// The most of any of these devices.
    fn most(&self, devices: &[DeviceId]) -> usize {
        let counts = devices.iter().map(|&device| self.alike(device));
        counts.max().unwrap_or(0)
    }
}

/// The `count` cheapest of the devices that can run a cluster, cheapest first, then by id.
fn cheapest_devices(row: &DeviceLoads, allowed: &[DeviceId], count: usize) -> Vec<DeviceId> {
    let mut devices: Vec<(u64, DeviceId)> = allowed
        .iter()
        .filter_map(|&device| Some((row[device]?, device)))
        .collect();
    if count < devices.len() {
        devices.select_nth_unstable(count);
        devices.truncate(count);
    }
    // Equal costs keep the order of ids.
    devices.sort_unstable();
    devices.into_iter().map(|(_, device)| device).collect()
}

/// The devices without those of which more are alike than are of use: a placement that uses one of these is as good on
/// others.
fn without_surplus(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    allowed: &[DeviceId],
    counts: &UsefulCounts<'_>,
) -> Vec<DeviceId> {
    let mut kept = Vec::new();
    for equals in equally_quick(problem, loads, allowed) {
        // Those that are equally quick may differ by their links.
        let mut kinds: Vec<Vec<DeviceId>> = Vec::new();
        for device in equals {
            let known = kinds
                .iter_mut()
                .find(|kind| are_linked_alike(problem, allowed, kind[0], device));
            match known {
                Some(kind) => kind.push(device),
                None => kinds.push(vec![device]),
            }
        }
        for kind in kinds {
            let count = counts.alike(kind[0]);
            kept.extend(kind.into_iter().take(count));
        }
    }
    kept.sort_unstable();
    kept
}

/// The first of all devices on which a plan without any other device is the same but for its times.
pub(crate) fn unlike_alone(inputs: Inputs<'_>, devices: &[DeviceId]) -> Vec<DeviceId> {
    let pinned: BTreeSet<DeviceId> = inputs.options.pins.values().copied().collect();
    let times_matter = inputs.options.max_latency_ns.is_some();
    let mut unlike: Vec<DeviceId> = Vec::new();

    for &device in devices {
        let mut known = unlike.iter();
        let is_known = known.any(|&first| {
            !pinned.contains(&device)
                && !pinned.contains(&first)
                && are_alike_alone(inputs, first, device, times_matter)
        });
        if !is_known {
            unlike.push(device);
        }
    }
    unlike
}

fn are_alike_alone(
    inputs: Inputs<'_>,
    first: DeviceId,
    second: DeviceId,
    times_matter: bool,
) -> bool {
    let first_device = &inputs.machine.devices[first];
    let second_device = &inputs.machine.devices[second];
    let is_same_device = first_device.memory_bytes == second_device.memory_bytes
        && first_device.backend == second_device.backend
        && inputs.machine.tiers.get(&first) == inputs.machine.tiers.get(&second)
        && (!times_matter || first_device.bytes_per_s == second_device.bytes_per_s);

    let scratch = |cost: Option<ActorCost>| cost.map(|cost| cost.scratch_bytes);
    let mut rows = inputs.costs.table.iter();
    is_same_device
        && rows.all(|row| match times_matter {
            true => row[first] == row[second],
            false => scratch(row[first]) == scratch(row[second]),
        })
}

/// The devices in groups of those that take the same time for each cluster and have the same memory, ascending in each.
pub(crate) fn equally_quick(
    problem: &BlockProblem<'_>,
    loads: &ClusterLoads,
    devices: &[DeviceId],
) -> Vec<Vec<DeviceId>> {
    let mut groups: BTreeMap<(u64, Vec<Option<u64>>), Vec<DeviceId>> = BTreeMap::new();
    for &device in devices {
        let memory_bytes = problem.machine.devices[device].memory_bytes;
        let column = loads.iter().map(|row| row[device]).collect();
        let group = groups.entry((memory_bytes, column)).or_default();
        group.push(device);
    }
    groups.into_values().collect()
}

/// Whether two devices can be exchanged, as far as their links to the others are concerned. An equivalence among devices
/// that are linked like that.
fn are_linked_alike(
    problem: &BlockProblem<'_>,
    all: &[DeviceId],
    first: DeviceId,
    second: DeviceId,
) -> bool {
    let others = all
        .iter()
        .filter(|&&other| other != first && other != second);
    link_speed(problem, first, second) == link_speed(problem, second, first)
        && others.into_iter().all(|&other| {
            link_speed(problem, first, other) == link_speed(problem, second, other)
                && link_speed(problem, other, first) == link_speed(problem, other, second)
        })
}

/// Bandwidth and latency of a link, if there is one.
fn link_speed(problem: &BlockProblem<'_>, from: DeviceId, to: DeviceId) -> Option<[u64; 2]> {
    let link = problem.link(from, to);
    link.map(|link| [link.bytes_per_s, link.latency_ns])
}

/// Lower bounds on the cost of placements on the first devices of a list: first of few, then of more and more.
pub(crate) struct CountBounds<'a> {
    loads: &'a ClusterLoads,
    devices: &'a [DeviceId],
    objective: Objective,
    count: usize,
    /// Least load of each cluster on the first `count` devices; `None` where none of them can run it.
    min_loads: Vec<Option<u64>>,
}

impl<'a> CountBounds<'a> {
    pub(crate) fn new(
        loads: &'a ClusterLoads,
        devices: &'a [DeviceId],
        objective: Objective,
    ) -> Self {
        CountBounds {
            loads,
            devices,
            objective,
            count: 0,
            min_loads: vec![None; loads.len()],
        }
    }

    /// What no placement on the first `count` devices costs less than; `None` if there is no such placement. Counts must
    /// not fall from call to call.
    pub(crate) fn least_cost(&mut self, count: usize) -> Option<u64> {
        for &device in &self.devices[self.count..count] {
            for (min_load, row) in self.min_loads.iter_mut().zip(self.loads) {
                let known_load: Option<u64> = *min_load;
                *min_load = known_load.into_iter().chain(row[device]).min();
            }
        }
        self.count = count;

        let sizes: Option<Vec<u64>> = self.min_loads.iter().copied().collect();
        let period_ps = shared_load(sizes?, count);
        Some(self.objective.period.saturating_mul(period_ps))
    }
}

/// What the fullest of `count` devices has at least of pieces of work of these sizes.
fn shared_load(mut sizes: Vec<u64>, count: usize) -> u64 {
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let total: u128 = sizes.iter().map(|&size| u128::from(size)).sum();
    let mean = total.div_ceil(count.max(1) as u128);
    let mut bound = u64::try_from(mean).unwrap_or(u64::MAX);

    for shared in 1.. {
        let largest = count * shared + 1;
        if largest > sizes.len() {
            break;
        }
        // Of so many of the largest, `shared + 1` meet on one device: at least the smallest of them.
        let smallest = sizes[largest - (shared + 1)..largest].iter();
        bound = bound.max(smallest.fold(0, |sum, &size| sum.saturating_add(size)));
    }
    bound
}

#[cfg(test)]
mod tests;
