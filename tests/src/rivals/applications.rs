//! The shape of the test with several applications of aegir, the simulator of applications on bittide that came before:
//! rings of three actors with messages of 32 bits both ways, on links of 8 bits.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use zbmd_compiler::{CompileOptions, graph_of_file};
use zbmd_ir::{BlobId, Graph, TiVec};
use zbmd_tick_scheduler::schedule;
use zbmd_tick_sim::machine::{RunInput, Stepping, run};
use zbmd_ticks::{TickMachine, Topology, verify};

/// What it takes to plan and to simulate applications.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Ticks between iterations of every application.
    pub period: u64,
    /// A period below which no plan can go.
    pub bound: u64,
    /// Placing, routing and scheduling.
    pub planning: Duration,
    /// The independent verification.
    pub verification: Duration,
    /// Nodes of the machine times ticks of each that were simulated frame by frame.
    pub node_ticks: u64,
    /// What that took.
    pub simulation: Duration,
}

/// So many rings of three counters.
///
/// # Panics
/// If the model does not compile.
pub fn applications(count: usize) -> (Graph, TiVec<BlobId, bytes::Bytes>) {
    let (mut actors, mut channels) = (String::new(), String::new());
    for (application, index) in (0..count).flat_map(|a| (0..3).map(move |index| (a, index))) {
        let name = |index: usize| format!("a{application}_{}", index % 3);
        let _ = write!(
            actors,
            "\"{}\": Expr(\"x + y\", inputs: {{ \"x\": i32, \"y\": i32 }}), ",
            name(index)
        );
        let _ = write!(
            channels,
            "(from: \"{}\", to: [\"{}.x\", \"{}.y\"], initial: [1]), ",
            name(index),
            name(index + 1),
            name(index + 2)
        );
    }
    let model = format!("Model(actors: {{ {actors} }}, channels: [{channels}])");
    let path = std::env::temp_dir().join(format!("zbmd-applications-{}.ron", std::process::id()));
    std::fs::write(&path, model).expect("a temporary file");
    let found = graph_of_file(&path, &CompileOptions::default());
    std::fs::remove_file(&path).expect("the temporary file");
    found.unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
}

/// Plans applications for a tree of 15 nodes, verifies the plan, and simulates some iterations frame by frame.
///
/// # Panics
/// If there is no plan, or it is refused, or its run ends early.
pub fn measure_applications(count: usize, iterations: u64) -> Effort {
    let (graph, blobs) = applications(count);
    let machine = TickMachine {
        topology: Topology::Tree {
            levels: 4,
            fan_out: 2,
        },
        frame_bits: 8,
        latency_ticks: 4,
        memory_bytes: 1 << 20,
        op_ticks: BTreeMap::new(),
        default_ticks: 1,
        clocks: None,
    };
    let begun = Instant::now();
    let scheduled = schedule(&graph, &machine).unwrap_or_else(|e| panic!("{e}"));
    let planning = begun.elapsed();
    let bound = scheduled.bound;
    let begun = Instant::now();
    let plan = verify(&graph, &machine, scheduled.plan);
    let plan = plan.unwrap_or_else(|errors| panic!("{errors:#?}"));
    let verification = begun.elapsed();

    let input = RunInput {
        graph: &graph,
        blobs: &blobs,
        registry: &zbmd_backends::standard_registry(),
        machine: &machine,
        plan: &plan,
        contingencies: None,
        inputs: &BTreeMap::new(),
        iterations: Some(iterations),
        max_ticks: None,
        injections: &[],
        stepping: Stepping::EveryFrame,
    };
    let begun = Instant::now();
    let outcome = run(&input).unwrap_or_else(|e| panic!("{e}"));
    let simulation = begun.elapsed();
    assert_eq!(outcome.fault, None);
    Effort {
        period: plan.period,
        bound,
        planning,
        verification,
        node_ticks: outcome.ticks * plan.waiting_frames.len() as u64,
        simulation,
    }
}
