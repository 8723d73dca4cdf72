//! Which certificates get in, what becomes of those that do not, and of bytes that were changed on the way.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::{EPOCH, Places, end, ring, socket_pair};
use zbmd_wire::Deadline;
use zbmd_wire::connection::{Connection, Credentials, Protection, SharedConnection};
use zbmd_wire::error::{HandshakeError, Refusal};
use zbmd_wire::handshake::{Hello, Purpose, accept, dial};
use zbmd_wire::link_speed::{self, LinkSpeedClient};
use zbmd_wire::testing::{Authority, Flaw, plain};
use zbmd_wire::tls::{Tls, TlsError};
use zbmd_wire::token::Token;
use zbmd_wire::wires::Side;

const SECRET: &[u8] = b"one secret of ours";
const HELLO: Hello = Hello {
    purpose: Purpose::Wire,
    run: 7,
    epoch: EPOCH,
    plan: 8,
    sender: 0,
    receiver: 1,
};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn secured(authority: &Authority, flaw: Flaw) -> Credentials {
    Credentials {
        token: Token::of(SECRET),
        protection: Protection::Tls(authority.tls(flaw)),
    }
}

/// What dialer and acceptor make of each other.
fn meet(
    dialer: &Credentials,
    acceptor: &Credentials,
    deadline: impl Fn() -> Deadline + Sync,
) -> (
    Result<Connection, HandshakeError>,
    Result<Connection, HandshakeError>,
) {
    let (dialed, accepted) = socket_pair();
    std::thread::scope(|scope| {
        let dialing = scope.spawn(|| dial(dialed, &HELLO, dialer, deadline()));
        let accepted = accept(accepted, acceptor, deadline())
            .and_then(|accepted| accepted.welcome(deadline()));
        (dialing.join().expect("no panic"), accepted)
    })
}

#[test]
fn certificates_of_one_authority_and_the_token_get_in() {
    let authority = Authority::new();
    let good = secured(&authority, Flaw::None);
    let (dialed, accepted) = meet(&good, &secured(&authority, Flaw::None), soon);
    dialed.expect("welcomed");
    accepted.expect("accepted");

    let mut other_token = secured(&authority, Flaw::None);
    other_token.token = Token::of(b"another secret....");
    let (dialed, accepted) = meet(&other_token, &good, soon);
    assert!(
        matches!(accepted, Err(HandshakeError::Token { .. })),
        "{accepted:?}"
    );
    let why = Refusal::Token;
    assert!(matches!(dialed, Err(HandshakeError::Refused { why: found, .. }) if found == why));
}

#[test]
fn other_certificates_are_refused_and_both_sides_say_so() {
    let authority = Authority::new();
    let good = secured(&authority, Flaw::None);
    let foreign = secured(&Authority::new(), Flaw::None);
    let expired = secured(&authority, Flaw::Expired);
    let elsewhere = secured(&authority, Flaw::OtherAddress);
    for (dialer, acceptor, dialer_says, acceptor_says) in [
        (
            &expired,
            &good,
            "our certificate has expired",
            "its certificate has expired",
        ),
        (
            &good,
            &expired,
            "its certificate has expired",
            "our certificate has expired",
        ),
        (
            &foreign,
            &good,
            "not of an authority in --tls-ca",
            "does not believe our certificate",
        ),
        (
            &good,
            &foreign,
            "not of an authority in --tls-ca",
            "does not believe our certificate",
        ),
        (
            &good,
            &elsewhere,
            "names this address",
            "does not believe our certificate",
        ),
    ] {
        let (dialed, accepted) = meet(dialer, acceptor, soon);
        let dialed = dialed.expect_err("refused").to_string();
        let accepted = accepted.expect_err("refused").to_string();
        assert!(dialed.contains(dialer_says), "{dialed}");
        assert!(accepted.contains(acceptor_says), "{accepted}");
    }
    // Who dials need not have the address that its certificate names: it may be behind a router.
    let (dialed, accepted) = meet(&elsewhere, &good, soon);
    dialed.expect("welcomed");
    accepted.expect("accepted");
}

#[test]
fn a_side_without_tls_learns_what_is_missing() {
    let authority = Authority::new();
    let secure = secured(&authority, Flaw::None);
    let brief = || Deadline::after(Duration::from_millis(300));
    let (dialed, accepted) = meet(&secure, &plain(SECRET), brief);
    let dialed = dialed.expect_err("it speaks first").to_string();
    assert!(dialed.contains("does not speak TLS"), "{dialed}");
    assert!(accepted.is_err());

    let (dialed, accepted) = meet(&plain(SECRET), &secure, brief);
    let dialed = dialed.expect_err("both wait").to_string();
    assert!(dialed.contains("it may expect TLS"), "{dialed}");
    assert!(accepted.is_err());
}

