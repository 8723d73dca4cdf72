//! The conductor's view of all hosts: where each device is, the connections to the agents, and what they are asked to do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;

use xxhash_rust::xxh3::xxh3_64;
use zbmd_ir::{DeviceId, Plan, PlanId, TiVec};
use zbmd_wire::handshake::Purpose;

use super::bundle_offer::BundleOffer;
use super::bundle_parts::{BundleShelf, RunBundle};
use super::conductor_seat::ConductorSeat;
use super::gathering::Gathering;
use super::holders::HolderProgram;
use super::link::{HostLink, LinkEpoch, RemotePart};
use super::message::{Order, ProcessTerms, WorkerNumber};
use super::network_terms::NetworkTerms;
use super::opener::AgentOpener;
use super::seat::Mandate;
use crate::error::EngineError;
use crate::observe::live::{HostProgress, HostState};
use crate::options::{Hosts, Isolation, RunOptions};
use crate::program::{LoadedModes, LoadedProgram};
use crate::run::event::WorkerEvent;
use crate::run::inbox::EventSender;
use crate::supervise::Thread;
use crate::transport::epoch::{Area, EpochMemory};
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::session_memory::SessionMemory;
use crate::transport::switchboard::{Callers, Switchboard};
use crate::transport::trace_ring::{self, TraceCopier};
use crate::worker::border;
use crate::worker::job::HostOptions;
use crate::worker::wired::{Network, Wiring, WorkerPlaces};

/// All hosts of a run.
pub(crate) struct HostSet {
    /// By host.
    names: Vec<String>,
    links: Vec<Option<HostLink>>,
    own_host: usize,
    /// By device.
    hosts: TiVec<DeviceId, usize>,
    network: Arc<Network>,
    opener: Arc<AgentOpener>,
    /// Where agents get another program.
    shelf: Arc<BundleShelf>,
    /// The council's word for the epoch that begins next, if there is a council.
    mandate: Option<Mandate>,
    /// The run was another conductor's before.
    is_takeover: bool,
}

/// What a host of the run is to the person who started it.
fn host_error(host: &str, why: String) -> EngineError {
    EngineError::Host {
        host: host.to_owned(),
        why,
    }
}

impl HostSet {
    /// Connects to all agents, and has them load the bundle; a run that is taken over begins without them. `None` for a run
    /// on one host.
    ///
    /// # Errors
    /// A machine without such hosts, a program that cannot be run over several, or an agent that is not there.
    pub(crate) fn connect(
        modes: &LoadedModes,
        options: &RunOptions,
        events: &EventSender<WorkerEvent>,
        is_takeover: bool,
    ) -> Result<Option<Self>, EngineError> {
        let Some(hosts) = &options.hosts else {
            return Ok(None);
        };
        check_options(options)?;
        let bundle = RunBundle::of(modes).map_err(EngineError::Thread)?;
        let mut opener = AgentOpener {
            run: zbmd_wire::handshake::new_run().map_err(EngineError::Thread)?,
            hosts: hosts.clone(),
            bundle: Mutex::new(Arc::new(bundle)),
            options: HostOptions::of(options),
            processes: process_terms(modes, options),
            hosts_of_devices: TiVec::new(),
            events: events.clone(),
            addresses: Mutex::default(),
            is_over: AtomicBool::new(false),
        };
        let shelf = Arc::<BundleShelf>::default();
        let (switchboard, gathering) = Self::listen(modes.first(), &mut opener.hosts, &shelf)?;
        let mut set = Self::of(modes.first(), opener, switchboard, shelf)?;
        set.is_takeover = is_takeover;
        set.shelve_present();
        for loaded in modes.iter() {
            set.check_program(loaded)?;
        }
        if let Some(gathering) = gathering {
            let opener = Arc::clone(&set.opener);
            std::thread::Builder::new()
                .name("zbmd joins".to_owned())
                .spawn(move || gathering.go_on(|host, at| opener.set_address(host, at)))
                .map_err(EngineError::Thread)?;
        }

        match is_takeover {
            false => set.open_all()?,
            // What was conducted before must end first: agents are taken in as they come.
            true => set.look_for_all(),
        }
        Ok(Some(set))
    }

