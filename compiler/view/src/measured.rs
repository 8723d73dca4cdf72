//! A run beside its plans: the trace that `zbmd-run --trace` wrote, summed up for every format.
//!
//! A measured period of a device is laid over the planned one at the moment at which the device began it. A slot is
//! *late* by the time from the planned to the measured end, both counted from there, or, where the device first had to
//! wait for another one's tokens, from where this wait ends as planned: what came of slots that took longer and of
//! waits within the period, but not of a device that runs behind another one, as pipelining has it.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;
use zbmd_ir::trace::{Lane, OTHER, Period, Record, Trace, TraceEpoch, WHOLE};
use zbmd_ir::walk::visit_slots;
use zbmd_ir::{Calendar, PlanId, Program};

use super::expand::parts;
use super::{Act, LaneView, PlanView, SlotView, View};

/// A slot is called late when it is by more than the period divided by this.
const LATE: u64 = 20;
/// Times that are kept of one plan to take medians of; with more, periods are left out, evenly.
const TIMES: usize = 4_000_000;

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MeasuredRun {
    /// Epochs of this bundle's program.
    pub epochs: u64,
    /// Epochs of other programs that the run went over to; they are not shown.
    pub other_epochs: u64,
    /// Periods, counted on every device.
    pub periods: u64,
    /// Periods that were run but not recorded.
    pub dropped: u64,
    /// Whether the trace goes to the end of the run.
    pub complete: bool,
    /// What the supervisor decided and saw: when, counted from the first epoch's beginning, and its name.
    pub events: Vec<(u64, String)>,
}

/// How the periods of one plan really went.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MeasuredPlan {
    /// Periods in which every stage was at work.
    pub periods: u64,
    /// Median time from the beginning of a period to that of the next.
    pub period_ns: u64,
    /// 99 of 100 are not longer.
    pub period_p99_ns: u64,
    /// A typical period of each device.
    pub lanes: Vec<MeasuredLane>,
    /// Calls of actors, in all periods.
    pub actors: Vec<MeasuredActor>,
}

/// A typical period of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MeasuredLane {
    /// The lane of the plan.
    pub lane: u32,
    /// Time in all slots, waits included.
    pub busy_ns: u64,
    /// A slot for each of the lane's, in the same order; one for all where the device cannot be looked into.
    pub slots: Vec<MeasuredSlot>,
}

/// A slot in a typical period: medians, so that slots lie as they did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MeasuredSlot {
    /// The slot of the lane; none where it stands for all.
    pub slot: Option<u32>,
    /// When it began, from the beginning of the period.
    pub start_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// 99 of 100 did not take longer.
    pub p99_ns: u64,
    /// From the planned to the measured end.
    pub late_ns: i64,
    /// Whether that is worth a colour.
    pub late: bool,
}

/// Calls of an actor.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MeasuredActor {
    /// The actor.
    pub actor: u32,
    /// Calls.
    pub calls: u64,
    /// Planned duration of a call, in the mean.
    pub planned_ns: u64,
    /// Measured median.
    pub p50_ns: u64,
    /// 99 of 100 did not take longer.
    pub p99_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

impl View {
    /// Lays a run beside the plans. The trace is one of `program`, whose view this is: see [`Trace::of_program`], which
    /// also says how many epochs are `others`. O(records).
    pub fn measure(&mut self, program: &Program, trace: &Trace, others: usize) {
        let all_lanes = || trace.epochs.iter().flat_map(|e| &e.lanes);
        let begin_ns = trace.epochs.first().map_or(0, |e| e.begin.at_ns);
        self.measured = Some(MeasuredRun {
            epochs: trace.epochs.len() as u64,
            other_epochs: others as u64,
            periods: all_lanes().map(|l| l.periods.len() as u64).sum(),
            dropped: all_lanes().map(|l| l.dropped).sum(),
            complete: trace.is_complete,
            events: (trace.events.iter())
                .map(|e| (e.at_ns.saturating_sub(begin_ns), e.name.clone()))
                .collect(),
        });
        for (plan_id, plan) in self.plans.iter_mut().enumerate() {
            let plan_id = PlanId(plan_id as u32);
            let plan_epochs: Vec<&TraceEpoch> = trace
                .epochs
                .iter()
                .filter(|e| e.begin.plan == plan_id)
                .collect();
            if !plan_epochs.is_empty() {
                plan.measured = Some(measure(
                    &program.plans[plan_id].calendars,
                    plan,
                    &plan_epochs,
                ));
            }
        }
    }
}

