//! The queue before a model's run: who is let in, who is under way, and what is computed next.
//!
//! Every entry under way is one iteration that was pushed, in order; its answer is the next iteration that is pulled. What is
//! under way when a run ends goes back to the front of the queue, in order, for the run that follows.
//!
//! Of a sequence one request is under way at a time, as the next one begins with what it leaves. Requests of others pass it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::pace::{MeasuredPace, PlannedPace};
use super::sequences::{Sequences, States};
use crate::sequence::{SequenceId, SequenceStep};

/// The bytes of a request's inputs, in the model's order.
pub(crate) type Inputs = Arc<Vec<Vec<u8>>>;

/// A request that asks to be let in.
#[derive(Debug, Default)]
pub(crate) struct Submission {
    /// Of each iteration the bytes of each input, in the model's order. One iteration, unless it is a batch.
    pub(crate) iterations: Vec<Vec<Vec<u8>>>,
    /// It is refused if it cannot be answered within this time.
    pub(crate) timeout: Option<Duration>,
    /// Without one it begins with the model's initial state, and leaves none.
    pub(crate) step: Option<SequenceStep>,
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
    /// What the iterations of one request gave together, in their order.
    pub(crate) fn joined(iterations: Vec<Self>) -> Self {
        let mut iterations = iterations.into_iter();
        let mut joined = iterations.next().expect("a request has an iteration");
        for next in iterations {
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
    /// An empty iteration.
    Filler,
}

/// What the run is given next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The inputs of a request, and the states that it begins with.
    Request(Inputs, States),
    /// Zeros.
    Filler,
    /// Nothing more: the run is to end.
    End,
}

struct QueueState {
    waiting: VecDeque<Pending>,
    under_way: VecDeque<UnderWay>,
    /// Empty iterations that are to follow the last request, unless another comes.
    fillers_due: u64,
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
    planned: PlannedPace,
    measured: MeasuredPace,
}

impl Admission {
    pub(crate) fn new(limit: usize, planned: PlannedPace, sequences: Sequences) -> Self {
        Self {
            state: Mutex::new(QueueState {
                waiting: VecDeque::new(),
                under_way: VecDeque::new(),
                fillers_due: 0,
                request_count: 0,
                is_draining: false,
                is_interrupted: false,
                failure: None,
                last_answer: None,
                sequences,
            }),
            changed: Condvar::new(),
            limit,
            planned,
            measured: MeasuredPace::default(),
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

    /// Sequences that are kept.
    pub(crate) fn sequences(&self) -> usize {
        self.state().sequences.count(Instant::now())
    }

    /// Admits a request, all of its iterations or none, if it can be answered in time; what each iteration gives. `is_running` says
    /// whether a plan runs now.
    pub(crate) fn submit(
        &self,
        submission: Submission,
        is_running: bool,
    ) -> Result<Vec<oneshot::Receiver<Computed>>, Refusal> {
        let Submission {
            iterations,
            timeout,
            step,
        } = submission;
        let mut state = self.state();
        if let Some(why) = &state.failure {
            return Err(Refusal::Failed { why: why.clone() });
        }
        if state.is_draining {
            return Err(Refusal::Draining);
        }
        let ahead = (state.waiting.len() + state.under_way.len()) as u64;
        // A batch has no more iterations than the queue has places, so it finds room in the end.
        if state.waiting.len() + iterations.len() > self.limit {
            return Err(Refusal::Full {
                limit: self.limit,
                wait: self.measured.usual(self.planned, ahead),
            });
        }
        let measured = &self.measured;
        let turns = turns(&state, step.as_ref());
        let last = ahead + iterations.len().saturating_sub(1) as u64;
        if let Some(timeout) = timeout {
            if !is_running {
                return Err(Refusal::NotRunning);
            }
            let bound = |ahead| measured.bound(self.planned, ahead, timeout);
            let expected = bound(last).max(bound(0).saturating_mul(turns));
            if expected > timeout {
                return Err(Refusal::TooLate { expected, timeout });
            }
        }

        let usual = |ahead| measured.usual(self.planned, ahead);
        let shortest = usual(0).saturating_mul(turns);
        let now = Instant::now();
        if let Some(step) = &step {
            state.sequences.admit(step, now)?;
        }
        let mut answers = Vec::with_capacity(iterations.len());
        for (ahead, inputs) in (ahead..).zip(iterations) {
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
            if let Some(mut pending) = state.take_next() {
                pending.begun = Instant::now();
                let inputs = Arc::clone(&pending.inputs);
                let states = match &pending.step {
                    Some(step) => state.sequences.begin(step),
                    None => Arc::clone(state.sequences.initial()),
                };
                state.under_way.push_back(UnderWay::Request(pending));
                state.request_count += 1;
                state.fillers_due = self.planned.fillers();
                return Work::Request(inputs, states);
            }
            if state.fillers_due > 0 && !state.is_drained() {
                state.fillers_due -= 1;
                state.under_way.push_back(UnderWay::Filler);
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

    /// The next iteration has been pulled. Its tensors, and the states that it left, are wanted only if a request stands for it.
    pub(crate) fn finish_next(&self, tensors: &[Vec<u8>], states: &[Vec<u8>]) {
        let mut state = self.state();
        let last_answer = state.last_answer;
        let Some(UnderWay::Request(pending)) = state.under_way.pop_front() else {
            return;
        };
        let now = Instant::now();
        if let Some(step) = &pending.step {
            state.sequences.finish(step, states.to_vec(), now);
        }
        state.request_count -= 1;
        state.last_answer = Some(now);
        // The next request of its sequence can be computed, or nothing is left to do. Nothing else that is waited for has changed, and a
        // thread that is woken for nothing takes the processor from whoever has work.
        let is_awaited = pending.step.is_some() || state.is_drained();
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
