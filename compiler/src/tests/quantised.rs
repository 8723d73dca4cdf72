//! Quantised ONNX models made here: what the pass makes of them, and that it computes what the floats do.

use std::collections::BTreeMap;

use rten_onnx::onnx::{
    AttributeProto, DataType, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TypeProto, TypeProtoTensor, ValueInfoProto,
};
use zbmd_backends::interpret::Interpreter;
use zbmd_ir::Graph;

use crate::{CompileOptions, graph_of_onnx};

/// Nodes and constants of a model that is being made.
#[derive(Default)]
struct Maker {
    nodes: Vec<NodeProto>,
    tensors: Vec<TensorProto>,
    seed: u32,
    /// Whether activations are i8 and not u8.
    is_signed: bool,
}

/// Steps of the quantised tensors.
const SCALE: f32 = 0.04;

impl Maker {
    fn name(&self) -> String {
        format!("v{}", self.nodes.len() + self.tensors.len())
    }

    fn tensor(&mut self, data_type: DataType, dims: &[i64], raw: Vec<u8>) -> String {
        let name = self.name();
        self.tensors.push(TensorProto {
            name: Some(name.clone()),
            dims: dims.to_vec(),
            data_type: Some(data_type),
            raw_data: Some(raw.into()),
            ..Default::default()
        });
        name
    }

    fn floats(&mut self, dims: &[i64], numbers: &[f32]) -> String {
        let raw = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensor(DataType::FLOAT, dims, raw)
    }

    /// Small integers.
    fn noise(&mut self, count: i64, width: u32) -> Vec<i32> {
        let mut numbers = Vec::new();
        for _ in 0..count {
            self.seed = self
                .seed
                .wrapping_mul(1_664_525)
                .wrapping_add(1_013_904_223);
            numbers.push((self.seed >> 16) as i32 % (2 * width as i32 + 1) - width as i32);
        }
        numbers
    }

    fn node(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, &[i64])]) -> String {
        let name = self.name();
        let attribute = |(name, values): &(&str, &[i64])| AttributeProto {
            name: Some((*name).to_owned()),
            ints: if values.len() > 1 {
                values.to_vec()
            } else {
                Vec::new()
            },
            i: (values.len() == 1).then(|| values[0]),
            ..Default::default()
        };
        self.nodes.push(NodeProto {
            op_type: Some(op.into()),
            input: inputs.iter().map(|s| (*s).to_owned()).collect(),
            output: vec![name.clone()],
            attribute: attributes.iter().map(attribute).collect(),
            ..Default::default()
        });
        name
    }

    fn byte_type(&self) -> DataType {
        if self.is_signed {
            DataType::INT8
        } else {
            DataType::UINT8
        }
    }

    /// Floats as bytes and back, with this step; the zero point is 100 of u8.
    fn quantised(&mut self, floats: &str, scale: f32) -> String {
        let step = self.floats(&[], &[scale]);
        let zero = if self.is_signed { 228 } else { 100 };
        let zero = self.tensor(self.byte_type(), &[], vec![zero]);
        let bytes = self.node("QuantizeLinear", &[floats, &step, &zero], &[]);
        self.node("DequantizeLinear", &[&bytes, &step, &zero], &[])
    }

    /// Weights of i8, with a step for each of the first dimension, or one for all.
    fn weights(&mut self, dims: &[i64], per_channel: bool) -> String {
        let numbers = self.noise(dims.iter().product(), 127);
        let raw = numbers.iter().map(|&number| number as u8).collect();
        let bytes = self.tensor(DataType::INT8, dims, raw);
        let count = if per_channel { dims[0] } else { 1 };
        let steps: Vec<f32> = (0..count).map(|i| 0.002 + 0.0001 * i as f32).collect();
        let shape: &[i64] = if per_channel { &[count] } else { &[] };
        let scale = self.floats(shape, &steps);
        let zero = self.tensor(DataType::INT8, shape, vec![0; count as usize]);
        self.node(
            "DequantizeLinear",
            &[&bytes, &scale, &zero],
            &[("axis", &[0])],
        )
    }

    /// A bias of i32, in steps of the sums.
    fn bias(&mut self, count: i64, x_scale: f32) -> String {
        let numbers = self.noise(count, 3000);
        let raw = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
        let ints = self.tensor(DataType::INT32, &[count], raw);
        let steps: Vec<f32> = (0..count)
            .map(|i| x_scale * (0.002 + 0.0001 * i as f32))
            .collect();
        let scale = self.floats(&[count], &steps);
        self.node("DequantizeLinear", &[&ints, &scale], &[("axis", &[0])])
    }

    /// The model with an input `x` of these dimensions.
    fn finish(self, dims: &[i64], output: &str) -> Vec<u8> {
        let shape = TensorShapeProto {
            dim: dims
                .iter()
                .map(|&size| Dimension {
                    dim_value: Some(size),
                    ..Default::default()
                })
                .collect(),
        };
        let info = |name: &str| ValueInfoProto {
            name: Some(name.into()),
            r#type: Some(TypeProto {
                tensor_type: Some(TypeProtoTensor {
                    elem_type: Some(DataType::FLOAT),
                    shape: Some(shape.clone()),
                }),
                ..Default::default()
            }),
        };
        let model = ModelProto {
            graph: Some(GraphProto {
                input: vec![info("x")],
                output: vec![info(output)],
                node: self.nodes,
                initializer: self.tensors,
                ..Default::default()
            }),
            opset_import: vec![OperatorSetIdProto {
                version: Some(18),
                ..Default::default()
            }],
            ir_version: Some(9),
            ..Default::default()
        };
        model.write_buf().expect("memory")
    }
}

