//! List scheduling on unlike processors with transfers: HEFT, CPOP, PEFT, lookahead, and the decoder of local search.

use super::dag::{Dag, Schedule};

/// Steps beyond which lookahead, the dearest heuristic, is left out.
const MAX_LOOKAHEAD_STEPS: usize = 4_000_000;

/// A schedule under construction.
#[derive(Clone, Debug)]
pub(crate) struct Builder<'a> {
    dag: &'a Dag,
    /// Busy stretches of each processor, by start.
    busy: Vec<Vec<(u64, u64)>>,
    processor: Vec<u32>,
    start: Vec<u64>,
    end: Vec<u64>,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(dag: &'a Dag) -> Self {
        let tasks = dag.tasks();
        Builder {
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
    fn ready(&self, task: usize, processor: usize) -> u64 {
        let arrivals = self.dag.edges_into(task).map(|(e, edge)| {
            let from = edge.from as usize;
            self.end[from]
                + self
                    .dag
                    .transfer(e, self.processor[from] as usize, processor)
        });
        arrivals.max().unwrap_or(0)
    }

    /// The earliest start of a task on a processor, in a gap if it fits, and the place in `busy`.
    fn earliest(&self, task: usize, processor: usize, time: u64) -> (u64, usize) {
        let mut start = self.ready(task, processor);
        let busy = &self.busy[processor];
        let mut at = busy.partition_point(|b| b.1 <= start);
        while at < busy.len() && busy[at].0 < start + time {
            start = start.max(busy[at].1);
            at += 1;
        }
        (start, at)
    }

    pub(crate) fn put(&mut self, task: usize, processor: usize) {
        let time = self.dag.time(task, processor).unwrap_or(0);
        let (start, at) = self.earliest(task, processor, time);
        if time > 0 {
            self.busy[processor].insert(at, (start, start + time));
        }
        self.processor[task] = processor as u32;
        self.start[task] = start;
        self.end[task] = start + time;
    }

    fn undo(&mut self, task: usize) {
        let span = (self.start[task], self.end[task]);
        self.busy[self.processor[task] as usize].retain(|b| *b != span);
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
    fn choices(&self, task: usize) -> impl Iterator<Item = (usize, u64)> {
        (0..self.dag.processors()).filter_map(move |p| {
            let time = self.dag.time(task, p)?;
            Some((p, self.earliest(task, p, time).0 + time))
        })
    }
}

/// Which time of a task stands for it in ranks.
#[derive(Clone, Copy)]
enum Typical {
    Mean,
    Least,
    Most,
}

fn typical(dag: &Dag, task: usize, which: Typical) -> f64 {
    let times = (0..dag.processors()).filter_map(|p| dag.time(task, p));
    match which {
        Typical::Mean => {
            let (sum, count) = times.fold((0u64, 0u64), |(s, c), t| (s + t, c + 1));
            sum as f64 / count.max(1) as f64
        }
        Typical::Least => times.min().unwrap_or(0) as f64,
        Typical::Most => times.max().unwrap_or(0) as f64,
    }
}

/// Longest path from the start of a task to the end of all ("upward rank").
fn upward(dag: &Dag, which: Typical) -> Vec<f64> {
    let mut rank = vec![0f64; dag.tasks()];
    for &task in dag.topological().iter().rev() {
        let task = task as usize;
        let after = dag
            .out_of(task)
            .map(|(e, edge)| dag.mean_transfer(e) as f64 + rank[edge.to as usize]);
        rank[task] = typical(dag, task, which) + after.fold(0.0, f64::max);
    }
    rank
}

/// Longest path from the start of all to the start of a task ("downward rank").
fn downward(dag: &Dag) -> Vec<f64> {
    let mut rank = vec![0f64; dag.tasks()];
    for &task in dag.topological() {
        let task = task as usize;
        let before = dag.edges_into(task).map(|(e, edge)| {
            let from = edge.from as usize;
            rank[from] + typical(dag, from, Typical::Mean) + dag.mean_transfer(e) as f64
        });
        rank[task] = before.fold(0.0, f64::max);
    }
    rank
}

/// Ready tasks by highest rank, ties by lower index.
pub(crate) fn order_by(dag: &Dag, rank: &[f64]) -> Vec<u32> {
    let mut waiting: Vec<usize> = (0..dag.tasks())
        .map(|t| dag.edges_into(t).count())
        .collect();
    // Non-negative floats order as their bits do.
    let entry = |t: usize| (rank[t].max(0.0).to_bits(), std::cmp::Reverse(t));
    let mut ready: std::collections::BinaryHeap<_> = (0..dag.tasks())
        .filter(|&t| waiting[t] == 0)
        .map(entry)
        .collect();
    let mut order = Vec::with_capacity(dag.tasks());
    while let Some((_, std::cmp::Reverse(task))) = ready.pop() {
        order.push(task as u32);
        for (_, edge) in dag.out_of(task) {
            let to = edge.to as usize;
            waiting[to] -= 1;
            if waiting[to] == 0 {
                ready.push(entry(to));
            }
        }
    }
    order
}

/// Places tasks in order, each where `key(task, processor, end)` is least.
fn greedy(dag: &Dag, order: &[u32], key: impl Fn(usize, usize, u64) -> f64) -> Schedule {
    let mut builder = Builder::new(dag);
    for &task in order {
        let task = task as usize;
        let choices = builder
            .choices(task)
            .map(|(p, end)| (key(task, p, end), end, p));
        let best = choices.min_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        builder.put(task, best.map_or(0, |b| b.2));
    }
    builder.schedule()
}

/// Heterogeneous earliest finish time. Source: Topcuoglu, Hariri & Wu 2002, IEEE TPDS 13(3).
pub(crate) fn heft(dag: &Dag) -> Schedule {
    greedy(
        dag,
        &order_by(dag, &upward(dag, Typical::Mean)),
        |_, _, end| end as f64,
    )
}

/// Critical path on a processor: the tasks of the longest path all go to the processor that is quickest for them.
/// Source: the same.
pub(crate) fn cpop(dag: &Dag) -> Schedule {
    let (up, down) = (upward(dag, Typical::Mean), downward(dag));
    let priority: Vec<f64> = up.iter().zip(&down).map(|(u, d)| u + d).collect();
    let length = priority.iter().copied().fold(0.0, f64::max);
    let near = |p: f64| p >= length * (1.0 - 1e-9);
    let critical: Vec<bool> = priority.iter().map(|&p| near(p)).collect();
    let total = |p: usize| {
        let members = (0..dag.tasks()).filter(|&t| critical[t]);
        members
            .map(|t| dag.time(t, p))
            .try_fold(0u64, |sum, time| Some(sum + time?))
    };
    let home = (0..dag.processors())
        .filter_map(|p| Some((total(p)?, p)))
        .min();
    let home = home.map(|h| h.1);
    greedy(dag, &order_by(dag, &priority), |task, p, end| {
        if critical[task] && home.is_some_and(|h| h != p) {
            f64::INFINITY
        } else {
            end as f64
        }
    })
}

/// For each task and processor the longest path from the end of the task to the end of all when every task after it
/// takes the processor that is best for it (the "optimistic cost table"); so also a lower bound. By task, then
/// processor; infinite (`u64::MAX`) nowhere, as tasks run somewhere.
pub(crate) fn optimistic(dag: &Dag) -> Vec<u64> {
    let processors = dag.processors();
    let mut table = vec![0u64; dag.tasks() * processors];
    for &task in dag.topological().iter().rev() {
        for p in 0..processors {
            let after = dag.out_of(task as usize).map(|(e, edge)| {
                let to = edge.to as usize;
                let choices = (0..processors).filter_map(|q| {
                    let time = dag.time(to, q)?;
                    Some(table[to * processors + q] + time + dag.transfer(e, p, q))
                });
                choices.min().unwrap_or(0)
            });
            table[task as usize * processors + p] = after.max().unwrap_or(0);
        }
    }
    table
}

/// Predict earliest finish time. Source: Arabnejad & Barbosa 2014, IEEE TPDS 25(3).
pub(crate) fn peft(dag: &Dag) -> Schedule {
    // The published table uses mean transfers; the bound above, exact ones. With uniform links they are equal.
    let table = optimistic(dag);
    let processors = dag.processors();
    let rank: Vec<f64> = table
        .chunks(processors.max(1))
        .map(|row| row.iter().map(|&c| c as f64).sum::<f64>() / processors as f64)
        .collect();
    let order = order_by(dag, &rank);
    greedy(dag, &order, |task, p, end| {
        end as f64 + table[task * processors + p] as f64
    })
}

/// HEFT that places each task where the latest of its successors could end soonest.
/// Source: Bittencourt, Sakellariou & Madeira 2010 (PDP).
fn lookahead(dag: &Dag) -> Schedule {
    let order = order_by(dag, &upward(dag, Typical::Mean));
    let mut builder = Builder::new(dag);
    let mut placed = vec![false; dag.tasks()];
    for &task in &order {
        let task = task as usize;
        placed[task] = true;
        let choices: Vec<(usize, u64)> = builder.choices(task).collect();
        let mut best = None;
        for (p, end) in choices {
            builder.put(task, p);
            let children = dag.out_of(task).map(|(_, edge)| edge.to as usize);
            let known = children.filter(|&c| {
                dag.edges_into(c)
                    .all(|(_, edge)| placed[edge.from as usize])
            });
            let last = known
                .map(|c| builder.choices(c).map(|(_, e)| e).min().unwrap_or(0))
                .max();
            builder.undo(task);
            let key = (last.unwrap_or(end), end, p);
            if best.is_none_or(|b| key < b) {
                best = Some(key);
            }
        }
        builder.put(task, best.map_or(0, |b| b.2));
    }
    builder.schedule()
}

/// All constructive heuristics, by name.
pub(crate) fn portfolio(dag: &Dag) -> Vec<(&'static str, Schedule)> {
    let mut found = vec![
        ("HEFT", heft(dag)),
        ("CPOP", cpop(dag)),
        ("PEFT", peft(dag)),
    ];
    for which in [Typical::Least, Typical::Most] {
        let order = order_by(dag, &upward(dag, which));
        found.push(("HEFT", greedy(dag, &order, |_, _, end| end as f64)));
    }
    let table = optimistic(dag);
    let processors = dag.processors();
    let order = order_by(dag, &upward(dag, Typical::Mean));
    let key = |task: usize, p: usize, end: u64| (end + table[task * processors + p]) as f64;
    found.push(("PEFT", greedy(dag, &order, key)));
    let steps = dag.edges().len() * dag.processors() * dag.processors() * 8;
    if steps <= MAX_LOOKAHEAD_STEPS {
        found.push(("lookahead", lookahead(dag)));
    }
    for p in 0..processors {
        if (0..dag.tasks()).all(|t| dag.time(t, p).is_some()) {
            let key = |_, q, _| if q == p { 0.0 } else { 1.0 };
            found.push(("one processor", greedy(dag, dag.topological(), key)));
        }
    }
    found
}
