//! The workers of a session: threads of this process, or processes. Starts them, gives them their parts of epochs, and
//! hands on what they say. Decides nothing.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Duration;

use zbmd_ir::DeviceId;

use crate::error::EngineError;
#[cfg(target_os = "linux")]
use crate::run::listen::{Role, listen, lock};
use crate::run::session::Inner;
use crate::run::watchdog::{self, Dog, Inbox, Teller};
use crate::transport::clock::Clock;
use crate::transport::epoch::{EpochMemory, SessionMemory, Spec};
use crate::worker::gpu::{DeviceFault, Gpus};
use crate::worker::host::{self, End, HostOptions, Job, Prepared};

/// How often orders that a process has not taken are sent on.
const FLUSH_PAUSE: Duration = Duration::from_millis(2);
/// How often threads that are to end are looked at.
const DISMISS_PAUSE: Duration = Duration::from_millis(1);

/// Where workers run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// In threads of the embedding program.
    #[default]
    Threads,
    /// Each in a process of its own: the given program, or if `None` this very one, which must call
    /// [`crate::serve_if_worker`] first of all.
    Processes {
        /// The program to start.
        program: Option<PathBuf>,
    },
    /// GPUs in processes, as above, and CPU devices in threads: a driver that fails takes its process along.
    GpuProcesses {
        /// The program to start.
        program: Option<PathBuf>,
    },
}

/// Why a worker is no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Farewell {
    Exited(i32),
    Killed(i32),
    Unfit(String),
    /// It has no use without its GPU, which is not there or cannot be opened.
    NoDevice(DeviceFault),
    /// Its GPU failed in such a way that its process must not go on.
    Failed(DeviceFault),
}

impl std::fmt::Display for Farewell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
            Self::Unfit(why) => f.write_str(why),
            Self::NoDevice(fault) | Self::Failed(fault) => fault.fmt(f),
        }
    }
}

/// What a worker says, or is seen to do.
pub(crate) enum News {
    Ready {
        device: DeviceId,
        incarnation: u32,
    },
    Gone {
        device: DeviceId,
        incarnation: u32,
        farewell: Farewell,
    },
    Ended {
        device: DeviceId,
        incarnation: u32,
        epoch: u64,
        calendar: usize,
        end: Box<End>,
    },
    /// A thread of ours panicked outside of all kernels.
    Bug(Box<dyn std::any::Any + Send>),
}

/// What a worker is, and how to reach it.
enum Hand {
    Thread,
    #[cfg(target_os = "linux")]
    Process(crate::run::process::WorkerProcess),
}

struct Member {
    incarnation: u32,
    hand: Hand,
}

/// A process that is ready to take a worker's place.
#[cfg(target_os = "linux")]
struct Standby {
    process: crate::run::process::WorkerProcess,
    role: Arc<Mutex<Role>>,
}

/// Everybody who works for a session.
pub(crate) struct Crew {
    engine: Arc<Inner>,
    session: Arc<SessionMemory>,
    #[cfg(target_os = "linux")]
    queues: crate::transport::epoch::Queues,
    options: HostOptions,
    isolation: Isolation,
    /// Whether processes stand by.
    #[cfg(target_os = "linux")]
    stands_by: bool,
    #[cfg(target_os = "linux")]
    standbys: BTreeMap<DeviceId, Standby>,
    /// Processes that were told to end, perhaps before they were there.
    #[cfg(target_os = "linux")]
    ending: Vec<Arc<crate::run::launch::Lifetime>>,
    /// The GPUs that threads of this process drive.
    gpus: Arc<Gpus>,
    members: BTreeMap<DeviceId, Member>,
    /// Threads that will end by themselves: replays that were told to stop, and listeners of processes.
    threads: Vec<(DeviceId, JoinHandle<()>)>,
    /// Threads of workers that were given up: they may never end.
    left: Vec<JoinHandle<()>>,
    news: Inbox<News>,
    told: Teller<News>,
    /// The bundle for worker processes, written when the first one starts.
    #[cfg(target_os = "linux")]
    bundle: Option<std::fs::File>,
}

