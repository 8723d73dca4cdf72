//! Unlike processors with transfers: lower bound, simulated annealing, and branch and bound for small graphs.

use std::collections::BTreeMap;

use super::control::Control;
use super::dag::{Dag, Schedule};
use super::list::{ScheduleBuilder, optimistic_costs};
use super::rng::Rng;

/// Tasks up to which branch and bound is possible: sets of tasks are words.
pub(crate) const MAX_TASKS: usize = 64;

/// States remembered by the branch and bound.
const MAX_STATES: usize = 400_000;

/// Steps between questions to the caller.
const ASK_EVERY: u64 = 256;

/// Lower bound on the makespan: the longest path when every task takes the processor that is best for its path, and
/// the least work over all processors.
pub(crate) fn bound(dag: &Dag) -> u64 {
    let path_after = optimistic_costs(dag);
    let processors = dag.processors();
    let mut path_before = vec![0u64; path_after.len()];
    let mut longest_path = 0;

    for &task in dag.topological() {
        let task = task as usize;
        let mut min_through: Option<u64> = None;
        for to in 0..processors {
            let mut longest_before = 0;
            for (index, edge) in dag.edges_into(task) {
                let before = edge.from as usize;
                let path_choices = (0..processors).filter_map(|from| {
                    let task_time = dag.time(before, from)?;
                    Some(
                        path_before[before * processors + from]
                            + task_time
                            + dag.transfer(index, from, to),
                    )
                });
                longest_before = path_choices.min().unwrap_or(0).max(longest_before);
            }
            let table_cell = task * processors + to;
            path_before[table_cell] = longest_before;
            if let Some(task_time) = dag.time(task, to) {
                let path_through = longest_before + task_time + path_after[table_cell];
                min_through =
                    Some(min_through.map_or(path_through, |known| known.min(path_through)));
            }
        }
        longest_path = min_through.unwrap_or(0).max(longest_path);
    }

    let total_work: u64 = (0..dag.tasks()).map(|task| dag.min_time(task)).sum();
    longest_path.max(total_work.div_ceil(processors.max(1) as u64))
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
        .map(|task| possible_processors(dag, task))
        .collect();

    // Tasks by start, ties by topological place.
    let mut place_of = vec![0usize; dag.tasks()];
    for (place, &task) in dag.topological().iter().enumerate() {
        place_of[task as usize] = place;
    }
    let mut task_order: Vec<u32> = (0..dag.tasks() as u32).collect();
    task_order.sort_by_key(|&task| (first.start[task as usize], place_of[task as usize]));
    let mut processor = first.processor.clone();
    let mut current_cost = decode(&mut builder, &task_order, &processor);
    let mut best_cost = current_cost;
    let mut best_schedule = builder.schedule();

    let round_steps = (limit / ROUNDS).max(1);
    let mut order_before = task_order.clone();
    for step in 0..limit {
        if best_cost <= lower_bound || (step % ASK_EVERY == 0 && control.stopped()) {
            return (best_schedule, step);
        }
        // The temperature falls to nothing in each round, with the square of what is left of it.
        let fraction_left = 1.0 - (step % round_steps) as f64 / round_steps as f64;
        let temperature = best_cost as f64 * 0.05 * fraction_left * fraction_left;

        order_before.copy_from_slice(&task_order);
        let task = task_order[rng.below(task_order.len())] as usize;
        let processor_before = processor[task];
        let move_kind = rng.below(3);
        if move_kind != 0 {
            processor[task] = choices[task][rng.below(choices[task].len())];
        }
        if move_kind != 1 {
            shift_task(dag, &mut task_order, task, &mut rng);
        }

        let found_cost = decode(&mut builder, &task_order, &processor);
        let cost_increase = found_cost.saturating_sub(current_cost) as f64;
        if found_cost <= current_cost
            || rng.unit() < exp_approx(cost_increase / temperature.max(1e-9))
        {
            current_cost = found_cost;
            if found_cost < best_cost {
                best_cost = found_cost;
                best_schedule = builder.schedule();
                control.report("annealing", found_cost, lower_bound, step);
            }
        } else {
            processor[task] = processor_before;
            task_order.copy_from_slice(&order_before);
        }
    }
    (best_schedule, limit)
}

