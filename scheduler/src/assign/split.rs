//! Contiguous placements: dynamic programming over linear orders of the units.

use std::collections::BTreeMap;

use super::merged::Merged;

/// Units beyond which no split is computed: the loads of all stretches take V^2 words for each kind of device.
const MAX_UNITS: usize = 1500;

/// Most combinations of used devices; beyond that devices are used in index order.
const MAX_USES: usize = 600;

/// What a stretch of the order costs on each kind of device.
struct Stretches {
    units: usize,
    kinds: usize,
    load: Vec<u64>,
}

impl Stretches {
    fn at(&self, from: usize, to: usize, kind: usize) -> u64 {
        self.load[(from * (self.units + 1) + to) * self.kinds + kind]
    }
}

/// The placement of least period among those that give each device one stretch of the order, if any fits.
///
/// `lanes` lists interchangeable devices together: a lane is a kind and how many there are. Exact where all links of
/// a kind are equal; otherwise each transfer counts with the dearest link. O(V^2 * uses * lanes).
fn split(merged: &Merged, order: &[usize], lanes: &[Vec<usize>]) -> Option<Vec<u32>> {
    let units = order.len();
    let stretches = stretches(merged, order, lanes);
    let radix: Vec<usize> = lanes.iter().map(|l| l.len() + 1).collect();
    let uses: usize = radix.iter().product();
    // best[end][use]: least largest load of the units before `end` with so many devices of each lane.
    let mut best = vec![u64::MAX; (units + 1) * uses];
    let mut via: Vec<(u32, u32)> = vec![(0, 0); (units + 1) * uses];
    best[0] = 0;
    for end in 1..=units {
        for used in 1..uses {
            let mut step = 1;
            for (lane, &r) in radix.iter().enumerate() {
                let count = used / step % r;
                if count > 0 {
                    let before = used - step;
                    for from in (0..end).rev() {
                        let load = stretches.at(from, end, lane);
                        let worst = best[from * uses + before].max(load);
                        if worst < best[end * uses + used] {
                            best[end * uses + used] = worst;
                            via[end * uses + used] = (from as u32, lane as u32);
                        }
                    }
                }
                step *= r;
            }
        }
    }
    let last = (0..uses).min_by_key(|&u| best[units * uses + u])?;
    if best[units * uses + last] == u64::MAX {
        return None;
    }
    let mut placement = vec![0; units];
    let (mut end, mut used) = (units, last);
    while end > 0 {
        let (from, lane) = via[end * uses + used];
        let step: usize = radix[..lane as usize].iter().product();
        let count = used / step % radix[lane as usize];
        for &unit in &order[from as usize..end] {
            placement[unit] = lanes[lane as usize][count - 1] as u32;
        }
        (end, used) = (from as usize, used - step);
    }
    Some(placement)
}

fn stretches(merged: &Merged, order: &[usize], lanes: &[Vec<usize>]) -> Stretches {
    let (units, kinds) = (order.len(), lanes.len());
    let mut load = vec![u64::MAX; (units + 1) * (units + 1) * kinds];
    let dearest = |row: &[u64], d: usize, sends: bool| {
        let others = (0..merged.devices).filter(|&o| o != d);
        let pair = |o| {
            if sends {
                d * merged.devices + o
            } else {
                o * merged.devices + d
            }
        };
        others.map(|o| row[pair(o)]).max().unwrap_or(0)
    };
    for (lane, devices) in lanes.iter().enumerate() {
        let device = devices[0];
        let price: Vec<(u64, u64)> = merged
            .nets
            .iter()
            .map(|n| {
                (
                    dearest(&n.send, device, true),
                    dearest(&n.receive, device, false),
                )
            })
            .collect();
        let (mut writer, mut readers) = (
            vec![false; merged.nets.len()],
            vec![0usize; merged.nets.len()],
        );
        for from in 0..units {
            writer.fill(false);
            readers.fill(0);
            let (mut work, mut bytes) = (0u64, 0u64);
            let mut transfers = 0u64;
            for (to, &unit) in order.iter().enumerate().skip(from) {
                let Some(ticks) = merged.ticks[unit][device] else {
                    break;
                };
                work += ticks;
                bytes += merged.bytes[unit];
                for &net in &merged.nets_of[unit] {
                    let n = &merged.nets[net];
                    let cost = |w: bool, r: usize| match (w, r) {
                        (true, r) if r < n.to.len() => (price[net].0, 0),
                        (false, r) if r > 0 => (price[net].1, n.bytes),
                        _ => (0, 0),
                    };
                    let was = cost(writer[net], readers[net]);
                    if n.from == unit {
                        writer[net] = true;
                    } else {
                        readers[net] += 1;
                    }
                    let is = cost(writer[net], readers[net]);
                    transfers = transfers + is.0 - was.0;
                    bytes = bytes + is.1 - was.1;
                }
                if bytes <= merged.capacity[device] {
                    let at = (from * (units + 1) + to + 1) * kinds + lane;
                    load[at] = work + transfers;
                }
            }
        }
    }
    Stretches { units, kinds, load }
}

/// The best contiguous placements over a few linear orders.
pub(crate) fn splits(merged: &Merged) -> Vec<Vec<u32>> {
    if merged.units() == 0 || merged.units() > MAX_UNITS {
        return Vec::new();
    }
    let mut lanes = merged.kinds();
    if lanes.iter().map(|l| l.len() + 1).product::<usize>() > MAX_USES {
        lanes.truncate(MAX_USES.ilog2() as usize);
        lanes.iter_mut().for_each(|l| l.truncate(1));
    }
    let mut orders = vec![
        merged.order.clone(),
        depth_first(merged),
        breadth_first(merged),
    ];
    orders.dedup();
    orders
        .iter()
        .filter_map(|order| split(merged, order, &lanes))
        .collect()
}

/// A topological order that goes on from the unit placed last where it can: neighbours stay together.
fn depth_first(merged: &Merged) -> Vec<usize> {
    topological(merged, |ready| ready.len() - 1)
}

fn breadth_first(merged: &Merged) -> Vec<usize> {
    topological(merged, |_| 0)
}

fn topological(merged: &Merged, pick: impl Fn(&[usize]) -> usize) -> Vec<usize> {
    let mut waiting: BTreeMap<usize, usize> = BTreeMap::new();
    for net in merged.nets.iter().filter(|n| !n.delayed) {
        net.to
            .iter()
            .for_each(|&t| *waiting.entry(t).or_default() += 1);
    }
    let mut ready: Vec<usize> = merged
        .order
        .iter()
        .copied()
        .filter(|u| !waiting.contains_key(u))
        .collect();
    ready.reverse();
    let mut order = Vec::with_capacity(merged.units());
    let mut taken = vec![false; merged.units()];
    loop {
        if ready.is_empty() {
            // Merging may close cycles: then the next unit of the given order breaks one.
            match merged.order.iter().find(|u| !taken[**u]) {
                Some(&unit) => ready.push(unit),
                None => return order,
            }
        }
        let unit = ready.remove(pick(&ready));
        if std::mem::replace(&mut taken[unit], true) {
            continue;
        }
        order.push(unit);
        for &net in &merged.nets_of[unit] {
            let n = &merged.nets[net];
            if n.from != unit || n.delayed {
                continue;
            }
            for &to in &n.to {
                let left = waiting.entry(to).or_default();
                *left = left.saturating_sub(1);
                if *left == 0 && !taken[to] {
                    ready.push(to);
                }
            }
        }
    }
}
