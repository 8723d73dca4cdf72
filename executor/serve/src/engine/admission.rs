//! The queue before a model's run: who is let in, who is under way, and what is computed next.
//!
//! Every entry under way is the tokens of one request, which were pushed in order; its answer is what is pulled next. What is
//! under way when a run ends goes back to the front of the queue, in order, for the run that follows.
//!
//! A model that was compiled for batches goes over to another size of them between two iterations, once every request under way is
//! answered: what is pushed then is computed in the new mode.
//!
//! Of a sequence one request is under way at a time, as the next one begins with what it leaves. Requests of others pass it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::announced::AnnouncedRequests;
use super::batches::{Batches, LostTime};
use super::pace::MeasuredPace;
use super::sequences::{Sequences, States};
use crate::sequence::{SequenceId, SequenceStep};

/// A mode that a run could not go over to, as devices are lost, is not asked for again for so long.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// The bytes of a request's inputs, in the model's order.
pub(crate) type Inputs = Arc<Vec<Vec<u8>>>;

/// A request that asks to be let in.
#[derive(Debug, Default)]
pub(crate) struct Submission {
    /// Of each row the bytes of each input, in the model's order. One row, unless it is a batch.
    pub(crate) rows: Vec<Vec<Vec<u8>>>,
    /// It is refused if it cannot be answered within this time.
    pub(crate) timeout: Option<Duration>,
    /// Without one it begins with the model's initial state, and leaves none.
    pub(crate) step: Option<SequenceStep>,
}

/// What decides whether a request is admitted.
#[derive(Clone, Copy, Debug)]
struct Asked {
    rows: usize,
    /// Requests that come before it though their tensors are not there.
    announced: usize,
    /// Of a sequence, so many responses follow one another until the request's own is there.
    turns: u32,
    timeout: Option<Duration>,
}

/// What a request gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Computed {
    /// The bytes of each output, in the model's order.
    pub(crate) tensors: Vec<Vec<u8>>,
    /// From admission until the run took it.
    pub(crate) queued: Duration,
    /// From then until the answer.
    pub(crate) computed: Duration,
    /// What the response was to take as a rule when it was admitted.
    pub(crate) usual: Duration,
}

impl Computed {
    /// What the rows of one request gave together, in their order.
    pub(crate) fn joined(rows: Vec<Self>) -> Self {
        let mut rows = rows.into_iter();
        let mut joined = rows.next().expect("a request has a row");
        for next in rows {
            for (tensor, row) in joined.tensors.iter_mut().zip(next.tensors) {
                tensor.extend_from_slice(&row);
            }
            let end = next.queued + next.computed;
            joined.computed = end.saturating_sub(joined.queued);
            joined.usual = next.usual;
        }
        joined
    }
}

/// Why a request is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the queue of {limit} requests is full; the first place is expected in {wait:?}")]
    Full { limit: usize, wait: Duration },
    #[error("the answer is expected in {expected:?}, the request's timeout is {timeout:?}")]
    TooLate {
        expected: Duration,
        timeout: Duration,
    },
    #[error(
        "no plan of the model runs at present, so no timeout can be kept; without one the request waits"
    )]
    NotRunning,
    #[error("the server is shutting down")]
    Draining,
    #[error("the model failed: {why}")]
    Failed { why: String },
    #[error(
        "inference request for sequence {id} must specify the START flag on the first request of the sequence: it was never started, or \
         has ended, or nothing was asked of it for too long"
    )]
    NotStarted { id: SequenceId },
    #[error("there are {limit} sequences, as many as are allowed: end one, or come again later")]
    TooManySequences { limit: usize },
}

struct Pending {
    inputs: Inputs,
    step: Option<SequenceStep>,
    answer: oneshot::Sender<Computed>,
    admitted: Instant,
    /// When the run took it.
    begun: Instant,
    /// Nothing was before it.
    is_alone: bool,
    /// How long its response takes as a rule.
    usual: Duration,
}

enum UnderWay {
    Request(Pending),
    /// An empty request.
    Filler,
}

/// Where in a run's iterations the requests stand that are pushed.
#[derive(Debug, Default)]
struct RunPlace {
    /// The mode that the run is in.
    mode: usize,
    /// The first iteration of the run in it.
    since: u64,
    /// Requests pushed since then, empty ones too, and those before that no iteration had taken by then.
    pushed: u64,
    /// The iteration that is being pushed has a request already.
    is_counted: bool,
    /// Requests that waited when the run went over to the mode, and wait still. Until they are taken the mode stays, so that a
    /// request waits for two changes at most.
    before_change: usize,
    /// What requests lost in the mode so far.
    lost: LostTime,
}

