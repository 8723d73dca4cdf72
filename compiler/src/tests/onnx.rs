//! ONNX models made here: what is refused and why, hostile files, round trips through text.

use rten_onnx::onnx::{
    AttributeProto, DataLocation, DataType, Dimension, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TypeProto,
    TypeProtoTensor, ValueInfoProto,
};

use crate::onnx::{ImportOptions, check_onnx_bytes, to_text};
use crate::{CompileOptions, MachineChoice, compile_file, compile_onnx, graph_of_onnx};

pub(super) fn info(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dim = |&d: &i64| match d {
        -1 => Dimension {
            dim_param: Some("n".into()),
            ..Default::default()
        },
        d => Dimension {
            dim_value: Some(d),
            ..Default::default()
        },
    };
    let shape = TensorShapeProto {
        dim: dims.iter().map(dim).collect(),
    };
    let tensor_type = Some(TypeProtoTensor {
        elem_type: Some(DataType::FLOAT),
        shape: Some(shape),
    });
    ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto {
            tensor_type,
            ..Default::default()
        }),
    }
}

pub(super) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|s| (*s).to_owned()).collect(),
        output: outputs.iter().map(|s| (*s).to_owned()).collect(),
        ..Default::default()
    }
}

fn ints(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: vec![values.len() as i64],
        data_type: Some(DataType::INT64),
        int64_data: values.to_vec(),
        ..Default::default()
    }
}

pub(super) fn model(
    nodes: Vec<NodeProto>,
    initializer: Vec<TensorProto>,
    inputs: Vec<ValueInfoProto>,
    outputs: &[&str],
) -> ModelProto {
    let output = outputs.iter().map(|o| info(o, &[1])).collect();
    let graph = GraphProto {
        node: nodes,
        initializer,
        input: inputs,
        output,
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto {
        version: Some(18),
        ..Default::default()
    }];
    ModelProto {
        graph: Some(graph),
        opset_import,
        ir_version: Some(9),
        ..Default::default()
    }
}

pub(super) fn bytes(model: &ModelProto) -> Vec<u8> {
    model.write_buf().expect("memory")
}

/// `CODE message` of a refusal.
fn refusal(model: &ModelProto, options: &ImportOptions) -> String {
    match check_onnx_bytes(&bytes(model), &zbmd_backends::standard_registry(), options) {
        Ok(()) => "fine".to_owned(),
        Err(error) => format!("{} {error}; {}", error.code(), error.help()),
    }
}

