//! Does what the fault injector asks for, to the workers of a run.

use super::active_epoch::ActiveEpoch;
use super::worker_pool::WorkerPool;
use crate::inject::InjectedFault;

/// Injects a fault into the workers that it hits.
#[cfg(target_os = "linux")]
pub(super) fn inject_fault(
    injected: &InjectedFault,
    pool: &WorkerPool,
    active: Option<&ActiveEpoch>,
) {
    use crate::inject::Kind;
    use crate::transport::primitive::Ordering;
    use rustix::process::Signal;

    for &device in &injected.devices {
        let process = pool.worker_process(device);
        match injected.kind {
            Kind::Kill | Kind::KillTwo | Kind::KillTwice | Kind::NoMemory => {
                if let Some(process) = process {
                    process.lifetime().signal(Signal::KILL);
                }
            }
            Kind::Stop => {
                if let Some(process) = process {
                    process.lifetime().signal(Signal::STOP);
                }
            }
            Kind::Delay => {
                if let Some(process) = process
                    && process.lifetime().signal(Signal::STOP)
                {
                    continue_later(process);
                }
            }
            // The event tells whoever writes checkpoints.
            Kind::FullDisk => {}
            Kind::Corrupt => {
                if let Some(active) = active {
                    let corrupt = &active.memory.common.corrupt;
                    corrupt.store(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Continues a stopped process after a while, if it is still there then.
#[cfg(target_os = "linux")]
fn continue_later(process: &super::process::WorkerProcess) {
    use std::time::Duration;

    use rustix::process::Signal;

    const DELAY: Duration = Duration::from_millis(20);
    let Some(messenger) = process.lifetime().messenger() else {
        return;
    };
    // A thread that cannot be started delays nothing else.
    let _ = std::thread::Builder::new().spawn(move || {
        std::thread::sleep(DELAY);
        messenger(Signal::CONT);
    });
}

#[cfg(not(target_os = "linux"))]
pub(super) fn inject_fault(_: &InjectedFault, _: &WorkerPool, _: Option<&ActiveEpoch>) {}