/// A size of batches that is used whatever waits, and one that is not used for a while.
#[derive(Debug, Default)]
struct ModeLimits {
    only: Option<usize>,
    refused: Option<(usize, Instant)>,
}

/// What the run is given next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The inputs of a request, and the states that it begins with.
    Request(Inputs, States),
    /// Zeros.
    Filler,
    /// Another mode, before anything else is pushed: [`Admission::mode_changed`] or [`Admission::mode_refused`] says what came of it.
    Mode(usize),
    /// Nothing more: the run is to end.
    End,
}

struct QueueState {
    announced: AnnouncedRequests,
    waiting: VecDeque<Pending>,
    under_way: VecDeque<UnderWay>,
    /// Empty requests that are to follow the last one, unless another comes.
    fillers_due: u64,
    place: RunPlace,
    mode_limits: ModeLimits,
    /// Requests under way.
    request_count: usize,
    is_draining: bool,
    /// The run that takes work has ended.
    is_interrupted: bool,
    failure: Option<String>,
    /// When the last answer came.
    last_answer: Option<Instant>,
    sequences: Sequences,
}

impl QueueState {
    /// All that was admitted is answered.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.request_count == 0
    }

    fn is_drained(&self) -> bool {
        self.is_draining && self.is_idle()
    }

    /// Requests before one that comes now, empty ones too.
    fn ahead(&self) -> u64 {
        (self.waiting.len() + self.under_way.len()) as u64
    }

    /// What is pushed next is the first of an iteration's requests.
    fn is_between_iterations(&self, batches: &Batches) -> bool {
        let rows = batches.planned(self.place.mode).rows;
        self.place.pushed.is_multiple_of(rows)
    }

    /// The mode for what waits, if it is another than the present one. All requests that wait can be computed now: models that keep
    /// a state for sequences have one mode.
    fn better_mode(&mut self, batches: &Batches) -> Option<usize> {
        let present = self.place.mode;
        if batches.count() == 1 || self.waiting.is_empty() || self.place.before_change > 0 {
            return None;
        }
        let refused = &mut self.mode_limits.refused;
        refused.take_if(|(_, until)| *until < Instant::now());
        let only = self.mode_limits.only;
        let waiting = self.waiting.len() as u64;
        let best = only.unwrap_or_else(|| batches.best(present, waiting, self.place.lost));
        let refused = self.mode_limits.refused.map(|(mode, _)| mode);
        (best != present && Some(best) != refused).then_some(best)
    }

    /// Requests under way, without those of the iteration that is being pushed, and how many an iteration takes.
    fn complete_rows(&self, batches: &Batches) -> (u64, u64) {
        let rows = batches.planned(self.place.mode).rows;
        let begun = self.place.pushed % rows;
        let complete = (self.under_way.len() as u64).saturating_sub(begun);
        (complete, rows)
    }

    /// Iterations under way, without the one that is being pushed.
    fn iterations_under_way(&self, batches: &Batches) -> u64 {
        let (complete, rows) = self.complete_rows(batches);
        complete / rows
    }

    /// Requests go into an iteration while those before it are computed, and no further: what waits then decides about the next
    /// one, and its size.
    fn may_begin(&self, batches: &Batches) -> bool {
        let stages = batches.planned(self.place.mode).stages;
        !batches.is_used() || self.iterations_under_way(batches) <= stages
    }

    /// An iteration that requests do not fill is completed when its turn has come.
    fn may_fill(&self, batches: &Batches) -> bool {
        let stages = batches.planned(self.place.mode).stages;
        !batches.is_used() || self.iterations_under_way(batches) < stages
    }

    /// What was pulled last was the end of an iteration.
    fn is_iteration_done(&self, batches: &Batches) -> bool {
        let (complete, rows) = self.complete_rows(batches);
        complete.is_multiple_of(rows)
    }

    /// Counts what is pushed now; whether it is the first request of an iteration.
    fn push(&mut self, entry: UnderWay, batches: &Batches) -> bool {
        let is_request = matches!(entry, UnderWay::Request(_));
        if self.is_between_iterations(batches) {
            self.place.is_counted = false;
            if is_request {
                // The one that is pushed waits no longer.
                let waiting = self.waiting.len() as u64 + 1;
                self.place.lost = batches.stay(self.place.mode, waiting, self.place.lost);
            }
        }
        let is_first = is_request && !self.place.is_counted;
        self.place.is_counted |= is_request;
        self.place.pushed += 1;
        self.under_way.push_back(entry);
        is_first
    }

    /// Takes the first request that can be computed now.
    fn take_next(&mut self) -> Option<Pending> {
        loop {
            let sequences = &self.sequences;
            let is_free = |pending: &Pending| match &pending.step {
                Some(step) => sequences.is_free(&step.id),
                None => true,
            };
            let first = self.waiting.iter().position(is_free)?;
            let pending = self.waiting.remove(first)?;
            self.place.before_change = self.place.before_change.saturating_sub(1);
            // Its client went away. A step of a sequence is computed all the same: those that follow build on it.
            if pending.step.is_some() || !pending.answer.is_closed() {
                return Some(pending);
            }
        }
    }
}

