//! Messages of ZeroMQ as a source. A message has no number, so tokens have their places by time, as those of datagrams
//! without a header.

use std::io;

use super::{Arrival, LiveSource};
use crate::clock::now_ns;
use crate::timeline::PacketPlace;
use crate::url::{ZmqEndpoint, ZmqPattern};
use crate::zmq::{NumberOption, SocketKind, ZmqSocket};

/// Memory for messages of one peer, if they are as large as they may be.
const PEER_BYTES: usize = 64 << 20;
/// Messages of one peer that the library keeps for us.
const MAX_WAITING: usize = 1000;
/// Messages before whoever waits for us has its turn, and their bytes.
const MAX_MESSAGES: usize = 256;
const MAX_RECEIVED_BYTES: usize = 1 << 20;

/// Messages of peers.
pub(super) struct ZmqSource {
    socket: ZmqSocket,
    reader: MessageReader,
}

/// Finds the tokens in messages.
struct MessageReader {
    topic: Option<String>,
    max_bytes: usize,
    token_bytes: usize,
    /// Frames of a message that has several.
    joined: Vec<u8>,
}

impl ZmqSource {
    pub(super) fn open(endpoint: &ZmqEndpoint, token_bytes: usize) -> io::Result<Self> {
        let socket = ZmqSocket::new(match endpoint.pattern {
            ZmqPattern::PublishSubscribe => SocketKind::Subscriber,
            ZmqPattern::PushPull => SocketKind::Puller,
        })?;
        let max_bytes = endpoint.message_bytes;
        if max_bytes < token_bytes {
            return Err(io::Error::other(format!(
                "messages of up to {max_bytes} bytes have no room for a token of {token_bytes} bytes: make `packet` larger"
            )));
        }
        let waiting = (PEER_BYTES / max_bytes).clamp(1, MAX_WAITING);
        socket.set(NumberOption::ReceiveHighWaterMark, waiting as i32)?;
        socket.set_max_message_bytes(max_bytes)?;
        if endpoint.pattern == ZmqPattern::PublishSubscribe {
            let prefix = endpoint.topic.as_deref().unwrap_or_default();
            socket.subscribe(prefix.as_bytes())?;
        }
        socket.open(endpoint)?;
        Ok(Self {
            socket,
            reader: MessageReader {
                topic: endpoint.topic.clone(),
                max_bytes,
                token_bytes,
                joined: Vec::new(),
            },
        })
    }
}

impl LiveSource for ZmqSource {
    fn receive(&mut self, limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>)) {
        if !self.socket.wait(None, true, false, limit_ns).receives {
            return;
        }
        let mut received_bytes = 0;
        for _ in 0..MAX_MESSAGES {
            let Some(bytes) = self.reader.read(&mut self.socket, visit) else {
                return;
            };
            received_bytes += bytes;
            if received_bytes >= MAX_RECEIVED_BYTES {
                return;
            }
        }
    }

    fn has_connections(&self) -> bool {
        false
    }
}

impl MessageReader {
    /// Receives a message, if there is one, and shows its tokens; its bytes as far as they were kept.
    fn read(
        &mut self,
        socket: &mut ZmqSocket,
        visit: &mut dyn FnMut(Arrival<'_>),
    ) -> Option<usize> {
        let mut frame = socket.receive()?;
        let mut has_more = frame.has_more();
        if self.topic.is_none() && !has_more {
            // Most messages are of one frame, which is shown where it is.
            let bytes = frame.bytes();
            self.show(bytes, visit);
            return Some(bytes.len());
        }

        let mut is_wanted = true;
        match &self.topic {
            // A subscription is for topics that begin like ours.
            Some(topic) => is_wanted = has_more && frame.bytes() == topic.as_bytes(),
            None => self.joined.extend_from_slice(frame.bytes()),
        }
        drop(frame);
        while has_more {
            let Some(mut frame) = socket.receive() else {
                break;
            };
            has_more = frame.has_more();
            let bytes = frame.bytes();
            is_wanted &= self.joined.len() + bytes.len() <= self.max_bytes;
            if is_wanted {
                self.joined.extend_from_slice(bytes);
            }
        }

        let bytes = self.joined.len();
        match is_wanted {
            true => self.show(&self.joined, visit),
            false => visit(Arrival::Refused),
        }
        self.joined.clear();
        Some(bytes)
    }

    fn show(&self, payload: &[u8], visit: &mut dyn FnMut(Arrival<'_>)) {
        // It says nothing, as an empty datagram.
        if payload.is_empty() {
            return;
        }
        visit(match payload.len().is_multiple_of(self.token_bytes) {
            false => Arrival::Refused,
            true => Arrival::Packet {
                place: PacketPlace::Unknown,
                payload,
                arrival_ns: now_ns(),
                kernel_drops: 0,
            },
        });
    }
}
