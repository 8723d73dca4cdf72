//! What can go wrong on a wire. Each error says where, which two values disagree, and what to do about it.

use std::net::SocketAddr;

use crate::tls;

/// A frame that cannot be one, or that does not fit the ring it is for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Neither tokens, nor a credit, nor a close.
    #[error(
        "a frame of kind {found}; kinds are 1 (tokens), 2 (credit) and 3 (close): both hosts must run the same zbmd"
    )]
    Kind {
        /// As it came.
        found: u8,
    },
    /// The header, or the payload with it, is not what was sent.
    #[error(
        "a frame for ring {ring} has check {found:08x}, it was sent with {sent:08x}: the network changes bytes, or the peer is no wire"
    )]
    Check {
        /// As the header has it.
        ring: u32,
        /// As the header has it.
        sent: u32,
        /// Of what came.
        found: u32,
    },
    /// More bytes than any block has.
    #[error(
        "a frame of {bytes} bytes; none has more than {most}: the peer is no wire, or runs another bundle"
    )]
    Length {
        /// As the header has it.
        bytes: u64,
        /// The longest that there can be.
        most: u64,
    },
    /// A ring that does not come over this connection.
    #[error(
        "a frame for ring {ring}, which is not one of the {rings} rings of this connection: the peer runs another bundle"
    )]
    Ring {
        /// As the header has it.
        ring: u32,
        /// How many there are.
        rings: usize,
    },
    /// A kind that the other side of this connection does not send.
    #[error(
        "a frame of {kind} for ring {ring} from the side that {expected}: the peer has the two sides confused"
    )]
    Direction {
        /// As the header has it.
        ring: u32,
        /// What came.
        kind: &'static str,
        /// What that side does.
        expected: &'static str,
    },
    /// A count that does not follow from the last one.
    #[error(
        "ring {ring} goes from {before} to {count}, at most {most} is possible: the peer runs another bundle, or counts wrong"
    )]
    Count {
        /// The ring.
        ring: u32,
        /// The last count.
        before: u64,
        /// The one that came.
        count: u64,
        /// The highest that could have come.
        most: u64,
    },
    /// A payload that has not the bytes of its tokens.
    #[error(
        "ring {ring}: {found} bytes for {tokens} tokens, which have {expected}: the peer runs another bundle"
    )]
    Bytes {
        /// The ring.
        ring: u32,
        /// By the counts.
        tokens: u64,
        /// As the header has it.
        found: u64,
        /// That many tokens have.
        expected: u64,
    },
    /// TLS has found bytes that are not what was sent, or was ended.
    #[error("TLS: {why}")]
    Tls {
        /// What is wrong.
        why: String,
    },
    /// The connection ended in the middle of a frame.
    #[error(
        "the connection ended after {found} of a frame's {expected} bytes: the peer is gone, or the network cut it off"
    )]
    Cut {
        /// Bytes that came.
        found: u64,
        /// Bytes that it has.
        expected: u64,
    },
}

/// Why the way to a host could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Nobody answers there.
    #[error("{address}: {source}: is `zbmd-run agent` started there?")]
    NotThere {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// Whoever answers does not know the token, or serves a run.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The connection broke.
    #[error("{address}: the connection ended while it was measured: {source}")]
    Cut {
        /// Of the other host.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The other host could not do it.
    #[error("{address}: {why}")]
    Refused {
        /// Of the other host.
        address: SocketAddr,
        /// What it says.
        why: String,
    },
    /// It answers something else.
    #[error(
        "{address}: an answer of kind {found} to a request of kind {expected}: both hosts must run the same zbmd"
    )]
    Answer {
        /// Of the other host.
        address: SocketAddr,
        /// As it came.
        found: u8,
        /// What was asked for.
        expected: u8,
    },
    /// It says more than anybody has to say.
    #[error(
        "{address}: a text of {bytes} bytes, {most} are the most: both hosts must run the same zbmd"
    )]
    Long {
        /// Of the other host.
        address: SocketAddr,
        /// As it came.
        bytes: u64,
        /// The most.
        most: u64,
    },
}

/// Why a wire carries nothing any more.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other side ended the connection.
    #[error("the connection to {peer} has ended: that host, or the network to it, is gone")]
    Gone {
        /// Who it was.
        peer: String,
    },
    /// What came is no frame.
    #[error("{peer}: {source}")]
    Frame {
        /// Who sent it.
        peer: String,
        /// What is wrong with it.
        source: FrameError,
    },
    /// What the system says.
    #[error("the connection to {peer}: {source}")]
    System {
        /// The other side.
        peer: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// More connections than one `poll` takes.
    #[error(
        "a worker with {found} wires; at most {most} are possible: place its actors on fewer hosts"
    )]
    TooMany {
        /// How many it would have.
        found: usize,
        /// The limit.
        most: usize,
    },
}

