//! Where tokens go. The run writes them to a pipe; a sink's thread takes them from there and sends them, so that a peer
//! that is slow or absent costs tokens, as its URL says, and never stops the run.

mod stream;
mod udp;

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicBool;

use zbmd_ir::{DType, TokenType};

use self::stream::{SinkProtocol, StreamSink};
use self::udp::UdpSink;
use crate::net::{Link, resolve};
use crate::report::SharedReport;
use crate::url::{Endpoint, SinkUrl};

/// Takes tokens out of a pipe and sends them.
pub trait LiveSink: Send {
    /// Sends what comes out of `tokens` until that ends, or is empty once `is_over` is set.
    fn run(self: Box<Self>, tokens: File, is_over: &AtomicBool, report: &SharedReport);
}

/// Opens the sink of a URL for tokens of this type: its address is bound, or looked up.
///
/// # Errors
/// What the system says, a datagram that is too small for a token, and tokens that `rtl_tcp` cannot carry.
pub fn open_sink(url: &SinkUrl, token: &TokenType) -> io::Result<Box<dyn LiveSink>> {
    let token_bytes = token.bytes() as usize;
    Ok(match &url.endpoint {
        Endpoint::Udp { address, header } => {
            let addresses = resolve(address)?;
            Box::new(UdpSink::open(
                &addresses,
                *header,
                url.packet_bytes,
                token_bytes,
            )?)
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
        Endpoint::Paced(_) => return Err(io::Error::other("a file that is played is a source")),
    })
}
