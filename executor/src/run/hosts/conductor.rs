//! The conductor's view of all hosts: where each device is, the connections to the agents, and what they are asked to do.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};
use zbmd_ir::{DeviceId, Plan, PlanId, TiVec, has_live};
use zbmd_wire::beat::BeatSender;
use zbmd_wire::connection::{Connection, Protection, SharedConnection};
use zbmd_wire::error::{HandshakeError, Refusal};
use zbmd_wire::handshake::{Hello, Purpose, dial};
use zbmd_wire::{Deadline, connect_by};

use super::heartbeats::{BeatPeer, Heartbeats};
use super::link::{HostLink, LinkEpoch, RemotePart};
use super::message::{self, Order, Report};
use crate::error::EngineError;
use crate::options::{Hosts, Isolation, RunOptions};
use crate::program::{LoadedModes, LoadedProgram};
use crate::run::event::WorkerEvent;
use crate::run::inbox::EventSender;
use crate::transport::epoch::{Area, EpochMemory};
use crate::transport::epoch_spec::EpochSpec;
use crate::transport::session_memory::SessionMemory;
use crate::transport::switchboard::Switchboard;
use crate::worker::border;
use crate::worker::job::HostOptions;
use crate::worker::wired::Wiring;

/// An agent that does not answer for so long is not there.
const DIAL_LIMIT: Duration = Duration::from_secs(5);
/// An agent that has yet to start, or serves another run, is asked again for so long, and so often.
const START_LIMIT: Duration = Duration::from_secs(2);
const START_PAUSE: Duration = Duration::from_millis(20);
/// An agent has so long to load a bundle.
const OPEN_LIMIT: Duration = Duration::from_secs(120);
/// The first heartbeats of all agents come within this time.
const FIRST_BEAT_LIMIT: Duration = Duration::from_secs(2);
/// Bytes of a bundle that are sent at a time.
const PIECE_BYTES: usize = 1 << 20;

/// All hosts of a run.
pub(crate) struct HostSet {
    run: u128,
    options: Hosts,
    bundle_sum: u64,
    /// By host.
    names: Vec<String>,
    addresses: Vec<SocketAddr>,
    links: Vec<Option<HostLink>>,
    own_host: usize,
    /// By device.
    hosts: TiVec<DeviceId, usize>,
    switchboard: Arc<Switchboard>,
    /// Ends with the run.
    _heartbeats: Option<Heartbeats>,
}

/// What a host of the run is to the person who started it.
fn host_error(host: &str, why: String) -> EngineError {
    EngineError::Host {
        host: host.to_owned(),
        why,
    }
}

impl HostSet {
    /// Connects to all agents, and has them load the bundle. `None` for a run on one host.
    ///
    /// # Errors
    /// A machine without such hosts, a program that cannot be run over several, or an agent that is not there.
    pub(crate) fn connect(
        modes: &LoadedModes,
        options: &RunOptions,
        events: &EventSender<WorkerEvent>,
    ) -> Result<Option<Self>, EngineError> {
        let Some(hosts) = &options.hosts else {
            return Ok(None);
        };
        check_options(options)?;
        let mut set = Self::of(modes.first(), hosts)?;
        for loaded in modes.iter() {
            set.check_program(loaded)?;
        }

        let image = zbmd_ir::bundle::image_of_modes(modes.verified());
        let bundle = image.map_err(EngineError::Thread)?;
        set.bundle_sum = sum_of(bundle.file()).map_err(EngineError::Thread)?;
        let host_options = HostOptions::of(options);
        let mut peers = Vec::new();
        for (name, address) in &hosts.agents {
            let host = set
                .names
                .iter()
                .position(|known| known == name)
                .unwrap_or(0);
            let session = zbmd_wire::handshake::new_run().map_err(EngineError::Thread)?;
            let connection = set.open_agent(*address, bundle.file(), host_options, session);
            let connection = connection.map_err(|why| host_error(name, why))?;
            let link = HostLink::start(host, connection, hosts.lease, events.clone());
            let link = link.map_err(EngineError::Thread)?;
            peers.push(BeatPeer {
                session,
                address: Some(*address),
                patience: FIRST_BEAT_LIMIT * 2,
                on_silent: link.on_silent(),
            });
            set.links[host] = Some(link);
        }
        set._heartbeats = Some(start_heartbeats(hosts, peers)?);
        Ok(Some(set))
    }

