//! Differences of what all plans share: machine, actors, channels, constants.

use std::collections::BTreeMap;

use zbmd_ir::text::bytes;
use zbmd_ir::{ActorId, Channel, ChannelId, Device, Link, Params, Program, Value};

use super::{ChangeKind, Changes};
use crate::{ActorView, ChannelView, PortView, ReaderView, View};

/// A program and its view.
#[derive(Clone, Copy)]
pub(super) struct ProgramSide<'a> {
    pub(super) program: &'a Program,
    pub(super) view: &'a View,
}

impl<'a> ProgramSide<'a> {
    fn devices(self) -> BTreeMap<&'a str, &'a Device> {
        let devices = self.program.machine.devices.iter();
        devices
            .map(|device| (device.name.as_str(), device))
            .collect()
    }

    /// The host of a device; empty where there is none.
    fn host_of(self, device: &str) -> &'a str {
        let mut devices = self.view.devices.iter();
        let found = devices.find(|view| view.name == device);
        found.and_then(|view| view.host.as_deref()).unwrap_or("")
    }

    fn links(self) -> BTreeMap<String, Link> {
        let machine = &self.program.machine;
        let named_links = machine.links.iter().map(|link| {
            let from = &machine.devices[link.from].name;
            let to = &machine.devices[link.to].name;
            (format!("{from} -> {to}"), link)
        });
        named_links.collect()
    }

    fn actors(self) -> BTreeMap<&'a str, usize> {
        let actors = self.view.actors.iter().enumerate();
        actors
            .map(|(index, actor)| (actor.name.as_str(), index))
            .collect()
    }

    fn params(self, actor: usize) -> &'a Params {
        &self.program.graph.actors[ActorId::from(actor)].params
    }

    fn channels(self) -> BTreeMap<&'a str, usize> {
        let channels = self.view.channels.iter().enumerate();
        channels
            .map(|(index, channel)| (channel.name.as_str(), index))
            .collect()
    }

    fn channel(self, channel: usize) -> &'a Channel {
        &self.program.graph.channels[ChannelId::from(channel)]
    }

    fn channel_words(self, channel: &ChannelView) -> String {
        let readers = channel.readers.iter();
        let readers: Vec<String> = readers.map(|reader| self.reader_words(reader)).collect();
        let state = if channel.state { " state" } else { "" };
        format!("{}{state} to {}", channel.token, readers.join(", "))
    }

    fn reader_words(self, reader: &ReaderView) -> String {
        let actor = &self.view.actors[reader.actor as usize];
        let port = &actor.inputs[reader.port as usize].name;
        let words = format!("{}.{port}", actor.name);
        if reader.delay == 0 {
            words
        } else {
            format!("{words} delay {}", reader.delay)
        }
    }
}

pub(super) fn compare(before: ProgramSide<'_>, after: ProgramSide<'_>, changes: &mut Changes) {
    changes.words(
        ChangeKind::Other,
        "model",
        &before.view.model,
        &after.view.model,
    );
    compare_devices(before, after, changes);
    compare_links(before, after, changes);
    compare_actors(before, after, changes);
    compare_channels(before, after, changes);
    compare_constants(before.program, after.program, changes);
}

fn compare_devices(before: ProgramSide<'_>, after: ProgramSide<'_>, changes: &mut Changes) {
    for pair in join_by_key(&before.devices(), &after.devices()) {
        let name = pair.key;
        let (Some(old), Some(new)) = (pair.before, pair.after) else {
            let subject = format!("device {name}");
            push_presence(
                ChangeKind::Machine,
                &subject,
                pair.before.is_some(),
                changes,
            );
            continue;
        };

        let backend = format!("{name} backend");
        let old_backend = old.backend.as_str();
        changes.words(
            ChangeKind::Machine,
            &backend,
            old_backend,
            new.backend.as_str(),
        );
        let cores = format!("{name} cores");
        let old_cores = format!("{:?}", old.cores);
        changes.words(
            ChangeKind::Machine,
            &cores,
            &old_cores,
            &format!("{:?}", new.cores),
        );

        let host = format!("{name} host");
        let (old_host, new_host) = (before.host_of(name), after.host_of(name));
        changes.words(ChangeKind::Machine, &host, old_host, new_host);

        let memory = format!("{name} memory");
        let memory_bytes = (old.memory_bytes, new.memory_bytes);
        changes.number(ChangeKind::Machine, &memory, memory_bytes, bytes);
        let peak = format!("{name} peak");
        let flops = (old.flops_per_s, new.flops_per_s);
        changes.number(ChangeKind::Machine, &peak, flops, |n| format!("{n} flop/s"));
        let bandwidth = format!("{name} bandwidth");
        let bytes_per_s = (old.bytes_per_s, new.bytes_per_s);
        changes.number(ChangeKind::Machine, &bandwidth, bytes_per_s, |n| {
            format!("{n} bytes/s")
        });
    }
}

fn compare_links(before: ProgramSide<'_>, after: ProgramSide<'_>, changes: &mut Changes) {
    for pair in join_by_key(&before.links(), &after.links()) {
        let subject = format!("link {}", pair.key);
        let old_words = pair.before.map_or_else(String::new, link_words);
        let new_words = pair.after.map_or_else(String::new, link_words);
        changes.words(ChangeKind::Machine, &subject, &old_words, &new_words);
    }
}

