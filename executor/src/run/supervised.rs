//! A run under supervision. Does what the supervisor decides: starts and kills workers, begins and fences epochs, looks at
//! workers' progress, and reports the results to the supervisor. Decides nothing itself.
//!
//! # Nothing blocks the supervising thread
//!
//! Workers may be stopped, killed or hung at any moment, and readers of files and pipes may stall. Whatever the
//! supervising thread does ends without them; `tests/tests/stopped_peers.rs` stops each of these peers.
//!
//! | what it calls | who could keep it waiting | why it does not wait |
//! |---|---|---|
//! | launching a process | a child that is stopped before it runs its program | the worker's listener launches it; the supervising thread sees how far it is and kills the child ([`crate::run::launch`]) |
//! | sending a request | a worker that does not read its socket | the socket never blocks; the rest is sent later, and a worker that takes nothing for 2 s is lost ([`crate::run::wire::Outbox`]) |
//! | receiving replies | a worker that sent half of one | its listener reads, the supervising thread waits on a queue with a time limit ([`crate::run::inbox`]) |
//! | waiting for a killed process | one that the system does not release | its listener waits; the supervisor leaves the worker behind after `kill` |
//! | delivering events and states | a listener that does not come back, a pipe or file that takes nothing | a bounded queue that drops and counts, emptied by a thread of its own ([`crate::run::outlet`]) |
//! | recording events and epochs in the trace | a file that takes nothing | a bounded queue that drops and counts, emptied by the thread that writes the trace ([`crate::observe::trace`]) |
//! | writing a line to standard error | a pipe that nobody reads | the command's console: a bounded queue, and a thread of its own |
//! | looking at a worker | a worker that is stopped | counters in shared memory, and files of `/proc` that the system answers itself |
//! | holding and sealing a border | a worker that is stopped while it commits | atomic words; nobody holds a lock in shared memory |
//! | making an epoch's memory | nobody; a slow system at worst | the self-watch says so ([`crate::run::self_watch`]) |
//! | opening an epoch in a council, and having the last border decided | voters that do not answer | it waits on purpose, between epochs; without an answer for some leases the run ends |
//! | opening a GPU in a thread of this process | its driver | nothing: `--isolation gpus`, the default, opens it in the worker's process; else the self-watch ends the run |
//! | learning at a padded end whether the input goes on | whoever feeds the sources | it waits on purpose, between epochs; a stop of the run ends the wait |
//! | dismissing the workers | a thread or process that does not end | 5 s at most; then they are left behind |
//! | ending the listener and the trace | as above | 1 s and 2 s without progress; then they are left behind, and the report says what is missing |
//!
//! Should it wait all the same, [`crate::run::self_watch`] reports it after 10 s and gives the run up after 60 s.

#[cfg(hosts)]
mod council;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use zbmd_devices::gpu::FaultKind;
use zbmd_ir::{DeviceId, PlanId};

use super::active_epoch::ActiveEpoch;
use super::bundle_plans::BundlePlans;
use super::epochs::EpochManager;
use super::event::WorkerEvent;
#[cfg(hosts)]
use super::hosts::conductor_seat::ConductorSeat;
use super::injection;
use super::outlet::Outlet;
use super::run_thread::RunResult;
use super::self_watch::{Activity, ActivityMonitor, SelfWatch, watch_run};
use crate::error::RunError;
use crate::fault::{FaultReport, WorkerFault, WorkerOutcome};
use crate::inject::{DueFault, Injector};
use crate::options::{StateSubscription, Supervised};
use crate::supervise::{
    Action, End, Epoch, Event, Generation, Input, Os, Request, Sample, Supervisor, Verdict, What,
};
#[cfg(hosts)]
use crate::supervise::{Cause, GoneWorker};
use crate::transport::clock::Clock;
use crate::transport::epoch_state::WorkerStatus;
use crate::transport::primitive::Ordering;
use crate::transport::watchdog::EpochWatchdogs;
use crate::worker::step_table::{StepTable, step_tables};

