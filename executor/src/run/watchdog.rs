//! Watchdog timers, and the place where the supervising thread waits for them and for news at once.
//!
//! While a worker gets on, nobody needs to look at it: it winds up a timer of the system's now and then, which runs out
//! only when the worker has not got on for a while. So supervision costs a running worker one system call in a
//! millisecond and wakes nobody; looking every few milliseconds, which it replaces, costs several parts in a hundred
//! where a wake-up is dear. Must not know what running out means.
//!
//! Where the system has no such timers, there are none, and whoever watches looks regularly.

use std::sync::mpsc;
use std::time::Duration;

#[cfg(all(target_os = "linux", not(miri)))]
use self::linux::{Bell, Timer};
#[cfg(not(all(target_os = "linux", not(miri))))]
use self::other::{Bell, Timer};

/// A worker's timer. It runs out when nobody has wound it up for as long as it was wound up for.
#[derive(Debug)]
pub(crate) struct Dog {
    timer: Timer,
    /// It ran out, and whoever watches has not wound it up again.
    pub(crate) has_barked: bool,
}

impl Dog {
    /// A timer that runs; `None` where there are no timers.
    pub(crate) fn new(lease_ns: u64) -> Option<Self> {
        let dog = Self {
            timer: Timer::new()?,
            has_barked: false,
        };
        dog.timer.wind(lease_ns);
        Some(dog)
    }

    /// Lets it run for so long from now on.
    pub(crate) fn calm(&mut self, lease_ns: u64) {
        self.has_barked = false;
        self.timer.wind(lease_ns);
    }

    /// For the worker.
    pub(crate) fn winder(&self, lease_ns: u64) -> Option<Winder> {
        Some(Winder::new(self.timer.share()?, lease_ns))
    }

    /// To send to a worker's process.
    #[cfg(target_os = "linux")]
    pub(crate) fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.timer.fd()
    }
}

/// The worker's end of a timer.
#[derive(Debug)]
pub(crate) struct Winder {
    timer: Timer,
    lease_ns: u64,
    next_ns: u64,
}

/// A timer is wound up so many times while it could run out once.
const WINDS: u64 = 3;

impl Winder {
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

    /// How often it should be called, in nanoseconds, by a worker that gets on.
    pub(crate) const fn every_ns(lease_ns: u64) -> u64 {
        lease_ns / WINDS
    }

    /// The worker gets on. A comparison, but for one system call now and then.
    #[inline]
    pub(crate) fn got_on(&mut self, now_ns: u64) {
        if now_ns >= self.next_ns {
            self.next_ns = now_ns + Self::every_ns(self.lease_ns);
            self.timer.wind(self.lease_ns);
        }
    }
}

/// News for the supervising thread.
pub(crate) struct Teller<T> {
    news: mpsc::Sender<T>,
    bell: Option<Bell>,
}

impl<T> Clone for Teller<T> {
    fn clone(&self) -> Self {
        Self {
            news: self.news.clone(),
            bell: self.bell.clone(),
        }
    }
}

impl<T> Teller<T> {
    /// Tells, unless nobody listens any more.
    pub(crate) fn tell(&self, news: T) {
        if self.news.send(news).is_ok()
            && let Some(bell) = &self.bell
        {
            bell.ring();
        }
    }
}

/// Where the supervising thread hears news and barks.
pub(crate) struct Inbox<T> {
    news: mpsc::Receiver<T>,
    bell: Option<Bell>,
}

/// A channel whose receiver can wait for timers too.
pub(crate) fn channel<T>() -> (Teller<T>, Inbox<T>) {
    let (told, news) = mpsc::channel();
    let bell = Bell::new();
    (
        Teller {
            news: told,
            bell: bell.clone(),
        },
        Inbox { news, bell },
    )
}

impl<T> Inbox<T> {
    /// Whether it hears timers.
    pub(crate) fn hears_dogs(&self) -> bool {
        self.bell.is_some()
    }

