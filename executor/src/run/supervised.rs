//! Does what the supervisor says: starts and kills workers, begins and fences epochs, looks at workers' progress, and
//! tells the supervisor what came of it. Decides nothing itself.
//!
//! # Nothing blocks the supervising thread
//!
//! Workers may be stopped, killed or hung at any moment, and readers of files and pipes may stall. Whatever the
//! supervising thread does ends without them; `tests/tests/stopped_peers.rs` stops each of these peers.
//!
//! | what it calls | who could keep it waiting | why it does not wait |
//! |---|---|---|
//! | launching a process | a child that is stopped before it runs its program | the worker's listener launches it; the supervising thread sees how far it is and kills the child ([`crate::run::launch`]) |
//! | sending an order | a worker that does not read its socket | the socket never blocks; the rest is sent later, and a worker that takes nothing for 2 s is lost ([`crate::run::wire::Outbox`]) |
//! | receiving answers | a worker that sent half of one | its listener reads, the supervising thread waits on a queue with a time limit ([`crate::run::watchdog`]) |
//! | waiting for a killed process | one that the system does not let go | its listener waits; the supervisor leaves the worker behind after `kill` |
//! | telling events and states | a listener that does not come back, a pipe or file that takes nothing | a bounded queue that drops and counts, emptied by a thread of its own ([`crate::run::outlet`]) |
//! | telling the trace of events and epochs | a file that takes nothing | a bounded queue that drops and counts, emptied by the thread that writes the trace ([`crate::observe::trace`]) |
//! | saying a line on standard error | a pipe that nobody reads | the command's console: a bounded queue, and a thread of its own |
//! | looking at a worker | a worker that is stopped | counters in shared memory, and files of `/proc` that the system answers itself |
//! | holding and sealing a border | a worker that is stopped while it commits | atomic words; nobody holds a lock in shared memory |
//! | making an epoch's memory | nobody; a slow system at worst | the self-watch says so ([`crate::run::self_watch`]) |
//! | opening a GPU in a thread of this process | its driver | nothing: `--isolation gpus`, the default, opens it in the worker's process; else the self-watch ends the run |
//! | learning at a padded end whether the input goes on | whoever feeds the sources | it waits on purpose, between epochs; a stop of the run ends the wait |
//! | dismissing the workers | a thread or process that does not end | 5 s at most; then they are left behind |
//! | ending the listener and the trace | as above | 1 s and 2 s without progress; then they are left behind, and the report says what is missing |
//!
//! Should it wait all the same, [`crate::run::self_watch`] tells after 10 s and gives the run up after 60 s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use zbmd_backends::gpu::FaultKind;
use zbmd_ir::{DeviceId, Plan, PlanId};

use crate::error::RunError;
use crate::inject::{Fault, Injector};
use crate::observe::summary::WrongKind;
use crate::options::Supervised;
use crate::run::epochs::{Active, Conductor, Phase};
use crate::run::outlet::Outlet;
use crate::run::self_watch::{self, Activity, Finding, Heartbeat, SelfWatch};
use crate::run::session::Inner;
use crate::run::system;
use crate::run::watchdog::Dog;
use crate::run::worker_pool::{Farewell, News};
use crate::supervise::{
    Action, Cause, End, Epoch, Event, Incarnation, Input, Os, Plans, Request, Sample, Supervisor,
    Verdict, What,
};
use crate::transport::clock::Clock;
use crate::transport::primitive::Ordering;
use crate::worker::host::How;
use crate::worker::lower::{StepTable, planned_ns, step_tables};

/// A watchdog runs out when its worker has not got on for so many looks; without watchdogs, looks are so many times
/// rarer while every worker gets on.
const CALM: u64 = 3;
/// Looks after a watchdog ran out that must find all workers well: the first shows only where they are.
const ALERT: u32 = 2;
/// Workers that get on are looked at so rarely, to see their pace.
const PACE_NS: u64 = 50_000_000;
/// The part of an ended worker, which will never get on.
const NEVER_NS: u64 = 3_600_000_000_000;

/// Work is given to others if a period then is so many times shorter.
const WORTH_IT: f64 = 1.1;

/// How often workers that are not ready yet are looked at.
const START_LOOK_NS: u64 = 5_000_000;

