//! Calls: from a path to the messages that are asked and answered.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};

use super::body::TimedBody;
use super::codec::MessageCodec;
use super::connection::CallCounts;
use super::documents;
use super::stream::infer_stream;
use super::{regions, repository};
use crate::engine::RunningModel;
use crate::engine::admission::{Computed, Refusal};
use crate::inference::{Admitted, Arrival, Rejection, admit};
use crate::otlp::TraceParent;
use crate::protocol::answer::VERSION;
use crate::protocol::message_request::read_message;
use crate::protocol::messages::{
    Empty, InferOutputTensor, ModelInferRequest, ModelInferResponse, ModelReadyResponse,
    ModelRequest, RepositoryIndexRequest, ServerLiveResponse, ServerReadyResponse,
};
use crate::protocol::request::{InferRequest, OutputForm, Tensors, WantedOutput, of_batch};
use crate::server::Server;

/// What a client waits before it tries again, by its own rules for calls that were refused.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Answers a call.
pub(super) async fn answer(
    server: &Arc<Server>,
    calls: &Arc<CallCounts>,
    request: Request<Incoming>,
) -> Response<Body> {
    if !server.lets_in(request.headers()) {
        let what = "a bearer token is needed: send the metadata `authorization: Bearer TOKEN` with one that the server knows";
        return Status::unauthenticated(what).into_http();
    }
    let service = "/inference.GRPCInferenceService/";
    let call = request.uri().path().strip_prefix(service);
    let call = call.unwrap_or_default().to_owned();
    match call.as_str() {
        "ServerLive" => {
            let live = || ServerLiveResponse { live: true };
            unary(server, request, |_: Empty| ready(Ok(live()))).await
        }
        "ServerReady" => {
            let is_ready = || ServerReadyResponse {
                ready: server.is_ready(),
            };
            unary(server, request, |_: Empty| ready(Ok(is_ready()))).await
        }
        "ServerMetadata" => {
            let about = |_: Empty| ready(Ok(documents::server(server)));
            unary(server, request, about).await
        }
        "ModelReady" => {
            let is_ready = |asked| ModelReadyResponse {
                // A model that is not here is not ready, as Triton has it.
                ready: find(server, &asked).is_ok_and(|running| running.is_ready()),
            };
            unary(server, request, |asked| ready(Ok(is_ready(asked)))).await
        }
        "ModelMetadata" => {
            let about = |asked| find(server, &asked).map(|running| documents::model(&running));
            unary(server, request, |asked| ready(about(asked))).await
        }
        "ModelConfig" => {
            let about = |asked| find(server, &asked).map(|running| documents::config(&running));
            unary(server, request, |asked| ready(about(asked))).await
        }
        "ModelStatistics" => {
            let about = |asked| documents::statistics(server, &asked);
            unary(server, request, |asked| ready(about(asked))).await
        }
        "RepositoryIndex" => {
            let about = |asked: RepositoryIndexRequest| documents::index(server, asked.ready);
            unary(server, request, |asked| ready(Ok(about(asked)))).await
        }
        "ModelInfer" => {
            let parent = TraceParent::of(request.headers());
            unary(server, request, |asked| {
                infer_message(server, asked, parent)
            })
            .await
        }
        "ModelStreamInfer" => infer_stream(server, calls, request).await,
        _ => answer_changes(server, &call, request).await,
    }
}

/// Answers a call about which models and which shared memory the server has.
async fn answer_changes(
    server: &Arc<Server>,
    call: &str,
    request: Request<Incoming>,
) -> Response<Body> {
    match call {
        "RepositoryModelLoad" => {
            unary(server, request, |asked| repository::load(server, asked)).await
        }
        "RepositoryModelUnload" => {
            unary(server, request, |asked| repository::unload(server, asked)).await
        }
        "SystemSharedMemoryStatus" => {
            unary(server, request, |asked| {
                ready(regions::status(server, &asked))
            })
            .await
        }
        "SystemSharedMemoryRegister" => {
            unary(server, request, |asked| {
                ready(regions::register(server, asked))
            })
            .await
        }
        "SystemSharedMemoryUnregister" => {
            unary(server, request, |asked| {
                ready(regions::unregister(server, &asked))
            })
            .await
        }
        // No region of a GPU is ever registered.
        "CudaSharedMemoryStatus" | "CudaSharedMemoryUnregister" => {
            unary(server, request, |_: Empty| ready(Ok(Empty {}))).await
        }
        _ => {
            let path: String = request.uri().path().chars().take(100).collect();
            Status::unimplemented(format!("there is no call {path}")).into_http()
        }
    }
}

/// A call with one message each way.
async fn unary<Asked, Told, Answer>(
    server: &Server,
    request: Request<Incoming>,
    mut answer: impl FnMut(Asked) -> Answer,
) -> Response<Body>
where
    Asked: prost::Message + Default + 'static,
    Told: prost::Message + 'static,
    Answer: Future<Output = Result<Told, Status>>,
{
    let time = server.limits().body_timeout;
    let service = Unary(|asked: tonic::Request<Asked>| {
        let told = answer(asked.into_inner());
        async move { told.await.map(tonic::Response::new) }
    });
    Grpc::new(MessageCodec::<Asked, Told>::new())
        .max_decoding_message_size(server.max_body_bytes())
        .max_encoding_message_size(usize::MAX)
        .unary(service, request.map(|body| TimedBody::new(body, time)))
        .await
}

