//! Every op has a schema; what a schema refuses is refused with both ports, and what it takes is computed as if it had
//! been cast.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::DType;

use super::conformance::{resolve, subject};
use crate::op::OpError;
use zbmd_op::args::{bytes_to_f64, encode};
use zbmd_op::types::{TypeSchema, computed};

#[test]
fn every_op_has_a_type_schema() {
    let registry = crate::standard_registry();
    for name in registry.names() {
        let op = registry.op(name).expect("an op");
        let schema = op.types().unwrap_or_else(|| panic!("{name} has no types"));
        for port in schema.inputs.iter().chain(&schema.outputs) {
            assert!(!schema.possible(port).is_empty(), "{name}: `{}`", port.name);
        }
    }
}

#[test]
fn schemas_are_read_or_refused() {
    let schema = TypeSchema::parse("x:T w:^T|bool i?:int c~:i64[] n*:T -> y:T; T: float");
    let schema = schema.expect("a schema");
    assert_eq!(schema.possible(&schema.inputs[0]).len(), 4);
    assert_eq!(schema.possible(&schema.inputs[1]).len(), 5);
    let marks: Vec<_> = schema
        .inputs
        .iter()
        .map(|p| (p.name, p.optional, p.constant, p.many, p.may_be_empty))
        .collect();
    assert_eq!(
        marks,
        [
            ("x", false, false, false, false),
            ("w", false, false, false, false),
            ("i", true, false, false, false),
            ("c", true, true, false, true),
            ("n", false, false, true, false),
        ]
    );
    assert_eq!(schema.input("n12").map(|p| p.name), Some("n"));
    assert_eq!(schema.input("n"), None);
    for wrong in [
        "x:T -> y:T",
        "x:f33 -> y:f32",
        "x -> y:f32",
        "x:f32",
        "x:T -> y; T: f32",
    ] {
        assert_eq!(TypeSchema::parse(wrong), None, "{wrong}");
    }
}

/// What is said of an input, and how to fix it.
fn refusal(op: &str, parameters: &str, inputs: &str) -> (String, String) {
    match resolve(op, parameters, inputs) {
        Err(OpError::Input {
            port,
            message,
            help,
        }) => (format!("{port}: {message}"), help),
        other => panic!("{op}({parameters}) of {inputs}: {other:?}"),
    }
}

#[test]
fn a_refusal_names_both_ports_both_types_and_the_fix() {
    let (message, help) = refusal("NnConv", "", "x: f32[1,2,4,4], w: i64[1,2,4,4]");
    assert_eq!(
        (message.as_str(), help.as_str()),
        ("w: is i64[1,2,4,4]", "it takes f32 or f64 or f16 or bf16")
    );
    let (message, help) = refusal("NnConv", "", "x: f32[1,2,4,4], w: f64[1,2,4,4]");
    assert!(
        message.starts_with(
            "w: is f64[1,2,4,4], but `x` is f32[1,2,4,4], and both have the type T of"
        ),
        "{message}"
    );
    assert_eq!(
        help,
        "put an `NnCast(to: f32)` before it, or store the constant as f32"
    );
}

