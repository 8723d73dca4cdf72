//! A run as a trace for Perfetto: for each device a track of what was planned and one of what was measured, and tracks
//! of epochs and of what the supervisor saw.
//!
//! Measured slices lie at the times of the run's monotonic clock. The planned slices of a period lie from where its
//! lateness is counted (see `measured`) on, or, where the run was quicker than the plan, after those of the period
//! before: so that planned and measured can be compared slot by slot, however long the run. Each measured slice says by
//! how much it was late, in nanoseconds; those that are worth a look have the category `late`.

use std::collections::BTreeMap;

use zbmd_ir::trace::{OTHER, Period, Trace, TraceEpoch, WHOLE};
use zbmd_ir::{Calendar, Program};

use super::super::expand::Expansion;
use super::super::measured::{late, period_began};
use super::super::protobuf::Message;
use super::super::{Act, PlanView, SlotView, View};
use super::{BEGIN, CLEARED, END, NEEDED, NOTES, SLICES, device_track, field, packet};

/// What is neither beginning nor end.
const INSTANT: u64 = 3;
/// Categories after those of acts.
const PLANNED: u64 = Act::ALL.len() as u64 + 1;
const MEASURED: u64 = PLANNED + 1;
const LATE: u64 = PLANNED + 2;
const SUPERVISION: u64 = PLANNED + 3;
const CATEGORIES: [&str; 4] = ["planned", "measured", "late", "supervision"];
/// Names of further annotations, after [`NOTES`].
const MORE_NOTES: [&str; 4] = ["period", "epoch", "late_ns", "line"];
/// The tracks of no device.
const EPOCHS: u64 = 5 << 32;
const EVENTS: u64 = 6 << 32;

/// One slice: a slot as planned or as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The device.
    pub device: u32,
    /// Whether it is what was planned, and not what was measured.
    pub planned: bool,
    /// When it begins, on the run's clock.
    pub start_ns: u64,
    /// When it ends.
    pub end_ns: u64,
    /// What it is about, such as the actor's name.
    pub name: String,
    /// What is done; none of the slots if it is a whole period, or work besides the slots.
    pub act: Option<Act>,
    /// The period.
    pub period: u64,
    /// The epoch.
    pub epoch: u64,
    /// Stage, block, first firing or token, and how many.
    pub slot: Option<[u64; 4]>,
    /// By how much a measured slot ended late, and whether that is worth a colour.
    pub late: Option<(i64, bool)>,
}

/// The slices of the first `periods` periods of each epoch, by default as many as are no more than half a million
/// slices. O(slices).
pub fn spans(view: &View, program: &Program, trace: &Trace, periods: Option<u64>) -> Vec<Span> {
    // Every epoch gets the same share, so that a long first one does not hide what came after a loss.
    let mut out = Vec::new();
    let share = SLICES as usize / trace.epochs.len().max(1);
    for epoch in &trace.epochs {
        let plan = &view.plans[epoch.begin.plan.index()];
        let calendars = &program.plans[epoch.begin.plan].calendars;
        let limit = periods.unwrap_or_else(|| fitting(epoch, share));
        for (c, calendar) in calendars.iter().enumerate() {
            let device = epoch.begin.devices[c].0;
            let mut drawing = Drawing {
                view,
                plan,
                epoch,
                device,
                out: &mut out,
                free_ns: 0,
            };

            let (slots, numbers) = drawing.slots(calendar, c);
            let all = epoch.lanes[c].periods.iter();
            for period in all.take_while(|p| p.number < limit) {
                let first = slots.first().zip(numbers.first().copied());
                drawing.period(period, period_began(period, first), &slots, &numbers);
            }
        }
    }
    out
}

/// Periods of an epoch that have at most so many slices, planned and measured.
fn fitting(epoch: &TraceEpoch, slices: usize) -> u64 {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for period in epoch.lanes.iter().flat_map(|l| &l.periods) {
        *counts.entry(period.number).or_default() += 2 * period.records.len();
    }

    // At least one period is shown, however many slices it has.
    let mut total = 0;
    let mut limit = 1;
    for (period, count) in counts {
        total += count;
        if total > slices {
            break;
        }
        limit = period + 1;
    }
    limit
}

