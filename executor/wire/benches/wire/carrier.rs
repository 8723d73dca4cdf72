//! What carries the bytes of a measurement: a socket or a wire, plain or in TLS.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustls::{ClientConnection, ServerConnection, StreamOwned};
use zbmd_wire::connection::{Connection, Credentials, Protection};
use zbmd_wire::handshake::{Hello, Purpose, accept, dial};
use zbmd_wire::testing::{Authority, Flaw, Namespace};
use zbmd_wire::tls::{Tls, TlsFiles};
use zbmd_wire::token::Token;
use zbmd_wire::{Deadline, carry_over_ucx};

/// The folder of the certificates, for this process and its peers.
pub(crate) const FOLDER_VARIABLE: &str = "ZBMD_WIRE_CERTIFICATES";
const HELLO: Hello = Hello {
    purpose: Purpose::Wire,
    run: 1,
    epoch: 1,
    plan: 1,
    sender: 0,
    receiver: 1,
};

/// Where the certificates are.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// The folder of the certificates: of this process, or of the one that has started it.
pub(crate) fn certificate_folder() -> &'static Path {
    FOLDER.get_or_init(|| match std::env::var_os(FOLDER_VARIABLE) {
        Some(folder) => folder.into(),
        None => std::env::temp_dir().join(format!("zbmd-wire-{}", std::process::id())),
    })
}

/// A socket, or TLS over one.
pub(crate) trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    Tcp,
    PlainWire,
    Rustls,
    TlsWire,
    UcxWire,
}

/// Writes certificates of hosts at loopback and at both ends of the link between the namespaces.
pub(crate) fn write_certificates(folder: &Path) {
    let addresses = [Namespace::HERE, Namespace::THERE].map(IpAddr::from);
    Authority::new().write(folder, &addresses, Flaw::None);
}

fn tls() -> Tls {
    let folder = certificate_folder();
    let files = TlsFiles {
        certificate: folder.join("host.pem"),
        key: folder.join("host.key"),
        ca: folder.join("ca.pem"),
    };
    Tls::read(&files).expect("certificates")
}

impl Carrier {
    const ALL: [(Self, &str, &str); 5] = [
        (Self::Tcp, "tcp", "raw TCP"),
        (Self::PlainWire, "wire", "wire"),
        (Self::Rustls, "rustls", "rustls"),
        (Self::TlsWire, "tls-wire", "wire in TLS"),
        (Self::UcxWire, "ucx-wire", "wire over UCX"),
    ];

    fn entry(self) -> (Self, &'static str, &'static str) {
        let mut all = Self::ALL.into_iter();
        all.find(|(carrier, ..)| *carrier == self)
            .expect("it is listed")
    }

    pub(crate) fn word(self) -> &'static str {
        self.entry().1
    }

    pub(crate) fn name(self) -> &'static str {
        self.entry().2
    }

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|(_, found, _)| *found == word)
            .map(|(carrier, ..)| carrier)
    }

    pub(crate) fn is_wire(self) -> bool {
        matches!(self, Self::PlainWire | Self::TlsWire | Self::UcxWire)
    }

    pub(crate) fn dial_stream(self, socket: TcpStream) -> Box<dyn Stream> {
        if self == Self::Tcp {
            return Box::new(socket);
        }
        let name = Tls::name_of(socket.peer_addr().expect("a peer").ip());
        let connection = ClientConnection::new(tls().client_config(), name);
        let mut stream = StreamOwned::new(connection.expect("a client"), socket);
        while stream.conn.is_handshaking() {
            stream
                .conn
                .complete_io(&mut stream.sock)
                .expect("it answers");
        }
        Box::new(stream)
    }

    pub(crate) fn accept_stream(self, socket: TcpStream) -> Box<dyn Stream> {
        if self == Self::Tcp {
            return Box::new(socket);
        }
        let connection = ServerConnection::new(tls().server_config());
        let mut stream = StreamOwned::new(connection.expect("a server"), socket);
        while stream.conn.is_handshaking() {
            stream
                .conn
                .complete_io(&mut stream.sock)
                .expect("it answers");
        }
        Box::new(stream)
    }

    fn credentials() -> Credentials {
        Credentials {
            token: Token::of(b"a token of the benchmark"),
            protection: Protection::Tls(tls()),
        }
    }

    pub(crate) fn dial_connection(self, socket: TcpStream) -> Connection {
        let deadline = Deadline::after(Duration::from_secs(10));
        match self {
            Self::PlainWire => return socket.into(),
            Self::UcxWire => return over_ucx(socket, deadline),
            _ => {}
        }
        dial(socket, &HELLO, &Self::credentials(), deadline).expect("welcomed")
    }

    pub(crate) fn accept_connection(self, socket: TcpStream) -> Connection {
        let deadline = Deadline::after(Duration::from_secs(10));
        match self {
            Self::PlainWire => return socket.into(),
            Self::UcxWire => return over_ucx(socket, deadline),
            _ => {}
        }
        let accepted = accept(socket, &Self::credentials(), deadline).expect("accepted");
        accepted.welcome(deadline).expect("welcomed")
    }
}

fn over_ucx(socket: TcpStream, deadline: Deadline) -> Connection {
    let mut connection = [socket.into()];
    if let Err((_, error)) = carry_over_ucx(&mut connection, deadline, || false) {
        panic!("{error}");
    }
    let [connection] = connection;
    connection
}
