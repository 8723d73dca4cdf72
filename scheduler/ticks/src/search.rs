//! The shortest period at which some placement has a timetable.

use zbmd_ir::{ActorId, TiVec};
use zbmd_ticks::{NodeId, TickPlan};

use crate::TickScheduleError;
use crate::attempt::{Timetable, timetable};
use crate::buffers;
use crate::order::{Firing, firing_order};
use crate::problem::Problem;

/// Periods that are tried between one that fails and one that does.
const MAX_STEPS: usize = 12;

/// The plan with the shortest period; of those with equal periods, that of the placement that comes first.
pub(crate) fn best_plan(
    problem: &Problem<'_>,
    bound: u64,
    placements: &[TiVec<ActorId, NodeId>],
) -> Result<TickPlan, TickScheduleError> {
    let order = firing_order(problem);
    let mut best: Option<TickPlan> = None;
    let mut refusal = None;
    for placement in placements {
        let limit = best.as_ref().map(|plan| plan.period);
        if limit == Some(bound) {
            break;
        }
        let Some((period, found)) = shortest(problem, bound, placement, &order, limit) else {
            continue;
        };
        match buffers::complete(problem, placement, period, found) {
            Ok(plan) => best = Some(plan),
            Err(error) => refusal = Some(error),
        }
    }
    best.ok_or_else(|| {
        refusal.unwrap_or(TickScheduleError::TooLarge {
            what: "ticks",
            found: u64::MAX,
            max: MAX_PERIOD,
        })
    })
}

/// Longest period that is looked at.
const MAX_PERIOD: u64 = 1 << 42;

/// The shortest period that a search by halves finds, below a limit.
fn shortest(
    problem: &Problem<'_>,
    bound: u64,
    placement: &TiVec<ActorId, NodeId>,
    order: &[Firing],
    limit: Option<u64>,
) -> Option<(u64, Timetable)> {
    let attempt = |period: u64| timetable(problem, placement, order, period);
    if let Some(found) = attempt(bound) {
        return Some((bound, found));
    }

    let mut best = match limit {
        // A placement that is not a little better is not worth a search.
        Some(limit) => {
            let period = limit - (limit / 50).max(1);
            (period > bound).then(|| attempt(period).map(|found| (period, found)))??
        }
        None => {
            // With a period in which nothing overlaps, everything has its place.
            let apart = attempt(MAX_PERIOD)?;
            let period = apart.end.max(bound);
            (period, attempt(period).unwrap_or(apart))
        }
    };
    let mut failed = bound;
    for _ in 0..MAX_STEPS {
        if best.0 - failed <= 1 {
            break;
        }
        let middle = failed + (best.0 - failed) / 2;
        match attempt(middle) {
            Some(found) => best = (middle, found),
            None => failed = middle,
        }
    }
    Some(best)
}
