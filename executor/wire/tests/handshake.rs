//! Who gets in, and what becomes of everybody else.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use common::socket_pair;
use zbmd_wire::error::{HandshakeError, Refusal};
use zbmd_wire::handshake::{HELLO_BYTES, Hello, Purpose, accept, dial};
use zbmd_wire::testing::plain;
use zbmd_wire::{Deadline, connect_by};

const HELLO: Hello = Hello {
    purpose: Purpose::Wire,
    run: 1 << 100,
    epoch: 9,
    plan: 77,
    sender: 2,
    receiver: 3,
};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

/// A dialer and an acceptor with these secrets; what each makes of the other.
fn meet(
    dialer_secret: &[u8],
    acceptor_secret: &[u8],
    refuse: Option<Refusal>,
) -> (Result<(), HandshakeError>, Result<Hello, HandshakeError>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address");
    std::thread::scope(|scope| {
        let dialer = scope.spawn(|| {
            let socket = connect_by(address, soon()).expect("connected");
            dial(socket, &HELLO, &plain(dialer_secret), soon()).map(|_| ())
        });
        let socket = listener.accept().expect("accepted").0;
        let accepted = accept(socket, &plain(acceptor_secret), soon()).map(|accepted| {
            let hello = accepted.hello;
            match refuse {
                Some(why) => accepted.refuse(why, soon()),
                None => drop(accepted.welcome(soon()).expect("welcomed")),
            }
            hello
        });
        (dialer.join().expect("no panic"), accepted)
    })
}

#[test]
fn who_knows_the_token_is_welcome() {
    let (dialed, accepted) = meet(b"one secret of ours", b"one secret of ours", None);
    dialed.expect("welcomed");
    assert_eq!(accepted.expect("accepted"), HELLO);
}

#[test]
fn a_wrong_token_is_refused_and_both_sides_say_so() {
    let (dialed, accepted) = meet(b"one secret of ours", b"another secret....", None);
    let error = accepted.expect_err("refused");
    assert!(matches!(error, HandshakeError::Token { .. }), "{error}");
    assert!(error.to_string().contains("--token-file"), "{error}");
    let error = dialed.expect_err("refused");
    let expected = Refusal::Token;
    assert!(
        matches!(error, HandshakeError::Refused { why, .. } if why == expected),
        "{error}"
    );
}

#[test]
fn a_refusal_says_why() {
    for why in [Refusal::Run, Refusal::Epoch, Refusal::Plan, Refusal::Busy] {
        let (dialed, _) = meet(b"one secret of ours", b"one secret of ours", Some(why));
        let error = dialed.expect_err("refused");
        assert!(error.to_string().ends_with(&why.to_string()), "{error}");
    }
}

/// An acceptor that says yes to everybody, without knowing the token.
#[test]
fn an_acceptor_without_the_token_is_not_believed() {
    let (dialer, mut liar) = socket_pair();
    let other = std::thread::spawn(move || {
        let mut challenge = *b"ZBMDW\0\0\x01................................";
        challenge[8] = 1;
        liar.write_all(&challenge).expect("sent");
        liar.read_exact(&mut [0; HELLO_BYTES]).expect("a hello");
        liar.write_all(&[0; 40]).expect("sent");
    });
    dialer.set_nonblocking(true).expect("set");
    let error = dial(dialer, &HELLO, &plain(b"one secret of ours"), soon());
    let error = error.expect_err("its code is wrong");
    assert!(matches!(error, HandshakeError::Token { .. }), "{error}");
    other.join().expect("no panic");
}

/// A hello that was recorded answers another challenge.
#[test]
fn a_recorded_hello_is_of_no_use() {
    let credentials = plain(b"one secret of ours");
    let (dialer, relay) = socket_pair();
    let (to_acceptor, acceptor) = socket_pair();
    let hello = std::thread::scope(|scope| {
        let dialing = scope.spawn(|| {
            dialer.set_nonblocking(true).expect("set");
            dial(dialer, &HELLO, &credentials, soon())
        });
        let accepting = scope.spawn(|| accept(acceptor, &credentials, soon()).expect("accepted"));
        let hello = record(&relay, &to_acceptor);
        let welcomed = accepting.join().expect("no panic").welcome(soon());
        let _ = welcomed.expect("welcomed");
        drop(relay);
        dialing
            .join()
            .expect("no panic")
            .expect_err("cut off by the recorder");
        hello
    });

    let (mut again, acceptor) = socket_pair();
    again.write_all(&hello).expect("sent");
    let error = accept(acceptor, &credentials, soon()).expect_err("another challenge");
    assert!(matches!(error, HandshakeError::Token { .. }), "{error}");
}

/// Passes the challenge and the hello on; the hello.
fn record(mut dialer: &TcpStream, mut acceptor: &TcpStream) -> [u8; HELLO_BYTES] {
    let mut challenge = [0; 40];
    acceptor.read_exact(&mut challenge).expect("a challenge");
    dialer.write_all(&challenge).expect("sent");
    let mut hello = [0; HELLO_BYTES];
    dialer.read_exact(&mut hello).expect("a hello");
    acceptor.write_all(&hello).expect("sent");
    hello
}

#[test]
fn strangers_cut_hellos_and_slow_peers_are_refused() {
    let credentials = plain(b"one secret of ours");
    let refusal = |bytes: &[u8], deadline: Deadline, close: bool| {
        let (mut stranger, acceptor) = socket_pair();
        stranger.write_all(bytes).expect("sent");
        if close {
            stranger.shutdown(std::net::Shutdown::Write).expect("shut");
        }
        accept(acceptor, &credentials, deadline).expect_err("refused")
    };
    let http = [b"GET / HTTP/1.1\r\n".as_slice(), &[b' '; 200]].concat();
    let error = refusal(&http, soon(), true);
    assert!(matches!(error, HandshakeError::NotOurs { .. }), "{error}");

    let error = refusal(b"ZBMDW\0\0\x01 and no more", soon(), true);
    assert!(
        matches!(
            error,
            HandshakeError::Cut {
                found: 20,
                expected: HELLO_BYTES,
                ..
            }
        ),
        "{error}"
    );

    let brief = Deadline::after(Duration::from_millis(20));
    let error = refusal(b"ZBMDW", brief, false);
    assert!(
        matches!(error, HandshakeError::Cut { found: 5, .. }),
        "{error}"
    );
}
