//! Lower bounds on the period, computed in integers.

use std::cmp::Reverse;

use super::merged::MergedProblem;

/// Kinds of devices up to which every set of them is looked at.
const MAX_KINDS: usize = 10;

/// Lower bound on the period of every placement with a smaller period than `below`, at most `below`. So
/// `min(below, best)` bounds all placements.
///
/// Transfers count nothing here. Four arguments, each over the sets of device kinds:
/// - a node that takes `below` or more on a device is not there;
/// - the work of the nodes that can only run on m devices is at least a mean of 1/m;
/// - of the m*k + 1 largest such nodes some k + 1 share a device (pigeonholes);
/// - for any weights of the devices that sum to 1, the period is at least the sum of least weighted ticks (linear
///   programming duality).
pub(crate) fn period_bound(merged: &MergedProblem, below: u64) -> u64 {
    let allowed = allowed_ticks(merged, below);
    if allowed.iter().any(|row| row.iter().all(Option::is_none)) {
        return below;
    }

    let mut kinds = merged.devices_by_kind();
    if kinds.len() > MAX_KINDS {
        // Units that can run on some devices only are not told apart.
        kinds = vec![(0..merged.devices).collect()];
    }
    let units = AllowedUnit::all(&allowed, &kinds);
    let mut bound = 0;
    // Each set of kinds as a word of bits, the empty one left out.
    for set in 1..1usize << kinds.len() {
        bound = bound.max(bound_of_kinds(&units, &kinds, set));
    }
    bound.max(find_weights(&allowed, merged).bound).min(below)
}

/// Where a unit can run.
struct AllowedUnit {
    /// Kinds of devices that can run it, as a word of bits.
    kinds: usize,
    /// Least ticks on any device.
    min_ticks: u64,
}

impl AllowedUnit {
    /// The units by rows of ticks, largest first, for at most [`MAX_KINDS`] kinds.
    fn all(allowed: &[Vec<Option<u64>>], kinds: &[Vec<usize>]) -> Vec<Self> {
        let mut units = Vec::with_capacity(allowed.len());
        for row in allowed {
            let Some(min_ticks) = row.iter().flatten().copied().min() else {
                continue;
            };
            let mut unit = AllowedUnit {
                kinds: 0,
                min_ticks,
            };
            for (kind, devices) in kinds.iter().enumerate() {
                let can_run = devices.iter().any(|&device| row[device].is_some());
                unit.kinds |= usize::from(can_run) << kind;
            }
            units.push(unit);
        }
        units.sort_unstable_by_key(|unit| Reverse(unit.min_ticks));
        units
    }
}

/// Bound by the units that can run on devices of some kinds only.
fn bound_of_kinds(units: &[AllowedUnit], kinds: &[Vec<usize>], set: usize) -> u64 {
    let inside = kinds.iter().enumerate();
    let count: usize = inside
        .filter(|&(kind, _)| set >> kind & 1 == 1)
        .map(|(_, devices)| devices.len())
        .sum();
    let confined = units.iter().filter(|unit| unit.kinds & !set == 0);
    let sizes: Vec<u64> = confined.map(|unit| unit.min_ticks).collect();

    let mut bound = sizes.iter().sum::<u64>().div_ceil(count as u64);
    for shared in 0.. {
        let largest = count * shared + 1;
        if largest > sizes.len() {
            break;
        }
        // Of so many of the largest, `shared + 1` meet on one device: at least the smallest of them.
        bound = bound.max(sizes[largest - (shared + 1)..largest].iter().sum());
    }
    bound
}

/// Ticks of each unit on each device that are less than `below`.
pub(crate) fn allowed_ticks(merged: &MergedProblem, below: u64) -> Vec<Vec<Option<u64>>> {
    let mut allowed = merged.ticks.clone();
    for ticks in allowed.iter_mut().flatten() {
        *ticks = ticks.filter(|&ticks| ticks < below);
    }
    allowed
}

/// Least weighted ticks of a unit on any device.
pub(crate) fn min_weighted(row: &[Option<u64>], weights: &[u128]) -> u128 {
    row.iter()
        .zip(weights)
        .filter_map(|(ticks, weight)| Some(u128::from((*ticks)?) * weight))
        .min()
        .unwrap_or(0)
}

