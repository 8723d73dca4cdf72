//! URLs of streams as typed descriptions: the compiler checks those of models with what the executor reads them with.
//! Must not open anything, and must not know programs or their tokens. What each scheme does is told in `zbmd-live`.
//!
//! The scheme and the address are split here, because the standard syntax has no `paced:PATH?rate=48000` with any path,
//! and the query is read by `form_urlencoded`. Every key is known or refused, with what is allowed.

mod address;
mod audio;
mod error;
mod parts;
mod soapy;
#[cfg(test)]
mod tests;
mod zmq;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::address::StreamAddress;
pub use self::audio::{AudioCard, BridgeReplay, ClockFollowing};
pub use self::error::UrlError;
use self::parts::{Parts, RATE_ALLOWED, read_time};
pub use self::soapy::SoapyReceiver;
pub use self::zmq::{ZmqEndpoint, ZmqPattern};

/// What stands before the tokens of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Header {
    /// Nothing.
    #[default]
    None,
    /// A number of 64 bits, big-endian, that counts datagrams.
    Seq,
    /// VITA 49.2.
    Vita49,
}

/// What a receiver behind `rtl_tcp` is told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tuning {
    /// I/Q samples a second.
    pub rate: Option<f64>,
    /// Centre frequency in Hz.
    pub frequency_hz: Option<u32>,
    /// Gain of the tuner in tenths of a dB; `Some(None)` is automatic.
    pub gain_tenths: Option<Option<i32>>,
    /// Correction of its clock in parts per million.
    pub ppm: Option<i32>,
}

/// What is at the other end.
#[derive(Clone, Debug, PartialEq)]
pub enum Endpoint {
    /// Datagrams.
    Udp {
        /// Ours for a source, theirs for a sink.
        address: StreamAddress,
        /// What each datagram begins with.
        header: Header,
    },
    /// A connection that we open.
    Tcp(StreamAddress),
    /// A connection that we accept.
    TcpListen(StreamAddress),
    /// A server of a receiver's samples.
    RtlTcp(StreamAddress, Tuning),
    /// A ZeroMQ socket.
    Zmq(ZmqEndpoint),
    /// A file.
    Paced(PathBuf),
    /// A sound card.
    Audio(AudioCard),
    /// A receiver that SoapySDR knows.
    Soapy(SoapyReceiver),
    /// A file of what a sound card was given.
    BridgeReplay(BridgeReplay),
    /// A SigMF recording, by the name of either of its files.
    Recording(PathBuf),
}

impl Endpoint {
    /// The files that it uses: whoever runs another's bundle wants to know.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.read_file().into_iter().chain(self.written_file())
    }

    /// The file that it reads, if there is one.
    pub fn read_file(&self) -> Option<&Path> {
        match self {
            Self::Paced(path) | Self::Recording(path) => Some(path),
            Self::BridgeReplay(replay) => Some(&replay.record),
            Self::Audio(_)
            | Self::Udp { .. }
            | Self::Tcp(_)
            | Self::TcpListen(_)
            | Self::RtlTcp(..)
            | Self::Soapy(_)
            | Self::Zmq(_) => None,
        }
    }

    /// The file that it writes, if there is one.
    pub fn written_file(&self) -> Option<&Path> {
        match self {
            Self::Audio(card) => card.record.as_deref(),
            Self::BridgeReplay(replay) => Some(&replay.path),
            Self::Paced(_)
            | Self::Recording(_)
            | Self::Udp { .. }
            | Self::Tcp(_)
            | Self::TcpListen(_)
            | Self::RtlTcp(..)
            | Self::Soapy(_)
            | Self::Zmq(_) => None,
        }
    }
}

/// What a source gives in the place of tokens that are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// Tokens of zeros.
    #[default]
    Zeros,
    /// The last token that was received.
    Hold,
}

/// What happens to tokens for which a queue has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueFull {
    /// Those that have waited longest are dropped.
    #[default]
    DropOldest,
    /// Those that arrive are dropped.
    DropNewest,
    /// Nothing is read until there is room.
    Wait,
}

