//! The problem: tasks with times per processor, edges with transfer times, and its independent checker.

use std::fmt;

/// One precedence constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskEdge {
    /// Task that must have ended.
    pub from: u32,
    /// Task that waits for it.
    pub to: u32,
    /// Amount to transfer when the two run on different processors: ticks, or bytes under [`Dag::with_links`].
    pub cost: u64,
}

/// How long an amount takes between two processors: `latency + ceil(cost * numerator / denominator)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkTime {
    /// Ticks that every transfer takes.
    pub latency: u64,
    /// Ticks for `denominator` units of cost.
    pub numerator: u64,
    /// See `numerator`; at least 1.
    pub denominator: u64,
}

impl LinkTime {
    /// Transfers that take no time.
    pub const FREE: LinkTime = LinkTime {
        latency: 0,
        numerator: 0,
        denominator: 1,
    };

    /// Ticks for an amount (saturating).
    pub fn ticks(&self, amount: u64) -> u64 {
        let over = (u128::from(amount) * u128::from(self.numerator))
            .div_ceil(u128::from(self.denominator.max(1)));
        u64::try_from(over)
            .unwrap_or(u64::MAX)
            .saturating_add(self.latency)
    }
}

/// Why a [`Dag`] cannot be built.
#[expect(missing_docs, reason = "fields that say what their names say")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DagError {
    /// There is no processor.
    #[error("there is no processor")]
    NoProcessor,
    /// A row of times has another length than there are processors.
    #[error("task {task} has {found} times, there are {expected} processors")]
    Times {
        task: u32,
        /// Entries of its row.
        found: usize,
        expected: usize,
    },
    /// No processor can run the task.
    #[error("no processor can run task {task}")]
    Nowhere { task: u32 },
    /// An edge names a task that is not there.
    #[error("edge {from} -> {to}, but there are {tasks} tasks")]
    Edge { from: u32, to: u32, tasks: usize },
    /// The edges form a cycle.
    #[error("the edges form a cycle through task {task}")]
    Cycle {
        /// One task of it.
        task: u32,
    },
    /// The link table is not processors x processors.
    #[error("the table of links has {found} entries, {expected} are needed")]
    Links {
        found: usize,
        /// Processors squared.
        expected: usize,
    },
    /// The sum of all times and transfers is beyond 2^62.
    #[error("the times of all tasks and transfers together exceed 2^62 ticks")]
    Overflow,
}

/// A directed acyclic graph of tasks on unlike processors with transfer times; all times are integer ticks.
///
/// A task runs on one processor without interruption; a processor runs one task at a time (a task of no ticks needs
/// none of its time); a transfer delays the receiver, occupies nobody, and takes no time on the same processor (the
/// model of HEFT and of most of its successors: Topcuoglu, Hariri & Wu 2002).
#[derive(Clone, Debug)]
pub struct Dag {
    processors: usize,
    times: Vec<Vec<Option<u64>>>,
    edges: Vec<TaskEdge>,
    /// Indices into `edges`, by task.
    into: Vec<Vec<u32>>,
    out: Vec<Vec<u32>>,
    topological: Vec<u32>,
    /// Ticks per edge (and per ordered pair of processors, if `pairs`).
    transfers: Vec<u64>,
    pairs: bool,
    largest_transfer: Vec<u64>,
    mean_transfer: Vec<u64>,
}

impl Dag {
    /// A graph in which the cost of an edge is its transfer time between any two processors.
    ///
    /// `times[task][processor]` is `None` where the task cannot or must not run there: so tasks are pinned and
    /// placements forbidden.
    ///
    /// # Errors
    /// See [`DagError`].
    pub fn new(times: Vec<Vec<Option<u64>>>, edges: Vec<TaskEdge>) -> Result<Dag, DagError> {
        let transfers = edges.iter().map(|e| e.cost).collect();
        Dag::build(times, edges, transfers, false)
    }

    /// A graph in which transfer times depend on the pair of processors: entry `from * processors + to` of `links`,
    /// whose diagonal is ignored.
    ///
    /// # Errors
    /// See [`DagError`].
    pub fn with_links(
        times: Vec<Vec<Option<u64>>>,
        edges: Vec<TaskEdge>,
        links: &[LinkTime],
    ) -> Result<Dag, DagError> {
        let processors = times.first().map_or(0, Vec::len);
        let expected = processors * processors;
        if links.len() != expected {
            return Err(DagError::Links {
                found: links.len(),
                expected,
            });
        }
        let mut transfers = Vec::with_capacity(edges.len() * expected);
        for edge in &edges {
            for (pair, link) in links.iter().enumerate() {
                let same = pair / processors == pair % processors;
                transfers.push(if same { 0 } else { link.ticks(edge.cost) });
            }
        }
        Dag::build(times, edges, transfers, true)
    }

