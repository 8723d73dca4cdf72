//! What models mean: delays, histories, forks, sub-models, sample rates, inferred types.

use zbmd_ir::{DType, Graph, TiVec, TokenType, Value};

use super::{channel, check, graph, sample_rate};
use crate::{Code, CompileOptions, GraphBuilder, MachineChoice, compile_graph};

/// A model with a source `in`, a sink `out`, these actors and these channels.
fn model(actors: &str, channels: &str) -> String {
    format!(
        "Model(sources: {{\"in\": Stream(dtype: f32)}}, actors: {{{actors}}}, sinks: {{\"out\": Stream()}}, \
         channels: [{channels}])"
    )
}

fn readers(list: &[(&str, u64)]) -> Vec<(String, u64)> {
    list.iter()
        .map(|(name, delay)| ((*name).to_owned(), *delay))
        .collect()
}

#[test]
fn a_window_brings_a_history_of_zeros() {
    let g = graph(&model(
        r#""fir": Fir([0.25, 0.5, 0.25])"#,
        r#"(from: "in", to: ["fir"]), (from: "fir", to: ["out"])"#,
    ));
    assert_eq!(
        channel(&g, "in"),
        (readers(&[("fir.x", 2)]), vec![0.0, 0.0])
    );
}

#[test]
fn history_lies_before_initial_tokens() {
    let g = graph(&model(
        r#""fir": Fir([0.25, 0.5, 0.25])"#,
        r#"(from: "in", to: ["fir"], history: [1.0, 2.0], initial: [3.0]), (from: "fir", to: ["out"])"#,
    ));
    assert_eq!(
        channel(&g, "in"),
        (readers(&[("fir.x", 3)]), vec![1.0, 2.0, 3.0])
    );
}

#[test]
fn readers_share_the_tokens_that_agree() {
    let g = graph(&model(
        r#""fir": Fir([0.25, 0.5, 0.25]), "sum": Expr("a + b")"#,
        r#"(from: "in", to: ["fir", "sum.b"]), (from: "fir", to: ["sum.a"]), (from: "sum", to: ["out"])"#,
    ));
    assert_eq!(
        channel(&g, "in"),
        (readers(&[("fir.x", 2), ("sum.b", 0)]), vec![0.0, 0.0])
    );
    assert!(g.find("in.fork").is_none());
}

#[test]
fn readers_that_start_differently_get_a_fork() {
    let g = graph(&model(
        r#""sum": Expr("a + b + c")"#,
        r#"(from: "in", to: ["sum.a"], initial: [1.0]), (from: "in", to: ["sum.b"], initial: [2.0]),
           (from: "in", to: ["sum.c"], initial: [5.0, 1.0]), (from: "sum", to: ["out"])"#,
    ));
    assert_eq!(
        channel(&g, "in"),
        (
            readers(&[("sum.a", 1), ("sum.c", 2), ("in.fork.x", 0)]),
            vec![5.0, 1.0]
        )
    );
    assert_eq!(
        channel(&g, "in.fork"),
        (readers(&[("sum.b", 1)]), vec![2.0])
    );
}

