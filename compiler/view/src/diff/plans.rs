//! Differences of plans: times, placement, order, memory.

use std::collections::BTreeMap;

use zbmd_ir::text::{bytes, duration};

use super::structure::join_by_key;
use super::{ChangeKind, Changes};
use crate::{BufferView, FiredView, LaneView, PlanView, SlotView, View};

pub(super) fn compare(before: &View, after: &View, changes: &mut Changes) {
    let plans_before = plans_by_name(before);
    let plans_after = plans_by_name(after);
    let mut pairs = join_by_key(&plans_before, &plans_after);

    // Main first, the others by name.
    pairs.sort_by_key(|pair| pair.before != Some(&0) && pair.after != Some(&0));
    for pair in pairs {
        changes.plan = Some(pair.key.clone());
        match (pair.before, pair.after) {
            (Some(&old), Some(&new)) => {
                let old_plan = PlanSide::new(before, old);
                let new_plan = PlanSide::new(after, new);
                compare_plan(old_plan, new_plan, changes);
            }
            (Some(&old), None) => {
                let headline = before.plans[old].headline();
                changes.words(ChangeKind::Plan, "plan", &headline, "");
            }
            (None, Some(&new)) => {
                let headline = after.plans[new].headline();
                changes.words(ChangeKind::Plan, "plan", "", &headline);
            }
            (None, None) => {}
        }
    }

    changes.plan = None;
    compare_contingencies(before, after, changes);
}

fn plans_by_name(view: &View) -> BTreeMap<String, usize> {
    let plans = view.plans.iter().enumerate();
    plans
        .map(|(index, plan)| (plan.name.clone(), index))
        .collect()
}

/// A plan, and the view that holds the names of what it refers to.
#[derive(Clone, Copy)]
struct PlanSide<'a> {
    view: &'a View,
    plan: &'a PlanView,
}

impl<'a> PlanSide<'a> {
    fn new(view: &'a View, plan: usize) -> Self {
        Self {
            view,
            plan: &view.plans[plan],
        }
    }

    fn device(self, device: u32) -> &'a str {
        &self.view.devices[device as usize].name
    }

    fn iteration_ns(self) -> u64 {
        self.plan.period_ns / self.plan.block.max(1)
    }

    fn actors(self) -> BTreeMap<&'a str, &'a FiredView> {
        let names = self.view.actors.iter().map(|actor| actor.name.as_str());
        names.zip(&self.plan.actors).collect()
    }

    fn loads(self) -> BTreeMap<&'a str, u64> {
        let loads = self.plan.loads.iter();
        loads
            .map(|load| (load.what.as_str(), load.busy_ns))
            .collect()
    }

    /// Bytes of each transfer in a period.
    fn transfers(self) -> BTreeMap<String, u64> {
        let rings = self.plan.rings.iter();
        let named_rings = rings.map(|ring| {
            let channel = self.view.channel_name(ring.channel);
            let from = self.device(ring.from);
            let to = self.device(ring.to);
            (format!("{channel} {from} -> {to}"), ring.bytes)
        });
        named_rings.collect()
    }

    fn arena_bytes(self) -> BTreeMap<&'a str, u64> {
        let memories = self.plan.memories.iter();
        memories
            .map(|memory| (self.device(memory.device), memory.arena_bytes))
            .collect()
    }

    fn exchange_bytes(self) -> BTreeMap<&'a str, u64> {
        let memories = self.plan.memories.iter();
        memories
            .map(|memory| (self.device(memory.device), memory.exchange_bytes))
            .collect()
    }

    fn buffers(self) -> BTreeMap<String, &'a BufferView> {
        let buffers = self.plan.buffers.iter();
        let named_buffers = buffers.map(|buffer| {
            let channel = self.view.channel_name(buffer.channel);
            let device = self.device(buffer.device);
            (format!("{channel} on {device}"), buffer)
        });
        named_buffers.collect()
    }

    fn lanes(self) -> BTreeMap<String, &'a LaneView> {
        let lanes = self.plan.lanes.iter();
        lanes
            .map(|lane| (self.view.lane_name(lane.device, lane.kind), lane))
            .collect()
    }

    /// What a lane has at a position.
    fn slot_words(self, slots: &[SlotView], position: usize) -> String {
        let count = slots.len();
        match slots.get(position) {
            Some(slot) => {
                let label = self.view.label(self.plan, slot);
                format!("{count} slots, slot {position} is {label}")
            }
            None => format!("{count} slots"),
        }
    }
}