fn link_words(link: &Link) -> String {
    format!("{} bytes/s, {} ns", link.bytes_per_s, link.latency_ns)
}

fn compare_actors(before: ProgramSide<'_>, after: ProgramSide<'_>, changes: &mut Changes) {
    for pair in join_by_key(&before.actors(), &after.actors()) {
        let name = pair.key;
        let (Some(&old_index), Some(&new_index)) = (pair.before, pair.after) else {
            push_presence(ChangeKind::Actor, name, pair.before.is_some(), changes);
            continue;
        };
        let old = &before.view.actors[old_index];
        let new = &after.view.actors[new_index];
        changes.words(ChangeKind::Actor, name, &old.op, &new.op);

        // The op as text leaves out what is long.
        let has_same_params = are_alike(before.params(old_index), after.params(new_index));
        if old.op == new.op && !has_same_params {
            let words = "other parameters, beyond those shown";
            changes.words(ChangeKind::Actor, name, "", words);
        }

        let repetitions = (old.repetitions, new.repetitions);
        changes.number(ChangeKind::Actor, name, repetitions, |n| {
            format!("{n} firings")
        });
        let ports = format!("{name} ports");
        changes.words(
            ChangeKind::Actor,
            &ports,
            &port_words(old),
            &port_words(new),
        );
    }
}

fn port_words(actor: &ActorView) -> String {
    let inputs = port_list(&actor.inputs);
    let outputs = port_list(&actor.outputs);
    format!("{inputs} -> {outputs}")
}

fn port_list(ports: &[PortView]) -> String {
    let ports = ports.iter();
    let ports: Vec<String> = ports
        .map(|port| format!("{} {} of {}", port.name, port.rate, port.window))
        .collect();
    ports.join(", ")
}

/// Whether parameters are the same but for tensors, which are compared with the constants.
fn are_alike(old: &Params, new: &Params) -> bool {
    let old_values = old.values().filter(|value| !is_tensor(value));
    let new_values = new.values().filter(|value| !is_tensor(value));
    old_values.eq(new_values)
}

fn is_tensor(value: &Value) -> bool {
    matches!(value, Value::Tensor(..))
}

fn compare_channels(before: ProgramSide<'_>, after: ProgramSide<'_>, changes: &mut Changes) {
    for pair in join_by_key(&before.channels(), &after.channels()) {
        let name = pair.key;
        let old = pair.before.map(|&index| &before.view.channels[index]);
        let new = pair.after.map(|&index| &after.view.channels[index]);
        let old_words = old.map_or_else(String::new, |channel| before.channel_words(channel));
        let new_words = new.map_or_else(String::new, |channel| after.channel_words(channel));
        changes.words(ChangeKind::Channel, name, &old_words, &new_words);

        if let (Some(&old_index), Some(&new_index)) = (pair.before, pair.after) {
            let old_initial = &before.channel(old_index).initial;
            let new_initial = &after.channel(new_index).initial;
            // Tokens are not in the words: they may be megabytes.
            if old_words == new_words && old_initial != new_initial {
                changes.words(ChangeKind::Channel, name, "", "other initial tokens");
            }
        }
    }
}

fn compare_constants(before: &Program, after: &Program, changes: &mut Changes) {
    let old_count = before.blobs.len() as u64;
    let new_count = after.blobs.len() as u64;
    let counts = (old_count, new_count);
    changes.number(ChangeKind::Constants, "tensors", counts, |n| n.to_string());

    // Tensors have no names: where their numbers differ, pairs by position would say nothing.
    let blobs = before.blobs.iter().zip(&after.blobs);
    let different = blobs.filter(|(old, new)| old != new).count();
    if old_count == new_count && different > 0 {
        let words = format!("{different} of {old_count} differ");
        changes.words(ChangeKind::Constants, "tensors", "", &words);
    }
}

fn push_presence(kind: ChangeKind, subject: &str, was_there: bool, changes: &mut Changes) {
    if was_there {
        changes.words(kind, subject, "there", "");
    } else {
        changes.words(kind, subject, "", "there");
    }
}

/// What two sides have under one key.
pub(super) struct KeyPair<'a, K, V> {
    pub(super) key: &'a K,
    pub(super) before: Option<&'a V>,
    pub(super) after: Option<&'a V>,
}

impl<K> KeyPair<'_, K, u64> {
    /// Both numbers; 0 where a side has none.
    pub(super) fn numbers(&self) -> (u64, u64) {
        let before = self.before.copied().unwrap_or(0);
        let after = self.after.copied().unwrap_or(0);
        (before, after)
    }
}

/// Everything that either has, by key, with what each has. O(n · log n).
pub(super) fn join_by_key<'a, K: Ord, V>(
    before: &'a BTreeMap<K, V>,
    after: &'a BTreeMap<K, V>,
) -> Vec<KeyPair<'a, K, V>> {
    let mut pairs = Vec::with_capacity(before.len());
    for (key, value) in before {
        pairs.push(KeyPair {
            key,
            before: Some(value),
            after: after.get(key),
        });
    }
    for (key, value) in after {
        if !before.contains_key(key) {
            pairs.push(KeyPair {
                key,
                before: None,
                after: Some(value),
            });
        }
    }
    pairs.sort_by(|left, right| left.key.cmp(right.key));
    pairs
}
