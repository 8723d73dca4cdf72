//! The protocol as gRPC: every call, the same bits as over HTTP, and what is wrong as a status.

#![cfg(all(target_os = "linux", feature = "grpc"))]

mod common;

use common::{Models, PATIENCE, Server, WIDE, binary_part, compiled, wide_inputs, wide_request};
use hyper::http::uri::PathAndQuery;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use zbmd_serve::testing::messages::*;

/// A client of a server.
struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Client {
    fn of(server: &Server) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a thread");
        let url = format!("http://{}", server.grpc_address());
        let endpoint = Channel::from_shared(url).expect("an address");
        let channel = runtime.block_on(endpoint.timeout(PATIENCE).connect());
        Self {
            channel: channel.expect("the server listens"),
            runtime,
        }
    }

    fn call<Asked, Told>(&self, call: &'static str, asked: Asked) -> Result<Told, Status>
    where
        Asked: prost::Message + 'static,
        Told: prost::Message + Default + 'static,
    {
        self.runtime.block_on(async {
            let mut grpc = tonic::client::Grpc::new(self.channel.clone());
            grpc.ready().await.expect("connected");
            let path = PathAndQuery::from_static(call);
            let codec = ProstCodec::<Asked, Told>::default();
            let told = grpc.unary(tonic::Request::new(asked), path, codec).await;
            told.map(tonic::Response::into_inner)
        })
    }

    /// Sends all requests on one stream as they are taken.
    fn infer_stream(&self, asked: Vec<ModelInferRequest>) -> Vec<ModelStreamInferResponse> {
        self.runtime.block_on(async {
            let mut grpc = tonic::client::Grpc::new(self.channel.clone());
            grpc.ready().await.expect("connected");
            let call =
                PathAndQuery::from_static("/inference.GRPCInferenceService/ModelStreamInfer");
            let asked = tonic::Request::new(tokio_stream::iter(asked));
            let codec = ProstCodec::<ModelInferRequest, ModelStreamInferResponse>::default();
            let told = grpc.streaming(asked, call, codec).await;
            let mut told = told.expect("begun").into_inner();
            let mut answers = Vec::new();
            while let Some(answer) = told.message().await.expect("no failure") {
                answers.push(answer);
            }
            answers
        })
    }

    fn infer(&self, asked: ModelInferRequest) -> Result<ModelInferResponse, Status> {
        self.call("/inference.GRPCInferenceService/ModelInfer", asked)
    }
}

fn model(name: &str) -> ModelRequest {
    ModelRequest {
        name: name.to_owned(),
        version: String::new(),
    }
}

fn simple_message(first: [i32; 16], second: [i32; 16]) -> ModelInferRequest {
    let input = |name: &str| InferInputTensor {
        name: name.to_owned(),
        datatype: "INT32".to_owned(),
        shape: vec![1, 16],
        ..Default::default()
    };
    let bytes = |values: [i32; 16]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
    ModelInferRequest {
        model_name: "simple".to_owned(),
        id: "née 7".to_owned(),
        inputs: vec![input("INPUT0"), input("INPUT1")],
        raw_input_contents: vec![bytes(first), bytes(second)],
        ..Default::default()
    }
}

