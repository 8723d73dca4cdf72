//! Rings whose two ends are on different hosts: a *wire* carries the tokens of a sending worker to a receiving one over
//! TCP, in TLS or plain, and the credits back. Knows no plans, no kernels and no supervision.
//!
//! # One connection for each sending and receiving worker
//!
//! A connection carries the rings from one worker to another. Its frames ([`frame`]) come in the order in which the
//! sender's calendar has its `Send` slots, so the receiver reads each payload straight into its place in the receiver's
//! buffer. Nothing on the way is queued or copied but by the kernel's socket.
//!
//! # Credits
//!
//! As with a ring in shared memory (its counters, in the executor's `transport::ring`), the sender may have
//! as many blocks outstanding as the receiver's buffer has places, and the receiver gives a place back when it has read
//! the block. Here `published` travels with every block, and `released` in frames of its own: a *credit*. A credit is sent
//! when half of the places have been released; and, before the worker that owes it waits for anything, if the sender has
//! filled all places that it knows to be free.
//!
//! # Waiting without deadlock
//!
//! A worker never waits for one socket alone. Whatever it waits for (tokens, credits, room in a socket's buffer), it takes
//! in what has come on all of its connections: the places for that are free, for nothing is sent without credit. So a
//! worker that waits for room in a socket's buffer waits for no longer than its peer computes. Waits that are not for
//! wires (a ring in shared memory, admission) call [`wires::Wires::pump`] every now and then for the same reason.
//!
//! A wait tries twice, then sleeps in `poll` on all sockets and on a descriptor that becomes readable when the epoch is
//! stopped. No thread sits between the worker and its sockets.
//!
//! # What is believed
//!
//! A connection begins with a handshake ([`handshake`]): whoever does not know the token gets no further. After that every
//! frame is checked against what the ring allows next: a frame that does not fit is an error, a frame of another epoch is
//! counted and dropped.
//!
//! Connections that leave this computer are in TLS, and both sides show a certificate ([`tls`]), unless they are asked to be
//! plain ([`connection::Protection`]). Plain ones are neither encrypted nor signed: then the network must be trusted. Their tokens
//! can go over UCX, where there is a faster way between two hosts than TCP.

#[cfg(feature = "args")]
pub mod args;
pub mod beat;
pub mod connection;
pub mod error;
pub mod frame;
pub mod handshake;
pub mod link_speed;
mod pending;
mod records;
mod session;
mod socket;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tls;
mod tls_handshake;
pub mod token;
#[cfg_attr(not(feature = "ucx"), path = "no_ucx.rs")]
mod ucx;
pub mod wires;

pub use socket::{Deadline, connect_by, connect_when_started, monotonic_ns};
pub use ucx::{carry_over_ucx, find_ucx};
