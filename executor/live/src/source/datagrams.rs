//! Many datagrams in one system call, and how many the system dropped: `recvmmsg` and `SO_RXQ_OVFL`, which rustix does
//! not have. Must not know what is in them.
#![cfg_attr(
    target_os = "linux",
    expect(
        unsafe_code,
        reason = "fills structures of pointers for recvmmsg, and sets a socket option that rustix does not have"
    )
)]

use std::io;
use std::net::UdpSocket;

/// Datagrams in a call.
const BATCH: usize = 32;
/// No datagram is longer.
const MAX_DATAGRAM: usize = 1 << 16;

/// Buffers for a call's datagrams. Only the pages that datagrams reach are ever in memory.
pub(super) struct DatagramBatch {
    buffers: Vec<u8>,
    /// Datagrams that the system had dropped when the last one arrived; it counts with 32 bits.
    dropped: u32,
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::AsRawFd;

    use super::*;

    /// Room for one control message with a number of 32 bits, aligned as such messages must be.
    #[derive(Clone, Copy)]
    #[repr(C, align(8))]
    struct Control([u8; 64]);

    impl DatagramBatch {
        /// Buffers for this socket, which counts what is dropped from now on.
        pub(in super::super) fn new(socket: &UdpSocket) -> io::Result<Self> {
            let is_on: libc::c_int = 1;
            // SAFETY: the descriptor is open, and the option takes an int, whose address and size are given.
            let result = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_RXQ_OVFL,
                    (&raw const is_on).cast(),
                    size_of::<libc::c_int>() as libc::socklen_t,
                )
            };
            match result {
                0 => Ok(Self {
                    buffers: vec![0; BATCH * MAX_DATAGRAM],
                    dropped: 0,
                }),
                _ => Err(io::Error::last_os_error()),
            }
        }

        /// Shows all datagrams of one call to `visit`, each with how many were dropped before it; how many there were.
        /// Waits for none.
        pub(in super::super) fn receive(
            &mut self,
            socket: &UdpSocket,
            mut visit: impl FnMut(&[u8], u64),
        ) -> io::Result<usize> {
            let mut controls = [Control([0; 64]); BATCH];
            let mut vectors = [libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: MAX_DATAGRAM,
            }; BATCH];
            // SAFETY: these structures are numbers and pointers, for which zeros are valid.
            let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
            let buffers = self.buffers.chunks_exact_mut(MAX_DATAGRAM);
            for (index, buffer) in buffers.enumerate() {
                vectors[index].iov_base = buffer.as_mut_ptr().cast();
                let header = &mut headers[index].msg_hdr;
                header.msg_iov = &raw mut vectors[index];
                header.msg_iovlen = 1;
                header.msg_control = (&raw mut controls[index]).cast();
                header.msg_controllen = size_of::<Control>() as _;
            }

            // SAFETY: each header points to one vector, which has the address and length of a buffer of its own, and to
            // a control buffer with its size; all of them outlive the call.
            let received = unsafe {
                libc::recvmmsg(
                    socket.as_raw_fd(),
                    headers.as_mut_ptr(),
                    BATCH as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            };
            let count = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
            for (index, header) in headers[..count].iter().enumerate() {
                let dropped_now = dropped_before(&header.msg_hdr).unwrap_or(self.dropped);
                let dropped = dropped_now.wrapping_sub(self.dropped);
                self.dropped = dropped_now;
                let begin = index * MAX_DATAGRAM;
                let length = (header.msg_len as usize).min(MAX_DATAGRAM);
                visit(&self.buffers[begin..begin + length], u64::from(dropped));
            }
            Ok(count)
        }
    }

    /// The system's count of dropped datagrams; it is there once any was dropped.
    fn dropped_before(header: &libc::msghdr) -> Option<u32> {
        // SAFETY: the call has filled the control buffer that the header points to, and set its length.
        let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
        while !message.is_null() {
            // SAFETY: it is not null, so it points to a complete control message in that buffer.
            let (level, kind) = unsafe { ((*message).cmsg_level, (*message).cmsg_type) };
            if level == libc::SOL_SOCKET && kind == libc::SO_RXQ_OVFL {
                // SAFETY: messages of this kind carry a number of 32 bits, which need not be aligned.
                return Some(unsafe { libc::CMSG_DATA(message).cast::<u32>().read_unaligned() });
            }
            // SAFETY: header and message are those of the call.
            message = unsafe { libc::CMSG_NXTHDR(header, message) };
        }
        None
    }
}

#[cfg(not(target_os = "linux"))]
impl DatagramBatch {
    /// Buffers for this socket.
    pub(super) fn new(_: &UdpSocket) -> io::Result<Self> {
        Ok(Self {
            buffers: vec![0; MAX_DATAGRAM],
            dropped: 0,
        })
    }

    /// Shows the datagrams that are there to `visit`; how many. Waits for none.
    pub(super) fn receive(
        &mut self,
        socket: &UdpSocket,
        mut visit: impl FnMut(&[u8], u64),
    ) -> io::Result<usize> {
        let mut count = 0;
        while count < BATCH {
            match socket.recv(&mut self.buffers) {
                Ok(length) => visit(&self.buffers[..length], u64::from(self.dropped)),
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
            count += 1;
        }
        Ok(count)
    }
}
