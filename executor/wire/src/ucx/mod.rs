//! Connections whose bytes go over UCX, the communication library under most implementations of MPI: over RDMA, shared memory or TCP, as
//! the environment (`UCX_TLS`, `UCX_NET_DEVICES`) and the computer allow.
//!
//! The connection over TCP on which the two sides have shown that they know the token stays. On it they tell each other the
//! addresses of their UCX workers, and its end is how one learns that the other is gone: UCX itself says so after many seconds, or not at
//! all. Nothing is encrypted, so the network must be trusted.
//!
//! What is sent is copied once, so that a caller's bytes are its own again at once.

mod api;
mod stream;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;

use self::api::Ucx;
pub(crate) use self::stream::UcxStream;
use crate::connection::Connection;
use crate::error::UcxError;
use crate::socket::{Deadline, wait_ready};

/// What an address begins with, on the connection over TCP.
const MAGIC: [u8; 8] = *b"ZBMDU\0\0\x01";
/// A longer address is none.
const MAX_ADDRESS_BYTES: u32 = 64 << 10;
/// The first byte over UCX: with it both sides have a path to each other.
const GREETING: [u8; 1] = [1];
/// Between two looks at connections that are being made.
const PAUSE: Duration = Duration::from_micros(100);
/// A wait for an address looks as often whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// Whether tokens can go over UCX here.
///
/// # Errors
/// It is not installed, or does not start.
pub fn find_ucx() -> Result<(), UcxError> {
    Ucx::get()
        .map(|_| ())
        .map_err(|why| UcxError::Missing { why })
}

/// From here on these connections, which are plain, carry their bytes over UCX, as they do on the other side of each.
///
/// # Errors
/// The number of the connection for which that fails, and why.
pub fn carry_over_ucx(
    connections: &mut [Connection],
    deadline: Deadline,
    is_stopped: impl Fn() -> bool,
) -> Result<(), (usize, UcxError)> {
    // Each step begins when nobody waits for the one before any more: hosts may come to their connections in any order.
    let mut streams = Vec::with_capacity(connections.len());
    for (index, connection) in connections.iter_mut().enumerate() {
        let told = UcxStream::new(connection.socket()).and_then(|stream| {
            connection.write_all_by(&message(&stream.address()?), deadline)?;
            Ok(stream)
        });
        streams.push(told.map_err(|error| (index, error))?);
    }
    for (index, (connection, stream)) in connections.iter_mut().zip(&mut streams).enumerate() {
        let greeted = read_address(connection, deadline, &is_stopped).and_then(|address| {
            stream.connect(&address)?;
            stream.write_now(&[IoSlice::new(&GREETING)])?;
            Ok(())
        });
        greeted.map_err(|error| (index, error))?;
    }
    wait_for_greetings(connections, &mut streams, deadline, is_stopped)?;
    for (connection, stream) in connections.iter_mut().zip(streams) {
        connection.carry_over(stream);
    }
    Ok(())
}

fn message(address: &[u8]) -> Vec<u8> {
    let bytes = address.len() as u32;
    [&MAGIC, &bytes.to_le_bytes()[..], address].concat()
}

fn read_address(
    connection: &mut Connection,
    deadline: Deadline,
    is_stopped: &impl Fn() -> bool,
) -> Result<Vec<u8>, UcxError> {
    while let Err(error) = wait_ready(connection.as_fd(), PollFlags::IN, Deadline::after(LOOK)) {
        let is_over = deadline.left_ns() == Some(0) || is_stopped();
        if is_over || error.kind() != io::ErrorKind::TimedOut {
            return Err(error.into());
        }
    }
    let mut header = [0; MAGIC.len() + size_of::<u32>()];
    read(connection, &mut header, deadline)?;
    let (magic, bytes) = header.split_at(MAGIC.len());
    let bytes = u32::from_le_bytes(std::array::from_fn(|i| bytes[i]));
    if magic != MAGIC || bytes > MAX_ADDRESS_BYTES {
        return Err(UcxError::NotUcx);
    }
    let mut address = vec![0; bytes as usize];
    read(connection, &mut address, deadline)?;
    Ok(address)
}

fn read(connection: &mut Connection, bytes: &mut [u8], deadline: Deadline) -> Result<(), UcxError> {
    let read = connection.read_exact_by(bytes, deadline);
    read.map_err(|(_, error)| error.into())
}

/// Waits until something has come over all of them and something has gone, so that none has to be connected when tokens are sent.
fn wait_for_greetings(
    connections: &[Connection],
    streams: &mut [UcxStream],
    deadline: Deadline,
    is_stopped: impl Fn() -> bool,
) -> Result<(), (usize, UcxError)> {
    let mut has_come = vec![false; streams.len()];
    loop {
        let mut first_waiting = None;
        for (index, (connection, stream)) in connections.iter().zip(&mut *streams).enumerate() {
            let failed = |error: io::Error| (index, error.into());
            // Each has its turn until all are done: the other sides wait for it as this one does.
            stream.write_now(&[]).map_err(failed)?;
            if !has_come[index] {
                let mut greeting = [0; GREETING.len()];
                let places = &mut [IoSliceMut::new(&mut greeting)];
                let read = stream.read_now(connection.socket(), places);
                has_come[index] = match read.map_err(failed)? {
                    Some(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                    read => read.is_some(),
                };
            }
            if !has_come[index] || stream.has_unsent() {
                first_waiting.get_or_insert(index);
            }
        }

        let Some(waiting) = first_waiting else {
            return Ok(());
        };
        if deadline.left_ns() == Some(0) || is_stopped() {
            return Err((waiting, io::Error::from(io::ErrorKind::TimedOut).into()));
        }
        std::thread::sleep(PAUSE);
    }
}