impl Crew {
    pub(crate) fn new(
        engine: Arc<Inner>,
        session: Arc<SessionMemory>,
        queues: crate::transport::epoch::Queues,
        options: HostOptions,
        (isolation, stands_by): (Isolation, bool),
    ) -> Self {
        let (told, news) = watchdog::channel();
        #[cfg(not(target_os = "linux"))]
        let _ = (queues, stands_by);
        Self {
            engine,
            session,
            #[cfg(target_os = "linux")]
            queues,
            options,
            isolation,
            #[cfg(target_os = "linux")]
            stands_by,
            #[cfg(target_os = "linux")]
            standbys: BTreeMap::new(),
            #[cfg(target_os = "linux")]
            ending: Vec::new(),
            gpus: Arc::default(),
            members: BTreeMap::new(),
            threads: Vec::new(),
            left: Vec::new(),
            news,
            told,
            #[cfg(target_os = "linux")]
            bundle: None,
        }
    }

    /// Starts the worker of a device. News of it follow: that it is ready, or gone.
    pub(crate) fn spawn(&mut self, device: DeviceId, incarnation: u32) {
        if let Err(farewell) = self.try_spawn(device, incarnation) {
            self.tell(News::Gone {
                device,
                incarnation,
                farewell,
            });
        }
    }

    /// Whether the worker of a device is a thread of this process.
    fn is_thread(&self, device: DeviceId) -> bool {
        match &self.isolation {
            Isolation::Threads => true,
            Isolation::Processes { .. } => false,
            Isolation::GpuProcesses { .. } => !self.engine.is_gpu(device),
        }
    }

    fn tell(&self, news: News) {
        self.told.tell(news);
    }

    fn try_spawn(&mut self, device: DeviceId, incarnation: u32) -> Result<(), Farewell> {
        if self.is_thread(device) {
            if self.engine.is_gpu(device) {
                let which = &self.engine.program.machine.devices[device];
                self.gpus
                    .probe(&self.engine, which)
                    .map_err(Farewell::NoDevice)?;
            }
            self.members.insert(
                device,
                Member {
                    incarnation,
                    hand: Hand::Thread,
                },
            );
            self.tell(News::Ready {
                device,
                incarnation,
            });
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        let started = self.take_or_start(device, incarnation);
        #[cfg(not(target_os = "linux"))]
        let started: io::Result<()> = Err(io::Error::other(
            "workers in processes of their own need Linux; run them as threads",
        ));
        started.map_err(|error| Farewell::Unfit(error.to_string()))
    }

    /// Gives a device the process that stands by for it, or a new one.
    #[cfg(target_os = "linux")]
    fn take_or_start(&mut self, device: DeviceId, incarnation: u32) -> io::Result<()> {
        if let Some(Standby { process, role }) = self.standbys.remove(&device) {
            let mut its = lock(&role);
            if !its.is_gone {
                its.incarnation = Some(incarnation);
                if its.is_ready {
                    self.tell(News::Ready {
                        device,
                        incarnation,
                    });
                }
                drop(its);
                self.members.insert(
                    device,
                    Member {
                        incarnation,
                        hand: Hand::Process(process),
                    },
                );
                return Ok(());
            }
        }
        let role = Role {
            incarnation: Some(incarnation),
            ..Role::default()
        };
        let process = self.start_process(device, &Arc::new(Mutex::new(role)))?;
        self.members.insert(
            device,
            Member {
                incarnation,
                hand: Hand::Process(process),
            },
        );
        Ok(())
    }

    /// Sees to it that a process stands by for each worker that is one. What cannot be started is tried again later.
    #[cfg(target_os = "linux")]
    fn stand_by(&mut self) {
        if !self.stands_by {
            return;
        }
        self.standbys
            .retain(|_, standby| !lock(&standby.role).is_gone);
        let is_process = |member: &Member| matches!(member.hand, Hand::Process(_));
        let workers = self.members.iter().filter(|(_, member)| is_process(member));
        let devices: Vec<DeviceId> = workers.map(|(device, _)| *device).collect();
        for device in devices {
            if !self.standbys.contains_key(&device) {
                let role = Arc::default();
                if let Ok(process) = self.start_process(device, &role) {
                    self.standbys.insert(device, Standby { process, role });
                }
            }
        }
    }

    /// Lets the processes that stand by go.
    #[cfg(target_os = "linux")]
    fn stand_down(&mut self) {
        for standby in std::mem::take(&mut self.standbys).into_values() {
            standby.process.lifetime().end(None);
            self.ending.push(Arc::clone(standby.process.lifetime()));
        }
    }

    #[cfg(target_os = "linux")]
    fn start_process(
        &mut self,
        device: DeviceId,
        role: &Arc<Mutex<Role>>,
    ) -> io::Result<crate::run::process::WorkerProcess> {
        use crate::run::process::{Ship, WorkerProcess};
        use std::os::fd::AsFd;
        let program = match &self.isolation {
            Isolation::Processes { program } | Isolation::GpuProcesses { program } => program,
            Isolation::Threads => &None,
        };
        if self.bundle.is_none() {
            self.bundle = Some(bundle_file(&self.engine)?);
        }
        let Some(bundle) = &self.bundle else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let ship = Ship {
            bundle: bundle.as_fd(),
            session: &self.session,
            queues: &self.queues,
            options: self.options,
        };
        let (process, listener) = WorkerProcess::plan(program.as_deref(), &ship, device)?;
        let told = self.told.clone();
        let role = Arc::clone(role);
        let name = format!("zbmd listener {}", device.0);
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || listen(device, listener, &role, &told))?;
        self.threads.push((device, thread));
        Ok(process)
    }

