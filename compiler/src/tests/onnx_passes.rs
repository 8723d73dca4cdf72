//! Passes over ONNX models made here: which nodes are left, and that these compute what all of them did.

use rten_onnx::onnx::{AttributeProto, DataType, ModelProto, NodeProto, TensorProto};
use zbmd_backends::interpret::Interpreter;

use super::onnx::{bytes, info, model, node};
use crate::{CompileOptions, graph_of_onnx};

/// Runs a model once that was imported without some passes; its output `y`, and the operators of its nodes.
fn run_without(
    model: &ModelProto,
    without: &[&str],
    inputs: &[(&str, Vec<f32>)],
) -> (Vec<f32>, Vec<String>) {
    let mut options = CompileOptions::default();
    options.onnx.without = without.iter().map(|&pass| pass.to_owned()).collect();
    let (graph, blobs) = graph_of_onnx("made", &bytes(model), &options).expect("a fine model");

    let tokens = inputs.iter().map(|(name, numbers)| {
        let bytes = numbers.iter().flat_map(|v| v.to_le_bytes());
        ((*name).to_owned(), bytes.collect())
    });
    let registry = zbmd_backends::standard_registry();
    let mut interpreter = Interpreter::new(&graph, &blobs, &registry).expect("kernels");
    let outcome = interpreter.run(&tokens.collect(), None).expect("a run");
    let results = outcome.outputs["y"].chunks_exact(4);
    let results = results.map(|c| f32::from_le_bytes(c.try_into().expect("four bytes")));
    let ops = graph.actors.iter().map(|actor| actor.op.clone());
    let ops = ops.filter(|op| op.starts_with("Nn"));
    (results.collect(), ops.collect())
}

/// The names of all passes.
fn all_passes() -> Vec<&'static str> {
    crate::onnx::passes().map(|pass| pass.0).collect()
}

/// One float.
fn scalar(name: &str, value: f32) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(DataType::FLOAT),
        float_data: vec![value],
        ..Default::default()
    }
}

#[test]
fn a_gelu_written_out_in_any_order_becomes_one_node() {
    let ops = |products: [NodeProto; 2]| {
        let mut nodes = vec![
            node("Div", &["x", "root"], &["d"]),
            node("Erf", &["d"], &["e"]),
            node("Add", &["e", "one"], &["a"]),
        ];
        nodes.extend(products);
        let scalars = [
            ("root", std::f32::consts::SQRT_2),
            ("one", 1.0),
            ("half", 0.5),
        ];
        let scalars = scalars.map(|(name, value)| scalar(name, value));
        let inputs = vec![info("x", &[8]), info("z", &[8])];
        let model = model(nodes, scalars.into(), inputs, &["y"]);
        let options = CompileOptions::default();
        let (graph, _) = graph_of_onnx("gelu", &bytes(&model), &options).expect("a fine model");
        let ops = graph.actors.iter().map(|actor| actor.op.clone());
        ops.filter(|op| op.starts_with("Nn")).collect::<Vec<_>>()
    };
    let mul = |a, b, c| node("Mul", &[a, b], &[c]);
    for products in [
        [mul("half", "a", "h"), mul("x", "h", "y")],
        [mul("a", "half", "h"), mul("h", "x", "y")],
        [mul("x", "a", "p"), mul("p", "half", "y")],
        [mul("half", "x", "q"), mul("a", "q", "y")],
    ] {
        assert_eq!(ops(products), ["NnGelu"]);
    }
    // The gate of something else.
    let others = ops([mul("half", "a", "h"), mul("z", "h", "y")]);
    assert!(others.contains(&"NnErf".to_owned()), "{others:?}");
}

/// A convolution whose result goes to a normalisation, a product and a sum with constants of each channel and an
/// activation, and to a second output, so that the convolution itself stays as it is.
fn scaled_image(operand_dims: &[i64]) -> ModelProto {
    let floats = |name: &str, dims: &[i64], first: f32| TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(DataType::FLOAT),
        float_data: (0..dims.iter().product())
            .map(|v: i64| first + 0.25 * v as f32)
            .collect(),
        ..Default::default()
    };
    let nodes = vec![
        node("Conv", &["x", "w"], &["c"]),
        node("BatchNormalization", &["c", "s", "b", "m", "v"], &["n"]),
        node("Mul", &["factor", "n"], &["p"]),
        node("Add", &["p", "term"], &["q"]),
        node("Relu", &["q"], &["r"]),
        node("Conv", &["r", "u"], &["y"]),
        node("Neg", &["c"], &["z"]),
    ];
    let constants = vec![
        floats("w", &[3, 2, 1, 1], -0.5),
        floats("s", &[3], 0.5),
        floats("b", &[3], -0.25),
        floats("m", &[3], 0.75),
        floats("v", &[3], 1.5),
        floats("factor", operand_dims, -1.0),
        floats("term", operand_dims, 0.125),
        floats("u", &[2, 3, 1, 1], -0.75),
    ];
    let x = info("x", &[1, 2, 4, 5]);
    model(nodes, constants, vec![x], &["y", "z"])
}

