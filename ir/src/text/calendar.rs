//! Calendars as text: one line a slot, times last.

use std::collections::BTreeMap;

use super::table::{Cell, Table, left, right};
use super::units::{bytes, column_unit, duration, in_unit};
use super::{actor_name, device_name, device_of, place, printable, token_bytes};
use crate::{
    Action, ActorId, Buffer, BufferId, Calendar, ChannelId, DeviceId, Entry, LaneKind, Plan,
    PortChannels, Program, RingId, Role, Slot,
};

/// What a text form shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// Predicted times: they change with every measurement, so snapshots may leave them out.
    pub times: bool,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { times: true }
    }
}

/// The calendars of a plan, a block of lines for each device. Times are in the unit that the period is given in.
pub fn calendar(program: &Program, plan: &Plan, options: TextOptions) -> String {
    let cx = Cx {
        program,
        plan,
        ports: program.graph.port_channels(),
        buffers: plan
            .buffers
            .iter()
            .map(|b| ((b.channel, b.device), b))
            .collect(),
        unit: column_unit(plan.period_ns),
        options,
    };

    let mut out = String::new();
    for calendar in &plan.calendars {
        out.push_str(&cx.head(calendar));
        for lane in &calendar.lanes {
            if lane.kind != LaneKind::Compute {
                out.push_str(&format!("  lane {:?}\n", lane.kind));
            }
            let mut table = Table::default();
            cx.entries(&lane.entries, calendar.device, 1, &mut table);
            table.write(&mut out);
        }
    }
    out
}

struct Cx<'a> {
    program: &'a Program,
    plan: &'a Plan,
    ports: PortChannels,
    buffers: BTreeMap<(ChannelId, DeviceId), &'a Buffer>,
    unit: u64,
    options: TextOptions,
}

