//! Whole connections: what comes on one, and what the server writes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::Runtime;
use zbmd_backends::op::Registry;
use zbmd_executor::Isolation;

use crate::control::ModelControl;
use crate::engine::sequences::SequenceLimits;
use crate::engine::{RunChoices, RunningModel};
use crate::repository::LoadChoices;
use crate::server::{Limits, Parts, Server};
use crate::shared_memory::Regions;
use crate::tokens::Tokens;

/// Answers to one conversation fit this many bytes, unless there is no end of them.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// A server that has written nothing for so long has answered.
const SILENCE: Duration = Duration::from_millis(4);

/// A server of a folder of bundles that runs in this process and listens nowhere.
pub struct Conversations {
    runtime: Runtime,
    server: Arc<Server>,
}

impl Conversations {
    /// Begins to run the models of a folder.
    ///
    /// # Errors
    /// Why the folder is not served.
    pub fn start(folder: &Path, registry: &Registry) -> Result<Self, String> {
        let control = ModelControl {
            folder: folder.to_owned(),
            load: LoadChoices {
                registry: registry.clone(),
                #[cfg(feature = "compile")]
                machine: zbmd_compiler::MachineChoice::Uniform(1),
                #[cfg(feature = "compile")]
                buckets: Vec::new(),
                is_quiet: true,
            },
            run: RunChoices {
                isolation: Isolation::Threads,
                standby: false,
                pin: false,
                realtime: false,
                queue: 8,
                sequences: SequenceLimits {
                    count: 8,
                    idle: Duration::from_secs(5),
                },
                tracer: None,
            },
            is_allowed: false,
        };
        let models = control.load_all().map_err(|error| error.to_string())?;
        let run = &control.run;
        let started = models
            .into_iter()
            .map(|model| RunningModel::start(model, run.clone()));
        let models: Result<Vec<_>, _> = started.collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();

        let limit = Duration::from_secs(5);
        let limits = Limits {
            connections: 1,
            header_timeout: limit,
            body_timeout: limit,
            write_timeout: limit,
        };
        Ok(Self {
            server: Server::new(Parts {
                models: models.map_err(|error| error.to_string())?,
                control,
                limits,
                regions: Regions::new(false),
                tokens: Tokens::default(),
                name: "zbmd".to_owned(),
            }),
            runtime: runtime.map_err(|error| error.to_string())?,
        })
    }

    /// What the server writes on a connection on which these bytes come and then, once it has written nothing for a moment, the
    /// end.
    ///
    /// # Panics
    /// On a panic of the server, which a connection's task would have kept to itself.
    pub fn converse(&self, bytes: &[u8]) -> Vec<u8> {
        let (client, stream) = duplex(MAX_ANSWER_BYTES);
        let serve = crate::http::serve(Arc::clone(&self.server), stream);
        self.runtime.block_on(converse(client, bytes, serve))
    }

    /// The same on a connection for gRPC.
    ///
    /// # Panics
    /// On a panic of the server's connection. Its calls are tasks of their own, whose panics only a hook sees.
    #[cfg(feature = "grpc")]
    pub fn converse_grpc(&self, bytes: &[u8]) -> Vec<u8> {
        let (client, stream) = duplex(MAX_ANSWER_BYTES);
        let serve = crate::grpc::serve(Arc::clone(&self.server), stream);
        self.runtime.block_on(converse(client, bytes, serve))
    }
}

/// Sends bytes to a connection that is served, and takes all that comes back.
async fn converse(
    mut client: DuplexStream,
    bytes: &[u8],
    serve: impl Future<Output = Result<(), hyper::Error>> + Send + 'static,
) -> Vec<u8> {
    client.write_all(bytes).await.expect("there is room");
    let serving = tokio::spawn(serve);
    let mut answers = Vec::new();
    let mut piece = vec![0; 1 << 16];
    // The end cuts off what is under way.
    while let Ok(Ok(read @ 1..)) = tokio::time::timeout(SILENCE, client.read(&mut piece)).await {
        answers.extend_from_slice(&piece[..read]);
    }
    let _ = client.shutdown().await;
    // How a connection ends concerns nobody.
    let _ = serving.await.expect("no panic");

    let read = client.read_to_end(&mut answers).await;
    read.expect("the server has closed it");
    answers
}

/// A request with stretches of it replaced: four bytes of `changes` say where one begins (two), how long it is and how much comes in its
/// stead, which follows.
pub fn changed(request: &[u8], mut changes: &[u8]) -> Vec<u8> {
    let mut request = request.to_vec();
    while let Some(([low, high, removed, inserted], rest)) = changes.split_first_chunk() {
        let begin = usize::from(u16::from_le_bytes([*low, *high])) % (request.len() + 1);
        let end = (begin + usize::from(*removed)).min(request.len());
        let (inserted, rest) = rest.split_at(rest.len().min(usize::from(*inserted)));
        request.splice(begin..end, inserted.iter().copied());
        changes = rest;
    }
    request
}

/// Sees to it that what the server wrote is one answer after the other, and whole.
///
/// # Panics
/// It is not.
pub fn check_answers(answers: &[u8]) {
    let mut rest = answers;
    while !rest.is_empty() {
        rest = after_answer(rest);
    }
}

/// What follows the first answer.
fn after_answer(answers: &[u8]) -> &[u8] {
    let end = answers.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, rest) = answers.split_at(end.expect("a header that ends") + 4);
    let head = std::str::from_utf8(head).expect("headers are ASCII");
    let status: u16 = head[9..12].parse().expect(head);
    // What comes before the answer to a client that waits to be asked for its body.
    if status == 100 {
        return rest;
    }

    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |text| text.parse().expect("a length"));
    let (body, rest) = rest.split_at(length);
    if status >= 400 && !body.is_empty() {
        let error: serde_json::Value = serde_json::from_slice(body).expect("JSON");
        assert!(error["error"].is_string(), "{error}");
    }
    rest
}
