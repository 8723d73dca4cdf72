//! Requests whose answers are known, to the bit: of the model `wide`, and of sequences of the voice detector.

use serde_json::json;
use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_str};
use zbmd_executor::{Engine, RunOptions};

use super::{Connection, Models, Server, binary_part, shared, wide_inputs, wide_request};

/// A request, and the tensors that answer it.
pub struct Exchange {
    path: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    expected: Vec<u8>,
}

impl Exchange {
    /// Asks.
    ///
    /// # Errors
    /// There is no answer, it is an error, or it has other bits.
    pub fn ask(&self, connection: &mut Connection) -> Result<(), String> {
        connection.begin("POST", self.path, &self.headers, &self.body);
        let reply = connection.reply().ok_or("no answer")?;
        if reply.status != 200 {
            return Err(format!("status {}: {}", reply.status, reply.text()));
        }
        match binary_part(&reply) == self.expected {
            true => Ok(()),
            false => Err("other bits".to_owned()),
        }
    }
}

/// Requests to `wide`, with the outputs of a run of `compiled` without a server.
pub fn wide_exchanges(compiled: &Compiled) -> Vec<Exchange> {
    let inputs = wide_inputs(8);
    let mut outputs = run(compiled, "x", &inputs.concat(), &["y", "t"]);
    let (first, second) = (outputs.remove(0), outputs.remove(0));
    let token_bytes = inputs[0].len();
    let answers = first
        .chunks(token_bytes)
        .zip(second.chunks(token_bytes))
        .map(|(first, second)| [first, second].concat());
    let asked = inputs.iter().zip(answers).map(|(x, expected)| {
        let (body, headers) = wide_request(x);
        Exchange {
            path: "/v2/models/wide/infer",
            headers,
            body,
            expected,
        }
    });
    asked.collect()
}

/// Requests to `wide` of [`softmax_in_batches`], each with so many rows, with the outputs of a run without batches and without a server.
pub fn softmax_exchanges(count: u32, rows: u32) -> Vec<Exchange> {
    let inputs = wide_inputs(count * rows).concat();
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        mode: Some("batch-1".to_owned()),
        ..CompileOptions::default()
    };
    let model = softmax_in_batches(&[1]);
    let single = compile_str("model.ron", &model, "", &options).expect("a good model");
    let outputs = run(&single, "x", &inputs, &["y"]).remove(0);

    let request_bytes = inputs.len() / count as usize;
    let asked = inputs
        .chunks(request_bytes)
        .zip(outputs.chunks(request_bytes));
    let asked = asked.map(|(x, expected)| {
        let (body, headers) = wide_request(x);
        Exchange {
            path: "/v2/models/wide/infer",
            headers,
            body,
            expected: expected.to_vec(),
        }
    });
    asked.collect()
}

/// A model of rows of 4,096 floats with a mode for each size of batches.
pub fn softmax_in_batches(sizes: &[u32]) -> String {
    let modes = sizes.iter().map(|size| {
        format!(
            r#""batch-{size}": Mode(
                actors: {{ "join": Reshape(shape: [{size}, 4096]), "f": NnSoftmax(), "split": Reshape(shape: [1, 4096]) }},
                channels: [
                    (from: "x", to: ["join"]), (from: "join", to: ["f"]), (from: "f", to: ["split"]), (from: "split", to: ["y"]),
                ],
            ),"#
        )
    });
    let modes: String = modes.collect();
    format!(
        r#"Model(
            name: "wide",
            sources: {{ "x": Stream(dtype: f32, shape: [1, 4096]) }},
            modes: {{ {modes} }},
            sinks: {{ "y": Stream() }},
        )"#
    )
}

