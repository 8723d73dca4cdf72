//! The assignment of least period as a mixed-integer linear program, through `good_lp` with `microlp`.
//!
//! Binary x(u, d): unit u runs on device d. For each net and device, s >= x(writer, d) - x(reader, d) counts a send
//! and r >= x(reader, d) - x(writer, d) a receive, at the cheapest link. The period T is at least every load. Of alike
//! devices, the i-th largest unit uses only the first i: without that every solution has 6! twins. The incumbent cuts
//! off: T must be smaller. With equal links and [`Fanout::Once`](super::Fanout) the program is exact; otherwise a
//! relaxation, whose bound is still one, and whose placements are evaluated like any other.
//!
//! The search runs in slices of nodes, so that the caller can stop it; it is limited in nodes and not in time.

use std::cmp::Reverse;

use good_lp::{Expression, ProblemVariables, SolverModel, Variable, constraint, variable};
use microlp::{SolveOptions, SolveOutcome, TerminationReason};

use super::merged::{MergedProblem, UnitNet};
use super::state::PlacementState;
use crate::search::Control;

/// Variables beyond which the program is not tried: `microlp` keeps up to about so many, and a single relaxation
/// cannot be interrupted.
pub(crate) const MAX_VARIABLES: usize = 2_500;

/// Nodes between questions to the caller.
const SLICE: u64 = 10;

/// The incumbent's period in the units of the program, whose tolerances are absolute.
const SCALE: f64 = 1000.0;

/// By how much a placement must be better than the incumbent, as a fraction: above the solver's tolerances.
const STEP: f64 = 1e-5;

/// What the solver found.
pub(crate) struct ProgramOutcome {
    pub(crate) better: Option<Vec<u32>>,
    /// Proved lower bound on the period.
    pub(crate) bound: u64,
    pub(crate) nodes: u64,
}

struct ProgramModel {
    variables: ProblemVariables,
    /// Whether a unit runs on a device, by unit, then device; `None` where it cannot.
    is_on: Vec<Vec<Option<Variable>>>,
    period: Variable,
    constraints: Vec<good_lp::Constraint>,
}

/// The number of variables that the program would have.
pub(crate) fn size(merged: &MergedProblem) -> usize {
    merged.devices * (merged.units() + 2 * merged.nets.len()) + 1
}

/// Searches for a placement of smaller period than `incumbent` has, in at most `limit` nodes.
pub(crate) fn improve(
    merged: &MergedProblem,
    incumbent: &[u32],
    bound: u64,
    limit: u64,
    control: &mut Control<'_>,
) -> ProgramOutcome {
    let best_period = PlacementState::new(merged, incumbent.to_vec()).period();
    let mut outcome = ProgramOutcome {
        better: None,
        bound,
        nodes: 0,
    };

    let tick_unit = SCALE / best_period.max(1) as f64;
    let ProgramModel {
        variables,
        is_on,
        period,
        constraints,
    } = build_model(merged, best_period, bound, tick_unit);

    let mut problem = variables
        .minimise(period)
        .using(good_lp::solvers::microlp::microlp);
    for constraint in constraints {
        problem.add_constraint(constraint);
    }

    let mut options = SolveOptions::default();
    options.node_limit = Some(SLICE);
    let mut solve_result = problem.as_inner().solve_with(options);

    loop {
        let Ok(solved) = solve_result else {
            // Nothing below the cut-off: the incumbent is optimal but for the step. Other errors prove nothing.
            if matches!(solve_result, Err(microlp::Error::Infeasible)) {
                let cut_off_ticks = whole_ticks(SCALE * (1.0 - STEP), tick_unit);
                outcome.bound = outcome.bound.max(cut_off_ticks.min(best_period));
            }
            break;
        };
        let statistics = solved.stats();
        outcome.nodes = statistics.nodes_solved;
        if let Some(proved) = statistics.best_bound {
            let proved_ticks = whole_ticks(proved, tick_unit).min(best_period);
            outcome.bound = outcome.bound.max(proved_ticks);
        }
        if let SolveOutcome::Solution(solution) = &solved {
            let values: Vec<f64> = solution.iter().map(|(_, value)| value).collect();
            outcome.better = read_placement(merged, &is_on, &values);
        }
        let found = outcome.better.as_ref();
        let found_period = found.map(|found| PlacementState::new(merged, found.clone()).period());
        let period_now = found_period.unwrap_or(best_period).min(best_period);
        control.report("milp", period_now, outcome.bound, outcome.nodes);

        let is_done = !matches!(
            solved.termination_reason(),
            TerminationReason::NodeLimit | TerminationReason::TimeLimit
        );
        if is_done || outcome.nodes >= limit || control.stopped() {
            break;
        }
        solve_result = solved.resume();
    }
    outcome
}

