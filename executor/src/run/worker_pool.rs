//! The workers of a session: threads of this process, or processes. Starts them, gives them their parts of epochs, and
//! hands on what they report. Decides nothing.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use zbmd_ir::{DeviceId, PlanId};

use super::control::RequestedSwap;
use super::event::{WorkerEvent, WorkerExit};
#[cfg(hosts)]
use super::hosts::conductor::HostSet;
#[cfg(hosts)]
use super::hosts::conductor_seat::ConductorSeat;
#[cfg(hosts)]
use super::hosts::holders::HolderProgram;
#[cfg(hosts)]
use super::hosts::link::HostLink;
use super::inbox::{EventInbox, EventSender, event_channel};
#[cfg(target_os = "linux")]
use super::process::{EpochPart, WorkerProcess};
#[cfg(target_os = "linux")]
use super::process_pool::{LaunchContext, ProcessPool};
use super::system;
use crate::error::EngineError;
use crate::observe::live::HostProgress;
use crate::options::Isolation;
#[cfg(hosts)]
use crate::options::RunOptions;
use crate::program::{LoadedModes, LoadedProgram};
use crate::supervise::Thread;
use crate::transport::clock::Clock;
use crate::transport::epoch::EpochMemory;
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::session_memory::{Queues, SessionMemory};
use crate::transport::watchdog::{EpochWatchdogs, Watchdog};
use crate::worker::gpu::OpenGpus;
use crate::worker::host;
use crate::worker::job::{HostOptions, WorkerJob};
use crate::worker::prepared::PreparedWorker;
#[cfg(hosts)]
use crate::worker::wired::Wiring;

/// How often requests that a process has not taken are sent on.
const FLUSH_PAUSE: Duration = Duration::from_millis(2);
/// How often threads that are to end are looked at.
const DISMISS_PAUSE: Duration = Duration::from_millis(1);

/// A worker's part of an epoch, for its thread.
type ThreadJob = Box<dyn FnOnce() + Send>;

/// What a worker is, and how to reach it.
enum WorkerHandle {
    /// Where its thread takes what it is to do, once there is one. The thread ends with it.
    Thread(Option<Sender<ThreadJob>>),
    #[cfg(target_os = "linux")]
    Process(WorkerProcess),
    /// The agent of another host runs it.
    #[cfg(hosts)]
    Remote,
}

impl WorkerHandle {
    #[cfg(target_os = "linux")]
    fn process(&self) -> Option<&WorkerProcess> {
        match self {
            Self::Process(process) => Some(process),
            _ => None,
        }
    }

    #[cfg(target_os = "linux")]
    fn is_process(&self) -> bool {
        self.process().is_some()
    }

    #[cfg(not(target_os = "linux"))]
    fn is_process(&self) -> bool {
        false
    }
}

struct PoolMember {
    generation: u32,
    handle: WorkerHandle,
    /// Where its wires arrive, if not where those of all its host's threads do.
    port: Option<u16>,
}

impl PoolMember {
    fn new(generation: u32, handle: WorkerHandle) -> Self {
        Self {
            generation,
            handle,
            port: None,
        }
    }
}

/// All workers of a session.
pub(crate) struct WorkerPool {
    modes: Arc<LoadedModes>,
    /// The program of the present mode.
    loaded: Arc<LoadedProgram>,
    session_memory: Arc<SessionMemory>,
    options: HostOptions,
    isolation: Isolation,
    #[cfg(target_os = "linux")]
    processes: ProcessPool,
    /// When processes that stand by are to be started again, where one of them could not be.
    next_standby_ns: Option<u64>,
    /// The GPUs that threads of this process drive.
    gpus: Arc<OpenGpus>,
    members: BTreeMap<DeviceId, PoolMember>,
    /// Threads that will end by themselves: those of workers, once their members are gone, and listeners of processes.
    threads: Vec<(DeviceId, JoinHandle<()>)>,
    /// Threads of workers that were given up: they may never end.
    left_behind: Vec<JoinHandle<()>>,
    inbox: EventInbox<WorkerEvent>,
    events: EventSender<WorkerEvent>,
    /// The hosts of a run over several.
    #[cfg(hosts)]
    hosts: Option<HostSet>,
}