/// The slices of one calendar of an epoch.
struct Drawing<'a> {
    view: &'a View,
    plan: &'a PlanView,
    epoch: &'a TraceEpoch,
    device: u32,
    out: &'a mut Vec<Span>,
    /// Where the planned slices so far end.
    free_ns: u64,
}

impl Drawing<'_> {
    /// All executions of a period with the numbers of their slots; none of a calendar that was recorded as a whole.
    fn slots(&self, calendar: &Calendar, index: usize) -> (Vec<SlotView>, Vec<u32>) {
        match self.epoch.lanes[index].is_whole() {
            true => (Vec::new(), Vec::new()),
            false => Expansion::all(&calendar.lanes),
        }
    }

    fn period(&mut self, period: &Period, began_ns: u64, slots: &[SlotView], numbers: &[u32]) {
        // A run quicker than the plan: planned slices of two periods must not overlap on their track.
        let base_ns = began_ns.max(self.free_ns);
        let last = slots.iter().map(SlotView::end_ns).max().unwrap_or(0);
        self.free_ns = base_ns + last.max(self.plan.period_ns);
        let mut at = 0;
        for record in &period.records {
            let mut span = Span {
                device: self.device,
                planned: false,
                start_ns: record.start_ns,
                end_ns: record.end_ns,
                name: String::new(),
                act: None,
                period: period.number,
                epoch: self.epoch.begin.epoch,
                slot: None,
                late: None,
            };

            if record.slot == OTHER || record.slot == WHOLE {
                let is_whole = record.slot == WHOLE;
                span.name = if is_whole { "calendar" } else { "bookkeeping" }.to_owned();
                self.out.push(span);
                continue;
            }
            // Slots that had nothing to do are not in the trace; all executions of a slot are, or none.
            while numbers.get(at).is_some_and(|n| *n != record.slot) {
                at += 1;
            }
            let Some(slot) = slots.get(at) else { break };
            at += 1;
            let block = period.number.saturating_sub(u64::from(slot.stage));
            span.name = self.view.short_label(self.plan, slot);
            span.act = Some(slot.act);
            span.slot = Some([u64::from(slot.stage), block, slot.first, slot.count]);
            let planned = Span {
                planned: true,
                start_ns: base_ns + slot.start_ns,
                end_ns: base_ns + slot.end_ns(),
                ..span.clone()
            };

            let end_ns = record.end_ns.saturating_sub(began_ns);
            span.late = Some(late(end_ns, slot.end_ns(), self.plan.period_ns));
            self.out.extend([planned, span]);
        }
    }
}

/// The run as a trace; `periods` as in [`spans`].
pub fn run(view: &View, program: &Program, trace: &Trace, periods: Option<u64>) -> Vec<u8> {
    let spans = spans(view, program, trace, periods);
    let epochs: Vec<(String, &TraceEpoch)> = (trace.epochs.iter())
        .map(|e| {
            (
                format!(
                    "epoch {}: {}",
                    e.begin.epoch,
                    view.plans[e.begin.plan.index()].name
                ),
                e,
            )
        })
        .collect();
    let mut names: BTreeMap<&str, u64> = BTreeMap::new();
    let all = spans
        .iter()
        .map(|s| &*s.name)
        .chain(epochs.iter().map(|(n, _)| &**n));
    for name in all.chain(trace.events.iter().map(|e| &*e.name)) {
        let next = names.len() as u64 + 1;
        names.entry(name).or_insert(next);
    }

    let mut out = Message::default();
    tracks(&mut out, view, &spans);
    intern(&mut out, &names);
    for span in &spans {
        slice(&mut out, span, names[&*span.name]);
    }
    for (name, epoch) in &epochs {
        // An epoch that was cut off ends with its last record.
        let last = epoch.lanes.iter().flat_map(|l| l.periods.last());
        let last = last
            .filter_map(|p| p.records.last())
            .map(|r| r.end_ns)
            .max();
        let end_ns = epoch.end_ns.or(last).unwrap_or(0).max(epoch.begin.at_ns);
        event(&mut out, epoch.begin.at_ns, EPOCHS, BEGIN, |e| {
            e.number(field::event::NAME, names[&**name]);
            e.number(field::event::CATEGORY, SUPERVISION);
        });
        event(&mut out, end_ns, EPOCHS, END, |_| {});
    }

    for seen in &trace.events {
        event(&mut out, seen.at_ns, EVENTS, INSTANT, |e| {
            e.number(field::event::NAME, names[&*seen.name]);
            e.number(field::event::CATEGORY, SUPERVISION);
            e.message(field::event::ANNOTATION, |a| {
                a.number(1, (NOTES.len() + MORE_NOTES.len()) as u64);
                a.text(6, &seen.line);
            });
        });
    }

    out.0
}

