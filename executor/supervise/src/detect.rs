//! Whether a worker hangs or is slow, from what is seen of it. Must not know how it is looked at, and kills nobody.
//!
//! **Overdue.** The calendar knows how long each slot takes. Its *bound* is the planned time by a margin, which is
//! learned upwards from slots that took longer and did end. What is held against the bound is the time that the worker
//! itself had: while it runs or waits for a core, its own CPU time, so that a worker on a loaded machine, which gets
//! no core, is never taken for a hung one; while it sleeps inside a slot, wall time. A worker that a signal stopped
//! is overdue after a short confirmation. Between two looks that lie far apart the looker itself had no core: then
//! no more than [`DetectPolicy::gap_ns`] counts.
//!
//! **Slow.** The time that a worker itself needs for a period, without waiting, is kept as Hayashibara et al. (*The phi
//! accrual failure detector*, 2004) keep heartbeats, and phi = -log10 of the probability that a healthy worker needs
//! so much. A worker is slow when it needs longer than it did by a ratio and phi is high, twice in a row. That is
//! no verdict: first the pace is taken as planned, and if it stays, the work is given to others where that is faster.
//!
//! **Looking** wants little work: read step, bound and `waiting` from shared memory every [`DetectPolicy::look_ns`], or
//! more rarely while a watchdog timer tells that the worker gets on; ask the system about the thread only when
//! [`Detector::wants_os`] says so, that is when the step has not changed.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use zbmd_ir::DeviceId;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Os {
    /// It has a core.
    Running,
    /// It could run and has no core.
    Starved,
    /// A signal stopped it.
    Stopped,
    /// It sleeps.
    Blocked,
}

/// One look at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Changes whenever the worker makes progress: its period and slot.
    pub step: u64,
    /// Periods that it has done in this epoch.
    pub periods: u64,
    /// How long the slot is planned to take, in nanoseconds.
    pub planned_ns: u64,
    /// It waits for tokens of others, or for space: that may take any time.
    pub waiting: bool,
    /// Its thread, if the system was asked: see `Detector::wants_os`.
    pub thread: Option<Thread>,
}

/// What the system says of a worker's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// What it does.
    pub os: Os,
    /// Its CPU time so far, in nanoseconds.
    pub cpu_ns: u64,
}

/// How to detect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DetectPolicy {
    /// How often to look, in nanoseconds.
    pub look_ns: u64,
    /// How often to ask the system about a worker that waits.
    pub idle_ns: u64,
    /// A slot's bound is its planned time by this, at least.
    pub margin: f64,
    /// The margin is never learned beyond this.
    pub max_margin: f64,
    /// No bound is shorter: plans know nothing of page faults.
    pub floor_ns: u64,
    /// Over the bound by so much is overdue; stopped for so long too.
    pub confirm_ns: u64,
    /// No more counts between two looks.
    pub gap_ns: u64,
    /// Measured periods that are remembered.
    pub window: usize,
    /// A slow worker's periods take so many times longer.
    pub slow_times: f64,
    /// And phi is at least this.
    pub slow_phi: f64,
}

impl Default for DetectPolicy {
    fn default() -> Self {
        Self {
            look_ns: 1_000_000,
            idle_ns: 2_000_000,
            margin: 4.0,
            max_margin: 64.0,
            floor_ns: 2_000_000,
            confirm_ns: 1_000_000,
            gap_ns: 2_000_000,
            window: 64,
            slow_times: 1.5,
            slow_phi: 8.0,
        }
    }
}

/// What a look finds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Finding {
    /// Nothing.
    Fine,
    /// The worker hangs.
    Overdue {
        /// For people.
        why: &'static str,
        /// The time that counted.
        after_ns: u64,
        /// The slot's bound.
        bound_ns: u64,
    },
    /// The worker is slow.
    Slow {
        /// Times slower.
        times: f64,
        /// How sure that is.
        phi: f64,
        /// It has been slow for a while already.
        again: bool,
    },
    /// It has its pace again.
    Pace,
}

/// What is known of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Detector {
    policy: DetectPolicy,
    /// Learned from slots that took longer and did end.
    margin: f64,
    floor_ns: u64,
    /// Doubled by each overdue slot, for it may have been a false alarm; 1 again after a while of progress.
    doubt: u64,
    /// Steps since the last overdue slot.
    steps: u64,
    last: Option<Last>,
    pace: Pace,
    /// The losses of the plan at work, and the paces under other plans.
    plan: Vec<DeviceId>,
    paces: BTreeMap<Vec<DeviceId>, Pace>,
}