#[test]
fn refusals_name_the_node_the_reason_and_the_way_round() {
    let external = |location: &str| {
        let entry = StringStringEntryProto {
            key: Some("location".into()),
            value: Some(location.into()),
        };
        TensorProto {
            name: Some("w".into()),
            dims: vec![3],
            data_type: Some(DataType::FLOAT),
            external_data: vec![entry],
            data_location: Some(DataLocation::EXTERNAL),
            ..Default::default()
        }
    };
    let add = || vec![node("Add", &["x", "w"], &["y"])];
    let x = || vec![info("x", &[3])];
    let branch = |name: &str| AttributeProto {
        name: Some(name.into()),
        g: Some(GraphProto::default()),
        ..Default::default()
    };
    let mut choice = node("If", &["x"], &["y"]);
    choice.attribute = vec![branch("then_branch"), branch("else_branch")];
    let cases: Vec<(&str, ModelProto)> = vec![
        (
            "a circle",
            model(
                vec![
                    node("Add", &["x", "b"], &["a"]),
                    node("Relu", &["a"], &["b"]),
                ],
                vec![],
                x(),
                &["a"],
            ),
        ),
        (
            "a value that nothing makes",
            model(add(), vec![], x(), &["y"]),
        ),
        (
            "an output that nothing makes",
            model(vec![], vec![], x(), &["y"]),
        ),
        (
            "made twice",
            model(
                vec![node("Relu", &["x"], &["y"]), node("Abs", &["x"], &["y"])],
                vec![],
                x(),
                &["y"],
            ),
        ),
        (
            "an open dimension",
            model(
                add(),
                vec![],
                vec![info("x", &[-1]), info("w", &[3])],
                &["y"],
            ),
        ),
        (
            "an absurd dimension",
            model(
                add(),
                vec![],
                vec![info("x", &[1 << 40]), info("w", &[3])],
                &["y"],
            ),
        ),
        (
            "absurdly many elements",
            model(
                add(),
                vec![],
                vec![info("x", &[1 << 30, 1 << 30]), info("w", &[3])],
                &["y"],
            ),
        ),
        (
            "a negative dimension",
            model(
                add(),
                vec![],
                vec![info("x", &[-7]), info("w", &[3])],
                &["y"],
            ),
        ),
        (
            "data in the folder above",
            model(add(), vec![external("../w.bin")], x(), &["y"]),
        ),
        (
            "data at the root",
            model(add(), vec![external("/etc/passwd")], x(), &["y"]),
        ),
        (
            "data without a folder",
            model(add(), vec![external("w.bin")], x(), &["y"]),
        ),
        (
            "too little data",
            model(
                add(),
                vec![TensorProto {
                    dims: vec![4],
                    ..ints("w", &[1, 2, 3])
                }],
                x(),
                &["y"],
            ),
        ),
        (
            "a loop",
            model(vec![node("Loop", &["x"], &["y"])], vec![], x(), &["y"]),
        ),
        (
            "random numbers",
            model(
                vec![node("RandomNormalLike", &["x"], &["y"])],
                vec![],
                x(),
                &["y"],
            ),
        ),
        (
            "an unknown operator",
            model(
                vec![node("Frobnicate", &["x"], &["y"])],
                vec![],
                x(),
                &["y"],
            ),
        ),
        ("a branch on data", model(vec![choice], vec![], x(), &["y"])),
        (
            "a shape from data",
            model(
                vec![node("Reshape", &["x", "s"], &["y"])],
                vec![],
                vec![info("x", &[3]), info("s", &[1])],
                &["y"],
            ),
        ),
        (
            "an impossible shape",
            model(
                vec![node("Reshape", &["x", "s"], &["y"])],
                vec![ints("s", &[2])],
                x(),
                &["y"],
            ),
        ),
        (
            "an absurd result",
            model(
                vec![node("Expand", &["x", "s"], &["y"])],
                vec![ints("s", &[1 << 31, 1 << 20, 3])],
                x(),
                &["y"],
            ),
        ),
        (
            "an absurd constant",
            model(
                vec![node("ConstantOfShape", &["s"], &["y"])],
                vec![ints("s", &[1 << 31])],
                x(),
                &["y"],
            ),
        ),
        (
            "an absurd pad",
            model(
                vec![node("Pad", &["x", "s"], &["y"])],
                vec![ints("s", &[i64::MAX, i64::MAX])],
                x(),
                &["y"],
            ),
        ),
    ];
    let mut text = String::new();
    for (what, model) in cases {
        text += &format!("{what}\n  {}\n", refusal(&model, &ImportOptions::default()));
    }
    let fine = model(vec![node("Relu", &["x"], &["y"])], vec![], x(), &["y"]);
    for (what, options) in [
        (
            "no such input",
            ImportOptions {
                state: [("z".into(), "y".into())].into(),
                ..Default::default()
            },
        ),
        (
            "no such output",
            ImportOptions {
                state: [("x".into(), "z".into())].into(),
                ..Default::default()
            },
        ),
        (
            "no such dimension",
            ImportOptions {
                dims: [("batch".into(), 1)].into(),
                ..Default::default()
            },
        ),
        (
            "no such pass",
            ImportOptions {
                without: vec!["gleu".into()],
                ..Default::default()
            },
        ),
    ] {
        text += &format!("{what}\n  {}\n", refusal(&fine, &options));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn damaged_files_end_in_an_error_or_a_graph() {
    let conv = {
        let mut conv = node("Conv", &["x", "w"], &["c"]);
        conv.attribute = vec![AttributeProto {
            name: Some("pads".into()),
            ints: vec![1, 1],
            ..Default::default()
        }];
        conv
    };
    let weights = TensorProto {
        name: Some("w".into()),
        dims: vec![2, 1, 3],
        data_type: Some(DataType::FLOAT),
        float_data: vec![1.0; 6],
        ..Default::default()
    };
    let nodes = vec![
        conv,
        node("Reshape", &["c", "s"], &["r"]),
        node("Softmax", &["r"], &["y"]),
    ];
    let whole = bytes(&model(
        nodes,
        vec![weights, ints("s", &[2, -1])],
        vec![info("x", &[1, 1, 8])],
        &["y"],
    ));
    let registry = zbmd_backends::standard_registry();
    let options = ImportOptions::default();
    assert_eq!(check_onnx_bytes(&whole, &registry, &options), Ok(()));
    // Numbers that are cut off, or never end, in metadata, a set of operators, a dimension, a place of data.
    let within = |field: u8, inner: &[u8]| [&[field << 3 | 2, inner.len() as u8], inner].concat();
    for number in [&[0x80][..], &[0x80; 11]] {
        let value = within(1, &within(2, &within(1, number)));
        for more in [
            within(14, number),
            within(8, number),
            within(7, &within(11, &within(2, &value))),
            within(7, &within(5, &within(13, number))),
        ] {
            let damaged = [whole.clone(), more].concat();
            assert!(check_onnx_bytes(&damaged, &registry, &options).is_err());
        }
    }
    let mut state = 1_u64;
    let mut random = |n: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    for _ in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            bytes[at] = random(256) as u8;
        }
        if random(8) == 0 {
            bytes.truncate(random(whole.len()));
        }
        let _ = check_onnx_bytes(&bytes, &registry, &options);
    }
}

