//! The tensor ops beside their CPU kernels: what models are made of, in the shapes that choose every variant, for calls
//! of one and of several firings. `#[2,3]` in parameters stands for a constant tensor of that shape.

use zbmd_ir::{DType, TiVec};

use super::suite::{on_device, valid_modules};
use crate::kernels::Caps;
use crate::tests::ops::conformance::{Random, Subject, subject};
use crate::tests::ops::gpus::{Tolerance, agree, filled};
use crate::tests::ops::products;
use crate::vulkan::testing::{assert_valid, device, turn};

use Tolerance::{Each, Exact, Sum};

/// Op, parameters, inputs, how near it comes: exact where nothing is rounded twice.
const CASES: &[(&str, &str, &str, Tolerance)] = &[
    ("NnAdd", "", "x: f32[2,3,4], y: f32[3,1]", Exact),
    ("NnAdd", "", "x: f32[5], y: f32[5]", Exact),
    ("NnSub", "y: #[4]", "x: f32[2,3,4]", Exact),
    ("NnMul", "", "x: i32[3,1], y: i32[1,4]", Exact),
    ("NnMul", "", "x: i64[6], y: i64[1]", Exact),
    ("NnDiv", "", "x: i32[7], y: i32[7]", Exact),
    ("NnDiv", "", "x: f32[7], y: f32[7]", Each(4e-7)),
    ("NnMod", "", "x: i32[9], y: i32[9]", Exact),
    ("NnMod", "fmod: 1", "x: i8[9], y: i8[9]", Exact),
    ("NnAdd", "", "x: f16[2,5], y: f16[5]", Exact),
    ("NnMul", "", "x: u8[6], y: u8[6]", Exact),
    ("NnPow", "y: 2", "x: f32[3,3]", Exact),
    ("NnPow", "", "x: i32[5], y: i32[5]", Exact),
    ("NnGreater", "", "x: f32[4], y: f32[4]", Exact),
    ("NnEqual", "", "x: i64[4], y: i64[4]", Exact),
    ("NnAnd", "", "x: bool[9], y: bool[1]", Exact),
    ("NnNot", "", "x: bool[9]", Exact),
    (
        "NnWhere",
        "",
        "condition: bool[2,1], x: f32[2,3], y: f32[1]",
        Exact,
    ),
    ("NnClip", "min: -1, max: 1.5", "x: f32[30]", Exact),
    ("NnCast", "to: i32", "x: f32[20]", Exact),
    ("NnCast", "to: f32", "x: i64[20]", Exact),
    ("NnCast", "to: u8", "x: f32[20]", Exact),
    ("NnCast", "to: bool", "x: f32[20]", Exact),
    ("NnCast", "to: f16", "x: f32[20]", Exact),
    ("NnRelu", "", "x: f32[33]", Exact),
    ("NnAbs", "", "x: i8[33]", Exact),
    ("NnSign", "", "x: f32[33]", Exact),
    ("NnMax", "", "x0: f32[3,4], x1: f32[4], x2: f32[3,1]", Exact),
    ("NnSigmoid", "", "x: f32[65]", Each(1e-6)),
    ("NnTanh", "", "x: f32[65]", Each(1e-6)),
    ("NnGelu", "", "x: f32[65]", Sum(1e-6)),
    ("NnErf", "", "x: f32[65]", Each(2e-6)),
    ("NnSwish", "", "x: f32[65]", Each(1e-6)),
    ("NnSoftplus", "", "x: f32[65]", Each(2e-6)),
    ("NnAsinh", "", "x: f32[65]", Each(2e-6)),
    ("NnSinh", "", "x: f32[65]", Each(2e-6)),
    ("NnAtan", "", "x: f32[65]", Each(1e-6)),
    ("NnTranspose", "perm: [2, 0, 1]", "x: f32[3,4,5]", Exact),
    ("NnTranspose", "", "x: i64[3,4]", Exact),
    ("NnTranspose", "perm: [0, 2, 1, 3]", "x: u8[2,3,2,4]", Exact),
    (
        "NnSlice",
        "starts: [3], ends: [-9], axes: [0], steps: [-2]",
        "x: f32[5,3]",
        Exact,
    ),
    (
        "NnSlice",
        "starts: [1, 0], ends: [3, 2], axes: [1, 2]",
        "x: f16[2,4,3]",
        Exact,
    ),
    ("NnExpand", "shape: [2, 3, 4]", "x: f32[3,1]", Exact),
    ("NnTile", "repeats: [2, 3]", "x: i32[2,2]", Exact),
    ("NnReshape", "shape: [-1, 2]", "x: f32[2,3]", Exact),
    (
        "NnConcat",
        "axis: 1",
        "x0: f32[2,3], x1: f32[2,1], x2: f32[2,2]",
        Exact,
    ),
    ("NnConcat", "axis: 0, x1: #[2]", "x0: f32[3]", Exact),
    (
        "NnSplit",
        "axis: 1, split: [1, 3], outputs: [0, 1]",
        "x: f32[2,4,2]",
        Exact,
    ),
    (
        "NnPad",
        "pads: [1, 0, 0, 2], value: 0.5",
        "x: f32[2,3]",
        Exact,
    ),
    (
        "NnPad",
        "pads: [0, 2, 0, 1], mode: reflect",
        "x: f32[2,4]",
        Exact,
    ),
    ("NnTrilu", "upper: 0", "x: f32[4,4]", Exact),
    ("NnDepthToSpace", "blocksize: 2", "x: f32[1,8,2,3]", Exact),
    (
        "NnGather",
        "axis: 1, indices: [[0, -1], [2, 1]]",
        "x: f32[2,3,2]",
        Exact,
    ),
    ("NnGather", "x: #[5,3]", "indices: i64[4]", Exact),
    (
        "NnGatherElements",
        "axis: 0",
        "x: f32[4,3], indices: i32[2,3]",
        Exact,
    ),
    ("NnReduceSum", "axes: [1]", "x: f32[3,5,2]", Sum(3e-7)),
    ("NnReduceMean", "axes: [-1]", "x: f32[3,200]", Sum(3e-7)),
    (
        "NnReduceMax",
        "axes: [0, 2], keepdims: 0",
        "x: f32[3,5,2]",
        Exact,
    ),
    ("NnReduceMin", "", "x: i64[3,5]", Exact),
    ("NnReduceL2", "axes: [0]", "x: f32[7,3]", Sum(1e-6)),
    ("NnReduceLogSumExp", "axes: [1]", "x: f32[4,70]", Sum(1e-6)),
    ("NnReduceProd", "axes: [1]", "x: i32[4,3]", Exact),
    ("NnArgMax", "axis: 1", "x: f32[4,9]", Exact),
    ("NnCumSum", "axis: 1, reverse: 1", "x: f32[2,5]", Exact),
    ("NnTopK", "k: 3, outputs: [0, 1]", "x: f32[2,9]", Exact),
    ("NnSoftmax", "", "x: f32[3,10]", Sum(1e-6)),
    ("NnSoftmax", "axis: 1", "x: f32[2,100,3]", Sum(1e-6)),
    ("NnLogSoftmax", "", "x: f32[3,70]", Sum(1e-6)),
    ("NnHardmax", "", "x: f32[3,70]", Exact),
    (
        "NnLayerNormalization",
        "scale: #[128], bias: #[128]",
        "x: f32[3,128]",
        Sum(2e-6),
    ),
    (
        "NnLayerNormalization",
        "outputs: [0, 1, 2]",
        "x: f32[4,6]",
        Sum(3e-6),
    ),
    (
        "NnRMSNormalization",
        "scale: #[10]",
        "x: f32[3,10]",
        Sum(2e-6),
    ),
    (
        "NnInstanceNormalization",
        "scale: #[3], bias: #[3]",
        "x: f32[2,3,5,4]",
        Sum(3e-6),
    ),
    (
        "NnGroupNormalization",
        "num_groups: 2, scale: #[4], bias: #[4]",
        "x: f32[2,4,6]",
        Sum(3e-6),
    ),
    ("NnLRN", "size: 3", "x: f32[1,5,3,3]", Each(1e-6)),
    ("NnGlobalAveragePool", "", "x: f32[2,3,7,7]", Sum(1e-6)),
    ("NnGlobalMaxPool", "", "x: f32[2,3,9,9]", Exact),
    (
        "NnMatMul",
        "y: #[64,48], bias: #[48], act: gelu",
        "x: f32[33,64]",
        Sum(2e-6),
    ),
    ("NnMatMul", "y: #[96,40]", "x: f32[1,96]", Sum(2e-6)),
    (
        "NnMatMul",
        "",
        "x: f32[2,20,12], y: f32[2,12,24]",
        Sum(2e-6),
    ),
    ("NnMatMul", "", "x: f32[3,1,5], y: f32[5,7]", Sum(2e-6)),
    ("NnMatMul", "", "x: f32[4], y: f32[4]", Sum(2e-6)),
    ("NnMatMul", "", "x: i32[3,4], y: i32[4,5]", Exact),
    (
        "NnMatMulInteger",
        "x_zero: [3]",
        "x: u8[3,4], y: u8[4,5]",
        Exact,
    ),
    (
        "NnGemm",
        "b: #[10,70], c: #[10], transB: 1",
        "a: f32[1,70]",
        Sum(2e-6),
    ),
    (
        "NnGemm",
        "transA: 1, alpha: 0.5, beta: 2.0",
        "a: f32[6,9], b: f32[6,11], c: f32[9,1]",
        Sum(2e-6),
    ),
    (
        "NnGemm",
        "b: #[64,64], c: #[64], act: relu",
        "a: f32[40,64]",
        Sum(2e-6),
    ),
    (
        "NnEinsum",
        "equation: \"bij,bjk->bik\"",
        "x0: f32[2,3,4], x1: f32[2,4,5]",
        Sum(2e-6),
    ),
    (
        "NnConv",
        "w: #[8,3,3,3], b: #[8], pads: [1, 1, 1, 1], act: relu",
        "x: f32[1,3,12,12]",
        Sum(2e-6),
    ),
    (
        "NnConv",
        "w: #[40,24,1,1], act: clip, act_min: 0, act_max: 6",
        "x: f32[1,24,7,7]",
        Sum(2e-6),
    ),
    (
        "NnConv",
        "w: #[6,1,3,3], group: 6, strides: [2, 2], pads: [1, 1, 1, 1]",
        "x: f32[1,6,9,9]",
        Sum(2e-6),
    ),
    (
        "NnConv",
        "w: #[16,4,5], b: #[16], strides: [2], dilations: [2], group: 2",
        "x: f32[2,8,40]",
        Sum(2e-6),
    ),
    (
        "NnConv",
        "w: #[16,8,1,1]",
        "x: f32[1,8,6,6], added: f32[1,16,6,6]",
        Sum(2e-6),
    ),
    (
        "NnConv",
        "auto_pad: SAME_UPPER",
        "x: f32[1,2,5,5], w: f32[3,2,2,2]",
        Sum(2e-6),
    ),
    (
        "NnConvTranspose",
        "w: #[3,2,3,3], strides: [2, 2]",
        "x: f32[1,3,4,4]",
        Sum(2e-6),
    ),
    (
        "NnConvInteger",
        "w: [[[[1, 2], [3, 4]]]], x_zero: 1",
        "x: u8[1,1,3,3]",
        Exact,
    ),
    (
        "NnMaxPool",
        "kernel_shape: [3, 3], strides: [2, 2], pads: [1, 1, 1, 1]",
        "x: f32[1,3,8,8]",
        Exact,
    ),
    (
        "NnMaxPool",
        "kernel_shape: [2], outputs: [0, 1]",
        "x: f32[2,2,7]",
        Exact,
    ),
    (
        "NnAveragePool",
        "kernel_shape: [3, 3], pads: [1, 1, 1, 1]",
        "x: f32[1,2,6,6]",
        Sum(1e-6),
    ),
    (
        "NnAveragePool",
        "kernel_shape: [3], strides: [2], ceil_mode: 1, count_include_pad: 1, pads: [1, 1]",
        "x: f32[1,2,8]",
        Sum(1e-6),
    ),
    (
        "NnBatchNormalization",
        "scale: #[3], bias: #[3], mean: #[3], var: [0.5, 1.0, 2.0]",
        "x: f32[2,3,4]",
        Sum(1e-6),
    ),
    (
        "NnLSTM",
        "w: #[1,32,5], r: #[1,32,8], b: #[1,64], outputs: [0, 1, 2]",
        "x: f32[3,2,5], h: f32[1,2,8], c: f32[1,2,8]",
        Sum(3e-6),
    ),
    (
        "NnLSTM",
        "direction: bidirectional",
        "x: f32[3,1,4], w: f32[2,12,4], r: f32[2,12,3]",
        Sum(3e-6),
    ),
    (
        "NnGRU",
        "w: #[1,9,4], r: #[1,9,3], outputs: [0, 1]",
        "x: f32[4,2,4]",
        Sum(3e-6),
    ),
    (
        "NnGRU",
        "w: #[1,9,4], r: #[1,9,3], b: #[1,18], linear_before_reset: 1",
        "x: f32[4,2,4]",
        Sum(3e-6),
    ),
    (
        "NnRNN",
        "w: #[1,3,4], r: #[1,3,3], direction: reverse",
        "x: f32[4,2,4]",
        Sum(3e-6),
    ),
    (
        "NnAttention",
        "",
        "q: f32[1,2,5,8], k: f32[1,2,9,8], v: f32[1,2,9,6]",
        Sum(3e-6),
    ),
    (
        "NnAttention",
        "is_causal: 1, q_num_heads: 4, kv_num_heads: 2",
        "q: f32[2,6,16], k: f32[2,6,8], v: f32[2,6,8]",
        Sum(3e-6),
    ),
    (
        "NnAttention",
        "softcap: 2.0, outputs: [0, 1, 2]",
        "q: f32[1,2,1,8], k: f32[1,2,1,8], v: f32[1,2,1,8], mask: f32[1,300], past_key: f32[1,2,299,8], past_value: f32[1,2,299,8]",
        Sum(3e-6),
    ),
    (
        "NnRotaryEmbedding",
        "",
        "x: f32[1,2,3,8], cos: f32[1,3,4], sin: f32[1,3,4]",
        Sum(1e-6),
    ),
    (
        "NnResize",
        "scales: [1.0, 1.0, 2.0, 1.5], mode: linear",
        "x: f32[1,2,4,4]",
        Sum(1e-6),
    ),
    (
        "NnResize",
        "scales: [1.0, 1.0, 0.6, 2.0], mode: cubic",
        "x: f32[1,1,6,6]",
        Sum(1e-6),
    ),
    (
        "NnResize",
        "scales: [1.0, 1.0, 2.0, 3.0]",
        "x: u8[1,1,2,2]",
        Exact,
    ),
];

