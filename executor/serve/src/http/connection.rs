//! Connections of HTTP/1.1: served one request after the other, closed when a client is slow.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::routes;
use crate::server::{Protocol, Server};
use crate::write_limit::WriteLimited;

/// Headers of a request, at most.
const MAX_HEADERS: usize = 64;
/// Bytes of a request's header, at most; also what is read of a body at once.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// HTTP/1.1.
pub(crate) struct Http;

impl Protocol for Http {
    const SCHEME: &'static str = "http";
    const ENCRYPTED_SCHEME: &'static str = "https";
    const TOO_MANY: &'static [u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
        Content-Length: 59\r\nRetry-After: 1\r\nConnection: close\r\n\r\n\
        {\"error\":\"the server has as many connections as it allows\"}";

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
    stream: impl AsyncRead + AsyncWrite + Unpin,
) -> Result<(), hyper::Error> {
    let limits = server.limits();
    let stream = WriteLimited::new(stream, limits.write_timeout);
    let service = service_fn(|request| {
        let server = Arc::clone(&server);
        async move {
            let reply = routes::answer(&server, request).await;
            server.count_request();
            Ok::<_, Infallible>(reply)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);

    let mut closing = Some(Box::pin(server.until_closing()));
    poll_fn(|context| {
        if let Some(waiting) = &mut closing
            && waiting.as_mut().poll(context).is_ready()
        {
            closing = None;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(context)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_too_many_is_told_as_much_as_it_says() {
        let text = std::str::from_utf8(Http::TOO_MANY).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert!(body["error"].is_string());
    }
}
