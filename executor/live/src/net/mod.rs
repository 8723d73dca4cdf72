//! Connections that come back: a client that connects again and again, a server with one client. Nobody is waited for
//! without a limit. Must not know what is sent.

mod connector;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use self::connector::Connector;
use crate::url::StreamAddress;

/// Connections that are closed at once before whoever waits for us has its turn.
const MAX_REFUSED: usize = 64;
/// A peer that went without a word is noticed after about so long.
const KEEP_ALIVE_S: u64 = 5;

/// The addresses of a name.
pub(crate) fn resolve(address: &StreamAddress) -> io::Result<Vec<SocketAddr>> {
    let found = (address.host.as_str(), address.port).to_socket_addrs()?;
    let addresses: Vec<SocketAddr> = found.collect();
    match addresses.is_empty() {
        true => Err(io::Error::other(format!("{} has no address", address.host))),
        false => Ok(addresses),
    }
}

/// A time for `poll`.
pub(crate) fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

fn wait_for(fd: impl AsFd, flags: PollFlags, limit_ns: u64) -> bool {
    let mut poll_fds = [PollFd::new(&fd, flags)];
    poll(&mut poll_fds, Some(&timespec(limit_ns))).is_ok_and(|ready| ready > 0)
}

/// Waits until something can be read, or an end or an error seen; whether that is so.
pub(crate) fn wait_readable(fd: impl AsFd, limit_ns: u64) -> bool {
    wait_for(fd, PollFlags::IN, limit_ns)
}

/// Where connections come from.
pub(crate) enum Link {
    Client(Connector),
    Server { listener: TcpListener, refused: u64 },
}

impl Link {
    /// A client of the first of these addresses that answers.
    pub(crate) fn connect(addresses: Vec<SocketAddr>) -> Self {
        Self::Client(Connector::new(addresses))
    }

    /// A server at the first of these addresses that can be bound.
    pub(crate) fn listen(addresses: &[SocketAddr]) -> io::Result<Self> {
        let listener = TcpListener::bind(addresses)?;
        listener.set_nonblocking(true)?;
        let refused = 0;
        Ok(Self::Server { listener, refused })
    }

    /// Waits for a connection for so long.
    pub(crate) fn open(&mut self, limit_ns: u64) -> Option<TcpStream> {
        let stream = match self {
            Self::Client(connector) => connector.open(limit_ns)?,
            Self::Server { listener, .. } => {
                if !wait_readable(&*listener, limit_ns) {
                    return None;
                }
                listener.accept().ok()?.0
            }
        };
        stream.set_nonblocking(true).ok()?;
        // Without these a peer is noticed to have gone later, and small writes are late.
        let _ = stream.set_nodelay(true);
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let keep_alive = std::time::Duration::from_secs(KEEP_ALIVE_S);
        let _ = sockopt::set_tcp_keepidle(&stream, keep_alive);
        let _ = sockopt::set_tcp_keepintvl(&stream, std::time::Duration::from_secs(1));
        Some(stream)
    }

    /// The connection is gone.
    pub(crate) fn lost(&mut self) {
        if let Self::Client(connector) = self {
            connector.lost();
        }
    }

    /// Closes connections that are made while there is one.
    pub(crate) fn refuse_others(&mut self) {
        if let Self::Server { listener, refused } = self {
            for _ in 0..MAX_REFUSED {
                if listener.accept().is_err() {
                    return;
                }
                *refused += 1;
            }
        }
    }

    /// Connections that were closed at once.
    pub(crate) fn refused(&self) -> u64 {
        match self {
            Self::Client(_) => 0,
            Self::Server { refused, .. } => *refused,
        }
    }

    /// How long [`Self::open`] has nothing to do; `None` if it should be called as soon as there is time.
    pub(crate) fn pause_ns(&self) -> u64 {
        match self {
            Self::Client(connector) => connector.pause_ns(),
            Self::Server { .. } => u64::MAX,
        }
    }

    /// What to wait on for a connection.
    pub(crate) fn listener(&self) -> Option<&TcpListener> {
        match self {
            Self::Client(_) => None,
            Self::Server { listener, .. } => Some(listener),
        }
    }
}