    /// The next news; `None` if none comes within the time, or if a dog barks that had not.
    pub(crate) fn next(&self, within: Option<Duration>, dogs: &mut [Dog]) -> Option<T> {
        let Some(bell) = &self.bell else {
            return match within {
                None => self.news.recv().ok(),
                Some(time) => self.news.recv_timeout(time).ok(),
            };
        };
        // The bell is rung after the news are sent, and keeps ringing until it is heard.
        loop {
            if let Ok(news) = self.news.try_recv() {
                return Some(news);
            }
            let heard = bell.wait(within, dogs);
            if heard == Heard::Bark || (heard == Heard::Nothing && within.is_some()) {
                return self.news.try_recv().ok();
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
enum Heard {
    Bell,
    Bark,
    /// The time is over, or a signal interrupted the wait.
    Nothing,
}

#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use super::{Dog, Heard};

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

        pub(super) fn wind(&self, ns: u64) {
            let none = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let time = Itimerspec {
                it_interval: none,
                it_value: timespec(ns.max(1)),
            };
            // It fails for no valid timer and time; if it did, the worker would be looked at more often.
            let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &time);
        }
    }

    #[derive(Clone, Debug)]
    pub(super) struct Bell(Arc<OwnedFd>);

    impl Bell {
        pub(super) fn new() -> Option<Self> {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            eventfd(0, flags).ok().map(|fd| Self(Arc::new(fd)))
        }

        pub(super) fn ring(&self) {
            // It rings already if the count is at its most.
            let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
        }

        /// Waits for the bell, which is quiet again then, or for dogs that have not barked.
        pub(super) fn wait(&self, within: Option<Duration>, dogs: &mut [Dog]) -> Heard {
            let mut fds = Vec::with_capacity(1 + dogs.len());
            fds.push(PollFd::new(&*self.0, PollFlags::IN));
            let quiet = dogs.iter().filter(|dog| !dog.has_barked);
            fds.extend(quiet.map(|dog| PollFd::new(&dog.timer.0, PollFlags::IN)));
            let time = within.map(|t| timespec(u64::try_from(t.as_nanos()).unwrap_or(u64::MAX)));
            if poll(&mut fds, time.as_ref()).is_err() {
                return Heard::Nothing;
            }
            let rang = fds[0].revents().contains(PollFlags::IN);
            let ran_out: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
            let barked = ran_out.contains(&true);
            drop(fds);
            let quiet = dogs.iter_mut().filter(|dog| !dog.has_barked);
            for (dog, ran_out) in quiet.zip(ran_out) {
                dog.has_barked = ran_out;
            }
            if rang {
                let _ = rustix::io::read(&*self.0, &mut [0; 8]);
                Heard::Bell
            } else if barked {
                Heard::Bark
            } else {
                Heard::Nothing
            }
        }
    }

    fn timespec(ns: u64) -> Timespec {
        const SECOND: u64 = 1_000_000_000;
        Timespec {
            tv_sec: (ns / SECOND) as i64,
            tv_nsec: (ns % SECOND) as i64 as _,
        }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod other {
    use std::time::Duration;

    use super::{Dog, Heard};

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

        pub(super) fn wind(&self, _: u64) {
            match *self {}
        }
    }

    /// There is none.
    #[derive(Clone, Debug)]
    pub(super) enum Bell {}

    impl Bell {
        pub(super) fn new() -> Option<Self> {
            None
        }

        pub(super) fn ring(&self) {
            match *self {}
        }

        pub(super) fn wait(&self, _: Option<Duration>, _: &mut [Dog]) -> Heard {
            match *self {}
        }
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    #[test]
    fn a_dog_that_nobody_winds_up_barks_once_and_again_when_calmed() {
        let (_teller, inbox) = channel::<u32>();
        let mut dogs = [
            Dog::new(HOUR_NS).expect("a timer"),
            Dog::new(1).expect("a timer"),
        ];
        for _ in 0..3 {
            assert_eq!(inbox.next(None, &mut dogs), None);
            assert!(!dogs[0].has_barked && dogs[1].has_barked);
            // It is not heard again until it has been calmed.
            assert_eq!(inbox.next(Some(Duration::ZERO), &mut dogs), None);
            dogs[1].calm(1);
        }
    }

    #[test]
    fn a_worker_that_gets_on_keeps_its_dog_quiet() {
        let (_teller, inbox) = channel::<u32>();
        let mut dogs = [Dog::new(1).expect("a timer")];
        let mut winder = dogs[0].winder(HOUR_NS).expect("shared");
        winder.got_on(0);
        assert_eq!(inbox.next(Some(Duration::from_millis(1)), &mut dogs), None);
        assert!(!dogs[0].has_barked);
    }

    #[test]
    fn the_timer_is_wound_up_only_now_and_then() {
        let dog = Dog::new(HOUR_NS).expect("a timer");
        let mut winder = dog.winder(300).expect("shared");
        let mut winds = 0;
        for now_ns in 0..1000 {
            let before = winder.next_ns;
            winder.got_on(now_ns);
            winds += u32::from(winder.next_ns != before);
        }
        assert_eq!(winds, 10);
    }

    #[test]
    fn news_come_first_and_none_is_lost() {
        let (teller, inbox) = channel();
        let other = teller.clone();
        let sender = std::thread::spawn(move || (0..1000).for_each(|n| other.tell(n)));
        let mut dogs = [Dog::new(1).expect("a timer")];
        let mut heard = Vec::new();
        while heard.len() < 1000 {
            heard.extend(inbox.next(None, &mut dogs));
            dogs[0].calm(100_000);
        }
        sender.join().expect("it sends");
        assert_eq!(heard, (0..1000).collect::<Vec<_>>());
        drop(inbox);
        teller.tell(0);
    }
}
