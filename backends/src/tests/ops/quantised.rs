//! Packed kernels of bytes beside plain loops: the same bytes, whatever the vectors.

use std::collections::BTreeMap;

use bytes::Bytes;
use zbmd_ir::{Actor, BlobId, DType, Params, Role, TiVec, TokenType, Value};

use crate::call::Call;
use crate::op::ResolveCx;
use zbmd_ops_nn::narrow;

/// Widest vectors in bits: plain lanes, AVX2, AVX2 with VNNI, AVX-512, and tiles; where the processor has them.
const WIDTHS: [usize; 5] = [1, 256, 384, 512, 8192];

/// A tensor of a test.
#[derive(Clone)]
struct Tensor {
    token: TokenType,
    bytes: Vec<u8>,
}

impl Tensor {
    fn of(dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Self {
        let dims: Vec<u32> = shape.iter().map(|&dim| dim as u32).collect();
        let token = TokenType::new(dtype, dims);
        assert_eq!(token.bytes() as usize, bytes.len());
        Self { token, bytes }
    }

    fn floats(shape: &[usize], numbers: &[f32]) -> Self {
        let bytes = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::of(DType::F32, shape, bytes)
    }

    fn ints(shape: &[usize], numbers: &[i32]) -> Self {
        let bytes = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::of(DType::I32, shape, bytes)
    }

    /// Bytes over the whole range.
    fn noise(dtype: DType, shape: &[usize], seed: u32) -> Self {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
        let bytes = (0..shape.iter().product::<usize>())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        Self::of(dtype, shape, bytes)
    }

    /// [n, c, h, w] as [n, h, w, c].
    fn channels_last(&self) -> Self {
        let [n, c, h, w] = self.shape();
        let mut bytes = Vec::new();
        for image in 0..n {
            for pixel in 0..h * w {
                bytes.extend(
                    (0..c).map(|channel| self.bytes[(image * c + channel) * h * w + pixel]),
                );
            }
        }
        Self::of(self.token.dtype, &[n, h, w, c], bytes)
    }

    fn shape(&self) -> [usize; 4] {
        std::array::from_fn(|i| self.token.shape[i] as usize)
    }
}

/// Operands of an op: constants, or ports.
struct Case {
    op: &'static str,
    params: Params,
    constants: Vec<(&'static str, Tensor)>,
    ports: Vec<(&'static str, Tensor)>,
}

impl Case {
    /// The result, which is the same in all variants, with all vectors, and where it is written over an operand.
    fn run(&self) -> Tensor {
        let registry = crate::standard_registry();
        let mut params = self.params.clone();
        let mut blobs: TiVec<BlobId, Bytes> = TiVec::new();
        for (name, tensor) in &self.constants {
            let blob = blobs.push_and_get_key(Bytes::from(tensor.bytes.clone()));
            let value = Value::Tensor(blob, tensor.token.clone());
            params.insert((*name).to_owned(), value);
        }
        let ports = self.ports.iter();
        let connected: Vec<String> = ports.clone().map(|port| port.0.to_owned()).collect();
        let types: BTreeMap<String, TokenType> = ports
            .map(|(name, tensor)| ((*name).to_owned(), tensor.token.clone()))
            .collect();
        let cx = ResolveCx {
            params: &params,
            connected: &connected,
            types: &types,
            blobs: &blobs,
        };
        let signature = registry.resolve(self.op, &cx).expect("it is taken");
        let actor = Actor {
            name: "a".into(),
            role: Role::Compute,
            op: self.op.into(),
            params,
            inputs: signature.inputs,
            outputs: signature.outputs,
            state: Vec::new(),
            in_place: Vec::new(),
        };

        let mut actors = vec![actor.clone()];
        if let Some(packing) = registry.packing(&actor, &blobs) {
            let blob = blobs.push_and_get_key(packing.weights.clone());
            let mut packed = actor.clone();
            packing.put(&mut packed.params, blob);
            actors.push(packed);
        }
        let mut results = Vec::new();
        for actor in &actors {
            let mut names: Vec<Option<String>> = vec![None];
            let variants = registry.variants(actor, &blobs);
            names.extend(variants.iter().map(|name| Some(name.to_string())));
            for name in names {
                let kernel = registry
                    .kernel_in(actor, &blobs, name.as_deref())
                    .expect("a kernel");
                for width in WIDTHS.into_iter().filter(|_| crate::team::cores() == 1) {
                    let mut call = Call::new(actor, kernel.scratch_bytes(), 1);
                    for (i, port) in actor.inputs.iter().enumerate() {
                        let given = self.ports.iter().find(|(name, _)| *name == port.name);
                        let (_, tensor) = given.expect("a port");
                        call.input(i).copy_from_slice(&tensor.bytes);
                    }
                    narrow::with(width, || call.run(&*kernel)).expect("it runs");
                    results.push(call.output(0).to_vec());
                    for pair in registry.in_place(actor, &blobs) {
                        narrow::with(width, || call.run_over(&*kernel, &[pair])).expect("it runs");
                        results.push(call.output(0).to_vec());
                    }
                }
            }
        }
        for result in &results {
            assert!(
                *result == results[0],
                "{} by other vectors, or over an operand",
                self.op
            );
        }
        Tensor {
            token: actor.outputs[0].token.clone(),
            bytes: results.swap_remove(0),
        }
    }
}

fn list(values: &[i64]) -> Value {
    Value::List(values.iter().map(|&v| Value::Int(v)).collect())
}

/// Filters for so many channels, each seeing those of its group.
struct ConvCase {
    channels: usize,
    filters: usize,
    groups: usize,
    size: [usize; 2],
    kernel: [usize; 2],
    stride: i64,
    dilation: i64,
    pad: i64,
    input: DType,
    weights: DType,
    /// Whether each filter has a scale of its own.
    per_channel: bool,
}

/// A zero point of one byte.
fn zero(dtype: DType, value: u8) -> Tensor {
    Tensor::of(dtype, &[], vec![value])
}

impl ConvCase {
    /// The convolution with channels first, its scale of the input a port: plain loops; and with channels last.
    fn check(&self) {
        let [height, width] = self.size;
        let [kernel_height, kernel_width] = self.kernel;
        let image = Tensor::noise(self.input, &[2, self.channels, height, width], 1);
        let group_channels = self.channels / self.groups;
        let filter_shape = [self.filters, group_channels, kernel_height, kernel_width];
        let weights = Tensor::noise(self.weights, &filter_shape, 2);
        let scale_count = if self.per_channel { self.filters } else { 1 };
        let scales: Vec<f32> = (0..scale_count)
            .map(|i| 0.001 + 0.0003 * i as f32)
            .collect();
        let zeros: Vec<u8> = (0..scale_count).map(|i| 3 * i as u8).collect();
        let bias: Vec<i32> = (0..self.filters as i32).map(|i| 900 * i - 4000).collect();
        let params: Params = [
            ("group", Value::Int(self.groups as i64)),
            ("strides", list(&[self.stride; 2])),
            ("dilations", list(&[self.dilation; 2])),
            ("pads", list(&[self.pad; 4])),
            ("y_min", Value::Int(20)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let constants = vec![
            ("x_zero", zero(self.input, 77)),
            ("w", weights),
            ("w_scale", Tensor::floats(&[scale_count], &scales)),
            ("w_zero", Tensor::of(self.weights, &[scale_count], zeros)),
            ("y_scale", Tensor::floats(&[], &[0.37])),
            ("y_zero", zero(DType::U8, 31)),
            ("b", Tensor::ints(&[self.filters], &bias)),
        ];
        let x_scale = Tensor::floats(&[], &[0.011]);

        let plain = Case {
            op: "NnQLinearConv",
            params: params.clone(),
            constants: constants.clone(),
            ports: vec![("x", image.clone()), ("x_scale", x_scale.clone())],
        };
        let mut all_constants = constants;
        all_constants.push(("x_scale", x_scale));
        let packed = Case {
            op: "NnQLinearConvChannelsLast",
            params,
            constants: all_constants,
            ports: vec![("x", image.channels_last())],
        };
        let want = plain.run().channels_last();
        let found = packed.run();
        assert_eq!(found.token, want.token);
        assert!(
            found.bytes == want.bytes,
            "{} to {} in {}, {:?} by {:?}",
            self.channels,
            self.filters,
            self.groups,
            self.input,
            self.weights
        );
        let is_varied = want.bytes.iter().any(|&byte| byte != want.bytes[0]);
        assert!(is_varied, "the case saturates everywhere");

        self.check_sum(packed, want);
    }

    /// A tensor that the convolution adds itself gives the sum of another node.
    fn check_sum(&self, mut packed: Case, result: Tensor) {
        let shape: Vec<usize> = result.token.shape.iter().map(|&d| d as usize).collect();
        let added = Tensor::noise(DType::U8, &shape, 5);
        let sum = Case {
            op: "NnQLinearAdd",
            params: [("y_max".to_owned(), Value::Int(170))].into(),
            constants: vec![
                ("a_scale", Tensor::floats(&[], &[0.37])),
                ("a_zero", zero(DType::U8, 31)),
                ("b_scale", Tensor::floats(&[], &[0.29])),
                ("b_zero", zero(DType::U8, 90)),
                ("y_scale", Tensor::floats(&[], &[0.6])),
                ("y_zero", zero(DType::U8, 60)),
            ],
            ports: vec![("a", result), ("b", added.clone())],
        };
        packed.params.insert("sum_max".to_owned(), Value::Int(170));
        packed.constants.extend([
            ("added_scale", Tensor::floats(&[], &[0.29])),
            ("added_zero", zero(DType::U8, 90)),
            ("sum_scale", Tensor::floats(&[], &[0.6])),
            ("sum_zero", zero(DType::U8, 60)),
        ]);
        packed.ports.push(("added", added));
        assert!(
            packed.run().bytes == sum.run().bytes,
            "{} to {} in {} and a sum",
            self.channels,
            self.filters,
            self.groups
        );
    }
}

#[test]
fn convolutions_of_bytes_are_those_of_plain_loops() {
    use DType::{I8, U8};
    for (channels, filters, groups, size, kernel, stride, dilation, pad) in [
        (3, 24, 1, [9, 11], [3, 3], 2, 1, 1),
        (16, 70, 1, [7, 7], [1, 1], 1, 1, 0),
        (5, 33, 1, [6, 5], [3, 2], 1, 2, 2),
        (12, 18, 3, [5, 6], [1, 1], 1, 1, 0),
        (8, 40, 2, [6, 6], [3, 3], 1, 1, 1),
        (80, 80, 80, [9, 9], [3, 3], 1, 1, 1),
        (20, 20, 20, [8, 13], [5, 5], 2, 1, 2),
        (24, 24, 24, [7, 6], [5, 5], 1, 1, 2),
        (18, 18, 18, [10, 7], [3, 3], 2, 1, 1),
        (17, 17, 17, [5, 9], [3, 3], 1, 1, 0),
        (16, 16, 16, [9, 8], [3, 3], 3, 1, 1),
        (4, 4, 4, [6, 6], [3, 3], 1, 2, 2),
        (6, 12, 6, [4, 4], [1, 1], 1, 1, 0),
    ] {
        for (input, weights, per_channel) in [(U8, I8, true), (I8, I8, false), (U8, U8, true)] {
            ConvCase {
                channels,
                filters,
                groups,
                size,
                kernel,
                stride,
                dilation,
                pad,
                input,
                weights,
                per_channel,
            }
            .check();
        }
    }
}

#[test]
fn products_of_bytes_are_those_of_plain_loops() {
    use DType::{I8, U8};
    for (left_shape, right_shape, left_type, right_type) in [
        (vec![7, 32], vec![32, 70], U8, I8),
        (vec![2, 3, 13], vec![13, 5], I8, U8),
        (vec![1, 64], vec![64, 33], U8, U8),
        (vec![2, 3, 5, 18], vec![2, 3, 18, 20], U8, U8),
        (vec![4, 1, 6, 16], vec![3, 16, 48], I8, I8),
        (vec![9], vec![9, 4], U8, I8),
    ] {
        let left = Tensor::noise(left_type, &left_shape, 5);
        let right = Tensor::noise(right_type, &right_shape, 6);
        let a_scale = Tensor::floats(&[], &[0.02]);
        let others = vec![
            ("a_zero", zero(left_type, 100)),
            ("b_scale", Tensor::floats(&[], &[0.013])),
            ("b_zero", zero(right_type, 9)),
            ("y_scale", Tensor::floats(&[], &[0.9])),
            ("y_zero", zero(I8, 200)),
        ];
        let case = |constants: Vec<(&'static str, Tensor)>, ports: Vec<(&'static str, Tensor)>| {
            let op = "NnQLinearMatMul";
            let params = Params::new();
            Case {
                op,
                params,
                constants: [others.clone(), constants].concat(),
                ports,
            }
            .run()
        };

        // With a scale that comes by a port there is no multiplier ahead of time.
        let scale = ("a_scale", a_scale);
        let ports = vec![("a", left), ("b", right.clone())];
        let want = case(Vec::new(), [ports.clone(), vec![scale.clone()]].concat());
        let free = case(vec![scale.clone()], ports.clone());
        let fixed = case(vec![scale, ("b", right)], vec![ports[0].clone()]);
        assert!(
            free.bytes == want.bytes,
            "{left_shape:?} by {right_shape:?}"
        );
        assert!(fixed.bytes == want.bytes, "{left_shape:?} by a constant");
        assert_eq!([&free.token, &fixed.token], [&want.token; 2]);
    }
}

#[test]
fn integer_products_are_exact() {
    for (left_type, right_type) in [(DType::U8, DType::I8), (DType::I8, DType::U8)] {
        let [rows, depth, columns] = [5, 39, 21];
        let left = Tensor::noise(left_type, &[rows, depth], 8);
        let right = Tensor::noise(right_type, &[depth, columns], 9);
        let zeros = vec![
            ("x_zero", zero(left_type, 250)),
            ("y_zero", zero(right_type, 17)),
        ];
        let number = |tensor: &Tensor, i: usize| match tensor.token.dtype {
            DType::I8 => i32::from(tensor.bytes[i] as i8),
            _ => i32::from(tensor.bytes[i]),
        };
        let mut want = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                let terms = (0..depth).map(|k| {
                    let factor = number(&left, row * depth + k) - number(&zeros[0].1, 0);
                    factor * (number(&right, k * columns + column) - number(&zeros[1].1, 0))
                });
                want.extend(terms.sum::<i32>().to_le_bytes());
            }
        }
        for is_constant in [false, true] {
            let mut constants = zeros.clone();
            let mut ports = vec![("x", left.clone())];
            let to = if is_constant {
                &mut constants
            } else {
                &mut ports
            };
            to.push(("y", right.clone()));
            let case = Case {
                op: "NnMatMulInteger",
                params: Params::new(),
                constants,
                ports,
            };
            assert!(case.run().bytes == want, "{left_type} by {right_type}");
        }
    }
}

/// A number in units of the result's scale, as the module of the kernels defines its byte.
fn byte(number: f32, dtype: DType, zero: i32) -> u8 {
    let (low, high) = match dtype {
        DType::I8 => (-128, 127),
        _ => (0, 255),
    };
    (number.round_ties_even() as i32 + zero).clamp(low, high) as u8
}

#[test]
fn sums_and_products_of_elements_are_rounded_once_for_each_step() {
    for dtype in [DType::U8, DType::I8] {
        let number = |byte: u8| match dtype {
            DType::I8 => i32::from(byte as i8),
            _ => i32::from(byte),
        };
        for (left_shape, right_shape) in [
            (vec![3, 37], vec![3, 37]),
            (vec![2, 5, 18], vec![18]),
            (vec![4, 1], vec![1, 33]),
            (vec![5, 48], vec![48]),
            (vec![32], vec![3, 7, 32]),
        ] {
            let left = Tensor::noise(dtype, &left_shape, 3);
            let right = Tensor::noise(dtype, &right_shape, 4);
            for op in ["NnQLinearAdd", "NnQLinearMul"] {
                let result = Case {
                    op,
                    params: Params::new(),
                    constants: vec![
                        ("a_scale", Tensor::floats(&[], &[0.031])),
                        ("a_zero", zero(dtype, 90)),
                        ("b_scale", Tensor::floats(&[], &[0.017])),
                        ("b_zero", zero(dtype, 40)),
                        ("y_scale", Tensor::floats(&[], &[0.05])),
                        ("y_zero", zero(dtype, 60)),
                    ],
                    ports: vec![("a", left.clone()), ("b", right.clone())],
                }
                .run();
                let columns = *result.token.shape.last().expect("a shape") as usize;
                let place = |tensor: &Tensor, i: usize| {
                    let own_columns = *tensor.token.shape.last().expect("a shape") as usize;
                    let row = i / columns % (tensor.bytes.len() / own_columns);
                    row * own_columns + if own_columns == 1 { 0 } else { i % columns }
                };
                for (i, &found) in result.bytes.iter().enumerate() {
                    let a = number(left.bytes[place(&left, i)]) - 90;
                    let b = number(right.bytes[place(&right, i)]) - 40;
                    let in_steps = match op {
                        "NnQLinearAdd" => {
                            a as f32 * (0.031_f32 / 0.05) + b as f32 * (0.017_f32 / 0.05)
                        }
                        _ => (a * b) as f32 * (0.031_f32 * 0.017 / 0.05),
                    };
                    assert_eq!(found, byte(in_steps, dtype, 60), "{op} of {dtype}, {i}");
                }
            }
        }
    }
}

#[test]
fn pools_and_tables_of_bytes() {
    for dtype in [DType::U8, DType::I8] {
        let image = Tensor::noise(dtype, &[2, 21, 7, 6], 11);
        for (channels, size) in [(21, 3), (40, 5), (5, 2)] {
            let image = Tensor::noise(dtype, &[2, channels, 9, 8], 11);
            let window: Params = [
                ("kernel_shape", list(&[size, size])),
                ("strides", list(&[2, 2])),
                ("pads", list(&[1, 1, 1, 1])),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
            let pool = |op, image: Tensor| Case {
                op,
                params: window.clone(),
                constants: Vec::new(),
                ports: vec![("x", image)],
            };
            let want = pool("NnMaxPool", image.clone()).run().channels_last();
            let found = pool("NnMaxPoolChannelsLast", image.channels_last()).run();
            assert!(
                found.bytes == want.bytes,
                "the greatest of {size} x {size} bytes of {dtype}"
            );
        }

        let mean = |image: Tensor, is_last: i64| Case {
            op: "NnQLinearGlobalAveragePool",
            params: [("channels_last".to_owned(), Value::Int(is_last))].into(),
            constants: vec![
                ("x_scale", Tensor::floats(&[], &[0.5])),
                ("x_zero", zero(dtype, 12)),
                ("y_scale", Tensor::floats(&[], &[0.25])),
                ("y_zero", zero(dtype, 100)),
            ],
            ports: vec![("x", image)],
        };
        let first = mean(image.clone(), 0).run();
        let last = mean(image.channels_last(), 1).run();
        assert!(first.bytes == last.bytes, "means of {dtype}");
        for (plane, &found) in image.bytes.chunks(42).zip(&first.bytes) {
            let numbers = plane.iter().map(|&byte| match dtype {
                DType::I8 => i32::from(byte as i8),
                _ => i32::from(byte),
            });
            let sum: i32 = numbers.map(|number| number - 12).sum();
            assert_eq!(found, byte(sum as f32 * (0.5 / (0.25 * 42.0)), dtype, 100));
        }

        let table: Vec<u8> = (0..=255_u8).map(|byte| byte.wrapping_mul(7)).collect();
        let looked_up = Case {
            op: "NnByteLookup",
            params: Params::new(),
            constants: vec![("table", Tensor::of(dtype, &[256], table.clone()))],
            ports: vec![("x", image.clone())],
        }
        .run();
        let want: Vec<u8> = image
            .bytes
            .iter()
            .map(|&byte| table[usize::from(byte)])
            .collect();
        assert!(looked_up.bytes == want, "a table of {dtype}");
    }
}

#[test]
fn quantising_and_back_rounds_ties_to_even() {
    let numbers: Vec<f32> = (0..77).map(|i| (i as f32 - 38.0) * 0.25).collect();
    for (dtype, shift) in [(DType::U8, 10), (DType::I8, 250)] {
        let constants = vec![
            ("scale", Tensor::floats(&[], &[0.5])),
            ("zero", zero(dtype, shift)),
        ];
        let number_of = |byte: u8| match dtype {
            DType::I8 => i32::from(byte as i8),
            _ => i32::from(byte),
        };
        let quantised = Case {
            op: "NnQuantizeLinear",
            params: Params::new(),
            constants: constants.clone(),
            ports: vec![("x", Tensor::floats(&[7, 11], &numbers))],
        }
        .run();
        for (&found, number) in quantised.bytes.iter().zip(&numbers) {
            assert_eq!(
                found,
                byte(number / 0.5, dtype, number_of(shift)),
                "{number}"
            );
        }

        let back = Case {
            op: "NnDequantizeLinear",
            params: Params::new(),
            constants,
            ports: vec![("x", quantised.clone())],
        }
        .run();
        for (found, &byte) in back.bytes.chunks(4).zip(&quantised.bytes) {
            let want = (number_of(byte) - number_of(shift)) as f32 * 0.5;
            assert_eq!(found, want.to_le_bytes());
        }
    }
}
