//! The processes of a worker pool: those that stand by to take a worker's place, those that are on their way out, and the
//! bundle that new ones load. Decides nothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use zbmd_ir::DeviceId;

use super::event::WorkerEvent;
#[cfg(hosts)]
use super::hosts::network_terms::NetworkTerms;
use super::inbox::EventSender;
use super::launch::Lifetime;
use super::listen::{ProcessRole, listen, lock};
use super::nursery::Nursery;
use super::process::{WorkerLaunch, WorkerProcess};
use crate::options::Isolation;
use crate::program::LoadedModes;
use crate::transport::clock::Clock;
use crate::transport::life_lock::LifeLocks;
use crate::transport::session_memory::{Queues, SessionMemory};
use crate::worker::job::HostOptions;

/// Threads that listen to processes, each with the device of its process.
type Listeners = Vec<(DeviceId, JoinHandle<()>)>;

/// What a process is started with.
pub(super) struct LaunchContext<'a> {
    pub modes: &'a LoadedModes,
    pub session_memory: &'a SessionMemory,
    pub options: HostOptions,
    pub events: &'a EventSender<WorkerEvent>,
}

/// From one start of a process that stands by for a device to the next, at least: one that dies at once, again and again,
/// is not to take the processor from the workers.
const STANDBY_SPACING_NS: u64 = 500_000_000;

/// So many workers of a plan are forked from a nursery. It is one process more, and all are lost with it: few do without.
const MIN_FORKED: usize = 16;

/// A process that is ready to take a worker's place.
struct Standby {
    process: WorkerProcess,
    role: Arc<Mutex<ProcessRole>>,
}

/// Starts processes, and keeps those that are not workers now.
pub(super) struct ProcessPool {
    queues: Queues,
    /// The program to start; this very one if `None`.
    program: Option<PathBuf>,
    /// Whether processes stand by.
    has_standbys: bool,
    standbys: BTreeMap<DeviceId, Standby>,
    /// When the last process that stands by was started for each device.
    standby_starts_ns: BTreeMap<DeviceId, u64>,
    /// Processes that were told to end, perhaps before they were there.
    ending: Vec<Arc<Lifetime>>,
    /// The bundle for worker processes, written when the first one starts.
    bundle: Option<File>,
    /// What those of CPU devices are forked from, where there are many.
    nursery: Option<Arc<Nursery>>,
    /// By which the ends of processes are seen at once.
    life_locks: LifeLocks,
    /// The network of a run over several hosts.
    #[cfg(hosts)]
    network: Option<NetworkTerms>,
}

impl ProcessPool {
    pub(super) fn new(queues: Queues, isolation: &Isolation, has_standbys: bool) -> Self {
        let program = match isolation {
            Isolation::Processes { program } | Isolation::GpuProcesses { program } => {
                program.clone()
            }
            Isolation::Threads => None,
        };
        Self {
            queues,
            program,
            has_standbys,
            standbys: BTreeMap::new(),
            standby_starts_ns: BTreeMap::new(),
            ending: Vec::new(),
            bundle: None,
            nursery: None,
            life_locks: LifeLocks::default(),
            #[cfg(hosts)]
            network: None,
        }
    }

    /// Processes that start from here on take part in this network.
    #[cfg(hosts)]
    pub(super) fn join_network(&mut self, network: NetworkTerms) {
        self.network = Some(network);
    }

    /// The process that stands by for a device, or a new one.
    pub(super) fn take_or_start(
        &mut self,
        context: &LaunchContext<'_>,
        listeners: &mut Listeners,
        device: DeviceId,
        generation: u32,
    ) -> io::Result<WorkerProcess> {
        if let Some(standby) = self.standbys.remove(&device) {
            let mut role = lock(&standby.role);
            if !role.is_gone {
                role.generation = Some(generation);
                if let Some(readiness) = role.readiness {
                    context.events.send(WorkerEvent::Ready {
                        device,
                        generation,
                        port: readiness.port,
                    });
                }
                drop(role);
                return Ok(standby.process);
            }
        }
        let role = Arc::new(Mutex::new(ProcessRole {
            generation: Some(generation),
            ..ProcessRole::default()
        }));
        self.start_process(context, listeners, device, &role)
    }

    /// Makes sure that a process stands by for each of these devices. Where one was started only just now, or cannot be
    /// started, that waits: so many nanoseconds, after which this is to be called again.
    pub(super) fn start_standbys(
        &mut self,
        context: &LaunchContext<'_>,
        listeners: &mut Listeners,
        devices: &[DeviceId],
    ) -> Option<u64> {
        if !self.has_standbys {
            return None;
        }
        self.standbys
            .retain(|_, standby| !lock(&standby.role).is_gone);

        let now_ns = Clock.now_ns();
        let mut wait_ns: Option<u64> = None;
        for &device in devices {
            if self.standbys.contains_key(&device) {
                continue;
            }
            let last_ns = self.standby_starts_ns.get(&device);
            let next_ns = last_ns.map_or(now_ns, |last_ns| last_ns + STANDBY_SPACING_NS);
            if next_ns > now_ns {
                let until_next_ns = next_ns - now_ns;
                wait_ns = Some(wait_ns.map_or(until_next_ns, |ns| ns.min(until_next_ns)));
                continue;
            }
            self.standby_starts_ns.insert(device, now_ns);
            let role = Arc::default();
            match self.start_process(context, listeners, device, &role) {
                Ok(process) => {
                    self.standbys.insert(device, Standby { process, role });
                }
                Err(_) => wait_ns = Some(wait_ns.unwrap_or(STANDBY_SPACING_NS)),
            }
        }
        wait_ns
    }

