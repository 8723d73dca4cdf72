//! Lower bounds on the period, computed in integers.

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

    let kinds = merged.devices_by_kind().len();
    let mut bound = 0;
    if kinds <= MAX_KINDS {
        // Each set of kinds as a word of bits, the empty one left out.
        for set in 1..1usize << kinds {
            let is_inside = |device: usize| set >> merged.kind_of[device] & 1 == 1;
            bound = bound.max(bound_of_devices(merged, &allowed, is_inside));
        }
    } else {
        bound = bound_of_devices(merged, &allowed, |_| true);
    }
    bound.max(find_weights(&allowed, merged).bound).min(below)
}

/// Bound by the units that can run on some devices only.
fn bound_of_devices(
    merged: &MergedProblem,
    allowed: &[Vec<Option<u64>>],
    is_inside: impl Fn(usize) -> bool,
) -> u64 {
    let devices = (0..merged.devices).filter(|&device| is_inside(device));
    let count = devices.count();
    let mut sizes: Vec<u64> = allowed
        .iter()
        .filter(|row| (0..merged.devices).all(|device| is_inside(device) || row[device].is_none()))
        .filter_map(|row| row.iter().flatten().copied().min())
        .collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));

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

/// Weights of devices whose sum bounds a period from below.
#[derive(Clone, Debug)]
pub(crate) struct DeviceWeights {
    pub(crate) of: Vec<u128>,
    pub(crate) bound: u64,
}

impl DeviceWeights {
    /// Weights with the bound that they give: the sum over units of the least weighted ticks, over the sum of weights.
    fn evaluate(of: Vec<u128>, allowed: &[Vec<Option<u64>>]) -> Self {
        let sum: u128 = allowed.iter().map(|row| min_weighted(row, &of)).sum();
        let bound = sum.div_ceil(of.iter().sum::<u128>().max(1));
        DeviceWeights {
            bound: u64::try_from(bound).unwrap_or(0),
            of,
        }
    }
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

/// Finds weights w for which `sum over units of min over devices of w * ticks`, over the sum of w, is large: from
/// equal weights and from the inverse of each device's total, by scaling one kind of device at a time.
pub(crate) fn find_weights(allowed: &[Vec<Option<u64>>], merged: &MergedProblem) -> DeviceWeights {
    let mut best = DeviceWeights::evaluate(vec![ONE; merged.devices], allowed);
    let inverse = DeviceWeights::evaluate(inverse_weights(allowed, merged.devices), allowed);
    if inverse.bound > best.bound {
        best = inverse;
    }

    let kinds = merged.devices_by_kind();
    let round_work = 2 * kinds.len() * allowed.len() * merged.devices;
    let max_rounds = (MAX_ROUND_WORK / round_work.max(1)).clamp(1, MAX_ROUNDS);
    for percent in [200, 130, 110, 102] {
        for _ in 0..max_rounds {
            let bound_before = best.bound;
            for kind in &kinds {
                for (factor, divisor) in [(percent, 100), (100, percent)] {
                    let mut weights = best.of.clone();
                    for &device in kind {
                        // Bounded, so that no product overflows.
                        let scaled = weights[device] * factor / divisor;
                        weights[device] = scaled.clamp(1, ONE * ONE);
                    }
                    let found = DeviceWeights::evaluate(weights, allowed);
                    if found.bound > best.bound {
                        best = found;
                    }
                }
            }
            if best.bound == bound_before {
                break;
            }
        }
    }
    best
}

/// Weights that are inverse to the mean ticks on each device.
fn inverse_weights(allowed: &[Vec<Option<u64>>], devices: usize) -> Vec<u128> {
    let mut means = Vec::with_capacity(devices);
    for device in 0..devices {
        let mut sum = 0u128;
        let mut count = 0u128;
        for ticks in allowed.iter().filter_map(|row| row[device]) {
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