/// A watchdog expires when its worker has made no progress for so many looks; without watchdogs, looks are so many times
/// rarer while every worker makes progress.
const LOOKS_PER_LEASE: u64 = 3;
/// Looks after a watchdog expired that must find all workers well: the first shows only where they are.
const LOOKS_AFTER_EXPIRY: u32 = 2;
/// Workers that make progress are looked at so rarely, to see their pace.
const PACE_NS: u64 = 50_000_000;
/// The lease of an ended worker, which will never make progress.
const NEVER_NS: u64 = 3_600_000_000_000;
/// How often workers that are not ready yet are looked at.
const START_LOOK_NS: u64 = 5_000_000;
/// Somebody may give the run up at any time, and cannot wake the supervising thread: so long it waits at most.
const MAX_WAIT_NS: u64 = 50_000_000;
/// A listener that takes nothing for so long at the end of a run is left behind.
const LISTENER_LIMIT: Duration = Duration::from_secs(1);

/// A run that the supervisor decides about.
pub(super) struct SupervisedRun<'m> {
    manager: &'m mut EpochManager,
    supervisor: Supervisor<BundlePlans>,
    outlet: Outlet,
    monitor: Arc<ActivityMonitor>,
    /// Ends with the run.
    self_watch: SelfWatch,
    /// When states are given away, if they are.
    states: Option<StateSubscription>,
    next_state_ns: u64,
    /// Iterations of the last state that was given away.
    last_state_iterations: u64,
    injector: Option<Injector>,
    actions: Vec<Action>,
    /// The epoch that was made before anything ran, and without which devices.
    first: Option<(ActiveEpoch, Vec<DeviceId>)>,
    active: Option<ActiveEpoch>,
    generations: BTreeMap<DeviceId, Generation>,
    /// Workers that are not ready yet, and when they are looked at next.
    starting: BTreeSet<DeviceId>,
    next_start_look_ns: u64,
    /// For each plan that ran, what each instruction of each calendar is.
    step_tables: BTreeMap<PlanId, Vec<StepTable>>,
    next_look_ns: u64,
    /// Of the workers of the epoch at work.
    watchdogs: EpochWatchdogs,
    /// How many of them had expired when they were last looked at.
    expired_count: usize,
    /// Looks that are left until all workers count as well.
    looks_until_calm: u32,
    /// The supervisor knows that somebody wants to go over to another program.
    is_swap_requested: bool,
    verdict: Option<Verdict>,
    clock: Clock,
    times: RecoveryTimes,
    /// In whose name the run is conducted, if there is a council.
    #[cfg(hosts)]
    seat: Option<ConductorSeat>,
    /// Why the council lets it conduct no more.
    council_end: Option<String>,
}

/// When the parts of the recovery at work happened; 0 if there is none.
#[derive(Clone, Copy, Debug, Default)]
struct RecoveryTimes {
    lost_ns: u64,
    fenced_ns: u64,
    begun_ns: u64,
}

/// What a look at the workers found.
struct WorkerLook {
    inputs: Vec<Input>,
    /// How long each worker may be left alone.
    leases_ns: Vec<u64>,
    /// None of them may hang.
    is_all_well: bool,
    /// When the first new token was given out.
    first_output_ns: Option<u64>,
}

impl<'m> SupervisedRun<'m> {
    pub(super) fn new(
        manager: &'m mut EpochManager,
        first: ActiveEpoch,
        options: Supervised,
        give_up: Sender<RunResult>,
    ) -> Self {
        // Listeners have a thread of their own: one that blocks does not stop supervision.
        let states = options.states;
        let state_listener = states.as_ref().map(|states| Arc::clone(&states.listener));
        let outlet = Outlet::start(options.listener, state_listener);
        let self_watch = watch_run(Arc::clone(&manager.control), give_up, outlet.event_sender());
        let plans = BundlePlans {
            loaded: Arc::clone(&manager.loaded),
            phase: manager.phase,
        };
        let lost = manager.pool.lost_devices();
        let mut supervisor = Supervisor::new(options.settings, options.tree, plans);
        if !lost.is_empty() {
            supervisor.go_on();
        }
        Self {
            #[cfg(hosts)]
            seat: manager.seat.take(),
            council_end: None,
            supervisor,
            manager,
            outlet,
            monitor: self_watch.monitor(),
            self_watch,
            next_state_ns: Clock.now_ns() + states.as_ref().map_or(0, |states| states.every_ns),
            states,
            last_state_iterations: 0,
            injector: options.inject,
            actions: Vec::new(),
            first: Some((first, lost)),
            active: None,
            generations: BTreeMap::new(),
            starting: BTreeSet::new(),
            next_start_look_ns: 0,
            step_tables: BTreeMap::new(),
            next_look_ns: 0,
            watchdogs: EpochWatchdogs::none(),
            expired_count: 0,
            looks_until_calm: 0,
            is_swap_requested: false,
            verdict: None,
            clock: Clock,
            times: RecoveryTimes::default(),
        }
    }

