//! Gates as they are written: what they become, and what is wrong about them.

use zbmd_ir::{ClosedAnswer, Graph, Value};

use super::{check, graph};
use crate::GraphBuilder;

const HOLD: ClosedAnswer = ClosedAnswer::Hold;
const ZERO: ClosedAnswer = ClosedAnswer::Zero;

/// A model with two sources and these actors, a sub-model among them.
fn model(actors: &str, channels: &str) -> String {
    format!(
        r#"Model(
    sources: {{ "in": Stream(dtype: f32), "wide": Stream(dtype: f32, shape: [4]) }},
    models: {{ "loop": Model(
        inputs: {{ "x": f32 }},
        outputs: {{ "y": f32 }},
        actors: {{ "sum": Expr("a + b", inputs: {{ "a": f32, "b": f32 }}), "copy": Gain(1.0), "out": Gain(2.0) }},
        channels: [
            (from: "x", to: ["sum.a"]),
            (from: "sum", to: ["copy", "out"]),
            (from: "copy", to: ["sum.b"], initial: [3.0]),
            (from: "out", to: ["y"]),
        ],
    ) }},
    actors: {{ "open": Threshold(0.5), {actors} }},
    channels: [(from: "in", to: ["open"]), (from: "wide", to: []), {channels}],
    sinks: {{ "out": Stream() }},
)"#
    )
}

/// A model with one gated `Gain`.
fn gain(gate: &str) -> String {
    model(
        &format!(r#""half": Gain(0.5, gate: {gate})"#),
        r#"(from: "in", to: ["half"]), (from: "half", to: ["out"])"#,
    )
}

/// What an actor's closed outputs give, and its states.
fn answers(graph: &Graph, actor: &str) -> (Vec<ClosedAnswer>, ClosedAnswer) {
    let id = graph.find(actor).expect("an actor");
    let gate = graph.actors[id].gate().expect("a gate");
    (gate.outputs.clone(), gate.states)
}

#[test]
fn a_gate_is_one_more_input() {
    let graph = graph(&gain("\"open\""));
    let id = graph.find("half").expect("an actor");
    let actor = &graph.actors[id];
    let names: Vec<&str> = actor.inputs.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["x", "gate", "gate.y"]);
    assert_eq!(answers(&graph, "half"), (vec![HOLD], HOLD));
    assert_eq!(actor.ungated().params.len(), 1, "the op's own");
}

#[test]
fn what_closed_firings_give_follows_from_who_reads_it() {
    let text = model(
        r#""loop": Sub("loop", gate: Gate("open", closed: hold, state: zero))"#,
        r#"(from: "in", to: ["loop"]), (from: "loop", to: ["out"])"#,
    );
    let graph = graph(&text);
    // Read by gated actors, by one that looks back, and by a sink.
    assert_eq!(answers(&graph, "loop/sum"), (vec![ZERO], ZERO));
    assert_eq!(answers(&graph, "loop/copy"), (vec![ZERO], ZERO));
    assert_eq!(answers(&graph, "loop/out"), (vec![HOLD], ZERO));

    // What is kept begins with what lies on the channel.
    let graph = super::graph(&text.replace("state: zero", "state: hold"));
    assert_eq!(answers(&graph, "loop/copy"), (vec![HOLD], HOLD));
    let copy = graph.find("loop/copy").expect("an actor");
    let mut channels = graph.channels.iter();
    let held = channels.find(|channel| channel.from.actor == copy && channel.from.port == 1);
    assert_eq!(held.expect("a state").initial, 3.0f32.to_le_bytes());
}

#[test]
fn what_opens_another_gate_is_read() {
    let text = model(
        r#""above": Threshold(0.9, gate: Gate("open", closed: hold)), "half": Gain(0.5, gate: "above")"#,
        r#"(from: "in", to: ["above", "half"]), (from: "half", to: ["out"])"#,
    );
    // Nothing but the sub-model of the other tests is unused.
    assert_eq!(check(&text), ["W0202 sub-model `loop` is never used"]);
    assert_eq!(answers(&graph(&text), "above"), (vec![HOLD], HOLD));
}

