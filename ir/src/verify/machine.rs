//! Devices and links: names, ids, bandwidths, cores.

use std::collections::{BTreeMap, BTreeSet};

use super::error::{Errors, VerifyError};
use super::names::check_name;
use crate::Machine;
use crate::limits::{MAX_CORE, MAX_DEVICES};

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

/// Checks the ends and speeds of links.
fn check_links(machine: &Machine, errors: &mut Errors) {
    let devices = machine.devices.len();

    // At most one link for each ordered pair, so that a transfer has one speed.
    let mut ends = BTreeMap::new();
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
        if let Some(&first) = ends.get(&(link.from, link.to)) {
            errors.push(VerifyError::DuplicateLink { first, second: id });
        }
        ends.entry((link.from, link.to)).or_insert(id);
    }
}
