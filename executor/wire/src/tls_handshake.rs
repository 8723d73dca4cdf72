//! The handshake of TLS over a socket that never blocks, by rustls's unbuffered interface. The session that follows has its keys.

use std::io::{self, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustls::Error;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};

use crate::pending::Pending;
use crate::records::{KeySource, MAX_RECORD_BYTES, Records};
use crate::session::{TlsSession, failed};
use crate::socket::{Deadline, read_now, wait_ready};

/// Most bytes of a flight of messages, with the certificates of a host.
const FLIGHT_BYTES: usize = 4 * MAX_RECORD_BYTES;
/// The other side has so long to read why it is refused.
const LINGER: Duration = Duration::from_millis(200);

/// Which side of TLS this is.
enum Role {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What a step has done.
enum Step {
    /// Something: another step may do more.
    Progress,
    /// Nothing until bytes come, or all that there is to do.
    Waits,
    /// The other side has said that it sends nothing more.
    Closed,
}

/// A handshake that is on its way.
pub(crate) struct TlsHandshake {
    role: Role,
    incoming: Pending,
    outgoing: Pending,
    /// What came right behind the handshake, and was opened with it.
    early: Vec<u8>,
}

impl TlsHandshake {
    pub(crate) fn client(connection: UnbufferedClientConnection) -> Self {
        Self::new(Role::Client(connection))
    }

    pub(crate) fn server(connection: UnbufferedServerConnection) -> Self {
        Self::new(Role::Server(connection))
    }

    fn new(role: Role) -> Self {
        Self {
            role,
            incoming: Pending::new(FLIGHT_BYTES),
            outgoing: Pending::new(FLIGHT_BYTES),
            early: Vec::new(),
        }
    }

    /// Goes through it. If it fails, the other side is told why.
    ///
    /// # Errors
    /// What the system or rustls says, or that the deadline has come.
    pub(crate) fn run(mut self, socket: &TcpStream, deadline: Deadline) -> io::Result<TlsSession> {
        loop {
            while !self.outgoing.write(socket)? {
                wait_ready(socket.as_fd(), PollFlags::OUT, deadline)?;
            }
            match self.step() {
                Ok(Step::Progress) => {}
                Ok(Step::Waits) if !self.is_handshaking() => return self.into_session(),
                Ok(Step::Waits) => match self.incoming.read(socket, MAX_RECORD_BYTES)? {
                    Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Some(_) => {}
                    None => wait_ready(socket.as_fd(), PollFlags::IN, deadline)?,
                },
                Ok(Step::Closed) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => {
                    self.send_alert(socket);
                    linger(socket);
                    return Err(failed(error));
                }
            }
        }
    }

    fn is_handshaking(&self) -> bool {
        match &self.role {
            Role::Client(connection) => connection.is_handshaking(),
            Role::Server(connection) => connection.is_handshaking(),
        }
    }

    /// The session that follows. All has been sent, and all whole records that have come are opened.
    fn into_session(mut self) -> io::Result<TlsSession> {
        let derived = match self.role {
            Role::Client(connection) => connection
                .dangerous_into_kernel_connection()
                .map(|(secrets, connection)| (secrets, KeySource::Client(connection))),
            Role::Server(connection) => connection
                .dangerous_into_kernel_connection()
                .map(|(secrets, connection)| (secrets, KeySource::Server(connection))),
        };
        let (secrets, keys) = derived.map_err(failed)?;
        let records = Records::new(secrets, keys).map_err(failed)?;
        Ok(TlsSession::new(
            records,
            &self.early,
            self.incoming.waiting(),
        ))
    }

    /// Takes the next step.
    fn step(&mut self) -> Result<Step, Error> {
        let incoming = self.incoming.waiting();
        let (early, outgoing) = (&mut self.early, &mut self.outgoing);
        let (discard, step) = match &mut self.role {
            Role::Client(connection) => {
                take_step(connection.process_tls_records(incoming), early, outgoing)
            }
            Role::Server(connection) => {
                take_step(connection.process_tls_records(incoming), early, outgoing)
            }
        };
        self.incoming.consume(discard);
        step
    }

    /// After an error: tells the other side which one, if the socket takes that now.
    #[cold]
    fn send_alert(&mut self, socket: &TcpStream) {
        let has_alert = match &self.role {
            Role::Client(connection) => connection.wants_write(),
            Role::Server(connection) => connection.wants_write(),
        };
        if has_alert {
            let _ = self.step();
        }
        let _ = self.outgoing.write(socket);
    }
}

/// Gives the other side the time to read why it is refused: a socket that is closed with something unread would take that
/// away.
#[cold]
fn linger(socket: &TcpStream) {
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let deadline = Deadline::after(LINGER);
    let mut unread = [0; 1024];
    loop {
        match read_now(socket, &mut [IoSliceMut::new(&mut unread)]) {
            Ok(None) if wait_ready(socket.as_fd(), PollFlags::IN, deadline).is_ok() => {}
            Ok(Some(1..)) if deadline.left_ns() != Some(0) => {}
            _ => return,
        }
    }
}

/// Does what a status asks for: how many bytes of the records are used up, and what has been done.
fn take_step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    early: &mut Vec<u8>,
    outgoing: &mut Pending,
) -> (usize, Result<Step, Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let unexpected = |what: String| Error::General(format!("TLS: {what}"));
    let step = match state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    early.extend_from_slice(record.payload);
                }
                Some(Err(error)) => break Err(error),
                None => break Ok(Step::Progress),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => match data.encode(outgoing.room()) {
            Ok(bytes) => {
                outgoing.end += bytes;
                Ok(Step::Progress)
            }
            Err(error) => Err(unexpected(error.to_string())),
        },
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // It is among what waits for the socket.
            data.done();
            Ok(Step::Progress)
        }
        Ok(ConnectionState::WriteTraffic(_) | ConnectionState::BlockedHandshake) => Ok(Step::Waits),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Closed),
        Ok(other) => Err(unexpected(format!("{other:?} was not asked for"))),
    };
    (discard, step)
}
