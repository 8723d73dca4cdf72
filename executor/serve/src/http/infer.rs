//! A request to infer, from its body to its answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};

use super::body::{BodyLimits, ComingBody, discard};
use super::reply::{JSON_LENGTH, Reply, closing, error, tensors, unavailable};
use crate::engine::admission::{Computed, Refusal};
use crate::engine::{KeptPlace, RunningModel};
use crate::inference::{Arrival, Rejection, admit, announce};
use crate::otlp::TraceParent;
use crate::protocol::answer::{Answer, AnswerBody};
use crate::protocol::request::{InferRequest, Tensors, timeout_in};
use crate::server::Server;
use crate::stats::RefusedFor;

/// Answers a request. Whatever is wrong with it concerns nobody else.
pub(super) async fn answer_infer(
    server: &Server,
    running: &Arc<RunningModel>,
    request: Request<Incoming>,
) -> Reply {
    let (parts, body) = request.into_parts();
    let limits = BodyLimits {
        max_bytes: running.model.max_body_bytes(),
        time: server.limits().body_timeout,
    };
    // No body is held in memory for a request that is not computed.
    if server.is_draining() {
        discard(body, limits.time).await;
        running.stats.refused(RefusedFor::Draining, Duration::ZERO);
        return rejection_reply(&Rejection::Refused(Refusal::Draining));
    }
    let (body, place) =
        match read_unless_refused(server, running, &parts.headers, body, limits).await {
            Ok(read) => read,
            Err(reply) => return reply,
        };

    let read = |tensors: Tensors<'_>| {
        let json_bytes = json_length(&parts.headers)?;
        let request = InferRequest::parse(&body, json_bytes, tensors);
        drop((body, place));
        request.map_err(|wrong| wrong.to_string())
    };
    // Another may have taken its place while the body came.
    let name = &running.model.name;
    let admitted = server.with_model(name, |running| {
        admit(running, server.regions(), arrival(&parts.headers), read)
    });
    let admitted = match admitted {
        Some(Ok(admitted)) => admitted,
        Some(Err(rejection)) => return rejection_reply(&rejection),
        None => return error(StatusCode::NOT_FOUND, &server.unknown_model(name)),
    };
    match admitted.answer(write_answer).await {
        Ok(body) => tensors(body),
        Err(rejection) => rejection_reply(&rejection),
    }
}

/// Reads a request's body. Where tensors follow its JSON, and they are long, the JSON says whether the request is admitted as things stand:
/// one that is has a place in the queue from then on, the tensors of one that is not are neither kept nor looked at.
async fn read_unless_refused(
    server: &Server,
    running: &RunningModel,
    headers: &HeaderMap,
    body: Incoming,
    limits: BodyLimits,
) -> Result<(Vec<u8>, Option<KeptPlace>), Reply> {
    let unreadable = |reply| {
        running.stats.refused(RefusedFor::Request, Duration::ZERO);
        reply
    };

    let mut body = ComingBody::open(headers, body, limits)
        .await
        .map_err(unreadable)?;
    let mut place = None;
    if body.is_long()
        && let Ok(Some(json_bytes)) = json_length(headers)
    {
        let json = body.first(json_bytes).await.map_err(unreadable)?;
        // What is wrong with it is said when all of it is there.
        if let Ok(timeout) = timeout_in(json) {
            let announced = server.with_model(&running.model.name, |running| {
                announce(running, arrival(headers), timeout)
            });
            place = match announced.transpose() {
                Ok(place) => place,
                Err(rejection) => {
                    // Its client need not have sent all of it to read the refusal.
                    tokio::spawn(body.discard());
                    return Err(rejection_reply(&rejection));
                }
            };
        }
    }
    let body = body.read_all().await.map_err(unreadable)?;
    Ok((body, place))
}

fn arrival(headers: &HeaderMap) -> Arrival {
    Arrival {
        at: Instant::now(),
        parent: TraceParent::of(headers),
    }
}

fn write_answer(
    running: &RunningModel,
    request: &InferRequest,
    computed: Computed,
) -> Result<AnswerBody, String> {
    let answer = Answer {
        model: &running.model.name,
        id: request.id.as_deref(),
        wanted: &request.outputs,
        outputs: &running.model.outputs,
        tensors: &computed.tensors,
        rows: request.rows,
    };
    answer.body().map_err(|failed| failed.to_string())
}

/// What the header of the binary extension says, if it is there.
fn json_length(headers: &HeaderMap) -> Result<Option<usize>, String> {
    let mut values = headers.get_all(JSON_LENGTH).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let text = Bytes::copy_from_slice(value.as_bytes());
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(&text).ok().filter(|_| is_number);
    match number.and_then(|number| number.parse().ok()) {
        Some(length) if values.next().is_none() => Ok(Some(length)),
        _ => {
            Err("the header Inference-Header-Content-Length must be one number of bytes".to_owned())
        }
    }
}

fn rejection_reply(rejection: &Rejection) -> Reply {
    let refusal = match rejection {
        Rejection::Request(what) => return error(StatusCode::BAD_REQUEST, what),
        Rejection::Refused(refusal) => refusal,
    };
    let what = refusal.to_string();
    let second = Duration::from_secs(1);
    match refusal {
        Refusal::Full { wait, .. } => unavailable(&what, *wait),
        Refusal::TooLate { expected, .. } => unavailable(&what, *expected),
        Refusal::NotRunning => unavailable(&what, second),
        Refusal::Draining => closing(unavailable(&what, second)),
        Refusal::Failed { .. } => error(StatusCode::SERVICE_UNAVAILABLE, &what),
        Refusal::NotStarted { .. } => error(StatusCode::BAD_REQUEST, &what),
        Refusal::TooManySequences { .. } => unavailable(&what, second),
    }
}