    /// Runs to the end, whatever is lost on the way.
    pub(super) fn run(mut self) -> Result<(), RunError> {
        let run_result = self.supervise();
        // It can send events too, which come to an end now.
        self.manager.tally.late = self.self_watch.end();
        self.manager.tally.events_dropped = self.outlet.finish(LISTENER_LIMIT);
        run_result
    }

    fn supervise(&mut self) -> Result<(), RunError> {
        let now_ns = self.clock.now_ns();
        // Faults are due at times after this start.
        if let Some(injector) = &mut self.injector {
            injector.start(now_ns);
        }
        self.supervisor.start(now_ns, &mut self.actions);
        self.perform_actions();

        let verdict = loop {
            if let Some(verdict) = self.verdict.take() {
                break verdict;
            }
            if self.manager.control.stop.is_set() {
                return Err(RunError::Abandoned);
            }
            if let Some(why) = self.council_end.take() {
                return Err(self.end_by_council(why));
            }
            // An event first, then what is due: a flood of events does not delay deadlines by more than one event.
            let wait_limit = self.wait_limit();
            self.monitor.enter(Activity::Listening);
            let watchdogs = &mut self.watchdogs.watchdogs;
            if let Some(event) = self.manager.pool.next_event(wait_limit, watchdogs) {
                self.handle_event(event);
                self.perform_actions();
            }
            self.pass_time();
        };

        let is_end = matches!(verdict, Verdict::Finished | Verdict::Requested);
        self.settle_council(is_end)?;
        // What was delivered until then stays delivered: the caller is told how many iterations.
        match verdict {
            Verdict::Finished | Verdict::Requested => Ok(()),
            other => Err(RunError::GaveUp {
                verdict: other.to_string(),
                iterations: self.manager.state.iterations,
                left: None,
            }),
        }
    }

    /// How long nothing needs to be done.
    fn wait_limit(&self) -> Duration {
        let now_ns = self.clock.now_ns();
        let deadlines = [
            self.supervisor.deadline(),
            self.active.as_ref().map(|_| self.next_look_ns),
            self.injector.as_ref().and_then(|i| i.next_ns(now_ns)),
            self.states.as_ref().map(|_| self.next_state_ns),
            (!self.starting.is_empty()).then_some(self.next_start_look_ns),
            self.next_standby_ns(),
            self.next_council_ns(),
        ];
        // Events end the wait at once; the limit bounds how late a request from another thread is seen.
        let deadline_ns = deadlines.into_iter().flatten().min().unwrap_or(u64::MAX);
        Duration::from_nanos(deadline_ns.saturating_sub(now_ns).min(MAX_WAIT_NS))
    }

    /// When processes that stand by are to be started. Between epochs there is more urgent work, and with the next one they
    /// are started anyway.
    fn next_standby_ns(&self) -> Option<u64> {
        let standby_ns = self.manager.pool.next_standby_ns();
        standby_ns.filter(|_| self.active.is_some())
    }

