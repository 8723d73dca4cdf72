//! Devices, links, and what actors cost on them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ActorId, DeviceId, DeviceKind, HostId, Links, TiVec};

/// A place that runs kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Stable name: `cpu:0`, `vulkan:0`, `cuda:0`; that of another host's GPU has the host's in front, as in `right/vulkan:0`.
    pub name: String,
    /// The backend that drives it.
    pub backend: DeviceKind,
    /// Cores of a CPU device, by the number the OS gives them; empty elsewhere or when unknown.
    pub cores: Vec<u32>,
    /// Memory that arenas and rings may take.
    pub memory_bytes: u64,
    /// Arithmetic peak used by the roofline, in floating-point operations per second.
    pub flops_per_s: u64,
    /// Memory bandwidth used by the roofline, in bytes per second.
    pub bytes_per_s: u64,
    /// Whether kernels are launched before those that they wait for have ended, and wait themselves: what CUDA calls
    /// programmatic dependent launch. Ignored where a device or its driver cannot.
    pub programmatic: bool,
}

impl Device {
    /// What the driver of a GPU calls it on its own computer: `vulkan:0` of `right/vulkan:0`.
    pub fn driver_name(&self) -> &str {
        let after_host = self.name.rsplit_once('/').map(|(_, name)| name);
        after_host.unwrap_or(&self.name)
    }
}

/// A one-way path between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Sender.
    pub from: DeviceId,
    /// Receiver.
    pub to: DeviceId,
    /// Bandwidth in bytes per second, at least 1.
    pub bytes_per_s: u64,
    /// Time from the end of a send to the tokens' being readable.
    pub latency_ns: u64,
}

/// A computer with some of the devices, which are lost with it all at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Stable name, unlike that of every device.
    pub name: String,
    /// Its devices, ascending, at least 1.
    pub devices: Vec<DeviceId>,
}

/// Slower memory of a device, which weights are fetched from: for a CPU device the file of its bundle, for a GPU memory of its
/// host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// Bytes of weights that it may hold.
    pub memory_bytes: u64,
    /// Bandwidth towards the device in bytes per second, at least 1.
    pub bytes_per_s: u64,
}

impl Tier {
    /// Nanoseconds that `bytes` take to the device, rounded up.
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(self.bytes_per_s.max(1)));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// The devices and links a program is compiled for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Devices.
    pub devices: TiVec<DeviceId, Device>,
    /// Links; at most one for each ordered pair of devices.
    pub links: Links,
    /// Hosts: each device is in exactly one, or there are none, and all devices are in one computer. Stored beside the
    /// machine, so that bundles without hosts have no trace of them.
    #[serde(skip)]
    pub hosts: TiVec<HostId, Host>,
    /// Slower memory of some devices, from which they fetch weights that do not fit their own. Stored beside the machine
    /// too.
    #[serde(skip)]
    pub tiers: BTreeMap<DeviceId, Tier>,
}

impl Machine {
    /// The link from one device to another, if there is one. O(log links).
    pub fn link(&self, from: DeviceId, to: DeviceId) -> Option<Link> {
        self.links.get(from, to)
    }

    /// The host of each device; empty where there are no hosts. Devices in none, which no verified machine has, are left
    /// out.
    pub fn hosts_of_devices(&self) -> BTreeMap<DeviceId, HostId> {
        let hosts = self.hosts.iter_enumerated();
        hosts
            .flat_map(|(id, host)| host.devices.iter().map(move |device| (*device, id)))
            .collect()
    }

    /// The host of a device, if there are hosts. O(devices).
    pub fn host_of(&self, device: DeviceId) -> Option<&Host> {
        let mut hosts = self.hosts.iter();
        hosts.find(|host| host.devices.contains(&device))
    }

    /// Picoseconds that `bytes` take over the link, without its latency.
    pub fn transfer_ps(link: &Link, bytes: u64) -> u64 {
        let ps = u128::from(bytes) * 1_000_000_000_000 / u128::from(link.bytes_per_s.max(1));
        u64::try_from(ps).unwrap_or(u64::MAX)
    }
}

/// What one actor costs on one device: a call of n firings takes `call_ps + n * firing_ps` picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorCost {
    /// Cost of a call, whatever its number of firings.
    pub call_ps: u64,
    /// Cost of each firing.
    pub firing_ps: u64,
    /// Arena bytes that the kernel needs while it runs, whatever its number of firings.
    pub scratch_bytes: u64,
}

impl ActorCost {
    /// Whole nanoseconds for a call of `firings`, rounded up; at least 1.
    pub fn duration_ns(&self, firings: u64) -> u64 {
        let ps = self
            .call_ps
            .saturating_add(self.firing_ps.saturating_mul(firings));
        ps.div_ceil(1000).max(1)
    }
}

/// Costs of every actor on every device; `None` where the device has no kernel for the actor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Indexed by actor, then device.
    pub table: TiVec<ActorId, TiVec<DeviceId, Option<ActorCost>>>,
}
