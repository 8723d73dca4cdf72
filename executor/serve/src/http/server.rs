//! Connections: accepted up to a limit, served one request after the other, closed when a client is slow.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::routes;
use super::write_limit::WriteLimited;
use crate::engine::RunningModel;

/// Headers of a request, at most.
const MAX_HEADERS: usize = 64;
/// Bytes of a request's header, at most; also what is read of a body at once.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// Pause after a connection that could not be accepted, for want of a descriptor or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What one connection too many is told.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
    Content-Length: 59\r\nRetry-After: 1\r\nConnection: close\r\n\r\n\
    {\"error\":\"the server has as many connections as it allows\"}";

/// What strangers may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at once.
    pub(crate) connections: usize,
    /// From when a request is waited for until its header is there.
    pub(crate) header_timeout: Duration,
    /// From there until its body is there.
    pub(crate) body_timeout: Duration,
    /// From when an answer has to wait for its client to read until all of it is taken.
    pub(crate) write_timeout: Duration,
}

/// What is counted about connections.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    /// Accepted so far.
    pub(crate) accepted: AtomicU64,
    /// Closed at once, as there were too many.
    pub(crate) refused: AtomicU64,
    /// Requests answered, with any status.
    pub(crate) requests: AtomicU64,
}

/// The models, and what is shared by all connections.
pub(crate) struct Server {
    models: BTreeMap<String, Arc<RunningModel>>,
    limits: Limits,
    places: Arc<Semaphore>,
    counts: ConnectionCounts,
    /// Connections are closed after the request that is being answered.
    closing: watch::Sender<bool>,
}

impl Server {
    pub(crate) fn new(models: Vec<Arc<RunningModel>>, limits: Limits) -> Arc<Self> {
        let named = models.into_iter().map(|m| (m.model.name.clone(), m));
        Arc::new(Self {
            models: named.collect(),
            limits,
            places: Arc::new(Semaphore::new(limits.connections)),
            counts: ConnectionCounts::default(),
            closing: watch::channel(false).0,
        })
    }

    /// All models, by name.
    pub(crate) fn models(&self) -> impl Iterator<Item = &RunningModel> {
        self.models.values().map(Arc::as_ref)
    }

    pub(crate) fn model(&self, name: &str) -> Option<&RunningModel> {
        self.models.get(name).map(Arc::as_ref)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn counts(&self) -> &ConnectionCounts {
        &self.counts
    }

    /// Connections now.
    pub(crate) fn connections(&self) -> usize {
        self.limits.connections - self.places.available_permits()
    }

    /// Every model is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.models().all(RunningModel::is_ready)
    }

    /// Takes connections until [`Self::close`].
    pub(crate) async fn accept_all(self: Arc<Self>, listener: TcpListener) {
        let mut closing = self.closing.subscribe();
        let mut is_closing =
            pin!(async move { closing.wait_for(|closing| *closing).await.is_ok() });
        loop {
            let mut accepting = pin!(listener.accept());
            let accepted = poll_fn(|context| {
                if is_closing.as_mut().poll(context).is_ready() {
                    return std::task::Poll::Ready(None);
                }
                accepting.as_mut().poll(context).map(Some)
            });
            match accepted.await {
                None => return,
                Some(Ok((stream, _))) => self.begin_connection(stream),
                Some(Err(_)) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn begin_connection(self: &Arc<Self>, stream: TcpStream) {
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            // It fits the socket's buffer, or the client goes without.
            let _ = stream.try_write(TOO_MANY);
            return;
        };
        // An answer that waits for another packet would wait for nothing.
        let _ = stream.set_nodelay(true);
        let server = Arc::clone(self);
        tokio::spawn(async move {
            // A connection that ends early concerns nobody else.
            let _ = server.serve(stream).await;
            drop(place);
        });
    }

    /// Serves one connection to its end.
    pub(crate) async fn serve(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin,
    ) -> Result<(), hyper::Error> {
        let stream = WriteLimited::new(stream, self.limits.write_timeout);
        let mut closing = self.closing.subscribe();
        let service = service_fn(|request| {
            let server = Arc::clone(&self);
            async move {
                let reply = routes::answer(&server, request).await;
                server.counts.requests.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>(reply)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);

        let mut is_closing = Some(Box::pin(async move {
            let _ = closing.wait_for(|closing| *closing).await;
        }));
        poll_fn(|context| {
            if let Some(waiting) = &mut is_closing
                && waiting.as_mut().poll(context).is_ready()
            {
                is_closing = None;
                connection.as_mut().graceful_shutdown();
            }
            connection.as_mut().poll(context)
        })
        .await
    }

    /// Takes no more connections, and closes those that there are once their requests are answered. Waits for them so
    /// long at most.
    pub(crate) async fn close(&self, limit: Duration) {
        self.closing.send_replace(true);
        let all_places = u32::try_from(self.limits.connections).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(limit, self.places.acquire_many(all_places)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_too_many_is_told_as_much_as_it_says() {
        let text = std::str::from_utf8(TOO_MANY).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert!(body["error"].is_string());
    }
}
