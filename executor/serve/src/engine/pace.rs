//! How long a request takes: what the calendar says, and what was measured.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use zbmd_ir::Program;

use super::batches::Batches;
use crate::stats::ns_of;

/// A response that took longer than usual counts for so long, and up to twice that. What holds a machine up for a moment does so
/// again after seconds, or minutes; each time that it was forgotten meanwhile, whoever was admitted just before is late.
const PEAK_WINDOW: Duration = Duration::from_secs(60);

/// What a program's calendars say about responses, in the worst of its plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedPace {
    /// Requests in an iteration: 1, unless the model was compiled for batches.
    pub(crate) rows: u64,
    /// Iterations in a block: a worker takes so many at once.
    pub(crate) block: u64,
    /// Blocks under way at once: a block's answers come while the last of so many is computed.
    pub(crate) stages: u64,
    /// From one block to the next.
    pub(crate) period_ns: u64,
}

impl PlannedPace {
    /// Of the plan for the whole machine and those for lost devices, the worst of each number, where an iteration answers so many requests.
    pub(crate) fn of(program: &Program, rows: u64) -> Self {
        let entries = program.contingencies.list.iter();
        let main_plans = entries
            .map(|entry| entry.main)
            .chain([zbmd_ir::PlanId(0)])
            .map(|plan| &program.plans[plan]);
        let none = Self {
            rows,
            block: 1,
            stages: 1,
            period_ns: 0,
        };
        main_plans.fold(none, |worst, plan| Self {
            rows,
            block: worst.block.max(plan.block),
            stages: worst.stages.max(plan.stages.into()),
            period_ns: worst.period_ns.max(plan.period_ns),
        })
    }

    /// Empty requests that follow one after which no other waits, with so many pushed since an iteration began: they complete its
    /// iteration, and its block, wherever in it that stands, and move it through all stages. A single request never waits for company.
    pub(crate) const fn fillers(&self, pushed: u64) -> u64 {
        let rest = pushed.next_multiple_of(self.rows) - pushed;
        rest + (self.block * self.stages - 1) * self.rows
    }

    /// From the border at which its block, or one before it, begins to the answer, with so many requests before it: the blocks up to
    /// its own, and the stages that follow.
    pub(crate) const fn computed_ns(&self, ahead: u64) -> u64 {
        let blocks = (ahead.saturating_add(1)).div_ceil(self.block * self.rows);
        blocks
            .saturating_add(self.stages - 1)
            .saturating_mul(self.period_ns)
    }
}

/// What requests took lately.
#[derive(Debug, Default)]
pub(crate) struct MeasuredPace {
    /// Response of a request that found nothing before it, smoothed.
    alone_ns: AtomicU64,
    /// From one answer to the next while requests waited, smoothed.
    spacing_ns: AtomicU64,
    /// The shortest response so far; 0 before the first.
    shortest_ns: AtomicU64,
    overrun: Overrun,
}

impl MeasuredPace {
    /// A request that found nothing before it was answered.
    pub(crate) fn answered_alone(&self, response: Duration) {
        smooth(&self.alone_ns, response);
        let response_ns = ns_of(response);
        let shorter = |shortest_ns| match shortest_ns {
            0 => Some(response_ns),
            _ => (response_ns < shortest_ns).then_some(response_ns),
        };
        let _ = self
            .shortest_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, shorter);
    }

    /// The shortest response so far of a request that found nothing before it; 0 before the first.
    pub(crate) fn shortest_ns(&self) -> u64 {
        self.shortest_ns.load(Ordering::Relaxed)
    }

    /// An answer came so long after the one before, and was under way already then.
    pub(crate) fn answered_next(&self, spacing: Duration) {
        smooth(&self.spacing_ns, spacing);
    }

    /// What a response took, until its answer was made, and [what it was to take](Self::usual).
    pub(crate) fn responded(&self, response: Duration, usual: Duration) {
        let overrun = response.saturating_sub(usual);
        self.overrun.add(overrun, Instant::now());
    }

    /// How long a response takes as a rule, with so many requests before it: the longer of what is planned and what was
    /// measured.
    pub(crate) fn usual(&self, planned: &Batches, ahead: u64) -> Duration {
        let spacing_ns = self.spacing_ns.load(Ordering::Relaxed);
        let waiting_ns = spacing_ns.saturating_mul(ahead);
        let alone_ns = self.alone_ns.load(Ordering::Relaxed);
        let planned_ns = planned.response_ns(ahead);
        Duration::from_nanos(planned_ns.max(alone_ns.saturating_add(waiting_ns)))
    }

    /// How long a response with a timeout takes but for rare ones: as a rule, and what responses took longer than that lately, but no
    /// more of that than half the timeout. Where the system lets threads wait as long as clients do, as many answers are late with a
    /// short queue as without one: refusing what finds a short queue would keep no promise. With nothing before it, as short as it ever
    /// was: a slow moment must not have all that follows refused, as nothing would be measured then.
    pub(crate) fn bound(&self, planned: &Batches, ahead: u64, timeout: Duration) -> Duration {
        match ahead {
            0 => Duration::from_nanos(planned.response_ns(0).max(self.shortest_ns())),
            _ => {
                let margin = self.overrun.margin().min(timeout / 2);
                self.usual(planned, ahead) + margin
            }
        }
    }
}

/// By how much responses took longer than usual lately: the most in a window of time and in the one before it.
///
/// A mean and its deviations, as of TCP's retransmission timer, know too little of rare responses, and those are what a bound is about.
/// Where it makes the server refuse more than it need, it is of requests that find a long queue.
#[derive(Debug, Default)]
struct Overrun(Mutex<Peaks>);

