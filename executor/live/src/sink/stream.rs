//! Connections as a sink: raw bytes, and the server's side of `rtl_tcp`. One thread waits on the pipe, the peer and the
//! listener at once.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};

use super::token_reader::queue_bytes;
use super::{LOOK_NS, LiveSink, TokenReader};
use crate::clock::now_ns;
use crate::net::{Link, timespec};
use crate::packet::rtl_tcp::{CommandReader, Hello};
use crate::report::SharedReport;
use crate::url::{QueueFull, SinkUrl};

/// Read from a client at once: commands are short.
const COMMANDS_BYTES: usize = 4 << 10;
/// When the run is over, a peer that takes nothing for so long is left.
const PATIENCE_NS: u64 = 500_000_000;
/// What an R820T says, the most common tuner.
const HELLO: Hello = Hello {
    tuner: 5,
    gains: 29,
};

/// What a connection begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SinkProtocol {
    Raw,
    /// A hello; the client may send commands.
    RtlTcp,
}

struct Client {
    stream: TcpStream,
    commands: CommandReader,
    /// Of the hello, what was not sent yet.
    greeting: Vec<u8>,
    /// Bytes of the queue's first token that were sent.
    sent_of_token: usize,
}

/// Sends to one peer after the other.
pub(super) struct StreamSink {
    link: Link,
    protocol: SinkProtocol,
    full: QueueFull,
    client: Option<Client>,
    queue: VecDeque<u8>,
    max_bytes: usize,
    token_bytes: usize,
}

/// What can be gone on with.
#[derive(Clone, Copy, Debug, Default)]
struct Readiness {
    tokens: bool,
    /// The pipe was looked at, and nothing is in it.
    pipe_is_empty: bool,
    client_says: bool,
    client_takes: bool,
}

impl StreamSink {
    pub(super) fn new(
        link: Link,
        protocol: SinkProtocol,
        url: &SinkUrl,
        token_bytes: usize,
    ) -> Self {
        Self {
            link,
            protocol,
            full: url.full,
            client: None,
            queue: VecDeque::new(),
            max_bytes: queue_bytes(url, token_bytes),
            token_bytes,
        }
    }

    /// Whether the pipe may be read: with `full=wait` only if the queue has room.
    fn takes_tokens(&self) -> bool {
        self.full != QueueFull::Wait || self.queue.len() < self.max_bytes
    }

    /// Waits until something can be gone on with.
    fn wait(&self, reader: &TokenReader) -> Readiness {
        // The first of these are waited on; nothing is allocated here.
        let mut poll_fds = [(); 3].map(|()| PollFd::new(reader.pipe(), PollFlags::IN));
        let waits_for_pipe = reader.is_open() && self.takes_tokens();
        let client_place = usize::from(waits_for_pipe);
        let mut count = client_place;

        let mut limit_ns = LOOK_NS;
        if let Some(client) = &self.client {
            let mut flags = PollFlags::IN;
            if !self.queue.is_empty() || !client.greeting.is_empty() {
                flags |= PollFlags::OUT;
            }
            poll_fds[count] = PollFd::new(&client.stream, flags);
            count += 1;
        } else {
            limit_ns = limit_ns.min(self.link.pause_ns());
        }
        if let Some(listener) = self.link.listener() {
            poll_fds[count] = PollFd::new(listener, PollFlags::IN);
            count += 1;
        }

        if poll(&mut poll_fds[..count], Some(&timespec(limit_ns))).is_err() {
            return Readiness::default();
        }
        let client_events = match self.client {
            Some(_) => poll_fds[client_place].revents(),
            None => PollFlags::empty(),
        };
        let pipe_is_ready = waits_for_pipe && !poll_fds[0].revents().is_empty();
        Readiness {
            tokens: pipe_is_ready,
            pipe_is_empty: waits_for_pipe && !pipe_is_ready,
            client_says: client_events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
            client_takes: client_events.contains(PollFlags::OUT),
        }
    }

    fn accept(&mut self, report: &SharedReport) {
        if self.client.is_some() {
            self.link.refuse_others();
            return;
        }
        let Some(stream) = self.link.open(0) else {
            return;
        };
        report.locked().connections += 1;
        let greeting = match self.protocol {
            SinkProtocol::Raw => Vec::new(),
            SinkProtocol::RtlTcp => HELLO.bytes().to_vec(),
        };
        self.client = Some(Client {
            stream,
            commands: CommandReader::default(),
            greeting,
            sent_of_token: 0,
        });
    }

    fn client_went(&mut self) {
        self.client = None;
        self.link.lost();
    }