    fn open_all(&mut self) -> Result<(), EngineError> {
        let agent_hosts = self.agent_hosts();
        let opener = &self.opener;
        let addresses = opener.addresses();
        // All at once: each may take a while to receive the bundle and to load it. The first one is sent it from here, and each
        // passes it on to the next one while it comes.
        let opened: Vec<_> = std::thread::scope(|scope| {
            let before = agent_hosts.iter().map(|host| Some(addresses[*host]));
            let upstreams = std::iter::once(None).chain(before);
            let threads: Vec<_> = agent_hosts
                .iter()
                .zip(upstreams)
                .map(|(host, upstream)| scope.spawn(move || opener.open(*host, upstream)))
                .collect();
            threads.into_iter().map(ScopedJoinHandle::join).collect()
        });
        for (host, opened) in agent_hosts.into_iter().zip(opened) {
            let opened = opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            self.links[host] = Some(opened.map_err(|why| host_error(&self.names[host], why))?);
        }
        Ok(())
    }

    fn look_for_all(&self) {
        for host in self.agent_hosts() {
            self.opener.look_for(host);
        }
    }

    /// Hosts with an agent.
    fn agent_hosts(&self) -> Vec<usize> {
        let agents = self.opener.hosts.agents.iter();
        let hosts = agents.filter_map(|(name, _)| self.names.iter().position(|n| n == name));
        hosts.collect()
    }

    /// Listens for connections, and waits for the agents if they are to join: they are named in `hosts` from then on.
    fn listen(
        loaded: &LoadedProgram,
        hosts: &mut Hosts,
        shelf: &Arc<BundleShelf>,
    ) -> Result<(Arc<Switchboard>, Option<Gathering>), EngineError> {
        let any_port = SocketAddr::new(listening_ip(hosts), 0);
        let gather = hosts.gather.clone();
        let bind_address = gather.as_ref().map_or(any_port, |gather| gather.address);
        let checked = hosts.credentials.protection.check(bind_address);
        checked.map_err(|error| host_error("here", error.to_string()))?;

        let (taker, joins) = mpsc::channel();
        let callers = gather.iter().map(|_| Callers {
            purpose: Purpose::Join,
            taker: taker.clone(),
        });
        let bundles = shelf.begin().map_err(EngineError::Thread)?;
        let callers = callers.chain([bundles]).collect();
        let switchboard = Switchboard::listen(bind_address, &hosts.credentials, callers);
        let switchboard =
            switchboard.map_err(|error| host_error("here", format!("{bind_address}: {error}")))?;
        let Some(gather) = gather else {
            return Ok((switchboard, None));
        };

        let machine_hosts = loaded.program.machine.hosts.iter();
        let names = machine_hosts.map(|host| host.name.clone()).collect();
        let gathering = Gathering::wait_for_all(names, &gather, joins);
        let gathering = gathering.map_err(|why| host_error("here", why))?;
        hosts.agents = gathering.agents();
        Ok((switchboard, Some(gathering)))
    }