impl Cx<'_> {
    fn head(&self, calendar: &Calendar) -> String {
        let machine = &self.program.machine;
        let name = device_name(machine, calendar.device);
        let mut parts = vec![format!("calendar {name}")];
        if self.options.times {
            parts.push(format!("period {}", duration(self.plan.period_ns)));
        }
        parts.push(format!("stages {}", self.plan.stages));
        let memory = machine
            .devices
            .get(calendar.device)
            .map_or(0, |d| d.memory_bytes);
        parts.push(format!(
            "arena {} of {}",
            bytes(calendar.arena_bytes),
            bytes(memory)
        ));
        if calendar.exchange_bytes > 0 {
            parts.push(format!("exchange {}", bytes(calendar.exchange_bytes)));
        }
        if self.options.times {
            parts.push(format!("bound by {}", printable(&self.plan.bound_by)));
        }
        parts.join("   ") + "\n"
    }

    /// Recursion goes as deep as the entries; deeper than any verified program they are cut.
    fn entries(&self, entries: &[Entry], device: DeviceId, indent: usize, table: &mut Table) {
        if indent > crate::limits::MAX_NESTING {
            table.text(indent, "...");
            return;
        }

        let mut above = "";
        for entry in entries {
            match entry {
                Entry::Slot(slot) => {
                    let kind = kind(&slot.action);
                    let shown = if kind == above { "" } else { kind };
                    table.row(indent, self.slot(slot, shown, device));
                    above = kind;
                }
                Entry::Loop { count, body } => {
                    table.text(indent, format!("repeat {count} {{"));
                    self.entries(body, device, indent + 1, table);
                    table.text(indent, "}");
                    above = "";
                }
            }
        }
    }

    fn slot(&self, slot: &Slot, kind: &str, device: DeviceId) -> Vec<Cell> {
        let (what, memory) = match slot.action {
            Action::Fire {
                actor,
                first,
                count,
            } => {
                let name = actor_name(&self.program.graph, actor);
                let end = first.saturating_add(count);
                let variant = self.plan.variant(actor).map(|v| format!(" by {v}"));
                let variant = variant.unwrap_or_default();
                (
                    format!("{name}[{first}..{end}]{variant}"),
                    self.fire(actor, first),
                )
            }
            Action::Send { ring, first, count } => self.send(ring, first, count),
            Action::Recv { ring, first, count } => self.recv(ring, first, count),
            Action::Release { ring } => self.release(ring),
            Action::Carry { buffer } => self.carry(buffer),
        };
        // A slot of another device's actor is wrong, and shown so.
        let elsewhere = matches!(slot.action, Action::Fire { actor, .. }
            if device_of(self.plan, actor) != Some(device));
        let what = if elsewhere {
            format!("{what} (elsewhere)")
        } else {
            what
        };
        let mut cells = vec![
            left(kind),
            left(format!("s{}", slot.stage)),
            left(what),
            left(memory),
        ];
        if self.options.times {
            cells.push(right(in_unit(slot.start_ns, self.unit)));
            cells.push(right(format!("+{}", in_unit(slot.duration_ns, self.unit))));
        }

        cells
    }

    fn buffer(&self, channel: ChannelId, device: DeviceId) -> Option<&Buffer> {
        self.buffers.get(&(channel, device)).copied()
    }

    /// Where token `position` of the block lies, counted from its first new token.
    fn token(&self, buffer: &Buffer, position: i128) -> String {
        let tokens = i128::from(buffer.head_tokens) + position;
        let bytes = tokens * i128::from(token_bytes(&self.program.graph, buffer.channel));
        match u64::try_from(i128::from(buffer.offset_bytes) + bytes) {
            Ok(offset) => place(buffer.region, buffer.device, offset),
            Err(_) => "?".to_owned(),
        }
    }

    fn fire(&self, actor: ActorId, first: u64) -> String {
        let graph = &self.program.graph;
        let (Some(data), Some(device)) = (graph.actors.get(actor), device_of(self.plan, actor))
        else {
            return "?".to_owned();
        };
        let unknown = || "?".to_owned();
        let mut inputs = Vec::new();
        for (port, joined) in data.inputs.iter().zip(&self.ports.inputs[actor]) {
            let Some((channel, reader)) = *joined else {
                inputs.push(unknown());
                continue;
            };
            let delay = if graph.is_state(channel) {
                // A state is one token in the head, which every firing reads.
                i128::from(self.buffer(channel, device).map_or(0, |b| b.head_tokens))
            } else {
                let delay = graph.channels[channel].readers[reader as usize].delay;
                i128::from(delay) - i128::from(first) * i128::from(port.rate)
            };
            inputs.push(
                self.buffer(channel, device)
                    .map_or_else(unknown, |b| self.token(b, -delay)),
            );
        }

        let mut outputs = Vec::new();
        for (port, joined) in data.outputs.iter().zip(&self.ports.outputs[actor]) {
            let buffer = joined.and_then(|channel| self.buffer(channel, device));
            let state = joined.is_some_and(|channel| graph.is_state(channel));
            let at = if state {
                buffer.map_or(0, |b| -i128::from(b.head_tokens))
            } else {
                i128::from(first) * i128::from(port.rate)
            };
            outputs.push(buffer.map_or_else(unknown, |b| self.token(b, at)));
        }

        let (from, to) = match data.role {
            Role::Compute => (inputs.join(", "), outputs.join(", ")),
            Role::Source => (format!("source {}", data.name), outputs.join(", ")),
            Role::Sink => (inputs.join(", "), format!("sink {}", data.name)),
        };

        format!("{from} -> {to}")
    }

    fn send(&self, ring: RingId, first: u64, count: u64) -> (String, String) {
        let Some(data) = self.plan.rings.get(ring) else {
            return unknown(ring);
        };
        let to = device_name(&self.program.machine, data.to);
        let from = self.buffer(data.channel, data.from);
        let from = from.map_or("?".to_owned(), |b| self.token(b, first.into()));
        (
            format!("{} -> {to}", data.channel),
            format!("{count} tokens from {from}"),
        )
    }

    fn recv(&self, ring: RingId, first: u64, count: u64) -> (String, String) {
        let Some(data) = self.plan.rings.get(ring) else {
            return unknown(ring);
        };
        let from = device_name(&self.program.machine, data.from);
        let at = self.plan.buffers.get(data.buffer);
        let at = at.map_or("?".to_owned(), |b| self.token(b, first.into()));
        (
            format!("{} <- {from}", data.channel),
            format!("{count} tokens at {at}"),
        )
    }

    fn release(&self, ring: RingId) -> (String, String) {
        let Some(data) = self.plan.rings.get(ring) else {
            return unknown(ring);
        };
        let from = device_name(&self.program.machine, data.from);
        let places = self.plan.buffers.get(data.buffer).map_or(0, |b| b.blocks);
        (
            format!("{} <- {from}", data.channel),
            format!("1 of {places} places"),
        )
    }

    fn carry(&self, id: BufferId) -> (String, String) {
        let Some(buffer) = self.plan.buffers.get(id) else {
            return (format!("{id}?"), String::new());
        };
        let (head, block) = (
            i128::from(buffer.head_tokens),
            i128::from(buffer.block_tokens),
        );
        let (from, to) = (self.token(buffer, block - head), self.token(buffer, -head));
        let next = if buffer.blocks > 1 {
            " of the next place"
        } else {
            ""
        };
        (
            buffer.channel.to_string(),
            format!("{head} tokens {from} -> {to}{next}"),
        )
    }
}

fn unknown(ring: RingId) -> (String, String) {
    (format!("{ring}?"), String::new())
}

fn kind(action: &Action) -> &'static str {
    match action {
        Action::Fire { .. } => "compute",
        Action::Send { .. } => "send",
        Action::Recv { .. } => "recv",
        Action::Release { .. } => "release",
        Action::Carry { .. } => "carry",
    }
}