/// First weights are about so large: enough for steps of a thousandth.
const ONE: u128 = 1 << 24;

/// Rounds of one step size at most: gains may get as small as a tick.
const MAX_ROUNDS: usize = 100;

/// Weighted ticks that are looked at in the rounds of one step size: a second.
const MAX_ROUND_WORK: usize = 1 << 28;

/// Weights of devices whose sum bounds a period from below.
#[derive(Clone, Debug)]
pub(crate) struct DeviceWeights {
    pub(crate) of: Vec<u128>,
    pub(crate) bound: u64,
}

/// Finds weights w for which `sum over units of min over devices of w * ticks`, over the sum of w, is large: from
/// equal weights and from the inverse of each device's total, by scaling one kind of device at a time.
pub(crate) fn find_weights(allowed: &[Vec<Option<u64>>], merged: &MergedProblem) -> DeviceWeights {
    let kinds = KindTicks::of(allowed, merged);
    let kind_count = kinds.devices.len();
    let mut best = KindWeights::new(vec![ONE; kind_count], &kinds);
    let inverse = KindWeights::new(kinds.inverse_weights(), &kinds);
    if inverse.bound > best.bound {
        best = inverse;
    }

    let round_work = 2 * kind_count * allowed.len() * kind_count;
    let max_rounds = (MAX_ROUND_WORK / round_work.max(1)).clamp(1, MAX_ROUNDS);
    for percent in [200, 130, 110, 102] {
        for _ in 0..max_rounds {
            let bound_before = best.bound;
            for kind in 0..kind_count {
                for (factor, divisor) in [(percent, 100), (100, percent)] {
                    // Bounded, so that no product overflows.
                    let scaled = (best.of[kind] * factor / divisor).clamp(1, ONE * ONE);
                    let bound = best.bound_with(&kinds, kind, scaled);
                    if bound > best.bound {
                        best.set(&kinds, kind, scaled);
                        best.bound = bound;
                    }
                }
            }
            if best.bound == bound_before {
                break;
            }
        }
    }

    let weights = merged.kind_of.iter().map(|&kind| best.of[kind]);
    DeviceWeights {
        of: weights.collect(),
        bound: best.bound,
    }
}

/// What the units take on each kind of device: alike devices take the same, and so they get the same weight.
struct KindTicks {
    /// Devices of each kind.
    devices: Vec<u128>,
    /// Ticks of each unit by kind.
    ticks: Vec<Vec<Option<u64>>>,
}

impl KindTicks {
    fn of(allowed: &[Vec<Option<u64>>], merged: &MergedProblem) -> Self {
        let kinds = merged.devices_by_kind();
        let kind_row =
            |row: &Vec<Option<u64>>| kinds.iter().map(|devices| row[devices[0]]).collect();
        KindTicks {
            devices: kinds.iter().map(|devices| devices.len() as u128).collect(),
            ticks: allowed.iter().map(kind_row).collect(),
        }
    }

    /// Weights that are inverse to the mean ticks on each kind.
    fn inverse_weights(&self) -> Vec<u128> {
        let mut means = Vec::with_capacity(self.devices.len());
        for kind in 0..self.devices.len() {
            let mut sum = 0u128;
            let mut count = 0u128;
            for ticks in self.ticks.iter().filter_map(|row| row[kind]) {
                sum += u128::from(ticks);
                count += 1;
            }
            means.push((sum / count.max(1)).max(1));
        }

        let max_mean = means.iter().max().copied().unwrap_or(1);
        means
            .iter()
            .map(|mean| (ONE * max_mean / mean).min(ONE * ONE))
            .collect()
    }
}

/// The two least weighted ticks of a unit, on different kinds.
#[derive(Clone, Copy)]
struct LeastTwo {
    least: u128,
    kind: usize,
    second: u128,
    second_kind: usize,
}

/// Weights of the kinds, and the bound that they give: the sum over units of the least weighted ticks, over the sum of
/// the weights of all devices.
struct KindWeights {
    of: Vec<u128>,
    bound: u64,
    /// Sum of the weights of all devices.
    sum: u128,
    /// For each unit, so that the change of one weight can be tried without a look at all kinds.
    least_of: Vec<LeastTwo>,
}

