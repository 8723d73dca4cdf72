//! Simulated annealing over placements.

use super::merged::Merged;
use super::problem::Problem;
use super::state::State;
use crate::search::rng::Rng;
use crate::search::{Control, exp_approx};

/// Steps between questions to the caller.
const ASK_EVERY: u64 = 1024;

/// What the annealing minimises: figures as fractions of typical ones.
pub(crate) struct Energy<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) merged: &'a Merged,
    /// Whether latency matters: it is dear to compute.
    pub(crate) latency: bool,
}

impl Energy<'_> {
    /// The cost; whether all limits hold; and the smooth energy.
    fn of(&self, state: &State<'_>) -> (u64, bool, f64) {
        let latency = if self.latency {
            self.problem
                .latency(&self.merged.expand(&state.placement))
                .unwrap_or(u64::MAX / 4)
        } else {
            0
        };
        let period = state.period();
        let cost = self.problem.cost(period, latency, state.most_bytes());
        let late = latency.saturating_sub(self.problem.max_latency.unwrap_or(u64::MAX));
        let excess = state.excess();
        let weights = self.problem.objective;
        let smooth = weights.period as f64 * (norm(&state.load) - period as f64)
            + weights.memory as f64 * (norm(&state.bytes) - state.most_bytes() as f64);
        let room: u64 = self
            .merged
            .capacity
            .iter()
            .fold(1, |sum: u64, c| sum.saturating_add(*c));
        let over = excess as f64 / room as f64
            + late as f64 / self.problem.max_latency.unwrap_or(1).max(1) as f64;
        let energy = (cost as f64 + smooth) * (1.0 + 20.0 * over);
        (cost, excess == 0 && late == 0, energy)
    }
}

/// The 16-norm: near the largest, with a slope for the others. Square roots are exact on every platform.
fn norm(values: &[u64]) -> f64 {
    let most = values.iter().copied().max().unwrap_or(0).max(1) as f64;
    let sum: f64 = values
        .iter()
        .map(|&v| {
            let x = v as f64 / most;
            let x4 = x * x * x * x;
            x4 * x4 * x4 * x4
        })
        .sum();
    most * sum.sqrt().sqrt().sqrt().sqrt()
}

/// The best placement that keeps all limits, or if there is none so far the nearest.
pub(crate) struct Best {
    pub(crate) placement: Vec<u32>,
    pub(crate) cost: u64,
    pub(crate) feasible: bool,
    energy: f64,
}

impl Best {
    /// How far from keeping all limits, for comparison.
    pub(crate) fn distance(&self) -> f64 {
        self.energy
    }
}

/// Anneals from a placement for `steps` moves and returns the best on the way.
///
/// Moves put a unit somewhere else, there where a neighbour is, or swap two units.
pub(crate) fn anneal(
    energy: &Energy<'_>,
    first: Vec<u32>,
    bound: u64,
    (steps, seed, heat): (u64, u64, f64),
    control: &mut Control<'_>,
) -> Best {
    let merged = energy.merged;
    let mut rng = Rng::new(seed);
    let choices: Vec<Vec<u32>> = (0..merged.units())
        .map(|u| merged.choices(u).collect())
        .collect();
    let movable: Vec<usize> = (0..merged.units())
        .filter(|&u| choices[u].len() > 1)
        .collect();
    let mut state = State::new(merged, first);
    let (cost, feasible, mut now) = energy.of(&state);
    let mut best = Best {
        placement: state.placement.clone(),
        cost,
        feasible,
        energy: now,
    };
    if movable.is_empty() {
        return best;
    }
    let hot = best.energy * heat;
    for step in 0..steps {
        if best.feasible && best.cost <= bound || step % ASK_EVERY == 0 && control.stopped() {
            break;
        }
        let left = 1.0 - step as f64 / steps as f64;
        let temperature = hot * left * left * left;
        let unit = movable[rng.below(movable.len())];
        let home = state.placement[unit];
        let mut other = None;
        match rng.below(4) {
            0 => state.relocate(unit, choices[unit][rng.below(choices[unit].len())]),
            1 => {
                let with = movable[rng.below(movable.len())];
                let there = state.placement[with];
                if there == home
                    || !choices[unit].contains(&there)
                    || !choices[with].contains(&home)
                {
                    continue;
                }
                other = Some((with, there));
                state.relocate(unit, there);
                state.relocate(with, home);
            }
            kind => {
                let Some(near) = neighbour(merged, unit, &mut rng) else {
                    continue;
                };
                let there = state.placement[near];
                if there == home || !choices[unit].contains(&there) {
                    continue;
                }
                state.relocate(unit, there);
                // Half the time the neighbour makes room.
                if kind == 3 && choices[near].len() > 1 {
                    other = Some((near, there));
                    state.relocate(near, choices[near][rng.below(choices[near].len())]);
                }
            }
        }
        let (cost, feasible, found) = energy.of(&state);
        let worse = found - now;
        if worse <= 0.0 || rng.unit() < exp_approx(worse / temperature.max(1e-9)) {
            now = found;
            let better = match (feasible, best.feasible) {
                (true, true) => cost < best.cost,
                (false, false) => found < best.energy,
                (new, _) => new,
            };
            if better {
                if feasible {
                    control.report("annealing", cost, bound, step);
                }
                best = Best {
                    placement: state.placement.clone(),
                    cost,
                    feasible,
                    energy: found,
                };
            }
        } else {
            if let Some((with, there)) = other {
                state.relocate(with, there);
            }
            state.relocate(unit, home);
        }
    }
    best
}

/// A random unit that shares a net with this one.
fn neighbour(merged: &Merged, unit: usize, rng: &mut Rng) -> Option<usize> {
    let nets = &merged.nets_of[unit];
    if nets.is_empty() {
        return None;
    }
    let net = &merged.nets[nets[rng.below(nets.len())]];
    let near = if net.from == unit {
        net.to[rng.below(net.to.len())]
    } else {
        net.from
    };
    Some(near)
}
