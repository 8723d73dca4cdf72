//! The agent of a host: waits for a conductor, loads its bundle, and runs the workers of this host's devices. It decides
//! nothing: an epoch begins and ends as the conductor says, or ends when the conductor has been silent for a lease.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use xxhash_rust::xxh3::Xxh3;
use zbmd_op::Registry;
use zbmd_wire::Deadline;
use zbmd_wire::beat::BeatSender;
use zbmd_wire::connection::{Credentials, SharedConnection};
use zbmd_wire::handshake::{Accepted, Purpose};

use super::agent_run::{AgentRun, RunTerms};
use super::agent_seat::Obedience;
use super::gathering::join_when_there;
use super::heartbeats::{BeatPeer, Heartbeats, Silence};
use super::message::{self, MAX_BUNDLE_BYTES, Order, Report};
use crate::options::{CouncilSeat, Join};
use crate::program::Engine;
use crate::transport::switchboard::{Callers, Switchboard};

/// A conductor that says nothing for so long before it has said its lease is gone.
const FIRST_LIMIT: Duration = Duration::from_secs(10);
/// The first heartbeat of a conductor comes when all agents have loaded the bundle.
const FIRST_BEAT_LIMIT: Duration = Duration::from_secs(600);
/// Longest lease.
const MAX_LEASE_NS: u64 = 600_000_000_000;
const SEND_LIMIT: Duration = Duration::from_secs(2);

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
    let callers = Callers {
        purpose: Purpose::Control,
        taker,
    };
    let switchboard = Switchboard::listen(address, credentials, Some(callers)).map_err(failed)?;
    let beats = UdpSocket::bind(switchboard.address()).map_err(failed)?;
    listener(AgentEvent::Listening(switchboard.address()));
    let refusal = Arc::<OnceLock<String>>::default();
    if let Some(join) = seat.join {
        let tell = listener.clone();
        keep_joined(join, credentials, &switchboard, &refusal, tell).map_err(failed)?;
    }

    while let Ok(accepted) = conductors.recv() {
        let conductor = accepted.peer();
        listener(AgentEvent::Began { conductor });
        let host = AgentHost {
            registry,
            credentials,
            switchboard: &switchboard,
            beats: &beats,
            obedience: &obedience,
        };
        let served = host.serve(accepted);
        switchboard.end();
        listener(AgentEvent::Ended {
            conductor,
            why: served.map_or_else(|error| error.to_string(), |()| "the run is over".to_owned()),
            fenced: switchboard.fenced(),
        });
    }
    match refusal.get() {
        Some(why) => Err(AgentError::NotJoined { why: why.clone() }),
        None => Ok(()),
    }
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
}

impl AgentHost<'_> {
    /// Serves one conductor until it goes.
    fn serve(&self, accepted: Accepted) -> io::Result<()> {
        let run = accepted.hello.run;
        let connection = accepted.welcome(Deadline::after(SEND_LIMIT));
        let connection = connection.map_err(io::Error::other)?;
        let connection = Arc::new(SharedConnection::new(connection, FIRST_LIMIT)?);
        let order = message::receive::<Order>(&*connection)?;
        let Order::Open {
            bundle_bytes,
            bundle_sum,
            options,
            lease_ns,
            beat_session,
            council,
        } = order
        else {
            return Err(io::Error::other(
                "the conductor does not begin with a bundle",
            ));
        };

        let engine = receive_engine(&connection, bundle_bytes, bundle_sum, self.registry)?;
        if let Err(why) = self.obedience.accept_run(council) {
            message::send(&*connection, &Report::Unfit { why: why.clone() })?;
            return Err(io::Error::other(why));
        }
        // Before the conductor hears of it: wires of its first epoch may come at once.
        self.switchboard.begin(run, 0, None);
        message::send(&*connection, &Report::Opened)?;

        let lease = Duration::from_nanos(lease_ns.clamp(1_000_000, MAX_LEASE_NS));
        // Heartbeats say when to wait no longer.
        connection.set_limit(Duration::MAX);
        let silence = Silence::default();
        let _heartbeats = hear_conductor(
            self.beats,
            &connection,
            &silence,
            beat_session,
            self.credentials,
            lease,
        )?;
        let agent = Arc::new(AgentRun::new(RunTerms {
            connection: Arc::clone(&connection),
            engine,
            options,
            run,
            credentials: self.credentials.clone(),
            switchboard: Arc::clone(self.switchboard),
            obedience: Arc::clone(self.obedience),
            council,
        }));
        let result = agent.serve();
        match silence.is_set() {
            true => Err(io::Error::other(format!(
                "it has been silent for {} ms",
                lease.as_millis()
            ))),
            false => result,
        }
    }
}

/// Begins to hear the conductor, and to be heard by it; its connection ends when it becomes silent.
fn hear_conductor(
    beats: &UdpSocket,
    connection: &Arc<SharedConnection>,
    silence: &Silence,
    session: u128,
    credentials: &Credentials,
    lease: Duration,
) -> io::Result<Heartbeats> {
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
    let token = credentials.token.clone();
    Heartbeats::start(
        beats.try_clone()?,
        token,
        BeatSender::Agent,
        lease,
        conductor,
    )
}

/// Receives a bundle, and loads it; the conductor is told if this host cannot run it.
fn receive_engine(
    connection: &SharedConnection,
    bundle_bytes: u64,
    bundle_sum: u64,
    registry: &Registry,
) -> io::Result<Engine> {
    let opened = receive_bundle(connection, bundle_bytes, bundle_sum)
        .map_err(|error| error.to_string())
        .and_then(|bundle| open_bundle(&bundle, registry));
    match opened {
        Ok(engine) => Ok(engine),
        Err(why) => {
            message::send(connection, &Report::Unfit { why: why.clone() })?;
            Err(io::Error::other(why))
        }
    }
}

/// Receives a bundle into a file without a name.
fn receive_bundle(mut connection: &SharedConnection, bytes: u64, sum: u64) -> io::Result<File> {
    if bytes > MAX_BUNDLE_BYTES {
        return Err(io::Error::other(format!(
            "a bundle of {bytes} bytes, {MAX_BUNDLE_BYTES} are the most"
        )));
    }
    let mut file = File::from(memfd_create("zbmd bundle", MemfdFlags::CLOEXEC)?);
    let mut found_sum = Xxh3::new();
    let mut piece = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let most = left.min(piece.len() as u64) as usize;
        let found = connection.read(&mut piece[..most])?;
        if found == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the bundle ends {left} bytes before its {bytes}"),
            ));
        }
        found_sum.update(&piece[..found]);
        file.write_all(&piece[..found])?;
        left -= found as u64;
    }
    let found = found_sum.digest();
    if found != sum {
        return Err(io::Error::other(format!(
            "the bundle has checksum {found:016x}, it was sent with {sum:016x}"
        )));
    }
    Ok(file)
}

/// The engine for a bundle, which is verified like any other.
fn open_bundle(bundle: &File, registry: &Registry) -> Result<Engine, String> {
    let path = format!("/proc/self/fd/{}", bundle.as_raw_fd());
    let modes = zbmd_ir::bundle::open_modes(Path::new(&path)).map_err(|error| error.to_string())?;
    Engine::with_modes(modes, registry).map_err(|error| error.to_string())
}