fn measure(calendars: &[Calendar], plan: &PlanView, epochs: &[&TraceEpoch]) -> MeasuredPlan {
    let period_starts: Vec<BTreeMap<u64, u64>> =
        epochs.iter().map(|e| period_starts_of(e)).collect();
    let mut period_gaps = Times::default();
    for period_starts in &period_starts {
        for (period, start_ns) in period_starts {
            if let Some(next_ns) = period_starts.get(&(period + 1)) {
                period_gaps.0.push(next_ns.saturating_sub(*start_ns));
            }
        }
    }

    let mut measured_plan = MeasuredPlan {
        period_ns: period_gaps.at(50),
        period_p99_ns: period_gaps.at(99),
        ..MeasuredPlan::default()
    };

    let mut actor_calls: BTreeMap<u32, Calls> = BTreeMap::new();
    for (c, calendar) in calendars.iter().enumerate() {
        let Some(lane) = lane_of(plan, calendars, c) else {
            continue;
        };
        let told_lanes: Vec<&Lane> = epochs.iter().map(|e| &e.lanes[c]).collect();
        count_calls(calendar, &told_lanes, &mut actor_calls);
        let (periods, measured) = typical_period(plan, lane, &told_lanes);
        measured_plan.periods = measured_plan.periods.max(periods);
        measured_plan.lanes.extend(measured);
    }

    measured_plan.actors = actor_calls
        .into_iter()
        .map(|(actor, actor_calls)| actor_calls.told(actor))
        .collect();
    measured_plan
}

/// When the first device began each period.
fn period_starts_of(epoch: &TraceEpoch) -> BTreeMap<u64, u64> {
    let mut start_by_period: BTreeMap<u64, u64> = BTreeMap::new();
    for period in epoch.lanes.iter().flat_map(|l| &l.periods) {
        let period_start = start_by_period
            .entry(period.number)
            .or_insert(period.start_ns);
        *period_start = period.start_ns.min(*period_start);
    }
    start_by_period
}

/// The lane of the view that has the slots of a calendar.
pub(super) fn lane_of(plan: &PlanView, calendars: &[Calendar], calendar: usize) -> Option<usize> {
    let first_lane: usize = calendars[..calendar].iter().map(|c| c.lanes.len()).sum();
    let lane_range = first_lane..first_lane + calendars[calendar].lanes.len();
    lane_range
        .clone()
        .find(|&l| !plan.lanes[l].slots.is_empty())
        .or_else(|| lane_range.clone().next())
}

/// From when on a device's period is counted; `first` is its first planned execution, with its number in traces.
pub(super) fn period_began(period: &Period, first: Option<(&SlotView, u32)>) -> u64 {
    let first_record = period.records.iter().find(|r| r.slot != OTHER);
    match (first_record, first) {
        (Some(first_record), Some((slot, number)))
            if slot.act == Act::Recv && first_record.slot == number =>
        {
            first_record
                .end_ns
                .saturating_sub(slot.end_ns())
                .max(period.start_ns)
        }
        _ => period.start_ns,
    }
}

/// How late something is that ended so long after the beginning of a period.
pub(super) fn late(end_ns: u64, planned_end_ns: u64, period_ns: u64) -> (i64, bool) {
    let late_ns = end_ns as i64 - planned_end_ns as i64;
    (late_ns, late_ns > (period_ns / LATE) as i64)
}