/// The supervisor's questions about plans, answered from a bundle for the present phase of the run.
struct Book {
    engine: Arc<Inner>,
    phase: Phase,
}

impl Book {
    fn plan(&self, lost: &[DeviceId]) -> Option<&Plan> {
        let plan = self.engine.plan_of(self.phase, lost)?;
        Some(&self.engine.program.plans[plan])
    }

    fn period_ns(&self, lost: &[DeviceId]) -> Option<u64> {
        Some(self.plan(lost)?.period_ns)
    }
}

impl Plans for Book {
    fn can_run(&self, lost: &[DeviceId]) -> bool {
        self.plan(lost).is_some()
    }

    fn uses(&self, lost: &[DeviceId]) -> Vec<DeviceId> {
        let Some(plan) = self.plan(lost) else {
            return Vec::new();
        };
        let mut devices = self.engine.physical(plan, lost);
        devices.sort_unstable();
        devices
    }

    fn gains(&self, from: &[DeviceId], to: &[DeviceId]) -> bool {
        self.period_ns(to) < self.period_ns(from)
    }

    fn helps(&self, from: &[DeviceId], to: &[DeviceId], slow: DeviceId, times: f64) -> bool {
        let (Some(plan), Some(other_ns)) = (self.plan(from), self.period_ns(to)) else {
            return false;
        };
        let physical = self.engine.physical(plan, from);
        let Some(at) = physical.iter().position(|d| *d == slow) else {
            return false;
        };
        let lanes = plan.calendars[at].lanes.iter().flat_map(|l| &l.entries);
        let slowed_ns = lanes.map(planned_ns).sum::<u64>() as f64 * times;
        // Going over costs a drained pipeline, and coming back another.
        slowed_ns.max(plan.period_ns as f64) > WORTH_IT * other_ns as f64
    }
}

/// A listener that takes nothing for so long at the end of a run is left behind.
const LISTENER_LIMIT: Duration = Duration::from_secs(1);

/// Watches the supervising thread: says when it is late, and gives the run up when it is stuck.
fn watch_itself(conductor: &Conductor, tell: impl Fn(Event) + Send + 'static) -> SelfWatch {
    let given_up = conductor.given_up.clone();
    let control = Arc::clone(&conductor.control);
    SelfWatch::start(self_watch::PATIENCE, move |finding| match finding {
        Finding::Late { activity, after } => tell(Event {
            at_ns: Clock.now_ns(),
            what: What::SupervisorLate {
                activity: activity.to_string(),
                after_ns: after.as_nanos() as u64,
            },
        }),
        Finding::Stuck { activity, after } => {
            // Whoever waits for the run waits no longer for its supervising thread.
            let _ = given_up.send(Err(RunError::SupervisorStuck {
                activity: activity.to_string(),
                seconds: after.as_secs(),
            }));
            control.abort();
        }
    })
}

/// The conductor at the supervisor's orders.
pub(crate) struct Driver<'c> {
    conductor: &'c mut Conductor,
    supervisor: Supervisor<Book>,
    outlet: Outlet,
    heartbeat: Arc<Heartbeat>,
    /// Ends with the run.
    self_watch: SelfWatch,
    /// How often states are given away, if they are.
    state_every_ns: Option<u64>,
    next_state_ns: u64,
    /// Iterations of the last state that was given away.
    last_state: u64,
    injector: Option<Injector>,
    actions: Vec<Action>,
    /// The epoch that was made before anything ran.
    first: Option<Active>,
    active: Option<Active>,
    incarnations: BTreeMap<DeviceId, Incarnation>,
    /// Workers that are not ready yet, and when they are looked at next.
    starting: BTreeSet<DeviceId>,
    next_start_look_ns: u64,
    /// For each plan that ran, what each instruction of each calendar is.
    tables: BTreeMap<PlanId, Vec<StepTable>>,
    next_look_ns: u64,
    /// A watchdog for each worker of the epoch at work, if there are watchdogs.
    dogs: Vec<Dog>,
    /// How many of them have run out.
    barking: usize,
    /// Looks until all may be well.
    alert: u32,
    /// The supervisor knows that somebody wants to go over to another program.
    swap_told: bool,
    verdict: Option<Verdict>,
    clock: Clock,
    times: Times,
}

