//! Order and place of a directed acyclic graph of tasks: the schedule of least makespan.
//!
//! [`solve`] runs a portfolio of list schedulers, then local search, then an exact search, and states a proved lower
//! bound with whatever it returns. No back end is trusted: every schedule passes [`check`] first.
//!
//! - identical processors without transfers: priority lists, local search with forward-backward improvement
//!   (`local`), and branch and bound on "can all end by T" (`exact_identical`);
//! - unlike processors with transfers: HEFT, CPOP, PEFT and lookahead (`list`), simulated annealing, and branch and
//!   bound for small graphs (`unrelated`).
//!
//! A MILP is not among them: with big-M order variables it dies at twenty tasks.

mod control;
mod dag;
mod exact_identical;
mod identical;
mod list;
mod local;
pub(crate) mod rng;
mod unrelated;

pub use control::{Control, Level, Progress, gap, unattended};
pub use dag::{CheckError, Dag, DagError, LinkTime, Schedule, TaskEdge, check};
use exact_identical::{EndAnswer, ExactSearch};
use identical::{IdenticalProblem, MachineUsage};
pub(crate) use unrelated::exp_approx;

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// The schedule, checked.
    pub schedule: Schedule,
    /// Its makespan in ticks.
    pub makespan: u64,
    /// Proved lower bound on the makespan of any schedule.
    pub bound: u64,
    /// Makespan of the best constructive heuristic, before any search.
    pub listed: u64,
    /// Lists decoded and nodes visited.
    pub work: u64,
}

impl Solution {
    /// Whether no schedule can be shorter.
    pub fn is_optimal(&self) -> bool {
        self.makespan <= self.bound
    }

    /// How far the makespan may be from the optimum, as a fraction of the bound.
    pub fn gap(&self) -> f64 {
        gap(self.makespan, self.bound)
    }
}

/// Work that a level may do.
#[derive(Clone, Copy, Debug)]
struct EffortLimits {
    /// Task placements of the local search: decoding a list of n tasks takes n.
    placements: u64,
    /// Nodes of the exact search.
    nodes: u64,
}

fn effort_limits(level: Level) -> EffortLimits {
    match level {
        Level::Fast => EffortLimits {
            placements: 50_000,
            nodes: 1_000,
        },
        Level::Balanced => EffortLimits {
            placements: 1_000_000,
            nodes: 60_000,
        },
        Level::Exact => EffortLimits {
            placements: 4_000_000,
            nodes: 20_000_000,
        },
    }
}

/// Seed of all searches: same input, same result.
const SEED: u64 = 0x7a62_6d64;

/// Finds a schedule of small makespan. Never worse than the best of the list schedulers.
///
/// Deterministic unless `control.stop` cuts it short. Time grows with tasks + edges times the limits of the level.
pub fn solve(dag: &Dag, level: Level, control: &mut Control<'_>) -> Solution {
    let limits = effort_limits(level);
    let tasks = dag.tasks() as u64;
    let list_count = (limits.placements / tasks.max(1)).max(20);
    let found_solution = match dag.is_identical() {
        true => solve_identical(dag, list_count, limits.nodes, control),
        false => solve_unrelated(dag, list_count, limits.nodes, control),
    };

    let makespan = check(dag, &found_solution.schedule);
    assert_eq!(
        makespan,
        Ok(found_solution.makespan),
        "a solver returned a wrong schedule"
    );
    assert!(
        found_solution.bound <= found_solution.makespan,
        "a bound lies above a schedule"
    );
    found_solution
}

fn solve_identical(dag: &Dag, lists: u64, nodes: u64, control: &mut Control<'_>) -> Solution {
    let problem = IdenticalProblem::of(dag);
    let mut bound = problem.bound();
    let listed_start = local::construct(&problem, &mut MachineUsage::default());
    let listed = problem.makespan(&listed_start);
    control.report("list scheduling", listed, bound, 0);

    let local_result = local::improve(&problem, listed_start, bound, lists, SEED, control);
    let mut start = local_result.start;
    let mut work = local_result.work;
    if problem.makespan(&start) > bound {
        work += search_exactly(&problem, &mut start, &mut bound, nodes, control);
    }

    let makespan = problem.makespan(&start);
    let schedule = problem.assign(&start).unwrap_or_default();
    Solution {
        schedule,
        makespan,
        bound,
        listed,
        work,
    }
}