#[test]
fn the_server_says_what_it_is_and_has() {
    let server = Models::simple().serve(&["--isolation", "threads"]);
    let client = Client::of(&server);
    let live: ServerLiveResponse = client
        .call("/inference.GRPCInferenceService/ServerLive", Empty {})
        .expect("told");
    let ready: ServerReadyResponse = client
        .call("/inference.GRPCInferenceService/ServerReady", Empty {})
        .expect("told");
    assert!(live.live && ready.ready);
    let about: ServerMetadataResponse = client
        .call("/inference.GRPCInferenceService/ServerMetadata", Empty {})
        .expect("told");
    assert_eq!(about.name, "zbmd");

    for (name, expected) in [("simple", true), ("other", false)] {
        let ready: ModelReadyResponse = client
            .call("/inference.GRPCInferenceService/ModelReady", model(name))
            .expect("told");
        assert_eq!(ready.ready, expected, "{name}");
    }
    let metadata: ModelMetadataResponse = client
        .call(
            "/inference.GRPCInferenceService/ModelMetadata",
            model("simple"),
        )
        .expect("told");
    assert_eq!(metadata.inputs[1].name, "INPUT1");
    assert_eq!(metadata.outputs[0].shape, [1, 16]);
    let config: ModelConfigResponse = client
        .call(
            "/inference.GRPCInferenceService/ModelConfig",
            model("simple"),
        )
        .expect("told");
    let config = config.config.expect("there");
    assert_eq!(config.parameters["block_iterations"].string_value, "1");
    assert_eq!(config.input[0].data_type, 8);
    let index: RepositoryIndexResponse = client
        .call("/inference.GRPCInferenceService/RepositoryIndex", Empty {})
        .expect("told");
    assert_eq!(index.models[0].state, "READY");

    let unknown: Result<ModelMetadataResponse, _> = client.call(
        "/inference.GRPCInferenceService/ModelMetadata",
        model("other"),
    );
    let unknown = unknown.expect_err("no such model");
    assert_eq!(unknown.code(), Code::NotFound);
    assert_eq!(
        unknown.message(),
        "Request for unknown model: there is no `other`; there are: simple"
    );
    let unknown: Result<Empty, _> =
        client.call("/inference.GRPCInferenceService/LogSettings", Empty {});
    assert_eq!(
        unknown.expect_err("no such call").code(),
        Code::Unimplemented
    );
}

#[test]
fn tensors_go_both_ways_and_mistakes_are_named() {
    let server = Models::simple().serve(&["--isolation", "threads"]);
    let client = Client::of(&server);
    let first: [i32; 16] = std::array::from_fn(|k| k as i32 * 1000 - 7);
    let second = [i32::MAX; 16];
    let answer = client.infer(simple_message(first, second)).expect("told");
    let bytes = |values: [i32; 16]| -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    };
    let sums = std::array::from_fn(|k| first[k].wrapping_add(second[k]));
    let rests = std::array::from_fn(|k| first[k].wrapping_sub(second[k]));
    assert_eq!(answer.raw_output_contents, [bytes(sums), bytes(rests)]);
    assert_eq!(
        (answer.id.as_str(), answer.model_version.as_str()),
        ("née 7", "1")
    );
    assert_eq!(answer.outputs[1].name, "OUTPUT1");

    // One output, and inputs as numbers.
    let mut message = simple_message(first, second);
    message.raw_input_contents.clear();
    for (input, values) in message.inputs.iter_mut().zip([first, second]) {
        input.contents = Some(InferTensorContents {
            int_contents: values.to_vec(),
            ..Default::default()
        });
    }
    message.outputs = vec![InferRequestedOutputTensor {
        name: "OUTPUT1".to_owned(),
        ..Default::default()
    }];
    let answer = client.infer(message).expect("told");
    assert_eq!(answer.raw_output_contents, [bytes(rests)]);

    let mut wrong = simple_message(first, second);
    wrong.inputs[0].shape = vec![16];
    let wrong = client.infer(wrong).expect_err("another shape");
    assert_eq!(wrong.code(), Code::InvalidArgument);
    assert_eq!(
        wrong.message(),
        "input `INPUT0` has the shape [16]; the model takes [1, 16]"
    );
    let mut other = simple_message(first, second);
    other.model_version = "2".to_owned();
    let other = client.infer(other).expect_err("another version");
    assert_eq!(other.code(), Code::NotFound);

    let statistics: ModelStatisticsResponse = client
        .call("/inference.GRPCInferenceService/ModelStatistics", model(""))
        .expect("told");
    let statistics = statistics.model_stats[0].inference_stats.clone();
    let statistics = statistics.expect("there");
    assert_eq!(statistics.success.expect("there").count, 2);
    assert_eq!(statistics.fail.expect("there").count, 1);
}

#[test]
fn answers_have_the_bits_of_http() {
    let server = Models::new()
        .with("wide", &compiled(WIDE, 2, 1))
        .serve(&["--isolation", "threads"]);
    let client = Client::of(&server);
    let mut http = server.connect();
    for x in wide_inputs(4) {
        let (body, headers) = wide_request(&x);
        let reply = http.request("POST", "/v2/models/wide/infer", &headers, &body);
        let answer = client.infer(ModelInferRequest {
            model_name: "wide".to_owned(),
            inputs: vec![InferInputTensor {
                name: "x".to_owned(),
                datatype: "FP32".to_owned(),
                shape: vec![1, 4096],
                ..Default::default()
            }],
            raw_input_contents: vec![x.into()],
            ..Default::default()
        });
        let tensors = answer.expect("told").raw_output_contents.concat();
        assert!(binary_part(&reply) == tensors);
    }
}