#[test]
fn imported_text_compiles_to_the_same_outputs() {
    let dir = tempfile::tempdir().expect("a folder");
    let weights = TensorProto {
        name: Some("w".into()),
        dims: vec![3, 3],
        data_type: Some(DataType::FLOAT),
        float_data: (0..9).map(|v| v as f32 * 0.25).collect(),
        ..Default::default()
    };
    let nodes = vec![
        node("MatMul", &["h", "w"], &["m"]),
        node("Add", &["m", "x"], &["s"]),
        node("Tanh", &["s"], &["h2"]),
    ];
    let made = model(
        nodes,
        vec![weights],
        vec![info("x", &[1, 3]), info("h", &[1, 3])],
        &["h2", "s"],
    );
    let path = dir.path().join("cell.onnx");
    std::fs::write(&path, bytes(&made)).expect("a file");
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        onnx: ImportOptions {
            state: [("h".into(), "h2".into())].into(),
            ..Default::default()
        },
        ..CompileOptions::default()
    };
    let direct = compile_file(&path, &options)
        .unwrap_or_else(|e| panic!("{e}"))
        .program;
    let text = to_text(&path, "cell.safetensors", &options.registry, &options.onnx).expect("text");
    let store = crate::onnx::store(&text).expect("a store");
    std::fs::write(dir.path().join("cell.safetensors"), store).expect("a file");
    std::fs::write(dir.path().join("cell.ron"), &text.model).expect("a file");
    let again = compile_file(
        dir.path().join("cell.ron"),
        &CompileOptions {
            machine: MachineChoice::Uniform(1),
            ..CompileOptions::default()
        },
    );
    let again = again
        .unwrap_or_else(|e| panic!("{}\n{e}", text.model))
        .program;
    let input: Vec<u8> = (0..15)
        .flat_map(|v| (v as f32 * 0.1).to_le_bytes())
        .collect();
    let run = |program: &zbmd_ir::Program| {
        let registry = zbmd_backends::standard_registry();
        let mut interpreter =
            zbmd_backends::interpret::Interpreter::new(&program.graph, &program.blobs, &registry)
                .expect("kernels");
        interpreter
            .run(&[("x".to_owned(), input.clone())].into(), None)
            .expect("a run")
            .outputs
    };
    let (a, b) = (run(&direct), run(&again));
    assert_eq!(a["s"].len(), 60);
    assert_eq!(a, b);
    let graph = graph_of_onnx("cell", &bytes(&made), &CompileOptions::default())
        .expect("a graph")
        .0;
    assert_eq!(graph.sources().count(), 2);
}

