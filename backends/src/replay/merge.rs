//! Whether a calendar of several segments can run as one: whether nobody deadlocks when the device receives all that a
//! period needs before it gives out anything. The verifier, which knows, is asked.

use zbmd_ir::verify::{MAX_ERRORS, check_plan};
use zbmd_ir::{Action, Calendar, Entry, Lane, LaneKind, Plan, PlanId, Program, Slot};

use super::expand::{Segment, What};

/// Executions beyond which asking would take longer than it is worth.
const MAX_ASKED: usize = 1 << 14;

/// One segment, if that is safe; otherwise what was given.
pub(super) fn merge(
    program: &Program,
    plan: &Plan,
    calendar: &Calendar,
    segments: Vec<Segment>,
) -> Vec<Segment> {
    let slots: usize = segments.iter().map(|s| s.execs.len()).sum();
    if segments.len() < 2 || slots > MAX_ASKED || !is_safe(program, plan, calendar, &segments) {
        return segments;
    }
    vec![Segment {
        execs: segments.into_iter().flat_map(|s| s.execs).collect(),
    }]
}

fn is_safe(program: &Program, plan: &Plan, calendar: &Calendar, segments: &[Segment]) -> bool {
    let mut asked = plan.clone();
    for other in asked
        .calendars
        .iter_mut()
        .filter(|c| c.device == calendar.device)
    {
        other.lanes = vec![Lane {
            kind: LaneKind::Compute,
            entries: entries(segments),
        }];
    }
    let checked = check_plan(
        &program.graph,
        &program.machine,
        &program.blobs,
        PlanId(0),
        &asked,
    );
    // On the device everything keeps its place, so order, memory and times there are not what is asked about. With any
    // other error, or too many, the answer may be missing.
    let beside_the_point = ["V05", "V06", "V09"];
    checked.err().is_none_or(|errors| {
        errors.len() < MAX_ERRORS
            && errors
                .iter()
                .all(|e| beside_the_point.iter().any(|b| e.code().starts_with(b)))
    })
}

/// All receipts, then all work, then all that is given out, each in the calendar's order.
fn entries(segments: &[Segment]) -> Vec<Entry> {
    let mut slots: Vec<(u8, Slot)> = Vec::new();
    for exec in segments.iter().flat_map(|s| &s.execs) {
        let (turn, action) = match exec.what {
            What::Recv { ring, first, count } => (0, Action::Recv { ring, first, count }),
            What::Fire {
                actor,
                first,
                count,
            } => (
                1,
                Action::Fire {
                    actor,
                    first,
                    count,
                },
            ),
            What::Carry { buffer } => (1, Action::Carry { buffer }),
            What::Send { ring, first, count } => (2, Action::Send { ring, first, count }),
            What::Release { ring } => (2, Action::Release { ring }),
        };
        slots.push((
            turn,
            Slot {
                stage: exec.stage,
                start_ns: 0,
                duration_ns: 0,
                action,
            },
        ));
    }
    slots.sort_by_key(|(turn, _)| *turn);
    slots
        .into_iter()
        .map(|(_, slot)| Entry::Slot(slot))
        .collect()
}