    fn build(
        times: Vec<Vec<Option<u64>>>,
        edges: Vec<TaskEdge>,
        transfers: Vec<u64>,
        pairs: bool,
    ) -> Result<Dag, DagError> {
        let processors = times.first().map_or(0, Vec::len);
        if processors == 0 && !times.is_empty() {
            return Err(DagError::NoProcessor);
        }
        let longest_times = sum_longest_times(&times, processors)?;

        let tasks = times.len();
        let mut into = vec![Vec::new(); tasks];
        let mut out = vec![Vec::new(); tasks];
        for (index, edge) in (0u32..).zip(&edges) {
            if edge.from as usize >= tasks || edge.to as usize >= tasks {
                return Err(DagError::Edge {
                    from: edge.from,
                    to: edge.to,
                    tasks,
                });
            }
            into[edge.to as usize].push(index);
            out[edge.from as usize].push(index);
        }

        // With times by pair, those from a processor to itself are 0 and not counted in the mean.
        let stride = if pairs { processors * processors } else { 1 };
        let counted = if pairs { stride - processors } else { 1 };
        let mut largest_transfer = Vec::with_capacity(edges.len());
        let mut mean_transfer = Vec::with_capacity(edges.len());
        for edge_transfers in transfers.chunks(stride.max(1)) {
            let sum: u128 = edge_transfers.iter().map(|&ticks| u128::from(ticks)).sum();
            let mean = sum / counted.max(1) as u128;
            largest_transfer.push(edge_transfers.iter().copied().max().unwrap_or(0));
            mean_transfer.push(if processors < 2 { 0 } else { mean as u64 });
        }

        let largest_transfers = largest_transfer.iter().map(|&ticks| u128::from(ticks));
        if longest_times + largest_transfers.sum::<u128>() >= 1 << 62 {
            return Err(DagError::Overflow);
        }
        let topological = topological(&edges, &into, &out)?;
        Ok(Dag {
            processors,
            times,
            edges,
            into,
            out,
            topological,
            transfers,
            pairs,
            largest_transfer,
            mean_transfer,
        })
    }

    /// Number of tasks.
    pub fn tasks(&self) -> usize {
        self.times.len()
    }

    /// Number of processors.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Ticks of a task on a processor, `None` where it cannot run.
    pub fn time(&self, task: usize, processor: usize) -> Option<u64> {
        self.times[task][processor]
    }

    /// All edges.
    pub fn edges(&self) -> &[TaskEdge] {
        &self.edges
    }

    /// Ticks that the transfer of an edge takes between two processors; 0 on the same one.
    pub fn transfer(&self, edge: usize, from: usize, to: usize) -> u64 {
        if from == to {
            0
        } else if self.pairs {
            self.transfers[(edge * self.processors + from) * self.processors + to]
        } else {
            self.transfers[edge]
        }
    }

    /// Edges into a task: index and edge.
    pub(crate) fn edges_into(&self, task: usize) -> impl Iterator<Item = (usize, &TaskEdge)> {
        self.into[task]
            .iter()
            .map(|&e| (e as usize, &self.edges[e as usize]))
    }

    /// Edges out of a task: index and edge.
    pub(crate) fn out_of(&self, task: usize) -> impl Iterator<Item = (usize, &TaskEdge)> {
        self.out[task]
            .iter()
            .map(|&e| (e as usize, &self.edges[e as usize]))
    }

    /// Tasks, each after its predecessors.
    pub(crate) fn topological(&self) -> &[u32] {
        &self.topological
    }

    pub(crate) fn mean_transfer(&self, edge: usize) -> u64 {
        self.mean_transfer[edge]
    }

    /// Least time over the processors.
    pub(crate) fn min_time(&self, task: usize) -> u64 {
        self.times[task]
            .iter()
            .flatten()
            .copied()
            .min()
            .unwrap_or(0)
    }

    /// Every task takes the same time on each processor and no transfer takes any: the problem P | prec | Cmax.
    pub fn is_identical(&self) -> bool {
        self.largest_transfer.iter().all(|&t| t == 0)
            && self
                .times
                .iter()
                .all(|row| row[0].is_some() && row.iter().all(|t| *t == row[0]))
    }
}

/// Ticks of all tasks, each on the processor that takes the longest.
fn sum_longest_times(times: &[Vec<Option<u64>>], processors: usize) -> Result<u128, DagError> {
    let mut sum = 0u128;

    for (task, row) in (0u32..).zip(times) {
        if row.len() != processors {
            return Err(DagError::Times {
                task,
                found: row.len(),
                expected: processors,
            });
        }
        let longest = row.iter().flatten().max();
        sum += u128::from(*longest.ok_or(DagError::Nowhere { task })?);
    }
    Ok(sum)
}

