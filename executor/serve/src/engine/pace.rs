//! How long a request takes: what the calendar says, and what was measured.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use zbmd_ir::Program;

use crate::stats::ns_of;

/// What a program's calendars say about responses, in the worst of its plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedPace {
    /// Iterations in a block: a worker takes so many at once.
    pub(crate) block: u64,
    /// Blocks under way at once: a block's answers come while the last of so many is computed.
    pub(crate) stages: u64,
    /// From one block to the next.
    pub(crate) period_ns: u64,
}

impl PlannedPace {
    /// Of the plan for the whole machine and those for lost devices, the worst of each number.
    pub(crate) fn of(program: &Program) -> Self {
        let entries = program.contingencies.list.iter();
        let main_plans = entries
            .map(|entry| entry.main)
            .chain([zbmd_ir::PlanId(0)])
            .map(|plan| &program.plans[plan]);
        let none = Self {
            block: 1,
            stages: 1,
            period_ns: 0,
        };
        main_plans.fold(none, |worst, plan| Self {
            block: worst.block.max(plan.block),
            stages: worst.stages.max(plan.stages.into()),
            period_ns: worst.period_ns.max(plan.period_ns),
        })
    }

    /// Empty iterations that follow a request after which no other waits: they complete its block, wherever in it the
    /// request stands, and move it through all stages. A single request never waits for company.
    pub(crate) const fn fillers(&self) -> u64 {
        self.block * self.stages - 1
    }

    /// From admission to the answer, with so many iterations before it: the wait for a border, the blocks up to its own, and the
    /// stages that follow. The time of HTTP and of threads that are woken is not in it.
    pub(crate) const fn response_ns(&self, iterations_ahead: u64) -> u64 {
        let blocks = (iterations_ahead.saturating_add(1)).div_ceil(self.block);
        blocks
            .saturating_add(self.stages)
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
        self.overrun.add(response, usual);
    }

    /// How long a response takes as a rule, with so many iterations before it: the longer of what is planned and what was
    /// measured.
    pub(crate) fn usual(&self, planned: PlannedPace, iterations_ahead: u64) -> Duration {
        let spacing_ns = self.spacing_ns.load(Ordering::Relaxed);
        let waiting_ns = spacing_ns.saturating_mul(iterations_ahead);
        let alone_ns = self.alone_ns.load(Ordering::Relaxed);
        let planned_ns = planned.response_ns(iterations_ahead);
        Duration::from_nanos(planned_ns.max(alone_ns.saturating_add(waiting_ns)))
    }

    /// How long a response with a timeout takes but for rare ones: as a rule, and what responses took longer than that lately, but no
    /// more of that than half the timeout. Where the system lets threads wait as long as clients do, as many answers are late with a
    /// short queue as without one: refusing what finds a short queue would keep no promise. With nothing before it, as short as it ever
    /// was: a slow moment must not have all that follows refused, as nothing would be measured then.
    pub(crate) fn bound(
        &self,
        planned: PlannedPace,
        iterations_ahead: u64,
        timeout: Duration,
    ) -> Duration {
        match iterations_ahead {
            0 => Duration::from_nanos(planned.response_ns(0).max(self.shortest_ns())),
            _ => {
                let margin = self.overrun.margin().min(timeout / 2);
                self.usual(planned, iterations_ahead) + margin
            }
        }
    }
}

/// By how much responses took longer than usual lately.
///
/// As TCP's retransmission timer has it (RFC 6298): a smoothed mean, and four times the smoothed deviation from it.
#[derive(Debug, Default)]
struct Overrun {
    mean_ns: AtomicI64,
    deviation_ns: AtomicI64,
}

