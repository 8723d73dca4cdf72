//! A lower bound on the period by sets of units that cover all units.
//!
//! Asked "is there a period below t?", what one device runs is a set of units whose work and transfers take less than t
//! and whose bytes fit. If no such sets, one for each device, cover all units, even when sets may be taken in fractions,
//! then there is no such period. By linear programming duality that is so if there are prices of the units whose sum is
//! more than the sum, over the devices, of what their most expensive sets cost.
//!
//! The prices are found by column generation (Gilmore & Gomory 1961): a linear program over the sets known so far gives
//! prices, for which the most expensive set is added to them. That set is a knapsack whose weights include transfers, which
//! [`super::knapsack`] solves. Prices are rounded to integers before that: what is proved does not depend on rounding.

use good_lp::{
    Expression, ProblemVariables, Solution, SolverModel, Variable, constraint, variable,
};

use super::colocate::NetPrices;
use super::knapsack::{DeviceDemand, Knapsack};
use super::merged::MergedProblem;
use crate::search::Control;

/// Units beyond which the linear program takes too long, and sets.
const MAX_UNITS: usize = 800;
const MAX_SETS: usize = 1_500;

/// Prices are integers of about this size at most.
const PRICE_SCALE: f64 = 1e12;

/// A set must be worth so much more than the linear program thinks to be added.
const TOLERANCE: f64 = 1e-7;

/// Places from which stretches begin that are the first sets.
const STRETCHES: usize = 64;

/// Whether it is proved that no placement has a period below `below`. `labels` is what the knapsacks may still take, and
/// falls by what they took.
pub(crate) fn is_impossible(
    merged: &MergedProblem,
    below: u64,
    labels: &mut u64,
    control: &Control<'_>,
) -> bool {
    if merged.units() > MAX_UNITS || *labels == 0 {
        return false;
    }
    let Some(knapsack) = Knapsack::new(merged, below) else {
        return false;
    };
    let mut search = CoverSearch {
        merged,
        kinds: device_kinds(merged, below),
        knapsack,
        sets: Vec::new(),
    };
    search.is_impossible(labels, control)
}

/// Devices of one kind, and what their sets are chosen from.
struct DeviceKind {
    devices: usize,
    demand: DeviceDemand,
}

fn device_kinds(merged: &MergedProblem, below: u64) -> Vec<DeviceKind> {
    let prices = NetPrices::of(merged);
    let kinds = merged.devices_by_kind().into_iter().enumerate();
    kinds
        .map(|(kind, devices)| DeviceKind {
            devices: devices.len(),
            demand: DeviceDemand::of(merged, &prices, kind, devices[0], below),
        })
        .collect()
}

/// A set of units that a device of some kind may run.
struct UnitSet {
    kind: usize,
    units: Vec<usize>,
}

/// Prices that may prove that no sets cover all units.
#[derive(Clone)]
struct Prices {
    unit: Vec<f64>,
    /// What a set costs at most, by kind, as far as the sets known show.
    set: Vec<f64>,
}

impl Prices {
    /// Halfway between these prices and others.
    fn midway(&self, other: &Prices) -> Prices {
        let mean = |ours: &[f64], others: &[f64]| {
            let pairs = ours.iter().zip(others);
            pairs
                .map(|(one, other)| f64::midpoint(*one, *other))
                .collect()
        };
        Prices {
            unit: mean(&self.unit, &other.unit),
            set: mean(&self.set, &other.set),
        }
    }

    /// By how much a set costs more than known.
    fn excess(&self, set: &UnitSet) -> f64 {
        let units = set.units.iter();
        let cost: f64 = units.map(|&unit| self.unit[unit]).sum();
        cost - self.set[set.kind]
    }
}

/// What the best sets for some prices show.
struct PricedSets {
    sets: Vec<UnitSet>,
    /// What all units are worth, over what the devices can take of it.
    ratio: f64,
    is_proof: bool,
}

struct CoverSearch<'a> {
    merged: &'a MergedProblem,
    kinds: Vec<DeviceKind>,
    knapsack: Knapsack<'a>,
    sets: Vec<UnitSet>,
}

