//! Lower bounds on the period, computed in integers.

use super::merged::Merged;

/// Lower bound on the period of every placement with a smaller period than `below`, at most `below`. So
/// `min(below, best)` bounds all placements.
///
/// Transfers count nothing here. Four arguments, each over the sets of device kinds:
/// - a node that takes `below` or more on a device is not there;
/// - the work of the nodes that can only run on m devices is at least a mean of 1/m;
/// - of the m*k + 1 largest such nodes some k + 1 share a device (pigeonholes);
/// - for any weights of the devices that sum to 1, the period is at least the sum of least weighted ticks (linear
///   programming duality).
pub(crate) fn period_bound(merged: &Merged, below: u64) -> u64 {
    let allowed = allowed(merged, below);
    if allowed.iter().any(|row| row.iter().all(Option::is_none)) {
        return below;
    }
    let kinds = merged.kinds();
    let mut bound = 0;
    // Beyond ten kinds only the set of all.
    let sets = if kinds.len() <= 10 {
        1..1usize << kinds.len()
    } else {
        0..1
    };
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
    bound.max(weigh(&allowed, merged).bound).min(below)
}

/// Ticks of each unit on each device that are less than `below`.
pub(crate) fn allowed(merged: &Merged, below: u64) -> Vec<Vec<Option<u64>>> {
    let row = |row: &Vec<Option<u64>>| row.iter().map(|t| t.filter(|&t| t < below)).collect();
    merged.ticks.iter().map(row).collect()
}

/// Weights of devices whose sum bounds a period from below.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    pub(crate) of: Vec<u128>,
    pub(crate) bound: u64,
}

/// First weights are about so large: enough for steps of a thousandth.
const ONE: u128 = 1 << 24;

/// Finds weights w for which `sum over nodes of min over devices of w * ticks`, over the sum of w, is large: from
/// equal weights and from the inverse of each device's total, by scaling one kind of device at a time.
pub(crate) fn weigh(allowed: &[Vec<Option<u64>>], merged: &Merged) -> Weights {
    let total = |d: usize| {
        let sum: u128 = allowed
            .iter()
            .filter_map(|row| row[d])
            .map(u128::from)
            .sum();
        let able = allowed.iter().filter(|row| row[d].is_some()).count() as u128;
        (sum / able.max(1)).max(1)
    };
    let totals: Vec<u128> = (0..merged.devices).map(total).collect();
    let most = totals.iter().max().copied().unwrap_or(1);
    let inverse = totals
        .iter()
        .map(|t| (ONE * most / t).min(ONE * ONE))
        .collect();
    let value = |of: Vec<u128>| {
        let least = |row: &Vec<Option<u64>>| {
            row.iter()
                .zip(&of)
                .filter_map(|(t, w)| Some(u128::from((*t)?) * w))
                .min()
                .unwrap_or(0)
        };
        let sum: u128 = allowed.iter().map(least).sum();
        let bound = sum.div_ceil(of.iter().sum::<u128>().max(1));
        Weights {
            bound: u64::try_from(bound).unwrap_or(0),
            of,
        }
    };
    let mut best = value(vec![ONE; merged.devices]);
    let other = value(inverse);
    if other.bound > best.bound {
        best = other;
    }
    let kinds = merged.kinds();
    for percent in [200, 130, 110, 102] {
        // Gains may get as small as a tick: so many rounds and no more.
        for _ in 0..100 {
            let before = best.bound;
            for kind in &kinds {
                for (up, down) in [(percent, 100), (100, percent)] {
                    let mut of = best.of.clone();
                    kind.iter()
                        .for_each(|&d| of[d] = (of[d] * up / down).clamp(1, ONE * ONE));
                    let found = value(of);
                    if found.bound > best.bound {
                        best = found;
                    }
                }
            }
            if best.bound == before {
                break;
            }
        }
    }
    best
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
        let least = problem.nodes[node]
            .ticks
            .iter()
            .flatten()
            .min()
            .copied()
            .unwrap_or(0);
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
