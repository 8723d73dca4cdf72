//! URLs of streams as typed descriptions. Must not open anything.
//!
//! The scheme and the address are split here, because the standard syntax has no `paced:PATH?rate=48000` with any path,
//! and the query is read by `form_urlencoded`. Every key is known or refused, with what is allowed.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Why a text is not the URL of a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// No scheme of that name.
    #[error("unknown scheme `{scheme}`; allowed for {direction}: {allowed}")]
    Scheme {
        /// What stands before the colon.
        scheme: String,
        /// `sources` or `sinks`.
        direction: &'static str,
        /// The schemes there are.
        allowed: String,
    },
    /// What follows the scheme is not an address.
    #[error("`{found}` is not an address: write HOST:PORT, such as 127.0.0.1:5000 or [::1]:5000")]
    Address {
        /// What stands there.
        found: String,
    },
    /// A file without a name.
    #[error("`paced:` needs a file: write paced:PATH?rate=48000")]
    NoPath,
    /// A key that this scheme does not have.
    #[error("`{scheme}` has no key `{key}` for {direction}; allowed: {allowed}")]
    UnknownKey {
        /// The scheme.
        scheme: String,
        /// The key.
        key: String,
        /// `sources` or `sinks`.
        direction: &'static str,
        /// The keys there are.
        allowed: String,
    },
    /// A key that is given twice.
    #[error("the key `{key}` is given twice; give it once")]
    Repeated {
        /// The key.
        key: String,
    },
    /// A value that its key does not have.
    #[error("`{key}={value}` is wrong; allowed: {allowed}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// A key that cannot be left out here.
    #[error("the key `{key}` is missing: {why}; allowed: {allowed}")]
    Missing {
        /// The key.
        key: &'static str,
        /// Why it is needed.
        why: &'static str,
        /// What it may be.
        allowed: &'static str,
    },
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamAddress {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl FromStr for StreamAddress {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let error = || UrlError::Address {
            found: text.to_owned(),
        };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or_else(error)?,
            None => text.rsplit_once(':').ok_or_else(error)?,
        };
        let is_bracketed = text.starts_with('[');
        let is_wrong =
            |c: char| c.is_whitespace() || "/@[]".contains(c) || (c == ':' && !is_bracketed);
        if host.is_empty() || host.contains(is_wrong) {
            return Err(error());
        }
        Ok(Self {
            host: host.to_owned(),
            port: port.parse().map_err(|_| error())?,
        })
    }
}

impl fmt::Display for StreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// What stands before the tokens of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Header {
    /// Nothing.
    #[default]
    None,
    /// A number of 64 bits that counts datagrams: [`crate::packet::seq`].
    Seq,
    /// VITA 49.2: [`crate::packet::vita49`].
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
    /// A file.
    Paced(PathBuf),
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
    pub fill: Fill,
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
/// Above this no clock of ours tells two tokens apart.
const MAX_RATE: f64 = 1e12;

const SOURCE_SCHEMES: [&str; 5] = ["udp", "tcp", "tcp-listen", "rtl_tcp", "paced"];
const SINK_SCHEMES: [&str; 4] = ["udp", "tcp", "tcp-listen", "rtl_tcp-listen"];
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
    scheme == "paced" || (is_scheme && rest.starts_with("//"))
}

