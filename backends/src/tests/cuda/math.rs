//! Products whose factors are rounded: on a device in software beside the CPU's kernel of the factors rounded before,
//! and on a GPU where there is one. `#[2,3]` in parameters stands for a constant factor of that shape, `%[3]` for a
//! tensor that nobody rounds.

use std::sync::Arc;

use zbmd_ir::{DType, TiVec};

use crate::cuda::testing::{real, soft};
use crate::cuda::{CudaDevice, GpuCall};
use crate::kernels::{Caps, KernelPlan, Math};
use crate::tests::ops::conformance::{Random, Results, Subject, subject};
use crate::tests::ops::gpus::{Tolerance, agree, in_calls};

/// Sums are added in another order than on the CPU.
const TOLERANCE: Tolerance = Tolerance::Sum(2e-6);
pub(super) const ROUNDED: [Math; 3] = [Math::Tf32, Math::F16, Math::Bf16];

/// Op, parameters, inputs, how many of the inputs are factors, firings and those of a call.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    usize,
    (usize, usize),
);

/// Edges everywhere: tiles have 32 or 64 elements along each side, of 16 or 32 along the inner dimension.
const CASES: &[Case] = &[
    ("NnMatMul", "", "x: f32[37,29], y: f32[29,41]", 2, (2, 1)),
    (
        "NnMatMul",
        "",
        "x: f32[2,5,33], y: f32[3,1,33,8]",
        2,
        (3, 2),
    ),
    (
        "NnMatMul",
        "y: #[48,70], bias: %[70], act: gelu",
        "x: f32[7,48]",
        1,
        (5, 3),
    ),
    ("NnMatMul", "y: #[64,64]", "x: f32[64,64]", 1, (1, 1)),
    // As many tiles as it takes for large ones.
    ("NnMatMul", "y: #[35,300]", "x: f32[100,35]", 1, (18, 18)),
    (
        "NnMatMul",
        "",
        "x: f32[33,66,18], y: f32[33,18,68]",
        2,
        (1, 1),
    ),
    (
        "NnGemm",
        "transA: 1, alpha: 0.5, beta: 2.0",
        "a: f32[17,9], b: f32[17,11], c: f32[9,1]",
        2,
        (2, 2),
    ),
    (
        "NnGemm",
        "b: #[40,70], c: %[40], transB: 1, act: relu",
        "a: f32[6,70]",
        1,
        (3, 2),
    ),
    (
        "NnConv",
        "w: #[8,3,3,3], b: %[8], pads: [1, 1, 1, 1], act: relu",
        "x: f32[1,3,12,12]",
        1,
        (2, 1),
    ),
    (
        "NnConv",
        "w: #[40,24,1,1], act: clip, act_min: 0, act_max: 6",
        "x: f32[1,24,7,7]",
        1,
        (1, 1),
    ),
    (
        "NnConv",
        "w: #[18,4,5], b: %[18], strides: [2], dilations: [2], group: 2",
        "x: f32[2,8,40]",
        1,
        (2, 2),
    ),
    (
        "NnConv",
        "w: #[16,8,1,1]",
        "x: f32[1,8,6,6], added: f32[1,16,6,6]",
        1,
        (3, 2),
    ),
];

/// What is too small for tensor cores, whose constants are rounded all the same where that makes them smaller.
const SMALL: &[(&str, &str, &str)] = &[
    ("NnMatMul", "y: #[70,33]", "x: f32[1,70]"),
    ("NnGemm", "b: #[10,70], transB: 1", "a: f32[2,70]"),
    (
        "NnConv",
        "w: #[6,1,3,3], group: 6, pads: [1, 1, 1, 1]",
        "x: f32[1,6,9,9]",
    ),
];