/// Ops with every operand that may be a port, in types that fit, and values that mean the same in all types.
const ALL_OPERANDS: &[(&str, &str, &str)] = &[
    (
        "NnConv",
        "",
        "x: f32[1,2,4,4], w: f32[3,2,2,2], b: f32[3], added: f32[1,3,3,3]",
    ),
    (
        "NnConvTranspose",
        "",
        "x: f32[1,1,4,4], w: f32[1,1,2,2], b: f32[1]",
    ),
    (
        "NnCausalConvWithState",
        "",
        "x: f32[1,2,8], w: f32[2,1,3], b: f32[2], past: f32[1,2,2]",
    ),
    ("NnGemm", "", "a: f32[4,4], b: f32[4,4], c: f32[4]"),
    ("NnGemm", "", "a: i32[4,4], b: i32[4,4], c: i32[4]"),
    (
        "NnEinsum",
        "equation: \"ij,jk->ik\"",
        "x0: f32[4,4], x1: f32[4,4]",
    ),
    (
        "NnEinsum",
        "equation: \"ij,jk->ik\"",
        "x0: i32[4,4], x1: i32[4,4]",
    ),
    (
        "NnBatchNormalization",
        "",
        "x: f32[1,2,4,4], scale: f32[2], bias: f32[2], mean: f32[2], var: f32[2]",
    ),
    (
        "NnGroupNormalization",
        "num_groups: 2",
        "x: f32[1,2,4,4], scale: f32[2], bias: f32[2]",
    ),
    (
        "NnInstanceNormalization",
        "",
        "x: f32[1,2,4,4], scale: f32[2], bias: f32[2]",
    ),
    (
        "NnLayerNormalization",
        "",
        "x: f32[3,4], scale: f32[4], bias: f32[4]",
    ),
    ("NnRMSNormalization", "", "x: f32[3,4], scale: f32[4]"),
    (
        "NnAttention",
        "",
        "q: f32[1,2,4,4], k: f32[1,2,4,4], v: f32[1,2,4,4], mask: f32[4,7], past_key: f32[1,2,3,4], past_value: f32[1,2,3,4]",
    ),
    (
        "NnAttention",
        "",
        "q: f32[1,2,4,4], k: f32[1,2,4,4], v: f32[1,2,4,4], lengths: i64[1]",
    ),
    (
        "NnDynamicQuantizeLSTM",
        "w: [[[1, -2, 3, -4, 5, -6, 7, -8]]], r: [[[1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1]]], w_scale: 0.125, r_scale: 0.0625",
        "x: f32[2,1,1], b: f32[1,16], lengths: i32[1], h: f32[1,1,2], c: f32[1,1,2], p: f32[1,6]",
    ),
    (
        "NnGRU",
        "hidden_size: 2",
        "x: f32[2,1,3], w: f32[1,6,3], r: f32[1,6,2], b: f32[1,12], lengths: i64[1], h: f32[1,1,2]",
    ),
    (
        "NnLSTM",
        "hidden_size: 2",
        "x: f32[2,1,3], w: f32[1,8,3], r: f32[1,8,2], b: f32[1,16], lengths: i64[1], h: f32[1,1,2], c: f32[1,1,2], p: f32[1,6]",
    ),
    (
        "NnRNN",
        "hidden_size: 2",
        "x: f32[2,1,3], w: f32[1,2,3], r: f32[1,2,2], b: f32[1,4], lengths: i64[1], h: f32[1,1,2]",
    ),
    ("NnGridSample", "", "x: f32[1,1,4,4], grid: f32[1,2,2,2]"),
    (
        "NnRotaryEmbedding",
        "",
        "x: f32[1,2,3,4], cos: f32[8,2], sin: f32[8,2], positions: i64[1,3]",
    ),
    ("NnSTFT", "step: 4", "x: f32[1,16,1], window: f32[8]"),
    ("NnDequantizeLinear", "", "x: i8[4], scale: f32, zero: i8"),
    ("NnQuantizeLinear", "", "x: f32[4], scale: f32, zero: u8"),
    (
        "NnQLinearMatMul",
        "",
        "a: u8[2,2], a_scale: f32, a_zero: u8, b: u8[2,2], b_scale: f32, b_zero: u8, y_scale: f32, y_zero: u8",
    ),
    ("NnPow", "", "x: f32[4,4], y: f32[4]"),
    ("NnPow", "", "x: i32[4,4], y: i32[4]"),
    ("NnGather", "", "x: f32[8], indices: i64[2]"),
    ("NnGatherElements", "", "x: f32[4,4], indices: i64[2,4]"),
    ("NnGatherND", "", "x: f32[4,4], indices: i64[2,2]"),
    ("NnReverseSequence", "", "x: f32[4,2], lengths: i64[2]"),
    ("NnOneHot", "depth: 4", "indices: i64[3], values: f32[2]"),
    (
        "NnScatterElements",
        "",
        "x: f32[4,4], indices: i64[2,4], updates: f32[2,4]",
    ),
    (
        "NnScatterElements",
        "",
        "x: f16[4,4], indices: i64[2,4], updates: f16[2,4]",
    ),
    (
        "NnScatterND",
        "",
        "x: f32[4,4], indices: i64[2,1], updates: f32[2,4]",
    ),
    (
        "NnTensorScatter",
        "",
        "x: f32[1,4,2], update: f32[1,2,2], indices: i64[1]",
    ),
    (
        "NnNegativeLogLikelihoodLoss",
        "",
        "x: f32[2,3], target: i64[2], weight: f32[3]",
    ),
    (
        "NnSoftmaxCrossEntropyLoss",
        "",
        "x: f32[2,3], target: i64[2], weight: f32[3]",
    ),
];

