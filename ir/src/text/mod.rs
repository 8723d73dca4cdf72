//! The text form of every stage: for people, snapshots and diffs. Deterministic, aligned, one line a thing.
//!
//! Takes programs that are not verified too, since one may want to see why they are refused: unknown ids print with a
//! `?`, nothing panics.
//!
//! Memory prints as region, device and offset: `a0+64` is byte 64 of the arena of device 0, `x1+0` byte 0 of the
//! exchange region of device 1. Slots show the bytes of place 0 and, in a loop, of the first repetition.

mod calendar;
mod contingencies;
mod graph;
mod layout;
mod printable;
mod table;
#[cfg(test)]
mod tests;
mod units;

pub use self::calendar::{TextOptions, calendar};
pub use self::contingencies::{contingencies, loss};
pub use self::graph::{actor_label, graph, graph_in_columns, op, replicas};
pub use self::layout::{layout, placement, schedule};
pub use self::printable::{is_hidden, masked, printable, printable_json, printable_lines};
pub use self::table::{Cell, Table, left, right};
pub use self::units::{bytes, count, duration};

use std::borrow::Cow;

use crate::{
    ActorId, ChannelId, DeviceId, Endpoint, Graph, Machine, Plan, Program, Region, TiSlice,
};

/// All stages of a program: graph, contingencies if there are any, then placement, layout and calendars of each plan.
pub fn program(
    program: &Program,
    q: Option<&TiSlice<ActorId, u64>>,
    options: TextOptions,
) -> String {
    let mut text = graph(&program.graph, q);
    if !program.contingencies.list.is_empty() {
        text.push('\n');
        text.push_str(&contingencies(program, options));
    }
    for plan in &program.plans {
        text.push('\n');
        text.push_str(&placement(program, plan));
        text.push_str(&layout(program, plan));
        text.push_str(&calendar(program, plan, options));
    }
    text
}

fn actor_name(graph: &Graph, id: ActorId) -> Cow<'_, str> {
    match graph.actors.get(id) {
        Some(actor) => printable(&actor.name),
        None => Cow::Owned(format!("{id}?")),
    }
}

fn device_name(machine: &Machine, id: DeviceId) -> Cow<'_, str> {
    match machine.devices.get(id) {
        Some(device) => printable(&device.name),
        None => Cow::Owned(format!("{id}?")),
    }
}

fn out_port(graph: &Graph, end: Endpoint) -> String {
    let port = graph
        .actors
        .get(end.actor)
        .and_then(|a| a.outputs.get(end.port as usize));
    let port = port.map_or_else(
        || format!("{}?", end.port),
        |p| printable(&p.name).into_owned(),
    );
    format!("{}.{port}", actor_name(graph, end.actor))
}

fn in_port(graph: &Graph, end: Endpoint) -> String {
    let port = graph
        .actors
        .get(end.actor)
        .and_then(|a| a.inputs.get(end.port as usize));
    let port = port.map_or_else(
        || format!("{}?", end.port),
        |p| printable(&p.name).into_owned(),
    );
    format!("{}.{port}", actor_name(graph, end.actor))
}

fn token_bytes(graph: &Graph, channel: ChannelId) -> u64 {
    graph.channels.get(channel).map_or(0, |c| c.token.bytes())
}

fn place(region: Region, device: DeviceId, offset: u64) -> String {
    let letter = match region {
        Region::Arena => 'a',
        Region::Exchange => 'x',
    };
    format!("{letter}{}+{offset}", device.0)
}

/// Device of an actor, if the plan is long enough to have one.
fn device_of(plan: &Plan, actor: ActorId) -> Option<DeviceId> {
    plan.placement.get(actor).copied()
}
