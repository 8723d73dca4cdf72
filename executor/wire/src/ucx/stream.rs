//! The bytes of one connection over UCX: a worker and an endpoint of their own.
#![expect(unsafe_code, reason = "calls a C library")]

use std::ffi::c_void;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::api::{
    BUSY, CLOSE_FORCE, ENDPOINT_FIELD_ADDRESS, ENDPOINT_FIELD_ERROR_HANDLER,
    ENDPOINT_FIELD_ERROR_MODE, ERROR_MODE_PEER, EndpointParameters, Handle, IN_PROGRESS, OK,
    REQUEST_FIELD_FLAGS, RequestParameters, SocketAddress, Status, THREAD_MODE_SERIALIZED, Ucx,
    WORKER_FIELD_THREAD_MODE, WorkerParameters, request_of,
};
use crate::error::UcxError;
use crate::session::fill;
use crate::socket::Deadline;

/// Bytes that are sent at a time.
const SEND_BYTES: usize = 256 << 10;
/// A forced close takes no longer, as a rule far less.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Bytes that UCX has received, until they are read.
struct Incoming {
    data: *mut u8,
    bytes: usize,
    taken: usize,
}

impl Incoming {
    const NONE: Self = Self {
        data: null_mut(),
        bytes: 0,
        taken: 0,
    };

    fn is_empty(&self) -> bool {
        self.data.is_null()
    }
}

/// One connection's bytes over UCX.
pub(crate) struct UcxStream {
    ucx: &'static Ucx,
    worker: Handle,
    /// Null until the other side's address is known.
    endpoint: Handle,
    /// Readable when UCX has something to do, or the connection over TCP has ended.
    readable: OwnedFd,
    incoming: Incoming,
    /// What is being sent.
    outgoing: Box<[u8]>,
    /// The request that sends it; null if it is sent.
    sending: Handle,
}

// SAFETY: the worker was made for use by any thread, one at a time, and all else here belongs to it; `&mut self` is needed for everything.
unsafe impl Send for UcxStream {}
// SAFETY: nothing is done through a shared reference but to name the descriptor.
unsafe impl Sync for UcxStream {}

impl std::fmt::Debug for UcxStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UcxStream(..)")
    }
}

impl UcxStream {
    /// A worker of its own, which knows no other yet.
    pub(super) fn new(socket: &TcpStream) -> Result<Self, UcxError> {
        let ucx = Ucx::get().map_err(|why| UcxError::Missing { why })?;
        let parameters = WorkerParameters {
            field_mask: WORKER_FIELD_THREAD_MODE,
            thread_mode: THREAD_MODE_SERIALIZED,
            cores: [0; _],
            events: 0,
            user_data: null_mut(),
            event_descriptor: 0,
            flags: 0,
            name: null(),
            message_alignment: 0,
            client: 0,
        };
        let readable = epoll::create(epoll::CreateFlags::CLOEXEC);
        let readable = readable.map_err(|error| UcxError::System(error.into()))?;
        let mut worker = null_mut();
        // SAFETY: the context lives to the end of the process, the parameters are those of its version, and the worker has a place.
        let status =
            unsafe { (ucx.functions.worker_create)(ucx.context, &parameters, &mut worker) };
        check("make a worker", status)?;

        // The worker ends with it, whatever fails from here on.
        let mut stream = Self {
            ucx,
            worker,
            endpoint: null_mut(),
            readable,
            incoming: Incoming::NONE,
            outgoing: vec![0; SEND_BYTES].into(),
            sending: null_mut(),
        };
        stream.watch(socket)?;
        Ok(stream)
    }

    fn watch(&mut self, socket: &TcpStream) -> Result<(), UcxError> {
        let mut descriptor = -1;
        // SAFETY: the worker lives, and the descriptor has a place.
        let status =
            unsafe { (self.ucx.functions.worker_descriptor)(self.worker, &mut descriptor) };
        check("say when there is something to do", status)?;
        // SAFETY: the descriptor is the worker's, which is not destroyed before this function returns.
        let events = unsafe { BorrowedFd::borrow_raw(descriptor) };
        for watched in [events, socket.as_fd()] {
            let data = epoll::EventData::new_u64(0);
            let added = epoll::add(&self.readable, watched, data, epoll::EventFlags::IN);
            added.map_err(|error| UcxError::System(error.into()))?;
        }
        Ok(())
    }

