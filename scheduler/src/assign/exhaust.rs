//! Every placement of a tiny problem: quicker than any search, and a proof.

use super::merged::MergedProblem;
use super::problem::PlacementProblem;
use crate::search::Control;

/// Placements between questions to the caller.
const ASK_EVERY: u64 = 256;

/// What trying all placements gave.
pub(crate) struct Enumeration {
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
    problem: &PlacementProblem,
    merged: &MergedProblem,
    limit: u64,
    control: &Control<'_>,
) -> Enumeration {
    let choices: Vec<Vec<u32>> = (0..merged.units())
        .map(|unit| merged.choices(unit).collect())
        .collect();
    let placements = choices.iter().try_fold(1u64, |product, devices| {
        product.checked_mul(devices.len() as u64)
    });
    let mut enumeration = Enumeration {
        cheapest: None,
        work: 0,
        complete: false,
    };
    if placements.is_none_or(|placements| placements > limit) {
        return enumeration;
    }
    let mut twin_before: Vec<Option<usize>> = vec![None; merged.devices];
    for devices in merged.devices_by_kind() {
        for pair in devices.windows(2) {
            twin_before[pair[1]] = Some(pair[0]);
        }
    }

    // Counts through all choices, the first unit's as the lowest digit.
    let mut digits = vec![0usize; choices.len()];
    loop {
        if enumeration.work.is_multiple_of(ASK_EVERY) && control.stopped() {
            return enumeration;
        }
        enumeration.work += 1;

        let devices = digits.iter().zip(&choices);
        let placement: Vec<u32> = devices.map(|(&digit, choice)| choice[digit]).collect();
        if is_canonical(&placement, &twin_before)
            && let Ok(found) = problem.evaluate(&merged.expand(&placement))
        {
            let known = enumeration.cheapest.as_ref();
            if known.is_none_or(|(cost, _)| found.cost < *cost) {
                enumeration.cheapest = Some((found.cost, placement));
            }
        }

        let mut radices = digits.iter().zip(&choices);
        let Some(next) = radices.position(|(&digit, choice)| digit + 1 < choice.len()) else {
            enumeration.complete = true;
            return enumeration;
        };
        digits[..next].fill(0);
        digits[next] += 1;
    }
}

/// Whether each device is first used after the one of its kind before it.
fn is_canonical(placement: &[u32], twin_before: &[Option<usize>]) -> bool {
    let first_use = |device: usize| placement.iter().position(|&used| used as usize == device);

    twin_before.iter().enumerate().all(|(device, twin)| {
        let (Some(twin), Some(own_use)) = (*twin, first_use(device)) else {
            return true;
        };
        first_use(twin).is_some_and(|twin_use| twin_use < own_use)
    })
}
