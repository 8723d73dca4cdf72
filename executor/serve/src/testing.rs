//! The server's parsers, for those that try them with any bytes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "grpc")]
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::Runtime;
use zbmd_backends::op::Registry;
use zbmd_executor::Isolation;

use crate::control::ModelControl;
use crate::engine::sequences::SequenceLimits;
use crate::engine::{RunChoices, RunningModel};
use crate::protocol::answer::Answer;
use crate::protocol::request::{InferRequest, OutputForm, Tensors, WantedOutput};
use crate::repository::LoadChoices;
use crate::server::{Limits, Parts, Server};
use crate::shared_memory::Regions;
use crate::tensor::{Datatype, TensorSpec};
use crate::tokens::Tokens;

/// The messages of gRPC, for clients.
#[cfg(feature = "grpc")]
pub mod messages {
    pub use crate::protocol::messages::*;
}

/// The messages of traces, for collectors.
pub mod traces {
    pub use crate::otlp::messages::*;
}

/// Answers to one conversation fit this many bytes, unless there is no end of them.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A tensor of each type; those of one byte come last, so that others begin at odd bytes too.
fn specs() -> Vec<TensorSpec> {
    let datatypes = [
        Datatype::Fp32,
        Datatype::Fp64,
        Datatype::Fp16,
        Datatype::Bf16,
        Datatype::Int64,
        Datatype::Int32,
        Datatype::Int16,
        Datatype::Int8,
        Datatype::Uint8,
        Datatype::Bool,
    ];
    let spec = |datatype: Datatype| TensorSpec {
        name: datatype.name().to_lowercase(),
        datatype,
        shape: vec![1, 2],
    };
    datatypes.map(spec).to_vec()
}

/// Those whose bit is set.
fn chosen_specs(bits: u16) -> Vec<TensorSpec> {
    let all_specs = specs().into_iter().enumerate();
    let chosen = all_specs.filter(|(index, _)| bits >> index & 1 == 1);
    chosen.map(|(_, spec)| spec).collect()
}

/// Reads a body as a request to a model that takes and gives two elements of some types: those whose bit is set in `inputs`.
///
/// What is read has the bytes that its types need. Written as an answer, which is the same text but for one name, it is
/// read again as it was, as lists and as bytes.
pub fn examine_request(inputs: u16, json_bytes: Option<usize>, body: &[u8]) {
    let specs = chosen_specs(inputs);
    let tensors = Tensors {
        inputs: &specs,
        outputs: &specs,
        regions: &Regions::new(false),
    };
    let Ok(request) = InferRequest::parse(body, json_bytes, tensors) else {
        return;
    };

    let json = &body[..json_bytes.unwrap_or(body.len())];
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(json).is_ok();
    assert!(is_json, "what is no JSON is taken");
    assert_eq!(request.inputs.len(), specs.len());
    for (bytes, spec) in request.inputs.iter().zip(&specs) {
        assert_eq!(bytes.len(), spec.bytes(), "{}", spec.name);
    }
    for is_binary in [false, true] {
        check_round_trip(&request, tensors, is_binary);
    }
}

/// Reads bytes as a gRPC request to such a model. What is read has the bytes that its types need.
#[cfg(feature = "grpc")]
pub fn examine_message(inputs: u16, bytes: &[u8]) {
    use crate::protocol::message_request::read_message;

    let specs = chosen_specs(inputs);
    let tensors = Tensors {
        inputs: &specs,
        outputs: &specs,
        regions: &Regions::new(false),
    };
    let message = crate::grpc::read_whole(Bytes::copy_from_slice(bytes));
    let request = message.ok().and_then(|m| read_message(m, tensors).ok());
    let inputs = request.map_or(Vec::new(), |request| request.inputs);
    for (bytes, spec) in inputs.iter().zip(&specs) {
        assert_eq!(bytes.len(), spec.bytes(), "{}", spec.name);
    }
}

/// An answer with a request's inputs is that request.
fn check_round_trip(request: &InferRequest, tensors: Tensors<'_>, is_binary: bool) {
    let every_output = 0..tensors.outputs.len();
    let wanted: Vec<WantedOutput> = every_output
        .map(|index| WantedOutput {
            index,
            form: match is_binary {
                true => OutputForm::Binary,
                false => OutputForm::List,
            },
        })
        .collect();
    let answer = Answer {
        model: "m",
        id: request.id.as_deref(),
        wanted: &wanted,
        outputs: tensors.outputs,
        tensors: &request.inputs,
    };
    // Lists hold no NaN.
    let Ok(body) = answer.body() else {
        assert!(!is_binary, "bytes hold everything");
        return;
    };

    let json_bytes = body.json_bytes.unwrap_or(body.bytes.len());
    let (json, binary) = body.bytes.split_at(json_bytes);
    let json = std::str::from_utf8(json).expect("our own");
    // Quotes in strings are escaped: it is the name.
    let json = json.replacen(",\"outputs\":[", ",\"inputs\":[", 1);
    let again = [json.as_bytes(), binary].concat();
    let again = InferRequest::parse(&again, Some(json.len()), tensors).expect("our own");
    assert_eq!(again.inputs, request.inputs, "binary: {is_binary}");
    assert_eq!(again.id, request.id);
}

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
                is_quiet: true,
            },
            run: RunChoices {
                isolation: Isolation::Threads,
                standby: false,
                pin: false,
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

    /// What the server writes on a connection on which these bytes come and then the end.
    ///
    /// # Panics
    /// On a panic of the server, which a connection's task would have kept to itself.
    pub fn converse(&self, bytes: &[u8]) -> Vec<u8> {
        self.runtime.block_on(async {
            let (mut client, stream) = duplex(MAX_ANSWER_BYTES);
            client.write_all(bytes).await.expect("there is room");
            client.shutdown().await.expect("open");
            // How a connection ends concerns nobody.
            let _ = crate::http::serve(Arc::clone(&self.server), stream).await;

            let mut answers = Vec::new();
            let read = client.read_to_end(&mut answers).await;
            read.expect("the server has closed it");
            answers
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_examined() {
        let bool_alone = 1 << 9;
        let list = br#"{"inputs": [{"name": "bool", "datatype": "BOOL", "shape": [1, 2], "data": [true, 0]}]}"#;
        examine_request(bool_alone, None, list);
        examine_request(bool_alone, Some(3), list);
        #[cfg(feature = "grpc")]
        examine_message(bool_alone, list);
        let json =
            br#"{"id": "\u0007\"", "inputs": [{"name": "fp32", "datatype": "FP32", "shape": [1, 2],
            "parameters": {"binary_data_size": 8}}]}"#;
        for bits in [f32::NAN, -0.0, f32::MIN_POSITIVE / 3.0] {
            let body = [json.as_slice(), &bits.to_le_bytes(), &bits.to_le_bytes()].concat();
            examine_request(1, Some(json.len()), &body);
        }
    }
}