/// A source as its URL describes it. What is not given is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceUrl {
    /// As it was written.
    pub text: String,
    /// Where tokens come from.
    pub endpoint: Endpoint,
    /// Tokens a second; I/Q samples a second for `rtl_tcp`.
    pub rate: Option<f64>,
    /// Whether silence is filled.
    pub fills_silence: Option<bool>,
    /// How long a token is waited for.
    pub limit: Duration,
    /// What fills gaps.
    pub fill: Option<Fill>,
    /// Tokens that wait for the run.
    pub queue: Option<u64>,
    /// What happens when there are more.
    pub full: QueueFull,
    /// Packets that may come out of order.
    pub window: usize,
    /// Tokens of a file that are handed over at a time.
    pub piece: Option<u64>,
}

/// A sink as its URL describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkUrl {
    /// As it was written.
    pub text: String,
    /// Where tokens go.
    pub endpoint: Endpoint,
    /// Tokens that wait for the peer.
    pub queue: Option<u64>,
    /// What happens when there are more.
    pub full: QueueFull,
    /// Bytes of a datagram, its header included.
    pub packet_bytes: usize,
}

const DEFAULT_LIMIT: Duration = Duration::from_millis(50);
const DEFAULT_WINDOW: usize = 16;
/// The window's packets are kept in memory.
const MAX_WINDOW: usize = 4096;
/// What fits into a frame of Ethernet, as GNU Radio has it.
const DEFAULT_PACKET_BYTES: usize = 1472;
/// The largest payload of a datagram over IPv4.
const MAX_PACKET_BYTES: usize = 65_507;

const SOURCE_SCHEMES: [&str; 12] = [
    "udp",
    "tcp",
    "tcp-listen",
    "rtl_tcp",
    "paced",
    "sigmf",
    "audio",
    "soapy",
    "zmq-sub",
    "zmq-sub-listen",
    "zmq-pull",
    "zmq-pull-listen",
];
const SINK_SCHEMES: [&str; 10] = [
    "udp",
    "tcp",
    "tcp-listen",
    "rtl_tcp-listen",
    "audio",
    "bridge",
    "zmq-pub",
    "zmq-pub-listen",
    "zmq-push",
    "zmq-push-listen",
];
/// What follows these is a name, and not an address.
const NAME_SCHEMES: [&str; 5] = ["paced", "sigmf", "audio", "soapy", "bridge"];
const COMMON_SOURCE_KEYS: [&str; 6] = ["rate", "silence", "limit", "fill", "queue", "full"];
const TUNING_KEYS: [&str; 3] = ["freq", "gain", "ppm"];

/// Whether a text stands for a stream and not for a file: it begins with a scheme. A file of such a name can be
/// written as `./udp:...`.
pub fn is_url(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-._".contains(c));
    NAME_SCHEMES.contains(&scheme) || (is_scheme && rest.starts_with("//"))
}

impl SourceUrl {
    /// Reads the URL of a source.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let parts = Parts::split(text, "sources", &SOURCE_SCHEMES)?;
        // Keys first: a value of a key that does not exist here needs no judgement.
        let own_keys: &[&str] = match parts.scheme {
            "udp" => &["header", "window"],
            "rtl_tcp" => &TUNING_KEYS,
            "paced" => &["piece"],
            "audio" => &["latency"],
            "soapy" => &soapy::KEYS,
            _ => parts.zmq_source_keys().unwrap_or_default(),
        };
        match parts.scheme {
            // It is read no faster than the run takes it, and its gaps are known.
            "sigmf" => parts.allow(&["rate", "fill"])?,
            _ => parts.allow(&[&COMMON_SOURCE_KEYS[..], own_keys].concat())?,
        }

        let endpoint = match parts.scheme {
            "udp" => Endpoint::Udp {
                address: parts.address()?,
                header: parts.header(true)?,
            },
            "tcp" => Endpoint::Tcp(parts.address()?),
            "tcp-listen" => Endpoint::TcpListen(parts.address()?),
            "rtl_tcp" => Endpoint::RtlTcp(parts.address()?, parts.tuning()?),
            "audio" => Endpoint::Audio(parts.card(false)?),
            "soapy" => Endpoint::Soapy(parts.soapy()?),
            "zmq-sub" | "zmq-sub-listen" | "zmq-pull" | "zmq-pull-listen" => {
                Endpoint::Zmq(parts.zmq(false)?)
            }
            scheme if parts.place.is_empty() => {
                let example = match scheme {
                    "paced" => "PATH?rate=48000",
                    _ => "NAME.sigmf-meta",
                };
                let scheme = scheme.to_owned();
                return Err(UrlError::NoPath { scheme, example });
            }
            "sigmf" => Endpoint::Recording(parts.place.into()),
            _ => Endpoint::Paced(parts.place.into()),
        };

