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

use std::cmp::Reverse;

use super::identical::IdenticalProblem;
use super::rng::Rng;

/// Tasks up to which the search is possible: sets of tasks are words.
pub(crate) const MAX_TASKS: usize = 64;

/// Entries of the table of failed states.
const TABLE_SIZE: usize = 1 << 18;

/// Nodes between questions to the caller.
const ASK_EVERY: u64 = 1024;

/// Answer to "is there a schedule that ends by then?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndAnswer {
    Yes(Vec<u64>),
    No,
    /// The node limit was reached or the caller stopped the search.
    Unknown,
}

#[derive(Clone, Copy, Default)]
struct FailedState {
    scheduled: u64,
    /// Hash of the time and the running tasks with their ends.
    rest: u64,
    barred: u64,
}

/// The searcher; its table is reused between questions.
pub(crate) struct ExactSearch<'a> {
    problem: &'a IdenticalProblem,
    all: u64,
    needs: Vec<u64>,
    /// Tasks that start no later, by the second dominance rule.
    yields_to: Vec<u64>,
    topological: Vec<usize>,
    table: Vec<FailedState>,
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
struct SearchState {
    now: u64,
    scheduled: u64,
    running: u64,
    barred: u64,
}

enum SearchStep {
    Found,
    Fails,
    OutOfNodes,
}

/// The members of a set, ascending.
fn members(set: u64) -> impl Iterator<Item = usize> {
    let mut members_left = set;
    std::iter::from_fn(move || {
        (members_left != 0).then(|| {
            let lowest_member = members_left.trailing_zeros() as usize;
            members_left &= members_left - 1;
            lowest_member
        })
    })
}

fn contains(set: u64, task: usize) -> bool {
    set >> task & 1 == 1
}

impl<'a> ExactSearch<'a> {
    /// `None` for more than [`MAX_TASKS`] tasks.
    pub(crate) fn new(
        problem: &'a IdenticalProblem,
        stop: &'a dyn Fn() -> bool,
    ) -> Option<ExactSearch<'a>> {
        let tasks = problem.tasks();
        if tasks > MAX_TASKS {
            return None;
        }
        // Tasks of no ticks are left out: who waits for them waits for what they wait for.
        let mut needs = vec![0u64; tasks];
        for &task in &problem.topological {
            for &before in &problem.before[task] {
                needs[task] |= match problem.time[before] {
                    0 => needs[before],
                    _ => 1 << before,
                };
            }
        }
        let mut topological = problem.topological.clone();
        topological.retain(|&task| problem.time[task] > 0);

        let mut rng = Rng::new(1);
        let mut search = ExactSearch {
            problem,
            all: topological.iter().fold(0, |set, &task| set | 1 << task),
            yields_to: vec![0; tasks],
            needs,
            topological,
            table: vec![FailedState::default(); TABLE_SIZE],
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
        search.order_alike();
        Some(search)
    }

    /// Finds which tasks start no later than which, by the second dominance rule.
    fn order_alike(&mut self) {
        let mut ancestors = self.needs.clone();
        let mut descendants = vec![0u64; self.needs.len()];
        for &task in &self.topological {
            for before in members(self.needs[task]) {
                ancestors[task] |= ancestors[before];
            }
            for ancestor in members(ancestors[task]) {
                descendants[ancestor] |= 1 << task;
            }
        }

        for &first in &self.topological {
            for &second in &self.topological {
                // Fewer or equal predecessors and more or equal successors, in equal time.
                let covers = self.problem.time[first] == self.problem.time[second]
                    && ancestors[first] & !ancestors[second] == 0
                    && descendants[second] & !descendants[first] == 0;
                let is_same = ancestors[first] == ancestors[second]
                    && descendants[first] == descendants[second];
                if first != second && covers && (!is_same || first < second) {
                    self.yields_to[second] |= 1 << first;
                }
            }
        }
    }

