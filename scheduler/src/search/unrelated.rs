//! Unlike processors with transfers: lower bound, simulated annealing, and branch and bound for small graphs.

use std::collections::BTreeMap;

use super::control::Control;
use super::dag::{Dag, Schedule};
use super::list::{Builder, optimistic};
use super::rng::Rng;

/// Most tasks of the branch and bound: sets of tasks are words.
pub(crate) const MAX_TASKS: usize = 64;

/// States remembered by the branch and bound.
const MAX_STATES: usize = 400_000;

/// Steps between questions to the caller.
const ASK_EVERY: u64 = 256;

/// Lower bound on the makespan: the longest path when every task takes the processor that is best for its path, and
/// the least work over all processors.
pub(crate) fn bound(dag: &Dag) -> u64 {
    let tail = optimistic(dag);
    let processors = dag.processors();
    let mut head = vec![0u64; tail.len()];
    let mut path = 0;
    for &task in dag.topological() {
        let task = task as usize;
        for p in 0..processors {
            let before = dag.edges_into(task).map(|(e, edge)| {
                let from = edge.from as usize;
                let choices = (0..processors).filter_map(|q| {
                    let time = dag.time(from, q)?;
                    Some(head[from * processors + q] + time + dag.transfer(e, q, p))
                });
                choices.min().unwrap_or(0)
            });
            head[task * processors + p] = before.max().unwrap_or(0);
        }
        let through = (0..processors).filter_map(|p| {
            let at = task * processors + p;
            Some(head[at] + dag.time(task, p)? + tail[at])
        });
        path = path.max(through.min().unwrap_or(0));
    }
    let work: u64 = (0..dag.tasks()).map(|t| dag.least_time(t)).sum();
    path.max(work.div_ceil(processors.max(1) as u64))
}

/// Simulated annealing over (order, processor of each task), decoded with insertion. Returns the best schedule and
/// the steps taken.
///
/// Moves change the processor of a task, its place in the order, or both; the temperature falls from a twentieth of
/// the makespan to nothing, `rounds` times over.
pub(crate) fn anneal(
    dag: &Dag,
    first: &Schedule,
    lower: u64,
    (limit, seed): (u64, u64),
    control: &mut Control<'_>,
) -> (Schedule, u64) {
    const ROUNDS: u64 = 4;
    let mut rng = Rng::new(seed);
    let mut builder = Builder::new(dag);
    let choices: Vec<Vec<u32>> = (0..dag.tasks())
        .map(|t| {
            let can = |p: &u32| dag.time(t, *p as usize).is_some();
            (0..dag.processors() as u32).filter(can).collect()
        })
        .collect();
    let mut place = vec![0usize; dag.tasks()];
    for (at, &t) in dag.topological().iter().enumerate() {
        place[t as usize] = at;
    }
    let mut order: Vec<u32> = (0..dag.tasks() as u32).collect();
    order.sort_by_key(|&t| (first.start[t as usize], place[t as usize]));
    let mut processor = first.processor.clone();
    let mut cost = decode(&mut builder, &order, &processor);
    let mut best = (cost, builder.schedule());
    let round = (limit / ROUNDS).max(1);
    let mut undo = order.clone();
    for step in 0..limit {
        if best.0 <= lower || (step % ASK_EVERY == 0 && control.stopped()) {
            return (best.1, step);
        }
        let left = 1.0 - (step % round) as f64 / round as f64;
        let temperature = best.0 as f64 * 0.05 * left * left;
        undo.copy_from_slice(&order);
        let task = order[rng.below(order.len())] as usize;
        let was = processor[task];
        let kind = rng.below(3);
        if kind != 0 {
            processor[task] = choices[task][rng.below(choices[task].len())];
        }
        if kind != 1 {
            shift(dag, &mut order, task, &mut rng);
        }
        let found = decode(&mut builder, &order, &processor);
        let worse = found.saturating_sub(cost) as f64;
        if found <= cost || rng.unit() < exp_approx(worse / temperature.max(1e-9)) {
            cost = found;
            if found < best.0 {
                best = (found, builder.schedule());
                control.report("annealing", found, lower, step);
            }
        } else {
            processor[task] = was;
            order.copy_from_slice(&undo);
        }
    }
    (best.1, limit)
}

/// 1 / (1 + x + x²/2 + x³/6): close to exp(-x) where it matters, and the same bits on every platform.
pub(crate) fn exp_approx(x: f64) -> f64 {
    1.0 / (1.0 + x * (1.0 + x * (0.5 + x / 6.0)))
}

