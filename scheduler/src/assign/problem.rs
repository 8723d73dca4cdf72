//! The placement problem and its evaluation, which is also the independent checker of every solver.

use crate::search::LinkTime;

/// A piece of work that runs on one device in every period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
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
pub struct Channel {
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
pub struct Device {
    /// Bytes it has.
    pub bytes: u64,
}

/// What a transfer over one ordered pair of devices costs each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Ticks that the sender is busy.
    pub send: LinkTime,
    /// Ticks that the receiver is busy.
    pub receive: LinkTime,
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
pub struct Problem {
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Channels.
    pub channels: Vec<Channel>,
    /// Devices.
    pub devices: Vec<Device>,
    /// Entry `from * devices + to`: the link, `None` where there is none. The diagonal is ignored.
    pub links: Vec<Option<Link>>,
    /// How often a sender pays.
    pub fanout: Fanout,
    /// Bound on the latency in ticks.
    pub max_latency: Option<u64>,
    /// What to minimise.
    pub objective: Objective,
}

/// Why a problem is none, or why a placement breaks its rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// There is no device.
    #[error("there is no device")]
    NoDevice,
    /// A row of ticks has another length than there are devices.
    #[error("node {node} has ticks for {found} devices, there are {expected}")]
    Ticks {
        /// The node.
        node: u32,
        /// Entries of its row.
        found: usize,
        /// Devices.
        expected: usize,
    },
    /// No device can run the node, or all nodes of its group.
    #[error("no device can run node {node} and its group")]
    Nowhere {
        /// The node.
        node: u32,
    },
    /// A channel names a node that is not there.
    #[error("channel {channel} names node {node}, there are {nodes}")]
    Channel {
        /// The channel.
        channel: u32,
        /// The node.
        node: u32,
        /// Nodes.
        nodes: usize,
    },
    /// The link table is not devices x devices.
    #[error("the table of links has {found} entries, {expected} are needed")]
    Links {
        /// Its entries.
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
    Length {
        /// Its entries.
        found: usize,
        /// Nodes.
        nodes: usize,
    },
    /// A node is where it cannot run.
    #[error("node {node} is on device {device}, which cannot run it")]
    Forbidden {
        /// The node.
        node: u32,
        /// The device.
        device: u32,
    },
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
        /// The channel.
        channel: u32,
        /// Device of the writer.
        from: u32,
        /// Device of the reader.
        to: u32,
    },
    /// A device has too little memory.
    #[error("device {device} needs {needed} bytes of {limit}")]
    Memory {
        /// The device.
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
        /// The bound.
        limit: u64,
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
    /// Ticks from the first start to the last end of one period's work alone: each device runs its nodes one at a
    /// time, longest remaining path first, and transfers delay their receivers.
    pub latency: u64,
    /// The weighted sum that is minimised (saturating).
    pub cost: u64,
}

impl Problem {
    /// Checks ids, table sizes, sums and acyclicity.
    ///
    /// # Errors
    /// See [`AssignError`].
    pub fn validate(&self) -> Result<(), AssignError> {
        let (nodes, devices) = (self.nodes.len(), self.devices.len());
        if devices == 0 {
            return Err(AssignError::NoDevice);
        }
        if self.links.len() != devices * devices {
            let (found, expected) = (self.links.len(), devices * devices);
            return Err(AssignError::Links { found, expected });
        }
        let (mut ticks, mut bytes) = (0u128, 0u128);
        for (node, n) in (0u32..).zip(&self.nodes) {
            if n.ticks.len() != devices {
                let found = n.ticks.len();
                return Err(AssignError::Ticks {
                    node,
                    found,
                    expected: devices,
                });
            }
            let most = n
                .ticks
                .iter()
                .flatten()
                .max()
                .ok_or(AssignError::Nowhere { node })?;
            ticks += u128::from(*most);
            bytes += u128::from(n.bytes);
        }
        for (channel, c) in (0u32..).zip(&self.channels) {
            let named = c.to.iter().chain([&c.from]);
            if let Some(&node) = named.into_iter().find(|n| **n as usize >= nodes) {
                return Err(AssignError::Channel {
                    channel,
                    node,
                    nodes,
                });
            }
            bytes += u128::from(c.bytes) * devices as u128;
            let slowest = self.links.iter().flatten().map(|l| {
                u128::from(l.send.ticks(c.amount)) + u128::from(l.receive.ticks(c.amount))
            });
            ticks += slowest.max().unwrap_or(0) * devices as u128;
        }
        if ticks.max(bytes) >= 1 << 62 {
            return Err(AssignError::Overflow);
        }
        self.order().map(|_| ())
    }

    /// The link of an ordered pair.
    pub fn link(&self, from: usize, to: usize) -> Option<&Link> {
        self.links[from * self.devices.len() + to].as_ref()
    }

    /// Nodes in a topological order of the channels that are not delayed: longest remaining path (by least ticks)
    /// first, then the lower index.
    pub(crate) fn order(&self) -> Result<Vec<u32>, AssignError> {
        let nodes = self.nodes.len();
        let mut after: Vec<Vec<u32>> = vec![Vec::new(); nodes];
        for c in self.channels.iter().filter(|c| !c.delayed) {
            after[c.from as usize].extend(c.to.iter().filter(|t| **t != c.from));
        }
        let plain = kahn(&after, &vec![0; nodes]);
        if plain.len() < nodes {
            let placed: std::collections::BTreeSet<u32> = plain.into_iter().collect();
            let node = (0..nodes as u32).find(|n| !placed.contains(n)).unwrap_or(0);
            return Err(AssignError::Cycle { node });
        }
        let least = |n: usize| {
            self.nodes[n]
                .ticks
                .iter()
                .flatten()
                .min()
                .copied()
                .unwrap_or(0)
        };
        let mut rank: Vec<u64> = (0..nodes).map(least).collect();
        for &n in plain.iter().rev() {
            let next = after[n as usize]
                .iter()
                .map(|&a| rank[a as usize])
                .max()
                .unwrap_or(0);
            rank[n as usize] = rank[n as usize].saturating_add(next);
        }
        Ok(kahn(&after, &rank))
    }

