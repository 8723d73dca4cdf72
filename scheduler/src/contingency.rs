//! Contingencies: plans for what is left of the machine when devices are lost, made ahead.
//!
//! Losses are counted by kind of device ([`likeness`]), so that alike devices share their plans. Each loss is scheduled by
//! itself ([`schedule_loss`]), so that a caller may do them side by side; [`Contingent::collect`] puts them together in
//! their order, whatever order they were made in.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::{
    Alike, Contingencies, Contingency, Costs, DeviceId, Host, HostDevices, HostId, HostKindId,
    KindId, Loss, Machine, Plan, PlanId, TiVec, limits,
};

use crate::error::ScheduleError;
use crate::inputs::{Inputs, allowed_devices};
use crate::options::{Block, ScheduleOptions};
use crate::schedule;

/// Which losses plans are made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Losses {
    /// None.
    #[default]
    None,
    /// Of any one device.
    Single,
    /// Of any one device, and of any one host with all its devices.
    Hosts,
    /// Of any one device and of any two, and where the machine has hosts, of any one of them.
    Pairs,
}

/// Which devices and hosts are alike, as a table of contingencies without entries.
///
/// Kinds of devices are by their first device: those of one kind are alike by [`Alike`], in one host, cost the same, and
/// are either all allowed or none. A device that an actor is pinned to is a kind of its own, since a pin means that one
/// device; a host with such a device is like no other. Hosts are alike if their devices are, one by one.
///
/// O(kinds * links) for alike devices.
pub fn likeness(machine: &Machine, costs: &Costs, options: &ScheduleOptions) -> Contingencies {
    let comparison = DeviceComparison {
        alike: Alike::new(machine),
        costs,
        pinned: options.pins.values().copied().collect(),
        allowed: allowed_devices(machine, options.devices.as_deref())
            .into_iter()
            .collect(),
        host_of: machine.hosts_of_devices(),
    };
    let kinds = comparison.kinds(machine);
    let alike_hosts = comparison.alike_hosts(machine, &kinds);
    Contingencies {
        kinds,
        list: Vec::new(),
        alike_hosts,
    }
}

/// What tells devices apart.
struct DeviceComparison<'a> {
    alike: Alike<'a>,
    costs: &'a Costs,
    pinned: BTreeSet<DeviceId>,
    allowed: BTreeSet<DeviceId>,
    host_of: BTreeMap<DeviceId, HostId>,
}

impl DeviceComparison<'_> {
    fn kinds(&self, machine: &Machine) -> TiVec<KindId, Vec<DeviceId>> {
        let mut kinds: TiVec<KindId, Vec<DeviceId>> = TiVec::new();

        for device in machine.devices.keys() {
            // Being alike is an equivalence, so that the first of each kind stands for all.
            let known_kind = kinds.iter_mut().find(|devices| {
                let first = devices.first();
                first.is_some_and(|&first| self.is_same_kind(first, device))
            });
            match known_kind {
                Some(devices) => devices.push(device),
                None => kinds.push(vec![device]),
            }
        }
        kinds
    }

    fn is_same_kind(&self, first: DeviceId, second: DeviceId) -> bool {
        self.host_of.get(&first) == self.host_of.get(&second)
            && self.may_correspond(first, second)
            && self.alike.difference(first, second).is_none()
    }

    /// Whether two devices cost the same and are bound to be used or not in the same way.
    fn may_correspond(&self, first: DeviceId, second: DeviceId) -> bool {
        !self.pinned.contains(&first)
            && !self.pinned.contains(&second)
            && self.allowed.contains(&first) == self.allowed.contains(&second)
            && self.costs.table.iter().all(|row| row[first] == row[second])
    }

    /// The hosts that are like others, by their first host.
    fn alike_hosts(
        &self,
        machine: &Machine,
        kinds: &TiVec<KindId, Vec<DeviceId>>,
    ) -> TiVec<HostKindId, Vec<HostDevices>> {
        let mut groups: Vec<Vec<HostDevices>> = Vec::new();
        for host in &machine.hosts {
            let devices = in_order_of_likeness(machine, &host.devices);
            let group = groups
                .iter_mut()
                .find(|group| self.are_hosts_alike(&group[0], &devices, kinds));
            match group {
                Some(group) => group.push(devices),
                None => groups.push(vec![devices]),
            }
        }
        groups.retain(|group| group.len() > 1);
        groups.into()
    }

    fn are_hosts_alike(
        &self,
        first: &HostDevices,
        second: &HostDevices,
        kinds: &TiVec<KindId, Vec<DeviceId>>,
    ) -> bool {
        let kinds_at = |host: &HostDevices| -> Vec<Option<usize>> {
            // By the first position of the same kind, which can be compared between hosts.
            let kind_of = |device: &DeviceId| kinds.iter().position(|kind| kind.contains(device));
            let own_kinds: Vec<Option<usize>> = host.iter().map(kind_of).collect();
            let first_of = |kind| own_kinds.iter().position(|own| *own == kind);
            own_kinds.iter().map(|kind| first_of(*kind)).collect()
        };
        let mut pairs = first.iter().zip(second);
        first.len() == second.len()
            && pairs.all(|(x, y)| self.may_correspond(*x, *y))
            && self.alike.host_difference(first, second).is_none()
            && kinds_at(first) == kinds_at(second)
    }
}