        let read_silence = |text: &str| match text {
            "stall" => Some(false),
            "fill" => Some(true),
            _ => None,
        };
        let read_fill = |text: &str| match text {
            "zeros" => Some(Fill::Zeros),
            "hold" => Some(Fill::Hold),
            _ => None,
        };
        let read_window = |text: &str| text.parse().ok().filter(|n: &usize| *n <= MAX_WINDOW);
        let read_piece = |text: &str| text.parse().ok().filter(|tokens| *tokens > 0);
        let limit_allowed = "a time from 1ms to 1h: 50ms, 2s";
        let fills_silence = parts.value("silence", "stall, fill", read_silence)?;
        let limit = parts.value("limit", limit_allowed, read_time)?;
        let fill = parts.value("fill", "zeros, hold", read_fill)?;
        let window = parts.value("window", "packets from 0 to 4096", read_window)?;
        Ok(Self {
            text: text.to_owned(),
            rate: parts.rate()?,
            fills_silence,
            limit: limit.unwrap_or(DEFAULT_LIMIT),
            fill,
            queue: parts.queue()?,
            full: match parts.scheme {
                "sigmf" => QueueFull::Wait,
                _ => parts.full()?,
            },
            window: window.unwrap_or(DEFAULT_WINDOW),
            piece: parts.value("piece", "a number of tokens from 1 on", read_piece)?,
            endpoint,
        })
    }

    /// The file that is read, if it is one.
    pub fn path(&self) -> Option<&PathBuf> {
        match &self.endpoint {
            Endpoint::Paced(path) | Endpoint::Recording(path) => Some(path),
            _ => None,
        }
    }

    /// A SigMF recording of any name, which need not be text.
    pub fn recording(path: &Path) -> Self {
        Self {
            text: path.display().to_string(),
            endpoint: Endpoint::Recording(path.to_owned()),
            rate: None,
            fills_silence: None,
            limit: DEFAULT_LIMIT,
            fill: None,
            queue: None,
            full: QueueFull::Wait,
            window: DEFAULT_WINDOW,
            piece: None,
        }
    }

    /// Says that the rate is needed.
    pub fn rate_is_missing(why: &'static str) -> UrlError {
        UrlError::Missing {
            key: "rate",
            why,
            allowed: RATE_ALLOWED,
        }
    }
}

impl SinkUrl {
    /// Reads the URL of a sink.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let parts = Parts::split(text, "sinks", &SINK_SCHEMES)?;
        let own_keys: &[&str] = match parts.scheme {
            "udp" => &["header", "packet"],
            "audio" => &audio::CARD_SINK_KEYS,
            "bridge" => &["replay"],
            _ => parts.zmq_sink_keys().unwrap_or(&["queue", "full"]),
        };
        parts.allow(own_keys)?;

        let endpoint = match parts.scheme {
            "udp" => Endpoint::Udp {
                address: parts.address()?,
                header: parts.header(false)?,
            },
            "tcp" => Endpoint::Tcp(parts.address()?),
            "tcp-listen" => Endpoint::TcpListen(parts.address()?),
            "audio" => Endpoint::Audio(parts.card(true)?),
            "bridge" => Endpoint::BridgeReplay(parts.bridge_replay()?),
            "rtl_tcp-listen" => Endpoint::RtlTcp(parts.address()?, Tuning::default()),
            _ => Endpoint::Zmq(parts.zmq(true)?),
        };
        let packet_sizes = 16..=MAX_PACKET_BYTES;
        let read_packet = |text: &str| text.parse().ok().filter(|n| packet_sizes.contains(n));
        let packet_bytes = match endpoint {
            Endpoint::Udp { .. } => parts.value("packet", "bytes from 16 to 65507", read_packet)?,
            _ => None,
        };
        Ok(Self {
            text: text.to_owned(),
            queue: parts.queue()?,
            full: parts.zmq_full()?,
            packet_bytes: packet_bytes.unwrap_or(DEFAULT_PACKET_BYTES),
            endpoint,
        })
    }
}
