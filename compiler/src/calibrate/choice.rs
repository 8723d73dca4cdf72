//! Which variant of a kernel is the best, and by how much another one must be better.

use crate::costs::MeasuredCost;

/// How much less of the default's time a variant must take to be chosen; more where measurements vary more.
pub(super) const MIN_GAIN: f64 = 0.03;

/// What a variant takes as a fraction of what another takes: in calls of so many firings, or the mean of single firings and
/// long calls.
pub(super) fn relative_time(
    cost: &MeasuredCost,
    other: &MeasuredCost,
    firings: Option<u64>,
) -> f64 {
    const LONG_CALL_FIRINGS: f64 = 64.0;
    let in_calls = |firings: f64| call_ps(cost, firings) / call_ps(other, firings).max(1.0);
    match firings {
        Some(firings) => in_calls(firings as f64),
        None => (in_calls(1.0) + in_calls(LONG_CALL_FIRINGS)) / 2.0,
    }
}

/// Picoseconds of a call of several firings.
fn call_ps(cost: &MeasuredCost, firings: f64) -> f64 {
    cost.call_ps as f64 + firings * cost.firing_ps as f64
}

/// The best of the costs of a kernel's variants, of which the first is the default one's: that, unless another is
/// clearly better.
pub(super) fn best_cost(costs: &[MeasuredCost], firings: Option<u64>) -> Option<&MeasuredCost> {
    let default_cost = costs.first()?;
    let relative = |cost: &MeasuredCost| relative_time(cost, default_cost, firings);
    let quickest_cost = costs
        .iter()
        .min_by(|first, second| relative(first).total_cmp(&relative(second)))?;

    let noise_fraction = quickest_cost
        .spread_percent
        .max(default_cost.spread_percent)
        / 100.0;
    let is_clearly_better = relative(quickest_cost) <= 1.0 - noise_fraction.max(MIN_GAIN);
    Some(if is_clearly_better {
        quickest_cost
    } else {
        default_cost
    })
}
