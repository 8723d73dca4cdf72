//! Every op beside its CPU kernel, functions on values of every kind, and every module in `spirv-val`.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use zbmd_ir::DType;

use crate::kernels::emit::spirv::{Floats, print};
use crate::kernels::{Caps, KernelPlan, Step};
use crate::tests::ops::conformance::{CASES, Results, Subject, subject};
use crate::tests::ops::gpus::{Tolerance, check_all, compare, in_calls, lowered};
use crate::vulkan::testing::{assert_valid, device, turn};
use crate::vulkan::{GpuCall, VulkanDevice};

/// All outputs and states of `firings` firings on the device, in calls of `group`.
pub(super) fn on_device(
    device: &Arc<VulkanDevice>,
    subject: &Subject,
    plan: &KernelPlan,
    inputs: &[Vec<u8>],
    calls: (usize, usize),
) -> Results {
    in_calls(subject, inputs, calls, |count| {
        GpuCall::new(device, &subject.actor, plan, count, 1).expect("a call")
    })
}

#[test]
fn every_op_agrees_with_its_cpu_kernel() {
    let _turn = turn();
    let Some(device) = device() else { return };
    check_all(device.caps(), 83, &|subject, plan, inputs, calls| {
        on_device(&device, subject, plan, inputs, calls)
    });
    assert_valid(&device);
}

#[test]
fn functions_agree_on_values_of_every_kind() {
    let _turn = turn();
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
    let pairs: Vec<(f32, f32)> = values
        .iter()
        .flat_map(|&x| values.iter().map(move |&y| (x, y)))
        .collect();
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
        let inputs = if text.contains('y') {
            "x: f32, y: f32"
        } else {
            "x: f32"
        };
        let subject = subject("Expr", &format!("expr: \"{text}\""), inputs);
        let plan = lowered(&subject, device.caps()).expect("a kernel");
        let side =
            |f: fn(&(f32, f32)) -> f32| pairs.iter().flat_map(|p| f(p).to_le_bytes()).collect();
        let mut data: Vec<Vec<u8>> = vec![side(|p| p.0), side(|p| p.1)];
        data.truncate(subject.actor.inputs.len());
        let want = subject.run(&data, pairs.len(), pairs.len());
        let got = on_device(&device, &subject, &plan, &data, (pairs.len(), pairs.len()));
        for (i, &(x, y)) in pairs.iter().enumerate() {
            let (g, w) = (&got.0[0][4 * i..4 * i + 4], &want.0[0][4 * i..4 * i + 4]);
            // Devices may treat numbers below the normal ones as zeros.
            let tiny = [x, y]
                .iter()
                .any(|v| *v != 0.0 && v.abs() < f32::MIN_POSITIVE);
            if let Err(e) = compare(DType::F32, g, w, Tolerance::Each(5e-6))
                && !tiny
            {
                wrong.push(format!("{text} at {x:e}, {y:e}: {e}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} values:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
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
    Some(if output.status.success() {
        Ok(())
    } else {
        Err(text)
    })
}

/// Runs `spirv-val` on every module of the plans; how many there were, or `None` where it is not installed.
pub(super) fn valid_modules(plans: impl Iterator<Item = (String, KernelPlan)>) -> Option<usize> {
    let mut seen = std::collections::BTreeSet::new();
    for (name, plan) in plans {
        for step in &plan.steps {
            let Step::Run(run) = step else { continue };
            for keep in [false, true] {
                let words = print(
                    &run.kernel,
                    Floats {
                        keep32: keep,
                        keep64: keep,
                    },
                );
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
