//! Connections as a source: raw bytes, and `rtl_tcp`.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use super::{Arrival, LiveSource};
use crate::clock::now_ns;
use crate::net::{Link, wait_readable};
use crate::packet::rtl_tcp::{Command, HELLO_BYTES, Hello};
use crate::timeline::PacketPlace;

/// Read at once.
const BUFFER_BYTES: usize = 256 << 10;
/// Reads before whoever waits for us has its turn.
const MAX_READS: usize = 8;
/// A server that has not sent its hello by then is not one.
const HELLO_NS: u64 = 2_000_000_000;

/// What a connection begins with.
pub(super) enum Protocol {
    /// Tokens.
    Raw,
    /// A hello of the server; then we send these commands.
    RtlTcp(Vec<Command>),
}

/// A connection.
enum Connection {
    None,
    /// The server has not introduced itself yet.
    Hello {
        stream: TcpStream,
        hello: [u8; HELLO_BYTES],
        length: usize,
        until_ns: u64,
    },
    Open(TcpStream),
}

/// The bytes of one connection after the other.
pub(super) struct StreamSource {
    link: Link,
    protocol: Protocol,
    connection: Connection,
    buffer: Vec<u8>,
    /// Bytes of a token that has not come whole yet.
    partial_bytes: usize,
    token_bytes: usize,
}

impl StreamSource {
    pub(super) fn new(link: Link, protocol: Protocol, token_bytes: usize) -> Self {
        Self {
            link,
            protocol,
            connection: Connection::None,
            buffer: vec![0; BUFFER_BYTES.max(2 * token_bytes)],
            partial_bytes: 0,
            token_bytes,
        }
    }

    fn connect(&mut self, limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        let Some(stream) = self.link.open(limit_ns) else {
            return;
        };
        self.partial_bytes = 0;
        match &self.protocol {
            Protocol::Raw => {
                self.connection = Connection::Open(stream);
                visit(Arrival::Connected);
            }
            Protocol::RtlTcp(_) => {
                self.connection = Connection::Hello {
                    stream,
                    hello: [0; HELLO_BYTES],
                    length: 0,
                    until_ns: now_ns().saturating_add(HELLO_NS),
                };
            }
        }
    }

    /// Reads a hello as far as it is there. A server that is not one is left, and tried again later.
    fn read_hello(&mut self, limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        let Connection::Hello {
            stream,
            hello,
            length,
            until_ns,
        } = &mut self.connection
        else {
            return;
        };
        let left_ns = until_ns.saturating_sub(now_ns());
        let is_readable = left_ns > 0 && wait_readable(&*stream, limit_ns.min(left_ns));
        if is_readable {
            match stream.read(&mut hello[*length..]) {
                Ok(bytes @ 1..) => *length += bytes,
                Err(error) if is_passing(&error) => return,
                Ok(_) | Err(_) => *until_ns = 0,
            }
        }

        if *length == HELLO_BYTES && Hello::parse(hello).is_some() {
            self.begin(visit);
        } else if *length == HELLO_BYTES || now_ns() >= *until_ns {
            self.connection = Connection::None;
            self.link.lost();
            visit(Arrival::Refused);
        }
    }

    /// Sends the commands, which is done after every hello.
    fn begin(&mut self, visit: &mut dyn FnMut(Arrival<'_>)) {
        let connection = std::mem::replace(&mut self.connection, Connection::None);
        let (Connection::Hello { mut stream, .. }, Protocol::RtlTcp(commands)) =
            (connection, &self.protocol)
        else {
            return;
        };
        let bytes: Vec<u8> = commands.iter().flat_map(Command::bytes).collect();
        // So few bytes always find room in a new connection.
        if stream.write_all(&bytes).is_err() {
            self.link.lost();
            visit(Arrival::Refused);
            return;
        }
        self.connection = Connection::Open(stream);
        visit(Arrival::Connected);
    }

    fn read_tokens(&mut self, limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        let Connection::Open(stream) = &mut self.connection else {
            return;
        };
        if !wait_readable(&*stream, limit_ns) {
            self.link.refuse_others();
            return;
        }
        for _ in 0..MAX_READS {
            let bytes = match stream.read(&mut self.buffer[self.partial_bytes..]) {
                Ok(bytes @ 1..) => bytes,
                Err(error) if is_passing(&error) => break,
                Ok(_) | Err(_) => {
                    self.connection = Connection::None;
                    self.link.lost();
                    visit(Arrival::Disconnected);
                    return;
                }
            };
            let filled_bytes = self.partial_bytes + bytes;
            let whole_bytes = filled_bytes - filled_bytes % self.token_bytes;
            visit(Arrival::Packet {
                place: PacketPlace::Unknown,
                payload: &self.buffer[..whole_bytes],
                arrival_ns: now_ns(),
                kernel_drops: 0,
            });
            self.buffer.copy_within(whole_bytes..filled_bytes, 0);
            self.partial_bytes = filled_bytes - whole_bytes;
        }
        self.link.refuse_others();
    }
}

/// Whether an error says no more than that there is nothing now.
fn is_passing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl LiveSource for StreamSource {
    fn receive(&mut self, limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        match self.connection {
            Connection::None => self.connect(limit_ns, visit),
            Connection::Hello { .. } => self.read_hello(limit_ns, visit),
            Connection::Open(_) => self.read_tokens(limit_ns, visit),
        }
    }

    fn has_connections(&self) -> bool {
        true
    }
}