/// A layer over samples: `y = softmax(x w)`, with an open first dimension, and how `x` is declared.
fn layer(x: &[i64]) -> ModelProto {
    let weights = TensorProto {
        name: Some("w".into()),
        dims: vec![3, 4],
        data_type: Some(DataType::FLOAT),
        float_data: (0..12).map(|v| v as f32 / 7.0 - 0.5).collect(),
        ..Default::default()
    };
    let nodes = vec![
        node("MatMul", &["x", "w"], &["m"]),
        node("Softmax", &["m"], &["y"]),
    ];
    model(nodes, vec![weights], vec![info("x", x)], &["y"])
}

fn bucket_options(buckets: &[u32]) -> CompileOptions {
    CompileOptions {
        machine: MachineChoice::Uniform(1),
        buckets: buckets.to_vec(),
        ..CompileOptions::default()
    }
}

/// What a program makes of samples: the bytes of `y`.
fn run_layer(program: &zbmd_ir::Program, samples: usize) -> Vec<u8> {
    let numbers = (0..3 * samples).map(|v| (v as f32 * 0.37).sin());
    let input: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
    let registry = zbmd_backends::standard_registry();
    let interpreter =
        zbmd_backends::interpret::Interpreter::new(&program.graph, &program.blobs, &registry);
    let run = interpreter
        .expect("kernels")
        .run(&[("x".to_owned(), input)].into(), None);
    run.expect("a run").outputs.remove("y").expect("a sink")
}

#[test]
fn buckets_are_modes_over_the_same_samples() {
    for first_dim in [-1, 1] {
        let file = bytes(&layer(&[first_dim, 3]));
        let compiled = compile_onnx("layer", &file, &bucket_options(&[1, 2, 4]));
        let compiled = compiled.unwrap_or_else(|refused| panic!("{refused}"));
        let modes = compiled.modes.expect("modes").verified;
        assert_eq!(modes.names(), ["batch-1", "batch-2", "batch-4"]);
        assert_eq!(modes.changes().len(), 6);
        let of_one = run_layer(&modes.programs()[0], 8);
        assert_eq!(of_one.len(), 8 * 4 * 4);

        for (program, batch) in modes.programs().iter().zip([1u32, 2, 4]) {
            let q = zbmd_ir::verify::check_graph(&program.graph, &program.blobs).expect("valid");
            for (id, stream) in program.graph.sources().chain(program.graph.sinks()) {
                let ports = stream.inputs.iter().map(|port| (&port.token, port.rate));
                let outputs = stream.outputs.iter().map(|port| (&port.token, port.rate));
                let (token, rate) = ports.chain(outputs).next().expect("a port");
                assert_eq!(token.shape[0], 1, "a token is one sample");
                assert_eq!(rate * q[id], u64::from(batch), "in each iteration a batch");
            }

            // As the model compiled for this batch alone, of which a token is a batch.
            let mut alone = bucket_options(&[]);
            alone.onnx.dims.insert("x.0".to_owned(), batch);
            let alone = compile_onnx("layer", &file, &alone)
                .expect("it compiles alone")
                .program;
            assert_eq!(run_layer(program, 8), run_layer(&alone, 8), "batch {batch}");
            assert_eq!(run_layer(program, 8), of_one);
        }

        // One of them alone is no mode.
        let mut options = bucket_options(&[1, 2, 4]);
        options.mode = Some("batch-4".to_owned());
        let one = compile_onnx("layer", &file, &options).expect("it compiles");
        assert!(one.modes.is_none());
        assert_eq!(one.program.graph, modes.programs()[2].graph);
    }
}

