//! Folders of models that the server compiles: ONNX files and model texts, beside bundles and instead of them.

#![cfg(all(target_os = "linux", feature = "compile"))]

mod common;

use bytes::Bytes;
use common::{Models, SIMPLE, WIDE, binary_part, compiled, shared, simple_request};
use zbmd_compiler::{CompileOptions, compile_file, read_npy};
use zbmd_executor::{Engine, RunOptions};

impl Models {
    /// Exit code and words of a server that ends by itself.
    fn refusal(&self, options: &[&str]) -> (i32, String) {
        let output = self.command(options).output().expect("started");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().expect("ended"), said)
    }
}

/// What `zbmd-run` of the bundle that `zbmdc compile` makes gives for one input.
fn run_of_bundle(model: &std::path::Path, input: &[u8]) -> Vec<u8> {
    let bundle = Models::new().with(
        "model",
        &compile_file(model, &CompileOptions::default()).expect("a good model"),
    );
    let program =
        zbmd_ir::bundle::open(&bundle.path().join("model.zbmd")).expect("a bundle of ours");
    let engine = Engine::new(program, &zbmd_backends::standard_registry()).expect("made");
    let streams = zbmd_executor::embed::streams(&engine.program().graph);
    let name = |is_source| {
        let stream = streams.iter().find(|stream| stream.is_source == is_source);
        stream.expect("one of each")
    };

    let mut session = engine.start(RunOptions::default()).expect("started");
    let mut source = session.source(&name(true).name).expect("there");
    let mut sink = session.sink(&name(false).name).expect("there");
    source.push_bytes(input).expect("taken");
    drop(source);
    let mut output = vec![0; name(false).token.bytes() as usize];
    sink.pull_bytes(&mut output).expect("given");
    session.join().expect("finished");
    output
}

#[test]
fn an_onnx_file_answers_with_the_bits_of_its_bundle() {
    let (Some(model), Some(input)) = (shared("models/mnist.onnx"), shared("models/mnist.in0.npy"))
    else {
        return;
    };
    let input = read_npy(&Bytes::from(std::fs::read(input).expect("readable"))).expect("an array");
    let expected = run_of_bundle(&model, &input.data);

    let file = std::fs::read(&model).expect("readable");
    for options in [&[][..], &["--devices", "1"]] {
        let server = Models::new().with_file("mnist.onnx", &file).serve(options);
        assert!(server.said().contains("mnist: compiled from"));
        let metadata = server.get("/v2/models/mnist").json();
        let given = &metadata["inputs"][0];
        let json = serde_json::json!({
            "inputs": [{
                "name": given["name"], "datatype": given["datatype"], "shape": given["shape"],
                "parameters": {"binary_data_size": input.data.len()},
            }],
            "parameters": {"binary_data_output": true},
        })
        .to_string();
        let header = [("Inference-Header-Content-Length", json.len().to_string())];
        let body = [json.as_bytes(), &input.data].concat();
        let path = "/v2/models/mnist/infer";
        let reply = server.connect().request("POST", path, &header, &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(binary_part(&reply) == expected, "{options:?}");
    }
}

#[test]
fn a_text_is_compiled_and_a_bundle_of_its_name_comes_first() {
    let server = Models::simple()
        .with_file("simple.ron", b"no model at all")
        .with_file("other.ron", SIMPLE.as_bytes())
        .with_file("notes.txt", b"no model either")
        .serve(&["--isolation", "threads"]);
    let said = server.said();
    assert!(
        said.contains("note: simple: the bundle") && said.contains("other: compiled from"),
        "{said}"
    );
    let request = simple_request(&[5; 16], &[7; 16]).to_string();
    for model in ["simple", "other"] {
        let path = format!("/v2/models/{model}/infer");
        let reply = server.post(&path, request.as_bytes());
        assert_eq!(reply.json()["outputs"][0]["data"][15], 12, "{model}");
        let config = server.get(&format!("/v2/models/{model}/config")).json();
        let block = &config["parameters"]["block_iterations"]["string_value"];
        assert_eq!(block, "1", "{model}");
    }
}

#[test]
fn models_that_cannot_be_compiled_are_refused() {
    let wrong = SIMPLE.replace("NnSub", "NnSubtract");
    assert_ne!(wrong, SIMPLE);
    let (code, said) = Models::new()
        .with_file("wrong.ron", wrong.as_bytes())
        .refusal(&[]);
    assert_eq!(code, 3, "{said}");
    let has_place = said.contains("wrong.ron: the model does not compile") && said.contains("-->");
    assert!(has_place && said.contains("NnSubtract"), "{said}");

    let (code, said) = Models::new()
        .with_file("a.ron", SIMPLE.as_bytes())
        .with_file("a.onnx", b"")
        .refusal(&[]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("are both the model `a`"), "{said}");

    let missing = ["--machine", "there-is-no-such-machine.ron"];
    let models = Models::new().with_file("a.ron", SIMPLE.as_bytes());
    let (code, said) = models.refusal(&missing);
    assert_eq!(code, 4, "{said}");

    // A state that requests cannot carry.
    let filter = r#"Model(
        sources: { "x": Stream(dtype: f32) },
        actors: { "mean": Fir([0.5, 0.5]) },
        channels: [(from: "x", to: ["mean"]), (from: "mean", to: ["y"])],
        sinks: { "y": Stream() },
    )"#;
    let (code, said) = Models::new()
        .with_file("mean.ron", filter.as_bytes())
        .refusal(&[]);
    assert_eq!(code, 3, "{said}");
    assert!(
        said.contains("error[E0405]: `mean` looks at 1 token of earlier iterations"),
        "{said}"
    );

    // What compiles must be fit to be served all the same.
    let agc = include_str!("../../../graphs/agc/model.ron");
    let (code, said) = Models::new().with("agc", &compiled(agc, 1, 1)).refusal(&[]);
    assert_eq!(code, 5, "{said}");
    assert!(
        said.contains("it keeps tokens of `loop`") && said.contains("--sequences"),
        "{said}"
    );
}

#[test]
fn a_machine_file_says_what_is_compiled_for() {
    let machine = r#"Machine(devices: [Device(name: "left", backend: cpu), Device(name: "right", backend: cpu)])"#;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("machine.ron");
    std::fs::write(&path, machine).expect("written");
    let path = path.to_str().expect("text");

    let pipeline = compiled(WIDE, 2, 1);
    assert!(pipeline.program.plans[zbmd_ir::PlanId(0)].stages > 1);
    let server = Models::new()
        .with_file("wide.ron", WIDE.as_bytes())
        .serve(&["--machine", path, "--no-standby"]);
    let config = server.get("/v2/models/wide/config").json();
    assert_ne!(config["parameters"]["stages"]["string_value"], "1");
    assert_eq!(server.children().len(), 2, "a worker for each device");
}
