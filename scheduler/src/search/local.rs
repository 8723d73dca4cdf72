//! Local search over task lists for identical processors, with forward-backward improvement.

use super::control::Control;
use super::identical::{Identical, Scratch};
use super::rng::Rng;

/// Iterations between questions to the caller.
const ASK_EVERY: u64 = 64;

/// Decodings without improvement after which the search starts again from another list.
const PATIENCE: u64 = 400;

/// What a local search found and how many lists it decoded.
pub(crate) struct Found {
    pub(crate) start: Vec<u64>,
    pub(crate) work: u64,
}

/// Priority orders of list scheduling: longest tail first, most successors first and so on, each as a topological
/// list.
pub(crate) fn priority_lists(problem: &Identical) -> Vec<Vec<usize>> {
    let tasks = problem.tasks();
    let mut level = vec![0u64; tasks];
    for &t in problem.topological.iter().rev() {
        let below = problem.after[t]
            .iter()
            .map(|&a| level[a])
            .max()
            .unwrap_or(0);
        level[t] = below + problem.time[t];
    }
    let load = |t: usize| problem.time[t] + problem.tail[t];
    let weight = |t: usize| problem.after[t].iter().map(|&a| level[a]).sum::<u64>();
    let keys: [&dyn Fn(usize) -> (u64, u64, u64); 7] = [
        // Critical path; CP/MISF; by load; and three that look at what a task sets free.
        &|t| (level[t], 0, 0),
        &|t| (level[t], problem.after[t].len() as u64, problem.time[t]),
        &|t| (load(t), level[t], problem.time[t]),
        &|t| (load(t), problem.after[t].len() as u64, problem.time[t]),
        &|t| (weight(t) + problem.time[t], level[t], 0),
        &|t| (problem.after[t].len() as u64, level[t], 0),
        &|t| (level[t] + u64::MAX / 4 - problem.head[t], level[t], 0),
    ];
    keys.iter()
        .map(|key| topological_by(problem, key))
        .collect()
}

fn topological_by(problem: &Identical, key: impl Fn(usize) -> (u64, u64, u64)) -> Vec<usize> {
    let mut waiting: Vec<usize> = problem.before.iter().map(Vec::len).collect();
    let entry = |t: usize| (key(t), std::cmp::Reverse(t));
    let mut ready: std::collections::BinaryHeap<_> = (0..problem.tasks())
        .filter(|&t| waiting[t] == 0)
        .map(entry)
        .collect();
    let mut list = Vec::with_capacity(problem.tasks());
    while let Some((_, std::cmp::Reverse(t))) = ready.pop() {
        list.push(t);
        for &a in &problem.after[t] {
            waiting[a] -= 1;
            if waiting[a] == 0 {
                ready.push(entry(a));
            }
        }
    }
    list
}

/// The best of all priority lists, decoded both ways.
pub(crate) fn construct(problem: &Identical, scratch: &mut Scratch) -> Vec<u64> {
    let mut best: Option<(u64, Vec<u64>)> = None;
    for list in priority_lists(problem) {
        for start in [problem.parallel(&list), problem.serial(&list, scratch)] {
            let makespan = problem.makespan(&start);
            if best.as_ref().is_none_or(|b| makespan < b.0) {
                best = Some((makespan, start));
            }
        }
    }
    best.map(|b| b.1).unwrap_or_default()
}

struct Search<'a> {
    problem: &'a Identical,
    mirror: Identical,
    place: Vec<usize>,
    mirror_place: Vec<usize>,
    scratch: Scratch,
    bound: u64,
    work: u64,
}