impl WorkerPool {
    /// No worker runs yet. With `has_standbys` a process stands by for each worker that is one.
    pub(crate) fn new(
        modes: Arc<LoadedModes>,
        session_memory: Arc<SessionMemory>,
        queues: Queues,
        options: HostOptions,
        isolation: Isolation,
        has_standbys: bool,
    ) -> Self {
        let (events, inbox) = event_channel();
        #[cfg(target_os = "linux")]
        let processes = ProcessPool::new(queues, &isolation, has_standbys);
        #[cfg(not(target_os = "linux"))]
        let _ = (queues, has_standbys);
        Self {
            loaded: Arc::clone(modes.first()),
            modes,
            session_memory,
            options,
            isolation,
            #[cfg(target_os = "linux")]
            processes,
            next_standby_ns: None,
            gpus: Arc::default(),
            members: BTreeMap::new(),
            threads: Vec::new(),
            left_behind: Vec::new(),
            inbox,
            events,
            #[cfg(hosts)]
            hosts: None,
        }
    }

    /// Connects to the agents of a run over several hosts.
    ///
    /// # Errors
    /// See [`HostSet::connect`].
    #[cfg(hosts)]
    pub(crate) fn connect_hosts(
        &mut self,
        options: &RunOptions,
        is_takeover: bool,
    ) -> Result<(), EngineError> {
        self.hosts = HostSet::connect(&self.modes, options, &self.events, is_takeover)?;
        if let Some(hosts) = &self.hosts {
            self.processes.join_network(hosts.network_terms());
        }
        Ok(())
    }

    /// Sends events as workers do.
    #[cfg(hosts)]
    pub(crate) fn event_sender(&self) -> EventSender<WorkerEvent> {
        self.events.clone()
    }

    /// The epochs that follow are conducted in this name.
    #[cfg(hosts)]
    pub(crate) fn set_mandate(&mut self, seat: &ConductorSeat) {
        if let Some(hosts) = &mut self.hosts {
            hosts.set_mandate(seat);
        }
    }

    /// Devices whose hosts are not there.
    pub(crate) fn lost_devices(&self) -> Vec<DeviceId> {
        #[cfg(hosts)]
        if let Some(hosts) = &self.hosts {
            return hosts.lost_devices();
        }
        Vec::new()
    }

    /// The hosts of a run over several, in order.
    pub(crate) fn host_list(&self) -> Vec<HostProgress> {
        #[cfg(hosts)]
        if let Some(hosts) = &self.hosts {
            return hosts.list();
        }
        Vec::new()
    }

    /// Whether the worker of a device is on another host.
    fn is_remote(&self, device: DeviceId) -> bool {
        #[cfg(hosts)]
        if let Some(hosts) = &self.hosts {
            return hosts.is_remote(device);
        }
        let _ = device;
        false
    }

    /// Makes sure that an epoch has its sources and sinks on this host, if there are several.
    ///
    /// # Errors
    /// One of them is on another host.
    pub(crate) fn check_streams(
        &self,
        plan: PlanId,
        devices: &[DeviceId],
    ) -> Result<(), EngineError> {
        #[cfg(hosts)]
        if let Some(hosts) = &self.hosts {
            return hosts.check_streams(&self.loaded, plan, devices);
        }
        let _ = (plan, devices);
        Ok(())
    }

    /// Gives up the workers of a host that is gone: what it is called, and its devices.
    #[cfg(hosts)]
    pub(crate) fn lose_host(&mut self, host: usize) -> (String, Vec<DeviceId>) {
        let Some(hosts) = &self.hosts else {
            return (String::new(), Vec::new());
        };
        hosts.look_for(host);
        let devices = hosts.devices_of(host);
        for device in &devices {
            self.members.remove(device);
        }
        (hosts.name(host).to_owned(), devices)
    }

