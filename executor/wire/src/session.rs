//! The TLS of one connection: plaintext in places on one side, bytes of a socket on the other. Takes rustls's unbuffered
//! interface, so that sockets are read and written in pieces of several records, from and into buffers that are there from
//! the beginning. What rustls itself allocates is one buffer for each record, in both directions.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustls::Error;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};

use crate::socket::{Deadline, read_now, wait_ready, write_now};

/// Bytes of plaintext in a record, at most.
const RECORD_BYTES: usize = 16 << 10;
/// The longest record: RFC 8446 lets one grow by 256 bytes, its header has 5.
const MAX_RECORD_BYTES: usize = RECORD_BYTES + 261;
/// Records that are read at a time, and that are written at a time: a receiver decrypts some while the next are encrypted.
const INCOMING_RECORDS: usize = 8;
const OUTGOING_RECORDS: usize = 2;
/// Room beside the records of a write, for what rustls has to say itself.
const RESERVE_BYTES: usize = 1 << 10;
/// The other side has so long to read why it is refused.
const LINGER: Duration = Duration::from_millis(200);

/// Bytes that wait, in the middle of a fixed piece of memory.
struct Pending {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Pending {
    fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes].into(),
            start: 0,
            end: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn waiting(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Moves what waits to the beginning.
    fn compact(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }
}

/// Which side of TLS this is.
enum Role {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What a step has done.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Something: another step may do more.
    Progress,
    /// What was to be encrypted is.
    Encrypted,
    /// Nothing until bytes come.
    NeedsBytes,
    /// The other side has said that it sends nothing more.
    Closed,
}

/// The TLS of a connection.
pub(crate) struct TlsSession {
    role: Role,
    /// Records that have come.
    incoming: Pending,
    /// Records that the socket has not taken yet.
    outgoing: Pending,
    /// Plaintext that had no place yet, from `plain_start` on.
    plain: Vec<u8>,
    plain_start: usize,
    /// The parts of a short write, one after the other: they are one record.
    gathered: Box<[u8]>,
    /// The other side has said that it sends nothing more.
    is_closed: bool,
    /// rustls has failed: it takes no further step, but one for its alert.
    is_failed: bool,
    /// The last read has found nothing more, here or in the socket.
    is_drained: bool,
}

impl std::fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsSession(..)")
    }
}

impl TlsSession {
    pub(crate) fn client(connection: UnbufferedClientConnection) -> Self {
        Self::new(Role::Client(connection))
    }

    pub(crate) fn server(connection: UnbufferedServerConnection) -> Self {
        Self::new(Role::Server(connection))
    }

    fn new(role: Role) -> Self {
        let buffer_bytes = |records: usize| records * MAX_RECORD_BYTES + RESERVE_BYTES;
        Self {
            role,
            incoming: Pending::new(buffer_bytes(INCOMING_RECORDS)),
            outgoing: Pending::new(buffer_bytes(OUTGOING_RECORDS)),
            plain: Vec::with_capacity(RECORD_BYTES),
            plain_start: 0,
            gathered: vec![0; RECORD_BYTES].into(),
            is_closed: false,
            is_failed: false,
            is_drained: false,
        }
    }

