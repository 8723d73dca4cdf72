//! CPU time: what a run costs, whatever else the machine does meanwhile.

use std::time::Duration;

/// Of all threads of this process, so far.
pub fn of_process() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(usage.tv_sec as u64, usage.tv_nsec as u32)
}

/// Of this thread, so far.
pub fn of_thread() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(usage.tv_sec as u64, usage.tv_nsec as u32)
}

/// Of all ended and awaited children of this process, so far; in steps of 10 ms.
pub fn of_children() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux has it");
    // proc_pid_stat(5): the name in brackets is field 2, `cutime` and `cstime` are the fields 16 and 17.
    let fields = stat.rsplit_once(')').expect("a name").1;
    let ticks: u64 = fields
        .split_whitespace()
        .skip(16 - 3)
        .take(2)
        .map(|field| field.parse::<u64>().expect("ticks"))
        .sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}
