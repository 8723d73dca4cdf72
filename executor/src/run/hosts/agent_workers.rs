//! Workers of an agent's host that are processes of their own: starts and ends them as the conductor says, and tells it what
//! becomes of them. Decides nothing.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zbmd_ir::DeviceId;

use super::agent_epoch::AgentEpoch;
use super::message::{ProcessTerms, Report, WorkerNumber};
use super::network_terms::NetworkTerms;
use crate::options::Isolation;
use crate::program::LoadedModes;
use crate::run::event::{WorkerEvent, WorkerExit};
use crate::run::inbox::{EventInbox, EventSender, event_channel};
use crate::run::process::{EpochPart, WorkerProcess};
use crate::run::process_pool::{LaunchContext, ProcessPool};
use crate::transport::clock::Clock;
use crate::transport::session_memory::SessionMemory;
use crate::transport::watchdog::EpochWatchdogs;
use crate::worker::job::{HostOptions, WorkerEnd};
use crate::worker::wired::WorkerPlaces;

/// How often it is looked for requests that processes have not taken.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// The same when there are none.
const IDLE_PAUSE: Duration = Duration::from_millis(20);
/// How often it is looked whether processes were stopped before they were ready, for each of them: a look takes some microseconds,
/// which those that start need.
const START_LOOK_PAUSE: Duration = Duration::from_millis(5);
/// Processes that the system has not cleared away after so long are left to it.
const END_LIMIT: Duration = Duration::from_secs(2);

/// The worker processes of a run on this host.
pub(super) struct AgentWorkers {
    modes: Mutex<Arc<LoadedModes>>,
    terms: ProcessTerms,
    options: HostOptions,
    /// Without queues: an agent's host has no sources.
    session_memory: SessionMemory,
    events: EventSender<WorkerEvent>,
    inbox: Mutex<EventInbox<WorkerEvent>>,
    state: Mutex<State>,
    is_over: AtomicBool,
}

struct State {
    pool: ProcessPool,
    members: BTreeMap<DeviceId, Member>,
    /// Threads that listen to processes, and end with them.
    listeners: Vec<(DeviceId, JoinHandle<()>)>,
    /// When processes that stand by are to be started again, where one of them could not be.
    next_standby_ns: Option<u64>,
    /// When it is looked next for processes that were stopped before they were ready.
    next_start_look_ns: u64,
}

struct Member {
    generation: u32,
    process: WorkerProcess,
    is_ready: bool,
    /// Its part of an epoch, from its beginning until it has ended.
    part: Option<(usize, Arc<AgentEpoch>)>,
}

/// What the conductor is to be told.
pub(super) enum WorkerNews {
    Report(Report),
    /// A part of an epoch is over.
    Ended {
        epoch: Arc<AgentEpoch>,
        calendar: usize,
        end: Box<WorkerEnd>,
    },
}