    /// Ends the processes that stand by, and that from which others are forked, once those are gone.
    pub(super) fn end_idle(&mut self) {
        self.end_standbys();
        self.nursery = None;
    }

    fn end_standbys(&mut self) {
        for standby in std::mem::take(&mut self.standbys).into_values() {
            self.kill(&standby.process);
        }
    }

    /// Ends a process, even before it is there.
    pub(super) fn kill(&mut self, process: &WorkerProcess) {
        process.lifetime().end(None);
        self.ending.push(Arc::clone(process.lifetime()));
    }

    fn start_process(
        &mut self,
        context: &LaunchContext<'_>,
        listeners: &mut Listeners,
        device: DeviceId,
        role: &Arc<Mutex<ProcessRole>>,
    ) -> io::Result<WorkerProcess> {
        let bundle = match self.bundle.take() {
            Some(bundle) => bundle,
            None => bundle_file(context.modes)?,
        };
        let bundle = self.bundle.insert(bundle);

        let launch = WorkerLaunch {
            bundle: bundle.as_fd(),
            session_memory: context.session_memory,
            queues: &self.queues,
            options: context.options,
            #[cfg(hosts)]
            network: self.network.as_ref(),
        };
        let life_lock = self.life_locks.next().map_err(io::Error::other)?;
        let program = self.program.as_deref();
        let (process, mut listener) = WorkerProcess::plan(program, &launch, device, &life_lock)?;
        listener.holds_gpu = context.modes.iter().any(|loaded| loaded.is_gpu(device));
        let loaded = context.modes.first();
        let workers = loaded.program.plans[loaded.main].calendars.len();
        if workers >= MIN_FORKED && !listener.holds_gpu {
            self.nursery.take_if(|nursery| !nursery.is_there());
            if self.nursery.is_none() {
                // Without one a worker loads the bundle itself.
                self.nursery = Nursery::start(program, launch.bundle).ok().map(Arc::new);
            }
            listener.nursery.clone_from(&self.nursery);
        }

        let events = context.events.clone();
        let role = Arc::clone(role);
        let thread = std::thread::Builder::new()
            .name(format!("zbmd listener {}", device.0))
            .spawn(move || listen(device, listener, &role, &events))?;
        listeners.push((device, thread));
        Ok(process)
    }

    /// Lets the running processes load another program; those that stand by are ended.
    pub(super) fn swap_program(
        &mut self,
        context: &LaunchContext<'_>,
        running: Vec<(DeviceId, &mut WorkerProcess)>,
    ) {
        self.bundle = None;
        self.end_idle();
        if running.is_empty() {
            return;
        }
        let Ok(bundle) = bundle_file(context.modes) else {
            // No memory for the bundle: whoever cannot load it is started again, and reports that.
            for (_, process) in running {
                process.lifetime().end(None);
            }
            return;
        };

        let launch = WorkerLaunch {
            bundle: bundle.as_fd(),
            session_memory: context.session_memory,
            queues: &self.queues,
            options: context.options,
            #[cfg(hosts)]
            network: self.network.as_ref(),
        };
        for (device, process) in running {
            if let Err(error) = process.open(&launch, device) {
                process.lifetime().end(Some(&error.to_string()));
            }
        }
        self.bundle = Some(bundle);
    }

    /// Sends what processes have not taken of their requests; whether something is left. A process that takes nothing for
    /// too long is lost.
    pub(super) fn flush<'a>(
        &'a mut self,
        workers: impl Iterator<Item = &'a mut WorkerProcess>,
    ) -> bool {
        self.end_launches();
        let standbys = self.standbys.values_mut();
        let standbys = standbys.map(|standby| &mut standby.process);
        let mut is_pending = false;
        for process in workers.chain(standbys) {
            match process.flush() {
                Ok(pending) => is_pending |= pending,
                Err(error) => process.lifetime().end(Some(&error.to_string())),
            }
        }
        is_pending
    }

    /// Ends launches again that were ended before their child was there.
    pub(super) fn end_launches(&mut self) {
        self.ending.retain(|lifetime| lifetime.end_launch());
    }
}

/// The bundle as a sealed file without a name, for processes that this one starts: the very one that this process maps,
/// where it read the program from a bundle.
fn bundle_file(modes: &LoadedModes) -> io::Result<File> {
    let image = zbmd_ir::bundle::image_of_modes(modes.verified())?;
    image.file().try_clone()
}