fn compare_plan(before: PlanSide<'_>, after: PlanSide<'_>, changes: &mut Changes) {
    let first_change = changes.list.len();
    let old = before.plan;
    let new = after.plan;
    let periods = (old.period_ns, new.period_ns);
    changes.number(ChangeKind::Plan, "period", periods, duration);
    if old.block != new.block {
        let times = (before.iteration_ns(), after.iteration_ns());
        changes.number(ChangeKind::Plan, "time of an iteration", times, duration);
    }
    let latencies = (old.latency_ns, new.latency_ns);
    changes.number(ChangeKind::Plan, "latency", latencies, duration);
    let blocks = (old.block, new.block);
    changes.number(
        ChangeKind::Plan,
        "iterations in a block",
        blocks,
        plain_number,
    );
    let stages = (u64::from(old.stages), u64::from(new.stages));
    changes.number(ChangeKind::Plan, "stages", stages, plain_number);
    changes.words(
        ChangeKind::Bottleneck,
        "bound by",
        &old.bound_by,
        &new.bound_by,
    );

    compare_actors(before, after, changes);
    compare_loads(before, after, changes);
    compare_transfers(before, after, changes);
    compare_memories(before, after, changes);
    compare_buffers(before, after, changes);
    compare_lanes(before, after, changes);

    // One plan's changes are shown by kind.
    changes.list[first_change..].sort_by_key(|change| change.kind);
}

fn plain_number(number: u64) -> String {
    number.to_string()
}

fn compare_actors(before: PlanSide<'_>, after: PlanSide<'_>, changes: &mut Changes) {
    for pair in join_by_key(&before.actors(), &after.actors()) {
        // The graph has said already that the actor is new or gone.
        let (Some(old), Some(new)) = (pair.before, pair.after) else {
            continue;
        };
        let name = pair.key;
        let old_device = before.device(old.device);
        let new_device = after.device(new.device);
        changes.words(ChangeKind::Moved, name, old_device, new_device);
        changes.words(
            ChangeKind::Variant,
            name,
            variant_name(old),
            variant_name(new),
        );

        let old_stage = format!("stage {}", old.stage);
        let new_stage = format!("stage {}", new.stage);
        changes.words(ChangeKind::Stage, name, &old_stage, &new_stage);
        changes.number(ChangeKind::Time, name, (old.busy_ns, new.busy_ns), duration);
        let calls = (old.calls, new.calls);
        changes.number(ChangeKind::Calls, name, calls, |count| {
            format!("{count} calls")
        });
    }
}

fn variant_name(actor: &FiredView) -> &str {
    actor.variant.as_deref().unwrap_or("the default")
}

fn compare_loads(before: PlanSide<'_>, after: PlanSide<'_>, changes: &mut Changes) {
    for pair in join_by_key(&before.loads(), &after.loads()) {
        let busy_ns = pair.numbers();
        changes.number(ChangeKind::Load, pair.key, busy_ns, |ns| {
            format!("busy {}", duration(ns))
        });
    }
}

fn compare_transfers(before: PlanSide<'_>, after: PlanSide<'_>, changes: &mut Changes) {
    for pair in join_by_key(&before.transfers(), &after.transfers()) {
        let sizes = pair.numbers();
        changes.number(ChangeKind::Transfer, pair.key, sizes, |size| match size {
            0 => "nothing".to_owned(),
            size => bytes(size),
        });
    }
}

fn compare_memories(before: PlanSide<'_>, after: PlanSide<'_>, changes: &mut Changes) {
    let arenas_before = before.arena_bytes();
    let arenas_after = after.arena_bytes();
    let exchanges_before = before.exchange_bytes();
    let exchanges_after = after.exchange_bytes();
    let arenas = join_by_key(&arenas_before, &arenas_after);
    let exchanges = join_by_key(&exchanges_before, &exchanges_after);

    // Both have the same devices in the same order.
    for (arena, exchange) in arenas.into_iter().zip(exchanges) {
        let device = arena.key;
        let arena_name = format!("{device} arena");
        changes.number(ChangeKind::Memory, &arena_name, arena.numbers(), bytes);
        let exchange_name = format!("{device} exchange");
        changes.number(
            ChangeKind::Memory,
            &exchange_name,
            exchange.numbers(),
            bytes,
        );
    }
}

