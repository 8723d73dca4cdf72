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

    // Periods that were not recorded leave gaps, over which no time between two is taken.
    let mut period_gaps = Times::default();
    for period_starts in &period_starts {
        for (period, start_ns) in period_starts {
            if let Some(next_ns) = period_starts.get(&(period + 1)) {
                period_gaps.push(*next_ns, *start_ns);
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
        let traced_lanes: Vec<&Lane> = epochs.iter().map(|e| &e.lanes[c]).collect();
        count_calls(calendar, &traced_lanes, &mut actor_calls);
        let (periods, measured) = typical_period(plan, lane, &traced_lanes);
        measured_plan.periods = measured_plan.periods.max(periods);
        measured_plan.lanes.extend(measured);
    }

    measured_plan.actors = actor_calls
        .into_iter()
        .map(|(actor, actor_calls)| actor_calls.summary(actor))
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
    // A plan's lanes are those of all calendars in a row. A device runs its slots on one of them; the others are empty.
    let first_lane: usize = calendars[..calendar].iter().map(|c| c.lanes.len()).sum();
    let lane_range = first_lane..first_lane + calendars[calendar].lanes.len();
    lane_range
        .clone()
        .find(|&l| !plan.lanes[l].slots.is_empty())
        .or_else(|| lane_range.clone().next())
}

/// From when on a device's period is counted; `first` is its first planned execution, with its number in traces.
pub(super) fn period_began(period: &Period, first: Option<(&SlotView, u32)>) -> u64 {
    // A device that begins by waiting for another one is late with it, not by itself: it is counted from where the wait
    // ends as planned, but never from before the period began.
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
    /// Keeps the time from `start_ns` to `end_ns`.
    fn push(&mut self, end_ns: u64, start_ns: u64) {
        self.0.push(end_ns.saturating_sub(start_ns));
    }

    /// So many of a hundred are not longer.
    fn at(&mut self, percent: usize) -> u64 {
        let Some(last) = self.0.len().checked_sub(1) else {
            return 0;
        };
        // Selects without sorting: O(n).
        let percentile_index = (last * percent).div_ceil(100).min(last);
        *self.0.select_nth_unstable(percentile_index).1
    }
}

/// The slots of a typical period, from those in which all are at work, and how many these are.
fn typical_period(plan: &PlanView, lane: usize, traced: &[&Lane]) -> (u64, Option<MeasuredLane>) {
    let lane_view = &plan.lanes[lane];
    let is_whole = traced.iter().any(|lane| lane.is_whole());
    let full_periods = full_periods(lane_view, traced, is_whole);
    if full_periods.is_empty() {
        return (0, None);
    }

    // A calendar that cannot be looked into, such as a GPU's, is one row.
    let executions_of_row: Vec<u64> = if is_whole {
        vec![1]
    } else {
        lane_view.slots.iter().map(executions).collect()
    };
    let mut row_times = row_times(&full_periods, &executions_of_row);

    let mut slots = Vec::new();
    for (row, times) in row_times.iter_mut().enumerate() {
        let last_slot = if is_whole {
            lane_view.slots.last()
        } else {
            lane_view.slots.get(row)
        };
        let planned_end_ns = last_slot.map_or(0, SlotView::end_ns);
        let slot = (!is_whole).then_some(row as u32);
        slots.push(times.typical_slot(slot, planned_end_ns, plan.period_ns));
    }

    let measured_lane = MeasuredLane {
        lane: lane as u32,
        busy_ns: slots.iter().map(|s| s.duration_ns).sum(),
        slots,
    };
    (full_periods.len() as u64, Some(measured_lane))
}

/// A period in which every slot of the lane was executed.
struct FullPeriod<'a> {
    period: &'a Period,
    /// From when on it is counted, see [`period_began`].
    began_ns: u64,
}

impl FullPeriod<'_> {
    fn records(&self) -> impl Iterator<Item = &Record> {
        self.period.records.iter().filter(|r| r.slot != OTHER)
    }
}

