//! The op suite of GPUs: every case of the catalogue that has kernels for them, beside the CPU kernel, with the
//! tolerance that its op keeps. Cases without kernels are listed, with the reason.

use zbmd_ir::{DType, TiVec};

use super::conformance::{CASES, Random, Results, Subject, subject};
use crate::kernels::{Caps, KernelPlan};
use crate::replay::{Call, Queue};

/// How near an op comes to its CPU kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tolerance {
    /// The same bits, NaNs aside.
    Exact,
    /// As a share of each value, for ops of single elements.
    Each(f64),
    /// As a share of the largest value of the output, for sums.
    Sum(f64),
}

/// What every op keeps; conversions that divide and functions by polynomials differ in the last places.
fn tolerance(op: &str, parameters: &str) -> Tolerance {
    match op {
        "Fir" | "Correlate" | "MatMul" => Tolerance::Sum(1e-6),
        "Fft" | "Rfft" | "Irfft" => Tolerance::Sum(2e-6),
        "Sum" | "Mean" => Tolerance::Sum(2e-7),
        // Recursions in f64, rounded once.
        "Biquad" | "Deemphasis" => Tolerance::Sum(1e-7),
        "Tone" | "Mix" => Tolerance::Sum(3e-7),
        "Phase" | "Discriminate" | "Log" | "Magnitude" => Tolerance::Each(1e-6),
        "Div" => Tolerance::Each(4e-7),
        "Expr" if parameters.contains("pow") => Tolerance::Each(5e-6),
        "Expr"
            if ["exp", "tanh", "sin", "atan2", "cis", "/"]
                .iter()
                .any(|f| parameters.contains(f)) =>
        {
            Tolerance::Each(3e-6)
        }
        "Convert" if parameters.contains("from: cu8") => Tolerance::Each(2.4e-7),
        _ => Tolerance::Exact,
    }
}

/// Ops whose inputs must be tame: sums of anything with an infinity say nothing, nor does the sine of 10^30.
fn is_tame(op: &str, parameters: &str) -> bool {
    matches!(tolerance(op, parameters), Tolerance::Sum(_))
        || parameters.contains("sin(")
        || parameters.contains("cis(")
        || (parameters.contains("exp(x)") && op == "Expr")
}

/// Cases that GPUs leave to the CPU.
const CPU_ONLY: &[(&str, &str)] = &[
    (
        "expr: \"exp(x) * tanh(x) + pow(x, 3) / 7\"",
        "functions of f64",
    ),
    ("to: bf16", "f64 to bf16 in one rounding"),
    ("hop: 100", "headers of bursts, whatever their items"),
];

/// The kernels of a subject; `None` where the CPU keeps it.
pub(crate) fn lowered(subject: &Subject, caps: &Caps) -> Option<KernelPlan> {
    crate::standard_registry().lower(&subject.actor, &TiVec::new(), caps)
}

/// All outputs and states on a device, in calls that `make` makes for a number of firings.
pub(crate) fn in_calls<Q: Queue>(
    subject: &Subject,
    inputs: &[Vec<u8>],
    (firings, group): (usize, usize),
    make: impl Fn(usize) -> Call<Q>,
) -> Results {
    subject.in_calls(inputs, firings, group, |count, windows, states| {
        let mut call = make(count);
        let set = windows
            .iter()
            .enumerate()
            .try_for_each(|(i, w)| call.set_input(i, w));
        set.expect("inputs");
        let set = states
            .iter()
            .enumerate()
            .try_for_each(|(i, s)| call.set_state(i, s));
        set.expect("states");
        call.run().expect("a run");
        let states = states.iter_mut().enumerate();
        states.for_each(|(i, s)| *s = call.state(i).expect("a state"));
        let outputs = 0..subject.stateless_outputs().len();
        outputs
            .map(|i| call.output(i).expect("an output"))
            .collect()
    })
}

/// Parameters with every `#[shape]` as random numbers.
pub(crate) fn filled(text: &str, random: &mut Random) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("#[") {
        let (dims, after) = behind.split_once(']').expect("a shape");
        let dims: Vec<usize> = dims
            .split(',')
            .map(|d| d.trim().parse().expect("a size"))
            .collect();
        out.push_str(before);
        out.push_str(&nested(&dims, random));
        rest = after;
    }
    out + rest
}

fn nested(dims: &[usize], random: &mut Random) -> String {
    let Some((&first, inner)) = dims.split_first() else {
        return format!("{:.6}", random.unit());
    };
    let all: Vec<String> = (0..first).map(|_| nested(inner, random)).collect();
    format!("[{}]", all.join(", "))
}