    /// Takes a host back: its devices, whose workers can be started again.
    #[cfg(hosts)]
    pub(crate) fn take_host_back(&mut self, host: usize, link: HostLink) -> Vec<DeviceId> {
        let Some(hosts) = &mut self.hosts else {
            return Vec::new();
        };
        match hosts.take_back(host, link) {
            true => hosts.devices_of(host),
            false => Vec::new(),
        }
    }

    /// Starts the worker of a device. Events of it follow: that it is ready, or gone.
    pub(crate) fn spawn(&mut self, device: DeviceId, generation: u32) {
        if let Err(exit) = self.try_spawn(device, generation) {
            self.events.send(WorkerEvent::Gone {
                device,
                generation,
                exit,
            });
        }
    }

    /// Whether the worker of a device is a thread of this process.
    fn is_thread(&self, device: DeviceId) -> bool {
        if self.is_remote(device) {
            return false;
        }
        match &self.isolation {
            Isolation::Threads => true,
            Isolation::Processes { .. } => false,
            Isolation::GpuProcesses { .. } => !self.loaded.is_gpu(device),
        }
    }

    fn try_spawn(&mut self, device: DeviceId, generation: u32) -> Result<(), WorkerExit> {
        #[cfg(hosts)]
        if let Some(hosts) = self.hosts.as_ref().filter(|hosts| hosts.is_remote(device)) {
            if let Some(why) = hosts.loss_of(device) {
                return Err(WorkerExit::Unfit(why));
            }
            if !hosts.spawn(&self.loaded, device, generation) {
                // Its thread begins with its first part of an epoch.
                self.report_ready(device, generation);
            }
            let member = PoolMember::new(generation, WorkerHandle::Remote);
            self.members.insert(device, member);
            return Ok(());
        }
        let handle = if self.is_thread(device) {
            self.start_thread_worker(device, generation)?
        } else {
            let started_process = self.start_process_worker(device, generation);
            started_process.map_err(|error| WorkerExit::Unfit(error.to_string()))?
        };
        let member = PoolMember::new(generation, handle);
        self.members.insert(device, member);
        Ok(())
    }

    fn report_ready(&self, device: DeviceId, generation: u32) {
        self.events.send(WorkerEvent::Ready {
            device,
            generation,
            port: None,
        });
    }

    /// A worker that is a thread has none before its first part of an epoch. So it is ready at once, if its GPU is.
    fn start_thread_worker(
        &mut self,
        device: DeviceId,
        generation: u32,
    ) -> Result<WorkerHandle, WorkerExit> {
        if self.loaded.is_gpu(device) {
            let device_description = &self.loaded.program.machine.devices[device];
            for loaded in self.modes.iter() {
                self.gpus
                    .probe(loaded, device_description)
                    .map_err(WorkerExit::NoDevice)?;
            }
        }
        self.report_ready(device, generation);
        Ok(WorkerHandle::Thread(None))
    }

    #[cfg(target_os = "linux")]
    fn start_process_worker(
        &mut self,
        device: DeviceId,
        generation: u32,
    ) -> io::Result<WorkerHandle> {
        let context = LaunchContext {
            modes: &self.modes,
            session_memory: &self.session_memory,
            options: self.options,
            events: &self.events,
        };
        let listeners = &mut self.threads;
        let process = self
            .processes
            .take_or_start(&context, listeners, device, generation)?;
        Ok(WorkerHandle::Process(process))
    }

    #[cfg(not(target_os = "linux"))]
    fn start_process_worker(&mut self, _: DeviceId, _: u32) -> io::Result<WorkerHandle> {
        Err(io::Error::other(
            "workers in processes of their own need Linux; run them as threads",
        ))
    }

    /// The epochs that follow are of this mode. All workers have loaded it.
    pub(crate) fn enter_mode(&mut self, loaded: &Arc<LoadedProgram>) {
        self.loaded = Arc::clone(loaded);
    }

