//! Products of matrices on GPUs in every variant, beside their CPU kernels. `#[2,3]` in parameters stands for a
//! constant tensor of that shape.

use zbmd_ir::TiVec;

use super::conformance::{Random, Subject, subject};
use super::gpus::{Run, Tolerance, agree, filled, tame};
use crate::kernels::{Caps, KernelPlan, Math, library};

/// Sums are added in another order than on the CPU, and factors rounded where they may be.
fn tolerance(plan: &KernelPlan) -> Tolerance {
    Tolerance::Sum(if plan.math() == Math::F32 { 2e-6 } else { 1e-2 })
}

const FIRINGS: usize = 5;

/// Op, parameters, inputs, and the names of all variants, the default one first.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

const CASES: &[Case] = &[
    (
        "NnMatMul",
        "y: #[20,66], bias: #[66], act: relu",
        "x: f32[64,20]",
        &["tiles-32", "tiles-16", "tiles-64", "tiles-128", "cublaslt"],
    ),
    (
        "NnMatMul",
        "",
        "x: f32[2,9,12], y: f32[2,12,24]",
        &["tiles-16", "tiles-32", "cublaslt"],
    ),
    (
        "NnMatMul",
        "y: #[150,20], act: relu",
        "x: f32[35,150]",
        &["deep-16x4", "tiles-16", "tiles-32", "deep-32x2", "cublaslt"],
    ),
    // One right matrix for all left ones of a firing, whose rows are those of one.
    (
        "NnMatMul",
        "",
        "x: f32[3,8,6], y: f32[6,9]",
        &["tiles-16", "tiles-32", "cublaslt"],
    ),
    (
        "NnMatMul",
        "y: #[9,10]",
        "x: f32[2,7,9]",
        &["tiles-16", "tiles-32", "cublaslt"],
    ),
    (
        "NnMatMul",
        "x: #[9,11]",
        "y: f32[11,10]",
        &["tiles-16", "tiles-32", "cublaslt"],
    ),
    (
        "NnMatMul",
        "y: #[96,40]",
        "x: f32[1,96]",
        &["slices-16x4", "slices-32x8", "slices-16x16", "cublaslt"],
    ),
    (
        "NnMatMul",
        "y: #[600,24]",
        "x: f32[2,600]",
        &[
            "slices-8x32",
            "slices-16x4",
            "slices-32x8",
            "slices-16x16",
            "cublaslt",
        ],
    ),
    (
        "NnMatMul",
        "",
        "x: f32[3,1,70], y: f32[70,7]",
        &["group-64", "group-256", "cublaslt"],
    ),
    (
        "NnMatMul",
        "",
        "x: f32[4], y: f32[4]",
        &["elements", "cublaslt"],
    ),
    (
        "NnGemm",
        "b: #[10,300], c: #[10], transB: 1, alpha: 0.5",
        "a: f32[1,300]",
        &["group-64", "group-256", "cublaslt"],
    ),
    (
        "NnGemm",
        "b: #[17,11], transA: 1",
        "a: f32[17,9]",
        &["tiles-16", "tiles-32", "cublaslt"],
    ),
    (
        "NnGemm",
        "transA: 1, transB: 1, act: relu",
        "a: f32[5,9], b: f32[8,5]",
        &["tiles-16", "tiles-32", "cublaslt"],
    ),
    // What the library does not do: batches that lie apart, a matrix that is added, activations.
    (
        "NnMatMul",
        "",
        "x: f32[2,1,8,6], y: f32[3,6,9]",
        &["tiles-16", "tiles-32"],
    ),
    (
        "NnMatMul",
        "y: #[2,6,9]",
        "x: f32[2,8,6]",
        &["tiles-16", "tiles-32"],
    ),
    (
        "NnMatMul",
        "y: #[6,9], act: gelu",
        "x: f32[8,6]",
        &["tiles-16", "tiles-32"],
    ),
    (
        "NnGemm",
        "b: #[6,9]",
        "a: f32[8,6], c: f32[8,9]",
        &["tiles-16", "tiles-32"],
    ),
    (
        "NnGemm",
        "b: #[6,9], c: #[9], beta: 2.0",
        "a: f32[8,6]",
        &["tiles-16", "tiles-32"],
    ),
    (
        "NnMatMul",
        "",
        "x: f16[8,6], y: f16[6,9]",
        &["tiles-16", "tiles-32"],
    ),
    ("NnMatMul", "", "x: i32[3,4], y: i32[4,5]", &[]),
    (
        "NnConv",
        "w: #[33,3,3,3], b: #[33], pads: [1, 1, 1, 1], act: relu",
        "x: f32[1,3,6,6]",
        &["tiles-32", "tiles-16", "tiles-64"],
    ),
    (
        "NnConv",
        "w: #[3,40,2,1], group: 1",
        "x: f32[1,40,3,3]",
        &["group-64", "group-256"],
    ),
];

