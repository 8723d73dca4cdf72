//! The placement problem and its evaluation, which is also the independent checker of every solver.

use std::collections::{BTreeMap, BTreeSet};

use super::makespan::MakespanGraph;
use super::stages::StageGraph;
use crate::search::LinkTime;
use crate::topological::{order_by_priority, upward_ranks};

/// A piece of work that runs on one device in every period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementNode {
    /// Ticks per period on each device; `None` where it cannot or must not run: so nodes are pinned and placements
    /// forbidden.
    pub ticks: Vec<Option<u64>>,
    /// Bytes that it takes on its device.
    pub bytes: u64,
    /// Nodes of one group run on one device.
    pub group: Option<u32>,
}

/// Data that one node writes and others read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementChannel {
    /// Writer.
    pub from: u32,
    /// Readers.
    pub to: Vec<u32>,
    /// Amount per period, in the unit of the links.
    pub amount: u64,
    /// Bytes that its buffer takes on the device of the writer and on each other device with a reader.
    pub bytes: u64,
    /// The readers need the data of an earlier period only: no precedence within one.
    pub delayed: bool,
}

/// A place to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementDevice {
    /// Bytes it has.
    pub bytes: u64,
}

/// What a transfer over one ordered pair of devices costs each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlacementLink {
    /// Ticks that the sender is busy.
    pub send: LinkTime,
    /// Ticks that the receiver is busy.
    pub receive: LinkTime,
}

impl PlacementLink {
    /// Ticks of both ends for an amount.
    fn total_ticks(&self, amount: u64) -> u128 {
        u128::from(self.send.ticks(amount)) + u128::from(self.receive.ticks(amount))
    }
}

/// How often a sender pays for a channel with readers on several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fanout {
    /// Once, the most expensive link.
    Once,
    /// Once for each device.
    EachDevice,
}

/// What makes a placement good: the weighted sum of its figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objective {
    /// Weight of the period, the largest load of a device in ticks.
    pub period: u64,
    /// Weight of the latency of one period's work in ticks.
    pub latency: u64,
    /// Weight of the bytes of the device that needs most.
    pub memory: u64,
}

impl Objective {
    /// The shortest period, whatever else.
    pub const PERIOD: Objective = Objective {
        period: 1,
        latency: 0,
        memory: 0,
    };
    /// The shortest latency.
    pub const LATENCY: Objective = Objective {
        period: 0,
        latency: 1,
        memory: 0,
    };
    /// The least memory on any device.
    pub const MEMORY: Objective = Objective {
        period: 0,
        latency: 0,
        memory: 1,
    };
}
/// Which device runs which node so that a pipeline has the shortest period.
///
/// The load of a device is the work of its nodes and of the transfers it takes part in; the period of a software
/// pipeline is the largest load. Source of the objective: Tarnawski et al. 2020 (NeurIPS), "Efficient Algorithms for
/// Device Placement of DNN Graph Operators".
#[derive(Clone, Debug)]
pub struct PlacementProblem {
    /// What is to be placed.
    pub nodes: Vec<PlacementNode>,
    /// What nodes hand over to one another.
    pub channels: Vec<PlacementChannel>,
    /// Where nodes may run.
    pub devices: Vec<PlacementDevice>,
    /// Entry `from * devices + to`: the link, `None` where there is none. The diagonal is ignored.
    pub links: Vec<Option<PlacementLink>>,
    /// How often a sender pays.
    pub fanout: Fanout,
    /// Whether work that depends on another device runs a period later: then the latency is that of the pipeline, its
    /// stages times the period.
    pub pipelined: bool,
    /// Bound on the latency in ticks.
    pub max_latency: Option<u64>,
    /// Bound on the stages of the pipeline.
    pub max_stages: Option<u32>,
    /// What to minimise.
    pub objective: Objective,
}

