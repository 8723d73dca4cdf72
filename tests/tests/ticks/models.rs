//! The models of this repository on a simulated 4 x 4 torus that keeps time.

use std::collections::BTreeMap;

use bytes::Bytes;
use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, graph_of_file};
use zbmd_ir::{BlobId, Graph, Program, TiVec};
use zbmd_tests::data::file;
use zbmd_tests::run::{graph_file, random_inputs};
use zbmd_tick_scheduler::schedule;
use zbmd_tick_sim::machine::{RunInput, Stepping, run};
use zbmd_ticks::{TickMachine, Topology, verify};

fn torus() -> TickMachine {
    TickMachine {
        topology: Topology::Torus {
            rows: 4,
            columns: 4,
        },
        frame_bits: 64,
        latency_ticks: 12,
        memory_bytes: 1 << 24,
        op_ticks: BTreeMap::new(),
        default_ticks: 3,
        clocks: None,
    }
}

/// Runs some iterations of a graph in both ways, on random input, and the interpreter beside them.
fn check(
    name: &str,
    graph: Graph,
    blobs: TiVec<BlobId, Bytes>,
    registry: &Registry,
    iterations: u64,
) {
    let machine = torus();
    let program = Program {
        graph,
        blobs,
        ..Program::default()
    };
    let inputs = random_inputs(&program, iterations, 4);
    let scheduled = schedule(&program.graph, &machine).unwrap_or_else(|e| panic!("{name}: {e}"));
    eprintln!(
        "{name}: period {} ticks, bound {}, latency {}",
        scheduled.plan.period, scheduled.bound, scheduled.latency
    );
    let plan = verify(&program.graph, &machine, scheduled.plan)
        .unwrap_or_else(|errors| panic!("{name}: {errors:#?}"));

    let mut interpreter = Interpreter::new(&program.graph, &program.blobs, registry)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let expected = interpreter.run(&inputs, Some(iterations));
    let expected = expected.unwrap_or_else(|e| panic!("{name}: {e}"));
    let check_run = |stepping: Stepping| {
        let input = RunInput {
            graph: &program.graph,
            blobs: &program.blobs,
            registry,
            machine: &machine,
            plan: &plan,
            contingencies: None,
            inputs: &inputs,
            iterations: Some(iterations),
            max_ticks: None,
            injections: &[],
            stepping,
        };
        let outcome = run(&input).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(outcome.fault, None, "{name}");
        assert!(
            outcome.outputs == expected.outputs,
            "{name}, {stepping:?}: other bits"
        );
    };
    check_run(Stepping::EveryFrame);
    check_run(Stepping::Events);
}

fn check_model(model: &str, registry: &Registry, params: &[(&str, String)], iterations: u64) {
    let options = CompileOptions {
        registry: registry.clone(),
        params: params
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        ..CompileOptions::default()
    };
    let found = graph_of_file(graph_file(model), &options);
    let (graph, blobs) = found.unwrap_or_else(|diagnostics| panic!("{model}: {diagnostics}"));
    check(model, graph, blobs, registry, iterations);
}

#[test]
fn models_have_the_interpreters_bits_on_a_torus() {
    let registry = zbmd_backends::standard_registry();
    check_model("agc/model.ron", &registry, &[], 500);
    check_model("pll/model.ron", &registry, &[], 500);
    check_model("fm/model.ron", &registry, &[], 3);
    check_model("cd2dat/model.ron", &registry, &[], 10);
    check_model("adsb/model.ron", &zbmd_tests::actors::registry(), &[], 3);
}

#[test]
fn the_voice_detector_has_the_interpreters_bits_on_a_torus() {
    let Some(detector) = file("models/silero_vad.onnx") else {
        return;
    };
    let detector = std::path::absolute(detector).expect("a path");
    let detector = ("detector", format!("{:?}", detector.display().to_string()));
    let registry = zbmd_tests::actors::registry();
    check_model("vad/model.ron", &registry, &[detector], 5);
}