fn compare_buffers(before: PlanSide<'_>, after: PlanSide<'_>, changes: &mut Changes) {
    for pair in join_by_key(&before.buffers(), &after.buffers()) {
        let name = pair.key;
        let old_words = pair
            .before
            .map_or_else(String::new, |old| buffer_words(old));
        let new_words = pair.after.map_or_else(String::new, |new| buffer_words(new));
        let both = pair.before.zip(pair.after);
        if old_words != new_words {
            let growth = both.and_then(|(old, new)| size_growth(old, new));
            changes.push(ChangeKind::Buffer, name, old_words, new_words, growth);
        } else if let Some((old, new)) = both {
            let old_offset = format!("offset {}", old.offset_bytes);
            let new_offset = format!("offset {}", new.offset_bytes);
            changes.words(ChangeKind::Buffer, name, &old_offset, &new_offset);
        }
    }
}

fn buffer_words(buffer: &BufferView) -> String {
    format!(
        "{}, {} x ({} + {})",
        bytes(buffer.size_bytes()),
        buffer.places,
        buffer.head_tokens,
        buffer.shown_tokens()
    )
}

/// How much larger a buffer is; nothing where that says nothing.
fn size_growth(old: &BufferView, new: &BufferView) -> Option<f64> {
    let old_bytes = old.size_bytes();
    let new_bytes = new.size_bytes();
    let has_growth = old_bytes > 0 && old_bytes != new_bytes;
    has_growth.then(|| new_bytes as f64 / old_bytes as f64 - 1.0)
}

fn compare_lanes(before: PlanSide<'_>, after: PlanSide<'_>, changes: &mut Changes) {
    for pair in join_by_key(&before.lanes(), &after.lanes()) {
        let name = pair.key;
        let (Some(old), Some(new)) = (pair.before, pair.after) else {
            let old_words = pair.before.map_or("", |_| "has slots");
            let new_words = pair.after.map_or("", |_| "has slots");
            changes.words(ChangeKind::Order, name, old_words, new_words);
            continue;
        };

        // Where the order differs, times differ as a matter of course.
        if let Some(position) = first_difference(before, &old.slots, after, &new.slots) {
            let old_words = before.slot_words(&old.slots, position);
            let new_words = after.slot_words(&new.slots, position);
            changes.words(ChangeKind::Order, name, &old_words, &new_words);
            continue;
        }
        let slots = old.slots.iter().zip(&new.slots);
        let moved = slots.filter(|(old, new)| slot_times(old) != slot_times(new));
        let moved_count = moved.count();
        if moved_count > 0 {
            let all = old.slots.len();
            let words = format!("{moved_count} of {all} slots at other times");
            changes.words(ChangeKind::Times, name, "", &words);
        }
    }
}

/// The first position at which two lanes do not do the same.
fn first_difference(
    before: PlanSide<'_>,
    old_slots: &[SlotView],
    after: PlanSide<'_>,
    new_slots: &[SlotView],
) -> Option<usize> {
    let mut slots = old_slots.iter().zip(new_slots);
    let difference = slots.position(|(old, new)| {
        let is_same_part = (old.first, old.count, old.stage) == (new.first, new.count, new.stage);
        let is_same_subject = old.act == new.act
            && before.view.short_label(before.plan, old) == after.view.short_label(after.plan, new);
        !is_same_part || !is_same_subject
    });

    // The longer lane differs where the other one ends.
    let has_more = old_slots.len() != new_slots.len();
    difference.or_else(|| has_more.then(|| old_slots.len().min(new_slots.len())))
}

fn slot_times(slot: &SlotView) -> (u64, u64) {
    (slot.start_ns, slot.duration_ns)
}

fn compare_contingencies(before: &View, after: &View, changes: &mut Changes) {
    let periods_before = periods_by_loss(before);
    let periods_after = periods_by_loss(after);
    for pair in join_by_key(&periods_before, &periods_after) {
        let periods = pair.numbers();
        changes.number(ChangeKind::Contingency, pair.key, periods, |ns| match ns {
            0 => String::new(),
            ns => format!("period {}", duration(ns)),
        });
    }
}

fn periods_by_loss(view: &View) -> BTreeMap<String, u64> {
    let contingencies = view.contingencies.iter();
    let periods = contingencies.map(|contingency| {
        let plan = view.plans.get(contingency.plan as usize);
        let period_ns = plan.map_or(0, |plan| plan.period_ns);
        (format!("without {}", contingency.lost), period_ns)
    });
    periods.collect()
}
