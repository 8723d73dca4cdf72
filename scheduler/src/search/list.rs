//! List scheduling on unlike processors with transfers: HEFT, CPOP, PEFT, lookahead, and the decoder of local search.

use super::dag::{Dag, Schedule};
use crate::topological::order_by_priority;

/// Steps beyond which lookahead, the most expensive heuristic, is left out.
const MAX_LOOKAHEAD_STEPS: usize = 4_000_000;

/// A schedule under construction.
#[derive(Clone, Debug)]
pub(crate) struct ScheduleBuilder<'a> {
    dag: &'a Dag,
    /// Starts and ends of the busy stretches of each processor, by start.
    busy: Vec<Vec<(u64, u64)>>,
    processor: Vec<u32>,
    start: Vec<u64>,
    end: Vec<u64>,
}

/// A processor on which a task can run, and its earliest end there.
#[derive(Clone, Copy)]
struct ProcessorChoice {
    processor: usize,
    end: u64,
}

impl<'a> ScheduleBuilder<'a> {
    pub(crate) fn new(dag: &'a Dag) -> Self {
        let tasks = dag.tasks();
        ScheduleBuilder {
            dag,
            busy: vec![Vec::new(); dag.processors()],
            processor: vec![0; tasks],
            start: vec![0; tasks],
            end: vec![0; tasks],
        }
    }

    pub(crate) fn clear(&mut self) {
        self.busy.iter_mut().for_each(Vec::clear);
    }

    /// When all input of a task whose predecessors are placed is there.
    fn ready_time(&self, task: usize, processor: usize) -> u64 {
        let arrivals = self.dag.edges_into(task).map(|(index, edge)| {
            let writer_task = edge.from as usize;
            let from_processor = self.processor[writer_task] as usize;
            self.end[writer_task] + self.dag.transfer(index, from_processor, processor)
        });
        arrivals.max().unwrap_or(0)
    }

    /// The earliest start of a task on a processor, in a gap if it fits, and the place in `busy`.
    fn earliest_start(&self, task: usize, processor: usize, time: u64) -> (u64, usize) {
        // The busy stretches are disjoint and sorted: from the one that ends after the input is there, gap by gap.
        let busy = &self.busy[processor];
        let mut start = self.ready_time(task, processor);
        let mut place = busy.partition_point(|&(_, end)| end <= start);

        while let Some(&(next_start, next_end)) = busy.get(place)
            && next_start < start + time
        {
            start = start.max(next_end);
            place += 1;
        }
        (start, place)
    }

    /// Places a task whose predecessors are placed as early as possible on a processor.
    pub(crate) fn put(&mut self, task: usize, processor: usize) {
        let time = self.dag.time(task, processor).unwrap_or(0);
        let (start, place) = self.earliest_start(task, processor, time);

        // A task without time takes no stretch, which would be empty.
        if time > 0 {
            self.busy[processor].insert(place, (start, start + time));
        }
        self.processor[task] = processor as u32;
        self.start[task] = start;
        self.end[task] = start + time;
    }

    fn undo(&mut self, task: usize) {
        let stretch = (self.start[task], self.end[task]);
        let busy = &mut self.busy[self.processor[task] as usize];
        busy.retain(|known| *known != stretch);
    }

    pub(crate) fn makespan(&self) -> u64 {
        self.end.iter().copied().max().unwrap_or(0)
    }

    pub(crate) fn schedule(&self) -> Schedule {
        Schedule {
            processor: self.processor.clone(),
            start: self.start.clone(),
        }
    }

    /// Possible processors of a task with its earliest end there.
    fn choices(&self, task: usize) -> impl Iterator<Item = ProcessorChoice> {
        (0..self.dag.processors()).filter_map(move |processor| {
            let time = self.dag.time(task, processor)?;
            let (start, _) = self.earliest_start(task, processor, time);
            Some(ProcessorChoice {
                processor,
                end: start + time,
            })
        })
    }
}

/// Which time of a task stands for it in ranks.
#[derive(Clone, Copy)]
enum TypicalTime {
    Mean,
    Min,
    Max,
}

fn typical_time(dag: &Dag, task: usize, which: TypicalTime) -> f64 {
    let times = (0..dag.processors()).filter_map(|processor| dag.time(task, processor));
    match which {
        TypicalTime::Mean => {
            let count = times.clone().count().max(1);
            times.sum::<u64>() as f64 / count as f64
        }
        TypicalTime::Min => times.min().unwrap_or(0) as f64,
        TypicalTime::Max => times.max().unwrap_or(0) as f64,
    }
}

