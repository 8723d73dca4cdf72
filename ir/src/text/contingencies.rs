//! Contingencies as text: the kinds of devices, and a line for each loss.

use std::collections::BTreeMap;

use super::table::{Table, left, right};
use super::units::duration;
use super::{TextOptions, device_name, printable};
use crate::{Contingencies, HostId, Loss, Machine, Plan, PlanId, Program};

/// A loss in words: `2 like cpu:0 and gpu:0`. A kind is named by its first device, alone where it has but one. A host
/// that is lost as a whole is named as such: `1 host like left`; what is lost of an alike host besides, with a host that
/// it is like: `1 like cpu:2 of a host like left`. `table` says what is alike.
pub fn loss(machine: &Machine, table: &Contingencies, lost: &[Loss]) -> String {
    let mut parts = Vec::new();
    let mut lost_hosts: BTreeMap<HostId, u32> = BTreeMap::new();
    let mut rest = lost.to_vec();
    for (id, host) in machine.hosts.iter_enumerated() {
        let is_of_host = |loss: &Loss| {
            let devices = table.kinds.get(loss.kind);
            devices.is_some_and(|devices| devices.iter().all(|d| host.devices.contains(d)))
        };
        let own_losses = rest.iter().filter(|loss| is_of_host(loss));
        let lost_devices: usize = own_losses.map(|loss| loss.count as usize).sum();
        if host.devices.len() > 1 && lost_devices == host.devices.len() {
            rest.retain(|loss| !is_of_host(loss));
            let first = first_alike(machine, table, id);
            *lost_hosts.entry(first.unwrap_or(id)).or_default() += 1;
        }
    }

    for (id, count) in lost_hosts {
        let name = printable(&machine.hosts[id].name);
        let is_like_others = first_alike(machine, table, id).is_some();
        parts.push(match (is_like_others, count) {
            (false, _) => format!("host {name}"),
            (true, 1) => format!("1 host like {name}"),
            (true, _) => format!("{count} hosts like {name}"),
        });
    }
    parts.extend(rest.iter().map(|loss| loss_of_kind(machine, table, loss)));
    parts.join(" and ")
}

fn loss_of_kind(machine: &Machine, table: &Contingencies, loss: &Loss) -> String {
    let devices = table.kinds.get(loss.kind).map(Vec::as_slice);
    let mut words = match devices {
        Some([only]) if loss.count == 1 => device_name(machine, *only).into_owned(),
        Some([first, ..]) => format!("{} like {}", loss.count, device_name(machine, *first)),
        _ => format!("{} of {}?", loss.count, loss.kind),
    };
    let device = devices.and_then(|devices| devices.first());
    let mut hosts = machine.hosts.iter_enumerated();
    let host = hosts.find(|(_, host)| device.is_some_and(|device| host.devices.contains(device)));
    if let Some(first) = host.and_then(|(id, _)| first_alike(machine, table, id)) {
        words += &format!(" of a host like {}", printable(&machine.hosts[first].name));
    }
    words
}

/// The first host that a host is like; None if it is like no other.
fn first_alike(machine: &Machine, table: &Contingencies, host: HostId) -> Option<HostId> {
    let any_device = machine.hosts[host].devices.first()?;
    let mut kinds = table.alike_hosts.iter();
    let alike = kinds.find(|hosts| hosts.iter().any(|devices| devices.contains(any_device)))?;
    let first_device = alike.first()?.first()?;
    let mut hosts = machine.hosts.iter_enumerated();
    let first = hosts.find(|(_, host)| host.devices.contains(first_device))?;
    Some(first.0)
}

/// The kinds of devices, and for each loss the plans that run then; with times also their period, and how much longer
/// it is than that of plan 0. Empty if there are no contingencies.
pub fn contingencies(program: &Program, options: TextOptions) -> String {
    let table = &program.contingencies;
    if table.kinds.is_empty() && table.list.is_empty() {
        return String::new();
    }
    let machine = &program.machine;
    let mut out = format!("contingencies   {}\n", count(table.list.len()));
    let mut kind_table = Table::default();
    for (kind, devices) in table.kinds.iter_enumerated() {
        let names: Vec<_> = devices.iter().map(|&d| device_name(machine, d)).collect();
        kind_table.row(1, vec![left(kind.to_string()), left(names.join(", "))]);
    }

    for alike in &table.alike_hosts {
        let names = alike.iter().filter_map(|devices| {
            let host = machine.host_of(*devices.first()?)?;
            Some(printable(&host.name).into_owned())
        });
        let names: Vec<String> = names.collect();
        kind_table.row(1, vec![left("alike"), left(names.join(", "))]);
    }
    kind_table.write(&mut out);
    let mut loss_table = Table::default();
    for entry in &table.list {
        let plan = program.plans.get(entry.main);
        let tail_name = entry.tail.map(|tail_name| plan_words(program, tail_name));
        let mut cells = vec![
            left(format!("without {}", loss(machine, table, &entry.lost))),
            left(plan_words(program, entry.main)),
            left(tail_name.unwrap_or_else(|| "no tail".to_owned())),
        ];

        // How much a loss costs is a time, which stable text leaves out.
        if let (true, Some(plan)) = (options.times, plan) {
            cells.push(right(format!("period {}", duration(plan.period_ns))));
            cells.push(right(
                program
                    .plans
                    .first()
                    .map_or(String::new(), |main| slowdown_text(plan, main)),
            ));
        }

        loss_table.row(1, cells);
    }

    loss_table.write(&mut out);
    out
}

/// The plan's id and the number of devices it runs on; its name would repeat the loss.
fn plan_words(program: &Program, id: PlanId) -> String {
    match program.plans.get(id) {
        Some(plan) if plan.calendars.len() == 1 => format!("{id} on 1 device"),
        Some(plan) => format!("{id} on {} devices", plan.calendars.len()),
        None => format!("{id}?"),
    }
}

/// How much longer the period of a plan is, both with blocks of one size.
fn slowdown_text(plan: &Plan, main: &Plan) -> String {
    let extra_percent = (plan.period_ns as f64 / main.period_ns.max(1) as f64 - 1.0) * 100.0;
    format!("{extra_percent:+.1} %")
}

fn count(losses: usize) -> String {
    if losses == 1 {
        "1 loss".to_owned()
    } else {
        format!("{losses} losses")
    }
}