/// A URL's parts, before any of them has a meaning.
struct Parts<'a> {
    scheme: &'a str,
    direction: &'static str,
    /// An address, or a path.
    place: &'a str,
    keys: Vec<(String, String)>,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str, direction: &'static str, schemes: &[&str]) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once(':').unwrap_or((text, ""));
        if !schemes.contains(&scheme) {
            return Err(UrlError::Scheme {
                scheme: scheme.to_owned(),
                direction,
                allowed: schemes.join(", "),
            });
        }

        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let keys: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        for (index, (key, _)) in keys.iter().enumerate() {
            if keys[..index].iter().any(|(earlier, _)| earlier == key) {
                return Err(UrlError::Repeated { key: key.clone() });
            }
        }
        Ok(Self {
            scheme,
            direction,
            place,
            keys,
        })
    }

    fn allow(&self, allowed: &[&str]) -> Result<(), UrlError> {
        let unknown = self
            .keys
            .iter()
            .find(|(key, _)| !allowed.contains(&key.as_str()));
        match unknown {
            None => Ok(()),
            Some((key, _)) => Err(UrlError::UnknownKey {
                scheme: self.scheme.to_owned(),
                key: key.clone(),
                direction: self.direction,
                allowed: allowed.join(", "),
            }),
        }
    }

    fn address(&self) -> Result<StreamAddress, UrlError> {
        let address = self
            .place
            .strip_prefix("//")
            .ok_or_else(|| UrlError::Address {
                found: self.place.to_owned(),
            })?;
        address.parse()
    }

    fn text(&self, key: &str) -> Option<&str> {
        let found = self.keys.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }

    /// The value of a key, if it is given.
    fn value<T>(
        &self,
        key: &str,
        allowed: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, UrlError> {
        let Some(value) = self.text(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(meaning) => Ok(Some(meaning)),
            None => Err(UrlError::Value {
                key: key.to_owned(),
                value: value.to_owned(),
                allowed,
            }),
        }
    }

    fn rate(&self) -> Result<Option<f64>, UrlError> {
        let read = |text: &str| {
            let rate: f64 = text.parse().ok()?;
            (rate > 0.0 && rate <= MAX_RATE).then_some(rate)
        };
        self.value("rate", RATE_ALLOWED, read)
    }

    fn queue(&self) -> Result<Option<u64>, UrlError> {
        let read = |text: &str| text.parse().ok().filter(|tokens| *tokens > 0);
        self.value("queue", "a number of tokens from 1 on", read)
    }

    fn full(&self) -> Result<QueueFull, UrlError> {
        let read = |text: &str| match text {
            "drop-oldest" => Some(QueueFull::DropOldest),
            "drop-newest" => Some(QueueFull::DropNewest),
            "wait" => Some(QueueFull::Wait),
            _ => None,
        };
        let full = self.value("full", "drop-oldest, drop-newest, wait", read)?;
        Ok(full.unwrap_or_default())
    }

    fn header(&self, has_vita49: bool) -> Result<Header, UrlError> {
        let allowed = match has_vita49 {
            true => "none, seq, vita49",
            false => "none, seq",
        };
        let read = |text: &str| match text {
            "none" => Some(Header::None),
            "seq" => Some(Header::Seq),
            "vita49" if has_vita49 => Some(Header::Vita49),
            _ => None,
        };
        Ok(self.value("header", allowed, read)?.unwrap_or_default())
    }

    fn tuning(&self) -> Result<Tuning, UrlError> {
        let read_rate = |text: &str| {
            let rate: f64 = text.parse().ok()?;
            (rate >= 1.0 && rate <= f64::from(u32::MAX)).then_some(rate)
        };
        let read_frequency = |text: &str| {
            let frequency: f64 = text.parse().ok()?;
            (frequency >= 0.0 && frequency <= f64::from(u32::MAX)).then_some(frequency as u32)
        };
        let read_gain = |text: &str| {
            if text == "auto" {
                return Some(None);
            }
            let gain: f64 = text.parse().ok()?;
            (gain.abs() <= 1000.0).then_some(Some((gain * 10.0).round() as i32))
        };
        let read_ppm = |text: &str| text.parse().ok().filter(|ppm: &i32| ppm.abs() <= 10_000);
        Ok(Tuning {
            rate: self.value("rate", "samples a second from 1 to 4294967295", read_rate)?,
            frequency_hz: self.value("freq", "Hz from 0 to 4294967295", read_frequency)?,
            gain_tenths: self.value("gain", "auto, or dB from -1000 to 1000", read_gain)?,
            ppm: self.value("ppm", "a whole number from -10000 to 10000", read_ppm)?,
        })
    }
}

