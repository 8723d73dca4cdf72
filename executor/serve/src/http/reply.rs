//! Answers of the server: JSON, text, tensors, and errors as the protocol has them.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};

use crate::protocol::answer::{AnswerBody, push_string};

/// A whole answer.
pub(super) type Reply = Response<Full<Bytes>>;

/// How much of a body is JSON.
pub(super) const JSON_LENGTH: HeaderName =
    HeaderName::from_static("inference-header-content-length");

fn reply(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    reply.headers_mut().insert(CONTENT_TYPE, content_type);
    reply
}

/// An answer without a body, as health has it.
pub(super) fn health(is_well: bool) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::new()));
    if !is_well {
        *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    reply
}

pub(super) fn json(value: &serde_json::Value) -> Reply {
    reply(StatusCode::OK, "application/json", value.to_string())
}

/// What Prometheus reads.
pub(super) fn metrics(text: String) -> Reply {
    reply(
        StatusCode::OK,
        zbmd_executor::exposition::CONTENT_TYPE,
        text,
    )
}

pub(super) fn tensors(body: AnswerBody) -> Reply {
    let AnswerBody { bytes, json_bytes } = body;
    let Some(json_bytes) = json_bytes else {
        return reply(StatusCode::OK, "application/json", bytes);
    };
    let mut reply = reply(StatusCode::OK, "application/octet-stream", bytes);
    reply.headers_mut().insert(JSON_LENGTH, json_bytes.into());
    reply
}

/// An error as the protocol has it: `{"error": …}`.
pub(super) fn error(status: StatusCode, what: &str) -> Reply {
    let mut body = String::from("{\"error\":");
    push_string(&mut body, what);
    body.push('}');
    reply(status, "application/json", body)
}

/// An error after which the client is to come again, in whole seconds.
pub(super) fn unavailable(what: &str, wait: Duration) -> Reply {
    let mut reply = error(StatusCode::SERVICE_UNAVAILABLE, what);
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    reply
        .headers_mut()
        .insert(RETRY_AFTER, seconds.max(1).into());
    reply
}

/// An answer to whoever shows no token that is known.
pub(super) fn unauthorized() -> Reply {
    let what = "a bearer token is needed: send the header `Authorization: Bearer TOKEN` with one that the server knows";
    let mut reply = closing(error(StatusCode::UNAUTHORIZED, what));
    let bearer = HeaderValue::from_static("Bearer");
    reply.headers_mut().insert(WWW_AUTHENTICATE, bearer);
    reply
}

/// The connection is not used for another request.
pub(super) fn closing(mut reply: Reply) -> Reply {
    let close = HeaderValue::from_static("close");
    reply.headers_mut().insert(CONNECTION, close);
    reply
}