    /// The figures of a placement.
    ///
    /// # Errors
    /// The first rule that the placement breaks.
    pub fn evaluate(&self, placement: &[u32]) -> Result<Evaluation, AssignError> {
        self.check_places(placement)?;
        let devices = self.devices.len();
        let (mut load, mut bytes) = (vec![0u64; devices], vec![0u64; devices]);
        for (node, &device) in self.nodes.iter().zip(placement) {
            load[device as usize] += node.ticks[device as usize].unwrap_or(0);
            bytes[device as usize] += node.bytes;
        }
        for (channel, c) in (0u32..).zip(&self.channels) {
            let from = placement[c.from as usize];
            bytes[from as usize] += c.bytes;
            let mut receivers: Vec<u32> = c.to.iter().map(|&t| placement[t as usize]).collect();
            receivers.sort_unstable();
            receivers.dedup();
            let (mut sum, mut most) = (0, 0);
            for &to in receivers.iter().filter(|&&to| to != from) {
                let link = self
                    .link(from as usize, to as usize)
                    .ok_or(AssignError::NoLink { channel, from, to })?;
                let send = link.send.ticks(c.amount);
                (sum, most) = (sum + send, most.max(send));
                load[to as usize] += link.receive.ticks(c.amount);
                bytes[to as usize] += c.bytes;
            }
            load[from as usize] += if self.fanout == Fanout::Once {
                most
            } else {
                sum
            };
        }
        for (device, (&needed, d)) in (0u32..).zip(bytes.iter().zip(&self.devices)) {
            if needed > d.bytes {
                return Err(AssignError::Memory {
                    device,
                    needed,
                    limit: d.bytes,
                });
            }
        }
        let latency = self.latency(placement)?;
        if let Some(limit) = self.max_latency.filter(|&limit| latency > limit) {
            return Err(AssignError::Latency { latency, limit });
        }
        let period = load.iter().copied().max().unwrap_or(0);
        let cost = self.cost(period, latency, bytes.iter().copied().max().unwrap_or(0));
        Ok(Evaluation {
            load,
            bytes,
            period,
            latency,
            cost,
        })
    }

    pub(crate) fn cost(&self, period: u64, latency: u64, bytes: u64) -> u64 {
        let Objective {
            period: a,
            latency: b,
            memory: c,
        } = self.objective;
        let cost = a
            .saturating_mul(period)
            .saturating_add(b.saturating_mul(latency));
        cost.saturating_add(c.saturating_mul(bytes))
    }

    fn check_places(&self, placement: &[u32]) -> Result<(), AssignError> {
        if placement.len() != self.nodes.len() {
            let (found, nodes) = (placement.len(), self.nodes.len());
            return Err(AssignError::Length { found, nodes });
        }
        let mut home = std::collections::BTreeMap::new();
        for ((node, n), &device) in (0u32..).zip(&self.nodes).zip(placement) {
            if n.ticks.get(device as usize).copied().flatten().is_none() {
                return Err(AssignError::Forbidden { node, device });
            }
            let Some(group) = n.group else { continue };
            let (first, at) = *home.entry(group).or_insert((node, device));
            if at != device {
                return Err(AssignError::Apart {
                    first,
                    second: node,
                });
            }
        }
        Ok(())
    }

    /// See [`Evaluation::latency`]. The placement must name devices that exist; O(V log V + E).
    pub(crate) fn latency(&self, placement: &[u32]) -> Result<u64, AssignError> {
        let order = self.order()?;
        let mut ready = vec![0u64; self.nodes.len()];
        let mut free = vec![0u64; self.devices.len()];
        let mut written: Vec<Vec<&Channel>> = vec![Vec::new(); self.nodes.len()];
        for c in self.channels.iter().filter(|c| !c.delayed) {
            written[c.from as usize].push(c);
        }
        for &node in &order {
            let device = placement[node as usize] as usize;
            let ticks = self.nodes[node as usize].ticks[device].unwrap_or(0);
            let end = ready[node as usize].max(free[device]) + ticks;
            free[device] = end;
            for c in &written[node as usize] {
                for &to in &c.to {
                    let there = placement[to as usize] as usize;
                    let link = self.link(device, there).filter(|_| there != device);
                    let over =
                        link.map_or(0, |l| l.send.ticks(c.amount) + l.receive.ticks(c.amount));
                    ready[to as usize] = ready[to as usize].max(end + over);
                }
            }
        }
        Ok(free.into_iter().max().unwrap_or(0))
    }
}

fn kahn(after: &[Vec<u32>], rank: &[u64]) -> Vec<u32> {
    let mut waiting = vec![0usize; after.len()];
    for &a in after.iter().flatten() {
        waiting[a as usize] += 1;
    }
    let entry = |n: u32| (rank[n as usize], std::cmp::Reverse(n));
    let mut ready: std::collections::BinaryHeap<_> = (0..after.len() as u32)
        .filter(|&n| waiting[n as usize] == 0)
        .map(entry)
        .collect();
    let mut order = Vec::with_capacity(after.len());
    while let Some((_, std::cmp::Reverse(n))) = ready.pop() {
        order.push(n);
        for &a in &after[n as usize] {
            waiting[a as usize] -= 1;
            if waiting[a as usize] == 0 {
                ready.push(entry(a));
            }
        }
    }
    order
}
