//! Live sources and sinks: what is on a socket becomes the tokens of a stream, in order, with every gap accounted for.
//! Must not know bundles or command lines, nor, but for the module `session` (a feature), sessions: tokens leave and
//! enter through [`TokenConsumer`].
//!
//! ```text
//! socket -> LiveSource -> Timeline -> FeedQueue -> TokenConsumer (a source's handle)
//!           packets       order and   what the     and, where asked, flags
//!                         gaps        run did not take yet
//! ```
//!
//! # A sample's index is its time times the rate, for ever
//!
//! The token with index `i` was sampled `i / rate` seconds after token 0. Whatever happens to a packet, the tokens after
//! it keep their indexes: lost tokens are filled, and counted as a [`Gap`] with its first index, length and cause.
//! [`timeline`] has the rules.
//!
//! # URLs
//!
//! | URL | source | sink |
//! |---|---|---|
//! | `udp://HOST:PORT` | datagrams that arrive at this address of ours | datagrams to this address |
//! | `tcp://HOST:PORT` | a client that reads, and connects again | a client that writes, and connects again |
//! | `tcp-listen://HOST:PORT` | a server that reads from one client at a time | a server that writes to one client at a time |
//! | `rtl_tcp://HOST:PORT` | a client of a receiver's `rtl_tcp` server | |
//! | `rtl_tcp-listen://HOST:PORT` | | an `rtl_tcp` server: hello, u8 samples, commands accepted |
//! | `paced:PATH` | a file that is played at its rate | |
//! | `sigmf:PATH`, or a name that ends in `.sigmf-meta` or `.sigmf-data` | a SigMF recording ([`sigmf`]), as fast as the run takes it | see [`sigmf::describe`] |
//! | `audio:NAME` | a sound card's input (feature `audio`) | a sound card's output, behind a [clock bridge](bridge) |
//! | `soapy:DEVICE` | a receiver that SoapySDR has a module for, such as `driver=rtlsdr` (feature `soapy`; the library is looked for at run time) | |
//! | `zmq-sub://HOST:PORT`, `zmq-pull://HOST:PORT` | messages of a ZeroMQ peer (feature `zmq`; the library is looked for at run time) | |
//! | `zmq-pub://HOST:PORT`, `zmq-push://HOST:PORT` | | messages to a ZeroMQ peer |
//! | each of the four with `-listen`, such as `zmq-pub-listen://HOST:PORT` | the same, and peers connect to us | the same, and peers connect to us |
//! | `bridge:PATH` | | a file of what a sound card was given, by the record of its bridge: float, interleaved |
//!
//! NAME is a sound card's in the system's list (that of `aplay -L` and `arecord -L`); without one, or with `default`, it
//! is the system's default. Tokens of sound are `f32`, a channel for each element, or `c32`, which is two.
//!
//! A host that is an IPv6 address has brackets: `udp://[::1]:5000`. Keys follow after `?`, joined by `&`:
//!
//! | key | of | values | without it |
//! |---|---|---|---|
//! | `rate` | sources | tokens a second: `48000`, `2.4e6` (`rtl_tcp`: I/Q samples a second) | the stream's `sample_rate` in the model |
//! | `silence` | sources | `stall`: wait; `fill`: give fill tokens after `limit` | `fill` where there is a rate, `stall` for `paced` |
//! | `limit` | sources | how long a token is waited for: `50ms`, `2s` | `50ms` |
//! | `fill` | sources | `zeros`, or `hold`: the last token again | `zeros` |
//! | `queue` | sources; `tcp`, `rtl_tcp`, `zmq` sinks | tokens that wait for the run or the peer (`zmq-pub`: for each subscriber) | 4 MiB |
//! | `full` | as `queue` | `drop-oldest`, `drop-newest`, `wait` (`zmq-pub`: `drop-newest`, `wait`) | `drop-oldest`; `zmq-pub`: `drop-newest` |
//! | `fill` | `sigmf` | as above | what was recorded; zeros for samples that are not in the recording |
//! | `window` | `udp` sources | packets that may come out of order | `16` |
//! | `header` | `udp` | `none`, `seq`, `vita49` (sources only) | `none` |
//! | `piece` | `paced` | tokens that are handed over at a time, when the last of them is due | those of 5 ms |
//! | `packet` | `udp` sinks | bytes of a datagram, its header included | `1472` |
//! | `packet` | `zmq` sinks | bytes of the largest message that is sent, its topic excluded | `16384` |
//! | `packet` | `zmq` sources | bytes of the largest frame and message that are accepted; whoever sends a larger frame is disconnected | `4194304` |
//! | `topic` | `zmq-sub`, `zmq-pub` | the first frame of each message, which is not tokens; a source takes messages of just this topic | no such frame |
//! | `freq` | `rtl_tcp`, `soapy` | centre frequency in Hz | not set |
//! | `gain` | `rtl_tcp`, `soapy` | dB, or `auto` | not set |
//! | `ppm` | `rtl_tcp` | correction of the receiver's clock | not set |
//! | `antenna`, `channel` | `soapy` | which of the device's | the device's, `0` |
//! | `latency` | `audio` | how long a frame waits for the run or the card | `50ms` |
//! | `rate` | `audio` sinks | frames a second of the card | the stream's `sample_rate` in the model, or 48000 |
//! | `clock` | `audio` sinks | `source`: the ratio follows the run's source; `card`: the run is read as the card plays | `source` if the run has a live source |
//! | `record` | `audio` sinks | a file for the record of the clock bridge | none |
//! | `replay` | `bridge` | the record of a clock bridge | |
//!
//! Bursts ([`zbmd_ir::burst`]) leave by `udp` alone: a datagram for each that is not empty, its header and the items there
//! are.
//!
//! Bytes on the wire are those of tokens in this machine's byte order; VITA 49 has its own, which is converted. `zeros`
//! are bytes of zero, and 127 for unsigned samples of `rtl_tcp` and `soapy`, which have their zero there.
//!
//! # ZeroMQ
//!
//! A message is whole tokens; its frames after the topic are joined, and a message of another length is refused and
//! counted. GNU Radio's `zeromq` blocks with `pass_tags=False` send and take such messages, and their `key` is the
//! `topic`. PUB and PUSH blocks bind by default: the other end connects, and our sinks for its sources have `-listen`.
//!
//! ZeroMQ loses messages without saying so: a publisher whose queue for a subscriber is full (its high-water mark) drops
//! what is new, and a message has no number. So only time tells of a gap: as with datagrams without header, silence longer
//! than `limit` is filled, and what comes then has its index by the clock; a loss that is shorter is not seen, and tokens
//! move up. A sink counts as `sent` what it gave to the library. What a `zmq-pub` sink gives while nobody subscribes is
//! counted as dropped; what the library drops for a slow subscriber is not known. With `full=wait` it sends only while
//! there is a subscriber, at the pace of the slowest, and loses nothing. For a stream whose losses are to be counted to
//! the sample, use `udp` with `header=seq`.
//!
//! The library keeps a message of several frames until its last frame has come, and has no limit for how many there are:
//! let only peers that are trusted connect where memory matters.
//!
//! # Peers are strangers
//!
//! No length that a peer sends is used to reserve memory, no peer is waited for without a time limit, and a server has
//! one client: further connections are closed at once. A source never ends because its peer went.

