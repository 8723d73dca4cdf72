//! Unlike processors with transfers: lower bound, simulated annealing, and branch and bound for small graphs.

use std::collections::BTreeMap;

use super::control::Control;
use super::dag::{Dag, Schedule};
use super::list::{ScheduleBuilder, optimistic_costs};
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
    let tail = optimistic_costs(dag);
    let processors = dag.processors();
    let mut head = vec![0u64; tail.len()];
    let mut longest_path = 0;

    for &task in dag.topological() {
        let task = task as usize;
        let mut min_through: Option<u64> = None;
        for to in 0..processors {
            let mut longest_before = 0;
            for (index, edge) in dag.edges_into(task) {
                let before = edge.from as usize;
                let choices = (0..processors).filter_map(|from| {
                    let time = dag.time(before, from)?;
                    Some(head[before * processors + from] + time + dag.transfer(index, from, to))
                });
                longest_before = choices.min().unwrap_or(0).max(longest_before);
            }
            let cell = task * processors + to;
            head[cell] = longest_before;
            if let Some(time) = dag.time(task, to) {
                let through = longest_before + time + tail[cell];
                min_through = Some(min_through.map_or(through, |known| known.min(through)));
            }
        }
        longest_path = min_through.unwrap_or(0).max(longest_path);
    }

    let work: u64 = (0..dag.tasks()).map(|task| dag.min_time(task)).sum();
    longest_path.max(work.div_ceil(processors.max(1) as u64))
}

/// Simulated annealing over (order, processor of each task), decoded with insertion. Returns the best schedule and
/// the steps taken.
///
/// Moves change the processor of a task, its place in the order, or both; the temperature falls from a twentieth of
/// the makespan to nothing, `rounds` times over.
pub(crate) fn anneal(
    dag: &Dag,
    first: &Schedule,
    lower_bound: u64,
    limit: u64,
    seed: u64,
    control: &mut Control<'_>,
) -> (Schedule, u64) {
    const ROUNDS: u64 = 4;
    let mut rng = Rng::new(seed);
    let mut builder = ScheduleBuilder::new(dag);
    let choices: Vec<Vec<u32>> = (0..dag.tasks())
        .map(|task| {
            let processors = 0..dag.processors() as u32;
            processors
                .filter(|&processor| dag.time(task, processor as usize).is_some())
                .collect()
        })
        .collect();

    // Tasks by start, ties by topological place.
    let mut place_of = vec![0usize; dag.tasks()];
    for (place, &task) in dag.topological().iter().enumerate() {
        place_of[task as usize] = place;
    }
    let mut order: Vec<u32> = (0..dag.tasks() as u32).collect();
    order.sort_by_key(|&task| (first.start[task as usize], place_of[task as usize]));
    let mut processor = first.processor.clone();
    let mut cost = decode(&mut builder, &order, &processor);
    let mut best_cost = cost;
    let mut best = builder.schedule();

    let round_steps = (limit / ROUNDS).max(1);
    let mut order_before = order.clone();
    for step in 0..limit {
        if best_cost <= lower_bound || (step % ASK_EVERY == 0 && control.stopped()) {
            return (best, step);
        }
        let left = 1.0 - (step % round_steps) as f64 / round_steps as f64;
        let temperature = best_cost as f64 * 0.05 * left * left;

        order_before.copy_from_slice(&order);
        let task = order[rng.below(order.len())] as usize;
        let processor_before = processor[task];
        let kind = rng.below(3);
        if kind != 0 {
            processor[task] = choices[task][rng.below(choices[task].len())];
        }
        if kind != 1 {
            shift_task(dag, &mut order, task, &mut rng);
        }

        let found = decode(&mut builder, &order, &processor);
        let increase = found.saturating_sub(cost) as f64;
        if found <= cost || rng.unit() < exp_approx(increase / temperature.max(1e-9)) {
            cost = found;
            if found < best_cost {
                best_cost = found;
                best = builder.schedule();
                control.report("annealing", found, lower_bound, step);
            }
        } else {
            processor[task] = processor_before;
            order.copy_from_slice(&order_before);
        }
    }
    (best, limit)
}

/// 1 / (1 + x + x²/2 + x³/6): close to exp(-x) where it matters, and the same bits on every platform.
pub(crate) fn exp_approx(x: f64) -> f64 {
    1.0 / (1.0 + x * (1.0 + x * (0.5 + x / 6.0)))
}

fn decode(builder: &mut ScheduleBuilder<'_>, order: &[u32], processor: &[u32]) -> u64 {
    builder.clear();
    for &task in order {
        builder.put(task as usize, processor[task as usize] as usize);
    }
    builder.makespan()
}

