//! A plan as a trace for Perfetto (ui.perfetto.dev): a track for each lane, a slice for each slot, a flow for each
//! transfer. The first periods of a run, with stages that have nothing to do yet left out.
//!
//! Perfetto's format is Protocol Buffers; the few messages that are needed are written here by hand, with the numbers
//! of `protos/perfetto/trace/perfetto_trace.proto`. Names are interned, so that a slot takes a few tens of bytes.

use std::collections::BTreeMap;

use super::protobuf::Message;
use super::{Act, PlanView, SlotView, View};

mod run;

pub use self::run::{Span, run, spans};

/// Max slices of a trace unless more periods are requested: the viewer is slow with more.
const SLICES: u64 = 500_000;

/// Field numbers, by message.
mod field {
    /// Of `Trace`.
    pub(super) const PACKET: u64 = 1;
    /// Of `TracePacket`.
    pub(super) mod packet {
        pub(crate) const TIMESTAMP: u64 = 8;
        pub(crate) const SEQUENCE: u64 = 10;
        pub(crate) const EVENT: u64 = 11;
        pub(crate) const INTERNED: u64 = 12;
        pub(crate) const FLAGS: u64 = 13;
        pub(crate) const TRACK: u64 = 60;
    }
    /// Of `TrackEvent`.
    pub(super) mod event {
        pub(crate) const CATEGORY: u64 = 3;
        pub(crate) const ANNOTATION: u64 = 4;
        pub(crate) const KIND: u64 = 9;
        pub(crate) const NAME: u64 = 10;
        pub(crate) const TRACK: u64 = 11;
        pub(crate) const FLOW: u64 = 47;
        pub(crate) const FLOW_END: u64 = 48;
    }
    /// Of `TrackDescriptor`.
    pub(super) mod track {
        pub(crate) const UUID: u64 = 1;
        pub(crate) const NAME: u64 = 2;
        pub(crate) const PROCESS: u64 = 3;
        pub(crate) const PARENT: u64 = 5;
    }
}

/// The only sequence of packets, and its state: names refer to what it interned.
const SEQUENCE: u64 = 1;
const CLEARED: u64 = 1;
const NEEDED: u64 = 2;
const BEGIN: u64 = 1;
const END: u64 = 2;
/// Names of annotations, whose numbers are their places counted from 1.
const NOTES: [&str; 4] = ["stage", "block", "first", "count"];

/// The first `periods` periods of a run as a trace. By default as many as fill the pipeline and one more, unless that
/// is very much.
pub fn plan(view: &View, plan: &PlanView, periods: Option<u64>) -> Vec<u8> {
    let slots: u64 = plan.lanes.iter().map(|l| l.slots.len() as u64).sum();
    let max_periods = (SLICES / slots.max(1)).max(1);
    let periods = periods
        .unwrap_or_else(|| (u64::from(plan.stages) + 1).min(max_periods))
        .max(1);

    // Tracks and names go first: events refer to them by number.
    let mut trace = Message::default();
    let names = descriptors(&mut trace, view, plan);
    let flows = Flows::of(plan);
    for period in 0..periods {
        for (l, lane) in plan.lanes.iter().enumerate() {
            for (s, slot) in lane.slots.iter().enumerate() {
                // In its first periods a pipeline has no block yet for its later stages.
                let Some(block) = period.checked_sub(u64::from(slot.stage)) else {
                    continue;
                };
                let at = period.saturating_mul(plan.period_ns);
                let name = names[&(slot.act, slot.id)];
                let place = (l as u32, s as u32);
                event(&mut trace, at.saturating_add(slot.start_ns), l, |e| {
                    e.number(field::event::KIND, BEGIN);
                    e.number(field::event::NAME, name);
                    e.number(field::event::CATEGORY, slot.act as u64 + 1);
                    notes(e, slot, block);
                    flows.write(e, place, period);
                });
                event(&mut trace, at.saturating_add(slot.end_ns()), l, |e| {
                    e.number(field::event::KIND, END);
                });
            }
        }
    }

    trace.0
}

fn packet(trace: &mut Message, flags: u64, f: impl FnOnce(&mut Message)) {
    trace.message(field::PACKET, |p| {
        p.number(field::packet::SEQUENCE, SEQUENCE);
        p.number(field::packet::FLAGS, flags);
        f(p);
    });
}

