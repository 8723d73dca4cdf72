//! Walks over the entries of a lane, loops included, for everything that reads calendars: each slot once with how often
//! it is executed, the order of executions, and the times of loops.
//!
//! The verifier does not use this: it walks calendars on its own, so that it finds mistakes made here. Programs that are
//! not verified may be walked too: numbers saturate, and loops nested more deeply than [`MAX_NESTING`] are passed over.

use std::collections::BTreeMap;

use crate::limits::MAX_NESTING;
use crate::{BufferId, Entry, Slot};

/// One slot of a lane, whatever the number of its executions.
#[derive(Clone, Copy, Debug)]
pub struct SlotVisit<'a> {
    /// The slot, with the times of its first execution.
    pub slot: &'a Slot,
    /// End of its last execution in the period.
    pub last_end_ns: u64,
    /// Executions in a period.
    pub executions: u64,
}

/// The loops around the slots that are visited.
#[derive(Clone, Copy)]
struct LoopNest {
    depth: usize,
    /// Executions of their bodies in a period.
    executions: u64,
    /// How much later than the first the last of these executions is.
    last_offset_ns: u64,
}

/// Calls `visit` for each slot once, in the order in which slots are numbered. O(slots).
pub fn visit_slots<'a>(entries: &'a [Entry], mut visit: impl FnMut(SlotVisit<'a>)) {
    let outside = LoopNest {
        depth: 0,
        executions: 1,
        last_offset_ns: 0,
    };
    visit_nested(entries, outside, &mut visit);
}

/// The slots outside of loops, in order.
pub fn top_slots(entries: &[Entry]) -> impl Iterator<Item = &Slot> {
    entries.iter().filter_map(|entry| match entry {
        Entry::Slot(slot) => Some(slot),
        Entry::Loop { .. } => None,
    })
}

fn visit_nested<'a>(entries: &'a [Entry], nest: LoopNest, visit: &mut impl FnMut(SlotVisit<'a>)) {
    if nest.depth > MAX_NESTING {
        return;
    }
    for entry in entries {
        match entry {
            Entry::Slot(slot) => visit(SlotVisit {
                slot,
                last_end_ns: slot_end_ns(slot).saturating_add(nest.last_offset_ns),
                executions: nest.executions,
            }),

            // The last repetition is as much later as all before it are long.
            Entry::Loop { count, body } => {
                let offset_ns = body_ns(body).saturating_mul(count.saturating_sub(1));
                let inner = LoopNest {
                    depth: nest.depth + 1,
                    executions: nest.executions.saturating_mul(*count),
                    last_offset_ns: nest.last_offset_ns.saturating_add(offset_ns),
                };

                visit_nested(body, inner, visit);
            }
        }
    }
}

/// Carries of buffers in a period, for walks that look at each slot once: as many as there were before the slot's first
/// execution. O(log buffers) a carry, and O(carries in it) a loop.
#[derive(Clone, Debug, Default)]
pub struct CarryCount {
    carried: BTreeMap<BufferId, u64>,
    /// Carries in the order of their slots, each with its executions in the loops that have ended.
    log: Vec<(BufferId, u64)>,
}

impl CarryCount {
    /// A buffer is carried.
    pub fn carry(&mut self, buffer: BufferId) {
        self.add(buffer, 1);
        self.log.push((buffer, 1));
    }

    /// A loop begins; what [`Self::end_loop`] needs to know of that.
    pub fn begin_loop(&self) -> usize {
        self.log.len()
    }

    /// The loop ends whose body was walked once.
    pub fn end_loop(&mut self, begin: usize, count: u64) {
        for index in begin..self.log.len() {
            let (buffer, executions) = self.log[index];
            self.add(buffer, executions.saturating_mul(count.saturating_sub(1)));
            self.log[index].1 = executions.saturating_mul(count);
        }
    }

    /// Carries of a buffer so far.
    pub fn carried(&self, buffer: BufferId) -> u64 {
        self.carried.get(&buffer).copied().unwrap_or(0)
    }

    fn add(&mut self, buffer: BufferId, executions: u64) {
        let carried = self.carried.entry(buffer).or_insert(0);
        *carried = carried.saturating_add(executions);
    }
}

/// Slots, each counted once.
pub fn slot_count(entries: &[Entry]) -> usize {
    let mut count = 0;
    visit_slots(entries, |_| count += 1);
    count
}

/// Executions of slots in one period, loops counted out.
pub fn executions(entries: &[Entry]) -> u64 {
    let mut total: u64 = 0;
    visit_slots(entries, |visit| {
        total = total.saturating_add(visit.executions)
    });
    total
}

/// The numbers of the slots in the order in which a period executes them. O([`executions`]): of entries that are not
/// verified, ask that first.
pub fn execution_order(entries: &[Entry]) -> Vec<u32> {
    let mut order = Vec::new();
    push_order(entries, 0, &mut order);
    order
}

/// Appends the executions of entries whose first slot has a number; the number after their last slot.
fn push_order(entries: &[Entry], first_number: u32, order: &mut Vec<u32>) -> u32 {
    let mut number = first_number;
    for entry in entries {
        match entry {
            Entry::Slot(_) => {
                order.push(number);
                number += 1;
            }
            Entry::Loop { count, body } => {
                let body_start = order.len();
                number = push_order(body, number, order);

                // The body is walked once and copied for its other executions.
                let body_end = order.len();
                for _ in 1..*count {
                    order.extend_from_within(body_start..body_end);
                }
            }
        }
    }

    number
}

