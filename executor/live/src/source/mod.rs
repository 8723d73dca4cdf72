//! Where tokens come from: sockets and files behind one trait. Must not know the order of tokens: that is the timeline's.

mod datagrams;
mod paced;
mod recorded;
#[cfg(feature = "soapy")]
mod soapy;
mod stream;
mod udp;
#[cfg(feature = "zmq")]
mod zmq;

use std::io;

pub use paced::PacedSource;

use zbmd_ir::TokenType;

use self::recorded::RecordedSource;
use self::stream::{Protocol, StreamSource};
use self::udp::UdpSource;
use crate::gap::Cause;
use crate::net::{Link, resolve};
use crate::packet::rtl_tcp::Command;
use crate::release::TimeSummary;
use crate::timeline::PacketPlace;
use crate::url::{AudioCard, Endpoint, SoapyReceiver, SourceUrl, Tuning, ZmqEndpoint};

/// Something that a source received.
#[derive(Debug)]
pub enum Arrival<'a> {
    /// Tokens.
    Packet {
        /// Where they belong.
        place: PacketPlace,
        /// Their bytes, in this machine's order; what is not a whole token at the end is left out.
        payload: &'a [u8],
        /// When they arrived.
        arrival_ns: u64,
        /// Datagrams that the system dropped before it.
        kernel_drops: u64,
    },
    /// Tokens that are known to be missing. Only of sources that are read no faster than the run takes them.
    Missing {
        /// How many.
        tokens: u64,
        /// Why.
        cause: Cause,
        /// What they are filled with; otherwise it is as the URL says.
        fill: Option<&'a [u8]>,
    },
    /// Something that was not understood or not wanted.
    Refused,
    /// The sender states its rate, in samples a second.
    SampleRate(f64),
    /// A connection was made.
    Connected,
    /// The connection is gone; the source looks for another.
    Disconnected,
    /// There will be nothing more.
    Ended,
}

/// Where tokens come from. A source looks after its connections itself.
pub trait LiveSource: Send {
    /// Waits until something arrives, for about `limit_ns` at most, and shows it to `visit`.
    fn receive(&mut self, limit_ns: u64, visit: &mut dyn FnMut(Arrival<'_>));

    /// Whether it is connected only after [`Arrival::Connected`].
    fn has_connections(&self) -> bool;

    /// How late tokens were handed over, for sources that hand them over by the clock.
    fn release_lateness(&mut self) -> Option<TimeSummary> {
        None
    }
}

/// Opens the source of a URL: its address is bound, or looked up. Files are opened by [`PacedSource::new`]. `rate` is in
/// tokens a second.
///
/// # Errors
/// What the system says.
pub fn open_source(
    url: &SourceUrl,
    token: &TokenType,
    rate: Option<f64>,
) -> io::Result<Box<dyn LiveSource>> {
    let token_bytes = token.bytes() as usize;
    Ok(match &url.endpoint {
        Endpoint::Udp { address, header } => {
            let addresses = resolve(address)?;
            Box::new(UdpSource::open(&addresses, *header, token, rate)?)
        }
        Endpoint::Tcp(address) => {
            let link = Link::connect(resolve(address)?);
            Box::new(StreamSource::new(link, Protocol::Raw, token_bytes))
        }
        Endpoint::TcpListen(address) => {
            let link = Link::listen(&resolve(address)?)?;
            Box::new(StreamSource::new(link, Protocol::Raw, token_bytes))
        }
        Endpoint::RtlTcp(address, tuning) => {
            let link = Link::connect(resolve(address)?);
            let model_rate = rate.map(|tokens| tokens * token_bytes as f64 / 2.0);
            let protocol = Protocol::RtlTcp(commands(tuning, model_rate));
            Box::new(StreamSource::new(link, protocol, token_bytes))
        }
        Endpoint::Zmq(endpoint) => return open_zmq(endpoint, token_bytes),
        Endpoint::Audio(card) => return open_card(card, token, rate),
        Endpoint::Soapy(receiver) => {
            let no_rate = || io::Error::other(SourceUrl::rate_is_missing("a receiver has several"));
            let rate = rate.ok_or_else(no_rate)?;
            return open_receiver(receiver, token, rate);
        }
        Endpoint::BridgeReplay(_) => return Err(io::Error::other("a replay is a sink")),
        Endpoint::Recording(path) => {
            let fills_anew = url.fill.is_some();
            Box::new(RecordedSource::open(path, token, fills_anew)?)
        }
        Endpoint::Paced(path) => {
            let file = std::fs::File::open(path)?;
            let no_rate = || io::Error::other(SourceUrl::rate_is_missing("a file has none"));
            let rate = rate.ok_or_else(no_rate)?;
            Box::new(PacedSource::new(
                Box::new(file),
                token_bytes,
                rate,
                url.piece,
            ))
        }
    })
}

#[cfg(feature = "zmq")]
fn open_zmq(endpoint: &ZmqEndpoint, token_bytes: usize) -> io::Result<Box<dyn LiveSource>> {
    Ok(Box::new(zmq::ZmqSource::open(endpoint, token_bytes)?))
}

#[cfg(not(feature = "zmq"))]
fn open_zmq(_: &ZmqEndpoint, _: usize) -> io::Result<Box<dyn LiveSource>> {
    Err(crate::sink::no_zmq())
}

#[cfg(feature = "soapy")]
fn open_receiver(
    receiver: &SoapyReceiver,
    token: &TokenType,
    rate: f64,
) -> io::Result<Box<dyn LiveSource>> {
    Ok(Box::new(soapy::SoapySource::open(receiver, token, rate)?))
}

#[cfg(not(feature = "soapy"))]
fn open_receiver(_: &SoapyReceiver, _: &TokenType, _: f64) -> io::Result<Box<dyn LiveSource>> {
    Err(io::Error::other(
        "SoapySDR needs the feature `soapy`, which this program was built without: build it with --features soapy",
    ))
}

#[cfg(feature = "audio")]
fn open_card(
    card: &AudioCard,
    token: &TokenType,
    rate: Option<f64>,
) -> io::Result<Box<dyn LiveSource>> {
    let no_rate = || io::Error::other(SourceUrl::rate_is_missing("a sound card has several"));
    let rate = rate.ok_or_else(no_rate)?;
    Ok(Box::new(crate::audio::AudioSource::open(
        card, token, rate,
    )?))
}

#[cfg(not(feature = "audio"))]
fn open_card(_: &AudioCard, _: &TokenType, _: Option<f64>) -> io::Result<Box<dyn LiveSource>> {
    Err(crate::sink::no_audio())
}

/// What a receiver is told after each connection: the rate is that of the model where the URL has none.
fn commands(tuning: &Tuning, model_rate: Option<f64>) -> Vec<Command> {
    let mut commands = Vec::new();
    let rate = tuning.rate.or(model_rate);
    commands.extend(rate.map(|rate| Command::SampleRate(rate as u32)));
    commands.extend(tuning.frequency_hz.map(Command::Frequency));
    commands.extend(tuning.ppm.map(Command::Correction));
    if let Some(gain) = tuning.gain_tenths {
        commands.push(Command::ManualGain(gain.is_some()));
        commands.extend(gain.map(Command::Gain));
    }
    commands
}
