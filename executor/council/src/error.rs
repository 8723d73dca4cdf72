//! What can go wrong. Each error says where, which two values disagree, and what to do about it.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::VoterId;

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too many of them.
    #[error("{what} of {bytes} bytes, none has more than {max}: all voters must run the same zbmd")]
    Long {
        /// What they should be.
        what: &'static str,
        /// How many there are.
        bytes: u64,
        /// The most that there can be.
        max: u64,
    },
    /// They mean nothing.
    #[error("{what} cannot be read ({why}): all voters must run the same zbmd")]
    Nonsense {
        /// What they should be.
        what: &'static str,
        /// What is wrong with them.
        why: String,
    },
}

/// Voters that cannot be a council.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CouncilError {
    /// Neither three nor five.
    #[error(
        "a council of {found} voters; it has 3 or 5, so that a majority is left when one or two are lost: add a host without devices as a witness, or run without a council"
    )]
    Size {
        /// How many there are.
        found: usize,
    },
    /// Two with the same number, or one without.
    #[error("{voter} is there twice, or is 0: number the voters from 1, each differently")]
    Number {
        /// Which number.
        voter: VoterId,
    },
    /// This voter is not among them.
    #[error("{voter} is not in the council: give all voters the same list, in the same order")]
    Stranger {
        /// Which voter.
        voter: VoterId,
    },
    /// Nobody could conduct.
    #[error("all {found} voters are witnesses: one must be able to conduct")]
    Witnesses {
        /// How many there are.
        found: usize,
    },
    /// Ticks that no clock has.
    #[error("a tick of {found_ns} ns; it must have 100000 (0.1 ms) to 10000000000 (10 s)")]
    Tick {
        /// As it was asked for.
        found_ns: u64,
    },
    /// A journal that contradicts itself.
    #[error(
        "the voter's journal cannot be gone on from ({why}): restore its folder, or put another voter in its place"
    )]
    Journal {
        /// What is wrong.
        why: String,
    },
}

/// A message that cannot be from a voter of this council.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Not of this council, or not for this voter.
    #[error(
        "a message from {from} to {to} has come to {own} of {voters} voters: give all voters the same list, in the same order"
    )]
    Address {
        /// As it says.
        from: VoterId,
        /// As it says.
        to: VoterId,
        /// Who got it.
        own: VoterId,
        /// How many there are.
        voters: usize,
    },
    /// This voter's disk has less than it has promised to keep.
    #[error(
        "{from} counts on entries up to {promised} here, this voter has them up to {found}: its folder was lost, or replaced by an older one; put another voter in its place"
    )]
    Forgotten {
        /// Who says so.
        from: VoterId,
        /// What was promised.
        promised: u64,
        /// The last entry.
        found: u64,
    },
    /// Numbers that contradict each other.
    #[error("{from} sends {what}: all voters must run the same zbmd")]
    Nonsense {
        /// Who says so.
        from: VoterId,
        /// What.
        what: String,
    },
}

/// A proposal that this voter cannot make.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Only the leader proposes.
    #[error("this voter does not lead the council; {} does", leader.map_or_else(|| "nobody".to_owned(), |voter| voter.to_string()))]
    NotLeader {
        /// Who does, as far as it knows.
        leader: Option<VoterId>,
    },
    /// It cannot be encoded.
    #[error(transparent)]
    Decision(#[from] DecodeError),
}

/// A journal that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// What the system says.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Another program's, or another version's.
    #[error(
        "{} is no journal of a voter (it begins with {found:02x?}): give --council a folder of its own",
        path.display()
    )]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// Of another voter, or another council.
    #[error(
        "{} is the journal of {found}, this is {expected}: each voter has a folder of its own",
        path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// As the file has it.
        found: String,
        /// Who asks.
        expected: String,
    },
    /// Bytes that were written whole and are not what they were.
    #[error(
        "{}: the record at byte {offset} has checksum {found:016x}, it was written with {written:016x}: the disk has changed it. What this voter has promised may be lost: put another voter in its place",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the record begins.
        offset: u64,
        /// As the file has it.
        written: u64,
        /// Of what is there.
        found: u64,
    },
    /// A record whose bytes are right and mean nothing.
    #[error("{}: the record at byte {offset}: {source}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Where the record begins.
        offset: u64,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// Another process writes it.
    #[error(
        "{} is used by another process: each voter has a folder of its own",
        path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
}

/// A voter that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// Not a council, or not one of its voters.
    #[error(transparent)]
    Council(#[from] CouncilError),
    /// Its journal cannot be gone on from.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Nobody knows where a voter is.
    #[error("{voter} has no address: give one for each voter")]
    NoAddress {
        /// Which one.
        voter: VoterId,
    },
    /// It would be reached without protection.
    #[error("{0}")]
    Unprotected(String),
    /// What the system says.
    #[error("{address}: {source}")]
    Io {
        /// Where it was to listen.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
}
