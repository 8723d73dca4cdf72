//! The assignment of least period as a mixed-integer linear programme, through `good_lp` with `microlp`.
//!
//! Binary x(u, d): unit u runs on device d. For each net and device, s >= x(writer, d) - x(reader, d) counts a send
//! and r >= x(reader, d) - x(writer, d) a receive, at the cheapest link. The period T is at least every load. Of alike
//! devices, the i-th largest unit uses only the first i: without that every solution has 6! twins. The incumbent cuts
//! off: T must be smaller. With equal links and [`Fanout::Once`](super::Fanout) the programme is exact; otherwise a
//! relaxation, whose bound is still one, and whose placements are evaluated like any other.
//!
//! The search runs in slices of nodes, so that the caller can stop it; it is limited in nodes and not in time.

use good_lp::{Expression, ProblemVariables, SolverModel, Variable, constraint, variable};
use microlp::{SolveOptions, SolveOutcome, TerminationReason};

use super::merged::Merged;
use super::state::State;
use crate::search::Control;

/// Variables beyond which the programme is not tried: `microlp` keeps up to about so many, and a single relaxation
/// cannot be interrupted.
pub(crate) const MAX_VARIABLES: usize = 2_500;

/// Nodes between questions to the caller.
const SLICE: u64 = 10;

/// The incumbent's period in the units of the programme, whose tolerances are absolute.
const SCALE: f64 = 1000.0;

/// By how much a placement must be better than the incumbent, as a fraction: above the solver's tolerances.
const STEP: f64 = 1e-5;

/// What the programme told.
pub(crate) struct Outcome {
    pub(crate) better: Option<Vec<u32>>,
    /// Proved lower bound on the period.
    pub(crate) bound: u64,
    pub(crate) nodes: u64,
}

struct Model {
    variables: ProblemVariables,
    /// By unit, then device.
    x: Vec<Vec<Option<Variable>>>,
    period: Variable,
    rows: Vec<good_lp::Constraint>,
}

/// The number of variables that the programme would have.
pub(crate) fn size(merged: &Merged) -> usize {
    merged.devices * (merged.units() + 2 * merged.nets.len()) + 1
}

/// Searches for a placement of smaller period than `incumbent` has, in at most `limit` nodes.
pub(crate) fn improve(
    merged: &Merged,
    incumbent: &[u32],
    bound: u64,
    limit: u64,
    control: &mut Control<'_>,
) -> Outcome {
    let best = State::new(merged, incumbent.to_vec()).period();
    let mut outcome = Outcome {
        better: None,
        bound,
        nodes: 0,
    };
    let unit = SCALE / best.max(1) as f64;
    let Model {
        variables,
        x,
        period,
        rows,
    } = model(merged, best, bound, unit);
    let mut problem = variables
        .minimise(period)
        .using(good_lp::solvers::microlp::microlp);
    for row in rows {
        problem.add_constraint(row);
    }
    let mut options = SolveOptions::default();
    options.node_limit = Some(SLICE);
    let mut result = problem.as_inner().solve_with(options);
    loop {
        let Ok(solved) = result else {
            // Nothing below the cut-off: the incumbent is optimal but for the step. Other errors prove nothing.
            if matches!(result, Err(microlp::Error::Infeasible)) {
                outcome.bound = outcome
                    .bound
                    .max(whole_ticks(SCALE * (1.0 - STEP), unit).min(best));
            }
            break;
        };
        let stats = solved.stats();
        outcome.nodes = stats.nodes_solved;
        if let Some(proved) = stats.best_bound {
            outcome.bound = outcome.bound.max(whole_ticks(proved, unit).min(best));
        }
        if let SolveOutcome::Solution(solution) = &solved {
            let values: Vec<f64> = solution.iter().map(|(_, v)| v).collect();
            outcome.better = read(merged, &x, &values);
        }
        let now = outcome
            .better
            .as_ref()
            .map(|p| State::new(merged, p.clone()).period());
        control.report(
            "milp",
            now.unwrap_or(best).min(best),
            outcome.bound,
            outcome.nodes,
        );
        let done = !matches!(
            solved.termination_reason(),
            TerminationReason::NodeLimit | TerminationReason::TimeLimit
        );
        if done || outcome.nodes >= limit || control.stopped() {
            break;
        }
        result = solved.resume();
    }
    outcome
}