/// A bound of the program in ticks, with a margin for its arithmetic. Periods are whole ticks.
fn whole_ticks(value: f64, tick_unit: f64) -> u64 {
    ((value - SCALE * 1e-6) / tick_unit).max(0.0).ceil() as u64
}

fn build_model(
    merged: &MergedProblem,
    best_period: u64,
    bound: u64,
    tick_unit: f64,
) -> ProgramModel {
    let mut variables = ProblemVariables::new();
    let max_period = SCALE * (1.0 - STEP);
    let min_period = (bound as f64 * tick_unit).min(max_period);
    let period = variables.add(variable().min(min_period).max(max_period));
    let is_on = add_assignment_variables(merged, best_period, &mut variables);

    let mut builder = ModelBuilder {
        merged,
        tick_unit,
        is_on: &is_on,
        variables: &mut variables,
        constraints: Vec::new(),
        load: vec![Expression::from(0.0); merged.devices],
        bytes: vec![Expression::from(0.0); merged.devices],
    };
    builder.add_units();
    for net in &merged.nets {
        for device in 0..merged.devices {
            builder.add_net(net, device);
        }
    }

    let mut constraints = builder.constraints;
    for (load, bytes) in builder.load.into_iter().zip(builder.bytes) {
        constraints.push(constraint!(load <= period));
        constraints.push(constraint!(bytes <= 1.0));
    }
    ProgramModel {
        variables,
        is_on,
        period,
        constraints,
    }
}

/// A binary variable for each unit and device on which it may run: quickly enough, and not a later one of alike devices
/// than its rank.
fn add_assignment_variables(
    merged: &MergedProblem,
    best_period: u64,
    variables: &mut ProblemVariables,
) -> Vec<Vec<Option<Variable>>> {
    let rank_of = rank_units(merged);
    let place_of = place_among_kind(merged);
    let mut is_on = Vec::with_capacity(merged.units());

    for (unit, row) in merged.ticks.iter().enumerate() {
        let mut unit_variables = Vec::with_capacity(merged.devices);
        for (device, ticks) in row.iter().enumerate() {
            let is_quick = ticks.is_some_and(|ticks| ticks < best_period);
            let may_run = is_quick && place_of[device] <= rank_of[unit];
            unit_variables.push(may_run.then(|| variables.add(variable().binary())));
        }
        is_on.push(unit_variables);
    }
    is_on
}

struct ModelBuilder<'a> {
    merged: &'a MergedProblem,
    /// Units of the program in a tick.
    tick_unit: f64,
    is_on: &'a [Vec<Option<Variable>>],
    variables: &'a mut ProblemVariables,
    constraints: Vec<good_lp::Constraint>,
    /// Load of each device.
    load: Vec<Expression>,
    /// Bytes on each device, as a fraction of its memory.
    bytes: Vec<Expression>,
}