impl CoverSearch<'_> {
    fn is_impossible(&mut self, labels: &mut u64, control: &Control<'_>) -> bool {
        self.add_first_sets();
        match self.cover_the_rest(labels) {
            Some(true) => {}
            // No device can run some unit in time, whatever else it runs.
            Some(false) => return true,
            None => return false,
        }

        let mut best: Option<(f64, Prices)> = None;
        while self.sets.len() < MAX_SETS && !control.stopped() {
            // More sets only lower what the program finds: there is no proof below 1.
            let Some((worth, prices)) = self.solve_program() else {
                return false;
            };
            if worth <= 1.0 + TOLERANCE {
                return false;
            }

            // Prices between those of the program and the best so far swing less from one set to the next.
            let between = best.as_ref().map(|(_, best)| best.midway(&prices));
            let sets_before = self.sets.len();
            for tried in between.into_iter().chain([prices.clone()]) {
                let Some(found) = self.price(&tried, labels) else {
                    return false;
                };
                if found.is_proof {
                    return true;
                }
                if best.as_ref().is_none_or(|(ratio, _)| *ratio < found.ratio) {
                    best = Some((found.ratio, tried));
                }
                let sets = found.sets.into_iter();
                let new = sets.filter(|set| prices.excess(set) > TOLERANCE);
                self.sets.extend(new.collect::<Vec<_>>());
                if self.sets.len() > sets_before {
                    break;
                }
            }
            if self.sets.len() == sets_before {
                return false;
            }
        }
        false
    }

    /// Each unit that a device can run alone, and the longest stretches in the order of the units.
    fn add_first_sets(&mut self) {
        let order = &self.merged.order;
        let step = order.len().div_ceil(STRETCHES).max(1);
        for (kind, device_kind) in self.kinds.iter().enumerate() {
            let runs = |unit: usize| device_kind.demand.ticks[unit];
            let alone = order.iter().map(|&unit| vec![unit]);
            let fitting = alone.filter(|units| self.knapsack.fits(&device_kind.demand, units));
            self.sets
                .extend(fitting.map(|units| UnitSet { kind, units }));

            for first in (0..order.len()).step_by(step) {
                let mut work = 0u64;
                let mut longest = 0;
                for (length, &unit) in (1..).zip(&order[first..]) {
                    let Some(ticks) = runs(unit) else { break };
                    work += ticks;
                    if work >= self.knapsack.below {
                        break;
                    }
                    let units = &order[first..first + length];
                    if self.knapsack.fits(&device_kind.demand, units) {
                        longest = length;
                    }
                }
                if longest > 1 {
                    let units = order[first..first + longest].to_vec();
                    self.sets.push(UnitSet { kind, units });
                }
            }
        }
    }

    /// A set for each unit that is in none yet. Whether there is one for each; `None` if there are too many labels.
    fn cover_the_rest(&mut self, labels: &mut u64) -> Option<bool> {
        let mut is_covered = vec![false; self.merged.units()];
        let known_units = self.sets.iter().flat_map(|set| &set.units);
        known_units.for_each(|&unit| is_covered[unit] = true);

        for &unit in &self.merged.order {
            if is_covered[unit] {
                continue;
            }
            let mut values = vec![0; self.merged.units()];
            values[unit] = 1;
            let sets_before = self.sets.len();
            for (kind, device_kind) in self.kinds.iter().enumerate() {
                let demand = &device_kind.demand;
                let found = self.knapsack.best_set(demand, &values, 0, labels)?;
                if let Some(units) = found.units {
                    units.iter().for_each(|&unit| is_covered[unit] = true);
                    self.sets.push(UnitSet { kind, units });
                }
            }
            if self.sets.len() == sets_before {
                return Some(false);
            }
        }
        Some(true)
    }

    /// The prices for which all units are worth most, if no known set is worth more than its device's share of 1; and how
    /// much that is.
    fn solve_program(&self) -> Option<(f64, Prices)> {
        let mut variables = ProblemVariables::new();
        let unit = variables.add_vector(variable().min(0.0), self.merged.units());
        let set = variables.add_vector(variable().min(0.0), self.kinds.len());

        let worth: Expression = unit.iter().sum();
        let mut shares = Expression::from(0.0);
        for (kind, device_kind) in self.kinds.iter().enumerate() {
            shares += device_kind.devices as f64 * set[kind];
        }
        let mut program = variables
            .maximise(worth.clone())
            .using(good_lp::solvers::microlp::microlp);
        program.add_constraint(constraint!(shares <= 1.0));
        for known in &self.sets {
            let units = known.units.iter();
            let mut excess: Expression = units.map(|&index| unit[index]).sum();
            excess -= set[known.kind];
            program.add_constraint(constraint!(excess <= 0.0));
        }

        let solution = program.solve().ok()?;
        let values = |of: &[Variable]| of.iter().map(|&v| solution.value(v).max(0.0)).collect();
        let prices = Prices {
            unit: values(&unit),
            set: values(&set),
        };
        Some((solution.eval(&worth), prices))
    }

    /// The best set of each kind for these prices; `None` if there are too many labels.
    fn price(&self, prices: &Prices, labels: &mut u64) -> Option<PricedSets> {
        let whole = |price: f64| (price * PRICE_SCALE) as i64;
        let unit_prices: Vec<i64> = prices.unit.iter().map(|&price| whole(price)).collect();
        let worth: i128 = unit_prices.iter().map(|&price| i128::from(price)).sum();
        let mut taken = 0i128;
        let mut sets = Vec::new();

        for (kind, device_kind) in self.kinds.iter().enumerate() {
            let known = whole(prices.set[kind]);
            let found = self
                .knapsack
                .best_set(&device_kind.demand, &unit_prices, known, labels)?;
            taken += device_kind.devices as i128 * i128::from(found.value);
            if let Some(units) = found.units {
                sets.push(UnitSet { kind, units });
            }
        }
        Some(PricedSets {
            sets,
            ratio: worth as f64 / taken.max(1) as f64,
            is_proof: worth > taken,
        })
    }
}