/// The inputs with another type at one of them, as text and by name.
fn with_type(inputs: &str, name: &str, dtype: DType) -> String {
    let parts = super::conformance::split_top(inputs);
    let changed = parts.iter().map(|part| {
        let (port, token) = part.split_once(':').expect("a named input");
        let shape = token
            .split_once('[')
            .map_or(String::new(), |(_, s)| format!("[{s}"));
        match port.trim() == name {
            true => format!("{}: {dtype}{shape}", port.trim()),
            false => part.trim().to_owned(),
        }
    });
    changed.collect::<Vec<_>>().join(", ")
}

/// All outputs as numbers, for inputs of ones and twos.
fn computed_outputs(op: &str, parameters: &str, inputs: &str) -> Vec<Vec<f64>> {
    let subject = subject(op, parameters, inputs);
    let values = subject.inputs(1, |dtype, count| {
        let numbers: Vec<f64> = (0..count).map(|i| 1.0 + (i % 2) as f64).collect();
        encode(dtype, &numbers)
    });
    let (outputs, _) = subject.run(&values, 1, 1);
    let ports = subject.stateless_outputs();
    let pairs = outputs.iter().zip(ports);
    pairs
        .map(|(bytes, port)| bytes_to_f64(bytes, port.token.dtype))
        .collect()
}

#[test]
fn mixed_types_compute_what_a_cast_gives() {
    let registry = crate::standard_registry();
    let mut covered: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for &(op, parameters, inputs) in ALL_OPERANDS {
        let schema = registry.op(op).and_then(|op| op.types()).expect("a schema");
        let expected = computed_outputs(op, parameters, inputs);
        for (name, own) in named(inputs) {
            let port = schema.input(&name).expect("a port");
            covered.entry(op).or_default().insert(port.name.to_owned());
            let is_first = schema.inputs.first() == Some(port) && !port.many;
            if port.exact_variable().is_some() || is_first || name == "x0" {
                continue;
            }
            for dtype in schema.possible(port) {
                // Bool masks mean something else, and types that are computed otherwise are refused below.
                if dtype == DType::Bool {
                    continue;
                }
                let changed = with_type(inputs, &name, dtype);
                if !port.takes_whatever(dtype) && computed(dtype) != computed(own) {
                    refusal(op, parameters, &changed);
                    continue;
                }
                let got = computed_outputs(op, parameters, &changed);
                assert_eq!(got, expected, "{op}({parameters}) of {changed}");
            }
        }
    }

    for name in registry.names().filter(|name| name.starts_with("Nn")) {
        let schema = registry
            .op(name)
            .and_then(|op| op.types())
            .expect("a schema");
        for port in schema.inputs.iter().skip(1).filter(|p| !p.constant) {
            let is_free = port.exact_variable().is_none() && schema.possible(port).len() > 1;
            let is_covered = covered.get(name).is_some_and(|c| c.contains(port.name));
            assert!(
                !is_free || is_covered,
                "{name}: `{}` is in no case",
                port.name
            );
        }
    }
}