    /// Does all that is due by now.
    fn pass_time(&mut self) {
        let now_ns = self.clock.now_ns();
        // A request is passed on once, until the swap is done.
        if !self.is_swap_requested && self.is_swap_ready() {
            self.is_swap_requested = true;
            self.send_input(Input::Request(Request::Swap));
        }
        // Deadlines of the state machine, such as back-off, come to it as ticks: it has no clock.
        if self.supervisor.deadline().is_some_and(|ns| ns <= now_ns) {
            self.send_input(Input::Tick);
        }

        // An expired watchdog makes this thread look at all workers often until nothing more is found.
        let expired_count = self.watchdogs.expired_count();
        if expired_count > self.expired_count {
            self.looks_until_calm = LOOKS_AFTER_EXPIRY;
            self.next_look_ns = now_ns;
        }
        self.expired_count = expired_count;
        if self.active.is_some() && self.next_look_ns <= now_ns {
            self.watch_workers(now_ns);
        }
        // A process that is stopped before its program runs has no watchdog yet.
        if !self.starting.is_empty() && self.next_start_look_ns <= now_ns {
            self.next_start_look_ns = now_ns + START_LOOK_NS;
            self.end_stopped_starters();
        }

        if self.next_standby_ns().is_some_and(|ns| ns <= now_ns) {
            self.start_standbys();
        }

        self.follow_council();
        // The state is given before a fault is injected, so that a checkpoint does not wait for the recovery.
        self.give_state(now_ns);
        if let Some(fault) = self.due_fault(now_ns) {
            self.inject(fault);
        }
        self.perform_actions();
    }

    fn send_input(&mut self, input: Input) {
        self.supervisor
            .handle(self.clock.now_ns(), input, &mut self.actions);
    }

    fn handle_event(&mut self, event: WorkerEvent) {
        let input = match event {
            WorkerEvent::Ready {
                device, generation, ..
            } => {
                self.starting.remove(&device);
                Input::Ready {
                    device,
                    generation: Generation(generation),
                }
            }
            WorkerEvent::Gone {
                device,
                generation,
                exit,
            } => {
                // An exit of an earlier generation says nothing about the process that is starting now.
                let generation = Generation(generation);
                if self.generations.get(&device) == Some(&generation) {
                    self.starting.remove(&device);
                    self.show_loss(&[device]);
                }
                Input::Gone {
                    device,
                    generation,
                    cause: exit.into_cause(),
                }
            }
            WorkerEvent::Ended {
                device,
                generation,
                epoch,
                calendar,
                end,
            } => {
                // The report of an epoch that was fenced meanwhile is dropped, the supervisor hears of its end all the same.
                let how = self.supervisor_end(&end.outcome);
                if let Some(active) = self.active_epoch(epoch) {
                    active.keep_end(calendar, *end);
                }
                Input::Ended {
                    epoch: Epoch(epoch),
                    device,
                    generation: Generation(generation),
                    end: how,
                }
            }
            // Only agents are interested.
            #[cfg(hosts)]
            WorkerEvent::Began { .. } => return,
            WorkerEvent::StandbyGone => {
                // Nothing is lost by it, unless a worker is lost before another process stands by.
                if self.active.is_some() {
                    self.start_standbys();
                }
                return;
            }
            #[cfg(hosts)]
            WorkerEvent::HostGone { host, why } => self.host_gone(host, &why),
            #[cfg(hosts)]
            WorkerEvent::HostBack { host, link } => {
                for device in self.manager.pool.take_host_back(host, *link) {
                    self.send_input(Input::Request(Request::Restart(device)));
                }
                return;
            }
            // It is looked after whenever time passes.
            #[cfg(hosts)]
            WorkerEvent::Council => return,
            WorkerEvent::Panicked(panic) => {
                // A bug of the program, not of a device: nobody else is to wait for this worker.
                self.manager.control.abort();
                std::panic::resume_unwind(panic)
            }
        };
        self.send_input(input);
    }

    /// All workers of a host are lost at once. Others do its work, if there is a plan for that, until it comes back.
    #[cfg(hosts)]
    fn host_gone(&mut self, host: usize, why: &str) -> Input {
        let (name, devices) = self.manager.pool.lose_host(host);
        self.show_loss(&devices);
        let workers = devices.into_iter().filter_map(|device| {
            self.starting.remove(&device);
            let generation = *self.generations.get(&device)?;
            Some(GoneWorker { device, generation })
        });
        Input::HostGone {
            workers: workers.collect(),
            cause: Cause::Broken {
                text: format!("host {name} is gone: {why}"),
            },
        }
    }

    /// Lets whoever looks at the run see a loss, before anything is decided about it.
    fn show_loss(&self, devices: &[DeviceId]) {
        let hosts = self.manager.pool.host_list();
        let devices = devices.iter().copied();
        self.manager.control.note_loss(devices, hosts);
    }