/// When the parts of the recovery at work happened.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    lost_ns: u64,
    fenced_ns: u64,
    begun_ns: u64,
}

impl<'c> Driver<'c> {
    pub(crate) fn new(conductor: &'c mut Conductor, first: Active, how: Supervised) -> Self {
        let (state_every_ns, state_listener) = how.states.unzip();
        let outlet = Outlet::start(how.listener, state_listener);
        let self_watch = watch_itself(conductor, outlet.teller());
        let book = Book {
            engine: Arc::clone(&conductor.engine),
            phase: conductor.phase,
        };
        Self {
            supervisor: Supervisor::new(how.settings, how.tree, book),
            conductor,
            outlet,
            heartbeat: self_watch.heartbeat(),
            self_watch,
            state_every_ns,
            next_state_ns: Clock.now_ns() + state_every_ns.unwrap_or(0),
            last_state: 0,
            injector: how.inject,
            actions: Vec::new(),
            first: Some(first),
            active: None,
            incarnations: BTreeMap::new(),
            starting: BTreeSet::new(),
            next_start_look_ns: 0,
            tables: BTreeMap::new(),
            next_look_ns: 0,
            dogs: Vec::new(),
            barking: 0,
            alert: 0,
            swap_told: false,
            verdict: None,
            clock: Clock,
            times: Times::default(),
        }
    }

    /// Runs to the end, whatever is lost on the way.
    pub(crate) fn run(mut self) -> Result<(), RunError> {
        let outcome = self.supervise();
        // It can tell events too, which come to an end now.
        self.conductor.late = self.self_watch.end();
        self.conductor.events_dropped = self.outlet.finish(LISTENER_LIMIT);
        outcome
    }

    fn supervise(&mut self) -> Result<(), RunError> {
        let now_ns = self.clock.now_ns();
        if let Some(injector) = &mut self.injector {
            injector.start(now_ns);
        }
        self.supervisor.start(now_ns, &mut self.actions);
        self.act();
        let verdict = loop {
            if let Some(verdict) = self.verdict.take() {
                break verdict;
            }
            if self.conductor.control.stop.is_set() {
                return Err(RunError::Abandoned);
            }
            let patience = self.patience();
            self.heartbeat.enter(Activity::Listening);
            let news = self.conductor.crew.next(patience, &mut self.dogs);
            if let Some(news) = news {
                self.hear(news);
                self.act();
            }
            self.pass_time();
        };
        match verdict {
            Verdict::Finished | Verdict::Requested => Ok(()),
            other => Err(RunError::GaveUp {
                verdict: other.to_string(),
                iterations: self.conductor.state.iterations,
                left: None,
            }),
        }
    }

    /// How long nothing needs to be done.
    fn patience(&self) -> Duration {
        let now_ns = self.clock.now_ns();
        let look = self.active.as_ref().map(|_| self.next_look_ns);
        let inject = self.injector.as_ref().and_then(Injector::next_ns);
        let states = self.state_every_ns.map(|_| self.next_state_ns);
        let start = (!self.starting.is_empty()).then_some(self.next_start_look_ns);
        let deadlines = [self.supervisor.deadline(), look, inject, states, start];
        // Somebody may give the run up at any time, and cannot wake us.
        let until_ns = deadlines.into_iter().flatten().min().unwrap_or(u64::MAX);
        Duration::from_nanos(until_ns.saturating_sub(now_ns).min(50_000_000))
    }

    fn pass_time(&mut self) {
        let now_ns = self.clock.now_ns();
        if !self.swap_told && self.conductor.control.wanted().is_some() {
            self.swap_told = true;
            self.tell(Input::Request(Request::Swap));
        }
        if self.supervisor.deadline().is_some_and(|ns| ns <= now_ns) {
            self.tell(Input::Tick);
        }
        let barking = self.dogs.iter().filter(|dog| dog.has_barked).count();
        if barking > std::mem::replace(&mut self.barking, barking) {
            self.alert = ALERT;
            self.next_look_ns = now_ns;
        }
        if self.active.is_some() && self.next_look_ns <= now_ns {
            self.watch(now_ns);
        }
        if !self.starting.is_empty() && self.next_start_look_ns <= now_ns {
            self.next_start_look_ns = now_ns + START_LOOK_NS;
            self.look_at_starting();
        }
        self.give_state(now_ns);
        if let Some(fault) = self.injector.as_mut().and_then(|i| i.due(now_ns)) {
            self.inject(fault);
        }
        self.act();
    }

