//! URLs of ZeroMQ sockets.

use super::{Parts, QueueFull, StreamAddress, UrlError};

const DEFAULT_SOURCE_MESSAGE_BYTES: usize = 4 << 20;
const DEFAULT_SINK_MESSAGE_BYTES: usize = 16 << 10;
const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// How peers of a ZeroMQ socket share its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZmqPattern {
    /// PUB and SUB: each subscriber gets every message.
    PublishSubscribe,
    /// PUSH and PULL: each message goes to one peer.
    PushPull,
}

/// A ZeroMQ socket as a URL describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZmqEndpoint {
    /// Ours if it listens, else the peer's.
    pub address: StreamAddress,
    /// Whether peers connect to it.
    pub listens: bool,
    /// How its peers share messages.
    pub pattern: ZmqPattern,
    /// The first frame of each message, which is not tokens.
    pub topic: Option<String>,
    /// A source: bytes of the largest message that is accepted. A sink: bytes of a message, its topic excluded.
    pub message_bytes: usize,
}

impl Parts<'_> {
    /// Keys of this scheme besides those of all sources; `None` if it is not one of ZeroMQ.
    pub(super) fn zmq_source_keys(&self) -> Option<&'static [&'static str]> {
        match self.scheme {
            "zmq-sub" | "zmq-sub-listen" => Some(&["packet", "topic"]),
            "zmq-pull" | "zmq-pull-listen" => Some(&["packet"]),
            _ => None,
        }
    }

    /// Keys of this scheme; `None` if it is not one of ZeroMQ.
    pub(super) fn zmq_sink_keys(&self) -> Option<&'static [&'static str]> {
        match self.scheme {
            "zmq-pub" | "zmq-pub-listen" => Some(&["packet", "queue", "full", "topic"]),
            "zmq-push" | "zmq-push-listen" => Some(&["packet", "queue", "full"]),
            _ => None,
        }
    }

    /// What a sink does when its queue is full. To PUB the library has a queue for each subscriber, of which it tells
    /// nothing and drops the newest message.
    pub(super) fn zmq_full(&self) -> Result<QueueFull, UrlError> {
        if !matches!(self.scheme, "zmq-pub" | "zmq-pub-listen") {
            return self.full();
        }
        let read = |text: &str| match text {
            "drop-newest" => Some(QueueFull::DropNewest),
            "wait" => Some(QueueFull::Wait),
            _ => None,
        };
        let full = self.value("full", "drop-newest, wait", read)?;
        Ok(full.unwrap_or(QueueFull::DropNewest))
    }

    /// The ZeroMQ socket of a source or a sink.
    pub(super) fn zmq(&self, is_sink: bool) -> Result<ZmqEndpoint, UrlError> {
        let read_bytes = |text: &str| {
            let bytes = text.parse().ok();
            bytes.filter(|bytes| (1..=MAX_MESSAGE_BYTES).contains(bytes))
        };
        let message_bytes = self.value("packet", "bytes from 1 to 1073741824", read_bytes)?;
        let default_bytes = match is_sink {
            true => DEFAULT_SINK_MESSAGE_BYTES,
            false => DEFAULT_SOURCE_MESSAGE_BYTES,
        };
        let read_topic = |text: &str| (1..=255).contains(&text.len()).then(|| text.to_owned());
        Ok(ZmqEndpoint {
            address: self.address()?,
            listens: self.scheme.ends_with("-listen"),
            pattern: match self.scheme {
                "zmq-sub" | "zmq-sub-listen" | "zmq-pub" | "zmq-pub-listen" => {
                    ZmqPattern::PublishSubscribe
                }
                _ => ZmqPattern::PushPull,
            },
            topic: self.value("topic", "a text of 1 to 255 bytes", read_topic)?,
            message_bytes: message_bytes.unwrap_or(default_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Endpoint, SinkUrl, SourceUrl};
    use super::*;

    #[test]
    fn sockets_of_each_pattern_are_read() {
        let address = StreamAddress {
            host: "::1".to_owned(),
            port: 5000,
        };
        let mut expect = ZmqEndpoint {
            address,
            listens: false,
            pattern: ZmqPattern::PublishSubscribe,
            topic: Some("a b".to_owned()),
            message_bytes: 9,
        };
        let text = "zmq-sub://[::1]:5000?rate=1e6&topic=a+b&packet=9&limit=2s";
        let url = SourceUrl::parse(text).expect("right");
        assert_eq!(url.endpoint, Endpoint::Zmq(expect.clone()));
        assert_eq!(url.rate, Some(1e6));
        let url = SinkUrl::parse("zmq-pub://[::1]:5000?topic=a%20b&packet=9").expect("right");
        assert_eq!(url.endpoint, Endpoint::Zmq(expect.clone()));
        assert_eq!(url.full, QueueFull::DropNewest);

        expect.listens = true;
        let url = SourceUrl::parse("zmq-sub-listen://[::1]:5000?topic=a+b&packet=9");
        assert_eq!(url.expect("right").endpoint, Endpoint::Zmq(expect.clone()));
        let url = SinkUrl::parse("zmq-pub-listen://[::1]:5000?topic=a+b&packet=9&full=wait");
        let url = url.expect("right");
        assert_eq!(url.endpoint, Endpoint::Zmq(expect.clone()));
        assert_eq!(url.full, QueueFull::Wait);

        expect.pattern = ZmqPattern::PushPull;
        expect.topic = None;
        expect.message_bytes = 4 << 20;
        let url = SourceUrl::parse("zmq-pull-listen://[::1]:5000").expect("right");
        assert_eq!(url.endpoint, Endpoint::Zmq(expect.clone()));
        expect.listens = false;
        let url = SourceUrl::parse("zmq-pull://[::1]:5000").expect("right");
        assert_eq!(url.endpoint, Endpoint::Zmq(expect.clone()));
        expect.message_bytes = 16 << 10;
        let url = SinkUrl::parse("zmq-push://[::1]:5000?queue=7").expect("right");
        assert_eq!(url.endpoint, Endpoint::Zmq(expect.clone()));
        assert_eq!((url.queue, url.full), (Some(7), QueueFull::DropOldest));
        expect.listens = true;
        let url = SinkUrl::parse("zmq-push-listen://[::1]:5000").expect("right");
        assert_eq!(url.endpoint, Endpoint::Zmq(expect));
    }

    #[test]
    fn sockets_that_make_no_sense_are_refused() {
        for (text, part) in [
            ("zmq-sub:h:1", "is not an address"),
            (
                "zmq-sub://h:1?packet=0",
                "allowed: bytes from 1 to 1073741824",
            ),
            ("zmq-sub://h:1?topic=", "allowed: a text of 1 to 255 bytes"),
            (
                "zmq-pull://h:1?topic=a",
                "allowed: rate, silence, limit, fill, queue, full, packet",
            ),
            ("zmq-pub://h:1", "unknown scheme `zmq-pub`"),
        ] {
            let error = SourceUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        for (text, part) in [
            (
                "zmq-pub://h:1?full=drop-oldest",
                "allowed: drop-newest, wait",
            ),
            ("zmq-push://h:1?topic=a", "allowed: packet, queue, full"),
            ("zmq-push://h:1?packet=2e9", "allowed: bytes from 1 to"),
            ("zmq-pull://h:1", "unknown scheme `zmq-pull`"),
        ] {
            let error = SinkUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
