//! How long the calls of each actor took: a histogram for each, filled from the words that workers record.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use zbmd_ir::trace::{MAX_TICKS, PERIOD, WHOLE, parts};
use zbmd_ir::{Action, Calendar, Entry, Program, planned_calendar_ns};

use crate::observe::report::ProfileReport;

/// Calls of one actor on one kind of slot.
struct Calls {
    ticks: Histogram<u32>,
    planned_ns: u64,
}

impl Calls {
    fn new() -> Self {
        // An error under 1 %, in some tens of kilobytes, over all that a word can count.
        let ticks = Histogram::new_with_bounds(1, MAX_TICKS, 2);
        Self {
            ticks: ticks.expect("bounds and precision are constants"),
            planned_ns: 0,
        }
    }
}

/// The histograms of a run.
#[derive(Default)]
pub(super) struct Profile {
    index: BTreeMap<String, usize>,
    calls: Vec<Calls>,
}

/// What the slots of one calendar are, and where in its words we are.
pub(super) struct Cursor {
    /// For each slot, the histogram (if it fires an actor) and the planned duration.
    slots: Vec<(Option<usize>, u64)>,
    whole: (usize, u64),
    time_follows: bool,
}

impl Profile {
    /// For the words of a calendar of `program`, which `device` runs.
    pub(super) fn cursor(
        &mut self,
        program: &Program,
        calendar: &Calendar,
        device: &str,
    ) -> Cursor {
        let mut slots = Vec::new();
        for lane in &calendar.lanes {
            self.number(program, &lane.entries, &mut slots);
        }
        let whole = self.of(&format!("(the calendar of {device})"));
        Cursor {
            slots,
            whole: (whole, planned_calendar_ns(calendar)),
            time_follows: false,
        }
    }

    fn number(
        &mut self,
        program: &Program,
        entries: &[Entry],
        slots: &mut Vec<(Option<usize>, u64)>,
    ) {
        for entry in entries {
            match entry {
                Entry::Loop { body, .. } => self.number(program, body, slots),
                Entry::Slot(slot) => {
                    let of = match slot.action {
                        Action::Fire { actor, .. } => {
                            Some(self.of(&program.graph.actors[actor].name))
                        }
                        _ => None,
                    };
                    slots.push((of, slot.duration_ns));
                }
            }
        }
    }

    fn of(&mut self, name: &str) -> usize {
        if let Some(&at) = self.index.get(name) {
            return at;
        }
        self.calls.push(Calls::new());
        self.index.insert(name.to_owned(), self.calls.len() - 1);
        self.calls.len() - 1
    }

    /// Takes in a word of a calendar.
    pub(super) fn take(&mut self, cursor: &mut Cursor, word: u64) {
        if std::mem::take(&mut cursor.time_follows) {
            return;
        }
        let (what, ticks) = parts(word);
        let (at, planned_ns) = match what {
            PERIOD => return cursor.time_follows = true,
            WHOLE => cursor.whole,
            slot => match cursor.slots.get(slot as usize) {
                Some(&(Some(at), planned_ns)) => (at, planned_ns),
                _ => return,
            },
        };
        let calls = &mut self.calls[at];
        calls.ticks.saturating_record(ticks.max(1));
        calls.planned_ns = calls.planned_ns.saturating_add(planned_ns);
    }

    /// What came of it, by name; actors that were never called are left out.
    pub(super) fn report(&self, ns_per_tick: f64) -> Vec<ProfileReport> {
        let ns = |ticks: u64| (ticks as f64 * ns_per_tick).round() as u64;
        let called = self.index.iter().map(|(name, at)| (name, &self.calls[*at]));
        let called = called.filter(|(_, calls)| !calls.ticks.is_empty());
        called
            .map(|(name, Calls { ticks, planned_ns })| ProfileReport {
                actor: name.clone(),
                calls: ticks.len(),
                planned_ns: *planned_ns as f64 / ticks.len() as f64,
                mean_ns: ticks.mean() * ns_per_tick,
                p50_ns: ns(ticks.value_at_quantile(0.5)),
                p99_ns: ns(ticks.value_at_quantile(0.99)),
                max_ns: ns(ticks.max()),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::testing::programs;
    use zbmd_ir::trace::{OTHER, word};

    #[test]
    fn words_are_counted_by_actor_and_times_of_periods_are_none() {
        let program = programs::chain();
        let calendar = &program.plans[zbmd_ir::PlanId(0)].calendars[0];
        let mut profile = Profile::default();
        let mut cursor = profile.cursor(&program, calendar, "cpu:0");
        let slots = cursor.slots.len() as u32;
        for period in 0..10u64 {
            // A time that would be a word of slot 0, if it were one.
            profile.take(&mut cursor, word(PERIOD, period));
            profile.take(&mut cursor, word(0, 999_999));
            (0..slots).for_each(|s| profile.take(&mut cursor, word(s, 100 * (u64::from(s) + 1))));
            profile.take(&mut cursor, word(OTHER, 7));
        }
        let report = profile.report(2.0);
        assert!(!report.is_empty());
        for line in &report {
            assert_eq!(line.calls % 10, 0, "{line:?}");
            assert!(line.max_ns < 300 * u64::from(slots), "{line:?}");
            assert!(line.p50_ns <= line.p99_ns && line.p99_ns <= line.max_ns);
        }
    }
}