/// Why a problem is not valid, or why a placement breaks its rules.
#[expect(missing_docs, reason = "fields that say what their names say")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// There is no device.
    #[error("there is no device")]
    NoDevice,
    /// A row of ticks has another length than there are devices.
    #[error("node {node} has ticks for {found} devices, there are {expected}")]
    Ticks {
        node: u32,
        /// Entries of its row.
        found: usize,
        expected: usize,
    },
    /// No device can run the node, or all nodes of its group.
    #[error("no device can run node {node} and its group")]
    Nowhere { node: u32 },
    /// A channel names a node that is not there.
    #[error("channel {channel} names node {node}, there are {nodes}")]
    Channel {
        channel: u32,
        node: u32,
        nodes: usize,
    },
    /// The link table is not devices x devices.
    #[error("the table of links has {found} entries, {expected} are needed")]
    Links {
        found: usize,
        /// Devices squared.
        expected: usize,
    },
    /// Channels that are not delayed form a cycle.
    #[error("channels that are not delayed form a cycle through node {node}")]
    Cycle {
        /// A node of it.
        node: u32,
    },
    /// The sum of ticks, or of bytes, is beyond 2^62.
    #[error("all ticks, or all bytes, together exceed 2^62")]
    Overflow,
    /// A placement has another length than there are nodes.
    #[error("the placement has {found} entries for {nodes} nodes")]
    Length { found: usize, nodes: usize },
    /// A node is where it cannot run.
    #[error("node {node} is on device {device}, which cannot run it")]
    Forbidden { node: u32, device: u32 },
    /// Two nodes of one group are apart.
    #[error("nodes {first} and {second} are of one group, but on different devices")]
    Apart {
        /// One node.
        first: u32,
        /// Another node.
        second: u32,
    },
    /// A channel crosses between devices without a link.
    #[error("channel {channel} needs a link from device {from} to device {to}, which there is not")]
    NoLink {
        channel: u32,
        /// Device of the writer.
        from: u32,
        /// Device of the reader.
        to: u32,
    },
    /// A device has too little memory.
    #[error("device {device} needs {needed} bytes of {limit}")]
    Memory {
        device: u32,
        /// Bytes needed.
        needed: u64,
        /// Bytes there.
        limit: u64,
    },
    /// The latency is above its bound.
    #[error("the latency is {latency} ticks, {limit} are allowed")]
    Latency {
        /// Latency of the placement.
        latency: u64,
        limit: u64,
    },
    /// The pipeline has too many stages.
    #[error("the pipeline has {stages} stages, {limit} are allowed")]
    Stages {
        /// Stages of the placement.
        stages: u32,
        limit: u32,
    },
    /// No placement was found that fits the memories, links and the bound on the latency. Not a proof that there is
    /// none.
    #[error("found no placement that keeps all limits; the nearest one fails: {nearest}")]
    NotFound {
        /// What is wrong with the nearest.
        nearest: Box<AssignError>,
    },
}

/// The figures of a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// Ticks that each device is busy in a period.
    pub load: Vec<u64>,
    /// Bytes on each device.
    pub bytes: Vec<u64>,
    /// The largest load.
    pub period: u64,
    /// Of a pipeline, its stages times the period. Otherwise ticks from the first start to the last end of one period's
    /// work alone: each device runs its nodes one at a time, longest remaining path first, and transfers delay their
    /// receivers.
    pub latency: u64,
    /// The weighted sum that is minimised (saturating).
    pub cost: u64,
}

