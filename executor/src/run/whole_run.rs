//! A run from its first epoch to its end, supervised or not, on the run's own thread.

use std::sync::mpsc::Sender;
use std::time::Duration;

use super::active_epoch::ActiveEpoch;
use super::epochs::EpochManager;
use super::event::{WorkerEvent, WorkerExit};
use super::run_thread::RunResult;
use super::supervised::SupervisedRun;
use crate::error::RunError;
use crate::fault::{WorkerOutcome, device_error};
use crate::observe::report::{Outcome, Report};
use crate::observe::trace::Tracer;
use crate::transport::clock::Clock;
use crate::transport::watchdog::EpochWatchdogs;

/// Workers of a supervised run that take longer to end are left behind.
const DISMISS_LIMIT: Duration = Duration::from_secs(5);
/// How long a run without supervision listens until it looks whether it was given up.
const LISTEN: Duration = Duration::from_millis(100);
/// Worker processes of a run that was given up have so long to end their parts.
const STOP_LIMIT_NS: u64 = 1_000_000_000;

/// Runs everything. Streams are closed at the end, whatever it is. `give_up` ends the session without this thread, should
/// the thread get stuck.
pub(super) fn run_to_end(
    mut manager: EpochManager,
    first: ActiveEpoch,
    give_up: &Sender<RunResult>,
) -> RunResult {
    let before = manager.state.clone();
    let supervised = manager.options.supervised.clone();
    let is_supervised = supervised.is_some();
    let run_result = match supervised {
        Some(options) => SupervisedRun::new(&mut manager, first, options, give_up.clone()).run(),
        None => run_unsupervised(&mut manager, first),
    };

    // Workers that still run would wait for streams that nobody serves any more.
    if run_result.is_err() {
        manager.control.abort();
    }
    manager.control.mark_over();
    manager.close_streams();
    // Before the workers go: their counts are in memory that they share.
    let mut report = manager.report(&before);
    manager.settle_changes();
    let present_mode = manager.last_mode();
    let emitted = manager.emitted_until(manager.state.iterations);
    if let Some(next) = manager.unreached_mode() {
        report.notes.push(format!(
            "the change of mode at iteration {} was not made: there is no plan for single iterations that gets there",
            next.iteration
        ));
    }
    manager.pool.dismiss(is_supervised.then_some(DISMISS_LIMIT));
    if let Some(tracer) = manager.tracer {
        add_trace(&mut report, tracer);
    }

    // A run that was given up leaves its outcome too: the state at its last committed border.
    let outcome = Outcome {
        report,
        emitted,
        state: manager.state,
        present_mode,
    };
    match run_result {
        Ok(()) => Ok(outcome),
        Err(RunError::GaveUp {
            verdict,
            iterations,
            ..
        }) => Err(RunError::GaveUp {
            verdict,
            iterations,
            left: Some(Box::new(outcome)),
        }),
        Err(other) => Err(other),
    }
}

/// Ends the trace, and adds to the report what came of it.
fn add_trace(report: &mut Report, tracer: Tracer) {
    let traced = tracer.finish();
    let dropped = traced.trace.as_ref().map_or(0, |t| t.dropped_events);
    if dropped > 0 {
        report.notes.push(format!(
            "{dropped} events and epochs are not in the trace: its file was not written fast enough"
        ));
    }
    report.trace = traced.trace;
    report.profile = traced.profile;
}

/// Epoch after epoch, without supervision: whatever goes wrong ends the run.
fn run_unsupervised(manager: &mut EpochManager, first: ActiveEpoch) -> Result<(), RunError> {
    for device in manager.devices() {
        manager.pool.spawn(device, 1);
    }

    let mut active = first;
    loop {
        manager.launch(&mut active, &EpochWatchdogs::none())?;
        let blocks = wait_for_workers(manager, &mut active)?;
        manager.complete(&active, blocks);
        manager.apply_mode_change(&[]);
        if !manager.advance_phase() {
            return Ok(());
        }
        active = manager.make_epoch(manager.next_epoch, &[])?;
    }
}

/// Waits until all workers have ended; the number of blocks.
fn wait_for_workers(manager: &mut EpochManager, active: &mut ActiveEpoch) -> Result<u64, RunError> {
    let mut first_error: Option<RunError> = None;
    let mut given_up_ns = None;

    while !active.have_all_ended() {
        let Some(event) = manager.pool.next_event(LISTEN, &mut []) else {
            // A process that is stopped never ends its part: then the run is given up without it.
            let since_ns = manager.control.stop.is_set().then(|| Clock.now_ns());
            given_up_ns = given_up_ns.or(since_ns);
            let is_over = given_up_ns.is_some_and(|ns| Clock.now_ns() - ns > STOP_LIMIT_NS);
            if is_over && manager.pool.has_processes() {
                return Err(RunError::Abandoned);
            }
            continue;
        };

        match event {
            WorkerEvent::Ready { .. } | WorkerEvent::StandbyGone => {}
            #[cfg(hosts)]
            WorkerEvent::Began { .. } => {}
            WorkerEvent::Ended {
                epoch,
                calendar,
                end,
                ..
            } => {
                debug_assert_eq!(epoch, active.spec.epoch, "one epoch at a time");
                if let WorkerOutcome::Failed(report) = &end.outcome {
                    active.memory.stop();
                    first_error.get_or_insert(report.run_error());
                }
                active.keep_end(calendar, *end);
            }
            WorkerEvent::Gone { device, exit, .. } => {
                active.memory.stop();
                let name = manager.loaded.program.machine.devices[device].name.clone();
                return Err(exit_error(name, &exit));
            }
            #[cfg(hosts)]
            WorkerEvent::HostGone { host, why } => {
                active.memory.stop();
                let (device, _) = manager.pool.lose_host(host);
                return Err(RunError::Lost { device, why });
            }
            // The loss of a host has ended the run.
            #[cfg(hosts)]
            WorkerEvent::HostBack { .. } | WorkerEvent::Council => {}
            WorkerEvent::Panicked(panic) => {
                active.memory.stop();
                manager.control.abort();
                std::panic::resume_unwind(panic)
            }
        }
    }

    match first_error {
        Some(error) => Err(error),
        None => active.finished_blocks().ok_or(RunError::Abandoned),
    }
}

/// The run's error for a worker that is gone.
fn exit_error(device: String, exit: &WorkerExit) -> RunError {
    match exit {
        WorkerExit::NoDevice(fault) | WorkerExit::Failed(fault) => device_error(fault, 0),
        other => RunError::Lost {
            device,
            why: other.to_string(),
        },
    }
}