#[test]
fn what_scales_channels_behind_a_normalisation_becomes_one_node() {
    let run = |operand_dims: &[i64], without: &[&str]| {
        let input = (0..40).map(|v| (v as f32 * 0.37).sin()).collect();
        run_without(&scaled_image(operand_dims), without, &[("x", input)])
    };

    for operand_dims in [&[3, 1, 1][..], &[1, 3, 1, 1], &[1]] {
        let passes = all_passes();
        let (plain, plain_ops) = run(operand_dims, &passes);
        let (merged, ops) = run(operand_dims, &[]);
        for (merged, plain) in merged.iter().zip(&plain) {
            let error = (merged - plain).abs();
            assert!(error < 1e-6, "{operand_dims:?}: {merged} for {plain}");
        }
        for gone in ["NnBatchNormalization", "NnMul", "NnAdd", "NnRelu"] {
            let gone = gone.to_owned();
            assert!(plain_ops.contains(&gone), "{plain_ops:?}");
            assert!(!ops.contains(&gone), "{operand_dims:?}: {ops:?}");
        }
        let affine = "NnAffineChannelsLast".to_owned();
        assert!(ops.contains(&affine), "{ops:?}");
    }

    // A column is another axis.
    let (_, ops) = run(&[1, 1, 4, 1], &[]);
    assert!(ops.contains(&"NnMul".to_owned()), "{ops:?}");
}

/// Some floats.
fn floats(name: &str, dims: &[i64], seed: i64) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(DataType::FLOAT),
        float_data: (0..dims.iter().product())
            .map(|v: i64| ((v * 37 + seed) as f32 * 0.61).sin())
            .collect(),
        ..Default::default()
    }
}

/// A shape.
fn shape(name: &str, dims: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: vec![dims.len() as i64],
        data_type: Some(DataType::INT64),
        int64_data: dims.to_vec(),
        ..Default::default()
    }
}

fn transpose(from: &str, to: &str, perm: [i64; 3]) -> NodeProto {
    NodeProto {
        attribute: vec![AttributeProto {
            name: Some("perm".into()),
            ints: perm.to_vec(),
            ..Default::default()
        }],
        ..node("Transpose", &[from], &[to])
    }
}

/// Scores of attention, of queries and keys of so many heads that are made from one input, times or divided by a constant.
fn scores(operator: &str, factor: f32) -> ModelProto {
    let nodes = vec![
        node("MatMul", &["x", "wq"], &["q"]),
        node("Add", &["q", "bq"], &["qb"]),
        node("MatMul", &["x", "wk"], &["k"]),
        node("Reshape", &["qb", "heads"], &["qh"]),
        transpose("qh", "qt", [1, 0, 2]),
        node("Reshape", &["k", "heads"], &["kh"]),
        transpose("kh", "kt", [1, 2, 0]),
        node("MatMul", &["qt", "kt"], &["s"]),
        node(operator, &["s", "factor"], &["y"]),
    ];
    let constants = vec![
        floats("wq", &[8, 8], 1),
        floats("bq", &[8], 2),
        floats("wk", &[8, 8], 3),
        shape("heads", &[6, 2, 4]),
        scalar("factor", factor),
    ];
    model(nodes, constants, vec![info("x", &[6, 8])], &["y"])
}

#[test]
fn scores_scaled_by_a_power_of_two_are_scaled_before() {
    let input: Vec<f32> = (0..48).map(|v| (v as f32 * 0.29).cos()).collect();
    let inputs = [("x", input)];
    for (operator, factor, is_exact) in [
        ("Div", 8.0, true),
        ("Mul", 0.125, true),
        ("Mul", -4.0, true),
        ("Div", 3.0, false),
        ("Mul", 0.1, false),
        ("Div", f32::INFINITY, false),
    ] {
        let model = scores(operator, factor);
        let (plain, plain_ops) = run_without(&model, &all_passes(), &inputs);
        let (merged, ops) = run_without(&model, &[], &inputs);
        let scaling = format!("Nn{operator}");
        assert!(plain_ops.contains(&scaling), "{plain_ops:?}");
        assert_eq!(
            ops.contains(&scaling),
            !is_exact,
            "{operator} {factor}: {ops:?}"
        );
        if factor.is_finite() {
            assert_eq!(plain, merged, "{operator} {factor}");
        }
    }
}

