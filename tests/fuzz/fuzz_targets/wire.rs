//! What strangers send to an agent, plain or as TLS, or slip into a connection that others have opened, and what peers send on a wire: any
//! hello, heartbeat, record and any frames end in an error or are what they say they are.
#![no_main]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use zbmd_wire::Deadline;
use zbmd_wire::beat::Beat;
use zbmd_wire::connection::{Credentials, Protection, SharedConnection};
use zbmd_wire::frame::{FrameHeader, HEADER_BYTES};
use zbmd_wire::handshake::{HELLO_BYTES, Hello, Purpose, accept, dial};
use zbmd_wire::testing::{Authority, Flaw};
use zbmd_wire::token::Token;
use zbmd_wire::wires::{RingMemory, RingSpec, Side, Wires};

static TOKEN: LazyLock<Token> = LazyLock::new(|| Token::of(b"a token of the fuzzer"));
static SECURED: LazyLock<Credentials> = LazyLock::new(|| Credentials {
    token: TOKEN.clone(),
    protection: Protection::Tls(Authority::new().tls(Flaw::None)),
});
static LISTENER: LazyLock<TcpListener> =
    LazyLock::new(|| TcpListener::bind("127.0.0.1:0").expect("bound"));

/// Two places of 16 tokens of 4 bytes for each ring.
struct Places(Vec<u8>);

impl RingMemory for Places {
    fn place(&mut self, ring: usize, first: u64, bytes: usize) -> &mut [u8] {
        let start = ring * 128 + (first % 32) as usize * 4;
        assert!(bytes <= 64 && start % 64 + bytes <= 64, "it stays in its place");
        &mut self.0[start..start + bytes]
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, rest)) = bytes.split_first() else {
        return;
    };
    match choice % 8 {
        0 => hello(rest),
        1 => header(rest),
        2 => heartbeat(rest),
        3 if choice >= 128 => records(rest),
        3 => tls(rest),
        4 | 5 => frames(rest, Side::Receives, choice % 2 != 0),
        _ => frames(rest, Side::Sends, choice % 2 != 0),
    }
});

fn hello(bytes: &[u8]) {
    let mut message = [0; HELLO_BYTES];
    let length = bytes.len().min(HELLO_BYTES);
    message[..length].copy_from_slice(&bytes[..length]);
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    let decoded = Hello::decode(&message, b"a challenge", &TOKEN, peer);
    decoded.expect_err("nobody guesses the code");
}

fn heartbeat(bytes: &[u8]) {
    assert_eq!(Beat::decode(bytes, &TOKEN), None, "nobody guesses the code");
}

/// The beginning of a connection in TLS.
fn tls(bytes: &[u8]) {
    let address = LISTENER.local_addr().expect("an address");
    let mut stranger = TcpStream::connect(address).expect("connected");
    let socket = LISTENER.accept().expect("accepted").0;
    let _ = stranger.write_all(bytes);
    drop(stranger);
    let deadline = Deadline::after(Duration::from_millis(100));
    let accepted = accept(socket, &SECURED, deadline);
    accepted.expect_err("nobody guesses a key");
}

/// Records in the middle of a connection in TLS, from somebody who has not the keys.
fn records(bytes: &[u8]) {
    let hello = Hello {
        purpose: Purpose::Wire,
        run: 1,
        epoch: 2,
        plan: 3,
        sender: 0,
        receiver: 1,
    };
    let soon = || Deadline::after(Duration::from_secs(10));
    let address = LISTENER.local_addr().expect("an address");
    let dialing = std::thread::spawn(move || {
        let socket = TcpStream::connect(address).expect("connected");
        dial(socket, &hello, &SECURED, soon()).expect("known")
    });
    let socket = LISTENER.accept().expect("accepted").0;
    let accepted = accept(socket, &SECURED, soon()).expect("known");
    let connection = accepted.welcome(soon()).expect("welcomed");
    let dialed = dialing.join().expect("no panic");

    let _ = dialed.socket().write_all(bytes);
    let _ = dialed.socket().shutdown(std::net::Shutdown::Write);
    let limit = Duration::from_millis(100);
    let receiver = SharedConnection::new(connection, limit).expect("a copy of its socket");
    let read = (&receiver).read(&mut [0; 64]);
    assert!(!matches!(read, Ok(1..)), "nobody guesses a key: {read:?}");
}

fn header(bytes: &[u8]) {
    let mut message = [0; HEADER_BYTES];
    let length = bytes.len().min(HEADER_BYTES);
    message[..length].copy_from_slice(&bytes[..length]);
    if let Ok((header, sum)) = FrameHeader::decode(&message) {
        let again = FrameHeader::decode(&header.encode(sum));
        assert_eq!(again, Ok((header, sum)));
    }
}

/// Each piece begins with what is done to a header: kept as it is, or given the check that it needs to be looked at further.
fn frames(bytes: &[u8], side: Side, is_known: bool) {
    let address = LISTENER.local_addr().expect("an address");
    let mut peer = TcpStream::connect(address).expect("connected");
    let socket = LISTENER.accept().expect("accepted").0;
    for piece in bytes.chunks(40) {
        let sent = match FrameHeader::decode(&std::array::from_fn(|i| *piece.get(i).unwrap_or(&0))) {
            Ok((header, _)) => peer
                .write_all(&header.encode(0))
                .and_then(|()| peer.write_all(piece.get(32..).unwrap_or(&[]))),
            Err(_) => peer.write_all(piece),
        };
        if sent.is_err() {
            break;
        }
    }
    drop(peer);

    let never: OwnedFd = tempfile::tempfile().expect("a file").into();
    let mut wires = Wires::new(0, never, false);
    let sends: &[u64] = if is_known { &[16] } else { &[] };
    let rings = [0, 1].map(|ring| RingSpec {
        ring,
        token_bytes: 4,
        block_tokens: 16,
        blocks: 2,
        sends: sends.into(),
    });
    let added = wires.add(socket, "the fuzzer".to_owned(), side, rings.to_vec());
    added.expect("added");
    let mut places = Places(vec![0; 256]);
    for block in 1..20 {
        if wires.pump(&mut places).is_err() {
            return;
        }
        for ring in 0..2 {
            let (published, released) = wires.counts(ring);
            assert!(published <= 16 * (released + 2), "no more than there are places");
            if side == Side::Receives && published >= 16 * block && wires.release(ring, block).is_err() {
                return;
            }
        }
    }
}
