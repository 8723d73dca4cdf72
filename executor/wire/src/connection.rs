//! A connection between two hosts, in TLS or plain: the same calls for both.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, sockopt};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;

use crate::error::PlainError;
use crate::session::TlsSession;
use crate::socket::{Deadline, prepare, read_now, wait_ready, write_now};
use crate::tls::Tls;
use crate::tls_handshake::TlsHandshake;
use crate::token::Token;
use crate::ucx::UcxStream;

/// How connections between hosts are protected.
#[derive(Clone, Debug)]
pub enum Protection {
    /// By TLS; both sides show a certificate.
    Tls(Tls),
    /// They are plain, so they stay in this computer: other addresses than loopback are refused.
    Loopback,
    /// They are plain, and whoever is in the network is trusted.
    Plain,
    /// They are plain in the same way, and tokens go over UCX, on all hosts.
    Ucx,
}

impl Protection {
    /// Whether connections stay in this computer.
    pub const fn is_loopback(&self) -> bool {
        matches!(self, Self::Loopback)
    }

    /// Whether connections to or from an address are possible.
    ///
    /// # Errors
    /// They would leave this computer without protection.
    pub fn check(&self, address: SocketAddr) -> Result<(), PlainError> {
        match self {
            Self::Loopback if !address.ip().to_canonical().is_loopback() => {
                Err(PlainError { address })
            }
            _ => Ok(()),
        }
    }
}

/// What a host shows to others, and asks of them.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The secret that all hosts of a run share.
    pub token: Token,
    /// How its connections are protected.
    pub protection: Protection,
}

/// A connection that never blocks.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    layer: Layer,
}

/// What is between a connection's bytes and its socket.
#[derive(Debug)]
enum Layer {
    /// They are the socket's.
    Plain,
    Tls(Box<TlsSession>),
    /// They go another way, and the socket only says when it ends.
    Ucx(Box<UcxStream>),
}

impl From<TcpStream> for Connection {
    /// A plain one.
    fn from(socket: TcpStream) -> Self {
        Self {
            socket,
            layer: Layer::Plain,
        }
    }
}

impl Connection {
    /// The side that has dialed this address.
    pub(crate) fn dialed(
        socket: TcpStream,
        address: IpAddr,
        protection: &Protection,
        deadline: Deadline,
    ) -> io::Result<Self> {
        prepare(&socket)?;
        let Protection::Tls(tls) = protection else {
            return Ok(socket.into());
        };
        let name = Tls::name_of(address);
        let connection = UnbufferedClientConnection::new(tls.client_config(), name);
        let handshake = TlsHandshake::client(connection.map_err(io::Error::other)?);
        Self::secured(socket, handshake, deadline)
    }

    /// The side that was dialed.
    pub(crate) fn accepted(
        socket: TcpStream,
        protection: &Protection,
        deadline: Deadline,
    ) -> io::Result<Self> {
        prepare(&socket)?;
        let Protection::Tls(tls) = protection else {
            return Ok(socket.into());
        };
        let connection = UnbufferedServerConnection::new(tls.server_config());
        let handshake = TlsHandshake::server(connection.map_err(io::Error::other)?);
        Self::secured(socket, handshake, deadline)
    }

    fn secured(socket: TcpStream, handshake: TlsHandshake, deadline: Deadline) -> io::Result<Self> {
        let session = handshake.run(&socket, deadline)?;
        Ok(Self {
            socket,
            layer: Layer::Tls(Box::new(session)),
        })
    }

