//! Watches the supervising thread itself: nothing that it does should wait for anybody (see [`crate::run::supervised`]), and if it
//! does all the same, somebody says so and ends the run.
//!
//! The supervising thread counts its passes and says what it is doing. A thread of its own looks at the count twice a
//! second. It counts looks, not time: a program that was stopped as a whole, or a machine that slept, is not late.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use super::control::RunControl;
use super::run_thread::RunResult;
use crate::error::RunError;
use crate::supervise::{Event, What};
use crate::transport::clock::Clock;
use crate::transport::primitive::{AtomicU32, AtomicU64, Ordering};

/// What the supervising thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Activity {
    /// It waits for events, or passes the time.
    Listening,
    /// It starts or ends a worker.
    ManagingWorkers,
    /// It makes the memory of an epoch and lets its workers begin.
    BeginningEpoch,
    /// It reads a committed border.
    EndingEpoch,
    /// It waits until it is known whether the input goes on, which may take any time.
    AwaitingInput,
}

impl Activity {
    const ALL: [Self; 5] = [
        Self::Listening,
        Self::ManagingWorkers,
        Self::BeginningEpoch,
        Self::EndingEpoch,
        Self::AwaitingInput,
    ];

    fn from_number(number: u32) -> Self {
        let found = Self::ALL.into_iter().find(|a| *a as u32 == number);
        found.unwrap_or(Self::Listening)
    }
}

impl std::fmt::Display for Activity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Listening => "listening to its workers",
            Self::ManagingWorkers => "starting or ending a worker",
            Self::BeginningEpoch => "beginning an epoch",
            Self::EndingEpoch => "ending an epoch",
            Self::AwaitingInput => "waiting for the input",
        })
    }
}

/// Passes of the supervising thread.
pub(crate) struct ActivityMonitor {
    passes: AtomicU64,
    activity: AtomicU32,
}

impl ActivityMonitor {
    pub(crate) fn new() -> Self {
        Self {
            passes: AtomicU64::new(0),
            activity: AtomicU32::new(Activity::Listening as u32),
        }
    }

    /// The supervising thread makes progress, with this now.
    pub(crate) fn enter(&self, activity: Activity) {
        self.activity.store(activity as u32, Ordering::Relaxed);
        self.passes.fetch_add(1, Ordering::Release);
    }

    fn look(&self) -> (u64, Activity) {
        let passes = self.passes.load(Ordering::Acquire);
        let activity = Activity::from_number(self.activity.load(Ordering::Relaxed));
        (passes, activity)
    }
}

/// How patient the watch is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub look_every: Duration,
    /// Looks that find no progress until that is reported.
    pub looks_until_late: u32,
    /// And until the run is given up.
    pub looks_until_stuck: u32,
}

/// It is reported after ten seconds, and the run is given up after a minute: taking and locking tens of gigabytes
/// for an epoch is the longest thing that a supervising thread does.
const PATIENCE: Patience = Patience {
    look_every: Duration::from_millis(500),
    looks_until_late: 20,
    looks_until_stuck: 120,
};

/// What the watch finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// No progress for so long, while it was doing this.
    Late { activity: Activity, after: Duration },
    /// No progress for so long that none is expected any more.
    Stuck { activity: Activity, after: Duration },
}

/// The thread that watches. It ends when this is dropped.
pub(crate) struct SelfWatch {
    monitor: Arc<ActivityMonitor>,
    end: Option<Sender<()>>,
    /// The longest time without progress that was reported.
    thread: Option<JoinHandle<Option<Duration>>>,
}

impl SelfWatch {
    /// Starts to watch; `report` is called on the watching thread, and must not wait for the supervising one. Without a
    /// thread nobody watches, which changes nothing else.
    pub(crate) fn start(patience: Patience, report: impl FnMut(Finding) + Send + 'static) -> Self {
        let monitor = Arc::new(ActivityMonitor::new());
        let (end, is_over) = mpsc::channel();
        let watched_monitor = Arc::clone(&monitor);
        let watch_thread = std::thread::Builder::new()
            .name("zbmd watchdog".to_owned())
            .spawn(move || watch(&watched_monitor, &is_over, patience, report));
        Self {
            monitor,
            end: Some(end),
            thread: watch_thread.ok(),
        }
    }

