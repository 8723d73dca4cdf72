//! Expressions as an op: what they compute, what is refused.

use super::conformance::{Subject, report, resolve, subject};

/// Ports of the expressions under test: name, type, and the value (of z the real part; the imaginary part is 2).
const INPUTS: [(&str, &str, f64); 4] = [
    ("x", "f32", 3.0),
    ("y", "f32", -1.5),
    ("n", "i32", 7.0),
    ("z", "c32", 1.0),
];

/// Texts and the real values expected for x = 3, y = −1.5, n = 7, z = 1 + 2j; NaN where the text is refused.
fn expected_values() -> Vec<(&'static str, f64)> {
    vec![
        ("x - y - 1", 3.5),
        ("x / y / 2", -1.0),
        ("2 - x * -y", -2.5),
        ("-x * -x", 9.0),
        ("x ? 1 : 2", f64::NAN),
        ("x > 2 ? y < 0 ? 10 : 20 : 30", 10.0),
        ("x < 2 || y <= -1.5 ? 1 : 0", 1.0),
        ("x != 3 ? 1 : 0", 0.0),
        ("select(x == 3, y, x)", -1.5),
        ("min(x, y) + max(x, y)", 1.5),
        ("clamp(y, -1, 1)", -1.0),
        ("floor(y) + round(2.5 * x / 3)", 0.0),
        ("abs(y)", 1.5),
        ("pow(x, 2) + pow(x, 4) + pow(x, 0.5)", 90.0 + 3.0_f64.sqrt()),
        (
            "sqrt(x) * exp(1) * log(x) + log10(x)",
            3.0_f64.sqrt() * 1.0_f64.exp() * 3.0_f64.ln() + 3.0_f64.log10(),
        ),
        (
            "sin(x) + cos(y) * tan(x) - tanh(y)",
            3.0_f64.sin() + 1.5_f64.cos() * 3.0_f64.tan() + 1.5_f64.tanh(),
        ),
        ("atan2(y, x)", (-1.5_f64).atan2(3.0)),
        ("n / 2", 3.5),
        ("floor(n) + abs(-n)", 14.0),
        ("re(z * z) + im(z) - norm(z)", -6.0),
        ("re(conj(z) * z) - abs(z) * abs(z)", 0.0),
        ("arg(z) + arg(y)", 2.0_f64.atan() + std::f64::consts::PI),
        (
            "re(cis(x)) + im(exp(z))",
            3.0_f64.cos() + 1.0_f64.exp() * 2.0_f64.sin(),
        ),
        ("re(z / (x + 0 * z)) + im(x / z)", 1.0 / 3.0 - 6.0 / 5.0),
        ("im(x) + re(x) + norm(n)", 52.0),
        ("1e1 + .5 + 1_000", 1010.5),
    ]
}

#[test]
fn values() {
    for (text, expected) in expected_values() {
        let used: Vec<String> = INPUTS
            .iter()
            .filter(|(name, ..)| mentions(text, name))
            .map(|(name, token, _)| format!("{name}: {token}"))
            .collect();
        // A sum with x makes constant expressions actors, and f32 of every result.
        let params = format!("expr: \"({text}) + 0 * x\"");
        let inputs = if mentions(text, "x") {
            used.join(",")
        } else {
            format!("{}, x: f32", used.join(","))
        };

        if expected.is_nan() {
            assert!(resolve("Expr", &params, &inputs).is_err(), "{text}");
            continue;
        }
        let subject = subject("Expr", &params, &inputs);
        for firings in [1, 300] {
            for result in results(&subject, firings) {
                assert!(
                    (result - expected).abs() < 4e-6 * expected.abs().max(1.0),
                    "{text}: {result}, not {expected}"
                );
            }
        }
    }
}

/// What the expression gives for [`INPUTS`], firing by firing.
fn results(subject: &Subject, firings: usize) -> Vec<f64> {
    let scratch_bytes = subject.kernel.scratch_bytes();
    let mut call = zbmd_op::call::Call::new(&subject.actor, scratch_bytes, firings);
    for (index, port) in subject.actor.inputs.iter().enumerate() {
        let (.., value) = INPUTS.iter().find(|(name, ..)| *name == port.name).unwrap();
        let element: Vec<u8> = match port.name.as_str() {
            "n" => 7_i32.to_le_bytes().to_vec(),
            "z" => [1.0_f32, 2.0].map(f32::to_le_bytes).concat(),
            _ => (*value as f32).to_le_bytes().to_vec(),
        };
        call.input(index).copy_from_slice(&element.repeat(firings));
    }
    call.run(&*subject.kernel).unwrap();

    let bytes = call.output(0);
    let values = bytes.as_chunks::<4>().0.iter();
    values
        .map(|value| f32::from_le_bytes(*value).into())
        .collect()
}

/// Whether a name stands in the text as a word.
fn mentions(text: &str, name: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .any(|word| word == name)
}

#[test]
fn refusals_say_where_and_how_to_mend() {
    let mut text = String::new();
    for (params, inputs) in [
        ("expr: \"x + \"", "x: f32"),
        ("expr: \"x * (y + 1\"", "x: f32, y: f32"),
        ("expr: \"x $ y\"", "x: f32, y: f32"),
        ("expr: \"1.2.3 * x\"", "x: f32"),
        ("expr: \"tahn(x)\"", "x: f32"),
        ("expr: \"max(x)\"", "x: f32"),
        ("expr: \"x * gain\", params: {gian: 2}", "x: f32"),
        ("expr: \"x * gain\", params: {gain: NaN}", "x: f32"),
        ("expr: \"x * gain\", inputs: {x: f32}", "x: f32"),
        ("expr: \"x + 1\", inputs: {x: f32, y: f32}", "x: f32"),
        ("expr: \"x + 1\", inputs: {x: f33}", "x: f32"),
        ("expr: \"x + 1\", inputs: {x: \"f32[4]\"}", "x: f32[3]"),
        ("expr: \"x + y\"", "x: f32[3], y: f32[4]"),
        ("expr: \"x + y\"", "x: f32"),
        ("expr: \"x + y\"", "x: f32, y: f32, z: f32"),
        ("expr: \"x + 1\"", "x: i16"),
        ("expr: \"x > 1\"", "x: c32"),
        ("expr: \"sqrt(z)\"", "z: c32"),
        ("expr: \"x ? 1 : 0\"", "x: f32"),
        ("expr: \"x && x\"", "x: f32"),
        ("expr: \"x + 1 / 0\"", "x: f32"),
        ("expr: \"x + log(0)\"", "x: f32"),
        ("expr: \"1 + 1\"", ""),
        ("expression: \"x\"", "x: f32"),
        ("", "x: f32"),
    ] {
        let error = resolve("Expr", params, inputs).expect_err(params);
        text += &format!("Expr({params}) of ({inputs})\n{}\n", report(&error));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn hostile_text_is_refused_in_time_and_stack() {
    for text in [
        "(".repeat(4000),
        "-".repeat(4000),
        "x?x:".repeat(900),
        "x+".repeat(5000),
        format!("x{}", "+x*1.5".repeat(600)),
        format!("{}x{}", "abs(".repeat(200), ")".repeat(200)),
        "é(".to_owned(),
        "1e999999999".to_owned(),
        "x = 1".to_owned(),
        String::new(),
    ] {
        let result = resolve("Expr", &format!("expr: \"{text}\""), "x: f32");
        assert!(result.is_err() || text.len() < 4000, "{} bytes", text.len());
    }
}