fn event(trace: &mut Message, at_ns: u64, lane: usize, f: impl FnOnce(&mut Message)) {
    packet(trace, NEEDED, |p| {
        p.number(field::packet::TIMESTAMP, at_ns);
        p.message(field::packet::EVENT, |e| {
            e.number(field::event::TRACK, lane_track(lane));
            f(e);
        });
    });
}

fn notes(event: &mut Message, slot: &SlotView, block: u64) {
    let values = [u64::from(slot.stage), block, slot.first, slot.count];
    for (i, value) in values.into_iter().enumerate() {
        event.message(field::event::ANNOTATION, |a| {
            a.number(1, i as u64 + 1);
            a.number(3, value);
        });
    }
}

fn device_track(device: u32) -> u64 {
    1 << 32 | u64::from(device)
}

fn lane_track(lane: usize) -> u64 {
    2 << 32 | lane as u64
}

/// Tracks and names; the number of the name of each slot, by what it does to what.
fn descriptors(trace: &mut Message, view: &View, plan: &PlanView) -> BTreeMap<(Act, u32), u64> {
    let mut described = None;
    for (l, lane) in plan.lanes.iter().enumerate() {
        // Lanes of a device stand together.
        if described.replace(lane.device) != Some(lane.device) {
            packet(trace, 0, |p| {
                p.message(field::packet::TRACK, |t| {
                    t.number(field::track::UUID, device_track(lane.device));
                    t.message(field::track::PROCESS, |process| {
                        process.number(1, u64::from(lane.device) + 1);
                        process.text(6, view.device_name(lane.device));
                    });
                });
            });
        }

        packet(trace, 0, |p| {
            p.message(field::packet::TRACK, |t| {
                t.number(field::track::UUID, lane_track(l));
                t.number(field::track::PARENT, device_track(lane.device));
                t.text(field::track::NAME, &view.lane_name(lane.device, lane.kind));
            });
        });
    }

    // Slots with the same label share a name; the numbers count from 1, since 0 means none in Perfetto.
    let mut names: BTreeMap<String, u64> = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    for slot in plan.lanes.iter().flat_map(|l| &l.slots) {
        numbers.entry((slot.act, slot.id)).or_insert_with(|| {
            let next = names.len() as u64 + 1;
            *names.entry(view.short_label(plan, slot)).or_insert(next)
        });
    }

    packet(trace, CLEARED, |p| {
        p.message(field::packet::INTERNED, |interned| {
            let mut list = |field: u64, number: u64, name: &str| {
                interned.message(field, |m| {
                    m.number(1, number);
                    m.text(2, name);
                });
            };

            for act in Act::ALL {
                list(1, act as u64 + 1, act.name());
            }
            names
                .iter()
                .for_each(|(name, &number)| list(2, number, name));
            NOTES
                .iter()
                .zip(1..)
                .for_each(|(name, number)| list(3, number, name));
        });
    });
    numbers
}

/// Flows that start and end at slots.
struct Flows {
    from: BTreeMap<(u32, u32), Vec<u64>>,
    to: BTreeMap<(u32, u32), (u64, u64)>,
    transfers: u64,
}

impl Flows {
    fn of(plan: &PlanView) -> Self {
        let mut flows = Flows {
            from: BTreeMap::new(),
            to: BTreeMap::new(),
            transfers: plan.transfers.len() as u64,
        };
        for (i, t) in plan.transfers.iter().enumerate() {
            flows.from.entry(t.from).or_default().push(i as u64);
            flows.to.insert(t.to, (i as u64, u64::from(t.periods)));
        }
        flows
    }

    /// A transfer has a number of its own in each period that it is sent in.
    fn write(&self, event: &mut Message, place: (u32, u32), period: u64) {
        let id = |transfer: u64, sent: u64| sent * self.transfers + transfer + 1;
        for &transfer in self.from.get(&place).into_iter().flatten() {
            event.fixed(field::event::FLOW, id(transfer, period));
        }
        if let Some(&(transfer, periods)) = self.to.get(&place)
            && let Some(sent) = period.checked_sub(periods)
        {
            event.fixed(field::event::FLOW_END, id(transfer, sent));
        }
    }
}
