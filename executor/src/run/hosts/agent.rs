//! The agent of a host: waits for a conductor, loads its bundle, and runs the workers of this host's devices. It decides
//! nothing: an epoch begins and ends as the conductor says, or ends when the conductor has been silent for a lease.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use zbmd_op::Registry;
use zbmd_wire::Deadline;
use zbmd_wire::beat::BeatSender;
use zbmd_wire::connection::{Credentials, SharedConnection};
use zbmd_wire::error::Refusal;
use zbmd_wire::handshake::{Accepted, Purpose};
use zbmd_wire::link_speed;

use super::agent_run::{AgentRun, RunTerms};
use super::agent_seat::Obedience;
use super::agent_workers::AgentWorkers;
use super::bundle_parts::{self, BundleParts, BundleShelf, HeldBundle};
use super::gathering::join_when_there;
use super::heartbeats::{BeatPeer, Heartbeats, Silence};
use super::message::{self, OpenTerms, Order, Report};
use super::network_terms::NetworkTerms;
use super::run_programs::{RunProgram, RunPrograms, open_bundle};
use super::sentinel::Sentinel;
use crate::options::{CouncilSeat, Join};
use crate::program::Engine;
use crate::realtime::{self, RealtimeError, ThreadRole};
use crate::transport::switchboard::{Callers, Switchboard};
use crate::worker::wired::Network;

/// A conductor that says nothing for so long before it has said its lease is gone.
const FIRST_LIMIT: Duration = Duration::from_secs(10);
/// The first heartbeat of a conductor comes when all agents have loaded the bundle.
const FIRST_BEAT_LIMIT: Duration = Duration::from_secs(600);
/// Longest lease.
const MAX_LEASE_NS: u64 = 600_000_000_000;
/// A conductor that waits for a bundle to be passed on is told after so many parts how many there are.
const PARTS_PER_WORD: u64 = 16;
const SEND_LIMIT: Duration = Duration::from_secs(2);
/// Those that measure the network at a time.
const MAX_MEASUREMENTS: usize = 8;

/// What an agent tells whoever started it.
#[derive(Debug)]
pub enum AgentEvent {
    /// It waits for conductors here.
    Listening(SocketAddr),
    /// The run that it is to join does not take it yet.
    Waiting {
        /// Why.
        why: String,
    },
    /// It has joined a run, which connects to it next.
    Joined {
        /// Where the run gathers its agents.
        run: String,
    },
    /// The bundle has not come from the agent that was to pass it on, or not all of it: the run sends the rest.
    PassedOver {
        /// Why.
        why: String,
    },
    /// The bundle of the run is here.
    Received {
        /// Its parts.
        parts: u64,
        /// Those that were here before.
        held: u64,
        /// Those that another agent has passed on. The run has sent the others.
        passed_on: u64,
    },
    /// A conductor has connected.
    Began {
        /// From where.
        conductor: SocketAddr,
    },
    /// A run is over, or its conductor is gone.
    Ended {
        /// Where the conductor was.
        conductor: SocketAddr,
        /// Why.
        why: String,
        /// Epochs that were begun for it.
        epochs: u64,
        /// Connections that were refused since the agent began because their run or epoch was over.
        fenced: u64,
    },
}

/// Why an agent ends.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It cannot listen at its address, would be reached there without protection, or cannot take its seat in the council.
    #[error("{address}: {source}")]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The run that it was to join has refused it, or was not there in time.
    #[error("{why}")]
    NotJoined {
        /// What the run says.
        why: String,
    },
}

/// Where an agent is, and whom it serves.
#[derive(Clone, Copy, Debug)]
pub struct AgentSeat<'a> {
    /// It listens here. Port 0 is one that is free.
    pub address: SocketAddr,
    /// The secret that it shares with conductors, and how connections are protected.
    pub credentials: &'a Credentials,
    /// Its seat in a council: it votes all the time, and obeys nobody but whom the council has elected.
    pub council: Option<&'a CouncilSeat>,
    /// The run that it tells where it is; without, runs know that.
    pub join: Option<&'a Join>,
    /// Where it keeps the bundle that it was sent last; in memory, if `None`.
    pub bundle_folder: Option<&'a Path>,
    /// Have conductors hear at once when this process is killed, by a small process beside it. That is this very program, which
    /// must have called [`crate::serve_if_worker`] first of all in `main`.
    pub has_sentinel: bool,
}