/// Responses that follow one another until a request's own is there: of a sequence, one is computed after the other.
fn turns(state: &QueueState, step: Option<&SequenceStep>) -> u32 {
    let before = step.map_or(0, |step| state.sequences.pending(&step.id));
    u32::try_from(before + 1).unwrap_or(u32::MAX)
}

/// The queue of one model.
pub(crate) struct Admission {
    state: Mutex<QueueState>,
    changed: Condvar,
    /// Requests that wait, at most.
    limit: usize,
    batches: Arc<Batches>,
    measured: MeasuredPace,
    /// Iterations with requests, for each mode.
    executions: Vec<AtomicU64>,
}

impl Admission {
    pub(crate) fn new(limit: usize, batches: Arc<Batches>, sequences: Sequences) -> Self {
        Self {
            state: Mutex::new(QueueState {
                announced: AnnouncedRequests::default(),
                waiting: VecDeque::new(),
                under_way: VecDeque::new(),
                fillers_due: 0,
                place: RunPlace::default(),
                mode_limits: ModeLimits::default(),
                request_count: 0,
                is_draining: false,
                is_interrupted: false,
                failure: None,
                last_answer: None,
                sequences,
            }),
            changed: Condvar::new(),
            limit,
            measured: MeasuredPace::default(),
            executions: batches.rows().map(|_| AtomicU64::new(0)).collect(),
            batches,
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that wait, at most.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// What responses took lately.
    pub(crate) fn measured(&self) -> &MeasuredPace {
        &self.measured
    }

    /// Requests that were admitted and are not answered.
    pub(crate) fn pending(&self) -> usize {
        let state = self.state();
        state.waiting.len() + state.request_count
    }

    /// Iterations that were begun with requests in each mode.
    pub(crate) fn executions(&self) -> impl Iterator<Item = u64> {
        let executions = self.executions.iter();
        executions.map(|count| count.load(Ordering::Relaxed))
    }

    /// Sequences that are kept.
    pub(crate) fn sequences(&self) -> usize {
        self.state().sequences.count(Instant::now())
    }

    /// Keeps a place for a request of one row, and of no sequence, whose tensors are on their way; since when, which gives it back.
    ///
    /// # Errors
    /// It would not be admitted if they were there.
    pub(crate) fn announce(
        &self,
        timeout: Option<Duration>,
        is_running: bool,
    ) -> Result<Instant, Refusal> {
        let mut state = self.state();
        let now = Instant::now();
        let asked = Asked {
            rows: 1,
            announced: state.announced.count(now),
            turns: 1,
            timeout,
        };
        self.check_asked(&state, asked, is_running)?;
        state.announced.keep(now);
        Ok(now)
    }

    /// Gives back the place of a request that was announced: it is submitted now, or will not be.
    pub(crate) fn give_back(&self, since: Instant) {
        self.state().announced.give_back(since);
    }

    fn check_asked(
        &self,
        state: &QueueState,
        asked: Asked,
        is_running: bool,
    ) -> Result<(), Refusal> {
        if let Some(why) = &state.failure {
            return Err(Refusal::Failed { why: why.clone() });
        }
        if state.is_draining {
            return Err(Refusal::Draining);
        }
        let ahead = state.ahead() + asked.announced as u64;
        // A batch has no more rows than the queue has places, so it finds room in the end.
        if state.waiting.len() + asked.announced + asked.rows > self.limit {
            return Err(Refusal::Full {
                limit: self.limit,
                wait: self.measured.usual(&self.batches, ahead),
            });
        }

        let Some(timeout) = asked.timeout else {
            return Ok(());
        };
        if !is_running {
            return Err(Refusal::NotRunning);
        }
        let bound = |ahead| self.measured.bound(&self.batches, ahead, timeout);
        let last = ahead + asked.rows.saturating_sub(1) as u64;
        let expected = bound(last).max(bound(0).saturating_mul(asked.turns));
        if expected > timeout {
            return Err(Refusal::TooLate { expected, timeout });
        }
        Ok(())
    }

    /// Admits a request, all of its rows or none, if it can be answered in time; what each row gives. `is_running` says
    /// whether a plan runs now.
    pub(crate) fn submit(
        &self,
        submission: Submission,
        is_running: bool,
    ) -> Result<Vec<oneshot::Receiver<Computed>>, Refusal> {
        let Submission {
            rows,
            timeout,
            step,
        } = submission;
        let mut state = self.state();
        let asked = Asked {
            rows: rows.len(),
            // Places are kept from those that are announced later. This one is here.
            announced: 0,
            turns: turns(&state, step.as_ref()),
            timeout,
        };
        self.check_asked(&state, asked, is_running)?;

        let ahead = state.ahead();
        let usual = |ahead| self.measured.usual(&self.batches, ahead);
        let shortest = usual(0).saturating_mul(asked.turns);
        let now = Instant::now();
        if let Some(step) = &step {
            state.sequences.admit(step, now)?;
        }
        let mut answers = Vec::with_capacity(rows.len());
        for (ahead, inputs) in (ahead..).zip(rows) {
            let (answer, receiver) = oneshot::channel();
            state.waiting.push_back(Pending {
                inputs: Arc::new(inputs),
                step: step.clone(),
                answer,
                admitted: now,
                begun: now,
                is_alone: ahead == 0,
                usual: usual(ahead).max(shortest),
            });
            answers.push(receiver);
        }
        drop(state);
        self.changed.notify_all();
        Ok(answers)
    }

    /// What the run is to compute next; waits for it. What is returned counts as pushed.
    pub(crate) fn next_work(&self) -> Work {
        let mut state = self.state();
        loop {
            if state.is_interrupted {
                return Work::End;
            }
            let is_between = state.is_between_iterations(&self.batches);
            let better = is_between
                .then(|| state.better_mode(&self.batches))
                .flatten();
            if let Some(mode) = better.filter(|_| state.request_count == 0) {
                return Work::Mode(mode);
            }
            // Until all under way is answered nothing more is begun in the present mode.
            if better.is_none()
                && (!is_between || state.may_begin(&self.batches))
                && let Some(mut pending) = state.take_next()
            {
                pending.begun = Instant::now();
                let inputs = Arc::clone(&pending.inputs);
                let states = match &pending.step {
                    Some(step) => state.sequences.begin(step),
                    None => Arc::clone(state.sequences.initial()),
                };
                if state.push(UnderWay::Request(pending), &self.batches) {
                    self.executions[state.place.mode].fetch_add(1, Ordering::Relaxed);
                }
                state.request_count += 1;
                let planned = self.batches.planned(state.place.mode);
                state.fillers_due = planned.fillers(state.place.pushed);
                return Work::Request(inputs, states);
            }
            if state.fillers_due > 0 && !state.is_drained() && state.may_fill(&self.batches) {
                state.fillers_due -= 1;
                state.push(UnderWay::Filler, &self.batches);
                return Work::Filler;
            }
            // Requests under way may come back to be computed again by another run.
            if state.is_drained() {
                return Work::End;
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The run is in the mode that [`Self::next_work`] asked for, from an iteration on.
    pub(crate) fn mode_changed(&self, mode: usize, iteration: u64) {
        let mut state = self.state();
        let place = &mut state.place;
        let rows = self.batches.planned(place.mode).rows;
        let taken = iteration.saturating_sub(place.since).saturating_mul(rows);
        // Empty requests that moved others through a pipeline may wait for an iteration still.
        let pushed = place.pushed.saturating_sub(taken);
        state.place = RunPlace {
            mode,
            since: iteration,
            pushed,
            is_counted: false,
            before_change: state.waiting.len(),
            lost: LostTime::default(),
        };
        state.fillers_due = 0;
    }

    /// The run cannot go over to the mode that [`Self::next_work`] asked for: it is not asked for again for a while.
    pub(crate) fn mode_refused(&self, mode: usize) {
        let until = Instant::now() + REFUSED_FOR;
        self.state().mode_limits.refused = Some((mode, until));
    }

    /// What was computed so far was for nobody.
    pub(crate) fn forget_executions(&self) {
        for count in &self.executions {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Has whatever waits computed in one mode, or again in the best one.
    pub(crate) fn use_only(&self, mode: Option<usize>) {
        self.state().mode_limits.only = mode;
    }

    /// The tokens of the next request have been pulled. Its tensors, and the states that it left, are wanted only if a request stands for it.
    pub(crate) fn finish_next(&self, tensors: &[Vec<u8>], states: &[Vec<u8>]) {
        let mut state = self.state();
        let last_answer = state.last_answer;
        let popped = state.under_way.pop_front();
        // Whatever waits for its turn to be begun, or filled up.
        let is_turn = self.batches.is_used() && state.is_iteration_done(&self.batches);
        let Some(UnderWay::Request(pending)) = popped else {
            drop(state);
            if is_turn {
                self.changed.notify_all();
            }
            return;
        };
        let now = Instant::now();
        if let Some(step) = &pending.step {
            state.sequences.finish(step, states.to_vec(), now);
        }
        state.request_count -= 1;
        state.last_answer = Some(now);
        // The next request of its sequence can be computed, or another iteration, or the mode can change, or nothing is left to do. Nothing
        // else that is waited for has changed, and a thread that is woken for nothing takes the processor from whoever has work.
        let may_change = state.request_count == 0 && self.batches.is_used();
        let is_awaited = pending.step.is_some() || is_turn || may_change || state.is_drained();
        drop(state);
        if is_awaited {
            self.changed.notify_all();
        }

        self.measure(&pending, now, last_answer);
        let computed = Computed {
            tensors: tensors.to_vec(),
            queued: pending.begun - pending.admitted,
            computed: now - pending.begun,
            usual: pending.usual,
        };
        // Its client may have gone away.
        let _ = pending.answer.send(computed);
    }

    fn measure(&self, pending: &Pending, now: Instant, last_answer: Option<Instant>) {
        if pending.is_alone {
            self.measured.answered_alone(now - pending.admitted);
        } else if let Some(last) = last_answer.filter(|last| *last > pending.admitted) {
            self.measured.answered_next(now - last);
        }
    }

    /// The run that took work has ended: nobody takes more, until [`Self::begin_run`].
    pub(crate) fn interrupt(&self) {
        self.state().is_interrupted = true;
        self.changed.notify_all();
    }

    /// A new run takes work. What was under way in the one before comes first; how many requests that are.
    pub(crate) fn begin_run(&self) -> usize {
        let mut state = self.state();
        let interrupted = std::mem::take(&mut state.under_way);
        let requests = interrupted
            .into_iter()
            .rev()
            .filter_map(|entry| match entry {
                UnderWay::Request(pending) => Some(pending),
                UnderWay::Filler => None,
            });
        let mut count = 0;
        for pending in requests {
            state.waiting.push_front(pending);
            count += 1;
        }
        state.request_count = 0;
        state.fillers_due = 0;
        state.place = RunPlace::default();
        state.is_interrupted = false;
        state.sequences.interrupt();
        count
    }

    /// No request is admitted any more; those that were are answered.
    pub(crate) fn drain(&self) {
        self.state().is_draining = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.state().is_draining
    }

    /// No request is admitted any more, and all that were are answered.
    pub(crate) fn is_drained(&self) -> bool {
        self.state().is_drained()
    }

    /// Nothing is computed any more: all that wait are told so.
    pub(crate) fn fail(&self, why: String) {
        let mut state = self.state();
        state.failure = Some(why);
        state.waiting.clear();
        state.under_way.clear();
        state.request_count = 0;
        state.sequences.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// After [`Self::drain`], waits so long at most until all that was admitted is answered; whether it is.
    pub(crate) fn wait_until_idle(&self, limit: Duration) -> bool {
        let is_busy = |state: &mut QueueState| !state.is_idle();
        let waited = self
            .changed
            .wait_timeout_while(self.state(), limit, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