/// The nearest number that a factor can be, as its definition has it.
pub(super) fn round(math: Math, value: f32) -> f32 {
    let (bits, least) = match math {
        Math::F32 => return value,
        Math::Tf32 => (10, -126),
        Math::F16 => (10, -14),
        Math::Bf16 => (7, -126),
    };
    let value = f64::from(value);
    let exponent = (value.abs().log2().floor() as i32).max(least);
    let unit = 2_f64.powi(exponent - bits);
    let steps = value / unit;
    let whole = if math == Math::Tf32 {
        steps.round()
    } else {
        steps.round_ties_even()
    };
    (whole * unit) as f32
}

/// Parameters twice: with random numbers as they are, and with factors rounded.
fn filled(text: &str, math: Math, random: &mut Random) -> [String; 2] {
    let mut out = [String::new(), String::new()];
    let mut rest = text;
    while let Some(at) = rest.find(['#', '%']) {
        let (before, behind) = rest.split_at(at);
        let (dims, after) = behind[2..].split_once(']').expect("a shape");
        let dims: Vec<usize> = dims
            .split(',')
            .map(|d| d.parse().expect("a size"))
            .collect();
        let values: Vec<f32> = (0..dims.iter().product()).map(|_| random.unit()).collect();
        let rounds = if behind.starts_with('#') {
            math
        } else {
            Math::F32
        };
        let other: Vec<f32> = values.iter().map(|v| round(rounds, *v)).collect();
        for (out, values) in out.iter_mut().zip([values, other]) {
            *out += before;
            *out += &nested(&dims, &mut values.into_iter());
        }
        rest = after;
    }
    out.map(|o| o + rest)
}

fn nested(dims: &[usize], values: &mut dyn Iterator<Item = f32>) -> String {
    let Some((&first, inner)) = dims.split_first() else {
        return format!("{:e}", f64::from(values.next().expect("enough")));
    };
    let all: Vec<String> = (0..first).map(|_| nested(inner, values)).collect();
    format!("[{}]", all.join(", "))
}

fn asked(parameters: &str, math: Math) -> String {
    let more = if parameters.is_empty() { "" } else { ", " };
    format!("{parameters}{more}math: {math}")
}

/// A subject as a device is given it, its kernels, and the same subject with constant factors rounded.
fn subjects(
    (op, parameters, inputs): (&str, &str, &str),
    math: Math,
    random: &mut Random,
) -> (Subject, KernelPlan, Subject) {
    let [plain, rounded] = filled(parameters, math, random);
    let given = subject(op, &asked(&plain, math), inputs);
    let plan = crate::standard_registry().lower(&given.actor, &TiVec::new(), &Caps::CUDA);
    (given, plan.expect("kernels"), subject(op, &rounded, inputs))
}

pub(super) fn on_device(
    device: &Arc<CudaDevice>,
    (subject, plan): (&Subject, &KernelPlan),
    data: &[Vec<u8>],
    calls: (usize, usize),
) -> Results {
    let call = |count| GpuCall::new(device, &subject.actor, plan, count, 1).expect("a call");
    in_calls(subject, data, calls, call)
}

fn numbers(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    assert_eq!(dtype, DType::F32);
    (0..count)
        .flat_map(|_| (random.unit() * 2.0).to_le_bytes())
        .collect()
}

fn rounded(math: Math, bytes: &[u8]) -> Vec<u8> {
    let floats = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
    floats.flat_map(|v| round(math, v).to_le_bytes()).collect()
}

