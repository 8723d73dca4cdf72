//! Placement, schedule and memory layout as text.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::table::{Table, left, right};
use super::units::{bytes, duration};
use super::{actor_name, device_name, device_of, out_port, place, printable};
use crate::{Action, ActorId, BufferId, Calendar, Entry, Plan, Program, Region, TiVec, walk};

fn plan_head(what: &str, plan: &Plan) -> String {
    format!(
        "{what} {}   block {}   stages {}\n",
        printable(&plan.name),
        plan.block,
        plan.stages
    )
}

/// The device of each actor.
pub fn placement(program: &Program, plan: &Plan) -> String {
    let mut out = plan_head("placement", plan);
    let mut table = Table::default();
    for (id, &device) in plan.placement.iter_enumerated() {
        table.row(
            1,
            vec![
                left(id.to_string()),
                left(actor_name(&program.graph, id)),
                left(device_name(&program.machine, device)),
            ],
        );
    }

    table.write(&mut out);
    out
}

/// What the calendars do with one actor.
#[derive(Clone, Default)]
struct Fired {
    stage: u32,
    start_ns: Option<u64>,
    calls: u64,
    firings: u64,
    busy_ns: u64,
}

/// Each actor's device, stage, firings and calls in a period, its first start and the time it takes.
pub fn schedule(program: &Program, plan: &Plan) -> String {
    let mut fired: TiVec<ActorId, Fired> =
        vec![Fired::default(); program.graph.actors.len()].into();
    for lane in plan.calendars.iter().flat_map(|c| &c.lanes) {
        add_firings(&lane.entries, &mut fired);
    }
    let mut out = plan_head("schedule", plan);
    let mut table = Table::default();
    for (id, f) in fired.iter_enumerated() {
        let device = device_of(plan, id).map_or("?".into(), |d| device_name(&program.machine, d));
        table.row(
            1,
            vec![
                left(id.to_string()),
                left(actor_name(&program.graph, id)),
                left(device),
                left(format!("s{}", f.stage)),
                right(format!("{} firings", f.firings)),
                right(format!("in {} calls", f.calls)),
                right(
                    f.start_ns
                        .map_or("never".to_owned(), |ns| format!("at {}", duration(ns))),
                ),
                right(format!("+{}", duration(f.busy_ns))),
            ],
        );
    }

    table.write(&mut out);
    out
}

/// Adds up what a lane does with each actor.
fn add_firings(entries: &[Entry], fired: &mut TiVec<ActorId, Fired>) {
    walk::visit_slots(entries, |visit| {
        let slot = visit.slot;
        let Action::Fire { actor, count, .. } = slot.action else {
            return;
        };
        // A program that is not verified may fire actors that it does not have.
        let Some(sum) = fired.get_mut(actor) else {
            return;
        };

        let firings = visit.executions.saturating_mul(count);
        let busy_ns = visit.executions.saturating_mul(slot.duration_ns);
        sum.stage = slot.stage;
        sum.start_ns = sum
            .start_ns
            .min(Some(slot.start_ns))
            .or(Some(slot.start_ns));
        sum.calls = sum.calls.saturating_add(visit.executions);
        sum.firings = sum.firings.saturating_add(firings);
        sum.busy_ns = sum.busy_ns.saturating_add(busy_ns);
    });
}

/// Everything that lies in the regions of each device, by offset.
pub fn layout(program: &Program, plan: &Plan) -> String {
    plan.calendars
        .iter()
        .map(|calendar| device_layout(program, plan, calendar))
        .collect()
}

fn device_layout(program: &Program, plan: &Plan, calendar: &Calendar) -> String {
    let id = calendar.device;
    let mut out = format!(
        "layout {}   arena {}   exchange {}\n",
        device_name(&program.machine, id),
        bytes(calendar.arena_bytes),
        bytes(calendar.exchange_bytes)
    );

    let mut table_rows = Vec::new();
    let mut overlap_notes: BTreeMap<BufferId, String> = BTreeMap::new();
    for o in plan.over(&program.graph) {
        let (buffer, text) = match o.fit {
            Ordering::Less => (o.below, format!(" in {}", o.above)),
            Ordering::Equal | Ordering::Greater => (o.above, format!(" over {}", o.below)),
        };

        // Parts name the whole they are in; of two that are equal, the output names the input it is over.
        overlap_notes.entry(buffer).or_default().push_str(&text);
    }

    for (buffer, b) in plan
        .buffers
        .iter_enumerated()
        .filter(|(_, b)| b.device == id)
    {
        let channel = program.graph.channels.get(b.channel);
        let (token, from) = channel.map_or(("?".to_owned(), "?".to_owned()), |c| {
            (c.token.to_string(), out_port(&program.graph, c.from))
        });
        let over = overlap_notes.get(&buffer).map_or("", String::as_str);
        let cells = vec![
            left(place(b.region, id, b.offset_bytes)),
            right(bytes(b.size_bytes())),
            left(format!("{buffer}{over}")),
            left(format!("{} {from}", b.channel)),
            left(format!(
                "{} x ({} + {}) {token}",
                b.blocks,
                b.head_tokens,
                b.shown_tokens()
            )),
            left(format!("stride {}", bytes(b.stride_bytes))),
        ];
        table_rows.push(((b.region, b.offset_bytes, buffer.index()), cells));
    }

    if calendar.scratch_bytes > 0 {
        let offset = calendar.scratch_offset_bytes;
        let cells = vec![
            left(place(Region::Arena, id, offset)),
            right(bytes(calendar.scratch_bytes)),
            left("scratch"),
        ];
        table_rows.push(((Region::Arena, offset, usize::MAX), cells));
    }

    // By offset within each region, so that gaps and overlaps meet the eye.
    table_rows.sort_by_key(|&(key, _)| key);
    let mut table = Table::default();
    table_rows
        .into_iter()
        .for_each(|(_, cells)| table.row(1, cells));
    table.write(&mut out);
    out
}
