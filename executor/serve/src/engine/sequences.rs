//! The states that a model keeps between requests, one for each sequence. Must not know how requests are computed.
//!
//! A sequence is *open* from the admission of a request that starts it to that of one that ends it, in the order of arrival. Its
//! entry stays until the last of its requests is answered, so that a slow end and a quick new start do not meet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admission::Refusal;
use crate::sequence::{SequenceId, SequenceStep};

/// The bytes of each carried state of a model, in the order of its sources.
pub(crate) type States = Arc<Vec<Vec<u8>>>;

/// How many sequences there are, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceLimits {
    /// At once.
    pub(crate) count: usize,
    /// One that nothing is asked of for so long is forgotten.
    pub(crate) idle: Duration,
}

#[derive(Debug)]
struct Sequence {
    /// What its last answered request left.
    states: States,
    /// A request without a start may follow the last one that was admitted.
    is_open: bool,
    /// One of its requests is being computed.
    is_busy: bool,
    /// Requests that were admitted and are not answered.
    pending: usize,
    last_used: Instant,
}

impl Sequence {
    fn is_forgotten(&self, idle: Duration, now: Instant) -> bool {
        self.pending == 0 && (!self.is_open || now - self.last_used > idle)
    }
}

/// The sequences of a model.
#[derive(Debug)]
pub(crate) struct Sequences {
    limits: SequenceLimits,
    /// What a sequence begins with.
    initial: States,
    open: BTreeMap<SequenceId, Sequence>,
}

impl Sequences {
    pub(crate) fn new(limits: SequenceLimits, initial: States) -> Self {
        Self {
            limits,
            initial,
            open: BTreeMap::new(),
        }
    }

    /// What a sequence begins with.
    pub(crate) fn initial(&self) -> &States {
        &self.initial
    }

    /// Sequences that are not forgotten.
    pub(crate) fn count(&self, now: Instant) -> usize {
        let idle = self.limits.idle;
        let mut sequences = self.open.values();
        sequences
            .by_ref()
            .filter(|s| !s.is_forgotten(idle, now))
            .count()
    }

    /// Requests of a sequence that were admitted and are not answered.
    pub(crate) fn pending(&self, id: &SequenceId) -> usize {
        self.open.get(id).map_or(0, |sequence| sequence.pending)
    }

    /// Admits a request.
    ///
    /// # Errors
    /// One that continues what was not begun, or begins one sequence too many.
    pub(crate) fn admit(&mut self, step: &SequenceStep, now: Instant) -> Result<(), Refusal> {
        let idle = self.limits.idle;
        let known = self.open.get(&step.id);
        if known.is_some_and(|sequence| sequence.is_forgotten(idle, now)) {
            self.open.remove(&step.id);
        }
        if !step.is_start {
            let is_open = self.open.get(&step.id).is_some_and(|s| s.is_open);
            if !is_open {
                return Err(Refusal::NotStarted {
                    id: step.id.clone(),
                });
            }
        } else if !self.open.contains_key(&step.id) {
            self.make_room(now)?;
        }

        let initial = &self.initial;
        let sequence = self
            .open
            .entry(step.id.clone())
            .or_insert_with(|| Sequence {
                states: Arc::clone(initial),
                is_open: true,
                is_busy: false,
                pending: 0,
                last_used: now,
            });
        sequence.is_open = !step.is_end;
        sequence.pending += 1;
        sequence.last_used = now;
        Ok(())
    }

    fn make_room(&mut self, now: Instant) -> Result<(), Refusal> {
        let SequenceLimits { count, idle } = self.limits;
        if self.open.len() >= count {
            self.open
                .retain(|_, sequence| !sequence.is_forgotten(idle, now));
        }
        match self.open.len() < count {
            true => Ok(()),
            false => Err(Refusal::TooManySequences { limit: count }),
        }
    }

    /// Whether no request of a sequence is being computed, so that the next one has its states.
    pub(crate) fn is_free(&self, id: &SequenceId) -> bool {
        self.open.get(id).is_none_or(|sequence| !sequence.is_busy)
    }

    /// An admitted request is computed now, with these states.
    pub(crate) fn begin(&mut self, step: &SequenceStep) -> States {
        let Some(sequence) = self.open.get_mut(&step.id) else {
            return Arc::clone(&self.initial);
        };
        sequence.is_busy = true;
        // Not before: another run may have to compute it again.
        match step.is_start {
            true => Arc::clone(&self.initial),
            false => Arc::clone(&sequence.states),
        }
    }