/// Start of an entry's first execution.
pub fn start_ns(entry: &Entry) -> u64 {
    match entry {
        Entry::Slot(slot) => slot.start_ns,
        Entry::Loop { body, .. } => body.first().map_or(0, start_ns),
    }
}

/// Moves an entry in time so that it starts at `new_start_ns`; the slots in it keep their distances.
pub fn start_at(entry: &mut Entry, new_start_ns: u64) {
    let old_start_ns = start_ns(entry);
    shift(entry, old_start_ns, new_start_ns);
}

fn shift(entry: &mut Entry, old_start_ns: u64, new_start_ns: u64) {
    match entry {
        Entry::Slot(slot) => {
            let offset_ns = slot.start_ns.saturating_sub(old_start_ns);
            slot.start_ns = new_start_ns.saturating_add(offset_ns);
        }
        Entry::Loop { body, .. } => {
            let inner_entries = body.iter_mut();
            inner_entries.for_each(|inner| shift(inner, old_start_ns, new_start_ns));
        }
    }
}

/// End of an entry's last execution.
pub fn end_ns(entry: &Entry) -> u64 {
    match entry {
        Entry::Slot(slot) => slot_end_ns(slot),
        Entry::Loop { count, body } => {
            let all_ns = body_ns(body).saturating_mul(*count);
            start_ns(entry).saturating_add(all_ns)
        }
    }
}

/// Time of one execution of a loop's body.
pub fn body_ns(body: &[Entry]) -> u64 {
    let body_start_ns = body.first().map_or(0, start_ns);
    let body_end_ns = body.last().map_or(0, end_ns);
    body_end_ns.saturating_sub(body_start_ns)
}

fn slot_end_ns(slot: &Slot) -> u64 {
    slot.start_ns.saturating_add(slot.duration_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, ActorId};

    fn fire(start_ns: u64, duration_ns: u64) -> Entry {
        Entry::Slot(Slot {
            stage: 0,
            start_ns,
            duration_ns,
            action: Action::Fire {
                actor: ActorId(0),
                first: 0,
                count: 1,
            },
        })
    }

    fn repeat(count: u64, body: Vec<Entry>) -> Entry {
        Entry::Loop { count, body }
    }

    /// `0 (1 (2)x2 3)x3 4`, 5 ns a slot.
    fn nested_loops() -> Vec<Entry> {
        let inner = repeat(2, vec![fire(10, 5)]);
        let outer = repeat(3, vec![fire(5, 5), inner, fire(20, 5)]);
        vec![fire(0, 5), outer, fire(65, 5)]
    }

    #[test]
    fn loops_are_counted_out() {
        let entries = nested_loops();
        assert_eq!(slot_count(&entries), 5);
        assert_eq!(executions(&entries), 1 + 3 * (1 + 2 + 1) + 1);
        assert_eq!(
            execution_order(&entries),
            [0, 1, 2, 2, 3, 1, 2, 2, 3, 1, 2, 2, 3, 4]
        );

        let mut visited = Vec::new();
        visit_slots(&entries, |visit| {
            visited.push((visit.slot.start_ns, visit.last_end_ns, visit.executions));
        });
        let expected = [(0, 5, 1), (5, 50, 3), (10, 60, 6), (20, 65, 3), (65, 70, 1)];
        assert_eq!(visited, expected);
    }

    #[test]
    fn carries_are_counted_through_loops() {
        let (one, other) = (BufferId(1), BufferId(2));
        let mut count = CarryCount::default();
        count.carry(one);

        // Three times: the one, and twice the other.
        let outer = count.begin_loop();
        count.carry(one);
        assert_eq!(count.carried(one), 2, "in the first execution");
        let inner = count.begin_loop();
        count.carry(other);
        count.end_loop(inner, 2);
        count.end_loop(outer, 3);

        assert_eq!(count.carried(one), 1 + 3);
        assert_eq!(count.carried(other), 3 * 2);
        assert_eq!(count.carried(BufferId(0)), 0);
    }

    #[test]
    fn times_of_loops_are_those_of_all_their_executions() {
        let entries = nested_loops();
        assert_eq!(start_ns(&entries[1]), 5);
        assert_eq!(end_ns(&entries[1]), 65);
        assert_eq!(body_ns(&entries), 70);
        assert_eq!(body_ns(&[]), 0);
    }

    #[test]
    fn entries_that_no_verifier_saw_do_no_harm() {
        let mut entry = fire(u64::MAX, u64::MAX);
        for _ in 0..MAX_NESTING + 10 {
            entry = repeat(u64::MAX, vec![entry]);
        }
        assert_eq!(slot_count(std::slice::from_ref(&entry)), 0);

        let endless = [repeat(u64::MAX, vec![fire(1, u64::MAX), fire(0, 1)])];
        assert_eq!(executions(&endless), u64::MAX);
        assert_eq!(end_ns(&endless[0]), 1);
    }
}