impl Search<'_> {
    /// Decodes a list forwards, then backwards from its end, then forwards again: never worse than the first.
    fn decode(&mut self, list: &[usize], parallel: bool) -> Vec<u64> {
        let first = if parallel {
            self.problem.parallel(list)
        } else {
            self.problem.serial(list, &mut self.scratch)
        };
        self.work += 3;
        let end = self.problem.makespan(&first);
        if end <= self.bound {
            return first;
        }
        let time = &self.problem.time;
        let from_end: Vec<u64> = first.iter().zip(time).map(|(s, t)| end - s - t).collect();
        let back = self.mirror.list_of(&from_end, &self.mirror_place);
        let back = self.mirror.serial(&back, &mut self.scratch);
        let end = self.mirror.makespan(&back);
        let again: Vec<u64> = back.iter().zip(time).map(|(s, t)| end - s - t).collect();
        let list = self.problem.list_of(&again, &self.place);
        self.problem.serial(&list, &mut self.scratch)
    }

    /// Makespan first; then how much work lies too late for the bound, so that plateaus have a slope.
    fn cost(&self, start: &[u64]) -> (u64, u64) {
        let problem = self.problem;
        let late =
            |t: usize| (start[t] + problem.time[t] + problem.tail[t]).saturating_sub(self.bound);
        (
            problem.makespan(start),
            (0..problem.tasks()).map(late).sum(),
        )
    }
}

/// Improves on `start` until the bound is reached, `limit` lists have been decoded, or the caller stops it.
///
/// Moves one to three tasks within the places that their predecessors and successors allow and keeps what is not
/// worse; after a while without gain it goes on from a random list or the best one.
/// Source of the forward-backward step: Tormos & Lova 2001 (Ann. Oper. Res. 102).
pub(crate) fn improve(
    problem: &Identical,
    start: Vec<u64>,
    bound: u64,
    (limit, seed): (u64, u64),
    control: &mut Control<'_>,
) -> Found {
    let mirror = problem.reversed();
    let (place, mirror_place) = (problem.places(), mirror.places());
    let scratch = Scratch::default();
    let mut search = Search {
        problem,
        mirror,
        place,
        mirror_place,
        scratch,
        bound,
        work: 0,
    };
    let mut rng = Rng::new(seed);
    let lists = priority_lists(problem);
    let mut best_cost = search.cost(&start);
    let mut best = start;
    let mut list = problem.list_of(&best, &search.place);
    let mut cost = best_cost;
    let (mut stale, mut round, mut restarts) = (0, 0u64, 0usize);
    while best_cost.0 > bound && search.work < limit {
        if round % ASK_EVERY == 0 && control.stopped() {
            break;
        }
        round += 1;
        if stale > PATIENCE {
            stale = 0;
            restarts += 1;
            list = restart(problem, &lists, restarts, &best, &search.place, &mut rng);
            let start = search.decode(&list, false);
            cost = search.cost(&start);
            list = problem.list_of(&start, &search.place);
        }
        let mut candidate = list.clone();
        for _ in 0..=rng.below(3) {
            shift(problem, &mut candidate, &mut rng);
        }
        let parallel = rng.below(4) == 0;
        let start = search.decode(&candidate, parallel);
        let found = search.cost(&start);
        stale += 1;
        if found <= cost {
            if found < cost {
                stale = 0;
            }
            cost = found;
            list = problem.list_of(&start, &search.place);
        }
        if found < best_cost {
            if found.0 < best_cost.0 {
                control.report("local search", found.0, bound, search.work);
            }
            best_cost = found;
            best = start;
        }
    }
    Found {
        start: best,
        work: search.work,
    }
}

/// A list to go on from: now a shaken priority list, now the best schedule, well shaken.
fn restart(
    problem: &Identical,
    lists: &[Vec<usize>],
    restarts: usize,
    best: &[u64],
    place: &[usize],
    rng: &mut Rng,
) -> Vec<usize> {
    let mut list = match restarts % 3 {
        0 => problem.list_of(best, place),
        k => lists[(restarts / 3 * 2 + k) % lists.len()].clone(),
    };
    for _ in 0..problem.tasks() / 4 + 2 {
        shift(problem, &mut list, rng);
    }
    list
}

/// Moves a random task to a random place between its last predecessor and its first successor.
fn shift(problem: &Identical, list: &mut [usize], rng: &mut Rng) {
    let from = rng.below(list.len());
    let task = list[from];
    let low = (0..from)
        .rev()
        .find(|&k| problem.before[task].contains(&list[k]));
    let low = low.map_or(0, |k| k + 1);
    let high = (from + 1..list.len()).find(|&k| problem.after[task].contains(&list[k]));
    let high = high.unwrap_or(list.len());
    let to = low + rng.below(high - low);
    if to < from {
        list[to..=from].rotate_right(1);
    } else {
        list[from..=to].rotate_left(1);
    }
}