#[test]
fn initial_tokens_are_lists_fills_or_zeros() {
    let cases: &[(&str, &[f32])] = &[
        ("[1.0, 2]", &[1.0, 2.0]),
        ("Zeros(3)", &[0.0; 3]),
        ("Fill(2, -1.5)", &[-1.5; 2]),
        ("Fill(count: 2, value: 1)", &[1.0; 2]),
        ("[]", &[]),
    ];
    for (initial, expect) in cases {
        let g = graph(&model(
            "",
            &format!(r#"(from: "in", to: ["out"], initial: {initial})"#),
        ));
        assert_eq!(
            channel(&g, "in"),
            (readers(&[("out.x", expect.len() as u64)]), expect.to_vec()),
            "{initial}"
        );
    }
}

#[test]
fn shaped_and_complex_tokens() {
    let cases: &[(&str, &str, &[f32])] = &[
        (
            "dtype: f32, shape: [2, 2]",
            "[[[1, 2], [3, 4]]]",
            &[1.0, 2.0, 3.0, 4.0],
        ),
        (
            "dtype: f32, shape: [2, 2]",
            "[[1, 2, 3, 4]]",
            &[1.0, 2.0, 3.0, 4.0],
        ),
        ("dtype: c32", "[(1, -2), 3]", &[1.0, -2.0, 3.0, 0.0]),
        (
            "dtype: c32, shape: [2]",
            "Fill(1, [(1, 2), 3])",
            &[1.0, 2.0, 3.0, 0.0],
        ),
    ];
    for (stream, initial, expect) in cases {
        let text = format!(
            "Model(sources: {{\"in\": Stream({stream})}}, sinks: {{\"out\": Stream()}}, \
             channels: [(from: \"in\", to: [\"out\"], initial: {initial})])"
        );
        assert_eq!(channel(&graph(&text), "in").1, *expect, "{initial}");
    }
}

#[test]
fn states_become_self_loops() {
    let g = graph(&model(
        r#""de": Deemphasis(tau: 50e-6, rate: 48000)"#,
        r#"(from: "in", to: ["de"]), (from: "de", to: ["out"])"#,
    ));
    let id = g.find("de").expect("the actor");
    assert_eq!(g.actors[id].state.len(), 1);
    let states: Vec<_> = g
        .channels
        .iter_enumerated()
        .filter(|(c, _)| g.is_state(*c))
        .collect();
    assert_eq!(states.len(), 1);
    assert_eq!(states[0].1.initial.len() as u64, states[0].1.token.bytes());
}

const NESTED: &str = r#"Model(
    sources: { "in": Stream(dtype: f32) },
    models: {
        "outer": Model(
            params: { "gain": required, "start": [7.0] },
            inputs: { "x": Port(dtype: f32) },
            outputs: { "y": Port() },
            models: {
                "inner": Model(
                    params: { "g": 1.0 },
                    inputs: { "x": Port() },
                    outputs: { "y": Port() },
                    actors: { "amp": Gain($g) },
                    channels: [(from: "x", to: ["amp"], initial: [1.0]), (from: "amp", to: ["y"])],
                ),
            },
            actors: { "a": Sub("inner", g: $gain), "b": Sub("inner") },
            channels: [
                (from: "x", to: ["a"], initial: $start),
                (from: "a", to: ["b"]),
                (from: "b", to: ["y"]),
            ],
        ),
    },
    actors: { "s": Sub("outer", gain: 2.0) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["s.x"], initial: [9.0]), (from: "s", to: ["out"], initial: [3.0])],
)"#;

#[test]
fn sub_models_join_their_channels() {
    let g = graph(NESTED);
    let names: Vec<&str> = g.actors.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, ["in", "out", "s/a/amp", "s/b/amp"]);
    // The reader meets the innermost tokens first.
    assert_eq!(
        channel(&g, "in"),
        (readers(&[("s/a/amp.x", 3)]), vec![1.0, 7.0, 9.0])
    );
    assert_eq!(
        channel(&g, "s/a/amp"),
        (readers(&[("s/b/amp.x", 1)]), vec![1.0])
    );
    assert_eq!(
        channel(&g, "s/b/amp"),
        (readers(&[("out.x", 1)]), vec![3.0])
    );
    let gain = |name: &str| g.actors[g.find(name).expect("the actor")].params["gain"].clone();
    assert_eq!(
        (gain("s/a/amp"), gain("s/b/amp")),
        (Value::Float(2.0), Value::Float(1.0))
    );
}

