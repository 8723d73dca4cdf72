//! Ports for sockets that are bound later than their address is told.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// A port of this host that nobody uses now, for TCP and UDP.
///
/// It is below the ports that a system gives to sockets that ask for none, so no other socket has it by the time that
/// it is bound, and it is free again as soon as it is closed. Tests of one process get different ones.
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 6_000;
    static ASKED: AtomicU32 = AtomicU32::new(0);

    // Processes that run beside each other begin far from each other.
    let begin = std::process::id().wrapping_mul(97);
    for _ in 0..COUNT {
        let place = begin.wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = (FIRST + place) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if is_free_for_tcp(address) && UdpSocket::bind(address).is_ok() {
            return port;
        }
    }
    panic!("no port from {FIRST} to {} is free", FIRST + COUNT - 1);
}

/// Whether an address can be bound, found out without listening there.
///
/// A process that another test starts at this moment keeps a copy of the socket until it executes its program. Were it one
/// that listens, whoever connects to the port meanwhile would reach it, and what is sent there would be lost with it.
fn is_free_for_tcp(address: SocketAddr) -> bool {
    let flags = SocketFlags::CLOEXEC;
    let Ok(socket) = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None) else {
        return false;
    };
    // As servers do, so that such a copy does not keep the port from them.
    sockopt::set_socket_reuseaddr(&socket, true).is_ok() && bind(&socket, &address).is_ok()
}
