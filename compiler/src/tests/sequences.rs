//! States as streams: what is cut, what each part then reads, and what is refused.

use zbmd_ir::{carried_states, verify};

use super::said;
use crate::{CompileOptions, Compiled, Diagnostics, MachineChoice, Replicate, compile_str};

fn compile_with(text: &str, replicate: Replicate) -> Result<Compiled, Diagnostics> {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        sequences: true,
        replicate,
        ..CompileOptions::default()
    };
    compile_str("model.ron", text, "", &options)
}

fn compile(text: &str) -> Compiled {
    compile_with(text, Replicate::Auto).unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
}

/// `SOURCE <- SINK: initial bytes` of each carried state.
fn carried(compiled: &Compiled) -> Vec<String> {
    let program = &compiled.program;
    let states = carried_states(&program.graph);
    let shown = states.iter().map(|state| {
        let name = |id: zbmd_ir::ActorId| &program.graph.actors[id].name;
        let initial = &program.blobs[state.initial];
        format!(
            "{} <- {}: {initial:?}",
            name(state.source),
            name(state.sink)
        )
    });
    shown.collect()
}

#[test]
fn a_channel_with_initial_tokens_becomes_a_source_and_a_sink() {
    let model = include_str!("../../../graphs/simple_sequence/model.ron");
    let compiled = compile(model);
    assert_eq!(
        carried(&compiled),
        ["first.state <- first.next: b\"\\x01\\0\\0\\0\""]
    );
    let graph = &compiled.program.graph;
    assert!(graph.channels.iter().all(|channel| channel.history() == 0));
}

/// A channel of two tokens in an iteration, of which one reader sees the last iteration's and another this one's; and a loop
/// whose halves would fire less often if they were on their own.
#[test]
fn readers_without_a_delay_stay_and_repetitions_too() {
    let compiled = compile(
        r#"Model(
        sources: { "x": Stream(dtype: i32, rate: 6) },
        actors: {
            "now": Expr("a + b", inputs: { "a": i32, "b": i32 }),
            "last": Expr("-a", inputs: { "a": i32 }),
        },
        channels: [
            (from: "x", to: ["now.a", "last"]),
            (from: "last", to: ["now.b"], initial: [1, 2, 3, 4, 5, 6]),
            (from: "last", to: ["y"]),
            (from: "now", to: ["z"]),
        ],
        sinks: { "y": Stream(rate: 2), "z": Stream(rate: 3) },
    )"#,
    );
    let initial: Vec<u8> = (1..=6_i32).flat_map(i32::to_le_bytes).collect();
    let initial = bytes::Bytes::from(initial);
    assert_eq!(
        carried(&compiled),
        [format!("last.state <- last.next: {initial:?}")]
    );
    let graph = &compiled.program.graph;
    let repetitions = verify::graph::repetition(graph).expect("verified");
    let firings = |name| repetitions[graph.find(name).expect("an actor")];
    assert_eq!(
        ["x", "now", "last", "y", "z", "last.next"].map(firings),
        [1, 6, 6, 3, 2, 1]
    );
}

#[test]
fn a_model_that_keeps_nothing_stays_as_it_is() {
    let model = include_str!("../../../graphs/simple/model.ron");
    let plain = CompileOptions {
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    };
    let plain = compile_str("model.ron", model, "", &plain).expect("a good model");
    assert_eq!(compile(model).program.graph, plain.program.graph);
}

#[test]
fn what_an_iteration_reads_of_its_own_is_refused() {
    let refused = |actors: &str, channels: &str| {
        let text = format!(
            r#"Model(
            sources: {{ "x": Stream(dtype: f32, rate: 4) }},
            actors: {{ {actors} }},
            channels: [(from: "x", to: ["a.x"]), {channels}],
            sinks: {{ "y": Stream() }},
        )"#
        );
        let diagnostics = compile_with(&text, Replicate::Auto).expect_err("it is refused");
        said(&diagnostics)
    };
    let sum = r#""a": Expr("x + y", inputs: { "x": f32, "y": f32 })"#;
    let looped = |initial: &str| {
        format!(r#"(from: "a", to: ["a.y"], initial: {initial}), (from: "a", to: ["y"])"#)
    };
    assert_eq!(
        refused(sum, &looped("[0.0]")),
        [
            "E0405 an iteration writes 4 tokens of `a`, and `a` reads them 1 later: it reads tokens of its own iteration"
        ]
    );
    assert_eq!(
        refused(sum, &looped("Zeros(8)")),
        [
            "E0405 an iteration writes 4 tokens of `a`, and `a` reads them 8 later: it reads tokens of an iteration before \
             the last"
        ]
    );
    assert_eq!(
        refused(r#""a": Fir([1.0, 1.0, 1.0])"#, r#"(from: "a", to: ["y"])"#),
        ["E0405 `a` looks at 2 tokens of earlier iterations together with new ones of `x`"]
    );
    assert_eq!(
        refused(
            r#""a": Biquad([[1.0, 0.0, 0.0, 0.5, 0.0]])"#,
            r#"(from: "a", to: ["y"])"#
        ),
        ["E0405 `a` keeps a state of its own, `s`, which its kernel changes in place"]
    );
}

#[test]
fn iterations_of_several_are_refused() {
    let model = include_str!("../../../graphs/simple_sequence/model.ron");
    let refused = compile_with(model, Replicate::UpTo(2)).expect_err("longer iterations");
    assert_eq!(
        said(&refused),
        [
            "E0405 an iteration of a sequence is one of the model, and with a number of replicas it may be several"
        ]
    );
}
