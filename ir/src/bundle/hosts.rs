//! The section of hosts, which only bundles for machines of several hosts have.

use serde::{Deserialize, Serialize};

use super::{BundleError, Section};
use crate::{Contingencies, Host, HostDevices, HostId, HostKindId, Machine, TiVec};

/// What the section holds.
#[derive(Serialize, Deserialize)]
pub(super) struct HostsRecord {
    pub(super) hosts: TiVec<HostId, Host>,
    /// Of each mode: what actors cost decides too.
    alike: Vec<TiVec<HostKindId, Vec<HostDevices>>>,
}

impl HostsRecord {
    /// The record of a machine, with the contingencies of each mode; None if there is nothing to record.
    pub(super) fn of<'p>(
        machine: &Machine,
        modes: impl IntoIterator<Item = &'p Contingencies>,
    ) -> Option<Self> {
        let alike: Vec<_> = modes
            .into_iter()
            .map(|contingencies| contingencies.alike_hosts.clone())
            .collect();
        let is_needed = !machine.hosts.is_empty() || alike.iter().any(|kinds| !kinds.is_empty());
        is_needed.then(|| Self {
            hosts: machine.hosts.clone(),
            alike,
        })
    }

    /// The alike hosts of each of so many modes; empty lists without a record.
    pub(super) fn alike_of_modes(
        record: Option<Self>,
        modes: usize,
    ) -> Result<Vec<TiVec<HostKindId, Vec<HostDevices>>>, BundleError> {
        let Some(record) = record else {
            return Ok(vec![TiVec::new(); modes]);
        };
        // Nothing is stored by leaving the section out, so that a program has one file.
        let is_empty = record.hosts.is_empty() && record.alike.iter().all(|kinds| kinds.is_empty());
        let message = match record.alike.len() {
            _ if is_empty => "no hosts".to_owned(),
            found if found == modes => return Ok(record.alike),
            found => format!("alike hosts of {found} modes of {modes}"),
        };
        Err(BundleError::Content {
            section: Section::Hosts,
            message,
        })
    }
}
