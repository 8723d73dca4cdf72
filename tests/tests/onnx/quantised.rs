//! Models that ONNX Runtime has quantised, beside the outputs of its integer kernels. `quantised/make.py` made both.

use std::collections::BTreeMap;
use std::path::Path;

use zbmd_backends::interpret::Interpreter;
use zbmd_compiler::{CompileOptions, graph_of_file, read_npy};
use zbmd_ir::{DType, Graph};
use zbmd_tests::onnx::{relative_error, to_f64};

/// A file of the folder.
fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/onnx/quantised")
        .join(name)
}

fn array(name: &str) -> Vec<u8> {
    let bytes = std::fs::read(file(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    read_npy(&bytes.into()).expect("an array").data.to_vec()
}

/// The graph of a model without these passes, and its output.
fn run(network: &str, form: &str, without: &[&str]) -> (Graph, Vec<f64>) {
    let mut options = CompileOptions::default();
    options.onnx.without = without.iter().map(|name| (*name).to_owned()).collect();
    let path = file(&format!("{network}.{form}.onnx"));
    let (graph, blobs) =
        graph_of_file(&path, &options).unwrap_or_else(|e| panic!("{network}.{form}: {e}"));
    let registry = zbmd_backends::standard_registry();
    let mut interpreter = Interpreter::new(&graph, &blobs, &registry).expect("kernels");
    let inputs = [("x".to_owned(), array(&format!("{network}.in.npy")))].into();
    let outcome = interpreter.run(&inputs, Some(1)).expect("a run");
    let (_, bytes) = outcome.outputs.into_iter().next().expect("an output");
    (graph, to_f64(&bytes, DType::F32))
}

/// How many actors there are of each op.
fn ops(graph: &Graph) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for actor in &graph.actors {
        *counts.entry(actor.op.as_str()).or_default() += 1;
    }
    counts
}

#[test]
fn quantised_models_agree_with_onnx_runtime() {
    for network in ["image", "attention"] {
        for form in [
            "qdq_u8", "qdq_i8", "qdq_u8u8", "qop_u8", "qop_i8", "dynamic",
        ] {
            let want = to_f64(&array(&format!("{network}.{form}.out.npy")), DType::F32);
            let (graph, found) = run(network, form, &[]);
            let error = relative_error(&found, &want);
            println!("{network}.{form}: {error:.1e}, {:?}", ops(&graph));
            // A step of a byte somewhere, where one of the two was next to a tie.
            assert!(error < 0.02, "{network}.{form}: {error:.1e}");
        }
    }
}

#[test]
fn quantised_lstms_agree_with_onnx_runtime() {
    let want = to_f64(&array("recurrent.dynamic.out.npy"), DType::F32);
    let (graph, found) = run("recurrent", "dynamic", &[]);
    // 70 steps of two sequences, two ways and then one: more than one block of steps, and a shorter one.
    assert_eq!(ops(&graph).get("NnDynamicQuantizeLSTM"), Some(&2));
    let error = relative_error(&found, &want);
    assert!(error < 0.02, "{error:.1e}");
}

#[test]
fn no_convolution_or_product_of_a_quantised_image_network_is_left_in_floats() {
    for form in ["qdq_u8", "qdq_i8", "qdq_u8u8", "qop_u8", "qop_i8"] {
        let (graph, _) = run("image", form, &[]);
        let ops = ops(&graph);
        for op in [
            "NnConv",
            "NnConvChannelsLast",
            "NnGemm",
            "NnMatMul",
            "NnAdd",
            "NnQLinearConv",
        ] {
            assert_eq!(ops.get(op), None, "{form}: {ops:?}");
        }
        assert_eq!(ops.get("NnQLinearConvChannelsLast"), Some(&4), "{form}");
    }
}

#[test]
fn the_pass_changes_no_result_beyond_rounding() {
    for network in ["image", "attention"] {
        for form in ["qdq_u8", "qdq_i8", "qdq_u8u8"] {
            let (_, floats) = run(network, form, &["quantised"]);
            let (_, integers) = run(network, form, &[]);
            let error = relative_error(&integers, &floats);
            assert!(error < 0.02, "{network}.{form}: {error:.1e}");
        }
    }
}
