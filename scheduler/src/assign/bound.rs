//! Lower bounds on the period, computed in integers.

use super::merged::Merged;

/// Lower bound on the period of every placement with a smaller period than `below`, at most `below`. So
/// `min(below, best)` bounds all placements.
///
/// Transfers count nothing here. Three arguments, each over the sets of device kinds:
/// - a node that takes `below` or more on a device is not there;
/// - the work of the nodes that can only run on m devices is at least a mean of 1/m;
/// - of the m*k + 1 largest such nodes some k + 1 share a device (pigeonholes);
/// - for any weights of the devices that sum to 1, the period is at least the sum of least weighted ticks (linear
///   programming duality); the weights are found by following the loads.
pub(crate) fn period_bound(merged: &Merged, below: u64) -> u64 {
    let allowed: Vec<Vec<Option<u64>>> = merged
        .ticks
        .iter()
        .map(|row| row.iter().map(|t| t.filter(|&t| t < below)).collect())
        .collect();
    if allowed.iter().any(|row| row.iter().all(Option::is_none)) {
        return below;
    }
    let kinds = merged.kinds();
    let mut bound = 0;
    // Beyond ten kinds only the set of all.
    let sets = if kinds.len() <= 10 { 1..1usize << kinds.len() } else { 0..1 };
    for set in sets {
        let inside = |d: usize| kinds.len() > 10 || set >> merged.kind[d] & 1 == 1;
        let count = (0..merged.devices).filter(|&d| inside(d)).count();
        let mut sizes: Vec<u64> = allowed
            .iter()
            .filter(|row| (0..merged.devices).all(|d| inside(d) || row[d].is_none()))
            .filter_map(|row| row.iter().flatten().copied().min())
            .collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        bound = bound.max(sizes.iter().sum::<u64>().div_ceil(count as u64));
        for k in 0.. {
            let most = count * k + 1;
            if most > sizes.len() {
                break;
            }
            bound = bound.max(sizes[most - (k + 1)..most].iter().sum());
        }
    }
    bound.max(weighted(&allowed, merged.devices)).min(below)
}

/// Weights in units of 2^-20.
const ONE: u128 = 1 << 20;

fn weighted(allowed: &[Vec<Option<u64>>], devices: usize) -> u64 {
    let mut weight = vec![ONE / devices as u128; devices];
    let mut best = 0;
    for round in 0..200u128 {
        let sum: u128 = weight.iter().sum();
        let mut load = vec![0u128; devices];
        let mut total = 0u128;
        for row in allowed {
            let least = row.iter().enumerate().filter_map(|(d, t)| {
                Some((u128::from((*t)?) * weight[d], d))
            });
            let Some((cost, device)) = least.min() else { continue };
            total += cost;
            load[device] += u128::from(row[device].unwrap_or(0));
        }
        best = best.max(total.div_ceil(sum.max(1)));
        // The more a device would have to do, the dearer it gets.
        let most = load.iter().max().copied().unwrap_or(0).max(1);
        for (w, l) in weight.iter_mut().zip(&load) {
            *w += *w * l / most / (4 + round);
        }
        let sum: u128 = weight.iter().sum();
        weight.iter_mut().for_each(|w| *w = (*w * ONE / sum).max(1));
    }
    u64::try_from(best).unwrap_or(u64::MAX)
}

/// Lower bound on the latency: the longest path with every node on its best device and no transfers.
pub(crate) fn latency_bound(problem: &super::Problem) -> u64 {
    let Ok(order) = problem.order() else { return 0 };
    let mut end = vec![0u64; problem.nodes.len()];
    let mut ready = end.clone();
    let mut written: Vec<Vec<u32>> = vec![Vec::new(); problem.nodes.len()];
    for c in problem.channels.iter().filter(|c| !c.delayed) {
        written[c.from as usize].extend(&c.to);
    }
    for &node in &order {
        let node = node as usize;
        let least = problem.nodes[node].ticks.iter().flatten().min().copied().unwrap_or(0);
        end[node] = ready[node] + least;
        for &to in &written[node] {
            ready[to as usize] = ready[to as usize].max(end[node]);
        }
    }
    end.into_iter().max().unwrap_or(0)
}

/// Lower bound on the bytes of the fullest device: the mean, and the largest node.
pub(crate) fn memory_bound(merged: &Merged) -> u64 {
    let total: u64 = merged.bytes.iter().sum();
    let largest = merged.bytes.iter().max().copied().unwrap_or(0);
    largest.max(total.div_ceil(merged.devices.max(1) as u64))
}
