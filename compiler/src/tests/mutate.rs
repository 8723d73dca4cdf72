//! Mutated models never make the compiler panic, loop or take absurd memory.

use proptest::prelude::*;

use super::check;

const MODELS: [&str; 3] = [
    r#"Model(
    name: "agc",
    sources: { "iq": Stream(dtype: c32, shape: [], rate: 2, sample_rate: 2.4e6) },
    actors: {
        "scale": Expr("x * g", inputs: { "x": c32, "g": f32 }),
        "level": Magnitude(),
        "loop":  Expr("g + mu * (1.0 - m)", inputs: { "g": f32, "m": f32 }, params: { "mu": 0.01 }),
    },
    channels: [
        (from: "iq",    to: ["scale.x"]),
        (from: "scale", to: [("level", window: 1), "out"]),
        (from: "level", to: ["loop.m"], dtype: f32, history: []),
        (from: "loop",  to: ["loop.g", "scale.g"], initial: [1.0]),
    ],
    sinks: { "out": Stream(rate: 4) },
    pins: { "scale": "cpu:0" },
)"#,
    r#"Model(
    sources: { "in": Stream(dtype: f32) },
    models: {
        "stage": Model(
            params: { "gain": 1.0, "start": [0.0] },
            inputs: { "x": Port(dtype: f32) },
            outputs: { "y": Port() },
            actors: { "amp": Gain($gain), "fir": Fir([0.25, 0.5], decimate: 2) },
            channels: [(from: "x", to: ["amp"], initial: $start), (from: "amp", to: ["fir"]), (from: "fir", to: ["y"])],
        ),
    },
    actors: { "a": Sub("stage", gain: 2.0), "b": Sub("stage", start: Zeros(3)) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["a.x"]), (from: "a.y", to: ["b"]), (from: "b", to: [("out", rate: 1)])],
)"#,
    r#"Model(
    sources: { "x": Stream(dtype: i16, shape: [2, 3]), "z": Stream(dtype: bool) },
    sinks: { "y": Stream() },
    channels: [(from: "x", to: ["y"], initial: Fill(2, [[1, 2, 3], [-4, 5, 6]])), (from: "z", to: [])],
)"#,
];

/// What mutations put in.
const SNIPPETS: [&str; 24] = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\"",
    "\"in\"",
    "\"a.y\"",
    "Sub(\"stage\")",
    "$gain",
    "NaN",
    "-1",
    "1e18",
    "Zeros(1000000)",
    "f32",
    "c32",
    "Model(",
    "[]",
    "Fork(3)",
    "\\",
    "/*",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn mutated_models_do_not_panic(
        model in 0..MODELS.len(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, 0..SNIPPETS.len()), 1..5),
    ) {
        let mut text: Vec<char> = MODELS[model].chars().collect();
        for (at, removed, snippet) in edits {
            let start = at.index(text.len() + 1);
            let end = (start + removed).min(text.len());
            text.splice(start..end, SNIPPETS[snippet].chars());
        }
        check(&text.into_iter().collect::<String>());
    }

    #[test]
    fn truncated_models_are_refused(model in 0..MODELS.len(), at in any::<prop::sample::Index>()) {
        let text: Vec<char> = MODELS[model].chars().collect();
        let cut: String = text[..at.index(text.len())].iter().collect();
        prop_assert!(!check(&cut).is_empty());
    }

    #[test]
    fn any_text_is_read(text in "\\PC{0,80}") {
        check(&text);
    }
}

#[test]
fn the_unmutated_models_are_fine() {
    for model in MODELS {
        assert_eq!(check(model), Vec::<String>::new());
    }
}
