//! Devices and links: names, ids, bandwidths, cores.

use std::collections::{BTreeMap, BTreeSet};

use super::error::{Errors, VerifyError};
use super::names::check_name;
use crate::limits::{MAX_CORE, MAX_DEVICES};
use crate::{DeviceId, HostId, LinkRun, Machine, TiVec};

/// Checks a machine. O(n log n) in its devices and cores.
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

/// Checks that tiers are those of devices that fetch, and send something.
fn check_tiers(machine: &Machine, errors: &mut Errors) {
    let devices = machine.devices.len();
    for (&device, tier) in &machine.tiers {
        if errors.full() {
            return;
        }
        match machine.devices.get(device) {
            None => errors.push(VerifyError::TierDevice { device, devices }),
            Some(data) if !data.backend.is_cpu() && !data.backend.is_gpu() => {
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

/// Checks the ends, speeds and order of links.
fn check_links(machine: &Machine, errors: &mut Errors) {
    let devices = machine.devices.len();
    let mut before: Option<&LinkRun> = None;
    for run in machine.links.runs() {
        if errors.full() {
            return;
        }
        let LinkRun { from, to, .. } = *run;
        let last_device = u64::from(from.0).max(run.last_receiver());
        if last_device >= devices as u64 {
            errors.push(VerifyError::LinkDevice {
                from,
                to: run.last_receiver(),
                devices,
            });
        }
        if from == to {
            errors.push(VerifyError::LinkToSelf { device: from });
        }
        if run.bytes_per_s == 0 {
            errors.push(VerifyError::ZeroBandwidth { from, to });
        }

        // At most one link for each ordered pair, so that a transfer has one speed; in order, so that it is found.
        let is_out_of_order = before.is_some_and(|before| (before.from, before.to) > (from, to));
        let is_cut_off = before.is_some_and(|before| before.is_continued_by(run));
        let is_double = before
            .is_some_and(|before| before.from == from && before.last_receiver() >= u64::from(to.0));
        if run.count == 0 || is_out_of_order || is_cut_off {
            errors.push(VerifyError::LinkRun { from, to });
        } else if is_double {
            errors.push(VerifyError::DuplicateLink { from, to });
        }
        before = Some(run);
    }
}
