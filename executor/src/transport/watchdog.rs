//! Watchdog timers.
//!
//! While a worker makes progress, nobody needs to look at it: it rearms a timer of the system's now and then, which
//! expires only when the worker has made no progress for a while. So supervision costs a running worker one system call
//! in a millisecond and wakes nobody; looking every few milliseconds, which it replaces, costs several parts in a
//! hundred where a wake-up is dear. Must not know what follows when a timer expires.
//!
//! Where the system has no such timers, there are none, and whoever watches looks regularly.

#[cfg(all(target_os = "linux", not(miri)))]
use self::linux::Timer;
#[cfg(not(all(target_os = "linux", not(miri))))]
use self::other::Timer;

/// A worker's timer. It expires when nobody has rearmed it for as long as its lease.
#[derive(Debug)]
pub(crate) struct Watchdog {
    timer: Timer,
    /// It expired, and whoever watches has not rearmed it.
    pub(crate) has_expired: bool,
}

impl Watchdog {
    /// A timer that runs; `None` where there are no timers.
    pub(crate) fn new(lease_ns: u64) -> Option<Self> {
        let watchdog = Self {
            timer: Timer::new()?,
            has_expired: false,
        };
        watchdog.timer.arm(lease_ns);
        Some(watchdog)
    }

    /// Lets it run for so long from now on.
    pub(crate) fn rearm(&mut self, lease_ns: u64) {
        self.has_expired = false;
        self.timer.arm(lease_ns);
    }

    /// The worker's end.
    pub(crate) fn heartbeat(&self, lease_ns: u64) -> Option<WorkerHeartbeat> {
        Some(WorkerHeartbeat::new(self.timer.share()?, lease_ns))
    }

    /// To send to a worker's process, or to wait for.
    #[cfg(target_os = "linux")]
    pub(crate) fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.timer.fd()
    }
}

/// The watchdogs of an epoch's workers, by calendar; none where the system has no timers, or nobody watches.
#[derive(Debug)]
pub(crate) struct EpochWatchdogs {
    pub watchdogs: Vec<Watchdog>,
    /// How long a worker may make no progress until its watchdog expires.
    pub lease_ns: u64,
}

impl EpochWatchdogs {
    pub(crate) fn none() -> Self {
        Self {
            watchdogs: Vec::new(),
            lease_ns: 0,
        }
    }

    /// One for each worker, or none at all: then workers have to be looked at regularly.
    pub(crate) fn for_workers(workers: usize, lease_ns: u64) -> Self {
        let watchdogs = (0..workers).map(|_| Watchdog::new(lease_ns));
        Self {
            watchdogs: watchdogs.collect::<Option<_>>().unwrap_or_default(),
            lease_ns,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.watchdogs.is_empty()
    }

    /// How many have expired.
    pub(crate) fn expired_count(&self) -> usize {
        let expired = self.watchdogs.iter().filter(|w| w.has_expired);
        expired.count()
    }

    /// The end of a calendar's worker.
    pub(crate) fn heartbeat(&self, calendar: usize) -> Option<WorkerHeartbeat> {
        self.watchdogs.get(calendar)?.heartbeat(self.lease_ns)
    }
}

/// The worker's end of a timer.
#[derive(Debug)]
pub(crate) struct WorkerHeartbeat {
    timer: Timer,
    lease_ns: u64,
    next_ns: u64,
}

/// A timer is rearmed so many times while it could expire once.
const BEATS_PER_LEASE: u64 = 3;

impl WorkerHeartbeat {
    fn new(timer: Timer, lease_ns: u64) -> Self {
        Self {
            timer,
            lease_ns,
            next_ns: 0,
        }
    }

    /// The end of a timer that came from another process.
    #[cfg(target_os = "linux")]
    pub(crate) fn from_fd(fd: std::os::fd::OwnedFd, lease_ns: u64) -> Option<Self> {
        Some(Self::new(Timer::from_fd(fd)?, lease_ns))
    }

    /// The worker makes progress. A comparison, but for one system call now and then.
    #[inline]
    pub(crate) fn beat(&mut self, now_ns: u64) {
        if now_ns >= self.next_ns {
            self.next_ns = now_ns + self.lease_ns / BEATS_PER_LEASE;
            self.timer.arm(self.lease_ns);
        }
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    #[derive(Debug)]
    pub(super) struct Timer(OwnedFd);

    impl Timer {
        pub(super) fn new() -> Option<Self> {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            timerfd_create(TimerfdClockId::Monotonic, flags)
                .ok()
                .map(Self)
        }

        pub(super) fn from_fd(fd: OwnedFd) -> Option<Self> {
            Some(Self(fd))
        }

        pub(super) fn share(&self) -> Option<Self> {
            self.0.try_clone().ok().map(Self)
        }

        pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }

        pub(super) fn arm(&self, lease_ns: u64) {
            const SECOND_NS: u64 = 1_000_000_000;
            let lease_ns = lease_ns.max(1);
            let once = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let time = Itimerspec {
                it_interval: once,
                it_value: Timespec {
                    tv_sec: (lease_ns / SECOND_NS) as i64,
                    tv_nsec: (lease_ns % SECOND_NS) as i64 as _,
                },
            };
            // It fails for no valid timer and time; if it did, the worker would be looked at more often.
            let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &time);
        }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod other {
    /// There is none.
    #[derive(Debug)]
    pub(super) enum Timer {}

    impl Timer {
        pub(super) fn new() -> Option<Self> {
            None
        }

        #[cfg(target_os = "linux")]
        pub(super) fn from_fd(_: std::os::fd::OwnedFd) -> Option<Self> {
            None
        }

        pub(super) fn share(&self) -> Option<Self> {
            match *self {}
        }

        #[cfg(target_os = "linux")]
        pub(super) fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            match *self {}
        }

        pub(super) fn arm(&self, _: u64) {
            match *self {}
        }
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn the_timer_is_rearmed_only_now_and_then() {
        let watchdog = Watchdog::new(3_600_000_000_000).expect("a timer");
        let mut heartbeat = watchdog.heartbeat(300).expect("shared");
        let mut armed = 0;
        for now_ns in 0..1000 {
            let before = heartbeat.next_ns;
            heartbeat.beat(now_ns);
            armed += u32::from(heartbeat.next_ns != before);
        }
        assert_eq!(armed, 10);
    }
}