/// A function as the service that tonic takes.
struct Unary<F>(F);

impl<F, Asked, Told, Answer> UnaryService<Asked> for Unary<F>
where
    F: FnMut(tonic::Request<Asked>) -> Answer,
    Answer: Future<Output = Result<tonic::Response<Told>, Status>>,
{
    type Response = Told;
    type Future = Answer;

    fn call(&mut self, request: tonic::Request<Asked>) -> Answer {
        (self.0)(request)
    }
}

/// The model that a call is about.
pub(super) fn find(server: &Server, asked: &ModelRequest) -> Result<Arc<RunningModel>, Status> {
    check_version(asked)?;
    let running = server.model(&asked.name);
    running.ok_or_else(|| Status::not_found(server.unknown_model(&asked.name)))
}

fn check_version(asked: &ModelRequest) -> Result<(), Status> {
    if asked.version.is_empty() || asked.version == VERSION {
        return Ok(());
    }
    let name: String = asked.name.chars().take(100).collect();
    let version: String = asked.version.chars().take(40).collect();
    Err(Status::not_found(format!(
        "the model `{name}` has no version `{version}`; it has only {VERSION}"
    )))
}

/// A request to infer, from its message to its answer.
async fn infer_message(
    server: &Server,
    message: ModelInferRequest,
    parent: Option<TraceParent>,
) -> Result<ModelInferResponse, Status> {
    answer_message(admit_message(server, message, parent)?).await
}

/// Admits a request to infer. Those of a sequence are computed in the order in which they are admitted.
pub(super) fn admit_message(
    server: &Server,
    mut message: ModelInferRequest,
    parent: Option<TraceParent>,
) -> Result<Admitted, Status> {
    let arrival = Arrival {
        at: Instant::now(),
        parent,
    };
    let asked = ModelRequest {
        name: std::mem::take(&mut message.model_name),
        version: std::mem::take(&mut message.model_version),
    };
    check_version(&asked)?;
    let read =
        |tensors: Tensors<'_>| read_message(message, tensors).map_err(|wrong| wrong.to_string());
    let admitted = server.with_model(&asked.name, |running| {
        admit(running, server.regions(), arrival, read)
    });
    let admitted = admitted.ok_or_else(|| Status::not_found(server.unknown_model(&asked.name)))?;
    admitted.map_err(|rejection| status_of(&rejection))
}

/// Waits for the answer to a request.
pub(super) async fn answer_message(admitted: Admitted) -> Result<ModelInferResponse, Status> {
    let answer = admitted.answer(response_message);
    answer.await.map_err(|rejection| status_of(&rejection))
}

/// The answer; outputs are bytes, whatever the inputs were. One in shared memory has none in the message.
fn response_message(
    running: &RunningModel,
    request: &InferRequest,
    computed: Computed,
) -> Result<ModelInferResponse, String> {
    let model = &running.model;
    let mut tensors: Vec<Bytes> = computed.tensors.into_iter().map(Bytes::from).collect();
    let mut response = ModelInferResponse {
        model_name: model.name.clone(),
        model_version: VERSION.to_owned(),
        id: request.id.clone().unwrap_or_default(),
        ..ModelInferResponse::default()
    };
    for WantedOutput { index, form } in &request.outputs {
        let spec = &model.outputs[*index];
        // No output is wanted twice.
        let mut tensor = std::mem::take(&mut tensors[*index]);
        let mut output = InferOutputTensor::of(&of_batch(spec, request.rows));
        if let OutputForm::Region(part) = form {
            let written = part.write(&tensor);
            written.map_err(|failed| format!("output `{}`: {failed}", spec.name))?;
            output.set_region(part.name(), tensor.len() as u64);
            tensor.clear();
        }
        response.outputs.push(output);
        response.raw_output_contents.push(tensor);
    }
    Ok(response)
}

fn status_of(rejection: &Rejection) -> Status {
    match rejection {
        Rejection::Request(what) => Status::invalid_argument(what),
        Rejection::Refused(refusal) => {
            let what = refusal.to_string();
            match refusal {
                Refusal::Full { wait, .. } => pushed_back(Status::resource_exhausted(what), *wait),
                Refusal::TooLate { expected, .. } => {
                    pushed_back(Status::resource_exhausted(what), *expected)
                }
                Refusal::TooManySequences { .. } => {
                    pushed_back(Status::resource_exhausted(what), Duration::from_secs(1))
                }
                Refusal::NotStarted { .. } => Status::invalid_argument(what),
                Refusal::NotRunning | Refusal::Draining | Refusal::Failed { .. } => {
                    Status::unavailable(what)
                }
            }
        }
    }
}

fn pushed_back(mut status: Status, wait: Duration) -> Status {
    let wait_ms = u64::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
    status.metadata_mut().insert(PUSHBACK, wait_ms.into());
    status
}
