//! Branch and bound for identical processors: is there a schedule that ends by a given time?
//!
//! Time runs forwards. At each time at which a task ends, each ready task is started or left out (most urgent first).
//! A branch is cut when a task can no longer start in time, when some interval must hold more work than the machines
//! can do, when the state is known to fail, or by these dominance rules:
//! - a task left out while a machine idles stays out until all machines have been busy at once: otherwise moving it
//!   to the left gives an equally good schedule that another branch holds;
//! - of two tasks of equal time, the one with no more predecessors and no fewer successors starts first.
//!
//! The second rule is read as a constraint of the problem and the first as "semi-active in that problem", a property
//! of the state (which tasks are barred) and not of the way to it, so that remembering failed states stays right.

use super::identical::Identical;
use super::rng::Rng;

/// Most tasks: sets of tasks are words.
pub(crate) const MAX_TASKS: usize = 64;

/// Entries of the table of failed states.
const TABLE: usize = 1 << 18;

/// Nodes between questions to the caller.
const ASK_EVERY: u64 = 1024;

/// Answer to "is there a schedule that ends by then?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes(Vec<u64>),
    No,
    /// The node limit was reached or the caller stopped the search.
    Unknown,
}

#[derive(Clone, Copy, Default)]
struct Failed {
    scheduled: u64,
    /// Hash of the time and the running tasks with their ends.
    rest: u64,
    barred: u64,
}

/// The searcher; its table is reused between questions.
pub(crate) struct Exact<'a> {
    problem: &'a Identical,
    all: u64,
    needs: Vec<u64>,
    /// Tasks that start no later, by the second dominance rule.
    yields_to: Vec<u64>,
    topological: Vec<usize>,
    table: Vec<Failed>,
    salt: Vec<u64>,
    // Of the question being answered:
    latest: Vec<u64>,
    by_latest: Vec<usize>,
    due: Vec<u64>,
    start: Vec<u64>,
    end: Vec<u64>,
    earliest: Vec<u64>,
    pub(crate) nodes: u64,
    limit: u64,
    stop: &'a dyn Fn() -> bool,
    stopped: bool,
}

#[derive(Clone, Copy)]
struct State {
    now: u64,
    scheduled: u64,
    running: u64,
    barred: u64,
}

enum Step {
    Found,
    Fails,
    OutOfNodes,
}

fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (set != 0).then(|| {
            let bit = set.trailing_zeros() as usize;
            set &= set - 1;
            bit
        })
    })
}

