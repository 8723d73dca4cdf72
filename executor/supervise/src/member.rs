//! One device and its worker, as the supervisor sees them. Must not know the run.
//!
//! ```text
//!   Waiting --time--> Starting --Ready--> Ready
//!      ^  ^              |                  |
//!      |  +---- Gone ----+------- Gone -----+
//!      |                 |                  |
//!      |                 +--> Dying <-------+   hung, too slow to start, restarted with others, on request
//!      |                        |
//!      +---- Gone, given up ----+----> Out      not restarted, or kept out by the breaker until a time
//! ```
//!
//! With its host a worker goes from anywhere to `Absent`: to `Waiting` when the host is said to be back, to `Out` after a while.

mod table;

use zbmd_ir::DeviceId;

use super::backoff::Backoff;
use super::breaker::Breaker;
use super::detect::Detector;
use super::message::Generation;
use super::settings::Settings;
pub(crate) use table::MemberTable;

/// Where a worker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No worker; one will be started then.
    Waiting { until_ns: u64 },
    /// Started, not ready.
    Starting { since_ns: u64 },
    /// It can have a role; a probe is on from `probe_ns`.
    Ready {
        since_ns: u64,
        probe_ns: Option<u64>,
    },
    /// It was killed, and is not known to be gone.
    Dying { since_ns: u64, next: Next },
    /// Its host is gone, and is waited for until then.
    Absent { until_ns: u64 },
    /// No worker, until then or for good.
    Out { until_ns: Option<u64> },
}

/// What follows when a dying worker is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is started again, not before.
    Wait { until_ns: u64 },
    /// It stays out, until then or for good.
    Out { until_ns: Option<u64> },
}

impl From<Next> for Phase {
    fn from(next: Next) -> Self {
        match next {
            Next::Wait { until_ns } => Self::Waiting { until_ns },
            Next::Out { until_ns } => Self::Out { until_ns },
        }
    }
}

/// One device and its worker. What [`MemberTable`] has indices of is changed by its methods only.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    phase: Phase,
    pub generation: Generation,
    /// When its worker was started last.
    pub started_ns: u64,
    pub backoff: Backoff,
    breaker: Breaker,
    pub detector: Detector,
    /// Starts in a row that came to nothing.
    pub failed_starts: u32,
    /// It was lost, or failed to start, at least once.
    was_lost: bool,
    /// Faults survived since a border was committed.
    pub faults: u32,
    /// It is well but slow, and has no role until then if others can do its work.
    aside_until_ns: Option<u64>,
    /// Times that it was set aside.
    pub asides: u32,
}

impl Member {
    pub(crate) fn new(settings: &Settings, device: DeviceId) -> Self {
        let seed = settings.seed ^ (u64::from(device.0) << 32);
        Self {
            phase: Phase::Waiting { until_ns: 0 },
            generation: Generation(0),
            started_ns: 0,
            backoff: Backoff::new(settings.backoff, seed),
            breaker: Breaker::new(settings.breaker),
            detector: Detector::new(settings.detect),
            failed_starts: 0,
            was_lost: false,
            faults: 0,
            aside_until_ns: None,
            asides: 0,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    pub(crate) fn aside_until_ns(&self) -> Option<u64> {
        self.aside_until_ns
    }

    /// A worker that could have a role.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready { .. })
    }

    /// A worker that may have one.
    pub(crate) fn is_available(&self) -> bool {
        self.is_ready() && self.breaker.is_closed() && self.aside_until_ns.is_none()
    }

    /// A worker that will be there without anybody's doing.
    pub(crate) fn is_expected(&self) -> bool {
        match self.phase {
            Phase::Waiting { .. } | Phase::Starting { .. } | Phase::Absent { .. } => true,
            Phase::Dying { next, .. } => matches!(next, Next::Wait { .. }),
            Phase::Ready { .. } | Phase::Out { .. } => false,
        }
    }

    /// How long it has been ready.
    pub(crate) fn lived_ns(&self, now_ns: u64) -> u64 {
        match self.phase {
            Phase::Ready { since_ns, .. } => now_ns.saturating_sub(since_ns),
            _ => 0,
        }
    }

    /// When it may be started again, by its back-off.
    pub(crate) fn restart_ns(&mut self, now_ns: u64, lived_ns: u64) -> u64 {
        let since_start_ns = now_ns.saturating_sub(self.started_ns);
        now_ns + self.backoff.wait_ns(since_start_ns, lived_ns)
    }

    /// When something happens by the clock alone; a start may take `start_ns`, a death `kill_ns`.
    fn deadline_ns(&self, start_ns: u64, kill_ns: u64) -> Option<u64> {
        match self.phase {
            Phase::Waiting { until_ns } | Phase::Absent { until_ns } => Some(until_ns),
            Phase::Starting { since_ns } => Some(since_ns + start_ns),
            Phase::Ready { probe_ns, .. } => {
                let probe = probe_ns.map(|at| at + self.breaker.probe_ns());
                probe.into_iter().chain(self.aside_until_ns).min()
            }
            Phase::Dying { since_ns, .. } => Some(since_ns + kill_ns),
            Phase::Out { until_ns } => until_ns,
        }
    }
}
