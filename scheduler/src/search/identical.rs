//! P | prec | Cmax: identical processors without transfers. Heads, tails, lower bounds, and decoding of task lists.

use super::dag::{Dag, Schedule};

/// The problem with its heads and tails.
#[derive(Clone, Debug)]
pub(crate) struct Identical {
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

/// Most terms of the interval bound at one target: of many tasks it looks at fewer intervals.
const MAX_INTERVAL_TERMS: usize = 4_000_000;

impl Identical {
    /// The problem of a graph for which [`Dag::is_identical`] holds.
    pub(crate) fn of(dag: &Dag) -> Identical {
        let tasks = dag.tasks();
        let time: Vec<u64> = (0..tasks).map(|t| dag.least_time(t)).collect();
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); tasks];
        for edge in dag.edges() {
            before[edge.to as usize].push(edge.from as usize);
        }
        let topological = dag.topological().iter().map(|&t| t as usize).collect();
        // A graph without tasks does not say how many processors there are.
        Identical::new(dag.processors().max(1), time, before, topological)
    }

    fn new(
        machines: usize,
        time: Vec<u64>,
        mut before: Vec<Vec<usize>>,
        topological: Vec<usize>,
    ) -> Identical {
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); time.len()];
        for (to, list) in before.iter_mut().enumerate() {
            list.sort_unstable();
            list.dedup();
            for &from in list.iter() {
                after[from].push(to);
            }
        }
        let head = heads(machines, &time, &before, topological.iter().copied());
        let tail = heads(machines, &time, &after, topological.iter().rev().copied());
        Identical {
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
    pub(crate) fn reversed(&self) -> Identical {
        Identical {
            machines: self.machines,
            time: self.time.clone(),
            before: self.after.clone(),
            after: self.before.clone(),
            topological: self.topological.iter().rev().copied().collect(),
            head: self.tail.clone(),
            tail: self.head.clone(),
        }
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
        let path = (0..self.tasks())
            .map(|i| self.head[i] + self.time[i] + self.tail[i])
            .max();
        let work: u64 = self.time.iter().sum();
        let mut low = path.unwrap_or(0).max(work.div_ceil(self.machines as u64));
        let mut high = low.saturating_add(work);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.overloaded(middle) {
                low = middle + 1
            } else {
                high = middle
            }
        }
        low
    }

    /// Whether some interval must hold more work than it can if all is to end by `end`.
    pub(crate) fn overloaded(&self, end: u64) -> bool {
        let latest: Vec<u64> = self.tail.iter().map(|t| end - t.min(&end)).collect();
        let mut from: Vec<u64> = self.head.clone();
        from.extend(latest.iter().zip(&self.time).map(|(l, t)| l - t.min(l)));
        let mut to: Vec<u64> = latest.clone();
        to.extend(self.head.iter().zip(&self.time).map(|(h, t)| h + t));
        let most = (MAX_INTERVAL_TERMS / self.tasks().max(1)).isqrt().max(2);
        for points in [&mut from, &mut to] {
            points.sort_unstable();
            points.dedup();
            let step = points.len().div_ceil(most).max(1);
            if step > 1 {
                *points = points.iter().copied().step_by(step).collect();
            }
        }
        let machines = self.machines as u64;
        from.iter().any(|&a| {
            to.iter().filter(|&&b| b > a).any(|&b| {
                let mandatory = |i: usize| {
                    let time = self.time[i];
                    let left = (self.head[i] + time).saturating_sub(a);
                    let right = (b + time).saturating_sub(latest[i]);
                    time.min(b - a).min(left).min(right)
                };
                (0..self.tasks()).map(mandatory).sum::<u64>() > machines * (b - a)
            })
        })
    }

    /// Places tasks in list order, each as early as its predecessors in the list and the machines allow, gaps
    /// included. The list must be topological.
    pub(crate) fn serial(&self, list: &[usize], scratch: &mut Scratch) -> Vec<u64> {
        let mut start = vec![0; self.tasks()];
        scratch.steps.clear();
        scratch.steps.push((0, 0));
        for &task in list {
            let ready = self.before[task]
                .iter()
                .map(|&b| start[b] + self.time[b])
                .max();
            start[task] = scratch.take(ready.unwrap_or(0), self.time[task], self.machines);
        }
        start
    }

    /// Runs time forwards and never lets a machine idle while a task is ready; `rank` is a task's place in the
    /// list. (Graham 1966.)
    pub(crate) fn parallel(&self, list: &[usize]) -> Vec<u64> {
        let tasks = self.tasks();
        let mut rank = vec![0; tasks];
        for (place, &task) in list.iter().enumerate() {
            rank[task] = place;
        }
        let mut waiting: Vec<usize> = self.before.iter().map(Vec::len).collect();
        let mut ready: std::collections::BinaryHeap<std::cmp::Reverse<usize>> = (0..tasks)
            .filter(|&t| waiting[t] == 0)
            .map(|t| std::cmp::Reverse(rank[t]))
            .collect();
        let mut running: std::collections::BinaryHeap<std::cmp::Reverse<(u64, usize)>> =
            std::collections::BinaryHeap::new();
        let mut start = vec![0; tasks];
        let mut now = 0;
        loop {
            while running.len() < self.machines {
                let Some(std::cmp::Reverse(place)) = ready.pop() else {
                    break;
                };
                start[list[place]] = now;
                running.push(std::cmp::Reverse((
                    now + self.time[list[place]],
                    list[place],
                )));
            }
            let Some(std::cmp::Reverse((end, _))) = running.peek().copied() else {
                return start;
            };
            now = end;
            while let Some(std::cmp::Reverse((_, task))) =
                running.peek().copied().filter(|r| r.0.0 == now)
            {
                running.pop();
                for &next in &self.after[task] {
                    waiting[next] -= 1;
                    if waiting[next] == 0 {
                        ready.push(std::cmp::Reverse(rank[next]));
                    }
                }
            }
        }
    }

    /// Tasks by start, ties by topological place: a list that `serial` decodes to starts no later.
    pub(crate) fn list_of(&self, start: &[u64], place: &[usize]) -> Vec<usize> {
        let mut list: Vec<usize> = (0..self.tasks()).collect();
        list.sort_unstable_by_key(|&t| (start[t], start[t] + self.time[t], place[t]));
        list
    }

    /// Processor of each task for given starts, if no more tasks than machines run at once.
    pub(crate) fn assign(&self, start: &[u64]) -> Option<Schedule> {
        let mut order: Vec<usize> = (0..self.tasks()).collect();
        order.sort_unstable_by_key(|&t| (start[t], start[t] + self.time[t], t));
        let mut free = vec![0u64; self.machines];
        let mut processor = vec![0; self.tasks()];
        for task in order.into_iter().filter(|&t| self.time[t] > 0) {
            let machine = (0..self.machines).find(|&m| free[m] <= start[task])?;
            processor[task] = machine as u32;
            free[machine] = start[task] + self.time[task];
        }
        Some(Schedule {
            processor,
            start: start.to_vec(),
        })
    }

    /// Place of each task in the topological order.
    pub(crate) fn places(&self) -> Vec<usize> {
        let mut place = vec![0; self.tasks()];
        for (at, &task) in self.topological.iter().enumerate() {
            place[task] = at;
        }
        place
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
    let words = tasks.div_ceil(64);
    let closed = tasks <= MAX_CLOSURE;
    let mut above = vec![0u64; if closed { tasks * words } else { 0 }];
    let mut head = vec![0u64; tasks];
    let mut by_head = Vec::new();
    for task in topological {
        by_head.clear();
        if closed {
            for &b in &before[task] {
                for w in 0..words {
                    let bits = above[b * words + w];
                    above[task * words + w] |= bits;
                }
                above[task * words + b / 64] |= 1 << (b % 64);
            }
            for w in 0..words {
                let mut bits = above[task * words + w];
                while bits != 0 {
                    by_head.push(w * 64 + bits.trailing_zeros() as usize);
                    bits &= bits - 1;
                }
            }
        } else {
            by_head.extend_from_slice(&before[task]);
        }
        by_head.sort_unstable_by_key(|&b| std::cmp::Reverse(head[b]));
        let mut work = 0;
        for &b in &by_head {
            work += time[b];
            let load = head[b] + work.div_ceil(machines as u64);
            head[task] = head[task].max(load).max(head[b] + time[b]);
        }
    }
    head
}

