//! Differences of what all plans share: machine, actors, channels, constants.

use std::collections::BTreeMap;

use zbmd_ir::text::bytes;
use zbmd_ir::{Program, Value};

use super::{Changes, Kind};
use crate::{ChannelView, View};

pub(super) fn compare(a: (&Program, &View), b: (&Program, &View), out: &mut Changes) {
    out.words(Kind::Other, "model", &a.1.model, &b.1.model);
    machine(a.0, b.0, out);
    actors(a, b, out);
    channels(a, b, out);
    constants(a.0, b.0, out);
}

fn machine(a: &Program, b: &Program, out: &mut Changes) {
    let by_name = |p: &Program| -> BTreeMap<String, zbmd_ir::Device> {
        p.machine
            .devices
            .iter()
            .map(|d| (d.name.clone(), d.clone()))
            .collect()
    };
    let (x, y) = (by_name(a), by_name(b));
    for (name, before, after) in both(&x, &y) {
        let (Some(before), Some(after)) = (before, after) else {
            presence(
                out,
                Kind::Machine,
                &format!("device {name}"),
                before.is_some(),
            );
            continue;
        };
        let of = |what: &str| format!("{name} {what}");
        out.words(
            Kind::Machine,
            &of("backend"),
            before.backend.as_str(),
            after.backend.as_str(),
        );
        let cores = |d: &zbmd_ir::Device| format!("{:?}", d.cores);
        out.words(Kind::Machine, &of("cores"), &cores(before), &cores(after));
        let memory = (before.memory_bytes, after.memory_bytes);
        out.number(Kind::Machine, &of("memory"), memory, bytes);
        let flops = (before.flops_per_s, after.flops_per_s);
        out.number(Kind::Machine, &of("peak"), flops, |n| format!("{n} flop/s"));
        let speed = (before.bytes_per_s, after.bytes_per_s);
        out.number(Kind::Machine, &of("bandwidth"), speed, |n| {
            format!("{n} bytes/s")
        });
    }
    let links = |p: &Program| -> BTreeMap<String, (u64, u64)> {
        let name = |d: zbmd_ir::DeviceId| p.machine.devices[d].name.clone();
        let named = |l: &zbmd_ir::Link| {
            (
                format!("{} -> {}", name(l.from), name(l.to)),
                (l.bytes_per_s, l.latency_ns),
            )
        };
        p.machine.links.iter().map(named).collect()
    };
    let (x, y) = (links(a), links(b));
    for (name, before, after) in both(&x, &y) {
        let words = |l: Option<&(u64, u64)>| {
            l.map_or_else(String::new, |(bw, lat)| format!("{bw} bytes/s, {lat} ns"))
        };
        out.words(
            Kind::Machine,
            &format!("link {name}"),
            &words(before),
            &words(after),
        );
    }
}

fn actors(a: (&Program, &View), b: (&Program, &View), out: &mut Changes) {
    let by_name = |v: &View| -> BTreeMap<String, usize> {
        v.actors
            .iter()
            .enumerate()
            .map(|(i, actor)| (actor.name.clone(), i))
            .collect()
    };
    let (x, y) = (by_name(a.1), by_name(b.1));
    for (name, before, after) in both(&x, &y) {
        let (Some(&before), Some(&after)) = (before, after) else {
            presence(out, Kind::Actor, name, before.is_some());
            continue;
        };
        let (was, is) = (&a.1.actors[before], &b.1.actors[after]);
        out.words(Kind::Actor, name, &was.op, &is.op);
        let id = |i: usize| zbmd_ir::ActorId(i as u32);
        let params = (
            &a.0.graph.actors[id(before)].params,
            &b.0.graph.actors[id(after)].params,
        );
        // Tensors are told apart by their values, of which the constants speak.
        if was.op == is.op && !alike(params.0.values(), params.1.values()) {
            out.words(
                Kind::Actor,
                name,
                "",
                "other parameters, beyond those shown",
            );
        }
        let repetitions = (was.repetitions, is.repetitions);
        out.number(Kind::Actor, name, repetitions, |n| format!("{n} firings"));
        let ports = |actor: &crate::ActorView| {
            let one = |p: &crate::PortView| format!("{} {} of {}", p.name, p.rate, p.window);
            let list =
                |ports: &[crate::PortView]| ports.iter().map(one).collect::<Vec<_>>().join(", ");
            format!("{} -> {}", list(&actor.inputs), list(&actor.outputs))
        };
        out.words(
            Kind::Actor,
            &format!("{name} ports"),
            &ports(was),
            &ports(is),
        );
    }
}