const RATE_ALLOWED: &str = "tokens a second above 0, up to 1e12";

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
            _ => &[],
        };
        parts.allow(&[&COMMON_SOURCE_KEYS[..], own_keys].concat())?;

        let endpoint = match parts.scheme {
            "udp" => Endpoint::Udp {
                address: parts.address()?,
                header: parts.header(true)?,
            },
            "tcp" => Endpoint::Tcp(parts.address()?),
            "tcp-listen" => Endpoint::TcpListen(parts.address()?),
            "rtl_tcp" => Endpoint::RtlTcp(parts.address()?, parts.tuning()?),
            _ if parts.place.is_empty() => return Err(UrlError::NoPath),
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
            fill: fill.unwrap_or_default(),
            queue: parts.queue()?,
            full: parts.full()?,
            window: window.unwrap_or(DEFAULT_WINDOW),
            piece: parts.value("piece", "a number of tokens from 1 on", read_piece)?,
            endpoint,
        })
    }

    /// The file that is played, if it is one.
    pub fn path(&self) -> Option<&PathBuf> {
        match &self.endpoint {
            Endpoint::Paced(path) => Some(path),
            _ => None,
        }
    }

    /// Says that the rate is needed.
    pub(crate) fn rate_is_missing(why: &'static str) -> UrlError {
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
            _ => &["queue", "full"],
        };
        parts.allow(own_keys)?;

        let endpoint = match parts.scheme {
            "udp" => Endpoint::Udp {
                address: parts.address()?,
                header: parts.header(false)?,
            },
            "tcp" => Endpoint::Tcp(parts.address()?),
            "tcp-listen" => Endpoint::TcpListen(parts.address()?),
            _ => Endpoint::RtlTcp(parts.address()?, Tuning::default()),
        };
        let packet_sizes = 16..=MAX_PACKET_BYTES;
        let read_packet = |text: &str| text.parse().ok().filter(|n| packet_sizes.contains(n));
        let packet_bytes = parts.value("packet", "bytes from 16 to 65507", read_packet)?;
        Ok(Self {
            text: text.to_owned(),
            queue: parts.queue()?,
            full: parts.full()?,
            packet_bytes: packet_bytes.unwrap_or(DEFAULT_PACKET_BYTES),
            endpoint,
        })
    }
}