/// Tame elements: floats within ±2, integers that may be indices of small tensors.
fn elements(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    let mut one = || f64::from(random.unit());
    let floats: Vec<f64> = (0..count).map(|_| one()).collect();
    let scaled: Vec<f64> = floats
        .iter()
        .map(|v| match dtype {
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => v * 2.0,
            DType::Bool => f64::from(u8::from(*v > 0.0)),
            _ => (v * 2.0 + 1.0).round().abs(),
        })
        .collect();
    zbmd_op::args::encode(dtype, &scaled)
}

fn check(subject: &Subject, tolerance: Tolerance, random: &mut Random) -> Result<(), String> {
    let device = device().expect("checked before");
    let registry = crate::standard_registry();
    if let Some(why) = registry.gpu_reason(&subject.actor, &TiVec::new(), device.caps()) {
        return Err(format!("has no kernel: {why}"));
    }
    let plan = registry
        .lower(&subject.actor, &TiVec::new(), device.caps())
        .expect("no reason");
    for (firings, group) in [(1, 1), (5, 2)] {
        let data = subject.inputs(firings, |dtype, count| elements(random, dtype, count));
        let want = subject.run(&data, firings, firings);
        let got = on_device(&device, subject, &plan, &data, (firings, group));
        agree(subject, &got, &want, tolerance)
            .map_err(|e| format!("{firings} firings by {group}: {e}"))?;
    }
    Ok(())
}

