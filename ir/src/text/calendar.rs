//! Calendars as text: one line a slot, times last.

use std::collections::BTreeMap;

use super::table::{Cell, Table, left, right};
use super::units::{bytes, column_unit, duration, in_unit};
use super::{actor_name, device_name, device_of, place, printable, token_bytes};
use crate::walk::CarryCount;
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
    let mut calendar_text = CalendarText {
        program,
        plan,
        ports: program.graph.port_channels(),
        buffers: plan
            .buffers
            .iter()
            .map(|b| ((b.channel, b.device), b))
            .collect(),
        buffer_ids: plan
            .buffers
            .iter_enumerated()
            .map(|(id, b)| ((b.channel, b.device), id))
            .collect(),
        carries: CarryCount::default(),
        unit: column_unit(plan.period_ns),
        options,
    };

    let mut out = String::new();
    for calendar in &plan.calendars {
        out.push_str(&calendar_text.head_line(calendar));
        for lane in &calendar.lanes {
            if lane.kind != LaneKind::Compute {
                out.push_str(&format!("  lane {:?}\n", lane.kind));
            }

            // A table for each lane: its columns are as wide as its own slots need.
            let mut table = Table::default();
            calendar_text.entries(&lane.entries, calendar.device, 1, &mut table);
            table.write(&mut out);
        }
    }
    out
}

struct CalendarText<'a> {
    program: &'a Program,
    plan: &'a Plan,
    ports: PortChannels,
    buffers: BTreeMap<(ChannelId, DeviceId), &'a Buffer>,
    buffer_ids: BTreeMap<(ChannelId, DeviceId), BufferId>,
    /// Carries before the slot that is written.
    carries: CarryCount,
    unit: u64,
    options: TextOptions,
}