fn bits_to_f64(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F32 | DType::C32 => bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()).into())
            .collect(),
        DType::F64 => bytes
            .chunks_exact(8)
            .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
            .collect(),
        DType::F16 => bytes
            .chunks_exact(2)
            .map(|b| half::f16::from_le_bytes(b.try_into().unwrap()).into())
            .collect(),
        DType::Bf16 => bytes
            .chunks_exact(2)
            .map(|b| half::bf16::from_le_bytes(b.try_into().unwrap()).into())
            .collect(),
        _ => bytes.iter().map(|&b| f64::from(b)).collect(),
    }
}

/// The first element that is too far off, and by how much.
pub(crate) fn compare(
    dtype: DType,
    got: &[u8],
    want: &[u8],
    tolerance: Tolerance,
) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{} bytes, not {}", got.len(), want.len()));
    }
    let float = matches!(
        dtype,
        DType::F32 | DType::C32 | DType::F64 | DType::F16 | DType::Bf16
    );
    let (g, w) = (bits_to_f64(dtype, got), bits_to_f64(dtype, want));
    let size = got.len() / g.len().max(1);
    let finite = w.iter().copied().filter(|v| v.is_finite());
    let scale = finite.fold(1e-30_f64, |m, v| m.max(v.abs()));
    for (i, (&a, &b)) in g.iter().zip(&w).enumerate() {
        let equal_bits = got[i * size..][..size] == want[i * size..][..size];
        let near = match tolerance {
            _ if equal_bits || (float && a.is_nan() && b.is_nan()) => true,
            _ if !float || a.is_nan() || b.is_nan() => false,
            Tolerance::Exact => false,
            Tolerance::Each(share) => (a - b).abs() <= share * b.abs().max(1e-30) || a == b,
            Tolerance::Sum(share) => (a - b).abs() <= share * scale || a == b,
        };
        if !near {
            let error = (a - b).abs() / b.abs().max(1e-30);
            return Err(format!(
                "element {i} is {a:e}, not {b:e}: off by {error:e} of it"
            ));
        }
    }
    Ok(())
}

pub(crate) fn tame(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    match dtype {
        DType::F32 | DType::C32 => {
            let count = if dtype == DType::C32 {
                2 * count
            } else {
                count
            };
            (0..count)
                .flat_map(|_| (random.unit() * 3.0).to_le_bytes())
                .collect()
        }
        DType::F64 => (0..count)
            .flat_map(|_| f64::from(random.unit()).to_le_bytes())
            .collect(),
        _ => random.elements(dtype, count),
    }
}

/// Outputs and states beside those of the CPU kernel.
pub(crate) fn agree(
    subject: &Subject,
    got: &Results,
    want: &Results,
    tolerance: Tolerance,
) -> Result<(), String> {
    for (i, port) in subject.stateless_outputs().iter().enumerate() {
        compare(port.token.dtype, &got.0[i], &want.0[i], tolerance)
            .map_err(|e| format!("output {i}: {e}"))?;
    }
    for (i, state) in subject.actor.state.iter().enumerate() {
        let dtype = subject.actor.inputs[state.input as usize].token.dtype;
        compare(dtype, &got.1[i], &want.1[i], tolerance).map_err(|e| format!("state {i}: {e}"))?;
    }
    Ok(())
}

/// Runs a subject's kernels on a device: so many firings, so many in a call.
pub(crate) type Run<'a> = &'a dyn Fn(&Subject, &KernelPlan, &[Vec<u8>], (usize, usize)) -> Results;

fn check(
    (op, parameters, inputs): (&str, &str, &str),
    caps: &Caps,
    most: usize,
    run: Run<'_>,
    random: &mut Random,
) -> Result<(), String> {
    let subject = subject(op, parameters, inputs);
    let Some(plan) = lowered(&subject, caps) else {
        let known = CPU_ONLY.iter().any(|(p, _)| parameters.contains(p));
        return if known {
            Ok(())
        } else {
            Err("has no kernel and is not listed".into())
        };
    };
    for (firings, group) in [(1, 1), (7, 2), (most, most)] {
        let data = subject.inputs(firings, |dtype, elements| match is_tame(op, parameters) {
            true => tame(random, dtype, elements),
            false => random.elements(dtype, elements),
        });
        let want = subject.run(&data, firings, firings);
        let got = run(&subject, &plan, &data, (firings, group));
        agree(&subject, &got, &want, tolerance(op, parameters))
            .map_err(|e| format!("{firings} firings by {group}: {e}"))?;
    }
    Ok(())
}

/// Every case on a device, for one firing, for some in several calls, and for `most` in one.
///
/// # Panics
/// If one differs from its CPU kernel, or has neither kernels nor a reason; it names them all.
pub(crate) fn check_all(caps: &Caps, most: usize, run: Run<'_>) {
    let mut random = Random(11);
    let mut wrong = Vec::new();
    for &(op, parameters, inputs) in CASES {
        if let Err(error) = check((op, parameters, inputs), caps, most, run, &mut random) {
            wrong.push(format!("{op}({parameters}) of ({inputs}): {error}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