/// Why connections do not carry their bytes over UCX.
#[derive(Debug, thiserror::Error)]
pub enum UcxError {
    /// The library does not load or start.
    #[error("{why}")]
    Missing {
        /// Why.
        why: String,
    },
    /// UCX says that something failed.
    #[error("UCX cannot {what}: status {status}; UCX_LOG_LEVEL=info says more")]
    Status {
        /// What it was to do.
        what: &'static str,
        /// UCX's number for the reason, below 0.
        status: i8,
    },
    /// What the other side says is not the address of a worker of UCX.
    #[error(
        "the other side does not carry tokens over UCX: start all hosts with --ucx-wires, or none"
    )]
    NotUcx,
    /// What the system says of the connection over TCP.
    #[error(transparent)]
    System(#[from] std::io::Error),
}

/// An address that would be reached without protection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address} is not on this computer, and connections to other ones need TLS: give --tls-certificate, --tls-key and --tls-ca, or --plain-wires if everybody in the network may be trusted"
)]
pub struct PlainError {
    /// The address.
    pub address: SocketAddr,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The other side is not one of ours, or of another version.
    #[error(
        "{peer} does not begin as zbmd does (it sent {found:02x?}): another program, or another version, listens or dials there"
    )]
    NotOurs {
        /// The other side.
        peer: SocketAddr,
        /// The first bytes.
        found: [u8; 8],
    },
    /// TLS has failed, on either side.
    #[error("{peer}: {} ({source})", tls::advice(source))]
    Tls {
        /// The other side.
        peer: SocketAddr,
        /// What is wrong.
        source: rustls::Error,
    },
    /// The other side says nothing: a dialer that awaits a plain connection is silent to one that does not.
    #[error(
        "{peer} says nothing: it may expect TLS, which --tls-certificate, --tls-key and --tls-ca give ({source})"
    )]
    Silent {
        /// The other side.
        peer: SocketAddr,
        /// Why it was given up.
        source: std::io::Error,
    },
    /// The code over the hello does not fit our token.
    #[error("{peer} does not know our token: give both hosts the same --token-file")]
    Token {
        /// The other side.
        peer: SocketAddr,
    },
    /// The other side refused us.
    #[error("{peer} refused the connection: {why}")]
    Refused {
        /// The other side.
        peer: SocketAddr,
        /// What it said.
        why: Refusal,
    },
    /// The other side closed the connection, or took too long.
    #[error("the handshake with {peer} ended after {found} of {expected} bytes: {source}")]
    Cut {
        /// The other side.
        peer: SocketAddr,
        /// Bytes that came.
        found: usize,
        /// Bytes that the message has.
        expected: usize,
        /// Why.
        source: std::io::Error,
    },
    /// A hello that asks for nothing we know.
    #[error(
        "{peer} asks for a connection of kind {found}; kinds are 1 (control), 2 (wire), 3 (council), 4 (border) and 5 (join): both hosts must run the same zbmd"
    )]
    Purpose {
        /// The other side.
        peer: SocketAddr,
        /// As it came.
        found: u8,
    },
    /// What the system says.
    #[error("{peer}: {source}")]
    System {
        /// The other side.
        peer: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
}

impl HandshakeError {
    /// Whether another try may go better with nothing changed on either side: who was called may begin to listen, or is just ending, and
    /// then says so, is busy, or says nothing.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Cut { .. } | Self::System { .. } | Self::Silent { .. } => true,
            Self::Refused { why, .. } => matches!(why, Refusal::Unknown | Refusal::Busy),
            Self::NotOurs { .. } | Self::Tls { .. } | Self::Token { .. } | Self::Purpose { .. } => {
                false
            }
        }
    }
}

/// Why a connection was refused, as the refusing side says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The code over the hello does not fit the token.
    Token = 1,
    /// Another run.
    Run = 2,
    /// An epoch that is over.
    Epoch = 3,
    /// Another plan.
    Plan = 4,
    /// Nobody here waits for such a connection.
    Unknown = 5,
    /// There are too many connections, or somebody else is served.
    Busy = 6,
}

impl Refusal {
    /// From its number.
    pub fn from_code(code: u8) -> Option<Self> {
        use Refusal::{Busy, Epoch, Plan, Run, Token, Unknown};
        let all = [Token, Run, Epoch, Plan, Unknown, Busy];
        all.into_iter().find(|refusal| *refusal as u8 == code)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Token => "our token is not its own: give both hosts the same --token-file",
            Self::Run => "it belongs to another run: end that, or start another agent",
            Self::Epoch => "the epoch is over there",
            Self::Plan => "it runs another plan: both hosts must have the same bundle",
            Self::Unknown => "nobody waits for this connection there",
            Self::Busy => "it serves another run: end that, or start another agent",
        })
    }
}