/// Attention of two heads over six places. The keys' transposition has another reader where they are read twice.
fn attention(reads_keys_twice: bool) -> ModelProto {
    let mut nodes = vec![
        node("MatMul", &["x", "wq"], &["q"]),
        node("MatMul", &["x", "wk"], &["k"]),
        node("MatMul", &["x", "wv"], &["v"]),
        node("Reshape", &["q", "heads"], &["qh"]),
        node("Reshape", &["k", "heads"], &["kh"]),
        node("Reshape", &["v", "heads"], &["vh"]),
        transpose("qh", "qt", [1, 0, 2]),
        transpose("kh", "kt", [1, 2, 0]),
        transpose("vh", "vt", [1, 0, 2]),
        node("MatMul", &["qt", "kt"], &["s"]),
        node("Softmax", &["s"], &["p"]),
        node("MatMul", &["p", "vt"], &["a"]),
        transpose("a", "at", [1, 0, 2]),
        node("Reshape", &["at", "places"], &["y"]),
    ];
    let mut outputs = vec!["y"];
    if reads_keys_twice {
        nodes.push(node("Neg", &["kt"], &["z"]));
        outputs.push("z");
    }
    let constants = vec![
        floats("wq", &[8, 8], 1),
        floats("wk", &[8, 8], 2),
        floats("wv", &[8, 8], 3),
        shape("heads", &[6, 2, 4]),
        shape("places", &[6, 8]),
    ];
    model(nodes, constants, vec![info("x", &[6, 8])], &outputs)
}

#[test]
fn transpositions_around_products_of_two_tensors_go_into_them() {
    let input: Vec<f32> = (0..48).map(|v| (v as f32 * 0.29).cos()).collect();
    let inputs = [("x", input)];
    for (reads_keys_twice, left) in [(false, 0), (true, 1)] {
        let model = attention(reads_keys_twice);
        let (plain, plain_ops) = run_without(&model, &all_passes(), &inputs);
        let (turned, ops) = run_without(&model, &[], &inputs);
        let count = |ops: &[String], wanted: &str| ops.iter().filter(|op| *op == wanted).count();
        assert_eq!(count(&plain_ops, "NnTranspose"), 4, "{plain_ops:?}");
        assert_eq!(count(&ops, "NnTranspose"), left, "{ops:?}");
        assert_eq!(count(&ops, "NnEinsum"), 2, "{ops:?}");
        // Every sum is the same chain.
        assert_eq!(plain, turned);
    }
}

/// Attention of four heads over six places, two of which share keys and values, that are repeated by `repetition`. The repeated
/// values have another reader where they are read twice.
fn grouped_attention(repetition: &str, reads_values_twice: bool) -> ModelProto {
    let mut nodes = vec![
        node("MatMul", &["x", "wq"], &["q"]),
        node("MatMul", &["x", "wk"], &["k"]),
        node("MatMul", &["x", "wv"], &["v"]),
        node("Reshape", &["q", "heads"], &["qh"]),
        node("Reshape", &["k", "groups"], &["kh"]),
        node("Reshape", &["v", "groups"], &["vh"]),
        transpose("qh", "qt", [1, 0, 2]),
        transpose("kh", "kg", [1, 0, 2]),
        transpose("vh", "vg", [1, 0, 2]),
        node("Reshape", &["kg", "single"], &["ks"]),
        node("Reshape", &["vg", "single"], &["vs"]),
        node(repetition, &["ks", "repeated"], &["kr"]),
        node(repetition, &["vs", "repeated"], &["vr"]),
        node("Reshape", &["kr", "all"], &["ka"]),
        node("Reshape", &["vr", "all"], &["va"]),
        transpose("ka", "kt", [0, 2, 1]),
        node("MatMul", &["qt", "kt"], &["s"]),
        node("Softmax", &["s"], &["p"]),
        node("MatMul", &["p", "va"], &["a"]),
        transpose("a", "at", [1, 0, 2]),
        node("Reshape", &["at", "places"], &["y"]),
    ];
    let mut outputs = vec!["y"];
    if reads_values_twice {
        nodes.push(node("Neg", &["va"], &["z"]));
        outputs.push("z");
    }
    let repeated: &[i64] = match repetition {
        "Tile" => &[1, 2, 1, 1],
        _ => &[2, 2, 6, 2],
    };
    let constants = vec![
        floats("wq", &[8, 8], 1),
        floats("wk", &[8, 4], 2),
        floats("wv", &[8, 4], 3),
        shape("heads", &[6, 4, 2]),
        shape("groups", &[6, 2, 2]),
        shape("single", &[2, 1, 6, 2]),
        shape("repeated", repeated),
        shape("all", &[4, 6, 2]),
        shape("places", &[6, 8]),
    ];
    model(nodes, constants, vec![info("x", &[6, 8])], &outputs)
}

#[test]
fn keys_and_values_that_heads_share_are_not_repeated() {
    let input: Vec<f32> = (0..48).map(|v| (v as f32 * 0.29).cos()).collect();
    let inputs = [("x", input)];
    for (repetition, reads_values_twice, left) in
        [("Tile", false, 0), ("Expand", false, 0), ("Tile", true, 1)]
    {
        let model = grouped_attention(repetition, reads_values_twice);
        let (plain, plain_ops) = run_without(&model, &all_passes(), &inputs);
        let (shared, ops) = run_without(&model, &[], &inputs);
        let repetitions = |ops: &[String]| {
            let wanted = format!("Nn{repetition}");
            ops.iter().filter(|op| **op == wanted).count()
        };
        assert_eq!(repetitions(&plain_ops), 2, "{plain_ops:?}");
        assert_eq!(repetitions(&ops), left, "{ops:?}");
        // Every sum is the same chain.
        assert_eq!(plain, shared, "{repetition}");
    }
}
