//! Wires between two threads over loopback.
#![allow(dead_code, reason = "each test program uses a part")]

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use zbmd_wire::connection::{Connection, Credentials, Protection};
use zbmd_wire::error::UcxError;
use zbmd_wire::frame::{FrameHeader, FrameKind};
use zbmd_wire::handshake::{Hello, Purpose, accept, dial};
use zbmd_wire::testing::{Authority, Flaw};
use zbmd_wire::token::Token;
use zbmd_wire::wires::{RingMemory, RingSpec, Side, Wires};
use zbmd_wire::{Deadline, carry_over_ucx};

pub(crate) const EPOCH: u64 = 5;

/// Places of rings that are all alike.
pub(crate) struct Places {
    pub(crate) bytes: Vec<Vec<u8>>,
    pub(crate) token_bytes: u64,
    pub(crate) block_tokens: u64,
    pub(crate) blocks: u64,
}

impl Places {
    pub(crate) fn of(rings: &[RingSpec]) -> Self {
        let spec = &rings[0];
        let bytes = spec.token_bytes * spec.block_tokens * spec.blocks;
        Self {
            bytes: rings.iter().map(|_| vec![0; bytes as usize]).collect(),
            token_bytes: spec.token_bytes,
            block_tokens: spec.block_tokens,
            blocks: spec.blocks,
        }
    }

    /// The bytes of a block.
    pub(crate) fn block(&self, ring: usize, block: u64) -> &[u8] {
        let bytes = (self.block_tokens * self.token_bytes) as usize;
        let start = (block % self.blocks) as usize * bytes;
        &self.bytes[ring][start..start + bytes]
    }
}

impl RingMemory for Places {
    fn place(&mut self, ring: usize, first: u64, bytes: usize) -> &mut [u8] {
        let tokens = first % (self.block_tokens * self.blocks);
        let start = (tokens * self.token_bytes) as usize;
        &mut self.bytes[ring][start..start + bytes]
    }
}

pub(crate) fn socket_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address");
    let dialed = TcpStream::connect(address).expect("connected");
    (dialed, listener.accept().expect("accepted").0)
}

/// Both ends of a connection over UCX, if it is installed.
pub(crate) fn ucx_pair() -> Option<(Connection, Connection)> {
    let (dialed, accepted) = socket_pair();
    let ends = [dialed, accepted].map(|socket| {
        std::thread::spawn(|| {
            let mut end = [socket.into()];
            let deadline = Deadline::after(Duration::from_secs(20));
            let carried = carry_over_ucx(&mut end, deadline, || false);
            carried.map(|()| end).map_err(|(_, error)| error)
        })
    });
    match ends.map(|end| end.join().expect("no panic")) {
        [Ok([dialed]), Ok([accepted])] => Some((dialed, accepted)),
        [Err(UcxError::Missing { why }), _] => {
            eprintln!("skipped over UCX: {why}");
            None
        }
        [dialed, accepted] => panic!("{:?}, {:?}", dialed.err(), accepted.err()),
    }
}

/// Both ends of a connection in TLS.
pub(crate) fn tls_pair() -> (Connection, Connection) {
    let authority = Authority::new();
    let [dialer, acceptor] = [(); 2].map(|()| Credentials {
        token: Token::of(b"one secret of ours"),
        protection: Protection::Tls(authority.tls(Flaw::None)),
    });
    let hello = Hello {
        purpose: Purpose::Wire,
        run: 1,
        epoch: EPOCH,
        plan: 1,
        sender: 0,
        receiver: 1,
    };
    let deadline = Deadline::after(std::time::Duration::from_secs(10));
    let (dialed, accepted) = socket_pair();
    std::thread::scope(|scope| {
        let dialing = scope.spawn(|| dial(dialed, &hello, &dialer, deadline));
        let accepted = accept(accepted, &acceptor, deadline).expect("accepted");
        let accepted = accepted.welcome(deadline).expect("welcomed");
        (dialing.join().expect("no panic").expect("dialed"), accepted)
    })
}

pub(crate) fn stop_event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd")
}

pub(crate) fn ring(number: u32, token_bytes: u64, block_tokens: u64, sends: &[u64]) -> RingSpec {
    RingSpec {
        ring: number,
        token_bytes,
        block_tokens,
        blocks: 2,
        sends: sends.into(),
    }
}

/// The worker at one end of a connection.
pub(crate) fn end(
    connection: impl Into<Connection>,
    side: Side,
    rings: &[RingSpec],
    checks_payloads: bool,
) -> Wires {
    let mut wires = Wires::new(EPOCH, stop_event(), checks_payloads);
    let added = wires.add(
        connection,
        "the other side".to_owned(),
        side,
        rings.to_vec(),
    );
    added.expect("added");
    wires
}

pub(crate) fn tokens_header(ring: u32, count: u64, bytes: u32) -> FrameHeader {
    FrameHeader {
        epoch: EPOCH,
        ring,
        kind: FrameKind::Tokens,
        count,
        bytes,
    }
}
