//! Sequences of requests: each has its own state, in whatever order requests come, and also when workers die.

#![cfg(all(target_os = "linux", feature = "compile"))]

mod common;

use common::exchange::Speakers;
use common::{Models, SIMPLE, SIMPLE_SEQUENCE, compiled, shared, signal};
use rustix::process::Signal;
use serde_json::{Value, json};
use zbmd_compiler::{CompileOptions, MachineChoice, compile_str, read_npy};

fn step(input: i32, parameters: &Value) -> Vec<u8> {
    let request = json!({
        "inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [input]}],
        "parameters": parameters,
    });
    request.to_string().into_bytes()
}

const INFER: &str = "/v2/models/simple_sequence/infer";

#[test]
fn each_sequence_keeps_its_own_state() {
    let server = Models::simple_sequence().serve(&["--isolation", "threads", "--devices", "1"]);
    let ask = |input: i32, parameters: Value| {
        let reply = server.post(INFER, &step(input, &parameters));
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["outputs"][0]["data"][0].as_i64()
    };
    let started = |id: Value| json!({"sequence_id": id, "sequence_start": true});
    // A number and a text are two sequences.
    for id in [json!(5), json!("5"), json!("other")] {
        assert_eq!(ask(10, started(id)), Some(11));
    }
    for id in [json!(5), json!("other"), json!("5"), json!(5)] {
        assert_eq!(ask(20, json!({"sequence_id": id})), Some(20));
    }
    assert_eq!(
        server.metric("zbmd_sequences{model=\"simple_sequence\"}"),
        3.0
    );
    assert_eq!(ask(10, started(json!(5))), Some(11), "it begins anew");
    let end = json!({"sequence_id": 5, "sequence_end": true});
    assert_eq!(ask(30, end.clone()), Some(30));
    assert_eq!(
        server.metric("zbmd_sequences{model=\"simple_sequence\"}"),
        2.0
    );

    let reply = server.post(INFER, &step(1, &end));
    assert_eq!(reply.status, 400);
    let error = reply.error();
    assert!(error.contains("must specify the START flag"), "{error}");
    let reply = server.post(INFER, &step(1, &json!({"sequence_id": 0})));
    assert_eq!(reply.status, 400);
    let error = reply.error();
    let expected = "must specify a non-zero or non-empty correlation ID";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn states_are_not_shown_and_cannot_be_set() {
    let server = Models::simple().with_simple_sequence().serve(&[
        "--isolation",
        "threads",
        "--devices",
        "1",
    ]);
    let metadata = server.get("/v2/models/simple_sequence").json();
    let names = |list: &str| {
        metadata[list].as_array().map(|tensors| {
            let names = tensors.iter().map(|tensor| tensor["name"].clone());
            names.collect::<Vec<_>>()
        })
    };
    assert_eq!(names("inputs"), Some(vec![json!("INPUT")]));
    assert_eq!(names("outputs"), Some(vec![json!("OUTPUT")]));
    let config = server.get("/v2/models/simple_sequence/config").json();
    let idle = &config["sequence_batching"]["max_sequence_idle_microseconds"];
    assert_eq!(idle, &json!(60_000_000));
    let config = server.get("/v2/models/simple/config").json();
    assert_eq!(config["sequence_batching"], Value::Null);

    let state = json!({"name": "first.state", "datatype": "INT32", "shape": [1, 1], "data": [7]});
    let mut request: Value =
        serde_json::from_slice(&step(1, &json!({"sequence_id": 1}))).expect("JSON");
    request["inputs"]
        .as_array_mut()
        .expect("a list")
        .push(state);
    let reply = server.post(INFER, request.to_string().as_bytes());
    assert_eq!(
        reply.error(),
        "the model has no input `first.state`; it has `INPUT`"
    );

    let mut request = common::simple_request(&[1; 16], &[2; 16]);
    request["parameters"] = json!({"sequence_id": 1, "sequence_start": true});
    let reply = server.post("/v2/models/simple/infer", request.to_string().as_bytes());
    let error = reply.error();
    assert!(error.contains("`simple`, which keeps no state"), "{error}");
}

#[test]
fn sequences_are_limited_and_forgotten() {
    let server = Models::simple_sequence().serve(&[
        "--isolation",
        "threads",
        "--devices",
        "1",
        "--sequences",
        "2",
        "--sequence-idle",
        "300ms",
    ]);
    let start = |id: u32| {
        let parameters = json!({"sequence_id": id, "sequence_start": true});
        server.post(INFER, &step(1, &parameters))
    };
    assert_eq!([start(1).status, start(2).status], [200, 200]);
    let refused = start(3);
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some());
    let error = refused.error();
    assert!(error.contains("there are 2 sequences"), "{error}");
    let refusals = "zbmd_refused_requests_total{model=\"simple_sequence\",why=\"sequences\"}";
    assert!(server.metric(refusals) >= 1.0);
    common::wait_until("a sequence that is forgotten", || start(3).status == 200);
}

