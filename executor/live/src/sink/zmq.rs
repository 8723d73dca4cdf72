//! Messages of ZeroMQ as a sink. One thread waits on the pipe and the socket at once.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::token_reader::queue_bytes;
use super::{LOOK_NS, LiveSink, TokenReader};
use crate::clock::now_ns;
use crate::report::SharedReport;
use crate::url::{QueueFull, SinkUrl, ZmqEndpoint, ZmqPattern};
use crate::zmq::{NumberOption, Readiness, SendOutcome, SocketKind, ZmqSocket};

/// Messages that the library keeps for a peer while the others wait in our queue.
const MAX_WAITING: usize = 16;
/// A subscriber whose queue is full is tried again so often: the library does not say when it has room.
const RETRY_NS: u64 = 1_000_000;
/// When the run is over, peers that take nothing for so long are left.
const PATIENCE_NS: u64 = 500_000_000;
/// When the run is over, so long is what the library has still sent.
const LINGER_MS: i32 = 2_000;
/// A frame with a subscription is its topic and a byte.
const MAX_SUBSCRIPTION_BYTES: usize = 1024;
/// Subscriptions before the run has its turn.
const MAX_SUBSCRIPTIONS: usize = 64;

/// Sends messages to peers.
pub(super) struct ZmqSink {
    socket: ZmqSocket,
    pattern: ZmqPattern,
    full: QueueFull,
    topic: Option<String>,
    /// It was sent, and the tokens of its message were not.
    topic_is_sent: bool,
    /// Whether there are subscribers to the first bytes of the topic, by how many these are.
    subscriptions: Vec<bool>,
    queue: VecDeque<u8>,
    max_bytes: usize,
    message_bytes: usize,
    token_bytes: usize,
}

impl ZmqSink {
    pub(super) fn open(
        endpoint: &ZmqEndpoint,
        url: &SinkUrl,
        token_bytes: usize,
    ) -> io::Result<Self> {
        let message_tokens = endpoint.message_bytes / token_bytes;
        if message_tokens == 0 {
            return Err(io::Error::other(format!(
                "a message of {} bytes has no room for a token of {token_bytes} bytes: make `packet` larger",
                endpoint.message_bytes
            )));
        }
        let message_bytes = message_tokens * token_bytes;
        let max_bytes = queue_bytes(url, token_bytes);

        let is_publisher = endpoint.pattern == ZmqPattern::PublishSubscribe;
        let socket = ZmqSocket::new(match is_publisher {
            true => SocketKind::Publisher,
            false => SocketKind::Pusher,
        })?;
        let keeps_queue = !is_publisher || url.full == QueueFull::Wait;
        let waiting = match keeps_queue {
            true => MAX_WAITING,
            false => (max_bytes / message_bytes).clamp(1, i32::MAX as usize),
        };
        socket.set(NumberOption::SendHighWaterMark, waiting as i32)?;
        socket.set(NumberOption::Linger, LINGER_MS)?;
        socket.set(NumberOption::Immediate, 1)?;
        socket.set_max_message_bytes(MAX_SUBSCRIPTION_BYTES)?;
        if is_publisher && url.full == QueueFull::Wait {
            socket.set(NumberOption::PublisherNoDrop, 1)?;
        }
        socket.open(endpoint)?;

        let topic_bytes = endpoint.topic.as_ref().map_or(0, String::len);
        Ok(Self {
            socket,
            pattern: endpoint.pattern,
            full: url.full,
            topic: endpoint.topic.clone(),
            topic_is_sent: false,
            subscriptions: vec![false; topic_bytes + 1],
            queue: VecDeque::new(),
            max_bytes,
            message_bytes,
            token_bytes,
        })
    }

    /// Whether the pipe may be read: with `full=wait` only if the queue has room.
    fn takes_tokens(&self) -> bool {
        self.full != QueueFull::Wait || self.queue.len() < self.max_bytes
    }

    /// Whether messages have somebody to go to, as far as that is known.
    fn has_peer(&self) -> bool {
        self.pattern == ZmqPattern::PushPull || self.subscriptions.contains(&true)
    }

    /// Waits until something can be gone on with.
    fn wait(&self, reader: &TokenReader) -> Readiness {
        // A pipe that has ended is always ready, so it is not waited on.
        let reads_pipe = reader.is_open() && self.takes_tokens();
        let file = reads_pipe.then(|| reader.pipe());
        let is_publisher = self.pattern == ZmqPattern::PublishSubscribe;
        let is_blocked = !self.queue.is_empty();
        let limit_ns = match is_blocked && is_publisher && self.has_peer() {
            true => RETRY_NS,
            false => LOOK_NS,
        };
        self.socket
            .wait(file, is_publisher, is_blocked && !is_publisher, limit_ns)
    }

