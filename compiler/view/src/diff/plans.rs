//! Differences of plans: times, placement, order, memory.

use std::collections::BTreeMap;

use zbmd_ir::text::{bytes, duration};

use super::structure::both;
use super::{Changes, Kind};
use crate::{FiredView, LaneView, PlanView, SlotView, View};

pub(super) fn compare(a: &View, b: &View, out: &mut Changes) {
    let by_name = |v: &View| -> BTreeMap<String, usize> {
        v.plans
            .iter()
            .enumerate()
            .map(|(i, p)| (p.name.clone(), i))
            .collect()
    };
    let (x, y) = (by_name(a), by_name(b));
    let mut plans = both(&x, &y);
    // Main first, the others by name.
    plans.sort_by_key(|(_, before, after)| *before != Some(&0) && *after != Some(&0));
    for (name, before, after) in plans {
        out.plan = Some(name.clone());
        match (before, after) {
            (Some(&i), Some(&j)) => plan((a, &a.plans[i]), (b, &b.plans[j]), out),
            (Some(&i), None) => {
                out.words(Kind::Plan, "plan", &a.plans[i].headline(), "");
            }
            (None, Some(&j)) => out.words(Kind::Plan, "plan", "", &b.plans[j].headline()),
            (None, None) => {}
        }
    }
    out.plan = None;
    contingencies(a, b, out);
}

type Of<'a> = (&'a View, &'a PlanView);

fn plan(a: Of<'_>, b: Of<'_>, out: &mut Changes) {
    let first = out.list.len();
    let (x, y) = (a.1, b.1);
    out.number(Kind::Plan, "period", (x.period_ns, y.period_ns), duration);
    let each = |p: &PlanView| p.period_ns / p.block.max(1);
    if x.block != y.block {
        out.number(
            Kind::Plan,
            "time of an iteration",
            (each(x), each(y)),
            duration,
        );
    }
    out.number(
        Kind::Plan,
        "latency",
        (x.latency_ns, y.latency_ns),
        duration,
    );
    out.number(
        Kind::Plan,
        "iterations in a block",
        (x.block, y.block),
        |n| n.to_string(),
    );
    let stages = (u64::from(x.stages), u64::from(y.stages));
    out.number(Kind::Plan, "stages", stages, |n| n.to_string());
    out.words(Kind::Bottleneck, "bound by", &x.bound_by, &y.bound_by);
    actors(a, b, out);
    loads(x, y, out);
    transfers(a, b, out);
    memories(a, b, out);
    buffers(a, b, out);
    lanes(a, b, out);
    out.list[first..].sort_by_key(|c| c.kind);
}

fn actors(a: Of<'_>, b: Of<'_>, out: &mut Changes) {
    let by_name = |(v, p): Of<'_>| -> BTreeMap<String, (FiredView, String)> {
        let one = |(i, f): (usize, &FiredView)| {
            let device = v.devices[f.device as usize].name.clone();
            (v.actors[i].name.clone(), (f.clone(), device))
        };
        p.actors.iter().enumerate().map(one).collect()
    };
    let (x, y) = (by_name(a), by_name(b));
    for (name, before, after) in both(&x, &y) {
        // The graph has said already that the actor is new or gone.
        let (Some((was, here)), Some((is, there))) = (before, after) else {
            continue;
        };
        out.words(Kind::Moved, name, here, there);
        let variant = |f: &FiredView| {
            f.variant
                .clone()
                .unwrap_or_else(|| "the default".to_owned())
        };
        out.words(Kind::Variant, name, &variant(was), &variant(is));
        let stage = |f: &FiredView| format!("stage {}", f.stage);
        out.words(Kind::Stage, name, &stage(was), &stage(is));
        out.number(Kind::Time, name, (was.busy_ns, is.busy_ns), duration);
        out.number(Kind::Calls, name, (was.calls, is.calls), |n| {
            format!("{n} calls")
        });
    }
}

fn loads(x: &PlanView, y: &PlanView, out: &mut Changes) {
    let by_name = |p: &PlanView| -> BTreeMap<String, u64> {
        p.loads
            .iter()
            .map(|l| (l.what.clone(), l.busy_ns))
            .collect()
    };
    for (what, before, after) in both(&by_name(x), &by_name(y)) {
        let busy = (before.copied().unwrap_or(0), after.copied().unwrap_or(0));
        out.number(Kind::Load, what, busy, |n| format!("busy {}", duration(n)));
    }
}

fn transfers(a: Of<'_>, b: Of<'_>, out: &mut Changes) {
    let by_name = |(v, p): Of<'_>| -> BTreeMap<String, u64> {
        let one = |r: &crate::RingView| {
            let name = |d: u32| v.devices[d as usize].name.as_str();
            let channel = v.channel_name(r.channel);
            (
                format!("{channel} {} -> {}", name(r.from), name(r.to)),
                r.bytes,
            )
        };
        p.rings.iter().map(one).collect()
    };
    for (what, before, after) in both(&by_name(a), &by_name(b)) {
        let size = (before.copied().unwrap_or(0), after.copied().unwrap_or(0));
        out.number(Kind::Transfer, what, size, |n| match n {
            0 => "nothing".to_owned(),
            n => bytes(n),
        });
    }
}

