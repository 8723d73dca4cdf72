//! Devices and links: names, ids, bandwidths, cores.

use std::collections::{BTreeMap, BTreeSet};

use super::error::{Errors, VerifyError};
use super::names::check_name;
use crate::limits::{MAX_CORE, MAX_DEVICES};
use crate::{DeviceId, HostId, LinkId, Machine, TiVec};

/// Checks a machine. O(n log n) in its devices, cores and links.
pub(super) fn check(machine: &Machine, errors: &mut Errors) {
    let devices = machine.devices.len();
    if !errors.limit(
        || "devices".to_owned(),
        devices as u128,
        MAX_DEVICES as u128,
    ) {
        return;
    }

    check_devices(machine, errors);
    check_links(machine, errors);
    check_hosts(machine, errors);
    check_tiers(machine, errors);
}

/// Checks that tiers are those of CPU devices, and send something.
fn check_tiers(machine: &Machine, errors: &mut Errors) {
    let devices = machine.devices.len();
    for (&device, tier) in &machine.tiers {
        if errors.full() {
            return;
        }
        match machine.devices.get(device) {
            None => errors.push(VerifyError::TierDevice { device, devices }),
            Some(data) if !data.backend.is_cpu() => {
                errors.push(VerifyError::TierBackend { device });
            }
            Some(_) => {}
        }
        if tier.bytes_per_s == 0 {
            errors.push(VerifyError::TierBandwidth { device });
        }
    }
}

/// Checks names, backends and cores.
fn check_devices(machine: &Machine, errors: &mut Errors) {
    // Names identify devices in machine files and in reports.
    let mut names = BTreeMap::new();
    for (id, device) in machine.devices.iter_enumerated() {
        if errors.full() {
            return;
        }
        check_name(|| id.to_string(), &device.name, errors);
        check_name(
            || format!("the backend of {id}"),
            device.backend.as_str(),
            errors,
        );
        if let Some(&first) = names.get(device.name.as_str()) {
            errors.push(VerifyError::DuplicateDevice {
                name: device.name.clone(),
                first,
                second: id,
            });
        }

        names.entry(device.name.as_str()).or_insert(id);

        // Two devices may share a core, one device cannot run on it twice.
        let mut cores = BTreeSet::new();
        for &core in &device.cores {
            if core > MAX_CORE {
                errors.push(VerifyError::CoreNumber {
                    device: id,
                    core,
                    limit: MAX_CORE,
                });
            }

            if !cores.insert(core) {
                errors.push(VerifyError::DuplicateCore { device: id, core });
            }
        }
    }
}

/// Checks that hosts, if there are any, are named, and that each device is in exactly one.
fn check_hosts(machine: &Machine, errors: &mut Errors) {
    if machine.hosts.is_empty() {
        return;
    }

    // Files name hosts and devices by the same words.
    let devices = machine.devices.iter();
    let mut names: BTreeSet<&str> = devices.map(|device| device.name.as_str()).collect();
    let mut host_of: TiVec<DeviceId, Option<HostId>> = vec![None; machine.devices.len()].into();
    for (id, host) in machine.hosts.iter_enumerated() {
        if errors.full() {
            return;
        }
        check_name(|| id.to_string(), &host.name, errors);
        if !names.insert(&host.name) {
            let name = host.name.clone();
            errors.push(VerifyError::HostName { host: id, name });
        }
        if host.devices.is_empty() {
            errors.push(VerifyError::HostEmpty { host: id });
        }
        check_host_devices(id, &host.devices, &mut host_of, errors);
    }

    for (device, host) in host_of.iter_enumerated() {
        if host.is_none() {
            errors.push(VerifyError::HostMissing { device });
        }
    }
}

