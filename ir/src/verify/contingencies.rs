//! The table of contingencies: kinds of devices that are alike, losses, and plans that leave the lost roles empty.
//! That the plans themselves are right is checked like that of every plan.

mod hosts;

use std::collections::BTreeMap;

use super::error::{Errors, VerifyError};
use crate::limits::MAX_CONTINGENCIES;
use crate::{Alike, Contingencies, Contingency, DeviceId, KindId, Loss, PlanId, Program, TiVec};

/// Kind of a device and its place among those of its kind.
type Roles = TiVec<DeviceId, Option<(KindId, usize)>>;

/// Checks the table; the machine has passed, plans need not have.
pub(super) fn check(program: &Program, errors: &mut Errors) {
    let Contingencies {
        kinds,
        list,
        alike_hosts,
    } = &program.contingencies;
    if kinds.is_empty() && list.is_empty() && alike_hosts.is_empty() {
        return;
    }
    if !errors.limit(
        || "contingencies".into(),
        list.len() as u128,
        MAX_CONTINGENCIES as u128,
    ) {
        return;
    }
    let errors_before = errors.found();

    // Losses are counted by kind, so that without kinds there is nothing to compare them with.
    let roles = check_kinds(program, errors);
    if errors.found() > errors_before {
        return;
    }
    hosts::check(program, errors);
    if errors.found() > errors_before {
        return;
    }
    let tail_plan = program
        .plan("tail")
        .map(|(id, _)| id)
        .filter(|&id| id != PlanId(0));
    let loss_order = program.contingencies.loss_order();
    let mut first_losses: BTreeMap<&[Loss], usize> = BTreeMap::new();
    for (entry, contingency) in list.iter().enumerate() {
        if let Some(&first) = first_losses.get(contingency.lost.as_slice()) {
            errors.push(VerifyError::LossTwice {
                first,
                second: entry,
            });
        }

        first_losses.entry(&contingency.lost).or_insert(entry);
        check_lost(program, entry, contingency, errors);
        if !loss_order.is_canonical(&contingency.lost) {
            errors.push(VerifyError::LossNotCanonical { entry });
        }
        check_plans(program, (&roles, tail_plan), entry, contingency, errors);
        if errors.full() {
            return;
        }
    }
}

/// Every device in exactly one kind, each like the first of its kind.
fn check_kinds(program: &Program, errors: &mut Errors) -> Roles {
    let devices = program.machine.devices.len();
    // A role is a kind and a position in it: plans for losses name devices by their roles.
    let mut roles: Roles = vec![None; devices].into();
    for (kind, members) in program.contingencies.kinds.iter_enumerated() {
        if members.is_empty() {
            errors.push(VerifyError::KindEmpty { kind });
        }
        for (position, &device) in members.iter().enumerate() {
            if errors.full() {
                return roles;
            }
            let Some(role) = roles.get_mut(device) else {
                errors.push(VerifyError::KindDevice {
                    kind,
                    device,
                    devices,
                });
                continue;
            };

            if let Some((first, _)) = *role {
                errors.push(VerifyError::KindTwice {
                    device,
                    first,
                    second: kind,
                });
            }
            *role = Some((kind, position));
            // Members ascend, so that one set of kinds is written in one way only.
            if let Some(&above) = position
                .checked_sub(1)
                .and_then(|position| members.get(position))
                && above >= device
            {
                errors.push(VerifyError::KindOrder {
                    kind,
                    above,
                    device,
                });
            }
        }
    }

    for (device, role) in roles.iter_enumerated() {
        if role.is_none() {
            errors.push(VerifyError::KindMissing { device });
        }
    }

    check_likeness(program, errors);
    roles
}

/// The devices of a kind are alike: one can run what another was planned to run.
fn check_likeness(program: &Program, errors: &mut Errors) {
    let devices = program.machine.devices.len();

    // Being alike is an equivalence: each is compared with the first of its kind alone.
    let likeness = Alike::new(&program.machine);
    for (kind, members) in program.contingencies.kinds.iter_enumerated() {
        let mut known_devices = members.iter().copied().filter(|d| d.index() < devices);
        let Some(first) = known_devices.next() else {
            continue;
        };
        for device in known_devices {
            if errors.full() {
                return;
            }
            if let Some(difference) = likeness.difference(first, device) {
                errors.push(VerifyError::NotAlike {
                    kind,
                    first,
                    device,
                    difference,
                });
            }
        }
    }
}

fn check_lost(program: &Program, entry: usize, contingency: &Contingency, errors: &mut Errors) {
    let kinds = &program.contingencies.kinds;
    if contingency.lost.is_empty() {
        errors.push(VerifyError::NothingLost { entry });
    }
    for &Loss { kind, count } in &contingency.lost {
        if errors.full() {
            return;
        }
        match kinds.get(kind) {
            None => errors.push(VerifyError::LossKind {
                entry,
                kind,
                kinds: kinds.len(),
            }),
            Some(members) if count == 0 || count as usize > members.len() => {
                errors.push(VerifyError::LossCount {
                    entry,
                    kind,
                    count,
                    devices: members.len(),
                });
            }
            Some(_) => {}
        }
    }

    // An order of kinds makes equal losses equal lists.
    for pair in contingency.lost.windows(2) {
        if let [above, below] = pair
            && above.kind >= below.kind
        {
            errors.push(VerifyError::LossOrder {
                entry,
                above: above.kind,
                kind: below.kind,
            });
        }
    }
}

fn check_plans(
    program: &Program,
    (roles, expected): (&Roles, Option<PlanId>),
    entry: usize,
    contingency: &Contingency,
    errors: &mut Errors,
) {
    let lost_counts: BTreeMap<KindId, u32> =
        contingency.lost.iter().map(|l| (l.kind, l.count)).collect();
    if expected.is_some() != contingency.tail.is_some() {
        errors.push(VerifyError::ContingencyTail {
            entry,
            found: contingency.tail,
            expected,
        });
    }

    // What runs after a loss goes on with the blocks of the plan before it; a tail has blocks of one.
    let main_block = program.plans.first().map_or(0, |main| main.block);
    let planned_parts = [
        Some((contingency.main, main_block)),
        contingency.tail.map(|tail| (tail, 1)),
    ];
    for (plan_id, expected) in planned_parts.into_iter().flatten() {
        let Some(plan) = program.plans.get(plan_id) else {
            errors.push(VerifyError::ContingencyPlan {
                entry,
                plan: plan_id,
                plans: program.plans.len(),
            });
            continue;
        };

        if plan.block != expected {
            errors.push(VerifyError::ContingencyBlock {
                entry,
                plan: plan_id,
                found: plan.block,
                expected,
            });
        }
        // The calendars of a plan that passes are those of the devices that it places actors on.
        for calendar in &plan.calendars {
            if errors.full() {
                return;
            }
            let device = calendar.device;
            let Some(&Some((kind, role))) = roles.get(device) else {
                continue;
            };
            let lost_counts = lost_counts.get(&kind).copied().unwrap_or(0);
            let roles_left = program.contingencies.kinds[kind]
                .len()
                .saturating_sub(lost_counts as usize);
            if role >= roles_left {
                errors.push(VerifyError::LostRole {
                    entry,
                    plan: plan_id,
                    device,
                    kind,
                    role,
                    left: roles_left,
                });
            }
        }
    }
}
