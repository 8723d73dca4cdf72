//! Bytes on their way from or to a socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;

use crate::socket::{read_now, write_now};

/// Bytes that wait, in the middle of a fixed piece of memory.
pub(crate) struct Pending {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Pending {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes].into(),
            start: 0,
            end: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn waiting(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Reads what a socket has now, as much as there is room for, which is at least `room`; `None` if it has nothing, and 0 bytes if
    /// its peer has closed it.
    pub(crate) fn read(&mut self, socket: &TcpStream, room: usize) -> io::Result<Option<usize>> {
        if self.room().len() < room {
            // What waits moves to the beginning.
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let read = read_now(socket, &mut [IoSliceMut::new(self.room())])?;
        self.end += read.unwrap_or(0);
        Ok(read)
    }

    /// Writes what waits; whether nothing waits any more.
    pub(crate) fn write(&mut self, socket: &TcpStream) -> io::Result<bool> {
        while !self.is_empty() {
            match write_now(socket, &[IoSlice::new(self.waiting())])? {
                Some(bytes) => self.consume(bytes),
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}