fn possible_processors(dag: &Dag, task: usize) -> Vec<u32> {
    (0..dag.processors() as u32)
        .filter(|&processor| dag.time(task, processor as usize).is_some())
        .collect()
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
        let mut input_edges = dag.edges_into(task);
        input_edges.any(|(_, edge)| edge.from == order[place])
    });
    let first_after = (from + 1..order.len()).find(|&place| {
        let mut output_edges = dag.out_of(task);
        output_edges.any(|(_, edge)| edge.to == order[place])
    });

    // Between the two the order stays topological.
    let lowest_place = last_before.map_or(0, |place| place + 1);
    let highest_place = first_after.unwrap_or(order.len());
    let new_place = lowest_place + rng.below(highest_place - lowest_place);
    if new_place < from {
        order[new_place..=from].rotate_right(1);
    } else {
        order[from..=new_place].rotate_left(1);
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
    let task_count = dag.tasks();
    // Sets of tasks are words of 64 bits.
    if task_count > MAX_TASKS {
        return BranchResult {
            better: None,
            complete: false,
            nodes: 0,
        };
    }
    let mut search = BranchSearch {
        dag,
        tail: optimistic_costs(dag),
        min_time: (0..task_count).map(|task| dag.min_time(task)).collect(),
        best,
        better: None,
        nodes: 0,
        limit,
        stop,
        seen: BTreeMap::new(),
        states: 0,
        placed: 0,
        processor: vec![0; task_count],
        start: vec![0; task_count],
        end: vec![0; task_count],
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

        // Cut where no schedule from here can be better, or one that was seen is no worse.
        if self.bound() >= self.best || self.is_dominated() {
            return true;
        }

        for child in self.children() {
            // The best may have improved since the children were listed.
            if child.bound >= self.best {
                continue;
            }
            let task = child.task;
            let task_time = self.dag.time(task, child.processor).unwrap_or(0);
            let free_before = self.free[child.processor];
            self.placed |= 1 << task;
            self.processor[task] = child.processor as u32;
            self.start[task] = child.end - task_time;
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
        let found_makespan = self.end.iter().copied().max().unwrap_or(0);
        if found_makespan < self.best {
            self.best = found_makespan;
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
        // A processor can have tasks of no ticks and be free at 0.
        let mut placed_tasks = (0..self.dag.tasks()).filter(|&task| self.is_placed(task));
        self.free[processor] == 0
            && !placed_tasks.any(|task| self.processor[task] as usize == processor)
    }

    /// When a task can start on a processor, given its placed predecessors and what the processor does.
    fn earliest_start(&self, task: usize, processor: usize, time: u64) -> u64 {
        // Inputs from the same processor are there at once.
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
        let mut ready_children = Vec::new();

        for task in 0..self.dag.tasks() {
            let mut input_edges = self.dag.edges_into(task);
            let is_ready = !self.is_placed(task)
                && input_edges.all(|(_, edge)| self.is_placed(edge.from as usize));
            if !is_ready {
                continue;
            }
            for processor in 0..processors {
                let Some(time) = self.dag.time(task, processor) else {
                    continue;
                };
                // Of two alike and empty processors the first is used.
                let alike_processor = self.twin[processor];
                if self.is_empty(processor)
                    && alike_processor.is_some_and(|alike_processor| self.is_empty(alike_processor))
                {
                    continue;
                }
                let end = self.earliest_start(task, processor, time) + time;
                ready_children.push(Child {
                    bound: end + self.tail[task * processors + processor],
                    end,
                    task,
                    processor,
                });
            }
        }
        ready_children.sort_unstable();
        ready_children
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
                    let input_arrival = match self.is_placed(from) {
                        true => {
                            let from_processor = self.processor[from] as usize;
                            self.end[from] + self.dag.transfer(index, from_processor, processor)
                        }
                        false => earliest_end[from],
                    };
                    start = start.max(input_arrival);
                }
                let path_tail = self.tail[task * processors + processor];
                min_through = min_through.min(start + time + path_tail);
                min_end = min_end.min(start + time);
            }
            earliest_end[task] = min_end;
            longest_path = longest_path.max(min_through);
        }

        let total_work = self.free.iter().sum::<u64>() + work_left;
        longest_path.max(total_work.div_ceil(processors as u64))
    }

    fn is_dominated(&mut self) -> bool {
        let mut read_from = Vec::new();
        let mut own_figures: StateFigures = self.free.clone();
        let mut last_end = 0;
        for task in (0..self.dag.tasks()).filter(|&task| self.is_placed(task)) {
            let mut output_edges = self.dag.out_of(task);
            if output_edges.any(|(_, edge)| !self.is_placed(edge.to as usize)) {
                read_from.push(self.processor[task]);
                own_figures.push(self.end[task]);
            }
            last_end = self.end[task].max(last_end);
        }
        // Tasks that nobody reads any more count by their end only.
        own_figures.push(last_end);

        let known_figures = self.seen.entry((self.placed, read_from)).or_default();
        if known_figures
            .iter()
            .any(|other| is_no_worse(other, &own_figures))
        {
            return true;
        }
        let known_before = known_figures.len();
        // What is worse than this state need not be remembered any more.
        known_figures.retain(|other| !is_no_worse(&own_figures, other));
        self.states -= known_before - known_figures.len();
        if self.states < MAX_STATES {
            known_figures.push(own_figures);
            self.states += 1;
        }
        false
    }
}
