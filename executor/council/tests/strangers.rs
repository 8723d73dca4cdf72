//! Whoever is not another voter of the council gets no further than the handshake.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use zbmd_council::VoterId;
use zbmd_council::error::{JournalError, MemberError};
use zbmd_council::member::{Member, MemberOptions};
use zbmd_council::node::Settings;
use zbmd_wire::connection::{Connection, Credentials, Protection};
use zbmd_wire::error::{HandshakeError, Refusal};
use zbmd_wire::handshake::{Hello, Purpose, dial};
use zbmd_wire::token::Token;
use zbmd_wire::{Deadline, connect_by};

fn credentials(secret: &str) -> Credentials {
    Credentials {
        token: Token::of(secret.as_bytes()),
        protection: Protection::Loopback,
    }
}

const SECRET: &str = "a token of the test";

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

/// Voter 1 in a folder, with two others that are not there.
fn options(folder: &std::path::Path) -> MemberOptions {
    let voters: Vec<VoterId> = (1..=3).map(VoterId).collect();
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    // Ports that are closed again: nobody answers there.
    let closed = || {
        let listener = TcpListener::bind(here).expect("bound");
        listener.local_addr().expect("an address")
    };
    let addresses = [here, closed(), closed()];
    MemberOptions {
        addresses: voters.iter().copied().zip(addresses).collect(),
        folder: folder.to_owned(),
        credentials: credentials(SECRET),
        borders: None,
        settings: Settings {
            own: VoterId(1),
            voters,
            tick_ns: 1_000_000,
            compact_after: 100,
            witnesses: Vec::new(),
        },
    }
}

fn call(
    member: &Member,
    hello: &Hello,
    credentials: &Credentials,
) -> Result<Connection, HandshakeError> {
    let socket = connect_by(member.address(), soon()).expect("connected");
    dial(socket, hello, credentials, soon())
}

#[test]
fn strangers_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let member = Member::start(options(folder.path()), drop).expect("a voter");
    let hello = Hello {
        purpose: Purpose::Council,
        run: 1,
        epoch: 0,
        plan: 0,
        sender: 2,
        receiver: 1,
    };
    let wire = Hello {
        purpose: Purpose::Wire,
        ..hello
    };
    for hello in [hello, wire] {
        let error = call(&member, &hello, &credentials(SECRET)).expect_err("another council");
        let is_refused = matches!(
            error,
            HandshakeError::Refused {
                why: Refusal::Unknown,
                ..
            }
        );
        assert!(is_refused, "{error}");
    }
    let error = call(&member, &hello, &credentials("another token, of others"));
    let error = error.expect_err("a wrong token").to_string();
    assert!(error.contains("--token-file"), "{error}");
    assert_eq!(member.acts_until_ns(), None, "one of three leads nobody");
}

#[test]
fn a_voter_that_cannot_be_one_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut without_address = options(folder.path());
    without_address.addresses.remove(&VoterId(3));
    let mut two = options(folder.path());
    two.settings.voters.pop();
    let mut open = options(folder.path());
    let elsewhere = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 7000));
    open.addresses.insert(VoterId(2), elsewhere);
    for (options, text) in [
        (without_address, "voter 3 has no address"),
        (two, "a council of 2 voters"),
        (open, "need TLS"),
    ] {
        let error = Member::start(options, drop).err().expect("refused");
        assert!(error.to_string().contains(text), "{error}");
    }

    let _first = Member::start(options(folder.path()), drop).expect("a voter");
    let error = Member::start(options(folder.path()), drop).err();
    let is_in_use = matches!(
        error,
        Some(MemberError::Journal(JournalError::InUse { .. }))
    );
    assert!(is_in_use, "two processes with one folder");
}
