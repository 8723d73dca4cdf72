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
    let mut path_level = vec![0u64; problem.tasks()];
    for &task in problem.topological.iter().rev() {
        let after_levels = problem.after[task]
            .iter()
            .map(|&successor| path_level[successor]);
        path_level[task] = after_levels.max().unwrap_or(0) + problem.time[task];
    }

    let path_load = |task: usize| problem.time[task] + problem.tail[task];
    let freed_level = |task: usize| {
        problem.after[task]
            .iter()
            .map(|&successor| path_level[successor])
            .sum::<u64>()
    };
    let successor_count = |task: usize| problem.after[task].len() as u64;
    let priority_keys: [&dyn Fn(usize) -> (u64, u64, u64); 7] = [
        // Critical path; CP/MISF; by load; and three that look at what a task sets free.
        &|task| (path_level[task], 0, 0),
        &|task| (path_level[task], successor_count(task), problem.time[task]),
        &|task| (path_load(task), path_level[task], problem.time[task]),
        &|task| (path_load(task), successor_count(task), problem.time[task]),
        &|task| (freed_level(task) + problem.time[task], path_level[task], 0),
        &|task| (successor_count(task), path_level[task], 0),
        &|task| {
            (
                path_level[task] + u64::MAX / 4 - problem.head[task],
                path_level[task],
                0,
            )
        },
    ];
    priority_keys
        .iter()
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

        // Backwards, from the latest starts that the end allows.
        let from_end = problem.mirror_starts(&forward_start);
        let back_list = self.mirror.list_of(&from_end, &self.mirror_place_of);
        let back_start = self.mirror.serial(&back_list, &mut self.usage);

        // And forwards again, from the starts that the backward list gives.
        let again_starts = self.mirror.mirror_starts(&back_start);
        let forward_list = problem.list_of(&again_starts, &self.place_of);
        problem.serial(&forward_list, &mut self.usage)
    }

    /// The schedule of a list near `list`. Up to three tasks move at once: some plateaus are too wide for one.
    fn neighbour(&mut self, list: &[usize], rng: &mut Rng) -> Vec<u64> {
        let mut candidate_list = list.to_vec();
        for _ in 0..=rng.below(3) {
            shift_task(self.problem, &mut candidate_list, rng);
        }
        let parallel = rng.below(4) == 0;
        self.decode(&candidate_list, parallel)
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
    let mut current_list = problem.list_of(&best, &search.place_of);
    let mut current_cost = best_cost;
    let mut without_gain = 0;
    let mut round_count = 0u64;
    let mut restart_count = 0usize;

    // At the bound the best schedule is proved to be optimal.
    while best_cost.0 > bound && search.work < limit {
        if round_count.is_multiple_of(ASK_EVERY) && control.stopped() {
            break;
        }
        round_count += 1;
        if without_gain > PATIENCE {
            without_gain = 0;
            restart_count += 1;
            let list = restart_list(
                problem,
                &lists,
                restart_count,
                &best,
                &search.place_of,
                &mut rng,
            );
            // A restart may be worse than what it leaves: the best is kept aside.
            let start = search.decode(&list, false);
            current_cost = search.cost(&start);
            current_list = problem.list_of(&start, &search.place_of);
        }

        let start = search.neighbour(&current_list, &mut rng);
        let found_cost = search.cost(&start);
        without_gain += 1;

        // What is not worse is kept, to cross plateaus.
        if found_cost <= current_cost {
            if found_cost < current_cost {
                without_gain = 0;
            }
            current_cost = found_cost;
            current_list = problem.list_of(&start, &search.place_of);
        }
        if found_cost < best_cost {
            if found_cost.0 < best_cost.0 {
                control.report("local search", found_cost.0, bound, search.work);
            }
            best_cost = found_cost;
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
        // => Three kinds of restart in turn: from the best schedule, and from two priority lists.
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
    let moved_task = list[from];
    let last_before = (0..from)
        .rev()
        .find(|&place| problem.before[moved_task].contains(&list[place]));
    let first_after =
        (from + 1..list.len()).find(|&place| problem.after[moved_task].contains(&list[place]));

    // Between the two the list stays topological.
    let lowest_place = last_before.map_or(0, |place| place + 1);
    let highest_place = first_after.unwrap_or(list.len());
    let new_place = lowest_place + rng.below(highest_place - lowest_place);
    if new_place < from {
        list[new_place..=from].rotate_right(1);
    } else {
        list[from..=new_place].rotate_left(1);
    }
}
