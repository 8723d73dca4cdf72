//! Datagrams as a sink.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::AtomicBool;

use zbmd_ir::TokenType;
use zbmd_ir::burst::{self, BurstLayout};

use super::{LiveSink, TokenReader};
use crate::packet::seq;
use crate::report::SharedReport;
use crate::url::Header;

/// Sends datagrams of one size, of which the last one may be shorter; or one for each burst that is not empty, with the
/// burst's header and the items there are.
pub(super) struct UdpSink {
    socket: UdpSocket,
    to: SocketAddr,
    header: Header,
    /// Header and whole tokens.
    datagram: Vec<u8>,
    header_bytes: usize,
    filled_bytes: usize,
    token_bytes: usize,
    /// Where tokens are bursts.
    bursts: Option<BurstLayout>,
    /// Datagrams so far.
    number: u64,
}

impl UdpSink {
    pub(super) fn open(
        addresses: &[SocketAddr],
        header: Header,
        max_bytes: usize,
        token: &TokenType,
    ) -> io::Result<Self> {
        let token_bytes = token.bytes() as usize;
        let bursts = BurstLayout::of(token);
        let header_bytes = match header {
            Header::Seq => seq::HEADER_BYTES,
            Header::None | Header::Vita49 => 0,
        };
        let mut tokens = max_bytes.saturating_sub(header_bytes) / token_bytes;
        if bursts.is_some() {
            tokens = tokens.min(1);
        }
        if tokens == 0 {
            return Err(io::Error::other(format!(
                "a datagram of {max_bytes} bytes, {header_bytes} of them its header, has no room for a token of {token_bytes} bytes: make `packet` larger"
            )));
        }
        let to = *addresses
            .first()
            .ok_or_else(|| io::Error::other("there is no address"))?;
        // Not connected: otherwise the system would tell of a peer that is not there, which is no matter.
        let socket = match to {
            SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?,
            SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?,
        };
        Ok(Self {
            socket,
            to,
            header,
            datagram: vec![0; header_bytes + tokens * token_bytes],
            header_bytes,
            filled_bytes: header_bytes,
            token_bytes,
            bursts,
            number: 0,
        })
    }

    /// Sends the tokens that have come.
    fn send(&mut self, report: &SharedReport) {
        let whole_bytes = self.filled_bytes - self.header_bytes;
        self.filled_bytes = self.header_bytes;
        let tokens = (whole_bytes / self.token_bytes) as u64;
        let Some(sent_bytes) = self.payload_bytes(whole_bytes) else {
            report.locked().received += tokens;
            return;
        };
        if self.header == Header::Seq {
            // As GNU Radio does: the first datagram has number 1.
            self.number = self.number.wrapping_add(1);
            self.datagram[..self.header_bytes].copy_from_slice(&seq::header(self.number));
        }
        let datagram = &self.datagram[..self.header_bytes + sent_bytes];
        let result = self.socket.send_to(datagram, self.to);

        let mut report = report.locked();
        report.packets += 1;
        report.received += tokens;
        match result {
            Ok(_) => report.sent += tokens,
            Err(_) => report.dropped += tokens,
        }
    }

    /// How much of so many bytes of tokens is sent; `None` where there is nothing to send.
    fn payload_bytes(&self, token_bytes: usize) -> Option<usize> {
        let Some(layout) = self.bursts else {
            return (token_bytes > 0).then_some(token_bytes);
        };
        let token = &self.datagram[self.header_bytes..][..token_bytes];
        let burst = layout.read_all(token).next()?.ok()?;
        (burst.length > 0).then_some(burst::HEADER_BYTES + burst.items.len())
    }
}

impl LiveSink for UdpSink {
    fn run(mut self: Box<Self>, tokens: File, is_over: &AtomicBool, report: &SharedReport) {
        let mut reader = TokenReader::new(tokens, self.token_bytes);
        while let Some(mut bytes) = reader.next(usize::MAX, is_over) {
            while !bytes.is_empty() {
                let room = &mut self.datagram[self.filled_bytes..];
                let (now, later) = bytes.split_at(bytes.len().min(room.len()));
                room[..now.len()].copy_from_slice(now);
                self.filled_bytes += now.len();
                if self.filled_bytes == self.datagram.len() {
                    self.send(report);
                }
                bytes = later;
            }
        }
        self.send(report);
    }
}
