//! Graphs with replicas, and when they are chosen.

use zbmd_ir::{ActorId, ChannelId, Graph, PlanId, TiSlice, text};
use zbmd_scheduler::Losses;

use super::*;
use crate::{CompileOptions, Compiled, MachineChoice, compile_str};

/// A model of one actor `heavy` between two light ones; its streams move so many frames an iteration.
fn model(heavy: &str, frames: u32, more: &str) -> String {
    format!(
        r#"Model(
    name: "chain",
    sources: {{ "in": Stream(dtype: f32, shape: [64], rate: {frames}) }},
    actors: {{ "pre": Gain(0.5), "heavy": {heavy}, "post": Gain(2.0) }},
    channels: [
        (from: "in", to: ["pre"]), (from: "pre", to: ["heavy"]), (from: "heavy", to: ["post"]),
        (from: "post", to: ["out"]),
    ],
    sinks: {{ "out": Stream() }},
    {more}
)"#
    )
}

const HEAVY: &str = concat!(
    r#"Expr(""#,
    "sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(",
    "sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(",
    "x))))))))))))))))))))))))",
    r#"")"#
);

fn compile(text: &str, devices: usize, replicate: Replicate) -> Compiled {
    let machine = MachineChoice::Uniform(devices);
    let options = CompileOptions {
        machine,
        replicate,
        ..CompileOptions::default()
    };
    compile_str("model.ron", text, "", &options).unwrap_or_else(|errors| panic!("{errors}"))
}

/// What was replicated, and how many of the model's iterations one of the program is.
fn done(compiled: &Compiled) -> Option<(Vec<(String, u32)>, u64)> {
    match &compiled.replication {
        Some(Replication::Done {
            actors, iterations, ..
        }) => Some((actors.clone(), *iterations)),
        Some(Replication::Possible { .. }) | None => None,
    }
}