    pub(crate) fn monitor(&self) -> Arc<ActivityMonitor> {
        Arc::clone(&self.monitor)
    }
}

impl SelfWatch {
    /// Ends the watch; the longest time without progress, if that was reported.
    pub(crate) fn end(mut self) -> Option<Duration> {
        self.join()
    }

    fn join(&mut self) -> Option<Duration> {
        drop(self.end.take());
        // It wakes up at once, and a panic of its own is of no interest to the run.
        self.thread.take()?.join().ok()?
    }
}

impl Drop for SelfWatch {
    fn drop(&mut self) {
        self.join();
    }
}

fn watch(
    monitor: &ActivityMonitor,
    is_over: &Receiver<()>,
    patience: Patience,
    mut report: impl FnMut(Finding),
) -> Option<Duration> {
    let mut longest_time = None;
    let mut last_passes = monitor.look().0;
    let mut looks = 0;
    while is_over.recv_timeout(patience.look_every) == Err(RecvTimeoutError::Timeout) {
        let (passes, activity) = monitor.look();
        let makes_progress = passes != last_passes || activity == Activity::AwaitingInput;
        last_passes = passes;
        looks = if makes_progress { 0 } else { looks + 1 };

        let after = patience.look_every * looks;
        if looks >= patience.looks_until_late {
            longest_time = longest_time.max(Some(after));
        }
        if looks == patience.looks_until_late {
            report(Finding::Late { activity, after });
        } else if looks == patience.looks_until_stuck {
            report(Finding::Stuck { activity, after });
        }
    }
    longest_time
}

/// Watches the supervising thread of a run: reports when it is late, and gives the run up when it is stuck.
pub(super) fn watch_run(
    control: Arc<RunControl>,
    give_up: Sender<RunResult>,
    send_event: impl Fn(Event) + Send + 'static,
) -> SelfWatch {
    SelfWatch::start(PATIENCE, move |finding| match finding {
        Finding::Late { activity, after } => send_event(Event {
            at_ns: Clock.now_ns(),
            what: What::SupervisorLate {
                activity: activity.to_string(),
                after_ns: after.as_nanos() as u64,
            },
        }),
        Finding::Stuck { activity, after } => {
            // Whoever waits for the run waits no longer for its supervising thread.
            let _ = give_up.send(Err(RunError::SupervisorStuck {
                activity: activity.to_string(),
                seconds: after.as_secs(),
            }));
            control.abort();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASTY: Patience = Patience {
        look_every: Duration::from_millis(2),
        looks_until_late: 3,
        looks_until_stuck: 9,
    };

    #[test]
    fn a_thread_that_stands_still_is_late_and_then_stuck() {
        let (send_finding, findings) = mpsc::channel();
        let watch = SelfWatch::start(HASTY, move |finding| {
            send_finding.send(finding).expect("the test listens")
        });
        watch.monitor().enter(Activity::BeginningEpoch);
        let late = findings.recv().expect("it is watched");
        let stuck = findings.recv().expect("it is watched");
        let activity = Activity::BeginningEpoch;
        let after = HASTY.look_every;
        let expect_late = Finding::Late {
            activity,
            after: after * HASTY.looks_until_late,
        };
        let expect_stuck = Finding::Stuck {
            activity,
            after: after * HASTY.looks_until_stuck,
        };
        assert_eq!((late, stuck), (expect_late, expect_stuck));
        assert!(watch.end() >= Some(after * HASTY.looks_until_stuck));
        assert!(findings.recv().is_err(), "once each");
    }

    #[test]
    fn waiting_for_input_may_take_any_time_and_progress_is_seen() {
        let (send_finding, findings) = mpsc::channel();
        let watch = SelfWatch::start(HASTY, move |finding| {
            send_finding.send(finding).expect("the test listens")
        });
        let monitor = watch.monitor();
        monitor.enter(Activity::AwaitingInput);
        // Longer than it takes to be called stuck: what is asserted is that nothing comes within the time.
        let quiet = findings.recv_timeout(HASTY.look_every * 4 * HASTY.looks_until_stuck);
        assert_eq!(quiet, Err(RecvTimeoutError::Timeout));
        monitor.enter(Activity::Listening);
        let late = findings.recv().expect("it is watched");
        assert!(matches!(late, Finding::Late { .. }), "{late:?}");
    }
}
