//! A client of HTTP that does as little as it can.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use super::shared::connect;

/// Asks the same on one connection over and over until it is over; how long the answers took, in microseconds.
pub(crate) fn ask_until(end: Instant, address: SocketAddr, request: &[u8]) -> Vec<f64> {
    let mut client = Client::new(address);
    let mut times_us = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        assert_eq!(client.ask(request), 200);
        times_us.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times_us
}

/// A connection on which one request after the other is asked.
pub(crate) struct Client {
    stream: TcpStream,
    answer: Vec<u8>,
    filled: usize,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            stream: connect(address),
            answer: vec![0; 1 << 20],
            filled: 0,
        }
    }

    /// Asks, and reads all of the answer; its status.
    pub(crate) fn ask(&mut self, request: &[u8]) -> u16 {
        self.send(request);
        loop {
            if let Some(status) = self.receive() {
                return status;
            }
        }
    }

    /// Sends a request, after all of the last answer was received.
    pub(crate) fn send(&mut self, request: &[u8]) {
        self.stream.write_all(request).expect("taken");
        self.filled = 0;
    }

    /// Waits for more of the answer; its status if that is all of it.
    pub(crate) fn receive(&mut self) -> Option<u16> {
        let read = self.stream.read(&mut self.answer[self.filled..]);
        let read = read.expect("an answer");
        assert!(read > 0, "the connection was closed");
        self.filled += read;
        let answer = Answer::of(&self.answer[..self.filled])?;
        if answer.length > self.filled {
            return None;
        }
        assert_eq!(answer.length, self.filled, "one answer at a time");
        Some(answer.status)
    }

    /// Where answers come.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The last answer's body.
    pub(crate) fn body(&self) -> &[u8] {
        let answer = &self.answer[..self.filled];
        &answer[header_bytes(answer).expect("a whole answer")..]
    }
}

/// What an answer's header says.
struct Answer {
    status: u16,
    /// Of header and body.
    length: usize,
}

impl Answer {
    /// Nothing while the header is not there.
    fn of(bytes: &[u8]) -> Option<Self> {
        let end = header_bytes(bytes)?;
        let header = std::str::from_utf8(&bytes[..end]).expect("text");
        let status = header.split(' ').nth(1)?.parse().expect("a status");
        let lines = header.lines().filter_map(|line| line.split_once(": "));
        let mut lengths = lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let body: usize = lengths.next()?.1.parse().expect("a length");
        Some(Self {
            status,
            length: end + body,
        })
    }
}

/// Bytes of an answer before its body, if all of them are there.
fn header_bytes(answer: &[u8]) -> Option<usize> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    end.map(|end| end + 4)
}