fn memories(a: Of<'_>, b: Of<'_>, out: &mut Changes) {
    let by_name = |(v, p): Of<'_>| -> BTreeMap<String, (u64, u64)> {
        let name = |d: u32| v.devices[d as usize].name.clone();
        p.memories
            .iter()
            .map(|m| (name(m.device), (m.arena_bytes, m.exchange_bytes)))
            .collect()
    };
    for (device, before, after) in both(&by_name(a), &by_name(b)) {
        let (was, is) = (
            before.copied().unwrap_or_default(),
            after.copied().unwrap_or_default(),
        );
        out.number(
            Kind::Memory,
            &format!("{device} arena"),
            (was.0, is.0),
            bytes,
        );
        out.number(
            Kind::Memory,
            &format!("{device} exchange"),
            (was.1, is.1),
            bytes,
        );
    }
}

fn buffers(a: Of<'_>, b: Of<'_>, out: &mut Changes) {
    let by_name = |(v, p): Of<'_>| -> BTreeMap<String, (u64, String, u64)> {
        let one = |b: &crate::BufferView| {
            let device = &v.devices[b.device as usize].name;
            let shape = format!("{} x ({} + {})", b.places, b.head_tokens, b.block_tokens);
            let name = format!("{} on {device}", v.channel_name(b.channel));
            (name, (b.size_bytes(), shape, b.offset_bytes))
        };
        p.buffers.iter().map(one).collect()
    };
    for (name, before, after) in both(&by_name(a), &by_name(b)) {
        let words = |b: Option<&(u64, String, u64)>| {
            b.map_or_else(String::new, |b| format!("{}, {}", bytes(b.0), b.1))
        };
        let growth = match (before, after) {
            (Some(was), Some(is)) if was.0 > 0 => Some(is.0 as f64 / was.0 as f64 - 1.0),
            _ => None,
        };
        let (was, is) = (words(before), words(after));
        if was != is {
            out.push(Kind::Buffer, name, was, is, growth.filter(|g| *g != 0.0));
        } else if let (Some(was), Some(is)) = (before, after) {
            let offset = |b: &(u64, String, u64)| format!("offset {}", b.2);
            out.words(Kind::Buffer, name, &offset(was), &offset(is));
        }
    }
}

fn lanes(a: Of<'_>, b: Of<'_>, out: &mut Changes) {
    let by_name = |(v, p): Of<'_>| -> BTreeMap<String, usize> {
        let name = |(i, l): (usize, &LaneView)| (v.lane_name(l.device, l.kind), i);
        p.lanes.iter().enumerate().map(name).collect()
    };
    for (name, before, after) in both(&by_name(a), &by_name(b)) {
        let (Some(&i), Some(&j)) = (before, after) else {
            let there = |lane: Option<&usize>| if lane.is_some() { "has slots" } else { "" };
            out.words(Kind::Order, name, there(before), there(after));
            continue;
        };
        let (x, y) = (&a.1.lanes[i].slots, &b.1.lanes[j].slots);
        let same = |s: &SlotView, t: &SlotView| {
            s.act == t.act
                && (s.first, s.count, s.stage) == (t.first, t.count, t.stage)
                && (a.0.short_label(a.1, s) == b.0.short_label(b.1, t))
        };
        let differs = x.iter().zip(y).position(|(s, t)| !same(s, t));
        match differs.or((x.len() != y.len()).then(|| x.len().min(y.len()))) {
            Some(at) => {
                let words = |of: Of<'_>, slots: &[SlotView]| match slots.get(at) {
                    Some(slot) => {
                        format!(
                            "{} slots, slot {at} is {}",
                            slots.len(),
                            of.0.label(of.1, slot)
                        )
                    }
                    None => format!("{} slots", slots.len()),
                };
                out.words(Kind::Order, name, &words(a, x), &words(b, y));
            }
            None => {
                let times = |s: &SlotView| (s.start_ns, s.duration_ns);
                let moved = x
                    .iter()
                    .zip(y)
                    .filter(|(s, t)| times(s) != times(t))
                    .count();
                if moved > 0 {
                    let after = format!("{moved} of {} slots at other times", x.len());
                    out.words(Kind::Times, name, "", &after);
                }
            }
        }
    }
}

fn contingencies(a: &View, b: &View, out: &mut Changes) {
    let by_name = |v: &View| -> BTreeMap<String, u64> {
        let period = |plan: u32| v.plans.get(plan as usize).map_or(0, |p| p.period_ns);
        v.contingencies
            .iter()
            .map(|c| (format!("without {}", c.lost), period(c.plan)))
            .collect()
    };
    for (name, before, after) in both(&by_name(a), &by_name(b)) {
        let words = |ns: u64| match ns {
            0 => String::new(),
            ns => format!("period {}", duration(ns)),
        };
        let times = (before.copied().unwrap_or(0), after.copied().unwrap_or(0));
        out.number(Kind::Contingency, name, times, words);
    }
}
