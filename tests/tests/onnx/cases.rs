//! The operator cases of the ONNX suite, each run once through the interpreter: passed, or refused with a reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use zbmd_backends::call::Call;
use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, graph_of_onnx};
use zbmd_ir::{DType, Role};
use zbmd_tests::data;
use zbmd_tests::onnx::{Ran, Tensor, difference, read_pb, run_once};

struct Case {
    name: String,
    operator: String,
    rtol: f64,
    atol: f64,
}

fn cases(dir: &std::path::Path) -> Vec<Case> {
    let table = std::fs::read_to_string(dir.join("cases.tsv")).expect("cases.tsv");
    let lines = table
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty());
    lines
        .map(|line| {
            let parts: Vec<&str> = line.split('\t').collect();
            let number = |i: usize| parts[i].parse().expect("a tolerance");
            Case {
                name: parts[0].into(),
                operator: parts[1].into(),
                rtol: number(2),
                atol: number(3),
            }
        })
        .collect()
}

fn tensors(dir: &std::path::Path, kind: &str) -> Vec<Tensor> {
    (0..)
        .map(|i| dir.join(format!("{kind}_{i}.pb")))
        .take_while(|p| p.exists())
        .map(|p| read_pb(&p))
        .collect()
}

enum Verdict {
    Passed,
    Refused(String),
    Wrong(String),
}

fn judge(dir: PathBuf, case: &Case, registry: &Registry) -> Verdict {
    let model = std::fs::read(dir.join("model.onnx")).expect("model.onnx");
    let (inputs, outputs) = (tensors(&dir, "input"), tensors(&dir, "output"));
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        run_once(&model, &inputs, registry)
    }));
    let got: BTreeMap<String, Vec<u8>> = match ran {
        Err(_) => return Verdict::Wrong("it crashed".to_owned()),
        Ok(Ran::Refused(why)) => return Verdict::Refused(why),
        Ok(Ran::Outputs(outputs)) => outputs,
    };
    for want in &outputs {
        let Some(bytes) = got.get(&want.name) else {
            return Verdict::Wrong(format!("no output `{}`", want.name));
        };
        if let Some(apart) = difference(bytes, want, case.rtol, case.atol) {
            return Verdict::Wrong(format!("output `{}`: {apart}", want.name));
        }
    }
    Verdict::Passed
}

#[test]
fn operator_cases_pass_or_are_refused_with_a_reason() {
    let Some(dir) = data::file("onnx-node") else {
        return;
    };
    let registry = zbmd_backends::standard_registry();
    let only = std::env::var("ZBMD_CASE").ok();
    let (mut passed, mut refused, mut wrong) = (0, String::new(), String::new());
    let cases: Vec<Case> = cases(&dir)
        .into_iter()
        .filter(|c| only.as_ref().is_none_or(|o| c.name.contains(o.as_str())))
        .collect();
    for case in &cases {
        match judge(dir.join(&case.name), case, &registry) {
            Verdict::Passed => passed += 1,
            Verdict::Refused(why) => {
                let _ = writeln!(refused, "{} ({}): {why}", case.name, case.operator);
            }
            Verdict::Wrong(why) => {
                let _ = writeln!(wrong, "{} ({}): {why}", case.name, case.operator);
            }
        }
    }
    println!(
        "{passed} of {} passed\nrefused:\n{refused}\nwrong:\n{wrong}",
        cases.len()
    );
    assert!(wrong.is_empty(), "wrong:\n{wrong}");
    if only.is_none() {
        assert!(
            passed * 100 >= cases.len() * 95,
            "{passed} of {} passed; refused:\n{refused}",
            cases.len()
        );
        insta::assert_snapshot!(refused);
    }
}

/// Random elements: floats within ±2, small integers that may be indices.
fn random(rng: &mut fastrand::Rng, dtype: DType, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes);
    while out.len() < bytes {
        let (v, i) = (rng.f32() * 4.0 - 2.0, rng.i8(0..3));
        match dtype {
            DType::F32 => out.extend(v.to_le_bytes()),
            DType::F64 => out.extend(f64::from(v).to_le_bytes()),
            DType::F16 => out.extend(half::f16::from_f32(v).to_le_bytes()),
            DType::Bf16 => out.extend(half::bf16::from_f32(v).to_le_bytes()),
            DType::I64 => out.extend(i64::from(i).to_le_bytes()),
            DType::I32 => out.extend(i32::from(i).to_le_bytes()),
            DType::I16 => out.extend(i16::from(i).to_le_bytes()),
            DType::Bool => out.push(u8::from(i > 0)),
            _ => out.push(i as u8),
        }
    }
    out
}

#[test]
fn bits_do_not_depend_on_how_firings_are_grouped() {
    const FIRINGS: usize = 3;
    let Some(dir) = data::file("onnx-node") else {
        return;
    };
    let registry = zbmd_backends::standard_registry();
    let mut rng = fastrand::Rng::with_seed(5);
    let mut actors = 0;
    for case in cases(&dir) {
        let model = std::fs::read(dir.join(&case.name).join("model.onnx")).expect("model.onnx");
        // Cases whose operands must be constants are resolved with them elsewhere.
        let Ok((graph, blobs)) = graph_of_onnx(&case.name, &model, &CompileOptions::default())
        else {
            continue;
        };
        for actor in graph.actors.iter().filter(|a| a.role == Role::Compute) {
            let kernel = registry.kernel(actor, &blobs).expect("a kernel");
            let scratch = kernel.scratch_bytes();
            let mut whole = Call::new(actor, scratch, FIRINGS);
            let mut parts: Vec<Call> = (0..FIRINGS).map(|_| Call::new(actor, scratch, 1)).collect();
            for (i, port) in actor.inputs.iter().enumerate() {
                let bytes = port.token.bytes() as usize;
                let tokens = random(&mut rng, port.token.dtype, FIRINGS * bytes);
                whole.input(i).copy_from_slice(&tokens);
                parts
                    .iter_mut()
                    .zip(tokens.chunks_exact(bytes))
                    .for_each(|(p, t)| p.input(i).copy_from_slice(t));
            }
            whole.run(&*kernel).expect("no fault");
            parts
                .iter_mut()
                .for_each(|p| p.run(&*kernel).expect("no fault"));
            for (o, port) in actor.outputs.iter().enumerate() {
                let each: Vec<u8> = parts.iter().flat_map(|p| p.output(o).to_vec()).collect();
                let same = match port.token.dtype {
                    // NaNs may differ in sign and payload.
                    DType::F32 => bytes_as_f32(&each)
                        .zip(bytes_as_f32(whole.output(o)))
                        .all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())),
                    DType::F64 | DType::F16 | DType::Bf16 => {
                        let wide = |b: &[u8]| zbmd_tests::onnx::to_f64(b, port.token.dtype);
                        wide(&each)
                            .iter()
                            .zip(wide(whole.output(o)))
                            .all(|(a, b)| *a == b || (a.is_nan() && b.is_nan()))
                    }
                    _ => each == whole.output(o),
                };
                assert!(
                    same,
                    "{}: output `{}` of {}",
                    case.name, port.name, actor.op
                );
            }
            actors += 1;
        }
    }
    assert!(actors > 300, "{actors} kernels were called");
}

fn bytes_as_f32(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes
        .chunks_exact(4)
        .map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]))
}