/// Times to take quantiles of.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    /// So many of a hundred are not longer.
    fn at(&mut self, percent: usize) -> u64 {
        let Some(last) = self.0.len().checked_sub(1) else {
            return 0;
        };
        let percentile_index = (last * percent).div_ceil(100).min(last);
        *self.0.select_nth_unstable(percentile_index).1
    }
}

/// The slots of a typical period, from those in which all are at work, and how many these are.
fn typical_period(plan: &PlanView, lane: usize, told: &[&Lane]) -> (u64, Option<MeasuredLane>) {
    let lane_view = &plan.lanes[lane];
    let is_whole = told.iter().any(|lane| lane.is_whole());
    let execution_count = if is_whole { 1 } else { lane_view.executions };
    let measured_slots = |p: &Period| p.records.iter().filter(|r| r.slot != OTHER).count() as u64;
    let first_slot = lane_view.slots.first().filter(|_| !is_whole);
    let full_periods: Vec<(&Period, u64)> = told
        .iter()
        .flat_map(|lane| &lane.periods)
        .filter(|p| measured_slots(p) == execution_count)
        .map(|p| {
            let slot_number = p.records.iter().map(|r| r.slot).find(|slot| *slot != OTHER);
            (p, period_began(p, first_slot.zip(slot_number)))
        })
        .collect();
    if full_periods.is_empty() || execution_count == 0 {
        return (0, None);
    }
    let row_count = if is_whole { 1 } else { lane_view.slots.len() };
    let period_step = (full_periods.len() * row_count).div_ceil(TIMES);
    let mut row_times: Vec<[Times; 4]> = (0..row_count).map(|_| Default::default()).collect();
    for (period, began_ns) in full_periods.iter().step_by(period_step) {
        let mut records = period.records.iter().filter(|r| r.slot != OTHER);
        for (row, [starts, ends, lengths, after]) in row_times.iter_mut().enumerate() {
            let is_covered = if is_whole {
                1
            } else {
                covers_period(&lane_view.slots[row])
            };
            let Some(first_slot) = records.next() else {
                break;
            };
            let last_record = records
                .by_ref()
                .take(is_covered as usize - 1)
                .last()
                .unwrap_or(first_slot);
            starts
                .0
                .push(first_slot.start_ns.saturating_sub(period.start_ns));
            ends.0
                .push(last_record.end_ns.saturating_sub(period.start_ns));
            after.0.push(last_record.end_ns.saturating_sub(*began_ns));
            lengths
                .0
                .push(last_record.end_ns.saturating_sub(first_slot.start_ns));
        }
    }

    let slot = |(row, [starts, ends, lengths, after]): (usize, &mut [Times; 4])| {
        let (start_ns, end_ns) = (starts.at(50), ends.at(50));
        let planned_end_ns = match is_whole {
            true => lane_view.slots.last().map_or(0, SlotView::end_ns),
            false => lane_view.slots[row].end_ns(),
        };
        let (late_ns, late) = late(after.at(50), planned_end_ns, plan.period_ns);
        MeasuredSlot {
            slot: (!is_whole).then_some(row as u32),
            start_ns,
            duration_ns: end_ns.saturating_sub(start_ns),
            p99_ns: lengths.at(99),
            late_ns,
            late,
        }
    };

    let measured_slots: Vec<MeasuredSlot> = row_times.iter_mut().enumerate().map(slot).collect();
    let busy_ns = measured_slots.iter().map(|s| s.duration_ns).sum();
    (
        full_periods.len() as u64,
        Some(MeasuredLane {
            lane: lane as u32,
            busy_ns,
            slots: measured_slots,
        }),
    )
}

/// Executions that a slot of a view stands for.
fn covers_period(slot: &SlotView) -> u64 {
    if slot.act == Act::Loop { slot.count } else { 1 }
}

/// Calls of one actor.
struct Calls {
    measured: Histogram<u64>,
    planned_ns: u64,
}