    fn start_standbys(&mut self) {
        // As with workers: making a process can hang in the system.
        self.monitor.enter(Activity::ManagingWorkers);
        self.manager.pool.start_standbys();
    }

    /// The epoch at work, if it is the one of this number.
    fn active_epoch(&mut self, epoch: u64) -> Option<&mut ActiveEpoch> {
        let active = self.active.as_mut()?;
        (active.spec.epoch == epoch).then_some(active)
    }

    /// What the supervisor receives about how a worker's part of the epoch at work ended.
    fn supervisor_end(&self, outcome: &WorkerOutcome) -> End {
        match outcome {
            WorkerOutcome::Finished { blocks } => End::Finished { blocks: *blocks },
            WorkerOutcome::Stopped => End::Stopped,
            WorkerOutcome::Failed(report) => self.failure_end(report),
        }
    }

    fn failure_end(&self, report: &FaultReport) -> End {
        match (&report.fault, &report.transfer) {
            (WorkerFault::OutOfMemory(_), _) => End::OutOfMemory,
            (WorkerFault::Device(fault), _) if fault.fault.kind == FaultKind::Memory => {
                End::OutOfMemory
            }
            (WorkerFault::Device(fault), _) => End::Fault {
                text: fault.to_string(),
            },
            (WorkerFault::Corrupt { .. }, Some(transfer)) => End::Corrupt {
                from: self.physical_device(transfer.sender),
                text: report.run_error().to_string(),
            },
            _ => End::Fault {
                text: report.run_error().to_string(),
            },
        }
    }

    /// The device that has a role in the epoch at work.
    fn physical_device(&self, role: DeviceId) -> DeviceId {
        let Some(active) = &self.active else {
            return role;
        };
        let plan = &self.manager.loaded.program.plans[active.spec.plan];
        let calendar = plan
            .calendars
            .iter()
            .position(|calendar| calendar.device == role);
        let device = calendar.and_then(|calendar| active.spec.devices.get(calendar));
        device.copied().unwrap_or(role)
    }

