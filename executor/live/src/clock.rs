//! The clock of arrivals: the system's monotonic one, which sessions use too.

use std::time::Duration;

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

const NS_PER_S: u64 = 1_000_000_000;

/// Nanoseconds since an arbitrary moment, on the clock that arrivals are stamped with.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * NS_PER_S + now.tv_nsec as u64
}

/// Sleeps until the clock shows `until_ns`, by an absolute timer: delays do not add up.
pub(crate) fn sleep_until(until_ns: u64) {
    let until = Timespec {
        tv_sec: (until_ns / NS_PER_S) as i64,
        tv_nsec: (until_ns % NS_PER_S) as i64,
    };
    // A signal may interrupt it: whoever waits looks at the clock again.
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
}

/// A duration as nanoseconds; the longest number where it is longer.
pub(crate) fn as_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