#[test]
fn shapes_of_one_sample_become_those_of_the_batch() {
    let shape = |name: &str, sizes: &[i64]| TensorProto {
        name: Some(name.into()),
        dims: vec![sizes.len() as i64],
        data_type: Some(DataType::INT64),
        int64_data: sizes.to_vec(),
        ..Default::default()
    };
    // Exporters that know the batch to be 1 write it into shapes, alone or with a size that is left open.
    for sizes in [[1, 2, 3], [1, -1, 3], [1, 2, -1], [-1, 2, 3]] {
        let mut file = layer(&[1, 6]);
        let graph = file.graph.as_mut().expect("a graph");
        graph.initializer.push(shape("parts", &sizes));
        graph.node[0].input[0] = "parted".to_owned();
        graph
            .node
            .insert(0, node("Reshape", &["x", "parts"], &["parted"]));
        let compiled = compile_onnx("layer", &bytes(&file), &bucket_options(&[1, 4]));
        let compiled = compiled.unwrap_or_else(|refused| panic!("{sizes:?}: {refused}"));
        let modes = compiled.modes.expect("modes").verified;
        let of_one = run_layer(&modes.programs()[0], 16);
        assert_eq!(of_one.len(), 8 * 2 * 4 * 4);
        assert_eq!(run_layer(&modes.programs()[1], 16), of_one, "{sizes:?}");
    }

    // Where another dimension is in front of the batch, samples do not lie one behind the other.
    let mut file = layer(&[1, 6]);
    let graph = file.graph.as_mut().expect("a graph");
    graph.initializer.push(shape("parts", &[1, 2, 3]));
    graph.node[0].input[0] = "parted".to_owned();
    graph
        .node
        .insert(0, node("Reshape", &["turned", "parts"], &["parted"]));
    graph.node.insert(0, node("Transpose", &["x"], &["turned"]));
    for batch in [4, 6] {
        let refused = compile_onnx("layer", &bytes(&file), &bucket_options(&[1, batch]));
        let said = refused.expect_err("other samples in each row").to_string();
        assert!(said.contains("which [1, 2, 3] cannot hold"), "{said}");
    }
}

#[test]
fn buckets_that_cannot_be_are_refused() {
    let fine = layer(&[-1, 3]);
    let fixed = layer(&[5, 3]);
    let summed = {
        let mut summed = layer(&[-1, 3]);
        let graph = summed.graph.as_mut().expect("a graph");
        graph.node.push(node("ReduceSum", &["y"], &["z"]));
        graph.output.push(info("z", &[1]));
        summed
    };
    let many: Vec<u32> = (1..=65).collect();
    for (model, buckets, mode, expected) in [
        (&fine, &[2, 2][..], None, "batches of 2 are asked for twice"),
        (&fine, &[1, 0][..], None, "a batch has 0 samples"),
        (&fine, &many[..], None, "at most 64 can be modes"),
        (
            &fine,
            &[1, 2][..],
            Some("batch-3"),
            "there is no mode `batch-3`",
        ),
        (
            &fixed,
            &[1, 2][..],
            None,
            "its first dimension is not the batch",
        ),
        (
            &summed,
            &[2, 4][..],
            None,
            "output `z` is f32[1,1] in a batch of 2",
        ),
    ] {
        let mut options = bucket_options(buckets);
        options.mode = mode.map(str::to_owned);
        let refused = compile_onnx("layer", &bytes(model), &options).expect_err(expected);
        let said = refused.to_string();
        assert!(said.contains(expected), "{said}");
    }

    let mut options = bucket_options(&[1, 2]);
    options.onnx.state.insert("x".to_owned(), "y".to_owned());
    let refused = compile_onnx("layer", &bytes(&fine), &options).expect_err("a state");
    assert!(refused.to_string().contains("state"), "{refused}");
    let refused = crate::compile_str("model.ron", "Model()", "", &bucket_options(&[1, 2]));
    let said = refused.expect_err("no ONNX model").to_string();
    assert!(said.contains("modes: {"), "{said}");
}
