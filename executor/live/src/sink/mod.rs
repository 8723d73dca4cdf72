//! Where tokens go. The run writes them to a pipe; a sink's thread takes them from there and sends them, so that a peer
//! that is slow or absent costs tokens, as its URL says, and never stops the run.

mod bridge_replay;
mod stream;
mod token_reader;
mod udp;
#[cfg(feature = "zmq")]
mod zmq;

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicBool;

use zbmd_ir::{DType, TokenType};

use self::bridge_replay::ReplaySink;
use self::stream::{SinkProtocol, StreamSink};
pub(crate) use self::token_reader::{LOOK_NS, TokenReader};
use self::udp::UdpSink;
use crate::net::{Link, resolve};
use crate::report::SharedReport;
use crate::url::{AudioCard, Endpoint, SinkUrl, ZmqEndpoint};

/// Takes tokens out of a pipe and sends them.
pub trait LiveSink: Send {
    /// Sends what comes out of `tokens` until that ends, or is empty once `is_over` is set. A peer that takes nothing is
    /// left some time after either; set it when nothing more will be written, or when nothing can be.
    fn run(self: Box<Self>, tokens: File, is_over: &AtomicBool, report: &SharedReport);
}

/// What a sink needs to know of the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct SinkContext {
    /// Tokens a second by the model, if it says so.
    pub model_rate: Option<f64>,
    /// Tokens come as fast as a live source gives them.
    pub has_live_source: bool,
}

/// Opens the sink of a URL for tokens of this type: its address is bound, or looked up.
///
/// # Errors
/// What the system says, a datagram that is too small for a token, and tokens that `rtl_tcp` cannot carry.
pub fn open_sink(
    url: &SinkUrl,
    token: &TokenType,
    context: SinkContext,
) -> io::Result<Box<dyn LiveSink>> {
    let token_bytes = token.bytes() as usize;
    if token.burst && !matches!(url.endpoint, Endpoint::Udp { .. }) {
        return Err(io::Error::other(format!(
            "sends samples; the tokens are {token}: bursts go to files and to udp://"
        )));
    }
    Ok(match &url.endpoint {
        Endpoint::Udp { address, header } => {
            let addresses = resolve(address)?;
            Box::new(UdpSink::open(&addresses, *header, url.packet_bytes, token)?)
        }
        Endpoint::Tcp(address) => {
            let link = Link::connect(resolve(address)?);
            Box::new(StreamSink::new(link, SinkProtocol::Raw, url, token_bytes))
        }
        Endpoint::TcpListen(address) => {
            let link = Link::listen(&resolve(address)?)?;
            Box::new(StreamSink::new(link, SinkProtocol::Raw, url, token_bytes))
        }
        Endpoint::RtlTcp(..) if token.dtype != DType::U8 => {
            return Err(io::Error::other(format!(
                "sends samples of two bytes, I and Q; the tokens are {token}: use u8 or u8[2]"
            )));
        }
        Endpoint::RtlTcp(address, _) => {
            let link = Link::listen(&resolve(address)?)?;
            Box::new(StreamSink::new(
                link,
                SinkProtocol::RtlTcp,
                url,
                token_bytes,
            ))
        }
        Endpoint::Zmq(endpoint) => return open_zmq(endpoint, url, token_bytes),
        Endpoint::Audio(card) => return open_card(card, token, context),
        Endpoint::BridgeReplay(replay) => Box::new(ReplaySink::open(replay, token)?),
        Endpoint::Soapy(_) => return Err(io::Error::other("a receiver is a source")),
        Endpoint::Paced(_) | Endpoint::Recording(_) => {
            return Err(io::Error::other("a file that is played is a source"));
        }
    })
}

#[cfg(feature = "zmq")]
fn open_zmq(
    endpoint: &ZmqEndpoint,
    url: &SinkUrl,
    token_bytes: usize,
) -> io::Result<Box<dyn LiveSink>> {
    Ok(Box::new(zmq::ZmqSink::open(endpoint, url, token_bytes)?))
}

#[cfg(not(feature = "zmq"))]
fn open_zmq(_: &ZmqEndpoint, _: &SinkUrl, _: usize) -> io::Result<Box<dyn LiveSink>> {
    Err(no_zmq())
}

/// Says that this program cannot open ZeroMQ sockets.
#[cfg(not(feature = "zmq"))]
pub(crate) fn no_zmq() -> io::Error {
    io::Error::other(
        "ZeroMQ needs the feature `zmq`, which this program was built without: build it with --features zmq",
    )
}

#[cfg(feature = "audio")]
fn open_card(
    card: &AudioCard,
    token: &TokenType,
    context: SinkContext,
) -> io::Result<Box<dyn LiveSink>> {
    Ok(Box::new(crate::audio::AudioSink::open(
        card, token, context,
    )?))
}

#[cfg(not(feature = "audio"))]
fn open_card(_: &AudioCard, _: &TokenType, _: SinkContext) -> io::Result<Box<dyn LiveSink>> {
    Err(no_audio())
}

/// Says that this program cannot open sound cards.
#[cfg(not(feature = "audio"))]
pub(crate) fn no_audio() -> io::Error {
    io::Error::other(
        "sound cards need the feature `audio`, which this program was built without: build it with --features audio",
    )
}

/// Channels of frames of sound: each number is one, and complex numbers are two.
pub(crate) fn sound_channels(token: &TokenType) -> io::Result<usize> {
    let numbers = match token.dtype {
        DType::F32 => token.elements(),
        DType::C32 => 2 * token.elements(),
        _ => 0,
    };
    match numbers {
        1..=64 => Ok(numbers as usize),
        _ => Err(io::Error::other(format!(
            "frames of sound have 1 to 64 channels of f32; the tokens are {token}: use f32, f32[2] or c32"
        ))),
    }
}

/// Numbers in this machine's byte order.
pub(crate) fn samples_of(bytes: &[u8], samples: &mut Vec<f32>) {
    let numbers = bytes.as_chunks::<4>().0;
    samples.extend(numbers.iter().map(|bytes| f32::from_ne_bytes(*bytes)));
}