impl PlacementProblem {
    /// Checks ids, table sizes, sums and acyclicity.
    ///
    /// # Errors
    /// See [`AssignError`].
    pub fn validate(&self) -> Result<(), AssignError> {
        let devices = self.devices.len();
        if devices == 0 {
            return Err(AssignError::NoDevice);
        }
        if self.links.len() != devices * devices {
            return Err(AssignError::Links {
                found: self.links.len(),
                expected: devices * devices,
            });
        }

        // Sums that no placement exceeds.
        let mut max_ticks = 0u128;
        let mut max_bytes = 0u128;
        for (index, node) in (0u32..).zip(&self.nodes) {
            if node.ticks.len() != devices {
                return Err(AssignError::Ticks {
                    node: index,
                    found: node.ticks.len(),
                    expected: devices,
                });
            }
            let longest_ticks = node.ticks.iter().flatten().max();
            let longest_ticks = longest_ticks.ok_or(AssignError::Nowhere { node: index })?;
            max_ticks += u128::from(*longest_ticks);
            max_bytes += u128::from(node.bytes);
        }

        let nodes = self.nodes.len();
        // Of many links most are equal: each channel is priced once for those that are.
        let distinct_links: BTreeSet<&PlacementLink> = self.links.iter().flatten().collect();
        for (index, channel) in (0u32..).zip(&self.channels) {
            let mut channel_ends = channel.to.iter().chain([&channel.from]);
            if let Some(&node) = channel_ends.find(|&&node| node as usize >= nodes) {
                return Err(AssignError::Channel {
                    channel: index,
                    node,
                    nodes,
                });
            }
            let transfer_ticks = distinct_links.iter();
            let slowest_ticks = transfer_ticks
                .map(|link| link.total_ticks(channel.amount))
                .max();
            max_ticks += slowest_ticks.unwrap_or(0) * devices as u128;
            max_bytes += u128::from(channel.bytes) * devices as u128;
        }

        if max_ticks.max(max_bytes) >= 1 << 62 {
            return Err(AssignError::Overflow);
        }
        self.order().map(|_| ())
    }

    /// The link of an ordered pair.
    pub fn link(&self, from: usize, to: usize) -> Option<&PlacementLink> {
        self.links[from * self.devices.len() + to].as_ref()
    }

    /// Channels whose readers need the data of the same period.
    pub(crate) fn channels_within_period(&self) -> impl Iterator<Item = &PlacementChannel> {
        self.channels.iter().filter(|channel| !channel.delayed)
    }

    /// Least ticks of a node on any device.
    pub(crate) fn min_ticks(&self, node: usize) -> u64 {
        let ticks = self.nodes[node].ticks.iter().flatten();
        ticks.min().copied().unwrap_or(0)
    }

    /// Nodes in a topological order of the channels that are not delayed: longest remaining path (by least ticks)
    /// first, then the lower index.
    pub(crate) fn order(&self) -> Result<Vec<usize>, AssignError> {
        let nodes = self.nodes.len();
        let mut successors_of: Vec<Vec<usize>> = vec![Vec::new(); nodes];
        for channel in self.channels_within_period() {
            let readers = channel.to.iter().filter(|&&to| to != channel.from);
            successors_of[channel.from as usize].extend(readers.map(|&to| to as usize));
        }

        let any_order = order_by_priority(&successors_of, |_| 0);
        if any_order.len() < nodes {
            let ordered_nodes: BTreeSet<usize> = any_order.into_iter().collect();
            let first_left = (0..nodes).find(|node| !ordered_nodes.contains(node));
            return Err(AssignError::Cycle {
                node: first_left.unwrap_or(0) as u32,
            });
        }
        let node_work = (0..nodes).map(|node| self.min_ticks(node)).collect();
        let upward_rank = upward_ranks(&successors_of, &any_order, node_work);
        Ok(order_by_priority(&successors_of, |node| upward_rank[node]))
    }

    /// The figures of a placement.
    ///
    /// # Errors
    /// The first rule that the placement breaks.
    pub fn evaluate(&self, placement: &[u32]) -> Result<Evaluation, AssignError> {
        self.check_nodes(placement)?;
        let devices = self.devices.len();
        let mut device_load = vec![0u64; devices];
        let mut device_bytes = vec![0u64; devices];
        for (node, &device) in self.nodes.iter().zip(placement) {
            device_load[device as usize] += node.ticks[device as usize].unwrap_or(0);
            device_bytes[device as usize] += node.bytes;
        }

        for index in 0..self.channels.len() {
            self.add_transfers(index, placement, &mut device_load, &mut device_bytes)?;
        }
        self.check_memory(&device_bytes)?;
        let period = device_load.iter().copied().max().unwrap_or(0);
        let latency = self.latency(placement, period)?;
        if let Some(limit) = self.max_latency.filter(|&limit| latency > limit) {
            return Err(AssignError::Latency { latency, limit });
        }

        let max_bytes = device_bytes.iter().copied().max().unwrap_or(0);
        Ok(Evaluation {
            load: device_load,
            bytes: device_bytes,
            period,
            latency,
            cost: self.cost(period, latency, max_bytes),
        })
    }