impl ModelBuilder<'_> {
    /// Each unit runs once, with its ticks and bytes there.
    fn add_units(&mut self) {
        for (unit, row) in self.is_on.iter().enumerate() {
            let devices = row.iter().flatten().copied();
            self.constraints.push(devices.sum::<Expression>().eq(1));

            for (device, is_on) in row.iter().enumerate() {
                let Some(is_on) = *is_on else { continue };
                let ticks = self.merged.ticks[unit][device].unwrap_or(0);
                let capacity = self.merged.capacity[device].max(1);
                self.load[device] += ticks as f64 * self.tick_unit * is_on;
                self.bytes[device] += self.merged.bytes[unit] as f64 / capacity as f64 * is_on;
            }
        }
    }

    /// What a net costs a device as the sender's and as a receiver's.
    fn add_net(&mut self, net: &UnitNet, device: usize) {
        let devices = self.merged.devices;
        let others = (0..devices).filter(|&other| other != device);
        let send_prices = others
            .clone()
            .map(|other| self.merged.send_ticks(net, device, other));
        let receive_prices = others.map(|other| self.merged.receive_ticks(net, other, device));
        let send = send_prices.min().unwrap_or(0) as f64 * self.tick_unit;
        let receive = receive_prices.min().unwrap_or(0) as f64 * self.tick_unit;

        // Counts a send if the writer is here and some reader is not.
        if send > 0.0 && self.is_on[net.from][device].is_some() {
            let sends = self.variables.add(variable().min(0.0).max(1.0));
            self.load[device] += send * sends;
            for &reader in &net.to {
                let apart = self.presence(net.from, device) - self.presence(reader, device);
                self.constraints.push(constraint!(sends >= apart));
            }
        }

        // Counts a receive if some reader is here and the writer is not.
        let mut readers_here = net.to.clone();
        readers_here.retain(|&reader| self.is_on[reader][device].is_some());
        if (receive > 0.0 || net.bytes > 0) && !readers_here.is_empty() {
            let receives = self.variables.add(variable().min(0.0).max(1.0));
            let capacity = self.merged.capacity[device].max(1);
            self.load[device] += receive * receives;
            self.bytes[device] += net.bytes as f64 / capacity as f64 * receives;
            for reader in readers_here {
                let apart = self.presence(reader, device) - self.presence(net.from, device);
                self.constraints.push(constraint!(receives >= apart));
            }
        }
    }

    /// Whether a unit is on a device, as an expression.
    fn presence(&self, unit: usize, device: usize) -> Expression {
        self.is_on[unit][device].map_or(Expression::from(0.0), Expression::from)
    }
}

/// Place of each unit by least ticks, largest first.
fn rank_units(merged: &MergedProblem) -> Vec<usize> {
    let mut by_size: Vec<usize> = (0..merged.units()).collect();
    by_size.sort_by_key(|&unit| (Reverse(merged.min_ticks(unit)), unit));

    let mut rank_of = vec![0; merged.units()];
    for (rank, unit) in by_size.into_iter().enumerate() {
        rank_of[unit] = rank;
    }
    rank_of
}

/// Place of each device among those of its kind.
fn place_among_kind(merged: &MergedProblem) -> Vec<usize> {
    let mut places = vec![0; merged.devices];
    for devices in merged.devices_by_kind() {
        for (place, device) in devices.into_iter().enumerate() {
            places[device] = place;
        }
    }
    places
}

/// The placement that the program's values state; `None` if a unit is nowhere.
fn read_placement(
    merged: &MergedProblem,
    is_on: &[Vec<Option<Variable>>],
    values: &[f64],
) -> Option<Vec<u32>> {
    // Variables were added period first, then by unit and device.
    let mut next_variable = 1;
    let mut placement = Vec::with_capacity(merged.units());

    for row in is_on {
        let mut unit_device = None;
        for (device, variable) in row.iter().enumerate() {
            if variable.is_none() {
                continue;
            }
            if values.get(next_variable).is_some_and(|value| *value > 0.5) {
                unit_device = Some(device as u32);
            }
            next_variable += 1;
        }
        placement.push(unit_device?);
    }
    Some(placement)
}