fn track_of(span: &Span) -> u64 {
    (if span.planned { 3 } else { 4 }) << 32 | u64::from(span.device)
}

fn event(out: &mut Message, at_ns: u64, track: u64, kind: u64, f: impl FnOnce(&mut Message)) {
    packet(out, NEEDED, |p| {
        p.number(field::packet::TIMESTAMP, at_ns);
        p.message(field::packet::EVENT, |e| {
            e.number(field::event::TRACK, track);
            e.number(field::event::KIND, kind);
            f(e);
        });
    });
}

fn slice(out: &mut Message, span: &Span, name: u64) {
    let track = track_of(span);
    event(out, span.start_ns, track, BEGIN, |e| {
        e.number(field::event::NAME, name);
        e.number(
            field::event::CATEGORY,
            if span.planned { PLANNED } else { MEASURED },
        );
        if let Some(act) = span.act {
            e.number(field::event::CATEGORY, act as u64 + 1);
        }
        let mut note = |number: usize, field: u64, value: u64| {
            e.message(field::event::ANNOTATION, |a| {
                a.number(1, number as u64 + 1);
                a.number(field, value);
            });
        };

        for (i, value) in span.slot.iter().flatten().enumerate() {
            note(i, 3, *value);
        }
        note(NOTES.len(), 3, span.period);
        note(NOTES.len() + 1, 3, span.epoch);
        if let Some((late_ns, is_late)) = span.late {
            // Of a signed number, as Protocol Buffers write one.
            note(NOTES.len() + 2, 4, late_ns as u64);
            if is_late {
                e.number(field::event::CATEGORY, LATE);
            }
        }
    });
    event(out, span.end_ns, track, END, |_| {});
}

/// A process for each device, with both its tracks; and the tracks of no device.
fn tracks(out: &mut Message, view: &View, spans: &[Span]) {
    let mut devices: Vec<u32> = spans.iter().map(|s| s.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let mut track = |uuid: u64, f: &dyn Fn(&mut Message)| {
        packet(out, 0, |p| {
            p.message(field::packet::TRACK, |t| {
                t.number(field::track::UUID, uuid);
                f(t);
            });
        });
    };

    for device in devices {
        let name = view.device_name(device);
        track(device_track(device), &|t| {
            t.message(field::track::PROCESS, |process| {
                process.number(1, u64::from(device) + 1);
                process.text(6, name);
            });
        });
        for (kind, word) in [(3u64, "planned"), (4, "measured")] {
            track(kind << 32 | u64::from(device), &|t| {
                t.number(field::track::PARENT, device_track(device));
                t.text(field::track::NAME, &format!("{name} {word}"));
            });
        }
    }

    for (uuid, name) in [(EPOCHS, "epochs"), (EVENTS, "supervisor")] {
        track(uuid, &|t| t.text(field::track::NAME, name));
    }
}

fn intern(out: &mut Message, names: &BTreeMap<&str, u64>) {
    packet(out, CLEARED, |p| {
        p.message(field::packet::INTERNED, |interned| {
            let mut list = |field: u64, number: u64, name: &str| {
                interned.message(field, |m| {
                    m.number(1, number);
                    m.text(2, name);
                });
            };

            let categories = Act::ALL.iter().map(|act| act.name()).chain(CATEGORIES);
            categories
                .zip(1..)
                .for_each(|(name, number)| list(1, number, name));
            names
                .iter()
                .for_each(|(name, &number)| list(2, number, name));
            let notes = NOTES.iter().chain(&MORE_NOTES);
            notes
                .zip(1..)
                .for_each(|(name, number)| list(3, number, name));
        });
    });
}
