//! Writes the machine of a cluster: devices as their hosts have them, and links between hosts as they were measured.

use zbmd_backends::devices::{
    GPU_LINK_BYTES_PER_S, GPU_LINK_LATENCY_NS, LINK_BYTES_PER_S, LINK_LATENCY_NS,
};
use zbmd_ir::Device;

use super::{RonDevice, RonLink, RonMachine, ron_text};

/// A host of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterHost {
    /// Its name.
    pub name: String,
    /// Its devices as it calls them. In the cluster the first one of host `left` is `left:0`, and its GPU `vulkan:0` is
    /// `left/vulkan:0`.
    pub devices: Vec<Device>,
}

/// A way from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLink {
    /// The sender, by its number in the list of hosts.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// How fast bytes go over.
    pub bytes_per_s: u64,
    /// What a transfer takes besides, in nanoseconds.
    pub latency_ns: u64,
}

/// The machine of a cluster as a `machine.ron`. Links are those between hosts, and one for the devices of each host that has
/// several, with what is assumed of two cores; GPUs have links of their own to the others of their host.
///
/// # Errors
/// None in practice: every cluster can be written.
///
/// # Panics
/// A link names a host that is not there.
pub fn cluster_to_ron(hosts: &[ClusterHost], links: &[HostLink]) -> Result<String, ron::Error> {
    let devices: Vec<Vec<Device>> = hosts.iter().map(named_devices).collect();

    let name = |host: usize| hosts[host].name.as_str();
    let crowded = (0..hosts.len()).filter(|host| devices[*host].len() > 1);
    let within = crowded.map(|host| RonLink {
        from: name(host),
        to: name(host),
        bandwidth: LINK_BYTES_PER_S,
        latency: format!("{LINK_LATENCY_NS}ns"),
    });
    let of_gpus = devices.iter().flat_map(|devices| {
        let pairs = devices
            .iter()
            .flat_map(|from| devices.iter().map(move |to| (from, to)));
        let is_gpu = |device: &Device| device.backend.is_gpu();
        pairs.filter(move |(from, to)| from.name != to.name && (is_gpu(from) || is_gpu(to)))
    });
    let of_gpus = of_gpus.map(|(from, to)| RonLink {
        from: &from.name,
        to: &to.name,
        bandwidth: GPU_LINK_BYTES_PER_S,
        latency: format!("{GPU_LINK_LATENCY_NS}ns"),
    });
    let between = links.iter().map(|link| RonLink {
        from: name(link.from),
        to: name(link.to),
        bandwidth: link.bytes_per_s,
        latency: format!("{}ns", link.latency_ns),
    });

    let members = hosts.iter().zip(&devices).map(|(host, devices)| {
        let names = devices.iter().map(|device| device.name.as_str());
        (host.name.as_str(), names.collect())
    });
    ron_text(&RonMachine {
        devices: devices
            .iter()
            .flatten()
            .map(|device| RonDevice::new(device, None))
            .collect(),
        links: within.chain(of_gpus).chain(between).collect(),
        hosts: members.collect(),
    })
}

/// The devices of a host, with their names in the cluster.
fn named_devices(host: &ClusterHost) -> Vec<Device> {
    let mut cpus = 0..;
    let devices = host.devices.iter().map(|device| Device {
        name: match device.backend.is_gpu() {
            true => format!("{}/{}", host.name, device.name),
            false => format!("{}:{}", host.name, cpus.next().unwrap_or(0)),
        },
        ..device.clone()
    });
    devices.collect()
}
