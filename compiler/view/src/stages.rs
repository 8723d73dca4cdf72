//! What each stage of a plan buys: how long the period would be without it.
//!
//! Two stages in one would run the same block in the same period. Then a chain of work that leaves a device and comes
//! back to it has to fit into one period, because its first and last slot run on the same worker in each. Where the
//! longest such chain exceeds the period, the boundary between the stages pays for itself.

use std::collections::BTreeMap;

use super::{ActorView, ChannelView, FiredView, StageBoundary};

/// For each stage but the first, the longest chain that would have to fit into a period if the stage were one with the
/// stage before. O(devices · (actors + channels)) for the devices of any two neighbouring stages.
pub(super) fn stage_boundaries(
    actors: &[ActorView],
    channels: &[ChannelView],
    fired: &[FiredView],
    stages: u32,
) -> Vec<StageBoundary> {
    let order = topological_order(actors.len(), channels);
    let boundary = |stage: u32| {
        // What runs in the two stages, in an order in which a writer comes before its readers.
        let is_joined = |actor: &&u32| {
            let own_stage = fired[**actor as usize].stage;
            own_stage == stage || own_stage + 1 == stage
        };
        let joined: Vec<u32> = order.iter().filter(is_joined).copied().collect();
        let chain = longest_chain(&joined, channels, fired);
        StageBoundary {
            stage,
            joined_ns: chain.duration_ns,
            first_actor: chain.first,
            last_actor: chain.last,
        }
    };
    (1..stages).map(boundary).collect()
}

/// A chain of work that changes its device as often as any does: the actors with which it comes to each device, in their
/// order. Each change is a stage, or waits within one. O(actors + channels).
pub(super) fn changes_of_device(
    actors: &[ActorView],
    channels: &[ChannelView],
    fired: &[FiredView],
) -> Vec<u32> {
    let mut writers_of: Vec<Vec<u32>> = vec![Vec::new(); actors.len()];
    for (writer, reader) in channels.iter().flat_map(undelayed_edges) {
        writers_of[reader as usize].push(writer);
    }

    // The most changes on the way to each actor, and the writer before it on that way.
    let mut way_to: Vec<(u32, Option<u32>)> = vec![(0, None); actors.len()];
    let device_of = |actor: u32| fired[actor as usize].device;
    for actor in topological_order(actors.len(), channels) {
        let ways = writers_of[actor as usize].iter().map(|&writer| {
            let (changes, _) = way_to[writer as usize];
            let is_change = device_of(writer) != device_of(actor);
            (changes + u32::from(is_change), Some(writer))
        });
        if let Some(longest) = ways.max_by_key(|&(changes, _)| changes) {
            way_to[actor as usize] = longest;
        }
    }

    let mut next = (0..actors.len() as u32).max_by_key(|&actor| way_to[actor as usize].0);
    let mut arrivals = Vec::new();
    while let Some(actor) = next {
        let (_, writer) = way_to[actor as usize];
        if writer.is_none_or(|writer| device_of(writer) != device_of(actor)) {
            arrivals.push(actor);
        }
        next = writer;
    }
    arrivals.reverse();
    arrivals
}

/// Actors in an order in which whoever writes a token comes before whoever reads it in the same block. Actors on a cycle
/// without delay, which no valid graph has, are left out.
fn topological_order(actors: usize, channels: &[ChannelView]) -> Vec<u32> {
    let mut unread_inputs = vec![0u32; actors];
    let mut readers_of: Vec<Vec<u32>> = vec![Vec::new(); actors];
    for (writer, reader) in channels.iter().flat_map(undelayed_edges) {
        unread_inputs[reader as usize] += 1;
        readers_of[writer as usize].push(reader);
    }

    let mut order: Vec<u32> = (0..actors as u32)
        .filter(|&actor| unread_inputs[actor as usize] == 0)
        .collect();
    let mut next = 0;
    while let Some(&actor) = order.get(next) {
        next += 1;
        for &reader in &readers_of[actor as usize] {
            unread_inputs[reader as usize] -= 1;
            if unread_inputs[reader as usize] == 0 {
                order.push(reader);
            }
        }
    }
    order
}

/// Writer and reader of each edge on which the last firing of a block needs the last one of the writer.
fn undelayed_edges(channel: &ChannelView) -> impl Iterator<Item = (u32, u32)> {
    let readers = channel.readers.iter();
    let undelayed = readers.filter(|reader| reader.delay == 0);
    undelayed.map(|reader| (channel.from, reader.actor))
}

/// A chain of last calls, each of which needs the one before.
#[derive(Clone, Copy, Default)]
struct Chain {
    duration_ns: u64,
    first: u32,
    last: u32,
}

/// The longest chain from an actor to another one on the same device, by way of others. Calls of one actor are taken as
/// equally long, transfers as free, so that no period can be shorter.
fn longest_chain(joined: &[u32], channels: &[ChannelView], fired: &[FiredView]) -> Chain {
    let mut inputs_of: BTreeMap<u32, Vec<u32>> =
        joined.iter().map(|&actor| (actor, Vec::new())).collect();
    for (writer, reader) in channels.iter().flat_map(undelayed_edges) {
        if inputs_of.contains_key(&writer)
            && let Some(inputs) = inputs_of.get_mut(&reader)
        {
            inputs.push(writer);
        }
    }

    let mut devices: Vec<u32> = joined.iter().map(|&a| fired[a as usize].device).collect();
    devices.sort_unstable();
    devices.dedup();

    let mut longest = Chain::default();
    for device in devices {
        // The longest chain from any actor of this device to each actor.
        let mut chain_to: BTreeMap<u32, Chain> = BTreeMap::new();
        for &actor in joined {
            let done = &fired[actor as usize];
            let call_ns = done.busy_ns / done.calls.max(1);
            let starts_here = (done.device == device).then_some(Chain {
                first: actor,
                ..Chain::default()
            });
            let chains_before = inputs_of[&actor].iter();
            let Some(before) = chains_before
                .filter_map(|input| chain_to.get(input).copied())
                .chain(starts_here)
                .max_by_key(|chain| chain.duration_ns)
            else {
                continue;
            };

            let chain = Chain {
                duration_ns: before.duration_ns.saturating_add(call_ns),
                last: actor,
                ..before
            };
            chain_to.insert(actor, chain);
            if done.device == device && chain.duration_ns > longest.duration_ns {
                longest = chain;
            }
        }
    }
    longest
}