impl Overrun {
    /// Two threads at once may lose a sample.
    fn add(&self, response: Duration, usual: Duration) {
        let signed_ns = |time| i64::try_from(ns_of(time)).unwrap_or(i64::MAX);
        let overrun_ns = signed_ns(response).saturating_sub(signed_ns(usual));
        let mean_ns = self.mean_ns.load(Ordering::Relaxed);
        let deviation_ns = self.deviation_ns.load(Ordering::Relaxed);
        let error_ns = overrun_ns.saturating_sub(mean_ns);
        let mean_ns = mean_ns.saturating_add(error_ns / 8);
        self.mean_ns.store(mean_ns, Ordering::Relaxed);
        let spread_ns = (error_ns.saturating_abs() - deviation_ns) / 4;
        self.deviation_ns
            .store(deviation_ns + spread_ns, Ordering::Relaxed);
    }

    fn margin(&self) -> Duration {
        let mean_ns = self.mean_ns.load(Ordering::Relaxed);
        let deviation_ns = self.deviation_ns.load(Ordering::Relaxed);
        let margin_ns = mean_ns.saturating_add(deviation_ns.saturating_mul(4));
        Duration::from_nanos(u64::try_from(margin_ns).unwrap_or(0))
    }
}

/// Moves a mean by an eighth of the difference. Two threads at once may lose a sample.
fn smooth(mean_ns: &AtomicU64, sample: Duration) {
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
        block: 1,
        stages: 1,
        period_ns: 10,
    };
    const PIPELINE: PlannedPace = PlannedPace {
        block: 4,
        stages: 3,
        period_ns: 10,
    };

    #[test]
    fn fillers_complete_the_block_and_empty_the_pipeline() {
        assert_eq!((SINGLE.fillers(), PIPELINE.fillers()), (0, 11));
    }

    #[test]
    fn the_bound_counts_the_border_the_queue_and_the_stages() {
        // A block that has just begun, and its own.
        assert_eq!(SINGLE.response_ns(0), 20);
        assert_eq!(SINGLE.response_ns(5), 70);
        // A block that has just begun, its own, and two more that move it on.
        assert_eq!(PIPELINE.response_ns(0), 40);
        assert_eq!((PIPELINE.response_ns(3), PIPELINE.response_ns(4)), (40, 50));
        assert_eq!(SINGLE.response_ns(u64::MAX), u64::MAX);
    }

    #[test]
    fn the_longer_of_plan_and_measurement_is_usual() {
        let nanos = Duration::from_nanos;
        let measured = MeasuredPace::default();
        assert_eq!(measured.usual(SINGLE, 2), nanos(40));
        measured.answered_alone(nanos(100));
        measured.answered_next(nanos(30));
        assert_eq!(measured.usual(SINGLE, 2), nanos(160));
        assert_eq!(measured.bound(SINGLE, 0, nanos(1000)), nanos(100));
        measured.answered_alone(nanos(900));
        assert_eq!(measured.bound(SINGLE, 0, nanos(1000)), nanos(100));
        assert_eq!(measured.usual(SINGLE, 0), nanos(200));
        assert_eq!(measured.shortest_ns(), 100);
        measured.answered_next(nanos(430));
        assert_eq!(measured.usual(SINGLE, 1), nanos(280));
    }

    #[test]
    fn what_others_took_longer_is_added_unless_nothing_is_ahead() {
        let micros = Duration::from_micros;
        let pace = PlannedPace {
            block: 1,
            stages: 1,
            period_ns: 1_000_000,
        };
        let measured = MeasuredPace::default();
        let usual = micros(3000);
        let long = micros(100_000);
        assert_eq!(measured.bound(pace, 1, long), usual);
        for _ in 0..200 {
            measured.responded(micros(3500), usual);
        }
        let steady = measured.bound(pace, 1, long);
        assert!((micros(3490)..micros(3510)).contains(&steady), "{steady:?}");

        // One that stands out counts for a while.
        measured.responded(micros(7500), usual);
        assert!(measured.bound(pace, 1, long) > micros(7000));
        assert_eq!(measured.bound(pace, 1, micros(5000)), usual + micros(2500));
        assert_eq!(measured.bound(pace, 0, long), micros(2000));
        for _ in 0..200 {
            measured.responded(micros(2000), usual);
        }
        assert_eq!(measured.bound(pace, 1, long), usual);
    }
}
