//! The op suite: every case of the catalogue that has kernels for GPUs, beside the CPU kernel, with the tolerance that
//! its op keeps. Cases without kernels are listed, with the reason.

use std::io::Write;
use std::process::{Command, Stdio};

use zbmd_ir::{DType, TiVec};

use super::{assert_valid, device};
use crate::kernels::{Caps, KernelPlan, Step};
use crate::op::Registry;
use crate::ops::conformance::{CASES, Random, Results, Subject, subject};
use crate::vulkan::GpuCall;
use crate::vulkan::spirv::{Floats, print};

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
pub(crate) fn tolerance(op: &str, parameters: &str) -> Tolerance {
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
pub(crate) fn is_tame(op: &str, parameters: &str) -> bool {
    matches!(tolerance(op, parameters), Tolerance::Sum(_))
        || parameters.contains("sin(")
        || parameters.contains("cis(")
        || (parameters.contains("exp(x)") && op == "Expr")
}

/// Cases that GPUs leave to the CPU.
pub(crate) const CPU_ONLY: &[(&str, &str)] = &[
    ("expr: \"exp(x) * tanh(x) + pow(x, 3) / 7\"", "functions of f64"),
    ("to: bf16", "f64 to bf16 in one rounding"),
];

fn lowered(subject: &Subject, caps: &Caps) -> Option<KernelPlan> {
    Registry::standard().lower(&subject.actor, &TiVec::new(), caps)
}

fn bits_to_f64(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F32 | DType::C32 => bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()).into())
            .collect(),
        DType::F64 => {
            bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
        }
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
    let float = matches!(dtype, DType::F32 | DType::C32 | DType::F64);
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
            return Err(format!("element {i} is {a:e}, not {b:e}: off by {error:e} of it"));
        }
    }
    Ok(())
}

/// All outputs and states of `firings` firings on the device, in calls of `group`.
pub(super) fn on_device(
    subject: &Subject,
    plan: &KernelPlan,
    inputs: &[Vec<u8>],
    firings: usize,
    group: usize,
) -> Results {
    let device = device().expect("checked before");
    let mut outputs = vec![Vec::new(); subject.stateless_outputs().len()];
    let mut states = subject.initial.clone();
    let mut first = 0;
    while first < firings {
        let count = group.min(firings - first);
        let mut call = GpuCall::new(&device, &subject.actor, plan, count, 1).expect("a call");
        for (i, all) in inputs.iter().enumerate() {
            let port = &subject.actor.inputs[i];
            let start = first * (port.rate * port.token.bytes()) as usize;
            let tokens = (count as u64 - 1) * port.rate + port.window;
            let bytes = &all[start..][..(tokens * port.token.bytes()) as usize];
            call.set_input(i, bytes).expect("an input");
        }
        states.iter().enumerate().for_each(|(i, s)| call.set_state(i, s).expect("a state"));
        call.run().expect("a run");
        let outputs = outputs.iter_mut().enumerate();
        outputs.for_each(|(i, o)| o.extend(call.output(i).expect("an output")));
        let states = states.iter_mut().enumerate();
        states.for_each(|(i, s)| *s = call.state(i).expect("a state"));
        first += count;
    }
    (outputs, states)
}

pub(crate) fn tame(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    match dtype {
        DType::F32 | DType::C32 => {
            let count = if dtype == DType::C32 { 2 * count } else { count };
            (0..count).flat_map(|_| (random.unit() * 3.0).to_le_bytes()).collect()
        }
        DType::F64 => (0..count).flat_map(|_| f64::from(random.unit()).to_le_bytes()).collect(),
        _ => random.elements(dtype, count),
    }
}

fn check(op: &str, parameters: &str, inputs: &str, random: &mut Random) -> Result<(), String> {
    let Some(device) = device() else { return Ok(()) };
    let subject = subject(op, parameters, inputs);
    let Some(plan) = lowered(&subject, device.caps()) else {
        let known = CPU_ONLY.iter().any(|(p, _)| parameters.contains(p));
        return if known { Ok(()) } else { Err("has no kernel and is not listed".into()) };
    };
    for (firings, group) in [(1, 1), (7, 2), (83, 83)] {
        let count = subject.actor.inputs.len() - subject.actor.state.len();
        let data: Vec<Vec<u8>> = subject.actor.inputs[..count]
            .iter()
            .map(|p| {
                let tokens = (firings as u64 - 1) * p.rate + p.window;
                let elements = (tokens * p.token.elements()) as usize;
                match is_tame(op, parameters) {
                    true => tame(random, p.token.dtype, elements),
                    false => random.elements(p.token.dtype, elements),
                }
            })
            .collect();
        let want = subject.run(&data, firings, firings);
        let got = on_device(&subject, &plan, &data, firings, group);
        let tolerance = tolerance(op, parameters);
        for (i, port) in subject.stateless_outputs().iter().enumerate() {
            compare(port.token.dtype, &got.0[i], &want.0[i], tolerance)
                .map_err(|e| format!("output {i} of {firings} firings by {group}: {e}"))?;
        }
        for (i, state) in subject.actor.state.iter().enumerate() {
            let dtype = subject.actor.inputs[state.input as usize].token.dtype;
            compare(dtype, &got.1[i], &want.1[i], tolerance)
                .map_err(|e| format!("state {i} after {firings} firings by {group}: {e}"))?;
        }
    }
    Ok(())
}