    /// Has the agents of other hosts, if there are any, load another program. What has come of it, once all of them have said it.
    pub(crate) fn load_on_hosts(&self, to: &RequestedSwap) -> Option<Result<(), String>> {
        #[cfg(hosts)]
        if let (Some(hosts), Some(offer)) = (&self.hosts, &to.offer) {
            return match hosts.check_program(to.modes.first()) {
                Ok(()) => hosts.load(offer),
                Err(error) => Some(Err(error.to_string())),
            };
        }
        let _ = to;
        Some(Ok(()))
    }

    /// A program that was to be loaded on the run's hosts takes nobody's place.
    pub(crate) fn end_load(&self) {
        #[cfg(hosts)]
        if let Some(hosts) = &self.hosts {
            hosts.shelve_present();
        }
    }

    /// The program at work, for those that could take the run over from this host.
    #[cfg(hosts)]
    pub(crate) fn holder_program(&self) -> Option<HolderProgram> {
        self.hosts.as_ref().map(HostSet::holder_program)
    }

    /// Lets all workers load another program. They do that before they begin their next epoch.
    pub(crate) fn swap_program(&mut self, to: &RequestedSwap) {
        let modes = &to.modes;
        #[cfg(hosts)]
        if let (Some(hosts), Some(offer)) = (&self.hosts, &to.offer) {
            hosts.swap_program(offer);
        }
        self.loaded = Arc::clone(modes.first());
        self.modes = Arc::clone(modes);
        #[cfg(target_os = "linux")]
        {
            let context = LaunchContext {
                modes: &self.modes,
                session_memory: &self.session_memory,
                options: self.options,
                events: &self.events,
            };
            let all_members = self.members.iter_mut();
            let running_processes =
                all_members.filter_map(|(device, member)| match &mut member.handle {
                    WorkerHandle::Process(process) => Some((*device, process)),
                    _ => None,
                });
            self.processes
                .swap_program(&context, running_processes.collect());
        }
    }

    /// Kills a worker's process; the exit is reported like any other. A thread cannot be killed: it is left behind, and
    /// reported to be gone.
    pub(crate) fn kill(&mut self, device: DeviceId, generation: u32) {
        let member = self.members.get(&device);
        if member.is_none_or(|member| member.generation != generation) {
            return;
        }
        let Some(member) = self.members.remove(&device) else {
            return;
        };

        match member.handle {
            WorkerHandle::Thread(_) => {
                // What it is in the middle of cannot count any more, and its memory lives as long as it.
                let worker_threads = self.threads.extract_if(.., |(of, _)| *of == device);
                self.left_behind
                    .extend(worker_threads.map(|(_, thread)| thread));
                self.events.send(WorkerEvent::Gone {
                    device,
                    generation,
                    exit: WorkerExit::Unfit("a thread that was left to itself".to_owned()),
                });
            }
            #[cfg(target_os = "linux")]
            WorkerHandle::Process(process) => self.processes.kill(&process),
            #[cfg(hosts)]
            WorkerHandle::Remote => {
                let hosts = self.hosts.as_ref();
                if !hosts.is_some_and(|hosts| hosts.kill(&self.loaded, device, generation)) {
                    let why = "a worker of another host that was left to itself";
                    self.events.send(WorkerEvent::Gone {
                        device,
                        generation,
                        exit: WorkerExit::Unfit(why.to_owned()),
                    });
                }
            }
        }
    }

    /// Whether there are workers in processes of their own.
    pub(crate) fn has_processes(&self) -> bool {
        self.members
            .values()
            .any(|member| member.handle.is_process())
    }

    /// What the system says of the thread with this number that runs a worker's calendar; `None` if there is no such worker, if
    /// its process does not run its program yet, and if the agent of its host has not said it since the last call.
    pub(crate) fn thread_state(
        &self,
        device: DeviceId,
        calendar: usize,
        thread: u32,
    ) -> Option<Thread> {
        let process = match &self.members.get(&device)?.handle {
            WorkerHandle::Thread(_) => std::process::id(),
            #[cfg(target_os = "linux")]
            WorkerHandle::Process(process) => process.lifetime().process()?,
            #[cfg(hosts)]
            WorkerHandle::Remote => return self.hosts.as_ref()?.take_thread(device, calendar),
        };
        let _ = calendar;
        system::thread_state(process, thread)
    }