/// Moves a task to a random place between its last predecessor and its first successor in the order.
fn shift_task(dag: &Dag, order: &mut [u32], task: usize, rng: &mut Rng) {
    let Some(from) = order.iter().position(|&other| other as usize == task) else {
        return;
    };
    let last_before = (0..from).rev().find(|&place| {
        let mut inputs = dag.edges_into(task);
        inputs.any(|(_, edge)| edge.from == order[place])
    });
    let first_after = (from + 1..order.len()).find(|&place| {
        let mut outputs = dag.out_of(task);
        outputs.any(|(_, edge)| edge.to == order[place])
    });

    let low = last_before.map_or(0, |place| place + 1);
    let high = first_after.unwrap_or(order.len());
    let to = low + rng.below(high - low);
    if to < from {
        order[to..=from].rotate_right(1);
    } else {
        order[from..=to].rotate_left(1);
    }
}

/// Result of the branch and bound.
pub(crate) struct BranchResult {
    /// A better schedule than the one given, if there is one.
    pub(crate) better: Option<Schedule>,
    /// Whether the search was exhaustive.
    pub(crate) complete: bool,
    pub(crate) nodes: u64,
}

/// A task that is appended to a processor. Ordered as they are tried.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Child {
    /// Bound on the makespan by the paths through the task.
    bound: u64,
    end: u64,
    task: usize,
    processor: usize,
}

/// What is left to know of a state with a given set of placed tasks and processors of those still read.
type StateFigures = Vec<u64>;

struct BranchSearch<'a> {
    dag: &'a Dag,
    tail: Vec<u64>,
    min_time: Vec<u64>,
    best: u64,
    better: Option<Schedule>,
    nodes: u64,
    limit: u64,
    stop: &'a dyn Fn() -> bool,
    seen: BTreeMap<(u64, Vec<u32>), Vec<StateFigures>>,
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
pub(crate) fn branch_and_bound(
    dag: &Dag,
    best: u64,
    limit: u64,
    stop: &dyn Fn() -> bool,
) -> BranchResult {
    let tasks = dag.tasks();
    if tasks > MAX_TASKS {
        return BranchResult {
            better: None,
            complete: false,
            nodes: 0,
        };
    }
    let mut search = BranchSearch {
        dag,
        tail: optimistic_costs(dag),
        min_time: (0..tasks).map(|task| dag.min_time(task)).collect(),
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
        twin: (0..dag.processors())
            .map(|processor| twin_of(dag, processor))
            .collect(),
    };
    let complete = search.descend();
    BranchResult {
        better: search.better,
        complete,
        nodes: search.nodes,
    }
}

fn twin_of(dag: &Dag, processor: usize) -> Option<usize> {
    (0..processor)
        .rev()
        .find(|&other| are_alike(dag, processor, other))
}

/// Whether two processors differ in nothing.
fn are_alike(dag: &Dag, first: usize, second: usize) -> bool {
    let same_times = (0..dag.tasks()).all(|task| dag.time(task, first) == dag.time(task, second));
    let same_transfers = |edge: usize| {
        let mut others = (0..dag.processors()).filter(|&other| other != first && other != second);
        dag.transfer(edge, first, second) == dag.transfer(edge, second, first)
            && others.all(|other| {
                dag.transfer(edge, first, other) == dag.transfer(edge, second, other)
                    && dag.transfer(edge, other, first) == dag.transfer(edge, other, second)
            })
    };
    same_times && (0..dag.edges().len()).all(same_transfers)
}

fn is_no_worse(figures: &StateFigures, others: &StateFigures) -> bool {
    figures.iter().zip(others).all(|(own, other)| own <= other)
}