#[test]
fn what_cannot_be_in_time_is_refused() {
    // Blocks of many iterations, which are all computed for one request.
    let server = Models::new()
        .with("simple", &compiled(common::SIMPLE, 1, 5000))
        .serve(&["--isolation", "threads"]);
    let client = Client::of(&server);
    let mut message = simple_message([1; 16], [2; 16]);
    let one_us = InferParameter {
        choice: Some(ParameterChoice::Int64(1)),
    };
    message.parameters.insert("timeout".to_owned(), one_us);
    let refused = client.infer(message).expect_err("too late");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("timeout is 1µs"), "{refused}");
    assert!(refused.metadata().contains_key("grpc-retry-pushback-ms"));
    let metric = "zbmd_refused_requests_total{model=\"simple\",why=\"timeout\"}";
    assert_eq!(server.metric(metric), 1.0);

    server.terminate();
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(0), "{said}");
}

#[test]
fn messages_have_limits() {
    let server = Models::simple().serve(&["--isolation", "threads"]);
    let client = Client::of(&server);
    let mut long = simple_message([1; 16], [2; 16]);
    long.raw_input_contents[0] = vec![0; 1 << 20].into();
    let long = client.infer(long).expect_err("too long");
    assert_eq!(long.code(), Code::OutOfRange, "{long}");

    let mut many = simple_message([1; 16], [2; 16]);
    many.inputs = vec![InferInputTensor::default(); 5000];
    let many = client.infer(many).expect_err("too many");
    assert_eq!(many.code(), Code::InvalidArgument, "{many}");
    assert!(many.message().contains("parts"), "{many}");

    client
        .infer(simple_message([1; 16], [2; 16]))
        .expect("nobody else is harmed");
}

#[test]
fn a_stream_is_answered_in_order_whatever_is_wrong_with_a_request() {
    let server = Models::simple().serve(&["--isolation", "threads"]);
    let client = Client::of(&server);
    const REQUESTS: i32 = 100;
    let mut messages: Vec<_> = (0..REQUESTS)
        .map(|number| {
            let mut message = simple_message([number; 16], [1; 16]);
            message.id = number.to_string();
            message
        })
        .collect();
    messages[7].model_name = "other".to_owned();

    let answers = client.infer_stream(messages);
    assert_eq!(answers.len(), REQUESTS as usize);
    for (number, answer) in (0..REQUESTS).zip(&answers) {
        let response = answer.infer_response.as_ref().expect("there");
        assert_eq!(response.id, number.to_string());
        if number == 7 {
            assert!(answer.error_message.contains("unknown model"));
            continue;
        }
        let sum = &response.raw_output_contents[0][..4];
        assert_eq!(sum, (number + 1).to_le_bytes());
    }
}

