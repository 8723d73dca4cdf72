//! Datagrams as a source.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use rustix::net::sockopt;
use zbmd_ir::{DType, TokenType};

use super::datagrams::DatagramBatch;
use super::{Arrival, LiveSource};
use crate::clock::now_ns;
use crate::net::wait_readable;
use crate::packet::{seq, vita49};
use crate::timeline::PacketPlace;
use crate::url::Header;

/// What the system is asked to keep while we do not read: 100 ms of 80 MB/s.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// Calls before whoever waits for us has its turn.
const MAX_CALLS: usize = 8;
/// Bits of a packet count of VITA 49.
const VITA49_COUNT_BITS: u32 = 4;

/// Datagrams that arrive at an address of ours.
pub(super) struct UdpSource {
    socket: UdpSocket,
    batch: DatagramBatch,
    reader: DatagramReader,
}

/// Finds the tokens in datagrams.
struct DatagramReader {
    header: Header,
    dtype: DType,
    rate_micro: Option<i128>,
    /// The first one seen: others are of no interest.
    stream_id: Option<Option<u32>>,
    /// The last free-running count, extended beyond its 64 bits.
    free_count: Option<i128>,
    tokens: Vec<u8>,
}

impl UdpSource {
    /// Binds the first of the addresses that can be bound.
    pub(super) fn open(
        addresses: &[SocketAddr],
        header: Header,
        token: &TokenType,
        rate: Option<f64>,
    ) -> io::Result<Self> {
        let socket = UdpSocket::bind(addresses)?;
        socket.set_nonblocking(true)?;
        // Beyond the system's limit only with a right; as much as there is otherwise.
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
        }
        let batch = DatagramBatch::new(&socket)?;
        Ok(Self {
            socket,
            batch,
            reader: DatagramReader {
                header,
                dtype: token.dtype,
                rate_micro: rate.map(|rate| (rate * 1e6).round() as i128),
                stream_id: None,
                free_count: None,
                tokens: Vec::new(),
            },
        })
    }
}

impl LiveSource for UdpSource {
    fn receive(&mut self, limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        if !wait_readable(&self.socket, limit_ns) {
            return;
        }
        for _ in 0..MAX_CALLS {
            let arrival_ns = now_ns();
            let reader = &mut self.reader;
            let received = self.batch.receive(&self.socket, |datagram, kernel_drops| {
                reader.read(datagram, arrival_ns, kernel_drops, visit);
            });
            // An error here is of one datagram, or says that there is none.
            if !received.is_ok_and(|count| count > 0) {
                return;
            }
        }
    }

    fn has_connections(&self) -> bool {
        false
    }
}

impl DatagramReader {
    fn read(
        &mut self,
        datagram: &[u8],
        arrival_ns: u64,
        kernel_drops: u64,
        visit: &mut dyn FnMut(Arrival<'_>),
    ) {
        // GNU Radio ends a stream with empty datagrams.
        if datagram.is_empty() {
            return;
        }
        let found = match self.header {
            Header::None => Some((PacketPlace::Unknown, datagram)),
            Header::Seq => seq::split(datagram)
                .map(|(number, payload)| (PacketPlace::Number(number, u64::BITS), payload)),
            Header::Vita49 => match self.read_vita49(datagram) {
                Vita49Content::Tokens(place) => Some((place, &self.tokens[..])),
                Vita49Content::SampleRate(rate) => return visit(Arrival::SampleRate(rate)),
                Vita49Content::Nothing => return,
                Vita49Content::Refused => None,
            },
        };
        visit(match found {
            None => Arrival::Refused,
            Some((place, payload)) => Arrival::Packet {
                place,
                payload,
                arrival_ns,
                kernel_drops,
            },
        });
    }

    fn read_vita49(&mut self, datagram: &[u8]) -> Vita49Content {
        match vita49::parse(datagram) {
            Ok(vita49::Vita49::Data {
                prologue, payload, ..
            }) => {
                if *self.stream_id.get_or_insert(prologue.stream_id) != prologue.stream_id {
                    return Vita49Content::Refused;
                }
                vita49::to_native(&datagram[payload], self.dtype, &mut self.tokens);
                Vita49Content::Tokens(self.place(&prologue))
            }
            Ok(vita49::Vita49::Context { sample_rate, .. }) => match sample_rate {
                Some(rate) => Vita49Content::SampleRate(vita49::rate_hz(rate)),
                None => Vita49Content::Nothing,
            },
            Err(_) => Vita49Content::Refused,
        }
    }

    /// Where a packet belongs: by its time stamp, else by its count.
    fn place(&mut self, prologue: &vita49::Prologue) -> PacketPlace {
        if let vita49::Fraction::FreeCount(count) = prologue.fraction {
            let extended = match self.free_count {
                None => i128::from(count),
                Some(last) => last + i128::from(count.wrapping_sub(last as u64).cast_signed()),
            };
            self.free_count = Some(extended);
            return PacketPlace::Token(extended);
        }
        let by_time = self
            .rate_micro
            .and_then(|rate_micro| vita49::position(prologue, rate_micro));
        match by_time {
            Some(position) => PacketPlace::Token(position),
            None => PacketPlace::Number(u64::from(prologue.count), VITA49_COUNT_BITS),
        }
    }
}

enum Vita49Content {
    /// Tokens, in the reader's buffer.
    Tokens(PacketPlace),
    SampleRate(f64),
    Nothing,
    Refused,
}
