//! How a connection begins: with the handshake of TLS, unless it is plain, and then with three messages of fixed length:
//!
//! | from | bytes | what |
//! |---|---|---|
//! | acceptor | 40 | *challenge*: `ZBMDW\0\0\1`, a nonce of 32 bytes |
//! | dialer | 120 | *hello*: the same 8 bytes, what the connection is for, run, epoch, plan, sender and receiver, a nonce, and a code over the challenge and all of that |
//! | acceptor | 40 | *welcome*: a verdict, and a code over the dialer's nonce and the verdict |
//!
//! Codes are HMAC-SHA-256 with the token that both sides know. A hello answers one challenge, so one that was recorded
//! is of no use to anybody; and the dialer gives nothing away before the acceptor has shown that it knows the token too.

use std::io;
use std::net::{SocketAddr, TcpStream};

use crate::connection::{Connection, Credentials};
use crate::error::{HandshakeError, Refusal};
use crate::socket::Deadline;
use crate::token::{CODE_BYTES, Token};

const MAGIC: [u8; 8] = *b"ZBMDW\0\0\x01";
const NONCE_BYTES: usize = 32;
const CHALLENGE_BYTES: usize = MAGIC.len() + NONCE_BYTES;
/// Bytes of a hello that its code is over.
const SIGNED_BYTES: usize = 88;
/// Bytes of a hello.
pub const HELLO_BYTES: usize = SIGNED_BYTES + CODE_BYTES;
const WELCOME_BYTES: usize = 8 + CODE_BYTES;
/// What codes of hellos and welcomes begin with, so that none is taken for another.
const HELLO_LABEL: &[u8] = b"zbmd hello";
const WELCOME_LABEL: &[u8] = b"zbmd welcome";

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// A conductor gives an agent its orders.
    Control = 1,
    /// Rings from one worker to another.
    Wire = 2,
    /// One voter of a council speaks to another.
    Council = 3,
    /// A conductor gives a voter that could take over the state of each border.
    Border = 4,
    /// An agent joins a run.
    Join = 5,
    /// An agent has another one pass on a bundle.
    Bundle = 6,
    /// Somebody measures the way to a host, or has it measure another one.
    Measure = 7,
}

/// What the dialer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the connection is for.
    pub purpose: Purpose,
    /// Which run, or which council.
    pub run: u128,
    /// Which of its epochs.
    pub epoch: u64,
    /// The plan that the epoch runs.
    pub plan: u64,
    /// The sending worker's calendar, or the sending voter.
    pub sender: u32,
    /// The receiving worker's calendar, or the receiving voter.
    pub receiver: u32,
}

/// A connection whose dialer knows the token. Nothing has been promised to it yet.
#[derive(Debug)]
pub struct Accepted {
    /// What it says.
    pub hello: Hello,
    connection: Connection,
    peer: SocketAddr,
    nonce: [u8; NONCE_BYTES],
    token: Token,
}

impl Hello {
    /// The part that the code is over.
    fn encode(&self, nonce: &[u8; NONCE_BYTES]) -> [u8; SIGNED_BYTES] {
        let mut bytes = [0; SIGNED_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8] = self.purpose as u8;
        bytes[16..32].copy_from_slice(&self.run.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.plan.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.sender.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.receiver.to_le_bytes());
        bytes[56..88].copy_from_slice(nonce);
        bytes
    }

    /// What the bytes say, if their code fits the token and the challenge.
    ///
    /// # Errors
    /// They do not begin as ours do, the code does not fit, or they ask for nothing we know.
    pub fn decode(
        bytes: &[u8; HELLO_BYTES],
        challenge: &[u8],
        token: &Token,
        peer: SocketAddr,
    ) -> Result<Self, HandshakeError> {
        let (signed, code) = bytes.split_at(SIGNED_BYTES);
        let found: [u8; 8] = std::array::from_fn(|i| signed[i]);
        if found != MAGIC {
            return Err(HandshakeError::NotOurs { peer, found });
        }
        if !token.is_code(&[HELLO_LABEL, challenge, signed], code) {
            return Err(HandshakeError::Token { peer });
        }

        let word = |from: usize| u32::from_le_bytes(std::array::from_fn(|i| signed[from + i]));
        let long = |from: usize| u64::from_le_bytes(std::array::from_fn(|i| signed[from + i]));
        let purpose = match signed[8] {
            1 => Purpose::Control,
            2 => Purpose::Wire,
            3 => Purpose::Council,
            4 => Purpose::Border,
            5 => Purpose::Join,
            6 => Purpose::Bundle,
            7 => Purpose::Measure,
            found => return Err(HandshakeError::Purpose { peer, found }),
        };
        Ok(Self {
            purpose,
            run: u128::from_le_bytes(std::array::from_fn(|i| signed[16 + i])),
            epoch: long(32),
            plan: long(40),
            sender: word(48),
            receiver: word(52),
        })
    }
}

