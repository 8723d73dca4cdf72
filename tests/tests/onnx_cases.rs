//! The operator cases of the ONNX suite, each run once through the interpreter: passed, or refused with a reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use zbmd_backends::op::Registry;
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
    let lines = table.lines().filter(|l| !l.starts_with('#') && !l.is_empty());
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
    let Some(dir) = data::file("onnx-node") else { return };
    let registry = Registry::standard();
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
    println!("{passed} of {} passed\nrefused:\n{refused}\nwrong:\n{wrong}", cases.len());
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