/// A host's devices so that those of alike hosts correspond, in whatever order they are numbered.
fn in_order_of_likeness(machine: &Machine, devices: &[DeviceId]) -> HostDevices {
    let mut ordered = devices.to_vec();
    ordered.sort_by_key(|&id| {
        let device = &machine.devices[id];
        let backend = device.backend.as_str();
        let speeds = [device.memory_bytes, device.flops_per_s, device.bytes_per_s];
        (backend, speeds, id)
    });
    ordered
}

/// The losses to make plans for: of devices, of hosts, of pairs of devices, each by kind. Of losses that alike hosts make
/// the same there is one. Includes those that leave no device.
///
/// # Errors
/// [`ScheduleError::NoHosts`] where hosts are asked for and the machine has none, and
/// [`ScheduleError::TooManyContingencies`] where there are more losses than a program may have plans for.
pub fn losses(
    machine: &Machine,
    likeness: &Contingencies,
    which: Losses,
) -> Result<Vec<Vec<Loss>>, ScheduleError> {
    if which == Losses::Hosts && machine.hosts.is_empty() {
        return Err(ScheduleError::NoHosts);
    }

    let kinds = &likeness.kinds;
    let mut losses: Vec<Vec<Loss>> = Vec::new();
    if which >= Losses::Single {
        losses.extend(kinds.keys().map(|kind| vec![Loss { kind, count: 1 }]));
    }
    if which >= Losses::Hosts {
        losses.extend(machine.hosts.iter().map(|host| loss_of_host(host, kinds)));
    }
    if which >= Losses::Pairs {
        for (kind, devices) in kinds.iter_enumerated() {
            if devices.len() > 1 {
                losses.push(vec![Loss { kind, count: 2 }]);
            }
            // Each pair of kinds once.
            for other in kinds.keys().filter(|&other| other > kind) {
                losses.push([kind, other].map(|kind| Loss { kind, count: 1 }).to_vec());
            }
        }
    }

    // A host of one device is lost with it, and one of two with the pair.
    let mut known_losses: BTreeSet<Vec<Loss>> = BTreeSet::new();
    let order = likeness.loss_order();
    losses.retain(|lost| order.is_canonical(lost) && known_losses.insert(lost.clone()));

    // Each may need a plan and a tail, beside plan 0 and its own.
    let count = losses.len();
    let limit = limits::MAX_CONTINGENCIES.min(limits::MAX_PLANS / 2 - 1);
    if count > limit {
        return Err(ScheduleError::TooManyContingencies { count, limit });
    }
    Ok(losses)
}

/// All devices of a host, by kind; kinds are within hosts.
fn loss_of_host(host: &Host, kinds: &TiVec<KindId, Vec<DeviceId>>) -> Vec<Loss> {
    let own_kinds = kinds.iter_enumerated().filter(|(_, devices)| {
        let first = devices.first();
        first.is_some_and(|device| host.devices.contains(device))
    });
    own_kinds
        .map(|(kind, devices)| Loss {
            kind,
            count: devices.len() as u32,
        })
        .collect()
}

/// The roles that are left, by device: each kind without its last ones.
fn remaining_devices(kinds: &TiVec<KindId, Vec<DeviceId>>, losses: &[Loss]) -> BTreeSet<DeviceId> {
    let mut remaining = BTreeSet::new();

    for (kind, devices) in kinds.iter_enumerated() {
        let loss = losses.iter().find(|loss| loss.kind == kind);
        let lost = loss.map_or(0, |loss| loss.count as usize);
        remaining.extend(devices.iter().take(devices.len().saturating_sub(lost)));
    }
    remaining
}

fn uses_only(plan: &Plan, left: &BTreeSet<DeviceId>) -> bool {
    plan.calendars
        .iter()
        .all(|calendar| left.contains(&calendar.device))
}

