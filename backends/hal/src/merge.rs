//! Whether a calendar of several segments can run as one: whether no device deadlocks when this one receives all that a
//! period needs before it sends anything. The verifier, which knows, is asked.

use zbmd_ir::verify::{MAX_ERRORS, check_plan};
use zbmd_ir::{Action, Calendar, Entry, Lane, LaneKind, Plan, PlanId, Program, Slot};

use super::expand::{SlotExecution, SlotSegment};

/// Executions beyond which the verifier would take longer than the answer is worth.
const MAX_CHECKED: usize = 1 << 14;

/// One segment, if that is safe; otherwise the given ones.
pub(super) fn merge_segments(
    program: &Program,
    plan: &Plan,
    calendar: &Calendar,
    segments: Vec<SlotSegment>,
) -> Vec<SlotSegment> {
    let execution_count: usize = segments
        .iter()
        .map(|segment| segment.executions.len())
        .sum();
    if segments.len() < 2
        || execution_count > MAX_CHECKED
        || !is_merge_safe(program, plan, calendar, &segments)
    {
        return segments;
    }
    vec![SlotSegment {
        executions: segments
            .into_iter()
            .flat_map(|segment| segment.executions)
            .collect(),
    }]
}

fn is_merge_safe(
    program: &Program,
    plan: &Plan,
    calendar: &Calendar,
    segments: &[SlotSegment],
) -> bool {
    let mut merged_plan = plan.clone();
    for own in merged_plan
        .calendars
        .iter_mut()
        .filter(|other| other.device == calendar.device)
    {
        own.lanes = vec![Lane {
            kind: LaneKind::Compute,
            entries: merged_entries(segments),
        }];
    }

    let checked = check_plan(
        &program.graph,
        &program.machine,
        &program.blobs,
        PlanId(0),
        &merged_plan,
    );
    // On the device everything keeps its place, so errors of order, memory and times (of fetches as well) are expected
    // here. With any other error, or too many, the answer may be missing.
    let ignored_codes = ["V05", "V06", "V09", "V1209"];
    checked.err().is_none_or(|errors| {
        errors.len() < MAX_ERRORS
            && errors.iter().all(|error| {
                ignored_codes
                    .iter()
                    .any(|prefix| error.code().starts_with(prefix))
            })
    })
}

/// All receipts, then all work, then everything that is handed over, each in the calendar's order.
fn merged_entries(segments: &[SlotSegment]) -> Vec<Entry> {
    let executions = segments.iter().flat_map(|segment| &segment.executions);
    let mut slots: Vec<(u8, Slot)> = executions.map(ranked_slot).collect();
    slots.sort_by_key(|(rank, _)| *rank);
    slots
        .into_iter()
        .map(|(_, slot)| Entry::Slot(slot))
        .collect()
}

/// An execution as a slot without times, and its place among receipts (0), work (1) and what is handed over (2).
fn ranked_slot(execution: &SlotExecution) -> (u8, Slot) {
    let rank = match execution.action {
        Action::Recv { .. } => 0,
        Action::Fire { .. }
        | Action::Carry { .. }
        | Action::Fetch { .. }
        | Action::Await { .. } => 1,
        Action::Send { .. } | Action::Release { .. } => 2,
    };
    let slot = Slot {
        stage: execution.stage,
        start_ns: 0,
        duration_ns: 0,
        action: execution.action,
    };
    (rank, slot)
}
