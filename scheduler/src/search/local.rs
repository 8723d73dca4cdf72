//! Local search over task lists for identical processors, with forward-backward improvement.

use super::control::Control;
use super::identical::{IdenticalProblem, MachineUsage};
use super::rng::Rng;
use crate::topological::order_by_priority;

/// Iterations between questions to the caller.
const ASK_EVERY: u64 = 64;

/// Decodings without improvement after which the search starts again from another list.
const PATIENCE: u64 = 400;

/// What a local search found and how many lists it decoded.
pub(crate) struct LocalResult {
    pub(crate) start: Vec<u64>,
    pub(crate) work: u64,
}

/// Priority orders of list scheduling: longest tail first, most successors first and so on, each as a topological
/// list.
pub(crate) fn priority_lists(problem: &IdenticalProblem) -> Vec<Vec<usize>> {
    // Longest path from the start of each task to the end of all.
    let mut level = vec![0u64; problem.tasks()];
    for &task in problem.topological.iter().rev() {
        let after = problem.after[task].iter().map(|&after| level[after]);
        level[task] = after.max().unwrap_or(0) + problem.time[task];
    }

    let load = |task: usize| problem.time[task] + problem.tail[task];
    let freed = |task: usize| {
        problem.after[task]
            .iter()
            .map(|&after| level[after])
            .sum::<u64>()
    };
    let successors = |task: usize| problem.after[task].len() as u64;
    let keys: [&dyn Fn(usize) -> (u64, u64, u64); 7] = [
        // Critical path; CP/MISF; by load; and three that look at what a task sets free.
        &|task| (level[task], 0, 0),
        &|task| (level[task], successors(task), problem.time[task]),
        &|task| (load(task), level[task], problem.time[task]),
        &|task| (load(task), successors(task), problem.time[task]),
        &|task| (freed(task) + problem.time[task], level[task], 0),
        &|task| (successors(task), level[task], 0),
        &|task| {
            (
                level[task] + u64::MAX / 4 - problem.head[task],
                level[task],
                0,
            )
        },
    ];
    keys.iter()
        .map(|key| order_by_priority(&problem.after, key))
        .collect()
}

/// The best of all priority lists, decoded both ways.
pub(crate) fn construct(problem: &IdenticalProblem, usage: &mut MachineUsage) -> Vec<u64> {
    let mut best: Option<(u64, Vec<u64>)> = None;
    for list in priority_lists(problem) {
        for start in [problem.parallel(&list), problem.serial(&list, usage)] {
            let makespan = problem.makespan(&start);
            if best.as_ref().is_none_or(|(known, _)| makespan < *known) {
                best = Some((makespan, start));
            }
        }
    }
    best.map(|(_, start)| start).unwrap_or_default()
}

struct LocalSearch<'a> {
    problem: &'a IdenticalProblem,
    /// The problem with time running backwards.
    mirror: IdenticalProblem,
    place_of: Vec<usize>,
    mirror_place_of: Vec<usize>,
    usage: MachineUsage,
    bound: u64,
    work: u64,
}

impl LocalSearch<'_> {
    /// Decodes a list forwards, then backwards from its end, then forwards again: never worse than the first.
    fn decode(&mut self, list: &[usize], parallel: bool) -> Vec<u64> {
        let problem = self.problem;
        let forward_start = match parallel {
            true => problem.parallel(list),
            false => problem.serial(list, &mut self.usage),
        };
        self.work += 3;
        if problem.makespan(&forward_start) <= self.bound {
            return forward_start;
        }

        let from_end = problem.mirror_starts(&forward_start);
        let back_list = self.mirror.list_of(&from_end, &self.mirror_place_of);
        let back_start = self.mirror.serial(&back_list, &mut self.usage);

        let again = self.mirror.mirror_starts(&back_start);
        let forward_list = problem.list_of(&again, &self.place_of);
        problem.serial(&forward_list, &mut self.usage)
    }

    /// Makespan first; then how much work lies too late for the bound, so that plateaus have a slope.
    fn cost(&self, start: &[u64]) -> (u64, u64) {
        let problem = self.problem;
        let mut lateness = 0;
        for (task, &task_start) in start.iter().enumerate() {
            let end_of_all = task_start + problem.time[task] + problem.tail[task];
            lateness += end_of_all.saturating_sub(self.bound);
        }
        (problem.makespan(start), lateness)
    }
}