impl AgentWorkers {
    /// No worker runs yet.
    pub(super) fn new(
        modes: Arc<LoadedModes>,
        options: HostOptions,
        network: NetworkTerms,
        terms: ProcessTerms,
    ) -> Result<Self, String> {
        let (events, inbox) = event_channel();
        let isolation = Isolation::Processes { program: None };
        let mut pool = ProcessPool::new(Vec::new(), &isolation, terms.has_standbys);
        pool.join_network(network);
        Ok(Self {
            modes: Mutex::new(modes),
            terms,
            options,
            session_memory: SessionMemory::create(&Vec::new())
                .map_err(|error| error.to_string())?,
            events,
            inbox: Mutex::new(inbox),
            state: Mutex::new(State {
                pool,
                members: BTreeMap::new(),
                listeners: Vec::new(),
                next_standby_ns: None,
                next_start_look_ns: 0,
            }),
            is_over: AtomicBool::new(false),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn modes(&self) -> Arc<LoadedModes> {
        let modes = self.modes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&modes)
    }

    fn context<'a>(&'a self, modes: &'a Arc<LoadedModes>) -> LaunchContext<'a> {
        LaunchContext {
            modes,
            session_memory: &self.session_memory,
            options: self.options,
            events: &self.events,
        }
    }

    /// Whether the worker of a device is a process.
    pub(super) fn are_for(&self, device: DeviceId) -> bool {
        self.terms.are_for(self.modes().first(), device)
    }

    /// Lets all processes load another program. They do that before they begin their next epoch.
    pub(super) fn swap_program(&self, to: &Arc<LoadedModes>) {
        let mut state = self.state();
        *self.modes.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(to);
        let State { pool, members, .. } = &mut *state;
        let running = members.iter_mut();
        let running = running.map(|(device, member)| (*device, &mut member.process));
        pool.swap_program(&self.context(to), running.collect());
    }

    /// Starts the worker of a device. News of it follow: that it is ready, or gone.
    pub(super) fn spawn(&self, worker: WorkerNumber) {
        let WorkerNumber { device, generation } = worker;
        let mut state = self.state();
        let State {
            pool, listeners, ..
        } = &mut *state;
        listeners.retain(|(_, thread)| !thread.is_finished());
        let modes = self.modes();
        match pool.take_or_start(&self.context(&modes), listeners, device, generation) {
            Ok(process) => {
                let member = Member {
                    generation,
                    process,
                    is_ready: false,
                    part: None,
                };
                state.members.insert(device, member);
            }
            Err(error) => self.events.send(WorkerEvent::Gone {
                device,
                generation,
                exit: WorkerExit::Unfit(error.to_string()),
            }),
        }
    }

    /// Ends the process of a worker; that it is gone is news like any other.
    pub(super) fn kill(&self, worker: WorkerNumber) {
        let mut state = self.state();
        let State { pool, members, .. } = &mut *state;
        let member = members.get(&worker.device);
        if let Some(member) = member.filter(|member| member.generation == worker.generation) {
            pool.kill(&member.process);
        }
    }

    /// Lets the worker of a calendar's device begin its part of an epoch.
    pub(super) fn begin(&self, epoch: &Arc<AgentEpoch>, calendar: usize, places: &WorkerPlaces) {
        let mut state = self.state();
        let device = epoch.spec.devices[calendar];
        // One that is not there is known to be gone, or soon will be.
        let Some(member) = state.members.get_mut(&device) else {
            return;
        };
        member.part = Some((calendar, Arc::clone(epoch)));
        if let Some(process) = member.process.lifetime().process() {
            epoch.set_process(calendar, process);
        }
        let begun = member.process.begin(&EpochPart {
            spec: &epoch.spec,
            calendar,
            epoch: &epoch.memory,
            watchdogs: &EpochWatchdogs::none(),
            places: Some(places),
            decisions: Some(&epoch.session_memory),
        });
        if let Err(error) = begun {
            member.process.lifetime().end(Some(&error.to_string()));
        }
    }

    /// Makes sure that a process stands by for each worker, if any are to.
    pub(super) fn start_standbys(&self) {
        let mut state = self.state();
        let devices: Vec<DeviceId> = state.members.keys().copied().collect();
        let State {
            pool, listeners, ..
        } = &mut *state;
        let modes = self.modes();
        let wait_ns = pool.start_standbys(&self.context(&modes), listeners, &devices);
        state.next_standby_ns = wait_ns.map(|wait_ns| Clock.now_ns() + wait_ns);
    }

    /// Tells what becomes of the workers, until `tell` fails or [`Self::end`] has been called.
    pub(super) fn tell_news(&self, mut tell: impl FnMut(WorkerNews) -> io::Result<()>) {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_over.load(Ordering::Acquire) {
            let pause = self.attend();
            let event = inbox.next(Some(pause), &mut []);
            if let Some(news) = event.and_then(|event| self.take_in(event))
                && tell(news).is_err()
            {
                return;
            }
        }
    }

    /// Does what is to be done again and again; after so long it is to be done again.
    fn attend(&self) -> Duration {
        let mut state = self.state();
        let State { pool, members, .. } = &mut *state;
        let is_pending = pool.flush(members.values_mut().map(|member| &mut member.process));
        let now_ns = Clock.now_ns();
        if state.next_start_look_ns <= now_ns {
            let starters = state.end_stopped_starters();
            let pause = IDLE_PAUSE.max(START_LOOK_PAUSE * starters);
            state.next_start_look_ns = now_ns + pause.as_nanos() as u64;
        }
        let are_standbys_due = state.next_standby_ns.is_some_and(|at_ns| at_ns <= now_ns);
        drop(state);

        if are_standbys_due {
            self.start_standbys();
        }
        match is_pending {
            true => LOOK_PAUSE,
            false => IDLE_PAUSE,
        }
    }

    /// What an event is to the conductor.
    fn take_in(&self, event: WorkerEvent) -> Option<WorkerNews> {
        let mut state = self.state();
        match event {
            WorkerEvent::Ready {
                device,
                generation,
                port,
            } => {
                let worker = WorkerNumber { device, generation };
                if let Some(member) = state.member(worker) {
                    member.is_ready = true;
                }
                Some(WorkerNews::Report(Report::Ready { worker, port }))
            }
            WorkerEvent::Began {
                device,
                generation,
                epoch: number,
                waits,
            } => {
                let member = state.member(WorkerNumber { device, generation });
                let part = member.and_then(|member| member.part.as_ref());
                if let Some((calendar, epoch)) = part
                    && epoch.spec.epoch == number
                {
                    epoch.set_waits(*calendar, waits);
                }
                None
            }
            WorkerEvent::Ended {
                device,
                generation,
                epoch: number,
                calendar,
                end,
            } => {
                let member = state.member(WorkerNumber { device, generation });
                let is_it = |(of, epoch): &mut (usize, Arc<AgentEpoch>)| {
                    *of == calendar && epoch.spec.epoch == number
                };
                let part = member.and_then(|member| member.part.take_if(is_it));
                part.map(|(calendar, epoch)| WorkerNews::Ended {
                    epoch,
                    calendar,
                    end,
                })
            }
            WorkerEvent::Gone {
                device,
                generation,
                exit,
            } => {
                let worker = WorkerNumber { device, generation };
                if state.member(worker).is_some() {
                    state.members.remove(&device);
                }
                Some(WorkerNews::Report(Report::Gone { worker, exit }))
            }
            WorkerEvent::StandbyGone => {
                drop(state);
                self.start_standbys();
                None
            }
            // Nothing that processes do.
            WorkerEvent::HostGone { .. }
            | WorkerEvent::HostBack { .. }
            | WorkerEvent::Council
            | WorkerEvent::Panicked(_) => None,
        }
    }

    /// Ends all processes, and waits until they are gone.
    pub(super) fn end(&self) {
        let mut state = self.state();
        let State { pool, members, .. } = &mut *state;
        pool.end_idle();
        for member in members.values() {
            pool.kill(&member.process);
        }
        let listeners = std::mem::take(&mut state.listeners);
        drop(state);

        let deadline = Instant::now() + END_LIMIT;
        let is_running = |(_, thread): &(DeviceId, JoinHandle<()>)| !thread.is_finished();
        while listeners.iter().any(is_running) && Instant::now() < deadline {
            self.state().pool.end_launches();
            std::thread::sleep(LOOK_PAUSE);
        }
        self.is_over.store(true, Ordering::Release);
    }
}

impl State {
    /// Ends processes that a signal stopped before they were ready; how many are not ready.
    fn end_stopped_starters(&self) -> u32 {
        let mut starters = 0;
        for member in self.members.values().filter(|member| !member.is_ready) {
            starters += 1;
            let lifetime = member.process.lifetime();
            if lifetime.is_stopped() {
                lifetime.end(Some("a signal stopped it before it was ready"));
            }
        }
        starters
    }

    fn member(&mut self, worker: WorkerNumber) -> Option<&mut Member> {
        let member = self.members.get_mut(&worker.device);
        member.filter(|member| member.generation == worker.generation)
    }
}
