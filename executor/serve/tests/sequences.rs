//! Sequences of requests: each has its own state, in whatever order requests come, and also when workers die.

#![cfg(all(target_os = "linux", feature = "compile"))]

mod common;

use std::time::{Duration, Instant};

use common::soak::{Soak, kill_now_and_then, print_times};
use common::{
    Connection, Models, SIMPLE, SIMPLE_SEQUENCE, Server, binary_part, compiled, shared, signal,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use zbmd_compiler::{CompileOptions, MachineChoice, compile_str, read_npy};
use zbmd_executor::{Engine, RunOptions};

const DETECTOR: &str = include_str!("../../../graphs/vad/steps.ron");
/// Samples of a step of the detector.
const STEP: usize = 512;

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
    let server = Models::new()
        .with_file("simple_sequence.ron", SIMPLE_SEQUENCE.as_bytes())
        .serve(&["--isolation", "threads", "--devices", "1"]);
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
    let server = Models::simple()
        .with_file("simple_sequence.ron", SIMPLE_SEQUENCE.as_bytes())
        .serve(&["--isolation", "threads", "--devices", "1"]);
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
    let server = Models::new()
        .with_file("simple_sequence.ron", SIMPLE_SEQUENCE.as_bytes())
        .serve(&[
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

/// Samples of the recording, as bytes; a whole number of steps.
fn recording() -> Option<Vec<u8>> {
    let file = std::fs::read(shared("audio/speech16k.wav")?).expect("readable");
    // The header of a plain file has 44 bytes.
    let samples = &file[44..];
    let step_bytes = STEP * 2;
    Some(samples[..samples.len() / step_bytes * step_bytes].to_vec())
}

/// Probabilities of a run over a whole recording.
fn run_of_file(model: &str, pcm: &[u8]) -> Vec<u8> {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    };
    let compiled = compile_str("vad.ron", model, "", &options).expect("a good model");
    let registry = zbmd_backends::standard_registry();
    let engine = Engine::with_modes(compiled.into_modes(), &registry).expect("made");
    let mut session = engine.start(RunOptions::default()).expect("started");
    let mut source = session.source("pcm").expect("there");
    let mut sink = session.sink("prob").expect("there");
    let mut probabilities = vec![0; pcm.len() / (STEP * 2) * 4];
    std::thread::scope(|scope| {
        scope.spawn(move || source.push_bytes(pcm).expect("taken"));
        sink.pull_bytes(&mut probabilities).expect("given");
    });
    session.join().expect("finished");
    probabilities
}

/// Sends a recording as a sequence; the probabilities, and how long each answer took.
fn send(
    mut connection: Connection,
    number: usize,
    pcm: &[u8],
    times: &mut Vec<Duration>,
) -> Vec<u8> {
    let mut probabilities = Vec::new();
    let steps: Vec<&[u8]> = pcm.chunks_exact(STEP * 2).collect();
    for (place, samples) in steps.iter().enumerate() {
        let json = json!({
            "inputs": [{
                "name": "pcm", "datatype": "INT16", "shape": [STEP],
                "parameters": {"binary_data_size": samples.len()},
            }],
            "parameters": {
                "binary_data_output": true, "sequence_id": format!("speaker {number}"),
                "sequence_start": place == 0, "sequence_end": place + 1 == steps.len(),
            },
        })
        .to_string();
        let header = [("Inference-Header-Content-Length", json.len().to_string())];
        let body = [json.as_bytes(), samples].concat();
        let begun = Instant::now();
        let reply = connection.request("POST", "/v2/models/vad/infer", &header, &body);
        times.push(begun.elapsed());
        assert_eq!(reply.status, 200, "{}", reply.text());
        probabilities.extend_from_slice(binary_part(&reply));
    }
    probabilities
}

/// The voice detector, as a model of steps, and parts of the recording, each from another place.
struct Speakers {
    model: String,
    pcm: Vec<u8>,
}

impl Speakers {
    const COUNT: usize = 16;
    const STEPS: usize = 80;

    /// Nothing where the shared data is not here.
    fn find() -> Option<Self> {
        let (detector, pcm) = (shared("models/silero_vad.onnx")?, recording()?);
        let path = format!("{:?}", detector.display().to_string());
        let model = DETECTOR.replace("\"silero_vad.onnx\"", &path);
        assert_ne!(model, DETECTOR);
        Some(Self { model, pcm })
    }

    fn serve(&self) -> Server {
        let models = Models::new().with_file("vad.ron", self.model.as_bytes());
        models.serve(&["--devices", "1"])
    }

    fn parts(&self) -> Vec<&[u8]> {
        let begin = |speaker| speaker * STEP * 2 * 3;
        (0..Self::COUNT)
            .map(|speaker| &self.pcm[begin(speaker)..][..STEP * 2 * Self::STEPS])
            .collect()
    }
}

/// The same for minutes, a process killed every two seconds; see `loss_soak.rs`.
#[test]
fn sixteen_speakers_are_heard_for_minutes() {
    let Some(soak) = Soak::wanted() else { return };
    let Some(speakers) = Speakers::find() else {
        return;
    };
    let server = speakers.serve();
    let expected: Vec<Vec<u8>> = speakers
        .parts()
        .iter()
        .map(|part| run_of_file(&speakers.model, part))
        .collect();
    // Each for its recording's length at least.
    let hear = |time: Duration| -> Vec<Duration> {
        let end = Instant::now() + time;
        let parts = speakers.parts();
        std::thread::scope(|scope| {
            let threads = parts.iter().zip(&expected).enumerate();
            let threads = threads.map(|(number, (part, expected))| {
                let server = &server;
                scope.spawn(move || {
                    let mut times = Vec::new();
                    while times.is_empty() || Instant::now() < end {
                        let heard = send(server.connect(), number, part, &mut times);
                        assert!(heard == *expected, "speaker {number}");
                    }
                    times
                })
            });
            let threads: Vec<_> = threads.collect();
            let times = threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("no panic"));
            let mut times: Vec<Duration> = times.collect();
            times.sort_unstable();
            times
        })
    };

    print_times("without losses", &hear(soak.time / 10));
    let (times, losses) = std::thread::scope(|scope| {
        let heard = scope.spawn(|| hear(soak.time));
        let losses = kill_now_and_then(&server, soak.every, soak.time);
        (heard.join().expect("no panic"), losses)
    });
    println!("{losses} processes killed");
    print_times("with losses", &times);
    assert!(losses > 0, "the soak is too short for a loss");
    assert_eq!(server.metric("zbmd_sequences{model=\"vad\"}"), 0.0);
}

/// The voice detector as 16 sequences at once, each from another place of the recording, while workers are killed.
#[test]
fn sixteen_speakers_are_heard_as_their_recordings_are() {
    let Some(speakers) = Speakers::find() else {
        return;
    };
    let Speakers { model, pcm } = &speakers;
    let server = speakers.serve();
    let parts = speakers.parts();
    let heard = std::thread::scope(|scope| {
        let speakers = parts.iter().enumerate().map(|(number, part)| {
            let connection = server.connect();
            scope.spawn(move || send(connection, number, part, &mut Vec::new()))
        });
        let speakers: Vec<_> = speakers.collect();
        for _ in 0..3 {
            let answered = server.metric("zbmd_iterations_total{model=\"vad\"}");
            common::wait_until("answers", || {
                server.metric("zbmd_iterations_total{model=\"vad\"}") >= answered + 100.0
            });
            signal(server.children()[0], Signal::KILL);
        }
        let heard = speakers
            .into_iter()
            .map(|speaker| speaker.join().expect("no panic"));
        heard.collect::<Vec<_>>()
    });
    for (number, (part, heard)) in parts.iter().zip(heard).enumerate() {
        assert!(heard == run_of_file(model, part), "speaker {number}");
    }
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
    let found = floats(&run_of_file(model, pcm));
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
