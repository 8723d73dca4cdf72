//! A call with requests and answers as they come: each answer follows those of the requests before it.

use std::collections::VecDeque;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::server::{Grpc, StreamingService};
use tonic::{Status, Streaming};

use super::calls::{admit_message, answer_message};
use super::codec::MessageCodec;
use super::connection::{Call, CallCounts};
use crate::otlp::TraceParent;
use crate::protocol::messages::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use crate::server::Server;

/// Requests of a call that are under way at once, with their answers; a client that sends more waits.
const MAX_UNDER_WAY: usize = 32;

/// Answers the requests of a call until its client has no more.
pub(super) async fn infer_stream(
    server: &Arc<Server>,
    calls: &Arc<CallCounts>,
    request: Request<Incoming>,
) -> Response<Body> {
    let service = InferStream {
        server: Arc::clone(server),
        calls: Arc::clone(calls),
        parent: TraceParent::of(request.headers()),
    };
    Grpc::new(MessageCodec::<ModelInferRequest, ModelStreamInferResponse>::new())
        .max_decoding_message_size(server.max_body_bytes())
        .max_encoding_message_size(usize::MAX)
        .streaming(service, request)
        .await
}

struct InferStream {
    server: Arc<Server>,
    calls: Arc<CallCounts>,
    parent: Option<TraceParent>,
}

impl StreamingService<ModelInferRequest> for InferStream {
    type Response = ModelStreamInferResponse;
    type ResponseStream = Answers;
    type Future = Ready<Result<tonic::Response<Answers>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<ModelInferRequest>>) -> Self::Future {
        ready(Ok(tonic::Response::new(Answers {
            server: Arc::clone(&self.server),
            calls: Arc::clone(&self.calls),
            parent: self.parent,
            requests: Some(request.into_inner()),
            under_way: VecDeque::new(),
            failure: None,
        })))
    }
}

/// The answers of a call.
struct Answers {
    server: Arc<Server>,
    calls: Arc<CallCounts>,
    /// The client's span of the call, which all its requests are parts of.
    parent: Option<TraceParent>,
    /// Until the client has no more.
    requests: Option<Streaming<ModelInferRequest>>,
    /// In the order of the requests. Each is a task of its own: a client that takes no answers does not keep them from being made, so
    /// that its connection is seen to be idle.
    under_way: VecDeque<JoinHandle<ModelStreamInferResponse>>,
    /// Ends the call once all that came before is answered.
    failure: Option<Status>,
}

impl Answers {
    /// Begins to answer what has come.
    fn take_requests(&mut self, context: &mut Context<'_>) {
        while self.under_way.len() < MAX_UNDER_WAY {
            let Some(requests) = &mut self.requests else {
                return;
            };
            match Pin::new(requests).poll_next(context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(message))) => self.begin(message),
                Poll::Ready(Some(Err(status))) => {
                    self.failure = Some(status);
                    self.requests = None;
                }
                Poll::Ready(None) => self.requests = None,
            }
        }
    }

    fn begin(&mut self, message: ModelInferRequest) {
        let call = Call::begin(&self.calls);
        let id = message.id.clone();
        // Here and not in the task: tasks begin in any order.
        let admitted = admit_message(&self.server, message, self.parent);
        let inference = tokio::spawn(async move {
            let answer = match admitted {
                Ok(admitted) => answer_message(admitted).await,
                Err(status) => Err(status),
            };
            drop(call);
            stream_answer(id, answer)
        });
        self.under_way.push_back(inference);
    }
}

impl Drop for Answers {
    /// The client is gone: nobody waits for what is under way.
    fn drop(&mut self) {
        self.under_way.iter().for_each(JoinHandle::abort);
    }
}

impl Stream for Answers {
    type Item = Result<ModelStreamInferResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.take_requests(context);
        let Some(first) = self.under_way.front_mut() else {
            return match self.requests {
                Some(_) => Poll::Pending,
                None => Poll::Ready(self.failure.take().map(Err)),
            };
        };
        let Poll::Ready(answer) = Pin::new(first).poll(context) else {
            return Poll::Pending;
        };
        self.under_way.pop_front();
        let answer = answer.map_err(|error| Status::internal(error.to_string()));
        Poll::Ready(Some(answer))
    }
}

/// A request that is not answered leaves the call open for others.
fn stream_answer(
    id: String,
    answer: Result<ModelInferResponse, Status>,
) -> ModelStreamInferResponse {
    match answer {
        Ok(response) => ModelStreamInferResponse {
            error_message: String::new(),
            infer_response: Some(response),
        },
        Err(status) => ModelStreamInferResponse {
            error_message: status.message().to_owned(),
            infer_response: Some(ModelInferResponse {
                id,
                ..ModelInferResponse::default()
            }),
        },
    }
}