impl Calls {
    fn new() -> Self {
        // An error under 1 %, up to more than an hour.
        let measured = Histogram::new_with_bounds(1, 1 << 42, 2);
        Self {
            measured: measured.expect("bounds and precision are constants"),
            planned_ns: 0,
        }
    }

    fn told(self, actor: u32) -> MeasuredActor {
        let Self {
            measured,
            planned_ns,
        } = self;
        let calls = measured.len();
        MeasuredActor {
            actor,
            calls,
            planned_ns: planned_ns / calls.max(1),
            p50_ns: measured.value_at_quantile(0.5),
            p99_ns: measured.value_at_quantile(0.99),
            max_ns: measured.max(),
        }
    }
}

fn count_calls(calendar: &Calendar, told: &[&Lane], actor_calls: &mut BTreeMap<u32, Calls>) {
    // Slots are numbered through all lanes, loops entered once.
    let mut slot_actors: Vec<(Option<u32>, u64)> = Vec::new();
    for lane in &calendar.lanes {
        visit_slots(&lane.entries, |v| {
            let (act, id, ..) = parts(&v.slot.action);
            slot_actors.push(((act == Act::Fire).then_some(id), v.slot.duration_ns));
        });
    }

    let slot_records = told
        .iter()
        .flat_map(|lane| &lane.periods)
        .flat_map(|p| &p.records);
    for &Record {
        slot,
        start_ns,
        end_ns,
    } in slot_records.filter(|r| r.slot < WHOLE)
    {
        let Some(&(Some(actor), planned_ns)) = slot_actors.get(slot as usize) else {
            continue;
        };
        let actor_calls = actor_calls.entry(actor).or_insert_with(Calls::new);
        actor_calls
            .measured
            .saturating_record(end_ns.saturating_sub(start_ns).max(1));
        actor_calls.planned_ns = actor_calls.planned_ns.saturating_add(planned_ns);
    }
}

/// A row of a drawing: a lane as planned, or as it was.
pub(super) struct Row {
    pub(super) lane: LaneView,
    pub(super) measured: Option<MeasuredLane>,
    /// The lane's position in the plan.
    pub(super) index: usize,
}

impl Row {
    /// How a slot went, if this is a lane as it was.
    pub(super) fn of(&self, slot: usize) -> Option<&MeasuredSlot> {
        self.measured.as_ref()?.slots.get(slot)
    }

    pub(super) fn is_late(&self, slot: usize) -> bool {
        self.of(slot).is_some_and(|m| m.late)
    }
}

/// The kind of a lane as it was.
pub(super) const MEASURED: &str = "measured";

impl PlanView {
    /// The lanes, each followed by how it really went.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut lane_rows = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            lane_rows.push(Row {
                lane: lane.clone(),
                measured: None,
                index,
            });
            let measured_lanes = self.measured.iter().flat_map(|m| &m.lanes);
            for measured in measured_lanes.filter(|m| m.lane as usize == index) {
                lane_rows.push(measured_row(lane, measured.clone(), index));
            }
        }

        lane_rows
    }
}

fn measured_row(lane: &LaneView, measured: MeasuredLane, index: usize) -> Row {
    let slot = |m: &MeasuredSlot| {
        let whole = || SlotView {
            start_ns: 0,
            duration_ns: 0,
            stage: 0,
            act: Act::Loop,
            id: lane
                .slots
                .iter()
                .find(|s| s.act == Act::Fire)
                .map_or(0, |s| s.id),
            first: 0,
            count: lane.executions,
        };

        let planned = m.slot.and_then(|s| lane.slots.get(s as usize));
        let slot = planned.cloned().unwrap_or_else(whole);
        SlotView {
            start_ns: m.start_ns,
            duration_ns: m.duration_ns,
            ..slot
        }
    };

    let lane = LaneView {
        device: lane.device,
        kind: MEASURED,
        busy_ns: measured.busy_ns,
        executions: lane.executions,
        slots: measured.slots.iter().map(slot).collect(),
    };

    Row {
        lane,
        measured: Some(measured),
        index,
    }
}