fn topological(
    edges: &[TaskEdge],
    into: &[Vec<u32>],
    out: &[Vec<u32>],
) -> Result<Vec<u32>, DagError> {
    let mut waiting: Vec<usize> = into.iter().map(Vec::len).collect();
    let mut order: Vec<u32> = (0u32..)
        .zip(&waiting)
        .filter(|(_, w)| **w == 0)
        .map(|(t, _)| t)
        .collect();
    let mut next = 0;
    while let Some(&task) = order.get(next) {
        next += 1;
        for &e in &out[task as usize] {
            let to = edges[e as usize].to;
            waiting[to as usize] -= 1;
            if waiting[to as usize] == 0 {
                order.push(to);
            }
        }
    }
    match (0u32..).zip(&waiting).find(|(_, w)| **w > 0) {
        Some((task, _)) => Err(DagError::Cycle { task }),
        None => Ok(order),
    }
}

/// Where and when each task runs, by task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Processor.
    pub processor: Vec<u32>,
    /// First tick.
    pub start: Vec<u64>,
}

/// What [`check`] found wrong.
#[expect(missing_docs, reason = "fields that say what their names say")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The vectors are not one entry a task.
    #[error("the schedule has {found} entries for {tasks} tasks")]
    Length {
        /// Entries.
        found: usize,
        tasks: usize,
    },
    /// The processor does not exist or cannot run the task.
    #[error("task {task} is on processor {processor}, which cannot run it")]
    Processor {
        task: u32,
        /// The processor.
        processor: u32,
    },
    /// A task starts before its input is there.
    #[error("task {to} starts at {start}, but what it needs of task {from} is there at {ready}")]
    Early {
        from: u32,
        /// Reader.
        to: u32,
        /// When the input is there.
        ready: u64,
        /// When the reader starts.
        start: u64,
    },
    /// Two tasks run at once on one processor.
    #[error(
        "task {first} ends at {end}, but task {second} starts at {start} on the same processor {processor}"
    )]
    Overlap {
        /// The earlier task.
        first: u32,
        /// Its end.
        end: u64,
        /// The later task.
        second: u32,
        /// Its start.
        start: u64,
        /// Their processor.
        processor: u32,
    },
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut order: Vec<usize> = (0..self.start.len()).collect();
        order.sort_by_key(|&t| (self.processor[t], self.start[t], t));
        for t in order {
            writeln!(f, "p{} {:>8} t{t}", self.processor[t], self.start[t])?;
        }
        Ok(())
    }
}

/// Checks a schedule against the definition in [`Dag`] and returns its makespan in ticks. Shares no code with the
/// solvers: whatever they return passes here first. O(V log V + E).
///
/// # Errors
/// The first violation found.
pub fn check(dag: &Dag, schedule: &Schedule) -> Result<u64, CheckError> {
    let tasks = dag.times.len();
    for found in [schedule.processor.len(), schedule.start.len()] {
        if found != tasks {
            return Err(CheckError::Length { found, tasks });
        }
    }
    // Each task on a processor that can run it.
    let mut end = Vec::with_capacity(tasks);
    for (task, &processor) in (0u32..).zip(&schedule.processor) {
        let row = &dag.times[task as usize];
        let Some(time) = row.get(processor as usize).copied().flatten() else {
            return Err(CheckError::Processor { task, processor });
        };
        end.push(schedule.start[task as usize].saturating_add(time));
    }
    // No task before what it needs has arrived.
    for (index, edge) in dag.edges.iter().enumerate() {
        let (from, to) = (edge.from as usize, edge.to as usize);
        let (p, q) = (
            schedule.processor[from] as usize,
            schedule.processor[to] as usize,
        );
        let ready = end[from].saturating_add(dag.transfer(index, p, q));
        let start = schedule.start[to];
        if start < ready {
            return Err(CheckError::Early {
                from: edge.from,
                to: edge.to,
                ready,
                start,
            });
        }
    }
    // One task at a time on each processor; those of no length are in nobody's way.
    let mut order: Vec<usize> = (0..tasks).filter(|&t| schedule.start[t] < end[t]).collect();
    order.sort_by_key(|&t| (schedule.processor[t], schedule.start[t]));
    for pair in order.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        let processor = schedule.processor[a];
        if processor == schedule.processor[b] && schedule.start[b] < end[a] {
            let (first, second) = (a as u32, b as u32);
            let start = schedule.start[b];
            return Err(CheckError::Overlap {
                first,
                end: end[a],
                second,
                start,
                processor,
            });
        }
    }
    Ok(end.into_iter().max().unwrap_or(0))
}

#[cfg(test)]
mod tests;