    /// Reads what the client says: commands, or its end.
    fn listen(&mut self, report: &SharedReport) {
        let Some(client) = &mut self.client else {
            return;
        };
        let mut bytes = [0; COMMANDS_BYTES];
        match client.stream.read(&mut bytes) {
            Ok(0) => self.client_went(),
            Ok(length) => {
                let mut commands = 0;
                if self.protocol == SinkProtocol::RtlTcp {
                    client.commands.read(&bytes[..length], |_| commands += 1);
                }
                report.locked().commands += commands;
            }
            Err(error) if is_passing(&error) => {}
            Err(_) => self.client_went(),
        }
    }

    /// Writes as much as the client takes now.
    fn write(&mut self, report: &SharedReport) {
        let token_bytes = self.token_bytes;
        let Some(client) = &mut self.client else {
            return;
        };
        loop {
            let (first, second) = self.queue.as_slices();
            let from_first = first.get(client.sent_of_token..).unwrap_or_default();
            let from_second = &second[client.sent_of_token.saturating_sub(first.len())..];
            let bytes = match (client.greeting.is_empty(), from_first.is_empty()) {
                (false, _) => &client.greeting[..],
                (true, false) => from_first,
                (true, true) => from_second,
            };
            if bytes.is_empty() {
                return;
            }
            match client.stream.write(bytes) {
                Ok(written) if !client.greeting.is_empty() => {
                    client.greeting.drain(..written);
                }
                Ok(written) => {
                    let sent_bytes = client.sent_of_token + written;
                    let sent_tokens = sent_bytes / token_bytes;
                    client.sent_of_token = sent_bytes % token_bytes;
                    self.queue.drain(..sent_tokens * token_bytes);
                    report.locked().sent += sent_tokens as u64;
                }
                Err(error) if is_passing(&error) => return,
                Err(_) => {
                    self.client_went();
                    return;
                }
            }
        }
    }

    /// Puts tokens into the queue, and drops what finds no room.
    fn enqueue(&mut self, tokens: &[u8], report: &SharedReport) {
        let bytes = tokens.len();
        report.locked().received += (bytes / self.token_bytes) as u64;
        let has_peer = self.client.is_some();
        if !has_peer && self.full != QueueFull::Wait {
            // Whoever connects later gets what is new then.
            let dropped_bytes = bytes + self.queue.len();
            self.queue.clear();
            report.locked().dropped += (dropped_bytes / self.token_bytes) as u64;
            return;
        }

        let room = self.max_bytes.saturating_sub(self.queue.len());
        let excess = bytes.saturating_sub(room);
        let mut dropped_bytes = 0;
        let mut taken = 0..bytes;
        match self.full {
            QueueFull::Wait => {}
            QueueFull::DropNewest => {
                taken.end -= excess;
                dropped_bytes = excess;
            }
            QueueFull::DropOldest => {
                // A token that was sent in part has to be completed.
                let sent_of_token = self.client.as_ref().map_or(0, |c| c.sent_of_token);
                let begin = if sent_of_token > 0 {
                    self.token_bytes
                } else {
                    0
                };
                let from_queue = excess.min(self.queue.len().saturating_sub(begin));
                self.queue.drain(begin..begin + from_queue);
                taken.start = excess - from_queue;
                dropped_bytes = excess;
            }
        }
        self.queue.extend(&tokens[taken]);
        report.locked().dropped += (dropped_bytes / self.token_bytes) as u64;
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl LiveSink for StreamSink {
    fn run(mut self: Box<Self>, tokens: File, is_over: &AtomicBool, report: &SharedReport) {
        let mut reader = TokenReader::new(tokens, self.token_bytes);
        let mut last_sent = (0, now_ns());
        loop {
            // Loaded before the pipe is looked at: what was written before it was set is seen there.
            let run_is_over = is_over.load(Ordering::Acquire);
            let ready = self.wait(&reader);
            self.accept(report);
            if ready.client_says {
                self.listen(report);
            }
            if ready.client_takes {
                self.write(report);
            }
            if ready.tokens {
                self.enqueue(reader.read(), report);
                self.write(report);
            }
            if reader.is_open() && !run_is_over {
                last_sent.1 = now_ns();
                continue;
            }

            let sent = report.locked().sent;
            if sent != last_sent.0 {
                last_sent = (sent, now_ns());
            }
            let is_late = now_ns().saturating_sub(last_sent.1) >= PATIENCE_NS;
            // Without a client a full queue stays full, and what is behind it in the pipe stays there.
            let has_read_all = !reader.is_open() || ready.pipe_is_empty;
            let reads_no_more = has_read_all || !self.takes_tokens();
            let is_done = match self.client {
                Some(_) => has_read_all && self.queue.is_empty(),
                None => reads_no_more,
            };
            if is_done || is_late {
                break;
            }
        }
        let left = (self.queue.len() / self.token_bytes) as u64;
        let mut report = report.locked();
        report.dropped += left;
        report.refused = self.link.refused();
    }
}
