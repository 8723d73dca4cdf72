//! A client's side of connections: tries again with back-off, so that a server that was started again is seen soon, and
//! one that is not there costs nothing.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, connect, getpeername, getsockname, socket_with, sockopt,
};
use zbmd_supervise::{Backoff, BackoffPolicy};

use super::wait_for;
use crate::clock::{now_ns, sleep_until};

/// The first retry comes at once, and none later than 62 ms after the one before.
const BACKOFF: BackoffPolicy = BackoffPolicy {
    base_ns: 10_000_000,
    factor: 2.0,
    longest_ns: 50_000_000,
    jitter: 0.25,
    reset_ns: 1_000_000_000,
};
/// A server that does not answer by then is tried again.
const CONNECT_NS: u64 = 3_000_000_000;

enum Attempt {
    /// The next one begins then.
    Waiting { until_ns: u64 },
    /// It is given up then.
    Connecting { socket: OwnedFd, until_ns: u64 },
    /// It succeeded then.
    Connected { since_ns: u64 },
}

/// Connects, again and again.
pub(crate) struct Connector {
    addresses: Vec<SocketAddr>,
    next_address: usize,
    backoff: Backoff,
    attempt: Attempt,
}

impl Connector {
    pub(super) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self {
            addresses,
            next_address: 0,
            backoff: Backoff::new(BACKOFF, now_ns()),
            attempt: Attempt::Waiting { until_ns: 0 },
        }
    }

    /// Goes on with the attempt at hand for so long.
    pub(super) fn open(&mut self, limit_ns: u64) -> Option<TcpStream> {
        let give_up_ns = now_ns().saturating_add(limit_ns);
        if let Attempt::Waiting { until_ns } = self.attempt {
            sleep_until(until_ns.min(give_up_ns));
            if now_ns() < until_ns {
                return None;
            }
            self.begin();
        }

        let Attempt::Connecting { socket, until_ns } = &self.attempt else {
            return None;
        };
        let left_ns = give_up_ns.min(*until_ns).saturating_sub(now_ns());
        let is_decided = wait_for(socket, PollFlags::OUT, left_ns);
        let is_connected = is_decided && matches!(sockopt::socket_error(socket), Ok(Ok(())));
        if !is_decided && now_ns() < *until_ns {
            return None;
        }
        if !is_connected || is_connected_to_itself(socket) {
            self.failed(0);
            return None;
        }
        let since_ns = now_ns();
        match std::mem::replace(&mut self.attempt, Attempt::Connected { since_ns }) {
            Attempt::Connecting { socket, .. } => Some(TcpStream::from(socket)),
            _ => None,
        }
    }

    fn begin(&mut self) {
        let address = self.addresses[self.next_address % self.addresses.len()];
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let begun = socket_with(family, SocketType::STREAM, flags, None).and_then(|socket| {
            match connect(&socket, &address) {
                Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
                Err(error) => Err(error),
            }
        });
        match begun {
            Ok(socket) => {
                let until_ns = now_ns().saturating_add(CONNECT_NS);
                self.attempt = Attempt::Connecting { socket, until_ns };
            }
            Err(_) => self.failed(0),
        }
    }

    /// The next address is tried at once, and the first one again after a wait.
    fn failed(&mut self, lived_ns: u64) {
        self.next_address += 1;
        let is_first = self.next_address.is_multiple_of(self.addresses.len());
        let wait_ns = match is_first {
            true => self.backoff.wait_ns(0, lived_ns),
            false => 0,
        };
        let until_ns = now_ns().saturating_add(wait_ns);
        self.attempt = Attempt::Waiting { until_ns };
    }

    /// The connection is gone.
    pub(super) fn lost(&mut self) {
        let lived_ns = match self.attempt {
            Attempt::Connected { since_ns } => now_ns().saturating_sub(since_ns),
            _ => 0,
        };
        // The same address first: it has answered.
        let wait_ns = self.backoff.wait_ns(0, lived_ns);
        let until_ns = now_ns().saturating_add(wait_ns);
        self.attempt = Attempt::Waiting { until_ns };
    }

    /// How long there is nothing to do.
    pub(super) fn pause_ns(&self) -> u64 {
        /// An attempt under way is looked at so often.
        const LOOK_NS: u64 = 5_000_000;
        match self.attempt {
            Attempt::Waiting { until_ns } => until_ns.saturating_sub(now_ns()),
            Attempt::Connecting { .. } | Attempt::Connected { .. } => LOOK_NS,
        }
    }
}

/// Whether both ends of a connection are this socket.
///
/// TCP connects a socket to itself when the port that the system picked for it is the one that it asks for, and nobody
/// listens there (RFC 9293, section 3.5: both sides open at the same time). Who tries again and again to reach a local
/// server that is down gets there in the end, and would keep the port from the server.
fn is_connected_to_itself(socket: &OwnedFd) -> bool {
    match (getsockname(socket), getpeername(socket)) {
        (Ok(own), Ok(peer)) => Some(own) == peer,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use rustix::net::bind;

    use super::*;

    fn bound() -> (OwnedFd, SocketAddr) {
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let socket = socket.expect("a socket");
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("bound");
        let name = getsockname(&socket).expect("bound");
        (socket, SocketAddr::try_from(name).expect("of IPv4"))
    }

    #[test]
    fn a_socket_that_met_itself_is_told_from_one_with_a_peer() {
        let (socket, own) = bound();
        connect(&socket, &own).expect("both sides open at the same time");
        assert!(is_connected_to_itself(&socket));

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let (socket, _) = bound();
        connect(&socket, &listener.local_addr().expect("bound")).expect("it listens");
        assert!(!is_connected_to_itself(&socket));
    }
}