    /// Lets all workers load another program. They do that before they begin their next epoch.
    pub(crate) fn exchange(&mut self, engine: &Arc<Inner>) {
        self.engine = Arc::clone(engine);
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsFd;
            self.bundle = None;
            self.stand_down();
            let processes = |member: &Member| matches!(member.hand, Hand::Process(_));
            if !self.members.values().any(processes) {
                return;
            }
            let Ok(bundle) = bundle_file(engine) else {
                // No memory for the bundle: whoever cannot load it is started again, and says so.
                return self.members.values().for_each(|member| {
                    if let Hand::Process(process) = &member.hand {
                        process.lifetime().end(None);
                    }
                });
            };
            let ship = crate::run::process::Ship {
                bundle: bundle.as_fd(),
                session: &self.session,
                queues: &self.queues,
                options: self.options,
            };
            for (device, member) in &mut self.members {
                if let Hand::Process(process) = &mut member.hand
                    && let Err(error) = process.open(&ship, *device)
                {
                    process.lifetime().end(Some(&error.to_string()));
                }
            }
            self.bundle = Some(bundle);
        }
    }

    /// Kills a worker's process. A thread cannot be killed: it is left to itself, and said to be gone.
    pub(crate) fn kill(&mut self, device: DeviceId, incarnation: u32) {
        match self.members.get(&device) {
            Some(member) if member.incarnation == incarnation => {}
            _ => return,
        }
        let Some(member) = self.members.remove(&device) else {
            return;
        };
        match member.hand {
            Hand::Thread => {
                // What it is in the middle of cannot count any more, and its memory lives as long as it.
                let its = self.threads.extract_if(.., |(of, _)| *of == device);
                self.left.extend(its.map(|(_, thread)| thread));
                let farewell = Farewell::Unfit("a thread that was left to itself".to_owned());
                self.tell(News::Gone {
                    device,
                    incarnation,
                    farewell,
                });
            }
            #[cfg(target_os = "linux")]
            Hand::Process(process) => {
                process.lifetime().end(None);
                self.ending.push(Arc::clone(process.lifetime()));
            }
        }
    }

    /// Whether there are workers in processes of their own.
    pub(crate) fn has_processes(&self) -> bool {
        let mut hands = self.members.values().map(|member| &member.hand);
        hands.any(|hand| !matches!(hand, Hand::Thread))
    }

    /// The process of a worker; this one for threads, `None` if there is no such worker, or its process does not run its
    /// program yet.
    pub(crate) fn process_of(&self, device: DeviceId) -> Option<u32> {
        match &self.members.get(&device)?.hand {
            Hand::Thread => Some(std::process::id()),
            #[cfg(target_os = "linux")]
            Hand::Process(process) => process.lifetime().process(),
        }
    }

    /// Ends the process of a worker that a signal stopped before it was ready, even before it ran its program. Its end is
    /// news as any other.
    pub(crate) fn end_if_stopped(&self, device: DeviceId) {
        #[cfg(target_os = "linux")]
        if let Some(Hand::Process(process)) = self.members.get(&device).map(|m| &m.hand)
            && process.lifetime().is_stopped()
        {
            process
                .lifetime()
                .end(Some("a signal stopped it before it was ready"));
        }
        #[cfg(not(target_os = "linux"))]
        let _ = device;
    }

    /// Sends a worker's process a signal, to test what becomes of it; whether there is such a process.
    #[cfg(target_os = "linux")]
    pub(crate) fn signal(&self, device: DeviceId, signal: rustix::process::Signal) -> bool {
        match self.members.get(&device).map(|m| &m.hand) {
            Some(Hand::Process(process)) => process.lifetime().signal(signal),
            _ => false,
        }
    }

    /// Sends a signal after a while, if the worker is still there then.
    #[cfg(target_os = "linux")]
    pub(crate) fn later(&self, device: DeviceId, signal: rustix::process::Signal, after: Duration) {
        if let Some(Member {
            hand: Hand::Process(process),
            ..
        }) = self.members.get(&device)
            && let Some(messenger) = process.lifetime().messenger()
        {
            // A thread that cannot be started delays nothing else.
            let _ = std::thread::Builder::new().spawn(move || {
                std::thread::sleep(after);
                messenger(signal);
            });
        }
    }

    /// Makes the parts of an epoch that run in this process ready; those of processes make themselves ready.
    pub(crate) fn prepare(
        &self,
        spec: &Arc<Spec>,
        epoch: &Arc<EpochMemory>,
    ) -> Result<Vec<Option<Prepared>>, EngineError> {
        let mut parts = Vec::with_capacity(spec.devices.len());
        for calendar in 0..spec.devices.len() {
            let is_thread = self.is_thread(spec.devices[calendar]);
            let job = || Job {
                spec: Arc::clone(spec),
                calendar,
                session: Arc::clone(&self.session),
                epoch: Arc::clone(epoch),
                options: self.options,
                gpus: Arc::clone(&self.gpus),
            };
            parts.push(
                is_thread
                    .then(|| host::prepare(&self.engine, job()))
                    .transpose()?,
            );
        }
        Ok(parts)
    }

    /// Lets the workers of an epoch begin, each with its watchdog if there are any. News follow of each.
    ///
    /// # Errors
    /// No thread; those that have begun are told to stop.
    pub(crate) fn begin(
        &mut self,
        spec: &Arc<Spec>,
        epoch: &Arc<EpochMemory>,
        parts: Vec<Option<Prepared>>,
        watch: (&[Dog], u64),
    ) -> Result<(), EngineError> {
        let (dogs, lease_ns) = watch;
        self.threads.retain(|(_, thread)| !thread.is_finished());
        self.left.retain(|thread| !thread.is_finished());
        for (calendar, part) in parts.into_iter().enumerate() {
            let device = spec.devices[calendar];
            let incarnation = self.members.get(&device).map_or(0, |m| m.incarnation);
            match part {
                Some(prepared) => {
                    let device_name = &self.engine.program.machine.devices[device].name;
                    // The system takes no name with a zero byte in it.
                    let name = format!("zbmd {}", device_name.replace('\0', "?"));
                    let (engine, told) = (Arc::clone(&self.engine), self.told.clone());
                    let number = spec.epoch;
                    let winder = dogs.get(calendar).and_then(|dog| dog.winder(lease_ns));
                    let work = move || {
                        let run = AssertUnwindSafe(|| Box::new(prepared.run(&engine, winder)));
                        let news = match catch_unwind(run) {
                            Ok(end) => News::Ended {
                                device,
                                incarnation,
                                epoch: number,
                                calendar,
                                end,
                            },
                            Err(bug) => News::Bug(bug),
                        };
                        told.tell(news);
                    };
                    match std::thread::Builder::new().name(name).spawn(work) {
                        Ok(thread) => self.threads.push((device, thread)),
                        Err(error) => {
                            epoch.stop();
                            return Err(EngineError::Thread(error));
                        }
                    }
                }
                None => {
                    let watch = (dogs.get(calendar), lease_ns);
                    self.begin_process(spec, epoch, (device, calendar), watch);
                }
            }
        }
        // Now that everybody has what to do.
        #[cfg(target_os = "linux")]
        self.stand_by();
        Ok(())
    }

    #[cfg(target_os = "linux")]
    fn begin_process(
        &mut self,
        spec: &Spec,
        epoch: &EpochMemory,
        (device, calendar): (DeviceId, usize),
        watch: (Option<&Dog>, u64),
    ) {
        if let Some(Member {
            hand: Hand::Process(process),
            ..
        }) = self.members.get_mut(&device)
            && let Err(error) = process.begin(spec, calendar, epoch, watch)
        {
            process.lifetime().end(Some(&error.to_string()));
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn begin_process(
        &mut self,
        _: &Spec,
        _: &EpochMemory,
        _: (DeviceId, usize),
        _: (Option<&Dog>, u64),
    ) {
    }

    /// The next news; `None` if none comes within the time, or if a dog barks that had not. Sends orders on meanwhile
    /// that workers have not taken yet.
    pub(crate) fn next(&mut self, within: Duration, dogs: &mut [Dog]) -> Option<News> {
        let within = match self.flush_orders() {
            true => within.min(FLUSH_PAUSE),
            false => within,
        };
        self.news.next(Some(within), dogs)
    }

    /// Sends what processes have not taken of their orders; whether something is left. A process that takes nothing for
    /// too long is lost.
    fn flush_orders(&mut self) -> bool {
        #[cfg(target_os = "linux")]
        {
            self.ending.retain(|lifetime| lifetime.end_launch());
            let workers = self.members.values_mut().map(|member| &mut member.hand);
            let workers = workers.filter_map(|hand| match hand {
                Hand::Thread => None,
                Hand::Process(process) => Some(process),
            });
            let standbys = self.standbys.values_mut().map(|s| &mut s.process);
            let mut is_pending = false;
            for process in workers.chain(standbys) {
                match process.flush() {
                    Ok(pending) => is_pending |= pending,
                    Err(error) => process.lifetime().end(Some(&error.to_string())),
                }
            }
            is_pending
        }
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// A watchdog for each of so many workers, or none at all: then workers have to be looked at regularly.
    pub(crate) fn dogs(&self, workers: usize, lease_ns: u64) -> Vec<Dog> {
        if !self.news.hears_dogs() {
            return Vec::new();
        }
        let dogs: Option<Vec<Dog>> = (0..workers).map(|_| Dog::new(lease_ns)).collect();
        dogs.unwrap_or_default()
    }

    /// Ends all processes, and waits for the threads that were told to end, but not for those that were given up: they may
    /// hang in a kernel. With a limit, threads that take longer are left behind too: a process that is stuck in the
    /// system, or a kernel, may keep them.
    pub(crate) fn dismiss(mut self, limit: Option<Duration>) {
        #[cfg(target_os = "linux")]
        self.stand_down();
        let processes = self
            .members
            .iter()
            .filter(|(_, m)| !matches!(m.hand, Hand::Thread));
        let processes: Vec<(DeviceId, u32)> = processes.map(|(d, m)| (*d, m.incarnation)).collect();
        processes
            .into_iter()
            .for_each(|(device, incarnation)| self.kill(device, incarnation));

        if let Some(limit) = limit {
            self.wait_for_threads(limit);
            self.left
                .extend(self.threads.drain(..).map(|(_, thread)| thread));
        }
        let given_up = self.left.drain(..).filter(JoinHandle::is_finished);
        for thread in self
            .threads
            .drain(..)
            .map(|(_, thread)| thread)
            .chain(given_up)
        {
            // A panic has been told as news.
            let _ = thread.join();
        }
    }

    fn wait_for_threads(&mut self, limit: Duration) {
        let until_ns = Clock.now_ns() + limit.as_nanos() as u64;
        let is_at_work = |(_, thread): &(DeviceId, JoinHandle<()>)| !thread.is_finished();
        while self.threads.iter().any(is_at_work) && Clock.now_ns() < until_ns {
            #[cfg(target_os = "linux")]
            self.ending.retain(|lifetime| lifetime.end_launch());
            // Most tell news when they end; nothing wakes us a moment later, when they have ended.
            let _ = self.news.next(Some(DISMISS_PAUSE), &mut []);
        }
    }
}

/// The bundle as a sealed file without a name, for processes that this one starts: the very one that this process maps,
/// where it read the program from a bundle.
#[cfg(target_os = "linux")]
fn bundle_file(engine: &Inner) -> io::Result<std::fs::File> {
    let image = zbmd_ir::bundle::image_of(&engine.program)?;
    image.file().try_clone()
}