/// Longest path from the start of a task to the end of all ("upward rank").
fn upward_rank(dag: &Dag, which: TypicalTime) -> Vec<f64> {
    let mut rank = vec![0f64; dag.tasks()];
    for &task in dag.topological().iter().rev() {
        let task = task as usize;
        let mut longest_after = 0f64;
        for (index, edge) in dag.out_of(task) {
            let path_after = dag.mean_transfer(index) as f64 + rank[edge.to as usize];
            longest_after = longest_after.max(path_after);
        }
        rank[task] = typical_time(dag, task, which) + longest_after;
    }
    rank
}

/// Longest path from the start of all to the start of a task ("downward rank").
fn downward_rank(dag: &Dag) -> Vec<f64> {
    let mut rank = vec![0f64; dag.tasks()];
    for &task in dag.topological() {
        let task = task as usize;
        for (index, edge) in dag.edges_into(task) {
            let from = edge.from as usize;
            let mean_time = typical_time(dag, from, TypicalTime::Mean);
            let path_before = rank[from] + mean_time + dag.mean_transfer(index) as f64;
            rank[task] = rank[task].max(path_before);
        }
    }
    rank
}

/// Ready tasks by highest rank, ties by lower index.
pub(crate) fn order_by_rank(dag: &Dag, rank: &[f64]) -> Vec<u32> {
    let successors_of: Vec<Vec<usize>> = (0..dag.tasks())
        .map(|task| dag.out_of(task).map(|(_, edge)| edge.to as usize).collect())
        .collect();
    // Non-negative floats order as their bits do.
    let task_order = order_by_priority(&successors_of, |task| rank[task].max(0.0).to_bits());
    task_order.into_iter().map(|task| task as u32).collect()
}

/// Places tasks in order, each where `key(task, processor, end)` is least.
fn place_in_order(dag: &Dag, order: &[u32], key: impl Fn(usize, usize, u64) -> f64) -> Schedule {
    let mut builder = ScheduleBuilder::new(dag);
    for &task in order {
        let task = task as usize;
        let keyed_choices = builder.choices(task).map(|choice| {
            let key = key(task, choice.processor, choice.end);
            (key, choice.end, choice.processor)
        });

        // Ties by the earlier end, then the lower processor: the result depends on the input alone.
        let best_choice =
            keyed_choices.min_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        builder.put(task, best_choice.map_or(0, |(_, _, processor)| processor));
    }
    builder.schedule()
}

/// Heterogeneous earliest finish time. Source: Topcuoglu, Hariri & Wu 2002, IEEE TPDS 13(3).
pub(crate) fn heft(dag: &Dag) -> Schedule {
    let rank_order = order_by_rank(dag, &upward_rank(dag, TypicalTime::Mean));
    place_in_order(dag, &rank_order, |_, _, end| end as f64)
}

/// Critical path on a processor: the tasks of the longest path all go to the processor that is quickest for them.
/// Source: the same.
pub(crate) fn cpop(dag: &Dag) -> Schedule {
    let upward_ranks = upward_rank(dag, TypicalTime::Mean);
    let downward_ranks = downward_rank(dag);

    // The two ranks of a task add up to the longest path through it; on the critical path it is the longest of all, up
    // to rounding.
    let through = upward_ranks.iter().zip(&downward_ranks);
    let path_priority: Vec<f64> = through.map(|(up, down)| up + down).collect();
    let longest_path = path_priority.iter().copied().fold(0.0, f64::max);
    let is_critical: Vec<bool> = path_priority
        .iter()
        .map(|&path| path >= longest_path * (1.0 - 1e-9))
        .collect();

    // Only processors that can run every critical task are candidates; without one, HEFT's choice is left.
    let critical_totals = (0..dag.processors()).filter_map(|processor| {
        let mut critical = (0..dag.tasks()).filter(|&task| is_critical[task]);
        let critical_total =
            critical.try_fold(0u64, |sum, task| Some(sum + dag.time(task, processor)?))?;
        Some((critical_total, processor))
    });
    let critical_processor = critical_totals.min().map(|(_, processor)| processor);

    let priority_order = order_by_rank(dag, &path_priority);
    place_in_order(dag, &priority_order, |task, processor, end| {
        let is_elsewhere =
            critical_processor.is_some_and(|critical_processor| critical_processor != processor);
        match is_critical[task] && is_elsewhere {
            true => f64::INFINITY,
            false => end as f64,
        }
    })
}

/// For each task and processor the longest path from the end of the task to the end of all when every task after it
/// takes the processor that is best for it (the "optimistic cost table"); so also a lower bound. By task, then
/// processor; infinite (`u64::MAX`) nowhere, as tasks run somewhere.
pub(crate) fn optimistic_costs(dag: &Dag) -> Vec<u64> {
    let processors = dag.processors();
    let mut cost_table = vec![0u64; dag.tasks() * processors];
    for &task in dag.topological().iter().rev() {
        for from in 0..processors {
            let mut longest_after = 0;
            for (index, edge) in dag.out_of(task as usize) {
                let successor = edge.to as usize;
                let path_choices = (0..processors).filter_map(|to| {
                    let successor_time = dag.time(successor, to)?;
                    let transfer_time = dag.transfer(index, from, to);
                    Some(cost_table[successor * processors + to] + successor_time + transfer_time)
                });

                // The successor takes its best processor, and of the successors the worst decides.
                longest_after = path_choices.min().unwrap_or(0).max(longest_after);
            }
            cost_table[task as usize * processors + from] = longest_after;
        }
    }
    cost_table
}

