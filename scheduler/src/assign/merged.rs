//! The problem with co-located nodes merged and every transfer priced: what the solvers work on.

use std::collections::BTreeMap;

use super::problem::{AssignError, Fanout, PlacementLink, PlacementProblem};

/// One hyperedge between units.
#[derive(Clone, Debug)]
pub(crate) struct UnitNet {
    pub(crate) from: usize,
    /// Units that read it, without the writer.
    pub(crate) to: Vec<usize>,
    pub(crate) bytes: u64,
    pub(crate) delayed: bool,
    /// Ticks of the sender, by class of the link.
    pub(crate) send: Vec<u64>,
    /// Ticks of the receiver, by class of the link.
    pub(crate) receive: Vec<u64>,
}

/// Units (groups of co-located nodes) and nets.
#[derive(Clone, Debug)]
pub(crate) struct MergedProblem {
    pub(crate) devices: usize,
    /// Bytes of each device.
    pub(crate) capacity: Vec<u64>,
    /// Bytes of all devices, at least 1 (saturating).
    pub(crate) total_capacity: u64,
    /// Ticks of each unit on each device; `None` where it cannot run.
    pub(crate) ticks: Vec<Vec<Option<u64>>>,
    /// Bytes of each unit.
    pub(crate) bytes: Vec<u64>,
    pub(crate) nets: Vec<UnitNet>,
    /// Nets of each unit, as writer or reader.
    pub(crate) nets_of: Vec<Vec<usize>>,
    pub(crate) unit_of_node: Vec<usize>,
    /// Units in a near-topological order of the nodes.
    pub(crate) order: Vec<usize>,
    /// Whether a sender pays once for all readers of a net.
    pub(crate) sends_once: bool,
    /// Kind of each device: alike devices have the same.
    pub(crate) kind_of: Vec<usize>,
    /// Ticks that a net costs either side where there is no link: so many that no placement wants it, and so few that no
    /// sum overflows.
    pub(crate) no_link_ticks: u64,
    /// Class of each link by `from * devices + to`: links that cost the same have the same. Machines have as many links
    /// as squared devices and few classes, so that prices are kept by class.
    link_class: Vec<u32>,
}

impl MergedProblem {
    /// Merges by the groups of a valid problem.
    ///
    /// # Errors
    /// [`AssignError::Nowhere`] for a group that no device can run.
    pub(crate) fn of(problem: &PlacementProblem) -> Result<MergedProblem, AssignError> {
        let mut unit_of_group = BTreeMap::new();
        let mut unit_of_node = Vec::with_capacity(problem.nodes.len());
        let mut count = 0;

        for node in &problem.nodes {
            let known = node.group.and_then(|group| unit_of_group.get(&group));
            let unit = known.copied().unwrap_or(count);
            if unit == count {
                count += 1;
            }
            if let Some(group) = node.group {
                unit_of_group.insert(group, unit);
            }
            unit_of_node.push(unit);
        }
        MergedProblem::by(problem, unit_of_node, count)
    }

    /// Merges by a given map from nodes to `count` units, which must not split groups.
    ///
    /// # Errors
    /// [`AssignError::Nowhere`] for a unit that no device can run.
    pub(crate) fn by(
        problem: &PlacementProblem,
        unit_of_node: Vec<usize>,
        count: usize,
    ) -> Result<MergedProblem, AssignError> {
        let devices = problem.devices.len();
        let mut ticks = vec![vec![Some(0u64); devices]; count];
        let mut bytes = vec![0; count];
        for (index, node) in problem.nodes.iter().enumerate() {
            let unit = unit_of_node[index];
            for (sum, &own) in ticks[unit].iter_mut().zip(&node.ticks) {
                *sum = sum.zip(own).map(|(sum, own)| sum + own);
            }
            // No device can run all of its nodes.
            if ticks[unit].iter().all(Option::is_none) {
                return Err(AssignError::Nowhere { node: index as u32 });
            }
            bytes[unit] += node.bytes;
        }
        for channel in &problem.channels {
            bytes[unit_of_node[channel.from as usize]] += channel.bytes;
        }

        let links = LinkClasses::of(problem);
        let max_transfers = 2 * problem.channels.len() as u64 * devices as u64;
        let no_link_ticks = (1u64 << 61) / (max_transfers + 1);
        let nets = price_nets(problem, &unit_of_node, &links.links, no_link_ticks);
        let mut nets_of = vec![Vec::new(); count];
        for (index, net) in nets.iter().enumerate() {
            for &unit in net.to.iter().chain([&net.from]) {
                nets_of[unit].push(index);
            }
        }

        let mut order: Vec<usize> = Vec::with_capacity(count);
        let mut is_ordered = vec![false; count];
        for node in problem.order()? {
            let unit = unit_of_node[node];
            if !std::mem::replace(&mut is_ordered[unit], true) {
                order.push(unit);
            }
        }

        let capacity: Vec<u64> = problem.devices.iter().map(|device| device.bytes).collect();
        Ok(MergedProblem {
            devices,
            total_capacity: capacity
                .iter()
                .fold(1u64, |sum, bytes| sum.saturating_add(*bytes)),
            capacity,
            ticks,
            bytes,
            nets,
            nets_of,
            unit_of_node,
            order,
            sends_once: problem.fanout == Fanout::Once,
            kind_of: find_kinds(problem, &links.class_of),
            no_link_ticks,
            link_class: links.class_of,
        })
    }

