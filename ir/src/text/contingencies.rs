//! Contingencies as text: the kinds of devices, and a line for each loss.

use super::table::{Table, left, right};
use super::units::duration;
use super::{TextOptions, device_name};
use crate::{DeviceId, KindId, Loss, Machine, Plan, PlanId, Program, TiVec};

/// A loss in words: `2 like cpu:0 and gpu:0`. A kind is named by its first device, alone where it has but one.
pub fn loss(machine: &Machine, kinds: &TiVec<KindId, Vec<DeviceId>>, lost: &[Loss]) -> String {
    let part = |loss: &Loss| match kinds.get(loss.kind).map(Vec::as_slice) {
        Some([only]) if loss.count == 1 => device_name(machine, *only).into_owned(),
        Some([first, ..]) => format!("{} like {}", loss.count, device_name(machine, *first)),
        _ => format!("{} of {}?", loss.count, loss.kind),
    };
    lost.iter().map(part).collect::<Vec<_>>().join(" and ")
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

    kind_table.write(&mut out);
    let mut loss_table = Table::default();
    for entry in &table.list {
        let plan = program.plans.get(entry.main);
        let tail_name = entry.tail.map(|tail_name| plan_words(program, tail_name));
        let mut cells = vec![
            left(format!(
                "without {}",
                loss(machine, &table.kinds, &entry.lost)
            )),
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