fn read_time(text: &str) -> Option<Duration> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let found = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, unit_seconds) = found?;
    let seconds = number.parse::<f64>().ok()? * unit_seconds;
    (1e-3..=3600.0)
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source_error(text: &str) -> String {
        let error = SourceUrl::parse(text).expect_err(text);
        error.to_string()
    }

    #[test]
    fn urls_of_sources_are_read() {
        let url = SourceUrl::parse(
            "udp://[::1]:5000?header=vita49&rate=2.4e6&silence=stall&limit=2s&fill=hold&queue=9&full=wait&window=0",
        )
        .expect("right");
        let address = StreamAddress {
            host: "::1".to_owned(),
            port: 5000,
        };
        assert_eq!(address.to_string(), "[::1]:5000");
        let header = Header::Vita49;
        assert_eq!(url.endpoint, Endpoint::Udp { address, header });
        assert_eq!(url.rate, Some(2.4e6));
        assert_eq!(url.fills_silence, Some(false));
        assert_eq!(url.limit, Duration::from_secs(2));
        assert_eq!(url.fill, Fill::Hold);
        assert_eq!(url.queue, Some(9));
        assert_eq!(url.full, QueueFull::Wait);
        assert_eq!(url.window, 0);

        let url = SourceUrl::parse("rtl_tcp://radio:1234?rate=2.4e6&freq=1090e6&gain=49.6&ppm=-3");
        let Endpoint::RtlTcp(address, tuning) = url.expect("right").endpoint else {
            panic!("a receiver");
        };
        assert_eq!(address.to_string(), "radio:1234");
        assert_eq!(tuning.frequency_hz, Some(1_090_000_000));
        assert_eq!(tuning.gain_tenths, Some(Some(496)));
        assert_eq!(tuning.ppm, Some(-3));

        let url = SourceUrl::parse("paced:a b/c=d.cf32?rate=48000").expect("right");
        assert_eq!(url.path(), Some(&PathBuf::from("a b/c=d.cf32")));
    }

    #[test]
    fn mistakes_name_the_key_the_value_and_what_is_allowed() {
        for (text, expect) in [
            (
                "upd://h:1",
                "unknown scheme `upd`; allowed for sources: udp, tcp, tcp-listen, rtl_tcp, paced",
            ),
            (
                "rtl_tcp-listen://h:1",
                "unknown scheme `rtl_tcp-listen`; allowed for sources: udp, tcp, tcp-listen, rtl_tcp, paced",
            ),
            (
                "udp://h",
                "`h` is not an address: write HOST:PORT, such as 127.0.0.1:5000 or [::1]:5000",
            ),
            (
                "udp:h:1",
                "`h:1` is not an address: write HOST:PORT, such as 127.0.0.1:5000 or [::1]:5000",
            ),
            (
                "udp://h:99999",
                "`h:99999` is not an address: write HOST:PORT, such as 127.0.0.1:5000 or [::1]:5000",
            ),
            (
                "udp://h:1/path",
                "`h:1/path` is not an address: write HOST:PORT, such as 127.0.0.1:5000 or [::1]:5000",
            ),
            (
                "udp://::1:5000",
                "`::1:5000` is not an address: write HOST:PORT, such as 127.0.0.1:5000 or [::1]:5000",
            ),
            (
                "paced:?rate=1",
                "`paced:` needs a file: write paced:PATH?rate=48000",
            ),
            (
                "tcp://h:1?header=seq",
                "`tcp` has no key `header` for sources; allowed: rate, silence, limit, fill, queue, full",
            ),
            (
                "udp://h:1?header=vita",
                "`header=vita` is wrong; allowed: none, seq, vita49",
            ),
            (
                "udp://h:1?rate=0",
                "`rate=0` is wrong; allowed: tokens a second above 0, up to 1e12",
            ),
            (
                "udp://h:1?rate=nan",
                "`rate=nan` is wrong; allowed: tokens a second above 0, up to 1e12",
            ),
            (
                "udp://h:1?limit=5",
                "`limit=5` is wrong; allowed: a time from 1ms to 1h: 50ms, 2s",
            ),
            (
                "udp://h:1?full=drop",
                "`full=drop` is wrong; allowed: drop-oldest, drop-newest, wait",
            ),
            (
                "udp://h:1?queue=0",
                "`queue=0` is wrong; allowed: a number of tokens from 1 on",
            ),
            (
                "udp://h:1?window=99999",
                "`window=99999` is wrong; allowed: packets from 0 to 4096",
            ),
            (
                "udp://h:1?fill=ones",
                "`fill=ones` is wrong; allowed: zeros, hold",
            ),
            (
                "udp://h:1?silence=go",
                "`silence=go` is wrong; allowed: stall, fill",
            ),
            (
                "udp://h:1?rate=1&rate=2",
                "the key `rate` is given twice; give it once",
            ),
            (
                "rtl_tcp://h:1?gain=high",
                "`gain=high` is wrong; allowed: auto, or dB from -1000 to 1000",
            ),
            (
                "rtl_tcp://h:1?freq=5e9",
                "`freq=5e9` is wrong; allowed: Hz from 0 to 4294967295",
            ),
            (
                "rtl_tcp://h:1?ppm=1.5",
                "`ppm=1.5` is wrong; allowed: a whole number from -10000 to 10000",
            ),
        ] {
            assert_eq!(source_error(text), expect, "{text}");
        }
        let error = SinkUrl::parse("udp://h:1?packet=9").expect_err("too small");
        let expect = "`packet=9` is wrong; allowed: bytes from 16 to 65507";
        assert_eq!(error.to_string(), expect);
        let error = SinkUrl::parse("udp://h:1?window=1").expect_err("of sources");
        let expect = "`udp` has no key `window` for sinks; allowed: header, packet";
        assert_eq!(error.to_string(), expect);
    }

    #[test]
    fn files_are_not_urls() {
        for text in [
            "-",
            "a.cf32",
            "./udp://x",
            "/a:b",
            "a:b",
            "C:x",
            "dir/udp://x",
        ] {
            assert!(!is_url(text), "{text}");
        }
        for text in [
            "udp://h:1",
            "http://h",
            "paced:x",
            "rtl_tcp-listen://h:1",
            "tcp://",
        ] {
            assert!(is_url(text), "{text}");
        }
    }
}