    fn tell(&mut self, input: Input) {
        self.supervisor
            .handle(self.clock.now_ns(), input, &mut self.actions);
    }

    fn hear(&mut self, news: News) {
        let input = match news {
            News::Ready {
                device,
                incarnation,
            } => {
                self.starting.remove(&device);
                Input::Ready {
                    device,
                    incarnation: Incarnation(incarnation),
                }
            }
            News::Gone {
                device,
                incarnation,
                farewell,
            } => {
                if self.incarnations.get(&device) == Some(&Incarnation(incarnation)) {
                    self.starting.remove(&device);
                }
                let cause = match farewell {
                    Farewell::Exited(code) => Cause::Exited { code },
                    Farewell::Killed(signal) => Cause::Killed { signal },
                    Farewell::Unfit(why) => Cause::NotStarted { why },
                    Farewell::NoDevice(fault) => Cause::NotStarted {
                        why: fault.to_string(),
                    },
                    Farewell::Failed(fault) if fault.fault.kind == FaultKind::Broken => {
                        Cause::Broken {
                            text: fault.to_string(),
                        }
                    }
                    Farewell::Failed(fault) => Cause::Fault {
                        text: fault.to_string(),
                    },
                };
                Input::Gone {
                    device,
                    incarnation: Incarnation(incarnation),
                    cause,
                }
            }
            News::Ended {
                device,
                incarnation,
                epoch,
                calendar,
                end,
            } => {
                let (epoch, incarnation) = (Epoch(epoch), Incarnation(incarnation));
                let how = end.how.clone();
                if let Some(active) = self.active.as_mut().filter(|a| a.spec.epoch == epoch.0) {
                    active.keep(calendar, *end);
                }
                let end = match how {
                    How::Finished { blocks } => End::Finished { blocks },
                    How::Stopped => End::Stopped,
                    How::NoMemory { .. } => End::OutOfMemory,
                    How::Device { fault, .. } if fault.fault.kind == FaultKind::Memory => {
                        End::OutOfMemory
                    }
                    How::Device { fault, .. } => End::Fault {
                        text: fault.to_string(),
                    },
                    How::Wrong(wrong) => {
                        let text = RunError::from(wrong.clone()).to_string();
                        match wrong.kind {
                            WrongKind::Corrupt(from) => {
                                let from = self.physical(from);
                                End::Corrupt { from, text }
                            }
                            WrongKind::Fault | WrongKind::Panic => End::Fault { text },
                        }
                    }
                };
                Input::Ended {
                    epoch,
                    device,
                    incarnation,
                    end,
                }
            }
            News::Bug(bug) => {
                self.conductor.control.abort();
                std::panic::resume_unwind(bug)
            }
        };
        self.tell(input);
    }

    /// The device that has a role in the epoch at work.
    fn physical(&self, role: DeviceId) -> DeviceId {
        let Some(active) = &self.active else {
            return role;
        };
        let plan = &self.conductor.engine.program.plans[active.spec.plan];
        let at = plan.calendars.iter().position(|c| c.device == role);
        at.and_then(|at| active.spec.devices.get(at).copied())
            .unwrap_or(role)
    }