    /// Does all that the supervisor asked for, and all that follows from it.
    fn perform_actions(&mut self) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                self.perform_action(action);
            }
        }
    }

    fn perform_action(&mut self, action: Action) {
        match action {
            Action::Spawn { device, generation } => {
                // From here on the self-watch counts: making a process can hang in the system.
                self.monitor.enter(Activity::ManagingWorkers);
                self.generations.insert(device, generation);
                self.starting.insert(device);
                self.manager.pool.spawn(device, generation.0);
            }
            Action::Kill { device, generation } => {
                self.monitor.enter(Activity::ManagingWorkers);
                self.manager.pool.kill(device, generation.0);
            }
            Action::Begin { epoch, lost } => {
                self.monitor.enter(Activity::BeginningEpoch);
                if !self.open_council_epoch(&lost) {
                    return;
                }
                // An epoch that cannot begin, for want of memory say, is an input like any other: fewer devices are tried.
                if let Err(error) = self.begin_epoch(epoch, &lost) {
                    let why = error.to_string();
                    self.send_input(Input::Refused { epoch, why });
                }
            }
            Action::Fence { epoch } => self.fence_epoch(epoch),
            Action::Quiesce { .. } => {
                // No further block is granted: the workers end at the same border.
                if self.active.is_some() {
                    self.manager.control.quiesce();
                }
            }
            Action::Complete {
                epoch,
                blocks,
                swap,
            } => self.complete_epoch(epoch, blocks, swap),
            Action::Stop(verdict) => self.verdict = Some(verdict),
            Action::Event(event) => self.announce_event(&event),
        }
    }

    fn announce_event(&mut self, event: &Event) {
        if let Some(tracer) = &mut self.manager.tracer {
            tracer.event(event);
        }
        self.outlet.event(event);
    }

    fn begin_epoch(&mut self, epoch: Epoch, lost: &[DeviceId]) -> Result<(), RunError> {
        let denies_memory = self.injector.as_mut().is_some_and(Injector::denies_memory);
        self.manager.deny_memory = denies_memory;

        let mut active = match self.first.take() {
            Some((first, without)) if lost == without && first.spec.epoch == epoch.0 => first,
            first => {
                // What was made in advance is of no use: nothing comes from its sinks.
                for queue in first.iter().flat_map(|(first, _)| &first.memory.sinks) {
                    queue.close();
                }
                self.manager.make_epoch(epoch.0, lost)?
            }
        };

        let worker_count = active.spec.devices.len();
        self.watchdogs = self.manager.pool.watchdogs(worker_count, self.lease_ns());
        self.expired_count = 0;
        self.looks_until_calm = LOOKS_AFTER_EXPIRY;
        self.manager.launch(&mut active, &self.watchdogs)?;

        self.times.begun_ns = self.clock.now_ns();
        self.active = Some(active);
        self.next_look_ns = self.clock.now_ns();
        Ok(())
    }

    fn fence_epoch(&mut self, epoch: Epoch) {
        self.monitor.enter(Activity::EndingEpoch);
        let Some(active) = self.active.take() else {
            return;
        };
        debug_assert_eq!(active.spec.epoch, epoch.0, "the epoch at work is fenced");

        self.times.lost_ns = self.clock.now_ns();
        let committed_blocks = self.manager.fence(&active);
        self.times.fenced_ns = self.clock.now_ns();
        self.send_input(Input::Fenced {
            epoch,
            committed_blocks,
        });
        if let Some(injector) = &mut self.injector {
            let now_ns = self.clock.now_ns();
            injector.committed(epoch.0, committed_blocks, now_ns);
            injector.fenced(now_ns);
        }
    }

    fn complete_epoch(&mut self, epoch: Epoch, blocks: u64, swap: bool) {
        self.monitor.enter(Activity::EndingEpoch);
        let Some(active) = self.active.take() else {
            return;
        };
        self.manager.complete(&active, blocks);
        self.propose_end();
        if let Some(injector) = &mut self.injector {
            injector.committed(epoch.0, blocks, self.clock.now_ns());
        }

        if swap {
            self.swap_program();
        }
        let lost = self.supervisor.unavailable_devices();
        if self.manager.apply_mode_change(&lost) {
            self.take_over_plans();
        }

        self.monitor.enter(Activity::AwaitingInput);
        let has_more = self.manager.advance_phase();
        self.monitor.enter(Activity::EndingEpoch);
        self.supervisor.plans_mut().phase = self.manager.phase;
        self.send_input(Input::Completed {
            epoch,
            more: has_more,
        });
    }

    /// From here on plans are those of the manager's present program.
    fn take_over_plans(&mut self) {
        self.supervisor.plans_mut().loaded = Arc::clone(&self.manager.loaded);
        self.step_tables.clear();
    }

    /// Whether another program is requested, which all hosts of the run have loaded, and those that could take over. Where one
    /// cannot, nothing changes, and whoever has asked for it is told.
    fn is_swap_ready(&self) -> bool {
        let mut requested = self.manager.control.requested_swap();
        let Some(swap) = &*requested else {
            return false;
        };
        let on_hosts = self.manager.pool.load_on_hosts(swap);
        let outcome = match (on_hosts, self.load_in_council(swap)) {
            (Some(Err(why)), _) | (_, Some(Err(why))) => Err(why),
            (Some(Ok(())), Some(Ok(()))) => Ok(()),
            _ => return false,
        };
        let is_loaded = outcome.is_ok();
        swap.settle(outcome);
        if !is_loaded {
            *requested = None;
            self.manager.pool.end_load();
        }
        is_loaded
    }

    /// Goes over to the program that was requested. Where sinks are ahead of the border, or another one has been requested meanwhile
    /// that not all hosts have loaded, the request stays for the next one.
    fn swap_program(&mut self) {
        self.is_swap_requested = false;
        if !self.manager.is_all_given_out_done() || !self.is_swap_ready() {
            return;
        }
        let requested_program = self.manager.control.requested_swap().take();
        if let Some(requested) = requested_program {
            self.manager.swap_program(&requested);
            self.take_over_plans();
            self.swap_in_council(&requested);
        }
    }

    /// How long a worker may make no progress before anybody looks.
    fn lease_ns(&self) -> u64 {
        self.supervisor.settings().detect.look_ns * LOOKS_PER_LEASE
    }

    /// Looks at the workers, and decides when to look again: soon, while one may hang; else when a watchdog expires.
    /// Every look disturbs the workers.
    fn watch_workers(&mut self, now_ns: u64) {
        let leases_ns = self.look_at_workers();
        self.looks_until_calm = self.looks_until_calm.saturating_sub(1);
        let pause_ns = match leases_ns {
            Some(leases_ns) if self.looks_until_calm == 0 && !self.watchdogs.is_empty() => {
                self.rearm_expired(&leases_ns);
                PACE_NS
            }
            Some(_) if self.looks_until_calm == 0 => self.lease_ns(),
            _ => self.supervisor.settings().detect.look_ns,
        };
        self.next_look_ns = now_ns + pause_ns;
    }

    fn rearm_expired(&mut self, leases_ns: &[u64]) {
        let watchdogs = self.watchdogs.watchdogs.iter_mut();
        let expired_watchdogs = watchdogs
            .zip(leases_ns)
            .filter(|(watchdog, _)| watchdog.has_expired);
        for (watchdog, lease_ns) in expired_watchdogs {
            watchdog.rearm(*lease_ns);
        }
        self.expired_count = 0;
    }

    /// Looks at every worker of the epoch, and reports to the supervisor. How long each may be left alone; `None` if one may
    /// hang.
    fn look_at_workers(&mut self) -> Option<Vec<u64>> {
        let look = self.collect_look()?;
        for input in look.inputs {
            self.send_input(input);
        }
        if self.times.lost_ns != 0
            && let Some(first_output_ns) = look.first_output_ns
        {
            self.announce_recovery(first_output_ns);
        }
        look.is_all_well.then_some(look.leases_ns)
    }

    fn collect_look(&mut self) -> Option<WorkerLook> {
        let active = self.active.as_ref()?;
        let spec = Arc::clone(&active.spec);
        let memory = Arc::clone(&active.memory);
        let loaded = &self.manager.loaded;
        self.step_tables
            .entry(spec.plan)
            .or_insert_with(|| step_tables(loaded, spec.plan, &memory));

        let now_ns = self.clock.now_ns();
        let worker_statuses = memory.statuses.iter().enumerate();
        let current_statuses = worker_statuses.filter(|(calendar, _)| {
            let device = spec.devices[*calendar];
            self.generations.contains_key(&device)
        });
        let output_times =
            current_statuses.map(|(_, status)| status.first_output_ns.load(Ordering::Relaxed));
        let mut look = WorkerLook {
            inputs: Vec::new(),
            leases_ns: vec![self.lease_ns(); memory.statuses.len()],
            is_all_well: true,
            first_output_ns: output_times.filter(|ns| *ns != 0).min(),
        };
        for (calendar, status) in memory.statuses.iter().enumerate() {
            self.look_at_worker(&mut look, now_ns, calendar, status);
        }
        Some(look)
    }

    /// Looks at the worker of one calendar.
    fn look_at_worker(
        &mut self,
        look: &mut WorkerLook,
        now_ns: u64,
        calendar: usize,
        status: &WorkerStatus,
    ) {
        let Some(active) = &self.active else { return };
        let device = active.spec.devices[calendar];
        let Some(&generation) = self.generations.get(&device) else {
            return;
        };
        let thread_number = status.thread.load(Ordering::Acquire);
        if active.has_ended(calendar) {
            look.leases_ns[calendar] = NEVER_NS;
            return;
        }
        if thread_number == 0 {
            return;
        }

        let periods_done = status.periods.load(Ordering::Acquire);
        let program_counter = status.pc.load(Ordering::Relaxed);
        let planned_step = self.step_tables[&active.spec.plan][calendar].step_at(program_counter);
        let epoch = Epoch(active.spec.epoch);
        // One number that grows with every step: the period, then the instruction in it.
        let step_number = periods_done << 32 | u64::from(program_counter);

        // Only a worker that may hang is worth asking the system about.
        let wants_thread =
            self.supervisor
                .wants_os(now_ns, device, step_number, planned_step.may_wait);
        let pool = &self.manager.pool;
        let thread_state = wants_thread
            .then(|| pool.thread_state(device, calendar, thread_number))
            .flatten();
        let is_stopped = thread_state.is_some_and(|thread_state| thread_state.os == Os::Stopped);
        look.is_all_well &= !is_stopped && (planned_step.may_wait || !wants_thread);
        if !planned_step.may_wait {
            look.leases_ns[calendar] = look.leases_ns[calendar].max(planned_step.planned_ns);
        }

        look.inputs.push(Input::Seen {
            epoch,
            device,
            generation,
            sample: Sample {
                step: step_number,
                periods: periods_done,
                planned_ns: planned_step.planned_ns,
                waiting: planned_step.may_wait,
                thread: thread_state,
            },
        });
    }

    /// The first new output of an epoch that follows a loss is there.
    fn announce_recovery(&mut self, first_output_ns: u64) {
        let Some(active) = &self.active else { return };
        let epoch = Epoch(active.spec.epoch);
        let recovery_times = std::mem::take(&mut self.times);
        self.announce_event(&Event {
            at_ns: first_output_ns,
            what: What::Recovered {
                epoch,
                fence_ns: recovery_times.fenced_ns - recovery_times.lost_ns,
                restore_ns: recovery_times
                    .begun_ns
                    .saturating_sub(recovery_times.fenced_ns),
                replay_ns: first_output_ns.saturating_sub(recovery_times.begun_ns),
            },
        });
    }

    /// A process that was stopped by a signal before it was ready would be waited for as long as a start may take.
    fn end_stopped_starters(&self) {
        for &device in &self.starting {
            self.manager.pool.end_if_stopped(device);
        }
    }

    /// Gives the state at the last committed border away, if it is time and there is a new one.
    fn give_state(&mut self, now_ns: u64) {
        let Some(states) = &self.states else {
            return;
        };
        if self.next_state_ns > now_ns {
            return;
        }
        self.next_state_ns = now_ns + states.every_ns;
        if !(states.is_wanted)() {
            return;
        }

        let Some(active) = &self.active else { return };
        let manager = &self.manager;
        let last_iterations = &mut self.last_state_iterations;
        self.outlet.state(|| {
            let committed_state = manager.committed_state(active);
            let iterations = committed_state.state.iterations;
            let is_new = iterations > *last_iterations;
            *last_iterations = iterations.max(*last_iterations);
            is_new.then_some(committed_state)
        });
    }

    fn due_fault(&mut self, now_ns: u64) -> Option<DueFault> {
        let injector = self.injector.as_mut()?;
        if let Some(active) = &self.active {
            let blocks = active.memory.common.committed.border();
            injector.committed(active.spec.epoch, blocks, now_ns);
        }
        injector.due(now_ns)
    }

    fn inject(&mut self, fault: DueFault) {
        let devices: Vec<DeviceId> = match &self.active {
            Some(active) => active.spec.devices.clone(),
            None => self.generations.keys().copied().collect(),
        };
        let Some(injected) = fault.choose_targets(&devices) else {
            return;
        };
        let at_ns = self.clock.now_ns();
        self.announce_event(&Event {
            at_ns,
            what: What::Injected {
                kind: injected.kind.to_string(),
                devices: injected.devices.clone(),
            },
        });
        injection::inject_fault(&injected, &self.manager.pool, self.active.as_ref());
    }
}

/// Without a council there is nothing to do about it.
#[cfg(not(hosts))]
impl SupervisedRun<'_> {
    fn next_council_ns(&self) -> Option<u64> {
        None
    }

    fn open_council_epoch(&mut self, _: &[DeviceId]) -> bool {
        true
    }

    fn follow_council(&mut self) {}

    fn propose_end(&mut self) {}

    fn load_in_council(
        &self,
        _: &crate::run::control::RequestedSwap,
    ) -> Option<Result<(), String>> {
        Some(Ok(()))
    }

    fn swap_in_council(&mut self, _: &crate::run::control::RequestedSwap) {}

    fn settle_council(&mut self, _: bool) -> Result<(), RunError> {
        Ok(())
    }

    fn end_by_council(&mut self, _: String) -> RunError {
        RunError::Abandoned
    }
}