#[test]
fn cut_slow_and_nonsensical_beginnings_are_refused() {
    let authority = Authority::new();
    let secure = secured(&authority, Flaw::None);
    let refusal = |bytes: &[u8], is_cut: bool| {
        let (mut stranger, acceptor) = socket_pair();
        stranger.write_all(bytes).expect("sent");
        if is_cut {
            stranger.shutdown(Shutdown::Write).expect("shut");
        }
        let deadline = Deadline::after(Duration::from_millis(100));
        let began = Instant::now();
        let error = accept(acceptor, &secure, deadline).expect_err("refused");
        assert!(began.elapsed() < Duration::from_secs(5));
        error
    };
    let tls_record = [22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc];
    let absurd_record = [22, 3, 1, 0xff, 0xff, 1];
    for (bytes, is_cut, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], false, "does not speak TLS"),
        (&absurd_record, false, "does not speak TLS"),
        (&tls_record, true, "end of file"),
        (&tls_record, false, "timed out"),
        (&[], false, "timed out"),
    ] {
        let error = refusal(bytes, is_cut).to_string();
        assert!(error.contains(expected), "{bytes:?}: {error}");
    }
}

/// Copies one direction of a connection, with one bit changed at a position.
fn relay(mut from: &TcpStream, mut to: &TcpStream, changed: Option<usize>) -> Vec<u8> {
    let mut copied = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(bytes @ 1..) = from.read(&mut piece) {
        if let Some(index) = changed.and_then(|at| at.checked_sub(copied.len()))
            && index < bytes
        {
            piece[index] ^= 1;
        }
        copied.extend_from_slice(&piece[..bytes]);
        if to.write_all(&piece[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    copied
}

/// A receiver whose sender's bytes go through a relay, what it ends with, and the bytes. An error may be that nothing comes
/// any more, where a length was changed.
fn through_relay(
    authority: &Authority,
    changed: Option<usize>,
    limit: Duration,
) -> (Result<(), String>, Vec<u8>) {
    let soon = || Deadline::after(limit);
    let [dialer, acceptor] = [(); 2].map(|()| secured(authority, Flaw::None));
    let (dialed, relay_in) = socket_pair();
    let (relay_out, accepted) = socket_pair();
    let rings = [ring(0, 4, 1024, &[1024])];
    std::thread::scope(|scope| {
        let there = scope.spawn(|| relay(&relay_in, &relay_out, changed));
        scope.spawn(|| relay(&relay_out, &relay_in, None));
        scope.spawn(|| {
            let connection = dial(dialed, &HELLO, &dialer, soon())?;
            let mut wires = end(connection, Side::Sends, &rings, false);
            let mut places = Places::of(&rings);
            let sent = wires.send(0, 1024, &[5; 4096], &mut places);
            let _ = sent.and_then(|()| wires.wait_released(0, 1, soon(), &mut places));
            Ok::<(), HandshakeError>(())
        });
        let receive = || {
            let accepted = accept(accepted, &acceptor, soon()).map_err(|e| e.to_string())?;
            let connection = accepted.welcome(soon()).map_err(|e| e.to_string())?;
            let mut wires = end(connection, Side::Receives, &rings, false);
            let mut places = Places::of(&rings);
            let waited = wires.wait_published(0, 1024, soon(), &mut places);
            waited.map_err(|stop| format!("{stop:?}"))?;
            assert_eq!(
                places.block(0, 0),
                [5; 4096],
                "what is taken is what was sent"
            );
            wires.release(0, 1).map_err(|stop| format!("{stop:?}"))
        };
        let received = receive();
        (received, there.join().expect("no panic"))
    })
}

/// Tokens that are changed on the way are found without checksums, and what was recorded says nothing to anybody.
#[test]
fn a_relay_can_neither_change_nor_read_nor_repeat() {
    let authority = Authority::new();
    let (result, bytes) = through_relay(&authority, None, Duration::from_secs(10));
    result.expect("nothing is changed");
    let is_readable = bytes.windows(32).any(|window| window == [5; 32]);
    assert!(!is_readable, "the tokens are encrypted");

    let changed = Some(bytes.len() - 2000);
    let (result, _) = through_relay(&authority, changed, Duration::from_secs(10));
    let error = result.expect_err("a token was changed");
    assert!(error.contains("Frame") && error.contains("Tls"), "{error}");

    let (mut stranger, acceptor) = socket_pair();
    stranger.write_all(&bytes).expect("sent");
    let again = accept(acceptor, &secured(&authority, Flaw::None), soon());
    assert!(
        matches!(again, Err(HandshakeError::Tls { .. })),
        "{again:?}"
    );
}

/// Whether a byte is one of those in the header of a record that mean nothing: receivers have to ignore the version (RFC 8446, 5.1), and
/// rustls takes the type of a record that is encrypted from what is inside. All are but the first two, a client's hello and its change
/// of ciphers.
fn means_nothing(records: &[u8], at: usize) -> bool {
    const HEADER_BYTES: usize = 5;
    const CLEAR_RECORDS: usize = 2;
    let mut start = 0;
    let mut number = 0;
    while let Some(&[_, _, _, high, low]) = records.get(start..start + HEADER_BYTES) {
        if at < start + HEADER_BYTES {
            let is_version = at == start + 1 || at == start + 2;
            return is_version || (at == start && number >= CLEAR_RECORDS);
        }
        number += 1;
        start += HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
    }
    false
}

/// Wherever a bit is changed, in the handshake as behind it: the connection ends, and nothing else does. A bit that means
/// nothing changes nothing: what is received is what was sent.
#[test]
fn a_changed_bit_ends_the_connection_wherever_it_is() {
    let authority = Authority::new();
    let (result, bytes) = through_relay(&authority, None, Duration::from_secs(10));
    result.expect("nothing is changed");

    for changed in (0..bytes.len()).step_by(bytes.len() / 48) {
        let limit = Duration::from_millis(300);
        let (result, bytes) = through_relay(&authority, Some(changed), limit);
        // Signatures are one or two bytes longer in some handshakes than in others.
        let is_past_the_end = changed >= bytes.len();
        if !is_past_the_end && !means_nothing(&bytes, changed) {
            assert!(
                result.is_err(),
                "byte {changed} of {} was changed",
                bytes.len()
            );
        }
    }
}

#[test]
fn one_thread_reads_while_another_writes() {
    const BYTES: usize = 3 << 20;
    let authority = Authority::new();
    let good = secured(&authority, Flaw::None);
    let (dialed, accepted) = meet(&good, &good, soon);
    let limit = Duration::from_secs(10);
    let ends = [dialed, accepted].map(|end| {
        SharedConnection::new(end.expect("both get in"), limit).expect("a copy of its socket")
    });
    std::thread::scope(|scope| {
        for end in &ends {
            scope.spawn(move || {
                let mut to = end;
                for piece in vec![7; BYTES].chunks(10_007) {
                    to.write_all(piece).expect("sent");
                }
                to.flush().expect("sent");
            });
            scope.spawn(move || {
                let mut from = end;
                let mut bytes = vec![0; BYTES];
                from.read_exact(&mut bytes).expect("all of it comes");
                assert!(bytes.iter().all(|byte| *byte == 7));
            });
        }
    });
    ends[0].set_limit(Duration::from_millis(10));
    let error = (&ends[0]).read(&mut [0]).expect_err("nothing comes");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn files_that_are_not_a_hosts_certificate_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = Authority::new().write(folder.path(), &[], Flaw::None);
    Tls::read(&files).expect("good files");

    let mut swapped = files.clone();
    swapped.key = files.ca.clone();
    let error = Tls::read(&swapped).expect_err("no key").to_string();
    assert!(error.contains("ca.pem: it has no private key"), "{error}");

    let other_folder = tempfile::tempdir().expect("a folder");
    let mut mixed = files.clone();
    mixed.key = Authority::new()
        .write(other_folder.path(), &[], Flaw::None)
        .key;
    let error = Tls::read(&mixed).expect_err("another key");
    assert!(matches!(error, TlsError::Pair { .. }), "{error}");

    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&files.key, everybody).expect("its owner may");
    let error = Tls::read(&files)
        .expect_err("others can read it")
        .to_string();
    assert!(error.contains("its mode is 644"), "{error}");
}

#[test]
fn plain_connections_stay_at_home_unless_they_are_asked_for() {
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let there = SocketAddr::from(([10, 0, 0, 2], 1));
    Protection::Loopback.check(here).expect("this computer");
    Protection::Plain.check(there).expect("asked for");
    let error = Protection::Loopback
        .check(there)
        .expect_err("another computer");
    assert!(error.to_string().contains("--plain-wires"), "{error}");
}

#[test]
fn the_network_is_measured_in_tls_as_well() {
    let authority = Authority::new();
    let credentials = secured(&authority, Flaw::None);
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let agent = credentials.clone();
    std::thread::spawn(move || {
        let socket = listener.accept().expect("dialed").0;
        let accepted = accept(socket, &agent, soon()).expect("ours");
        assert_eq!(accepted.hello.purpose, Purpose::Measure);
        let connection = accepted.welcome(soon()).expect("welcomed");
        link_speed::serve(connection, |_| b"a host".to_vec(), &agent)
    });

    let mut client = LinkSpeedClient::dial(address, &credentials).expect("there");
    assert_eq!(client.description(false).expect("told"), b"a host");
    for speed in [client.speed_there(), client.speed_back()] {
        let speed = speed.expect("measured");
        assert!(speed.bytes_per_s > 1_000_000, "{speed:?}");
    }
}
