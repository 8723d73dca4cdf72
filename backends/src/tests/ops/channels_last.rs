//! Channels last beside channels first.

use std::collections::BTreeMap;

use bytes::Bytes;
use zbmd_ir::{Actor, DType, Params, Role, TiVec, TokenType, Value};

use crate::call::Call;
use crate::op::ResolveCx;
use crate::team::Team;
use zbmd_ops_nn::narrow;

/// Small integers, so that sums are exact in any order.
fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 31 + seed * 17) % 13) as f32 - 6.0)
        .collect()
}

pub(super) fn bytes(data: &[f32]) -> Vec<u8> {
    data.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// [n, c, h, w] to [n, h, w, c].
fn last(x: &[f32], [n, c, h, w]: [usize; 4]) -> Vec<f32> {
    let at = |b: usize, p: usize, c1: usize| x[(b * c + c1) * h * w + p];
    (0..n)
        .flat_map(|b| (0..h * w).map(move |p| (b, p)))
        .flat_map(|(b, p)| (0..c).map(move |c1| at(b, p, c1)))
        .collect()
}

/// The result of an op on inputs by port, and its type.
pub(super) fn run(
    op: &str,
    params: &Params,
    blobs: &[Bytes],
    ins: &[(&str, &[u32], &[f32])],
) -> (Vec<f32>, Vec<u32>) {
    let registry = crate::standard_registry();
    let blobs: TiVec<zbmd_ir::BlobId, Bytes> = blobs.to_vec().into();
    let connected: Vec<String> = ins.iter().map(|i| i.0.to_owned()).collect();
    let types: BTreeMap<String, TokenType> = ins
        .iter()
        .map(|i| (i.0.to_owned(), TokenType::new(DType::F32, i.1)))
        .collect();
    let cx = ResolveCx {
        params,
        connected: &connected,
        types: &types,
        blobs: &blobs,
    };
    let signature = registry.resolve(op, &cx).unwrap();
    let actor = Actor {
        name: "a".into(),
        role: Role::Compute,
        op: op.into(),
        params: params.clone(),
        inputs: signature.inputs,
        outputs: signature.outputs,
        state: Vec::new(),
        in_place: Vec::new(),
    };
    let kernel = registry.kernel(&actor, &blobs).unwrap();
    assert_eq!(
        registry.scratch_bytes(&actor, &blobs).unwrap(),
        kernel.scratch_bytes(),
        "{op}, as is said before its kernel is made"
    );
    let mut call = Call::new(&actor, kernel.scratch_bytes(), 1);
    for (i, input) in ins.iter().enumerate() {
        call.input(i).copy_from_slice(&bytes(input.2));
    }
    call.run(&*kernel).unwrap();
    let apart = call.output(0).to_vec();
    for pair in registry.in_place(&actor, &blobs) {
        call.run_over(&*kernel, &[pair]).unwrap();
        assert!(call.output(0) == apart, "{op} over input {}", pair.input);
    }
    for name in registry.variants(&actor, &blobs) {
        let variant = registry.kernel_in(&actor, &blobs, Some(name)).unwrap();
        assert_eq!(
            variant.scratch_bytes(),
            kernel.scratch_bytes(),
            "{op} by {name}"
        );
        let run = |kernel: &dyn crate::kernel::Kernel| {
            let mut call = Call::new(&actor, kernel.scratch_bytes(), 1);
            ins.iter()
                .enumerate()
                .for_each(|(i, x)| call.input(i).copy_from_slice(&bytes(x.2)));
            call.run(kernel).unwrap();
            call.output(0).to_vec()
        };
        assert!(run(&*variant) == apart, "{op} by {name}");
        for bits in [1, 256].into_iter().filter(|_| crate::team::cores() == 1) {
            let [want, found] = [&*kernel, &*variant].map(|k| narrow::with(bits, || run(k)));
            assert!(want == found, "{op} by {name}, vectors of {bits} bits");
        }
    }
    let out = apart
        .chunks_exact(4)
        .map(|c| f32::from_le_bytes(c.try_into().unwrap()));
    (out.collect(), actor.outputs[0].token.shape.to_vec())
}

#[test]
fn results_are_those_of_channels_first() {
    // Channels, filters, groups, height and width, kernel, stride, dilation, padding, activation, added.
    for (c, f, g, hw, k, stride, dilation, pad, act, added) in [
        (3, 8, 1, [9, 11], [3, 3], 2, 1, 1, "relu", false),
        (16, 40, 1, [7, 7], [1, 1], 1, 1, 0, "none", true),
        (5, 33, 1, [6, 5], [3, 2], 1, 2, 2, "clip", true),
        (12, 18, 3, [5, 6], [1, 1], 1, 1, 0, "relu", false),
        (8, 16, 2, [6, 6], [3, 3], 1, 1, 1, "none", false),
        (80, 80, 80, [9, 9], [3, 3], 1, 1, 1, "relu", true),
        (20, 20, 20, [8, 13], [5, 5], 2, 1, 2, "none", false),
        (4, 4, 4, [6, 6], [3, 3], 1, 2, 2, "clip", false),
        (6, 12, 6, [4, 4], [1, 1], 1, 1, 0, "none", false),
        (32, 96, 1, [14, 14], [1, 1], 1, 1, 0, "silu", false),
        (32, 20, 1, [8, 8], [3, 3], 1, 1, 1, "hardswish", true),
        // Windows that slide: lines of seven, of fewer, and of some that overlap; more channels than a strip has.
        (200, 200, 200, [7, 7], [5, 5], 1, 1, 2, "hardswish", true),
        (16, 16, 16, [3, 4], [3, 3], 1, 1, 1, "none", false),
        (36, 36, 36, [6, 6], [5, 5], 1, 1, 2, "relu", false),
        (72, 72, 72, [11, 19], [3, 3], 2, 1, 1, "clip", true),
        (90, 90, 90, [20, 31], [5, 5], 2, 1, 2, "hardswish", false),
        (17, 17, 17, [5, 5], [5, 5], 1, 1, 4, "none", false),
    ] {
        let [h, w] = hw;
        let x = numbers(c * h * w, 1);
        let weights = numbers(f * c / g * k[0] * k[1], 2);
        let bias = numbers(f, 3);
        let shape = [f, c / g, k[0], k[1]].map(|d| d as u32);
        let list = |v: &[i64]| Value::List(v.iter().map(|&v| Value::Int(v)).collect());
        let tensor = |id: u32, shape: &[u32]| {
            Value::Tensor(zbmd_ir::BlobId(id), TokenType::new(DType::F32, shape))
        };
        let params: Params = [
            ("w", tensor(0, &shape)),
            ("b", tensor(1, &[f as u32])),
            ("group", Value::Int(g as i64)),
            ("strides", list(&[stride, stride])),
            ("dilations", list(&[dilation, dilation])),
            ("pads", list(&[pad; 4])),
            ("act", Value::Str(act.into())),
            ("act_min", Value::Float(-3.0)),
            ("act_max", Value::Float(9.0)),
        ]
        .into_iter()
        .filter(|(name, _)| act == "clip" || !name.starts_with("act_"))
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        let blobs = [Bytes::from(bytes(&weights)), Bytes::from(bytes(&bias))];
        let first = [1, c as u32, h as u32, w as u32];
        let (_, out) = run("NnConv", &params, &blobs, &[("x", &first, &x)]);
        let size = [out[0], out[1], out[2], out[3]].map(|d| d as usize);
        let more = numbers(size.iter().product(), 4);
        let mut ins = vec![("x", &first[..], &x[..])];
        if added {
            ins.push(("added", &out, &more));
        }
        let (want, _) = run("NnConv", &params, &blobs, &ins);
        let x = last(&x, [1, c, h, w]);
        let more = last(&more, size);
        let turned = [1, h as u32, w as u32, c as u32];
        let out = [out[0], out[2], out[3], out[1]];
        let mut ins = vec![("x", &turned[..], &x[..])];
        if added {
            ins.push(("added", &out, &more));
        }
        let (got, shape) = run("NnConvChannelsLast", &params, &blobs, &ins);
        assert_eq!(shape, out, "{c} to {f} in {g}");
        for (got, want) in got.iter().zip(&last(&want, size)) {
            assert!(
                (got - want).abs() <= 1e-6 * want.abs(),
                "{c} to {f} in {g}: {got}, {want}"
            );
        }
    }
}

#[test]
fn pools_are_those_of_channels_first() {
    for (op, c, h, w, k, stride, pad) in [
        ("MaxPool", 70, 7, 9, 3, 2, 1),
        ("MaxPool", 5, 6, 6, 2, 2, 0),
        ("AveragePool", 17, 8, 8, 3, 1, 1),
        ("AveragePool", 64, 8, 5, 2, 2, 0),
        ("GlobalAveragePool", 20, 7, 7, 0, 0, 0),
    ] {
        let mut x = numbers(c * h * w, 5);
        x[3] = if op == "MaxPool" { f32::NAN } else { 1.0 };
        let list = |v: &[i64]| Value::List(v.iter().map(|&v| Value::Int(v)).collect());
        let params: Params = [
            ("kernel_shape", list(&[k, k])),
            ("strides", list(&[stride, stride])),
            ("pads", list(&[pad; 4])),
        ]
        .into_iter()
        .filter(|_| k > 0)
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        let first = [1, c as u32, h as u32, w as u32];
        let (want, out) = run(&format!("Nn{op}"), &params, &[], &[("x", &first, &x)]);
        let size = [out[0], out[1], out[2], out[3]].map(|d| d as usize);
        let x = last(&x, [1, c, h, w]);
        let turned = [1, h as u32, w as u32, c as u32];
        let name = format!("Nn{op}ChannelsLast");
        let (got, _) = run(&name, &params, &[], &[("x", &turned, &x)]);
        for (got, want) in got.iter().zip(&last(&want, size)) {
            let same = (got - want).abs() <= 1e-6 * want.abs() || (got.is_nan() && want.is_nan());
            assert!(same, "{op} of {c}: {got}, {want}");
        }
    }
}

#[test]
fn scaled_channels_are_scaled_and_shifted() {
    // The larger image is shared by cores.
    for (dims, cores) in [([3, 5, 21], 1), ([61, 67, 21], 1), ([61, 67, 21], 3)] {
        let _team = Team::lead(cores, |_| ()).expect("threads");
        check_scaled_channels(dims);
    }
}

fn check_scaled_channels([height, width, channels]: [usize; 3]) {
    let x = numbers(height * width * channels, 7);
    let scale = numbers(channels, 8);
    let shift = numbers(channels, 9);
    let row = TokenType::new(DType::F32, [channels as u32]);
    let params: Params = [
        ("scale", Value::Tensor(zbmd_ir::BlobId(0), row.clone())),
        ("shift", Value::Tensor(zbmd_ir::BlobId(1), row)),
        ("act", Value::Str("relu".into())),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();

    let blobs = [&scale, &shift].map(|row| Bytes::from(bytes(row)));
    let dims = [1, height as u32, width as u32, channels as u32];
    let (got, shape) = run("NnAffineChannelsLast", &params, &blobs, &[("x", &dims, &x)]);
    assert_eq!(shape, dims);
    for (i, (got, x)) in got.iter().zip(&x).enumerate() {
        let channel = i % channels;
        let want = (x * scale[channel] + shift[channel]).max(0.0);
        assert_eq!(*got, want, "element {i}");
    }
}

#[test]
fn responses_are_those_of_channels_first() {
    for (channels, size, beta) in [(40, 5, 0.75), (3, 4, 0.5), (6, 9, 0.75), (17, 1, 0.75)] {
        let [height, width] = [5, 4];
        let x = numbers(channels * height * width, 6);
        let params: Params = [
            ("size", Value::Int(size)),
            ("alpha", Value::Float(0.5)),
            ("beta", Value::Float(beta)),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();

        let first = [1, channels as u32, height as u32, width as u32];
        let (want, _) = run("NnLRN", &params, &[], &[("x", &first, &x)]);
        let dims = [1, channels, height, width];
        let turned = [1, height as u32, width as u32, channels as u32];
        let x = last(&x, dims);
        let (got, _) = run("NnLRNChannelsLast", &params, &[], &[("x", &turned, &x)]);
        assert_eq!(
            got,
            last(&want, dims),
            "{channels} channels, {size} of them"
        );
    }
}

#[test]
fn bits_do_not_depend_on_the_cores() {
    // Pixels are shared, then panels of filters, then lines.
    for (c, f, g, hw, k, stride) in [
        (40, 64, 1, 15, 3, 1),
        (256, 512, 1, 6, 3, 1),
        (24, 240, 1, 23, 1, 1),
        (96, 96, 96, 20, 5, 1),
        (40, 40, 40, 31, 5, 2),
        (48, 48, 48, 19, 3, 1),
        (33, 33, 33, 20, 3, 2),
    ] {
        let list = |v: &[i64]| Value::List(v.iter().map(|&v| Value::Int(v)).collect());
        let shape = [f, c / g, k, k].map(|d| d as u32);
        let weights = numbers(f * c / g * k * k, 2);
        let weights: Vec<f32> = weights.iter().map(|v| v * 0.1).collect();
        let token = TokenType::new(DType::F32, shape);
        let params: Params = [
            ("w", Value::Tensor(zbmd_ir::BlobId(0), token)),
            ("group", Value::Int(g as i64)),
            ("pads", list(&[1; 4])),
            ("strides", list(&[stride; 2])),
            ("act", Value::Str("relu".into())),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        let blobs = [Bytes::from(bytes(&weights))];
        let x: Vec<f32> = numbers(c * hw * hw, 1).iter().map(|v| v * 0.3).collect();
        let size = [1, hw as u32, hw as u32, c as u32];
        let pool: Params = [("kernel_shape", list(&[3, 3]))]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let on = |cores: usize| {
            let _team = crate::team::Team::lead(cores, |_| ()).expect("threads");
            let ins = [("x", &size[..], &x[..])];
            let conv = run("NnConvChannelsLast", &params, &blobs, &ins).0;
            (conv, run("NnMaxPoolChannelsLast", &pool, &[], &ins).0)
        };
        let want = on(1);
        for cores in [2, 3] {
            assert!(on(cores) == want, "{c} to {f} in {g} on {cores} cores");
        }
    }
}

#[test]
fn windows_that_slide_have_the_bits_of_those_that_do_not() {
    let [channels, side] = [20, 9];
    let list = |v: &[i64]| Value::List(v.iter().map(|&v| Value::Int(v)).collect());
    let weights_type = TokenType::new(DType::F32, [channels as u32, 1, 3, 3]);
    let bias_type = TokenType::new(DType::F32, [channels as u32]);
    let params: Params = [
        ("w", Value::Tensor(zbmd_ir::BlobId(0), weights_type)),
        ("b", Value::Tensor(zbmd_ir::BlobId(1), bias_type)),
        ("group", Value::Int(channels as i64)),
        ("pads", list(&[1; 4])),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();

    // Sums of nothing but zeros of either sign, and products that are no numbers where they meet the border.
    let zero_sums = (vec![-1.0; channels * 9], vec![0.0; channels * side * side]);
    let mut infinite = (numbers(channels * 9, 1), numbers(channels * side * side, 2));
    infinite.0[0] = f32::INFINITY;
    for (weights, x) in [zero_sums, infinite] {
        let blobs = [weights, vec![-0.0; channels]].map(|floats| Bytes::from(bytes(&floats)));
        let dims = [1, side, side, channels].map(|d| d as u32);
        let given = [("x", &dims[..], &x[..])];
        let bits = || {
            let (result, _) = run("NnConvChannelsLast", &params, &blobs, &given);
            result.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bits(), narrow::with(256, bits));
        assert_eq!(bits(), narrow::with(128, bits));
    }
}
