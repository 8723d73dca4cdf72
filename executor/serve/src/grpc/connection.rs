//! Connections of HTTP/2: so many calls at once, closed when a client asks nothing for too long.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::calls;
use crate::server::{Protocol, Server};
use crate::write_limit::WriteLimited;

/// Calls of a connection at once; a client holds further ones back. Each may have a whole message in memory.
const MAX_CALLS: u32 = 32;
/// Bytes of a call's header, at most.
const MAX_HEADER_BYTES: u32 = 64 << 10;

/// gRPC over HTTP/2.
pub(crate) struct Grpc;

impl Protocol for Grpc {
    const SCHEME: &'static str = "grpc";
    const ENCRYPTED_SCHEME: &'static str = "grpcs";
    // Before the two sides have spoken there is nothing that a client would understand. It finds the connection closed, and tries
    // again later.
    const TOO_MANY: &'static [u8] = b"";

    async fn serve(
        server: Arc<Server>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) {
        // A connection that ends early concerns nobody else.
        let _ = serve(server, stream).await;
    }
}

/// Serves one connection to its end.
pub(crate) async fn serve(
    server: Arc<Server>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<(), hyper::Error> {
    let limits = server.limits();
    let stream = WriteLimited::new(stream, limits.write_timeout);
    let counts = Arc::new(CallCounts::default());
    let service = service_fn(|request| {
        let server = Arc::clone(&server);
        let counts = Arc::clone(&counts);
        async move {
            let call = Call::begin(&counts);
            let reply = calls::answer(&server, &counts, request).await;
            server.count_request();
            drop(call);
            Ok::<_, Infallible>(reply)
        }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CALLS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);

    let mut closing = pin!(server.until_closing());
    let mut idle = pin!(counts.until_idle(limits.header_timeout));
    // Once the connection is to be closed: when its client has had time to take what was answered.
    let mut end: Option<Pin<Box<tokio::time::Sleep>>> = None;
    poll_fn(|context| {
        let is_idle = end.is_none() && idle.as_mut().poll(context).is_ready();
        // A client that has asked nothing waits for nothing, if it speaks HTTP/2 at all.
        if is_idle && !counts.has_begun() {
            return Poll::Ready(Ok(()));
        }
        if end.is_none() && (is_idle || closing.as_mut().poll(context).is_ready()) {
            connection.as_mut().graceful_shutdown();
            end = Some(Box::pin(tokio::time::sleep(limits.write_timeout)));
        }
        if let Some(end) = &mut end
            && end.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Ok(()));
        }
        connection.as_mut().poll(context)
    })
    .await
}

/// Calls of a connection, and requests of its streams.
#[derive(Default)]
pub(super) struct CallCounts {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl CallCounts {
    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed) > 0
    }

    /// Returns once no call was under way for a time, and less than two such times.
    async fn until_idle(&self, limit: Duration) {
        loop {
            let begun = self.begun.load(Ordering::Relaxed);
            let was_idle = self.ended.load(Ordering::Relaxed) == begun;
            tokio::time::sleep(limit).await;
            if was_idle && self.begun.load(Ordering::Relaxed) == begun {
                return;
            }
        }
    }
}

/// A call, or a request of a stream, until it is answered; whether its client takes the answer is another matter. It ends too where
/// its client resets it.
pub(super) struct Call(Arc<CallCounts>);

impl Call {
    pub(super) fn begin(counts: &Arc<CallCounts>) -> Self {
        counts.begun.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counts))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}