fn decode(builder: &mut Builder<'_>, order: &[u32], processor: &[u32]) -> u64 {
    builder.clear();
    for &task in order {
        builder.put(task as usize, processor[task as usize] as usize);
    }
    builder.makespan()
}

/// Moves a task to a random place between its last predecessor and its first successor in the order.
fn shift(dag: &Dag, order: &mut [u32], task: usize, rng: &mut Rng) {
    let Some(from) = order.iter().position(|&t| t as usize == task) else {
        return;
    };
    let is_before = |t: u32| dag.edges_into(task).any(|(_, e)| e.from == t);
    let is_after = |t: u32| dag.out_of(task).any(|(_, e)| e.to == t);
    let low = (0..from)
        .rev()
        .find(|&k| is_before(order[k]))
        .map_or(0, |k| k + 1);
    let high = (from + 1..order.len())
        .find(|&k| is_after(order[k]))
        .unwrap_or(order.len());
    let to = low + rng.below(high - low);
    if to < from {
        order[to..=from].rotate_right(1);
    } else {
        order[from..=to].rotate_left(1);
    }
}

/// Result of the branch and bound.
pub(crate) struct Proof {
    /// A better schedule than the one given, if there is one.
    pub(crate) better: Option<Schedule>,
    /// Whether the search was exhaustive.
    pub(crate) complete: bool,
    pub(crate) nodes: u64,
}

/// What is left to know of a state with a given set of placed tasks and processors of those still read.
type Front = Vec<u64>;

struct Branch<'a> {
    dag: &'a Dag,
    tail: Vec<u64>,
    least: Vec<u64>,
    best: u64,
    better: Option<Schedule>,
    nodes: u64,
    limit: u64,
    stop: &'a dyn Fn() -> bool,
    seen: BTreeMap<(u64, Vec<u32>), Vec<Front>>,
    states: usize,
    placed: u64,
    processor: Vec<u32>,
    start: Vec<u64>,
    end: Vec<u64>,
    free: Vec<u64>,
    /// Processors that differ in nothing from an earlier one.
    twin: Vec<Option<usize>>,
}

/// Looks for a schedule that ends before `best`, appending tasks to processors depth first.
///
/// Every semi-active schedule is an order of appending. Of two states with the same tasks placed and the same
/// processors of the tasks that are still read, one is dropped if no processor is free and no result is there sooner
/// than in the other.
pub(crate) fn branch_and_bound(dag: &Dag, best: u64, limit: u64, stop: &dyn Fn() -> bool) -> Proof {
    let tasks = dag.tasks();
    if tasks > MAX_TASKS {
        return Proof {
            better: None,
            complete: false,
            nodes: 0,
        };
    }
    let mut branch = Branch {
        dag,
        tail: optimistic(dag),
        least: (0..tasks).map(|t| dag.least_time(t)).collect(),
        best,
        better: None,
        nodes: 0,
        limit,
        stop,
        seen: BTreeMap::new(),
        states: 0,
        placed: 0,
        processor: vec![0; tasks],
        start: vec![0; tasks],
        end: vec![0; tasks],
        free: vec![0; dag.processors()],
        twin: (0..dag.processors()).map(|p| twin_of(dag, p)).collect(),
    };
    let complete = branch.descend();
    Proof {
        better: branch.better,
        complete,
        nodes: branch.nodes,
    }
}

fn twin_of(dag: &Dag, p: usize) -> Option<usize> {
    let alike = |q: usize| {
        let times = (0..dag.tasks()).all(|t| dag.time(t, p) == dag.time(t, q));
        let others = || (0..dag.processors()).filter(|&o| o != p && o != q);
        let links = (0..dag.edges().len()).all(|e| {
            dag.transfer(e, p, q) == dag.transfer(e, q, p)
                && others().all(|o| {
                    dag.transfer(e, p, o) == dag.transfer(e, q, o)
                        && dag.transfer(e, o, p) == dag.transfer(e, o, q)
                })
        });
        times && links
    };
    (0..p).rev().find(|&q| alike(q))
}