#[test]
fn every_tensor_op_agrees_with_its_cpu_kernel() {
    let _turn = turn();
    let Some(device) = device() else { return };
    let only = std::env::var("ZBMD_CASE").ok();
    let mut random = Random(5);
    let mut wrong = Vec::new();
    for &(op, parameters, inputs, tolerance) in CASES {
        if only.as_ref().is_some_and(|o| !op.contains(o.as_str())) {
            continue;
        }
        let subject = subject(op, &filled(parameters, &mut random), inputs);
        if let Err(error) = check(&subject, tolerance, &mut random) {
            wrong.push(format!("{op}({parameters}) of ({inputs}): {error}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert_valid(&device);
}

#[test]
fn every_module_of_a_tensor_op_is_valid() {
    let mut random = Random(5);
    let registry = crate::standard_registry();
    let plans = CASES.iter().map(|&(op, parameters, inputs, _)| {
        let subject = subject(op, &filled(parameters, &mut random), inputs);
        let plan = registry.lower(&subject.actor, &TiVec::new(), &Caps::COMMON);
        (
            format!("{op}({parameters}) of ({inputs})"),
            plan.expect("a kernel"),
        )
    });
    let seen = valid_modules(plans);
    assert!(seen.is_none_or(|n| n > 80), "only {seen:?} modules");
}

#[test]
fn products_agree_in_every_variant() {
    let _turn = turn();
    let Some(device) = device() else { return };
    products::check_all(device.caps(), &|_| None, &|subject, plan, inputs, calls| {
        on_device(&device, subject, plan, inputs, calls)
    });
    assert_valid(&device);
}

#[test]
fn every_module_of_a_product_is_valid() {
    let seen = valid_modules(products::plans(&Caps::COMMON).into_iter());
    assert!(seen.is_none_or(|n| n > 20), "only {seen:?} modules");
}
