//! The place where the supervising thread waits for events and expired watchdogs at once. Must not know what either
//! means.

use std::sync::mpsc;
use std::time::Duration;

#[cfg(all(target_os = "linux", not(miri)))]
use self::linux::Waker;
#[cfg(not(all(target_os = "linux", not(miri))))]
use self::other::Waker;
use crate::transport::watchdog::Watchdog;

/// Sends events to the supervising thread.
pub(crate) struct EventSender<T> {
    events: mpsc::Sender<T>,
    waker: Option<Waker>,
}

impl<T> Clone for EventSender<T> {
    fn clone(&self) -> Self {
        Self {
            events: self.events.clone(),
            waker: self.waker.clone(),
        }
    }
}

impl<T> EventSender<T> {
    /// Sends, unless nobody receives any more.
    pub(crate) fn send(&self, event: T) {
        if self.events.send(event).is_ok()
            && let Some(waker) = &self.waker
        {
            waker.wake();
        }
    }
}

/// Where the supervising thread receives events, and sees watchdogs expire.
pub(crate) struct EventInbox<T> {
    events: mpsc::Receiver<T>,
    waker: Option<Waker>,
}

/// A channel whose receiver can wait for timers too.
pub(crate) fn event_channel<T>() -> (EventSender<T>, EventInbox<T>) {
    let (sender, events) = mpsc::channel();
    let waker = Waker::new();
    (
        EventSender {
            events: sender,
            waker: waker.clone(),
        },
        EventInbox { events, waker },
    )
}

impl<T> EventInbox<T> {
    /// Whether it can wait for timers.
    pub(crate) fn supports_timers(&self) -> bool {
        self.waker.is_some()
    }

    /// The next event; `None` if none comes within the time, or if a watchdog expires that had not.
    pub(crate) fn next(&self, within: Option<Duration>, watchdogs: &mut [Watchdog]) -> Option<T> {
        let Some(waker) = &self.waker else {
            return match within {
                None => self.events.recv().ok(),
                Some(time) => self.events.recv_timeout(time).ok(),
            };
        };

        // The waker is set after the event is sent, and stays set until a wait sees it.
        loop {
            if let Ok(event) = self.events.try_recv() {
                return Some(event);
            }
            match waker.wait(within, watchdogs) {
                WakeReason::Expired => return self.events.try_recv().ok(),
                WakeReason::Timeout if within.is_some() => return self.events.try_recv().ok(),
                WakeReason::Timeout | WakeReason::Event => {}
            }
        }
    }
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(target_os = "linux", not(miri))),
    expect(dead_code, reason = "no timers")
)]
enum WakeReason {
    /// An event was sent.
    Event,
    /// A watchdog expired.
    Expired,
    /// The time is over, or a signal interrupted the wait.
    Timeout,
}

#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    use rustix::time::Timespec;

    use super::{WakeReason, Watchdog};

    #[derive(Clone, Debug)]
    pub(super) struct Waker(Arc<OwnedFd>);

    impl Waker {
        pub(super) fn new() -> Option<Self> {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            eventfd(0, flags).ok().map(|fd| Self(Arc::new(fd)))
        }

        pub(super) fn wake(&self) {
            // It is set already if the count is at its maximum.
            let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
        }

        /// Waits for an event, which is then seen, or for watchdogs that had not expired.
        pub(super) fn wait(
            &self,
            within: Option<Duration>,
            watchdogs: &mut [Watchdog],
        ) -> WakeReason {
            let mut running: Vec<&mut Watchdog> = watchdogs
                .iter_mut()
                .filter(|watchdog| !watchdog.has_expired)
                .collect();

            // The events first, then a timer for each watchdog that has not expired yet.
            let mut poll_fds = Vec::with_capacity(1 + running.len());
            poll_fds.push(PollFd::new(&*self.0, PollFlags::IN));
            let timer_fds = running.iter().filter_map(|watchdog| watchdog.fd());
            poll_fds.extend(timer_fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));

            let limit = within.map(timespec);
            if poll(&mut poll_fds, limit.as_ref()).is_err() {
                return WakeReason::Timeout;
            }

            let has_event = poll_fds[0].revents().contains(PollFlags::IN);
            let timers = poll_fds[1..].iter();
            let has_expired: Vec<bool> = timers.map(|fd| !fd.revents().is_empty()).collect();
            drop(poll_fds);

            for (watchdog, has_expired) in running.iter_mut().zip(&has_expired) {
                watchdog.has_expired = *has_expired;
            }

            // An event goes first: what expired is remembered in the watchdogs.
            if has_event {
                let _ = rustix::io::read(&*self.0, &mut [0; 8]);
                WakeReason::Event
            } else if has_expired.contains(&true) {
                WakeReason::Expired
            } else {
                WakeReason::Timeout
            }
        }
    }

    fn timespec(time: Duration) -> Timespec {
        Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()) as _,
        }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod other {
    use std::time::Duration;

    use super::{WakeReason, Watchdog};

    /// There is none.
    #[derive(Clone, Debug)]
    pub(super) enum Waker {}

    impl Waker {
        pub(super) fn new() -> Option<Self> {
            None
        }

        pub(super) fn wake(&self) {
            match *self {}
        }

        pub(super) fn wait(&self, _: Option<Duration>, _: &mut [Watchdog]) -> WakeReason {
            match *self {}
        }
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    #[test]
    fn a_watchdog_that_nobody_rearms_expires_once_and_again_when_rearmed() {
        let (_sender, inbox) = event_channel::<u32>();
        let mut watchdogs = [
            Watchdog::new(HOUR_NS).expect("a timer"),
            Watchdog::new(1).expect("a timer"),
        ];
        for _ in 0..3 {
            assert_eq!(inbox.next(None, &mut watchdogs), None);
            assert!(!watchdogs[0].has_expired && watchdogs[1].has_expired);
            // It is not seen again until it has been rearmed.
            assert_eq!(inbox.next(Some(Duration::ZERO), &mut watchdogs), None);
            watchdogs[1].rearm(1);
        }
    }

    #[test]
    fn the_watchdog_of_a_worker_that_makes_progress_does_not_expire() {
        let (_sender, inbox) = event_channel::<u32>();
        let mut watchdogs = [Watchdog::new(1).expect("a timer")];
        let mut heartbeat = watchdogs[0].heartbeat(HOUR_NS).expect("shared");
        heartbeat.beat(0);
        let next = inbox.next(Some(Duration::from_millis(1)), &mut watchdogs);
        assert_eq!(next, None);
        assert!(!watchdogs[0].has_expired);
    }

    #[test]
    fn events_come_first_and_none_is_lost() {
        let (sender, inbox) = event_channel();
        let other = sender.clone();
        let sending = std::thread::spawn(move || (0..1000).for_each(|n| other.send(n)));
        let mut watchdogs = [Watchdog::new(1).expect("a timer")];
        let mut received = Vec::new();
        while received.len() < 1000 {
            received.extend(inbox.next(None, &mut watchdogs));
            watchdogs[0].rearm(100_000);
        }
        sending.join().expect("it sends");
        assert_eq!(received, (0..1000).collect::<Vec<_>>());
        drop(inbox);
        sender.send(0);
    }
}
