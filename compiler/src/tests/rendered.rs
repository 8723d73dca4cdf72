//! How diagnostics look.

use crate::render::{self, Style};
use crate::{CompileOptions, MachineChoice, check_str, compile_str};

fn drawn(text: &str) -> String {
    match check_str("model.ron", text, "", &CompileOptions::default()) {
        Ok(diagnostics) | Err(diagnostics) => render::text(&diagnostics, &Style::plain()),
    }
}

const WRONG: &str = r#"Model(
    sources: { "iq": Stream(dtype: c32), "audio": Stream(dtype: f32) },
    actors: {
        "scale": Expr("x * g", inputs: { "x": c32, "g": f32 }),
        "level": Magnitud(),
        "smooth": Fir([0.25, 0.5, 0.25], decimate: 0),
    },
    channels: [
        (form: "iq", to: ["scale.x"]),
        (from: "audio", to: ["out"], initial: [1.0, true]),
        (from: "scael", to: ["smooth"]),
    ],
    sinks: { "out": Stream() },
)
"#;

const DEADLOCK: &str = r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: {
        "sum": Expr("x + y", inputs: { "x": f32, "y": f32 }),
        "leak": Gain(0.9),
    },
    channels: [
        (from: "in",   to: ["sum.x"]),
        (from: "sum",  to: ["leak", "out"]),
        (from: "leak", to: ["sum.y"]),   // no initial token
    ],
    sinks: { "out": Stream() },
)
"#;

const INCONSISTENT: &str = r#"Model(
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    actors: { "slow": Fir([1.0], decimate: 2), "sum": Expr("a + b") },
    channels: [
        (from: "in",   to: ["slow", "sum.a"]),
        (from: "slow", to: ["sum.b"]),
        (from: "sum",  to: ["out"]),
    ],
    sinks: { "out": Stream() },
)
"#;

#[test]
fn mistakes() {
    insta::assert_snapshot!(drawn(WRONG));
}

#[test]
fn syntax() {
    insta::assert_snapshot!(drawn(
        "Model(\n    sources: { \"in\" Stream(dtype: f32) },\n    sinks: [1, 2),\n    name: 0x,\n"
    ));
}

#[test]
fn deadlock() {
    insta::assert_snapshot!(drawn(DEADLOCK));
}

#[test]
fn inconsistent() {
    insta::assert_snapshot!(drawn(INCONSISTENT));
}

#[test]
fn json() {
    let errors =
        check_str("model.ron", DEADLOCK, "", &CompileOptions::default()).expect_err("a deadlock");
    insta::assert_snapshot!(render::json(&errors));
}

#[test]
fn hostile_text_cannot_reach_the_terminal() {
    let text = "Model(actors: {\"a\u{1b}[31m\u{202e}\": Gain(1)})";
    let drawn = drawn(text);
    assert!(
        !drawn.contains('\u{1b}') && !drawn.contains('\u{202e}'),
        "{drawn:?}"
    );
}

#[test]
fn a_model_and_its_machine_are_reported_together() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("machine.ron");
    std::fs::write(&path, "Machine(devices: [(name: \"cpu:0\", backend: gpu)])").expect("a file");
    let options = CompileOptions {
        machine: MachineChoice::File(path),
        ..CompileOptions::default()
    };
    let errors = compile_str("model.ron", DEADLOCK, "", &options).expect_err("both are wrong");
    let codes: Vec<&str> = errors.list.iter().map(|d| d.code.name()).collect();
    assert_eq!(
        codes,
        ["E0507"],
        "the model's analysis comes after the machine"
    );
}

#[test]
fn endless_lines_are_named_and_not_drawn() {
    let text = format!("Model({}sinks: 5)", " ".repeat(100_000));
    let drawn = drawn(&text);
    assert!(
        drawn.contains("--> model.ron:1:100014") && drawn.len() < 1000,
        "{drawn:.500}"
    );
}