impl Branch<'_> {
    /// Explores the state; `false` when out of nodes.
    fn descend(&mut self) -> bool {
        let tasks = self.dag.tasks();
        if self.placed.count_ones() as usize == tasks {
            let makespan = self.end.iter().copied().max().unwrap_or(0);
            if makespan < self.best {
                self.best = makespan;
                let (processor, start) = (self.processor.clone(), self.start.clone());
                self.better = Some(Schedule { processor, start });
            }
            return true;
        }
        self.nodes += 1;
        if self.nodes > self.limit || (self.nodes.is_multiple_of(ASK_EVERY) && (self.stop)()) {
            return false;
        }
        if self.bound() >= self.best || self.is_dominated() {
            return true;
        }
        for (_, _, task, p) in self.children() {
            let (free, time) = (self.free[p], self.dag.time(task, p).unwrap_or(0));
            let start = self.ready(task, p).max(if time == 0 { 0 } else { free });
            if start + time + self.tail[task * self.free.len() + p] >= self.best {
                continue;
            }
            self.placed |= 1 << task;
            self.processor[task] = p as u32;
            (self.start[task], self.end[task]) = (start, start + time);
            self.free[p] = free.max(start + time);
            let complete = self.descend();
            self.free[p] = free;
            self.placed &= !(1 << task);
            if !complete {
                return false;
            }
        }
        true
    }

    fn is_placed(&self, task: usize) -> bool {
        self.placed >> task & 1 == 1
    }

    fn is_empty(&self, p: usize) -> bool {
        let here = |t: usize| self.is_placed(t) && self.processor[t] as usize == p;
        self.free[p] == 0 && !(0..self.dag.tasks()).any(here)
    }

    fn ready(&self, task: usize, p: usize) -> u64 {
        let arrivals = self.dag.edges_into(task).map(|(e, edge)| {
            let from = edge.from as usize;
            self.end[from] + self.dag.transfer(e, self.processor[from] as usize, p)
        });
        arrivals.max().unwrap_or(0)
    }

    /// Ready tasks and processors, the most promising first: (bound, end, task, processor).
    fn children(&self) -> Vec<(u64, u64, usize, usize)> {
        let mut found = Vec::new();
        for task in 0..self.dag.tasks() {
            let is_ready = !self.is_placed(task)
                && self
                    .dag
                    .edges_into(task)
                    .all(|(_, edge)| self.is_placed(edge.from as usize));
            if !is_ready {
                continue;
            }
            for p in 0..self.free.len() {
                let Some(time) = self.dag.time(task, p) else {
                    continue;
                };
                // Of two alike and empty processors the first is used.
                if self.is_empty(p) && self.twin[p].is_some_and(|q| self.is_empty(q)) {
                    continue;
                }
                let end = self
                    .ready(task, p)
                    .max(if time == 0 { 0 } else { self.free[p] })
                    + time;
                found.push((end + self.tail[task * self.free.len() + p], end, task, p));
            }
        }
        found.sort_unstable();
        found
    }

    /// Lower bound on every schedule that goes on from here.
    fn bound(&self) -> u64 {
        let processors = self.free.len();
        let mut path = 0;
        let mut earliest = self.end.clone();
        let mut rest = 0;
        for &task in self.dag.topological() {
            let task = task as usize;
            if self.is_placed(task) {
                continue;
            }
            rest += self.least[task];
            let (mut through, mut end) = (u64::MAX, u64::MAX);
            for p in 0..processors {
                let Some(time) = self.dag.time(task, p) else {
                    continue;
                };
                let mut start = if time == 0 { 0 } else { self.free[p] };
                for (e, edge) in self.dag.edges_into(task) {
                    let from = edge.from as usize;
                    let there = if self.is_placed(from) {
                        self.end[from] + self.dag.transfer(e, self.processor[from] as usize, p)
                    } else {
                        earliest[from]
                    };
                    start = start.max(there);
                }
                through = through.min(start + time + self.tail[task * processors + p]);
                end = end.min(start + time);
            }
            earliest[task] = end;
            path = path.max(through);
        }
        let work = self.free.iter().sum::<u64>() + rest;
        path.max(work.div_ceil(processors as u64))
    }

    fn is_dominated(&mut self) -> bool {
        let read = |t: &usize| {
            self.is_placed(*t)
                && self
                    .dag
                    .out_of(*t)
                    .any(|(_, edge)| !self.is_placed(edge.to as usize))
        };
        let open: Vec<usize> = (0..self.dag.tasks()).filter(read).collect();
        let where_from = open.iter().map(|&t| self.processor[t]).collect();
        let mut front: Front = self.free.clone();
        front.extend(open.iter().map(|&t| self.end[t]));
        // Tasks that nobody reads any more count by their end only.
        front.push(
            (0..self.dag.tasks())
                .filter(|&t| self.is_placed(t))
                .map(|t| self.end[t])
                .max()
                .unwrap_or(0),
        );
        let known = self.seen.entry((self.placed, where_from)).or_default();
        if known
            .iter()
            .any(|k| k.iter().zip(&front).all(|(a, b)| a <= b))
        {
            return true;
        }
        let before = known.len();
        known.retain(|k| !front.iter().zip(k).all(|(a, b)| a <= b));
        self.states -= before - known.len();
        if self.states < MAX_STATES {
            known.push(front);
            self.states += 1;
        }
        false
    }
}