    fn of(loaded: &LoadedProgram, options: &Hosts) -> Result<Self, EngineError> {
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
        let [own_name] = unnamed.as_slice() else {
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
        // Agents reach it by the address that their own connection comes from.
        let bind_ip = match options.credentials.protection {
            Protection::Loopback => Ipv4Addr::LOCALHOST,
            Protection::Tls(_) | Protection::Plain => Ipv4Addr::UNSPECIFIED,
        };
        let bind_address = SocketAddr::from((bind_ip, 0));
        let switchboard = Switchboard::listen(bind_address, &options.credentials, None);
        let run = zbmd_wire::handshake::new_run().map_err(EngineError::Thread)?;
        Ok(Self {
            run,
            bundle_sum: 0,
            links: names.iter().map(|_| None).collect(),
            own_host,
            hosts,
            addresses,
            switchboard: switchboard
                .map_err(|error| host_error(own_name, format!("{bind_address}: {error}")))?,
            names,
            options: options.clone(),
            _heartbeats: None,
        })
    }

    /// Whether a program can be run over these hosts.
    fn check_program(&self, loaded: &LoadedProgram) -> Result<(), EngineError> {
        let program = &loaded.program;
        if let Some(actor) = program.graph.actors.iter().find(|actor| has_live(actor)) {
            let why = format!(
                "actor `{}` has live parameters, which cannot be set on several hosts yet: make them fixed, or run on one host",
                actor.name
            );
            return Err(host_error("here", why));
        }
        let mut devices = loaded.devices().into_iter();
        if let Some(gpu) = devices.find(|device| loaded.is_gpu(*device)) {
            let why = format!(
                "device {} is a GPU; only CPU devices run on several hosts yet: compile for a machine without it",
                program.machine.devices[gpu].name
            );
            return Err(host_error(&self.names[self.hosts[gpu]], why));
        }
        for plan in [Some(loaded.main), loaded.tail].into_iter().flatten() {
            let devices = loaded.physical_devices(&program.plans[plan], &[]);
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

    /// Connects to an agent. One that is not there yet may be about to start, and one that serves another run may be about to
    /// end it: that is waited for a while.
    fn dial_agent(&self, address: SocketAddr) -> Result<Connection, String> {
        let hello = Hello {
            purpose: Purpose::Control,
            run: self.run,
            epoch: 0,
            plan: self.bundle_sum,
            sender: 0,
            receiver: 0,
        };
        let start_deadline = Deadline::after(START_LIMIT);
        loop {
            let deadline = Deadline::after(DIAL_LIMIT);
            let socket = match connect_by(address, deadline) {
                Ok(socket) => socket,
                Err(error)
                    if error.kind() == io::ErrorKind::ConnectionRefused
                        && start_deadline.left_ns() != Some(0) =>
                {
                    std::thread::sleep(START_PAUSE);
                    continue;
                }
                Err(error) => {
                    return Err(format!(
                        "{address}: {error}: is `zbmd-run agent` started there?"
                    ));
                }
            };
            match dial(socket, &hello, &self.options.credentials, deadline) {
                Ok(connection) => return Ok(connection),
                Err(HandshakeError::Refused {
                    why: Refusal::Busy, ..
                }) if start_deadline.left_ns() != Some(0) => std::thread::sleep(START_PAUSE),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Connects to an agent, and has it load the bundle.
    fn open_agent(
        &self,
        address: SocketAddr,
        bundle: &std::fs::File,
        options: HostOptions,
        beat_session: u128,
    ) -> Result<SharedConnection, String> {
        let text = |error: std::io::Error| format!("{address}: {error}");
        let connection = SharedConnection::new(self.dial_agent(address)?, OPEN_LIMIT);
        let connection = connection.map_err(text)?;

        let bundle_bytes = bundle.metadata().map_err(text)?.len();
        let open = Order::Open {
            bundle_bytes,
            bundle_sum: self.bundle_sum,
            options,
            lease_ns: self.options.lease.as_nanos() as u64,
            beat_session,
        };
        message::send(&connection, &open).map_err(text)?;
        for_each_piece(bundle, |piece| (&connection).write_all(piece)).map_err(text)?;
        match message::receive::<Report>(&connection).map_err(text)? {
            Report::Opened => Ok(connection),
            Report::Unfit { why } => Err(why),
            other => Err(format!("{address}: it answers {other:?}")),
        }
    }

    /// Whether a device is on another host.
    pub(crate) fn is_remote(&self, device: DeviceId) -> bool {
        self.hosts[device] != self.own_host
    }

    /// The devices of a host.
    pub(crate) fn devices_of(&self, host: usize) -> Vec<DeviceId> {
        let devices = self.hosts.iter_enumerated();
        let own = devices.filter(|(_, of)| **of == host);
        own.map(|(device, _)| device).collect()
    }

    pub(crate) fn name(&self, host: usize) -> &str {
        &self.names[host]
    }

    /// Why the worker of a device on another host cannot be started, if it cannot.
    pub(crate) fn loss_of(&self, device: DeviceId) -> Option<String> {
        let host = self.hosts[device];
        let is_there = self.links[host].as_ref().is_some_and(HostLink::is_there);
        (!is_there).then(|| format!("host {} is gone", self.names[host]))
    }

    /// Where the workers of an epoch are.
    pub(crate) fn wiring(&self, spec: &EpochSpec) -> Arc<Wiring> {
        let plan = self.plan_sum(spec);
        self.switchboard.begin(self.run, spec.epoch, Some(plan));
        Arc::new(Wiring {
            run: self.run,
            plan,
            credentials: self.options.credentials.clone(),
            own_host: self.own_host,
            hosts: self.hosts_of(spec),
            addresses: self.addresses.clone(),
            names: self.names.clone(),
            switchboard: Arc::clone(&self.switchboard),
            is_agent: false,
        })
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
        let mut bytes = self.bundle_sum.to_le_bytes().to_vec();
        bytes.extend(spec.mode.to_le_bytes());
        bytes.extend(spec.plan.0.to_le_bytes());
        xxh3_64(&bytes)
    }

    /// Lets the agents begin their parts of an epoch; `generation` is that of a device's worker.
    pub(crate) fn begin(
        &self,
        loaded: &Arc<LoadedProgram>,
        spec: &Arc<EpochSpec>,
        memory: &Arc<EpochMemory>,
        session_memory: &Arc<SessionMemory>,
        generation: impl Fn(DeviceId) -> u32,
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
            let mut addresses = self.addresses.clone();
            // As the agent has reached this host.
            addresses[self.own_host] = link.own_address(self.switchboard.address());
            let order = Order::Begin {
                spec: Box::new((**spec).clone()),
                start: start.clone(),
                calendars: calendars.iter().map(|calendar| *calendar as u32).collect(),
                hosts: hosts.iter().map(|host| *host as u32).collect(),
                own_host: host as u32,
                addresses,
                names: self.names.clone(),
                plan: self.plan_sum(spec),
            };
            let parts = calendars.iter().map(|&calendar| RemotePart {
                calendar,
                device: spec.devices[calendar],
                generation: generation(spec.devices[calendar]),
            });
            link.begin(
                order,
                LinkEpoch {
                    loaded: Arc::clone(loaded),
                    spec: Arc::clone(spec),
                    memory: Arc::clone(memory),
                    session_memory: Arc::clone(session_memory),
                    parts: parts.collect(),
                },
            );
        }
    }
}

/// Begins to hear the agents, and to be heard by them.
fn start_heartbeats(hosts: &Hosts, peers: Vec<BeatPeer>) -> Result<Heartbeats, EngineError> {
    let is_v6 = hosts.agents.iter().any(|(_, address)| address.is_ipv6());
    let bind_ip = match is_v6 {
        true => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        false => IpAddr::from(Ipv4Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((bind_ip, 0)).map_err(EngineError::Thread)?;
    let token = hosts.credentials.token.clone();
    let started = Heartbeats::start(socket, token, BeatSender::Conductor, hosts.lease, peers);
    let heartbeats = started.map_err(EngineError::Thread)?;
    heartbeats.wait_for_all(FIRST_BEAT_LIMIT).map_err(|missing| {
        let (name, address) = &hosts.agents[missing];
        let why = format!(
            "no heartbeat comes from {address} over UDP: let the hosts reach each other at this port by UDP as by TCP"
        );
        host_error(name, why)
    })?;
    Ok(heartbeats)
}

/// What a run over hosts cannot do yet.
fn check_options(options: &RunOptions) -> Result<(), EngineError> {
    let refused = [
        (options.realtime, "a real-time run"),
        (
            options.trace.is_some() || options.profile,
            "a trace or a profile",
        ),
        (
            matches!(options.isolation, Isolation::Processes { .. }),
            "a process for each device",
        ),
        (options.supervised.is_none(), "a run without supervision"),
    ];
    let mut refused = refused.iter().filter(|(is_asked_for, _)| *is_asked_for);
    match refused.next() {
        Some((_, what)) => Err(host_error(
            "here",
            format!(
                "{what} is not possible on several hosts: leave that option out, or run on one host"
            ),
        )),
        None => Ok(()),
    }
}

fn sum_of(file: &std::fs::File) -> std::io::Result<u64> {
    let mut sum = Xxh3::new();
    for_each_piece(file, |piece| {
        sum.update(piece);
        Ok(())
    })?;
    Ok(sum.digest())
}

/// The bytes of a file, whatever its position is.
fn for_each_piece(
    file: &std::fs::File,
    mut each: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset = 0;
    loop {
        let bytes = file.read_at(&mut piece, offset)?;
        if bytes == 0 {
            return Ok(());
        }
        offset += bytes as u64;
        each(&piece[..bytes])?;
    }
}
