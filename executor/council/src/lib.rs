//! The *council*: three or five voters that agree on who conducts a run, and on what is decided in it. Consensus is raft-rs's
//! ([Raft], with pre-vote and check-quorum); this crate has what surrounds it.
//!
//! - [`node::Node`]: one voter as a state machine without clock, threads or I/O. Inputs come with their time; what comes out is
//!   what to write, what to send, and what has been decided ([`node::Output`]). So a simulation can run it as it is.
//! - [`journal::Journal`]: term, vote and log of a voter on disk.
//! - [`decision::Decided`]: what the decisions come to, alike on all voters.
//! - [`member::Member`]: a voter at work, on a thread, over sockets.
//! - [`message::Message`]: what voters say to each other. Bytes from the network are decoded as this, never by raft-rs's own
//!   parser (protobuf 2, which has an open advisory), and checked against what can be true before raft-rs sees them: it panics
//!   at what cannot.
//!
//! # Who may act
//!
//! The leader is the *conductor*, and acts within its *lease* only. The lease counts from when it *sent* the heartbeats that a
//! majority then answered, and ends after [`node::LEASE_TICKS`]. A voter that has answered elects nobody else for
//! [`node::ELECTION_TICKS`], less one for where in a tick the heartbeat came; one that has been started again has forgotten
//! whom it answered, so it votes for nobody for so long. Two voters of any two majorities being the same, leases of two
//! conductors never overlap, as long as clocks run alike to one part in nine. Nobody's clock is compared with another's.
//!
//! # What is decided
//!
//! The number of an epoch is the index of its entry in the log: it is never used twice. A border that is in the log is not
//! lost as long as a majority of the voters' disks is there.
//!
//! [Raft]: https://raft.github.io/raft.pdf "Ongaro & Ousterhout 2014, In search of an understandable consensus algorithm"

mod check;
pub mod decision;
pub mod error;
pub mod journal;
mod links;
pub mod member;
pub mod message;
pub mod node;
mod output;
mod record;
mod settings;
mod storage;

use serde::{Deserialize, Serialize};

/// The number of a voter, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VoterId(pub u64);

impl std::fmt::Display for VoterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "voter {}", self.0)
    }
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Its place, from 1.
    pub index: u64,
    /// The term of the leader that has appended it.
    pub term: u64,
    /// An encoded [`decision::Decision`]; empty for the entry that a leader begins with.
    pub data: Vec<u8>,
}

/// The state that all entries up to an index come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The last entry that is in it.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// An encoded [`decision::Decided`].
    pub state: Vec<u8>,
}
