//! A run as it is now, over HTTP at addresses of this machine: `--metrics` for Prometheus, and `--http` for people, a page
//! that also looks into channels and sets live values. All is made from counters that are kept anyway, and from probes:
//! nobody who computes waits for a client.

mod metrics;
mod page;
mod request;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use zbmd_executor::Session;
use zbmd_executor::exposition::CONTENT_TYPE;
use zbmd_executor::live::Progress;

use self::metrics::metrics_text;
pub(super) use self::page::{PageRun, RunPage};
use self::request::{Reply, Request, RequestError};

/// A client is given so long for its request, and as long to take the answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(1);
/// Clients that are served at once: a browser opens some connections before it needs them.
const MAX_CLIENTS: usize = 32;
/// Pause after a connection that could not be accepted, for want of a descriptor or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why there is nothing to be seen.
#[derive(Debug, thiserror::Error)]
pub(super) enum WebError {
    #[error(
        "{option} {address} is not an address of this machine alone, and everybody could read it: take a loopback address, such as 127.0.0.1:9464"
    )]
    Remote {
        option: &'static str,
        address: SocketAddr,
    },
    #[error("the run cannot be seen at {address} ({option}): {source}")]
    Listen {
        option: &'static str,
        address: SocketAddr,
        source: io::Error,
    },
}

/// An address that is ours, at which nobody answers yet.
#[derive(Debug)]
pub(super) struct WebListener {
    listener: TcpListener,
    address: SocketAddr,
}

/// What is at an address.
pub(super) struct WebContent {
    /// The run, for metrics.
    pub(super) look: Box<dyn Fn() -> Progress + Send + Sync>,
    /// The page, if people are to see it there.
    pub(super) page: Option<RunPage>,
}

impl WebListener {
    /// Takes the address for an option of the command line.
    ///
    /// # Errors
    /// Others could reach it, or it is taken.
    pub(super) fn bind(option: &'static str, address: SocketAddr) -> Result<Self, WebError> {
        if !address.ip().is_loopback() {
            return Err(WebError::Remote { option, address });
        }
        let failed = |source| WebError::Listen {
            option,
            address,
            source,
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// The address, with the port that was free where 0 was asked for.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from now on.
    ///
    /// # Errors
    /// No thread.
    pub(super) fn start(self, has_priorities: bool, content: WebContent) -> io::Result<WebServer> {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen_over = Arc::clone(&is_over);
        let Self { listener, address } = self;
        let content = Arc::new(content);
        let clients = Arc::new(AtomicUsize::new(0));
        let answer_all = move || {
            // Without it there is an answer all the same. Threads of clients inherit it.
            let _ = Session::enter_observer_role(has_priorities);
            while !seen_over.load(Ordering::Acquire) {
                match listener.accept() {
                    // Who goes away early concerns nobody.
                    Ok((stream, _)) => drop(serve(stream, &content, &clients)),
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("zbmd web".to_owned())
            .spawn(answer_all)?;
        Ok(WebServer {
            address,
            is_over,
            thread: Some(thread),
        })
    }
}

/// The thread that takes clients. It ends when this is dropped.
pub(super) struct WebServer {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // It waits for a client. Where none can come any more it is left behind, and ends with the process.
        let is_woken = TcpStream::connect_timeout(&self.address, CLIENT_LIMIT).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| is_woken) {
            let _ = thread.join();
        }
    }
}

/// A client that counts as long as this is kept.
struct CountedClient(Arc<AtomicUsize>);

impl Drop for CountedClient {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a client on a thread of its own; one too many sees its connection closed.
fn serve(
    mut stream: TcpStream,
    content: &Arc<WebContent>,
    clients: &Arc<AtomicUsize>,
) -> io::Result<()> {
    let counted = CountedClient(Arc::clone(clients));
    if clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
        return Ok(());
    }
    let content = Arc::clone(content);
    std::thread::Builder::new()
        .name("zbmd web client".to_owned())
        .spawn(move || {
            let _counted = counted;
            let _ = answer(&mut stream, &content);
        })?;
    Ok(())
}

/// Answers one request; the connection is closed then.
fn answer(stream: &mut TcpStream, content: &WebContent) -> io::Result<()> {
    let reply = match Request::read(stream, CLIENT_LIMIT) {
        Ok(request) => reply_to(&request, content),
        Err(RequestError::Bad(why)) => Reply::error("400 Bad Request", why),
        Err(RequestError::Gone) => return Ok(()),
    };
    stream.set_write_timeout(Some(CLIENT_LIMIT))?;
    reply.send(stream)
}

fn reply_to(request: &Request, content: &WebContent) -> Reply {
    match (request.path.as_str(), request.method.as_str()) {
        ("/metrics", "GET") => Reply::new(CONTENT_TYPE, metrics_text(&(content.look)())),
        ("/metrics", _) => Reply::error("405 Method Not Allowed", "/metrics takes GET"),
        _ => match &content.page {
            Some(page) => page.reply_to(request),
            None => Reply::error("404 Not Found", "there is only /metrics"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_metrics_are_there_without_a_page() {
        let content = WebContent {
            look: Box::new(Progress::default),
            page: None,
        };
        for (method, path, status) in [
            ("GET", "/metrics", "200 OK"),
            ("POST", "/metrics", "405 Method Not Allowed"),
            ("GET", "/", "404 Not Found"),
            ("GET", "/metrics/", "404 Not Found"),
            ("POST", "/set", "404 Not Found"),
        ] {
            let request = Request {
                method: method.to_owned(),
                path: path.to_owned(),
                ..Request::default()
            };
            assert_eq!(
                reply_to(&request, &content).status,
                status,
                "{method} {path}"
            );
        }
    }

    #[test]
    fn addresses_that_others_reach_are_refused() {
        let everywhere = "0.0.0.0:0".parse().expect("an address");
        let error = WebListener::bind("--http", everywhere).expect_err("refused");
        let text = error.to_string();
        assert!(
            text.contains("--http 0.0.0.0:0") && text.contains("loopback"),
            "{text}"
        );
    }
}