impl CalendarText<'_> {
    fn head_line(&self, calendar: &Calendar) -> String {
        let machine = &self.program.machine;
        let name = device_name(machine, calendar.device);
        let host = machine.host_of(calendar.device);
        let host = host.map(|host| format!(" on host {}", printable(&host.name)));
        let mut head_parts = vec![format!("calendar {name}{}", host.unwrap_or_default())];
        if self.options.times {
            head_parts.push(format!("period {}", duration(self.plan.period_ns)));
        }
        head_parts.push(format!("stages {}", self.plan.stages));
        let memory_bytes = machine
            .devices
            .get(calendar.device)
            .map_or(0, |d| d.memory_bytes);
        head_parts.push(format!(
            "arena {} of {}",
            bytes(calendar.arena_bytes),
            bytes(memory_bytes)
        ));
        if calendar.exchange_bytes > 0 {
            head_parts.push(format!("exchange {}", bytes(calendar.exchange_bytes)));
        }
        if self.options.times {
            head_parts.push(format!("bound by {}", printable(&self.plan.bound_by)));
        }
        head_parts.join("   ") + "\n"
    }

    /// Recursion goes as deep as the entries; deeper than any verified program they are cut.
    fn entries(&mut self, entries: &[Entry], device: DeviceId, indent: usize, table: &mut Table) {
        if indent > crate::limits::MAX_NESTING {
            table.text(indent, "...");
            return;
        }

        // The kind is shown where it changes: most slots compute.
        let mut kind_above = "";
        for entry in entries {
            match entry {
                Entry::Slot(slot) => {
                    let slot_kind = action_kind(&slot.action);
                    let shown_kind = if slot_kind == kind_above {
                        ""
                    } else {
                        slot_kind
                    };
                    table.row(indent, self.slot(slot, shown_kind, device));
                    if let Action::Carry { buffer } = slot.action {
                        self.carries.carry(buffer);
                    }
                    kind_above = slot_kind;
                }
                Entry::Loop { count, body } => {
                    table.text(indent, format!("repeat {count} {{"));
                    let carries = self.carries.begin_loop();
                    self.entries(body, device, indent + 1, table);
                    self.carries.end_loop(carries, *count);
                    table.text(indent, "}");
                    kind_above = "";
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
                let variant_text = self.plan.variant(actor).map(|v| format!(" by {v}"));
                let variant_text = variant_text.unwrap_or_default();
                (
                    format!("{name}[{first}..{end}]{variant_text}"),
                    self.fire(actor, first),
                )
            }
            Action::Send { ring, first, count } => self.send(ring, first, count),
            Action::Recv { ring, first, count } => self.recv(ring, first, count),
            Action::Release { ring } => self.release(ring),
            Action::Carry { buffer } => self.carry(buffer),
            Action::Fetch {
                actor,
                offset_bytes,
            } => self.fetch(actor, offset_bytes, device),
            Action::Await { actor } => {
                let name = actor_name(&self.program.graph, actor);
                (format!("{name} weights"), String::new())
            }
        };
        // A slot of another device's actor is wrong, and shown so.
        let is_elsewhere = matches!(slot.action, Action::Fire { actor, .. }
            if device_of(self.plan, actor) != Some(device));
        let what = if is_elsewhere {
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

    /// Where token `position` of the block lies, counted from its first new token; in the chunk that is there then.
    fn token(&self, buffer: &Buffer, position: i128) -> String {
        let tokens = match (buffer.is_chunked(), i64::try_from(position)) {
            (true, Ok(token)) => {
                let id = self.buffer_ids.get(&(buffer.channel, buffer.device));
                let carried = id.map_or(0, |id| self.carries.carried(*id));
                i128::from(buffer.position(token, carried))
            }
            _ => i128::from(buffer.head_tokens) + position,
        };
        self.place_of(buffer, tokens)
    }

    /// Where a position in a buffer's first place is.
    fn place_of(&self, buffer: &Buffer, tokens: i128) -> String {
        let byte_position = tokens * i128::from(token_bytes(&self.program.graph, buffer.channel));
        match u64::try_from(i128::from(buffer.offset_bytes) + byte_position) {
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
        let unknown_place = || "?".to_owned();
        let mut input_places = Vec::new();
        for (port, joined) in data.inputs.iter().zip(&self.ports.inputs[actor]) {
            let Some((channel, reader)) = *joined else {
                input_places.push(unknown_place());
                continue;
            };
            let delay = if graph.is_state(channel) {
                // A state is one token in the head, which every firing reads.
                i128::from(self.buffer(channel, device).map_or(0, |b| b.head_tokens))
            } else {
                let delay = graph.channels[channel].readers[reader as usize].delay;
                i128::from(delay) - i128::from(first) * i128::from(port.rate)
            };
            input_places.push(
                self.buffer(channel, device)
                    .map_or_else(unknown_place, |b| self.token(b, -delay)),
            );
        }

        let mut output_places = Vec::new();
        for (port, joined) in data.outputs.iter().zip(&self.ports.outputs[actor]) {
            let buffer = joined.and_then(|channel| self.buffer(channel, device));
            let is_state = joined.is_some_and(|channel| graph.is_state(channel));
            let position = if is_state {
                buffer.map_or(0, |b| -i128::from(b.head_tokens))
            } else {
                i128::from(first) * i128::from(port.rate)
            };
            output_places.push(buffer.map_or_else(unknown_place, |b| self.token(b, position)));
        }

        let (from, to) = match data.role {
            Role::Compute => (input_places.join(", "), output_places.join(", ")),
            Role::Source => (format!("source {}", data.name), output_places.join(", ")),
            Role::Sink => (input_places.join(", "), format!("sink {}", data.name)),
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
        let token_place = self.plan.buffers.get(data.buffer);
        let token_place = token_place.map_or("?".to_owned(), |b| self.token(b, first.into()));
        (
            format!("{} <- {from}", data.channel),
            format!("{count} tokens at {token_place}"),
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

    fn fetch(&self, actor: ActorId, offset_bytes: u64, device: DeviceId) -> (String, String) {
        let graph = &self.program.graph;
        let device_data = self.program.machine.devices.get(device);
        let weights = graph
            .actors
            .get(actor)
            .zip(device_data)
            .and_then(|(actor, device)| actor.fetchable_weights(&device.backend));
        let size = weights.map_or_else(|| "?".to_owned(), |(_, token)| bytes(token.bytes()));
        let to = place(crate::Region::Arena, device, offset_bytes);
        (
            format!("{} weights", actor_name(graph, actor)),
            format!("{size} -> {to}"),
        )
    }

    fn carry(&self, id: BufferId) -> (String, String) {
        let Some(buffer) = self.plan.buffers.get(id) else {
            return (format!("{id}?"), String::new());
        };
        // The last tokens of the block, or of a chunk of it, become the history in front of the next one.
        let head = i128::from(buffer.head_tokens);
        let block = i128::from(buffer.chunk_tokens);
        let from = self.place_of(buffer, block);
        let to = self.place_of(buffer, 0);
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

fn action_kind(action: &Action) -> &'static str {
    match action {
        Action::Fire { .. } => "compute",
        Action::Send { .. } => "send",
        Action::Recv { .. } => "recv",
        Action::Release { .. } => "release",
        Action::Carry { .. } => "carry",
        Action::Fetch { .. } => "fetch",
        Action::Await { .. } => "await",
    }
}