    /// Searches for a schedule that ends by `end`, visiting at most `limit` nodes.
    pub(crate) fn ends_by(&mut self, end: u64, limit: u64) -> EndAnswer {
        let identical = self.problem;
        let is_too_late =
            members(self.all).any(|task| identical.time[task] + identical.tail[task] > end);
        if is_too_late || identical.is_overloaded(end) {
            return EndAnswer::No;
        }

        // What failed under another end may succeed under this one.
        self.table.fill(FailedState::default());
        self.limit = self.nodes + limit;
        self.latest = (0..identical.tasks())
            .map(|task| end.saturating_sub(identical.time[task] + identical.tail[task]))
            .collect();
        self.by_latest = self.topological.clone();
        // A task comes after those that it yields to, whose latest starts are no later than its own.
        self.by_latest.sort_by_key(|&task| {
            let yields = self.yields_to[task].count_ones();
            (
                self.latest[task],
                yields,
                Reverse(identical.time[task]),
                task,
            )
        });
        self.due = members(self.all)
            .map(|task| self.latest[task] + identical.time[task])
            .collect();
        self.due.sort_unstable();
        self.due.dedup();

        let nothing_done = SearchState {
            now: 0,
            scheduled: 0,
            running: 0,
            barred: 0,
        };
        match self.arrive(nothing_done) {
            SearchStep::Found => EndAnswer::Yes(self.starts_of_all()),
            SearchStep::Fails => EndAnswer::No,
            SearchStep::OutOfNodes => EndAnswer::Unknown,
        }
    }

    /// Starts of all tasks, also of those of no ticks.
    fn starts_of_all(&self) -> Vec<u64> {
        let problem = self.problem;
        let mut all_starts = self.start.clone();
        for &task in &problem.topological {
            if problem.time[task] == 0 {
                let zero_inputs = problem.before[task].iter();
                let input_ends =
                    zero_inputs.map(|&before| all_starts[before] + problem.time[before]);
                all_starts[task] = input_ends.max().unwrap_or(0);
            }
        }
        all_starts
    }

    /// A time at which tasks have ended, none chosen yet.
    fn arrive(&mut self, state: SearchState) -> SearchStep {
        if state.scheduled == self.all {
            return SearchStep::Found;
        }
        self.nodes += 1;
        if self.nodes >= self.limit {
            return SearchStep::OutOfNodes;
        }
        if self.nodes.is_multiple_of(ASK_EVERY) && (self.stop)() {
            self.stopped = true;
            self.limit = 0;
            return SearchStep::OutOfNodes;
        }

        // What failed with fewer tasks barred fails with more.
        let rest_hash = self.hash_rest(state);
        let known_slot = self.table_slot(state.scheduled, rest_hash);
        let known_failure = self.table[known_slot];
        let is_known =
            known_failure.scheduled == state.scheduled && known_failure.rest == rest_hash;
        if is_known && known_failure.barred & !state.barred == 0 {
            return SearchStep::Fails;
        }
        if !self.may_fit(state) {
            return SearchStep::Fails;
        }

        let done_tasks = state.scheduled & !state.running;
        let mut ready_tasks = 0u64;
        for task in members(self.all & !state.scheduled & !state.barred) {
            if self.needs[task] & !done_tasks == 0 {
                ready_tasks |= 1 << task;
            }
        }
        let search_step = self.choose(state, ready_tasks, 0, 0);
        if matches!(search_step, SearchStep::Fails) {
            self.table[known_slot] = FailedState {
                scheduled: state.scheduled,
                rest: rest_hash,
                barred: state.barred,
            };
        }
        search_step
    }

    /// Goes through `ready` from the `next` most urgent task on; `left_out` are those left out so far.
    fn choose(&mut self, state: SearchState, ready: u64, next: usize, left_out: u64) -> SearchStep {
        let is_full = state.running.count_ones() as usize >= self.problem.machines;
        let mut urgent_places = next..self.by_latest.len();
        let urgent_place =
            urgent_places.find(|&urgent_place| contains(ready, self.by_latest[urgent_place]));
        let Some(urgent_place) = urgent_place.filter(|_| !is_full) else {
            return self.advance(state, is_full, left_out);
        };
        let urgent_task = self.by_latest[urgent_place];
        if self.yields_to[urgent_task] & !state.scheduled != 0 {
            // Not ready in the problem with the second rule, so not barred either.
            return self.choose(state, ready, urgent_place + 1, left_out);
        }

        self.start[urgent_task] = state.now;
        self.end[urgent_task] = state.now + self.problem.time[urgent_task];
        let with_task = SearchState {
            scheduled: state.scheduled | 1 << urgent_task,
            running: state.running | 1 << urgent_task,
            ..state
        };
        // First with the task started now, then with it left out.
        match self.choose(with_task, ready, urgent_place + 1, left_out) {
            SearchStep::Fails => {}
            other => return other,
        }

        if self.must_start_now(state, ready, urgent_task) {
            return SearchStep::Fails;
        }
        self.choose(state, ready, urgent_place + 1, left_out | 1 << urgent_task)
    }