fn full_periods<'a>(
    lane_view: &LaneView,
    traced: &[&'a Lane],
    is_whole: bool,
) -> Vec<FullPeriod<'a>> {
    let executions = if is_whole { 1 } else { lane_view.executions };
    let first_slot = lane_view.slots.first().filter(|_| !is_whole);

    let mut full_periods = Vec::new();
    for period in traced.iter().flat_map(|lane| &lane.periods) {
        let mut slot_numbers = period
            .records
            .iter()
            .map(|r| r.slot)
            .filter(|&slot| slot != OTHER);
        let first_number = slot_numbers.next();
        let executed = first_number.iter().count() + slot_numbers.count();

        // Periods at the ends of a run, in which some stages have nothing to do, would pull the medians.
        if executed > 0 && executed as u64 == executions {
            let began_ns = period_began(period, first_slot.zip(first_number));
            full_periods.push(FullPeriod { period, began_ns });
        }
    }
    full_periods
}

/// Times of one row of a lane in the periods of a run.
#[derive(Default)]
struct RowTimes {
    /// From the beginning of the period.
    starts: Times,
    /// From the beginning of the period.
    ends: Times,
    lengths: Times,
    /// Ends, from when on the period is counted.
    counted_ends: Times,
}

impl RowTimes {
    /// The medians, beside the planned end.
    fn typical_slot(
        &mut self,
        slot: Option<u32>,
        planned_end_ns: u64,
        period_ns: u64,
    ) -> MeasuredSlot {
        let start_ns = self.starts.at(50);
        let end_ns = self.ends.at(50);
        let (late_ns, late) = late(self.counted_ends.at(50), planned_end_ns, period_ns);
        MeasuredSlot {
            slot,
            start_ns,
            duration_ns: end_ns.saturating_sub(start_ns),
            p99_ns: self.lengths.at(99),
            late_ns,
            late,
        }
    }
}

/// The times of each row, which stands for so many executions; of long runs from evenly chosen periods.
fn row_times(full_periods: &[FullPeriod<'_>], executions_of_row: &[u64]) -> Vec<RowTimes> {
    // Every n-th period, not the first ones: a run may become slower in time.
    let period_step = (full_periods.len() * executions_of_row.len())
        .div_ceil(TIMES)
        .max(1);
    let mut row_times: Vec<RowTimes> = executions_of_row
        .iter()
        .map(|_| RowTimes::default())
        .collect();
    for full_period in full_periods.iter().step_by(period_step) {
        let period_start_ns = full_period.period.start_ns;
        let mut records = full_period.records();
        for (times, &executions) in row_times.iter_mut().zip(executions_of_row) {
            let Some(first) = records.next() else {
                break;
            };

            // From the start of the first execution to the end of the last: a loop is one row.
            let others = records.by_ref().take(executions as usize - 1);
            let end_ns = others.last().unwrap_or(first).end_ns;

            let began_ns = full_period.began_ns;
            times.starts.push(first.start_ns, period_start_ns);
            times.ends.push(end_ns, period_start_ns);
            times.counted_ends.push(end_ns, began_ns);
            times.lengths.push(end_ns, first.start_ns);
        }
    }
    row_times
}

/// Executions that a slot of a view stands for.
fn executions(slot: &SlotView) -> u64 {
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

    fn summary(self, actor: u32) -> MeasuredActor {
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

fn count_calls(calendar: &Calendar, traced: &[&Lane], actor_calls: &mut BTreeMap<u32, Calls>) {
    // Slots are numbered through all lanes, loops entered once.
    let mut slot_actors: Vec<(Option<u32>, u64)> = Vec::new();
    for lane in &calendar.lanes {
        visit_slots(&lane.entries, |v| {
            let (act, id, ..) = parts(&v.slot.action);
            slot_actors.push(((act == Act::Fire).then_some(id), v.slot.duration_ns));
        });
    }

    let slot_records = traced
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
pub(super) struct LaneRow {
    pub(super) lane: LaneView,
    pub(super) measured: Option<MeasuredLane>,
    /// The lane's position in the plan.
    pub(super) index: usize,
}

impl LaneRow {
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
    pub(super) fn rows(&self) -> Vec<LaneRow> {
        let mut lane_rows = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            lane_rows.push(LaneRow {
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

fn measured_row(lane: &LaneView, measured: MeasuredLane, index: usize) -> LaneRow {
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

    LaneRow {
        lane,
        measured: Some(measured),
        index,
    }
}
