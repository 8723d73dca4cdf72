//! Live sources and sinks: what is on a socket becomes the tokens of a stream, in order, with every gap accounted for.
//! Must not know sessions, bundles or command lines: tokens leave and enter through [`TokenConsumer`], which whoever
//! has a session implements for its handles.
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
//!
//! A host that is an IPv6 address has brackets: `udp://[::1]:5000`. Keys follow after `?`, joined by `&`:
//!
//! | key | of | values | without it |
//! |---|---|---|---|
//! | `rate` | sources | tokens a second: `48000`, `2.4e6` (`rtl_tcp`: I/Q samples a second) | the stream's `sample_rate` in the model |
//! | `silence` | sources | `stall`: wait; `fill`: give fill tokens after `limit` | `fill` where there is a rate, `stall` for `paced` |
//! | `limit` | sources | how long a token is waited for: `50ms`, `2s` | `50ms` |
//! | `fill` | sources | `zeros`, or `hold`: the last token again | `zeros` |
//! | `queue` | sources; `tcp`, `rtl_tcp` sinks | tokens that wait for the run or the peer | 4 MiB |
//! | `full` | as `queue` | `drop-oldest`, `drop-newest`, `wait` | `drop-oldest` |
//! | `window` | `udp` sources | packets that may come out of order | `16` |
//! | `header` | `udp` | `none`, `seq`, `vita49` (sources only) | `none` |
//! | `piece` | `paced` | tokens that are handed over at a time, when the last of them is due | those of 5 ms |
//! | `packet` | `udp` sinks | bytes of a datagram, its header included | `1472` |
//! | `freq` | `rtl_tcp` | centre frequency in Hz | not set |
//! | `gain` | `rtl_tcp` | dB, or `auto` | not set |
//! | `ppm` | `rtl_tcp` | correction of the receiver's clock | not set |
//!
//! Bytes on the wire are those of tokens in this machine's byte order; VITA 49 has its own, which is converted. `zeros`
//! are bytes of zero, and 127 for samples of `rtl_tcp`, which have their zero there.
//!
//! # Peers are strangers
//!
//! No length that a peer sends is used to reserve memory, no peer is waited for without a time limit, and a server has
//! one client: further connections are closed at once. A source never ends because its peer went.

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
mod sink;
mod source;
pub mod timeline;
mod url;

pub use clock::now_ns;
pub use deliver::{ConsumerClosed, TokenConsumer};
pub use feeder::{Feeder, FeederEnd, FeederError, FeederParts, token_rate};
pub use gap::{Cause, Gap};
pub use release::{ReleaseClock, TimeHistogram, TimeSummary};
pub use report::{LiveEvent, LiveReport, SharedReport};
pub use sequence::SequenceCounter;
pub use sink::{LiveSink, open_sink};
pub use source::{Arrival, LiveSource, PacedSource, open_source};
pub use timeline::{
    Packet, PacketPlace, Silence, Step, Timeline, TimelineCounts, TimelineSettings,
};
pub use url::{
    Endpoint, Fill, Header, QueueFull, SinkUrl, SourceUrl, StreamAddress, Tuning, UrlError, is_url,
};
