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
pub use dag::{CheckError, Dag, DagError, Edge, LinkTime, Schedule, check};
use exact_identical::{Answer, Exact};
use identical::{Identical, Scratch};
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
struct Limits {
    /// Task placements of the local search: decoding a list of n tasks takes n.
    placements: u64,
    /// Nodes of the exact search.
    nodes: u64,
}

fn limits(level: Level) -> Limits {
    match level {
        Level::Fast => Limits {
            placements: 50_000,
            nodes: 1_000,
        },
        Level::Balanced => Limits {
            placements: 1_000_000,
            nodes: 60_000,
        },
        Level::Exact => Limits {
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
    let limits = limits(level);
    let tasks = dag.tasks() as u64;
    let lists = (limits.placements / tasks.max(1)).max(20);
    let found = if dag.is_identical() {
        solve_identical(dag, lists, limits.nodes, control)
    } else {
        solve_unrelated(dag, lists, limits.nodes, control)
    };
    let makespan = check(dag, &found.schedule);
    assert_eq!(
        makespan,
        Ok(found.makespan),
        "a solver returned a wrong schedule"
    );
    assert!(
        found.bound <= found.makespan,
        "a bound lies above a schedule"
    );
    found
}

fn solve_identical(dag: &Dag, lists: u64, nodes: u64, control: &mut Control<'_>) -> Solution {
    let problem = Identical::of(dag);
    let mut bound = problem.bound();
    let mut start = local::construct(&problem, &mut Scratch::default());
    let listed = problem.makespan(&start);
    control.report("list scheduling", listed, bound, 0);
    let found = local::improve(&problem, start, bound, (lists, SEED), control);
    start = found.start;
    let mut work = found.work;
    if problem.makespan(&start) > bound {
        work += exact_identical(&problem, &mut start, &mut bound, nodes, control);
    }
    let makespan = problem.makespan(&start);
    let schedule = problem.assign(&start).unwrap_or(Schedule {
        processor: vec![],
        start: vec![],
    });
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
fn exact_identical(
    problem: &Identical,
    start: &mut Vec<u64>,
    bound: &mut u64,
    nodes: u64,
    control: &mut Control<'_>,
) -> u64 {
    let mirror = problem.reversed();
    let stop = control.stop;
    let (Some(forwards), Some(backwards)) = (Exact::new(problem, stop), Exact::new(&mirror, stop))
    else {
        return 0;
    };
    let mut sides = [forwards, backwards];
    let mut best = problem.makespan(start);
    let (mut share, mut used, mut turn) = (nodes.div_ceil(64), 0, 0usize);
    while best > *bound && used < nodes {
        // Low targets are refuted and high ones met most easily: look at the middle, then at both ends.
        let target = match turn / 2 % 3 {
            0 => *bound + (best - *bound) / 2,
            1 => best - 1,
            _ => *bound,
        };
        let side = &mut sides[turn % 2];
        let before = side.nodes;
        let answer = side.ends_by(target, share.min(nodes - used));
        used += side.nodes - before;
        match answer {
            Answer::Yes(found) => {
                let end = problem.makespan(&found);
                best = end;
                *start = if turn % 2 == 0 {
                    found
                } else {
                    found
                        .iter()
                        .zip(&problem.time)
                        .map(|(s, t)| end - s - t)
                        .collect()
                };
            }
            Answer::No => *bound = target + 1,
            Answer::Unknown => {
                turn += 1;
                if turn % 6 == 0 {
                    share *= 4;
                }
            }
        }
        control.report("branch and bound", best, *bound, used);
        if side.was_stopped() {
            break;
        }
    }
    used
}

fn solve_unrelated(dag: &Dag, lists: u64, nodes: u64, control: &mut Control<'_>) -> Solution {
    let mut bound = unrelated::bound(dag);
    let scheduled = list::portfolio(dag)
        .into_iter()
        .map(|(_, s)| (check(dag, &s), s));
    let checked = scheduled.filter_map(|(makespan, s)| Some((makespan.ok()?, s)));
    let first = checked.min_by_key(|c| c.0);
    let (listed, mut schedule) = first.unwrap_or((
        0,
        Schedule {
            processor: vec![],
            start: vec![],
        },
    ));
    control.report("list scheduling", listed, bound, 0);
    let mut makespan = listed;
    let mut work = 0;
    if makespan > bound {
        let (found, steps) = unrelated::anneal(dag, &schedule, bound, (lists, SEED), control);
        work += steps;
        makespan = check(dag, &found).unwrap_or(u64::MAX).min(makespan);
        if makespan < listed {
            schedule = found;
        }
    }
    if makespan > bound {
        let proof = unrelated::branch_and_bound(dag, makespan, nodes, control.stop);
        work += proof.nodes;
        if let Some(better) = proof.better {
            makespan = check(dag, &better).unwrap_or(makespan);
            schedule = better;
        }
        if proof.complete {
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
