//! P | prec | Cmax: identical processors without transfers. Heads, tails, lower bounds, and decoding of task lists.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::dag::{Dag, Schedule};

/// The problem with its heads and tails.
#[derive(Clone, Debug)]
pub(crate) struct IdenticalProblem {
    pub(crate) machines: usize,
    pub(crate) time: Vec<u64>,
    pub(crate) before: Vec<Vec<usize>>,
    pub(crate) after: Vec<Vec<usize>>,
    pub(crate) topological: Vec<usize>,
    /// Earliest start and least time from the end of the task to the end of all, by paths and by load.
    pub(crate) head: Vec<u64>,
    pub(crate) tail: Vec<u64>,
}

/// Tasks beyond which heads and tails look at direct neighbours only: the closure takes V^2 bits.
const MAX_CLOSURE: usize = 3000;

/// Terms of the interval bound at one target at most: of many tasks it looks at fewer intervals.
const MAX_INTERVAL_TERMS: usize = 4_000_000;

impl IdenticalProblem {
    /// The problem of a graph for which [`Dag::is_identical`] holds.
    pub(crate) fn of(dag: &Dag) -> IdenticalProblem {
        let tasks = dag.tasks();
        let time: Vec<u64> = (0..tasks).map(|t| dag.min_time(t)).collect();
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); tasks];
        for edge in dag.edges() {
            before[edge.to as usize].push(edge.from as usize);
        }
        let topological = dag.topological().iter().map(|&t| t as usize).collect();
        // A graph without tasks does not say how many processors there are.
        IdenticalProblem::new(dag.processors().max(1), time, before, topological)
    }

    fn new(
        machines: usize,
        time: Vec<u64>,
        mut before: Vec<Vec<usize>>,
        topological: Vec<usize>,
    ) -> IdenticalProblem {
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); time.len()];
        for (to, predecessors) in before.iter_mut().enumerate() {
            predecessors.sort_unstable();
            predecessors.dedup();
            for &from in predecessors.iter() {
                after[from].push(to);
            }
        }

        let head = heads(machines, &time, &before, topological.iter().copied());
        let tail = heads(machines, &time, &after, topological.iter().rev().copied());

        IdenticalProblem {
            machines,
            time,
            before,
            after,
            topological,
            head,
            tail,
        }
    }

    /// The same problem with time running backwards.
    pub(crate) fn reversed(&self) -> IdenticalProblem {
        IdenticalProblem {
            machines: self.machines,
            time: self.time.clone(),
            before: self.after.clone(),
            after: self.before.clone(),
            topological: self.topological.iter().rev().copied().collect(),
            head: self.tail.clone(),
            tail: self.head.clone(),
        }
    }

    /// Starts in the problem with time running backwards, so that all end as late as possible.
    pub(crate) fn mirror_starts(&self, start: &[u64]) -> Vec<u64> {
        let makespan_end = self.makespan(start);
        let tasks = start.iter().zip(&self.time);
        tasks
            .map(|(start, time)| makespan_end - start - time)
            .collect()
    }

    pub(crate) fn tasks(&self) -> usize {
        self.time.len()
    }

    pub(crate) fn makespan(&self, start: &[u64]) -> u64 {
        start
            .iter()
            .zip(&self.time)
            .map(|(s, t)| s + t)
            .max()
            .unwrap_or(0)
    }

    /// Lower bound on the makespan: the longest path with load-aware heads and tails, and the least end for which
    /// no interval holds more mandatory work than the machines can do.
    ///
    /// Source: Fernandez & Bussell 1973 (IEEE Trans. Comput. C-22); mandatory parts after Lopez & Esquirol 1996.
    pub(crate) fn bound(&self) -> u64 {
        let task_paths =
            (0..self.tasks()).map(|task| self.head[task] + self.time[task] + self.tail[task]);
        let longest_path = task_paths.max().unwrap_or(0);
        let total_work: u64 = self.time.iter().sum();

        // The least end for which no interval is overloaded: more time only relieves intervals.
        let mut lowest_end = longest_path.max(total_work.div_ceil(self.machines as u64));
        let mut highest_end = lowest_end.saturating_add(total_work);
        while lowest_end < highest_end {
            let middle_end = lowest_end + (highest_end - lowest_end) / 2;
            match self.is_overloaded(middle_end) {
                true => lowest_end = middle_end + 1,
                false => highest_end = middle_end,
            }
        }
        lowest_end
    }

    /// Whether some interval must hold more work than it can if all is to end by `end`.
    pub(crate) fn is_overloaded(&self, end: u64) -> bool {
        let latest_end: Vec<u64> = self.tail.iter().map(|tail| end - tail.min(&end)).collect();
        let mut from = self.head.clone();
        let mut to = latest_end.clone();
        for (task, &time) in self.time.iter().enumerate() {
            from.push(latest_end[task].saturating_sub(time));
            to.push(self.head[task] + time);
        }

        let max_points = (MAX_INTERVAL_TERMS / self.tasks().max(1)).isqrt().max(2);
        thin_out(&mut from, max_points);
        thin_out(&mut to, max_points);
        from.iter().any(|&start| {
            let ends = to.iter().filter(|&&end| end > start);
            ends.copied()
                .any(|end| self.is_interval_overloaded(start, end, &latest_end))
        })
    }

    /// Whether an interval holds more mandatory work than the machines can do.
    fn is_interval_overloaded(&self, start: u64, end: u64, latest_end: &[u64]) -> bool {
        let length = end - start;
        let mut mandatory_work = 0;
        for (task, &time) in self.time.iter().enumerate() {
            // As early as possible it still has so much after the start, as late as possible so much before the end.
            let after_start = (self.head[task] + time).saturating_sub(start);
            let before_end = (end + time).saturating_sub(latest_end[task]);
            mandatory_work += time.min(length).min(after_start).min(before_end);
        }
        mandatory_work > self.machines as u64 * length
    }

    /// Places tasks in list order, each as early as its predecessors in the list and the machines allow, gaps
    /// included. The list must be topological.
    pub(crate) fn serial(&self, list: &[usize], usage: &mut MachineUsage) -> Vec<u64> {
        let mut start = vec![0; self.tasks()];
        usage.steps.clear();
        usage.steps.push((0, 0));
        for &task in list {
            let ready = self.before[task]
                .iter()
                .map(|&b| start[b] + self.time[b])
                .max();
            start[task] = usage.take(ready.unwrap_or(0), self.time[task], self.machines);
        }
        start
    }

    /// Runs time forwards and never lets a machine idle while a task is ready; `rank` is a task's place in the
    /// list. (Graham 1966.)
    pub(crate) fn parallel(&self, list: &[usize]) -> Vec<u64> {
        let tasks = self.tasks();
        let mut place_of = vec![0; tasks];
        for (place, &task) in list.iter().enumerate() {
            place_of[task] = place;
        }
        let mut waiting_for: Vec<usize> = self.before.iter().map(Vec::len).collect();
        let mut ready_places: BinaryHeap<Reverse<usize>> = (0..tasks)
            .filter(|&task| waiting_for[task] == 0)
            .map(|task| Reverse(place_of[task]))
            .collect();
        let mut running_tasks: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let mut start = vec![0; tasks];
        let mut now = 0;

        loop {
            // Starts as many as there are machines free, the first of the list first.
            while running_tasks.len() < self.machines {
                let Some(Reverse(place)) = ready_places.pop() else {
                    break;
                };
                let task = list[place];
                start[task] = now;
                running_tasks.push(Reverse((now + self.time[task], task)));
            }

            let Some(&Reverse((next_end, _))) = running_tasks.peek() else {
                return start;
            };
            now = next_end;
            while let Some(&Reverse((end, task))) = running_tasks.peek()
                && end == now
            {
                running_tasks.pop();
                for &next in &self.after[task] {
                    waiting_for[next] -= 1;
                    if waiting_for[next] == 0 {
                        ready_places.push(Reverse(place_of[next]));
                    }
                }
            }
        }
    }

    /// Tasks by start, ties by topological place: a list that `serial` decodes to starts no later.
    pub(crate) fn list_of(&self, start: &[u64], place: &[usize]) -> Vec<usize> {
        let mut list: Vec<usize> = (0..self.tasks()).collect();
        list.sort_unstable_by_key(|&task| {
            (start[task], start[task] + self.time[task], place[task])
        });
        list
    }

    /// Processor of each task for given starts, if no more tasks than machines run at once.
    pub(crate) fn assign(&self, start: &[u64]) -> Option<Schedule> {
        let mut order: Vec<usize> = (0..self.tasks()).collect();
        order.sort_unstable_by_key(|&task| (start[task], start[task] + self.time[task], task));
        let mut free_at = vec![0u64; self.machines];
        let mut processor = vec![0; self.tasks()];
        // Tasks of no ticks need no machine.
        for task in order.into_iter().filter(|&task| self.time[task] > 0) {
            let machine = (0..self.machines).find(|&machine| free_at[machine] <= start[task])?;
            processor[task] = machine as u32;
            free_at[machine] = start[task] + self.time[task];
        }
        Some(Schedule {
            processor,
            start: start.to_vec(),
        })
    }

    /// Place of each task in the topological order.
    pub(crate) fn places(&self) -> Vec<usize> {
        let mut place_of = vec![0; self.tasks()];
        for (place, &task) in self.topological.iter().enumerate() {
            place_of[task] = place;
        }
        place_of
    }
}