    /// The handshake of TLS. If it fails, the other side is told why.
    ///
    /// # Errors
    /// What the system or rustls says, or that the deadline has come.
    pub(crate) fn handshake(&mut self, socket: &TcpStream, deadline: Deadline) -> io::Result<()> {
        loop {
            while !self.flush(socket)? {
                wait_ready(socket.as_fd(), PollFlags::OUT, deadline)?;
            }
            match self.step_and_keep(None) {
                Ok(Step::Progress | Step::Encrypted) => {}
                Ok(Step::NeedsBytes) if !self.is_handshaking() => return Ok(()),
                Ok(Step::NeedsBytes) => match self.read_records(socket)? {
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

    /// Plaintext that is there now, into places in a row, like [`read_now`]: `None` if there is none, 0 bytes if there will
    /// never be any more.
    ///
    /// # Errors
    /// What the system says, or bytes that are not what the other side has sent.
    pub(crate) fn read_now(
        &mut self,
        socket: &TcpStream,
        places: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        self.is_drained = false;
        let wanted: usize = places.iter().map(|place| place.len()).sum();
        let mut filled = fill(places, 0, &self.plain[self.plain_start..]);
        self.plain_start += filled;

        while filled < wanted && !self.is_closed {
            self.plain.clear();
            self.plain_start = 0;
            let mut rest = std::mem::take(&mut self.plain);
            let mut deliver = |bytes: &[u8]| {
                let placed = fill(places, filled, bytes);
                filled += placed;
                rest.extend_from_slice(&bytes[placed..]);
            };
            let step = self.step(&mut deliver, None);
            self.plain = rest;
            match step {
                Ok(Step::Progress | Step::Encrypted) => {}
                Ok(Step::NeedsBytes) if filled > 0 => break,
                Ok(Step::NeedsBytes) => {
                    // What rustls has to say itself, such as a change of keys.
                    self.flush(socket)?;
                    match self.read_records(socket)? {
                        Some(0) => return Ok(Some(0)),
                        Some(_) => {}
                        None => {
                            self.is_drained = true;
                            return Ok(None);
                        }
                    }
                }
                Ok(Step::Closed) => self.is_closed = true,
                Err(error) => {
                    self.send_alert(socket);
                    return Err(failed(error));
                }
            }
        }
        Ok(Some(filled))
    }

    /// Takes as much as there is room for, like [`write_now`]: `None` if that is nothing. What it has taken may still wait
    /// here: see [`Self::has_unsent`].
    ///
    /// # Errors
    /// What the system or rustls says.
    pub(crate) fn write_now(
        &mut self,
        socket: &TcpStream,
        parts: &[IoSlice<'_>],
    ) -> io::Result<Option<usize>> {
        if !self.flush(socket)? {
            return Ok(None);
        }
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        let mut taken = 0;
        if whole <= RECORD_BYTES {
            let mut gathered = std::mem::take(&mut self.gathered);
            for part in parts {
                gathered[taken..taken + part.len()].copy_from_slice(part);
                taken += part.len();
            }
            let encrypted = self.encrypt(&gathered[..taken]);
            self.gathered = gathered;
            encrypted?;
        } else {
            let records = parts.iter().flat_map(|part| part.chunks(RECORD_BYTES));
            for record in records {
                if self.outgoing.room().len() < MAX_RECORD_BYTES + RESERVE_BYTES {
                    break;
                }
                self.encrypt(record)?;
                taken += record.len();
            }
        }
        self.flush(socket)?;
        Ok(Some(taken))
    }

    /// Whether the socket has yet to take something.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether something may be here that the socket does not show any more.
    pub(crate) fn has_unread(&self) -> bool {
        let is_plain_there = self.plain_start < self.plain.len();
        is_plain_there || !self.is_drained && !self.incoming.is_empty()
    }

    fn is_handshaking(&self) -> bool {
        match &self.role {
            Role::Client(connection) => connection.is_handshaking(),
            Role::Server(connection) => connection.is_handshaking(),
        }
    }

    fn encrypt(&mut self, plaintext: &[u8]) -> io::Result<()> {
        while !plaintext.is_empty() {
            match self.step_and_keep(Some(plaintext)).map_err(failed)? {
                Step::Encrypted => break,
                Step::Progress => {}
                Step::Closed => self.is_closed = true,
                Step::NeedsBytes => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        Ok(())
    }

    /// A step that keeps what comes for the next read.
    fn step_and_keep(&mut self, plaintext: Option<&[u8]>) -> Result<Step, Error> {
        let mut plain = std::mem::take(&mut self.plain);
        let step = self.step(&mut |bytes| plain.extend_from_slice(bytes), plaintext);
        self.plain = plain;
        step
    }

    /// Takes the next step. The records that have come are part of each, of one that encrypts too: rustls remembers places
    /// in them.
    fn step(
        &mut self,
        deliver: &mut dyn FnMut(&[u8]),
        plaintext: Option<&[u8]>,
    ) -> Result<Step, Error> {
        if self.is_failed {
            return Err(Error::General("TLS has failed before".to_owned()));
        }
        let incoming = self.incoming.waiting();
        let outgoing = &mut self.outgoing;
        let (discard, step) = match &mut self.role {
            Role::Client(connection) => {
                let status = connection.process_tls_records(incoming);
                take_step(status, deliver, plaintext, outgoing)
            }
            Role::Server(connection) => {
                let status = connection.process_tls_records(incoming);
                take_step(status, deliver, plaintext, outgoing)
            }
        };
        self.incoming.consume(discard);
        self.is_failed = step.is_err();
        step
    }

    /// Writes what waits; whether nothing waits any more.
    fn flush(&mut self, socket: &TcpStream) -> io::Result<bool> {
        while !self.outgoing.is_empty() {
            match write_now(socket, &[IoSlice::new(self.outgoing.waiting())])? {
                Some(bytes) => self.outgoing.consume(bytes),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn read_records(&mut self, socket: &TcpStream) -> io::Result<Option<usize>> {
        if self.incoming.room().len() < MAX_RECORD_BYTES {
            self.incoming.compact();
        }
        let read = read_now(socket, &mut [IoSliceMut::new(self.incoming.room())])?;
        self.incoming.end += read.unwrap_or(0);
        Ok(read)
    }

    /// After an error: tells the other side which one, if the socket takes that now.
    #[cold]
    fn send_alert(&mut self, socket: &TcpStream) {
        let has_alert = match &self.role {
            Role::Client(connection) => connection.wants_write(),
            Role::Server(connection) => connection.wants_write(),
        };
        if has_alert {
            self.is_failed = false;
            let _ = self.step(&mut |_| {}, None);
            self.is_failed = true;
        }
        let _ = self.flush(socket);
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
    deliver: &mut dyn FnMut(&[u8]),
    plaintext: Option<&[u8]>,
    outgoing: &mut Pending,
) -> (usize, Result<Step, Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let too_long = |what: String| Error::General(format!("TLS: {what}"));
    let step = match state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    deliver(record.payload);
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
            Err(error) => Err(too_long(error.to_string())),
        },
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // It is among what waits for the socket.
            data.done();
            Ok(Step::Progress)
        }
        Ok(ConnectionState::WriteTraffic(mut traffic)) => match plaintext {
            None => Ok(Step::NeedsBytes),
            Some(plaintext) => match traffic.encrypt(plaintext, outgoing.room()) {
                Ok(bytes) => {
                    outgoing.end += bytes;
                    Ok(Step::Encrypted)
                }
                Err(error) => Err(too_long(error.to_string())),
            },
        },
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::NeedsBytes),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Closed),
        Ok(other) => Err(too_long(format!("{other:?} was not asked for"))),
    };
    (discard, step)
}

/// Puts bytes into places in a row, behind what is there; how many had room.
pub(crate) fn fill(places: &mut [IoSliceMut<'_>], mut filled: usize, mut bytes: &[u8]) -> usize {
    let mut placed = 0;
    for place in places {
        if filled >= place.len() {
            filled -= place.len();
            continue;
        }
        let count = bytes.len().min(place.len() - filled);
        place[filled..filled + count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        placed += count;
        filled = 0;
    }
    placed
}

/// An error of rustls among those of the system.
fn failed(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, TcpListener};
    use std::sync::Arc;

    use super::*;
    use crate::testing::{Authority, Flaw};
    use crate::tls::Tls;

    /// Both ends, after the handshake.
    fn pair() -> [(TlsSession, TcpStream); 2] {
        let tls = Authority::new().tls(Flaw::None);
        let name = Tls::name_of(IpAddr::from(Ipv4Addr::LOCALHOST));
        let client = UnbufferedClientConnection::new(Arc::clone(&tls.client_config()), name);
        let mut client = TlsSession::client(client.expect("a client"));
        let server = UnbufferedServerConnection::new(tls.server_config());
        let mut server = TlsSession::server(server.expect("a server"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let dialed = TcpStream::connect(listener.local_addr().expect("an address"));
        let (dialed, accepted) = (
            dialed.expect("connected"),
            listener.accept().expect("accepted").0,
        );
        let deadline = Deadline::after(Duration::from_secs(10));
        for socket in [&dialed, &accepted] {
            socket.set_nonblocking(true).expect("set");
        }
        std::thread::scope(|scope| {
            scope.spawn(|| client.handshake(&dialed, deadline).expect("known"));
            server.handshake(&accepted, deadline).expect("known");
        });
        [(client, dialed), (server, accepted)]
    }

    fn pass(from: &mut (TlsSession, TcpStream), to: &mut (TlsSession, TcpStream), byte: u8) {
        let written = from.0.write_now(&from.1, &[IoSlice::new(&[byte; 100])]);
        assert_eq!(written.expect("taken"), Some(100));
        let mut found = [0; 100];
        let mut done = 0;
        while done < found.len() {
            let read =
                to.0.read_now(&to.1, &mut [IoSliceMut::new(&mut found[done..])]);
            match read.expect("ours") {
                Some(bytes) => done += bytes,
                None => {
                    let deadline = Deadline::after(Duration::from_secs(10));
                    wait_ready(to.1.as_fd(), PollFlags::IN, deadline).expect("it comes");
                }
            }
        }
        assert_eq!(found, [byte; 100]);
    }

    /// Keys change after so many records, and the other side answers with a change of its own.
    #[test]
    fn keys_change_in_the_middle() {
        let [mut client, mut server] = pair();
        pass(&mut client, &mut server, 1);
        let Role::Client(connection) = &mut client.0.role else {
            panic!("it is the client");
        };
        match connection.process_tls_records(&mut []).state {
            Ok(ConnectionState::WriteTraffic(traffic)) => {
                traffic.refresh_traffic_keys().expect("TLS 1.3");
            }
            other => panic!("{other:?}"),
        }
        for byte in 2..5 {
            pass(&mut client, &mut server, byte);
            pass(&mut server, &mut client, byte);
        }
    }
}