/// Improves on `start` until the bound is reached, `limit` lists have been decoded, or the caller stops it.
///
/// Moves one to three tasks within the places that their predecessors and successors allow and keeps what is not
/// worse; after a while without gain it goes on from a random list or the best one.
/// Source of the forward-backward step: Tormos & Lova 2001 (Ann. Oper. Res. 102).
pub(crate) fn improve(
    problem: &IdenticalProblem,
    start: Vec<u64>,
    bound: u64,
    limit: u64,
    seed: u64,
    control: &mut Control<'_>,
) -> LocalResult {
    let mirror = problem.reversed();
    let mut search = LocalSearch {
        problem,
        place_of: problem.places(),
        mirror_place_of: mirror.places(),
        mirror,
        usage: MachineUsage::default(),
        bound,
        work: 0,
    };
    let mut rng = Rng::new(seed);
    let lists = priority_lists(problem);
    let mut best_cost = search.cost(&start);
    let mut best = start;
    let mut list = problem.list_of(&best, &search.place_of);
    let mut cost = best_cost;
    let mut without_gain = 0;
    let mut round = 0u64;
    let mut restarts = 0usize;

    while best_cost.0 > bound && search.work < limit {
        if round % ASK_EVERY == 0 && control.stopped() {
            break;
        }
        round += 1;
        if without_gain > PATIENCE {
            without_gain = 0;
            restarts += 1;
            list = restart_list(problem, &lists, restarts, &best, &search.place_of, &mut rng);
            let start = search.decode(&list, false);
            cost = search.cost(&start);
            list = problem.list_of(&start, &search.place_of);
        }

        let mut candidate = list.clone();
        for _ in 0..=rng.below(3) {
            shift_task(problem, &mut candidate, &mut rng);
        }
        let parallel = rng.below(4) == 0;
        let start = search.decode(&candidate, parallel);
        let found = search.cost(&start);
        without_gain += 1;

        // What is not worse is kept, to cross plateaus.
        if found <= cost {
            if found < cost {
                without_gain = 0;
            }
            cost = found;
            list = problem.list_of(&start, &search.place_of);
        }
        if found < best_cost {
            if found.0 < best_cost.0 {
                control.report("local search", found.0, bound, search.work);
            }
            best_cost = found;
            best = start;
        }
    }
    LocalResult {
        start: best,
        work: search.work,
    }
}

/// A list to go on from: now a shaken priority list, now the best schedule, well shaken.
fn restart_list(
    problem: &IdenticalProblem,
    lists: &[Vec<usize>],
    restarts: usize,
    best: &[u64],
    place_of: &[usize],
    rng: &mut Rng,
) -> Vec<usize> {
    let mut list = match restarts % 3 {
        0 => problem.list_of(best, place_of),
        offset => lists[(restarts / 3 * 2 + offset) % lists.len()].clone(),
    };
    for _ in 0..problem.tasks() / 4 + 2 {
        shift_task(problem, &mut list, rng);
    }
    list
}

/// Moves a random task to a random place between its last predecessor and its first successor.
fn shift_task(problem: &IdenticalProblem, list: &mut [usize], rng: &mut Rng) {
    let from = rng.below(list.len());
    let task = list[from];
    let last_before = (0..from)
        .rev()
        .find(|&place| problem.before[task].contains(&list[place]));
    let first_after =
        (from + 1..list.len()).find(|&place| problem.after[task].contains(&list[place]));

    let low = last_before.map_or(0, |place| place + 1);
    let high = first_after.unwrap_or(list.len());
    let to = low + rng.below(high - low);
    if to < from {
        list[to..=from].rotate_right(1);
    } else {
        list[from..=to].rotate_left(1);
    }
}