    /// A request was computed, and left these states.
    pub(crate) fn finish(&mut self, step: &SequenceStep, states: Vec<Vec<u8>>, now: Instant) {
        let Some(sequence) = self.open.get_mut(&step.id) else {
            return;
        };
        sequence.states = Arc::new(states);
        sequence.is_busy = false;
        sequence.pending -= 1;
        sequence.last_used = now;
        if sequence.pending == 0 && !sequence.is_open {
            self.open.remove(&step.id);
        }
    }

    /// What was being computed is computed again.
    pub(crate) fn interrupt(&mut self) {
        self.open.values_mut().for_each(|s| s.is_busy = false);
    }

    /// Nothing is computed any more.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SequenceLimits = SequenceLimits {
        count: 2,
        idle: Duration::from_secs(10),
    };

    fn step(number: u64, is_start: bool, is_end: bool) -> SequenceStep {
        SequenceStep {
            id: SequenceId::Number(number),
            is_start,
            is_end,
        }
    }

    fn sequences() -> Sequences {
        Sequences::new(LIMITS, Arc::new(vec![vec![0]]))
    }

    /// Admits and computes a request at once; the state that it began with.
    fn compute(
        sequences: &mut Sequences,
        step: &SequenceStep,
        now: Instant,
    ) -> Result<u8, Refusal> {
        sequences.admit(step, now)?;
        let before = sequences.begin(step)[0][0];
        sequences.finish(step, vec![vec![before + 1]], now);
        Ok(before)
    }

    #[test]
    fn each_sequence_has_its_own_state() {
        let mut sequences = sequences();
        let now = Instant::now();
        for (number, is_start, expected) in [
            (1, true, 0),
            (1, false, 1),
            (2, true, 0),
            (1, false, 2),
            (2, false, 1),
            // It begins anew.
            (1, true, 0),
            (1, false, 1),
        ] {
            let found = compute(&mut sequences, &step(number, is_start, false), now);
            assert_eq!(found, Ok(expected), "{number}");
        }
        assert_eq!(sequences.count(now), 2);
    }

    #[test]
    fn a_sequence_ends_with_its_end_or_when_nothing_is_asked_of_it() {
        let mut sequences = sequences();
        let now = Instant::now();
        assert_eq!(compute(&mut sequences, &step(1, true, true), now), Ok(0));
        let unknown = Refusal::NotStarted {
            id: SequenceId::Number(1),
        };
        let next = step(1, false, false);
        assert_eq!(compute(&mut sequences, &next, now), Err(unknown.clone()));

        assert_eq!(compute(&mut sequences, &step(1, true, false), now), Ok(0));
        let in_time = now + LIMITS.idle;
        assert_eq!(compute(&mut sequences, &next, in_time), Ok(1));
        let too_late = in_time + LIMITS.idle + Duration::from_millis(1);
        assert_eq!(sequences.count(too_late), 0);
        assert_eq!(compute(&mut sequences, &next, too_late), Err(unknown));
    }

    #[test]
    fn one_sequence_too_many_is_refused_unless_another_is_forgotten() {
        let mut sequences = sequences();
        let now = Instant::now();
        for number in [1, 2] {
            let started = compute(&mut sequences, &step(number, true, false), now);
            assert_eq!(started, Ok(0));
        }
        let third = step(3, true, false);
        let refusal = compute(&mut sequences, &third, now);
        assert_eq!(refusal, Err(Refusal::TooManySequences { limit: 2 }));
        // A known one may begin anew.
        assert_eq!(compute(&mut sequences, &step(2, true, false), now), Ok(0));
        let later = now + LIMITS.idle + Duration::from_millis(1);
        assert_eq!(compute(&mut sequences, &third, later), Ok(0));
        assert_eq!(sequences.count(later), 1);
    }

    #[test]
    fn what_was_being_computed_begins_with_the_same_state_again() {
        let mut sequences = sequences();
        let now = Instant::now();
        assert_eq!(compute(&mut sequences, &step(1, true, false), now), Ok(0));
        let next = step(1, false, false);
        sequences.admit(&next, now).expect("it is open");
        assert_eq!(sequences.begin(&next)[0], [1]);
        assert!(!sequences.is_free(&next.id));
        sequences.interrupt();
        assert!(sequences.is_free(&next.id));
        assert_eq!(sequences.begin(&next)[0], [1]);
        assert_eq!(sequences.pending(&next.id), 1);
    }
}