impl BranchSearch<'_> {
    /// Explores the state; `false` when out of nodes.
    fn descend(&mut self) -> bool {
        if self.placed.count_ones() as usize == self.dag.tasks() {
            self.keep_if_better();
            return true;
        }
        self.nodes += 1;
        if self.nodes > self.limit || (self.nodes.is_multiple_of(ASK_EVERY) && (self.stop)()) {
            return false;
        }
        if self.bound() >= self.best || self.is_dominated() {
            return true;
        }

        for child in self.children() {
            // The best may have improved since the children were listed.
            if child.bound >= self.best {
                continue;
            }
            let task = child.task;
            let time = self.dag.time(task, child.processor).unwrap_or(0);
            let free_before = self.free[child.processor];
            self.placed |= 1 << task;
            self.processor[task] = child.processor as u32;
            self.start[task] = child.end - time;
            self.end[task] = child.end;
            self.free[child.processor] = free_before.max(child.end);

            let complete = self.descend();
            self.free[child.processor] = free_before;
            self.placed &= !(1 << task);
            if !complete {
                return false;
            }
        }
        true
    }

    fn keep_if_better(&mut self) {
        let makespan = self.end.iter().copied().max().unwrap_or(0);
        if makespan < self.best {
            self.best = makespan;
            self.better = Some(Schedule {
                processor: self.processor.clone(),
                start: self.start.clone(),
            });
        }
    }

    fn is_placed(&self, task: usize) -> bool {
        self.placed >> task & 1 == 1
    }

    fn is_empty(&self, processor: usize) -> bool {
        let mut placed = (0..self.dag.tasks()).filter(|&task| self.is_placed(task));
        self.free[processor] == 0 && !placed.any(|task| self.processor[task] as usize == processor)
    }

    /// When a task can start on a processor, given its placed predecessors and what the processor does.
    fn earliest_start(&self, task: usize, processor: usize, time: u64) -> u64 {
        let arrivals = self.dag.edges_into(task).map(|(index, edge)| {
            let from = edge.from as usize;
            let from_processor = self.processor[from] as usize;
            self.end[from] + self.dag.transfer(index, from_processor, processor)
        });
        // A task of no ticks needs none of a processor's time.
        let free = if time == 0 { 0 } else { self.free[processor] };
        arrivals.max().unwrap_or(0).max(free)
    }

    /// Ready tasks and processors, the most promising first.
    fn children(&self) -> Vec<Child> {
        let processors = self.free.len();
        let mut children = Vec::new();

        for task in 0..self.dag.tasks() {
            let mut inputs = self.dag.edges_into(task);
            let is_ready =
                !self.is_placed(task) && inputs.all(|(_, edge)| self.is_placed(edge.from as usize));
            if !is_ready {
                continue;
            }
            for processor in 0..processors {
                let Some(time) = self.dag.time(task, processor) else {
                    continue;
                };
                // Of two alike and empty processors the first is used.
                let twin = self.twin[processor];
                if self.is_empty(processor) && twin.is_some_and(|twin| self.is_empty(twin)) {
                    continue;
                }
                let end = self.earliest_start(task, processor, time) + time;
                children.push(Child {
                    bound: end + self.tail[task * processors + processor],
                    end,
                    task,
                    processor,
                });
            }
        }
        children.sort_unstable();
        children
    }

    /// Lower bound on every schedule that goes on from here.
    fn bound(&self) -> u64 {
        let processors = self.free.len();
        let mut longest_path = 0;
        let mut earliest_end = self.end.clone();
        let mut work_left = 0;

        for &task in self.dag.topological() {
            let task = task as usize;
            if self.is_placed(task) {
                continue;
            }
            work_left += self.min_time[task];

            let mut min_through = u64::MAX;
            let mut min_end = u64::MAX;
            for processor in 0..processors {
                let Some(time) = self.dag.time(task, processor) else {
                    continue;
                };
                let mut start = if time == 0 { 0 } else { self.free[processor] };
                for (index, edge) in self.dag.edges_into(task) {
                    let from = edge.from as usize;
                    let arrival = match self.is_placed(from) {
                        true => {
                            let from_processor = self.processor[from] as usize;
                            self.end[from] + self.dag.transfer(index, from_processor, processor)
                        }
                        false => earliest_end[from],
                    };
                    start = start.max(arrival);
                }
                let tail = self.tail[task * processors + processor];
                min_through = min_through.min(start + time + tail);
                min_end = min_end.min(start + time);
            }
            earliest_end[task] = min_end;
            longest_path = longest_path.max(min_through);
        }

        let work = self.free.iter().sum::<u64>() + work_left;
        longest_path.max(work.div_ceil(processors as u64))
    }

    fn is_dominated(&mut self) -> bool {
        let mut read_from = Vec::new();
        let mut figures: StateFigures = self.free.clone();
        let mut last_end = 0;
        for task in (0..self.dag.tasks()).filter(|&task| self.is_placed(task)) {
            let mut outputs = self.dag.out_of(task);
            if outputs.any(|(_, edge)| !self.is_placed(edge.to as usize)) {
                read_from.push(self.processor[task]);
                figures.push(self.end[task]);
            }
            last_end = self.end[task].max(last_end);
        }
        // Tasks that nobody reads any more count by their end only.
        figures.push(last_end);

        let known = self.seen.entry((self.placed, read_from)).or_default();
        if known.iter().any(|other| is_no_worse(other, &figures)) {
            return true;
        }
        let known_before = known.len();
        known.retain(|other| !is_no_worse(&figures, other));
        self.states -= known_before - known.len();
        if self.states < MAX_STATES {
            known.push(figures);
            self.states += 1;
        }
        false
    }
}
