//! An agent's part of one run: the epochs that the conductor has it begin, their workers, and what the conductor is told of
//! them.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering as FlagOrdering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use zbmd_ir::DeviceId;
use zbmd_wire::connection::SharedConnection;

use super::agent_epoch::{AgentEpoch, check_spec};
use super::agent_seat::Obedience;
use super::agent_workers::{AgentWorkers, WorkerNews};
use super::bundle_parts::{BundleParts, BundleShelf};
use super::message::{self, Order, Report, WorkerNumber};
use super::run_programs::{RunProgram, RunPrograms};
use super::seat::Mandate;
use crate::fault::WorkerOutcome;
use crate::run::event::WorkerExit;
use crate::transport::clock::Clock;
use crate::transport::epoch::Area;
use crate::worker::gpu::OpenGpus;
use crate::worker::host;
use crate::worker::job::{HostOptions, WorkerEnd, WorkerJob};
use crate::worker::wired::{Network, Wiring};

/// How often the conductor is told what has changed.
const TICK: Duration = Duration::from_millis(1);
/// How often it is looked whether it is still to be obeyed, when there is no epoch.
const IDLE_TICK: Duration = Duration::from_millis(20);

/// What a run is to an agent, once its first bundle is loaded.
pub(super) struct RunTerms {
    /// Where the conductor is told everything.
    pub connection: Arc<SharedConnection>,
    pub programs: RunPrograms,
    pub options: HostOptions,
    pub network: Arc<Network>,
    /// Workers that are processes, if any are.
    pub workers: Option<AgentWorkers>,
    /// The GPUs that threads of this process drive.
    pub gpus: Arc<OpenGpus>,
    pub obedience: Arc<Obedience>,
    /// The council in whose name the run is conducted.
    pub council: Option<u64>,
    /// Where other agents get the bundle.
    pub shelf: Arc<BundleShelf>,
    /// Epochs that were begun for the conductor.
    pub begun_epochs: Arc<AtomicU64>,
}

/// What an agent has of a run.
pub(super) struct AgentRun {
    terms: RunTerms,
    /// Whoever sends a message.
    sending: Mutex<()>,
    is_over: AtomicBool,
    present: Mutex<Option<Arc<AgentEpoch>>>,
    /// There is an epoch at work now.
    has_begun: Condvar,
    /// The council's word for the epoch at work.
    mandate: Mutex<Option<Mandate>>,
    /// Why this agent obeys the conductor no more.
    objection: OnceLock<String>,
}

impl AgentRun {
    pub(super) fn new(terms: RunTerms) -> Self {
        Self {
            terms,
            sending: Mutex::default(),
            is_over: AtomicBool::new(false),
            present: Mutex::new(None),
            has_begun: Condvar::new(),
            mandate: Mutex::default(),
            objection: OnceLock::new(),
        }
    }

    /// Does what the conductor says and reports to it, until it goes, or is to be obeyed no more.
    pub(super) fn serve(self: &Arc<Self>) -> io::Result<()> {
        let reporting = self.start("zbmd reports", Self::report_changes)?;
        let telling = match &self.terms.workers {
            Some(_) => Some(self.start("zbmd workers", Self::tell_of_workers)?),
            None => None,
        };

        let result = self.obey(&self.terms.connection);
        self.stop_epoch(u64::MAX);
        self.terms.connection.shutdown();
        self.is_over.store(true, FlagOrdering::Release);
        if let Some(workers) = &self.terms.workers {
            workers.end();
        }
        for thread in [Some(reporting), telling].into_iter().flatten() {
            let _ = thread.join();
        }
        match self.objection.get() {
            Some(why) => Err(io::Error::other(why.clone())),
            None => result,
        }
    }

    /// Starts a thread that tells the conductor something.
    fn start(self: &Arc<Self>, name: &str, tell: fn(&Self)) -> io::Result<JoinHandle<()>> {
        let teller = Arc::clone(self);
        let builder = std::thread::Builder::new().name(name.to_owned());
        builder.spawn(move || {
            teller.terms.options.enter_as_supervisor();
            tell(&teller);
        })
    }