    pub(crate) fn units(&self) -> usize {
        self.ticks.len()
    }

    /// Ticks that a net costs its sender for a receiver on another device.
    pub(crate) fn send_ticks(&self, net: &UnitNet, from: usize, to: usize) -> u64 {
        net.send[self.link_class[from * self.devices + to] as usize]
    }

    /// Ticks that a net costs a receiver on another device.
    pub(crate) fn receive_ticks(&self, net: &UnitNet, from: usize, to: usize) -> u64 {
        net.receive[self.link_class[from * self.devices + to] as usize]
    }

    /// Device of each node from the device of each unit.
    pub(crate) fn expand(&self, placement: &[u32]) -> Vec<u32> {
        let units = self.unit_of_node.iter();
        units.map(|&unit| placement[unit]).collect()
    }

    /// Device of each unit from the device of each node.
    pub(crate) fn contract(&self, placement: &[u32]) -> Vec<u32> {
        let mut device_of_unit = vec![0; self.units()];
        for (node, &unit) in self.unit_of_node.iter().enumerate() {
            device_of_unit[unit] = placement[node];
        }
        device_of_unit
    }

    /// Devices that can run a unit.
    pub(crate) fn choices(&self, unit: usize) -> impl Iterator<Item = u32> {
        (0u32..)
            .zip(&self.ticks[unit])
            .filter(|(_, ticks)| ticks.is_some())
            .map(|(device, _)| device)
    }

    /// Ticks of a unit on the device that is quickest for it.
    pub(crate) fn min_ticks(&self, unit: usize) -> u64 {
        let ticks = self.ticks[unit].iter().flatten();
        ticks.min().copied().unwrap_or(0)
    }

    /// Kinds of devices: for each the devices of that kind.
    pub(crate) fn devices_by_kind(&self) -> Vec<Vec<usize>> {
        let count = self.kind_of.iter().max().map_or(0, |max| max + 1);
        let mut devices_of = vec![Vec::new(); count];
        for (device, &kind) in self.kind_of.iter().enumerate() {
            devices_of[kind].push(device);
        }
        devices_of
    }
}

/// The links of a problem by what they cost.
struct LinkClasses {
    /// Class of each link by `from * devices + to`.
    class_of: Vec<u32>,
    /// The link of each class.
    links: Vec<Option<PlacementLink>>,
}

impl LinkClasses {
    fn of(problem: &PlacementProblem) -> Self {
        let mut classes = LinkClasses {
            class_of: Vec::with_capacity(problem.links.len()),
            links: Vec::new(),
        };
        let mut class_of_link: BTreeMap<Option<PlacementLink>, u32> = BTreeMap::new();
        for link in &problem.links {
            let class = *class_of_link.entry(*link).or_insert_with(|| {
                classes.links.push(*link);
                classes.links.len() as u32 - 1
            });
            classes.class_of.push(class);
        }
        classes
    }
}

/// The nets of the channels between different units, priced by class of link.
fn price_nets(
    problem: &PlacementProblem,
    unit_of_node: &[usize],
    links: &[Option<PlacementLink>],
    no_link_ticks: u64,
) -> Vec<UnitNet> {
    let mut nets = Vec::new();

    for channel in &problem.channels {
        let from = unit_of_node[channel.from as usize];
        let readers = channel.to.iter().map(|&node| unit_of_node[node as usize]);
        let mut to: Vec<usize> = readers.filter(|&unit| unit != from).collect();
        to.sort_unstable();
        to.dedup();
        if to.is_empty() {
            continue;
        }

        let price = |ticks: fn(&PlacementLink, u64) -> u64| -> Vec<u64> {
            links
                .iter()
                .map(|link| match link {
                    Some(link) => ticks(link, channel.amount),
                    None => no_link_ticks,
                })
                .collect()
        };
        nets.push(UnitNet {
            from,
            to,
            bytes: channel.bytes,
            delayed: channel.delayed,
            send: price(|link, amount| link.send.ticks(amount)),
            receive: price(|link, amount| link.receive.ticks(amount)),
        });
    }
    nets
}

/// Kind of each device: the same for devices between which every placement can be swapped without changing any figure.
fn find_kinds(problem: &PlacementProblem, link_class: &[u32]) -> Vec<usize> {
    let devices = problem.devices.len();
    let mut kind_of: Vec<usize> = Vec::with_capacity(devices);
    // Being alike is an equivalence, so that the first of each kind stands for all.
    let mut first_of_kind: Vec<usize> = Vec::new();

    for device in 0..devices {
        let mut known = first_of_kind.iter();
        let kind = known.position(|&first| are_alike(problem, link_class, first, device));
        kind_of.push(kind.unwrap_or(first_of_kind.len()));
        if kind.is_none() {
            first_of_kind.push(device);
        }
    }
    kind_of
}

fn are_alike(problem: &PlacementProblem, link_class: &[u32], first: usize, second: usize) -> bool {
    let devices = problem.devices.len();
    let class = |from: usize, to: usize| link_class[from * devices + to];
    let mut others = (0..devices).filter(|&other| other != first && other != second);
    let mut nodes = problem.nodes.iter();

    problem.devices[first] == problem.devices[second]
        && nodes.all(|node| node.ticks[first] == node.ticks[second])
        // Exchanged, each takes the other's place in all links.
        && class(first, second) == class(second, first)
        && others.all(|other| {
            class(first, other) == class(second, other)
                && class(other, first) == class(other, second)
        })
}