    fn of(
        loaded: &LoadedProgram,
        opener: AgentOpener,
        switchboard: Arc<Switchboard>,
        shelf: Arc<BundleShelf>,
    ) -> Result<Self, EngineError> {
        let options = &opener.hosts;
        let machine = &loaded.program.machine;
        let names: Vec<String> = machine.hosts.iter().map(|host| host.name.clone()).collect();
        let unnamed: Vec<&String> = names
            .iter()
            .filter(|name| options.agents.iter().all(|(agent, _)| agent != *name))
            .collect();
        let is_known = |name: &String| names.contains(name);
        if let Some((unknown, _)) = options.agents.iter().find(|(name, _)| !is_known(name)) {
            let known = names.join(", ");
            let why = format!("the bundle's machine has the hosts {known}: name one of them");
            return Err(host_error(unknown, why));
        }
        let own_names = match &options.own {
            Some(own) if unnamed.contains(&own) => vec![own],
            Some(own) => {
                let known = unnamed.iter().map(|name| name.as_str());
                let known = known.collect::<Vec<_>>().join(", ");
                let why = format!("it must be a host without an agent, which are: {known}");
                return Err(host_error(own, why));
            }
            None => unnamed.clone(),
        };
        let [own_name] = own_names.as_slice() else {
            let why = format!(
                "{} of the bundle's {} hosts have no --host option ({}); exactly one must have none, which is this one",
                unnamed.len(),
                names.len(),
                unnamed
                    .iter()
                    .map(|name| name.as_str())
                    .collect::<Vec<_>>()
                    .join(", ")
            );
            return Err(host_error("here", why));
        };
        let own_host = names.iter().position(|name| name == *own_name).unwrap_or(0);

        let mut hosts: TiVec<DeviceId, usize> = vec![own_host; machine.devices.len()].into();
        for (index, host) in machine.hosts.iter().enumerate() {
            host.devices
                .iter()
                .for_each(|device| hosts[*device] = index);
        }
        let mut addresses = vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)); names.len()];
        for (name, address) in &options.agents {
            let host = names.iter().position(|known| known == name).unwrap_or(0);
            addresses[host] = *address;
            let checked = options.credentials.protection.check(*address);
            checked.map_err(|error| host_error(name, error.to_string()))?;
        }
        Ok(Self {
            links: names.iter().map(|_| None).collect(),
            own_host,
            network: Arc::new(Network {
                run: opener.run,
                credentials: options.credentials.clone(),
                switchboard,
            }),
            names,
            opener: Arc::new(AgentOpener {
                addresses: Mutex::new(addresses),
                hosts_of_devices: hosts.clone(),
                ..opener
            }),
            hosts,
            shelf,
            mandate: None,
            is_takeover: false,
        })
    }

    /// Whether a program can be run over these hosts. Without all of them another plan runs, which is checked as it begins.
    ///
    /// # Errors
    /// A source or a sink on another host than the conductor's.
    pub(crate) fn check_program(&self, loaded: &LoadedProgram) -> Result<(), EngineError> {
        if self.is_takeover {
            return Ok(());
        }
        for plan in [Some(loaded.main), loaded.tail].into_iter().flatten() {
            let devices = loaded.physical_devices(&loaded.program.plans[plan], &[]);
            self.check_streams(loaded, plan, &devices)?;
        }
        Ok(())
    }

    /// Whether sources and sinks are on the conductor's host when a plan runs on these devices.
    pub(crate) fn check_streams(
        &self,
        loaded: &LoadedProgram,
        plan: PlanId,
        devices: &[DeviceId],
    ) -> Result<(), EngineError> {
        let plan = &loaded.program.plans[plan];
        let graph = &loaded.program.graph;
        for (id, actor) in graph.sources().chain(graph.sinks()) {
            let role = plan.placement[id];
            let mut calendars = plan.calendars.iter();
            let calendar = calendars.position(|calendar| calendar.device == role);
            let device = calendar.map_or(role, |calendar| devices[calendar]);
            let host = self.hosts[device];
            if host != self.own_host {
                let why = format!(
                    "plan `{}` has `{}` on this host, the conductor is on {}: pin the actor to a device there (`pins` of the model), or start the run on this host",
                    plan.name, actor.name, self.names[self.own_host]
                );
                return Err(host_error(&self.names[host], why));
            }
        }
        Ok(())
    }

    /// Whether a device is on another host.
    pub(crate) fn is_remote(&self, device: DeviceId) -> bool {
        self.hosts[device] != self.own_host
    }

    /// Devices of other hosts, which are not there.
    pub(crate) fn lost_devices(&self) -> Vec<DeviceId> {
        let devices = self.hosts.iter_enumerated().map(|(device, _)| device);
        let is_lost =
            |device: &DeviceId| self.is_remote(*device) && self.loss_of(*device).is_some();
        devices.filter(is_lost).collect()
    }

    /// The devices of a host.
    pub(crate) fn devices_of(&self, host: usize) -> Vec<DeviceId> {
        let devices = self.hosts.iter_enumerated();
        let own = devices.filter(|(_, of)| **of == host);
        own.map(|(device, _)| device).collect()
    }

    /// All hosts in order, and which are there.
    pub(crate) fn list(&self) -> Vec<HostProgress> {
        let hosts = self.names.iter().zip(&self.links).enumerate();
        let list = hosts.map(|(index, (name, link))| HostProgress {
            host: name.clone(),
            state: match link {
                _ if index == self.own_host => HostState::Conductor,
                Some(link) if link.is_there() => HostState::Present,
                _ => HostState::Lost,
            },
        });
        list.collect()
    }

    pub(crate) fn name(&self, host: usize) -> &str {
        &self.names[host]
    }

    /// Looks for a host that was lost, until it comes back.
    pub(crate) fn look_for(&self, host: usize) {
        if self.agent_hosts().contains(&host) {
            self.opener.look_for(host);
        }
    }

    /// A host has come back. Whether it is still there: if not, it is looked for again.
    pub(crate) fn take_back(&mut self, host: usize, link: HostLink) -> bool {
        if !link.is_there() {
            self.look_for(host);
            return false;
        }
        self.links[host] = Some(link);
        true
    }

    /// Why the worker of a device on another host cannot be started, if it cannot.
    pub(crate) fn loss_of(&self, device: DeviceId) -> Option<String> {
        let host = self.hosts[device];
        let is_there = self.links[host].as_ref().is_some_and(HostLink::is_there);
        (!is_there).then(|| format!("host {} is gone", self.names[host]))
    }

    /// What is known of the thread of another host's worker; see [`HostLink::take_thread`].
    pub(crate) fn take_thread(&self, device: DeviceId, calendar: usize) -> Option<Thread> {
        let link = self.links[self.hosts[device]].as_ref()?;
        link.take_thread(calendar)
    }

    /// Starts the process of a device's worker on its host, or opens its GPU there; whether one of the two is needed. Events follow
    /// then: that the worker is ready, or gone.
    pub(crate) fn spawn(&self, loaded: &LoadedProgram, device: DeviceId, generation: u32) -> bool {
        let is_needed = self.is_process(loaded, device) || loaded.is_gpu(device);
        if is_needed {
            self.send_to_host(device, Order::Spawn(WorkerNumber { device, generation }));
        }
        is_needed
    }

    /// Ends the process of a worker on another host, if it is one; whether it is. An event follows.
    pub(crate) fn kill(&self, loaded: &LoadedProgram, device: DeviceId, generation: u32) -> bool {
        let is_process = self.is_process(loaded, device);
        if is_process {
            self.send_to_host(device, Order::Kill(WorkerNumber { device, generation }));
        }
        is_process
    }

    /// Whether the worker of a device on another host is a process of its own.
    fn is_process(&self, loaded: &LoadedProgram, device: DeviceId) -> bool {
        let terms = self.opener.processes;
        terms.is_some_and(|terms| terms.are_for(loaded, device))
    }

    fn send_to_host(&self, device: DeviceId, order: Order) {
        // The end of a host's connection is an event of its own.
        if let Some(link) = &self.links[self.hosts[device]] {
            link.send(order);
        }
    }

    /// How the workers of an epoch on this host reach the others; `port` says where the wires of a device arrive, if not where
    /// those of its host do.
    pub(crate) fn wiring(
        &self,
        spec: &EpochSpec,
        port: impl Fn(DeviceId) -> Option<u16>,
    ) -> Arc<Wiring> {
        let places = WorkerPlaces {
            own_host: self.own_host,
            addresses: self.addresses(spec, self.network.switchboard.address(), port),
            is_agent: false,
            ..self.places(spec)
        };
        let network = &self.network;
        network
            .switchboard
            .begin(network.run, spec.epoch, Some(places.plan));
        Arc::new(Wiring {
            network: Arc::clone(network),
            places,
        })
    }

    /// How processes of this host that are workers take part in the run.
    pub(crate) fn network_terms(&self) -> NetworkTerms {
        let listen_at = self.network.switchboard.address().ip();
        NetworkTerms::new(self.network.run, listen_at, &self.network.credentials)
    }

    /// Where the workers of an epoch are, but for how they are reached.
    fn places(&self, spec: &EpochSpec) -> WorkerPlaces {
        WorkerPlaces {
            plan: self.plan_sum(spec),
            own_host: self.own_host,
            hosts: self.hosts_of(spec),
            addresses: Vec::new(),
            names: self.names.clone(),
            is_agent: true,
        }
    }

    /// Where the wires of each calendar arrive; `own` is where this host is reached.
    fn addresses(
        &self,
        spec: &EpochSpec,
        own: SocketAddr,
        port: impl Fn(DeviceId) -> Option<u16>,
    ) -> Vec<SocketAddr> {
        let mut hosts = self.opener.addresses();
        hosts[self.own_host] = own;
        let addresses = spec.devices.iter().map(|device| {
            let host = hosts[self.hosts[*device]];
            SocketAddr::new(host.ip(), port(*device).unwrap_or(host.port()))
        });
        addresses.collect()
    }

    /// The host of each calendar.
    fn hosts_of(&self, spec: &EpochSpec) -> Vec<usize> {
        spec.devices
            .iter()
            .map(|device| self.hosts[*device])
            .collect()
    }

    /// Says which plan of which bundle an epoch runs.
    fn plan_sum(&self, spec: &EpochSpec) -> u64 {
        let mut bytes = self.bundle_number().to_le_bytes().to_vec();
        bytes.extend(spec.mode.to_le_bytes());
        bytes.extend(spec.plan.0.to_le_bytes());
        xxh3_64(&bytes)
    }

    fn bundle_number(&self) -> u64 {
        self.opener.bundle().number()
    }

    /// The program at work, for those that could take over.
    pub(crate) fn holder_program(&self) -> HolderProgram {
        HolderProgram {
            bundle: self.opener.bundle(),
            listening: self.network.switchboard.address(),
        }
    }

    /// No other program is to be loaded: those that could take over get the one at work here, and agents need nothing.
    pub(crate) fn shelve_present(&self) {
        match self.opener.hosts.council {
            Some(_) => self.shelf.hold(&self.opener.bundle()),
            None => self.shelf.clear_memory(),
        }
    }

    /// Has all agents load another program. What has come of it, once all that are there have said it.
    pub(crate) fn load(&self, offer: &BundleOffer) -> Option<Result<(), String>> {
        let bundle = &offer.bundle;
        self.shelf.hold(bundle);
        let addresses = self.opener.addresses();
        let mut before = None;
        let mut outcome = Some(Ok(()));
        for (host, link) in self.links.iter().enumerate() {
            let Some(link) = link.as_ref().filter(|link| link.is_there()) else {
                continue;
            };
            // From the agent before it, as at the start, and from here what does not come from there.
            let order = || {
                let own = link.own_address(self.network.switchboard.address());
                Order::Load {
                    bundle: bundle.parts().clone(),
                    from: before.into_iter().chain([own]).collect(),
                }
            };
            match link.load(bundle.number(), order) {
                Some(Ok(())) => {}
                Some(Err(why)) => return Some(Err(format!("host {}: {why}", self.names[host]))),
                None => outcome = None,
            }
            before = Some(addresses[host]);
        }
        outcome
    }

    /// The epochs that follow are of a program that the agents have loaded.
    pub(crate) fn swap_program(&self, offer: &BundleOffer) {
        self.opener.set_bundle(Arc::clone(&offer.bundle));
        self.shelve_present();
    }

    /// The epochs that follow are conducted in this name.
    pub(crate) fn set_mandate(&mut self, seat: &ConductorSeat) {
        self.mandate = Some(seat.mandate());
    }

    /// Lets the agents begin their parts of an epoch; `generation` is that of a device's worker, `port` as in [`Self::wiring`].
    pub(crate) fn begin(
        &self,
        loaded: &Arc<LoadedProgram>,
        spec: &Arc<EpochSpec>,
        memory: &Arc<EpochMemory>,
        session_memory: &Arc<SessionMemory>,
        generation: impl Fn(DeviceId) -> u32,
        port: impl Fn(DeviceId) -> Option<u16>,
    ) {
        let plan: &Plan = &loaded.program.plans[spec.plan];
        let graph = &loaded.program.graph;
        let hosts = self.hosts_of(spec);
        let start: Vec<Vec<u8>> = border::read_area(memory, graph, Area::Start)
            .into_iter()
            .collect();

        for (host, link) in self.links.iter().enumerate() {
            let Some(link) = link else { continue };
            let calendars: Vec<usize> = (0..plan.calendars.len())
                .filter(|calendar| hosts[*calendar] == host)
                .collect();
            if calendars.is_empty() {
                continue;
            }

            // As the agent has reached this host.
            let own = link.own_address(self.network.switchboard.address());
            let places = WorkerPlaces {
                own_host: host,
                addresses: self.addresses(spec, own, &port),
                ..self.places(spec)
            };
            let order = Order::Begin {
                spec: Box::new((**spec).clone()),
                bundle: self.bundle_number(),
                start: start.clone(),
                calendars: calendars.iter().map(|calendar| *calendar as u32).collect(),
                places: Box::new(places),
                mandate: self.mandate,
            };

            let parts = calendars.iter().map(|&calendar| RemotePart {
                calendar,
                device: spec.devices[calendar],
                generation: generation(spec.devices[calendar]),
            });
            let copiers = calendars.iter().filter_map(|&calendar| {
                let words = trace_ring::words_of(plan, calendar);
                let recorder = memory.recorder(spec, calendar, words)?;
                Some((calendar, Mutex::new(TraceCopier::new(recorder))))
            });
            let copiers = copiers.collect();
            link.begin(
                order,
                LinkEpoch {
                    loaded: Arc::clone(loaded),
                    spec: Arc::clone(spec),
                    memory: Arc::clone(memory),
                    session_memory: Arc::clone(session_memory),
                    parts: parts.collect(),
                    copiers,
                },
            );
        }
    }
}

