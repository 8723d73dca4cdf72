//! The problem with co-located nodes merged and every transfer priced: what the solvers work on.

use std::collections::BTreeMap;

use super::problem::{AssignError, Fanout, Problem};

/// One hyperedge between units.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    pub(crate) from: usize,
    /// Units that read it, without the writer.
    pub(crate) to: Vec<usize>,
    pub(crate) bytes: u64,
    pub(crate) delayed: bool,
    /// By `from * devices + to`.
    pub(crate) send: Vec<u64>,
    pub(crate) receive: Vec<u64>,
}

/// Units (groups of co-located nodes) and nets.
#[derive(Clone, Debug)]
pub(crate) struct Merged {
    pub(crate) devices: usize,
    pub(crate) capacity: Vec<u64>,
    pub(crate) ticks: Vec<Vec<Option<u64>>>,
    pub(crate) bytes: Vec<u64>,
    pub(crate) nets: Vec<Net>,
    /// Nets of each unit, as writer or reader.
    pub(crate) nets_of: Vec<Vec<usize>>,
    /// Unit of each node.
    pub(crate) unit: Vec<usize>,
    /// Units in a near-topological order of the nodes.
    pub(crate) order: Vec<usize>,
    pub(crate) once: bool,
    /// Kind of each device: alike devices have the same.
    pub(crate) kind: Vec<usize>,
}

impl Merged {
    /// Merges by the groups of a valid problem.
    ///
    /// # Errors
    /// [`AssignError::Nowhere`] for a group that no device can run.
    pub(crate) fn of(problem: &Problem) -> Result<Merged, AssignError> {
        let mut first = BTreeMap::new();
        let mut unit = Vec::with_capacity(problem.nodes.len());
        let mut count = 0;
        for node in &problem.nodes {
            let mut fresh = || {
                count += 1;
                count - 1
            };
            unit.push(match node.group {
                Some(group) => *first.entry(group).or_insert_with(fresh),
                None => fresh(),
            });
        }
        Merged::by(problem, unit, count)
    }

    /// Merges by a given map from nodes to `count` units, which must not split groups.
    ///
    /// # Errors
    /// [`AssignError::Nowhere`] for a unit that no device can run.
    pub(crate) fn by(
        problem: &Problem,
        unit: Vec<usize>,
        count: usize,
    ) -> Result<Merged, AssignError> {
        let devices = problem.devices.len();
        let mut ticks = vec![vec![Some(0u64); devices]; count];
        let mut bytes = vec![0; count];
        for (node, n) in problem.nodes.iter().enumerate() {
            let row = &mut ticks[unit[node]];
            for (sum, &t) in row.iter_mut().zip(&n.ticks) {
                *sum = sum.zip(t).map(|(a, b)| a + b);
            }
            if row.iter().all(Option::is_none) {
                return Err(AssignError::Nowhere { node: node as u32 });
            }
            bytes[unit[node]] += n.bytes;
        }
        // A missing link costs so much that no placement wants it, and so little that no sum overflows.
        let no_link = (1u64 << 61) / (2 * problem.channels.len() as u64 * devices as u64 + 1);
        let mut nets = Vec::new();
        for c in &problem.channels {
            let from = unit[c.from as usize];
            let mut to: Vec<usize> = c.to.iter().map(|&t| unit[t as usize]).collect();
            to.sort_unstable();
            to.dedup();
            to.retain(|&t| t != from);
            bytes[from] += c.bytes;
            if to.is_empty() {
                continue;
            }
            let price = |l: &Option<super::Link>, send: bool| match l {
                Some(link) => if send { link.send } else { link.receive }.ticks(c.amount),
                None => no_link,
            };
            let send = problem.links.iter().map(|l| price(l, true)).collect();
            let receive = problem.links.iter().map(|l| price(l, false)).collect();
            nets.push(Net {
                from,
                to,
                bytes: c.bytes,
                delayed: c.delayed,
                send,
                receive,
            });
        }
        let mut nets_of = vec![Vec::new(); count];
        for (index, net) in nets.iter().enumerate() {
            nets_of[net.from].push(index);
            net.to.iter().for_each(|&t| nets_of[t].push(index));
        }
        let mut order: Vec<usize> = Vec::with_capacity(count);
        let mut known = vec![false; count];
        for &n in &problem.order()? {
            if !std::mem::replace(&mut known[unit[n as usize]], true) {
                order.push(unit[n as usize]);
            }
        }
        Ok(Merged {
            devices,
            capacity: problem.devices.iter().map(|d| d.bytes).collect(),
            ticks,
            bytes,
            nets,
            nets_of,
            unit,
            order,
            once: problem.fanout == Fanout::Once,
            kind: kinds(problem),
        })
    }

    pub(crate) fn units(&self) -> usize {
        self.ticks.len()
    }

    /// Device of each node from the device of each unit.
    pub(crate) fn expand(&self, placement: &[u32]) -> Vec<u32> {
        self.unit.iter().map(|&u| placement[u]).collect()
    }

    /// Device of each unit from the device of each node.
    pub(crate) fn contract(&self, placement: &[u32]) -> Vec<u32> {
        let mut units = vec![0; self.units()];
        for (node, &unit) in self.unit.iter().enumerate() {
            units[unit] = placement[node];
        }
        units
    }

    /// Devices that can run a unit.
    pub(crate) fn choices(&self, unit: usize) -> impl Iterator<Item = u32> {
        (0u32..)
            .zip(&self.ticks[unit])
            .filter(|(_, t)| t.is_some())
            .map(|(d, _)| d)
    }

    /// Kinds of devices: for each the devices of that kind.
    pub(crate) fn kinds(&self) -> Vec<Vec<usize>> {
        let count = self.kind.iter().max().map_or(0, |k| k + 1);
        let of = |k: usize| (0..self.devices).filter(|&d| self.kind[d] == k).collect();
        (0..count).map(of).collect()
    }
}

/// Devices between which every placement can be swapped without changing any figure.
fn kinds(problem: &Problem) -> Vec<usize> {
    let devices = problem.devices.len();
    let alike = |a: usize, b: usize| {
        let others = || (0..devices).filter(|&o| o != a && o != b);
        problem.devices[a] == problem.devices[b]
            && problem.nodes.iter().all(|n| n.ticks[a] == n.ticks[b])
            && problem.link(a, b) == problem.link(b, a)
            && others().all(|o| {
                problem.link(a, o) == problem.link(b, o) && problem.link(o, a) == problem.link(o, b)
            })
    };
    let mut kind: Vec<usize> = Vec::with_capacity(devices);
    let mut count = 0;
    for d in 0..devices {
        let twin = (0..d).find(|&e| alike(e, d));
        kind.push(twin.map_or(count, |e| kind[e]));
        count += usize::from(twin.is_none());
    }
    kind
}