/// A small network of all that the pass knows.
fn network(is_signed: bool) -> Vec<u8> {
    let mut m = Maker {
        is_signed,
        ..Maker::default()
    };
    let x = m.quantised("x", SCALE);

    let weights = m.weights(&[16, 3, 3, 3], true);
    let bias = m.bias(16, SCALE);
    let conv = m.node("Conv", &[&x, &weights, &bias], &[("pads", &[1, 1, 1, 1])]);
    let relu = m.node("Relu", &[&conv], &[]);
    let first = m.quantised(&relu, SCALE);

    let weights = m.weights(&[16, 1, 3, 3], false);
    let attributes: &[(&str, &[i64])] = &[("pads", &[1, 1, 1, 1]), ("group", &[16])];
    let conv = m.node("Conv", &[&first, &weights], attributes);
    let [low, high] = [m.floats(&[], &[0.0]), m.floats(&[], &[1.5])];
    let clip = m.node("Clip", &[&conv, &low, &high], &[]);
    let second = m.quantised(&clip, SCALE);

    let weights = m.weights(&[16, 16, 1, 1], true);
    let conv = m.node("Conv", &[&second, &weights], &[]);
    let third = m.quantised(&conv, SCALE / 2.0);
    let sum = m.node("Add", &[&first, &third], &[]);
    let sum = m.quantised(&sum, SCALE);
    let pool = m.node(
        "MaxPool",
        &[&sum],
        &[("kernel_shape", &[2, 2]), ("strides", &[2, 2])],
    );
    let pool = m.quantised(&pool, SCALE);
    let gate = m.node("Sigmoid", &[&pool], &[]);
    let gate = m.quantised(&gate, 1.0 / 128.0);
    let product = m.node("Mul", &[&pool, &gate], &[]);
    let product = m.quantised(&product, SCALE);
    let joined = m.node("Concat", &[&product, &gate], &[("axis", &[1])]);
    let joined = m.quantised(&joined, SCALE / 1.5);

    let mean = m.node("GlobalAveragePool", &[&joined], &[]);
    let mean = m.quantised(&mean, SCALE / 2.0);
    let flat = m.node("Flatten", &[&mean], &[]);
    let weights = m.weights(&[10, 32], true);
    let bias = m.floats(
        &[10],
        &[0.25, -0.5, 0.0, 1.0, -1.0, 0.1, 0.2, 0.3, 0.4, 0.5],
    );
    let result = m.node("Gemm", &[&flat, &weights, &bias], &[("transB", &[1])]);
    let result = m.quantised(&result, SCALE);
    m.finish(&[1, 3, 8, 8], &result)
}