/// Checks the devices of one host, and enters it as theirs.
fn check_host_devices(
    host: HostId,
    devices: &[DeviceId],
    host_of: &mut TiVec<DeviceId, Option<HostId>>,
    errors: &mut Errors,
) {
    let mut above = None;
    for &device in devices {
        if errors.full() {
            return;
        }
        if let Some(above) = above.filter(|above| *above >= device) {
            errors.push(VerifyError::HostOrder {
                host,
                above,
                device,
            });
        }
        above = Some(device);

        let device_count = host_of.len();
        match host_of.get_mut(device) {
            None => errors.push(VerifyError::HostDevice {
                host,
                device,
                devices: device_count,
            }),
            Some(Some(first)) if *first != host => errors.push(VerifyError::HostTwice {
                device,
                first: *first,
                second: host,
            }),
            Some(entered) => *entered = Some(host),
        }
    }
}

/// Checks the ends and speeds of links.
fn check_links(machine: &Machine, errors: &mut Errors) {
    let devices = machine.devices.len();

    // At most one link for each ordered pair, so that a transfer has one speed.
    let first_links = first_links(machine);
    for (id, link) in machine.links.iter_enumerated() {
        if errors.full() {
            return;
        }
        for device in [link.from, link.to] {
            if device.index() >= devices {
                errors.push(VerifyError::LinkDevice {
                    link: id,
                    device,
                    devices,
                });
            }
        }

        if link.from == link.to {
            errors.push(VerifyError::LinkToSelf {
                link: id,
                device: link.from,
            });
        }

        if link.bytes_per_s == 0 {
            errors.push(VerifyError::ZeroBandwidth { link: id });
        }
        let first = first_links[id];
        if first != id {
            errors.push(VerifyError::DuplicateLink { first, second: id });
        }
    }
}

/// The first link that joins the same two devices, of each link.
///
/// Links are sorted rather than entered in a map: large machines have a million of them, nearly always in order.
fn first_links(machine: &Machine) -> TiVec<LinkId, LinkId> {
    let links = machine.links.iter_enumerated();
    let mut all_ends: Vec<LinkEnds> = links
        .map(|(id, link)| LinkEnds {
            from: link.from,
            to: link.to,
            id,
        })
        .collect();
    all_ends.sort_unstable();

    let mut first_links: TiVec<LinkId, LinkId> = machine.links.keys().collect();
    for pair in all_ends.windows(2) {
        let before = pair[0];
        let next = pair[1];
        if before.from == next.from && before.to == next.to {
            first_links[next.id] = first_links[before.id];
        }
    }
    first_links
}

/// What links are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LinkEnds {
    from: DeviceId,
    to: DeviceId,
    id: LinkId,
}

/// The ordered pairs of devices with a link between them, one bit each: the rings of every plan are looked up in it.
pub(super) struct LinkedPairs {
    devices: usize,
    words: Vec<u64>,
}

impl LinkedPairs {
    /// The pairs of a machine that has passed its checks: the table grows with the square of its devices.
    pub(super) fn of(machine: &Machine) -> Self {
        let devices = machine.devices.len();
        let mut pairs = Self {
            devices,
            words: vec![0; (devices * devices).div_ceil(u64::BITS as usize)],
        };
        for link in &machine.links {
            if let Some(BitPlace { word, mask }) = pairs.place(link.from, link.to) {
                pairs.words[word] |= mask;
            }
        }
        pairs
    }

    /// Whether there is a link from one device to another; false for devices that do not exist.
    pub(super) fn contains(&self, from: DeviceId, to: DeviceId) -> bool {
        self.place(from, to)
            .is_some_and(|BitPlace { word, mask }| self.words[word] & mask != 0)
    }

    fn place(&self, from: DeviceId, to: DeviceId) -> Option<BitPlace> {
        let exist = from.index() < self.devices && to.index() < self.devices;
        let bit = exist.then(|| from.index() * self.devices + to.index())?;
        Some(BitPlace {
            word: bit / u64::BITS as usize,
            mask: 1 << (bit % u64::BITS as usize),
        })
    }
}

/// Where the bit of a pair is.
struct BitPlace {
    word: usize,
    mask: u64,
}