#[test]
fn models_are_unloaded_and_loaded() {
    let server = Models::simple().serve(&["--isolation", "threads", "--model-control"]);
    let client = Client::of(&server);
    let control = |call, name: &str, parameter: Option<&str>| {
        let asked = ModelControlRequest {
            model_name: name.to_owned(),
            parameters: parameter
                .map(|name| (name.to_owned(), ModelControlParameter::default()))
                .into_iter()
                .collect(),
        };
        client
            .call::<_, Empty>(call, asked)
            .map_err(|status| status.code())
    };
    let load = "/inference.GRPCInferenceService/RepositoryModelLoad";
    let unload = "/inference.GRPCInferenceService/RepositoryModelUnload";
    let unload_parameter = Some("unload_dependents");
    assert_eq!(control(unload, "simple", unload_parameter), Ok(Empty {}));
    let asked = || simple_message([1; 16], [2; 16]);
    assert_eq!(
        client.infer(asked()).map_err(|s| s.code()),
        Err(Code::NotFound)
    );
    assert_eq!(control(unload, "simple", None), Err(Code::NotFound));
    let index = |ready| {
        let asked = RepositoryIndexRequest { ready };
        let call = "/inference.GRPCInferenceService/RepositoryIndex";
        let told: RepositoryIndexResponse = client.call(call, asked).expect("told");
        let models = told
            .models
            .into_iter()
            .map(|model| (model.state, model.reason));
        models.collect::<Vec<_>>()
    };
    let unloaded = ("UNAVAILABLE".to_owned(), "unloaded".to_owned());
    assert_eq!((index(false), index(true)), (vec![unloaded], Vec::new()));

    assert_eq!(
        control(load, "simple", Some("config")),
        Err(Code::InvalidArgument)
    );
    assert_eq!(control(load, "../simple", None), Err(Code::NotFound));
    assert_eq!(control(load, "simple", None), Ok(Empty {}));
    client.infer(asked()).expect("it is back");

    let server = Models::simple().serve(&["--isolation", "threads"]);
    let client = Client::of(&server);
    let asked = ModelControlRequest {
        model_name: "simple".to_owned(),
        ..Default::default()
    };
    let refused = client
        .call::<_, Empty>(load, asked)
        .expect_err("not allowed");
    assert_eq!(refused.code(), Code::PermissionDenied);
}

/// Requests of a sequence are admitted in the order of the stream, although their answers are waited for all at once.
#[cfg(feature = "compile")]
#[test]
fn a_stream_is_computed_in_order() {
    // Each output is the sum of the inputs so far.
    let running = r#"Model(
        sources: { "x": Stream(dtype: i32) },
        actors: { "sum": Expr("x + y", inputs: { "x": i32, "y": i32 }) },
        channels: [
            (from: "x", to: ["sum.x"]),
            (from: "sum", to: ["sum.y"], initial: [0]),
            (from: "sum", to: ["y"]),
        ],
        sinks: { "y": Stream() },
    )"#;
    let server = Models::new()
        .with_file("running.ron", running.as_bytes())
        .serve(&["--isolation", "threads", "--devices", "1"]);
    let parameter = |choice| InferParameter {
        choice: Some(choice),
    };
    const REQUESTS: i64 = 100;
    let messages = (0..REQUESTS).map(|number| ModelInferRequest {
        model_name: "running".to_owned(),
        parameters: [
            ("sequence_id", ParameterChoice::Int64(1 + number % 2)),
            ("sequence_start", ParameterChoice::Bool(number < 2)),
            (
                "sequence_end",
                ParameterChoice::Bool(number >= REQUESTS - 2),
            ),
        ]
        .map(|(name, choice)| (name.to_owned(), parameter(choice)))
        .into(),
        inputs: vec![InferInputTensor {
            name: "x".to_owned(),
            datatype: "INT32".to_owned(),
            shape: vec![1],
            ..Default::default()
        }],
        raw_input_contents: vec![(number as i32).to_le_bytes().to_vec().into()],
        ..Default::default()
    });
    let answers = Client::of(&server).infer_stream(messages.collect());
    let mut sums = [0_i32; 2];
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!(answer.error_message, "");
        let sum = &mut sums[number % 2];
        *sum += number as i32;
        let response = answer.infer_response.as_ref().expect("there");
        assert_eq!(response.raw_output_contents[0][..], sum.to_le_bytes());
    }
    assert_eq!(server.metric("zbmd_sequences{model=\"running\"}"), 0.0);
}

#[test]
fn connections_that_say_nothing_are_closed_and_harm_nobody() {
    let server = Models::simple().serve(&["--isolation", "threads", "--header-timeout", "200ms"]);
    let address = server.grpc_address();
    let client = Client::of(&server);
    client.runtime.block_on(async {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        for said in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", preface, &[0xff; 100]] {
            let mut stream = tokio::net::TcpStream::connect(address)
                .await
                .expect("there");
            stream.write_all(said).await.expect("taken");
            let mut heard = Vec::new();
            let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut heard)).await;
            // How it is closed is the server's business.
            let _ = closed.expect("it is closed");
        }
    });
    client
        .infer(simple_message([1; 16], [2; 16]))
        .expect("another connection");
    common::wait_until("closed connections", || {
        server.metric("zbmd_connections") <= 2.0
    });
}