/// A bound of the programme in ticks, with a margin for its arithmetic. Periods are whole ticks.
fn whole_ticks(value: f64, unit: f64) -> u64 {
    ((value - SCALE * 1e-6) / unit).max(0.0).ceil() as u64
}

fn model(merged: &Merged, best: u64, bound: u64, unit: f64) -> Model {
    let devices = merged.devices;
    let mut variables = ProblemVariables::new();
    let low = (bound as f64 * unit).min(SCALE * (1.0 - STEP));
    let period = variables.add(variable().min(low).max(SCALE * (1.0 - STEP)));
    let rank = ranks(merged);
    let place = places(merged);
    let x: Vec<Vec<Option<Variable>>> = (0..merged.units())
        .map(|u| {
            let may =
                |d: usize| merged.ticks[u][d].is_some_and(|t| t < best) && place[d] <= rank[u];
            (0..devices)
                .map(|d| may(d).then(|| variables.add(variable().binary())))
                .collect()
        })
        .collect();
    let mut rows = Vec::new();
    let mut load: Vec<Expression> = vec![Expression::from(0.0); devices];
    let mut bytes = load.clone();
    for (u, row) in x.iter().enumerate() {
        rows.push(row.iter().flatten().copied().sum::<Expression>().eq(1));
        for (d, v) in row.iter().enumerate() {
            let Some(v) = *v else { continue };
            load[d] += merged.ticks[u][d].unwrap_or(0) as f64 * unit * v;
            bytes[d] += merged.bytes[u] as f64 / merged.capacity[d].max(1) as f64 * v;
        }
    }
    for net in &merged.nets {
        for d in 0..devices {
            let cheapest = |price: &dyn Fn(usize) -> u64| {
                (0..devices)
                    .filter(|&o| o != d)
                    .map(price)
                    .min()
                    .unwrap_or(0)
            };
            let send = cheapest(&|o| net.send[d * devices + o]) as f64 * unit;
            let receive = cheapest(&|o| net.receive[o * devices + d]) as f64 * unit;
            let at = |u: usize| x[u][d].map_or(Expression::from(0.0), Expression::from);
            if send > 0.0 && x[net.from][d].is_some() {
                let s = variables.add(variable().min(0.0).max(1.0));
                load[d] += send * s;
                rows.extend(
                    net.to
                        .iter()
                        .map(|&r| constraint!(s >= at(net.from) - at(r))),
                );
            }
            if (receive > 0.0 || net.bytes > 0) && net.to.iter().any(|&r| x[r][d].is_some()) {
                let r = variables.add(variable().min(0.0).max(1.0));
                load[d] += receive * r;
                bytes[d] += net.bytes as f64 / merged.capacity[d].max(1) as f64 * r;
                let readers = net.to.iter().filter(|&&to| x[to][d].is_some());
                rows.extend(readers.map(|&to| constraint!(r >= at(to) - at(net.from))));
            }
        }
    }
    for (load, bytes) in load.into_iter().zip(bytes) {
        rows.push(constraint!(load <= period));
        rows.push(constraint!(bytes <= 1.0));
    }
    Model {
        variables,
        x,
        period,
        rows,
    }
}

/// Place of each unit by least ticks, largest first.
fn ranks(merged: &Merged) -> Vec<usize> {
    let least = |u: usize| merged.ticks[u].iter().flatten().min().copied().unwrap_or(0);
    let mut by_size: Vec<usize> = (0..merged.units()).collect();
    by_size.sort_by_key(|&u| (std::cmp::Reverse(least(u)), u));
    let mut rank = vec![0; merged.units()];
    by_size
        .into_iter()
        .enumerate()
        .for_each(|(place, u)| rank[u] = place);
    rank
}

/// Place of each device among those of its kind.
fn places(merged: &Merged) -> Vec<usize> {
    let before = |d: usize| (0..d).filter(|&e| merged.kind[e] == merged.kind[d]).count();
    (0..merged.devices).map(before).collect()
}

fn read(merged: &Merged, x: &[Vec<Option<Variable>>], values: &[f64]) -> Option<Vec<u32>> {
    // Variables were added period first, then by unit and device.
    let mut next = 1;
    let mut placement = Vec::with_capacity(merged.units());
    for row in x {
        let mut device = None;
        for (d, v) in row.iter().enumerate() {
            if v.is_some() {
                if values.get(next).is_some_and(|v| *v > 0.5) {
                    device = Some(d as u32);
                }
                next += 1;
            }
        }
        placement.push(device?);
    }
    Some(placement)
}