/// What the looks at the present step found.
#[derive(Clone, Copy, Debug)]
struct Last {
    at_ns: u64,
    sample: Sample,
    /// Time that counted in this step.
    used_ns: u64,
    /// Time seen stopped, without a break.
    stopped_ns: u64,
}

/// So many steps without an overdue slot take doubt away.
const TRUSTED_STEPS: u64 = 1000;
const MAX_DOUBT: u64 = 16;

impl Detector {
    /// Nothing is known yet.
    pub(crate) fn new(policy: DetectPolicy) -> Self {
        Self {
            policy,
            margin: policy.margin,
            floor_ns: policy.floor_ns,
            doubt: 1,
            steps: 0,
            last: None,
            pace: Pace::default(),
            plan: Vec::new(),
            paces: BTreeMap::new(),
        }
    }

    /// An epoch begins, with the plan for a loss (ascending): under another plan, periods take another time.
    pub(crate) fn begin(&mut self, lost: &[DeviceId]) {
        self.last = None;
        let plan_before = std::mem::replace(&mut self.plan, lost.to_vec());
        self.paces
            .insert(plan_before, std::mem::take(&mut self.pace));
        self.pace = self.paces.remove(lost).unwrap_or_default().again();
    }

    /// Whether the system must be asked about the thread for a look at `now_ns` that finds this step.
    pub(crate) fn wants_os(&self, now_ns: u64, step: u64, waiting: bool) -> bool {
        let Some(last) = self.last.filter(|last| last.sample.step == step) else {
            return false;
        };
        let was_running = last
            .sample
            .thread
            .is_some_and(|thread| thread.os != Os::Stopped);
        let is_idle = waiting && last.sample.waiting && was_running;
        !is_idle || now_ns >= last.at_ns + self.policy.idle_ns
    }

    /// Whether looks find nothing as long as the worker waits on, not stopped, as when the system was asked last: no
    /// measured stretch can end.
    pub(crate) fn is_idle(&self) -> bool {
        let Some(last) = self.last else {
            return false;
        };
        let is_blocked = last
            .sample
            .thread
            .is_some_and(|thread| thread.os == Os::Blocked);
        let has_new_periods = last.sample.periods > self.pace.periods;
        last.sample.waiting && is_blocked && !has_new_periods
    }

    /// Takes looks into account that were left out because the worker was idle, one every [`DetectPolicy::look_ns`], the
    /// last of them at `last_ns`. O(1).
    pub(crate) fn leave_out(&mut self, looks: u32, last_ns: u64) {
        let Some(last_index) = u64::from(looks).checked_sub(1) else {
            return;
        };
        self.pace.looks = self.pace.looks.saturating_add(looks);
        let Some(last) = &mut self.last else {
            return;
        };

        // Some of them would have asked the system, each the first one that comes `idle_ns` after the one before.
        let look_ns = self.policy.look_ns;
        let first_ns = last_ns.saturating_sub(last_index * look_ns);
        let asked_ns = last.at_ns + self.policy.idle_ns;
        let first_index = asked_ns.saturating_sub(first_ns).div_ceil(look_ns);
        if let Some(rest) = last_index.checked_sub(first_index) {
            let stride = self.policy.idle_ns.div_ceil(look_ns).max(1);
            last.at_ns = first_ns + (first_index + rest / stride * stride) * look_ns;
        }
    }

    /// The bound of a slot that is planned to take so long, in nanoseconds.
    pub(crate) fn bound_ns(&self, planned_ns: u64) -> u64 {
        let expected_ns = planned_ns as f64 * self.margin;
        (expected_ns as u64)
            .max(self.floor_ns)
            .saturating_mul(self.doubt)
    }

    /// Takes a look into account. O(window) at the end of a measured stretch, else O(1).
    pub(crate) fn look(&mut self, now_ns: u64, sample: Sample) -> Finding {
        let fresh_look = Last {
            at_ns: now_ns,
            sample,
            used_ns: 0,
            stopped_ns: 0,
        };
        let Some(last) = self.last.replace(fresh_look) else {
            self.pace.start(sample.periods);
            return Finding::Fine;
        };
        let elapsed_ns = now_ns.saturating_sub(last.at_ns);
        let pace_finding = self.pace.look(
            &self.policy,
            elapsed_ns,
            last.sample.waiting,
            sample.periods,
        );

        // What passed unseen between two looks that are far apart proves nothing.
        let counted_ns = elapsed_ns.min(self.policy.gap_ns);
        if sample.step != last.sample.step {
            self.learn_bound(last.used_ns, last.sample.planned_ns);
            return pace_finding;
        }

        let overdue_finding = self.look_again(now_ns, counted_ns, last, sample);
        if overdue_finding == Finding::Fine {
            pace_finding
        } else {
            overdue_finding
        }
    }