#[test]
fn every_op_agrees_with_its_cpu_kernel() {
    let Some(device) = device() else { return };
    let mut random = Random(11);
    let mut wrong = Vec::new();
    for &(op, parameters, inputs) in CASES {
        if let Err(error) = check(op, parameters, inputs, &mut random) {
            wrong.push(format!("{op}({parameters}) of ({inputs}): {error}"));
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert_valid(&device);
}

#[test]
fn functions_agree_on_values_of_every_kind() {
    let Some(device) = device() else { return };
    let values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -2.0,
        3.0,
        1e-30,
        -1e-30,
        1e30,
        -1e30,
        9000.0,
        -12345.6,
        2e7,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e-42,
        88.0,
        -100.0,
        0.78,
    ];
    let pairs: Vec<(f32, f32)> =
        values.iter().flat_map(|&x| values.iter().map(move |&y| (x, y))).collect();
    let mut wrong = Vec::new();
    for text in [
        "atan2(x, y)",
        "pow(x, y)",
        "exp(x)",
        "log(x)",
        "tanh(x)",
        "abs(x) < 3e7 ? sin(x) : 0",
        "abs(x) < 3e7 ? cos(x) : 0",
        "min(x, y)",
        "max(x, y)",
        "x / y",
        "round(x) + floor(y)",
        "sqrt(abs(x)) - y",
    ] {
        let inputs = if text.contains('y') { "x: f32, y: f32" } else { "x: f32" };
        let subject = subject("Expr", &format!("expr: \"{text}\""), inputs);
        let plan = lowered(&subject, device.caps()).expect("a kernel");
        let side =
            |f: fn(&(f32, f32)) -> f32| pairs.iter().flat_map(|p| f(p).to_le_bytes()).collect();
        let mut data: Vec<Vec<u8>> = vec![side(|p| p.0), side(|p| p.1)];
        data.truncate(subject.actor.inputs.len());
        let want = subject.run(&data, pairs.len(), pairs.len());
        let got = on_device(&subject, &plan, &data, pairs.len(), pairs.len());
        for (i, &(x, y)) in pairs.iter().enumerate() {
            let (g, w) = (&got.0[0][4 * i..4 * i + 4], &want.0[0][4 * i..4 * i + 4]);
            // Devices may treat numbers below the normal ones as zeros.
            let tiny = [x, y].iter().any(|v| *v != 0.0 && v.abs() < f32::MIN_POSITIVE);
            if let Err(e) = compare(DType::F32, g, w, Tolerance::Each(5e-6))
                && !tiny
            {
                wrong.push(format!("{text} at {x:e}, {y:e}: {e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} values:\n{}", wrong.len(), wrong.join("\n"));
    assert_valid(&device);
}

/// `spirv-val` on a module; `None` where it is not installed.
fn validate(words: &[u32]) -> Option<Result<(), String>> {
    let mut child = Command::new("spirv-val")
        .args(["--target-env", "vulkan1.2", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let bytes: &[u8] = bytemuck::cast_slice(words);
    child.stdin.take()?.write_all(bytes).ok()?;
    let output = child.wait_with_output().ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = text + &String::from_utf8_lossy(&output.stdout);
    Some(if output.status.success() { Ok(()) } else { Err(text) })
}

/// Runs `spirv-val` on every module of the plans; how many there were, or `None` where it is not installed.
pub(super) fn valid_modules(plans: impl Iterator<Item = (String, KernelPlan)>) -> Option<usize> {
    let mut seen = std::collections::BTreeSet::new();
    for (name, plan) in plans {
        for step in &plan.steps {
            let Step::Run(run) = step else { continue };
            for keep in [false, true] {
                let words = print(&run.kernel, Floats { keep32: keep, keep64: keep });
                if !seen.insert(words.clone()) {
                    continue;
                }
                match validate(&words) {
                    None => {
                        eprintln!("SKIPPED: spirv-val is not installed");
                        return None;
                    }
                    Some(result) => {
                        result.unwrap_or_else(|e| panic!("{name}: {e}\n{}", run.kernel));
                    }
                }
            }
        }
    }
    Some(seen.len())
}

#[test]
fn every_module_is_valid() {
    let plans = CASES.iter().filter_map(|&(op, parameters, inputs)| {
        let plan = lowered(&subject(op, parameters, inputs), &Caps::COMMON)?;
        Some((format!("{op}({parameters}) of ({inputs})"), plan))
    });
    let seen = valid_modules(plans);
    assert!(seen.is_none_or(|n| n > 40), "only {seen:?} modules");
}
