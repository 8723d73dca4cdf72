//! How a run and its agents find each other where only the run's address is known: agents join it there, and say which host they
//! are and where they listen. From then on it is as if they had been named to the run.
//!
//! An agent's connection stays open for as long as the run is there, so its end tells the agent that the run is over. An agent
//! that was started anew, perhaps at another address, joins again.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zbmd_wire::connection::{Credentials, SharedConnection};
use zbmd_wire::handshake::{Accepted, Hello, Purpose, dial};
use zbmd_wire::{Deadline, connect_by};

use super::message;
use crate::options::{Gather, Join};

/// Each message of a joining has so long.
const MESSAGE_LIMIT: Duration = Duration::from_secs(2);
/// A run that does not answer for so long is not there.
const DIAL_LIMIT: Duration = Duration::from_secs(5);
/// A run that is not there yet is looked for so often.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// What is said of a host's name, at most.
const MAX_NAME_CHARS: usize = 100;

/// What an agent says first.
#[derive(Debug, Serialize, Deserialize)]
struct JoinRequest {
    /// The name of its host, or the host's number in the machine, from 0.
    host: String,
    /// Where it listens. Without an address, at the one that this connection comes from.
    listens_at: SocketAddr,
}

/// The run's answer.
#[derive(Debug, Serialize, Deserialize)]
enum JoinAnswer {
    Joined,
    /// Another agent is that host at the moment.
    Taken {
        why: String,
    },
    /// It cannot be.
    Refused {
        why: String,
    },
}

/// The agents that have joined a run.
pub(super) struct Gathering {
    /// By host, the first of which is the run's own.
    names: Vec<String>,
    joined: Vec<Option<JoinedAgent>>,
    /// Where agents come from.
    joins: Receiver<Accepted>,
}

struct JoinedAgent {
    address: SocketAddr,
    connection: SharedConnection,
}

impl Gathering {
    /// Waits until an agent of each host but the first has joined.
    ///
    /// # Errors
    /// The launcher has started another number of processes than there are hosts, or some have not come in time.
    pub(super) fn wait_for_all(
        names: Vec<String>,
        gather: &Gather,
        joins: Receiver<Accepted>,
    ) -> Result<Self, String> {
        let hosts = names.len();
        if let Some(processes) = gather.processes.filter(|count| *count as usize != hosts) {
            return Err(format!(
                "{processes} processes were started, and the bundle's machine has {hosts} hosts ({}): start {hosts}, one for each host",
                names.join(", ")
            ));
        }

        let mut gathering = Self {
            joined: names.iter().map(|_| None).collect(),
            names,
            joins,
        };
        let deadline = Deadline::after(gather.limit);
        while !gathering.missing().is_empty() {
            let left = deadline
                .left_ns()
                .map_or(Duration::MAX, Duration::from_nanos);
            let Ok(accepted) = gathering.joins.recv_timeout(left) else {
                return Err(format!(
                    "no agent of {} has joined at {} within {:?}: start `zbmd-run agent --join` there with this address",
                    gathering.missing().join(", "),
                    gather.address,
                    gather.limit
                ));
            };
            gathering.admit(accepted);
        }
        Ok(gathering)
    }

    /// Hosts whose agents are awaited.
    fn missing(&self) -> Vec<&str> {
        let agents = self.names.iter().zip(&self.joined).skip(1);
        let missing = agents.filter(|(_, joined)| joined.is_none());
        missing.map(|(name, _)| name.as_str()).collect()
    }

    /// The hosts with agents, and where those listen.
    pub(super) fn agents(&self) -> Vec<(String, SocketAddr)> {
        let joined = self.names.iter().zip(&self.joined);
        let agents =
            joined.filter_map(|(name, agent)| Some((name.clone(), agent.as_ref()?.address)));
        agents.collect()
    }

    /// Lets agents join that were started anew, until nobody calls any more. The end of this is that of the agents'
    /// connections, by which they know that the run is over.
    pub(super) fn go_on(mut self, note_address: impl Fn(usize, SocketAddr)) {
        while let Ok(accepted) = self.joins.recv() {
            if let Some((host, address)) = self.admit(accepted) {
                note_address(host, address);
            }
        }
    }

    /// Lets an agent join: its host and its address. `None` if it goes away or is refused, and has been told why.
    fn admit(&mut self, accepted: Accepted) -> Option<(usize, SocketAddr)> {
        let peer = accepted.peer();
        let connection = accepted.welcome(Deadline::after(MESSAGE_LIMIT)).ok()?;
        let connection = SharedConnection::new(connection, MESSAGE_LIMIT).ok()?;
        let request: JoinRequest = message::receive(&connection).ok()?;
        let host = match self.host_of(&request) {
            Ok(host) => host,
            Err(answer) => {
                // That it is gone already changes nothing.
                let _ = message::send(&connection, &answer);
                return None;
            }
        };

        let mut address = request.listens_at;
        if address.ip().is_unspecified() {
            address.set_ip(peer.ip());
        }
        message::send(&connection, &JoinAnswer::Joined).ok()?;
        self.joined[host] = Some(JoinedAgent {
            address,
            connection,
        });
        Some((host, address))
    }