#[test]
fn sample_rates_follow_the_rates() {
    let text = r#"Model(
        sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
        actors: { "slow": Fir([1.0], decimate: 3), "fast": Fir([1.0], interpolate: 2) },
        sinks: { "third": Stream(), "two_thirds": Stream(rate: 4), "same": Stream(sample_rate: 48000) },
        channels: [
            (from: "in", to: ["slow", "same"]),
            (from: "slow", to: ["third", "fast"]),
            (from: "fast", to: ["two_thirds"]),
        ],
    )"#;
    let g = graph(text);
    assert_eq!(sample_rate(&g, "third"), Some(16_000.0));
    assert_eq!(sample_rate(&g, "two_thirds"), Some(32_000.0));
    assert_eq!(sample_rate(&g, "same"), Some(48_000.0));
    let unknown = graph(&model("", r#"(from: "in", to: ["out"])"#));
    assert_eq!(sample_rate(&unknown, "out"), None);
}

#[test]
fn types_are_inferred() {
    let ty = |text: &str, actor: &str| {
        let g = graph(text);
        let id = g.find(actor).expect("the actor");
        g.actors[id].outputs[0].token.to_string()
    };
    let cases: &[(&str, &str, &str, &str)] = &[
        (
            "forwards",
            "Model(sources: {\"in\": Stream(dtype: c32)}, actors: {\"m\": Magnitude()}, sinks: {\"out\": Stream()}, channels: [(from: \"in\", to: [\"m\"]), (from: \"m\", to: [\"out\"])])",
            "m",
            "f32",
        ),
        (
            "backwards",
            "Model(sources: {\"in\": Stream()}, actors: {\"m\": Expr(\"x\", inputs: {\"x\": f64})}, sinks: {\"out\": Stream()}, channels: [(from: \"in\", to: [\"m\"]), (from: \"m\", to: [\"out\"])])",
            "in",
            "f64",
        ),
        (
            "from the channel",
            "Model(sources: {\"in\": Stream()}, sinks: {\"out\": Stream()}, channels: [(from: \"in\", to: [\"out\"], dtype: i16, shape: [3])])",
            "in",
            "i16[3]",
        ),
        (
            "a dtype alone is a scalar",
            "Model(sources: {\"in\": Stream()}, sinks: {\"out\": Stream()}, channels: [(from: \"in\", to: [\"out\"], dtype: i16)])",
            "in",
            "i16",
        ),
        (
            "around a loop",
            "Model(sources: {\"in\": Stream(dtype: f32)}, actors: {\"s\": Expr(\"x + y\"), \"g\": Gain(0.5)}, sinks: {\"out\": Stream()}, channels: [(from: \"in\", to: [\"s.x\"]), (from: \"s\", to: [\"g\", \"out\"]), (from: \"g\", to: [\"s.y\"], initial: [0.0], dtype: f32)])",
            "g",
            "f32",
        ),
    ];
    for (why, text, actor, expect) in cases {
        assert_eq!(ty(text, actor), *expect, "{why}");
    }
}

#[test]
fn stream_rates_are_stated_at_either_end() {
    let g = graph(
        "Model(sources: {\"in\": Stream(dtype: f32)}, sinks: {\"out\": Stream()}, \
         channels: [(from: \"in\", to: [(\"out\", rate: 4)], rate: 2)])",
    );
    let rates: Vec<u64> = g
        .actors
        .iter()
        .map(|a| {
            a.outputs
                .first()
                .map_or_else(|| a.inputs[0].rate, |p| p.rate)
        })
        .collect();
    assert_eq!(rates, [2, 4]);
}

#[test]
fn warnings_compile() {
    let text = model(
        "\"spare\": Gain(2.0)",
        r#"(from: "in", to: ["out", "spare"])"#,
    );
    assert_eq!(check(&text), ["W0201 nothing reads output `y` of `spare`"]);
    let stated = model(
        "\"spare\": Gain(2.0)",
        r#"(from: "in", to: ["out", "spare"]), (from: "spare", to: [])"#,
    );
    assert_eq!(check(&stated), Vec::<String>::new());
    assert_eq!(graph(&stated).channels.len(), 2);
}

#[test]
fn builder_and_text_give_one_graph() {
    let text = graph(
        "Model(name: \"smooth\", sources: {\"in\": Stream(dtype: f32)}, sinks: {\"out\": Stream()}, \
         actors: {\"fir\": Fir([0.5, 0.5])}, \
         channels: [(from: \"in\", to: [\"fir\"], initial: [1.0]), (from: \"fir\", to: [\"out\"])])",
    );
    let mut builder = GraphBuilder::new("smooth");
    let input = builder.source("in", TokenType::scalar(DType::F32));
    let output = builder.sink("out");
    let fir = builder.actor(
        "fir",
        "Fir",
        [("taps", Value::List(vec![Value::Float(0.5); 2]))],
    );
    builder
        .delayed(input, fir.port("x"), 1f32.to_le_bytes())
        .connect(fir, output);
    let (built, blobs) = builder
        .finish(&CompileOptions::default().registry)
        .expect("a graph");
    assert_eq!((built.clone(), blobs.len()), (text, 0));
    let options = CompileOptions {
        machine: MachineChoice::Uniform(2),
        ..CompileOptions::default()
    };
    assert!(compile_graph(built, blobs, &options).is_ok());
}

#[test]
fn builder_mistakes_are_collected() {
    let mut builder = GraphBuilder::new("wrong");
    let input = builder.source("in", TokenType::scalar(DType::F32));
    let gain = builder.actor("gain", "Gain", [("gian", Value::Float(0.5))]);
    let other = builder.actor("other", "Gain", [("gain", Value::Float(0.5))]);
    builder.connect(input, gain).connect(input, other.port("z"));
    let errors = builder
        .finish(&CompileOptions::default().registry)
        .expect_err("two mistakes");
    let codes: Vec<&str> = errors.list.iter().map(|d| d.code.name()).collect();
    assert_eq!(codes, ["E0302", "E0208"], "{errors}");
}

#[test]
fn malformed_graphs_are_refused() {
    let mut graph = Graph::default();
    graph.channels.push(zbmd_ir::Channel {
        from: zbmd_ir::Endpoint {
            actor: zbmd_ir::ActorId(7),
            port: 0,
        },
        readers: Vec::new(),
        token: TokenType::scalar(DType::F32),
        initial: Vec::new(),
    });
    let errors =
        compile_graph(graph, TiVec::new(), &CompileOptions::default()).expect_err("a bad id");
    assert!(
        errors.list.iter().all(|d| d.code == Code::E0602),
        "{errors}"
    );
}

/// A model of one actor `a` with sources `s0`, `s1`, … of these types at its ports.
fn one_actor(actor: &str, inputs: &[(&str, &str)], output: &str) -> String {
    let mut sources = String::new();
    let mut channels = String::new();
    for (i, (port, stream)) in inputs.iter().enumerate() {
        sources += &format!("\"s{i}\": Stream({stream}), ");
        channels += &format!("(from: \"s{i}\", to: [\"a.{port}\"]), ");
    }
    format!(
        "Model(sources: {{{sources}}}, actors: {{\"a\": {actor}}}, sinks: {{\"out\": Stream()}}, \
         channels: [{channels}(from: \"a.{output}\", to: [\"out\"])])"
    )
}

#[test]
fn types_and_sizes_that_an_op_cannot_compute_are_errors_of_the_model() {
    let x8 = ("x", "dtype: f32, shape: [8]");
    let cases = [
        (
            one_actor(
                "NnConv()",
                &[
                    ("x", "dtype: f32, shape: [1, 2, 4, 4]"),
                    ("w", "dtype: i64, shape: [1, 2, 4, 4]"),
                ],
                "y",
            ),
            "input `w` is i64[1,2,4,4]",
        ),
        (
            one_actor(
                "NnCausalConvWithState(b: 0)",
                &[
                    ("x", "dtype: f32, shape: [1, 2, 8]"),
                    ("w", "dtype: f32, shape: [2, 1, 3]"),
                ],
                "y",
            ),
            "input `b` is f32",
        ),
        (
            one_actor("NnSlice(starts: [3], ends: [3])", &[x8], "y"),
            "the output `y` would be f32[0], which has no elements",
        ),
        (
            one_actor("NnTopK(k: [0])", &[x8], "y"),
            "the output `y` would be f32[0], which has no elements",
        ),
        (
            one_actor(
                "Window(hann)",
                &[("x", "dtype: f32, shape: [1073741823]")],
                "y",
            ),
            "a window of 1073741823 weights",
        ),
    ];
    for (text, expected) in cases {
        let errors = check(&text);
        assert!(
            errors
                .iter()
                .any(|e| e.starts_with('E') && e.contains(expected)),
            "{text}\n{errors:?}"
        );
    }
}

#[test]
fn initial_tokens_are_counted_before_they_are_made() {
    let text = model(
        r#""gain": Gain(2.0)"#,
        r#"(from: "in", to: ["gain"], initial: Zeros(1073741824)), (from: "gain", to: ["out"])"#,
    );
    let errors = check(&text);
    assert!(errors.iter().any(|e| e.starts_with("E0505")), "{errors:?}");
}