#[derive(Debug, Default)]
struct Peaks {
    /// When the window began.
    begun: Option<Instant>,
    present: Duration,
    before: Duration,
}

impl Overrun {
    fn add(&self, overrun: Duration, now: Instant) {
        let mut peaks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peaks.turn(now);
        peaks.present = peaks.present.max(overrun);
    }

    /// That, and half of it again, as the next one may be the longest so far.
    fn margin(&self) -> Duration {
        let peaks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = peaks.present.max(peaks.before);
        longest + longest / 2
    }
}

impl Peaks {
    /// Begins another window if the present one is over.
    fn turn(&mut self, now: Instant) {
        let age = now - *self.begun.get_or_insert(now);
        if age < PEAK_WINDOW {
            return;
        }
        let is_next = age < 2 * PEAK_WINDOW;
        self.before = if is_next {
            self.present
        } else {
            Duration::ZERO
        };
        self.present = Duration::ZERO;
        self.begun = Some(now);
    }
}

/// Moves a mean by an eighth of the difference. Two threads at once may lose a sample.
pub(super) fn smooth(mean_ns: &AtomicU64, sample: Duration) {
    let sample_ns = ns_of(sample);
    let before_ns = mean_ns.load(Ordering::Relaxed);
    let after_ns = match before_ns {
        0 => sample_ns,
        _ => before_ns - before_ns / 8 + sample_ns / 8,
    };
    mean_ns.store(after_ns, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINGLE: PlannedPace = PlannedPace {
        rows: 1,
        block: 1,
        stages: 1,
        period_ns: 10,
    };
    const PIPELINE: PlannedPace = PlannedPace {
        rows: 1,
        block: 4,
        stages: 3,
        period_ns: 10,
    };

    #[test]
    fn fillers_complete_the_block_and_empty_the_pipeline() {
        assert_eq!((SINGLE.fillers(1), PIPELINE.fillers(1)), (0, 11));
        let batch = PlannedPace { rows: 8, ..SINGLE };
        assert_eq!(
            [1, 7, 8, 11].map(|pushed| batch.fillers(pushed)),
            [7, 1, 0, 5]
        );
        let batches = PlannedPace {
            rows: 8,
            ..PIPELINE
        };
        assert_eq!([6, 8].map(|pushed| batches.fillers(pushed)), [90, 88]);
    }

    #[test]
    fn the_bound_counts_the_border_the_queue_and_the_stages() {
        // A block that has just begun, and its own.
        let [single, pipeline] = [SINGLE, PIPELINE].map(Batches::none);
        assert_eq!(single.response_ns(0), 20);
        assert_eq!(single.response_ns(5), 70);
        // A block that has just begun, its own, and two more that move it on.
        assert_eq!(pipeline.response_ns(0), 40);
        assert_eq!((pipeline.response_ns(3), pipeline.response_ns(4)), (40, 50));
        assert_eq!(single.response_ns(u64::MAX), u64::MAX);
    }

    #[test]
    fn the_longer_of_plan_and_measurement_is_usual() {
        let nanos = Duration::from_nanos;
        let single = Batches::none(SINGLE);
        let measured = MeasuredPace::default();
        assert_eq!(measured.usual(&single, 2), nanos(40));
        measured.answered_alone(nanos(100));
        measured.answered_next(nanos(30));
        assert_eq!(measured.usual(&single, 2), nanos(160));
        assert_eq!(measured.bound(&single, 0, nanos(1000)), nanos(100));
        measured.answered_alone(nanos(900));
        assert_eq!(measured.bound(&single, 0, nanos(1000)), nanos(100));
        assert_eq!(measured.usual(&single, 0), nanos(200));
        assert_eq!(measured.shortest_ns(), 100);
        measured.answered_next(nanos(430));
        assert_eq!(measured.usual(&single, 1), nanos(280));
    }

    #[test]
    fn what_others_took_longer_is_added_unless_nothing_is_ahead() {
        let micros = Duration::from_micros;
        let pace = Batches::none(PlannedPace {
            period_ns: 1_000_000,
            ..SINGLE
        });
        let measured = MeasuredPace::default();
        let usual = micros(3000);
        let long = micros(100_000);
        assert_eq!(measured.bound(&pace, 1, long), usual);
        measured.responded(micros(3500), usual);
        measured.responded(micros(2000), usual);
        assert_eq!(measured.bound(&pace, 1, long), micros(3750));
        // No more of it than half the timeout.
        measured.responded(micros(7500), usual);
        assert_eq!(measured.bound(&pace, 1, long), micros(9750));
        assert_eq!(measured.bound(&pace, 1, micros(5000)), usual + micros(2500));
        assert_eq!(measured.bound(&pace, 0, long), micros(2000));
    }

    #[test]
    fn a_long_response_counts_for_one_window_and_the_next() {
        let overrun = Overrun::default();
        let begun = Instant::now();
        let (millis, micros) = (Duration::from_millis, Duration::from_micros);
        overrun.add(millis(7), begun);
        overrun.add(millis(1), begun + PEAK_WINDOW);
        assert_eq!(overrun.margin(), micros(10_500));
        overrun.add(millis(2), begun + 2 * PEAK_WINDOW);
        assert_eq!(overrun.margin(), millis(3));
        // Nothing came for a long time.
        overrun.add(millis(0), begun + 9 * PEAK_WINDOW);
        assert_eq!(overrun.margin(), millis(0));
    }
}
