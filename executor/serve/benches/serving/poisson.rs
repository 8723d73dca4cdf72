//! Requests that come when they come: exponential gaps, at 70 % and at 150 % of what the server can answer, whether or not earlier
//! ones are answered. Each carries a timeout, the bound that the server prints for its full queue.
//!
//! `ZBMD_SERVE_POISSON_S=300 cargo bench -p zbmd-serve --bench serving -- poisson [MODEL.onnx]`: so long at 70 %, and a fifth of it at
//! 150 %; 20 s without the variable. The model is calibrated, so that the bound counts what its kernels take here.
//!
//! The load is an open one: any idle connection takes the next arrival. One thread asks on all of them, so that the clients take as
//! little of the cores as they can. There are more connections than requests can be admitted at once, so that none of them is waited for;
//! `started late` counts requests that were sent over a millisecond after they were due. What answers take counts from when their
//! requests were due: a client that is late makes the response longer and leaves no request out. What refusals take counts from when the
//! request was sent, as what the client was late is no answer of the server's. A thread on each core that does nothing but sleep to the next
//! millisecond says how late the system wakes threads meanwhile; clients and server share its cores. Where the host of a virtual machine
//! takes a core away, that thread is late as well: `without stalls` counts refusals that took over 2 ms without the time for which such a
//! thread waited meanwhile.
//!
//! As `poisson-realtime` the server has `--realtime`, and the threads of the bench come before all of its: as if the clients were on
//! another computer, and as `cyclictest` does.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use zbmd_executor::realtime::{self, ThreadRole};

use super::client::Client;
use super::common::{Models, PATIENCE, Server};
use super::figures::{load, quantiles};
use super::shared::{Model, options, request, seconds};

/// Each with one request at a time. More than the queue holds, so that it can be full.
const CONNECTIONS: u32 = 64;
const QUEUE: &str = "32";
/// Parts of what the server can answer, and how much of the time each is offered.
const LOADS: [(f64, f64); 2] = [(0.7, 1.0), (1.5, 0.2)];
/// Connections that ask as soon as they are answered, to see what it can.
const SATURATING: u32 = 16;
const SATURATING_TIME: Duration = Duration::from_secs(3);
const SEED: u64 = 24;
/// Where a request is sent so long after it was due, a connection was waited for, or the thread of all of them was.
const LATE_START: Duration = Duration::from_millis(1);
/// A refusal that takes longer has cost its client time.
const PROMPT: Duration = Duration::from_millis(2);
/// A thread that only sleeps is woken so late without a stall of its core: others of its priority run first.
const STALL: Duration = Duration::from_micros(300);

/// How threads of the server and of the bench are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheduling {
    /// As all threads of the system.
    Ordinary,
    /// Before them.
    Realtime,
}

impl Scheduling {
    fn server_options(self) -> Vec<&'static str> {
        let mut options = vec!["--queue", QUEUE];
        if self == Self::Realtime {
            options.push("--realtime");
        }
        options
    }

    /// Starts a thread of the bench that is woken when it should be.
    fn spawn<'scope, T: Send + 'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        scope.spawn(move || {
            self.enter();
            work()
        })
    }

    fn enter(self) {
        // The system may wake an ordinary thread up to 50 us late without need, unless it is told not to.
        rustix::thread::set_current_timer_slack(NonZero::new(1)).expect("set");
        if self == Self::Realtime {
            realtime::enter(ThreadRole::Supervisor).expect("a real-time priority");
        }
    }
}

pub(crate) fn run(scheduling: Scheduling) {
    let seconds = seconds("ZBMD_SERVE_POISSON_S", 20);
    let chosen = Model::chosen();
    let model = chosen.compile(&chosen.calibrated(options()));
    let models = Models::new().with("model", &model);
    let server = models.serve(&scheduling.server_options());
    let bound_us = printed_bound_us(&server);
    // Whoever asks for capacity takes any answer.
    let capacity = capacity(server.address, &request(&model, None), scheduling);
    let request = request(&model, Some(bound_us));
    println!(
        "{}: {capacity:.0} answers/s at most; bound of a full queue of {QUEUE}: {bound_us} us; load {}",
        chosen.name,
        load()
    );
    println!(
        "load %  offered/s  started late %  answered/s  p50 us  p99 us  p99.9 us  max us  over bound %  over with wake-up  \
         refused %  refused p50 us  p99 us  max us  after 2 ms %  after that without stalls  with wake-up  wake-up p99.9 us  max us  late by the server's clock"
    );
    for (part, time_part) in LOADS {
        let offered = Offered {
            rate: capacity * part,
            time: Duration::from_secs(seconds).mul_f64(time_part),
            scheduling,
        };
        let late_before = late_answers(&server);
        let seen = offered.run(server.address, &request);
        seen.print(part, bound_us as f64);
        println!("  {:.0}", late_answers(&server) - late_before);
    }
    println!("load {}", load());
}

/// Answers that were later than their timeout, counted by the server from when a request's body was there.
fn late_answers(server: &Server) -> f64 {
    server.metric("zbmd_late_responses_total{model=\"model\"}")
}