    /// Ends the process of a worker that a signal stopped before it was ready, even before it ran its program. Its exit is
    /// reported like any other.
    pub(crate) fn end_if_stopped(&self, device: DeviceId) {
        #[cfg(target_os = "linux")]
        if let Some(process) = self.worker_process(device)
            && process.lifetime().is_stopped()
        {
            process
                .lifetime()
                .end(Some("a signal stopped it before it was ready"));
        }
        #[cfg(not(target_os = "linux"))]
        let _ = device;
    }

    /// The process of a worker, if the worker is one.
    #[cfg(target_os = "linux")]
    pub(super) fn worker_process(&self, device: DeviceId) -> Option<&WorkerProcess> {
        self.members.get(&device)?.handle.process()
    }

    /// How the workers of an epoch on this host reach those on others, if there are several hosts.
    #[cfg(hosts)]
    fn wiring(&self, spec: &EpochSpec) -> Option<Arc<Wiring>> {
        let hosts = self.hosts.as_ref()?;
        Some(hosts.wiring(spec, |device| self.port_of(device)))
    }

    /// Where the wires of a worker arrive, if not where those of its host's threads do.
    #[cfg(hosts)]
    fn port_of(&self, device: DeviceId) -> Option<u16> {
        self.members.get(&device)?.port
    }

    /// Makes the parts of an epoch that run in this process ready; those of processes make themselves ready.
    ///
    /// # Errors
    /// Too little memory, or a GPU that cannot be used.
    pub(crate) fn prepare(
        &self,
        spec: &Arc<EpochSpec>,
        epoch: &Arc<EpochMemory>,
    ) -> Result<Vec<Option<PreparedWorker>>, EngineError> {
        // Where processes have their wires arrive is known when the epoch begins.
        #[cfg(hosts)]
        let wiring = self.wiring(spec);
        let mut worker_parts = Vec::with_capacity(spec.devices.len());
        for (calendar, device) in spec.devices.iter().enumerate() {
            if !self.is_thread(*device) {
                worker_parts.push(None);
                continue;
            }
            let job = WorkerJob {
                spec: Arc::clone(spec),
                calendar,
                session_memory: Arc::clone(&self.session_memory),
                epoch: Arc::clone(epoch),
                options: self.options,
                gpus: Arc::clone(&self.gpus),
                #[cfg(hosts)]
                wiring: wiring.clone(),
            };
            worker_parts.push(Some(host::prepare(&self.loaded, job)?));
        }
        Ok(worker_parts)
    }

    /// Lets the workers of an epoch begin, each with its watchdog if there are any. Events follow of each.
    ///
    /// # Errors
    /// No thread; those that have begun are stopped.
    pub(crate) fn begin(
        &mut self,
        spec: &Arc<EpochSpec>,
        epoch: &Arc<EpochMemory>,
        parts: Vec<Option<PreparedWorker>>,
        watchdogs: &EpochWatchdogs,
    ) -> Result<(), EngineError> {
        self.threads.retain(|(_, thread)| !thread.is_finished());
        self.left_behind.retain(|thread| !thread.is_finished());

        // Threads are prepared with all that is known where no process listens by itself.
        #[cfg(hosts)]
        let wiring = match self.members.values().any(|member| member.port.is_some()) {
            true => self.wiring(spec),
            false => None,
        };
        for (calendar, part) in parts.into_iter().enumerate() {
            #[cfg(hosts)]
            let part = part.map(|prepared| prepared.wired_by(wiring.as_ref()));
            if let Some(prepared) = part
                && let Err(error) = self.begin_thread(spec, calendar, prepared, watchdogs)
            {
                epoch.stop();
                return Err(EngineError::Thread(error));
            }
        }
        #[cfg(target_os = "linux")]
        self.begin_processes(
            spec,
            epoch,
            watchdogs,
            #[cfg(hosts)]
            wiring.as_deref(),
        );

        #[cfg(hosts)]
        if let Some(hosts) = &self.hosts {
            let generation = |device| self.members.get(&device).map_or(0, |m| m.generation);
            let session_memory = &self.session_memory;
            let port = |device| self.port_of(device);
            hosts.begin(&self.loaded, spec, epoch, session_memory, generation, port);
        }
        // Now that everybody has what to do.
        self.start_standbys();
        Ok(())
    }

