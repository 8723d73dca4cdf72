//! The circuit breaker of one device: a device that fails again and again stays out until probes pass (Nygard, *Release
//! It!*, 2007). Must not know the run.
//!
//! ```text
//!            failures within the window
//!   Closed ------------------------------> Open --- time is up ---> HalfOpen
//!     ^                                     ^                          |  |
//!     |                                     +------ a probe fails -----+  |
//!     +--------------------------- enough probes pass --------------------+
//! ```
//!
//! A probe is a worker that was started and stays alive for a while, without a role in the run. Each time the breaker
//! opens again without having closed, it stays open for twice as long.

use std::collections::VecDeque;

/// When a breaker opens and how it closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// So many failures ...
    pub failures: u32,
    /// ... within so many nanoseconds open the breaker.
    pub window_ns: u64,
    /// How long it stays open the first time.
    pub open_ns: u64,
    /// How long it stays open at most.
    pub longest_ns: u64,
    /// So many probes in a row must pass.
    pub probes: u32,
    /// How long a worker must live to pass one.
    pub probe_ns: u64,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failures: 5,
            window_ns: 30_000_000_000,
            open_ns: 5_000_000_000,
            longest_ns: 300_000_000_000,
            probes: 3,
            probe_ns: 500_000_000,
        }
    }
}

/// Where a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerState {
    /// The device takes part.
    Closed,
    /// It stays out until then.
    Open {
        /// When probes begin.
        until_ns: u64,
    },
    /// It is being probed.
    HalfOpen {
        /// Probes passed in a row.
        passed: u32,
    },
}

/// The breaker of one device.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    policy: BreakerPolicy,
    state: BreakerState,
    failures: VecDeque<u64>,
    /// Times that it opened since it was last closed.
    opened: u32,
}

impl Breaker {
    /// A closed one.
    pub(crate) fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            state: BreakerState::Closed,
            failures: VecDeque::new(),
            opened: 0,
        }
    }

    /// Where it stands.
    pub(crate) fn state(&self) -> BreakerState {
        self.state
    }

    /// Whether the device may take part.
    pub(crate) fn is_closed(&self) -> bool {
        self.state == BreakerState::Closed
    }

    /// How long a worker must live to pass a probe.
    pub(crate) fn probe_ns(&self) -> u64 {
        self.policy.probe_ns
    }

    /// The device failed. Opens the breaker when that was too often and `may_open`, or a probe was on; whether it
    /// opened.
    pub(crate) fn fail(&mut self, now_ns: u64, may_open: bool) -> bool {
        let window_ns = self.policy.window_ns;
        self.failures.retain(|at| now_ns - at < window_ns);
        self.failures.push_back(now_ns);
        if self.failures.len() > self.policy.failures as usize {
            self.failures.pop_front();
        }
        let too_often = self.failures.len() >= self.policy.failures as usize;
        let opens = match self.state {
            BreakerState::Closed => too_often && may_open,
            BreakerState::HalfOpen { .. } => may_open,
            BreakerState::Open { .. } => false,
        };
        if opens {
            self.trip(now_ns);
        }
        opens
    }

    /// Opens it, whatever the count.
    pub(crate) fn trip(&mut self, now_ns: u64) {
        let open_ns = self.policy.open_ns.saturating_mul(1 << self.opened.min(30));
        self.opened += 1;
        let open_ns = open_ns.min(self.policy.longest_ns);
        self.state = BreakerState::Open {
            until_ns: now_ns.saturating_add(open_ns),
        };
    }

    /// Lets probes begin: the time is up, or the device is needed.
    pub(crate) fn half_open(&mut self) {
        if matches!(self.state, BreakerState::Open { .. }) {
            self.state = BreakerState::HalfOpen { passed: 0 };
        }
    }

    /// A probe passed; whether that closes it.
    pub(crate) fn pass(&mut self) -> bool {
        let BreakerState::HalfOpen { passed } = self.state else {
            return false;
        };
        let passed = passed + 1;
        if passed >= self.policy.probes {
            self.close();
        } else {
            self.state = BreakerState::HalfOpen { passed };
        }
        passed >= self.policy.probes
    }

    /// Closes it and forgets every failure: somebody said that the device is well.
    pub(crate) fn close(&mut self) {
        self.state = BreakerState::Closed;
        self.failures.clear();
        self.opened = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BreakerPolicy = BreakerPolicy {
        failures: 3,
        window_ns: 100,
        open_ns: 50,
        longest_ns: 150,
        probes: 2,
        probe_ns: 10,
    };

    #[test]
    fn failures_within_the_window_open_it_and_old_ones_do_not() {
        let mut breaker = Breaker::new(POLICY);
        assert!(!breaker.fail(0, true) && !breaker.fail(60, true));
        // The failure at 0 is out of the window.
        assert!(!breaker.fail(100, true));
        assert!(breaker.fail(120, true));
        assert_eq!(breaker.state(), BreakerState::Open { until_ns: 170 });
        assert!(!breaker.fail(130, true), "an open breaker cannot open");
    }

    #[test]
    fn a_device_that_is_needed_is_never_shut_out() {
        let mut breaker = Breaker::new(POLICY);
        assert!((0..20).all(|at| !breaker.fail(at, false)));
        assert!(breaker.is_closed());
    }

    #[test]
    fn it_stays_open_longer_each_time_until_probes_pass() {
        let mut breaker = Breaker::new(POLICY);
        assert_eq!(
            [0, 1, 2].map(|at| breaker.fail(at, true)),
            [false, false, true]
        );
        let mut waits = Vec::new();
        for now in [1000, 2000, 3000] {
            breaker.half_open();
            assert!(!breaker.pass());
            assert!(breaker.fail(now, true), "a failed probe opens it at once");
            let BreakerState::Open { until_ns } = breaker.state() else {
                panic!("it opened")
            };
            waits.push(until_ns - now);
        }
        assert_eq!(waits, [100, 150, 150]);
        breaker.half_open();
        assert!(!breaker.pass() && breaker.pass());
        assert!(breaker.is_closed());
        assert!(
            !breaker.fail(4000, true),
            "failures from before count no more"
        );
    }
}