/// Asks whether all can end by a time between the bound and the best schedule, forwards and backwards in turn, with
/// more and more nodes; returns the nodes used.
fn search_exactly(
    problem: &IdenticalProblem,
    start: &mut Vec<u64>,
    bound: &mut u64,
    nodes: u64,
    control: &mut Control<'_>,
) -> u64 {
    let mirror = problem.reversed();
    let stop = control.stop;
    let forwards = ExactSearch::new(problem, stop);
    let backwards = ExactSearch::new(&mirror, stop);
    let (Some(forwards), Some(backwards)) = (forwards, backwards) else {
        return 0;
    };
    let mut sides = [forwards, backwards];
    let mut best_makespan = problem.makespan(start);
    let mut node_share = nodes.div_ceil(64);
    let mut used_nodes = 0;
    let mut turn = 0usize;

    while best_makespan > *bound && used_nodes < nodes {
        // Low targets are refuted and high ones met most easily: look at the middle, then at both ends.
        let target_end = match turn / 2 % 3 {
            0 => *bound + (best_makespan - *bound) / 2,
            1 => best_makespan - 1,
            _ => *bound,
        };
        let search_side = &mut sides[turn % 2];
        let nodes_before = search_side.nodes;
        let end_answer = search_side.ends_by(target_end, node_share.min(nodes - used_nodes));
        used_nodes += search_side.nodes - nodes_before;

        match end_answer {
            EndAnswer::Yes(found) => {
                best_makespan = problem.makespan(&found);
                *start = match turn % 2 {
                    0 => found,
                    _ => problem.mirror_starts(&found),
                };
            }
            EndAnswer::No => *bound = target_end + 1,
            EndAnswer::Unknown => {
                turn += 1;
                if turn.is_multiple_of(6) {
                    node_share *= 4;
                }
            }
        }
        control.report("branch and bound", best_makespan, *bound, used_nodes);
        if search_side.was_stopped() {
            break;
        }
    }
    used_nodes
}

fn solve_unrelated(dag: &Dag, lists: u64, nodes: u64, control: &mut Control<'_>) -> Solution {
    let mut bound = unrelated::bound(dag);
    let mut schedule = Schedule::default();
    let mut listed: Option<u64> = None;
    for (_, candidate) in list::portfolio(dag) {
        if let Ok(makespan) = check(dag, &candidate)
            && listed.is_none_or(|known| makespan < known)
        {
            listed = Some(makespan);
            schedule = candidate;
        }
    }
    let listed = listed.unwrap_or(0);
    control.report("list scheduling", listed, bound, 0);

    let mut makespan = listed;
    let mut work = 0;
    if makespan > bound {
        let (annealed_schedule, steps) =
            unrelated::anneal(dag, &schedule, bound, lists, SEED, control);
        work += steps;
        makespan = check(dag, &annealed_schedule)
            .unwrap_or(u64::MAX)
            .min(makespan);
        if makespan < listed {
            schedule = annealed_schedule;
        }
    }

    if makespan > bound {
        let branch_result = unrelated::branch_and_bound(dag, makespan, nodes, control.stop);
        work += branch_result.nodes;
        if let Some(better) = branch_result.better {
            makespan = check(dag, &better).unwrap_or(makespan);
            schedule = better;
        }
        if branch_result.complete {
            bound = makespan;
        }
        control.report("branch and bound", makespan, bound, work);
    }
    Solution {
        schedule,
        makespan,
        bound,
        listed,
        work,
    }
}

#[cfg(test)]
mod tests;