    fn begin_thread(
        &mut self,
        spec: &EpochSpec,
        calendar: usize,
        prepared: PreparedWorker,
        watchdogs: &EpochWatchdogs,
    ) -> io::Result<()> {
        let device = spec.devices[calendar];
        let member = self.members.get(&device);
        let generation = member.map_or(0, |member| member.generation);

        let loaded = Arc::clone(&self.loaded);
        let event_sender = self.events.clone();
        let epoch = spec.epoch;
        let heartbeat = watchdogs.heartbeat(calendar);
        let job: ThreadJob = Box::new(move || {
            let replay = AssertUnwindSafe(|| Box::new(prepared.run(&loaded, heartbeat)));
            event_sender.send(match catch_unwind(replay) {
                Ok(end) => WorkerEvent::Ended {
                    device,
                    generation,
                    epoch,
                    calendar,
                    end,
                },
                Err(panic) => WorkerEvent::Panicked(panic),
            });
        });
        self.hand_over(device, job)
    }

    /// Gives a job to the thread of a device's worker, which is started with its first one: a thread that waits for its
    /// next job begins it sooner than a new one.
    fn hand_over(&mut self, device: DeviceId, job: ThreadJob) -> io::Result<()> {
        if let Some(PoolMember {
            handle: WorkerHandle::Thread(Some(jobs)),
            ..
        }) = self.members.get(&device)
        {
            // Its thread catches panics, and waits as long as there is somebody to send.
            let _ = jobs.send(job);
            return Ok(());
        }

        let device_name = &self.loaded.program.machine.devices[device].name;
        // The system takes no name with a zero byte in it.
        let thread_name = format!("zbmd {}", device_name.replace('\0', "?"));
        let (sender, jobs) = mpsc::channel::<ThreadJob>();
        let worker_thread = std::thread::Builder::new()
            .name(thread_name)
            .spawn(move || jobs.into_iter().for_each(|job| job()))?;
        self.threads.push((device, worker_thread));

        let _ = sender.send(job);
        if let Some(member) = self.members.get_mut(&device) {
            member.handle = WorkerHandle::Thread(Some(sender));
        }
        Ok(())
    }

    /// Lets the workers of an epoch begin that are processes of this host.
    #[cfg(target_os = "linux")]
    fn begin_processes(
        &mut self,
        spec: &EpochSpec,
        epoch: &EpochMemory,
        watchdogs: &EpochWatchdogs,
        #[cfg(hosts)] wiring: Option<&Wiring>,
    ) {
        for (calendar, device) in spec.devices.iter().enumerate() {
            let Some(PoolMember {
                handle: WorkerHandle::Process(process),
                ..
            }) = self.members.get_mut(device)
            else {
                continue;
            };
            let begun = process.begin(&EpochPart {
                spec,
                calendar,
                epoch,
                watchdogs,
                #[cfg(hosts)]
                places: wiring.map(|wiring| &wiring.places),
                #[cfg(hosts)]
                decisions: None,
            });
            if let Err(error) = begun {
                process.lifetime().end(Some(&error.to_string()));
            }
        }
    }