/// Those that depend on rounded factors, which only some devices multiply.
const ROUNDED: &[Case] = &[
    (
        "NnMatMul",
        "y: #[40,70], math: tf32",
        "x: f32[33,40]",
        &["cores-32", "cores-64", "cublaslt"],
    ),
    (
        "NnMatMul",
        "y: #[200,40], math: f16",
        "x: f32[33,200]",
        &["deep-cores-32x4", "cores-32", "cores-64"],
    ),
    (
        "NnMatMul",
        "math: bf16",
        "x: f32[8,12], y: f32[12,9]",
        &["cores-32", "cores-64"],
    ),
    ("NnMatMul", "y: #[6,9], math: f16", "x: f32[1,6]", &[]),
];

fn subjects(caps: &Caps) -> impl Iterator<Item = (String, Subject, &'static [&'static str])> {
    let rounded = if caps.capability >= Some(Math::CAPABILITY) {
        ROUNDED
    } else {
        &[]
    };
    let mut random = Random(29);
    CASES
        .iter()
        .chain(rounded)
        .map(move |&(op, parameters, inputs, names)| {
            let name = format!("{op}({parameters}) of ({inputs})");
            (
                name,
                subject(op, &filled(parameters, &mut random), inputs),
                names,
            )
        })
}

/// The kernels of every variant of every case that devices like this can run.
pub(crate) fn plans(caps: &Caps) -> Vec<(String, KernelPlan)> {
    let (registry, blobs) = (crate::standard_registry(), TiVec::new());
    let mut all = Vec::new();
    for (name, subject, names) in subjects(caps) {
        for variant in names {
            if let Ok(plan) = registry.lower_in(&subject.actor, &blobs, caps, Some(variant)) {
                all.push((format!("{name} by {variant}"), plan));
            }
        }
    }
    all
}

/// Every case in every variant, beside the CPU's kernel, for single firings and several at once, which must have the
/// same bits; variants that only share their sums out otherwise, too. `refuses` says why a library is not there.
pub(crate) fn check_all(
    caps: &Caps,
    refuses: &dyn Fn(&KernelPlan) -> Option<String>,
    run: Run<'_>,
) {
    let (registry, blobs) = (crate::standard_registry(), TiVec::new());
    let mut random = Random(31);
    for (name, subject, names) in subjects(caps) {
        let default = registry
            .lower(&subject.actor, &blobs, caps)
            .expect("kernels");
        assert_eq!(default.variants(), names, "{name}");
        let data = subject.inputs(FIRINGS, |dtype, count| tame(&mut random, dtype, count));
        let want = subject.run(&data, FIRINGS, FIRINGS);
        let mut tiles = None;
        for variant in names {
            let case = format!("{name} by {variant}");
            let is_library = *variant == library::NAME;
            let plan = match registry.lower_in(&subject.actor, &blobs, caps, Some(variant)) {
                Err(why) if is_library && caps.capability.is_none() => {
                    assert_eq!(why, "products by cuBLASLt are for CUDA devices");
                    continue;
                }
                plan => plan.unwrap_or_else(|why| panic!("{case}: {why}")),
            };
            assert_eq!(plan.variants(), names, "{case}");
            assert_eq!(plan.products().count(), usize::from(is_library), "{case}");
            assert_eq!(plan.math(), default.math(), "{case}");
            if let Some(why) = refuses(&plan) {
                eprintln!("SKIPPED, {case}: {why}");
                continue;
            }
            let got = run(&subject, &plan, &data, (FIRINGS, FIRINGS));
            agree(&subject, &got, &want, tolerance(&plan))
                .unwrap_or_else(|e| panic!("{case}: {e}"));
            let single = run(&subject, &plan, &data, (FIRINGS, 1));
            assert!(
                single == got,
                "{case}: bits depend on how firings are grouped"
            );
            if variant.starts_with("tiles") || variant.starts_with("cores") {
                let first = tiles.get_or_insert_with(|| got.clone());
                assert!(*first == got, "{case}: not the bits of other tiles");
            }
        }
    }
}

#[test]
fn an_unknown_variant_is_refused_in_a_sentence() {
    let (registry, blobs) = (crate::standard_registry(), TiVec::new());
    let product = subject("NnMatMul", "", "x: f32[8,6], y: f32[6,9]");
    let refused = |subject: &Subject, caps: &Caps, name: &str| {
        let plan = registry.lower_in(&subject.actor, &blobs, caps, Some(name));
        plan.map(drop).expect_err("there is no such variant")
    };
    assert_eq!(
        refused(&product, &Caps::CUDA, "tiles-7"),
        "there is no variant `tiles-7` of it, but tiles-16, tiles-32, cublaslt"
    );
    let gain = subject("Gain", "gain: 2", "f32");
    assert_eq!(
        refused(&gain, &Caps::CUDA, "tiles-16"),
        "there is no variant `tiles-16` of it, but none"
    );
    assert_eq!(
        refused(&product, &Caps::COMMON, "cublaslt"),
        "products by cuBLASLt are for CUDA devices"
    );
}