/// The voice detector as 16 sequences at once, each from another place of the recording, while workers are killed.
#[test]
fn sixteen_speakers_are_heard_as_their_recordings_are() {
    let Some(speakers) = Speakers::find() else {
        return;
    };
    let server = speakers.serve();
    let exchanges = speakers.exchanges();
    std::thread::scope(|scope| {
        for steps in &exchanges {
            let mut connection = server.connect();
            scope.spawn(move || {
                for step in steps {
                    step.ask(&mut connection).expect("the run's probability");
                }
            });
        }
        for _ in 0..3 {
            let answered = server.metric("zbmd_iterations_total{model=\"vad\"}");
            common::wait_until("answers", || {
                server.metric("zbmd_iterations_total{model=\"vad\"}") >= answered + 100.0
            });
            signal(server.children()[0], Signal::KILL);
        }
    });
    assert!(server.metric("zbmd_worker_losses_total{model=\"vad\",cause=\"killed\"}") >= 1.0);
    assert_eq!(server.metric("zbmd_sequences{model=\"vad\"}"), 0.0);

    // The same as of the model that frames the stream itself, whose probabilities ONNX Runtime confirms.
    let Some(reference) = shared("audio/speech16k.vad.npy") else {
        return;
    };
    let reference = std::fs::read(reference).expect("readable");
    let reference = read_npy(&bytes::Bytes::from(reference)).expect("an array");
    let floats = |bytes: &[u8]| -> Vec<f32> {
        let numbers = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        numbers.collect()
    };
    let found = floats(&speakers.run_over(&speakers.pcm));
    for (place, (found, expected)) in found.iter().zip(floats(&reference.data)).enumerate() {
        assert!(
            (found - expected).abs() < 1e-3,
            "step {place}: {found}, {expected}"
        );
    }
}

#[test]
fn a_bundle_of_sequences_is_served_on_a_pipeline_too() {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(2),
        block: Some(2),
        sequences: true,
        ..CompileOptions::default()
    };
    let bundle = compile_str("model.ron", SIMPLE_SEQUENCE, "", &options).expect("a good model");
    let server = Models::new()
        .with("simple_sequence", &bundle)
        .with("simple", &compiled(SIMPLE, 1, 1))
        .serve(&["--isolation", "threads"]);
    let outputs = std::thread::scope(|scope| {
        let clients = (1..=8_i32).map(|id| {
            let server = &server;
            scope.spawn(move || {
                let outputs = (0..20).map(|place| {
                    let parameters = json!({"sequence_id": id, "sequence_start": place % 10 == 0});
                    let reply = server.post(INFER, &step(id, &parameters));
                    reply.json()["outputs"][0]["data"][0].as_i64()
                });
                outputs.collect::<Vec<_>>()
            })
        });
        let clients: Vec<_> = clients.collect();
        let outputs = clients
            .into_iter()
            .map(|client| client.join().expect("no panic"));
        outputs.collect::<Vec<_>>()
    });
    for (id, outputs) in (1..).zip(outputs) {
        for (place, output) in outputs.into_iter().enumerate() {
            assert_eq!(
                output,
                Some(id + i64::from(place % 10 == 0)),
                "{id} {place}"
            );
        }
    }
}