impl Drop for HostSet {
    fn drop(&mut self) {
        self.opener.is_over.store(true, Ordering::Release);
        self.network.switchboard.refuse_callers();
    }
}

/// Where a run listens: its agents reach it by the address that the connection to them comes from, of whichever family.
fn listening_ip(hosts: &Hosts) -> IpAddr {
    let mut addresses = hosts.agents.iter().map(|(_, address)| address);
    let is_loopback = hosts.credentials.protection.is_loopback();
    match addresses.any(SocketAddr::is_ipv6) {
        // The socket takes connections of the older family too.
        true if !is_loopback => Ipv6Addr::UNSPECIFIED.into(),
        true => Ipv6Addr::LOCALHOST.into(),
        false if !is_loopback => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::LOCALHOST.into(),
    }
}

/// How agents run workers that are processes, if any are.
fn process_terms(modes: &LoadedModes, options: &RunOptions) -> Option<ProcessTerms> {
    let mut devices = modes.first().program.machine.devices.iter();
    let only_gpus = match options.isolation {
        Isolation::Processes { .. } => false,
        Isolation::GpuProcesses { .. } if devices.any(|device| device.backend.is_gpu()) => true,
        Isolation::GpuProcesses { .. } | Isolation::Threads => return None,
    };
    Some(ProcessTerms {
        only_gpus,
        has_standbys: options.standby,
    })
}

/// What a run over hosts cannot do yet.
fn check_options(options: &RunOptions) -> Result<(), EngineError> {
    match options.supervised {
        Some(_) => Ok(()),
        None => Err(host_error(
            "here",
            "a run without supervision is not possible on several hosts: leave that option out, or run on one host"
                .to_owned(),
        )),
    }
}
