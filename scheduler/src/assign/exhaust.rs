//! Every placement of a tiny problem: quicker than any search, and a proof.

use super::merged::Merged;
use super::problem::Problem;
use crate::search::Control;

/// Placements between questions to the caller.
const ASK_EVERY: u64 = 256;

/// What trying all placements told.
pub(crate) struct Tried {
    /// The cheapest placement that keeps all limits, and its cost.
    pub(crate) cheapest: Option<(u64, Vec<u32>)>,
    /// Placements tried.
    pub(crate) work: u64,
    /// Whether none was left out.
    pub(crate) complete: bool,
}

/// Tries every placement, unless there are more than `limit`.
///
/// Of devices that are alike the i-th is only used beside the others of its kind.
pub(crate) fn exhaust(
    problem: &Problem,
    merged: &Merged,
    limit: u64,
    control: &Control<'_>,
) -> Tried {
    let choices: Vec<Vec<u32>> = (0..merged.units())
        .map(|u| merged.choices(u).collect())
        .collect();
    let count = choices
        .iter()
        .try_fold(1u64, |n, c| n.checked_mul(c.len() as u64));
    let mut tried = Tried {
        cheapest: None,
        work: 0,
        complete: false,
    };
    if count.is_none_or(|n| n > limit) {
        return tried;
    }
    let before: Vec<Option<usize>> = (0..merged.devices)
        .map(|d| (0..d).rev().find(|&e| merged.kind[e] == merged.kind[d]))
        .collect();
    let mut at = vec![0usize; choices.len()];
    loop {
        if tried.work.is_multiple_of(ASK_EVERY) && control.stopped() {
            return tried;
        }
        tried.work += 1;
        let placement: Vec<u32> = at.iter().zip(&choices).map(|(&i, c)| c[i]).collect();
        if is_canonical(&placement, &before)
            && let Ok(found) = problem.evaluate(&merged.expand(&placement))
            && tried.cheapest.as_ref().is_none_or(|c| found.cost < c.0)
        {
            tried.cheapest = Some((found.cost, placement));
        }
        let Some(next) = at.iter().zip(&choices).position(|(&i, c)| i + 1 < c.len()) else {
            tried.complete = true;
            return tried;
        };
        at[..next].fill(0);
        at[next] += 1;
    }
}

/// Whether each device is first used after the one of its kind before it.
fn is_canonical(placement: &[u32], before: &[Option<usize>]) -> bool {
    let first = |d: usize| placement.iter().position(|&p| p as usize == d);
    (0..before.len()).all(|d| match (before[d], first(d)) {
        (Some(twin), Some(mine)) => first(twin).is_some_and(|its| its < mine),
        _ => true,
    })
}