/// Serves one conductor after the other, for as long as the process lives, or until the run is over that it was to join once.
///
/// # Errors
/// It cannot listen, or is refused by the run that it joins.
pub fn serve_as_agent(
    registry: &Registry,
    seat: AgentSeat<'_>,
    listener: impl Fn(AgentEvent) + Clone + Send + 'static,
) -> Result<(), AgentError> {
    let AgentSeat {
        address,
        credentials,
        ..
    } = seat;
    let failed = |source| AgentError::Listen { address, source };
    let checked = credentials.protection.check(address);
    let denied = |error| failed(io::Error::new(io::ErrorKind::PermissionDenied, error));
    checked.map_err(denied)?;
    let obedience = Obedience::new(seat.council, credentials);
    let obedience = Arc::new(obedience.map_err(|error| failed(io::Error::other(error)))?);
    let (taker, conductors) = mpsc::channel::<Accepted>();
    let conductor_calls = Callers {
        purpose: Purpose::Control,
        taker,
    };
    let shelf = Arc::<BundleShelf>::default();
    let callers = vec![
        conductor_calls,
        shelf.begin().map_err(failed)?,
        answer_measurements(credentials).map_err(failed)?,
    ];
    let switchboard = Switchboard::listen(address, credentials, callers).map_err(failed)?;
    let beats = UdpSocket::bind(switchboard.address()).map_err(failed)?;
    listener(AgentEvent::Listening(switchboard.address()));
    let refusal = Arc::<OnceLock<String>>::default();
    if let Some(join) = seat.join {
        let tell = listener.clone();
        keep_joined(join, credentials, &switchboard, &refusal, tell).map_err(failed)?;
    }

    // Without one, the end of a connection tells of this process's, only later.
    let sentinel = match seat.has_sentinel {
        true => Sentinel::start().ok(),
        false => None,
    };
    let mut kept = KeptBundle::default();
    while let Ok(accepted) = conductors.recv() {
        let conductor = accepted.peer();
        listener(AgentEvent::Began { conductor });
        let host = AgentHost {
            registry,
            credentials,
            switchboard: &switchboard,
            beats: &beats,
            obedience: &obedience,
            shelf: &shelf,
            bundle_folder: seat.bundle_folder,
            sentinel: sentinel.as_ref(),
        };
        let begun_epochs = Arc::<AtomicU64>::default();
        let served = host.serve(accepted, &begun_epochs, &mut kept, &listener);
        switchboard.end();
        if served.is_ok() {
            kept = KeptBundle::Nothing;
        }
        listener(AgentEvent::Ended {
            conductor,
            why: served.map_or_else(|error| error.to_string(), |()| "the run is over".to_owned()),
            epochs: begun_epochs.load(Ordering::Relaxed),
            fenced: switchboard.fenced(),
        });
    }
    match refusal.get() {
        Some(why) => Err(AgentError::NotJoined { why: why.clone() }),
        None => Ok(()),
    }
}