fn check_all(device: &Arc<CudaDevice>) {
    let mut random = Random(17);
    for math in ROUNDED {
        for &(op, parameters, inputs, factors, calls) in CASES {
            let case = format!("{op}({parameters}) of ({inputs}) in {math}");
            let (given, plan, exact) = subjects((op, parameters, inputs), math, &mut random);
            assert!(
                plan.kernels().all(|k| k.multiplies),
                "{case}: not on tensor cores"
            );
            assert_eq!(plan.math(), math, "{case}");
            let data = given.inputs(calls.0, |dtype, count| numbers(&mut random, dtype, count));
            let mut before = data.clone();
            before
                .iter_mut()
                .take(factors)
                .for_each(|d| *d = rounded(math, d));
            let want = exact.run(&before, calls.0, calls.0);
            let got = on_device(device, (&given, &plan), &data, calls);
            agree(&given, &got, &want, TOLERANCE).unwrap_or_else(|e| panic!("{case}: {e}"));
            // What is not rounded is as far away as factors have bits.
            let exact = given.run(&data, calls.0, calls.0);
            assert!(
                agree(&given, &got, &exact, Tolerance::Sum(1e-5)).is_err(),
                "{case}: exact"
            );
            let far = agree(&given, &got, &exact, Tolerance::Sum(1e-2));
            far.unwrap_or_else(|e| panic!("{case}: {e}"));
        }
        for &case in SMALL {
            let (given, plan, exact) = subjects(case, math, &mut random);
            assert!(
                plan.kernels().all(|k| !k.multiplies),
                "{case:?}: on tensor cores"
            );
            let (said, of) = match math.is_half() {
                true => (math, &exact),
                false => (Math::F32, &given),
            };
            assert_eq!(plan.math(), said, "{case:?}");
            let data = given.inputs(2, |dtype, count| numbers(&mut random, dtype, count));
            let want = of.run(&data, 2, 2);
            let got = on_device(device, (&given, &plan), &data, (2, 2));
            agree(&given, &got, &want, TOLERANCE).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        }
    }
}

/// The kernels of all cases, for the assembler.
pub(super) fn kernels() -> Vec<(String, KernelPlan)> {
    let mut random = Random(19);
    let mut all = Vec::new();
    for math in ROUNDED {
        for &(op, parameters, inputs, ..) in CASES {
            let (_, plan, _) = subjects((op, parameters, inputs), math, &mut random);
            all.push((format!("{op}({parameters}) of ({inputs}) in {math}"), plan));
        }
    }
    all
}

#[test]
fn rounded_products_agree_with_products_of_rounded_factors_in_software() {
    check_all(&soft());
}

#[test]
fn rounded_products_agree_with_products_of_rounded_factors_on_a_gpu() {
    if let Some(device) = real() {
        check_all(&device);
    }
}

#[test]
fn a_device_that_is_too_old_is_refused_with_both_numbers_and_others_round_nothing() {
    let mut random = Random(23);
    let case = ("NnMatMul", "y: #[16,16]", "x: f32[16,16]");
    let (subject, ..) = subjects(case, Math::Bf16, &mut random);
    let (registry, blobs) = (crate::standard_registry(), TiVec::new());
    let turing = Caps {
        capability: Some((7, 5)),
        ..Caps::CUDA
    };
    let why = registry
        .gpu_reason(&subject.actor, &blobs, &turing)
        .expect("a reason");
    assert_eq!(
        why,
        "products in bf16 need compute capability 8.0, the device has 7.5"
    );
    assert!(registry.lower(&subject.actor, &blobs, &turing).is_none());
    assert_eq!(
        registry.gpu_reason(&subject.actor, &blobs, &Caps::CUDA),
        None
    );
    let elsewhere = registry
        .lower(&subject.actor, &blobs, &Caps::COMMON)
        .expect("kernels");
    assert_eq!(elsewhere.math(), Math::F32);
    assert!(elsewhere.kernels().all(|k| !k.multiplies));
}

#[test]
fn an_unknown_math_is_refused() {
    let refused =
        std::panic::catch_unwind(|| subject("NnMatMul", "math: f8", "x: f32[4,4], y: f32[4,4]"));
    let said = refused.map(drop).expect_err("refused");
    let said = said.downcast_ref::<String>().expect("a text");
    assert!(
        said.contains("`f8` is unknown") && said.contains("f32, tf32, f16, bf16"),
        "{said}"
    );
}