fn printed_bound_us(server: &Server) -> u64 {
    let config = server.get("/v2/models/model/config").json();
    let bound = &config["parameters"]["response_bound_full_queue_ns"]["string_value"];
    let bound_ns: u64 = bound.as_str().expect("text").parse().expect("a number");
    bound_ns / 1000
}

/// Answers in a second to connections that never pause.
fn capacity(address: SocketAddr, request: &[u8], scheduling: Scheduling) -> f64 {
    let end = Instant::now() + SATURATING_TIME;
    let mut at_once = std::iter::from_fn(|| {
        let now = Instant::now();
        (now < end).then_some(now)
    });
    let seen = std::thread::scope(|scope| {
        let asking = scheduling.spawn(scope, || {
            Connections::new(address, SATURATING).ask_all(&mut at_once, request)
        });
        asking.join().expect("no panic")
    });
    seen.answered_us.len() as f64 / SATURATING_TIME.as_secs_f64()
}

/// Requests at random times.
struct Offered {
    /// In a second.
    rate: f64,
    time: Duration,
    scheduling: Scheduling,
}

impl Offered {
    fn run(&self, address: SocketAddr, request: &[u8]) -> Seen {
        let is_over = AtomicBool::new(false);
        let begun = Instant::now() + Duration::from_millis(100);
        let mut arrivals = Arrivals {
            random: fastrand::Rng::with_seed(SEED),
            mean_gap: 1.0 / self.rate,
            next: begun,
            end: begun + self.time,
        };
        std::thread::scope(|scope| {
            let sleepers = cores().into_iter().map(|core| {
                let is_over = &is_over;
                self.scheduling.spawn(scope, move || {
                    sched_setaffinity(None, &core).expect("a core of ours");
                    wake_ups(is_over)
                })
            });
            let sleepers: Vec<_> = sleepers.collect();
            let asking = self.scheduling.spawn(scope, || {
                Connections::new(address, CONNECTIONS).ask_all(&mut arrivals, request)
            });
            let asked = asking.join();
            // Also where a thread has panicked, which ends the bench.
            is_over.store(true, Ordering::Relaxed);
            let slept = sleepers.into_iter().map(|sleeper| sleeper.join());
            let slept: Vec<Vec<WakeUp>> = slept.map(|woken| woken.expect("no panic")).collect();
            Seen {
                wake_ups: slept.concat(),
                seconds: self.time.as_secs_f64(),
                ..asked.expect("no panic")
            }
        })
    }
}

/// When requests are due: a Poisson process.
struct Arrivals {
    random: fastrand::Rng,
    /// In seconds.
    mean_gap: f64,
    next: Instant,
    end: Instant,
}

impl Iterator for Arrivals {
    type Item = Instant;

    fn next(&mut self) -> Option<Instant> {
        self.next += gap(&mut self.random, self.mean_gap);
        (self.next < self.end).then_some(self.next)
    }
}

/// Connections of one thread, each with one request at a time.
struct Connections {
    /// Taken by turns: the server closes one that asks nothing for half a minute.
    idle: VecDeque<Client>,
    busy: Vec<Asking>,
}

/// A connection whose request is under way.
struct Asking {
    client: Client,
    due: Instant,
    sent: Instant,
}

impl Connections {
    fn new(address: SocketAddr, count: u32) -> Self {
        Self {
            idle: (0..count).map(|_| Client::new(address)).collect(),
            busy: Vec::new(),
        }
    }

    /// Asks when it is time, on any connection that is idle, and waits for all answers.
    fn ask_all(mut self, arrivals: &mut dyn Iterator<Item = Instant>, request: &[u8]) -> Seen {
        let mut seen = Seen::default();
        let mut next = arrivals.next();
        while next.is_some() || !self.busy.is_empty() {
            // One at a time: answers are looked for between two requests that are due at once.
            if let Some(due) = next.filter(|due| *due <= Instant::now())
                && let Some(mut client) = self.idle.pop_front()
            {
                seen.started_late += usize::from(due.elapsed() > LATE_START);
                let sent = Instant::now();
                client.send(request);
                self.busy.push(Asking { client, due, sent });
                next = arrivals.next();
            }

            // Without an idle connection only an answer helps.
            let wait = match next {
                Some(due) if !self.idle.is_empty() => due.saturating_duration_since(Instant::now()),
                _ => PATIENCE,
            };
            self.take_answers(wait, &mut seen);
        }
        seen
    }