    /// The host that an agent is to be.
    fn host_of(&self, request: &JoinRequest) -> Result<usize, JoinAnswer> {
        let (hosts, known) = (self.names.len(), self.names.join(", "));
        let asked: String = request.host.chars().take(MAX_NAME_CHARS).collect();
        let by_name = self.names.iter().position(|name| *name == request.host);
        let host = match (by_name, asked.parse::<usize>()) {
            (Some(host), _) => host,
            (None, Ok(number)) if number < hosts => number,
            (None, Ok(number)) => {
                let why = format!(
                    "it is host {number}, counted from 0, and the bundle's machine has {hosts} hosts ({known}): start {hosts} processes, one for each host"
                );
                return Err(JoinAnswer::Refused { why });
            }
            (None, Err(_)) => {
                let why = format!(
                    "it is host `{asked}`, and the bundle's machine has the hosts {known}: name one of them, or its number from 0"
                );
                return Err(JoinAnswer::Refused { why });
            }
        };

        if host == 0 {
            let why = format!(
                "host {} is the run's own: agents are the other hosts of {known}",
                self.names[0]
            );
            return Err(JoinAnswer::Refused { why });
        }
        match &self.joined[host] {
            Some(agent) if agent.connection.is_open() => Err(JoinAnswer::Taken {
                why: format!(
                    "an agent at {} is host {} already: start one for each host",
                    agent.address, self.names[host]
                ),
            }),
            _ => Ok(host),
        }
    }
}

/// Why an agent could not join.
pub(super) enum JoinError {
    /// There is no run yet, or another agent is that host: it is worth another try.
    NotYet(String),
    /// It will not change.
    Refused(String),
}

/// Joins the run that gathers its agents, as an agent that listens at `listens_at`. The connection ends with the run.
pub(super) fn join(
    join: &Join,
    listens_at: SocketAddr,
    credentials: &Credentials,
) -> Result<SharedConnection, JoinError> {
    let place = &join.address;
    let not_yet = |error: io::Error| JoinError::NotYet(format!("{place}: {error}"));
    let mut addresses = place.to_socket_addrs().map_err(not_yet)?;
    let nobody = || not_yet(io::Error::other("it has no address"));
    let address = addresses.next().ok_or_else(nobody)?;
    let checked = credentials.protection.check(address);
    checked.map_err(|error| JoinError::Refused(error.to_string()))?;

    let deadline = Deadline::after(DIAL_LIMIT);
    let socket = connect_by(address, deadline).map_err(not_yet)?;
    let hello = Hello {
        purpose: Purpose::Join,
        run: 0,
        epoch: 0,
        plan: 0,
        sender: 0,
        receiver: 0,
    };
    let dialed = dial(socket, &hello, credentials, deadline);
    let connection = dialed.map_err(|error| match error.may_pass() {
        true => JoinError::NotYet(error.to_string()),
        false => JoinError::Refused(error.to_string()),
    })?;
    let connection = SharedConnection::new(connection, MESSAGE_LIMIT).map_err(not_yet)?;

    let request = JoinRequest {
        host: join.host.clone(),
        listens_at,
    };
    message::send(&connection, &request).map_err(not_yet)?;
    match message::receive(&connection).map_err(not_yet)? {
        JoinAnswer::Joined => Ok(connection),
        JoinAnswer::Taken { why } => Err(JoinError::NotYet(format!("{place}: {why}"))),
        JoinAnswer::Refused { why } => Err(JoinError::Refused(format!("{place}: {why}"))),
    }
}

/// Joins the run once it is there, which is waited for within the limit of `join`; `tell` is given the reason for waiting,
/// whenever it is another one.
///
/// # Errors
/// It refuses us, or is not there in time.
pub(super) fn join_when_there(
    join: &Join,
    listens_at: SocketAddr,
    credentials: &Credentials,
    tell: impl Fn(String),
) -> Result<SharedConnection, String> {
    let deadline = join.limit.map_or(Deadline::NEVER, Deadline::after);
    let mut told = String::new();
    loop {
        let why = match self::join(join, listens_at, credentials) {
            Ok(connection) => return Ok(connection),
            Err(JoinError::Refused(why)) => return Err(why),
            Err(JoinError::NotYet(why)) => why,
        };
        if deadline.left_ns() == Some(0) {
            let limit = join.limit.unwrap_or_default();
            return Err(format!(
                "{why}: no run has taken this agent within {limit:?}"
            ));
        }
        if why != told {
            tell(why.clone());
            told = why;
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}
