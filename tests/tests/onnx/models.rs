//! Whole ONNX models against their reference outputs.

use std::collections::BTreeMap;

use zbmd_backends::interpret::Interpreter;
use zbmd_compiler::{CompileOptions, graph_of_file};
use zbmd_ir::DType;
use zbmd_tests::data;
use zbmd_tests::onnx::{model_inputs, model_outputs, relative_error, to_f64};

/// The outputs of a model by the interpreter.
fn run(name: &str, without: &[&str]) -> (usize, BTreeMap<String, Vec<u8>>) {
    let dir = data::file("models").expect("found before");
    let mut options = CompileOptions::default();
    options.onnx.without = without.iter().map(|w| (*w).to_owned()).collect();
    let (graph, blobs) = graph_of_file(dir.join(format!("{name}.onnx")), &options)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let inputs = model_inputs(&dir, name, &graph);
    let registry = zbmd_backends::standard_registry();
    let mut interpreter =
        Interpreter::new(&graph, &blobs, &registry).unwrap_or_else(|e| panic!("{name}: {e}"));
    (
        graph.actors.len(),
        interpreter
            .run(&inputs, Some(1))
            .unwrap_or_else(|e| panic!("{name}: {e}"))
            .outputs,
    )
}

#[test]
fn no_pass_changes_what_a_model_computes() {
    if data::file("models").is_none() {
        return;
    }
    let all: Vec<&str> = zbmd_compiler::onnx::passes().map(|p| p.0).collect();
    for name in [
        "mnist",
        "bert_tiny",
        "llama_block_decode",
        "mobilenet_v2",
        "light_resnet50",
        "light_shufflenet",
    ] {
        let (plain, want) = run(name, &all);
        // One pass alone, then all of them.
        for pass in 0..=all.len() {
            let without: Vec<&str> = all
                .iter()
                .enumerate()
                .filter(|(i, _)| pass < all.len() && *i != pass)
                .map(|(_, p)| *p)
                .collect();
            let (actors, got) = run(name, &without);
            // Another layout brings transpositions along wherever other passes have left something between.
            let alone = pass < all.len() && all[pass] == "channels-last";
            assert!(
                actors <= plain || alone,
                "{name} without {without:?}: {actors} actors"
            );
            for (sink, bytes) in &want {
                let error =
                    relative_error(&to_f64(&got[sink], DType::F32), &to_f64(bytes, DType::F32));
                assert!(
                    error < 5e-6,
                    "{name} without {without:?}, output {sink}: {error:.1e}"
                );
            }
            if pass == all.len() {
                println!("{name}: {plain} actors, {actors} behind all passes");
                assert!(actors < plain, "{name}");
            }
        }
    }
}

#[test]
fn models_agree_with_the_reference() {
    let Some(dir) = data::file("models") else {
        return;
    };
    let registry = zbmd_backends::standard_registry();
    let only = std::env::var("ZBMD_CASE").ok();
    for name in [
        "mnist",
        "bert_tiny",
        "llama_block_decode",
        "mobilenet_v2",
        "light_resnet50",
        "light_squeezenet",
        "light_shufflenet",
        "light_inception_v1",
        "light_zfnet512",
    ] {
        if only.as_ref().is_some_and(|o| !name.contains(o.as_str())) {
            continue;
        }
        let made = graph_of_file(dir.join(format!("{name}.onnx")), &CompileOptions::default());
        let (graph, blobs) = made.unwrap_or_else(|e| panic!("{name}: {e}"));
        let inputs = model_inputs(&dir, name, &graph);
        let mut interpreter =
            Interpreter::new(&graph, &blobs, &registry).unwrap_or_else(|e| panic!("{name}: {e}"));
        let outcome = interpreter
            .run(&inputs, Some(1))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let sinks: Vec<&str> = graph.sinks().map(|(_, a)| a.name.as_str()).collect();
        let expected = model_outputs(&dir, name);
        assert_eq!(sinks.len(), expected.len(), "{name}");
        for (sink, (dtype, want)) in sinks.iter().zip(&expected) {
            let error = relative_error(
                &to_f64(&outcome.outputs[*sink], *dtype),
                &to_f64(want, *dtype),
            );
            println!("{name} {sink}: {error:.2e}, {} actors", graph.actors.len());
            assert!(
                error <= 1e-4,
                "{name}, output {sink}: relative error {error:.2e}"
            );
        }
    }
}