    /// Does all that the supervisor asked for, and all that follows from it.
    fn act(&mut self) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                self.one(action);
            }
        }
    }

    fn one(&mut self, action: Action) {
        match action {
            Action::Spawn {
                device,
                incarnation,
            } => {
                self.heartbeat.enter(Activity::ManagingWorkers);
                self.incarnations.insert(device, incarnation);
                self.starting.insert(device);
                self.conductor.crew.spawn(device, incarnation.0);
            }
            Action::Kill {
                device,
                incarnation,
            } => {
                self.heartbeat.enter(Activity::ManagingWorkers);
                self.conductor.crew.kill(device, incarnation.0);
            }
            Action::Begin { epoch, lost } => {
                self.heartbeat.enter(Activity::BeginningEpoch);
                if let Err(why) = self.begin(epoch, &lost) {
                    self.tell(Input::Refused {
                        epoch,
                        why: why.to_string(),
                    });
                }
            }
            Action::Fence { epoch } => {
                self.heartbeat.enter(Activity::EndingEpoch);
                let Some(active) = self.active.take() else {
                    return;
                };
                debug_assert_eq!(active.spec.epoch, epoch.0, "the epoch at work is fenced");
                self.times.lost_ns = self.clock.now_ns();
                let committed_blocks = self.conductor.fence(&active);
                self.times.fenced_ns = self.clock.now_ns();
                self.tell(Input::Fenced {
                    epoch,
                    committed_blocks,
                });
                if let Some(injector) = &mut self.injector {
                    injector.fenced(self.clock.now_ns());
                }
            }
            Action::Quiesce { .. } => {
                if let Some(active) = &self.active {
                    active.memory.common.tickets.close();
                    self.conductor.session.doors.notify();
                }
            }
            Action::Complete {
                epoch,
                blocks,
                swap,
            } => {
                self.heartbeat.enter(Activity::EndingEpoch);
                let Some(active) = self.active.take() else {
                    return;
                };
                self.conductor.complete(&active, blocks);
                let wanted = self.conductor.control.wanted().take().filter(|_| swap);
                if let Some(engine) = wanted {
                    self.supervisor.plans_mut().engine = Arc::clone(&engine);
                    self.conductor.exchange(engine);
                    self.tables.clear();
                    self.swap_told = false;
                }
                self.heartbeat.enter(Activity::AwaitingInput);
                let more = self.conductor.has_more();
                self.heartbeat.enter(Activity::EndingEpoch);
                self.supervisor.plans_mut().phase = self.conductor.phase;
                self.tell(Input::Completed { epoch, more });
            }
            Action::Stop(verdict) => self.verdict = Some(verdict),
            Action::Event(event) => self.announce(&event),
        }
    }

    fn announce(&mut self, event: &Event) {
        if let Some(tracer) = &mut self.conductor.tracer {
            tracer.event(event);
        }
        self.outlet.event(event);
    }

    fn begin(&mut self, epoch: Epoch, lost: &[DeviceId]) -> Result<(), RunError> {
        let denies = self.injector.as_mut().is_some_and(Injector::denies_memory);
        self.conductor.deny_memory = denies;
        let mut active = match self.first.take() {
            Some(first) if lost.is_empty() && first.spec.epoch == epoch.0 => first,
            first => {
                for queue in first.iter().flat_map(|first| &first.memory.sinks) {
                    queue.close();
                }
                self.conductor.make(epoch.0, lost)?
            }
        };
        let lease_ns = self.lease_ns();
        self.dogs = self
            .conductor
            .crew
            .dogs(active.spec.devices.len(), lease_ns);
        (self.barking, self.alert) = (0, ALERT);
        self.conductor.launch(&mut active, (&self.dogs, lease_ns))?;
        self.times.begun_ns = self.clock.now_ns();
        self.active = Some(active);
        self.next_look_ns = self.clock.now_ns();
        Ok(())
    }

    /// How long a worker may not get on before anybody looks.
    fn lease_ns(&self) -> u64 {
        self.supervisor.settings().detect.look_ns * CALM
    }

    /// Looks at the workers, and decides when to look again: soon, while one may hang; else when a watchdog runs out.
    /// Every look disturbs the workers.
    fn watch(&mut self, now_ns: u64) {
        let leases = self.look();
        self.alert = self.alert.saturating_sub(1);
        let look_ns = self.supervisor.settings().detect.look_ns;
        self.next_look_ns = now_ns
            + match leases {
                Some(leases) if self.alert == 0 && !self.dogs.is_empty() => {
                    let barking = self
                        .dogs
                        .iter_mut()
                        .zip(leases)
                        .filter(|(d, _)| d.has_barked);
                    barking.for_each(|(dog, lease_ns)| dog.calm(lease_ns));
                    self.barking = 0;
                    PACE_NS
                }
                Some(_) if self.alert == 0 => self.lease_ns(),
                _ => look_ns,
            };
    }

    /// Looks at every worker of the epoch. How long each may be left alone; `None` if one may hang.
    fn look(&mut self) -> Option<Vec<u64>> {
        let lease_ns = self.lease_ns();
        let active = self.active.as_ref()?;
        let (spec, memory) = (Arc::clone(&active.spec), Arc::clone(&active.memory));
        let engine = Arc::clone(&self.conductor.engine);
        let tables = self
            .tables
            .entry(spec.plan)
            .or_insert_with(|| step_tables(&engine, spec.plan, &memory));
        let now_ns = self.clock.now_ns();
        let mut seen = Vec::new();
        let mut all_well = true;
        let mut leases = vec![lease_ns; memory.posts.len()];
        let mut first_output_ns = u64::MAX;
        for (calendar, post) in memory.posts.iter().enumerate() {
            let device = spec.devices[calendar];
            let Some(&incarnation) = self.incarnations.get(&device) else {
                continue;
            };
            let output_ns = post.first_output_ns.load(Ordering::Relaxed);
            if output_ns != 0 {
                first_output_ns = first_output_ns.min(output_ns);
            }
            let thread = post.thread.load(Ordering::Acquire);
            if active.has_ended(calendar) {
                leases[calendar] = NEVER_NS;
                continue;
            }
            if thread == 0 {
                continue;
            }
            let periods = post.periods.load(Ordering::Acquire);
            let pc = post.pc.load(Ordering::Relaxed);
            let (planned_ns, waiting) = tables[calendar].of(pc);
            let step = periods << 32 | u64::from(pc);
            let asked = self.supervisor.wants_os(now_ns, device, step, waiting);
            let process = self.conductor.crew.process_of(device).filter(|_| asked);
            let thread = process.and_then(|process| system::thread_state(process, thread));
            let is_stopped = thread.is_some_and(|thread| thread.os == Os::Stopped);
            all_well &= !is_stopped && (waiting || !asked);
            if !waiting {
                leases[calendar] = lease_ns.max(planned_ns);
            }
            let sample = Sample {
                step,
                periods,
                planned_ns,
                waiting,
                thread,
            };
            seen.push(Input::Seen {
                epoch: Epoch(spec.epoch),
                device,
                incarnation,
                sample,
            });
        }
        for input in seen {
            self.tell(input);
        }
        if self.times.lost_ns != 0 && first_output_ns != u64::MAX {
            let Times {
                lost_ns,
                fenced_ns,
                begun_ns,
            } = std::mem::take(&mut self.times);
            let what = What::Recovered {
                epoch: Epoch(spec.epoch),
                fence_ns: fenced_ns - lost_ns,
                restore_ns: begun_ns.saturating_sub(fenced_ns),
                replay_ns: first_output_ns.saturating_sub(begun_ns),
            };
            self.announce(&Event {
                at_ns: first_output_ns,
                what,
            });
        }
        all_well.then_some(leases)
    }

    /// A process that was stopped by a signal before it was ready would be waited for as long as a start may take.
    fn look_at_starting(&self) {
        for &device in &self.starting {
            self.conductor.crew.end_if_stopped(device);
        }
    }

    /// Gives the state at the last committed border away, if it is time and there is a new one.
    fn give_state(&mut self, now_ns: u64) {
        let Some(every_ns) = self.state_every_ns else {
            return;
        };
        if self.next_state_ns > now_ns {
            return;
        }
        self.next_state_ns = now_ns + every_ns;
        let Some(active) = &self.active else { return };
        let conductor = &self.conductor;
        let last_state = &mut self.last_state;
        self.outlet.state(|| {
            let state = conductor.committed_state(active);
            let is_new = state.iterations > *last_state;
            *last_state = state.iterations.max(*last_state);
            is_new.then_some(state)
        });
    }

    fn inject(&mut self, fault: Fault) {
        let devices: Vec<DeviceId> = match &self.active {
            Some(active) => active.spec.devices.clone(),
            None => self.incarnations.keys().copied().collect(),
        };
        let Some(what) = fault.on(&devices) else {
            return;
        };
        let at_ns = self.clock.now_ns();
        let (kind, targets) = (what.kind, what.devices.clone());
        self.announce(&Event {
            at_ns,
            what: What::Injected {
                kind: kind.to_string(),
                devices: targets,
            },
        });
        crate::inject::bring_about(&what, &self.conductor.crew, self.active.as_ref());
    }
}