/// Earliest starts: the longest path, and for the ancestors of a task with head at least h, h plus their work over
/// all machines.
fn heads(
    machines: usize,
    time: &[u64],
    before: &[Vec<usize>],
    topological: impl Iterator<Item = usize>,
) -> Vec<u64> {
    let tasks = time.len();
    let mut closure = (tasks <= MAX_CLOSURE).then(|| AncestorSets::new(tasks));
    let mut head = vec![0u64; tasks];
    let mut by_head = Vec::new();

    for task in topological {
        by_head.clear();
        match &mut closure {
            Some(closure) => closure.add(task, &before[task], &mut by_head),
            None => by_head.extend_from_slice(&before[task]),
        }

        by_head.sort_unstable_by_key(|&ancestor| Reverse(head[ancestor]));
        let mut ancestor_work = 0;
        for &ancestor in &by_head {
            ancestor_work += time[ancestor];
            let by_load = head[ancestor] + ancestor_work.div_ceil(machines as u64);
            let by_path = head[ancestor] + time[ancestor];
            head[task] = head[task].max(by_load).max(by_path);
        }
    }
    head
}

/// The ancestors of each task as rows of bits, 64 to a word.
struct AncestorSets {
    words: usize,
    bits: Vec<u64>,
}

impl AncestorSets {
    fn new(tasks: usize) -> Self {
        let words = tasks.div_ceil(64);
        AncestorSets {
            words,
            bits: vec![0; tasks * words],
        }
    }