#[cfg(feature = "audio")]
mod audio;
pub mod bridge;
mod buffer;
mod clock;
mod clock_line;
mod deliver;
mod feed_queue;
mod feeder;
mod gap;
mod net;
pub mod packet;
mod release;
mod report;
mod sequence;
#[cfg(feature = "session")]
pub mod session;
pub mod sigmf;
mod sink;
mod source;
pub mod timeline;
#[cfg(feature = "zmq")]
mod zmq;

use zbmd_stream_url as url;

pub use clock::now_ns;
pub use deliver::{ConsumerClosed, TokenConsumer};
pub use feeder::{Feeder, FeederEnd, FeederError, FeederParts, token_rate};
pub use gap::{Cause, Gap};
pub use release::{ReleaseClock, TimeHistogram, TimeSummary};
pub use report::{BridgeReport, LiveEvent, LiveReport, SharedReport};
pub use sequence::SequenceCounter;
pub use sink::{LiveSink, SinkContext, open_sink};
pub use source::{Arrival, LiveSource, PacedSource, open_source};
pub use timeline::{
    Packet, PacketPlace, Silence, Step, Timeline, TimelineCounts, TimelineSettings,
};
pub use url::{
    AudioCard, BridgeReplay, Endpoint, Fill, Header, QueueFull, SinkUrl, SoapyReceiver, SourceUrl,
    StreamAddress, Tuning, UrlError, ZmqEndpoint, ZmqPattern, is_url,
};
