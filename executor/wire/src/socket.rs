//! What is needed of sockets and clocks: reading and writing that never block, and waiting with a limit.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustix::time::{ClockId, clock_gettime};

const SECOND_NS: u64 = 1_000_000_000;

/// Nanoseconds of the system's monotonic clock.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * SECOND_NS + now.tv_nsec as u64
}

/// When to wait no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Option<u64>);

impl Deadline {
    /// Wait as long as it takes.
    pub const NEVER: Self = Self(None);

    /// So long from now on.
    pub fn after(limit: Duration) -> Self {
        let limit_ns = limit.as_nanos().try_into().unwrap_or(u64::MAX);
        Self(monotonic_ns().checked_add(limit_ns))
    }

    /// Nanoseconds until then; `None` if it never comes.
    pub fn left_ns(self) -> Option<u64> {
        self.0.map(|end_ns| end_ns.saturating_sub(monotonic_ns()))
    }

    /// What is left, as the system takes it; an error if it has come.
    fn left(self) -> io::Result<Option<Timespec>> {
        match self.left_ns() {
            Some(0) => Err(io::ErrorKind::TimedOut.into()),
            left_ns => Ok(left_ns.map(timespec)),
        }
    }
}

/// Nanoseconds as the system takes them.
pub(crate) fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / SECOND_NS).cast_signed(),
        tv_nsec: (ns % SECOND_NS) as _,
    }
}

/// Bytes that a socket has now, into places in a row; `None` if it has none. 0 bytes: its peer has closed it.
pub(crate) fn read_now(
    socket: &TcpStream,
    places: &mut [IoSliceMut<'_>],
) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::readv(socket, places) {
            Ok(bytes) => return Ok(Some(bytes)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes as much as a socket takes now; `None` if that is nothing. Raises no signal if its peer is gone.
pub(crate) fn write_now(socket: &TcpStream, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
    loop {
        let mut no_control = SendAncillaryBuffer::default();
        match sendmsg(socket, parts, &mut no_control, SendFlags::NOSIGNAL) {
            Ok(bytes) => return Ok(Some(bytes)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until a descriptor is ready.
pub(crate) fn wait_ready(
    descriptor: BorrowedFd<'_>,
    flags: PollFlags,
    deadline: Deadline,
) -> io::Result<()> {
    loop {
        let left = deadline.left()?;
        let mut polled = [PollFd::from_borrowed_fd(descriptor, flags)];
        match poll(&mut polled, left.as_ref()) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A connection to an address, which never blocks from here on and delays nothing.
///
/// # Errors
/// What the system says, or that the deadline has come.
pub fn connect_by(address: SocketAddr, deadline: Deadline) -> io::Result<TcpStream> {
    let left_ns = deadline.left_ns().unwrap_or(60 * SECOND_NS);
    if left_ns == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let socket = TcpStream::connect_timeout(&address, Duration::from_nanos(left_ns))?;
    prepare(&socket)?;
    Ok(socket)
}

/// Where somebody who may be about to start is looked for so often.
const START_PAUSE: Duration = Duration::from_millis(20);

/// A connection as by [`connect_by`] to somebody who may be about to start, who is waited for until `start`; each attempt may take
/// `limit`. With it comes when the last attempt's limit is over.
///
/// # Errors
/// As [`connect_by`].
pub fn connect_when_started(
    address: SocketAddr,
    limit: Duration,
    start: Deadline,
) -> io::Result<(TcpStream, Deadline)> {
    loop {
        let may_start = start.left_ns() != Some(0);
        let deadline = Deadline::after(limit);
        match connect_by(address, deadline) {
            Ok(socket) => return Ok((socket, deadline)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && may_start => {
                std::thread::sleep(START_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Lets a socket never block, and send at once what it is given.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)
}