    /// Takes the answers that are there, or waits for the first one for so long.
    fn take_answers(&mut self, wait: Duration, seen: &mut Seen) {
        let polled = self.busy.iter();
        let mut polled: Vec<PollFd<'_>> = polled
            .map(|asking| PollFd::new(asking.client.stream(), PollFlags::IN))
            .collect();
        let limit = Timespec::try_from(wait).expect("a short time");
        poll(&mut polled, Some(&limit)).expect("sockets");
        let is_ready: Vec<bool> = polled
            .iter()
            .map(|polled| !polled.revents().is_empty())
            .collect();

        for place in (0..self.busy.len()).rev().filter(|place| is_ready[*place]) {
            let asking = &mut self.busy[place];
            let Some(status) = asking.client.receive() else {
                continue;
            };
            match status {
                200 => seen.answered_us.push(micros(asking.due.elapsed())),
                503 => seen.refused.push((asking.sent, Instant::now())),
                other => panic!("status {other}"),
            }
            self.idle.push_back(self.busy.swap_remove(place).client);
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn sleep_until(due: Instant) {
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
}

/// Each core that this process may use, alone.
fn cores() -> Vec<CpuSet> {
    let all = sched_getaffinity(None).expect("this thread's");
    let allowed = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
    allowed
        .map(|core| {
            let mut alone = CpuSet::new();
            alone.set(core);
            alone
        })
        .collect()
}

/// When a thread that only sleeps was to be woken, and was.
#[derive(Clone, Copy)]
struct WakeUp {
    due: Instant,
    woken: Instant,
}

impl WakeUp {
    fn late(self) -> Duration {
        self.woken - self.due
    }

    /// How much of the time that the thread was late lies between two others.
    fn within(self, begin: Instant, end: Instant) -> Duration {
        let first = self.due.max(begin);
        self.woken.min(end).saturating_duration_since(first)
    }
}

/// Sleeps to the next millisecond, time and again.
fn wake_ups(is_over: &AtomicBool) -> Vec<WakeUp> {
    let mut wake_ups = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let due = Instant::now() + Duration::from_millis(1);
        sleep_until(due);
        let woken = Instant::now();
        wake_ups.push(WakeUp { due, woken });
    }
    wake_ups
}

/// Exponential, in seconds of this mean.
fn gap(random: &mut fastrand::Rng, mean: f64) -> Duration {
    // From 0 exclusive to 1 inclusive.
    let uniform = 1.0 - random.f64();
    Duration::from_secs_f64(-uniform.ln() * mean)
}

/// What clients saw, in microseconds.
#[derive(Default)]
struct Seen {
    /// From when each request was due.
    answered_us: Vec<f64>,
    /// From when each refused request was sent to its answer.
    refused: Vec<(Instant, Instant)>,
    wake_ups: Vec<WakeUp>,
    /// Later than [`LATE_START`].
    started_late: usize,
    seconds: f64,
}

impl Seen {
    fn print(&self, part: f64, bound_us: f64) {
        let answered = &self.answered_us;
        let refused = self
            .refused
            .iter()
            .map(|(sent, read)| micros(*read - *sent));
        let refused: Vec<f64> = refused.collect();
        let wake_ups = self.wake_ups.iter().map(|woken| micros(woken.late()));
        let wake_ups: Vec<f64> = wake_ups.collect();
        let asked = answered.len() + refused.len();
        let share = |count: usize, of: usize| 100.0 * count as f64 / of.max(1) as f64;
        let [p50, p99, p999, longest] = quantiles(answered, [0.5, 0.99, 0.999, 1.0]);
        let [refused_p50, refused_p99, refused_longest] = quantiles(&refused, [0.5, 0.99, 1.0]);
        let [wake_up_p999, latest_wake_up] = quantiles(&wake_ups, [0.999, 1.0]);

        // In the order of the heading. What a thread that only sleeps may wait, an answer and a refusal may as well.
        print!(
            "{:6.0} {:10.0} {:15.3} {:11.0} {p50:7.0} {p99:7.0} {p999:9.0} {longest:7.0} {:13.4} {:18} {:10.2} {refused_p50:15.0} \
             {refused_p99:7.0} {refused_longest:7.0} {:13.3} {:26} {:12} {wake_up_p999:17.0} {latest_wake_up:7.0}",
            100.0 * part,
            asked as f64 / self.seconds,
            share(self.started_late, asked),
            answered.len() as f64 / self.seconds,
            share(above(answered, bound_us), answered.len()),
            above(answered, bound_us + latest_wake_up),
            share(refused.len(), asked),
            share(above(&refused, micros(PROMPT)), refused.len()),
            self.late_without_stalls(),
            above(&refused, micros(PROMPT) + latest_wake_up),
        );
    }

    /// Refusals that were late for another reason than that a core was away.
    fn late_without_stalls(&self) -> usize {
        let stalls = self.wake_ups.iter().filter(|woken| woken.late() >= STALL);
        let stalls: Vec<&WakeUp> = stalls.collect();
        let is_late = |sent: Instant, read: Instant| {
            let stalled: Duration = stalls.iter().map(|stall| stall.within(sent, read)).sum();
            (read - sent).saturating_sub(stalled) > PROMPT
        };
        let late = self
            .refused
            .iter()
            .filter(|(sent, read)| *read - *sent > PROMPT);
        late.filter(|(sent, read)| is_late(*sent, *read)).count()
    }
}

/// How many values are larger.
fn above(values: &[f64], limit: f64) -> usize {
    values.iter().filter(|value| **value > limit).count()
}