impl KindWeights {
    fn new(of: Vec<u128>, kinds: &KindTicks) -> Self {
        let weighted = of.iter().zip(&kinds.devices);
        let sum: u128 = weighted.map(|(weight, devices)| weight * devices).sum();
        let least_of: Vec<LeastTwo> = kinds
            .ticks
            .iter()
            .map(|row| LeastTwo::of(row, &of))
            .collect();

        let least_sum: u128 = least_of.iter().map(|unit| or_zero(unit.least)).sum();
        KindWeights {
            bound: quotient_bound(least_sum, sum),
            of,
            sum,
            least_of,
        }
    }

    /// Gives a kind another weight, without the bound that follows.
    fn set(&mut self, kinds: &KindTicks, kind: usize, weight: u128) {
        let devices = kinds.devices[kind];
        self.sum = self.sum - self.of[kind] * devices + weight * devices;
        self.of[kind] = weight;

        for (row, unit) in kinds.ticks.iter().zip(&mut self.least_of) {
            let Some(ticks) = row[kind] else { continue };
            // Only where the kind is, or becomes, one of the two.
            let is_one = unit.kind == kind || unit.second_kind == kind;
            if is_one || u128::from(ticks) * weight < unit.second {
                *unit = LeastTwo::of(row, &self.of);
            }
        }
    }

    /// The bound with another weight of one kind.
    fn bound_with(&self, kinds: &KindTicks, kind: usize, weight: u128) -> u64 {
        let mut least_sum = 0;
        for (row, unit) in kinds.ticks.iter().zip(&self.least_of) {
            let elsewhere = match unit.kind == kind {
                true => unit.second,
                false => unit.least,
            };
            let here = row[kind].map_or(u128::MAX, |ticks| u128::from(ticks) * weight);
            least_sum += or_zero(elsewhere.min(here));
        }
        let sum = self.sum - self.of[kind] * kinds.devices[kind] + weight * kinds.devices[kind];
        quotient_bound(least_sum, sum)
    }
}

impl LeastTwo {
    fn of(row: &[Option<u64>], weights: &[u128]) -> Self {
        let mut found = LeastTwo {
            least: u128::MAX,
            kind: usize::MAX,
            second: u128::MAX,
            second_kind: usize::MAX,
        };
        for (kind, (ticks, weight)) in row.iter().zip(weights).enumerate() {
            let Some(ticks) = *ticks else { continue };
            let weighted = u128::from(ticks) * weight;
            if weighted < found.least {
                found.second = found.least;
                found.second_kind = found.kind;
                found.least = weighted;
                found.kind = kind;
            } else if weighted < found.second {
                found.second = weighted;
                found.second_kind = kind;
            }
        }
        found
    }
}

/// What a unit adds that has so many least weighted ticks: nothing if there is no device for it.
fn or_zero(least: u128) -> u128 {
    match least {
        u128::MAX => 0,
        ticks => ticks,
    }
}

fn quotient_bound(least_sum: u128, weight_sum: u128) -> u64 {
    u64::try_from(least_sum.div_ceil(weight_sum.max(1))).unwrap_or(0)
}

/// Lower bound on the latency: the longest path with every node on its best device and no transfers.
pub(crate) fn latency_bound(problem: &super::PlacementProblem) -> u64 {
    let Ok(order) = problem.order() else { return 0 };
    let nodes = problem.nodes.len();
    let mut readers_of: Vec<Vec<u32>> = vec![Vec::new(); nodes];
    for channel in problem.channels_within_period() {
        readers_of[channel.from as usize].extend(&channel.to);
    }

    let mut ready_at = vec![0u64; nodes];
    let mut last_end = 0;
    for node in order {
        // As if each node were alone on the device that is best for it.
        let end = ready_at[node] + problem.min_ticks(node);
        last_end = end.max(last_end);
        for &reader in &readers_of[node] {
            let ready = &mut ready_at[reader as usize];
            *ready = (*ready).max(end);
        }
    }
    last_end
}

/// Lower bound on the bytes of the fullest device: the mean, and the largest node.
pub(crate) fn memory_bound(merged: &MergedProblem) -> u64 {
    let total: u64 = merged.bytes.iter().sum();
    let largest = merged.bytes.iter().max().copied().unwrap_or(0);
    largest.max(total.div_ceil(merged.devices.max(1) as u64))
}