    /// Whether a task that is left out now can only start too late: when something has ended at the earliest.
    fn must_start_now(&self, state: SearchState, ready: u64, task: usize) -> bool {
        let latest_start = self.latest[task];
        let running_ends = members(state.running).map(|running| self.end[running]);
        if running_ends.min().unwrap_or(u64::MAX) <= latest_start {
            return false;
        }
        // A task started after this one in the list may end sooner.
        let later_tasks =
            members(ready).filter(|&other| self.latest[other] >= latest_start && other != task);
        let later_ends = later_tasks.map(|other| state.now + self.problem.time[other]);
        later_ends.min().unwrap_or(u64::MAX) > latest_start
    }

    fn advance(&mut self, state: SearchState, is_full: bool, left_out: u64) -> SearchStep {
        let running_ends = members(state.running).map(|task| self.end[task]);
        let Some(next_time) = running_ends.min() else {
            return SearchStep::Fails;
        };
        // Whatever ends at this very time is done.
        let mut still_running = state.running;
        for task in members(state.running) {
            if self.end[task] <= next_time {
                still_running &= !(1 << task);
            }
        }
        self.arrive(SearchState {
            now: next_time,
            scheduled: state.scheduled,
            running: still_running,
            // With all machines busy nothing was left out by choice.
            barred: if is_full { 0 } else { state.barred | left_out },
        })
    }

    /// Necessary conditions: every task can start in time, and no interval from a release to a due time must hold
    /// more work than the machines can do.
    fn may_fit(&mut self, state: SearchState) -> bool {
        let problem = self.problem;
        let mut open_tasks = [(0u64, 0usize); MAX_TASKS];
        let mut open_count = 0;
        for &task in &self.topological {
            if contains(state.scheduled, task) {
                continue;
            }
            // As early as its predecessors can end, placed or not.
            let mut earliest_start = state.now.max(problem.head[task]);
            for before in members(self.needs[task]) {
                let input_end = match contains(state.scheduled, before) {
                    true => self.end[before],
                    false => self.earliest[before] + problem.time[before],
                };
                earliest_start = earliest_start.max(input_end);
            }
            if earliest_start > self.latest[task] {
                return false;
            }
            self.earliest[task] = earliest_start;
            open_tasks[open_count] = (earliest_start, task);
            open_count += 1;
        }

        // For each due time the intervals that begin with each release, the latest first.
        let open_tasks = &mut open_tasks[..open_count];
        open_tasks.sort_unstable_by(|a, b| b.cmp(a));
        let machines = problem.machines as u64;
        let first_due = self.due.partition_point(|&due| due <= state.now);
        for &due in &self.due[first_due..] {
            let mut mandatory_work = 0;
            for &(earliest_start, task) in open_tasks.iter() {
                let mandatory_part = due.saturating_sub(self.latest[task]);
                mandatory_work += mandatory_part.min(problem.time[task]);
                if mandatory_work > machines * due.saturating_sub(earliest_start) {
                    return false;
                }
            }
            let running_tasks = members(state.running);
            let busy_work: u64 = running_tasks
                .map(|task| self.end[task].min(due) - state.now)
                .sum();
            if mandatory_work + busy_work > machines * (due - state.now) {
                return false;
            }
        }
        true
    }

    /// Hash of the time and the running tasks with their ends.
    fn hash_rest(&self, state: SearchState) -> u64 {
        let mut hash = Rng::new(state.now).next();
        for task in members(state.running) {
            hash ^= Rng::new(self.end[task].wrapping_mul(self.salt[task])).next();
        }
        hash
    }

    fn table_slot(&self, scheduled: u64, rest: u64) -> usize {
        let hash = Rng::new(scheduled ^ rest.rotate_left(17)).next();
        hash as usize & (TABLE_SIZE - 1)
    }

    /// Whether the caller has stopped the search.
    pub(crate) fn was_stopped(&self) -> bool {
        self.stopped
    }
}