    /// The worker is so many times slower than it was: its slots may take so much longer too.
    pub(crate) fn retime(&mut self, times: f64) {
        self.margin = self
            .margin
            .max((self.policy.margin * times).min(self.policy.max_margin));
    }

    /// A look that finds the worker where it was.
    fn look_again(&mut self, now_ns: u64, gap_ns: u64, last: Last, sample: Sample) -> Finding {
        let Some(thread) = sample.thread else {
            self.last = Some(last);
            return Finding::Fine;
        };
        // The first look that asked the system only finds how much CPU time was used.
        let thread_before = last.sample.thread;
        let stayed = |os| thread.os == os && thread_before.is_some_and(|before| before.os == os);

        let is_waiting = sample.waiting || last.sample.waiting;
        let spent_ns = match thread_before {
            Some(_) if stayed(Os::Blocked) => gap_ns,
            Some(thread_before) => thread.cpu_ns.saturating_sub(thread_before.cpu_ns),
            None => 0,
        };

        let next_look = Last {
            at_ns: now_ns,
            sample,
            used_ns: if is_waiting {
                0
            } else {
                last.used_ns + spent_ns
            },
            stopped_ns: if stayed(Os::Stopped) {
                last.stopped_ns + gap_ns
            } else {
                0
            },
        };
        self.last = Some(next_look);

        let bound_ns = self.bound_ns(sample.planned_ns);
        let confirm_ns = self.policy.confirm_ns;
        if next_look.stopped_ns >= confirm_ns {
            let after_ns = next_look.stopped_ns;
            return Finding::Overdue {
                why: "stopped by a signal",
                after_ns,
                bound_ns: confirm_ns,
            };
        }

        if next_look.used_ns >= bound_ns + confirm_ns {
            self.doubt = (self.doubt * 2).min(MAX_DOUBT);
            self.steps = 0;
            let is_blocked = thread.os == Os::Blocked;
            let why = if is_blocked {
                "sleeps in a slot"
            } else {
                "computes in a slot"
            };
            return Finding::Overdue {
                why,
                after_ns: next_look.used_ns,
                bound_ns,
            };
        }
        Finding::Fine
    }

    /// A slot ended that used so much: the next one like it shall not come near its bound.
    fn learn_bound(&mut self, used_ns: u64, planned_ns: u64) {
        self.steps += 1;
        if self.steps >= TRUSTED_STEPS {
            self.doubt = 1;
        }
        if used_ns <= self.bound_ns(planned_ns) / 2 {
            return;
        }
        let learned_margin = 2.0 * used_ns as f64 / planned_ns.max(1) as f64;
        if learned_margin <= self.policy.max_margin {
            self.margin = self.margin.max(learned_margin);
        } else {
            self.floor_ns = self.floor_ns.max(2 * used_ns);
        }
    }
}

/// Looks that make one measured stretch, at least.
const STRETCH: u32 = 16;
/// Stretches before anything is judged.
const LEARNED: usize = 8;

/// How long a worker's periods take.
#[derive(Clone, Debug, Default)]
struct Pace {
    /// Own time of a period in each healthy stretch, in nanoseconds.
    healthy: VecDeque<f64>,
    own_ns: u64,
    looks: u32,
    periods: u64,
    /// Slow stretches in a row.
    slow: u32,
}

impl Pace {
    fn start(&mut self, periods: u64) {
        self.own_ns = 0;
        self.looks = 0;
        self.periods = periods;
    }

    fn again(&self) -> Self {
        Self {
            own_ns: 0,
            looks: 0,
            periods: 0,
            slow: 0,
            ..self.clone()
        }
    }

    fn look(&mut self, policy: &DetectPolicy, gap_ns: u64, waited: bool, periods: u64) -> Finding {
        self.looks = self.looks.saturating_add(1);
        self.own_ns += if waited { 0 } else { gap_ns };
        let periods_done = periods.saturating_sub(self.periods);
        if self.looks < STRETCH || periods_done == 0 {
            return Finding::Fine;
        }
        let period_ns = self.own_ns as f64 / periods_done as f64;

        self.start(periods);
        self.judge_period(policy, period_ns)
    }