/// The graph of a model without these passes, and its output.
fn run(model: &[u8], without: &[&str]) -> (Graph, Vec<f32>) {
    let mut options = CompileOptions::default();
    options.onnx.without = without.iter().map(|name| (*name).to_owned()).collect();
    let (graph, blobs) = graph_of_onnx("net", model, &options).unwrap_or_else(|e| panic!("{e}"));
    let registry = zbmd_backends::standard_registry();
    let input: Vec<u8> = (0..192)
        .flat_map(|i| (((i * 37) % 101) as f32 * 0.05 - 2.5).to_le_bytes())
        .collect();
    let mut interpreter = Interpreter::new(&graph, &blobs, &registry).expect("kernels");
    let outcome = interpreter.run(&[("x".to_owned(), input)].into(), Some(1));
    let outputs = outcome.expect("a run").outputs;
    let bytes = outputs.into_values().next().expect("an output");
    let floats = bytes
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")));
    (graph, floats.collect())
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
fn what_is_between_quantised_tensors_is_computed_in_integers() {
    for is_signed in [false, true] {
        let model = network(is_signed);
        let (floats, want) = run(&model, &["quantised"]);
        let (integers, found) = run(&model, &[]);
        assert_eq!(ops(&floats).get("NnConvChannelsLast"), Some(&3));
        let ops = ops(&integers);
        for (op, count) in [
            ("NnQLinearConvChannelsLast", 3),
            ("NnQLinearMul", 1),
            ("NnMaxPoolChannelsLast", 1),
            ("NnQLinearGlobalAveragePool", 1),
            ("NnQLinearMatMul", 1),
            ("NnQuantizeLinear", 1),
            ("NnDequantizeLinear", 1),
            ("NnTranspose", 1),
        ] {
            assert_eq!(ops.get(op), Some(&count), "{op} in {ops:?}");
        }

        // A convolution adds what is added to its result.
        assert_eq!(ops.get("NnQLinearAdd"), None, "{ops:?}");
        let (apart, bytes_apart) = run(&model, &["quantised-residual"]);
        assert_eq!(self::ops(&apart).get("NnQLinearAdd"), Some(&1));
        assert_eq!(found, bytes_apart);

        // A step now and then, where the floats were next to a tie.
        let spread = want.iter().fold(0.0_f32, |spread, v| spread.max(v.abs()));
        assert!(spread > 10.0 * SCALE, "{want:?}");
        for (found, want) in found.iter().zip(&want) {
            assert!((found - want).abs() < 2.5 * SCALE, "{found} and {want}");
        }

        // Both orders of channels are the same integers.
        let (_, first) = run(&model, &["channels-last"]);
        assert_eq!(found, first);
    }
}

#[test]
fn quantised_models_of_either_sign_are_the_same_integers() {
    let (_, unsigned) = run(&network(false), &[]);
    let (_, signed) = run(&network(true), &[]);
    assert_eq!(unsigned, signed);
}

/// GELU as exporters write it, and a sum that is a `Sum`: what has one tensor becomes tables, and neighbouring tables one.
fn activation() -> Vec<u8> {
    let mut m = Maker::default();
    let x = m.quantised("x", SCALE);
    let [root, one, half] = [
        m.floats(&[], &[std::f32::consts::SQRT_2]),
        m.floats(&[], &[1.0]),
        m.floats(&[], &[0.5]),
    ];
    let quotient = m.node("Div", &[&x, &root], &[]);
    let erf = m.node("Erf", &[&quotient], &[]);
    let erf = m.quantised(&erf, 1.0 / 64.0);
    let one = m.quantised(&one, 1.0 / 64.0);
    let shifted = m.node("Add", &[&one, &erf], &[]);
    let shifted = m.quantised(&shifted, 1.0 / 64.0);
    let product = m.node("Mul", &[&x, &shifted], &[]);
    let product = m.quantised(&product, 2.0 * SCALE);
    let gelu = m.node("Mul", &[&product, &half], &[]);
    let gelu = m.quantised(&gelu, SCALE);
    let sum = m.node("Sum", &[&x, &gelu], &[]);
    let result = m.quantised(&sum, 2.0 * SCALE);
    m.finish(&[1, 3, 8, 8], &result)
}

#[test]
fn functions_of_one_quantised_tensor_become_tables() {
    let (_, want) = run(&activation(), &["quantised"]);
    let (integers, found) = run(&activation(), &[]);
    let ops = ops(&integers);
    let counts = [
        "NnByteLookup",
        "NnQLinearMul",
        "NnQLinearAdd",
        "NnErf",
        "NnAdd",
    ]
    .map(|op| ops.get(op).copied().unwrap_or(0));
    assert_eq!(counts, [2, 1, 1, 0, 0], "{ops:?}");
    for (found, want) in found.iter().zip(&want) {
        assert!((found - want).abs() < 2.5 * SCALE, "{found} and {want}");
    }
}

/// Two convolutions with a shuffle of channels between them, each step of which is quantised.
fn shuffled() -> Vec<u8> {
    let mut m = Maker::default();
    let x = m.quantised("x", SCALE);
    let weights = m.weights(&[16, 3, 3, 3], true);
    let first = m.node("Conv", &[&x, &weights], &[("pads", &[1, 1, 1, 1])]);
    let first = m.quantised(&first, SCALE);

    let shape = |m: &mut Maker, dims: &[i64]| {
        let raw = dims.iter().flat_map(|size| size.to_le_bytes()).collect();
        m.tensor(DataType::INT64, &[dims.len() as i64], raw)
    };
    let groups = shape(&mut m, &[1, 4, 4, 8, 8]);
    let groups = m.node("Reshape", &[&first, &groups], &[]);
    let groups = m.quantised(&groups, SCALE);
    let turned = m.node("Transpose", &[&groups], &[("perm", &[0, 2, 1, 3, 4])]);
    let turned = m.quantised(&turned, SCALE);
    let image = shape(&mut m, &[1, 16, 8, 8]);
    let image = m.node("Reshape", &[&turned, &image], &[]);
    let image = m.quantised(&image, SCALE);

    let weights = m.weights(&[3, 16, 1, 1], true);
    let result = m.node("Conv", &[&image, &weights], &[]);
    let result = m.quantised(&result, SCALE);
    m.finish(&[1, 3, 8, 8], &result)
}

#[test]
fn quantised_channels_are_shuffled_where_they_come_last() {
    let (graph, found) = run(&shuffled(), &[]);
    // The image on its way in, the shuffle, and the result on its way out.
    assert_eq!(
        ops(&graph).get("NnTranspose"),
        Some(&3),
        "{:?}",
        ops(&graph)
    );
    let (_, first) = run(&shuffled(), &["channels-last"]);
    assert_eq!(found, first);
}
