//! Contingencies: plans for what is left of the machine when devices are lost, made ahead.
//!
//! Losses are counted by kind of device ([`kinds`]), so that alike devices share their plans. Each loss is scheduled by
//! itself ([`schedule_loss`]), so that a caller may do them side by side; [`Contingent::collect`] puts them together in
//! their order, whatever order they were made in.

use std::collections::BTreeSet;

use zbmd_ir::{
    Alike, Contingencies, Contingency, Costs, DeviceId, KindId, Loss, Machine, Plan, PlanId, TiVec,
    limits,
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
    /// Of any one device and of any two.
    Pairs,
}

/// The kinds of devices, by their first device: those of one kind are alike by [`Alike`], cost the same, and are either
/// all allowed or none. A device that an actor is pinned to is a kind of its own, since a pin means that one device.
///
/// O(kinds * links) for alike devices.
pub fn kinds(
    machine: &Machine,
    costs: &Costs,
    options: &ScheduleOptions,
) -> TiVec<KindId, Vec<DeviceId>> {
    let comparison = DeviceComparison {
        alike: Alike::new(machine),
        costs,
        pinned: options.pins.values().copied().collect(),
        allowed: allowed_devices(machine, options.devices.as_deref())
            .into_iter()
            .collect(),
    };
    let mut kinds: TiVec<KindId, Vec<DeviceId>> = TiVec::new();

    for device in machine.devices.keys() {
        // Being alike is an equivalence, so that the first of each kind stands for all.
        let known_kind = kinds.iter_mut().find(|devices| {
            let first = devices.first();
            first.is_some_and(|&first| comparison.is_same_kind(first, device))
        });
        match known_kind {
            Some(devices) => devices.push(device),
            None => kinds.push(vec![device]),
        }
    }
    kinds
}

/// What tells devices apart.
struct DeviceComparison<'a> {
    alike: Alike<'a>,
    costs: &'a Costs,
    pinned: BTreeSet<DeviceId>,
    allowed: BTreeSet<DeviceId>,
}

impl DeviceComparison<'_> {
    fn is_same_kind(&self, first: DeviceId, second: DeviceId) -> bool {
        !self.pinned.contains(&first)
            && !self.pinned.contains(&second)
            && self.allowed.contains(&first) == self.allowed.contains(&second)
            && self.alike.difference(first, second).is_none()
            && self.costs.table.iter().all(|row| row[first] == row[second])
    }
}

/// The losses to make plans for, fewer devices first, then by kind. Includes those that leave no device.
///
/// # Errors
/// [`ScheduleError::TooManyContingencies`] where there are more than a program may have.
pub fn losses(
    kinds: &TiVec<KindId, Vec<DeviceId>>,
    which: Losses,
) -> Result<Vec<Vec<Loss>>, ScheduleError> {
    let kind_count = kinds.len();
    let kinds_of_several = kinds.iter().filter(|devices| devices.len() > 1).count();
    let count = match which {
        Losses::None => 0,
        Losses::Single => kind_count,
        Losses::Pairs => {
            kind_count + kinds_of_several + kind_count * kind_count.saturating_sub(1) / 2
        }
    };
    // Each may need a plan and a tail, beside plan 0 and its own.
    let limit = limits::MAX_CONTINGENCIES.min(limits::MAX_PLANS / 2 - 1);
    if count > limit {
        return Err(ScheduleError::TooManyContingencies { count, limit });
    }

    let mut losses = Vec::with_capacity(count);
    if which >= Losses::Single {
        losses.extend(kinds.keys().map(|kind| vec![Loss { kind, count: 1 }]));
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
    Ok(losses)
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
    kinds: &TiVec<KindId, Vec<DeviceId>>,
    lost: &[Loss],
) -> Result<Vec<Plan>, ScheduleError> {
    let remaining = remaining_devices(kinds, lost);
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

    let loss_text = zbmd_ir::text::loss(inputs.machine, kinds, lost);
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
    /// The devices by kind, also where there is a plan for no loss.
    pub kinds: TiVec<KindId, Vec<DeviceId>>,
    /// Losses without a plan, and why.
    pub impossible: Vec<(Vec<Loss>, ScheduleError)>,
}

impl Contingent {
    /// Puts together what [`schedule_loss`] made of each loss. Plans that are equal but for their names are kept once.
    pub fn collect(
        plans: Vec<Plan>,
        kinds: TiVec<KindId, Vec<DeviceId>>,
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
            contingent.contingencies.kinds = kinds.clone();
        }
        contingent.kinds = kinds;
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
/// [`ScheduleError::TooManyContingencies`]. A loss without a plan is not an error: see [`Contingent::impossible`].
pub fn schedule_contingencies(
    inputs: Inputs<'_>,
    plans: Vec<Plan>,
    which: Losses,
) -> Result<Contingent, ScheduleError> {
    let kinds = kinds(inputs.machine, inputs.costs, inputs.options);
    let mut results = Vec::new();
    for lost in losses(&kinds, which)? {
        let result = schedule_loss(inputs, &plans, &kinds, &lost);
        results.push((lost, result));
    }
    Ok(Contingent::collect(plans, kinds, results))
}

#[cfg(test)]
mod tests;