/// What a run without a server gives to each sink, when all of one source is pushed.
fn run(compiled: &Compiled, source: &str, input: &[u8], sinks: &[&str]) -> Vec<Vec<u8>> {
    let registry = zbmd_backends::standard_registry();
    let engine = Engine::new(compiled.program.clone(), &registry).expect("made");
    let mut session = engine.start(RunOptions::default()).expect("started");
    let mut source = session.source(source).expect("there");
    let sinks: Vec<_> = sinks
        .iter()
        .map(|name| session.sink(name).expect("there"))
        .collect();

    let outputs = std::thread::scope(|scope| {
        scope.spawn(move || source.push_bytes(input).expect("taken"));
        let pulling = sinks.into_iter().map(|mut sink| {
            scope.spawn(move || {
                let mut output = Vec::new();
                let mut token = vec![0; sink.token().bytes() as usize];
                while sink.pull_bytes(&mut token).expect("given") > 0 {
                    output.extend_from_slice(&token);
                }
                output
            })
        });
        let pulling: Vec<_> = pulling.collect();
        let pulled = pulling.into_iter();
        pulled
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    session.join().expect("finished");
    outputs
}

const DETECTOR: &str = include_str!("../../../../graphs/vad/steps.ron");
/// Bytes of a step of the detector: 512 samples.
const STEP_BYTES: usize = 512 * 2;

/// The voice detector as a model of steps, and parts of a recording, each from another place.
pub struct Speakers {
    model: String,
    /// Samples of the recording, as bytes; a whole number of steps.
    pub pcm: Vec<u8>,
}

impl Speakers {
    pub const COUNT: usize = 16;
    const STEPS: usize = 80;

    /// Nothing where the shared data is not here.
    pub fn find() -> Option<Self> {
        let detector = shared("models/silero_vad.onnx")?;
        let recording = std::fs::read(shared("audio/speech16k.wav")?).expect("readable");
        let path = format!("{:?}", detector.display().to_string());
        let model = DETECTOR.replace("\"silero_vad.onnx\"", &path);
        assert_ne!(model, DETECTOR);

        // The header of a plain file has 44 bytes.
        let samples = &recording[44..];
        let pcm = samples[..samples.len() / STEP_BYTES * STEP_BYTES].to_vec();
        Some(Self { model, pcm })
    }

    pub fn serve(&self) -> Server {
        let models = Models::new().with_file("vad.ron", self.model.as_bytes());
        models.serve(&["--devices", "1"])
    }

    /// Probabilities of a run over a recording.
    pub fn run_over(&self, pcm: &[u8]) -> Vec<u8> {
        let options = CompileOptions {
            machine: MachineChoice::Uniform(1),
            ..CompileOptions::default()
        };
        let compiled = compile_str("vad.ron", &self.model, "", &options).expect("a good model");
        run(&compiled, "pcm", pcm, &["prob"]).remove(0)
    }

    /// The steps of each speaker's sequence, with the probabilities of a run over the same part of the recording.
    pub fn exchanges(&self) -> Vec<Vec<Exchange>> {
        let speakers = 0..Self::COUNT;
        speakers
            .map(|speaker| {
                let begin = speaker * STEP_BYTES * 3;
                let part = &self.pcm[begin..][..STEP_BYTES * Self::STEPS];
                let probabilities = self.run_over(part);
                let steps = part.chunks_exact(STEP_BYTES).zip(probabilities.chunks(4));
                let steps = steps.enumerate().map(|(place, (samples, probability))| {
                    Self::step(speaker, place, samples, probability)
                });
                steps.collect()
            })
            .collect()
    }

    fn step(speaker: usize, place: usize, samples: &[u8], probability: &[u8]) -> Exchange {
        let json = json!({
            "inputs": [{
                "name": "pcm", "datatype": "INT16", "shape": [samples.len() / 2],
                "parameters": {"binary_data_size": samples.len()},
            }],
            "parameters": {
                "binary_data_output": true, "sequence_id": format!("speaker {speaker}"),
                "sequence_start": place == 0, "sequence_end": place + 1 == Self::STEPS,
            },
        })
        .to_string();
        Exchange {
            path: "/v2/models/vad/infer",
            headers: vec![("Inference-Header-Content-Length", json.len().to_string())],
            body: [json.as_bytes(), samples].concat(),
            expected: probability.to_vec(),
        }
    }
}