    /// Sets the ancestors of a task, given its predecessors, whose ancestors are known; appends them to `found`.
    fn add(&mut self, task: usize, predecessors: &[usize], found: &mut Vec<usize>) {
        let first_word = task * self.words;
        // All ancestors of a predecessor, and the predecessor itself.
        for &predecessor in predecessors {
            for word in 0..self.words {
                self.bits[first_word + word] |= self.bits[predecessor * self.words + word];
            }
            self.bits[first_word + predecessor / 64] |= 1 << (predecessor % 64);
        }

        for word in 0..self.words {
            let mut bits_left = self.bits[first_word + word];
            while bits_left != 0 {
                found.push(word * 64 + bits_left.trailing_zeros() as usize);
                bits_left &= bits_left - 1;
            }
        }
    }
}

/// Sorts points and keeps evenly many of them.
fn thin_out(points: &mut Vec<u64>, max_points: usize) {
    points.sort_unstable();
    points.dedup();
    // Fewer intervals still give a bound, only a weaker one.
    let point_step = points.len().div_ceil(max_points).max(1);
    if point_step > 1 {
        *points = points.iter().copied().step_by(point_step).collect();
    }
}

/// Machines in use over time, reused between decodings.
#[derive(Clone, Debug, Default)]
pub(crate) struct MachineUsage {
    /// Machines in use from each time to the next, by time.
    steps: Vec<(u64, usize)>,
}

impl MachineUsage {
    /// Finds and takes the earliest stretch of `time` from `ready` on with a free machine.
    fn take(&mut self, ready: u64, time: u64, machines: usize) -> u64 {
        if time == 0 {
            return ready;
        }
        let steps = &mut self.steps;
        // The step that holds at `ready`; there is always one at 0.
        let mut first_step = steps.partition_point(|&(step, _)| step <= ready) - 1;
        let mut start = ready;
        let mut scan = first_step;
        while scan < steps.len() && steps[scan].0 < start + time {
            let is_full = steps[scan].1 >= machines;
            scan += 1;
            if is_full {
                // Beyond the last step nothing runs, so there is a next one.
                start = steps[scan].0;
                first_step = scan;
            }
        }

        // Steps at the start and at the end of the stretch, unless they are there.
        let stretch_end = start + time;
        if steps[first_step].0 < start {
            let used_machines = steps[first_step].1;
            first_step += 1;
            steps.insert(first_step, (start, used_machines));
        }
        let mut end_step = first_step;
        while end_step < steps.len() && steps[end_step].0 < stretch_end {
            end_step += 1;
        }
        if end_step == steps.len() || steps[end_step].0 > stretch_end {
            let used_machines = steps[end_step - 1].1;
            steps.insert(end_step, (stretch_end, used_machines));
        }

        for (_, used_machines) in &mut steps[first_step..end_step] {
            *used_machines += 1;
        }
        start
    }
}