/// The dialer's side: says what the connection is for, and makes sure that the other side knows the token.
///
/// # Errors
/// The other side is none of ours, does not know the token, refuses, or takes longer than the deadline.
pub fn dial(
    socket: TcpStream,
    hello: &Hello,
    credentials: &Credentials,
    deadline: Deadline,
) -> Result<Connection, HandshakeError> {
    let peer = peer_of(&socket);
    let token = &credentials.token;
    let dialed = Connection::dialed(socket, peer.ip(), &credentials.protection, deadline);
    let mut connection = dialed.map_err(|source| tls_error(peer, source))?;
    let mut challenge = [0; CHALLENGE_BYTES];
    read_message(&mut connection, peer, &mut challenge, deadline).map_err(silent)?;
    let found: [u8; 8] = std::array::from_fn(|i| challenge[i]);
    if found != MAGIC {
        return Err(HandshakeError::NotOurs { peer, found });
    }

    let nonce = nonce(peer)?;
    let signed = hello.encode(&nonce);
    let code = token.code(&[HELLO_LABEL, &challenge, &signed]);
    let mut message = [0; HELLO_BYTES];
    message[..SIGNED_BYTES].copy_from_slice(&signed);
    message[SIGNED_BYTES..].copy_from_slice(&code);
    let failed = |source| HandshakeError::System { peer, source };
    connection
        .write_all_by(&message, deadline)
        .map_err(failed)?;

    let mut welcome = [0; WELCOME_BYTES];
    read_message(&mut connection, peer, &mut welcome, deadline)?;
    if let Some(why) = Refusal::from_code(welcome[0]) {
        return Err(HandshakeError::Refused { peer, why });
    }
    let parts: [&[u8]; 3] = [WELCOME_LABEL, &nonce, &welcome[..8]];
    if welcome[0] != 0 || !token.is_code(&parts, &welcome[8..]) {
        return Err(HandshakeError::Token { peer });
    }
    Ok(connection)
}

/// The acceptor's side: asks the dialer to show that it knows the token. A dialer that does not is told so.
///
/// # Errors
/// The other side is none of ours, does not know the token, or takes longer than the deadline.
pub fn accept(
    socket: TcpStream,
    credentials: &Credentials,
    deadline: Deadline,
) -> Result<Accepted, HandshakeError> {
    let peer = peer_of(&socket);
    let token = &credentials.token;
    let accepted = Connection::accepted(socket, &credentials.protection, deadline);
    let mut connection = accepted.map_err(|source| tls_error(peer, source))?;
    let failed = |source| HandshakeError::System { peer, source };

    let mut challenge = [0; CHALLENGE_BYTES];
    challenge[..8].copy_from_slice(&MAGIC);
    challenge[8..].copy_from_slice(&nonce(peer)?);
    connection
        .write_all_by(&challenge, deadline)
        .map_err(failed)?;

    let mut message = [0; HELLO_BYTES];
    read_message(&mut connection, peer, &mut message, deadline)?;
    let hello = match Hello::decode(&message, &challenge, token, peer) {
        Ok(hello) => hello,
        Err(error) => {
            let why = match error {
                HandshakeError::Token { .. } => Refusal::Token,
                _ => Refusal::Unknown,
            };
            // Whoever does not know the token learns no more than that.
            let _ = connection.write_all_by(&refusal(why), deadline);
            return Err(error);
        }
    };
    Ok(Accepted {
        hello,
        connection,
        peer,
        nonce: std::array::from_fn(|i| message[56 + i]),
        token: token.clone(),
    })
}

impl Accepted {
    /// Who dialed.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Takes the connection.
    ///
    /// # Errors
    /// What the system says.
    pub fn welcome(mut self, deadline: Deadline) -> Result<Connection, HandshakeError> {
        let verdict = [0; 8];
        let parts: [&[u8]; 3] = [WELCOME_LABEL, &self.nonce, &verdict];
        let mut message = [0; WELCOME_BYTES];
        message[8..].copy_from_slice(&self.token.code(&parts));
        let peer = self.peer;
        let failed = |source| HandshakeError::System { peer, source };
        let written = self.connection.write_all_by(&message, deadline);
        written.map_err(failed)?;
        Ok(self.connection)
    }

    /// Refuses the connection, and says why.
    pub fn refuse(mut self, why: Refusal, deadline: Deadline) {
        let _ = self.connection.write_all_by(&refusal(why), deadline);
    }
}

fn refusal(why: Refusal) -> [u8; WELCOME_BYTES] {
    let mut message = [0; WELCOME_BYTES];
    message[0] = why as u8;
    message
}

/// A failure while a connection was being protected.
fn tls_error(peer: SocketAddr, source: io::Error) -> HandshakeError {
    match source.downcast::<rustls::Error>() {
        Ok(source) => HandshakeError::Tls { peer, source },
        Err(source) => HandshakeError::System { peer, source },
    }
}

/// The acceptor speaks first: one that does not waits for something else.
fn silent(error: HandshakeError) -> HandshakeError {
    match error {
        HandshakeError::Cut {
            peer,
            found: 0,
            source,
            ..
        } if matches!(
            source.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::UnexpectedEof
        ) =>
        {
            HandshakeError::Silent { peer, source }
        }
        other => other,
    }
}

fn read_message(
    connection: &mut Connection,
    peer: SocketAddr,
    message: &mut [u8],
    deadline: Deadline,
) -> Result<(), HandshakeError> {
    let expected = message.len();
    let read = connection.read_exact_by(message, deadline);
    read.map_err(|(found, source)| match source.downcast::<rustls::Error>() {
        Ok(source) => HandshakeError::Tls { peer, source },
        Err(source) => HandshakeError::Cut {
            peer,
            found,
            expected,
            source,
        },
    })
}

/// Who is at the other end, for errors.
fn peer_of(socket: &TcpStream) -> SocketAddr {
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    socket.peer_addr().unwrap_or(unknown)
}

fn nonce(peer: SocketAddr) -> Result<[u8; NONCE_BYTES], HandshakeError> {
    random().map_err(|source| HandshakeError::System { peer, source })
}

/// A number for a run that no other has.
///
/// # Errors
/// The system has no random numbers.
pub fn new_run() -> std::io::Result<u128> {
    random().map(u128::from_le_bytes)
}

/// Bytes that nobody can guess.
fn random<const BYTES: usize>() -> std::io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let mut done = 0;
    while done < BYTES {
        let flags = rustix::rand::GetRandomFlags::empty();
        done += rustix::rand::getrandom(&mut bytes[done..], flags)?;
    }
    Ok(bytes)
}