/// Predict earliest finish time. Source: Arabnejad & Barbosa 2014, IEEE TPDS 25(3).
pub(crate) fn peft(dag: &Dag) -> Schedule {
    // The published table uses mean transfers; the bound above, exact ones. With uniform links they are equal.
    let cost_table = optimistic_costs(dag);
    let processors = dag.processors();
    let mean_rank: Vec<f64> = cost_table
        .chunks(processors.max(1))
        .map(|row| row.iter().map(|&cost| cost as f64).sum::<f64>() / processors as f64)
        .collect();

    let rank_order = order_by_rank(dag, &mean_rank);
    place_in_order(dag, &rank_order, |task, processor, end| {
        end as f64 + cost_table[task * processors + processor] as f64
    })
}

/// HEFT that places each task where the latest of its successors could end soonest.
/// Source: Bittencourt, Sakellariou & Madeira 2010 (PDP).
fn lookahead(dag: &Dag) -> Schedule {
    let rank_order = order_by_rank(dag, &upward_rank(dag, TypicalTime::Mean));
    let mut builder = ScheduleBuilder::new(dag);
    let mut is_placed = vec![false; dag.tasks()];

    for &task in &rank_order {
        let task = task as usize;
        is_placed[task] = true;
        let choices: Vec<ProcessorChoice> = builder.choices(task).collect();
        let mut best_key = None;

        // Each choice is tried out and taken back.
        for choice in choices {
            builder.put(task, choice.processor);
            let last_end = last_successor_end(&builder, task, &is_placed);
            builder.undo(task);
            let choice_key = (last_end.unwrap_or(choice.end), choice.end, choice.processor);
            if best_key.is_none_or(|known| choice_key < known) {
                best_key = Some(choice_key);
            }
        }
        builder.put(task, best_key.map_or(0, |(_, _, processor)| processor));
    }
    builder.schedule()
}

/// When the last of the successors of a task could end whose predecessors are all placed.
fn last_successor_end(
    builder: &ScheduleBuilder<'_>,
    task: usize,
    is_placed: &[bool],
) -> Option<u64> {
    let dag = builder.dag;
    let all_successors = dag.out_of(task).map(|(_, edge)| edge.to as usize);
    let ready_successors = all_successors.filter(|&successor| {
        let mut input_edges = dag.edges_into(successor);
        input_edges.all(|(_, edge)| is_placed[edge.from as usize])
    });
    ready_successors
        .map(|successor| {
            let possible_ends = builder.choices(successor).map(|choice| choice.end);
            possible_ends.min().unwrap_or(0)
        })
        .max()
}

/// All constructive heuristics, by name.
pub(crate) fn portfolio(dag: &Dag) -> Vec<(&'static str, Schedule)> {
    let mut all_schedules = vec![
        ("HEFT", heft(dag)),
        ("CPOP", cpop(dag)),
        ("PEFT", peft(dag)),
    ];
    for which in [TypicalTime::Min, TypicalTime::Max] {
        let rank_order = order_by_rank(dag, &upward_rank(dag, which));
        all_schedules.push((
            "HEFT",
            place_in_order(dag, &rank_order, |_, _, end| end as f64),
        ));
    }

    // The order of HEFT with the choices of PEFT.
    let cost_table = optimistic_costs(dag);
    let processors = dag.processors();
    let rank_order = order_by_rank(dag, &upward_rank(dag, TypicalTime::Mean));
    let mixed_schedule = place_in_order(dag, &rank_order, |task, processor, end| {
        (end + cost_table[task * processors + processor]) as f64
    });
    all_schedules.push(("PEFT", mixed_schedule));

    let lookahead_steps = dag.edges().len() * processors * processors * 8;
    if lookahead_steps <= MAX_LOOKAHEAD_STEPS {
        all_schedules.push(("lookahead", lookahead(dag)));
    }

    // Without any transfer: the best one where transfers cost more than parallel work gains.
    for home in 0..processors {
        if (0..dag.tasks()).all(|task| dag.time(task, home).is_some()) {
            let alone_schedule = place_in_order(dag, dag.topological(), |_, processor, _| {
                if processor == home { 0.0 } else { 1.0 }
            });
            all_schedules.push(("one processor", alone_schedule));
        }
    }
    all_schedules
}