fn alike<'a>(a: impl Iterator<Item = &'a Value>, b: impl Iterator<Item = &'a Value>) -> bool {
    let plain = |v: &&Value| !matches!(v, Value::Tensor(..));
    a.filter(plain).eq(b.filter(plain))
}

fn channels(a: (&Program, &View), b: (&Program, &View), out: &mut Changes) {
    let by_name = |v: &View| -> BTreeMap<String, usize> {
        v.channels
            .iter()
            .enumerate()
            .map(|(i, c)| (c.name.clone(), i))
            .collect()
    };
    let words = |view: &View, c: &ChannelView| {
        let readers: Vec<String> = (c.readers.iter())
            .map(|r| {
                let actor = &view.actors[r.actor as usize];
                let port = &actor.inputs[r.port as usize].name;
                let delay = if r.delay > 0 {
                    format!(" delay {}", r.delay)
                } else {
                    String::new()
                };
                format!("{}.{port}{delay}", actor.name)
            })
            .collect();
        let state = if c.state { " state" } else { "" };
        format!("{}{state} to {}", c.token, readers.join(", "))
    };
    let (x, y) = (by_name(a.1), by_name(b.1));
    for (name, before, after) in both(&x, &y) {
        let was = before.map_or_else(String::new, |&i| words(a.1, &a.1.channels[i]));
        let is = after.map_or_else(String::new, |&i| words(b.1, &b.1.channels[i]));
        out.words(Kind::Channel, name, &was, &is);
        if let (Some(&i), Some(&j)) = (before, after) {
            let initial = |p: &Program, i: usize| {
                p.graph.channels[zbmd_ir::ChannelId(i as u32)]
                    .initial
                    .clone()
            };
            if was == is && initial(a.0, i) != initial(b.0, j) {
                out.words(Kind::Channel, name, "", "other initial tokens");
            }
        }
    }
}

fn constants(a: &Program, b: &Program, out: &mut Changes) {
    let sizes = (a.blobs.len() as u64, b.blobs.len() as u64);
    out.number(Kind::Constants, "tensors", sizes, |n| n.to_string());
    let differ = a.blobs.iter().zip(&b.blobs).filter(|(x, y)| x != y).count();
    if sizes.0 == sizes.1 && differ > 0 {
        let of = format!("{differ} of {} differ", sizes.0);
        out.words(Kind::Constants, "tensors", "", &of);
    }
}

fn presence(out: &mut Changes, kind: Kind, subject: &str, was: bool) {
    let (before, after) = if was { ("there", "") } else { ("", "there") };
    out.words(kind, subject, before, after);
}

/// Everything that either has, by key, with what each has. O(n · log n).
pub(super) fn both<'a, K: Ord, V>(
    a: &'a BTreeMap<K, V>,
    b: &'a BTreeMap<K, V>,
) -> Vec<(&'a K, Option<&'a V>, Option<&'a V>)> {
    let mut out: Vec<_> = a.iter().map(|(k, v)| (k, Some(v), b.get(k))).collect();
    out.extend(
        b.iter()
            .filter(|(k, _)| !a.contains_key(k))
            .map(|(k, v)| (k, None, Some(v))),
    );
    out.sort_by(|x, y| x.0.cmp(y.0));
    out
}
