//! A request to infer, from its body to its answer.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};

use super::body::{BodyLimits, discard, read_body};
use super::reply::{JSON_LENGTH, Reply, closing, error, tensors, unavailable};
use super::server::Server;
use crate::engine::RunningModel;
use crate::engine::admission::Refusal;
use crate::protocol::answer::Answer;
use crate::protocol::request::{InferRequest, Tensors, max_body_bytes};
use crate::stats::{AnsweredTimes, RefusedFor};

/// A request that is not answered, and what it counts as.
struct Refused {
    why: RefusedFor,
    reply: Reply,
}

/// Answers a request. Whatever is wrong with it concerns nobody else.
pub(super) async fn infer(
    server: &Server,
    running: &RunningModel,
    request: Request<Incoming>,
) -> Reply {
    let (parts, body) = request.into_parts();
    let limits = BodyLimits {
        max_bytes: max_body_bytes(&running.model.inputs),
        time: server.limits().body_timeout,
    };
    // No body is held in memory for a request that is not computed.
    if running.admission().is_draining() {
        discard(body, limits.time).await;
        let refused = refusal_reply(&Refusal::Draining);
        running.stats.refused(refused.why, Duration::ZERO);
        return refused.reply;
    }
    let body = match read_body(&parts.headers, body, limits).await {
        Ok(body) => body,
        Err(reply) => {
            running.stats.refused(RefusedFor::Request, Duration::ZERO);
            return reply;
        }
    };

    let arrived = Instant::now();
    match compute(running, &parts.headers, body, arrived).await {
        Ok(reply) => reply,
        Err(refused) => {
            running.stats.refused(refused.why, arrived.elapsed());
            refused.reply
        }
    }
}

async fn compute(
    running: &RunningModel,
    headers: &HeaderMap,
    body: Vec<u8>,
    arrived: Instant,
) -> Result<Reply, Refused> {
    let model = &running.model;
    let known = Tensors {
        inputs: &model.inputs,
        outputs: &model.outputs,
    };
    let json_bytes = json_length(headers).map_err(client_error)?;
    let request = InferRequest::parse(&body, json_bytes, known);
    let request = request.map_err(|wrong| client_error(wrong.to_string()))?;
    drop(body);
    let input_time = arrived.elapsed();

    let submitted = running.submit(request.inputs, request.timeout);
    let answer = submitted.map_err(|refusal| refusal_reply(&refusal))?;
    // Without an answer the model has failed, and says why to whoever comes next.
    let computed = answer.await.map_err(|_| {
        let why = "its run ended and is not begun anew".to_owned();
        refusal_reply(&Refusal::Failed { why })
    })?;

    let begun = Instant::now();
    let answer = Answer {
        model: &model.name,
        id: request.id.as_deref(),
        wanted: &request.outputs,
        outputs: &model.outputs,
        tensors: &computed.tensors,
    };
    let body = answer.body();
    let body = body.map_err(|not_finite| client_error(not_finite.to_string()))?;
    let times = AnsweredTimes {
        input: input_time,
        output: begun.elapsed(),
        response: arrived.elapsed(),
        timeout: request.timeout,
    };
    running.stats.answered(&computed, times);
    Ok(tensors(body))
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

fn client_error(what: String) -> Refused {
    Refused {
        why: RefusedFor::Request,
        reply: error(StatusCode::BAD_REQUEST, &what),
    }
}

fn refusal_reply(refusal: &Refusal) -> Refused {
    let what = refusal.to_string();
    let second = Duration::from_secs(1);
    let (why, reply) = match refusal {
        Refusal::Full { wait, .. } => (RefusedFor::Full, unavailable(&what, *wait)),
        Refusal::TooLate { expected, .. } => (RefusedFor::Timeout, unavailable(&what, *expected)),
        Refusal::NotRunning => (RefusedFor::Timeout, unavailable(&what, second)),
        Refusal::Draining => (RefusedFor::Draining, closing(unavailable(&what, second))),
        Refusal::Failed { .. } => {
            let reply = error(StatusCode::SERVICE_UNAVAILABLE, &what);
            (RefusedFor::Failed, reply)
        }
    };
    Refused { why, reply }
}
