//! Devices, links, and what actors cost on them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ActorId, DeviceId, DeviceKind, HostId, LinkId, TiVec};

/// A place that runs kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Stable name: `cpu:0`, `vulkan:0`, `cuda:0`.
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

/// A one-way path between two devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// Slower memory of a device: for a CPU device the file of its bundle, which weights are read from.
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
    #[serde(deserialize_with = "crate::link_list::deserialize")]
    pub links: TiVec<LinkId, Link>,
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
    /// The link from one device to another, if there is one. O(1) where every device is linked to all others in order,
    /// as in machines that are detected and in files without links; otherwise O(links).
    pub fn link(&self, from: DeviceId, to: DeviceId) -> Option<&Link> {
        let mut links = self.links.iter();
        self.link_in_order(from, to)
            .or_else(|| links.find(|link| link.from == from && link.to == to))
    }

    /// The link from one device to another, if it stands where it does in a machine that links every device to all
    /// others in order. O(1).
    pub fn link_in_order(&self, from: DeviceId, to: DeviceId) -> Option<&Link> {
        let other_count = self.devices.len().saturating_sub(1);
        let first_index = from.index().checked_mul(other_count)?;
        let behind_itself = usize::from(to.index() > from.index());
        let index = first_index
            .checked_add(to.index())?
            .checked_sub(behind_itself)?;

        let link = self.links.raw.get(index);
        link.filter(|link| link.from == from && link.to == to)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_in_any_order() {
        let device = |name: usize| Device {
            name: format!("cpu:{name}"),
            backend: "cpu".into(),
            cores: Vec::new(),
            memory_bytes: 1,
            flops_per_s: 1,
            bytes_per_s: 1,
            programmatic: false,
        };
        let ids = || (0..5_u32).map(DeviceId);
        let pairs = ids().flat_map(|from| ids().map(move |to| (from, to)));
        let links = pairs
            .filter(|(from, to)| from != to)
            .map(|(from, to)| Link {
                from,
                to,
                bytes_per_s: 1,
                latency_ns: u64::from(from.0 * 10 + to.0),
            });
        let mut machine = Machine {
            devices: (0..5).map(device).collect(),
            links: links.collect(),
            ..Machine::default()
        };

        let latencies = |machine: &Machine| -> Vec<Option<u64>> {
            let pairs = ids().flat_map(|from| ids().map(move |to| (from, to)));
            pairs
                .map(|(from, to)| machine.link(from, to).map(|link| link.latency_ns))
                .collect()
        };
        let in_order = latencies(&machine);
        assert_eq!(in_order[1], Some(1));
        assert_eq!(in_order[0], None);
        assert_eq!(in_order[5 * 3 + 4], Some(34));

        machine.links.raw.reverse();
        assert_eq!(latencies(&machine), in_order);
        machine.links.raw.truncate(3);
        assert_eq!(latencies(&machine).iter().flatten().count(), 3);
        let outside = DeviceId(u32::MAX);
        assert_eq!(machine.link(outside, outside), None);
    }
}