/// Begins to tell whoever asks how fast the network is, and which devices this host has, on a thread for each of them: one that
/// measures the way to this host is not kept waiting by one that has another host measure it.
fn answer_measurements(credentials: &Credentials) -> io::Result<Callers> {
    let (taker, callers) = mpsc::channel::<Accepted>();
    let credentials = credentials.clone();
    let asked = Arc::<AtomicUsize>::default();
    let answer_all = move || {
        for accepted in callers {
            let deadline = Deadline::after(SEND_LIMIT);
            if asked.fetch_add(1, Ordering::Relaxed) >= MAX_MEASUREMENTS {
                asked.fetch_sub(1, Ordering::Relaxed);
                accepted.refuse(Refusal::Busy, deadline);
                continue;
            }
            let (credentials, being_asked) = (credentials.clone(), Arc::clone(&asked));
            let answer = move || {
                // Whoever asked is told what went wrong, or is gone.
                if let Ok(connection) = accepted.welcome(deadline) {
                    let _ = link_speed::serve(connection, own_devices, &credentials);
                }
                being_asked.fetch_sub(1, Ordering::Relaxed);
            };
            let builder = std::thread::Builder::new().name("zbmd link speed".to_owned());
            if builder.spawn(answer).is_err() {
                asked.fetch_sub(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::Builder::new()
        .name("zbmd link speeds".to_owned())
        .spawn(answer_all)?;
    Ok(Callers {
        purpose: Purpose::Measure,
        taker,
    })
}

/// The devices of this host, as `Vec<Device>` in postcard: those of its CPU, and its GPUs if they are asked for.
fn own_devices(with_gpus: bool) -> Vec<u8> {
    let mut machine = zbmd_devices::detect();
    if with_gpus {
        // Without a driver there are none.
        let gpus = zbmd_devices::gpus().unwrap_or_default();
        machine = zbmd_devices::with_gpus(machine, &gpus);
    }
    postcard::to_stdvec(&machine.devices.raw).unwrap_or_default()
}

/// Joins the run, and each one after it unless it is to be only one, on a thread of its own. When there is nobody to serve
/// any more the switchboard takes no conductors; `refusal` says why, if it was not that the run is over.
fn keep_joined(
    join: &Join,
    credentials: &Credentials,
    switchboard: &Arc<Switchboard>,
    refusal: &Arc<OnceLock<String>>,
    tell: impl Fn(AgentEvent) + Send + 'static,
) -> io::Result<()> {
    let (join, credentials) = (join.clone(), credentials.clone());
    let (switchboard, refusal) = (Arc::clone(switchboard), Arc::clone(refusal));
    let keep = move || {
        loop {
            let wait = |why| tell(AgentEvent::Waiting { why });
            match join_when_there(&join, switchboard.address(), &credentials, wait) {
                Ok(connection) => {
                    let run = join.address.clone();
                    tell(AgentEvent::Joined { run });
                    // However it ends, the run is not to be had any more.
                    drop(connection.wait_for_end());
                }
                Err(why) => {
                    let _ = refusal.set(why);
                    break;
                }
            }
            if join.is_once {
                break;
            }
        }
        switchboard.refuse_callers();
    };
    let builder = std::thread::Builder::new().name("zbmd join".to_owned());
    builder.spawn(keep).map(drop)
}

/// What an agent has for all runs that it serves.
struct AgentHost<'a> {
    registry: &'a Registry,
    credentials: &'a Credentials,
    switchboard: &'a Arc<Switchboard>,
    beats: &'a UdpSocket,
    obedience: &'a Arc<Obedience>,
    shelf: &'a Arc<BundleShelf>,
    bundle_folder: Option<&'a Path>,
    sentinel: Option<&'a Sentinel>,
}

/// The calling thread and this process's memory, as a real-time run needs them; both are ordinary again when this is dropped.
struct RealtimeHost;

impl RealtimeHost {
    fn begin() -> Result<Self, RealtimeError> {
        // Workers look for their cores themselves: which devices are this host's is said with each epoch.
        realtime::begin([])?;
        // It has just been seen to be allowed.
        let _ = realtime::enter(ThreadRole::Supervisor);
        Ok(Self)
    }
}

impl Drop for RealtimeHost {
    fn drop(&mut self) {
        realtime::leave();
        let _ = rustix::mm::munlockall();
    }
}

impl AgentHost<'_> {
    /// Serves one conductor until it goes. What is kept of its bundle need not be sent; `tell` is told how it has come.
    fn serve(
        &self,
        accepted: Accepted,
        begun_epochs: &Arc<AtomicU64>,
        kept: &mut KeptBundle,
        tell: &dyn Fn(AgentEvent),
    ) -> io::Result<()> {
        let run = accepted.hello.run;
        let connection = accepted.welcome(Deadline::after(SEND_LIMIT));
        let connection = connection.map_err(io::Error::other)?;
        let connection = Arc::new(SharedConnection::new(connection, FIRST_LIMIT)?);
        let Order::Open(open) = message::receive(&*connection)? else {
            return Err(io::Error::other(
                "the conductor does not begin with a bundle",
            ));
        };

        let engine = self.receive_engine(&connection, &open, kept, tell)?;
        let refused = |why: String| refuse(&connection, why);
        self.obedience.accept_run(open.council).map_err(refused)?;
        let realtime = open.options.realtime.then(RealtimeHost::begin).transpose();
        let _realtime = realtime.map_err(|error| refused(error.to_string()))?;
        let workers = self.workers(run, &open, &engine).map_err(refused)?;

        // Before the conductor hears of it: wires of its first epoch may come at once.
        self.switchboard.begin(run, 0, None);
        message::send(&*connection, &Report::Opened)?;
        let silence = Silence::default();
        let lease = Duration::from_nanos(open.lease_ns.clamp(1_000_000, MAX_LEASE_NS));
        let _heartbeats = self.hear_conductor(&connection, &silence, open.beat_session, lease)?;

        let agent = Arc::new(AgentRun::new(RunTerms {
            connection: Arc::clone(&connection),
            programs: self.programs(open.bundle, engine),
            options: open.options,
            network: Arc::new(Network {
                run,
                credentials: self.credentials.clone(),
                switchboard: Arc::clone(self.switchboard),
            }),
            workers,
            gpus: Arc::default(),
            obedience: Arc::clone(self.obedience),
            council: open.council,
            shelf: Arc::clone(self.shelf),
            begun_epochs: Arc::clone(begun_epochs),
        }));
        // Until the connection has been shut down.
        let _guarded = self.sentinel.map(|sentinel| sentinel.guard(&connection));
        let result = agent.serve();
        *kept = KeptBundle::Loaded(agent.last_program());
        match silence.is_set() {
            true => Err(io::Error::other(format!(
                "it has been silent for {} ms",
                lease.as_millis()
            ))),
            false => result,
        }
    }

    /// The workers of a run that are processes, if any are.
    fn workers(
        &self,
        run: u128,
        open: &OpenTerms,
        engine: &Engine,
    ) -> Result<Option<AgentWorkers>, String> {
        let workers = open.processes.map(|processes| {
            let listen_at = self.switchboard.address().ip();
            let network = NetworkTerms::new(run, listen_at, self.credentials);
            let modes = Arc::clone(&engine.modes);
            AgentWorkers::new(modes, open.options, network, processes)
        });
        workers.transpose()
    }

    /// The programs of a run, which begins with this one.
    fn programs(&self, parts: BundleParts, engine: Engine) -> RunPrograms {
        RunPrograms::new(
            RunProgram { parts, engine },
            self.registry.clone(),
            self.credentials.clone(),
            Arc::clone(self.shelf),
            self.bundle_folder.map(Path::to_owned),
        )
    }

    /// Begins to hear the conductor, and to be heard by it; its connection ends when it becomes silent.
    fn hear_conductor(
        &self,
        connection: &Arc<SharedConnection>,
        silence: &Silence,
        session: u128,
        lease: Duration,
    ) -> io::Result<Heartbeats> {
        // Heartbeats say when to wait no longer.
        connection.set_limit(Duration::MAX);
        let (connection, silence) = (Arc::clone(connection), silence.clone());
        let conductor = BeatPeer {
            session,
            address: None,
            patience: FIRST_BEAT_LIMIT,
            on_silent: Box::new(move || {
                silence.set();
                connection.shutdown();
            }),
        };
        Heartbeats::start(
            self.beats.try_clone()?,
            self.credentials.token.clone(),
            BeatSender::Agent,
            lease,
            conductor,
        )
    }

    /// Receives what is lacking of a bundle: from another agent, if there is one, and from the conductor what does not come from
    /// there.
    fn receive_parts(
        &self,
        connection: &SharedConnection,
        bundle: &HeldBundle,
        upstream: Option<SocketAddr>,
        tell: &dyn Fn(AgentEvent),
    ) -> Result<(), String> {
        let held = bundle.first_missing();
        // The conductor waits: it is told now and then how much there is. That it is gone is seen when the bundle is here.
        let note = |parts: u64| {
            if parts.is_multiple_of(PARTS_PER_WORD) {
                let _ = message::send(connection, &Report::Has { parts });
            }
        };
        if let Some(upstream) = upstream.filter(|_| held < bundle.count())
            && let Err(why) = bundle_parts::fetch(bundle, upstream, self.credentials, note)
        {
            tell(AgentEvent::PassedOver { why });
        }

        let first_part = bundle.first_missing();
        let lacks = Report::Lacks { first_part };
        message::send(connection, &lacks).map_err(|error| error.to_string())?;
        bundle.receive(connection, |_| ())?;
        tell(AgentEvent::Received {
            parts: bundle.count(),
            held,
            passed_on: first_part - held,
        });
        Ok(())
    }

    /// Receives what is lacking of a bundle, and loads it; the conductor is told if this host cannot run it. What there is of it
    /// is kept, also if the connection is cut.
    fn receive_engine(
        &self,
        connection: &SharedConnection,
        open: &OpenTerms,
        kept: &mut KeptBundle,
        tell: &dyn Fn(AgentEvent),
    ) -> io::Result<Engine> {
        let parts = open.bundle.clone();
        let begun = match std::mem::take(kept) {
            KeptBundle::Loaded(program) if program.parts == parts => {
                let first_part = parts.count();
                message::send(connection, &Report::Lacks { first_part })?;
                *kept = KeptBundle::Loaded(program.clone());
                return Ok(program.engine);
            }
            KeptBundle::Begun(bundle) => Some(bundle),
            _ => None,
        };

        let held = HeldBundle::of(parts.clone(), begun, self.bundle_folder);
        let received = held.and_then(|bundle| {
            self.shelf.put(&bundle);
            let received = self.receive_parts(connection, &bundle, open.upstream, tell);
            if received.is_err() {
                bundle.give_up();
            }
            let opened = received.and_then(|()| open_bundle(&bundle, self.registry));
            *kept = match &opened {
                // The engine has a copy of its own.
                Ok(engine) => KeptBundle::Loaded(RunProgram {
                    parts,
                    engine: engine.clone(),
                }),
                Err(_) => KeptBundle::Begun(bundle),
            };
            opened
        });
        received.map_err(|why| refuse(connection, why))
    }
}

/// Tells the conductor why this host cannot run its bundle; the error that its connection ends with.
fn refuse(connection: &SharedConnection, why: String) -> io::Error {
    let told = message::send(connection, &Report::Unfit { why: why.clone() });
    told.err().unwrap_or_else(|| io::Error::other(why))
}

/// What an agent has of the bundle of a run that was cut off from it: whoever comes back need not send it again.
#[derive(Default)]
enum KeptBundle {
    #[default]
    Nothing,
    Begun(Arc<HeldBundle>),
    Loaded(RunProgram),
}