    fn judge_period(&mut self, policy: &DetectPolicy, period_ns: f64) -> Finding {
        let count = self.healthy.len().max(1) as f64;
        let mean_ns = self.healthy.iter().sum::<f64>() / count;
        let squares = self.healthy.iter().map(|ns| (ns - mean_ns).powi(2));
        let variance = squares.sum::<f64>() / count;
        // Sampled from outside, a steady worker looks steadier than it is.
        let deviation_ns = variance.sqrt().max(0.1 * mean_ns).max(1.0);
        let phi = phi((period_ns - mean_ns) / deviation_ns);
        let is_slow = self.healthy.len() >= LEARNED
            && period_ns > policy.slow_times * mean_ns
            && phi >= policy.slow_phi;

        if !is_slow {
            self.healthy.push_back(period_ns);
            if self.healthy.len() > policy.window {
                self.healthy.pop_front();
            }
            return if std::mem::take(&mut self.slow) >= 2 {
                Finding::Pace
            } else {
                Finding::Fine
            };
        }

        self.slow = self.slow.saturating_add(1);
        let again = self.slow as usize == 2 + LEARNED;
        if self.slow == 2 || again {
            return Finding::Slow {
                times: period_ns / mean_ns.max(1.0),
                phi,
                again,
            };
        }
        Finding::Fine
    }
}