impl<'a> Exact<'a> {
    /// `None` for more than [`MAX_TASKS`] tasks.
    pub(crate) fn new(problem: &'a Identical, stop: &'a dyn Fn() -> bool) -> Option<Exact<'a>> {
        let tasks = problem.tasks();
        if tasks > MAX_TASKS {
            return None;
        }
        let mut needs = vec![0u64; tasks];
        for &t in &problem.topological {
            for &b in &problem.before[t] {
                needs[t] |= if problem.time[b] == 0 {
                    needs[b]
                } else {
                    1 << b
                };
            }
        }
        let topological: Vec<usize> = problem
            .topological
            .iter()
            .copied()
            .filter(|&t| problem.time[t] > 0)
            .collect();
        let all = topological.iter().fold(0, |set, &t| set | 1 << t);
        let mut rng = Rng::new(1);
        let mut exact = Exact {
            problem,
            all,
            yields_to: vec![0; tasks],
            needs,
            topological,
            table: vec![Failed::default(); TABLE],
            salt: (0..tasks).map(|_| rng.next() | 1).collect(),
            latest: Vec::new(),
            by_latest: Vec::new(),
            due: Vec::new(),
            start: vec![0; tasks],
            end: vec![0; tasks],
            earliest: vec![0; tasks],
            nodes: 0,
            limit: 0,
            stop,
            stopped: false,
        };
        exact.order_alike();
        Some(exact)
    }

    fn order_alike(&mut self) {
        let mut above = self.needs.clone();
        let mut below = vec![0u64; self.needs.len()];
        for &t in &self.topological {
            above[t] = bits(self.needs[t]).fold(self.needs[t], |set, b| set | above[b]);
            for b in bits(above[t]) {
                below[b] |= 1 << t;
            }
        }
        for &i in &self.topological {
            for &j in &self.topological {
                let covers = self.problem.time[i] == self.problem.time[j]
                    && above[i] & !above[j] == 0
                    && below[j] & !below[i] == 0;
                let same = above[i] == above[j] && below[i] == below[j];
                if i != j && covers && (!same || i < j) {
                    self.yields_to[j] |= 1 << i;
                }
            }
        }
    }

    /// Searches for a schedule that ends by `end`, visiting at most `limit` nodes.
    pub(crate) fn ends_by(&mut self, end: u64, limit: u64) -> Answer {
        let problem = self.problem;
        let late = |t: usize| problem.time[t] + problem.tail[t] > end;
        if bits(self.all).any(late) || problem.overloaded(end) {
            return Answer::No;
        }
        self.table.fill(Failed::default());
        self.limit = self.nodes + limit;
        self.latest = (0..problem.tasks())
            .map(|t| end.saturating_sub(problem.time[t] + problem.tail[t]))
            .collect();
        self.by_latest = self.topological.clone();
        // A task comes after those that it yields to, whose latest starts are no later than its own.
        self.by_latest.sort_by_key(|&t| {
            let yields = self.yields_to[t].count_ones();
            (
                self.latest[t],
                yields,
                std::cmp::Reverse(problem.time[t]),
                t,
            )
        });
        self.due = bits(self.all)
            .map(|t| self.latest[t] + problem.time[t])
            .collect();
        self.due.sort_unstable();
        self.due.dedup();
        match self.arrive(State {
            now: 0,
            scheduled: 0,
            running: 0,
            barred: 0,
        }) {
            Step::Found => Answer::Yes(self.starts()),
            Step::Fails => Answer::No,
            Step::OutOfNodes => Answer::Unknown,
        }
    }

    fn starts(&self) -> Vec<u64> {
        let mut start = self.start.clone();
        for &t in &self.problem.topological {
            if self.problem.time[t] == 0 {
                let ready = self.problem.before[t]
                    .iter()
                    .map(|&b| start[b] + self.problem.time[b]);
                start[t] = ready.max().unwrap_or(0);
            }
        }
        start
    }

    /// A time at which tasks have ended, none chosen yet.
    fn arrive(&mut self, state: State) -> Step {
        if state.scheduled == self.all {
            return Step::Found;
        }
        self.nodes += 1;
        if self.nodes >= self.limit {
            return Step::OutOfNodes;
        }
        if self.nodes.is_multiple_of(ASK_EVERY) && (self.stop)() {
            self.stopped = true;
            self.limit = 0;
            return Step::OutOfNodes;
        }
        let rest = self.hash(state);
        let slot = self.slot(state.scheduled, rest);
        let known = self.table[slot];
        let same = known.scheduled == state.scheduled && known.rest == rest;
        if same && known.barred & !state.barred == 0 {
            return Step::Fails;
        }
        if !self.may_fit(state) {
            return Step::Fails;
        }
        let done = state.scheduled & !state.running;
        let mut ready = 0u64;
        for t in bits(self.all & !state.scheduled & !state.barred) {
            if self.needs[t] & !done == 0 {
                ready |= 1 << t;
            }
        }
        let step = self.choose(state, ready, 0, 0);
        if matches!(step, Step::Fails) {
            let (scheduled, barred) = (state.scheduled, state.barred);
            self.table[slot] = Failed {
                scheduled,
                rest,
                barred,
            };
        }
        step
    }

    /// Goes through `ready` from the `next` most urgent task on; `left` are those left out so far.
    fn choose(&mut self, state: State, ready: u64, next: usize, left: u64) -> Step {
        let full = state.running.count_ones() as usize >= self.problem.machines;
        let pick = (next..self.by_latest.len()).find(|&k| ready >> self.by_latest[k] & 1 == 1);
        let Some(at) = pick.filter(|_| !full) else {
            return self.advance(state, full, left);
        };
        let task = self.by_latest[at];
        if self.yields_to[task] & !state.scheduled != 0 {
            // Not ready in the problem with the second rule, so not barred either.
            return self.choose(state, ready, at + 1, left);
        }
        self.start[task] = state.now;
        self.end[task] = state.now + self.problem.time[task];
        let with = State {
            scheduled: state.scheduled | 1 << task,
            running: state.running | 1 << task,
            ..state
        };
        match self.choose(with, ready, at + 1, left) {
            Step::Fails => {}
            other => return other,
        }
        // Left out, it starts when something has ended at the earliest.
        let soonest = bits(state.running).map(|t| self.end[t]).min();
        let ends = soonest.unwrap_or(u64::MAX);
        let hopeless = ends > self.latest[task] && {
            // A task started after this one in the list may end sooner.
            let shortest = bits(ready)
                .filter(|&t| self.latest[t] >= self.latest[task] && t != task)
                .map(|t| state.now + self.problem.time[t])
                .min();
            shortest.unwrap_or(u64::MAX) > self.latest[task]
        };
        if hopeless {
            return Step::Fails;
        }
        self.choose(state, ready, at + 1, left | 1 << task)
    }

    fn advance(&mut self, state: State, full: bool, left: u64) -> Step {
        let Some(now) = bits(state.running).map(|t| self.end[t]).min() else {
            return Step::Fails;
        };
        let running = bits(state.running)
            .filter(|&t| self.end[t] > now)
            .fold(0, |set, t| set | 1 << t);
        let barred = if full { 0 } else { state.barred | left };
        let next = State {
            now,
            scheduled: state.scheduled,
            running,
            barred,
        };
        self.arrive(next)
    }

    /// Necessary conditions: every task can start in time, and no interval from a release to a due time must hold
    /// more work than the machines can do.
    fn may_fit(&mut self, state: State) -> bool {
        let problem = self.problem;
        let mut open: [(u64, usize); MAX_TASKS] = [(0, 0); MAX_TASKS];
        let mut count = 0;
        for &t in &self.topological {
            if state.scheduled >> t & 1 == 1 {
                continue;
            }
            let ready = bits(self.needs[t]).map(|b| {
                if state.scheduled >> b & 1 == 1 {
                    self.end[b]
                } else {
                    self.earliest[b] + problem.time[b]
                }
            });
            let earliest = ready.max().unwrap_or(0).max(state.now).max(problem.head[t]);
            if earliest > self.latest[t] {
                return false;
            }
            self.earliest[t] = earliest;
            open[count] = (earliest, t);
            count += 1;
        }
        let open = &mut open[..count];
        open.sort_unstable_by(|a, b| b.cmp(a));
        let machines = problem.machines as u64;
        let first = self.due.partition_point(|&d| d <= state.now);
        for &due in &self.due[first..] {
            let mut work = 0;
            for &(earliest, t) in open.iter() {
                work += due.saturating_sub(self.latest[t]).min(problem.time[t]);
                if work > machines * due.saturating_sub(earliest) {
                    return false;
                }
            }
            let busy: u64 = bits(state.running)
                .map(|t| self.end[t].min(due) - state.now)
                .sum();
            if work + busy > machines * (due - state.now) {
                return false;
            }
        }
        true
    }

    fn hash(&self, state: State) -> u64 {
        let mut hash = Rng::new(state.now).next();
        for t in bits(state.running) {
            hash ^= Rng::new(self.end[t].wrapping_mul(self.salt[t])).next();
        }
        hash
    }

    fn slot(&self, scheduled: u64, rest: u64) -> usize {
        (Rng::new(scheduled ^ rest.rotate_left(17)).next() as usize) & (TABLE - 1)
    }

    /// Whether the caller has stopped the search.
    pub(crate) fn was_stopped(&self) -> bool {
        self.stopped
    }
}