#[test]
fn a_heavy_actor_is_replicated_where_that_is_quicker() {
    use Replicate::{Auto, Off, UpTo};
    let plain = &model(HEAVY, 12, "");
    let single = &model(HEAVY, 1, "");
    let pinned = &model(HEAVY, 12, r#"pins: { "heavy": "cpu:1" },"#);
    let light = &model("Gain(1.0)", 12, "");
    let windowed =
        &model(r#"Frame(size: 2, hop: 1)"#, 12, "").replace("Gain(2.0)", "Reshape([128])");
    type Case<'a> = (&'a str, usize, Replicate, Option<(u32, u64)>);
    let cases: &[Case<'_>] = &[
        (plain, 1, Auto, None),
        (plain, 2, Auto, Some((2, 1))),
        (plain, 3, Auto, Some((3, 1))),
        (plain, 4, Auto, Some((4, 1))),
        (plain, 4, Off, None),
        (plain, 4, UpTo(1), None),
        (plain, 4, UpTo(2), Some((2, 1))),
        // 5 devices: 4 divides 12, 5 does not and makes the iteration longer, but not the period shorter by enough.
        (plain, 5, Auto, Some((4, 1))),
        (single, 4, Auto, None),
        (single, 4, UpTo(4), Some((4, 4))),
        (pinned, 4, Auto, None),
        (light, 4, Auto, None),
        (windowed, 4, UpTo(4), None),
    ];
    for (i, &(text, devices, replicate, expected)) in cases.iter().enumerate() {
        let compiled = compile(text, devices, replicate);
        let expected = expected.map(|(k, n)| (vec![("heavy".to_owned(), k)], n));
        assert_eq!(done(&compiled), expected, "case {i}");
        let named: Vec<(String, u32)> = text::replicas(&compiled.program.graph)
            .into_iter()
            .map(|(name, n)| (name.to_owned(), n))
            .collect();
        assert_eq!(named, expected.map(|e| e.0).unwrap_or_default(), "case {i}");
    }
}

#[test]
fn a_quicker_device_has_more_of_the_replicas() {
    let mut machine = crate::machine::uniform(2);
    for device in machine.devices.iter_mut().take(1) {
        (device.flops_per_s, device.bytes_per_s) = (device.flops_per_s * 2, device.bytes_per_s * 2);
    }
    let options = CompileOptions {
        machine: MachineChoice::Given(machine),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", &model(HEAVY, 12, ""), "", &options).expect("compiles");
    assert_eq!(done(&compiled), Some((vec![("heavy".to_owned(), 3)], 1)));
    let program = &compiled.program;
    let placed = |i: u32| {
        let id = program
            .graph
            .find(&format!("heavy#{i}"))
            .expect("a replica");
        program.plans[PlanId(0)].placement[id].0
    };
    assert_eq!((0..3).filter(|&i| placed(i) == 0).count(), 2);
}

#[test]
fn it_is_told_in_a_line() {
    let said = |frames, how| {
        let compiled = compile(&model(HEAVY, frames, ""), 4, how);
        compiled
            .replication
            .map(|replication| replication.to_string())
            .unwrap_or_default()
    };
    let line = said(12, Replicate::Auto);
    assert!(
        line.starts_with("replicated: heavy x4; an iteration in "),
        "{line}"
    );
    assert!(line.ends_with(" without"), "{line}");
    let line = said(1, Replicate::UpTo(4));
    assert!(
        line.contains("; one of the program is 4 of the model's"),
        "{line}"
    );
    let line = said(1, Replicate::Auto);
    assert!(
        line.contains("`heavy` bounds the period") && line.contains("`--replicate 4`"),
        "{line}"
    );
    assert_eq!(said(12, Replicate::Off), "");
}

#[test]
fn fixed_blocks_stay_as_many_iterations_of_the_model() {
    let text = model(HEAVY, 1, "");
    for (block, expected) in [(64, Some(16)), (62, None)] {
        let options = CompileOptions {
            machine: MachineChoice::Uniform(4),
            replicate: Replicate::UpTo(4),
            block: Some(block),
            ..CompileOptions::default()
        };
        let compiled = compile_str("model.ron", &text, "", &options).expect("it compiles");
        let replicated = done(&compiled).is_some_and(|(actors, _)| actors[0].1 == 4);
        assert_eq!(replicated, expected.is_some(), "{block}");
        if let Some(expected) = expected {
            assert_eq!(compiled.program.plans[PlanId(0)].block, expected);
        }
    }
}

#[test]
fn the_period_alone_is_what_replicas_are_for() {
    for objective in [Objective::LATENCY, Objective::MEMORY] {
        let mut options = CompileOptions {
            machine: MachineChoice::Uniform(4),
            ..CompileOptions::default()
        };
        options.search.objective = Some(objective);
        let compiled = compile_str("model.ron", &model(HEAVY, 12, ""), "", &options);
        assert_eq!(compiled.expect("it compiles").replication, None);
    }
}

#[test]
fn contingencies_run_the_replicas_on_what_is_left() {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(4),
        contingencies: Losses::Pairs,
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", &model(HEAVY, 12, ""), "", &options).expect("compiles");
    assert_eq!(done(&compiled), Some((vec![("heavy".to_owned(), 4)], 1)));
    let program = &compiled.program;
    assert_eq!(
        (program.contingencies.list.len(), compiled.impossible.len()),
        (2, 0)
    );
    let whole = program.plans[PlanId(0)].period_ns;
    for (entry, left) in program.contingencies.list.iter().zip([3, 2]) {
        let period = program.plans[entry.main].period_ns;
        // Four replicas on three devices: one of them has two.
        assert!(
            period > whole && period < whole * 4 / left * 2,
            "{whole} {period} on {left}"
        );
    }
}

/// `a -> b -> c`, b with two inputs of rates 2 and 3, and an output of rate 5; b fires 4 times.
fn two_ports() -> Graph {
    let text = r#"Model(
    sources: { "a": Stream(dtype: f32, rate: 8), "b": Stream(dtype: f32, rate: 12) },
    actors: {
        "pair": Custom("pair", inputs: { "p": (dtype: f32, rate: 2), "q": (dtype: f32, rate: 3) },
                       outputs: { "s": (dtype: f32, rate: 5), "t": (dtype: f32) }),
    },
    channels: [
        (from: "a", to: ["pair.p"], initial: [1.0, 2.0, 3.0]),
        (from: "b", to: ["pair.q", "copy"]),
        (from: "pair.s", to: ["s"]),
        (from: "pair.t", to: ["t"], initial: [7.0]),
    ],
    sinks: { "s": Stream(), "t": Stream(), "copy": Stream() },
)"#;
    compile(text, 1, Replicate::Off).program.graph.clone()
}

fn rewritten(graph: &Graph, name: &str, replicas: u32) -> Result<Replicated, ReplicateError> {
    let factors = [(graph.find(name).unwrap_or(ActorId(99)), replicas)].into();
    replicate(
        graph,
        &factors,
        &zbmd_backends::standard_registry(),
        TiSlice::from_ref(&[]),
    )
}

#[test]
fn all_ports_are_dealt_out_and_ids_stay() {
    let graph = two_ports();
    let Replicated {
        graph: made,
        iterations,
    } = rewritten(&graph, "pair", 2).expect("possible");
    assert_eq!(iterations, 1);
    insta::assert_snapshot!(text::graph(&made, None));
    for (id, actor) in graph.actors.iter_enumerated() {
        let name = if actor.name == "pair" {
            "pair#0"
        } else {
            &actor.name
        };
        assert_eq!(made.actors[id].name, name);
    }
    for (id, channel) in graph.channels.iter_enumerated() {
        assert_eq!(
            (&made.channels[id].initial, made.channels[id].history()),
            (&channel.initial, channel.history())
        );
    }
    for id in (graph.channels.len()..made.channels.len()).map(ChannelId::from) {
        assert!(made.channels[id].initial.is_empty());
    }
    let longer = rewritten(&graph, "pair", 3).expect("possible");
    assert_eq!(longer.iterations, 3);
}

#[test]
fn graphs_that_cannot_have_replicas_are_refused() {
    let graph = two_ports();
    let said = |graph: &Graph, name: &str, replicas| match rewritten(graph, name, replicas) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    assert_eq!(said(&graph, "nobody", 2), "there is no a99");
    assert_eq!(
        said(&graph, "a", 2),
        "`a` cannot be replicated: it is a source or a sink"
    );
    assert_eq!(
        said(&graph, "pair", 32),
        "op `Split` cannot deal out 32 runs of 2 tokens"
    );
    assert_eq!(
        rewritten(&graph, "pair", 1).map(|made| made.graph),
        Ok(graph.clone())
    );
    let mut taken = graph.clone();
    taken.actors[ActorId(0)].name = "pair#1".into();
    assert_eq!(
        said(&taken, "pair", 2),
        "the name `pair#1`, which a replica needs, is taken"
    );
    let apart = compile(
        r#"Model(
    sources: { "a": Stream(dtype: f32), "b": Stream(dtype: f32) },
    actors: { "half": Gain(0.5) },
    channels: [(from: "a", to: ["half"]), (from: "half", to: ["c"]), (from: "b", to: ["d"])],
    sinks: { "c": Stream(), "d": Stream() },
)"#,
        1,
        Replicate::Off,
    );
    let said = said(&apart.program.graph, "half", 2);
    assert_eq!(
        said,
        "unconnected parts of the graph would fall out of step"
    );
}
