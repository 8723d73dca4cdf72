//! Calendars with their loops counted out, and what is summed over them. Knows nothing of formats.

use std::collections::BTreeMap;

use zbmd_ir::walk::{self, visit_slots};
use zbmd_ir::{Action, Entry, Lane, Slot};

use super::{Act, SlotView};

/// Executions of one loop that are listed; a longer one stands as one slot.
const MAX_LOOP: u64 = 20_000;
/// Executions of all loops of one plan that are listed.
pub(super) const MAX_LISTED: u64 = 200_000;

/// Counts out the loops of lanes, within a number of executions that all lanes of a plan share.
pub(super) struct Expansion {
    left: u64,
    /// Where the next execution goes on.
    next: BTreeMap<(Act, u32), u64>,
    slots: Vec<SlotView>,
    /// Loops of more executions stand as one slot.
    max_loop: u64,
    /// For each of the slots, its number in the calendar: a slot in a loop has one.
    numbers: Vec<u32>,
}

/// The number of a loop that stands as one slot.
pub(super) const NO_NUMBER: u32 = u32::MAX;

impl Expansion {
    pub(super) fn new() -> Self {
        Self {
            left: MAX_LISTED,
            next: BTreeMap::new(),
            slots: Vec::new(),
            max_loop: MAX_LOOP,
            numbers: Vec::new(),
        }
    }

    /// All executions of a calendar, one lane after the other, with the numbers of their slots. The calendar's
    /// executions should be few.
    pub(super) fn all(lanes: &[Lane]) -> (Vec<SlotView>, Vec<u32>) {
        let mut expansion = Self {
            left: u64::MAX,
            max_loop: u64::MAX,
            ..Self::new()
        };
        let mut first = 0;
        for lane in lanes {
            expansion.next.clear();
            first = expansion.entries(&lane.entries, first, 0, true);
        }
        (expansion.slots, expansion.numbers)
    }

    /// The slots of one lane, in order.
    pub(super) fn lane(&mut self, entries: &[Entry]) -> Vec<SlotView> {
        self.next.clear();
        self.entries(entries, 0, 0, true);
        self.numbers.clear();
        std::mem::take(&mut self.slots)
    }

    /// `number` is that of the first slot; the one after the last is returned. `later_ns` is how much later than the
    /// first this execution of the loops around is; it is the first if `fresh`.
    fn entries(&mut self, entries: &[Entry], mut number: u32, later_ns: u64, fresh: bool) -> u32 {
        for entry in entries {
            match entry {
                Entry::Slot(slot) => {
                    self.numbers.push(number);
                    number += 1;
                    self.slot(slot, later_ns, fresh);
                }
                Entry::Loop { count, body } => {
                    let executions = walk::executions(body).saturating_mul(*count);
                    let after = number + walk::slot_count(body) as u32;
                    if executions > self.max_loop.min(self.left) {
                        self.numbers.push(NO_NUMBER);
                        self.whole(entry, executions, later_ns);
                        number = after;
                        continue;
                    }

                    let length = walk::body_ns(body);
                    // Loops inside are within the executions of this one.
                    let left = self.left - executions;
                    for i in 0..*count {
                        let later = later_ns.saturating_add(length.saturating_mul(i));
                        self.left = u64::MAX;
                        self.entries(body, number, later, fresh && i == 0);
                    }

                    self.left = left;
                    number = after;
                }
            }
        }

        number
    }

    fn slot(&mut self, slot: &Slot, later_ns: u64, fresh: bool) {
        let (act, id, first, count) = parts(&slot.action);
        let next = self.next.entry((act, id)).or_insert(first);
        let first = if fresh { first } else { *next };
        *next = first.saturating_add(count);
        self.slots.push(SlotView {
            start_ns: slot.start_ns.saturating_add(later_ns),
            duration_ns: slot.duration_ns,
            stage: slot.stage,
            act,
            id,
            first,
            count,
        });
    }

    /// A loop as one slot.
    fn whole(&mut self, entry: &Entry, executions: u64, later_ns: u64) {
        let mut busy: BTreeMap<u32, u64> = BTreeMap::new();
        let mut stage = 0;
        visit_slots(std::slice::from_ref(entry), |v| {
            let (act, id, _, count) = parts(&v.slot.action);
            stage = v.slot.stage;
            if act == Act::Fire {
                let total = busy.entry(id).or_default();
                *total = total.saturating_add(v.slot.duration_ns.saturating_mul(v.executions));
            }

            let next = self.next.entry((act, id)).or_default();
            *next = next.saturating_add(count.saturating_mul(v.executions));
        });
        let heaviest = busy
            .iter()
            .max_by_key(|&(id, ns)| (*ns, std::cmp::Reverse(*id)));
        let start = walk::start_ns(entry);
        self.slots.push(SlotView {
            start_ns: start.saturating_add(later_ns),
            duration_ns: walk::end_ns(entry).saturating_sub(start),
            stage,
            act: Act::Loop,
            id: heaviest.map_or(0, |(&id, _)| id),
            first: 0,
            count: executions,
        });
    }
}

/// What an action is done to, and how much of it.
pub(super) fn parts(action: &Action) -> (Act, u32, u64, u64) {
    match *action {
        Action::Fire {
            actor,
            first,
            count,
        } => (Act::Fire, actor.0, first, count),
        Action::Send { ring, first, count } => (Act::Send, ring.0, first, count),
        Action::Recv { ring, first, count } => (Act::Recv, ring.0, first, count),
        Action::Release { ring } => (Act::Release, ring.0, 0, 0),
        Action::Carry { buffer } => (Act::Carry, buffer.0, 0, 0),
        Action::Fetch { actor, .. } => (Act::Fetch, actor.0, 0, 0),
        Action::Await { actor } => (Act::Await, actor.0, 0, 0),
    }
}
