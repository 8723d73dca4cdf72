//! Expressions: what text compiles to, what it computes, what is refused.

use std::collections::BTreeMap;

use super::lower::{Meaning, lower};
use super::parse::parse;
use super::{Program, Ty};

fn compile(text: &str, inputs: &[(&str, Ty)]) -> Program {
    let names: BTreeMap<String, Meaning> = inputs
        .iter()
        .enumerate()
        .map(|(i, &(name, ty))| (name.to_owned(), Meaning::Input(i as u16, ty, false)))
        .collect();
    let types = inputs.iter().map(|&(_, ty)| ty).collect();
    lower(&parse(text).expect(text), &names, types).expect(text)
}

#[test]
fn programs_are_short_folded_and_share_parts() {
    let cases: &[(&str, &[(&str, Ty)])] = &[
        (
            "g + mu * (1.0 - m)",
            &[("g", Ty::F32), ("m", Ty::F32), ("mu", Ty::F32)],
        ),
        ("x * (1 / 2) + 3 * 4 - sqrt(16)", &[("x", Ty::F32)]),
        (
            "(x + y) * (x + y) / (x + y)",
            &[("x", Ty::I32), ("y", Ty::F32)],
        ),
        ("x * g / 2", &[("x", Ty::C32), ("g", Ty::F32)]),
        ("x > 2 && !(x >= 3) ? pow(x, 3) : -x", &[("x", Ty::I64)]),
        ("1 < 2 ? x : y", &[("x", Ty::F32), ("y", Ty::F64)]),
        ("x", &[("x", Ty::C32)]),
    ];
    let mut text = String::new();
    for (expr, inputs) in cases {
        text += &format!("{expr}\n{}\n", compile(expr, inputs));
    }
    insta::assert_snapshot!(text);
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "[x0-9.e+*/()<>=!&|?:, a-c-]{0,40}") {
        if let Ok(tree) = parse(&text) {
            let mut names = Vec::new();
            super::parse::names(&tree, &mut names);
            let meaning = |(i, n): (usize, String)| (n, Meaning::Input(i as u16, Ty::F32, false));
            let names: BTreeMap<_, _> = names.into_iter().enumerate().map(meaning).collect();
            let types = vec![Ty::F32; names.len()];
            if let Ok(program) = lower(&tree, &names, types) {
                for (i, instr) in program.instrs.iter().enumerate() {
                    proptest::prop_assert_eq!(usize::from(instr.dst), i);
                }
            }
        }
    }
}