    /// See [`Evaluation::latency`].
    fn latency(&self, placement: &[u32], period: u64) -> Result<u64, AssignError> {
        if !self.pipelined && self.max_stages.is_none() {
            return self.makespan(placement);
        }

        let stages = self.stages(placement);
        if let Some(limit) = self.max_stages.filter(|&limit| stages > limit) {
            return Err(AssignError::Stages { stages, limit });
        }
        match self.pipelined {
            true => Ok(period.saturating_mul(stages.into())),
            false => self.makespan(placement),
        }
    }

    /// Stages of the pipeline of a placement: one more than the most hops from device to device on any path, where the
    /// nodes of a cycle, delayed channels included, share a stage. The placement must name every node's device.
    pub fn stages(&self, placement: &[u32]) -> u32 {
        StageGraph::new(self.nodes.len(), &self.channels).count(placement)
    }

    /// Adds the ticks and bytes of one channel to those of the devices.
    fn add_transfers(
        &self,
        index: usize,
        placement: &[u32],
        load: &mut [u64],
        bytes: &mut [u64],
    ) -> Result<(), AssignError> {
        let channel = &self.channels[index];
        let from = placement[channel.from as usize];
        let readers = channel.to.iter().map(|&to| placement[to as usize]);
        let receivers: BTreeSet<u32> = readers.filter(|&to| to != from).collect();
        let mut sum_ticks = 0;
        let mut max_ticks = 0;

        bytes[from as usize] += channel.bytes;
        for to in receivers {
            let link = self
                .link(from as usize, to as usize)
                .ok_or(AssignError::NoLink {
                    channel: index as u32,
                    from,
                    to,
                })?;
            let send_ticks = link.send.ticks(channel.amount);
            sum_ticks += send_ticks;
            max_ticks = send_ticks.max(max_ticks);
            load[to as usize] += link.receive.ticks(channel.amount);
            bytes[to as usize] += channel.bytes;
        }
        load[from as usize] += match self.fanout {
            Fanout::Once => max_ticks,
            Fanout::EachDevice => sum_ticks,
        };
        Ok(())
    }

    fn check_memory(&self, bytes: &[u64]) -> Result<(), AssignError> {
        for (index, device) in self.devices.iter().enumerate() {
            if bytes[index] > device.bytes {
                return Err(AssignError::Memory {
                    device: index as u32,
                    needed: bytes[index],
                    limit: device.bytes,
                });
            }
        }
        Ok(())
    }

    /// The weighted sum of figures (saturating).
    pub(crate) fn cost(&self, period: u64, latency: u64, bytes: u64) -> u64 {
        let weights = self.objective;
        weights
            .period
            .saturating_mul(period)
            .saturating_add(weights.latency.saturating_mul(latency))
            .saturating_add(weights.memory.saturating_mul(bytes))
    }

    /// Every node is on a device that can run it, and those of one group are together.
    fn check_nodes(&self, placement: &[u32]) -> Result<(), AssignError> {
        if placement.len() != self.nodes.len() {
            return Err(AssignError::Length {
                found: placement.len(),
                nodes: self.nodes.len(),
            });
        }

        let mut first_of_group = BTreeMap::new();
        for (index, node) in (0u32..).zip(&self.nodes) {
            let device = placement[index as usize];
            if node.ticks.get(device as usize).copied().flatten().is_none() {
                return Err(AssignError::Forbidden {
                    node: index,
                    device,
                });
            }
            let Some(group) = node.group else { continue };
            let &mut first = first_of_group.entry(group).or_insert(index);
            if placement[first as usize] != device {
                return Err(AssignError::Apart {
                    first,
                    second: index,
                });
            }
        }
        Ok(())
    }

    /// Ticks of one period's work alone, see [`Evaluation::latency`]. The placement must name devices that exist.
    fn makespan(&self, placement: &[u32]) -> Result<u64, AssignError> {
        Ok(MakespanGraph::new(self)?.makespan(placement))
    }
}