    /// Makes sure that a process stands by for each worker that is one, if any are to. Called when one of them is gone, and
    /// when [`Self::next_standby_ns`] has come.
    #[cfg(target_os = "linux")]
    pub(crate) fn start_standbys(&mut self) {
        let context = LaunchContext {
            modes: &self.modes,
            session_memory: &self.session_memory,
            options: self.options,
            events: &self.events,
        };
        let process_members = self
            .members
            .iter()
            .filter(|(_, member)| member.handle.is_process());
        let devices: Vec<DeviceId> = process_members.map(|(device, _)| *device).collect();
        let wait_ns = self
            .processes
            .start_standbys(&context, &mut self.threads, &devices);
        self.next_standby_ns = wait_ns.map(|wait_ns| Clock.now_ns() + wait_ns);
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn start_standbys(&mut self) {}

    /// When [`Self::start_standbys`] is to be called at the latest, if it is to be.
    pub(crate) fn next_standby_ns(&self) -> Option<u64> {
        self.next_standby_ns
    }

    /// The next event; `None` if none comes within the time, or if a watchdog expires that had not. Meanwhile sends
    /// requests on that workers have not taken yet.
    pub(crate) fn next_event(
        &mut self,
        within: Duration,
        watchdogs: &mut [Watchdog],
    ) -> Option<WorkerEvent> {
        let wait_limit = match self.flush_requests() {
            true => within.min(FLUSH_PAUSE),
            false => within,
        };
        let event = self.inbox.next(Some(wait_limit), watchdogs)?;
        if let WorkerEvent::Ready {
            device,
            generation,
            port,
        } = event
            && let Some(member) = self.members.get_mut(&device)
            && member.generation == generation
        {
            member.port = port;
        }
        Some(event)
    }

    /// Sends what processes have not taken of their requests; whether something is left.
    fn flush_requests(&mut self) -> bool {
        #[cfg(target_os = "linux")]
        {
            let all_members = self.members.values_mut();
            let workers = all_members.filter_map(|member| match &mut member.handle {
                WorkerHandle::Process(process) => Some(process),
                _ => None,
            });
            self.processes.flush(workers)
        }
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// A watchdog for each of so many workers, or none at all: then workers have to be looked at regularly.
    pub(crate) fn watchdogs(&self, workers: usize, lease_ns: u64) -> EpochWatchdogs {
        if !self.inbox.supports_timers() {
            return EpochWatchdogs::none();
        }
        EpochWatchdogs::for_workers(workers, lease_ns)
    }

    /// Ends all processes, and waits for the threads that are to end, but not for those that were given up: they may
    /// hang in a kernel. With a limit, threads that take longer are left behind too: a process that is stuck in the
    /// system, or a kernel, may keep them.
    pub(crate) fn dismiss(mut self, limit: Option<Duration>) {
        #[cfg(target_os = "linux")]
        self.processes.end_idle();
        let all_members = self.members.iter();
        let process_members = all_members.filter(|(_, member)| member.handle.is_process());
        let processes: Vec<(DeviceId, u32)> = process_members
            .map(|(device, member)| (*device, member.generation))
            .collect();
        for (device, generation) in processes {
            self.kill(device, generation);
        }
        // Threads have nothing more to wait for.
        self.members.clear();

        if let Some(limit) = limit {
            self.wait_for_threads(limit);
            let unfinished = self.threads.drain(..).map(|(_, thread)| thread);
            self.left_behind.extend(unfinished);
        }
        let left_behind = self.left_behind.drain(..);
        let given_up = left_behind.filter(JoinHandle::is_finished);
        let dismissed_threads = self.threads.drain(..).map(|(_, thread)| thread);
        for thread in dismissed_threads.chain(given_up) {
            // A panic has been reported as an event.
            let _ = thread.join();
        }
    }

    fn wait_for_threads(&mut self, limit: Duration) {
        let deadline_ns = Clock.now_ns() + limit.as_nanos() as u64;
        let is_running = |(_, thread): &(DeviceId, JoinHandle<()>)| !thread.is_finished();
        while self.threads.iter().any(is_running) && Clock.now_ns() < deadline_ns {
            #[cfg(target_os = "linux")]
            self.processes.end_launches();
            // Most send an event when they end; nothing wakes us a moment later, when they have ended.
            let _ = self.inbox.next(Some(DISMISS_PAUSE), &mut []);
        }
    }
}