/// Names and types of inputs that are written as text.
fn named(inputs: &str) -> Vec<(String, DType)> {
    let parts = super::conformance::split_top(inputs);
    let each = parts.iter().map(|part| {
        let (name, token) = part.split_once(':').expect("a named input");
        let word = token.split('[').next().unwrap_or_default().trim();
        (
            name.trim().to_owned(),
            DType::from_name(word).expect("a dtype"),
        )
    });
    each.collect()
}

#[test]
fn every_input_refuses_the_types_that_its_schema_does_not_name() {
    let registry = crate::standard_registry();
    for &(op, parameters, inputs) in ALL_OPERANDS {
        let schema = registry.op(op).and_then(|op| op.types()).expect("a schema");
        for (name, _) in named(inputs) {
            let possible = schema.possible(schema.input(&name).expect("a port"));
            for dtype in DType::ALL.into_iter().filter(|d| !possible.contains(d)) {
                refusal(op, parameters, &with_type(inputs, &name, dtype));
            }
        }
    }
}

#[test]
fn written_numbers_take_the_type_that_fits() {
    let dtype = |op: &str, parameters: &str, inputs: &str| {
        let signature = resolve(op, parameters, inputs);
        let signature = signature.unwrap_or_else(|e| panic!("{op}({parameters}): {e:?}"));
        signature.outputs[0].token.dtype
    };
    // The condition is bool, the values have the type of the other value.
    assert_eq!(
        dtype("NnWhere", "x: 1.5", "condition: bool[4], y: f32[4]"),
        DType::F32
    );
    assert_eq!(dtype("NnMatMul", "x: [[1, 2]]", "y: f16[2,3]"), DType::F16);
    assert_eq!(
        dtype("NnResize", "scales: [1.5, 2.0]", "x: i32[2,2]"),
        DType::I32
    );
    // A number that the type does not have is refused, not rounded.
    for (parameters, inputs) in [
        ("y: 0.5", "x: i32[4]"),
        ("y: 300", "x: u8[4]"),
        ("y: -1", "x: u8[4]"),
    ] {
        let error = resolve("NnAdd", parameters, inputs).expect_err("refused");
        assert!(error.to_string().contains("is read as"), "{error}");
    }
}

#[test]
fn sizes_and_ranks_that_panicked_are_refused() {
    let cases = [
        (
            "NnCausalConvWithState",
            "b: 0",
            "x: f32[1,2,8], w: f32[2,1,3]",
        ),
        ("NnConvTranspose", "b: 0", "x: f32[1,2,4], w: f32[2,3,2]"),
        ("NnSlice", "starts: [3], ends: [3]", "x: f32[8]"),
        ("NnTopK", "k: [0]", "x: f32[8]"),
        ("NnRelu", "", "x: f32[0]"),
        ("Window", "kind: hann", "x: f32[0]"),
        ("Window", "kind: hann", "x: f32[1073741823]"),
        ("OverlapAdd", "hop: 1", "x: f32[2,1000000000]"),
        ("NnPad", "pads: [1, 1], mode: reflect", "x: f32[1000000000]"),
        ("NnConv", "", "x: f32[1,1,1000000000], w: f32[1,1,3]"),
        ("NnHannWindow", "size: 1000000000", ""),
    ];
    for (op, parameters, inputs) in cases {
        let refused = resolve(op, parameters, inputs);
        assert!(
            refused.is_err(),
            "{op}({parameters}) of {inputs}: {refused:?}"
        );
    }
}

#[test]
fn nearest_elements_are_the_same_in_every_type() {
    let expected = computed_outputs("NnResize", "sizes: [4, 3]", "x: f32[2,3]");
    for dtype in ["f64", "f16", "bf16", "i8", "u8", "i16", "i32", "i64"] {
        let inputs = format!("x: {dtype}[2,3]");
        let got = computed_outputs("NnResize", "sizes: [4, 3]", &inputs);
        assert_eq!(got, expected, "{dtype}");
    }
}
