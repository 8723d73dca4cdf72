//! Alike hosts in the table of contingencies: that one may stand in for another as a whole, device by device.

use std::collections::{BTreeMap, BTreeSet};

use crate::verify::error::{Errors, VerifyError};
use crate::{Alike, DeviceId, HostDevices, HostId, HostKindId, KindId, Program};

/// Checks the lists of alike hosts; kinds of devices have passed.
pub(super) fn check(program: &Program, errors: &mut Errors) {
    let machine = &program.machine;
    let table = &program.contingencies;
    check_kinds_within_hosts(program, errors);

    let known_hosts: BTreeMap<BTreeSet<DeviceId>, HostId> = machine
        .hosts
        .iter_enumerated()
        .map(|(id, host)| (host.devices.iter().copied().collect(), id))
        .collect();
    let likeness = Alike::new(machine);
    let kind_of = table.kinds_of_devices();
    let mut listed: BTreeSet<HostId> = BTreeSet::new();
    for (kind, hosts) in table.alike_hosts.iter_enumerated() {
        if errors.full() {
            return;
        }
        if hosts.len() < 2 {
            let hosts = hosts.len();
            errors.push(VerifyError::AlikeHostAlone { kind, hosts });
        }

        let ids = check_listed(kind, hosts, &known_hosts, errors);
        let Some(ids) = ids else {
            continue;
        };
        for &host in &ids {
            if !listed.insert(host) {
                errors.push(VerifyError::AlikeHostTwice { host });
            }
        }

        // Being alike is an equivalence: each is compared with the first alone.
        let Some((first, others)) = hosts.split_first() else {
            continue;
        };
        for (host, &id) in others.iter().zip(ids.iter().skip(1)) {
            if errors.full() {
                return;
            }
            if let Some(difference) = likeness.host_difference(first, host) {
                errors.push(VerifyError::HostsNotAlike {
                    kind,
                    first: ids[0],
                    host: id,
                    difference,
                });
            }
            if !have_corresponding_kinds(first, host, &kind_of) {
                errors.push(VerifyError::HostKinds {
                    kind,
                    first: ids[0],
                    host: id,
                });
            }
        }
    }
}

/// Where hosts may be lost as a whole, a kind of devices is within one of them.
fn check_kinds_within_hosts(program: &Program, errors: &mut Errors) {
    let host_of = program.machine.hosts_of_devices();
    for (kind, devices) in program.contingencies.kinds.iter_enumerated() {
        let Some((first, others)) = devices.split_first() else {
            continue;
        };
        let elsewhere = others
            .iter()
            .find(|device| host_of.get(device) != host_of.get(first));
        if let Some(&device) = elsewhere {
            errors.push(VerifyError::KindAcrossHosts {
                kind,
                first: *first,
                device,
            });
        }
    }
}

/// The hosts whose devices are listed, if each list is that of a host, and they ascend.
fn check_listed(
    kind: HostKindId,
    hosts: &[HostDevices],
    known_hosts: &BTreeMap<BTreeSet<DeviceId>, HostId>,
    errors: &mut Errors,
) -> Option<Vec<HostId>> {
    let mut ids: Vec<HostId> = Vec::with_capacity(hosts.len());
    for (position, devices) in hosts.iter().enumerate() {
        if errors.full() {
            return None;
        }
        let set: BTreeSet<DeviceId> = devices.iter().copied().collect();
        let known = known_hosts.get(&set);
        let Some(&host) = known.filter(|_| set.len() == devices.len()) else {
            errors.push(VerifyError::AlikeHostUnknown { kind, position });
            return None;
        };
        if let Some(&above) = ids.last()
            && above >= host
        {
            errors.push(VerifyError::AlikeHostOrder { kind, above, host });
        }
        ids.push(host);
    }
    Some(ids)
}

/// Whether two devices of one host are of one kind exactly where those at the same positions of the other are.
fn have_corresponding_kinds(
    first: &HostDevices,
    other: &HostDevices,
    kind_of: &BTreeMap<DeviceId, KindId>,
) -> bool {
    let mut forth: BTreeMap<KindId, KindId> = BTreeMap::new();
    let mut back: BTreeMap<KindId, KindId> = BTreeMap::new();
    first.iter().zip(other).all(|(x, y)| {
        let (Some(&x), Some(&y)) = (kind_of.get(x), kind_of.get(y)) else {
            return false;
        };
        *forth.entry(x).or_insert(y) == y && *back.entry(y).or_insert(x) == x
    })
}