    /// Reads who subscribes, and who does so no more.
    fn read_subscriptions(&mut self, report: &SharedReport) {
        let had_peer = self.has_peer();
        for _ in 0..MAX_SUBSCRIPTIONS {
            let Some(mut frame) = self.socket.receive() else {
                break;
            };
            let topic = self.topic.as_deref().unwrap_or_default().as_bytes();
            // The last one of a topic says that nobody is left; others of the same topic are not told of.
            if let [kind @ (0 | 1), prefix @ ..] = frame.bytes()
                && topic.starts_with(prefix)
            {
                self.subscriptions[prefix.len()] = *kind == 1;
            }
        }
        if !had_peer && self.has_peer() {
            report.locked().connections += 1;
        }
    }

    /// Sends what is in the queue as far as the library takes it; whether it still does.
    fn send(&mut self, report: &SharedReport) -> bool {
        let mut sent_bytes = 0;
        let mut messages = 0;
        let mut outcome = SendOutcome::NoRoom;
        while self.has_peer() && !self.queue.is_empty() {
            let length = self.message_bytes.min(self.queue.len());
            outcome = self.send_message(length);
            if outcome != SendOutcome::Sent {
                break;
            }
            self.queue.drain(..length);
            sent_bytes += length;
            messages += 1;
        }

        let mut report = report.locked();
        report.packets += messages;
        report.sent += (sent_bytes / self.token_bytes) as u64;
        if outcome == SendOutcome::Failed {
            report.failure = Some("ZeroMQ sends no more".to_owned());
        }
        outcome != SendOutcome::Failed
    }

    fn send_message(&mut self, length: usize) -> SendOutcome {
        if let Some(topic) = &self.topic
            && !self.topic_is_sent
        {
            let outcome = self.socket.send(topic.as_bytes(), true);
            if outcome != SendOutcome::Sent {
                return outcome;
            }
            self.topic_is_sent = true;
        }
        let tokens = &self.queue.make_contiguous()[..length];
        let outcome = self.socket.send(tokens, false);
        if outcome == SendOutcome::Sent {
            self.topic_is_sent = false;
        }
        outcome
    }

    /// Drops what finds no room in the queue.
    fn drop_excess(&mut self, report: &SharedReport) {
        let has_peer = self.has_peer();
        let kept_bytes = if has_peer { self.max_bytes } else { 0 };
        let excess = self.queue.len().saturating_sub(kept_bytes);
        match self.full {
            QueueFull::Wait => return,
            QueueFull::DropNewest => self.queue.truncate(self.queue.len() - excess),
            QueueFull::DropOldest => {
                self.queue.drain(..excess);
            }
        }
        report.locked().dropped += (excess / self.token_bytes) as u64;
    }
}

impl LiveSink for ZmqSink {
    fn run(mut self: Box<Self>, tokens: File, is_over: &AtomicBool, report: &SharedReport) {
        let mut reader = TokenReader::new(tokens, self.token_bytes);
        let mut progress_ns = now_ns();
        let mut queued_bytes = 0;
        loop {
            // Loaded before the pipe is looked at: what was written before it was set is seen there.
            let run_is_over = is_over.load(Ordering::Acquire);
            let ready = self.wait(&reader);
            if ready.receives {
                self.read_subscriptions(report);
            }
            if ready.file {
                let tokens = reader.read();
                self.queue.extend(tokens);
                report.locked().received += (tokens.len() / self.token_bytes) as u64;
            }
            if !self.send(report) {
                break;
            }
            self.drop_excess(report);

            let goes_on = reader.is_open() && !run_is_over;
            if goes_on || ready.file || self.queue.len() != queued_bytes {
                progress_ns = now_ns();
                queued_bytes = self.queue.len();
                continue;
            }
            let is_late = now_ns().saturating_sub(progress_ns) >= PATIENCE_NS;
            let has_read_all = !reader.is_open() || ready.file_is_empty;
            if (has_read_all && self.queue.is_empty()) || is_late {
                break;
            }
        }
        let left = (self.queue.len() / self.token_bytes) as u64;
        report.locked().dropped += left;
    }
}
