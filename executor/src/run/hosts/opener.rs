//! How the conductor gets hold of an agent: connects to it, has it load the bundle, and begins to hear it. Once at the start
//! of a run, and again for a host that was lost, until it comes back or the run ends.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use zbmd_ir::{DeviceId, TiVec};
use zbmd_wire::connection::{Connection, SharedConnection};
use zbmd_wire::error::{HandshakeError, Refusal};
use zbmd_wire::handshake::{Hello, Purpose, dial, new_run};
use zbmd_wire::{Deadline, connect_when_started};

use super::bundle_parts::RunBundle;
use super::link::{HostLink, LinkHost};
use super::message::{self, OpenTerms, Order, ProcessTerms, Report};
use super::seat::council_sum;
use crate::options::Hosts;
use crate::run::event::WorkerEvent;
use crate::run::inbox::EventSender;
use crate::worker::job::HostOptions;

/// An agent that does not answer for so long is not there.
const DIAL_LIMIT: Duration = Duration::from_secs(5);
/// An agent that has yet to start, or serves another run, is asked again for so long, and so often.
const START_LIMIT: Duration = Duration::from_secs(2);
const START_PAUSE: Duration = Duration::from_millis(20);
/// An agent has so long to load a bundle.
const OPEN_LIMIT: Duration = Duration::from_secs(120);
/// What an agent has said before it has ended the connection is there after so long.
const LAST_WORDS_LIMIT: Duration = Duration::from_secs(2);
/// A host that was lost is looked for so often.
const RETURN_PAUSE: Duration = Duration::from_millis(200);

/// What an agent must be told before it can take part in a run.
pub(super) struct AgentOpener {
    pub run: u128,
    pub hosts: Hosts,
    /// That of the present program.
    pub bundle: Mutex<Arc<RunBundle>>,
    pub options: HostOptions,
    /// How agents run workers that are processes; threads else.
    pub processes: Option<ProcessTerms>,
    pub hosts_of_devices: TiVec<DeviceId, usize>,
    pub events: EventSender<WorkerEvent>,
    /// Where the agent of each host is; an agent that was started anew may be elsewhere.
    pub addresses: Mutex<Vec<SocketAddr>>,
    /// Nobody looks for hosts any more.
    pub is_over: AtomicBool,
}

impl AgentOpener {
    /// Connects to the agent of a host, has it load the bundle, and waits for its first heartbeat. What the agent lacks of the
    /// bundle it gets from the agent at `upstream`, if there is one, and from here what does not come from there.
    ///
    /// # Errors
    /// It is not there, refuses us or the bundle, or is not heard.
    pub(super) fn open(
        &self,
        host: usize,
        upstream: Option<SocketAddr>,
    ) -> Result<HostLink, String> {
        let address = self.addresses()[host];
        let text = |error: io::Error| format!("{address}: {error}");
        let session = new_run().map_err(text)?;
        let connection = SharedConnection::new(self.dial(address)?, OPEN_LIMIT);
        let connection = connection.map_err(text)?;

        let bundle = self.bundle();
        let open = Order::Open(OpenTerms {
            bundle: bundle.parts().clone(),
            options: self.options,
            lease_ns: self.hosts.lease.as_nanos() as u64,
            beat_session: session,
            council: self.hosts.council.as_ref().map(council_sum),
            upstream,
            processes: self.processes,
        });
        message::send(&connection, &open).map_err(text)?;
        let first_part = loop {
            match receive_report(&connection, address)? {
                Report::Has { .. } => {}
                Report::Lacks { first_part } => break first_part,
                other => return Err(format!("{address}: it answers {other:?}")),
            }
        };
        let sent = bundle.send(first_part, &connection);
        if sent.is_err() {
            // An agent that finds a part wrong has said so before it has ended the connection.
            connection.set_limit(LAST_WORDS_LIMIT);
        }
        match receive_report(&connection, address)? {
            Report::Opened => {}
            other => return Err(format!("{address}: it answers {other:?}")),
        }
        let devices = self.hosts_of_devices.iter_enumerated();
        let own_devices = devices.filter(|(_, of)| **of == host);
        let link_host = LinkHost {
            host,
            devices: own_devices.map(|(device, _)| device).collect(),
            address,
            bundle: bundle.number(),
        };
        HostLink::start(
            link_host,
            connection,
            session,
            (&self.hosts, self.options),
            self.events.clone(),
        )
    }

    /// That of the present program.
    pub(super) fn bundle(&self) -> Arc<RunBundle> {
        let bundle = self.bundle.lock();
        Arc::clone(&bundle.unwrap_or_else(PoisonError::into_inner))
    }

    /// The run goes over to another program.
    pub(super) fn set_bundle(&self, to: Arc<RunBundle>) {
        *self.bundle.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// Where the agent of each host is; that of this host says nothing.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let addresses = self.addresses.lock();
        addresses.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The agent of a host has been started anew.
    pub(super) fn set_address(&self, host: usize, address: SocketAddr) {
        let addresses = self.addresses.lock();
        addresses.unwrap_or_else(PoisonError::into_inner)[host] = address;
    }

    /// One that is not there yet may be about to start, and one that serves another run may be about to end it: that is
    /// waited for a while.
    fn dial(&self, address: SocketAddr) -> Result<Connection, String> {
        let hello = Hello {
            purpose: Purpose::Control,
            run: self.run,
            epoch: 0,
            plan: self.bundle().number(),
            sender: 0,
            receiver: 0,
        };

        let start_deadline = Deadline::after(START_LIMIT);
        loop {
            let connected = connect_when_started(address, DIAL_LIMIT, start_deadline);
            let (socket, deadline) = connected.map_err(|error| {
                format!("{address}: {error}: is `zbmd-run agent` started there?")
            })?;

            let may_end = start_deadline.left_ns() != Some(0);
            match dial(socket, &hello, &self.hosts.credentials, deadline) {
                Ok(connection) => return Ok(connection),
                Err(HandshakeError::Refused {
                    why: Refusal::Busy, ..
                }) if may_end => std::thread::sleep(START_PAUSE),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Looks for a host that was lost, on a thread of its own, until it is back or the run is over. Without a thread it stays
    /// lost.
    pub(super) fn look_for(self: &Arc<Self>, host: usize) {
        let opener = Arc::clone(self);
        let look = move || {
            while !opener.is_over.load(Ordering::Acquire) {
                std::thread::sleep(RETURN_PAUSE);
                if let Ok(link) = opener.open(host, None) {
                    let link = Box::new(link);
                    opener.events.send(WorkerEvent::HostBack { host, link });
                    return;
                }
            }
        };
        let _ = std::thread::Builder::new()
            .name(format!("zbmd return of host {host}"))
            .spawn(look);
    }
}

/// What an agent says next; an error if it is that it cannot take part.
fn receive_report(connection: &SharedConnection, address: SocketAddr) -> Result<Report, String> {
    match message::receive(connection) {
        Ok(Report::Unfit { why }) => Err(why),
        Ok(report) => Ok(report),
        Err(error) => Err(format!("{address}: {error}")),
    }
}
