//! The clock of a run.

/// Nanoseconds on the system's monotonic clock: the same for all processes of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock;

impl Clock {
    #[cfg(all(unix, not(miri)))]
    pub(crate) fn now_ns(&self) -> u64 {
        use rustix::time::{ClockId, clock_gettime};
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    #[cfg(not(all(unix, not(miri))))]
    pub(crate) fn now_ns(&self) -> u64 {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        let start = START.get_or_init(std::time::Instant::now);
        1 + start.elapsed().as_nanos() as u64
    }
}