    /// The socket, for its addresses and its end.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// From here on its bytes go over UCX.
    #[cfg_attr(
        not(feature = "ucx"),
        expect(dead_code, reason = "nothing goes another way then")
    )]
    pub(crate) fn carry_over(&mut self, stream: UcxStream) {
        self.layer = Layer::Ucx(Box::new(stream));
    }

    /// Bytes that are there now, into places in a row; `None` if there are none, 0 bytes if the peer has closed it.
    pub(crate) fn read_now(&mut self, places: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        match &mut self.layer {
            Layer::Plain => read_now(&self.socket, places),
            Layer::Tls(session) => session.read_now(&self.socket, places),
            Layer::Ucx(stream) => stream.read_now(&self.socket, places),
        }
    }

    /// Takes as much as there is room for now; `None` if that is nothing. Without parts it sends what it has taken before,
    /// `None` if something of that is left.
    pub(crate) fn write_now(&mut self, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        match &mut self.layer {
            Layer::Plain => write_now(&self.socket, parts),
            Layer::Tls(session) => session.write_now(&self.socket, parts),
            Layer::Ucx(stream) => stream.write_now(parts),
        }
    }

    /// Whether something of what was written has yet to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        match &self.layer {
            Layer::Plain => false,
            Layer::Tls(session) => session.has_unsent(),
            Layer::Ucx(stream) => stream.has_unsent(),
        }
    }

    /// Whether something may be there to be read, or was sent, that `poll` does not show. Asked before each `poll`.
    pub(crate) fn is_ready(&mut self) -> bool {
        match &mut self.layer {
            Layer::Plain => false,
            Layer::Tls(session) => session.has_unread(),
            Layer::Ucx(stream) => stream.is_ready(),
        }
    }

    /// Reads exactly so many bytes; how many came before it failed, with the reason.
    pub(crate) fn read_exact_by(
        &mut self,
        buffer: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), (usize, io::Error)> {
        let mut done = 0;
        while done < buffer.len() {
            match self.read_now(&mut [IoSliceMut::new(&mut buffer[done..])]) {
                Ok(Some(0)) => return Err((done, io::ErrorKind::UnexpectedEof.into())),
                Ok(Some(bytes)) => done += bytes,
                Ok(None) => {
                    let waited = wait_ready(self.as_fd(), PollFlags::IN, deadline);
                    waited.map_err(|error| (done, error))?;
                }
                Err(error) => return Err((done, error)),
            }
        }
        Ok(())
    }

    /// Writes all of it.
    pub(crate) fn write_all_by(&mut self, mut bytes: &[u8], deadline: Deadline) -> io::Result<()> {
        while !bytes.is_empty() || self.has_unsent() {
            match self.write_now(&[IoSlice::new(bytes)])? {
                Some(written) => bytes = &bytes[written..],
                None => wait_ready(self.as_fd(), PollFlags::OUT, deadline)?,
            }
        }
        Ok(())
    }
}

impl AsFd for Connection {
    /// What is readable when something has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.layer {
            Layer::Plain | Layer::Tls(_) => self.socket.as_fd(),
            Layer::Ucx(stream) => stream.as_fd(),
        }
    }
}

/// A connection that one thread reads while another writes. Each call waits for its limit at most.
#[derive(Debug)]
pub struct SharedConnection {
    connection: Mutex<Connection>,
    /// The same socket: who waits for it keeps nobody from the connection.
    socket: TcpStream,
    limit: Mutex<Duration>,
}

impl SharedConnection {
    /// Reads and writes fail with `TimedOut` if nothing can be read or written for `limit`.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(connection: Connection, limit: Duration) -> io::Result<Self> {
        Ok(Self {
            socket: connection.socket.try_clone()?,
            connection: Mutex::new(connection),
            limit: Mutex::new(limit),
        })
    }

    /// Another limit, for calls from here on.
    pub fn set_limit(&self, limit: Duration) {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = limit;
    }

    /// The address of this side.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Whether the other side has yet to close it.
    pub fn is_open(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&self.socket, &mut [0; 1], flags) {
            Ok((_, 0)) => false,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }

    /// Waits until the other side has closed the connection, or is gone: that is asked for when nothing has come for ten
    /// seconds.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait_for_end(&self) -> io::Result<()> {
        sockopt::set_socket_keepalive(&self.socket, true)?;
        sockopt::set_tcp_keepidle(&self.socket, Duration::from_secs(10))?;
        sockopt::set_tcp_keepintvl(&self.socket, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(&self.socket, 4)?;
        self.set_limit(Duration::MAX);
        // Nothing more is said; what comes all the same is passed over.
        let mut reader = self;
        while reader.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
        Ok(())
    }

    /// Ends the connection: whoever waits for it fails at once.
    pub fn shutdown(&self) {
        // That it is gone already is no error.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        let connection = self.connection.lock();
        connection.unwrap_or_else(PoisonError::into_inner)
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(*self.limit.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for SharedConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Read for &SharedConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let deadline = self.deadline();
        loop {
            let read = self.connection().read_now(&mut [IoSliceMut::new(buffer)])?;
            match read {
                Some(bytes) => return Ok(bytes),
                None => wait_ready(self.socket.as_fd(), PollFlags::IN, deadline)?,
            }
        }
    }
}

impl Write for &SharedConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let deadline = self.deadline();
        loop {
            let written = self.connection().write_now(&[IoSlice::new(bytes)])?;
            match written {
                Some(written) => return Ok(written),
                None => wait_ready(self.socket.as_fd(), PollFlags::OUT, deadline)?,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let deadline = self.deadline();
        loop {
            let mut connection = self.connection();
            if !connection.has_unsent() || connection.write_now(&[])?.is_some() {
                return Ok(());
            }
            drop(connection);
            wait_ready(self.socket.as_fd(), PollFlags::OUT, deadline)?;
        }
    }
}
