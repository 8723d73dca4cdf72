//! `--metrics`: a run as it is now, for Prometheus, over HTTP at an address of this machine. One thread answers one
//! client after the other, from counters that are kept anyway: nobody who computes is disturbed.

mod text;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zbmd_executor::Session;
use zbmd_executor::exposition::CONTENT_TYPE;
use zbmd_executor::live::Progress;

use self::text::metrics_text;

/// A request's header, at most.
const MAX_HEADER_BYTES: usize = 8 << 10;
/// A client is given so long for its request, and as long to take the answer: others wait meanwhile.
const CLIENT_LIMIT: Duration = Duration::from_secs(1);
/// Pause after a connection that could not be accepted, for want of a descriptor or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why there are no metrics.
#[derive(Debug, thiserror::Error)]
pub(super) enum MetricsError {
    #[error(
        "--metrics {0} is not an address of this machine alone, and everybody could read it: take a loopback address, such as 127.0.0.1:9464"
    )]
    Remote(SocketAddr),
    #[error("metrics cannot be read at {address}: {source}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
}

/// An address that is ours, at which nobody answers yet.
#[derive(Debug)]
pub(super) struct MetricsListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl MetricsListener {
    /// Takes the address.
    ///
    /// # Errors
    /// Others could reach it, or it is taken.
    pub(super) fn bind(address: SocketAddr) -> Result<Self, MetricsError> {
        if !address.ip().is_loopback() {
            return Err(MetricsError::Remote(address));
        }
        let failed = |source| MetricsError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// The address, with the port that was free where 0 was asked for.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from now on, with the run as `look` finds it.
    ///
    /// # Errors
    /// No thread.
    pub(super) fn start(
        self,
        is_realtime: bool,
        look: impl Fn() -> Progress + Send + 'static,
    ) -> io::Result<MetricsServer> {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen_over = Arc::clone(&is_over);
        let Self { listener, address } = self;
        let answer_all = move || {
            // Without it there are metrics all the same.
            let _ = Session::enter_observer_role(is_realtime);
            while !seen_over.load(Ordering::Acquire) {
                match listener.accept() {
                    // Who goes away early concerns nobody.
                    Ok((stream, _)) => drop(answer(stream, &look)),
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("zbmd metrics".to_owned())
            .spawn(answer_all)?;
        Ok(MetricsServer {
            address,
            is_over,
            thread: Some(thread),
        })
    }
}

/// The thread that answers. It ends when this is dropped.
pub(super) struct MetricsServer {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // It waits for a client. Where none can come any more it is left behind, and ends with the process.
        let is_woken = TcpStream::connect_timeout(&self.address, CLIENT_LIMIT).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| is_woken) {
            let _ = thread.join();
        }
    }
}

/// Answers one request and closes the connection.
fn answer(mut stream: TcpStream, look: &impl Fn() -> Progress) -> io::Result<()> {
    let header = read_header(&mut stream)?;
    stream.set_write_timeout(Some(CLIENT_LIMIT))?;
    let reply = match Asked::of(&header) {
        Asked::Metrics => Reply::new("200 OK", CONTENT_TYPE, metrics_text(&look())),
        Asked::OtherPath => Reply::error("404 Not Found", "there is only /metrics"),
        Asked::OtherMethod => Reply::error("405 Method Not Allowed", "/metrics takes GET"),
        Asked::Nonsense => Reply::error("400 Bad Request", "this is no request of HTTP/1"),
    };
    stream.write_all(reply.text().as_bytes())
}

/// Reads to the end of a header, or as far as it is taken.
fn read_header(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + CLIENT_LIMIT;
    let mut header = Vec::new();
    let mut piece = [0; 1024];
    while header.len() < MAX_HEADER_BYTES && !header.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => break,
            count => header.extend_from_slice(&piece[..count]),
        }
    }
    Ok(header)
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Metrics,
    OtherPath,
    OtherMethod,
    Nonsense,
}

impl Asked {
    /// By the first line of a header. Queries are not looked at.
    fn of(header: &[u8]) -> Self {
        let line = header.split(|byte| *byte == b'\r').next();
        let line = line.and_then(|line| std::str::from_utf8(line).ok());
        let words: Vec<&str> = line.unwrap_or_default().split(' ').collect();
        let &[method, target, version] = words.as_slice() else {
            return Self::Nonsense;
        };
        let path = target.split('?').next();
        match (version.starts_with("HTTP/1."), path, method) {
            (false, ..) => Self::Nonsense,
            (true, Some("/metrics"), "GET") => Self::Metrics,
            (true, Some("/metrics"), _) => Self::OtherMethod,
            (true, ..) => Self::OtherPath,
        }
    }
}

struct Reply {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Reply {
    fn new(status: &'static str, content_type: &'static str, body: String) -> Self {
        Self {
            status,
            content_type,
            body,
        }
    }

    fn error(status: &'static str, what: &str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", format!("{what}\n"))
    }

    fn text(&self) -> String {
        let Self {
            status,
            content_type,
            body,
        } = self;
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_metrics_are_there() {
        for (header, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Asked::Metrics),
            ("GET /metrics?a=b HTTP/1.0\r\n\r\n", Asked::Metrics),
            ("POST /metrics HTTP/1.1\r\n\r\n", Asked::OtherMethod),
            ("GET / HTTP/1.1\r\n\r\n", Asked::OtherPath),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", Asked::OtherPath),
            ("GET /metrics\r\n\r\n", Asked::Nonsense),
            ("GET /metrics HTTP/2.0\r\n\r\n", Asked::Nonsense),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Asked::Nonsense),
            ("\u{16}\u{3}\u{1}", Asked::Nonsense),
            ("", Asked::Nonsense),
        ] {
            assert_eq!(Asked::of(header.as_bytes()), expected, "{header:?}");
        }
    }

    #[test]
    fn addresses_that_others_reach_are_refused() {
        let everywhere = "0.0.0.0:0".parse().expect("an address");
        let error = MetricsListener::bind(everywhere).expect_err("refused");
        assert!(error.to_string().contains("loopback"), "{error}");
    }
}