#[test]
fn gates_in_rust_are_those_of_models() {
    let mut builder = GraphBuilder::new("gated");
    let input = builder.source("in", zbmd_ir::TokenType::scalar(zbmd_ir::DType::F32));
    let open = builder.actor("open", "Threshold", [("level", Value::Float(0.5))]);
    let half = builder.actor("half", "Gain", [("gain", Value::Float(0.5))]);
    let output = builder.sink("out");
    builder.connect(input, open).connect(input, half);
    builder.connect(half, output).gate(half, open, ZERO);
    let registry = zbmd_backends::standard_registry();
    let (graph, _) = builder.finish(&registry).expect("a graph");
    assert_eq!(answers(&graph, "half"), (vec![ZERO], ZERO));

    let mut builder = GraphBuilder::new("gated");
    let input = builder.source("in", zbmd_ir::TokenType::scalar(zbmd_ir::DType::F32));
    let output = builder.sink("out");
    builder.connect(input, output).gate(output, input, ZERO);
    let refused = builder.finish(&registry).expect_err("a sink");
    assert_eq!(refused.list[0].code, crate::Code::E0313, "{refused}");
}

#[test]
fn wrong_gates_are_refused() {
    let nested = model(
        r#""loop": Sub("loop", gate: "open")"#,
        r#"(from: "in", to: ["loop"]), (from: "loop", to: ["out"])"#,
    );
    let cases = [
        (gain("\"opne\""), "E0206", "opne"),
        (gain("\"open.x\""), "E0207", "x"),
        (gain("\"out\""), "E0216", "out"),
        (gain("\"wide\""), "E0313", "f32[4]"),
        (gain("\"half\""), "E0313", "once closed"),
        (gain("5"), "E0203", "Gate"),
        (gain("Gate()"), "E0202", "from"),
        (gain("Gate(\"open\", closed: open)"), "E0203", "open"),
        (gain("Gate(\"open\", after: -1)"), "E0203", "-1"),
        (gain("Gate(\"open\", state: hold, pre: 3)"), "E0201", "pre"),
        (
            nested.replace("Gain(2.0)", "Gain(2.0, gate: \"x\")"),
            "E0313",
            "gated twice",
        ),
        (
            // A loop whose end is read outside too, and would have to be two things.
            nested
                .replace("gate: \"open\"", "gate: Gate(\"open\", state: zero)")
                .replace(
                    "(from: \"copy\", to: [\"sum.b\"]",
                    "(from: \"out\", to: [\"sum.b\"]",
                )
                .replace("to: [\"copy\", \"out\"]", "to: [\"out\"]")
                .replace("\"copy\": Gain(1.0), ", ""),
            "E0313",
            "zero inside and hold outside",
        ),
        (
            // Three numbers for two tokens of the gate.
            model(
                r#""one": Decimate(3), "two": Decimate(2, gate: "one")"#,
                r#"(from: "in", to: ["one", "two"]), (from: "two", to: ["out"])"#,
            ),
            "E0313",
            "multiple",
        ),
    ];
    for (text, code, word) in cases {
        let said = check(&text);
        let is_said = |line: &String| line.starts_with(code) && line.contains(word);
        assert!(said.iter().any(is_said), "{code} {word}: {said:?}\n{text}");
    }
}

/// An op or a sub-model that declares a parameter `gate` itself keeps it.
#[test]
fn a_parameter_of_that_name_stays_one() {
    let text = r#"Model(
    sources: { "in": Stream(dtype: f32) },
    models: { "scale": Model(
        params: { "gate": 0.5 },
        inputs: { "x": f32 },
        outputs: { "y": f32 },
        actors: { "gain": Gain($gate) },
        channels: [(from: "x", to: ["gain"]), (from: "gain", to: ["y"])],
    ) },
    actors: { "scale": Sub("scale", gate: 0.25) },
    channels: [(from: "in", to: ["scale"]), (from: "scale", to: ["out"])],
    sinks: { "out": Stream() },
)"#;
    let graph = graph(text);
    let id = graph.find("scale/gain").expect("an actor");
    assert!(graph.actors[id].gate().is_none());
    assert_eq!(graph.actors[id].params["gain"], Value::Float(0.25));
}