    /// The worker's address, for the other side.
    pub(super) fn address(&self) -> Result<Vec<u8>, UcxError> {
        let functions = &self.ucx.functions;
        let (mut address, mut bytes) = (null_mut(), 0);
        // SAFETY: the worker lives, and address and length have places.
        let status = unsafe { (functions.worker_address)(self.worker, &mut address, &mut bytes) };
        check("say its address", status)?;
        // SAFETY: UCX has written so many bytes there, which stay until they are given back below.
        let copy = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes) }.to_vec();
        // SAFETY: the address is this worker's, and is given back once.
        unsafe { (functions.release_address)(self.worker, address) };
        Ok(copy)
    }

    /// Connects to the worker that has this address.
    pub(super) fn connect(&mut self, address: &[u8]) -> Result<(), UcxError> {
        /// What goes wrong is said by the next call, too.
        extern "C" fn ignore(_: Handle, _: Handle, _: Status) {}

        let no_address = || SocketAddress {
            address: null(),
            bytes: 0,
        };
        let parameters = EndpointParameters {
            field_mask: ENDPOINT_FIELD_ADDRESS
                | ENDPOINT_FIELD_ERROR_MODE
                | ENDPOINT_FIELD_ERROR_HANDLER,
            address: address.as_ptr().cast::<c_void>(),
            error_mode: ERROR_MODE_PEER,
            error_handler: Some(ignore),
            error_argument: null_mut(),
            user_data: null_mut(),
            flags: 0,
            socket_address: no_address(),
            connection_request: null_mut(),
            name: null(),
            local_address: no_address(),
        };
        // SAFETY: the worker lives, the parameters are those of its version, the address is one that UCX of the other side has made and
        // that came over a connection whose ends know the token, and the endpoint has a place.
        let status = unsafe {
            (self.ucx.functions.endpoint_create)(self.worker, &parameters, &mut self.endpoint)
        };
        check("reach the other side", status)
    }

    /// Lets UCX do what there is to do.
    fn progress(&mut self) {
        // SAFETY: the worker lives, and no other thread uses it.
        unsafe { (self.ucx.functions.worker_progress)(self.worker) };
    }

    /// Takes the next bytes that have come, if there are some; whether there are.
    fn fetch(&mut self) -> io::Result<bool> {
        if !self.incoming.is_empty() {
            return Ok(true);
        }
        self.progress();
        let mut bytes = 0;
        // SAFETY: the endpoint is connected, and the length has a place.
        let received = unsafe { (self.ucx.functions.receive)(self.endpoint, &mut bytes) };
        match request_of(received) {
            Ok(None) => Ok(false),
            Ok(Some(data)) => {
                self.incoming = Incoming {
                    data: data.cast(),
                    bytes,
                    taken: 0,
                };
                Ok(true)
            }
            Err(status) => Err(failed(status)),
        }
    }

    /// Bytes that are there now, into places in a row; `None` if there are none, 0 bytes if the connection over TCP has ended.
    pub(crate) fn read_now(
        &mut self,
        socket: &TcpStream,
        places: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        let filled = self.read_fetched(places)?;
        if filled > 0 {
            return Ok(Some(filled));
        }
        match has_ended(socket)? {
            false => Ok(None),
            // What was sent before the end may have come meanwhile.
            true => self.read_fetched(places).map(Some),
        }
    }

    fn read_fetched(&mut self, places: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let wanted: usize = places.iter().map(|place| place.len()).sum();
        let mut filled = 0;
        while filled < wanted && self.fetch()? {
            let Incoming { data, bytes, taken } = self.incoming;
            // SAFETY: UCX has received so many bytes there, which stay until they are released below.
            let received = unsafe { std::slice::from_raw_parts(data, bytes) };
            let placed = fill(places, filled, &received[taken..]);
            filled += placed;
            self.incoming.taken += placed;
            if self.incoming.taken == bytes {
                self.release();
            }
        }
        Ok(filled)
    }

    /// Gives what was received back to UCX.
    fn release(&mut self) {
        let incoming = std::mem::replace(&mut self.incoming, Incoming::NONE);
        // SAFETY: the bytes are of this endpoint, and are given back once, as their place is forgotten.
        unsafe { (self.ucx.functions.release)(self.endpoint, incoming.data.cast()) };
    }

    /// Takes as much as there is room for; `None` if what was taken before is still being sent.
    pub(crate) fn write_now(&mut self, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        self.progress();
        self.finish_sending()?;
        if self.has_unsent() {
            return Ok(None);
        }

        let mut taken = 0;
        for part in parts {
            let bytes = part.len().min(SEND_BYTES - taken);
            self.outgoing[taken..taken + bytes].copy_from_slice(&part[..bytes]);
            taken += bytes;
        }
        if taken == 0 {
            return Ok(Some(0));
        }
        let parameters = RequestParameters::plain(0, 0);
        let data = self.outgoing.as_ptr().cast::<c_void>();
        // SAFETY: the endpoint is connected; the bytes are this stream's own, and are not touched before the request has ended, nor freed
        // before the worker is destroyed.
        let sent = unsafe { (self.ucx.functions.send)(self.endpoint, data, taken, &parameters) };
        if let Some(request) = request_of(sent).map_err(failed)? {
            self.sending = request;
        }
        Ok(Some(taken))
    }

    /// Looks whether what was taken is sent.
    fn finish_sending(&mut self) -> io::Result<()> {
        if self.sending.is_null() {
            return Ok(());
        }
        // SAFETY: the request goes on, or has ended and was not freed.
        let status = unsafe { (self.ucx.functions.request_status)(self.sending) };
        if status == IN_PROGRESS {
            return Ok(());
        }
        let request = std::mem::replace(&mut self.sending, null_mut());
        // SAFETY: the request has ended, and is freed once, as it is forgotten.
        unsafe { (self.ucx.functions.request_free)(request) };
        match status {
            OK => Ok(()),
            status => Err(failed(status)),
        }
    }

    /// Whether something that was taken is still being sent.
    pub(crate) const fn has_unsent(&self) -> bool {
        !self.sending.is_null()
    }

    /// Whether something is there to be done now. If not, the descriptor becomes readable as soon as there is.
    pub(crate) fn is_ready(&mut self) -> bool {
        let was_sending = self.has_unsent();
        loop {
            // Errors are for whoever reads or writes next.
            let is_there = self.fetch().unwrap_or(true);
            let is_sent = was_sending && (self.finish_sending().is_err() || !self.has_unsent());
            if is_there || is_sent {
                return true;
            }
            // SAFETY: the worker lives, and no other thread uses it.
            match unsafe { (self.ucx.functions.worker_arm)(self.worker) } {
                OK => return false,
                BUSY => {}
                _ => return true,
            }
        }
    }

    /// Closes the endpoint whatever its peer does: that has been told all it was to know, or is gone. Whether UCX is done with it.
    fn close(&mut self) -> bool {
        let functions = &self.ucx.functions;
        let deadline = Deadline::after(CLOSE_LIMIT);
        let parameters = RequestParameters::plain(REQUEST_FIELD_FLAGS, CLOSE_FORCE);
        // SAFETY: the endpoint is connected, and is closed once.
        let closed = unsafe { (functions.endpoint_close)(self.endpoint, &parameters) };
        for request in [request_of(closed).ok().flatten(), Some(self.sending)] {
            let Some(request) = request.filter(|request| !request.is_null()) else {
                continue;
            };
            // SAFETY: the request is one of the worker's, and was not freed.
            while unsafe { (functions.request_status)(request) } == IN_PROGRESS {
                if deadline.left_ns() == Some(0) {
                    return false;
                }
                // SAFETY: the worker lives, and no other thread uses it.
                unsafe { (functions.worker_progress)(self.worker) };
            }
            // SAFETY: the request has ended, and nobody asks for it any more.
            unsafe { (functions.request_free)(request) };
        }
        true
    }
}

impl AsFd for UcxStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Drop for UcxStream {
    fn drop(&mut self) {
        if !self.endpoint.is_null() {
            if !self.incoming.is_empty() {
                self.release();
            }
            if !self.close() {
                // UCX may still use both: they stay to the end of the process.
                Box::leak(std::mem::take(&mut self.outgoing));
                return;
            }
        }
        // SAFETY: the worker lives, its endpoint is closed, and nobody uses it any more.
        unsafe { (self.ucx.functions.worker_destroy)(self.worker) };
    }
}

/// Whether the other side has ended the connection over TCP, which carries nothing any more.
fn has_ended(socket: &TcpStream) -> io::Result<bool> {
    match recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Ok(true),
        Ok(_) => Err(io::Error::other(UcxError::NotUcx)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn check(what: &'static str, status: Status) -> Result<(), UcxError> {
    match status {
        OK => Ok(()),
        status => Err(UcxError::Status { what, status }),
    }
}

/// Why nothing is carried any more: mostly because the peer is gone.
#[cold]
fn failed(status: Status) -> io::Error {
    let what = "go on with a connection";
    io::Error::new(
        io::ErrorKind::ConnectionReset,
        UcxError::Status { what, status },
    )
}