    fn present(&self) -> MutexGuard<'_, Option<Arc<AgentEpoch>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, report: &Report) -> io::Result<()> {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        message::send(&*self.terms.connection, report)
    }

    /// The epoch of this number, if it is at work.
    fn epoch(&self, epoch: u64) -> Option<Arc<AgentEpoch>> {
        self.present()
            .clone()
            .filter(|present| present.spec.epoch == epoch)
    }

    /// Does what the conductor says, until it goes.
    fn obey(self: &Arc<Self>, orders: &SharedConnection) -> io::Result<()> {
        loop {
            let order = match message::receive::<Order>(orders) {
                Ok(order) => order,
                // The ordinary end of a run.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            };
            match order {
                Order::Open(_) => return Err(io::Error::other("a second beginning of one run")),
                Order::Load { bundle, from } => {
                    self.load(bundle, from).map_err(io::Error::other)?
                }
                Order::Spawn(worker) => self.spawn(worker).map_err(io::Error::other)?,
                Order::Kill(worker) => {
                    if let Some(workers) = &self.terms.workers {
                        workers.kill(worker);
                    }
                }
                Order::Admit {
                    epoch,
                    blocks,
                    is_final,
                } => {
                    if let Some(present) = self.epoch(epoch) {
                        for decisions in &present.session_memory.sources {
                            decisions.count_written(blocks);
                            if is_final {
                                decisions.close();
                            }
                        }
                    }
                }
                Order::Change {
                    epoch,
                    decision,
                    values,
                } => {
                    if let Some(present) = self.epoch(epoch) {
                        let changed = present.change(decision, values);
                        changed.map_err(io::Error::other)?;
                    }
                }
                Order::Clock { here_ns } => self.report(&Report::Clock {
                    asked_ns: here_ns,
                    there_ns: Clock.now_ns(),
                })?,
                Order::Commit { epoch, border } => {
                    if let Some(present) = self.epoch(epoch)
                        && present.memory.common.committed.advance(border)
                    {
                        present.memory.common.commits.notify();
                    }
                }
                Order::Stop { epoch } => self.stop_epoch(epoch),
                begin @ Order::Begin { .. } => self.begin(begin).map_err(io::Error::other)?,
            }
        }
    }

    /// The processes of workers, if that of a device is one.
    fn workers_for(&self, device: DeviceId) -> Option<&AgentWorkers> {
        let workers = self.terms.workers.as_ref();
        workers.filter(|workers| workers.are_for(device))
    }

    /// Starts the process of a device's worker, or opens its GPU; the conductor is told what comes of it.
    fn spawn(self: &Arc<Self>, worker: WorkerNumber) -> Result<(), String> {
        let modes = self.terms.programs.modes();
        let machine = &modes.first().program.machine;
        if machine.devices.get(worker.device).is_none() {
            return Err(format!(
                "a worker of device {}, which the bundle does not have: both hosts must run the same bundle",
                worker.device.0
            ));
        }
        if let Some(workers) = self.workers_for(worker.device) {
            workers.spawn(worker);
            return Ok(());
        }

        let agent = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("zbmd opens".to_owned())
            .spawn(move || {
                let report = agent.open_gpu(worker);
                // A conductor that is gone needs no report.
                let _ = agent.report(&report);
            });
        started.map(drop).map_err(|error| error.to_string())
    }

    /// Opens a GPU and makes its kernels, which may take seconds.
    fn open_gpu(&self, worker: WorkerNumber) -> Report {
        let modes = self.terms.programs.modes();
        let opened = modes.iter().try_for_each(|loaded| {
            let described = &loaded.program.machine.devices[worker.device];
            match described.backend.is_gpu() {
                true => self.terms.gpus.probe(loaded, described),
                false => Ok(()),
            }
        });
        match opened {
            Ok(()) => Report::Ready { worker, port: None },
            Err(fault) => Report::Gone {
                worker,
                exit: WorkerExit::NoDevice(fault),
            },
        }
    }

    /// Loads another program, on a thread of its own; the conductor is told what comes of it.
    fn load(self: &Arc<Self>, parts: BundleParts, from: Vec<SocketAddr>) -> Result<(), String> {
        self.terms.programs.want(parts.number());
        let agent = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("zbmd loads".to_owned())
            .spawn(move || {
                let outcome = agent.terms.programs.load(&parts, &from);
                let report = Report::Loaded {
                    bundle: parts.number(),
                    outcome: outcome.map_err(|error| error.to_string()),
                };
                // A conductor that is gone needs no report.
                let _ = agent.report(&report);
            });
        started.map(drop).map_err(|error| error.to_string())
    }

    /// The program at the end, and the parts of its bundle.
    pub(super) fn last_program(&self) -> RunProgram {
        self.terms.programs.present()
    }

    /// Tells the conductor what becomes of workers that are processes, until the run is over.
    fn tell_of_workers(&self) {
        let Some(workers) = &self.terms.workers else {
            return;
        };
        workers.tell_news(|news| match news {
            WorkerNews::Report(report) => self.report(&report),
            WorkerNews::Ended {
                epoch,
                calendar,
                end,
            } => self.report_end(&epoch, calendar, end),
        });
    }

    /// Ends the epoch at work, if it is this one or an earlier one.
    fn stop_epoch(&self, epoch: u64) {
        let mut present = self.present();
        let Some(stopped) = present.take_if(|present| present.spec.epoch <= epoch) else {
            return;
        };
        drop(present);
        stopped.memory.stop();
        let arrivals = &stopped.session_memory.arrivals;
        arrivals.of_epoch(stopped.spec.epoch).notify();
    }

    /// Begins an epoch, each calendar of this host on a thread or in a process of its own.
    fn begin(self: &Arc<Self>, order: Order) -> Result<(), String> {
        let Order::Begin {
            spec,
            bundle,
            start,
            calendars,
            places,
            mandate,
        } = order
        else {
            return Ok(());
        };
        self.stop_epoch(u64::MAX);
        // Whoever was to have the bundle passed on has it.
        self.terms.shelf.clear_memory();
        self.terms.obedience.accept(self.terms.council, mandate)?;
        *self.mandate.lock().unwrap_or_else(PoisonError::into_inner) = mandate;
        let has_changed = self.terms.programs.enter(bundle)?;
        let modes = self.terms.programs.modes();
        if let Some(workers) = self.terms.workers.as_ref().filter(|_| has_changed) {
            workers.swap_program(&modes);
        }
        let loaded = modes
            .get(spec.mode)
            .ok_or("a mode that the bundle does not have")?;
        let plan = loaded.program.plans.get(spec.plan);
        let plan = plan.ok_or("a plan that the bundle does not have")?;
        check_spec(loaded, plan, &spec, &start)?;
        let calendar_count = plan.calendars.len();
        let mut own_calendars = calendars.iter();
        if !places.are_for(calendar_count)
            || own_calendars.any(|calendar| *calendar as usize >= calendar_count)
        {
            return Err(format!(
                "an epoch of {} calendars on {} hosts, its plan has {calendar_count}: both hosts must run the same bundle",
                places.hosts.len(),
                places.names.len(),
            ));
        }

        let network = &self.terms.network;
        network
            .switchboard
            .begin(network.run, spec.epoch, Some(places.plan));
        let epoch = Arc::new(AgentEpoch::create(loaded, *spec, start, &calendars)?);
        *self.present() = Some(Arc::clone(&epoch));
        self.has_begun.notify_all();
        self.terms.begun_epochs.fetch_add(1, FlagOrdering::Relaxed);
        let wiring = Arc::new(Wiring {
            network: Arc::clone(network),
            places: *places,
        });
        for calendar in calendars {
            let calendar = calendar as usize;
            match self.workers_for(epoch.spec.devices[calendar]) {
                Some(workers) => workers.begin(&epoch, calendar, &wiring.places),
                None => self.start_worker(&epoch, calendar, &wiring)?,
            }
        }
        if let Some(workers) = &self.terms.workers {
            workers.start_standbys();
        }
        Ok(())
    }

    fn start_worker(
        self: &Arc<Self>,
        epoch: &Arc<AgentEpoch>,
        calendar: usize,
        wiring: &Arc<Wiring>,
    ) -> Result<(), String> {
        let job = WorkerJob {
            spec: Arc::clone(&epoch.spec),
            calendar,
            session_memory: Arc::clone(&epoch.session_memory),
            epoch: Arc::clone(&epoch.memory),
            options: self.terms.options,
            gpus: Arc::clone(&self.terms.gpus),
            wiring: Some(Arc::clone(wiring)),
        };
        let (agent, epoch) = (Arc::clone(self), Arc::clone(epoch));
        let started = std::thread::Builder::new()
            .name(format!("zbmd calendar {calendar}"))
            .spawn(move || {
                let end = match host::prepare(&epoch.loaded, job) {
                    Ok(prepared) => {
                        epoch.set_waits(calendar, prepared.waits());
                        prepared.run(&epoch.loaded, None)
                    }
                    Err(fault) => WorkerEnd::before_start(fault),
                };
                // A conductor that is gone needs no report.
                let _ = agent.report_end(&epoch, calendar, Box::new(end));
            });
        started.map(drop).map_err(|error| error.to_string())
    }

    fn report_end(
        &self,
        epoch: &AgentEpoch,
        calendar: usize,
        end: Box<WorkerEnd>,
    ) -> io::Result<()> {
        // What it has recorded is complete now.
        epoch.tell_recorded(calendar, |report| self.report(&report))?;
        let mut tokens = Vec::new();
        if matches!(end.outcome, WorkerOutcome::Finished { .. }) {
            tokens = epoch.tokens(calendar, Area::End);
        }
        self.report(&Report::Ended {
            epoch: epoch.spec.epoch,
            calendar: calendar as u32,
            end,
            tokens,
        })
    }

    /// Ends the connection to a conductor that is to be obeyed no more; whether it is.
    fn refuse_to_obey(&self) -> bool {
        let mandate = *self.mandate.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(why) = self.terms.obedience.objection(mandate) else {
            return false;
        };
        // Before the connection's end is seen.
        let _ = self.objection.set(why);
        self.terms.connection.shutdown();
        true
    }

    /// Tells the conductor what changes, until the run is over.
    fn report_changes(&self) {
        while !self.is_over.load(FlagOrdering::Acquire) && !self.refuse_to_obey() {
            let present = self.present().clone();
            if let Some(epoch) = present {
                let told = epoch.tell_news(|report| self.report(&report));
                if told.is_err() {
                    return;
                }
            }
            self.pause();
        }
    }

    /// Waits for a tick, or for an epoch where there is none.
    fn pause(&self) {
        let present = self.present();
        if present.is_none() {
            let _ = self.has_begun.wait_timeout(present, IDLE_TICK);
            return;
        }
        drop(present);
        std::thread::sleep(TICK);
    }
}