/// Machines in use over time, reused between decodings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    /// Machines in use from each time to the next, by time.
    steps: Vec<(u64, usize)>,
}

impl Scratch {
    /// Finds and takes the earliest stretch of `time` from `ready` on with a free machine.
    fn take(&mut self, ready: u64, time: u64, machines: usize) -> u64 {
        if time == 0 {
            return ready;
        }
        let steps = &mut self.steps;
        let mut at = steps.partition_point(|s| s.0 <= ready) - 1;
        let mut start = ready;
        let mut scan = at;
        while scan < steps.len() && steps[scan].0 < start + time {
            if steps[scan].1 >= machines {
                // Beyond the last step nothing runs, so there is a next one.
                scan += 1;
                start = steps[scan].0;
                at = scan;
            } else {
                scan += 1;
            }
        }
        let end = start + time;
        if steps[at].0 < start {
            let used = steps[at].1;
            at += 1;
            steps.insert(at, (start, used));
        }
        let mut last = at;
        while last < steps.len() && steps[last].0 < end {
            last += 1;
        }
        if last == steps.len() || steps[last].0 > end {
            let used = steps[last - 1].1;
            steps.insert(last, (end, used));
        }
        for step in &mut steps[at..last] {
            step.1 += 1;
        }
        start
    }
}
