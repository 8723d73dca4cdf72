//! Transfers that a device cannot avoid, shared out among the units that it runs.
//!
//! Asked "is there a period below t?", a device with work w and transfers c has w + c < t, so it cannot run everything,
//! and what it runs is cut off from the rest. The least transfers d of any such device that runs a unit follow from minimum
//! cuts: for every weight l below 1 of the work, c + l w is at least the least cut around the unit, so c is at least
//! (cut - l t) / (1 - l) (Lagrangian relaxation of w + c < t). A device whose units have the least transfers d takes at
//! least the sum of ticks t / (t - d): as c is at least every d and w less than t - c, the share d / (t - d) of each tick
//! of work is at most c in all. So units with their ticks raised in that way, and no transfers, bound the period.

use super::colocate::NetPrices;
use super::merged::MergedProblem;

/// Weights of the work that are tried, in parts of 1,024: finer where most networks have the best one.
const WEIGHTS: [u64; 9] = [256, 128, 96, 64, 48, 32, 24, 16, 8];
const WEIGHT_UNIT: u64 = 1_024;

/// Least ticks that a device spends on transfers if it runs a unit and takes less than a known period.
pub(super) struct LeastTransfers {
    /// By kind of devices, then by unit.
    of_kind: Vec<Vec<u64>>,
    /// Unit of each node, in the problem that they were found for.
    unit_of_node: Vec<usize>,
}

impl LeastTransfers {
    /// By minimum cuts, for devices that take less than `below`; zero for units that the steps do not suffice for. Each
    /// arc looked at is a step.
    pub(super) fn find(merged: &MergedProblem, below: u64, steps: u64) -> Self {
        let prices = NetPrices::of(merged);
        let kinds = merged.devices_by_kind();
        let mut steps_left = steps;
        let mut of_kind = Vec::with_capacity(kinds.len());

        for kind in 0..kinds.len() {
            let graphs = WEIGHTS.map(|weight| {
                let scaled = |ticks: u64| scale(ticks, weight, WEIGHT_UNIT);
                prices.flow_graph(merged, &kinds, kind, below, scaled)
            });
            let mut search = WeightSearch {
                graphs,
                ticks_sink: merged.units(),
                below,
                best_weight: WEIGHTS.len() / 2,
            };
            // In the order of the data, so that the best weight of a unit is often that of the one before.
            let mut least = vec![0; merged.units()];
            for &unit in &merged.order {
                if steps_left > 0 {
                    least[unit] = search.least_transfers(unit, &mut steps_left);
                }
            }
            of_kind.push(least);
        }
        LeastTransfers {
            of_kind,
            unit_of_node: merged.unit_of_node.clone(),
        }
    }

    /// Raises the ticks of a problem whose units are made of those that this was found for, and makes its transfers free:
    /// each device of a placement with a period below `below` takes no more than it did.
    pub(super) fn move_into_ticks(&self, merged: &mut MergedProblem, below: u64) {
        let kind_count = self.of_kind.len();
        let mut least = vec![vec![0; kind_count]; merged.units()];
        for (&unit, &found_for) in merged.unit_of_node.iter().zip(&self.unit_of_node) {
            for (kind, found) in self.of_kind.iter().enumerate() {
                least[unit][kind] = found[found_for].max(least[unit][kind]);
            }
        }

        for (row, least) in merged.ticks.iter_mut().zip(&least) {
            for (ticks, &kind) in row.iter_mut().zip(&merged.kind_of) {
                let left = below.saturating_sub(least[kind]);
                // Nothing is left for work: not on this device.
                *ticks = ticks.filter(|_| left > 0);
                *ticks = ticks.map(|ticks| scale(ticks, below, left));
            }
        }
        merged.nets.clear();
        merged.nets_of.iter_mut().for_each(Vec::clear);
    }
}

/// `value * numerator / denominator`, rounded down.
fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Finds the weight of the work that gives the largest bound for a unit.
struct WeightSearch {
    /// A graph for each of [`WEIGHTS`].
    graphs: [super::flow::FlowGraph; WEIGHTS.len()],
    ticks_sink: usize,
    below: u64,
    /// Index of the best weight of the unit before.
    best_weight: usize,
}

impl WeightSearch {
    /// Climbs from the best weight of the unit before: the bound is about concave in the weight.
    fn least_transfers(&mut self, unit: usize, steps_left: &mut u64) -> u64 {
        let mut best = self.bound(unit, self.best_weight, steps_left);
        for is_upward in [true, false] {
            let start = self.best_weight;
            loop {
                let next = match is_upward {
                    true => self.best_weight + 1,
                    false => self.best_weight.wrapping_sub(1),
                };
                if next >= WEIGHTS.len() {
                    break;
                }
                let bound = self.bound(unit, next, steps_left);
                if bound <= best {
                    break;
                }
                best = bound;
                self.best_weight = next;
            }
            if self.best_weight != start {
                break;
            }
        }
        best
    }

    /// (cut - l t) / (1 - l), rounded down; zero where it is negative.
    fn bound(&mut self, unit: usize, weight: usize, steps_left: &mut u64) -> u64 {
        let sink = self.ticks_sink;
        let cut = self.graphs[weight].min_cut(unit, sink, self.below, steps_left);
        let weighted_period = scale(self.below, WEIGHTS[weight], WEIGHT_UNIT).saturating_add(1);
        let rest = cut.saturating_sub(weighted_period);
        scale(rest, WEIGHT_UNIT, WEIGHT_UNIT - WEIGHTS[weight])
    }
}