/// -log10 of the probability that a normal variable exceeds its mean by `y` deviations, by the logistic approximation
/// of the normal distribution (error below 0.00014 of the probability), which has no series to sum.
fn phi(y: f64) -> f64 {
    if y <= 0.0 {
        return 0.0;
    }
    let exponent = y * (1.5976 + 0.070566 * y * y);
    // -log10(e^-x / (1 + e^-x)), without the small numbers.
    (exponent + (-exponent).exp().ln_1p()) / std::f64::consts::LN_10
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A worker looked at every millisecond, asked about only when the detector wants that.
    struct Looker {
        detector: Detector,
        now_ns: u64,
        cpu_ns: u64,
    }

    impl Looker {
        fn new() -> Self {
            Self {
                detector: Detector::new(DetectPolicy::default()),
                now_ns: 0,
                cpu_ns: 0,
            }
        }

        fn look(&mut self, step: u64, periods: u64, waiting: bool, os: Os) -> Finding {
            self.now_ns += MS;
            self.cpu_ns += if os == Os::Running { MS } else { 0 };
            let asked = self.detector.wants_os(self.now_ns, step, waiting);
            let thread = asked.then_some(Thread {
                os,
                cpu_ns: self.cpu_ns,
            });
            let sample = Sample {
                step,
                periods,
                planned_ns: 3 * MS,
                waiting,
                thread,
            };
            self.detector.look(self.now_ns, sample)
        }

        /// Whether this was the worker's step at the last look.
        fn is_at(&self, step: u64) -> bool {
            self.detector
                .last
                .is_some_and(|last| last.sample.step == step)
        }

        /// Milliseconds until the worker is overdue, of at most 200.
        fn overdue_after(&mut self, waiting: bool, os: impl Fn(u64) -> Os) -> Option<u64> {
            self.look(1, 0, waiting, os(0));
            let is = |f: Finding| matches!(f, Finding::Overdue { .. });
            (1..200).find(|n| is(self.look(1, 0, waiting, os(*n))))
        }
    }

    /// Looks at idle workers that are left out change nothing of what follows: two detectors, one of which sees all,
    /// agree in everything.
    #[test]
    fn looks_at_idle_workers_may_be_left_out() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for idle_ns in [MS / 2, MS, 2 * MS, 5 * MS / 2, 7 * MS] {
            let policy = DetectPolicy {
                idle_ns,
                ..DetectPolicy::default()
            };
            let (mut all, mut few) = (Looker::new(), Looker::new());
            all.detector.policy = policy;
            few.detector.policy = policy;

            let mut left_out_in_all = 0;
            let mut step = 0;
            for _ in 0..2000 {
                step += 1;
                let waiting = random(2) == 0;
                let os = match (waiting, random(4)) {
                    (_, 0) => Os::Stopped,
                    (true, _) => Os::Blocked,
                    (false, _) => Os::Running,
                };
                let mut left_out = 0;
                for _ in 0..=random(40) {
                    let found = all.look(step, step / 3, waiting, os);
                    if few.detector.is_idle() && few.is_at(step) {
                        assert_eq!(found, Finding::Fine, "step {step}");
                        few.now_ns += MS;
                        left_out += 1;
                        continue;
                    }
                    assert_eq!(found, few.look(step, step / 3, waiting, os), "step {step}");
                }
                left_out_in_all += left_out;
                few.detector.leave_out(left_out, few.now_ns);
                let states = (format!("{:?}", all.detector), format!("{:?}", few.detector));
                assert_eq!(states.0, states.1, "step {step}");
            }
            assert!(left_out_in_all > 1000, "{left_out_in_all}: a weak test");
        }
    }

    #[test]
    fn what_counts_as_hanging_and_after_how_long() {
        use Os::*;
        // Planned 3 ms, margin 4, so the bound is 12 ms; one look to know where the CPU time stood, and 1 ms of
        // confirmation.
        type Case = (&'static str, bool, fn(u64) -> Os, Option<u64>);
        let cases: [Case; 8] = [
            ("computes for ever", false, |_| Running, Some(14)),
            ("sleeps in a slot", false, |_| Blocked, Some(14)),
            ("stopped", false, |_| Stopped, Some(2)),
            ("stopped while it waits", true, |_| Stopped, Some(2)),
            ("waits", true, |_| Blocked, None),
            ("has no core", false, |_| Starved, None),
            (
                "has a core for a tenth of the time",
                false,
                |n| [Starved, Running][(n % 10 == 0) as usize],
                Some(130),
            ),
            (
                "woken now and then without a core",
                false,
                |n| [Blocked, Starved][(n % 2) as usize],
                None,
            ),
        ];
        for (name, waiting, os, expected) in cases {
            assert_eq!(Looker::new().overdue_after(waiting, os), expected, "{name}");
        }
    }

    #[test]
    fn a_looker_without_a_core_blames_nobody() {
        let mut looker = Looker::new();
        looker.look(1, 0, false, Os::Blocked);
        looker.look(1, 0, false, Os::Blocked);
        looker.now_ns += 500 * MS;
        assert_eq!(looker.look(1, 0, false, Os::Blocked), Finding::Fine);
    }

    #[test]
    fn bounds_are_learned_from_slots_that_ended() {
        let mut looker = Looker::new();
        assert_eq!(looker.detector.bound_ns(3 * MS), 12 * MS);
        for _ in 0..10 {
            looker.look(1, 0, false, Os::Running);
        }
        looker.look(2, 0, false, Os::Running);
        assert_eq!(
            looker.detector.bound_ns(3 * MS),
            16 * MS,
            "twice the 8 ms that were seen"
        );
        assert!(looker.overdue_after(false, |_| Os::Running).is_some());
        assert_eq!(
            looker.detector.bound_ns(3 * MS),
            32 * MS,
            "it may have been a false alarm"
        );
        // The worker is replaced; the slot did not end.
        looker.detector.begin(&[]);
        for n in 0..=TRUSTED_STEPS {
            looker.look(3 + n, 0, false, Os::Running);
        }
        assert_eq!(looker.detector.bound_ns(3 * MS), 16 * MS);
    }

    #[test]
    fn a_worker_that_slows_down_is_told_of_twice_and_its_recovery_once() {
        let mut looker = Looker::new();
        let (mut step, mut periods) = (0, 0);
        let mut findings = Vec::new();
        // Each period takes 4 looks when healthy, 12 when slow; others would wait meanwhile.
        for (stretches, looks) in [(40, 4), (100, 12), (40, 4)] {
            for n in 0..stretches * 16 {
                step += 1;
                periods += u64::from(n % looks == 0);
                findings.push(looker.look(step, periods, false, Os::Running));
            }
        }
        let told: Vec<String> = findings
            .into_iter()
            .filter(|f| *f != Finding::Fine)
            .map(|f| match f {
                Finding::Slow { again, .. } => format!("slow, again: {again}"),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(told, ["slow, again: false", "slow, again: true", "Pace"]);
    }

    #[test]
    fn phi_counts_the_digits_of_the_probability() {
        // 2.326 deviations are exceeded once in a hundred, 3.719 once in ten thousand.
        for (y, expected) in [(-1.0, 0.0), (2.326, 2.0), (3.719, 4.0)] {
            assert!((phi(y) - expected).abs() < 0.2, "{y}: {}", phi(y));
        }
        assert!(phi(1e6).is_finite());
    }
}