/// The plans for one loss: `main` and where there is one `tail`, as [`schedule`] makes them, but named for the loss, in
/// blocks of those of the program's main plan, on the roles that are left. The program's own `plans` where these do
/// without the lost roles anyway.
///
/// # Errors
/// Why there is no plan after the loss: [`schedule`]'s errors for the machine that is left.
pub fn schedule_loss(
    inputs: Inputs<'_>,
    plans: &[Plan],
    likeness: &Contingencies,
    lost: &[Loss],
) -> Result<Vec<Plan>, ScheduleError> {
    let remaining = remaining_devices(&likeness.kinds, lost);
    if plans.iter().all(|plan| uses_only(plan, &remaining)) {
        return Ok(plans.to_vec());
    }

    let mut allowed = allowed_devices(inputs.machine, inputs.options.devices.as_deref());
    allowed.retain(|device| remaining.contains(device));
    let options = ScheduleOptions {
        block: match plans.first() {
            Some(main) => Block::Fixed(main.block),
            None => Block::Auto,
        },
        devices: Some(allowed),
        ..inputs.options.clone()
    };
    let mut loss_plans = schedule(inputs.graph, inputs.machine, inputs.costs, &options)?;

    let loss_text = zbmd_ir::text::loss(inputs.machine, likeness, lost);
    for plan in &mut loss_plans {
        plan.name = format!("{} without {loss_text}", plan.name);
    }
    Ok(loss_plans)
}

/// A program's plans and contingencies, and the losses that it does not survive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contingent {
    /// All plans, the given ones first.
    pub plans: Vec<Plan>,
    /// Which of them run after which loss.
    pub contingencies: Contingencies,
    /// Which devices and hosts are alike, also where there is a plan for no loss; without entries.
    pub likeness: Contingencies,
    /// Losses without a plan, and why.
    pub impossible: Vec<(Vec<Loss>, ScheduleError)>,
}

impl Contingent {
    /// Puts together what [`schedule_loss`] made of each loss. Plans that are equal but for their names are kept once.
    pub fn collect(
        plans: Vec<Plan>,
        likeness: Contingencies,
        results: impl IntoIterator<Item = (Vec<Loss>, Result<Vec<Plan>, ScheduleError>)>,
    ) -> Self {
        let mut contingent = Contingent {
            plans,
            ..Contingent::default()
        };

        for (lost, result) in results {
            match result {
                Err(error) => contingent.impossible.push((lost, error)),
                Ok(plans) => {
                    let ids: Vec<PlanId> = plans
                        .into_iter()
                        .map(|plan| contingent.add_plan(plan))
                        .collect();
                    let Some(&main) = ids.first() else { continue };
                    let tail = ids.get(1).copied();
                    let list = &mut contingent.contingencies.list;
                    list.push(Contingency { lost, main, tail });
                }
            }
        }

        if !contingent.contingencies.list.is_empty() {
            let list = std::mem::take(&mut contingent.contingencies.list);
            contingent.contingencies = Contingencies {
                list,
                ..likeness.clone()
            };
        }
        contingent.likeness = likeness;
        contingent
    }

    /// The id of a plan, which is added unless one that differs in name only is there already.
    fn add_plan(&mut self, mut plan: Plan) -> PlanId {
        let own_name = std::mem::take(&mut plan.name);
        let mut known_id = None;
        for (index, known) in self.plans.iter().enumerate() {
            plan.name.clone_from(&known.name);
            if plan == *known {
                known_id = Some(PlanId::from(index));
                break;
            }
        }
        if let Some(id) = known_id {
            return id;
        }

        plan.name = own_name;
        // Devices may be called anything, so that two losses can read alike.
        while self.plans.iter().any(|known| known.name == plan.name) {
            plan.name.push('\'');
        }
        self.plans.push(plan);
        PlanId::from(self.plans.len() - 1)
    }
}

/// Makes the plans for every loss asked for, one after the other. `plans` are those of [`schedule`] with the same
/// arguments.
///
/// # Errors
/// Those of [`losses`]. A loss without a plan is not an error: see [`Contingent::impossible`].
pub fn schedule_contingencies(
    inputs: Inputs<'_>,
    plans: Vec<Plan>,
    which: Losses,
) -> Result<Contingent, ScheduleError> {
    let likeness = likeness(inputs.machine, inputs.costs, inputs.options);
    let mut results = Vec::new();
    for lost in losses(inputs.machine, &likeness, which)? {
        let result = schedule_loss(inputs, &plans, &likeness, &lost);
        results.push((lost, result));
    }
    Ok(Contingent::collect(plans, likeness, results))
}

#[cfg(test)]
mod tests;
